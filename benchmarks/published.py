"""Published data sets, the models fitted to them, and the best known log-likelihoods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["DATA_FOLDER", "PublishedFit", "load_published_fits"]

DATA_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data"

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PublishedFit:
    """A data set, a model of it and its best known fit."""

    name: str  # names data set and model
    X: pd.DataFrame
    y: FloatArray  # (n_obs,)
    n_components: int
    # best known log-likelihood; for Gaussians, with no standard deviation below 0.05 times another
    best: float
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `fit_em`


def load_published_fits() -> tuple[PublishedFit, ...]:
    """Read the data and define the models.

    The log-likelihoods are flexmix's best of 30 random starts and, for Gaussian responses, the
    maximum of the likelihood itself, which flexmix's M-step just misses.
    """
    return (
        _seizure(),
        *_betablocker(),
        *_patent(),
        _fabricfault(),
        *_npreg(),
        _line("tonedata", "stretchratio", "tuned", 141.198),
        _line("CO2data", "GNP", "CO2", -66.9398),
    )


def _seizure() -> PublishedFit:
    frame = _read("seizure")
    treatment = (frame["Treatment"] == "Yes").astype(float)
    log_day = np.log(frame["Day"])
    X = pd.DataFrame({"Treatment": treatment, "log(Day)": log_day, "both": treatment * log_day})
    options = {"family": "poisson", "offset": np.log(_column(frame, "Hours"))}
    return PublishedFit("seizure", X, _column(frame, "Seizures"), 2, -376.1762, options)


def _betablocker() -> tuple[PublishedFit, PublishedFit]:
    frame = _read("betablocker")
    X = pd.DataFrame({"Treatment": (frame["Treatment"] == "Treated").astype(float)})
    y = _column(frame, "Deaths")
    options = {
        "family": "binomial",
        "n_trials": _column(frame, "Total"),
        "groups": frame["Center"].to_numpy(),
    }
    shared = {**options, "shared": ["Treatment"]}
    return (
        PublishedFit("betablocker, treatment shared", X, y, 3, -159.3605, shared),
        PublishedFit("betablocker", X, y, 4, -153.1437, options),
    )


def _patent() -> tuple[PublishedFit, PublishedFit]:
    frame = _read("patent")
    X, y = frame[["lgRD"]], _column(frame, "Patents")
    gated = {"family": "poisson", "gating": frame[["RDS"]]}
    return (
        PublishedFit("patent, gate", X, y, 3, -197.6750, gated),
        PublishedFit("patent", X, y, 3, -203.5332, {"family": "poisson"}),
    )


def _fabricfault() -> PublishedFit:
    frame = _read("fabricfault")
    X = pd.DataFrame({"log(Length)": np.log(frame["Length"])})
    y = _column(frame, "Faults")
    return PublishedFit("fabricfault", X, y, 2, -84.8882, {"family": "poisson"})


def _npreg() -> tuple[PublishedFit, PublishedFit, PublishedFit]:
    frame = _read("NPreg")
    X = frame[["x"]]
    square = X.assign(**{"x^2": frame["x"] ** 2})
    counts, binary = {"family": "poisson"}, {"family": "bernoulli"}
    return (
        PublishedFit(
            "NPreg, yn", square, _column(frame, "yn"), 2, -642.5320, {"family": "gaussian"}
        ),
        PublishedFit("NPreg, yp", X, _column(frame, "yp"), 2, -440.6403, counts),
        PublishedFit("NPreg, yb", X, _column(frame, "yb"), 2, -138.2537, binary),
    )


def _line(name: str, feature: str, response: str, best: float) -> PublishedFit:
    """A published Gaussian mixture regression on one feature."""
    frame = _read(name)
    y = _column(frame, response)
    return PublishedFit(name, frame[[feature]], y, 2, best, {"family": "gaussian"})


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(DATA_FOLDER / f"{name}.csv")


def _column(frame: pd.DataFrame, name: str) -> FloatArray:
    return frame[name].to_numpy(dtype=np.float64)
