"""Special functions of one number, for the log densities of the families.

They are plain Python functions that compiled code inlines (`moment_init.families.compiling`).
Series replace differences that would cancel, and nothing overflows to NaN.

Exponential and logarithm are written out, without calls and branches, so that the compiler
processes several rows at once: loops over rows then take a quarter of the time that calls of the C
library take.
"""

import math

import numpy as np
from scipy import special

from moment_init.families.compiling import scalar
from moment_init.families.links import LARGEST_DEVIATION, LARGEST_LOG_MEAN

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_DENSITY_AT_ZERO = 1.0 / math.sqrt(2.0 * math.pi)
_LARGEST_DOUBLE = float(np.finfo(np.float64).max)

_NORMAL_TAIL_FROM = -20.0
"""Below this the normal distribution function comes from its asymptotic series, whose ninth term,
2027025 z^-16, is then 3e-15; the curvature has an error of about 1e-12. Above it, the rounding of
z^2 / 2 costs the curvature 400 times 1.4e-14, 6e-12."""

STIRLING_FROM = 100.0
"""From here on, Stirling's series with three terms gives differences of log gamma. Its next term,
1/(1680 a^7), is below 1e-17, while subtracting two values of lgamma loses a log(a) eps."""

_ASYMPTOTIC_FROM = 12.0
"""From this value on, the series of digamma and trigamma are exact to 2e-15."""

_PRODUCT_UP_TO = 12
"""Rising factorials of up to twelve factors are multiplied out, which is cheaper than lgamma."""

_LARGEST_FACTOR = 1e20
"""The twelfth power of 1e20 can still be represented as a double."""

_LOG_FACTORIALS = special.gammaln(np.arange(256) + 1.0)


_LOG2_E = 1.0 / math.log(2.0)
_LN2_HIGH = 6.93147180369123816490e-01  # 33 bits: its product with an exponent is exact
_LN2_LOW = 1.90821492927058770002e-10
_ROUNDING = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer in the lowest bits
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -708.0, 709.0
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_EXPONENT_BIAS = 1023

# Taylor coefficients 1 / k!: the remainder after r^13 / 13! is 4e-18 for |r| < log(2) / 2.
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (
    1.0 / math.factorial(k) for k in range(2, 14)
)
# Coefficients 2 / (2 k + 1) of log((1 + s) / (1 - s)) / s in s^2: the remainder is 1e-17 for
# |s| < 0.172, which is where sqrt(1/2) < (1 + s) / (1 - s) < sqrt(2).
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9 = (2.0 / (2 * k + 1) for k in range(10))


@scalar
def exponential(x: float) -> tuple[float, float]:
    """``exp(x)`` and ``exp(x) - 1``, to 2 units in the last place.

    The exponential is zero below -708, where it would be subnormal, and x is cut at 709.
    """
    near = _SMALLEST_EXPONENT if x < _SMALLEST_EXPONENT else x
    near = _LARGEST_EXPONENT if near > _LARGEST_EXPONENT else near
    shifted = near * _LOG2_E + _ROUNDING
    n = shifted - _ROUNDING
    r = (near - n * _LN2_HIGH) - n * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = r2 * (_E2 + r * _E3) + r4 * ((_E4 + r * _E5) + r2 * (_E6 + r * _E7))
    high = (_E8 + r * _E9) + r2 * (_E10 + r * _E11) + r4 * (_E12 + r * _E13)
    rest = r + (low + r4 * r4 * high)
    bits = (np.float64(shifted).view(np.int64) + _EXPONENT_BIAS) << 52
    power = np.int64(bits).view(np.float64)  # 2**n
    is_zero = x < _SMALLEST_EXPONENT
    return (
        0.0 if is_zero else power * (1.0 + rest),
        -1.0 if is_zero else power * rest + (power - 1.0),
    )


