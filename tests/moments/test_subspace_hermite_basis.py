"""Hermite polynomials of several variables: orthonormal, and the entries of the Gaussian scores."""

from math import factorial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.moments.subspace import hermite_basis, hermite_polynomials
from moment_init.scores import Gaussian
from tests.population import unit_columns


def test_two_variables_by_hand() -> None:
    """At (2, 3): 1; 2, 3; (4 - 1)/sqrt(2), 6, (9 - 1)/sqrt(2)."""
    basis = hermite_basis(2, 2)
    expected = [1.0, 2.0, 3.0, 3.0 / np.sqrt(2), 6.0, 8.0 / np.sqrt(2)]
    assert_allclose(basis.evaluate(np.array([[2.0, 3.0]]))[0], expected, rtol=1e-15)
    assert [basis.columns(order) for order in range(3)] == [slice(0, 1), slice(1, 3), slice(3, 6)]
    assert basis.multiplicities[2].tolist() == [1.0, 2.0, 1.0]


def test_polynomials_are_orthonormal_under_quadrature() -> None:
    """A product Gauss-Hermite rule of 6 nodes is exact up to degree 11 in each variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    product = np.einsum("i,j,k->ijk", weights, weights, weights).ravel()
    values = hermite_basis(3, 4).evaluate(grid)
    assert_allclose(values.T @ (product[:, None] * values), np.eye(35), atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_expanded_entries_are_the_scores(order: int, rng: np.random.Generator) -> None:
    z = rng.standard_normal((5, 3))
    basis = hermite_basis(3, 3)
    tensors = basis.expand(basis.evaluate(z)[:, basis.columns(order)], order)
    scores = Gaussian(np.zeros(3), np.eye(3)).score(z, order) / np.sqrt(factorial(order))
    assert_allclose(tensors, scores, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_monomials_turn_the_basis_into_one_variable(order: int, rng: np.random.Generator) -> None:
    """He_m(u'z) is a linear combination of the polynomials of order m, with u's powers."""
    z, directions = rng.standard_normal((7, 3)), unit_columns(rng.standard_normal((3, 2)))
    basis = hermite_basis(3, 4)
    along = basis.evaluate(z)[:, basis.columns(order)] @ basis.monomials(directions, order)
    expected = hermite_polynomials(z @ directions, 4)[order]
    assert_allclose(along, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_monomial_derivatives_by_differences(order: int, rng: np.random.Generator) -> None:
    basis, directions, step = hermite_basis(3, 4), rng.standard_normal((3, 2)), 1e-6
    derivatives = basis.monomial_derivatives(directions, order)
    for variable in range(3):
        moved = np.zeros_like(directions)
        moved[variable] = step
        difference = basis.monomials(directions + moved, order)
        difference = difference - basis.monomials(directions - moved, order)
        assert_allclose(derivatives[:, variable], difference / (2 * step), rtol=1e-6, atol=1e-7)
