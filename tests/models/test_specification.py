"""What a Bayesian mixture is built from: the start, its anchors, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from moment_init import estimate, fit_em, simulate_mixture
from moment_init.checks import ConvergenceWarning
from moment_init.em.result import EMFit
from moment_init.em.start_values import start_values_of
from moment_init.models.specification import Specification
from tests.bayesian_models import fitted
from tests.specified import specify_rows

FloatArray = NDArray[np.float64]

SLOPES = np.array([[1.0, -0.5], [0.4, 0.8]])
ARRAYS = (SLOPES, np.array([0.2, -0.3]), np.array([0.7, 0.3]))


@pytest.fixture(scope="module")
def data() -> Any:
    return simulate_mixture(
        1500, 2, 2, family="poisson", biases=[1.0, 0.3], scales=[0.7, 0.7], random_seed=1
    )


def specified(data: Any, **arguments: Any) -> Specification:
    given: dict[str, Any] = {
        "gating": None,
        "init": ARRAYS,
        "directions": "anchored",
        "anchor_angle": 45.0,
        "random_seed": 1,
        "n_components": 2,
    } | arguments
    block = {"family": given.pop("family", "poisson")}
    return specify_rows(data.X, data.y, data_block=block, **given)


# --- the start -----------------------------------------------------------------------------------


def test_arrays_are_taken_as_they_are(data: Any) -> None:
    specification = specified(data, init=(SLOPES.tolist(), ARRAYS[1], 2.0 * ARRAYS[2]))
    start = specification.start
    assert specification.origin is None
    assert_array_equal(start.coefficients, SLOPES)
    assert start.weights is not None
    assert start.scales is not None
    assert_allclose(start.weights, ARRAYS[2], rtol=1e-15)
    assert_allclose(start.scales, np.linalg.norm(SLOPES, axis=0))
    assert_allclose(np.linalg.norm(start.directions, axis=0), 1.0)


def test_fit_is_taken_as_it_is(data: Any) -> None:
    fit = fit_em(data.X, data.y, 2, family="poisson", random_seed=2, init="random", n_starts=2)
    specification = specified(data, init=fit)
    assert specification.origin is fit
    assert_array_equal(specification.start.coefficients, fit.coefficients)


@pytest.mark.parametrize("directions", ["anchored", "fixed", "free"])
def test_search_starts_at_the_maximum_a_posteriori(data: Any, directions: str) -> None:
    """Directions, scales and biases of the start, and the anchors, are those of that fit."""
    specification = specified(data, init="search", directions=directions)
    fit = fit_em(data.X, data.y, 2, family="poisson", priors="default", random_seed=1)
    start = specification.start
    assert start.scales is not None
    assert start.biases is not None
    assert_allclose(start.directions, fit.directions, rtol=1e-12)
    assert_allclose(start.scales, fit.scales, rtol=1e-12)
    assert_allclose(start.biases, fit.biases, rtol=1e-12)
    anchors = specification.to_user_columns(specification.anchors)
    lengths = np.linalg.norm(anchors, axis=0)
    assert_allclose(anchors / lengths, fit.directions, rtol=1e-9)


def test_estimate_is_fitted_from(data: Any) -> None:
    origin = specified(data, init=estimate(data.X, data.y, 2, family="poisson")).origin
    fit = fit_em(data.X, data.y, 2, family="poisson", priors="default", random_seed=1)
    assert isinstance(origin, EMFit)
    assert origin.log_posterior == pytest.approx(fit.log_posterior, rel=1e-8)


def test_fixed_directions_are_those_of_an_estimate(data: Any) -> None:
    moments = estimate(data.X, data.y, 2, family="poisson")
    specification = specified(data, init=moments, directions="fixed")
    cosines = np.abs(specification.start.directions.T @ moments.directions).max(axis=1)
    assert_allclose(cosines, 1.0, rtol=1e-12)


def test_directions_alone_are_held_in_the_search(data: Any) -> None:
    """An estimate without coefficients says where the directions are; the fit finds the rest."""
    moments = estimate(data.X, data.y, 2, family="poisson")
    bare = replace(moments, weights=None)
    specification = specified(data, init=bare)
    cosines = np.abs(specification.start.directions.T @ moments.directions).max(axis=1)
    assert_allclose(cosines, 1.0, rtol=1e-12)
    assert specification.start.coefficients is not None


# --- anchors and standardised values -------------------------------------------------------------


def test_anchors_are_the_standardised_directions(data: Any) -> None:
    specification = specified(data)
    slopes = specification.coordinates[0].factor.T @ SLOPES
    assert_allclose(specification.anchors, slopes / np.linalg.norm(slopes, axis=0), rtol=1e-12)
    values = specification.standardised_values(specification.start)
    assert_allclose(values["tilt"], 0.0, atol=1e-12)
    assert_allclose(values["standardised_scale"], np.linalg.norm(slopes, axis=0), rtol=1e-12)


def test_free_coefficients_are_those_of_scaled_columns(data: Any) -> None:
    specification = specified(data, directions="free")
    values = specification.standardised_values(specification.start)
    spreads = data.X.std(axis=0)[:, None]
    assert_allclose(values["standardised_coefficient"], SLOPES * spreads, rtol=1e-12)
    whitened = specification.coordinates[0].factor.T @ SLOPES
    assert_allclose(specification.to_user_columns(whitened), SLOPES, rtol=1e-12)


def test_counts_are_centred_by_their_mean_rate() -> None:
    """A bias of zero is the log of the weighted count per unit of exposure."""
    start = fitted("poisson", "log", "plain")
    block = start.block
    specification = specify_rows(
        start.X,
        start.y,
        2,
        data_block={"family": "poisson", **block},
        gating=None,
        init=start.fit,
        directions="anchored",
        anchor_angle=45.0,
        random_seed=1,
    )
    weight = block["sample_weight"]
    rate = (weight @ start.y) / (weight @ np.exp(block["offset"]))
    assert specification.coordinates[0].response_shift == pytest.approx(np.log(rate), rel=1e-12)


def test_draws_of_a_gate_have_logits_of_sum_zero() -> None:
    start = fitted("gaussian", "identity", "gate")
    block = dict(start.block)
    specification = specify_rows(
        start.X,
        start.y,
        2,
        data_block={"family": "gaussian", "offset": block["offset"]},
        gating=block["gating"],
        init=start.fit,
        directions="fixed",
        anchor_angle=45.0,
        random_seed=1,
    )
    values = specification.standardised_values(start_values_of(start.fit))
    assert_allclose(values["standardised_gate"].sum(axis=1), 0.0, atol=1e-12)
    assert values["standardised_gate_bias"].sum() == pytest.approx(0.0, abs=1e-12)


def test_component_without_slopes_is_warned_about(data: Any) -> None:
    flat = (np.array([[1.0, 0.0], [0.4, 0.0]]), *ARRAYS[1:])
    with pytest.warns(ConvergenceWarning, match=r"components \[1\] of the starting values"):
        specification = specified(data, init=flat)
    assert_allclose(np.linalg.norm(specification.anchors, axis=0), 1.0)
    values = specification.standardised_values(specification.start)
    assert all(np.all(np.isfinite(value)) for value in values.values())
    assert np.all(values["standardised_scale"] > 0)


def test_more_components_than_columns_may_be_without_slopes() -> None:
    rows = simulate_mixture(50, 1, 1, family="poisson", random_seed=1)
    flat = (np.zeros((1, 3)), np.zeros(3), np.full(3, 1 / 3))
    with pytest.warns(ConvergenceWarning, match=r"components \[0, 1, 2\] of the start"):
        specification = specified(rows, n_components=3, init=flat)
    assert_allclose(specification.anchors, 1.0)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [0.0, 90.0, -3, float("nan"), "45", True, None])
def test_wrong_angle_is_refused(data: Any, angle: Any) -> None:
    with pytest.raises(ValueError, match="`anchor_angle` must be an angle in degrees between 0"):
        specified(data, anchor_angle=angle)


def test_unknown_directions_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"`directions` must be one of 'anchored', .*got 'held'"):
        specified(data, directions="held")


def test_unknown_start_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="`init`"):
        specified(data, init="kmeans")


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (ARRAYS[:2], r"`init` must be \(coefficients, biases, weights\).*sequence of 2"),
        ((SLOPES.T[:1], *ARRAYS[1:]), r"coefficients must be finite, of shape \(2, 2\)"),
        ((SLOPES, [0.1], ARRAYS[2]), r"biases must be finite, of shape \(2,\); got shape \(1,\)"),
        ((SLOPES, [0.1, np.nan], ARRAYS[2]), "biases must be finite"),
        ((*ARRAYS[:2], [0.5, -0.5]), "weights must be positive"),
        ((*ARRAYS, [1.0, 2.0]), "`init`: dispersion must be left out for family 'poisson'"),
    ],
)
def test_wrong_arrays_are_refused(data: Any, init: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        specified(data, init=init)


def test_dispersion_that_is_not_positive_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="`init`: dispersion must be positive"):
        specified(data, family="negative_binomial", init=(*ARRAYS, [1.0, -2.0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": 3}, r"`init` must have `n_components` \(3\) components; got one with 2"),
        ({"family": "negative_binomial"}, "must be of the family negative_binomial"),
    ],
)
def test_fit_of_something_else_is_refused(
    data: Any, arguments: dict[str, Any], message: str
) -> None:
    fit = fit_em(data.X, data.y, 2, family="poisson", init=ARRAYS)
    with pytest.raises(ValueError, match=message):
        specified(data, init=fit, **arguments)


def test_fit_of_other_columns_is_refused(data: Any) -> None:
    fit = fit_em(data.X[:, :1], data.y, 2, family="poisson", random_seed=1)
    with pytest.raises(ValueError, match="`init` must have the 2 features of `X`; got one with 1"):
        specified(data, init=fit)


def test_fit_with_another_gate_is_refused() -> None:
    start = fitted("gaussian", "identity", "gate")
    gating = start.block["gating"].iloc[:, :1]
    with pytest.raises(ValueError, match="`init` must have the 1 gating covariates of `gating`"):
        specify_rows(
            start.X,
            start.y,
            2,
            data_block={"family": "gaussian"},
            gating=gating,
            init=start.fit,
            directions="anchored",
            anchor_angle=45.0,
            random_seed=1,
        )


def test_fit_of_columns_in_another_order_is_refused() -> None:
    """Its coefficients would go to the wrong columns without a word."""
    start = fitted("gaussian", "identity", "plain", with_extras=False)
    arguments: dict[str, Any] = {
        "data_block": {"family": "gaussian"},
        "gating": None,
        "init": start.fit,
        "directions": "anchored",
        "anchor_angle": 45.0,
        "random_seed": 1,
    }
    with pytest.raises(ValueError, match="`init` must come from the columns of `X`, in their ord"):
        specify_rows(start.X[start.X.columns[::-1]], start.y, 2, **arguments)
    unnamed = specify_rows(start.X.to_numpy(), start.y, 2, **arguments)
    assert_array_equal(unnamed.start.coefficients, start.fit.coefficients)


def test_gate_of_a_fit_is_not_dropped() -> None:
    start = fitted("gaussian", "identity", "gate")
    arguments: dict[str, Any] = {
        "data_block": {"family": "gaussian"},
        "directions": "anchored",
        "anchor_angle": 45.0,
        "random_seed": 1,
    }
    with pytest.raises(ValueError, match="`gating` must be given with an `init` that has a gate"):
        specify_rows(start.X, start.y, 2, gating=None, init=start.fit, **arguments)
    gaussian = replace(start.fit, gate_means=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="`init` must have a softmax gate or none"):
        specify_rows(start.X, start.y, 2, gating=start.block["gating"], init=gaussian, **arguments)


def test_biases_are_relative_to_an_offset(data: Any) -> None:
    """Half the responses are one at predictors of zero, which the offset moves to minus eight."""
    y = np.arange(data.y.size) % 2
    offset = np.full(data.y.size, -8.0)
    init = (ARRAYS[0], np.array([8.0, 8.5]), ARRAYS[2])
    specification = specify_rows(
        data.X,
        y,
        2,
        data_block={"family": "bernoulli", "offset": offset},
        gating=None,
        init=init,
        directions="free",
        anchor_angle=45.0,
        random_seed=1,
    )
    values = specification.standardised_values(specification.start)
    expected = np.array([0.0, 0.5]) + data.X.mean(axis=0) @ ARRAYS[0]
    assert_allclose(values["standardised_bias"], expected, atol=1e-12)


def test_values_without_coefficients_or_weights_are_refused(data: Any) -> None:
    specification = specified(data)
    start = specification.start
    with pytest.raises(ValueError, match="`init` must have coefficients and biases"):
        specification.standardised_values(replace(start, coefficients=None))
    with pytest.raises(ValueError, match="`init` must have weights"):
        specification.standardised_values(replace(start, weights=None))
