"""The maximum of a mixture likelihood with groups and gates, and how a search ends."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.likelihood.climbing import Ending, maximise
from moment_init.likelihood.em_step import solve_information
from moment_init.likelihood.parameters import active_bounds, bounds_of, pack, parameter_count
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    ALL_LINKS,
    BOTH,
    GROUPS,
    VARIANTS,
    make_problem,
    nearby,
)

each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@each_kind
@each_variant
@pytest.mark.parametrize("max_em_steps", [0, 20])
def test_log_likelihood_never_falls(
    name: str, link: str, variant: str, max_em_steps: int, rng: np.random.Generator
) -> None:
    """From far away; the history has the start and no more entries than steps besides."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    result = maximise(
        problem.family,
        problem.rows,
        nearby(problem, rng, 0.8),
        max_steps=40,
        max_em_steps=max_em_steps,
        damping=0.3,
    )
    assert np.all(np.diff(result.history) >= 0)
    assert result.log_likelihood == result.history[-1] > result.history[0]
    assert 1 < len(result.history) <= result.n_iter + 1 <= 41


@each_kind
@each_variant
def test_reaches_a_stationary_point_above_the_truth(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, n_obs=2000, variant=VARIANTS[variant])
    family, rows = problem.family, problem.rows
    start = nearby(problem, rng, 0.1)
    result = maximise(family, rows, start, max_steps=200, max_em_steps=10, tolerance=1e-8)
    assert result.ending is Ending.CONVERGED
    assert result.converged
    assert active_bounds(result.parameters, bounds_of(family)) == []
    sums = likelihood_sums(family, rows, result.parameters)
    assert sums.log_likelihood > likelihood_sums(family, rows, problem.truth).log_likelihood
    assert_allclose(result.log_likelihood, sums.log_likelihood, rtol=1e-14)
    scale = np.abs(sums.complete_information).max()
    assert_allclose(result.information, sums.information(), atol=1e-12 * scale)
    newton = solve_information(sums.information(), sums.score)
    assert newton is not None
    assert 0 <= sums.score @ newton < 1e-6


