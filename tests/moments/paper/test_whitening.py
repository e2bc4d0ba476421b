"""Whitening by a slice: random slices are indefinite, the one searched for is not."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.moments.paper.whitening import (
    balancing_matrix,
    definite_slice,
    leading_subspace,
    multilinear,
    tensor_slice,
    whiten,
)
from tests.population import FloatArray, cubes_tensor, random_mixture, symmetric_noise, unit_columns


def mixed_tensor(
    rng: np.random.Generator, n_features: int, n_components: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Coefficients of both signs, oblique directions, and their tensor."""
    mixture = random_mixture("bernoulli", "logit", n_features, n_components, rng)
    coefficients = mixture.moment_coefficients(3) / np.abs(mixture.moment_coefficients(3)).max()
    return coefficients, mixture.directions, cubes_tensor(coefficients, mixture.directions)


# --- by hand -------------------------------------------------------------------------------------


def test_slice_by_hand() -> None:
    """T = 2 e_1^3 - e_2^3 along (3, 5): diag(6, -5)."""
    tensor = cubes_tensor(np.array([2.0, -1.0]), np.eye(2))
    assert_allclose(tensor_slice(tensor, np.array([3.0, 5.0])), np.diag([6.0, -5.0]))


def test_multilinear_by_hand() -> None:
    """T = 2 e_1^3 contracted with the column (3, 1) is 2 * 27."""
    tensor = cubes_tensor(np.array([2.0]), np.array([[1.0], [0.0]]))
    assert_allclose(multilinear(tensor, np.array([[3.0], [1.0]])), [[[54.0]]])


def test_whitening_by_hand() -> None:
    """T = 4 e_1^3 + 9 e_2^3 along (1, 1): V = diag(4, 9), W = diag(1/2, 1/3).

    Whitened, 4 / 2^3 = 1/2 and 9 / 3^3 = 1/3 are left; the larger eigenvalue comes first.
    """
    result = whiten(cubes_tensor(np.array([4.0, 9.0]), np.eye(2)), np.ones(2), 2)
    assert_allclose(np.abs(result.whitening_matrix), [[0.0, 1 / 2], [1 / 3, 0.0]], atol=1e-15)
    assert_allclose(np.abs(result.unwhitening_matrix), [[0.0, 2.0], [3.0, 0.0]], atol=1e-15)
    assert_allclose(np.abs(np.einsum("iii->i", result.tensor)), [1 / 3, 1 / 2], rtol=1e-14)
    assert_allclose(result.condition_number, 9 / 4, rtol=1e-14)
    assert result.is_definite


# --- identities ----------------------------------------------------------------------------------


def test_multilinear_equals_einsum(rng: np.random.Generator) -> None:
    tensor, matrix = rng.standard_normal((4, 4, 4)), rng.standard_normal((4, 2))
    expected = np.einsum("abc,ai,bj,ck->ijk", tensor, matrix, matrix, matrix)
    assert_allclose(multilinear(tensor, matrix), expected, rtol=1e-12, atol=1e-12)


def test_leading_subspace_is_the_span_of_the_components(rng: np.random.Generator) -> None:
    _, directions, tensor = mixed_tensor(rng, 8, 3)
    basis, singular_values = leading_subspace(tensor, 3)
    assert_allclose(basis.T @ basis, np.eye(3), atol=1e-14)
    assert_allclose(basis @ (basis.T @ directions), directions, atol=1e-10)
    assert singular_values.shape == (8,)
    assert np.all(np.diff(singular_values) <= 0.0)
    assert singular_values[3] < 1e-14 < singular_values[2]


def test_whitened_slice_is_the_identity(rng: np.random.Generator) -> None:
    _, _, tensor = mixed_tensor(rng, 4, 4)
    theta, is_definite = definite_slice(tensor, rng)
    assert is_definite
    result = whiten(tensor, theta, 4)
    W = result.whitening_matrix
    assert_allclose(W.T @ tensor_slice(tensor, theta) @ W, np.eye(4), atol=1e-10)
    assert_allclose(result.unwhitening_matrix.T @ W, np.eye(4), atol=1e-10)
    assert_allclose(result.unwhitening_matrix, np.linalg.pinv(W.T), atol=1e-10)
    assert_allclose(result.tensor, multilinear(tensor, W), atol=1e-10)


def test_whitened_components_are_orthogonal(rng: np.random.Generator) -> None:
    """W' u_j sqrt(lambda_j <u_j, theta>) are the columns of a rotation."""
    coefficients, directions, tensor = mixed_tensor(rng, 3, 3)
    theta, is_definite = definite_slice(tensor, rng)
    assert is_definite
    result = whiten(tensor, theta, 3)
    sizes = coefficients * (directions.T @ theta)
    assert np.all(sizes > 0.0)
    columns = result.whitening_matrix.T @ directions * np.sqrt(sizes)
    assert_allclose(columns.T @ columns, np.eye(3), atol=1e-8)


