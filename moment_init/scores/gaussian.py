"""Gaussian input, known or fitted: its scores are Hermite tensors (Eq. 9)."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from moment_init.checks import FloatArray, as_float_array
from moment_init.data.standardising import COLLINEAR_TOLERANCE, InputRows, fit_correlation
from moment_init.scores.base import ClosedFormContraction, InputModel, elliptical_contraction


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
        given = [name for name in ("mean", "covariance") if getattr(self, name) is not None]
        return f"Gaussian(given: {', '.join(given)})" if given else "Gaussian()"

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
        return self.fit_data(InputRows(features, weights), names)

    def fit_data(self, rows: Any, names: tuple[str, ...]) -> Self:
        """Fit to validated rows, in memory or of a Dask collection.

        Parameters
        ----------
        rows : InputRows or other rows that have `X`
            Validated rows.
        names : tuple of str
            Column names for error messages.

        Returns
        -------
        Gaussian
            This object, fitted.
        """
        fitted = fit_correlation(rows, names)
        n_features = rows.n_features
        self.shrinkage_ = fitted.shrinkage if self.covariance is None else 0.0
        if self.mean is None or self.covariance is None:
            self.n_fitted_ = rows.effective_n
        self._set_parameters(
            fitted.mean if self.mean is None else given_vector(self.mean, n_features),
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
        self._set_factor(mean, scales, correlation)
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

    def contract(self, basis: FloatArray) -> ClosedFormContraction:
        """Prepare the contraction of the Hermite tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Basis that every mode is contracted with.

        Returns
        -------
        ClosedFormContraction
            The contracted score tensors as functions of rows.
        """
        self._require_fitted()
        return elliptical_contraction(self.mean_, self._factor, basis)

    def _use_given(self) -> None:
        if self.mean is None or self.covariance is None:
            raise self._not_given()
        mean = given_vector(self.mean, np.size(self.mean))
        self._set_parameters(mean, *split_covariance(self.covariance, len(mean)))


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


def given_vector(value: ArrayLike, size: int, name: str = "mean") -> FloatArray:
    """Validate a given mean, or another vector."""
    # value: (size,) -> (size,)
    vector = as_float_array(value, name)
    if vector.shape != (size,):
        raise ValueError(f"`{name}` must have shape ({size},) to match `X`; got {vector.shape}.")
    return vector
