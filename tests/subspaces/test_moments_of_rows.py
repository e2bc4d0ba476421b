"""Moments by hand, and what every method refuses."""

from collections.abc import Callable
from typing import Any

import dask.array as dask_array
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from moment_init import WeakSignalWarning, simulate_mixture
from moment_init.subspaces.hessian_directions import principal_hessian_directions
from moment_init.subspaces.inverse_regression import sliced_inverse_regression
from moment_init.subspaces.mirroring import spectral_mirroring
from moment_init.subspaces.result import SubspaceEstimate
from moment_init.subspaces.rows import (
    first_moment,
    moment_edge,
    pose_rows,
    predictor,
    second_moment,
    without_linear_part,
)
from tests.subspaces.grids import largest_sine

Method = Callable[..., SubspaceEstimate]
Sample = tuple[NDArray[np.float64], NDArray[np.float64]]
METHODS = (principal_hessian_directions, sliced_inverse_regression, spectral_mirroring)

# 16 rows a column or more: fewer, and the correlation matrix is shrunk.
CORNERS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]] * 8)


@pytest.fixture
def sample() -> Sample:
    """A Poisson mixture in which every method finds a direction."""
    data = simulate_mixture(
        4_000, 4, 2, family="poisson", scales=0.8, biases=[0.0, 1.0], random_seed=3
    )
    return data.X, data.y


# --- moments by hand -----------------------------------------------------------------------------


def test_moments_of_four_corners() -> None:
    """z = x; y = x1 x2 + 3 has mean 3 and variance 1, E[y z] = 0, E[y z z'] off its diagonal 1."""
    rows = pose_rows(CORNERS, CORNERS.prod(axis=1) + 3.0, None)
    assert_allclose(rows.response, CORNERS.prod(axis=1), atol=1e-14)
    assert_allclose(first_moment(rows, rows.response), 0.0, atol=1e-14)
    assert_allclose(second_moment(rows, rows.response), [[0.0, 1.0], [1.0, 0.0]], atol=1e-14)
    assert_allclose(predictor(rows, np.array([1.0, 2.0])), CORNERS @ [1.0, 2.0], atol=1e-14)
    assert moment_edge(rows) == pytest.approx(2.0 * np.sqrt(2 / 32))


def test_identity_is_taken_off_values_that_are_not_centred() -> None:
    rows = pose_rows(CORNERS, CORNERS[:, 0], None)
    assert_allclose(second_moment(rows, np.full(32, 5.0)), 0.0, atol=1e-13)


def test_linear_part_is_taken_out() -> None:
    """y = 2 x1 + x1 x2: the residual is x1 x2, of variance one already."""
    rows = pose_rows(CORNERS, 2.0 * CORNERS[:, 0] + CORNERS.prod(axis=1), None)
    assert_allclose(without_linear_part(rows), CORNERS.prod(axis=1), atol=1e-13)


def test_nothing_is_left_of_a_linear_response() -> None:
    rows = pose_rows(CORNERS, CORNERS @ [2.0, -1.0] + 7.0, None)
    assert_allclose(without_linear_part(rows), 0.0, atol=0.0)


@pytest.mark.parametrize("unit", [1e-70, 1e70])
def test_units_of_the_response_may_be_of_any_order(unit: float) -> None:
    rows = pose_rows(CORNERS, unit * CORNERS.prod(axis=1), None)
    assert_allclose(rows.response, CORNERS.prod(axis=1), atol=1e-14)


# --- what all methods share ----------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_repetitions(method: Method, sample: Sample) -> None:
    X, y = sample
    weights = np.arange(len(y)) % 3
    weighted = method(X, y, 1, sample_weight=weights)
    repeated = method(np.repeat(X, weights, axis=0), np.repeat(y, weights), 1)
    assert_allclose(np.abs(weighted.basis), np.abs(repeated.basis), atol=1e-10)
    assert weighted.n_obs == int((weights > 0).sum())


