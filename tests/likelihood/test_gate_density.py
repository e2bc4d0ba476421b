"""Gaussian densities of gating covariates: statistics, vector, derivatives and floor."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import stats

from moment_init.likelihood.gate import (
    GaussianGate,
    gate_derivatives,
    gate_size,
    gate_statistics,
    log_gate_density,
    move_gate,
    pack_gate,
    raise_to_floor,
    shrunken_directions,
    unpack_gate,
)
from moment_init.likelihood.parameters import LARGEST_LOG_DISPERSION_STEP, MixtureParameters
from moment_init.likelihood.posterior import prior_probabilities

FloatArray = NDArray[np.float64]

MEANS = np.array([[0.5, -1.0, 2.0], [1.0, 0.0, -0.5]])
ROOTS = np.array([[[1.0, 0.0], [0.4, 0.8]], [[0.6, 0.0], [-0.3, 1.2]], [[1.5, 0.0], [0.1, 0.5]]])
WEIGHTS = np.array([0.5, 0.3, 0.2])


@pytest.fixture
def gate() -> GaussianGate:
    """Three densities of two covariates."""
    return GaussianGate(MEANS, ROOTS)


def mixture_of(gate: GaussianGate) -> MixtureParameters:
    """Components that differ by their gate only."""
    return MixtureParameters(np.zeros((1, 3)), np.zeros(3), WEIGHTS, None, gate.slopes)


def densities(gate: GaussianGate, at: FloatArray) -> FloatArray:
    """SciPy's densities, one column for each component."""
    parts = zip(gate.means.T, gate.covariances, strict=True)
    return np.stack([stats.multivariate_normal(m, s).pdf(at) for m, s in parts], axis=1)


def test_statistics_by_hand() -> None:
    """(2, 3) has the products 4, 6 and 9."""
    assert_array_equal(gate_statistics(np.array([[2.0, 3.0]])), [[1, 2, 3, 4, 6, 9]])
    assert [gate_size(n) for n in (1, 2, 3)] == [2, 5, 9]


def test_slopes_by_hand() -> None:
    """log N(g; 2, 3^2) = -4/18 - log 3 - log(2 pi)/2 + 2 g / 9 - g^2 / 18."""
    slopes = GaussianGate(np.array([[2.0]]), np.array([[[3.0]]])).slopes[:, 0]
    assert_allclose(slopes, [-2 / 9 - np.log(3 * np.sqrt(2 * np.pi)), 2 / 9, -1 / 18], rtol=1e-14)


def test_slopes_are_those_of_log_densities(gate: GaussianGate, rng: np.random.Generator) -> None:
    at = 2 * rng.standard_normal((20, 2))
    statistics = gate_statistics(at)
    expected = densities(gate, at)
    assert_allclose(statistics @ gate.slopes, np.log(expected), rtol=1e-10)
    total = expected @ WEIGHTS
    assert_allclose(log_gate_density(mixture_of(gate), statistics), np.log(total), rtol=1e-10)


def test_gate_is_a_logit_of_its_statistics(gate: GaussianGate, rng: np.random.Generator) -> None:
    at = 2 * rng.standard_normal((20, 2))
    design = np.concatenate([np.ones((20, 1)), gate_statistics(at)], axis=1)
    joint = densities(gate, at) * WEIGHTS
    expected = (joint / joint.sum(axis=1, keepdims=True)).T
    assert_allclose(prior_probabilities(mixture_of(gate), design), expected, rtol=1e-9)


def test_equal_covariances_are_a_softmax_gate(rng: np.random.Generator) -> None:
    """The products cancel: the logits are linear, with slopes K (m_j - m_r)."""
    root = ROOTS[0]
    gate = GaussianGate(MEANS, np.stack([root] * 3))
    precision = np.linalg.solve(root @ root.T, np.eye(2))
    slopes = precision @ (MEANS - MEANS[:, -1:])
    levels = -0.5 * np.einsum("aj,ab,bj->j", MEANS, precision, MEANS)
    odds = WEIGHTS * np.exp(levels - levels[-1])
    softmax = MixtureParameters(np.zeros((1, 3)), np.zeros(3), odds / odds.sum(), None, slopes)
    at, ones = 2 * rng.standard_normal((20, 2)), np.ones((20, 1))
    linear = prior_probabilities(softmax, np.concatenate([ones, at], axis=1))
    design = np.concatenate([ones, gate_statistics(at)], axis=1)
    assert_allclose(prior_probabilities(mixture_of(gate), design), linear, rtol=1e-10)


def test_vector_has_the_documented_order(gate: GaussianGate) -> None:
    expected = [0.5, 1.0, 0.0, 0.4, np.log(0.8), -1.0, 0.0, np.log(0.6), -0.3, np.log(1.2)]
    vector = pack_gate(gate)
    assert_allclose(vector[:10], expected, rtol=1e-14, atol=1e-15)
    back = unpack_gate(vector, gate)
    assert_array_equal(back.means, gate.means)
    assert_allclose(back.roots, gate.roots, rtol=1e-14)


