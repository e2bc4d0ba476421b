"""PyMC models of several responses and of classes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.typing import NDArray
from pytensor.configdefaults import config
from pytensor.graph.traversal import graph_inputs

from moment_init import EMFit, estimate, fit_em
from moment_init.em.prediction import rows_for, unit_scores
from moment_init.families.registry import get_family
from moment_init.models import mixture_glm
from tests.bayesian_models import evaluate
from tests.joint_mixtures import simulate_joint
from tests.specified import specify_rows

CASES: list[tuple[str, dict[str, Any]]] = [
    ("gaussian", {"dispersion": 0.4}),
    ("bernoulli", {"scale": 2.5}),
    ("poisson", {}),
    ("categorical", {"scale": 2.0}),
]


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


def densities(fit: EMFit, X: Any, y: Any, **data: Any) -> NDArray[np.float64]:
    """Log density of every row, or of every group, under a fit."""
    return unit_scores(fit, rows_for(fit, X, y, **data)[0])[0]


def model_densities(model: pm.Model) -> NDArray[np.float64]:
    """Log density of every row at the model's start."""
    return np.asarray(evaluate(model, model.logp(vars=model.observed_RVs, sum=False))[0])


@pytest.mark.parametrize(("family", "options"), CASES)
@pytest.mark.parametrize("directions", ["anchored", "free", "fixed"])
def test_density_of_rows_at_the_start(
    family: str, options: dict[str, Any], directions: Any, rng: np.random.Generator
) -> None:
    """The model starts at the fit, and has its log density in every row."""
    data = simulate_joint(family, 600, 2, [0.6, 0.4], 2, rng, **options)
    fit = fit_em(data.X, data.y, 2, family=family, init="random", n_starts=2, random_seed=1)
    model = mixture_glm(data.X, data.y, 2, family=family, init=fit, directions=directions)
    assert model.named_vars_to_dims["coefficient"] == ("response", "feature", "component")
    assert model.named_vars_to_dims["bias"] == ("response", "component")
    assert model.named_vars_to_dims["weight"] == ("component",)
    expected = densities(fit, data.X, data.y)
    np.testing.assert_allclose(model_densities(model), expected, rtol=1e-8, atol=1e-10)
    coefficient, scale, direction = evaluate(
        model, [model[name] for name in ("coefficient", "scale", "direction")]
    )
    np.testing.assert_allclose(coefficient, fit.coefficients, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scale[:, None] * direction, coefficient, rtol=1e-12)


