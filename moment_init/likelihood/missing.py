"""The missing information: conditional variance of the complete-data score, as sums over units."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.likelihood.posterior import BlockPosterior
from moment_init.likelihood.products import weighted_grams

__all__ = [
    "BlockScores",
    "MissingSums",
    "assemble_missing",
    "block_scores",
    "mean_scores",
    "missing_of_block",
    "weighted_blocks",
]

FloatArray = NDArray[np.float64]


class BlockScores(NamedTuple):
    """Scores of the units of a block, weighted with the roots of the units' weights.

    t_j is the score of component j's own density of a unit in its own parameters.

    Parameters
    ----------
    by_component : numpy.ndarray, shape (n_units, n_components, q)
        Scores t_j of groups, or R_j t_j of rows.
    responsibilities : numpy.ndarray, shape (n_units, n_components)
        Responsibilities R_j.
    gate : numpy.ndarray, shape (n_units, 1 + n_gate)
        A one and the gating covariates.
    is_grouped : bool
        Whether units are groups.
    means : numpy.ndarray, shape (n_units, n_parameters)
        Room for the means of the complete-data scores; of rows, `by_component` is part of it.
    """

    by_component: FloatArray
    responsibilities: FloatArray
    gate: FloatArray
    is_grouped: bool
    means: FloatArray


class MissingSums(NamedTuple):
    """Sums over units from which the missing information is put together.

    Parameters
    ----------
    products : numpy.ndarray, shape (n_parameters, n_parameters)
        Sum of outer products of the mean complete-data scores.
    second_moment : numpy.ndarray, shape (n_components, q, q)
        Sum of R_j t_j t_j'.
    gate_cross : numpy.ndarray, shape (n_components, q, 1 + n_gate)
        Sum of R_j t_j g'.
    gate_square : numpy.ndarray, shape (n_components, 1 + n_gate, 1 + n_gate)
        Sum of R_j g g'.
    """

    products: FloatArray
    second_moment: FloatArray
    gate_cross: FloatArray
    gate_square: FloatArray


def missing_of_block(there: BlockPosterior, q: int) -> MissingSums:
    """Sum over the units of a block.

    Parameters
    ----------
    there : BlockPosterior
        The block.
    q : int
        Entries that one component owns in the vector of parameters.

    Returns
    -------
    MissingSums
        The sums.
    """
    scores = block_scores(there, q)
    means = mean_scores(scores, scores.responsibilities)
    u, r = scores.responsibilities.shape
    own = means[:, : r * q].reshape(u, r, q)
    roots = np.sqrt(there.unit_weight)
    counts = there.unit_responsibilities * there.unit_weight
    if there.gate.shape[1] == 1:  # without a gate g = 1
        squares = counts.sum(axis=1)[:, None, None]
        cross = np.dot(roots, means[:, : r * q]).reshape(r, q, 1)
    else:
        gate = there.gate
        squares = np.stack([np.dot((gate * count[:, None]).T, gate) for count in counts])
        weighted = gate * roots[:, None]
        cross = np.stack([np.dot(own[:, j].T, weighted) for j in range(r)])
    seconds = _second_moments(there, scores, own, q)
    return MissingSums(np.dot(means.T, means), seconds, cross, squares)


def _second_moments(
    there: BlockPosterior, scores: BlockScores, own: FloatArray, q: int
) -> FloatArray:
    """Sum over units of R_j t_j t_j', (r, q, q)."""
    posterior = there.posterior
    if there.group_starts is not None:
        by_component = scores.by_component
        pairs = ((own[:, j].T, by_component[:, j]) for j in range(own.shape[1]))
        return np.stack([np.dot(*pair) for pair in pairs])
    counts = posterior.responsibilities * there.weight
    squared, mixed = None, None
    if posterior.tau1 is not None:
        squared, mixed = counts * posterior.tau1**2, counts * posterior.eta1 * posterior.tau1
    return weighted_blocks(there, counts * posterior.eta1**2, mixed, squared, q)


