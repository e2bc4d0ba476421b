"""Parameters, their order as a vector, and rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.likelihood.parameters import (
    MixtureParameters,
    component_size,
    move,
    pack,
    parameter_count,
    unpack,
)
from moment_init.likelihood.rows import LikelihoodRows


@pytest.fixture
def parameters() -> MixtureParameters:
    return MixtureParameters(
        np.array([[3.0, 1.0], [4.0, 0.0]]),
        np.array([0.5, -2.0]),
        np.array([0.8, 0.2]),
        np.array([1.0, np.e]),
    )


def test_vector_has_the_documented_order(parameters: MixtureParameters) -> None:
    """(beta_1, b_1, log dispersion_1, beta_2, b_2, log dispersion_2, log(.8 / .2)), by hand."""
    expected = [3, 4, 0.5, 0, 1, 0, -2, 1, np.log(4)]
    assert_allclose(pack(parameters), expected, rtol=1e-15)
    assert component_size(parameters) == 4
    assert parameter_count(parameters) == 9


def test_unpack_inverts_pack(parameters: MixtureParameters) -> None:
    back = unpack(pack(parameters), parameters)
    assert_allclose(back.coefficients, parameters.coefficients)
    assert_allclose(back.biases, parameters.biases)
    assert_allclose(back.weights, parameters.weights)
    assert back.dispersion is not None
    assert_allclose(back.dispersion, [1.0, np.e])


def test_move_adds_in_the_coordinates_of_the_vector(parameters: MixtureParameters) -> None:
    step = np.linspace(-0.9, 0.7, 9)
    assert_allclose(pack(move(parameters, step)), pack(parameters) + step, rtol=1e-13, atol=1e-14)


def test_move_cuts_long_steps_of_the_dispersion_only(parameters: MixtureParameters) -> None:
    moved = pack(move(parameters, np.full(9, 5.0))) - pack(parameters)
    assert_allclose(moved, [5, 5, 5, 1.5, 5, 5, 5, 1.5, 5])


def test_scales_and_directions(parameters: MixtureParameters) -> None:
    assert_allclose(parameters.scales, [5, 1])
    assert_allclose(parameters.directions, [[0.6, 1], [0.8, 0]])
    without = MixtureParameters(np.zeros((2, 1)), np.zeros(1), np.ones(1))
    assert_array_equal(without.directions, np.zeros((2, 1)))


def test_reorder_and_lift(parameters: MixtureParameters) -> None:
    swapped = parameters.reorder(np.array([1, 0]))
    assert_array_equal(swapped.coefficients, [[1, 3], [0, 4]])
    assert_array_equal(swapped.weights, [0.2, 0.8])
    assert swapped.dispersion is not None
    assert_array_equal(swapped.dispersion, [np.e, 1])
    lifted = parameters.lift(np.array([[0, 1], [1, 0], [1, 1]]))
    assert_array_equal(lifted.coefficients, [[4, 0], [3, 1], [7, 1]])
    assert_array_equal(lifted.biases, parameters.biases)


def test_rows_take(rng: np.random.Generator) -> None:
    rows = LikelihoodRows(
        rng.standard_normal((5, 2)).astype(np.float32),
        np.arange(5.0),
        np.arange(1.0, 6.0),
        n_trials=np.full(5, 9.0),
    )
    some = rows.take(np.array([4, 0]))
    assert (some.n_obs, some.n_features, some.total_weight) == (2, 2, 6.0)
    assert_array_equal(some.y, [4, 0])
    assert_array_equal(some.Z, rows.Z[[4, 0]])
    assert some.offset is None
    assert some.n_trials is not None
