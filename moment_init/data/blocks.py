"""Sums over rows, block by block.

Every moment is a sum over rows, so nothing larger than a few blocks of transformed rows is ever
held. Blocks go to as many threads as there are cores, each with single-threaded BLAS: the products
are too small for BLAS to divide among cores itself. The partition depends on the shape of the data
alone, and partial sums are added in order: the same rows give the same bits on any machine size.
Functions multiply by `numpy.dot`, which lets other threads run whatever the size of the product;
``@`` does so only for products of 500 elements or more (NumPy 2.5).

Rows that are not in memory come from a `RowSource`, which runs the same functions where they are.

Some of many rows: random samples, and an order in which every run of rows is a fair sample.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from moment_init.checks import FloatArray

BlockSums = tuple[FloatArray, ...]

# A block of transformed rows should stay in a core's second-level cache (1 to 2 MiB) with what is
# computed from it; 2**18 doubles are 2 MiB.
CACHE_DOUBLES = 2**18

# Fewer rows than this and Python's overhead per block is larger than the arithmetic, unless a row
# is long: a block with so many times the cache's doubles takes milliseconds whatever its rows.
MIN_BLOCK_ROWS = 512
MOST_CACHES = 4

# Threads take turns in Python's interpreter between array operations: where these are short, as in
# functions that map rows and form no large products, two threads are no faster than one. Blocks of
# such light functions have so many times the cache's doubles: they stay in a third-level cache.
LIGHT_CACHES = 8

# Rows are divided into this many parts, each summed by one thread, and each made of several blocks
# spread over the rows.
N_PARTS = 16
BLOCKS_PER_PART = 8

# Fewer doubles than this are summed in some five milliseconds, and starting threads takes one.
SERIAL_DOUBLES = 2**21


class RowSource(ABC):
    """Rows that are not in memory, over which functions are summed where the rows are."""

    __slots__ = ()

    @abstractmethod
    def sum_rows(self, function: Callable[[slice], BlockSums], doubles_per_row: int) -> BlockSums:
        """Add up what a function returns for slices of rows."""

    @abstractmethod
    def sum_parts(self, function: Callable[[slice], BlockSums], n_blocks: int) -> BlockSums:
        """Add up what a function returns, separately for each part of the rows."""


def source_of(*columns: Any) -> RowSource | None:
    """Say where the rows of some columns are."""
    for column in columns:
        source: RowSource | None = getattr(column, "source", None)
        if source is not None:
            return source
    return None


def row_blocks(n_obs: int, doubles_per_row: int) -> Iterator[slice]:
    """Cut rows into blocks that fit the cache."""
    block_rows = _block_rows(doubles_per_row)
    for start in range(0, n_obs, block_rows):
        yield slice(start, min(start + block_rows, n_obs))


def sum_over_blocks(
    function: Callable[[slice], BlockSums],
    n_obs: int,
    doubles_per_row: int,
    *,
    is_light: bool = False,
    source: RowSource | None = None,
) -> BlockSums:
    """Add up what a function returns for each block of rows."""
    if source is not None:
        return source.sum_rows(function, doubles_per_row)
    if n_obs * doubles_per_row < SERIAL_DOUBLES:
        with single_threaded_blas():
            return add_sums(function(rows) for rows in row_blocks(n_obs, doubles_per_row))
    # Blocks of wide rows are long enough: a block of few of them is larger than the cache.
    is_longer = is_light and _block_rows(doubles_per_row) > MIN_BLOCK_ROWS
    width = -(-doubles_per_row // LIGHT_CACHES) if is_longer else doubles_per_row
    blocks = _equal_blocks(n_obs, width, at_least=N_PARTS)
    return add_sums(_part_sums(function, blocks, is_threaded=True))


def sums_by_part(
    function: Callable[[slice], BlockSums],
    n_obs: int,
    doubles_per_row: int,
    *,
    is_shuffled: bool = False,
    source: RowSource | None = None,
) -> BlockSums:
    """Add up what a function returns, separately for each of 16 parts of the rows.

    Sums that leave one part out then cost nothing: the material of a jackknife.
    """
    at_least = N_PARTS if is_shuffled else min(n_obs, N_PARTS * BLOCKS_PER_PART)
    blocks = _equal_blocks(n_obs, doubles_per_row, at_least=at_least)
    if source is not None:
        return source.sum_parts(function, len(blocks))
    is_threaded = n_obs * doubles_per_row >= SERIAL_DOUBLES
    parts = list(_part_sums(function, blocks, is_threaded=is_threaded))
    return tuple(np.stack(terms) for terms in zip(*parts, strict=True))


def _part_sums(
    function: Callable[[slice], BlockSums], blocks: list[slice], *, is_threaded: bool
) -> Iterator[BlockSums]:
    """Sums over each part of the blocks in order, a thread a part."""

    def sum_part(part: int) -> BlockSums:
        return add_sums(function(rows) for rows in blocks[part::N_PARTS])

    n_workers = min(N_PARTS, os.cpu_count() or 1) if is_threaded else 1
    with single_threaded_blas():
        if n_workers == 1:
            yield from map(sum_part, range(N_PARTS))
            return
        with ThreadPoolExecutor(n_workers) as executor:
            yield from executor.map(sum_part, range(N_PARTS))


def _block_rows(doubles_per_row: int) -> int:
    """Rows of a block: as many as the cache holds, and not so few that Python's overhead shows."""
    width = max(1, doubles_per_row)
    smallest = min(MIN_BLOCK_ROWS, MOST_CACHES * CACHE_DOUBLES // width)
    return max(CACHE_DOUBLES // width, smallest, 1)


def _equal_blocks(n_obs: int, doubles_per_row: int, *, at_least: int) -> list[slice]:
    """Blocks of equal size that fit the cache, and at least so many of them."""
    n_blocks = max(-(-n_obs // _block_rows(doubles_per_row)), at_least)
    bounds = [n_obs * block // n_blocks for block in range(n_blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def read_block(X: NDArray[np.generic], rows: slice | NDArray[np.intp]) -> FloatArray:
    """Read a block of rows as double precision, whatever the stored type."""
    return np.asarray(X[rows], dtype=np.float64)


def add_sums(terms: Iterator[BlockSums]) -> BlockSums:
    """Add tuples of arrays, in order."""
    totals = tuple(np.array(term, dtype=np.float64) for term in next(terms))
    for term in terms:
        for total, part in zip(totals, term, strict=True):
            total += part
    return totals


_blas_lock = threading.Lock()
_blas_users = 0
_blas_restorers: list[Callable[[], None]] = []


@cache
def _blas_controller() -> ThreadpoolController:
    """The BLAS libraries of NumPy and SciPy; finding them takes a hundred times their setting."""
    return ThreadpoolController()


def _limit_blas() -> None:
    limiter = _blas_controller().limit(limits=1, user_api="blas")
    _blas_restorers.append(limiter.restore_original_limits)


def _in_own_thread(function: Callable[[], None]) -> None:
    """Call a function from a thread that ends with it.

    A thread that has set BLAS's threads owns the setting while it lives, and others' calls are
    ignored (threadpoolctl 3.8): the last caller could not restore what the first has set.
    """
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS to one thread; the last of several callers at once restores what was set before."""
    global _blas_users
    with _blas_lock:
        _blas_users += 1
        if _blas_users == 1:
            _in_own_thread(_limit_blas)
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _in_own_thread(_blas_restorers.pop())


# Multiples of the golden ratio, modulo one, are the most evenly spread of all such sequences.
GOLDEN_SHARE = (np.sqrt(5.0) - 1.0) / 2.0


def sample_rows(n_obs: int, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows: one at random from each of many runs of rows of the same length.

    Every row has the same probability, and the time depends on `size` alone.
    """
    # -> (min(size, n_obs),)
    if size >= n_obs:
        return np.arange(n_obs)
    bounds = np.arange(size + 1) * n_obs // size
    return np.asarray(rng.integers(bounds[:-1], bounds[1:]), dtype=np.intp)


def resample_rows(weights: FloatArray, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows in proportion to their weights, for what knows no weights."""
    # weights: (n_obs,) -> (min(size, n_obs),)
    size = min(size, len(weights))
    if np.all(weights == weights[0]):
        return sample_rows(len(weights), size, rng)
    ends = np.cumsum(weights) / weights.sum()
    points = (np.arange(size) + rng.uniform()) / size
    return np.minimum(np.searchsorted(ends, points), len(weights) - 1)


def spread_order(n_obs: int) -> NDArray[np.intp]:
    """Order rows so that every run of them is spread evenly over all rows.

    The i-th row is i times a, modulo n, with a close to the golden share of n and prime to it. A
    run is then a fair sample of rows that came sorted, and of rows that came in short cycles.
    """
    # -> (n_obs,)
    step = max(1, round(GOLDEN_SHARE * n_obs))
    while gcd(step, n_obs) > 1:
        step -= 1
    return np.asarray(np.arange(n_obs) * step % n_obs, dtype=np.intp)
