"""Priors: what the user may give, and what the defaults say of the response."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from pytensor.configdefaults import config
from scipy import stats

from moment_init import fit_em, simulate_mixture
from moment_init.models import mixture_glm, user_units
from moment_init.models.priors import log_prior_group
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
        model_with([])  # type: ignore[arg-type]


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`priors` must have names among scale, .*got \['beta'\]"):
        model_with({"beta": BIAS})


@pytest.mark.parametrize(
    ("name", "more"),
    [
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


@pytest.mark.parametrize("directions", ["anchored", "fixed"])
def test_prior_of_coefficients_needs_free_directions(directions: Any) -> None:
    message = f"not have 'coefficient' with directions='{directions}'.*Pass directions='free'"
    with pytest.raises(ValueError, match=message):
        model_with({"coefficient": {"x0": pm.Normal.dist(0, 1)}}, directions=directions)


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`priors`: 'scale' must be an unregistered.*got float"):
        model_with({"scale": 3.0})


# --- columns, their names and their units --------------------------------------------------------

SLOPES = np.array([[0.02, -0.01], [0.3, 0.1], [-0.4, 0.2]])
LEVELS, WEIGHTS = np.array([0.4, -0.2]), np.array([0.6, 0.4])


def frame(n_obs: int = 120) -> pd.DataFrame:
    """Columns in units of their own; the first two have correlation .9."""
    z = np.random.default_rng(5).standard_normal((n_obs, 3))
    income = 0.9 * z[:, 0] + np.sqrt(1 - 0.9**2) * z[:, 1]
    return pd.DataFrame({"age": 40 + 12 * z[:, 0], "income": 3 * income, "size": z[:, 2] - 2})


def counts(X: pd.DataFrame, columns: int = 1) -> NDArray[np.float64]:
    rng = np.random.default_rng(6)
    y = rng.poisson(np.exp(0.02 * X["age"].to_numpy()[:, None] - 0.5), (len(X), columns))
    return np.asarray(y[:, 0] if columns == 1 else y, dtype=np.float64)


def free_model(priors: Any, columns: int = 1, family: Any = "poisson", **more: Any) -> pm.Model:
    X = frame()
    init: tuple[Any, ...] = (SLOPES, LEVELS, WEIGHTS)
    if columns > 1:
        init = (np.stack([SLOPES] * columns), np.stack([LEVELS] * columns), WEIGHTS)
    if family == "gaussian":
        init = (*init, np.array([2.0, 3.0]))
    y = counts(X, columns)
    y = 10.0 * y + 1000.0 if family == "gaussian" else y
    settings = {"directions": "free", "init": init, **more}
    return mixture_glm(X, y, 2, family=family, priors=priors, **settings)


def log_prior(model: pm.Model, name: str) -> tuple[float, NDArray[np.float64]]:
    """Log density of a variable in the sampler's coordinates at the start, and its value there."""
    density, value = evaluate(model, [model.logp(vars=[model[name]]), model[name]])
    return float(density), np.asarray(value)


CASES: dict[str, dict[str, Any]] = {
    "poisson": {"family": "poisson"},
    "bernoulli": {"family": "bernoulli"},
    "gaussian": {"family": "gaussian"},
    "negative binomial": {"family": "negative_binomial"},
    "several": {"family": ["gaussian", "poisson"]},
    "gate": {"family": "poisson", "gating": np.linspace(-1.0, 4.0, 120)[:, None] ** 2},
    "offset": {"family": "poisson", "offset": np.linspace(0.0, 3.0, 120)},
}


@pytest.mark.filterwarnings("ignore:The search did not converge")
@pytest.mark.parametrize("case", CASES)
def test_default_of_free_coefficients_is_that_of_fit_em(case: str) -> None:
    """The difference of the two log posteriors is the same at all parameters."""
    X, block = frame(), CASES[case]
    is_several = isinstance(block["family"], list)
    y = counts(X, 2 if is_several else 1)
    if case == "gaussian" or is_several:
        y = 0.3 * y + np.random.default_rng(8).standard_normal(y.shape)
        y[..., -1] = np.round(np.abs(y[..., -1])) if is_several else y[..., -1]
    y = np.minimum(y, 1.0) if case == "bernoulli" else y
    rng, gaps = np.random.default_rng(7), []
    shape = (2, 3, 2) if is_several else (3, 2)
    for _ in range(4):
        scale = np.array([0.02, 0.2, 0.4])[:, None]
        init = [scale * rng.standard_normal(shape), rng.standard_normal((*shape[:-2], 2))]
        init.append(rng.dirichlet([3.0, 3.0]))
        if case in ("gaussian", "negative binomial", "several"):
            init.append(rng.uniform(0.5, 3.0, (*shape[:-2], 2)))
        given = {"init": tuple(init), **block}
        fit = fit_em(X, y, 2, priors="default", max_iter=0, progressbar=False, **given)
        model = mixture_glm(X, y, 2, directions="free", **given)
        (density,) = evaluate(model, [model.logp()])
        assert fit.log_posterior is not None
        gaps.append(float(density) - fit.log_posterior)
    assert np.ptp(gaps) < 1e-6


