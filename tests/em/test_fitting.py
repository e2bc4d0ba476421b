"""The entry point: recovery, seeds, weights of rows, limits of a run, and its arguments."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from moment_init import ConvergenceWarning, EMFit, Status, fit_em
from moment_init.data.checking import validate_data
from moment_init.em import search as searching
from moment_init.em.problem import pose_em
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import (
    BOTH,
    FAMILY_LINKS,
    GATED,
    GROUPS,
    PLAIN,
    Problem,
    Variant,
    make_problem,
)

FloatArray = NDArray[np.float64]

STANDARD_ERRORS = 4.0
"""Some 70 parameters are compared in all: one of them is this far off by chance for one seed in two
hundred."""

TOLERANCE = 1e-6
"""The default: a Newton step at the end is predicted to gain less log-likelihood than this."""


def start_of(truth: MixtureParameters) -> tuple[Any, ...]:
    parts = (truth.coefficients, truth.biases, truth.weights)
    return parts if truth.dispersion is None else (*parts, truth.dispersion)


def block_of(problem: Problem) -> dict[str, Any]:
    """Everything but the weights, which no row was drawn with."""
    rows = problem.rows
    block: dict[str, Any] = {"family": problem.family.name, "link": problem.family.link.name}
    given: dict[str, Any] = {"offset": rows.offset, "n_trials": rows.n_trials, "gating": rows.gate}
    if rows.group_starts is not None:
        sizes = np.diff(np.append(rows.group_starts, rows.n_obs))
        given["groups"] = np.repeat(np.arange(len(sizes)), sizes)
    return block | {name: values for name, values in given.items() if values is not None}


def fit_problem(problem: Problem, **options: Any) -> EMFit:
    settings = {"random_seed": 1, "progressbar": False, **block_of(problem), **options}
    return fit_em(problem.rows.Z, problem.rows.y, 2, **settings)


def assert_recovers(fit: EMFit, truth: MixtureParameters) -> None:
    errors = fit.standard_errors
    for name in ("coefficients", "biases", "dispersion", "gate"):
        expected = getattr(truth, name)
        if expected is not None:
            gap = np.abs(getattr(fit, name) - expected)
            assert np.all(gap <= STANDARD_ERRORS * getattr(errors, name)), name
    if truth.gate is None:
        assert np.all(np.abs(fit.weights - truth.weights) <= STANDARD_ERRORS * errors.weights)


def predicted_gain(problem: Problem, fit: EMFit) -> float:
    """Gain of a Newton step at the end: the gradient in units of the information."""
    given = {name: value for name, value in block_of(problem).items() if name != "gating"}
    posed = pose_em(validate_data(problem.rows.Z, problem.rows.y, **given), 2)
    sums = likelihood_sums(posed.family, posed.rows, posed.to_standardised(fit.parameters))
    return 0.5 * float(sums.score @ np.linalg.solve(sums.information(), sums.score))


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_every_family_is_recovered_from_the_default_starts(
    family: str, link: str, rng: np.random.Generator
) -> None:
    problem = make_problem(family, link, rng, n_obs=1500)
    fit = fit_problem(problem)
    assert (fit.status, fit.converged) == (Status.OK, True)
    assert_recovers(fit, problem.truth)
    assert np.all(np.diff(fit.history) >= -1e-12 * abs(fit.log_likelihood))
    assert 0.0 <= predicted_gain(problem, fit) < TOLERANCE
    best = fit_problem(problem, init=start_of(problem.truth))
    # both stop where less than the tolerance is left to gain
    assert_allclose(fit.log_likelihood, best.log_likelihood, rtol=0, atol=2 * TOLERANCE)
    assert_allclose(fit.coefficients, best.coefficients, rtol=0, atol=1e-3)


@pytest.mark.parametrize("variant", [GROUPS, GATED, BOTH])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_groups_and_gates_are_recovered(
    family: str, variant: Variant, rng: np.random.Generator
) -> None:
    link = {"gaussian": "identity", "poisson": "log"}[family]
    problem = make_problem(family, link, rng, n_obs=1500, variant=variant)
    fit = fit_problem(problem)
    assert fit.status is Status.OK
    assert_recovers(fit, problem.truth)
    assert np.all(np.diff(fit.history) >= -1e-12 * abs(fit.log_likelihood))
    best = fit_problem(problem, init=start_of(problem.truth))
    assert_allclose(fit.log_likelihood, best.log_likelihood, rtol=0, atol=2 * TOLERANCE)
    units = block_of(problem).get("groups", np.arange(1500))
    assert fit.n_units == len(set(units))
    table = pd.DataFrame(fit.responsibilities).groupby(units)
    assert_array_equal(table.min().to_numpy(), table.max().to_numpy())


def test_same_seed_same_bits(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=300)
    first, again = (fit_problem(problem, random_seed=5) for _ in range(2))
    assert first.history == again.history
    for name in ("coefficients", "biases", "weights", "responsibilities"):
        assert_array_equal(getattr(first, name), getattr(again, name))
    assert [start.origin for start in first.starts] == [start.origin for start in again.starts]


def test_many_rows_are_searched_by_a_sample(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starts see the sample, the fit all rows; the share is that of starts of one sample."""
    monkeypatch.setattr(searching, "SEARCH_UNITS", 500)
    monkeypatch.setattr(searching, "SEARCH_UNITS_PER_PARAMETER", 1)
    problem = make_problem("gaussian", "identity", rng, n_obs=2000, variant=GROUPS)
    searched = fit_problem(problem, groups=None, offset=None)
    assert all(start.is_sampled for start in searched.starts)
    best = fit_problem(problem, groups=None, offset=None, init=start_of(problem.truth))
    assert_allclose(searched.log_likelihood, best.log_likelihood, rtol=0, atol=2 * TOLERANCE)
    assert searched.reached_best[0] > 0
    assert not any(start.is_sampled for start in best.starts)


