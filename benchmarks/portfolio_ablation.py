"""Ablation of the search: real data and a broad law of problems, without each of its parts.

The reference of a problem is the highest interior optimum that any of the searches, or on real data
any run ever, has reached. All searches of a problem have the same seed.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any
from unittest import mock

import moment_init.em.search
from benchmarks.broad_law import is_interior
from benchmarks.broad_problems import BroadProblem, draw_problem
from benchmarks.checkpoints import Key
from benchmarks.measuring import number
from benchmarks.real_data import TOLERANCE, fit_timed
from benchmarks.real_tables import RealProblem, load_real_problems
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init.em.search import SearchParts

__all__ = ["BENCHMARK", "VARIANTS", "run"]

# Problems of the broad law; the quick size takes so many of each set.
N_BROAD, QUICK_PROBLEMS = 60, 2

WHOLE = "all parts"

VARIANTS: Mapping[str, SearchParts] = {
    WHOLE: SearchParts(),
    "without tensor": SearchParts(use_tensor=False),
    "without growth": SearchParts(use_growth=False),
    "without bins": SearchParts(use_bins=False),
    "without moves": SearchParts(use_moves=False),
    "without perturbations": SearchParts(use_perturbations=False),
    "random starts only": SearchParts(
        use_tensor=False,
        use_growth=False,
        use_bins=False,
        use_moves=False,
        use_perturbations=False,
    ),
}


def run(options: Options) -> Outcome:
    """Search every problem with every set of parts."""
    n_broad = options.data_sets(N_BROAD, QUICK_PROBLEMS)
    real = {each.name: each for each in load_real_problems() if not each.is_degenerate}
    if options.is_quick:
        real = dict(sorted(real.items(), key=lambda pair: len(pair[1].y))[:QUICK_PROBLEMS])

    def measure(key: Key) -> dict[str, Any]:
        kind, name = key
        if kind == "real":
            problem = real[str(name)]
            return {"set": kind, **_measured(problem, options.seed, problem.best)}
        drawn = draw_problem(options.seed, int(name))
        return {"set": kind, **_measured(drawn, options.seed, None)}

    keys: list[Key] = [("real", name) for name in real]
    keys += [("broad law", index) for index in range(n_broad)]
    measured = list(options.checkpoint.measure(keys, measure))
    measured = [each for each in measured if each["reference"] is not None]
    rows = [_row(kind, name, measured) for kind in ("real", "broad law") for name in VARIANTS]
    figures = [Figure(f"{row['set']}, {row['parts']}: share", number(row, "share")) for row in rows]
    settings = {
        "problems": {kind: sum(each["set"] == kind for each in measured) for kind in _SETS},
        "share": f"interior optima within {TOLERANCE:g} of the highest one of all searches",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


_SETS = ("real", "broad law")


def _measured(problem: RealProblem | BroadProblem, seed: int, best: float | None) -> dict[str, Any]:
    """Log-likelihoods and seconds of all variants, and the highest interior optimum."""
    ends: dict[str, tuple[float, bool, float]] = {}
    for name, parts in VARIANTS.items():
        # parts are no argument of `fit_em`: users have no reason to leave one out
        with mock.patch.object(moment_init.em.search, "SearchParts", return_value=parts):
            fit, seconds = fit_timed(problem, seed)
        ends[name] = (fit.log_likelihood, is_interior(fit), seconds)
    inside = [value for value, is_inside, _ in ends.values() if is_inside]
    if best is not None:
        inside.append(best)
    return {"ends": ends, "reference": max(inside, default=None)}


def _row(kind: str, name: str, measured: Sequence[dict[str, Any]]) -> Row:
    chosen = [each for each in measured if each["set"] == kind]
    ends = [(*each["ends"][name], each["reference"]) for each in chosen]
    hits = [is_inside and value >= best - TOLERANCE for value, is_inside, _, best in ends]
    return {
        "set": kind,
        "parts": name,
        "share": fmean(hits) if hits else 0.0,
        "median s": median(seconds for _, _, seconds, _ in ends) if ends else None,
    }


BENCHMARK = Benchmark(
    "portfolio_ablation", "share of problems at the optimum without each part of the search", run
)
