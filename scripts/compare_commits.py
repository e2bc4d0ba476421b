"""Compare the numbers of another commit with those of this tree, to the last bit.

Before you replace something, measure it; afterwards compare old and new side by side in one run:
``python -m scripts.compare_commits OLD_COMMIT``. The same calls are made in a temporary worktree of
the old commit and in this tree, uncommitted changes included, both at the same time and with one
core each; with ``--sequential``, one after the other and with the threads of the environment. The
exit status is 0 if all numbers are equal, 1 if any differs, 2 if a run failed.

``--measure FILE`` only records the numbers of the working directory. FILE can then take the place
of OLD_COMMIT on the same machine; last digits depend on the processor and on library versions.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# In a measuring process, these are the modules of the tree that is measured.
from benchmarks.mixtures import MIXTURES, draw, timed
from benchmarks.published import load_published_fits
from moment_init import fit_em

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[1]

# PYTHON_CPU_COUNT (from Python 3.13) also keeps the package's own threads to one core.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHON_CPU_COUNT")

# `method="power"` estimates no scales: it has directions, but no coefficients.
FIELDS = ("coefficients", "directions", "moment_coefficients", "biases", "weights", "dispersion")

MOST_NAMES = 20  # printed for each call; a change of behaviour can alter thousands of numbers

Runs = Iterator[tuple[float, dict[str, float]]]  # seconds, and numbers by name, of each run


def _published_fits(n_seeds: int, options: Mapping[str, Any]) -> Runs:
    """Fit every published model from every seed: log-likelihoods."""
    for published in load_published_fits():
        X, y, n_components = published.X, published.y, published.n_components
        fixed = {**published.options, **options, "progressbar": False}
        for seed in range(n_seeds):
            start = time.perf_counter()
            fit = fit_em(X, y, n_components, random_seed=seed, **fixed)
            seconds = time.perf_counter() - start
            name = f"{published.name}, k = {n_components}, seed {seed}"
            yield seconds, {name: float(fit.log_likelihood)}


def _stacked_accuracy(n_datasets: int, options: Mapping[str, Any]) -> Runs:
    """Estimate every mixture from every data set: its parameters."""
    for row, mixture in enumerate(MIXTURES):
        for index in range(n_datasets):
            result, seconds = timed(draw(mixture, 0, index), 0, **options)
            numbers = {}
            for field in FIELDS:
                values = getattr(result, field, None)
                for i, value in enumerate([] if values is None else np.ravel(values)):
                    name = f"mixture {row} ({mixture.family}), data set {index}, {field}[{i}]"
                    numbers[name] = float(value)
            yield seconds, numbers


PARTS = {"published_fits": _published_fits, "stacked_accuracy": _stacked_accuracy}
CALLS: dict[str, dict[str, Any]] = {
    "published_fits": {"default": {}, "one random start": {"init": "random", "n_starts": 1}},
    "stacked_accuracy": {"default": {}, "moments": {"polish": False}, "power": {"method": "power"}},
}


def _measure(sizes: Mapping[str, int], only: str | None) -> dict[str, Any]:
    """Settings, and seconds and numbers of every call, in the tree of the working directory."""
    calls = {}
    for part in [only] if only else PARTS:
        for call, options in CALLS[part].items():
            next(PARTS[part](1, options))  # the first call of a process pays for imports
            runs = list(PARTS[part](sizes[part], options))
            numbers = {name: value for _, named in runs for name, value in named.items()}
            seconds = sum(run[0] for run in runs)
            calls[f"{part}, {call}"] = {"seconds": seconds, "numbers": numbers}
    # An editable install silently supplies modules that the measured tree lacks.
    for name, module in sys.modules.items():
        is_ours = name.partition(".")[0] in ("benchmarks", "moment_init") and module.__file__
        if is_ours and not Path(module.__file__ or "").resolve().is_relative_to(Path.cwd()):
            raise ImportError(f"{name} was imported from {module.__file__}, not {Path.cwd()}.")
    threads = {name: os.environ.get(name) for name in THREADS}
    return {"settings": {**sizes, **threads}, "calls": calls}


def _measure_tree(tree: Path, arguments: Sequence[str], threads: Mapping[str, str]) -> Any:
    """Measure a tree in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "numbers.json"
        command = [sys.executable, "-P", str(SCRIPT), *arguments, "--measure", str(output)]
        environment = {**os.environ, **threads, "PYTHONPATH": str(tree)}
        subprocess.run(command, cwd=tree, env=environment, check=True)
        return json.loads(output.read_text())


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A temporary worktree of a commit."""
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch).resolve() / "old"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _relative_difference(old: float | None, new: float | None) -> float:
    """Relative difference; infinite if a number is missing or not finite."""
    if old is None or new is None or not (math.isfinite(old) and math.isfinite(new)):
        return math.inf
    return abs(old - new) / max(abs(old), abs(new), sys.float_info.min)


def _compare(call: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, float]:
    """Print the row of a call; return the relative differences of the numbers that differ."""
    pairs = {
        name: (old["numbers"].get(name), new["numbers"].get(name))
        for name in {**old["numbers"], **new["numbers"]}
    }
    # As text, NaN equals NaN, and 0.0 differs from -0.0.
    differences = {
        name: _relative_difference(*pair)
        for name, pair in pairs.items()
        if repr(pair[0]) != repr(pair[1])
    }
    largest, n_equal = max(differences.values(), default=0.0), len(pairs) - len(differences)
    before, after = old["seconds"], new["seconds"]
    counts = f"{len(pairs):>9}{n_equal:>9}{largest:>14.1e}"
    print(f"{call:<34}{counts}{before:>9.2f}{after:>9.2f}{after / before:>9.2f}")
    return differences


def main() -> int:
    """Measure one tree, or two and compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", nargs="?", help="commit, or file that --measure wrote")
    parser.add_argument("--seeds", type=int, default=10, help="for each published model")
    parser.add_argument("--datasets", type=int, default=5, help="for each mixture")
    parser.add_argument("--only", choices=PARTS, help="measure this part only")
    parser.add_argument("--sequential", action="store_true", help="one tree, then the other")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="record numbers, compare none")
    parsed = parser.parse_args()
    if (parsed.old is None) == (parsed.measure is None):
        parser.error("give either an old commit or --measure FILE")
    if parsed.measure:
        sizes = {"published_fits": parsed.seeds, "stacked_accuracy": parsed.datasets}
        with warnings.catch_warnings(action="ignore"):  # numbers are compared, not warnings
            parsed.measure.write_text(json.dumps(_measure(sizes, parsed.only), indent=1))
        return 0
    arguments = [f"--seeds={parsed.seeds}", f"--datasets={parsed.datasets}"]
    arguments += [f"--only={parsed.only}"] if parsed.only else []
    threads = {} if parsed.sequential else dict.fromkeys(THREADS, "1")
    try:
        if Path(parsed.old).is_file():
            old = json.loads(Path(parsed.old).read_text())
            new = _measure_tree(ROOT, arguments, threads)
        else:
            n_workers = 1 if parsed.sequential else 2
            with worktree(parsed.old) as tree, ThreadPoolExecutor(n_workers) as pool:
                old, new = pool.map(lambda t: _measure_tree(t, arguments, threads), (tree, ROOT))
    except subprocess.CalledProcessError as error:
        parser.error(str(error))
    if old["settings"] != new["settings"]:
        parser.error(f"settings differ: {old['settings']} and {new['settings']}")
    titles = f"{'numbers':>9}{'equal':>9}{'largest rel.':>14}{'old s':>9}{'new s':>9}{'ratio':>9}"
    print(f"{'':34}{titles}")
    differences = {
        call: _compare(call, old["calls"][call], measured)
        for call, measured in new["calls"].items()
    }
    for call, by_name in differences.items():
        largest_first = sorted(by_name.items(), key=lambda item: -item[1])
        for name, difference in largest_first[:MOST_NAMES]:
            print(f"differs: {call}: {name}: {difference:.1e}")
        if len(by_name) > MOST_NAMES:
            print(f"differs: {call}: {len(by_name) - MOST_NAMES} more")
    return int(any(differences.values()))


if __name__ == "__main__":
    sys.exit(main())
