r"""Deviations of data from replicated responses, as curves that are zero where both agree.

A suspended rootogram for counts, observed less predicted shares for binary responses and trials,
and the distribution of the probability integral transform for continuous ones. Replicated
responses give the same curve for data that come from the method itself. With their standard
deviations :math:`s_l` at the points l, the band is :math:`\pm q s_l`, where q is the quantile of
:math:`\max_l |\delta_l| / s_l` over replicates: that share of data sets stays inside *everywhere*.
It holds for groups and trials too, whose responses share a component.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BAND_PROBABILITY",
    "PIT_GRID",
    "calibration_deviations",
    "count_bins",
    "equal_bins",
    "pit_deviations",
    "rootogram_deviations",
    "simultaneous_band",
]

FloatArray = NDArray[np.float64]

BAND_PROBABILITY = 0.94
"""That of the intervals in all figures."""

_LEAST_ROWS = 5
"""Rows in a bin of counts: the square root of a smaller Poisson count is not nearly normal."""

_MOST_BINS = 16
"""Bins of counts that can be labelled side by side."""

_CALIBRATION_BINS, _ROWS_OF_BIN = 10, 20
"""Bins of probabilities, each of as many rows; fewer bins for fewer than 200 rows."""

PIT_GRID = np.linspace(0.0, 1.0, 51)[1:-1]
"""Points at which the distribution of the transform is compared with the uniform."""


def simultaneous_band(
    deviations: FloatArray, *, probability: float = BAND_PROBABILITY
) -> FloatArray:
    """Half the width of the band in which a share of curves stay everywhere.

    Parameters
    ----------
    deviations : numpy.ndarray, shape (n_curves, n_points)
        Curves about zero.
    probability : float
        The share.

    Returns
    -------
    numpy.ndarray, shape (n_points,)
        A multiple of the standard deviations.
    """
    spread = np.sqrt(np.mean(np.square(deviations), axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        largest = np.nanmax(np.where(spread > 0, np.abs(deviations) / spread, 0.0), axis=1)
    return np.asarray(np.quantile(largest, probability) * spread)


def count_bins(observed: FloatArray) -> tuple[FloatArray, tuple[str, ...]]:
    """Divide counts into bins with enough rows in each.

    Parameters
    ----------
    observed : numpy.ndarray, shape (n_obs,)
        Counts.

    Returns
    -------
    edges : numpy.ndarray, shape (n_bins,)
        Smallest count of each bin, the first zero; the last bin has no upper end.
    labels : tuple of str
        Their names.
    """
    values, rows = np.unique(observed, return_counts=True)
    least = float(_LEAST_ROWS)
    edges = _merged(values, rows, least)
    while len(edges) > _MOST_BINS:
        least *= 1.25
        edges = _merged(values, rows, least)
    ends = [*(edges[1:] - 1), np.inf]
    return edges, tuple(_bin_name(*pair) for pair in zip(edges, ends, strict=True))


def _merged(values: FloatArray, rows: NDArray[np.intp], least: float) -> FloatArray:
    """Join neighbouring counts until every bin has so many rows; the rest joins the last."""
    edges, held = [0.0], 0
    for value, count in zip(values, rows, strict=True):
        if held >= least and rows[values >= value].sum() >= least:
            edges.append(float(value))
            held = 0
        held += int(count)
    return np.array(edges)


def _bin_name(first: float, last: float) -> str:
    if last == np.inf:
        return f"≥{first:.0f}"  # also where all counts are zero
    return f"{first:.0f}" if first == last else f"{first:.0f}–{last:.0f}"  # noqa: RUF001


def rootogram_deviations(
    data: FloatArray, *, replicated: FloatArray, edges: FloatArray
) -> FloatArray:
    r"""Roots of the observed numbers of rows less those of the expected numbers.

    .. math:: \delta_l = \sqrt{n_l} - \sqrt{E n_l}

    Parameters
    ----------
    data : numpy.ndarray, shape (n_sets, n_obs)
        Counts, a data set in each row.
    replicated : numpy.ndarray, shape (n_replicates, n_obs)
        Replicated counts.
    edges : numpy.ndarray, shape (n_bins,)
        Smallest count of each bin.

    Returns
    -------
    numpy.ndarray, shape (n_sets, n_bins)
        The deviations.
    """
    expected = _histograms(replicated, edges).mean(axis=0)
    return np.asarray(np.sqrt(_histograms(data, edges)) - np.sqrt(expected))


def _histograms(data: FloatArray, edges: FloatArray) -> FloatArray:
    """Rows in each bin, (n_sets, n_bins)."""
    bins = np.searchsorted(edges, data, side="right") - 1
    counts = [np.bincount(row, minlength=len(edges)) for row in bins]
    return np.array(counts, dtype=np.float64)


def calibration_deviations(
    data: FloatArray, *, predicted: FloatArray, trials: FloatArray, bins: NDArray[np.intp]
) -> FloatArray:
    """Observed less predicted shares of successes.

    Parameters
    ----------
    data : numpy.ndarray, shape (n_sets, n_obs)
        Successes, a data set in each row.
    predicted : numpy.ndarray, shape (n_obs,)
        Probabilities of a success.
    trials : numpy.ndarray, shape (n_obs,)
        Trials of each row.
    bins : numpy.ndarray of int, shape (n_obs,)
        Bin of each row, from zero.

    Returns
    -------
    numpy.ndarray, shape (n_sets, n_bins)
        The deviations.
    """
    size = np.bincount(bins, weights=trials)
    expected = np.bincount(bins, weights=trials * predicted)
    seen = np.array([np.bincount(bins, weights=row) for row in data])
    return np.asarray((seen - expected) / size)


def pit_deviations(data: FloatArray, *, replicated: FloatArray) -> FloatArray:
    r"""Distribution of the probability integral transform less the uniform.

    .. math:: \delta_l = \frac1n \sum_i 1\{u_i \le u_l\} - u_l, \qquad
        u_i = P(y^{rep}_i < y_i) + P(y^{rep}_i = y_i) / 2

    Parameters
    ----------
    data : numpy.ndarray, shape (n_sets, n_obs)
        Responses, a data set in each row.
    replicated : numpy.ndarray, shape (n_replicates, n_obs)
        Replicated responses.

    Returns
    -------
    numpy.ndarray, shape (n_sets, n_points)
        The deviations at 0.02, 0.04, ..., 0.98.
    """
    ranks = np.empty(data.shape)
    ordered = np.sort(replicated, axis=0)
    for index in range(data.shape[1]):
        column, values = ordered[:, index], data[:, index]
        below = np.searchsorted(column, values, side="left")
        ranks[:, index] = (below + np.searchsorted(column, values, side="right")) / 2
    transforms = np.sort(ranks / len(replicated), axis=1)
    shares = [np.searchsorted(row, PIT_GRID, side="right") for row in transforms]
    return np.asarray(np.array(shares) / data.shape[1] - PIT_GRID)


def equal_bins(predicted: FloatArray) -> NDArray[np.intp]:
    """Divide rows into bins of as many rows each, by their predicted probability.

    Parameters
    ----------
    predicted : numpy.ndarray, shape (n_obs,)
        Probabilities.

    Returns
    -------
    numpy.ndarray of int, shape (n_obs,)
        Bin of each row, from zero.
    """
    n_bins = max(1, min(_CALIBRATION_BINS, len(predicted) // _ROWS_OF_BIN))
    ranks = np.empty(len(predicted), dtype=np.intp)
    ranks[np.argsort(predicted, kind="stable")] = np.arange(len(predicted))
    return ranks * n_bins // len(predicted)
