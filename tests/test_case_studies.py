"""Case studies run at their small size; their notebooks execute."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "case_studies" / "logistic_mixture"
NOTEBOOKS = sorted(ROOT.glob("case_studies/*/notebook.py"))
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def angles_in_table(text: str) -> list[float]:
    (line,) = re.findall(r"^angle .*$", text, flags=re.MULTILINE)
    return [float(value) for value in re.findall(r"[\d.]+", line)]


def columns_of_table(text: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """True and estimated directions in turn, a row a feature."""
    rows = re.findall(r"^x\d+ +(.*)$", text, flags=re.MULTILINE)
    return np.array([[float(value) for value in row.split()] for row in rows])


def test_logistic_mixture_runs_as_a_script(tmp_path: Path) -> None:
    """The angles are those of the columns printed, and small enough to mean recovery.

    Three random directions in six dimensions are all below 25 degrees in less than one case of 1e6.
    """
    command = [sys.executable, "-W", "error", str(STUDY / "run.py"), "--quick", "--output"]
    result = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    figure = tmp_path / "directions.png"
    assert f"figure: {figure}" in result.stdout
    assert re.search(r"estimated in \d+\.\d\d seconds; status ok", result.stdout)
    assert figure.read_bytes().startswith(PNG_SIGNATURE)
    table = columns_of_table(result.stdout)
    assert table.shape == (6, 6)
    np.testing.assert_allclose(np.linalg.norm(table, axis=0), 1.0, atol=3e-3)
    chords = np.linalg.norm(table[:, 0::2] - table[:, 1::2], axis=0)
    angles = np.degrees(2.0 * np.arcsin(chords / 2.0))
    # Three decimals a coefficient: two columns of six are off by 2 * 5e-4 * sqrt(6), 0.14 degrees.
    np.testing.assert_allclose(angles_in_table(result.stdout), angles, atol=0.15)
    assert angles.max() < 25.0


def test_logistic_mixture_figure_shows_truth_and_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    run = importlib.import_module("case_studies.logistic_mixture.run")
    study = run.run_study(20_000)
    panels = run.draw_directions(study).axes
    assert len(panels) == 3
    for component, panel in enumerate(panels):
        heights = [bar.get_height() for bar in panel.patches]
        expected = [*study.data.directions[:, component], *study.directions[:, component]]
        np.testing.assert_array_equal(heights, expected)
        assert f"off by {study.angles[component]:.1f}°" in panel.get_title()
        assert [label.get_text() for label in panel.get_xticklabels()] == list(
            study.result.feature_names
        )


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.parent.name)
def test_notebook_executes(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small version of the notebook, run from top to bottom."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the notebook adds to it
    source = notebook.read_text(encoding="utf-8")
    small = source.replace("N_OBS = 200_000", "N_OBS = 20_000")
    assert small != source
    exec(compile(small, notebook, "exec"), {"__file__": str(notebook), "__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "20,000 rows" in printed
    assert "moment-init" in printed.splitlines()[-1]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.parent.name)
def test_notebook_begins_with_its_seed_and_ends_with_the_environment(notebook: Path) -> None:
    cells = re.split(r"^# %%.*\n", notebook.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert cells[0].startswith("SEED = ")
    assert "describe_environment()" in cells[-1]
