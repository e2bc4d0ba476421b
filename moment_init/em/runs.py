"""Runs of EM: their options, their records, and starts that are run without a search.

A `Portfolio` records the runs of a search, keeps the best one, and remembers the maxima that runs
have reached. `FitOptions` says how long runs may be and how many there are. `run_given` and
`run_random` climb from the user's starts and from random ones, the latter in parallel and with a
progress bar.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from moment_init.data.blocks import single_threaded_blas
from moment_init.em.moves import climb_with_common_dispersion, tempered
from moment_init.em.problem import EMProblem
from moment_init.em.starts import RandomStart, random_parameters
from moment_init.likelihood.climbing import KnownMaximum, MaximiseResult
from moment_init.likelihood.parameters import (
    MixtureParameters,
    component_vectors,
    parameter_count,
)
from moment_init.likelihood.splits import improve
from moment_init.results import BREAKDOWNS, SAME_OPTIMUM, StartRecord, StartStatus

if TYPE_CHECKING:
    from rich.progress import Progress

Start = tuple[str, MixtureParameters]

RACE = {"max_steps": 10, "em_steps": 3, "max_em_steps": 10}
"""Options of a short run, after which starts of one origin are compared."""

FINISH_TOLERANCE = 1e-4
"""A run ends when its predicted gain is below this, far below the difference between maxima."""

MIN_GAIN = 2 * SAME_OPTIMUM
"""A move is accepted if it gains at least this."""

FINISH: dict[str, Any] = {
    "max_steps": 300,
    "em_steps": 8,
    "max_em_steps": 60,
    "tolerance": FINISH_TOLERANCE,
    "damping": 0.1,
}
"""Options of a run to its maximum: EM while it is fast, then Newton."""

MAX_TEMPERINGS = 5
"""Maximum number of times that tempering leaves a maximum in one round; two are rare."""

SAME_COMPONENT = 1e-2
"""Relative difference in parameters below which two components count as one: any mixture that is
worth fitting has components much further apart."""


@dataclass(slots=True)
class Portfolio:
    """The runs so far and the best of them."""

    problem: EMProblem
    records: list[StartRecord] = field(default_factory=list)  # all starts, in the order they ran
    best: MaximiseResult | None = None
    # kinds of starts that reached the best maximum independently
    agreeing_origins: set[str] = field(default_factory=set)
    # maxima inside all bounds that runs have reached; a run that leads to one of them ends early
    maxima: list[KnownMaximum] = field(default_factory=list)
    # ways out of the best maximum that were tried; trying them again would give the same result
    tried: set[str] = field(default_factory=set)

    def finish(self, origin: str, start: MixtureParameters) -> None:
        """Run a start to its maximum, or until it cannot reach the best one."""
        target = None if self.best is None else self.best.log_likelihood - SAME_OPTIMUM
        self.add(origin, self.climb(start, target=target, **FINISH))

    def climb(self, start: MixtureParameters, **options: Any) -> MaximiseResult:
        """Climb from a start; stop early if it leads to a known maximum."""
        return self.problem.climb(start, known=self.maxima, **options)

    def race(self, starts: list[Start], n_finishers: int = 1) -> None:
        """Race starts by short runs, and run the best ones to their maxima."""
        if len(starts) <= n_finishers:  # nothing to choose from
            for origin, start in starts:
                self.finish(origin, start)
            return
        runs = [(origin, self.climb(start, **RACE)) for origin, start in starts]
        runs.sort(key=lambda run: run[1].log_likelihood, reverse=True)
        for origin, run in runs[:n_finishers]:
            self.finish(origin, run.parameters)
        for origin, run in runs[n_finishers:]:
            self._record(origin, run, StartStatus.RACED)

    def add(self, origin: str, run: MaximiseResult) -> None:
        """Record a finished run, and keep it if it is the best."""
        self._record(origin, run, StartStatus(str(run.ending)))
        if run.recognised is not None:
            if self._is_best(run.recognised.height):
                self.agreeing_origins.add(origin.split()[0])
            return
        is_degenerate = _is_degenerate(run)
        if run.converged and not is_degenerate:
            self._keep_maximum(run)
        # a run that stalled may have done so before the maximum
        agreeing = {origin.split()[0]} if run.converged and not is_degenerate else set()
        if self.best is None or run.log_likelihood > self.best.log_likelihood + SAME_OPTIMUM:
            self.best, self.agreeing_origins, self.tried = run, agreeing, set()
        elif self._is_best(run.log_likelihood):
            self.agreeing_origins |= agreeing
            if run.log_likelihood > self.best.log_likelihood:
                self.best = run

    def fail(self, origin: str, message: str) -> None:
        """Record a start that broke down."""
        self.records.append(
            StartRecord(origin, float("nan"), 0, StartStatus.FAILED, message=message)
        )

    def attempt(self, origin: str, route: Callable[["Portfolio"], object]) -> None:
        """Run a route; record it if it breaks down, so that other routes can go on."""
        try:
            route(self)
        except BREAKDOWNS as error:
            self.fail(origin, str(error))

    def temper(self, temperatures: Sequence[float], *, has_common_dispersion: bool = False) -> None:
        """Restart the best maximum from softened likelihoods while this finds a better one."""
        ways: dict[str, Callable[[MixtureParameters], MixtureParameters]] = {
            f"temperature {temperature:g}": partial(tempered, self.problem, temperature=temperature)
            for temperature in temperatures
        }
        if has_common_dispersion and self.problem.family.is_unbounded:
            with_common = partial(climb_with_common_dispersion, self.problem, **FINISH)
            ways["common dispersion"] = with_common
        for _ in range(MAX_TEMPERINGS):
            before = self.best
            if before is None:
                return
            for way, soften in ways.items():
                if way in self.tried:
                    continue
                self.tried.add(way)
                start = soften(before.parameters)
                end = self.climb(start, target=before.log_likelihood, **FINISH)
                if end.log_likelihood > before.log_likelihood + SAME_OPTIMUM:
                    self.add("tempering", end)
                    break
            if self.best is before:
                return

    def move(
        self, origin: str, propose: Callable[[MixtureParameters], list[MixtureParameters]]
    ) -> bool:
        """Try moves from the best maximum; return whether one found a better maximum."""
        if self.best is None or origin in self.tried:
            return False
        self.tried.add(origin)  # in case it breaks down
        end, n_moves = improve(
            self.climb, propose, self.best, tolerance=FINISH_TOLERANCE, min_gain=MIN_GAIN
        )
        if n_moves:
            self.add(origin, end)
        self.tried.add(origin)
        return n_moves > 0

    def _is_best(self, log_likelihood: float) -> bool:
        best = self.best
        return best is not None and log_likelihood > best.log_likelihood - SAME_OPTIMUM

    def _keep_maximum(self, run: MaximiseResult) -> None:
        """Remember a maximum without active bounds or restrictions, so that runs recognise it."""
        if run.bounds or not self.problem.restrictions.is_empty:
            return
        maximum = KnownMaximum.of(run.parameters, run.sums)
        if maximum is not None:
            self.maxima.append(maximum)

    def _record(self, origin: str, run: MaximiseResult, status: StartStatus) -> None:
        ahead = run.recognised
        value = run.log_likelihood if ahead is None else ahead.height
        value -= self.problem.log_jacobian
        self.records.append(StartRecord(origin, value, run.n_iter, status, run.bounds))


def _is_degenerate(run: MaximiseResult) -> bool:
    """Whether a component is empty or a copy of another; such runs do not count as agreeing."""
    if any(bound.startswith("weight") for bound in run.bounds):
        return True
    vectors = component_vectors(run.parameters)  # (n_components, q)
    gaps = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    first, second = np.triu_indices(len(vectors), k=1)
    sizes = 1.0 + np.linalg.norm(vectors, axis=1)
    return bool(np.any(gaps[first, second] < SAME_COMPONENT * sizes[first]))


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How long runs may be, how many there are, and how they run."""

    max_iter: int = 1000  # maximum number of iterations of a run
    tolerance: float = 1e-6  # predicted gain below which a run has converged
    n_starts: int | None = None  # number of random starts; None for the default
    random_start: RandomStart = "assignment"
    n_jobs: int | None = None  # number of parallel runs
    progressbar: bool = False

    @property
    def run(self) -> dict[str, Any]:
        """Options of a climb from a start to its maximum."""
        return {**FINISH, "max_steps": self.max_iter, "tolerance": self.tolerance}


