"""Predictions of a fit: by hand, against its own responsibilities, and in any units."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.special import expit

from moment_init import fit_em
from moment_init.em.result import EMFit
from moment_init.likelihood.parameters import MixtureParameters
from tests.em_fits import GATE_NAMES, NAMES, Fitted, make_fit, refit
from tests.likelihood_problems import BOTH, FAMILY_LINKS, GATED, GROUPS, PLAIN, VARIANTS

FloatArray = NDArray[np.float64]


def known_fit(fitted: Fitted, **changes: Any) -> EMFit:
    """A fit with parameters set by hand."""
    return replace(fitted.fit, **changes)


@pytest.fixture
def poisson(rng: np.random.Generator) -> Fitted:
    return make_fit("poisson", "log", rng)


@pytest.fixture
def gaussian(rng: np.random.Generator) -> Fitted:
    return make_fit("gaussian", "identity", rng)


@pytest.fixture
def gated(rng: np.random.Generator) -> Fitted:
    return make_fit("gaussian", "identity", rng, variant=GATED)


# --- means ---------------------------------------------------------------------------------------


def test_means_by_hand(poisson: Fitted) -> None:
    """exp(1 + 2) and exp(-1 + 0), weights .75 and .25; the offset of the second row is log 2."""
    fit = known_fit(
        poisson,
        coefficients=np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]),
        biases=np.array([1.0, -1.0]),
        weights=np.array([0.75, 0.25]),
    )
    X = np.array([[1.0, 0.0, 7.0], [1.0, 0.0, 7.0]])
    means = np.exp([3.0, -1.0])
    offset = np.log([1.0, 2.0])
    assert_allclose(fit.predict(X, kind="components"), [means, means], rtol=1e-14)
    assert_allclose(fit.predict(X), [means @ [0.75, 0.25]] * 2, rtol=1e-14)
    assert_allclose(fit.predict(X, offset=offset)[1], 2 * means @ [0.75, 0.25], rtol=1e-14)


def test_binomial_means_are_counts(rng: np.random.Generator) -> None:
    """The probability times the trials; one trial unless they are given."""
    fitted = make_fit("binomial", "logit", rng)
    fit, X = fitted.fit, fitted.X.iloc[:4]
    probabilities = expit(X.to_numpy() @ fit.coefficients + fit.biases)
    trials = np.array([1, 2, 5, 9])
    assert_allclose(fit.predict(X, kind="components"), probabilities, rtol=1e-12)
    counts = fit.predict(X, n_trials=trials, kind="components")
    assert_allclose(counts, probabilities * trials[:, None], rtol=1e-12)
    assert_allclose(fit.predict(X, n_trials=3), 3 * probabilities @ fit.weights, rtol=1e-12)


def test_gate_sets_the_weights_of_each_row(gated: Fitted) -> None:
    fit, gating = gated.fit, gated.block["gating"]
    means = gated.X.to_numpy() @ fit.coefficients + fit.biases
    assert fit.gate is not None
    assert fit.gate_biases is not None
    logits = fit.gate_biases + gating.to_numpy() @ fit.gate
    first = expit(logits[:, 0] - logits[:, 1])
    expected = first * means[:, 0] + (1 - first) * means[:, 1]
    assert_allclose(fit.predict(gated.X, gating=gating), expected, rtol=1e-10, atol=1e-10)
    assert_allclose(
        fit.predict(gated.X, gating=gating, kind="components"), means, rtol=1e-12, atol=1e-12
    )


def test_gate_far_from_zero_keeps_its_precision(gated: Fitted) -> None:
    """At covariates zero the odds would be some e^-20000: no number, but nothing needs it."""
    fit, gating = gated.fit, gated.block["gating"]
    assert fit.gate is not None
    assert fit.gate_biases is not None
    assert fit.gate_centre is not None
    shift = np.array([200_000.0, 0.0])
    far = known_fit(
        gated, gate_centre=fit.gate_centre + shift, gate_biases=fit.gate_biases - shift @ fit.gate
    )
    expected = fit.predict(gated.X, gating=gating)
    assert_allclose(far.predict(gated.X, gating=gating + shift), expected, rtol=1e-8)
    assert np.all(np.isfinite(np.log(far.parameters.weights)))


def test_one_row_is_enough(gated: Fitted) -> None:
    X, gating = gated.X.iloc[:1], gated.block["gating"].iloc[:1]
    assert gated.fit.predict(X, gating=gating).shape == (1,)
    assert gated.fit.predict_membership(X, gated.y[:1], gating=gating).shape == (1, 2)


# --- membership and score ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_membership_of_training_rows(
    family: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """It is the fit's own responsibilities, and the score times the units its log-likelihood."""
    fitted = make_fit(family, link, rng, variant=VARIANTS[variant], n_obs=300, max_steps=30)
    fit = fitted.fit
    found = fit.predict_membership(fitted.X, fitted.y, **fitted.block)
    assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    assert_allclose(found, fit.responsibilities, atol=1e-9)
    score = fit.score(fitted.X, fitted.y, **fitted.block)
    assert_allclose(score * fit.n_units, fit.log_likelihood, rtol=1e-10)


