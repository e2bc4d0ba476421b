"""Link functions: the mean as a function of the linear predictor, and its derivatives.

The paper writes ``E[y | x, h = j] = g(<beta_j, x> + b_j)``; ``g`` is the inverse of what is
usually called the link. The moments of order ``m`` are proportional to ``E[g^(m)]``, so every
link carries the derivatives of ``g`` up to the fourth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from moment_init.checks import FloatArray

MAX_DERIVATIVE_ORDER = 4
"""The fourth-order score is the highest that any estimator here uses."""

LARGEST_LOG_MEAN = 300.0
"""exp(300) is about 1e130: beyond any data, and its square is still a finite double, so that no
variance or likelihood overflows while an optimiser is far from the optimum."""

_LARGEST_DEVIATION = 1e140
"""In standard deviations: its square, 1e280, times all weights and rows that there are is still a
finite double."""

_LARGEST_DOUBLE = np.finfo(np.float64).max

_LARGEST_LOG_ODDS = 700.0
"""exp(700), about 1e304, is still a double, and so is its reciprocal."""

_MILLS_SERIES_FROM = 100.0
"""Below -100, ``m (eta + m)`` loses eps eta^2 to cancellation, while its series in eta^-2 with four
terms is exact to 518 eta^-8, 5e-14."""

_LARGEST_LOGIT = 100.0
"""A logistic predictor of standard deviation 100 has its transition, |eta| < 3, in 2.4 percent of
the rows: beyond it the response is a step function. Only separated data lead there."""

_PROBIT_BOUND = 40.0
"""exp(-40**2 / 2) is zero in double precision: beyond it every derivative of Phi is zero."""


def bounded_exp(exponent: FloatArray) -> FloatArray:
    """Exponentiate without overflow."""
    result: FloatArray = np.exp(np.minimum(exponent, LARGEST_LOG_MEAN))
    return result


def kept_in_order(bounded: FloatArray, exponent: FloatArray) -> FloatArray:
    """Let bounded exponentials go on growing, by the logarithm of what the bound has cut off.

    Of two components that are both far off a response, the nearer one is then still told by its
    density. Derivatives of densities stay those of the bounded exponential.
    """
    if not np.max(exponent, initial=0.0) > LARGEST_LOG_MEAN:
        return bounded
    return np.asarray(bounded * (1 + np.log1p(np.maximum(exponent - LARGEST_LOG_MEAN, 0.0))))


def bounded_square(deviation: FloatArray) -> FloatArray:
    """Square without overflow, but let larger deviations have larger values.

    Beyond 1e140 the function goes on by its logarithm, with the slope that it has there.
    Derivatives of densities stay those of the square.
    """
    with np.errstate(over="ignore"):  # looked at in the next line
        square: FloatArray = deviation * deviation
    if np.max(square, initial=0.0) > _LARGEST_DEVIATION**2:
        size = np.minimum(np.abs(deviation), _LARGEST_DOUBLE)
        growth = 1 + 2 * np.log(np.maximum(size / _LARGEST_DEVIATION, 1.0))
        square = np.minimum(size, _LARGEST_DEVIATION) ** 2 * growth
    return square


@dataclass(frozen=True, slots=True)
class Link:
    """A link function as data: what a family and the moments need to know of ``g``."""

    name: str  # the name users give
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
    # ``(y, offset) -> y`` without the offset, where that is possible exactly: the conditional mean
    # of the result is ``g(eta - offset)``. Links that do not allow it return `y`
    remove_offset: Callable[[FloatArray, FloatArray], FloatArray] = field(repr=False)
    # A linear predictor beyond which the response says no more about it; likelihoods keep the
    # length of coefficients and bias below it
    largest_predictor: float = field(repr=False)
    # the sign of ``g'''`` where it is the same everywhere, otherwise None
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
    """Differentiate the logistic function, in polynomials of p' = p(1-p) and t = 1 - 2p."""
    probability: FloatArray = special.expit(eta)
    if order == 0:
        return probability
    slope = probability * special.expit(-eta)  # never 1 - p: that loses the upper tail
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
    """Return the exponential, which is each of its own derivatives."""
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
    """One exponential an entry: with ``e = exp(-eta)``, ``g = 1 / (1 + e)``, ``1 - g = e g``."""
    odds = np.exp(np.minimum(-eta, _LARGEST_LOG_ODDS))
    mean = 1 / (1 + odds)
    slope = odds * mean
    return mean, slope, -mean * slope


def _probit_with_log_derivatives(eta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """With the inverse Mills ratio m: ``(log Phi)' = m``, ``(log Phi)'' = -m (eta + m)``."""
    ratio = _inverse_mills_ratio(eta)
    inverse_square = np.minimum(eta, -_MILLS_SERIES_FROM) ** -2.0
    series = 1 - inverse_square * (1 - inverse_square * (6 - 50 * inverse_square))
    near = np.minimum(ratio, 2 * _MILLS_SERIES_FROM)  # as it is, where the series is not taken
    product = near * (np.maximum(eta, -_MILLS_SERIES_FROM) + near)
    curvature = np.where(eta < -_MILLS_SERIES_FROM, series, product)
    mean: FloatArray = special.ndtr(eta)
    return mean, ratio, -curvature


def _log_with_log_derivatives(eta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    return bounded_exp(eta), np.ones_like(eta), np.zeros_like(eta)


def _identity_with_log_derivatives(eta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    return np.array(eta), 1 / eta, -1 / eta**2


def _log_link(mean: FloatArray) -> FloatArray:
    """Take the logarithm, minus infinity at zero as the other links have it at their ends."""
    with np.errstate(divide="ignore"):
        result: FloatArray = np.log(mean)
    return result


def _divide_by_exposure(y: FloatArray, offset: FloatArray) -> FloatArray:
    """Turn counts into rates: the offset of a log link is the logarithm of an exposure."""
    return y * bounded_exp(-offset)


def _keep_offset(y: FloatArray, offset: FloatArray) -> FloatArray:
    """Leave the offset in a bounded response; it is taken as independent of x."""
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
