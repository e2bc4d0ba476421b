"""Split statistics where rows share their component."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities
from moment_init.likelihood.rows import LikelihoodRows, column
from moment_init.likelihood.splits import split_component, split_statistics
from tests.likelihood_problems import (
    ALL_LINKS,
    FAMILY_LINKS,
    GROUPS,
    PLAIN,
    VARIANTS,
    FloatArray,
    Problem,
    Variant,
    make_problem,
    nearby,
    unit_counts_by_hand,
    units_of,
)

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)


def test_one_group_by_hand() -> None:
    """One Gaussian component, sd 1, beta 0, no bias: u = y, V = 1.

    Rows x = (z, 1) are (1, 1) and (-1, 1) with y = 2 and 0, in one group. C = 2 I. The score of the
    group is t = (2, 2), so M = t t' - C = [[2, 4], [4, 2]]: the eigenvalues of M / 2 are 3 and -1,
    the top one along (1, 1), scaled to v' C v = 2. The whitened M is [[1, 2], [2, 1]] with row sums
    of squares 5, and the edge is 2 sqrt(5).
    """
    rows = LikelihoodRows(
        np.array([[1.0], [-1.0]]), np.array([2.0, 0.0]), np.ones(2), group_starts=np.array([0])
    )
    parameters = MixtureParameters(np.zeros((1, 1)), np.zeros(1), np.ones(1), np.ones(1))
    result = split_statistics(get_family("gaussian"), rows, parameters, n_directions=2)
    assert_allclose(result.eigenvalues, [[3, -1]], rtol=1e-6)
    top = result.directions[0, 0]
    assert_allclose(top * np.sign(top[0]), np.full(2, np.sqrt(0.5)), rtol=1e-6)
    assert_allclose(result.noise_edges, [2 * np.sqrt(5)], rtol=1e-6)
    assert_array_equal(result.drop_losses, [np.inf])


def test_groups_count_what_their_rows_share_by_hand() -> None:
    """Rows x = 1 (no feature), y = 1, 1 and -1, -1: M is 4 + 4 - 4 with groups, 0 without."""
    y = np.array([1.0, 1.0, -1.0, -1.0])
    rows = LikelihoodRows(np.empty((4, 0)), y, np.ones(4))
    parameters = MixtureParameters(np.empty((0, 1)), np.zeros(1), np.ones(1), np.ones(1))
    family = get_family("gaussian")
    alone = split_statistics(family, rows, parameters)
    grouped = split_statistics(family, replace(rows, group_starts=np.array([0, 2])), parameters)
    assert_allclose(alone.eigenvalues, [[0]], atol=1e-12)
    # (8 - 4) / 4; each group's excess is (4 - 2) / 4, and the edge 2 sqrt(2 / 4)
    assert_allclose(grouped.eigenvalues, [[1]], rtol=1e-6)
    assert_allclose(grouped.noise_edges, [np.sqrt(2)], rtol=1e-6)


@each_kind
@pytest.mark.parametrize("variant", [PLAIN, VARIANTS["gate"]])
def test_single_rows_are_no_groups(
    name: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, with_extras=False, variant=variant)
    at = nearby(problem, rng)
    singles = replace(problem.rows, group_starts=np.arange(problem.rows.n_obs))
    one = split_statistics(problem.family, singles, at, n_directions=4)
    other = split_statistics(problem.family, problem.rows, at, n_directions=4)
    scale = np.abs(other.eigenvalues).max()
    assert_allclose(one.eigenvalues, other.eigenvalues, atol=1e-9 * scale)
    assert_allclose(one.noise_edges, other.noise_edges, rtol=1e-9)
    # 1 - R is held above 1e-12, where its rounding is 1e-4 of it
    assert_allclose(one.drop_losses, other.drop_losses, rtol=1e-5)
    signs = np.sign((one.directions * other.directions).sum(axis=2))[:, :, None]
    # eigenvectors are as well determined as their eigenvalues are apart
    assert_allclose(signs * one.directions, other.directions, rtol=1e-5, atol=1e-6)


def _derivatives(
    problem: Problem, at: MixtureParameters, j: int, eta: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """First and second derivatives of every row's log density, shapes (P, n) and (P, P, n)."""
    # eta: (P, n)
    rows, family = problem.rows, problem.family
    if family.has_joint_predictors:
        chosen, p = rows.y == np.arange(1, len(eta) + 1)[:, None], family.means(eta)[1:]
        return chosen - p, p[:, None] * p - np.eye(len(p))[:, :, None] * p
    first, second = np.empty_like(eta), np.zeros((len(eta), *eta.shape))
    for a, member in enumerate(family.members):
        own = member.log_density_derivatives(
            column(rows.y, a),
            eta[a],
            dispersion=None if at.spreads is None else at.spreads[a, j],
            n_trials=None if rows.n_trials is None else column(rows.n_trials, a),
        )
        first[a], second[a, a] = own.eta1, own.eta2
    return first, second


