"""Figures of the study of train travel; no window is opened."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from case_studies.binary_choice.choices import HeldOut
from case_studies.binary_choice.study import (
    CLASSES,
    INTERVAL,
    N_CLASSES,
    STEPS,
    Study,
    effect_draws,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "calibration_table",
    "draw_calibration",
    "draw_classes",
    "draw_membership",
    "draw_thumbnail",
    "write_figures",
]

FloatArray = NDArray[np.float64]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Six colours of Okabe and Ito, which colour-blind readers can tell apart."""

N_BINS = 10


def draw_classes(study: Study) -> "Figure":
    """Draw the effects of one step of each attribute, with 94 % intervals, one panel per class."""
    from matplotlib.figure import Figure

    effects = effect_draws(study)
    weights = study.tree["posterior"]["weight"].mean(("chain", "draw")).to_numpy()
    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    places = np.arange(len(STEPS))
    low, high = np.quantile(effects, INTERVAL, axis=0)
    means = effects.mean(axis=0)
    for j, (name, panel) in enumerate(zip(CLASSES, panels.flat, strict=True)):
        panel.axvline(0.0, color="#666666", linewidth=0.8)
        panel.barh(places, means[:, j], 0.6, color=COLOURS[j], alpha=0.45)
        panel.hlines(places, low[:, j], high[:, j], color=COLOURS[j], linewidth=2.4)
        panel.plot(means[:, j], places, "o", color=COLOURS[j], markersize=5)
        panel.set_title(f"{name} ({weights[j]:.0%})", loc="left", fontweight="bold")
        panel.set_yticks(places, [words for _, words in STEPS.values()])
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].invert_yaxis()
    figure.supxlabel("change in the log odds that a ticket is taken (mean, 94 % interval)")
    figure.suptitle("What moves each class, and its share of the persons")
    return figure


def draw_membership(study: Study) -> "Figure":
    """Draw the class probabilities of every person as stacked columns, by likeliest class."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    axes = figure.subplots()
    best = study.membership.argmax(axis=1)
    shares = study.membership[np.lexsort((-study.membership.max(axis=1), best))]
    edges, floor = np.arange(len(shares) + 1), np.zeros(len(shares))
    for j, name in enumerate(CLASSES):
        top = floor + shares[:, j]
        axes.stairs(top, edges, baseline=floor, fill=True, color=COLOURS[j], label=name)
        floor = top
    axes.set(xlim=(0, len(shares)), ylim=(0.0, 1.0), xlabel="persons, by likeliest class")
    axes.set_ylabel("probability of the class")
    axes.set_title("A dozen choices tell the class of most persons", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, reverse=True)
    return figure


def calibration_table(held_out: HeldOut, probabilities: FloatArray) -> FloatArray:
    """Observed against predicted frequencies, by tenths of the predicted probability.

    The columns are the mean prediction, the observed share, the ends of its 94 % interval
    (Jeffreys) and the number of choices; empty bins are left out.
    """
    # probabilities: (n_held_out,) -> (n_bins, 5)
    from scipy.stats import beta

    bins = np.minimum((probabilities * N_BINS).astype(int), N_BINS - 1)
    rows = []
    for bin_ in np.unique(bins):
        chosen = held_out.chosen[bins == bin_]
        hits, total = float(chosen.sum()), chosen.size
        ends = beta.ppf(INTERVAL, hits + 0.5, total - hits + 0.5)
        rows.append([probabilities[bins == bin_].mean(), hits / total, *ends, total])
    return np.array(rows)


def draw_calibration(study: Study) -> "Figure":
    """Draw predicted against observed frequencies of held-out choices: one logit, and classes."""
    from matplotlib.figure import Figure

    held_out = study.held_out["random"]
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    named = {
        "One logit for all": (held_out.logit, "#555555"),
        f"{N_CLASSES} classes, given other choices": (held_out.personal, COLOURS[0]),
    }
    for panel, (name, (probabilities, colour)) in zip(panels, named.items(), strict=True):
        _draw_bins(panel, calibration_table(held_out, probabilities), colour)
        score = held_out.log_scores(probabilities).mean()
        right = held_out.share_right(probabilities)
        panel.set_title(f"{name}\nlog score {score:.3f}, {right:.0%} right", loc="left")
        panel.set_xlabel("predicted probability of the first ticket")
    panels[0].set_ylabel("observed share")
    figure.supxlabel(
        "three random choices of everybody held out; area of a dot: number of choices", size=9
    )
    return figure


def draw_thumbnail(study: Study) -> "Figure":
    """Draw the relative weight of the attributes in each class at 480 by 300 pixels."""
    from matplotlib.figure import Figure

    sizes = np.abs(effect_draws(study).mean(axis=0))
    shares = sizes / sizes.sum(axis=0)
    figure = Figure(figsize=(4.8, 3.0), layout="constrained")
    axes = figure.subplots()
    places, left = np.arange(len(CLASSES)), np.zeros(len(CLASSES))
    for k, name in enumerate(STEPS):
        axes.barh(places, shares[k], 0.75, left=left, color=COLOURS[k], label=name)
        left = left + shares[k]
    axes.set_yticks(places, list(CLASSES))
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8.5)
    axes.set_xlabel("what counts in the choice of a ticket")
    return figure


def write_figures(study: Study, folder: Path) -> list[Path]:
    """Write every figure of the study."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "classes.png": (draw_classes(study), 150),
        "membership.png": (draw_membership(study), 150),
        "calibration.png": (draw_calibration(study), 150),
        "thumbnail.png": (draw_thumbnail(study), 100),
    }
    for name, (figure, resolution) in figures.items():
        figure.savefig(folder / name, dpi=resolution)
    return [folder / name for name in figures]


def _draw_bins(axes: "Axes", table: FloatArray, colour: str) -> None:
    """Draw bins with their intervals against the diagonal."""
    predicted, observed, low, high, total = table.T
    axes.plot([0.0, 1.0], [0.0, 1.0], color="#AAAAAA", linewidth=1.0)
    axes.vlines(predicted, low, high, color=colour, linewidth=1.6)
    axes.scatter(predicted, observed, s=total, color=colour, edgecolors="white", zorder=3)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)
