r"""Log densities of one response under one component, as scalar functions that numba compiles.

A kernel has three functions:

- ``prepare_row(y, n_trials)`` returns the part of the log density that is the same for all
  components, and one number for `term`;
- ``prepare_component(dispersion)`` returns four numbers for `term`;
- ``term(y, row_number, eta, c0, c1, c2, c3)`` returns the rest of the log density and its
  derivatives in eta and in the dispersion (zero if there is none).

Thus nothing is computed twice for a row or for a component. All kernels are also ordinary Python
functions, which is how most tests call them.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from scipy import special

from moment_init.families.dispersion import STIRLING_FROM
from moment_init.families.links import LARGEST_LOG_MEAN

JIT_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        # PyTensor's own flags: infinities and NaN keep their meaning.
        "fastmath": frozenset({"arcp", "contract", "afn", "reassoc", "nsz"}),
        # A division by zero gives infinity, and the loop needs no branch for an exception.
        "error_model": "numpy",
        # Only compiled code calls these functions, so they need no wrappers for Python or C.
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
)
"""Numba options of the kernels and of the loops that call them. If everything in a graph has the
same options, numba compiles its own functions, such as `np.empty`, only once."""

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_DENSITY_AT_ZERO = 1.0 / math.sqrt(2.0 * math.pi)

_LARGEST_LOG_ODDS = 700.0
"""exp(700), about 1e304, and its reciprocal can both be represented as doubles."""

_NORMAL_TAIL_FROM = -30.0
"""Below this value the normal distribution function is computed from its asymptotic series, whose
eighth term, 135135 z^-14, is then 3e-16; above it neither erfc nor the density underflows."""

_ASYMPTOTIC_FROM = 12.0
"""From this value on, six terms of the digamma series are exact to 691/32760 x^-12, 2e-15."""

_PRODUCT_UP_TO = 12
"""Rising factorials of up to twelve factors are multiplied out, which is cheaper than lgamma."""

_LARGEST_FACTOR = 1e20
"""The twelfth power of 1e20 can still be represented as a double."""

_LOG_FACTORIALS = special.gammaln(np.arange(256) + 1.0)


class Kernel(NamedTuple):
    """The functions of one family and link; see the module docstring."""

    # ``(y, n_trials) -> (base, row_number)``
    prepare_row: Callable[[float, float], tuple[float, float]]
    # ``(dispersion) -> (c0, c1, c2, c3)``
    prepare_component: Callable[[float], tuple[float, float, float, float]]
    # ``(y, row_number, eta, c0, c1, c2, c3) -> (value, eta derivative, dispersion derivative)``
    term: Callable[..., tuple[float, float, float]]
    # ``z -> (g(z), g'(z))`` for families whose density is ``g((2 y - 1) eta)`` with a bounded
    # ``g``: the mixture is then a sum of probabilities, and needs one logarithm per row
    mean_and_slope: Callable[[float], tuple[float, float]] | None = None


def jit_options() -> dict[str, Any]:
    """Return `JIT_OPTIONS` in the types that numba expects."""
    return {**JIT_OPTIONS, "fastmath": set(JIT_OPTIONS["fastmath"])}


def jitable[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let compiled code call a function that remains an ordinary Python function."""
    register_jitable(**jit_options())(function)
    return function


@jitable
def _log_factorial(count: float) -> float:
    if 0.0 <= count < 256.0:
        return float(_LOG_FACTORIALS[int(count)])
    return math.lgamma(count + 1.0)


@jitable
def _digamma(x: float) -> float:
    """Compute digamma by recurrence up to the range where the asymptotic series is exact."""
    shift = 0.0
    while x < _ASYMPTOTIC_FROM:
        shift += 1.0 / x
        x += 1.0
    return math.log(x) - _log_minus_digamma(x) - shift


@jitable
def _log_minus_digamma(x: float) -> float:
    """Compute ``log(x) - digamma(x)`` for x >= 12 without taking a difference."""
    u = 1.0 / (x * x)
    tail = 1.0 / 120.0 - u * (1.0 / 252.0 - u * (1.0 / 240.0 - u * (1.0 / 132.0)))
    return 0.5 / x + u * (1.0 / 12.0 - u * tail)


@jitable
def _stirling_tail(x: float) -> float:
    """Sum the terms of Stirling's series for ``log Gamma(x)`` after the constant, x >= 100."""
    u = 1.0 / (x * x)
    return (1.0 / 12.0 - u * (1.0 / 360.0 - u / 1260.0)) / x


