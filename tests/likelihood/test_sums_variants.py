"""Groups and gates: the likelihood by brute force, its derivatives by differences."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special

from moment_init.likelihood.parameters import pack, parameter_count, unpack
from moment_init.likelihood.posterior import responsibilities, unit_log_likelihood
from moment_init.likelihood.sums import likelihood_sums, outer_product_information
from tests.likelihood_problems import (
    ALL_LINKS,
    FAMILY_LINKS,
    SEVERAL_LINKS,
    VARIANTS,
    FloatArray,
    Problem,
    differences,
    joint_by_hand,
    log_likelihood_by_hand,
    make_problem,
    nearby,
    numerical_jacobian,
    numerical_score,
    unit_counts_by_hand,
    units_of,
)

each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)
with_units = pytest.mark.parametrize("variant", ["groups", "gate", "both"])


def near_problem(
    name: str, link: str, variant: str, rng: np.random.Generator, n_obs: int = 200
) -> Problem:
    """A problem whose `truth` has been moved to where nothing is stationary."""
    problem = make_problem(name, link, rng, n_obs=n_obs, variant=VARIANTS[variant])
    return replace(problem, truth=nearby(problem, rng))


def second_differences(
    function: Callable[[FloatArray], FloatArray], centre: FloatArray, step: float = 1e-3
) -> FloatArray:
    """Second derivatives by differences of the second order, shape (N, N, ...)."""
    units = np.eye(centre.size) * step
    result = np.empty((centre.size, centre.size, *function(centre).shape))
    for a, b in combinations_with_replacement(range(centre.size), 2):
        plus, minus = units[a] + units[b], units[a] - units[b]
        equal = function(centre + plus) + function(centre - plus)
        opposite = function(centre + minus) + function(centre - minus)
        result[a, b] = result[b, a] = (equal - opposite) / (4 * step**2)
    return result


@each_kind
@each_variant
@pytest.mark.parametrize("with_extras", [False, True])
def test_log_likelihood_by_brute_force(
    name: str, link: str, variant: str, with_extras: bool, rng: np.random.Generator
) -> None:
    """Densities of `scipy.stats` in plain loops; with weights, offsets and trials or without."""
    problem = make_problem(
        name, link, rng, n_obs=40, with_extras=with_extras, variant=VARIANTS[variant]
    )
    at = nearby(problem, rng)
    sums = likelihood_sums(problem.family, problem.rows, at)
    expected = log_likelihood_by_hand(problem.family, problem.rows, at)
    assert_allclose(sums.log_likelihood, expected, rtol=1e-10)


@each_kind
@each_variant
def test_units_by_brute_force(name: str, link: str, variant: str, rng: np.random.Generator) -> None:
    problem = near_problem(name, link, variant, rng, n_obs=40)
    family, rows, at = problem.family, problem.rows, problem.truth
    joint = joint_by_hand(family, rows, at)
    expected = special.logsumexp(joint, axis=1)
    assert_allclose(unit_log_likelihood(family, rows, at), expected, rtol=1e-9, atol=1e-9)
    shares = np.exp(joint - expected[:, None])
    by_row = responsibilities(family, rows, at)
    for own, share in zip(units_of(rows), shares, strict=True):
        assert_allclose(by_row[own], np.tile(share, (len(own), 1)), rtol=1e-8, atol=1e-12)
    sums = likelihood_sums(family, rows, at, curvature=False)
    assert_allclose(sums.unit_counts, unit_counts_by_hand(rows) @ shares, rtol=1e-9)
    assert_allclose(sums.row_counts, rows.sample_weight @ by_row, rtol=1e-12)


@each_kind
@with_units
def test_score_is_the_gradient(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = near_problem(name, link, variant, rng)
    score = likelihood_sums(problem.family, problem.rows, problem.truth).score
    expected = numerical_score(problem, problem.truth)
    assert score.shape == (parameter_count(problem.truth),)
    assert_allclose(score, expected, rtol=1e-6, atol=1e-6 * np.abs(score).max())


@each_kind
@with_units
def test_information_is_minus_the_hessian(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = near_problem(name, link, variant, rng)
    information = likelihood_sums(problem.family, problem.rows, problem.truth).information()
    expected = -numerical_jacobian(problem, problem.truth)
    assert_allclose(information, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


@each_kind
@each_variant
def test_informations_are_semi_definite(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """The missing information anywhere; the complete-data one at the truth, where it is a mean."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    sums = likelihood_sums(problem.family, problem.rows, problem.truth)
    missing = likelihood_sums(
        problem.family, problem.rows, nearby(problem, rng)
    ).missing_information
    assert missing is not None
    for matrix in (sums.complete_information, missing):
        assert_allclose(matrix, matrix.T, rtol=1e-9, atol=1e-10 * np.abs(matrix).max())
        values = np.linalg.eigvalsh(matrix)
        assert values[0] > -1e-10 * values[-1]


