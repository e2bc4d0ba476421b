"""Fits under restrictions, fits that end at the edge of the parameters, and published fits."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import optimize, special, stats

from moment_init import ConvergenceWarning, EMFit, Status, fit_em
from tests.likelihood_problems import make_problem

FloatArray = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.filterwarnings("ignore:Component:UserWarning")


def lines(rng: np.random.Generator, n_obs: int = 300) -> tuple[pd.DataFrame, FloatArray]:
    """Two planes with a common second slope, deviation .3 and a common intercept."""
    X = pd.DataFrame(rng.standard_normal((n_obs, 2)), columns=["a", "b"])
    slopes = np.where(rng.random(n_obs) < 0.6, 1.5, -1.0)
    y = slopes * X["a"] + 0.7 * X["b"] + 2.0 + 0.3 * rng.standard_normal(n_obs)
    return X, y.to_numpy()


def fit_lines(X: Any, y: FloatArray, **options: Any) -> EMFit:
    return fit_em(X, y, 2, family="gaussian", random_seed=1, progressbar=False, **options)


@pytest.mark.parametrize("init", ["search", "random"])
@pytest.mark.parametrize(
    ("shared", "n_parameters"),
    [(["b"], 8), ([1], 8), (["b", "bias"], 7), (["b", "bias", "dispersion"], 6)],
)
def test_what_is_shared_is_common(
    shared: Any, n_parameters: int, init: str, rng: np.random.Generator
) -> None:
    """The restriction holds in the truth: it costs at most what chance gains, chi2 / 2."""
    X, y = lines(rng)
    free, fit = fit_lines(X, y), fit_lines(X, y, shared=shared, init=init)
    assert fit.status is Status.OK
    assert fit.n_parameters == n_parameters
    assert_allclose(fit.coefficients[1, 0], fit.coefficients[1, 1], rtol=1e-10)
    if "bias" in shared:
        assert_allclose(fit.biases[0], fit.biases[1], rtol=1e-10)
    if "dispersion" in shared:
        assert fit.dispersion is not None
        assert_allclose(fit.dispersion[0], fit.dispersion[1], rtol=1e-10)
    loss = free.log_likelihood - fit.log_likelihood
    assert -1e-6 < loss < stats.chi2.ppf(1 - 1e-4, free.n_parameters - n_parameters) / 2
    assert np.all(np.diff(fit.history) >= -1e-12 * abs(fit.log_likelihood))


@pytest.mark.parametrize("weights", [[0.6, 0.4], [0.4, 0.6]])
def test_held_weights_stay_and_keep_their_order(
    weights: list[float], rng: np.random.Generator
) -> None:
    X, y = lines(rng)
    fit = fit_lines(X, y, fixed_weights=weights)
    assert_array_equal(fit.weights, weights)
    larger = int(np.argmax(weights))
    assert fit.coefficients[0, larger] > 1.0 > 0.0 > fit.coefficients[0, 1 - larger]
    assert fit.n_parameters == 8
    assert_array_equal(fit.standard_errors.weights, [0.0, 0.0])


def negative_log_likelihood(vector: FloatArray, projected: FloatArray, y: FloatArray) -> float:
    """Poisson mixture with one slope a component; vector: scales, biases, logit."""
    eta = projected * vector[:2] + vector[2:4]
    joint = stats.poisson.logpmf(y[:, None], np.exp(eta))
    joint += special.log_expit(np.array([vector[4], -vector[4]]))
    return -float(special.logsumexp(joint, axis=1).sum())


@pytest.mark.parametrize("init", ["search", "random"])
def test_held_directions_leave_scales_biases_and_weights(
    init: str, rng: np.random.Generator
) -> None:
    """The maximum that SciPy finds over these alone, from the truth."""
    problem = make_problem("poisson", "log", rng, n_obs=400, with_extras=False)
    X, y = np.asarray(problem.rows.Z), problem.rows.y
    truth = problem.truth
    fit = fit_em(
        X, y, 2, family="poisson", fixed_directions=truth.directions, init=init,
        random_seed=1, tolerance=1e-10, progressbar=False,
    )  # fmt: skip
    start = np.concatenate([truth.scales, truth.biases, [np.log(0.65 / 0.35)]])
    arguments = (X @ truth.directions, y)
    best = optimize.minimize(negative_log_likelihood, start, arguments, tol=1e-10, method="BFGS")
    assert_allclose(fit.log_likelihood, -best.fun, rtol=0, atol=1e-6)
    # SciPy's numerical gradient leaves it some 1e-4 standard errors from the maximum
    scales = np.einsum("dj,dj->j", fit.coefficients, truth.directions)
    assert_allclose(scales, best.x[:2], atol=1e-3)
    assert_allclose(fit.biases, best.x[2:4], atol=1e-3)
    assert_allclose(fit.coefficients, truth.directions * scales, atol=1e-12)
    assert fit.n_parameters == 5
    assert fit.status is Status.OK


def test_held_directions_in_many_columns_and_of_many_components(rng: np.random.Generator) -> None:
    """More columns than rows can whiten, and more components than columns."""
    X = rng.standard_normal((200, 400))
    directions = np.eye(400)[:, :2]
    signs = np.where(rng.random(200) < 0.5, X[:, 0], -2.0 * X[:, 1])
    y = signs + 0.1 * rng.standard_normal(200)
    wide = fit_lines(X, y, fixed_directions=directions)
    assert wide.converged
    # errors of slopes are .1 over the root of a hundred rows, and five of them are allowed
    assert_allclose([wide.coefficients[0, 0], wide.coefficients[1, 1]], [1.0, -2.0], atol=0.05)
    few = fit_em(X[:, :1], y, 2, family="gaussian", fixed_directions=[[1.0, 1.0]], random_seed=1)
    assert few.converged
    assert few.coefficients.shape == (1, 2)


def test_an_empty_component_is_reported(rng: np.random.Generator) -> None:
    """A third component far above all counts has no row, and nothing brings it back."""
    X = rng.standard_normal((200, 1))
    y = rng.poisson(np.exp(np.where(rng.random(200) < 0.5, 1.0, -1.0) * X[:, 0]))
    start = ([[1.0, -1.0, 0.0]], [0.0, 0.0, 12.0], [0.4, 0.4, 0.2])
    fit = fit_em(X, y, 3, family="poisson", init=start, random_seed=1)
    assert fit.bounds == ("weight of component 2",)
    assert fit.status is Status.NOT_IDENTIFIED
    assert any("Component 2 is empty" in text for text in fit.warnings)
    assert_allclose(fit.weights[2], 1e-4)


def test_a_collapsing_variance_is_held(published: dict[str, Any]) -> None:
    """A line through two rows of CO2data has no error: only the ratio bounds its likelihood."""
    model = published["CO2data"]
    x, y = model.X["GNP"].to_numpy(), model.y
    shares = np.full((len(y), 2), [0.9999, 0.0001])
    shares[[2, 3]] = [0.0001, 0.9999]
    fit = fit_em(x[:, None], y, 2, family="gaussian", init=shares, min_dispersion_ratio=0.01)
    assert fit.bounds == ("dispersion ratio of component 1",)
    assert fit.dispersion is not None
    assert_allclose(fit.dispersion[1] / fit.dispersion[0], 0.01)
    assert fit.status is Status.NOT_IDENTIFIED
    assert "`min_dispersion_ratio`" in fit.warnings[0]
    assert np.all(np.diff(fit.history) >= -1e-12 * abs(fit.log_likelihood))


def test_the_ratio_binds_where_it_is_wide(published: dict[str, Any]) -> None:
    model = published["CO2data"]
    loose = fit_em(model.X, model.y, 2, family="gaussian", random_seed=1)
    tight = fit_em(model.X, model.y, 2, family="gaussian", random_seed=1, min_dispersion_ratio=0.9)
    assert loose.bounds == ()
    assert tight.dispersion is not None
    assert_allclose(tight.dispersion.min() / tight.dispersion.max(), 0.9)
    assert tight.status is Status.NOT_IDENTIFIED
    assert tight.log_likelihood < loose.log_likelihood


def test_separated_rows_are_reported(rng: np.random.Generator) -> None:
    x = rng.standard_normal(100)
    fit = fit_em(x[:, None], x > 0.2, 1, family="bernoulli", random_seed=1)
    assert fit.bounds == ("length of component 0",)
    assert fit.status is Status.NOT_IDENTIFIED
    assert "Component 0 has separated rows" in fit.warnings[0]
    assert_array_equal(fit.predict(x[:, None]) > 0.5, x > 0.2)


def test_counts_without_overdispersion_are_no_failure(rng: np.random.Generator) -> None:
    """Even counts: the negative binomial's maximum is the Poisson one, and the status is OK."""
    x = rng.standard_normal(300)
    y = np.round(np.exp(1.0 + 0.5 * x))  # varies less than a Poisson response
    fit = fit_em(x[:, None], y, 1, family="negative_binomial", tolerance=1e-10)
    poisson = fit_em(x[:, None], y, 1, family="poisson", tolerance=1e-10)
    assert fit.bounds == ("dispersion of component 0",)
    assert fit.status is Status.OK
    assert "upper end of its range" in fit.warnings[0]
    # alpha at its bound changes the log density of a row by y^2 / alpha
    assert_allclose(fit.log_likelihood, poisson.log_likelihood, rtol=1e-4)
    assert_allclose(fit.coefficients, poisson.coefficients, rtol=1e-3)


