"""Sums over rows, block by block, and samples of rows.

Every moment is a sum over rows, so no more than a few blocks of transformed rows are in memory at a
time. There is one thread per core, each with single-threaded BLAS: the products are too small for
BLAS to divide among cores. The partition depends only on the shape of the data, and partial sums
are added in order, so the same rows give the same bits on any machine. Functions multiply by
`numpy.dot`, which releases the interpreter lock for products of any size; ``@`` does so only from
500 elements on (NumPy 2.5).

`Rows` is the base class of all rows: a sequence of blocks that functions are summed over. In memory
a block is a slice. Rows of Dask collections (`moment_init.data.dask_rows`) have the same methods,
and a block is a partition. The last functions draw random rows, and order rows so that every run of
them is a fair sample.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from math import gcd
from types import EllipsisType
from typing import Any, ClassVar, Concatenate, Self

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from moment_init.checks import FloatArray

BlockSums = tuple[FloatArray, ...]

# A block of transformed rows and the arrays computed from it should fit into a core's second-level
# cache (1 to 2 MiB); 2**18 doubles are 2 MiB.
CACHE_DOUBLES = 2**18

# With fewer rows, Python's overhead per block exceeds the arithmetic, unless rows are long: a block
# of `MOST_CACHES` times the cache's doubles takes milliseconds, however few its rows are.
MIN_BLOCK_ROWS = 512
MOST_CACHES = 4

# Between array operations, threads wait for Python's interpreter lock. If the operations are short,
# as in functions that map rows without large matrix products, two threads are no faster than one.
# Blocks of such functions are longer by this factor; they still fit into a third-level cache.
LIGHT_CACHES = 8

# Rows are divided into this many parts. Each part is summed by one thread and consists of several
# blocks that are spread over the rows.
N_PARTS = 16
BLOCKS_PER_PART = 8

# Fewer doubles are summed without threads: the sum takes about five milliseconds, and starting
# threads takes one.
SERIAL_DOUBLES = 2**21


class Rows:
    """Rows as a sequence of blocks; with Dask, these methods run on the workers.

    A function of a block is one of a module, `function(rows, *parameters, block)` with a slice of
    the units of `rows` as its block, and returns a tuple of arrays.
    """

    __slots__ = ()

    sample_weight: FloatArray  # weight of each row; (n_obs,)

    # names of attributes and methods that say nothing of single rows, but hold for all of them
    common: ClassVar[tuple[str, ...]] = ()

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        raise NotImplementedError

    @property
    def n_units(self) -> int:
        """Number of units that blocks consist of: rows, or groups of rows."""
        return self.n_obs

    @property
    def total_weight(self) -> float:
        """Sum of the weights: the number of rows they stand for."""
        return float(self.sample_weight.sum())

    @property
    def effective_n(self) -> float:
        """Number of equally weighted rows whose mean has the same variance (Kish)."""
        return float(self.sample_weight.sum() ** 2 / np.square(self.sample_weight).sum())

    @property
    def is_grouped(self) -> bool:
        """Whether units are groups of rows."""
        return False

    def sum(
        self,
        function: Callable[..., BlockSums],
        *parameters: Any,
        doubles: int,
        is_light: bool = False,
    ) -> BlockSums:
        """Add up the values of a function of a block, which holds `doubles` for each unit."""
        of_block = partial(function, self, *parameters)
        return sum_over_blocks(of_block, self.n_units, doubles, is_light=is_light)

    def sum_by_part(
        self, function: Callable[..., BlockSums], *parameters: Any, doubles: int
    ) -> BlockSums:
        """Add up the values of a function of a block for each of 16 parts of the rows."""
        return sums_by_part(partial(function, self, *parameters), self.n_units, doubles)

    def map[**P, T](
        self, function: Callable[Concatenate[Self, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Apply a function that maps rows to rows, each by itself, or with its group."""
        return function(self, *args, **kwargs)

    def column(self, function: Callable[..., FloatArray], *parameters: Any, width: int) -> Any:
        """Compute `width` values for every row; of a Dask collection as a lazy array."""
        # -> (n_obs, width)
        return function(self, *parameters)

    def take(self, index: NDArray[np.intp] | slice) -> Self:
        """Select units, as rows in memory."""
        raise NotImplementedError

    def thin(self, stride: int) -> Self:
        """Keep every `stride`-th unit, without a copy."""
        return self.take(slice(None, None, max(1, stride)))

    def resample(self, size: int, rng: np.random.Generator) -> Self:
        """Draw rows with probability proportional to their weights."""
        return self.take(resample_rows(self.sample_weight, size, rng))

    def spread(self, size: int) -> Self:
        """Take about `size` evenly spaced rows of positive weight."""
        weighted = np.flatnonzero(self.sample_weight)
        return self.take(weighted[:: max(1, len(weighted) // size)])

    def hold(
        self,
        strides: Sequence[int] = (),
        draw: Callable[[Any], Sequence[NDArray[np.intp]]] | None = None,
    ) -> None:
        """Announce units that will be taken: those of a Dask collection are read in one pass."""

    def within(self, n_units: int) -> Self:
        """Return rows in memory if there are no more than `n_units` of them."""
        return self

    def sampled(self, size: int, rng: np.random.Generator) -> Self:
        """Return rows in memory: all, or `size` random rows of positive weight of a collection."""
        return self

    def readable(self, n_units: int) -> int:
        """How many units may be taken at once: all in memory, `n_units` of a Dask collection."""
        return self.n_units

    def whole(self, reason: str) -> Self:
        """Return rows in memory; raise for those of a Dask collection, which are not read whole."""
        return self


def row_blocks(n_obs: int, doubles_per_row: int) -> Iterator[slice]:
    """Cut rows into blocks that fit into the cache."""
    block_rows = _block_rows(doubles_per_row)
    for start in range(0, n_obs, block_rows):
        yield slice(start, min(start + block_rows, n_obs))


def sum_over_blocks(
    function: Callable[[slice], BlockSums],
    n_obs: int,
    doubles_per_row: int,
    *,
    is_light: bool = False,
) -> BlockSums:
    """Add up the values of a function over blocks of rows."""
    if n_obs * doubles_per_row < SERIAL_DOUBLES:
        with single_threaded_blas():
            if n_obs <= _block_rows(doubles_per_row):
                return function(slice(0, n_obs))
            return add_sums(function(rows) for rows in row_blocks(n_obs, doubles_per_row))
    # Blocks of wide rows are long enough: a few such rows exceed the cache.
    is_longer = is_light and _block_rows(doubles_per_row) > MIN_BLOCK_ROWS
    width = -(-doubles_per_row // LIGHT_CACHES) if is_longer else doubles_per_row
    blocks = _equal_blocks(n_obs, width, at_least=N_PARTS)
    return add_sums(_part_sums(function, blocks, is_threaded=True))


def sums_by_part(
    function: Callable[[slice], BlockSums],
    n_obs: int,
    doubles_per_row: int,
) -> BlockSums:
    """Add up the values of a function separately for each of 16 parts of the rows.

    The spread between parts measures the noise of a sum at no further cost.
    """
    blocks = part_blocks(n_obs, doubles_per_row)
    is_threaded = n_obs * doubles_per_row >= SERIAL_DOUBLES
    parts = list(_part_sums(function, blocks, is_threaded=is_threaded))
    return tuple(np.stack(terms) for terms in zip(*parts, strict=True))


def part_blocks(n_obs: int, doubles_per_row: int) -> list[slice]:
    """Cut rows into the blocks that are dealt out to the 16 parts."""
    at_least = min(n_obs, N_PARTS * BLOCKS_PER_PART)
    return _equal_blocks(n_obs, doubles_per_row, at_least=at_least)


def sums_of_parts(
    function: Callable[[slice], BlockSums], part_rows: int, doubles_per_row: int
) -> BlockSums:
    """Join the sums over each of 16 parts, whose rows have an axis of parts before them.

    A function sums as many parts at a time as fit into the cache.
    """
    doubles = max(1, part_rows * doubles_per_row)
    step = max(1, CACHE_DOUBLES // doubles)
    blocks = [slice(start, start + step) for start in range(0, N_PARTS, step)]
    sums = list(_in_threads(function, blocks, is_threaded=N_PARTS * doubles >= SERIAL_DOUBLES))
    return tuple(np.concatenate(terms) for terms in zip(*sums, strict=True))


def _part_sums(
    function: Callable[[slice], BlockSums], blocks: list[slice], *, is_threaded: bool
) -> Iterator[BlockSums]:
    """Yield the sums over each part of the blocks in order, with one thread per part."""

    def sum_part(part: int) -> BlockSums:
        return add_sums(function(rows) for rows in blocks[part::N_PARTS])

    yield from _in_threads(sum_part, range(N_PARTS), is_threaded=is_threaded)


def _in_threads[T](
    function: Callable[[T], BlockSums], arguments: Sequence[T], *, is_threaded: bool
) -> Iterator[BlockSums]:
    """Yield the values of a function in order, with one thread per core if `is_threaded`."""
    n_workers = min(len(arguments), os.cpu_count() or 1) if is_threaded else 1
    with single_threaded_blas():
        if n_workers == 1:
            yield from map(function, arguments)
            return
        with ThreadPoolExecutor(n_workers) as executor:
            yield from executor.map(function, arguments)


def _block_rows(doubles_per_row: int) -> int:
    """Choose the rows of a block: as many as fit into the cache, but not too few."""
    width = max(1, doubles_per_row)
    smallest = min(MIN_BLOCK_ROWS, MOST_CACHES * CACHE_DOUBLES // width)
    return max(CACHE_DOUBLES // width, smallest, 1)


def _equal_blocks(n_obs: int, doubles_per_row: int, *, at_least: int) -> list[slice]:
    """Cut rows into at least `at_least` blocks of equal size that fit into the cache."""
    n_blocks = max(-(-n_obs // _block_rows(doubles_per_row)), at_least)
    bounds = [n_obs * block // n_blocks for block in range(n_blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def is_mapped(values: Any) -> bool:
    """Whether an array is a file mapped into memory, or a view of one."""
    while isinstance(values, np.ndarray):
        if isinstance(values, np.memmap):
            return True
        values = values.base
    return False


def read_block(X: NDArray[np.generic], rows: slice | EllipsisType | NDArray[np.intp]) -> FloatArray:
    """Read a block of rows of any type as doubles."""
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
    """Find the BLAS libraries once: that takes a hundred times as long as setting a limit."""
    return ThreadpoolController()


def _limit_blas() -> None:
    limiter = _blas_controller().limit(limits=1, user_api="blas")
    _blas_restorers.append(limiter.restore_original_limits)


def _in_own_thread(function: Callable[[], None]) -> None:
    """Call a function in a new thread, which ends with it.

    A thread that has set the number of BLAS threads owns the setting while it lives, and calls from
    other threads are ignored (threadpoolctl 3.8). The last caller could then not restore it.
    """
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit BLAS to one thread; the last of several concurrent callers restores the setting."""
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


# Multiples of the golden ratio, modulo one, are spread more evenly than those of any other number.
GOLDEN_SHARE = (np.sqrt(5.0) - 1.0) / 2.0


def sample_rows(n_obs: int, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw one row at random from each of `size` runs of rows of equal length.

    All rows have the same probability, and the time depends on `size` only.
    """
    # -> (min(size, n_obs),)
    if size >= n_obs:
        return np.arange(n_obs)
    bounds = np.arange(size + 1) * n_obs // size
    return np.asarray(rng.integers(bounds[:-1], bounds[1:]), dtype=np.intp)


def resample_rows(weights: FloatArray, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows with probability proportional to their weights, for methods without weights."""
    # weights: (n_obs,) -> (min(size, n_obs),)
    size = min(size, len(weights))
    if np.all(weights == weights[0]):
        return sample_rows(len(weights), size, rng)
    ends = np.cumsum(weights) / weights.sum()
    points = (np.arange(size) + rng.uniform()) / size
    return np.minimum(np.searchsorted(ends, points), len(weights) - 1)


def spread_order(n_obs: int) -> NDArray[np.intp]:
    """Order rows so that every run of them is spread evenly over all rows.

    The i-th row is i times a, modulo n, with a close to the golden ratio times n and prime to n. A
    run is then a fair sample even if the rows were sorted, or repeat in short cycles.
    """
    # -> (n_obs,)
    step = max(1, round(GOLDEN_SHARE * n_obs))
    while gcd(step, n_obs) > 1:
        step -= 1
    return np.asarray(np.arange(n_obs) * step % n_obs, dtype=np.intp)
