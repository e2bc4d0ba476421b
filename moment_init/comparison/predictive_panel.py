r"""The panel of predictive checks: deviations of the data from replicated responses.

The deviations form a curve that is zero where the data and the predictions agree. The family
decides which curve is drawn: a suspended rootogram for counts, observed minus predicted shares for
binary responses and trials, and the distribution of the probability integral transform (PIT) for
continuous responses. The same curve is computed for replicated responses, which come from the
method itself. With the standard deviations :math:`s_l` of these curves at the points l, the band is
:math:`\pm q s_l`, where q is the quantile of :math:`\max_l |\delta_l| / s_l` over replicates: that
share of data sets stays inside the band *everywhere*. This also holds for groups and trials, whose
responses share a component.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.comparison.drawing import (
    GREY,
    INK,
    SMALL,
    dodge,
    finish,
    legend_inches,
    method_style,
    reference_method,
    representative,
    say,
    show_methods,
)
from moment_init.posterior.draws import family_of
from moment_init.posterior.prediction import predict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from moment_init.comparison.result import Comparison

BAND_PROBABILITY = 0.94
"""Probability of the band: that of the intervals in all figures."""

_LEAST_ROWS = 5
"""Fewest rows in a bin of counts: the square root of a smaller count is far from normal."""

_MOST_BINS = 16
"""Most bins of counts that can be labelled side by side."""

_CALIBRATION_BINS, _ROWS_OF_BIN = 10, 20
"""Number of bins of probabilities and fewest rows per bin: below 200 rows there are fewer bins."""

PIT_GRID = np.linspace(0.0, 1.0, 51)[1:-1]
"""Points at which the distribution of the PIT is compared with the uniform distribution."""


def simultaneous_band(
    deviations: FloatArray, *, probability: float = BAND_PROBABILITY
) -> FloatArray:
    """Compute half the width of the band that contains a given share of entire curves."""
    # deviations: (n_curves, n_points) -> (n_points,)
    spread = np.sqrt(np.mean(np.square(deviations), axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        largest = np.nanmax(np.where(spread > 0, np.abs(deviations) / spread, 0.0), axis=1)
    return np.asarray(np.quantile(largest, probability) * spread)


def count_bins(observed: FloatArray) -> tuple[FloatArray, tuple[str, ...]]:
    """Divide counts into bins with enough rows in each."""
    # observed: (n_obs,) -> (n_bins,), ...
    values, rows = np.unique(observed, return_counts=True)
    least = float(_LEAST_ROWS)
    edges = _merged(values, rows, least)
    while len(edges) > _MOST_BINS:
        least *= 1.25
        edges = _merged(values, rows, least)
    ends = [*(edges[1:] - 1), np.inf]
    return edges, tuple(_bin_name(*pair) for pair in zip(edges, ends, strict=True))


def _merged(values: FloatArray, rows: NDArray[np.intp], least: float) -> FloatArray:
    """Merge neighbouring counts until every bin has `least` rows; the rest joins the last bin."""
    edges, held = [0.0], 0
    for value, count in zip(values, rows, strict=True):
        if held >= least and rows[values >= value].sum() >= least:
            edges.append(float(value))
            held = 0
        held += int(count)
    return np.array(edges)


def _bin_name(first: float, last: float) -> str:
    if last == np.inf:
        return f"≥{first:.0f}"  # also where all counts are zero
    return f"{first:.0f}" if first == last else f"{first:.0f}–{last:.0f}"  # noqa: RUF001


def rootogram_deviations(
    data: FloatArray, *, replicated: FloatArray, edges: FloatArray
) -> FloatArray:
    r"""Compute roots of observed numbers of rows minus roots of expected numbers.

    .. math:: \delta_l = \sqrt{n_l} - \sqrt{E n_l}
    """
    # data: (n_sets, n_obs), replicated: (n_replicates, n_obs), edges: (n_bins,) -> (n_sets, n_bins)
    expected = _histograms(replicated, edges).mean(axis=0)
    return np.asarray(np.sqrt(_histograms(data, edges)) - np.sqrt(expected))


def _histograms(data: FloatArray, edges: FloatArray) -> FloatArray:
    """Count the rows in each bin, (n_sets, n_bins)."""
    bins = np.searchsorted(edges, data, side="right") - 1
    counts = [np.bincount(row, minlength=len(edges)) for row in bins]
    return np.array(counts, dtype=np.float64)


def calibration_deviations(
    data: FloatArray, *, predicted: FloatArray, trials: FloatArray, bins: NDArray[np.intp]
) -> FloatArray:
    """Compute observed minus predicted shares of successes."""
    # data: (n_sets, n_obs), predicted, trials, bins: (n_obs,) -> (n_sets, n_bins)
    size = np.bincount(bins, weights=trials)
    expected = np.bincount(bins, weights=trials * predicted)
    observed = np.array([np.bincount(bins, weights=row) for row in data])
    return np.asarray((observed - expected) / size)


def pit_deviations(data: FloatArray, *, replicated: FloatArray) -> FloatArray:
    r"""Compute the distribution of the PIT minus the uniform distribution.

    .. math:: \delta_l = \frac1n \sum_i 1\{u_i \le u_l\} - u_l, \qquad
        u_i = P(y^{rep}_i < y_i) + P(y^{rep}_i = y_i) / 2
    """
    # data: (n_sets, n_obs), replicated: (n_replicates, n_obs) -> (n_sets, n_points)
    ranks = np.empty(data.shape)
    ordered = np.sort(replicated, axis=0)
    for index in range(data.shape[1]):
        column, values = ordered[:, index], data[:, index]
        below = np.searchsorted(column, values, side="left")
        ranks[:, index] = (below + np.searchsorted(column, values, side="right")) / 2
    transforms = np.sort(ranks / len(replicated), axis=1)
    shares = [np.searchsorted(row, PIT_GRID, side="right") for row in transforms]
    return np.asarray(np.array(shares) / data.shape[1] - PIT_GRID)


def equal_bins(predicted: FloatArray) -> NDArray[np.intp]:
    """Divide rows by predicted probability into bins of equal size."""
    # predicted: (n_obs,) -> (n_obs,)
    n_bins = max(1, min(_CALIBRATION_BINS, len(predicted) // _ROWS_OF_BIN))
    ranks = np.empty(len(predicted), dtype=np.intp)
    ranks[np.argsort(predicted, kind="stable")] = np.arange(len(predicted))
    return ranks * n_bins // len(predicted)


_LEAST_REPLICATES, _MOST_REPLICATES, _MOST_VALUES = 100, 400, 20_000_000
"""Fewest and most replicated data sets, and most values. The 0.94 quantile of 400 data sets is
known to 0.012 in probability; fewer are read if rows times replicates would exceed 160 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckCurve:
    """The deviations of the data from one method's predictions."""

    positions: FloatArray  # horizontal positions; (n_points,)
    deviations: FloatArray  # observed minus predicted; (n_points,)