@jitable
def _log_rising_factorial(y: float, a: float, log_gamma: float, digamma: float) -> Any:
    """Return ``log(Gamma(a + y) / Gamma(a))`` and its slope, from log Gamma and digamma at a."""
    if y <= _PRODUCT_UP_TO and a < _LARGEST_FACTOR:
        product = 1.0
        slope = 0.0
        for k in range(int(y)):
            product *= a + k
            slope += 1.0 / (a + k)
        return math.log(product), slope
    upper = a + y
    if a < STIRLING_FROM:
        return math.lgamma(upper) - log_gamma, _digamma(upper) - digamma
    growth = math.log1p(y / a)
    value = y * (math.log(a) - 1.0) + (upper - 0.5) * growth
    value += _stirling_tail(upper) - _stirling_tail(a)
    return value, growth - (_log_minus_digamma(upper) - _log_minus_digamma(a))


@jitable
def _logistic(z: float) -> tuple[float, float, float]:
    """Return the logistic function at z and at -z, and the logarithm of the larger of the two.

    Its logarithm at z is that of the larger plus ``min(z, 0)``, at -z it is minus ``max(z, 0)``.
    """
    decay = math.exp(-abs(z))
    larger = 1.0 / (1.0 + decay)
    smaller = decay * larger
    log_larger = -math.log1p(decay)
    if z >= 0.0:
        return larger, smaller, log_larger
    return smaller, larger, log_larger


@jitable
def _logit_mean_and_slope(z: float) -> tuple[float, float]:
    # Without `min`, which would be one more function to compile.
    odds = math.exp(_LARGEST_LOG_ODDS if -z > _LARGEST_LOG_ODDS else -z)
    mean = 1.0 / (1.0 + odds)
    return mean, odds * mean * mean


@jitable
def _probit_mean_and_slope(z: float) -> tuple[float, float]:
    return 0.5 * math.erfc(-z * _SQRT_HALF), _DENSITY_AT_ZERO * math.exp(-0.5 * z * z)


@jitable
def _normal_tail_series(z: float) -> float:
    """Compute ``-z Phi(z) / phi(z)`` for z below -30."""
    u = 1.0 / (z * z)
    inner = 1.0 - 9.0 * u * (1.0 - 11.0 * u * (1.0 - 13.0 * u))
    return 1.0 - u * (1.0 - 3.0 * u * (1.0 - 5.0 * u * (1.0 - 7.0 * u * inner)))


@jitable
def _log_normal_cdf(z: float) -> tuple[float, float]:
    """Return ``log Phi(z)`` and its derivative, the inverse Mills ratio."""
    if z < _NORMAL_TAIL_FROM:
        series = _normal_tail_series(z)
        return math.log(series / -z) - 0.5 * z * z - _HALF_LOG_TWO_PI, -z / series
    density = _DENSITY_AT_ZERO * math.exp(-0.5 * z * z)
    if z > 0.0:
        upper = 0.5 * math.erfc(z * _SQRT_HALF)
        return math.log1p(-upper), density / (1.0 - upper)
    probability = 0.5 * math.erfc(-z * _SQRT_HALF)
    return math.log(probability), density / probability


@jitable
def _no_constants(dispersion: float) -> tuple[float, float, float, float]:
    return 0.0, 0.0, 0.0, 0.0


@jitable
def _bernoulli_row(y: float, n_trials: float) -> tuple[float, float]:
    return 0.0, 2.0 * y - 1.0


@jitable
def _bernoulli_logit(
    y: float, sign: float, eta: float, c0: float, c1: float, c2: float, c3: float
) -> tuple[float, float, float]:
    z = sign * eta
    _, lower, log_larger = _logistic(z)
    return log_larger + (z if z < 0.0 else 0.0), sign * lower, 0.0


@jitable
def _bernoulli_probit(
    y: float, sign: float, eta: float, c0: float, c1: float, c2: float, c3: float
) -> tuple[float, float, float]:
    value, ratio = _log_normal_cdf(sign * eta)
    return value, sign * ratio, 0.0


@jitable
def _binomial_row(y: float, n_trials: float) -> tuple[float, float]:
    """Return the logarithm of the binomial coefficient, and the number of failures."""
    failures = n_trials - y
    return _log_factorial(n_trials) - _log_factorial(y) - _log_factorial(failures), failures


@jitable
def _binomial_logit(
    y: float, failures: float, eta: float, c0: float, c1: float, c2: float, c3: float
) -> tuple[float, float, float]:
    upper, lower, log_larger = _logistic(eta)
    value = y * (log_larger + min(eta, 0.0)) + failures * (log_larger - max(eta, 0.0))
    return value, y * lower - failures * upper, 0.0