@each_kind
@each_variant
def test_estimates_lie_within_their_standard_errors(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """2 (l(estimate) - l(truth)) is about chi-square with N degrees of freedom.

    Its mean is N and its deviation sqrt(2 N); six deviations are beyond 1e-6 for N of 9 to 13.
    """
    problem = make_problem(
        name, link, rng, n_obs=4000, with_extras=False, variant=VARIANTS[variant]
    )
    result = maximise(problem.family, problem.rows, problem.truth, max_steps=100)
    at_truth = likelihood_sums(problem.family, problem.rows, problem.truth, curvature=False)
    size = parameter_count(problem.truth)
    gain = 2 * (result.log_likelihood - at_truth.log_likelihood)
    assert 0 < gain < size + 6 * np.sqrt(2 * size)


@each_kind
@each_variant
def test_stored_inputs_give_the_same_fit(
    name: str,
    link: str,
    variant: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums differ in rounding only, and so do steps; two searches end within their tolerance.

    A gain below 1e-10 is less than 1.5e-5 standard errors away.
    """
    problem = make_problem(name, link, rng, n_obs=2000, variant=VARIANTS[variant])
    family, rows, start = problem.family, problem.rows, nearby(problem, rng, 0.05)
    stored = maximise(family, rows, start, max_steps=200, em_steps=3, tolerance=1e-10)
    monkeypatch.setattr("moment_init.likelihood.rows.MAX_STORED_DOUBLES", 0)
    assert rows.prepared(family).x is None
    formed = maximise(family, rows, start, max_steps=200, em_steps=3, tolerance=1e-10)
    assert_allclose(formed.log_likelihood, stored.log_likelihood, rtol=0, atol=1e-8)
    difference = pack(formed.parameters) - pack(stored.parameters)
    assert difference @ stored.information @ difference < 1e-8


def test_groups_add_information(rng: np.random.Generator) -> None:
    """Rows that are known to share a component tell more about it than rows that are not."""
    problem = make_problem("bernoulli", "logit", rng, n_obs=4000, with_extras=False, variant=GROUPS)
    alone = replace(problem.rows, group_starts=None)
    grouped = likelihood_sums(problem.family, problem.rows, problem.truth).information()
    single = likelihood_sums(problem.family, alone, problem.truth).information()
    weights = slice(0, -1)  # the logit is informed by units, of which groups are fewer
    values = np.linalg.eigvalsh(grouped[weights, weights] - single[weights, weights])
    assert values.sum() > 0


# --- endings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_step_evaluates_the_start(variant: str, rng: np.random.Generator) -> None:
    problem = make_problem("gamma", "log", rng, variant=VARIANTS[variant])
    result = maximise(problem.family, problem.rows, problem.truth, max_steps=0, em_steps=5)
    assert result.n_iter == 0
    assert result.ending is Ending.OUT_OF_STEPS
    assert not result.converged
    sums = likelihood_sums(problem.family, problem.rows, problem.truth)
    assert_allclose(result.history, [sums.log_likelihood], rtol=1e-13)
    assert_allclose(pack(result.parameters), pack(problem.truth), rtol=1e-13)
    scale = np.abs(sums.complete_information).max()
    assert_allclose(result.information, sums.information(), atol=1e-12 * scale)


def test_out_of_steps(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, variant=BOTH)
    start = nearby(problem, rng, 0.5)
    newton = maximise(problem.family, problem.rows, start, max_steps=2, tolerance=1e-12)
    em = maximise(problem.family, problem.rows, start, max_steps=2, em_steps=2)
    for result in (newton, em):
        assert result.ending is Ending.OUT_OF_STEPS
        assert result.n_iter == 2


def test_endings_are_words() -> None:
    assert [str(ending) for ending in Ending] == [
        "converged",
        "out_of_steps",
        "stalled",
        "abandoned",
        "recognised",
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_target_out_of_reach_abandons(variant: str, rng: np.random.Generator) -> None:
    """Given up before the end, and only then: a target that is met changes nothing."""
    problem = make_problem("gaussian", "identity", rng, n_obs=1000, variant=VARIANTS[variant])
    climb = partial(
        maximise,
        problem.family,
        problem.rows,
        nearby(problem, rng, 0.1),
        max_steps=100,
        em_steps=3,
        max_em_steps=50,
        tolerance=1e-8,
    )
    whole = climb()
    assert whole.ending is Ending.CONVERGED
    hopeless = climb(target=whole.log_likelihood + 1e4)
    assert hopeless.ending is Ending.ABANDONED
    assert not hopeless.converged
    assert hopeless.n_iter < whole.n_iter
    assert hopeless.log_likelihood <= whole.log_likelihood
    met = climb(target=whole.log_likelihood - 1)
    assert met.ending is Ending.CONVERGED
    assert_array_equal(met.history, whole.history)


def test_stationary_start_converges_at_once(rng: np.random.Generator) -> None:
    """A Newton step from the maximum promises nothing, and is not tried."""
    problem = make_problem("negative_binomial", "log", rng, n_obs=1500, variant=BOTH)
    best = maximise(problem.family, problem.rows, problem.truth, max_steps=200, tolerance=1e-9)
    again = maximise(problem.family, problem.rows, best.parameters, damping=0.0)
    assert again.ending is Ending.CONVERGED
    assert again.n_iter == 0
    assert again.log_likelihood >= best.log_likelihood


def test_em_goes_on_only_while_it_is_fast(rng: np.random.Generator) -> None:
    """At the maximum EM gains nothing but rounding: a few steps, each cut at most seven times."""
    problem = make_problem("poisson", "log", rng, n_obs=1500)
    best = maximise(problem.family, problem.rows, problem.truth, max_steps=200, tolerance=1e-10)
    at_once = maximise(
        problem.family, problem.rows, best.parameters, max_steps=60, max_em_steps=50, damping=0.0
    )
    assert at_once.n_iter < 30
    assert at_once.converged
    away = nearby(problem, rng, 0.8)
    few = maximise(problem.family, problem.rows, away, max_steps=2, em_steps=1)
    many = maximise(problem.family, problem.rows, away, max_steps=60, max_em_steps=50)
    assert many.converged
    assert many.log_likelihood >= few.log_likelihood
