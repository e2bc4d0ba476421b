r"""The span of the components, and moments of all orders inside it, for a Gaussian input.

The range of :math:`G = \sum_k M_1 M_1' + M_2 M_2'/2 + M_3 M_3'/2`, a sum over the whitened
functions of the response, lies in the span of the directions. The first two orders are used, and
slices of the third where these fall short, without a d x d x d array. Noise adds to the
eigenvalues of G by the law of Marchenko and Pastur: the spectrum is in units of its upper edge.

For a standard Gaussian z the entry of S_m(z) for a multiset t of m variables, variable a taken
k_a times, is the product of :math:`He_{k_a}(z_a)`. Divided by :math:`\sqrt{\prod_a k_a!}` these
Hermite polynomials are orthonormal over all entries and orders. With an orthonormal basis V of the
subspace, the functions of the response are regressed on all polynomials of p = V'z. The expected
coefficients are the moments :math:`E[T_k S_m](V, ..., V)`, and only the residual of the regression
is noise: each order serves as control variates for the others. The moments
:math:`E[T_k z H(p)]`, with one index outside V, show how far the subspace is off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, groupby, permutations
from math import factorial, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import sums_by_part
from moment_init.moments.sums import BlockSums, LowOrders, StackedRows, score_sums

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class HermiteBasis:
    """All normalised Hermite polynomials of k variables up to an order."""

    n_variables: int  # number of variables, k
    max_order: int
    # for each order m from 0, the variables of each entry in ascending order; (q_m, m)
    indices: tuple[IndexArray, ...]
    # for each order, how often an entry occurs in the full tensor; (q_m,)
    multiplicities: tuple[FloatArray, ...]

    @property
    def size(self) -> int:
        """Number of polynomials, q."""
        return sum(len(index) for index in self.indices)

    def columns(self, order: int) -> slice:
        """Return the positions of the polynomials of one order."""
        start = sum(len(index) for index in self.indices[:order])
        return slice(start, start + len(self.indices[order]))

    def evaluate(self, rows: FloatArray) -> FloatArray:
        """Evaluate every polynomial on every row."""
        # rows: (n_obs, n_variables) -> (n_obs, q)
        variables = np.ascontiguousarray(rows.T)
        powers = hermite_polynomials(variables, self.max_order)  # (order + 1, k, n_obs)
        values = np.empty((self.size, rows.shape[0]))
        values[0] = 1.0
        position: dict[tuple[int, ...], int] = {(): 0}
        entries = (tuple(entry.tolist()) for index in self.indices[1:] for entry in index)
        for column, entry in enumerate(entries, start=1):
            position[entry] = column
            last = entry[-1]
            count = entry.count(last)
            rest = position[entry[:-count]]
            np.multiply(values[rest], powers[count, last], out=values[column])
        return values.T

    def monomials(self, directions: FloatArray, order: int) -> FloatArray:
        r"""Compute the entries of the normalised power :math:`u^{\otimes m}` of each direction."""
        # directions: (n_variables, r) -> (q_m, r)
        roots = np.sqrt(self.multiplicities[order])
        return np.asarray(roots[:, None] * directions[self.indices[order]].prod(axis=1))

    def monomial_derivatives(self, directions: FloatArray, order: int) -> FloatArray:
        """Differentiate `monomials` in the entries of the directions."""
        # directions: (n_variables, r) -> (q_m, n_variables, r)
        index = self.indices[order]
        roots = np.sqrt(self.multiplicities[order])
        result = np.zeros((len(index), *directions.shape))
        rows = np.arange(len(index))
        for place in range(order):
            others = np.delete(index, place, axis=1)
            terms = roots[:, None] * directions[others].prod(axis=1)
            result[rows, index[:, place]] += terms  # one place at a time: no row is repeated
        return result

    def expand(self, entries: FloatArray, order: int) -> FloatArray:
        r"""Build full symmetric tensors :math:`E[T S_m] / \sqrt{m!}` from distinct entries."""
        # entries: (n_tensors, q_m) -> (n_tensors, n_variables, ..., n_variables)
        result = np.zeros((entries.shape[0], *([self.n_variables] * order)))
        scaled = entries / np.sqrt(self.multiplicities[order])
        for column, entry in enumerate(self.indices[order]):
            for place in set(permutations(entry.tolist())):
                result[(slice(None), *place)] = scaled[:, column]
        return result


@lru_cache(maxsize=32)
def hermite_basis(n_variables: int, max_order: int) -> HermiteBasis:
    """List the polynomials of `n_variables` variables up to an order."""
    indices, multiplicities = [], []
    for order in range(max_order + 1):
        entries = list(combinations_with_replacement(range(n_variables), order))
        indices.append(np.array(entries, dtype=np.intp).reshape(len(entries), order))
        places = [factorial(order) / prod(map(factorial, _counts(entry))) for entry in entries]
        multiplicities.append(np.array(places))
    return HermiteBasis(n_variables, max_order, tuple(indices), tuple(multiplicities))


def hermite_polynomials(points: FloatArray, max_order: int) -> FloatArray:
    r"""Evaluate normalised Hermite polynomials of one variable, :math:`He_m(z) / \sqrt{m!}`."""
    # -> (max_order + 1, *points.shape)
    values = np.empty((max_order + 1, *points.shape))
    values[0] = 1.0
    if max_order > 0:
        values[1] = points
    for order in range(2, max_order + 1):
        previous = sqrt(order - 1) * values[order - 2]
        values[order] = (points * values[order - 1] - previous) / sqrt(order)
    return values


def _counts(entry: tuple[int, ...]) -> Iterator[int]:
    """Count how often each variable occurs in an ascending entry."""
    return (len(list(group)) for _, group in groupby(entry))


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedMoments:
    """Sums over the projected rows of each part of the rows."""

    low_orders: LowOrders  # the rows and their first two orders
    subspace: FloatArray  # orthonormal basis V in whitened coordinates; (n_features, k)
    basis: HermiteBasis  # the q polynomials of k variables
    gram_sums: FloatArray  # sums of products of two polynomials; (n_parts, q, q)
    # sums of products of a polynomial and a function of the response; (n_parts, q, n_functions)
    cross_sums: FloatArray
    # sums of function times z times polynomial, for the q2 polynomials of lower order,
    # (n_parts, n_features, n_functions, q2); None if the subspace is the whole space
    contraction_sums: FloatArray | None

    def moments(self, *, left_out: int | None = None) -> FloatArray:
        """Regress every function on the polynomials and return the coefficients.

        The Gram matrix is shrunk to its expectation, the identity, by the share (q/n)^2. This is
        negligible for usual n, and keeps the matrix regular if n is hardly larger than q.
        """
        # -> (n_functions, q)
        kept = np.arange(len(self.gram_sums)) != left_out
        total = self.low_orders.part_weights[kept].sum()
        gram = self.gram_sums[kept].sum(axis=0) / total
        cross = self.cross_sums[kept].sum(axis=0) / total
        share = min(1.0, (self.basis.size / self.low_orders.rows.effective_n) ** 2)
        gram = (1.0 - share) * gram + share * np.eye(self.basis.size)
        return np.asarray(np.linalg.solve(gram, cross).T)

    def contraction(self, *, left_out: int | None = None) -> FloatArray:
        """Compute the moments with one index outside the subspace."""
        # -> (n_functions, q2, n_features)
        if self.contraction_sums is None:
            n_polynomials = self.basis.columns(self.basis.max_order).start
            shape = (self.cross_sums.shape[2], n_polynomials, self.subspace.shape[0])
            return np.zeros(shape)
        kept = np.arange(len(self.gram_sums)) != left_out
        total = self.low_orders.part_weights[kept].sum()
        mean = self.contraction_sums[kept].sum(axis=0).transpose(1, 2, 0) / total
        return np.asarray(mean - (mean @ self.subspace) @ self.subspace.T)


def project(low_orders: LowOrders, subspace: FloatArray, max_order: int = 3) -> ProjectedMoments:
    """Sum polynomials of the projected rows and their products with functions, in one pass."""
    # subspace: (n_features, k)
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
        # At order zero the moment is the linear part, which the residual has lost.
        contraction[..., 0] += low_orders.first_sums.transpose(0, 2, 1)
    return ProjectedMoments(low_orders, subspace, basis, gram, cross, contraction)


def quadratic_part(low_orders: LowOrders, subspace: FloatArray) -> FloatArray:
    """Compute the coefficients of the second-order polynomials of V'z in every function."""
    # subspace: (n_features, k) -> (k (k + 1) / 2, n_functions)
    basis = hermite_basis(subspace.shape[1], 2)
    restricted = subspace.T @ low_orders.second @ subspace  # (m, k, k)
    first, second = basis.indices[2].T
    roots = np.sqrt(basis.multiplicities[2] / 2.0)
    return np.asarray((restricted[:, first, second] * roots).T)


