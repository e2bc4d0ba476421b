"""Growth by splits, from one component to all of them."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.em.starts import fit_single, grow
from moment_init.likelihood.parameters import pack
from tests.likelihood_problems import BOTH, FAMILY_LINKS, make_problem
from tests.search_problems import RARE, draw_mixture, pose


def test_every_stage_raises_the_log_likelihood(seed: int) -> None:
    """Four components: a stage gains more than the parameters it adds, by the likelihood ratio."""
    problem = draw_mixture([seed, 1], 1000, 5, RARE).problem
    values = []
    for size in range(1, 5):
        grown = grow(replace(problem, n_components=size))
        assert grown.n_components == size
        values.append(problem.climb(grown, max_steps=0).log_likelihood)
    assert np.all(np.diff(values) > 7.0)  # five slopes, a bias and a deviation


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_all_families_grow(family: str, link: str, rng: np.random.Generator) -> None:
    problem = pose(make_problem(family, link, rng), 3)
    grown = grow(problem)
    assert grown.n_components == 3
    assert_allclose(grown.weights.sum(), 1.0)
    value = problem.climb(grown, max_steps=0).log_likelihood
    assert value > fit_single(problem).log_likelihood


def test_one_component_is_the_single_model(rng: np.random.Generator) -> None:
    problem = pose(make_problem("poisson", "log", rng), 1)
    assert_array_equal(pack(grow(problem)), pack(fit_single(problem).parameters))


def test_two_clear_components_are_found(rng: np.random.Generator) -> None:
    """The climb from the grown start ends where the climb from the truth does."""
    drawn = make_problem("gaussian", "identity", rng, n_obs=1000)
    problem = pose(drawn)
    best = problem.climb(problem.to_standardised(drawn.truth), max_steps=100)
    end = problem.climb(grow(problem), max_steps=100)
    assert_allclose(end.log_likelihood, best.log_likelihood, atol=2e-3)


def test_restrictions_hold_while_growing(rng: np.random.Generator) -> None:
    drawn = make_problem("gaussian", "identity", rng)
    problem = pose(drawn, shared=[1, "dispersion"], fixed_weights=[0.35, 0.65])
    user = problem.to_user(grow(problem))
    assert_allclose(user.coefficients[1, 0], user.coefficients[1, 1])
    assert user.dispersion is not None
    assert_allclose(user.dispersion[0], user.dispersion[1])
    assert_allclose(user.weights, [0.35, 0.65])


def test_held_directions(rng: np.random.Generator) -> None:
    """Components read one projection each once all of them are there."""
    drawn = make_problem("gaussian", "identity", rng)
    problem = pose(drawn, fixed_directions=drawn.truth.coefficients)
    coefficients = grow(problem).coefficients
    assert_allclose(coefficients, np.diag(np.diag(coefficients)), atol=1e-12)


def test_groups_and_gate(rng: np.random.Generator) -> None:
    problem = pose(make_problem("poisson", "log", rng, variant=BOTH))
    gate = grow(problem).gate
    assert gate is not None
    assert gate.shape == (2, 2)
    assert gate.any()
