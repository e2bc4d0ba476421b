"""The mode of a log posterior, its curvature, and the starts of chains drawn from them."""

from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from moment_init import fit_em, simulate_mixture
from moment_init.checks import FloatArray, quiet_notices
from moment_init.models import mixture_glm
from moment_init.posterior.mode import START_PROBABILITY, PosteriorMode, find_mode
from tests.bayesian_models import N_OBS, evaluate, fitted, model_of

CASES = [
    ("poisson", "log", "plain", "anchored"),
    ("bernoulli", "logit", "groups", "free"),
    ("gaussian", "identity", "gate", "fixed"),
    ("gamma", "log", "plain", "anchored"),
]


def mode_of(*case: Any) -> PosteriorMode:
    family, link, variant, directions = case
    return find_mode(model_of(fitted(family, link, variant), directions=directions))


@pytest.mark.parametrize("case", CASES)
def test_log_posterior_is_that_of_the_model(case: Any) -> None:
    """At the starting values, by PyTensor's own graphs; without numba, and so in another order."""
    family, link, variant, directions = case
    model = model_of(fitted(family, link, variant), directions=directions)
    mode = find_mode(model)
    value, gradient = mode.log_posterior(mode.log_posterior.start)
    expected, slopes = evaluate(model, [model.logp(), model.dlogp()])
    assert_allclose(value, expected, rtol=1e-12)
    assert_allclose(gradient, slopes, rtol=1e-8, atol=1e-8 * N_OBS)


@pytest.mark.parametrize("case", CASES)
def test_gradient_vanishes_at_the_mode_and_curvature_is_its_derivative(
    case: Any, rng: np.random.Generator
) -> None:
    r"""A step :math:`\epsilon L z` changes the gradient in whitened coordinates by
    :math:`-\epsilon z`."""
    mode = mode_of(*case)
    assert mode.is_regular
    assert mode.value >= mode.log_posterior(mode.log_posterior.start)[0]
    assert np.max(np.abs(mode.root.T @ mode.log_posterior(mode.point)[1])) < 0.01
    direction = rng.standard_normal(len(mode.point))
    ends = [mode.log_posterior(mode.point + e * mode.root @ direction)[1] for e in (1e-4, -1e-4)]
    change = mode.root.T @ (ends[0] - ends[1]) / 2e-4
    # the curvature was taken within a tenth of a standard deviation of the mode
    assert_allclose(change, -direction, atol=0.3 * np.linalg.norm(direction))


def test_draws_are_normal_with_their_density(rng: np.random.Generator) -> None:
    mode = mode_of(*CASES[0])
    points, log_densities = mode.draw_normal(4000, rng)
    reference = stats.multivariate_normal(mode.point, mode.root @ mode.root.T)
    assert_allclose(log_densities, reference.logpdf(points), rtol=1e-9)
    # four standard errors of means and variances, of 20 or so of each
    whitened = np.array([mode.whiten(point) for point in points])
    assert np.max(np.abs(whitened.mean(axis=0))) < 4 / np.sqrt(4000)
    assert np.max(np.abs(whitened.var(axis=0) - 1.0)) < 4 * np.sqrt(2 / 4000)


def test_variables_of_many_points_are_those_of_each(rng: np.random.Generator) -> None:
    mode = mode_of(*CASES[2])
    model = mode.log_posterior.model
    names = [item.name for item in [*model.free_RVs, *model.deterministics]]
    points, _ = mode.draw_normal(3, rng)
    many = mode.log_posterior.variables(points, names)
    priors = mode.log_posterior.log_priors(points)
    for k, point in enumerate(points):
        parts = mode.log_posterior.split(point)
        values = dict(zip((value.name for value in mode.log_posterior.values), parts, strict=True))
        prior = model.logp(vars=model.free_RVs)
        *each, density = evaluate(model, [*(model[name] for name in names), prior], values)
        assert_allclose(priors[k], density, rtol=1e-10)
        for name, value in zip(names, each, strict=True):
            assert_allclose(many[name][k], value, rtol=1e-9, atol=1e-12)


def runaway() -> Any:
    """Counts without overdispersion under a negative binomial: its alpha has no maximum."""
    data = simulate_mixture(600, 2, 2, family="poisson", biases=[0.5, 1.5], random_seed=5)
    return data, fit_em(data.X, data.y, 2, family="negative_binomial", random_seed=1, n_starts=3)


