"""An input model of one's own: three methods, and what the base classes derive from them."""

from typing import Any, Self

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import ArrayLike

from moment_init import angles_in_degrees, estimate, match_components
from moment_init.scores import Gaussian, InputModel, score_tensor, stein_check
from tests.population import FloatArray
from tests.scores.oracles import assert_contractions, assert_recursion

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[2.0, 0.6, -0.3], [0.6, 1.5, 0.4], [-0.3, 0.4, 1.0]])


class PlainGaussian(InputModel):
    """A Gaussian by explicit derivatives."""

    def fit_rows(self, features: Any, weights: FloatArray, names: tuple[str, ...]) -> Self:
        super().fit_rows(features, weights, names)
        factor = self.standardising_basis
        self.precision_ = np.linalg.inv(factor @ factor.T)
        return self

    def log_density(self, X: ArrayLike) -> FloatArray:
        centred = np.asarray(X, dtype=np.float64) - self.mean_
        return np.asarray(-0.5 * ((centred @ self.precision_) * centred).sum(axis=1))

    def score(self, X: ArrayLike, order: int, basis: ArrayLike | None = None) -> FloatArray:
        B = np.eye(len(self.mean_)) if basis is None else np.asarray(basis)
        gradient = -(np.asarray(X) - self.mean_) @ self.precision_ @ B
        shape = (len(gradient), B.shape[1])
        hessian = np.broadcast_to(-B.T @ self.precision_ @ B, (*shape, B.shape[1]))
        third = np.zeros((*shape, B.shape[1], B.shape[1]))
        return score_tensor(*(gradient, hessian, third)[:order])


class Logistic(InputModel):
    """Independent logistic columns, log p = -u - 2 log(1 + exp(-u)), with fitted scales."""

    def fit_rows(self, features: Any, weights: FloatArray, names: tuple[str, ...]) -> Self:
        super().fit_rows(features, weights, names)
        deviations = np.linalg.norm(self.standardising_basis, axis=1)
        self.scales_ = deviations * np.sqrt(3.0) / np.pi
        return self

    def log_density(self, X: ArrayLike) -> FloatArray:
        u = np.abs(np.asarray(X) - self.mean_) / self.scales_
        return np.asarray(-(u + 2.0 * np.log1p(np.exp(-u)) + np.log(self.scales_)).sum(axis=1))

    def score(self, X: ArrayLike, order: int, basis: ArrayLike | None = None) -> FloatArray:
        B = np.eye(len(self.mean_)) if basis is None else np.asarray(basis)
        t = np.tanh((np.asarray(X) - self.mean_) / self.scales_ / 2.0)
        slope = (1.0 - t**2) / 2.0
        gradient = -t / self.scales_ @ B
        hessian = np.einsum("nj,ja,jb->nab", -slope / self.scales_**2, B, B)
        third = np.einsum("nj,ja,jb,jc->nabc", slope * t / self.scales_**3, B, B, B)
        return score_tensor(*(gradient, hessian, third)[:order])


def test_derived_sums_are_those_of_the_built_in_gaussian(rng: np.random.Generator) -> None:
    """More rows than one block of tensors holds; to 1e-10 of the size of each result."""
    X = rng.multivariate_normal(MEAN, COVARIANCE, 12_000)
    own, built_in = PlainGaussian().fit(X), Gaussian().fit(X)
    weights, B = rng.standard_normal(len(X)), rng.standard_normal((3, 2))
    thetas = rng.standard_normal((2, 3))
    derived, closed = own.contract(B), built_in.contract(B)

    def close(actual: FloatArray, expected: FloatArray) -> None:
        assert actual.shape == expected.shape
        assert_allclose(actual, expected, rtol=0, atol=1e-10 * np.abs(expected).max())

    for order in (1, 2, 3):
        close(own.score(X, order, B), built_in.score(X, order, B))
        close(derived.sum_score(X, weights, order), closed.sum_score(X, weights, order))
        close(derived.powers(X, order), closed.powers(X, order))
    for actual, expected in zip(
        derived.sum_low_orders(X, weights), closed.sum_low_orders(X, weights), strict=True
    ):
        close(actual, expected)
    close(derived.sum_slices(X, weights, thetas), closed.sum_slices(X, weights, thetas))
    close(derived.sum_fibres(X, weights, thetas), closed.sum_fibres(X, weights, thetas))


def test_derived_sums_of_no_rows_are_zero(rng: np.random.Generator) -> None:
    contraction = PlainGaussian().fit(rng.standard_normal((50, 3))).contract(np.eye(3))
    nothing = np.empty((0, 3))
    assert_allclose(contraction.sum_score(nothing, np.empty(0), 3), np.zeros((3, 3, 3)))
    assert contraction.powers(nothing, 2).shape == (0, 3)


def test_a_model_of_ones_own_passes_the_oracles(rng: np.random.Generator) -> None:
    X = rng.logistic(MEAN, [1.0, 2.0, 0.5], (2_000, 3))
    model = Logistic().fit(X)
    assert_recursion(model, X[:2], rng)
    assert_contractions(model, X[:20], rng)
    held_out = rng.logistic(MEAN, [1.0, 2.0, 0.5], (2_000, 3))
    assert stein_check(model, held_out, level=1e-5, random_seed=rng).status == "passed"


@pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning")
def test_estimate_under_a_model_of_ones_own(rng: np.random.Generator) -> None:
    """Directions by moments alone lie within four standard errors of the truth.

    A direction in three dimensions is off by a vector of two components: four times its length's
    root mean square is exceeded with a chance of exp(-16), more as 16 parts give the error.
    """
    coefficients = np.array([[1.5, -0.5], [0.3, 1.5], [-0.8, 0.6]])
    X = rng.logistic(0.0, 1.0, (40_000, 3))
    labels = (rng.random(len(X)) < 0.4).astype(int)
    means = (X @ coefficients + np.array([0.5, -0.5]))[np.arange(len(X)), labels]
    y = means + 0.5 * rng.standard_normal(len(X))
    model = Logistic()
    result = estimate(X, y, 2, family="gaussian", input_model=model, polish=False, random_seed=1)
    assert not model.is_fitted  # the caller's object is left alone
    order = match_components(result.directions, coefficients, signed=True)
    angles = angles_in_degrees(result.directions[:, order], coefficients, signed=True)
    assert result.standard_errors is not None
    errors = result.standard_errors[order]
    assert np.all(errors < 2.0)
    assert np.all(angles < 4.0 * errors)


def test_a_model_with_known_parameters_needs_no_rows() -> None:
    model = PlainGaussian()
    model.set_moments(MEAN, COVARIANCE)
    model.precision_ = np.linalg.inv(COVARIANCE)
    assert model.is_fitted
    assert_allclose(model.standardising_basis @ model.standardising_basis.T, COVARIANCE)
    X = MEAN + np.eye(3)
    assert_allclose(model.score(X, 3), Gaussian(MEAN, COVARIANCE).score(X, 3), atol=1e-12)


def test_a_model_without_scores_says_so(rng: np.random.Generator) -> None:
    class Nothing(InputModel):
        def log_density(self, X: ArrayLike) -> FloatArray:
            return np.zeros(len(np.asarray(X)))

    model = Nothing().fit(rng.standard_normal((20, 2)))
    with pytest.raises(TypeError, match="Nothing must define `score`, or `contract` instead"):
        model.score(np.zeros((2, 2)), 1)
    with pytest.raises(ValueError, match=r"Nothing\(\) must be fitted before its scores are used"):
        _ = Nothing().standardising_basis
