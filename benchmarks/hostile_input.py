"""Hostile input: hypothesis calls every public function, and none may fail.

This runs more examples of the calls in `tests/hostile`: small data with one or two defects, and
wrong arguments. Each call must return a right and finite answer or raise a clear error within a
minute, and must change neither its arguments nor any global state.
"""

import time
import warnings

from benchmarks.report import Benchmark, Figure, Options, Outcome, Row

__all__ = ["BENCHMARK", "run"]

WANTED = 5000
QUICK_EXAMPLES = 3
QUICK_NAMES = ("match_components", "simulate_mixture", "fit_em")


def run(options: Options) -> Outcome:
    """Count the answered, refused and failed calls of every public function."""
    from tests.hostile.running import (
        SHARES,  # imported here: it imports PyMC, which other benchmarks do not need
    )

    shares = {name: QUICK_EXAMPLES for name in QUICK_NAMES} if options.is_quick else SHARES
    rows: tuple[Row, ...] = tuple(_row(name, shares[name], options.seed) for name in shares)
    n_examples = sum(int(str(row["answered"])) + int(str(row["refused"])) for row in rows)
    failures = [str(row["failure"]) for row in rows if row["failure"]]
    figures = (
        Figure("examples", n_examples, bar=f"at least {WANTED}", is_met=n_examples >= WANTED),
        Figure("functions that fail", len(failures), bar="0", is_met=not failures),
    )
    return Outcome(rows, figures, {"shares": dict(shares)})


def _row(name: str, n_examples: int, seed: int) -> Row:
    from tests.hostile.running import run_calls

    failure = ""
    counts: dict[str, int] = {}
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks inspect each call's own warnings
        try:
            counts = dict(run_calls(name, n_examples, seed))
        except BaseException as error:  # any exception is a finding
            if isinstance(error, KeyboardInterrupt):
                raise
            failure = f"{type(error).__name__}: {error}"[:300]
    return {
        "function": name,
        "answered": counts.get("answered", 0),
        "refused": counts.get("refused", 0),
        "seconds": round(time.process_time() - start, 1),
        "failure": failure,
    }


BENCHMARK = Benchmark("hostile_input", "every public function against hostile input", run)
