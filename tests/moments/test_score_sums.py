"""Moments with the scores of any density: sums by hand, control variates, the span."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.data.blocks import N_PARTS
from moment_init.data.checking import validate_data
from moment_init.moments.score_sums import (
    PartSums,
    ScoreRows,
    fit_control_variates,
    score_moments,
    score_pieces,
)
from moment_init.moments.stacked_result import low_order_moments
from moment_init.scores import Gaussian, GaussianMixture
from moment_init.scores.choosing import EstimationProblem, pose_problem
from tests.population import FloatArray

N_OBS, N_FEATURES = 4_000, 3


def pose(X: FloatArray, y: FloatArray, family: str = "bernoulli") -> EstimationProblem:
    data = validate_data(X, y, family=family)
    return pose_problem(data, Gaussian().fit_rows(X, data.sample_weight, data.feature_names))


def score_rows(problem: EstimationProblem) -> ScoreRows:
    low_orders = low_order_moments(problem, n_rows=None).low_orders
    identity = np.eye(problem.data.n_features)
    return ScoreRows(low_orders.rows, problem.input_model, low_orders.part_weights, identity)


@pytest.fixture
def problem(rng: np.random.Generator) -> EstimationProblem:
    X = rng.standard_normal((N_OBS, N_FEATURES)) @ np.array([[2.0, 0.5, 0], [0, 1, 0], [0, 0, 0.1]])
    y = (rng.random(N_OBS) < 1.0 / (1.0 + np.exp(-X[:, 0] + 2.0 * X[:, 1]))).astype(float)
    return pose(X + 3.0, y)


def whitened(rows: ScoreRows) -> FloatArray:
    return rows.rows.whiten(rows.rows.inputs(slice(None)).T).T


def test_part_sums_by_hand() -> None:
    """Means 1, 2, 6 of parts of weight 1, 1, 2: the mean is 15/4, without the last part 3/2.

    The variance of the mean of three equal parts' means about 15/4 is their mean square over two.
    """
    sums = PartSums(np.array([[1.0], [2.0], [12.0]]), np.array([1.0, 1.0, 2.0]))
    assert_allclose(sums.mean(), [3.75])
    assert_allclose(sums.mean(left_out=2), [1.5])
    expected = np.mean(np.square(np.array([1.0, 2.0, 6.0]) - 3.75)) / 2.0
    assert sums.variance == pytest.approx(expected)


def test_moments_of_a_gaussian_are_hermite_tensors(problem: EstimationProblem) -> None:
    rows = score_rows(problem)
    z, values = whitened(rows), rows.rows.function_values(slice(None))
    identity = np.eye(N_FEATURES)
    squares = np.einsum("nf,na,nb->fab", values, z, z) / N_OBS
    second = squares - values.mean(axis=0)[:, None, None] * identity
    found = rows.moments(identity, 2, rows.rows.function_values)
    assert found.sums.shape == (N_PARTS, 1, N_FEATURES, N_FEATURES)
    assert_allclose(found.mean(), second, atol=1e-12)
    cubes = np.einsum("nf,na,nb,nc->fabc", values, z, z, z) / N_OBS
    first = np.einsum("nf,na->fa", values, z) / N_OBS
    found = rows.moments(identity, 1, rows.rows.function_values)
    assert_allclose(found.mean(), first, atol=1e-12)
    for term in ("fa,bc->fabc", "fb,ac->fabc", "fc,ab->fabc"):
        cubes -= np.einsum(term, first, identity)
    third = rows.moments(identity, 3, rows.rows.function_values)
    assert_allclose(third.mean(), cubes, atol=1e-12)
    slices = rows.slices(identity[:, 1:], rows.rows.function_values)
    assert_allclose(slices.mean(), np.moveaxis(cubes[0], 2, 0)[1:], atol=1e-12)


def test_many_functions_share_one_evaluation(rng: np.random.Generator) -> None:
    """Several functions of a count are summed at once, and one by one beyond a size: the same."""
    X = rng.standard_normal((2_000, 4))
    problem = pose(X, rng.poisson(np.exp(0.5 * X[:, 0])).astype(float), "poisson")
    rows = score_rows(problem)
    assert rows.rows.n_functions > 2
    together = rows.moments(np.eye(4), 2, rows.rows.function_values).mean()
    for place in range(rows.rows.n_functions):

        def function(block: slice, place: int = place) -> FloatArray:
            return rows.rows.function_values(block)[:, [place]]

        assert_allclose(together[place], rows.moments(np.eye(4), 2, function).mean()[0], atol=1e-12)


def test_control_variates_leave_nothing_that_is_quadratic(problem: EstimationProblem) -> None:
    rows = score_rows(problem).rows
    z = whitened(score_rows(problem))
    residuals = fit_control_variates(rows, np.eye(N_FEATURES)).residuals(slice(None))
    pairs = [z[:, a] * z[:, b] for a in range(N_FEATURES) for b in range(a, N_FEATURES)]
    polynomials = np.column_stack([np.ones(N_OBS), z, *pairs])
    assert_allclose(polynomials.T @ residuals / N_OBS, 0.0, atol=1e-10)
    linear = fit_control_variates(rows, np.zeros((N_FEATURES, 0))).residuals(slice(None))
    assert_allclose(polynomials[:, :4].T @ linear / N_OBS, 0.0, atol=1e-10)
    # The response is no quadratic, and what was taken out was not nothing.
    assert residuals.var() < 0.9 * rows.function_values(slice(None)).var()


@pytest.mark.parametrize("n_features", [5, 10])
def test_span_of_the_components(n_features: int, rng: np.random.Generator) -> None:
    """Few features form the whole third order, many its slices; both find the span.

    The largest angle of an estimated span is about sqrt(d / n) over the signal, some .05 here.
    """
    n_obs = 20_000
    X = rng.standard_normal((n_obs, n_features))
    coefficients = np.zeros((n_features, 2))
    coefficients[:2] = [[2.0, 1.0], [1.0, -2.0]]
    labels = rng.integers(2, size=n_obs)
    y = (X @ coefficients)[np.arange(n_obs), labels] + 0.3 * rng.standard_normal(n_obs)
    moments = score_moments([score_rows(pose(X, y, "gaussian"))], 2)
    cosines = np.linalg.svd(moments.subspace[:2], compute_uv=False)
    assert cosines.min() > 0.99
    assert moments.spectrum[1] > 2.0 > moments.spectrum[2]
    assert (moments.pieces[0].inner is None) == (n_features == 5)
    for part in (0, 7):
        assert np.linalg.svd(moments.span(left_out=part)[:2], compute_uv=False).min() > 0.98


def test_noise_has_no_span(rng: np.random.Generator) -> None:
    """Eigenvalues of noise alone stay near the edge: 1.6 allows for heavy tails of third orders."""
    X, y = rng.standard_normal((8_000, 5)), (rng.random(8_000) < 0.4).astype(float)
    moments = score_moments([score_rows(pose(X, y))], 2)
    assert moments.spectrum[0] < 1.6


def clusters(rng: np.random.Generator) -> tuple[GaussianMixture, FloatArray]:
    """Two clusters of different shapes, six deviations apart along the first column."""
    weights, means = np.array([0.3, 0.7]), np.array([[-3.0, 0.0], [3.0, 1.0]])
    covariances = np.array([np.diag([1.0, 4.0]), [[1.0, 0.5], [0.5, 1.0]]])
    labels = rng.choice(2, 20_000, p=weights)
    factors = np.linalg.cholesky(covariances)
    noise = np.einsum("nab,nb->na", factors[labels], rng.standard_normal((20_000, 2)))
    X = means[labels] + noise
    return GaussianMixture(weights=weights, means=means, covariances=covariances).fit(X), X


def test_moments_of_pieces_are_derivatives_in_each(rng: np.random.Generator) -> None:
    """E[gamma_k f S_2^(k)] = pi_k E_k[D^2 f]: for f = sin(v'x) minus its pi_k E_k[sin] v v'."""
    density, X = clusters(rng)
    v = np.array([0.5, -0.4])
    problem = pose(X, (rng.random(len(X)) < 0.5).astype(float))
    low_orders = low_order_moments(problem, n_rows=None).low_orders
    rows = low_orders.rows
    values = np.sin(rows.inputs(slice(None)) @ v + rows.mean @ v)
    pieces = score_pieces(rows, density, low_orders.part_weights)
    assert len(pieces) == 2
    for k, piece in enumerate(pieces):
        found = piece.moments(np.eye(2), 2, lambda block: values[block, None])
        mean, covariance = density.means_[k], density.covariances_[k]
        average = np.sin(v @ mean) * np.exp(-0.5 * v @ covariance @ v)
        seen = piece.frame.T @ rows.factor.T @ v
        expected = -density.weights_[k] * average * np.outer(seen, seen)
        assert_allclose(found.mean()[0], expected, atol=4.0 * np.sqrt(found.variance))


def test_frame_makes_the_noise_even(rng: np.random.Generator) -> None:
    """In the frame the first score has the identity as its variance, summed over pieces."""
    density, X = clusters(rng)
    problem = pose(X, (rng.random(len(X)) < 0.5).astype(float))
    low_orders = low_order_moments(problem, n_rows=None).low_orders
    pieces = score_pieces(low_orders.rows, density, low_orders.part_weights)
    variance = np.zeros((2, 2))
    for piece in pieces:
        basis = piece.rows.factor @ piece.frame
        scores = piece.density.contract(basis).score(np.asarray(piece.rows.X), 1)
        variance += (scores.T * piece.rows.weights) @ scores / len(X)
    # Found on a quarter of the rows: a mean square of normal variables is off by sqrt(2 / 5,000).
    assert_allclose(variance, np.eye(2), atol=4.0 * np.sqrt(2.0 / 5_000))
    u = rng.standard_normal((2, 3))
    assert_allclose(pieces[0].to_whitened(pieces[0].frame.T @ u), u, atol=1e-12)


def test_pieces_with_hardly_any_rows_are_left_out(rng: np.random.Generator) -> None:
    X = rng.standard_normal((2_000, 2))
    density = GaussianMixture(
        weights=[0.999, 0.001], means=[[0.0, 0.0], [50.0, 0.0]], covariances=[np.eye(2)] * 2
    )
    problem = pose(X, (rng.random(len(X)) < 0.5).astype(float))
    low_orders = low_order_moments(problem, n_rows=None).low_orders
    assert len(score_pieces(low_orders.rows, density, low_orders.part_weights)) == 1
