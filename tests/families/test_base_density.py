"""Derivatives of the log densities."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.checks import FloatArray
from moment_init.families.registry import get_family

CASES: list[tuple[str, str, tuple[float, ...], dict[str, Any]]] = [
    ("bernoulli", "logit", (0, 1), {}),
    ("bernoulli", "probit", (0, 1), {}),
    ("binomial", "logit", (0, 3, 7), {"n_trials": 7.0}),
    ("binomial", "probit", (0, 3, 7), {"n_trials": 7.0}),
    ("poisson", "log", (0, 1, 4, 60), {}),
    ("negative_binomial", "log", (0, 1, 4, 60), {"dispersion": 1.7}),
    ("negative_binomial", "log", (0, 1, 4, 60), {"dispersion": 320.0}),
    ("gaussian", "identity", (-1.3, 0.0, 2.5), {"dispersion": 0.6}),
    ("gamma", "log", (0.02, 1.0, 6.5), {"dispersion": 2.3}),
    ("gamma", "log", (0.5, 1.0, 2.5), {"dispersion": 150.0}),
]
each_case = pytest.mark.parametrize(
    ("name", "link", "y", "parameters"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
ETA = np.array([-2.2, -0.4, 0.1, 0.9, 2.1])


def differences(function: Any, step: float = 1e-4) -> tuple[FloatArray, FloatArray]:
    """First and second derivative at zero, by differences of the fourth order."""
    far_below, below, here, above, far_above = (function(k * step) for k in (-2, -1, 0, 1, 2))
    first = (8 * (above - below) - (far_above - far_below)) / (12 * step)
    second = (16 * (above + below) - (far_above + far_below) - 30 * here) / (12 * step**2)
    return first, second


@each_case
def test_value_is_the_complete_log_density(
    name: str, link: str, y: tuple[float, ...], parameters: dict[str, Any]
) -> None:
    family, column = get_family(name, link), np.array(y)[:, None]
    result = family.log_density_derivatives(column, ETA[None] + 0 * column, **parameters)
    expected = family.log_density_eta(column, ETA[None] + 0 * column, **parameters)
    assert_allclose(result.value, expected, rtol=1e-12, atol=1e-12)


@each_case
def test_derivatives_in_eta_are_those_of_the_log_density(
    name: str, link: str, y: tuple[float, ...], parameters: dict[str, Any]
) -> None:
    family, column = get_family(name, link), np.array(y)[:, None]
    eta = ETA[None] + 0 * column
    result = family.log_density_derivatives(column, eta, **parameters)
    by_score = differences(
        lambda h: family.log_density_derivatives(column, eta + h, **parameters).eta1
    )[0]
    by_value = differences(lambda h: family.log_density_eta(column, eta + h, **parameters))[0]
    assert_allclose(result.eta1, by_value, rtol=1e-8, atol=1e-8)
    assert_allclose(result.eta2, by_score, rtol=1e-8, atol=1e-8)


@each_case
def test_derivatives_in_log_dispersion_are_those_of_the_log_density(
    name: str, link: str, y: tuple[float, ...], parameters: dict[str, Any]
) -> None:
    family, column = get_family(name, link), np.array(y)[:, None]
    eta = ETA[None] + 0 * column
    result = family.log_density_derivatives(column, eta, **parameters)
    if not family.has_dispersion:
        assert result.tau1 is None
        assert result.tau2 is None
        assert result.eta_tau is None
        return
    base = parameters["dispersion"]

    def at(h: float) -> Any:
        return family.log_density_derivatives(column, eta, dispersion=base * np.exp(h))

    assert result.tau1 is not None
    assert result.tau2 is not None
    assert result.eta_tau is not None
    assert_allclose(result.tau1, differences(lambda h: at(h).value)[0], rtol=1e-7, atol=1e-7)
    assert_allclose(result.tau2, differences(lambda h: at(h).tau1)[0], rtol=1e-7, atol=1e-7)
    assert_allclose(result.eta_tau, differences(lambda h: at(h).eta1)[0], rtol=1e-7, atol=1e-7)


@each_case
def test_components_may_run_down_or_across(
    name: str, link: str, y: tuple[float, ...], parameters: dict[str, Any], rng: np.random.Generator
) -> None:
    family, response = get_family(name, link), np.array(y)
    eta = rng.standard_normal((3, response.size))
    down, across = dict(parameters), dict(parameters)
    if "dispersion" in parameters:
        down["dispersion"] = parameters["dispersion"] * np.array([[1.0], [2.0], [0.5]])
        across["dispersion"] = down["dispersion"].T
    first = family.log_density_derivatives(response, eta, **down)
    second = family.log_density_derivatives(response[:, None], eta.T, **across)
    for one, other in zip(first, second, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.shape == eta.shape
            assert_allclose(one, other.T, rtol=1e-13)


@each_case
def test_extreme_predictors_stay_finite(
    name: str, link: str, y: tuple[float, ...], parameters: dict[str, Any]
) -> None:
    family, column = get_family(name, link), np.array(y)[:, None]
    eta = np.array([-1e6, -800.0, -90.0, 90.0, 800.0, 1e6]) + 0 * column
    for part in family.log_density_derivatives(column, eta, **parameters):
        assert part is None or np.all(np.isfinite(part))


@pytest.mark.parametrize("size", [400.0, 1e160, 1e199, 1e300])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@each_case
def test_of_predictors_far_off_the_nearer_has_the_higher_density(
    name: str, link: str, y: tuple[float, ...], parameters: dict[str, Any], sign: float, size: float
) -> None:
    """Predictors at one and two sizes from zero, unless both are certain of the response."""
    family, response = get_family(name, link), np.array(y)
    eta = sign * size * np.array([[1.0], [2.0]]) + 0 * response
    values = family.log_density_eta(response, eta, **parameters)
    assert np.isfinite(values).all()
    assert values.max() <= 1e-12
    assert np.all((values[0] > values[1]) | (values[0] > -1.0))
