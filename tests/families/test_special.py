"""Special functions of one number, as plain Python, against SciPy and values with 20 digits.

The long numbers come from mpmath with 40 digits. Relative errors of 1e-14 are 45 rounding units.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special

from moment_init.families.links import LARGEST_LOG_MEAN, bounded_exp
from moment_init.families.special import (
    bounded_square,
    digamma,
    exponential,
    kept_in_order,
    log_binomial_coefficient,
    log_factorial,
    log_minus_digamma,
    log_normal_cdf,
    log_rising_factorial,
    logarithm,
    logarithm_of_sum,
    logistic,
    stirling_tail,
    trigamma,
    trigamma_difference,
    trigamma_minus_inverse,
)

TWO_UNITS = 2.3e-16 * 2


def test_exponential_is_that_of_the_c_library(rng: np.random.Generator) -> None:
    """All sizes, both signs; ``exp(x) - 1`` has all its digits near zero too."""
    for x in (*rng.uniform(-708, 709, 300), *10.0 ** rng.uniform(-20, 2, 300), -1e-9, -0.3, 0.0):
        value, excess = exponential(float(x))
        assert_allclose(value, math.exp(x), rtol=TWO_UNITS)
        assert_allclose(excess, math.expm1(x), rtol=2 * TWO_UNITS)


def test_exponential_is_cut_and_keeps_nan() -> None:
    assert exponential(-1e300) == exponential(-np.inf) == (0.0, -1.0)
    assert exponential(1e300) == exponential(np.inf) == exponential(709.0)
    assert 1e307 < exponential(np.inf)[0] < np.inf
    assert np.isnan(exponential(np.nan)).all()


def test_logarithm_is_that_of_the_c_library(rng: np.random.Generator) -> None:
    """All sizes, and numbers near one, where the logarithm is small."""
    near_one = 1.0 + 10.0 ** rng.uniform(-15, -0.5, 300) * rng.choice([-1, 1], 300)
    for x in (*10.0 ** rng.uniform(-307, 308, 300), *near_one, 0.5, 1.0, 2.0, np.sqrt(0.5)):
        assert_allclose(logarithm(float(x)), math.log(x), rtol=TWO_UNITS)
    for u in (*10.0 ** rng.uniform(-300, 0, 300), 0.0, 1.0):
        assert_allclose(logarithm_of_sum(float(u)), math.log1p(u), rtol=TWO_UNITS)
    assert math.isnan(logarithm(math.nan))


@pytest.mark.parametrize("count", [0, 1, 12, 255, 256, 1000, 10**7])
def test_log_factorial(count: int) -> None:
    assert_allclose(log_factorial(float(count)), special.gammaln(count + 1.0), rtol=1e-15)


@pytest.mark.parametrize("x", [1e-4, 0.3, 1.0, 1.4616, 11.9, 12.0, 40.0, 1e8])
def test_digamma_and_trigamma_are_those_of_scipy(x: float) -> None:
    """The root of digamma is at 1.4616..., where only the absolute error can be small."""
    assert_allclose(digamma(x), special.digamma(x), rtol=1e-14, atol=3e-15)
    assert_allclose(trigamma(x), special.polygamma(1, x), rtol=3e-15)


@pytest.mark.parametrize(
    ("x", "log_minus", "minus_inverse", "tail"),
    [
        (12.0, 0.042244969812188293491, 0.003568539538435057417, None),
        (30.0, 0.016759248976630498851, 0.00056172702440661088043, None),
        (1e4, 5.00008333333325e-5, 5.0001666666663333333e-9, 8.3333333305555555635e-6),
        (1e9, 5.0000000008333333333e-10, 5.0000000016666666667e-19, 8.3333333333333333331e-11),
    ],
)
def test_series_keep_small_differences(
    x: float, log_minus: float, minus_inverse: float, tail: float | None
) -> None:
    assert_allclose(log_minus_digamma(x), log_minus, rtol=1e-13)
    assert_allclose(trigamma_minus_inverse(x), minus_inverse, rtol=1e-13)
    if tail is not None:
        assert_allclose(stirling_tail(x), tail, rtol=1e-15)


@pytest.mark.parametrize(
    ("y", "a", "value", "slope", "curvature"),
    [
        (0.0, 0.7, 0.0, 0.0, 0.0),
        (3.0, 0.5, 0.62860865942237413774, 3.0666666666666666667, -4.6044444444444444444),
        (12.0, 99.0, 55.783691007496496571, 0.11495809070536742472, -0.0011024850744709073349),
        (13.0, 0.02, 16.136945862802446364, 53.072382195733640153, -2501.5182883555771253),
        (13.0, 1e6, 179.60171525321056538, 1.2999922000649993916e-5, -1.2999844001949975664e-11),
        (40.0, 150.0, 205.22096824837561729, 0.23709192774124742476, -0.0014119056620767216724),
        (1000.0, 1e4, 9258.7046939762782772, 0.095314725403498413499, -9.0917769009516652881e-6),
        (1e6, 1e8, 18425664.155147176405, 0.0099503309026730335075, -9.9009901975296544457e-11),
        (5.0, 1e25, 287.8231366242557105, 5e-25, -5e-50),
    ],
)
def test_rising_factorials(
    y: float, a: float, value: float, slope: float, curvature: float
) -> None:
    """Products, differences of log gamma and Stirling's series each have some of these points."""
    found = log_rising_factorial(y, a, math.lgamma(a), digamma(a))
    assert_allclose(found, (value, slope), rtol=1e-14)
    assert_allclose(trigamma_difference(y, a, trigamma(a)), curvature, rtol=1e-13)


