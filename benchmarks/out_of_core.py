"""Estimates from Parquet files larger than memory: peak memory, time and growth with n."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measuring import number
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import estimate, fit_em, simulate_mixture
from moment_init.data import dask_rows

__all__ = [
    "BENCHMARK",
    "FEATURES",
    "FILE_ROWS",
    "N_COMPONENTS",
    "QUICK_FILE_ROWS",
    "run",
    "write_rows",
]

FAMILY, N_FEATURES, N_COMPONENTS = "bernoulli", 20, 3
FEATURES = [f"x{index}" for index in range(N_FEATURES)]
FILE_ROWS, QUICK_FILE_ROWS = 250_000, 40_000
"""Rows per file: 40 MB."""

ROWS = (5_000_000, 10_000_000)
QUICK_ROWS = (160_000,)
MANY_ROWS = 100_000_000

MAX_PEAK_GIGABYTES = 2.0
MAX_TIME_RATIO = 2.0
MAX_GROWTH = 2.2
MAX_DIFFERENCE = 1e-8

MAX_ESTIMATE_PASSES, MAX_FIT_PASSES = 8, 14
MAX_PASS_RATIO = 1.5

FILES, MEMORY, AS_MANY = "files", "memory", "files, as of 10^8"
FIT = "files, fit_em"


def run(options: Options) -> Outcome:
    """Estimate from files and from memory in separate processes; extrapolate to 10^8 rows."""
    sizes = QUICK_ROWS if options.is_quick else ROWS
    file_rows = QUICK_FILE_ROWS if options.is_quick else FILE_ROWS
    rows: list[Row] = []
    for n_obs in sizes:
        ways = [FILES, AS_MANY, FIT, MEMORY] if n_obs == sizes[-1] else [FILES]
        if options.is_quick:
            ways.remove(AS_MANY)
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder), n_obs, options.seed, file_rows)
            rows += [_measure(folder, n_obs, way, options.seed) for way in ways]
    figures = _figures(rows, is_judged=not options.is_quick)
    shown = [{key: row[key] for key in row if key != "coefficients"} for row in rows]
    if not options.is_quick:
        shown.append(_extrapolated(shown))
    settings = {
        "family": FAMILY,
        "d": N_FEATURES,
        "r": N_COMPONENTS,
        "file rows": file_rows,
        AS_MANY: "keeps the share of rows in memory that a hundred million rows would allow",
        "n = 100,000,000": "seconds of that run scaled by the rows; peak of the default run",
    }
    return Outcome(tuple(shown), figures, settings)


def _figures(rows: list[Row], *, is_judged: bool) -> tuple[Figure, ...]:
    """Figures of the largest size; fixed costs dominate smaller runs."""
    n_obs = int(number(rows[-1], "n"))
    by_way = {str(row["rows in"]): row for row in rows if row["n"] == n_obs}
    lazy, held, fitted = by_way[FILES], by_way[MEMORY], by_way[FIT]
    peak = number(lazy, "peak GB")
    ratio = number(lazy, "estimate s") / number(held, "estimate s")
    growth = number(lazy, "estimate s") / number(rows[0], "estimate s")
    difference = _difference(lazy, held)
    figures = [
        Figure(
            f"peak memory of the process at n = {n_obs:,}, GB",
            peak,
            f"< {MAX_PEAK_GIGABYTES:g}",
            peak < MAX_PEAK_GIGABYTES,
        ),
        Figure(
            f"time from files over that of arrays in memory at n = {n_obs:,}",
            ratio,
            f"<= {MAX_TIME_RATIO:g}",
            ratio <= MAX_TIME_RATIO if is_judged else None,
        ),
        Figure(
            "the same in seconds of the processor, which other work on the machine does not change",
            number(lazy, "CPU s") / number(held, "CPU s"),
        ),
        Figure(
            "the same, if the arrays are read from the files first", _total(lazy) / _total(held)
        ),
        Figure(
            "largest difference of coefficients, relative to the largest",
            difference,
            f"<= {MAX_DIFFERENCE:g}",
            difference <= MAX_DIFFERENCE,
        ),
    ]
    for name, row, most in (
        ("estimate", lazy, MAX_ESTIMATE_PASSES),
        ("fit_em(init='tensor')", fitted, MAX_FIT_PASSES),
    ):
        passes = number(row, "passes")
        is_met = passes <= most if is_judged else None
        figures.append(Figure(f"passes of {name}", passes, f"<= {most}", is_met))
        ratio = number(row, "longest pass s") / number(row, "sum s")
        figures.append(
            Figure(
                f"longest pass of {name} over the sum of all columns by Dask",
                ratio,
                f"<= {MAX_PASS_RATIO:g}",
                ratio <= MAX_PASS_RATIO if is_judged else None,
            )
        )
        by_processor = number(row, "longest pass CPU s") / number(row, "sum CPU s")
        figures.append(Figure("the same in seconds of the processor", by_processor))
    if len(rows) > len(by_way):
        bar = f"<= {MAX_GROWTH:g}"
        is_met = growth <= MAX_GROWTH if is_judged else None
        figures.append(
            Figure(f"time at n = {n_obs:,} over that at half of it", growth, bar, is_met)
        )
        by_processor = number(lazy, "CPU s") / number(rows[0], "CPU s")
        figures.append(Figure("the same in seconds of the processor", by_processor))
    return tuple(figures)


def _extrapolated(rows: list[Row]) -> Row:
    """Extrapolate time and peak memory to a hundred million rows.

    At that size, every fourth and even every sixteenth row are too many to keep in memory, so some
    passes over a sample become passes over all files; the run that is scaled up makes them too. The
    memory for rows is bounded, so the peak is that of a run that keeps as much as is allowed.
    """
    by_way = {str(row["rows in"]): row for row in rows}
    files, as_many = by_way[FILES], by_way[AS_MANY]
    factor = MANY_ROWS / number(as_many, "n")
    scaled = {name: factor * number(as_many, name) for name in ("read s", "estimate s", "CPU s")}
    return {
        **as_many,
        "n": MANY_ROWS,
        "rows in": "files, extrapolated",
        **scaled,
        "peak GB": files["peak GB"],
    }


def write_rows(folder: Path, n_obs: int, seed: int, file_rows: int) -> None:
    """Write simulated rows of a mixture to Parquet files, one file at a time."""
    truth = simulate_mixture(
        10, N_FEATURES, N_COMPONENTS, family=FAMILY, scales=3.0, random_seed=seed
    )
    for start in range(0, n_obs, file_rows):
        rng = np.random.default_rng([seed, start])
        size = min(file_rows, n_obs - start)
        X = rng.normal(size=(size, N_FEATURES))
        labels = rng.choice(N_COMPONENTS, p=truth.weights, size=size)
        eta = (X @ truth.coefficients + truth.biases)[np.arange(size), labels]
        y = rng.uniform(size=size) < 1.0 / (1.0 + np.exp(-eta))
        frame = pd.DataFrame(X, columns=FEATURES).assign(y=y.astype(np.float64))
        # Random digits do not compress.
        frame.to_parquet(folder / f"{start:012d}.parquet", index=False, compression=None)


def _measure(folder: str, n_obs: int, way: str, seed: int) -> Row:
    """Run one estimate in a fresh process, so that the peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.out_of_core", folder, way, str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    measured = json.loads(done.stdout.splitlines()[-1])
    return {"n": n_obs, "rows in": way, **measured}


