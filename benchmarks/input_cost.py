"""Cost of choosing the input density: time of the default call over one that assumes a Gaussian.

Times are CPU seconds, as the machine may be busy. The cosine is reported too, because a call that
ends early at a wrong optimum is cheap.
"""

import time
import warnings
from statistics import fmean

from benchmarks.input_kinds import INPUT_KINDS, DrawnMixture, draw_mixture
from benchmarks.mixtures import worst_cosine
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import estimate
from moment_init.moments.result import MomentEstimate

__all__ = ["BENCHMARK", "run"]

N_DATA_SETS, QUICK_DATA_SETS = 3, 1
SIZES, QUICK_SIZES = (100_000, 20, 3), (3_000, 4, 2)
QUICK_KINDS = 2

MOST = 5.0


def run(options: Options) -> Outcome:
    """Time both calls on every kind of inputs."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    sizes = QUICK_SIZES if options.is_quick else SIZES
    kinds = list(INPUT_KINDS)[: QUICK_KINDS if options.is_quick else None]
    _measure(
        draw_mixture("clusters", QUICK_SIZES, [options.seed]), options.seed
    )  # warm-up: imports
    rows: list[Row] = []
    for number, kind in enumerate(kinds):
        measured = [
            _measure(draw_mixture(kind, sizes, [options.seed, number, i]), options.seed + i)
            for i in range(n_data_sets)
        ]
        means = {name: fmean(float(str(each[name])) for each in measured) for name in measured[0]}
        rows.append({"inputs": kind, **means, "ratio": means["auto s"] / means["gaussian s"]})
    figures = tuple(
        Figure(
            f"{row['inputs']}: seconds of the default call over the Gaussian's",
            float(str(row["ratio"])),
            f"<= {MOST:g}",
            None if options.is_quick else float(str(row["ratio"])) <= MOST,
        )
        for row in rows
    )
    settings = {"data_sets": n_data_sets, "sizes": "n, d, r = " + ", ".join(map(str, sizes))}
    return Outcome(tuple(rows), figures, settings)


def _measure(drawn: DrawnMixture, seed: int) -> Row:
    """CPU seconds and worst |cos| of both calls."""
    measured: Row = {}
    for name in ("gaussian", "auto"):
        start = time.process_time()
        result = _estimate(drawn, name, seed)
        measured[f"{name} s"] = time.process_time() - start
        measured[f"{name} |cos|"] = worst_cosine(result, drawn.data)
    return measured


def _estimate(drawn: DrawnMixture, name: str, seed: int) -> MomentEstimate:
    data = drawn.data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cosine shows failures
        return estimate(
            data.X,
            data.y,
            data.weights.size,
            family=data.family,
            input_model=name,  # type: ignore[arg-type]
            random_seed=seed,
        )


BENCHMARK = Benchmark("input_cost", "time of the default call over the Gaussian's, by inputs", run)
