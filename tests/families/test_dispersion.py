"""Dispersions by weighted maximum likelihood, and the differences of log gamma behind them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, special

from moment_init.checks import FloatArray
from moment_init.families.base import Family
from moment_init.families.dispersion import (
    DISPERSION_BOUNDS,
    _digamma_difference,
    gamma_constant,
    log_rising_factorial,
)
from moment_init.families.registry import get_family


def weighted_sample(
    name: str, dispersion: float, seed: int
) -> tuple[Family, FloatArray, FloatArray, FloatArray]:
    rng, family = np.random.default_rng(seed), get_family(name)
    mean = family.link.mean(rng.normal(0.8, 0.7, 4000))
    y = family.sample(mean, dispersion=dispersion, rng=rng)
    return family, y, mean, rng.uniform(0.1, 1.0, y.size)


@pytest.mark.parametrize(
    ("name", "dispersion"),
    [
        ("gaussian", 0.3),
        ("gamma", 0.4),
        ("gamma", 7.0),
        ("gamma", 400.0),
        ("negative_binomial", 0.3),
        ("negative_binomial", 4.0),
    ],
)
@pytest.mark.parametrize("start", [0.05, 1.0, 60.0])
def test_dispersion_maximises_the_weighted_likelihood(
    name: str, dispersion: float, start: float, seed: int
) -> None:
    """The derivative in log(dispersion) vanishes, and the estimate is near the truth.

    The standard error of the logarithm is 1 / sqrt(information); weights inflate it by
    sqrt(mean(w^2)) / mean(w).
    """
    family, y, mean, weights = weighted_sample(name, dispersion, seed)
    estimate = family.estimate_dispersion(y, mean, weights, initial=start)

    def objective(log_dispersion: float) -> float:
        value = np.exp(log_dispersion)
        return float(weights @ family.log_density(y, mean, dispersion=value))

    center, h = np.log(estimate), 1e-3
    values = [objective(center + shift) for shift in (-h, 0.0, h)]
    curvature = -(values[0] - 2 * values[1] + values[2]) / h**2
    slope = (values[2] - values[0]) / (2 * h)
    assert curvature > 0
    # The distance to the root, slope / curvature, in units of the standard error.
    assert abs(slope) / np.sqrt(curvature) < 1e-2
    assert abs(slope) / curvature < 1e-4
    inflation = np.sqrt((weights**2).mean() / weights.mean())
    assert abs(center - np.log(dispersion)) < 5 * inflation / np.sqrt(curvature)


@pytest.mark.parametrize("name", ["gamma", "negative_binomial"])
def test_dispersion_equals_a_direct_search(name: str, seed: int) -> None:
    family, y, mean, weights = weighted_sample(name, 2.5, seed)
    found = optimize.minimize_scalar(
        lambda log: -weights @ family.log_density(y, mean, dispersion=np.exp(log)),
        bounds=(-3.0, 4.0),
        method="bounded",
        options={"xatol": 1e-7},
    )
    estimate = family.estimate_dispersion(y, mean, weights, initial=1.0)
    assert_allclose(np.log(estimate), found.x, atol=1e-5)


def test_gaussian_dispersion_by_hand() -> None:
    """Residuals 1 and 3 with weights 3 and 1: sqrt((3 * 1 + 1 * 9) / 4) = sqrt(3)."""
    estimate = get_family("gaussian").estimate_dispersion(
        np.array([1.0, 5.0]), np.array([0.0, 2.0]), np.array([3.0, 1.0]), initial=1.0
    )
    assert_allclose(estimate, np.sqrt(3.0), rtol=1e-15)


def test_dispersion_without_overdispersion_reaches_the_upper_bound() -> None:
    """Counts equal to their mean have variance zero; so has a gamma response at its mean."""
    mean, weights = np.array([3.0, 4.0, 7.0]), np.ones(3)
    for name in ("negative_binomial", "gamma"):
        for start in (*DISPERSION_BOUNDS, 1.0):
            estimate = get_family(name).estimate_dispersion(mean, mean, weights, initial=start)
            assert_allclose(estimate, DISPERSION_BOUNDS[1], rtol=1e-12)


def test_dispersion_of_absurd_data_reaches_the_lower_bound() -> None:
    weights = np.ones(2)
    shape = get_family("gamma").estimate_dispersion(
        np.array([1e-300, 1e200]), np.array([1e100, 1e-100]), weights, initial=1.0
    )
    assert shape == DISPERSION_BOUNDS[0]
    # With nothing but zeros at an enormous mean the likelihood rises as alpha falls.
    alpha = get_family("negative_binomial").estimate_dispersion(
        np.zeros(2), np.full(2, 1e6), weights, initial=1.0
    )
    assert_allclose(alpha, DISPERSION_BOUNDS[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "gamma", "negative_binomial"])
def test_dispersion_of_an_empty_component_stays(name: str) -> None:
    y = np.array([1.0, 2.0])
    assert get_family(name).estimate_dispersion(y, y, np.zeros(2), initial=0.7) == 0.7


@pytest.mark.parametrize("name", ["bernoulli", "binomial", "poisson"])
def test_no_dispersion_to_estimate(name: str) -> None:
    y = np.array([0.0, 1.0])
    with pytest.raises(ValueError, match=f"family '{name}' has no dispersion to estimate"):
        get_family(name).estimate_dispersion(y, y, y, initial=1.0)


@pytest.mark.parametrize("alpha", [3.0, 99.0, 101.0, 5e4])
def test_log_rising_factorial_against_the_product(alpha: float) -> None:
    y = np.array([0.0, 1.0, 2.0, 17.0, 300.0])
    expected = [np.log(alpha + np.arange(count)).sum() for count in y]
    assert_allclose(log_rising_factorial(np.array(alpha), y), expected, rtol=1e-13, atol=1e-13)


def test_gamma_constant_is_continuous_and_right() -> None:
    shapes = np.array([0.1, 2.0, 99.9999, 100.0001, 800.0])
    expected = shapes * np.log(shapes) - shapes - special.gammaln(shapes)
    assert_allclose(gamma_constant(shapes), expected, rtol=1e-11)


@pytest.mark.parametrize("shape", [0.3, 20.0, 99.0, 101.0, 150.0])
def test_gamma_shape_solves_its_equation(shape: float) -> None:
    """One row with log ratio q has excess exp(q) - 1 - q; choose q so that the root is known."""
    target = np.log(shape) - special.digamma(shape)
    q = optimize.brentq(lambda value: np.expm1(value) - value - target, 0.0, 5.0, xtol=1e-15)
    estimate = get_family("gamma").estimate_dispersion(
        np.exp(np.array([q])) * 2.0, np.array([2.0]), np.array([1.0]), initial=1.0
    )
    assert_allclose(estimate, shape, rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.7, 99.0, 101.0, 1e4])
def test_digamma_difference_is_a_harmonic_sum(alpha: float) -> None:
    """digamma(a + y) - digamma(a) = 1/a + 1/(a + 1) + ... + 1/(a + y - 1)."""
    y = np.array([0.0, 1.0, 5.0, 200.0])
    expected = [(1 / (alpha + np.arange(count))).sum() for count in y]
    assert_allclose(_digamma_difference(alpha, y), expected, rtol=1e-12, atol=1e-15)
