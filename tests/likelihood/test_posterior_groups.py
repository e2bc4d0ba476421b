"""Rows that share their component."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities, unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums, outer_product_information
from tests.likelihood_problems import (
    ALL_LINKS,
    BOTH,
    GATED,
    GROUPS,
    PLAIN,
    VARIANTS,
    Variant,
    make_problem,
    nearby,
    units_of,
)

each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)
each_grouped = pytest.mark.parametrize("variant", ["groups", "both"])


def assert_same_sums(one: LikelihoodSums, other: LikelihoodSums, rtol: float = 1e-11) -> None:
    """Everything that is summed agrees, to rounding of the largest entry."""
    assert_allclose(one.log_likelihood, other.log_likelihood, rtol=rtol)
    scale = np.abs(other.complete_information).max()
    assert_allclose(one.score, other.score, atol=rtol * scale)
    assert_allclose(one.unit_counts, other.unit_counts, rtol=rtol)
    assert_allclose(one.row_counts, other.row_counts, rtol=rtol)
    assert_allclose(one.complete_information, other.complete_information, atol=rtol * scale)
    assert_allclose(one.information(), other.information(), atol=10 * rtol * scale)


def test_two_groups_by_hand() -> None:
    """Two Bernoulli components with P(1) = 1/2 and 3/4, weights 1/2 each; groups (1, 1) and (0).

    The first group has densities 1/4 and 9/16, so P = 13/32 and R = (4, 9) / 13; the second has
    P = 3/8 and R = (2, 1) / 3. Scores of the biases are sums of y - P(1): (1, 1/2) in the first
    group and (-1/2, -3/4) in the second. Both rows of the first group have information 1/4, 3/16.
    """
    rows = LikelihoodRows(
        np.zeros((3, 1)), np.array([1.0, 1.0, 0.0]), np.ones(3), group_starts=np.array([0, 2])
    )
    parameters = MixtureParameters(
        np.zeros((1, 2)), np.array([0.0, np.log(3)]), np.array([0.5, 0.5])
    )
    sums = likelihood_sums(get_family("bernoulli"), rows, parameters)
    assert_allclose(sums.log_likelihood, np.log(13 / 32) + np.log(3 / 8), rtol=1e-14)
    biases = 4 / 13 - 1 / 3, 9 / 26 - 1 / 4
    assert_allclose(sums.score, [0, biases[0], 0, biases[1], 4 / 13 + 2 / 3 - 1], atol=1e-15)
    complete = (8 / 13 + 2 / 3) / 4, (18 / 13 + 1 / 3) * 3 / 16
    assert_allclose(np.diag(sums.complete_information), [0, complete[0], 0, complete[1], 0.5])
    assert_allclose(sums.unit_counts, [4 / 13 + 2 / 3, 9 / 13 + 1 / 3], rtol=1e-14)
    assert_allclose(sums.row_counts, [8 / 13 + 2 / 3, 18 / 13 + 1 / 3], rtol=1e-14)
    # variance of the score of the first bias: R (1 - R) t^2, summed over the groups
    assert sums.missing_information is not None
    expected = 4 * 9 / 169 + 2 / 9 / 4
    assert_allclose(sums.missing_information[1, 1], expected, rtol=1e-13)


@each_kind
@pytest.mark.parametrize("variant", [PLAIN, GATED])
def test_single_rows_are_no_groups(
    name: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, with_extras=False, variant=variant)
    family, rows, at = problem.family, problem.rows, nearby(problem, rng)
    grouped = replace(rows, group_starts=np.arange(rows.n_obs))
    assert_same_sums(likelihood_sums(family, grouped, at), likelihood_sums(family, rows, at))
    assert_allclose(
        unit_log_likelihood(family, grouped, at),
        unit_log_likelihood(family, rows, at),
        rtol=1e-10,
        atol=1e-12,
    )
    assert_allclose(
        responsibilities(family, grouped, at), responsibilities(family, rows, at), atol=1e-12
    )
    one, other = (outer_product_information(family, these, at) for these in (grouped, rows))
    assert_allclose(one, other, atol=1e-11 * np.abs(other).max())


@each_kind
@each_grouped
def test_groups_may_be_permuted(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    family, rows, at = problem.family, problem.rows, nearby(problem, rng)
    order = rng.permutation(rows.n_units)
    permuted = rows.take(order)
    assert_same_sums(likelihood_sums(family, permuted, at), likelihood_sums(family, rows, at))
    expected = unit_log_likelihood(family, rows, at)[order]
    assert_allclose(unit_log_likelihood(family, permuted, at), expected, rtol=1e-12)


@each_kind
@each_grouped
def test_rows_of_a_group_may_be_permuted(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    family, rows, at = problem.family, problem.rows, nearby(problem, rng)
    order = np.concatenate([rng.permutation(own) for own in units_of(rows)])
    permuted = replace(replace(rows, group_starts=None).take(order), group_starts=rows.group_starts)
    assert_same_sums(likelihood_sums(family, permuted, at), likelihood_sums(family, rows, at))


@each_kind
@each_grouped
def test_weight_is_repetition_inside_a_group(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """A row k times in its group is that row with weight k; a row of weight zero is none."""
    problem = make_problem(name, link, rng, variant=VARIANTS[variant])
    family, at = problem.family, nearby(problem, rng)
    starts = problem.rows.group_starts
    assert starts is not None
    repeats = rng.integers(0, 4, problem.rows.n_obs)
    repeats[starts] = rng.integers(1, 4, len(starts))  # no group is left empty
    weighted = replace(problem.rows, sample_weight=repeats.astype(np.float64))
    index = np.repeat(np.arange(len(repeats)), repeats)
    single = replace(problem.rows, sample_weight=np.ones(len(repeats)), group_starts=None)
    firsts = np.concatenate([[0], np.cumsum(repeats)[:-1]])[starts]
    repeated = replace(single.take(index), group_starts=firsts)
    assert_same_sums(likelihood_sums(family, weighted, at), likelihood_sums(family, repeated, at))


def test_gaussian_group_is_known_by_all_of_its_rows(rng: np.random.Generator) -> None:
    """Two lines +-z with sd 1: the log odds of a group are the sum of 2 z y over its rows."""
    z, y = rng.standard_normal((6, 1)), rng.standard_normal(6)
    starts = np.array([0, 4])
    parameters = MixtureParameters(
        np.array([[1.0, -1.0]]), np.zeros(2), np.array([0.5, 0.5]), np.ones(2)
    )
    rows = LikelihoodRows(z, y, np.ones(6), group_starts=starts)
    odds = np.array([2 * (z[:4, 0] @ y[:4])] * 4 + [2 * (z[4:, 0] @ y[4:])] * 2)
    result = responsibilities(get_family("gaussian"), rows, parameters)
    assert_allclose(np.log(result[:, 0] / result[:, 1]), odds, rtol=1e-9, atol=1e-12)


def test_long_groups_do_not_underflow(rng: np.random.Generator) -> None:
    """A thousand rows have a density of e^-1000 and less under either component."""
    problem = make_problem("poisson", "log", rng, n_obs=3000, variant=GROUPS)
    rows = replace(problem.rows, group_starts=np.array([0, 1000, 2000]))
    sums = likelihood_sums(problem.family, rows, problem.truth)
    assert np.isfinite(sums.log_likelihood)
    assert np.all(np.isfinite(sums.information()))
    shares = responsibilities(problem.family, rows, problem.truth)
    assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-13)


# --- blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [GROUPS, BOTH])
def test_blocks_and_threads_change_nothing(variant: Variant, rng: np.random.Generator) -> None:
    """Enough groups for several blocks and threads: halves add up, and repeat bit by bit."""
    problem = make_problem("gaussian", "identity", rng, n_obs=60_000, variant=variant)
    family, rows, at = problem.family, problem.rows, problem.truth
    whole = likelihood_sums(family, rows, at)
    again = likelihood_sums(family, rows, at)
    assert_array_equal(whole.score, again.score)
    assert_array_equal(whole.information(), again.information())
    parts = [
        likelihood_sums(family, rows.take(half), at)
        for half in (slice(0, 7_000), slice(7_000, None))
    ]
    total = parts[0].log_likelihood + parts[1].log_likelihood
    assert_allclose(whole.log_likelihood, total, rtol=1e-11)
    information = parts[0].information() + parts[1].information()
    assert_allclose(whole.information(), information, atol=1e-11 * information.max())


def test_few_large_groups_leave_threads_without_work(rng: np.random.Generator) -> None:
    """Five groups for sixteen parts: most blocks are empty."""
    problem = make_problem("gaussian", "identity", rng, n_obs=60_000, variant=GROUPS)
    starts = np.arange(5) * 12_000
    rows = replace(problem.rows, group_starts=starts)
    whole = likelihood_sums(problem.family, rows, problem.truth)
    parts = [
        likelihood_sums(problem.family, rows.take(np.array([group])), problem.truth)
        for group in range(5)
    ]
    total = sum(part.log_likelihood for part in parts)
    assert_allclose(whole.log_likelihood, total, rtol=1e-12)
    score = np.sum([part.score for part in parts], axis=0)
    assert_allclose(whole.score, score, atol=1e-10 * np.abs(score).max())


# --- rows ----------------------------------------------------------------------------------------


def test_rows_of_units_and_take(rng: np.random.Generator) -> None:
    """Groups (0, 1), (2), (3, 4, 5): the last and the first, taken in that order."""
    rows = LikelihoodRows(
        rng.standard_normal((6, 2)),
        np.arange(6.0),
        np.arange(1.0, 7.0),
        gate=np.array([[1.0], [1.0], [2.0], [3.0], [3.0], [3.0]]),
        group_starts=np.array([0, 2, 3]),
    )
    assert (rows.n_units, rows.n_gate, rows.total_weight, rows.total_units) == (3, 1, 21.0, 3.0)
    assert rows.rows_of(slice(0, 2)) == slice(0, 3)
    assert rows.rows_of(slice(1, 3)) == slice(2, 6)
    some = rows.take(np.array([2, 0]))
    assert_array_equal(some.y, [3, 4, 5, 0, 1])
    assert some.group_starts is not None
    assert_array_equal(some.group_starts, [0, 3])
    assert some.gate is not None
    assert_array_equal(some.gate[:, 0], [3, 3, 3, 1, 1])
    last = rows.take(slice(1, None))
    assert_array_equal(last.y, [2, 3, 4, 5])
    assert last.group_starts is not None
    assert_array_equal(last.group_starts, [0, 1])


def test_units_without_groups_are_rows(rng: np.random.Generator) -> None:
    rows = make_problem("poisson", "log", rng, n_obs=9).rows
    assert rows.n_units == 9
    assert rows.total_units == rows.total_weight
    assert rows.rows_of(slice(2, 5)) == slice(2, 5)
    assert rows.n_gate == 0
