"""Seconds of EM compared with R's flexmix and mixtools, on the same files.

flexmix runs at its default tolerance, at which it may stop short of its limit, and at a tolerance
at which it reaches the same maximum. Seconds are medians over the starts on all data sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.peers_in_r import MISSING, PeerRun, has_peers, run_peers
from benchmarks.random_mixtures import fit_timed
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import EMFit, MixtureData, simulate_mixture

__all__ = ["BENCHMARK", "run"]

N_DATA_SETS, QUICK_DATA_SETS = 5, 1

# Starts of flexmix on each data set.
N_STARTS, QUICK_STARTS = 3, 1

# Our starts take a fraction of a second, so more of them are timed for a stable median.
STARTS_OF_OURS_FOR_EACH = 3

# The quick size fits counts only: R needs seconds to load for each run.
QUICK_FAMILIES, QUICK_OBS = ("poisson",), 400

# flexmix's default; also used for mixtools.
DEFAULT_TOLERANCE = 1e-6

SAME_LIKELIHOOD = 1e-6
"""Two log-likelihoods within this relative distance count as the same."""

# A random start is compared at flexmix's default tolerance, the default call at the tight one.
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
    """Timed starts on all data sets; the peers' lists are empty without R."""

    singles: Sequence[tuple[EMFit, float]]  # our random starts, with their seconds
    calls: Sequence[tuple[EMFit, float]]  # our default calls
    tight: Sequence[PeerRun]
    loose: Sequence[PeerRun]  # at flexmix's default tolerance
    mixtools: Sequence[PeerRun]
    shortfalls: Sequence[float]  # of the tight runs


def run(options: Options) -> Outcome:
    """Time single starts of our EM and of the peers, and the default call."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    n_starts = QUICK_STARTS if options.is_quick else N_STARTS
    seeds = range(options.seed, options.seed + n_data_sets)
    are_there = has_peers()
    rows: list[Row] = []
    figures: list[Figure] = []
    for problem in _quick_problems() if options.is_quick else PROBLEMS:
        measured = _joined([_measure(problem, seed, n_starts, are_there) for seed in seeds])
        rows.append(_row(problem, measured))
        figures += _figures(problem, measured, is_judged=not options.is_quick)
    settings = {
        "peers": "flexmix, mixtools" if are_there else MISSING,
        "data sets": n_data_sets,
        "starts on each": n_starts,
        "starts of ours on each": STARTS_OF_OURS_FOR_EACH * n_starts,
        "flexmix tolerance": {problem.family: problem.tolerance for problem in PROBLEMS},
        "loose tolerance": DEFAULT_TOLERANCE,
        "shortfall": (
            "median of (limit - flexmix) / |limit|, the limit by our EM from its end; flexmix's "
            "Gaussian variances, over n - p, are first put over n"
        ),
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _quick_problems() -> tuple[SpeedProblem, ...]:
    return tuple(
        replace(problem, n_obs=QUICK_OBS, tolerance=DEFAULT_TOLERANCE)
        for problem in PROBLEMS
        if problem.family in QUICK_FAMILIES
    )


def _measure(problem: SpeedProblem, seed: int, n_starts: int, are_there: bool) -> _Measured:
    """Time all methods on one data set."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        data = _through_file(problem, seed, path)
        fit_timed(data, seed)  # warm-up: the first call of a process imports and compiles
        seeds = range(seed, seed + STARTS_OF_OURS_FOR_EACH * n_starts)
        singles = [fit_timed(data, each, init="random", n_starts=1) for each in seeds]
        calls = [fit_timed(data, each) for each in seeds]
        tight = _peers(path, problem, "flexmix", problem.tolerance, n_starts, seed, are_there)
        loose = _peers(path, problem, "flexmix", DEFAULT_TOLERANCE, n_starts, seed, are_there)
        mixtools = _peers(path, problem, "mixtools", DEFAULT_TOLERANCE, 1, seed, are_there)
    shortfalls = [_shortfall(data, each) for each in tight]
    return _Measured(singles, calls, tight, loose, mixtools, shortfalls)


def _joined(parts: Sequence[_Measured]) -> _Measured:
    """Join the measurements of all data sets."""
    names = [field.name for field in fields(_Measured)]
    return _Measured(*(list(chain(*(getattr(part, name) for part in parts))) for name in names))


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
        "1 random s": median(seconds for _, seconds in measured.singles),
        "default s": median(seconds for _, seconds in measured.calls),
        "flexmix s": _seconds(measured.tight),
        "flexmix loose s": _seconds(measured.loose),
        "mixtools s": _seconds(measured.mixtools),
        "1 random": _likelihood([fit.log_likelihood for fit, _ in measured.singles]),
        "default": _likelihood([fit.log_likelihood for fit, _ in measured.calls]),
        "flexmix": _likelihood([each.log_likelihood for each in measured.tight]),
        "flexmix loose": _likelihood([each.log_likelihood for each in measured.loose]),
        "mixtools": _likelihood([each.log_likelihood for each in measured.mixtools]),
    }


def _figures(problem: SpeedProblem, measured: _Measured, *, is_judged: bool) -> list[Figure]:
    name, single = problem.family, median(seconds for _, seconds in measured.singles)
    figures = [Figure(f"{name}: seconds of one random start", single)]
    tight, loose = _seconds(measured.tight), _seconds(measured.loose)
    if tight is None or loose is None:
        return figures
    start = f"{name}: seconds of a flexmix start over those of one random start"
    ratio, same = loose / single, tight / single
    is_met = ratio >= START_BAR if is_judged else None
    figures.append(Figure(f"{start}, default tolerance", ratio, f">= {START_BAR:g}", is_met))
    figures.append(Figure(f"{start}, same log-likelihood", same))
    ratio = tight / median(seconds for _, seconds in measured.calls)
    is_met = ratio >= CALL_BAR if is_judged else None
    call = f"{name}: seconds of a flexmix start over those of the default call, same log-likelihood"
    figures.append(Figure(call, ratio, f">= {CALL_BAR:g}", is_met))
    shortfall = median(measured.shortfalls)
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