def test_families_offsets_and_weights(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 80, 2, [0.6, 0.4], 1, rng, dispersion=0.4)
    y = np.column_stack([data.y[:, 0], rng.poisson(2.0, 80)])
    offset, weight = rng.standard_normal((80, 2)), rng.uniform(0.5, 2.0, 80)
    block: dict[str, Any] = {
        "family": ["gaussian", "poisson"],
        "offset": offset,
        "sample_weight": weight,
    }
    fit = fit_em(data.X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    model = mixture_glm(data.X, y, 2, init=fit, **block)
    assert model.named_vars_to_dims["dispersion"] == ("dispersed_response", "component")
    assert model.named_vars_to_dims["standardised_dispersion"] == (
        "dispersed_response",
        "component",
    )
    expected = weight * densities(fit, data.X, y, offset=offset)
    np.testing.assert_allclose(model_densities(model), expected, rtol=1e-8, atol=1e-10)


def test_offsets_of_classes(rng: np.random.Generator) -> None:
    """Biases are relative to the offset: those of the prior's centre give the shares of classes."""
    data = simulate_joint("categorical", 600, 2, [0.6, 0.4], 2, rng, scale=2.0)
    offset = np.tile([-6.0, 4.0], (600, 1))
    block: dict[str, Any] = {"family": "categorical", "offset": offset}
    fit = fit_em(data.X, data.y, 2, init="random", n_starts=2, random_seed=1, **block)
    model = mixture_glm(data.X, data.y, 2, init=fit, **block)
    expected = densities(fit, data.X, data.y, offset=offset)
    np.testing.assert_allclose(model_densities(model), expected, rtol=1e-8, atol=1e-10)
    counts = np.array([np.sum(data.y == label) for label in ("bus", "car", "train")])
    inputs: list[Any] = list(graph_inputs([model["bias"]]))
    (shift, _) = next(item.data for item in inputs if item.name == "response_units")
    np.testing.assert_allclose(shift, np.log(counts[1:] / counts[0]) - [-6.0, 4.0], rtol=1e-12)


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_groups_and_gate(family: str, rng: np.random.Generator) -> None:
    """Rows of a group share their component, whose weights depend on covariates of the group."""
    groups = np.repeat(np.arange(60), 3)
    gating = rng.standard_normal((60, 1))[groups]
    label = (rng.random(60) < 1 / (1 + np.exp(-2 * gating[::3, 0]))).astype(np.intp)[groups]
    slopes = np.array([[[1.0, -1.0], [0.5, 0.8]], [[-0.7, 0.9], [0.8, -0.3]]])
    X = rng.standard_normal((180, 2))
    y = np.einsum("nd,adn->na", X, slopes[:, :, label]) + 0.4 * rng.standard_normal((180, 2))
    y = y if family == "gaussian" else np.column_stack([np.zeros(180), y]).argmax(axis=1)
    block: dict[str, Any] = {"family": family, "groups": groups, "gating": gating}
    fit = fit_em(X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    model = mixture_glm(X, y, 2, init=fit, **block)
    expected = densities(fit, X, y, groups=groups, gating=gating)
    actual = model_densities(model)
    np.testing.assert_allclose(actual[::3], expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(actual.reshape(-1, 3)[:, 1:], 0.0)


def test_two_classes_are_one_predictor(rng: np.random.Generator) -> None:
    """Classes of two labels have the shapes and the likelihood of a binary response."""
    data = simulate_joint("bernoulli", 200, 2, [0.6, 0.4], 1, rng, scale=3.0)
    labels = np.array(["no", "yes"])[data.y[:, 0].astype(int)]
    start = (data.truth.coefficients, data.truth.biases, data.truth.weights)
    model = mixture_glm(data.X, labels, 2, family="categorical", init=start)
    binary = mixture_glm(data.X, data.y[:, 0], 2, family="bernoulli", init=start)
    assert model.named_vars_to_dims == binary.named_vars_to_dims
    point = {name: value + 0.1 for name, value in binary.initial_point().items()}
    outputs = [evaluate(each, [each.logp(), each.dlogp()], point) for each in (model, binary)]
    for first, second in zip(*outputs, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-10)


def test_runs_of_families(rng: np.random.Generator) -> None:
    """Every family beside others, with links and trials of its own."""
    X, n_obs = rng.standard_normal((80, 2)), 80
    trials = rng.integers(3, 7, n_obs)
    y = np.column_stack(
        [
            rng.poisson(2.0, n_obs),
            rng.poisson(1.0, n_obs),
            rng.binomial(trials, 0.4),
            rng.standard_normal(n_obs),
            rng.negative_binomial(3, 0.5, n_obs),
            rng.gamma(2.0, size=n_obs),
            rng.integers(2, size=n_obs),
        ]
    )
    families: Any = [
        "poisson",
        "poisson",
        get_family("binomial", "probit"),
        "gaussian",
        "negative_binomial",
        "gamma",
        get_family("bernoulli", "probit"),
    ]
    n_trials = np.ones_like(y)
    n_trials[:, 2] = trials
    block: dict[str, Any] = {"family": families, "n_trials": n_trials}
    fit = fit_em(X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    model = mixture_glm(X, y, 2, init=fit, **block)
    names = ["y3", "y4", "y5"]
    assert list(model.coords["dispersed_response"]) == names
    expected = densities(fit, X, y, n_trials=n_trials)
    np.testing.assert_allclose(model_densities(model), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("directions", ["anchored", "free", "fixed"])
def test_gradient_against_differences(directions: Any, rng: np.random.Generator) -> None:
    """By central differences of the fourth order, whose error is that of rounding."""
    X = rng.standard_normal((60, 3))
    y = np.column_stack([rng.standard_normal(60), rng.negative_binomial(3, 0.5, 60)])
    start = (
        rng.standard_normal((2, 3, 2)),
        np.zeros((2, 2)),
        np.array([0.4, 0.6]),
        np.array([[0.5, 1.0], [2.0, 3.0]]),
    )
    families: Any = ["gaussian", "negative_binomial"]
    model = mixture_glm(X, y, 2, family=families, init=start, directions=directions)
    point = model.initial_point()
    step = {name: rng.standard_normal(np.shape(value)) for name, value in point.items()}
    at = [
        {name: value + size * 1e-3 * step[name] for name, value in point.items()}
        for size in (-2, -1, 1, 2)
    ]
    low, near_low, near_high, high = (evaluate(model, [model.logp()], there)[0] for there in at)
    expected = (8 * (near_high - near_low) - (high - low)) / 12e-3
    along = np.concatenate([np.ravel(step[variable.name]) for variable in model.value_vars])
    assert evaluate(model, [model.dlogp()])[0] @ along == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "categorical"])
def test_gradient_is_finite_where_means_round_to_their_bounds(
    family: str, rng: np.random.Generator
) -> None:
    """Predictors of several hundred, as a separated component has them."""
    X = rng.standard_normal((40, 2))
    y = rng.integers(3, size=40) if family == "categorical" else rng.integers(2, size=(40, 2))
    sign = -1.0 if family == "poisson" else 1.0
    slopes = np.array([[[1.0, 0.1], [0.2, 1.0]], [[0.5, 0.1], [1.0, 0.3]]])
    biases = np.array([[sign * 800.0, 0.3], [-800.0, -0.2]])
    start = (slopes, biases, np.array([0.4, 0.6]))
    model = mixture_glm(X, y, 2, family=family, init=start)
    assert np.all(np.isfinite(evaluate(model, [model.dlogp()])[0]))


def test_default_priors_are_those_of_each_link(rng: np.random.Generator) -> None:
    """Standard deviations over many draws, within five standard errors."""
    X, y = rng.standard_normal((60, 2)), np.column_stack([rng.standard_normal(60), np.arange(60)])
    start = (np.ones((2, 2, 2)), np.zeros((2, 2)), [0.5, 0.5], np.ones((2, 2)))
    model = mixture_glm(X, y, 2, family=["gaussian", "poisson"], init=start, directions="free")
    names = ["standardised_bias", "standardised_coefficient"]
    with config.change_flags(cxx=""):
        bias, slopes = pm.draw(
            [model[name] for name in names], 1000, random_seed=1, mode="FAST_COMPILE"
        )
    by_response = slopes.transpose(1, 0, 2, 3).reshape(2, -1)
    expected = np.array([1.5, 1.0]) / np.sqrt(2)
    error = 5 / np.sqrt(2 * by_response.shape[1])
    np.testing.assert_allclose(by_response.std(axis=1), expected, rtol=error)
    spread = bias.transpose(1, 0, 2).reshape(2, -1).std(axis=1)
    np.testing.assert_allclose(spread, [1.5, 1.5], rtol=5 / np.sqrt(4000))


def test_prior_of_the_user_has_the_dim_of_responses(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2))
    start = (np.ones((2, 2, 2)), np.zeros((2, 2)), [0.5, 0.5])
    priors = {"scale": pm.HalfNormal.dist(3.0)}
    model = mixture_glm(X, y, 2, family="poisson", init=start, priors=priors)
    assert model.named_vars_to_dims["standardised_scale"] == ("response", "component")


@pytest.mark.filterwarnings("ignore:The search did not converge")
def test_estimate_is_fitted_from(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 2_000, 3, [0.6, 0.4], 2, rng, dispersion=0.4, is_tied=True)
    found = estimate(data.X, data.y, 2, family="gaussian", random_seed=1)
    specification = specify_rows(
        data.X,
        data.y,
        2,
        data_block={"family": "gaussian"},
        gating=None,
        init=found,
        directions="fixed",
        anchor_angle=45.0,
        random_seed=1,
    )
    assert isinstance(specification.origin, EMFit)
    assert specification.given is found
    assert specification.anchors.shape == (2, 3, 2)
    np.testing.assert_allclose(np.linalg.norm(specification.anchors, axis=1), 1.0)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"directions": "any"}, "`directions`"),
    ({"anchor_angle": 100.0}, "`anchor_angle`"),
    ({"init": (np.ones((2, 2)), np.zeros(2), [0.5, 0.5])}, r"of shape \(2, 2, 2\)"),
    ({"init": (np.ones((2, 2, 2)), np.zeros(2), [0.5, 0.5])}, r"biases must be.*\(2, 2\)"),
    ({"family": ["poisson"]}, "`family` must be one family, or one for each of the 2"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_refusals(options: dict[str, Any], message: str, rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2))
    with pytest.raises(ValueError, match=message):
        mixture_glm(X, y, 2, **{"family": "poisson", **options})


def test_fit_of_other_responses_is_refused(rng: np.random.Generator) -> None:
    import pandas as pd

    X = rng.standard_normal((60, 2))
    y = pd.DataFrame(rng.poisson(1.0, (60, 3)), columns=["a", "b", "c"])
    start: Any = (np.ones((2, 2, 2)), np.zeros((2, 2)), [0.5, 0.5])
    options: dict[str, Any] = {"family": "poisson", "max_iter": 0, "init": start}
    with pytest.warns(match="."):
        fit = fit_em(X, y[["a", "b"]], 2, **options)
    with pytest.raises(ValueError, match="`init` must have the responses or classes of `y`"):
        mixture_glm(X, y, 2, family="poisson", init=fit)
    with pytest.raises(ValueError, match="`init` must come from the columns of `y`"):
        mixture_glm(X, y[["b", "a"]], 2, family="poisson", init=fit)
