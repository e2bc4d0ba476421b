"""The observed information against second differences of a likelihood written by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from moment_init.em.assembly import assemble_fit
from moment_init.em.information import LaplaceApproximation, laplace_of
from moment_init.em.result import EMFit
from moment_init.em.runs import Runs
from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters, pack, unpack
from moment_init.results import Status
from tests.em_fits import SPREAD, Fitted, make_fit, refit
from tests.likelihood_problems import (
    COEFFICIENTS,
    FAMILY_LINKS,
    PLAIN,
    VARIANTS,
    Variant,
    log_densities,
)

FloatArray = NDArray[np.float64]

N_OBS = 1000
"""Enough rows for an interior maximum of every family, the negative binomial among them."""

DIFFERENCE_TOLERANCE = 2e-4
"""Differences of conditional standard errors times .04, extrapolated once, have a truncation error
of some .04^4 = 3e-6 and a rounding error of 1e-12 / .04^2 = 1e-9; the condition number of the
scaled Hessian, below 100, multiplies both."""


def hand_log_likelihood(fitted: Fitted, at: MixtureParameters) -> float:
    """Log-likelihood of the user's rows from `scipy.stats`, groups by counting."""
    data, block = fitted.data, fitted.block
    family = get_family(fitted.fit.family, fitted.fit.link)
    X = np.asarray(data.X, dtype=np.float64)
    eta = X @ at.coefficients + at.biases
    if data.offset is not None:
        eta += data.offset[:, None]
    trials = np.ones(data.n_obs) if data.n_trials is None else data.n_trials
    dispersion = [None] * at.n_components if at.dispersion is None else list(at.dispersion)
    densities = np.stack(
        [
            log_densities(family, data.y, eta[:, j], dispersion[j], trials)
            for j in range(at.n_components)
        ],
        axis=1,
    )
    logits = np.tile(np.log(at.weights), (data.n_obs, 1))
    if at.gate is not None:
        logits = logits + np.asarray(block["gating"]) @ at.gate
    prior = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    if data.groups is None:
        return float(data.sample_weight @ np.logaddexp.reduce(prior + densities, axis=1))
    _, first, codes = np.unique(data.groups, return_index=True, return_inverse=True)
    sums = [np.bincount(codes, values * data.sample_weight) for values in densities.T]
    return float(np.logaddexp.reduce(np.stack(sums, axis=1) + prior[first], axis=1).sum())


def second_differences(
    function: Callable[[FloatArray], float], size: int, step: float = 0.04
) -> FloatArray:
    """Hessian at zero, steps in units of each coordinate's own curvature, extrapolated once."""
    centre = function(np.zeros(size))
    scales = np.empty(size)
    for index, unit in enumerate(np.eye(size)):
        width = 1e-3
        for _ in range(3):  # towards a step that changes the function by a half
            curvature = (2 * centre - function(width * unit) - function(-width * unit)) / width**2
            width = 0.3 / np.sqrt(curvature)
        scales[index] = width / 0.3

    def hessian(width: float) -> FloatArray:
        result = np.empty((size, size))
        steps = width * np.eye(size) * scales
        for i in range(size):
            for j in range(i + 1):
                corners = [
                    function(a * steps[i] + b * steps[j]) * a * b for a in (1, -1) for b in (1, -1)
                ]
                value = sum(corners) / (4 * width**2 * scales[i] * scales[j])
                result[i, j] = result[j, i] = value
        return result

    return (4 * hessian(step) - hessian(2 * step)) / 3


def numerical_covariance(fitted: Fitted, moves: FloatArray | None = None) -> FloatArray:
    """Inverse of minus the Hessian in the user's vector, on the moves that are allowed."""
    parameters = fitted.fit.parameters
    at = pack(parameters)
    moves = np.eye(at.size) if moves is None else moves

    def value(step: FloatArray) -> float:
        return hand_log_likelihood(fitted, unpack(at + moves @ step, parameters))

    hessian = second_differences(value, moves.shape[1])
    return np.asarray(moves @ np.linalg.solve(-hessian, moves.T))


