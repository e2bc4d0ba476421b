"""Predict with a fit: mean response, component membership and log-likelihood of rows.

Rows are in the user's units, and named columns are matched by name. Gating covariates are centred
as in the fit. The logits at covariates zero, which may be far outside the data, are therefore never
turned into probabilities.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_known_table
from moment_init.data.checking import (
    gating_table,
    group_order,
    match_columns,
    match_offset,
    match_response,
    match_trials,
    require_constant_in_groups,
    require_finite_offset,
    require_finite_predictors,
    validate_groups,
    validate_sample_weight,
)
from moment_init.likelihood.gate import GaussianGate, gate_statistics, log_gate_density, unit_values
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import (
    prior_probabilities,
    responsibilities,
    unit_log_likelihood,
)
from moment_init.likelihood.rows import LikelihoodRows, column

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
    family = fit.response_family
    X, offset, n_trials, gating = map(as_known_table, (X, offset, n_trials, gating))
    features = match_columns(X, fit.feature_names, "X", min_obs=0)
    n_obs = len(features)
    covariates = _centred_gate(fit, gating, n_obs, None)  # checked for both kinds
    known = match_offset(offset, n_obs, family.n_predictors)
    _require_finite(fit, features, covariates, known)
    trials = match_trials(n_trials, family, n_obs)
    means = _component_means(fit, features, known)
    if trials is not None:
        means = means * trials.reshape(n_obs, 1, -1)
    if kind == "mean":
        prior = prior_probabilities(logit_parameters(fit), _with_ones(covariates, n_obs))
        means = (means * prior.T[:, :, None]).sum(axis=1)
    return means if fit.outcome_names else means[..., 0]


def with_index_of(X: Any, means: FloatArray, outcome_names: tuple[str, ...]) -> Any:
    """Give predictions the index of a DataFrame, so that they are assigned to its rows."""
    # means: (n_obs,) or (n_obs, n_columns), with three axes returned as they are
    if not (hasattr(X, "columns") and hasattr(X, "index")) or means.ndim > 2:
        return means
    from pandas import DataFrame, Series

    if means.ndim == 1:
        return Series(means, index=X.index, name="mean")
    return DataFrame(means, index=X.index, columns=outcome_names or None)


def _component_means(fit: "EMFit", features: FloatArray, offset: FloatArray | None) -> FloatArray:
    """Mean of every outcome under every component, (n_obs, n_components, n_outcomes)."""
    parameters = fit.centred_parameters
    predictors = []
    for a, (slopes, levels) in enumerate(zip(parameters.slopes, parameters.levels, strict=True)):
        eta = features @ slopes + levels
        if offset is not None:
            eta += column(offset, a)[:, None]
        predictors.append(eta)
    if not fit.outcome_names:
        return fit.response_family.means(predictors[0])[:, :, None]
    return np.ascontiguousarray(np.moveaxis(fit.response_family.means(np.stack(predictors)), 0, 2))


def membership(fit: "EMFit", X: Any, y: Any, **columns: Any) -> FloatArray:
    """Compute the posterior probabilities of the components for new rows, as `rows_for`."""
    # X: (n_obs, n_features), y: (n_obs,) -> (n_obs, n_components)
    rows, order = rows_for(fit, X, y, **columns)
    _require_finite(fit, rows.Z, rows.gate, rows.offset)
    shares = responsibilities(fit.response_family, rows, logit_parameters(fit))
    return in_users_order(shares, order)


def unit_scores(fit: "EMFit", rows: LikelihoodRows) -> tuple[FloatArray, FloatArray]:
    """Return the log-likelihood of every unit (row or group) and the weight of the unit."""
    # -> (n_units,), (n_units,)
    _require_finite(fit, rows.Z, rows.gate, rows.offset)
    values = unit_log_likelihood(fit.response_family, rows, logit_parameters(fit))
    if fit.gate_means is not None:
        values = values + unit_gate_log_likelihood(rows, logit_parameters(fit))
    return values, rows.unit_weights


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


def unit_gate_log_likelihood(rows: LikelihoodRows, parameters: MixtureParameters) -> FloatArray:
    """Compute the log density of the gating covariates of every unit under a Gaussian gate."""
    # -> (n_units,)
    return log_gate_density(parameters, unit_values(rows)[0])


def rows_for(
    fit: "EMFit",
    X: Any,
    y: Any,
    *,
    offset: Any = None,
    n_trials: Any = None,
    gating: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
) -> tuple[LikelihoodRows, IndexArray | None]:
    """Check rows against a fit; return them by group, with the order of the user's rows."""
    # X: (n_obs, n_features), y: (n_obs,) or (n_obs, n_responses) -> ..., (n_obs,)
    family = fit.response_family
    X, y, offset, n_trials = map(as_known_table, (X, y, offset, n_trials))
    gating, groups, sample_weight = map(as_known_table, (gating, groups, sample_weight))
    features = match_columns(X, fit.feature_names, "X")
    n_obs = len(features)
    trials = match_trials(n_trials, family, n_obs)
    response = match_response(y, family, fit.response_names, fit.classes, n_obs, n_trials=trials)
    labels = validate_groups(groups, n_obs)
    order, starts = group_order(labels)

    def sort(values: FloatArray | None) -> Any:
        return values if values is None or order is None else values[order]

    rows = LikelihoodRows(
        Z=sort(features),
        y=sort(response),
        sample_weight=sort(validate_sample_weight(sample_weight, n_obs)),
        offset=sort(match_offset(offset, n_obs, family.n_predictors)),
        n_trials=sort(trials),
        gate=sort(_centred_gate(fit, gating, n_obs, labels)),
        group_starts=starts,
    )
    return rows, order


def in_users_order(values: FloatArray, order: IndexArray | None) -> FloatArray:
    """Put rows back into the user's order."""
    # values: (n_obs, ...), order: (n_obs,) -> (n_obs, ...)
    if order is None:
        return values
    result = np.empty_like(values)
    result[order] = values
    return result


def _centred_gate(
    fit: "EMFit", gating: Any, n_obs: int, groups: NDArray[np.generic] | None
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
    covariates = match_columns(gating_table(gating), fit.gate_names, "gating", min_obs=0)
    if len(covariates) != n_obs:
        raise ValueError(
            f"`gating` must have one row per row of `X` ({n_obs}); got {len(covariates)}. "
            "Select the same rows."
        )
    require_constant_in_groups(covariates, fit.gate_names, groups)
    with np.errstate(over="ignore"):  # `_require_finite` checks for it
        centred = covariates - fit.gate_centre
        return centred if fit.gate_means is None else gate_statistics(centred)


def _require_finite(
    fit: "EMFit", features: Any, covariates: FloatArray | None, offset: FloatArray | None
) -> None:
    """Raise if predictors or logits of rows would overflow."""
    require_finite_offset(offset)
    by_feature = np.moveaxis(fit.centred_parameters.slopes, 1, 0)
    require_finite_predictors(features, by_feature, "X")
    slopes = logit_parameters(fit).gate
    if covariates is not None and slopes is not None:
        require_finite_predictors(covariates, slopes, "gating")


def _with_ones(covariates: FloatArray | None, n_obs: int) -> FloatArray:
    """Prepend a column of ones to the gating covariates."""
    ones = np.ones((n_obs, 1))
    return ones if covariates is None else np.concatenate([ones, covariates], axis=1)
