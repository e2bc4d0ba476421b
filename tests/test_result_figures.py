"""The page of results shows every record that is there, and says which are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.figures import FIGURES, draw_figures
from benchmarks.registry import BENCHMARKS
from scripts.studies import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def test_figures_are_of_benchmarks() -> None:
    names = [figure.benchmark for figure in FIGURES]
    assert set(names) <= set(BENCHMARKS)
    assert len(set(names)) == len(names)


def test_records_are_drawn(tmp_path: Path) -> None:
    text = draw_figures(RESULTS, tmp_path / "figures", "figures")
    for figure in FIGURES:
        path = tmp_path / "figures" / f"{figure.benchmark}.png"
        has_record = (RESULTS / f"{figure.benchmark}.json").exists()
        assert path.exists() == has_record
        assert (f"](figures/{figure.benchmark}.png)" in text) == has_record
        if has_record:
            with Image.open(path) as image:
                assert image.width > 900
                assert len(image.convert("RGB").getcolors(2**24) or []) > 10  # something is drawn


def test_a_record_that_is_missing_is_left_out(tmp_path: Path) -> None:
    text = draw_figures(tmp_path, tmp_path / "figures", "figures")
    assert "](figures/" not in text
    assert not (tmp_path / "figures").exists()
    for figure in FIGURES:
        assert f"`{figure.benchmark}` has no record yet" in text


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.benchmark)
def test_a_figure_has_labels_and_no_title_in_the_image(figure: Any) -> None:
    path = RESULTS / f"{figure.benchmark}.json"
    if not path.exists():
        pytest.skip("no record yet")
    from matplotlib.figure import Figure

    record = json.loads(path.read_text(encoding="utf-8"))
    axes = list(Figure().subplots(1, figure.n_panels, squeeze=False)[0])
    figure.draw(record, axes)
    assert figure.n_lines(record) > 0.0
    for each in axes:
        assert each.get_xlabel()
        assert each.patches or each.lines
