"""Maxima that are known: climbs that lead to one end early, all others are left alone."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.likelihood.climbing import (
    Ending,
    KnownMaximum,
    _reordered,
    known_ahead,
    maximise,
)
from moment_init.likelihood.parameters import MixtureParameters, pack
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import FAMILY_LINKS, VARIANTS, make_problem, nearby

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@each_variant
def test_score_of_a_reordered_mixture(variant: str, rng: np.random.Generator) -> None:
    """The same as the score that is summed at the reordered parameters."""
    problem = make_problem("gaussian", "identity", rng, variant=VARIANTS[variant])
    at = nearby(problem, rng, 0.3)
    order = np.roll(np.arange(at.n_components), 1)
    here = likelihood_sums(problem.family, problem.rows, at).score
    there = likelihood_sums(problem.family, problem.rows, at.reorder(order)).score
    reordered = _reordered(here, at, order, is_score=True)
    assert_allclose(reordered, there, atol=1e-8 * np.abs(there).max())
    vector = _reordered(pack(at), at, order, is_score=False)
    assert_allclose(vector, pack(at.reorder(order)), atol=1e-12)


@each_family
def test_climb_ends_before_a_known_maximum(name: str, link: str, rng: np.random.Generator) -> None:
    """Components in another order; a climb that is followed to its end is at that maximum."""
    problem = make_problem(name, link, rng, n_obs=1500)
    climb = partial(
        maximise, problem.family, problem.rows, max_steps=200, max_em_steps=30, tolerance=1e-8
    )
    best = climb(problem.truth)
    known = KnownMaximum.of(best.parameters, best.sums)
    assert known is not None
    start = nearby(problem, rng, 0.05).reorder(np.arange(problem.truth.n_components)[::-1])
    whole, short = climb(start), climb(start, known=[known])
    assert_allclose(whole.log_likelihood, best.log_likelihood, atol=1e-6)
    assert short.ending is Ending.RECOGNISED
    assert short.recognised is known
    assert not short.converged
    assert short.n_iter < whole.n_iter
    assert short.history == whole.history[: len(short.history)]


def test_other_maxima_are_not_recognised(rng: np.random.Generator) -> None:
    """At a stationary point a Newton step leaves all of the distance to any other point."""
    problem = make_problem("gaussian", "identity", rng, n_obs=1000)
    best = maximise(problem.family, problem.rows, problem.truth, max_steps=200, tolerance=1e-10)
    known = KnownMaximum.of(best.parameters, best.sums)
    assert known is not None
    vector = pack(best.parameters)
    moved = replace(
        best.parameters, coefficients=best.parameters.coefficients + 5.0 / np.sqrt(len(vector))
    )
    elsewhere = KnownMaximum.of(moved, best.sums)
    assert elsewhere is not None
    assert known_ahead([known], best.parameters, best.sums) is known
    assert known_ahead([elsewhere], best.parameters, best.sums) is None
    far_below = replace(best.sums, log_likelihood=best.log_likelihood - 1000.0)
    assert known_ahead([known], best.parameters, far_below) is None
    above = replace(best.sums, log_likelihood=best.log_likelihood + 0.1)
    assert known_ahead([known], best.parameters, above) is None


def test_maximum_needs_a_curvature(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    at: MixtureParameters = problem.truth
    lean = likelihood_sums(problem.family, problem.rows, at, missing=False)
    assert KnownMaximum.of(at, lean) is None
    sums = likelihood_sums(problem.family, problem.rows, at)
    saddle = replace(sums, component_information=-np.asarray(sums.component_information))
    assert KnownMaximum.of(at, saddle) is None
    best = maximise(problem.family, problem.rows, at, max_steps=200)
    known = KnownMaximum.of(best.parameters, best.sums)
    assert known is not None
    single = at.reorder(np.array([0]))
    assert known_ahead([known], single, replace(sums, score=sums.score[:3])) is None
