r"""Log-likelihood of a mixture, its score and its information, as sums over rows.

With responsibilities R_ji and the score s_ji of component j's own log density in its own
parameters, Louis' identity (1982) splits the observed information into two parts,

.. math:: I_{observed} = I_{complete} - I_{missing},

the conditional mean of the information that would be had if the components were known, and the
conditional variance of the score that was then known. The first alone gives EM steps, the
difference Newton steps.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import sum_over_blocks
from moment_init.families import Family
from moment_init.families.density import MixturePosterior
from moment_init.likelihood.parameters import MixtureParameters, component_size, parameter_count
from moment_init.likelihood.posterior import ARRAYS_PER_COMPONENT, posterior_of_block, with_ones
from moment_init.likelihood.rows import LikelihoodRows

__all__ = [
    "LikelihoodSums",
    "likelihood_sums",
    "outer_product_information",
    "parameter_free_log_likelihood",
]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodSums:
    """A log-likelihood and its derivatives at one set of parameters.

    Parameters
    ----------
    log_likelihood : float
        Weighted sum over rows of the log density, with all constants.
    score : numpy.ndarray, shape (n_parameters,)
        Its gradient, in the order of `moment_init.likelihood.parameters`.
    complete_information : numpy.ndarray, shape (n_parameters, n_parameters), or None
        Conditional mean of the complete-data information; None if no curvature was asked for.
    missing_information : numpy.ndarray, shape (n_parameters, n_parameters), or None
        Conditional variance of the complete-data score.
    """

    log_likelihood: float
    score: FloatArray
    complete_information: FloatArray | None
    missing_information: FloatArray | None

    def information(self, damping: float = 0.0) -> FloatArray:
        """Information between the observed one and the complete-data one.

        Parameters
        ----------
        damping : float, default 0.0
            0 for the observed information, 1 for the complete-data one.

        Returns
        -------
        numpy.ndarray, shape (n_parameters, n_parameters)
            ``complete - (1 - damping) * missing``.

        Raises
        ------
        ValueError
            If the sums were made with ``curvature=False``.
        """
        if self.complete_information is None or self.missing_information is None:
            raise ValueError("`curvature` must be True in `likelihood_sums` for an information.")
        return self.complete_information - (1 - damping) * self.missing_information


class _Curvature(NamedTuple):
    """Sums over rows from which the two informations are put together; q as in `parameters`."""

    complete: FloatArray  # (r, q, q): sum R_j times minus the second derivative
    second_moment: FloatArray  # (r, q, q): sum R_j s_j s_j'
    score_products: FloatArray  # (r q, r q): sum (R_j s_j)(R_k s_k)'
    score_responsibility: FloatArray  # (r q, r): sum (R_j s_j) R_k
    responsibility_products: FloatArray  # (r, r): sum R_j R_k


def likelihood_sums(
    family: Family,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    *,
    curvature: bool = True,
    constant: float | None = None,
) -> LikelihoodSums:
    """Sum log-likelihood, score and information over all rows.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        Where to evaluate.
    curvature : bool, default True
        Whether to sum the information too; without it a pass costs O(n p r), with it
        O(n p^2 r^2).
    constant : float, optional
        `parameter_free_log_likelihood` of these rows, for callers that evaluate often.

    Returns
    -------
    LikelihoodSums
        The sums.
    """
    p, r, q = parameters.n_features, parameters.n_components, component_size(parameters)

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        z, posterior = posterior_of_block(family, rows, parameters, block)
        weight = rows.sample_weight[block]
        counts = posterior.responsibilities * weight
        slopes = counts * posterior.eta1
        score = np.empty((r, q))
        score[:, :p] = slopes @ z
        score[:, p] = slopes.sum(axis=1)
        if posterior.tau1 is not None:
            score[:, p + 1] = (counts * posterior.tau1).sum(axis=1)
        sums = (np.array(weight @ posterior.log_density), score, counts.sum(axis=1))
        return (*sums, *_curvature_of_block(z, posterior, weight, q)) if curvature else sums

    doubles = p + ARRAYS_PER_COMPONENT * r + (r * q + p if curvature else 0)
    log_likelihood, scores, counts, *rest = sum_over_blocks(sum_block, rows.n_obs, doubles)
    expected_counts = rows.total_weight * parameters.weights
    if constant is None:
        constant = parameter_free_log_likelihood(family, rows)
    complete, missing = None, None
    if curvature:
        complete, missing = _assemble(_Curvature(*rest), scores, counts, expected_counts)
    return LikelihoodSums(
        float(log_likelihood) + constant,
        np.concatenate([scores.ravel(), (counts - expected_counts)[:-1]]),
        complete,
        missing,
    )


def parameter_free_log_likelihood(family: Family, rows: LikelihoodRows) -> float:
    """Weighted sum of the terms of the log density that no parameter enters.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.

    Returns
    -------
    float
        The sum.
    """

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        trials = None if rows.n_trials is None else rows.n_trials[block]
        terms = family.log_base_measure(rows.y[block], n_trials=trials)
        return (np.array(rows.sample_weight[block] @ terms),)

    return float(sum_over_blocks(sum_block, rows.n_obs, 4)[0])


def outer_product_information(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Sum over rows of the row's score times its transpose.

    Consistent for the information where the model holds, and never indefinite, which the observed
    information, a difference of two large matrices, may be on a sample of rows.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows; a row of weight v counts as v rows.
    parameters : MixtureParameters
        Where to evaluate.

    Returns
    -------
    numpy.ndarray, shape (n_parameters, n_parameters)
        Symmetric and positive semi-definite.
    """
    r, q = parameters.n_components, component_size(parameters)
    n_parameters = parameter_count(parameters)

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        z, posterior = posterior_of_block(family, rows, parameters, block)
        scores = np.empty((len(z), n_parameters))
        scores[:, : r * q] = _row_scores(with_ones(z), posterior, q)
        scores[:, r * q :] = posterior.responsibilities.T[:, :-1] - parameters.weights[:-1]
        scores *= np.sqrt(rows.sample_weight[block])[:, None]
        return (scores.T @ scores,)

    doubles = n_parameters + parameters.n_features + ARRAYS_PER_COMPONENT * r
    return sum_over_blocks(sum_block, rows.n_obs, doubles)[0]


