"""Whitening of a symmetric third-order tensor by one of its slices (Procedure 2 of the paper).

A slice V = T(I, I, theta) = sum_j lambda_j <u_j, theta> u_j u_j' whitens the tensor only if it is
positive definite. For a random theta it almost never is, since the signs of its eigenvalues are
those of lambda_j <u_j, theta>. A definite slice is therefore searched for.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from moment_init.checks import FloatArray, RandomSeed, make_generator

# Balancing converges linearly. Rough balance is enough to find a definite slice, and a tensor that
# is not balanced after this many rounds does not have full rank.
MAX_BALANCING_ROUNDS = 200
BALANCING_TOLERANCE = 1e-3

# Rounds of theta <- theta + T(a, a, .). The perceptron bound needs (1 / margin)^2 of them, and in
# balanced coordinates the margin of r components is at least of the order 1 / sqrt(r).
MAX_SLICE_ROUNDS = 100

# A slice whose eigenvalues span more than this has no accurate inverse square root.
DEFINITE_TOLERANCE = 1e-10


def multilinear(tensor: FloatArray, matrix: FloatArray) -> FloatArray:
    r"""Contract every mode of a third-order tensor with a matrix.

    Implements the multilinear form of Appendix A of [1]_,

    .. math:: T(M, M, M)_{abc} = \sum_{ijk} T_{ijk} M_{ia} M_{jb} M_{kc}.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (k, k, k)
        The tensor T.
    matrix : numpy.ndarray, shape (k, m)
        The matrix M.

    Returns
    -------
    numpy.ndarray, shape (m, m, m)
        The tensor T(M, M, M).

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import multilinear
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0] = 2.0
    >>> multilinear(tensor, np.array([[3.0], [1.0]]))
    array([[[54.]]])
    """
    first = np.tensordot(tensor, matrix, axes=(0, 0))
    second = np.tensordot(first, matrix, axes=(0, 0))
    return np.asarray(np.tensordot(second, matrix, axes=(0, 0)))


def tensor_slice(tensor: FloatArray, theta: FloatArray) -> FloatArray:
    r"""Compute a slice T(I, I, theta): line 2 of Procedure 2.

    For :math:`T = \sum_j \lambda_j u_j^{\otimes 3}` it is the matrix
    :math:`\sum_j \lambda_j \langle u_j, \theta \rangle u_j u_j'`.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (k, k, k)
        The tensor T.
    theta : numpy.ndarray, shape (k,)
        Vector that the last mode is contracted with.

    Returns
    -------
    numpy.ndarray, shape (k, k)
        The slice.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import tensor_slice
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, -1.0
    >>> tensor_slice(tensor, np.array([3.0, 5.0]))
    array([[ 6.,  0.],
           [ 0., -5.]])
    """
    return np.asarray(tensor @ theta)


def leading_subspace(slices: FloatArray, n_components: int) -> tuple[FloatArray, FloatArray]:
    """Find the span of the components, and the spectrum that shows how many there are.

    The components of a third-order tensor span the column space of its unfolding, a matrix with
    the fibres of the tensor as columns. A tensor of r components with independent directions has r
    singular values above zero; those of an empirical tensor are compared with `noise_edge`.
    Departure from the paper, which takes the span from the slice that whitens the tensor: all
    slices together contain far less noise.

    Parameters
    ----------
    slices : numpy.ndarray, shape (n_slices, k, m)
        A symmetric tensor, (k, k, k), or some of its slices.
    n_components : int
        Number of components r.

    Returns
    -------
    basis : numpy.ndarray, shape (k, n_components)
        Orthonormal basis of the span.
    singular_values : numpy.ndarray, shape (min(k, n_slices m),)
        Singular values of the unfolded tensor, largest first.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import leading_subspace
    >>> tensor = np.zeros((3, 3, 3))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, -1.0
    >>> leading_subspace(tensor, 2)[1]
    array([2., 1., 0.])
    """
    unfolding = slices.transpose(1, 0, 2).reshape(slices.shape[1], -1)
    # No Gram matrix: squaring would lose the weak components of an exact tensor.
    vectors, singular_values, _ = np.linalg.svd(unfolding, full_matrices=False)
    return np.ascontiguousarray(vectors[:, :n_components]), singular_values


def balancing_matrix(tensor: FloatArray) -> FloatArray:
    r"""Find coordinates in which the tensor has the smallest norm for a given volume.

    Iterates :math:`B \leftarrow B\, G^{-1/6}` with :math:`G = T_{(1)} T_{(1)}'` of T(B, B, B). If T
    is a sum of r independent cubes, the smallest norm in the orbit of unit-determinant maps is
    unique up to rotation (Kempf and Ness), and attained if the components are orthogonal and of
    equal size: whitening without a slice. For noisy tensors these coordinates are well conditioned.
    """
    # tensor: (r, r, r) -> (r, r)
    size = tensor.shape[0]
    balance = np.eye(size)
    for _ in range(MAX_BALANCING_ROUNDS):
        balanced = multilinear(tensor, balance)
        vectors, singular_values, _ = np.linalg.svd(balanced.reshape(size, -1), full_matrices=False)
        if singular_values[-1] <= DEFINITE_TOLERANCE * singular_values[0]:
            break  # rank deficient: it cannot be balanced, and the caller checks the slice
        balance = balance @ (vectors * singular_values ** (-1.0 / 3.0)) @ vectors.T
        balance /= np.linalg.norm(balance)
        if np.ptp(singular_values) <= BALANCING_TOLERANCE * singular_values[0]:
            break
    return np.asarray(balance)


def definite_slice(
    tensor: FloatArray, random_seed: RandomSeed = None, *, balance: FloatArray | None = None
) -> tuple[FloatArray, bool]:
    r"""Search for a vector theta whose slice T(I, I, theta) is positive definite.

    The remedy for line 1 of Procedure 2 of [1]_, which draws theta at random: the slice along a
    random theta is indefinite with a probability of about :math:`1 - 2^{1 - r}`, even if all
    :math:`\lambda_j` are positive, because its signs are those of
    :math:`\lambda_j \langle u_j, \theta \rangle`. Power iteration fails after whitening by it.

    If the components are independent, a theta with a definite slice exists. The smallest eigenvalue
    of the slice is concave in theta with supergradient T(a, a, .), where a is its eigenvector, so
    that :math:`\theta \leftarrow \theta + T(a, a, \cdot)` increases it. The search starts at the
    trace :math:`\sum_i T(e_i, e_i, \cdot)` with a random perturbation, in balanced coordinates: the
    components of an exact tensor are orthogonal there, and the slice is definite at once.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (r, r, r)
        A symmetric tensor of r components, restricted to their span (`leading_subspace`).
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of the perturbation.
    balance : numpy.ndarray, shape (r, r), optional
        Coordinates of the search. By default those in which the tensor has the smallest norm among
        all coordinates of the same volume.

    Returns
    -------
    theta : numpy.ndarray, shape (r,)
        A unit vector.
    is_definite : bool
        Whether its slice is positive definite. If not, theta is the best vector that was found.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import definite_slice, tensor_slice
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, -1.0
    >>> theta, is_definite = definite_slice(tensor, random_seed=1)
    >>> is_definite, bool(np.all(np.linalg.eigvalsh(tensor_slice(tensor, theta)) > 0.0))
    (True, True)
    """
    rng = make_generator(random_seed)
    balance = balancing_matrix(tensor) if balance is None else balance
    balanced = multilinear(tensor, balance)
    trace = np.einsum("iil->l", balanced)
    # A tenth of the usual size of the trace: the slice differs between attempts, its signs do not.
    perturbation = 0.1 * np.linalg.norm(balanced) / np.sqrt(len(trace))
    theta = _unit(trace + perturbation * rng.standard_normal(len(trace)), rng)
    best, best_margin = theta, -np.inf
    for _ in range(MAX_SLICE_ROUNDS):
        eigenvalues, eigenvectors = eigh(tensor_slice(balanced, theta))
        margin = eigenvalues[0] / max(np.abs(eigenvalues).max(), np.finfo(float).tiny)
        if margin > best_margin:
            best, best_margin = theta, margin
        if margin > DEFINITE_TOLERANCE:
            break
        worst = eigenvectors[:, 0]
        step = _unit(tensor_slice(balanced, worst) @ worst, rng)
        theta = _unit(theta + step, rng)
    # T(B, B, B theta) = B' T(I, I, B theta) B: definite in both coordinates, or in neither.
    return _unit(balance @ best, rng), bool(best_margin > DEFINITE_TOLERANCE)


def _unit(vector: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Scale a vector to unit length; draw a random unit vector if it vanishes.

    Steps can cancel exactly if a tensor has no definite slice, as for a traceless 2 x 2 x 2 tensor.
    """
    length = np.linalg.norm(vector)
    if length > np.finfo(float).eps:
        return np.asarray(vector / length)
    random = rng.standard_normal(len(vector))
    return np.asarray(random / np.linalg.norm(random))


