"""Information-matrix splits, and moves out of a local maximum."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.likelihood.climbing import MaximiseResult, maximise
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.splits import (
    drop_and_split,
    improve,
    misfit,
    propose_drops_and_splits,
    split_component,
    split_statistics,
)
from tests.likelihood_problems import FAMILY_LINKS, make_problem

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)


def test_statistics_by_hand() -> None:
    """One Gaussian component, sd 1, beta 0, no bias: u = y, V = 1.

    Rows z = (x, 1): (1, 1) and (-1, 1) with y = 2 and 0. C = 2 I. u^2 - V is 3 and -1, so
    M = 3 [[1, 1], [1, 1]] - [[1, -1], [-1, 1]] = [[2, 4], [4, 2]]. The eigenvalues of M / 2 are
    3 and -1, the top one along (1, 1), scaled to v' C v = 2: v = (1, 1) / sqrt(2).
    The whitened rows are z / sqrt(2) with squared length 1, so that a row sum of variances is
    (9 + 1) / 2 = 5 and the edge 2 sqrt(5).
    """
    rows = LikelihoodRows(np.array([[1.0], [-1.0]]), np.array([2.0, 0.0]), np.ones(2))
    parameters = MixtureParameters(np.zeros((1, 1)), np.zeros(1), np.ones(1), np.ones(1))
    result = split_statistics(get_family("gaussian"), rows, parameters, n_directions=2)
    assert_allclose(result.eigenvalues, [[3, -1]], rtol=1e-6)
    top = result.directions[0, 0]
    assert_allclose(top * np.sign(top[0]), np.full(2, np.sqrt(0.5)), rtol=1e-6)
    assert_allclose(result.noise_edges, [2 * np.sqrt(5)], rtol=1e-6)
    assert_allclose(result.misfit, 3 / (2 * np.sqrt(5)), rtol=1e-6)
    assert_array_equal(result.drop_losses, [np.inf])


def test_statistics_of_huge_slopes_by_hand() -> None:
    """A Poisson mean at its bound, m = exp(300), and counts of zero: u^2 - V = m^2 - m.

    Rows (1, 1) and (-1, 1) have C = 2 m I and M = (m - 1) C, so that the eigenvalues are m. The
    squares of the whitened rows are 1 / 2m, a row sum of variances is
    2 m^4 (1 / m) (1 / 2m) = m^2, and the edge 2 m; m^4 is no number.
    """
    rows = LikelihoodRows(np.array([[1.0], [-1.0]]), np.zeros(2), np.ones(2))
    parameters = MixtureParameters(np.zeros((1, 1)), np.full(1, 400.0), np.ones(1))
    result = split_statistics(get_family("poisson"), rows, parameters, n_directions=2)
    assert_allclose(result.eigenvalues, np.exp([[300.0, 300.0]]), rtol=1e-6)
    assert_allclose(result.noise_edges, [2 * np.exp(300.0)], rtol=1e-6)


@each_family
def test_true_mixture_shows_no_misfit(name: str, link: str, rng: np.random.Generator) -> None:
    problem = make_problem(name, link, rng, n_obs=4000, with_extras=False)
    result = maximise(problem.family, problem.rows, problem.truth, max_steps=60)
    statistics = split_statistics(problem.family, problem.rows, result.parameters)
    assert statistics.misfit < 1.5


@pytest.mark.parametrize(
    ("name", "link", "least_misfit", "least_cosine"),
    [
        ("poisson", "log", 1.5, 0.9),
        ("gaussian", "identity", 1.5, 0.9),
        ("binomial", "logit", 1.5, 0.9),
        # a single gamma's shape takes up most of what the split explains
        ("gamma", "log", 0.5, 0.7),
    ],
)
def test_merged_components_are_found_and_split(
    name: str, link: str, least_misfit: float, least_cosine: float, rng: np.random.Generator
) -> None:
    """The single best component hides two: its top direction is that of their difference."""
    problem = make_problem(name, link, rng, n_obs=4000, with_extras=False)
    truth, family = problem.truth, problem.family
    start = MixtureParameters(
        np.zeros((3, 1)), np.zeros(1), np.ones(1), None if truth.dispersion is None else np.ones(1)
    )
    single = maximise(family, problem.rows, start, max_steps=60)
    statistics = split_statistics(family, problem.rows, single.parameters)
    assert statistics.misfit > least_misfit
    difference = truth.coefficients[:, 0] - truth.coefficients[:, 1]
    found = statistics.directions[0, 0, :3]
    cosine = abs(found @ difference) / np.linalg.norm(found) / np.linalg.norm(difference)
    assert cosine > least_cosine
    two = split_component(family, single.parameters, 0, statistics.directions[0, 0])
    result = maximise(family, problem.rows, two, max_steps=100, em_steps=5)
    best = maximise(family, problem.rows, truth, max_steps=100)
    assert_allclose(result.log_likelihood, best.log_likelihood, atol=0.01)


def test_split_by_hand() -> None:
    """Children at beta +- v with half the weight; gaussian deviations times .6."""
    parameters = MixtureParameters(
        np.array([[1.0, 5.0]]), np.array([0.0, 2.0]), np.array([0.4, 0.6]), np.array([1.0, 3.0])
    )
    family = get_family("gaussian")
    result = split_component(family, parameters, 0, np.array([0.5, 0.25]))
    assert_allclose(result.coefficients, [[1.5, 5, 0.5]])
    assert_allclose(result.biases, [0.25, 2, -0.25])
    assert_allclose(result.weights, [0.2, 0.6, 0.2])
    assert result.dispersion is not None
    assert_allclose(result.dispersion, [0.6, 3, 0.6])
    counts = split_component(get_family("negative_binomial"), parameters, 0, np.zeros(2))
    assert counts.dispersion is not None
    assert_allclose(counts.dispersion, [1, 3, 1])
    gamma = split_component(get_family("gamma"), parameters, 0, np.zeros(2))
    assert gamma.dispersion is not None
    assert_allclose(gamma.dispersion[0] ** -0.5, 0.6)


def test_drop_and_split_by_hand() -> None:
    """Component 0 (.4) is dropped; component 1 (.6) becomes two of .3, scaled to one half each."""
    parameters = MixtureParameters(
        np.array([[1.0, 5.0]]), np.array([0.0, 2.0]), np.array([0.4, 0.6])
    )
    result = drop_and_split(get_family("bernoulli"), parameters, 0, 1, np.array([1.0, 0.5]))
    assert_allclose(result.coefficients, [[4, 6]])
    assert_allclose(result.biases, [1.5, 2.5])
    assert_allclose(result.weights, [0.5, 0.5])


def test_drop_losses_are_those_of_the_smaller_mixture(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    statistics = split_statistics(problem.family, problem.rows, problem.truth)
    whole = maximise(problem.family, problem.rows, problem.truth, max_steps=0).log_likelihood
    for drop in (0, 1):
        rest = problem.truth.reorder(np.array([1 - drop]))
        alone = MixtureParameters(rest.coefficients, rest.biases, np.ones(1))
        left = maximise(problem.family, problem.rows, alone, max_steps=0).log_likelihood
        # rows that the component alone explains are counted at 28 units at most
        assert statistics.drop_losses[drop] <= whole - left + 0.01
        assert statistics.drop_losses[drop] > 0.5 * (whole - left)


def _improved(
    family: Family, rows: LikelihoodRows, fit: MaximiseResult, *, max_rounds: int = 6
) -> tuple[MaximiseResult, int]:
    climb = partial(maximise, family, rows)
    propose = partial(propose_drops_and_splits, family, rows)
    return improve(climb, propose, fit, max_rounds=max_rounds)


def test_moves_leave_a_local_maximum(rng: np.random.Generator) -> None:
    """Three lines; the start has two components on one of them and one between the others."""
    n_obs = 1500
    coefficients = np.array([[2.0, -1.0, 0.0], [0.0, 1.5, -2.0]])
    weights = np.array([0.5, 0.3, 0.2])
    labels = rng.choice(3, n_obs, p=weights)
    z = rng.standard_normal((n_obs, 2))
    y = np.einsum("ip,pi->i", z, coefficients[:, labels]) + 0.1 * rng.standard_normal(n_obs)
    rows = LikelihoodRows(z, y, np.ones(n_obs))
    family = get_family("gaussian")
    truth = MixtureParameters(coefficients, np.zeros(3), weights, np.full(3, 0.1))
    best = maximise(family, rows, truth, max_steps=60)
    stuck_start = MixtureParameters(
        np.array([[2.0, 2.0, -0.5], [0.0, 0.0, 0.0]]),
        np.array([0.1, -0.1, 0.0]),
        np.array([0.3, 0.2, 0.5]),
        np.array([0.1, 0.1, 1.5]),
    )
    stuck = maximise(family, rows, stuck_start, max_steps=100, em_steps=10)
    assert stuck.log_likelihood < best.log_likelihood - 50
    result, n_moves = _improved(family, rows, stuck)
    assert n_moves >= 1
    assert_allclose(result.log_likelihood, best.log_likelihood, atol=0.01)
    assert misfit(family, rows, result.parameters) < 1.5


def test_moves_never_make_it_worse(rng: np.random.Generator) -> None:
    problem = make_problem("bernoulli", "logit", rng, n_obs=500)
    fit = maximise(problem.family, problem.rows, problem.truth, max_steps=60)
    result, _ = _improved(problem.family, problem.rows, fit, max_rounds=1)
    assert result.log_likelihood >= fit.log_likelihood


def test_one_component_has_no_moves(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    alone = MixtureParameters(np.zeros((3, 1)), np.zeros(1), np.ones(1))
    fit = maximise(problem.family, problem.rows, alone)
    result, n_moves = _improved(problem.family, problem.rows, fit)
    assert n_moves == 0
    assert result.log_likelihood == fit.log_likelihood
