"""A broad law of simulated problems: how often the default call reaches the highest optimum.

The reference of a problem is the highest interior optimum of the climb from the truth, random
starts of both kinds and default calls with other seeds.
"""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.broad_problems import BroadProblem, draw_problem
from benchmarks.checkpoints import Key
from benchmarks.real_data import (
    TOLERANCE,
    EndOfFit,
    fit_timed,
    reliability,
    reliability_figures,
    status_figures,
)
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import EMFit

__all__ = ["BENCHMARK", "is_interior", "run"]

N_PROBLEMS, QUICK_PROBLEMS = 200, 6

N_RANDOM = 50  # random starts of each kind
N_OTHER_SEEDS = 5


def run(options: Options) -> Outcome:
    """Fit every problem by the default call, and look for a higher optimum by other means."""
    n_problems = options.data_sets(N_PROBLEMS, QUICK_PROBLEMS)

    def measure(key: Key) -> dict[str, Any]:
        return _measured(draw_problem(options.seed, int(key[0])), options.seed)

    keys: list[Key] = [(index,) for index in range(n_problems)]
    measured = list(options.checkpoint.measure(keys, measure))
    rows = [
        *(_row("family", name, measured) for name in _values(measured, "family")),
        *(_row("form", name, measured) for name in _values(measured, "form")),
    ]
    interior = [each for each in measured if each["reference"] is not None]
    hits = [_is_hit(each) for each in interior]
    is_judged = not options.is_quick
    share = fmean(hits) if hits else 0.0
    ends = [EndOfFit(each["log_likelihood"], each["status"], each["seconds"]) for each in interior]
    figures = [
        Figure("share at the reference", share, ">= 0.97", share >= 0.97 if is_judged else None),
        Figure("problems with an interior reference", len(interior) / len(measured)),
        Figure("median seconds", median(each["seconds"] for each in measured)),
        *status_figures(ends, hits, is_judged=is_judged),
        *reliability_figures(measured, is_judged=is_judged),
    ]
    settings = {
        "problems": n_problems,
        "reached": f"log-likelihood >= that of the reference - {TOLERANCE:g}",
        "reference": f"highest interior optimum of the climb from the truth, {2 * N_RANDOM} random "
        f"starts and {N_OTHER_SEEDS} default calls with other seeds",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _measured(problem: BroadProblem, seed: int) -> dict[str, Any]:
    fit, seconds = fit_timed(problem, seed)
    others = [fit, fit_timed(problem, seed, init=problem.truth)[0]]
    for kind in ("assignment", "coefficients"):
        options = {"init": "random", "random_start": kind, "n_starts": N_RANDOM}
        others.append(fit_timed(problem, seed, **options)[0])
    further = [start for each in others[-2:] for start in each.starts]
    others += [fit_timed(problem, seed + k)[0] for k in range(1, N_OTHER_SEEDS + 1)]
    inside = [each.log_likelihood for each in others if is_interior(each)]
    return {
        "family": problem.options["family"],
        "form": problem.form,
        "log_likelihood": fit.log_likelihood,
        "status": str(fit.status),
        "seconds": seconds,
        "reference": max(inside, default=None),
        "is_interior": is_interior(fit),
        **reliability(fit, further),
    }


def is_interior(fit: EMFit) -> bool:
    """Whether no bound is binding and every component has more rows than parameters."""
    n_poisson = sum("is Poisson" in warning for warning in fit.warnings)  # a bound that is harmless
    size = fit.coefficients.shape[0] + 1 + (fit.dispersion is not None)
    is_inside = len(fit.bounds) == n_poisson
    return is_inside and bool(np.min(fit.responsibilities.sum(axis=0)) > size)


def _is_hit(measured: dict[str, Any]) -> bool:
    is_high = measured["log_likelihood"] >= measured["reference"] - TOLERANCE
    return bool(measured["is_interior"] and is_high)


def _values(measured: Sequence[dict[str, Any]], name: str) -> list[str]:
    return sorted({each[name] for each in measured})


def _row(name: str, value: str, measured: Sequence[dict[str, Any]]) -> Row:
    chosen = [each for each in measured if each[name] == value]
    interior = [each for each in chosen if each["reference"] is not None]
    return {
        "problems": value,
        "number": len(chosen),
        "interior reference": len(interior),
        "share": fmean(_is_hit(each) for each in interior) if interior else None,
        "ok": fmean(each["status"] == "ok" for each in chosen),
        "s": median(each["seconds"] for each in chosen),
    }


BENCHMARK = Benchmark(
    "broad_law", "share of calls that reach the highest optimum of broadly drawn problems", run
)
