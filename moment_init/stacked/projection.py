r"""Moments of all orders about a subspace: Hermite regression in the projected rows.

With an orthonormal basis V of the subspace and p = V'z, the functions of the response are regressed
on all normalised Hermite polynomials of p. The coefficients have the moments
:math:`E[T_k S_m](V, ..., V)` as their expectation and only the residual of the whole polynomial as
noise. Beside them stand :math:`E[T_k z H(p)]`, all places but one in V: they tell by how
much the subspace is off.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import sums_by_part
from moment_init.stacked.hermite_basis import HermiteBasis, hermite_basis
from moment_init.stacked.sums import LowOrders

__all__ = ["ProjectedMoments", "project", "quadratic_part"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedMoments:
    """Sums over projected rows, for each part of the rows.

    Parameters
    ----------
    low_orders : LowOrders
        The rows and their first two orders.
    subspace : numpy.ndarray, shape (n_features, k)
        Orthonormal basis V in whitened coordinates.
    basis : HermiteBasis
        The q polynomials of k variables.
    gram_sums : numpy.ndarray, shape (n_parts, q, q)
        Sums of products of two polynomials.
    cross_sums : numpy.ndarray, shape (n_parts, q, n_functions)
        Sums of products of a polynomial and a function of the response.
    contraction_sums : numpy.ndarray, shape (n_parts, n_features, n_functions, q2), or None
        Sums of function times z times polynomial, for the q2 polynomials of one order less; None
        where the subspace is the whole space.
    """

    low_orders: LowOrders
    subspace: FloatArray
    basis: HermiteBasis
    gram_sums: FloatArray
    cross_sums: FloatArray
    contraction_sums: FloatArray | None

    def moments(self, *, left_out: int | None = None) -> FloatArray:
        """Coefficients of the regression of every function on the polynomials.

        Parameters
        ----------
        left_out : int, optional
            A part of the rows to leave out.

        Returns
        -------
        numpy.ndarray, shape (n_functions, q)
            The moments; `HermiteBasis.columns` tells the orders apart.

        Notes
        -----
        The Gram matrix is pulled to its expectation, the identity, by the share (q/n)^2: nothing at
        the n that moments need, and enough to keep it regular where rows are hardly more than
        polynomials.
        """
        kept = np.arange(len(self.gram_sums)) != left_out
        total = self.low_orders.part_weights[kept].sum()
        gram = self.gram_sums[kept].sum(axis=0) / total
        cross = self.cross_sums[kept].sum(axis=0) / total
        share = min(1.0, (self.basis.size / self.low_orders.rows.effective_n) ** 2)
        gram = (1.0 - share) * gram + share * np.eye(self.basis.size)
        return np.asarray(np.linalg.solve(gram, cross).T)

    def contraction(self, *, left_out: int | None = None) -> FloatArray:
        """Moments with one place outside the subspace.

        Parameters
        ----------
        left_out : int, optional
            A part of the rows to leave out.

        Returns
        -------
        numpy.ndarray, shape (n_functions, q2, n_features)
            Means of function times polynomial times the part of z outside the subspace.
        """
        if self.contraction_sums is None:
            n_polynomials = self.basis.columns(self.basis.max_order).start
            shape = (self.cross_sums.shape[2], n_polynomials, self.subspace.shape[0])
            return np.zeros(shape)
        kept = np.arange(len(self.gram_sums)) != left_out
        total = self.low_orders.part_weights[kept].sum()
        mean = self.contraction_sums[kept].sum(axis=0).transpose(1, 2, 0) / total
        return np.asarray(mean - (mean @ self.subspace) @ self.subspace.T)


def project(low_orders: LowOrders, subspace: FloatArray, max_order: int = 3) -> ProjectedMoments:
    """Sum polynomials of the projected rows, and their products with the functions; one pass.

    Parameters
    ----------
    low_orders : LowOrders
        The rows and their first two orders.
    subspace : numpy.ndarray, shape (n_features, k)
        Orthonormal basis V in whitened coordinates.
    max_order : int
        Highest order of the moments.

    Returns
    -------
    ProjectedMoments
        The sums.
    """
    rows = low_orders.rows
    n_features, n_variables = subspace.shape
    basis = hermite_basis(n_variables, max_order)
    n_lower = basis.columns(max_order).start
    projection = rows.to_input_units(subspace)
    linear_map = low_orders.linear_map
    quadratic_map = quadratic_part(low_orders, subspace)
    is_whole = n_variables == n_features

    def sums(block: slice) -> tuple[FloatArray, ...]:
        x, weights = rows.inputs(block), rows.weights[block]
        polynomials = basis.evaluate(x @ projection)
        values = rows.function_values(block)
        weighted = polynomials * weights[:, None]
        gram, cross = np.dot(weighted.T, polynomials), np.dot(weighted.T, values)
        if is_whole:
            return gram, cross
        quadratic = polynomials[:, basis.columns(2)] @ quadratic_map
        residuals = np.ascontiguousarray((values - x @ linear_map - quadratic).T)
        products = residuals[:, None, :] * weighted.T[None, :n_lower]
        return gram, cross, np.dot(products.reshape(-1, len(x)), x).T

    doubles = n_features + 2 * basis.size + rows.n_functions * (2 + n_lower * (not is_whole))
    gram, cross, *rest = sums_by_part(
        sums, rows.n_obs, doubles, is_shuffled=rows.is_shuffled, source=rows.source
    )
    contraction = None
    if rest:
        by_feature = np.moveaxis(rest[0], 1, 0)  # (d, n_parts, m q2)
        whitened = rows.whiten(by_feature.reshape(n_features, -1)).reshape(by_feature.shape)
        shape = (n_features, len(gram), rows.n_functions, n_lower)
        contraction = np.moveaxis(whitened.reshape(shape), 0, 1).copy()
        # The residual has lost the linear part, which is the moment itself at order zero.
        contraction[..., 0] += low_orders.first_sums.transpose(0, 2, 1)
    return ProjectedMoments(low_orders, subspace, basis, gram, cross, contraction)


def quadratic_part(low_orders: LowOrders, subspace: FloatArray) -> FloatArray:
    """Coefficients of the second-order polynomials of V'z in every function.

    Parameters
    ----------
    low_orders : LowOrders
        Moments of the second order.
    subspace : numpy.ndarray, shape (n_features, k)
        Orthonormal basis V.

    Returns
    -------
    numpy.ndarray, shape (k (k + 1) / 2, n_functions)
        The coefficients of the normalised polynomials.
    """
    basis = hermite_basis(subspace.shape[1], 2)
    restricted = subspace.T @ low_orders.second @ subspace  # (m, k, k)
    first, second = basis.indices[2].T
    roots = np.sqrt(basis.multiplicities[2] / 2.0)
    return np.asarray((restricted[:, first, second] * roots).T)
