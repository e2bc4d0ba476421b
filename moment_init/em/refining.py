"""Search on a sample of the units, then refine the result on all of them.

The refinement begins with quasi-Newton steps, which sum only the score over all units and take the
curvature from the sample (see `moment_init.likelihood.many_rows`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from moment_init.checks import FloatArray
from moment_init.em.problem import EMProblem, parameters_per_response
from moment_init.em.runs import Portfolio, Start
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult, free_step, rounding_of
from moment_init.likelihood.many_rows import QuasiNewton
from moment_init.likelihood.parameters import MixtureParameters, bounds_of, enforce, move
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums

SEARCH_UNITS = 20_000
"""Smallest number of units in the sample for a search. In a sample of this size, the log-likelihood
of a wrong maximum is lower by hundreds. The last climb uses all rows."""

SEARCH_UNITS_PER_PARAMETER = 200
"""Smallest number of units per parameter in that sample."""

BINARY_UNITS_PER_PARAMETER = 600
"""The same for binary responses, which say less about lengths: of three logistic components in
twenty dimensions, one diverges with 300 units per parameter, even from the truth; none with 600."""

ENLARGEMENT = 4
"""Factor by which a sample is enlarged if its maximum lies on a bound."""

MOST_PASSES = 60
"""Maximum number of passes of a refinement: twice what maxima of samples needed, at the cost of
three Newton steps. The climb that follows continues from wherever they end."""

CLOSE_GAIN = 1e-3
"""The refinement ends when a step is predicted to gain less than this share of the tolerance, so
that nothing is left to gain for the climb that follows."""

SMALLEST_SHARE = 1e-3
"""The refinement ends when steps are cut below this share without a gain."""


def search_sample(problem: EMProblem, rng: np.random.Generator, enlargement: int = 1) -> EMProblem:
    """Return the problem on a sample of units that is large enough for a search."""
    most = enlargement * search_units(problem.family, problem.rows.n_features, problem.n_components)
    n_units = problem.rows.n_units
    if n_units <= 2 * most:
        if problem.rows.source is None:
            return problem
        return problem.with_rows(problem.rows.take(np.arange(n_units)))
    chosen = np.sort(rng.choice(n_units, most, replace=False))
    return problem.with_rows(problem.rows.take(chosen))


def search_units(family: AnyFamily, n_features: int, n_components: int) -> int:
    """Return the size of the sample for a search, used if there are over twice as many units."""
    n_parameters = n_components * (parameters_per_response(family, n_features) + 1)
    per_parameter = SEARCH_UNITS_PER_PARAMETER
    if family.has_binary_rows:
        per_parameter = max(per_parameter, BINARY_UNITS_PER_PARAMETER)
    return max(SEARCH_UNITS, per_parameter * n_parameters)


def enlarged(
    problem: EMProblem,
    portfolio: Portfolio,
    from_moments: Callable[[], list[Start]],
    rng: np.random.Generator,
) -> Portfolio:
    """Climb on larger and larger samples while the best maximum lies on a bound.

    If a sample says too little about a component, its maximum lies on a bound, far from that of all
    units. The moments, which use all units, are then the better start.
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
    sample_end: MaximiseResult,
    *,
    max_steps: int,
    tolerance: float,
) -> MaximiseResult:
    """Climb on all units from the maximum of a sample, at first with the sample's curvature."""
    near = _approach(problem, searched, sample_end)
    while near.n_iter < min(max_steps, MOST_PASSES):
        step = near.propose()
        if step is None or step.gain < CLOSE_GAIN * tolerance:
            break
        is_flat = step.gain <= rounding_of(near.sums)
        if not near.attempt(step) and (is_flat or near.share < SMALLEST_SHARE):
            break
    left = max_steps - near.n_iter
    end = problem.climb(near.parameters, max_steps=left, tolerance=tolerance, damping=0.0)
    # the climb starts by evaluating the last point of the approach again
    history = (*near.history[:-1], *end.history)
    return replace(end, history=history, n_iter=near.n_iter + end.n_iter)


def _approach(problem: EMProblem, searched: EMProblem, sample_end: MaximiseResult) -> QuasiNewton:
    """Begin at the maximum of a sample, with its information scaled to all units."""
    start = problem.admit(sample_end.parameters)
    constraint = problem.constraint(start)
    sample_sums = sample_end.sums
    if sample_sums.missing_information is None:
        sample_sums = likelihood_sums(searched.family, searched.rows, sample_end.parameters)
    basis = None if constraint is None else constraint.basis
    information = sample_sums.information(free_step(sample_sums, basis, 0.0)[1])
    if basis is not None:
        information = basis.T @ information @ basis
    information *= problem.rows.total_weight / searched.rows.total_weight
    bounds = bounds_of(
        problem.family,
        min_weight=0.0 if problem.restrictions.weights is not None else problem.min_weight,
        min_dispersion_ratio=problem.min_dispersion_ratio,
    )

    def evaluate(parameters: MixtureParameters) -> LikelihoodSums:
        return likelihood_sums(
            problem.family, problem.rows, parameters, curvature=False, constant=problem.constant
        )

    def moved(parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
        inside = enforce(move(parameters, step), bounds)
        return inside if constraint is None else constraint.project(inside, parameters)

    return QuasiNewton(evaluate, moved, start, information, basis)
