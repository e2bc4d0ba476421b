"""Command line of the benchmarks."""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.checkpoints import Checkpoint, code_digest
from benchmarks.registry import BENCHMARKS
from benchmarks.report import Options, format_outcome, store_outcome

__all__ = ["main"]

FOLDER = Path(__file__).resolve().parent
DEFAULT_SEED = 1412


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks; return 1 if a full-size run misses a bar."""
    parsed = _parse(arguments)
    # Quick runs never overwrite the record of a full run.
    folder = parsed.output or FOLDER / ("output" if parsed.quick else "results")
    n_missed = 0
    for name in parsed.names or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        print(f"\n{name}: {benchmark.description}", flush=True)
        start = time.perf_counter()
        checkpoint = _checkpoint(name, parsed)
        options = Options(parsed.quick, parsed.seed, parsed.datasets, checkpoint)
        outcome = benchmark.run(options)
        if checkpoint.n_left_out:
            cut = {"left out for lack of time": f"{checkpoint.n_left_out} measurements"}
            outcome = replace(outcome, settings={**outcome.settings, **cut})
        elif parsed.datasets is None:
            checkpoint.discard()  # the record now holds every measurement
        path = store_outcome(folder, benchmark, options, outcome, time.perf_counter() - start)
        print(format_outcome(outcome))
        print(f"stored in {path}", flush=True)
        if checkpoint.n_left_out:
            print(f"{checkpoint.n_left_out} measurements are left for a rerun", flush=True)
        n_missed += sum(figure.is_met is False for figure in outcome.figures)
    if parsed.quick:
        print("\nQuick sizes: the bars apply to full-size runs only.")
        return 0
    return int(n_missed > 0)


def _checkpoint(name: str, parsed: argparse.Namespace) -> Checkpoint:
    """Checkpoint of an earlier full-size run with the same seed and code."""
    if parsed.quick:
        return Checkpoint()
    path = FOLDER / "output" / f"{name}-{parsed.seed}-{code_digest()}.jsonl"
    return Checkpoint(path, 60.0 * parsed.minutes)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"which to run, all by default: {', '.join(BENCHMARKS)}",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds in total")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the random models")
    parser.add_argument(
        "--datasets", type=_positive, help="data sets per row, for benchmarks of the stacked method"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="start no new measurement after this time; a rerun continues if the benchmark "
        "stores its measurements (posterior_quality, calibration, interval_coverage)",
    )
    parser.add_argument("--output", type=Path, help="folder for the JSON files")
    parsed = parser.parse_args(arguments)
    unknown = [name for name in parsed.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark called {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}")
    return parsed


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
