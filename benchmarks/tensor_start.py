"""The data of the demo: how often the tensor start alone, and a random start, reach the optimum.

The data sets follow the law of `case_studies.rare_components`, with the seeds 1, 2, 3, and so on;
the demo shows the first. The best log-likelihood known is the highest of all starts and of EM from
the truth. Some data sets are fitted again by processes with other kernels of OpenBLAS, whose
rounding errors differ.
"""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from time import perf_counter

from benchmarks.random_mixtures import fit_timed, truth_of
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from case_studies.rare_components.run import simulate
from moment_init.results import SAME_OPTIMUM

__all__ = ["BENCHMARK", "run"]

N_OBS, QUICK_OBS = 8_000, 2_000
N_DATA_SETS, QUICK_DATA_SETS = 50, 2
N_RANDOM, QUICK_RANDOM = 10, 2

KERNELS = ("Prescott", "Haswell", "SkylakeX")
"""Kernels with registers of 128, 256 and 512 bits. A processor without one runs its own instead."""

N_KERNEL_SETS = 20

BAR = 0.95
"""Share of data sets on which the tensor start should reach the optimum."""

Measurement = dict[str, float]


def run(options: Options) -> Outcome:
    """Measure both kinds of starts on every data set."""
    n_obs = QUICK_OBS if options.is_quick else N_OBS
    n_random = QUICK_RANDOM if options.is_quick else N_RANDOM
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    sets = {"own": [measure(seed, n_obs, n_random) for seed in range(1, n_data_sets + 1)]}
    if not options.is_quick:
        for kernel in KERNELS:
            sets[kernel] = _measure_with(kernel, min(n_data_sets, N_KERNEL_SETS), n_obs)
    rows = tuple(_row(kernel, measured) for kernel, measured in sets.items())
    figures = [
        Figure(
            f"tensor start alone at the best optimum, kernel {kernel}",
            share := fmean(each["tensor"] for each in measured),
            f">= {BAR:g}",
            None if options.is_quick else share >= BAR,
        )
        for kernel, measured in sets.items()
    ]
    settings = {
        "data_sets": n_data_sets,
        "random starts per data set": n_random,
        "at the best": f"within {SAME_OPTIMUM} of the highest log-likelihood known",
    }
    return Outcome(rows, tuple(figures), settings)


def measure(seed: int, n_obs: int, n_random: int) -> Measurement:
    """Fit one data set from the tensor start, from random starts and from the truth."""
    data = simulate(n_obs, seed=seed)
    tensor, tensor_seconds = fit_timed(data, seed, init="tensor")
    truth, _ = fit_timed(data, seed, init=truth_of(data))
    ends, seconds = [], 0.0
    if n_random:
        begin = perf_counter()
        random, _ = fit_timed(data, seed, init="random", n_starts=n_random)
        seconds = (perf_counter() - begin) / n_random
        ends = [start.objective for start in random.starts]
    best = max([tensor.log_likelihood, truth.log_likelihood, *ends])
    reached = [end > best - SAME_OPTIMUM for end in ends]
    return {
        "tensor": float(tensor.log_likelihood > best - SAME_OPTIMUM),
        "random": fmean(reached) if reached else float("nan"),
        "none": float(not any(reached)) if reached else float("nan"),
        "tensor s": tensor_seconds,
        "random s": seconds,
    }


def _measure_with(kernel: str, n_data_sets: int, n_obs: int) -> list[Measurement]:
    """Measure the tensor start in a process with a kernel of OpenBLAS."""
    before = os.environ.get("OPENBLAS_CORETYPE")
    os.environ["OPENBLAS_CORETYPE"] = kernel
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            seeds = range(1, n_data_sets + 1)
            return list(pool.map(measure, seeds, [n_obs] * n_data_sets, [0] * n_data_sets))
    finally:
        del os.environ["OPENBLAS_CORETYPE"]
        if before is not None:
            os.environ["OPENBLAS_CORETYPE"] = before


def _row(kernel: str, measured: Sequence[Measurement]) -> Row:
    means = {name: fmean(each[name] for each in measured) for name in measured[0]}
    return {
        "kernel": kernel,
        "data sets": len(measured),
        "tensor start alone": means["tensor"],
        "one random start": means["random"],
        "no random start": means["none"],
        "tensor s": means["tensor s"],
        "random s": means["random s"],
    }


BENCHMARK = Benchmark(
    "tensor_start", "the tensor start alone against random starts, on the law of the demo", run
)
