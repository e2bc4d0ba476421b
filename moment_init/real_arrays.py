"""Arguments that hold real numbers: turned into arrays, or refused by name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.row_sources.detection import in_memory

__all__ = ["as_array", "as_float_array", "as_real_array", "require_no_dates", "require_unmasked"]

FloatArray = NDArray[np.float64]


def as_real_array(values: Any, name: str) -> NDArray[np.generic]:
    """Turn an argument into a numeric array, or say which part of it is not numeric.

    Parameters
    ----------
    values : array-like or DataFrame
        The argument.
    name : str
        Its name, for the messages.

    Returns
    -------
    numpy.ndarray
        Its values, not copied where they are numeric already.

    Raises
    ------
    TypeError
        For values that are not real numbers.
    ValueError
        For masked values, and for lists of unequal length.
    """
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
    """Turn an argument into an array of doubles.

    Parameters
    ----------
    values : array-like or DataFrame
        The argument.
    name : str
        Its name, for the messages.

    Returns
    -------
    numpy.ndarray
        Its values in double precision, not copied where they are so already.

    Raises
    ------
    TypeError
        For values that are not real numbers.
    ValueError
        For masked values, and for lists of unequal length.
    """
    return as_real_array(values, name).astype(np.float64, copy=False)


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Turn an argument of any type, such as labels, into an array.

    Parameters
    ----------
    values : array-like
        The argument.
    name : str
        Its name, for the messages.

    Returns
    -------
    numpy.ndarray
        Its values.

    Raises
    ------
    TypeError
        For a Dask collection.
    ValueError
        For masked values, and for lists of unequal length.
    """
    in_memory(values, name)
    require_unmasked(values, name)
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of unequal length
        raise ValueError(
            f"`{name}` must be a full array; got parts that differ: {error}"
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
            f"`{name}` must hold real numbers; got objects that are not ({error}). "
            "Encode or drop them."
        ) from error


def require_unmasked(values: Any, name: str) -> None:
    """Raise for masked values: NumPy would forget the mask and take what is below it.

    Parameters
    ----------
    values : object
        The argument.
    name : str
        Its name, for the message.

    Raises
    ------
    ValueError
        If any of its values are masked.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        number = int(np.ma.getmaskarray(values).sum())
        raise ValueError(
            f"`{name}` must not have masked values; got {number}. Drop or impute those rows."
        )


def require_no_dates(values: Any, name: str) -> None:
    """Raise for masked values, and for dates: scikit-learn would take them for numbers of days.

    Parameters
    ----------
    values : object
        The argument.
    name : str
        Its name, for the message.

    Raises
    ------
    TypeError
        For dates and durations.
    ValueError
        If any of its values are masked.
    """
    require_unmasked(values, name)
    dtypes = values.dtypes if hasattr(values, "columns") else [getattr(values, "dtype", None)]
    for dtype in dtypes:
        if getattr(dtype, "kind", "f") in "mM":
            raise TypeError(
                f"`{name}` must hold real numbers; got dtype {dtype}. Convert it to float."
            )


def _require_numeric_columns(frame: Any, name: str) -> None:
    """Name the columns of a DataFrame that are not real numbers."""
    wrong = [
        f"{column} ({dtype})"
        for column, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if getattr(dtype, "kind", "O") not in "biuf"
    ]
    if wrong:
        raise TypeError(
            f"`{name}` must hold real numbers; got columns {', '.join(wrong)}. Encode or drop them."
        )
