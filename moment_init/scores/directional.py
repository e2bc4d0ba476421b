"""Scores from directional derivatives of a log-density: one evaluation for each direction."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moment_init.scores.contraction import Contraction
from moment_init.scores.symmetric import (
    packed_cubes,
    symmetrise_first,
    symmetrise_rows,
    unpack_cubes,
)

__all__ = ["DirectionalContraction"]

FloatArray = NDArray[np.float64]


class DirectionalDerivatives(Protocol):
    """Derivatives of a log-density, contracted with vectors that all rows share."""

    def gradient(self, X: FloatArray) -> FloatArray:
        """Gradient s(x) of each row.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            The rows.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_features)
            The gradients.
        """

    def hessian(self, X: FloatArray, v: FloatArray) -> FloatArray:
        """Hessian of each row times a vector, H(x) v.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            The rows.
        v : numpy.ndarray, shape (n_features,)
            The vector.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_features)
            The products.
        """

    def third(self, X: FloatArray, v: FloatArray, w: FloatArray) -> FloatArray:
        """Third derivative of each row in two directions, K(x)(v, w, .).

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            The rows.
        v : numpy.ndarray, shape (n_features,)
            The first direction.
        w : numpy.ndarray, shape (n_features,)
            The second direction.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_features)
            The remaining mode.
        """


@dataclass(frozen=True, slots=True, eq=False)
class DirectionalContraction(Contraction):
    r"""Score tensors of any log-density, :math:`S_3 = z^3 + \mathrm{sym}_3(z \otimes H) - K`.

    Parameters
    ----------
    basis : numpy.ndarray, shape (n_features, k)
        The basis B; z = -s'B.
    derivatives : DirectionalDerivatives
        Gradient, and higher derivatives contracted with vectors.

    Notes
    -----
    A gradient, k Hessian products and, for the third order, k (k + 1)/2 third derivatives; a slice
    takes k of these, a fibre one. Memory is that of a few copies of the rows.
    """

    basis: FloatArray
    derivatives: DirectionalDerivatives

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        z = self._first(X)
        if order == 1:
            return z
        hessians = np.stack([self._hessian(X, b) for b in self.basis.T], axis=1)  # (n, k, k)
        if order == 2:
            return np.asarray(z[:, :, None] * z[:, None, :] + hessians)
        cubes = z[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        cubes += symmetrise_rows(z, hessians)
        for a, b in zip(*np.triu_indices(z.shape[1]), strict=True):
            third = self._third(X, self.basis[:, a], self.basis[:, b])
            cubes[:, a, b] -= third
            if a != b:
                cubes[:, b, a] -= third
        return cubes

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        z = self._first(X)
        if order == 1:
            return np.asarray(weights @ z)
        weighted = z * weights[:, None]
        if order == 2:
            hessian = np.stack([weights @ self._hessian(X, b) for b in self.basis.T])
            return np.asarray(weighted.T @ z + hessian)
        mixed = np.stack([weighted.T @ self._hessian(X, b) for b in self.basis.T], axis=1)
        cubes = unpack_cubes(packed_cubes(np.ascontiguousarray(z.T), weights))
        cubes += symmetrise_first(mixed)
        for a, b in zip(*np.triu_indices(z.shape[1]), strict=True):
            third = weights @ self._third(X, self.basis[:, a], self.basis[:, b])
            cubes[a, b] -= third
            if a != b:
                cubes[b, a] -= third
        return np.asarray(cubes)

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        z = self._first(X)
        along = (z @ thetas) * weights[:, None]  # (n_obs, n_slices)
        slices = np.stack([(z * column[:, None]).T @ z for column in along.T])
        for place, b in enumerate(self.basis.T):
            slices[:, place] += along.T @ self._hessian(X, b)
        for index, v in enumerate((self.basis @ thetas).T):
            mixed = (z * weights[:, None]).T @ self._hessian(X, v)
            own = np.stack([weights @ self._third(X, v, b) for b in self.basis.T])
            slices[index] += mixed + mixed.T - own
        return slices

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        z = self._first(X)
        fibres = np.empty(vectors.shape)
        for index, vector in enumerate(vectors.T):
            v, along = self.basis @ vector, z @ vector
            hessian = self._hessian(X, v)  # (n_obs, k)
            fibres[:, index] = (weights * (np.square(along) + hessian @ vector)) @ z
            fibres[:, index] += 2.0 * (weights * along) @ hessian
            fibres[:, index] -= weights @ self._third(X, v, v)
        return fibres

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        z = self._first(X)
        if order == 1:
            return z
        columns = self.basis.T
        lengths = np.stack([self.derivatives.hessian(X, b) @ b for b in columns], axis=1)
        if order == 2:
            return np.asarray(np.square(z) + lengths)
        third = np.stack([self.derivatives.third(X, b, b) @ b for b in columns], axis=1)
        return np.asarray(z * (np.square(z) + 3.0 * lengths) - third)

    def _first(self, X: FloatArray) -> FloatArray:
        """S_1(x) B of each row."""
        return np.asarray(-self.derivatives.gradient(X) @ self.basis)

    def _hessian(self, X: FloatArray, v: FloatArray) -> FloatArray:
        """H(x)(v, B) of each row."""
        return self.derivatives.hessian(X, v) @ self.basis

    def _third(self, X: FloatArray, v: FloatArray, w: FloatArray) -> FloatArray:
        """K(x)(v, w, B) of each row."""
        return self.derivatives.third(X, v, w) @ self.basis
