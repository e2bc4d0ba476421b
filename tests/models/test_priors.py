"""Priors: what the user may give, and what the defaults say of the response."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from pytensor.configdefaults import config
from scipy import stats

from moment_init import simulate_mixture
from moment_init.models import mixture_glm
from moment_init.models.priors import ModelPriors
from tests.bayesian_models import draw, evaluate, fitted, model_of
from tests.likelihood_problems import DISPERSIONS, FAMILY_LINKS

N_DRAWS = 200


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


def rows(
    family: str, link: str, n_obs: int = 150
) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
    """Rows of a mixture in units of their own: three features, means and spreads not standard."""
    trials = 12 if family == "binomial" else None
    data = simulate_mixture(
        n_obs,
        3,
        2,
        family=family,
        link=link,
        dispersion=DISPERSIONS.get(family),
        n_trials=trials,
        random_seed=4,
    )
    y = 40.0 * data.y + 1000.0 if family == "gaussian" else data.y
    block = {"family": family, "link": link}
    return 10.0 * data.X + 30.0, y, block if trials is None else {**block, "n_trials": trials}


def model_with(
    priors: Mapping[str, Any] | None, family: str = "gaussian", link: str = "identity", **more: Any
) -> pm.Model:
    X, y, block = rows(family, link)
    init = (np.array([[0.1, -0.2], [0.3, 0.1], [0.0, 0.2]]), [1.0, 2.0], [0.6, 0.4])
    if family in DISPERSIONS:
        init = (*init, np.array([2.0, 3.0]))  # type: ignore[assignment]
    return mixture_glm(X, y, 2, init=init, priors=priors, **block, **more)


# --- what the user may give ----------------------------------------------------------------------


class Triangle:
    """Something with `create_variable`, as `pymc_extras.prior.Prior`."""

    def create_variable(self, name: str) -> Any:
        return pm.Gamma(name, 2.0, 4.0, dims="component")


FORMS = {
    "distribution": pm.Gamma.dist(2.0, 4.0),
    "callable": lambda name, dims: pm.Gamma(name, 2.0, 4.0, dims=dims),
    "object": Triangle(),
}


@pytest.mark.parametrize("form", FORMS)
def test_prior_of_scales_in_every_form(form: str) -> None:
    """On the scale of logarithms the density is that of the gamma times the scale.

    PyMC holds the numbers of a prior that are given as Python's in single precision."""
    model = model_with({"scale": FORMS[form]})
    scale = model["standardised_scale"]
    assert model.named_vars_to_dims["standardised_scale"] == ("component",)
    values = np.exp(model.initial_point()["standardised_scale_log__"])
    (logp,) = evaluate(model, [model.logp(vars=[scale])])
    expected = stats.gamma.logpdf(values, 2.0, scale=0.25) + np.log(values)
    assert logp == pytest.approx(expected.sum(), rel=1e-7)


def test_given_prior_starts_at_the_start() -> None:
    own, default = (model_with(priors).initial_point() for priors in ({"bias": BIAS}, None))
    np.testing.assert_array_equal(own["standardised_bias"], default["standardised_bias"])


BIAS = pm.StudentT.dist(nu=4, mu=0.0, sigma=[1.0, 2.0])


def test_priors_can_differ_between_components() -> None:
    model = model_with({"bias": BIAS})
    at = model.initial_point()["standardised_bias"]
    (logp,) = evaluate(model, [model.logp(vars=[model["standardised_bias"]])])
    assert logp == pytest.approx(stats.t.logpdf(at, 4, scale=[1.0, 2.0]).sum(), rel=1e-7)


EVERY: dict[str, Any] = {
    "bias": pm.Normal.dist(0.0, 3.0),
    "weight": pm.Dirichlet.dist([2.0, 5.0]),
    "dispersion": pm.HalfNormal.dist(2.0),
}
GATED = {
    "gate": pm.ZeroSumNormal.dist(3.0, shape=2),
    "gate_bias": pm.ZeroSumNormal.dist(1.0, shape=2),
}


@pytest.mark.parametrize(
    ("priors", "more"),
    [
        ({**EVERY, "scale": pm.HalfNormal.dist(3), "tilt": pm.Normal.dist(0, 0.5)}, {}),
        ({**EVERY, "scale": pm.HalfNormal.dist(3)}, {"directions": "fixed"}),
        ({**EVERY, "coefficient": pm.Laplace.dist(0, 1)}, {"directions": "free"}),
        (GATED, {"gating": np.linspace(0.0, 9.0, 300).reshape(150, 2) ** 2}),
    ],
    ids=["anchored", "fixed", "free", "gated"],
)
def test_every_prior_is_taken(priors: dict[str, Any], more: dict[str, Any]) -> None:
    model = model_with(priors, **more)
    logp, gradient = evaluate(model, [model.logp(), model.dlogp()])
    assert np.isfinite(logp)
    assert np.all(np.isfinite(gradient))
    for variable in model.free_RVs:
        name = variable.name.removeprefix("standardised_")
        if name in priors:
            assert type(variable.owner.op) is type(priors[name].owner.op)


def test_dirichlet_prior_has_its_own_concentration() -> None:
    """E w_1 = 2/7 with variance 2*5 / (49*8); four standard errors."""
    model = model_with({"weight": EVERY["weight"]})
    weights = draw(model["weight"], 400, 3)
    assert abs(weights[:, 0].mean() - 2 / 7) < 4 * np.sqrt(10 / (49 * 8) / 400)


