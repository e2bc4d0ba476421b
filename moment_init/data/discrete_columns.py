r"""Discrete columns: found by their values, and conditioned on in the moments.

A discrete column has values that recur, so it has no density and no score. But with x = (c, q), c
continuous and q discrete, Theorem 9 of the paper holds given q: the components of
:math:`E[T(y)\, S_m(c \mid q)]` are the parts of the directions that belong to c. The mean of c is
assumed to be linear in q, :math:`c = a + M'q + e`, and the scores are those of e. A mixture in e is
also one in x,

.. math:: \langle \beta, e \rangle = \langle \beta, c \rangle - \langle M \beta, q \rangle
    - \langle \beta, a \rangle,

and the likelihood of all columns starts from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates

BoolArray = NDArray[np.bool_]

MIN_DISTINCT_VALUES = 10
"""A column with at most this many distinct values is discrete."""

SAMPLED_ROWS = 1000
"""Number of rows on which distinct values are counted."""

CENTRE_ROWS = 1000
"""Rows at the head from which a rough centre is taken."""


def sampled_inputs(data: RegressionData) -> NDArray[np.generic]:
    """Take about a thousand evenly spaced rows, in which discrete columns are looked for."""
    return data.thin(data.n_obs // SAMPLED_ROWS).X


def find_discrete_columns(X: NDArray[np.generic]) -> BoolArray:
    """Find the columns with few distinct values: binary, one-hot, or whole numbers."""
    # X: (n_obs, n_features) -> (n_features,)
    sample = np.asarray(X[:: max(1, len(X) // SAMPLED_ROWS)])
    limit = min(MIN_DISTINCT_VALUES, len(sample) // 2)
    return np.array([len(np.unique(column)) <= limit for column in sample.T])


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousBlock:
    """The continuous columns after regression on the discrete ones."""

    data: RegressionData  # the rows, with the residuals e of the continuous columns as inputs
    is_discrete: BoolArray  # which of all columns are discrete; (n_features,)
    intercept: FloatArray  # a of the regression; (n_continuous,)
    slopes: FloatArray  # M of the regression; (n_discrete, n_continuous)

    def residuals(self, X: FloatArray) -> FloatArray:
        """Compute the residuals of the continuous columns for other rows."""
        # X: (n_rows, n_features) -> (n_rows, n_continuous)
        return _residuals(X, self.is_discrete, self.intercept, self.slopes)

    def lift(
        self, coefficients: FloatArray, biases: FloatArray, block: Coordinates, full: Coordinates
    ) -> tuple[FloatArray, FloatArray]:
        """Map coefficients and biases of the block to those of all columns."""
        # coefficients: (n_continuous, n_components) -> (n_features, n_components)
        slopes, biases = block.coefficients_to_user(coefficients, biases)
        shifted = biases - self.intercept @ slopes
        return full.coefficients_to_standardised(self._place(slopes), shifted)

    def linear_map(self, block: Coordinates, full: Coordinates) -> FloatArray:
        """Compute the matrix by which `lift` maps coefficients."""
        # -> (n_features, n_continuous)
        n_continuous = len(self.intercept)
        in_units, _ = block.coefficients_to_user(np.eye(n_continuous), np.zeros(n_continuous))
        lifted, _ = full.coefficients_to_standardised(self._place(in_units), np.zeros(n_continuous))
        return lifted

    def span(self, subspace: FloatArray, block: Coordinates, full: Coordinates) -> FloatArray:
        """Compute a basis of the lifted subspace together with all discrete columns."""
        # subspace: (n_continuous, k) -> (n_features, k + n_discrete)
        axes = full.factor.T[:, self.is_discrete]
        columns = np.concatenate([self.linear_map(block, full) @ subspace, axes], axis=1)
        return np.asarray(np.linalg.qr(columns)[0])

    def _place(self, slopes: FloatArray) -> FloatArray:
        """Map coefficients of the residuals to those of all columns."""
        # slopes: (n_continuous, n_components) -> (n_features, n_components)
        placed = np.empty((len(self.is_discrete), slopes.shape[1]))
        placed[~self.is_discrete] = slopes
        placed[self.is_discrete] = -self.slopes @ slopes
        return placed


def split_continuous(data: RegressionData, is_discrete: BoolArray) -> ContinuousBlock:
    """Regress the continuous columns on the discrete ones and keep the residuals."""
    # is_discrete: (n_features,)
    head = data.take(np.arange(min(CENTRE_ROWS, data.n_obs))).X
    centre = np.asarray(np.asarray(head, dtype=np.float64).mean(axis=0))  # against cancellation
    gram, cross = data.sum(_regression_sums, is_discrete, centre, doubles=2 * data.n_features)
    fitted = np.linalg.lstsq(gram, cross, rcond=None)[0]
    slopes = fitted[1:]
    intercept = fitted[0] + centre[~is_discrete] - centre[is_discrete] @ slopes
    continuous = data.map(_keep_residuals, is_discrete, intercept, slopes)
    return ContinuousBlock(continuous, is_discrete, intercept, slopes)


def _regression_sums(
    data: RegressionData, is_discrete: BoolArray, centre: FloatArray, block: slice
) -> tuple[FloatArray, ...]:
    """Sum products of the discrete columns with each other and with the continuous ones."""
    x = read_block(data.X, block) - centre
    design = np.column_stack([np.ones(len(x)), x[:, is_discrete]])
    weighted = (design * data.sample_weight[block, None]).T
    return np.dot(weighted, design), np.dot(weighted, x[:, ~is_discrete])


def _keep_residuals(
    data: RegressionData, is_discrete: BoolArray, intercept: FloatArray, slopes: FloatArray
) -> RegressionData:
    """Replace the inputs by the residuals of the continuous columns."""
    residuals = _residuals(read_block(data.X, slice(None)), is_discrete, intercept, slopes)
    pairs = zip(data.feature_names, is_discrete, strict=True)
    return replace(
        data, X=residuals, feature_names=tuple(name for name, other in pairs if not other)
    )


def _residuals(
    X: FloatArray, is_discrete: BoolArray, intercept: FloatArray, slopes: FloatArray
) -> FloatArray:
    return np.asarray(X[:, ~is_discrete] - intercept - X[:, is_discrete] @ slopes)


LARGEST_ATOM = 0.1
"""Largest share of the rows that one value may have in a column with a density. Whole numbers with
standard deviation s have a share of 0.4 / s at their mode. From s = 4 on, rounding adds 0.5 % to a
variance and has no other effect on moments."""

FEWEST_EQUAL = 5
"""Up to this many equal values may be due to rounding when there are few rows."""

FEWEST_EXPECTED = 5.0
"""Two indicators belong to one factor if no row has both, though this many would by chance. For
independent indicators that happens about once in a hundred times."""


def describe_discrete_columns(X: NDArray[np.generic]) -> tuple[str, ...]:
    """Say for each column why it has no density; empty if it has one.

    About a thousand rows are used. Whole numbers with many values count as having a density if no
    value has more than a tenth of the rows: moments cannot tell the difference.
    """
    # X: (n_obs, n_features)
    sample = np.asarray(X[:: max(1, len(X) // SAMPLED_ROWS)], dtype=np.float64)
    is_few = find_discrete_columns(sample)
    kinds = [_describe(*pair) for pair in zip(sample.T, is_few, strict=True)]
    for column in _one_hot_columns(sample, [kind == "binary" for kind in kinds]):
        kinds[column] = "one-hot"
    return tuple(kinds)


def name_discrete(names: Sequence[str], kinds: Sequence[str]) -> str:
    """List the discrete columns with their kinds."""
    return ", ".join(f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True) if kind)


def _describe(column: FloatArray, is_few: bool) -> str:
    values, counts = np.unique(column, return_counts=True)
    is_whole = bool(np.all(values == np.round(values)))
    if is_few and len(values) <= 2:
        return "binary"
    if is_few:
        return f"whole numbers, {len(values)} values" if is_whole else f"{len(values)} values"
    most = int(counts.max())
    if most <= max(LARGEST_ATOM * len(column), FEWEST_EQUAL):
        return ""
    where = f"{most / len(column):.0%} of them {values[counts.argmax()]:g}"
    return f"whole numbers, {where}" if is_whole else f"values that recur, {where}"


def _one_hot_columns(sample: FloatArray, is_binary: Sequence[bool]) -> list[int]:
    """Find indicators of one factor: never one in the same row, though some would be by chance."""
    columns = [j for j, kept in enumerate(is_binary) if kept and sample[:, j].min() == 0.0]
    ones = sample[:, columns] / sample[:, columns].max(axis=0, initial=1.0)
    together, totals = ones.T @ ones, ones.sum(axis=0)
    expected = np.outer(totals, totals) / len(sample)
    is_exclusive = (together == 0.0) & (expected > FEWEST_EXPECTED)
    return [column for column, flag in zip(columns, is_exclusive.any(axis=1), strict=True) if flag]
