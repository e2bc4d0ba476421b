"""The gauntlet with non-Gaussian inputs: does the default call still find the optimum?

The mixtures are those of the gauntlet with standard normal inputs, which are replaced by every kind
of columns. A run succeeds if its log-likelihood is at least that of EM from the truth, minus 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.gauntlet import SHARE, TOLERANCE
from benchmarks.input_kinds import INPUT_KINDS, standardised_inputs
from benchmarks.random_mixtures import GAUNTLET, RandomMixture, draw, fit_timed, truth_of
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row

__all__ = ["BENCHMARK", "run"]

N_DATA_SETS, QUICK_DATA_SETS = 10, 1
QUICK_KINDS, QUICK_OBS = 2, 1_000

KINDS = tuple(name for name in INPUT_KINDS if name != "gaussian")

# R1 to R4: R5 has its own inputs, and the balanced mixtures are easy for any start.
MIXTURES = tuple(mixture for mixture in GAUNTLET[:5] if mixture.inputs is None)


def run(options: Options) -> Outcome:
    """Compute the share at the optimum for every mixture and kind of inputs."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    for mixture in MIXTURES[:1] if options.is_quick else MIXTURES:
        for kind in KINDS[: QUICK_KINDS if options.is_quick else None]:
            sized = replace(mixture, inputs=standardised_inputs(kind))
            if options.is_quick:
                sized = sized.resized(QUICK_OBS)
            rows.append(_row(sized, kind, options.seed, n_data_sets))
            print(f"{rows[-1]}", flush=True)  # each row takes minutes
    shares = [float(str(row["default"])) for row in rows]
    figure = Figure(
        "share at the optimum over all rows",
        fmean(shares),
        f">= {SHARE:g}",
        None if options.is_quick else fmean(shares) >= SHARE,
    )
    settings = {
        "data_sets": n_data_sets,
        "success": f"log-likelihood >= that of EM from the truth - {TOLERANCE:g}",
    }
    return Outcome(tuple(rows), (figure,), settings)


def _row(mixture: RandomMixture, kind: str, seed: int, n_data_sets: int) -> Row:
    measured = [_measure(mixture, seed, index) for index in range(n_data_sets)]
    return {
        "mixture": mixture.name,
        "inputs": kind,
        "default": fmean(each[0] >= -TOLERANCE for each in measured),
        "1 random": fmean(each[1] >= -TOLERANCE for each in measured),
        "lowest gain": min(each[0] for each in measured),
        "default s / random s": _mean(measured, 2) / _mean(measured, 3),
    }


def _measure(mixture: RandomMixture, seed: int, index: int) -> tuple[float, float, float, float]:
    """Gains of the default call and of a random start over EM from the truth, and seconds."""
    data = draw(mixture, seed, index)
    truth, _ = fit_timed(data, index, init=truth_of(data))
    default, seconds = fit_timed(data, index, n_jobs=1)
    single, single_seconds = fit_timed(data, index, init="random", n_starts=1, n_jobs=1)
    goal = truth.log_likelihood
    return default.log_likelihood - goal, single.log_likelihood - goal, seconds, single_seconds


def _mean(measured: Sequence[tuple[float, ...]], place: int) -> float:
    return fmean(each[place] for each in measured)


BENCHMARK = Benchmark(
    "input_gauntlet", "share of data sets at the optimum, inputs that are not Gaussian", run
)
