"""A search sees a sample of the units; what it finds is refined on all of them.

The maximum of a sample is near that of all units, and so is its curvature. A pass over the units
that sums the score alone costs a twentieth of one that sums the information too: quasi-Newton steps
from the sample's information, each with one such pass, replace most of Newton's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moment_init.checks import FloatArray
from moment_init.em.problem import EMProblem
from moment_init.em.runs import Portfolio, Start
from moment_init.families.base import Family
from moment_init.likelihood.climbing import MaximiseResult, free_step, rounding_of
from moment_init.likelihood.em_step import solve_information
from moment_init.likelihood.parameters import (
    LinearConstraint,
    MixtureParameters,
    bounds_of,
    enforce,
    move,
    pack,
)
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums

SEARCH_UNITS = 20_000
SEARCH_UNITS_PER_PARAMETER = 200
BINARY_UNITS_PER_PARAMETER = 600
"""A search sees up to so many units: wrong maxima are hundreds of units of log-likelihood apart
there, and the last climb uses all rows. A binary response says less about lengths: of three
logistic components in twenty dimensions one runs to infinite length on 300 units a parameter, even
from the truth, and none on 600."""

ENLARGEMENT = 4
"""By how much a sample grows whose maximum lies on a bound."""

MOST_PASSES = 60
"""Most passes of a refinement: twice what maxima of samples took, at the cost of three Newton
steps; the climb that follows goes on from wherever they end."""

CLOSE_GAIN = 1e-3
"""The refinement ends when a step is predicted to gain less than this share of the tolerance, so
that the climb that follows finds nothing left to gain."""

SMALLEST_CURVATURE = 0.2
"""Powell's damping: the curvature along a step is taken for at least this share of what it was, so
that the information stays positive definite where the likelihood is not concave."""

SMALLEST_SHARE = 1e-3
"""A step cut to less than this without a gain ends the refinement."""


def search_sample(problem: EMProblem, rng: np.random.Generator, enlargement: int = 1) -> EMProblem:
    """The problem on as many units as a search needs."""
    most = enlargement * search_units(problem.family, problem.rows.n_features, problem.n_components)
    n_units = problem.rows.n_units
    if n_units <= 2 * most:
        if problem.rows.source is None:
            return problem
        return problem.with_rows(problem.rows.take(np.arange(n_units)))
    chosen = np.sort(rng.choice(n_units, most, replace=False))
    return problem.with_rows(problem.rows.take(chosen))


def search_units(family: Family, n_features: int, n_components: int) -> int:
    """How many units a search sees where there are more than twice as many."""
    n_parameters = n_components * (n_features + 2 + family.has_dispersion)
    each = SEARCH_UNITS_PER_PARAMETER
    if family.has_binary_rows:
        each = max(each, BINARY_UNITS_PER_PARAMETER)
    return max(SEARCH_UNITS, each * n_parameters)


def enlarged(
    problem: EMProblem,
    portfolio: Portfolio,
    from_moments: Callable[[], list[Start]],
    rng: np.random.Generator,
) -> Portfolio:
    """Climb on ever larger samples while the best maximum lies on a bound.

    A sample that says too little about a component has its maximum on a bound, far from that of all
    units; moments, which are those of all units, are then the better start.
    """
    times = 1
    while portfolio.best is not None and portfolio.best.bounds:
        times *= ENLARGEMENT
        sample = search_sample(problem, rng, times)
        if sample.rows.n_units <= portfolio.problem.rows.n_units:
            break
        wider = Portfolio(sample.prepared())
        for origin, start in [*from_moments(), ("sample", portfolio.best.parameters)]:
            wider.attempt(origin, partial(Portfolio.finish, origin=origin, start=start))
        if wider.best is None:
            break
        portfolio = wider
    return portfolio


def refine(
    problem: EMProblem,
    searched: EMProblem,
    found: MaximiseResult,
    *,
    max_steps: int,
    tolerance: float,
) -> MaximiseResult:
    """Climb on all units from the maximum of a sample, with the sample's curvature at first."""
    near = _Approach.begin(problem, searched, found)
    while near.n_iter < min(max_steps, MOST_PASSES) and near.advance(tolerance):
        pass
    left = max_steps - near.n_iter
    end = problem.climb(near.parameters, max_steps=left, tolerance=tolerance, damping=0.0)
    # the last point of the approach is the first of this climb, evaluated again
    history = (*near.history[:-1], *end.history)
    return replace(end, history=history, n_iter=near.n_iter + end.n_iter)


