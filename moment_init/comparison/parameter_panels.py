r"""The panels of parameters by method: effects (the forest), weights and membership.

Coefficients of features in different units cannot share an axis, and the biases (the linear
predictor where all features are zero) may lie far outside the data. The forest shows instead the
change in the linear predictor per standard deviation of a feature, :math:`\beta_{kj} \, sd(x_k)`,
and its level at the means of the features, :math:`b_j + \langle \beta_j, \bar x\rangle`, both
computed from each draw. The panel of membership shows how certain the component of a row is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.comparison.drawing import (
    GREY,
    INK,
    ROW_INCHES,
    dodge,
    finish,
    label_rows,
    legend_inches,
    method_style,
    reference_method,
    representative,
    say,
    shorten,
    show_methods,
)
from moment_init.comparison.result import RANDOM_EM

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

    from moment_init.comparison.result import Comparison

INTERVAL = 0.94
"""Probability inside an interval: the default of ArviZ."""

LEVEL = "level at the means"
"""Label of the linear predictor at the means of the features."""

MOST_EFFECTS = 20
"""Most effects in a forest: at 0.4 inches each, for three methods, they fill a screen."""


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """The effects of all methods, ordered by component."""

    labels: tuple[str, ...]  # names of the effects: per component the level, then the features
    components: NDArray[np.int64]  # components of the effects; (n_effects,)
    # lower end, median and upper end by method; for random EM of the typical start;
    # (n_effects, 3)
    intervals: dict[str, FloatArray]
    # medians of every random start, without rows if none converged; (n_starts, n_effects)
    starts: FloatArray
    truth: FloatArray | None  # true effects; (n_effects,)
    n_all: int  # number of all effects, shown or not


def compute_effects(comparison: "Comparison", *, most: int = MOST_EFFECTS) -> Effects:
    """Compute the effects; if there are too many, keep those on which methods differ most."""
    posterior = comparison.trees[reference_method(comparison)]["posterior"].to_dataset()
    names = [LEVEL, *map(str, posterior.coords["feature"].to_numpy())]
    n_components = posterior.sizes["component"]
    by_method = {
        method: intervals(_flat(comparison, representative(comparison, method, "posterior")))
        for method in comparison.trees
    }
    kept = _most_disputed(np.stack(list(by_method.values())), most)
    return Effects(
        labels=tuple((names * n_components)[index] for index in kept),
        components=np.repeat(posterior.coords["component"].to_numpy(), len(names))[kept],
        intervals={method: values[kept] for method, values in by_method.items()},
        starts=_start_medians(comparison, len(names) * n_components)[:, kept],
        truth=None if comparison.truth is None else _true_effects(comparison)[kept],
        n_all=len(names) * n_components,
    )


def intervals(draws: FloatArray, *, probability: float = INTERVAL) -> FloatArray:
    """Compute equal-tailed intervals and medians."""
    # draws: (n_draws, n_values) -> (n_values, 3)
    tail = (1 - probability) / 2
    return np.asarray(np.quantile(draws, [tail, 0.5, 1 - tail], axis=0).T)


def _flat(comparison: "Comparison", posterior: "xarray.Dataset") -> FloatArray:
    """Compute the effects of every draw, (n_draws, n_effects)."""
    values = _effects(comparison, posterior).transpose("chain", "draw", "component", "effect")
    return values.to_numpy().reshape(values.shape[0] * values.shape[1], -1)


def _effects(comparison: "Comparison", parameters: "xarray.Dataset") -> "xarray.DataArray":
    """Compute the level and the effects of the features, along the dim ``effect``."""
    import xarray

    inputs = comparison.trees[reference_method(comparison)]["constant_data"]["X"]
    spread = inputs.std("obs")
    coefficient = parameters["coefficient"]
    # A truth may have no biases.
    level = parameters.get("bias", np.nan) + (coefficient * inputs.mean("obs")).sum("feature")
    slopes = (coefficient * spread).rename(feature="effect").drop_vars("effect", errors="ignore")
    return xarray.concat([level.expand_dims("effect"), slopes], "effect", coords="minimal")


def _most_disputed(values: FloatArray, most: int) -> NDArray[np.intp]:
    """Choose the effects to show, (n_kept,), from intervals (n_methods, n_effects, 3)."""
    n_effects = values.shape[1]
    if n_effects <= most:
        return np.arange(n_effects)
    width = (values[:, :, 2] - values[:, :, 0]).min(axis=0)
    dispute = np.ptp(values[:, :, 1], axis=0) / np.maximum(width, np.finfo(float).tiny)
    return np.sort(np.argsort(-dispute, kind="stable")[:most])


def _start_medians(comparison: "Comparison", n_effects: int) -> FloatArray:
    if RANDOM_EM not in comparison.trees:
        return np.empty((0, n_effects))
    posterior = comparison.trees[RANDOM_EM]["posterior"].to_dataset()
    medians = _effects(comparison, posterior).median("draw")
    return medians.transpose("chain", "component", "effect").to_numpy().reshape(-1, n_effects)


def _true_effects(comparison: "Comparison") -> FloatArray:
    if comparison.truth is None:
        raise ValueError("`comparison` must have a truth; got None. Pass `truth` to `compare`.")
    return _effects(comparison, comparison.truth).transpose("component", "effect").values.ravel()


_TRUTH = "truth"


def forest_height(comparison: "Comparison") -> float:
    """Return the height of the forest in inches."""
    posterior = comparison.trees[reference_method(comparison)]["posterior"]
    n_components = posterior.sizes["component"]
    n_effects = min(n_components * (1 + posterior.sizes["feature"]), MOST_EFFECTS)
    return _rows_height(n_effects + n_components, len(comparison.trees))


def draw_forest(comparison: "Comparison", axes: "Axes") -> None:
    """Draw the effects by method, with the true ones marked."""
    effects = compute_effects(comparison)
    rows, headers = _forest_rows(effects.components)
    axes.axvline(0.0, color=GREY, linewidth=0.8, zorder=1)
    draw_interval_rows(axes, rows, effects.intervals, effects.starts, effects.truth)
    names = [shorten(label) for label in effects.labels]
    titles = [f"Component {component}" for component in headers]
    label_rows(axes, [*rows, *headers.values()], [*names, *titles])
    for label in axes.get_yticklabels()[len(names) :]:
        label.set_fontweight("bold")
    axes.set_ylim(rows[-1] + 0.6, -0.6)
    axes.locator_params(axis="x", nbins=5)
    finish(axes, _forest_title(effects), xlabel="change in the linear predictor")


def _forest_title(effects: Effects) -> str:
    shown = len(effects.labels)
    return "Effects by method" if shown == effects.n_all else f"{shown} of {effects.n_all} effects"


def _forest_rows(components: NDArray[np.int64]) -> tuple[list[float], dict[int, float]]:
    """Compute the positions of the effects and of one header per component."""
    rows, headers, position = [], {}, 0.0
    for component, members in groupby(components.tolist()):
        headers[int(component)] = position
        for _ in members:
            position += 1.0
            rows.append(position)
        position += 1.0
    return rows, headers


def weights_height(comparison: "Comparison") -> float:
    """Return the height of the panel of weights in inches."""
    posterior = comparison.trees[reference_method(comparison)]["posterior"]
    return _rows_height(posterior.sizes["component"], len(comparison.trees))


def compute_weights(comparison: "Comparison") -> tuple[dict[str, FloatArray], FloatArray]:
    """Compute intervals of the weights by method, and the medians of every random start."""
    # -> (n_components, 3), (n_starts, n_components)
    by_method = {}
    for method in comparison.trees:
        weight = representative(comparison, method, "posterior")["weight"]
        draws = weight.transpose("chain", "draw", "component").to_numpy()
        by_method[method] = intervals(draws.reshape(-1, draws.shape[-1]))
    if RANDOM_EM not in comparison.trees:
        return by_method, np.empty((0, draws.shape[-1]))
    every = comparison.trees[RANDOM_EM]["posterior"]["weight"].median("draw")
    return by_method, every.transpose("chain", "component").to_numpy()


def draw_weights(comparison: "Comparison", axes: "Axes") -> None:
    """Draw the weights of the components by method, with the true ones marked."""
    by_method, starts = compute_weights(comparison)
    truth = comparison.truth
    known = truth is not None and "weight" in truth
    true = truth["weight"].to_numpy() if truth is not None and known else None
    labels = comparison.trees[reference_method(comparison)]["posterior"].coords["component"]
    rows = [float(row) for row in range(labels.size)]
    draw_interval_rows(axes, rows, by_method, starts, true)
    label_rows(axes, rows, [f"component {label}" for label in labels.to_numpy()])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0.0)
    axes.locator_params(axis="x", nbins=5)
    finish(axes, "Weights of the components", xlabel="probability of the component")


def draw_interval_rows(
    axes: "Axes",
    rows: Sequence[float],
    by_method: Mapping[str, FloatArray],
    starts: FloatArray,
    truth: FloatArray | None,
) -> None:
    """Draw intervals by method in each row, one tick per random start and a bar at the truth."""
    # by_method: (n_rows, 3), starts: (n_starts, n_rows), truth: (n_rows,)
    positions = np.asarray(rows)
    if truth is not None:
        ends = positions - 0.45, positions + 0.45
        axes.vlines(truth, *ends, color=INK, linewidth=1.6, label=_TRUTH, zorder=2)
    for index, (method, values) in enumerate(by_method.items()):
        at, style = positions + dodge(index, len(by_method)), method_style(method)
        if method == RANDOM_EM:
            axes.scatter(
                starts.ravel(),
                np.tile(at, len(starts)),
                marker="|",
                s=26,
                color=style.colour,
                linewidth=0.8,
                alpha=0.6,
                zorder=3,
            )
        axes.hlines(at, values[:, 0], values[:, 2], color=style.colour, linewidth=1.8, zorder=4)
        axes.scatter(
            values[:, 1],
            at,
            s=18,
            color=style.colour,
            marker=style.marker,
            edgecolor="white",
            linewidth=0.4,
            zorder=5,
        )
    show_methods(axes, list(by_method), others=[_TRUTH] if truth is not None else [])


def _rows_height(n_rows: int, n_methods: int) -> float:
    row = max(0.3, ROW_INCHES * (n_methods + 1))
    return 1.1 + legend_inches(n_methods + 1) + row * n_rows


_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the largest probability: the ends of the thin and the thick bar, and the median."""


