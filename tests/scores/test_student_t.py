"""Scores of the multivariate t."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from moment_init.scores import Gaussian, StudentT, stein_check
from tests.population import FloatArray
from tests.scores.oracles import assert_contractions, assert_moments, assert_recursion

MEAN = np.array([1.0, -2.0, 0.5])
SCALE = np.array([[2.0, 0.9, -0.4], [0.9, 1.0, 0.2], [-0.4, 0.2, 0.5]])
DEGREES = 6.0


def known() -> StudentT:
    return StudentT(MEAN, SCALE, DEGREES)


def draw(rng: np.random.Generator, n_obs: int) -> FloatArray:
    radii = np.sqrt(DEGREES / rng.chisquare(DEGREES, (n_obs, 1)))
    return MEAN + radii * (rng.standard_normal((n_obs, 3)) @ np.linalg.cholesky(SCALE).T)


def test_scores_are_those_of_the_papers_recursion(rng: np.random.Generator) -> None:
    assert_recursion(known(), draw(rng, 3), rng)


def test_contractions(rng: np.random.Generator) -> None:
    assert_contractions(known(), draw(rng, 40), rng)


def test_log_density_is_scipys(rng: np.random.Generator) -> None:
    X = draw(rng, 20)
    expected = stats.multivariate_t(MEAN, SCALE, DEGREES).logpdf(X)
    assert_allclose(known().log_density(X), expected, rtol=1e-10)


def test_scores_of_one_column_by_hand() -> None:
    """p = (1 + x^2/3)^-2 up to a constant: p' = -(4x/3) p / (1 + x^2/3), at 1 S_1 = 1.

    p'' = p (x^2 24/9 / (1 + x^2/3)^2 - (4/3) / (1 + x^2/3)), at 1 S_2 = 3/2 - 1.
    """
    model = StudentT([0.0], [[1.0]], 3.0)
    assert_allclose(model.score([[1.0]], 1).ravel(), 1.0)
    assert_allclose(model.score([[1.0]], 2).ravel(), 0.5)


def test_many_degrees_are_the_gaussian(rng: np.random.Generator) -> None:
    X = draw(rng, 10)
    for order in (1, 2, 3):
        expected = Gaussian(MEAN, SCALE).score(X, order)
        actual = StudentT(MEAN, SCALE, 1e9).score(X, order)
        assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_moments_are_those_of_draws(rng: np.random.Generator) -> None:
    assert_moments(known(), draw(rng, 50_000))


def test_fit_recovers_the_parameters(rng: np.random.Generator) -> None:
    """Errors of a t: about sqrt(S_jj / n) for the mean; five per cent for the degrees at n."""
    n_obs = 20_000
    model = StudentT().fit(draw(rng, n_obs))
    assert np.all(np.abs(model.mean_ - MEAN) < 5.0 * np.sqrt(np.diag(SCALE) / n_obs))
    # Profile information of the degrees from the fit itself, by second differences.
    X = draw(np.random.default_rng(1), n_obs)
    values = [
        StudentT(MEAN, SCALE, np.exp(np.log(DEGREES) + step)).log_density(X).sum()
        for step in (-0.1, 0.0, 0.1)
    ]
    error = 1.0 / np.sqrt((2.0 * values[1] - values[0] - values[2]) / 0.1**2)
    # Twice: mean and scale are fitted too, which takes information away.
    assert abs(np.log(model.degrees_of_freedom_ / DEGREES)) < 5.0 * 2.0 * error
    assert model.n_iter_ < 50
    assert stein_check(model, draw(rng, 5_000), random_seed=0).status == "passed"


def test_fit_is_a_stationary_point(rng: np.random.Generator) -> None:
    X = draw(rng, 2_000)
    model = StudentT().fit(X)
    top = model.log_density(X).sum()
    for scale, degrees in ((1.02, 1.0), (0.98, 1.0), (1.0, 1.1), (1.0, 0.9)):
        other = StudentT(model.mean_, model.scale_ * scale, model.degrees_of_freedom_ * degrees)
        assert other.log_density(X).sum() < top


def test_what_is_given_is_kept(rng: np.random.Generator) -> None:
    X = draw(rng, 500)
    model = StudentT(degrees_of_freedom=4.0).fit(X)
    assert model.degrees_of_freedom_ == 4.0
    model = StudentT(mean=MEAN).fit(X)
    assert_allclose(model.mean_, MEAN, rtol=1e-12)
    model = StudentT(scale=SCALE).fit(X)
    assert_allclose(model.scale_, SCALE, rtol=1e-10)


def test_gaussian_rows_reach_the_upper_bound(rng: np.random.Generator) -> None:
    """At 200 degrees the t is a Gaussian for our purposes; half of all data sets end there."""
    assert StudentT().fit(rng.standard_normal((5_000, 3))).degrees_of_freedom_ > 30.0


def test_heavy_rows_reach_the_lower_bound(rng: np.random.Generator) -> None:
    X = rng.standard_cauchy((2_000, 2))
    assert StudentT().fit(X).degrees_of_freedom_ == 2.05


def test_weights_are_repetitions(rng: np.random.Generator) -> None:
    X, counts = draw(rng, 500), rng.integers(1, 4, 500)
    weighted = StudentT().fit(X, sample_weight=counts)
    repeated = StudentT().fit(np.repeat(X, counts, axis=0))
    assert_allclose(weighted.scale_, repeated.scale_, rtol=1e-2)


def test_few_rows_are_shrunk(rng: np.random.Generator) -> None:
    X = rng.standard_normal((12, 10))
    model = StudentT().fit(X)
    assert 0.0 < model.shrinkage_ <= 1.0
    assert np.all(np.isfinite(model.score(X, 3)))


def test_repr() -> None:
    assert repr(StudentT()) == "StudentT()"
    model = known()
    model.require_n_features(3)
    assert repr(model) == "StudentT(degrees_of_freedom=6)"


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match="`degrees_of_freedom` must be finite and above 2"):
        StudentT(MEAN, SCALE, 2.0).score(MEAN[None], 1)
    with pytest.raises(ValueError, match=r"StudentT\(\) must be fitted before its scores are used"):
        StudentT(MEAN, SCALE).score(MEAN[None], 1)
    with pytest.raises(ValueError, match=r"`covariance` must have shape \(3, 3\)"):
        StudentT(MEAN, np.eye(2), 5.0).score(MEAN[None], 1)
