"""Scores of expressions, PyMC distributions, and NumPy and SciPy functions."""

import pickle
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import logsumexp

from moment_init import angles_in_degrees, estimate, match_components
from moment_init.scores import Gaussian, InputModel, LogDensity, StudentT, stein_check
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


# --- NumPy and SciPy functions -------------------------------------------------------------------

# Errors relative to the largest tensor, ten times those that the docstring states for smooth
# densities; the largest of all entries and rows.
DIFFERENCE_ERRORS = {1: 1e-11, 2: 1e-9, 3: 1e-7}


def numpy_mixture(X: FloatArray) -> FloatArray:
    """Fails with symbolic rows, as most functions written with NumPy do."""
    weights, means = test_gaussian_mixture.WEIGHTS, test_gaussian_mixture.MEANS
    parts = [
        np.log(weight) + stats.multivariate_normal(mean, covariance).logpdf(X)
        for weight, mean, covariance in zip(
            weights, means, test_gaussian_mixture.COVARIANCES, strict=True
        )
    ]
    return np.asarray(logsumexp(parts, axis=0))


def numpy_machine(X: FloatArray) -> FloatArray:
    quadratic = -0.5 * (X**2) @ test_rbm.PRECISION + X @ test_rbm.VISIBLE
    return np.asarray(
        quadratic + np.logaddexp(0.0, X @ test_rbm.WEIGHTS + test_rbm.HIDDEN).sum(axis=1)
    )


@pytest.mark.parametrize(
    ("function", "module"),
    [
        (numpy_mixture, test_gaussian_mixture),
        (numpy_machine, test_rbm),
        (
            stats.multivariate_t(
                test_student_t.MEAN, test_student_t.SCALE, test_student_t.DEGREES
            ).logpdf,
            test_student_t,
        ),
    ],
)
def test_finite_differences_are_the_closed_forms(
    function: Any, module: Any, rng: np.random.Generator
) -> None:
    """In standardised coordinates, to the errors that the docstring states."""
    between_clusters = {1: 1e-11, 2: 1e-9, 3: 1e-6}
    errors = between_clusters if function is numpy_mixture else DIFFERENCE_ERRORS
    X: FloatArray = module.draw(rng, 50)
    model: InputModel = module.known()
    factor = model.standardising_basis
    differences = LogDensity(function, mean=model.mean_, covariance=factor @ factor.T)
    basis = factor @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
    for order, error in errors.items():
        expected = model.score(X, order, basis)
        scale = float(np.abs(expected).max())
        assert_allclose(differences.score(X, order, basis), expected, rtol=0, atol=error * scale)
        powers = differences.contract(basis).powers(X, order)
        expected = model.contract(basis).powers(X, order)
        assert_allclose(powers, expected, rtol=0, atol=error * scale)
    assert differences.backend_ == "numpy"
    constants = differences.log_density(X) - model.log_density(X)
    assert_allclose(constants, constants[0], atol=1e-9)


