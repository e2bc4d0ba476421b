"""Sums over blocks of rows: every row once, in order, the same bits, any stored type."""

from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_info

from moment_init.data.blocks import (
    read_block,
    row_blocks,
    sum_over_blocks,
    sums_by_part,
    sums_of_parts,
)
from tests.population import FloatArray

# Wide rows make blocks of 512 rows, four times the cache: 20,000 rows are then 40 blocks, enough
# for threads.
WIDE = 2**11
MANY_ROWS = 20_000


def blas_threads() -> list[int]:
    return [int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_blocks_by_hand() -> None:
    """1,200 wide rows are two blocks of the least size, 512, and the 176 rows that are left."""
    assert list(row_blocks(1200, WIDE)) == [slice(0, 512), slice(512, 1024), slice(1024, 1200)]


@pytest.mark.parametrize(("doubles_per_row", "n_rows"), [(2**13, 128), (2**19, 2), (2**30, 1)])
def test_very_wide_rows_come_in_smaller_blocks(doubles_per_row: int, n_rows: int) -> None:
    """A block holds at most 2**20 doubles, or a single row: a row may be a group of many."""
    blocks = list(row_blocks(1000, doubles_per_row))
    assert blocks[0] == slice(0, n_rows)


def test_narrow_rows_come_in_larger_blocks() -> None:
    """A block holds 2**18 doubles: 2,048 rows of 128 doubles each."""
    assert list(row_blocks(3000, 128)) == [slice(0, 2048), slice(2048, 3000)]


@pytest.mark.parametrize("n_obs", [1, 511, 512, 513, 5000])
@pytest.mark.parametrize("doubles_per_row", [0, 1, 100, WIDE])
def test_blocks_cover_every_row_once(n_obs: int, doubles_per_row: int) -> None:
    covered = np.concatenate(
        [np.arange(n_obs)[rows] for rows in row_blocks(n_obs, doubles_per_row)]
    )
    assert_array_equal(covered, np.arange(n_obs))


@pytest.mark.parametrize("n_obs", [3, 700, MANY_ROWS])
def test_sums_equal_plain_sums(n_obs: int, rng: np.random.Generator) -> None:
    X = rng.standard_normal((n_obs, 3))

    def block_sums(rows: slice) -> tuple[FloatArray, ...]:
        return X[rows].sum(axis=0), X[rows].T @ X[rows], np.asarray(float(len(X[rows])))

    first, second, count = sum_over_blocks(block_sums, n_obs, WIDE)
    # Sums of n terms of size one, each added with a rounding of 2e-16.
    assert_allclose(first, X.sum(axis=0), rtol=0, atol=1e-15 * n_obs)
    assert_allclose(second, X.T @ X, rtol=0, atol=1e-15 * n_obs)
    assert count == n_obs


def test_light_functions_get_long_blocks() -> None:
    """Blocks of eight caches, of which there are as many as threads can share all the same."""
    lengths: dict[bool, list[int]] = {False: [], True: []}
    for is_light, seen in lengths.items():

        def block_sums(rows: slice, seen: list[int] = seen) -> tuple[FloatArray, ...]:
            seen.append(rows.stop - rows.start)
            return (np.asarray(1.0),)

        sum_over_blocks(block_sums, 2**20, 2**6, is_light=is_light)
    assert {each: (len(seen), sum(seen)) for each, seen in lengths.items()} == {
        False: (256, 2**20),
        True: (32, 2**20),
    }


def test_same_rows_same_bits(rng: np.random.Generator) -> None:
    X = rng.standard_normal((MANY_ROWS, 5))
    sums = [sum_over_blocks(lambda rows: (X[rows].T @ X[rows],), MANY_ROWS, WIDE) for _ in range(5)]
    for again in sums[1:]:
        assert_array_equal(again[0], sums[0][0])


@pytest.mark.parametrize("n_obs", [600, MANY_ROWS])
def test_what_the_function_returns_is_not_changed(n_obs: int) -> None:
    returned = np.ones(2)
    calls: list[slice] = []

    def same_array(rows: slice) -> tuple[FloatArray, ...]:
        calls.append(rows)
        return (returned,)

    (total,) = sum_over_blocks(same_array, n_obs, WIDE)
    assert_array_equal(returned, [1.0, 1.0])
    assert_array_equal(total, np.full(2, len(calls)))


def test_blocks_may_write_their_own_rows() -> None:
    target = np.zeros(MANY_ROWS)

    def write(rows: slice) -> tuple[FloatArray, ...]:
        target[rows] = np.arange(MANY_ROWS)[rows]
        return ()

    assert sum_over_blocks(write, MANY_ROWS, WIDE) == ()
    assert_array_equal(target, np.arange(MANY_ROWS))


def test_blas_threads_are_restored_after_callers_at_once(rng: np.random.Generator) -> None:
    X = rng.standard_normal((MANY_ROWS, 4))
    before = blas_threads()

    def total(_: int) -> FloatArray:
        return sum_over_blocks(lambda rows: (X[rows].T @ X[rows],), MANY_ROWS, WIDE)[0]

    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(total, range(8)))
    for result in results[1:]:
        assert_array_equal(result, results[0])
    assert blas_threads() == before


