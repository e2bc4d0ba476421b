"""Runs of EM: their options, their records, the optima they reached, and what they cost.

`Runs` records runs, groups their ends into distinct optima, and knows which of them is returned:
the highest interior one. `FitOptions` says how long runs may be and how many there are.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from moment_init.data.blocks import single_threaded_blas
from moment_init.em.exploration import MASS_LIMIT, UnseenMass
from moment_init.em.problem import EMProblem, parameters_per_response
from moment_init.em.starts import RandomStart, random_parameters
from moment_init.likelihood.climbing import (
    KnownMaximum,
    MaximiseResult,
    matched_vectors,
    matching_order,
)
from moment_init.likelihood.parameters import (
    MixtureParameters,
    bound_parts,
    component_size,
    pack,
)
from moment_init.likelihood.posterior import unit_log_likelihood
from moment_init.likelihood.splits import misfit
from moment_init.progress import track
from moment_init.results import BREAKDOWNS, DISTINCT_OPTIMA, StartRecord, StartStatus, counted

FINISH_TOLERANCE = 1e-4
"""A run ends when its predicted gain is below this, far below the difference between maxima."""

FINISH: dict[str, Any] = {
    "max_steps": 300,
    "em_steps": 8,
    "max_em_steps": 60,
    "tolerance": FINISH_TOLERANCE,
    "damping": 0.1,
}
"""Options of a run to its maximum: EM while it is fast, then Newton."""

RACE = {"max_steps": 10, "em_steps": 3, "max_em_steps": 10}
"""Options of a short run, after which starts of one origin are compared."""

STEP_SECONDS = 1.3e-4
ENTRY_SECONDS = 2.7e-9
PAIR_SECONDS = 4e-8
"""Time of a step on one core: a fixed part, a part for each row, component and column, and one for
each pair of parameters. Budgets are counted in this estimate, not by the clock, so that the same
seed gives the same result on every machine."""


def step_seconds(problem: EMProblem) -> float:
    """Estimate the time of one step of a climb."""
    rows, r = problem.rows, problem.n_components
    width = rows.n_features + 1 + rows.n_gate
    entries = rows.n_obs * r * problem.family.n_predictors * width
    n_parameters = problem.free_count(r)
    return STEP_SECONDS + ENTRY_SECONDS * entries + PAIR_SECONDS * n_parameters**2


MOST_KNOWN, SMALLEST_BASIN = 4, 0.08
"""Number of maxima that runs try to recognise at every step, and the share of all runs that must
have reached one of them."""


@dataclass(slots=True, eq=False)
class Optimum:
    """An optimum that at least one run reached."""

    run: MaximiseResult  # the highest run that ended there
    origin: str  # the start from which the first one came
    is_interior: bool
    known: KnownMaximum | None  # None on a bound
    n_random: int = 0  # random starts that ended there
    # runs that ended there independently: random starts, kinds of other starts, and runs from
    # other optima
    n_reached: int = 0
    misfit: float | None = None  # split statistic over the edge of its noise, once it is known

    @property
    def height(self) -> tuple[bool, float]:
        """Interior optima come before those on a bound, then the objective decides."""
        return self.is_interior, self.run.log_posterior


LEAST_REACHED, LEAST_RANDOM = 3, 4
"""Number of runs that must have reached an optimum independently before it can stand out, and of
random starts, two of each kind, that must have ended somewhere."""

LARGEST_DEFICIT = 3.0
"""An optimum is clearly lower than another if the difference of their log-likelihoods exceeds this
many of its standard errors (Vuong). Otherwise it may be the higher one on other rows."""


LARGEST_MISFIT = 1.25
"""Largest split statistic of a mixture that fits, relative to the edge of its noise, which noise
alone exceeds by up to a quarter. On real data a wrong optimum that is far above all others so far
had 1.5 and more."""


@dataclass(slots=True)
class Runs:
    """The runs so far, and the optima that they reached."""

    problem: EMProblem
    records: list[StartRecord] = field(default_factory=list)  # all starts, in the order they ran
    optima: list[Optimum] = field(default_factory=list)
    # highest run of those that did not converge, which is returned only if none did
    unfinished: MaximiseResult | None = None
    is_search: bool = False  # whether they look for the best optimum, not only from given starts
    has_signal: bool = True  # whether the moments of tensor starts show a direction
    # what the search of a smaller sample has seen, if these runs continue it on a larger one
    seen_before: UnseenMass | None = None
    n_random: int = 0  # random starts that converged
    n_unconverged: int = 0  # random starts that did not
    n_runs: int = 0  # all runs, short ones apart
    work: float = 0.0  # estimated seconds of all runs
    seconds_per_step: float = field(init=False)
    announce: Callable[[str], None] = lambda _: None  # is told which start runs
    # the leading optima on all rows, if the runs used a sample
    refined: list[Optimum] | None = None

    def __post_init__(self) -> None:
        """Estimate the time of a step."""
        self.seconds_per_step = step_seconds(self.problem)

    @property
    def ranked(self) -> list[Optimum]:
        """Optima, the one to return first."""
        return sorted(self.optima, key=lambda optimum: optimum.height, reverse=True)

    @property
    def best(self) -> MaximiseResult | None:
        """The run to return: the highest interior optimum, or else the highest end."""
        if self.optima:
            return max(self.optima, key=lambda optimum: optimum.height).run
        return self.unfinished

    @property
    def origin(self) -> str:
        """Origin of the run to return."""
        if self.optima:
            return max(self.optima, key=lambda optimum: optimum.height).origin
        ended = [record for record in self.records if not np.isnan(record.log_likelihood)]
        return max(ended, key=lambda record: record.objective).origin if ended else ""

    @property
    def unseen_mass(self) -> UnseenMass | None:
        """Estimate of what further random starts would find."""
        if self.n_random + self.n_unconverged == 0:
            return self.seen_before
        n_optima = sum(optimum.n_random > 0 for optimum in self.optima)
        n_best = self.ranked[0].n_reached if self.optima else 0
        is_sampled = any(record.is_sampled for record in self.records)
        return UnseenMass(
            self.n_random,
            n_optima,
            n_best,
            self.n_runs,
            self.n_unconverged,
            self.stands_out,
            is_sampled,
        )

    @property
    def stands_out(self) -> bool:
        """Whether several starts reached the best optimum, which is clearly highest and fits."""
        if len(self.optima) < 2 or self.n_random < LEAST_RANDOM:
            return False
        best, *others = self.ranked
        return (
            best.n_reached >= LEAST_REACHED
            and best.n_random > 0
            and all(is_clearly_lower(self.problem, other.run, best.run) for other in others)
            and self.has_fit
        )

    @property
    def has_fit(self) -> bool:
        """Whether the components of the best optimum show no sign of a misfit."""
        best = self.ranked[0]
        if best.misfit is None:
            best.misfit = misfit(self.problem.family, self.problem.rows, best.run.parameters)
        return best.misfit < LARGEST_MISFIT

    @property
    def is_settled(self) -> bool:
        """Whether the best optimum stands out, or is the only one and fits."""
        unseen = self.unseen_mass
        if unseen is None:
            return False
        is_only = len(self.optima) == 1 and unseen.mass < MASS_LIMIT
        return unseen.stands_out or (is_only and self.has_fit)

    def describe(self, origin: str) -> str:
        """Say which start runs, how many there were, and how high they came."""
        if self.best is None:
            return origin
        name = "log-likelihood" if self.problem.prior is None else "log-posterior"
        height = self.best.log_posterior - self.problem.log_jacobian
        return f"{origin}, {counted(len(self.records), 'start')}, best {name} {height:.2f}"

    def climb(self, start: MixtureParameters, **options: Any) -> MaximiseResult:
        """Climb from a start, and stop early if it leads to a known maximum."""
        run = self.problem.climb(start, known=self._known(), **options)
        self.work += (1 + run.n_iter) * self.seconds_per_step
        return run

    def _known(self) -> list[KnownMaximum]:
        """Return the maxima that many runs end in; it does not pay to look for rare ones."""
        usual = sorted(self.optima, key=lambda optimum: -optimum.n_reached)[:MOST_KNOWN]
        least = SMALLEST_BASIN * len(self.records)
        return [each.known for each in usual if each.known is not None and each.n_reached > least]

    def finish(
        self, origin: str, start: MixtureParameters, *, source: Optimum | None = None
    ) -> Optimum | None:
        """Run a start to its maximum; return the optimum, or None if it did not converge."""
        self.announce(origin)
        try:
            return self.add(origin, self.climb(start, **FINISH), source=source)
        except BREAKDOWNS as error:
            self.fail(origin, str(error))
            return None

    def race(self, starts: list[tuple[str, MixtureParameters]]) -> None:
        """Race starts of one kind by short runs, and run the best one to its maximum."""
        if len(starts) > 1:
            runs = [(origin, self.climb(start, **RACE)) for origin, start in starts]
            runs.sort(key=lambda run: run[1].log_posterior, reverse=True)
            for origin, run in runs[1:]:
                self.record(origin, run, StartStatus.OVERTAKEN)
            starts = [(runs[0][0], runs[0][1].parameters)]
        for origin, start in starts:
            self.finish(origin, start)

    def add(
        self, origin: str, run: MaximiseResult, *, source: Optimum | None = None
    ) -> Optimum | None:
        """Record the end of a run from an optimum, if it was one, and return the one it reached."""
        self.record(origin, run, StartStatus(str(run.ending)))
        self.n_runs += 1
        is_random = origin.startswith("random")
        if not run.converged and run.recognised is None:
            self.n_unconverged += is_random
            if self.unfinished is None or run.log_posterior > self.unfinished.log_posterior:
                self.unfinished = run
            return None
        reached = self._optimum_of(origin, run)
        self.n_random += is_random
        reached.n_random += is_random
        # a run that returns to where it began shows nothing
        reached.n_reached += reached is not source
        return reached

    def fail(self, origin: str, message: str) -> None:
        """Record a start that broke down."""
        self.n_unconverged += origin.startswith("random")
        self.records.append(
            StartRecord(origin, float("nan"), 0, StartStatus.FAILED, message=message)
        )

    def record(self, origin: str, run: MaximiseResult, status: StartStatus) -> None:
        """Add the record of a run."""
        ahead, jacobian = run.recognised, self.problem.log_jacobian
        value = run.log_likelihood if ahead is None else ahead.log_likelihood
        height = run.log_posterior if ahead is None else ahead.height
        log_posterior = None if self.problem.prior is None else height - jacobian
        self.records.append(
            StartRecord(
                origin,
                value - jacobian,
                run.n_iter,
                status,
                run.bounds,
                log_posterior=log_posterior,
            )
        )

    def _optimum_of(self, origin: str, run: MaximiseResult) -> Optimum:
        """Find the optimum at which a run ended, or add a new one."""
        for optimum in self.optima:
            if run.recognised is not None:
                if optimum.known is run.recognised:
                    return optimum
            elif is_same_optimum(self.problem, optimum.run, run):
                if run.log_posterior > optimum.run.log_posterior:
                    optimum.run, optimum.misfit = run, None
                return optimum
        is_inside = is_interior(self.problem, run)
        known = None
        if not binding_bounds(self.problem, run) and self.problem.restrictions.is_empty:
            known = KnownMaximum.of(run.parameters, run.sums)
        self.optima.append(Optimum(run, origin, is_inside, known))
        return self.optima[-1]


SAME_POINT = 0.1
"""Squared distance of two ends of one optimum in the metric of its information: a difference of
.05 in log-likelihood."""


def is_same_optimum(problem: EMProblem, first: MaximiseResult, second: MaximiseResult) -> bool:
    """Whether two converged runs ended at one optimum, by objective and parameters."""
    if abs(first.log_posterior - second.log_posterior) > DISTINCT_OPTIMA:
        return False
    bounds = [binding_bounds(problem, run) for run in (first, second)]
    if any(bounds):  # where they lie on a bound is determined by little else
        return len(bounds[0]) == len(bounds[1])
    if first.sums.missing_information is None:
        return True
    pair = matched_vectors(first.parameters), matched_vectors(second.parameters)
    order = matching_order(*pair)
    size = first.parameters.n_components * component_size(first.parameters)
    gap = (pack(second.parameters.reorder(order)) - pack(first.parameters))[:size]
    return bool(gap @ first.sums.information()[:size, :size] @ gap < SAME_POINT)


def is_clearly_lower(problem: EMProblem, lower: MaximiseResult, upper: MaximiseResult) -> bool:
    """Whether one end is lower than another by more than `LARGEST_DEFICIT`."""
    above, below = (
        unit_log_likelihood(problem.family, problem.rows, end.parameters) for end in (upper, lower)
    )
    error = np.sqrt(problem.rows.unit_weights @ np.square(above - below))
    return bool(upper.log_likelihood - lower.log_likelihood > LARGEST_DEFICIT * error)


def is_interior(problem: EMProblem, run: MaximiseResult) -> bool:
    """Whether no bound binds and, without priors, components have more rows than parameters."""
    size = parameters_per_response(problem.family, run.parameters.n_features)
    has_rows = problem.prior is not None or np.min(run.sums.row_counts) > size
    return not binding_bounds(problem, run) and bool(has_rows)


def binding_bounds(problem: EMProblem, run: MaximiseResult) -> list[str]:
    """Return the bounds on which a run ended, without those where the family becomes simpler."""
    at = run.parameters
    return [bound for bound in run.bounds if not is_limiting_family(problem, at, bound)]


CLOSE = 1e-6
"""Relative distance below which a dispersion counts as being at the end of its range."""


def is_limiting_family(problem: EMProblem, at: MixtureParameters, bound: str) -> bool:
    """Whether a dispersion is at the upper end of its range, where the family becomes simpler.

    If the likelihood is bounded, this is harmless: negative binomial counts become Poisson counts,
    and all other parameters stay identified.
    """
    kind, component, predictor = bound_parts(bound)
    family = problem.family.predictor_families[predictor or 0]
    if kind != "dispersion" or at.spreads is None or family.deviation_power is not None:
        return False
    largest = family.dispersion_bounds[1]
    return bool(at.spreads[predictor or 0, component] > largest * (1 - CLOSE))


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How long runs may be, how many there are, and how they run."""

    max_iter: int = 1000  # maximum number of iterations of a run
    tolerance: float = 1e-6  # predicted gain below which a run has converged
    n_starts: int | None = None  # number of random starts; None for the default
    max_seconds: float | None = None  # time of the search; None for the default
    random_start: RandomStart = "both"
    n_jobs: int | None = None  # number of parallel runs
    progressbar: bool = False

    def __post_init__(self) -> None:
        """Check the options, which are arguments of `fit_em`."""
        if not _is_whole(self.max_iter) or self.max_iter < 0:
            raise ValueError(
                f"`max_iter` must be a whole number, 0 or more; got {self.max_iter!r}."
            )
        if not _is_positive(self.tolerance):
            raise ValueError(f"`tolerance` must be a positive number; got {self.tolerance!r}.")
        if self.n_starts is not None and (not _is_whole(self.n_starts) or self.n_starts < 1):
            raise ValueError(
                f"`n_starts` must be a whole number, 1 or more; got {self.n_starts!r}."
            )
        if self.max_seconds is not None and not _is_positive(self.max_seconds):
            raise ValueError(
                f"`max_seconds` must be a positive number or None; got {self.max_seconds!r}."
            )
        if self.n_jobs is not None and (not _is_whole(self.n_jobs) or self.n_jobs == 0):
            raise ValueError(
                f"`n_jobs` must be a whole number other than 0, or None; got {self.n_jobs!r}. Use "
                "-1 for all cores."
            )
        if self.random_start not in get_args(RandomStart):
            raise ValueError(
                "`random_start` must be 'both', 'assignment' or 'coefficients'; got "
                f"{self.random_start!r}."
            )

    @property
    def run(self) -> dict[str, Any]:
        """Options of a climb from a start to its maximum."""
        return {**FINISH, "max_steps": self.max_iter, "tolerance": self.tolerance}


