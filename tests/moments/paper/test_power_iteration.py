"""The robust tensor power method on orthogonal tensors, and where starts or rank fail."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.likelihood.parameters import match_components
from moment_init.moments.paper.power_iteration import (
    power_rounds,
    robust_power_method,
    svd_start,
    symmetric_coefficients,
    tensor_fibres,
)
from tests.population import FloatArray, cubes_tensor, symmetric_noise, unit_columns


def rotation(rng: np.random.Generator, size: int) -> FloatArray:
    return np.asarray(np.linalg.qr(rng.standard_normal((size, size)))[0])


def test_one_round_by_hand() -> None:
    """T = 2 e_1^3 + e_2^3 at a = (1, 1)/sqrt 2: T(I, a, a) = (1, 1/2), normalised (2, 1)/sqrt 5."""
    fibres = tensor_fibres(cubes_tensor(np.array([2.0, 1.0]), np.eye(2)))
    start = np.full((2, 1), np.sqrt(0.5))
    assert_allclose(fibres(start), [[1.0], [0.5]], rtol=1e-14)
    expected = np.array([[2.0], [1.0]]) / np.sqrt(5.0)
    assert_allclose(power_rounds(fibres, start, 1), expected, rtol=1e-14)


def test_zero_rounds_return_the_start() -> None:
    fibres = tensor_fibres(cubes_tensor(np.array([2.0, 1.0]), np.eye(2)))
    assert_array_equal(power_rounds(fibres, np.eye(2), 0), np.eye(2))


def test_start_is_the_top_singular_vector_by_hand(seed: int) -> None:
    """A slice of T = e_1^3 is theta_1 e_1 e_1', whatever theta: the start is plus or minus e_1."""
    start = svd_start(cubes_tensor(np.ones(1), np.eye(2)[:, :1]), np.random.default_rng(seed))
    assert_allclose(np.abs(start), [1.0, 0.0], atol=1e-15)


def test_fibres_equal_einsum(rng: np.random.Generator) -> None:
    tensor = cubes_tensor(np.array([1.0, -2.0]), rng.standard_normal((4, 2)))
    vectors = rng.standard_normal((4, 6))
    expected = np.einsum("ijk,jl,kl->il", tensor, vectors, vectors)
    assert_allclose(tensor_fibres(tensor)(vectors), expected, rtol=1e-12, atol=1e-12)


def test_components_are_fixed_points(rng: np.random.Generator) -> None:
    directions = rotation(rng, 4)
    fibres = tensor_fibres(cubes_tensor(np.array([1.0, 2.0, 3.0, 4.0]), directions))
    assert_allclose(power_rounds(fibres, directions, 5), directions, atol=1e-12)


def test_a_vanishing_fibre_keeps_its_vector() -> None:
    fibres = tensor_fibres(cubes_tensor(np.ones(1), np.eye(2)[:, :1]))
    stuck = np.array([[0.0], [1.0]])
    assert_array_equal(power_rounds(fibres, stuck, 3), stuck)


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_orthogonal_tensors_are_decomposed(size: int, rng: np.random.Generator) -> None:
    directions = rotation(rng, size)
    coefficients = rng.uniform(0.5, 2.0, size)
    result = robust_power_method(cubes_tensor(coefficients, directions), size, rng)
    index = match_components(result.vectors, directions, signed=True)
    assert_allclose(result.vectors[:, index], directions, atol=1e-8)
    assert_allclose(result.values[index], coefficients, rtol=1e-8)
    assert result.residual < 1e-7
    assert 1 <= result.n_clusters <= size


def test_negative_values_turn_the_vector(rng: np.random.Generator) -> None:
    """-2 u^3 is 2 (-u)^3: the value is positive, the vector opposite."""
    directions = rotation(rng, 3)
    result = robust_power_method(cubes_tensor(np.array([1.5, -2.0, 1.0]), directions), 3, rng)
    index = match_components(result.vectors, directions)
    assert_allclose(np.abs(result.values[index]), [1.5, 2.0, 1.0], rtol=1e-8)
    turned = directions * np.sign(result.values[index]) * [1.0, -1.0, 1.0]
    assert_allclose(result.vectors[:, index], turned, atol=1e-8)


