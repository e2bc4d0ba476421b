"""The scalar kernels against SciPy and the families, as Python functions."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from moment_init.families.registry import get_family
from moment_init.models.kernels import (
    KERNELS,
    Kernel,
    _digamma,
    _log_factorial,
    _log_minus_digamma,
    _log_normal_cdf,
    _log_rising_factorial,
    _logistic,
)
from moment_init.models.likelihoods import _LIKELIHOODS

CASES = sorted(KERNELS)
N_TRIALS = 300
RESPONSES = {
    "bernoulli": (0.0, 1.0),
    "binomial": (0.0, 2.0, 260.0, 300.0),
    "poisson": (0.0, 1.0, 12.0, 13.0, 400.0),
    "negative_binomial": (0.0, 1.0, 12.0, 13.0, 400.0),
    "gaussian": (-2.5, 0.3),
    "gamma": (0.01, 0.9, 8.0),
}
# Both sides of every branch: small and large shapes, and where Stirling's series begins.
DISPERSIONS = (1e-3, 0.4, 3.0, 99.0, 101.0, 1e6)
LINEAR_PREDICTORS = (-800.0, -35.0, -3.1, -0.2, 0.0, 0.7, 2.3, 35.0, 800.0)

# Rounding of a few terms, each exact to a few units in the last place.
ROUNDING = 1e-12


def evaluate(kernel: Kernel, y: float, eta: float, dispersion: float) -> tuple[float, float, float]:
    """Log density and its two derivatives."""
    base, number = kernel.prepare_row(y, float(N_TRIALS))
    value, eta1, dispersion1 = kernel.term(y, number, eta, *kernel.prepare_component(dispersion))
    return base + value, eta1, dispersion1


def test_every_family_and_link_has_a_kernel() -> None:
    assert set(KERNELS) == set(_LIKELIHOODS)


@pytest.mark.parametrize(("name", "link"), CASES)
def test_kernel_is_the_family_density_near_and_far_out(name: str, link: str) -> None:
    family = get_family(name, link)
    for y in RESPONSES[name]:
        for dispersion in DISPERSIONS if family.has_dispersion else (1.0,):
            for eta in LINEAR_PREDICTORS:
                expected = family.log_density_derivatives(
                    np.array([y]), np.array([eta]), dispersion=dispersion, n_trials=N_TRIALS
                )
                value, eta1, dispersion1 = evaluate(KERNELS[name, link], y, eta, dispersion)
                # Terms as large as the dispersion, or as the logarithm of a factorial, cancel.
                absolute = ROUNDING * (10.0 + 10.0 * y + dispersion)
                assert value == pytest.approx(expected.value[0], rel=1e-11, abs=absolute)
                assert eta1 == pytest.approx(expected.eta1[0], rel=1e-10, abs=ROUNDING)
                if expected.tau1 is None:
                    assert dispersion1 == 0.0
                else:
                    slope = expected.tau1[0] / dispersion
                    assert dispersion1 == pytest.approx(slope, rel=1e-9, abs=10 * ROUNDING)


@pytest.mark.parametrize(("name", "link"), CASES)
def test_derivatives_are_central_differences(name: str, link: str) -> None:
    """The error of a central difference is h^2 / 6 times a third derivative of order one to ten."""
    kernel, step = KERNELS[name, link], 1e-4
    y, eta, dispersion = RESPONSES[name][1], 0.4, 2.3

    def value(at_eta: float, at_dispersion: float) -> float:
        return evaluate(kernel, y, at_eta, at_dispersion)[0]

    _, eta1, dispersion1 = evaluate(kernel, y, eta, dispersion)
    in_eta = value(eta + step, dispersion) - value(eta - step, dispersion)
    in_dispersion = value(eta, dispersion + step) - value(eta, dispersion - step)
    assert eta1 == pytest.approx(in_eta / (2 * step), rel=1e-6, abs=1e-7)
    assert dispersion1 == pytest.approx(in_dispersion / (2 * step), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_probability_form_is_the_exponential_of_the_log_density(link: str) -> None:
    kernel: Any = KERNELS["bernoulli", link]
    for eta in (-30.0, -3.1, 0.0, 0.7, 30.0):
        mean, slope = kernel.mean_and_slope(eta)
        value, eta1, _ = evaluate(kernel, 1.0, eta, 1.0)
        # An exponent of 450, rounded, is off by 450 eps.
        assert mean == pytest.approx(math.exp(value), rel=1e-12)
        assert slope == pytest.approx(mean * eta1, rel=1e-12)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_probability_form_does_not_overflow(link: str) -> None:
    kernel: Any = KERNELS["bernoulli", link]
    assert kernel.mean_and_slope(800.0) == pytest.approx((1.0, 0.0), abs=1e-300)
    assert kernel.mean_and_slope(-800.0) == pytest.approx((0.0, 0.0), abs=1e-300)


@pytest.mark.parametrize("x", [1e-3, 0.5, 1.0, 3.7, 11.9, 12.0, 80.0, 1e5])
def test_digamma(x: float) -> None:
    assert _digamma(x) == pytest.approx(special.digamma(x), rel=1e-13, abs=1e-14)


def test_difference_from_the_logarithm_does_not_cancel() -> None:
    """At x = 1e10 it is 1 / (2 x) to ten digits, of which log(x) - digamma(x) has five."""
    assert _log_minus_digamma(1e10) == pytest.approx(0.5e-10, rel=1e-9)


@pytest.mark.parametrize("count", [0.0, 1.0, 5.0, 255.0, 256.0, 1e4])
def test_log_factorial(count: float) -> None:
    assert _log_factorial(count) == pytest.approx(math.lgamma(count + 1.0), rel=1e-14)


def test_rising_factorial_worked_by_hand() -> None:
    """Gamma(2 + 3) / Gamma(2) = 2 * 3 * 4, with derivative 1/2 + 1/3 + 1/4 of the logarithm."""
    value, slope = _log_rising_factorial(3.0, 2.0, math.lgamma(2.0), _digamma(2.0))
    assert value == pytest.approx(math.log(24.0))
    assert slope == pytest.approx(13.0 / 12.0)


@pytest.mark.parametrize("a", [0.3, 50.0, 1e4, 1e21])
@pytest.mark.parametrize("y", [5.0, 30.0])
def test_rising_factorial_is_a_sum_of_logarithms(a: float, y: float) -> None:
    factors = a + np.arange(y)
    value, slope = _log_rising_factorial(y, a, math.lgamma(a), _digamma(a))
    assert value == pytest.approx(np.log(factors).sum(), rel=1e-13)
    assert slope == pytest.approx((1.0 / factors).sum(), rel=1e-12)


@pytest.mark.parametrize("z", [-1e5, -100.0, -30.01, -29.99, -5.0, -1e-9, 0.0, 3.0, 40.0])
def test_log_normal_distribution_function(z: float) -> None:
    value, ratio = _log_normal_cdf(z)
    assert value == pytest.approx(special.log_ndtr(z), rel=1e-13, abs=1e-300)
    mills = math.sqrt(2 / math.pi) / special.erfcx(-z / math.sqrt(2)) if z < 30 else 0.0
    assert ratio == pytest.approx(mills, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("z", [-800.0, -2.0, 0.0, 1.3, 800.0])
def test_logistic_has_both_tails(z: float) -> None:
    upper, lower, log_larger = _logistic(z)
    assert upper == pytest.approx(special.expit(z), rel=1e-14)
    assert lower == pytest.approx(special.expit(-z), rel=1e-14)
    assert log_larger + min(z, 0.0) == pytest.approx(special.log_expit(z), rel=1e-14)