def test_a_named_column_has_its_own_prior_whatever_it_is_correlated_with() -> None:
    """The others keep the default, 1 / sqrt(3) for the log link; draws have these spreads."""
    model = free_model({"coefficient": {"age": pm.Normal.dist(0.0, 0.125)}})
    assert model.named_vars_to_dims["standardised_coefficient"] == ("feature", "component")
    deviations = np.array([0.125, 1 / np.sqrt(3), 1 / np.sqrt(3)])
    density, value = log_prior(model, "standardised_coefficient")
    expected = stats.norm.logpdf(value, 0.0, deviations[:, None]).sum()
    assert density == pytest.approx(expected, rel=1e-7)
    X = frame()
    drawn = draw(model["coefficient"], 2000, 3) * X.std(ddof=0).to_numpy()[:, None]
    assert_allclose(drawn.std(axis=(0, 2)), deviations, rtol=4 / np.sqrt(2 * 4000))
    assert_allclose(np.corrcoef(drawn[..., 0].T), np.eye(3), atol=4 / np.sqrt(2000))


def test_columns_may_have_different_distributions_in_any_order() -> None:
    """A positive one is sampled on the scale of its logarithm, with the Jacobian."""
    priors = {
        "size": pm.StudentT.dist(nu=4.0),
        "income": user_units(pm.Exponential.dist(scale=0.25)),
        "age": pm.Normal.dist([0.0, 1.0], 0.5),
    }
    model = free_model({"coefficient": priors})
    density, value = log_prior(model, "standardised_coefficient")
    unit = float(frame()["income"].std(ddof=0))
    slopes = SLOPES[1]
    assert_allclose(value[1], slopes * unit, rtol=1e-9)
    expected = stats.norm.logpdf(value[0], [0.0, 1.0], 0.5).sum()
    expected += stats.expon.logpdf(slopes, scale=0.25).sum() + np.log(slopes).sum()
    expected += stats.t.logpdf(value[2], 4.0).sum()
    assert density == pytest.approx(expected, rel=1e-6)
    drawn = draw(model["coefficient"], 1500, 3)[:, 1]
    assert np.all(drawn > 0)
    assert drawn.mean() == pytest.approx(0.25, abs=4 * 0.25 / np.sqrt(3000))


@pytest.mark.parametrize(
    "prior",
    [
        pm.Normal.dist(0.0, 0.25),
        pm.Normal.dist(0.0, np.full((3, 2), 0.25)),
        lambda name, dims: pm.Normal(name, 0.0, 0.25, dims=dims),
        {name: pm.Normal.dist(0.0, [0.25, 0.25]) for name in ("age", "income", "size")},
    ],
    ids=["one", "array", "function", "columns"],
)
def test_one_prior_for_all_columns_in_every_form(prior: Any) -> None:
    density, value = log_prior(free_model({"coefficient": prior}), "standardised_coefficient")
    assert density == pytest.approx(stats.norm.logpdf(value, 0.0, 0.25).sum(), rel=1e-7)


def test_one_prior_object_for_two_columns_draws_them_independently() -> None:
    prior = pm.Normal.dist(0.0, 0.5)
    model = free_model({"coefficient": {"age": prior, "size": prior}})
    drawn = draw(model["standardised_coefficient"], 1000, 3)
    assert abs(np.corrcoef(drawn[:, 0, 0], drawn[:, 2, 0])[0, 1]) < 4 / np.sqrt(1000)


def test_coefficients_and_biases_in_the_users_units() -> None:
    """One prior for all columns; a bias is the predictor at the means, in units of the response."""
    priors = {
        "coefficient": user_units(pm.Normal.dist(0.5, 2.0)),
        "bias": user_units(pm.Normal.dist(1010.0, 4.0)),
        "dispersion": user_units(pm.Gamma.dist(3.0, 0.5)),
    }
    model = free_model(priors, family="gaussian")
    X = frame()
    names = ["coefficient", "bias", "dispersion"]
    slopes, biases, spreads = draw([model[name] for name in names], 2000, 4)
    assert_allclose(slopes.mean(axis=(0, 2)), 0.5, atol=4 * 2.0 / np.sqrt(4000))
    assert_allclose(slopes.std(axis=(0, 2)), 2.0, rtol=4 / np.sqrt(2 * 4000))
    at_mean = biases + np.einsum("d,sdj->sj", X.mean().to_numpy(), slopes)
    assert at_mean.mean() == pytest.approx(1010.0, abs=4 * 4.0 / np.sqrt(4000))
    assert at_mean.std() == pytest.approx(4.0, rel=4 / np.sqrt(2 * 4000))
    assert spreads.mean() == pytest.approx(6.0, abs=4 * np.sqrt(12 / 4000))
    density, value = log_prior(model, "standardised_dispersion")
    unit = (10.0 * counts(X)).std()
    assert_allclose(value * unit, [2.0, 3.0], rtol=1e-9)
    expected = stats.gamma.logpdf([2.0, 3.0], 3.0, scale=2.0) + np.log([2.0, 3.0])
    assert density == pytest.approx(expected.sum(), rel=1e-6)


