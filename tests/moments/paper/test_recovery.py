"""Signs, errors and weights once the directions are known: exact moments give the truth."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.moments.paper.power_iteration import symmetric_coefficients
from moment_init.moments.paper.recovery import (
    choose_signs,
    coefficient_errors,
    expected_coefficients,
    match_known_parameters,
    noise_edge,
    recover_weights,
)
from tests.population import (
    FAMILY_LINKS,
    FloatArray,
    PopulationMixture,
    random_mixture,
    symmetric_noise,
    unit_columns,
)


def all_orders(mixture: PopulationMixture) -> FloatArray:
    return np.stack([mixture.moment_coefficients(order) for order in (1, 2, 3)])


# --- by hand -------------------------------------------------------------------------------------


def test_errors_by_hand() -> None:
    """Orthogonal directions: the roots of the diagonal, whatever the order."""
    covariance = np.array([[4.0, 1.0], [1.0, 9.0]])
    for order in (1, 3):
        assert_allclose(coefficient_errors(np.eye(3)[:, :2], covariance, order), [2.0, 3.0])


def test_errors_of_oblique_directions_by_hand() -> None:
    """Cosine 1/2, third order: the Gram matrix has 1/8 off its diagonal, 64/63 on its inverse's.

    With covariance equal to the Gram matrix, that of unit noise, the errors are sqrt(64/63).
    """
    directions = np.array([[1.0, 0.5], [0.0, np.sqrt(0.75)]])
    gram = np.array([[1.0, 1 / 8], [1 / 8, 1.0]])
    expected = np.full(2, np.sqrt(64 / 63))
    assert_allclose(coefficient_errors(directions, gram, 3), expected, rtol=1e-12)


def test_errors_never_vanish() -> None:
    assert np.all(coefficient_errors(np.eye(2), np.zeros((2, 2)), 3) > 0.0)


@pytest.mark.parametrize(
    ("is_third_positive", "expected"), [(False, [1.0, -1.0, 1.0]), (True, [-1.0, -1.0, 1.0])]
)
def test_signs_by_hand(*, is_third_positive: bool, expected: list[float]) -> None:
    """By the first order, or by the third if it is positive; zero counts as positive."""
    first, third = np.array([1.0, -1.0, 0.0]), np.array([-1.0, -1.0, 1.0])
    signs = choose_signs(first, third, is_third_positive=is_third_positive)
    assert_array_equal(signs, expected)


def test_weights_by_hand() -> None:
    """Linear model, s = 2: w = .25 gives M_3 = 6 (.25) 8 = 12; errors 1 and 4 weigh 16 to 1."""
    expected = expected_coefficients([2.0], [1.0], family="gaussian")
    assert_allclose(expected[:, 0], [2.0, 8.0, 48.0])
    assert_allclose(recover_weights(np.array([[12.0]]), expected[2:]), [0.25])
    pair, errors = np.array([[0.5], [24.0]]), np.array([[1.0], [24.0]])  # .25 and .5 of [2, 48]
    assert_allclose(recover_weights(pair, expected[[0, 2]], errors), [0.375])


def test_noise_edge_is_the_largest_singular_value_of_noise(rng: np.random.Generator) -> None:
    """Symmetric noise, variance 6 of entries whose indices differ; the edge varies by a tenth."""
    for size in (10, 20):
        noise = symmetric_noise(rng, size).reshape(size, -1)
        largest = float(np.linalg.svd(noise, compute_uv=False)[0])
        assert_allclose(largest, noise_edge(6.0, size), rtol=0.15)


def test_noise_edge_of_a_subspace_by_hand() -> None:
    """1.657 sqrt(6 d v): d = 6, v = 1/4."""
    assert_allclose(noise_edge(0.25, 6, is_restricted=True), 1.657 * 3.0)


# --- exact moments -------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_signs_of_exact_moments(family: str, link: str, rng: np.random.Generator) -> None:
    """Directions are turned at random; the signs turn them back."""
    for _ in range(5):
        mixture = random_mixture(family, link, 6, 3, rng)
        flips = rng.choice([-1.0, 1.0], 3)
        turned = mixture.directions * flips
        first, _ = symmetric_coefficients(mixture.first_moment(), turned)
        third = mixture.moment_coefficients(3) * flips
        resolved = mixture.family
        is_positive = resolved.response_power or resolved.link.third_derivative_sign == 1
        signs = choose_signs(first, third, is_third_positive=is_positive)
        assert_array_equal(signs, flips)


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_weights_of_exact_moments(family: str, link: str, rng: np.random.Generator) -> None:
    for _ in range(5):
        mixture = random_mixture(family, link, 6, 3, rng)
        errors = rng.uniform(0.1, 1.0, (3, 3))
        expected = expected_coefficients(mixture.scales, mixture.biases, family=family, link=link)
        weights = recover_weights(all_orders(mixture), expected, errors)
        assert_allclose(weights, mixture.weights, rtol=1e-8)


def test_the_precise_moment_decides() -> None:
    """Gaussian, s = 1: M_1 says w = 0.2, M_2 says 2 w = 0.8, M_3 says 6 w = 3.6; errors choose."""
    coefficients, one = np.array([[0.2], [0.8], [3.6]]), np.ones(1)
    for order, expected in enumerate((0.2, 0.4, 0.6)):
        errors = np.array([[1.0], [2.0], [6.0]])
        errors[order] *= 1e-3
        unit = expected_coefficients(one, 0.0 * one, family="gaussian")
        weights = recover_weights(coefficients, unit, errors)
        assert_allclose(weights, [expected], atol=1e-5)


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_known_pairs_find_their_components(
    family: str, link: str, rng: np.random.Generator
) -> None:
    """The known pairs come in another order than the components of the exact moments."""
    resolved = get_family(family, link)
    mixture = PopulationMixture(
        family=resolved,
        directions=unit_columns(rng.standard_normal((5, 3))),
        scales=np.array([0.6, 1.1, 1.8]),
        biases=np.array([0.2, -0.1, 0.3]),
        weights=np.array([0.5, 0.2, 0.3]),
    )
    known = np.array([2, 0, 1])
    expected = expected_coefficients(
        np.tile(mixture.scales[known], (3, 1)),
        np.tile(mixture.biases[known], (3, 1)),
        family=resolved,
    )
    order = match_known_parameters(all_orders(mixture), np.full((3, 3), 1e-3), expected)
    assert_array_equal(order, known)


@pytest.mark.parametrize("biases", [[0.0, 4.0], [0.5, -0.5]])
def test_pairs_that_differ_in_their_bias_only(biases: list[float]) -> None:
    """Opposite biases under logit have one M_1 and one M_3; only the sign of M_2 tells them."""
    family = get_family("bernoulli")
    scales = np.full(2, 3.0)
    mixture = PopulationMixture(family, np.eye(2), scales, np.array(biases), np.array([0.6, 0.4]))
    expected = expected_coefficients(np.tile(scales, (2, 1)), np.tile(biases, (2, 1)))
    swapped = match_known_parameters(all_orders(mixture)[:, ::-1], np.full((3, 2), 1e-3), expected)
    assert_array_equal(swapped, [1, 0])