@dataclass(frozen=True, slots=True, eq=False)
class WhiteningResult:
    """A whitened tensor and the map back.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (r, r, r)
        The whitened tensor T(W, W, W).
    whitening_matrix : numpy.ndarray, shape (k, r)
        The matrix W: W' V W is the identity, up to signs if V is indefinite.
    unwhitening_matrix : numpy.ndarray, shape (k, r)
        The pseudo-inverse of W', which maps whitened components back to multiples of u_j.
    condition_number : float
        Ratio of the extreme absolute eigenvalues of V.
    is_definite : bool
        Whether V is positive definite, so that the whitened components are orthogonal.
    """

    tensor: FloatArray
    whitening_matrix: FloatArray
    unwhitening_matrix: FloatArray
    condition_number: float
    is_definite: bool


def whiten(tensor: FloatArray, theta: FloatArray, n_components: int) -> WhiteningResult:
    r"""Whiten a tensor by its slice along theta.

    Implements Procedure 2 of [1]_: the slice :math:`V = T(I, I, \theta)`, its rank-r decomposition
    :math:`V = \tilde U \mathrm{diag}(\tilde\lambda) \tilde U'`, and
    :math:`W = \tilde U \mathrm{diag}(|\tilde\lambda|^{-1/2})`. If V is positive definite, the
    vectors :math:`\sqrt{\lambda_j \langle u_j, \theta \rangle}\, W' u_j` are orthonormal.
    Departures: theta is an argument, since a random one almost never gives a definite slice
    (`definite_slice`), and absolute values keep W real if the slice is indefinite.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (k, k, k)
        The symmetric tensor T.
    theta : numpy.ndarray, shape (k,)
        Vector of the slice.
    n_components : int
        Number of components r, at most k.

    Returns
    -------
    WhiteningResult
        The whitened tensor, W and its pseudo-inverse.

    Raises
    ------
    ValueError
        If the tensor is not of the form (k, k, k), or `n_components` is not between 1 and k.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    T = 4 e_1^3 + 9 e_2^3 along (1, 1) has the slice V = diag(4, 9), hence W = diag(1/2, 1/3).

    >>> import numpy as np
    >>> from moment_init.paper import whiten
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 4.0, 9.0
    >>> result = whiten(tensor, np.ones(2), 2)
    >>> np.abs(result.whitening_matrix).round(3)
    array([[0.   , 0.5  ],
           [0.333, 0.   ]])
    >>> result.is_definite, result.condition_number
    (True, 2.25)
    """
    require_cube(tensor, n_components)
    eigenvalues, eigenvectors = eigh(tensor_slice(tensor, theta))
    leading = np.argsort(-np.abs(eigenvalues))[:n_components]
    magnitudes = np.maximum(np.abs(eigenvalues[leading]), np.finfo(float).tiny)
    vectors = eigenvectors[:, leading]
    whitening_matrix = vectors / np.sqrt(magnitudes)
    return WhiteningResult(
        tensor=multilinear(tensor, whitening_matrix),
        whitening_matrix=whitening_matrix,
        unwhitening_matrix=vectors * np.sqrt(magnitudes),
        condition_number=float(magnitudes.max() / magnitudes.min()),
        is_definite=bool(np.all(eigenvalues[leading] > DEFINITE_TOLERANCE * magnitudes.max())),
    )


def require_cube(tensor: FloatArray, n_components: int) -> None:
    """Raise unless an array is a tensor (k, k, k) with room for the components."""
    size = tensor.shape[0] if tensor.ndim else 0
    if tensor.shape != (size, size, size):
        raise ValueError(
            f"`tensor` must have three modes of equal size; got shape {tensor.shape}. Pass a "
            "third-order moment."
        )
    if not 1 <= n_components <= size:
        raise ValueError(
            f"`n_components` must be between 1 and the size of `tensor` ({size}) for the "
            f"directions to be independent; got {n_components}. Reduce it, or add features."
        )
