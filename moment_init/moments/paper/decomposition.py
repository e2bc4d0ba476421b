"""Decomposition of a symmetric third-order tensor into components and coefficients."""

import threading
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import tensorly
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac, symmetric_parafac_power_iteration

from moment_init.checks import FloatArray, changed_filters
from moment_init.moments.paper.power_iteration import (
    POWER_ROUNDS,
    STARTS_PER_COMPONENT,
    robust_power_method,
)
from moment_init.moments.paper.whitening import (
    balancing_matrix,
    definite_slice,
    leading_subspace,
    multilinear,
    whiten,
)

DecompositionMethod = Literal["power", "tensorly"]

# Attempts, each with another slice; the best fit is kept. Exact tensors need one.
MAX_ATTEMPTS = 5

# A relative residual below this is rounding: no further attempt is needed.
EXACT_RESIDUAL = 1e-9

# Alternating least squares gains a digit in a few sweeps near its optimum: far below the noise.
REFINEMENT_SWEEPS = 100
REFINEMENT_TOLERANCE = 1e-8

# TensorLy's symmetric power method draws from NumPy's global generator: one caller at a time.
_GLOBAL_GENERATOR_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    r"""Components of a symmetric tensor, :math:`T \approx \sum_j \lambda_j u_j^{\otimes 3}`."""

    directions: FloatArray  # unit directions, largest coefficient first; (k, r)
    coefficients: FloatArray  # signed coefficients; (r,)
    residual: float  # norm of the residual, relative to the tensor
    singular_values: FloatArray  # singular values of the unfolded tensor; (k,)
    condition_number: float  # condition number of the slice that whitened the tensor
    is_definite: bool  # whether a positive definite slice was found
    n_attempts: int  # number of slices that were tried

    def lift(self, basis: FloatArray) -> "Decomposition":
        """Map the directions into a larger space."""
        # basis: (m, k)
        return replace(self, directions=basis @ self.directions)


def decompose_tensor(
    tensor: FloatArray,
    n_components: int,
    rng: np.random.Generator,
    *,
    method: DecompositionMethod = "power",
) -> Decomposition:
    """Decompose a symmetric tensor into cubes of vectors.

    The tensor is restricted to the span of its components, mapped to balanced coordinates, whitened
    by a definite slice (Procedure 2 of the paper), decomposed by the robust power method
    (Algorithm 4) or TensorLy's, mapped back, and refined by TensorLy's alternating least squares in
    its original coordinates.
    """
    # tensor: (k, k, k)
    basis, singular_values = leading_subspace(tensor, n_components)
    core = multilinear(tensor, basis)
    balance = balancing_matrix(core)
    best = _attempt(core, balance, rng, method)
    n_attempts = 1
    while n_attempts < MAX_ATTEMPTS and best.residual > EXACT_RESIDUAL:
        n_attempts += 1
        best = min(best, _attempt(core, balance, rng, method), key=lambda fit: fit.residual)
    refined = replace(best, directions=refine_components(core, best.directions))
    return _in_order(refined, basis, singular_values, n_attempts, tensor)


def symmetric_coefficients(tensor: FloatArray, directions: FloatArray) -> tuple[FloatArray, float]:
    """Compute least-squares coefficients of the cubes of given directions, and the residual.

    These, and not the eigenvalues of the whitened tensor, are the lambda_j of Lemma 3 of the paper.
    """
    # tensor: (k, k, k), directions: (k, r) -> (r,), ...
    cubes = _cubes(directions)
    coefficients, *_ = np.linalg.lstsq(cubes, tensor.ravel(), rcond=None)
    residual = np.linalg.norm(tensor.ravel() - cubes @ coefficients)
    return coefficients, float(residual / max(np.linalg.norm(tensor), np.finfo(float).tiny))


