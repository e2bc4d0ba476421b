"""The optima that a fit keeps: which they are, what they weigh, and as starts of other fits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from scipy import stats
from scipy.differentiate import hessian
from scipy.special import log_softmax, logsumexp

from moment_init import EMFit, fit_em, match_components, sample
from moment_init.checks import FloatArray
from moment_init.data.checking import validate_data
from moment_init.em.problem import EMProblem
from moment_init.em.result import FittedOptimum, mass_shares
from moment_init.em.start_values import weigh_modes
from tests.bayesian_models import FakeSampler

N = 160


def four_clusters(seed: int = 1) -> tuple[FloatArray, FloatArray]:
    """Two groups at two doses: whether they keep or swap places cannot be known."""
    rng = np.random.default_rng(seed)
    dose = np.repeat([0.0, 1.0], N // 2)[:, None]
    return dose, np.tile([-1.0, 1.0], N // 2) + rng.normal(0.0, 0.3, N)


@pytest.fixture(scope="module")
def rows() -> tuple[FloatArray, FloatArray]:
    return four_clusters()


@pytest.fixture(scope="module")
def fit(rows: tuple[FloatArray, FloatArray]) -> EMFit:
    return fit_em(*rows, 2, family="gaussian", priors="default", random_seed=1)


def distance(first: FittedOptimum | EMFit, second: FittedOptimum | EMFit) -> float:
    """Largest difference of the coefficients, after matching the components."""
    order = match_components(second.coefficients, first.coefficients, signed=True)
    return float(np.abs(second.coefficients[:, order] - first.coefficients).max())


def test_optima_are_the_fit_and_distinct_maxima_below_it(
    fit: EMFit, rows: tuple[FloatArray, FloatArray]
) -> None:
    best, other = fit.optima
    assert_allclose(best.coefficients, fit.coefficients, rtol=1e-12)
    assert_allclose(best.weights, fit.weights, rtol=1e-12)
    assert best.log_posterior == fit.log_posterior
    assert best.log_likelihood == fit.log_likelihood
    assert other.log_posterior is not None
    assert fit.log_posterior is not None
    assert other.log_posterior < fit.log_posterior
    assert distance(best, other) > 1.5
    assert min(best.n_reached, other.n_reached) > 3
    assert not best.bounds
    again = fit_em(*rows, 2, family="gaussian", priors="default", init=other)
    assert again.log_posterior == pytest.approx(other.log_posterior, abs=1e-4)
    assert distance(again, other) < 1e-2
    assert len(again.optima) == 1


def log_posterior(X: FloatArray, y: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Of two slopes, biases, log deviations and a logit, of standardised rows."""
    # (7, ...) -> (...)
    x, z = ((each - each.mean()) / each.std() for each in (X[:, 0], y))

    def value(vector: FloatArray) -> FloatArray:
        slopes, biases, deviations = vector[:2], vector[2:4], vector[4:6]
        log_weights = log_softmax(np.stack([vector[6], np.zeros_like(vector[6])]), axis=0)
        eta = slopes[..., None] * x + biases[..., None]
        joint = stats.norm.logpdf(z, eta, np.exp(deviations)[..., None])
        total = logsumexp(joint + log_weights[..., None], axis=0).sum(-1)
        total += stats.norm.logpdf(slopes, 0.0, 1.5).sum(0)
        total += stats.norm.logpdf(biases, 0.0, 1.5).sum(0)
        total += stats.norm.logpdf(deviations, np.log(0.5), 1.0).sum(0)
        return np.asarray(total + log_weights.sum(0))

    return value


def test_masses_are_laplace_approximations_of_the_posterior(
    fit: EMFit, rows: tuple[FloatArray, FloatArray]
) -> None:
    """By a posterior written by hand, and its second derivatives by differences."""
    X, y = rows
    value = log_posterior(X, y)
    masses = []
    for optimum in fit.optima:
        assert optimum.dispersion is not None
        slopes = optimum.coefficients[0]
        levels = (optimum.biases + X.mean() * slopes - y.mean()) / y.std()
        spreads = np.log(optimum.dispersion / y.std())
        logit = [np.log(optimum.weights[0] / optimum.weights[1])]
        at = np.concatenate([slopes * X.std() / y.std(), levels, spreads, logit])
        curvature = -hessian(value, at).ddf
        log_volume = -0.5 * np.linalg.slogdet(curvature / (2.0 * np.pi))[1]
        masses.append(float(value(at)) + log_volume)
    expected = masses[1] - masses[0]
    assert fit.optima[1].log_mass - fit.optima[0].log_mass == pytest.approx(expected, abs=1e-3)
    shares = mass_shares(fit.optima)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[1] / shares[0] == pytest.approx(np.exp(expected), rel=1e-2)
    assert 0.2 < shares[1] < 0.8


