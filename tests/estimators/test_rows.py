"""Rows of an estimator: what is checked, and how equal ones are merged."""

from typing import Any

import numpy as np
import pytest

from moment_init.data.checking import RegressionData
from moment_init.estimators.fitting import EstimatorRows, distinct_rows, refuses_negative
from moment_init.families.registry import FAMILIES, get_family


def estimator_rows(X: Any, y: Any, sample_weight: Any, **data: Any) -> EstimatorRows:
    """Rows of a linear model."""
    gating = data.pop("gating", None)
    names = tuple(f"x{k}" for k in range(X.shape[1]))
    block: dict[str, Any] = {"offset": None, "n_trials": None, "groups": None, **data}
    own = RegressionData(X, y, get_family("gaussian"), names, sample_weight=sample_weight, **block)
    return EstimatorRows(own, gating, () if gating is None else ("g0",))


def test_equal_rows_are_merged_by_hand() -> None:
    """(1, 5) occurs with weights 1 and 2, (0, 5) once; (1, 6) has another response."""
    rows = estimator_rows(
        X=np.array([[1.0], [0.0], [1.0], [1.0], [7.0]]),
        y=np.array([5.0, 5.0, 5.0, 6.0, 7.0]),
        sample_weight=np.array([1.0, 1.0, 2.0, 1.0, 0.0]),
    )
    merged = distinct_rows(rows).data
    assert merged.X.tolist() == [[0.0], [1.0], [1.0]]
    assert merged.y.tolist() == [5.0, 5.0, 6.0]
    assert merged.sample_weight.tolist() == [1.0, 3.0, 1.0]


@pytest.mark.parametrize("field", ["offset", "n_trials", "groups", "gating"])
def test_rows_that_differ_in_anything_are_kept_apart(field: str) -> None:
    values = np.array([1.0, 2.0, 1.0])
    own: dict[str, Any] = {field: values[:, None] if field == "gating" else values}
    rows = estimator_rows(X=np.ones((3, 2)), y=np.ones(3), sample_weight=np.ones(3), **own)
    merged = distinct_rows(rows)
    assert merged.data.sample_weight.tolist() == [2.0, 1.0]
    holder = merged if field == "gating" else merged.data
    assert np.ravel(getattr(holder, field)).tolist() == [1.0, 2.0]


def test_rows_that_differ_in_one_of_several_responses_are_kept_apart() -> None:
    y = np.asfortranarray([[1.0, 5.0], [1.0, 6.0], [1.0, 5.0]])
    merged = distinct_rows(estimator_rows(np.ones((3, 1)), y, np.ones(3), offset=y)).data
    assert merged.y.tolist() == np.asarray(merged.offset).tolist() == [[1.0, 5.0], [1.0, 6.0]]
    assert merged.sample_weight.tolist() == [2.0, 1.0]


@pytest.mark.parametrize("n_values", [3, 1_000_000])
def test_merged_rows_do_not_depend_on_order_or_repetition(n_values: int, seed: int) -> None:
    """Few values in the first column make ties, many make none."""
    rng = np.random.default_rng(seed)
    X, y = (
        rng.integers(n_values, size=(40, 3)).astype(float),
        rng.integers(2, size=40).astype(np.float64),
    )
    times = rng.integers(4, size=40)
    weights = times.astype(np.float64)
    shuffled = rng.permutation(40)
    weighted = distinct_rows(
        estimator_rows(X=X[shuffled], y=y[shuffled], sample_weight=weights[shuffled])
    )
    repeated = distinct_rows(
        estimator_rows(X=X.repeat(times, 0), y=y.repeat(times), sample_weight=np.ones(times.sum()))
    )
    for name in ("X", "y", "sample_weight"):
        np.testing.assert_array_equal(getattr(weighted.data, name), getattr(repeated.data, name))


def test_families_that_refuse_negative_responses() -> None:
    refusing = {name for name in FAMILIES if refuses_negative(name)}
    assert refusing == set(FAMILIES) - {"gaussian"}
    assert refuses_negative("nothing")
