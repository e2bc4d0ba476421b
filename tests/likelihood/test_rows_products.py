"""Weighted sums of x x', with products of columns stored, formed or avoided."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.families.several import SeveralResponses
from moment_init.likelihood.rows import (
    MAX_PRODUCT_WIDTH,
    LikelihoodRows,
    symmetric_products,
    weighted_grams,
    with_ones,
)
from moment_init.likelihood.splits import split_statistics
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    ALL_LINKS,
    GROUPS,
    VARIANTS,
    FloatArray,
    make_problem,
    nearby,
)

each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def naive_grams(z: FloatArray, weights: FloatArray) -> FloatArray:
    """The sum as it is written, one row after the other."""
    width = z.shape[1] + 1
    result = np.zeros((len(weights), width, width))
    for k, weighting in enumerate(weights):
        for row, weight in zip(z, weighting, strict=True):
            x = np.append(row, 1.0)
            result[k] += weight * np.outer(x, x)
    return result


def test_products_by_hand() -> None:
    """x = (2, 3, 1): the upper triangle of x x', row after row."""
    z = np.array([[2.0, 3.0]])
    assert_array_equal(with_ones(z), [[2, 3, 1]])
    assert_array_equal(symmetric_products(z), [[4, 6, 2, 9, 3, 1]])
    grams = weighted_grams(with_ones(z), np.array([[2.0], [-1.0]]))
    expected = np.array([[4, 6, 2], [6, 9, 3], [2, 3, 1]])
    assert_array_equal(grams, [2 * expected, -expected])


@pytest.mark.parametrize("n_features", [0, 1, 4, 7, 8, MAX_PRODUCT_WIDTH - 1, MAX_PRODUCT_WIDTH])
@pytest.mark.parametrize("n_weightings", [1, 3])
@pytest.mark.parametrize("has_negative", [False, True])
def test_grams_are_the_naive_sums(
    n_features: int, n_weightings: int, has_negative: bool, rng: np.random.Generator
) -> None:
    """Widths on both sides of the change of method; weights of either sign."""
    z = rng.standard_normal((60, n_features))
    weights = rng.standard_normal((n_weightings, 60))
    weights = weights if has_negative else np.abs(weights)
    expected = naive_grams(z, weights)
    formed = weighted_grams(with_ones(z), weights)
    stored = weighted_grams(with_ones(z), weights, symmetric_products(z))
    assert formed.shape == (n_weightings, n_features + 1, n_features + 1)
    # sixty terms of size about one: rounding is below 60 eps times the largest
    assert_allclose(formed, expected, atol=1e-13 * np.abs(expected).max())
    assert_allclose(stored, expected, atol=1e-13 * np.abs(expected).max())
    assert_allclose(formed, formed.transpose(0, 2, 1), atol=1e-13 * np.abs(expected).max())


def test_no_rows_sum_to_zero() -> None:
    for width in (3, MAX_PRODUCT_WIDTH + 1):
        result = weighted_grams(np.empty((0, width)), np.empty((2, 0)))
        assert_array_equal(result, np.zeros((2, width, width)))


def test_rows_store_their_products(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=30, variant=GROUPS)
    single = replace(problem.rows, Z=np.asarray(problem.rows.Z, dtype=np.float32))
    stored = single.prepared(problem.family)
    assert stored.products is not None
    assert_array_equal(stored.products, symmetric_products(np.asarray(single.Z, dtype=np.float64)))
    assert stored.prepared(problem.family) is stored
    units = np.array([3, 1])
    taken = stored.take(units)
    assert taken.products is not None
    assert_array_equal(taken.products, symmetric_products(np.asarray(taken.Z, dtype=np.float64)))


def test_products_that_do_not_fit_are_not_stored(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too wide for products at all; or, at ten products a row, too many rows."""
    family = get_family("poisson")
    wide = rng.standard_normal((5, MAX_PRODUCT_WIDTH))
    rows = LikelihoodRows(wide, np.zeros(5), np.ones(5))
    assert rows.prepared(family).products is None
    monkeypatch.setattr("moment_init.likelihood.rows.MAX_STORED_PRODUCTS", 300)
    fitting = make_problem("poisson", "log", rng, n_obs=30).rows
    assert fitting.prepared(family).products is not None
    longer = make_problem("poisson", "log", rng, n_obs=31).rows
    assert longer.prepared(family).products is None


def test_rows_store_the_numbers_of_their_kernels(rng: np.random.Generator) -> None:
    """Places of counts among the distinct ones for a table, signs, failures; nothing for others."""
    families = ("negative_binomial", "bernoulli", "binomial", "gaussian")
    family = SeveralResponses(tuple(get_family(name) for name in families))
    y = np.array([[7.0, 0.0, 2.0, 0.3], [0.0, 1.0, 3.0, -0.2], [7.0, 1.0, 0.0, 1.0]])
    trials = np.array([[1.0, 1.0, 5.0, 1.0]] * 3)
    rows = LikelihoodRows(rng.standard_normal((3, 2)), y, np.ones(3), n_trials=trials)
    stored = rows.prepared(family)
    assert stored.numbers is not None
    assert_array_equal(stored.numbers, [[1, -1, 3, 0], [0, 1, 2, 0], [1, 1, 5, 0]])
    assert stored.counts[0] is not None
    assert_array_equal(stored.counts[0], [0, 7])
    assert stored.counts[1:] == (None, None, None)
    taken = stored.take(np.array([2]))
    assert taken.numbers is not None
    assert_array_equal(taken.numbers, [[1, 1, 5, 0]])
    assert taken.counts is stored.counts


@each_kind
@each_variant
def test_stored_products_change_no_sum(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    family, rows, at = problem.family, problem.rows, nearby(problem, rng)
    stored = rows.prepared(family)
    one, other = (likelihood_sums(family, these, at) for these in (rows, stored))
    scale = np.abs(one.complete_information).max()
    assert_allclose(other.log_likelihood, one.log_likelihood, rtol=1e-14)
    assert_allclose(other.score, one.score, atol=1e-13 * scale)
    assert_allclose(other.information(), one.information(), atol=1e-12 * scale)
    splits = [split_statistics(family, these, at) for these in (rows, stored)]
    assert_allclose(splits[1].eigenvalues, splits[0].eigenvalues, rtol=1e-8)
    assert_allclose(splits[1].noise_edges, splits[0].noise_edges, rtol=1e-8)


@each_variant
def test_wide_rows_give_the_same_sums(
    variant: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method of wide rows, used on narrow ones."""
    problem = make_problem("negative_binomial", "log", rng, variant=VARIANTS[variant])
    narrow = likelihood_sums(problem.family, problem.rows, problem.truth)
    monkeypatch.setattr("moment_init.likelihood.rows._FORMED_WIDTH", 2)
    wide = likelihood_sums(problem.family, problem.rows, problem.truth)
    scale = np.abs(narrow.complete_information).max()
    assert_allclose(wide.information(), narrow.information(), atol=1e-12 * scale)
