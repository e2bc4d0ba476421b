"""Cross-moments: every contracted form equals the naive sum over rows of explicit tensors."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.moments.paper.cross_moments import CrossMoments
from moment_init.moments.paper.power_iteration import power_rounds, tensor_fibres
from moment_init.scores import Gaussian
from tests.population import FloatArray, cubes_tensor, unit_columns

N_FEATURES = 4


def sample_moments(rng: np.random.Generator, n_obs: int = 300) -> CrossMoments:
    """Correlated inputs, a skewed response, unequal weights, the standardising basis."""
    mixing = np.eye(N_FEATURES) + 0.3 * rng.standard_normal((N_FEATURES, N_FEATURES))
    X = rng.standard_normal((n_obs, N_FEATURES)) @ mixing + 1.0
    response = np.exp(0.5 * X[:, 0]) + rng.exponential(1.0, n_obs)
    weights = rng.uniform(0.5, 2.0, n_obs)
    model = Gaussian().fit(X, sample_weight=weights)
    return CrossMoments(X, response, weights, model, model.standardising_basis)


def naive_moment(moments: CrossMoments, order: int) -> FloatArray:
    """Weighted mean of response times explicit score tensor, contracted mode by mode."""
    X = np.asarray(moments.X, dtype=np.float64)
    terms = moments.weights * moments.response / moments.weights.sum()
    tensor = np.tensordot(terms, moments.input_model.score(X, order), axes=1)
    for _ in range(order):
        tensor = np.tensordot(
            tensor, moments.basis, axes=(0, 0)
        )  # each turn moves the next mode up
    return np.asarray(tensor)


def close(actual: FloatArray, expected: FloatArray, size: float | None = None) -> None:
    """Equal to 1e-10 of the largest entry, or of the size of what was contracted."""
    largest = np.abs(expected).max() if size is None else size
    assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * largest)


# --- by hand -------------------------------------------------------------------------------------


def test_two_rows_by_hand() -> None:
    """x = 1 and 2 with y = 3 and 1: M_1 = (3 + 2)/2, M_2 = (0 + 3)/2, M_3 = (3 * -2 + 2)/2."""
    moments = CrossMoments(
        X=np.array([[1.0], [2.0]]),
        response=np.array([3.0, 1.0]),
        weights=np.ones(2),
        input_model=Gaussian([0.0], [[1.0]]),
        basis=np.eye(1),
    )
    assert_allclose(moments.moment(1), [2.5], rtol=1e-15)
    assert_allclose(moments.moment(2), [[1.5]], rtol=1e-15)
    assert_allclose(moments.moment(3), [[[-2.0]]], rtol=1e-15)


# --- contracted forms ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3])
def test_moments_equal_the_naive_sums(order: int, rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    close(moments.moment(order), naive_moment(moments, order))


def test_low_orders_equal_the_moments(rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    first, second = moments.low_orders()
    close(first, naive_moment(moments, 1))
    close(second, naive_moment(moments, 2))


def test_slices_equal_those_of_the_tensor(rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    thetas = rng.standard_normal((N_FEATURES, 3))
    close(moments.slices(thetas), np.einsum("ijk,kl->lij", naive_moment(moments, 3), thetas))


def test_fibres_equal_those_of_the_tensor(rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    vectors = rng.standard_normal((N_FEATURES, 5))
    expected = np.einsum("ijk,jl,kl->il", naive_moment(moments, 3), vectors, vectors)
    close(moments.fibres(vectors), expected)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_narrow_bases_equal_the_contracted_tensor(width: int, rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    P = rng.standard_normal((N_FEATURES, width))
    full, size = naive_moment(moments, 3), float(np.linalg.norm(P) ** 3)
    restricted = moments.restrict(P)
    assert restricted.basis.shape == (N_FEATURES, width)
    close(restricted.moment(3), np.einsum("abc,ai,bj,ck->ijk", full, P, P, P), size)
    close(restricted.moment(2), P.T @ naive_moment(moments, 2) @ P, size)
    summed = restricted.restrict(np.ones((width, 1)))
    close(summed.moment(1), P.sum(axis=1, keepdims=True).T @ naive_moment(moments, 1), size)


def test_blocks_of_rows_add_up(rng: np.random.Generator) -> None:
    """Enough rows for many blocks and threads; the naive sum goes through them in pieces."""
    moments = sample_moments(rng, 60_000)
    X = np.asarray(moments.X, dtype=np.float64)
    total = moments.weights.sum()
    expected = np.zeros((N_FEATURES,) * 3)
    for start in range(0, 60_000, 5000):
        rows = slice(start, start + 5000)
        part = replace(
            moments, X=X[rows], response=moments.response[rows], weights=moments.weights[rows]
        )
        expected += part.weights.sum() / total * naive_moment(part, 3)
    close(moments.moment(3), expected)


def test_factor_form_of_the_power_iteration(rng: np.random.Generator) -> None:
    """It touches X and y only, and its vectors are those of the explicit tensor.

    Three orthogonal cubes and sampling noise, so that rounding does not grow from round to round.
    """
    n_obs = 20_000
    X = rng.standard_normal((n_obs, 3))
    response = X[:, 0] ** 3 + 0.5 * X[:, 1] ** 3 - 0.3 * X[:, 2] ** 3
    moments = CrossMoments(X, response, np.ones(n_obs), Gaussian(np.zeros(3), np.eye(3)), np.eye(3))
    starts = unit_columns(rng.standard_normal((3, 6)))
    explicit = tensor_fibres(moments.moment(3))
    for n_rounds in (1, 3, 30):
        by_rows = power_rounds(moments.fibres, starts, n_rounds)
        assert_allclose(by_rows, power_rounds(explicit, starts, n_rounds), rtol=0, atol=1e-9)
    assert_allclose(np.abs(by_rows).max(axis=0), 1.0, atol=0.01)  # each start found one axis


# --- identities ----------------------------------------------------------------------------------


def test_third_moment_is_symmetric(rng: np.random.Generator) -> None:
    tensor = sample_moments(rng).moment(3)
    for order in permutations(range(3)):
        close(tensor.transpose(order), tensor)


def test_linear_in_the_response_and_scale_free_in_the_weights(rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    doubled = replace(moments, response=2.0 * moments.response, weights=7.0 * moments.weights)
    close(doubled.moment(3), 2.0 * moments.moment(3))


def test_integer_weights_are_repeated_rows(rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    counts = rng.integers(0, 3, len(moments.response))
    weighted = replace(moments, weights=counts.astype(np.float64))
    repeated = replace(
        moments,
        X=np.repeat(moments.X, counts, axis=0),
        response=np.repeat(moments.response, counts),
        weights=np.ones(counts.sum()),
    )
    for order in (1, 2, 3):
        close(weighted.moment(order), repeated.moment(order))


def test_control_variates_leave_out_the_quadratic_part(rng: np.random.Generator) -> None:
    """The residual is T - mean - <M_1, S_1> - <M_2, S_2> / 2, written out with explicit tensors."""
    moments = sample_moments(rng)
    X = np.asarray(moments.X, dtype=np.float64)
    centred = moments.response - np.average(moments.response, weights=moments.weights)
    centred_moments = replace(moments, response=centred)
    first, second = naive_moment(centred_moments, 1), naive_moment(centred_moments, 2)
    scores = [moments.input_model.score(X, order, basis=moments.basis) for order in (1, 2)]
    expected = centred - scores[0] @ first - 0.5 * np.einsum("nij,ij->n", scores[1], second)
    close(moments.without_quadratic()[0].response, expected)


def test_control_variates_take_a_quadratic_response_to_nothing(rng: np.random.Generator) -> None:
    """On sampled rows what is left of a quadratic shrinks like 1 / sqrt(n) against it."""
    n_obs = 40_000
    X = rng.standard_normal((n_obs, 2))
    response = 3.0 + X[:, 0] - 2.0 * X[:, 1] + X[:, 0] * X[:, 1] - 0.5 * X[:, 0] ** 2
    moments = CrossMoments(X, response, np.ones(n_obs), Gaussian(np.zeros(2), np.eye(2)), np.eye(2))
    residual = moments.without_quadratic()[0].response
    # Six fitted coefficients, each off by a few times sd(y x x) / sqrt(n) < 10 / sqrt(n).
    assert residual.std() < 6 * 10 / np.sqrt(n_obs)
    assert response.std() > 2.0


def test_control_variates_keep_the_moment_and_lower_its_noise(rng: np.random.Generator) -> None:
    """M_3 of exp(a'x) is a^3 exp(|a|^2 / 2) with and without them; five standard errors."""
    n_obs, a = 100_000, np.array([0.6, -0.3])
    X = rng.standard_normal((n_obs, 2))
    moments = CrossMoments(
        X, np.exp(X @ a), np.ones(n_obs), Gaussian(np.zeros(2), np.eye(2)), np.eye(2)
    )
    residual, _ = moments.without_quadratic()
    direction = unit_columns(a[:, None])
    expected = np.linalg.norm(a) ** 3 * np.exp(a @ a / 2.0)
    errors = []
    for candidate in (moments, residual):
        value = candidate.restrict(direction).moment(3).item()
        errors.append(np.sqrt(candidate.covariance_along(direction, 3).item()))
        assert abs(value - expected) < 5.0 * errors[-1] < expected
    assert errors[1] < 0.8 * errors[0]


def test_population_moment_of_a_cubic(rng: np.random.Generator) -> None:
    """E[(u'x)^3 S_3] = 6 u^3; the standard error comes from `covariance_along`."""
    n_obs = 200_000
    U = unit_columns(np.array([[1.0, 2.0], [2.0, -1.0], [0.5, 1.0]]))
    X = rng.standard_normal((n_obs, 3))
    response = (X @ U) ** 3 @ np.array([1.0, -0.5])
    moments = CrossMoments(X, response, np.ones(n_obs), Gaussian(np.zeros(3), np.eye(3)), np.eye(3))
    directions = unit_columns(rng.standard_normal((3, 4)))
    tensor = cubes_tensor(np.array([6.0, -3.0]), U)
    expected = np.einsum("ijk,il,jl,kl->l", tensor, directions, directions, directions)
    measured = np.einsum("ijk,il,jl,kl->l", moments.moment(3), directions, directions, directions)
    errors = np.sqrt(np.diag(moments.covariance_along(directions, 3)))
    assert np.all(np.abs(measured - expected) < 5.0 * errors)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_sampling_covariance_is_that_of_the_terms(order: int, rng: np.random.Generator) -> None:
    """Without weights: the covariance of the n terms over n, by its definition."""
    moments = replace(sample_moments(rng), weights=np.ones(300))
    directions = rng.standard_normal((N_FEATURES, 3))
    X = np.asarray(moments.X, dtype=np.float64)
    tensors = moments.input_model.score(X, order, basis=moments.basis)
    terms = np.empty((300, 3))
    for index, vector in enumerate(directions.T):
        value = tensors
        for _ in range(order):
            value = value @ vector
        terms[:, index] = value * moments.response
    close(moments.covariance_along(directions, order), np.cov(terms.T, bias=True) / 300)


# --- stored types and repeatability --------------------------------------------------------------


def test_arguments_are_not_changed(rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    copies = [np.array(part) for part in (moments.X, moments.response, moments.weights)]
    for array in (moments.X, moments.response, moments.weights, moments.basis):
        array.flags.writeable = False
    moments.without_quadratic()[0].moment(3)
    moments.slices(np.eye(N_FEATURES))
    for part, copy in zip((moments.X, moments.response, moments.weights), copies, strict=True):
        assert_array_equal(part, copy)


def test_layout_and_type_of_the_rows_do_not_matter(rng: np.random.Generator) -> None:
    moments = sample_moments(rng)
    integers = np.round(4.0 * np.asarray(moments.X, dtype=np.float64))
    expected = replace(moments, X=integers).moment(3)
    wide = np.repeat(integers, 2, axis=1)
    for rows in (
        np.asfortranarray(integers),
        integers.astype(np.int32),
        integers.astype(np.float32),
        wide[:, ::2],
    ):
        close(replace(moments, X=rows).moment(3), expected)


def test_same_rows_same_bits(rng: np.random.Generator) -> None:
    moments = sample_moments(rng, 50_000)
    first, again = (moments.without_quadratic()[0].moment(3) for _ in range(2))
    assert first.tobytes() == again.tobytes()
