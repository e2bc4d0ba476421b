"""Some of many rows: random samples, and an order in which every run of rows is a fair sample."""

from math import gcd

import numpy as np
from numpy.typing import NDArray

__all__ = ["resample_rows", "sample_rows", "spread_order"]

FloatArray = NDArray[np.float64]

# Multiples of the golden ratio, modulo one, are the most evenly spread of all such sequences.
GOLDEN_SHARE = (np.sqrt(5.0) - 1.0) / 2.0


def sample_rows(n_obs: int, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows: one at random from each of many runs of rows of the same length.

    Parameters
    ----------
    n_obs : int
        Number of rows to draw from.
    size : int
        Number of rows to draw.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    numpy.ndarray of int, shape (min(size, n_obs),)
        Distinct rows in ascending order; all of them if there are not more.

    Notes
    -----
    Every row has the same probability, and the time depends on `size` alone.
    """
    if size >= n_obs:
        return np.arange(n_obs)
    bounds = np.arange(size + 1) * n_obs // size
    return np.asarray(rng.integers(bounds[:-1], bounds[1:]), dtype=np.intp)


def resample_rows(weights: FloatArray, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows in proportion to their weights, for what knows no weights.

    Parameters
    ----------
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    size : int
        Number of rows to draw, at most `n_obs` of them.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    numpy.ndarray of int, shape (min(size, n_obs),)
        Rows in ascending order: distinct ones if all weights are equal, otherwise each as often as
        its weight asks for, up to one (systematic resampling).
    """
    size = min(size, len(weights))
    if np.all(weights == weights[0]):
        return sample_rows(len(weights), size, rng)
    ends = np.cumsum(weights) / weights.sum()
    points = (np.arange(size) + rng.uniform()) / size
    return np.minimum(np.searchsorted(ends, points), len(weights) - 1)


def spread_order(n_obs: int) -> NDArray[np.intp]:
    """Order rows so that every run of them is spread evenly over all rows.

    The i-th row is i times a, modulo n, with a close to the golden share of n and prime to it. A
    run is then a fair sample of rows that came sorted, and of rows that came in short cycles.

    Parameters
    ----------
    n_obs : int
        Number of rows.

    Returns
    -------
    numpy.ndarray of int, shape (n_obs,)
        A permutation; always the same one for the same number.
    """
    step = max(1, round(GOLDEN_SHARE * n_obs))
    while gcd(step, n_obs) > 1:
        step -= 1
    return np.asarray(np.arange(n_obs) * step % n_obs, dtype=np.intp)
