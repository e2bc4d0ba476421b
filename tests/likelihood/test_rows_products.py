"""Inputs with ones, and weighted sums of x x' by products of features or by weighted features."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.families.several import SeveralResponses
from moment_init.likelihood.rows import (
    _MANY_WEIGHTINGS,
    _NARROW,
    LikelihoodRows,
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


def test_sums_by_hand() -> None:
    z = np.array([[2.0, 3.0]])
    assert_array_equal(with_ones(z), [[2], [3], [1]])
    grams = weighted_grams(with_ones(z), np.array([[2.0], [-1.0]]))
    expected = np.array([[4, 6, 2], [6, 9, 3], [2, 3, 1]])
    assert_array_equal(grams, [2 * expected, -expected])


@pytest.mark.parametrize("n_features", [0, 1, 4, _NARROW - 1, _NARROW, 30])
@pytest.mark.parametrize("n_weightings", [1, 3, _MANY_WEIGHTINGS])
@pytest.mark.parametrize("has_negative", [False, True])
@pytest.mark.parametrize("least_run", [7, 64])
def test_grams_are_the_naive_sums(
    n_features: int,
    n_weightings: int,
    has_negative: bool,
    least_run: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Widths on both sides of the change of method, one run and several; weights of either sign."""
    monkeypatch.setattr("moment_init.likelihood.rows._LEAST_RUN", least_run)
    monkeypatch.setattr("moment_init.likelihood.rows._RUN_DOUBLES", 1)
    z = rng.standard_normal((60, n_features))
    weights = rng.standard_normal((n_weightings, 60))
    weights = weights if has_negative else np.abs(weights)
    expected = naive_grams(z, weights)
    found = weighted_grams(with_ones(z), weights)
    assert found.shape == (n_weightings, n_features + 1, n_features + 1)
    # sixty terms of size about one: rounding is below 60 eps times the largest
    assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max())
    assert_allclose(found, found.transpose(0, 2, 1), atol=1e-13 * np.abs(expected).max())
    later = weighted_grams(with_ones(z), np.ascontiguousarray(weights[:, 20:45]), 20)
    expected = naive_grams(z[20:45], weights[:, 20:45])
    assert_allclose(later, expected, atol=1e-13 * np.abs(expected).max())


def test_no_rows_sum_to_zero() -> None:
    for width in (3, _NARROW + 1):
        result = weighted_grams(np.empty((width, 0)), np.empty((2, 0)))
        assert_array_equal(result, np.zeros((2, width, width)))


def test_rows_store_their_inputs_with_ones(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=30, variant=GROUPS)
    single = replace(problem.rows, Z=np.asarray(problem.rows.Z, dtype=np.float32))
    stored = single.prepared(problem.family)
    assert stored.x is not None
    assert_array_equal(stored.x, with_ones(np.asarray(single.Z, dtype=np.float64)))
    assert stored.prepared(problem.family) is stored
    taken = stored.take(np.array([3, 1]))
    assert taken.x is not None
    assert_array_equal(taken.x, with_ones(np.asarray(taken.Z, dtype=np.float64)))


def test_inputs_that_do_not_fit_are_not_stored(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = get_family("poisson")
    fitting, longer = (make_problem("poisson", "log", rng, n_obs=n).rows for n in (30, 31))
    most = 30 * (fitting.n_features + 1)
    monkeypatch.setattr("moment_init.likelihood.rows.MAX_STORED_DOUBLES", most)
    assert fitting.prepared(family).x is not None
    assert longer.prepared(family).x is None


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
def test_stored_inputs_change_no_sum(
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
    """The methods of wide rows, used on narrow ones."""
    problem = make_problem("negative_binomial", "log", rng, variant=VARIANTS[variant])
    narrow = likelihood_sums(problem.family, problem.rows, problem.truth)
    monkeypatch.setattr("moment_init.likelihood.rows._NARROW", 2)
    scale = np.abs(narrow.complete_information).max()
    for many in (1, 100):
        monkeypatch.setattr("moment_init.likelihood.rows._MANY_WEIGHTINGS", many)
        wide = likelihood_sums(problem.family, problem.rows, problem.truth)
        assert_allclose(wide.information(), narrow.information(), atol=1e-12 * scale)
