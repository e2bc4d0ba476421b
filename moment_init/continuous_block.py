r"""Rows with discrete columns: moments from the continuous ones, given the others.

A discrete column has no density and so no score. But with x = (c, q), c continuous and q discrete,
Theorem 9 of the paper holds given q: :math:`E[T(y)\, S_m(c \mid q)]` has the blocks of the
directions that belong to c as its components. c is taken to depend on q through its mean, which is
linear in q: :math:`c = a + M'q + e`, and the scores are those of e. A mixture in e is one in x,

.. math:: \langle \beta, e \rangle = \langle \beta, c \rangle - \langle M \beta, q \rangle
    - \langle \beta, a \rangle,

from which the likelihood of all columns goes on.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import read_block, sum_over_blocks
from moment_init.coordinates import Coordinates
from moment_init.data import RegressionData
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["ContinuousBlock", "find_discrete_columns", "split_continuous"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MIN_DISTINCT_VALUES = 10
"""A column with no more values is discrete."""

SAMPLED_ROWS = 1000
"""Rows on which distinct values are counted."""


def find_discrete_columns(X: NDArray[np.generic]) -> BoolArray:
    """Columns without a density: binary, one-hot, or of few whole values.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        The inputs.

    Returns
    -------
    numpy.ndarray of bool, shape (n_features,)
        Which columns take no more than ten values in a sample of the rows.
    """
    sample = np.asarray(X[:: max(1, len(X) // SAMPLED_ROWS)])
    limit = min(MIN_DISTINCT_VALUES, len(sample) // 2)
    return np.array([len(np.unique(column)) <= limit for column in sample.T])


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousBlock:
    """The continuous columns without what the discrete ones say of them.

    Parameters
    ----------
    data : RegressionData
        The rows, with the residuals e of the continuous columns as inputs.
    is_discrete : numpy.ndarray of bool, shape (n_features,)
        Which columns of all are discrete.
    intercept : numpy.ndarray, shape (n_continuous,)
        The a above.
    slopes : numpy.ndarray, shape (n_discrete, n_continuous)
        The M above.
    """

    data: RegressionData
    is_discrete: BoolArray
    intercept: FloatArray
    slopes: FloatArray

    def residuals(self, X: FloatArray) -> FloatArray:
        """Residuals of the continuous columns of other rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_rows, n_features)
            The rows.

        Returns
        -------
        numpy.ndarray, shape (n_rows, n_continuous)
            The residuals.
        """
        return _residuals(X, self.is_discrete, self.intercept, self.slopes)

    def lift(
        self, parameters: MixtureParameters, own: Coordinates, full: Coordinates
    ) -> MixtureParameters:
        """A mixture in the block as one in all columns.

        Parameters
        ----------
        parameters : MixtureParameters
            In standardised coordinates of the block.
        own, full : Coordinates
            Coordinates of the block and of all columns.

        Returns
        -------
        MixtureParameters
            In standardised coordinates of all columns.
        """
        slopes, biases = own.coefficients_to_user(parameters.coefficients, parameters.biases)
        shifted = biases - self.intercept @ slopes
        coefficients, biases = full.coefficients_to_standardised(self._place(slopes), shifted)
        return replace(parameters, coefficients=coefficients, biases=biases)

    def linear_map(self, own: Coordinates, full: Coordinates) -> FloatArray:
        """What `lift` does to coefficients.

        Parameters
        ----------
        own, full : Coordinates
            Coordinates of the block and of all columns.

        Returns
        -------
        numpy.ndarray, shape (n_features, n_continuous)
            The map from the block's standardised coordinates to those of all columns.
        """
        n_continuous = len(self.intercept)
        in_units, _ = own.coefficients_to_user(np.eye(n_continuous), np.zeros(n_continuous))
        lifted, _ = full.coefficients_to_standardised(self._place(in_units), np.zeros(n_continuous))
        return lifted

    def span(self, subspace: FloatArray, own: Coordinates, full: Coordinates) -> FloatArray:
        """Span of directions in the block together with all discrete columns.

        Parameters
        ----------
        subspace : numpy.ndarray, shape (n_continuous, k)
            Basis in the block's standardised coordinates.
        own, full : Coordinates
            Coordinates of the block and of all columns.

        Returns
        -------
        numpy.ndarray, shape (n_features, k + n_discrete)
            Orthonormal basis in standardised coordinates of all columns.
        """
        axes = full.factor.T[:, self.is_discrete]
        columns = np.concatenate([self.linear_map(own, full) @ subspace, axes], axis=1)
        return np.asarray(np.linalg.qr(columns)[0])

    def _place(self, slopes: FloatArray) -> FloatArray:
        """Coefficients of all columns, (n_features, r), from those of the residuals."""
        placed = np.empty((len(self.is_discrete), slopes.shape[1]))
        placed[~self.is_discrete] = slopes
        placed[self.is_discrete] = -self.slopes @ slopes
        return placed


def split_continuous(data: RegressionData, is_discrete: BoolArray) -> ContinuousBlock:
    """Regress the continuous columns on the discrete ones and keep the residuals.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    is_discrete : numpy.ndarray of bool, shape (n_features,)
        Which columns are discrete; not all of them.

    Returns
    -------
    ContinuousBlock
        The residuals, with the way back.
    """
    centre = np.asarray(read_block(data.X, slice(0, 1000)).mean(axis=0))  # against cancellation

    def sums(block: slice) -> tuple[FloatArray, ...]:
        x = read_block(data.X, block) - centre
        design = np.column_stack([np.ones(len(x)), x[:, is_discrete]])
        weighted = (design * data.sample_weight[block, None]).T
        return np.dot(weighted, design), np.dot(weighted, x[:, ~is_discrete])

    gram, cross = sum_over_blocks(sums, data.n_obs, 2 * data.n_features)
    fitted = np.linalg.lstsq(gram, cross, rcond=None)[0]
    slopes = fitted[1:]
    intercept = fitted[0] + centre[~is_discrete] - centre[is_discrete] @ slopes
    residuals = _residuals(read_block(data.X, slice(None)), is_discrete, intercept, slopes)
    names = tuple(
        name for name, other in zip(data.feature_names, is_discrete, strict=True) if not other
    )
    block_data = replace(data, X=residuals, feature_names=names)
    return ContinuousBlock(block_data, is_discrete, intercept, slopes)


def _residuals(
    X: FloatArray, is_discrete: BoolArray, intercept: FloatArray, slopes: FloatArray
) -> FloatArray:
    return np.asarray(X[:, ~is_discrete] - intercept - X[:, is_discrete] @ slopes)