@pytest.mark.parametrize("variant", [PLAIN, BOTH])
def test_weights_count_rows(variant: Variant, rng: np.random.Generator) -> None:
    """Weights 0, 1, 2 are rows that are left out, taken, and taken twice (in the same group)."""
    problem = make_problem("poisson", "log", rng, n_obs=400, variant=variant)
    block = block_of(problem)
    weight = rng.integers(0, 3, 400)
    times = np.repeat(np.arange(400), weight)
    settings: dict[str, Any] = {
        "init": start_of(problem.truth),
        "tolerance": 1e-10,
        "random_seed": 1,
    }
    weighted = fit_em(problem.rows.Z, problem.rows.y, 2, sample_weight=weight, **settings, **block)
    taken: dict[str, Any] = {
        k: values if isinstance(values, str) else values[times] for k, values in block.items()
    }
    Z = np.asarray(problem.rows.Z)[times]
    replicated = fit_em(Z, problem.rows.y[times], 2, **settings, **taken)
    assert_allclose(weighted.log_likelihood, replicated.log_likelihood, rtol=1e-12)
    # both ends are within sqrt(2 x 1e-10) standard errors of the maximum, errors below one
    assert_allclose(weighted.coefficients, replicated.coefficients, rtol=0, atol=1e-4)
    assert weighted.n_units == replicated.n_units
    assert_allclose(weighted.bic, replicated.bic, rtol=1e-12)