def validate_options(
    *,
    max_iter: Any,
    tolerance: Any,
    n_starts: Any,
    random_start: Any,
    n_jobs: Any,
    progressbar: bool,
) -> FitOptions:
    """Check the options of a fit."""
    if not _is_whole(max_iter) or max_iter < 0:
        raise ValueError(f"`max_iter` must be a whole number, 0 or more; got {max_iter!r}.")
    if not _is_real(tolerance) or not 0.0 < tolerance < np.inf:
        raise ValueError(f"`tolerance` must be a positive number; got {tolerance!r}.")
    if n_starts is not None and (not _is_whole(n_starts) or n_starts < 1):
        raise ValueError(f"`n_starts` must be a whole number, 1 or more; got {n_starts!r}.")
    if n_jobs is not None and (not _is_whole(n_jobs) or n_jobs == 0):
        raise ValueError(
            f"`n_jobs` must be a whole number other than 0, or None; got {n_jobs!r}. Use -1 for "
            "all cores."
        )
    if random_start not in get_args(RandomStart):
        raise ValueError(
            f"`random_start` must be 'assignment' or 'coefficients'; got {random_start!r}."
        )
    return FitOptions(
        int(max_iter),
        float(tolerance),
        None if n_starts is None else int(n_starts),
        random_start,
        None if n_jobs is None else int(n_jobs),
        bool(progressbar),
    )


