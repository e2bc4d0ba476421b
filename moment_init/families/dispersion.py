"""Weighted maximum-likelihood estimates of the dispersion with the means fixed.

Also the functions of log gamma that the gamma and negative binomial densities need, with
derivatives. Stirling's series replaces differences that would cancel at large arguments.
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from moment_init.checks import FloatArray
from moment_init.families.links import LARGEST_LOG_MEAN

DISPERSION_BOUNDS = (1e-4, 1e8)
"""Bounds of the shape and of alpha. Data without overdispersion send the estimate to infinity; at
1e8 the negative binomial is a Poisson, and the gamma a point, to the precision of any data."""

STIRLING_FROM = 100.0
"""From here on, Stirling's series with three terms gives differences of log gamma. Its next term,
1/(1680 a^7), is below 1e-17, while subtracting two values of gammaln loses a log(a) eps."""


_STIRLING_TERMS = ((1, 12.0), (3, -360.0), (5, 1260.0))
"""Powers and denominators of Stirling's series for log gamma."""


def gaussian_deviation(y: FloatArray, mean: FloatArray, weights: FloatArray) -> float:
    """Compute the weighted root mean square of the residuals."""
    # y, mean, weights: (n_obs,)
    return float(np.sqrt(weights @ (y - mean) ** 2 / weights.sum()))


def gamma_shape(y: FloatArray, mean: FloatArray, weights: FloatArray) -> float:
    r"""Estimate the shape of a gamma response.

    It solves :math:`\log a - \psi(a) = \bar s`, where :math:`\bar s` is the weighted mean of
    :math:`y/\mu - 1 - \log(y/\mu) \ge 0`.
    """
    # y, mean, weights: (n_obs,)
    log_ratio = np.log(y) - np.log(np.maximum(mean, np.finfo(np.float64).tiny))
    excess = np.expm1(np.minimum(log_ratio, LARGEST_LOG_MEAN)) - log_ratio
    target = float(weights @ excess / weights.sum())
    lower, upper = DISPERSION_BOUNDS
    if not _shape_equation(upper) < target < _shape_equation(lower):
        return upper if target <= _shape_equation(upper) else lower
    root = optimize.brentq(
        lambda log_shape: _shape_equation(np.exp(log_shape)) - target,
        np.log(lower),
        np.log(upper),
        xtol=1e-13,
        rtol=1e-13,
    )
    return float(np.exp(root))


