"""Figure of the study of patents: the three classes of firms, and the gate."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from case_studies.patents.run import CLASSES, Study, gate_draws, patent_draws, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_classes", "write_figures"]

COLOURS = ("#0072b2", "#009e73", "#d55e00")  # safe for colour-blind readers
MARKERS = ("o", "s", "^")
N_GRID = 80


def draw_classes(study: Study) -> "Figure":
    """Draw patents against research with the three classes, and the gate in a second panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    _draw_lines(left, study)
    _draw_gate(right, study)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_lines(panel: "Axes", study: Study) -> None:
    budgets = np.exp(study.firms["lgRD"].to_numpy())
    patents = study.firms["Patents"].to_numpy()
    grid = np.geomspace(budgets.min(), budgets.max(), N_GRID)
    median, low, high = summarise(patent_draws(study, grid))
    likeliest = study.membership.argmax(axis=1)
    for k, (name, colour, marker) in enumerate(zip(CLASSES, COLOURS, MARKERS, strict=True)):
        panel.fill_between(grid, low[:, k], high[:, k], color=colour, alpha=0.18, linewidth=0)
        panel.plot(grid, median[:, k], color=colour, linewidth=2)
        here = likeliest == k
        panel.scatter(
            budgets[here],
            patents[here],
            s=34,
            color=colour,
            marker=marker,
            edgecolor="white",
            linewidth=0.6,
            alpha=0.9,
            zorder=3,
            label=f"{name} ({int(here.sum())} firms)",
        )
    panel.set_xscale("log")
    # Linear up to one patent, so that firms without patents can be shown.
    panel.set_yscale("symlog", linthresh=1.0)
    panel.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    panel.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    panel.set_ylim(-0.15, 400)
    panel.set_xlabel("research spending (millions of dollars)")
    panel.set_ylabel("patents (linear scale below 1)")
    panel.set_title("Expected patents of each class, 94 % bands")


def _draw_gate(panel: "Axes", study: Study) -> None:
    shares = study.firms["RDS"].to_numpy()
    grid = np.geomspace(shares.min(), 0.3, N_GRID)
    median, low, high = summarise(gate_draws(study, grid))
    for k, colour in enumerate(COLOURS):
        panel.fill_between(grid, low[:, k], high[:, k], color=colour, alpha=0.12, linewidth=0)
        for edge in (low, high):  # edges separate two bands that overlap
            panel.plot(grid, edge[:, k], color=colour, linewidth=0.8, linestyle="--")
        panel.plot(grid, median[:, k], color=colour, linewidth=2)
    inside = shares[shares <= grid[-1]]
    panel.plot(inside, np.full(inside.size, -0.03), "|", color="#555555", markersize=7)
    panel.set_xscale("log")
    panel.set_xticks([0.003, 0.01, 0.03, 0.1, 0.3], ["0.3 %", "1 %", "3 %", "10 %", "30 %"])
    panel.minorticks_off()
    panel.set_ylim(-0.06, 1.02)
    panel.set_xlabel(
        f"research over sales; ticks: firms, {shares.size - inside.size} beyond the right end"
    )
    panel.set_ylabel("probability of the class")
    panel.set_title("Which class, by the share of sales spent on research")


def write_figures(study: Study, folder: Path) -> list[Path]:
    """Write the figure to a folder, which is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "classes.png"
    draw_classes(study).savefig(path, dpi=150)
    return [path]
