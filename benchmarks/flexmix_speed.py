"""Seconds of EM compared with R's flexmix and mixtools, on the same file to the same maximum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.peers_in_r import MISSING, PeerRun, has_peers, run_peers
from benchmarks.random_mixtures import fit_timed
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData, simulate_mixture

__all__ = ["BENCHMARK", "run"]

N_STARTS, QUICK_STARTS = 3, 1

# Our starts take a fraction of a second, so more of them are timed for a stable median.
STARTS_OF_OURS_FOR_EACH = 3

# The quick size fits counts only: R needs seconds to load for each run.
QUICK_FAMILIES, QUICK_OBS = ("poisson",), 400

# flexmix's default, at which it may still be far from its limit; also used for mixtools.
LOOSE_TOLERANCE = 1e-6

SAME_LIKELIHOOD = 1e-6
"""Two log-likelihoods within this relative distance count as the same."""

START_BAR, CALL_BAR = 20.0, 3.0


@dataclass(frozen=True, slots=True)
class SpeedProblem:
    """A mixture, and the tolerance at which flexmix reaches its limit."""

    family: str  # family of the response
    n_obs: int
    n_features: int
    n_components: int
    scale: float  # norm of the coefficients
    # power of ten at which flexmix ends within `SAME_LIKELIHOOD` of its limit; at ten times this,
    # at least one of the starts tried ended outside
    tolerance: float


PROBLEMS = (
    SpeedProblem("bernoulli", 5_000, 5, 2, 2.0, 1e-9),
    SpeedProblem("poisson", 5_000, 5, 3, 0.7, 1e-8),
    SpeedProblem("gaussian", 5_000, 10, 5, 2.0, 1e-7),
)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Timed starts of our EM and of the peers; the peers' lists are empty without R."""

    single_seconds: Sequence[float]
    single_likelihoods: Sequence[float]
    call_seconds: Sequence[float]
    call_likelihoods: Sequence[float]
    tight: Sequence[PeerRun]
    loose: Sequence[PeerRun]
    mixtools: Sequence[PeerRun]
    shortfall: float | None


