"""Scores of log-densities that are a quadratic plus functions of single projections of the row."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.scores.contraction import Contraction
from moment_init.scores.symmetric import (
    packed_cubes,
    symmetrise,
    symmetrise_first,
    symmetrise_rows,
    unpack_cubes,
)

__all__ = ["RidgeContraction", "RidgeDerivatives"]

FloatArray = NDArray[np.float64]

type RidgeDerivatives = Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True, eq=False)
class RidgeContraction(Contraction):
    r"""Score tensors of a log-density :math:`l(x) = Q(x) + \sum_q f_q(w_q' x)`, Q quadratic.

    Its derivatives are :math:`H = H_0 + \sum_q h_q(x) w_q w_q'` and
    :math:`K = \sum_q \kappa_q(x) w_q^{\otimes 3}`, so that with z = -s'B and v_q = B'w_q

    .. math:: S_1 = z, \quad S_2 = z z' + H(B, B), \quad
              S_3 = z^{\otimes 3} + \mathrm{sym}_3(z \otimes H(B, B)) - K(B, B, B).

    Parameters
    ----------
    basis : numpy.ndarray, shape (n_features, k)
        The basis B.
    inner : numpy.ndarray, shape (k, k)
        The constant part of the Hessian, H_0(B, B).
    projections : numpy.ndarray, shape (n_functions, k)
        The vectors v_q.
    derivatives : callable
        Maps rows to the gradient (n_obs, n_features), and to second and third derivatives h and
        kappa of the functions, (n_obs, n_functions).

    Notes
    -----
    Sums take O(n k (k + n_functions)), slices and fibres as much for each; no row has a matrix of
    its own.
    """

    basis: FloatArray
    inner: FloatArray
    projections: FloatArray
    derivatives: RidgeDerivatives

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        z, second, third = self._rows(X)
        if order == 1:
            return z
        v = self.projections
        hessians = self.inner + np.einsum("nq,qa,qb->nab", second, v, v, optimize=True)
        if order == 2:
            return np.asarray(z[:, :, None] * z[:, None, :] + hessians)
        cubes = z[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        own = np.einsum("nq,qa,qb,qc->nabc", third, v, v, v, optimize=True)
        return np.asarray(cubes + symmetrise_rows(z, hessians) - own)

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        z, second, third = self._rows(X)
        if order == 1:
            return np.asarray(weights @ z)
        v, weighted = self.projections, z * weights[:, None]
        if order == 2:
            total = weights.sum() * self.inner + self._between(weights @ second)
            return np.asarray(weighted.T @ z + total)
        cubes = unpack_cubes(packed_cubes(np.ascontiguousarray(z.T), weights))
        cubes += symmetrise(weighted.sum(axis=0), self.inner)
        pairs = v[:, :, None] * v[:, None, :]  # (q, k, k)
        cubes += symmetrise_first(np.tensordot(weighted.T @ second, pairs, axes=1))
        return np.asarray(cubes - np.tensordot((v * (weights @ third)[:, None]).T, pairs, axes=1))

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        z, second, third = self._rows(X)
        v, weighted = self.projections, z * weights[:, None]
        first, cross, own = weighted.sum(axis=0), weighted.T @ second, weights @ third
        slices = np.empty((thetas.shape[1], z.shape[1], z.shape[1]))
        for index, theta in enumerate(thetas.T):
            along, seen = weighted @ theta, v @ theta  # (n_obs,), (q,)
            mixed = np.outer(first, self.inner @ theta) + (cross * seen) @ v
            slices[index] = (z * along[:, None]).T @ z + along.sum() * self.inner
            slices[index] += self._between(along @ second - own * seen) + mixed + mixed.T
        return slices

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        z, second, third = self._rows(X)
        weighted = z * weights[:, None]
        along, seen = z @ vectors, self.projections @ vectors  # (n_obs, L), (q, L)
        inner = self.inner @ vectors
        fibres = weighted.T @ np.square(along)
        fibres += np.outer(weighted.sum(axis=0), np.sum(vectors * inner, axis=0))
        fibres += (weighted.T @ second) @ np.square(seen)
        fibres += 2.0 * inner * (weights @ along)
        weighted_second = second.T @ (along * weights[:, None])  # (q, L)
        own = (weights @ third)[:, None] * np.square(seen)
        fibres += self.projections.T @ (2.0 * weighted_second * seen - own)
        return np.asarray(fibres)

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        z, second, third = self._rows(X)
        if order == 1:
            return z
        lengths = np.diag(self.inner) + second @ np.square(self.projections)
        if order == 2:
            return np.asarray(np.square(z) + lengths)
        return np.asarray(z * (np.square(z) + 3.0 * lengths) - third @ self.projections**3)

    def _rows(self, X: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """S_1(x) B of each row, with second and third derivatives of the functions."""
        gradient, second, third = self.derivatives(X)
        return np.asarray(-gradient @ self.basis), second, third

    def _between(self, values: FloatArray) -> FloatArray:
        """Sum over q of values_q v_q v_q'."""
        return np.asarray((self.projections * values[:, None]).T @ self.projections)
