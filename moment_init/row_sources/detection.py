"""Whether rows are elsewhere, asked without importing Dask."""

import sys
from typing import Any

__all__ = ["in_memory", "is_elsewhere"]


def is_elsewhere(*values: Any) -> bool:
    """Whether any argument is a Dask collection.

    Parameters
    ----------
    *values : object
        The arguments.

    Returns
    -------
    bool
        False without a look at them where Dask was never imported.
    """
    if "dask" not in sys.modules:
        return False
    from dask.base import is_dask_collection

    return any(is_dask_collection(each) for each in values)


def in_memory[T](values: T, name: str) -> T:
    """Refuse a Dask collection where an array is needed, which NumPy would read whole in silence.

    Parameters
    ----------
    values : object
        The argument.
    name : str
        What the caller calls it.

    Returns
    -------
    object
        The argument.

    Raises
    ------
    TypeError
        If it is a Dask collection.
    """
    if is_elsewhere(values):
        raise TypeError(
            f"`{name}` must be in memory here; got a Dask collection. Call the function on its "
            "blocks, as in `X.map_partitions(fit.predict)`, or pass `.compute()` of it."
        )
    return values
