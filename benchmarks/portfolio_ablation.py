"""Ablation of the search: share of success and time without each of its parts.

A search succeeds if its log-likelihood is at least that of EM started at the truth, minus 1. All
searches of a data set have the same seed, so that they differ by their parts only.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np

from benchmarks.gauntlet import TOLERANCE
from benchmarks.random_mixtures import GAUNTLET, RandomMixture, draw
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData
from moment_init.data.blocks import single_threaded_blas
from moment_init.data.checking import validate_data
from moment_init.em.problem import EMProblem, pose_em
from moment_init.em.runs import FINISH
from moment_init.em.search import SearchParts, search
from moment_init.em.starts import Start, random_parameters, tensor_starts
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["BENCHMARK", "RANDOM", "VARIANTS", "run"]

N_DATA_SETS, QUICK_DATA_SETS = 20, 1

# The mixtures R1 to R5; the quick size takes the first with all of its rows, as searches on fewer
# rows take longer.
MIXTURES = GAUNTLET[:5]
QUICK_MIXTURES = slice(0, 1)

N_TIMED = 3
"""The mean time of this many random starts is the unit of time on a data set."""

WHOLE = "all parts"
RANDOM = "random starts only"

VARIANTS: dict[str, SearchParts] = {
    WHOLE: SearchParts(),
    "without tensor": SearchParts(use_tensor=False),
    "without growth": SearchParts(use_growth=False),
    "without bins": SearchParts(use_bins=False),
    "without moves": SearchParts(use_moves=False),
    "without perturbations": SearchParts(use_perturbations=False),
    "random starts and ways out of optima": SearchParts(
        use_tensor=False, use_growth=False, use_bins=False
    ),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One search of one data set."""

    is_reached: bool  # whether it succeeded
    seconds: float  # time of the search
    unit: float  # mean time of a random start on this data set


def run(options: Options) -> Outcome:
    """Search every data set of five mixtures with every set of parts."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    for mixture in MIXTURES[QUICK_MIXTURES] if options.is_quick else MIXTURES:
        measured = [
            _measure(draw(mixture, options.seed, index), options.seed, index)
            for index in range(n_data_sets)
        ]
        rows += [_row(mixture, name, [each[name] for each in measured]) for name in measured[0]]
    settings = {
        "data_sets": n_data_sets,
        "success": f"log-likelihood >= that of EM from the truth - {TOLERANCE:g}",
        "starts": f"seconds of a search over those of a random start, mean of {N_TIMED} of them",
        RANDOM: f"as many of them as take the time of {WHOLE!r}, by `starts` on that data set",
    }
    return Outcome(tuple(rows), tuple(_figures(rows)), settings)


def _measure(data: MixtureData, seed: int, index: int) -> dict[str, Measurement]:
    """Search one data set with every set of parts."""
    checked = validate_data(data.X, data.y, family=data.family)

    def stream(purpose: int) -> np.random.Generator:
        return np.random.default_rng([seed, index, purpose])

    with single_threaded_blas():
        problem = pose_em(checked, data.weights.size).prepared()
        goal = _end_from_truth(problem, data) - TOLERANCE
        _, seconds = _timed(partial(_best_of_random, problem, N_TIMED, stream(1)))
        unit = seconds / N_TIMED
        result = {}
        for name, parts in VARIANTS.items():
            starts = partial(tensor_starts, problem, checked, stream(2))
            value, seconds = _timed(partial(_best_of_search, problem, starts, stream(3), parts))
            result[name] = Measurement(value >= goal, seconds, unit)
        n_starts = max(1, round(result[WHOLE].seconds / unit))
        value, seconds = _timed(partial(_best_of_random, problem, n_starts, stream(4)))
        result[RANDOM] = Measurement(value >= goal, seconds, unit)
    return result


def _timed(function: Callable[[], float]) -> tuple[float, float]:
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def _end_from_truth(problem: EMProblem, data: MixtureData) -> float:
    truth = MixtureParameters(data.coefficients, data.biases, data.weights, data.dispersion)
    return problem.climb(problem.to_standardised(truth), **FINISH).log_likelihood


def _best_of_search(
    problem: EMProblem,
    starts: Callable[[], list[Start]],
    rng: np.random.Generator,
    parts: SearchParts,
) -> float:
    best = search(problem, starts, rng, parts=parts).best
    return -math.inf if best is None else best.log_likelihood


def _best_of_random(problem: EMProblem, n_starts: int, rng: np.random.Generator) -> float:
    starts = (random_parameters(problem, "both", rank, rng) for rank in range(n_starts))
    ends = (problem.climb(start, **FINISH) for start in starts)
    return max(end.log_likelihood for end in ends)


def _row(mixture: RandomMixture, name: str, measured: Sequence[Measurement]) -> Row:
    return {
        "mixture": mixture.name,
        "n": mixture.n_obs,
        "parts": name,
        "share": fmean(each.is_reached for each in measured),
        "starts": fmean(each.seconds for each in measured) / fmean(each.unit for each in measured),
        "seconds": fmean(each.seconds for each in measured),
    }


def _figures(rows: Sequence[Row]) -> list[Figure]:
    """Mean share of success over the mixtures, by parts; the bars stand in the gauntlet."""
    return [
        Figure(f"{name}: share at the optimum", _mean_share(rows, name))
        for name in (*VARIANTS, RANDOM)
    ]


def _mean_share(rows: Sequence[Row], name: str) -> float:
    return fmean(float(row["share"] or 0.0) for row in rows if row["parts"] == name)


BENCHMARK = Benchmark(
    "portfolio_ablation", "share of data sets at the optimum without each part of the search", run
)
