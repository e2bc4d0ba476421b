"""What every input model offers: its fit, its density, and its contracted score tensors."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular

from moment_init.covariance import CorrelationFit, fit_correlation
from moment_init.data import validate_features, validate_sample_weight
from moment_init.scores.contraction import Contraction

__all__ = ["SMALLEST_PIECE", "InputModel"]

FloatArray = NDArray[np.float64]

SMALLEST_PIECE = 0.01
"""Share of the rows below which a piece of a density is left out: its moments would be noise, and
cost as much as others."""


class InputModel(ABC):
    r"""A density of the input with its score functions.

    The score of order m is Eq. (9) of [1]_,

    .. math:: S_m(x) = (-1)^m \nabla^{(m)} p(x) / p(x),

    so that :math:`E[f(x) S_m(x)] = E[\nabla^{(m)} f(x)]` (Theorem 9). The text of [1]_ also calls
    :math:`\nabla \log p` the score; Eq. (9) gives :math:`S_1 = -\nabla \log p`, which is used here.

    Attributes
    ----------
    mean_ : numpy.ndarray, shape (n_features,)
        Mean of the input.
    shrinkage_ : float
        Share of the correlation matrix that was replaced by the identity; 0 unless rows are few.
    n_fitted_ : float
        Effective number of rows that the density was fitted to; infinite if it was given.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    """

    mean_: FloatArray
    shrinkage_: float = 0.0
    n_fitted_: float = float("inf")  # rows that a fit has seen; a model that is given has no error
    _factor: FloatArray

    def fit(self, X: Any, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the density to rows; what was given to the constructor is kept.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            The inputs.
        sample_weight : array-like, shape (n_obs,), optional
            Weight of each row.

        Returns
        -------
        Self
            This object, fitted.

        Raises
        ------
        ValueError
            For constant or collinear columns, which are named, and for parameters of a wrong shape.
        """
        features, names = validate_features(X)
        weights = validate_sample_weight(sample_weight, features.shape[0])
        return self.fit_rows(features, weights, names)

    @abstractmethod
    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit to rows that were checked already.

        Parameters
        ----------
        features : numpy.ndarray, shape (n_obs, n_features)
            Checked inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        names : tuple of str
            Names of the columns, for the messages.

        Returns
        -------
        Self
            This object, fitted.
        """

    @property
    def is_fitted(self) -> bool:
        """Whether there is a density: `fit` was called, or given parameters were used."""
        return hasattr(self, "_factor")

    @property
    def is_normalised(self) -> bool:
        """Whether `log_density` is one of a density and not known up to a constant only."""
        return True

    @property
    def highest_order(self) -> int:
        """Highest order up to three whose score is valid: p and lower derivatives end at zero."""
        return 3

    @property
    def pieces(self) -> tuple["InputModel", ...]:
        """Densities whose mixture this one is, where it is one; itself otherwise."""
        return (self,)

    def piece_shares(self, X: FloatArray) -> FloatArray:
        """Posterior probability of each of the `pieces` at each row.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_pieces)
            The probabilities.
        """
        return np.ones((len(X), 1))

    @property
    def standardising_basis(self) -> FloatArray:
        """Lower triangular L, (n_features, n_features), with L L' the covariance of the input."""
        self._require_fitted()
        return self._factor

    def require_n_features(self, n_features: int) -> None:
        """Raise if the density is one of another number of features.

        Parameters
        ----------
        n_features : int
            Number of columns of the rows that are to be used.

        Raises
        ------
        ValueError
            If it differs from the number of features of the density.
        """
        self._require_fitted()
        if len(self.mean_) != n_features:
            raise ValueError(
                f"`input_model` must have as many features as `X` ({n_features}); got "
                f"{len(self.mean_)}. Fit it to rows with the same columns."
            )

    def gradient(self, X: ArrayLike) -> FloatArray:
        """Gradient of the log-density at each row, which is -S_1(x).

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_features)
            The gradients.
        """
        return np.asarray(-self.score(X, 1))

    def _require_fitted(self) -> None:
        """Use given parameters if there are any; raise if there is no density yet."""
        if not self.is_fitted:
            self._use_given()

    def _use_given(self) -> None:
        """Set the density from what the constructor was given; by default that is nothing."""
        raise ValueError(
            f"{type(self).__name__}() must be fitted before its scores are used; got no "
            "parameters. Call `fit(X)` or give them all."
        )

    def _set_moments(self, mean: FloatArray, scales: FloatArray, correlation: FloatArray) -> None:
        """Keep mean and factor of the covariance, taken on the scale of the columns."""
        self.mean_ = mean
        self._factor = scales[:, None] * cholesky(correlation, lower=True)

    def _set_covariance(self, mean: FloatArray, covariance: FloatArray) -> None:
        """Keep mean and factor of a covariance that is known as a whole."""
        scales = np.sqrt(np.diag(covariance))
        self._set_moments(mean, scales, covariance / np.outer(scales, scales))

    def _fit_moments(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> CorrelationFit:
        """Keep mean and factor of the rows' own covariance; count the rows."""
        fitted = fit_correlation(features, weights, names)
        self._set_moments(fitted.mean, fitted.scales, fitted.correlation)
        self.shrinkage_ = fitted.shrinkage
        self.n_fitted_ = float(weights.sum() ** 2 / np.square(weights).sum())
        return fitted

    def whiten(self, X: ArrayLike) -> FloatArray:
        """Whitened rows, z = L^-1 (x - mean).

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_features)
            Rows with mean zero and identity covariance under the density.
        """
        self._require_fitted()
        centred = np.asarray(X, dtype=np.float64) - self.mean_
        return np.asarray(solve_triangular(self._factor, centred.T, lower=True).T)

    @abstractmethod
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

    @abstractmethod
    def contract(self, basis: FloatArray) -> Contraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Contracted with every mode.

        Returns
        -------
        Contraction
            The contracted score tensors as functions of rows.
        """

    def score(self, X: ArrayLike, order: int, basis: ArrayLike | None = None) -> FloatArray:
        """Contracted score tensor of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.
        order : {1, 2, 3}
            Order m of the score.
        basis : array-like, shape (n_features, k), optional
            Contracted with every mode; the identity by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k, ..., k)
            The tensors S_m(x)(B, ..., B), with m modes of size k.

        Raises
        ------
        ValueError
            For an order other than 1, 2, 3.
        """
        if order not in (1, 2, 3):
            raise ValueError(f"`order` must be 1, 2 or 3; got {order!r}.")
        rows = np.asarray(X, dtype=np.float64)
        matrix = np.eye(rows.shape[1]) if basis is None else np.asarray(basis, dtype=np.float64)
        return self.contract(matrix).score(rows, order)
