"""Search for the best fit of a mixture of experts with a Gaussian gate.

There are two kinds of high maxima. In the first, the components differ in their responses; searches
with a logit gate or without a gate find these. In the second, they are clusters of the gating
covariates; starts from clusters find these. Random starts cover cases in between. All starts are
raced by short runs, and the best ones are run to their maxima.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.em.gaussian_gate import GatedProblem, GatedRun
from moment_init.em.result import EMFit
from moment_init.em.runs import DEFAULT_RANDOM_STARTS, FINISH, RACE, FitOptions, each_random_start
from moment_init.em.starts import (
    ASSIGNED_SHARE,
    OTHER_SHARE,
    fit_responsibilities,
    given_starts,
    random_parameters,
)
from moment_init.likelihood.gate import GatedMixture, unit_values
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.results import BREAKDOWNS, SAME_OPTIMUM, StartRecord, StartStatus

Start = tuple[str, Callable[[], GatedMixture]]

N_CLUSTERINGS = 6
"""Number of starts from clusters. Each draws new distant centres, and about every second draw is
good if the clusters are well separated."""

N_FINISHERS = 6
"""Number of distinct starts that are run to their maxima: short runs do not determine the order
of maxima of similar height, and there are rarely more of them."""


@dataclass(slots=True)
class GatedSearch:
    """The runs so far and the best of them."""

    gated: GatedProblem
    records: list[StartRecord] = field(default_factory=list)  # all starts, in the order they ended
    best: GatedRun | None = None

    def run(self, origin: str, start: Callable[[], GatedMixture], **options: Any) -> None:
        """Climb from a start, and record it even if it breaks down."""
        target = None if self.best is None else self.best.end.log_likelihood - SAME_OPTIMUM
        try:
            self.add(origin, self.gated.climb(start(), target=target, **options))
        except BREAKDOWNS as error:
            self.fail(origin, str(error))

    def finish(self, origin: str, start: GatedMixture) -> None:
        """Run a start to its maximum, or until it cannot reach the best one."""
        self.run(origin, lambda: start, **FINISH)

    def add(self, origin: str, run: GatedRun, status: StartStatus | None = None) -> None:
        """Record a run, and keep it if it is the best."""
        end = run.end
        value = end.log_likelihood - self.gated.log_jacobian
        ending = status or StartStatus(str(end.ending))
        self.records.append(StartRecord(origin, value, end.n_iter, ending, end.bounds))
        is_better = self.best is None or end.log_likelihood > self.best.end.log_likelihood
        if status is None and is_better:
            self.best = run

    def fail(self, origin: str, message: str) -> None:
        """Record a start that broke down."""
        failed = StartRecord(origin, float("nan"), 0, StartStatus.FAILED, message=message)
        self.records.append(failed)


def run_gated_given(
    gated: GatedProblem,
    init: Any,
    options: FitOptions,
    has_weight: NDArray[np.bool_],
    feature_names: tuple[str, ...],
    response_names: tuple[str, ...] = (),
) -> GatedSearch:
    """Climb from the start that the user passed."""
    # has_weight: (n_obs,)
    search = GatedSearch(gated)
    if isinstance(init, EMFit) and init.gate_means is not None:
        mixture = given_starts(gated.base, init, has_weight, feature_names, response_names)[0][1]
        search.run("given", lambda: _with_gate_of(gated, mixture, init), **options.run)
        return search
    starts = given_starts(gated.logit, init, has_weight, feature_names, response_names)
    for origin, parameters in starts:
        search.run(origin, _starter(gated, parameters), **options.run)
    return search


def run_gated_random(
    gated: GatedProblem, options: FitOptions, rng: np.random.Generator
) -> GatedSearch:
    """Climb from random starts, each to its maximum."""
    search = GatedSearch(gated)
    for origin, run in each_random_start(partial(_climb_at_random, gated, options), options, rng):
        if isinstance(run, str):
            search.fail(origin, run)
        else:
            search.add(origin, run)
    return search


def search_gated(
    gated: GatedProblem,
    found: Sequence[tuple[str, MixtureParameters]],
    options: FitOptions,
    rng: np.random.Generator,
) -> GatedSearch:
    """Race starts of several origins, and run the best ones to their maxima."""
    starts: list[Start] = [(origin, _starter(gated, parameters)) for origin, parameters in found]
    search = GatedSearch(gated)
    if options.max_iter == 0:
        for origin, start in starts:
            search.run(origin, start, max_steps=0)
        return search
    n_random = DEFAULT_RANDOM_STARTS if options.n_starts is None else options.n_starts
    for rank, stream in enumerate(rng.spawn(N_CLUSTERINGS), start=1):
        starts.append((f"clusters {rank}", _cluster_starter(gated, stream)))
    for rank, stream in enumerate(rng.spawn(n_random), start=1):
        starts.append((f"random {rank}", _random_starter(gated, options, stream)))
    raced = sorted(_raced(search, starts), key=lambda run: -run[1].end.log_likelihood)
    last, n_finished = np.inf, 0
    for origin, run in raced:
        value = run.end.log_likelihood
        if n_finished < N_FINISHERS and value < last - SAME_OPTIMUM:
            search.finish(origin, run.at)
            last, n_finished = value, n_finished + 1
        else:
            search.add(origin, run, StartStatus.RACED)
    return search


def finish_gated(
    gated: GatedProblem, search: GatedSearch, options: FitOptions
) -> tuple[GatedRun, list[StartRecord]]:
    """Climb on all rows from the best run of a search, to the tolerance."""
    if search.best is None:
        raise ValueError("`search` must have a best run; got none. Run a start first.")
    limits: dict[str, Any] = {"max_steps": options.max_iter, "tolerance": options.tolerance}
    run = gated.climb(search.best.at, damping=0.0, **limits)
    if search.gated is not gated:
        return run, [replace(record, is_sampled=True) for record in search.records]
    before, end = search.best.end, run.end
    history = (*before.history, *end.history[1:])
    joined = replace(end, history=history, n_iter=before.n_iter + end.n_iter)
    return replace(run, end=joined), search.records


def _raced(search: GatedSearch, starts: Sequence[Start]) -> list[tuple[str, GatedRun]]:
    """Run every start for a few steps; return the runs that did not break down."""
    runs = []
    for origin, start in starts:
        try:
            runs.append((origin, search.gated.climb(start(), **RACE)))
        except BREAKDOWNS as error:
            search.fail(origin, str(error))
    return runs


def _starter(gated: GatedProblem, parameters: MixtureParameters) -> Callable[[], GatedMixture]:
    return lambda: gated.start_from(parameters)


def _cluster_starter(gated: GatedProblem, rng: np.random.Generator) -> Callable[[], GatedMixture]:
    def start() -> GatedMixture:
        shares = _cluster_shares(gated, rng)
        return gated.with_shares(fit_responsibilities(gated.base, shares), shares)

    return start


def _random_starter(
    gated: GatedProblem, options: FitOptions, rng: np.random.Generator
) -> Callable[[], GatedMixture]:
    def start() -> GatedMixture:
        return gated.start_from(random_parameters(gated.base, options.random_start, rng))

    return start


def _cluster_shares(gated: GatedProblem, rng: np.random.Generator) -> FloatArray:
    """Assign units softly to the nearest of several distant centres, drawn as in k-means++."""
    covariates, weight = unit_values(gated.logit.rows)
    white = solve_triangular(gated.pooled_root, covariates.T, lower=True).T
    n_units, r = len(white), gated.base.n_components
    distances = np.empty((n_units, r))
    chances = weight
    for component in range(r):
        centre = white[rng.choice(n_units, p=chances / chances.sum())]
        distances[:, component] = np.square(white - centre).sum(axis=1)
        nearest = distances[:, : component + 1].min(axis=1)
        # all distances are zero if there are fewer distinct values than components
        chances = weight * nearest if nearest.any() else weight
    shares = np.full((n_units, r), OTHER_SHARE)
    shares[np.arange(n_units), distances.argmin(axis=1)] = ASSIGNED_SHARE
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _with_gate_of(gated: GatedProblem, mixture: MixtureParameters, fit: EMFit) -> GatedMixture:
    """Add the gate of a fit to its mixture; ignore it if it has other gating covariates."""
    gate = fit.gaussian_gate
    if gate is None or gate.n_gate != len(gated.pooled_root):
        return gated.start_from(mixture)
    mean, scales = gated.coordinates.mean, gated.coordinates.scales
    return GatedMixture(mixture, gate.rescale(-mean / scales, 1 / scales))


def _climb_at_random(
    gated: GatedProblem, options: FitOptions, rng: np.random.Generator
) -> GatedRun:
    return gated.climb(_random_starter(gated, options, rng)(), **options.run)
