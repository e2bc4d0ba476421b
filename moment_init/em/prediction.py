"""Predict with a fit: mean response, component membership and log-likelihood of rows.

Rows are in the user's units, and named columns are matched by name. Gating covariates are centred
as in the fit. The logits at covariates zero, which may be far outside the data, are therefore never
turned into probabilities.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_known_table
from moment_init.data.checking import (
    match_columns,
    match_offset,
    match_response,
    match_trials,
    require_constant_in_groups,
    validate_groups,
    validate_sample_weight,
)
from moment_init.families.several import AnyFamily
from moment_init.likelihood.draws import Draws, log_likelihoods, means, require_finite
from moment_init.likelihood.gate import GaussianGate, gate_statistics
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities
from moment_init.likelihood.rows import LikelihoodRows, by_group

if TYPE_CHECKING:
    from moment_init.em.result import EMFit

IndexArray = NDArray[np.intp]
PredictionKind = Literal["mean", "components"]


def predicted_mean(
    fit: "EMFit",
    X: Any,
    *,
    offset: Any = None,
    n_trials: Any = None,
    gating: Any = None,
    kind: PredictionKind = "mean",
) -> FloatArray:
    """Predict the mean responses of new rows, or the probabilities of classes."""
    # X: (n_obs, n_features), offset: (n_obs,) or (n_obs, n_predictors), gating: (n_obs, n_gate) ->
    # (n_obs[, n_components]), with an axis of outcomes at the end if there are several
    if kind not in ("mean", "components"):
        raise ValueError(
            f"`kind` must be 'mean' or 'components'; got {kind!r}. Choose one of them."
        )
    rows, _ = rows_for(fit, X, offset=offset, n_trials=n_trials, gating=gating)
    draws = single_draw(fit)
    require_finite(rows, draws)
    by_component = kind == "components"
    return means(fit.response_family, rows, draws, by_component=by_component, is_averaged=True)


def with_index_of(X: Any, means: FloatArray, outcome_names: tuple[str, ...]) -> Any:
    """Give predictions the index of a DataFrame, so that they are assigned to its rows."""
    # means: (n_obs,) or (n_obs, n_columns), with three axes returned as they are
    if not (hasattr(X, "columns") and hasattr(X, "index")) or means.ndim > 2:
        return means
    from pandas import DataFrame, Series

    if means.ndim == 1:
        return Series(means, index=X.index, name="mean")
    return DataFrame(means, index=X.index, columns=outcome_names or None)


def membership(
    fit: "EMFit",
    X: Any,
    y: Any,
    *,
    offset: Any = None,
    n_trials: Any = None,
    gating: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
) -> FloatArray:
    """Compute the posterior probabilities of the components for new rows."""
    # X: (n_obs, n_features), y: (n_obs,) -> (n_obs, n_components)
    rows, order = rows_for(
        fit,
        X,
        y,
        offset=offset,
        n_trials=n_trials,
        gating=gating,
        groups=groups,
        sample_weight=sample_weight,
    )
    require_finite(rows, single_draw(fit))
    shares = responsibilities(fit.response_family, rows, logit_parameters(fit))
    return in_users_order(shares, order)


def unit_scores(fit: "EMFit", rows: LikelihoodRows) -> tuple[FloatArray, FloatArray]:
    """Return the log-likelihood of every unit (row or group) and the weight of the unit."""
    # -> (n_units,), (n_units,)
    draws = single_draw(fit)
    require_finite(rows, draws)
    is_joint = fit.gate_means is not None
    values = log_likelihoods(fit.response_family, rows, draws, is_joint=is_joint)
    return values[0], rows.unit_weights


def single_draw(fit: "EMFit") -> Draws:
    """Return the parameters of a fit as a draw, for the rows of `rows_for`."""
    return Draws.of([logit_parameters(fit)])


def logit_parameters(fit: "EMFit") -> MixtureParameters:
    """Return parameters for the rows of `rows_for`; a Gaussian gate becomes a logit gate."""
    if fit.gaussian_gate is None:
        return fit.centred_parameters
    return with_gaussian_gate(fit.centred_parameters, fit.gaussian_gate, fit.gate_centre)


def with_gaussian_gate(
    parameters: MixtureParameters, gate: GaussianGate, centre: FloatArray | None
) -> MixtureParameters:
    """Write a Gaussian gate as a logit gate of the covariates and their products."""
    # centre: (n_gate,)
    shift = np.zeros(gate.n_gate) if centre is None else -centre
    return replace(parameters, gate=gate.rescale(shift, np.ones(gate.n_gate)).slopes)


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """What `rows_for` reads of a fit: names, the family, and where the gate is centred."""

    response_family: AnyFamily  # with links
    feature_names: tuple[str, ...]  # columns of the inputs
    gate_names: tuple[str, ...]  # columns of the gating covariates
    gate_centre: FloatArray | None  # subtracted from gating covariates; None without a gate
    gate_means: FloatArray | None  # None unless the gate is Gaussian
    response_names: tuple[str, ...] = ()  # several responses, or all classes but the first
    classes: NDArray[Any] | None = None  # names of all classes


def rows_for(
    fit: "EMFit | RowLayout",
    X: Any,
    y: Any = None,
    *,
    offset: Any = None,
    n_trials: Any = None,
    gating: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
) -> tuple[LikelihoodRows, IndexArray | None]:
    """Check rows against a fit; return them by group, with the order of the user's rows.

    Rows without a response have zeros in its place.
    """
    # X: (n_obs, n_features), y: (n_obs,) or (n_obs, n_responses) -> ..., (n_obs,)
    family = fit.response_family
    X, y, offset, n_trials = map(as_known_table, (X, y, offset, n_trials))
    gating, groups, sample_weight = map(as_known_table, (gating, groups, sample_weight))
    features = match_columns(X, fit.feature_names, "X", min_obs=0 if y is None else 1)
    n_obs = len(features)
    trials = match_trials(n_trials, family, n_obs)
    if y is None:
        response = np.zeros((n_obs, len(family.members)))
    else:
        names, classes = fit.response_names, fit.classes
        response = match_response(y, family, names, classes, n_obs, n_trials=trials)
    labels = validate_groups(groups, n_obs)
    rows = LikelihoodRows(
        Z=features,
        y=response,
        sample_weight=validate_sample_weight(sample_weight, n_obs),
        offset=match_offset(offset, n_obs, family.n_predictors),
        n_trials=trials,
        gate=_centred_gate(fit, gating, n_obs, labels),
    )
    return by_group(rows, labels)


def in_users_order(values: NDArray[Any], order: IndexArray | None, axis: int = 0) -> NDArray[Any]:
    """Put rows back into the user's order."""
    # order: (n_obs,)
    return values if order is None else np.take(values, np.argsort(order), axis=axis)


