"""The stacked tensor: exact stacks give back their directions; candidates are distinct."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.likelihood.parameters import angles_in_degrees
from moment_init.moments.subspace import HermiteBasis, InnerMoments, hermite_basis
from moment_init.moments.tensor import (
    alternating_least_squares,
    cp_candidates,
    shared_sweeps,
)
from tests.population import FloatArray, unit_columns


def stack_slices(entries: FloatArray, basis: HermiteBasis) -> FloatArray:
    """Stack of moments with unit noise."""
    return InnerMoments(basis, entries, np.ones(basis.max_order + 1)).stack()


def exact_moments(
    directions: FloatArray, n_functions: int, rng: np.random.Generator, max_order: int = 3
) -> FloatArray:
    """Moments of functions with random coefficients in every order."""
    basis = hermite_basis(directions.shape[0], max_order)
    parts = [
        (
            basis.monomials(directions, order)
            @ rng.standard_normal((directions.shape[1], n_functions))
        ).T
        for order in range(max_order + 1)
    ]
    return np.concatenate(parts, axis=1)


def well_separated(size: int, n_components: int, rng: np.random.Generator) -> FloatArray:
    while True:
        directions = unit_columns(rng.standard_normal((size, n_components)))
        if np.linalg.cond(directions) < 8.0:
            return directions


@pytest.mark.parametrize(("size", "n_functions"), [(2, 1), (3, 1), (3, 5), (5, 3), (8, 4)])
def test_exact_stacks_give_back_the_directions(
    size: int, n_functions: int, rng: np.random.Generator
) -> None:
    directions = well_separated(size, size, rng)
    stack = stack_slices(exact_moments(directions, n_functions, rng), hermite_basis(size, 3))
    best = cp_candidates(stack, size, rng)[0]
    assert angles_in_degrees(best.directions, directions).max() < 1e-3
    assert best.residual < 1e-5


def test_slices_are_symmetric_and_keep_the_norm(rng: np.random.Generator) -> None:
    basis = hermite_basis(3, 3)
    moments = exact_moments(well_separated(3, 3, rng), 2, rng)
    stack = stack_slices(moments, basis)
    assert stack.shape == (3, 3, 2 + 2 * 3)
    assert_array_equal(stack, stack.transpose(1, 0, 2))
    assert_allclose(np.sum(stack**2), np.sum(moments[:, basis.columns(2).start :] ** 2), rtol=1e-12)


def test_candidates_are_ranked_and_distinct(rng: np.random.Generator) -> None:
    """On noise no decomposition is exact: several local optima, all different, best first."""
    noise = rng.standard_normal((6, hermite_basis(6, 3).size))
    found = cp_candidates(stack_slices(noise, hermite_basis(6, 3)), 6, rng)
    residuals = [candidate.residual for candidate in found]
    assert 1 < len(found) <= 5
    assert residuals == sorted(residuals)
    for index, first in enumerate(found):
        assert_allclose(np.linalg.norm(first.directions, axis=0), 1.0, rtol=1e-12)
        for second in found[:index]:
            assert angles_in_degrees(first.directions, second.directions).max() > 10.0


def test_one_dimension_needs_no_decomposition(rng: np.random.Generator) -> None:
    (only,) = cp_candidates(np.ones((1, 1, 4)), 1, rng)
    assert_array_equal(only.directions, [[1.0]])


def test_a_component_that_vanishes_is_refused() -> None:
    """A stack of one component started at two equal ones leaves one of them without a direction."""
    assert alternating_least_squares(np.zeros((2, 2, 3)), np.eye(2)) is None


def test_same_generator_same_candidates(seed: int, rng: np.random.Generator) -> None:
    stack = stack_slices(exact_moments(well_separated(3, 3, rng), 2, rng), hermite_basis(3, 3))
    runs = [cp_candidates(stack, 3, np.random.default_rng(seed)) for _ in range(2)]
    assert_array_equal(runs[0][0].directions, runs[1][0].directions)


def test_shared_sweeps_from_several_starts(rng: np.random.Generator) -> None:
    """Exact directions stay; those nearby come back, each start on its own.

    Sweeps end when no entry changes by more than 1e-4, or .006 degrees; .1 allows for 16 of them.
    """
    directions = well_separated(3, 3, rng)
    stack = stack_slices(exact_moments(directions, 4, rng), hermite_basis(3, 3))
    near = [unit_columns(directions + 0.05 * rng.standard_normal((3, 3))) for _ in range(3)]
    together = shared_sweeps(stack, np.stack([directions, *near]), n_sweeps=300)
    for found in together:
        assert angles_in_degrees(found, directions).max() < 0.1
        assert_allclose(np.linalg.norm(found, axis=0), 1.0, rtol=1e-12)
    alone = shared_sweeps(stack, near[1][None], n_sweeps=300)[0]
    assert_allclose(alone, together[2], rtol=0, atol=2e-3)


def test_sweeps_of_nothing_are_not_a_number() -> None:
    assert np.all(np.isnan(shared_sweeps(np.zeros((2, 2, 3)), np.eye(2)[None])))