def _excess(problem: Problem, at: MixtureParameters, j: int) -> tuple[FloatArray, FloatArray]:
    """R (t t' - H) of every unit, and the sum of R H, by plain loops."""
    rows = problem.rows
    assert rows.offset is not None
    x = np.column_stack([np.asarray(rows.Z, dtype=np.float64), np.ones(rows.n_obs)])
    slopes = np.concatenate([at.slopes[:, :, j], at.levels[:, [j]]], axis=1)
    first, second = _derivatives(problem, at, j, slopes @ x.T + rows.offset.T)
    shares = responsibilities(problem.family, rows, at)[:, j]
    power = rows.sample_weight if rows.group_starts is not None else np.ones(rows.n_obs)
    excess, curvature = [], np.zeros((slopes.size, slopes.size))
    for unit, count in zip(units_of(rows), unit_counts_by_hand(rows), strict=True):
        score = sum(power[i] * np.kron(first[:, i], x[i]) for i in unit)
        information = sum(-power[i] * np.kron(second[:, :, i], np.outer(x[i], x[i])) for i in unit)
        excess.append(shares[unit[0]] * (np.outer(score, score) - information))
        curvature += count * shares[unit[0]] * information
    return np.array(excess), curvature


@each_kind
@pytest.mark.parametrize("variant", VARIANTS)
def test_statistics_by_brute_force(
    name: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Whitened by the Cholesky factor of C_j, as the edge depends on the coordinates."""
    problem = make_problem(name, link, rng, n_obs=80, variant=VARIANTS[variant])
    at, counts = nearby(problem, rng), unit_counts_by_hand(problem.rows)
    width = at.n_predictors * (at.n_features + 1)
    result = split_statistics(problem.family, problem.rows, at, n_directions=width)
    for j in range(2):
        excess, curvature = _excess(problem, at, j)
        whitener = np.linalg.inv(np.linalg.cholesky(curvature))
        whitened = whitener @ excess @ whitener.T
        values = np.linalg.eigvalsh(np.einsum("i,iab->ab", counts, whitened))[::-1]
        assert_allclose(result.eigenvalues[j], values, rtol=1e-5, atol=1e-5)
        row_sums = np.einsum("i,iab->a", counts, whitened**2)
        assert_allclose(result.noise_edges[j], 2 * np.sqrt(row_sums.max()), rtol=1e-5)
        for v in result.directions[j]:
            share = responsibilities(problem.family, problem.rows, at)[:, j]
            assert_allclose(v @ curvature @ v, share @ problem.rows.sample_weight, rtol=1e-5)


def test_blocks_change_nothing(rng: np.random.Generator) -> None:
    """Five long groups for sixteen parts, most of which are empty, against one group at a time."""
    problem = make_problem("gaussian", "identity", rng, n_obs=60_000, variant=GROUPS)
    rows = replace(problem.rows, group_starts=np.arange(5) * 12_000)
    result = split_statistics(problem.family, rows, problem.truth)
    permuted = split_statistics(problem.family, rows.take(np.array([4, 2, 0, 1, 3])), problem.truth)
    assert_allclose(result.eigenvalues, permuted.eigenvalues, rtol=1e-8)
    assert_allclose(result.noise_edges, permuted.noise_edges, rtol=1e-8)


@each_kind
def test_true_mixture_shows_no_misfit(name: str, link: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng, n_obs=4000, with_extras=False, variant=GROUPS)
    result = maximise(problem.family, problem.rows, problem.truth, max_steps=60)
    assert split_statistics(problem.family, problem.rows, result.parameters).misfit < 1.5


@each_kind
def test_merged_components_are_found_and_split(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """Rows of a group agree on their component, so that even Bernoulli rows show two of them."""
    problem = make_problem(name, link, rng, n_obs=4000, with_extras=False, variant=GROUPS)
    truth, family = problem.truth, problem.family
    one = truth.reorder(np.array([0]))
    dispersion = None if one.dispersion is None else one.dispersion / one.dispersion
    start = MixtureParameters(0 * one.coefficients, 0 * one.biases, np.ones(1), dispersion)
    single = maximise(family, problem.rows, start, max_steps=60)
    statistics = split_statistics(family, problem.rows, single.parameters)
    # a single shape or alpha takes up part of what the split explains
    is_flexible = family.has_dispersion and not family.has_closed_deviation
    assert statistics.misfit > (0.5 if is_flexible else 1.5)
    two = split_component(family, single.parameters, 0, statistics.directions[0, 0])
    result = maximise(family, problem.rows, two, max_steps=100, em_steps=5)
    best = maximise(family, problem.rows, truth, max_steps=100)
    assert_allclose(result.log_likelihood, best.log_likelihood, atol=0.01)