@pytest.mark.parametrize("a", [0.7, 99.0, 101.0, 1e4])
@pytest.mark.parametrize("y", [11, 12, 13, 14, 200])
def test_rising_factorial_is_a_product(y: int, a: float) -> None:
    """Its logarithm is a sum of logarithms, and the derivatives are harmonic sums."""
    factors = [a + k for k in range(y)]
    value, slope = log_rising_factorial(float(y), a, math.lgamma(a), digamma(a))
    assert_allclose(value, math.fsum(map(math.log, factors)), rtol=1e-14, atol=1e-13)
    assert_allclose(slope, math.fsum(1 / factor for factor in factors), rtol=1e-13)
    expected = -math.fsum(1 / factor**2 for factor in factors)
    assert_allclose(trigamma_difference(float(y), a, trigamma(a)), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("n_trials", "count", "expected"),
    [
        (1, 0, 0.0),
        (1, 1, 0.0),
        (10, 3, 4.7874917427820459942),
        (10, 7, 4.7874917427820459942),
        (1000, 998, 13.121362877070745261),
        (10**6, 500_000, 693140.04701306368255),
        (10**12, 7, 184.89198645041342316),
    ],
)
def test_binomial_coefficients(n_trials: int, count: int, expected: float) -> None:
    assert_allclose(log_binomial_coefficient(n_trials, count), expected, rtol=1e-14)


@pytest.mark.parametrize("z", [-800.0, -40.0, -0.3, 0.0, 2.5, 40.0, 800.0])
def test_logistic_keeps_both_tails(z: float) -> None:
    upper, lower, log_larger = logistic(z)
    assert_allclose((upper, lower), special.expit([z, -z]), rtol=1e-15, atol=1e-300)
    assert_allclose(log_larger, special.log_expit(abs(z)), rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize(
    ("z", "value", "slope", "curvature"),
    [
        (-1e5, -5000000012.4318639983, 100000.00001, -0.99999999990000000006),
        (-60.0, -1805.0135606805671387, 60.01665742024112493, -0.99972268411658523077),
        (-20.5, -214.06672896326380017, 20.548551052435848816, -0.99765377962752926415),
        (-19.5, -194.01696577749749941, 19.551015802580620764, -0.9974107624350497734),
        (-3.0, -6.6077262215103495433, 3.2830986549304365069, -0.92944081321473188314),
        (0.0, -0.69314718055994530942, 0.79788456080286535588, -0.63661977236758134308),
        (4.0, -3.167174337748926386e-5, 1.3383446446857514211e-4, -5.3535576953818015875e-4),
        (12.0, -1.7764821120776789977e-33, 2.146383735663060345e-32, -2.575660482795672414e-31),
    ],
)
def test_log_normal_cdf(z: float, value: float, slope: float, curvature: float) -> None:
    """Above -20 the curvature is a difference, which loses 6e-12; below, the series loses 1e-12."""
    found = log_normal_cdf(z)
    assert_allclose(found[:2], (value, slope), rtol=1e-13)
    assert_allclose(found[2], curvature, rtol=2e-11 if -21 < z < 0 else 1e-13)


def test_tail_of_the_normal_is_finite_and_monotone() -> None:
    values, slopes, curvatures = zip(
        *(log_normal_cdf(z) for z in (-1e300, -1e160, -1e9, -20.1, -19.9, 40.0)), strict=True
    )
    assert all(below < above for below, above in pairwise(values))
    assert np.isfinite([values, slopes, curvatures]).all()
    assert_allclose(curvatures[:3], -1.0, rtol=1e-15)


def test_bounded_square_grows_and_stays_finite() -> None:
    """Exact up to 1e140; twice as far is 1 + 2 log 2 times as much; infinity is the last double."""
    values = [bounded_square(size) for size in (-3.0, 1e140, -2e140, 1e300, -np.inf)]
    assert_allclose(values[:3], [9.0, 1e280, (1 + 2 * np.log(2.0)) * 1e280], rtol=1e-14)
    assert all(below < above for below, above in pairwise(values))
    assert math.isfinite(values[-1] * 1e20)


def test_what_a_bound_cuts_off_is_kept_in_order() -> None:
    exponents = np.array([1.5, LARGEST_LOG_MEAN, LARGEST_LOG_MEAN + 1.0, 1e300])
    bounded = bounded_exp(exponents)
    values = [kept_in_order(*pair) for pair in zip(bounded, exponents, strict=True)]
    assert_allclose(values[:3], bounded[:3] * [1.0, 1.0, 1 + np.log(2.0)], rtol=1e-14)
    assert bounded[3] * 100 < values[3] < np.inf


@pytest.mark.parametrize("y", [0.5, 2.5, 11.25, 12.5])
def test_rising_factorials_between_whole_numbers(y: float) -> None:
    """Functions of arrays take any response; products are only for whole counts."""
    a = 2.0
    value, slope = log_rising_factorial(y, a, math.lgamma(a), digamma(a))
    assert_allclose(value, special.gammaln(a + y) - special.gammaln(a), rtol=1e-12)
    assert_allclose(slope, special.digamma(a + y) - special.digamma(a), rtol=1e-12)
    expected = special.polygamma(1, a + y) - special.polygamma(1, a)
    assert_allclose(trigamma_difference(y, a, trigamma(a)), expected, rtol=1e-12)
