"""Scores by automatic differentiation, of expressions and of PyMC distributions."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.scores import Gaussian, InputModel, LogDensity
from tests.bayesian_models import MODE
from tests.population import FloatArray
from tests.scores import test_gaussian_mixture, test_rbm, test_student_t
from tests.scores.oracles import assert_contractions, assert_recursion

MEAN = np.array([1.0, -2.0])
COVARIANCE = np.array([[2.0, 0.9], [0.9, 1.0]])


def mixture(X: Any) -> Any:
    parts = []
    parameters = (
        test_gaussian_mixture.WEIGHTS,
        test_gaussian_mixture.MEANS,
        test_gaussian_mixture.COVARIANCES,
    )
    for weight, mean, covariance in zip(*parameters, strict=True):
        centred = X - mean
        quadratic = ((centred @ np.linalg.inv(covariance)) * centred).sum(axis=1)
        parts.append(np.log(weight) - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * quadratic)
    return pt.log(sum(pt.exp(part) for part in parts))


def student(X: Any) -> Any:
    centred = X - test_student_t.MEAN
    quadratic = ((centred @ np.linalg.inv(test_student_t.SCALE)) * centred).sum(axis=1)
    degrees = test_student_t.DEGREES
    return -0.5 * (degrees + 3.0) * pt.log1p(quadratic / degrees)


def machine(X: Any) -> Any:
    quadratic = -0.5 * (X**2 * test_rbm.PRECISION).sum(axis=1) + X @ test_rbm.VISIBLE
    return quadratic + pt.softplus(X @ test_rbm.WEIGHTS + test_rbm.HIDDEN).sum(axis=1)


def gaussian(X: Any) -> Any:
    centred = X - MEAN
    return -0.5 * ((centred @ np.linalg.inv(COVARIANCE)) * centred).sum(axis=1)


def known() -> LogDensity:
    return LogDensity(gaussian, mean=MEAN, covariance=COVARIANCE, mode=MODE)


@pytest.mark.parametrize(
    ("expression", "module"),
    [(mixture, test_gaussian_mixture), (student, test_student_t), (machine, test_rbm)],
)
def test_closed_forms_are_automatic_derivatives(
    expression: Any, module: Any, rng: np.random.Generator
) -> None:
    """The tensors of other models, contracted with two vectors, to 1e-9 of their size."""
    X: FloatArray = module.draw(rng, 6)
    model: InputModel = module.known()
    basis = model.standardising_basis @ rng.standard_normal((3, 2))
    automatic = LogDensity(expression, mode=MODE)
    for order in (1, 2, 3):
        expected = model.score(X, order, basis)
        actual = automatic.score(X, order, basis)
        assert_allclose(actual, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    constants = automatic.log_density(X) - model.log_density(X)
    assert_allclose(constants, constants[0], atol=1e-9)


def test_contractions_and_recursion(rng: np.random.Generator) -> None:
    model = known()
    X = MEAN + rng.standard_normal((20, 2))
    assert_recursion(model, X[:2], rng)
    assert_contractions(model, X, rng)
    assert not model.is_normalised


def test_pymc_distribution_of_vectors(rng: np.random.Generator) -> None:
    model = LogDensity(pm.MvNormal.dist(MEAN, COVARIANCE), mode=MODE)
    X = MEAN + rng.standard_normal((5, 2))
    expected = Gaussian(MEAN, COVARIANCE)
    # PyMC rounds the constant to single precision.
    assert_allclose(model.log_density(X), expected.log_density(X), rtol=1e-7)
    assert_allclose(model.score(X, 3), expected.score(X, 3), rtol=0, atol=1e-8)
    assert model.is_normalised


def test_pymc_distribution_of_scalars(rng: np.random.Generator) -> None:
    model = LogDensity(pm.Normal.dist(1.0, 2.0), mode=MODE)
    X = rng.standard_normal((5, 2))
    expected = Gaussian([1.0, 1.0], 4.0 * np.eye(2))
    # PyMC rounds the constant to single precision.
    assert_allclose(model.log_density(X), expected.log_density(X), rtol=1e-7)
    assert_allclose(model.score(X, 2), expected.score(X, 2), rtol=0, atol=1e-9)


def test_fit_takes_mean_and_covariance_from_rows(rng: np.random.Generator) -> None:
    X = rng.multivariate_normal(MEAN, COVARIANCE, 500)
    model = LogDensity(gaussian, mode=MODE).fit(X)
    assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-10)
    assert model.n_fitted_ == np.inf
    kept = known().fit(X)
    assert_array_equal(kept.mean_, MEAN)
    assert repr(model) == "LogDensity(gaussian)"


def test_bad_expressions() -> None:
    with pytest.raises(ValueError, match="`log_density` must give one value for each row"):
        LogDensity(lambda X: X.sum(), mode=MODE).score(np.zeros((2, 2)), 1)
    with pytest.raises(ValueError, match=r"LogDensity\(\) must be fitted"):
        LogDensity(gaussian).whiten(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="`mean` must be a vector and `covariance` a matrix"):
        LogDensity(gaussian, mean=MEAN, covariance=np.eye(3)).whiten(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="`input_model` must have as many features"):
        known().fit(np.random.default_rng(0).standard_normal((20, 3)))
