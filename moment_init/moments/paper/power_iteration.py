"""The robust tensor power method: Procedure 3 and Algorithm 4 of the paper."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moment_init.checks import FloatArray
from moment_init.moments.paper.whitening import tensor_slice

FibreMap = Callable[[FloatArray], FloatArray]

# If components are equally likely, L = 10 r starts miss one with probability r (1 - 1/r)^(10 r),
# less than r / 20,000. Deflation finds a component that was missed.
STARTS_PER_COMPONENT = 10

# The iteration converges quadratically: if one component dominates the start, 30 rounds suffice.
POWER_ROUNDS = 30

# nu of Algorithm 4: starts with |<a, a^>| > nu / 2 belong to the same component. Exact whitened
# components are orthogonal, so that any nu / 2 between 0 and 1 separates them; 1/2 is the middle.
CLUSTER_THRESHOLD = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class PowerResult:
    """Eigenvectors of a symmetric tensor."""

    vectors: FloatArray  # unit eigenvectors, one per column; (r, n_components)
    values: FloatArray  # T(a, a, a) of each eigenvector; (n_components,)
    # number of eigenvectors found by clustering the starts; the others were found by deflation
    n_clusters: int
    residual: float  # largest change of an eigenvector in one more round


def tensor_fibres(tensor: FloatArray) -> FibreMap:
    """Return the function that maps vectors a_l to T(I, a_l, a_l)."""
    # tensor: (r, r, r)
    size = tensor.shape[0]
    unfolding = tensor.reshape(size, size * size)

    def fibres(vectors: FloatArray) -> FloatArray:
        squares = (vectors[:, None, :] * vectors[None, :, :]).reshape(size * size, -1)
        return np.asarray(unfolding @ squares)

    return fibres


def svd_start(tensor: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw a start vector from a random slice.

    Implements Procedure 3 of the paper: the top singular vector of T(I, I, theta), theta standard
    Gaussian.
    """
    # tensor: (r, r, r) -> (r,)
    theta: FloatArray = rng.standard_normal(tensor.shape[:1])
    left, _, _ = np.linalg.svd(tensor_slice(tensor, theta))
    return np.asarray(left[:, 0])


def power_rounds(fibres: FibreMap, vectors: FloatArray, n_rounds: int) -> FloatArray:
    r"""Run the power update of Algorithm 4 on several vectors at once.

    .. math:: a \leftarrow T(I, a, a) / \|T(I, a, a)\|
    """
    # vectors: (r, n_vectors) -> (r, n_vectors)
    for _ in range(n_rounds):
        vectors = _normalise_columns(fibres(vectors), fallback=vectors)
    return vectors


def robust_power_method(
    tensor: FloatArray,
    n_components: int,
    rng: np.random.Generator,
    *,
    n_starts: int | None = None,
    n_rounds: int = POWER_ROUNDS,
    cluster_threshold: float = CLUSTER_THRESHOLD,
) -> PowerResult:
    """Find the eigenvectors of a whitened tensor.

    Implements Algorithm 4 of the paper after its whitening step: N rounds from each of L starts of
    Procedure 3. Then, while starts are left, the one with the largest |T(a, a, a)| gets N more
    rounds and is output, and all starts with |<a, a^>| > nu / 2 are removed. Departure: if no
    starts are left before r components are found, the others are sought in the deflated tensor.
    """
    # tensor: (r, r, r)
    n_starts = STARTS_PER_COMPONENT * n_components if n_starts is None else n_starts
    fibres = tensor_fibres(tensor)
    clusters = _cluster(
        fibres, _run_starts(tensor, n_starts, n_rounds, rng), n_rounds, cluster_threshold
    )
    vectors = clusters[:, :n_components]
    n_clusters = vectors.shape[1]
    while vectors.shape[1] < n_components:
        deflated = _deflate(tensor, vectors)
        starts = _run_starts(deflated, STARTS_PER_COMPONENT, n_rounds, rng)
        values = np.abs(_cubic_form(tensor_fibres(deflated), starts))
        vectors = np.column_stack([vectors, starts[:, np.argmax(values)]])
    updated = power_rounds(fibres, vectors, 1)
    alignment = np.abs(np.sum(updated * vectors, axis=0))
    return PowerResult(
        vectors=vectors,
        values=_cubic_form(fibres, vectors),
        n_clusters=n_clusters,
        residual=float(np.sqrt(np.maximum(0.0, 1.0 - np.square(alignment))).max()),
    )


def _run_starts(
    tensor: FloatArray, n_starts: int, n_rounds: int, rng: np.random.Generator
) -> FloatArray:
    """Run N rounds from each of L starts; (r, n_starts)."""
    starts = np.column_stack([svd_start(tensor, rng) for _ in range(n_starts)])
    return power_rounds(tensor_fibres(tensor), starts, n_rounds)


def _cluster(
    fibres: FibreMap, candidates: FloatArray, n_rounds: int, threshold: float
) -> FloatArray:
    """Run the clustering loop of Algorithm 4: one vector per cluster; (r, n_clusters)."""
    centres = []
    while candidates.shape[1]:
        best = int(np.argmax(np.abs(_cubic_form(fibres, candidates))))
        vector = power_rounds(fibres, candidates[:, [best]], n_rounds)[:, 0]
        centres.append(vector)
        keep = np.abs(candidates.T @ vector) <= threshold / 2.0
        keep[best] = False  # guarantees progress if the vector has left its cluster
        candidates = candidates[:, keep]
    return np.column_stack(centres)


def _cubic_form(fibres: FibreMap, vectors: FloatArray) -> FloatArray:
    """Compute T(a, a, a) of each column."""
    return np.asarray(np.sum(vectors * fibres(vectors), axis=0))


def _deflate(tensor: FloatArray, vectors: FloatArray) -> FloatArray:
    """Subtract the least-squares multiples of the cubes of the columns from the tensor."""
    cubes = np.einsum("il,jl,kl->ijkl", vectors, vectors, vectors).reshape(-1, vectors.shape[1])
    values, *_ = np.linalg.lstsq(cubes, tensor.ravel(), rcond=None)
    return np.asarray(tensor - (cubes @ values).reshape(tensor.shape))


def _normalise_columns(columns: FloatArray, *, fallback: FloatArray) -> FloatArray:
    """Scale columns to unit length; a column that vanished keeps its former value."""
    norms = np.linalg.norm(columns, axis=0)
    usable = norms > np.finfo(float).tiny
    return np.where(usable, columns / np.where(usable, norms, 1.0), fallback)
