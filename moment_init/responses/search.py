"""Starts of a mixture with several responses: a single model, given shares, splits, random ones.

The search for the maximum: starts, short runs, the best few to the end, moves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigh

from moment_init.checks import FloatArray
from moment_init.em.runs import FitOptions
from moment_init.responses.climbing import Climb, FreePoint, climb, short_climb, sum_rows
from moment_init.responses.parameters import JointParameters, JointProblem, active_bounds
from moment_init.results import BREAKDOWNS, SAME_OPTIMUM, StartRecord, StartStatus

SHARE_STEPS = 4
"""Newton steps of the M-step from given responsibilities: each doubles the digits."""

SPLITS_EACH = 2
"""Directions in which each component is split."""

CHILD_DEVIATION = 0.6
"""Deviation of a child over that of its parent: a mixture of two hides less spread in each."""

SHORT_STEPS, BEAM_STEPS, BEAM = 8, 12, 2
"""Steps of EM after a split; those of the few that are kept; and how many are."""

ASSIGNED_SHARE = 0.9
"""Responsibility of the component to which a row is assigned at random."""


def fit_pooled(problem: JointProblem) -> JointParameters:
    """Fit a single component."""
    single = problem.with_components(1)
    p, n_predictors = problem.rows.Z.shape[1], problem.kind.n_predictors
    dispersion = None
    if any(problem.kind.has_dispersion):
        dispersion = np.where(problem.kind.has_dispersion, 1.0, np.nan)[None]
    start = JointParameters(
        np.zeros((p, 1, n_predictors)), mean_predictors(problem)[None], np.ones(1), dispersion
    )
    return climb(FreePoint.inside(single, start), max_steps=60, tolerance=1e-4).point.parameters


def mean_predictors(problem: JointProblem) -> FloatArray:
    """Predictors of the mean responses."""
    # -> (n_predictors,)
    rows = problem.rows
    shares = rows.sample_weight / rows.total_weight
    levels = np.zeros(problem.kind.n_predictors)
    for a, family in enumerate(problem.kind.families):
        if family is None:
            # Half a row of a class that a sample of the rows has none of.
            least = 0.5 / rows.n_obs
            own, reference = (shares @ (rows.y[0] == code) for code in (a + 1, 0))
            levels[a] = np.log(max(own, least) / max(reference, least))
            continue
        trials = rows.n_trials[a] if family.has_trials and rows.n_trials is not None else 1.0
        mean = np.asarray((shares @ rows.y[a]) / (shares @ np.broadcast_to(trials, rows.n_obs)))
        level = float(family.link.link(mean))
        if not np.isfinite(level):  # a sample of the rows whose responses are all the same
            even = family.link.mean(np.zeros(()))
            level = float(family.link.link((rows.n_obs * mean + even) / (rows.n_obs + 1)))
        levels[a] = level
        if rows.offset is not None:
            levels[a] -= float(shares @ rows.offset[a])
    return levels


def fit_shares(
    problem: JointProblem, shares: FloatArray, pooled: JointParameters
) -> JointParameters:
    """Fit every component to rows weighted by given responsibilities: an M-step."""
    # shares: (n_components, n_obs)
    r = problem.n_components
    weights = np.maximum(shares @ problem.rows.sample_weight, 1e-8)
    layout = problem.layout
    point = FreePoint(problem, _repeated(pooled, r, weights / weights.sum()))
    for _ in range(SHARE_STEPS):
        sums = sum_rows(problem, point.parameters, shares=shares, has_information=False)
        step = np.linalg.solve(sums.metric, sums.gradient)
        step = np.clip(step, -point.limits, point.limits)
        step[layout.logits] = 0.0
        moved = point.moved(step)
        for _ in range(5):
            value = sum_rows(problem, moved.parameters, shares=shares, has_information=False)
            if value.log_likelihood >= sums.log_likelihood:
                break
            step = step / 4.0
            moved = point.moved(step)
        point = moved
    return point.parameters


def _repeated(pooled: JointParameters, r: int, weights: FloatArray) -> JointParameters:
    return JointParameters(
        np.repeat(pooled.coefficients, r, axis=1),
        np.repeat(pooled.biases, r, axis=0),
        weights,
        None if pooled.dispersion is None else np.repeat(pooled.dispersion, r, axis=0),
    )


def random_shares(problem: JointProblem, rng: np.random.Generator) -> FloatArray:
    """Assign rows to components at random, softly."""
    # -> (n_components, n_obs)
    r, n_obs = problem.n_components, problem.rows.n_obs
    if r == 1:
        return np.ones((1, n_obs))
    shares = np.full((r, n_obs), (1.0 - ASSIGNED_SHARE) / (r - 1))
    shares[rng.integers(r, size=n_obs), np.arange(n_obs)] = ASSIGNED_SHARE
    return shares


def splits_of(
    problem: JointProblem, parameters: JointParameters, *, n_each: int = SPLITS_EACH
) -> list[tuple[float, int, JointParameters]]:
    r"""Split components where one model hides two: the information-matrix test.

    With :math:`A = \sum_i R_i s_i s_i'` and C the complete information of a component, over all of
    its predictors, the leading eigenvectors of :math:`A - C` relative to C are the directions in
    which the scores vary more than one model allows.
    """
    layout = problem.layout
    sums = sum_rows(problem, parameters)
    if sums.score_products is None:
        raise ValueError("score products are summed with the information")
    places = np.concatenate(
        [
            np.arange(layout.component_size)[layout.predictor(a)]
            for a in range(len(layout.has_dispersion))
        ]
    )  # not the dispersions
    found = []
    for j in range(layout.n_components):
        own = layout.component(j)
        metric = sums.metric[own, own][np.ix_(places, places)]
        excess = sums.score_products[j][np.ix_(places, places)] - metric
        values, vectors = eigh(excess, metric)
        for index in range(len(values) - 1, max(-1, len(values) - 1 - n_each), -1):
            move = np.zeros(layout.component_size)
            move[places] = vectors[:, index] * np.sqrt(max(sums.totals[j], 1e-8))
            # Half the squared excess in standard errors: what a test of it would show.
            gain = 0.25 * values[index] * abs(values[index]) * sums.totals[j]
            found.append((float(gain), j, _children(problem, parameters, j, move)))
    return sorted(found, key=lambda each: -each[0])


def _children(
    problem: JointProblem, parameters: JointParameters, j: int, move: FloatArray
) -> JointParameters:
    """The mixture with component j replaced by two, one on each side of it."""
    larger = problem.with_components(problem.n_components + 1).layout
    doubled = parameters.take([*range(parameters.n_components), j])
    weights = parameters.weights[[*range(parameters.n_components), j]].copy()
    weights[[j, -1]] /= 2.0
    dispersion = doubled.dispersion
    if dispersion is not None:
        dispersion = dispersion.copy()
        for a, family in enumerate(problem.kind.families):
            power = None if family is None else family.deviation_power
            if power is not None:
                dispersion[[j, -1], a] *= CHILD_DEVIATION ** (1 / power)
    vector = larger.pack(JointParameters(doubled.coefficients, doubled.biases, weights, dispersion))
    vector[larger.component(j)] += move
    vector[larger.component(parameters.n_components)] -= move
    return larger.unpack(vector)


def grow(problem: JointProblem, pooled: JointParameters) -> list[JointParameters]:
    """Add components one by one, each by a split, and keep the best few on the way."""
    beam = [pooled]
    for number in range(2, problem.n_components + 1):
        before, now = problem.with_components(number - 1), problem.with_components(number)
        candidates = [
            each
            for parameters in beam
            for _, _, each in splits_of(before, parameters)[: 2 * SPLITS_EACH]
        ]
        runs = [short_climb(FreePoint.inside(now, each), SHORT_STEPS) for each in candidates]
        runs.sort(key=lambda run: -run.value)
        longer = [short_climb(run.point, BEAM_STEPS) for run in runs[:BEAM]]
        longer.sort(key=lambda run: -run.value)
        beam = [run.point.parameters for run in longer]
    return beam


Start = tuple[str, JointParameters]

RANDOM_STARTS = 4
"""Random starts of the search beside splits and moments."""

RACE_STEPS, FINALISTS = 15, 3
"""Steps of EM that every start makes, and how many of them go on to their maximum."""

MOVES, MOVE_ROUNDS, LEAST_GAIN = 4, 6, 0.1
"""Moves that are tried in a round, rounds, and the gain in log-likelihood that counts."""


@dataclass(slots=True)
class JointSearch:
    """Runs of a fit, the best of them first in `best`."""

    problem: JointProblem  # the problem that was searched
    shift: float  # what takes its log-likelihood to the user's units
    best: Climb[FreePoint] | None = None  # the best run
    records: list[StartRecord] = field(default_factory=list)  # every start

    def add(self, origin: str, run: Climb[FreePoint]) -> None:
        """Record a run."""
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
        """Record a start that broke down."""
        self.records.append(
            StartRecord(origin, float("nan"), 0, StartStatus.FAILED, message=message)
        )


def run_given(problem: JointProblem, starts: list[Start], options: FitOptions) -> JointSearch:
    """Climb from given starts as they are."""
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
    """Climb from random starts alone."""
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
    """Run splits, moments and random starts, then moves out of the best maximum."""
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
