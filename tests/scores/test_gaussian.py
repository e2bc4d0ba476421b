"""Scores of the Gaussian input: derivatives of the density, Stein's identities, contractions."""

from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.polynomial import chebyshev
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from moment_init.scores import Contraction, Gaussian
from tests.population import FloatArray

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[2.0, 0.9, -0.4], [0.9, 1.0, 0.2], [-0.4, 0.2, 0.5]])

# Of m comparisons about 6e-7 m lie beyond five standard errors by chance.
STANDARD_ERRORS = 5.0


def known() -> Gaussian:
    return Gaussian(MEAN, COVARIANCE)


def draw(rng: np.random.Generator, n_obs: int) -> FloatArray:
    return rng.multivariate_normal(MEAN, COVARIANCE, n_obs)


def assert_mean(terms: FloatArray, expected: Any) -> None:
    """The mean over rows is the expected one within the standard errors of each entry."""
    error = terms.std(axis=0) / np.sqrt(len(terms))
    assert np.all(np.abs(terms.mean(axis=0) - expected) <= STANDARD_ERRORS * error + 1e-12)


# --- by hand -------------------------------------------------------------------------------------


def test_standard_normal_scores_are_hermite_polynomials() -> None:
    """In one dimension S_1 = x, S_2 = x^2 - 1, S_3 = x^3 - 3 x: at 2 they are 2, 3 and 2."""
    model = Gaussian([0.0], [[1.0]])
    values = [model.score([[2.0]], order).ravel()[0] for order in (1, 2, 3)]
    assert_allclose(values, [2.0, 3.0, 2.0], rtol=1e-15)


def test_third_score_of_two_columns_by_hand() -> None:
    """At (1, 2) under N(0, I): 1 - 3 = -2, 1 * 2 - 2 = 0, 1 * 4 - 1 = 3 and 8 - 6 = 2."""
    score = Gaussian([0.0, 0.0], np.eye(2)).score([[1.0, 2.0]], 3)[0]
    assert_allclose(score, [[[-2.0, 0.0], [0.0, 3.0]], [[0.0, 3.0], [3.0, 2.0]]], atol=1e-14)


def test_log_density_is_scipys(rng: np.random.Generator) -> None:
    X = draw(rng, 20)
    expected = stats.multivariate_normal(MEAN, COVARIANCE).logpdf(X)
    assert_allclose(known().log_density(X), expected, rtol=1e-12)


# --- identities ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3])
def test_scores_are_derivatives_of_the_density(order: int, rng: np.random.Generator) -> None:
    """S_m(v, ..., v) = (-1)^m (d/dt)^m p(x + t v) / p(x) at t = 0, for more v than unknowns.

    The ratio is interpolated at 24 Chebyshev points of [-1, 1], where it is an entire function.
    """
    model = known()
    t = chebyshev.chebpts1(24)
    for x in draw(rng, 5):
        score = model.score(x[None], order)[0]
        for v in 0.4 * rng.standard_normal((12, 3)) @ model.standardising_basis.T:
            line = np.exp(model.log_density(x + t[:, None] * v) - model.log_density(x[None]))
            polynomial = chebyshev.Chebyshev.fit(t, line, 23, domain=[-1, 1])
            derivative = (-1) ** order * polynomial.deriv(order)(0.0)
            contracted = score
            for _ in range(order):
                contracted = contracted @ v
            scale = np.abs(score).max()
            assert_allclose(contracted, derivative, rtol=1e-6, atol=1e-6 * scale)


def test_scores_are_symmetric_tensors(rng: np.random.Generator) -> None:
    score = known().score(draw(rng, 4), 3)
    for order in permutations((1, 2, 3)):
        assert_allclose(score.transpose(0, *order), score, rtol=1e-10, atol=1e-10)


def test_steins_identities(rng: np.random.Generator) -> None:
    """E[S_1] = 0, E[S_1 x'] = I, E[S_2] = 0, E[x S_2] = 0, E[S_3] = 0, E[x S_3] = 0."""
    model, X = known(), draw(rng, 200_000)
    first, second, third = (model.score(X, order) for order in (1, 2, 3))
    assert_mean(first, 0.0)
    assert_mean(np.einsum("ni,nj->nij", first, X), np.eye(3))
    assert_mean(second, 0.0)
    assert_mean(np.einsum("ni,njk->nijk", X, second), 0.0)
    assert_mean(third, 0.0)
    assert_mean(np.einsum("ni,njkl->nijkl", X[:50_000], third[:50_000]), 0.0)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_expected_derivatives_of_an_asymmetric_function(
    order: int, rng: np.random.Generator
) -> None:
    """E[f S_m] = E[D^m f] for f = exp(a'x): a^m exp(a'mu + a'Sigma a / 2), contracted with L.

    Zero is more than ten standard errors away.
    """
    L = known().standardising_basis
    along = np.array([0.9, -0.4, 0.5])  # L'a
    a = np.linalg.solve(L.T, along)
    X = draw(rng, 200_000)
    scores = known().score(X, order, basis=L)
    terms = scores * np.exp(X @ a).reshape(-1, *[1] * order)
    expected = np.exp(a @ MEAN + a @ COVARIANCE @ a / 2.0) * np.ones(())
    for _ in range(order):
        expected = np.multiply.outer(expected, along)
    assert_mean(terms, expected)
    error = terms.std(axis=0) / np.sqrt(len(X))
    assert np.abs(expected / error).max() > 2.0 * STANDARD_ERRORS


