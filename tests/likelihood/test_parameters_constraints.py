"""Parameters that move in a subspace only."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import null_space

from moment_init.families.registry import get_family
from moment_init.likelihood.climbing import MaximiseResult, maximise
from moment_init.likelihood.parameters import (
    LinearConstraint,
    MixtureParameters,
    active_bounds,
    bounds_of,
    component_size,
    pack,
    parameter_count,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    FAMILY_LINKS,
    VARIANTS,
    FloatArray,
    Problem,
    make_problem,
    nearby,
)

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def sharing(parameters: MixtureParameters, *entries: int) -> LinearConstraint:
    """Entries of (beta, b[, log dispersion]) that are the same for both components."""
    q = component_size(parameters)
    directions = np.eye(parameter_count(parameters))
    for entry in entries:
        directions[:, entry] += directions[:, q + entry]
    return LinearConstraint.spanned_by(np.delete(directions, [q + e for e in entries], axis=1))


def holding(parameters: MixtureParameters, *entries: int) -> LinearConstraint:
    """Entries of the vector that keep the values they start with."""
    return LinearConstraint.spanned_by(np.delete(np.eye(parameter_count(parameters)), entries, 1))


SHARED_SLOPE = np.array([[0.7, 0.7], [-0.8, 1.2], [0.6, 0.9]])
"""Coefficients whose first row is the same for both components."""


def projected_decrement(
    problem: Problem, result: MaximiseResult, constraint: LinearConstraint
) -> float:
    """Score' I^-1 score inside the subspace: twice what a Newton step would still gain.

    Directions that leave a bound on which the parameters lie are left out as well.
    """
    sums = likelihood_sums(problem.family, problem.rows, result.parameters)
    basis = constraint.basis
    for bound in active_bounds(result.parameters, bounds_of(problem.family)):
        basis = basis @ null_space((bound.inward @ basis)[None])
    score, information = basis.T @ sums.score, basis.T @ sums.information() @ basis
    return float(score @ np.linalg.solve(information, score))


def test_projection_by_hand() -> None:
    """Slopes 1 and 3 that are shared become 2 and 2 about an anchor whose slopes agree."""
    anchor = MixtureParameters(np.array([[5.0, 5.0]]), np.zeros(2), np.array([0.5, 0.5]))
    constraint = sharing(anchor, 0)
    moved = MixtureParameters(np.array([[1.0, 3.0]]), np.array([0.3, 0.4]), np.array([0.2, 0.8]))
    result = constraint.project(moved, anchor)
    assert constraint.n_free == 4
    assert_allclose(result.coefficients, [[2, 2]], rtol=1e-14)
    assert_allclose(result.biases, moved.biases, rtol=1e-14)
    assert_allclose(result.weights, moved.weights, rtol=1e-14)


@each_family
@each_variant
def test_projection_is_idempotent_and_keeps_the_anchor(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """In any subspace; what is left of a step is orthogonal to it."""
    problem = make_problem(name, link, rng, n_obs=10, variant=VARIANTS[variant])
    anchor, other = nearby(problem, rng), nearby(problem, rng)
    size = parameter_count(anchor)
    constraint = LinearConstraint.spanned_by(rng.standard_normal((size, 4)))
    assert_allclose(constraint.basis.T @ constraint.basis, np.eye(4), atol=1e-14)
    once = constraint.project(other, anchor)
    assert_allclose(pack(constraint.project(once, anchor)), pack(once), atol=1e-13)
    assert_allclose(pack(constraint.project(anchor, anchor)), pack(anchor), atol=1e-14)
    assert_allclose(constraint.basis.T @ (pack(other) - pack(once)), 0, atol=1e-13)
    step = pack(once) - pack(anchor)
    assert_allclose(constraint.basis @ (constraint.basis.T @ step), step, atol=1e-13)


@each_family
@each_variant
@pytest.mark.parametrize("em_steps", [0, 10])
def test_maximum_with_a_shared_slope(
    name: str, link: str, variant: str, em_steps: int, rng: np.random.Generator
) -> None:
    problem = make_problem(
        name, link, rng, n_obs=2000, variant=VARIANTS[variant], coefficients=SHARED_SLOPE
    )
    constraint = sharing(problem.truth, 0)
    result = maximise(
        problem.family,
        problem.rows,
        problem.truth,
        max_steps=300,
        em_steps=em_steps,
        tolerance=1e-9,
        constraint=constraint,
    )
    shared = result.parameters.coefficients[0]
    assert_allclose(shared[0], shared[1], rtol=0, atol=1e-10)
    assert np.all(np.diff(result.history) >= 0)
    assert result.converged
    assert 0 <= projected_decrement(problem, result, constraint) < 1e-6


@each_family
def test_maximum_with_held_weights(name: str, link: str, rng: np.random.Generator) -> None:
    """The last entry is the logit; freeing it can only gain."""
    problem = make_problem(name, link, rng, n_obs=1500)
    start = replace(nearby(problem, rng, 0.1), weights=np.array([0.5, 0.5]))
    constraint = holding(start, parameter_count(start) - 1)
    held = maximise(
        problem.family, problem.rows, start, max_steps=300, tolerance=1e-9, constraint=constraint
    )
    assert_allclose(held.parameters.weights, [0.5, 0.5], rtol=0, atol=1e-10)
    assert held.converged
    assert 0 <= projected_decrement(problem, held, constraint) < 1e-6
    free = maximise(problem.family, problem.rows, held.parameters, max_steps=300, tolerance=1e-9)
    assert free.log_likelihood >= held.log_likelihood


def test_shared_deviation(rng: np.random.Generator) -> None:
    """One deviation for both: by hand the root of the mean of all weighted squares."""
    problem = make_problem("gaussian", "identity", rng, n_obs=1500)
    start = replace(problem.truth, dispersion=np.array([0.5, 0.5]))
    constraint = sharing(start, 4)
    result = maximise(
        problem.family,
        problem.rows,
        start,
        max_steps=200,
        em_steps=5,
        tolerance=1e-10,
        constraint=constraint,
    )
    dispersion = result.parameters.dispersion
    assert dispersion is not None
    assert_allclose(dispersion[0], dispersion[1], rtol=1e-10)
    rows, at = problem.rows, result.parameters
    shares = _responsibilities_by_hand(problem, at) * rows.sample_weight[:, None]
    residual = _residuals(problem, at)
    expected = np.sqrt((shares * residual**2).sum() / shares.sum())
    # a Newton decrement below 2e-10 leaves less than 1.5e-5 standard errors, themselves below .05
    assert_allclose(dispersion[0], expected, atol=1e-6)


def _residuals(problem: Problem, at: MixtureParameters) -> FloatArray:
    rows = problem.rows
    eta = np.asarray(rows.Z, dtype=np.float64) @ at.coefficients + at.biases
    return np.asarray(rows.y[:, None] - eta - np.asarray(rows.offset)[:, None])


def _responsibilities_by_hand(problem: Problem, at: MixtureParameters) -> FloatArray:
    assert at.dispersion is not None
    scaled = _residuals(problem, at) / at.dispersion
    joint = at.weights / at.dispersion * np.exp(-0.5 * scaled**2)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("grouped", [False, True])
def test_known_components_make_a_regression_with_dummies(
    grouped: bool, rng: np.random.Generator
) -> None:
    """Lines 100 deviations apart: the components are known, and least squares has the answer.

    A shared slope on the first feature and component-wise rest is one regression on the first
    feature, and on dummies of the components with their products with the second; every row is
    weighted with its component's own variance, so the deviations are shared as well.
    """
    n_obs = 300
    z = rng.standard_normal((n_obs, 2))
    labels = np.repeat(rng.choice(2, n_obs // 3, p=[0.6, 0.4]), 3)
    coefficients = np.array([[0.7, 0.7], [1.0, -1.0]])
    biases = np.array([50.0, -50.0])
    mean = np.einsum("ip,pi->i", z, coefficients[:, labels]) + biases[labels]
    y = mean + rng.standard_normal(n_obs)
    starts = np.arange(0, n_obs, 3) if grouped else None
    rows = LikelihoodRows(z, y, np.ones(n_obs), group_starts=starts)
    start = MixtureParameters(coefficients, biases, np.array([0.5, 0.5]), np.ones(2))
    result = maximise(
        get_family("gaussian"),
        rows,
        start,
        max_steps=100,
        em_steps=5,
        tolerance=1e-12,
        constraint=sharing(start, 0, 3),
    )
    dummies = np.eye(2)[labels]
    design = np.column_stack([z[:, 0], dummies, dummies * z[:, [1]]])
    solution, squares, *_ = np.linalg.lstsq(design, y)
    fitted = result.parameters
    assert fitted.dispersion is not None
    assert_allclose(fitted.coefficients[0], solution[0], rtol=1e-6)
    assert_allclose(fitted.biases, solution[1:3], rtol=1e-6)
    assert_allclose(fitted.coefficients[1], solution[3:], rtol=1e-6)
    assert_allclose(fitted.dispersion, np.sqrt(squares[0] / n_obs), rtol=1e-6)
    assert_allclose(fitted.weights[0], np.mean(labels == 0), rtol=1e-6)


def test_everything_held_evaluates_the_start(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    size = parameter_count(problem.truth)
    constraint = LinearConstraint(np.empty((size, 0)))
    result = maximise(
        problem.family, problem.rows, problem.truth, em_steps=2, constraint=constraint
    )
    assert constraint.n_free == 0
    assert result.converged
    assert_allclose(pack(result.parameters), pack(problem.truth), rtol=1e-14)


def test_no_restriction_is_no_constraint(rng: np.random.Generator) -> None:
    """A constraint that leaves all free finds the same maximum."""
    problem = make_problem("negative_binomial", "log", rng, n_obs=1500)
    start = nearby(problem, rng, 0.1)
    everything = LinearConstraint(np.eye(parameter_count(start)))
    free = maximise(problem.family, problem.rows, start, max_steps=200, tolerance=1e-10)
    held = maximise(
        problem.family,
        problem.rows,
        start,
        max_steps=200,
        tolerance=1e-10,
        constraint=everything,
    )
    assert_allclose(held.log_likelihood, free.log_likelihood, rtol=0, atol=1e-8)
    assert_array_equal(held.sums.score.shape, free.sums.score.shape)


def test_a_bound_and_a_constraint_together(rng: np.random.Generator) -> None:
    """Deviations of .4 and .7 held within a factor of .9, with a shared slope besides."""
    problem = make_problem("gaussian", "identity", rng, n_obs=1500, coefficients=SHARED_SLOPE)
    constraint = sharing(problem.truth, 0)
    result = maximise(
        problem.family,
        problem.rows,
        problem.truth,
        max_steps=200,
        tolerance=1e-9,
        min_dispersion_ratio=0.9,
        constraint=constraint,
    )
    dispersion, shared = result.parameters.dispersion, result.parameters.coefficients[0]
    assert dispersion is not None
    assert_allclose(shared[0], shared[1], rtol=0, atol=1e-10)
    assert_allclose(dispersion.min() / dispersion.max(), 0.9, rtol=1e-8)
    assert result.bounds == ("dispersion ratio of component 0",)


def test_bounds_do_not_break_a_constraint(rng: np.random.Generator) -> None:
    """Separated rows drive both lengths to 100; shrinking one alone would part the shared slopes.

    Only the constraint is exact: a step is put inside the bounds before it is projected, which may
    take it out again. What is checked of the lengths is that they do not run away.
    """
    z = rng.standard_normal((300, 2))
    rows = LikelihoodRows(z, (z[:, 0] > 0).astype(np.float64), np.ones(300))
    start = MixtureParameters(
        np.array([[1.0, 1.0], [0.5, -0.5]]), np.array([0.0, 0.8]), np.array([0.6, 0.4])
    )
    result = maximise(
        get_family("bernoulli"),
        rows,
        start,
        max_steps=300,
        tolerance=1e-12,
        constraint=sharing(start, 0),
    )
    shared = result.parameters.coefficients[0]
    assert_allclose(shared[0], shared[1], rtol=0, atol=1e-10)
    lengths = np.hypot(result.parameters.scales, result.parameters.biases)
    assert 99 < lengths.max() < 101
    assert np.all(np.diff(result.history) >= 0)