@dataclass(frozen=True, slots=True, eq=False)
class PredictiveCheck:
    """The deviations of the data from the predictions of every method."""

    kind: str  # "rootogram", "calibration" or "pit"
    # deviations by method, for methods with replicated responses
    curves: dict[str, CheckCurve]
    # half the width of the band around zero, from the first method; (n_points,)
    band: FloatArray
    labels: tuple[str, ...] = ()  # names of the bins of a rootogram


def check_kind(comparison: "Comparison") -> str:
    """Return the kind of check that suits the family."""
    family = family_of(comparison.trees[reference_method(comparison)], None, None)
    if family.has_unlimited_counts:
        return "rootogram"
    return "calibration" if family.has_trials or family.has_binary_rows else "pit"


def check_predictions(comparison: "Comparison") -> PredictiveCheck | None:
    """Compare the responses with the predictions of each method."""
    replicated = {
        method: _replicated(comparison, method)
        for method, tree in comparison.trees.items()
        if "posterior_predictive" in tree.children
    }
    if not replicated:
        return None
    tree = comparison.trees[reference_method(comparison)]
    observed = np.asarray(tree["observed_data"]["y"], dtype=np.float64)
    kind = check_kind(comparison)
    if kind == "rootogram":
        return _check_counts(observed, replicated)
    if kind == "calibration":
        return _check_shares(comparison, observed, replicated)
    deviate = {method: partial(pit_deviations, replicated=y) for method, y in replicated.items()}
    return _checked(kind, observed, replicated, deviate, dict.fromkeys(replicated, PIT_GRID))


