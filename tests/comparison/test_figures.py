"""Panels: their numbers by hand, and that every one is legible for sizes small and large."""

import sys
from dataclasses import replace
from typing import Any

import arviz as az
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib._pylab_helpers import Gcf
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.comparison.drawing import method_style, representative, shorten, typical_start
from moment_init.comparison.figures import (
    HEIGHTS,
    PANELS,
    comparison_figure,
    compute_rhat,
    optima_by_method,
    plot_comparison,
)
from moment_init.comparison.parameter_panels import (
    LEVEL,
    MOST_EFFECTS,
    compute_certainty,
    compute_effects,
    compute_weights,
    intervals,
)
from moment_init.comparison.result import Comparison
from tests.comparison.examples import AWKWARD_NAMES, make_example

LONG_NAMES = tuple(f"{index:02d} covariate with a name of 40 letters"[:40] for index in range(30))

EXAMPLES: dict[str, dict[str, Any]] = {
    "counts": {},
    "binary, five methods": {"family": "bernoulli", "with_default_nuts": True},
    "trials, gate, groups": {"family": "binomial", "with_gate": True, "with_groups": True},
    "names": {"family": "gaussian", "feature_names": AWKWARD_NAMES, "with_failures": True},
    "no random start converged": {"family": "bernoulli", "with_random": False},
    "all starts equal": {"share_at_best": 1.0, "with_truth": False},
    "gaps of thousands": {"gap": 3000.0, "n_starts": 40},
    "smallest": {"family": "gaussian", "n_components": 1, "n_features": 1, "with_truth": False},
    "largest": {
        "n_components": 8,
        "n_features": 30,
        "feature_names": LONG_NAMES,
        "with_default_nuts": True,
        "n_starts": 20,
        "n_draws": 30,
        "n_obs": 150,
    },
}


@pytest.fixture(params=list(EXAMPLES))
def example(request: pytest.FixtureRequest) -> Comparison:
    """Comparisons of many kinds."""
    return make_example(**EXAMPLES[request.param])


