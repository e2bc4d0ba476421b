"""What is doubtful about a fit: its status, a line of the printed table, and one Python warning."""

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from moment_init import EMFit, Status, fit_em, simulate_mixture
from moment_init.em.assembly import _simpler_families
from moment_init.em.exploration import UnseenMass
from moment_init.em.runs import Runs
from tests.em_fits import make_fit

FloatArray = NDArray[np.float64]


def fitted(*block: Any, **options: Any) -> tuple[EMFit, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        fit = fit_em(*block, random_seed=1, progressbar=False, **options)
    return fit, issued


def assert_doubted(fit: EMFit, issued: list[warnings.WarningMessage], text: str) -> None:
    """Status, line and warning all say so, and the warning comes from this file."""
    assert fit.status is not Status.OK
    assert any(text in line for line in repr(fit).splitlines() if line.startswith("! "))
    assert f"status {fit.status}" in repr(fit)
    assert text in fit._repr_html_()
    (warning,) = issued
    assert text in str(warning.message)
    assert warning.filename == __file__


def two_curves(rng: np.random.Generator, n_obs: int = 300) -> tuple[FloatArray, FloatArray]:
    """Counts around two curves, with a column that marks twelve rows."""
    X = np.column_stack([rng.standard_normal(n_obs), np.arange(n_obs) < 12])
    is_first = rng.random(n_obs) < 0.5
    predictor = np.where(is_first, 2 + 0.5 * X[:, 0], -0.5 * X[:, 0])
    return X, rng.poisson(np.exp(predictor)).astype(np.float64)


@pytest.mark.parametrize(
    ("unseen", "text"),
    [
        (UnseenMass(200, 2, 1, 210), "Only one start reached the best optimum by itself"),
        (UnseenMass(30, 20, 2, 35), "as many again would find a better one with probability"),
    ],
    ids=["one start", "unseen"],
)
def test_a_search_that_saw_too_little(
    unseen: UnseenMass, text: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    X, y = two_curves(rng)
    fit, issued = fitted(X, y, 2, family="poisson")
    assert (fit.status, issued) == (Status.OK, [])
    monkeypatch.setattr(Runs, "unseen_mass", unseen)
    fit, issued = fitted(X, y, 2, family="poisson")
    assert fit.status is Status.NOT_EXPLORED
    assert_doubted(fit, issued, text)
    assert "Ask for a longer search by `max_seconds` or `n_starts`" in fit.warnings[-1]


def test_unseen_mass_with_a_small_chance_of_a_better_optimum_is_no_doubt(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    unseen = UnseenMass(30, 5, 15, 60)
    assert unseen.mass > 0.02
    assert unseen.better_in_repetition < 0.02
    monkeypatch.setattr(Runs, "unseen_mass", unseen)
    fit, issued = fitted(*two_curves(rng), 2, family="poisson")
    assert (fit.status, issued) == (Status.OK, [])


def test_one_component_cut_in_two() -> None:
    """With other seeds the parts may differ by more: here they do so by chance alone."""
    rng = np.random.default_rng([20240229, 3])
    X = rng.standard_normal((300, 2))
    y = rng.poisson(np.exp(1 + 0.5 * X[:, 0]))
    fit, issued = fitted(X, y, 2, family="poisson")
    assert fit.status is Status.NOT_IDENTIFIED
    assert_doubted(fit, issued, "Components 0 and 1 coincide within their standard errors")


def test_a_coefficient_that_runs_away(rng: np.random.Generator) -> None:
    """The marked rows are all zero, and their coefficient tends to minus infinity."""
    X, y = two_curves(rng)
    y[:12] = 0
    fit, issued = fitted(X, y, 2, family="poisson", init="random", n_starts=2)
    assert fit.bounds == ()
    assert np.all(fit.coefficients[1] < -10)
    assert np.nanmax(fit.standard_errors.coefficients[1]) > 1000
    assert_doubted(fit, issued, "enormous standard error")


def test_a_gate_slope_that_runs_away(rng: np.random.Generator) -> None:
    """The gating covariate has steps of one half, and the components change between two of them."""
    X, gating = rng.standard_normal((200, 2)), np.round(2 * rng.standard_normal(200)) / 2
    y = np.where(gating > 0, 3.0, -3.0) + X[:, 0] + 2.0 * rng.standard_normal(200)
    fit, issued = fitted(X, y, 2, family="gaussian", gating=gating)
    assert fit.gate is not None
    errors = fit.standard_errors.gate
    assert errors is not None
    assert np.abs(fit.gate).max() > 20
    assert errors.max() > 1000
    assert_doubted(fit, issued, "The gate between components 0 and 1 is nearly a jump")
    lines = repr(fit).splitlines()
    (averages,) = (line.split() for line in lines if line.startswith("average weight"))
    (counts,) = (line.split() for line in lines if line.startswith("rows"))
    shares = fit.responsibilities.mean(axis=0)
    assert [float(value) for value in averages[2:]] == pytest.approx(shares, rel=0.01)
    assert [float(value) for value in counts[1:]] == pytest.approx(200 * shares, abs=0.06)


def test_an_empty_component(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((200, 2)), rng.poisson(1.0, 200)
    init = (np.zeros((2, 2)), np.array([0.0, 5.0]), np.array([0.99, 0.01]))
    fit, issued = fitted(X, y, 2, family="poisson", init=init)
    assert fit.bounds == ("weight of component 1",)
    assert_doubted(fit, issued, "Component 1 is empty")


def test_a_component_of_three_rows(rng: np.random.Generator) -> None:
    """It has a bias, two coefficients and the common deviation."""
    X, y = rng.standard_normal((200, 2)), rng.standard_normal(200)
    y[:3] += 50
    shares = np.column_stack([np.arange(200) >= 3, np.arange(200) < 3]).astype(float)
    fit, issued = fitted(X, y, 2, family="gaussian", init=shares, shared="dispersion")
    assert fit.bounds == ()
    assert_doubted(fit, issued, "Component 1 has 3.0 rows for 4 parameters")


def test_a_nearly_collapsed_variance(rng: np.random.Generator) -> None:
    """Five rows close to a line: their deviation is a tenth of the others', above the bound."""
    x = rng.standard_normal(60)
    y = x + rng.standard_normal(60)
    y[:5] = 8 - x[:5] + 0.1 * rng.standard_normal(5)
    shares = np.column_stack([np.arange(60) >= 5, np.arange(60) < 5]).astype(float)
    fit, issued = fitted(x[:, None], y, 2, family="gaussian", init=shares)
    assert fit.bounds == ()
    assert_doubted(fit, issued, "The variance of component 1 has nearly collapsed")


def test_counts_that_are_not_overdispersed_are_no_doubt(rng: np.random.Generator) -> None:
    data = simulate_mixture(800, 2, 2, family="poisson", random_seed=3)
    fit, issued = fitted(data.X, data.y, 2, family="negative_binomial")
    assert (fit.status, issued) == (Status.OK, [])
    assert "! Component 1 is Poisson: its counts are not overdispersed" in repr(fit)


def test_a_dispersion_that_the_data_do_not_tell_from_poisson(rng: np.random.Generator) -> None:
    """A climb may end before the bound: its end means the same."""
    made = make_fit("negative_binomial", "log", rng)
    errors = np.zeros((2, 5))
    errors[1, 4] = 1461.0  # of log alpha: for instance 1.3e7 with a standard error of 1.9e10
    labels = _simpler_families(made.end.parameters, errors.ravel(), made.problem, ())
    assert labels == ["dispersion of component 1"]
    assert _simpler_families(made.end.parameters, errors.ravel(), made.problem, tuple(labels)) == []
    gaussian = make_fit("gaussian", "identity", rng)
    at, problem = gaussian.end.parameters, gaussian.problem
    assert _simpler_families(at, errors.ravel(), problem, ()) == []
