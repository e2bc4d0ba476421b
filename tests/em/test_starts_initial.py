"""Starts that a user gives: what they become, and what is wrong with them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, MomentEstimate, estimate, fit_em, simulate_mixture
from moment_init.data.checking import validate_data, validate_gating
from moment_init.em.given import given_starts
from moment_init.em.problem import EMProblem, pose_em, validate_restrictions
from tests.likelihood_problems import BIASES, BOTH, COEFFICIENTS, WEIGHTS, Problem, make_problem

LOCATION, SPREAD = np.array([5.0, -0.3, 2.0]), np.array([2.0, 0.2, 3.0])
TRUTH = (COEFFICIENTS, BIASES, WEIGHTS)


def pose(family: str, rng: np.random.Generator, **restrictions: Any) -> EMProblem:
    """Two components of columns with locations and spreads, in standardised coordinates."""
    link = {"gaussian": "identity"}.get(family, "log")
    rows = make_problem(family, link, rng, n_obs=200, with_extras=False).rows
    data = validate_data(LOCATION + SPREAD * np.asarray(rows.Z), rows.y, family=family)
    held = validate_restrictions(data, 2, **restrictions)
    return pose_em(data, 2, restrictions=held)


def only_start(problem: EMProblem, init: Any) -> Any:
    ((origin, start),) = given_starts(problem, init)
    assert origin == "given"
    return problem.to_user(start)


@pytest.mark.parametrize("container", [tuple, list])
def test_arrays_come_back(container: Any, rng: np.random.Generator) -> None:
    """In the user's units, the weights divided by their sum."""
    problem = pose("poisson", rng)
    user = only_start(problem, container([COEFFICIENTS, BIASES, [1.3, 0.7]]))
    assert_allclose(user.coefficients, COEFFICIENTS)
    assert_allclose(user.biases, BIASES)
    assert_allclose(user.weights, WEIGHTS)
    assert user.dispersion is None


@pytest.mark.parametrize("init", [TRUTH, (*TRUTH, None)])
def test_a_missing_dispersion_is_a_single_model_s(init: Any, rng: np.random.Generator) -> None:
    problem = pose("gaussian", rng)
    user = only_start(problem, init)
    design = np.column_stack([np.asarray(problem.rows.Z), np.ones(200)])
    rest = np.linalg.lstsq(design, problem.rows.y)[1]
    deviation = np.sqrt(rest[0] / 200) * problem.coordinates[0].response_scale
    assert_allclose(user.dispersion, deviation, rtol=1e-4)
    given = only_start(problem, (*TRUTH, [0.4, 0.7]))
    assert_allclose(given.dispersion, [0.4, 0.7])


@pytest.mark.parametrize("as_frame", [False, True])
def test_hard_responsibilities_fit_each_part(as_frame: bool, rng: np.random.Generator) -> None:
    """Least squares on the rows of each component."""
    problem = pose("gaussian", rng)
    labels = rng.integers(2, size=200)
    shares: Any = np.eye(2)[labels] * 3
    user = only_start(problem, pd.DataFrame(shares) if as_frame else shares)
    assert_allclose(user.weights, np.bincount(labels) / 200)
    design = np.column_stack([np.asarray(problem.rows.Z), np.ones(200)])
    start = problem.to_standardised(user)
    for j in range(2):
        own = labels == j
        expected = np.linalg.lstsq(design[own], problem.rows.y[own])[0]
        # twelve Newton steps in coefficients and deviation at once
        assert_allclose(np.append(start.coefficients[:, j], start.biases[j]), expected, atol=1e-6)


def test_responsibilities_of_groups_and_of_rows_that_count(rng: np.random.Generator) -> None:
    """Those of the rows that count are taken; a group has their mean, wherever its rows stand."""
    drawn = make_problem("poisson", "log", rng, n_obs=120, with_extras=False)
    groups = rng.integers(30, size=120)
    counted = rng.random(120) < 0.8
    data = validate_data(drawn.rows.Z, drawn.rows.y, family="poisson", groups=groups)
    data = replace(data, sample_weight=counted.astype(float))
    problem = pose_em(data.drop_zero_weights(), 2)
    shares = rng.dirichlet([1.0, 1.0], 120)
    ((_, start),) = given_starts(problem, shares, data)
    means = pd.DataFrame(shares[counted]).groupby(groups[counted]).transform("mean").to_numpy()
    ((_, again),) = given_starts(problem, means)
    assert_allclose(start.coefficients, again.coefficients, rtol=1e-7)
    by_group = pd.DataFrame(shares[counted]).groupby(groups[counted]).mean()
    assert_allclose(start.weights, by_group.mean().to_numpy())