def compute_certainty(comparison: "Comparison") -> dict[str, tuple[FloatArray, FloatArray]]:
    """Compute quantiles of the largest membership probability, and shares of rows, by component."""
    result = {}
    for method, tree in comparison.trees.items():
        if "membership" not in tree.children:
            continue
        draws = representative(comparison, method, "membership")["probability"]
        averaged = draws.mean([dim for dim in ("chain", "draw") if dim in draws.dims])
        probability = averaged.transpose(..., "component").to_numpy()
        largest, likeliest = probability.max(axis=1), probability.argmax(axis=1)
        n_components = probability.shape[1]
        quantiles = np.full((n_components, len(_LEVELS)), np.nan)
        for component in np.unique(likeliest):
            quantiles[component] = np.quantile(largest[likeliest == component], _LEVELS)
        result[method] = (
            quantiles,
            np.bincount(likeliest, minlength=n_components) / len(likeliest),
        )
    return result


def membership_height(comparison: "Comparison") -> float:
    """Return the height of the panel of membership in inches."""
    posterior = comparison.trees[reference_method(comparison)]["posterior"]
    n_rows, n_methods = posterior.sizes["component"], len(comparison.trees)
    return 1.1 + legend_inches(n_methods) + max(0.4, ROW_INCHES * (n_methods + 1)) * n_rows


def draw_membership(comparison: "Comparison", axes: "Axes") -> None:
    """Draw the largest membership probability of rows by component and method."""
    by_method = compute_certainty(comparison)
    if not by_method:
        say(axes, "No membership probabilities")
        finish(axes, "Certainty of component membership")
        return
    quantiles, shares = next(iter(by_method.values()))
    rows = np.arange(float(len(quantiles)))
    for index, (method, (values, _)) in enumerate(by_method.items()):
        at, style = rows + dodge(index, len(by_method)), method_style(method)
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
    show_methods(axes, list(by_method))
    finish(
        axes, "Certainty of component membership", xlabel="largest membership probability of a row"
    )
