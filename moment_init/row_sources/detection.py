"""Whether rows are elsewhere, asked without importing Dask."""

import sys
from typing import Any

__all__ = ["is_elsewhere"]


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
