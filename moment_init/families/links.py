"""Link functions: the mean as a function of the linear predictor, and its derivatives.

The paper writes ``E[y | x, h = j] = g(<beta_j, x> + b_j)``; its ``g`` is the inverse of what is
usually called the link. The moments of order ``m`` are proportional to ``E[g^(m)]``, so every
link has the derivatives of ``g`` up to the fourth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from moment_init.checks import FloatArray

MAX_DERIVATIVE_ORDER = 4
"""No estimator uses a score of higher order than the fourth."""

LARGEST_LOG_MEAN = 300.0
"""exp(300) is about 1e130: beyond any data, and its square is still a finite double. So no variance
or likelihood overflows while an optimiser is far from the optimum."""

_LARGEST_DEVIATION = 1e140
"""Largest residual, in standard deviations, that is squared: its square, 1e280, can be weighted and
summed over all rows without overflow."""

_LARGEST_DOUBLE = np.finfo(np.float64).max

_LARGEST_LOG_ODDS = 700.0
"""exp(700), about 1e304, and its reciprocal are still finite, non-zero doubles."""

_MILLS_SERIES_FROM = 100.0
"""Below -100, ``m (eta + m)`` loses eps eta^2 to cancellation, while its series in eta^-2 with four
terms is exact to 518 eta^-8, 5e-14."""

_LARGEST_LOGIT = 100.0
"""With a logistic predictor of standard deviation 100, only 2.4 percent of the rows have |eta| < 3:
beyond it the response is a step function of the predictor. Only separation leads there."""

_PROBIT_BOUND = 40.0
"""exp(-40**2 / 2) is zero in double precision: beyond it every derivative of Phi is zero."""


def bounded_exp(exponent: FloatArray) -> FloatArray:
    """Exponentiate without overflow."""
    result: FloatArray = np.exp(np.minimum(exponent, LARGEST_LOG_MEAN))
    return result


def kept_in_order(bounded: FloatArray, exponent: FloatArray) -> FloatArray:
    """Let bounded exponentials grow beyond the bound, by the logarithm of the part cut off.

    If two components are both far from a response, the nearer one then still has the higher
    density. Derivatives of densities stay those of the bounded exponential.
    """
    if not np.max(exponent, initial=0.0) > LARGEST_LOG_MEAN:
        return bounded
    return np.asarray(bounded * (1 + np.log1p(np.maximum(exponent - LARGEST_LOG_MEAN, 0.0))))


def bounded_square(deviation: FloatArray) -> FloatArray:
    """Square without overflow, so that larger deviations still have larger values.

    Beyond 1e140 the function grows by its logarithm, with the slope that it has there.
    Derivatives of densities stay those of the square.
    """
    with np.errstate(over="ignore"):  # an overflow is handled below
        square: FloatArray = deviation * deviation
    if np.max(square, initial=0.0) > _LARGEST_DEVIATION**2:
        size = np.minimum(np.abs(deviation), _LARGEST_DOUBLE)
        growth = 1 + 2 * np.log(np.maximum(size / _LARGEST_DEVIATION, 1.0))
        square = np.minimum(size, _LARGEST_DEVIATION) ** 2 * growth
    return square


@dataclass(frozen=True, slots=True)
class Link:
    """A link function as data: what families and moments need to know about ``g``."""

    name: str  # as users write it
    # ``eta = g^{-1}(mean)``, elementwise
    link: Callable[[FloatArray], FloatArray] = field(repr=False)
    # ``(eta, order) -> g^(order)(eta)`` for the orders 0 to 4, elementwise
    derivative_function: Callable[[FloatArray, int], FloatArray] = field(repr=False)
    # ``log g(eta)``, elementwise, stable where ``g`` underflows
    log_mean: Callable[[FloatArray], FloatArray] = field(repr=False)
    # ``g'(eta) / g(eta)``, elementwise, stable where ``g`` underflows
    log_mean_derivative: Callable[[FloatArray], FloatArray] = field(repr=False)
    # ``eta -> (g, (log g)', (log g)'')`` in one evaluation, elementwise; the derivatives are
    # stable where ``g`` underflows
    mean_and_log_derivatives: Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]] = (
        field(repr=False)
    )
    # ``(y, offset) -> y`` without the offset: the conditional mean of the result is
    # ``g(eta - offset)``. Links for which this is not possible exactly return `y`
    remove_offset: Callable[[FloatArray, FloatArray], FloatArray] = field(repr=False)
    # Linear predictor beyond which the response has no more information about it; likelihoods keep
    # the length of coefficients and bias below it
    largest_predictor: float = field(repr=False)
    # sign of ``g'''`` if it is the same everywhere, otherwise None
    third_derivative_sign: int | None

    def mean(self, eta: ArrayLike) -> FloatArray:
        """Evaluate ``g``, the mean at a linear predictor."""
        return self.derivative_function(np.asarray(eta, dtype=np.float64), 0)

    def derivative(self, eta: ArrayLike, order: int) -> FloatArray:
        """Evaluate a derivative of ``g``."""
        if order not in range(MAX_DERIVATIVE_ORDER + 1):
            raise ValueError(
                f"`order` must be an integer from 0 to {MAX_DERIVATIVE_ORDER}; got {order!r}. "
                "Moments of higher order are not supported."
            )
        return self.derivative_function(np.asarray(eta, dtype=np.float64), order)


def _logit_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Differentiate the logistic function by polynomials of p' = p(1-p) and t = 1 - 2p."""
    probability: FloatArray = special.expit(eta)
    if order == 0:
        return probability
    slope = probability * special.expit(-eta)  # 1 - p would lose the upper tail
    tilt = -np.tanh(eta / 2)
    factors = (np.ones_like(eta), tilt, 1 - 6 * slope, tilt * (1 - 12 * slope))
    result: FloatArray = slope * factors[order - 1]
    return result


