"""Several responses and classes: what they have in common with one response."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.families.several import SeveralResponses, categorical
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.em_step import em_step, fit_assigned
from moment_init.likelihood.parameters import (
    MIN_WEIGHT,
    MixtureParameters,
    active_bounds,
    bounds_of,
    component_size,
    enforce,
    move,
    pack,
    parameter_count,
    unpack,
)
from moment_init.likelihood.posterior import responsibilities, unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.splits import split_component
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    FAMILY_LINKS,
    SEVERAL_LINKS,
    VARIANTS,
    FloatArray,
    Problem,
    make_problem,
    nearby,
    plain_python,
)

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
each_several = pytest.mark.parametrize(("name", "link"), SEVERAL_LINKS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)

# --- parameters ----------------------------------------------------------------------------------


@pytest.fixture
def parameters() -> MixtureParameters:
    """Two features, two components, three predictors of which the second has a dispersion."""
    return MixtureParameters(
        np.arange(12.0).reshape(3, 2, 2),
        np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]),
        np.array([0.8, 0.2]),
        np.array([[np.nan, np.nan], [1.0, np.e], [np.nan, np.nan]]),
    )


def test_vector_has_the_documented_order(parameters: MixtureParameters) -> None:
    """Component by component, predictor by predictor: (beta, b[, log dispersion]), by hand."""
    first = [0, 2, 0.1, 4, 6, 0.3, 0, 8, 10, 0.5]
    second = [1, 3, 0.2, 5, 7, 0.4, 1, 9, 11, 0.6]
    assert_allclose(pack(parameters), [*first, *second, np.log(4)], rtol=1e-15)
    assert (component_size(parameters), parameter_count(parameters)) == (10, 21)
    layout = parameters.layout
    assert_array_equal(layout.slopes, [[0, 1, 2], [3, 4, 5], [7, 8, 9]])
    assert_array_equal(layout.dispersions, [6])
    assert_array_equal(layout.dispersed, [1])


@each_several
@each_variant
def test_unpack_inverts_pack(name: str, link: str, variant: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng, n_obs=10, variant=VARIANTS[variant])
    at = nearby(problem, rng)
    back = unpack(pack(at), at)
    for field in ("coefficients", "biases", "weights", "dispersion", "gate"):
        one, other = getattr(back, field), getattr(at, field)
        assert (one is None) == (other is None)
        if one is not None:
            assert_allclose(one, other, rtol=1e-13)
    assert_allclose(pack(back), pack(at), rtol=1e-13, atol=1e-13)


def test_move_cuts_long_steps_of_the_dispersion_only(parameters: MixtureParameters) -> None:
    moved = pack(move(parameters, np.full(21, 5.0))) - pack(parameters)
    assert_allclose(moved, [*([5] * 6), 1.5, *([5] * 9), 1.5, *([5] * 4)])


def test_scales_and_reordering(parameters: MixtureParameters) -> None:
    assert parameters.scales.shape == (3, 2)
    assert_allclose(parameters.scales[:, 0], np.hypot([0, 4, 8], [2, 6, 10]))
    assert_allclose(np.linalg.norm(parameters.directions, axis=1), 1.0)
    swapped = parameters.reorder(np.array([1, 0]))
    assert_array_equal(swapped.coefficients, parameters.coefficients[:, :, ::-1])
    assert swapped.dispersion is not None
    assert_array_equal(swapped.dispersion[1], [np.e, 1.0])
    basis = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert_array_equal(parameters.lift(basis).coefficients[1], basis @ parameters.coefficients[1])


def test_bounds_name_the_response_and_the_predictor() -> None:
    """A weight, a ratio of deviations and the length of a logit, each moved to its bound."""
    family = SeveralResponses((get_family("bernoulli"), get_family("gaussian")))
    outside = MixtureParameters(
        np.array([[[300.0, 1.0]], [[1.0, 1.0]]]),
        np.array([[400.0, 0.0], [0.0, 0.0]]),
        np.array([1 - 1e-9, 1e-9]),
        np.array([[np.nan, np.nan], [1e-6, 1.0]]),
    )
    bounds = bounds_of(family)
    inside = enforce(outside, bounds)
    assert_allclose(inside.coefficients[:, 0], [[60.0, 1.0], [1.0, 1.0]])
    assert_allclose(inside.biases, [[80.0, 0.0], [0.0, 0.0]])
    assert_allclose(inside.weights, [1 - MIN_WEIGHT, MIN_WEIGHT])
    assert inside.dispersion is not None
    assert_allclose(inside.dispersion, [[np.nan, np.nan], [0.05, 1.0]])
    active = {bound.label: bound.inward for bound in active_bounds(inside, bounds)}
    assert list(active) == [
        "weight of component 1",
        "dispersion ratio of component 0 of response 1",
        "length of component 0 of predictor 0",
    ]
    by_ratio, by_length = list(active.values())[1:]
    assert_allclose(by_ratio, [0, 0, 0, 0, 1, 0, 0, 0, 0, -1, 0])
    assert_allclose(by_length, [-0.6, -0.8, *([0] * 9)])


# --- one response is the case of one predictor ---------------------------------------------------


@each_family
@each_variant
def test_one_of_several_responses_has_the_same_bits(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Responses of shape (n, 1), and parameters with an axis of length one."""
    problem = make_problem(name, link, rng, n_obs=60, variant=VARIANTS[variant])
    rows, at = problem.rows, nearby(problem, rng)
    columns = replace(
        rows,
        y=rows.y[:, None],
        offset=None if rows.offset is None else rows.offset[:, None],
        n_trials=None if rows.n_trials is None else rows.n_trials[:, None],
    )
    several = MixtureParameters(at.slopes, at.levels, at.weights, at.spreads, at.gate)
    one = likelihood_sums(problem.family, rows, at)
    for family, these, there in (
        (problem.family, columns, at),
        (SeveralResponses((problem.family,)), columns, several),
    ):
        other = likelihood_sums(family, these, there)
        assert one.log_likelihood == other.log_likelihood
        assert_array_equal(one.score, other.score)
        assert_array_equal(one.information(), other.information())


