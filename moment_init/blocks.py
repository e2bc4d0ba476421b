"""Sums over rows, block by block.

Every moment is a sum over rows, so nothing larger than a few blocks of transformed rows is ever
held. Blocks go to as many threads as there are cores, each with single-threaded BLAS: the products
are too small for BLAS to divide among cores itself. The partition depends on the shape of the data
alone, and partial sums are added in order: the same rows give the same bits on any machine size.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

__all__ = ["N_PARTS", "read_block", "row_blocks", "sum_over_blocks", "sums_by_part"]

FloatArray = NDArray[np.float64]
BlockSums = tuple[FloatArray, ...]

# A block of transformed rows should stay in a core's second-level cache (1 to 2 MiB) with what is
# computed from it; 2**18 doubles are 2 MiB.
CACHE_DOUBLES = 2**18

# Fewer rows than this and Python's overhead per block is larger than the arithmetic.
MIN_BLOCK_ROWS = 512

# Rows are divided into this many parts, each summed by one thread, and each made of several blocks
# spread over the rows.
N_PARTS = 16
BLOCKS_PER_PART = 8


def row_blocks(n_obs: int, doubles_per_row: int) -> Iterator[slice]:
    """Cut rows into blocks that fit the cache.

    Parameters
    ----------
    n_obs : int
        Number of rows.
    doubles_per_row : int
        How many doubles the caller derives from one row.

    Yields
    ------
    slice
        Consecutive slices that cover the rows once, in order.
    """
    block_rows = max(MIN_BLOCK_ROWS, CACHE_DOUBLES // max(1, doubles_per_row))
    for start in range(0, n_obs, block_rows):
        yield slice(start, min(start + block_rows, n_obs))


def sum_over_blocks(
    function: Callable[[slice], BlockSums], n_obs: int, doubles_per_row: int
) -> BlockSums:
    """Add up what a function returns for each block of rows.

    Parameters
    ----------
    function : callable
        Maps a slice of rows to a tuple of arrays, each a sum over those rows. It is called from
        several threads and may write to its own rows only.
    n_obs : int
        Number of rows.
    doubles_per_row : int
        How many doubles the function derives from one row; sets the size of the blocks.

    Returns
    -------
    tuple of numpy.ndarray
        The sums over all rows.
    """
    blocks = list(row_blocks(n_obs, doubles_per_row))
    if len(blocks) < N_PARTS:
        return _add(function(rows) for rows in blocks)
    return _add(_part_sums(function, n_obs, doubles_per_row))


def sums_by_part(
    function: Callable[[slice], BlockSums], n_obs: int, doubles_per_row: int
) -> BlockSums:
    """Add up what a function returns, separately for each of 16 parts of the rows.

    Sums that leave one part out then cost nothing: the material of a jackknife.

    Parameters
    ----------
    function : callable
        As for `sum_over_blocks`.
    n_obs : int
        Number of rows, at least `N_PARTS`.
    doubles_per_row : int
        How many doubles the function derives from one row.

    Returns
    -------
    tuple of numpy.ndarray
        The sums, each with a leading axis of length `N_PARTS`.
    """
    parts = list(_part_sums(function, n_obs, doubles_per_row))
    return tuple(np.stack(terms) for terms in zip(*parts, strict=True))


def _part_sums(
    function: Callable[[slice], BlockSums], n_obs: int, doubles_per_row: int
) -> Iterator[BlockSums]:
    """Sums over each part of the rows in order, a thread a part."""
    blocks = _small_blocks(n_obs, doubles_per_row)

    def sum_part(part: int) -> BlockSums:
        return _add(function(rows) for rows in blocks[part::N_PARTS])

    n_workers = min(N_PARTS, os.cpu_count() or 1)
    with _single_threaded_blas(), ThreadPoolExecutor(n_workers) as executor:
        yield from executor.map(sum_part, range(N_PARTS))


def _small_blocks(n_obs: int, doubles_per_row: int) -> list[slice]:
    """Blocks of which every part gets several: rows that come sorted are spread over all parts."""
    in_cache = max(MIN_BLOCK_ROWS, CACHE_DOUBLES // max(1, doubles_per_row))
    n_blocks = max(-(-n_obs // in_cache), min(n_obs, N_PARTS * BLOCKS_PER_PART))
    bounds = [n_obs * block // n_blocks for block in range(n_blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def read_block(X: NDArray[np.generic], rows: slice) -> FloatArray:
    """Read a block of rows as double precision, whatever the stored type.

    Parameters
    ----------
    X : numpy.ndarray
        Rows of any real type, shape (n_obs, n_features).
    rows : slice
        The rows to read.

    Returns
    -------
    numpy.ndarray
        The block; a view where the type allows it, so it must not be written to.
    """
    return np.asarray(X[rows], dtype=np.float64)


def _add(terms: Iterator[BlockSums]) -> BlockSums:
    """Add tuples of arrays, in order."""
    totals = tuple(np.array(term, dtype=np.float64) for term in next(terms))
    for term in terms:
        for total, part in zip(totals, term, strict=True):
            total += part
    return totals


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limits: threadpool_limits | None = None


@contextmanager
def _single_threaded_blas() -> Iterator[None]:
    """Hold BLAS to one thread; the last of several callers at once restores what was set before."""
    global _blas_users, _blas_limits
    with _blas_lock:
        _blas_users += 1
        if _blas_users == 1:
            _blas_limits = threadpool_limits(1, user_api="blas")
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0 and _blas_limits is not None:
                _blas_limits.restore_original_limits()
                _blas_limits = None
