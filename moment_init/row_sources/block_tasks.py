"""What is sent to a block of rows: a function with holes where its columns were.

The same functions that sum arrays in memory sum rows elsewhere. A function is pickled with a mark
in place of every column that it holds; where the block is, the marks are filled with the block's
own rows, and the function runs as it would in memory, on slices that fit the cache.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import N_PARTS, BlockSums, add_sums, row_blocks, single_threaded_blas
from moment_init.row_sources.recipes import Recipe, evaluate, stored_places

__all__ = [
    "BlockPlace",
    "LocalRows",
    "add_parts",
    "add_totals",
    "pack_task",
    "pick_rows",
    "run_task",
    "sum_parts",
    "sum_rows",
]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
PartSums = dict[int, BlockSums]

MOST_PARAMETERS = 1000
"""Arrays of no more entries may have the length of a table of rows by chance."""


class BlockPlace(NamedTuple):
    """Where a block stands among all rows.

    Parameters
    ----------
    start : int
        Number of its first row.
    n_rows : int
        How many rows it has, of those that count.
    wanted : numpy.ndarray of int, or None
        Rows of the block that are asked for, where not all are.
    """

    start: int
    n_rows: int
    wanted: IndexArray | None = None


class LocalRows(NamedTuple):
    """What a function is told of the rows that its holes were filled with.

    Parameters
    ----------
    start : int
        Number of the first of them.
    n_rows : int
        How many there are.
    wanted : numpy.ndarray of int, or None
        Rows that are asked for.
    """

    start: int
    n_rows: int
    wanted: IndexArray | None


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A function with holes, and how they are filled."""

    body: bytes
    recipes: tuple[Recipe, ...]
    places: tuple[int, ...]
    kept: Recipe | None
    stride: int


def pack_task(
    function: Callable[[LocalRows], Any], kept: Recipe | None, stride: int, n_obs: int
) -> tuple[bytes, tuple[int, ...]]:
    """Pickle a function of a block's rows.

    Parameters
    ----------
    function : callable
        Called once a block; whatever columns it holds are filled with the block's rows.
    kept : Recipe or None
        Rows count where it is not zero; all rows do if it is None.
    stride : int
        Every so manieth row counts.
    n_obs : int
        Number of all rows.

    Returns
    -------
    task : bytes
        For `run_task`.
    places : tuple of int
        The stored columns that it needs.

    Raises
    ------
    TypeError
        If the function holds an array of all rows too: slices of a block would be taken from it.
    """
    import cloudpickle  # comes with Dask

    from moment_init.row_sources.columns import RowColumn

    recipes: list[Recipe] = []

    class HolePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, obj: Any) -> int | None:
            if isinstance(obj, np.ndarray) and obj.ndim and len(obj) == n_obs > MOST_PARAMETERS:
                raise TypeError(
                    f"Rows of a Dask input must not be mixed with an array of shape {obj.shape} in "
                    "memory. Pass all columns to the call that reads the data."
                )
            if not isinstance(obj, RowColumn):
                return None
            recipes.append(obj.recipe)
            return len(recipes) - 1

    buffer = io.BytesIO()
    HolePickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(function)
    every = (*recipes, kept) if kept is not None else tuple(recipes)
    places = stored_places(every)
    task = _Task(buffer.getvalue(), tuple(recipes), places, kept, stride)
    return cloudpickle.dumps(task), places


