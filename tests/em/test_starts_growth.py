"""Growth by splits, from one component to all of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.em.starts import GrowthOptions, fit_single, grow
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import MixtureParameters
from tests.likelihood_problems import BOTH, FAMILY_LINKS, make_problem
from tests.search_problems import RARE, draw_mixture, pose


def test_every_stage_raises_the_log_likelihood(seed: int) -> None:
    """Four components: a stage gains more than the parameters it adds, by the likelihood ratio."""
    problem = draw_mixture([seed, 1], 1000, 5, RARE).problem
    values = []
    for size in range(1, 5):
        beam = grow(replace(problem, n_components=size), GrowthOptions(beam=1))
        assert [run.parameters.n_components for run in beam] == [size]
        values.append(beam[0].log_likelihood)
    assert np.all(np.diff(values) > 7.0)  # five slopes, a bias and a deviation


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_all_families_grow(family: str, link: str, rng: np.random.Generator) -> None:
    problem = pose(make_problem(family, link, rng), 3)
    beam = grow(problem)
    assert 1 <= len(beam) <= GrowthOptions().beam
    values = [run.log_likelihood for run in beam]
    assert values == sorted(values, reverse=True)
    assert values[0] > fit_single(problem).log_likelihood
    for run in beam:
        assert run.parameters.n_components == 3
        assert_allclose(run.parameters.weights.sum(), 1.0)


def test_one_component_is_the_single_model(rng: np.random.Generator) -> None:
    problem = pose(make_problem("poisson", "log", rng), 1)
    (run,) = grow(problem)
    assert run.history == fit_single(problem).history


def test_two_clear_components_are_found(rng: np.random.Generator) -> None:
    """The climb from the grown start ends where the climb from the truth does."""
    drawn = make_problem("gaussian", "identity", rng, n_obs=1000)
    problem = pose(drawn)
    best = problem.climb(problem.to_standardised(drawn.truth), max_steps=100)
    end = problem.climb(grow(problem)[0].parameters, max_steps=100)
    assert_allclose(end.log_likelihood, best.log_likelihood, atol=2e-3)


def test_restrictions_hold_while_growing(rng: np.random.Generator) -> None:
    drawn = make_problem("gaussian", "identity", rng)
    problem = pose(drawn, shared=[1, "dispersion"], fixed_weights=[0.35, 0.65])
    for run in grow(problem):
        user = problem.to_user(run.parameters)
        assert_allclose(user.coefficients[1, 0], user.coefficients[1, 1])
        assert user.dispersion is not None
        assert_allclose(user.dispersion[0], user.dispersion[1])
        assert_allclose(user.weights, [0.35, 0.65])


def test_held_directions(rng: np.random.Generator) -> None:
    """Components read one projection each once all of them are there."""
    drawn = make_problem("gaussian", "identity", rng)
    problem = pose(drawn, fixed_directions=drawn.truth.coefficients)
    coefficients = grow(problem)[0].parameters.coefficients
    assert_allclose(coefficients, np.diag(np.diag(coefficients)), atol=1e-12)


def test_groups_and_gate(rng: np.random.Generator) -> None:
    problem = pose(make_problem("poisson", "log", rng, variant=BOTH))
    gate = grow(problem)[0].parameters.gate
    assert gate is not None
    assert gate.shape == (2, 2)
    assert gate.any()


def test_options_set_the_amount_of_work(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one component: 1 x n_splits heats, half of them races, beam settlings, and so on."""
    problem = pose(make_problem("poisson", "log", rng), 3)
    sizes: list[tuple[int, int]] = []

    def counted(family: Any, rows: Any, start: MixtureParameters, **options: Any) -> Any:
        sizes.append((start.n_components, options["max_steps"]))
        return maximise(family, rows, start, **options)

    monkeypatch.setattr("moment_init.em.problem.maximise", counted)
    options = GrowthOptions(beam=2, n_splits=2, short_steps=1, race_steps=4, finish_steps=5)
    beam = grow(problem, options)
    assert len(beam) == 2
    first = [(2, 1)] * 2 + [(2, 3)] * 2 + [(2, 5)] * 2
    assert sizes[1:] == first + [(3, 1)] * 4 + [(3, 3)] * 2 + [(3, 5)] * 2
