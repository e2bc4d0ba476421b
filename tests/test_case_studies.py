"""Case studies are complete, run at their small size, and their notebooks execute."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from PIL import Image
from pytensor.configdefaults import config

from scripts import run_studies
from scripts.gather_pages import page_map
from scripts.run_notebooks import LARGEST, read_notebook
from scripts.run_studies import run_study
from scripts.studies import ROOT, study_folders
from tests.bayesian_models import FakeSampler

STUDY = ROOT / "case_studies" / "logistic_mixture"
STUDIES = study_folders()
FILES = ("README.md", "__init__.py", "notebook.ipynb", "notebook.py", "run.py", "thumbnail.png")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
QUICK = re.compile(r"^QUICK = False\b", flags=re.MULTILINE)

of_every_study = pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)


class NotebookSampler(FakeSampler):
    """Stands for `pymc.sample` as notebooks call it: most arguments left out."""

    def __call__(self, draws: int = 100, *, model: Any = None, **arguments: Any) -> xr.DataTree:
        model = pm.modelcontext(model)
        variables = [*model.free_RVs, *model.deterministics]
        given = {
            "draws": draws,
            "chains": 4,
            "random_seed": None,
            "var_names": [variable.name for variable in variables],
        }
        return super().__call__(model=model, **(given | arguments))


def cells_of(notebook: Path) -> list[str]:
    """Cells of a notebook in percent format, without what stands before the first."""
    return re.split(r"^# %%.*\n", notebook.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def angles_in_table(text: str) -> list[float]:
    (line,) = re.findall(r"^angle .*$", text, flags=re.MULTILINE)
    return [float(value) for value in re.findall(r"[\d.]+", line)]


def columns_of_table(text: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """True and estimated directions in turn, a row a feature."""
    rows = re.findall(r"^x\d+ +(.*)$", text, flags=re.MULTILINE)
    return np.array([[float(value) for value in row.split()] for row in rows])


# --- every study ---------------------------------------------------------------------------------


@of_every_study
def test_study_is_complete(study: Path) -> None:
    assert [name for name in FILES if not (study / name).is_file()] == []
    assert (study / "README.md").read_text(encoding="utf-8").startswith("# ")


@of_every_study
def test_study_is_linked_from_the_front_page_and_the_site(study: Path) -> None:
    name = f"case_studies/{study.name}"
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert name in {link.rstrip("/").removesuffix("/README.md") for link in links}
    assert {f"{name}/README.md", f"{name}/notebook.ipynb"} <= set(page_map())


@of_every_study
def test_thumbnail_is_small(study: Path) -> None:
    path = study / "thumbnail.png"
    assert path.stat().st_size <= 40_960
    with Image.open(path) as image:
        assert (image.format, image.width) == ("PNG", 480)


@of_every_study
def test_script_has_the_options_that_all_have(study: Path) -> None:
    source = (study / "run.py").read_text(encoding="utf-8")
    assert '"--quick"' in source
    assert '"--output"' in source


def test_studies_run_as_a_user_runs_them(tmp_path: Path) -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[2]).write_text(' '.join(sys.argv[3:]))"
    (tmp_path / "run.py").write_text(script, encoding="utf-8")
    assert run_study(tmp_path, tmp_path / "output", quick=True) > 0.0
    assert (tmp_path / "output").read_text(encoding="utf-8") == "--quick"


def test_study_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.setattr(run_studies, "study_folders", lambda: [tmp_path])
    assert run_studies.main([]) == 1
    assert f"failed: {tmp_path.name}" in capsys.readouterr().out


def test_study_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_studies.main(["no_such_study"])
    assert "no_such_study" in capsys.readouterr().err


# --- notebooks -----------------------------------------------------------------------------------


@of_every_study
def test_notebook_begins_with_its_settings_and_ends_with_the_environment(study: Path) -> None:
    notebook = study / "notebook.py"
    first, *_, last = cells_of(notebook)
    assert first.startswith("SEED = ")
    assert len(QUICK.findall(first)) == 1
    assert "describe_environment()" in last
    assert "# %matplotlib inline" in notebook.read_text(encoding="utf-8")  # or no figure is shown


@pytest.mark.slow  # `make studies` runs it
@of_every_study
def test_notebook_executes(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small version, run from top to bottom; samplers are mocked, they compile for minutes."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the notebook adds to it
    monkeypatch.setattr(pm, "sample", NotebookSampler())
    notebook = study / "notebook.py"
    source = QUICK.sub("QUICK = True", notebook.read_text(encoding="utf-8"), count=1)
    with config.change_flags(cxx=""):
        exec(compile(source, notebook, "exec"), {"__file__": str(notebook), "__name__": "__main__"})
    assert "moment-init" in capsys.readouterr().out.splitlines()[-1]


@of_every_study
def test_executed_notebook_is_that_of_its_source(study: Path) -> None:
    executed = json.loads((study / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in executed["cells"]]
    expected = read_notebook(study / "notebook.py").cells
    assert cells == [(cell.cell_type, cell.source) for cell in expected], "run `make notebooks`"
    code = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))


@of_every_study
def test_executed_notebook_shows_results_only(study: Path) -> None:
    """No errors, progress bars or widgets; nothing that names a folder of some machine."""
    text = (study / "notebook.ipynb").read_text(encoding="utf-8")
    assert len(text.encode()) <= LARGEST
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    assert "stderr" not in {output.get("name") for output in outputs}
    assert re.findall(r"(?:/home/|/root/|/Users/|/tmp/|site-packages)\S*", text) == []
    assert str(ROOT) not in text


# --- the logistic mixture ------------------------------------------------------------------------


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


# --- a model of one's own ------------------------------------------------------------------------


def test_own_model_prints_both_starts_and_writes_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(pm, "sample", NotebookSampler())
    run = importlib.import_module("case_studies.own_model.run")
    with config.change_flags(cxx=""):
        assert run.main(["--quick", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for start in ("PyMC's default", "initial_values"):
        assert re.search(rf"^{start}( +[\d.]+){{5}}$", printed, flags=re.MULTILINE)
    assert (tmp_path / "labels.png").read_bytes().startswith(PNG_SIGNATURE)


# --- the paper, step by step ---------------------------------------------------------------------


def test_numbers_about_the_paper_are_printed_by_its_notebook() -> None:
    """All with a decimal point, but for the paper's number."""
    folder = ROOT / "case_studies" / "paper_step_by_step"
    cells = json.loads((folder / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = "".join("".join(output.get("text", [])) for output in outputs)
    pattern = r"(?<![\d.])-?\d+\.\d+(?![\d.]*\d)"
    stated = set(re.findall(pattern, (folder / "README.md").read_text(encoding="utf-8")))
    assert len(stated) > 10
    assert stated - set(re.findall(pattern, printed)) == {"1412.3046"}


def test_walk_through_the_paper_recovers_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coefficients in standard errors; the figures show what was estimated."""
    monkeypatch.syspath_prepend(ROOT)
    run = importlib.import_module("case_studies.paper_step_by_step.run")
    result = run.walk(60_000)
    truth = run.WEIGHTS * run.paper.expected_coefficients(run.SCALES, run.BIASES)[2]
    assert np.all(np.abs(result.coefficients - truth) < 5.0 * result.errors)
    # Each of the four coordinates across u_j has 1 / sqrt(3) of the relative error of lambda_j.
    noise = np.degrees(np.sqrt(4 / 3) * result.errors / np.abs(truth))
    assert np.all(result.angles < 5.0 * noise)
    assert result.angles.max() < 15.0
    assert np.sum(result.spectrum > 1.2 * result.edge) == 3
    assert sum(result.cluster_sizes) == 30
    assert result.n_definite < 500
    panels = run.draw_directions(result).axes
    for component, panel in enumerate(panels):
        heights = [bar.get_height() for bar in panel.patches]
        expected = [*run.DIRECTIONS[:, component], *result.directions[:, component]]
        np.testing.assert_array_equal(heights, expected)


def test_error_against_the_rows_has_its_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve that falls as n^-1/2 has the exponent -1/2; the study's own is measured."""
    monkeypatch.syspath_prepend(ROOT)
    run = importlib.import_module("case_studies.paper_step_by_step.run")
    sizes = (100, 400, 1600)
    errors = np.array([[0.4], [0.2], [0.1]]) * np.ones(3)
    curve = run.ErrorCurve(sizes, errors, errors / 2.0)
    np.testing.assert_allclose(curve.exponent(curve.with_quadratic), -0.5, rtol=1e-12)
    measured = run.measure_curve((16_000, 256_000), 3)
    assert np.median(measured.with_quadratic, axis=1)[1] < 0.12
    assert -0.8 < measured.exponent(measured.without_quadratic) < -0.25
