"""The paper step by step through the public names alone, and `estimate` beside it."""

from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import chi2
from tensorly.decomposition import parafac

from moment_init import (
    angles_in_degrees,
    estimate,
    match_components,
    paper,
    simulate_mixture,
)
from moment_init.moments.paper import decomposition
from moment_init.scores import Gaussian, StudentT
from tests.population import (
    FAMILY_LINKS,
    FloatArray,
    PopulationMixture,
    cubes_tensor,
    random_mixture,
    unit_columns,
)
from tests.sampled import moment_coefficients


def recover(tensor: FloatArray, n_components: int, rng: np.random.Generator) -> FloatArray:
    """Procedures 2 and 3, Algorithm 4 and the map back, one function after another."""
    span, _ = paper.leading_subspace(tensor, n_components)
    core = paper.multilinear(tensor, span)
    theta, is_definite = paper.definite_slice(core, rng)
    assert is_definite
    whitened = paper.whiten(core, theta, n_components)
    starts = [paper.svd_start(whitened.tensor, rng) for _ in range(10 * n_components)]
    fibres = paper.tensor_fibres(whitened.tensor)
    reached = paper.power_rounds(fibres, np.column_stack(starts), 30)
    vectors = paper.cluster_vectors(fibres, reached)
    if vectors.shape[1] < n_components:  # some starts missed a component
        vectors = paper.robust_power_method(whitened.tensor, n_components, rng).vectors
    return unit_columns(span @ whitened.unwhitening_matrix @ vectors)


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_steps_recover_exact_moments(family: str, link: str, rng: np.random.Generator) -> None:
    """Directions, signs, coefficients and weights of population tensors, to 1e-8."""
    for _ in range(3):
        mixture = random_mixture(family, link, 6, 3, rng)
        tensor = mixture.third_moment()
        directions = recover(tensor, 3, rng)
        third, residual = paper.symmetric_coefficients(tensor, directions)
        first, _ = paper.symmetric_coefficients(mixture.first_moment(), directions)
        resolved = mixture.family
        is_positive = resolved.response_power or resolved.link.third_derivative_sign == 1
        signs = paper.choose_signs(first, third, is_third_positive=is_positive)
        index = match_components(directions * signs, mixture.directions, signed=True)
        assert residual < 1e-8
        assert_allclose((directions * signs)[:, index], mixture.directions, atol=1e-8)
        expected = paper.expected_coefficients(
            mixture.scales, mixture.biases, family=family, link=link
        )
        coefficients = np.stack([first * signs, third * signs])[:, index]
        weights = paper.recover_weights(coefficients[1:], expected[2:])
        assert_allclose(weights, mixture.weights, rtol=1e-6)
        assert_allclose(coefficients[1], mixture.moment_coefficients(3), rtol=1e-6)


def standard_mixture(rng: np.random.Generator, n_features: int) -> PopulationMixture:
    """Two logistic regressions of clear but unequal third moments."""
    mixture = random_mixture("bernoulli", "logit", n_features, 2, rng)
    return PopulationMixture(
        mixture.family,
        np.linalg.qr(mixture.directions)[0],
        scales=np.array([3.0, 4.0]),
        biases=np.array([0.3, -0.2]),
        weights=np.array([0.6, 0.4]),
    )


