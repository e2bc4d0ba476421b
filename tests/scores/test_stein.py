"""Stein's identities: the right density passes, the wrong one is caught and named."""

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.scores import (
    ColumnDensity,
    Gaussian,
    Independent,
    InputModel,
    SteinStatus,
    StudentT,
    stein_check,
)
from moment_init.scores.stein import find_edges
from tests.population import FloatArray
from tests.scores import test_gaussian_mixture, test_independent, test_rbm, test_student_t

N_OBS = 10_000


def gammas(shape: float) -> Independent:
    return Independent([ColumnDensity("gamma", shapes=(shape,))] * 3)


RIGHT: dict[str, tuple[InputModel, Any]] = {
    "gaussian": (Gaussian(np.zeros(3), np.eye(3)), lambda rng, n: rng.standard_normal((n, 3))),
    "mixture": (test_gaussian_mixture.known(), test_gaussian_mixture.draw),
    "student_t": (test_student_t.known(), test_student_t.draw),
    "machine": (test_rbm.known(), test_rbm.draw),
    "columns": (test_independent.known(), test_independent.draw),
    "gamma": (gammas(8.0), lambda rng, n: rng.standard_gamma(8.0, (n, 3))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_true_density_passes(name: str, rng: np.random.Generator) -> None:
    """Three data sets; at a level of .001 two of a thousand fail by chance, where tails are light.

    Heavy one-sided scores (gamma, lognormal columns) are judged more cautiously than that.
    """
    model, draw = RIGHT[name]
    for _ in range(3):
        check = stein_check(model, draw(rng, N_OBS), level=0.001, random_seed=rng)
        assert check.status == SteinStatus.PASSED, check.message
    assert check.message.startswith("All of Stein's identities hold")
    assert len(check.identities) == 7
    assert check.n_obs == N_OBS


def failed(check: Any) -> list[str]:
    return [each.name for each in check.identities if not each.passed]


def test_a_gaussian_with_the_right_moments_passes_the_first_three(rng: np.random.Generator) -> None:
    """Symmetric clusters at +-2: only E[x S_3] sees them, by far more than the others."""
    clusters = rng.choice([-2.0, 2.0], (2 * N_OBS, 1)) * np.ones(3)
    X = clusters + rng.standard_normal((2 * N_OBS, 3))
    check = stein_check(Gaussian().fit(X[:N_OBS]), X[N_OBS:], random_seed=0)
    assert check.status == SteinStatus.FAILED
    assert failed(check) == ["E[x S_3] = 0"]
    assert check.worst.name == "E[x S_3] = 0"
    assert check.worst.assumption == "kurtosis or clusters"
    assert check.worst.standard_errors > 10.0
    assert "differ in kurtosis or clusters" in check.message


def test_skewness_is_seen_by_the_fourth_identity(rng: np.random.Generator) -> None:
    X = rng.standard_gamma(8.0, (2 * N_OBS, 3))
    check = stein_check(Gaussian().fit(X[:N_OBS]), X[N_OBS:], random_seed=0)
    assert {"E[x S_2] = 0", "E[S_3] = 0"} <= set(failed(check))
    assert not {"E[S_1] = 0", "E[S_1 x'] = I", "E[S_2] = 0"} & set(failed(check))


def test_location_and_scale_are_named(rng: np.random.Generator) -> None:
    X = rng.standard_normal((N_OBS, 2))
    check = stein_check(Gaussian([0.2, 0.0], np.eye(2)), X, random_seed=0)
    assert failed(check)[0] == "E[S_1] = 0"
    check = stein_check(Gaussian([0.0, 0.0], 1.3 * np.eye(2)), X, random_seed=0)
    assert failed(check)[0] == "E[S_1 x'] = I"


def test_correlated_columns_are_not_independent(rng: np.random.Generator) -> None:
    X = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], 2 * N_OBS)
    model = Independent(families="normal").fit(X[:N_OBS])
    assert "E[S_1 x'] = I" in failed(stein_check(model, X[N_OBS:], random_seed=0))


