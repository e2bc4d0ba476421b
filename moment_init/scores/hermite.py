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
        return np.asarray(cubes - symmetrise_rows(z, self.inner))

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
        return packed_cubes(columns, weights), np.asarray(columns @ weights)

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
        return unpack_cubes(packed) - symmetrise(first, self.inner)

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