def test_every_start_is_close_to_the_mode_if_a_dispersion_runs_away(
    rng: np.random.Generator,
) -> None:
    """The fit's alpha is at its bound; its standard errors would start chains anywhere."""
    data, fit = runaway()
    assert np.min(fit.dispersion) > 1e6
    model = mixture_glm(data.X, data.y, 2, family="negative_binomial", init=fit)
    mode = find_mode(model)
    starts = mode.draw_starts(40, rng)
    limit = 0.5 * stats.chi2.ppf(START_PROBABILITY, len(mode.point))
    for start in starts:
        value, gradient = mode.log_posterior(start)
        assert mode.value - value <= limit
        assert np.all(np.isfinite(gradient))
        assert np.all(gradient != 0.0)
    alpha = mode.log_posterior.variables(starts, ["dispersion"])["dispersion"]
    assert np.all((alpha > 0.5) & (alpha < 1e3))


def test_settled_approximation_is_where_skewed_draws_are(rng: np.random.Generator) -> None:
    r"""For :math:`\log p(v) = a v - e^v` the best normal density has variance 1 / a, as the mode's,
    and the centre at which :math:`E e^v = a`: half a variance below the mode."""
    shape = 2.0
    with pm.Model() as model:
        pm.Gamma("rate", shape, 1.0)  # on the logarithmic scale
    mode = find_mode(model)
    assert_allclose(mode.point, np.log(shape), atol=0.05 / np.sqrt(shape))
    assert_allclose(mode.root**2, 1.0 / shape, rtol=0.1)
    centres = [mode.settled(rng).point[0] for _ in range(200)]
    # ten points each; starts that lie too far from the mode move in, which costs a part
    assert_allclose(np.mean(centres), np.log(shape) - 0.5 / shape, atol=0.1)


class TwoSided:
    """A log posterior that is steep on one side: half of the normal draws are impossible."""

    def __call__(self, point: FloatArray) -> tuple[float, FloatArray]:
        if point[0] < -1e-3:
            return -np.inf, np.full(1, np.nan)
        return -0.5 * float(point[0]) ** 2, -point


def test_starts_move_towards_the_mode_until_they_are_possible(rng: np.random.Generator) -> None:
    mode = PosteriorMode(TwoSided(), np.zeros(1), np.eye(1), 0.0, True)  # type: ignore[arg-type]
    starts = mode.draw_starts(50, rng)[:, 0]
    assert np.all(starts >= -1e-3)
    assert np.sum(starts > 0.1) > 10


def test_direction_without_a_maximum_is_not_regular() -> None:
    """A prior that says nothing, in place of data."""
    with pm.Model() as model:
        pm.Normal("level", 0.0, 1e6)
        pm.Normal("other")
    mode = find_mode(model)
    assert not mode.is_regular
    assert_allclose(np.sort(np.linalg.norm(mode.root, axis=0)), [1.0, 5.0])


@pytest.mark.parametrize(
    ("family", "n_obs", "n_components", "directions"),
    [
        ("bernoulli", 400, 4, "anchored"),
        ("bernoulli", 80, 3, "free"),
        ("poisson", 40, 2, "anchored"),
        ("negative_binomial", 40, 2, "anchored"),
    ],
)
def test_starts_are_near_the_mode_of_posteriors_that_are_far_from_normal(
    family: str, n_obs: int, n_components: int, directions: Any
) -> None:
    """Overlapping components and few rows: a centre fitted to gradients may be anywhere."""
    data = simulate_mixture(n_obs, 3, n_components, family=family, random_seed=1)
    options: dict[str, Any] = {"family": family, "random_seed": 1}
    with quiet_notices():
        fit = fit_em(data.X, data.y, n_components, priors="default", **options)
    options |= {"init": fit, "directions": directions}
    model = mixture_glm(data.X, data.y, n_components, **options)
    mode = find_mode(model)
    limit = 0.5 * stats.chi2.ppf(START_PROBABILITY, len(mode.point))
    for seed in range(3):
        settled = mode.settled(np.random.default_rng(seed))
        for start in settled.draw_starts(10, np.random.default_rng(seed)):
            value, gradient = mode.log_posterior(start)
            assert mode.value - value <= limit * (1.0 + 1e-9)
            assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize(
    ("family", "n_obs", "is_normal"), [("gaussian", 4_000, True), ("bernoulli", 600, False)]
)
def test_posterior_is_almost_normal_with_many_rows_only(
    family: str, n_obs: int, is_normal: bool
) -> None:
    data = simulate_mixture(n_obs, 3, 2, family=family, random_seed=2)
    fit = fit_em(data.X, data.y, 2, family=family, priors="default", random_seed=1)
    mode = find_mode(mixture_glm(data.X, data.y, 2, family=family, init=fit))
    for seed in range(3):
        settled = mode.settled(np.random.default_rng(seed))
        assert (settled.is_normal and settled.is_settled) is is_normal