def test_optima_that_differ_by_labels_are_one(
    fit: EMFit, rows: tuple[FloatArray, FloatArray]
) -> None:
    one = fit.optima[1]
    dispersion = None if one.dispersion is None else one.dispersion[::-1]
    turned = replace(
        one,
        coefficients=one.coefficients[:, ::-1],
        biases=one.biases[::-1],
        weights=one.weights[::-1],
        dispersion=dispersion,
    )
    both = (one, turned, fit.optima[0])
    again = fit_em(*rows, 2, family="gaussian", priors="default", init=both)
    assert [optimum.n_reached for optimum in again.optima] == [1, 2]
    assert distance(again.optima[1], one) < 1e-2


def test_optima_are_tabulated(fit: EMFit, rows: tuple[FloatArray, FloatArray]) -> None:
    table = fit.optima_table
    assert list(table.columns) == [
        "origin",
        "n_reached",
        "log_likelihood",
        "log_posterior",
        "bounds",
        "posterior_share",
    ]
    assert_allclose(table["posterior_share"], mass_shares(fit.optima))
    group = fit.to_datatree()["moment_init"].to_dataset()
    assert group["optimum_coefficient"].dims == ("optimum", "feature", "component")
    assert_allclose(group["optimum_coefficient"][1], fit.optima[1].coefficients)
    assert_allclose(group["optimum_posterior_share"], table["posterior_share"])
    plain = fit_em(*rows, 2, family="gaussian", random_seed=1)
    assert "posterior_share" not in plain.optima_table
    assert plain.optima[0].log_posterior is None
    assert np.isnan(plain.optima[0].log_mass)
    assert len(plain.optima) <= 10


def test_optima_on_a_bound_have_no_mass_and_come_last() -> None:
    """Three components for two: one may collapse onto a few rows."""
    X, y = four_clusters(3)
    with pytest.warns(UserWarning, match="component"):
        fit = fit_em(X, np.round(y, 1), 4, family="gaussian", random_seed=1)
    is_bound = [bool(optimum.bounds) for optimum in fit.optima]
    assert is_bound == sorted(is_bound)
    assert any(is_bound)
    heights = [each.log_likelihood for each in fit.optima[1:] if not each.bounds]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.filterwarnings("ignore:The search did not converge")
