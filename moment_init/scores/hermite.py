"""Hermite tensors: the scores of a Gaussian density, contracted with a basis."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.scores.contraction import Contraction
from moment_init.scores.symmetric import packed_cubes, symmetrise, symmetrise_rows, unpack_cubes

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

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        z = self._rows(X)
        if order == 1:
            return z
        if order == 2:
            return np.asarray(z[:, :, None] * z[:, None, :] - self.inner)
        cubes = z[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        return np.asarray(cubes - symmetrise_rows(z, self.inner))

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        if order == 1:
            return np.asarray(weights @ self._rows(X))
        if order == 2:
            return self._sum_squares(self._rows(X), weights)
        return self._assemble(self._third_order(X, weights))

    def _low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        z = self._rows(X)
        return np.asarray(weights @ z), self._sum_squares(z, weights)

    def _third_order(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, ...]:
        columns = self.whitening.T @ (X - self.mean).T  # (k, n_obs)
        return packed_cubes(columns, weights), np.asarray(columns @ weights)

    def _assemble(self, sums: tuple[FloatArray, ...]) -> FloatArray:
        packed, first = sums
        return unpack_cubes(packed) - symmetrise(first, self.inner)

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
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

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        z = self._rows(X)
        along = z @ vectors  # (n_obs, n_vectors)
        cross = self.inner @ vectors  # (k, n_vectors)
        lengths = np.sum(vectors * cross, axis=0)
        fibres = z.T @ (np.square(along) * weights[:, None])
        fibres -= np.outer(weights @ z, lengths) + 2.0 * cross * (weights @ along)
        return np.asarray(fibres)

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
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