def run_task(task: bytes, place: BlockPlace, *blocks: Any) -> Any:
    """Run a task on one block.

    Parameters
    ----------
    task : bytes
        What `pack_task` returned.
    place : BlockPlace
        Where the block stands.
    *blocks : array or DataFrame
        The block's rows of the stored columns that the task needs.

    Returns
    -------
    object
        What the function returned; None for a block without rows.
    """
    unpacked: _Task = pickle.loads(task)
    stride = unpacked.stride
    first = -(-place.start // stride)
    n_rows = -(-(place.start + place.n_rows) // stride) - first
    if n_rows == 0:
        return None
    stored = dict(zip(unpacked.places, map(_as_array, blocks), strict=True))
    if unpacked.kept is not None and stored:
        n_stored = len(next(iter(stored.values())))
        counted = np.flatnonzero(evaluate(unpacked.kept, stored, n_stored, {}))
        stored = {place: values[counted] for place, values in stored.items()}
    if stride > 1:
        skipped = first * stride - place.start
        stored = {place: values[skipped::stride] for place, values in stored.items()}
    known: dict[int, NDArray[np.generic]] = {}
    columns = [evaluate(recipe, stored, n_rows, known) for recipe in unpacked.recipes]
    function: Callable[[LocalRows], Any] = _Filler(unpacked.body, columns).load()
    with single_threaded_blas():
        return function(LocalRows(first, n_rows, place.wanted))


class _Filler(pickle.Unpickler):
    """Reads a function and fills its holes.

    Of the module: a class made in a function is part of a cycle, which would hold the rows of a
    block until the next collection of garbage.
    """

    def __init__(self, body: bytes, columns: Sequence[NDArray[np.generic]]) -> None:
        super().__init__(io.BytesIO(body))
        self._columns = columns

    def persistent_load(self, pid: Any) -> Any:
        return self._columns[pid]


def _as_array(block: Any) -> NDArray[np.generic]:
    """A block of stored values as an array."""
    if hasattr(block, "to_numpy"):
        return np.asarray(block.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(block)


def sum_rows(
    function: Callable[[slice], BlockSums], doubles_per_row: int
) -> Callable[[LocalRows], BlockSums]:
    """The sums of a function over a block.

    Parameters
    ----------
    function : callable
        As for `moment_init.blocks.sum_over_blocks`.
    doubles_per_row : int
        How many doubles it derives from one row.

    Returns
    -------
    callable
        Maps a block's rows to their sums.
    """
    return partial(_sum_rows, function, doubles_per_row)


def _sum_rows(
    function: Callable[[slice], BlockSums], doubles_per_row: int, rows: LocalRows
) -> BlockSums:
    return add_sums(function(each) for each in row_blocks(rows.n_rows, doubles_per_row))


def sum_parts(
    function: Callable[[slice], BlockSums], n_obs: int, n_blocks: int
) -> Callable[[LocalRows], PartSums]:
    """The sums of a function over a block, by part of all rows.

    Parameters
    ----------
    function : callable
        As for `moment_init.blocks.sums_by_part`.
    n_obs : int
        Number of all rows.
    n_blocks : int
        Runs of equal length into which they are cut; the parts take them in turn.

    Returns
    -------
    callable
        Maps a block's rows to their sums, by part.
    """
    return partial(_sum_parts, function, n_obs, n_blocks)


def _sum_parts(
    function: Callable[[slice], BlockSums], n_obs: int, n_blocks: int, rows: LocalRows
) -> PartSums:
    stop = rows.start + rows.n_rows
    run = rows.start * n_blocks // n_obs
    pieces: dict[int, list[slice]] = {}
    while n_obs * run // n_blocks < stop:
        first = max(n_obs * run // n_blocks, rows.start)
        end = min(n_obs * (run + 1) // n_blocks, stop)
        if first < end:
            piece = slice(first - rows.start, end - rows.start)
            pieces.setdefault(run % N_PARTS, []).append(piece)
        run += 1
    return {part: add_sums(map(function, slices)) for part, slices in pieces.items()}


def pick_rows(columns: Sequence[Any]) -> Callable[[LocalRows], tuple[NDArray[np.generic], ...]]:
    """The rows of a block that are asked for.

    Parameters
    ----------
    columns : sequence of RowColumn
        The columns.

    Returns
    -------
    callable
        Maps a block's rows to arrays, one a column.
    """
    return partial(_pick_rows, tuple(columns))


def _pick_rows(
    columns: tuple[NDArray[np.generic], ...], rows: LocalRows
) -> tuple[NDArray[np.generic], ...]:
    wanted = slice(None) if rows.wanted is None else rows.wanted
    return tuple(np.array(column[wanted]) for column in columns)


def add_totals(terms: Sequence[BlockSums | None]) -> BlockSums | None:
    """Add sums of several blocks.

    Parameters
    ----------
    terms : sequence of tuple of numpy.ndarray, or None
        The sums; None for blocks without rows.

    Returns
    -------
    tuple of numpy.ndarray, or None
        Their sum; None without any rows.
    """
    there = [term for term in terms if term is not None]
    return add_sums(iter(there)) if there else None


def add_parts(terms: Sequence[PartSums | None]) -> PartSums:
    """Add sums by part of several blocks.

    Parameters
    ----------
    terms : sequence of dict of int to tuple of numpy.ndarray, or None
        The sums; None for blocks without rows.

    Returns
    -------
    dict of int to tuple of numpy.ndarray
        Their sums.
    """
    by_part: dict[int, list[BlockSums]] = {}
    for term in terms:
        for part, sums in (term or {}).items():
            by_part.setdefault(part, []).append(sums)
    return {part: add_sums(iter(sums)) for part, sums in by_part.items()}
