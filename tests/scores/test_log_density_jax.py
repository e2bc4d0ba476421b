"""Scores of functions written with JAX.

JAX is no dependency of the tests, as it would double the time that set-up takes: these run where it
is installed.
"""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.scores import Gaussian, InputModel, LogDensity
from tests.population import FloatArray
from tests.scores import test_gaussian_mixture, test_rbm, test_student_t
from tests.scores.oracles import assert_contractions

jax = pytest.importorskip("jax")
# JAX warns about its own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
jnp = jax.numpy


def mixture(x: Any) -> Any:
    parts = [
        jnp.log(weight) + jax.scipy.stats.multivariate_normal.logpdf(x, mean, covariance)
        for weight, mean, covariance in zip(
            test_gaussian_mixture.WEIGHTS,
            test_gaussian_mixture.MEANS,
            test_gaussian_mixture.COVARIANCES,
            strict=True,
        )
    ]
    return jax.scipy.special.logsumexp(jnp.stack(parts))


def student(x: Any) -> Any:
    centred = x - test_student_t.MEAN
    quadratic = centred @ np.linalg.inv(test_student_t.SCALE) @ centred
    degrees = test_student_t.DEGREES
    return -0.5 * (degrees + 3.0) * jnp.log1p(quadratic / degrees)


def machine(x: Any) -> Any:
    quadratic = -0.5 * (x**2) @ test_rbm.PRECISION + x @ test_rbm.VISIBLE
    return quadratic + jax.nn.softplus(x @ test_rbm.WEIGHTS + test_rbm.HIDDEN).sum()


@pytest.mark.parametrize(
    ("function", "module"),
    [(mixture, test_gaussian_mixture), (student, test_student_t), (machine, test_rbm)],
)
def test_closed_forms_are_the_derivatives_of_jax(
    function: Any, module: Any, rng: np.random.Generator
) -> None:
    """The tensors of other models, to 1e-9 of their size: in double precision."""
    X: FloatArray = module.draw(rng, 6)
    model: InputModel = module.known()
    automatic = LogDensity(function)
    for order in (1, 2, 3):
        expected = model.score(X, order)
        scale = np.abs(expected).max()
        assert_allclose(automatic.score(X, order), expected, rtol=0, atol=1e-9 * scale)
    assert automatic.backend_ == "jax"
    assert not automatic.is_normalised
    constants = automatic.log_density(X) - model.log_density(X)
    assert_allclose(constants, constants[0], atol=1e-9)
    assert_contractions(LogDensity(function, backend="jax").fit(module.draw(rng, 50)), X, rng)


def test_the_callers_precision_stays(rng: np.random.Generator) -> None:
    """A function of one row made of operators needs the backend by name."""
    before = jnp.ones(1).dtype
    model = LogDensity(lambda x: -0.5 * (x**2).sum(), backend="jax")
    X = rng.standard_normal((5, 2))
    expected = Gaussian(np.zeros(2), np.eye(2)).score(X, 3)
    assert_allclose(model.score(X, 3), expected, rtol=0, atol=1e-12)
    assert jnp.ones(1).dtype == before


def test_functions_that_are_no_log_densities_of_a_row() -> None:
    X = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"must map one row, \(n_features,\), to a scalar"):
        LogDensity(lambda x: -jnp.square(x)).log_density(X)
    with pytest.raises(ValueError, match=r"must accept one row as a JAX array; it raised"):
        LogDensity(lambda X: -jnp.square(X).sum(axis=1), backend="jax").log_density(X)
    with pytest.raises(ValueError, match=r"compute in double precision.*write it for one row"):
        LogDensity(lambda X: -jnp.square(X).sum(axis=1)).log_density(X)
