"""Mirroring: exact moments, symmetric classifiers, and where there is no mirror."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init import WeakSignalWarning, simulate_mixture
from moment_init.subspaces.hessian_directions import ResponsePart, principal_hessian_directions
from moment_init.subspaces.mirroring import spectral_mirroring
from tests.subspaces.grids import gaussian_grid, largest_sine

RESPONSES: tuple[ResponsePart, ...] = ("residual", "response")


def test_mirror_by_hand() -> None:
    """z = x at four corners, y = x1 (1 + x2): E[y z] = (1, 0), the mirror is x1's sign.

    y less its mean of zero, mirrored, is 1 + x2, and without the linear part x2 itself:
    Q = E[x2 (z z' - I)] = 0 at corners, as x2 x1 x1, x2 x1 x2 and x2^3 have mean zero.
    """
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]] * 8)
    y = corners[:, 0] * (1.0 + corners[:, 1])
    with pytest.warns(WeakSignalWarning, match="spectral_mirroring: 1 of 2"):
        span = spectral_mirroring(corners, y, 2)
    assert_allclose(np.abs(span.basis), np.eye(2), atol=1e-12)
    edge = (1.0 + np.sqrt(2.0)) / np.sqrt(32.0)
    assert_allclose(span.spectrum, [np.sqrt(0.5) / edge, 0.0], atol=1e-12)


@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")  # a grid has few rows
@pytest.mark.parametrize("response", RESPONSES)
def test_span_of_odd_means_from_exact_moments(response: ResponsePart) -> None:
    """Two classifiers in two coordinates of a product grid; nodes are symmetric about zero."""
    grid = gaussian_grid(4, n_nodes=6)
    u = np.array([[1.0, 0.6], [0.0, 0.8], [0.0, 0.0], [0.0, 0.0]])
    y = 0.6 * np.tanh(grid.z @ u[:, 0]) + 0.4 * np.tanh(2.0 * grid.z @ u[:, 1])
    span = spectral_mirroring(grid.X, y, 2, response=response, sample_weight=grid.weights)
    assert largest_sine(span.basis, grid.span(u)) < 1e-8
    assert span.spectrum[1] > 1e-2
    assert_allclose(span.spectrum[2:], 0.0, atol=1e-8)
    hessian = principal_hessian_directions(grid.X, y, 2, sample_weight=grid.weights)
    assert_allclose(hessian.spectrum, 0.0, atol=1e-8)


@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")
def test_residual_leaves_the_span_and_takes_off_what_is_along_the_mirror() -> None:
    grid = gaussian_grid(3, n_nodes=8)
    y = np.tanh(grid.z[:, 0]) + 0.5 * np.tanh(2.0 * grid.z[:, 1])
    spans = [
        spectral_mirroring(grid.X, y, 2, response=each, sample_weight=grid.weights)
        for each in RESPONSES
    ]
    assert_allclose(spans[0].basis[:, 0], spans[1].basis[:, 0], atol=1e-12)
    assert largest_sine(spans[0].basis, spans[1].basis) < 1e-8


@pytest.mark.parametrize("levels", [(0.0, 1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("response", RESPONSES)
def test_span_of_symmetric_classifiers(
    response: ResponsePart, levels: tuple[float, float], seed: int
) -> None:
    """Sine of the worst angle: noise sqrt(d / n) over the singular value, 0.5 / spectrum[1].

    Its square is distributed as a chi-square with d - 2 = 4 degrees over d = 6: three times the
    sine is exceeded in less than one of 1e9 data sets.
    """
    directions = np.array([[1.0, 0.5], [0.0, np.sqrt(0.75)], *[[0.0, 0.0]] * 4])
    data = simulate_mixture(
        50_000,
        6,
        2,
        directions=directions,
        scales=3.0,
        biases=0.0,
        weights=[0.5, 0.5],
        random_seed=seed,
    )
    y = np.where(data.y > 0.5, levels[1], levels[0])
    span = spectral_mirroring(data.X, y, 2, response=response)
    assert span.warnings == ()
    assert largest_sine(span.basis, directions) < 3.0 * 0.5 / span.spectrum[1] < 0.5
    with pytest.warns(WeakSignalWarning, match="principal_hessian_directions: [01] of 2"):
        principal_hessian_directions(data.X, y, 2)


def test_first_direction_is_that_of_the_first_moment(seed: int) -> None:
    """One classifier: E[y z] is along it, with its sign."""
    directions = np.array([[-0.6], [0.8], [0.0]])
    data = simulate_mixture(20_000, 3, 1, directions=directions, scales=2.0, random_seed=seed)
    span = spectral_mirroring(data.X, data.y, 1)
    assert_allclose(span.basis, directions, atol=5.0 * np.sqrt(3 / 20_000) / 0.3)


def test_no_mirror_for_even_means(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20_000, 5))
    y = X[:, 0] ** 2 + rng.standard_normal(20_000)
    with pytest.warns(WeakSignalWarning, match="spectral_mirroring: [01] of 2"):
        spectral_mirroring(X, y, 2)


def test_linear_means_show_the_mirror_only(seed: int) -> None:
    data = simulate_mixture(
        50_000,
        5,
        2,
        family="gaussian",
        directions=np.eye(5)[:, :2],
        scales=1.0,
        biases=0.0,
        weights=[0.5, 0.5],
        random_seed=seed,
    )
    with pytest.warns(WeakSignalWarning, match="spectral_mirroring: 1 of 2"):
        span = spectral_mirroring(data.X, data.y, 2)
    mean_slope = data.coefficients @ data.weights
    assert largest_sine(span.basis[:, :1], mean_slope[:, None] / np.linalg.norm(mean_slope)) < 0.1


def test_linear_response_has_a_basis_all_the_same() -> None:
    X = np.random.default_rng(1).standard_normal((500, 3))
    with pytest.warns(WeakSignalWarning, match="spectral_mirroring: 1 of 3"):
        span = spectral_mirroring(X, X @ [1.0, 2.0, 0.0], 3)
    assert_allclose(span.basis.T @ span.basis, np.eye(3), atol=1e-12)
    assert_allclose(span.spectrum[1:], 0.0, atol=1e-12)


def test_unknown_response_is_refused() -> None:
    data = simulate_mixture(100, 2, 1, random_seed=1)
    with pytest.raises(ValueError, match=r"`response` must be 'residual' or 'response'; got 'y'"):
        spectral_mirroring(data.X, data.y, 1, response="y")  # type: ignore[arg-type]
