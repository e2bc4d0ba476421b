"""The polish: from a moment estimate to a maximum of the likelihood, in few passes over the rows.

Few rows are climbed by Newton steps, many by Le Cam's steps, which start at an optimum of a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moment_init.checks import FloatArray
from moment_init.data.blocks import sample_rows
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult, maximise
from moment_init.likelihood.em_step import solve_information
from moment_init.likelihood.many_rows import AllRows, Optimum, climb_on_many, curvature_rows
from moment_init.likelihood.parameters import (
    MixtureParameters,
    active_bounds,
    bounds_of,
    parameter_count,
)
from moment_init.likelihood.rows import LikelihoodRows, likelihood_rows
from moment_init.likelihood.splits import misfit
from moment_init.likelihood.sums import (
    likelihood_sums,
    outer_product_information,
    parameter_free_log_likelihood,
)
from moment_init.progress import passes_over
from moment_init.scores.choosing import EstimationProblem

# Rows of the sample: enough to separate wrong modes by hundreds of log-likelihood units, and at
# least this many per parameter. Up to twice as many are climbed as a whole.
SAMPLE_ROWS = 20_000
SAMPLE_ROWS_PER_PARAMETER = 100

# Cost of a Newton step in all dimensions, rows times squared parameters, above which a search by
# such steps takes minutes: Le Cam's few steps then start at the moment estimate.
HEAVY_STEP = 5e8

# Newton steps of the climb that follows.
FINISH_STEPS = 60

# Short climbs that decide between candidates, on this many rows or so many per parameter; of many
# rows on the sample. EM steps come first: far from an optimum they gain as much as Newton steps.
RACED_CANDIDATES = 3
RACE: dict[str, Any] = {"max_steps": 10, "em_steps": 4, "max_em_steps": 6, "damping": 0.1}
RACE_ROWS = 2_000
RACE_ROWS_PER_PARAMETER = 50

# Initial damping of a climb that begins near the optimum: steps are almost Newton steps.
FINISH_DAMPING = 0.1

# A start is near an optimum of the sample if one step predicts a gain of at most this per
# parameter. It is one half for the true parameters, and may be several times as much for moments.
NEAR_GAIN_PER_PARAMETER = 8.0

# Rows per parameter of a second climb if Le Cam's steps did not converge. The maximum may exist in
# the smaller sample only, for example because a component separates a few of its rows.
RESCUE_ROWS_PER_PARAMETER = 600


@dataclass(frozen=True, slots=True, eq=False)
class PolishedFit:
    """Parameters at (or within a standard error of) a maximum of the likelihood."""

    parameters: MixtureParameters  # in standardised coordinates
    log_likelihood: float  # of all rows, in the user's units of the response
    # information matrix of all rows, positive definite; (n_parameters, n_parameters)
    information: FloatArray
    # information-matrix statistic over the edge of its noise: at most about one for a correct fit
    misfit: float
    bounds: tuple[str, ...]  # bounds that were reached; empty at an interior maximum
    has_converged: bool  # whether the last step promised a gain below the tolerance


def polish(
    problem: EstimationProblem, candidates: Sequence[MixtureParameters], rng: np.random.Generator
) -> PolishedFit:
    """Climb from the most promising candidate to the maximum above it."""
    likelihood, family = all_rows(problem), problem.data.family
    constant = parameter_free_log_likelihood(family, likelihood.rows)
    likelihood = replace(likelihood, constant=constant)
    n_obs, n_parameters = problem.data.n_obs, parameter_count(candidates[0])
    size = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_PARAMETER * n_parameters)
    is_whole = n_obs <= 2 * size
    is_heavy = (n_obs if is_whole else size) * n_parameters**2 > HEAVY_STEP
    if is_heavy:
        is_whole, size = False, SAMPLE_ROWS
    if not is_whole:
        likelihood.hold_samples((size, curvature_rows(n_obs, n_parameters)), rng)
    rows = likelihood.sample(n_obs if is_whole else size, rng).prepared(family)
    raced = _race_rows(rows, n_parameters, rng) if is_whole or is_heavy else rows
    start = _promising(family, raced.prepared(family), candidates)
    jacobian = likelihood.rows.total_weight * float(np.log(problem.coordinates.response_scale))
    with passes_over(n_obs, jacobian):
        if is_whole:
            end = _conclude(family, rows, start, likelihood.constant)
        else:
            end = _on_many(likelihood, rows, start, rng)
    return PolishedFit(
        parameters=end.parameters,
        log_likelihood=end.log_likelihood - jacobian,
        information=end.information,
        misfit=misfit(family, rows, end.parameters),
        bounds=tuple(b.label for b in active_bounds(end.parameters, bounds_of(family))),
        has_converged=end.has_converged,
    )


def _race_rows(rows: LikelihoodRows, n_parameters: int, rng: np.random.Generator) -> LikelihoodRows:
    """Take the rows that decide between candidates."""
    size = max(RACE_ROWS, RACE_ROWS_PER_PARAMETER * n_parameters)
    return rows.take(sample_rows(rows.n_obs, size, rng)) if rows.n_obs > 2 * size else rows


def _promising(
    family: AnyFamily, rows: LikelihoodRows, candidates: Sequence[MixtureParameters]
) -> MixtureParameters:
    """Climb a few steps from the best candidates, unless it is heavy; return the highest end."""
    if len(candidates) == 1 or rows.n_obs * parameter_count(candidates[0]) ** 2 > HEAVY_STEP:
        return candidates[0]
    best = maximise(family, rows, candidates[0], **RACE)
    for each in candidates[1:RACED_CANDIDATES]:
        end = maximise(family, rows, each, **RACE, target=best.log_likelihood)
        best = max(best, end, key=lambda end: end.log_likelihood)
    return best.parameters


def all_rows(problem: EstimationProblem) -> AllRows:
    """Return the rows of the likelihood; responses of the identity link exclude the offset."""
    family = problem.data.family
    rows = problem.data.map(likelihood_rows, problem.units)
    coordinates = problem.coordinates
    return AllRows(family, rows, coordinates.mean, coordinates.factor)


def estimate_information(
    problem: EstimationProblem, parameters: MixtureParameters, rng: np.random.Generator
) -> FloatArray:
    """Estimate the information of all rows from a sample, (n_parameters, n_parameters)."""
    likelihood = all_rows(problem)
    size = curvature_rows(problem.data.n_obs, parameter_count(parameters))
    rows = likelihood.sample(size, rng)
    share = likelihood.rows.total_weight / rows.total_weight
    return share * outer_product_information(problem.data.family, rows, parameters)


def _on_many(
    likelihood: AllRows,
    rows: LikelihoodRows,
    start: MixtureParameters,
    rng: np.random.Generator,
) -> Optimum:
    """Climb all rows from a start near an optimum of a sample."""
    family, n_parameters = likelihood.family, parameter_count(start)
    is_light = rows.n_obs * n_parameters**2 <= HEAVY_STEP
    if is_light and not _is_near(family, rows, start):
        start = _finish(family, rows, start).parameters
    end = climb_on_many(likelihood, start, rows, rng)
    n_rows = min(RESCUE_ROWS_PER_PARAMETER * n_parameters, likelihood.rows.n_obs)
    if end.has_converged or n_rows * n_parameters**2 > HEAVY_STEP:
        return end
    more = rows if n_rows <= rows.n_obs else likelihood.sample(n_rows, rng)
    again = climb_on_many(likelihood, _finish(family, more, start).parameters, more, rng)
    return max(again, end, key=lambda each: each.log_likelihood)


def _is_near(family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters) -> bool:
    """Check whether parameters are near an optimum of the likelihood of some rows."""
    sums = likelihood_sums(family, rows, parameters, curvature=False, constant=0.0)
    step = solve_information(outer_product_information(family, rows, parameters), sums.score)
    limit = NEAR_GAIN_PER_PARAMETER * parameter_count(parameters)
    return step is not None and 0.5 * float(sums.score @ step) <= limit


def _finish(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters, constant: float = 0.0
) -> MaximiseResult:
    """Take Newton steps in all dimensions."""
    options: dict[str, Any] = {"max_steps": FINISH_STEPS, "damping": FINISH_DAMPING}
    return maximise(family, rows, parameters, **options, constant=constant)


def _conclude(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters, constant: float
) -> Optimum:
    """Climb to the optimum; return it with a positive definite information matrix."""
    end = _finish(family, rows, parameters, constant)
    information = end.information
    if solve_information(information, np.zeros(len(information))) is None:
        # Not an interior maximum, or too few rows to take a difference of two large matrices.
        information = outer_product_information(family, rows, end.parameters)
    return Optimum(end.parameters, end.log_likelihood, information, end.converged)
