"""Peeling: imbalanced mixtures one component after the other."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from moment_init import angles_in_degrees
from moment_init.em.starts import fit_single, peel
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import BOTH, FAMILY_LINKS, Problem, make_problem
from tests.search_problems import draw_mixture, pose

FloatArray = NDArray[np.float64]

PEELED = [(family, link) for family, link in FAMILY_LINKS if family != "bernoulli"]


@pytest.mark.parametrize("index", range(5))
def test_imbalanced_components_are_found_before_any_em(index: int, seed: int) -> None:
    """Weights .7, .2, .1: rows of the first that stay behind would outnumber the last otherwise.

    The largest angle of 200 mixtures drawn so has a median of 2.0 degrees and a maximum of 4.4.
    """
    posed = draw_mixture([seed % 1000, index], 2000, 10, (0.7, 0.2, 0.1))
    start = peel(posed.problem, fit_single(posed.problem).parameters)
    user = posed.problem.to_user(start)
    angles = angles_in_degrees(user.coefficients, posed.data.coefficients, signed=True)
    assert angles.max() < 5.0
    # a component takes rows of others that lie near its plane: errors of those 200 were up to .08
    assert_allclose(np.sort(user.weights), [0.1, 0.2, 0.7], atol=0.1)


@pytest.mark.parametrize(("family", "link"), PEELED)
def test_starts_are_inside_and_finite(family: str, link: str, rng: np.random.Generator) -> None:
    problem = pose(make_problem(family, link, rng), 3)
    start = peel(problem, fit_single(problem).parameters)
    assert start.n_components == 3
    assert_allclose(start.weights.sum(), 1.0)
    assert np.isfinite(likelihood_sums(problem.family, problem.rows, start).log_likelihood)


def test_groups_and_gate(rng: np.random.Generator) -> None:
    """Rows are peeled one by one; the start has a gate without slopes."""
    problem = pose(make_problem("poisson", "log", rng, variant=BOTH))
    start = peel(problem, fit_single(problem).parameters)
    assert start.gate is not None
    assert start.gate.shape == (2, 2)
    assert not start.gate.any()


def test_restrictions_hold(rng: np.random.Generator) -> None:
    drawn = make_problem("gaussian", "identity", rng)
    problem = pose(drawn, shared=[0, "dispersion"], fixed_weights=[0.2, 0.8])
    start = problem.to_user(peel(problem, fit_single(problem).parameters))
    assert_allclose(start.coefficients[0, 0], start.coefficients[0, 1])
    assert start.dispersion is not None
    assert_allclose(start.dispersion[0], start.dispersion[1])
    assert_allclose(start.weights, [0.2, 0.8])


def test_outliers_do_not_turn_the_first_component(rng: np.random.Generator) -> None:
    """A tenth of the rows far away: least squares is drawn to them, peeling is not."""
    z = rng.standard_normal((400, 2))
    y = z @ [1.0, -0.5] + 0.1 * rng.standard_normal(400)
    y[:40] += 20.0
    drawn = make_problem("gaussian", "identity", rng, with_extras=False)
    problem = pose(_with_rows(drawn, z, y), 1)
    single = fit_single(problem).parameters
    user = problem.to_user(peel(problem, single))
    # 360 rows with noise .1: standard errors of .0053, five of them
    assert_allclose(user.coefficients[:, 0], [1.0, -0.5], atol=0.027)
    assert_allclose(user.biases, 0.0, atol=0.027)
    assert abs(problem.to_user(single).biases[0]) > 1.0


def test_exact_fit_leaves_rows_to_peel(rng: np.random.Generator) -> None:
    """A line without noise explains all rows; the second component starts from them again."""
    z = rng.standard_normal((60, 2))
    drawn = make_problem("gaussian", "identity", rng, with_extras=False)
    problem = pose(_with_rows(drawn, z, z @ [1.0, -0.5] + 2.0), 2)
    user = problem.to_user(peel(problem, fit_single(problem).parameters))
    assert_allclose(user.coefficients, [[1.0, 1.0], [-0.5, -0.5]], atol=1e-6)
    assert_allclose(user.weights, 0.5)


def _with_rows(drawn: Problem, z: FloatArray, y: FloatArray) -> Problem:
    return replace(drawn, rows=LikelihoodRows(z, y, np.ones(len(y))))