def assert_same_covariance(fit: EMFit, expected: FloatArray) -> None:
    """Standard errors to the tolerance, covariances to the same share of the errors' product."""
    assert fit.covariance is not None
    errors = np.sqrt(np.diag(expected))
    assert_allclose(
        np.sqrt(np.diag(fit.covariance)), errors, rtol=DIFFERENCE_TOLERANCE, atol=1e-300
    )
    scale = np.outer(errors, errors) + 1e-300
    assert np.max(np.abs(fit.covariance - expected) / scale) < 4 * DIFFERENCE_TOLERANCE


# --- against a numerical Hessian -----------------------------------------------------------------


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_covariance_is_that_of_a_numerical_hessian(
    family: str, link: str, rng: np.random.Generator
) -> None:
    fitted = make_fit(family, link, rng, n_obs=N_OBS)
    assert fitted.fit.status is Status.OK
    assert_same_covariance(fitted.fit, numerical_covariance(fitted))


@pytest.mark.parametrize("variant", ["groups", "gate", "both"])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_covariance_with_groups_and_a_gate(
    family: str, variant: str, rng: np.random.Generator
) -> None:
    link = get_family(family).link.name
    fitted = make_fit(family, link, rng, n_obs=N_OBS, variant=VARIANTS[variant])
    assert_same_covariance(fitted.fit, numerical_covariance(fitted))


def selecting(groups: list[list[int]], size: int) -> FloatArray:
    """Moves that change the entries of each list together."""
    moves = np.zeros((size, len(groups)))
    for column, entries in enumerate(groups):
        moves[entries, column] = 1.0
    return moves


@pytest.mark.parametrize("variant", [PLAIN, Variant(gated=True)])
def test_covariance_with_shared_parameters(variant: Variant, rng: np.random.Generator) -> None:
    """A component owns (age, income, <b>, bias, log dispersion): entries 0-4 and 5-9."""
    fitted = make_fit(
        "gaussian", "identity", rng, n_obs=N_OBS, variant=variant,
        shared=["income", "bias", "dispersion"],
    )  # fmt: skip
    fit = fitted.fit
    size = len(pack(fit.parameters))
    groups = [[0], [5], [1, 6], [2], [7], [3, 8], [4, 9]]
    moves = selecting(groups + [[index] for index in range(10, size)], size)
    assert fit.n_parameters == moves.shape[1]
    assert_allclose(fit.coefficients[1, 0], fit.coefficients[1, 1], rtol=1e-10)
    assert_same_covariance(fit, numerical_covariance(fitted, moves))
    errors = fit.standard_errors
    assert_allclose(errors.coefficients[1, 0], errors.coefficients[1, 1], rtol=1e-10)


def test_covariance_with_held_weights(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, n_obs=N_OBS, fixed_weights=[0.65, 0.35])
    fit = fitted.fit
    moves = np.eye(9)[:, :8]
    assert fit.n_parameters == 8
    assert_array_equal(fit.standard_errors.weights, 0.0)
    assert_same_covariance(fit, numerical_covariance(fitted, moves))


@pytest.mark.parametrize(("family", "link"), [("gaussian", "identity"), ("poisson", "log")])
def test_covariance_with_held_directions(family: str, link: str, rng: np.random.Generator) -> None:
    """Coefficients move along their directions only; those of a component are dependent."""
    directions = COEFFICIENTS / SPREAD[:, None]
    directions /= np.linalg.norm(directions, axis=0)
    has_dispersion = get_family(family).has_dispersion
    start = MixtureParameters(
        np.eye(2), np.zeros(2), np.array([0.6, 0.4]), np.ones(2) if has_dispersion else None
    )
    fitted = make_fit(family, link, rng, n_obs=N_OBS, start=start, fixed_directions=directions)
    fit = fitted.fit
    assert fit.coefficients.shape == (3, 2)
    assert_allclose(np.abs(np.sum(fit.directions * directions, axis=0)), 1.0, rtol=1e-12)
    q = 5 if has_dispersion else 4
    moves = np.zeros((2 * q + 1, 2 * (q - 2) + 1))
    for j in range(2):
        moves[j * q : j * q + 3, j * (q - 2)] = directions[:, j]
        moves[j * q + 3 : (j + 1) * q, j * (q - 2) + 1 : (j + 1) * (q - 2)] = np.eye(q - 3)
    moves[-1, -1] = 1.0
    assert fit.n_parameters == moves.shape[1]
    assert_same_covariance(fit, numerical_covariance(fitted, moves))


