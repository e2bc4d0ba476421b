"""Columns of rows that are elsewhere behave as arrays do, as far as no rows are needed."""

from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from moment_init.data.blocks import source_of, sum_over_blocks, sums_by_part
from moment_init.row_sources.columns import Constant, RowColumn, Stored, map_columns, take_rows
from moment_init.row_sources.dask_blocks import DaskBlocks, align_blocks
from moment_init.row_sources.sources import BlockedRows

SIZES = (7, 0, 1, 40, 13)
N_OBS = sum(SIZES)
VALUES = np.random.default_rng(1).normal(size=(N_OBS, 3))
WEIGHTS = np.random.default_rng(2).integers(3, size=N_OBS).astype(float)


def _reader() -> DaskBlocks:
    table = da.from_array(VALUES, chunks=(SIZES, 3))
    return align_blocks({"X": table, "sample_weight": WEIGHTS})


def _source(*, is_counted: bool = False, stride: int = 1) -> BlockedRows:
    edges = np.cumsum((0, *SIZES))
    sizes = np.array(SIZES)
    if is_counted:
        kept = WEIGHTS > 0.0
        sizes = np.array([kept[a:b].sum() for a, b in pairwise(edges)])
    source = BlockedRows(_reader(), sizes, 4, Stored(1) if is_counted else None)
    return source.thinned(stride)


def _rows(values: NDArray[Any], *, is_counted: bool, stride: int) -> NDArray[Any]:
    return (values[WEIGHTS > 0.0] if is_counted else values)[::stride]


@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3, 9, 50])
def test_rows_are_those_of_an_array(is_counted: bool, stride: int) -> None:
    source = _source(is_counted=is_counted, stride=stride)
    table, weights = RowColumn(source, Stored(0), 3), RowColumn(source, Stored(1))
    expected = _rows(VALUES, is_counted=is_counted, stride=stride)
    own = _rows(WEIGHTS, is_counted=is_counted, stride=stride)
    assert table.shape == expected.shape
    assert len(weights) == len(own)
    index = np.random.default_rng(3).integers(len(expected), size=30)  # repeated, in no order
    assert_array_equal(table[index], expected[index])
    assert_array_equal(weights[index, None], own[index, None])
    assert_array_equal(table[::2], expected[::2])
    assert table[0].tolist() == expected[0].tolist()
    assert_allclose(weights.sum(), own.sum())
    assert_allclose(table.sum(axis=0), expected.sum(axis=0))
    assert weights.max() == own.max()


def test_functions_of_columns_are_columns() -> None:
    source = _source()
    table, weights = RowColumn(source, Stored(0), 3), RowColumn(source, Stored(1))
    scaled = np.square((table - VALUES.mean(axis=0)) / 2.0)
    assert isinstance(scaled, RowColumn)
    expected = np.square((VALUES - VALUES.mean(axis=0)) / 2.0)
    assert_allclose(scaled[np.arange(N_OBS)], expected)
    assert_allclose(-weights @ scaled.sum(axis=1), -WEIGHTS @ expected.sum(axis=1))
    assert_allclose(weights.std(), WEIGHTS.std())
    assert (weights > 0.0).dtype == np.bool_
    doubled = map_columns(lambda x, w: x * w[:, None], table, weights, n_columns=3)
    assert_allclose(doubled[np.arange(5)], (VALUES * WEIGHTS[:, None])[:5])


def test_a_constant_is_never_read() -> None:
    ones = RowColumn(BlockedRows(DaskBlocks([[]]), np.array([5, 6]), 1), Constant(1.0))
    assert ones.sum() == 11.0
    assert np.square(2.0 * ones).sum() == 44.0
    assert_array_equal(ones[np.array([3, 1])], np.ones(2))
    assert (2.0 * ones).constant == 2.0


def test_nothing_is_read_whole_by_accident() -> None:
    table = RowColumn(_source(), Stored(0), 3)
    with pytest.raises(TypeError, match="must not be read whole"):
        np.asarray(table)
    with pytest.raises(TypeError, match="by number or as every so manieth"):
        table[2:5]
    with pytest.raises(IndexError, match="out of bounds"):
        table[len(table)]
    with pytest.raises(TypeError, match="by number or as every so manieth"):
        take_rows([table], slice(0, 5))
    with pytest.raises(TypeError):
        np.linalg.norm(table, axis=1)
    with pytest.raises(TypeError, match="of the same rows"):
        table + RowColumn(_source(), Stored(0), 3)


def test_more_than_can_be_held_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moment_init.row_sources.columns.MOST_HELD", 40)
    monkeypatch.setattr("moment_init.row_sources.columns.SAMPLE_ROWS", 4)
    source = _source()
    table = RowColumn(source, Stored(0), 3)
    thinned = table[::2]
    assert isinstance(thinned, RowColumn)
    assert isinstance(RowColumn(source, Stored(1))[::2], RowColumn)  # with its table
    assert thinned.shape == VALUES[::2].shape
    assert_allclose(thinned.sum(axis=0), VALUES[::2].sum(axis=0))
    assert isinstance(table[::20], np.ndarray)


@pytest.mark.parametrize("is_counted", [False, True])
def test_sums_are_those_of_arrays(is_counted: bool) -> None:
    source = _source(is_counted=is_counted)
    expected = _rows(VALUES, is_counted=is_counted, stride=1)

    def product_sums(X: Any) -> Any:
        def sums(rows: slice) -> tuple[Any, ...]:
            x = X[rows]
            return x.T @ x, np.asarray(float(len(x)))

        return sums

    table = RowColumn(source, Stored(0), 3)
    assert source_of(None, table) is source
    gram, count = sum_over_blocks(product_sums(table), len(table), 3, source=source)
    assert_allclose(gram, expected.T @ expected)
    assert count == len(expected)
    parts = sums_by_part(product_sums(table), len(table), 3, source=source)
    in_memory = sums_by_part(product_sums(expected), len(expected), 3)
    for found, wanted in zip(parts, in_memory, strict=True):
        assert_allclose(found, wanted, atol=1e-13)


def test_an_array_of_all_rows_is_not_cut_by_blocks() -> None:
    n_obs = 2_000
    reader = align_blocks({"X": da.ones((n_obs, 1), chunks=(500, 1))})
    source = BlockedRows(reader, np.full(4, 500), 1)
    column, array = RowColumn(source, Stored(0), 1), np.ones(n_obs)
    with pytest.raises(TypeError, match=r"must not be mixed with an array of shape \(2000,\)"):
        sum_over_blocks(lambda rows: (array[rows] @ column[rows],), n_obs, 2, source=source)


def test_arrays_in_memory_are_taken_as_views() -> None:
    assert source_of(VALUES, None) is None
    taken, nothing = take_rows([VALUES, None], slice(None, None, 2))
    assert nothing is None
    assert np.shares_memory(taken, VALUES)
