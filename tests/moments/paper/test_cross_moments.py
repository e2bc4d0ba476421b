"""Cross-moments: every contracted form equals the naive sum over rows of explicit tensors."""

from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.moments.paper.cross_moments import (
    RowScores,
    cross_moment,
    moment_covariance,
    moment_fibres,
    moment_slices,
    row_scores,
    score_function,
    subtract_quadratic,
)
from moment_init.moments.paper.power_iteration import power_rounds, tensor_fibres
from moment_init.scores import Gaussian, StudentT
from tests.population import FloatArray, cubes_tensor, unit_columns

N_FEATURES = 4


def sample_rows(rng: np.random.Generator, n_obs: int = 300) -> tuple[FloatArray, RowScores]:
    """Correlated inputs, a skewed response, unequal weights, the standardising basis."""
    mixing = np.eye(N_FEATURES) + 0.3 * rng.standard_normal((N_FEATURES, N_FEATURES))
    X = rng.standard_normal((n_obs, N_FEATURES)) @ mixing + 1.0
    response = np.exp(0.5 * X[:, 0]) + rng.exponential(1.0, n_obs)
    return response, row_scores(X, Gaussian(), sample_weight=rng.uniform(0.5, 2.0, n_obs))


def standard_scores(X: FloatArray) -> RowScores:
    """Score functions of rows from N(0, I)."""
    n_features = X.shape[1]
    return row_scores(X, Gaussian(np.zeros(n_features), np.eye(n_features)))


def naive_moment(response: FloatArray, scores: RowScores, order: int) -> FloatArray:
    """Weighted mean of response times explicit score tensor, contracted mode by mode."""
    X = np.asarray(scores.X, dtype=np.float64)
    terms = scores.weights * response / scores.weights.sum()
    tensor = np.tensordot(terms, scores.density.score(X, order), axes=1)
    for _ in range(order):
        tensor = np.tensordot(tensor, scores.basis, axes=(0, 0))  # each turn moves the next mode up
    return np.asarray(tensor)


def close(actual: FloatArray, expected: FloatArray, size: float | None = None) -> None:
    """Equal to 1e-10 of the largest entry, or of the size of what was contracted."""
    largest = np.abs(expected).max() if size is None else size
    assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * largest)


# --- by hand -------------------------------------------------------------------------------------


def test_two_rows_by_hand() -> None:
    """x = 1 and 2 with y = 3 and 1: M_1 = (3 + 2)/2, M_2 = (0 + 3)/2, M_3 = (3 * -2 + 2)/2."""
    X, response = np.array([[1.0], [2.0]]), np.array([3.0, 1.0])
    density = Gaussian([0.0], [[1.0]])
    for order, expected in ((1, 2.5), (2, 1.5), (3, -2.0)):
        explicit = score_function(X, order, density)
        assert explicit.shape == (2,) + (1,) * order
        for scores in (row_scores(X, density), explicit):
            moment = cross_moment(response, scores, order)
            assert_allclose(moment, np.full((1,) * order, expected), rtol=1e-15)


# --- score functions -----------------------------------------------------------------------------


def student_gradient(X: FloatArray) -> FloatArray:
    """Gradient of the log-density of a t with 7 degrees of freedom and unit scale."""
    n_features = X.shape[1]
    return np.asarray(-(7.0 + n_features) * X / (7.0 + np.sum(X**2, axis=1, keepdims=True)))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_own_gradients_give_the_scores_of_the_density(order: int, rng: np.random.Generator) -> None:
    """Eq. (10) with central differences: errors of about 1e-8, the tensors are of order one."""
    X = 2.0 * rng.standard_normal((50, 3))
    expected = StudentT(np.zeros(3), np.eye(3), 7.0).score(X, order)
    assert_allclose(score_function(X, order, student_gradient), expected, atol=1e-6)


def test_score_of_order_one_is_minus_the_gradient_bit_for_bit(rng: np.random.Generator) -> None:
    X = rng.standard_normal((5, 2))
    assert_array_equal(score_function(X, 1, student_gradient), -student_gradient(X))