def block_scores(there: BlockPosterior, q: int) -> BlockScores:
    """Scores t_j of every unit; those of a group are sums over its rows.

    Parameters
    ----------
    there : BlockPosterior
        The block.
    q : int
        Entries that one component owns in the vector of parameters.

    Returns
    -------
    BlockScores
        The scores.
    """
    posterior, z = there.posterior, there.z
    (n, p), r = z.shape, len(posterior.eta1)
    is_grouped = there.group_starts is not None
    n_parameters = r * q + (r - 1) * there.gate.shape[1]
    means = np.empty((len(there.gate), n_parameters))
    scores = np.empty((n, r, q)) if is_grouped else means[:, : r * q].reshape(n, r, q)
    # without groups only products with the responsibilities are ever needed
    factor = there.weight if is_grouped else posterior.responsibilities * np.sqrt(there.weight)
    slopes = (posterior.eta1 * factor).T
    np.multiply(slopes[:, :, None], z[:, None, :], out=scores[:, :, :p])
    scores[:, :, p] = slopes
    if posterior.tau1 is not None:
        scores[:, :, p + 1] = (posterior.tau1 * factor).T
    if there.group_starts is not None:
        scores = np.add.reduceat(scores, there.group_starts, axis=0)
    shares = there.unit_responsibilities.T * np.sqrt(there.unit_weight)[:, None]
    return BlockScores(scores, shares, there.gate, is_grouped, means)


def mean_scores(scores: BlockScores, shares: FloatArray) -> FloatArray:
    """Means of the complete-data scores given the unit.

    Parameters
    ----------
    scores : BlockScores
        Scores of the components.
    shares : numpy.ndarray, shape (n_units, n_components)
        What multiplies the gating covariates in the gate's score.

    Returns
    -------
    numpy.ndarray, shape (n_units, n_parameters)
        The means.
    """
    u, r, q = scores.by_component.shape
    width = scores.gate.shape[1]
    result = scores.means
    if scores.is_grouped:
        own = scores.by_component * scores.responsibilities[:, :, None]
        result[:, : r * q] = own.reshape(u, r * q)
    logits = shares[:, : r - 1, None] * scores.gate[:, None, :]
    result[:, r * q :] = logits.reshape(u, (r - 1) * width)
    return result


def weighted_blocks(
    there: BlockPosterior,
    eta: FloatArray,
    mixed: FloatArray | None,
    tau: FloatArray | None,
    q: int,
) -> FloatArray:
    """Sum over rows of [[eta x x', mixed x], [mixed x', tau]] with x = (z, 1).

    Parameters
    ----------
    there : BlockPosterior
        The block.
    eta, mixed, tau : numpy.ndarray, shape (n_components, n_block)
        Weights of the rows; the last two None without a dispersion.
    q : int
        Entries that one component owns in the vector of parameters.

    Returns
    -------
    numpy.ndarray, shape (n_components, q, q)
        The sums.
    """
    result = np.empty((len(eta), q, q))
    p = there.z.shape[1]
    result[:, : p + 1, : p + 1] = weighted_grams(there.z, eta, there.products)
    if tau is not None and mixed is not None:
        result[:, :p, -1] = np.dot(mixed, there.z)
        result[:, p, -1] = mixed.sum(axis=1)
        result[:, -1, :-1] = result[:, :-1, -1]
        result[:, -1, -1] = tau.sum(axis=1)
    return result


def assemble_missing(sums: MissingSums) -> FloatArray:
    """Conditional variance of the complete-data score, e_j (t_j, g) with e_j the indicator of j.

    e_j has mean R_j given the unit: Cov(e_j t_j, e_k t_k) = delta_jk R_j t_j t_j' - R_j t_j R_k
    t_k', and likewise for the gate's part.

    Parameters
    ----------
    sums : MissingSums
        Sums over all units.

    Returns
    -------
    numpy.ndarray, shape (n_parameters, n_parameters)
        The missing information.
    """
    r, q, width = sums.gate_cross.shape
    missing = -sums.products
    for j in range(r):
        own = slice(j * q, (j + 1) * q)
        missing[own, own] += sums.second_moment[j]
        if j < r - 1:
            logits = slice(r * q + j * width, r * q + (j + 1) * width)
            missing[own, logits] += sums.gate_cross[j]
            missing[logits, own] += sums.gate_cross[j].T
            missing[logits, logits] += sums.gate_square[j]
    return missing