@pytest.mark.parametrize("variant", [PLAIN, GROUPS, BOTH])
def test_rows_of_weight_zero_have_responsibilities(
    variant: Variant, rng: np.random.Generator
) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=300, variant=variant)
    block = block_of(problem)
    weight = rng.integers(0, 2, 300).astype(np.float64)
    weight[:40] = 0.0  # whole groups among them
    fit = fit_problem(problem, sample_weight=weight, init=start_of(problem.truth))
    assert fit.responsibilities.shape == (300, 2)
    assert fit.n_obs == 300
    data = {name: values for name, values in block.items() if name not in ("family", "link")}
    members = fit.predict_membership(problem.rows.Z, problem.rows.y, sample_weight=weight, **data)
    assert_allclose(fit.responsibilities, members, atol=1e-10)
    shares = fit.responsibilities.copy()
    again = fit_problem(problem, sample_weight=weight, init=shares)
    assert_allclose(again.log_likelihood, fit.log_likelihood, rtol=0, atol=2 * TOLERANCE)


@pytest.mark.parametrize("init", ["tensor", "random", "arrays", "responsibilities"])
def test_no_iterations_return_the_bare_start(init: str, rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=400, with_extras=False)
    start: Any = init
    if init == "arrays":
        start = start_of(problem.truth)
    elif init == "responsibilities":
        start = np.eye(2)[problem.labels] + 0.1
    with pytest.warns(ConvergenceWarning, match="did not converge .out_of_steps after 0 iter"):
        fit = fit_problem(problem, init=start, max_iter=0, n_starts=2)
    assert (fit.converged, fit.status) == (False, Status.NOT_CONVERGED)
    assert (fit.n_iter, len(fit.history)) == (0, 1)
    assert "did not converge" in fit.warnings[0]
    if init == "arrays":
        assert_allclose(fit.coefficients, problem.truth.coefficients, rtol=1e-10)
        assert_allclose(fit.weights, problem.truth.weights, rtol=1e-10)
        score = fit.score(problem.rows.Z, problem.rows.y)
        assert_allclose(fit.log_likelihood, 400 * score, rtol=1e-10)


def test_bare_start_where_moments_do_not_apply(rng: np.random.Generator) -> None:
    """A binary column has no score function: the start is grown by splits."""
    X = np.column_stack([rng.standard_normal(200), rng.integers(0, 2, 200)])
    y = rng.poisson(np.exp(X[:, 0] * rng.choice([-1.0, 1.0], 200)))
    with pytest.warns(ConvergenceWarning, match="0 iterations"):
        fit = fit_em(X, y, 2, family="poisson", max_iter=0, random_seed=1)
    assert [start.origin for start in fit.starts] == ["growth"]


@pytest.mark.parametrize("index", [4, 5])
def test_a_gate_does_not_end_below_the_mixture_without_it(index: int) -> None:
    """Of the last data growth with a gate ended on a bound of the gate, 2.8 too low."""
    rng = np.random.default_rng(index)
    X = rng.standard_normal((300, 2))
    is_first, gating = rng.random(300) < 0.6, rng.standard_normal(300)
    eta = np.where(is_first, 1.0 + X[:, 0], -1.0 - X[:, 1])
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = fit_em(X, y, 2, random_seed=1)
        nested = fit_em(X, y, 2, gating=gating, init=plain)
        gated = fit_em(X, y, 2, gating=gating, random_seed=1)
    # if there is an interior optimum, it is returned although it may be lower
    highest = max(
        start.log_likelihood for start in gated.starts if not np.isnan(start.log_likelihood)
    )
    assert highest > max(plain.log_likelihood, nested.log_likelihood) - 0.01


def test_few_iterations_are_said_to_be_few(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=400, with_extras=False)
    start = (np.zeros((3, 2)), [0.5, -0.5], [0.5, 0.5])
    with pytest.warns(ConvergenceWarning, match="`max_iter`"):
        fit = fit_problem(problem, init=start, max_iter=3)
    assert fit.n_iter == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_problem(problem, init=fit).converged


