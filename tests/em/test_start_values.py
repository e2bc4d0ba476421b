"""Starting values for samplers: of an estimate, and drawn around it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, estimate, fit_em
from moment_init.em.start_values import draw_start_values, start_values_of
from moment_init.results import dims_of
from tests.joint_mixtures import simulate_joint


def fitted(rng: np.random.Generator) -> EMFit:
    data = simulate_joint("gaussian", 400, 3, [0.6, 0.4], 2, rng, dispersion=0.4)
    return fit_em(data.X, data.y, 2, family="gaussian", random_seed=1)


@pytest.mark.parametrize(
    ("name", "n_dims", "dims"),
    [
        ("coefficient", 2, ("feature", "component")),
        ("coefficient", 3, ("response", "feature", "component")),
        ("bias", 1, ("component",)),
        ("bias", 2, ("response", "component")),
        ("gate", 2, ("component", "gate_feature")),
    ],
)
def test_dims(name: str, n_dims: int, dims: tuple[str, ...]) -> None:
    assert dims_of(name, n_dims) == dims


def test_values_of_several_responses(rng: np.random.Generator) -> None:
    fit = fitted(rng)
    start = start_values_of(fit)
    assert start.n_components == 2
    variables = start.variables()
    for name, value in variables.items():
        assert len(dims_of(name, value.ndim)) == value.ndim
    assert_array_equal(variables["coefficient"], fit.coefficients)
    assert_allclose(variables["direction"] * variables["scale"][:, None], fit.coefficients)
    turned = start.reorder(np.array([1, 0]))
    assert_array_equal(turned.coefficients, fit.coefficients[..., ::-1])
    assert_array_equal(turned.dispersion, np.asarray(fit.dispersion)[:, ::-1])
    assert_array_equal(turned.weights, fit.weights[::-1])


def test_draws_around_a_fit_of_several_responses(rng: np.random.Generator) -> None:
    """A mean of n draws has an error of spread times the standard error over sqrt(n)."""
    fit, draws, spread = fitted(rng), 400, 0.5
    values = draw_start_values(fit, draws, rng, spread=spread)
    slopes = np.stack([np.asarray(value.coefficients) for value in values])
    errors = fit.standard_errors.coefficients
    gaps = (slopes.mean(axis=0) - fit.coefficients) / errors
    assert np.abs(gaps).max() < 5.0 * spread / np.sqrt(draws)
    assert_allclose(slopes.std(axis=0), spread * errors, rtol=5.0 / np.sqrt(2 * draws))


def test_an_estimate_of_several_responses(rng: np.random.Generator) -> None:
    """An estimate has common directions; starts have those of responses, with positive scales."""
    data = simulate_joint("gaussian", 4_000, 3, [0.6, 0.4], 2, rng, dispersion=0.4, is_tied=True)
    found = estimate(data.X, data.y, 2, family="gaussian", random_seed=1)
    for start in (start_values_of(found), *draw_start_values(found, 3, rng, spread=1.0)):
        assert start.directions.shape == (2, 3, 2)
        assert start.scales is not None
        assert start.coefficients is not None
        assert (start.scales > 0.0).all()
        assert_allclose(start.directions * start.scales[:, None], start.coefficients)
        assert_allclose(np.linalg.norm(start.directions, axis=1), 1.0)
    assert found.coefficients is not None
    assert_allclose(start_values_of(found).variables()["coefficient"], found.coefficients)