def require_rows(problem: EMProblem) -> None:
    """Raise if each response has more free parameters than rows."""
    r, n_predictors = problem.n_components, problem.family.n_predictors
    n_free = -(-problem.free_count(r) // n_predictors)
    if problem.rows.n_obs < n_free:
        which = "" if n_predictors == 1 else " for each response or class"
        raise ValueError(
            f"`X` must have at least as many rows of positive weight as {r} components have free "
            f"parameters{which} ({n_free}); got {problem.rows.n_obs}. Use fewer components or "
            "columns, or `shared` coefficients."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    is_real = isinstance(value, int | float | np.integer | np.floating)
    return is_real and not isinstance(value, bool) and bool(0.0 < value < np.inf)


DEFAULT_RANDOM_STARTS = 10
"""Default number of random starts: enough to see whether they agree."""


def run_given(
    problem: EMProblem, starts: Sequence[tuple[str, MixtureParameters]], options: FitOptions
) -> Runs:
    """Climb from several starts, each to its maximum."""
    runs = Runs(problem)
    for origin, start in starts:
        try:
            runs.add(origin, problem.climb(start, **options.run))
        except BREAKDOWNS as error:
            runs.fail(origin, str(error))
    return runs


def run_random(problem: EMProblem, options: FitOptions, rng: np.random.Generator) -> Runs:
    """Climb from random starts in parallel with joblib, each to its maximum."""
    from joblib import Parallel, delayed  # imported only when starts run in parallel

    n_starts = DEFAULT_RANDOM_STARTS if options.n_starts is None else options.n_starts
    tasks = (
        delayed(_climb_at_random)(problem, options, rank, stream)
        for rank, stream in enumerate(rng.spawn(n_starts), start=1)
    )
    ends: Iterable[MaximiseResult | str] = Parallel(n_jobs=options.n_jobs, return_as="generator")(
        tasks
    )
    runs, began = Runs(problem), time.perf_counter()
    shown = track(ends, n_starts, "random starts", is_shown=options.progressbar)
    for rank, end in enumerate(shown, start=1):
        if isinstance(end, str):
            runs.fail(f"random {rank}", end)
        else:
            runs.add(f"random {rank}", end)
        limit = options.max_seconds
        if limit is not None and time.perf_counter() - began >= limit:
            break
    return runs


def _climb_at_random(
    problem: EMProblem, options: FitOptions, rank: int, rng: np.random.Generator
) -> MaximiseResult | str:
    """Climb from one random start; return the error message if it breaks down."""
    with single_threaded_blas():
        try:
            start = random_parameters(problem, options.random_start, rank, rng)
            return problem.climb(start, **options.run)
        except BREAKDOWNS as error:
            return str(error)