def test_a_step_in_a_logarithm_is_cut(gate: GaussianGate) -> None:
    step = np.zeros(15)
    step[[0, 2, 3]] = 10.0
    moved = pack_gate(move_gate(gate, step)) - pack_gate(gate)
    assert_allclose(moved[[0, 2, 3]], [10.0, LARGEST_LOG_DISPERSION_STEP, 10.0], rtol=1e-13)


def test_derivatives_are_numerical_ones(gate: GaussianGate) -> None:
    """Central differences with step 1e-5 err by some 1e-10."""
    made, vector, h = gate_derivatives(gate), pack_gate(gate), 1e-5
    below = np.tril_indices(2)

    def parts(at: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        there = unpack_gate(at, gate)
        squares = there.covariances + np.einsum("aj,bj->jab", there.means, there.means)
        expected = np.concatenate([there.means.T, squares[:, below[0], below[1]]], axis=1)
        return there.slopes[1:].T, expected, there.covariances

    assert_allclose(made.mean_statistics, parts(vector)[1], rtol=1e-14)
    for j in range(3):
        for column in range(5):
            step = h * np.eye(15)[5 * j + column]
            ends = zip(parts(vector + step), parts(vector - step), strict=True)
            slopes, means, covariances = ((up[j] - down[j]) / (2 * h) for up, down in ends)
            assert_allclose(made.of_slopes[j, :, column], slopes, atol=1e-7)
            assert_allclose(made.of_means[j, :, column], means, atol=1e-7)
            assert_allclose(made.of_covariances[j, :, :, column], covariances, atol=1e-7)


def test_information_of_one_covariate_by_hand() -> None:
    """In (m, log sigma) it is diag(1 / sigma^2, 2)."""
    gate = GaussianGate(np.array([[5.0]]), np.array([[[0.5]]]))
    assert_allclose(gate_derivatives(gate).information[0], np.diag([4.0, 2.0]), atol=1e-12)


def test_reorder_and_rescale(gate: GaussianGate) -> None:
    order, shift, scales = np.array([2, 0, 1]), np.array([3.0, -1.0]), np.array([2.0, 0.1])
    moved = gate.reorder(order).rescale(shift, scales)
    assert_allclose(moved.means, shift[:, None] + scales[:, None] * MEANS[:, order])
    expected = np.outer(scales, scales) * gate.covariances[order]
    assert_allclose(moved.covariances, expected, rtol=1e-13)


def test_covariance_above_the_floor_is_kept() -> None:
    covariance = ROOTS[0] @ ROOTS[0].T
    assert_allclose(raise_to_floor(covariance, np.eye(2), 0.01), ROOTS[0], rtol=1e-14)
    assert shrunken_directions(ROOTS[0], np.eye(2), 0.01).shape == (2, 0)


def test_singular_covariance_is_raised(rng: np.random.Generator) -> None:
    """Its short axis comes to the floor and the long one stays, relative to the pooled one."""
    pooled = ROOTS[1]
    axes = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    singular = pooled @ np.outer(axes[:, 0], axes[:, 0]) @ pooled.T
    root = raise_to_floor(singular, pooled, 0.04)
    expected = pooled @ axes @ np.diag([1.0, 0.04]) @ axes.T @ pooled.T
    assert_allclose(root @ root.T, expected, atol=1e-14)
    (direction,) = shrunken_directions(root, pooled, 0.04).T
    assert_allclose(direction @ expected @ direction, 0.04, rtol=1e-12)
    assert_allclose(direction @ pooled @ pooled.T @ direction, 1.0, rtol=1e-12)


def test_raised_covariance_is_the_most_likely(rng: np.random.Generator) -> None:
    """No other covariance on or above the floor fits rows with this covariance better."""
    singular, floor = np.diag([1.0, 1e-6]), 0.04

    def log_likelihood(covariance: FloatArray) -> float:
        inverse = np.linalg.solve(covariance, singular)
        return float(-0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * np.trace(inverse))

    root = raise_to_floor(singular, np.eye(2), floor)
    best = log_likelihood(root @ root.T)
    for _ in range(50):
        other = root @ root.T + 0.05 * np.cov(rng.standard_normal((2, 4)))
        assert log_likelihood(other) < best
        turned = np.linalg.qr(np.eye(2) + 0.1 * rng.standard_normal((2, 2)))[0]
        assert log_likelihood(turned @ root @ root.T @ turned.T) <= best


def test_log_density_needs_a_gate(gate: GaussianGate) -> None:
    plain = MixtureParameters(np.zeros((1, 3)), np.zeros(3), WEIGHTS)
    with pytest.raises(ValueError, match="`parameters` must have a gate; got None"):
        log_gate_density(plain, np.ones((1, 6)))