def test_balanced_components_are_orthogonal_and_of_one_size(rng: np.random.Generator) -> None:
    """The tolerance of the balancing is 1e-3 in the singular values."""
    coefficients, directions, tensor = mixed_tensor(rng, 4, 4)
    balance = balancing_matrix(tensor)
    columns = balance.T @ directions * np.cbrt(coefficients)
    gram = columns.T @ columns
    assert_allclose(gram / gram.trace() * 4.0, np.eye(4), atol=0.01)


def test_whitening_in_a_larger_space(rng: np.random.Generator) -> None:
    """Only the r leading eigenvectors of the slice are kept."""
    _, directions, tensor = mixed_tensor(rng, 7, 2)
    theta = directions @ np.linalg.solve(directions.T @ directions, np.ones(2))
    result = whiten(tensor, theta, 2)
    assert result.tensor.shape == (2, 2, 2)
    assert result.whitening_matrix.shape == result.unwhitening_matrix.shape == (7, 2)


# --- definiteness --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_components", [2, 3, 4, 6])
def test_random_slices_are_indefinite_but_a_definite_one_is_found(
    n_components: int, rng: np.random.Generator
) -> None:
    """All coefficients positive: a random slice is definite with probability about 2^(1 - r) only.

    Half of them or fewer are definite up to sign (r = 2); the bound is five standard errors above.
    """
    n_tensors, n_slices, definite = 10, 20, 0
    for _ in range(n_tensors):
        directions = unit_columns(rng.standard_normal((n_components, n_components)))
        if np.linalg.cond(directions) > 20:
            continue
        tensor = cubes_tensor(rng.uniform(0.5, 2.0, n_components), directions)
        for theta in rng.standard_normal((n_slices, n_components)):
            signs = np.sign(np.linalg.eigvalsh(tensor_slice(tensor, theta)))
            definite += int(abs(signs.sum()) == n_components)
        theta, is_definite = definite_slice(tensor, rng)
        assert is_definite
        assert_allclose(np.linalg.norm(theta), 1.0, rtol=1e-12)
        assert np.linalg.eigvalsh(tensor_slice(tensor, theta))[0] > 0.0
    probability = 0.5 ** (n_components - 1)
    n_drawn = n_tensors * n_slices
    # Slices of one tensor are not independent of its directions: the standard error is that of the
    # tensors, at most sqrt(p (1 - p) / 10).
    bound = probability + 5.0 * np.sqrt(probability * (1 - probability) / n_tensors)
    assert definite / n_drawn <= bound
    assert definite < n_drawn


def test_search_succeeds_without_balancing_near_orthogonality(rng: np.random.Generator) -> None:
    for _ in range(20):
        directions = unit_columns(np.eye(3) + 0.15 * rng.standard_normal((3, 3)))
        tensor = cubes_tensor(np.array([1.0, -0.7, 0.5]), directions)
        theta, is_definite = definite_slice(tensor, rng, balance=np.eye(3))
        assert is_definite
        assert np.linalg.eigvalsh(tensor_slice(tensor, theta))[0] > 0.0


def test_no_definite_slice_is_reported() -> None:
    """Slices diag(1, -1) and antidiag(-1, -1): all have trace zero, so that none is definite."""
    tensor = np.zeros((2, 2, 2))
    tensor[0, 0, 0] = 1.0
    tensor[0, 1, 1] = tensor[1, 0, 1] = tensor[1, 1, 0] = -1.0
    for seed in range(20):
        theta, is_definite = definite_slice(tensor, np.random.default_rng(seed))
        assert not is_definite
        assert np.all(np.isfinite(theta))
        assert_allclose(np.linalg.norm(theta), 1.0, rtol=1e-12)
        assert not whiten(tensor, theta, 2).is_definite


def test_search_in_noise_returns_a_unit_vector(rng: np.random.Generator) -> None:
    """Noise often has no definite slice; the search must end in a usable vector all the same."""
    for size in (2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 4, 4):
        tensor = symmetric_noise(rng, size)
        for _ in range(5):
            theta, is_definite = definite_slice(tensor, rng)
            assert_allclose(np.linalg.norm(theta), 1.0, rtol=1e-12)
            assert is_definite == bool(np.linalg.eigvalsh(tensor_slice(tensor, theta))[0] > 0.0)


def test_rank_deficient_tensor_is_not_balanced_for_ever() -> None:
    tensor = cubes_tensor(np.array([1.0]), np.array([[1.0], [0.0]]))
    assert np.all(np.isfinite(balancing_matrix(tensor)))
    assert not whiten(tensor, np.array([1.0, 0.0]), 2).is_definite


def test_same_seed_same_bits(seed: int, rng: np.random.Generator) -> None:
    _, _, tensor = mixed_tensor(rng, 4, 4)
    first, again = (definite_slice(tensor, np.random.default_rng(seed))[0] for _ in range(2))
    assert first.tobytes() == again.tobytes()


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 3), ()])
def test_what_is_no_cube_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`tensor` must have three modes of equal size"):
        whiten(np.zeros(shape), np.ones(2), 1)


@pytest.mark.parametrize("n_components", [0, 4])
def test_more_components_than_the_tensor_has_rows_are_refused(n_components: int) -> None:
    with pytest.raises(ValueError, match=r"`n_components` must be between 1 and .* \(3\)"):
        whiten(np.zeros((3, 3, 3)), np.ones(3), n_components)
