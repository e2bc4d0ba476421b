"""The honest map: its grid, its counting and its verdicts; the case study that draws it."""

import importlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "honest_map.json"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module that lies under the root and is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module(name)


@pytest.fixture
def honest_map(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("benchmarks.honest_map", monkeypatch)


@pytest.fixture
def map_cells(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("benchmarks.map_cells", monkeypatch)


@pytest.fixture
def map_runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("benchmarks.map_runs", monkeypatch)


@pytest.fixture
def study_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("case_studies.honest_map.run", monkeypatch)


@pytest.fixture
def measured(map_runs: ModuleType) -> Any:
    """A call worth five random starts; the fourth and the last of ten reach the optimum."""
    random = [-20.0] * 10
    random[3], random[9] = -10.5, -10.0
    return map_runs.Measurement(
        default=-10.2,
        truth=-11.5,
        moments=-30.0,
        random=tuple(random),
        default_seconds=5.6,
        start_seconds=1.0,
        fixed_seconds=0.5,
        all_seconds=20.0,
    )


# --- the grid ------------------------------------------------------------------------------------


def test_parameters_worked_by_hand(map_cells: ModuleType) -> None:
    """Three components of two slopes and a bias, and two free weights; a dispersion each more."""
    sizes = {
        family: map_cells.MapCell(family, "rare", 2, 3, 10).n_parameters
        for family in ("gaussian", "poisson", "bernoulli")
    }
    assert sizes == {"gaussian": 14, "poisson": 11, "bernoulli": 11}


def test_every_cell_can_be_drawn(
    map_cells: ModuleType, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    mixtures = load("benchmarks.random_mixtures", monkeypatch)
    assert len(set(map_cells.CELLS)) == len(map_cells.CELLS)
    for cell in (*map_cells.CELLS, *map_cells.QUICK_CELLS):
        assert cell.mixture.n_obs == cell.rows_per_parameter * cell.n_parameters
        data = mixtures.draw(cell.mixture.resized(60), seed, 0)
        assert data.X.shape == (60, cell.n_features)
        assert data.weights.sum() == pytest.approx(1.0)
        is_balanced = np.ptp(data.weights) < 1e-12
        assert is_balanced == (cell.weights == "balanced")
        assert (data.weights.min() <= 0.05) == (cell.weights == "rare")


# --- a data set ----------------------------------------------------------------------------------


def test_starts_within_a_share_of_the_time(measured: Any) -> None:
    """5.6 s less .5 s leave five starts of a second; 2.8 s leave two; .56 s leave none."""
    assert [measured.starts_within(share) for share in (1.0, 0.5, 0.1)] == [5, 2, 0]
    assert [measured.reached_within(share) for share in (1.0, 0.5, 0.1)] == [True, False, False]


def test_goal_is_that_of_the_best_of_all_runs(measured: Any) -> None:
    assert measured.goal == -11.0
    assert replace(measured, moments=-3.0).goal == -4.0
    assert replace(measured, moments=None, truth=-7.0).goal == -8.0
    assert replace(measured, random=(-math.inf,), default=-12.0).goal == -12.5


def test_measurement_runs_every_kind_of_start(
    map_cells: ModuleType, map_runs: ModuleType, seed: int
) -> None:
    cell = map_cells.MapCell("gaussian", "balanced", 3, 2, 10)
    first, second = (map_runs.measure(cell, [seed, 5, 1]) for _ in range(2))
    assert len(first.random) == max(map_runs.N_RANDOM, first.starts_within(1.0))
    found = [
        (each.default, each.truth, each.moments, *each.random[: map_runs.N_RANDOM])
        for each in (first, second)
    ]
    assert found[0] == found[1]
    assert np.isfinite(found[0]).all()
    assert 0.0 < first.start_seconds < first.default_seconds < first.all_seconds
    assert map_runs.measure(cell, [seed, 6, 1]).truth != first.truth


def test_moments_are_left_out_with_fewer_features_than_components(
    map_cells: ModuleType, map_runs: ModuleType, seed: int
) -> None:
    cell = map_cells.MapCell("poisson", "balanced", 1, 2, 10)
    assert map_runs.measure(cell, [seed, 0, 0]).moments is None


# --- counting and judging ------------------------------------------------------------------------


def test_best_of_worked_by_hand(honest_map: ModuleType) -> None:
    """One of four at the optimum: two of the four miss it in C(3, 2) of C(4, 2) = 6 cases."""
    assert honest_map.best_of(4, 1, 2) == pytest.approx(0.5)
    assert honest_map.best_of(4, 3, 1) == pytest.approx(0.75)
    assert honest_map.best_of(4, 0, 4) == 0.0
    assert honest_map.best_of(4, 1, 4) == 1.0


def test_sign_test_worked_by_hand(honest_map: ModuleType) -> None:
    """Five heads of five; four or five of five, (5 + 1) / 32; no toss at all."""
    assert honest_map.discordance_p(5, 0) == pytest.approx(1 / 32)
    assert honest_map.discordance_p(4, 1) == pytest.approx(6 / 32)
    assert honest_map.discordance_p(0, 5) == pytest.approx(1.0)
    assert honest_map.discordance_p(0, 0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((5, 0, 9, 2), "win"),
        ((4, 0, 9, 2), "tie"),
        ((0, 5, 4, 2), "lose"),  # less often
        ((0, 0, 10, 10), "lose"),  # as often, in half the time
        ((0, 0, 10, 9), "tie"),
    ],
)
def test_verdicts(honest_map: ModuleType, counts: tuple[int, ...], verdict: str) -> None:
    assert honest_map.judge(*counts) == verdict


def test_cell_worked_by_hand(honest_map: ModuleType, map_cells: ModuleType, measured: Any) -> None:
    """The second data set is one that only the default call solves, the third one that all do."""
    lonely = replace(measured, random=(-20.0,) * 10)
    easy = replace(measured, random=(-10.0,) * 10, truth=-10.0, moments=-10.9)
    cell = map_cells.MapCell("poisson", "rare", 8, 2, 10)
    row = honest_map.summarise(cell, [measured, lonely, easy])
    assert (row["default"], row["same time"], row["half time"]) == (3, 2, 1)
    assert (row["for"], row["against"], row["data sets"]) == (1, 0, 3)
    assert (row["for, truth"], row["against, truth"]) == (0, 0)
    assert row["1 random"] == pytest.approx(0.2 + 0.0 + 1.0)
    assert row["3 random"] == pytest.approx(1.0 - 56 / 120 + 1.0)  # C(8, 3) of C(10, 3) miss
    assert row["10 random"] == pytest.approx(2.0)
    assert (row["moments"], row["truth"]) == (1, 1)
    assert (row["time in starts"], row["all s"], row["verdict"]) == (5.6, 60.0, "tie")
    none = honest_map.summarise(cell, [replace(measured, moments=None)])
    assert none["moments"] is None


def test_data_sets_are_told_apart_by_the_start_at_the_truth(
    honest_map: ModuleType, map_cells: ModuleType, measured: Any
) -> None:
    """Two of three that only the default call solves have the truth's maximum as the best."""
    lonely = replace(measured, random=(-20.0,) * 10)
    sound = replace(lonely, truth=-10.2)
    cell = map_cells.MapCell("poisson", "rare", 8, 2, 10)
    row = honest_map.summarise(cell, [sound, lonely, sound])
    assert (row["for"], row["for, truth"], row["truth"]) == (3, 2, 2)
    lost = replace(sound, default=-50.0, random=(-10.2,) * 10)
    row = honest_map.summarise(cell, [lost, replace(lost, truth=-40.0)])
    assert (row["against"], row["against, truth"]) == (2, 1)


def test_pooling_adds_up_and_judges_again(
    honest_map: ModuleType, map_cells: ModuleType, measured: Any
) -> None:
    """Three cells of two lonely wins each: none wins alone, all together do."""
    lonely = replace(measured, random=(-20.0,) * 10)
    cells = [map_cells.MapCell("poisson", w, 8, 2, 10) for w in map_cells.WEIGHTS]
    rows = [honest_map.summarise(cell, [lonely, lonely]) for cell in cells]
    rows[0]["moments"] = None
    assert [row["verdict"] for row in rows] == ["tie"] * 3
    (pooled,) = honest_map.pool(rows, ["family", "d"])
    assert (pooled["family"], pooled["d"], pooled["data sets"]) == ("poisson", 8, 6)
    assert (pooled["cells: tie"], pooled["cells: win"]) == (3, 0)
    assert (pooled["default"], pooled["same time"], pooled["moments"]) == (1.0, 0.0, 0.0)
    assert (pooled["p"], pooled["verdict"]) == (pytest.approx(1 / 64), "win")
    assert [row["weights"] for row in honest_map.pool(rows, ["weights"])] == [*map_cells.WEIGHTS]


# --- the record and the case study ---------------------------------------------------------------


@pytest.fixture
def measured_in_no_time(
    honest_map: ModuleType, measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(honest_map, "measure", lambda cell, seed: measured)


def test_stored_map_is_that_of_the_grid(
    honest_map: ModuleType, map_cells: ModuleType, study_module: ModuleType
) -> None:
    """Every cell is there, and its verdict follows from its counts."""
    cells = study_module.load_record().cells
    assert [
        (row["family"], row["weights"], row["d"], row["r"], row["rows per parameter"], row["n"])
        for row in cells
    ] == [
        (
            *(cell.family, cell.weights, cell.n_features, cell.n_components),
            *(cell.rows_per_parameter, cell.mixture.n_obs),
        )
        for cell in map_cells.CELLS
    ]
    for row in cells:
        names = ("for", "against", "default", "half time")
        assert row["verdict"] == honest_map.judge(*(row[name] for name in names))
        assert row["default"] - row["same time"] == row["for"] - row["against"]
        assert row["half time"] <= row["same time"] <= row["data sets"]


def test_missing_record_says_how_to_make_one(study_module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"Write one with `python -m benchmarks honest_map`"
    ):
        study_module.load_record(tmp_path / "honest_map.json")


@pytest.mark.usefixtures("measured_in_no_time")
def test_study_prints_its_tables_and_writes_the_map(
    study_module: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert study_module.main(["--quick", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Honest map: 6 cells, 6 data sets, 2 minutes of CPU time")
    assert f"figure: {tmp_path / 'map.png'}" in printed
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.usefixtures("measured_in_no_time")
def test_map_shows_counts_and_verdicts(study_module: ModuleType) -> None:
    study = study_module.run_study(quick=True)
    study.cells[0].update({"for": 0, "against": 7, "default": 2, "same time": 9, "verdict": "lose"})
    study.cells[1].update({"verdict": "win", "moments": None})
    panels = study_module.draw_map(study).axes
    assert len(panels) == len({cell["family"] for cell in study.cells})
    texts = [text.get_text() for text in panels[0].texts]
    assert {"2 : 9", "1 : 1", "moments 0, \u00d76", "no moments, \u00d76", "rare weights"} <= set(
        texts
    )
    colours = [study_module.COLOURS[kind] for kind in ("lose, worse", "win", "tie")]
    assert [rgb(patch.get_facecolor()) for patch in panels[0].patches] == [*map(rgb, colours)]


def rgb(colour: Any) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def test_readme_quotes_what_the_script_prints(study_module: ModuleType) -> None:
    readme = (ROOT / "case_studies" / "honest_map" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(.*?)```", readme, flags=re.DOTALL)
    assert block.splitlines() == study_module.findings(study_module.load_record())


def test_chance_wins_worked_by_hand(honest_map: ModuleType) -> None:
    """Of five discordant data sets all must agree, 1/32; four can never be enough."""
    rows = [{"for": 3, "against": 2}, {"for": 4, "against": 0}, {"for": 0, "against": 0}]
    assert honest_map.chance_wins(rows) == pytest.approx(1 / 32)


def test_record_is_a_full_run() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert (record["benchmark"], record["is_quick"]) == ("honest_map", False)
