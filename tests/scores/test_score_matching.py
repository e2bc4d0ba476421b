"""A Gaussian times a smooth factor, fitted by score matching."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.scores import Gaussian, ScoreMatching, stein_check
from tests.population import FloatArray
from tests.scores.oracles import assert_contractions, assert_recursion
from tests.scores.test_gaussian_mixture import draw as draw_clusters
from tests.scores.test_gaussian_mixture import known as clusters


def fitted(rng: np.random.Generator, n_obs: int = 3_000) -> ScoreMatching:
    return ScoreMatching(30, random_seed=0).fit(draw_clusters(rng, n_obs))


def skewed(rng: np.random.Generator, n_obs: int) -> FloatArray:
    """Two correlated columns, one of them skewed: sums of a Gamma(8) and normals."""
    noise = rng.standard_normal((n_obs, 2))
    return np.column_stack([rng.standard_gamma(8.0, n_obs) + noise[:, 0], noise.sum(axis=1)])


def test_scores_are_those_of_the_papers_recursion(rng: np.random.Generator) -> None:
    assert_recursion(fitted(rng), draw_clusters(rng, 3), rng)


def test_contractions(rng: np.random.Generator) -> None:
    assert_contractions(fitted(rng), draw_clusters(rng, 40), rng)


def test_loss_is_score_matching_and_the_solve_its_minimum(rng: np.random.Generator) -> None:
    """J(theta) = E[|s|^2 / 2 + tr H] is quadratic: its gradient vanishes at a penalty of zero."""
    X = draw_clusters(rng, 400)
    model = ScoreMatching(0, penalty=0.0, random_seed=0).fit(X)
    basis = model.standardising_basis

    def loss(coefficients: FloatArray) -> float:
        model.coefficients_ = coefficients
        first, second = model.score(X, 1, basis), model.score(X, 2, basis)
        squares = np.square(first).sum(axis=1)
        return float(np.mean(0.5 * squares + np.einsum("nii->n", second) - squares))

    best = model.coefficients_.copy()
    least = loss(best)
    for _ in range(5):
        step = 0.01 * rng.standard_normal(len(best))
        assert loss(best + step) > least
        assert_allclose(loss(best + step), loss(best - step), rtol=1e-6)


def test_the_density_is_normalised(rng: np.random.Generator) -> None:
    """The integral over a grid of whitened coordinates in two dimensions is one."""
    model = ScoreMatching(30, random_seed=0).fit(skewed(rng, 3_000))
    grid = np.linspace(-7.0, 7.0, 281)
    points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    X = model.mean_ + points @ model.standardising_basis.T
    volume = (grid[1] - grid[0]) ** 2 * np.prod(np.diag(model.standardising_basis))
    assert_allclose(np.exp(model.log_density(X)).sum() * volume, 1.0, rtol=0.01)


def test_scores_of_clusters_are_nearer_than_the_gaussians(rng: np.random.Generator) -> None:
    """The Gaussian leaves more than half of the score unexplained; this less than a fifth."""
    X, held = draw_clusters(rng, 10_000), draw_clusters(rng, 2_000)
    true = clusters().score(held, 1)

    def error(scores: FloatArray) -> float:
        return float(np.mean(np.square(scores - true)) / np.mean(np.square(true)))

    assert error(ScoreMatching(random_seed=0).fit(X).score(held, 1)) < 0.2
    assert error(Gaussian().fit(X).score(held, 1)) > 0.3


def test_skewed_columns_pass_steins_identities(rng: np.random.Generator) -> None:
    X = skewed(rng, 10_000)
    check = stein_check(ScoreMatching(random_seed=0).fit(X), skewed(rng, 5_000), random_seed=0)
    assert check.status == "passed"
    gaussian = stein_check(Gaussian().fit(X), skewed(rng, 5_000), random_seed=0)
    assert next(each.name for each in gaussian.identities if not each.passed) == "E[x S_2] = 0"


def test_gaussian_rows_get_hardly_any_factor(rng: np.random.Generator) -> None:
    model = ScoreMatching(random_seed=0).fit(rng.standard_normal((3_000, 2)))
    X = rng.standard_normal((500, 2))
    difference = model.score(X, 1) - Gaussian(model.mean_, np.cov(X.T)).score(X, 1)
    assert np.mean(np.square(difference)) < 0.05


def test_a_factor_that_helps_nothing_is_dropped(rng: np.random.Generator) -> None:
    """Some of ten Gaussian samples have every held-out loss above the Gaussian's."""
    models = [
        ScoreMatching(5, random_seed=seed).fit(rng.standard_normal((200, 2))) for seed in range(10)
    ]
    dropped = [model for model in models if np.isinf(model.penalty_)]
    assert all(not model.coefficients_.any() for model in dropped)
    assert dropped


def test_same_seed_same_bits(rng: np.random.Generator) -> None:
    X = draw_clusters(rng, 300)
    first, second = (ScoreMatching(random_seed=3).fit(X).coefficients_ for _ in range(2))
    assert np.array_equal(first, second)


def test_repr_and_bad_input(rng: np.random.Generator) -> None:
    assert repr(ScoreMatching()) == "ScoreMatching()"
    assert repr(fitted(rng, 200)) == "ScoreMatching(n_functions=66)"
    with pytest.raises(ValueError, match="`n_random` and `penalty` must not be negative; got -1"):
        ScoreMatching(-1).fit(draw_clusters(rng, 20))
    with pytest.raises(ValueError, match=r"ScoreMatching\(\) must be fitted"):
        ScoreMatching().score(np.zeros((2, 2)), 1)
