"""The polish: from moment estimates to the maximum of the likelihood, at the price of a few passes.

The paper proposes EM in the few dimensions of the projected data. Candidates race there, on a
sample of rows; the winner is then finished in all dimensions, by Newton steps on few rows, or, on
many, by Le Cam's steps. On many rows there is no race if the first candidate is near an optimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moment_init.checks import FloatArray
from moment_init.families.base import Family
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.em_step import solve_information
from moment_init.likelihood.many_rows import (
    AllRows,
    Optimum,
    best_start,
    climb_on_many,
    curvature_rows,
)
from moment_init.likelihood.parameters import (
    MixtureParameters,
    active_bounds,
    bounds_of,
    parameter_count,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.splits import improve, misfit, propose_drops_and_splits
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    outer_product_information,
    parameter_free_log_likelihood,
)
from moment_init.scores.choosing import EstimationProblem

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

# Rows for each parameter on which a climb is tried again that Le Cam's steps did not finish: the
# sample's maximum may have been one of its own, a component that a few rows separate.
RESCUE_ROWS_PER_PARAMETER = 600

# Information-matrix statistic, in units of the edge of its noise: right fits stay below about 1.3.
# Moves out of the optimum are tried a little before that where rows are few, since they are cheap
# then; above the larger limit they are tried always, and the status speaks.
MIN_MOVE_GAIN = 0.5  # less is within the tolerance of two runs towards the same maximum
MISFIT_THAT_MOVES = 1.2
LARGEST_MISFIT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class PolishedFit:
    """Parameters at (or within a standard error of) a maximum of the likelihood."""

    parameters: MixtureParameters  # parameters in standardised coordinates
    log_likelihood: float  # log-likelihood of all rows, in the user's units of the response
    # information of all rows, positive definite; (n_parameters, n_parameters)
    information: FloatArray
    # information-matrix statistic over the edge of its noise: near one or below for a right fit
    misfit: float
    n_moves: int  # how many moves out of a local optimum were taken
    bounds: tuple[str, ...]  # bounds on which parameters lie; empty at an interior maximum
    has_converged: bool  # whether the last step promised less than the tolerance


def polish_best(
    problem: EstimationProblem,
    starts: Sequence[tuple[tuple[MixtureParameters, ...], FloatArray]],
    rng: np.random.Generator,
) -> tuple[int, PolishedFit]:
    """Climb from several sets of candidates; moves are tried from the highest end alone.

    On up to twice the rows of the sample everything is exact. On more rows Le Cam's steps start at
    a candidate if the sample finds the first near an optimum. Otherwise they start where the
    likelihood is largest: at that candidate, at the winner of the race or, if that is not near an
    optimum either, at the sample's optimum.
    """
    likelihood = all_rows(problem)
    n_obs, n_parameters = problem.data.n_obs, parameter_count(starts[0][0][0])
    size = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_PARAMETER * n_parameters)
    is_whole = n_obs <= 2 * size
    is_heavy = (n_obs if is_whole else size) * n_parameters**2 > HEAVY_STEP
    if is_heavy:  # the race needs few rows, and what follows reads all of them
        is_whole, size = False, SAMPLE_ROWS
    if not is_whole:
        likelihood.hold_samples((size, curvature_rows(n_obs, n_parameters)), rng)
    rows = likelihood.sample(n_obs if is_whole else size, rng)
    climb = _Climb(likelihood, rows, rng, is_whole=is_whole, is_heavy=is_heavy)
    which, end = climb.highest([climb.start(*each) for each in starts])
    end, statistic, n_moves = climb.move(end)
    scale = problem.coordinates.response_scale
    jacobian = likelihood.rows.total_weight * float(np.log(scale))
    active = active_bounds(end.parameters, bounds_of(problem.data.family))
    return which, PolishedFit(
        parameters=end.parameters,
        log_likelihood=end.log_likelihood - jacobian,
        information=end.information,
        misfit=statistic,
        n_moves=n_moves,
        bounds=tuple(bound.label for bound in active),
        has_converged=end.has_converged,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Climb:
    """Ways up, on all rows or first on a sample of them."""

    likelihood: AllRows  # all rows
    rows: LikelihoodRows  # all rows as well, or the sample on which candidates race
    rng: np.random.Generator  # draws further samples
    is_whole: bool  # whether `rows` are all
    is_heavy: bool  # whether Newton steps in all dimensions are too dear for a search

    @property
    def family(self) -> Family:
        return self.likelihood.family

    def start(
        self, candidates: tuple[MixtureParameters, ...], subspace: FloatArray
    ) -> MixtureParameters:
        """Where the climb on all rows begins."""
        if self.is_whole:
            return _race(self.family, self.rows, candidates, subspace)
        starts = _starts_on_many(
            self.family, self.rows, candidates, subspace, is_heavy=self.is_heavy
        )
        return best_start(self.likelihood, starts, self.rows)

    def highest(self, starts: Sequence[MixtureParameters]) -> tuple[int, Optimum]:
        """The start with the highest end, and that end.

        Ends on the way say little of the maxima above them: if the highest is one, those that did
        not converge are climbed again, the highest first, until one has no misfit and none above.
        """
        ends = [self.finish(start) for start in starts]
        pending = [each for each, end in enumerate(ends) if not end.has_converged]
        for which in sorted(pending, key=lambda each: -ends[each].log_likelihood):
            best = ends[_argmax(ends)]
            if best.has_converged and self.misfit(best) <= LARGEST_MISFIT:
                break
            ends[which] = self.rescue(starts[which], ends[which])
        return _argmax(ends), ends[_argmax(ends)]

    def misfit(self, end: Optimum) -> float:
        """Information-matrix statistic on the rows of the race."""
        return misfit(self.family, self.rows, end.parameters)

    def finish(self, start: MixtureParameters) -> Optimum:
        """The maximum above a start."""
        if self.is_whole:
            return _conclude(self.family, self.rows, start)
        return climb_on_many(self.likelihood, start, self.rows, self.rng)

    def rescue(self, start: MixtureParameters, end: Optimum) -> Optimum:
        """Climb again from a start from which Le Cam's steps ended on the way, by careful steps."""
        n_parameters = parameter_count(start)
        n_rows = min(RESCUE_ROWS_PER_PARAMETER * n_parameters, self.likelihood.rows.n_obs)
        if self.is_whole or n_rows * n_parameters**2 > HEAVY_STEP:
            return end
        is_enough = n_rows <= self.rows.n_obs
        rows = self.rows if is_enough else self.likelihood.sample(n_rows, self.rng)
        again = climb_on_many(self.likelihood, _finish(self.family, rows, start), rows, self.rng)
        return max(again, end, key=lambda each: each.log_likelihood)

    def move(self, end: Optimum) -> tuple[Optimum, float, int]:
        """Moves out of a local optimum if the misfit asks for them; with misfit and their number.

        Hundreds of steps: they are not tried where steps are dear.
        """
        family, rows = self.family, self.rows
        statistic = self.misfit(end)
        n_parameters = parameter_count(end.parameters)
        may_move = end.parameters.n_components > 1 and rows.n_obs * n_parameters**2 <= HEAVY_MOVE
        if not may_move or statistic <= (MISFIT_THAT_MOVES if self.is_whole else LARGEST_MISFIT):
            return end, statistic, 0
        climb = partial(maximise, family, rows)
        propose = partial(propose_drops_and_splits, family, rows)
        here = climb(end.parameters, max_steps=0)
        moved, n_taken = improve(climb, propose, here, min_gain=MIN_MOVE_GAIN)
        there = self.finish(moved.parameters) if n_taken else end
        if there.log_likelihood > end.log_likelihood:  # a sample may gain where all rows lose
            return there, self.misfit(there), n_taken
        return end, statistic, 0


def _argmax(ends: Sequence[Optimum]) -> int:
    return int(np.argmax([end.log_likelihood for end in ends]))


def all_rows(problem: EstimationProblem) -> AllRows:
    """The likelihood's rows; for the identity link the offset is in the response already."""
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
