"""Mixtures along given directions, and directions refined by moments of their scores."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

from moment_init.families.registry import get_family
from moment_init.families.several import AnyFamily, join_families
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import angles_in_degrees
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums
from moment_init.moments.along import AlongFit, fit_along, rank_candidates, refine
from moment_init.moments.stacked import single_mixture
from moment_init.moments.tensor import held_decomposition
from tests.population import FloatArray

CROSS = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])


def two_planes(family: str, rng: np.random.Generator, n_obs: int = 4_000) -> LikelihoodRows:
    """Two components along the first two of three columns, of unequal size."""
    X = rng.standard_normal((n_obs, 3))
    eta = np.where(rng.random(n_obs) < 0.6, 1.2 * X[:, 0] + 0.3, -1.2 * X[:, 1] - 0.3)
    y = {
        "bernoulli": (rng.random(n_obs) < expit(3.0 * eta)).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "gaussian": eta + 0.3 * rng.standard_normal(n_obs),
    }[family]
    return LikelihoodRows(X, y, np.ones(n_obs)).prepared(get_family(family))


def best_along(
    family: AnyFamily, rows: LikelihoodRows, directions: FloatArray, rng: np.random.Generator
) -> AlongFit:
    (ranked,) = rank_candidates(family, rows, [directions], rng)
    return fit_along(family, rows, ranked.parameters, newton_steps=60)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "gaussian"])
def test_fit_is_a_maximum_along_the_directions(family: str, rng: np.random.Generator) -> None:
    """A climb with all parameters free from there gains little, as the directions are the truth.

    Two directions in three dimensions are four parameters: twice the gain is a chi-square of four.
    """
    rows, member = two_planes(family, rng), get_family(family)
    fit = best_along(member, rows, CROSS, rng)
    assert_allclose(fit.parameters.directions, CROSS)
    assert fit.parameters.scales[0, 0] > 0.0 > fit.parameters.scales[0, 1]
    free = maximise(member, rows, single_mixture(fit.parameters), constant=0.0)
    assert -1e-6 <= free.log_likelihood - fit.log_likelihood < 15.0
    turned = best_along(member, rows, -CROSS, rng)
    assert turned.log_likelihood == pytest.approx(fit.log_likelihood, abs=0.1)


def test_offsets_enter(rng: np.random.Generator) -> None:
    X, offset = rng.standard_normal((3_000, 2)), rng.standard_normal(3_000)
    y = rng.poisson(np.exp(X[:, 0] + offset)).astype(float)
    family = get_family("poisson")
    rows = LikelihoodRows(X, y, np.ones(3_000), offset).prepared(family)
    fit = best_along(family, rows, np.array([[1.0], [0.0]]), rng)
    # The information of a slope of a poisson regression is at least n here.
    assert fit.parameters.scales[0, 0] == pytest.approx(1.0, abs=4.0 / np.sqrt(3_000))
    without = best_along(family, replace(rows, offset=None), np.array([[1.0], [0.0]]), rng)
    assert without.log_likelihood < fit.log_likelihood - 100.0


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "gaussian"])
def test_refinement_ends_at_the_maximum(family: str, rng: np.random.Generator) -> None:
    """From directions that are off by 30 degrees: the maximum of a climb from the truth."""
    rows, member = two_planes(family, rng), get_family(family)
    start = CROSS + np.array([[0.0, 0.4], [0.4, 0.0], [0.4, -0.4]])
    fit = best_along(member, rows, start / np.linalg.norm(start, axis=0), rng)
    evaluate = partial(likelihood_sums, member, rows, curvature=False, constant=0.0)
    refined = refine(member, rows, evaluate, fit, max_steps=60, smallest_gain=1e-4)
    truth = single_mixture(best_along(member, rows, CROSS, rng).parameters)
    top = maximise(member, rows, truth, constant=0.0, tolerance=1e-6)
    assert refined.log_likelihood == pytest.approx(top.log_likelihood, abs=0.2)
    found = single_mixture(refined.parameters)
    assert angles_in_degrees(found.directions, top.parameters.directions, signed=True).max() < 1.0


def test_refinement_never_lowers_the_likelihood(rng: np.random.Generator) -> None:
    rows, member = two_planes("poisson", rng), get_family("poisson")
    start = rng.standard_normal((3, 2))
    fit = best_along(member, rows, start / np.linalg.norm(start, axis=0), rng)
    evaluate = partial(likelihood_sums, member, rows, curvature=False, constant=0.0)
    values = [fit.log_likelihood]
    for _ in range(6):
        fit = refine(member, rows, evaluate, fit, max_steps=1, smallest_gain=0.0)
        values.append(fit.log_likelihood)
    assert np.all(np.diff(values) >= 0.0)
    assert values[-1] > values[0] + 10.0


def test_responses_share_the_refined_directions(rng: np.random.Generator) -> None:
    """A count and a real response: the end is near the truth, by standard errors of both."""
    n = 6_000
    X = rng.standard_normal((n, 3))
    projected = X @ CROSS
    j = (rng.random(n) < 0.4).astype(int)
    eta = projected[np.arange(n), j]
    y = np.column_stack([rng.poisson(np.exp(0.7 * eta)), 1.0 - eta + rng.standard_normal(n)])
    family = join_families((get_family("poisson"), get_family("gaussian")))
    rows = LikelihoodRows(X, np.asfortranarray(y), np.ones(n)).prepared(family)
    start = CROSS + np.array([[0.0, 0.3], [0.3, 0.0], [0.3, -0.3]])
    fit = best_along(family, rows, start / np.linalg.norm(start, axis=0), rng)
    evaluate = partial(likelihood_sums, family, rows, curvature=False, constant=0.0)
    refined = refine(family, rows, evaluate, fit, max_steps=60, smallest_gain=1e-4)
    # Each component has 2,400 rows or more and an information above one half per row.
    angles = angles_in_degrees(refined.parameters.directions, CROSS)
    assert np.radians(angles).max() < 4.0 * np.sqrt(2.0 / (0.5 * 2_400))
    assert angles_in_degrees(fit.parameters.directions, CROSS).max() > 15.0


@pytest.mark.parametrize("shape", [(4, 2, 2), (3, 2, 6), (2, 3, 5)])
def test_held_decomposition_of_an_exact_matrix(
    shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    """Any size, also with more components than features: the other factor, lengths included."""
    d, r, c = shape
    directions, held = rng.standard_normal((d, r)), rng.standard_normal((r, c))
    found = held_decomposition(directions @ held, held, rng.standard_normal((d, r)))
    assert found is not None
    assert_allclose(found, directions, atol=1e-10)


def test_merged_components_have_no_held_decomposition(rng: np.random.Generator) -> None:
    held: Any = np.zeros((2, 2))
    directions = rng.standard_normal((3, 2))
    assert held_decomposition(np.zeros((3, 2)), held, directions) is None
