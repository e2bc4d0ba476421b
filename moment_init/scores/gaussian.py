"""Gaussian input: its scores are Hermite tensors (Eq. 9).

`HermiteContraction` contracts the tensors with a basis. `Gaussian` is the input model; its mean and
covariance are known or fitted.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, solve_triangular

from moment_init.checks import FloatArray, as_float_array
from moment_init.data.standardising import COLLINEAR_TOLERANCE, fit_correlation
from moment_init.scores.base import (
    Contraction,
    InputModel,
    packed_cubes,
    symmetrise,
    symmetrise_rows,
    unpack_cubes,
)


@dataclass(frozen=True, slots=True, eq=False)
class HermiteContraction(Contraction):
    r"""Score tensors of N(mean, covariance) contracted with a basis B.

    With :math:`z = B' \Sigma^{-1} (x - \mu)` and :math:`A = B' \Sigma^{-1} B`,

    .. math:: S_1 = z, \quad S_2 = z z' - A, \quad
              S_3 = z^{\otimes 3} - \mathrm{sym}_3(z \otimes A).
    """

    mean: FloatArray  # mean of the density; (n_features,)
    whitening: FloatArray  # inverse covariance times B; (n_features, k)
    inner: FloatArray  # the matrix A; (k, k)

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        z = self._rows(X)
        if order == 1:
            return z
        if order == 2:
            return np.asarray(z[:, :, None] * z[:, None, :] - self.inner)
        cubes = z[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        return np.asarray(cubes - symmetrise_rows(z, self.inner))

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        if order == 1:
            return np.asarray(weights @ self._rows(X))
        if order == 2:
            return self._sum_squares(self._rows(X), weights)
        return self._assemble(self._third_order(X, weights))

    def _low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        z = self._rows(X)
        return np.asarray(weights @ z), self._sum_squares(z, weights)

    def _third_order(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, ...]:
        columns = self.whitening.T @ (X - self.mean).T  # (k, n_obs)
        return packed_cubes(columns, weights), np.asarray(columns @ weights)

    def _assemble(self, sums: tuple[FloatArray, ...]) -> FloatArray:
        packed, first = sums
        return unpack_cubes(packed) - symmetrise(first, self.inner)

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        z = self._rows(X)
        slice_weights = (z @ thetas) * weights[:, None]  # (n_obs, n_slices)
        cross = self.inner @ thetas  # (k, n_slices)
        first = weights @ z
        slices = np.empty((thetas.shape[1], z.shape[1], z.shape[1]))
        for index in range(thetas.shape[1]):
            mixed = np.outer(first, cross[:, index])
            slices[index] = (z * slice_weights[:, [index]]).T @ z
            slices[index] -= slice_weights[:, index].sum() * self.inner + mixed + mixed.T
        return slices

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        z = self._rows(X)
        along = z @ vectors  # (n_obs, n_vectors)
        cross = self.inner @ vectors  # (k, n_vectors)
        lengths = np.sum(vectors * cross, axis=0)
        fibres = z.T @ (np.square(along) * weights[:, None])
        fibres -= np.outer(weights @ z, lengths) + 2.0 * cross * (weights @ along)
        return np.asarray(fibres)

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        z = self._rows(X)
        if order == 1:
            return z
        squared_lengths = np.diag(self.inner)
        if order == 2:
            return np.asarray(np.square(z) - squared_lengths)
        return np.asarray(z * (np.square(z) - 3.0 * squared_lengths))

    def _sum_squares(self, z: FloatArray, weights: FloatArray) -> FloatArray:
        """Weighted sum of z z' - A."""
        return np.asarray((z * weights[:, None]).T @ z - weights.sum() * self.inner)

    def _rows(self, X: FloatArray) -> FloatArray:
        """S_1(x) B for each row."""
        return np.asarray((X - self.mean) @ self.whitening)