def run(options: Options) -> Outcome:
    """Time single starts of our EM and of the peers, and the default call."""
    n_starts = options.data_sets(N_STARTS, QUICK_STARTS)
    are_there = has_peers()
    rows: list[Row] = []
    figures: list[Figure] = []
    for problem in _quick_problems() if options.is_quick else PROBLEMS:
        measured = _measure(problem, options.seed, n_starts, are_there)
        rows.append(_row(problem, measured))
        figures += _figures(problem, measured, is_judged=not options.is_quick)
    settings = {
        "peers": "flexmix, mixtools" if are_there else MISSING,
        "starts": n_starts,
        "starts of ours": STARTS_OF_OURS_FOR_EACH * n_starts,
        "flexmix tolerance": {problem.family: problem.tolerance for problem in PROBLEMS},
        "loose tolerance": LOOSE_TOLERANCE,
        "shortfall": (
            "median of (limit - flexmix) / |limit|, the limit by our EM from its end; flexmix's "
            "Gaussian variances, over n - p, are first put over n"
        ),
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _quick_problems() -> tuple[SpeedProblem, ...]:
    return tuple(
        replace(problem, n_obs=QUICK_OBS, tolerance=LOOSE_TOLERANCE)
        for problem in PROBLEMS
        if problem.family in QUICK_FAMILIES
    )


def _measure(problem: SpeedProblem, seed: int, n_starts: int, are_there: bool) -> _Measured:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        data = _through_file(problem, seed, path)
        fit_timed(data, seed)  # warm-up: the first call of a process includes imports
        seeds = range(seed, seed + STARTS_OF_OURS_FOR_EACH * n_starts)
        singles = [fit_timed(data, each, init="random", n_starts=1) for each in seeds]
        calls = [fit_timed(data, each) for each in seeds]
        tight = _peers(path, problem, "flexmix", problem.tolerance, n_starts, seed, are_there)
        loose = _peers(path, problem, "flexmix", LOOSE_TOLERANCE, n_starts, seed, are_there)
        mixtools = _peers(path, problem, "mixtools", LOOSE_TOLERANCE, 1, seed, are_there)
    return _Measured(
        single_seconds=[seconds for _, seconds in singles],
        single_likelihoods=[fit.log_likelihood for fit, _ in singles],
        call_seconds=[seconds for _, seconds in calls],
        call_likelihoods=[fit.log_likelihood for fit, _ in calls],
        tight=tight,
        loose=loose,
        mixtools=mixtools,
        shortfall=median(_shortfall(data, each) for each in tight) if tight else None,
    )


def _through_file(problem: SpeedProblem, seed: int, path: Path) -> MixtureData:
    """Write the data to a file and read it back, so that both sides see the same digits."""
    data = simulate_mixture(
        problem.n_obs,
        problem.n_features,
        problem.n_components,
        family=problem.family,
        scales=problem.scale,
        random_seed=seed,
    )
    data.to_frame().to_csv(path, index=False)
    frame = pd.read_csv(path)
    X = frame.drop(columns="y").to_numpy(dtype=np.float64)
    return replace(data, X=X, y=frame["y"].to_numpy(dtype=np.float64))


def _peers(
    path: Path,
    problem: SpeedProblem,
    method: str,
    tolerance: float,
    n_starts: int,
    seed: int,
    are_there: bool,
) -> list[PeerRun]:
    if not are_there:
        return []
    return run_peers(
        path,
        problem.n_components,
        family=problem.family,
        method=method,
        tolerance=tolerance,
        n_starts=n_starts,
        seed=seed,
    )


def _shortfall(data: MixtureData, peer: PeerRun) -> float:
    """Relative distance of a peer's end below the maximum of its own basin."""
    limit = fit_timed(data, init=peer.start)[0].log_likelihood
    return (limit - peer.comparable_likelihood) / abs(limit)


def _row(problem: SpeedProblem, measured: _Measured) -> Row:
    return {
        "family": problem.family,
        "n": problem.n_obs,
        "d": problem.n_features,
        "r": problem.n_components,
        "1 random s": median(measured.single_seconds),
        "default s": median(measured.call_seconds),
        "flexmix s": _seconds(measured.tight),
        "flexmix loose s": _seconds(measured.loose),
        "mixtools s": _seconds(measured.mixtools),
        "1 random": _likelihood(measured.single_likelihoods),
        "default": _likelihood(measured.call_likelihoods),
        "flexmix": _likelihood([each.log_likelihood for each in measured.tight]),
        "flexmix loose": _likelihood([each.log_likelihood for each in measured.loose]),
        "mixtools": _likelihood([each.log_likelihood for each in measured.mixtools]),
    }


def _figures(problem: SpeedProblem, measured: _Measured, *, is_judged: bool) -> list[Figure]:
    name, single = problem.family, median(measured.single_seconds)
    figures = [Figure(f"{name}: seconds of one random start", single)]
    flexmix = _seconds(measured.tight)
    if flexmix is None or measured.shortfall is None:
        return figures
    ratios = (
        ("one random start", flexmix / single, START_BAR),
        ("the default call", flexmix / median(measured.call_seconds), CALL_BAR),
    )
    figures += [
        Figure(
            f"{name}: seconds of a flexmix start over those of {what}",
            ratio,
            f">= {bar:g}",
            ratio >= bar if is_judged else None,
        )
        for what, ratio, bar in ratios
    ]
    shortfall = measured.shortfall
    is_met = shortfall <= SAME_LIKELIHOOD if is_judged else None
    bar = f"<= {SAME_LIKELIHOOD:g}"
    return [*figures, Figure(f"{name}: shortfall of flexmix", shortfall, bar, is_met)]


def _seconds(runs: Sequence[PeerRun]) -> float | None:
    return median(each.seconds for each in runs) if runs else None


def _likelihood(values: Sequence[float]) -> str | None:
    """Median, with enough digits to show a relative difference of 1e-6."""
    return f"{median(values):.4f}" if values else None


BENCHMARK = Benchmark(
    "flexmix_speed", "seconds of a start and of the default call against flexmix and mixtools", run
)
