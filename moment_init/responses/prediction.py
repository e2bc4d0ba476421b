"""Rows that a fit of several responses is asked about, in the user's units."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from moment_init.em.prediction import match_columns
from moment_init.predictor_sizes import require_finite_offset, require_finite_predictors
from moment_init.responses.columns import columns_of_fit
from moment_init.responses.data import CLASSES, refuse_arguments, validate_rows
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses
from moment_init.responses.labels import validate_labels
from moment_init.responses.row_values import by_response, validate_trials
from moment_init.responses.rows import JointRows

__all__ = ["matched_inputs", "rows_of"]

FloatArray = NDArray[np.float64]


class AskedModel(Protocol):
    """What rows must agree with: a fit, or what is known of one."""

    @property
    def kind(self) -> ResponseKind:
        """Families and names of the responses."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def coefficients(self) -> FloatArray:
        """Coefficients, a row for each column."""


def matched_inputs(
    fit: AskedModel, X: Any, *, offset: Any = None, n_trials: Any = None
) -> JointRows:
    """Rows without responses.

    Parameters
    ----------
    fit : AskedModel
        The fit.
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    offset, n_trials : array-like, optional
        As in the fit.

    Returns
    -------
    JointRows
        The rows; their responses are missing.

    Raises
    ------
    TypeError
        For values that are not real numbers.
    ValueError
        For wrong shapes, missing values, predictors that overflow, and trials of responses
        without any.
    """
    if isinstance(fit.kind, Categorical):
        refuse_arguments("predict", CLASSES, offset=offset, n_trials=n_trials)
    features = match_columns(X, fit.feature_names, "X")
    require_finite_predictors(features, fit.coefficients, "X")
    n_obs, n_responses = len(features), len(fit.kind.families)
    missing = np.full((n_responses, n_obs), np.nan)
    known = by_response(offset, "offset", n_obs, n_responses)
    require_finite_offset(known)
    trials = validate_trials(n_trials, fit.kind, n_obs)
    return JointRows(features, missing, np.ones(n_obs), known, trials)


def rows_of(
    fit: AskedModel, X: Any, y: Any, *, offset: Any = None, n_trials: Any = None
) -> JointRows:
    """Rows with their responses.

    Parameters
    ----------
    fit : AskedModel
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
        For wrong shapes, missing values, predictors that overflow, and responses outside the
        family's range.
    """
    features = match_columns(X, fit.feature_names, "X")
    require_finite_predictors(features, fit.coefficients, "X")
    if isinstance(fit.kind, Categorical):
        refuse_arguments("JointFit", CLASSES, offset=offset, n_trials=n_trials)
        codes = validate_labels(y, fit.kind, len(features))
        return JointRows(features, codes[None], np.ones(len(features)))
    if not isinstance(fit.kind, SeparateResponses):
        raise TypeError(f"unknown kind of responses, {type(fit.kind).__name__}")
    columns = columns_of_fit(y, fit.kind.names)
    data = validate_rows(features, columns, fit.kind, offset=offset, n_trials=n_trials)
    require_finite_offset(data.offset)
    return JointRows(data.X, data.y, data.sample_weight, data.offset, data.n_trials)
