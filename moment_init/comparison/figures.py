"""The figure of a comparison: panels by name, arranged in columns on one figure.

Panels of the landscape and the diagnostics are drawn here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.comparison.drawing import GREY, INK, finish, label_rows, method_style, say
from moment_init.comparison.parameter_panels import (
    draw_forest,
    draw_membership,
    draw_weights,
    forest_height,
    membership_height,
    weights_height,
)
from moment_init.comparison.predictive_panel import draw_predictive, predictive_height
from moment_init.comparison.result import with_minus
from moment_init.comparison.scoring import LARGEST_RHAT, find_rhat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from moment_init.comparison.result import Comparison

_LINEAR_GAP = 1.0
"""Gaps below one are drawn on a linear scale: they are smaller than sampling error."""

_LARGE_DOTS = 12
"""Number of dots of full size that fit above each other in a row."""

_LARGEST_TICKS = 4
"""Number of powers of ten, beside zero, that fit on the axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Optima:
    """The optima that the starts or chains of one method reached."""

    # differences of the log-likelihoods from the best found by any method, ascending; (n_ended,)
    gaps: FloatArray
    n_best: int  # number of starts or chains at the best optimum
    n_failed: int  # number of starts without a result


def optima_by_method(comparison: "Comparison") -> dict[str, Optima]:
    """Collect the optima of each method."""
    landscape = comparison.landscape
    best = landscape["log_likelihood"].max()
    result = {}
    for method in dict.fromkeys(landscape["method"]):
        rows = landscape[landscape["method"] == method]
        values = rows["log_likelihood"].to_numpy(dtype=np.float64)
        gaps = np.sort(best - values[np.isfinite(values)])
        n_best = int(rows["is_best"].astype(bool).sum())
        result[method] = Optima(gaps, n_best, len(values) - len(gaps))
    return result


def landscape_height(comparison: "Comparison") -> float:
    """Return the height of the panel in inches."""
    return 1.1 + 0.62 * len(optima_by_method(comparison))


