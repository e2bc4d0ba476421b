"""Real data: how often the default call reaches the best known optimum, and what it says of itself.

Degenerate problems, whose best fit lies on a bound, do not count in shares: of them only the status
is reported. The starts of flexmix are read from a file, which `benchmarks.flexmix_real` writes.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.checkpoints import Key
from benchmarks.real_tables import RealProblem, load_flexmix, load_real_problems
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import EMFit, fit_em
from moment_init.results import StartRecord

__all__ = [
    "BENCHMARK",
    "TOLERANCE",
    "EndOfFit",
    "fit_timed",
    "reliability",
    "reliability_figures",
    "run",
    "status_figures",
]

N_SEEDS, QUICK_SEEDS = 10, 1

# The quick size runs on tables of at most this many rows.
QUICK_ROWS = 100

# Optima whose log-likelihoods differ by less count as one.
TOLERANCE = 0.05

# Random starts of each kind from the first seed, and from each other one.
N_RANDOM, N_FURTHER = 100, 10

# Time of a longer search, and number of seeds from which it is run.
LONGER_SECONDS = 20.0
N_LONGER = 2

CONVERGED = ("converged", "recognised")

PUBLISHED = "mus03_gate_k3"  # the example of Stata's manual


@dataclass(frozen=True, slots=True)
class EndOfFit:
    """What one call of `fit_em` returned."""

    log_likelihood: float
    status: str
    seconds: float


def run(options: Options) -> Outcome:
    """Fit every model from many seeds, beside random starts of both kinds."""
    problems = {problem.name: problem for problem in load_real_problems()}
    if options.is_quick:
        problems = {name: each for name, each in problems.items() if len(each.y) <= QUICK_ROWS}
    n_seeds = options.data_sets(N_SEEDS, QUICK_SEEDS)

    def measure(key: Key) -> dict[str, Any]:
        return _measured(problems[str(key[0])], int(key[1]), rank=int(key[1]) - options.seed)

    seeds = range(options.seed, options.seed + n_seeds)
    keys: list[Key] = [(name, seed) for name in problems for seed in seeds]
    measured = list(options.checkpoint.measure(keys, measure))
    by_problem = {name: [each for each in measured if each["problem"] == name] for name in problems}
    rows = [_row(problems[name], runs) for name, runs in by_problem.items() if runs]
    figures = _figures(problems, measured, is_judged=not options.is_quick)
    settings = {
        "seeds": n_seeds,
        "reached": f"log-likelihood >= best known - {TOLERANCE:g}",
        "longer": f"{min(n_seeds, N_LONGER)} seeds with max_seconds={LONGER_SECONDS:g}",
        "random": f"share of {N_RANDOM} random starts of each kind that reach it; "
        f"{N_FURTHER} from each seed but the first for the reliability of estimates",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def fit_timed(problem: Any, seed: int, **options: Any) -> tuple[EMFit, float]:
    """Fit a problem in one process, and return the fit with the seconds it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says what they say
        start = time.perf_counter()
        fit = fit_em(
            problem.X,
            problem.y,
            problem.n_components,
            random_seed=seed,
            progressbar=False,
            **problem.options,
            **options,
        )
        return fit, time.perf_counter() - start


def status_figures(
    ends: Sequence[EndOfFit], hits: Sequence[bool], *, is_judged: bool
) -> list[Figure]:
    """Share of calls at the best optimum, and of misses, with status ok."""
    figures = []
    of_hits = [end.status == "ok" for end, is_hit in zip(ends, hits, strict=True) if is_hit]
    of_misses = [end.status == "ok" for end, is_hit in zip(ends, hits, strict=True) if not is_hit]
    if of_hits:
        share = fmean(of_hits)
        is_met = share >= 0.85 if is_judged else None
        figures.append(
            Figure("calls at the best optimum: share with status ok", share, ">= 0.85", is_met)
        )
    if of_misses:
        is_met = sum(of_misses) <= len(of_misses) / 4 + 1 if is_judged else None
        share = fmean(of_misses)
        figures.append(Figure("misses: share with status ok", share, "<= 0.25, plus one", is_met))
    return figures


def _measured(problem: RealProblem, seed: int, *, rank: int) -> dict[str, Any]:
    """Default call from one seed; from the first seeds also longer searches and random starts."""
    fit, seconds = fit_timed(problem, seed)
    longer = None
    if rank < N_LONGER:
        longer = fit_timed(problem, seed, max_seconds=LONGER_SECONDS)[0].log_likelihood
    shares: dict[str, Any] = {}
    further: list[StartRecord] = []
    for kind in ("assignment", "coefficients"):
        n_starts = N_RANDOM if rank == 0 else N_FURTHER
        random, _ = fit_timed(problem, seed, init="random", random_start=kind, n_starts=n_starts)
        further += random.starts
        ends = np.array([start.log_likelihood for start in random.starts])
        shares[kind] = float(np.mean(ends >= problem.best - TOLERANCE))
    return {
        "problem": problem.name,
        "log_likelihood": fit.log_likelihood,
        "status": str(fit.status),
        "seconds": seconds,
        "longer": longer,
        **reliability(fit, further),
        **shares,
    }


def reliability(fit: EMFit, further: Sequence[StartRecord]) -> dict[str, float | None]:
    """Estimates of what a further random start finds, and the shares of them that found it."""
    if fit.unseen_mass is None or fit.unseen_mass.is_sampled:
        return dict.fromkeys(("mass", "new", "better", "found better"))
    seen = np.array([each.log_likelihood for each in _random_ends(fit.starts)])
    ends = np.array([each.log_likelihood for each in _random_ends(further)])
    gaps = np.abs(ends[:, None] - seen).min(axis=1, initial=np.inf)
    is_inside = np.array([not each.bounds for each in _random_ends(further)])
    is_better = is_inside & (ends > fit.log_likelihood + TOLERANCE)
    return {
        "mass": fit.unseen_mass.mass,
        "new": float(np.mean(gaps > TOLERANCE)),
        "better": fit.unseen_mass.better,
        "found better": float(np.mean(is_better)),
    }


