"""Log-likelihoods and replicated responses of draws, against the fit and against moments."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from moment_init.data.checking import RegressionData, validate_data
from moment_init.em.prediction import rows_for, unit_scores
from moment_init.likelihood.draws import Draws, log_likelihoods, replicated_responses
from moment_init.posterior.draws import evaluation_rows, read_model
from tests.em_fits import Fitted, make_fit
from tests.likelihood_problems import FAMILY_LINKS, GROUPS, VARIANTS

FloatArray = NDArray[np.float64]


def logs(weights: list[list[float]]) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.log(weights)


def draws_of(fitted: Fitted, n_draws: int = 3) -> Draws:
    """The fit first, then others near it."""
    fit = fitted.fit
    size = 1.0 + 0.1 * np.arange(n_draws)

    def stack(values: FloatArray | None) -> FloatArray | None:
        return None if values is None else np.multiply.outer(size, values)

    def known(values: FloatArray) -> FloatArray:
        return np.asarray(np.multiply.outer(size, values))

    weights = np.repeat(fit.weights[None], n_draws, axis=0)
    return Draws(
        known(fit.coefficients),
        known(fit.biases),
        np.log(weights) if fit.gate_biases is None else known(fit.gate_biases),
        stack(fit.dispersion),
        stack(fit.gate),
    )


def draw_log_likelihoods(
    draws: Draws, data: RegressionData, gating: FloatArray | None = None
) -> FloatArray:
    rows, _ = evaluation_rows(replace(data, gating=gating))
    centred, rows = draws.centred(rows)
    return log_likelihoods(data.family, rows, centred)


def draw_responses(
    draws: Draws,
    data: RegressionData,
    rng: np.random.Generator,
    gating: FloatArray | None = None,
) -> NDArray[Any]:
    """Replicated responses in the order of the rows."""
    rows, order = evaluation_rows(replace(data, gating=gating))
    centred, rows = draws.centred(rows)
    drawn = replicated_responses(data.family, rows, centred, rng)
    return drawn if order is None else drawn[:, np.argsort(order)]


def gating_of(fitted: Fitted) -> FloatArray | None:
    gating = fitted.block.get("gating")
    return None if gating is None else np.asarray(gating, dtype=np.float64)


# --- log-likelihoods -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_log_likelihoods_are_those_of_the_fit(
    family: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Row by row, or group by group: with offsets, weights and, for binomial counts, trials."""
    fitted = make_fit(family, link, rng, variant=VARIANTS[variant], n_obs=150, max_steps=3)
    actual = draw_log_likelihoods(draws_of(fitted), fitted.data, gating_of(fitted))
    rows, _ = rows_for(fitted.fit, fitted.X, fitted.y, **fitted.block)
    values, weights = unit_scores(fitted.fit, rows)
    assert_allclose(actual[0], values, rtol=1e-9, atol=1e-9)
    assert weights @ actual[0] == pytest.approx(fitted.fit.log_likelihood, rel=1e-10)
    assert np.all(actual[1].sum() != actual[0].sum())


def test_log_likelihood_by_hand() -> None:
    """Two Bernoulli components with P(y = 1) of 1/2 and 3/4, weights .4 and .6: .65 and .35."""
    data = validate_data(
        np.array([[1.0], [-1.0], [0.5]]), np.array([1.0, 0.0, 1.0]), family="bernoulli"
    )
    draws = Draws(np.zeros((1, 1, 2)), np.log([[1.0, 3.0]]), logs([[0.4, 0.6]]))
    assert_allclose(draw_log_likelihoods(draws, data), np.log([[0.65, 0.35, 0.65]]), rtol=1e-14)


def test_group_by_hand() -> None:
    """Rows 0 and 2 share their component: .4 / 4 + .6 * 9 / 16 = .4375."""
    data = validate_data(
        np.array([[1.0], [-1.0], [0.5]]),
        np.array([1.0, 0.0, 1.0]),
        family="bernoulli",
        groups=["b", "a", "b"],
    )
    draws = Draws(np.zeros((1, 1, 2)), np.log([[1.0, 3.0]]), logs([[0.4, 0.6]]))
    assert_allclose(draw_log_likelihoods(draws, data), np.log([[0.4375, 0.35]]), rtol=1e-14)


def test_weight_of_zero_takes_its_component_out() -> None:
    data = validate_data(np.array([[1.0], [-1.0]]), np.array([1.0, 0.0]), family="bernoulli")
    draws = Draws(np.zeros((1, 1, 2)), np.log([[1.0, 3.0]]), logs([[1.0, 0.0]]))
    assert_allclose(draw_log_likelihoods(draws, data), np.log([[0.5, 0.5]]))


@pytest.mark.parametrize("family", ["poisson", "negative_binomial", "gamma"])
def test_wild_draws_are_survived(family: str) -> None:
    """Predictors of 2000 and dispersions near zero: means overflow, and no generator takes them."""
    data = validate_data(np.array([[1.0], [2.0]]), np.array([1.0, 4.0]), family=family)
    dispersion = None if family == "poisson" else np.full((50, 2), 1e-3)
    draws = Draws(np.full((50, 1, 2), 2000.0), np.zeros((50, 2)), np.zeros((50, 2)), dispersion)
    assert not np.any(np.isnan(draw_log_likelihoods(draws, data)))
    assert np.all(np.isfinite(draw_responses(draws, data, np.random.default_rng(1))))


