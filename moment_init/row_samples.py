"""Some of many rows: random samples, and an order in which every run of rows is a fair sample."""

from math import gcd

import numpy as np
from numpy.typing import NDArray

__all__ = ["sample_rows", "spread_order"]

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
