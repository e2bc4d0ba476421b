"""Seconds from calling `sample` with an existing fit to its first draw.

The timed call runs one chain with one tuning step and one draw, so it ends shortly after the first
draw. Imports, data and fit are done before the clock starts. Each measurement runs in a separate
process. The first has empty PyTensor and numba caches; the second reuses the caches of the first; a
third, with empty caches again, compiles the same model with its data as constants.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import number
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row

__all__ = ["BENCHMARK", "run"]

N_OBS, N_FEATURES, N_COMPONENTS, SCALE = 5_000, 5, 3, 4.0
QUICK_OBS = 500
COLD, SECOND, CONSTANT = "cold", "second process", "cold, data as constants"
BARS = {COLD: 15.0, SECOND: 5.0}

# CPU seconds include the compilers that PyTensor starts as child processes.
PREAMBLE = """
import json, os, sys, time
import nutpie, numba, pymc
from moment_init import fit_em, simulate_mixture
from moment_init.posterior.sampling import sample
import moment_init.posterior.running

settings = json.loads(sys.argv[1])
seed = settings["seed"]
data = simulate_mixture(
    settings["n_obs"], settings["n_features"], settings["n_components"],
    scales=settings["scale"], random_seed=seed,
)
fit = fit_em(data.X, data.y, settings["n_components"], progressbar=False, random_seed=seed)
compiling = [0.0]
compile_model = nutpie.compile_pymc_model

def timed(*arguments, **options):
    start = time.perf_counter()
    compiled = compile_model(*arguments, **options)
    compiling[0] += time.perf_counter() - start
    return compiled

nutpie.compile_pymc_model = timed

def clock():
    times = os.times()
    return time.perf_counter(), times.user + times.system + times.children_user + (
        times.children_system
    )

before = clock()
"""

AS_DATA = """
sample(
    data.X, data.y, settings["n_components"], init=fit, draws=1, tune=1, chains=1,
    log_likelihood=False, posterior_predictive=False, progressbar=False, random_seed=seed,
)
"""

AS_CONSTANTS = """
from moment_init.models import mixture_glm

model = mixture_glm(data.X, data.y, settings["n_components"], init=fit)
compiled = nutpie.compile_pymc_model(model, freeze_model=True, jitter_rvs=set())
nutpie.sample(compiled, draws=1, tune=1, chains=1, progress_bar=False, seed=seed)
"""

ENDING = """
after = clock()
print(json.dumps(
    {"wall": after[0] - before[0], "cpu": after[1] - before[1], "compile": compiling[0]}
))
"""


def run(options: Options) -> Outcome:
    """Time the first draw with empty caches, with filled ones, and with data as constants."""
    settings = {
        "n_obs": QUICK_OBS if options.is_quick else N_OBS,
        "n_features": N_FEATURES,
        "n_components": N_COMPONENTS,
        "scale": SCALE,
        "seed": options.seed,
    }
    rows = _measure({COLD: AS_DATA, SECOND: AS_DATA}, settings)
    rows += _measure({CONSTANT: AS_CONSTANTS}, settings)
    figures = [_figure(row, is_judged=not options.is_quick) for row in rows]
    return Outcome(tuple(rows), tuple(figures), settings)


def _measure(bodies: dict[str, str], settings: dict[str, Any]) -> list[Row]:
    """Run processes one after another that share caches, which are empty at first."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            _row(name, _measure_process(body, settings, Path(folder)))
            for name, body in bodies.items()
        ]


def _measure_process(body: str, settings: dict[str, Any], folder: Path) -> dict[str, float]:
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    cache_flag = f"base_compiledir={folder / 'pytensor'}"
    environment = {
        **os.environ,
        "PYTENSOR_FLAGS": f"{flags},{cache_flag}" if flags else cache_flag,
        "NUMBA_CACHE_DIR": str(folder / "numba"),
    }
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + body + ENDING, json.dumps(settings)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    # PyMC may have printed other lines before.
    measured: dict[str, float] = json.loads(result.stdout.strip().splitlines()[-1])
    return measured


def _row(name: str, measured: dict[str, float]) -> Row:
    row: Row = {
        "process": name,
        "wall s": measured["wall"],
        "CPU s": measured["cpu"],
        "of which compiling, wall s": measured["compile"],
    }
    print(f"{name}: {measured['wall']:.1f} s, {measured['cpu']:.1f} s of CPU", flush=True)
    return row


def _figure(row: Row, *, is_judged: bool) -> Figure:
    seconds, bar = number(row, "wall s"), BARS.get(str(row["process"]))
    return Figure(
        f"seconds to the first draw, {row['process']}",
        seconds,
        None if bar is None else f"<= {bar:g}",
        seconds <= bar if is_judged and bar is not None else None,
    )


BENCHMARK = Benchmark("first_draw", "seconds from the call of `sample` to the first draw", run)
