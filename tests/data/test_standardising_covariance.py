"""Mean, scales and correlation of the input: exact, free of units, and strict about columns."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.data.standardising import InputRows, fit_correlation
from tests.population import FloatArray


def names(n_features: int) -> tuple[str, ...]:
    return tuple(f"column_{index}" for index in range(n_features))


def correlated_rows(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    return rng.standard_normal((n_obs, n_features)) @ rng.standard_normal((n_features, n_features))


def test_four_rows_by_hand() -> None:
    """Columns (0, 0, 2, 2) and (0, 2, 2, 4): means 1 and 2, variances 1 and 2, covariance 1.

    The covariance is the mean of (-1)(-2), (-1)(0), (1)(0), (1)(2), which is 1: the correlation is
    1 / sqrt(2). The rows are repeated to be more than 16 per column, where nothing is shrunk.
    """
    X = np.tile([[0.0, 0.0], [0.0, 2.0], [2.0, 2.0], [2.0, 4.0]], (10, 1))
    fit = fit_correlation(InputRows(X, np.ones(40)), names(2))
    assert_allclose(fit.mean, [1.0, 2.0], rtol=1e-15)
    assert_allclose(fit.scales, [1.0, np.sqrt(2.0)], rtol=1e-15)
    assert_allclose(fit.correlation, [[1.0, np.sqrt(0.5)], [np.sqrt(0.5), 1.0]], rtol=1e-14)
    assert fit.shrinkage == 0.0


def test_equals_numpy(rng: np.random.Generator) -> None:
    X = correlated_rows(rng, 30_000, 5) + 3.0
    fit = fit_correlation(InputRows(X, np.ones(len(X))), names(5))
    assert_allclose(fit.mean, X.mean(axis=0), rtol=1e-12)
    assert_allclose(fit.scales, X.std(axis=0), rtol=1e-12)
    assert_allclose(fit.correlation, np.corrcoef(X.T), rtol=0, atol=1e-12)


def test_integer_weights_are_repeated_rows(rng: np.random.Generator) -> None:
    X = correlated_rows(rng, 500, 3)
    counts = rng.integers(0, 4, 500)
    weighted = fit_correlation(InputRows(X, counts.astype(float)), names(3))
    repeated = fit_correlation(
        InputRows(np.repeat(X, counts, axis=0), np.ones(counts.sum())), names(3)
    )
    assert_allclose(weighted.mean, repeated.mean, rtol=1e-12)
    assert_allclose(weighted.scales, repeated.scales, rtol=1e-12)
    assert_allclose(weighted.correlation, repeated.correlation, rtol=0, atol=1e-12)


def test_units_and_levels_do_not_matter(rng: np.random.Generator) -> None:
    """A level of 1e6 standard deviations costs six of sixteen digits, and no more."""
    X = correlated_rows(rng, 2000, 3)
    factors = np.array([1e8, 1e-8, 1.0])
    plain = fit_correlation(InputRows(X, np.ones(2000)), names(3))
    moved = fit_correlation(InputRows(X * factors + 1e6 * factors, np.ones(2000)), names(3))
    assert_allclose(moved.scales / factors, plain.scales, rtol=1e-9)
    assert_allclose(moved.mean / factors - 1e6, plain.mean, rtol=0, atol=1e-9)
    assert_allclose(moved.correlation, plain.correlation, rtol=0, atol=1e-9)


def test_no_shrinkage_from_sixteen_rows_per_column(rng: np.random.Generator) -> None:
    enough, few = correlated_rows(rng, 64, 4), correlated_rows(rng, 63, 4)
    assert fit_correlation(InputRows(enough, np.ones(64)), names(4)).shrinkage == 0.0
    assert 0.0 < fit_correlation(InputRows(few, np.ones(63)), names(4)).shrinkage < 1.0


def test_shrinkage_is_that_of_ledoit_and_wolf(rng: np.random.Generator) -> None:
    """Their b^2 / d^2: mean squared distance of the rows' z z' from R over n, to |R - I|^2."""
    n_obs, n_features = 40, 4
    X = correlated_rows(rng, n_obs, n_features)
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    sample = z.T @ z / n_obs
    row_products = np.einsum("ni,nj->nij", z, z)
    variance = np.square(row_products - sample).sum(axis=(1, 2)).mean() / n_obs
    intensity = variance / np.square(sample - np.eye(n_features)).sum()
    fit = fit_correlation(InputRows(X, np.ones(n_obs)), names(n_features))
    assert_allclose(fit.shrinkage, intensity, rtol=1e-10)
    expected = (1 - intensity) * sample + intensity * np.eye(n_features)
    assert_allclose(fit.correlation, expected, rtol=0, atol=1e-12)


def test_fewer_rows_than_columns_give_a_definite_matrix(rng: np.random.Generator) -> None:
    fit = fit_correlation(InputRows(rng.standard_normal((10, 15)), np.ones(10)), names(15))
    assert 0.0 < fit.shrinkage <= 1.0
    assert np.linalg.eigvalsh(fit.correlation)[0] > 0.0


def test_uncorrelated_design_is_shrunk_to_the_identity() -> None:
    """The columns of this design are exactly uncorrelated: there is nothing but noise to keep."""
    X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    fit = fit_correlation(InputRows(X, np.ones(4)), names(2))
    assert fit.shrinkage == 1.0
    assert_allclose(fit.correlation, np.eye(2), rtol=0, atol=1e-15)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.0, 1e12])
def test_constant_columns_are_named(value: float, rng: np.random.Generator) -> None:
    X = rng.standard_normal((100, 3))
    X[:, 1] = value
    match = "`X` must not have constant columns; got 'column_1'. Drop them"
    with pytest.raises(ValueError, match=match):
        fit_correlation(InputRows(X, np.ones(100)), names(3))


def test_a_column_that_varies_only_where_the_weight_is_zero_is_constant(
    rng: np.random.Generator,
) -> None:
    X = rng.standard_normal((100, 2))
    X[:50, 0] = 1.0
    weights = np.repeat([1.0, 0.0], 50)
    with pytest.raises(ValueError, match="constant columns; got 'column_0'"):
        fit_correlation(InputRows(X, weights), names(2))


def test_collinear_columns_are_named_and_no_others(rng: np.random.Generator) -> None:
    X = rng.standard_normal((500, 5))
    X[:, 3] = 2.0 * X[:, 0] - X[:, 1]
    match = r"collinear columns; got a linear relation among 'column_0', 'column_1', 'column_3' \("
    with pytest.raises(ValueError, match=match):
        fit_correlation(InputRows(X, np.ones(500)), names(5))


def test_collinear_columns_of_unlike_units_are_found(rng: np.random.Generator) -> None:
    X = rng.standard_normal((500, 2))
    X = np.column_stack([X, 1e9 * X[:, 0] + 5.0])
    with pytest.raises(ValueError, match="among 'column_0', 'column_2'"):
        fit_correlation(InputRows(X, np.ones(500)), names(3))


def test_same_rows_same_bits(rng: np.random.Generator) -> None:
    X = correlated_rows(rng, 50_000, 4)
    first, again = (fit_correlation(InputRows(X, np.ones(len(X))), names(4)) for _ in range(2))
    assert first.correlation.tobytes() == again.correlation.tobytes()
    assert first.mean.tobytes() == again.mean.tobytes()
