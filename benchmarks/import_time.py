"""Time to import the package, compared with the time to import its dependencies."""

import subprocess
import sys
from statistics import median

from benchmarks.report import Benchmark, Figure, Options, Outcome, Row

__all__ = ["BENCHMARK", "run"]

N_REPEATS = 15
QUICK_REPEATS = 1
MAX_RATIO = 3.0

IMPORTS = {
    "moment_init": "moment_init",
    "peers": "numpy, scipy, tensorly",
}

# Timed inside the process, so that the start of the interpreter is not included.
TEMPLATE = """
import time
start = time.perf_counter()
import {modules}
print(time.perf_counter() - start)
"""


def run(options: Options) -> Outcome:
    """Import package and dependencies in turn, each time in a fresh process."""
    n_repeats = QUICK_REPEATS if options.is_quick else N_REPEATS
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for repeat in range(n_repeats + 1):
        for name, modules in IMPORTS.items():
            elapsed = _seconds_to_import(modules)
            if repeat:  # the first round fills the caches of Python and the file system
                seconds[name].append(elapsed)
    rows: tuple[Row, ...] = tuple(
        {
            "import": IMPORTS[name],
            "median s": median(times),
            "min s": min(times),
            "max s": max(times),
        }
        for name, times in seconds.items()
    )
    ratio = median(seconds["moment_init"]) / median(seconds["peers"])
    figure = Figure(
        "import moment_init over import numpy, scipy, tensorly",
        ratio,
        bar=f"< {MAX_RATIO:g}",
        is_met=ratio < MAX_RATIO,
    )
    return Outcome(rows, (figure,), {"n_repeats": n_repeats})


def _seconds_to_import(modules: str) -> float:
    code = TEMPLATE.format(modules=modules)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(result.stdout)


BENCHMARK = Benchmark("import_time", "import of the package against its dependencies", run)
