"""From the maximum of a sample to that of all units."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.em import search as searching
from moment_init.em.problem import EMProblem
from moment_init.em.runs import Runs
from moment_init.em.search import enlarged, refine, search_sample
from moment_init.likelihood.climbing import Ending, MaximiseResult
from moment_init.likelihood.em_step import solve_information
from moment_init.likelihood.parameters import MixtureParameters
from tests.em_fits import Fitted, make_fit
from tests.likelihood_problems import VARIANTS, Variant

TOLERANCE = 1e-6

each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))


def _sampled(fitted: Fitted, n_units: int) -> tuple[EMProblem, MaximiseResult]:
    """Every so-manieth unit, and the maximum there that is nearest to that of all."""
    chosen = np.arange(0, fitted.problem.rows.n_units, fitted.problem.rows.n_units // n_units)
    sample = fitted.problem.with_rows(fitted.problem.rows.take(chosen))
    return sample, sample.climb(fitted.end.parameters, max_steps=100)


def _gain_left(problem: EMProblem, end: MaximiseResult) -> float:
    """Half score' step: what a Newton step would still gain."""
    information, score = end.information, end.sums.score
    constraint = problem.constraint(end.parameters)
    if constraint is not None:
        basis = constraint.basis
        information, score = basis.T @ information @ basis, basis.T @ score
    step = solve_information(information, score)
    assert step is not None
    return 0.5 * float(score @ step)