def test_priors_of_columns_for_one_of_several_responses() -> None:
    """What is named for a response goes before what is named for all."""
    priors = {
        "y1": {"age": pm.Normal.dist(0.0, 0.0625)},
        "age": pm.Normal.dist(0.0, 0.25),
    }
    for given in (priors, dict(reversed(priors.items()))):
        model = free_model({"coefficient": given}, columns=2)
        deviations = np.full((2, 3), 1 / np.sqrt(3))
        deviations[:, 0] = 0.25, 0.0625
        density, value = log_prior(model, "standardised_coefficient")
        expected = stats.norm.logpdf(value, 0.0, deviations[..., None]).sum()
        assert density == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(
    ("priors", "error", "message"),
    [
        ({"coefficient": {"agge": pm.Normal.dist()}}, ValueError, "'age', 'income'.*; got 'agge'"),
        ({"coefficient": {"age": 0.5}}, TypeError, r"`priors\['coefficient'\]` needs an unreg"),
        ({"bias": {"age": pm.Normal.dist()}}, ValueError, "'bias' must not be a dict"),
        ({"weight": user_units(pm.Normal.dist())}, ValueError, "'weight' must not be in the user"),
    ],
)
def test_wrong_priors_of_columns_are_refused(
    priors: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        free_model(priors)


# --- log priors and draws from the prior ---------------------------------------------------------


def hierarchical(name: str, dims: tuple[str, ...]) -> Any:
    return pm.Normal(name, 0.0, pm.HalfNormal("spread", 1.0), dims=dims)


@pytest.mark.parametrize(
    ("more", "priors"),
    [
        ({}, None),
        ({"gating": np.linspace(-1.0, 4.0, 120)[:, None] ** 2}, {"bias": hierarchical}),
        ({"directions": "anchored", "family": "gaussian"}, {"weight": pm.Dirichlet.dist([2, 3])}),
        ({}, {"coefficient": {"income": user_units(pm.Exponential.dist(scale=0.5))}}),
    ],
    ids=["free", "gate and hierarchy", "anchored", "columns"],
)
def test_log_prior_of_draws_is_that_of_pymc(more: dict[str, Any], priors: Any) -> None:
    """One draw after the other, variable by variable, without the Jacobians of transforms."""
    model = free_model(priors, **more)
    free = model.free_RVs
    names = [str(variable.name) for variable in free]
    drawn = dict(zip(names, draw(free, 6, 2), strict=True))
    posterior = xr.Dataset(
        {
            name: (
                ("chain", "draw", *(f"{name}_{axis}" for axis in range(values.ndim - 1))),
                values.reshape(2, 3, *values.shape[1:]),
            )
            for name, values in drawn.items()
        },
        {"chain": [0, 1], "draw": [0, 1, 2]},
    )
    group = log_prior_group(model, posterior)["log_prior"].to_dataset()
    assert list(group.data_vars) == names
    unsummed = dict(zip(names, model.logp(vars=free, jacobian=False, sum=False), strict=True))
    transforms = model.rvs_to_transforms
    for index in range(6):
        point = {}
        for variable, name in zip(free, names, strict=True):
            value, transform = drawn[name][index], transforms[variable]
            if transform is not None:
                value = transform.forward(pt.as_tensor(value), *variable.owner.inputs).eval()
            point[str(model.rvs_to_values[variable].name)] = value
        expected = evaluate(model, [unsummed[name].sum() for name in names], point)
        found = [float(group[name].to_numpy().ravel()[index]) for name in names]
        assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_log_prior_needs_all_free_variables() -> None:
    model = free_model(None)
    assert (
        log_prior_group(model, xr.Dataset({"weight": (("chain", "draw"), np.ones((1, 1)))})) == {}
    )


def test_prior_predictive_draws_come_in_one_call() -> None:
    """The model keeps its initial values; by the default prior, biases have deviation 1.5."""
    model = free_model({"coefficient": {"age": user_units(pm.Normal.dist(0.0, 0.02))}})
    with config.change_flags(cxx=""):
        tree = pm.sample_prior_predictive(
            800, model=model, random_seed=1, compile_kwargs={"mode": "FAST_COMPILE"}
        )
    assert tree["prior_predictive"]["y"].sizes["obs"] == 120
    slopes = tree["prior"]["coefficient"].sel(feature="age")
    assert float(slopes.std()) == pytest.approx(0.02, rel=4 / np.sqrt(2 * 1600))


def test_only_distributions_of_numbers_have_units() -> None:
    for prior in (0.5, pm.Dirichlet.dist([1.0, 1.0])):
        with pytest.raises(TypeError, match="`user_units` needs an unregistered distribution"):
            user_units(prior)


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
