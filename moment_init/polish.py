"""The polish: from moment estimates to the maximum of the likelihood, at the price of a few passes.

The paper proposes EM in the few dimensions of the projected data. Candidates race there, on a
sample of rows; the winner is then finished in all dimensions, by Newton steps on few rows, or, on
many, by Le Cam's steps. On many rows there is no race if the first candidate is near an optimum.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family
from moment_init.le_cam import AllRows, Optimum, best_start, climb_on_many, curvature_rows
from moment_init.likelihood.bounds import active_bounds, bounds_of
from moment_init.likelihood.maximise import maximise
from moment_init.likelihood.parameters import MixtureParameters, parameter_count
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.solving import solve_information
from moment_init.likelihood.split_statistics import misfit
from moment_init.likelihood.splits import improve, propose_drops_and_splits
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    outer_product_information,
    parameter_free_log_likelihood,
)
from moment_init.problem import EstimationProblem

__all__ = ["PolishedFit", "all_rows", "polish"]

FloatArray = NDArray[np.float64]

# Rows on which candidates race: enough to tell wrong modes apart by hundreds of log-likelihood
# units, and in any case this many for each parameter.
SAMPLE_ROWS = 20_000
SAMPLE_ROWS_PER_PARAMETER = 100

# Multiplications of a Newton step in all dimensions, rows times parameters squared, beyond which a
# search by such steps takes minutes: Le Cam's few steps then follow the race at once.
HEAVY_STEP = 5e8

# The same for moves, which take hundreds of steps.
HEAVY_MOVE = 1e8

# Steps of a race, the first two by EM; what is not separated by then has nearly the same fit.
RACE_STEPS = 8
RACE_EM_STEPS = 2
FINISH_STEPS = 60

# Damping at the start of a finish: the start is near the optimum, so close to Newton.
FINISH_DAMPING = 0.1

# The first candidate is near an optimum of the sample if a step there promises no more than this
# for each parameter: one half is what sampling leaves, and moments may leave some times as much.
NEAR_GAIN_PER_PARAMETER = 8.0

# Information-matrix statistic, in units of the edge of its noise: right fits stay below about 1.3.
# Moves out of the optimum are tried a little before that where rows are few, since they are cheap
# then; above the larger limit they are tried always, and the status speaks.
MIN_MOVE_GAIN = 0.5  # less is within the tolerance of two runs towards the same maximum
MISFIT_THAT_MOVES = 1.2
LARGEST_MISFIT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class PolishedFit:
    """Parameters at (or within a standard error of) a maximum of the likelihood.

    Parameters
    ----------
    parameters : MixtureParameters
        Parameters in standardised coordinates.
    log_likelihood : float
        Log-likelihood of all rows, in the user's units of the response.
    information : numpy.ndarray, shape (n_parameters, n_parameters)
        Information of all rows, positive definite.
    misfit : float
        Information-matrix statistic over the edge of its noise: near one or below for a right fit.
    n_moves : int
        How many moves out of a local optimum were taken.
    bounds : tuple of str
        Bounds on which parameters lie; empty at an interior maximum.
    has_converged : bool
        Whether the last step promised less than the tolerance.
    """

    parameters: MixtureParameters
    log_likelihood: float
    information: FloatArray
    misfit: float
    n_moves: int
    bounds: tuple[str, ...]
    has_converged: bool


def polish(
    problem: EstimationProblem,
    candidates: tuple[MixtureParameters, ...],
    subspace: FloatArray,
    rng: np.random.Generator,
) -> PolishedFit:
    """Climb from the best of several candidates to the maximum of the likelihood.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, input model and coordinates.
    candidates : tuple of MixtureParameters
        Starts in standardised coordinates, best first.
    subspace : numpy.ndarray, shape (n_features, k)
        Orthonormal basis of the span of the directions.
    rng : numpy.random.Generator
        Draws the samples of rows.

    Returns
    -------
    PolishedFit
        The fit.

    Notes
    -----
    On up to twice the rows of the sample everything is exact. On more rows Le Cam's steps start at
    a candidate, if the sample finds the first near an optimum; else where the likelihood is
    largest: there, at the winner of the race or, if that is not near an optimum either, at the
    sample's optimum.
    """
    likelihood = all_rows(problem)
    family, n_obs = problem.data.family, problem.data.n_obs
    n_parameters = parameter_count(candidates[0])
    size = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_PARAMETER * n_parameters)
    is_whole = n_obs <= 2 * size
    is_heavy = (n_obs if is_whole else size) * n_parameters**2 > HEAVY_STEP
    if is_heavy:  # the race needs few rows, and what follows reads all of them
        is_whole, size = False, SAMPLE_ROWS
    if not is_whole:
        likelihood.hold_samples((size, curvature_rows(n_obs, n_parameters)), rng)
    rows = likelihood.sample(n_obs if is_whole else size, rng)

    def settle(start: MixtureParameters) -> Optimum:
        if is_whole:
            return _conclude(family, rows, start)
        return climb_on_many(likelihood, start, rows, rng)

    if is_whole:
        start = _race(family, rows, candidates, subspace)
    else:
        starts = _starts_on_many(family, rows, candidates, subspace, is_heavy=is_heavy)
        start = best_start(likelihood, starts, rows)
    end, n_moves = settle(start), 0
    statistic = misfit(family, rows, end.parameters)
    may_move = start.n_components > 1 and rows.n_obs * n_parameters**2 <= HEAVY_MOVE
    if may_move and statistic > (MISFIT_THAT_MOVES if is_whole else LARGEST_MISFIT):
        climb = partial(maximise, family, rows)
        propose = partial(propose_drops_and_splits, family, rows)
        here = climb(end.parameters, max_steps=0)
        moved, n_taken = improve(climb, propose, here, min_gain=MIN_MOVE_GAIN)
        there = settle(moved.parameters) if n_taken else end
        if there.log_likelihood > end.log_likelihood:  # a sample may gain where all rows lose
            end, n_moves = there, n_taken
            statistic = misfit(family, rows, end.parameters)
    scale = problem.coordinates.response_scale
    jacobian = likelihood.rows.total_weight * float(np.log(scale))
    active = active_bounds(end.parameters, bounds_of(family))
    return PolishedFit(
        parameters=end.parameters,
        log_likelihood=end.log_likelihood - jacobian,
        information=end.information,
        misfit=statistic,
        n_moves=n_moves,
        bounds=tuple(bound.label for bound in active),
        has_converged=end.has_converged,
    )


def all_rows(problem: EstimationProblem) -> AllRows:
    """The likelihood's rows; for the identity link the offset is in the response already.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, input model and coordinates.

    Returns
    -------
    AllRows
        The rows, with the way to standardised coordinates.
    """
    data = problem.data
    is_standardised = data.family.response_power
    rows = LikelihoodRows(
        Z=data.X,
        y=problem.response if is_standardised else data.y,
        sample_weight=data.sample_weight,
        offset=None if is_standardised else data.offset,
        n_trials=data.n_trials,
    )
    constant = parameter_free_log_likelihood(data.family, rows)
    coordinates = problem.coordinates
    return AllRows(data.family, rows, coordinates.mean, coordinates.factor, constant)


def _starts_on_many(
    family: Family,
    rows: LikelihoodRows,
    candidates: tuple[MixtureParameters, ...],
    subspace: FloatArray,
    *,
    is_heavy: bool,
) -> list[MixtureParameters]:
    """Where Le Cam's steps may start: at candidates that fit alike, or where a race leads."""
    first, *others = (
        likelihood_sums(family, rows, each, curvature=False, constant=0.0) for each in candidates
    )
    if not is_heavy and _is_near(family, rows, candidates[0], first):
        level = first.log_likelihood - parameter_count(candidates[0])
        pairs = zip(candidates[1:], others, strict=True)
        return [candidates[0], *(each for each, sums in pairs if sums.log_likelihood > level)]
    winner = _race(family, rows, candidates, subspace)
    if is_heavy or _is_near(family, rows, winner):
        return [candidates[0], winner]
    return [candidates[0], winner, _finish(family, rows, winner)]


