"""The rising factorial of the negative binomial, with its derivatives, for many rows at once."""

from collections.abc import Callable

import numpy as np
from scipy import special

from moment_init.families.dispersion import STIRLING_FROM, log_rising_factorial
from moment_init.families.links import FloatArray

__all__ = ["log_ratio_derivatives"]

_TABLE_SHARE = 0.5
"""Values are looked up in a table over all counts when the table has fewer entries than this share
of the values: an entry costs three special functions, a look-up a few nanoseconds."""


def log_ratio_derivatives(
    alpha: FloatArray, y: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Logarithm of :math:`\Gamma(\alpha + y) / \Gamma(\alpha)` and two derivatives in alpha.

    Parameters
    ----------
    alpha : ndarray
        Positive.
    y : ndarray
        Whole numbers, 0 or more; broadcasts with `alpha`.

    Returns
    -------
    value : ndarray
        The logarithm, of the broadcast shape; without cancellation at large alpha.
    first : ndarray
        Its first derivative.
    second : ndarray
        Its second derivative.
    """
    functions = (log_rising_factorial, _digamma_difference, _trigamma_difference)
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
    """Evaluate at every count from 0 to `most`, and pick."""
    table = function(alpha.reshape(-1, 1), np.arange(most + 1, dtype=np.float64))
    row = np.arange(alpha.size).reshape(alpha.shape)
    return table[row, y.astype(np.intp)]


def _digamma_difference(alpha: FloatArray, y: FloatArray) -> FloatArray:
    """``digamma(alpha + y) - digamma(alpha)``, by Stirling's series where it would cancel."""
    small, large = np.minimum(alpha, STIRLING_FROM), np.maximum(alpha, STIRLING_FROM)
    series = np.log1p(y / large) + y / (2 * large * (large + y))
    for power, denominator in ((2, -12.0), (4, 120.0), (6, -252.0)):
        series = series + ((large + y) ** -power - large**-power) / denominator
    direct = special.digamma(small + y) - special.digamma(small)
    result: FloatArray = np.where(alpha < STIRLING_FROM, direct, series)
    return result


def _trigamma_difference(alpha: FloatArray, y: FloatArray) -> FloatArray:
    """``trigamma(alpha + y) - trigamma(alpha)``, by Stirling's series where it would cancel."""
    small, large = np.minimum(alpha, STIRLING_FROM), np.maximum(alpha, STIRLING_FROM)
    series = -y / (large * (large + y))
    for power, denominator in ((2, 2.0), (3, 6.0), (5, -30.0), (7, 42.0)):
        series = series + ((large + y) ** -power - large**-power) / denominator
    direct = special.polygamma(1, small + y) - special.polygamma(1, small)
    result: FloatArray = np.where(alpha < STIRLING_FROM, direct, series)
    return result
