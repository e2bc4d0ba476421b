"""Where the default start wins, ties and loses against random starts in the same time.

The mixtures form a grid of families, weights, sizes and rows per parameter. On each data set the
default call runs first, then random starts for the same CPU time. A run is at the optimum if its
log-likelihood is within 1 of the best of all runs, including EM from the truth.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any, Literal

from scipy.stats import binom

from benchmarks.map_cells import CELLS, QUICK_CELLS, MapCell
from benchmarks.map_runs import N_RANDOM, TOLERANCE, Measurement, measure
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row

__all__ = [
    "BENCHMARK",
    "LEVEL",
    "MARGINS",
    "best_of",
    "chance_wins",
    "discordance_p",
    "judge",
    "pool",
    "run",
    "summarise",
]

Verdict = Literal["win", "tie", "lose"]

N_DATA_SETS, QUICK_DATA_SETS = 10, 1

LEVEL = 0.05
"""One-sided: at most this share of cells without a difference is called a win, or a loss."""

CHEAP = 0.5
"""The default call loses if random starts are as good in this share of its time: a factor of two
exceeds the noise of CPU times."""

PAIRS = ("for", "against", "for, truth", "against, truth")
COUNTS = ("data sets", "default", "same time", "half time", *PAIRS)
SHARES = ("default", "same time", "half time", "1 random", "3 random", "10 random", "truth")

MARGINS = (
    ("family",),
    ("weights",),
    ("family", "weights"),
    ("family", "rows per parameter"),
    ("family", "d", "r"),
)
"""Columns by which cells are pooled, one table for each entry."""


def run(options: Options) -> Outcome:
    """Measure every cell of the map; pooled rows follow the cells."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    cells = QUICK_CELLS if options.is_quick else CELLS
    rows = [
        summarise(cell, [measure(cell, [options.seed, number, i]) for i in range(n_data_sets)])
        for number, cell in enumerate(cells)
    ]
    settings = {
        "data_sets": n_data_sets,
        "at the optimum": f"log-likelihood within {TOLERANCE:g} of the best of all runs",
        "same time": "first random starts that fit into the default call's CPU time",
        "half time": f"those that fit into {CHEAP:g} of it",
        "k random": f"expected for k of all starts of a data set, {N_RANDOM} or more",
        "win": f"more often than in the same time, exact sign test at {LEVEL:g}, one-sided",
        "lose": "less often by the same test, or not more often than in half the time",
        "for, against": "data sets at the optimum by only the default call, only the same time",
        "..., truth": "those where EM from the truth is at the optimum too",
        "reproducible": "but for the number of starts, which is measured time",
    }
    return Outcome((*rows, *_margins(rows)), tuple(_figures(rows)), settings)


def best_of(n_starts: int, n_reached: int, n_taken: int) -> float:
    """Probability 1 - C(n - k, m) / C(n, m) that m of n starts include one of k successes."""
    return 1.0 - math.comb(n_starts - n_reached, n_taken) / math.comb(n_starts, n_taken)


def discordance_p(n_for: int, n_against: int) -> float:
    """Exact one-sided sign test on the data sets where only one of two methods succeeds."""
    return float(binom.sf(n_for - 1, n_for + n_against, 0.5))


def judge(n_for: int, n_against: int, n_default: int, n_half: int) -> Verdict:
    """Decide between win, tie and lose.

    A win implies that half the time is not enough, as its starts are among those of the same time.
    """
    if discordance_p(n_for, n_against) <= LEVEL:
        return "win"
    if discordance_p(n_against, n_for) <= LEVEL or n_half >= n_default:
        return "lose"
    return "tie"


def summarise(cell: MapCell, measured: Sequence[Measurement]) -> Row:
    """Compute counts, times and verdict of a cell."""
    reached = [sum(value >= each.goal for value in each.random) for each in measured]
    expected = {
        f"{k} random": sum(
            best_of(len(each.random), n, k) for each, n in zip(measured, reached, strict=True)
        )
        for k in (1, 3, N_RANDOM)
    }
    has_moments = all(each.moments is not None for each in measured)
    in_starts = [each.default_seconds / each.start_seconds for each in measured]
    counts = _count_pairs(measured)
    return {
        "family": cell.family,
        "weights": cell.weights,
        "d": cell.n_features,
        "r": cell.n_components,
        "rows per parameter": cell.rows_per_parameter,
        "n": cell.mixture.n_obs,
        **counts,
        **expected,
        "moments": sum(_at(each, each.moments) for each in measured) if has_moments else None,
        "default s": fmean(each.default_seconds for each in measured),
        "start s": fmean(each.start_seconds for each in measured),
        "time in starts": median(in_starts),
        "all s": sum(each.all_seconds for each in measured),
        "verdict": judge(counts["for"], counts["against"], counts["default"], counts["half time"]),
    }