def test_fitted_scores_satisfy_the_moments_they_were_fitted_to(rng: np.random.Generator) -> None:
    X = draw(rng, 1000)
    model = Gaussian().fit(X)
    first = model.score(X, 1)
    assert_allclose(first.mean(axis=0), 0.0, atol=1e-10)
    assert_allclose(first.T @ X / len(X), np.eye(3), atol=1e-10)
    assert_allclose(model.score(X, 2).mean(axis=0), 0.0, atol=1e-10)


def test_affine_maps_of_the_input(rng: np.random.Generator) -> None:
    """If x = A z + c, then S_3 of x contracted with A is S_3 of z."""
    z = rng.standard_normal((6, 3))
    A = np.linalg.cholesky(COVARIANCE)
    standard = Gaussian(np.zeros(3), np.eye(3)).score(z, 3)
    assert_allclose(known().score(z @ A.T + MEAN, 3, basis=A), standard, rtol=0, atol=1e-10)


def test_standardising_basis_factors_the_covariance() -> None:
    basis = known().standardising_basis
    assert_allclose(basis @ basis.T, COVARIANCE, rtol=1e-14)
    assert_array_equal(basis, np.tril(basis))


# --- contractions --------------------------------------------------------------------------------


def naive(scores: FloatArray, weights: FloatArray) -> FloatArray:
    return np.tensordot(weights, scores, axes=1)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_contractions_equal_the_explicit_tensors(width: int, rng: np.random.Generator) -> None:
    model, X = known(), draw(rng, 50)
    weights = rng.standard_normal(50)
    B = rng.standard_normal((3, width))
    thetas = rng.standard_normal((width, 4))
    third = model.score(X, 3)
    contracted = np.einsum("nabc,ai,bj,ck->nijk", third, B, B, B)
    contraction = model.contract(B)

    def close(actual: FloatArray, expected: FloatArray) -> None:
        assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())

    close(contraction.score(X, 1), model.score(X, 1) @ B)
    close(contraction.score(X, 2), np.einsum("nab,ai,bj->nij", model.score(X, 2), B, B))
    close(contraction.score(X, 3), contracted)
    for order in (1, 2, 3):
        close(contraction.sum_score(X, weights, order), naive(contraction.score(X, order), weights))
    for order, total in enumerate(contraction.sum_low_orders(X, weights), start=1):
        close(total, contraction.sum_score(X, weights, order))
    close(
        contraction.sum_slices(X, weights, thetas),
        np.einsum("n,nijk,kl->lij", weights, contracted, thetas),
    )
    close(
        contraction.sum_fibres(X, weights, thetas),
        np.einsum("n,nijk,jl,kl->il", weights, contracted, thetas, thetas),
    )
    diagonal = np.arange(width)
    close(contraction.powers(X, 1), contraction.score(X, 1))
    close(contraction.powers(X, 2), contraction.score(X, 2)[:, diagonal, diagonal])
    close(contraction.powers(X, 3), contracted[:, diagonal, diagonal, diagonal])


def test_default_low_orders_of_a_contraction(rng: np.random.Generator) -> None:
    """What an input model inherits when it has no faster way."""
    X, weights = draw(rng, 10), rng.standard_normal(10)
    contraction = known().contract(np.eye(3))
    inherited = Contraction.sum_low_orders(contraction, X, weights)
    for slow, fast in zip(inherited, contraction.sum_low_orders(X, weights), strict=True):
        assert_allclose(slow, fast, rtol=1e-12, atol=1e-12)


# --- fitting -------------------------------------------------------------------------------------


def test_fit_recovers_the_parameters(rng: np.random.Generator) -> None:
    """Standard errors: sqrt(S_ii / n) and sqrt((S_ii S_jj + S_ij^2) / n)."""
    n_obs = 50_000
    model = Gaussian().fit(draw(rng, n_obs))
    variances = np.diag(COVARIANCE)
    mean_error = np.sqrt(variances / n_obs)
    covariance_error = np.sqrt((np.outer(variances, variances) + COVARIANCE**2) / n_obs)
    assert np.all(np.abs(model.mean_ - MEAN) <= STANDARD_ERRORS * mean_error)
    assert np.all(np.abs(model.covariance_ - COVARIANCE) <= STANDARD_ERRORS * covariance_error)
    assert model.shrinkage_ == 0.0


