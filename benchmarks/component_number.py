"""How often ``n_components="auto"`` finds the number of components."""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.mixtures import MIXTURES, Mixture, describe, draw, timed
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MomentEstimate

__all__ = ["BENCHMARK", "run"]

N_DATA_SETS, QUICK_DATA_SETS = 20, 1
N_MIXTURES = 3

# Numbers of rows, as multiples of those at which the directions are judged.
MULTIPLE = 2
QUICK_OBS = 3_000
MIN_SHARE = 0.9


def run(options: Options) -> Outcome:
    """Choose the number of components of every mixture."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    figures = []
    for mixture in MIXTURES[:N_MIXTURES]:
        larger = mixture.resized(QUICK_OBS if options.is_quick else MULTIPLE * mixture.n_obs)
        runs = [
            timed(draw(larger, options.seed, index), options.seed, n_components="auto")
            for index in range(n_data_sets)
        ]
        row = _row(larger, [result for result, _ in runs], [seconds for _, seconds in runs])
        rows.append(row)
        share = float(str(row["right"])) / n_data_sets
        figures.append(
            Figure(
                f"{mixture.family}, n = {larger.n_obs:,}: share of right numbers",
                share,
                f">= {MIN_SHARE:g}",
                None if options.is_quick else share >= MIN_SHARE,
            )
        )
    return Outcome(tuple(rows), tuple(figures), {"data_sets": n_data_sets})


def _row(mixture: Mixture, results: Sequence[MomentEstimate], seconds: Sequence[float]) -> Row:
    right = mixture.n_components
    numbers = [result.n_components for result in results]
    visible = [result.selection.n_visible for result in results if result.selection is not None]
    fitted = [len(result.selection.bic) for result in results if result.selection is not None]
    return {
        **describe(mixture),
        "data sets": len(results),
        "right": sum(number == right for number in numbers),
        "too few": sum(number < right for number in numbers),
        "too many": sum(number > right for number in numbers),
        "spectrum right": sum(number == right for number in visible),
        "mean fits": fmean(fitted),
        "mean s": fmean(seconds),
    }


BENCHMARK = Benchmark(
    "component_number", 'share of right numbers by n_components="auto" at twice the rows', run
)
