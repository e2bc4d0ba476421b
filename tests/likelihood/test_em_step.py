"""One iteration of EM against the M-step done by hand."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.em_step import em_step
from moment_init.likelihood.parameters import MixtureParameters, component_size, move, pack, unpack
from moment_init.likelihood.posterior import responsibilities
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    ALL_LINKS,
    FAMILY_LINKS,
    VARIANTS,
    FloatArray,
    Problem,
    joint_by_hand,
    make_problem,
    nearby,
    unit_counts_by_hand,
    units_of,
)

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def step_at(problem: Problem, at: MixtureParameters) -> FloatArray:
    """The step of an iteration of EM, which must exist."""
    sums = likelihood_sums(problem.family, problem.rows, at, missing=False)
    step = em_step(problem.family, sums, at)
    assert step is not None
    return step


def unit_shares(problem: Problem, at: MixtureParameters) -> FloatArray:
    """Responsibilities of the units times the number of draws each stands for."""
    firsts = [own[0] for own in units_of(problem.rows)]
    shares = responsibilities(problem.family, problem.rows, at)[firsts]
    return unit_counts_by_hand(problem.rows)[:, None] * shares


@each_variant
def test_gaussian_step_is_the_m_step(variant: str, rng: np.random.Generator) -> None:
    """Weighted least squares by `lstsq`, and the root mean square of what it leaves."""
    problem = make_problem("gaussian", "identity", rng, variant=VARIANTS[variant])
    rows, at = problem.rows, nearby(problem, rng)
    after = unpack(pack(at) + step_at(problem, at), at)
    assert rows.offset is not None
    assert after.dispersion is not None
    x = np.column_stack([np.asarray(rows.Z, dtype=np.float64), np.ones(rows.n_obs)])
    shares = responsibilities(problem.family, rows, at) * rows.sample_weight[:, None]
    for j, share in enumerate(shares.T):
        root, target = np.sqrt(share), rows.y - rows.offset
        solution = np.linalg.lstsq(x * root[:, None], target * root)[0]
        # a ridge of 1e-10 keeps the solver's factorisation from failing
        assert_allclose(after.coefficients[:, j], solution[:3], atol=1e-8)
        assert_allclose(after.biases[j], solution[3], atol=1e-8)
        squares = share @ (target - x @ solution) ** 2
        assert_allclose(after.dispersion[j], np.sqrt(squares / share.sum()), rtol=1e-8)


@each_kind
@pytest.mark.parametrize("variant", ["plain", "groups"])
def test_weights_are_mean_responsibilities(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Over units: a group counts once, whatever the weights of its rows."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    at = nearby(problem, rng)
    after = move(at, step_at(problem, at))
    shares = unit_shares(problem, at).sum(axis=0)
    assert_allclose(after.weights, shares / shares.sum(), rtol=1e-10)


@each_kind
@pytest.mark.parametrize("variant", ["gate", "both"])
def test_gate_step_is_a_newton_step_of_a_multinomial_logit(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """With two components a logistic regression of the responsibilities on (1, g)."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    at = nearby(problem, rng)
    shares = unit_shares(problem, at)
    count = unit_counts_by_hand(problem.rows)
    firsts = [own[0] for own in units_of(problem.rows)]
    assert problem.rows.gate is not None
    design = np.column_stack([np.ones(len(firsts)), problem.rows.gate[firsts]])
    gamma = pack(at)[-3:]
    probability = special.expit(design @ gamma)
    hessian = (design * (count * probability * (1 - probability))[:, None]).T @ design
    expected = np.linalg.solve(hessian, design.T @ (shares[:, 0] - count * probability))
    assert_allclose(step_at(problem, at)[-3:], expected, rtol=1e-7, atol=1e-9)


