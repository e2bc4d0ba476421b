"""The map between standardised coordinates and the user's: the predictor is the same in both."""

import numpy as np
from numpy.testing import assert_allclose

from moment_init.data.standardising import Coordinates


def random_coordinates(rng: np.random.Generator) -> Coordinates:
    factor = np.tril(rng.standard_normal((4, 4))) + 3.0 * np.eye(4)
    return Coordinates(rng.standard_normal(4), factor, response_shift=2.0, response_scale=5.0)


def test_one_column_by_hand() -> None:
    """x = 10 + 2 z and y = 1 + 3 y~: y~ = 4 z + 5 is y = 1 + 3 (2 (x - 10) + 5) = 6 x - 44."""
    coordinates = Coordinates(np.array([10.0]), np.array([[2.0]]), 1.0, 3.0)
    slopes, intercepts = coordinates.coefficients_to_user(np.array([[4.0]]), np.array([5.0]))
    assert_allclose(slopes, [[6.0]], rtol=1e-15)
    assert_allclose(intercepts, [-44.0], rtol=1e-15)


def test_directions_by_hand() -> None:
    """With L = diag(2, 4) the direction (3, 4)/5 becomes (0.3, 0.2), of length sqrt(0.13)."""
    coordinates = Coordinates(np.zeros(2), np.diag([2.0, 4.0]))
    directions, lengths = coordinates.directions_to_user(np.array([[0.6], [0.8]]))
    assert_allclose(lengths, [np.sqrt(0.13)], rtol=1e-14)
    assert_allclose(directions * lengths, [[0.3], [0.2]], rtol=1e-14)


def test_predictors_are_equal_in_both_coordinates(rng: np.random.Generator) -> None:
    coordinates = random_coordinates(rng)
    coefficients, biases = rng.standard_normal((4, 3)), rng.standard_normal(3)
    z = rng.standard_normal((10, 4))
    X = coordinates.mean + z @ coordinates.factor.T
    slopes, intercepts = coordinates.coefficients_to_user(coefficients, biases)
    expected = 2.0 + 5.0 * (z @ coefficients + biases)
    assert_allclose(X @ slopes + intercepts, expected, rtol=1e-10, atol=1e-10)


def test_there_and_back(rng: np.random.Generator) -> None:
    coordinates = random_coordinates(rng)
    coefficients, biases = rng.standard_normal((4, 3)), rng.standard_normal(3)
    user = coordinates.coefficients_to_user(coefficients, biases)
    back = coordinates.coefficients_to_standardised(*user)
    assert_allclose(back[0], coefficients, rtol=1e-10)
    assert_allclose(back[1], biases, rtol=1e-10)


def test_directions_are_those_of_the_coefficients(rng: np.random.Generator) -> None:
    coordinates = random_coordinates(rng)
    units = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    directions, lengths = coordinates.directions_to_user(units)
    slopes, _ = coordinates.coefficients_to_user(units, np.zeros(2))
    assert_allclose(np.linalg.norm(directions, axis=0), 1.0, rtol=1e-14)
    assert_allclose(directions * lengths, slopes, rtol=1e-10)


def test_no_shift_and_no_scale_by_default(rng: np.random.Generator) -> None:
    coordinates = Coordinates(np.zeros(2), np.eye(2))
    coefficients, biases = rng.standard_normal((2, 2)), rng.standard_normal(2)
    same = coordinates.coefficients_to_user(coefficients, biases)
    assert_allclose(same[0], coefficients, rtol=1e-15)
    assert_allclose(same[1], biases, rtol=1e-15)
