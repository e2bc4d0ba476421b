"""What every input model offers: its density, and contractions of its score tensors."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Contraction", "InputModel"]

FloatArray = NDArray[np.float64]


class Contraction(ABC):
    """Score tensors contracted with a basis B, (n_features, k), in every mode.

    What depends on the basis alone is prepared once; the methods then take blocks of rows. The sums
    form no array of n_obs x k x k.
    """

    @abstractmethod
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

    @abstractmethod
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
        return self.sum_score(X, weights, 1), self.sum_score(X, weights, 2)

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
        return (self.sum_score(X, weights, 3),)

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
        return sums[0]

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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


class InputModel(ABC):
    r"""A density of the input with its score functions.

    The score of order m is Eq. (9) of [1]_,

    .. math:: S_m(x) = (-1)^m \nabla^{(m)} p(x) / p(x),

    so that :math:`E[f(x) S_m(x)] = E[\nabla^{(m)} f(x)]` (Theorem 9). The text of [1]_ also calls
    :math:`\nabla \log p` the score; Eq. (9) gives :math:`S_1 = -\nabla \log p`, which is used here.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    """

    @abstractmethod
    def fit(self, X: Any, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the density to rows; what was given to the constructor is kept.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.
        sample_weight : array-like, shape (n_obs,), optional
            Weight of each row.

        Returns
        -------
        Self
            The fitted model.
        """

    @property
    @abstractmethod
    def standardising_basis(self) -> FloatArray:
        """Basis L, (n_features, n_features), with L L' the covariance of the input."""

    @abstractmethod
    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x).
        """

    @abstractmethod
    def contract(self, basis: FloatArray) -> Contraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Contracted with every mode.

        Returns
        -------
        Contraction
            The contracted score tensors as functions of rows.
        """

    def score(self, X: ArrayLike, order: int, basis: ArrayLike | None = None) -> FloatArray:
        """Contracted score tensor of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.
        order : {1, 2, 3}
            Order m of the score.
        basis : array-like, shape (n_features, k), optional
            Contracted with every mode; the identity by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k, ..., k)
            The tensors S_m(x)(B, ..., B), with m modes of size k.

        Raises
        ------
        ValueError
            For an order other than 1, 2, 3.
        """
        if order not in (1, 2, 3):
            raise ValueError(f"`order` must be 1, 2 or 3; got {order!r}.")
        rows = np.asarray(X, dtype=np.float64)
        matrix = np.eye(rows.shape[1]) if basis is None else np.asarray(basis, dtype=np.float64)
        return self.contract(matrix).score(rows, order)
