"""Single random starts of R's flexmix on the real data, stored beside their tables.

Run `python -m benchmarks.flexmix_real` where R and flexmix are installed. It writes `flexmix.json`,
which `real_data` reads. flexmix's Gaussian variances are sums of squares over n - p, so it never
reaches the maximum itself: the log-likelihood of a start is that of our EM from the posterior
probabilities at its end. Seconds are of the processor, on both sides, as other work may share it.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.real_data import TOLERANCE, fit_timed
from benchmarks.real_tables import FLEXMIX_FILE, RealProblem, load_real_problems

__all__ = ["main"]

SCRIPT = Path(__file__).resolve().parent / "r" / "flexmix_real.R"

N_STARTS = 10

# Relative increment of the log-likelihood at which flexmix ends.
FLEXMIX_TOLERANCE = 1e-8

# Time limit of all starts on one problem; those that it cuts off are counted.
LONGEST_SECONDS = 60.0

LEFT_OUT = {"gamma": "flexmix has the reciprocal link, the problem a logarithmic one"}


def main(names: Sequence[str] = ()) -> None:
    """Run flexmix on the named problems, all by default, and store where its starts end."""
    problems = {each.name: each for each in load_real_problems()}
    stored = json.loads(FLEXMIX_FILE.read_text(encoding="utf-8")) if names else {}
    entries = {each["name"]: each for each in stored.get("problems", [])}
    versions = stored.get("versions", {})
    with threadpool_limits(limits=1):
        for name in names or problems:
            if problems[name].options["family"] in LEFT_OUT:
                continue
            entries[name], versions = _measured(problems[name])
            print(_summary(problems[name], entries[name]), flush=True)
    record = {
        "made by": "python -m benchmarks.flexmix_real, which calls benchmarks/r/flexmix_real.R",
        "versions": versions,
        "settings": {
            "starts": N_STARTS,
            "tolerance": FLEXMIX_TOLERANCE,
            "minprior": 0,
            "seconds per problem": LONGEST_SECONDS,
        },
        "left out": {
            name: LEFT_OUT[each.options["family"]]
            for name, each in problems.items()
            if each.options["family"] in LEFT_OUT
        },
        "problems": [entries[name] for name in problems if name in entries],
    }
    FLEXMIX_FILE.write_text(_as_text(record), encoding="utf-8")


def _measured(problem: RealProblem) -> tuple[dict[str, Any], dict[str, str]]:
    """Ends and seconds of the starts on a problem, and the versions of R and flexmix."""
    with TemporaryDirectory() as path:
        folder = Path(path)
        _run_script(problem, folder)
        table = pd.read_csv(folder / "versions.csv", dtype=str)
        versions = {str(name): str(version) for name, version in table.iloc[0].items()}
        runs = _read_runs(folder)
        ends = [_end(problem, folder / f"{seed:.0f}.csv") for seed in runs["seed"]]
    ours = [_our_seconds(problem, seed) for seed in range(N_STARTS + 1)][1:]  # the first warms up
    seconds = runs["seconds"].dropna()
    entry = {
        "name": problem.name,
        "log_likelihoods": ends,
        "n_cut_off": N_STARTS - len(ends),
        "seconds": round(median(seconds), 4) if len(seconds) else None,
        "our_seconds": round(median(ours), 4),
    }
    return entry, versions


def _run_script(problem: RealProblem, folder: Path) -> None:
    """Run all starts in one process of R, which leaves its results in the folder."""
    data, options = folder / "data.csv", problem.options
    _as_table(problem).to_csv(data, index=False)
    shares_variance = int("dispersion" in (options["shared"] or ()))
    arguments = (data, options["family"], problem.n_components, shares_variance)
    command = ["Rscript", SCRIPT, *arguments, FLEXMIX_TOLERANCE, N_STARTS, folder]
    try:
        subprocess.run(
            [str(each) for each in command],
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=LONGEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"{problem.name}: time limit reached", flush=True)


def _as_table(problem: RealProblem) -> pd.DataFrame:
    """Rows of a problem, in columns whose names tell the model to the script."""
    options = problem.options
    shared = options["shared"] or ()
    table = {"y": problem.y}
    for rank, name in enumerate(problem.X):
        table[f"{'s' if name in shared else 'x'}{rank}"] = problem.X[name].to_numpy()
    if "gating" in options:
        for rank, name in enumerate(options["gating"]):
            table[f"g{rank}"] = options["gating"][name].to_numpy()
    for column, argument in (("trials", "n_trials"), ("offset", "offset"), ("group", "groups")):
        if argument in options:
            table[column] = options[argument]
    return pd.DataFrame(table)


def _read_runs(folder: Path) -> pd.DataFrame:
    path, names = folder / "runs.csv", ["seed", "seconds"]
    return pd.read_csv(path, names=names) if path.exists() else pd.DataFrame(columns=names)


def _end(problem: RealProblem, path: Path) -> float | None:
    """Log-likelihood of our EM from the end of a start, None if the start failed."""
    if not path.exists():
        return None
    posterior = pd.read_csv(path).to_numpy(dtype=np.float64)
    try:
        fit, _ = fit_timed(problem, 0, init=posterior)
    except ValueError as error:  # an empty component, for instance
        print(f"{problem.name}: {error}", flush=True)
        return None
    return round(fit.log_likelihood, 4)


def _our_seconds(problem: RealProblem, seed: int) -> float:
    """Seconds of one of our random starts, of the kind that flexmix runs."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fit_timed(problem, seed, init="random", random_start="assignment", n_starts=1)
        except ValueError:  # the only start broke down: its time counts all the same
            pass
    return time.process_time() - begin


def _summary(problem: RealProblem, entry: dict[str, Any]) -> str:
    ends = [each for each in entry["log_likelihoods"] if each is not None]
    n_hits = sum(each >= problem.best - TOLERANCE for each in ends)
    highest = max(ends, default=float("nan"))
    return (
        f"{problem.name}: {n_hits} of {len(entry['log_likelihoods'])} at {problem.best}, "
        f"highest {highest}, {entry['log_likelihoods'].count(None)} failed, "
        f"{entry['n_cut_off']} cut off, {entry['seconds']} s, ours {entry['our_seconds']} s"
    )


def _as_text(record: dict[str, Any]) -> str:
    """JSON with one line per problem."""
    lines = ",\n  ".join(json.dumps(each) for each in record["problems"])
    head = json.dumps({**record, "problems": []}, indent=1).removesuffix("[]\n}")
    return f"{head}[\n  {lines}\n ]\n}}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