def test_fit_returns_itself_and_keeps_what_was_given(rng: np.random.Generator) -> None:
    X = draw(rng, 400)
    model = Gaussian(mean=MEAN)
    assert model.fit(X) is model
    assert_array_equal(model.mean_, MEAN)
    assert_allclose(model.covariance_, np.cov(X.T, bias=True), rtol=1e-10)
    model = Gaussian(covariance=COVARIANCE).fit(X)
    assert_allclose(model.covariance_, COVARIANCE, rtol=1e-14)
    assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-12)


def test_fit_with_weights_is_fit_to_repeated_rows(rng: np.random.Generator) -> None:
    X, counts = draw(rng, 300), rng.integers(1, 4, 300)
    weighted = Gaussian().fit(X, sample_weight=counts)
    repeated = Gaussian().fit(np.repeat(X, counts, axis=0))
    assert_allclose(weighted.mean_, repeated.mean_, rtol=1e-10)
    assert_allclose(weighted.covariance_, repeated.covariance_, rtol=1e-10)


def test_few_rows_are_shrunk_and_still_give_scores(rng: np.random.Generator) -> None:
    X = rng.standard_normal((12, 10))
    model = Gaussian().fit(X)
    assert 0.0 < model.shrinkage_ <= 1.0
    assert np.all(np.isfinite(model.score(X, 3)))


def test_repr_says_what_is_given() -> None:
    assert repr(Gaussian()) == "Gaussian()"
    assert repr(Gaussian(mean=MEAN)) == "Gaussian(given: mean)"
    assert repr(known()) == "Gaussian(given: mean, covariance)"


# --- bad input -----------------------------------------------------------------------------------


def test_an_unfitted_model_says_so() -> None:
    with pytest.raises(ValueError, match=r"must be fitted before its scores are used.*Call `fit"):
        Gaussian(mean=MEAN).score(np.zeros((2, 3)), 1)


@pytest.mark.parametrize("order", [0, 4, "2"])
def test_bad_order(order: Any) -> None:
    with pytest.raises(ValueError, match="`order` must be 1, 2 or 3; got"):
        known().score(np.zeros((2, 3)), order)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"mean": [0.0, 1.0]}, r"`mean` must have shape \(3,\) to match `X`; got \(2,\)"),
        ({"covariance": np.eye(2)}, r"`covariance` must have shape \(3, 3\) .* got \(2, 2\)"),
        ({"covariance": np.triu(np.ones((3, 3)))}, "symmetric with a positive diagonal"),
        ({"covariance": -np.eye(3)}, "symmetric with a positive diagonal"),
        ({"covariance": np.ones((3, 3))}, "positive definite; got a correlation matrix with"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], match: str, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=match):
        Gaussian(**parameters).fit(draw(rng, 100))


def test_bad_parameters_without_rows() -> None:
    with pytest.raises(ValueError, match="`covariance` must have shape"):
        Gaussian([0.0], np.eye(2)).score([[0.0]], 1)


def test_constant_and_collinear_columns_are_named(rng: np.random.Generator) -> None:
    frame = pd.DataFrame(draw(rng, 100), columns=["a", "b", "c"])
    with pytest.raises(ValueError, match="constant columns; got 'level'"):
        Gaussian().fit(frame.assign(level=3.0))
    with pytest.raises(ValueError, match="relation among 'a', 'b', 'sum'"):
        Gaussian().fit(frame.assign(sum=frame["a"] + frame["b"]))


def test_bad_rows_and_weights(rng: np.random.Generator) -> None:
    X = draw(rng, 50)
    with pytest.raises(ValueError, match="`X` must be two-dimensional"):
        Gaussian().fit(X[:, 0])
    with pytest.raises(ValueError, match="`sample_weight` must have shape"):
        Gaussian().fit(X, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="`sample_weight` must be non-negative"):
        Gaussian().fit(X, sample_weight=-np.ones(50))
    with pytest.raises(ValueError, match="`X` must be finite"):
        Gaussian().fit(np.where(X > 0, X, np.nan))


def test_defaults_of_a_contraction_agree_with_its_own_methods(rng: np.random.Generator) -> None:
    """An input model may offer less: the sums are then put together from `sum_score`."""
    contraction = Gaussian(np.zeros(3), np.eye(3)).contract(np.eye(3))
    X, weights = rng.standard_normal((50, 3)), rng.standard_normal(50)
    first, second = Contraction.sum_low_orders(contraction, X, weights)
    own_first, own_second = contraction.sum_low_orders(X, weights)
    assert_allclose(first, own_first, rtol=1e-12)
    assert_allclose(second, own_second, rtol=1e-12)
    third = Contraction.sum_score(contraction, X, weights, 3)
    assert_allclose(third, contraction.sum_score(X, weights, 3), rtol=1e-10, atol=1e-12)
