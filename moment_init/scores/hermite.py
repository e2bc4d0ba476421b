"""Hermite tensors: the scores of a Gaussian density, contracted with a basis."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.scores.base import Contraction

__all__ = ["HermiteContraction"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class HermiteContraction(Contraction):
    r"""Score tensors of N(mean, covariance) contracted with a basis B.

    With :math:`z = B' \Sigma^{-1} (x - \mu)` and :math:`A = B' \Sigma^{-1} B`,

    .. math:: S_1 = z, \quad S_2 = z z' - A, \quad
              S_3 = z^{\otimes 3} - \mathrm{sym}_3(z \otimes A).

    Parameters
    ----------
    mean : numpy.ndarray, shape (n_features,)
        Mean of the density.
    whitening : numpy.ndarray, shape (n_features, k)
        Inverse covariance times B.
    inner : numpy.ndarray, shape (k, k)
        The matrix A.
    """

    mean: FloatArray
    whitening: FloatArray
    inner: FloatArray

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """Contracted Hermite tensor of each row.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k, ..., k)
            The tensors.
        """
        z = self._rows(X)
        if order == 1:
            return z
        if order == 2:
            return np.asarray(z[:, :, None] * z[:, None, :] - self.inner)
        cubes = z[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        return np.asarray(cubes - _symmetrise_rows(z, self.inner))

    def sum_score(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        """Weighted sum of contracted Hermite tensors over a block of rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (k, ..., k)
            The sum.
        """
        if order == 1:
            return np.asarray(weights @ self._rows(X))
        if order == 2:
            return self._sum_squares(self._rows(X), weights)
        return self.assemble_third_order(self.sum_third_order(X, weights))

    def sum_low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted sums of the first and second order, the rows being contracted once.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.

        Returns
        -------
        first : numpy.ndarray, shape (k,)
            Sum of the first order.
        second : numpy.ndarray, shape (k, k)
            Sum of the second order.
        """
        z = self._rows(X)
        return np.asarray(weights @ z), self._sum_squares(z, weights)

    def sum_third_order(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, ...]:
        """Sums over a block of rows from which the third order is assembled.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.

        Returns
        -------
        tuple of numpy.ndarray
            Packed sums of cubes, and sums of the rows.
        """
        columns = self.whitening.T @ (X - self.mean).T  # (k, n_obs)
        return _packed_cubes(columns, weights), np.asarray(columns @ weights)

    def assemble_third_order(self, sums: tuple[FloatArray, ...]) -> FloatArray:
        """Assemble the sum of the third order.

        Parameters
        ----------
        sums : tuple of numpy.ndarray
            Sums over all rows of what `sum_third_order` returns.

        Returns
        -------
        numpy.ndarray, shape (k, k, k)
            The sum of the contracted Hermite tensors.
        """
        packed, first = sums
        return _unpack_cubes(packed) - _symmetrise(first, self.inner)

    def sum_slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        """Weighted sums of slices S_3(B, B, B theta_l) over a block of rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        thetas : numpy.ndarray, shape (k, n_slices)
            Contracted with the third mode.

        Returns
        -------
        numpy.ndarray, shape (n_slices, k, k)
            The slices.
        """
        z = self._rows(X)
        slice_weights = (z @ thetas) * weights[:, None]  # (n_obs, n_slices)
        cross = self.inner @ thetas  # (k, n_slices)
        first = weights @ z
        slices = np.empty((thetas.shape[1], z.shape[1], z.shape[1]))
        for index in range(thetas.shape[1]):
            mixed = np.outer(first, cross[:, index])
            slices[index] = (z * slice_weights[:, [index]]).T @ z
            slices[index] -= slice_weights[:, index].sum() * self.inner + mixed + mixed.T
        return slices

    def sum_fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        """Weighted sums of fibres S_3(B, B v_l, B v_l) over a block of rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        vectors : numpy.ndarray, shape (k, n_vectors)
            Contracted with the second and third mode.

        Returns
        -------
        numpy.ndarray, shape (k, n_vectors)
            The fibres.
        """
        z = self._rows(X)
        along = z @ vectors  # (n_obs, n_vectors)
        cross = self.inner @ vectors  # (k, n_vectors)
        lengths = np.sum(vectors * cross, axis=0)
        fibres = z.T @ (np.square(along) * weights[:, None])
        fibres -= np.outer(weights @ z, lengths) + 2.0 * cross * (weights @ along)
        return np.asarray(fibres)

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """Hermite polynomials along each column of the basis.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k)
            The values S_m(b_l, ..., b_l).
        """
        z = self._rows(X)
        if order == 1:
            return z
        squared_lengths = np.diag(self.inner)
        if order == 2:
            return np.asarray(np.square(z) - squared_lengths)
        return np.asarray(z * (np.square(z) - 3.0 * squared_lengths))

    def _sum_squares(self, z: FloatArray, weights: FloatArray) -> FloatArray:
        """Weighted sum of z z' - A."""
        return np.asarray((z * weights[:, None]).T @ z - weights.sum() * self.inner)

    def _rows(self, X: FloatArray) -> FloatArray:
        """S_1(x) B for each row."""
        return np.asarray((X - self.mean) @ self.whitening)


def _halves(k: int) -> tuple[slice, slice]:
    """The columns in two halves: of any three indices two are in the same one."""
    middle = (k + 1) // 2
    return slice(0, middle), slice(middle, k)


def _packed_cubes(columns: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum of weights_i z_i^3, packed: all columns times the distinct pairs inside each half.

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


def _unpack_cubes(packed: FloatArray) -> FloatArray:
    """The symmetric tensor, (k, k, k), of sums packed by `_packed_cubes`."""
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


def _symmetrise(vector: FloatArray, matrix: FloatArray) -> FloatArray:
    """sym3(v x A): the sum of v x A over the three places that v can take."""
    product = np.multiply.outer(vector, matrix)
    return np.asarray(product + product.transpose(1, 0, 2) + product.transpose(1, 2, 0))


def _symmetrise_rows(z: FloatArray, matrix: FloatArray) -> FloatArray:
    """sym3(z_i x A) for each row."""
    product = z[:, :, None, None] * matrix
    return np.asarray(product + product.transpose(0, 2, 1, 3) + product.transpose(0, 2, 3, 1))