def negative_binomial_alpha(
    y: FloatArray, mean: FloatArray, weights: FloatArray, initial: float
) -> float:
    r"""Estimate alpha of a negative binomial response.

    It is the root nearest to `initial` in the direction of ascent of

    .. math:: \sum_i w_i \Big[\psi(y_i + \alpha) - \psi(\alpha) - \log(1 + \mu_i / \alpha)
              + \frac{\mu_i - y_i}{\mu_i + \alpha}\Big].
    """
    # y, mean, weights: (n_obs,)
    counts, position = np.unique(y, return_inverse=True)
    count_weights = np.bincount(position, weights=weights)

    def gradient(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        rising = count_weights @ _digamma_difference(alpha, counts)
        rest = (mean - y) / (mean + alpha) - np.log1p(mean / alpha)
        return float(rising + weights @ rest)

    lower, upper = np.log(DISPERSION_BOUNDS)
    start = float(np.clip(np.log(initial), lower, upper))
    direction = 1.0 if gradient(start) > 0 else -1.0
    near, step = start, 0.5
    while True:
        far = float(np.clip(near + direction * step, lower, upper))
        if gradient(far) * direction <= 0:
            return float(np.exp(optimize.brentq(gradient, *sorted((near, far)), xtol=1e-12)))
        if far in (lower, upper):
            return float(np.exp(far))
        near, step = far, 2 * step


def gamma_constant(shape: FloatArray) -> FloatArray:
    """Evaluate ``a log(a) - a - log Gamma(a)`` without cancellation at large shapes."""
    small = np.minimum(shape, STIRLING_FROM)
    large = np.maximum(shape, STIRLING_FROM)
    direct = special.xlogy(small, small) - small - special.gammaln(small)
    series = np.log(large / (2 * np.pi)) / 2
    for power, denominator in _STIRLING_TERMS:
        series = series - large**-power / denominator
    result: FloatArray = np.where(shape < STIRLING_FROM, direct, series)
    return result


def gamma_constant_derivatives(shape: FloatArray) -> tuple[FloatArray, FloatArray]:
    """First two derivatives of `gamma_constant`: ``log(a) - digamma(a)``, ``1/a - trigamma(a)``."""
    small, a = np.minimum(shape, STIRLING_FROM), np.maximum(shape, STIRLING_FROM)
    first = 1 / (2 * a) + a**-2 / 12 - a**-4 / 120 + a**-6 / 252
    second = -(a**-2) / 2 - a**-3 / 6 + a**-5 / 30 - a**-7 / 42
    is_small = shape < STIRLING_FROM
    return (
        np.where(is_small, np.log(small) - special.digamma(small), first),
        np.where(is_small, 1 / small - special.polygamma(1, small), second),
    )


def log_rising_factorial(alpha: FloatArray, y: FloatArray) -> FloatArray:
    """Evaluate ``log(Gamma(alpha + y) / Gamma(alpha))`` without cancellation at large alpha."""
    small = np.minimum(alpha, STIRLING_FROM)
    large = np.maximum(alpha, STIRLING_FROM)
    direct = special.gammaln(small + y) - special.gammaln(small)
    series = y * (np.log(large) - 1) + (large + y - 0.5) * np.log1p(y / large)
    for power, denominator in _STIRLING_TERMS:
        series = series + ((large + y) ** -power - large**-power) / denominator
    result: FloatArray = np.where(alpha < STIRLING_FROM, direct, series)
    return result


def _shape_equation(shape: float) -> float:
    """Evaluate ``log(a) - digamma(a)``, by its asymptotic series where the difference cancels."""
    if shape < STIRLING_FROM:
        return float(np.log(shape) - special.digamma(shape))
    return float(1 / (2 * shape) + shape**-2 / 12 - shape**-4 / 120 + shape**-6 / 252)


def _digamma_difference(alpha: float, y: FloatArray) -> FloatArray:
    """Differentiate `log_rising_factorial`: ``digamma(alpha + y) - digamma(alpha)``."""
    if alpha < STIRLING_FROM:
        direct: FloatArray = special.digamma(alpha + y) - special.digamma(alpha)
        return direct
    series: FloatArray = np.log1p(y / alpha) + y / (2 * alpha * (alpha + y))
    for power, denominator in ((2, -12.0), (4, 120.0), (6, -252.0)):
        series = series + ((alpha + y) ** -power - alpha**-power) / denominator
    return series


_TABLE_SHARE = 0.5
"""A table over all counts is used if it has fewer entries than this share of the values: an entry
costs three special functions, a look-up a few nanoseconds."""


def log_ratio_derivatives(
    alpha: FloatArray, y: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Evaluate :math:`\log(\Gamma(\alpha + y) / \Gamma(\alpha))` and two derivatives in alpha."""
    functions = (log_rising_factorial, _digamma_ratio_difference, _trigamma_difference)
    n_values = np.broadcast(alpha, y).size
    most = int(y.max(initial=0.0))
    if alpha.size * (most + 1) < _TABLE_SHARE * n_values:
        value, first, second = (_look_up(function, alpha, y, most) for function in functions)
    else:
        value, first, second = (function(alpha, y) for function in functions)
    return value, first, second


def _look_up(
    function: Callable[[FloatArray, FloatArray], FloatArray],
    alpha: FloatArray,
    y: FloatArray,
    most: int,
) -> FloatArray:
    """Evaluate a function at every count from 0 to `most`, and look the values up."""
    table = function(alpha.reshape(-1, 1), np.arange(most + 1, dtype=np.float64))
    row = np.arange(alpha.size).reshape(alpha.shape)
    return table[row, y.astype(np.intp)]


def _digamma_ratio_difference(alpha: FloatArray, y: FloatArray) -> FloatArray:
    """Evaluate ``digamma(alpha + y) - digamma(alpha)``, by a series where it would cancel."""
    small, large = np.minimum(alpha, STIRLING_FROM), np.maximum(alpha, STIRLING_FROM)
    series = np.log1p(y / large) + y / (2 * large * (large + y))
    for power, denominator in ((2, -12.0), (4, 120.0), (6, -252.0)):
        series = series + ((large + y) ** -power - large**-power) / denominator
    direct = special.digamma(small + y) - special.digamma(small)
    result: FloatArray = np.where(alpha < STIRLING_FROM, direct, series)
    return result


def _trigamma_difference(alpha: FloatArray, y: FloatArray) -> FloatArray:
    """Evaluate ``trigamma(alpha + y) - trigamma(alpha)``, by a series where it would cancel."""
    small, large = np.minimum(alpha, STIRLING_FROM), np.maximum(alpha, STIRLING_FROM)
    series = -y / (large * (large + y))
    for power, denominator in ((2, 2.0), (3, 6.0), (5, -30.0), (7, 42.0)):
        series = series + ((large + y) ** -power - large**-power) / denominator
    direct = special.polygamma(1, small + y) - special.polygamma(1, small)
    result: FloatArray = np.where(alpha < STIRLING_FROM, direct, series)
    return result
