"""Posteriors of several responses and classes: `sample`, membership, alignment, initial values."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.configdefaults import config
from scipy.special import softmax
from scipy.stats import norm, poisson

from moment_init import (
    EMFit,
    align_components,
    estimate,
    fit_em,
    initial_values,
    predict_membership,
    sample,
)
from moment_init.checks import WeakSignalWarning
from moment_init.em.prediction import rows_for, unit_scores
from tests.bayesian_models import COMPILE, FakeSampler
from tests.joint_mixtures import LABELS, simulate_joint

pytestmark = pytest.mark.filterwarnings("ignore:The search did not converge")  # short on purpose

DRAWS, CHAINS, N_OBS = 4, 2, 600
SHORT: dict[str, Any] = {"draws": DRAWS, "chains": CHAINS, "random_seed": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "gaussian": {"dispersion": 0.4},
    "bernoulli": {"scale": 3.0},
    "poisson": {},
    "categorical": {"scale": 3.0},
}


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSampler:
    sampler = FakeSampler()
    monkeypatch.setattr(pm, "sample", sampler)
    return sampler


@cache
def fitted(family: str) -> tuple[pd.DataFrame, Any, EMFit]:
    """Rows with names, their responses and a fit of them."""
    rng = np.random.default_rng(20240229)
    data = simulate_joint(family, N_OBS, 2, [0.65, 0.35], 2, rng, **OPTIONS[family])
    X = pd.DataFrame(data.X, columns=["age", "income"])
    is_classes = family == "categorical"
    y = data.y if is_classes else pd.DataFrame(data.y, columns=["spent", "saved"])
    return X, y, fit_em(X, y, 2, family=family, init="random", n_starts=4, random_seed=1)


@cache
def mixed() -> tuple[pd.DataFrame, pd.DataFrame, EMFit]:
    """A gaussian response beside counts, and a fit of them."""
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.standard_normal((80, 2)), columns=["age", "income"])
    y = pd.DataFrame({"spent": rng.standard_normal(80), "visits": rng.poisson(2.0, 80)})
    start = (np.ones((2, 2, 2)), np.zeros((2, 2)), [0.5, 0.5], np.ones((2, 2)))
    families: Any = ["gaussian", "poisson"]
    return X, y, fit_em(X, y, 2, family=families, init=start, max_iter=3)


@cache
def classes() -> tuple[Any, Any, EMFit]:
    """Labels whose names have another order than the numbers."""
    data = simulate_joint("categorical", 600, 2, [0.6, 0.4], 2, np.random.default_rng(4), scale=2.0)
    labels = np.array([2, 10, 100])[np.unique(data.y, return_inverse=True)[1]]
    options: dict[str, Any] = {"family": "categorical", "init": "random", "n_starts": 2}
    return data.X, labels, fit_em(data.X, labels, 2, random_seed=1, **options)


@cache
def two_classes() -> tuple[Any, Any, EMFit]:
    data = simulate_joint("categorical", 600, 2, [0.6, 0.4], 1, np.random.default_rng(4), scale=2.0)
    options: dict[str, Any] = {"family": "categorical", "init": "random", "n_starts": 2}
    return data.X, data.y, fit_em(data.X, data.y, 2, random_seed=1, **options)


def at(fit: EMFit, tree: xr.DataTree, chain: int, draw: int) -> EMFit:
    """The fit with the parameters of a draw."""
    there = tree["posterior"].to_dataset().isel(chain=chain, draw=draw)
    dispersion = None
    if "dispersion" in there:
        found = there["dispersion"]
        dispersion = np.full_like(fit.biases, np.nan)
        if "dispersed_response" in found.dims:
            names = found.coords["dispersed_response"].to_numpy().tolist()
            dispersion[[fit.response_names.index(name) for name in names]] = found
        else:
            dispersion[...] = found
    return replace(
        fit,
        coefficients=there["coefficient"].to_numpy(),
        biases=there["bias"].to_numpy(),
        weights=there["weight"].to_numpy(),
        dispersion=dispersion,
    )


def densities(fit: EMFit, X: Any, y: Any, **data: Any) -> Any:
    return unit_scores(fit, rows_for(fit, X, y, **data)[0])[0]


# --- sample --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", OPTIONS)
def test_groups_and_their_shapes(family: str, fake: FakeSampler) -> None:
    X, y, fit = fitted(family)
    tree = sample(X, y, 2, family=family, init=fit, **SHORT)
    assert set(tree.children) == {
        "posterior",
        "sample_stats",
        "log_likelihood",
        "log_prior",
        "posterior_predictive",
        "observed_data",
        "constant_data",
        "moment_init",
    }
    posterior = tree["posterior"].to_dataset()
    levels = ("chain", "draw", "response", "component")
    assert posterior["coefficient"].dims == ("chain", "draw", "response", "feature", "component")
    assert posterior["bias"].dims == posterior["scale"].dims == levels
    assert posterior["weight"].dims == ("chain", "draw", "component")
    assert posterior.coords["feature"].to_numpy().tolist() == ["age", "income"]
    assert tuple(posterior.coords["response"].to_numpy()) == fit.response_names
    assert ("dispersion" in posterior) == (family == "gaussian")
    assert_allclose((posterior["direction"] ** 2).sum("feature"), 1.0)
    rows = ("obs",) if family == "categorical" else ("obs", "response")
    assert tree["observed_data"]["y"].dims == rows
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", *rows)
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "obs")
    assert_array_equal(tree["constant_data"]["X"], X)
    own = tree["moment_init"]
    assert_array_equal(own["initial_coefficient"], fit.coefficients)
    assert own["anchor"].dims == ("response", "feature", "component")
    assert own.attrs["init"] == "EMFit"
    assert own.attrs["directions"] == "anchored"
    assert np.all(own["switched_share"] == 0.0)


@pytest.mark.parametrize("family", OPTIONS)
def test_log_likelihoods_are_those_of_the_draws(family: str, fake: FakeSampler) -> None:
    """The same as those of a fit with the parameters of the draw; also by membership."""
    X, y, fit = fitted(family)
    tree = sample(X, y, 2, family=family, init=fit, **SHORT)
    there = at(fit, tree, 1, 2)
    found = tree["log_likelihood"].to_dataset()["y"][1, 2]
    assert_allclose(found, densities(there, X, y), rtol=1e-8, atol=1e-10)
    shares = predict_membership(tree)
    assert_allclose(shares[1, 2], there.predict_membership(X, y), rtol=1e-8, atol=1e-12)
    xr.testing.assert_allclose(shares, predict_membership(tree, X, y), rtol=1e-12)


def test_replicated_responses_are_possible(fake: FakeSampler) -> None:
    X, y, fit = fitted("categorical")
    drawn = sample(X, y, 2, family="categorical", init=fit, **SHORT)["posterior_predictive"]["y"]
    assert set(np.unique(drawn)) <= set(range(3))
    shares = [np.mean(drawn.to_numpy() == code) for code in range(3)]
    observed = [np.mean(y == LABELS[code]) for code in range(3)]
    # The draws are close to the fit, whose shares are nearly those of the rows.
    assert_allclose(shares, observed, atol=5 * np.sqrt(0.25 / N_OBS))
    X, y, fit = fitted("bernoulli")
    drawn = sample(X, y, 2, family="bernoulli", init=fit, **SHORT)["posterior_predictive"]["y"]
    assert set(np.unique(drawn)) == {0, 1}
    assert_allclose(drawn.mean(("chain", "draw", "obs")), y.mean(), atol=5 * np.sqrt(0.25 / N_OBS))


def test_some_responses_with_a_dispersion(fake: FakeSampler, rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", N_OBS, 2, [0.6, 0.4], 1, rng, dispersion=0.4)
    y = np.column_stack([rng.poisson(2.0, N_OBS), data.y[:, 0]])
    block: dict[str, Any] = {
        "family": ["poisson", "gaussian"],
        "offset": rng.standard_normal((N_OBS, 2)),
        "sample_weight": rng.uniform(0.5, 2.0, N_OBS),
    }
    fit = fit_em(data.X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    assert fit.dispersion is not None
    for directions in ("anchored", "free"):
        tree = sample(data.X, y, 2, init=fit, directions=directions, **block, **SHORT)
        posterior = tree["posterior"].to_dataset()
        assert posterior["dispersion"].dims[2:] == ("dispersed_response", "component")
        assert posterior.coords["dispersed_response"].to_numpy().tolist() == ["y1"]
        assert_array_equal(tree["moment_init"]["initial_dispersion"], fit.dispersion[1:])
        assert_array_equal(tree["constant_data"]["offset"], block["offset"])
        # The draws are close to the fit, and so are the densities; weights do not enter them.
        near = densities(fit, data.X, y, offset=block["offset"])
        assert_allclose(tree["log_likelihood"]["y"].mean(("chain", "draw")), near, atol=0.5)
        assert align_components(tree, fit)["moment_init"]["moved_share"] == 0.0


def test_groups_and_gate(fake: FakeSampler, rng: np.random.Generator) -> None:
    groups = np.repeat(np.arange(50), 3)
    gating = rng.standard_normal((50, 1))[groups]
    label = (rng.random(50) < 1 / (1 + np.exp(-2 * gating[::3, 0]))).astype(np.intp)[groups]
    slopes = np.array([[[1.0, -1.0], [0.5, 0.8]], [[-0.7, 0.9], [0.8, -0.3]]])
    X = rng.standard_normal((150, 2))
    y = np.einsum("nd,adn->na", X, slopes[:, :, label]) + 0.4 * rng.standard_normal((150, 2))
    block: dict[str, Any] = {"family": "gaussian", "groups": groups, "gating": gating}
    fit = fit_em(X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    tree = sample(X, y, 2, init=fit, **block, **SHORT)
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "group")
    posterior = tree["posterior"].to_dataset()
    assert posterior["gate"].dims == ("chain", "draw", "component", "gate_feature")
    shares = predict_membership(tree, average=True)
    assert shares.dims == ("group", "component")
    expected = fit.responsibilities[::3]
    assert_allclose(shares, expected, atol=0.1)
    before = predict_membership(tree, gating=gating[:5], average=True)
    assert_allclose(before.sum("component"), 1.0)


def test_two_classes_have_the_usual_shapes(fake: FakeSampler) -> None:
    X, y, fit = two_classes()
    tree = sample(X, y, 2, family="categorical", init=fit, **SHORT)
    assert tree["posterior"]["coefficient"].dims == ("chain", "draw", "feature", "component")
    there = at(fit, tree, 0, 1)
    assert_allclose(
        tree["log_likelihood"].to_dataset()["y"][0, 1], densities(there, X, y), rtol=1e-8
    )
    shares = predict_membership(tree, X, y)
    assert_allclose(shares[0, 1], there.predict_membership(X, y), rtol=1e-8)
    xr.testing.assert_allclose(predict_membership(tree), shares)
    assert set(np.unique(tree["posterior_predictive"]["y"])) == {0, 1}


@pytest.mark.parametrize("is_fit", [True, False])
def test_chains_start_at_draws_around_the_mode(fake: FakeSampler, is_fit: bool) -> None:
    """Starts are about as far from the fit as its errors; all variables of one come together."""
    X, y, fit = fitted("gaussian")
    arrays = (fit.coefficients, fit.biases, fit.weights, fit.dispersion)
    tree = sample(X, y, 2, family="gaussian", init=fit if is_fit else arrays, **SHORT)
    assert tree["moment_init"].attrs["init"] == ("EMFit" if is_fit else "arrays")
    (call,) = fake.calls
    model, initvals = call["model"], call["initvals"]
    assert call["compile_kwargs"] == {"jitter_rvs": set()}
    assert set(initvals) == {variable.name for variable in model.free_RVs}
    names = ["standardised_bias", "standardised_scale", "weight"]
    values = pm.draw([initvals[name] for name in names], 400, random_seed=1, mode=COMPILE["mode"])
    bias, scale, weight = values
    centre = model.initial_point()["standardised_bias"]
    spread = bias.std(axis=0)
    assert np.all(spread > 0.0)
    assert np.all(np.abs(bias.mean(axis=0) - centre) < spread)
    assert np.all(scale > 0.0)
    assert_allclose(weight.sum(axis=1), 1.0, rtol=1e-12)
    assert len(np.unique(bias[:, 0, 0])) == len(np.unique(weight[:, 0]))


def test_same_seed_same_result(fake: FakeSampler) -> None:
    X, y, fit = fitted("poisson")
    first, second, third = (
        sample(X, y, 2, family="poisson", init=fit, **(SHORT | {"random_seed": seed}))
        for seed in (5, 5, 6)
    )
    for group in ("posterior", "posterior_predictive", "log_likelihood"):
        assert first[group].to_dataset().identical(second[group].to_dataset())
        assert not first[group].to_dataset().equals(third[group].to_dataset())


def test_labels_of_free_components_are_those_of_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, fit = fitted("gaussian")
    monkeypatch.setattr(pm, "sample", FakeSampler(switched=[1, 3]))
    tree = sample(X, y, 2, family="gaussian", init=fit, directions="free", **SHORT)
    coefficient = tree["posterior"].to_dataset()["coefficient"]
    assert float(np.abs(coefficient.to_numpy() - fit.coefficients).max()) < 0.2
    assert float(tree["moment_init"]["moved_share"]) == 0.5


def test_switched_labels_of_anchored_components_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, fit = fitted("gaussian")
    monkeypatch.setattr(pm, "sample", FakeSampler(switched=[3]))
    with pytest.warns(WeakSignalWarning, match="Labels of components switch in 25%") as seen:
        sample(X, y, 2, family="gaussian", init=fit, **SHORT)
    assert seen[0].filename == __file__


def test_groups_that_are_not_wanted(fake: FakeSampler) -> None:
    X, y, fit = fitted("poisson")
    given: dict[str, Any] = {"family": "poisson", "init": fit, **SHORT}
    tree = sample(X, y, 2, log_likelihood=False, posterior_predictive=False, **given)
    assert {"log_likelihood", "posterior_predictive"}.isdisjoint(tree.children)
    tree = sample(X, y, 2, var_names=["weight"], **given)
    assert "log_likelihood" not in tree.children
    with pytest.raises(ValueError, match="`var_names`"):
        sample(X, y, 2, var_names=["weight"], log_likelihood=True, **given)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"draws": 0}, ValueError, "`draws`"),
    ({"chains": True}, ValueError, "`chains`"),
    ({"tune": -1}, ValueError, "`tune`"),
    ({"directions": "any"}, ValueError, "`directions`"),
    ({"trace": 1}, TypeError, "trace"),
    ({"initvals": [{}]}, TypeError, "`initvals`"),
    ({"priors": {"gate": 1.0}}, ValueError, "`priors`"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_refusals_name_the_argument(
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    fake: FakeSampler,
    rng: np.random.Generator,
) -> None:
    X, y = rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2))
    start = (rng.standard_normal((2, 2, 2)), np.zeros((2, 2)), np.array([0.5, 0.5]))
    with pytest.raises(error, match=message):
        sample(X, y, 2, family="poisson", init=start, **options)
    assert not fake.calls


def test_few_rows_of_dask_are_read(fake: FakeSampler) -> None:
    dask = pytest.importorskip("dask.array")
    X, y, fit = fitted("poisson")
    expected = sample(X, y, 2, family="poisson", init=fit, **SHORT)
    lazy = dask.from_array(np.asarray(X)), dask.from_array(np.asarray(y))
    found = sample(*lazy, 2, family="poisson", init=fit, **SHORT)
    assert_array_equal(found["observed_data"]["y"], expected["observed_data"]["y"])


def test_start_outside_of_a_prior_is_refused(fake: FakeSampler) -> None:
    X, y, fit = fitted("poisson")
    priors = {"bias": pm.Uniform.dist(50.0, 60.0)}
    with pytest.raises(
        ValueError, match=r"`priors` must allow the starting values.*'standardised_bias'"
    ):
        sample(X, y, 2, family="poisson", init=fit, priors=priors, **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("run", [1, 2])
def test_posterior_is_about_the_fit(run: int) -> None:
    """At 600 rows the posterior is nearly normal: its mean is the fit, its spread the errors.

    Skewness and priors move a mean by a small part of a deviation. 800 draws with an effective
    size of 200 at least have a mean within 4 / sqrt(200) = 0.28 deviations; deviations are off by
    4 / sqrt(400) = 0.2, and by what the priors of log scales do.
    """
    rng = np.random.default_rng(run)
    data = simulate_joint("gaussian", 600, 2, [0.65, 0.35], 2, rng, dispersion=0.4)
    fit = fit_em(data.X, data.y, 2, family="gaussian", random_seed=1)
    tree = sample(
        data.X,
        data.y,
        2,
        family="gaussian",
        init=fit,
        draws=400,
        tune=400,
        chains=2,
        cores=1,
        progressbar=False,
        random_seed=run,
    )
    posterior = tree["posterior"].to_dataset()
    assert int(tree["sample_stats"]["diverging"].sum()) == 0
    errors = fit.standard_errors
    expected: dict[str, tuple[Any, Any]] = {
        "coefficient": (fit.coefficients, errors.coefficients),
        "bias": (fit.biases, errors.biases),
        "weight": (fit.weights, errors.weights),
        "dispersion": (fit.dispersion, errors.dispersion),
    }
    for name, (centre, error) in expected.items():
        deviation = posterior[name].std(("chain", "draw")).to_numpy()
        mean = posterior[name].mean(("chain", "draw")).to_numpy()
        assert np.all(np.abs(mean - centre) < 0.5 * deviation), name
        assert_allclose(deviation, error, rtol=0.3, err_msg=name)


# --- membership ----------------------------------------------------------------------------------


def test_immense_rows_belong_to_the_nearer_component() -> None:
    fit = mixed()[2]
    slopes = np.zeros((2, 2, 2))
    slopes[0, 0] = [1.0, 3.0]
    there = replace(fit, coefficients=slopes)
    X = np.array([[1e199, 0.0], [1e199, 0.0]])
    rows = np.array([[1.2e199, 1.0], [2.9e199, 1.0]])
    tree = there.to_datatree(draws=2, random_seed=1)
    coefficient: Any = tree["posterior"]["coefficient"]
    coefficient[...] = slopes
    assert_array_equal(predict_membership(tree, X, rows, average=True), np.eye(2))


def test_rows_whose_predictors_overflow_are_refused() -> None:
    X, y, fit = mixed()
    with pytest.raises(ValueError, match="`X` must have rows whose linear predictors are below"):
        predict_membership(fit.to_datatree(draws=2, random_seed=1), 1e307 * X, y)


@pytest.mark.parametrize("make", [mixed, classes])
def test_each_draw_is_a_fit(make: Any) -> None:
    X, y, fit = make()
    tree = fit.to_datatree(draws=5, random_seed=1)
    found = predict_membership(tree, X, y)
    assert found.dims == ("chain", "draw", "obs", "component")
    for draw in range(5):
        expected = at(fit, tree, 0, draw).predict_membership(X, y)
        assert_allclose(found[0, draw], expected, rtol=1e-10, atol=1e-14)
    mean = predict_membership(tree, X, y, average=True)
    assert_allclose(mean, found.mean(("chain", "draw")), rtol=1e-12)
    few = predict_membership(tree, X, y, draws=2)
    assert_array_equal(few, found.isel(draw=[0, 2]))


def test_offsets_groups_and_the_density_by_hand() -> None:
    X, y, fit = mixed()
    tree = fit.to_datatree(draws=1, random_seed=1)
    offset = np.column_stack([np.linspace(-1, 1, 80), np.linspace(1, -1, 80)])
    there = at(fit, tree, 0, 0)
    eta = np.einsum("nd,adj->anj", X.to_numpy(), there.coefficients) + there.biases[:, None]
    eta += offset.T[:, :, None]
    assert there.dispersion is not None
    rows = norm.logpdf(y["spent"].to_numpy()[:, None], eta[0], there.dispersion[0])
    rows += poisson.logpmf(y["visits"].to_numpy()[:, None], np.exp(eta[1]))
    joint = np.log(there.weights) + rows
    # Columns of DataFrames are matched by name, those of arrays have the order of the fit.
    for responses in (y[["visits", "spent"]], y.to_numpy()):
        found = predict_membership(tree, X[["income", "age"]], responses, offset=offset)
        assert_allclose(found[0, 0], softmax(joint, axis=1), rtol=1e-9)
    groups = np.repeat(np.arange(40), 2)
    found = predict_membership(tree, X, y, offset=offset, groups=groups)
    joint = np.log(there.weights) + rows.reshape(40, 2, 2).sum(axis=1)
    assert_allclose(found[0, 0], softmax(joint, axis=1), rtol=1e-9)


def stored(fit: EMFit, X: Any, y: Any) -> xr.DataTree:
    """A tree with its rows, as `sample` returns it."""
    tree = fit.to_datatree(X, y, draws=3, random_seed=1)
    inputs = xr.DataArray(np.asarray(X), dims=("obs", "feature"))
    named = inputs.assign_coords(feature=list(fit.feature_names))
    return tree.assign({"constant_data": xr.DataTree(xr.Dataset({"X": named}))})


@pytest.mark.parametrize("make", [mixed, classes, two_classes])
def test_rows_of_the_tree(make: Any) -> None:
    X, y, fit = make()
    tree = stored(fit, X, y)
    found = predict_membership(tree)
    assert_array_equal(found, predict_membership(tree, X, y))
    assert_array_equal(found["obs"], np.arange(len(X)))
    with pytest.raises(ValueError, match="got only offset"):
        predict_membership(tree, offset=np.zeros(len(X)))


def test_classes_of_an_estimate() -> None:
    data = simulate_joint(
        "categorical", 4_000, 3, [0.6, 0.4], 2, np.random.default_rng(5), scale=3.0, is_tied=True
    )
    found = estimate(data.X, data.y, 2, family="categorical", random_seed=1)
    shares = predict_membership(found.to_datatree(), data.X, data.y, average=True)
    fit = fit_em(data.X, data.y, 2, family="categorical", init=found, max_iter=0)
    assert_allclose(shares, fit.responsibilities, rtol=1e-6, atol=1e-9)


def test_links_of_the_tree() -> None:
    """A family that is the tree's has the tree's link, unless another is given."""
    rng = np.random.default_rng(6)
    X, y = rng.standard_normal((60, 2)), rng.integers(2, size=(60, 2))
    start = (rng.standard_normal((2, 2, 2)), np.zeros((2, 2)), [0.5, 0.5])
    fit = fit_em(X, y, 2, family="bernoulli", link="probit", init=start, max_iter=0)
    tree = fit.to_datatree(draws=1, random_seed=1)
    there = at(fit, tree, 0, 0)
    eta = np.einsum("nd,adj->naj", X, there.coefficients) + there.biases

    def expected(means: Any) -> Any:
        shares = np.where(y[:, :, None] == 1, means, 1.0 - means).prod(axis=1) * there.weights
        return shares / shares.sum(axis=1, keepdims=True)

    own: list[dict[str, Any]] = [{}, {"family": "bernoulli"}, {"family": ["bernoulli"] * 2}]
    for options in own:
        found = predict_membership(tree, X, y, **options)
        assert_allclose(found[0, 0], expected(norm.cdf(eta)), rtol=1e-8)
    for family in (None, "bernoulli"):
        found = predict_membership(tree, X, y, family=family, link="logit")
        assert_allclose(found[0, 0], expected(1.0 / (1.0 + np.exp(-eta))), rtol=1e-8)
    X, labels, fit = classes()
    with pytest.raises(ValueError, match="`link` must be one of 'softmax'"):
        predict_membership(fit.to_datatree(draws=1, random_seed=1), X, labels, link="probit")


def test_what_is_refused() -> None:
    X, y, fit = mixed()
    tree = fit.to_datatree(draws=2, random_seed=1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"gating": X}, "`gating` must be None for a fit without a gate"),
        ({"y": None}, "`y` must be given with `X`"),
        ({"y": y[["spent"]]}, r"`y` must have the responses of the fit; missing are \['visits'\]"),
        ({"family": ["gaussian"]}, "`family` must be one family, or one for each of the 2"),
        ({"y": -y}, "`y`, response 'visits'"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            predict_membership(tree, **{"X": X, "y": y, **options})
    bare = xr.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})
    with pytest.raises(ValueError, match="`family` must be given if the tree's group"):
        predict_membership(bare, X, y)
    given = ["gaussian", "poisson"]
    assert_array_equal(predict_membership(bare, X, y, family=given), predict_membership(tree, X, y))
    posterior = bare["posterior"].to_dataset().copy(deep=True)
    posterior["bias"][0, 1, 0, 0] = np.nan
    broken = xr.DataTree.from_dict({"posterior": posterior})
    with pytest.raises(ValueError, match="`tree` must have finite draws; got 1 of 2"):
        predict_membership(broken, X, y, family=given)
    X, labels, fit = classes()
    tree = fit.to_datatree(draws=2, random_seed=1)
    with pytest.raises(ValueError, match=r"labels among \['2', '10', '100'\]; got .*'7'"):
        predict_membership(tree, X, np.where(labels == 2, 7, labels))
    tree["moment_init"].attrs = {"family": "categorical"}
    with pytest.raises(ValueError, match="'reference_class'"):
        predict_membership(tree, X, labels)


# --- alignment and initial values ----------------------------------------------------------------


@pytest.mark.parametrize("make", [mixed, classes])
def test_switched_draws_are_aligned_with_a_fit(make: Any) -> None:
    """Responses without a dispersion have NaN in the tree of a fit, and are not compared."""
    _, _, fit = make()
    # Far apart, so that no draw of the fit has its components in another order.
    there = replace(fit, biases=np.array([[-40.0, 40.0], [9.0, -9.0]]))
    tree = there.to_datatree(draws=6, random_seed=1)
    posterior = tree["posterior"].to_dataset()
    turned = posterior.copy(deep=True)
    for variable in turned.data_vars.values():
        values = variable[{"draw": [1, 4]}].isel(component=[1, 0]).to_numpy()
        variable[{"draw": [1, 4]}] = values
    switched = tree.copy()
    switched["posterior"] = xr.DataTree(turned)
    for reference in (there, tree, None):
        aligned = align_components(switched, reference)
        xr.testing.assert_identical(aligned["posterior"].to_dataset(), posterior)
        assert float(aligned["moment_init"]["moved_share"]) == pytest.approx(1 / 3)


def test_initial_values_of_a_users_model() -> None:
    """Axes are matched by their dims, labels of responses by name."""
    _, _, fit = fitted("gaussian")
    assert fit.dispersion is not None
    coords = {"response": ["saved", "spent"], "component": [0, 1], "feature": ["income", "age"]}
    with pm.Model(coords=coords) as model:
        pm.Normal("slopes", 0, 5, dims=("component", "response", "feature"))
        pm.Normal("bias", 0, 5, dims=("component", "response"))
        pm.HalfNormal("dispersion", 5, dims=("response", "component"))
        pm.Dirichlet("weight", np.ones(2), dims="component")
    start = initial_values(fit, model, mapping={"slopes": "coefficient"})
    expected = fit.coefficients[::-1, ::-1].transpose(2, 0, 1)
    assert_array_equal(start["slopes"], expected)
    assert_array_equal(start["bias"], fit.biases[::-1].T)
    assert_array_equal(start["dispersion"], fit.dispersion[::-1])
    values = initial_values(fit, model, mapping={"slopes": "coefficient"}, spread=1.0, chains=3)
    assert len({float(value["weight"][0]) for value in values}) == 3
    bare = initial_values(fit)
    assert_array_equal(bare["coefficient"], fit.coefficients)