@pytest.mark.parametrize("variant", ["plain", "groups"])
@pytest.mark.parametrize(("name", "link"), SEVERAL_LINKS[:-1])
def test_responses_of_one_component_do_not_mix(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """The log-likelihood is a sum over responses, and the information has a block for each."""
    problem = make_problem(name, link, rng, n_obs=60, variant=VARIANTS[variant])
    at = replace(nearby(problem, rng).reorder(np.array([0])), weights=np.ones(1))
    sums = likelihood_sums(problem.family, problem.rows, at)
    information, start, log_likelihood = sums.information(), 0, 0.0
    scale = np.abs(information).max()
    for a in range(at.n_predictors):
        alone, own = single_response(problem, at, a)
        one = likelihood_sums(alone.family, alone.rows, own)
        entries = slice(start, start + len(one.score))
        log_likelihood += one.log_likelihood
        assert_allclose(sums.score[entries], one.score, rtol=1e-10)
        assert_allclose(information[entries, entries], one.information(), atol=1e-11 * scale)
        information[entries, entries] = 0.0
        start = entries.stop
    assert_allclose(sums.log_likelihood, log_likelihood, rtol=1e-12)
    assert_allclose(information, 0.0, atol=1e-11 * scale)


def single_response(
    problem: Problem, at: MixtureParameters, response: int
) -> tuple[Problem, MixtureParameters]:
    """One response of a problem, with the parameters of its predictor."""
    rows, family = problem.rows, problem.family.members[response]
    assert rows.offset is not None
    alone = replace(
        rows,
        y=rows.y[:, response],
        offset=rows.offset[:, response],
        n_trials=None if not family.has_trials else np.array(rows.n_trials)[:, response],
    )
    parameters = MixtureParameters(
        at.slopes[response],
        at.levels[response],
        at.weights,
        None if at.spreads is None or not family.has_dispersion else at.spreads[response],
        at.gate,
    )
    return replace(problem, family=family, rows=alone), parameters


def test_two_classes_are_a_binary_response(rng: np.random.Generator) -> None:
    problem = make_problem("bernoulli", "logit", rng)
    at = nearby(problem, rng)
    one = likelihood_sums(problem.family, problem.rows, at)
    two = likelihood_sums(categorical(2), problem.rows, at)
    assert_allclose(two.log_likelihood, one.log_likelihood, rtol=1e-13)
    scale = np.abs(one.information()).max()
    assert_allclose(two.score, one.score, atol=1e-13 * scale)
    assert_allclose(two.information(), one.information(), atol=1e-12 * scale)


def test_classes_may_change_places(rng: np.random.Generator) -> None:
    """Predictors are swapped with their classes; the reference is subtracted if it changes."""
    problem = make_problem("categorical", "softmax", rng, with_extras=False)
    at, codes = nearby(problem, rng), problem.rows.y
    reference = np.array([1, 0, 2, 3])  # classes 0 and 1 change places
    slopes = np.concatenate([np.zeros((1, 3, 2)), at.slopes])[reference]
    levels = np.concatenate([np.zeros((1, 2)), at.levels])[reference]
    other = MixtureParameters(slopes[1:] - slopes[0], levels[1:] - levels[0], at.weights)
    swapped = replace(problem.rows, y=reference[codes.astype(np.intp)].astype(np.float64))
    assert_allclose(
        unit_log_likelihood(problem.family, swapped, other),
        unit_log_likelihood(problem.family, problem.rows, at),
        rtol=1e-11,
    )


@each_several
def test_offset_may_be_the_same_for_all_predictors(
    name: str, link: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, with_extras=False)
    shift = 0.3 * rng.standard_normal(problem.rows.n_obs)
    columns = np.repeat(shift[:, None], problem.truth.n_predictors, axis=1)
    one, other = (
        likelihood_sums(problem.family, replace(problem.rows, offset=offset), problem.truth)
        for offset in (shift, columns)
    )
    assert_array_equal(one.score, other.score)
    assert_array_equal(one.information(), other.information())


# --- climbing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "link"), SEVERAL_LINKS[:-1])
def test_known_components_are_fitted_one_response_at_a_time(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """With given responsibilities nothing connects the responses."""
    problem = make_problem(name, link, rng, n_obs=300)
    assigned = np.eye(2)[problem.labels].T
    fit = partial(fit_assigned, assigned=assigned, max_steps=60, tolerance=1e-12)
    start = nearby(problem, rng, 0.05)
    together = fit(problem.family, problem.rows, start)
    assert_allclose(
        together.weights, problem.rows.sample_weight @ assigned.T / problem.rows.total_weight
    )
    for a in range(start.n_predictors):
        alone, own = single_response(problem, start, a)
        expected = fit(alone.family, alone.rows, own)
        assert_allclose(together.slopes[a], expected.coefficients, rtol=1e-4, atol=1e-5)
        assert_allclose(together.levels[a], expected.biases, rtol=1e-4, atol=1e-5)
        if expected.dispersion is not None and together.spreads is not None:
            assert_allclose(together.spreads[a], expected.dispersion, rtol=1e-4)


@each_several
@each_variant
def test_bare_em_steps_do_not_lower_the_likelihood(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Near the truth, where one Newton step is nearly the whole M-step."""
    problem = make_problem(name, link, rng, n_obs=1000, variant=VARIANTS[variant])
    at, values = nearby(problem, rng, 0.05), []
    for _ in range(12):
        sums = likelihood_sums(problem.family, problem.rows, at, missing=False)
        values.append(sums.log_likelihood)
        step = em_step(problem.family, sums, at)
        assert step is not None
        at = move(at, step)
    assert np.all(np.diff(values) >= -1e-10 * np.abs(values[0]))
    assert values[-1] > values[0] + 0.1


@each_several
def test_responses_together_tell_components_apart(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """Fitted from a split of the single best component, with 95 percent of the rows assigned right.

    Classes tell less than numbers.
    """
    problem = make_problem(
        name, link, rng, n_obs=3000, with_extras=False, variant=VARIANTS["groups"]
    )
    family, rows = problem.family, problem.rows
    result = maximise(family, rows, nearby(problem, rng, 0.1), max_steps=200, em_steps=5)
    assert result.converged
    shares = responsibilities(family, rows, result.parameters)
    accuracy = np.mean(shares.argmax(axis=1) == problem.labels)
    assert accuracy > 0.95
    errors = standard_errors(result.information)
    difference = pack(result.parameters) - pack(problem.truth)
    assert np.all(np.abs(difference) < 5 * errors)


def standard_errors(information: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(information))))


def test_children_of_a_split_share_their_parent(parameters: MixtureParameters) -> None:
    """Two at beta +- v with half its weight; a gaussian deviation shrinks, nothing else."""
    family = SeveralResponses(tuple(get_family(n) for n in ("poisson", "gaussian", "bernoulli")))
    direction = np.arange(9.0)
    three = split_component(family, parameters, 1, direction)
    v = direction.reshape(3, 3)
    for child, sign in ((1, 1.0), (2, -1.0)):
        expected = parameters.coefficients[:, :, 1] + sign * v[:, :2]
        assert_array_equal(three.coefficients[:, :, child], expected)
        assert_array_equal(three.biases[:, child], parameters.biases[:, 1] + sign * v[:, 2])
    assert_allclose(three.weights, [0.8, 0.1, 0.1])
    assert three.dispersion is not None
    assert_allclose(three.dispersion[1], [1.0, 0.6 * np.e, 0.6 * np.e])
    assert np.isnan(three.dispersion[[0, 2]]).all()


# --- predictors far away -------------------------------------------------------------------------

FAR = [("poisson", (0, 60)), ("gaussian", (-1.3, 2.5)), ("gamma", (0.02, 6.5))]
FAR += [(name, (0, 1)) for name in ("bernoulli", "negative_binomial")]


@pytest.mark.parametrize("form", [nullcontext, plain_python])
@pytest.mark.parametrize("size", [400.0, 1e160, 1e299])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize(("name", "y"), FAR)
def test_of_components_far_off_the_nearer_has_the_row(
    name: str, y: tuple[float, ...], sign: float, size: float, form: Any
) -> None:
    """Biases at one and two sizes; where both are certain of the response, the weights hold."""
    family = get_family(name)
    at = MixtureParameters(
        np.zeros((1, 2)),
        sign * size * np.array([1.0, 2.0]),
        np.array([0.4, 0.6]),
        np.full(2, 1.7) if family.has_dispersion else None,
    )
    with form():
        rows = LikelihoodRows(np.zeros((2, 1)), np.array(y), np.ones(2)).prepared(family)
        values = unit_log_likelihood(family, rows, at)
        shares = responsibilities(family, rows, at)
    assert np.isfinite(values).all()
    expected = np.where(values[:, None] > -1.0, [0.4, 0.6], [1.0, 0.0])
    assert_allclose(shares, expected, atol=1e-12)


@pytest.mark.parametrize("form", [nullcontext, plain_python])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("link", ["logit", "probit"])
def test_impossible_binary_response_keeps_its_log_density(
    link: str, missing: bool, form: Any
) -> None:
    """At eta = -900 and -1000 both probabilities of a one underflow; their logarithms do not."""
    family = get_family("bernoulli", link)
    at = MixtureParameters(np.zeros((1, 2)), np.array([-900.0, -1000.0]), np.array([0.5, 0.5]))
    with form():
        rows = LikelihoodRows(np.zeros((1, 1)), np.ones(1), np.ones(1)).prepared(family)
        sums = likelihood_sums(family, rows, at, missing=missing)
    expected = float(family.log_density_eta(1.0, -900.0)) + np.log(0.5)
    assert_allclose(sums.log_likelihood, expected, rtol=1e-14)
    assert_allclose(sums.row_counts, [1.0, 0.0], atol=1e-12)
