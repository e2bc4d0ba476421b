r"""The span of the components: from the first two orders, and from the third where they fall short.

:math:`G = \sum_k M_1 M_1' + M_2 M_2'/2 + M_3 M_3'/2` over the whitened functions of the response
has its range in the span of the directions. Noise adds to its eigenvalues what Marchenko and
Pastur's law says: the spectrum is given in units of the upper edge of that noise.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.stacked.sums import LowOrders
from moment_init.stacked.third_order import third_order_moments

__all__ = ["Subspace", "count_directions", "find_subspace", "noise_edge"]

FloatArray = NDArray[np.float64]

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