class Gaussian(InputModel):
    r"""Gaussian input, N(mean, covariance), with known or fitted parameters.

    With :math:`z = \Sigma^{-1}(x - \mu)` the scores are the Hermite tensors

    .. math:: S_1 = z, \quad S_2 = z z' - \Sigma^{-1}, \quad
              S_3 = z^{\otimes 3} - \mathrm{sym}_3(z \otimes \Sigma^{-1}),

    Eq. (9) of [1]_ at a Gaussian density; its M_3 of Eq. (5) is the case :math:`\Sigma = I`.

    Parameters
    ----------
    mean : array-like, shape (n_features,), optional
        Known mean; fitted by default.
    covariance : array-like, shape (n_features, n_features), optional
        Known covariance; fitted by default.

    Attributes
    ----------
    mean_ : numpy.ndarray, shape (n_features,)
        Mean after `fit`.
    covariance_ : numpy.ndarray, shape (n_features, n_features)
        Covariance after `fit`.
    shrinkage_ : float
        Share of the correlation matrix replaced by the identity; 0 unless there are few rows.

    Notes
    -----
    The covariance is fitted on the scale of the columns, so units do not matter. With fewer than 16
    rows per column the correlation matrix is shrunk towards the identity as in [2]_.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    .. [2] O. Ledoit, M. Wolf, "A well-conditioned estimator for large-dimensional covariance
       matrices", Journal of Multivariate Analysis 88 (2004), doi:10.1016/S0047-259X(03)00096-4.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.scores import Gaussian
    >>> X = np.array([[1.0, 0.0], [3.0, 1.0], [5.0, 5.0]])
    >>> model = Gaussian(mean=[0.0, 0.0], covariance=np.eye(2)).fit(X)
    >>> model.score(X, order=2)[0]
    array([[ 0.,  0.],
           [ 0., -1.]])
    """

    mean_: FloatArray
    covariance_: FloatArray

    def __init__(self, mean: ArrayLike | None = None, covariance: ArrayLike | None = None) -> None:
        self.mean = mean
        self.covariance = covariance

    def __repr__(self) -> str:
        """Name the parameters that were given."""
        parts = [
            "mean" if self.mean is not None else "",
            "covariance" if self.covariance is not None else "",
        ]
        given = ", ".join(part for part in parts if part)
        return f"Gaussian(given: {given})" if given else "Gaussian()"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit to validated rows.

        Parameters
        ----------
        features : numpy.ndarray, shape (n_obs, n_features)
            Validated inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        names : tuple of str
            Column names for error messages.

        Returns
        -------
        Gaussian
            This object, fitted.
        """
        fitted = fit_correlation(features, weights, names)
        n_features = features.shape[1]
        self.shrinkage_ = fitted.shrinkage if self.covariance is None else 0.0
        if self.mean is None or self.covariance is None:
            self.n_fitted_ = float(weights.sum() ** 2 / np.square(weights).sum())
        self._set_parameters(
            fitted.mean if self.mean is None else given_mean(self.mean, n_features),
            *(
                (fitted.scales, fitted.correlation)
                if self.covariance is None
                else split_covariance(self.covariance, n_features)
            ),
        )
        return self

    def _set_parameters(
        self, mean: FloatArray, scales: FloatArray, correlation: FloatArray
    ) -> None:
        self._set_moments(mean, scales, correlation)
        self.covariance_ = correlation * np.outer(scales, scales)

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x).
        """
        factor = self.standardising_basis
        whitened = self.contract(factor).score(np.asarray(X, dtype=np.float64), 1)
        log_normaliser = np.log(np.diag(factor)).sum()
        log_normaliser += 0.5 * factor.shape[0] * np.log(2.0 * np.pi)
        return np.asarray(-0.5 * np.square(whitened).sum(axis=1) - log_normaliser)

    def contract(self, basis: FloatArray) -> HermiteContraction:
        """Prepare the contraction of the Hermite tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Basis that every mode is contracted with.

        Returns
        -------
        HermiteContraction
            The contracted score tensors as functions of rows.
        """
        factor = self.standardising_basis
        half = solve_triangular(factor, basis, lower=True)
        whitening = solve_triangular(factor, half, lower=True, trans="T")
        return HermiteContraction(self.mean_, np.asarray(whitening), np.asarray(half.T @ half))

    def _use_given(self) -> None:
        """Set the density from the given mean and covariance; raise if one is missing."""
        if self.mean is None or self.covariance is None:
            raise ValueError(
                "Gaussian() must be fitted before its scores are used; got no mean or no "
                "covariance. Call `fit(X)` or give both."
            )
        mean = np.asarray(self.mean, dtype=np.float64)
        self._set_parameters(
            given_mean(mean, mean.size), *split_covariance(self.covariance, mean.size)
        )


def split_covariance(covariance: ArrayLike, n_features: int) -> tuple[FloatArray, FloatArray]:
    """Split a given covariance into standard deviations and a correlation matrix."""
    # covariance: (n_features, n_features) -> (n_features,), (n_features, n_features)
    matrix = as_float_array(covariance, "covariance")
    if matrix.shape != (n_features, n_features):
        raise ValueError(
            f"`covariance` must have shape ({n_features}, {n_features}) to match `X`; "
            f"got {matrix.shape}."
        )
    variances = np.diag(matrix)
    if not np.allclose(matrix, matrix.T) or not np.all(variances > 0.0):
        raise ValueError("`covariance` must be symmetric with a positive diagonal.")
    scales = np.sqrt(variances)
    correlation = matrix / np.outer(scales, scales)
    smallest = float(eigh(correlation, eigvals_only=True)[0])
    if smallest < COLLINEAR_TOLERANCE:
        raise ValueError(
            "`covariance` must be positive definite; got a correlation matrix with smallest "
            f"eigenvalue {smallest:.1e}. Drop columns that are linear in others."
        )
    return scales, correlation


def given_mean(mean: ArrayLike, n_features: int) -> FloatArray:
    """Validate a given mean."""
    # mean: (n_features,) -> (n_features,)
    vector = as_float_array(mean, "mean")
    if vector.shape != (n_features,):
        raise ValueError(
            f"`mean` must have shape ({n_features},) to match `X`; got {vector.shape}."
        )
    return vector
