"""Compare the speed of fits by EM in another commit with that in this tree.

``python -m scripts.compare_engines OLD_COMMIT`` measures a temporary worktree of the old commit and
this tree, uncommitted changes included. Each tree has a process of its own, with the same number of
threads. The two take turns, repetition by repetition, so that a change in the load of the machine
affects both. A row shows the median time of both trees, and the ratios new / old of the medians and
of the minima. The exit status is 0 if every bar is met, 1 if one is missed; ``--quick`` has smaller
sizes and always ends with 0.

The parts are

- em, newton: time of an EM iteration, and of a pass over the rows for a Newton step,
- starts, search: time of one random start and of the default call of `fit_em`, summed over data
  sets,
- first_call: time of the first call in a fresh process minus that of the second, with an empty and
  with a filled cache of compiled functions. The bars apply to the time of the new tree,
- estimate: time of `estimate`, and its ratio to one random start of `fit_em` in the new tree.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[1]

PARTS = ("em", "newton", "starts", "search", "first_call", "estimate")

Shape = tuple[str, int, int, int]  # family, rows, features, components
SMALL_OBS, LARGE_OBS, QUICK_OBS = 5_000, (100_000, 1_000_000), (20_000,)
SMALL: tuple[Shape, ...] = (
    ("gaussian", SMALL_OBS, 10, 5),
    ("poisson", SMALL_OBS, 5, 3),
    ("bernoulli", SMALL_OBS, 5, 2),
    ("negative_binomial", SMALL_OBS, 5, 3),
)
LARGE_SIZES = 20, 3  # features, components
NEWTON_OBS = 100_000  # Newton passes are measured up to this number of rows
# Norms of the coefficients. Components overlap, so that EM does not converge within `EM_STEPS`.
SCALES = {"gaussian": 1.0, "poisson": 0.7, "bernoulli": 2.0, "negative_binomial": 0.7}

# The difference between two climbs is the time of iterations alone. A measurement of few rows takes
# the shortest of several climbs, or the mean of several passes.
EM_STEPS, LARGE_EM_STEPS = (5, 25), (2, 10)
N_CLIMBS, N_PASSES = 10, 20

N_REPEATS, LARGE_REPEATS, QUICK_REPEATS = 9, 5, 2
N_DATA_SETS = 5
N_GAUNTLET = 3  # the first mixtures of the gauntlet: R1, R2 and R3
FIRST_CALL_SIZES = 2_000, 3, 2  # rows, features, components
SEED = 1412

ESTIMATE_OBS, ESTIMATE_SIZES = (2_000, 4_000, 8_000), ((5, 2), (10, 4))
ESTIMATE_FAMILIES = "gaussian", "poisson", "bernoulli"
STARTS_OBS = 4_000  # rows of the comparison of `estimate` with random starts
ESTIMATE_DATA_SETS = 3

SMALL_BAR, LARGE_BAR, SEARCH_BAR = 0.4, 0.6, 0.4
ESTIMATE_BAR, STARTS_BAR = 0.35, 4.0
COLD_BAR, WARM_BAR = 6.0, 1.0  # seconds

Ask = Callable[[Mapping[str, str]], float]  # seconds of a request: part, path of data, family


@lru_cache(maxsize=1)
def _load(path: str) -> dict[str, Any]:
    """Arrays of a file."""
    with np.load(path) as arrays:
        return dict(arrays)


@lru_cache(maxsize=1)
def _posed(path: str, family: str) -> tuple[Any, Any]:
    """Prepared EM problem of a file, and a start."""
    from moment_init.data.checking import validate_data
    from moment_init.em.given import given_starts
    from moment_init.em.problem import pose_em

    arrays = _load(path)
    data = validate_data(arrays["X"], arrays["y"], family=family)
    problem = pose_em(data, len(arrays["weights"])).prepared()
    start = [arrays[name] for name in ("coefficients", "biases", "weights", "dispersion")]
    # families without a dispersion have an empty one in the file
    return problem, given_starts(problem, tuple(part for part in start if part.size))[0][1]


def _time_em(path: str, family: str) -> float:
    """Seconds of an EM iteration."""
    problem, start = _posed(path, family)
    is_large = len(_load(path)["y"]) >= LARGE_OBS[0]
    steps, n_climbs = (LARGE_EM_STEPS, 1) if is_large else (EM_STEPS, N_CLIMBS)
    shortest = dict.fromkeys(steps, np.inf)
    for n_steps, _ in product(steps, range(n_climbs)):
        begin = time.perf_counter()
        result = problem.climb(start, max_steps=n_steps, em_steps=n_steps)
        shortest[n_steps] = min(shortest[n_steps], time.perf_counter() - begin)
        if result.n_iter != n_steps:
            raise RuntimeError(f"{family}: {result.n_iter} steps instead of {n_steps}.")
    return (shortest[steps[1]] - shortest[steps[0]]) / (steps[1] - steps[0])


def _time_newton(path: str, family: str) -> float:
    """Seconds of a pass that sums the score and both parts of the information."""
    from moment_init.likelihood.sums import likelihood_sums

    problem, start = _posed(path, family)
    arguments = problem.family, problem.rows, start
    n_passes = 1 if problem.rows.n_obs >= LARGE_OBS[0] else N_PASSES
    begin = time.perf_counter()
    for _ in range(n_passes):
        likelihood_sums(*arguments, missing=True, constant=problem.constant)
    return (time.perf_counter() - begin) / n_passes


def _time_fit(path: str, family: str, **options: Any) -> float:
    """Seconds of a call of `fit_em`."""
    from moment_init import fit_em

    arrays = _load(path)
    X, y, n_components = arrays["X"], arrays["y"], len(arrays["weights"])
    begin = time.perf_counter()
    fit_em(X, y, n_components, family=family, random_seed=SEED, progressbar=False, **options)
    return time.perf_counter() - begin


def _time_estimate(path: str, family: str) -> float:
    """Seconds of a call of `estimate`."""
    from moment_init import estimate

    arrays = _load(path)
    begin = time.perf_counter()
    estimate(arrays["X"], arrays["y"], len(arrays["weights"]), family=family, random_seed=SEED)
    return time.perf_counter() - begin


def _measure(part: str, path: str, family: str) -> float:
    """Seconds of one measurement, in the tree of the working directory."""
    from moment_init.data.blocks import single_threaded_blas

    if part == "estimate":
        return _time_estimate(path, family)
    if part == "starts":
        return _time_fit(path, family, init="random", n_starts=1)
    if part == "search":
        return _time_fit(path, family)
    if part == "first_call":
        first = _time_fit(path, family)
        return first - min(_time_fit(path, family) for _ in range(2))
    with single_threaded_blas():  # `fit_em` limits BLAS once for all of its climbs
        return _time_em(path, family) if part == "em" else _time_newton(path, family)


def _serve() -> None:
    """Read requests from standard input, and write their seconds to standard output."""
    # what the library prints must not mix with the replies
    replies, sys.stdout = sys.stdout, sys.stderr
    import moment_init

    # an editable install silently supplies a package that the measured tree lacks
    if not Path(moment_init.__file__).resolve().is_relative_to(Path.cwd()):
        raise ImportError(f"moment_init was imported from {moment_init.__file__}.")
    with warnings.catch_warnings(action="ignore"):  # speed is compared, not warnings
        for line in sys.stdin:
            print(_measure(**json.loads(line)), file=replies, flush=True)


@contextmanager
def _process(folder: Path, environment: Mapping[str, str]) -> Iterator[Ask]:
    """A process that measures the tree in a folder; it ends when its input is closed."""
    command = [sys.executable, "-P", str(SCRIPT), "--serve"]
    variables = {**os.environ, **environment, "PYTHONPATH": str(folder)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=variables, **pipes) as process:

        def ask(request: Mapping[str, str]) -> float:
            print(json.dumps(request), file=process.stdin, flush=True)
            reply = process.stdout.readline() if process.stdout else ""
            if not reply:
                raise RuntimeError(f"{request} failed in {folder}.")
            return float(reply)

        yield ask


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of both trees: for each request, a list of repetitions."""

    name: str
    old: list[list[float]]
    new: list[list[float]]
    bar: float | None = None
    is_ratio: bool = True  # whether the bar is on the ratio, or on the seconds of the new tree

    @property
    def is_met(self) -> bool:
        """Whether there is no bar, or the row meets it."""
        unit = sum(map(median, self.old)) if self.is_ratio else 1.0
        return self.bar is None or sum(map(median, self.new)) <= self.bar * unit

    def __str__(self) -> str:
        """Line of the table; times are in milliseconds."""
        old, new = (1e3 * sum(map(median, side)) for side in (self.old, self.new))
        minima = sum(map(min, self.new)) / sum(map(min, self.old))
        ratios = f"{new / old:>8.2f}{minima:>8.2f}" if self.is_ratio else " " * 16
        bar = "" if self.bar is None else f"{self.bar:g}{'' if self.is_ratio else ' s'}"
        verdict = "" if self.bar is None else "yes" if self.is_met else "no"
        return f"{self.name:<61}{old:>10.2f}{new:>10.2f}{ratios}{bar:>6}{verdict:>5}".rstrip()


