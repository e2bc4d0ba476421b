"""Runs of nutpie on a model in plain Python, which needs no compiler."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nutpie
from numpy.typing import NDArray
from nutpie.compiled_pyfunc import from_pyfunc

from moment_init.posterior.store import store_arguments

FloatArray = NDArray[np.float64]

FEATURES = ["age", "blood pressure"]
N_TUNE = 40


def make_model(before_draw: Callable[[], object] = lambda: None) -> Any:
    """Standard normal coefficients in two features and components, and a scale."""

    def make_log_density() -> Callable[..., tuple[float, FloatArray]]:
        return lambda x, **_: (-0.5 * float(x @ x), -x)

    def make_expansion(*_: Any, **__: Any) -> Callable[..., dict[str, FloatArray]]:
        def expand(x: FloatArray, **_: Any) -> dict[str, FloatArray]:
            before_draw()
            return {
                "log_scale__": x[4:],
                "coefficient": x[:4].reshape(2, 2),
                "scale": np.exp(x[4:]),
                "pair": x[:2],
            }

        return expand

    return from_pyfunc(
        6,
        make_log_density,
        make_expansion,
        [np.dtype(np.float64)] * 4,
        [(2,), (2, 2), (2,), (2,)],
        ["log_scale__", "coefficient", "scale", "pair"],
        coords={"feature": FEATURES, "component": np.arange(2)},
        dims={"coefficient": ("feature", "component"), "scale": ("component",)},
    )


def sample_as_pymc(*, nuts_sampler: str, nuts: dict[str, Any], **arguments: Any) -> Any:
    """Sample with some arguments of `pymc.sample`, and with its error at the end."""
    assert nuts_sampler == "nutpie"
    arguments.pop("discard_tuned_samples", None)
    nutpie.sample(make_model(), tune=N_TUNE, progress_bar=False, **arguments, **nuts)
    raise KeyError("inference_library_settings")


def sample_until_killed(path: Path, counts: Path, n_draws: int) -> None:
    """Sample two chains that wait for each other; note the draws made and kill the process."""

    def note_and_kill(chains: list[Any]) -> None:
        made = [chain.finished_draws - N_TUNE for chain in chains]
        if min(made) >= n_draws:
            counts.write_text(json.dumps(made))
            os.kill(os.getpid(), signal.SIGKILL)

    given = store_arguments(path, {"chains": 2})
    nutpie.sample(
        make_model(threading.Barrier(2).wait),
        draws=1000 * n_draws,
        tune=N_TUNE,
        seed=1,
        chains=2,
        cores=given["cores"],
        progress_bar=False,
        progress_callback=note_and_kill,
        progress_rate=5,
        **given["nuts"],
    )
