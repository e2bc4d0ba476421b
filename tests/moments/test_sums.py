"""Every sum equals the naive one over explicit tensors; pieces of a density; control variates."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.data.blocks import N_PARTS
from moment_init.data.checking import validate_data
from moment_init.families.links import expected_derivative
from moment_init.families.registry import get_family
from moment_init.moments import sums
from moment_init.moments.sums import (
    PartSums,
    StackedRows,
    _whitening_map,
    fit_control_variates,
    fit_stacked_rows,
    form_moments,
    form_slices,
    split_pieces,
)
from moment_init.scores import Gaussian, GaussianMixture
from moment_init.scores.choosing import pose_problem
from tests.moments.problems import joined, pose, sample_problem
from tests.population import FloatArray


def whitened(rows: StackedRows) -> tuple[FloatArray, FloatArray, FloatArray]:
    """All rows at once: z, the whitened functions, and weights that sum to one."""
    rows = joined(rows)
    z = np.linalg.solve(rows.factor, (np.asarray(rows.X, dtype=float) - rows.mean).T).T
    return z, rows.function_values(slice(None)), rows.weights / rows.weights.sum()


def close(actual: FloatArray, expected: FloatArray) -> None:
    assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def linear(rows: StackedRows) -> sums.ControlVariates:
    return fit_control_variates(rows, np.empty((rows.n_features, 0)))


def test_part_sums_by_hand() -> None:
    """Means 1, 2, 6 of parts of weight 1, 1, 2: the mean is 15/4.

    The variance of the mean of three equal parts' means about 15/4 is their mean square over two.
    """
    moment = PartSums(np.array([[1.0], [2.0], [12.0]]), np.array([1.0, 1.0, 2.0]))
    assert_allclose(moment.mean, [3.75])
    expected = np.mean(np.square(np.array([1.0, 2.0, 6.0]) - 3.75)) / 2.0
    assert_allclose(moment.variances, [expected])
    assert moment.deviation == pytest.approx(np.sqrt(expected))


def test_functions_are_whitened(rng: np.random.Generator) -> None:
    _, values, weights = whitened(fit_stacked_rows(sample_problem(rng)))
    assert_allclose(weights @ values, 0.0, atol=1e-10)
    assert_allclose(values.T @ (weights[:, None] * values), np.eye(values.shape[1]), atol=1e-8)


@pytest.mark.parametrize("most_entries", [512, 1])
def test_moments_of_a_gaussian_are_hermite_tensors(
    most_entries: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All functions together with tensors of the rows, and one by one without them."""
    monkeypatch.setattr(sums, "MOST_ENTRIES", most_entries)
    rows = fit_stacked_rows(sample_problem(rng))
    z, values, weights = whitened(rows)
    found = form_moments(rows, 1, None)
    assert found.sums.shape == (N_PARTS, rows.n_functions, 4)
    first = np.einsum("n,nk,na->ka", weights, values, z)
    close(found.mean, first)
    residuals = values - z @ first.T
    scores = np.einsum("na,nb->nab", z, z) - np.eye(4)
    second = form_moments(rows, 2, linear(rows)).mean
    close(second, np.einsum("n,nk,nab->kab", weights, residuals, scores))


def test_slices_equal_the_naive_sums(rng: np.random.Generator) -> None:
    rows = fit_stacked_rows(sample_problem(rng))
    basis = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    quadratic = fit_control_variates(rows, basis)
    z, _, weights = whitened(rows)
    residuals = quadratic.residuals(joined(rows), slice(None))
    scores = np.einsum("na,nb,nc->nabc", z, z, z)
    for term in ("na,bc->nabc", "nb,ac->nabc", "nc,ab->nabc"):
        scores -= np.einsum(term, z, np.eye(4))
    expected = np.einsum("n,nk,nabc,cl->klab", weights, residuals, scores, basis)[:2]
    close(form_slices(rows, basis, 2, quadratic).mean, expected.reshape(4, 4, 4))


