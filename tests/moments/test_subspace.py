"""The subspace: found where there is one, not found where there is none; moments inside it."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.data.simulation import simulate_mixture
from moment_init.moments.subspace import (
    LowOrders,
    Moments,
    complete_moments,
    form_low_orders,
    hermite_basis,
)
from moment_init.moments.sums import fit_stacked_rows
from moment_init.scores import Gaussian, GaussianMixture
from tests.moments.problems import joined, pose, sample_problem
from tests.population import FloatArray


def low_orders_of(X: FloatArray, y: FloatArray, family: str) -> LowOrders:
    problem = pose(X, y, family)
    return form_low_orders(fit_stacked_rows(problem), problem.input_model)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
@pytest.mark.parametrize("n_components", [1, 3])
def test_pure_noise_stays_at_its_edge(
    family: str, n_components: int, rng: np.random.Generator
) -> None:
    """Sixty other data sets gave .7 to 1.6 of the edge for the largest value, few above 1.3."""
    X = rng.standard_normal((8_000, 6))
    y = {
        "gaussian": rng.standard_normal(8_000),
        "bernoulli": rng.integers(2, size=8_000).astype(float),
        "poisson": rng.poisson(2.0, 8_000).astype(float),
    }[family]
    low = low_orders_of(X, y, family)
    assert low.n_visible == 0
    assert 0.5 < low.spectrum[0] < 1.2
    assert 0.5 < complete_moments(low, n_components, 3).spectrum[0] < 1.8


def inside(moments: Moments, directions: FloatArray) -> float:
    """Smallest cosine between a direction and the subspace, for inputs that are white."""
    basis = np.linalg.qr(moments.lift(np.eye(moments.subspace.shape[1])))[0]
    return float(np.linalg.norm(basis.T @ directions, axis=0).min())


@pytest.mark.parametrize("n_features", [5, 12])
def test_directions_lie_in_the_subspace(n_features: int, seed: int) -> None:
    """20,000 rows: each sine between direction and subspace is a few sqrt(d/n) = .02."""
    directions = np.linalg.qr(np.random.default_rng(7).standard_normal((n_features, 3)))[0]
    options: dict[str, Any] = {"weights": [0.4, 0.35, 0.25], "biases": [0.5, 0.0, -0.5]}
    sample = simulate_mixture(
        20_000, n_features, 3, family="gaussian", directions=directions, random_seed=seed, **options
    )
    low = low_orders_of(sample.X, sample.y, "gaussian")
    moments = complete_moments(low, 3, 3)
    assert inside(moments, sample.directions) > np.cos(np.radians(15.0))
    assert low.n_visible == 3
    assert moments.spectrum[2] > 2.0 > moments.spectrum[3]


def test_third_order_where_the_second_vanishes(seed: int) -> None:
    """Bernoulli without biases has no second moment: two opposite slopes show in the third only."""
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 2)))[0]
    sample = simulate_mixture(
        200_000, 6, 2, scales=3.0, biases=0.0, directions=directions, random_seed=seed
    )
    low = low_orders_of(sample.X, sample.y, "bernoulli")
    assert low.spectrum[1] < 2.0
    moments = complete_moments(low, 2, 3)
    assert moments.spectrum[1] > 2.0
    assert inside(moments, sample.directions) > np.cos(np.radians(10.0))


def test_as_many_components_as_features_need_no_subspace(seed: int) -> None:
    sample = simulate_mixture(2000, 3, 3, family="poisson", random_seed=seed)
    low = low_orders_of(sample.X, sample.y, "poisson")
    for n_components in (3, 5):
        moments = complete_moments(low, n_components, 3)
        assert_array_equal(moments.subspace, np.eye(3))
        assert_array_equal(moments.spectrum, low.spectrum)


def test_inner_moments_of_a_gaussian_are_a_weighted_regression(rng: np.random.Generator) -> None:
    """Coefficients of all Hermite polynomials at once, with the shrinkage of (q / n)^2."""
    problem = sample_problem(rng, 3_000)
    rows = fit_stacked_rows(problem)
    moments = complete_moments(form_low_orders(rows, problem.input_model), 2, 3)
    piece, (inner,) = joined(moments.pieces[0]), moments.inner
    p = piece.inputs(slice(None)) @ piece.to_input_units(moments.subspace)
    basis = hermite_basis(2, 3)
    design, weights = basis.evaluate(p), piece.weights / piece.weights.sum()
    gram = design.T @ (weights[:, None] * design)
    effective_n = piece.weights.sum() ** 2 / np.square(piece.weights).sum()
    share = (basis.size / effective_n) ** 2
    gram = (1.0 - share) * gram + share * np.eye(basis.size)
    values = piece.function_values(slice(None))
    expected = np.linalg.solve(gram, design.T @ (weights[:, None] * values)).T
    assert_allclose(inner.entries[:, 1:], expected[:, 1:], rtol=1e-8, atol=1e-10)
    assert inner.stack().shape == (2, 2, piece.n_functions * (1 + 2))


def test_inner_moments_under_another_density_agree(rng: np.random.Generator) -> None:
    """A mixture of Gaussians with one piece is a Gaussian: both ways estimate the same moments.

    They differ by what the control variates of higher orders take from the noise only.
    """
    X = rng.standard_normal((40_000, 3))
    y = (rng.random(40_000) < 1 / (1 + np.exp(-2.0 * X[:, 0] - 1.0))).astype(float)
    problem = pose(X, y, "bernoulli")
    rows, factor = fit_stacked_rows(problem), problem.input_model.standardising_basis
    density = GaussianMixture(
        weights=[1.0],
        means=[problem.input_model.mean_],
        covariances=[factor @ factor.T],
    )
    pair = [
        complete_moments(form_low_orders(rows, each), 3, 3)
        for each in (problem.input_model, density)
    ]
    assert isinstance(problem.input_model, Gaussian)
    first, second = (each.inner[0] for each in pair)
    sign = np.sign(first.entries[0, 1] * second.entries[0, 1])
    for order in (1, 2, 3):
        at = first.basis.columns(order)
        assert_allclose(
            first.entries[:, at], sign * second.entries[:, at], atol=6.0 * second.deviations[order]
        )
        assert second.deviations[order] < 0.02
