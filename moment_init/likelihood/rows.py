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
from moment_init.row_sources.columns import take_rows

MAX_PRODUCT_WIDTH = 48
"""With more columns the products of a block of rows no longer fit a core's cache (512 rows of
48 * 49 / 2 doubles are 4.8 MB), and one matrix product per weighting is faster."""

_FORMED_WIDTH = 8
"""Up to this width products are formed even for a single use (measured, 1 to 6 weightings)."""


def with_ones(z: FloatArray) -> FloatArray:
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
    z: FloatArray, weights: FloatArray, products: FloatArray | None = None
) -> FloatArray:
    r"""Sums :math:`\sum_i w_{ki} x_i x_i'` with x = (z, 1), for every weighting k."""
    # z: (n_block, n_features), weights: (n_weightings, n_block), products: (n_block, n_products) ->
    # (n_weightings, n_features + 1, n_features + 1)
    width = z.shape[1] + 1
    if products is None and width > _FORMED_WIDTH:
        x = with_ones(z)
        weighted = weights[:, None, :] * np.ascontiguousarray(x.T)
        grams = np.dot(weighted.reshape(len(weights) * width, len(x)), x)
        return np.asarray(grams.reshape(-1, width, width))
    if products is None:
        products = symmetric_products(z)
    return np.asarray(np.dot(weights, products)[:, _positions(width)])


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
    y: FloatArray  # response; (n_obs,)
    # weight of each row; a row with weight 2 counts as two rows (of the same group, if any);
    # (n_obs,)
    sample_weight: FloatArray
    offset: FloatArray | None = None  # known part of the linear predictor; (n_obs,)
    n_trials: FloatArray | None = None  # trials behind each binomial response; (n_obs,)
    # gating covariates, the same for all rows of a group; (n_obs, n_gate)
    gate: FloatArray | None = None
    # first row of each group; the rows of a group are contiguous and share one component; None if
    # there is one component per row; (n_groups,)
    group_starts: IndexArray | None = None
    # products of the columns of (Z, 1), see `with_products`; (n_obs, n_products)
    products: FloatArray | None = None

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
        Z, y, weight, offset, trials, gate, products = take_rows((*columns, self.products), index)
        return LikelihoodRows(Z, y, weight, offset, trials, gate, starts, products)

    def with_products(self) -> "LikelihoodRows":
        """Store the products of the columns if they are small, for callers that sum often."""
        width = self.n_features + 1
        is_small = self.n_obs * width * (width + 1) // 2 <= MAX_STORED_PRODUCTS
        is_in_memory = self.source is None
        if (
            self.products is not None
            or not is_small
            or width > MAX_PRODUCT_WIDTH
            or not is_in_memory
        ):
            return self
        return replace(self, products=symmetric_products(np.asarray(self.Z, dtype=np.float64)))