@jitable
def _binomial_probit(
    y: float, failures: float, eta: float, c0: float, c1: float, c2: float, c3: float
) -> tuple[float, float, float]:
    upper, upper1 = _log_normal_cdf(eta)
    lower, lower1 = _log_normal_cdf(-eta)
    return y * upper + failures * lower, y * upper1 - failures * lower1, 0.0


@jitable
def _count_row(y: float, n_trials: float) -> tuple[float, float]:
    return -_log_factorial(y), 0.0


@jitable
def _kept_in_order(bounded: float, exponent: float) -> float:
    """Compute `moment_init.families.links.kept_in_order` for one number."""
    if exponent <= LARGEST_LOG_MEAN:
        return bounded
    return bounded * (1.0 + math.log1p(exponent - LARGEST_LOG_MEAN))


@jitable
def _poisson(
    y: float, unused: float, eta: float, c0: float, c1: float, c2: float, c3: float
) -> tuple[float, float, float]:
    near = min(eta, LARGEST_LOG_MEAN)
    mean = math.exp(near)
    return y * near - _kept_in_order(mean, eta), y - mean, 0.0


@jitable
def _negative_binomial_constants(dispersion: float) -> tuple[float, float, float, float]:
    return dispersion, math.log(dispersion), math.lgamma(dispersion), _digamma(dispersion)


@jitable
def _negative_binomial(
    y: float, unused: float, eta: float, a: float, log_a: float, log_gamma: float, digamma: float
) -> tuple[float, float, float]:
    t = eta - log_a
    upper, lower, log_larger = _logistic(t)
    log_lower = log_larger - max(t, 0.0)
    ratio, ratio1 = _log_rising_factorial(y, a, log_gamma, digamma)
    score = y * lower - a * upper
    value = y * (log_larger + min(t, 0.0)) + a * log_lower + ratio
    return value, score, ratio1 + log_lower - score / a


@jitable
def _gaussian_row(y: float, n_trials: float) -> tuple[float, float]:
    return -_HALF_LOG_TWO_PI, 0.0


@jitable
def _gaussian_constants(dispersion: float) -> tuple[float, float, float, float]:
    return 1.0 / dispersion, math.log(dispersion), 0.0, 0.0


@jitable
def _gaussian(
    y: float, unused: float, eta: float, root_precision: float, log_sd: float, c2: float, c3: float
) -> tuple[float, float, float]:
    z = (y - eta) * root_precision
    return -0.5 * z * z - log_sd, z * root_precision, (z * z - 1.0) * root_precision


@jitable
def _gamma_row(y: float, n_trials: float) -> tuple[float, float]:
    log_y = math.log(y)
    return -log_y, log_y


@jitable
def _gamma_constants(dispersion: float) -> tuple[float, float, float, float]:
    """Return a, ``a log(a) - a - log Gamma(a)`` and its derivative ``log(a) - digamma(a)``."""
    a = dispersion
    log_a = math.log(a)
    if a < STIRLING_FROM:
        return a, a * log_a - a - math.lgamma(a), log_a - _digamma(a), 0.0
    return a, 0.5 * log_a - _HALF_LOG_TWO_PI - _stirling_tail(a), _log_minus_digamma(a), 0.0


@jitable
def _gamma(
    y: float, log_y: float, eta: float, a: float, constant: float, constant1: float, c3: float
) -> tuple[float, float, float]:
    q = log_y - eta
    near = min(q, LARGEST_LOG_MEAN)
    excess = math.expm1(near)
    kernel = near - _kept_in_order(excess, q)
    return a * kernel + constant, a * excess, kernel + constant1


KERNELS: Mapping[tuple[str, str], Kernel] = MappingProxyType(
    {
        ("bernoulli", "logit"): Kernel(
            _bernoulli_row, _no_constants, _bernoulli_logit, _logit_mean_and_slope
        ),
        ("bernoulli", "probit"): Kernel(
            _bernoulli_row, _no_constants, _bernoulli_probit, _probit_mean_and_slope
        ),
        ("binomial", "logit"): Kernel(_binomial_row, _no_constants, _binomial_logit),
        ("binomial", "probit"): Kernel(_binomial_row, _no_constants, _binomial_probit),
        ("poisson", "log"): Kernel(_count_row, _no_constants, _poisson),
        ("negative_binomial", "log"): Kernel(
            _count_row, _negative_binomial_constants, _negative_binomial
        ),
        ("gaussian", "identity"): Kernel(_gaussian_row, _gaussian_constants, _gaussian),
        ("gamma", "log"): Kernel(_gamma_row, _gamma_constants, _gamma),
    }
)
"""The kernel of each family and link."""
