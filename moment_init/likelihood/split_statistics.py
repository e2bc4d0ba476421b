r"""Where one component hides two: information-matrix splits.

With z = (x, 1), u = d log p_j / d eta, V = -d^2 log p_j / d eta^2 and responsibilities R,

.. math:: M_j = \sum R (u^2 - V) z z', \qquad C_j = \sum R V z z'.

(with groups, the score of a group and its information take the place of u z and V z z').
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
from moment_init.likelihood.posterior import (
    BlockPosterior,
    doubles_per_unit,
    posterior_of_block,
)
from moment_init.likelihood.products import weighted_grams, with_ones
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
    r = parameters.n_components

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        there = posterior_of_block(family, rows, parameters, block)
        posterior, weight = there.posterior, there.unit_weight
        counts = posterior.responsibilities * there.weight
        curvature = -counts * posterior.eta2
        # the others' probabilities grow to sum to one
        remainders = _log_remainder(there.prior) - _log_remainder(there.unit_responsibilities)
        losses = np.dot(remainders, weight) if r > 1 else np.full(1, np.inf)
        if there.group_starts is None:
            squares = counts * posterior.eta1**2
            both = weighted_grams(there.z, np.concatenate([squares, curvature]), there.products)
            return both[:r] - both[r:], both[r:], counts.sum(axis=1), losses
        information = weighted_grams(there.z, curvature, there.products)
        x, starts, shares = with_ones(there.z), there.group_starts, there.unit_responsibilities
        scores = [np.add.reduceat(x * u[:, None], starts) for u in posterior.eta1 * there.weight]
        pairs = zip(scores, shares, strict=True)
        squared = np.stack([np.dot((t * share[:, None]).T, t) for t, share in pairs])
        return squared - information, information, counts.sum(axis=1), losses

    sums = sum_over_blocks(sum_block, rows.n_units, _doubles_per_unit(rows, parameters))
    return sums[0], sums[1], sums[2], sums[3]


def _noise_edges(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters, whiteners: FloatArray
) -> FloatArray:
    """Edge of the noise of the whitened M_j, shape (r,)."""

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        there = posterior_of_block(family, rows, parameters, block)
        x = with_ones(there.z)
        pairs = enumerate(whiteners)
        return (np.stack([_row_variances(there, j, x @ whitener.T) for j, whitener in pairs]),)

    (row_sums,) = sum_over_blocks(sum_block, rows.n_units, _doubles_per_unit(rows, parameters))
    # a component without rows has neither signal nor noise
    return 2 * np.sqrt(np.maximum(row_sums.max(axis=1), np.finfo(np.float64).tiny))


def _row_variances(there: BlockPosterior, component: int, whitened: FloatArray) -> FloatArray:
    """Row sums of the variances of R (u^2 - V) x x' with whitened x, shape (p + 1,)."""
    if there.group_starts is not None:
        return _group_variances(there, there.group_starts, component, whitened)
    posterior = there.posterior
    slopes, curvature = posterior.eta1[component], posterior.eta2[component]
    excess = posterior.responsibilities[component] * (slopes**2 + curvature)
    # Whitened rows are small where slopes are huge: neither is squared alone.
    products = excess[:, None] * whitened**2
    return np.asarray(np.dot(there.weight * products.sum(axis=1), products))


def _group_variances(
    there: BlockPosterior, starts: NDArray[np.intp], component: int, whitened: FloatArray
) -> FloatArray:
    """Row sums of the variances of R (t t' - sum V x x') over groups, row by row of the matrix."""
    posterior = there.posterior
    slopes = posterior.eta1[component] * there.weight
    curvature = posterior.eta2[component] * there.weight
    scores = np.add.reduceat(whitened * slopes[:, None], starts)
    shares = there.unit_responsibilities[component] ** 2
    result = np.empty(whitened.shape[1])
    for a, column in enumerate(whitened.T):
        information = np.add.reduceat(whitened * (curvature * column)[:, None], starts)
        result[a] = shares @ ((scores * scores[:, [a]] + information) ** 2).sum(axis=1)
    return result


def _log_remainder(probabilities: FloatArray) -> FloatArray:
    """Logarithm of the probability of all other components, held from below."""
    return np.asarray(np.log(np.maximum(1 - probabilities, _SMALLEST_REMAINDER)))


def _doubles_per_unit(rows: LikelihoodRows, parameters: MixtureParameters) -> int:
    return doubles_per_unit(rows, parameters, 4 * (parameters.n_features + 1))