def drawn_texts(figure: Figure) -> list[tuple[str, Any]]:
    """Every visible text of a figure with the box it takes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    found = []
    for axes in figure.axes:
        legend = axes.get_legend()
        others = [axes.xaxis.label, axes.yaxis.label, *axes.texts]
        others += [axes._left_title]  # type: ignore[attr-defined]
        others += [] if legend is None else legend.get_texts()
        # Ticks outside the limits of an axis are not drawn.
        ticks = axes.xaxis._update_ticks() + axes.yaxis._update_ticks()  # type: ignore[attr-defined]
        for text in [*others, *(tick.label1 for tick in ticks)]:
            if text.get_text() and text.get_visible():
                found.append((text.get_text(), text.get_window_extent(renderer)))
    return found


def test_panels_are_legible(example: Comparison) -> None:
    """No text leaves the figure, and none overlaps another."""
    for name in PANELS:
        figure = comparison_figure(example, [name])
        texts = drawn_texts(figure)
        width, height = figure.get_size_inches() * figure.dpi
        for index, (text, box) in enumerate(texts):
            assert box.x0 >= -1, f"{name}: {text!r} begins left of the figure"
            assert box.x1 <= width + 1, f"{name}: {text!r} ends right of the figure"
            assert box.y0 >= -1, f"{name}: {text!r} ends below the figure"
            assert box.y1 <= height + 1, f"{name}: {text!r} begins above the figure"
            for other, place in texts[index + 1 :]:
                # Text boxes have the height of their lines, which is more than that of letters.
                overlap = min(box.y1, place.y1) - max(box.y0, place.y0) > 2
                overlap &= min(box.x1, place.x1) - max(box.x0, place.x0) > 1
                assert not overlap, f"{name}: {text!r} overlaps {other!r}"


def test_all_panels_on_one_figure() -> None:
    example = make_example(**EXAMPLES["names"])
    settings = dict(mpl.rcParams)
    axes = example.plot()
    assert axes.shape == (len(PANELS),)
    assert all(isinstance(panel, Axes) and panel.get_title(loc="left") for panel in axes)
    assert len({id(panel.figure) for panel in axes}) == 1
    FigureCanvasAgg(axes[0].figure).draw()  # type: ignore[no-untyped-call]
    assert dict(mpl.rcParams) == settings
    assert not Gcf.get_all_fig_managers()


def test_panels_in_the_order_asked_for() -> None:
    axes = make_example().plot(["rhat", "landscape"], figsize=(9.0, 4.0))
    titles = [panel.get_title(loc="left") for panel in axes]
    assert titles == ["R-hat of the parameters", "Optima reached by each method"]
    assert_allclose(axes[0].figure.get_size_inches(), [9.0, 4.0])
    assert plot_comparison(make_example(), "loo").shape == (1,)


@pytest.mark.parametrize("panels", [["forst"], []])
def test_unknown_panels(panels: list[str]) -> None:
    with pytest.raises(ValueError, match=r"`panels` must be names among 'landscape'.* got"):
        make_example().plot(panels)


def test_figure_shows_itself() -> None:
    """As a picture, and without pyplot: a notebook asks for ``_repr_png_``."""
    example = make_example()
    figure: Any = example.figure(["loo", "rhat"], figsize=(6.0, 3.0))
    assert len(figure.axes) == 2
    assert_allclose(figure.get_size_inches(), [6.0, 3.0])
    picture = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    axes = example.plot(["loo", "rhat"], figsize=(6.0, 3.0))
    assert axes[0].figure._repr_png_() == picture
    assert not Gcf.get_all_fig_managers()


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"Install moment-init\[plot\]"):
        make_example().plot()


def test_every_panel_has_a_height() -> None:
    assert list(HEIGHTS) == list(PANELS)
    assert all(2 < height(make_example()) < 12 for height in HEIGHTS.values())


def test_methods_look_different() -> None:
    methods = ("search NUTS", "default NUTS", "search EM", "random EM", "best random EM", "other")
    styles = [method_style(method) for method in methods]
    assert len({style.colour for style in styles}) == len(methods)
    assert len({style.marker for style in styles}) == len(methods)


# --- which start -----------------------------------------------------------------------------


def with_landscape(values: list[float]) -> Comparison:
    """A comparison whose random starts ended at these log-likelihoods."""
    comparison = make_example(n_starts=len(values))
    landscape = comparison.landscape.copy()
    landscape.loc[landscape["method"] == "random EM", "log_likelihood"] = values
    return replace(comparison, landscape=landscape)


def test_only_random_starts_are_represented_by_one() -> None:
    comparison = make_example()
    landscape = comparison.landscape.copy()
    landscape["is_typical"] = (landscape["method"] == "random EM") & (landscape["start"] == 2)
    comparison = replace(comparison, landscape=landscape)
    assert typical_start(comparison) == 2
    assert representative(comparison, "search NUTS", "posterior").sizes["chain"] == 4
    assert representative(comparison, "random EM", "posterior")["chain"].values.tolist() == [2]


def test_no_random_start_that_converged() -> None:
    nothing = make_example(with_random=False)
    assert typical_start(nothing) is None
    assert "random EM" not in compute_effects(nothing).intervals
    optima = optima_by_method(nothing)["random EM"]
    assert (optima.gaps.size, optima.n_best, optima.n_failed) == (0, 0, 10)


def test_optima_below_the_best() -> None:
    optima = optima_by_method(with_landscape([-503.0, -500.0, np.nan, -501.0]))["random EM"]
    assert_array_equal(optima.gaps, [0.0, 1.0, 3.0])
    assert optima.n_failed == 1


# --- numbers of the panels -------------------------------------------------------------------


def test_intervals_of_a_hundred_and_one_draws() -> None:
    """Quantiles 0.03, 0.5 and 0.97 of 0, 1, ..., 100."""
    assert_allclose(intervals(np.arange(101.0)[:, None]), [[3.0, 50.0, 97.0]])


def test_effects_of_a_standard_deviation() -> None:
    comparison = make_example(family="gaussian")
    effects = compute_effects(comparison)
    tree = comparison.trees["search NUTS"]
    X = tree["constant_data"]["X"].to_numpy()
    coefficient = tree["posterior"]["coefficient"].to_numpy().reshape(-1, 4, 3)
    bias = tree["posterior"]["bias"].to_numpy().reshape(-1, 3)
    assert effects.labels == (LEVEL, "x0", "x1", "x2", "x3") * 3
    assert_array_equal(effects.components, np.repeat([0, 1, 2], 5))
    found = effects.intervals["search NUTS"]
    assert_allclose(found[5 + 1 + 2], intervals(coefficient[:, [2], 1] * X[:, 2].std())[0])
    level = bias[:, [2]] + (coefficient[:, :, [2]] * X.mean(axis=0)[:, None]).sum(axis=1)
    assert_allclose(found[10], intervals(level)[0])
    assert effects.truth is not None
    truth = comparison.truth
    assert truth is not None
    true = truth["coefficient"].to_numpy()
    assert_allclose(effects.truth[5 + 1 + 2], true[2, 1] * X[:, 2].std())
    assert effects.starts.shape == (10, 15)


def test_a_truth_without_intercepts() -> None:
    comparison = make_example()
    truth = comparison.truth
    assert truth is not None
    effects = compute_effects(replace(comparison, truth=truth.drop_vars("bias")))
    assert effects.truth is not None
    assert_array_equal(np.isnan(effects.truth), [label == LEVEL for label in effects.labels])


def test_effects_in_dispute_are_kept() -> None:
    """Random starts differ in the first and last component only."""
    effects = compute_effects(make_example(**EXAMPLES["largest"]))
    assert effects.n_all == 8 * 31
    assert len(effects.labels) == MOST_EFFECTS
    assert set(effects.components.tolist()) == {0, 7}
    assert LEVEL not in effects.labels


def test_weights_by_method() -> None:
    comparison = make_example()
    found, starts = compute_weights(comparison)
    draws = comparison.trees["search EM"]["posterior"]["weight"].to_numpy().reshape(-1, 3)
    assert_allclose(found["search EM"], intervals(draws))
    assert starts.shape == (10, 3)


def test_rhat_is_that_of_arviz() -> None:
    comparison = make_example()
    found = compute_rhat(comparison)
    assert list(found) == ["search NUTS", "random EM"]  # the others have one chain
    posterior = comparison.trees["random EM"]["posterior"].to_dataset()
    expected = az.rhat(posterior[["coefficient"]])["coefficient"].max()
    assert_allclose(found["random EM"][-1], expected)
    assert found["random EM"].size == 4 * 3 + 3 + 3


def test_constant_parameters_have_no_rhat() -> None:
    comparison = make_example(n_components=1, n_features=1, family="gaussian", with_truth=False)
    assert compute_rhat(comparison)["search NUTS"].size == 3  # the weight of one component is one


def loo_labels(comparison: Comparison) -> list[str]:
    (axes,) = comparison.figure(["loo"]).axes
    return [label.get_text() for label in axes.get_yticklabels()]


def test_unreliable_scores_are_hollow_and_never_the_highest() -> None:
    """One that is above the first is drawn right of it."""
    comparison = make_example()
    assert "highest" in loo_labels(comparison)[0].split("\n")
    loo = comparison.loo.assign(elpd_diff=[0.0, -3.0, 25.0], is_reliable=[True, True, False])
    doubtful = replace(comparison, loo=loo)
    assert "highest reliable" in loo_labels(doubtful)[0].split("\n")
    assert "25.0 ±" in loo_labels(doubtful)[2]
    (axes,) = doubtful.figure(["loo"]).axes
    marks = [mark for mark in axes.collections if isinstance(mark, PathCollection)]
    is_hollow = [np.min(to_rgba_array(mark.get_facecolor())) == 1.0 for mark in marks]
    assert is_hollow == [False, False, True]


def test_certainty_by_hand() -> None:
    """Rows 0, 1, 2 belong to the first component, with 0.5, 0.7 and 0.9; none to the third."""
    first = np.array([0.5, 0.7, 0.9, 0.2])
    probability = np.column_stack([first, [0.4, 0.2, 0.05, 0.8], 1 - first])
    probability[:, 2] = 1 - probability[:, :2].sum(axis=1)
    comparison = make_example()
    tree = comparison.trees["search EM"].copy()
    tree["membership"] = xr.Dataset({"probability": (("group", "component"), probability)})
    quantiles, shares = compute_certainty(replace(comparison, trees={"search EM": tree}))[
        "search EM"
    ]
    assert_allclose(quantiles[0], [0.52, 0.6, 0.7, 0.8, 0.88])
    assert_allclose(quantiles[1], np.full(5, 0.8))
    assert np.isnan(quantiles[2]).all()
    assert_allclose(shares, [0.75, 0.25, 0.0])


def test_panels_without_their_groups() -> None:
    """Panels say what is missing."""
    comparison = make_example()
    kept = ("posterior", "observed_data", "constant_data", "moment_init")
    tree = xr.DataTree.from_dict(
        {name: comparison.trees["search EM"][name].to_dataset() for name in kept}
    )
    bare = replace(comparison, trees={"search EM": tree}, loo=comparison.loo.iloc[:0])
    said = {
        name: [text.get_text() for text in comparison_figure(bare, [name]).axes[0].texts]
        for name in ("predictive", "membership", "rhat", "loo")
    }
    assert said["predictive"] == ["No replicated responses"]
    assert said["membership"] == ["No membership probabilities"]
    assert said["rhat"] == ["No method has more than one chain"]
    assert said["loo"] == ["No leave-one-out scores"]
    for name in ("forest", "weights", "landscape"):
        FigureCanvasAgg(comparison_figure(bare, [name])).draw()  # type: ignore[no-untyped-call]


def test_labels_are_cut_and_taken_as_they_are() -> None:
    assert shorten("a" * 40) == "a" * 20 + "\n" + "a" * 20
    assert shorten("a" * 41) == "a" * 20 + "\n" + "a" * 19 + "…"
    assert shorten("") == ""
    figure = make_example(feature_names=AWKWARD_NAMES).figure(["forest"])
    labels = figure.axes[0].get_yticklabels()
    assert "cost in $ and $" in [label.get_text() for label in labels]
    assert not any(label.get_parse_math() for label in labels)
