"""What the panels share: styles of the methods, representative draws, labels and legends.

Random starts are not draws from one distribution, so the draws of the typical start represent
"random EM". Text sizes are passed to each artist; the user's matplotlib settings do not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from moment_init.comparison.result import (
    BEST_RANDOM_EM,
    DEFAULT_NUTS,
    RANDOM_EM,
    SEARCH_EM,
    SEARCH_NUTS,
)

if TYPE_CHECKING:
    import xarray
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from moment_init.comparison.result import Comparison


@dataclass(frozen=True, slots=True)
class MethodStyle:
    """The colour and marker of a method."""

    colour: str  # hexadecimal colour
    marker: str  # matplotlib marker: methods differ by more than colour


_STYLES = {
    SEARCH_NUTS: MethodStyle("#0072B2", "o"),
    DEFAULT_NUTS: MethodStyle("#E69F00", "s"),
    SEARCH_EM: MethodStyle("#009E73", "D"),
    RANDOM_EM: MethodStyle("#D55E00", "^"),
    BEST_RANDOM_EM: MethodStyle("#CC79A7", "v"),
}
"""The palette of Okabe and Ito, whose colours stay distinct for colour-blind readers."""

_OTHER_STYLES = (
    MethodStyle("#56B4E9", "P"),
    MethodStyle("#000000", "X"),
    MethodStyle("#7F7F7F", "*"),
)
"""Styles of other methods: the remaining colours of that palette, and a grey."""


def method_style(method: str) -> MethodStyle:
    """Return the style of a method."""
    if method in _STYLES:
        return _STYLES[method]
    return _OTHER_STYLES[sum(method.encode()) % len(_OTHER_STYLES)]


def reference_method(comparison: "Comparison") -> str:
    """Return the name of the method to which the others are compared: the first one."""
    return next(iter(comparison.trees))


def typical_start(comparison: "Comparison") -> int | None:
    """Return the number of the typical random start; None if no start converged."""
    landscape = comparison.landscape
    starts = landscape.loc[landscape["is_typical"].astype(bool), "start"]
    return None if starts.empty else int(starts.iloc[0])


def representative(comparison: "Comparison", method: str, group: str) -> "xarray.Dataset":
    """Select the draws that represent a method: of random starts, those of the typical one."""
    dataset = comparison.trees[method][group].to_dataset()
    start = typical_start(comparison)
    if method != RANDOM_EM or start is None or "chain" not in dataset.dims:
        return dataset
    return dataset.sel(chain=[start])


TEXT, SMALL, TITLE = 9.5, 8.5, 11.0
"""Text sizes in points: still legible when a page of 400 pixels shows the figure at 0.8 of its
size."""

INK, GREY = "#222222", "#8C8C8C"

ROW_INCHES = 0.1
"""Height of one method's interval in inches: a marker and the space around it."""

_LINE_CHARACTERS = 20
"""Characters per line of a label: a third of the width of a panel."""

_DODGED = 0.6
"""Share of a row's height that its marks use, so that marks of different rows stay apart."""

_LEGEND_COLUMNS = 2
_LEGEND_ROW_INCHES = 0.17


def shorten(name: str, *, lines: int = 2) -> str:
    """Break a name into short lines and truncate it if it does not fit."""
    broken = wrap(name, _LINE_CHARACTERS) or [""]
    if len(broken) > lines:
        broken = [*broken[: lines - 1], broken[lines - 1][: _LINE_CHARACTERS - 1] + "…"]
    return "\n".join(broken)


def label_rows(axes: "Axes", positions: Sequence[float], labels: Sequence[str]) -> None:
    """Label the rows of a panel, the first on top."""
    axes.set_yticks(list(positions), list(labels), fontsize=TEXT, color=INK)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.tick_params(axis="y", length=0)


def finish(axes: "Axes", title: str, *, xlabel: str = "", ylabel: str = "") -> None:
    """Set the title, the axis labels and the common style of a panel."""
    legend = axes.get_legend()
    n_rows = 0 if legend is None else -(-len(legend.get_texts()) // _LEGEND_COLUMNS)
    pad = 8.0 + 72.0 * _LEGEND_ROW_INCHES * n_rows
    axes.set_title(title, loc="left", fontsize=TITLE, fontweight="bold", color=INK, pad=pad)
    axes.set_xlabel(xlabel, fontsize=TEXT, color=INK)
    axes.set_ylabel(ylabel, fontsize=TEXT, color=INK)
    axes.tick_params(axis="x", labelsize=SMALL, colors=INK)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(INK)
    # Markers and text need a light background, whatever the user's settings are.
    axes.set_facecolor("white")
    axes.set_axisbelow(True)


def show_methods(axes: "Axes", methods: Sequence[str], *, others: Sequence[str] = ()) -> None:
    """Draw a legend of the methods between the title and the panel."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = [
        Line2D([], [], color=style.colour, marker=style.marker, markersize=5.5, linewidth=1.8)
        for style in map(method_style, methods)
    ]
    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    handles += [drawn[label] for label in others]
    axes.legend(
        handles,
        [*methods, *others],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        fontsize=SMALL,
        borderpad=0.0,
        borderaxespad=0.3,
        handlelength=1.6,
        columnspacing=1.2,
        labelspacing=0.25,
    )


def legend_inches(n_entries: int) -> float:
    """Return the height of a legend in inches."""
    return _LEGEND_ROW_INCHES * -(-n_entries // _LEGEND_COLUMNS)


def dodge(index: int, count: int) -> float:
    """Compute the vertical shift of one of several marks in a row of height one."""
    return 0.0 if count == 1 else _DODGED * (index / (count - 1) - 0.5)


def say(axes: "Axes", text: str) -> None:
    """Write a text into an otherwise empty panel."""
    place = axes.transAxes
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=TEXT, color=INK, transform=place)
    axes.set_xticks([])
    axes.set_yticks([])