@scalar
def logarithm(x: float) -> float:
    """``log(x)`` of a positive normal number, to 2 units in the last place."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    fraction = np.int64(bits - (exponent << 52)).view(np.float64)  # sqrt(1/2) to sqrt(2)
    f = fraction - 1.0
    s = f / (2.0 + f)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    low = (_L0 + z * _L1) + z2 * (_L2 + z * _L3)
    high = (_L4 + z * _L5) + z2 * (_L6 + z * _L7) + z4 * (_L8 + z * _L9)
    n = float(exponent)
    # x - x is NaN for NaN and infinity, whose bits look like a number
    return n * _LN2_HIGH + (s * (low + z4 * high) + n * _LN2_LOW) + (x - x)


@scalar
def logarithm_of_sum(u: float) -> float:
    """``log(1 + u)`` for 0 <= u <= 1, with all digits for small u."""
    total = 1.0 + u
    return logarithm(total) + (u - (total - 1.0)) / total


@scalar
def log_factorial(count: float) -> float:
    """Logarithm of ``count!``, or of the gamma function between whole numbers."""
    index = int(count) if 0.0 <= count < 256.0 else 0
    if index == count:
        return float(_LOG_FACTORIALS[index])
    return math.lgamma(count + 1.0)


@scalar
def log_binomial_coefficient(n_trials: float, count: float) -> float:
    """Logarithm of ``n_trials! / (count! (n_trials - count)!)``."""
    smaller = count if 2.0 * count <= n_trials else n_trials - count
    larger = n_trials - smaller + 1.0
    value, _ = log_rising_factorial(smaller, larger, math.lgamma(larger), 0.0)
    return value - log_factorial(smaller)


@scalar
def log_minus_digamma(x: float) -> float:
    """``log(x) - digamma(x)`` for x >= 12, without taking a difference."""
    u = 1.0 / (x * x)
    tail = 1.0 / 120.0 - u * (1.0 / 252.0 - u * (1.0 / 240.0 - u * (1.0 / 132.0)))
    return 0.5 / x + u * (1.0 / 12.0 - u * tail)


@scalar
def trigamma_minus_inverse(x: float) -> float:
    """``trigamma(x) - 1/x`` for x >= 12, without taking a difference."""
    u = 1.0 / (x * x)
    tail = 1.0 / 30.0 - u * (1.0 / 42.0 - u * (1.0 / 30.0 - u * (5.0 / 66.0 - u * 691.0 / 2730.0)))
    return u * (0.5 + (1.0 / 6.0 - u * tail) / x)


@scalar
def digamma(x: float) -> float:
    """Compute digamma by recurrence up to the range of the asymptotic series."""
    shift = 0.0
    while x < _ASYMPTOTIC_FROM:
        shift += 1.0 / x
        x += 1.0
    return math.log(x) - log_minus_digamma(x) - shift


@scalar
def trigamma(x: float) -> float:
    """Compute trigamma by recurrence up to the range of the asymptotic series."""
    shift = 0.0
    while x < _ASYMPTOTIC_FROM:
        shift += 1.0 / (x * x)
        x += 1.0
    return trigamma_minus_inverse(x) + 1.0 / x + shift


@scalar
def stirling_tail(x: float) -> float:
    """Terms of Stirling's series for ``log Gamma(x)`` after the constant, x >= 100."""
    u = 1.0 / (x * x)
    return (1.0 / 12.0 - u * (1.0 / 360.0 - u / 1260.0)) / x


@scalar
def log_rising_factorial(
    y: float, a: float, log_gamma: float, digamma_of_a: float
) -> tuple[float, float]:
    """``log(Gamma(a + y) / Gamma(a))`` and its derivative in a, from log Gamma and digamma at a."""
    if y <= _PRODUCT_UP_TO and y == int(y) and a < _LARGEST_FACTOR:
        product = 1.0
        slope = 0.0
        for k in range(int(y)):
            product *= a + k
            slope += 1.0 / (a + k)
        return math.log(product), slope
    upper = a + y
    if a < STIRLING_FROM:
        return math.lgamma(upper) - log_gamma, digamma(upper) - digamma_of_a
    growth = math.log1p(y / a)
    value = y * (math.log(a) - 1.0) + (upper - 0.5) * growth
    value += stirling_tail(upper) - stirling_tail(a)
    return value, growth - (log_minus_digamma(upper) - log_minus_digamma(a))


