"""Every sum equals the naive one over explicit tensors, and control variates cost no bias."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.data.checking import RegressionData, validate_data
from moment_init.families.quadrature import expected_derivative
from moment_init.families.registry import get_family
from moment_init.moments import sums
from moment_init.moments.moment_model import estimate_noise
from moment_init.moments.subspace import hermite_basis, project, quadratic_part, third_order_moments
from moment_init.moments.sums import LowOrders, _whitening_map, sum_low_orders
from moment_init.scores import Gaussian
from tests.moments.problems import prepare, sample_rows
from tests.population import FloatArray


def low_orders_of(data: RegressionData) -> LowOrders:
    model, response, _ = prepare(data)
    return sum_low_orders(data, model, response)


def whitened_rows(low_orders: LowOrders) -> tuple[FloatArray, FloatArray, FloatArray]:
    """All rows at once: z, the whitened functions, and weights that sum to one."""
    rows = low_orders.rows
    z = np.linalg.solve(rows.factor, (np.asarray(rows.X, dtype=float) - rows.mean).T).T
    return z, rows.function_values(slice(None)), rows.weights / rows.weights.sum()


def close(actual: FloatArray, expected: FloatArray) -> None:
    assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def test_functions_are_whitened(rng: np.random.Generator) -> None:
    low_orders = low_orders_of(sample_rows(rng))
    _, values, weights = whitened_rows(low_orders)
    assert_allclose(weights @ values, 0.0, atol=1e-10)
    assert_allclose(values.T @ (weights[:, None] * values), np.eye(values.shape[1]), atol=1e-8)


def test_low_orders_equal_the_naive_sums(rng: np.random.Generator) -> None:
    low_orders = low_orders_of(sample_rows(rng))
    z, values, weights = whitened_rows(low_orders)
    first = np.einsum("n,nk,na->ka", weights, values, z)
    close(low_orders.first, first)
    residuals = values - z @ first.T
    scores = np.einsum("na,nb->nab", z, z) - np.eye(4)
    close(low_orders.second, np.einsum("n,nk,nab->kab", weights, residuals, scores))


def test_groups_of_functions_give_the_same_sums(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one d x d matrix at a time each function takes a pass of its own."""
    data = sample_rows(rng)
    whole = low_orders_of(data)
    monkeypatch.setattr(sums, "GRAM_DOUBLES", 1)
    parts = low_orders_of(data)
    close(parts.second, whole.second)
    close(parts.noise, whole.noise)


def test_third_order_equals_the_naive_sums(rng: np.random.Generator) -> None:
    low_orders = low_orders_of(sample_rows(rng))
    z, values, weights = whitened_rows(low_orders)
    basis = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    pairs = hermite_basis(2, 2)
    quadratics = pairs.evaluate(z @ basis)[:, pairs.columns(2)]
    residuals = values - z @ low_orders.first.T - quadratics @ quadratic_part(low_orders, basis)
    scores = Gaussian(np.zeros(4), np.eye(4)).score(z, 3)
    moments = np.einsum("n,nk,nabc->kabc", weights, residuals, scores)
    slices, fibres = third_order_moments(low_orders, basis)
    close(slices, np.einsum("abc,cl->lab", moments[0], basis))
    inside = np.einsum("kabc,bi,cj->akij", moments, basis, basis)
    expected = [
        inside[:, :, 0, 0] / np.sqrt(2),
        inside[:, :, 0, 1],
        inside[:, :, 1, 1] / np.sqrt(2),
    ]
    close(fibres, np.stack(expected, axis=2).reshape(4, -1))


def test_projected_moments_are_a_weighted_regression(rng: np.random.Generator) -> None:
    """The pull of the Gram matrix to the identity, (q/n)^2, is written out."""
    low_orders = low_orders_of(sample_rows(rng))
    z, values, weights = whitened_rows(low_orders)
    basis = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    projected = project(low_orders, basis)
    polynomials = projected.basis.evaluate(z @ basis)
    weighted = polynomials * weights[:, None]
    share = (10 / low_orders.rows.effective_n) ** 2
    gram = (1 - share) * weighted.T @ polynomials + share * np.eye(10)
    close(projected.moments(), np.linalg.solve(gram, weighted.T @ values).T)
    quadratics = polynomials[:, projected.basis.columns(2)]
    residuals = values - z @ low_orders.first.T - quadratics @ quadratic_part(low_orders, basis)
    outside = z - z @ basis @ basis.T
    expected = np.einsum("n,nk,nq,na->kqa", weights, residuals, polynomials[:, :6], outside)
    expected[:, 0] += low_orders.first @ (np.eye(4) - basis @ basis.T)
    close(projected.contraction(), expected)


def test_a_part_left_out_is_a_part_without_weight(rng: np.random.Generator) -> None:
    """Few rows are shuffled, and the third part is the third run of 400 / 16 of them."""
    low_orders = low_orders_of(sample_rows(rng))
    assert low_orders.rows.is_shuffled
    basis = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    weights = low_orders.rows.weights.copy()
    weights[50:75] = 0.0
    without = replace(low_orders, rows=replace(low_orders.rows, weights=weights))
    expected = project(without, basis).cross_sums.sum(axis=0)
    projected = project(low_orders, basis)
    kept = np.arange(16) != 2
    close(projected.cross_sums[kept].sum(axis=0), expected)
    gram = projected.gram_sums[kept].sum(axis=0)
    share = (10 / low_orders.rows.effective_n) ** 2
    total = low_orders.part_weights[kept].sum()
    gram = (1 - share) * gram / total + share * np.eye(10)
    close(projected.moments(left_out=2), np.linalg.solve(gram, expected / total).T)


