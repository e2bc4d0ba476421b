"""Discrete columns set apart: recognised, regressed out, and lifted back."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.data.checking import validate_data
from moment_init.scores import Gaussian
from moment_init.scores.choosing import find_discrete_columns, pose_problem, split_continuous
from tests.population import FloatArray

N_OBS = 3_000


def mixed_columns(rng: np.random.Generator) -> FloatArray:
    """Binary, continuous, whole numbers up to five, continuous and dependent on both."""
    binary = (rng.random(N_OBS) < 0.3).astype(float)
    whole = rng.integers(6, size=N_OBS).astype(float)
    first = rng.standard_normal(N_OBS) * 2.0 + 10.0
    second = rng.standard_normal(N_OBS) + 3.0 * binary - whole
    return np.column_stack([binary, first, whole, second])


def test_discrete_columns_are_recognised(rng: np.random.Generator) -> None:
    X = mixed_columns(rng)
    assert_array_equal(find_discrete_columns(X), [True, False, True, False])
    assert_array_equal(find_discrete_columns(X.astype(np.float32)), [True, False, True, False])
    counts = rng.poisson(50.0, size=(N_OBS, 1))
    assert not find_discrete_columns(counts).any()


def test_few_rows_do_not_make_a_column_discrete(rng: np.random.Generator) -> None:
    assert not find_discrete_columns(rng.standard_normal((8, 2))).any()


def test_residuals_are_orthogonal_to_the_discrete_columns(rng: np.random.Generator) -> None:
    X = mixed_columns(rng)
    data = validate_data(X, (rng.random(N_OBS) < 0.5).astype(float), family="bernoulli")
    block = split_continuous(data, find_discrete_columns(X))
    assert block.data.feature_names == ("x1", "x3")
    discrete = np.column_stack([np.ones(N_OBS), X[:, [0, 2]]])
    assert_allclose(discrete.T @ block.data.X / N_OBS, 0.0, atol=1e-9)
    assert_allclose(block.residuals(X), np.asarray(block.data.X, dtype=float), atol=1e-12)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_a_lifted_mixture_has_the_same_predictors(family: str, rng: np.random.Generator) -> None:
    X = mixed_columns(rng)
    y = (rng.random(N_OBS) < 0.5).astype(float) * (7.0 if family == "gaussian" else 1.0)
    data = validate_data(X, y, family=family)
    block = split_continuous(data, find_discrete_columns(X))
    inner = pose_problem(block.data, Gaussian().fit(block.data.X))
    outer = pose_problem(data, Gaussian().fit(X))
    inner_coefficients, inner_biases = np.array([[1.0, -0.5], [0.3, 2.0]]), np.array([0.2, -1.0])
    lifted = block.lift(inner_coefficients, inner_biases, inner.coordinates, outer.coordinates)
    slopes, biases = inner.coordinates.coefficients_to_user(inner_coefficients, inner_biases)
    expected = np.asarray(block.data.X, dtype=float) @ slopes + biases
    slopes, biases = outer.coordinates.coefficients_to_user(*lifted)
    assert_allclose(X @ slopes + biases, expected, atol=1e-9)
    linear = block.linear_map(inner.coordinates, outer.coordinates)
    assert_allclose(linear @ inner_coefficients, lifted[0], atol=1e-9)
    span = block.span(np.eye(2), inner.coordinates, outer.coordinates)
    assert_allclose(span.T @ span, np.eye(4), atol=1e-9)