@dataclass(slots=True)
class _Approach:
    """State of quasi-Newton steps: `sums` belong to `parameters`.

    The information, which steps correct (BFGS), is that of the directions that the
    constraint leaves free.
    """

    problem: EMProblem
    constraint: LinearConstraint | None
    parameters: MixtureParameters
    sums: LikelihoodSums
    information: FloatArray
    history: list[float]
    share: float = 1.0
    n_iter: int = 0

    @classmethod
    def begin(cls, problem: EMProblem, searched: EMProblem, found: MaximiseResult) -> "_Approach":
        """At the maximum of a sample, with its information for as many units as there are."""
        start = problem.admit(found.parameters)
        constraint = problem.constraint(start)
        seen = found.sums
        if seen.missing_information is None:
            seen = likelihood_sums(searched.family, searched.rows, found.parameters)
        basis = None if constraint is None else constraint.basis
        information = seen.information(free_step(seen, basis, 0.0)[1])
        if basis is not None:
            information = basis.T @ information @ basis
        information *= problem.rows.total_weight / searched.rows.total_weight
        sums = _sums_without_curvature(problem, start)
        return cls(problem, constraint, start, sums, information, [sums.log_likelihood])

    def advance(self, tolerance: float) -> bool:
        """Try one step; whether another is worth while."""
        score = self._free(self.sums.score)
        step = solve_information(self.information, score)
        if step is None:
            return False
        gain = 0.5 * float(score @ step)
        if gain < CLOSE_GAIN * tolerance:
            return False
        candidate = self._moved(self.share * self._lifted(step))
        there = _sums_without_curvature(self.problem, candidate)
        self.n_iter += 1
        taken = self._free(pack(candidate) - pack(self.parameters))
        self._correct(taken, score - self._free(there.score))
        if there.log_likelihood < self.sums.log_likelihood:
            self.share /= 3
            return gain > rounding_of(self.sums) and self.share >= SMALLEST_SHARE
        self.parameters, self.sums = candidate, there
        self.history.append(there.log_likelihood)
        self.share = min(1.0, 2 * self.share)
        return True

    def _correct(self, taken: FloatArray, fall: FloatArray) -> None:
        """BFGS, with Powell's damping: the information along a step that was tried is now known."""
        seen = self.information @ taken
        before, along = float(taken @ seen), float(taken @ fall)
        if not (before > 0.0 and np.isfinite(along)):
            return
        if along < SMALLEST_CURVATURE * before:
            part = (1 - SMALLEST_CURVATURE) * before / (before - along)
            fall = part * fall + (1 - part) * seen
            along = SMALLEST_CURVATURE * before
        self.information = (
            self.information - np.outer(seen, seen) / before + np.outer(fall, fall) / along
        )

    def _moved(self, step: FloatArray) -> MixtureParameters:
        """Where a step ends, inside the bounds and on the constraint."""
        problem = self.problem
        bounds = bounds_of(
            problem.family,
            min_weight=0.0 if problem.restrictions.weights is not None else problem.min_weight,
            min_dispersion_ratio=problem.min_dispersion_ratio,
        )
        inside = enforce(move(self.parameters, step), bounds)
        return (
            inside if self.constraint is None else self.constraint.project(inside, self.parameters)
        )

    def _free(self, vector: FloatArray) -> FloatArray:
        return vector if self.constraint is None else self.constraint.basis.T @ vector

    def _lifted(self, vector: FloatArray) -> FloatArray:
        return vector if self.constraint is None else self.constraint.basis @ vector


def _sums_without_curvature(problem: EMProblem, at: MixtureParameters) -> LikelihoodSums:
    return likelihood_sums(
        problem.family, problem.rows, at, curvature=False, constant=problem.constant
    )
