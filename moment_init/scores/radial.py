"""Scores of elliptical densities, which depend on the row through a quadratic form alone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.scores.contraction import Contraction
from moment_init.scores.symmetric import packed_cubes, symmetrise, symmetrise_rows, unpack_cubes

__all__ = ["RadialContraction"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RadialContraction(Contraction):
    r"""Score tensors of a density of :math:`q = (x - \mu)' \Sigma^{-1} (x - \mu)`.

    With :math:`z = B' \Sigma^{-1} (x - \mu)`, :math:`A = B' \Sigma^{-1} B` and the factors
    :math:`c_m = (-2)^m p^{(m)}(q) / p(q)`,

    .. math:: S_1 = c_1 z, \quad S_2 = c_2 z z' - c_1 A, \quad
              S_3 = c_3 z^{\otimes 3} - c_2 \mathrm{sym}_3(z \otimes A).

    Parameters
    ----------
    mean : numpy.ndarray, shape (n_features,)
        Centre of the density.
    whitening : numpy.ndarray, shape (n_features, k)
        Inverse of Sigma times B.
    inner : numpy.ndarray, shape (k, k)
        The matrix A.
    factors : callable
        Maps rows to the three factors, each (n_obs,).

    Notes
    -----
    Costs what the Gaussian's does, and the quadratic form of each row: O(n d^2).
    """

    mean: FloatArray
    whitening: FloatArray
    inner: FloatArray
    factors: Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]]

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        z, (first, second, third) = self._rows(X), self.factors(X)
        if order == 1:
            return np.asarray(first[:, None] * z)
        scaled = second[:, None] * z
        if order == 2:
            spread = first[:, None, None] * self.inner
            return np.asarray(scaled[:, :, None] * z[:, None, :] - spread)
        cubes = (third[:, None] * z)[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        return np.asarray(cubes - symmetrise_rows(scaled, self.inner))

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        z, factors = self._rows(X), self.factors(X)
        first, second, third = (weights * factor for factor in factors)
        if order == 1:
            return np.asarray(first @ z)
        if order == 2:
            return np.asarray((z * second[:, None]).T @ z - first.sum() * self.inner)
        cubes = unpack_cubes(packed_cubes(np.ascontiguousarray(z.T), third))
        return np.asarray(cubes - symmetrise(second @ z, self.inner))

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        z, factors = self._rows(X), self.factors(X)
        along = z @ thetas  # (n_obs, n_slices)
        cross = self.inner @ thetas  # (k, n_slices)
        second, third = weights * factors[1], weights * factors[2]
        total = second @ z
        slices = np.empty((thetas.shape[1], z.shape[1], z.shape[1]))
        for index in range(thetas.shape[1]):
            mixed = np.outer(total, cross[:, index])
            slices[index] = (z * (third * along[:, index])[:, None]).T @ z
            slices[index] -= (second @ along[:, index]) * self.inner + mixed + mixed.T
        return slices

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        z, factors = self._rows(X), self.factors(X)
        along = z @ vectors
        cross = self.inner @ vectors
        second, third = weights * factors[1], weights * factors[2]
        lengths = np.sum(vectors * cross, axis=0)
        fibres = z.T @ (np.square(along) * third[:, None])
        fibres -= np.outer(second @ z, lengths) + 2.0 * cross * (second @ along)
        return np.asarray(fibres)

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        z, factors = self._rows(X), self.factors(X)
        first, second, third = (factor[:, None] for factor in factors)
        if order == 1:
            return np.asarray(first * z)
        lengths = np.diag(self.inner)
        if order == 2:
            return np.asarray(second * np.square(z) - first * lengths)
        return np.asarray(z * (third * np.square(z) - 3.0 * second * lengths))

    def _rows(self, X: FloatArray) -> FloatArray:
        """Centred rows through the inverse of Sigma and the basis."""
        return np.asarray((X - self.mean) @ self.whitening)
