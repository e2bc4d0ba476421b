"""Evaluate a mixture on blocks of rows: densities, responsibilities and derivatives."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.families.base import Family, MixturePosterior, normalise_joint
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows

ARRAYS_PER_COMPONENT = 8
"""Doubles held per row and component: posterior, predictors and derivatives, about this many."""

_SMALLEST_PROBABILITY = 1e-280
"""Lower bound of a gate's probabilities, so that their logarithms are finite."""


class BlockPosterior(NamedTuple):
    """A mixture evaluated on a block of units."""

    z: FloatArray  # inputs of the rows, read only; (n_block, n_features)
    weight: FloatArray  # weights of the rows; (n_block,)
    # responsibilities and derivatives of the rows, (n_components, n_block); `log_density` is that
    # of the units, (n_units,)
    posterior: MixturePosterior
    unit_weight: FloatArray  # number of draws of a component per unit; (n_units,)
    unit_responsibilities: FloatArray  # responsibilities of the units; (n_components, n_units)
    # prior probabilities of the components; (n_components, 1) or (n_components, n_units)
    prior: FloatArray
    group_starts: NDArray[np.intp] | None  # first row of each group within the block; (n_units,)
    gate: FloatArray  # a one and the gating covariates of each unit; (n_units, 1 + n_gate)
    products: FloatArray | None  # stored products of columns of the rows


def posterior_of_block(
    family: Family,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    block: slice,
    assigned: FloatArray | None = None,
) -> BlockPosterior:
    """Read a block of units and evaluate the mixture on it."""
    # assigned: (n_components, n_units)
    row_slice = rows.rows_of(block)
    z = read_block(rows.Z, row_slice)
    weight = rows.sample_weight[row_slice]
    eta = parameters.coefficients.T @ z.T
    eta += parameters.biases[:, None]
    if rows.offset is not None:
        eta += rows.offset[row_slice]
    trials = None if rows.n_trials is None else rows.n_trials[row_slice]
    starts = None if rows.group_starts is None else rows.group_starts[block] - row_slice.start
    gate = _gate_design(None if parameters.gate is None else rows.gate, row_slice, starts)
    prior = prior_probabilities(parameters, gate)
    if starts is None and assigned is None:
        posterior = family.mixture_posterior(
            rows.y[row_slice], eta, prior, dispersion=parameters.dispersion, n_trials=trials
        )
        by_unit, unit_weight = posterior.responsibilities, weight
    else:
        kernel = family.kernel_derivatives(
            rows.y[row_slice], eta, dispersion=parameters.dispersion, n_trials=trials
        )
        joint, unit_weight = kernel.value, weight
        if starts is not None:
            joint = np.add.reduceat(joint * weight, starts, axis=1)
            unit_weight = np.ones(len(starts))
        joint = joint + np.log(prior)
        if assigned is None:
            log_density, by_unit = normalise_joint(joint)
        else:
            by_unit = assigned[:, block]
            log_density = (joint * by_unit).sum(axis=0)
        by_row = by_unit
        if starts is not None:
            by_row = np.repeat(by_unit, np.diff(np.append(starts, len(weight))), axis=1)
        posterior = MixturePosterior(log_density, by_row, *kernel[1:])
    products = None if rows.products is None else rows.products[row_slice]
    return BlockPosterior(z, weight, posterior, unit_weight, by_unit, prior, starts, gate, products)


def prior_probabilities(parameters: MixtureParameters, gate: FloatArray) -> FloatArray:
    r"""Prior probabilities of the components, given the gating covariates but not the response.

    .. math:: \pi_j(g) \propto w_j \exp(\langle\gamma_j, g\rangle).
    """
    # gate: (n_units, 1 + n_gate) -> (n_components, 1) or (n_components, n_units)
    if parameters.gate is None:
        return parameters.weights[:, None]
    logits = parameters.gate.T @ gate[:, 1:].T + np.log(parameters.weights)[:, None]
    _, prior = normalise_joint(logits)
    return np.maximum(prior, _SMALLEST_PROBABILITY)


def unit_log_likelihood(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Log density of every unit under the mixture, with all constants."""
    # -> (n_units,)
    result = np.empty(rows.n_units)

    def write_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units)
        row_slice = rows.rows_of(units)
        trials = None if rows.n_trials is None else rows.n_trials[row_slice]
        base = family.log_base_measure(rows.y[row_slice], n_trials=trials)
        if block.group_starts is not None:
            base = np.add.reduceat(base * block.weight, block.group_starts)
        result[units] = block.posterior.log_density + base
        return ()

    sum_over_blocks(write_block, rows.n_units, doubles_per_unit(rows, parameters))
    return result


def responsibilities(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Posterior probability of every component for each row, or for its group."""
    # -> (n_obs, n_components)
    result = np.empty((rows.n_obs, parameters.n_components))

    def write_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units)
        result[rows.rows_of(units)] = block.posterior.responsibilities.T
        return ()

    sum_over_blocks(write_block, rows.n_units, doubles_per_unit(rows, parameters))
    return result


def doubles_per_unit(rows: LikelihoodRows, parameters: MixtureParameters, extra: int = 0) -> int:
    """Doubles that a block holds for each of its units."""
    per_row = parameters.n_features + ARRAYS_PER_COMPONENT * parameters.n_components + extra
    return per_row * -(-rows.n_obs // max(1, rows.n_units))


def _gate_design(
    covariates: FloatArray | None, row_slice: slice, starts: NDArray[np.intp] | None
) -> FloatArray:
    """A one and the gating covariates of each unit; a group has those of its first row."""
    n_units = row_slice.stop - row_slice.start if starts is None else len(starts)
    if covariates is None:
        return np.ones((n_units, 1))
    design = np.ones((n_units, 1 + covariates.shape[1]))
    design[:, 1:] = covariates[row_slice] if starts is None else covariates[row_slice][starts]
    return design
