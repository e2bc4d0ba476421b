"""The stacked estimate end to end: recovery from samples, bits, standard errors, odd shapes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tensorly.decomposition import parafac

from moment_init.checks import IdentifiabilityError
from moment_init.data.simulation import simulate_mixture
from moment_init.likelihood.parameters import angles_in_degrees, match_components
from moment_init.moments.stacked import (
    StackedFit,
    fit_stacked,
    low_order_moments,
    single_mixture,
)
from moment_init.scores.choosing import EstimationProblem
from tests.moments.problems import pose
from tests.population import FloatArray

DIRECTIONS = np.linalg.qr(np.random.default_rng(5).standard_normal((5, 2)))[0]


@dataclass(frozen=True)
class Recovered:
    """The best candidate in the user's units, components in the order of the truth."""

    fit: StackedFit
    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None


def estimate_from(
    X: FloatArray, y: FloatArray, truth: FloatArray, rng_seed: int = 0, **keywords: Any
) -> Recovered:
    problem = pose(X, y, **keywords)
    rng = np.random.default_rng(rng_seed)
    fit = fit_stacked(problem, truth.shape[1], rng, is_polished=False)
    best, coordinates = single_mixture(fit.candidates[0]), problem.coordinates
    slopes, biases = coordinates.coefficients_to_user(best.coefficients, best.biases)
    order = match_components(slopes, truth, signed=True)
    spread = best.dispersion
    return Recovered(
        fit,
        slopes[:, order],
        biases[order],
        best.weights[order],
        None if spread is None else spread[order] * coordinates.response_scale,
    )


@pytest.mark.parametrize(
    ("family", "degrees", "scale_error", "bias_error", "weight_error", "log_dispersion_error"),
    [
        ("bernoulli", 1.3, 0.085, 0.052, 0.009, 0.0),
        ("binomial", 0.46, 0.005, 0.008, 0.0025, 0.0),
        ("poisson", 1.4, 0.010, 0.013, 0.003, 0.0),
        ("gaussian", 0.39, 0.0025, 0.0025, 0.0025, 0.052),
        ("gamma", 0.47, 0.006, 0.005, 0.003, 0.025),
        ("negative_binomial", 1.6, 0.018, 0.018, 0.008, 0.115),
    ],
)
def test_recovery_from_samples(
    family: str,
    degrees: float,
    scale_error: float,
    bias_error: float,
    weight_error: float,
    log_dispersion_error: float,
    seed: int,
) -> None:
    """160,000 correlated rows off the origin, two components, signs included.

    The parameters are root mean squares, over 20 or more other data sets and rounded up, of the
    error of the worse of the two components; the test allows four times as much. A
    wrong sign is off by 180 degrees, swapped weights by .3.
    """
    truth = simulate_mixture(
        160_000,
        5,
        2,
        family=family,
        directions=DIRECTIONS,
        weights=[0.65, 0.35],
        biases=[0.4, -0.3],
        random_seed=seed,
    )
    # Shifted and mixed columns: the same predictor with other coefficients.
    mixing = np.eye(5) + 0.4 * np.eye(5, k=1)
    location = np.array([2.0, -1.0, 3.0, -2.0, 1.0])
    X = truth.X @ mixing + location
    slopes = np.linalg.solve(mixing, truth.coefficients)
    found = estimate_from(X, truth.y, slopes, family=family, n_trials=truth.n_trials)
    whitened = mixing @ found.coefficients
    assert angles_in_degrees(whitened, DIRECTIONS, signed=True).max() < 4 * degrees
    scales = np.linalg.norm(whitened, axis=0) / truth.scales
    assert np.abs(scales - 1.0).max() < 4 * scale_error
    levels = found.biases + location @ found.coefficients
    assert np.abs(levels - truth.biases).max() < 4 * bias_error
    assert np.abs(found.weights - truth.weights).max() < 4 * weight_error
    if truth.dispersion is not None:
        assert found.dispersion is not None
        ratio = np.log(found.dispersion / truth.dispersion)
        assert np.abs(ratio).max() < 4 * log_dispersion_error


