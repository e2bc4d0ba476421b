"""The panels of a comparison, and the page that holds them.

The landscape and the weights are drawn here. Forest, R-hat, effective sample sizes, predictive
checks and leave-one-out are plots of ArviZ. Random starts are not draws from one distribution, so
the draws of the typical start stand for "random EM" where one posterior is shown.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from io import BytesIO
from os import PathLike
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.checks import changed_filters
from moment_init.comparison.result import printed_table, table_to_html
from moment_init.comparison.runs import (
    DEFAULT_NUTS,
    RANDOM_EM,
    SEARCH_EM,
    SEARCH_NUTS,
    TENSOR_EM,
    TENSOR_NUTS,
)
from moment_init.comparison.scoring import COLUMNS, parameters_of
from moment_init.families.several import Categorical
from moment_init.posterior.draws import family_of

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from moment_init.comparison.result import Comparison

_COLOURS = {
    TENSOR_EM: "#0072B2",
    SEARCH_EM: "#009E73",
    RANDOM_EM: "#D55E00",
    TENSOR_NUTS: "#56B4E9",
    SEARCH_NUTS: "#56B4E9",
    DEFAULT_NUTS: "#E69F00",
}
"""The palette of Okabe and Ito, whose colours stay distinct for colour-blind readers."""

_GREY = "#8C8C8C"
_WIDTH = 5.4
"""Width of a panel in inches: its text is still legible on a page of 400 pixels."""

_MOST_EFFECTS = 16
"""Most effects in a forest: at three intervals each they fill a screen."""

_FOREST_DRAWS = 500
"""Draws of each method in the forest: the ends of an interval of 94 % then have 15 beyond them."""

_CHECKED_ROWS = 500
"""Most rows in a predictive check: its probabilities are multiples of a thousandth, the share of
one draw, which a check of thousands of rows would call a deviation."""

_CAPTIONS = {
    "landscape": "Where the starts ended. One dot per start or chain; dots further left are worse.",
    "weights": "Weights of the components at the end of every start, or the mean of every chain. "
    "Lines: the truth, or else the weights at our start.",
    "forest": "Effects of the features on which the methods differ most, by component: coefficient "
    "times the feature's standard deviation. 'random EM' is the typical random start.",
    "rhat": "R-hat of all parameters, as a cumulative share. The chains of 'random EM' are its "
    "starts. Right of the line, chains disagree.",
    "ess": "Bulk effective sample size of all parameters, as a cumulative share. Left of the line, "
    "there are too few draws.",
    "predictive": "Posterior predictive check of NUTS from our start, on at most 500 rows.",
    "loo": "Leave-one-out scores of the methods for which they are reliable, against the best.",
}


def available_panels(comparison: "Comparison") -> tuple[str, ...]:
    """List the panels for which a comparison has data."""
    missing = set()
    if comparison.loo.empty:
        missing.add("loo")
    if not _with_chains(comparison):
        missing |= {"rhat", "ess"}
    return tuple(name for name in _CAPTIONS if name not in missing)


def draw_panel(comparison: "Comparison", panel: str) -> "Figure":
    """Draw one panel."""
    known = available_panels(comparison)
    if panel not in known:
        raise ValueError(
            f"`panel` must be one of {', '.join(map(repr, known))}; got {panel!r}. Choose one of "
            "these."
        )
    return _PANELS[panel](comparison)


# --- our own -------------------------------------------------------------------------------------


def draw_landscape(comparison: "Comparison") -> "Figure":
    """Draw one dot per start or chain at its log-likelihood minus the best found."""
    frame = comparison.landscape
    best = frame.loc[frame["is_best"].astype(bool), "log_likelihood"].max()
    above = max(0.0, float(frame["log_likelihood"].max() - best))  # of ends on a bound
    axes = _own_axes(0.62 * frame["method"].nunique())
    labels, largest = [], 1.0
    for row, method in enumerate(frame["method"].unique()):
        part = frame[frame["method"] == method]
        gaps = np.sort(best - part["log_likelihood"].dropna().to_numpy(dtype=np.float64))
        largest = max(largest, gaps.max(initial=0.0))
        _dots(axes, -gaps, row, method)
        failed = f", {len(part) - len(gaps)} failed" if len(gaps) < len(part) else ""
        n_best = int(part["is_best"].astype(bool).sum())
        labels.append(f"{method}\n{n_best} of {len(part)} at the best{failed}")
    # Linear below one, which is smaller than sampling error, and logarithmic above.
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.5, subs=[])
    powers = range(0, int(np.log10(largest)) + 1, 1 + int(np.log10(largest)) // 4)
    ticks = [0.0, *(-(10.0**power) for power in powers)]
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-1.6 * largest, max(0.3, 1.6 * above))
    axes.axvline(0.0, color=_GREY, linewidth=1.0, zorder=1)
    axes.set_xlabel("log-likelihood minus the best found")
    return _finished(axes, labels)


def draw_weights(comparison: "Comparison") -> "Figure":
    """Draw the weights of the components at the end of every start, or the mean of every chain."""
    axes = _own_axes(0.62 * len(comparison.trees))
    reference = comparison.trees[_nuts(comparison)]["posterior"]["weight"].mean(("chain", "draw"))
    truth = comparison.truth
    lines = reference if truth is None or "weight" not in truth else truth["weight"]
    for value in np.asarray(lines):
        axes.axvline(value, color=_GREY, linewidth=1.0, zorder=1)
    for row, (method, tree) in enumerate(comparison.trees.items()):
        weights = tree["posterior"]["weight"].mean("draw").transpose("chain", "component").values
        for column in weights.T:
            _dots(axes, column, row, method)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("weight of a component")
    return _finished(axes, list(comparison.trees))


def _own_axes(height: float) -> "Axes":
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH, 0.9 + height), layout="constrained").add_subplot()


def _dots(axes: "Axes", values: Any, row: int, method: str) -> None:
    """Draw dots in a row, above each other so that none is hidden."""
    heights = np.linspace(-0.3, 0.3, len(values)) if len(values) > 1 else np.zeros(len(values))
    colour = _COLOURS.get(method, _GREY)
    size = 40 if len(values) <= 12 else 22
    axes.scatter(values, row + heights, s=size, color=colour, edgecolor="white", linewidth=0.5)


def _finished(axes: "Axes", labels: list[str]) -> "Figure":
    from matplotlib.figure import Figure

    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure = axes.figure
    if not isinstance(figure, Figure):
        raise TypeError(f"`axes` must be on a figure; got one on {type(figure).__name__}.")
    return figure


# --- by ArviZ ------------------------------------------------------------------------------------


def draw_forest(comparison: "Comparison") -> "Figure":
    """Draw effects and weights by method; the truth is one of the methods."""
    import xarray

    names = [name for name in comparison.trees if name != SEARCH_EM or not _has_tensor(comparison)]
    spread = comparison.trees[names[0]]["constant_data"].to_dataset()["X"].std("obs")
    parts = {name: _shown(_typical(comparison, name, "posterior"), spread) for name in names}
    means = [part["effect"].mean(("chain", "draw")) for part in parts.values()]
    others = [dim for dim in means[0].dims if dim != "feature"]
    gaps = [abs(mean - means[-1]).max(others).to_numpy() for mean in means]
    dispute = np.asarray(np.max(gaps, axis=0), dtype=np.float64)
    n_rows = int(np.prod([means[0].sizes[dim] for dim in others]))
    kept = np.sort(np.argsort(-dispute, kind="stable")[: max(1, _MOST_EFFECTS // n_rows)])
    if comparison.truth is not None:
        true = comparison.truth.expand_dims(chain=[0], draw=[0])
        parts = {"truth": _shown(true, spread), **parts}
    trees = {
        name: xarray.DataTree.from_dict({"posterior": _thinned(part.isel(feature=kept))})
        for name, part in parts.items()
    }
    height = 1.2 + 0.1 * (len(trees) + 1) * (n_rows * len(kept) + means[0].sizes["component"])
    colours = [_COLOURS.get(name, "#222222") for name in trees]
    size = (1.2 * _WIDTH, height)  # the columns of labels need room
    figure = _arviz("plot_forest", trees, size=size, legend=True, combined=True, color=colours)
    for axes in figure.axes:
        axes.margins(y=0.01)
    return figure


def _shown(posterior: "xarray.Dataset", spread: "xarray.DataArray") -> "xarray.Dataset":
    """Select weights and effects, in units of the linear predictor."""
    import xarray

    effect = posterior["coefficient"] * spread
    return xarray.Dataset({"weight": posterior["weight"], "effect": effect})


def _thinned(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """Make one chain of as many draws for every method, as ArviZ needs to join them."""
    draws = dataset.stack(sample=("chain", "draw")).drop_vars(("sample", "chain", "draw"))
    chosen = np.arange(_FOREST_DRAWS) * draws.sizes["sample"] // _FOREST_DRAWS
    return draws.isel(sample=chosen).rename(sample="draw").expand_dims("chain")


def draw_rhat(comparison: "Comparison") -> "Figure":
    """Draw R-hat of all parameters by method."""
    return _draw_convergence(comparison, "rhat_rank")


def draw_ess(comparison: "Comparison") -> "Figure":
    """Draw the effective sample sizes of all parameters by method."""
    return _draw_convergence(comparison, "ess_bulk")


def _draw_convergence(comparison: "Comparison", diagnostic: str) -> "Figure":
    import xarray
    from matplotlib.lines import Line2D

    collection, figure, lines = None, None, []
    # NUTS first: the line is that of the first tree's number of chains.
    for name, tree in reversed(_with_chains(comparison).items()):
        part = xarray.DataTree.from_dict({"posterior": parameters_of(tree)})
        colour = _COLOURS.get(name, _GREY)
        collection = _plot(
            "plot_convergence_dist",
            part,
            size=(_WIDTH, 3.2),
            diagnostics=[diagnostic],
            plot_collection=collection,
            ref_line=collection is None,
            visuals={"dist": {"color": colour}, "title": False},
        )
        lines.append(Line2D([], [], color=colour, label=name))
    figure = _figure_of(collection)
    axes = figure.axes[0]
    axes.set_xlabel("R-hat" if diagnostic == "rhat_rank" else "effective sample size")
    axes.set_ylabel("share of parameters")
    axes.legend(handles=lines, frameon=False, loc="lower right")
    return figure


def draw_predictive(comparison: "Comparison") -> "Figure":
    """Check the predictions of NUTS, in the way that suits the family."""
    import xarray

    tree = comparison.trees[_nuts(comparison)]
    family = family_of(tree, None, None)
    replicated = tree["posterior_predictive"].to_dataset()
    observed = tree["observed_data"].to_dataset().astype(replicated["y"].dtype)
    step = -(-observed.sizes["obs"] // _CHECKED_ROWS)
    replicated, observed = (part.isel(obs=slice(0, None, step)) for part in (replicated, observed))
    if "response" in observed.dims:  # one check of all responses
        replicated, observed = (
            part.stack(row=("obs", "response")).drop_vars(("row", "obs", "response"))
            for part in (replicated, observed)
        )
    part = xarray.DataTree.from_dict(
        {"posterior_predictive": replicated, "observed_data": observed}
    )
    size = (_WIDTH, 3.0)
    if all(member.has_unlimited_counts for member in family.members):
        return _arviz("plot_ppc_rootogram", part, size=size)
    if isinstance(family, Categorical):
        size = (_WIDTH, 2.0 * family.n_classes)
        return _arviz("plot_ppc_pava", part, size=size, col_wrap=1, data_type="categorical")
    if len(np.unique(observed["y"])) == 2 and replicated["y"].dtype.kind in "iub":
        return _arviz("plot_ppc_pava", part, size=size)
    return _arviz("plot_ppc_pit", part, size=size)


def draw_loo(comparison: "Comparison") -> "Figure":
    """Draw the differences of leave-one-out scores from the best."""
    return _arviz("plot_compare", comparison.loo, size=(_WIDTH, 0.8 + 0.5 * len(comparison.loo)))


def _arviz(
    name: str, data: Any, *, size: tuple[float, float], legend: bool = False, **options: Any
) -> "Figure":
    """Draw by ArviZ, with a legend of the methods above the panel."""
    collection = _plot(name, data, size=size, **options)
    if legend:
        place = {"loc": "outside upper right", "ncols": 2, "title": "", "frameon": False}
        collection.add_legend("model", **place)
    return _figure_of(collection)


def _plot(name: str, data: Any, *, size: tuple[float, float], **options: Any) -> Any:
    import warnings

    import arviz_plots

    if options.get("plot_collection") is None:
        options["figure_kwargs"] = {"figsize": size}
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # from parameters that do not vary
        return getattr(arviz_plots, name)(data, backend="matplotlib", **options)


def _figure_of(collection: Any) -> "Figure":
    """Take the figure of a plot from pyplot, which would show it a second time."""
    from matplotlib import pyplot

    figure: Figure = collection.viz["figure"].item()
    pyplot.close(figure)
    return figure


_PANELS: Mapping[str, Callable[["Comparison"], "Figure"]] = {
    "landscape": draw_landscape,
    "weights": draw_weights,
    "forest": draw_forest,
    "rhat": draw_rhat,
    "ess": draw_ess,
    "predictive": draw_predictive,
    "loo": draw_loo,
}


def _has_tensor(comparison: "Comparison") -> bool:
    return TENSOR_EM in comparison.trees


def _nuts(comparison: "Comparison") -> str:
    """Return the name of the posterior by NUTS from our start."""
    return TENSOR_NUTS if TENSOR_NUTS in comparison.trees else SEARCH_NUTS


def _with_chains(comparison: "Comparison") -> dict[str, "xarray.DataTree"]:
    """Select the methods with several chains."""
    trees = comparison.trees.items()
    return {name: tree for name, tree in trees if tree["posterior"].sizes["chain"] > 1}


def _typical(comparison: "Comparison", method: str, group: str) -> "xarray.Dataset":
    """Select the draws that represent a method: of random starts, those of the typical one."""
    tree = comparison.trees[method]
    dataset = tree[group].to_dataset()
    if method != RANDOM_EM:
        return dataset
    return dataset.sel(chain=[tree["moment_init"].attrs["typical_chain"]])


# --- page ----------------------------------------------------------------------------------------


def write_page(comparison: "Comparison", path: str | PathLike[str]) -> Path:
    """Write the page: the template `page.html` with verdict, tables, panels and settings."""
    target = Path(path)
    template = Template((files("moment_init.comparison") / "page.html").read_text("utf-8"))
    verdict, table = comparison.verdict, comparison.table.dropna(axis="columns", how="all").T
    figures = table.map(lambda value: f"{value:,.4g}" if value == value else "-")
    figures.insert(len(figures.columns), "meaning", [COLUMNS[name] for name in figures.index])
    text = template.substitute(
        headline="".join(f"<p>{escape(line)}</p>" for line in verdict.headline.split("\n")),
        warnings=_items([f"Warning: {text}" for text in comparison.warnings]),
        reasons=_items(verdict.reasons),
        table=table_to_html(printed_table(comparison)),
        figures=table_to_html(figures.rename_axis(None, axis="columns")),
        panels="".join(_panel(comparison, name) for name in available_panels(comparison)),
        settings=_items([f"{name}: {value}" for name, value in comparison.settings.items()]),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def _items(texts: Any) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _panel(comparison: "Comparison", name: str) -> str:
    buffer = BytesIO()
    draw_panel(comparison, name).savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    image, caption = b64encode(buffer.getvalue()).decode(), escape(_CAPTIONS[name])
    return (
        f'<figure><img src="data:image/png;base64,{image}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