@scalar
def trigamma_difference(y: float, a: float, trigamma_of_a: float) -> float:
    """``trigamma(a + y) - trigamma(a)``, from trigamma at a."""
    if y <= _PRODUCT_UP_TO and y == int(y):
        total = 0.0
        for k in range(int(y)):
            total -= 1.0 / ((a + k) * (a + k))
        return total
    upper = a + y
    if a < STIRLING_FROM:
        return trigamma(upper) - trigamma_of_a
    return -y / (a * upper) + (trigamma_minus_inverse(upper) - trigamma_minus_inverse(a))


@scalar
def logistic(z: float) -> tuple[float, float, float]:
    """Return the logistic function at z and at -z, and the logarithm of the larger of the two.

    Its logarithm at z is that of the larger plus ``min(z, 0)``, at -z it is minus ``max(z, 0)``.
    """
    decay, _ = exponential(-abs(z))
    larger = 1.0 / (1.0 + decay)
    smaller = decay * larger
    # products with zero and one instead of branches, which would keep rows from running at once
    above = 1.0 if z >= 0.0 else 0.0
    below = 1.0 - above
    upper = above * larger + below * smaller
    lower = below * larger + above * smaller
    return upper, lower, -logarithm_of_sum(decay)


@scalar
def log_normal_cdf(z: float) -> tuple[float, float, float]:
    r"""Return :math:`\log\Phi(z)` and its derivatives, m = phi / Phi and -m (z + m)."""
    if z < _NORMAL_TAIL_FROM:
        # -z Phi(z) / phi(z) = 1 - u inner; z + m cancels and is written by `inner`
        u = 1.0 / (z * z)
        rest = 1.0 - 7.0 * u * (1.0 - 9.0 * u * (1.0 - 11.0 * u * (1.0 - 13.0 * u)))
        inner = 1.0 - 3.0 * u * (1.0 - 5.0 * u * rest)
        series = 1.0 - u * inner
        value = math.log(series / -z) - 0.5 * bounded_square(z) - HALF_LOG_TWO_PI
        return value, -z / series, -inner / (series * series)
    density = _DENSITY_AT_ZERO * math.exp(-0.5 * z * z)
    if z > 0.0:
        upper = 0.5 * math.erfc(z * _SQRT_HALF)
        ratio = density / (1.0 - upper)
        return math.log1p(-upper), ratio, -ratio * (z + ratio)
    probability = 0.5 * math.erfc(-z * _SQRT_HALF)
    ratio = density / probability
    return math.log(probability), ratio, -ratio * (z + ratio)


@scalar
def kept_in_order(bounded: float, exponent: float) -> float:
    """Let a bounded exponential grow beyond the bound, by the logarithm of the part cut off.

    If two components are both far from a response, the nearer one then still has the higher
    density. Derivatives of densities stay those of the bounded exponential.
    """
    if exponent <= LARGEST_LOG_MEAN:
        return bounded
    return bounded * (1.0 + math.log1p(exponent - LARGEST_LOG_MEAN))


@scalar
def bounded_square(deviation: float) -> float:
    """Square without overflow, so that larger deviations still have larger values.

    Beyond 1e140 the function grows by its logarithm, with the slope that it has there.
    Derivatives of densities stay those of the square.
    """
    size = abs(deviation)
    if size <= LARGEST_DEVIATION:
        return size * size
    if size > _LARGEST_DOUBLE:
        size = _LARGEST_DOUBLE
    growth = 1.0 + 2.0 * math.log(size / LARGEST_DEVIATION)
    return LARGEST_DEVIATION * LARGEST_DEVIATION * growth
