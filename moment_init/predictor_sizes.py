"""Rows so large that their linear predictors are no numbers, refused by name."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["require_finite_offset", "require_finite_predictors"]

FloatArray = NDArray[np.float64]

_LARGEST_PREDICTOR = 1e280
"""Leaves room below the largest double, 2e308, for the response, trials or dispersion by which a
density multiplies a predictor."""


def require_finite_predictors(values: FloatArray, slopes: FloatArray, argument: str) -> None:
    r"""Raise for rows whose linear predictors would overflow.

    The bound :math:`\sum_k \max_i |x_{ik}| \max_j |\beta_{kj}|` is looked at: infinite terms of
    both signs would leave NaN.

    Parameters
    ----------
    values : numpy.ndarray, shape (n_obs, n_columns)
        Inputs or gating covariates.
    slopes : numpy.ndarray, shape (n_columns, ...)
        Their coefficients in all predictors.
    argument : str
        What the caller calls the values.

    Raises
    ------
    ValueError
        If the bound is above 1e280.
    """
    sizes = np.maximum(values.max(axis=0, initial=0.0), -values.min(axis=0, initial=0.0))
    steepest = np.abs(slopes).reshape(len(slopes), -1).max(axis=1, initial=0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # what is looked for
        terms = sizes * steepest
        if terms.sum() <= _LARGEST_PREDICTOR:
            return
    column = int(np.argmax(terms))
    row = int(np.argmax(np.abs(values[:, column])))
    raise ValueError(
        f"`{argument}` must have rows whose linear predictors are below {_LARGEST_PREDICTOR:g}; "
        f"got one of about {terms[column]:g} in row {row}. Check the units of that row, or drop it."
    )


def require_finite_offset(offset: FloatArray | None) -> None:
    """Raise for offsets that would make linear predictors overflow.

    Parameters
    ----------
    offset : numpy.ndarray or None
        Known parts of the predictors; NaN where a response has none.

    Raises
    ------
    ValueError
        If one is beyond 1e280.
    """
    if offset is None:
        return
    sizes = np.abs(offset)
    if not np.any(sizes > _LARGEST_PREDICTOR):
        return
    row = int(np.unravel_index(np.nanargmax(sizes), sizes.shape)[-1])
    raise ValueError(
        f"`offset` must be between {-_LARGEST_PREDICTOR:g} and {_LARGEST_PREDICTOR:g}; got "
        f"{np.nanmax(sizes):g} in size in row {row}. Check its units: it is on the scale of the "
        "linear predictor."
    )