def test_the_lower_end_of_a_dispersion_is_a_failure(rng: np.random.Generator) -> None:
    """A single line without error has no maximum either."""
    x = rng.standard_normal(30)
    fit = fit_em(x[:, None], 1.0 + 2.0 * x, 1, family="gaussian")
    assert fit.bounds == ("dispersion of component 0",)
    assert fit.status is Status.NOT_IDENTIFIED
    assert "fits its rows without error" in fit.warnings[0]


def test_a_gate_that_separates_ends_in_a_status(rng: np.random.Generator) -> None:
    """Its covariate tells the components apart without error: slopes have no maximum."""
    g = np.linspace(-1.0, 1.0, 200)
    x = rng.standard_normal(200)
    y = np.where(g > 0, 5.0 + x, -5.0 - x) + 0.1 * rng.standard_normal(200)
    start = ([[1.0, -1.0]], [5.0, -5.0], [0.5, 0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it may end at a bound or short of it
        fit = fit_em(x[:, None], y, 2, family="gaussian", gating=g, init=start)
    assert_allclose(np.sort(fit.biases), [-5.0, 5.0], atol=0.1)
    assert_array_equal(fit.responsibilities.argmax(axis=1)[g > 0], int(np.argmax(fit.biases)))
    assert fit.status is not Status.OK
    assert fit.warnings


def test_held_weights_are_no_bound(rng: np.random.Generator) -> None:
    """However small: nothing was pushed to the floor."""
    X, y = lines(rng)
    start = ([[1.5, -1.0], [0.7, 0.7]], [2.0, 2.0], [0.9, 0.1], [0.3, 0.3])
    with pytest.warns(ConvergenceWarning, match="0 iterations"):
        fit = fit_lines(X, y, fixed_weights=[1 - 1e-5, 1e-5], init=start, max_iter=0)
    assert fit.bounds == ()
    assert_allclose(fit.weights, [1 - 1e-5, 1e-5], rtol=1e-10)
    # the rare component's deviation runs to Hathaway's bound, where steps gain nothing
    end = fit_lines(X, y, fixed_weights=[1 - 1e-5, 1e-5], init=start)
    assert end.converged
    assert end.n_iter < 100
    assert end.bounds == ("dispersion ratio of component 1",)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(ROOT)
    module = importlib.import_module("benchmarks.published")
    return {fit.name: fit for fit in module.load_published_fits()}


@pytest.mark.parametrize("start_seed", [0, 1])
@pytest.mark.parametrize(
    "name",
    [
        "seizure",
        "betablocker, treatment shared",
        "betablocker",
        "patent, gate",
        "patent",
        "fabricfault",
        "NPreg, yn",
        "NPreg, yp",
        "NPreg, yb",
        "tonedata",
        "CO2data",
    ],
)
def test_the_default_call_reaches_the_best_known_fit(
    name: str, start_seed: int, published: dict[str, Any]
) -> None:
    model = published[name]
    options = {**model.options, "random_seed": start_seed}
    fit = fit_em(model.X, model.y, model.n_components, **options)
    assert fit.log_likelihood > model.best - 0.01
    assert fit.converged