# --- replicated responses ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_responses_have_the_means_of_the_fit(
    family: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """Sums over rows, divided by their standard error: above four once in 16,000 runs of a case.

    Rows weighted by a column, so that what differs between rows counts. Each draw is one replicate,
    so that the standard error is that of the draws whatever the groups are.
    """
    fitted = make_fit(family, link, rng, variant=VARIANTS[variant], n_obs=60, max_steps=1)
    fit, n_draws = fitted.fit, 1500
    one = draws_of(fitted, 1)
    repeated: dict[str, Any] = {
        each.name: None if getattr(one, each.name) is None else np.repeat(values, n_draws, axis=0)
        for each in fields(one)
        for values in [getattr(one, each.name)]
    }
    same = Draws(**repeated)
    responses = draw_responses(same, fitted.data, rng, gating_of(fitted))
    assert responses.shape == (n_draws, 60)
    extras = {
        name: fitted.block[name]
        for name in ("offset", "n_trials", "gating")
        if name in fitted.block
    }
    expected = fit.predict(fitted.X, **extras)
    column = fitted.X["age"].to_numpy()
    for weights in (np.ones(60), column - column.mean()):
        sums = responses @ weights
        error = sums.std() / np.sqrt(n_draws)
        assert abs(sums.mean() - expected @ weights) < 4.0 * error


def test_rows_of_a_group_share_their_component(rng: np.random.Generator) -> None:
    """Components a thousand apart: which one a row is from can be read off."""
    labels = rng.permutation(np.repeat(np.arange(12), 5))
    X = rng.standard_normal((60, 1))
    data = validate_data(X, rng.standard_normal(60), family="gaussian", groups=labels)
    n_draws = 400
    draws = Draws(
        np.zeros((n_draws, 1, 2)),
        np.tile([0.0, 1000.0], (n_draws, 1)),
        np.log(np.tile([0.3, 0.7], (n_draws, 1))),
        np.ones((n_draws, 2)),
    )
    is_second = draw_responses(draws, data, rng) > 500.0
    shares = np.stack([is_second[:, labels == label].mean(axis=1) for label in range(12)])
    assert set(np.unique(shares)) == {0.0, 1.0}
    # Groups are independent: the share over 12 * 400 of them has standard error .0066.
    assert abs(shares.mean() - 0.7) < 4.0 * np.sqrt(0.21 / shares.size)
    assert np.all(shares.std(axis=0) >= 0.0)
    assert np.any(shares.std(axis=0) > 0.0)


def test_dispersion_is_that_of_the_component(rng: np.random.Generator) -> None:
    data = validate_data(rng.standard_normal((50, 1)), rng.standard_normal(50), family="gaussian")
    draws = Draws(
        np.zeros((400, 1, 2)),
        np.tile([0.0, 1000.0], (400, 1)),
        np.zeros((400, 2)),
        np.tile([0.1, 10.0], (400, 1)),
    )
    responses = draw_responses(draws, data, rng)
    near, far = responses[responses < 500.0], responses[responses >= 500.0]
    # The standard error of a standard deviation from n normal draws is sd / sqrt(2 n).
    assert abs(near.std() / 0.1 - 1.0) < 4.0 / np.sqrt(2 * near.size)
    assert abs(far.std() / 10.0 - 1.0) < 4.0 / np.sqrt(2 * far.size)


def test_same_seed_same_responses(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, variant=GROUPS, n_obs=50, max_steps=1)
    first, second, third = (
        draw_responses(draws_of(fitted), fitted.data, np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert_array_equal(first, second)
    assert np.any(first != third)


# --- reading draws -------------------------------------------------------------------------------


def test_draws_are_read_whatever_the_order_of_dims(rng: np.random.Generator) -> None:
    posterior: dict[str, Any] = {
        "coefficient": (("component", "draw", "feature", "chain"), rng.random((2, 5, 3, 4))),
        "bias": (("chain", "draw", "component"), rng.random((4, 5, 2))),
        "weight": (("draw", "chain", "component"), rng.random((5, 4, 2))),
        "gate": (("chain", "draw", "component", "gate_feature"), rng.random((4, 5, 2, 6))),
        "gate_bias": (("chain", "draw", "component"), rng.random((4, 5, 2))),
    }
    own = xr.Dataset(attrs={"family": "poisson", "link": "log"})
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(posterior), "moment_init": own})
    draws = read_model(tree).draws
    assert draws.n_draws == 20
    assert draws.dispersion is None
    assert draws.gate is not None
    # Chains come one after another: draw 2 of chain 1 is the seventh.
    assert_array_equal(draws.coefficients[7], posterior["coefficient"][1][:, 2, :, 1].T)
    assert_array_equal(draws.logits[7], posterior["gate_bias"][1][1, 2])
    assert_array_equal(draws.gate[7], posterior["gate"][1][1, 2].T)


def test_posterior_without_coefficients_is_refused() -> None:
    posterior = xr.Dataset({"bias": (("chain", "draw", "component"), np.zeros((1, 2, 2)))})
    tree = xr.DataTree.from_dict({"posterior": posterior})
    with pytest.raises(ValueError, match=r"must have 'weight' with the dims"):
        read_model(tree, family="poisson")
