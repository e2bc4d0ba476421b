"""Real data sets, the models fitted to them, and the best known log-likelihoods."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = [
    "FLEXMIX_FILE",
    "REAL_FOLDER",
    "FlexmixRuns",
    "RealProblem",
    "load_flexmix",
    "load_real_problems",
]

REAL_FOLDER = Path(__file__).resolve().parent / "data" / "real"

# Written by `python -m benchmarks.flexmix_real`.
FLEXMIX_FILE = REAL_FOLDER / "flexmix.json"

FloatArray = NDArray[np.float64]

# Column of a table, and the argument of `fit_em` that it is.
ROW_ARGUMENTS = {
    "trials": "n_trials",
    "group": "groups",
    "offset": "offset",
    "weight": "sample_weight",
}


@dataclass(frozen=True, slots=True, eq=False)
class RealProblem:
    """A data set, a model of it and its best known log-likelihood."""

    name: str  # names data set and model
    X: pd.DataFrame
    y: FloatArray  # (n_obs,)
    n_components: int
    best: float  # highest log-likelihood that any run reached
    is_degenerate: bool  # whether that fit lies on a bound
    published: float | None  # log-likelihood of the source, if it states one
    options: Mapping[str, Any]  # further arguments of `fit_em`


@dataclass(frozen=True, slots=True, eq=False)
class FlexmixRuns:
    """Random starts of flexmix on one problem."""

    ends: FloatArray  # log-likelihoods after our EM from their ends; -inf if a start failed
    seconds_ratio: float  # median seconds of a start over those of one of our random starts

    def share(self, threshold: float) -> float:
        """Share of starts that end at a threshold or above."""
        return float(np.mean(self.ends >= threshold))


def load_flexmix() -> dict[str, FlexmixRuns]:
    """Read the runs of flexmix by name of the problem, if at least one ended in time."""
    entries = json.loads(FLEXMIX_FILE.read_text(encoding="utf-8"))["problems"]
    return {entry["name"]: _runs(entry) for entry in entries if entry["seconds"] is not None}


def _runs(entry: Mapping[str, Any]) -> FlexmixRuns:
    ends = [-np.inf if end is None else end for end in entry["log_likelihoods"]]
    return FlexmixRuns(np.array(ends), entry["seconds"] / entry["our_seconds"])


def load_real_problems() -> tuple[RealProblem, ...]:
    """Read the tables and the models."""
    entries = json.loads((REAL_FOLDER / "problems.json").read_text(encoding="utf-8"))
    return tuple(_problem(entry) for entry in entries)


def _problem(entry: Mapping[str, Any]) -> RealProblem:
    table = pd.read_csv(REAL_FOLDER / f"{entry['table']}.csv.gz")
    options: dict[str, Any] = {"family": entry["family"], "shared": entry["shared"] or None}
    if entry["has_gate"]:
        options["gating"] = _columns(table, "g__")
    for column, argument in ROW_ARGUMENTS.items():
        if column in table:
            options[argument] = table[column].to_numpy()
    return RealProblem(
        entry["name"],
        _columns(table, "x__"),
        table["y"].to_numpy(dtype=np.float64),
        entry["n_components"],
        entry["best_known"],
        bool(entry["degenerate"]),
        entry["published"],
        options,
    )


def _columns(table: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """Columns whose names begin with a prefix, without it."""
    names = [name for name in table.columns if name.startswith(prefix)]
    return table[names].rename(columns=lambda name: name.removeprefix(prefix))