def test_same_seed_same_bits(seed: int) -> None:
    truth = simulate_mixture(25_000, 4, 2, family="poisson", random_seed=seed)
    runs = [
        estimate_from(truth.X, truth.y, truth.directions, 3, family="poisson") for _ in range(2)
    ]
    assert_array_equal(runs[0].coefficients, runs[1].coefficients)
    assert_array_equal(runs[0].biases, runs[1].biases)
    assert runs[0].fit.misfit == runs[1].fit.misfit


def test_low_orders_can_be_used_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = simulate_mixture(5000, 4, 2, family="gaussian", random_seed=seed)
    problem = pose(truth.X, truth.y, "gaussian")
    first = fit_stacked(problem, 2, np.random.default_rng(1), is_polished=True)
    low = low_order_moments(problem)
    monkeypatch.setattr("moment_init.moments.stacked.low_order_moments", None)
    again = fit_stacked(problem, 2, np.random.default_rng(1), is_polished=True, low_orders=low)
    assert_array_equal(first.candidates[0].directions, again.candidates[0].directions)


def test_candidates_are_complete(seed: int) -> None:
    truth = simulate_mixture(4000, 6, 3, family="gaussian", random_seed=seed)
    fit = estimate_from(truth.X, truth.y, truth.directions, family="gaussian").fit
    assert fit.spectrum.shape == (6,)
    assert 0.0 < fit.residual < 1.0
    assert 0.3 < fit.misfit < 3.0
    for candidate in fit.candidates:
        assert candidate.directions.shape == (6, 3)
        assert_allclose(np.linalg.norm(candidate.directions, axis=0), 1.0)
        assert_allclose(candidate.weights.sum(), 1.0)
        assert candidate.dispersion is not None
        assert candidate.dispersion.min() > 0.0


def three_planes(seed: int) -> EstimationProblem:
    """As many components as features, so that the whole space is the subspace."""
    truth = simulate_mixture(6000, 3, 3, family="gaussian", dispersion=0.3, random_seed=seed)
    return pose(truth.X, truth.y, "gaussian")


def test_candidates_turn_with_the_factors_of_tensorly(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = three_planes(seed)
    monkeypatch.setattr("moment_init.moments.stacked.FEW_REFINEMENTS", 0)
    plain = fit_stacked(problem, 3, np.random.default_rng(1), is_polished=True)
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((3, 3)))[0]

    def turned(*arguments: Any, **options: Any) -> Any:
        result = parafac(*arguments, **options)
        result.factors[:2] = [turn @ factor for factor in result.factors[:2]]
        return result

    monkeypatch.setattr("moment_init.moments.tensor.parafac", turned)
    other = fit_stacked(problem, 3, np.random.default_rng(1), is_polished=True)
    expected = [turn @ each.directions for each in plain.candidates]
    found = [each.directions for each in other.candidates]
    assert len(found) == len(expected)
    for directions in found:
        assert min(angles_in_degrees(directions, each).max() for each in expected) < 1e-3