def test_units_of_the_columns_do_not_matter(rng: np.random.Generator) -> None:
    """Steps are in standard deviations: columns may differ by orders of magnitude."""
    units = np.array([1e-6, 1e6])
    X = MEAN + rng.multivariate_normal(np.zeros(2), COVARIANCE, 20)
    density = stats.multivariate_normal(MEAN, COVARIANCE)
    model = LogDensity(
        lambda rows: density.logpdf(rows / units),
        mean=MEAN * units,
        covariance=COVARIANCE * np.outer(units, units),
    )
    expected = Gaussian(MEAN, COVARIANCE).score(X, 3)
    actual = model.score(X * units, 3, np.diag(units))
    assert_allclose(actual, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


def test_one_row_and_repeated_directions() -> None:
    """SciPy gives a scalar for one row; a direction and its opposite cancel."""
    model = LogDensity(
        stats.multivariate_normal(MEAN, COVARIANCE).logpdf, mean=MEAN, covariance=COVARIANCE
    )
    basis = np.array([[1.0, -1.0], [0.5, -0.5]])
    X = MEAN[None] + 0.5
    expected = Gaussian(MEAN, COVARIANCE).score(X, 3, basis)
    assert_allclose(model.score(X, 3, basis), expected, rtol=0, atol=1e-7)
    assert model.log_density(X).shape == (1,)


def test_pickles_after_use() -> None:
    density = stats.multivariate_normal(MEAN, COVARIANCE)
    for model in (known(), LogDensity(density.logpdf, mean=MEAN, covariance=COVARIANCE)):
        expected = model.score(np.ones((2, 2)), 2)
        restored = pickle.loads(pickle.dumps(model))
        assert_array_equal(restored.score(np.ones((2, 2)), 2), expected)


def test_functions_are_told_apart() -> None:
    def operators(X: Any) -> Any:
        return -(X**2).sum(axis=1)

    symbolic = LogDensity(operators, mode=MODE, mean=MEAN, covariance=COVARIANCE)
    expected = symbolic.score(np.ones((2, 2)), 3)
    forced = LogDensity(operators, mean=MEAN, covariance=COVARIANCE, backend="numpy")
    assert_allclose(forced.score(np.ones((2, 2)), 3), expected, rtol=0, atol=1e-7)
    assert (symbolic.backend_, forced.backend_) == ("pytensor", "numpy")


@pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning")
def test_estimate_and_check_under_a_scipy_density(rng: np.random.Generator) -> None:
    """The same estimate as under the density in closed form, with the same degrees of freedom."""
    coefficients = np.array([[1.5, -0.5], [0.3, 1.5]])
    density = stats.multivariate_t([0.0, 0.0], np.eye(2), df=8)
    X = density.rvs(4_000, random_state=rng)
    labels = (rng.random(len(X)) < 0.4).astype(int)
    y = (X @ coefficients)[np.arange(len(X)), labels] + 0.5 * rng.standard_normal(len(X))
    models = LogDensity(density.logpdf), StudentT([0.0, 0.0], np.eye(2), 8.0)
    numeric, closed = (
        estimate(X, y, 2, family="gaussian", input_model=each, polish=False, random_seed=1)
        for each in models
    )
    order = match_components(numeric.directions, closed.directions, signed=True)
    matched = numeric.directions[:, order]
    # The frame of one is the sample's and of the other the density's.
    assert angles_in_degrees(matched, closed.directions, signed=True).max() < 0.01
    check = stein_check(LogDensity(density.logpdf).fit(X), X, level=1e-5, random_seed=1)
    assert check.status == "passed"


# --- bad input -----------------------------------------------------------------------------------


def test_bad_expressions() -> None:
    with pytest.raises(ValueError, match="`log_density` must give one value for each row"):
        LogDensity(lambda X: X.sum(), mode=MODE).score(np.zeros((2, 2)), 1)
    with pytest.raises(ValueError, match=r"LogDensity\(\) must be fitted"):
        LogDensity(gaussian).whiten(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"`covariance` must have shape \(2, 2\) to match"):
        LogDensity(gaussian, mean=MEAN, covariance=np.eye(3)).whiten(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="`input_model` must have as many features"):
        known().fit(np.random.default_rng(0).standard_normal((20, 3)))


@pytest.mark.parametrize(
    ("function", "options", "match"),
    [
        (stats.norm(0.0, 1.0).logpdf, {}, r"one value for each row; got shape \(3, 2\) for 3 rows"),
        (lambda X: np.float32(X).sum(axis=1), {"backend": "numpy"}, "got .* float32"),
        (lambda X: pt.log(X).nonsense, {}, "it raised AttributeError.*Pass backend="),
        (stats.norm(0.0, 1.0).logpdf, {"backend": "pytensor"}, "accept a symbolic matrix"),
        (gaussian, {"backend": "stan"}, "`backend` must be 'auto', 'pytensor', 'jax' or 'numpy'"),
        (
            lambda X: np.where(X[:, 0] > 0.0, 0.0, -np.inf),
            {"backend": "numpy"},
            "must be finite within 0.02 standard deviations of every row",
        ),
    ],
)
def test_functions_that_are_no_log_densities(
    function: Any, options: dict[str, Any], match: str
) -> None:
    model = LogDensity(function, mean=np.zeros(2), covariance=np.eye(2), **options)
    with pytest.raises(ValueError, match=match):
        model.score(np.zeros((3, 2)), 1)


@pytest.mark.parametrize("distribution", [stats.norm(0.0, 1.0), stats.multivariate_normal([0, 0])])
def test_a_scipy_distribution_itself_is_refused(distribution: Any) -> None:
    with pytest.raises(TypeError, match=r"For a SciPy distribution pass its method `logpdf`"):
        LogDensity(distribution).log_density(np.zeros((3, 2)))
    with pytest.raises(TypeError, match="got TensorVariable and backend='numpy'"):
        LogDensity(pm.Normal.dist(), backend="numpy").log_density(np.zeros((3, 2)))


def test_finite_differences_need_standard_deviations() -> None:
    with pytest.raises(ValueError, match=r"LogDensity\(\) must be fitted"):
        LogDensity(numpy_machine).score(np.zeros((2, 3)), 1)