def pool(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """Pool the cells that agree in some columns, one row per group, and judge each group."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return [_pooled(dict(zip(names, key, strict=True)), cells) for key, cells in groups.items()]


def chance_wins(rows: Iterable[Row]) -> float:
    """Expected number of wins if there were no difference in any cell.

    This sums the actual level of the sign test over cells, given their discordant data sets.
    """
    total = 0.0
    for row in rows:
        n = _whole(row["for"]) + _whole(row["against"])
        tails = (discordance_p(k, n - k) for k in range(n + 1))
        total += max((tail for tail in tails if tail <= LEVEL), default=0.0)
    return total


def _count_pairs(measured: Sequence[Measurement]) -> dict[str, int]:
    """Count data sets at the optimum by the default call and random starts in (half) its time."""
    default = [_at(each, each.default) for each in measured]
    same = [each.reached_within(1.0) for each in measured]
    sound = [_at(each, each.truth) for each in measured]
    pairs = Counter(zip(default, same, strict=True))
    sound_pairs = Counter(
        pair
        for pair, is_sound in zip(zip(default, same, strict=True), sound, strict=True)
        if is_sound
    )
    return {
        "data sets": len(measured),
        "default": sum(default),
        "same time": sum(same),
        "half time": sum(each.reached_within(CHEAP) for each in measured),
        "for": pairs[True, False],
        "against": pairs[False, True],
        "truth": sum(sound),
        "for, truth": sound_pairs[True, False],
        "against, truth": sound_pairs[False, True],
    }


def _pooled(key: Row, cells: Sequence[Row]) -> Row:
    counts = {name: sum(_whole(cell[name]) for cell in cells) for name in COUNTS}
    verdicts = Counter(cell["verdict"] for cell in cells)
    by_moments = [cell for cell in cells if cell["moments"] is not None]
    return {
        **key,
        **{f"cells: {verdict}": verdicts[verdict] for verdict in ("win", "tie", "lose")},
        "data sets": counts["data sets"],
        **{name: _share(cells, name) for name in SHARES},
        "moments": _share(by_moments, "moments") if by_moments else None,
        **{name: counts[name] for name in PAIRS},
        "p": discordance_p(counts["for"], counts["against"]),
        "time in starts": median(_number(cell["time in starts"]) for cell in cells),
        "verdict": judge(counts["for"], counts["against"], counts["default"], counts["half time"]),
    }


def _share(cells: Sequence[Row], name: str) -> float:
    """Share of data sets that a column counts."""
    n_data_sets = sum(_number(cell["data sets"]) for cell in cells)
    return sum(_number(cell[name]) for cell in cells) / n_data_sets


def _margins(rows: Sequence[Row]) -> list[Row]:
    """Pool the cells in several ways: a group has more data sets than a cell."""
    return [row for names in MARGINS for row in pool(rows, names)]


def _figures(rows: Sequence[Row]) -> Iterable[Figure]:
    verdicts = Counter(row["verdict"] for row in rows)
    for verdict in ("win", "tie", "lose"):
        yield Figure(f"cells: {verdict}", verdicts[verdict])
    yield Figure("wins expected by chance if there were no difference", chance_wins(rows))
    for name in SHARES:
        yield Figure(f"share of data sets at the optimum: {name}", _share(rows, name))
    by_moments = [row for row in rows if row["moments"] is not None]
    share = _share(by_moments, "moments")
    yield Figure("share of data sets at the optimum: moments, features enough", share)
    in_starts = median(_number(row["time in starts"]) for row in rows)
    yield Figure("time of the default call in random starts, median over cells", in_starts)
    yield Figure("CPU seconds of the map", sum(_number(row["all s"]) for row in rows))


def _at(each: Measurement, log_likelihood: float | None) -> bool:
    return log_likelihood is not None and log_likelihood >= each.goal


def _number(value: Any) -> float:
    return float(value)


def _whole(value: Any) -> int:
    return int(value)


BENCHMARK = Benchmark(
    "honest_map", "where the default start wins, ties and loses against random starts", run
)
