"""Log-likelihood, score and information of a mixture."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters, pack
from moment_init.likelihood.posterior import responsibilities, unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums, outer_product_information
from tests.likelihood_problems import (
    ALL_LINKS,
    FAMILY_LINKS,
    make_problem,
    nearby,
    numerical_jacobian,
    numerical_score,
)

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)


def test_two_rows_by_hand() -> None:
    """Two Bernoulli components with eta = 0 and log 3, so that P(y = 1) is 1/2 and 3/4.

    With weights 1/2 each, P(1) = 5/8 and P(0) = 3/8. A one has R = (2/5, 3/5) and slopes
    (1/2, 1/4); a zero has R = (2/3, 1/3) and slopes (-1/2, -3/4).
    """
    rows = LikelihoodRows(np.zeros((2, 1)), np.array([1.0, 0.0]), np.ones(2))
    parameters = MixtureParameters(
        np.zeros((1, 2)), np.array([0.0, np.log(3)]), np.array([0.5, 0.5])
    )
    sums = likelihood_sums(get_family("bernoulli"), rows, parameters)
    assert_allclose(sums.log_likelihood, np.log(5 / 8) + np.log(3 / 8), rtol=1e-14)
    biases = [2 / 5 / 2 - 2 / 3 / 2, 3 / 5 / 4 - 1 / 3 * 3 / 4]
    logit = 2 / 5 + 2 / 3 - 1
    assert_allclose(sums.score, [0, biases[0], 0, biases[1], logit], atol=1e-15)
    complete = (2 / 5 + 2 / 3) / 4, (3 / 5 + 1 / 3) * 3 / 16
    assert sums.complete_information is not None
    assert_allclose(np.diag(sums.complete_information), [0, complete[0], 0, complete[1], 0.5])


def test_log_likelihood_is_complete(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    rows, truth = problem.rows, problem.truth
    assert rows.offset is not None
    means = np.exp(
        np.asarray(rows.Z, dtype=np.float64) @ truth.coefficients
        + truth.biases
        + rows.offset[:, None]
    )
    density = stats.poisson(means).pmf(rows.y[:, None]) @ truth.weights
    sums = likelihood_sums(problem.family, rows, truth)
    assert_allclose(sums.log_likelihood, rows.sample_weight @ np.log(density), rtol=1e-12)
    by_row = unit_log_likelihood(problem.family, rows, truth)
    assert_allclose(by_row, np.log(density), rtol=1e-11)


@each_kind
def test_score_is_the_gradient(name: str, link: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng)
    at = nearby(problem, rng)
    score = likelihood_sums(problem.family, problem.rows, at).score
    expected = numerical_score(problem, at)
    assert_allclose(score, expected, rtol=1e-6, atol=1e-6 * np.abs(score).max())


@each_kind
def test_information_is_minus_the_hessian(name: str, link: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng)
    at = nearby(problem, rng)
    information = likelihood_sums(problem.family, problem.rows, at).information()
    expected = -numerical_jacobian(problem, at)
    assert_allclose(information, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


@each_kind
def test_missing_information_is_a_covariance(
    name: str, link: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng)
    sums = likelihood_sums(problem.family, problem.rows, nearby(problem, rng))
    missing = sums.missing_information
    assert missing is not None
    assert_allclose(missing, missing.T, rtol=1e-10, atol=1e-10 * np.abs(missing).max())
    values = np.linalg.eigvalsh(missing)
    assert values[0] > -1e-10 * values[-1]


@each_kind
def test_weights_are_repeated_rows(name: str, link: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng)
    repeats = rng.integers(0, 4, problem.rows.n_obs)
    base = problem.rows
    weighted = LikelihoodRows(
        base.Z, base.y, repeats.astype(np.float64), base.offset, base.n_trials
    )
    index = np.repeat(np.arange(base.n_obs), repeats)
    repeated = LikelihoodRows(base.Z, base.y, np.ones(base.n_obs), base.offset, base.n_trials).take(
        index
    )
    one = likelihood_sums(problem.family, weighted, problem.truth)
    other = likelihood_sums(problem.family, repeated, problem.truth)
    assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-12)
    scale = np.abs(other.information()).max()
    assert_allclose(one.score, other.score, atol=1e-12 * scale)
    assert_allclose(one.information(), other.information(), atol=1e-12 * scale)
    assert_allclose(
        outer_product_information(problem.family, weighted, problem.truth),
        outer_product_information(problem.family, repeated, problem.truth),
        atol=1e-12 * scale,
    )


def test_binomial_is_its_trials_one_by_one_for_one_component(rng: np.random.Generator) -> None:
    """Up to the binomial coefficients, n trials of one component are n Bernoulli rows."""
    trials = np.array([4.0, 1.0, 7.0])
    y = np.array([1.0, 1.0, 5.0])
    z = rng.standard_normal((3, 2))
    parameters = MixtureParameters(rng.standard_normal((2, 1)), np.array([0.3]), np.ones(1))
    counts = LikelihoodRows(z, y, np.ones(3), n_trials=trials)
    single = LikelihoodRows(
        np.concatenate([z, z]), np.repeat([1.0, 0.0], 3), np.concatenate([y, trials - y])
    )
    one = likelihood_sums(get_family("binomial"), counts, parameters)
    other = likelihood_sums(get_family("bernoulli"), single, parameters)
    coefficients = np.log([4, 1, 21])
    assert_allclose(one.log_likelihood, other.log_likelihood + coefficients.sum(), rtol=1e-12)
    assert_allclose(one.score, other.score, rtol=1e-12)
    assert_allclose(one.information(), other.information(), rtol=1e-12)


def test_constant_offset_is_a_bias(rng: np.random.Generator) -> None:
    problem = make_problem("negative_binomial", "log", rng, with_extras=False)
    base, truth = problem.rows, problem.truth
    shifted = LikelihoodRows(base.Z, base.y, base.sample_weight, np.full(base.n_obs, 0.7))
    moved = MixtureParameters(
        truth.coefficients, truth.biases - 0.7, truth.weights, truth.dispersion
    )
    assert_allclose(
        likelihood_sums(problem.family, shifted, moved).score,
        likelihood_sums(problem.family, base, truth).score,
        rtol=1e-9,
        atol=1e-9,
    )


@each_kind
def test_components_may_be_reordered(name: str, link: str, rng: np.random.Generator) -> None:
    """Coefficients change places; the one logit changes its sign."""
    problem = make_problem(name, link, rng)
    swapped = problem.truth.reorder(np.array([1, 0]))
    one = likelihood_sums(problem.family, problem.rows, problem.truth)
    other = likelihood_sums(problem.family, problem.rows, swapped)
    half = (one.score.size - 1) // 2
    order = np.concatenate([np.arange(half, 2 * half), np.arange(half), [2 * half]])
    signs = np.append(np.ones(2 * half), -1.0)
    assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-13)
    scale = np.abs(one.information()).max()
    assert_allclose(other.score, signs * one.score[order], atol=1e-12 * scale)
    expected = np.outer(signs, signs) * one.information()[np.ix_(order, order)]
    assert_allclose(other.information(), expected, atol=1e-12 * scale)


@each_kind
def test_responsibilities_sum_to_one(name: str, link: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng)
    result = responsibilities(problem.family, problem.rows, problem.truth)
    assert result.shape == (problem.rows.n_obs, 2)
    assert_allclose(result.sum(axis=1), 1.0, rtol=1e-13)
    sums = likelihood_sums(problem.family, problem.rows, problem.truth)
    weight = problem.rows.sample_weight
    expected = weight @ result[:, 0] - weight.sum() * problem.truth.weights[0]
    assert_allclose(sums.score[-1], expected, rtol=1e-9)


@each_kind
def test_outer_products_sum_row_scores(name: str, link: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng, n_obs=12)
    rows, truth = problem.rows, problem.truth
    expected = np.zeros((pack(truth).size,) * 2)
    for row in range(rows.n_obs):
        one = rows.take(slice(row, row + 1))
        score = likelihood_sums(problem.family, one, truth, curvature=False).score
        expected += np.outer(score, score) / one.sample_weight[0]
    result = outer_product_information(problem.family, rows, truth)
    assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


def test_blocks_and_threads_change_nothing(rng: np.random.Generator) -> None:
    """More than 16 blocks go to threads; sums over two halves add up, and repeat bit by bit."""
    problem = make_problem("gaussian", "identity", rng, n_obs=60_000)
    rows = problem.rows
    whole = likelihood_sums(problem.family, rows, problem.truth)
    again = likelihood_sums(problem.family, rows, problem.truth)
    assert_array_equal(whole.score, again.score)
    assert_array_equal(whole.information(), again.information())
    parts = [
        likelihood_sums(problem.family, rows.take(half), problem.truth)
        for half in (slice(0, 9_000), slice(9_000, None))
    ]
    total = sum(part.log_likelihood for part in parts)
    assert_allclose(whole.log_likelihood, total, rtol=1e-12)
    information = parts[0].information() + parts[1].information()
    assert_allclose(whole.information(), information, atol=1e-11 * information.max())


@each_kind
def test_far_away_parameters_give_finite_sums(
    name: str, link: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, n_obs=50)
    truth = problem.truth
    far = MixtureParameters(1e3 * truth.coefficients, truth.biases, truth.weights, truth.dispersion)
    sums = likelihood_sums(problem.family, problem.rows, far)
    assert np.isfinite(sums.log_likelihood)
    assert np.all(np.isfinite(sums.score))
    assert np.all(np.isfinite(sums.information()))


def test_information_needs_curvature(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    family: Family = problem.family
    sums = likelihood_sums(family, problem.rows, problem.truth, curvature=False)
    with pytest.raises(ValueError, match="`curvature` must be True"):
        sums.information()