def test_moments_of_explicit_scores_are_those_of_the_rows(rng: np.random.Generator) -> None:
    """Own arrays of score functions and `RowScores` in the user's coordinates are one moment."""
    X = rng.standard_normal((200, 3))
    response = np.exp(X[:, 0])
    density = Gaussian().fit(X)
    scores = row_scores(X, density, basis=np.eye(3))
    for order in (1, 2, 3):
        own = score_function(X, order, density.gradient)
        close(
            cross_moment(response, score_function(X, order, density)),
            naive_moment(response, scores, order),
        )
        assert_allclose(
            cross_moment(response, own), cross_moment(response, scores, order), atol=1e-6
        )


def test_what_is_refused(rng: np.random.Generator) -> None:
    X = rng.standard_normal((6, 2))
    density = Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(ValueError, match="`order` must be 1, 2 or 3; got 4"):
        score_function(X, 4, student_gradient)
    with pytest.raises(
        ValueError, match=r"must return gradients of the shape of `X`, \(6, 2\); got"
    ):
        score_function(X, 1, lambda rows: rows[:, 0])
    for scores in (row_scores(X, density), score_function(X, 3, density)):
        with pytest.raises(ValueError, match=r"`response` must have shape \(6,\).* got \(6, 1\)"):
            cross_moment(np.ones((6, 1)), scores)
    with pytest.raises(ValueError, match="as many features as `X`"):
        row_scores(X[:, :1], density)


def test_an_unfitted_density_is_fitted_and_left_alone(rng: np.random.Generator) -> None:
    density = Gaussian()
    scores = row_scores(rng.standard_normal((50, 2)) + 3.0, density)
    assert not density.is_fitted
    assert_allclose(scores.density.mean_, np.asarray(scores.X).mean(axis=0))
    assert_array_equal(scores.basis, scores.density.standardising_basis)