@pytest.mark.parametrize("n_more", [-1, 1])
def test_responsibilities_of_other_rows_are_refused(n_more: int, rng: np.random.Generator) -> None:
    """More than there are rows would be cut to the first of them, which may be others."""
    problem = pose("poisson", rng)
    n_obs = problem.rows.n_obs
    with pytest.raises(ValueError, match=rf"got an array of shape \({n_obs + n_more}, 2\)"):
        given_starts(problem, np.full((n_obs + n_more, 2), 0.5))


def test_a_fit_is_matched_by_names_and_by_held_weights(rng: np.random.Generator) -> None:
    data = simulate_mixture(400, 2, 2, family="poisson", weights=[0.7, 0.3], random_seed=rng)
    X = pd.DataFrame(data.X, columns=["a", "b"])
    fit = fit_em(X, data.y, 2, family="poisson", random_seed=1)
    for columns in (["b", "a"], ["a", "b"]):
        again = fit_em(X[columns], data.y, 2, family="poisson", init=fit)
        assert_allclose(again.history[0], fit.log_likelihood, rtol=1e-12)
    renamed = X.rename(columns={"a": "c"})  # by position, as of an array
    again = fit_em(renamed, data.y, 2, family="poisson", init=fit)
    assert_allclose(again.history[0], fit.log_likelihood, rtol=1e-12)
    held = sorted(fit.weights)  # the smaller first; a fit has the larger first
    again = fit_em(X, data.y, 2, family="poisson", init=fit, fixed_weights=held)
    assert_allclose(again.history[0], fit.log_likelihood, rtol=1e-12)


def test_labels_are_kept_where_weights_are_held(rng: np.random.Generator) -> None:
    """The given first component gets the first weight, though it is the larger one."""
    problem = pose("poisson", rng, fixed_weights=[0.3, 0.7])
    user = only_start(problem, TRUTH)
    assert_allclose(user.coefficients, COEFFICIENTS)
    assert_allclose(user.weights, [0.3, 0.7])
    labels = (rng.random(200) < 0.2).astype(int)
    shares = np.eye(2)[labels] + 1e-6
    free = only_start(pose("poisson", np.random.default_rng(1)), shares)
    held = only_start(pose("poisson", np.random.default_rng(1), fixed_weights=[0.3, 0.7]), shares)
    assert_allclose(held.coefficients, free.coefficients)
    assert_allclose(held.weights, [0.3, 0.7])


def test_held_directions_keep_the_lengths_along_them(rng: np.random.Generator) -> None:
    directions = np.array([[1.0, 0.0], [0.0, 0.6], [0.0, 0.8]])
    problem = pose("poisson", rng, fixed_directions=directions)
    user = only_start(problem, TRUTH)
    lengths = [COEFFICIENTS[0, 0], 0.6 * COEFFICIENTS[1, 1] + 0.8 * COEFFICIENTS[2, 1]]
    assert_allclose(user.coefficients, np.diag(lengths), atol=1e-12)
    shares = np.eye(2)[rng.integers(2, size=200)] + 0.1
    from_shares = only_start(problem, shares).coefficients
    assert_array_equal(from_shares != 0.0, np.eye(2, dtype=bool))


def test_an_estimate_is_a_start_with_its_candidates() -> None:
    data = simulate_mixture(4000, 3, 2, family="gaussian", weights=[0.7, 0.3], random_seed=1)
    given = estimate(data.X, data.y, 2, family="gaussian", random_seed=1)
    problem = pose_em(validate_data(data.X, data.y, family="gaussian"), 2)
    starts = given_starts(problem, given)
    assert [origin for origin, _ in starts][:2] == ["estimate", "tensor 1"]
    user = problem.to_user(starts[0][1])
    assert given.coefficients is not None
    assert_allclose(user.coefficients, given.coefficients)
    fit = fit_em(data.X, data.y, 2, family="gaussian", init=given)
    assert [start.origin for start in fit.starts] == [origin for origin, _ in starts]
    assert fit.starts[0].log_likelihood > fit.log_likelihood - 0.1
    with pytest.raises(ValueError, match=r"`init` must be an estimate with scales, .*directions"):
        given_starts(problem, _directions_only(given))


def _directions_only(given: MomentEstimate) -> MomentEstimate:
    return replace(given, scales=None, biases=None, weights=None, candidates=())


def fit_of(problem: Problem, n_components: int = 2, **options: Any) -> EMFit:
    rows = problem.rows
    settings: dict[str, Any] = {"family": "poisson", "init": "random", "n_starts": 2, **options}
    return fit_em(rows.Z, rows.y, n_components, random_seed=1, progressbar=False, **settings)


