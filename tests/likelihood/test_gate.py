"""Weights that depend on covariates through a multinomial logit."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from moment_init.families.registry import get_family
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import (
    LARGEST_GATE,
    MixtureParameters,
    active_bounds,
    bounds_of,
    enforce,
    move,
    pack,
    parameter_count,
    unpack,
)
from moment_init.likelihood.posterior import prior_probabilities
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.splits import drop_and_split, split_component, split_statistics
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    BOTH,
    FAMILY_LINKS,
    GATED,
    VARIANTS,
    Variant,
    log_likelihood_by_hand,
    make_problem,
    nearby,
)

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
each_gated = pytest.mark.parametrize("variant", ["gate", "both"])


@pytest.fixture
def parameters() -> MixtureParameters:
    """Three components, two gating covariates."""
    return MixtureParameters(
        np.array([[1.0, 2.0, 3.0]]),
        np.array([0.1, 0.2, 0.3]),
        np.array([0.5, 0.3, 0.2]),
        None,
        np.array([[1.0, -2.0, 0.0], [0.5, 0.25, 0.0]]),
    )


def test_vector_has_the_documented_order(parameters: MixtureParameters) -> None:
    """Each component but the last: its logit, then its slopes."""
    expected = [1, 0.1, 2, 0.2, 3, 0.3, np.log(2.5), 1, 0.5, np.log(1.5), -2, 0.25]
    assert_allclose(pack(parameters), expected, rtol=1e-15)
    assert parameters.n_gate == 2
    assert parameter_count(parameters) == 12


def test_unpack_inverts_pack(parameters: MixtureParameters) -> None:
    back = unpack(pack(parameters), parameters)
    assert_allclose(back.weights, parameters.weights, rtol=1e-14)
    assert back.gate is not None
    assert parameters.gate is not None
    assert_array_equal(back.gate, parameters.gate)
    step = np.linspace(-1, 1, 12)
    assert_allclose(pack(move(parameters, step)), pack(parameters) + step, atol=1e-14)


def test_probabilities_by_hand(parameters: MixtureParameters) -> None:
    """At g = (log 2, 0): weights times (2, 1/4, 1) are (1, .075, .2), of sum 1.275."""
    design = np.array([[1.0, 0.0, 0.0], [1.0, np.log(2), 0.0]])
    result = prior_probabilities(parameters, design)
    assert_allclose(result[:, 0], parameters.weights, rtol=1e-14)
    assert_allclose(result[:, 1], np.array([1, 0.075, 0.2]) / 1.275, rtol=1e-14)
    without = prior_probabilities(replace(parameters, gate=None), design)
    assert_array_equal(without, parameters.weights[:, None])


def test_reorder_keeps_the_probabilities(
    parameters: MixtureParameters, rng: np.random.Generator
) -> None:
    """The slopes are taken about those of the component that comes last."""
    design = np.column_stack([np.ones(5), rng.standard_normal((5, 2))])
    order = np.array([2, 0, 1])
    moved = parameters.reorder(order)
    assert moved.gate is not None
    assert_array_equal(moved.gate[:, -1], 0)
    expected = prior_probabilities(parameters, design)[order]
    assert_allclose(prior_probabilities(moved, design), expected, rtol=1e-13)


@each_family
@each_gated
def test_components_may_be_reordered(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Components change places; the logit and its slopes change their signs."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    at = nearby(problem, rng)
    one = likelihood_sums(problem.family, problem.rows, at)
    other = likelihood_sums(problem.family, problem.rows, at.reorder(np.array([1, 0])))
    half = (one.score.size - 3) // 2
    last = np.arange(2 * half, 2 * half + 3)
    order = np.concatenate([np.arange(half, 2 * half), np.arange(half), last])
    signs = np.append(np.ones(2 * half), -np.ones(3))
    assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-12)
    scale = np.abs(one.complete_information).max()
    assert_allclose(other.score, signs * one.score[order], atol=1e-11 * scale)
    expected = np.outer(signs, signs) * one.information()[np.ix_(order, order)]
    assert_allclose(other.information(), expected, atol=1e-10 * scale)


@each_family
@each_gated
def test_zero_slopes_are_no_gate(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Parameters without a gate ignore gating covariates; zero slopes agree on all the rest."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    at = replace(nearby(problem, rng), gate=None)
    flat = replace(at, gate=np.zeros((2, 2)))
    gated = likelihood_sums(problem.family, problem.rows, flat)
    without = likelihood_sums(problem.family, replace(problem.rows, gate=None), at)
    ignored = likelihood_sums(problem.family, problem.rows, at)
    size = parameter_count(at)
    scale = np.abs(without.complete_information).max()
    for sums in (gated, ignored):
        assert_allclose(sums.log_likelihood, without.log_likelihood, rtol=1e-12)
        assert_allclose(sums.score[:size], without.score, atol=1e-11 * scale)
        information = sums.information()[:size, :size]
        assert_allclose(information, without.information(), atol=1e-10 * scale)
    assert gated.score.size == size + 2
    assert ignored.score.size == size


@pytest.mark.parametrize("variant", [GATED, BOTH])
def test_a_single_unit_has_a_whole_information(variant: Variant, rng: np.random.Generator) -> None:
    """pi (1 - pi) (1, g) (1, g)', though there is only one unit to take it from."""
    problem = make_problem("poisson", "log", rng, variant=variant)
    one = problem.rows.take(slice(0, 1))
    weight = 1.0 if variant.grouped else one.sample_weight[0]
    assert one.gate is not None
    design = np.append(1.0, one.gate[0])
    probability = special.expit(np.log(0.65 / 0.35) + one.gate[0] @ [0.8, -0.5])
    expected = weight * probability * (1 - probability) * np.outer(design, design)
    sums = likelihood_sums(problem.family, one, problem.truth)
    assert sums.gate_information is not None
    assert_allclose(sums.gate_information, expected, rtol=1e-12)


