"""Figures of the study of tone perception; no window is opened."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from case_studies.tone_perception.run import INTERVAL, LINES, Study, line_draws
from moment_init import EMFit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["draw_lines", "draw_optima", "draw_thumbnail", "write_figures"]

FloatArray = NDArray[np.float64]

COLOURS = ("#0072B2", "#D55E00", "#009E73")
"""Blue, vermilion and green of Okabe and Ito, which colour-blind readers can tell apart."""

STRETCH, TUNED = "stretch ratio of the overtones", "tuned tone / fundamental"


def draw_lines(study: Study) -> "Figure":
    """Draw the tunings coloured by membership, with the posterior of both lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    axes = figure.subplots()
    points = _draw_posterior(axes, study, size=24.0)
    bar = figure.colorbar(points, ax=axes, ticks=[0.0, 0.5, 1.0])
    bar.set_label("probability of the partials' line")
    _label_lines(axes, study)
    axes.set(xlabel=STRETCH, ylabel=TUNED)
    axes.set_title("Two ways to tune an octave: by memory, or by the overtones", loc="left")
    return figure


def draw_optima(study: Study) -> "Figure":
    """Draw three fits: two lines with the guard, and two and three lines without it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    fits = {
        "Two lines, guarded": study.fit,
        "Two lines, no guard": study.unguarded,
        "Three lines, no guard": study.three,
    }
    for panel, (name, fit) in zip(panels, fits.items(), strict=True):
        _draw_fit(panel, study, fit)
        panel.set_title(f"{name}\nlog-likelihood {fit.log_likelihood:.1f}, BIC {fit.bic:.1f}")
        panel.set_xlabel(STRETCH)
    panels[0].set_ylabel(TUNED)
    return figure


def draw_thumbnail(study: Study) -> "Figure":
    """Draw the first figure at 480 by 300 pixels, without text that would be too small."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 3.0), layout="constrained")
    axes = figure.subplots()
    _draw_posterior(axes, study, size=14.0)
    _label_lines(axes, study)
    axes.set(xlabel="stretch ratio", ylabel="tuned ratio")
    return figure


def write_figures(study: Study, folder: Path) -> list[Path]:
    """Write every figure of the study."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "lines.png": (draw_lines(study), 150),
        "optima.png": (draw_optima(study), 150),
        "thumbnail.png": (draw_thumbnail(study), 100),
    }
    for name, (figure, resolution) in figures.items():
        figure.savefig(folder / name, dpi=resolution)
    return [folder / name for name in figures]


def _grid(study: Study) -> FloatArray:
    ratios = study.table["stretchratio"]
    return np.linspace(float(ratios.min()), float(ratios.max()), 60)


def _draw_posterior(axes: "Axes", study: Study, *, size: float) -> "PathCollection":
    """Draw points and bands; return the points for a colour bar."""
    grid = _grid(study)
    heights = line_draws(study, grid)
    low, high = np.quantile(heights, INTERVAL, axis=0)
    for j in range(len(LINES)):
        axes.fill_between(grid, low[:, j], high[:, j], color=COLOURS[j], alpha=0.25, linewidth=0)
        axes.plot(grid, heights[..., j].mean(axis=0), color=COLOURS[j], linewidth=1.6)
    points = axes.scatter(
        study.table["stretchratio"],
        study.table["tuned"],
        c=study.membership,
        cmap=_two_colours(),
        vmin=0.0,
        vmax=1.0,
        s=size,
        edgecolors="white",
        linewidths=0.4,
        zorder=3,
    )
    axes.spines[["top", "right"]].set_visible(False)
    return points


def _two_colours() -> "Colormap":
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("membership", [COLOURS[0], "#BBBBBB", COLOURS[1]])


def _label_lines(axes: "Axes", study: Study) -> None:
    """Label the lines in free space: above the end of the steep one, below the flat one."""
    weights = study.tree["posterior"]["weight"].mean(("chain", "draw")).to_numpy()[study.order]
    places = (("octave, from memory", 3.0, 1.78, "top"), ("partials", 2.6, 2.66, "bottom"))
    for j, (name, x, y, vertical) in enumerate(places):
        axes.text(
            x,
            y,
            f"{name} ({weights[j]:.0%})",
            color=COLOURS[j],
            ha="right",
            va=vertical,
            fontweight="bold",
        )


def _draw_fit(axes: "Axes", study: Study, fit: EMFit) -> None:
    """Draw each line of a fit with its rows and a band of two standard deviations."""
    grid = _grid(study)
    nearest = fit.responsibilities.argmax(axis=1)
    for place, j in enumerate(_by_colour(fit)):
        rows = study.table[nearest == j]
        height = fit.biases[j] + fit.coefficients[0, j] * grid
        deviation = float(np.asarray(fit.dispersion)[j])
        axes.scatter(rows["stretchratio"], rows["tuned"], s=10, color=COLOURS[place], alpha=0.8)
        axes.fill_between(
            grid,
            height - 2.0 * deviation,
            height + 2.0 * deviation,
            color=COLOURS[place],
            alpha=0.18,
            linewidth=0,
        )
        label = f"{fit.weights[j]:.0%}, slope {fit.coefficients[0, j]:.2f}, sd {deviation:.3f}"
        axes.plot(grid, height, color=COLOURS[place], linewidth=1.2, label=label)
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _by_colour(fit: EMFit) -> list[int]:
    """Sort flat components first, so that they are blue, then by falling weight."""
    steep = fit.coefficients[0] > 0.5
    return sorted(range(fit.n_components), key=lambda j: (bool(steep[j]), -fit.weights[j]))