def test_control_variates_leave_nothing_that_is_quadratic(rng: np.random.Generator) -> None:
    rows = fit_stacked_rows(sample_problem(rng))
    z, values, weights = whitened(rows)
    pairs = [z[:, a] * z[:, b] for a in range(4) for b in range(a, 4)]
    polynomials = np.column_stack([np.ones(len(z)), z, *pairs]) * weights[:, None]
    residuals = fit_control_variates(rows, np.eye(4)).residuals(joined(rows), slice(None))
    assert_allclose(polynomials.T @ residuals, 0.0, atol=1e-10)
    assert_allclose(
        polynomials[:, :5].T @ linear(rows).residuals(joined(rows), slice(None)), 0.0, atol=1e-10
    )
    # what was subtracted was not nothing
    assert residuals.var() < 0.95 * values.var()


def test_many_rows_give_the_same_moments(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in their own order, without stored values of the functions."""
    problem = sample_problem(rng, 2_000)
    few = fit_stacked_rows(problem)
    monkeypatch.setattr(sums, "FEW_ROWS", 10)
    monkeypatch.setattr(sums, "FEW_DOUBLES", 10)
    many = fit_stacked_rows(problem)
    assert few.has_parts
    assert not many.has_parts
    assert many.raw_values is None
    pair = [form_moments(rows, 2, linear(rows)).mean for rows in (few, many)]
    close(pair[0], pair[1])


def test_weights_count_as_repeated_rows(rng: np.random.Generator) -> None:
    """Whole weights and rows written out give one and the same moment, functions up to rotation."""
    data = sample_problem(rng).data
    counts = rng.integers(1, 4, data.n_obs)
    X, y = np.asarray(data.X), data.y
    weighted = pose(X, y, "poisson", sample_weight=counts)
    repeated = pose(np.repeat(X, counts, axis=0), np.repeat(y, counts), "poisson")
    # functions with one location and scale: those are fitted without weights
    functions = fit_stacked_rows(repeated).functions
    firsts = []
    for problem in (weighted, repeated):
        rows = replace(fit_stacked_rows(problem), functions=functions, raw_values=None)
        values = rows.raw_function_values(...).reshape(-1, len(rows.function_mean))
        share = rows.weights.ravel() / rows.weights.sum()
        mean = share @ values
        covariance = (values * share[:, None]).T @ values - np.outer(mean, mean)
        rows = replace(rows, function_mean=mean, function_map=_whitening_map(covariance, mean))
        first = form_moments(rows, 1, None).mean
        firsts.append(first.T @ first)
    close(firsts[0], firsts[1])


def test_control_variates_keep_the_expectation_and_lower_the_variance(
    rng: np.random.Generator,
) -> None:
    """Bernoulli, eta = 3 z_0 + 0.8: E[y S_2] = 9 E[g''] e_0 e_0'; 60 samples of 10,000 rows.

    The mean is within 4 standard errors (6e-5 of false failures for each of three entries), and
    the variance is below that of the plain moments of the same rows.
    """
    truth = np.diag([9.0 * expected_derivative(get_family("bernoulli"), 2, 3.0, 0.8), 0.0])
    plain, controlled = np.empty((2, 60, 2, 2))
    for index in range(60):
        z = rng.standard_normal((10_000, 2))
        y = (rng.random(10_000) < 1 / (1 + np.exp(-3.0 * z[:, 0] - 0.8))).astype(float)
        data = validate_data(z, y, family="bernoulli")
        rows = fit_stacked_rows(pose_problem(data, Gaussian([0.0, 0.0], np.eye(2)).fit(z)))
        scale = float(np.std(y)) * np.sign(rows.function_map[0, 0])
        controlled[index] = form_moments(rows, 2, linear(rows)).mean[0] * scale
        centred = y - y.mean()
        plain[index] = z.T @ (centred[:, None] * z) / 10_000
    errors = controlled.std(axis=0) / np.sqrt(60)
    assert np.all(np.abs(controlled.mean(axis=0) - truth) < 4 * errors)
    assert np.all(controlled.var(axis=0) < plain.var(axis=0))


def clusters(rng: np.random.Generator) -> tuple[GaussianMixture, FloatArray]:
    """Two clusters of different shapes, six deviations apart along the first column."""
    weights, means = np.array([0.3, 0.7]), np.array([[-3.0, 0.0], [3.0, 1.0]])
    covariances = np.array([np.diag([1.0, 4.0]), [[1.0, 0.5], [0.5, 1.0]]])
    labels = rng.choice(2, 20_000, p=weights)
    factors = np.linalg.cholesky(covariances)
    noise = np.einsum("nab,nb->na", factors[labels], rng.standard_normal((20_000, 2)))
    X = means[labels] + noise
    return GaussianMixture(weights=weights, means=means, covariances=covariances).fit(X), X


def noise_rows(X: FloatArray, rng: np.random.Generator) -> StackedRows:
    return fit_stacked_rows(pose(X, (rng.random(len(X)) < 0.5).astype(float), "bernoulli"))


def test_moments_of_pieces_are_derivatives_in_each(rng: np.random.Generator) -> None:
    """E[gamma_k f S_2^(k)] = pi_k E_k[D^2 f]: for f = sin(v'x) minus its pi_k E_k[sin] v v'."""
    density, X = clusters(rng)
    v = np.array([0.5, -0.4])
    rows = noise_rows(X, rng)
    values = np.sin(rows.inputs(...) @ v + rows.mean @ v)[..., None]
    rows = replace(rows, raw_values=values, function_mean=np.zeros(1), function_map=np.eye(1))
    pieces = split_pieces(rows, density)
    assert len(pieces) == 2
    for k, piece in enumerate(pieces):
        found = form_moments(piece, 2, None)
        mean, covariance = density.means_[k], density.covariances_[k]
        average = np.sin(v @ mean) * np.exp(-0.5 * v @ covariance @ v)
        seen = piece.frame.T @ rows.factor.T @ v
        expected = -density.weights_[k] * average * np.outer(seen, seen)
        assert np.all(np.abs(found.mean[0] - expected) < 5.0 * np.sqrt(found.variances[0]))


def test_frame_makes_the_noise_even(rng: np.random.Generator) -> None:
    """In the frame the first score has the identity as its variance, summed over pieces."""
    density, X = clusters(rng)
    pieces = split_pieces(noise_rows(X, rng), density)
    variance = np.zeros((2, 2))
    for piece in pieces:
        piece = joined(piece)
        scores = piece.contract(np.eye(2)).score(np.asarray(piece.X), 1)
        variance += (scores.T * piece.weights) @ scores / len(X)
    # Found on a quarter of the rows: a mean square of normal variables is off by sqrt(2 / 5,000).
    assert_allclose(variance, np.eye(2), atol=4.0 * np.sqrt(2.0 / 5_000))
    u = rng.standard_normal((2, 3))
    assert_allclose(pieces[0].to_whitened(pieces[0].frame.T @ u), u, atol=1e-12)


def test_pieces_with_hardly_any_rows_are_left_out(rng: np.random.Generator) -> None:
    X = rng.standard_normal((2_000, 2))
    density = GaussianMixture(
        weights=[0.999, 0.001], means=[[0.0, 0.0], [50.0, 0.0]], covariances=[np.eye(2)] * 2
    )
    assert len(split_pieces(noise_rows(X, rng), density)) == 1


def test_constant_functions_are_left_out() -> None:
    """Of three functions the second is constant; the others have correlation one half."""
    covariance = np.array([[4.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    found = _whitening_map(covariance, np.array([1.0, 0.3, -2.0]))
    assert_allclose(found.T @ covariance @ found, np.eye(2), atol=1e-12)
    assert_allclose(found[1], 0.0, atol=1e-12)


def test_the_variance_of_a_constant_is_rounding(rng: np.random.Generator) -> None:
    """Sums over weighted rows leave it of the size of 1e-17 and of either sign."""
    signs = set()
    for own in rng.spawn(40):
        weights = own.uniform(size=500)
        values = np.column_stack([own.standard_normal(500), np.full(500, 0.3)])
        mean = weights @ values / weights.sum()
        covariance = (values * weights[:, None]).T @ values / weights.sum() - np.outer(mean, mean)
        signs.add(np.sign(covariance[1, 1]))
        found = _whitening_map(covariance, mean)
        assert found.shape == (2, 1)
        assert found[1, 0] == 0.0
    assert 1.0 in signs