def test_rows_of_a_group_share_their_membership(rng: np.random.Generator) -> None:
    fitted = make_fit("gaussian", "identity", rng, variant=GROUPS)
    frame = pd.DataFrame(fitted.fit.responsibilities).groupby(fitted.block["groups"])
    assert_array_equal(frame.max(), frame.min())


def test_membership_by_hand(poisson: Fitted) -> None:
    """y = 0 has probabilities e^-1 and e^-2: posterior odds 3 e for weights .75 and .25."""
    fit = known_fit(
        poisson,
        coefficients=np.zeros((3, 2)),
        biases=np.log([1.0, 2.0]),
        weights=np.array([0.75, 0.25]),
    )
    found = fit.predict_membership(np.zeros((1, 3)), [0])
    assert_allclose(found[0, 0] / found[0, 1], 3 * np.e, rtol=1e-12)
    expected = np.log(0.75 * np.exp(-1.0) + 0.25 * np.exp(-2.0))
    assert_allclose(fit.score(np.zeros((1, 3)), [0]), expected, rtol=1e-12)
    two_in_a_group = fit.predict_membership(np.zeros((2, 3)), [0, 0], groups=["a", "a"])
    assert_allclose(two_in_a_group[:, 0] / two_in_a_group[:, 1], 3 * np.e**2, rtol=1e-12)


def test_membership_of_immense_rows_by_hand(gaussian: Fitted) -> None:
    """Predictors 1e199 and 3e199, responses 1.2e199 and 2.9e199; deviations are equal."""
    fit = known_fit(
        gaussian,
        coefficients=np.array([[1.0, 3.0], [0.0, 0.0], [0.0, 0.0]]),
        biases=np.zeros(2),
        weights=np.array([0.5, 0.5]),
        dispersion=np.full(2, 0.1),
    )
    X = np.array([[1e199, 0.0, 0.0], [1e199, 0.0, 0.0]])
    y = np.array([1.2e199, 2.9e199])
    assert_array_equal(fit.predict_membership(X, y), np.eye(2))
    assert_array_equal(fit.predict_membership(X, y, groups=[0, 1]), np.eye(2))
    assert np.isfinite(fit.score(X, y))


def test_rows_whose_predictors_overflow_are_refused(gaussian: Fitted, gated: Fitted) -> None:
    X = np.tile([1e307, 1e307, 0.0], (2, 1))
    fit = known_fit(gaussian, coefficients=np.array([[90.0, -90.0], [-90.0, 90.0], [1.0, 1.0]]))
    message = r"`X` must have rows whose linear predictors are below 1e\+280; got .* in row 0"
    with pytest.raises(ValueError, match=message):
        fit.predict(X)
    for use in (fit.predict_membership, fit.score):
        with pytest.raises(ValueError, match=message):
            use(X, [0.0, 1.0])
    gating = gated.block["gating"].iloc[:2] * [1e307, 1e307]
    steep = known_fit(gated, gate=1e3 * np.asarray(gated.fit.gate))
    with pytest.raises(ValueError, match="`gating` must have rows whose linear predictors"):
        steep.predict(gated.X[:2], gating=gating)


@pytest.mark.filterwarnings("ignore:The information|Component:UserWarning")
def test_groups_without_weight_do_not_count(rng: np.random.Generator) -> None:
    X, groups = rng.standard_normal((300, 2)), np.repeat(np.arange(60), 5)
    y = rng.poisson(np.exp(0.5 * X[:, 0]))
    weight = np.where(groups < 10, 0.0, 1.0)
    fit = fit_em(X, y, 2, family="poisson", groups=groups, sample_weight=weight, random_seed=1)
    assert fit.n_units == 50
    score = fit.score(X, y, groups=groups, sample_weight=weight)
    assert_allclose(score, fit.log_likelihood / 50, rtol=1e-12)


