"""Rows in blocks that are read when a pass needs them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import N_PARTS, BlockSums, RowSource
from moment_init.row_sources.block_tasks import (
    BlockPlace,
    LocalRows,
    add_parts,
    add_totals,
    pack_task,
    pick_rows,
    sum_parts,
    sum_rows,
)
from moment_init.row_sources.columns import RowColumn
from moment_init.row_sources.pools import HeldRows, rows_from
from moment_init.row_sources.recipes import Recipe, Stored, stored_places
from moment_init.row_sources.scatter import KnownScatter

__all__ = ["BlockReader", "BlockedRows"]

IndexArray = NDArray[np.intp]


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
        """Run a task on every block and add up the results in a tree.

        Parameters
        ----------
        task : bytes
            What `pack_task` returned.
        columns : tuple of int
            The stored columns that it needs.
        places : sequence of BlockPlace
            Where the blocks stand.
        add : callable
            Maps several results to one.

        Returns
        -------
        object
            The result for all rows.
        """

    @abstractmethod
    def collect(
        self,
        task: bytes,
        columns: tuple[int, ...],
        places: Sequence[BlockPlace],
        numbers: Sequence[int],
    ) -> list[Any]:
        """Run a task on some blocks and return what each gives.

        Parameters
        ----------
        task : bytes
            What `pack_task` returned.
        columns : tuple of int
            The stored columns that it needs.
        places : sequence of BlockPlace
            Where the blocks stand.
        numbers : sequence of int
            Which blocks.

        Returns
        -------
        list
            The results in that order.
        """

    @abstractmethod
    def as_collection(
        self, task: bytes, columns: tuple[int, ...], places: Sequence[BlockPlace], n_columns: int
    ) -> Any:
        """Lazy table of what a task picks from every block.

        Parameters
        ----------
        task : bytes
            What `pack_task` returned.
        columns : tuple of int
            The stored columns that it needs.
        places : sequence of BlockPlace
            Where the blocks stand.
        n_columns : int
            Number of columns of the table.

        Returns
        -------
        object
            The table, of the kind that the rows came from.
        """


@dataclass(frozen=True, slots=True, eq=False)
class BlockedRows(RowSource):
    """Rows of a reader, all of them or some.

    Parameters
    ----------
    reader : BlockReader
        Who has them.
    sizes : numpy.ndarray of int, shape (n_blocks,)
        Rows that count in each block.
    width : int
        How many values a row has, all columns together.
    kept : Recipe or None
        Rows count where it is not zero; all rows do if it is None.
    stride : int
        Every so manieth of them.
    pools : list of HeldRows
        Rows that are held, by their numbers at stride one; shared by all strides.
    thinnings : dict of int to BlockedRows
        Thinned rows that were asked for before.
    scatter : list of KnownScatter
        Sums over all of these rows that are known; those of weight zero make no difference.
    """

    reader: BlockReader
    sizes: IndexArray
    width: int
    kept: Recipe | None = None
    stride: int = 1
    pools: list[HeldRows] = field(default_factory=list)
    thinnings: dict[int, "BlockedRows"] = field(default_factory=dict)
    scatter: list[KnownScatter] = field(default_factory=list)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return -(-int(self.sizes.sum()) // self.stride)

    def thinned(self, stride: int) -> "BlockedRows":
        """Every so manieth of these rows.

        Parameters
        ----------
        stride : int
            Distance of the rows that are kept.

        Returns
        -------
        BlockedRows
            The rows; the same object for the same stride.
        """
        if stride == 1:
            return self
        if stride not in self.thinnings:
            every = self.stride * stride
            self.thinnings[stride] = replace(self, stride=every, thinnings={}, scatter=[])
        return self.thinnings[stride]

    def sum_rows(self, function: Callable[[slice], BlockSums], doubles_per_row: int) -> BlockSums:
        """Add up what a function returns for slices of rows.

        Parameters
        ----------
        function : callable
            As for `moment_init.blocks.sum_over_blocks`; the columns that it holds are of these
            rows.
        doubles_per_row : int
            How many doubles it derives from one row.

        Returns
        -------
        tuple of numpy.ndarray
            The sums over all rows.
        """
        sums: BlockSums = self.reduce(sum_rows(function, doubles_per_row), add_totals)
        return sums

    def sum_parts(self, function: Callable[[slice], BlockSums], n_blocks: int) -> BlockSums:
        """Add up what a function returns, separately for each part of the rows.

        Parameters
        ----------
        function : callable
            As for `sum_rows`.
        n_blocks : int
            Runs of equal length into which all rows are cut; the parts take them in turn.

        Returns
        -------
        tuple of numpy.ndarray
            The sums, each with a leading axis for the parts.
        """
        task = sum_parts(function, self.n_obs, n_blocks)
        by_part = self.reduce(task, add_parts)
        ordered = [by_part[part] for part in range(N_PARTS)]
        return tuple(np.stack(terms) for terms in zip(*ordered, strict=True))

    def reduce(
        self,
        function: Callable[[LocalRows], Any],
        add: Callable[[Sequence[Any]], Any],
    ) -> Any:
        """Run a function on every block and put the results together; one graph.

        Parameters
        ----------
        function : callable
            Called once a block, the columns that it holds filled with the block's rows.
        add : callable
            Maps several results to one; None stands for a block without rows.

        Returns
        -------
        object
            The result for all rows.
        """
        task, columns = self._pack(function)
        return self.reader.combine(task, columns, self._places(), add)

    def collect(self, function: Callable[[LocalRows], Any]) -> list[Any]:
        """Run a function on every block and keep the results apart.

        Parameters
        ----------
        function : callable
            As for `reduce`.

        Returns
        -------
        list
            What it returned for each block; None for a block without rows.
        """
        task, columns = self._pack(function)
        places = self._places()
        return self.reader.collect(task, columns, places, range(len(places)))

    def take(self, columns: Sequence[RowColumn], index: IndexArray) -> list[NDArray[Any]]:
        """Read some rows, unless they are held; blocks that have none of them are not read.

        Parameters
        ----------
        columns : sequence of RowColumn
            Columns of these rows.
        index : numpy.ndarray of int, shape (n,)
            Numbers of the rows, in any order.

        Returns
        -------
        list of numpy.ndarray
            The rows of each column in that order; not to be written to.
        """
        index = np.asarray(index, dtype=np.intp)
        held = rows_from(self.pools, [column.recipe for column in columns], index * self.stride)
        return self._read(columns, index) if held is None else held

    def hold(self, columns: Sequence[RowColumn], wanted: Sequence[IndexArray]) -> None:
        """Read several samples of rows in one graph, and keep each for calls to come.

        Parameters
        ----------
        columns : sequence of RowColumn
            Columns of these rows, at stride one; what is stored of them is kept.
        wanted : sequence of numpy.ndarray of int
            Numbers of the rows of each sample, ascending.
        """
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
        """A column as a lazy table of the kind that the rows came from.

        Parameters
        ----------
        column : RowColumn
            A table of these rows, neither thinned nor in part.

        Returns
        -------
        object
            A Dask array, for rows that Dask has.
        """
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
