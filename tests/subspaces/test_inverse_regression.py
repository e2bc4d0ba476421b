"""Sliced inverse regression: slices by hand, exact moments, a sample, limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import WeakSignalWarning, simulate_mixture
from moment_init.subspaces.inverse_regression import slice_rows, sliced_inverse_regression
from tests.subspaces.grids import gaussian_grid, largest_sine


def test_few_values_are_a_slice_each() -> None:
    slices = slice_rows(np.array([7.0, 0.0, 0.0, 1.0]), np.ones(4), 5)
    assert_array_equal(slices, [2, 0, 0, 1])


def test_slices_have_equal_weight() -> None:
    """Weights 1, 1, 2, 1, 1 in halves: the value in the middle has its own middle at one half."""
    y = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert_array_equal(slice_rows(y, np.array([1.0, 1.0, 2.0, 1.0, 1.0]), 2), [0, 0, 1, 1, 1])
    assert_array_equal(np.bincount(slice_rows(np.arange(1000.0), np.ones(1000), 8)), [125] * 8)


def test_equal_values_share_a_slice_and_none_is_empty() -> None:
    """Nine of twelve rows are 0: their middle is at 3/8, the second of four slices."""
    y = np.array([0.0] * 9 + [1.0, 2.0, 3.0, 4.0, 5.0])[:14]
    slices = slice_rows(y, np.ones(14), 4)
    assert len(set(slices[:9])) == 1
    assert_array_equal(np.unique(slices), np.arange(slices.max() + 1))


def test_means_of_slices_by_hand() -> None:
    """z = x at four corners; y = x1: slices at x1 = +-1 with means (+-1, 0), V = diag(1, 0)."""
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]] * 8)
    span = sliced_inverse_regression(corners, corners[:, 0], 1)
    edge = (1.0 + np.sqrt(2.0)) ** 2 / 32.0
    assert_allclose(np.abs(span.basis), [[1.0], [0.0]], atol=1e-12)
    assert_allclose(span.spectrum, [1.0 / edge, 0.0], atol=1e-12)


@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")  # a grid has few rows
def test_span_from_exact_moments() -> None:
    """A response of two coordinates of a product grid: others have mean zero in every slice."""
    grid = gaussian_grid(4, n_nodes=6)
    y = grid.z[:, 0] + np.exp(0.5 * grid.z[:, 0] + grid.z[:, 1])
    span = sliced_inverse_regression(grid.X, y, 2, n_slices=6, sample_weight=grid.weights)
    assert largest_sine(span.basis, grid.span(np.eye(4)[:, :2])) < 1e-8
    assert_allclose(span.spectrum[2:], 0.0, atol=1e-10)


def test_directions_of_a_gaussian_mixture(seed: int) -> None:
    """Noise of a slice's mean across the span is sqrt(d / n) in all, against the eigenvalue's root.

    With the spectrum in units of (sqrt(9) + sqrt(8))^2 / n = 34 / n, the sine is below the inverse
    root of the second value; the third of it that is exceeded in 1 of 1,000 data sets is allowed.
    """
    directions = np.linalg.qr(np.random.default_rng(7).standard_normal((8, 2)))[0]
    data = simulate_mixture(
        50_000,
        8,
        2,
        family="gaussian",
        directions=directions,
        scales=1.0,
        biases=[-2.0, 2.0],
        dispersion=0.5,
        random_seed=seed,
    )
    span = sliced_inverse_regression(data.X, data.y, 2)
    assert span.warnings == ()
    assert largest_sine(span.basis, directions) < 1.5 / np.sqrt(span.spectrum[1]) < 0.2


def test_opposite_slopes_leave_the_means_where_they_are(seed: int) -> None:
    directions = np.eye(5)[:, [0, 0]] * [1.0, -1.0]
    data = simulate_mixture(
        20_000,
        5,
        2,
        family="gaussian",
        directions=directions,
        scales=2.0,
        biases=0.0,
        weights=[0.5, 0.5],
        dispersion=0.5,
        random_seed=seed,
    )
    with pytest.warns(WeakSignalWarning, match="sliced_inverse_regression: 0 of 1"):
        sliced_inverse_regression(data.X, data.y, 1)


def test_two_slices_show_one_direction() -> None:
    data = simulate_mixture(5_000, 4, 2, scales=3.0, random_seed=1)
    assert sliced_inverse_regression(data.X, data.y, 1).n_directions == 1
    pattern = r"`n_directions` must be less than the number of slices of `y` \(2\).* got 2"
    with pytest.raises(ValueError, match=pattern):
        sliced_inverse_regression(data.X, data.y, 2)


def test_number_of_slices_is_checked() -> None:
    data = simulate_mixture(100, 2, 1, random_seed=1)
    for number in (1, 101):
        pattern = rf"`n_slices` must be between 2 and the number of rows .* \(100\); got {number}"
        with pytest.raises(ValueError, match=pattern):
            sliced_inverse_regression(data.X, data.y, 1, n_slices=number)
    with pytest.raises(TypeError, match=r"`n_slices` must be an integer; got 2.5"):
        sliced_inverse_regression(data.X, data.y, 1, n_slices=2.5)  # type: ignore[arg-type]
