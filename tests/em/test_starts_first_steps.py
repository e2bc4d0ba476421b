"""The single model, models for given responsibilities, and the M-step behind them."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.em.starts import fit_responsibilities, fit_single, joined
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.em_step import fit_assigned
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    BOTH,
    FAMILY_LINKS,
    GATED,
    GROUPS,
    PLAIN,
    Variant,
    make_problem,
    nearby,
)
from tests.search_problems import pose

M_STEP_TOLERANCE = 1e-2
"""`fit_assigned` ends when a step gains less; what is left after it is less still."""

VARIANTS = [PLAIN, GROUPS, GATED, BOTH]


def test_single_gaussian_model_is_least_squares(rng: np.random.Generator) -> None:
    problem = pose(make_problem("gaussian", "identity", rng, with_extras=False))
    run = fit_single(problem)
    design = np.column_stack([np.asarray(problem.rows.Z), np.ones(problem.rows.n_obs)])
    expected, residual, *_ = np.linalg.lstsq(design, problem.rows.y)
    single = run.parameters
    assert run.converged
    assert_allclose(np.append(single.coefficients[:, 0], single.biases), expected, atol=1e-8)
    assert single.dispersion is not None
    assert_allclose(single.dispersion, np.sqrt(residual / problem.rows.n_obs), rtol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_single_model_is_stationary(
    family: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    """With offsets, weights and trials; a gate of one component has nothing to say."""
    run = fit_single(pose(make_problem(family, link, rng, variant=variant)))
    assert run.converged
    score, information = run.sums.score, run.information
    assert 0.5 * float(score @ np.linalg.solve(information, score)) < 1e-6


@pytest.mark.parametrize("variant", [PLAIN, GROUPS, GATED])
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_one_hot_responsibilities_are_separate_fits(
    family: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    """Each component is the model fitted to its own rows alone."""
    drawn = make_problem(family, link, rng, n_obs=400, variant=variant)
    problem = pose(drawn)
    rows = problem.rows
    starts = np.arange(rows.n_obs) if rows.group_starts is None else rows.group_starts
    labels = drawn.labels[starts]
    mixture = fit_responsibilities(problem, np.eye(2)[labels])
    for j in range(2):
        own = replace(rows.take(np.flatnonzero(labels == j)), gate=None, group_starts=None)
        part = replace(mixture.reorder(np.array([j])), weights=np.ones(1), gate=None)
        alone = maximise(problem.family, own, part, max_steps=50, tolerance=1e-10)
        if problem.family.has_closed_deviation:  # by one solve, up to rounding
            assert_allclose(part.coefficients, alone.parameters.coefficients, atol=1e-6)
            assert_allclose(part.biases, alone.parameters.biases, atol=1e-6)
        elif not alone.bounds:  # counts without overdispersion have no finite dispersion
            value = likelihood_sums(problem.family, own, part).log_likelihood
            assert alone.log_likelihood - value < M_STEP_TOLERANCE
    unit_weight = rows.sample_weight if rows.group_starts is None else np.ones(rows.n_units)
    expected = np.bincount(labels, unit_weight) / unit_weight.sum()
    assert_allclose(mixture.weights, expected, rtol=1e-6)
    if rows.gate is not None:
        assert mixture.gate is not None
        assert not mixture.gate.any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_m_step_never_lowers_the_expected_log_likelihood(
    family: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    """After any number of steps, from starts near and, without the logits of a gate, far."""
    drawn = make_problem(family, link, rng, n_obs=150, variant=variant)
    shares = rng.dirichlet([0.5, 0.5], drawn.rows.n_units).T
    for size in (0.2,) if variant.gated else (0.2, 1.0, 2.0):
        start = nearby(drawn, rng, size)
        ends = [start] + [
            fit_assigned(drawn.family, drawn.rows, start, shares, max_steps=steps)
            for steps in (1, 3, 20)
        ]
        values = [
            likelihood_sums(
                drawn.family, drawn.rows, end, curvature=False, assigned=shares
            ).log_likelihood
            for end in ends
        ]
        assert np.all(np.diff(values) >= 0.0)
        assert values[-1] > values[0]


def test_responsibilities_under_restrictions(rng: np.random.Generator) -> None:
    drawn = make_problem("gaussian", "identity", rng, n_obs=200)
    problem = pose(drawn, shared=[1, "bias", "dispersion"], fixed_weights=[0.3, 0.7])
    mixture = problem.to_user(fit_responsibilities(problem, np.eye(2)[drawn.labels]))
    assert_allclose(mixture.coefficients[1, 0], mixture.coefficients[1, 1])
    assert_allclose(mixture.biases[0], mixture.biases[1])
    assert mixture.dispersion is not None
    assert_allclose(mixture.dispersion[0], mixture.dispersion[1])
    assert_allclose(mixture.weights, [0.3, 0.7])


def test_joined_by_hand() -> None:
    first = MixtureParameters(
        np.array([[1.0], [2.0]]), np.array([3.0]), np.ones(1), np.array([0.5])
    )
    second = MixtureParameters(
        np.array([[-1.0], [0.0]]), np.array([4.0]), np.ones(1), np.array([2.0])
    )
    mixture = joined([first, second], np.array([0.25, 0.75]))
    assert_allclose(mixture.coefficients, [[1.0, -1.0], [2.0, 0.0]])
    assert_allclose(mixture.biases, [3.0, 4.0])
    assert_allclose(mixture.weights, [0.25, 0.75])
    assert mixture.dispersion is not None
    assert_allclose(mixture.dispersion, [0.5, 2.0])
    plain = [replace(part, dispersion=None) for part in (first, second)]
    assert joined(plain, np.array([0.5, 0.5])).dispersion is None
