"""Matching of components: the best total, signs, small angles, and shapes."""

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import angles_in_degrees, match_components
from tests.population import unit_columns


def test_matching_by_hand() -> None:
    """Columns e_3, -e_1, e_2 are, in the order of e_1, e_2, e_3, the second, third and first."""
    estimated = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert_array_equal(match_components(estimated, np.eye(3)), [1, 2, 0])


def test_angles_by_hand() -> None:
    """(1, 1) is 45 degrees from e_1; its negative is too, or 135 degrees if signs count."""
    estimated, reference = np.array([[-2.0], [-2.0]]), np.array([[1.0], [0.0]])
    assert_allclose(angles_in_degrees(estimated, reference), [45.0], rtol=1e-14)
    assert_allclose(angles_in_degrees(estimated, reference, signed=True), [135.0], rtol=1e-14)
    assert_allclose(angles_in_degrees(-reference, reference, signed=True), [180.0], rtol=1e-14)


def test_signs_can_change_the_matching() -> None:
    """Column 0 is opposite to e_1 and 70 degrees from e_2: unsigned it is e_1's, signed e_2's."""
    estimated = np.array([[-0.94, 0.5], [0.34, 0.5]])
    assert_array_equal(match_components(estimated, np.eye(2)), [0, 1])
    assert_array_equal(match_components(estimated, np.eye(2), signed=True), [1, 0])


def test_matching_has_the_largest_total_cosine(rng: np.random.Generator) -> None:
    for _ in range(10):
        estimated = unit_columns(rng.standard_normal((4, 4)))
        reference = unit_columns(rng.standard_normal((4, 4)))
        cosines = np.abs(estimated.T @ reference)
        best = max(sum(cosines[order[j], j] for j in range(4)) for order in permutations(range(4)))
        index = match_components(estimated, reference)
        assert_allclose(cosines[index, np.arange(4)].sum(), best, rtol=1e-12)


def test_permuted_columns_are_put_back(rng: np.random.Generator) -> None:
    reference = rng.standard_normal((5, 4))
    order = rng.permutation(4)
    estimated = (reference * [1.0, -2.0, 3.0, -4.0])[:, order]
    index = match_components(estimated, reference)
    assert_array_equal(order[index], np.arange(4))
    assert_allclose(angles_in_degrees(estimated, reference), 0.0, atol=1e-12)


@pytest.mark.parametrize("angle", [1e-9, 1e-5, 1.0, 89.0])
def test_small_angles_keep_their_digits(angle: float) -> None:
    radians = np.radians(angle)
    estimated = np.array([[np.cos(radians)], [np.sin(radians)]])
    reference = np.array([[1.0], [0.0]])
    assert_allclose(angles_in_degrees(estimated, reference), [angle], rtol=1e-6)


def test_lists_are_accepted() -> None:
    assert_allclose(angles_in_degrees([[0.0], [3.0]], [[0.0], [1.0]]), [0.0], atol=1e-15)


def test_different_shapes_are_an_error() -> None:
    match = r"`estimated` must have the shape of `reference`, \(2, 2\); got \(2, 1\)"
    with pytest.raises(ValueError, match=match):
        match_components(np.ones((2, 1)), np.eye(2))
    with pytest.raises(ValueError, match="must have the shape of `reference`"):
        angles_in_degrees(np.eye(3), np.eye(2))
