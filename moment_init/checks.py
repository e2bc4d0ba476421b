"""Errors, warnings and checks of arguments that the whole package uses.

In this order: exceptions and warnings that a caller may want to catch; `notify`, which warns at the
caller's line; a test for Dask collections that does not import Dask; arguments of real numbers,
which are converted to arrays or refused by name; the number of components, the length of a run and
the seed.

Python has one list of warning filters for all threads. A thread that changes the list and then
restores it can make another thread's change permanent. Warnings of this package are therefore
suppressed by a context variable, and the filters are changed by one thread at a time.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
"""An array of doubles; the whole package uses this alias."""


class ConvergenceWarning(UserWarning):
    """A search ended before it converged: the log-likelihood may still rise."""


class IdentifiabilityError(ValueError):
    """The requested model cannot be identified from the requested moments."""


class WeakSignalWarning(UserWarning):
    """The estimate is not clearly distinguishable from noise."""


_IS_QUIET: ContextVar[bool] = ContextVar("is_quiet", default=False)

_FILTERS_LOCK = RLock()

_PACKAGES = ("moment_init", "moment_init.models", "sklearn")


def notify(message: str, category: type[Warning]) -> None:
    """Warn at the user's line that called this library, unless `quiet_notices` is active.

    The number of calls in between varies: there may be decorators for formulas and for several
    responses, and scikit-learn's wrappers around the methods of an estimator.
    """
    if not _IS_QUIET.get():
        warnings.warn(message, category, skip_file_prefixes=_own_folders())


def _own_folders() -> tuple[str, ...]:
    modules = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    return tuple(f"{folder}{os.sep}" for module in modules for folder in module.__path__)


@contextmanager
def quiet_notices() -> Iterator[None]:
    """Suppress `notify` in this thread, for callers that word the warnings themselves."""
    token = _IS_QUIET.set(True)
    try:
        yield
    finally:
        _IS_QUIET.reset(token)


@contextmanager
def changed_filters() -> Iterator[None]:
    """Let one thread at a time change the warning filters, and restore them afterwards."""
    with _FILTERS_LOCK, warnings.catch_warnings():
        yield


def is_dask(*values: Any) -> bool:
    """Whether any argument is a Dask collection, by Dask's own protocol."""
    graphs = (getattr(type(value), "__dask_graph__", None) for value in values)
    pairs = zip(graphs, values, strict=True)
    return any(graph is not None and graph(value) is not None for graph, value in pairs)


def as_known_table(values: Any) -> Any:
    """Convert tables and columns of polars and pyarrow to those of pandas; others stay as is."""
    library = type(values).__module__.partition(".")[0]
    if library == "pyarrow" and hasattr(values, "to_pandas"):
        return values.to_pandas()
    if library != "polars":
        return values
    from pandas import DataFrame, Series

    if hasattr(values, "collect"):
        values = values.collect()  # a lazy frame
    if hasattr(values, "columns"):
        return DataFrame({name: values[name].to_numpy() for name in values.columns})
    return Series(values.to_numpy(), name=values.name)


def in_memory[T](values: T, name: str) -> T:
    """Raise for a Dask collection where an array is needed: NumPy would load all of it."""
    if is_dask(values):
        raise TypeError(
            f"`{name}` must be in memory here; got a Dask collection. Call the function on its "
            f"blocks, as in `X.map_partitions(fit.predict)`, or pass `{name}.compute()`."
        )
    return values


def as_real_array(values: Any, name: str) -> NDArray[np.generic]:
    """Convert an argument to a numeric array, or say which part of it is not numeric."""
    values = as_known_table(values)
    if hasattr(values, "dtypes") and hasattr(values, "columns"):
        in_memory(values, name)
        _require_numeric_columns(values, name)
        array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        array = as_array(values, name)
    if array.dtype == object:
        array = _from_objects(array, name)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"`{name}` must hold real numbers; got dtype {array.dtype}. Convert it to float."
        )
    return np.asarray(array)


def as_float_array(values: Any, name: str) -> FloatArray:
    """Convert an argument to an array of doubles."""
    return as_real_array(values, name).astype(np.float64, copy=False)


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Convert an argument of any type, such as labels, to an array."""
    values = as_known_table(in_memory(values, name))
    require_unmasked(values, name)
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of unequal length
        raise ValueError(
            f"`{name}` must be a full array; got rows of different lengths: {error}"
        ) from error


def _from_objects(array: NDArray[Any], name: str) -> FloatArray:
    if any(isinstance(value, str | bytes) for value in array.flat):
        raise TypeError(
            f"`{name}` must hold real numbers; got objects that are text. Encode or drop them."
        )
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"`{name}` must hold real numbers; got objects that cannot be converted ({error}). "
            "Encode or drop them."
        ) from error


def require_unmasked(values: Any, name: str) -> None:
    """Raise for masked values: NumPy would drop the mask and use the values under it."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        number = int(np.ma.getmaskarray(values).sum())
        raise ValueError(
            f"`{name}` must not have masked values; got {number}. Drop or impute those rows."
        )


def require_no_dates(values: Any, name: str) -> None:
    """Raise for masked values and for dates, which scikit-learn would convert to numbers."""
    require_unmasked(values, name)
    dtypes = values.dtypes if hasattr(values, "columns") else [getattr(values, "dtype", None)]
    for dtype in dtypes:
        if getattr(dtype, "kind", "f") in "mM":
            raise TypeError(
                f"`{name}` must hold real numbers; got dtype {dtype}. Convert it to float."
            )


def _require_numeric_columns(frame: Any, name: str) -> None:
    """Raise for columns of a DataFrame that are not numeric, and name them."""
    wrong = [
        f"{column} ({dtype})"
        for column, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if getattr(dtype, "kind", "O") not in "biuf"
    ]
    if wrong:
        raise TypeError(
            f"`{name}` must hold real numbers; got columns {', '.join(wrong)}. Encode or drop them."
        )


RandomSeed = int | Sequence[int] | np.random.Generator | None


def validate_n_components(n_components: Any, n_obs: int) -> int:
    """Check the number of components."""
    if isinstance(n_components, bool | np.bool_) or not isinstance(n_components, int | np.integer):
        raise TypeError(
            f"`n_components` must be an integer; got {n_components!r} "
            f"of type {type(n_components).__name__}."
        )
    if not 1 <= n_components <= n_obs:
        raise ValueError(
            f"`n_components` must be between 1 and the number of rows ({n_obs}); "
            f"got {n_components}. Use a smaller positive number."
        )
    return int(n_components)


def validate_run(draws: Any, tune: Any, chains: Any) -> None:
    """Check the numbers of draws, tuning steps and chains of a sampler."""
    for name, value in {"draws": draws, "chains": chains}.items():
        _require_integer(name, value, 1)
    if tune is not None:
        _require_integer("tune", tune, 0)


def _require_integer(name: str, value: Any, smallest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < smallest:
        kind = "positive" if smallest else "non-negative"
        raise ValueError(f"`{name}` must be a {kind} integer; got {value!r}.")


def make_generator(random_seed: RandomSeed) -> np.random.Generator:
    """Convert a seed to a generator; called once, at the entry point."""
    try:
        if isinstance(random_seed, np.random.RandomState):
            raise TypeError("a legacy generator cannot be spawned")
        return np.random.default_rng(random_seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`random_seed` must be a non-negative integer, a sequence of them, a "
            f"numpy.random.Generator or None; got {random_seed!r}."
        ) from error