def test_refined_directions_are_a_factor_of_tensorly(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directions that are returned are what one of its calls returned."""
    problem = three_planes(seed)
    returned: list[FloatArray] = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        result = parafac(*arguments, **options)
        if len(result.factors) == 2:  # the first is held
            returned.append(result.factors[1])
        return result

    monkeypatch.setattr("moment_init.moments.tensor.parafac", recorded)
    fit = fit_stacked(problem, 3, np.random.default_rng(1), is_polished=False)
    best = fit.candidates[0].directions
    units = [each / np.linalg.norm(each, axis=0) for each in returned]
    assert any(np.array_equal(best, unit) for unit in units)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "gamma"])
def test_a_single_component(family: str, seed: int) -> None:
    truth = simulate_mixture(10_000, 6, 1, family=family, random_seed=seed)
    found = estimate_from(truth.X, truth.y, truth.directions, family=family)
    assert angles_in_degrees(found.coefficients, truth.directions, signed=True)[0] < 4.0
    assert_allclose(np.linalg.norm(found.coefficients, axis=0), truth.scales, rtol=0.1)
    assert_array_equal(found.weights, [1.0])


def test_as_many_components_as_features(seed: int) -> None:
    truth = simulate_mixture(
        40_000,
        2,
        2,
        family="gaussian",
        directions=np.array([[1.0, 0.6], [0.0, 0.8]]),
        random_seed=seed,
    )
    found = estimate_from(truth.X, truth.y, truth.directions, family="gaussian")
    assert angles_in_degrees(found.coefficients, truth.directions, signed=True).max() < 3.0


def test_one_feature_and_two_components(seed: int) -> None:
    """Two lines of opposite slope: no subspace and no tensor, the fit alone tells them apart."""
    truth = simulate_mixture(
        20_000,
        1,
        2,
        family="gaussian",
        directions=np.array([[1.0, -1.0]]),
        scales=[1.0, 0.6],
        biases=[0.5, -0.5],
        weights=[0.6, 0.4],
        dispersion=0.3,
        random_seed=seed,
    )
    found = estimate_from(truth.X, truth.y, truth.directions, family="gaussian")
    assert_allclose(found.coefficients, truth.coefficients, atol=0.05)
    assert_allclose(found.biases, truth.biases, atol=0.05)
    assert_allclose(found.weights, truth.weights, atol=0.03)


def test_more_components_than_features(seed: int) -> None:
    """Three directions, 50 degrees apart or more, in the plane."""
    angles = np.radians([10.0, 70.0, 130.0])
    directions = np.stack([np.cos(angles), np.sin(angles)])
    truth = simulate_mixture(
        60_000,
        2,
        3,
        family="gaussian",
        directions=directions,
        biases=[0.6, 0.0, -0.6],
        weights=[0.4, 0.35, 0.25],
        dispersion=0.2,
        random_seed=seed,
    )
    found = estimate_from(truth.X, truth.y, truth.directions, family="gaussian")
    assert angles_in_degrees(found.coefficients, directions, signed=True).max() < 5.0


def test_offsets_are_accounted_for(seed: int) -> None:
    """Left out, an offset of deviation .7 would move the biases of counts by .25."""
    rng = np.random.default_rng(seed)
    offset = rng.normal(0.0, 0.7, 40_000)
    truth = simulate_mixture(
        40_000,
        5,
        2,
        family="poisson",
        directions=DIRECTIONS,
        biases=[0.5, -0.2],
        weights=[0.6, 0.4],
        random_seed=seed,
    )
    eta = np.einsum("na,an->n", truth.X, truth.coefficients[:, truth.labels])
    y = rng.poisson(np.exp(eta + truth.biases[truth.labels] + offset)).astype(float)
    found = estimate_from(truth.X, y, truth.directions, family="poisson", offset=offset)
    assert angles_in_degrees(found.coefficients, DIRECTIONS, signed=True).max() < 5.0
    assert np.abs(found.biases - truth.biases).max() < 0.15


def test_rows_without_weight_do_not_count(seed: int) -> None:
    """Half of the rows are turned around and have no weight: their slopes must not be seen."""
    truth = simulate_mixture(
        40_000,
        5,
        2,
        family="gaussian",
        directions=DIRECTIONS,
        weights=[0.6, 0.4],
        random_seed=seed,
    )
    weights = np.arange(40_000) % 2.0
    X = np.where(weights[:, None] > 0, truth.X, -truth.X)
    found = estimate_from(X, truth.y, truth.directions, family="gaussian", sample_weight=weights)
    assert angles_in_degrees(found.coefficients, DIRECTIONS, signed=True).max() < 4.0


def test_many_features(seed: int) -> None:
    """200 features, 8,000 rows: 9 to 11 degrees over eight other data sets."""
    directions = np.linalg.qr(np.random.default_rng(3).standard_normal((200, 2)))[0]
    truth = simulate_mixture(
        8000,
        200,
        2,
        family="gaussian",
        dispersion=0.2,
        weights=[0.6, 0.4],
        biases=[0.4, -0.3],
        directions=directions,
        random_seed=seed,
    )
    found = estimate_from(truth.X, truth.y, truth.directions, family="gaussian")
    assert angles_in_degrees(found.coefficients, truth.directions, signed=True).max() < 14.0


def test_too_few_rows_are_refused(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((12, 1)), rng.standard_normal(12)
    with pytest.raises(ValueError, match="at least 16 rows"):
        estimate_from(X, y, np.ones((1, 1)), family="gaussian")


def test_more_components_than_moments_are_refused(seed: int) -> None:
    truth = simulate_mixture(500, 2, 6, family="bernoulli", random_seed=seed)
    with pytest.raises(IdentifiabilityError, match="got 6 for 2 features"):
        estimate_from(truth.X, truth.y, truth.directions, family="bernoulli")
