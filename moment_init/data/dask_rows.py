"""Rows of Dask collections: the only module that imports Dask.

A block is a partition, and each pass is one graph: a task per block reads it and sums a function
over it, and sums are added in a tree. Graphs say how blocks are made and never hold their rows, so
that Dask makes a block again if it is lost with its worker. Without a client of `distributed` the
graphs run on threads of this process.

`DaskRows` has the methods of `moment_init.data.blocks.Rows`. It holds a block without rows, which
has what all blocks have in common, and the functions that make its rows from those of the table.
`validate_dask` checks all blocks in a first pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple, cast

import dask.array
import numpy as np
from dask import config
from dask.base import compute, is_dask_collection
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from moment_init.checks import FloatArray, require_unmasked
from moment_init.data.blocks import (
    N_PARTS,
    BlockSums,
    Rows,
    add_sums,
    part_blocks,
    resample_rows,
    row_blocks,
    sample_rows,
    single_threaded_blas,
)
from moment_init.data.checking import (
    ROW_COLUMNS,
    RegressionData,
    check_rows,
    gating_table,
    group_order,
    named_response,
    require_variation,
    validate_data,
    validate_features,
)
from moment_init.data.standardising import Scatter, moment_responses
from moment_init.families.registry import (
    class_codes,
    find_classes,
    has_classes,
    read_labels,
    response_families,
)
from moment_init.families.several import Categorical, categorical, join_families

IndexArray = NDArray[np.intp]
Sums = BlockSums | None
PartSums = dict[int, BlockSums]

FAN_IN = 8
"""Results that are added in one task: a tree of depth three for five hundred blocks."""

MOST_READ_WHOLE = 2**24
"""Values of X up to which a Dask input is read whole: 128 MiB, the size that Dask gives one block.
So is one of no more than `FEW_ROWS` rows, if it can be held."""

FEW_ROWS = 40_000

SAMPLE_ROWS = 40_000
"""Rows of a sample that is read, however wide it is: functions of the response are chosen on about
half as many."""

MOST_HELD = 2**26
"""Doubles of a sample of rows that are held in memory instead of being read in every pass: 512 MiB,
which twice, while they are gathered, and beside blocks of rows stay below two gigabytes."""

MOST_COLUMNS = 64
"""Widest X whose products are summed while it is checked: every block returns 32 KiB at most."""

OTHER_COLUMNS = 4
"""Columns that stand beside X: response, offset, trials and weight."""


class _Place(NamedTuple):
    """Where the rows of a block stand among all that count, and samples of units asked for."""

    start: int
    n_rows: int
    wanted: tuple[IndexArray, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """Makes rows of the stored columns of a block, which have been checked."""

    names: tuple[str, ...]  # of the stored columns, as arguments of `validate_data`
    like: RegressionData  # names and families
    constants: dict[str, Any]  # the number of trials, if it is the same for all rows
    has_labels: bool  # whether the response is labels of classes, not their codes
    is_weighted: bool = False  # whether rows of weight zero are left out
    stride: int = 1

    def read(self, place: _Place, blocks: Sequence[Any]) -> RegressionData:
        """Read the rows of a block that count."""
        stored, like = dict(zip(self.names, blocks, strict=True)), self.like
        X = _values(stored["X"])
        n_obs, family = len(X), like.family
        columns: dict[str, Any] = dict.fromkeys(ROW_COLUMNS)
        columns["X"] = X
        columns["sample_weight"] = np.ones(n_obs)
        if "sample_weight" in stored:
            columns["sample_weight"] = _doubles(stored["sample_weight"])
        if self.has_labels:
            columns["y"] = class_codes(read_labels(stored["y"], n_obs), _some(like.classes))
        else:
            columns["y"] = _per_predictor(stored["y"], n_obs, len(family.members))
        if "offset" in stored:
            columns["offset"] = _per_predictor(stored["offset"], n_obs, family.n_predictors)
        trials = (stored | self.constants).get("n_trials")
        if trials is not None:
            columns["n_trials"] = _per_predictor(trials, n_obs, len(family.members))
            for index, member in enumerate(family.members):
                if not member.has_trials:
                    columns["n_trials"][:, index] = 1.0
        if "groups" in stored:
            columns["groups"] = np.asarray(stored["groups"])
        if "gating" in stored:
            columns["gating"] = _doubles(stored["gating"])
        rows = replace(like, **columns)
        if self.is_weighted:
            rows = rows.drop_zero_weights()
        if self.stride > 1:
            first = -(-place.start // self.stride) * self.stride - place.start
            rows = rows.take(slice(first, None, self.stride))
        return rows


def _values(block: Any) -> NDArray[Any]:
    return _doubles(block) if hasattr(block, "to_numpy") else np.asarray(block)


def _doubles(block: Any) -> FloatArray:
    """Read a block of numbers."""
    if hasattr(block, "to_numpy"):
        return np.asarray(block.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(block, dtype=np.float64)


def _per_predictor(block: Any, n_obs: int, n_columns: int) -> FloatArray:
    """Read a value for each row, or for each row and response or predictor."""
    # -> (n_obs,) or (n_obs, n_columns)
    values = np.broadcast_to(block, (n_obs,)) if np.ndim(block) == 0 else _doubles(block)
    if n_columns == 1:
        return np.array(values, dtype=np.float64).reshape(n_obs)
    by_row = values[:, None] if values.ndim == 1 else values
    return np.array(np.broadcast_to(by_row, (n_obs, n_columns)), dtype=np.float64, order="F")


def _some[T](value: T | None) -> T:
    return cast("T", value)


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The stored columns of all blocks, and the rows of them that count."""

    blocks: tuple[tuple[Delayed, ...], ...]  # the columns of each block
    reader: _Reader
    sizes: IndexArray  # rows that count in each block; (n_blocks,)
    group_sizes: IndexArray  # groups of these rows in each block; (n_blocks,)
    weight: float  # sum of the weights
    squared_weight: float  # sum of their squares
    scatter: Scatter | None  # sums of X, which leave out rows of weight zero
    response_scatter: Scatter | None  # sums of the responses without offsets and trials
    kept_sizes: IndexArray  # rows of positive weight in each block; (n_blocks,)
    kept_group_sizes: IndexArray  # groups of these in each block; (n_blocks,)
    # rows that are held, with their numbers at stride one
    held: list[tuple[IndexArray, RegressionData]] = field(default_factory=list)

    @property
    def starts(self) -> IndexArray:
        """Numbers of the first row of each block, and of the row after the last."""
        edges = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(self.sizes)])
        return np.asarray(-(-edges // self.reader.stride), dtype=np.intp)

    @property
    def width(self) -> int:
        """Number of values of a row."""
        return self.reader.like.n_features + OTHER_COLUMNS

    def places(self) -> list[_Place]:
        """Where each block stands."""
        firsts = np.cumsum(self.sizes) - self.sizes
        pairs = zip(firsts.tolist(), self.sizes.tolist(), strict=True)
        return [_Place(first, size) for first, size in pairs]

    def find_held(self, index: IndexArray) -> RegressionData | None:
        """Take rows from a sample that is held; evenly spaced ones are not copied."""
        numbers = index * self.reader.stride
        for held, rows in self.held:
            at = np.searchsorted(held, numbers)
            if at.max(initial=0) < len(held) and np.array_equal(held[at], numbers):
                step = int(at[1] - at[0]) if len(at) > 1 else 1
                is_even = step > 0 and np.all(np.diff(at) == step)
                return rows.take(slice(int(at[0]), int(at[-1]) + 1, step) if is_even else at)
        return None


class _Step(NamedTuple):
    """A function that maps rows to rows, and its parameters."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, rows: Any) -> Any:
        return self.function(rows, *self.args, **self.kwargs)


class _Task(NamedTuple):
    """What is done with the rows of a block."""

    reader: _Reader
    steps: tuple[_Step, ...]
    action: Callable[[Any, _Place], Any]


def _run_task(task: _Task, place: _Place, *blocks: Any) -> Any:
    """Run a task on one block; None without rows."""
    with single_threaded_blas():
        rows: Any = task.reader.read(place, blocks)
        if rows.n_obs == 0:
            return None
        for step in task.steps:
            rows = step(rows)
        return task.action(rows, place)


def _names(rows: Rows) -> list[str]:
    """Names of what rows hold: what they have in common, and their columns."""
    return [each.name for each in fields(cast("Any", rows))]


class _NotRead:
    """Stands for a column whose rows are not in memory."""

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError(
            "Rows of a Dask input are not read whole; what was asked for needs them all in memory. "
            "Pass a sample of the rows as arrays."
        )


@dataclass(frozen=True, slots=True, eq=False)
class DaskRows(Rows):
    """Rows of a Dask collection."""

    table: _Table
    empty: Any  # these rows without any row: what all blocks have in common
    steps: tuple[_Step, ...] = ()  # make these rows from those of the table

    def __getattr__(self, name: str) -> Any:
        """What all blocks have in common; columns exist, but their values are not read."""
        if name.startswith("__") or name not in (*self.empty.common, *_names(self.empty)):
            raise AttributeError(f"{name!r} needs rows in memory")
        value = getattr(self.empty, name)
        return value if name in self.empty.common or value is None else _NotRead()

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.table.starts[-1])

    @property
    def is_grouped(self) -> bool:
        """Whether units are groups of rows."""
        return bool(self.empty.is_grouped)

    @property
    def n_units(self) -> int:
        """Number of units."""
        return int(self.table.group_sizes.sum()) if self.is_grouped else self.n_obs

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        table = self.table
        if table.reader.stride == 1:
            return table.weight
        if "sample_weight" not in table.reader.names:
            return float(self.n_obs)
        return float(DaskRows(table, table.reader.like).sum(_sum_weights, doubles=1)[0])

    @property
    def effective_n(self) -> float:
        """Number of equally weighted rows whose mean has the same variance (Kish)."""
        return self.table.weight**2 / self.table.squared_weight

    @property
    def total_units(self) -> float:
        """Number of draws of a component: total weight, or number of groups."""
        return float(self.n_units) if self.is_grouped else self.total_weight

    @property
    def scatter(self) -> Scatter | None:
        """Sums of X and its products, which were formed while it was checked."""
        table = self.table
        return None if self.steps or table.reader.stride > 1 else table.scatter

    @property
    def response_scatter(self) -> Scatter | None:
        """The same of the responses without offsets and trials."""
        table = self.table
        return None if self.steps or table.reader.stride > 1 else table.response_scatter

    def sum(
        self,
        function: Callable[..., BlockSums],
        *parameters: Any,
        doubles: int,
        is_light: bool = False,
    ) -> BlockSums:
        """Add up the values of a function of a block."""
        sums: BlockSums = self._reduce(partial(_sum_block, function, parameters, doubles), _add)
        return sums

    def sum_by_part(
        self, function: Callable[..., BlockSums], *parameters: Any, doubles: int
    ) -> BlockSums:
        """Add up the values of a function of a block for each of 16 parts of the rows."""
        n_obs, stride = self.n_obs, self.table.reader.stride
        n_runs = len(part_blocks(n_obs, doubles))
        action = partial(_sum_parts, function, parameters, n_obs, n_runs, stride)
        by_part: PartSums = self._reduce(action, _add_parts)
        ordered = [by_part[part] for part in range(N_PARTS)]
        return tuple(np.stack(terms) for terms in zip(*ordered, strict=True))

    def map(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Apply a function that maps rows to rows, when their blocks are read."""
        step = _Step(function, args, kwargs)
        empty = step(self.empty)
        if empty is self.empty:  # nothing changes
            return self
        return replace(self, empty=empty, steps=(*self.steps, step))

    def column(self, function: Callable[..., FloatArray], *parameters: Any, width: int) -> Any:
        """Compute `width` values for every row, as a lazy array."""
        # -> (n_obs, width)
        tasks = self._tasks(partial(_call, function, parameters))
        sizes = np.diff(self.table.starts).tolist()
        return dask.array.concatenate(
            [
                dask.array.from_delayed(task, (size, width), dtype=np.float64)
                for task, size in zip(tasks, sizes, strict=True)
                if size
            ]
        )

    def prepared(self, *_: Any) -> "DaskRows":
        """Return these rows: what passes need again is computed again, not stored."""
        return self

    def drop_zero_weights(self) -> "DaskRows":
        """Leave out the rows of weight zero."""
        table = self.table
        if table.sizes.sum() == table.kept_sizes.sum():
            return self
        reader = replace(table.reader, is_weighted=True)
        sizes, group_sizes = table.kept_sizes, table.kept_group_sizes
        kept = replace(table, reader=reader, sizes=sizes, group_sizes=group_sizes, held=[])
        return replace(self, table=kept)

    def thin(self, stride: int) -> Any:
        """Keep every `stride`-th unit: in memory if these can be held, or are groups."""
        stride, table = max(1, stride), self.table
        n_rows = -(-self.n_obs // stride)
        is_small = n_rows <= SAMPLE_ROWS or n_rows * table.width <= MOST_HELD
        if is_small or self.is_grouped:
            return self.take(np.arange(0, self.n_units, stride))
        reader = replace(table.reader, stride=table.reader.stride * stride)
        return replace(self, table=replace(table, reader=reader))

    def spread(self, size: int) -> Any:
        """Take about `size` evenly spaced rows."""
        return self.thin(self.n_obs // size)

    def resample(self, size: int, rng: np.random.Generator) -> Any:
        """Draw rows with probability proportional to their weights."""
        return self.take(self.resample_index(size, rng))

    def resample_index(self, size: int, rng: np.random.Generator) -> IndexArray:
        """Numbers of rows that `resample` draws; eight bytes per row are held if weights differ."""
        weights = np.broadcast_to(np.float64(1.0), (self.n_obs,))
        if "sample_weight" in self.table.reader.names:
            found = compute(*DaskRows(self.table, self.table.reader.like)._tasks(_weights_of))
            weights = np.concatenate([part for part in found if part is not None])
        return resample_rows(weights, size, rng)

    def within(self, n_units: int) -> Any:
        """Read all rows if there are no more than `n_units` of them, and they can be held."""
        if self.n_units > n_units or self.n_obs * self.table.width > MOST_HELD:
            return self
        return self.take(np.arange(self.n_units))

    def sampled(self, size: int, rng: np.random.Generator) -> Any:
        """Draw rows of positive weight, all with the same probability."""
        kept = self.drop_zero_weights()
        return kept.take(sample_rows(kept.n_obs, size, rng.spawn(1)[0]))

    def readable(self, n_units: int) -> int:
        """How many units may be taken at once."""
        return min(n_units, self.n_units)

    def whole(self, reason: str) -> Any:
        """Raise: the rows are not read whole."""
        raise ValueError(
            f"{reason} for a Dask input of {self.n_obs} rows, which are not read whole. Leave it "
            "out, or pass a sample of the rows as arrays."
        )

    def hold(
        self,
        strides: Sequence[int] = (),
        draw: Callable[[Any], Sequence[IndexArray]] | None = None,
    ) -> None:
        """Read every `stride`-th row, and rows that will be drawn, in one pass, and keep them."""
        if self.is_grouped:
            return
        n_obs, table = self.n_obs, self.table
        kept = {s for s in strides if s > 1 and n_obs // s * table.width <= MOST_HELD}
        # what is a part of another sample needs no copy of its own
        alone = [s for s in kept if not any(s % other == 0 for other in kept - {s})]
        samples: list[IndexArray] = [np.arange(0, n_obs, stride) for stride in alone]
        samples += [] if draw is None else map(np.unique, draw(self))
        if samples:
            numbers = [index * table.reader.stride for index in samples]
            table.held.extend(zip(numbers, self._read(samples), strict=True))

    def take(self, index: IndexArray | slice) -> Any:
        """Read units, unless they are held; blocks that have none of them are not read."""
        if isinstance(index, slice):
            return self.thin(index.step or 1)
        index = np.asarray(index, dtype=np.intp)
        rows = None if self.is_grouped else self.table.find_held(index)
        if rows is None and np.all(index[1:] > index[:-1]):
            (rows,) = self._read([index])
        elif rows is None:
            ascending, back = np.unique(index, return_inverse=True)
            rows = next(self._read([ascending])).take(back)
        for step in self.steps:
            rows = step(rows)
        return rows

    def _read(self, samples: Sequence[IndexArray]) -> Iterator[RegressionData]:
        """Read samples of ascending units of the table in one graph."""
        is_grouped, table = self.is_grouped, self.table
        starts = table.starts
        if is_grouped:
            starts = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(table.group_sizes)])
        cuts = [np.searchsorted(index, starts) for index in samples]
        places = [
            place._replace(
                wanted=tuple(
                    index[cut[number] : cut[number + 1]] - starts[number]
                    for index, cut in zip(samples, cuts, strict=True)
                )
            )
            for number, place in enumerate(table.places())
        ]
        raw = DaskRows(table, table.reader.like)
        found = compute(*raw._tasks(_pick_groups if is_grouped else _pick_rows, places))
        parts: list[list[RegressionData]] = [list(each) for each in found if each is not None]
        del found
        for _ in samples:  # memory goes over from the parts to the samples
            yield _joined([each.pop(0) for each in parts])

    def _reduce(self, action: Callable[[Any, _Place], Any], add: Callable[[list[Any]], Any]) -> Any:
        """Run an action on every block and add the results in a tree; one graph."""
        adding, level = delayed(add, pure=False), self._tasks(action)
        while True:
            level = [adding(level[at : at + FAN_IN]) for at in range(0, len(level), FAN_IN)]
            if len(level) == 1:
                return compute(level[0])[0]

    def _tasks(
        self, action: Callable[[Any, _Place], Any], places: Sequence[_Place] | None = None
    ) -> list[Delayed]:
        """Tasks that run an action on every block, or on those where rows are wanted."""
        task = _Task(self.table.reader, self.steps, action)
        shared = delayed(task, pure=False, traverse=False)  # sent once to each worker
        running = delayed(_run_task, pure=False)
        every = self.table.places() if places is None else places
        pairs = zip(every, self.table.blocks, strict=True)
        return [
            running(shared, delayed(place, pure=False, traverse=False), *blocks)
            for place, blocks in pairs
            if places is None or any(map(len, place.wanted))
        ]


def _call(
    function: Callable[..., FloatArray], parameters: tuple[Any, ...], rows: Any, _: _Place
) -> FloatArray:
    return function(rows, *parameters)


def _sum_weights(rows: Rows, block: slice) -> BlockSums:
    return (np.array(rows.sample_weight[block].sum()),)


def _weights_of(rows: Rows, _: _Place) -> FloatArray:
    return rows.sample_weight


def _pick_rows(rows: RegressionData, place: _Place) -> list[RegressionData]:
    return [rows.take(index) for index in place.wanted]


def _pick_groups(rows: RegressionData, place: _Place) -> list[RegressionData]:
    """Take all rows of some groups."""
    order, starts = group_order(rows.groups)
    spans = np.split(_some(order), _some(starts)[1:])
    return [rows.take(np.concatenate([spans[group] for group in index])) for index in place.wanted]


def _joined(parts: Sequence[RegressionData]) -> RegressionData:
    """Join rows of several blocks."""
    joined: dict[str, Any] = {}
    for name, first in parts[0].columns().items():
        if first is None:
            continue
        joined[name] = np.concatenate([getattr(part, name) for part in parts])
        if name in ("y", "offset", "n_trials") and first.ndim == 2:
            joined[name] = np.asfortranarray(joined[name])
    return replace(parts[0], **joined)


def _sum_block(
    function: Callable[..., BlockSums],
    parameters: tuple[Any, ...],
    doubles: int,
    rows: Rows,
    _: _Place,
) -> BlockSums:
    """Sum a function over slices of a block that fit into the cache."""
    slices = row_blocks(rows.n_units, doubles)
    return add_sums(function(rows, *parameters, some) for some in slices)


def _sum_parts(
    function: Callable[..., BlockSums],
    parameters: tuple[Any, ...],
    n_obs: int,
    n_runs: int,
    stride: int,
    rows: Rows,
    place: _Place,
) -> PartSums:
    """Sum a function over a block, by part of all rows: the rows are cut into equal runs."""
    start = -(-place.start // stride)
    stop = start + rows.n_obs
    run = start * n_runs // n_obs
    pieces: dict[int, list[slice]] = {}
    while n_obs * run // n_runs < stop:
        first = max(n_obs * run // n_runs, start)
        end = min(n_obs * (run + 1) // n_runs, stop)
        if first < end:
            pieces.setdefault(run % N_PARTS, []).append(slice(first - start, end - start))
        run += 1
    return {
        part: add_sums(function(rows, *parameters, piece) for piece in slices)
        for part, slices in pieces.items()
    }


def _add(terms: Sequence[Sums]) -> Sums:
    """Add sums of several blocks."""
    present = [term for term in terms if term is not None]
    return add_sums(iter(present)) if present else None


def _add_parts(terms: Sequence[PartSums | None]) -> PartSums:
    """Add sums by part of several blocks."""
    by_part: dict[int, list[BlockSums]] = {}
    for term in terms:
        for part, sums in (term or {}).items():
            by_part.setdefault(part, []).append(sums)
    return {part: add_sums(iter(sums)) for part, sums in by_part.items()}


class _Summary(NamedTuple):
    """What the check of a block finds."""

    n_rows: int
    n_kept: int = 0  # rows of positive weight
    weight: float = 0.0
    squared_weight: float = 0.0
    smallest: FloatArray | None = None  # of each response, in rows of positive weight
    largest: FloatArray | None = None
    # of classes, with and without positive weight
    labels: tuple[NDArray[Any] | None, NDArray[Any] | None] = (None, None)
    groups: NDArray[Any] | None = None  # distinct labels
    n_kept_groups: int = 0  # groups with rows of positive weight
    scatter: Scatter | None = None
    response_scatter: Scatter | None = None
    like: RegressionData | None = None  # no rows: names and families
    error: Exception | None = None


def validate_dask(given: dict[str, Any], *, family: Any, link: str | None) -> Any:
    """Check data arguments of which some are Dask collections; small inputs are read whole."""
    given = {name: values for name, values in given.items() if values is not None}
    if not is_dask_collection(given["X"]):  # the other columns are no larger
        lazy = {name: values for name, values in given.items() if is_dask_collection(values)}
        given |= dict(zip(lazy, compute(*lazy.values()), strict=True))
        return validate_data(**given, family=family, link=link)
    meta: Any = getattr(given["X"], "_meta", None)
    if hasattr(meta, "iloc"):  # wrong types raise before anything is read
        validate_features(meta.iloc[:0], min_obs=0)
    has_own_trials = "n_trials" in given and np.ndim(given["n_trials"]) == 0
    constants = {"n_trials": given.pop("n_trials")} if has_own_trials else {}
    if "gating" in given:
        given["gating"] = gating_table(given["gating"])
    blocks, names = align_blocks(given), tuple(given)
    has_labels = has_classes(family) and not isinstance(family, Categorical)
    used = categorical(2) if has_labels else family
    action = partial(_check_block, names, constants, used, link, has_labels=has_labels)
    checking = delayed(action, pure=False)
    found: list[_Summary] = list(compute(*(checking(*block) for block in blocks)))
    sizes = np.array([each.n_rows for each in found], dtype=np.intp)
    like = _require_sound(found, sizes)
    n_obs, width = int(sizes.sum()), like.n_features
    is_small = n_obs * width <= MOST_READ_WHOLE
    if is_small or (n_obs <= FEW_ROWS and n_obs * width <= MOST_HELD):
        columns = zip(names, zip(*blocks, strict=True), strict=True)
        whole = {name: _read_whole(column) for name, column in columns}
        return validate_data(**whole, **constants, family=family, link=link)
    if has_labels:
        like = _with_classes(like, found, link, has_offset="offset" in names)
    table = _Table(
        blocks=blocks,
        reader=_Reader(names, like, constants, has_labels),
        sizes=sizes,
        group_sizes=_count_groups(found),
        weight=float(sum(each.weight for each in found)),
        squared_weight=float(sum(each.squared_weight for each in found)),
        scatter=merged([each.scatter for each in found]) if width <= MOST_COLUMNS else None,
        response_scatter=merged([each.response_scatter for each in found]),
        kept_sizes=np.array([each.n_kept for each in found], dtype=np.intp),
        kept_group_sizes=np.array([each.n_kept_groups for each in found], dtype=np.intp),
    )
    return DaskRows(table, like)


def _check_block(
    names: tuple[str, ...],
    constants: dict[str, Any],
    family: Any,
    link: str | None,
    *blocks: Any,
    has_labels: bool,
) -> _Summary:
    """Check one block by the rules of arrays in memory, and sum it up."""
    given = dict(zip(names, blocks, strict=True))
    n_rows = len(given["X"])
    if any(len(values) != n_rows for values in given.values()):
        text = ", ".join(f"`{name}` {len(values)}" for name, values in given.items())
        error = ValueError(f"columns must have the same rows; got {text} of them.")
        return _Summary(n_rows, error=error)
    if n_rows == 0:
        return _Summary(0)
    labels = None
    try:
        if has_labels:  # how many classes there are, and columns of an offset, is not known yet
            labels = read_labels(given["y"], n_rows)
            if "offset" in given:
                validate_features(gating_table(given.pop("offset")), name="offset", min_obs=1)
            given["y"] = np.zeros(n_rows)
        rows = check_rows(**given, **constants, family=family, link=link, is_part=True)
    except (TypeError, ValueError) as error:
        return _Summary(n_rows, error=error)
    kept = rows.drop_zero_weights()
    values = kept.y if kept.n_trials is None else kept.y / kept.n_trials
    values = values.reshape(kept.n_obs, len(kept.family.members))
    has_rows, counted, others = kept.n_obs > 0, None, None
    if labels is not None:
        counted = np.unique(labels[rows.sample_weight > 0.0])
        others = np.setdiff1d(labels, counted)
    groups = None if rows.groups is None else np.unique(rows.groups)
    responses = kept.y[None]
    if kept.classes is None:
        responses = np.array(moment_responses(kept, slice(None)))
    return _Summary(
        n_rows,
        n_kept=kept.n_obs,
        weight=rows.total_weight,
        squared_weight=float(np.square(rows.sample_weight).sum()),
        smallest=values.min(axis=0) if has_rows else None,
        largest=values.max(axis=0) if has_rows else None,
        labels=(counted, others),
        groups=groups,
        n_kept_groups=0 if kept.groups is None else len(np.unique(kept.groups)),
        scatter=block_scatter(kept.X, kept.sample_weight) if has_rows else None,
        response_scatter=block_scatter(responses.T, kept.sample_weight) if has_rows else None,
        like=rows.take(np.empty(0, dtype=np.intp)),  # a view would hold the whole block
    )


def _require_sound(found: Sequence[_Summary], sizes: IndexArray) -> RegressionData:
    """Raise what the first block complains of, or what holds for all rows; return names."""
    for number, each in enumerate(found):
        if each.error is not None:
            first = int(sizes[:number].sum())
            text = f"Block {number}, which begins at row {first}: {each.error}"
            raise type(each.error)(text)
    if sizes.sum() < 2:
        raise ValueError(f"`X` must have at least 2 rows; got {sizes.sum()}.")
    kept = [each for each in found if each.smallest is not None and each.largest is not None]
    if not kept:
        raise ValueError("`sample_weight` must not be all zero; got no positive weight.")
    like, n_kept = _some(kept[0].like), sum(each.n_kept for each in kept)
    for index in range(len(like.family.members)):
        smallest = min(float(_some(each.smallest)[index]) for each in kept)
        largest = max(float(_some(each.largest)[index]) for each in kept)
        with named_response(like.response_names, index):
            if like.classes is None:
                require_variation(smallest, largest, n_kept)
    return like


def _with_classes(
    like: RegressionData, found: Sequence[_Summary], link: str | None, *, has_offset: bool
) -> RegressionData:
    """Complete what is known of the rows by the classes of all blocks."""
    counted, others = (
        np.concatenate([labels for labels in column if labels is not None])
        for column in zip(*(each.labels for each in found), strict=True)
    )
    weights = np.repeat([1.0, 0.0], [len(counted), len(others)])
    classes = find_classes(np.concatenate([counted, others.astype(counted.dtype)]), weights)
    family = join_families(response_families(categorical(len(classes)), link, 1))
    P = family.n_predictors
    return replace(
        like,
        family=family,
        classes=classes,
        response_names=tuple(str(label) for label in classes[1:]),
        offset=np.empty(0 if P == 1 else (0, P)) if has_offset else None,
    )


def _count_groups(found: Sequence[_Summary]) -> IndexArray:
    """Number of groups in each block; raise if rows of a group are in several blocks."""
    groups = [each.groups if each.groups is not None else np.empty(0) for each in found]
    sizes = np.array([len(each) for each in groups], dtype=np.intp)
    if sizes.sum() == 0:
        return sizes
    labels, counts = np.unique(
        np.concatenate([each for each in groups if len(each)]), return_counts=True
    )
    if counts.max() > 1:
        label = labels[int(np.argmax(counts))]
        raise ValueError(
            "`groups` must have all rows of a group in one block of a Dask input; got group "
            f"{label!r} in {counts.max()} blocks. Set the groups as the index of the DataFrame, "
            "`frame.set_index('group')`, which puts them together, and pass "
            "`frame.index.to_series()`."
        )
    return sizes


def _read_whole(blocks: Sequence[Any]) -> Any:
    """All rows of a small column; a DataFrame stays one, with a type for each of its columns."""
    parts = [block for block in compute(*blocks) if len(block)]
    if not hasattr(parts[0], "to_numpy"):
        return np.concatenate(parts)
    from pandas import concat

    return concat(parts, ignore_index=True)


def block_scatter(X: NDArray[np.generic], weights: FloatArray) -> Scatter | None:
    """Sums of one block, about its own mean."""
    # X: (n_rows, n_features), weights: (n_rows,)
    total = float(weights.sum())
    if total <= 0.0:
        return None
    # Values whose squares overflow are seen in the sums, and summed again in other units.
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(weights @ np.asarray(X, dtype=np.float64)) / total
        parts = (_products(X[rows], weights[rows], mean) for rows in row_blocks(*X.shape))
        (products,) = add_sums(parts)
    return Scatter(total, mean, products)


def _products(x: NDArray[np.generic], weights: FloatArray, mean: FloatArray) -> BlockSums:
    deviations = np.asarray(x, dtype=np.float64) - mean
    return ((deviations * weights[:, None]).T @ deviations,)


def merged(terms: Sequence[Scatter | None]) -> Scatter:
    """Sums of several blocks together."""
    present = [term for term in terms if term is not None]
    total = sum(term.total for term in present)
    mean = sum((term.total / total * term.mean for term in present), np.zeros(len(present[0].mean)))
    shifts = np.array([np.sqrt(term.total) * (term.mean - mean) for term in present])
    (products,) = add_sums((term.products,) for term in present)
    return Scatter(total, mean, products + shifts.T @ shifts)


def align_blocks(columns: dict[str, Any]) -> tuple[tuple[Delayed, ...], ...]:
    """Cut columns into blocks of the same rows; nothing is read unless a size is needed."""
    prepared = {name: _prepared(values, name) for name, values in columns.items()}
    n_blocks = int(prepared["X"].npartitions)
    sizes = _known_sizes(prepared["X"])
    needs_sizes = any(
        not is_dask_collection(values) or values.npartitions != n_blocks
        for values in prepared.values()
    )
    if sizes is None and needs_sizes:
        sizes = compute(*(delayed(len, pure=False)(block) for block in _blocks(prepared["X"])))
    by_column = [_matched(values, sizes, name, n_blocks) for name, values in prepared.items()]
    return tuple(zip(*by_column, strict=True))


def _matched(values: Any, sizes: tuple[int, ...] | None, name: str, n_blocks: int) -> list[Delayed]:
    """Blocks of a column that have the rows of those of X."""
    matched = values if sizes is None else _cut(values, sizes, name)
    if matched.npartitions != n_blocks:
        raise ValueError(
            f"`{name}` must be cut into the same blocks as `X` ({n_blocks}); got "
            f"{matched.npartitions} of unknown sizes. Take both from one DataFrame, or call "
            "`compute_chunk_sizes()` on the arrays."
        )
    return _blocks(matched)


def _prepared(values: Any, name: str) -> Any:
    """Strip labels of xarray, and put all columns of a table into one block."""
    if hasattr(values, "dims") and hasattr(values, "data"):
        values = values.data
    if isinstance(values, dask.array.Array) and values.ndim == 2 and values.numblocks[1] > 1:
        return values.rechunk({1: -1})
    if is_dask_collection(values):
        return values
    require_unmasked(values, name)
    return np.asarray(values)


def _known_sizes(values: Any) -> tuple[int, ...] | None:
    """Rows of each block of an array; None where Dask does not know them."""
    chunks = getattr(values, "chunks", None)
    if chunks is None or any(np.isnan(size) for size in chunks[0]):
        return None
    return tuple(int(size) for size in chunks[0])


def _cut(values: Any, sizes: tuple[int, ...], name: str) -> Any:
    """Rows in blocks of given sizes; as they are where Dask does not know their own."""
    is_lazy = is_dask_collection(values)
    own = _known_sizes(values) if is_lazy else (len(values),)
    if own is None or own == sizes:
        return values if is_lazy else dask.array.from_array(values, chunks=-1)
    if sum(own) != sum(sizes):
        raise ValueError(
            f"`{name}` must have one row for each of `X` ({sum(sizes)}); got {sum(own)}."
        )
    chunks = (sizes, *((size,) for size in values.shape[1:]))
    return values.rechunk(chunks) if is_lazy else dask.array.from_array(values, chunks=chunks)


def _blocks(values: Any) -> list[Delayed]:
    """Blocks of a collection, each to be computed alone."""
    if isinstance(values, dask.array.Array):
        return list(values.to_delayed().ravel())
    # Dask reads several small files as one block, more of them the fewer columns are asked for:
    # blocks of X and y would no longer hold the same rows.
    with config.set({"optimization.tune.active": False}):
        blocks = list(values.to_delayed())
    if len(blocks) != values.npartitions:
        blocks = list(values.to_delayed(optimize_graph=False))
    return blocks
