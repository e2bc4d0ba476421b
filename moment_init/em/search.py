"""Search for the highest maximum: starts of several kinds, random starts, and ways out of optima.

1. Starts that are computed: moments, first if there are rows enough for them, otherwise after the
   others; growth by splits; bins of the response and of residuals.
2. Random starts of both kinds, until the estimated mass of optima not yet seen is small, the best
   optimum stands out or was reached often, or their share of the budget is used up (see
   `moment_init.em.exploration`).
3. Moves and perturbations from the best few distinct optima, until they find nothing better. If the
   best optimum stands out, or is the only one, they leave only this one, and end sooner.

The budget is counted in estimated time (`moment_init.em.runs.step_seconds`), so that the result
depends on the seed only; `max_seconds` is real time.

With many units the search runs on a sample of them. Its best optima are refined on a larger sample
and then on all units. A refinement begins with quasi-Newton steps, which sum only the score and
take the curvature from the smaller sample (see `moment_init.likelihood.many_rows`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from moment_init.checks import FloatArray
from moment_init.em.exploration import MASS_LIMIT
from moment_init.em.gaussian_gate import GatedProblem
from moment_init.em.moves import PERTURBATIONS, propose_moves
from moment_init.em.problem import EMProblem, parameters_per_response
from moment_init.em.runs import (
    FINISH_TOLERANCE,
    FitOptions,
    Optimum,
    Runs,
    binding_bounds,
    is_clearly_lower,
    is_interior,
)
from moment_init.em.starts import Start, bin_starts, grow, random_parameters
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult, free_step, rounding_of
from moment_init.likelihood.many_rows import QuasiNewton
from moment_init.likelihood.parameters import MixtureParameters, bounds_of, enforce, move
from moment_init.likelihood.splits import improve
from moment_init.likelihood.sums import LikelihoodSums
from moment_init.progress import Display
from moment_init.results import BREAKDOWNS, SAME_OPTIMUM

MOMENT_UNITS_PER_PARAMETER = 100
"""Units per parameter from which third moments are more than noise, and come first."""

BUDGET_SECONDS = 2.0
BUDGET_STARTS = 30
"""A search ends after this estimated time or that of so many random starts, whichever is longer,
unless the user asks for more."""

RANDOM_SHARE = 0.5
"""Share of the budget that random starts may use before moves and perturbations, which find better
optima more often where there are many."""

OFTEN_REACHED = 25
"""Random starts end when so many of them have reached the best optimum, however many others there
are: one above it that a tenth of all starts reach would have been seen with probability .93."""

N_LEFT = 3
"""Number of distinct optima from which moves and perturbations start: the best may be left in one
step where another is not."""

MIN_GAIN = 2 * SAME_OPTIMUM
"""A move is accepted if it gains at least this."""

PATIENCE, LEAST_SHARE = 18, 0.35
"""Number of perturbations without a better optimum after which the search ends, if hardly anything
is unseen and this share of the budget is used. Otherwise they go on while the budget lasts."""

SETTLED_PATIENCE, SETTLED_SHARE = 6, 0.1
"""The same if the best optimum stands out or is the only one: sometimes a rare component leads away
from it that no start has found."""

RANDOM_TURN = 4
"""Every so many tries among perturbations, one is a further random start."""


@dataclass(frozen=True, slots=True)
class SearchParts:
    """Which parts of the search run; all of them, except in benchmarks of single parts."""

    use_tensor: bool = True  # starts from moments
    use_growth: bool = True  # growth by splits
    use_bins: bool = True  # quantile bins of response and residuals
    use_moves: bool = True  # moves from the best optima
    use_perturbations: bool = True  # perturbations of the best optima


@dataclass(slots=True)
class _Budget:
    """What a search may use."""

    runs: Runs
    options: FitOptions
    began: float = field(default_factory=time.perf_counter)
    # estimated seconds of the random starts so far, and their number
    random_work: float = 0.0
    n_random: int = 0

    def used(self) -> float:
        """Share of the budget that is used up."""
        limit = self.options.max_seconds
        if limit is not None:
            return (time.perf_counter() - self.began) / limit
        per_start = self.random_work / max(1, self.n_random)
        # random starts that were asked for come on top
        work = self.runs.work - (0.0 if self.options.n_starts is None else self.random_work)
        return work / max(BUDGET_SECONDS, BUDGET_STARTS * per_start)


def search(
    problem: EMProblem,
    tensor_starts: Callable[[], list[Start]],
    rng: np.random.Generator,
    options: FitOptions | None = None,
    parts: SearchParts | None = None,
    display: Display | None = None,
) -> Runs:
    """Search for the highest interior maximum of the likelihood."""
    parts, options = parts or SearchParts(), options or FitOptions()
    problem = problem.prepared()
    runs = Runs(problem, is_search=True)
    if problem.n_components == 1:
        _attempt(runs, "single", lambda: runs.race([("single", problem.blank(1))]))
        return runs
    budget = _Budget(runs, options)
    if display is not None:
        runs.announce = lambda origin: display.update(runs.describe(origin), budget.used())

    is_first = _units_per_parameter(problem) >= MOMENT_UNITS_PER_PARAMETER
    if parts.use_tensor and is_first:
        _attempt(runs, "tensor", lambda: runs.race(tensor_starts()))
    if parts.use_growth:
        _attempt(runs, "growth", lambda: runs.race([("growth", grow(problem))]))
    if parts.use_bins:
        _attempt(runs, "bins", lambda: _finish_all(runs, bin_starts(problem)))
    if parts.use_tensor and not is_first:
        _attempt(runs, "tensor", lambda: runs.race(tensor_starts()))
    _attempt(runs, "clusters", lambda: _finish_all(runs, problem.own_starts(rng)))
    _start_at_random(budget, rng)
    _leave_optima(budget, parts, rng)
    return runs


def _attempt(runs: Runs, origin: str, route: Callable[[], None]) -> None:
    """Run a route; record it if it breaks down, so that others can go on."""
    runs.announce(origin)
    try:
        route()
    except BREAKDOWNS as error:
        runs.fail(origin, str(error))


def _finish_all(runs: Runs, starts: list[Start]) -> None:
    for origin, start in starts:
        runs.finish(origin, start)


def _start_at_random(budget: _Budget, rng: np.random.Generator) -> None:
    """Climb from random starts until hardly anything is unseen, or their share is used up."""
    runs, options = budget.runs, budget.options
    while True:
        unseen = runs.unseen_mass
        if options.n_starts is not None:
            is_late = options.max_seconds is not None and budget.used() >= RANDOM_SHARE
            if budget.n_random >= options.n_starts or (is_late and budget.n_random > 0):
                return
        # at least one, so that a search without time to look says that it has not
        elif unseen is not None and (
            unseen.mass < MASS_LIMIT
            or unseen.stands_out
            or budget.used() >= RANDOM_SHARE
            or (runs.optima and runs.ranked[0].n_random >= OFTEN_REACHED)
        ):
            return
        _try_random(budget, rng)


def _try_random(budget: _Budget, rng: np.random.Generator) -> None:
    runs, kind = budget.runs, budget.options.random_start
    before = runs.work
    budget.n_random += 1
    try:
        start = random_parameters(runs.problem, kind, budget.n_random, rng)
    except BREAKDOWNS as error:
        runs.fail(f"random {budget.n_random}", str(error))
    else:
        runs.finish(f"random {budget.n_random}", start)
    budget.random_work += runs.work - before


def _leave_optima(budget: _Budget, parts: SearchParts, rng: np.random.Generator) -> None:
    """Try moves and perturbations from the best few optima while these change or time is left."""
    runs = budget.runs
    moved: list[Optimum] = []
    n_idle = rank = 0
    while runs.optima and budget.used() < 1.0:
        best, is_settled = runs.ranked[0], runs.is_settled
        leading = runs.ranked[: 1 if is_settled else N_LEFT]
        unmoved = [optimum for optimum in leading if optimum not in moved]
        if parts.use_moves and unmoved:
            moved.append(unmoved[0])
            _move(runs, unmoved[0], rng)
        elif parts.use_perturbations and _goes_on(budget, n_idle, is_settled=is_settled):
            rank, n_idle = rank + 1, n_idle + 1
            is_turn = rank % RANDOM_TURN == 0 and not is_settled
            if is_turn and budget.options.n_starts is None:
                _try_random(budget, rng)
            else:
                _perturb(runs, leading[rank % len(leading)], rank, rng)
        else:
            return
        if runs.ranked[0].height > (best.height[0], best.height[1] + SAME_OPTIMUM):
            n_idle = 0


def _goes_on(budget: _Budget, n_idle: int, *, is_settled: bool) -> bool:
    """Whether to perturb again, after so many perturbations without a better optimum."""
    if is_settled:
        return n_idle < SETTLED_PATIENCE or budget.used() < SETTLED_SHARE
    unseen = budget.runs.unseen_mass
    # a better optimum is likely, or the best was reached only once
    is_open = unseen is None or not unseen.is_explored or unseen.n_best < 2
    return is_open or n_idle < PATIENCE or budget.used() < LEAST_SHARE


def _move(runs: Runs, optimum: Optimum, rng: np.random.Generator) -> None:
    """Try moves from an optimum."""

    def propose(parameters: MixtureParameters) -> list[MixtureParameters]:
        return propose_moves(runs.problem, parameters, rng)

    def moved() -> None:
        end, n_moves = improve(
            runs.climb, propose, optimum.run, tolerance=FINISH_TOLERANCE, min_gain=MIN_GAIN
        )
        if n_moves:
            runs.add("move", end, source=optimum)

    _attempt(runs, "move", moved)


def _perturb(runs: Runs, optimum: Optimum, rank: int, rng: np.random.Generator) -> None:
    """Perturb an optimum in one of several ways, and climb."""
    perturb = PERTURBATIONS[int(rng.integers(len(PERTURBATIONS)))]
    origin = f"perturbation {rank}"

    def perturbed() -> None:
        start = perturb(runs.problem, optimum.run.parameters, rng)
        runs.finish(origin, start, source=optimum)

    _attempt(runs, origin, perturbed)


def _units_per_parameter(problem: EMProblem) -> float:
    """Number of units for each parameter of one response, which has rows of its own."""
    rows = problem.rows
    size = parameters_per_response(problem.family, rows.n_features) + 1 + rows.n_gate
    return rows.n_units / (size * problem.n_components)


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

HELD_FACTOR = 8
"""Optima of a search are first climbed on a sample of so many times its units. Its maximum is
closer to that of all units by the root of this factor, and so is its curvature."""

HELD_DOUBLES = 2**25
"""Most values of inputs in that sample, 256 MiB: a Dask collection is read for it once only."""

MOST_PASSES = 20
"""Maximum number of quasi-Newton passes over all units: the climb that follows continues from
wherever they end, and its steps know the curvature of all units."""

CLOSE_GAIN = 1e-3
"""The quasi-Newton passes end when a step is predicted to gain less than this: one Newton step then
ends within rounding of the maximum, and costs no more than the passes that it saves."""

SMALLEST_SHARE = 1e-3
"""The refinement ends when steps are cut below this share without a gain."""


def held_sample(problem: EMProblem) -> EMProblem:
    """Return the problem on evenly spaced units in memory, of which searches take samples."""
    rows = problem.rows
    size = search_units(problem.family, rows.n_features, problem.n_components)
    most = HELD_DOUBLES * rows.n_units // (rows.n_obs * rows.n_features)
    stride = rows.n_units // min(HELD_FACTOR * size, most)
    return problem if stride < 2 else problem.with_rows(rows.thin(stride)).prepared()


def search_sample(problem: EMProblem, rng: np.random.Generator, enlargement: int = 1) -> EMProblem:
    """Return the problem on a sample of units that is large enough for a search."""
    most = enlargement * search_units(problem.family, problem.rows.n_features, problem.n_components)
    n_units = problem.rows.n_units
    if n_units <= 2 * most:
        rows = problem.rows.within(n_units)
        return problem if rows is problem.rows else problem.with_rows(rows)
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
    runs: Runs,
    from_moments: Callable[[], list[Start]],
    rng: np.random.Generator,
) -> Runs:
    """Climb on larger and larger samples while the best maximum lies on a bound.

    If a sample says too little about a component, its maximum lies on a bound, far from that of all
    units. The moments, which use all units, are then the better start.
    """
    times = 1
    while runs.best is not None and binding_bounds(runs.problem, runs.best):
        times *= ENLARGEMENT
        sample = search_sample(problem, rng, times)
        if sample.rows.n_units <= runs.problem.rows.n_units:
            break
        seen = runs.unseen_mass
        before = None if seen is None else replace(seen, stands_out=False, is_sampled=True)
        wider = Runs(sample.prepared(), is_search=True, seen_before=before)
        for origin, start in [*from_moments(), ("sample", runs.best.parameters)]:
            wider.finish(origin, start)
        if wider.best is None:
            break
        smaller = [replace(record, is_sampled=True) for record in runs.records]
        wider.records = [*smaller, *wider.records]
        runs = wider
    return runs


N_REFINED = 3
"""Number of optima of a sample that are refined on all rows at most."""


def refined(problem: EMProblem, held: EMProblem, runs: Runs, options: FitOptions) -> list[Optimum]:
    """Climb from the best optima of a sample to maxima of all units, the highest first.

    Optima that may be the best on more units are kept until a larger sample decides.
    """
    ends = runs.ranked[:N_REFINED]
    if not ends and runs.best is not None:
        ends = [Optimum(runs.best, runs.origin, is_interior(runs.problem, runs.best), None)]
    smaller = runs.problem
    for larger in (held, problem):
        if larger.rows.n_units > smaller.rows.n_units:
            ends = [_refined(larger, smaller, end, options) for end in _leading(smaller, ends)]
            smaller = larger
    return sorted(ends, key=lambda end: end.height, reverse=True)


def _refined(problem: EMProblem, searched: EMProblem, end: Optimum, options: FitOptions) -> Optimum:
    run = refine(
        problem, searched, end.run, max_steps=options.max_iter, tolerance=options.tolerance
    )
    return replace(end, run=run, is_interior=is_interior(problem, run))


def _leading(problem: EMProblem, ends: list[Optimum]) -> list[Optimum]:
    """The best end, and those that are not clearly lower."""
    first, *others = sorted(ends, key=lambda end: end.height, reverse=True)
    return [first] + [
        other
        for other in others
        if other.is_interior == first.is_interior
        and not is_clearly_lower(problem, other.run, first.run)
    ]


def refine(
    problem: EMProblem,
    searched: EMProblem,
    sample_end: MaximiseResult,
    *,
    max_steps: int,
    tolerance: float,
) -> MaximiseResult:
    """Climb from the maximum of a smaller sample, at first with its curvature."""
    if isinstance(problem, GatedProblem):
        return problem.climb(sample_end.parameters, max_steps=max_steps, tolerance=tolerance)
    near = _approach(problem, searched, sample_end)
    while near.n_iter < min(max_steps, MOST_PASSES):
        step = near.propose()
        if step is None or step.gain < CLOSE_GAIN:
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
        sample_sums = searched.sums(sample_end.parameters)
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
        return problem.sums(parameters, curvature=False)

    def moved(parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
        inside = enforce(move(parameters, step), bounds)
        return inside if constraint is None else constraint.project(inside, parameters)

    return QuasiNewton(evaluate, moved, start, information, basis)
