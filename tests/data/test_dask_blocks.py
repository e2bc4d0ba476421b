"""Collections of Dask are cut into blocks of the same rows."""

from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import compute
from numpy.testing import assert_array_equal

from moment_init.data.dask_rows import align_blocks

VALUES = np.arange(60.0).reshape(20, 3)
FRAME = pd.DataFrame(VALUES, columns=["a", "b", "y"])


def _columns(blocks: Any) -> list[Any]:
    """Every column whole; its blocks hold the same rows as those of the first."""
    per_block = [[np.asarray(part) for part in parts] for parts in compute(blocks)[0]]
    for parts in per_block:
        assert len({len(part) for part in parts}) == 1
    return [np.concatenate(column) for column in zip(*per_block, strict=True)]


@pytest.mark.parametrize("y_chunks", [20, 3, (1, 19)])
def test_arrays_are_cut_as_the_first(y_chunks: Any) -> None:
    X = da.from_array(VALUES[:, :2], chunks=(7, 1))
    y = da.from_array(VALUES[:, 2], chunks=y_chunks if isinstance(y_chunks, int) else (y_chunks,))
    blocks = align_blocks({"X": X, "y": y, "offset": VALUES[:, 0]})
    assert len(blocks) == 3
    found = _columns(blocks)
    for column, expected in zip(found, (VALUES[:, :2], VALUES[:, 2], VALUES[:, 0]), strict=True):
        assert_array_equal(column, expected)


def test_frames_of_unknown_sizes() -> None:
    frame = dd.from_pandas(FRAME, npartitions=4)
    frame = frame[frame["a"] != 9.0]  # nothing is known of sizes any more
    kept = FRAME["a"] != 9.0
    X, y = _columns(align_blocks({"X": frame[["a", "b"]], "y": frame["y"]}))
    assert_array_equal(X, VALUES[kept, :2])
    assert_array_equal(y, VALUES[kept, 2])
    X, y = _columns(align_blocks({"X": frame[["a", "b"]], "y": VALUES[kept, 2]}))
    assert_array_equal(y, VALUES[kept, 2])


def test_small_files_are_not_joined_for_one_column_only(tmp_path: Path) -> None:
    many = pd.DataFrame(np.random.default_rng(1).normal(size=(100, 21)))
    many.columns = [f"x{index}" for index in range(20)] + ["y"]
    for number in range(10):
        many.iloc[10 * number : 10 * number + 10].to_parquet(tmp_path / f"{number}.parquet")
    frame = dd.read_parquet(tmp_path)
    X, y = _columns(align_blocks({"X": frame[list(many.columns[:20])], "y": frame["y"]}))
    assert_array_equal(X, many.to_numpy()[:, :20])
    assert_array_equal(y, many["y"])


def test_blocks_that_cannot_be_matched_raise() -> None:
    frame = dd.from_pandas(FRAME, npartitions=4)
    other = dd.from_pandas(FRAME, npartitions=2)
    with pytest.raises(ValueError, match=r"`y` must be cut into the same blocks as `X` \(4\)"):
        align_blocks({"X": frame[["a", "b"]], "y": other["y"]})
    X = da.from_array(VALUES[:, :2], chunks=(7, 2))
    with pytest.raises(ValueError, match=r"`y` must have one row for each of `X` \(20\); got 19"):
        align_blocks({"X": X, "y": da.ones(19)})