def refine_components(tensor: FloatArray, directions: FloatArray) -> FloatArray:
    """Refine directions by alternating least squares on the tensor (TensorLy's `parafac`)."""
    # tensor: (k, k, k), directions: (k, r) -> (k, r)
    coefficients, residual = symmetric_coefficients(tensor, directions)
    start = CPTensor(
        (np.ones(len(coefficients)), [directions * coefficients, directions, directions])
    )
    with changed_filters():
        # If a sweep meets a singular normal matrix, the refinement is not used.
        warnings.simplefilter("ignore")
        try:
            _, factors = parafac(
                tensorly.tensor(tensor),
                rank=directions.shape[1],
                n_iter_max=REFINEMENT_SWEEPS,
                init=start,
                tol=REFINEMENT_TOLERANCE,
                normalize_factors=True,
            )
        except np.linalg.LinAlgError:
            return directions
    refined = _common_direction([np.asarray(factor) for factor in factors])
    if not np.all(np.isfinite(refined)):
        return directions
    return refined if symmetric_coefficients(tensor, refined)[1] < residual else directions


def _attempt(
    core: FloatArray, balance: FloatArray, rng: np.random.Generator, method: DecompositionMethod
) -> Decomposition:
    """Decompose the core once, with one slice and one run of the power method."""
    n_components = core.shape[0]
    balanced = multilinear(core, balance)
    theta, _ = definite_slice(balanced, rng)
    whitened = whiten(balanced, theta, n_components)
    find = _tensorly_vectors if method == "tensorly" else _power_vectors
    vectors = find(whitened.tensor, n_components, rng)
    # T = T_balanced(B^-1, B^-1, B^-1): the inverse transpose maps components back.
    unbalanced = np.linalg.solve(balance.T, whitened.unwhitening_matrix @ vectors)
    directions = unbalanced / np.linalg.norm(unbalanced, axis=0)
    coefficients, residual = symmetric_coefficients(core, directions)
    return Decomposition(
        directions=directions,
        coefficients=coefficients,
        residual=residual,
        singular_values=np.empty(0),
        condition_number=whitened.condition_number,
        is_definite=whitened.is_definite,
        n_attempts=1,
    )


def _in_order(
    core_fit: Decomposition,
    basis: FloatArray,
    singular_values: FloatArray,
    n_attempts: int,
    tensor: FloatArray,
) -> Decomposition:
    """Map a fit to the coordinates of the tensor and sort it by decreasing coefficient."""
    order = np.argsort(-np.abs(core_fit.coefficients), kind="stable")
    directions = basis @ core_fit.directions[:, order]
    coefficients, residual = symmetric_coefficients(tensor, directions)
    return replace(
        core_fit,
        directions=directions,
        coefficients=coefficients,
        residual=residual,
        singular_values=singular_values,
        n_attempts=n_attempts,
    )


def _power_vectors(tensor: FloatArray, n_components: int, rng: np.random.Generator) -> FloatArray:
    """Find eigenvectors of the whitened tensor by Algorithm 4."""
    return robust_power_method(tensor, n_components, rng).vectors


def _tensorly_vectors(
    tensor: FloatArray, n_components: int, rng: np.random.Generator
) -> FloatArray:
    """Find eigenvectors of the whitened tensor by TensorLy's symmetric power method.

    TensorLy takes no seed and draws from NumPy's global generator, whose state is set and restored.
    """
    seed = int(rng.integers(2**32))
    with _GLOBAL_GENERATOR_LOCK:
        state = np.random.get_state()  # noqa: NPY002
        np.random.seed(seed)  # noqa: NPY002
        try:
            _, vectors = symmetric_parafac_power_iteration(
                tensorly.tensor(tensor),
                rank=n_components,
                n_repeat=STARTS_PER_COMPONENT,  # per component: each is deflated in turn
                n_iteration=POWER_ROUNDS // 3,  # TensorLy counts three power steps as one iteration
            )
        finally:
            np.random.set_state(state)  # noqa: NPY002
    return np.asarray(vectors)


def _cubes(directions: FloatArray) -> FloatArray:
    """Return the cubes of the columns as vectors; (k^3, r)."""
    cubes = np.einsum("il,jl,kl->ijkl", directions, directions, directions)
    return np.asarray(cubes.reshape(-1, directions.shape[1]))


def _common_direction(factors: list[FloatArray]) -> FloatArray:
    """Average the columns of the three factors after aligning their signs."""
    first = factors[0]
    total = first.copy()
    for factor in factors[1:]:
        total += factor * np.where(np.sum(first * factor, axis=0) < 0.0, -1.0, 1.0)
    return np.asarray(total / np.linalg.norm(total, axis=0))
