"""Scores of mixtures of Gaussians."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from moment_init.scores import Gaussian, GaussianMixture, stein_check
from tests.population import FloatArray
from tests.scores.oracles import assert_contractions, assert_moments, assert_recursion

WEIGHTS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([[0.0, 0.0, 1.0], [3.0, -1.0, 0.0], [-2.0, 2.0, -1.0]])
COVARIANCES = np.array(
    [
        [[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 0.6]],
        np.diag([0.5, 1.0, 1.5]),
        [[0.7, 0.0, -0.2], [0.0, 1.0, 0.0], [-0.2, 0.0, 0.9]],
    ]
)


def known() -> GaussianMixture:
    return GaussianMixture(weights=WEIGHTS, means=MEANS, covariances=COVARIANCES)


def draw(rng: np.random.Generator, n_obs: int) -> FloatArray:
    labels = rng.choice(3, n_obs, p=WEIGHTS)
    factors = np.linalg.cholesky(COVARIANCES)
    noise = rng.standard_normal((n_obs, 3))
    return np.asarray(MEANS[labels] + np.einsum("nab,nb->na", factors[labels], noise))


def test_scores_are_those_of_the_papers_recursion(rng: np.random.Generator) -> None:
    assert_recursion(known(), draw(rng, 3), rng)


def test_contractions(rng: np.random.Generator) -> None:
    assert_contractions(known(), draw(rng, 40), rng)


def test_log_density_is_scipys(rng: np.random.Generator) -> None:
    X = draw(rng, 20)
    parts = [
        weight * stats.multivariate_normal(mean, covariance).pdf(X)
        for weight, mean, covariance in zip(WEIGHTS, MEANS, COVARIANCES, strict=True)
    ]
    assert_allclose(known().log_density(X), np.log(np.sum(parts, axis=0)), rtol=1e-10)


def test_moments_are_those_of_draws(rng: np.random.Generator) -> None:
    assert_moments(known(), draw(rng, 50_000))


def test_one_part_is_the_gaussian(rng: np.random.Generator) -> None:
    X = draw(rng, 10)
    one = GaussianMixture(weights=[1.0], means=MEANS[:1], covariances=COVARIANCES[:1])
    gaussian = Gaussian(MEANS[0], COVARIANCES[0])
    for order in (1, 2, 3):
        assert_allclose(one.score(X, order), gaussian.score(X, order), rtol=1e-10, atol=1e-10)


def test_fit_recovers_clusters_and_their_number(rng: np.random.Generator) -> None:
    """Means within five standard errors of a cluster's mean, sqrt(S_jj / (n w_k))."""
    n_obs = 20_000
    model = GaussianMixture(random_seed=0).fit(draw(rng, n_obs))
    assert len(model.weights_) == 3
    assert int(np.argmin(model.bic_)) == 2
    order = np.argsort(model.weights_)[::-1]
    # Clusters overlap a little, which costs information: twice the error of labelled rows.
    errors = 2.0 * np.sqrt(np.diagonal(COVARIANCES, axis1=1, axis2=2) / (n_obs * WEIGHTS[:, None]))
    assert np.all(np.abs(model.means_[order] - MEANS) < 5.0 * errors)
    assert stein_check(model, draw(rng, 5_000), random_seed=0).status == "passed"


def test_weights_are_repetitions(rng: np.random.Generator) -> None:
    X, counts = draw(rng, 3_000), rng.integers(0, 4, 3_000)
    weighted = GaussianMixture(3, random_seed=0).fit(X, sample_weight=counts)
    repeated = GaussianMixture(3, random_seed=0).fit(np.repeat(X, counts, axis=0))
    held = draw(rng, 500)
    difference = weighted.log_density(held) - repeated.log_density(held)
    # EM stops a little before the maximum, from starts of its own.
    assert abs(difference.mean()) < 0.01


def test_same_seed_same_bits(rng: np.random.Generator) -> None:
    X = draw(rng, 500)
    first, second = (GaussianMixture(2, random_seed=3).fit(X).means_ for _ in range(2))
    assert np.array_equal(first, second)


def test_given_parameters_are_kept_at_fit(rng: np.random.Generator) -> None:
    model = known().fit(draw(rng, 50))
    assert np.array_equal(model.means_, MEANS)
    assert model.n_fitted_ == np.inf


def test_repr() -> None:
    assert repr(GaussianMixture()) == "GaussianMixture()"
    assert repr(GaussianMixture(4)) == "GaussianMixture(4)"
    model = known()
    model.require_n_features(3)
    assert repr(model) == "GaussianMixture(n_parts=3)"


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"weights": [0.5, 0.4, 0.2]}, "`weights` must be non-negative and sum to one"),
        ({"means": MEANS[:2]}, r"`means` must have shape \(3, n_features\)"),
        ({"covariances": COVARIANCES[:2]}, r"`covariances` must have shape \(3, 3, 3\)"),
        ({"covariances": -COVARIANCES}, "symmetric with a positive diagonal"),
        ({"covariances": None}, "must be fitted before its scores are used"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], match: str) -> None:
    given: dict[str, Any] = {"weights": WEIGHTS, "means": MEANS, "covariances": COVARIANCES}
    with pytest.raises(ValueError, match=match):
        GaussianMixture(**(given | parameters)).score(MEANS, 1)


def test_bad_numbers(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="`n_parts` must be a whole number from 1"):
        GaussianMixture(0).fit(draw(rng, 20))
    with pytest.raises(ValueError, match="`X` must have more rows than the mixture has parts"):
        GaussianMixture(20).fit(draw(rng, 20))
    with pytest.raises(ValueError, match=r"`input_model` must have as many features as `X` \(2\)"):
        known().require_n_features(2)
