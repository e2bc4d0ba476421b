"""Principal Hessian directions: exact moments, a sample, and where there are none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init import WeakSignalWarning, simulate_mixture
from moment_init.subspaces.hessian_directions import ResponsePart, principal_hessian_directions
from tests.subspaces.grids import gaussian_grid, largest_sine

RESPONSES: tuple[ResponsePart, ...] = ("residual", "response")


@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")  # a grid has few rows
@pytest.mark.parametrize("response", RESPONSES)
def test_span_from_exact_moments(response: ResponsePart) -> None:
    """Quadratics of two predictors on a grid that integrates their fourth degree exactly."""
    grid = gaussian_grid(4, n_nodes=5)
    directions = np.array([[1.0, 0.6], [0.0, 0.0], [0.0, 0.8], [0.0, 0.0]])
    first, second = (grid.z @ directions).T
    y = 0.4 * (first**2 + first) + 0.6 * (3.0 - 2.0 * second**2)
    span = principal_hessian_directions(grid.X, y, 2, response=response, sample_weight=grid.weights)
    assert largest_sine(span.basis, grid.span(directions)) < 1e-8
    assert_allclose(span.spectrum[2:], 0.0, atol=1e-10)


@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")
def test_residual_changes_the_scale_of_the_spectrum_only() -> None:
    """y = 3 z1 + z2^2: variances 11 and 2 with and without the linear part."""
    grid = gaussian_grid(3, n_nodes=5)
    y = 3.0 * grid.z[:, 0] + grid.z[:, 1] ** 2
    spans = [
        principal_hessian_directions(grid.X, y, 1, response=each, sample_weight=grid.weights)
        for each in RESPONSES
    ]
    assert_allclose(spans[0].basis, spans[1].basis, atol=1e-8)
    assert spans[0].spectrum[0] / spans[1].spectrum[0] == pytest.approx(np.sqrt(11.0 / 2.0))


@pytest.mark.parametrize("response", RESPONSES)
def test_direction_of_a_poisson_regression(response: ResponsePart, seed: int) -> None:
    """A single exponential mean has its Hessian along its direction alone.

    The sine of the angle is the noise of M_2 u across u, sqrt(d / n) where y and x are independent,
    over the eigenvalue: half the inverse of the spectrum's first value. Large counts go with large
    inputs and make the noise several times that: with scale 0.7, E[y^2 (z_1^2 - 1)^2] is 6 times
    E[y^2] E[(z_1^2 - 1)^2]. Five times the sine is beyond all of that.
    """
    data = simulate_mixture(
        100_000, 4, 1, family="poisson", scales=0.7, biases=0.5, random_seed=seed
    )
    span = principal_hessian_directions(data.X, data.y, 1, response=response)
    sine = 0.5 / span.spectrum[0]
    assert largest_sine(span.basis, data.directions) < 5.0 * sine < 0.1


@pytest.mark.parametrize(("family", "biases"), [("bernoulli", 0.0), ("gaussian", [1.0, -1.0])])
def test_nothing_where_the_mean_has_no_curvature(
    family: str, biases: float | list[float], seed: int
) -> None:
    """Odd means without biases and linear means: eigenvalues are those of noise.

    Linear regressions have residuals whose variance depends on x, which raises the noise.
    """
    data = simulate_mixture(
        50_000, 6, 2, family=family, scales=1.0, biases=biases, random_seed=seed
    )
    with pytest.warns(WeakSignalWarning, match="principal_hessian_directions: [01] of 2"):
        span = principal_hessian_directions(data.X, data.y, 2)
    assert span.spectrum[0] < 2.0


def test_square_shows_what_linear_means_hide(seed: int) -> None:
    data = simulate_mixture(
        50_000, 6, 2, family="gaussian", scales=2.0, biases=0.0, random_seed=seed
    )
    span = principal_hessian_directions(data.X, data.y**2, 2)
    assert span.warnings == ()
    assert largest_sine(span.basis, data.directions) < 5.0 * 0.5 / span.spectrum[1]


def test_unknown_response_is_refused() -> None:
    data = simulate_mixture(100, 2, 1, random_seed=1)
    with pytest.raises(ValueError, match=r"`response` must be 'residual' or 'response'; got 'y'"):
        principal_hessian_directions(data.X, data.y, 1, response="y")  # type: ignore[arg-type]
