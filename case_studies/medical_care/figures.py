"""Figures of the study of medical care: the counts by class, and the effects."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from case_studies.medical_care.run import CLASSES, INTERVAL, Study, expected_counts, rate_ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_effects", "draw_visits", "write_figures"]

COLOURS = ("#0072b2", "#009e73", "#d55e00")  # safe for colour-blind readers
MARKERS = ("o", "s", "^")
LARGEST_SHOWN = 25


def draw_effects(study: Study) -> "Figure":
    """Draw the factor on the visits of each class for one more of each feature."""
    from matplotlib.figure import Figure

    ratios = rate_ratios(study)
    centre = np.median(ratios, axis=0)
    low, high = np.quantile(ratios, INTERVAL, axis=0)
    rows = np.arange(centre.shape[0])[::-1]
    figure = Figure(figsize=(8.0, 5.2), layout="constrained")
    panel = figure.subplots()
    weights = study.tree["posterior"]["weight"].isel(component=study.order)
    shares = weights.mean(dim=("chain", "draw")).to_numpy()
    for k, (name, colour, marker) in enumerate(zip(CLASSES, COLOURS, MARKERS, strict=True)):
        heights = rows + 0.24 * (1 - k)
        panel.hlines(heights, low[:, k], high[:, k], color=colour, linewidth=2)
        label = f"{name} ({shares[k]:.0%} of people)"
        panel.plot(centre[:, k], heights, marker, color=colour, markersize=7, label=label)
    panel.axvline(1.0, color="#555555", linewidth=1, zorder=0)
    for row in rows[:-1]:
        panel.axhline(row - 0.5, color="#dddddd", linewidth=0.6, zorder=0)
    panel.set_xscale("log")
    panel.set_xticks([0.5, 0.7, 1, 1.5, 2, 3], ["0.5", "0.7", "1", "1.5", "2", "3"])
    panel.minorticks_off()
    panel.set_yticks(rows, [str(name) for name in study.X])
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("factor on visits for one more of it (94 % intervals)")
    panel.set_title("What moves the visits of each class")
    panel.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def draw_visits(study: Study) -> "Figure":
    """Draw the observed counts with those expected by one class and by three classes."""
    from matplotlib.figure import Figure

    visits = np.arange(LARGEST_SHOWN + 1, dtype=np.float64)
    observed = [int((study.y == count).sum()) for count in visits]
    by_class = expected_counts(study.fit, study.X, visits)[:, study.order]
    single = expected_counts(study.single, study.X, visits).sum(axis=1)
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    panel = figure.subplots()
    base = np.zeros(visits.size)
    for k, (name, colour) in enumerate(zip(CLASSES, COLOURS, strict=True)):
        label = f"expected, {name}"
        panel.bar(visits, by_class[:, k], 0.8, base, color=colour, alpha=0.55, label=label)
        base += by_class[:, k]
    panel.plot(visits, observed, "o", color="black", markersize=5, label="observed")
    panel.plot(visits, single, "--", color="black", linewidth=1.3, label="expected, one class")
    beyond = int((study.y > LARGEST_SHOWN).sum())
    panel.set_xlabel(f"visits to a physician's office ({beyond} people have more)")
    panel.set_ylabel("people")
    panel.set_title("Three classes come closer to the counts; zeros remain too many")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    return figure


def write_figures(study: Study, folder: Path) -> list[Path]:
    """Write the figures to a folder, which is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"effects.png": draw_effects(study), "visits.png": draw_visits(study)}
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=150)
    return [folder / name for name in figures]