def test_score_weighs_rows(poisson: Fitted) -> None:
    X, y, fit = poisson.X.iloc[:2], poisson.y[:2], poisson.fit
    first = fit.score(X.iloc[:1], y[:1])
    second = fit.score(X.iloc[1:], y[1:])
    weighted = fit.score(X, y, sample_weight=[3.0, 1.0])
    assert_allclose(weighted, 0.75 * first + 0.25 * second, rtol=1e-12)


# --- units ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [PLAIN, BOTH])
def test_units_change_nothing(variant: Any, rng: np.random.Generator) -> None:
    """x -> a x + c and y -> b y + e (offset -> b offset): same predictions in the new units.

    A search cannot see gains below 1e-13 of the log-likelihood L, so that each of two runs may end
    sqrt(2e-13 |L|), about 1e-5, standard errors from the maximum.
    """
    here = make_fit("gaussian", "identity", rng, variant=variant)
    stretch, shift = np.array([0.01, 30.0, -2.0]), np.array([5.0, -100.0, 3.0])
    block = {**here.block, "offset": 40.0 * here.block["offset"]}
    if variant.gated:
        block["gating"] = 3.0 * here.block["gating"] - 50.0
    there = refit(
        "gaussian",
        "identity",
        here.X * stretch + shift,
        40.0 * here.y + 7.0,
        block,
        _in_new_units(here.fit, stretch, shift, variant.gated),
    )
    mean = here.fit.predict(here.X, **_for_prediction(here.block))
    moved = there.fit.predict(there.X, **_for_prediction(block))
    apart = 2 * np.sqrt(2e-13 * abs(here.fit.log_likelihood))
    assert_allclose(moved, 40.0 * mean + 7.0, rtol=1e-8, atol=40.0 * apart * _error_of_means(here))
    total = here.data.sample_weight.sum()
    expected = here.fit.log_likelihood - total * np.log(40.0)
    assert_allclose(there.fit.log_likelihood, expected, rtol=1e-10)
    errors = here.fit.standard_errors
    assert_allclose(there.fit.weights, here.fit.weights, atol=apart * errors.weights.max())
    assert there.fit.dispersion is not None
    assert here.fit.dispersion is not None
    assert errors.dispersion is not None
    dispersion = there.fit.dispersion / 40.0
    assert_allclose(dispersion, here.fit.dispersion, atol=apart * errors.dispersion.max())
    assert_allclose(there.fit.responsibilities, here.fit.responsibilities, atol=10 * apart)
    assert_allclose(there.fit.standard_errors.weights, errors.weights, rtol=10 * apart)


def _error_of_means(fitted: Fitted) -> float:
    """Largest standard error of a component's mean at a row, or of what a weight makes of it."""
    fit, covariance = fitted.fit, fitted.fit.covariance
    assert covariance is not None
    design = np.column_stack([fitted.X.to_numpy(), np.ones(len(fitted.X))])
    blocks = [covariance[:4, :4], covariance[5:9, 5:9]]
    variances = [np.einsum("ia,ab,ib->i", design, block, design).max() for block in blocks]
    means = fit.predict(fitted.X, kind="components", **_for_prediction(fitted.block))
    return float(np.sqrt(max(variances)) + np.ptp(means, axis=1).max())


def _for_prediction(block: dict[str, Any]) -> dict[str, Any]:
    return {name: block[name] for name in ("offset", "gating") if name in block}


def _in_new_units(
    fit: EMFit, stretch: FloatArray, shift: FloatArray, gated: bool
) -> MixtureParameters:
    parameters = fit.parameters
    slopes = 40.0 * parameters.coefficients / stretch[:, None]
    biases = 40.0 * parameters.biases + 7.0 - shift @ slopes
    gate, weights = parameters.gate, parameters.weights
    if gated and gate is not None:
        gate = gate / 3.0
        logits = np.log(weights) + 50.0 * gate.sum(axis=0)
        weights = np.exp(logits - np.logaddexp.reduce(logits))
    assert parameters.dispersion is not None
    return MixtureParameters(slopes, biases, weights, 40.0 * parameters.dispersion, gate)


# --- columns and other arguments -----------------------------------------------------------------