# --- the delta method ----------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
def test_errors_of_weights_and_dispersion(gated: bool, rng: np.random.Generator) -> None:
    """Against a numerical Jacobian of the map from the vector to the natural scale."""
    fit = make_fit("gamma", "log", rng, n_obs=N_OBS, variant=Variant(gated=gated)).fit
    parameters, covariance = fit.parameters, fit.covariance
    assert covariance is not None
    at = pack(parameters)

    def natural(vector: FloatArray) -> FloatArray:
        there = unpack(vector, parameters)
        logits = np.log(there.weights)
        if there.gate is not None and fit.gate_centre is not None:
            logits = logits + fit.gate_centre @ there.gate
        assert there.dispersion is not None
        return np.concatenate([np.exp(logits - np.logaddexp.reduce(logits)), there.dispersion])

    step = 1e-5
    jacobian = np.stack(
        [(natural(at + step * e) - natural(at - step * e)) / (2 * step) for e in np.eye(at.size)]
    )
    expected = np.sqrt(np.diag(jacobian.T @ covariance @ jacobian))
    errors = fit.standard_errors
    assert errors.dispersion is not None
    assert_allclose(natural(at)[:2], fit.weights, rtol=1e-10)
    assert_allclose(np.concatenate([errors.weights, errors.dispersion]), expected, rtol=1e-6)


def test_errors_have_the_shapes_of_the_parameters(rng: np.random.Generator) -> None:
    fit = make_fit("gaussian", "identity", rng, variant=Variant(gated=True)).fit
    errors, covariance = fit.standard_errors, fit.covariance
    assert covariance is not None
    assert errors.gate is not None
    assert errors.gate_biases is not None
    assert errors.coefficients.shape == (3, 2)
    assert_allclose(errors.coefficients[2, 1], np.sqrt(covariance[7, 7]), rtol=1e-12)
    assert_allclose(errors.biases[0], np.sqrt(covariance[3, 3]), rtol=1e-12)
    assert_allclose(errors.gate[:, 0], np.sqrt(np.diag(covariance)[11:]), rtol=1e-12)
    assert_allclose(errors.gate_biases, [np.sqrt(covariance[10, 10]), 0.0], rtol=1e-12)
    assert_array_equal(errors.gate[:, 1], 0.0)


def test_a_single_component_has_errors_of_a_generalised_linear_model(
    rng: np.random.Generator,
) -> None:
    """Least squares: covariance s^2 (Z'WZ)^-1, log s has variance 1 / (2 sum of weights)."""
    fitted = make_fit("gaussian", "identity", rng)
    start = fitted.fit.parameters.reorder(np.array([0]))
    single = refit("gaussian", "identity", fitted.X, fitted.y, fitted.block, start).fit
    weight = fitted.data.sample_weight
    design = np.column_stack([fitted.X.to_numpy(), np.ones(len(weight))])
    assert single.dispersion is not None
    assert single.covariance is not None
    expected = single.dispersion[0] ** 2 * np.linalg.inv((design.T * weight) @ design)
    assert_allclose(single.covariance[:4, :4], expected, rtol=1e-7)
    assert_allclose(single.covariance[4, 4], 0.5 / weight.sum(), rtol=1e-6)
    assert_array_equal(single.standard_errors.weights, 0.0)
    assert_array_equal(single.weights, 1.0)


# --- order, bounds and singular information ------------------------------------------------------


def test_covariance_follows_the_order_of_the_components(rng: np.random.Generator) -> None:
    """Starts with the components exchanged end in the same fit, its covariance included."""
    fitted = make_fit("gaussian", "identity", rng, variant=Variant(gated=True))
    start = fitted.problem.to_user(fitted.end.parameters).reorder(np.array([1, 0]))
    other = refit("gaussian", "identity", fitted.X, fitted.y, fitted.block, start)
    assert other.end.parameters.weights[0] < other.end.parameters.weights[1]
    assert fitted.fit.covariance is not None
    assert other.fit.covariance is not None
    assert_allclose(other.fit.coefficients, fitted.fit.coefficients, rtol=1e-6)
    assert_allclose(other.fit.covariance, fitted.fit.covariance, rtol=1e-4, atol=1e-10)


