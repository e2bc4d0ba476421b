"""Time the moments of all rows on one and on two single-threaded workers of a local cluster."""

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measuring import number, seconds_of
from benchmarks.out_of_core import FEATURES, FILE_ROWS, QUICK_FILE_ROWS, write_rows
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init.data.checking import validate_data
from moment_init.moments.stacked import low_order_moments
from moment_init.scores import Gaussian
from moment_init.scores.choosing import EstimationProblem, pose_problem

__all__ = ["BENCHMARK", "run"]

FAMILY = "bernoulli"
N_OBS, QUICK_N_OBS = 10_000_000, 160_000
N_REPEATS, QUICK_REPEATS = 5, 1
WORKERS = (1, 2)

MIN_SPEEDUP = 1.7


def run(options: Options) -> Outcome:
    """Time the first two orders of moments of all rows, for each number of workers."""
    n_obs = QUICK_N_OBS if options.is_quick else N_OBS
    n_repeats = QUICK_REPEATS if options.is_quick else N_REPEATS
    with tempfile.TemporaryDirectory() as folder:
        file_rows = QUICK_FILE_ROWS if options.is_quick else FILE_ROWS
        write_rows(Path(folder), n_obs, options.seed, file_rows)
        rows: list[Row] = [
            {"n": n_obs, "workers": n_workers, **_seconds(folder, n_workers, n_repeats)}
            for n_workers in WORKERS
        ]
    speedup = number(rows[0], "moments s") / number(rows[-1], "moments s")
    figures = (
        Figure(
            f"speed of {WORKERS[-1]} workers over that of one",
            speedup,
            f">= {MIN_SPEEDUP:g}",
            speedup >= MIN_SPEEDUP if not options.is_quick else None,
        ),
        Figure(
            "the same in seconds of the processor of the busiest worker, which other work on the "
            "machine hardly changes",
            number(rows[0], "CPU s") / number(rows[-1], "CPU s"),
        ),
    )
    settings = {"family": FAMILY, "d": len(FEATURES), "n_repeats": n_repeats}
    return Outcome(tuple(rows), figures, settings)


def _seconds(folder: str, n_workers: int, n_repeats: int) -> Row:
    """Median times on a separate cluster, with imports and setup done before the clock starts."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        problem, seconds, busiest = _pose(folder), [], []
        for _ in range(n_repeats):
            before = client.run(time.process_time)
            seconds.append(seconds_of(lambda: low_order_moments(problem, n_rows=None)))
            after = client.run(time.process_time)
            busiest.append(max(after[worker] - before[worker] for worker in after))
        return {"moments s": median(seconds), "CPU s": median(busiest)}


def _pose(folder: str) -> EstimationProblem:
    import dask.dataframe as dd

    frame = dd.read_parquet(folder)
    data = validate_data(frame[FEATURES], frame["y"], family=FAMILY)
    return pose_problem(data, Gaussian().fit_data(data, data.feature_names))


BENCHMARK = Benchmark(
    "dask_scaling",
    "moments of all rows by one and two Dask workers, a thread each (bernoulli, d = 20)",
    run,
)
