r"""Columns that rows can tell apart: constant, collinear or too many ones are reduced to axes.

`moment_init.fit_em` refuses such columns, as their coefficients are not identified. Predictions
are: an estimator fits the principal axes :math:`z = V'(x - m)` of the standardised columns and
reports :math:`\beta = V \gamma`, the shortest of all coefficients (of standardised columns) that
predict the same.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, eigh

from moment_init.blocks import read_block, sum_over_blocks
from moment_init.covariance import COLLINEAR_TOLERANCE, require_safe_spreads, rough_units
from moment_init.em.information import LaplaceApproximation
from moment_init.em.result import EMFit
from moment_init.responses.result import JointFit

__all__ = ["ColumnAxes", "affordable_size", "column_axes"]

FloatArray = NDArray[np.float64]

_SMALLEST_EIGENVALUE = 10 * COLLINEAR_TOLERANCE
"""Axes of the correlation matrix below this are taken for none. `fit_em` refuses columns with a
smallest eigenvalue below its tolerance: ten times that leaves room for rounding."""

_SMALLEST_SPREAD = 1e-12
"""A standard deviation below this share of a column's mean is rounding, not variation."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnAxes:
    """Axes in which a mixture is fitted instead of the columns.

    Parameters
    ----------
    mean : numpy.ndarray, shape (n_features,)
        Weighted means of the columns.
    basis : numpy.ndarray, shape (n_features, n_axes)
        The axes; a row of zeros for a constant column.
    """

    mean: FloatArray
    basis: FloatArray

    def project(self, X: NDArray[np.generic]) -> FloatArray:
        """Coordinates of rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            Inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_axes)
            Coordinates along the axes.
        """
        return np.asarray((np.asarray(X, dtype=np.float64) - self.mean) @ self.basis)

    def lift(self, fit: EMFit, feature_names: tuple[str, ...]) -> EMFit:
        """Turn a fit to the coordinates into one to the columns.

        Parameters
        ----------
        fit : EMFit
            Fit to coordinates along the axes.
        feature_names : tuple of str
            Names of the columns.

        Returns
        -------
        EMFit
            The same mixture of the columns; its covariance is that of coefficients in the span of
            the axes.
        """
        coefficients = self.basis @ fit.coefficients
        root, undetermined = fit.laplace.root, fit.laplace.undetermined
        matrix = self._parameter_matrix((fit.dispersion is not None,), fit.n_components, len(root))
        return replace(
            fit,
            coefficients=coefficients,
            biases=fit.biases - self.mean @ coefficients,
            feature_names=feature_names,
            laplace=LaplaceApproximation(
                matrix @ root, np.asarray(np.abs(matrix) @ undetermined > 0.0)
            ),
        )

    def lift_joint(self, fit: JointFit, feature_names: tuple[str, ...]) -> JointFit:
        """Turn a fit of several predictors to the coordinates into one to the columns.

        Parameters
        ----------
        fit : JointFit
            Fit to coordinates along the axes.
        feature_names : tuple of str
            Names of the columns.

        Returns
        -------
        JointFit
            The same mixture of the columns, as from `lift`.
        """
        coefficients = np.tensordot(self.basis, fit.coefficients, axes=1)
        covariance = fit.covariance
        if covariance is not None:
            has_dispersion = fit.kind.has_dispersion
            matrix = self._parameter_matrix(has_dispersion, fit.n_components, len(covariance))
            covariance = matrix @ covariance @ matrix.T
        return replace(
            fit,
            coefficients=coefficients,
            biases=fit.biases - np.tensordot(self.mean, coefficients, axes=1),
            feature_names=feature_names,
            covariance=covariance,
        )

    def _parameter_matrix(
        self, has_dispersion: tuple[bool, ...], n_components: int, size: int
    ) -> FloatArray:
        """Derivative of the vector of parameters of the columns in that of the axes.

        A component has a block for each of its predictors, with or without a log dispersion.
        """
        own = np.block(
            [
                [self.basis, np.zeros((len(self.basis), 1))],
                [-(self.mean @ self.basis)[None, :], np.ones((1, 1))],
            ]
        )
        blocks = [block_diag(own, np.eye(int(has_one))) for has_one in has_dispersion]
        component = block_diag(*blocks)
        n_rest = size - n_components * component.shape[1]
        return np.asarray(block_diag(*[component] * n_components, np.eye(n_rest)))