def test_many_rows_give_the_same_sums(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are neither shuffled nor copied, and functions evaluated in every pass."""
    data = sample_rows(rng)
    few = low_orders_of(data)
    monkeypatch.setattr(sums, "FEW_DOUBLES", 0)
    many = low_orders_of(data)
    assert many.rows.raw_values is None
    assert not many.rows.is_shuffled
    assert many.rows.X is data.X
    # The functions are rotated: each comes with a sign of its own.
    signs = np.sign(np.sum(few.first * many.first, axis=1))
    assert_allclose(many.first * signs[:, None], few.first, rtol=0, atol=1e-9)
    assert_allclose(many.second * signs[:, None, None], few.second, rtol=0, atol=1e-9)


def test_whole_space_has_nothing_outside(rng: np.random.Generator) -> None:
    projected = project(low_orders_of(sample_rows(rng)), np.eye(4))
    assert projected.contraction_sums is None
    assert_allclose(projected.contraction(), 0.0)


def test_weights_count_as_repeated_rows(rng: np.random.Generator) -> None:
    """Whole weights and rows written out give one and the same moment, functions up to rotation."""
    data = sample_rows(rng)
    counts = rng.integers(1, 4, data.n_obs)
    weighted = validate_data(data.X, data.y, family="poisson", sample_weight=counts)
    repeated = validate_data(
        np.repeat(data.X, counts, axis=0), np.repeat(data.y, counts), family="poisson"
    )
    pair = []
    for each in (weighted, repeated):
        model, response, _ = prepare(each)
        # Functions with one location and scale: those are fitted without weights.
        functions = repeated.single_family.fit_response_functions(repeated.y)
        pair.append(sum_low_orders(each, model, response, functions))
    first, second = pair
    close(first.first.T @ first.first, second.first.T @ second.first)
    gram = np.einsum("kab,kcb->ac", first.second, first.second)
    close(gram, np.einsum("kab,kcb->ac", second.second, second.second))


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
        low_orders = sum_low_orders(data, Gaussian([0.0, 0.0], np.eye(2)).fit(z), y)
        scale = low_orders.rows.functions.scale / low_orders.rows.function_map[0, 0]
        controlled[index] = low_orders.second[0] * scale  # the sign of a function cancels
        centred = y - y.mean()
        plain[index] = z.T @ (centred[:, None] * z) / 10_000
    errors = controlled.std(axis=0) / np.sqrt(60)
    assert np.all(np.abs(controlled.mean(axis=0) - truth) < 4 * errors)
    assert np.all(controlled.var(axis=0) < plain.var(axis=0))


def test_noise_covers_the_spread_of_moments(rng: np.random.Generator) -> None:
    """Moments of 60 samples differ from their mean by the covariance that each of them reports.

    The quadratic form, summed over moments and samples, is chi-squared with 59 times their number;
    second-order effects are allowed to add half.
    """
    moments, forms = [], []
    for _ in range(60):
        x = rng.standard_normal((4000, 1))
        y = (rng.random(4000) < 1 / (1 + np.exp(-1.5 * x[:, 0] - 0.5))).astype(float)
        data = validate_data(x, y, family="bernoulli")
        model = Gaussian([0.0], [[1.0]]).fit(x)
        projected = project(sum_low_orders(data, model, y), np.eye(1))
        rows = projected.low_orders.rows
        scale = rows.functions.scale / rows.function_map[0, 0]
        moments.append(projected.moments() * scale)
        forms.append((estimate_noise(projected, rng), scale))
    centre = np.mean(moments, axis=0)
    # The order-zero moment is the mean that was subtracted: zero by construction.
    chi = [
        np.square(noise.whiten(np.sqrt(4000) * (moment - centre) / scale))[1:]
        for moment, (noise, scale) in zip(moments, forms, strict=True)
    ]
    assert 0.7 < np.mean(chi) < 1.5


def test_kronecker_noise_is_the_product_of_its_factors(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many moments keep only the factors: the same as the product written out."""
    projected = project(
        low_orders_of(sample_rows(rng)), np.linalg.qr(np.ones((4, 2)) + np.eye(4, 2))[0]
    )
    monkeypatch.setattr("moment_init.moments.moment_model.MAX_DENSE_MOMENTS", 0)
    noise = estimate_noise(projected, rng)
    assert noise.covariance is None
    product: FloatArray = np.kron(noise.function_covariance, noise.polynomial_covariance).astype(
        np.float64
    )
    vectors = rng.standard_normal((*projected.moments().shape, 3))
    whitened = noise.whiten(vectors)
    flat = vectors.reshape(-1, 3)
    assert_allclose(whitened.T @ whitened, flat.T @ np.linalg.solve(product, flat), rtol=1e-6)
    assert_allclose(noise.whiten(vectors[..., 0]), whitened[:, 0], rtol=1e-8, atol=1e-8)
    dense = replace(noise, covariance=product)
    lower = rng.standard_normal((vectors.shape[0], 6, 2))
    assert_allclose(noise.solve_lower(lower), dense.solve_lower(lower), rtol=1e-6, atol=1e-8)


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
