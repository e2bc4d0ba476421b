"""Cross-moments of the response and the score functions of the input, as sums over rows."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.scores.base import InputModel


@dataclass(frozen=True, slots=True, eq=False)
class CrossMoments:
    r"""Empirical cross-moments M_m = E[T(y) S_m(x)] of one response.

    Implements line 1 of Algorithm 1 of [1]_, :math:`\hat M_m = \frac1n \sum_i y_i S_m(x_i)`: for
    Gaussian inputs these are M_1 of Lemma 2, M_2 of section 3.2 and M_3 of Eq. (5); with
    :math:`y^2` and :math:`y^3` as responses, those of Eq. (7). All are in the coordinates of
    `basis`: a narrower basis gives contracted forms such as M_3(P, P, P). Score tensors of single
    rows are never stored.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    """

    X: NDArray[np.generic]  # checked inputs; (n_obs, n_features)
    response: FloatArray  # T(y) for each row; (n_obs,)
    weights: FloatArray  # weight of each row; (n_obs,)
    input_model: InputModel  # fitted density of the input
    basis: FloatArray  # contracted with every mode of the moments; (n_features, k)

    @property
    def _products(self) -> FloatArray:
        """Weight times response of each row, divided by the sum of the weights."""
        return self.weights * self.response / self.weights.sum()

    def moment(self, order: int) -> FloatArray:
        """Compute the moment M_m(B, ..., B) explicitly.

        Costs O(n k^m / 2) after the O(n d k) contraction of the rows.
        """
        # -> (k, ..., k)
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
                    k * (k + 14) // 4,  # rows, weighted rows and pairs within halves
                )
            )

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return (contraction.sum_score(read_block(self.X, rows), products[rows], order),)

        return sum_over_blocks(block_sum, len(products), 3 * k)[0]

    def low_orders(self) -> tuple[FloatArray, FloatArray]:
        """Compute M_1(B) and M_2(B, B) in one pass over the rows."""
        # -> (k,), (k, k)
        products = self._products
        contraction = self.input_model.contract(self.basis)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return contraction.sum_low_orders(read_block(self.X, rows), products[rows])

        first, second = sum_over_blocks(block_sum, len(products), 3 * self.basis.shape[1])
        return first, second

    def slices(self, thetas: FloatArray) -> FloatArray:
        """Compute slices M_3(B, B, B theta_l) without the tensor.

        Costs O(n k^2) per slice.
        """
        # thetas: (k, n_slices) -> (n_slices, k, k)
        products = self._products
        contraction = self.input_model.contract(self.basis)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return (contraction.sum_slices(read_block(self.X, rows), products[rows], thetas),)

        return sum_over_blocks(block_sum, len(products), 3 * self.basis.shape[1])[0]

    def fibres(self, vectors: FloatArray) -> FloatArray:
        """Compute fibres M_3(B, B v_l, B v_l) without the tensor.

        This is the factor form of the power update T(I, v, v) of the paper's Algorithm 4: it needs
        only X and y and costs O(n d) per vector.
        """
        # vectors: (k, n_vectors) -> (k, n_vectors)
        products = self._products
        contraction = self.input_model.contract(self.basis)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            return (contraction.sum_fibres(read_block(self.X, rows), products[rows], vectors),)

        width = self.basis.shape[1] + 2 * vectors.shape[1]
        return sum_over_blocks(block_sum, len(products), width)[0]

    def covariance_along(self, directions: FloatArray, order: int) -> FloatArray:
        """Compute the sampling covariance of M_m(v_l, ..., v_l) along several directions.

        The terms of the sum over rows are independent, so that their squares estimate it for any
        distribution of the response (a sandwich estimate without a noise model).
        """
        # directions: (k, n_directions) -> (n_directions, n_directions)
        products = self._products
        contraction = self.input_model.contract(self.basis @ directions)

        def block_sum(rows: slice) -> tuple[FloatArray, ...]:
            terms = contraction.powers(read_block(self.X, rows), order) * products[rows, None]
            return np.dot(terms.T, terms), terms.sum(axis=0)

        width = self.basis.shape[0] + 3 * directions.shape[1]
        squares, total = sum_over_blocks(block_sum, len(products), width)
        return squares - np.outer(total, total) / len(products)

    def restrict(self, subspace: FloatArray) -> "CrossMoments":
        """Restrict the moments to a subspace: M_m(P, ..., P)."""
        # subspace: (k, m)
        return replace(self, basis=self.basis @ subspace)

    def without_quadratic(self) -> "tuple[CrossMoments, FloatArray]":
        r"""Subtract the quadratic part of the response (control variates).

        Since :math:`E[q(x) S_3(x)] = E[\nabla^3 q] = 0` for every quadratic q, the response may be
        replaced by

        .. math:: T - E[T] - \langle M_1, S_1(x) \rangle - \tfrac12 \langle M_2, S_2(x) \rangle

        without changing M_3, and with far less noise. `basis` must be the standardising basis: the
        score tensors are then orthogonal in mean square, and no regression is needed.
        """
        # -> moments, first moment (k,)
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
