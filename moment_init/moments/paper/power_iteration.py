"""The robust tensor power method: Procedure 3 and Algorithm 4 of the paper."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moment_init.checks import FloatArray, RandomSeed, make_generator
from moment_init.moments.paper.whitening import require_cube, tensor_slice

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
    """Eigenvectors of a symmetric tensor.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (r, n_components)
        Unit eigenvectors, one per column.
    values : numpy.ndarray, shape (n_components,)
        The eigenvalues T(a, a, a).
    n_clusters : int
        Number of eigenvectors found by clustering the starts; the others were found by deflation.
    residual : float
        Largest change of an eigenvector in one more round.
    """

    vectors: FloatArray
    values: FloatArray
    n_clusters: int
    residual: float


def tensor_fibres(tensor: FloatArray) -> FibreMap:
    """Return the function that maps vectors a_l to T(I, a_l, a_l).

    Parameters
    ----------
    tensor : numpy.ndarray, shape (r, r, r)
        The tensor T.

    Returns
    -------
    callable
        It maps vectors, (r, n_vectors), to the fibres, (r, n_vectors). `moment_fibres` is the
        function of the same kind that needs no tensor.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import tensor_fibres
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, 1.0
    >>> tensor_fibres(tensor)(np.array([[1.0], [3.0]]))
    array([[2.],
           [9.]])
    """
    size = tensor.shape[0]
    unfolding = tensor.reshape(size, size * size)

    def fibres(vectors: FloatArray) -> FloatArray:
        squares = (vectors[:, None, :] * vectors[None, :, :]).reshape(size * size, -1)
        return np.asarray(unfolding @ squares)

    return fibres


def svd_start(tensor: FloatArray, random_seed: RandomSeed = None) -> FloatArray:
    """Draw a start vector from a random slice.

    Implements Procedure 3 of [1]_: the top singular vector of T(I, I, theta), theta standard
    Gaussian.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (r, r, r)
        The whitened tensor.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of theta.

    Returns
    -------
    numpy.ndarray, shape (r,)
        A unit vector.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import svd_start
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0] = 1.0
    >>> np.abs(svd_start(tensor, random_seed=1))
    array([1., 0.])
    """
    theta: FloatArray = make_generator(random_seed).standard_normal(tensor.shape[:1])
    left, _, _ = np.linalg.svd(tensor_slice(tensor, theta))
    return np.asarray(left[:, 0])


def power_rounds(fibres: FibreMap, vectors: FloatArray, n_rounds: int) -> FloatArray:
    r"""Run the power update of Algorithm 4 on several vectors at once.

    .. math:: a \leftarrow T(I, a, a) / \|T(I, a, a)\|

    Parameters
    ----------
    fibres : callable
        Maps vectors a_l to T(I, a_l, a_l): `tensor_fibres` of a tensor, or `moment_fibres`, which
        is the factor form of the remark after Theorem 4 of [1]_.
    vectors : numpy.ndarray, shape (r, n_vectors)
        The vectors a_l, one per column.
    n_rounds : int
        Number of updates N.

    Returns
    -------
    numpy.ndarray, shape (r, n_vectors)
        The vectors after N updates. A vector whose fibre vanishes stays what it was.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import power_rounds, tensor_fibres
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, 1.0
    >>> power_rounds(tensor_fibres(tensor), np.array([[0.8, 0.6], [0.6, 0.8]]), 10).round(6)
    array([[1., 1.],
           [0., 0.]])
    """
    for _ in range(n_rounds):
        vectors = _normalise_columns(fibres(vectors), fallback=vectors)
    return vectors


def cluster_vectors(
    fibres: FibreMap,
    candidates: FloatArray,
    *,
    n_rounds: int = POWER_ROUNDS,
    threshold: float = CLUSTER_THRESHOLD,
) -> FloatArray:
    r"""Cluster the vectors that power iteration has reached: the loop of Algorithm 4.

    While vectors are left, the one with the largest :math:`|T(a, a, a)|` gets N more rounds and is
    output as :math:`\hat a`; all vectors with :math:`|\langle a, \hat a\rangle| > \nu / 2` are
    removed.

    Parameters
    ----------
    fibres : callable
        Maps vectors a_l to T(I, a_l, a_l).
    candidates : numpy.ndarray, shape (r, n_starts)
        Results of `power_rounds` from L starts.
    n_rounds : int, default 30
        Number of further rounds N.
    threshold : float, default 1.0
        The parameter :math:`\nu`.

    Returns
    -------
    numpy.ndarray, shape (r, n_clusters)
        One vector per cluster.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import cluster_vectors, tensor_fibres
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, 3.0
    >>> reached = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> cluster_vectors(tensor_fibres(tensor), reached)
    array([[0., 1.],
           [1., 0.]])
    """
    centres = []
    while candidates.shape[1]:
        best = int(np.argmax(np.abs(_cubic_form(fibres, candidates))))
        vector = power_rounds(fibres, candidates[:, [best]], n_rounds)[:, 0]
        centres.append(vector)
        keep = np.abs(candidates.T @ vector) <= threshold / 2.0
        keep[best] = False  # guarantees progress if the vector has left its cluster
        candidates = candidates[:, keep]
    return np.column_stack(centres)


def robust_power_method(
    tensor: FloatArray,
    n_components: int,
    random_seed: RandomSeed = None,
    *,
    n_starts: int | None = None,
    n_rounds: int = POWER_ROUNDS,
    cluster_threshold: float = CLUSTER_THRESHOLD,
) -> PowerResult:
    """Find the eigenvectors of a whitened tensor.

    Implements Algorithm 4 of [1]_ after its whitening step: N rounds (`power_rounds`) from each of
    L starts of Procedure 3 (`svd_start`), then the clustering of the results (`cluster_vectors`).
    Departure: if no starts are left before r components are found, the others are sought in the
    deflated tensor.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (r, r, r)
        The whitened tensor (`whiten`).
    n_components : int
        Number of eigenvectors, at most r.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of the starts.
    n_starts : int, optional
        Number of starts L; ten per component by default.
    n_rounds : int, default 30
        Number of rounds N.
    cluster_threshold : float, default 1.0
        The parameter nu.

    Returns
    -------
    PowerResult
        Eigenvectors and eigenvalues. The eigenvalues are those of the whitened tensor and not the
        lambda_j of Lemma 3, which are `symmetric_coefficients` of the directions.

    Raises
    ------
    ValueError
        If the tensor is not of the form (r, r, r), or `n_components` is not between 1 and r.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import robust_power_method
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, 3.0
    >>> result = robust_power_method(tensor, 2, random_seed=1)
    >>> result.values.round(6), result.n_clusters
    (array([3., 2.]), 2)
    """
    require_cube(tensor, n_components)
    rng = make_generator(random_seed)
    n_starts = STARTS_PER_COMPONENT * n_components if n_starts is None else n_starts
    fibres = tensor_fibres(tensor)
    reached = _run_starts(tensor, n_starts, n_rounds, rng)
    clusters = cluster_vectors(fibres, reached, n_rounds=n_rounds, threshold=cluster_threshold)
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


def symmetric_coefficients(moment: FloatArray, directions: FloatArray) -> tuple[FloatArray, float]:
    r"""Compute the coefficients lambda_j of given directions in a moment of any order.

    They solve the least-squares problem
    :math:`\min_\lambda \| M_m - \sum_j \lambda_j u_j^{\otimes m} \|`. For the third order these,
    and not the eigenvalues of the whitened tensor, are the
    :math:`\lambda_j = w_j s_j^3 E[g''']` of Lemma 3 of [1]_, or the :math:`6 w_j s_j^3` of Lemma 6;
    Theorem 11 states the latter without the factor 6.

    Parameters
    ----------
    moment : numpy.ndarray, shape (k, ..., k)
        The moment M_m, with m modes.
    directions : numpy.ndarray, shape (k, n_components)
        The directions u_j.

    Returns
    -------
    coefficients : numpy.ndarray, shape (n_components,)
        The lambda_j.
    residual : float
        Norm of what the components leave unexplained, relative to the moment.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import symmetric_coefficients
    >>> coefficients, residual = symmetric_coefficients(np.array([2.0, 3.0]), np.eye(2))
    >>> coefficients
    array([2., 3.])
    """
    powers = directions
    for _ in range(moment.ndim - 1):
        powers = (powers[:, None] * directions).reshape(-1, directions.shape[1])
    coefficients, *_ = np.linalg.lstsq(powers, moment.ravel(), rcond=None)
    residual = np.linalg.norm(moment.ravel() - powers @ coefficients)
    return coefficients, float(residual / max(np.linalg.norm(moment), np.finfo(float).tiny))


def _run_starts(
    tensor: FloatArray, n_starts: int, n_rounds: int, rng: np.random.Generator
) -> FloatArray:
    """Run N rounds from each of L starts; (r, n_starts)."""
    starts = np.column_stack([svd_start(tensor, rng) for _ in range(n_starts)])
    return power_rounds(tensor_fibres(tensor), starts, n_rounds)


def _cubic_form(fibres: FibreMap, vectors: FloatArray) -> FloatArray:
    """Compute T(a, a, a) of each column."""
    return np.asarray(np.sum(vectors * fibres(vectors), axis=0))


def _deflate(tensor: FloatArray, vectors: FloatArray) -> FloatArray:
    """Subtract the least-squares multiples of the cubes of the columns from the tensor."""
    values, _ = symmetric_coefficients(tensor, vectors)
    cubes = np.einsum("l,il,jl,kl->ijk", values, vectors, vectors, vectors)
    return np.asarray(tensor - cubes)


def _normalise_columns(columns: FloatArray, *, fallback: FloatArray) -> FloatArray:
    """Scale columns to unit length; a column that vanished keeps its former value."""
    norms = np.linalg.norm(columns, axis=0)
    usable = norms > np.finfo(float).tiny
    return np.where(usable, columns / np.where(usable, norms, 1.0), fallback)