def require_rows(problem: EMProblem, n_more: int = 0) -> None:
    """Raise if each response has more free parameters than rows."""
    r, n_predictors = problem.n_components, problem.family.n_predictors
    blank = problem.blank(r)
    constraint = problem.constraint(blank)
    n_free = parameter_count(blank) if constraint is None else constraint.n_free
    n_free = -(-(n_free + n_more) // n_predictors)
    if problem.rows.n_obs < n_free:
        which = "" if n_predictors == 1 else " for each response or class"
        raise ValueError(
            f"`X` must have at least as many rows of positive weight as {r} components have free "
            f"parameters{which} ({n_free}); got {problem.rows.n_obs}. Use fewer components or "
            "columns, or `shared` coefficients."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def track[Item](
    items: Iterable[Item], total: int, description: str, *, is_shown: bool
) -> Iterator[Item]:
    """Yield items and show a progress bar.

    If the bar cannot be shown, for instance inside another one, it is left out without an error.
    """
    display = _started(description, total) if is_shown and total > 1 else None
    try:
        for item in items:
            if display is not None:
                _quietly(lambda: display.advance(display.task_ids[0]))
            yield item
    finally:
        if display is not None:
            _quietly(display.stop)


def _started(description: str, total: int) -> "Progress | None":
    """Start a progress bar; None if it cannot be shown."""
    from rich.console import Console
    from rich.progress import Progress

    display = Progress(console=Console(stderr=True), transient=True)
    display.add_task(description, total=total)
    return display if _quietly(display.start) else None


def _quietly(act: Callable[[], object]) -> bool:
    """Call a method of a progress bar; return whether it succeeded."""
    try:
        act()
    except Exception:  # a broken terminal must not stop the fit
        return False
    return True


DEFAULT_RANDOM_STARTS = 10
"""Default number of random starts: enough to see whether they agree."""


def run_given(
    problem: EMProblem, starts: Sequence[tuple[str, MixtureParameters]], options: FitOptions
) -> Portfolio:
    """Climb from several starts; stop each once it cannot reach the best one."""
    portfolio = Portfolio(problem)
    for origin, start in starts:
        best = portfolio.best
        target = None if best is None else best.log_likelihood - SAME_OPTIMUM
        try:
            run = problem.climb(start, target=target, **options.run)
        except BREAKDOWNS as error:
            portfolio.fail(origin, str(error))
        else:
            portfolio.add(origin, run)
    return portfolio


def run_random(problem: EMProblem, options: FitOptions, rng: np.random.Generator) -> Portfolio:
    """Climb from random starts, each to its maximum."""
    portfolio = Portfolio(problem)
    climb = partial(_climb_at_random, problem, options)
    for origin, run in each_random_start(climb, options, rng):
        if isinstance(run, str):
            portfolio.fail(origin, run)
        else:
            portfolio.add(origin, run)
    return portfolio


def each_random_start[Run](
    climb: Callable[[np.random.Generator], Run], options: FitOptions, rng: np.random.Generator
) -> Iterator[tuple[str, Run | str]]:
    """Run random starts in parallel with joblib, and show the progress."""
    from joblib import Parallel, delayed  # imported only when starts run in parallel

    n_starts = DEFAULT_RANDOM_STARTS if options.n_starts is None else options.n_starts
    tasks = (delayed(_guarded)(climb, stream) for stream in rng.spawn(n_starts))
    runs: Iterable[Run | str] = Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks)
    shown = track(runs, n_starts, "random starts", is_shown=options.progressbar)
    for rank, run in enumerate(shown, start=1):
        yield f"random {rank}", run


def _guarded[Run](
    climb: Callable[[np.random.Generator], Run], rng: np.random.Generator
) -> Run | str:
    """Climb from one random start; return the error message if it breaks down."""
    with single_threaded_blas():
        try:
            return climb(rng)
        except BREAKDOWNS as error:
            return str(error)


def _climb_at_random(
    problem: EMProblem, options: FitOptions, rng: np.random.Generator
) -> MaximiseResult:
    return problem.climb(random_parameters(problem, options.random_start, rng), **options.run)