def _is_near(
    family: Family,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    sums: LikelihoodSums | None = None,
) -> bool:
    """Whether parameters are near an optimum of the likelihood of some rows."""
    if sums is None:
        sums = likelihood_sums(family, rows, parameters, curvature=False, constant=0.0)
    step = solve_information(outer_product_information(family, rows, parameters), sums.score)
    limit = NEAR_GAIN_PER_PARAMETER * parameter_count(parameters)
    return step is not None and 0.5 * float(sums.score @ step) <= limit


def _race(
    family: Family,
    rows: LikelihoodRows,
    candidates: tuple[MixtureParameters, ...],
    subspace: FloatArray,
) -> MixtureParameters:
    """Short runs of all candidates in the projected rows, the best of them to its end."""
    projected = replace(rows, Z=np.ascontiguousarray(np.asarray(rows.Z) @ subspace))
    runs = [
        maximise(
            family,
            projected,
            replace(candidate, coefficients=subspace.T @ candidate.coefficients),
            max_steps=RACE_STEPS,
            em_steps=RACE_EM_STEPS,
        )
        for candidate in candidates
    ]
    leader = max(runs, key=lambda run: run.log_likelihood)
    if not leader.converged:
        leader = maximise(
            family, projected, leader.parameters, max_steps=FINISH_STEPS, damping=FINISH_DAMPING
        )
    return leader.parameters.lift(subspace)


def _finish(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> MixtureParameters:
    """Newton steps in all dimensions."""
    end = maximise(family, rows, parameters, max_steps=FINISH_STEPS, damping=FINISH_DAMPING)
    return end.parameters


def _conclude(family: Family, rows: LikelihoodRows, parameters: MixtureParameters) -> Optimum:
    """The optimum with its observed information, made positive where it is not."""
    end = maximise(family, rows, parameters, max_steps=FINISH_STEPS, damping=FINISH_DAMPING)
    information = end.information
    if solve_information(information, np.zeros(len(information))) is None:
        # Not an interior maximum, or too few rows for a difference of two large matrices.
        information = outer_product_information(family, rows, end.parameters)
    return Optimum(end.parameters, end.log_likelihood, information, end.converged)
