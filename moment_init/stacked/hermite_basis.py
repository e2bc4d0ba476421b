r"""Normalised Hermite polynomials of several variables: the distinct entries of Gaussian scores.

For a standard Gaussian z the entry of S_m(z) that belongs to a multiset t of m variables,
variable a taken k_a times, is the product of :math:`He_{k_a}(z_a)`. Divided by
:math:`\sqrt{\prod_a k_a!}` it has variance one, and all entries of all orders are orthonormal. So
the regression of T(y) on the basis has the moments :math:`E[T S_m]` as its coefficients, and takes
every other order out of each of them: control variates for all orders at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, groupby, permutations
from math import factorial, prod, sqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["HermiteBasis", "hermite_basis", "hermite_polynomials"]

FloatArray = NDArray[np.float64]
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