def test_an_error_in_a_block_arrives_and_restores_blas() -> None:
    before = blas_threads()

    def fail(rows: slice) -> tuple[FloatArray, ...]:
        raise RuntimeError(f"block at {rows.start}")

    with pytest.raises(RuntimeError, match="block at 0"):
        sum_over_blocks(fail, MANY_ROWS, WIDE)
    assert blas_threads() == before


def test_block_of_doubles_is_a_view(rng: np.random.Generator) -> None:
    X = rng.standard_normal((10, 2))
    assert np.shares_memory(read_block(X, slice(2, 5)), X)


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, np.bool_])
def test_other_types_are_read_as_doubles(dtype: Any) -> None:
    X = np.array([[1, 0], [0, 1], [1, 1]]).astype(dtype)
    block = read_block(X, slice(1, 3))
    assert block.dtype == np.float64
    assert_array_equal(block, [[0.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize("n_obs", [16, 700, MANY_ROWS])
def test_sums_by_part_cover_the_rows_and_spread_them(n_obs: int) -> None:
    values = np.arange(float(n_obs))
    sums, counts = sums_by_part(
        lambda rows: (np.asarray(values[rows].sum()), np.asarray(float(len(values[rows])))),
        n_obs,
        WIDE,
    )
    assert sums.sum() == values.sum()  # whole numbers: no rounding
    assert counts.sum() == n_obs
    assert counts.min() >= n_obs // 16 - 8
    if n_obs > 16:  # rows that come sorted are spread over all parts
        means = sums / counts
        assert np.ptp(means) < 0.15 * n_obs


@pytest.mark.parametrize("n_features", [3, 2_000])
def test_sums_of_parts_by_hand(n_features: int) -> None:
    """Few doubles are summed in one call, and many some parts at a time."""
    table = np.random.default_rng(0).standard_normal((16, 50, n_features))
    calls: list[slice] = []

    def column_sums(parts: slice) -> tuple[FloatArray, ...]:
        calls.append(parts)
        return table[parts].sum(axis=1), table[parts].sum(axis=(1, 2))

    sums, totals = sums_of_parts(column_sums, 50, n_features)
    assert (len(calls) == 1) == (n_features == 3)
    assert_allclose(sums, table.sum(axis=1))
    assert_allclose(totals, table.sum(axis=(1, 2)))


def test_few_doubles_are_summed_by_the_calling_thread() -> None:
    """2**21 doubles are worth threads, one row less is not."""
    threads: set[int] = set()

    def record(rows: slice) -> tuple[FloatArray, ...]:
        threads.add(get_ident())
        return (np.zeros(1),)

    sum_over_blocks(record, 2**12 - 1, 2**9)
    sums_by_part(record, 2**12 - 1, 2**9)
    assert threads == {get_ident()}


def test_blas_is_held_to_one_thread_in_every_sum() -> None:
    """The bits do not depend on how many threads BLAS would use."""
    seen: list[int] = []

    def record(rows: slice) -> tuple[FloatArray, ...]:
        seen.extend(blas_threads())
        return (np.zeros(1),)

    sum_over_blocks(record, 100, 4)
    sums_by_part(record, 100, 4)
    assert set(seen) == {1}


@pytest.mark.parametrize("index", [slice(3, 6), np.array([5, 0, 5])])
def test_rows_are_read_by_slice_and_by_index(index: Any) -> None:
    X = np.arange(20).reshape(10, 2)
    assert_array_equal(read_block(X, index), X[index].astype(float))
