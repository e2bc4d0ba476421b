"""Arguments with a value for every row, or for every row and response."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.data import validate_n_trials
from moment_init.real_arrays import as_float_array
from moment_init.responses.kinds import ResponseKind

__all__ = ["by_response", "validate_trials"]

FloatArray = NDArray[np.float64]


def by_response(values: Any, name: str, n_obs: int, n_responses: int) -> FloatArray | None:
    """Give an argument of the rows to every response.

    Parameters
    ----------
    values : array-like, shape (), (n_obs,) or (n_obs, n_responses), or None
        The argument.
    name : str
        Its name, for the messages.
    n_obs, n_responses : int
        Numbers of rows and responses.

    Returns
    -------
    numpy.ndarray, shape (n_responses, n_obs), or None
        Its values; None if it was not given.

    Raises
    ------
    TypeError
        For values that are not real numbers.
    ValueError
        For a wrong shape, masked, missing or infinite values.
    """
    if values is None:
        return None
    array = as_float_array(values, name)
    if array.shape not in {(), (n_obs,), (n_obs, n_responses)} or not np.isfinite(array).all():
        raise ValueError(
            f"`{name}` must be finite, of shape ({n_obs},) or ({n_obs}, {n_responses}); got shape "
            f"{array.shape}."
        )
    by_row = array[:, None] if array.ndim == 1 else array
    return np.ascontiguousarray(np.broadcast_to(by_row, (n_obs, n_responses)).T)


def validate_trials(n_trials: Any, kind: ResponseKind, n_obs: int) -> FloatArray | None:
    """Check the trials behind binomial responses.

    Parameters
    ----------
    n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), or None
        The trials.
    kind : ResponseKind
        Families of the responses.
    n_obs : int
        Number of rows.

    Returns
    -------
    numpy.ndarray, shape (n_responses, n_obs), or None
        The trials, one where a response has none; None if they were not given.

    Raises
    ------
    TypeError
        For values that are not real numbers.
    ValueError
        If no response has trials; for a wrong shape, and trials that are no whole numbers above
        zero.
    """
    if n_trials is None:
        return None
    if not any(family is not None and family.has_trials for family in kind.families):
        raise ValueError(
            f"`n_trials` must be None for family {kind.name!r}; it is for 'binomial'. Leave it out."
        )
    trials = np.array(by_response(n_trials, "n_trials", n_obs, len(kind.families)))
    for index, family in enumerate(kind.families):
        if family is not None and family.has_trials:
            validate_n_trials(trials[index], family, n_obs)
        else:
            trials[index] = 1.0
    return trials