def _replicated(comparison: "Comparison", method: str) -> FloatArray:
    """Read replicated responses, (n_replicates, n_obs), evenly spaced over chains and draws."""
    draws = representative(comparison, method, "posterior_predictive")["y"]
    values = draws.transpose("chain", "draw", "obs").to_numpy()
    values = values.reshape(-1, values.shape[-1])
    wanted = max(_LEAST_REPLICATES, min(_MOST_REPLICATES, _MOST_VALUES // values.shape[1]))
    kept = min(wanted, len(values))
    return np.asarray(values[np.arange(kept) * len(values) // kept], dtype=np.float64)


type _Deviate = Callable[[FloatArray], FloatArray]


def _check_counts(observed: FloatArray, replicated: dict[str, FloatArray]) -> PredictiveCheck:
    edges, labels = count_bins(observed)
    deviate = {
        method: partial(rootogram_deviations, replicated=y, edges=edges)
        for method, y in replicated.items()
    }
    positions = dict.fromkeys(replicated, np.arange(float(len(edges))))
    return _checked("rootogram", observed, replicated, deviate, positions, labels)


def _check_shares(
    comparison: "Comparison", observed: FloatArray, replicated: dict[str, FloatArray]
) -> PredictiveCheck:
    constant = comparison.trees[reference_method(comparison)]["constant_data"].to_dataset()
    trials = np.asarray(constant.get("n_trials", np.ones(len(observed))), dtype=np.float64)
    deviate: dict[str, _Deviate] = {}
    positions: dict[str, FloatArray] = {}
    for method in replicated:
        predicted = _predicted_shares(comparison, method, trials)
        bins = equal_bins(predicted)
        expected = np.bincount(bins, weights=trials * predicted)
        positions[method] = expected / np.bincount(bins, weights=trials)
        deviate[method] = partial(
            calibration_deviations, predicted=predicted, trials=trials, bins=bins
        )
    return _checked("calibration", observed, replicated, deviate, positions)


def _predicted_shares(comparison: "Comparison", method: str, trials: FloatArray) -> FloatArray:
    """Compute the probabilities of success, from the parameters where possible.

    The mean of replicated responses is noisy, and the noise sorts rows into wrong bins: with a
    hundred draws, a calibrated method would look overconfident.
    """
    from xarray import DataTree

    posterior = representative(comparison, method, "posterior")
    if "gate_mean" in posterior:  # weights then depend on the densities of the gate
        replicated = representative(comparison, method, "posterior_predictive")["y"]
        return np.asarray(replicated.mean(("chain", "draw")), dtype=np.float64) / trials
    tree = comparison.trees[reference_method(comparison)]
    groups = {name: tree[name].to_dataset() for name in ("constant_data", "moment_init")}
    draws = DataTree.from_dict({"posterior": posterior, **groups})
    kept = -(-_MOST_REPLICATES // posterior.sizes["chain"])
    means = predict(draws, draws=kept).mean(("chain", "draw"))
    return np.asarray(means, dtype=np.float64) / trials


def _checked(
    kind: str,
    observed: FloatArray,
    replicated: dict[str, FloatArray],
    deviate: Mapping[str, _Deviate],
    positions: dict[str, FloatArray],
    labels: tuple[str, ...] = (),
) -> PredictiveCheck:
    curves = {
        method: CheckCurve(positions[method], deviate[method](observed[None])[0])
        for method in replicated
    }
    first = next(iter(replicated))
    return PredictiveCheck(
        kind, curves, simultaneous_band(deviate[first](replicated[first])), labels
    )


_TEXTS = {
    "rootogram": ("Rootogram", "count", "√observed − √expected rows"),  # noqa: RUF001
    "calibration": ("Calibration", "predicted probability", "observed − predicted"),  # noqa: RUF001
    "pit": ("Calibration (PIT)", "predictive probability", "distribution − uniform"),  # noqa: RUF001
}

_BAND = "94 % band"


def predictive_height(comparison: "Comparison") -> float:
    """Return the height of the panel in inches."""
    return 3.2 + legend_inches(len(comparison.trees) + 1)


def draw_predictive(comparison: "Comparison", axes: "Axes") -> None:
    """Draw the deviations of the responses from the predictions of each method."""
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
    """Label the bins; only every second bin, or fewer, if there is no room for all."""
    room = 34  # characters of small text that fit below a panel
    step = -(-sum(len(label) + 1 for label in labels) // room)
    kept = np.arange(0, len(labels), step)
    axes.set_xticks(kept, [labels[index] for index in kept])