def _probit_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Differentiate the normal distribution function: Hermite polynomials times the density."""
    if order == 0:
        probability: FloatArray = special.ndtr(eta)
        return probability
    z = np.clip(eta, -_PROBIT_BOUND, _PROBIT_BOUND)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    factors = (np.ones_like(z), -z, z**2 - 1, -z * (z**2 - 3))
    result: FloatArray = density * factors[order - 1]
    return result


def _log_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Return the exponential, which equals all its derivatives."""
    return bounded_exp(eta)


def _identity_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Return the identity, then one, then zero."""
    return np.array(eta) if order == 0 else np.full_like(eta, float(order == 1))


def _reversed_expit(eta: FloatArray) -> FloatArray:
    """Evaluate p' / p = 1 - p for the logistic function."""
    result: FloatArray = special.expit(-eta)
    return result


def _inverse_mills_ratio(eta: FloatArray) -> FloatArray:
    """Evaluate phi(eta) / Phi(eta) through the scaled complementary error function."""
    result: FloatArray = np.sqrt(2 / np.pi) / special.erfcx(-eta / np.sqrt(2))
    return result


def _log_normal_distribution(eta: FloatArray) -> FloatArray:
    """Evaluate log Phi; in the far lower tail it is -eta^2 / 2 to the last digit."""
    if np.min(eta, initial=0.0) >= -_LARGEST_DEVIATION:
        result: FloatArray = special.log_ndtr(eta)
        return result
    near = special.log_ndtr(np.maximum(eta, -_LARGEST_DEVIATION))
    return np.where(eta < -_LARGEST_DEVIATION, -bounded_square(eta) / 2, near)


def _logit_with_log_derivatives(eta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Use one exponential per entry: ``e = exp(-eta)``, ``g = 1 / (1 + e)``, ``1 - g = e g``."""
    odds = np.exp(np.minimum(-eta, _LARGEST_LOG_ODDS))
    mean = 1 / (1 + odds)
    slope = odds * mean
    return mean, slope, -mean * slope


def _probit_with_log_derivatives(eta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Use the inverse Mills ratio m: ``(log Phi)' = m``, ``(log Phi)'' = -m (eta + m)``."""
    ratio = _inverse_mills_ratio(eta)
    inverse_square = np.minimum(eta, -_MILLS_SERIES_FROM) ** -2.0
    series = 1 - inverse_square * (1 - inverse_square * (6 - 50 * inverse_square))
    near = np.minimum(ratio, 2 * _MILLS_SERIES_FROM)  # unchanged where the series is not used
    product = near * (np.maximum(eta, -_MILLS_SERIES_FROM) + near)
    curvature = np.where(eta < -_MILLS_SERIES_FROM, series, product)
    mean: FloatArray = special.ndtr(eta)
    return mean, ratio, -curvature


def _log_with_log_derivatives(eta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    return bounded_exp(eta), np.ones_like(eta), np.zeros_like(eta)


def _identity_with_log_derivatives(eta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    return np.array(eta), 1 / eta, -1 / eta**2


def _log_link(mean: FloatArray) -> FloatArray:
    """Take the logarithm; it is minus infinity at zero, as other links are at their ends."""
    with np.errstate(divide="ignore"):
        result: FloatArray = np.log(mean)
    return result


def _divide_by_exposure(y: FloatArray, offset: FloatArray) -> FloatArray:
    """Turn counts into rates: the offset of a log link is the logarithm of an exposure."""
    return y * bounded_exp(-offset)


def _keep_offset(y: FloatArray, offset: FloatArray) -> FloatArray:
    """Leave the offset in a bounded response; it is assumed to be independent of x."""
    return y


_ALL_LINKS = (
    Link(
        name="logit",
        link=special.logit,
        derivative_function=_logit_derivative,
        log_mean=special.log_expit,
        log_mean_derivative=_reversed_expit,
        mean_and_log_derivatives=_logit_with_log_derivatives,
        remove_offset=_keep_offset,
        largest_predictor=_LARGEST_LOGIT,
        third_derivative_sign=None,
    ),
    Link(
        name="probit",
        link=special.ndtri,
        derivative_function=_probit_derivative,
        log_mean=_log_normal_distribution,
        log_mean_derivative=_inverse_mills_ratio,
        mean_and_log_derivatives=_probit_with_log_derivatives,
        remove_offset=_keep_offset,
        largest_predictor=_LARGEST_LOGIT / 1.7,  # the probit is about the logit at 1.7 eta
        third_derivative_sign=None,
    ),
    Link(
        name="log",
        link=_log_link,
        derivative_function=_log_derivative,
        log_mean=np.array,
        log_mean_derivative=np.ones_like,
        mean_and_log_derivatives=_log_with_log_derivatives,
        remove_offset=_divide_by_exposure,
        largest_predictor=LARGEST_LOG_MEAN,
        third_derivative_sign=1,
    ),
    Link(
        name="identity",
        link=np.array,
        derivative_function=_identity_derivative,
        log_mean=_log_link,
        log_mean_derivative=np.reciprocal,
        mean_and_log_derivatives=_identity_with_log_derivatives,
        remove_offset=np.subtract,
        largest_predictor=np.inf,
        third_derivative_sign=None,
    ),
)

LINKS: Mapping[str, Link] = MappingProxyType({link.name: link for link in _ALL_LINKS})
"""Every link by its name."""