def test_priors_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(
        TypeError, match="`priors` must be a mapping from names to priors; got list"
    ):
        ModelPriors([], link="log", n_features=2)  # type: ignore[arg-type]


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`priors` must have names among scale, .*got \['beta'\]"):
        model_with({"beta": BIAS})


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("coefficient", {}),
        ("tilt", {"directions": "fixed"}),
        ("scale", {"directions": "free"}),
        ("gate", {}),
        ("dispersion", {"family": "poisson", "link": "log"}),
    ],
)
def test_prior_of_a_parameter_that_the_model_lacks_is_refused(
    name: str, more: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=rf"`priors` must name parameters.*got \['{name}'\]"):
        model_with({name: pm.HalfNormal.dist(1.0)}, **more)


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`priors`: 'scale' must be an unregistered.*got float"):
        model_with({"scale": 3.0})


# --- what the defaults say of the response -------------------------------------------------------


@pytest.mark.parametrize("directions", ["anchored", "free"])
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_prior_responses_are_neither_degenerate_nor_absurd(
    family: str, link: str, directions: Any
) -> None:
    """Share, spread or mean of replicated responses relative to those of the data.

    - Binary responses: with biases of 2.5 and scales of 5 on the logit scale the probability of a
      row is about uniform, that of all rows within .05 of 0 or 1 rare.
    - Real ones: the second moment about the mean is at most 1.5^2 + 1.5^2 + 1 = 5.5 times the
      variance on average, and half of that in the median.
    - Positive ones: the log of the mean is b + s^2 / 2, with b ~ N(0, 1.5) and s ~ HalfNormal(1):
      its median lies within 0 and 1, its deviation is below 2, and 13.8 (a million) takes a scale
      of 4 or more, once in 15,000 draws.
    """
    model = model_with(None, family, link, directions=directions)
    y = np.asarray(model["y_data"].get_value(), dtype=np.float64)
    draws = draw(model["y"], N_DRAWS, 8).astype(np.float64)
    assert np.all(np.isfinite(draws))
    if family in ("bernoulli", "binomial"):
        shares = draws.mean(axis=1) / (12 if family == "binomial" else 1)
        assert np.mean((shares > 0.05) & (shares < 0.95)) > 0.8
        assert np.ptp(np.quantile(shares, [0.1, 0.9])) > 0.2
    elif family == "gaussian":
        ratios = np.sqrt(np.mean((draws - y.mean()) ** 2, axis=1)) / y.std()
        assert 1.0 < np.median(ratios) < np.sqrt(5.5)
        assert np.quantile(ratios, 0.95) < 3 * np.sqrt(5.5)
        assert np.quantile(ratios, 0.05) > 0.3
    else:
        ratios = np.maximum(draws.mean(axis=1), 1e-9) / y.mean()
        assert 1 / 30 < np.median(ratios) < 30
        assert np.mean(ratios > 1e6) <= 0.01
        assert np.quantile(ratios, 0.9) / np.quantile(ratios, 0.1) > 3


def test_prior_without_dims_is_refused() -> None:
    start = fitted("poisson", "log", "plain")
    with pytest.raises(ValueError, match=r"`priors`: 'scale' must create a variable with the dims"):
        model_of(start, priors={"scale": lambda name, dims: pm.HalfNormal(name, 3.0)})


def test_prior_of_another_shape_is_refused() -> None:
    start = fitted("poisson", "log", "plain")
    with pytest.raises(ValueError, match=r"'bias' must create .* of shape \(2,\); got .*\(5,\)"):
        model_of(start, priors={"bias": lambda name, dims: pm.Normal(name, 0.0, 3.0, shape=5)})
    with pytest.raises(TypeError, match="must return the variable that it creates; got None"):
        model_of(start, priors={"bias": lambda name, dims: None})


def test_gate_of_a_user_s_prior_sums_to_zero() -> None:
    start = fitted("gaussian", "identity", "gate")
    prior = pm.Normal.dist(0.0, 3.0)
    model = model_of(start, priors={"gate": prior, "gate_bias": prior})
    for variable in (model["gate"], model["gate_bias"]):
        drawn = draw(variable, 3, 1)
        assert_allclose(drawn.sum(axis=1), 0.0, atol=1e-9)


def test_no_component_can_collapse_onto_rows_that_lie_on_a_line() -> None:
    """Five of forty rows lie on y = x. A component along it has density s^-5 as its deviation s
    goes to zero; the prior falls faster, so that the posterior stays proper."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, 1))
    y = x[:, 0] + np.where(np.arange(40) < 5, 0.0, rng.standard_normal(40))
    init = (np.array([[1.0, 1.0]]), [0.0, 0.5], [0.5, 0.5], [1.0, 1.0])
    model = mixture_glm(x, y, 2, family="gaussian", init=init)
    values = []
    for deviation in (1e-8, 1e-16, 1e-32):
        point = model.initial_point()
        point["standardised_dispersion_log__"] = np.log([deviation, 1.0])
        (logp,) = evaluate(model, [model.logp()], point)
        values.append(float(logp))
    assert values[2] < values[1] < values[0]
