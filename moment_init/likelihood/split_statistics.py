r"""Where one component hides two: information-matrix splits.

With z = (x, 1), u = d log p_j / d eta, V = -d^2 log p_j / d eta^2 and responsibilities R,

.. math:: M_j = \sum R (u^2 - V) z z', \qquad C_j = \sum R V z z'.

At the right model the mean of M_j is zero (the information-matrix equality). If component j stands
for two with coefficients beta +- v, M_j is positive along v: the top generalised eigenvectors of
(M_j, C_j) are the directions in which to split it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.blocks import sum_over_blocks
from moment_init.families import Family
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import ARRAYS_PER_COMPONENT, posterior_of_block, with_ones
from moment_init.likelihood.rows import LikelihoodRows

__all__ = ["SplitStatistics", "misfit", "split_statistics"]

FloatArray = NDArray[np.float64]

_RIDGE = 1e-8
"""Added to C_j: a component without rows has none, and its splits are then of size zero."""

_SMALLEST_REMAINDER = 1e-12
"""A row whose other components have less probability than this loses at most 28 units of
log-likelihood in the estimate of what a dropped component costs."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitStatistics:
    """How much each component asks to be split, and what it costs to drop it.

    Parameters
    ----------
    eigenvalues : numpy.ndarray, shape (n_components, n_directions)
        Largest generalised eigenvalues of (M_j, C_j), largest first.
    noise_edges : numpy.ndarray, shape (n_components,)
        What the largest eigenvalue comes to by noise alone.
    directions : numpy.ndarray, shape (n_components, n_directions, n_features + 1)
        Their eigenvectors v, the bias last, scaled to ``v' C_j v = sum R_j``.
    drop_losses : numpy.ndarray, shape (n_components,)
        Log-likelihood lost by leaving a component out without refitting; infinite if it is alone.
    """

    eigenvalues: FloatArray
    noise_edges: FloatArray
    directions: FloatArray
    drop_losses: FloatArray

    @property
    def ratios(self) -> FloatArray:
        """Largest eigenvalue of each component in units of its noise, shape (n_components,)."""
        return self.eigenvalues[:, 0] / self.noise_edges

    @property
    def misfit(self) -> float:
        """The largest of the ratios: about one or less where the model holds."""
        return float(self.ratios.max())


def split_statistics(
    family: Family,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    *,
    n_directions: int = 1,
) -> SplitStatistics:
    """Test every component for a hidden split, and find its directions.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        A fitted mixture.
    n_directions : int, default 1
        How many directions of each component; at most n_features + 1.

    Returns
    -------
    SplitStatistics
        Eigenvalues with their noise, directions, and the cost of dropping a component.

    Notes
    -----
    Two passes over the rows. The noise is the edge of the spectrum of a random symmetric matrix:
    twice the square root of the largest row sum of its entries' variances.
    """
    excess, curvature, counts, drop_losses = _split_sums(family, rows, parameters)
    width = parameters.n_features + 1
    curvature = curvature + _RIDGE * np.eye(width)
    factors = np.linalg.cholesky(curvature)
    whiteners = np.stack(
        [solve_triangular(factor, np.eye(width), lower=True) for factor in factors]
    )
    values, vectors = np.linalg.eigh(whiteners @ excess @ whiteners.transpose(0, 2, 1))
    top = slice(None, -n_directions - 1, -1)
    # whitened unit vectors have v' C v = 1
    directions = np.einsum("jab,jak->jkb", whiteners, vectors[:, :, top])
    directions *= np.sqrt(counts)[:, None, None]
    edges = _noise_edges(family, rows, parameters, whiteners)
    return SplitStatistics(values[:, top], edges, directions, drop_losses)


def misfit(family: Family, rows: LikelihoodRows, parameters: MixtureParameters) -> float:
    """Largest split statistic of all components, in units of its noise.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        A fitted mixture.

    Returns
    -------
    float
        About one or less where the model holds.
    """
    return split_statistics(family, rows, parameters).misfit


def _split_sums(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """M_j and C_j (r, p + 1, p + 1), effective rows (r,) and losses by dropping (r,)."""

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        z, posterior = posterior_of_block(family, rows, parameters, block)
        x = with_ones(z)
        weight = rows.sample_weight[block]
        counts = posterior.responsibilities * weight
        excess = counts * (posterior.eta1**2 + posterior.eta2)
        information = -counts * posterior.eta2
        others = np.maximum(1 - posterior.responsibilities, _SMALLEST_REMAINDER)
        return (
            np.stack([(x * row[:, None]).T @ x for row in excess]),
            np.stack([(x * row[:, None]).T @ x for row in information]),
            counts.sum(axis=1),
            -np.log(others) @ weight,
        )

    excesses, curvature, counts, losses = sum_over_blocks(
        sum_block, rows.n_obs, _doubles_per_row(parameters)
    )
    if parameters.n_components == 1:
        return excesses, curvature, counts, np.full(1, np.inf)
    # the others' weights grow to sum to one
    return excesses, curvature, counts, losses + rows.total_weight * np.log1p(-parameters.weights)


def _noise_edges(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters, whiteners: FloatArray
) -> FloatArray:
    """Edge of the noise of the whitened M_j, shape (r,)."""

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        z, posterior = posterior_of_block(family, rows, parameters, block)
        x = with_ones(z)
        excess = posterior.responsibilities * (posterior.eta1**2 + posterior.eta2)
        variances = excess**2 * rows.sample_weight[block]
        result = np.empty((len(whiteners), x.shape[1]))
        for component, whitener in enumerate(whiteners):
            squares = (x @ whitener.T) ** 2
            result[component] = (variances[component] * squares.sum(axis=1)) @ squares
        return (result,)

    (row_sums,) = sum_over_blocks(sum_block, rows.n_obs, _doubles_per_row(parameters))
    # a component without rows has neither signal nor noise
    return 2 * np.sqrt(np.maximum(row_sums.max(axis=1), np.finfo(np.float64).tiny))


def _doubles_per_row(parameters: MixtureParameters) -> int:
    return 3 * (parameters.n_features + 1) + ARRAYS_PER_COMPONENT * parameters.n_components
