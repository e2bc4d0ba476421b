"""Panels of parameters by method: effects, and weights of the components."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.comparison.effects import MOST_EFFECTS, Effects, compute_effects, intervals
from moment_init.comparison.method_styles import method_style
from moment_init.comparison.panel_drawing import (
    GREY,
    INK,
    ROW_INCHES,
    dodge,
    finish,
    label_rows,
    legend_inches,
    shorten,
    show_methods,
)
from moment_init.comparison.representatives import reference_method, representative
from moment_init.comparison.result import RANDOM_EM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from moment_init.comparison.result import Comparison

__all__ = [
    "compute_weights",
    "draw_forest",
    "draw_interval_rows",
    "draw_weights",
    "forest_height",
    "weights_height",
]

FloatArray = NDArray[np.float64]

_TRUTH = "truth"


def forest_height(comparison: "Comparison") -> float:
    """Height that the forest needs.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    float
        Inches.
    """
    posterior = comparison.trees[reference_method(comparison)]["posterior"]
    n_components = posterior.sizes["component"]
    n_effects = min(n_components * (1 + posterior.sizes["feature"]), MOST_EFFECTS)
    return _rows_height(n_effects + n_components, len(comparison.trees))


def draw_forest(comparison: "Comparison", axes: "Axes") -> None:
    """Draw effects by method, the true ones marked.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    axes : matplotlib.axes.Axes
        Where to draw.
    """
    effects = compute_effects(comparison)
    rows, headers = _forest_rows(effects.components)
    axes.axvline(0.0, color=GREY, linewidth=0.8, zorder=1)
    draw_interval_rows(axes, rows, effects.intervals, effects.starts, effects.truth)
    names = [shorten(label) for label in effects.labels]
    titles = [f"Component {component}" for component in headers]
    label_rows(axes, [*rows, *headers.values()], [*names, *titles])
    for label in axes.get_yticklabels()[len(names) :]:
        label.set_fontweight("bold")
    axes.set_ylim(rows[-1] + 0.6, -0.6)
    axes.locator_params(axis="x", nbins=5)
    finish(axes, _forest_title(effects), xlabel="change of the linear predictor")


def _forest_title(effects: Effects) -> str:
    shown = len(effects.labels)
    return "Effects by method" if shown == effects.n_all else f"{shown} of {effects.n_all} effects"


def _forest_rows(components: NDArray[np.int64]) -> tuple[list[float], dict[int, float]]:
    """Positions of effects, and of a header above those of each component."""
    rows, headers, position = [], {}, 0.0
    for component, members in groupby(components.tolist()):
        headers[int(component)] = position
        for _ in members:
            position += 1.0
            rows.append(position)
        position += 1.0
    return rows, headers


def weights_height(comparison: "Comparison") -> float:
    """Height that the panel of weights needs.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    float
        Inches.
    """
    posterior = comparison.trees[reference_method(comparison)]["posterior"]
    return _rows_height(posterior.sizes["component"], len(comparison.trees))


def compute_weights(comparison: "Comparison") -> tuple[dict[str, FloatArray], FloatArray]:
    """Compute intervals of the components' weights.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    intervals : dict of str to numpy.ndarray, shape (n_components, 3)
        Lower end, median and upper end by method; of random starts those of the typical one.
    starts : numpy.ndarray, shape (n_starts, n_components)
        Medians of every random start.
    """
    found = {}
    for method in comparison.trees:
        weight = representative(comparison, method, "posterior")["weight"]
        draws = weight.transpose("chain", "draw", "component").to_numpy()
        found[method] = intervals(draws.reshape(-1, draws.shape[-1]))
    if RANDOM_EM not in comparison.trees:
        return found, np.empty((0, draws.shape[-1]))
    every = comparison.trees[RANDOM_EM]["posterior"]["weight"].median("draw")
    return found, every.transpose("chain", "component").to_numpy()


def draw_weights(comparison: "Comparison", axes: "Axes") -> None:
    """Draw the weights of the components by method, the true ones marked.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    axes : matplotlib.axes.Axes
        Where to draw.
    """
    found, starts = compute_weights(comparison)
    truth = comparison.truth
    known = truth is not None and "weight" in truth
    true = truth["weight"].to_numpy() if truth is not None and known else None
    labels = comparison.trees[reference_method(comparison)]["posterior"].coords["component"]
    rows = [float(row) for row in range(labels.size)]
    draw_interval_rows(axes, rows, found, starts, true)
    label_rows(axes, rows, [f"component {label}" for label in labels.to_numpy()])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0.0)
    axes.locator_params(axis="x", nbins=5)
    finish(axes, "Weights of the components", xlabel="probability of the component")


def draw_interval_rows(
    axes: "Axes",
    rows: Sequence[float],
    found: Mapping[str, FloatArray],
    starts: FloatArray,
    truth: FloatArray | None,
) -> None:
    """Draw intervals by method in each row, with a tick a random start and a bar at the truth.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Where to draw.
    rows : sequence of float
        Positions of the rows.
    found : mapping of str to numpy.ndarray, shape (n_rows, 3)
        Lower end, median and upper end by method.
    starts : numpy.ndarray, shape (n_starts, n_rows)
        Medians of every random start.
    truth : numpy.ndarray, shape (n_rows,), or None
        True values.
    """
    positions = np.asarray(rows)
    if truth is not None:
        ends = positions - 0.45, positions + 0.45
        axes.vlines(truth, *ends, color=INK, linewidth=1.6, label=_TRUTH, zorder=2)
    for index, (method, values) in enumerate(found.items()):
        at, style = positions + dodge(index, len(found)), method_style(method)
        if method == RANDOM_EM:
            axes.scatter(
                starts.ravel(),
                np.tile(at, len(starts)),
                marker="|",
                s=26,
                color=style.colour,
                linewidth=0.8,
                alpha=0.6,
                zorder=3,
            )
        axes.hlines(at, values[:, 0], values[:, 2], color=style.colour, linewidth=1.8, zorder=4)
        axes.scatter(
            values[:, 1],
            at,
            s=18,
            color=style.colour,
            marker=style.marker,
            edgecolor="white",
            linewidth=0.4,
            zorder=5,
        )
    show_methods(axes, list(found), others=[_TRUTH] if truth is not None else [])


def _rows_height(n_rows: int, n_methods: int) -> float:
    row = max(0.3, ROW_INCHES * (n_methods + 1))
    return 1.1 + legend_inches(n_methods + 1) + row * n_rows
