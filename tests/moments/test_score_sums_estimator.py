"""The stacked estimate under densities other than the Gaussian, and parameters that are settled."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

from moment_init.data.checking import validate_data
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import angles_in_degrees, match_components
from moment_init.moments.polish import all_rows
from moment_init.moments.score_sums import fit_along_directions, score_estimate
from moment_init.moments.stacked import StackedFit
from moment_init.moments.stacked_result import low_order_moments
from moment_init.scores import Gaussian, GaussianMixture
from moment_init.scores.choosing import EstimationProblem, pose_problem
from tests.population import FloatArray

MEANS = np.array([[4.0, 0.0, 0.0], [-2.0, 3.0, 0.0], [-1.0, -2.0, 3.0]])
SHARES = np.array([0.5, 0.3, 0.2])
COEFFICIENTS = np.array([[1.5, -0.5], [0.5, 1.5], [-1.0, 1.0]])
BIASES = np.array([0.5, -1.0])


def clusters(n_obs: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Gaussian clusters, and a mixture of linear regressions with noise .5 on them."""
    X = MEANS[rng.choice(3, n_obs, p=SHARES)] + rng.standard_normal((n_obs, 3))
    labels = (rng.random(n_obs) < 0.4).astype(int)
    means = (X @ COEFFICIENTS + BIASES)[np.arange(n_obs), labels]
    return X, means + 0.5 * rng.standard_normal(n_obs)


def fit_under(
    X: FloatArray, y: FloatArray, density: Gaussian | GaussianMixture, family: str
) -> tuple[EstimationProblem, StackedFit]:
    data = validate_data(X, y, family=family)
    frame = Gaussian().fit_rows(X, data.sample_weight, data.feature_names)
    problem = pose_problem(data, frame)
    low_orders = low_order_moments(problem, n_rows=None).low_orders
    return problem, score_estimate(problem, density, low_orders, 2, np.random.default_rng(0))


def test_directions_under_the_true_density(rng: np.random.Generator) -> None:
    """The jackknife's own errors say how near the truth is; three of them hold in all but .3 %."""
    X, y = clusters(20_000, rng)
    density = GaussianMixture(
        weights=SHARES, means=MEANS, covariances=np.broadcast_to(np.eye(3), (3, 3, 3))
    )
    problem, fit = fit_under(X, y, density, "gaussian")
    truth, true_biases = problem.coordinates.coefficients_to_standardised(COEFFICIENTS, BIASES)
    order = match_components(fit.candidates[0].coefficients, truth, signed=True)
    own = fit.candidates[0].coefficients[:, order]
    angles = np.radians(angles_in_degrees(own, truth, signed=True))
    spread = fit.replicates[:, :, order]
    unit = spread / np.linalg.norm(spread, axis=1, keepdims=True)
    deviation = np.square(unit - unit.mean(axis=0)).sum(axis=(0, 1)) * 15.0 / 16.0
    assert np.all(angles < 3.0 * np.sqrt(deviation) + 0.01)
    assert angles.max() < 0.2
    # Scales and weights come from the likelihood along directions that are off by the angles.
    assert_allclose(np.linalg.norm(own, axis=0), np.linalg.norm(truth, axis=0), rtol=0.1)
    assert_allclose(fit.candidates[0].weights[order], [0.6, 0.4], atol=0.05)
    # Settled on 5,000 rows, some 2,000 a component with Fisher information near .1: s.e. about .07.
    assert_allclose(fit.candidates[0].biases[order], true_biases, atol=0.2)


def test_a_gaussian_density_takes_this_way_too(rng: np.random.Generator) -> None:
    """Signs are those of the truth, whatever the decomposition made of them."""
    X = rng.standard_normal((30_000, 4))
    coefficients = np.array([[3.0, 0.0], [0.0, -3.0], [1.0, 1.0], [0.0, 0.5]])
    labels = rng.integers(2, size=len(X))
    eta = (X @ coefficients + np.array([0.5, -0.5]))[np.arange(len(X)), labels]
    y = (rng.random(len(X)) < expit(eta)).astype(float)
    density = Gaussian(np.zeros(4), np.eye(4))
    problem, fit = fit_under(X, y, density, "bernoulli")
    slopes, _ = problem.coordinates.coefficients_to_user(
        fit.candidates[0].coefficients, fit.candidates[0].biases
    )
    # Third moments of binary rows at this n: directions within some ten degrees.
    assert angles_in_degrees(slopes, coefficients, signed=True).max() < 20.0
    assert fit.n_moments == 2 * 3 * (1 + 2) // 2
    assert len(fit.misfits) >= len(fit.candidates)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "gaussian"])
def test_settled_parameters_are_a_maximum_along_the_directions(
    family: str, rng: np.random.Generator
) -> None:
    """A climb with all parameters free from there gains; one with directions held does not."""
    X = rng.standard_normal((4_000, 2))
    directions = np.array([[1.0, 0.0], [0.0, 1.0]])
    eta = np.where(rng.random(4_000) < 0.5, 1.2 * X[:, 0] + 0.3, 1.2 * X[:, 1] - 0.3)
    y = {
        "bernoulli": (rng.random(4_000) < expit(3.0 * eta)).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "gaussian": eta + 0.3 * rng.standard_normal(4_000),
    }[family]
    data = validate_data(X, y, family=family)
    problem = pose_problem(data, Gaussian(np.zeros(2), np.eye(2)).fit(X))
    rows = all_rows(problem).sample(4_000, rng)
    mean = float(problem.response.mean())
    end = fit_along_directions(data.single_family, rows, directions, mean)
    unit = end.parameters.coefficients / np.linalg.norm(end.parameters.coefficients, axis=0)
    assert_allclose(np.abs(unit), directions, atol=1e-9)
    free = maximise(data.family, rows, end.parameters)
    assert free.log_likelihood >= end.log_likelihood - 1e-6
    # A direction in two dimensions is one parameter: two of them gain a chi-square of two.
    assert free.log_likelihood - end.log_likelihood < 12.0
    turned = fit_along_directions(data.single_family, rows, -directions, mean)
    assert turned.log_likelihood == pytest.approx(end.log_likelihood, abs=0.5)


def test_offsets_enter_what_is_settled(rng: np.random.Generator) -> None:
    X = rng.standard_normal((3_000, 2))
    offset = rng.standard_normal(3_000)
    y = rng.poisson(np.exp(X[:, 0] + offset)).astype(float)
    data = validate_data(X, y, family="poisson", offset=offset)
    problem = pose_problem(data, Gaussian(np.zeros(2), np.eye(2)).fit(X))
    rows = all_rows(problem).sample(3_000, rng)
    end = fit_along_directions(
        data.single_family, rows, np.array([[1.0], [0.0]]), float(problem.response.mean())
    )
    # The information of a slope of a poisson regression is at least n here.
    assert end.parameters.coefficients[0, 0] == pytest.approx(1.0, abs=4.0 / np.sqrt(3_000))
    without = fit_along_directions(
        data.single_family, replace(rows, offset=None), np.array([[1.0], [0.0]]), float(y.mean())
    )
    assert without.log_likelihood < end.log_likelihood - 100.0