@each_variant
@pytest.mark.parametrize(("family", "link"), [("gaussian", "identity"), ("poisson", "log")])
def test_ends_at_the_maximum_of_all_units(
    family: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    fitted = make_fit(family, link, rng, variant=variant, n_obs=4000)
    sample, found = _sampled(fitted, 400)
    end = refine(fitted.problem, sample, found, max_steps=200, tolerance=TOLERANCE)
    assert end.converged
    assert np.all(np.diff(end.history) >= 0.0)
    assert end.history[-1] == end.log_likelihood
    assert 0.0 <= _gain_left(fitted.problem, end) < TOLERANCE
    # both ends are within the tolerance of one maximum
    best = fitted.problem.climb(fitted.end.parameters, max_steps=100, tolerance=TOLERANCE)
    assert_allclose(end.log_likelihood, best.log_likelihood, rtol=0, atol=2 * TOLERANCE)


def test_restrictions_hold_all_the_way(rng: np.random.Generator) -> None:
    fitted = make_fit("gaussian", "identity", rng, n_obs=4000, shared=["age", "dispersion"])
    sample, found = _sampled(fitted, 400)
    end = refine(fitted.problem, sample, found, max_steps=200, tolerance=TOLERANCE)
    assert end.converged
    assert 0.0 <= _gain_left(fitted.problem, end) < TOLERANCE
    user = fitted.problem.to_user(end.parameters)
    assert user.dispersion is not None
    assert_allclose(user.coefficients[0, 0], user.coefficients[0, 1], rtol=1e-8)
    assert_allclose(user.dispersion[0], user.dispersion[1], rtol=1e-8)


def test_one_or_two_passes_sum_the_information(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quasi-Newton steps leave nothing to gain: Newton's first sums say so.

    A second is needed where the sample's information misjudges what is left.
    """
    fitted = make_fit("bernoulli", "logit", rng, n_obs=20_000, with_extras=False)
    sample, found = _sampled(fitted, 4000)
    module: Any = import_module("moment_init.likelihood.climbing")
    passes, sums = [], module.likelihood_sums

    def counted(*arguments: Any, **options: Any) -> Any:
        passes.append(options["missing"])
        return sums(*arguments, **options)

    monkeypatch.setattr(module, "likelihood_sums", counted)
    end = refine(fitted.problem, sample, found, max_steps=200, tolerance=TOLERANCE)
    assert end.converged
    assert 1 <= len(passes) <= 2


@pytest.mark.parametrize("max_steps", [0, 1, 3])
def test_steps_of_both_kinds_are_limited(max_steps: int, rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, n_obs=4000)
    sample, found = _sampled(fitted, 100)
    end = refine(fitted.problem, sample, found, max_steps=max_steps, tolerance=TOLERANCE)
    assert end.n_iter == max_steps
    assert end.ending is Ending.OUT_OF_STEPS
    assert np.all(np.diff(end.history) >= 0.0)


def test_a_poor_curvature_leads_to_the_maximum_all_the_same(rng: np.random.Generator) -> None:
    """Fifteen rows a parameter, and the start is where they were evaluated, not their maximum."""
    fitted = make_fit("poisson", "log", rng, n_obs=4000, with_extras=False)
    chosen = np.arange(0, 4000, 30)
    sample = fitted.problem.with_rows(fitted.problem.rows.take(chosen))
    at = sample.climb(fitted.end.parameters, max_steps=2, em_steps=2)
    assert at.sums.missing_information is None
    end = refine(fitted.problem, sample, at, max_steps=200, tolerance=TOLERANCE)
    assert end.converged
    assert end.log_likelihood >= fitted.problem.climb(at.parameters, max_steps=0).log_likelihood
    assert 0.0 <= _gain_left(fitted.problem, end) < TOLERANCE


def test_binary_responses_are_searched_on_more_units(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two components of three slopes, a bias, a weight (and a deviation): 10 or 12 parameters."""
    monkeypatch.setattr(searching, "SEARCH_UNITS", 100)
    monkeypatch.setattr(searching, "SEARCH_UNITS_PER_PARAMETER", 20)
    monkeypatch.setattr(searching, "BINARY_UNITS_PER_PARAMETER", 60)
    for family, link, expected in (("bernoulli", "logit", 600), ("gaussian", "identity", 240)):
        problem = make_fit(family, link, rng, n_obs=3000, with_extras=False).problem
        assert search_sample(problem, rng).rows.n_units == expected
        assert search_sample(problem, rng, 2).rows.n_units == 2 * expected
        assert search_sample(problem, rng, 100) is problem


def _one_run(problem: EMProblem, start: MixtureParameters) -> Runs:
    runs = Runs(problem)
    runs.finish("growth", start)
    return runs


def test_a_sample_that_ends_on_a_bound_is_enlarged(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two logistic components all but separate forty rows in three dimensions.

    A run along a likelihood that flattens may end just short of the bound: it is set on it here.
    """
    monkeypatch.setattr(searching, "SEARCH_UNITS", 40)
    monkeypatch.setattr(searching, "BINARY_UNITS_PER_PARAMETER", 1)
    monkeypatch.setattr(searching, "SEARCH_UNITS_PER_PARAMETER", 1)
    fitted = make_fit("bernoulli", "logit", rng, n_obs=8000, with_extras=False)
    small = search_sample(fitted.problem, rng)
    before = _one_run(small, fitted.end.parameters)
    assert small.rows.n_units == 40
    assert before.best is not None
    before.ranked[0].run = replace(before.best, bounds=("length of component 0",))
    after = enlarged(fitted.problem, before, lambda: [("tensor 1", fitted.end.parameters)], rng)
    assert after.best is not None
    assert after.best.bounds == ()
    assert after.problem.rows.n_units in (160, 640, 2560, 8000)
    assert [record.origin for record in after.records][1:3] == ["tensor 1", "sample"]
    end = refine(fitted.problem, after.problem, after.best, max_steps=200, tolerance=TOLERANCE)
    assert_allclose(end.log_likelihood, fitted.end.log_likelihood, rtol=0, atol=1e-3)


def test_a_sample_inside_the_bounds_is_kept(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, n_obs=2000)
    found = _one_run(_sampled(fitted, 500)[0], fitted.end.parameters)
    assert enlarged(fitted.problem, found, list, rng) is found


def test_a_bound_on_all_units_ends_the_enlarging(rng: np.random.Generator) -> None:
    """There are no more units to take."""
    fitted = make_fit("bernoulli", "logit", rng, n_obs=600, with_extras=False)
    found = Runs(fitted.problem)
    found.unfinished = replace(fitted.end, bounds=("length of component 0",))
    assert enlarged(fitted.problem, found, list, rng) is found
