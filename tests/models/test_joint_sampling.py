"""`sample` for several responses: what it asks of PyMC and returns. One run is real, and slow."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.configdefaults import config

from moment_init import fit_em, sample
from moment_init.checks import WeakSignalWarning
from tests.bayesian_models import COMPILE, FakeSampler
from tests.joint_mixtures import LABELS, simulate_joint

DRAWS, CHAINS, N_OBS = 4, 2, 150
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
def fitted(family: Any, n_obs: int = N_OBS) -> tuple[pd.DataFrame, Any, Any]:
    """Rows with names, their responses and a fit of them."""
    rng = np.random.default_rng(20240229)
    data = simulate_joint(family, n_obs, 2, [0.65, 0.35], 2, rng, **OPTIONS[family])
    X = pd.DataFrame(data.X, columns=["age", "income"])
    is_classes = family == "categorical"
    y = data.y if is_classes else pd.DataFrame(data.y, columns=["spent", "saved"])
    fit = fit_em(X, y, 2, family=family, init="random", n_starts=4, random_seed=1)
    return X, y, fit


@pytest.mark.parametrize("family", OPTIONS)
def test_groups_and_their_shapes(family: str, fake: FakeSampler) -> None:
    X, y, fit = fitted(family)
    tree = sample(X, y, 2, family=family, init=fit, **SHORT)
    assert set(tree.children) == {
        "posterior",
        "sample_stats",
        "log_likelihood",
        "posterior_predictive",
        "observed_data",
        "constant_data",
        "moment_init",
    }
    posterior = tree["posterior"].to_dataset()
    of_levels = ("chain", "draw", "component", "response")
    assert posterior["coefficient"].dims == ("chain", "draw", "feature", "component", "response")
    assert posterior["bias"].dims == posterior["scale"].dims == of_levels
    assert posterior["weight"].dims == of_levels[:3]
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
    assert own.attrs["init"] == "JointFit"
    assert own.attrs["directions"] == "anchored"
    assert np.all(own["switched_share"] == 0.0)


@pytest.mark.parametrize("family", OPTIONS)
def test_log_likelihoods_are_those_of_the_draws(family: str, fake: FakeSampler) -> None:
    """The same as a fit at a draw says."""
    X, y, fit = fitted(family)
    tree = sample(X, y, 2, family=family, init=fit, **SHORT)
    draw = tree["posterior"].to_dataset().isel(chain=1, draw=2)
    there = replace(
        fit,
        coefficients=draw["coefficient"].to_numpy(),
        biases=draw["bias"].to_numpy(),
        weights=draw["weight"].to_numpy(),
        dispersion=draw["dispersion"].to_numpy() if family == "gaussian" else None,
    )
    expected = there.log_densities(X, y)
    assert_allclose(tree["log_likelihood"].to_dataset()["y"][1, 2], expected, rtol=1e-8, atol=1e-10)


def test_replicated_responses_are_possible(fake: FakeSampler) -> None:
    X, y, fit = fitted("categorical")
    drawn = sample(X, y, 2, family="categorical", init=fit, **SHORT)["posterior_predictive"]["y"]
    assert set(np.unique(drawn)) <= set(range(3))
    shares = [np.mean(drawn.to_numpy() == code) for code in range(3)]
    observed = [np.mean(y == LABELS[code]) for code in range(3)]
    # Draws are at the fit, whose shares are nearly those of the rows.
    assert_allclose(shares, observed, atol=5 * np.sqrt(0.25 / N_OBS))
    X, y, fit = fitted("bernoulli")
    drawn = sample(X, y, 2, family="bernoulli", init=fit, **SHORT)["posterior_predictive"]["y"]
    assert set(np.unique(drawn)) == {0.0, 1.0}


def test_some_responses_with_a_dispersion(fake: FakeSampler, rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", N_OBS, 2, [0.6, 0.4], 1, rng, dispersion=0.4)
    y = np.column_stack([rng.poisson(2.0, N_OBS), data.y[:, 0]])
    block: dict[str, Any] = {
        "family": ["poisson", "gaussian"],
        "offset": rng.standard_normal((N_OBS, 2)),
        "sample_weight": rng.uniform(0.5, 2.0, N_OBS),
    }
    fit: Any = fit_em(data.X, y, 2, init="random", n_starts=2, random_seed=1, **block)
    for directions in ("anchored", "free"):
        tree = sample(data.X, y, 2, init=fit, directions=directions, **block, **SHORT)
        posterior = tree["posterior"].to_dataset()
        assert posterior["dispersion"].dims[2:] == ("component", "dispersed_response")
        assert posterior.coords["dispersed_response"].to_numpy().tolist() == ["y1"]
        assert_array_equal(tree["moment_init"]["initial_dispersion"], fit.dispersion[:, 1:])
        assert_array_equal(tree["constant_data"]["offset"], block["offset"])
        # Draws are near the fit: densities of rows as well, whatever the weights.
        near = fit.log_densities(data.X, y, offset=block["offset"])
        assert_allclose(tree["log_likelihood"]["y"].mean(("chain", "draw")), near, atol=0.5)


def test_chains_start_at_draws_about_the_fit(fake: FakeSampler) -> None:
    """Means of 400 starts within four standard errors of the fit; all variables together."""
    X, y, fit = fitted("gaussian")
    sample(X, y, 2, family="gaussian", init=fit, **SHORT)
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
    assert np.all(np.abs(bias.mean(axis=0) - centre) < 4 * spread / np.sqrt(400))
    assert np.all(scale > 0.0)
    assert_allclose(weight.sum(axis=1), 1.0, rtol=1e-12)
    assert len(np.unique(bias[:, 0, 0])) == len(np.unique(weight[:, 0]))


def test_arrays_start_every_chain_at_themselves(fake: FakeSampler) -> None:
    X, y, fit = fitted("gaussian")
    start = (fit.coefficients, fit.biases, fit.weights, fit.dispersion)
    tree = sample(X, y, 2, family="gaussian", init=start, **SHORT)
    assert_allclose(fake.calls[0]["initvals"]["weight"], fit.weights)
    assert tree["moment_init"].attrs["init"] == "arrays"


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
    coefficient = tree["posterior"]["coefficient"]
    distance = np.abs(coefficient - fit.coefficients).max(("feature", "component", "response"))
    assert float(distance.max()) < 0.2
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
    ({"groups": np.arange(60)}, ValueError, "`groups` must be left out of `sample`"),
    ({"gating": np.ones(60)}, ValueError, "`gating` must be left out of `sample`"),
    ({"store": "draws"}, ValueError, "`store` must be left out of `sample`"),
    ({"method": "laplace"}, ValueError, "`method` must be 'nuts'"),
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


def test_start_outside_of_a_prior_is_refused(fake: FakeSampler) -> None:
    X, y, fit = fitted("poisson")
    priors = {"bias": pm.Uniform.dist(50.0, 60.0)}
    with pytest.raises(ValueError, match="`init`: the model's variable 'standardised_bias'"):
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
    fit: Any = fit_em(data.X, data.y, 2, family="gaussian", random_seed=1)
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
    expected = {
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
