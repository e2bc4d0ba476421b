"""The page: self-contained, escaped, in order, and readable in a real browser."""

import base64
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from moment_init.comparison.figures import PANELS
from moment_init.comparison.page import caption, description, method_meaning, write_page
from moment_init.comparison.parameter_panels import MOST_EFFECTS
from tests.comparison.examples import AWKWARD_NAMES, make_example
from tests.comparison.test_figures import EXAMPLES

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_SECONDS = 240
"""More than a browser needs on a busy machine."""

SCRIPT = """<script>addEventListener("load", () => {
  document.title = JSON.stringify({
    images: Array.from(document.images, image => image.naturalWidth),
    overflow: document.documentElement.scrollWidth - innerWidth,
  });
});</script>"""
"""Tells what only a browser knows. In a copy of the page: the page itself has no script."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with names that would break it if they were not escaped."""
    comparison = make_example(feature_names=AWKWARD_NAMES, with_default_nuts=True)
    return comparison.to_html(tmp_path_factory.mktemp("page") / "new folder" / "größe.html")


def test_nothing_comes_from_elsewhere(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    links = re.findall(r'(?:src|href|action|data|poster)="([^"]{1,30})', html)
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in links)
    assert not re.search(r"@import|url\(|<script|<link|<iframe", html)
    assert "default-src 'none'" in html


def test_sections_are_in_order(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    marks = (
        "<h1>Random starts are not enough",
        "Methods side by side</h2>",
        "Figures</h2>",
        "What limits this comparison</h2>",
        "Parameters: search NUTS</h2>",
        "Settings and versions</h2>",
    )
    places = [html.index(mark) for mark in marks]
    assert places == sorted(places)


def test_text_is_escaped(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert "<b>" not in html
    assert "<3>" not in html
    assert "<reaches>" not in html
    for name in AWKWARD_NAMES:
        assert f"coefficient[{escape(name)}, 0]" in html


def test_tables_have_all_rows(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    comparison = make_example(feature_names=AWKWARD_NAMES, with_default_nuts=True)
    labels = re.findall(r'<th scope="row">([^<]*)</th>', html)
    posterior = comparison.trees["search NUTS"]["posterior"]
    names = ("coefficient", "scale", "bias", "weight")
    n_parameters = sum(posterior[name].isel(chain=0, draw=0).size for name in names)
    assert (
        sum(re.match(r"(coefficient|scale|bias|weight)\[", label) is not None for label in labels)
        == n_parameters
    )
    assert "share at best optimum" in labels
    assert "versions: numpy" in labels
    assert all(f"<dt>{method}</dt>" in html for method in comparison.table.index)
    assert method_meaning(comparison, "another method") == ""


def test_figures_are_drawings_with_words(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    images = re.findall(r'alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', html)
    captions = re.findall(r"<figcaption>([^<]+)</figcaption>", html)
    assert len(images) == len(captions) == len(PANELS)
    for words, source in images:
        assert len(words) > 30
        assert ElementTree.fromstring(base64.b64decode(source)).tag.endswith("svg")
    assert "random EM 4 of 10" in images[0][0]
    assert re.search(r"Largest: search NUTS 1\.\d+, .*random EM \d", images[2][0])
    assert all(len(text) > 40 for text in map(unescape, captions))


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("poisson", "square-root"),
        ("bernoulli", "groups of equal size"),
        ("gaussian", "evenly over"),
    ],
)
def test_captions_suit_the_family(family: str, words: str) -> None:
    text = caption(make_example(family=family), "predictive")
    assert words in text
    assert "data sets that search NUTS itself would generate" in text


def test_caption_says_which_effects_are_shown() -> None:
    assert "effects, the" not in caption(make_example(), "forest")
    assert "Black bars mark the truth" in caption(make_example(), "forest")
    assert "truth" not in caption(make_example(with_truth=False), "forest")
    large = caption(make_example(**EXAMPLES["largest"]), "forest")
    assert f"Of 248 effects, the figure shows the {MOST_EFFECTS}" in large


def test_a_page_without_warnings_has_no_such_section(tmp_path: Path) -> None:
    comparison = replace(make_example(), warnings=())
    html = write_page(comparison, str(tmp_path / "page.html")).read_text(encoding="utf-8")
    assert "What limits" not in html
    assert "#warnings" not in html


def test_page_says_that_no_random_start_converged(tmp_path: Path) -> None:
    comparison = make_example(with_random=False)
    html = comparison.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "None of them converged, so there are no draws, scores or errors." in html
    assert "random EM 0 of 10" in html
    assert "typical start" not in html


def test_words_for_scores_that_are_not_reliable() -> None:
    comparison = make_example()
    doubtful = replace(comparison, loo=comparison.loo.assign(is_reliable=[True, True, False]))
    last = comparison.loo.index[-1]
    assert description(doubtful, "loo").endswith(f"{last} (not reliable).")


def test_letters_that_the_font_lacks(tmp_path: Path) -> None:
    names = ("收入", "年龄", "🙂", "x")
    html = make_example(feature_names=names).to_html(tmp_path / "page.html").read_text("utf-8")
    assert all(f"coefficient[{name}, 0]" in html for name in names)


# --- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> str:
    """A browser that runs without a screen."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip(f"no browser to open the page with: none of {', '.join(BROWSERS)} is installed")
    return found


def run_browser(browser: str, page: Path, folder: Path, width: int, *arguments: str) -> str:
    """Open a page without network, and return what the browser prints."""
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},1800",
        *arguments,
        page.as_uri(),
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=BROWSER_SECONDS, check=True
    )
    return result.stdout


@pytest.mark.parametrize("width", [400, 1400])
def test_page_in_a_browser(browser: str, page: Path, tmp_path: Path, width: int) -> None:
    """Verdict and table are there, every image is decoded, and only tables scroll sideways."""
    copy = tmp_path / "copy.html"
    html = page.read_text(encoding="utf-8")
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    copy.write_text(html.replace("</main>", f"</main>{SCRIPT}"), encoding="utf-8")
    options = ("--dump-dom", "--virtual-time-budget=10000")
    dom = run_browser(browser, copy, tmp_path, width, *options)
    assert "<h1>Random starts are not enough" in dom
    assert '<th scope="row">share at best optimum</th>' in dom
    told = re.search(r'<title>\{"images":\[([\d,]+)\],"overflow":(-?\d+)\}</title>', dom)
    assert told is not None
    widths = [int(number) for number in told[1].split(",")]
    assert len(widths) == len(PANELS)
    assert min(widths) > 100
    assert int(told[2]) <= 0


def test_page_is_painted(browser: str, page: Path, tmp_path: Path) -> None:
    """The page as it is, with its policy: text is dark on light, and figures have colours."""
    shot = tmp_path / "shot.png"
    run_browser(browser, page, tmp_path, 900, f"--screenshot={shot}")
    pixels = imread(shot)[..., :3]
    grey, spread = pixels.mean(axis=2), np.ptp(pixels, axis=2)
    assert 0.002 < np.mean(grey < 0.35) < 0.3
    assert np.mean(grey > 0.9) > 0.5
    assert np.mean(spread > 0.4) > 0.0005
