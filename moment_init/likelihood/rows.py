"""Rows that a likelihood is summed over, and weighted sums of x x' for many weightings at once.

Inputs with a one, x = (z, 1), are held as a matrix with one column per row of the data. Its order
in memory follows its width: features of few are contiguous, so that compiled loops run over rows;
of many, the features of a row are.

A weighted sum of x x' for every weighting is one matrix product for a run of rows, either of the
products x_a x_b of all pairs of features with the weights, or of the features with the weighted
features of all weightings. The first has half the multiplications, the second less to write.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import Rows
from moment_init.data.checking import RegressionData, group_order
from moment_init.data.standardising import ResponseUnits, whiten_rows
from moment_init.families.several import AnyFamily
from moment_init.likelihood.passes import multiply_features, scale_features

_NARROW = 12
"""Up to this width, and from `_MANY_WEIGHTINGS` on for any width, products of features are faster
than weighted features (measured for widths of 3 to 48 and 2 to 15 weightings)."""

_MANY_WEIGHTINGS = 6

_RUN_DOUBLES = 2**16
"""What is written for a run of rows is read at once: half a MiB fits into a second-level cache."""

_SMALL_PRODUCT = 10**6
"""OpenBLAS computes matrix products with up to this many multiplications without copying its
arguments first, at up to twice the speed."""

_LEAST_RUN = 64


def with_ones(z: NDArray[np.generic]) -> FloatArray:
    """Inputs of rows with a one for the bias, in the order of memory that suits their number."""
    # z: (n_block, n_features) -> (n_features + 1, n_block)
    width = z.shape[1] + 1
    x = np.empty((width, len(z)), order="C" if width <= _NARROW else "F")
    x[:-1] = z.T
    x[-1] = 1.0
    return x


def run_length(doubles: int, multiplications: int) -> int:
    """Rows of a run, from the doubles written and the multiplications in a product per row."""
    return max(min(_RUN_DOUBLES // doubles, _SMALL_PRODUCT // multiplications), _LEAST_RUN)


def weighted_grams(x: FloatArray, weights: FloatArray, begin: int = 0) -> FloatArray:
    r"""Sums :math:`\sum_i w_{ki} x_i x_i'` over the rows from `begin` on, for every weighting k."""
    # x: (width, n_block), weights: (n_weightings, n_rows) -> (n_weightings, width, width)
    (n_weightings, n_rows), width = weights.shape, len(x)
    if width <= _NARROW or n_weightings >= _MANY_WEIGHTINGS:
        n_products = width * (width + 1) // 2
        sums = np.zeros((n_weightings, n_products))
        length = min(n_rows, run_length(n_products, n_products * n_weightings))
        products = np.empty((n_products, length))
        for start in range(0, n_rows, length or 1):
            some = weights[:, start : start + length]
            if some.shape[1] < length:
                products = np.empty((n_products, some.shape[1]))
            multiply_features(x, begin + start, products)
            if width <= _NARROW:
                sums += np.dot(some, products.T)
            else:  # BLAS prefers two matrices that are not transposed
                sums += np.dot(products, np.ascontiguousarray(some.T)).T
        return np.take(sums, _positions(width), axis=1)
    side = width * n_weightings
    sums = np.zeros((width, side))
    length = min(n_rows, run_length(side, side * width))
    weighted = np.empty((length, side))
    for start in range(0, n_rows, length or 1):
        stop = min(n_rows, start + length)
        scale_features(x, weights, begin, start, weighted[: stop - start])
        sums += np.dot(x[:, begin + start : begin + stop], weighted[: stop - start])
    return np.ascontiguousarray(sums.reshape(width, n_weightings, width).transpose(1, 0, 2))


def predictor_pairs(n_predictors: int, n_pairs: int) -> list[tuple[int, int]]:
    """Pairs of predictors: each with itself if there are as many pairs, otherwise all a <= b."""
    if n_pairs == n_predictors:
        return [(a, a) for a in range(n_predictors)]
    return list(zip(*(index.tolist() for index in np.triu_indices(n_predictors)), strict=True))


@lru_cache(maxsize=64)
def _positions(width: int) -> NDArray[np.intp]:
    """Index of the product of columns a and b, shape (width, width)."""
    positions = np.empty((width, width), dtype=np.intp)
    first, second = np.triu_indices(width)
    positions[first, second] = np.arange(len(first))
    positions[second, first] = np.arange(len(first))
    return positions


IndexArray = NDArray[np.intp]

MAX_STORED_DOUBLES = 2**23
"""Inputs with ones are stored for all rows up to 64 MiB; beyond that each block makes its own."""


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodRows(Rows):
    """Inputs, responses, weights and other values of the rows."""

    # inputs without a column of ones, of any real type; blocks are read in double precision;
    # (n_obs, n_features)
    Z: NDArray[np.generic]
    y: FloatArray  # response, or several of them; (n_obs,) or (n_obs, n_responses)
    # weight of each row; a row with weight 2 counts as two rows (of the same group, if any);
    # (n_obs,)
    sample_weight: FloatArray
    # known part of the linear predictors; (n_obs,) or (n_obs, n_predictors)
    offset: FloatArray | None = None
    # trials behind each binomial response; in the shape of `y`
    n_trials: FloatArray | None = None
    # gating covariates, the same for all rows of a group; (n_obs, n_gate)
    gate: FloatArray | None = None
    # first row of each group; the rows of a group are contiguous and share one component; None if
    # there is one component per row; (n_groups,)
    group_starts: IndexArray | None = None
    x: FloatArray | None = None  # (Z, 1), see `prepared` and `with_ones`; (n_features + 1, n_obs)
    # what the kernels of the families need of each row, see `prepared`; in the shape of `y`
    numbers: FloatArray | None = None
    # distinct counts of the responses whose density is tabulated, to which `numbers` point
    counts: tuple[FloatArray | None, ...] = ()
    # indices of the user's rows in the order of these rows, (n_obs,); None if the order is the same
    order: IndexArray | None = None
    # mean and factor by which inputs are whitened when they are read, if `Z` is a large file mapped
    # into memory, in the user's units and order; it is never copied whole
    whitening: tuple[FloatArray, FloatArray] | None = None

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.y.shape[0])

    @property
    def is_grouped(self) -> bool:
        """Whether units are groups of rows."""
        return self.group_starts is not None

    @property
    def n_units(self) -> int:
        """Number of units with one component each: groups, or rows without groups."""
        return self.n_obs if self.group_starts is None else len(self.group_starts)

    @property
    def n_features(self) -> int:
        """Number of columns of the inputs."""
        return int(self.Z.shape[1])

    @property
    def n_gate(self) -> int:
        """Number of gating covariates."""
        return 0 if self.gate is None else int(self.gate.shape[1])

    @property
    def total_units(self) -> float:
        """Number of draws of a component: total weight, or number of groups."""
        return self.total_weight if self.group_starts is None else float(self.n_units)

    @property
    def unit_weights(self) -> FloatArray:
        """Number of draws of a component per unit; zero if its rows have no weight."""
        if self.group_starts is None:
            return self.sample_weight
        return (np.add.reduceat(self.sample_weight, self.group_starts) > 0.0).astype(np.float64)

    def rows_of(self, units: slice) -> slice:
        """Rows of a block of units."""
        if self.group_starts is None:
            return units
        stop = self.n_obs if units.stop >= self.n_units else int(self.group_starts[units.stop])
        return slice(int(self.group_starts[units.start]), stop)

    def take(self, index: IndexArray | slice) -> "LikelihoodRows":
        """Select units: rows, or groups with all their rows."""
        starts = None
        if self.group_starts is not None:
            ends = np.append(self.group_starts[1:], self.n_obs)
            taken = zip(self.group_starts[index], ends[index], strict=True)
            spans = [np.arange(first, end) for first, end in taken]
            sizes = np.array([len(span) for span in spans], dtype=np.intp)
            starts = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(sizes)[:-1]])
            index = np.concatenate(spans)
        names = ("y", "sample_weight", "offset", "n_trials", "gate", "numbers")
        some: dict[str, Any] = {"Z": self.inputs(index)}
        for name in names:
            values = getattr(self, name)
            some[name] = None if values is None else values[index]
        x = None if self.x is None else with_ones(some["Z"])
        return LikelihoodRows(**some, group_starts=starts, x=x, counts=self.counts)

    def prepared(self, family: AnyFamily) -> "LikelihoodRows":
        """Store what every pass over rows in memory would compute again."""
        if self.numbers is not None:
            return self
        numbers = np.empty(self.y.shape, order="F")
        counts: list[FloatArray | None] = []
        for a, member in enumerate(family.members):
            y = np.asarray(column(self.y, a), dtype=np.float64)
            if member.kernel_has_ratio:
                distinct, column(numbers, a)[:] = distinct_counts(y)
                counts.append(distinct)
            else:
                trials = None
                if member.has_trials and self.n_trials is not None:
                    trials = column(self.n_trials, a)
                column(numbers, a)[:] = member.prepare_rows(y, trials)[1]
                counts.append(None)
        is_small = self.n_obs * (self.n_features + 1) <= MAX_STORED_DOUBLES
        x = with_ones(self.Z) if is_small else None
        return replace(self, x=x, numbers=numbers, counts=tuple(counts))

    def inputs(self, index: IndexArray | slice) -> NDArray[np.generic]:
        """Read the inputs of some rows, (n_rows, n_features)."""
        if self.whitening is None:
            return self.Z[index]
        return whiten_rows(
            *self.whitening, self.Z[index if self.order is None else self.order[index]]
        )

    def read_x(self, rows: slice) -> FloatArray:
        """Inputs and a one of some rows, (n_features + 1, n_block)."""
        if self.x is None:
            return with_ones(self.inputs(rows))
        some = self.x[:, rows]
        # compiled loops want contiguous arrays
        is_contiguous = some.flags.c_contiguous or some.flags.f_contiguous
        return some if is_contiguous else np.ascontiguousarray(some)


def distinct_counts(y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Distinct counts, and the index of every row's count among them."""
    # y: (n,) -> (n_counts,), (n,)
    counts, index = np.unique(y, return_inverse=True)
    return counts, index.astype(np.float64)


