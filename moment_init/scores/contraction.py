"""Score tensors contracted with a basis: what estimators ask of an input model."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contraction"]

FloatArray = NDArray[np.float64]


class Contraction(ABC):
    """Score tensors contracted with a basis B, (n_features, k), in every mode.

    What depends on the basis alone is prepared once; the methods then take blocks of rows. The sums
    form no array of n_obs x k x k. A density states its formulas as the private methods of like
    names.
    """

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """Contracted score tensor of each row, S_m(x)(B, ..., B).

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k, ..., k)
            The tensors, with m modes of size k.
        """
        return self._score(X, order)

    def sum_score(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        r"""Weighted sum of score tensors, :math:`\sum_i a_i S_m(x_i)(B, ..., B)`.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            The :math:`a_i`.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (k, ..., k)
            The sum, with m modes of size k.
        """
        return self._sum(X, weights, order)

    def sum_low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted sums of the first and second order over a block of rows.

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
        return self._low_orders(X, weights)

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
            What is added up over blocks; by default the tensor itself.
        """
        return self._third_order(X, weights)

    def assemble_third_order(self, sums: tuple[FloatArray, ...]) -> FloatArray:
        """Assemble the sum of the third order.

        Parameters
        ----------
        sums : tuple of numpy.ndarray
            Sums over all rows of what `sum_third_order` returns.

        Returns
        -------
        numpy.ndarray, shape (k, k, k)
            The weighted sum of S_3(x)(B, B, B).
        """
        return self._assemble(sums)

    def sum_slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        r"""Weighted sums of slices, :math:`\sum_i a_i S_3(x_i)(B, B, B \theta_l)`.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            The :math:`a_i`.
        thetas : numpy.ndarray, shape (k, n_slices)
            Contracted with the third mode, a column a slice.

        Returns
        -------
        numpy.ndarray, shape (n_slices, k, k)
            The slices.
        """
        return self._slices(X, weights, thetas)

    def sum_fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        r"""Weighted sums of fibres, :math:`\sum_i a_i S_3(x_i)(B, B v_l, B v_l)`.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            The :math:`a_i`.
        vectors : numpy.ndarray, shape (k, n_vectors)
            Contracted with the second and third mode, a column a fibre.

        Returns
        -------
        numpy.ndarray, shape (k, n_vectors)
            The fibres.
        """
        return self._fibres(X, weights, vectors)

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """Score tensors along each column of the basis, S_m(x)(b_l, ..., b_l).

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k)
            The diagonals of the contracted tensors.
        """
        return self._powers(X, order)

    @abstractmethod
    def _score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(B, ..., B) of each row."""

    @abstractmethod
    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        """Weighted sum of S_m(x)(B, ..., B)."""

    @abstractmethod
    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B, B theta_l)."""

    @abstractmethod
    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B v_l, B v_l)."""

    @abstractmethod
    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(b_l, ..., b_l) of each row."""

    def _low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted sums of the first two orders; where one evaluation serves both, better so."""
        return self._sum(X, weights, 1), self._sum(X, weights, 2)

    def _third_order(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, ...]:
        """Sums from which `_assemble` makes the third order; the tensor itself by default."""
        return (self._sum(X, weights, 3),)

    def _assemble(self, sums: tuple[FloatArray, ...]) -> FloatArray:
        """Weighted sum of S_3(x)(B, B, B) from the sums of `_third_order`."""
        return sums[0]
