"""Scores of known features of the input."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from moment_init.scores import Gaussian, Independent, LogDensity, StudentT, Transformed, stein_check
from tests.bayesian_models import MODE
from tests.population import FloatArray
from tests.scores.oracles import assert_contractions

MEAN = np.array([0.5, -0.2])
COVARIANCE = np.array([[0.30, 0.10], [0.10, 0.20]])


def log_normal(X: Any) -> Any:
    """Log-density of exp(t), t Gaussian: the change of variables back gives the Gaussian."""
    centred = pt.log(X) - MEAN
    quadratic = ((centred @ np.linalg.inv(COVARIANCE)) * centred).sum(axis=1)
    return -0.5 * quadratic - pt.log(X).sum(axis=1)


def draw(rng: np.random.Generator, n_obs: int) -> FloatArray:
    return np.exp(rng.multivariate_normal(MEAN, COVARIANCE, n_obs))


def rotate(X: FloatArray) -> FloatArray:
    """A map that mixes columns: t = (log x_0 + log x_1, log x_1)."""
    return np.column_stack([np.log(X).sum(axis=1), np.log(X[:, 1])])


def rotate_back(t: Any) -> Any:
    return pt.exp(pt.stack([t[:, 0] - t[:, 1], t[:, 1]], axis=1))


@pytest.mark.parametrize("is_columnwise", [True, False])
def test_change_of_variables_of_a_lognormal_is_the_gaussian(
    is_columnwise: bool, rng: np.random.Generator
) -> None:
    X = draw(rng, 200)
    model = Transformed(
        np.log, LogDensity(log_normal, mode=MODE), inverse=pt.exp, is_columnwise=is_columnwise
    ).fit(X)
    expected = Gaussian(MEAN, COVARIANCE)
    for order in (1, 2, 3):
        assert_allclose(
            model.score(X[:5], order), expected.score(np.log(X[:5]), order), rtol=0, atol=1e-8
        )
    constants = model.log_density(X) - expected.log_density(np.log(X))
    assert_allclose(constants, constants[0], atol=1e-9)
    assert not model.is_normalised


def test_change_of_variables_that_mixes_columns(rng: np.random.Generator) -> None:
    X = draw(rng, 200)
    model = Transformed(rotate, LogDensity(log_normal, mode=MODE), inverse=rotate_back).fit(X)
    A = np.array([[1.0, 1.0], [0.0, 1.0]])
    expected = Gaussian(A @ MEAN, A @ COVARIANCE @ A.T)
    for order in (1, 2, 3):
        assert_allclose(
            model.score(X[:5], order), expected.score(rotate(X[:5]), order), rtol=0, atol=1e-8
        )


def test_a_density_fitted_to_features(rng: np.random.Generator) -> None:
    X = draw(rng, 2_000)
    model = Transformed(np.log).fit(X)
    expected = Gaussian().fit(np.log(X))
    assert_allclose(model.score(X, 3), expected.score(np.log(X), 3))
    assert_allclose(model.log_density(X), expected.log_density(np.log(X)))
    assert_allclose(model.whiten(X), expected.whiten(np.log(X)))
    assert (model.n_fitted_, model.highest_order, model.is_normalised) == (2_000.0, 3, True)
    assert_contractions(model, X[:30], rng)
    assert stein_check(model, draw(rng, 2_000), random_seed=0).status == "passed"
    plain = Gaussian().fit(draw(rng, 10_000))
    assert stein_check(plain, draw(rng, 10_000), random_seed=0).status == "failed"


def test_features_may_be_of_another_number(rng: np.random.Generator) -> None:
    X = rng.standard_normal((500, 2))

    def widen(rows: FloatArray) -> FloatArray:
        return np.column_stack([rows, rows[:, 0] * rows[:, 1], np.sin(rows[:, 0])])

    template = StudentT()
    model = Transformed(widen, template).fit(X)
    assert model.score(X[:3], 2).shape == (3, 4, 4)
    assert not template.is_fitted
    assert repr(model) == "Transformed(widen, StudentT())"


def test_a_fitted_density_is_used_as_it_is(rng: np.random.Generator) -> None:
    X = draw(rng, 300)
    fitted = Independent(families="normal").fit(np.log(X))
    assert Transformed(np.log, fitted).fit(draw(rng, 50)).model_ is fitted


def test_bad_input(rng: np.random.Generator) -> None:
    X = draw(rng, 50)
    with pytest.raises(TypeError, match="`model` must be a LogDensity of x when `inverse`"):
        Transformed(np.log, Gaussian(), inverse=pt.exp).fit(X)
    with pytest.raises(ValueError, match=r"`phi` must give one row for each row of `X` \(50\)"):
        Transformed(lambda rows: rows[:-1]).fit(X)
    with pytest.raises(ValueError, match=r"`phi\(X\)` must be finite"):
        Transformed(lambda rows: np.where(rows > 1.0, rows, np.nan)).fit(X)
    with pytest.raises(ValueError, match=r"Transformed\(\) must be fitted"):
        Transformed(np.log).score(X, 1)
