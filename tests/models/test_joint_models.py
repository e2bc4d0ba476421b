"""PyMC models of several responses."""

from typing import Any

import numpy as np
import pytest

from moment_init import fit_em
from moment_init.families.registry import get_family
from moment_init.models import mixture_glm
from moment_init.models.joint_building import _draw
from moment_init.responses.kinds import Categorical, SeparateResponses
from tests.joint_mixtures import simulate_joint

CASES: list[tuple[str, dict[str, Any]]] = [
    ("gaussian", {"dispersion": 0.4}),
    ("bernoulli", {"scale": 2.5}),
    ("poisson", {}),
    ("categorical", {"scale": 3.0}),
]


@pytest.mark.parametrize(("family", "options"), CASES)
@pytest.mark.parametrize("directions", ["anchored", "free", "fixed"])
def test_density_of_rows_at_the_start(
    family: str, options: dict[str, Any], directions: Any, rng: np.random.Generator
) -> None:
    """The model starts at the fit, and has its log density in every row."""
    data = simulate_joint(family, 80, 2, [0.6, 0.4], 2, rng, **options)
    fit: Any = fit_em(data.X, data.y, 2, family=family, init="random", n_starts=2, random_seed=1)
    model = mixture_glm(data.X, data.y, 2, family=family, init=fit, directions=directions)
    assert model.named_vars_to_dims["coefficient"] == ("feature", "component", "response")
    assert model.named_vars_to_dims["weight"] == ("component",)
    start = model.initial_point()
    density = model.compile_logp(vars=model.observed_RVs, sum=False, mode="FAST_COMPILE")(start)[0]
    np.testing.assert_allclose(density, fit.log_densities(data.X, data.y), rtol=1e-8, atol=1e-10)


def test_families_offsets_and_weights(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 80, 2, [0.6, 0.4], 1, rng, dispersion=0.4)
    y = np.column_stack([data.y[:, 0], rng.poisson(2.0, 80)])
    offset, weight = rng.standard_normal((80, 2)), rng.uniform(0.5, 2.0, 80)
    block: dict[str, Any] = {
        "family": ["gaussian", "poisson"],
        "offset": offset,
        "sample_weight": weight,
    }
    fit: Any = fit_em(data.X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    model = mixture_glm(data.X, y, 2, init=fit, **block)
    assert model.named_vars_to_dims["dispersion"] == ("component", "dispersed_response")
    start = model.initial_point()
    density = model.compile_logp(vars=model.observed_RVs, sum=False, mode="FAST_COMPILE")(start)[0]
    expected = weight * fit.log_densities(data.X, y, offset=offset)
    np.testing.assert_allclose(density, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("directions", ["anchored", "free"])
@pytest.mark.parametrize(("family", "options"), CASES)
def test_sum_over_rows_is_the_log_likelihood(
    family: str, options: dict[str, Any], directions: Any, rng: np.random.Generator
) -> None:
    data = simulate_joint(family, 200, 3, [0.7, 0.3], 3, rng, **options)
    fit: Any = fit_em(data.X, data.y, 2, family=family, init="random", n_starts=2, random_seed=1)
    model = mixture_glm(data.X, data.y, 2, family=family, init=fit, directions=directions)
    density = model.compile_logp(vars=model.observed_RVs, mode="FAST_COMPILE")
    np.testing.assert_allclose(density(model.initial_point()), fit.log_likelihood, rtol=1e-8)


def test_runs_of_families(rng: np.random.Generator) -> None:
    """Neighbours of one family are one array: orders, links and trials of their own."""
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
    fit: Any = fit_em(X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    model = mixture_glm(X, y, 2, init=fit, **block)
    start = model.initial_point()
    density = model.compile_logp(vars=model.observed_RVs, sum=False, mode="FAST_COMPILE")(start)[0]
    expected = fit.log_densities(X, y, n_trials=n_trials)
    np.testing.assert_allclose(density, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "categorical"])
def test_gradient_is_finite_where_means_round_to_their_bounds(
    family: str, rng: np.random.Generator
) -> None:
    """Predictors of several hundred, as a separated component has them."""
    X = rng.standard_normal((40, 2))
    y = rng.integers(3, size=40) if family == "categorical" else rng.integers(2, size=(40, 2))
    sign = -1.0 if family == "poisson" else 1.0
    slopes = np.array([[[1.0, 0.5], [0.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    biases = np.array([[sign * 800.0, -800.0], [0.3, -0.2]])
    start = (slopes, biases, np.array([0.4, 0.6]))
    model = mixture_glm(X, y, 2, family=family, init=start)
    gradient = model.compile_dlogp(mode="FAST_COMPILE")(model.initial_point())
    assert np.all(np.isfinite(gradient))


def test_draws_of_responses(rng: np.random.Generator) -> None:
    """Means over many rows within five standard errors of those of the mixture."""
    n_obs = 20_000
    kind = SeparateResponses(("a", "b"), (get_family("gaussian"), get_family("poisson")))
    eta = np.broadcast_to([[1.0, 0.0], [-2.0, 1.0]], (n_obs, 2, 2))
    weight = np.array([0.3, 0.7])
    dispersion = np.array([[0.5, 1.0], [1.0, 1.0]])
    drawn = _draw(kind, ("dispersion",), eta, np.log(weight), dispersion, rng=rng)
    assert drawn.shape == (n_obs, 2)
    mean = [0.3 - 1.4, 0.3 + 0.7 * np.e]
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5 * drawn.std(axis=0) / np.sqrt(n_obs))
    # One component for both: given it they are independent, together they are not.
    between = 0.3 * 0.7 * (1.0 + 2.0) * (1.0 - np.e)
    covariance = np.cov(drawn.T)[0, 1]
    assert abs(covariance - between) < 5 * np.sqrt(drawn.var(axis=0).prod() * 2 / n_obs)
    classes = Categorical(("b", "c"), np.array(["a", "b", "c"]))
    drawn = _draw(classes, (), np.zeros((n_obs, 1, 2)), np.zeros(1), rng=rng)
    shares = np.bincount(drawn, minlength=3) / n_obs
    assert np.abs(shares - 1 / 3).max() < 5 * np.sqrt(2 / 9 / n_obs)


def test_refusals(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2))
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (mixture_glm, {"gating": X}, "`gating`"),
        (mixture_glm, {"groups": np.arange(60)}, "`groups`"),
        (mixture_glm, {"directions": "any"}, "`directions`"),
        (mixture_glm, {"anchor_angle": 100.0}, "`anchor_angle`"),
    ]
    for function, options, message in wrong:
        with pytest.raises(ValueError, match=message):
            function(X, y, 2, family="poisson", **options)
