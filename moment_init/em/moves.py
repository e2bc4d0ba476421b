"""Moves out of a local optimum: new starts proposed from the current best parameters.

Moves drop, split, replant or sharpen components, exchange their rows where predictors cross or
their fixed weights, turn one into a component of zeros, soften the likelihood, or impose a common
dispersion for a while.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from moment_init.checks import FloatArray
from moment_init.em.problem import EMProblem
from moment_init.em.starts import joined
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities, unit_log_likelihood
from moment_init.likelihood.splits import propose_drops_and_splits, split_statistics

FEW_FEATURES = 4
"""Up to this number of columns predictors often cross, and p + 1 random rows are likely enough to
come from one component."""

TEMPERED_STEPS = 15
"""Number of EM steps on a softened likelihood."""

COMMON_DISPERSION_RATIO = 0.9
"""Smallest ratio of two standard deviations with a "common" dispersion: they are nearly equal."""

STRETCH = 3.0
"""Factor that stretches a component's predictor: it crosses the flat part of the likelihood between
a component of typical scale and one that separates its rows."""

LOWERED = 4.0
"""Distance of the predictor of a component of zeros below all others, at the mean of the inputs.
Its mean response is then a fiftieth of theirs."""

_REFIT_STEPS = 5
"""Number of EM steps when a single component is refitted to given rows."""


def propose_moves(problem: EMProblem, parameters: MixtureParameters) -> list[MixtureParameters]:
    """Propose starts from which a better maximum may be reached."""
    if parameters.n_components == 1:
        return []
    moves = propose_drops_and_splits(problem.family, problem.rows, parameters)
    moves.append(_replanted(problem, parameters))
    if problem.family.has_binary_rows:
        moves += _stretched(parameters)
    # several predictors rarely cross in the same rows
    if parameters.n_features <= FEW_FEATURES and parameters.n_predictors == 1:
        moves += _uncrossed(problem, parameters)
    return moves


def propose_zeros(problem: EMProblem, parameters: MixtureParameters) -> list[MixtureParameters]:
    r"""Propose mixtures of counts with a component of zeros, if there are too many zeros.

    Lindsay's gradient function [1]_ tells whether a component that is always zero would raise the
    likelihood:

    .. math:: \sum_{i: y_i = 0} v_i / f(y_i \mid x_i) - \sum_i v_i > 0.

    Other starts hardly ever find such a component, because its zeros lie among those of others.

    References
    ----------
    .. [1] Lindsay (1983), The geometry of mixture likelihoods: a general theory, Annals of
       Statistics 11, 86-94.
    """
    rows = problem.rows
    has_counts = problem.family.has_unlimited_counts and parameters.n_predictors == 1
    if parameters.n_components == 1 or not has_counts:
        return []
    is_zero, weight = rows.y == 0.0, rows.unit_weights
    if rows.group_starts is not None:  # the weights of its rows are in the density of a group
        is_zero = np.logical_and.reduceat(is_zero, rows.group_starts)
    if not is_zero.any():
        return []
    density = unit_log_likelihood(problem.family, rows, parameters)
    # in logarithms: the density of a zero may be arbitrarily small
    if logsumexp(-density[is_zero], b=weight[is_zero]) <= np.log(weight.sum()):
        return []
    level = parameters.biases.min() - LOWERED
    moves = []
    for j in range(parameters.n_components):
        coefficients, biases = parameters.coefficients.copy(), parameters.biases.copy()
        coefficients[:, j], biases[j] = 0.0, level
        moves.append(replace(parameters, coefficients=coefficients, biases=biases))
    return moves


def propose_exchanges(problem: EMProblem, parameters: MixtureParameters) -> list[MixtureParameters]:
    """Propose mixtures in which two components have exchanged their fixed weights.

    Starts do not know which component has which weight, and several of them may agree on a maximum
    with the wrong ones.
    """
    weights = problem.restrictions.weights
    if weights is None:
        return []
    result = []
    for j, k in zip(*np.triu_indices(len(weights), k=1), strict=True):
        if weights[j] != weights[k]:
            order = np.arange(len(weights))
            order[[j, k]] = k, j
            result.append(replace(parameters.reorder(order), weights=weights))
    return result


def tempered(
    problem: EMProblem, parameters: MixtureParameters, temperature: float
) -> MixtureParameters:
    """Run EM on a softened likelihood; this leaves maxima that rest on a few rows only."""
    # rows of weight 1/T raise the density of their unit to the power 1/T
    rows = problem.rows
    starts, weight = rows.group_starts, rows.sample_weight / temperature
    if starts is None:  # without groups weights count units: only their ratios can be kept
        starts = np.arange(rows.n_obs, dtype=np.intp)
        weight = weight / rows.sample_weight.mean()
    # the climb only compares log-likelihoods, so any constant will do
    softened = replace(
        problem, rows=replace(rows, sample_weight=weight, group_starts=starts), constant=0.0
    )
    steps = TEMPERED_STEPS
    return softened.climb(parameters, max_steps=steps, em_steps=steps).parameters


def climb_with_common_dispersion(
    problem: EMProblem, parameters: MixtureParameters, **options: Any
) -> MixtureParameters:
    """Climb with a common dispersion, so that narrow components release their few rows.

    Hathaway's constraint keeps a narrow component from collapsing, not from being narrow. With few
    rows per parameter there are maxima on or near it whose components fit a few rows closely.
    """
    return with_common_dispersion(problem).climb(parameters, **options).parameters


def with_common_dispersion(problem: EMProblem) -> EMProblem:
    """Return the same problem with a common dispersion of all components."""
    ratio = max(COMMON_DISPERSION_RATIO, problem.min_dispersion_ratio)
    return replace(problem, min_dispersion_ratio=ratio)


def _replanted(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """Move the least useful component to the 1/r of the units with the lowest density."""
    density = unit_log_likelihood(problem.family, problem.rows, parameters)
    worst = density <= np.quantile(density, 1 / parameters.n_components)
    statistics = split_statistics(problem.family, problem.rows, parameters)
    drop = int(np.argmin(statistics.drop_losses))
    shares = _by_row(problem, worst.astype(np.float64))
    return _replace_components(problem, parameters, {drop: shares})


def _stretched(parameters: MixtureParameters) -> list[MixtureParameters]:
    """Sharpen each component in turn as a classifier: maxima of binary data differ in this."""
    result = []
    for j in range(parameters.n_components):
        factors = np.ones(parameters.n_components)
        factors[j] = STRETCH
        result.append(
            replace(
                parameters,
                coefficients=parameters.coefficients * factors,
                biases=parameters.biases * factors,
            )
        )
    return result


def _uncrossed(problem: EMProblem, parameters: MixtureParameters) -> list[MixtureParameters]:
    """Exchange the responsibilities of two components on the rows where one predictor is larger.

    This is done for every pair. Predictors may cross correctly in one place and wrongly in another,
    so rows are also exchanged on only one side of the median of each standardised column.
    """
    shares = responsibilities(problem.family, problem.rows, parameters)
    columns = np.asarray(problem.rows.Z)
    predictors = columns @ parameters.coefficients + parameters.biases
    medians = np.median(columns, axis=0)
    # if the median of a column is its largest value, no row lies beyond it
    is_right = np.where(medians < columns.max(axis=0), columns > medians, columns >= medians)
    sides = [*is_right.T, *~is_right.T]
    result = []
    for j in range(parameters.n_components):
        for k in range(j):
            above = predictors[:, j] > predictors[:, k]
            parts = [above, *(above & side for side in sides), *(~above & side for side in sides)]
            for part in parts:  # rows that are exchanged
                if not part.any() or part.all():  # the predictors do not cross there
                    continue
                first = np.where(part, shares[:, k], shares[:, j])
                second = np.where(part, shares[:, j], shares[:, k])
                result.append(_replace_components(problem, parameters, {j: first, k: second}))
    return result


def _replace_components(
    problem: EMProblem, parameters: MixtureParameters, shares: dict[int, FloatArray]
) -> MixtureParameters:
    """Refit some components to given shares of the rows, and update their weights."""
    rows = problem.rows
    parts = [
        replace(parameters.reorder(np.array([j])), gate=None)
        for j in range(len(parameters.weights))
    ]
    weights = parameters.weights.copy()
    for j, share in shares.items():
        weighted = replace(rows, sample_weight=rows.sample_weight * share, group_starts=None)
        start = replace(parts[j], weights=np.ones(1))
        steps = _REFIT_STEPS
        parts[j] = maximise(
            problem.family, weighted, start, max_steps=steps, em_steps=steps, constant=0.0
        ).parameters
        weights[j] = (rows.sample_weight @ share) / rows.total_weight
    return replace(joined(parts, weights / weights.sum()), gate=parameters.gate)


def _by_row(problem: EMProblem, by_unit: FloatArray) -> FloatArray:
    starts = problem.rows.group_starts
    if starts is None:
        return by_unit
    return np.repeat(by_unit, np.diff(np.append(starts, problem.rows.n_obs)))
