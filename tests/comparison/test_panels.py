"""The panels, the small table and the page, on one comparison."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.text import Text
from numpy.testing import assert_allclose

from moment_init import simulate_mixture
from moment_init.comparison.scoring import COLUMNS
from tests.comparison.laplace_sampler import compare_quickly

PANELS = ("landscape", "weights", "forest", "rhat", "ess", "predictive", "loo")
NAMES = ["<b>age</b>", "cost in $ and $", "size & more"]
DATA = simulate_mixture(
    900, 3, 2, family="gaussian", weights=[0.7, 0.3], dispersion=0.2, random_seed=2
)


@pytest.fixture(scope="module")
def found() -> Any:
    X = pd.DataFrame(DATA.X, columns=NAMES)
    return compare_quickly(X, DATA.y, 2, family="gaussian", truth=DATA, n_starts=10, draws=200)


def texts(figure: Any) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_is_drawn_once(found: Any, panel: str) -> None:
    figure = found.plot(panel)
    assert figure.axes
    assert figure.get_figwidth() < 7.0
    assert pyplot.get_fignums() == []  # nothing that pyplot would show again


def test_landscape_has_a_dot_per_start(found: Any) -> None:
    figure = found.plot()
    dots = np.concatenate([each.get_offsets()[:, 0] for each in figure.axes[0].collections])
    best = found.landscape["log_likelihood"].max()
    expected = found.landscape["log_likelihood"].to_numpy() - best
    assert_allclose(np.sort(dots), np.sort(expected), atol=1e-9)
    assert "10 at the best" in texts(figure)


def test_weights_have_a_dot_per_start_and_component(found: Any) -> None:
    axes = found.plot("weights").axes[0]
    dots = np.concatenate([each.get_offsets()[:, 0] for each in axes.collections])
    expected = [
        tree["posterior"]["weight"].mean("draw").values.ravel() for tree in found.trees.values()
    ]
    assert_allclose(np.sort(dots), np.sort(np.concatenate(expected)))


def test_forest_shows_features_and_the_truth(found: Any) -> None:
    shown = texts(found.plot("forest"))
    for word in ("truth", "tensor EM", "random EM", "tensor NUTS", *NAMES):
        assert word in shown


def test_unknown_panel_is_refused(found: Any) -> None:
    assert found.panels == PANELS
    with pytest.raises(ValueError, match=r"`panel` must be one of 'landscape', .* got 'pie'"):
        found.plot("pie")


def test_small_table_has_at_most_eight_rows(found: Any) -> None:
    text = repr(found)
    headline, table, *_ = text.split("\n\n")
    assert headline == found.verdict.headline
    assert len(headline.split("\n")) == 3
    assert max(map(len, headline.split("\n"))) <= 100
    lines = table.split("\n")
    assert len(lines) <= 9
    assert max(map(len, lines)) <= 100
    for name in ("tensor EM", "search EM", "random EM", "best random EM", "tensor NUTS"):
        assert name in lines[0]
    (row,) = [line for line in lines if line.startswith("log-likelihood")]
    value = found.table.loc["tensor EM", "log_likelihood"]
    assert f"{value:,.2f}" in row


class _Checker(HTMLParser):
    """Counts tags, and fails on one that is closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_holds_everything_and_nothing_from_elsewhere(found: Any, tmp_path: Path) -> None:
    text = found.to_html(tmp_path / "folder" / "page.html").read_text("utf-8")
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.count["img"] == len(PANELS)
    assert checker.count["table"] == 2
    assert not re.search(r"https?://|\$[a-z]", text)
    for column, meaning in COLUMNS.items():
        assert (column in text) == found.table[column].notna().any()
        assert (meaning[:30] in text) == found.table[column].notna().any()
    for line in found.verdict.headline.split("\n"):
        assert line in text


def test_text_of_the_page_is_escaped(found: Any) -> None:
    from dataclasses import replace

    spoilt = replace(found, warnings=("<script>alert(1)</script>",))
    assert "&lt;script&gt;" in spoilt._repr_html_()
    assert "<script>" not in spoilt._repr_html_()