def draw_landscape(comparison: "Comparison", axes: "Axes") -> None:
    """Draw one dot per start or chain; dots further left are worse."""
    optima = optima_by_method(comparison)
    axes.axvline(0.0, color=GREY, linewidth=1.0, zorder=1)
    for row, (method, ends) in enumerate(optima.items()):
        style = method_style(method)
        axes.scatter(
            -ends.gaps,
            row + _stacked(len(ends.gaps)),
            s=34 if len(ends.gaps) <= _LARGE_DOTS else 16,
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
    _scale_gaps(axes, max(float(ends.gaps.max(initial=0.0)) for ends in optima.values()))
    finish(axes, "Optima reached by each method", xlabel="log-likelihood minus the best found")


def _stacked(count: int) -> FloatArray:
    """Compute the heights of the dots in a row, the best on top."""
    return np.zeros(1) if count == 1 else np.linspace(-0.33, 0.33, count)


def _label(method: str, ends: Optima) -> str:
    total = len(ends.gaps) + ends.n_failed
    failed = f"\n{ends.n_failed} failed" if ends.n_failed else ""
    return f"{method}\n{ends.n_best} of {total} at the best{failed}"


def _scale_gaps(axes: "Axes", largest: float) -> None:
    """Set a scale that is linear near the best and logarithmic far from it."""
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


_LEAST_EXCESS = 1e-4
"""Smallest value of R-hat minus one that is drawn: smaller values are noise."""

_RHAT_TICKS = (1.0001, 1.001, 1.01, 1.1, 2.0, 11.0, 101.0, 1001.0)


def compute_rhat(comparison: "Comparison") -> dict[str, FloatArray]:
    """Compute the sorted R-hat of all parameters, by method."""
    # -> (n_parameters,)
    result = {}
    for method, tree in comparison.trees.items():
        if tree["posterior"].sizes["chain"] > 1:
            values = find_rhat(tree)
            result[method] = np.sort(values[np.isfinite(values)])
    return result


def rhat_height(comparison: "Comparison") -> float:
    """Return the height of the panel of R-hat in inches."""
    return 1.2 + 0.6 * len(comparison.trees)


def draw_rhat(comparison: "Comparison", axes: "Axes") -> None:
    """Draw one dot per parameter and method, with the limit of 1.01."""
    rhat_by_method = compute_rhat(comparison)
    if not any(values.size for values in rhat_by_method.values()):
        say(axes, "No method has more than one chain")
        finish(axes, "R-hat of the parameters")
        return
    axes.axvline(LARGEST_RHAT - 1, color=INK, linewidth=1.0, linestyle="--")
    for row, (method, values) in enumerate(rhat_by_method.items()):
        style = method_style(method)
        at = row + np.linspace(-0.3, 0.3, values.size) if values.size > 1 else np.full(1, row)
        excess = np.maximum(values - 1, _LEAST_EXCESS)
        axes.scatter(excess, at, s=16, color=style.colour, marker=style.marker, alpha=0.8)
    label_rows(
        axes, range(len(rhat_by_method)), [_rhat_label(*item) for item in rhat_by_method.items()]
    )
    axes.set_ylim(len(rhat_by_method) - 0.5, -0.6)
    _scale_rhat(axes, max(values.max(initial=1.0) for values in rhat_by_method.values()))
    finish(axes, "R-hat of the parameters", xlabel=f"R-hat (dashed: the limit, {LARGEST_RHAT})")


def _rhat_label(method: str, values: FloatArray) -> str:
    return f"{method}\nlargest {values.max():.4g}" if values.size else f"{method}\nnone"


def _scale_rhat(axes: "Axes", largest: float) -> None:
    """Set a logarithmic scale of R-hat minus one, labelled by R-hat."""
    right = max(2 * (largest - 1), 0.15)
    axes.set_xscale("log")
    axes.set_xlim(0.7 * _LEAST_EXCESS, right)
    ticks = [tick for tick in _RHAT_TICKS if tick - 1 <= right]
    axes.set_xticks([tick - 1 for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def loo_height(comparison: "Comparison") -> float:
    """Return the height of the panel of leave-one-out scores in inches."""
    return 1.2 + 0.6 * len(comparison.loo)


def draw_loo(comparison: "Comparison", axes: "Axes") -> None:
    """Draw the differences of leave-one-out scores from the best, with two standard errors."""
    loo = comparison.loo
    if loo.empty:
        say(axes, "No leave-one-out scores")
        finish(axes, "Predictive score")
        return
    axes.axvline(0.0, color=GREY, linewidth=1.0)
    difference = loo["elpd_diff"].to_numpy(dtype=np.float64)
    error = loo["dse"].to_numpy(dtype=np.float64)
    reliable = loo["is_reliable"].astype(bool)
    for row, method in enumerate(loo.index):
        style = method_style(str(method))
        ends = difference[row] - 2 * error[row], difference[row] + 2 * error[row]
        axes.hlines(row, *ends, color=style.colour, linewidth=2.0)
        axes.scatter(
            difference[row],
            row,
            s=42,
            facecolor=style.colour if reliable.iloc[row] else "white",
            edgecolor=style.colour,
            marker=style.marker,
            linewidth=1.5,
            zorder=3,
        )
    notes = [str(note) for note in loo.get("diag_elpd", [""] * len(loo))]
    # Scores that are not reliable may be higher than the first.
    best = "highest" if difference.max() <= 0.0 else "highest reliable"
    rows = zip(map(str, loo.index), difference, error, notes, strict=True)
    labels = [_loo_label(*row, best) for row in rows]
    label_rows(axes, range(len(loo)), labels)
    axes.set_ylim(len(loo) - 0.5, -0.5)
    finish(axes, "Predictive score (LOO)", xlabel=f"log score minus the {best}, ± 2 SE")


def _loo_label(method: str, difference: float, error: float, note: str, best: str) -> str:
    """Write the name, the difference and the number of Pareto k values that are too large."""
    written = with_minus(f"{difference:z,.1f}")
    score = f"{written} ± {error:,.1f} SE" if difference else best
    # Matplotlib cannot place the hat, which is a combining character.
    lines = (method, score, note.replace("k\u0302", "k"))
    return "\n".join(line for line in lines if line)


PANELS: Mapping[str, "Callable[[Comparison, Axes], None]"] = MappingProxyType(
    {
        "landscape": draw_landscape,
        "loo": draw_loo,
        "rhat": draw_rhat,
        "weights": draw_weights,
        "membership": draw_membership,
        "predictive": draw_predictive,
        "forest": draw_forest,
    }
)
"""Functions that draw the panels, in the order in which they are shown."""

HEIGHTS: Mapping[str, "Callable[[Comparison], float]"] = MappingProxyType(
    {
        "landscape": landscape_height,
        "loo": loo_height,
        "rhat": rhat_height,
        "weights": weights_height,
        "membership": membership_height,
        "predictive": predictive_height,
        "forest": forest_height,
    }
)
"""Functions that compute the height of the panels in inches."""

PANEL_WIDTH = 4.8
"""Width of a panel in inches: 461 pixels on a page, and legible at 0.8 of that on a telephone."""

_COLUMNS = 2

_NOTHING = 1e-3
"""Height of an empty row in inches: matplotlib's layout needs a positive height."""


def plot_comparison(
    comparison: "Comparison",
    panels: Sequence[str] | None = None,
    *,
    figsize: tuple[float, float] | None = None,
) -> NDArray[np.object_]:
    """Draw panels on one figure and return their axes."""
    # -> (n_panels,)
    names = _checked_panels(panels)
    make_figure = _figure_maker()
    n_columns = min(_COLUMNS, len(names))
    columns = _arranged([HEIGHTS[name](comparison) for name in names], n_columns)
    total = max(sum(height for _, height in column) for column in columns)
    figure = make_figure(figsize or (PANEL_WIDTH * n_columns, total))
    axes = np.empty(len(names), dtype=object)
    parts = figure.add_gridspec(1, n_columns)
    for place, column in enumerate(columns):
        ratios = [height for _, height in column]
        rest = max(total - sum(ratios), _NOTHING)  # keeps a short column from being stretched
        grid = parts[place].subgridspec(len(column) + 1, 1, height_ratios=[*ratios, rest])
        for row, (index, _) in enumerate(column):
            axes[index] = figure.add_subplot(grid[row])
            PANELS[names[index]](comparison, axes[index])
    return axes


def comparison_figure(
    comparison: "Comparison",
    panels: Sequence[str] | None = None,
    *,
    figsize: tuple[float, float] | None = None,
) -> "Figure":
    """Draw panels on one figure and return the figure."""
    figure: Figure = plot_comparison(comparison, panels, figsize=figsize)[0].figure
    return figure


def _checked_panels(panels: Sequence[str] | None) -> list[str]:
    if panels is None:
        return list(PANELS)
    names = [panels] if isinstance(panels, str) else list(panels)
    unknown = [name for name in names if name not in PANELS]
    if unknown or not names:
        raise ValueError(
            f"`panels` must be names among {', '.join(map(repr, PANELS))}; got "
            f"{', '.join(map(repr, unknown)) or 'none'}. Leave it out to draw all panels."
        )
    return names


def _figure_maker() -> "Callable[[tuple[float, float]], Figure]":
    """Return a function that makes empty figures, not managed by pyplot, for notebooks too."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Figures need matplotlib, which is not installed. Install moment-init[plot]."
        ) from error

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            """Return the figure as a PNG image."""
            buffer = BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return lambda size: NotebookFigure(figsize=size, layout="constrained")


def _arranged(heights: Sequence[float], n_columns: int) -> list[list[tuple[int, float]]]:
    """Append each panel, a pair of index and height, to the shortest column so far."""
    columns: list[list[tuple[int, float]]] = [[] for _ in range(n_columns)]
    for index, height in enumerate(heights):
        shortest = min(columns, key=lambda column: sum(used for _, used in column))
        shortest.append((index, height))
    return columns
