"""Symmetric tensors of third order: sums of cubes, and a vector times a matrix in all places."""

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "packed_cubes",
    "symmetrise",
    "symmetrise_first",
    "symmetrise_rows",
    "unpack_cubes",
]

FloatArray = NDArray[np.float64]


def _halves(k: int) -> tuple[slice, slice]:
    """The columns in two halves: of any three indices two are in the same one."""
    middle = (k + 1) // 2
    return slice(0, middle), slice(middle, k)


def packed_cubes(columns: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum of weights_i z_i^3, packed: all columns times the distinct pairs inside each half.

    Parameters
    ----------
    columns : numpy.ndarray, shape (k, n_obs)
        The vectors z_i, one beside another.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each.

    Returns
    -------
    numpy.ndarray, shape (k, n_pairs)
        The packed sums; `unpack_cubes` makes a tensor of them.

    Notes
    -----
    That takes half the arithmetic of all distinct pairs, a quarter of all. Columns come as the rows
    of an array, (k, n_obs): products of contiguous rows are the cheap ones.
    """
    k, n_obs = columns.shape
    pairs = np.empty((sum(_n_pairs(half.stop - half.start) for half in _halves(k)), n_obs))
    start = 0
    for half in _halves(k):
        inside = columns[half]
        for index in range(len(inside)):
            stop = start + len(inside) - index
            np.multiply(inside[index], inside[index:], out=pairs[start:stop])
            start = stop
    return np.asarray((columns * weights) @ pairs.T)


def _n_pairs(size: int) -> int:
    """Number of distinct pairs, an index with itself included."""
    return size * (size + 1) // 2


def unpack_cubes(packed: FloatArray) -> FloatArray:
    """The symmetric tensor of sums packed by `packed_cubes`.

    Parameters
    ----------
    packed : numpy.ndarray, shape (k, n_pairs)
        The packed sums.

    Returns
    -------
    numpy.ndarray, shape (k, k, k)
        The tensor.
    """
    k = len(packed)
    tensor = np.empty((k, k, k))
    start = 0
    for half in _halves(k):
        first, second = np.triu_indices(half.stop - half.start)
        values = packed[:, start : start + len(first)]
        start += len(first)
        first, second = first + half.start, second + half.start
        for a, b in ((first, second), (second, first)):
            tensor[:, a, b] = values
            tensor[a, :, b] = values.T
            tensor[a, b, :] = values.T
    return tensor


def symmetrise(vector: FloatArray, matrix: FloatArray) -> FloatArray:
    """Tensor sym3(v x A), the sum of v x A over the three places that v can take.

    Parameters
    ----------
    vector : numpy.ndarray, shape (k,)
        The vector v.
    matrix : numpy.ndarray, shape (k, k)
        The symmetric matrix A.

    Returns
    -------
    numpy.ndarray, shape (k, k, k)
        The tensor.
    """
    product = np.multiply.outer(vector, matrix)
    return np.asarray(product + product.transpose(1, 0, 2) + product.transpose(1, 2, 0))


def symmetrise_rows(z: FloatArray, matrix: FloatArray) -> FloatArray:
    """Tensors sym3(z_i x A) of all rows, with one matrix or one for each row.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_obs, k)
        The vectors.
    matrix : numpy.ndarray, shape (k, k) or (n_obs, k, k)
        The symmetric matrix A, or the matrices.

    Returns
    -------
    numpy.ndarray, shape (n_obs, k, k, k)
        The tensors.
    """
    matrices = matrix if matrix.ndim == 2 else matrix[:, None]
    product = z[:, :, None, None] * matrices
    return np.asarray(product + product.transpose(0, 2, 1, 3) + product.transpose(0, 2, 3, 1))


def symmetrise_first(tensor: FloatArray) -> FloatArray:
    """Sum of a tensor, symmetric in its last two modes, over the three places of its first mode.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (k, k, k)
        The tensor.

    Returns
    -------
    numpy.ndarray, shape (k, k, k)
        The symmetric tensor.
    """
    return np.asarray(tensor + tensor.transpose(1, 0, 2) + tensor.transpose(1, 2, 0))
