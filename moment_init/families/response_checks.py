"""Rules that every row of a response must obey, with messages that name the row."""

import numpy as np
from numpy.typing import NDArray

from moment_init.families.links import FloatArray

__all__ = ["BoolArray", "is_count", "require_rows"]

type BoolArray = NDArray[np.bool_]


def is_count(values: FloatArray) -> BoolArray:
    """Tell which values are whole numbers, 0 or more.

    Parameters
    ----------
    values : ndarray
        Any shape.

    Returns
    -------
    ndarray of bool
        Of the same shape.
    """
    is_whole: BoolArray = np.isfinite(values) & (values >= 0) & (values == np.floor(values))
    return is_whole


def require_rows(
    is_valid: BoolArray, values: FloatArray, rule: str, remedy: str, *, argument: str = "y"
) -> None:
    """Raise for the first row that breaks a rule.

    Parameters
    ----------
    is_valid : ndarray of bool, shape (n_obs,)
        Which rows obey.
    values : ndarray of shape (n_obs,)
        The values to quote.
    rule, remedy : str
        What must hold ("must hold ..."), and a sentence on what to do.
    argument : str, default "y"
        The argument to name.

    Raises
    ------
    ValueError
        If any row breaks the rule.
    """
    if np.all(is_valid):
        return
    row = int(np.argmin(is_valid))
    raise ValueError(f"`{argument}` {rule}; got {values[row]:g} in row {row}. {remedy}")
