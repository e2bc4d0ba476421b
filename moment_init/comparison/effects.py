r"""Effects on comparable scales: what the forest shows.

Coefficients of features in different units cannot share an axis, and intercepts at features zero
may lie far outside the data. Shown are instead the change of the linear predictor with one standard
deviation of a feature, :math:`\beta_{kj} \, sd(x_k)`, and its level at the features' means,
:math:`b_j + \langle \beta_j, \bar x\rangle`, computed from each draw.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.comparison.representatives import reference_method, representative
from moment_init.comparison.result import RANDOM_EM

if TYPE_CHECKING:
    import xarray

    from moment_init.comparison.result import Comparison

__all__ = ["INTERVAL", "LEVEL", "MOST_EFFECTS", "Effects", "compute_effects", "intervals"]

FloatArray = NDArray[np.float64]

INTERVAL = 0.94
"""Probability inside an interval, that of ArviZ."""

LEVEL = "level at the means"
"""Label of the predictor at the features' means."""

MOST_EFFECTS = 20
"""Effects that a forest shows: with three methods each takes 0.4 inches, the height of a screen."""


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Effects of all methods, components one after another.

    Parameters
    ----------
    labels : tuple of str
        Names: the level, then features.
    components : numpy.ndarray of int, shape (n_effects,)
        Their components.
    intervals : dict of str to numpy.ndarray, shape (n_effects, 3)
        Lower end, median and upper end by method; of random starts those of the typical one.
    starts : numpy.ndarray, shape (n_starts, n_effects)
        Medians of every random start; no rows if there is none.
    truth : numpy.ndarray, shape (n_effects,), or None
        True effects.
    n_all : int
        Effects there are, shown or not.
    """

    labels: tuple[str, ...]
    components: NDArray[np.int64]
    intervals: dict[str, FloatArray]
    starts: FloatArray
    truth: FloatArray | None
    n_all: int


def compute_effects(comparison: "Comparison", *, most: int = MOST_EFFECTS) -> Effects:
    """Compute effects, and choose those on which methods differ most if there are too many.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    most : int
        How many to keep at most.

    Returns
    -------
    Effects
        The effects. Methods differ by the range of their medians, relative to the narrowest of
        their intervals.
    """
    posterior = comparison.trees[reference_method(comparison)]["posterior"].to_dataset()
    names = [LEVEL, *map(str, posterior.coords["feature"].to_numpy())]
    n_components = posterior.sizes["component"]
    found = {
        method: intervals(_flat(comparison, representative(comparison, method, "posterior")))
        for method in comparison.trees
    }
    kept = _most_disputed(np.stack(list(found.values())), most)
    return Effects(
        labels=tuple((names * n_components)[index] for index in kept),
        components=np.repeat(posterior.coords["component"].to_numpy(), len(names))[kept],
        intervals={method: values[kept] for method, values in found.items()},
        starts=_start_medians(comparison, len(names) * n_components)[:, kept],
        truth=None if comparison.truth is None else _true_effects(comparison)[kept],
        n_all=len(names) * n_components,
    )


def intervals(draws: FloatArray, *, probability: float = INTERVAL) -> FloatArray:
    """Equal-tailed intervals with their medians.

    Parameters
    ----------
    draws : numpy.ndarray, shape (n_draws, n_values)
        Draws.
    probability : float
        Probability inside.

    Returns
    -------
    numpy.ndarray, shape (n_values, 3)
        Lower end, median, upper end.
    """
    tail = (1 - probability) / 2
    return np.asarray(np.quantile(draws, [tail, 0.5, 1 - tail], axis=0).T)


def _flat(comparison: "Comparison", posterior: "xarray.Dataset") -> FloatArray:
    """Effects of every draw, (n_draws, n_effects)."""
    values = _effects(comparison, posterior).transpose("chain", "draw", "component", "effect")
    return values.to_numpy().reshape(values.shape[0] * values.shape[1], -1)


def _effects(comparison: "Comparison", parameters: "xarray.Dataset") -> "xarray.DataArray":
    """The level and the effects of the features, along the dim ``effect``."""
    import xarray

    inputs = comparison.trees[reference_method(comparison)]["constant_data"]["X"]
    spread = inputs.std("obs")
    coefficient = parameters["coefficient"]
    # A truth may be known without its intercepts.
    level = parameters.get("bias", np.nan) + (coefficient * inputs.mean("obs")).sum("feature")
    slopes = (coefficient * spread).rename(feature="effect").drop_vars("effect", errors="ignore")
    return xarray.concat([level.expand_dims("effect"), slopes], "effect", coords="minimal")


def _most_disputed(values: FloatArray, most: int) -> NDArray[np.intp]:
    """Effects to show, (n_kept,), of intervals (n_methods, n_effects, 3)."""
    n_effects = values.shape[1]
    if n_effects <= most:
        return np.arange(n_effects)
    width = (values[:, :, 2] - values[:, :, 0]).min(axis=0)
    dispute = np.ptp(values[:, :, 1], axis=0) / np.maximum(width, np.finfo(float).tiny)
    return np.sort(np.argsort(-dispute, kind="stable")[:most])


def _start_medians(comparison: "Comparison", n_effects: int) -> FloatArray:
    if RANDOM_EM not in comparison.trees:
        return np.empty((0, n_effects))
    posterior = comparison.trees[RANDOM_EM]["posterior"].to_dataset()
    medians = _effects(comparison, posterior).median("draw")
    return medians.transpose("chain", "component", "effect").to_numpy().reshape(-1, n_effects)


def _true_effects(comparison: "Comparison") -> FloatArray:
    if comparison.truth is None:
        raise ValueError("`comparison` must have a truth; got None. Check that first.")
    return _effects(comparison, comparison.truth).transpose("component", "effect").values.ravel()