@each_kind
@each_variant
def test_flags_choose_what_is_summed(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = near_problem(name, link, variant, rng)
    family, rows, at = problem.family, problem.rows, problem.truth
    whole = likelihood_sums(family, rows, at)
    em = likelihood_sums(family, rows, at, missing=False)
    first = likelihood_sums(family, rows, at, curvature=False)
    for other in (em, first):
        assert_allclose(other.log_likelihood, whole.log_likelihood, rtol=1e-14)
        assert_allclose(other.score, whole.score, rtol=1e-10, atol=1e-10)
    expected = whole.component_information
    assert expected is not None
    expected, layout = expected.copy(), at.layout
    for a, place in zip(layout.dispersed, layout.dispersions, strict=True):
        if family.predictor_families[a].has_closed_deviation:
            # its mean information, none shared with the coefficients
            expected[:, place, :] = expected[:, :, place] = 0.0
            expected[:, place, place] = 2.0 * whole.row_counts
    assert em.component_information is not None
    assert_allclose(em.component_information, expected, rtol=1e-12)
    assert em.gate_information is not None
    assert whole.gate_information is not None
    assert_allclose(em.gate_information, whole.gate_information, rtol=1e-12)
    assert_allclose(whole.information(1.0), whole.complete_information, rtol=0)
    half = 0.5 * (whole.information() + whole.complete_information)
    assert_allclose(whole.information(0.5), half, rtol=1e-9, atol=1e-9 * np.abs(half).max())
    with pytest.raises(ValueError, match=r"`missing` must be True .* got 0\.5"):
        em.information(0.5)
    with pytest.raises(ValueError, match="`curvature` must be True"):
        first.information(1.0)


@pytest.mark.parametrize(("name", "link"), [*FAMILY_LINKS, *SEVERAL_LINKS[2:]])
@each_variant
def test_louis_identity_by_enumeration(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """All assignments of components to units, each with its complete-data score and information.

    Derivatives of the complete-data likelihood are differences of `scipy.stats` densities, those of
    second order good to a few 1e-7 of their fourth derivatives, 1e-5 at most; the posterior of an
    assignment is a product over units. Weights are one here, as an enumeration has no place for a
    share of a unit.
    """
    problem = near_problem(name, link, variant, rng, n_obs=5)
    rows, at = replace(problem.rows, sample_weight=np.ones(5)), problem.truth

    def joint(vector: FloatArray) -> FloatArray:
        return joint_by_hand(problem.family, rows, unpack(vector, at))

    centre = pack(at)
    shares = special.softmax(joint(centre), axis=1)
    scores, hessians = differences(joint, centre, 1e-3), second_differences(joint, centre)
    units = np.arange(rows.n_units)
    mean = np.zeros(centre.size)
    square, complete = np.zeros((2, centre.size, centre.size))
    for assignment in product(range(at.n_components), repeat=rows.n_units):
        probability = shares[units, list(assignment)].prod()
        score = scores[:, units, list(assignment)].sum(axis=1)
        mean += probability * score
        square += probability * np.outer(score, score)
        complete -= probability * hessians[:, :, units, list(assignment)].sum(axis=2)
    sums = likelihood_sums(problem.family, rows, at)
    assert sums.missing_information is not None
    scale = np.abs(complete).max()
    assert_allclose(sums.score, mean, atol=1e-7 * scale)
    assert_allclose(sums.complete_information, complete, atol=1e-5 * scale)
    missing = square - np.outer(mean, mean)
    assert_allclose(sums.missing_information, missing, atol=1e-7 * max(scale, missing.max()))


@each_kind
@with_units
def test_outer_products_sum_unit_scores(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = near_problem(name, link, variant, rng, n_obs=20)
    family, rows, at = problem.family, problem.rows, problem.truth
    expected = np.zeros((parameter_count(at),) * 2)
    for unit, count in enumerate(unit_counts_by_hand(rows)):
        one = rows.take(slice(unit, unit + 1))
        score = likelihood_sums(family, one, at, curvature=False).score
        expected += np.outer(score, score) / count
    result = outer_product_information(family, rows, at)
    assert_allclose(result, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
