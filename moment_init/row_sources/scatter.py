"""Mean and products of the inputs, summed while they are checked: a pass less over the rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import add_sums, row_blocks, single_threaded_blas
from moment_init.row_sources.recipes import Recipe

__all__ = ["MOST_COLUMNS", "KnownScatter", "Scatter", "block_scatter", "known_scatter", "merged"]

FloatArray = NDArray[np.float64]

MOST_COLUMNS = 64
"""Widest table whose products are summed so: every block returns its own, 32 KiB at most."""


class Scatter(NamedTuple):
    """Weighted sums of some rows.

    Parameters
    ----------
    total : float
        Sum of the weights, positive.
    mean : numpy.ndarray, shape (n_features,)
        Weighted mean.
    products : numpy.ndarray, shape (n_features, n_features)
        Weighted products of the deviations from it.
    """

    total: float
    mean: FloatArray
    products: FloatArray


class KnownScatter(NamedTuple):
    """The sums of a table, and which table and weights they are of.

    Parameters
    ----------
    table, weights : Recipe
        The columns.
    sums : Scatter
        Their sums over all rows.
    """

    table: Recipe
    weights: Recipe
    sums: Scatter


def block_scatter(X: NDArray[np.generic], weights: FloatArray) -> Scatter | None:
    """Sums of one block, about its own mean.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_rows, n_features)
        Inputs.
    weights : numpy.ndarray, shape (n_rows,)
        Weights.

    Returns
    -------
    Scatter or None
        The sums; None where all weights are zero.
    """
    total = float(weights.sum())
    if total <= 0.0:
        return None
    # Values whose squares overflow are seen in the sums, and summed again in other units.
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(weights @ np.asarray(X, dtype=np.float64)) / total
        parts = (_products(X[rows], weights[rows], mean) for rows in row_blocks(*X.shape))
        (products,) = add_sums(parts)
    return Scatter(total, mean, products)


def _products(x: NDArray[np.generic], weights: FloatArray, mean: FloatArray) -> tuple[FloatArray]:
    deviations = np.asarray(x, dtype=np.float64) - mean
    return ((deviations * weights[:, None]).T @ deviations,)


def merged(terms: Sequence[Scatter | None]) -> Scatter:
    """Sums of several blocks together.

    Parameters
    ----------
    terms : sequence of Scatter or None
        Sums of each; at least one is not None.

    Returns
    -------
    Scatter
        The sums of all rows. Deviations are from means nearby throughout, so that a large common
        level costs no digits (Chan, Golub and LeVeque).
    """
    there = [term for term in terms if term is not None]
    total = sum(term.total for term in there)
    mean = sum((term.total / total * term.mean for term in there), np.zeros(len(there[0].mean)))
    shifts = np.array([np.sqrt(term.total) * (term.mean - mean) for term in there])
    (products,) = add_sums((term.products,) for term in there)
    return Scatter(total, mean, products + shifts.T @ shifts)


def known_scatter(table: Any, weights: Any) -> Scatter | None:
    """Look up the sums of a column.

    Parameters
    ----------
    table, weights : numpy.ndarray or RowColumn
        The inputs and their weights.

    Returns
    -------
    Scatter or None
        Their sums; None if they are not known.
    """
    known: Sequence[KnownScatter] = getattr(getattr(table, "source", None), "scatter", ())
    for each in known:
        if table.recipe is each.table and weights.recipe is each.weights:
            return each.sums
    return None
