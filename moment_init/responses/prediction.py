"""Rows that a fit of several responses is asked about, in the user's units."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.em.prediction import match_columns
from moment_init.responses.data import by_response, validate_rows
from moment_init.responses.kinds import Categorical, SeparateResponses
from moment_init.responses.labels import validate_labels
from moment_init.responses.rows import JointRows

if TYPE_CHECKING:
    from moment_init.responses.result import JointFit

__all__ = ["matched_inputs", "rows_of"]

FloatArray = NDArray[np.float64]


def matched_inputs(
    fit: "JointFit", X: Any, *, offset: Any = None, n_trials: Any = None
) -> JointRows:
    """Rows without responses.

    Parameters
    ----------
    fit : JointFit
        The fit.
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    offset, n_trials : array-like, optional
        As in the fit.

    Returns
    -------
    JointRows
        The rows; their responses are missing.
    """
    features = match_columns(X, fit.feature_names, "X")
    n_obs, n_responses = len(features), len(fit.kind.families)
    missing = np.full((n_responses, n_obs), np.nan)
    ones = np.ones(n_obs)
    return JointRows(
        features,
        missing,
        ones,
        by_response(offset, "offset", n_obs, n_responses),
        by_response(n_trials, "n_trials", n_obs, n_responses),
    )


def rows_of(
    fit: "JointFit", X: Any, y: Any, *, offset: Any = None, n_trials: Any = None
) -> JointRows:
    """Rows with their responses.

    Parameters
    ----------
    fit : JointFit
        The fit.
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like or DataFrame, shape (n_obs, n_responses), or labels
        Responses; the columns of a DataFrame are matched by name.
    offset, n_trials : array-like, optional
        As in the fit.

    Returns
    -------
    JointRows
        The rows.

    Raises
    ------
    ValueError
        For wrong shapes, missing values, and responses outside the family's range.
    """
    features = match_columns(X, fit.feature_names, "X")
    if isinstance(fit.kind, Categorical):
        codes = validate_labels(y, fit.kind, len(features))
        return JointRows(features, codes[None], np.ones(len(features)))
    if not isinstance(fit.kind, SeparateResponses):
        raise TypeError(f"unknown kind of responses, {type(fit.kind).__name__}")
    columns = _columns(y, fit.kind.names)
    data = validate_rows(features, columns, fit.kind, offset=offset, n_trials=n_trials)
    return JointRows(data.X, data.y, data.sample_weight, data.offset, data.n_trials)


def _columns(y: Any, names: tuple[str, ...]) -> list[Any]:
    """Columns of y in the order of the fit."""
    if hasattr(y, "columns"):
        given = {str(name): y.iloc[:, index] for index, name in enumerate(y.columns)}
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(f"`y` must have the responses of the fit; missing are {missing}.")
        return [given[name].to_numpy() for name in names]
    array = np.asarray(y)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(
            f"`y` must have the {len(names)} responses of the fit, (n_obs, {len(names)}); got "
            f"shape {array.shape}."
        )
    return list(array.T)