@pytest.mark.parametrize("init", ["tensor", "random", "arrays", "responsibilities"])
@pytest.mark.parametrize("gated", [False, True])
def test_one_component_is_a_generalised_linear_model(
    init: str, gated: bool, rng: np.random.Generator
) -> None:
    """Least squares by NumPy; a gate has nothing to choose from."""
    X = rng.standard_normal((50, 2)) + 3.0
    y = X @ [1.0, -2.0] + 0.7 + 0.3 * rng.standard_normal(50)
    starts = {"arrays": (np.zeros((2, 1)), [0.0], [1.0]), "responsibilities": np.ones((50, 1))}
    gating = rng.standard_normal((50, 1)) if gated else None
    start: Any = starts.get(init, init)
    fit = fit_em(
        X, y, 1, family="gaussian", init=start, gating=gating, tolerance=1e-12, progressbar=False
    )
    expected, rest, _, _ = np.linalg.lstsq(np.column_stack([X, np.ones(50)]), y)
    assert_allclose(np.append(fit.coefficients, fit.biases), expected, rtol=1e-6)
    assert fit.dispersion is not None
    assert_allclose(fit.dispersion**2, rest / 50, rtol=1e-6)
    assert_array_equal(fit.weights, [1.0])
    assert fit.status is Status.OK
    assert (fit.gate is not None) == gated


SMALL: dict[str, Any] = {"family": "poisson", "progressbar": False}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"init": "moments"},
            ValueError,
            "`init` must be 'search', 'tensor' or 'random'.*got 'moments'",
        ),
        ({"init": 3}, TypeError, "`init` must be .*; got int"),
        ({"max_iter": -1}, ValueError, "`max_iter` must be a whole number.*got -1"),
        ({"max_iter": 2.5}, ValueError, "`max_iter` must be a whole number.*got 2.5"),
        ({"max_iter": True}, ValueError, "`max_iter` must be a whole number.*got True"),
        ({"tolerance": 0.0}, ValueError, "`tolerance` must be a positive number; got 0.0"),
        ({"tolerance": "low"}, ValueError, "`tolerance` must be a positive number; got 'low'"),
        ({"n_starts": 0}, ValueError, "`n_starts` must be a whole number, 1 or more; got 0"),
        ({"n_jobs": 0}, ValueError, "`n_jobs` must be .*got 0. Use -1"),
        ({"n_jobs": 1.5}, ValueError, "`n_jobs` must be .*got 1.5"),
        ({"random_start": "far"}, ValueError, "`random_start` must be .*got 'far'"),
        ({"min_dispersion_ratio": 0.0}, ValueError, "`min_dispersion_ratio` must be above 0"),
        ({"min_dispersion_ratio": "no"}, ValueError, "`min_dispersion_ratio` .*got 'no'"),
        ({"random_seed": -1}, ValueError, "`random_seed` must be a non-negative integer"),
        ({"n_components": 0}, ValueError, "`n_components` must be between 1"),
        ({"n_components": 2.0}, TypeError, "`n_components` must be an integer"),
        ({"n_components": 11}, ValueError, r"11 components have free parameters \(43\); got 40"),
        ({"n_trials": 3}, ValueError, "`n_trials` must be None for family 'poisson'"),
        ({"groups": np.arange(39)}, ValueError, r"`groups` must have shape \(40,\)"),
        ({"family": "normal"}, ValueError, "`family` must be one of"),
    ],
)
def test_wrong_arguments_are_named(
    options: dict[str, Any],
    kind: type[Exception],
    message: str,
    rng: np.random.Generator,
) -> None:
    X, y = rng.standard_normal((40, 2)), rng.poisson(2.0, 40)
    asked = {"n_components": 2, **SMALL, **options}
    with pytest.raises(kind, match=message):
        fit_em(X, y, **asked)


def test_only_rows_of_positive_weight_are_rows(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((40, 2)), rng.poisson(2.0, 40)
    with pytest.raises(ValueError, match=r"rows of positive weight .* \(7\); got 5"):
        fit_em(X, y, 2, sample_weight=np.arange(40) < 5, **SMALL)