def column(values: FloatArray, index: int) -> FloatArray:
    """One response's column of an array with or without an axis of responses."""
    return values if values.ndim == 1 else values[:, index]


def likelihood_rows(data: RegressionData, units: ResponseUnits) -> LikelihoodRows:
    """Rows with responses in given units, from which offsets are subtracted; inputs as they are."""
    y, offset = data.y, data.offset
    has_units = np.array([each.response_power for each in data.family.predictor_families])
    if has_units.any():
        y = np.array(data.y, order="F")
        for index in np.flatnonzero(has_units):
            values = column(y, int(index))
            if offset is not None:
                values -= column(offset, int(index))
            values -= units[index][0]
            values /= units[index][1]
        if offset is not None:
            offset = np.asfortranarray(np.where(has_units, 0.0, offset))
    if has_units.all():
        offset = None
    return LikelihoodRows(
        Z=data.X, y=y, sample_weight=data.sample_weight, offset=offset, n_trials=data.n_trials
    )


_BY_ROW = ("Z", "y", "sample_weight", "offset", "n_trials", "gate")


def by_group(
    rows: LikelihoodRows, groups: NDArray[Any] | None
) -> tuple[LikelihoodRows, IndexArray | None]:
    """Put the rows of each group next to each other; also return the order of the rows."""
    # groups: (n_obs,) -> ..., (n_obs,)
    order, starts = group_order(groups)
    if order is None:
        return rows, None
    known = {name: getattr(rows, name) for name in _BY_ROW}
    ordered = {name: values[order] for name, values in known.items() if values is not None}
    return replace(rows, **ordered, group_starts=starts), order
