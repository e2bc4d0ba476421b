"""The benchmark of one gradient runs at its small size and compares equal things."""

import importlib
import json
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module of `benchmarks`, which lies under the root and is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module(f"benchmarks.{name}")


def test_loop_by_hand_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row, y = 1, eta = (log 3, 0), weights 1/4 and 3/4: P = 3/16 + 6/16 = 9/16.

    Shares are 1/3 and 2/3, derivatives in eta 1/3 * 1/4 = 1/12 and 2/3 * 1/2 = 1/3.
    """
    benchmark = load("gradient_cost", monkeypatch)
    value, d_scale, d_bias, d_log_weight = benchmark._fused_loop(
        np.array([[2.0, 5.0]]),
        np.array([1]),
        np.array([np.log(3.0) / 2.0, 0.0]),
        np.zeros(2),
        np.log([0.25, 0.75]),
    )
    assert value == pytest.approx(math.log(9 / 16))
    np.testing.assert_allclose(d_log_weight, [1 / 3, 2 / 3])
    np.testing.assert_allclose(d_bias, [1 / 12, 1 / 3])
    np.testing.assert_allclose(d_scale, [2 / 12, 5 / 3])


def test_contestants_that_disagree_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load("gradient_cost", monkeypatch)
    right = (1.0, np.ones(2), np.ones(2), np.ones(2))
    wrong = (1.0, np.ones(2), np.array([1.0, 1.1]), np.ones(2))
    benchmark._check_agreement({benchmark.LOOP: right, "same": right})
    with pytest.raises(RuntimeError, match="'other' and 'loop by hand' disagree"):
        benchmark._check_agreement({benchmark.LOOP: right, "other": wrong})


@pytest.mark.slow
def test_quick_run_leaves_a_complete_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    command_line = load("__main__", monkeypatch)
    arguments = ["gradient_cost", "--quick", "--seed", str(seed), "--output", str(tmp_path)]
    assert command_line.main(arguments) == 0
    record = json.loads((tmp_path / "gradient_cost.json").read_text(encoding="utf-8"))
    assert len(record["rows"]) == 5
    assert all(math.isfinite(figure["value"]) for figure in record["figures"])
    assert {figure["bar"] for figure in record["figures"]} == {"<= 2"}
