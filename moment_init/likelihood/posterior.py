"""A mixture evaluated on rows: densities, responsibilities and derivatives, block by block."""

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import read_block, sum_over_blocks
from moment_init.families import Family
from moment_init.families.density import MixturePosterior
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows

__all__ = [
    "ARRAYS_PER_COMPONENT",
    "posterior_of_block",
    "responsibilities",
    "row_log_likelihood",
    "with_ones",
]

FloatArray = NDArray[np.float64]

ARRAYS_PER_COMPONENT = 8
"""Posterior, predictors and derivatives: about this many doubles a row and component are alive."""


def row_log_likelihood(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Log density of every row under the mixture, with all constants, unweighted.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        Where to evaluate.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        The log densities; `sample_weight` is not applied.
    """
    result = np.empty(rows.n_obs)

    def write_block(block: slice) -> tuple[FloatArray, ...]:
        _, posterior = posterior_of_block(family, rows, parameters, block)
        trials = None if rows.n_trials is None else rows.n_trials[block]
        base = family.log_base_measure(rows.y[block], n_trials=trials)
        result[block] = posterior.log_density + base
        return ()

    sum_over_blocks(write_block, rows.n_obs, _doubles_without_curvature(parameters))
    return result


def responsibilities(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Posterior probability of every component given each row.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        Where to evaluate.

    Returns
    -------
    numpy.ndarray, shape (n_obs, n_components)
        Probabilities; every row sums to one.
    """
    result = np.empty((rows.n_obs, parameters.n_components))

    def write_block(block: slice) -> tuple[FloatArray, ...]:
        _, posterior = posterior_of_block(family, rows, parameters, block)
        result[block] = posterior.responsibilities.T
        return ()

    sum_over_blocks(write_block, rows.n_obs, _doubles_without_curvature(parameters))
    return result


def posterior_of_block(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters, block: slice
) -> tuple[FloatArray, MixturePosterior]:
    """Read a block of rows and evaluate the mixture on it.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        Where to evaluate.
    block : slice
        The rows to read.

    Returns
    -------
    z : numpy.ndarray, shape (n_block, n_features)
        The inputs; not to be written to.
    posterior : MixturePosterior
        Densities, responsibilities and derivatives.
    """
    z = read_block(rows.Z, block)
    eta = parameters.coefficients.T @ z.T + parameters.biases[:, None]
    if rows.offset is not None:
        eta += rows.offset[block]
    trials = None if rows.n_trials is None else rows.n_trials[block]
    posterior = family.mixture_posterior(
        rows.y[block],
        eta,
        parameters.weights,
        dispersion=parameters.dispersion,
        n_trials=trials,
    )
    return z, posterior


def with_ones(z: FloatArray) -> FloatArray:
    """Inputs with a column of ones for the intercept.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_block, n_features)
        The inputs.

    Returns
    -------
    numpy.ndarray, shape (n_block, n_features + 1)
        A copy, the ones last.
    """
    x = np.empty((z.shape[0], z.shape[1] + 1))
    x[:, :-1] = z
    x[:, -1] = 1.0
    return x


def _doubles_without_curvature(parameters: MixtureParameters) -> int:
    return parameters.n_features + ARRAYS_PER_COMPONENT * parameters.n_components
