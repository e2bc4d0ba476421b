"""Multivariate t input: heavy tails in all directions at once."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import brentq
from scipy.special import digamma, gammaln

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block
from moment_init.scores.base import ClosedFormContraction, InputModel, elliptical_contraction
from moment_init.scores.gaussian import given_vector, split_covariance

# The covariance is finite above two degrees of freedom. At 200 the excess kurtosis, 6 / (dof - 4),
# is .03, as large as its standard error sqrt(24 / n) at n = 25,000: a Gaussian for our purposes.
DEGREES_BOUNDS = (2.05, 200.0)

# Near the maximum an EM step divides the error by at least three for degrees above three. EM stops
# when the scale matrix moves by less than a hundredth of its standard error, about sqrt(2 / n).
MAX_ITERATIONS = 200
SHARE_OF_ERROR = 0.01

# Largest number of rows for the fit: the degrees of freedom are then known to two per cent.
FIT_ROWS = 50_000


class StudentT(InputModel):
    r"""Multivariate t input with known or fitted mean, scale matrix and degrees of freedom.

    With :math:`q = (x - \mu)' \Sigma^{-1} (x - \mu)` the log-density is
    :math:`-\frac{\nu + d}{2} \log(1 + q / \nu)` plus a constant. Its scores, Eq. (9) of [1]_, are
    a Gaussian's with the factors :math:`c_1 = (\nu + d) / (\nu + q)`,
    :math:`c_2 = c_1 (\nu + d + 2) / (\nu + q)` and :math:`c_3 = c_2 (\nu + d + 4) / (\nu + q)`.

    Parameters
    ----------
    mean : array-like, shape (n_features,), optional
        Known mean; fitted by default.
    scale : array-like, shape (n_features, n_features), optional
        Known scale matrix Sigma; fitted by default. The covariance is nu / (nu - 2) times it.
    degrees_of_freedom : float, optional
        Known nu, larger than 2; fitted by default.

    Attributes
    ----------
    scale_ : numpy.ndarray, shape (n_features, n_features)
        Scale matrix after `fit`.
    degrees_of_freedom_ : float
        Degrees of freedom after `fit`, at most 200.
    n_iter_ : int
        Number of iterations of the fit.

    Notes
    -----
    The fit is by maximum likelihood: EM, with the degrees of freedom maximised on the observed
    likelihood (ECME of [2]_). It takes about ten iterations of O(n d^2) on at most 50,000 rows.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    .. [2] C. Liu, D. B. Rubin, "ML estimation of the t distribution using EM and its extensions,
       ECM and ECME", Statistica Sinica 5 (1995).
    """

    scale_: FloatArray
    degrees_of_freedom_: float
    n_iter_: int = 0
    _scale_factor: FloatArray

    def __init__(
        self,
        mean: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        degrees_of_freedom: float | None = None,
    ) -> None:
        self.mean = mean
        self.scale = scale
        self.degrees_of_freedom = degrees_of_freedom

    def __repr__(self) -> str:
        """Show the degrees of freedom, if fitted."""
        if self.is_fitted:
            return f"StudentT(degrees_of_freedom={self.degrees_of_freedom_:.3g})"
        return "StudentT()"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit the parameters that were not given to validated rows, by maximum likelihood.

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
        StudentT
            This object, fitted.
        """
        n_features = features.shape[1]
        start = self._fit_moments(features, weights, names)  # raises for collinear columns
        stride = slice(None, None, max(1, len(weights) // FIT_ROWS))
        rows = (read_block(features, stride) - start.mean) / start.scales
        mean, scale, degrees = np.zeros(n_features), start.correlation, _START_DEGREES
        if self.mean is not None:
            mean = (given_vector(self.mean, n_features) - start.mean) / start.scales
        if self.scale is not None:
            sizes, correlation = split_covariance(self.scale, n_features)
            sizes = sizes / start.scales
            scale = correlation * np.outer(sizes, sizes)
        if self.degrees_of_freedom is not None:
            degrees = _checked_degrees(self.degrees_of_freedom)
        mean, scale, degrees = self._maximise(rows, weights[stride], mean, scale, degrees)
        units = np.outer(start.scales, start.scales)
        self._set_parameters(start.mean + start.scales * mean, units * scale, degrees)
        return self

    def _maximise(
        self,
        rows: FloatArray,
        weights: FloatArray,
        mean: FloatArray,
        scale: FloatArray,
        degrees: float,
    ) -> tuple[FloatArray, FloatArray, float]:
        """Run ECME from a start, with given parameters held fixed."""
        total, n_features = weights.sum(), rows.shape[1]
        tolerance = SHARE_OF_ERROR * np.sqrt(2.0 * np.square(weights).sum()) / total
        for iteration in range(MAX_ITERATIONS):
            self.n_iter_ = iteration + 1
            before = scale
            quadratic = _quadratic_form(rows - mean, cholesky(scale, lower=True))
            if self.degrees_of_freedom is None:
                degrees = _maximal_degrees(quadratic, weights, n_features)
            shares = weights * (degrees + n_features) / (degrees + quadratic)
            if self.mean is None:
                mean = shares @ rows / shares.sum()
            if self.scale is not None:
                break
            centred = rows - mean
            # Dividing by the sum of the shares keeps the fixed point and converges faster.
            scale = (centred * shares[:, None]).T @ centred / shares.sum()
            scale += self.shrinkage_ * (np.diag(np.diag(scale)) - scale)
            if np.abs(scale - before).max() < tolerance:
                break
        return mean, scale, degrees

    def _set_parameters(self, mean: FloatArray, scale: FloatArray, degrees: float) -> None:
        self.scale_, self.degrees_of_freedom_ = scale, degrees
        self.set_moments(mean, scale * degrees / (degrees - 2.0))
        self._scale_factor = self._factor * np.sqrt((degrees - 2.0) / degrees)

    def _use_given(self) -> None:
        if self.mean is None or self.scale is None or self.degrees_of_freedom is None:
            raise self._not_given()
        mean = given_vector(self.mean, np.size(self.mean))
        scales, correlation = split_covariance(self.scale, len(mean))
        degrees = _checked_degrees(self.degrees_of_freedom)
        self._set_parameters(mean, correlation * np.outer(scales, scales), degrees)

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
        self._require_fitted()
        degrees, n_features = self.degrees_of_freedom_, len(self.mean_)
        constant = gammaln((degrees + n_features) / 2.0) - gammaln(degrees / 2.0)
        constant -= 0.5 * n_features * np.log(np.pi * degrees)
        constant -= np.log(np.diag(self._scale_factor)).sum()
        rows = np.asarray(X, dtype=np.float64) - self.mean_
        quadratic = _quadratic_form(rows, self._scale_factor)
        return np.asarray(constant - 0.5 * (degrees + n_features) * np.log1p(quadratic / degrees))

    def contract(self, basis: FloatArray) -> ClosedFormContraction:
        """Prepare the contraction of the score tensors with a basis.

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
        return elliptical_contraction(self.mean_, self._scale_factor, basis, self._factors)

    def _factors(self, X: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Factors c_1, c_2, c_3 of each row."""
        quadratic = _quadratic_form(X - self.mean_, self._scale_factor)
        inverse = 1.0 / (self.degrees_of_freedom_ + quadratic)
        size = self.degrees_of_freedom_ + X.shape[1]
        first = size * inverse
        second = first * (size + 2.0) * inverse
        return first, second, second * (size + 4.0) * inverse


# Starting value of the degrees of freedom; the first step replaces it.
_START_DEGREES = 10.0


def _checked_degrees(degrees: float | None) -> float:
    """Validate degrees of freedom: with two or fewer there is no covariance to standardise by."""
    value = float(np.asarray(degrees, dtype=np.float64))
    if not 2.0 < value < np.inf:
        raise ValueError(
            "`degrees_of_freedom` must be finite and above 2, so that the covariance exists; got "
            f"{degrees!r}. Use Gaussian for infinitely many."
        )
    return value


def _quadratic_form(centred: FloatArray, factor: FloatArray) -> FloatArray:
    """Squared length of each row after whitening."""
    return np.asarray(np.square(solve_triangular(factor, centred.T, lower=True)).sum(axis=0))


def _maximal_degrees(quadratic: FloatArray, weights: FloatArray, n_features: int) -> float:
    """Degrees of freedom that maximise the likelihood for a given mean and scale matrix."""
    shares = weights / weights.sum()

    def slope(log_degrees: float) -> float:
        degrees = np.exp(log_degrees)
        size = degrees + n_features
        constant = digamma(size / 2.0) - digamma(degrees / 2.0) - n_features / degrees
        ratio = quadratic / degrees
        rows = size / degrees * ratio / (1.0 + ratio) - np.log1p(ratio)
        return float(constant + shares @ rows)

    low, high = np.log(DEGREES_BOUNDS)
    if slope(high) >= 0.0:
        return DEGREES_BOUNDS[1]
    if slope(low) <= 0.0:
        return DEGREES_BOUNDS[0]
    return float(np.exp(brentq(slope, low, high, xtol=1e-4)))
