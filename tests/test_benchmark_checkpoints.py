"""Long benchmarks keep what they have measured."""

import argparse
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEYS = [("poisson", 0), ("poisson", 1), ("gaussian", 0)]


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.checkpoints")


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.__main__")


class Measurement:
    """Counts its calls, and breaks off at one of them."""

    def __init__(self, broken: int | None = None) -> None:
        self.keys: list[Any] = []
        self.broken = broken

    def __call__(self, key: Any) -> dict[str, Any]:
        if len(self.keys) == self.broken:
            raise KeyboardInterrupt
        self.keys.append(key)
        return {"name": key[0], "value": key[1] + 0.1, "none": None, "infinite": float("inf")}


def test_run_that_was_cut_goes_on_where_it_stopped(checkpoints: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.jsonl"
    first = Measurement(broken=2)
    with pytest.raises(KeyboardInterrupt):
        list(checkpoints.Checkpoint(path).measure(KEYS, first))
    second = Measurement()
    resumed = list(checkpoints.Checkpoint(path).measure(KEYS, second))
    assert (first.keys, second.keys) == (KEYS[:2], KEYS[2:])
    assert resumed == list(checkpoints.Checkpoint().measure(KEYS, Measurement()))


def test_line_that_was_cut_is_measured_again(checkpoints: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    whole = list(checkpoints.Checkpoint(path).measure(KEYS, Measurement()))
    path.write_text(path.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    again = Measurement()
    assert list(checkpoints.Checkpoint(path).measure(KEYS, again)) == whole
    assert again.keys == KEYS[2:]
    assert len(checkpoints.Checkpoint(path)._known) == 3


def test_nothing_new_is_measured_once_the_time_is_over(
    checkpoints: ModuleType, tmp_path: Path
) -> None:
    """What is known is still reported, so that the record of a cut run has it."""
    path = tmp_path / "kept.jsonl"
    known = list(checkpoints.Checkpoint(path).measure(KEYS[1:2], Measurement()))
    late, measurement = checkpoints.Checkpoint(path, seconds=0.0), Measurement()
    assert list(late.measure(KEYS, measurement)) == known
    assert (measurement.keys, late.n_left_out) == ([], 2)
    late.discard()
    assert not path.exists()


def test_checkpoints_are_of_one_seed_and_code(
    command_line: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def path(seed: int) -> Path:
        parsed = argparse.Namespace(quick=False, seed=seed, minutes=1.0)
        kept: Path = command_line._checkpoint("calibration", parsed).path
        return kept

    first, other_seed = path(1), path(2)
    assert path(1) == first
    monkeypatch.setattr(command_line, "code_digest", lambda: "0" * 12)
    assert len({first, other_seed, path(1)}) == 3
    assert command_line._checkpoint("any", argparse.Namespace(quick=True)).path is None


@pytest.mark.parametrize(("n_left_out", "is_kept"), [(0, False), (2, True)])
def test_record_says_what_was_left_out(
    command_line: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    n_left_out: int,
    is_kept: bool,
) -> None:
    """The file of measurements is removed once the record is complete."""
    report = importlib.import_module("benchmarks.report")

    def run(options: Any) -> Any:
        options.checkpoint.deadline = float("inf")
        rows = tuple(options.checkpoint.measure(KEYS[n_left_out:], Measurement()))
        options.checkpoint.n_left_out = n_left_out
        return report.Outcome(rows, (report.Figure("rows", len(rows)),), {"size": 1})

    monkeypatch.setattr(command_line, "FOLDER", tmp_path)
    monkeypatch.setattr(
        command_line, "BENCHMARKS", {"long": report.Benchmark("long", "takes its time", run)}
    )
    assert command_line.main(["long", "--seed", "3"]) == 0
    record = json.loads((tmp_path / "results" / "long.json").read_text(encoding="utf-8"))
    assert ("left out for lack of time" in record["settings"]) is is_kept
    assert any((tmp_path / "output").glob("long-3-*.jsonl")) is is_kept
