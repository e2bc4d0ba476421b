r"""Normalised Hermite polynomials of several variables: the distinct entries of Gaussian scores.

For a standard Gaussian z the entry of S_m(z) that belongs to a multiset t of m variables,
variable a taken k_a times, is the product of :math:`He_{k_a}(z_a)`. Divided by
:math:`\sqrt{\prod_a k_a!}` it has variance one, and all entries of all orders are orthonormal. So
the regression of T(y) on the basis has the moments :math:`E[T S_m]` as its coefficients, and takes
every other order out of each of them: control variates for all orders at once.

Moments of all orders about a subspace: Hermite regression in the projected rows.

With an orthonormal basis V of the subspace and p = V'z, the functions of the response are regressed
on all normalised Hermite polynomials of p. The coefficients have the moments
:math:`E[T_k S_m](V, ..., V)` as their expectation and only the residual of the whole polynomial as
noise. Beside them stand :math:`E[T_k z H(p)]`, all places but one in V: they tell by how
much the subspace is off.

Third-order moments about a rough subspace, in all dimensions but without a d x d x d array.

The span of the components: from the first two orders, and from the third where they fall short.

:math:`G = \sum_k M_1 M_1' + M_2 M_2'/2 + M_3 M_3'/2` over the whitened functions of the response
has its range in the span of the directions. Noise adds to its eigenvalues what Marchenko and
Pastur's law says: the spectrum is given in units of the upper edge of that noise.
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
    """All normalised Hermite polynomials of some variables up to an order.

    Parameters
    ----------
    n_variables : int
        Number of variables k.
    max_order : int
        Highest order.
    indices : tuple of numpy.ndarray of int
        For each order m from 0, the variables of each entry in ascending order, (q_m, m).
    multiplicities : tuple of numpy.ndarray
        For each order, in how many places of the full tensor an entry stands, (q_m,).
    """

    n_variables: int
    max_order: int
    indices: tuple[IndexArray, ...]
    multiplicities: tuple[FloatArray, ...]

    @property
    def size(self) -> int:
        """Number of polynomials, q."""
        return sum(len(index) for index in self.indices)

    def columns(self, order: int) -> slice:
        """Where the polynomials of one order stand among all.

        Parameters
        ----------
        order : int
            The order m.

        Returns
        -------
        slice
            Their columns.
        """
        start = sum(len(index) for index in self.indices[:order])
        return slice(start, start + len(self.indices[order]))

    def evaluate(self, rows: FloatArray) -> FloatArray:
        """Evaluate every polynomial on every row.

        Parameters
        ----------
        rows : numpy.ndarray, shape (n_obs, n_variables)
            Standardised rows.

        Returns
        -------
        numpy.ndarray, shape (n_obs, q)
            The values; each column is contiguous.
        """
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
        r"""Entries of the normalised power :math:`u^{\otimes m}` of each direction.

        Parameters
        ----------
        directions : numpy.ndarray, shape (n_variables, r)
            Unit directions u_j.
        order : int
            The order m.

        Returns
        -------
        numpy.ndarray, shape (q_m, r)
            The coefficients of :math:`He_m(u_j'z) / \sqrt{m!}` in the basis.
        """
        roots = np.sqrt(self.multiplicities[order])
        return np.asarray(roots[:, None] * directions[self.indices[order]].prod(axis=1))

    def monomial_derivatives(self, directions: FloatArray, order: int) -> FloatArray:
        """Derivatives of `monomials` in the entries of the directions.

        Parameters
        ----------
        directions : numpy.ndarray, shape (n_variables, r)
            The directions; their length need not be one.
        order : int
            The order m, at least 1.

        Returns
        -------
        numpy.ndarray, shape (q_m, n_variables, r)
            Derivative of entry q of direction j in its a-th entry, at [q, a, j].
        """
        index = self.indices[order]
        roots = np.sqrt(self.multiplicities[order])
        result = np.zeros((len(index), *directions.shape))
        rows = np.arange(len(index))
        for place in range(order):
            others = np.delete(index, place, axis=1)
            terms = roots[:, None] * directions[others].prod(axis=1)
            result[rows, index[:, place]] += terms  # one place at a time: no row stands twice
        return result

    def expand(self, entries: FloatArray, order: int) -> FloatArray:
        r"""Full symmetric tensors :math:`E[T S_m] / \sqrt{m!}` from their distinct entries.

        Parameters
        ----------
        entries : numpy.ndarray, shape (n_tensors, q_m)
            Coefficients of the normalised polynomials of one order.
        order : int
            The order m.

        Returns
        -------
        numpy.ndarray, shape (n_tensors, n_variables, ..., n_variables)
            The tensors; their Frobenius norm is the Euclidean norm of the entries.
        """
        result = np.zeros((entries.shape[0], *([self.n_variables] * order)))
        scaled = entries / np.sqrt(self.multiplicities[order])
        for column, entry in enumerate(self.indices[order]):
            for place in set(permutations(entry.tolist())):
                result[(slice(None), *place)] = scaled[:, column]
        return result


@lru_cache(maxsize=32)
def hermite_basis(n_variables: int, max_order: int) -> HermiteBasis:
    """List the polynomials of some variables up to an order.

    Parameters
    ----------
    n_variables : int
        Number of variables.
    max_order : int
        Highest order.

    Returns
    -------
    HermiteBasis
        The basis; its entries are ordered by order, then lexicographically.
    """
    indices, multiplicities = [], []
    for order in range(max_order + 1):
        entries = list(combinations_with_replacement(range(n_variables), order))
        indices.append(np.array(entries, dtype=np.intp).reshape(len(entries), order))
        places = [factorial(order) / prod(map(factorial, _counts(entry))) for entry in entries]
        multiplicities.append(np.array(places))
    return HermiteBasis(n_variables, max_order, tuple(indices), tuple(multiplicities))


def hermite_polynomials(points: FloatArray, max_order: int) -> FloatArray:
    r"""Normalised Hermite polynomials of one variable, :math:`He_m(z) / \sqrt{m!}`.

    Parameters
    ----------
    points : numpy.ndarray
        Any shape.
    max_order : int
        Highest order.

    Returns
    -------
    numpy.ndarray, shape (max_order + 1, *points.shape)
        The values, by the three-term recursion.
    """
    values = np.empty((max_order + 1, *points.shape))
    values[0] = 1.0
    if max_order > 0:
        values[1] = points
    for order in range(2, max_order + 1):
        previous = sqrt(order - 1) * values[order - 2]
        values[order] = (points * values[order - 1] - previous) / sqrt(order)
    return values


def _counts(entry: tuple[int, ...]) -> Iterator[int]:
    """How often each variable stands in an ascending entry."""
    return (len(list(group)) for _, group in groupby(entry))


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


# Below twice the edge of the noise an eigenvector of G is more noise than signal (at the edge it is
# orthogonal to the signal, by the transition of Baik, Ben Arous and Peche): the third order is
# then worth its pass.
CLEAR_EIGENVALUE = 2.0

# An eigenvalue counts as a direction above this many edges: the largest of noise alone fluctuates
# by a few per cent around its edge (Tracy-Widom), and heavy tails add to that.
COUNTED_EIGENVALUE = 1.2


@dataclass(frozen=True, slots=True, eq=False)
class Subspace:
    """Span of the components as far as the moments show it.

    Parameters
    ----------
    basis : numpy.ndarray, shape (n_features, k)
        Orthonormal basis in whitened coordinates, k = min(n_components, n_features).
    spectrum : numpy.ndarray, shape (n_features,)
        Eigenvalues of G over the edge of their noise, largest first.
    uses_third_order : bool
        Whether the third order was needed.
    """

    basis: FloatArray
    spectrum: FloatArray
    uses_third_order: bool


def find_subspace(low_orders: LowOrders, n_components: int) -> Subspace:
    """Find the span of the components.

    Parameters
    ----------
    low_orders : LowOrders
        Moments of the first two orders.
    n_components : int
        Number of components r.

    Returns
    -------
    Subspace
        The leading min(r, d) eigenvectors of G; the identity if that is all of them.
    """
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
    # A step of higher-order orthogonal iteration: only columns inside the rough subspace, and so
    # only the noise that falls on it.
    inside = first.T @ first + _outer(second @ rough) + fibres @ fibres.T
    refined, _ = _leading_eigenvectors(inside + _outer(slices @ rough) / 2.0, size)
    return Subspace(refined, values / edge, uses_third_order=True)


def noise_edge(
    n_functions: int, n_features: int, effective_n: float, *, n_slices: int = 0
) -> float:
    r"""Upper edge of the eigenvalues of G if the response told nothing of the input.

    M_1 adds a column of noise with variance 1/n to each function, and M_2 over sqrt(2) adds
    (d + 1)/2 in variance; a Gram matrix of N such columns in d dimensions has its largest
    eigenvalue at :math:`(\sqrt N + \sqrt d)^2 / n` (Marchenko and Pastur).

    Parameters
    ----------
    n_functions : int
        Number of whitened functions m.
    n_features : int
        Dimension d.
    effective_n : float
        Number of rows n.
    n_slices : int
        Third-order slices that were added.

    Returns
    -------
    float
        The edge.
    """
    n_columns = n_functions + (n_functions + n_slices) * (n_features + 1) / 2.0
    return float((np.sqrt(n_columns) + np.sqrt(n_features)) ** 2 / effective_n)


def count_directions(low_orders: LowOrders) -> tuple[int, FloatArray]:
    """Count the directions that the first two orders show: a lower bound on the components.

    Parameters
    ----------
    low_orders : LowOrders
        Moments of the first two orders.

    Returns
    -------
    count : int
        Eigenvalues of G clearly above their noise.
    spectrum : numpy.ndarray, shape (n_features,)
        The eigenvalues over the edge of the noise, largest first.
    """
    n_functions, n_features = low_orders.first.shape
    edge = noise_edge(n_functions, n_features, low_orders.rows.effective_n)
    edge *= _noise_level(low_orders)
    spectrum = np.linalg.eigvalsh(_low_order_gram(low_orders))[::-1] / edge
    return int(np.sum(spectrum > COUNTED_EIGENVALUE)), spectrum


def _noise_level(low_orders: LowOrders) -> float:
    """Level of the noise over 1/n, as seen between parts of the rows; at least one.

    Its shape is Marchenko and Pastur's, but heavy tails and the signal itself raise it.
    """
    n_functions, n_features = low_orders.first.shape
    expected = n_functions * (1.0 + (n_features + 1) / 2.0) / low_orders.rows.effective_n
    level: float = np.median(np.linalg.eigvalsh(low_orders.noise)).item() / expected
    return max(1.0, level)


def _low_order_gram(low_orders: LowOrders) -> FloatArray:
    first = low_orders.first
    return np.asarray(first.T @ first + _outer(low_orders.second) / 2.0)


def _outer(matrices: FloatArray) -> FloatArray:
    """Sum of A A' over a stack of matrices (n, d, k)."""
    unfolded = np.moveaxis(matrices, 1, 0).reshape(matrices.shape[1], -1)
    return np.asarray(unfolded @ unfolded.T)


def _leading_eigenvectors(gram: FloatArray, size: int) -> tuple[FloatArray, FloatArray]:
    values, vectors = np.linalg.eigh(gram)
    return vectors[:, ::-1][:, :size], values[::-1]