def test_sizes_of_scores(rng: np.random.Generator) -> None:
    """A Gaussian's are one; for one column of a t with scale 1 E S_1^2 = (nu + 1) / (nu + 3).

    In units of the deviation that is nu (nu + 1) / ((nu - 2) (nu + 3)), 42/36 at nu = 6.
    """
    model, draw = RIGHT["gaussian"]
    sizes = stein_check(model, draw(rng, 50_000), random_seed=0).score_sizes
    assert_allclose(sizes, 1.0, atol=0.1)
    student = StudentT([0.0], [[1.0]], 6.0)
    X = rng.standard_t(6.0, (50_000, 1))
    assert_allclose(stein_check(student, X, random_seed=0).score_sizes[0], 42 / 36, atol=0.05)


def test_fitted_rows_widen_the_errors(rng: np.random.Generator) -> None:
    """A model fitted to as few rows as are held out has errors larger by the root of two."""
    X = rng.standard_normal((2_000, 2))
    fitted = Gaussian().fit(X[:1_000])
    given = Gaussian(fitted.mean_, fitted.covariance_)
    first = stein_check(fitted, X[1_000:], random_seed=0).identities[0].standard_errors
    second = stein_check(given, X[1_000:], random_seed=0).identities[0].standard_errors
    assert_allclose(second / first, np.sqrt(2.0), rtol=0.02)


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "sides"),
    [
        (lambda rng: rng.uniform(size=(N_OBS, 2)), {"lower", "upper"}),
        (lambda rng: rng.standard_gamma(2.0, (N_OBS, 2)), {"lower"}),
        (lambda rng: -rng.standard_exponential((N_OBS, 2)), {"upper"}),
    ],
)
def test_edges_are_found(draw: Any, sides: set[str], rng: np.random.Generator) -> None:
    edges = find_edges(draw(rng))
    assert {edge.side for edge in edges} == sides
    assert all(edge.power < 3.0 for edge in edges)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.standard_normal((N_OBS, 4)),
        lambda rng: rng.standard_gamma(8.0, (N_OBS, 4)),
        lambda rng: rng.lognormal(0.0, 0.5, (N_OBS, 4)),
        lambda rng: rng.standard_t(5.0, (N_OBS, 4)),
        lambda rng: np.ones((N_OBS, 1)),
        lambda rng: rng.uniform(size=(500, 2)),
    ],
)
def test_no_edges_where_the_density_vanishes(draw: Any, rng: np.random.Generator) -> None:
    """One in a hundred by chance at the limit, far fewer for these; none among too few rows."""
    assert find_edges(draw(rng)) == ()


def test_uniform_columns_have_no_valid_score(rng: np.random.Generator) -> None:
    X: FloatArray = rng.uniform(size=(2 * N_OBS, 2))
    check = stein_check(Gaussian().fit(X[:N_OBS]), X[N_OBS:], random_seed=0)
    assert check.status == SteinStatus.BOUNDARY
    assert check.highest_order <= 1
    assert "does not vanish fast enough at its lower edge" in check.message


def test_a_density_with_an_edge_says_so(rng: np.random.Generator) -> None:
    """Fewer rows than show an edge: the gamma's own shape does."""
    X = rng.standard_gamma(2.5, (800, 3))
    check = stein_check(gammas(2.5), X, random_seed=0)
    assert check.status == SteinStatus.BOUNDARY
    assert check.highest_order == 2
    assert "valid scores up to order 2 only" in check.message


# --- use -----------------------------------------------------------------------------------------


def test_same_seed_same_check(rng: np.random.Generator) -> None:
    model, draw = RIGHT["mixture"]
    X = draw(rng, 500)
    first, second = (stein_check(model, X, random_seed=1) for _ in range(2))
    assert first == second
    with pytest.raises(FrozenInstanceError, match="cannot assign"):
        first.status = SteinStatus.FAILED  # type: ignore[misc]


def test_bad_arguments(rng: np.random.Generator) -> None:
    X = rng.standard_normal((20, 3))
    with pytest.raises(ValueError, match="`level` must be between 0 and 1; got 2"):
        stein_check(RIGHT["gaussian"][0], X, level=2)
    with pytest.raises(ValueError, match="must be fitted before its scores are used"):
        stein_check(Gaussian(), X)
    with pytest.raises(ValueError, match="`X` must be two-dimensional"):
        stein_check(RIGHT["gaussian"][0], X[0])
    with pytest.raises(ValueError, match="`X` must have the columns of the density"):
        stein_check(RIGHT["gaussian"][0], X[:, :2])
