"""Rows that a likelihood is summed over, and weighted sums of x x' for many weightings at once.

The products x_a x_b of the columns of x = (z, 1) are formed once; every weighted Gram matrix is
then a row of one matrix product. This costs half as much as separate products, with far fewer
calls. For a single use it pays only with few columns; with more, the weighted columns of all
weightings go into one matrix product.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import RowSource, source_of
from moment_init.families.several import AnyFamily
from moment_init.likelihood.passes import scale_rows
from moment_init.row_sources.columns import take_rows

MAX_PRODUCT_WIDTH = 48
"""With more columns the products of a block of rows no longer fit a core's cache (512 rows of
48 * 49 / 2 doubles are 4.8 MB), and one matrix product per weighting is faster."""

_FORMED_WIDTH = 8
"""Up to this width products are formed even for a single use (measured, 1 to 6 weightings)."""


def with_ones(z: NDArray[np.generic]) -> FloatArray:
    """Inputs with a column of ones for the bias."""
    # z: (n_block, n_features) -> (n_block, n_features + 1)
    x = np.empty((z.shape[0], z.shape[1] + 1))
    x[:, :-1] = z
    x[:, -1] = 1.0
    return x


def symmetric_products(z: FloatArray) -> FloatArray:
    """Products of all pairs of columns of (z, 1)."""
    # z: (n_block, n_features) -> (n_block, (n_features + 1)(n_features + 2) / 2)
    columns = np.ascontiguousarray(with_ones(z).T)
    width, n_rows = columns.shape
    result = np.empty((width * (width + 1) // 2, n_rows))
    start = 0
    for index, column in enumerate(columns):
        stop = start + width - index
        np.multiply(column, columns[index:], out=result[start:stop])
        start = stop
    return result.T


def weighted_grams(
    x: FloatArray, weights: FloatArray, products: FloatArray | None = None
) -> FloatArray:
    r"""Sums :math:`\sum_i w_{ki} x_i x_i'`, for every weighting k; the last column of x is ones."""
    # x: (n_block, width), weights: (n_weightings, n_block), products: (n_block, n_products) ->
    # (n_weightings, width, width)
    width = x.shape[1]
    if products is None and width <= _FORMED_WIDTH:
        products = symmetric_products(x[:, :-1])
    if products is not None:
        return np.asarray(np.dot(weights, products)[:, _positions(width)])
    weighted = np.empty((len(x), len(weights) * width))
    scale_rows(x, weights, weighted)
    grams = np.dot(x.T, weighted).reshape(width, len(weights), width)
    return np.ascontiguousarray(grams.transpose(1, 0, 2))


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

MAX_STORED_PRODUCTS = 2**22
"""Products of columns are stored for all rows up to 32 MiB; beyond that each block forms its own,
which costs about as much as reading them from memory."""


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodRows:
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
    # (Z, 1) and the products of its columns, see `prepared`; (n_obs, n_features + 1),
    # (n_obs, n_products)
    design: FloatArray | None = None
    products: FloatArray | None = None
    # what the kernels of the families need of each row, see `prepared`; in the shape of `y`
    numbers: FloatArray | None = None
    # distinct counts of the responses whose density is tabulated, to which `numbers` point
    counts: tuple[FloatArray | None, ...] = ()

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.y.shape[0])

    @property
    def source(self) -> RowSource | None:
        """Source of the rows, if they are not in memory."""
        return source_of(self.Z)

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
    def total_weight(self) -> float:
        """Sum of the weights: the number of rows they stand for."""
        return float(self.sample_weight.sum())

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
        columns = (self.Z, self.y, self.sample_weight, self.offset, self.n_trials, self.gate)
        taken_columns = take_rows((*columns, self.design, self.products, self.numbers), index)
        Z, y, weight, offset, trials, gate, design, products, numbers = taken_columns
        return LikelihoodRows(
            Z, y, weight, offset, trials, gate, starts, design, products, numbers, self.counts
        )

    def prepared(self, family: AnyFamily) -> "LikelihoodRows":
        """Store what every pass over rows in memory would compute again."""
        if self.source is not None or self.numbers is not None:
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
        width = self.n_features + 1
        is_small = self.n_obs * width * (width + 1) // 2 <= MAX_STORED_PRODUCTS
        design, products = None, None
        if is_small and width <= MAX_PRODUCT_WIDTH:
            Z = np.asarray(self.Z, dtype=np.float64)
            design, products = with_ones(Z), np.ascontiguousarray(symmetric_products(Z))
        return replace(
            self, design=design, products=products, numbers=numbers, counts=tuple(counts)
        )


def distinct_counts(y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Distinct counts, and the index of every row's count among them."""
    # y: (n,) -> (n_counts,), (n,)
    counts, index = np.unique(y, return_inverse=True)
    return counts, index.astype(np.float64)


def column(values: FloatArray, index: int) -> FloatArray:
    """One response's column of an array with or without an axis of responses."""
    return values if values.ndim == 1 else values[:, index]