def _total(row: Row) -> float:
    """Seconds for reading and estimating."""
    return number(row, "read s") + number(row, "estimate s")


def _difference(first: Row, second: Row) -> float:
    one, other = (np.array(row["coefficients"]) for row in (first, second))
    return float(np.abs(one - other).max() / np.abs(other).max())


def _estimate_in_this_process(folder: str, way: str, seed: int) -> dict[str, object]:
    """Read, estimate and print the measurements; this runs in the child process."""
    import dask.dataframe as dd

    start = time.perf_counter()
    if way != MEMORY:
        frame = dd.read_parquet(folder)
        X, y = frame[FEATURES], frame["y"]
    else:
        whole = pd.read_parquet(folder)
        X, y = np.ascontiguousarray(whole[FEATURES].to_numpy()), whole["y"].to_numpy()
        del whole
    reading = time.perf_counter() - start
    if way == AS_MANY:
        _hold_as_of_many(len(frame))
    summed = [0.0, 0.0]
    if way in (FILES, FIT):
        start, start_of_processor = time.perf_counter(), time.process_time()
        frame.sum().compute()
        summed = [time.perf_counter() - start, time.process_time() - start_of_processor]
    passes: list[tuple[float, float]] = []
    start, start_of_processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(), _timed_passes(passes):
        warnings.simplefilter("ignore", UserWarning)
        both: dict[str, Any] = {"family": FAMILY, "random_seed": seed}
        result: Any
        if way == FIT:
            result = fit_em(X, y, N_COMPONENTS, init="tensor", **both)
        else:
            result = estimate(X, y, N_COMPONENTS, **both)
    seconds = time.perf_counter() - start
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "read s": reading,
        "estimate s": seconds,
        "CPU s": time.process_time() - start_of_processor,
        "peak GB": kilobytes * 1024 / 1e9,
        "passes": len(passes),
        "longest pass s": max((wall for wall, _ in passes), default=0.0),
        "longest pass CPU s": max((processor for _, processor in passes), default=0.0),
        "sum s": summed[0],
        "sum CPU s": summed[1],
        "status": result.status.value,
        "coefficients": result.coefficients.tolist() if result.coefficients is not None else [],
    }


@contextmanager
def _timed_passes(seconds: list[tuple[float, float]]) -> Iterator[None]:
    """Note how long each graph takes, by the clock and of the processor: it is one pass."""
    compute = vars(dask_rows)["compute"]

    def timed(*arguments: Any) -> Any:
        start, start_of_processor = time.perf_counter(), time.process_time()
        result = compute(*arguments)
        ends = time.perf_counter(), time.process_time()
        seconds.append((ends[0] - start, ends[1] - start_of_processor))
        return result

    vars(dask_rows)["compute"] = timed
    try:
        yield
    finally:
        vars(dask_rows)["compute"] = compute


def _hold_as_of_many(n_obs: int) -> None:
    """Lower the limit of rows in memory to the share that it would be of a hundred million rows."""
    vars(dask_rows)["MOST_HELD"] = dask_rows.MOST_HELD * n_obs // MANY_ROWS


BENCHMARK = Benchmark(
    "out_of_core",
    "estimate from Parquet files by Dask: memory, time against arrays, growth with n",
    run,
)


if __name__ == "__main__":
    print(json.dumps(_estimate_in_this_process(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