def unit_labels(
    rows: LikelihoodRows, order: IndexArray | None, groups: Any, labels: NDArray[Any] | None = None
) -> tuple[str, NDArray[Any]]:
    """Return the dim and the labels of units: rows, or groups in the order of their first rows."""
    # order, groups, labels: (n_obs,) -> ..., (n_units,)
    if rows.group_starts is None or order is None:
        return "obs", np.arange(rows.n_obs) if labels is None else labels
    names = np.asarray(groups)[order[rows.group_starts]]
    return "group", names if names.dtype.kind in "iuf" else names.astype(str)


def _centred_gate(
    fit: "EMFit | RowLayout", gating: Any, n_obs: int, groups: NDArray[np.generic] | None
) -> FloatArray | None:
    """Check gating covariates and centre them as in the fit; None without a gate."""
    if fit.gate_centre is None:
        if gating is not None:
            raise ValueError(
                "`gating` must be None for a fit without a gate; got covariates. Leave them out."
            )
        return None
    if gating is None:
        raise ValueError(
            f"`gating` must be given for a fit with a gate ({', '.join(fit.gate_names)}); got "
            "None. Pass the same covariates for these rows."
        )
    if np.ndim(gating) == 1:
        gating = gating.to_frame() if hasattr(gating, "to_frame") else np.asarray(gating)[:, None]
    covariates = match_columns(gating, fit.gate_names, "gating", min_obs=0)
    if len(covariates) != n_obs:
        raise ValueError(
            f"`gating` must have one row per row of `X` ({n_obs}); got {len(covariates)}. "
            "Select the same rows."
        )
    require_constant_in_groups(covariates, fit.gate_names, groups)
    with np.errstate(over="ignore"):  # `require_finite` checks for it
        centred = covariates - fit.gate_centre
        return centred if fit.gate_means is None else gate_statistics(centred)