# --- contracted forms ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3])
def test_moments_equal_the_naive_sums(order: int, rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    close(cross_moment(response, scores, order), naive_moment(response, scores, order))


def test_slices_equal_those_of_the_tensor(rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    thetas = rng.standard_normal((N_FEATURES, 3))
    expected = np.einsum("ijk,kl->lij", naive_moment(response, scores, 3), thetas)
    close(moment_slices(response, scores, thetas), expected)


def test_fibres_equal_those_of_the_tensor(rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    vectors = rng.standard_normal((N_FEATURES, 5))
    expected = np.einsum("ijk,jl,kl->il", naive_moment(response, scores, 3), vectors, vectors)
    close(moment_fibres(response, scores, vectors), expected)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_narrow_bases_equal_the_contracted_tensor(width: int, rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    P = rng.standard_normal((N_FEATURES, width))
    full, size = naive_moment(response, scores, 3), float(np.linalg.norm(P) ** 3)
    restricted = scores.restrict(P)
    assert restricted.basis.shape == (N_FEATURES, width)
    close(cross_moment(response, restricted), np.einsum("abc,ai,bj,ck->ijk", full, P, P, P), size)
    second = P.T @ naive_moment(response, scores, 2) @ P
    close(cross_moment(response, restricted, 2), second, size)
    summed = restricted.restrict(np.ones((width, 1)))
    first = P.sum(axis=1, keepdims=True).T @ naive_moment(response, scores, 1)
    close(cross_moment(response, summed, 1), first, size)


def test_blocks_of_rows_add_up(rng: np.random.Generator) -> None:
    """Enough rows for many blocks and threads; the naive sum goes through them in pieces."""
    response, scores = sample_rows(rng, 60_000)
    total = scores.weights.sum()
    expected = np.zeros((N_FEATURES,) * 3)
    for start in range(0, 60_000, 5000):
        rows = slice(start, start + 5000)
        part = replace(scores, X=scores.X[rows], weights=scores.weights[rows])
        expected += part.weights.sum() / total * naive_moment(response[rows], part, 3)
    close(cross_moment(response, scores), expected)


def test_factor_form_of_the_power_iteration(rng: np.random.Generator) -> None:
    """It touches X and y only, and its vectors are those of the explicit tensor.

    Three orthogonal cubes and sampling noise, so that rounding does not grow from round to round.
    """
    n_obs = 20_000
    X = rng.standard_normal((n_obs, 3))
    response = X[:, 0] ** 3 + 0.5 * X[:, 1] ** 3 - 0.3 * X[:, 2] ** 3
    scores = standard_scores(X)
    starts = unit_columns(rng.standard_normal((3, 6)))
    explicit = tensor_fibres(cross_moment(response, scores))
    fibres = partial(moment_fibres, response, scores)
    for n_rounds in (1, 3, 30):
        by_rows = power_rounds(fibres, starts, n_rounds)
        assert_allclose(by_rows, power_rounds(explicit, starts, n_rounds), rtol=0, atol=1e-9)
    assert_allclose(np.abs(by_rows).max(axis=0), 1.0, atol=0.01)  # each start found one axis


# --- identities ----------------------------------------------------------------------------------


def test_third_moment_is_symmetric(rng: np.random.Generator) -> None:
    tensor = cross_moment(*sample_rows(rng))
    for order in permutations(range(3)):
        close(tensor.transpose(order), tensor)


def test_linear_in_the_response_and_scale_free_in_the_weights(rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    heavier = replace(scores, weights=7.0 * scores.weights)
    close(cross_moment(2.0 * response, heavier), 2.0 * cross_moment(response, scores))


def test_integer_weights_are_repeated_rows(rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    counts = rng.integers(0, 3, len(response))
    weighted = replace(scores, weights=counts.astype(np.float64))
    repeated = replace(scores, X=np.repeat(scores.X, counts, axis=0), weights=np.ones(counts.sum()))
    for order in (1, 2, 3):
        expected = cross_moment(np.repeat(response, counts), repeated, order)
        close(cross_moment(response, weighted, order), expected)


def test_control_variates_leave_out_the_quadratic_part(rng: np.random.Generator) -> None:
    """The residual is T - mean - <M_1, S_1> - <M_2, S_2> / 2, written out with explicit tensors."""
    response, scores = sample_rows(rng)
    centred = response - np.average(response, weights=scores.weights)
    first, second = naive_moment(centred, scores, 1), naive_moment(centred, scores, 2)
    S_1, S_2 = (scores.density.score(scores.X, order, basis=scores.basis) for order in (1, 2))
    expected = centred - S_1 @ first - 0.5 * np.einsum("nij,ij->n", S_2, second)
    residual, first_moment = subtract_quadratic(response, scores)
    close(residual, expected)
    close(first_moment, first)


def test_control_variates_take_a_quadratic_response_to_nothing(rng: np.random.Generator) -> None:
    """On sampled rows what is left of a quadratic shrinks like 1 / sqrt(n) against it."""
    n_obs = 40_000
    X = rng.standard_normal((n_obs, 2))
    response = 3.0 + X[:, 0] - 2.0 * X[:, 1] + X[:, 0] * X[:, 1] - 0.5 * X[:, 0] ** 2
    residual, _ = subtract_quadratic(response, standard_scores(X))
    # Six fitted coefficients, each off by a few times sd(y x x) / sqrt(n) < 10 / sqrt(n).
    assert residual.std() < 6 * 10 / np.sqrt(n_obs)
    assert response.std() > 2.0


def test_control_variates_keep_the_moment_and_lower_its_noise(rng: np.random.Generator) -> None:
    """M_3 of exp(a'x) is a^3 exp(|a|^2 / 2) with and without them; five standard errors."""
    n_obs, a = 100_000, np.array([0.6, -0.3])
    X = rng.standard_normal((n_obs, 2))
    response, scores = np.exp(X @ a), standard_scores(X)
    residual, _ = subtract_quadratic(response, scores)
    direction = unit_columns(a[:, None])
    expected = np.linalg.norm(a) ** 3 * np.exp(a @ a / 2.0)
    errors = []
    for candidate in (response, residual):
        value = cross_moment(candidate, scores.restrict(direction)).item()
        errors.append(np.sqrt(moment_covariance(candidate, scores, direction).item()))
        assert abs(value - expected) < 5.0 * errors[-1] < expected
    assert errors[1] < 0.8 * errors[0]


def test_control_variates_keep_the_moment_of_other_densities(rng: np.random.Generator) -> None:
    """Student's t: the quadratic is one of the rows, as that of the scores would move M_3.

    y = v'x + (u'x)^3 has M_3 = 6 u^3. Three standard errors separate it from a linear part that is
    subtracted as S_1: E[v' S_1 S_3] is far from zero for heavy tails.
    """
    n_obs = 200_000
    degrees = 12.0
    X = rng.standard_normal((n_obs, 2)) / np.sqrt(rng.chisquare(degrees, (n_obs, 1)) / degrees)
    density = StudentT(np.zeros(2), np.eye(2), degrees)
    scores = row_scores(X, density, basis=density.standardising_basis)
    response = 20.0 * X[:, 0] + X[:, 1] ** 3
    residual, first = subtract_quadratic(response, scores)
    directions = np.linalg.solve(density.standardising_basis, np.eye(2))
    for index, expected in enumerate((0.0, 6.0)):
        direction = directions[:, [index]]
        error = np.sqrt(moment_covariance(residual, scores, direction).item())
        value = cross_moment(residual, scores.restrict(direction)).item()
        assert abs(value - expected) < 5.0 * error < 3.0
    centred = response - response.mean()
    by_scores = centred - density.score(X, 1, basis=density.standardising_basis) @ first
    wrong = cross_moment(by_scores, scores.restrict(directions[:, [0]])).item()
    assert abs(wrong) > 10.0 * error


def test_population_moment_of_a_cubic(rng: np.random.Generator) -> None:
    """E[(u'x)^3 S_3] = 6 u^3; the standard error comes from `moment_covariance`."""
    n_obs = 200_000
    U = unit_columns(np.array([[1.0, 2.0], [2.0, -1.0], [0.5, 1.0]]))
    X = rng.standard_normal((n_obs, 3))
    response = (X @ U) ** 3 @ np.array([1.0, -0.5])
    scores = standard_scores(X)
    directions = unit_columns(rng.standard_normal((3, 4)))
    tensor = cubes_tensor(np.array([6.0, -3.0]), U)
    expected = np.einsum("ijk,il,jl,kl->l", tensor, directions, directions, directions)
    moment = cross_moment(response, scores)
    measured = np.einsum("ijk,il,jl,kl->l", moment, directions, directions, directions)
    errors = np.sqrt(np.diag(moment_covariance(response, scores, directions)))
    assert np.all(np.abs(measured - expected) < 5.0 * errors)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_sampling_covariance_is_that_of_the_terms(order: int, rng: np.random.Generator) -> None:
    """Without weights: the covariance of the n terms over n, by its definition."""
    response, scores = sample_rows(rng)
    scores = replace(scores, weights=np.ones(300))
    directions = rng.standard_normal((N_FEATURES, 3))
    tensors = scores.density.score(scores.X, order, basis=scores.basis)
    terms = np.empty((300, 3))
    for index, vector in enumerate(directions.T):
        value = tensors
        for _ in range(order):
            value = value @ vector
        terms[:, index] = value * response
    expected = np.cov(terms.T, bias=True) / 300
    close(moment_covariance(response, scores, directions, order), expected)


# --- stored types and repeatability --------------------------------------------------------------


def test_arguments_are_not_changed(rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    arrays = (response, scores.X, scores.weights, scores.basis)
    copies = [np.array(part) for part in arrays]
    for array in arrays:
        array.flags.writeable = False
    cross_moment(subtract_quadratic(response, scores)[0], scores)
    moment_slices(response, scores, np.eye(N_FEATURES))
    for part, copy in zip(arrays, copies, strict=True):
        assert_array_equal(part, copy)


def test_layout_and_type_of_the_rows_do_not_matter(rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng)
    integers = np.round(4.0 * np.asarray(scores.X, dtype=np.float64))
    expected = cross_moment(response, replace(scores, X=integers))
    wide = np.repeat(integers, 2, axis=1)
    for rows in (
        np.asfortranarray(integers),
        integers.astype(np.int32),
        integers.astype(np.float32),
        wide[:, ::2],
    ):
        close(cross_moment(response, replace(scores, X=rows)), expected)


def test_same_rows_same_bits(rng: np.random.Generator) -> None:
    response, scores = sample_rows(rng, 50_000)
    first, again = (cross_moment(subtract_quadratic(response, scores)[0], scores) for _ in range(2))
    assert first.tobytes() == again.tobytes()
