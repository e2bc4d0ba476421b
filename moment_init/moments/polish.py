"""The polish: from moment estimates to a maximum of the likelihood, in few passes over the rows.

The paper proposes EM in the low dimension of the projected data. There all candidates take a few
steps on a sample of rows (the race), and the best one is run to its end. It is then continued in
all dimensions: by Newton steps on few rows, or by Le Cam's steps on many. On many rows the race is
skipped if the first candidate is near an optimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moment_init.checks import FloatArray
from moment_init.families.several import AnyFamily
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

# Rows of the race: enough to separate wrong modes by hundreds of log-likelihood units, and at least
# this many per parameter.
SAMPLE_ROWS = 20_000
SAMPLE_ROWS_PER_PARAMETER = 100

# Cost of a Newton step in all dimensions, rows times squared parameters, above which a search by
# such steps takes minutes: Le Cam's few steps then follow the race directly.
HEAVY_STEP = 5e8

# The same limit for moves, which take hundreds of steps.
HEAVY_MOVE = 1e8

# Steps of the race, the first two by EM: candidates that still tie then fit almost equally well.
RACE_STEPS = 8
RACE_EM_STEPS = 2
FINISH_STEPS = 60

# Initial damping of the last climb, which begins near the optimum: steps are almost Newton steps.
FINISH_DAMPING = 0.1

# A candidate is near an optimum of the sample if one step predicts a gain of at most this per
# parameter. It is one half for the true parameters, and may be several times as much for moments.
NEAR_GAIN_PER_PARAMETER = 8.0

# Rows per parameter of a second climb if Le Cam's steps did not converge. The maximum may exist in
# the smaller sample only, for example because a component separates a few of its rows.
RESCUE_ROWS_PER_PARAMETER = 600

# Information-matrix statistic, in units of the edge of its noise: correct fits stay below some 1.3.
# With few rows, moves out of the optimum are cheap and tried above the smaller limit; with many,
# above the larger one, where the status reports a misfit.
MIN_MOVE_GAIN = 0.5  # two runs to the same maximum may differ by less
MISFIT_THAT_MOVES = 1.2
LARGEST_MISFIT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class PolishedFit:
    """Parameters at (or within a standard error of) a maximum of the likelihood."""

    parameters: MixtureParameters  # in standardised coordinates
    log_likelihood: float  # of all rows, in the user's units of the response
    # information matrix of all rows, positive definite; (n_parameters, n_parameters)
    information: FloatArray
    # information-matrix statistic over the edge of its noise: at most about one for a correct fit
    misfit: float
    n_moves: int  # number of moves out of a local optimum
    bounds: tuple[str, ...]  # bounds that were reached; empty at an interior maximum
    has_converged: bool  # whether the last step promised a gain below the tolerance


def polish_best(
    problem: EstimationProblem,
    starts: Sequence[tuple[tuple[MixtureParameters, ...], FloatArray]],
    rng: np.random.Generator,
) -> tuple[int, PolishedFit]:
    """Climb from several sets of candidates, and try moves from the highest end only.

    Up to twice the rows of the sample, all rows are used throughout. With more rows, Le Cam's steps
    start at a candidate if the first is near an optimum of the sample. Otherwise they start where
    the likelihood is largest: at the first candidate, at the winner of the race or, if that is not
    near an optimum either, at the optimum of the sample.
    """
    likelihood = all_rows(problem)
    n_obs, n_parameters = problem.data.n_obs, parameter_count(starts[0][0][0])
    size = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_PARAMETER * n_parameters)
    is_whole = n_obs <= 2 * size
    is_heavy = (n_obs if is_whole else size) * n_parameters**2 > HEAVY_STEP
    if is_heavy:  # the race needs few rows; the steps after it read all of them
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
    """Climbs of the likelihood, on all rows or first on a sample of them."""

    likelihood: AllRows
    rows: LikelihoodRows  # the rows of the race: all rows or a sample of them
    rng: np.random.Generator  # draws further samples
    is_whole: bool  # whether `rows` are all rows
    is_heavy: bool  # whether Newton steps in all dimensions are too expensive for a search

    @property
    def family(self) -> AnyFamily:
        return self.likelihood.family

    def start(
        self, candidates: tuple[MixtureParameters, ...], subspace: FloatArray
    ) -> MixtureParameters:
        """Choose where the climb on all rows begins."""
        if self.is_whole:
            return _race(self.family, self.rows, candidates, subspace)
        starts = _starts_on_many(
            self.family, self.rows, candidates, subspace, is_heavy=self.is_heavy
        )
        return best_start(self.likelihood, starts, self.rows)

    def highest(self, starts: Sequence[MixtureParameters]) -> tuple[int, Optimum]:
        """Return the start with the highest end, and that end.

        An end that did not converge says little about the maximum above it. Such ends are climbed
        again, the highest first, until the highest of all has converged and shows no misfit.
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
        """Compute the information-matrix statistic on the rows of the race."""
        return misfit(self.family, self.rows, end.parameters)

    def finish(self, start: MixtureParameters) -> Optimum:
        """Climb from a start to the maximum above it."""
        if self.is_whole:
            return _conclude(self.family, self.rows, start)
        return climb_on_many(self.likelihood, start, self.rows, self.rng)

    def rescue(self, start: MixtureParameters, end: Optimum) -> Optimum:
        """Climb again, by damped Newton steps, where Le Cam's steps did not converge."""
        n_parameters = parameter_count(start)
        n_rows = min(RESCUE_ROWS_PER_PARAMETER * n_parameters, self.likelihood.rows.n_obs)
        if self.is_whole or n_rows * n_parameters**2 > HEAVY_STEP:
            return end
        is_enough = n_rows <= self.rows.n_obs
        rows = self.rows if is_enough else self.likelihood.sample(n_rows, self.rng)
        again = climb_on_many(self.likelihood, _finish(self.family, rows, start), rows, self.rng)
        return max(again, end, key=lambda each: each.log_likelihood)

    def move(self, end: Optimum) -> tuple[Optimum, float, int]:
        """Try moves out of a local optimum if the misfit is large; return misfit and number too.

        Moves take hundreds of steps and are not tried where steps are expensive.
        """
        family, rows = self.family, self.rows
        statistic = self.misfit(end)
        n_parameters = parameter_count(end.parameters)
        may_move = end.parameters.n_components > 1 and rows.n_obs * n_parameters**2 <= HEAVY_MOVE
        if not may_move or statistic <= (MISFIT_THAT_MOVES if self.is_whole else LARGEST_MISFIT):
            return end, statistic, 0
        climb = partial(maximise, family, rows)
        propose = partial(propose_drops_and_splits, family, rows)
        origin = climb(end.parameters, max_steps=0)
        moved, n_taken = improve(climb, propose, origin, min_gain=MIN_MOVE_GAIN)
        new_end = self.finish(moved.parameters) if n_taken else end
        # A move may raise the likelihood of the sample and lower that of all rows.
        if new_end.log_likelihood > end.log_likelihood:
            return new_end, self.misfit(new_end), n_taken
        return end, statistic, 0