def affordable_size(
    n_obs: int,
    n_components: int,
    n_features: int,
    *,
    has_dispersion: bool,
    n_gate: int,
    n_predictors: int = 1,
) -> tuple[int, int]:
    """Components and columns that rows can carry: no more free parameters than rows.

    Columns are given up before components: a fit along one axis can still tell components apart.

    Parameters
    ----------
    n_obs : int
        Number of distinct rows.
    n_components, n_features : int
        What is asked for.
    has_dispersion : bool
        Whether each component has a dispersion.
    n_gate : int
        Number of gating covariates.
    n_predictors : int, default 1
        Number of linear predictors of a component for each value of a response: that of classes
        has one for every class but the first.

    Returns
    -------
    n_components : int
        Number of components, at least one.
    n_axes : int
        Number of axes, at least one and at most `n_features`.
    """
    for number in range(n_components, 0, -1):
        n_weights = (number - 1) * (1 + n_gate)
        n_axes = (n_obs - n_weights) // (number * n_predictors) - 1 - has_dispersion
        if n_axes >= 1:
            return number, min(n_axes, n_features)
    return 1, 1


def column_axes(X: NDArray[np.generic], weights: FloatArray, n_axes: int) -> ColumnAxes | None:
    """Axes along which rows differ, if they are fewer than the columns.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        Inputs.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    n_axes : int
        Most axes that are wanted; those of largest variance are kept.

    Returns
    -------
    ColumnAxes or None
        The axes; None if the columns themselves are few enough, vary and are independent.

    Raises
    ------
    ValueError
        If no column varies, or one by too much or too little to be squared.
    """
    n_features = X.shape[1]
    mean, scales, correlation = _correlation(X, weights)
    varies = scales > _SMALLEST_SPREAD * np.abs(mean)
    if not varies.any():
        raise ValueError(
            f"`X` must have a column that varies; got {n_features} that are constant in the rows "
            "of positive weight. Check the columns that were passed."
        )
    require_safe_spreads(scales[varies], tuple(f"x{k}" for k in np.flatnonzero(varies)))
    values, vectors = eigh(correlation[np.ix_(varies, varies)])
    rank = int(np.sum(values > _SMALLEST_EIGENVALUE))
    if min(rank, n_axes) == n_features:
        return None
    kept = slice(None, -min(rank, n_axes) - 1, -1)  # eigenvalues come in increasing order
    basis = np.zeros((n_features, min(rank, n_axes)))
    basis[varies] = vectors[:, kept] / np.sqrt(values[kept]) / scales[varies, None]
    return ColumnAxes(mean, basis)


def _correlation(
    X: NDArray[np.generic], weights: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means, standard deviations and correlations of columns, of which some may be constant."""
    n_obs, n_features = X.shape
    shares = weights / weights.sum()
    # In rough units, so that a common level does not cancel the digits of the variance.
    origin, unit = rough_units(X, weights)

    def first_moments(rows: slice) -> tuple[FloatArray, ...]:
        return (shares[rows] @ ((read_block(X, rows) - origin) / unit),)

    mean = origin + unit * sum_over_blocks(first_moments, n_obs, 2 * n_features)[0]

    def second_moments(rows: slice) -> tuple[FloatArray, ...]:
        centred = (read_block(X, rows) - mean) / unit
        return ((centred * shares[rows, None]).T @ centred,)

    covariance = sum_over_blocks(second_moments, n_obs, 3 * n_features)[0]
    scales = np.sqrt(np.diag(covariance))
    safe = np.where(scales > 0.0, scales, 1.0)
    return mean, unit * scales, covariance / np.outer(safe, safe)
