r"""Third-order moments about a rough subspace, in all dimensions but without a d x d x d array."""

import numpy as np
from numpy.typing import NDArray

from moment_init.stacked.hermite_basis import hermite_basis
from moment_init.stacked.projection import quadratic_part
from moment_init.stacked.rows import StackedRows
from moment_init.stacked.sums import BlockSums, LowOrders, score_sums

__all__ = ["third_order_moments"]

FloatArray = NDArray[np.float64]

# Of the functions, how many give slices. They come with most signal first, and each further one
# costs r Gram matrices of the rows.
SLICED_FUNCTIONS = 1


def third_order_moments(low_orders: LowOrders, basis: FloatArray) -> tuple[FloatArray, FloatArray]:
    r"""Slices M_3(I, I, v_l) of the leading function, and fibres M_3(I, V, V) of all of them.

    The linear part and the quadratic part inside V are taken out of the functions first: E[q S_3]
    = 0 for every quadratic q.

    Parameters
    ----------
    low_orders : LowOrders
        The rows and their first two orders.
    basis : numpy.ndarray, shape (n_features, k)
        Orthonormal basis V of the rough subspace.

    Returns
    -------
    slices : numpy.ndarray, shape (n_slices, n_features, n_features)
        The slices.
    fibres : numpy.ndarray, shape (n_features, n_functions * k (k + 1) / 2)
        The fibres, scaled to unit variance off the subspace.
    """
    rows = low_orders.rows
    n_features, size = basis.shape
    n_sliced = min(SLICED_FUNCTIONS, rows.n_functions)
    polynomials = hermite_basis(size, 2)
    projection = rows.to_input_units(basis)
    linear_map, quadratic_map = low_orders.linear_map, quadratic_part(low_orders, basis)

    def columns(block: slice, x: FloatArray) -> tuple[FloatArray, BlockSums]:
        projected = x @ projection
        quadratics = polynomials.evaluate(projected)[:, polynomials.columns(2)]
        values = rows.function_values(block) - x @ linear_map - quadratics @ quadratic_map
        sliced = (values[:, :n_sliced, None] * projected[:, None, :]).reshape(len(x), -1)
        weighted = np.ascontiguousarray((values * rows.weights[block, None]).T)
        products = (weighted[:, None, :] * quadratics.T[None]).reshape(-1, len(x))
        return sliced, (np.dot(weighted, x).T, np.dot(products, x).T)

    slices = np.empty((n_sliced * size, n_features, n_features))
    doubles = rows.n_functions * (len(polynomials.indices[2]) + 2)
    total = rows.weights.sum()
    for part in score_sums(rows, columns, len(slices), doubles):
        slices[part.columns] = part.sums.sum(axis=0) / total
        linear, fibres = part.others
    remainder = rows.whiten(linear).T / total  # (m, d): what is left of M_1
    for index in range(len(slices)):
        mixed = np.outer(remainder[index // size], basis[:, index % size])
        slices[index] -= mixed + mixed.T
    return slices, _complete_fibres(rows, basis, fibres / total, remainder)


def _complete_fibres(
    rows: StackedRows, basis: FloatArray, sums: FloatArray, remainder: FloatArray
) -> FloatArray:
    """Whiten z (p_a p_b - delta_ab) and take out its excess over S_3, v_a p_b + v_b p_a."""
    n_features, size = basis.shape
    polynomials = hermite_basis(size, 2)
    fibres = rows.whiten(sums).reshape(n_features, rows.n_functions, -1)
    inside = remainder @ basis  # (m, k)
    roots = np.sqrt(polynomials.multiplicities[2] / 2.0)
    for pair, (a, b) in enumerate(polynomials.indices[2]):
        excess = np.outer(basis[:, a], inside[:, b]) + np.outer(basis[:, b], inside[:, a])
        fibres[:, :, pair] -= excess * roots[pair]
    return fibres.reshape(n_features, -1)
