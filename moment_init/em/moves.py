"""Moves out of a local maximum: what is proposed, and which rows it is tried on."""

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
"""Up to so many columns curves cross often, and a start from p + 1 rows is likely enough to have
them all from one component."""

TEMPERED_STEPS = 15
"""EM steps on a softened likelihood."""

COMMON_DISPERSION_RATIO = 0.9
"""Smallest ratio of standard deviations while components are held to about the same one."""

STRETCH = 3.0
"""Factor by which a component's predictor is stretched: past the flat part of the likelihood
between a component of typical scale and one that separates its rows."""

LOWERED = 4.0
"""By how much the predictor of a component that shall have zeros alone is below all others at the
mean of the inputs: its mean is then a fiftieth of theirs."""

_REFIT_STEPS = 5
"""EM steps of a single component that is planted on given rows."""


def propose_moves(problem: EMProblem, parameters: MixtureParameters) -> list[MixtureParameters]:
    """Starts from which a better maximum may be reached."""
    if parameters.n_components == 1:
        return []
    moves = propose_drops_and_splits(problem.family, problem.rows, parameters)
    moves.append(_replanted(problem, parameters))
    if problem.family.has_binary_rows:
        moves += _stretched(parameters)
    if parameters.n_features <= FEW_FEATURES:
        moves += _uncrossed(problem, parameters)
    return moves


def propose_zeros(problem: EMProblem, parameters: MixtureParameters) -> list[MixtureParameters]:
    r"""Mixtures of counts in which one component has zeros alone, where there are too many zeros.

    Lindsay's gradient function [1]_ says whether a component that is always zero would raise the
    likelihood:

    .. math:: \sum_{i: y_i = 0} v_i / f(y_i \mid x_i) - \sum_i v_i > 0.

    Starts from the data lead to such a component hardly ever: its zeros lie among those of others.

    References
    ----------
    .. [1] Lindsay (1983), The geometry of mixture likelihoods: a general theory, Annals of
       Statistics 11, 86-94.
    """
    rows = problem.rows
    if parameters.n_components == 1 or not problem.family.has_unlimited_counts:
        return []
    is_zero, weight = rows.y == 0.0, rows.unit_weights
    if rows.group_starts is not None:  # whose density has the weights of its rows
        is_zero = np.logical_and.reduceat(is_zero, rows.group_starts)
    if not is_zero.any():
        return []
    density = unit_log_likelihood(problem.family, rows, parameters)
    # in logarithms: a zero may be as unlikely as any number
    if logsumexp(-density[is_zero], b=weight[is_zero]) <= np.log(weight.sum()):
        return []
    level = parameters.biases.min() - LOWERED
    moves = []
    for j in range(parameters.n_components):
        coefficients, biases = parameters.coefficients.copy(), parameters.biases.copy()
        coefficients[:, j], biases[j] = 0.0, level
        moves.append(replace(parameters, coefficients=coefficients, biases=biases))
    return moves


def tempered(
    problem: EMProblem, parameters: MixtureParameters, temperature: float
) -> MixtureParameters:
    """A start from EM on a softened likelihood: it leaves maxima that few rows hold up."""
    # a unit whose rows have weight 1/T has the density of its rows to the power 1/T
    rows = problem.rows
    starts, weight = rows.group_starts, rows.sample_weight / temperature
    if starts is None:  # the weight of a row counts units: only its ratio to others can be kept
        starts = np.arange(rows.n_obs, dtype=np.intp)
        weight = weight / rows.sample_weight.mean()
    # the climb compares log-likelihoods with each other only: any constant will do
    softened = replace(
        problem, rows=replace(rows, sample_weight=weight, group_starts=starts), constant=0.0
    )
    steps = TEMPERED_STEPS
    return softened.climb(parameters, max_steps=steps, em_steps=steps).parameters


def climb_with_common_dispersion(
    problem: EMProblem, parameters: MixtureParameters, **options: Any
) -> MixtureParameters:
    """A start from a climb with deviations held together: narrow components let go of few rows.

    Hathaway's constraint keeps a narrow component from collapsing, not from being narrow: with few
    rows a parameter there are maxima on it and near it whose components fit some rows closely.
    """
    return with_common_dispersion(problem).climb(parameters, **options).parameters


def with_common_dispersion(problem: EMProblem) -> EMProblem:
    """The same problem, with the deviations of all components held together."""
    ratio = max(COMMON_DISPERSION_RATIO, problem.min_dispersion_ratio)
    return replace(problem, min_dispersion_ratio=ratio)


def _replanted(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """Move the component of least use to the units of lowest density, one r-th of them."""
    density = unit_log_likelihood(problem.family, problem.rows, parameters)
    worst = density <= np.quantile(density, 1 / parameters.n_components)
    statistics = split_statistics(problem.family, problem.rows, parameters)
    drop = int(np.argmin(statistics.drop_losses))
    shares = _by_row(problem, worst.astype(np.float64))
    return _replace_components(problem, parameters, {drop: shares})


def _stretched(parameters: MixtureParameters) -> list[MixtureParameters]:
    """Make one component after the other a sharper classifier: maxima of binary data differ so."""
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
    """Every pair of components, with places traded where one's predictor is the larger.

    Predictors may cross more than once, rightly in one place and wrongly in another: the pair is
    also made to trade places on one side alone of the middle of each standardised column.
    """
    shares = responsibilities(problem.family, problem.rows, parameters)
    columns = np.asarray(problem.rows.Z)
    predictors = columns @ parameters.coefficients + parameters.biases
    middle = np.median(columns, axis=0)
    # Of a column whose most frequent value is its largest, no row is beyond the middle.
    is_right = np.where(middle < columns.max(axis=0), columns > middle, columns >= middle)
    sides = [*is_right.T, *~is_right.T]
    result = []
    for j in range(parameters.n_components):
        for k in range(j):
            above = predictors[:, j] > predictors[:, k]
            trades = [above, *(above & side for side in sides), *(~above & side for side in sides)]
            for trade in trades:
                if not trade.any() or trade.all():  # predictors do not cross there
                    continue
                first = np.where(trade, shares[:, k], shares[:, j])
                second = np.where(trade, shares[:, j], shares[:, k])
                result.append(_replace_components(problem, parameters, {j: first, k: second}))
    return result


def _replace_components(
    problem: EMProblem, parameters: MixtureParameters, shares: dict[int, FloatArray]
) -> MixtureParameters:
    """Refit some components to given shares of the rows; their weights follow."""
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
