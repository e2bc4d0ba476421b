"""How a block gets the rows of a column: stored values, a constant, or a function of other columns.

Recipes are small and know no rows: they travel to where a block of rows is.

Rows that were read once and are held, so that what asks for them later needs no pass.

Mean and products of the inputs, summed while they are checked: a pass less over the rows.

A column of rows that are elsewhere, where otherwise an array in memory would stand.

It has a length and a shape. Functions of NumPy that act on single values give columns again, and
nothing is read. Sums are passes over the rows. Rows are taken by number, all in one graph. Whatever
would need all rows in memory raises.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import add_sums, row_blocks, single_threaded_blas

if TYPE_CHECKING:
    from moment_init.row_sources.sources import BlockedRows

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Values as they are stored."""

    place: int  # which of the stored columns


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The same value in every row."""

    value: float  # the value


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """A function of other columns, row by row."""

    function: Callable[..., Any]  # maps arrays of some rows to an array of the same rows
    arguments: tuple[Any, ...]  # its arguments: recipes, and anything else as it is


Recipe = Stored | Constant | Mapped


def stored_places(recipes: tuple[Recipe, ...]) -> tuple[int, ...]:
    """Which stored columns some recipes need."""
    found: set[int] = set()
    waiting: list[Any] = list(recipes)
    while waiting:
        recipe = waiting.pop()
        if isinstance(recipe, Stored):
            found.add(recipe.place)
        elif isinstance(recipe, Mapped):
            waiting.extend(recipe.arguments)
    return tuple(sorted(found))


def evaluate(
    recipe: Recipe, stored: Mapping[int, Array], n_rows: int, known: dict[int, Array]
) -> Array:
    """Make the rows of a column in one block."""
    # -> (n_rows,) or (n_rows, n_columns)
    if id(recipe) in known:
        return known[id(recipe)]
    if isinstance(recipe, Stored):
        result = stored[recipe.place]
    elif isinstance(recipe, Constant):
        result = np.full(n_rows, recipe.value)
    else:
        arguments = [
            evaluate(each, stored, n_rows, known) if isinstance(each, Recipe) else each
            for each in recipe.arguments
        ]
        result = np.asarray(recipe.function(*arguments))
    known[id(recipe)] = result
    return result


IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """Some rows of stored columns."""

    index: IndexArray  # numbers of the rows, ascending; (n,)
    stored: dict[int, NDArray[Any]]  # their values, by the place of the column


def rows_from(
    pools: Sequence[HeldRows], recipes: Sequence[Recipe], index: IndexArray
) -> list[NDArray[Any]] | None:
    """Take rows of columns from what is held."""
    # index: (n,)
    places = stored_places(tuple(recipes))
    for pool in pools:
        if not all(place in pool.stored for place in places):
            continue
        at = _positions(pool.index, index)
        if at is not None:
            stored = {place: pool.stored[place][at] for place in places}
            known: dict[int, NDArray[np.generic]] = {}
            return [evaluate(recipe, stored, len(index), known) for recipe in recipes]
    return None


def _positions(held: IndexArray, index: IndexArray) -> IndexArray | slice | None:
    """Where rows stand among those held; a slice, which copies nothing, where it can be one."""
    if len(index) == 0 or index.max() > held[-1]:
        return None
    at = np.searchsorted(held, index)
    if not np.array_equal(held[at], index):
        return None
    steps = np.diff(at)
    if len(steps) and steps[0] > 0 and np.all(steps == steps[0]):
        return slice(int(at[0]), int(at[-1]) + 1, int(steps[0]))
    return np.asarray(at, dtype=np.intp)


MOST_COLUMNS = 64
"""Widest table whose products are summed so: every block returns its own, 32 KiB at most."""


class Scatter(NamedTuple):
    """Weighted sums of some rows."""

    total: float  # sum of the weights, positive
    mean: FloatArray  # weighted mean; (n_features,)
    products: FloatArray  # weighted products of the deviations from it; (n_features, n_features)


class KnownScatter(NamedTuple):
    """The sums of a table, and which table and weights they are of."""

    table: Recipe  # the columns
    weights: Recipe  # the columns
    sums: Scatter  # their sums over all rows


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


def _products(x: NDArray[np.generic], weights: FloatArray, mean: FloatArray) -> tuple[FloatArray]:
    deviations = np.asarray(x, dtype=np.float64) - mean
    return ((deviations * weights[:, None]).T @ deviations,)


def merged(terms: Sequence[Scatter | None]) -> Scatter:
    """Sums of several blocks together."""
    there = [term for term in terms if term is not None]
    total = sum(term.total for term in there)
    mean = sum((term.total / total * term.mean for term in there), np.zeros(len(there[0].mean)))
    shifts = np.array([np.sqrt(term.total) * (term.mean - mean) for term in there])
    (products,) = add_sums((term.products,) for term in there)
    return Scatter(total, mean, products + shifts.T @ shifts)


def known_scatter(table: Any, weights: Any) -> Scatter | None:
    """Look up the sums of a column."""
    known: Sequence[KnownScatter] = getattr(getattr(table, "source", None), "scatter", ())
    for each in known:
        if table.recipe is each.table and weights.recipe is each.weights:
            return each.sums
    return None


MOST_HELD = 2**26
"""Doubles of a thinned table that are held in memory instead of being read in every pass: 512 MiB,
which twice, while they are gathered, and beside blocks of rows stay below two gigabytes."""

SAMPLE_ROWS = 40_000
"""A column's every so manieth row is a sample, and comes as an array, up to this many: functions of
the response are chosen on about half as many."""


class RowColumn(NDArrayOperatorsMixin):
    """A column, or a table of several, whose rows are read block by block."""

    def __init__(
        self,
        source: "BlockedRows",
        recipe: Recipe,
        n_columns: int | None = None,
        dtype: Any = np.float64,
    ) -> None:
        self.source = source
        self.recipe = recipe
        self.n_columns = n_columns
        self.dtype = np.dtype(dtype)
        self._total: FloatArray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and columns of a table."""
        n_obs = self.source.n_obs
        return (n_obs,) if self.n_columns is None else (n_obs, self.n_columns)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return self.source.n_obs * (self.n_columns or 1)

    @property
    def constant(self) -> float | None:
        """The value of all rows where it is known to be the same, else None."""
        return self.recipe.value if isinstance(self.recipe, Constant) else None

    def __len__(self) -> int:
        """Number of rows."""
        return self.source.n_obs

    def __repr__(self) -> str:
        """Shape and type."""
        return f"RowColumn(shape={self.shape}, dtype={self.dtype})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[np.generic]:
        """Refuse to become an array."""
        raise TypeError(
            f"Rows of a Dask input of shape {self.shape} must not be read whole; what was asked "
            "for needs them all in memory. Pass a sample of the rows as arrays."
        )

    def __getitem__(self, key: Any) -> Any:
        """Take rows: by number, as an array; or every so manieth, as an array if they are few."""
        if isinstance(key, tuple) and len(key) == 2 and key[1] is None:
            return self[key[0]][:, None]
        if isinstance(key, slice) and key.start is None and key.stop is None:
            return take_rows([self], key)[0]
        if isinstance(key, np.ndarray) and key.dtype.kind in "iu" and key.ndim == 1:
            return gather_columns([self], key)[0]
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"row {key} is out of bounds for {len(self)} rows")
            return gather_columns([self], np.array([int(key) % len(self)]))[0][0]
        raise TypeError(
            "Rows of a Dask input can be taken by number or as every so manieth; got "
            f"{key!r}. What was asked for is not supported there: pass a sample as arrays."
        )

    def moved(self, source: "BlockedRows") -> "RowColumn":
        """The same column of other rows of the same table."""
        return RowColumn(source, self.recipe, self.n_columns, self.dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Apply a function to every value when blocks are read; `@` of two columns is a sum."""
        if method != "__call__" or options or ufunc.nout != 1:
            return NotImplemented
        if ufunc is np.matmul:
            first, second = inputs
            if np.ndim(first) == 1 == np.ndim(second):
                return (first * second).sum()
            return NotImplemented
        if any(np.ndim(each) > 1 for each in inputs if not isinstance(each, RowColumn)):
            return NotImplemented
        dtype = np.bool_ if {"d->?", "dd->?"} & set(ufunc.types) else np.float64
        widths = [each.n_columns for each in inputs if isinstance(each, RowColumn)]
        width = next((each for each in widths if each is not None), None)
        return map_columns(ufunc, *inputs, n_columns=width, dtype=dtype)

    def sum(self, axis: int | None = None, **_: Any) -> Any:
        """Add up values."""
        if axis == 1:
            return map_columns(partial(np.sum, axis=1), self)
        if self.constant is not None and self.n_columns is None:
            return np.float64(self.constant * self.source.n_obs)
        if self._total is None:
            (self._total,) = self.source.sum_rows(partial(_sum_slice, self), self.n_columns or 1)
        return self._total if axis == 0 else np.float64(self._total.sum())

    def mean(self) -> np.float64:
        """Mean of all values."""
        return np.float64(self.sum() / self.size)

    def std(self) -> np.float64:
        """Standard deviation of all values."""
        return np.float64(np.sqrt(np.square(self - self.mean()).mean()))

    def max(self) -> np.float64:
        """Largest value."""
        return np.float64(self.source.reduce(partial(_largest, self), _largest_of))


def map_columns(
    function: Callable[..., Any],
    *arguments: Any,
    n_columns: int | None = None,
    dtype: Any = np.float64,
) -> RowColumn:
    """A function of columns, row by row, as a column."""
    sources = [each.source for each in arguments if isinstance(each, RowColumn)]
    if any(source is not sources[0] for source in sources):
        raise TypeError("Columns of a Dask input must be of the same rows; got different ones.")
    recipes = tuple(each.recipe if isinstance(each, RowColumn) else each for each in arguments)
    if all(isinstance(each, Constant | int | float) for each in recipes):
        values = [each.value if isinstance(each, Constant) else each for each in recipes]
        return RowColumn(sources[0], Constant(float(function(*values))), n_columns, dtype)
    return RowColumn(sources[0], Mapped(function, recipes), n_columns, dtype)


def gather_columns(
    columns: Sequence[RowColumn | None], index: NDArray[np.intp]
) -> list[NDArray[Any]]:
    """Read some rows of several columns, in one graph."""
    # index: (n,)
    there = [each for each in columns if each is not None and each.constant is None]
    read = iter(there[0].source.take(there, index) if there else [])
    result: list[Any] = []
    for each in columns:
        if each is None:
            result.append(None)
        elif each.constant is not None:
            result.append(np.full(len(index), each.constant))
        else:
            result.append(next(read))
    return result


def hold_rows(columns: Sequence[Any], wanted: Sequence[NDArray[np.intp]]) -> None:
    """Read samples of rows that will be taken later, in one graph; nothing for arrays in memory."""
    there = [each for each in columns if isinstance(each, RowColumn)]
    if there and wanted:
        there[0].source.hold(there, wanted)


def take_rows(columns: Sequence[Any], index: NDArray[np.intp] | slice) -> list[Any]:
    """Take rows of several columns, wherever they are."""
    leader = next((each for each in columns if isinstance(each, RowColumn)), None)
    if leader is None:
        return [None if each is None else each[index] for each in columns]
    if not isinstance(index, slice):
        return gather_columns(columns, index)
    if index.start is not None or index.stop is not None:
        return [leader[index]]  # raises
    source = leader.source.thinned(index.step or 1)
    thinned = [None if each is None else each.moved(source) for each in columns]
    # All columns of the same rows must be in the same place, whichever of them are asked for.
    is_held = source.n_obs * source.width <= MOST_HELD
    is_sample = len(columns) == 1 and source.n_obs <= SAMPLE_ROWS and leader.source is not source
    if is_held or (is_sample and source.n_obs * (leader.n_columns or 1) <= MOST_HELD):
        return gather_columns(thinned, np.arange(source.n_obs))
    return thinned


def _sum_slice(values: Any, rows: slice) -> tuple[FloatArray]:
    return (np.asarray(values[rows].sum(axis=0), dtype=np.float64),)


def _largest(values: Any, _: object) -> float:
    return float(np.max(values))


def _largest_of(terms: Sequence[float | None]) -> float | None:
    there = [term for term in terms if term is not None]
    return max(there) if there else None
