"""The paper's estimator on exact moments, with the explicit tensor and without it."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import match_components
from moment_init.moments.paper.cross_moments import RowScores, cross_moment, subtract_quadratic
from moment_init.moments.paper.decomposition import decompose_tensor
from moment_init.moments.paper.recovery import fit_third_moment
from moment_init.scores import Gaussian
from tests.population import FloatArray, PopulationMixture, exact_rows, gaussian_grid, unit_columns

WIDE = 25  # more than twice the number of slices: the tensor is not formed


def linear_mixture(n_features: int) -> PopulationMixture:
    directions = unit_columns(np.array([[1.0, 0.3, -0.2], [0.2, 1.0, 0.5], [-0.4, 0.3, 1.0]]))
    return PopulationMixture(
        family=get_family("gaussian"),
        directions=np.vstack([directions, np.zeros((n_features - 3, 3))]),
        scales=np.array([1.0, 0.7, 1.3]),
        biases=np.array([0.5, -0.5, 0.2]),
        weights=np.array([0.3, 0.5, 0.2]),
    )


def wide_grid(n_features: int) -> tuple[FloatArray, FloatArray]:
    """Weighted rows with the Gaussian moments that a signal in three columns calls for.

    Three columns are a Gauss-Hermite grid, exact up to degree 7. The others, independent of them,
    are plus and minus sqrt(m) e_k: mean zero, unit covariance, no third moments.
    """
    grid, weights = gaussian_grid(3, 4)
    if n_features == 3:
        return grid, weights
    n_others = n_features - 3
    cross = np.sqrt(n_others) * np.vstack([np.eye(n_others), -np.eye(n_others)])
    X = np.hstack([np.repeat(grid, len(cross), axis=0), np.tile(cross, (len(grid), 1))])
    return X, np.repeat(weights, len(cross)) / len(cross)


def cubed_rows(mixture: PopulationMixture, rotation: FloatArray) -> tuple[FloatArray, RowScores]:
    """Rows with the exact moments of y^3, rotated so that no direction is an axis."""
    n_features = len(rotation)
    rows = exact_rows(mixture, *wide_grid(n_features))
    model = Gaussian(np.zeros(n_features), np.eye(n_features))
    scores = RowScores(rows.X @ rotation.T, model, rows.sample_weight, np.eye(n_features))
    return rows.y**3, scores


def standard_scores(X: FloatArray) -> RowScores:
    """Score functions of rows from N(0, I)."""
    n_obs, n_features = X.shape
    identity = np.eye(n_features)
    return RowScores(X, Gaussian(np.zeros(n_features), identity), np.ones(n_obs), identity)


@pytest.mark.parametrize("method", ["power", "tensorly"])
@pytest.mark.parametrize("n_features", [3, WIDE])
def test_exact_moments_give_directions_and_coefficients(
    n_features: int, method: Literal["power", "tensorly"], rng: np.random.Generator
) -> None:
    """Lemma 6: lambda_j = 6 w_j s_j^3; by the explicit tensor and by slices and fibres."""
    mixture = linear_mixture(n_features)
    rotation = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
    fit = fit_third_moment(*cubed_rows(mixture, rotation), 3, rng, method=method).decomposition
    truth = rotation @ mixture.directions
    # Coefficients come with either sign; y^3 makes all of them positive along u_j.
    signs = np.sign(fit.coefficients)
    index = match_components(fit.directions * signs, truth, signed=True)
    assert_allclose((fit.directions * signs)[:, index], truth, atol=1e-8)
    expected = 6.0 * mixture.weights * mixture.scales**3
    assert_allclose(np.abs(fit.coefficients[index]), expected, rtol=1e-8)
    assert fit.is_definite


def test_slices_find_what_the_explicit_tensor_gives(rng: np.random.Generator) -> None:
    rotation = np.linalg.qr(rng.standard_normal((WIDE, WIDE)))[0]
    response, scores = cubed_rows(linear_mixture(WIDE), rotation)
    sliced = fit_third_moment(response, scores, 3, rng).decomposition
    residual, _ = subtract_quadratic(response, scores)
    explicit = decompose_tensor(cross_moment(residual, scores), 3, rng)
    index = match_components(sliced.directions, explicit.directions)
    cosines = np.sum(sliced.directions[:, index] * explicit.directions, axis=0)
    assert_allclose(np.abs(cosines), 1.0, rtol=1e-10)
    assert_allclose(np.abs(sliced.coefficients[index]), np.abs(explicit.coefficients), rtol=1e-8)


def test_standard_errors_are_those_of_repeated_samples() -> None:
    """The spread of the coefficients over 40 samples against the mean of their standard errors.

    A standard deviation from 40 values is off by 11 %; four times that is allowed.
    """
    coefficients, errors = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((4000, 3))
        response = X[:, 0] ** 3 - 0.8 * X[:, 1] ** 3 + 0.3 * rng.standard_normal(4000)
        fit = fit_third_moment(response, standard_scores(X), 2, rng)
        coefficients.append(np.abs(fit.decomposition.coefficients))
        errors.append(fit.errors)
    spread, claimed = np.std(coefficients, axis=0), np.mean(errors, axis=0)
    assert_allclose(claimed, spread, rtol=0.45)


def test_recovery_from_samples(rng: np.random.Generator) -> None:
    """Coefficients 6 and -4.8 of two cubes, in standard errors; the tolerance is five of them."""
    n_obs = 50_000
    X = rng.standard_normal((n_obs, 4))
    response = X[:, 0] ** 3 - 0.8 * X[:, 1] ** 3
    fit = fit_third_moment(response, standard_scores(X), 2, rng)
    signs = np.sign(fit.decomposition.directions[[0, 1], [0, 1]])
    measured = fit.decomposition.coefficients * signs
    assert np.all(np.abs(measured - [6.0, -4.8]) < 5.0 * fit.errors)
    assert np.all(fit.errors < 0.5)


def test_weights_of_rows_count(rng: np.random.Generator) -> None:
    """Rows of zero weight may hold anything."""
    response, scores = cubed_rows(linear_mixture(3), np.eye(3))
    junk = replace(
        scores,
        X=np.vstack([scores.X, rng.standard_normal((50, 3))]),
        weights=np.concatenate([scores.weights, np.zeros(50)]),
    )
    more = np.concatenate([response, rng.standard_normal(50) * 100.0])
    plain = fit_third_moment(response, scores, 3, np.random.default_rng(1)).decomposition
    mixed = fit_third_moment(more, junk, 3, np.random.default_rng(1)).decomposition
    assert_allclose(np.abs(mixed.coefficients), np.abs(plain.coefficients), rtol=1e-8)


@pytest.mark.parametrize("n_features", [3, WIDE])
def test_same_seed_same_bits(n_features: int, seed: int, rng: np.random.Generator) -> None:
    rotation = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
    rows = cubed_rows(linear_mixture(n_features), rotation)
    first, again = (
        fit_third_moment(*rows, 3, np.random.default_rng(seed)).decomposition for _ in range(2)
    )
    assert first.directions.tobytes() == again.directions.tobytes()
    assert first.coefficients.tobytes() == again.coefficients.tobytes()
