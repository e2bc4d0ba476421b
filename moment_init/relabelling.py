r"""Permutations that bring the components of many draws into one order.

Draw i has components with vectors :math:`x_{ij}`, the reference :math:`c_j`. The permutation of a
draw minimises

.. math:: \sum_j \sum_e (x_{i \pi(j) e} - c_{je})^2 / s_e^2 ,

twice the negative log-likelihood of independent normal errors with a variance for each element e,
common to the components. Every :math:`s_e` is the median size of an error, so that units play no
part and a wild draw has no say: first that of each draw's component to the nearest component of the
reference (it does not depend on the labels), then, until nothing moves, that of matched components.
All steps are functions of the draws as sets of components: relabelled draws give the same result.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

__all__ = ["most_frequent", "permutations_among", "permutations_to"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

_SMALLEST_SPREAD = 0.05
"""Least spread of an element as a share of its range over the components of a draw: components that
are twenty spreads apart cannot be confused, and an element that agrees with the reference by chance
must not outvote all others."""

_FARTHEST = 1e140
"""Distances in spreads are held below this, so that sums of their squares do not overflow."""

_MAX_ROUNDS = 20
"""Rounds of matching and measuring. Each changes fewer draws than the one before, and two or three
suffice; a handful of draws half-way between two labels could go to and fro."""


def permutations_to(draws: FloatArray, reference: FloatArray) -> IndexArray:
    """Match the components of every draw to those of a reference.

    Parameters
    ----------
    draws : numpy.ndarray, shape (n_draws, n_components, n_elements)
        Finite values, at least one draw.
    reference : numpy.ndarray, shape (n_components, n_elements)
        Finite values.

    Returns
    -------
    numpy.ndarray of int, shape (n_draws, n_components)
        Index such that ``draws[i, index[i]]`` is in the order of `reference`. A draw that fits as
        well in its own order keeps it.
    """
    floor = _smallest_spreads(draws)
    spreads = _nearest_spreads(draws, reference, floor)
    result = _best_permutations(_costs(draws, reference, spreads))
    for _ in range(_MAX_ROUNDS):
        aligned = _permuted(draws, result)
        spreads = _matched_spreads(aligned, reference, floor)
        step = _best_permutations(_costs(aligned, reference, spreads))
        if _is_identity(step):
            break
        result = np.take_along_axis(result, step, axis=1)
    return result


def permutations_among(draws: FloatArray, first: int) -> IndexArray:
    """Match the components of all draws to each other.

    Draws are matched to the medians of the draws matched before, as in the algorithm of Stephens
    (2000) [1]_ with squared errors for the loss. No order is better than another, so the labels
    that most draws had are kept.

    Parameters
    ----------
    draws : numpy.ndarray, shape (n_draws, n_components, n_elements)
        Finite values, at least one draw.
    first : int
        Index of the draw to begin with.

    Returns
    -------
    numpy.ndarray of int, shape (n_draws, n_components)
        Index such that ``draws[i, index[i]]`` are in one order.

    References
    ----------
    .. [1] Stephens, M. (2000). Dealing with label switching in mixture models. Journal of the Royal
       Statistical Society B 62(4), 795-809. https://doi.org/10.1111/1467-9868.00265
    """
    floor = _smallest_spreads(draws)
    spreads = _nearest_spreads(draws, draws[first], floor)
    result = _best_permutations(_costs(draws, draws[first], spreads))
    for _ in range(_MAX_ROUNDS):
        aligned = _permuted(draws, result)
        centre = np.median(aligned, axis=0)
        spreads = _matched_spreads(aligned, centre, floor)
        step = _best_permutations(_costs(aligned, centre, spreads))
        if _is_identity(step):
            break
        result = np.take_along_axis(result, step, axis=1)
    return np.asarray(result[:, np.argsort(most_frequent(result))])


def most_frequent(permutations: IndexArray) -> IndexArray:
    """The permutation that occurs most often.

    Parameters
    ----------
    permutations : numpy.ndarray of int, shape (n_draws, n_components)
        One permutation a draw.

    Returns
    -------
    numpy.ndarray of int, shape (n_components,)
        The permutation; of several the first in lexicographic order, so the identity if it is one.
    """
    distinct, counts = np.unique(permutations, axis=0, return_counts=True)
    return np.asarray(distinct[counts.argmax()])


def _permuted(draws: FloatArray, permutations: IndexArray) -> FloatArray:
    return np.take_along_axis(draws, permutations[:, :, None], axis=1)


def _is_identity(permutations: IndexArray) -> bool:
    return bool((permutations == np.arange(permutations.shape[1])).all())


def _smallest_spreads(draws: FloatArray) -> FloatArray:
    """Floors of the spreads, (n_elements,); zero where the components of a draw are all equal."""
    return np.asarray(_SMALLEST_SPREAD * np.median(np.ptp(draws, axis=1), axis=0))


def _nearest_spreads(draws: FloatArray, reference: FloatArray, floor: FloatArray) -> FloatArray:
    """Spreads about the nearest component of the reference, element by element."""
    nearest = np.full(draws.shape, np.inf)
    for component in reference:
        np.minimum(nearest, np.abs(draws - component), out=nearest)
    return np.asarray(np.maximum(np.median(nearest, axis=(0, 1)), floor))


def _matched_spreads(aligned: FloatArray, reference: FloatArray, floor: FloatArray) -> FloatArray:
    """Spreads about the component of the reference with the same place."""
    return np.asarray(np.maximum(np.median(np.abs(aligned - reference), axis=(0, 1)), floor))


def _costs(draws: FloatArray, reference: FloatArray, spreads: FloatArray) -> FloatArray:
    """Squared distances, (n_draws, component of the reference, component of the draw).

    Differences are taken before they are squared, not expanded into products: equal components
    then have equal costs to the last bit, whatever their place.
    """
    # An element in which a draw's components do not differ cannot tell them apart.
    used = spreads > 0.0
    draws, reference = draws[..., used] / spreads[used], reference[..., used] / spreads[used]
    result = np.empty((draws.shape[0], reference.shape[0], draws.shape[1]))
    for index, component in enumerate(reference):
        difference = np.clip(draws - component, -_FARTHEST, _FARTHEST)
        np.einsum("ije,ije->ij", difference, difference, out=result[:, index])
    return result


def _best_permutations(costs: FloatArray) -> IndexArray:
    """Optimal permutation of every draw; the identity where it is as good."""
    n_components = costs.shape[1]
    # If the nearest components are all different, no matching can be better than that.
    result = np.asarray(costs.argmin(axis=2))
    is_matching = (np.sort(result, axis=1) == np.arange(n_components)).all(axis=1)
    for index in np.flatnonzero(~is_matching):
        result[index] = linear_sum_assignment(costs[index])[1]
    best = np.take_along_axis(costs, result[:, :, None], axis=2)[..., 0].sum(axis=1)
    kept = np.diagonal(costs, axis1=1, axis2=2).sum(axis=1)
    result[kept <= best] = np.arange(n_components)
    return result
