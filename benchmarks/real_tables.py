"""Real data sets, the models fitted to them, and the best known log-likelihoods."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["REAL_FOLDER", "RealProblem", "load_real_problems"]

REAL_FOLDER = Path(__file__).resolve().parent / "data" / "real"

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