def test_rotations_rotate_the_result(rng: np.random.Generator) -> None:
    tensor = cubes_tensor(np.array([1.0, 1.7, 2.4]), np.eye(3))
    rotated = rotation(rng, 3)
    plain = robust_power_method(tensor, 3, rng)
    turned = robust_power_method(cubes_tensor(np.array([1.0, 1.7, 2.4]), rotated), 3, rng)
    index = match_components(turned.vectors, rotated @ plain.vectors)
    assert_allclose(turned.vectors[:, index], rotated @ plain.vectors, atol=1e-8)


def test_what_the_starts_miss_is_found_by_deflation(seed: int) -> None:
    """One start gives one cluster; the other components come from the deflated tensor."""
    tensor = cubes_tensor(np.array([1.0, 2.0, 3.0]), np.eye(3))
    result = robust_power_method(tensor, 3, np.random.default_rng(seed), n_starts=1)
    assert result.n_clusters == 1
    assert_allclose(np.sort(np.abs(result.values)), [1.0, 2.0, 3.0], rtol=1e-8)
    index = match_components(result.vectors, np.eye(3), signed=True)
    assert_allclose(result.vectors[:, index], np.eye(3), atol=1e-8)


def test_a_wide_threshold_makes_clusters_of_single_starts(seed: int) -> None:
    """nu = 2 asks for |<a, a^>| > 1, which nothing passes: each start is a cluster of its own."""
    tensor = cubes_tensor(np.array([1.0, 2.0]), np.eye(2))
    result = robust_power_method(
        tensor, 2, np.random.default_rng(seed), n_starts=4, cluster_threshold=2.1
    )
    assert result.vectors.shape == (2, 2)
    assert result.n_clusters == 2


def test_noise_moves_the_vectors_by_its_size(rng: np.random.Generator) -> None:
    """First-order perturbation: the part of E(u, u, .) across u, divided by lambda."""
    directions = rotation(rng, 4)
    noise = 1e-4 * symmetric_noise(rng, 4)
    result = robust_power_method(cubes_tensor(np.ones(4), directions) + noise, 4, rng)
    index = match_components(result.vectors, directions, signed=True)
    found = result.vectors[:, index]
    for u, estimate in zip(directions.T, found.T, strict=True):
        shift = np.einsum("ijk,j,k->i", noise, u, u)
        expected = unit_columns((u + shift - u * (u @ shift))[:, None])[:, 0]
        assert_allclose(estimate, expected, atol=20 * np.square(1e-3))
        assert np.linalg.norm(estimate - u) > 1e-5


def test_same_seed_same_bits(seed: int, rng: np.random.Generator) -> None:
    tensor = cubes_tensor(np.array([1.0, 1.5, 2.0]), rotation(rng, 3))
    first, again = (
        robust_power_method(tensor, 3, np.random.default_rng(seed)).vectors for _ in range(2)
    )
    assert first.tobytes() == again.tobytes()


# --- coefficients of given directions ------------------------------------------------------------


def test_coefficients_by_hand() -> None:
    """Of T = 5 e_1^3 + e_2^3 the cube of e_1 alone takes 5 and leaves 1 / sqrt 26 of the norm."""
    tensor = cubes_tensor(np.array([5.0, 1.0]), np.eye(2))
    coefficients, residual = symmetric_coefficients(tensor, np.eye(2)[:, :1])
    assert_allclose(coefficients, [5.0], rtol=1e-14)
    assert_allclose(residual, 1.0 / np.sqrt(26.0), rtol=1e-14)


def test_first_order_by_hand() -> None:
    """(2, 3) = 2 e_1 + 3 e_2; with (3, 4)/5 in place of e_2 it is -1/4 e_1 + 15/4 v."""
    oblique = np.array([[1.0, 0.6], [0.0, 0.8]])
    assert_allclose(symmetric_coefficients(np.array([2.0, 3.0]), np.eye(2))[0], [2.0, 3.0])
    assert_allclose(symmetric_coefficients(np.array([2.0, 3.0]), oblique)[0], [-0.25, 3.75])


@pytest.mark.parametrize("order", [1, 2, 3])
def test_coefficients_of_oblique_powers(order: int, rng: np.random.Generator) -> None:
    """What was put into a moment of any order comes out, signs included."""
    directions, put = unit_columns(rng.standard_normal((5, 3))), np.array([2.0, -1.0, 0.5])
    letters = "ijk"[:order]
    spec = ",".join(f"{letter}r" for letter in letters) + f",r->{letters}"
    moment = np.einsum(spec, *([directions] * order), put)
    coefficients, residual = symmetric_coefficients(moment, directions)
    assert_allclose(coefficients, put, rtol=1e-8)
    assert residual < 1e-12
