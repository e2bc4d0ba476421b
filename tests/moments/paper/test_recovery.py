"""Signs, errors and weights once the directions are known: exact moments give the truth."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.moments.paper.recovery import (
    choose_signs,
    coefficient_errors,
    match_known_parameters,
    power_coefficients,
    weights_from_known,
)
from tests.population import (
    FAMILY_LINKS,
    FloatArray,
    PopulationMixture,
    random_mixture,
    unit_columns,
)


def all_orders(mixture: PopulationMixture) -> FloatArray:
    return np.stack([mixture.moment_coefficients(order) for order in (1, 2, 3)])


# --- by hand -------------------------------------------------------------------------------------


def test_first_order_by_hand() -> None:
    """(2, 3) = 2 e_1 + 3 e_2; with (3, 4)/5 in place of e_2 it is -1/4 e_1 + 15/4 v."""
    assert_allclose(power_coefficients(np.array([2.0, 3.0]), np.eye(2)), [2.0, 3.0])
    oblique = np.array([[1.0, 0.6], [0.0, 0.8]])
    assert_allclose(power_coefficients(np.array([2.0, 3.0]), oblique), [-0.25, 3.75])


@pytest.mark.parametrize("order", [1, 2, 3])
def test_coefficients_of_oblique_powers(order: int, rng: np.random.Generator) -> None:
    """What was put into a moment of any order comes out, signs included."""
    directions, put = unit_columns(rng.standard_normal((5, 3))), np.array([2.0, -1.0, 0.5])
    letters = "ijk"[:order]
    spec = ",".join(f"{letter}r" for letter in letters) + f",r->{letters}"
    moment = np.einsum(spec, *([directions] * order), put)
    assert_allclose(power_coefficients(moment, directions), put, rtol=1e-8)


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


def test_signs_by_hand() -> None:
    """Logit goes by the first order, log and identity by the third; zero counts as positive."""
    first, third = np.array([1.0, -1.0, 0.0]), np.array([-1.0, -1.0, 1.0])
    assert_array_equal(choose_signs(get_family("bernoulli"), first, third), [1.0, -1.0, 1.0])
    assert_array_equal(choose_signs(get_family("poisson"), first, third), [-1.0, -1.0, 1.0])
    assert_array_equal(choose_signs(get_family("gaussian"), first, third), [-1.0, -1.0, 1.0])


# --- exact moments -------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_signs_of_exact_moments(family: str, link: str, rng: np.random.Generator) -> None:
    """Directions are turned at random; the signs turn them back."""
    for _ in range(5):
        mixture = random_mixture(family, link, 6, 3, rng)
        flips = rng.choice([-1.0, 1.0], 3)
        turned = mixture.directions * flips
        first = power_coefficients(mixture.first_moment(), turned)
        signs = choose_signs(mixture.family, first, mixture.moment_coefficients(3) * flips)
        assert_array_equal(signs, flips)


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_weights_of_exact_moments(family: str, link: str, rng: np.random.Generator) -> None:
    for _ in range(5):
        mixture = random_mixture(family, link, 6, 3, rng)
        errors = rng.uniform(0.1, 1.0, (3, 3))
        weights = weights_from_known(
            mixture.family, all_orders(mixture), errors, mixture.scales, mixture.biases
        )
        assert_allclose(weights, mixture.weights, rtol=1e-8)


def test_the_precise_moment_decides() -> None:
    """Gaussian, s = 1: M_1 says w = 0.2, M_2 says 2 w = 0.8, M_3 says 6 w = 3.6; errors choose."""
    coefficients, one = np.array([[0.2], [0.8], [3.6]]), np.ones(1)
    for order, expected in enumerate((0.2, 0.4, 0.6)):
        errors = np.array([[1.0], [2.0], [6.0]])
        errors[order] *= 1e-3
        weights = weights_from_known(get_family("gaussian"), coefficients, errors, one, 0.0 * one)
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
    order = match_known_parameters(
        resolved,
        all_orders(mixture),
        np.full((3, 3), 1e-3),
        np.tile(mixture.scales[known], (3, 1)),
        np.tile(mixture.biases[known], (3, 1)),
    )
    assert_array_equal(order, known)


@pytest.mark.parametrize("biases", [[0.0, 4.0], [0.5, -0.5]])
def test_pairs_that_differ_in_their_bias_only(biases: list[float]) -> None:
    """Opposite biases under logit have one M_1 and one M_3; only the sign of M_2 tells them."""
    family = get_family("bernoulli")
    scales = np.full(2, 3.0)
    mixture = PopulationMixture(family, np.eye(2), scales, np.array(biases), np.array([0.6, 0.4]))
    swapped = match_known_parameters(
        family,
        all_orders(mixture)[:, ::-1],
        np.full((3, 2), 1e-3),
        np.tile(scales, (2, 1)),
        np.tile(biases, (2, 1)),
    )
    assert_array_equal(swapped, [1, 0])