@each_family
@each_variant
def test_slopes_solve_reweighted_least_squares(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """(sum R V x x') delta = sum R u x, with u and V from the family's own derivatives."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    family, rows, at = problem.family, problem.rows, nearby(problem, rng)
    q = component_size(at)
    step = step_at(problem, at)
    x = np.column_stack([np.asarray(rows.Z, dtype=np.float64), np.ones(rows.n_obs)])
    shares = responsibilities(family, rows, at) * rows.sample_weight[:, None]
    for j, share in enumerate(shares.T):
        eta = x @ np.append(at.coefficients[:, j], at.biases[j]) + rows.offset
        own = family.log_density_derivatives(
            rows.y,
            eta,
            dispersion=None if at.dispersion is None else at.dispersion[j],
            n_trials=rows.n_trials,
        )
        information = (x * (-share * own.eta2)[:, None]).T @ x
        expected = np.linalg.solve(information, x.T @ (share * own.eta1))
        assert_allclose(step[j * q : j * q + 4], expected, rtol=1e-7, atol=1e-8)
        if at.dispersion is not None and not family.has_closed_deviation:
            assert own.tau1 is not None
            assert own.tau2 is not None
            curvature = -(share @ own.tau2)
            newton = share @ own.tau1 / curvature if curvature > 0 else np.nan
            blind = 0.5 * np.sign(share @ own.tau1)
            assert_allclose(step[j * q + 4], newton if curvature > 0 else blind, rtol=1e-9)


@each_kind
@each_variant
def test_step_raises_the_expected_likelihood(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Q rises along a short step, and at the fixed point of a gaussian M-step by all of it."""
    problem = make_problem(name, link, rng, n_obs=60, variant=VARIANTS[variant])
    at = nearby(problem, rng, 0.1)
    shares = unit_shares(problem, at)

    def expected_likelihood(parameters: MixtureParameters) -> float:
        joint = joint_by_hand(problem.family, problem.rows, parameters)
        return float((shares * joint).sum())

    step = step_at(problem, at)
    short = expected_likelihood(unpack(pack(at) + 0.01 * step, at))
    assert short > expected_likelihood(at)


@each_variant
def test_gaussian_iterations_never_fall(variant: str, rng: np.random.Generator) -> None:
    """Bare iterations: exact M-steps without a gate, a Newton step of a logit near its maximum."""
    problem = make_problem("gaussian", "identity", rng, variant=VARIANTS[variant])
    at = nearby(problem, rng)
    values = []
    for _ in range(30):
        sums = likelihood_sums(problem.family, problem.rows, at, missing=False)
        values.append(sums.log_likelihood)
        step = em_step(problem.family, sums, at)
        assert step is not None
        at = unpack(pack(at) + step, at)
    assert np.all(np.diff(values) >= -1e-12 * np.abs(values[0]))
    assert values[-1] > values[0]


@each_kind
@each_variant
def test_guarded_iterations_never_fall(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    start = nearby(problem, rng, 0.6)
    result = maximise(problem.family, problem.rows, start, max_steps=25, em_steps=25)
    assert np.all(np.diff(result.history) >= 0)
    assert result.history[-1] > result.history[0]


@each_kind
@each_variant
def test_maximum_is_a_fixed_point(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Where the score is zero, so is the step: sizes are compared in standard errors."""
    problem = make_problem(name, link, rng, n_obs=1500, variant=VARIANTS[variant])
    result = maximise(problem.family, problem.rows, problem.truth, max_steps=200, tolerance=1e-10)
    assert result.converged
    step = step_at(problem, result.parameters)
    assert step @ result.sums.complete_information @ step < 1e-6


# --- degenerate sums -----------------------------------------------------------------------------


def test_step_needs_curvature(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    sums = likelihood_sums(problem.family, problem.rows, problem.truth, curvature=False)
    with pytest.raises(ValueError, match="`curvature` must be True"):
        em_step(problem.family, sums, problem.truth)


def test_undetermined_component_has_no_step(rng: np.random.Generator) -> None:
    """All columns alike, also after the ridge of 1e-10 that the solver adds to the diagonal."""
    problem = make_problem("poisson", "log", rng)
    sums = likelihood_sums(problem.family, problem.rows, problem.truth, missing=False)
    assert sums.component_information is not None
    alike = np.full((4, 4), 1 + 1e-10)
    np.fill_diagonal(alike, 1.0)
    broken = replace(sums, component_information=np.stack([alike, alike]))
    assert em_step(problem.family, broken, problem.truth) is None


def test_undetermined_gate_has_no_step(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, variant=VARIANTS["gate"])
    sums = likelihood_sums(problem.family, problem.rows, problem.truth, missing=False)
    assert sums.gate_information is not None
    broken = replace(sums, gate_information=-sums.gate_information)
    assert em_step(problem.family, broken, problem.truth) is None


def test_emptied_component_takes_a_finite_step(rng: np.random.Generator) -> None:
    """A gaussian component a thousand deviations away has responsibilities of exactly zero."""
    problem = make_problem("gaussian", "identity", rng)
    far = replace(problem.truth, biases=np.array([0.6, 1e3]))
    step = step_at(problem, far)
    assert np.all(np.isfinite(step))
    assert_array_equal(step[5:9], np.zeros(4))
    # log(count) of the other against the smallest that counts
    counts = problem.rows.total_weight, 1e-8
    expected = np.log(counts[0] / 0.65) - np.log(counts[1] / 0.35)
    assert_allclose(step[-1], expected, rtol=1e-9)


def test_exact_fit_shrinks_the_deviation_by_a_bounded_factor(rng: np.random.Generator) -> None:
    """No residual is left after the step: the variance falls by 1e6, the deviation by 1e3."""
    problem = make_problem("gaussian", "identity", rng, with_extras=False)
    alone = MixtureParameters(np.zeros((3, 1)), np.zeros(1), np.ones(1), np.ones(1))
    exact = np.asarray(problem.rows.Z, dtype=np.float64) @ [1.0, 2.0, 3.0]
    fitted = replace(problem, rows=replace(problem.rows, y=exact))
    step = step_at(fitted, alone)
    assert_allclose(step, [1, 2, 3, 0, np.log(1e-3)], atol=1e-8)


def test_dispersion_with_the_wrong_curvature_steps_along_its_score(
    rng: np.random.Generator,
) -> None:
    problem = make_problem("gamma", "log", rng)
    sums = likelihood_sums(problem.family, problem.rows, problem.truth, missing=False)
    assert sums.component_information is not None
    information = sums.component_information.copy()
    information[0, -1, -1] = -1.0
    score = sums.score.copy()
    for sign in (1.0, -1.0):
        score[4] = sign * 3.0
        wrong = replace(sums, component_information=information, score=score)
        step = em_step(problem.family, wrong, problem.truth)
        assert step is not None
        assert step[4] == 0.5 * sign
