"""The data block of a Dask input: checked in one pass, by the rules of arrays in memory.

Standardised columns of rows that are elsewhere, for a likelihood in standardised coordinates.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, is_dask
from moment_init.data.checking import (
    RegressionData,
    require_response_range,
    validate_data,
    validate_features,
    validate_n_trials,
    validate_row_vector,
)
from moment_init.data.standardising import whiten_rows
from moment_init.families.base import Family
from moment_init.row_sources.columns import (
    MOST_COLUMNS,
    MOST_HELD,
    SAMPLE_ROWS,
    Constant,
    KnownScatter,
    Mapped,
    Recipe,
    RowColumn,
    Scatter,
    Stored,
    block_scatter,
    map_columns,
    merged,
)
from moment_init.row_sources.sources import BlockedRows

MOST_READ_WHOLE = 2**21
"""Values of X up to which a Dask input is read whole: 16 MiB, less than one block usually has. So
is one of no more rows than a sample has, if it can be held."""


OTHER_COLUMNS = ("y", "offset", "n_trials", "sample_weight")
"""What stands beside X."""


class _Summary(NamedTuple):
    """What the checking pass finds in a block."""

    n_rows: int
    total_weight: float = 0.0
    smallest: float = np.inf
    largest: float = -np.inf
    message: str = ""
    is_of_type: bool = False
    scatter: Scatter | None = None


def validate_blocks(
    X: Any,
    y: Any,
    family: Family,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
) -> RegressionData:
    """Check a data block of which some argument is a Dask collection."""
    if not is_dask(X, y, offset, n_trials, sample_weight):
        rest = {"offset": offset, "n_trials": n_trials, "sample_weight": sample_weight}
        return validate_data(X, y, **rest, family=family, groups=_in_memory(groups))
    from moment_init.row_sources.dask_blocks import align_blocks

    X, y = (each if hasattr(each, "ndim") else np.asarray(each) for each in (X, y))
    names, width, dtype = _described(X, y)
    has_own_trials = n_trials is not None and np.ndim(n_trials) == 0
    if has_own_trials:
        validate_n_trials(n_trials, family, 1)
    given = {"X": X, "y": y, "offset": offset, "sample_weight": sample_weight}
    given["n_trials"] = None if has_own_trials else n_trials
    given = {name: values for name, values in given.items() if values is not None}
    reader = align_blocks(given)
    trials = float(n_trials) if has_own_trials else None
    found: list[_Summary] = reader.apply(partial(_check_block, family, tuple(given), trials))
    sizes = np.array([each.n_rows for each in found], dtype=np.intp)
    _raise_first(found, sizes)
    if _is_read_whole(int(sizes.sum()), width):
        whole = {name: _whole(reader.columns[at]) for at, name in enumerate(given)}
        whole["X"] = X if not is_dask(X) else whole["X"]
        trials_given = n_trials if has_own_trials else whole.get("n_trials")
        rest = {**whole, "n_trials": trials_given, "groups": _in_memory(groups)}
        return validate_data(**rest, family=family)
    if groups is not None:
        raise ValueError(
            "`groups` must be None for a Dask input that is not small, as rows of a group may be "
            f"in different blocks; got {sizes.sum()} rows. Leave it out, or pass arrays."
        )
    source = BlockedRows(reader, sizes, width + len(OTHER_COLUMNS))
    columns = {
        name: RowColumn(source, Mapped(_as_double, (Stored(at),))) for at, name in enumerate(given)
    }
    ones = RowColumn(source, Constant(1.0))
    own_trials = None if trials is None else RowColumn(source, Constant(trials))
    rows: Any = {
        "X": RowColumn(source, Stored(0), width, dtype),
        "y": columns["y"],
        "offset": columns.get("offset"),
        "n_trials": columns.get("n_trials", own_trials),
        "sample_weight": columns.get("sample_weight", ones),
    }
    if width <= MOST_COLUMNS:
        recipes = (rows["X"].recipe, rows["sample_weight"].recipe)
        sums = merged([each.scatter for each in found])
        source.scatter.append(KnownScatter(*recipes, sums))
    return RegressionData(**rows, family=family, feature_names=names, groups=None)


def keep_weighted_rows(data: RegressionData) -> RegressionData:
    """Leave out the rows of weight zero."""
    weights: Any = data.sample_weight
    source: BlockedRows = weights.source
    if weights.constant is not None:
        return data
    kept = weights.recipe
    counts = source.collect(partial(_count, weights))
    sizes = np.array([each or 0 for each in counts], dtype=np.intp)
    if np.array_equal(sizes, source.sizes):
        return data
    weighted = replace(source, sizes=sizes, kept=kept, pools=[], thinnings={})
    columns: Any = {name: getattr(data, name) for name in ("X", *OTHER_COLUMNS)}
    moved = {name: each and each.moved(weighted) for name, each in columns.items()}
    return RegressionData(
        **moved, family=data.family, feature_names=data.feature_names, groups=data.groups
    )


def add_table(source: BlockedRows, values: Any, name: str) -> tuple[RowColumn, tuple[str, ...]]:
    """Put another table beside rows that are elsewhere, and check it."""
    # values: (n_obs, n_columns) -> (n_obs, n_columns), ...
    reader: Any = source.reader
    names = _names_of(values, values.shape[1], name)
    place = reader.add(values, name, source.sizes.tolist())
    found = reader.apply(partial(_check_table, name), [place])
    sizes = np.array([each.n_rows for each in found], dtype=np.intp)
    _raise_first(found, sizes)
    if not np.array_equal(sizes, source.sizes):
        raise ValueError(
            f"`{name}` must be cut into the same blocks as `X`; got blocks of other sizes. Take "
            "both from one DataFrame."
        )
    recipe: Recipe = Mapped(_as_double, (Stored(place),))
    return RowColumn(source, recipe, len(names)), names


def _is_read_whole(n_obs: int, width: int) -> bool:
    size = n_obs * width
    return size <= MOST_READ_WHOLE or (n_obs <= SAMPLE_ROWS and size <= MOST_HELD)


def _described(X: Any, y: Any) -> tuple[tuple[str, ...], int, np.dtype[Any]]:
    """Names, number and type of the columns, of what is known before anything is read."""
    for name, values, ndim in (("X", X, 2), ("y", y, 1)):
        if np.ndim(values) != ndim:
            raise ValueError(
                f"`{name}` must have {ndim} {'axis' if ndim == 1 else 'axes'}; got "
                f"{np.ndim(values)}. Select the columns, or `reshape` it."
            )
    width = int(X.shape[1])
    if width == 0:
        raise ValueError("`X` must have at least 1 column; got none.")
    dtype = np.dtype(np.float64) if hasattr(X, "columns") else np.dtype(X.dtype)
    return _names_of(X, width), width, dtype


def _names_of(values: Any, width: int, name: str = "X") -> tuple[str, ...]:
    """Names of the columns, checked on an empty table of the same kind."""
    empty = getattr(values, "_meta", None)
    if not hasattr(values, "columns") or empty is None:
        empty = values if hasattr(values, "columns") else np.empty((0, width))
    return validate_features(empty[:0], name=name, min_obs=0)[1]


def _check_block(
    family: Family, names: tuple[str, ...], own_trials: float | None, *blocks: Any
) -> _Summary:
    """Check one block by the rules of arrays in memory, and sum it up."""
    given = dict(zip(names, blocks, strict=True))
    n_rows = len(given["X"])
    lengths = {name: len(values) for name, values in given.items()}
    if any(length != n_rows for length in lengths.values()):
        text = ", ".join(f"`{name}` {length}" for name, length in lengths.items())
        return _Summary(n_rows, message=f"columns must have the same rows; got {text} of them.")
    if n_rows == 0:
        return _Summary(0)
    try:
        features, _ = validate_features(given["X"], min_obs=1)
        y = validate_row_vector(given["y"], "y", n_rows)
        trials_given = given.get("n_trials", own_trials)
        trials = validate_n_trials(trials_given, family, n_rows)
        family.validate_response(y, trials)
        if "offset" in given:
            validate_row_vector(given["offset"], "offset", n_rows)
        weights = _checked_weights(given.get("sample_weight"), n_rows)
    except (TypeError, ValueError) as error:
        return _Summary(n_rows, message=str(error), is_of_type=isinstance(error, TypeError))
    values = (y if trials is None else y / trials)[weights > 0.0]
    if len(values) == 0:
        return _Summary(n_rows)
    summary = _Summary(n_rows, float(weights.sum()), float(values.min()), float(values.max()))
    if features.shape[1] > MOST_COLUMNS:
        return summary
    return summary._replace(scatter=block_scatter(features, weights))


def _checked_weights(weights: Any, n_rows: int) -> FloatArray:
    """Weights of a block; unlike those of all rows they may all be zero."""
    if weights is None:
        return np.ones(n_rows)
    checked = validate_row_vector(weights, "sample_weight", n_rows)
    if checked.min() < 0.0:
        row = int(np.argmin(checked))
        raise ValueError(
            f"`sample_weight` must be non-negative; got {checked[row]:g} in row {row}. Drop rows "
            "instead of weighting them negatively."
        )
    return checked


def _check_table(name: str, block: Any) -> _Summary:
    n_rows = len(block)
    if n_rows == 0:
        return _Summary(0)
    try:
        validate_features(block, name=name, min_obs=1)
    except (TypeError, ValueError) as error:
        return _Summary(n_rows, message=str(error), is_of_type=isinstance(error, TypeError))
    return _Summary(n_rows, 1.0, 0.0, 1.0)


def _raise_first(found: Sequence[_Summary], sizes: NDArray[np.intp]) -> None:
    """Raise what the first block complains of, or what holds for all rows together."""
    for number, each in enumerate(found):
        if each.message:
            first = int(sizes[:number].sum())
            text = f"Block {number}, which begins at row {first}: {each.message}"
            raise TypeError(text) if each.is_of_type else ValueError(text)
    n_obs = int(sizes.sum())
    if n_obs < 2:
        raise ValueError(f"`X` must have at least 2 rows; got {n_obs}.")
    if sum(each.total_weight for each in found) <= 0.0:
        raise ValueError("`sample_weight` must not be all zero; got no positive weight.")
    smallest, largest = (
        min(each.smallest for each in found),
        max(each.largest for each in found),
    )
    if smallest == largest:
        raise ValueError(
            f"`y` must vary; got {smallest:g} in all rows with a positive weight, which says "
            "nothing about any component. Check the column that was passed."
        )
    require_response_range(smallest, largest)


def _as_double(values: NDArray[np.generic]) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def _count(weights: NDArray[np.generic], _: object) -> int:
    return int(np.count_nonzero(weights))


def _whole(blocks: Sequence[Any]) -> Any:
    """All rows of a small column; a DataFrame stays one, with a type for each of its columns."""
    from dask.base import compute

    parts = [block for block in compute(*blocks) if len(block)]
    if not hasattr(parts[0], "to_numpy"):
        return np.concatenate(parts)
    from pandas import concat

    return concat(parts, ignore_index=True)


def _in_memory(values: Any) -> Any:
    return np.asarray(values) if values is not None and is_dask(values) else values


def dask_gating(gating: Any, source: BlockedRows) -> tuple[Any, tuple[str, ...]]:
    """Check gating covariates of rows that are elsewhere."""
    # gating: (n_obs,) or (n_obs, n_gate) -> (n_obs, n_gate), ...
    table = gating if hasattr(gating, "ndim") else np.asarray(gating)
    if table.ndim == 1:
        table = table.to_frame() if hasattr(table, "to_frame") else table[:, None]
    values, names = add_table(source, table, "gating")
    if not hasattr(table, "columns"):
        names = tuple(f"g{index}" for index in range(len(names)))
    return values, names


def whiten_dask(data: RegressionData, mean: FloatArray, factor: FloatArray) -> Any:
    """Inputs with mean zero and covariance one."""
    # mean: (n_features,), factor: (n_features, n_features) -> (n_obs, n_features)
    return map_columns(partial(whiten_rows, mean, factor), data.X, n_columns=data.n_features)


def project_dask(
    data: RegressionData, directions: FloatArray
) -> tuple[Any, FloatArray, FloatArray]:
    """Centred projections of the inputs; two passes."""
    # directions: (n_features, n_components) -> (n_obs, n_components), (n_components,)
    width = directions.shape[1]
    projected: Any = map_columns(partial(_project_rows, directions), data.X, n_columns=width)
    total = data.sample_weight.sum()
    mean = _weighted_sum(projected, data.sample_weight) / total
    centred = projected - mean
    squares = _weighted_sum(np.square(centred), data.sample_weight)
    return centred, mean, np.sqrt(squares / total)


def _weighted_sum(table: RowColumn, weights: Any) -> FloatArray:
    weighted = map_columns(_weigh_rows, table, weights, n_columns=table.n_columns)
    return np.asarray(weighted.sum(axis=0))


def _project_rows(directions: FloatArray, rows: NDArray[np.generic]) -> FloatArray:
    return np.asarray(np.asarray(rows, dtype=np.float64) @ directions)


def _weigh_rows(rows: FloatArray, weights: FloatArray) -> FloatArray:
    return rows * weights[:, None]
