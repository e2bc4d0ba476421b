"""The panel of predictive checks."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.comparison.method_styles import method_style
from moment_init.comparison.panel_drawing import (
    GREY,
    INK,
    SMALL,
    dodge,
    finish,
    legend_inches,
    say,
    show_methods,
)
from moment_init.comparison.predictive_checks import (
    CheckCurve,
    PredictiveCheck,
    check_predictions,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from moment_init.comparison.result import Comparison

__all__ = ["draw_predictive", "predictive_height"]

_TEXTS = {
    "rootogram": ("Rootogram", "count", "√observed − √expected rows"),  # noqa: RUF001
    "calibration": ("Calibration", "predicted probability", "observed − predicted"),  # noqa: RUF001
    "pit": ("Calibration (PIT)", "predictive probability", "distribution − uniform"),  # noqa: RUF001
}

_BAND = "94 % band"


def predictive_height(comparison: "Comparison") -> float:
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
    return 3.2 + legend_inches(len(comparison.trees) + 1)


def draw_predictive(comparison: "Comparison", axes: "Axes") -> None:
    """Draw how far the responses are from what each method predicts.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    axes : matplotlib.axes.Axes
        Where to draw.
    """
    check = check_predictions(comparison)
    if check is None:
        say(axes, "No replicated responses")
        finish(axes, "Predictive check")
        return
    _draw_band(axes, check)
    axes.axhline(0.0, color=INK, linewidth=0.8)
    for index, (method, curve) in enumerate(check.curves.items()):
        _draw_curve(axes, check, method, curve, index)
    if check.labels:
        _label_bins(axes, check.labels)
    else:
        axes.set_xlim(0.0, 1.0)
    axes.tick_params(axis="y", labelsize=SMALL)
    show_methods(axes, list(check.curves), others=[_BAND])
    title, xlabel, ylabel = _TEXTS[check.kind]
    finish(axes, title, xlabel=xlabel, ylabel=ylabel)


def _draw_band(axes: "Axes", check: PredictiveCheck) -> None:
    first = next(iter(check.curves.values()))
    look: dict[str, Any] = {"color": GREY, "alpha": 0.28, "label": _BAND}
    if check.labels:
        axes.bar(first.positions, 2 * check.band, bottom=-check.band, width=0.9, **look)
    else:
        axes.fill_between(first.positions, -check.band, check.band, linewidth=0, **look)


def _draw_curve(
    axes: "Axes", check: PredictiveCheck, method: str, curve: CheckCurve, index: int
) -> None:
    style = method_style(method)
    if check.kind == "pit":
        axes.plot(
            curve.positions,
            curve.deviations,
            color=style.colour,
            linewidth=1.6,
            marker=style.marker,
            markersize=4.5,
            markevery=(index * 2, 9),
        )
        return
    shift = dodge(index, len(check.curves)) if check.labels else 0.0
    axes.plot(
        curve.positions + shift,
        curve.deviations,
        color=style.colour,
        linestyle="none" if check.labels else "-",
        linewidth=1.0,
        marker=style.marker,
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.4,
    )


def _label_bins(axes: "Axes", labels: tuple[str, ...]) -> None:
    """Label bins, every second one or fewer where there is no room for all."""
    room = 34  # characters of small text that fit below a panel
    step = -(-sum(len(label) + 1 for label in labels) // room)
    kept = np.arange(0, len(labels), step)
    axes.set_xticks(kept, [labels[index] for index in kept])
