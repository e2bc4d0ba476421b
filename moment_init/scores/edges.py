"""Where the support of a column ends, and how fast its density falls to zero there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

__all__ = ["Edge", "find_edges"]

FloatArray = NDArray[np.float64]

# Rows at each end: so many times the root of all rows. The error then falls with n, and so does the
# share of the rows, on which it depends how much of the density's bulk is taken for its edge.
ROWS_PER_ROOT = 6.0
LARGEST_SHARE = 0.05
FEWEST_ROWS = 1_000

# Chance that a column without an edge is reported, over all columns and both ends.
FALSE_ALARMS = 0.01


@dataclass(frozen=True, slots=True)
class Edge:
    """An end of a column at which the density stops too abruptly for a score of some order.

    Parameters
    ----------
    column : int
        Which column.
    side : {"lower", "upper"}
        Which end.
    power : float
        Estimate of a, the density being as the distance from the edge to the power a - 1.
    lowest_invalid_order : int
        Lowest order whose score is not valid, clearly so: the order m needs a > m.
    """

    column: int
    side: str
    power: float
    lowest_invalid_order: int


def find_edges(X: FloatArray) -> tuple[Edge, ...]:
    """Find columns whose density does not vanish fast enough at an end of its support.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        The rows.

    Returns
    -------
    tuple of Edge
        The edges at which a score up to the third order is clearly invalid; none with fewer than
        a thousand rows.

    Notes
    -----
    The outermost rows follow a generalised Pareto law whose index is k = 1/a; it is estimated by
    the probability-weighted moments of [1]_, with their standard error. A score of order m is
    invalid where k > 1/m: the uniform has k = 1, Gamma(2) has k = 1/2 at zero, and a Gaussian has
    k about .1 at such n. Costs O(n d).

    References
    ----------
    .. [1] J. R. M. Hosking, J. R. Wallis, "Parameter and quantile estimation for the generalized
       Pareto distribution", Technometrics 29 (1987), doi:10.1080/00401706.1987.10488243.
    """
    n_obs, n_features = X.shape
    n_tail = int(min(ROWS_PER_ROOT * np.sqrt(n_obs), LARGEST_SHARE * n_obs))
    if n_obs < FEWEST_ROWS:
        return ()
    n_errors = -float(ndtri(FALSE_ALARMS / (2 * n_features)))
    found = []
    for column in range(n_features):
        for side, sign in (("lower", 1.0), ("upper", -1.0)):
            values = np.partition(sign * X[:, column], n_tail)[: n_tail + 1]
            edge = _judge(values.max() - values, n_errors)
            if edge is not None:
                found.append(Edge(column, side, *edge))
    return tuple(found)


def _judge(distances: FloatArray, n_errors: float) -> tuple[float, int] | None:
    """Power of the distance from the edge, and the lowest order that it rules out."""
    y = np.sort(distances)[1:]  # the threshold itself is left out
    plotting = (np.arange(1, len(y) + 1) - 0.35) / len(y)
    mean, weighted = float(y.mean()), float(np.mean((1.0 - plotting) * y))
    if mean <= 2.0 * weighted:  # all of the tail is one value, or nearly so
        return None
    k = mean / (mean - 2.0 * weighted) - 2.0
    for order in (1, 2, 3):
        # At the index in question. A valid density has k below 1 / order; k = 1 itself fails.
        limit = 1.0 / order - (0.2 if order == 1 else 0.0)
        if k > limit + n_errors * _standard_error(limit, len(y)):
            return 1.0 / k, order
    return None


def _standard_error(k: float, n_rows: int) -> float:
    """Standard error of the index by probability-weighted moments."""
    variance = (1.0 + k) * (2.0 + k) ** 2 * (1.0 + k + 2.0 * k**2)
    return float(np.sqrt(variance / ((1.0 + 2.0 * k) * (3.0 + 2.0 * k)) / n_rows))