def _row_scores(x: FloatArray, posterior: MixturePosterior, q: int) -> FloatArray:
    """R_ji s_ji of every row and component, shape (n_block, r q)."""
    r = posterior.responsibilities.shape[0]
    scores = np.empty((x.shape[0], r, q))
    slopes = (posterior.responsibilities * posterior.eta1).T
    np.multiply(slopes[:, :, None], x[:, None, :], out=scores[:, :, : x.shape[1]])
    if posterior.tau1 is not None:
        scores[:, :, -1] = (posterior.responsibilities * posterior.tau1).T
    return scores.reshape(x.shape[0], r * q)


def _curvature_of_block(
    z: FloatArray, posterior: MixturePosterior, weight: FloatArray, q: int
) -> _Curvature:
    x = with_ones(z)
    root = np.sqrt(weight)
    scores = _row_scores(x, posterior, q)
    scores *= root[:, None]
    shares = posterior.responsibilities.T * root[:, None]
    counts = posterior.responsibilities * weight
    tau2, eta_tau, squared_tau, mixed = None, None, None, None
    if posterior.tau1 is not None:
        tau2, eta_tau = posterior.tau2, posterior.eta_tau
        squared_tau, mixed = posterior.tau1**2, posterior.eta1 * posterior.tau1
    return _Curvature(
        -_weighted_blocks(x, counts, posterior.eta2, eta_tau, tau2),
        _weighted_blocks(x, counts, posterior.eta1**2, mixed, squared_tau),
        scores.T @ scores,
        scores.T @ shares,
        shares.T @ shares,
    )


def _weighted_blocks(
    x: FloatArray,
    counts: FloatArray,
    eta: FloatArray,
    mixed: FloatArray | None,
    tau: FloatArray | None,
) -> FloatArray:
    """Sum over rows of counts times [[eta x x', mixed x], [mixed x', tau]], shape (r, q, q)."""
    r, width = counts.shape[0], x.shape[1]
    result = np.empty((r, width + (tau is not None), width + (tau is not None)))
    by_eta = counts * eta
    for component in range(r):
        result[component, :width, :width] = (x * by_eta[component][:, None]).T @ x
    if tau is not None and mixed is not None:
        cross = (counts * mixed) @ x
        result[:, :width, width] = cross
        result[:, width, :width] = cross
        result[:, width, width] = (counts * tau).sum(axis=1)
    return result


def _assemble(
    sums: _Curvature, scores: FloatArray, counts: FloatArray, expected_counts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Complete and missing information; the logits' part is that of a multinomial variable.

    The missing part is Cov(e_j s_j, e_k s_k) given the row, e_j the indicator of component j with
    mean R_j: delta_jk R_j s_j s_j' - R_j s_j R_k s_k', and likewise for e_k itself.
    """
    r, q = scores.shape
    size = r * (q + 1) - 1
    complete, missing = np.zeros((size, size)), np.zeros((size, size))
    missing[: r * q, : r * q] = -sums.score_products
    cross = -sums.score_responsibility
    for component in range(r):
        own = slice(component * q, (component + 1) * q)
        complete[own, own] = sums.complete[component]
        missing[own, own] += sums.second_moment[component]
        cross[own, component] += scores[component]
    weights = expected_counts / expected_counts.sum()
    logits = slice(r * q, size)
    of_logits = np.diag(expected_counts) - np.outer(expected_counts, weights)
    complete[logits, logits] = of_logits[:-1, :-1]
    missing[logits, logits] = (np.diag(counts) - sums.responsibility_products)[:-1, :-1]
    missing[: r * q, logits] = cross[:, :-1]
    missing[logits, : r * q] = cross[:, :-1].T
    return complete, missing