def test_covariance_of_an_end_is_in_its_own_order(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng)
    here, warnings = laplace_of(fitted.problem, fitted.end)
    covariance = here.covariance
    assert warnings == ()
    assert covariance is not None
    order = np.arange(2) if fitted.end.parameters.weights[0] > 0.5 else np.array([1, 0])
    laplace, _ = laplace_of(fitted.problem, fitted.end, order)
    assert laplace.covariance is not None
    assert fitted.fit.covariance is not None
    assert_array_equal(laplace.covariance, fitted.fit.covariance)
    own = covariance.reshape(9, 9)[order[0] * 4 : order[0] * 4 + 4, order[0] * 4 : order[0] * 4 + 4]
    assert_allclose(fitted.fit.covariance[:4, :4], own, rtol=1e-10)


def test_curvature_is_made_up_for_where_a_climb_lacks_it(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng)
    lean = replace(fitted.end, sums=replace(fitted.end.sums, missing_information=None))
    covariance = laplace_of(fitted.problem, lean)[0].covariance
    expected = laplace_of(fitted.problem, fitted.end)[0].covariance
    assert covariance is not None
    assert expected is not None
    assert_allclose(covariance, expected, rtol=1e-9)


def identical_components(fitted: Fitted) -> Any:
    """A climb that ends where two components are the same: a saddle, and the logit is free."""
    start = fitted.problem.to_standardised(fitted.fit.parameters).reorder(np.array([0, 0]))
    return fitted.problem.climb(start, max_steps=100, em_steps=100)


def test_singular_information_is_said(rng: np.random.Generator) -> None:
    """With two equal components no row tells anything about their weights."""
    fitted = make_fit("gaussian", "identity", rng)
    end = identical_components(fitted)
    fit = assemble_fit(fitted.problem, fitted.data, end, Runs(fitted.problem))
    assert np.isnan(fit.standard_errors.weights).all()
    assert any("information" in warning and "NaN" in warning for warning in fit.warnings)
    assert fit.laplace.root.shape[1] < 11
    assert fit.covariance is None or np.isnan(fit.covariance[-1]).all()


def test_nothing_is_determined_by_an_information_that_is_not_finite(
    rng: np.random.Generator,
) -> None:
    fitted = make_fit("poisson", "log", rng)
    sums = fitted.end.sums
    assert sums.component_information is not None
    broken = replace(sums, component_information=np.full_like(sums.component_information, np.nan))
    end = replace(fitted.end, sums=broken)
    assert laplace_of(fitted.problem, end)[0].covariance is None
    fit = assemble_fit(fitted.problem, fitted.data, end, Runs(fitted.problem))
    assert fit.covariance is None
    assert np.isnan(fit.standard_errors.coefficients).all()
    assert fit.status is Status.NOT_IDENTIFIED
    assert any("not finite" in warning for warning in fit.warnings)


def test_active_bounds_are_held(rng: np.random.Generator) -> None:
    """Counts without overdispersion: alpha ends on its bound, the rest are those of its limit."""
    poisson = make_fit("poisson", "log", rng, n_obs=N_OBS)
    start = replace(poisson.fit.parameters, dispersion=np.full(2, 1e8))
    fitted = refit("negative_binomial", "log", poisson.X, poisson.y, poisson.block, start)
    fit = fitted.fit
    assert fit.dispersion is not None
    on_bound = fit.dispersion >= 1e8 * (1 - 1e-9)
    assert len(fit.bounds) == on_bound.sum()
    errors = fit.standard_errors
    assert errors.dispersion is not None
    assert_array_equal(errors.dispersion[on_bound], 0.0)
    if on_bound.all():
        expected = poisson.fit.standard_errors.coefficients
        assert_allclose(errors.coefficients, expected, rtol=1e-4)
        assert fit.status is Status.NOT_IDENTIFIED
        assert any("bound" in warning for warning in fit.warnings)


def test_covariance_marks_what_is_undetermined() -> None:
    """By hand: R = diag(2, 3) above a row of zeros, the second parameter undetermined."""
    root = np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    laplace = LaplaceApproximation(root, np.array([False, True, False]))
    expected = [[4.0, np.nan, 0.0], [np.nan, np.nan, np.nan], [0.0, np.nan, 0.0]]
    assert laplace.covariance is not None
    assert_array_equal(laplace.covariance, expected)
    assert LaplaceApproximation(root, np.ones(3, dtype=bool)).covariance is None
