"""The panel of optima: how far below the best each start and each chain ended."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.comparison.measures import with_minus
from moment_init.comparison.method_styles import method_style
from moment_init.comparison.panel_drawing import GREY, INK, finish, label_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from moment_init.comparison.result import Comparison

__all__ = ["Optima", "draw_landscape", "landscape_height", "optima_by_method"]

FloatArray = NDArray[np.float64]

_LINEAR_GAP = 1.0
"""Gaps below one are drawn on a linear scale: they are less than what sampling error moves."""

_LARGE_DOTS = 12
"""Dots of full size that fit above each other in a row."""

_LARGEST_TICKS = 4
"""Powers of ten beside zero that have room on the axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Optima:
    """Where the starts or chains of one method ended.

    Parameters
    ----------
    gaps : numpy.ndarray, shape (n_ended,)
        How far the log-likelihoods are below the best found by any method, ascending.
    n_best : int
        How many count as the best.
    n_failed : int
        Starts that ended nowhere.
    """

    gaps: FloatArray
    n_best: int
    n_failed: int


def optima_by_method(comparison: "Comparison") -> dict[str, Optima]:
    """Collect the optima of each method.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    dict of str to Optima
        In the order of the landscape.
    """
    landscape = comparison.landscape
    best = landscape["log_likelihood"].max()
    result = {}
    for method in dict.fromkeys(landscape["method"]):
        own = landscape[landscape["method"] == method]
        values = own["log_likelihood"].to_numpy(dtype=np.float64)
        gaps = np.sort(best - values[np.isfinite(values)])
        n_best = int(own["is_best"].astype(bool).sum())
        result[method] = Optima(gaps, n_best, len(values) - len(gaps))
    return result


def landscape_height(comparison: "Comparison") -> float:
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
    return 1.1 + 0.62 * len(optima_by_method(comparison))


def draw_landscape(comparison: "Comparison", axes: "Axes") -> None:
    """Draw a dot a start, the further left the worse it is.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    axes : matplotlib.axes.Axes
        Where to draw.
    """
    optima = optima_by_method(comparison)
    axes.axvline(0.0, color=GREY, linewidth=1.0, zorder=1)
    for row, (method, found) in enumerate(optima.items()):
        style = method_style(method)
        axes.scatter(
            -found.gaps,
            row + _stacked(len(found.gaps)),
            s=34 if len(found.gaps) <= _LARGE_DOTS else 16,
            color=style.colour,
            marker=style.marker,
            edgecolor="white",
            linewidth=0.5,
            zorder=3,
        )
    label_rows(axes, range(len(optima)), [_label(*item) for item in optima.items()])
    axes.set_ylim(len(optima) - 0.5, -0.5)
    for row in range(1, len(optima)):
        axes.axhline(row - 0.5, color=GREY, linewidth=0.4, alpha=0.6)
    _scale_gaps(axes, max(float(found.gaps.max(initial=0.0)) for found in optima.values()))
    finish(axes, "Optima that starts lead to", xlabel="log-likelihood below the best found")


def _stacked(count: int) -> FloatArray:
    """Heights of dots that are ordered within a row, the best on top."""
    return np.zeros(1) if count == 1 else np.linspace(-0.33, 0.33, count)


def _label(method: str, found: Optima) -> str:
    total = len(found.gaps) + found.n_failed
    failed = f"\n{found.n_failed} failed" if found.n_failed else ""
    return f"{method}\n{found.n_best} of {total} at the best{failed}"


def _scale_gaps(axes: "Axes", largest: float) -> None:
    """A scale that is linear near the best and logarithmic far from it."""
    right = 0.12 * max(np.log10(max(largest, 1.0)) + 1.0, 1.0)
    axes.set_xscale("symlog", linthresh=_LINEAR_GAP, linscale=1.0, subs=[])
    axes.set_xlim(-max(1.5 * largest, _LINEAR_GAP), right)
    top = int(np.floor(np.log10(max(1.5 * largest, _LINEAR_GAP))))
    step = 1 + top // _LARGEST_TICKS
    ticks = [0.0, *(-(10.0**power) for power in range(0, top + 1, step))]
    if top == 0:
        ticks.append(-0.5)
    axes.set_xticks(ticks, [with_minus(f"{tick:,.5g}") for tick in ticks], color=INK)
    axes.minorticks_off()
