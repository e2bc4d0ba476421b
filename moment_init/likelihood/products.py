"""Weighted sums of x x' over rows, for many weightings at once.

The products x_a x_b of the columns of x = (z, 1) are formed once; every weighted Gram matrix is
then a row of one matrix product. That costs half of what separate products would, and far fewer
calls. To form them for a single use pays for few columns only: with more, the weighted columns of
all weightings go into one product of matrices.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_PRODUCT_WIDTH", "symmetric_products", "weighted_grams", "with_ones"]

FloatArray = NDArray[np.float64]

MAX_PRODUCT_WIDTH = 48
"""Beyond so many columns the products of a block of rows no longer fit a core's cache (512 rows of
48 * 49 / 2 doubles are 4.8 MB), and a product of matrices for each weighting is faster."""

_FORMED_WIDTH = 8
"""Up to so many columns products are formed even for a single use (measured, 1 to 6 weightings)."""


def with_ones(z: FloatArray) -> FloatArray:
    """Inputs with a column of ones for the intercept.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_block, n_features)
        The inputs.

    Returns
    -------
    numpy.ndarray, shape (n_block, n_features + 1)
        A copy, the ones last.
    """
    x = np.empty((z.shape[0], z.shape[1] + 1))
    x[:, :-1] = z
    x[:, -1] = 1.0
    return x


def symmetric_products(z: FloatArray) -> FloatArray:
    """Products of all pairs of columns of (z, 1).

    Parameters
    ----------
    z : numpy.ndarray, shape (n_block, n_features)
        The inputs.

    Returns
    -------
    numpy.ndarray, shape (n_block, (n_features + 1)(n_features + 2) / 2)
        Products x_a x_b with a <= b, row after row of the upper triangle; each is contiguous.
    """
    columns = np.ascontiguousarray(with_ones(z).T)
    width, n_rows = columns.shape
    result = np.empty((width * (width + 1) // 2, n_rows))
    start = 0
    for index, column in enumerate(columns):
        stop = start + width - index
        np.multiply(column, columns[index:], out=result[start:stop])
        start = stop
    return result.T


def weighted_grams(
    z: FloatArray, weights: FloatArray, products: FloatArray | None = None
) -> FloatArray:
    r"""Sums :math:`\sum_i w_{ki} x_i x_i'` with x = (z, 1), for every weighting k.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_block, n_features)
        The inputs.
    weights : numpy.ndarray, shape (n_weightings, n_block)
        The weightings.
    products : numpy.ndarray, shape (n_block, n_products), optional
        `symmetric_products` of the inputs, if they are stored.

    Returns
    -------
    numpy.ndarray, shape (n_weightings, n_features + 1, n_features + 1)
        The sums.
    """
    width = z.shape[1] + 1
    if products is None and width > _FORMED_WIDTH:
        x = with_ones(z)
        weighted = weights[:, None, :] * np.ascontiguousarray(x.T)
        grams = np.dot(weighted.reshape(len(weights) * width, len(x)), x)
        return np.asarray(grams.reshape(-1, width, width))
    if products is None:
        products = symmetric_products(z)
    return np.asarray(np.dot(weights, products)[:, _positions(width)])


@lru_cache(maxsize=64)
def _positions(width: int) -> NDArray[np.intp]:
    """Where the product of columns a and b stands, shape (width, width)."""
    positions = np.empty((width, width), dtype=np.intp)
    first, second = np.triu_indices(width)
    positions[first, second] = np.arange(len(first))
    positions[second, first] = np.arange(len(first))
    return positions
