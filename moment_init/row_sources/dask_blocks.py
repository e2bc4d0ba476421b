"""Dask collections as blocks of rows: the only module that imports Dask when it is imported.

Every pass is one graph, run by whatever scheduler is current: that of a `distributed` client if
there is one, else threads of this process. Graphs hold how blocks are made, never their rows, so
that a block that is lost with its worker is made again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import dask.array
import numpy as np
from dask import config
from dask.base import compute, is_dask_collection
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from moment_init.checks import require_unmasked
from moment_init.row_sources.sources import BlockPlace, BlockReader, run_task

FAN_IN = 8
"""Results that are added in one task: a tree of depth three for five hundred blocks."""


class DaskBlocks(BlockReader):
    """Columns of one table as blocks of Dask."""

    def __init__(self, columns: Sequence[Sequence[Delayed]]) -> None:
        self.columns = [list(blocks) for blocks in columns]

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.columns[0])

    def add(self, values: Any, name: str, sizes: Sequence[int]) -> int:
        """Add a column."""
        self.columns.append(
            _matched(_prepared(values, name), tuple(sizes), name, "X", self.n_blocks)
        )
        return len(self.columns) - 1

    def apply(self, function: Callable[..., Any], places: Sequence[int] | None = None) -> list[Any]:
        """Call a function with the blocks of all columns, block by block; one graph."""
        calling = delayed(function, pure=False)
        columns = self.columns if places is None else [self.columns[place] for place in places]
        return list(compute(*(calling(*blocks) for blocks in zip(*columns, strict=True))))

    def combine(
        self,
        task: bytes,
        columns: tuple[int, ...],
        places: Sequence[BlockPlace],
        add: Callable[[Sequence[Any]], Any],
    ) -> Any:
        """Run a task on every block and add up the results in a tree."""
        adding = delayed(add, pure=False)
        level = self._tasks(task, columns, places, range(len(places)))
        while True:
            level = [adding(level[at : at + FAN_IN]) for at in range(0, len(level), FAN_IN)]
            if len(level) == 1:
                return compute(level[0])[0]

    def collect(
        self,
        task: bytes,
        columns: tuple[int, ...],
        places: Sequence[BlockPlace],
        numbers: Sequence[int],
    ) -> list[Any]:
        """Run a task on some blocks and return what each gives."""
        return list(compute(*self._tasks(task, columns, places, numbers)))

    def as_collection(
        self, task: bytes, columns: tuple[int, ...], places: Sequence[BlockPlace], n_columns: int
    ) -> Any:
        """Lazy table of what a task picks from every block."""
        # -> (n_obs, n_columns)
        first = delayed(_only, pure=False)
        tables = [
            dask.array.from_delayed(first(block), (place.n_rows, n_columns), dtype=np.float64)
            for block, place in zip(
                self._tasks(task, columns, places, range(len(places))), places, strict=True
            )
            if place.n_rows
        ]
        return dask.array.concatenate(tables)

    def _tasks(
        self,
        task: bytes,
        columns: tuple[int, ...],
        places: Sequence[BlockPlace],
        numbers: Sequence[int],
    ) -> list[Delayed]:
        shared = delayed(task, pure=False)  # sent once to each worker, not with every block
        running = delayed(run_task, pure=False)
        return [
            running(shared, place, *(self.columns[column][number] for column in columns))
            for place, number in zip(places, numbers, strict=True)
        ]


def _only(found: tuple[NDArray[Any], ...]) -> NDArray[Any]:
    return found[0]


def align_blocks(columns: dict[str, Any]) -> DaskBlocks:
    """Cut columns into blocks of the same rows; nothing is read unless a size is needed."""
    prepared = {name: _prepared(values, name) for name, values in columns.items()}
    leader = next(name for name, values in prepared.items() if _is_dask(values))
    n_blocks = _n_blocks(prepared[leader])
    sizes = _known_sizes(prepared[leader])
    needs_sizes = any(
        not _is_dask(values) or _n_blocks(values) != n_blocks for values in prepared.values()
    )
    if sizes is None and needs_sizes:
        lengths = [delayed(len, pure=False)(block) for block in _blocks(prepared[leader])]
        sizes = tuple(compute(*lengths))
    return DaskBlocks(
        [_matched(values, sizes, name, leader, n_blocks) for name, values in prepared.items()]
    )


def _matched(
    values: Any, sizes: tuple[int, ...] | None, name: str, leader: str, n_blocks: int
) -> list[Delayed]:
    """Blocks of a column in the number of the leader's."""
    matched = values if sizes is None else _cut(values, sizes, name, leader)
    if _n_blocks(matched) != n_blocks:
        raise ValueError(
            f"`{name}` must be cut into the same blocks as `{leader}` ({n_blocks}); got "
            f"{_n_blocks(matched)} of unknown sizes. Take both from one DataFrame, or call "
            "`compute_chunk_sizes()` on the arrays."
        )
    return _blocks(matched)


def _prepared(values: Any, name: str) -> Any:
    """Strip labels of xarray, and put all columns of a table into one block."""
    if hasattr(values, "dims") and hasattr(values, "data"):
        values = values.data
    if isinstance(values, dask.array.Array) and values.ndim == 2 and values.numblocks[1] > 1:
        return values.rechunk({1: -1})
    if _is_dask(values):
        return values
    require_unmasked(values, name)
    return np.asarray(values)


def _is_dask(values: Any) -> bool:
    return bool(is_dask_collection(values))


def _n_blocks(values: Any) -> int:
    return int(values.npartitions)


def _known_sizes(values: Any) -> tuple[int, ...] | None:
    """Rows of each block of an array; None where Dask does not know them."""
    chunks = getattr(values, "chunks", None)
    if chunks is None or any(np.isnan(size) for size in chunks[0]):
        return None
    return tuple(int(size) for size in chunks[0])


def _cut(values: Any, sizes: tuple[int, ...], name: str, leader: str) -> Any:
    """Rows in blocks of given sizes; as they are where Dask does not know their own."""
    own = _known_sizes(values) if _is_dask(values) else (len(values),)
    if own is None or own == sizes:
        return values if _is_dask(values) else dask.array.from_array(values, chunks=-1)
    if sum(own) != sum(sizes):
        raise ValueError(
            f"`{name}` must have one row for each of `{leader}` ({sum(sizes)}); got {sum(own)}."
        )
    chunks = (sizes, *((size,) for size in values.shape[1:]))
    if _is_dask(values):
        return values.rechunk(chunks)
    return dask.array.from_array(values, chunks=chunks)


def _blocks(values: Any) -> list[Delayed]:
    """Blocks of a collection, each to be computed alone."""
    if isinstance(values, dask.array.Array):
        return list(values.to_delayed().ravel())
    # Dask reads several small files as one block, more of them the fewer columns are asked for:
    # blocks of X and y would no longer hold the same rows.
    with config.set({"optimization.tune.active": False}):
        blocks = list(values.to_delayed())
    if len(blocks) != _n_blocks(values):
        blocks = list(values.to_delayed(optimize_graph=False))
    return blocks