def test_a_fit_is_a_start_for_one_with_or_without_a_gate(rng: np.random.Generator) -> None:
    """With the gate it starts at its own maximum; without one, at the gate's mean."""
    problem = make_problem("poisson", "log", rng, n_obs=400, with_extras=False, variant=BOTH)
    gated = fit_of(problem, gating=problem.rows.gate)
    again = fit_of(problem, gating=problem.rows.gate, init=gated)
    assert_allclose(again.history[0], gated.log_likelihood, rtol=1e-10)
    plain = fit_of(problem, init=gated)
    assert plain.gate is None
    assert plain.converged
    back = fit_of(problem, gating=problem.rows.gate, init=plain)
    assert_allclose(back.history[0], plain.log_likelihood, rtol=1e-10)
    assert problem.rows.gate is not None
    with pytest.raises(ValueError, match=r"`init` must have finite gate of shape \(1, 2\)"):
        fit_of(problem, gating=problem.rows.gate[:, :1], init=gated)


@pytest.mark.parametrize("shared", [None, ["x0"], ["x0", "bias"]])
@pytest.mark.parametrize("has_gate", [False, True])
def test_responsibilities_of_a_fit_lead_back_to_it(
    has_gate: bool, shared: Any, rng: np.random.Generator
) -> None:
    """A maximum is a fixed point of the M-step, with a gate and shared parameters too."""
    problem = make_problem("poisson", "log", rng, n_obs=400, with_extras=False, variant=BOTH)
    options: dict[str, Any] = {"gating": problem.rows.gate if has_gate else None, "shared": shared}
    fit = fit_of(problem, **options)
    again = fit_of(problem, init=fit.responsibilities, **options)
    # the fit ends within the tolerance of its maximum
    assert_allclose(again.history[0], fit.log_likelihood, rtol=0, atol=1e-4)


def test_responsibilities_of_a_gaussian_gate_lead_back_to_it(rng: np.random.Generator) -> None:
    drawn = make_problem("gaussian", "identity", rng, n_obs=400, with_extras=False, variant=BOTH)
    options: dict[str, Any] = {"family": "gaussian", "gating": drawn.rows.gate, "gate": "gaussian"}
    fit = fit_of(drawn, **options)
    for init in (fit, fit.responsibilities):
        again = fit_of(drawn, init=init, **options)
        assert_allclose(again.history[0], fit.log_likelihood, rtol=0, atol=1e-4)


def test_a_fit_to_other_gating_covariates_is_refused(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=200, with_extras=False)
    with pytest.raises(ValueError, match=r"finite coefficients of shape \(3, 3\); got shape"):
        fit_of(problem, 3, init=fit_of(problem))


def test_gated_data_validate_their_gate() -> None:
    """One covariate may be a vector or a named column."""
    vector = validate_gating(np.arange(4.0), 4, None)
    column = validate_gating(pd.Series(np.arange(4.0), name="age"), 4, None)
    assert vector is not None
    assert column is not None
    assert (vector[1], column[1]) == (("g0",), ("age",))
    assert_array_equal(vector[0], column[0])


SHAPES = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("init", "kind", "message"),
    [
        ((SHAPES[:2], BIASES, WEIGHTS), ValueError, r"finite coefficients of shape \(3, 2\)"),
        ((SHAPES, BIASES[:1], WEIGHTS), ValueError, r"finite biases of shape \(2,\); got .*\(1,\)"),
        ((SHAPES * np.nan, BIASES, WEIGHTS), ValueError, "finite coefficients"),
        ((SHAPES, BIASES, [1.0, 0.0]), ValueError, "positive weights and dispersion"),
        ((SHAPES, BIASES, WEIGHTS, [1.0, 1.0]), ValueError, "must not have a dispersion for"),
        ((SHAPES, BIASES), TypeError, "`init` must be 'search', .*got tuple"),
        ((SHAPES, None, WEIGHTS), TypeError, "got None for one of the first three"),
        ((SHAPES, "two", WEIGHTS), TypeError, "got a tuple with entries that are not arrays"),
        (None, TypeError, "`init` must be .*; got NoneType"),
        (np.ones((200, 3)), ValueError, r"got an array of shape \(200, 3\).*\(200, 2\)"),
        (np.ones((199, 2)), ValueError, r"got an array of shape \(199, 2\)"),
        (np.full((200, 2), np.nan), ValueError, "finite entries is needed"),
        (np.full((200, 2), "a"), ValueError, "type <U1"),
        (np.array([[1.0, 0.0]] * 200), ValueError, "every component a row"),
        (np.array([[2.0, -1.0]] * 200), ValueError, "must not have negative entries"),
    ],
)
def test_what_is_wrong_with_a_start_is_named(
    init: Any, kind: type[Exception], message: str, rng: np.random.Generator
) -> None:
    problem = pose("poisson", rng)
    with pytest.raises(kind, match=message):
        given_starts(problem, init)