def _by_turns(
    trees: Mapping[str, Ask], requests: Sequence[Mapping[str, str]], n_repeats: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds of the old and of the new tree, which take turns."""
    for ask in trees.values():
        ask(requests[0])  # the first call pays for imports and compilation
    seconds: dict[str, list[list[float]]] = {side: [[] for _ in requests] for side in trees}
    for (index, request), repeat in product(enumerate(requests), range(n_repeats)):
        for side in ("old", "new") if repeat % 2 == 0 else ("new", "old"):
            seconds[side][index].append(trees[side](request))
    return seconds["old"], seconds["new"]


def _write(path: Path, data: Any) -> str:
    """Write data, and a start away from the truth, to a file that both trees read."""
    noise = np.random.default_rng(SEED).standard_normal(data.coefficients.shape)
    lengths = np.linalg.norm(data.coefficients, axis=0) / np.linalg.norm(noise, axis=0)
    np.savez(
        path,
        X=data.X,
        y=data.y,
        coefficients=data.coefficients + noise * lengths,
        biases=data.biases,
        weights=np.full(len(data.weights), 1 / len(data.weights)),
        dispersion=[] if data.dispersion is None else data.dispersion,
    )
    return str(path)


def _passes(
    trees: Mapping[str, Ask], folder: Path, parts: Sequence[str], quick: bool
) -> Iterator[Row]:
    """EM iterations and Newton passes."""
    from moment_init import simulate_mixture

    sizes = QUICK_OBS if quick else LARGE_OBS
    large: list[Shape] = [(family, n, *LARGE_SIZES) for n in sizes for family in SCALES]
    for part, (family, n, d, r) in product(parts, [*SMALL, *large]):
        if part == "newton" and n > NEWTON_OBS:
            continue
        simulate = partial(simulate_mixture, family=family, scales=SCALES[family])
        path = _write(folder / f"{family} {n}.npz", simulate(n, d, r, random_seed=SEED))
        bar, n_repeats = (SMALL_BAR, N_REPEATS) if n == SMALL_OBS else (LARGE_BAR, LARGE_REPEATS)
        request = {"part": part, "path": path, "family": family}
        seconds = _by_turns(trees, [request], QUICK_REPEATS if quick else n_repeats)
        yield Row(f"{part}: {family}, n = {n:,}, d = {d}, r = {r}", *seconds, bar)
        Path(path).unlink()


def _drawn(n_data_sets: int) -> Iterator[tuple[str, str, list[Any]]]:
    """Name, family and data sets of the problems of two benchmarks."""
    from benchmarks.flexmix_speed import PROBLEMS
    from benchmarks.random_mixtures import GAUNTLET, draw
    from moment_init import simulate_mixture

    seeds = [[SEED, index] for index in range(n_data_sets)]
    for case in PROBLEMS:
        sizes = case.n_obs, case.n_features, case.n_components
        simulate = partial(simulate_mixture, *sizes, family=case.family, scales=case.scale)
        yield f"flexmix, {case.family}", case.family, [simulate(random_seed=s) for s in seeds]
    for mixture in GAUNTLET[:N_GAUNTLET]:
        yield mixture.name, mixture.family, [draw(mixture, *seed) for seed in seeds]


def _fits(
    trees: Mapping[str, Ask], folder: Path, parts: Sequence[str], quick: bool
) -> Iterator[Row]:
    """Random starts and default calls, and their totals."""
    rows: dict[str, list[Row]] = {part: [] for part in parts}
    for name, family, data_sets in _drawn(1 if quick else N_DATA_SETS):
        paths = [_write(folder / f"{name} {i}.npz", data) for i, data in enumerate(data_sets)]
        for part in parts:
            requests = [{"part": part, "path": path, "family": family} for path in paths]
            seconds = _by_turns(trees, requests, QUICK_REPEATS if quick else LARGE_REPEATS)
            rows[part].append(Row(f"{part}: {name}", *seconds))
            yield rows[part][-1]
    for part, measured in rows.items():
        old = list(chain.from_iterable(row.old for row in measured))
        new = list(chain.from_iterable(row.new for row in measured))
        yield Row(f"{part}: total", old, new, SEARCH_BAR if part == "search" else None)


def _estimates(trees: Mapping[str, Ask], folder: Path, quick: bool) -> Iterator[Row]:
    """Estimates from moments, in both trees and against random starts in the new one."""
    from moment_init import simulate_mixture

    n_repeats, n_data_sets = (QUICK_REPEATS, 1) if quick else (LARGE_REPEATS, ESTIMATE_DATA_SETS)
    shapes = product(ESTIMATE_FAMILIES, (STARTS_OBS,) if quick else ESTIMATE_OBS, ESTIMATE_SIZES)
    for family, n, (d, r) in shapes:
        simulate = partial(simulate_mixture, n, d, r, family=family, scales=SCALES[family])
        data_sets = [simulate(random_seed=[SEED, index]) for index in range(n_data_sets)]
        paths = [_write(folder / f"estimate {i}.npz", data) for i, data in enumerate(data_sets)]
        requests = [{"part": "estimate", "path": path, "family": family} for path in paths]
        old, new = _by_turns(trees, requests, n_repeats)
        name = f"estimate: {family}, n = {n:,}, d = {d}, r = {r}"
        yield Row(name, old, new, ESTIMATE_BAR)
        if n == STARTS_OBS:
            starts = [{**request, "part": "starts"} for request in requests]
            only_new = {"old": trees["new"], "new": trees["new"]}
            _, seconds = _by_turns(only_new, starts, n_repeats)
            yield Row(f"{name}, over a random start", seconds, new, STARTS_BAR)


def _first_calls(
    folders: Mapping[str, Path], environment: Mapping[str, str], scratch: Path, quick: bool
) -> Iterator[Row]:
    """First calls, each in a process of its own."""
    from moment_init import simulate_mixture

    for folder in folders.values():
        compileall.compile_dir(folder / "moment_init", quiet=1)  # bytecode is not what is measured
    for family in SCALES:
        data = simulate_mixture(*FIRST_CALL_SIZES, family=family, random_seed=SEED)
        path = _write(scratch / f"first {family}.npz", data)
        seconds: dict[str, list[float]] = {side: [] for side in folders}
        for _, side in product(range(1 + (QUICK_REPEATS if quick else LARGE_REPEATS)), folders):
            # the first process finds an empty folder, and fills it for the others
            cache = scratch / f"{side} {family}"
            cache.mkdir(exist_ok=True)
            with _process(folders[side], {**environment, "NUMBA_CACHE_DIR": str(cache)}) as ask:
                seconds[side].append(ask({"part": "first_call", "path": path, "family": family}))
        old, new = seconds["old"], seconds["new"]
        name = f"first_call: {family}"
        yield Row(f"{name}, cold cache", [old[:1]], [new[:1]], COLD_BAR, is_ratio=False)
        yield Row(f"{name}, warm cache", [old[1:]], [new[1:]], WARM_BAR, is_ratio=False)


def main() -> int:
    """Compare two trees; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="commit")
    parser.add_argument("--threads", type=int, default=1, help="of each tree; 1 by default")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repetitions")
    parsed = parser.parse_args()
    from scripts.compare_commits import THREADS, worktree  # imports the library of this tree

    environment = dict.fromkeys((*THREADS, "NUMBA_NUM_THREADS"), str(parsed.threads))
    passes, fits = ([p for p in PARTS[i : i + 2] if p in parsed.parts] for i in (0, 2))
    print(f"{f'threads: {parsed.threads}':<61}{'old ms':>10}{'new ms':>10}", end="")
    print(f"{'ratio':>8}{'minima':>8}{'bar':>6}{'met':>5}", flush=True)
    all_met = True
    with ExitStack() as stack:
        enter = stack.enter_context
        scratch = Path(enter(tempfile.TemporaryDirectory()))
        folders = {"old": enter(worktree(parsed.old)), "new": ROOT}
        trees = {side: enter(_process(folders[side], environment)) for side in folders}
        tables = [_passes(trees, scratch, passes, parsed.quick)]
        tables += [_fits(trees, scratch, fits, parsed.quick)] if fits else []
        if "first_call" in parsed.parts:
            tables.append(_first_calls(folders, environment, scratch, parsed.quick))
        if "estimate" in parsed.parts:
            tables.append(_estimates(trees, scratch, parsed.quick))
        for row in chain.from_iterable(tables):
            print(row, flush=True)
            all_met = all_met and row.is_met
    return int(not (all_met or parsed.quick))


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        _serve()
    else:
        sys.exit(main())
