"""Quadratures of a response given its linear predictor."""

from collections.abc import Callable

import numpy as np
from scipy import special

from moment_init.families.density import ResponseNodes
from moment_init.families.links import FloatArray, bounded_exp

__all__ = ["count_nodes", "gamma_nodes", "gaussian_nodes"]

_N_NODES = 48
"""A Gauss-Hermite rule of this size integrates ``cos(4 z + phase)`` over a standard normal z to
1e-8: the fastest response function at the widest residual."""

_NORMAL_SCORES, _unscaled_weights = np.polynomial.hermite_e.hermegauss(_N_NODES)
_NORMAL_WEIGHTS = _unscaled_weights / _unscaled_weights.sum()


def count_nodes(log_density: Callable[[FloatArray], FloatArray], most: int) -> ResponseNodes:
    """Every count from 0 to a largest one, which also carries the mass beyond it.

    Parameters
    ----------
    log_density : callable
        Maps the counts, shape (most + 1,), to their log probabilities, counts on the last axis.
    most : int
        The largest count.

    Returns
    -------
    ResponseNodes
        The counts and their probabilities, which sum to one.
    """
    counts = np.arange(most + 1, dtype=np.float64)
    weights = np.exp(log_density(counts))
    beyond = np.maximum(1 - weights.sum(axis=-1), 0)  # rounding may exceed one
    weights[..., -1] += beyond
    return ResponseNodes(counts, weights)


def gaussian_nodes(eta: FloatArray, deviation: FloatArray) -> ResponseNodes:
    """Gauss-Hermite nodes of a normal response.

    Parameters
    ----------
    eta : ndarray
        The mean.
    deviation : ndarray
        The standard deviation; broadcasts with `eta`.

    Returns
    -------
    ResponseNodes
        Nodes and weights, with one axis more than `eta`.
    """
    nodes = eta[..., None] + deviation[..., None] * _NORMAL_SCORES
    return ResponseNodes(nodes, np.broadcast_to(_NORMAL_WEIGHTS, nodes.shape))


def gamma_nodes(eta: FloatArray, shape: FloatArray) -> ResponseNodes:
    """Quantiles of a gamma response at Gauss-Hermite nodes of its normal score.

    The logarithm of the response is a smooth function of its normal score, so that the rule
    converges for functions of ``log y`` although their density is skewed.

    Parameters
    ----------
    eta : ndarray
        The logarithm of the mean.
    shape : ndarray
        The shape; broadcasts with `eta`. Quantiles are computed once for each of its values.

    Returns
    -------
    ResponseNodes
        Nodes and weights, with one axis more than `eta`.
    """
    unit_mean = _gamma_quantiles(shape[..., None]) / shape[..., None]
    # a quantile that underflows stands for the smallest positive response
    nodes = np.maximum(bounded_exp(eta)[..., None] * unit_mean, np.finfo(np.float64).tiny)
    return ResponseNodes(nodes, np.broadcast_to(_NORMAL_WEIGHTS, nodes.shape))


def _gamma_quantiles(shape: FloatArray) -> FloatArray:
    """Quantiles of a unit-scale gamma, each tail from its own side so that neither is lost."""
    lower = special.gammaincinv(shape, special.ndtr(np.minimum(_NORMAL_SCORES, 0)))
    upper = special.gammainccinv(shape, special.ndtr(-np.maximum(_NORMAL_SCORES, 0)))
    result: FloatArray = np.where(_NORMAL_SCORES < 0, lower, upper)
    return result
