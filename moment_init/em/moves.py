"""Ways out of a local optimum: new starts from the parameters of an optimum.

Moves are directed: they drop and split components, put a new one where the likelihood gains most,
soften the likelihood for a while, exchange fixed weights, or turn one component into one of zeros.
Perturbations are random: they assign units again, draw one component again near another, or add
noise to all coefficients.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from moment_init.checks import FloatArray
from moment_init.em.problem import EMProblem
from moment_init.em.starts import (
    add_noise,
    fit_responsibilities,
    softly_assigned,
    with_slopes,
)
from moment_init.likelihood.em_step import fit_assigned
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities, unit_log_likelihood
from moment_init.likelihood.splits import propose_drops_and_splits

TEMPERATURE = 3.5
"""Temperature T of the softened likelihood: the density of each unit is raised to the power 1/T."""

TEMPERED_STEPS = 15
"""Number of EM steps on a softened likelihood."""

LOWERED = 4.0
"""Distance of the predictor of a component of zeros below all others, at the mean of the inputs.
Its mean response is then a fiftieth of theirs."""

N_GRADIENT_STARTS, GRADIENT_STEPS = 2, 6
"""Number of climbs of the gradient function, and steps of each: the maximum need not be exact."""


Perturbation = Callable[[EMProblem, MixtureParameters, np.random.Generator], MixtureParameters]


def propose_moves(
    problem: EMProblem, parameters: MixtureParameters, rng: np.random.Generator
) -> list[MixtureParameters]:
    """Propose starts from which a better maximum than the given one may be reached."""
    if parameters.n_components == 1:
        return []
    return [
        *propose_exchanges(problem, parameters),
        *propose_zeros(problem, parameters),
        tempered(problem, parameters),
        *propose_new_component(problem, parameters, rng),
        *propose_drops_and_splits(problem.family, problem.rows, parameters),
    ]


REASSIGNED = (0.15, 0.6)
"""Range of the share of units that are assigned again."""

NOISE = 0.5
"""Deviation of the noise that is added to all coefficients, in the family's typical size."""


def reassign_units(
    problem: EMProblem, parameters: MixtureParameters, rng: np.random.Generator
) -> MixtureParameters:
    """Assign a share of the units at random, and fit the components to all."""
    rows, r = problem.rows, parameters.n_components
    shares = responsibilities(problem.family, rows, parameters)
    if rows.group_starts is not None:
        shares = shares[rows.group_starts]
    is_drawn = rng.random(rows.n_units) < rng.uniform(*REASSIGNED)
    drawn = softly_assigned(rng.integers(r, size=rows.n_units), r)
    fitted = fit_responsibilities(problem, np.where(is_drawn[:, None], drawn, shares))
    return replace(fitted, gate=parameters.gate)


def redraw_component(
    problem: EMProblem, parameters: MixtureParameters, rng: np.random.Generator
) -> MixtureParameters:
    """Draw one component again near another, and divide the other's weight between them."""
    r = parameters.n_components
    drawn, other = rng.choice(r, 2, replace=False)
    order = np.arange(r)
    order[drawn] = other
    copied = parameters.reorder(order)
    weights = copied.weights.copy()
    weights[[drawn, other]] /= 2
    copied = replace(copied, weights=weights / weights.sum())
    return add_noise(problem, copied, (np.arange(r) == drawn).astype(np.float64), rng)


def shake(
    problem: EMProblem, parameters: MixtureParameters, rng: np.random.Generator
) -> MixtureParameters:
    """Add noise to all coefficients and biases."""
    return add_noise(problem, parameters, np.full(parameters.n_components, NOISE), rng)


PERTURBATIONS: tuple[Perturbation, ...] = (reassign_units, redraw_component, shake)
"""They help on different data, and take turns."""


def propose_new_component(
    problem: EMProblem, parameters: MixtureParameters, rng: np.random.Generator
) -> list[MixtureParameters]:
    r"""Propose mixtures in which the best new component replaces each of the others in turn.

    Lindsay's gradient function [1]_ is the derivative of the log-likelihood in the weight of a new
    component,

    .. math:: D(\theta) = \sum_i v_i f(y_i \mid x_i, \theta) / p(y_i \mid x_i) - \sum_i v_i.

    Each step of its ascent is a weighted fit, with weights proportional to the terms of the sum.
    The dispersion is held: a free one would shrink onto a single row.

    References
    ----------
    .. [1] Lindsay (1983), The geometry of mixture likelihoods: a general theory, Annals of
       Statistics 11, 86-94.
    """
    family, rows = problem.family, replace(problem.rows, gate=None)
    density = unit_log_likelihood(family, problem.rows, parameters)
    log_weight, r = np.log(problem.rows.unit_weights), parameters.n_components
    single = replace(parameters.reorder(np.zeros(1, dtype=np.intp)), weights=np.ones(1), gate=None)
    if parameters.spreads is not None:
        common = np.exp(np.log(parameters.spreads) @ parameters.weights)
        single = replace(single, dispersion=common.reshape(single.biases.shape))
    best, height = single, -np.inf
    for share in _gradient_starts(density, r, rng):
        new = single
        for _ in range(GRADIENT_STEPS):
            fitted = fit_assigned(family, rows, new, share[None], max_steps=1)
            new = replace(fitted, dispersion=single.dispersion)
            terms = unit_log_likelihood(family, rows, new) - density
            total = float(logsumexp(terms + log_weight))
            share = len(terms) / r * np.exp(terms + log_weight - total)
        if total > height:
            best, height = new, total
    result = []
    for j in range(r):
        slopes, levels = parameters.slopes.copy(), parameters.levels.copy()
        slopes[:, :, j], levels[:, j] = best.slopes[:, :, 0], best.levels[:, 0]
        result.append(with_slopes(parameters, slopes, levels))
    return result


def _gradient_starts(
    density: FloatArray, n_components: int, rng: np.random.Generator
) -> list[FloatArray]:
    """Shares of the units in the first fit of a new component: the worst fitted, and random."""
    worst = density <= np.quantile(density, 1 / n_components)
    starts = [worst.astype(np.float64)]
    for _ in range(N_GRADIENT_STARTS - 1):
        starts.append(np.where(rng.random(len(density)) < 0.5 / n_components, 1.0, OTHER))
    return starts


OTHER = 0.05
"""Share of the units that are not drawn, so that a fit to the few that are is not exact."""


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
    problem: EMProblem, parameters: MixtureParameters, temperature: float = TEMPERATURE
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
