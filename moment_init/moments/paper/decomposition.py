"""Decomposition of a symmetric third-order tensor into directions and coefficients."""

import threading
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import tensorly
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac, symmetric_parafac_power_iteration

from moment_init.checks import FloatArray, RandomSeed, changed_filters, make_generator
from moment_init.moments.paper.power_iteration import (
    POWER_ROUNDS,
    STARTS_PER_COMPONENT,
    robust_power_method,
    symmetric_coefficients,
)
from moment_init.moments.paper.whitening import (
    balancing_matrix,
    definite_slice,
    leading_subspace,
    multilinear,
    require_cube,
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
    r"""Components of a symmetric tensor, :math:`T \approx \sum_j \lambda_j u_j^{\otimes 3}`.

    Parameters
    ----------
    directions : numpy.ndarray, shape (k, n_components)
        Unit directions u_j, largest coefficient first. A cube does not determine the sign of its
        direction: (u, lambda) and (-u, -lambda) are the same component.
    coefficients : numpy.ndarray, shape (n_components,)
        The signed coefficients lambda_j.
    residual : float
        Norm of the residual, relative to the tensor.
    singular_values : numpy.ndarray, shape (k,)
        Singular values of the unfolded tensor.
    condition_number : float
        Condition number of the slice that whitened the tensor.
    is_definite : bool
        Whether a positive definite slice was found.
    n_attempts : int
        Number of slices that were tried.
    """

    directions: FloatArray
    coefficients: FloatArray
    residual: float
    singular_values: FloatArray
    condition_number: float
    is_definite: bool
    n_attempts: int


def decompose_tensor(
    tensor: FloatArray,
    n_components: int,
    random_seed: RandomSeed = None,
    *,
    method: DecompositionMethod = "power",
) -> Decomposition:
    r"""Decompose a symmetric tensor into cubes of vectors: line 2 of Algorithm 1.

    The steps in order: restrict the tensor to the span of its components (`leading_subspace`);
    whiten it by a definite slice (`definite_slice`, `whiten`); find the eigenvectors of the
    whitened tensor (`robust_power_method`); map them back and compute the coefficients
    (`symmetric_coefficients`); finish with TensorLy's alternating least squares on the tensor
    itself, started at these directions (`refine_components`). Up to five slices are tried, and the
    best fit is finished.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (k, k, k)
        The symmetric tensor, such as M_3.
    n_components : int
        Number of components r, at most k.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of slices and starts.
    method : {"power", "tensorly"}
        How the eigenvectors of the whitened tensor are found: by Algorithm 4 of [1]_, or by
        TensorLy's ``symmetric_parafac_power_iteration``.

    Returns
    -------
    Decomposition
        Directions, coefficients and how well they explain the tensor.

    Raises
    ------
    ValueError
        If the tensor is not of the form (k, k, k), or `n_components` is not between 1 and k.

    Notes
    -----
    The directions that are returned are those of TensorLy's ``parafac``. Alternating least squares
    weighs all entries of the tensor alike, whereas whitening amplifies the noise of weak
    components.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import decompose_tensor
    >>> u = np.array([[1.0, 0.6], [0.0, 0.8]])
    >>> tensor = np.einsum("l,il,jl,kl->ijk", [3.0, 2.0], u, u, u)
    >>> result = decompose_tensor(tensor, 2, random_seed=1)
    >>> (result.directions * np.sign(result.coefficients)).round(6)
    array([[1. , 0.6],
           [0. , 0.8]])
    >>> np.abs(result.coefficients).round(6)
    array([3., 2.])
    """
    require_cube(tensor, n_components)
    rng = make_generator(random_seed)
    basis, singular_values = leading_subspace(tensor, n_components)
    core = multilinear(tensor, basis)
    balance = balancing_matrix(core)
    best = _attempt(core, balance, rng, method)
    n_attempts = 1
    while n_attempts < MAX_ATTEMPTS and best.residual > EXACT_RESIDUAL:
        n_attempts += 1
        best = min(best, _attempt(core, balance, rng, method), key=lambda fit: fit.residual)
    directions = basis @ refine_components(core, best.directions)
    coefficients, residual = symmetric_coefficients(tensor, directions)
    order = np.argsort(-np.abs(coefficients), kind="stable")
    return replace(
        best,
        directions=directions[:, order],
        coefficients=coefficients[order],
        residual=residual,
        singular_values=singular_values,
        n_attempts=n_attempts,
    )


def refine_components(tensor: FloatArray, directions: FloatArray) -> FloatArray:
    """Finish directions by TensorLy's alternating least squares on the tensor itself.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (k, k, k)
        The symmetric tensor.
    directions : numpy.ndarray, shape (k, n_components)
        Directions to start from.

    Returns
    -------
    numpy.ndarray, shape (k, n_components)
        Unit directions: the average of the three factors of ``tensorly.decomposition.parafac``. If
        two components have merged, so that its normal equations are singular, the directions that
        it started from.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import refine_components
    >>> tensor = np.zeros((2, 2, 2))
    >>> tensor[0, 0, 0], tensor[1, 1, 1] = 2.0, 1.0
    >>> np.abs(refine_components(tensor, np.array([[1.0, 0.1], [0.1, 1.0]])).round(6))
    array([[1., 0.],
           [0., 1.]])
    """
    coefficients, _ = symmetric_coefficients(tensor, directions)
    start = CPTensor(
        (
            np.ones(len(coefficients)),
            [directions * coefficients, directions.copy(), directions.copy()],
        )
    )
    with changed_filters():
        warnings.simplefilter("ignore")  # of factors that vanish, which are seen below
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
    return refined if np.all(np.isfinite(refined)) else directions


def _attempt(
    core: FloatArray, balance: FloatArray, rng: np.random.Generator, method: DecompositionMethod
) -> Decomposition:
    """Decompose the core once, with one slice and one run of the power method."""
    n_components = core.shape[0]
    theta, _ = definite_slice(core, rng, balance=balance)
    whitened = whiten(core, theta, n_components)
    if method == "power":
        vectors = robust_power_method(whitened.tensor, n_components, rng).vectors
    else:
        vectors = _tensorly_vectors(whitened.tensor, n_components, rng)
    components = whitened.unwhitening_matrix @ vectors
    directions = components / np.linalg.norm(components, axis=0)
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


def _common_direction(factors: list[FloatArray]) -> FloatArray:
    """Average the columns of the three factors after aligning their signs."""
    first = factors[0]
    total = first.copy()
    for factor in factors[1:]:
        total += factor * np.where(np.sum(first * factor, axis=0) < 0.0, -1.0, 1.0)
    return np.asarray(total / np.linalg.norm(total, axis=0))
