"""What is sent to a block of rows: a function with holes where its columns were.

The same functions that sum arrays in memory sum rows elsewhere. A function is pickled with a mark
in place of every column that it holds; where the block is, the marks are filled with the block's
own rows, and the function runs as it would in memory, on slices that fit the cache.

Rows in blocks that are read when a pass needs them.
"""

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.data.blocks import (
    N_PARTS,
    BlockSums,
    RowSource,
    add_sums,
    row_blocks,
    single_threaded_blas,
)
from moment_init.row_sources.columns import (
    HeldRows,
    KnownScatter,
    Recipe,
    RowColumn,
    Stored,
    evaluate,
    rows_from,
    stored_places,
)

IndexArray = NDArray[np.intp]
PartSums = dict[int, BlockSums]

MOST_PARAMETERS = 1000
"""Arrays of no more entries may have the length of a table of rows by chance."""


class BlockPlace(NamedTuple):
    """Where a block stands among all rows."""

    start: int  # number of its first row
    n_rows: int  # how many rows it has, of those that count
    wanted: IndexArray | None = None  # rows of the block that are asked for, where not all are


class LocalRows(NamedTuple):
    """What a function is told of the rows that its holes were filled with."""

    start: int  # number of the first of them
    n_rows: int  # how many there are
    wanted: IndexArray | None  # rows that are asked for


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
    """Pickle a function of a block's rows."""
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
    """Run a task on one block."""
    unpacked: _Task = pickle.loads(task)
    stride = unpacked.stride
    first = -(-place.start // stride)
    n_rows = -(-(place.start + place.n_rows) // stride) - first
    if n_rows == 0:
        return None
    stored = dict(zip(unpacked.places, map(_as_array, blocks), strict=True))
    if unpacked.kept is not None and stored:
        n_stored = len(next(iter(stored.values())))
        weighted = np.flatnonzero(evaluate(unpacked.kept, stored, n_stored, {}))
        stored = {place: values[weighted] for place, values in stored.items()}
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
    """The sums of a function over a block."""
    return partial(_sum_rows, function, doubles_per_row)


def _sum_rows(
    function: Callable[[slice], BlockSums], doubles_per_row: int, rows: LocalRows
) -> BlockSums:
    return add_sums(function(each) for each in row_blocks(rows.n_rows, doubles_per_row))


def sum_parts(
    function: Callable[[slice], BlockSums], n_obs: int, n_blocks: int
) -> Callable[[LocalRows], PartSums]:
    """The sums of a function over a block, by part of all rows."""
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
    """The rows of a block that are asked for."""
    return partial(_pick_rows, tuple(columns))


def _pick_rows(
    columns: tuple[NDArray[np.generic], ...], rows: LocalRows
) -> tuple[NDArray[np.generic], ...]:
    wanted = slice(None) if rows.wanted is None else rows.wanted
    return tuple(np.array(column[wanted]) for column in columns)


def add_totals(terms: Sequence[BlockSums | None]) -> BlockSums | None:
    """Add sums of several blocks."""
    there = [term for term in terms if term is not None]
    return add_sums(iter(there)) if there else None


def add_parts(terms: Sequence[PartSums | None]) -> PartSums:
    """Add sums by part of several blocks."""
    by_part: dict[int, list[BlockSums]] = {}
    for term in terms:
        for part, sums in (term or {}).items():
            by_part.setdefault(part, []).append(sums)
    return {part: add_sums(iter(sums)) for part, sums in by_part.items()}


class BlockReader(ABC):
    """Stored columns in blocks, and a machine, or several, to run tasks where the blocks are."""

    @abstractmethod
    def combine(
        self,
        task: bytes,
        columns: tuple[int, ...],
        places: Sequence[BlockPlace],
        add: Callable[[Sequence[Any]], Any],
    ) -> Any:
        """Run a task on every block and add up the results in a tree."""

    @abstractmethod
    def collect(
        self,
        task: bytes,
        columns: tuple[int, ...],
        places: Sequence[BlockPlace],
        numbers: Sequence[int],
    ) -> list[Any]:
        """Run a task on some blocks and return what each gives."""

    @abstractmethod
    def as_collection(
        self, task: bytes, columns: tuple[int, ...], places: Sequence[BlockPlace], n_columns: int
    ) -> Any:
        """Lazy table of what a task picks from every block."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockedRows(RowSource):
    """Rows of a reader, all of them or some."""

    reader: BlockReader  # who has them
    sizes: IndexArray  # rows that count in each block; (n_blocks,)
    width: int  # how many values a row has, all columns together
    kept: Recipe | None = None  # rows count where it is not zero; all rows do if it is None
    stride: int = 1  # every so manieth of them
    # rows that are held, by their numbers at stride one; shared by all strides
    pools: list[HeldRows] = field(default_factory=list)
    # thinned rows that were asked for before
    thinnings: dict[int, "BlockedRows"] = field(default_factory=dict)
    # sums over all of these rows that are known; those of weight zero make no difference
    scatter: list[KnownScatter] = field(default_factory=list)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return -(-int(self.sizes.sum()) // self.stride)

    def thinned(self, stride: int) -> "BlockedRows":
        """Every so manieth of these rows."""
        if stride == 1:
            return self
        if stride not in self.thinnings:
            every = self.stride * stride
            self.thinnings[stride] = replace(self, stride=every, thinnings={}, scatter=[])
        return self.thinnings[stride]

    def sum_rows(self, function: Callable[[slice], BlockSums], doubles_per_row: int) -> BlockSums:
        """Add up what a function returns for slices of rows."""
        sums: BlockSums = self.reduce(sum_rows(function, doubles_per_row), add_totals)
        return sums

    def sum_parts(self, function: Callable[[slice], BlockSums], n_blocks: int) -> BlockSums:
        """Add up what a function returns, separately for each part of the rows."""
        task = sum_parts(function, self.n_obs, n_blocks)
        by_part = self.reduce(task, add_parts)
        ordered = [by_part[part] for part in range(N_PARTS)]
        return tuple(np.stack(terms) for terms in zip(*ordered, strict=True))

    def reduce(
        self,
        function: Callable[[LocalRows], Any],
        add: Callable[[Sequence[Any]], Any],
    ) -> Any:
        """Run a function on every block and put the results together; one graph."""
        task, columns = self._pack(function)
        return self.reader.combine(task, columns, self._places(), add)

    def collect(self, function: Callable[[LocalRows], Any]) -> list[Any]:
        """Run a function on every block and keep the results apart."""
        task, columns = self._pack(function)
        places = self._places()
        return self.reader.collect(task, columns, places, range(len(places)))

    def take(self, columns: Sequence[RowColumn], index: IndexArray) -> list[NDArray[Any]]:
        """Read some rows, unless they are held; blocks that have none of them are not read."""
        # index: (n,)
        index = np.asarray(index, dtype=np.intp)
        held = rows_from(self.pools, [column.recipe for column in columns], index * self.stride)
        return self._read(columns, index) if held is None else held

    def hold(self, columns: Sequence[RowColumn], wanted: Sequence[IndexArray]) -> None:
        """Read several samples of rows in one graph, and keep each for calls to come."""
        places = stored_places(tuple(column.recipe for column in columns))
        raw = [RowColumn(self, Stored(place)) for place in places]
        for index, values in zip(wanted, self._read_samples(raw, wanted), strict=True):
            self.pools.append(HeldRows(index, dict(zip(places, values, strict=True))))

    def _read(self, columns: Sequence[RowColumn], index: IndexArray) -> list[NDArray[Any]]:
        """Rows in any order, any of them several times."""
        if np.all(index[1:] > index[:-1]):
            return self._read_samples(columns, [index])[0]
        ascending, back = np.unique(index, return_inverse=True)
        return [values[back] for values in self._read_samples(columns, [ascending])[0]]

    def _read_samples(
        self, columns: Sequence[RowColumn], wanted: Sequence[IndexArray]
    ) -> list[list[NDArray[Any]]]:
        """Several samples of ascending rows in one graph; a block's part goes where it belongs."""
        union = wanted[0] if len(wanted) == 1 else np.unique(np.concatenate(wanted))
        starts = self._starts()
        cuts = np.searchsorted(union, starts)
        numbers = [number for number, count in enumerate(np.diff(cuts)) if count]
        rows = [union[cuts[number] : cuts[number + 1]] for number in numbers]
        every = self._places()
        places = [
            every[number]._replace(wanted=own - starts[number])
            for number, own in zip(numbers, rows, strict=True)
        ]
        task, stored = self._pack(pick_rows(columns))
        found = self.reader.collect(task, stored, places, numbers)
        samples: list[list[NDArray[Any]]] = [
            [np.empty((len(index), *part.shape[1:]), part.dtype) for part in found[0]]
            for index in wanted
        ]
        for own in rows:
            parts = found.pop(0)  # memory goes over from the parts to the samples
            for index, sample in zip(wanted, samples, strict=True):
                first, end = np.searchsorted(index, (own[0], own[-1] + 1))
                at = np.searchsorted(own, index[first:end])
                for values, part in zip(sample, parts, strict=True):
                    values[first:end] = part[at]
        return samples

    def as_collection(self, column: RowColumn) -> Any:
        """A column as a lazy table of the kind that the rows came from."""
        task, stored = self._pack(pick_rows([column]))
        return self.reader.as_collection(task, stored, self._places(), column.shape[1])

    def _pack(self, function: Callable[[LocalRows], Any]) -> tuple[bytes, tuple[int, ...]]:
        return pack_task(function, self.kept, self.stride, self.n_obs)

    def _starts(self) -> IndexArray:
        """Numbers of the first rows of the blocks, and of the row after the last."""
        edges = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(self.sizes)])
        return np.asarray(-(-edges // self.stride), dtype=np.intp)

    def _places(self) -> list[BlockPlace]:
        firsts = np.cumsum(self.sizes) - self.sizes
        pairs = zip(firsts, self.sizes, strict=True)
        return [BlockPlace(int(first), int(size)) for first, size in pairs]
