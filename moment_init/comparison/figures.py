"""The figure of a comparison: panels by name, arranged in columns on one figure."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.comparison.diagnostic_panels import (
    draw_landscape,
    draw_loo,
    draw_rhat,
    landscape_height,
    loo_height,
    rhat_height,
)
from moment_init.comparison.parameter_panels import (
    draw_forest,
    draw_membership,
    draw_weights,
    forest_height,
    membership_height,
    weights_height,
)
from moment_init.comparison.predictive_panel import draw_predictive, predictive_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from moment_init.comparison.result import Comparison

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
