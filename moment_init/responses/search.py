"""The search for the maximum: starts, short runs, the best few to the end, moves."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moment_init.em.options import FitOptions
from moment_init.em.start_records import BREAKDOWNS, SAME_OPTIMUM, StartRecord, StartStatus
from moment_init.responses.bounds import active_bounds
from moment_init.responses.climbing import Climb, climb, short_climb
from moment_init.responses.parameters import JointParameters
from moment_init.responses.points import FreePoint
from moment_init.responses.rows import JointProblem
from moment_init.responses.starts import (
    fit_pooled,
    fit_shares,
    grow,
    random_shares,
    splits_of,
)

__all__ = ["JointSearch", "run_given", "run_random", "search"]

FloatArray = NDArray[np.float64]
Start = tuple[str, JointParameters]

RANDOM_STARTS = 4
"""Random starts of the search beside splits and moments."""

RACE_STEPS, FINALISTS = 15, 3
"""Steps of EM that every start makes, and how many of them go on to their maximum."""

MOVES, MOVE_ROUNDS, LEAST_GAIN = 4, 6, 0.1
"""Moves that are tried in a round, rounds, and the gain in log-likelihood that counts."""


@dataclass(slots=True)
class JointSearch:
    """Runs of a fit, the best of them first in `best`.

    Parameters
    ----------
    problem : JointProblem
        The problem that was searched.
    shift : float
        What takes its log-likelihood to the user's units.
    best : Climb or None
        The best run.
    records : list of StartRecord
        Every start.
    """

    problem: JointProblem
    shift: float
    best: Climb[FreePoint] | None = None
    records: list[StartRecord] = field(default_factory=list)

    def add(self, origin: str, run: Climb[FreePoint]) -> None:
        """Record a run.

        Parameters
        ----------
        origin : str
            Where it started.
        run : Climb
            The run.
        """
        self.records.append(
            StartRecord(
                origin,
                run.value + self.shift,
                run.n_iter,
                run.status,
                active_bounds(self.problem, run.point.parameters),
            )
        )
        is_run = run.status is not StartStatus.RACED
        if is_run and (self.best is None or run.value > self.best.value):
            self.best = run

    def fail(self, origin: str, message: str) -> None:
        """Record a start that broke down.

        Parameters
        ----------
        origin : str
            Where it came from.
        message : str
            Why.
        """
        self.records.append(
            StartRecord(origin, float("nan"), 0, StartStatus.FAILED, message=message)
        )


def run_given(problem: JointProblem, starts: list[Start], options: FitOptions) -> JointSearch:
    """Climb from given starts as they are.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    starts : list of tuple of str and JointParameters
        Their origins and standardised parameters.
    options : FitOptions
        How long a run may be.

    Returns
    -------
    JointSearch
        The runs.
    """
    found = JointSearch(problem, problem.log_likelihood_shift)
    for origin, parameters in starts:
        try:
            point = FreePoint.inside(problem, parameters)
            found.add(origin, _climb(point, options))
        except BREAKDOWNS as error:
            found.fail(origin, str(error))
    return found


def run_random(
    problem: JointProblem, options: FitOptions, rng: np.random.Generator, n_starts: int = 10
) -> JointSearch:
    """Climb from random starts alone.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    options : FitOptions
        How long and how many.
    rng : numpy.random.Generator
        Source of the starts.
    n_starts : int
        How many, where the options do not say.

    Returns
    -------
    JointSearch
        The runs.
    """
    starts, failures = _random_starts(problem, options.n_starts or n_starts, rng)
    found = run_given(problem, starts, options)
    for origin, message in failures:
        found.fail(origin, message)
    return found


def search(
    problem: JointProblem,
    from_moments: Callable[[], list[Start]],
    options: FitOptions,
    rng: np.random.Generator,
) -> JointSearch:
    """Run splits, moments and random starts, then moves out of the best maximum.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    from_moments : callable
        Gives the starts of the moments.
    options : FitOptions
        How many random starts.
    rng : numpy.random.Generator
        Source of the random starts.

    Returns
    -------
    JointSearch
        The runs.
    """
    found = JointSearch(problem, problem.log_likelihood_shift)
    pooled = fit_pooled(problem)
    if problem.n_components == 1:
        found.add("single", climb(FreePoint.inside(problem, pooled), max_steps=options.max_iter))
        return found
    starts: list[Start] = []
    sources: dict[str, Callable[[], list[Start]]] = {
        "splits": lambda: [("splits", each) for each in grow(problem, pooled)],
        "tensor": from_moments,
    }
    for origin, source in sources.items():
        try:
            starts += source()
        except BREAKDOWNS as error:
            found.fail(origin, str(error))
    number = options.n_starts or RANDOM_STARTS
    random, failures = _random_starts(problem, number, rng, pooled)
    for origin, message in failures:
        found.fail(origin, message)
    _race(found, [*starts, *random])
    _move(found)
    return found


def _climb(point: FreePoint, options: FitOptions) -> Climb[FreePoint]:
    if options.max_iter == 0:
        return Climb(point, (point.value,), StartStatus.OUT_OF_STEPS)
    return climb(point, max_steps=options.max_iter, tolerance=options.tolerance)


def _random_starts(
    problem: JointProblem,
    number: int,
    rng: np.random.Generator,
    pooled: JointParameters | None = None,
) -> tuple[list[Start], list[tuple[str, str]]]:
    pooled = pooled or fit_pooled(problem)
    starts, failures = [], []
    for index, own in enumerate(rng.spawn(number)):
        origin = f"random {index + 1}"
        try:
            starts.append((origin, fit_shares(problem, random_shares(problem, own), pooled)))
        except BREAKDOWNS as error:
            failures.append((origin, str(error)))
    return starts, failures


def _race(found: JointSearch, starts: list[Start]) -> None:
    """Short runs of all starts; the best few, as far as they differ, to their maxima."""
    runs = []
    for origin, parameters in starts:
        try:
            runs.append(
                (origin, short_climb(FreePoint.inside(found.problem, parameters), RACE_STEPS))
            )
        except BREAKDOWNS as error:
            found.fail(origin, str(error))
    runs.sort(key=lambda each: -each[1].value)
    for place, (origin, run) in enumerate(runs):
        if place < FINALISTS:
            end = climb(run.point, max_steps=500, tolerance=1e-4, em_steps=0)
            found.add(origin, Climb(end.point, (*run.history[:-1], *end.history), end.status))
        else:
            found.add(origin, run)


def _move(found: JointSearch) -> None:
    """Drop a component and split another, while that gains."""
    problem, best = found.problem, found.best
    r = problem.n_components
    if best is None or r < 2:
        return
    for _ in range(MOVE_ROUNDS):
        parameters = best.point.parameters
        tried: list[tuple[float, JointParameters]] = []
        for dropped in range(r):
            kept = parameters.take([j for j in range(r) if j != dropped])
            smaller = problem.with_components(r - 1)
            settled = short_climb(FreePoint.inside(smaller, kept), 4)
            for gain, _, each in splits_of(smaller, settled.point.parameters, n_each=1)[:2]:
                tried.append((settled.value + gain, each))
        tried.sort(key=lambda each: -each[0])
        runs = [
            short_climb(FreePoint.inside(problem, each), RACE_STEPS)
            for _, each in tried[: MOVES + r]
        ]
        runs.sort(key=lambda run: -run.value)
        ends = [climb(run.point, max_steps=500, tolerance=1e-4, em_steps=0) for run in runs[:2]]
        better = max(ends, key=lambda end: end.value, default=None)
        if better is None or better.value < best.value + SAME_OPTIMUM:
            break
        gain = better.value - best.value
        found.add("moves", better)
        best = better
        if gain < LEAST_GAIN:
            break
