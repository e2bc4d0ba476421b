"""Whitening of a symmetric third-order tensor by one of its slices (Procedure 2 of the paper).

A slice V = T(I, I, theta) = sum_j lambda_j <u_j, theta> u_j u_j' whitens the tensor only if it is
positive definite. For a random theta it almost never is, since the signs of its eigenvalues are
those of lambda_j <u_j, theta>. A definite slice is therefore searched for.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from moment_init.checks import FloatArray

# Balancing converges linearly. Rough balance is enough to find a definite slice, and a tensor that
# is not balanced after this many rounds does not have full rank.
MAX_BALANCING_ROUNDS = 200
BALANCING_TOLERANCE = 1e-3

# Rounds of theta <- theta + T(a, a, .). The perceptron bound needs (1 / margin)^2 of them, and in
# balanced coordinates the margin of r components is at least of the order 1 / sqrt(r).
MAX_SLICE_ROUNDS = 100

# A slice whose eigenvalues span more than this has no accurate inverse square root.
DEFINITE_TOLERANCE = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class WhiteningResult:
    """A whitened tensor and the map back."""

    tensor: FloatArray  # T(W, W, W); (r, r, r)
    # W, with W' V W the identity (up to signs if V is indefinite); (k, r)
    whitening_matrix: FloatArray
    # pseudo-inverse of W', which maps whitened components back; (k, r)
    unwhitening_matrix: FloatArray
    condition_number: float  # ratio of the extreme absolute eigenvalues of V
    # whether V is positive definite, so that the whitened components are orthogonal
    is_definite: bool


def multilinear(tensor: FloatArray, matrix: FloatArray) -> FloatArray:
    """Compute the multilinear form T(M, M, M) of a third-order tensor."""
    # tensor: (k, k, k), matrix: (k, m) -> (m, m, m)
    first = np.tensordot(tensor, matrix, axes=(0, 0))
    second = np.tensordot(first, matrix, axes=(0, 0))
    return np.asarray(np.tensordot(second, matrix, axes=(0, 0)))


def tensor_slice(tensor: FloatArray, theta: FloatArray) -> FloatArray:
    """Compute the slice T(I, I, theta)."""
    # tensor: (k, k, k), theta: (k,) -> (k, k)
    return np.asarray(tensor @ theta)


def leading_subspace(slices: FloatArray, n_components: int) -> tuple[FloatArray, FloatArray]:
    """Find the common subspace of slices: leading left singular vectors of their unfolding."""
    # slices: (n_slices, k, m) -> (k, n_components), (k,)
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


def definite_slice(tensor: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, bool]:
    r"""Search for a vector theta whose slice T(I, I, theta) is positive definite.

    Such a theta exists whenever the components are independent. The smallest eigenvalue of the
    slice is concave in theta with supergradient T(a, a, .), where a is its eigenvector, so that
    theta <- theta + T(a, a, .) increases it. The search starts at the trace
    :math:`\sum_i T(e_i, e_i, .)` with a random perturbation. The slice is definite at once if the
    components are orthogonal, as for exact tensors in balanced coordinates (`balancing_matrix`).
    """
    # tensor: (r, r, r) -> (r,), ...
    trace = np.einsum("iil->l", tensor)
    # A tenth of the usual size of the trace: the slice differs between attempts, its signs do not.
    perturbation = 0.1 * np.linalg.norm(tensor) / np.sqrt(len(trace))
    theta = _unit(trace + perturbation * rng.standard_normal(len(trace)), rng)
    best, best_margin = theta, -np.inf
    for _ in range(MAX_SLICE_ROUNDS):
        eigenvalues, eigenvectors = eigh(tensor_slice(tensor, theta))
        margin = eigenvalues[0] / max(np.abs(eigenvalues).max(), np.finfo(float).tiny)
        if margin > best_margin:
            best, best_margin = theta, margin
        if margin > DEFINITE_TOLERANCE:
            break
        worst = eigenvectors[:, 0]
        step = _unit(tensor_slice(tensor, worst) @ worst, rng)
        theta = _unit(theta + step, rng)
    return best, bool(best_margin > DEFINITE_TOLERANCE)


def _unit(vector: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Scale a vector to unit length; draw a random unit vector if it vanishes.

    Steps can cancel exactly if a tensor has no definite slice, as for a traceless 2 x 2 x 2 tensor.
    """
    length = np.linalg.norm(vector)
    if length > np.finfo(float).eps:
        return np.asarray(vector / length)
    random = rng.standard_normal(len(vector))
    return np.asarray(random / np.linalg.norm(random))


def whiten(tensor: FloatArray, theta: FloatArray, n_components: int) -> WhiteningResult:
    r"""Whiten a tensor by its slice along theta.

    Implements Procedure 2 of the paper: :math:`V = T(I, I, \theta)`, its rank-r decomposition
    :math:`V = \tilde U \mathrm{diag}(\tilde\lambda) \tilde U'`, and
    :math:`W = \tilde U \mathrm{diag}(|\tilde\lambda|^{-1/2})`. Departures: theta is searched for,
    not drawn at random, and absolute values keep W real if no definite slice was found.
    """
    # tensor: (k, k, k), theta: (k,)
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
