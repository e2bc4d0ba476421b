"""Rows that are fitted and rows that are held out."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from moment_init.comparison.runs import BY_ROW, ComparedRows, check_rows, split_rows

N_OBS = 40


def split_data(rng: np.random.Generator, **given: Any) -> ComparedRows:
    X = pd.DataFrame(rng.standard_normal((N_OBS, 2)), columns=["a", "b"])
    y = pd.Series(np.arange(N_OBS) % 2, index=np.arange(N_OBS) + 100)
    return check_rows(X, y, {"family": "binomial", "link": None, **dict.fromkeys(BY_ROW), **given})


def test_split_leaves_every_row_on_one_side(rng: np.random.Generator) -> None:
    rows = split_data(rng, n_trials=1, offset=np.arange(N_OBS) / 10)
    training, held_out = split_rows(rows, 0.2, rng)
    assert held_out is not None
    assert (training.checked.n_obs, held_out.checked.n_obs) == (32, 8)
    assert_array_equal(np.sort([*training.numbers, *held_out.numbers]), np.arange(N_OBS))
    for part in (training, held_out):
        assert np.all(np.diff(part.numbers) > 0)
        assert_array_equal(part.checked.y, part.numbers % 2)
        assert_array_equal(part.y, part.numbers % 2)
        assert_array_equal(part.block["offset"], part.numbers / 10)
        assert_array_equal(part.X["a"], rows.X["a"].to_numpy()[part.numbers])
        assert part.block["n_trials"] == 1
        assert part.checked.n_trials is not None
        assert len(part.checked.n_trials) == part.n_units == len(part.numbers)


def test_split_keeps_groups_whole(rng: np.random.Generator) -> None:
    groups = np.array([f"g{row % 10}" for row in range(N_OBS)])
    gating = (np.arange(N_OBS) % 10).astype(float)
    rows = split_data(rng, n_trials=1, groups=groups, gating=gating)
    training, held_out = split_rows(rows, 0.3, rng)
    assert held_out is not None
    assert (training.n_units, held_out.n_units) == (7, 3)
    first, second = set(training.block["groups"]), set(held_out.block["groups"])
    assert not first & second
    assert first | second == set(groups)
    assert held_out.checked.gating is not None
    assert_array_equal(held_out.checked.gating[:, 0], held_out.numbers % 10)
    assert_array_equal(held_out.unit_weights, np.ones(3))


@pytest.mark.parametrize(("share", "expected"), [(1e-9, 1), (0.999, N_OBS - 1), (0.5, 20)])
def test_both_sides_of_a_split_have_rows(
    share: float, expected: int, rng: np.random.Generator
) -> None:
    _, held_out = split_rows(split_data(rng, n_trials=1), share, rng)
    assert held_out is not None
    assert held_out.checked.n_obs == expected


def test_no_share_holds_nothing_out(rng: np.random.Generator) -> None:
    rows = split_data(rng, n_trials=1)
    training, held_out = split_rows(rows, 0.0, rng)
    assert training is rows
    assert held_out is None


def test_rows_of_weight_zero_are_left_out(rng: np.random.Generator) -> None:
    weights = np.where(np.arange(N_OBS) % 4 == 0, 0.0, 2.0)
    rows = split_data(rng, n_trials=1, sample_weight=weights)
    assert rows.checked.n_obs == 30
    assert_array_equal(rows.numbers, np.flatnonzero(weights))
    assert_array_equal(rows.unit_weights, np.full(30, 2.0))
