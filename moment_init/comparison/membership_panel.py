"""The panel of membership: how sure each method is of the component of a row."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.comparison.method_styles import method_style
from moment_init.comparison.panel_drawing import (
    GREY,
    ROW_INCHES,
    dodge,
    finish,
    label_rows,
    legend_inches,
    say,
    show_methods,
)
from moment_init.comparison.representatives import reference_method, representative

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from moment_init.comparison.result import Comparison

__all__ = ["compute_certainty", "draw_membership", "membership_height"]

FloatArray = NDArray[np.float64]

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the largest probability: ends of the thin bar, of the thick one, and the middle."""


def compute_certainty(comparison: "Comparison") -> dict[str, tuple[FloatArray, FloatArray]]:
    """Compute how sure rows are of their most probable component.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    dict of str to (numpy.ndarray, numpy.ndarray)
        By method, quantiles of the largest probability, shape (n_components, 5), NaN for a
        component that is the most probable of no row; and the share of rows of which each
        component is the most probable, shape (n_components,).
    """
    result = {}
    for method, tree in comparison.trees.items():
        if "membership" not in tree.children:
            continue
        found = representative(comparison, method, "membership")["probability"]
        averaged = found.mean([dim for dim in ("chain", "draw") if dim in found.dims])
        probability = averaged.transpose(..., "component").to_numpy()
        largest, own = probability.max(axis=1), probability.argmax(axis=1)
        n_components = probability.shape[1]
        quantiles = np.full((n_components, len(_LEVELS)), np.nan)
        for component in np.unique(own):
            quantiles[component] = np.quantile(largest[own == component], _LEVELS)
        result[method] = (quantiles, np.bincount(own, minlength=n_components) / len(own))
    return result


def membership_height(comparison: "Comparison") -> float:
    """Height that the panel needs.

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
    n_rows, n_methods = posterior.sizes["component"], len(comparison.trees)
    return 1.1 + legend_inches(n_methods) + max(0.4, ROW_INCHES * (n_methods + 1)) * n_rows


def draw_membership(comparison: "Comparison", axes: "Axes") -> None:
    """Draw the largest membership probability of rows by component and method.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    axes : matplotlib.axes.Axes
        Where to draw.
    """
    found = compute_certainty(comparison)
    if not found:
        say(axes, "No membership probabilities")
        finish(axes, "How sure rows are")
        return
    quantiles, shares = next(iter(found.values()))
    rows = np.arange(float(len(quantiles)))
    for index, (method, (values, _)) in enumerate(found.items()):
        at, style = rows + dodge(index, len(found)), method_style(method)
        axes.hlines(at, values[:, 0], values[:, 4], color=style.colour, linewidth=1.0)
        axes.hlines(at, values[:, 1], values[:, 3], color=style.colour, linewidth=4.0)
        axes.scatter(
            values[:, 2],
            at,
            s=24,
            color=style.colour,
            marker=style.marker,
            edgecolor="white",
            linewidth=0.6,
            zorder=3,
        )
    if len(rows) > 1:
        axes.axvline(1 / len(rows), color=GREY, linewidth=0.8, linestyle=":")
    names = comparison.trees[reference_method(comparison)]["posterior"].coords["component"]
    labels = [
        f"component {name}\n{share:.0%} of rows"
        for name, share in zip(names.to_numpy(), shares, strict=True)
    ]
    label_rows(axes, list(rows), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(min(0.95, 0.97 / len(rows)), 1.02)
    show_methods(axes, list(found))
    finish(axes, "How sure rows are", xlabel="largest membership probability of a row")