def test_columns_are_matched_by_name(gated: Fitted) -> None:
    fit, gating = gated.fit, gated.block["gating"]
    expected = fit.predict(gated.X, gating=gating)
    turned = fit.predict(gated.X[NAMES[::-1]], gating=gating[GATE_NAMES[::-1]])
    assert_array_equal(turned, expected)
    by_position = fit.predict(gated.X.to_numpy(), gating=gating.to_numpy())
    assert_array_equal(by_position, expected)


def test_gating_may_be_a_single_column(rng: np.random.Generator) -> None:
    fitted = make_fit("gaussian", "identity", rng)
    block = {**fitted.block, "gating": pd.Series(fitted.X["age"] / 10.0, name="decade")}
    start = replace(fitted.fit.parameters, gate=np.zeros((1, 2)))
    fit = refit("gaussian", "identity", fitted.X, fitted.y, block, start).fit
    assert fit.gate_names == ("decade",)
    assert_array_equal(
        fit.predict(fitted.X, gating=block["gating"]),
        fit.predict(fitted.X, gating=block["gating"].to_numpy()),
    )


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (lambda X: X[["age", "income"]], r"`X` .*missing are \['<b>'\], unknown are \[\]"),
        (lambda X: X.assign(extra=1.0), r"`X` .*missing are \[\], unknown are \['extra'\]"),
        (lambda X: X.rename(columns={"age": "a"}), r"missing are \['age'\], unknown are \['a'\]"),
        (lambda X: X.to_numpy()[:, :2], r"`X` must have the 3 columns of the fit .*got 2"),
        (lambda X: X.assign(age=np.nan), r"`X` must be finite"),
    ],
)
def test_wrong_columns_are_named(frame: Any, message: str, poisson: Fitted) -> None:
    with pytest.raises(ValueError, match=message):
        poisson.fit.predict(frame(poisson.X))


def test_wrong_arguments_are_named(poisson: Fitted, gated: Fitted) -> None:
    X, y = poisson.X, poisson.y
    kind: Any = "median"
    with pytest.raises(ValueError, match="`kind` must be 'mean' or 'components'; got 'median'"):
        poisson.fit.predict(X, kind=kind)
    with pytest.raises(ValueError, match="`gating` must be None for a fit without a gate"):
        poisson.fit.predict(X, gating=X)
    with pytest.raises(ValueError, match="`n_trials` must be None for family 'poisson'"):
        poisson.fit.predict(X, n_trials=3)
    with pytest.raises(ValueError, match="`offset` must have shape"):
        poisson.fit.predict(X, offset=[1.0])
    with pytest.raises(ValueError, match=r"`y` must hold .*poisson"):
        poisson.fit.predict_membership(X, -1.0 - y)
    with pytest.raises(ValueError, match=r"`gating` must be given for a fit with a gate \(year"):
        gated.fit.predict(gated.X)
    with pytest.raises(ValueError, match="`gating` must have one row per row of `X`"):
        gated.fit.predict(gated.X, gating=gated.block["gating"].iloc[:5])
    with pytest.raises(ValueError, match=r"`gating` .*missing are \['size'\]"):
        gated.fit.predict(gated.X, gating=gated.block["gating"][["year"]])
    with pytest.raises(ValueError, match="`gating` must not vary within a group"):
        gated.fit.score(
            gated.X, gated.y, gating=gated.block["gating"], groups=np.zeros(len(gated.y))
        )
    with pytest.raises(ValueError, match="`groups` must have shape"):
        poisson.fit.score(X, y, groups=["a"])


@pytest.mark.parametrize("family", [("poisson", "log"), ("gaussian", "identity")])
@pytest.mark.parametrize("size", [1e290, -1e308])
def test_offsets_that_overflow_are_refused_by_name(
    family: tuple[str, str], size: float, rng: np.random.Generator
) -> None:
    drawn = make_fit(*family, rng)
    offset = np.zeros(len(drawn.y))
    offset[3] = size
    message = r"`offset` must be between -1e\+280 and 1e\+280; got .* in row 3"
    with pytest.raises(ValueError, match=message):
        drawn.fit.predict(drawn.X, offset=offset)
    for use in (drawn.fit.predict_membership, drawn.fit.score):
        with pytest.raises(ValueError, match=message):
            use(drawn.X, drawn.y, offset=offset)
    offset[3] = -1e270  # far, and yet a number
    found = drawn.fit.predict_membership(drawn.X, drawn.y, offset=offset)
    assert_allclose(found.sum(axis=1), 1.0)