def test_optima_of_a_search_on_a_sample_are_those_of_all_rows() -> None:
    rng = np.random.default_rng(4)
    n = 45_000
    dose = np.repeat([0.0, 1.0], n // 2)[:, None]
    y = np.tile([-1.0, 1.0], n // 2) + rng.normal(0.0, 0.3, n)
    fit = fit_em(dose, y, 2, family="gaussian", priors="default", random_seed=1)
    assert fit.starts_table["is_sampled"].any()
    assert len(fit.optima) == 2
    for optimum in fit.optima:
        given = fit_em(dose, y, 2, family="gaussian", priors="default", init=optimum, max_iter=0)
        assert given.log_likelihood == pytest.approx(optimum.log_likelihood, abs=1e-6)
        assert given.n_iter == 0


@pytest.mark.parametrize("gate", ["softmax", "gaussian"])
def test_an_optimum_with_a_gate_is_a_start(gate: Any) -> None:
    X, y = four_clusters(5)
    rng = np.random.default_rng(6)
    given: dict[str, Any] = {"family": "gaussian", "gating": rng.normal(2.0, 3.0, N), "gate": gate}
    fit = fit_em(X, y, 2, n_starts=6, random_seed=1, **given)
    for optimum in fit.optima[:2]:
        again = fit_em(X, y, 2, init=optimum, **given)
        assert again.history[0] == pytest.approx(optimum.log_likelihood, abs=1e-6)
        assert again.log_likelihood == pytest.approx(optimum.log_likelihood, abs=1e-3)
    assert "optimum_gate" in fit.to_datatree()["moment_init"] or gate == "gaussian"


def test_optima_of_several_responses_have_the_dim_response() -> None:
    X, y = four_clusters(7)
    both = np.column_stack([y, np.random.default_rng(8).poisson(2.0, N)])
    fit = fit_em(X, both, 2, family=["gaussian", "poisson"], random_seed=1)
    group = fit.to_datatree()["moment_init"].to_dataset()
    dims = ("optimum", "response", "feature", "component")
    assert group["optimum_coefficient"].dims == dims
    assert group["optimum_dispersion"].dims == ("optimum", "response", "component")
    assert_allclose(group["optimum_bias"][0], fit.biases)


# --- samples -------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {"family": "gaussian", "draws": 5, "chains": 2, "random_seed": 1}


@pytest.mark.parametrize("kind", ["posterior", "likelihood", "none"])
def test_sample_warns_of_another_mode_with_much_mass(
    kind: str,
    fit: EMFit,
    rows: tuple[FloatArray, FloatArray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also from a fit without priors, whose optima are climbed again, and without any fit."""
    monkeypatch.setattr(pm, "sample", FakeSampler())
    inits = {"posterior": fit, "none": "search"}
    inits["likelihood"] = fit_em(*rows, 2, family="gaussian", random_seed=1)
    remedy = r'fit with `fit_em\(..., priors="default"\)`'
    if kind != "likelihood":  # its optima are in another order, or not the user's
        remedy = rf"optima \[1\] of.*fit\.optima\[k\]` of the fit that you gave; if.*{remedy}"
    with pytest.warns(UserWarning, match=rf"of the posterior mass is near other.*{remedy}") as seen:
        tree = sample(*rows, 2, init=inits[kind], **GIVEN)
    assert ("optima [" in str(seen[0].message)) == (kind != "likelihood")
    shares = tree["moment_init"]["optimum_posterior_share"]
    assert_allclose(np.sort(shares)[:2], np.sort(mass_shares(fit.optima)), atol=0.01)


@pytest.mark.parametrize("n_failed", [1, 10])
def test_failed_climb_of_the_start_gives_no_warning(
    n_failed: int, rows: tuple[FloatArray, FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning would be an error. If all climbs fail, the fit stays as it is."""
    plain = fit_em(*rows, 2, family="gaussian", random_seed=1)
    climb, calls = EMProblem.climb, list[int]()

    def failing(problem: EMProblem, *given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) <= n_failed:
            raise np.linalg.LinAlgError("singular")
        return climb(problem, *given, **options)

    monkeypatch.setattr(EMProblem, "climb", failing)
    origin = weigh_modes(validate_data(*rows, family="gaussian"), plain)
    assert len(calls) == len(plain.optima) > 1
    assert_allclose(origin.coefficients, plain.coefficients)
    assert (origin is plain) == (n_failed == 10)
    assert (origin.optima[0].log_posterior is None) == (n_failed == 10)


def test_sample_from_an_optimum_starts_there(
    fit: EMFit, rows: tuple[FloatArray, FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pm, "sample", FakeSampler())
    tree = sample(*rows, 2, init=fit.optima[1], **GIVEN)
    mean = tree["posterior"]["coefficient"].mean(("chain", "draw"))
    assert_allclose(mean, fit.optima[1].coefficients, atol=0.3)


def test_sample_is_silent_if_other_modes_are_negligible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning would be an error."""
    monkeypatch.setattr(pm, "sample", FakeSampler())
    rng = np.random.default_rng(9)
    x = rng.uniform(-1.0, 1.0, (N, 1))
    y = np.where(np.arange(N) % 2, 2.0 * x[:, 0] + 1.0, -x[:, 0]) + rng.normal(0.0, 0.2, N)
    fit = fit_em(x, y, 2, family="gaussian", priors="default", n_starts=20, random_seed=1)
    tree: xr.DataTree = sample(x, y, 2, init=fit, **GIVEN)
    assert float(tree["moment_init"].to_dataset()["optimum_posterior_share"][0]) > 0.99
