"""Cross-moments of the response and the input's score tensors, as sums over blocks of rows."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.scores.base import InputModel


@dataclass(frozen=True, slots=True, eq=False)
class CrossMoments:
    r"""Empirical cross-moments M_m = E[T(y) S_m(x)] of one response, never materialised by rows.

    Implements line 1 of Algorithm 1 of [1]_, :math:`\hat M_m = \frac1n \sum_i y_i S_m(x_i)`: for
    Gaussian inputs M_1 of Lemma 2, M_2 of section 3.2 and M_3 of Eq. (5); with :math:`y^2` and
    :math:`y^3` as responses those of Eq. (7). All are taken in the coordinates of `basis`, so
    contracted forms such as M_3(P, P, P) come from a narrower basis.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        Checked inputs.
    response : numpy.ndarray, shape (n_obs,)
        T(y) for each row.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    input_model : InputModel
        Fitted density of the input.
    basis : numpy.ndarray, shape (n_features, k)
        Contracted with the modes of the moments.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    """

    X: NDArray[np.generic]
    response: FloatArray
    weights: FloatArray
    input_model: InputModel
    basis: FloatArray

    @property
    def _products(self) -> FloatArray:
        """Weight times response of each row, over the sum of the weights."""
        return self.weights * self.response / self.weights.sum()

    def moment(self, order: int) -> FloatArray:
        """Compute the moment M_m(B, ..., B) explicitly.

        Parameters
        ----------
        order : {1, 2, 3}
            Order m of the moment.

        Returns
        -------
        numpy.ndarray, shape (k, ..., k)
            The moment, a tensor with m modes.

        Notes
        -----
        Costs O(n k^m / 2) after the O(n d k) contraction of the rows.
        """
        products = self._products
        contraction = self.input_model.contract(self.basis)
        k = self.basis.shape[1]

        if order == 3:
            return contraction.assemble_third_order(
                sum_over_blocks(
                    lambda rows: contraction.sum_third_order(
                        read_block(self.X, rows), products[rows]
                    ),
                    len(products),
                    k * (k + 14) // 4,  # rows, weighted rows, pairs inside halves
                )
            )

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return (contraction.sum_score(read_block(self.X, rows), products[rows], order),)

        return sum_over_blocks(block_sum, len(products), 3 * k)[0]

    def low_orders(self) -> tuple[FloatArray, FloatArray]:
        """Compute M_1(B) and M_2(B, B) in one pass over the rows.

        Returns
        -------
        first : numpy.ndarray, shape (k,)
            The first-order moment.
        second : numpy.ndarray, shape (k, k)
            The second-order moment.
        """
        products = self._products
        contraction = self.input_model.contract(self.basis)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return contraction.sum_low_orders(read_block(self.X, rows), products[rows])

        first, second = sum_over_blocks(block_sum, len(products), 3 * self.basis.shape[1])
        return first, second

    def slices(self, thetas: FloatArray) -> FloatArray:
        """Compute slices M_3(B, B, B theta_l) without the tensor.

        Parameters
        ----------
        thetas : numpy.ndarray, shape (k, n_slices)
            Vectors in the coordinates of the basis, a column a slice.

        Returns
        -------
        numpy.ndarray, shape (n_slices, k, k)
            The slices.

        Notes
        -----
        Costs O(n k^2) per slice.
        """
        products = self._products
        contraction = self.input_model.contract(self.basis)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return (contraction.sum_slices(read_block(self.X, rows), products[rows], thetas),)

        return sum_over_blocks(block_sum, len(products), 3 * self.basis.shape[1])[0]

    def fibres(self, vectors: FloatArray) -> FloatArray:
        """Compute fibres M_3(B, B v_l, B v_l) without the tensor.

        This is the factor form of the power update T(I, v, v) of the paper's Algorithm 4: it
        touches only X and y and costs O(n d) per vector.

        Parameters
        ----------
        vectors : numpy.ndarray, shape (k, n_vectors)
            Vectors in the coordinates of the basis.

        Returns
        -------
        numpy.ndarray, shape (k, n_vectors)
            The fibres.
        """
        products = self._products
        contraction = self.input_model.contract(self.basis)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return (contraction.sum_fibres(read_block(self.X, rows), products[rows], vectors),)

        width = self.basis.shape[1] + 2 * vectors.shape[1]
        return sum_over_blocks(block_sum, len(products), width)[0]

    def covariance_along(self, directions: FloatArray, order: int) -> FloatArray:
        """Sampling covariance of the moment along several directions, M_m(v_l, ..., v_l).

        The terms of the sum over rows are independent, so that their squares give it, whatever the
        distribution of the response (a sandwich, not a noise model).

        Parameters
        ----------
        directions : numpy.ndarray, shape (k, n_directions)
            Vectors in the coordinates of the basis.
        order : {1, 2, 3}
            Order m of the moment.

        Returns
        -------
        numpy.ndarray, shape (n_directions, n_directions)
            The covariance.
        """
        products = self._products
        contraction = self.input_model.contract(self.basis @ directions)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            terms = contraction.powers(read_block(self.X, rows), order) * products[rows, None]
            return np.dot(terms.T, terms), terms.sum(axis=0)

        width = self.basis.shape[0] + 3 * directions.shape[1]
        squares, total = sum_over_blocks(block_sum, len(products), width)
        return squares - np.outer(total, total) / len(products)

    def restrict(self, subspace: FloatArray) -> "CrossMoments":
        """Restrict the moments to a subspace: M_m(P, ..., P).

        Parameters
        ----------
        subspace : numpy.ndarray, shape (k, m)
            Basis P of the subspace, in the coordinates of the present basis.

        Returns
        -------
        CrossMoments
            The same moments in the m coordinates of the subspace.
        """
        return replace(self, basis=self.basis @ subspace)

    def without_quadratic(self) -> "tuple[CrossMoments, FloatArray]":
        r"""Take the quadratic part of the response out (control variates).

        Since :math:`E[q(x) S_3(x)] = E[\nabla^3 q] = 0` for every quadratic q, the response may be
        replaced by

        .. math:: T - E[T] - \langle M_1, S_1(x) \rangle - \tfrac12 \langle M_2, S_2(x) \rangle

        without changing M_3, and with far less noise. The basis must be the standardising one: the
        score tensors are then orthogonal in mean square, and no regression is needed.

        Returns
        -------
        moments : CrossMoments
            The same moments with the residual as response.
        first_moment : numpy.ndarray, shape (k,)
            The moment M_1 of the response.
        """
        centred = self.response - self.weights @ self.response / self.weights.sum()
        first, second = replace(self, response=centred).low_orders()
        residual = np.empty_like(centred)
        contraction = self.input_model.contract(self.basis)

        def block_residual(rows: slice) -> tuple[FloatArray, ...]:
            z = contraction.score(read_block(self.X, rows), 1)
            quadratic = np.einsum("ij,ij->i", z @ second, z) - np.trace(second)
            residual[rows] = centred[rows] - z @ first - 0.5 * quadratic
            return ()

        sum_over_blocks(block_residual, len(centred), 3 * self.basis.shape[1])
        return replace(self, response=residual), first