def test_steps_on_samples_in_standard_errors(rng: np.random.Generator) -> None:
    """lambda_j and the weights within five standard errors, and directions within their noise.

    The error of u_j across u_j is E(u_j, u_j, .) / lambda_j; a row's S_3 has variance 2 there and 6
    along (u, u, u): each of the d - 1 coordinates has 1 / sqrt(3) of the relative error of
    lambda_j. The quantile is exceeded with probability 1e-6, and doubled, as y varies with x.
    """
    n_features = 4
    mixture = standard_mixture(rng, n_features)
    data = simulate_mixture(
        100_000,
        n_features,
        2,
        family="bernoulli",
        directions=mixture.directions,
        scales=mixture.scales,
        biases=mixture.biases,
        weights=mixture.weights,
        random_seed=rng,
    )
    scores = paper.row_scores(data.X, Gaussian(np.zeros(n_features), np.eye(n_features)))
    fit = paper.fit_third_moment(data.y, scores, 2, rng)
    directions, third = fit.decomposition.directions, fit.decomposition.coefficients
    first, _ = paper.symmetric_coefficients(fit.first_moment, directions)
    signs = paper.choose_signs(first, third, is_third_positive=False)
    index = match_components(directions * signs, mixture.directions, signed=True)
    expected = mixture.moment_coefficients(3)
    errors = fit.errors[index]
    measured = (third * signs)[index]
    assert np.all(np.abs(measured - expected) < 5.0 * errors)
    assert np.all(np.abs(expected) > 10.0 * errors)
    unit = paper.expected_coefficients(mixture.scales, mixture.biases)[2]
    weights = paper.recover_weights(measured[None], unit[None])
    assert np.all(np.abs(weights - mixture.weights) < 5.0 * errors / np.abs(unit))
    noise = np.sqrt(chi2.isf(1e-6, n_features - 1) / 3.0) * errors / np.abs(expected)
    distances = np.linalg.norm((directions * signs)[:, index] - mixture.directions, axis=0)
    assert np.all(distances < 2.0 * noise)
    edge = paper.noise_edge(fit.noise_variance, n_features)
    assert np.sum(fit.decomposition.singular_values > 1.2 * edge) == 2


def test_the_spectrum_counts_the_components(rng: np.random.Generator) -> None:
    tensor = cubes_tensor(np.array([2.0, -1.0, 0.5]), unit_columns(rng.standard_normal((7, 3))))
    _, spectrum = paper.leading_subspace(tensor, 3)
    assert np.sum(spectrum > 1e-10 * spectrum[0]) == 3


def test_a_random_slice_fails_where_the_definite_one_works(rng: np.random.Generator) -> None:
    """Procedure 2 to the letter: a random theta is definite up to sign with probability 1/4."""
    directions = unit_columns(np.eye(3) + 0.4)
    tensor = cubes_tensor(np.array([1.0, 1.2, 0.9]), directions)
    definite = [
        paper.whiten(tensor, theta, 3).is_definite for theta in rng.standard_normal((200, 3))
    ]
    assert np.mean(definite) < 0.5
    found = recover(tensor, 3, rng)
    index = match_components(found, directions)
    cosines = np.abs(np.sum(found[:, index] * directions, axis=0))
    assert_allclose(cosines, 1.0, atol=1e-12)


def test_a_score_of_ones_own_recovers_what_a_gaussian_does_not(rng: np.random.Generator) -> None:
    """Student's t with eight degrees of freedom: the gradient alone is given, M_3 by Eq. (10).

    The tolerance is five standard errors of the angle, from the spread of the terms y S_3(u, u, v).
    """
    degrees, n_obs = 8.0, 40_000
    X = rng.standard_normal((n_obs, 2)) / np.sqrt(rng.chisquare(degrees, (n_obs, 1)) / degrees)
    y = X[:, 0] + 0.5 * X[:, 0] ** 3

    def gradient(rows: FloatArray) -> FloatArray:
        squares = np.sum(rows**2, axis=1, keepdims=True)
        return np.asarray(-(degrees + 2.0) * rows / (degrees + squares))

    S_3 = paper.score_function(X, 3, gradient)
    tensor = paper.cross_moment(y - y.mean(), S_3)
    # M_3 = E[y'''] = 3 along e_1^3 and zero elsewhere.
    terms = (y - y.mean())[:, None, None, None] * S_3
    errors = terms.std(axis=0) / np.sqrt(n_obs)
    expected = np.zeros((2, 2, 2))
    expected[0, 0, 0] = 3.0
    assert np.all(np.abs(tensor - expected) < 5.0 * errors)
    assert np.all(errors < 0.6)
    gaussian = paper.cross_moment(y - y.mean(), paper.score_function(X, 3, Gaussian().fit(X)))
    assert abs(gaussian[0, 0, 0] - 3.0) > 1.0


