"""Starts from a few rows for each component."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.em import starts
from moment_init.em.problem import EMProblem
from moment_init.em.starts import N_KEPT, SUBSET_ROWS, fit_single, race_subsets
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.rows import LikelihoodRows
from tests.likelihood_problems import BOTH, FAMILY_LINKS, GROUPS, make_problem
from tests.search_problems import draw_mixture, pose


def race(problem: EMProblem, seed: int = 1) -> list[MaximiseResult]:
    single = fit_single(problem).parameters
    return race_subsets(problem, single, np.random.default_rng(seed))


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_the_best_come_first(family: str, link: str, rng: np.random.Generator) -> None:
    runs = race(pose(make_problem(family, link, rng, n_obs=200), 3))
    values = [run.log_likelihood for run in runs]
    assert len(values) == N_KEPT
    assert np.all(np.isfinite(values))
    assert values == sorted(values, reverse=True)
    assert all(run.parameters.n_components == 3 for run in runs)


def test_same_seed_same_bits(rng: np.random.Generator) -> None:
    problem = pose(make_problem("gaussian", "identity", rng, n_obs=200))
    first, again, other = race(problem), race(problem), race(problem, seed=2)
    assert [run.history for run in first] == [run.history for run in again]
    assert [run.history for run in first] != [run.history for run in other]


def test_lines_are_found_from_few_rows(seed: int) -> None:
    """Three lines in a plane: the best of twenty starts is at the maximum after a climb.

    Two rows make a line. A start has all three lines right with probability 3! (.5 x .3 x .2)^2 =
    .005 only, but EM needs much less than that.
    """
    posed = draw_mixture([seed, 3], 500, 1, (0.5, 0.3, 0.2), coefficient_sd=2.0, bias_sd=1.0)
    best = posed.problem.climb(posed.truth, max_steps=200)
    ends = [
        posed.problem.climb(run.parameters, max_steps=200).log_likelihood
        for run in race(posed.problem)
    ]
    assert max(ends) > best.log_likelihood - 0.1


def test_races_are_run_on_a_sample(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-likelihoods of a race are those of its rows, whole groups of them."""
    drawn = make_problem("gaussian", "identity", rng, n_obs=3000, variant=GROUPS)
    problem = pose(drawn)
    assert problem.rows.n_units > SUBSET_ROWS
    seen: list[int] = []

    def watched(self: EMProblem, rows: LikelihoodRows) -> EMProblem:
        seen.append(rows.n_units)
        return with_rows(self, rows)

    with_rows = EMProblem.with_rows
    monkeypatch.setattr(EMProblem, "with_rows", watched)
    run = race(problem)[0]
    assert seen == [SUBSET_ROWS]
    assert_allclose(run.sums.unit_counts.sum(), SUBSET_ROWS)


def test_a_component_starts_on_its_own_rows(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any step of the race each plane goes through four rows, with the single deviation."""
    problem = pose(make_problem("gaussian", "identity", rng, n_obs=100, with_extras=False))
    monkeypatch.setattr(starts, "SHORT_STEPS", 0)
    monkeypatch.setattr(starts, "SUBSET_STEPS", 0)
    single = fit_single(problem).parameters
    assert single.dispersion is not None
    for run in race_subsets(problem, single, rng):
        start = run.parameters
        residuals = problem.rows.y[:, None] - np.asarray(problem.rows.Z) @ start.coefficients
        residuals -= start.biases
        assert np.all(np.count_nonzero(np.abs(residuals) < 1e-6, axis=0) >= 4)
        assert_array_equal(start.dispersion, np.repeat(single.dispersion, 2))
        assert_allclose(start.weights, 0.5)


def test_restrictions_groups_and_gate(rng: np.random.Generator) -> None:
    held = pose(make_problem("gaussian", "identity", rng), shared=[2], fixed_weights=[0.4, 0.6])
    for run in race(held):
        user = held.to_user(run.parameters)
        assert_allclose(user.coefficients[2, 0], user.coefficients[2, 1])
        assert_allclose(user.weights, [0.4, 0.6])
    gated = race(pose(make_problem("poisson", "log", rng, variant=BOTH)))[0].parameters
    assert gated.gate is not None
    assert gated.gate.shape == (2, 2)


def test_one_component(rng: np.random.Generator) -> None:
    problem = pose(make_problem("poisson", "log", rng), 1)
    single = fit_single(problem)
    assert_allclose(race(problem)[0].log_likelihood, single.log_likelihood, atol=1e-3)