def _argmax(ends: Sequence[Optimum]) -> int:
    return int(np.argmax([end.log_likelihood for end in ends]))


def all_rows(problem: EstimationProblem) -> AllRows:
    """Return the rows of the likelihood; the identity link's response excludes the offset."""
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
    family: AnyFamily,
    rows: LikelihoodRows,
    candidates: tuple[MixtureParameters, ...],
    subspace: FloatArray,
    *,
    is_heavy: bool,
) -> list[MixtureParameters]:
    """Choose starts of Le Cam's steps: candidates that fit equally well, or ends of the race."""
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
    family: AnyFamily,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    sums: LikelihoodSums | None = None,
) -> bool:
    """Check whether parameters are near an optimum of the likelihood of some rows."""
    if sums is None:
        sums = likelihood_sums(family, rows, parameters, curvature=False, constant=0.0)
    step = solve_information(outer_product_information(family, rows, parameters), sums.score)
    limit = NEAR_GAIN_PER_PARAMETER * parameter_count(parameters)
    return step is not None and 0.5 * float(sums.score @ step) <= limit


def _race(
    family: AnyFamily,
    rows: LikelihoodRows,
    candidates: tuple[MixtureParameters, ...],
    subspace: FloatArray,
) -> MixtureParameters:
    """Run all candidates for a few steps in the projected rows, and the best one to its end."""
    projected = replace(rows, Z=np.ascontiguousarray(np.asarray(rows.Z) @ subspace), x=None)
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
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters
) -> MixtureParameters:
    """Take Newton steps in all dimensions."""
    end = maximise(family, rows, parameters, max_steps=FINISH_STEPS, damping=FINISH_DAMPING)
    return end.parameters


def _conclude(family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters) -> Optimum:
    """Climb to the optimum; return it with a positive definite information matrix."""
    end = maximise(family, rows, parameters, max_steps=FINISH_STEPS, damping=FINISH_DAMPING)
    information = end.information
    if solve_information(information, np.zeros(len(information))) is None:
        # Not an interior maximum, or too few rows to take a difference of two large matrices.
        information = outer_product_information(family, rows, end.parameters)
    return Optimum(end.parameters, end.log_likelihood, information, end.converged)
