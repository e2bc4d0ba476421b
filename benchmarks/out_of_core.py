"""Rows in Parquet files, larger than the memory that is used: peak of the process, time, growth."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measuring import number
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import WeakSignalWarning, estimate, simulate_mixture

__all__ = ["BENCHMARK", "FEATURES", "N_COMPONENTS", "run", "write_rows"]

FAMILY, N_FEATURES, N_COMPONENTS = "bernoulli", 20, 3
FEATURES = [f"x{index}" for index in range(N_FEATURES)]
FILE_ROWS = 250_000
"""Rows of a file: 40 MB of them."""

ROWS = (5_000_000, 10_000_000)
QUICK_ROWS = (150_000, 300_000)

MAX_PEAK_GIGABYTES = 2.0
MAX_TIME_RATIO = 2.0
MAX_DIFFERENCE = 1e-8


def run(options: Options) -> Outcome:
    """Estimate from files and from memory, in processes of their own.

    Parameters
    ----------
    options : Options
        Size and seed.

    Returns
    -------
    Outcome
        A row for each number of rows and each way.
    """
    sizes = QUICK_ROWS if options.is_quick else ROWS
    rows: list[Row] = []
    for n_obs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder), n_obs, options.seed)
            rows += [_measure(folder, n_obs, way, options.seed) for way in ("files", "memory")]
    lazy, held = rows[-2], rows[-1]
    peak = number(lazy, "peak GB")
    ratio = _total(lazy) / _total(held)
    bare_ratio = number(lazy, "estimate s") / number(held, "estimate s")
    growth = number(lazy, "estimate s") / number(rows[0], "estimate s")
    difference = _difference(lazy, held)
    is_judged = not options.is_quick  # imports and starts outweigh the rows of a small run
    figures = (
        Figure(
            f"peak memory of the process at n = {sizes[-1]:,}, GB",
            peak,
            f"< {MAX_PEAK_GIGABYTES:g}",
            peak < MAX_PEAK_GIGABYTES,
        ),
        Figure(
            f"time from files over that of arrays in memory at n = {sizes[-1]:,}",
            bare_ratio,
            f"<= {MAX_TIME_RATIO:g}",
            bare_ratio <= MAX_TIME_RATIO if is_judged else None,
        ),
        Figure("the same, if the arrays are read from the files first", ratio),
        Figure(f"time at n = {sizes[-1]:,} over that at half of it", growth),
        Figure(
            "largest difference of coefficients, relative to the largest",
            difference,
            f"<= {MAX_DIFFERENCE:g}",
            difference <= MAX_DIFFERENCE,
        ),
    )
    shown = tuple({key: row[key] for key in row if key != "coefficients"} for row in rows)
    settings = {"family": FAMILY, "d": N_FEATURES, "r": N_COMPONENTS, "file rows": FILE_ROWS}
    return Outcome(shown, figures, settings)


def write_rows(folder: Path, n_obs: int, seed: int) -> None:
    """Write a mixture to Parquet files, one after another.

    Parameters
    ----------
    folder : pathlib.Path
        Where to.
    n_obs : int
        Number of rows.
    seed : int
        Seed of the mixture and its rows.
    """
    truth = simulate_mixture(
        10, N_FEATURES, N_COMPONENTS, family=FAMILY, scales=3.0, random_seed=seed
    )
    for start in range(0, n_obs, FILE_ROWS):
        rng = np.random.default_rng([seed, start])
        size = min(FILE_ROWS, n_obs - start)
        X = rng.normal(size=(size, N_FEATURES))
        labels = rng.choice(N_COMPONENTS, p=truth.weights, size=size)
        eta = (X @ truth.coefficients + truth.biases)[np.arange(size), labels]
        y = rng.uniform(size=size) < 1.0 / (1.0 + np.exp(-eta))
        frame = pd.DataFrame(X, columns=FEATURES).assign(y=y.astype(np.float64))
        # Random digits do not compress, and real ones are seldom read often enough to matter.
        frame.to_parquet(folder / f"{start:012d}.parquet", index=False, compression=None)


def _measure(folder: str, n_obs: int, way: str, seed: int) -> Row:
    """One estimate in a fresh process, whose peak is its own."""
    command = [sys.executable, "-m", "benchmarks.out_of_core", folder, way, str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"n": n_obs, "rows in": way, **found}


def _total(row: Row) -> float:
    """Seconds from files to the result."""
    return number(row, "read s") + number(row, "estimate s")


def _difference(first: Row, second: Row) -> float:
    own, other = (np.array(row["coefficients"]) for row in (first, second))
    return float(np.abs(own - other).max() / np.abs(other).max())


def _estimate_in_this_process(folder: str, way: str, seed: int) -> dict[str, object]:
    """What the child process does."""
    import dask.dataframe as dd

    start = time.perf_counter()
    if way == "files":
        frame = dd.read_parquet(folder)
        X, y = frame[FEATURES], frame["y"]
    else:
        whole = pd.read_parquet(folder)
        X, y = np.ascontiguousarray(whole[FEATURES].to_numpy()), whole["y"].to_numpy()
        del whole
    reading = time.perf_counter() - start
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        found = estimate(X, y, N_COMPONENTS, family=FAMILY, random_seed=seed)
    seconds = time.perf_counter() - start
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "read s": reading,
        "estimate s": seconds,
        "peak GB": kilobytes * 1024 / 1e9,
        "status": found.status.value,
        "coefficients": found.coefficients.tolist() if found.coefficients is not None else [],
    }


BENCHMARK = Benchmark(
    "out_of_core",
    "estimate from Parquet files by Dask: memory, time against arrays, growth with n",
    run,
)


if __name__ == "__main__":
    print(json.dumps(_estimate_in_this_process(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