@pytest.mark.parametrize("variant", [GATED, BOTH])
def test_a_last_block_of_one_unit_counts_once(
    variant: Variant, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty-one units in blocks of ten and in a single block."""
    problem = make_problem("bernoulli", "logit", rng, variant=variant)
    rows = problem.rows.take(slice(0, 21))
    whole = likelihood_sums(problem.family, rows, problem.truth)
    monkeypatch.setattr("moment_init.data.blocks.MIN_BLOCK_ROWS", 10)
    monkeypatch.setattr("moment_init.data.blocks.CACHE_DOUBLES", 1)
    blocks = likelihood_sums(problem.family, rows, problem.truth)
    scale = np.abs(whole.complete_information).max()
    assert_allclose(blocks.complete_information, whole.complete_information, atol=1e-13 * scale)
    assert_allclose(blocks.information(), whole.information(), atol=1e-12 * scale)


@each_gated
def test_three_components_by_brute_force(
    variant: str, parameters: MixtureParameters, rng: np.random.Generator
) -> None:
    """More than one logit: blocks of the gate's information between components count too."""
    problem = make_problem("poisson", "log", rng, n_obs=40, variant=VARIANTS[variant])
    rows = replace(problem.rows, Z=np.asarray(problem.rows.Z)[:, :1])
    at = replace(parameters, coefficients=0.3 * parameters.coefficients)
    sums = likelihood_sums(problem.family, rows, at)
    expected = log_likelihood_by_hand(problem.family, rows, at)
    assert_allclose(sums.log_likelihood, expected, rtol=1e-11)
    centre, step = pack(at), 1e-5
    for index, unit in enumerate(np.eye(centre.size) * step):
        ends = [
            likelihood_sums(problem.family, rows, unpack(centre + sign * unit, at)).score
            for sign in (1, -1)
        ]
        slope = (ends[1] - ends[0]) / (2 * step)
        scale = np.abs(sums.information()).max()
        assert_allclose(sums.information()[index], slope, atol=1e-7 * scale)


# --- steep gates ---------------------------------------------------------------------------------


@each_family
def test_steep_gates_give_finite_sums(name: str, link: str, rng: np.random.Generator) -> None:
    """A gate at its bound makes probabilities of zero and one to rounding."""
    problem = make_problem(name, link, rng, n_obs=100, variant=GATED)
    steep = replace(problem.truth, gate=np.array([[LARGEST_GATE * 10, 0.0], [0.0, 0.0]]))
    for at in (steep, enforce(steep, bounds_of(problem.family))):
        sums = likelihood_sums(problem.family, problem.rows, at)
        assert np.isfinite(sums.log_likelihood)
        assert np.all(np.isfinite(sums.score))
        assert np.all(np.isfinite(sums.information()))
        statistics = split_statistics(problem.family, problem.rows, at)
        assert np.all(np.isfinite(statistics.drop_losses))
        assert np.isfinite(statistics.misfit)


def test_enforce_by_hand(parameters: MixtureParameters) -> None:
    """Slopes of length 200 to 100, with their logit of log(1e8) to log(1e4); small weights stay."""
    steep = replace(
        parameters,
        weights=np.array([1 - 2e-8, 1e-8, 1e-8]),
        gate=np.array([[120.0, 1.0, 0.0], [-160.0, 2.0, 0.0]]),
    )
    bounds = bounds_of(get_family("poisson"))
    result = enforce(steep, bounds)
    assert result.gate is not None
    assert_allclose(result.gate, [[60, 1, 0], [-80, 2, 0]], rtol=1e-14)
    assert_allclose(result.weights / result.weights[2], [1e4, 1, 1], rtol=1e-6)
    (held,) = active_bounds(result, bounds)
    assert held.label == "gate slope of component 0"
    assert_allclose(held.inward @ np.r_[np.zeros(7), -0.6, 0.8, np.zeros(3)], 1.0)
    gentle = replace(steep, gate=np.zeros((2, 3)), weights=np.array([1.0, 1e-20, 1e-290]))
    assert_allclose(enforce(gentle, bounds).weights[1:], [1e-20, 1e-280], rtol=1e-9)


def test_separating_covariates_leave_the_gate_finite(rng: np.random.Generator) -> None:
    """The sign of the gating covariate says which of two far lines a row is from."""
    n_obs = 300
    z, covariate = rng.standard_normal((n_obs, 1)), rng.standard_normal((n_obs, 1))
    labels = (covariate[:, 0] < 0).astype(np.intp)
    y = np.where(labels == 0, 5.0, -5.0) + z[:, 0] + 0.1 * rng.standard_normal(n_obs)
    rows = LikelihoodRows(z, y, np.ones(n_obs), gate=covariate)
    start = MixtureParameters(
        np.ones((1, 2)),
        np.array([4.0, -4.0]),
        np.array([0.5, 0.5]),
        np.array([1.0, 1.0]),
        np.zeros((1, 2)),
    )
    result = maximise(get_family("gaussian"), rows, start, max_steps=200, em_steps=5)
    gate = result.parameters.gate
    assert gate is not None
    assert 5 < gate[0, 0] <= LARGEST_GATE * (1 + 1e-12)
    assert np.all(np.diff(result.history) >= 0)
    assert np.all(np.isfinite(pack(result.parameters)))


# --- splits --------------------------------------------------------------------------------------


def test_children_inherit_the_gate(parameters: MixtureParameters) -> None:
    """Both children have their parent's slopes and half its weight, so the others' stay."""
    family = get_family("poisson")
    design = np.array([[1.0, 0.3, -0.7]])
    before = prior_probabilities(parameters, design)[:, 0]
    for component in range(3):
        result = split_component(family, parameters, component, np.array([0.1, 0.2]))
        after = prior_probabilities(result, design)[:, 0]
        expected = np.append(before, before[component])
        expected[[component, 3]] /= 2
        assert_allclose(after, expected, rtol=1e-13)
        assert result.gate is not None
        assert_array_equal(result.gate[:, -1], 0)
    moved = drop_and_split(family, parameters, 2, 0, np.array([0.1, 0.2]))
    left = before[[0, 1, 0]] * [0.5, 1, 0.5]
    assert_allclose(prior_probabilities(moved, design)[:, 0], left / left.sum(), rtol=1e-13)


@each_gated
def test_drop_losses_are_those_of_the_smaller_mixture(
    variant: str, rng: np.random.Generator
) -> None:
    """Without a component the others' probabilities grow to sum to one, unit by unit."""
    problem = make_problem(
        "poisson", "log", rng, n_obs=60, with_extras=False, variant=VARIANTS[variant]
    )
    family, rows, truth = problem.family, problem.rows, problem.truth
    whole = log_likelihood_by_hand(family, rows, truth)
    losses = split_statistics(family, rows, truth).drop_losses
    for drop in (0, 1):
        rest = truth.reorder(np.array([1 - drop]))
        alone = MixtureParameters(rest.coefficients, rest.biases, np.ones(1))
        left = log_likelihood_by_hand(family, rows, alone)
        # units that the component alone explains are counted at 28 at most; rounding of 1 - R
        assert 0 < losses[drop] <= whole - left + 1e-3
