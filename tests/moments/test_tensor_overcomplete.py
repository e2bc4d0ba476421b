"""More components than dimensions, and the fourth-order score."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.checks import IdentifiabilityError
from moment_init.likelihood.parameters import angles_in_degrees
from moment_init.moments.subspace import hermite_basis
from moment_init.moments.tensor import (
    decompose_symmetric,
    required_order,
)
from tests.population import FloatArray, unit_columns

# The three ways to put four places into two pairs.
_PAIRINGS = (("ij", "kl"), ("ik", "jl"), ("il", "jk"))


def fourth_order_score(z: FloatArray) -> FloatArray:
    """Score S_4 of a standard Gaussian for each row."""
    # z: (n_obs, k) -> (n_obs, k, k, k, k)
    identity = np.eye(z.shape[1])
    pairs = z[:, :, None] * z[:, None, :]
    score = np.einsum("nij,nkl->nijkl", pairs, pairs)
    for first, second in _PAIRINGS:
        score -= np.einsum(f"n{first},{second}->nijkl", pairs, identity)
        score -= np.einsum(f"n{second},{first}->nijkl", pairs, identity)
        score += np.einsum(f"{first},{second}->ijkl", identity, identity)
    return np.asarray(score)


def test_fourth_score_in_one_dimension_by_hand() -> None:
    """He_4(z) = z^4 - 6 z^2 + 3: -5 at z = 2, 3 at 0, -2 at 1."""
    scores = fourth_order_score(np.array([[2.0], [0.0], [1.0]]))
    assert_allclose(scores.ravel(), [-5.0, 3.0, -2.0], rtol=1e-14)


def test_fourth_score_has_the_entries_of_the_hermite_basis(rng: np.random.Generator) -> None:
    z, basis = rng.standard_normal((6, 3)), hermite_basis(3, 4)
    tensors = basis.expand(basis.evaluate(z)[:, basis.columns(4)], 4)
    assert_allclose(tensors, fourth_order_score(z) / np.sqrt(24.0), rtol=1e-11, atol=1e-11)


def test_fourth_score_differentiates_four_times() -> None:
    """E[f S_4] = E[D^4 f]: for f = x_0^3 x_1 + x_1^4 the entries (0,0,0,1) and (1,1,1,1) are 6, 24.

    The product rule of 8 nodes integrates degree 15.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    values = grid[:, 0] ** 3 * grid[:, 1] + grid[:, 1] ** 4
    rows = np.outer(weights, weights).ravel() * values
    moment = np.tensordot(rows, fourth_order_score(grid), axes=1)
    expected = np.zeros((2, 2, 2, 2))
    for place in range(4):
        expected[tuple(int(index == place) for index in range(4))] = 6.0
    expected[1, 1, 1, 1] = 24.0
    assert_allclose(moment, expected, atol=1e-10)


def symmetric_moments(
    directions: FloatArray, coefficients: dict[int, FloatArray], max_order: int
) -> FloatArray:
    """Entries of sum_j c_j u_j^m from the full tensors, one function."""
    basis = hermite_basis(directions.shape[0], max_order)
    moments = np.zeros((1, basis.size))
    for order, values in coefficients.items():
        entries = list(combinations_with_replacement(range(directions.shape[0]), order))
        powers = np.array([directions[list(entry)].prod(axis=0) @ values for entry in entries])
        moments[0, basis.columns(order)] = powers * np.sqrt(basis.multiplicities[order])
    return moments


@pytest.mark.parametrize(
    ("size", "n_components", "orders"), [(6, 8, (3,)), (4, 6, (4,)), (4, 6, (3, 4))]
)
def test_exact_overcomplete_tensors(
    size: int, n_components: int, orders: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Coefficients of both signs; the decomposition is unique, so a zero residual certifies it."""
    directions = unit_columns(rng.standard_normal((size, n_components)))
    coefficients = {
        order: rng.uniform(0.5, 1.5, n_components) * rng.choice([-1.0, 1.0], n_components)
        for order in orders
    }
    moments = symmetric_moments(directions, coefficients, 4)
    found = decompose_symmetric(
        moments, hermite_basis(size, 4), orders, n_components, rng, max_starts=40
    )
    assert found[0].residual < 1e-6
    assert angles_in_degrees(found[0].directions, directions).max() < 0.05


@pytest.mark.parametrize(
    ("n_features", "n_components", "n_functions", "order"),
    [
        (10, 3, 1, 3),
        (6, 8, 1, 3),
        (4, 7, 1, 4),
        (2, 3, 8, 3),
        (2, 3, 1, 4),
        (1, 2, 6, 3),
        (1, 2, 1, 4),
    ],
)
def test_required_order(n_features: int, n_components: int, n_functions: int, order: int) -> None:
    """Four dimensions, 7 components: (10 - 7) + (20 - 7) equations at order 3 for 21 angles."""
    needed = required_order(n_features, n_components, n_functions, has_dispersion=False)
    assert needed == order


def test_too_many_components_are_refused() -> None:
    with pytest.raises(IdentifiabilityError, match="got 6 for 2 features and 1 independent"):
        required_order(2, 6, 1, has_dispersion=False)
    with pytest.raises(IdentifiabilityError, match="Reduce it or add features"):
        required_order(1, 3, 1, has_dispersion=False)