# Number of functions whose slices are formed. Those with most signal come first, and each further
# one costs r Gram matrices of the rows.
SLICED_FUNCTIONS = 1


def third_order_moments(low_orders: LowOrders, basis: FloatArray) -> tuple[FloatArray, FloatArray]:
    r"""Form slices M_3(I, I, v_l) of the leading function and fibres M_3(I, V, V) of all functions.

    The linear part, and the quadratic part inside V, are subtracted from the functions first:
    E[q S_3] = 0 for every quadratic q.
    """
    # basis: (n_features, k)
    # -> (n_slices, n_features, n_features), (n_features, n_functions * k (k + 1) / 2)
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
    remainder = rows.whiten(linear).T / total  # (m, d): the rest of M_1
    for index in range(len(slices)):
        mixed = np.outer(remainder[index // size], basis[:, index % size])
        slices[index] -= mixed + mixed.T
    return slices, _complete_fibres(rows, basis, fibres / total, remainder)


def _complete_fibres(
    rows: StackedRows, basis: FloatArray, sums: FloatArray, remainder: FloatArray
) -> FloatArray:
    """Whiten z (p_a p_b - delta_ab) and subtract its excess over S_3, v_a p_b + v_b p_a."""
    n_features, size = basis.shape
    polynomials = hermite_basis(size, 2)
    fibres = rows.whiten(sums).reshape(n_features, rows.n_functions, -1)
    inside = remainder @ basis  # (m, k)
    roots = np.sqrt(polynomials.multiplicities[2] / 2.0)
    for pair, (a, b) in enumerate(polynomials.indices[2]):
        excess = np.outer(basis[:, a], inside[:, b]) + np.outer(basis[:, b], inside[:, a])
        fibres[:, :, pair] -= excess * roots[pair]
    return fibres.reshape(n_features, -1)


# Below twice the edge of the noise an eigenvector of G is more noise than signal (at the edge it is
# orthogonal to the signal, by the transition of Baik, Ben Arous and Peche). The third order is then
# worth another pass over the rows.
CLEAR_EIGENVALUE = 2.0

# Eigenvalues above this multiple of the edge count as directions: the largest eigenvalue of pure
# noise fluctuates by a few per cent around the edge (Tracy-Widom), and heavy tails add to that.
COUNTED_EIGENVALUE = 1.2


@dataclass(frozen=True, slots=True, eq=False)
class Subspace:
    """Estimated span of the components."""

    # orthonormal, in whitened coordinates; (n_features, k) with k = min(n_components, n_features)
    basis: FloatArray
    # eigenvalues of G over the edge of their noise, largest first; (n_features,)
    spectrum: FloatArray
    uses_third_order: bool  # whether the third order was needed


def find_subspace(low_orders: LowOrders, n_components: int) -> Subspace:
    """Find the span of the components."""
    first, second = low_orders.first, low_orders.second
    n_functions, n_features = first.shape
    gram = _low_order_gram(low_orders)
    size = min(n_components, n_features)
    basis, values = _leading_eigenvectors(gram, size)
    effective_n, level = low_orders.rows.effective_n, _noise_level(low_orders)
    edge = level * noise_edge(n_functions, n_features, effective_n)
    if size == n_features:
        return Subspace(np.eye(n_features), values / edge, uses_third_order=False)
    if values[size - 1] >= CLEAR_EIGENVALUE * edge:
        return Subspace(basis, values / edge, uses_third_order=False)
    slices, fibres = third_order_moments(low_orders, basis)
    rough, values = _leading_eigenvectors(gram + _outer(slices) / 2.0, size)
    edge = level * noise_edge(n_functions, n_features, effective_n, n_slices=len(slices))
    # A step of higher-order orthogonal iteration: columns are projected on the rough subspace,
    # which keeps only the noise inside it.
    inside = first.T @ first + _outer(second @ rough) + fibres @ fibres.T
    refined, _ = _leading_eigenvectors(inside + _outer(slices @ rough) / 2.0, size)
    return Subspace(refined, values / edge, uses_third_order=True)


def noise_edge(
    n_functions: int, n_features: int, effective_n: float, *, n_slices: int = 0
) -> float:
    r"""Compute the upper edge of the eigenvalues of G for a response independent of the input.

    M_1 adds a column of noise with variance 1/n to each function, and M_2 over sqrt(2) adds
    (d + 1)/2 in variance; a Gram matrix of N such columns in d dimensions has its largest
    eigenvalue at :math:`(\sqrt N + \sqrt d)^2 / n` (Marchenko and Pastur).
    """
    n_columns = n_functions + (n_functions + n_slices) * (n_features + 1) / 2.0
    return float((np.sqrt(n_columns) + np.sqrt(n_features)) ** 2 / effective_n)


def count_directions(low_orders: LowOrders) -> tuple[int, FloatArray]:
    """Count directions that stand out in the first two orders: a lower bound on components."""
    # -> count, spectrum (n_features,)
    n_functions, n_features = low_orders.first.shape
    edge = noise_edge(n_functions, n_features, low_orders.rows.effective_n)
    edge *= _noise_level(low_orders)
    spectrum = np.linalg.eigvalsh(_low_order_gram(low_orders))[::-1] / edge
    return int(np.sum(spectrum > COUNTED_EIGENVALUE)), spectrum


def _noise_level(low_orders: LowOrders) -> float:
    """Estimate the noise relative to 1/n from the spread between parts of the rows; at least one.

    Its shape is that of Marchenko and Pastur, but heavy tails and the signal itself raise it.
    """
    n_functions, n_features = low_orders.first.shape
    expected = n_functions * (1.0 + (n_features + 1) / 2.0) / low_orders.rows.effective_n
    level: float = np.median(np.linalg.eigvalsh(low_orders.noise)).item() / expected
    return max(1.0, level)


def _low_order_gram(low_orders: LowOrders) -> FloatArray:
    first = low_orders.first
    return np.asarray(first.T @ first + _outer(low_orders.second) / 2.0)


def _outer(matrices: FloatArray) -> FloatArray:
    """Sum A A' over a stack of matrices (n, d, k)."""
    unfolded = np.moveaxis(matrices, 1, 0).reshape(matrices.shape[1], -1)
    return np.asarray(unfolded @ unfolded.T)


def _leading_eigenvectors(gram: FloatArray, size: int) -> tuple[FloatArray, FloatArray]:
    values, vectors = np.linalg.eigh(gram)
    return vectors[:, ::-1][:, :size], values[::-1]