def _random_ends(starts: Sequence[StartRecord]) -> list[StartRecord]:
    """Records of the random starts that converged."""
    return [
        start
        for start in starts
        if start.origin.startswith("random") and str(start.status) in CONVERGED
    ]


def reliability_figures(measured: Sequence[dict[str, Any]], *, is_judged: bool) -> list[Figure]:
    """Mean of what happened over the mean of its estimate, over all calls and by its size."""
    figures = []
    for estimate, happened, edges in (
        ("mass", "new", (0.0, 0.02, 0.1, 0.3, 1.01)),
        ("better", "found better", (0.0, 0.001, 0.01, 0.1, 1.01)),
    ):
        pairs = [(run[estimate], run[happened]) for run in measured if run[estimate] is not None]
        if not pairs:
            continue
        expected, seen = fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs)
        ratio = seen / expected if expected else 1.0
        name = f"share of further starts with a {happened.split()[-1]} optimum over its estimate"
        is_met = 0.5 <= ratio <= 2.0 if is_judged else None
        figures.append(Figure(name, ratio, "0.5 to 2", is_met))
        for low, high in pairwise(edges):
            chosen = [pair for pair in pairs if low <= pair[0] < high]
            if chosen:
                label = f"  estimate {fmean(pair[0] for pair in chosen):.3g} ({len(chosen)} calls)"
                figures.append(Figure(label, fmean(pair[1] for pair in chosen)))
    return figures


def _row(problem: RealProblem, runs: Sequence[dict[str, Any]]) -> Row:
    ends = [run["log_likelihood"] for run in runs]
    flexmix = load_flexmix().get(problem.name)
    return {
        "problem": problem.name,
        "n": len(problem.y),
        "best known": f"{problem.best:.4f}" + (" (bound)" if problem.is_degenerate else ""),
        "highest": f"{max(ends):.4f}",
        "share": fmean(end >= problem.best - TOLERANCE for end in ends),
        "longer": fmean(each >= problem.best - TOLERANCE for each in _longer(runs)),
        "ok": fmean(run["status"] == "ok" for run in runs),
        "s": median(run["seconds"] for run in runs),
        "1 assignment": runs[0]["assignment"],
        "1 coefficients": runs[0]["coefficients"],
        "1 flexmix": flexmix.share(problem.best - TOLERANCE) if flexmix else None,
    }


def _longer(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Log-likelihoods of the longer searches."""
    return [run["longer"] for run in runs if run["longer"] is not None]


def _figures(
    problems: dict[str, RealProblem], measured: Sequence[dict[str, Any]], *, is_judged: bool
) -> list[Figure]:
    interior = [run for run in measured if not problems[run["problem"]].is_degenerate]
    hits = [run["log_likelihood"] >= problems[run["problem"]].best - TOLERANCE for run in interior]
    share, seconds = fmean(hits), median(run["seconds"] for run in measured)
    figures = [
        Figure(
            "share of calls at the best", share, ">= 0.93", share >= 0.93 if is_judged else None
        ),
        Figure("median seconds", seconds, "<= 1", seconds <= 1 if is_judged else None),
    ]
    longer = fmean(
        run["longer"] >= problems[run["problem"]].best - TOLERANCE
        for run in interior
        if run["longer"] is not None
    )
    is_met = longer >= 0.97 if is_judged else None
    figures.append(
        Figure(f"the same with max_seconds={LONGER_SECONDS:g}", longer, ">= 0.97", is_met)
    )
    for kind in ("assignment", "coefficients"):
        figures.append(Figure(f"share of one random {kind}", fmean(run[kind] for run in interior)))
    figures += _flexmix_figures(problems, interior)
    ends = [EndOfFit(run["log_likelihood"], run["status"], run["seconds"]) for run in interior]
    figures += status_figures(ends, hits, is_judged=is_judged)
    published = [
        is_hit for run, is_hit in zip(interior, hits, strict=True) if run["problem"] == PUBLISHED
    ]
    if published:
        share = fmean(published)
        name = "Stata's published fit: share of seeds"
        figures.append(Figure(name, share, "1", share == 1 if is_judged else None))
    bounded = [run["status"] for run in measured if problems[run["problem"]].is_degenerate]
    if bounded:
        share = fmean(status == "ok" for status in bounded)
        figures.append(Figure("degenerate problems: share with status ok", share))
    return figures + reliability_figures(measured, is_judged=is_judged)


def _flexmix_figures(
    problems: dict[str, RealProblem], interior: Sequence[dict[str, Any]]
) -> list[Figure]:
    """Shares of single random starts on the problems that flexmix ran on, and their times."""
    flexmix = load_flexmix()
    common = [run for run in interior if run["problem"] in flexmix]
    if not common:
        return []
    names = sorted({run["problem"] for run in common})
    shares = {
        "flexmix start": fmean(
            flexmix[name].share(problems[name].best - TOLERANCE) for name in names
        ),
        "random assignment": fmean(run["assignment"] for run in common),
        "random coefficients": fmean(run["coefficients"] for run in common),
    }
    ratio = median(flexmix[name].seconds_ratio for name in names)
    return [
        *(
            Figure(f"{len(names)} problems that flexmix has: share of one {kind}", share)
            for kind, share in shares.items()
        ),
        Figure("seconds of a flexmix start over those of one random assignment", ratio),
    ]


BENCHMARK = Benchmark(
    "real_data", "share of calls that reach the best known optimum of real data", run
)