@pytest.mark.parametrize("method", METHODS)
def test_span_follows_the_units(method: Method, sample: Sample) -> None:
    """Slopes of X A' + c are A^-T times those of X; shifts and signs of y change nothing."""
    X, y = sample
    rng = np.random.default_rng(2)
    shear = rng.standard_normal((4, 4)) * [[1e3], [1.0], [1.0], [1e-3]]
    plain = method(X, y, 2)
    moved = method(X @ shear.T + 50.0, 4.0 - 0.1 * y, 2)
    expected = np.linalg.solve(shear.T, plain.basis)
    assert largest_sine(moved.basis, expected / np.linalg.norm(expected, axis=0)) < 1e-8
    assert_allclose(moved.spectrum, plain.spectrum, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_basis_is_orthonormal_and_nested(method: Method, sample: Sample) -> None:
    X, y = sample
    X = X @ np.triu(np.ones((4, 4))) * [1.0, 10.0, 0.1, 1.0]
    two, one = method(X, y, 2), method(X, y, 1)
    assert_allclose(two.basis.T @ two.basis, np.eye(2), atol=1e-12)
    assert_allclose(two.basis[:, :1], one.basis, atol=1e-12)
    assert two.spectrum.shape == (4,)
    assert two.n_directions == 2


@pytest.mark.parametrize("method", METHODS)
def test_same_rows_same_bits(method: Method, sample: Sample) -> None:
    assert method(*sample, 2).basis.tobytes() == method(*sample, 2).basis.tobytes()


@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")
@pytest.mark.parametrize("n_features", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_all_columns_may_be_asked_for(method: Method, n_features: int, sample: Sample) -> None:
    X, y = sample
    span = method(X[:, :n_features], y, n_features)
    assert_allclose(np.abs(np.linalg.det(span.basis)), 1.0, atol=1e-12)
    assert span.spectrum.shape == (n_features,)


@pytest.mark.parametrize("method", METHODS)
def test_noise_is_called_noise(method: Method, seed: int) -> None:
    """The largest of ten values of noise exceeds 1.2 edges in 1 to 3 of 100 data sets."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((4_000, 10)), rng.standard_normal(4_000)
    with pytest.warns(WeakSignalWarning, match=r": [01] of 2 directions stand out from noise"):
        span = method(X, y, 2)
    assert len(span.warnings) == 1
    assert span.spectrum[:2].max() < 1.6


# --- what all methods refuse ---------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [0, 5])
def test_number_of_directions_has_a_range(method: Method, number: int, sample: Sample) -> None:
    pattern = rf"`n_directions` must be between 1 and the number of features \(4\); got {number}"
    with pytest.raises(ValueError, match=pattern):
        method(*sample, number)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [2.0, True, "two"])
def test_number_of_directions_is_whole(method: Method, number: Any, sample: Sample) -> None:
    with pytest.raises(TypeError, match=r"`n_directions` must be an integer; got "):
        method(*sample, number)


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_checked(method: Method, sample: Sample) -> None:
    X, y = sample
    with pytest.raises(ValueError, match=r"`y` must have shape \(4000,\)"):
        method(X, y[:-1], 1)
    with pytest.raises(ValueError, match=r"`y` must vary; got 2 in all 4000 rows"):
        method(X, np.full(4000, 2.0), 1)
    with pytest.raises(ValueError, match=r"`X` must not have constant columns; got 'x1'"):
        method(X * [1.0, 0.0, 1.0, 1.0], y, 1)
    with pytest.raises(ValueError, match=r"`X` must be finite; got nan in row 0, column 'x0'"):
        method(np.where(X == X[0, 0], np.nan, X), y, 1)
    with pytest.raises(ValueError, match=r"`sample_weight` must be non-negative"):
        method(X, y, 1, sample_weight=-np.ones(4000))
    with pytest.raises(TypeError, match=r"`X` must hold real numbers; got columns a \(.*\)"):
        method(pd.DataFrame({"a": ["u"] * 4000}), y, 1)


@pytest.mark.parametrize("method", METHODS)
def test_rows_must_be_in_memory(method: Method, sample: Sample) -> None:
    X, y = sample
    blocks = dask_array.from_array(X, chunks=(1000, 4))
    with pytest.raises(TypeError, match=r"must be in memory; got a Dask collection"):
        method(blocks, y, 1)