# --- estimate calls the same steps ---------------------------------------------------------------


@pytest.mark.parametrize("method", ["power", "tensorly"])
@pytest.mark.parametrize("n_features", [4, 24])
def test_estimate_follows_what_tensorly_returns(
    n_features: int, method: Literal["power", "tensorly"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another `parafac` in its place, the directions are others; also in the factor form."""
    mixture = standard_mixture(np.random.default_rng(1), n_features)
    data = simulate_mixture(
        200_000 if n_features > 4 else 50_000,
        n_features,
        2,
        family="gaussian",
        directions=mixture.directions,
        scales=[1.0, 1.5],
        random_seed=1,
    )
    call = partial(
        estimate, data.X, data.y, 2, family="gaussian", input_model="gaussian", random_seed=1
    )
    plain = call(method=method)
    assert angles_in_degrees(plain.directions, data.directions, signed=True).max() < 20.0
    angle = np.radians(30.0)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    def turned_parafac(tensor: FloatArray, **settings: Any) -> tuple[FloatArray, list[FloatArray]]:
        assert tensor.shape == (2, 2, 2)  # the projected tensor, whatever the number of features
        _, factors = parafac(tensor, **settings)
        return np.ones(2), [turn @ np.asarray(factors[1])] * 3

    monkeypatch.setattr(decomposition, "parafac", turned_parafac)
    turned = call(method=method)
    angles = np.degrees(np.arccos(np.abs(turned.directions.T @ plain.directions)))
    assert_allclose(angles.min(axis=0), 30.0, atol=2.0)  # the covariance of X is that of a sample


def test_estimate_equals_the_steps() -> None:
    """With N(0, I) known, the third-moment fit by hand is that of `estimate`, bit for bit."""
    data = simulate_mixture(20_000, 3, 2, family="bernoulli", scales=3.0, random_seed=2)
    density = Gaussian(np.zeros(3), np.eye(3))
    result = estimate(
        data.X, data.y, 2, input_model=density, method="power", random_seed=np.random.default_rng(3)
    )
    rng = np.random.default_rng(3)
    rng.spawn(1)  # the choice of the input model
    centred = data.y - data.y.mean()
    fit = paper.fit_third_moment(centred, paper.row_scores(data.X, density), 2, rng).decomposition
    index = match_components(fit.directions, result.directions)
    signs = np.sign(np.sum(fit.directions[:, index] * result.directions, axis=0))
    assert_allclose(fit.directions[:, index] * signs, result.directions, atol=1e-12)
    assert_allclose(fit.coefficients[index] * signs, moment_coefficients(result), rtol=1e-12)


@pytest.mark.parametrize("method", ["power", "tensorly"])
def test_estimate_is_consistent_under_heavy_tails(method: Literal["power", "tensorly"]) -> None:
    """Student's t with five degrees of freedom: within 6 degrees with 200,000 rows.

    The errors are about 2 degrees; control variates in terms of the scores left 50 and more.
    """
    rng = np.random.default_rng(5)
    X = rng.standard_normal((200_000, 4)) / np.sqrt(rng.chisquare(5.0, (200_000, 1)) / 5.0)
    directions = unit_columns(rng.standard_normal((4, 2)))
    labels = rng.integers(2, size=len(X))
    predictors = 3.0 * (X @ directions)[np.arange(len(X)), labels] + np.array([0.3, -0.4])[labels]
    y = (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-predictors))).astype(np.float64)
    result = estimate(X, y, 2, input_model=StudentT(), method=method, random_seed=1)
    assert angles_in_degrees(result.directions, directions, signed=True).max() < 6.0
