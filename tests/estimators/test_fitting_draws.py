"""Estimators over draws: predictions are averages over the posterior."""

import copy
import pickle
from functools import cache, partial
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.typing import NDArray
from pytensor.configdefaults import config
from scipy.special import expit, logsumexp
from scipy.stats import norm, poisson

from moment_init import EMFit, MixtureGLMClassifier, MixtureGLMRegressor, predict_membership
from moment_init.data.checking import validate_data
from moment_init.likelihood.draws import Draws, means
from moment_init.posterior.draws import evaluation_rows
from tests.bayesian_models import FakeSampler
from tests.estimators.estimator_data import (
    QUICK,
    binary_rows,
    gaussian_rows,
    poisson_rows,
    three_classes,
)

FloatArray = NDArray[np.float64]
DRAWS: dict[str, Any] = {"inference": "nuts", "draws": 6, "chains": 2, **QUICK}


def with_fake_sampler(model: Any, *rows: Any, **data: Any) -> Any:
    """Fit with draws near the start in the place of the sampler."""
    with pytest.MonkeyPatch.context() as patch, config.change_flags(cxx=""):
        patch.setattr(pm, "sample", FakeSampler(size=0.05))
        return model.fit(*rows, **data)


@cache
def drawn_regressor() -> MixtureGLMRegressor:
    data = gaussian_rows()
    model = MixtureGLMRegressor(**DRAWS)
    with_fake_sampler(model, data.X, data.y)
    return model


def draws_of(tree: Any) -> dict[str, FloatArray]:
    """Draws of the parameters, chains in a row."""
    posterior = tree["posterior"].dataset.stack(sample=("chain", "draw"))
    dims = {"coefficient": ("feature", "component")}
    return {
        name: posterior[name].transpose("sample", *dims.get(name, ("component",))).to_numpy()
        for name in ("coefficient", "bias", "weight", "dispersion")
        if name in posterior
    }


def test_attributes_are_posterior_means() -> None:
    fitted = drawn_regressor()
    draws = draws_of(fitted.posterior_)
    assert draws["weight"].shape == (12, 2)
    np.testing.assert_allclose(fitted.biases_, draws["bias"].mean(axis=0))
    np.testing.assert_allclose(fitted.weights_, draws["weight"].mean(axis=0))
    np.testing.assert_allclose(fitted.dispersion_, draws["dispersion"].mean(axis=0))
    lengths = np.linalg.norm(draws["coefficient"], axis=1)
    np.testing.assert_allclose(fitted.scales_, lengths.mean(axis=0))
    np.testing.assert_allclose(np.linalg.norm(fitted.directions_, axis=0), 1.0)
    middle = (draws["coefficient"] / lengths[:, None, :]).mean(axis=0)
    cosine = (middle * fitted.directions_).sum(axis=0) / np.linalg.norm(middle, axis=0)
    np.testing.assert_allclose(cosine, 1.0)
    assert fitted.fit_.converged


def test_predictions_are_means_over_draws() -> None:
    data, fitted = gaussian_rows(), drawn_regressor()
    draws = draws_of(fitted.posterior_)
    eta = data.X @ draws["coefficient"] + draws["bias"][:, None, :]
    np.testing.assert_allclose(fitted.predict_components(data.X), eta.mean(axis=0))
    mean = (eta * draws["weight"][:, None, :]).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(fitted.predict(data.X), mean)
    values = norm.logpdf(data.y[:, None], eta, draws["dispersion"][:, None, :])
    values += np.log(draws["weight"])[:, None, :]
    density = logsumexp(values, axis=(0, 2)) - np.log(12)
    np.testing.assert_allclose(fitted.log_density(data.X, data.y), density)


def test_membership_is_a_mean_over_draws() -> None:
    data, fitted = gaussian_rows(), drawn_regressor()
    found = fitted.predict_membership(data.X, data.y)
    expected = predict_membership(fitted.posterior_, data.X, data.y, average=True)
    np.testing.assert_array_equal(found, expected.values)
    before = fitted.predict_membership(data.X)
    np.testing.assert_allclose(before[0], fitted.weights_)
    groups = np.array(["b", "a"])[np.arange(len(data.y)) % 2]
    shared = fitted.predict_membership(data.X, data.y, groups=groups)
    np.testing.assert_array_equal(shared[2::2], np.tile(shared[0], (len(shared[2::2]), 1)))
    both = predict_membership(fitted.posterior_, data.X, data.y, groups=groups, average=True)
    np.testing.assert_array_equal(shared[:2], both.values)


def test_rows_whose_predictors_overflow_are_refused() -> None:
    model, data = drawn_regressor(), gaussian_rows()
    immense = data.X[:5] * (1.7e308 / np.abs(data.X[:5]).max())
    message = "`X` must have rows whose linear predictors are below"
    uses = (
        model.predict,
        model.transform,
        model.predict_components,
        partial(model.predict_membership, y=data.y[:5]),
        partial(model.log_density, y=data.y[:5]),
    )
    for use in uses:
        with pytest.raises(ValueError, match=message):
            use(immense)


def test_densities_are_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data, fitted = gaussian_rows(), drawn_regressor()
    expected = fitted.log_density(data.X, data.y)
    monkeypatch.setattr("moment_init.estimators.fitting._DENSITIES", 12 * 7)
    np.testing.assert_array_equal(fitted.log_density(data.X, data.y), expected)


def test_offset_and_gate_of_draws() -> None:
    data = poisson_rows()
    rng = np.random.default_rng(1)
    offset, gate = rng.uniform(-0.5, 0.5, len(data.y)), rng.standard_normal((len(data.y), 1))
    block: dict[str, Any] = {"offset": offset, "gating": gate}
    model = MixtureGLMRegressor(family="poisson", **DRAWS)
    fitted = with_fake_sampler(model, data.X, data.y, **block)
    tree = fitted.posterior_
    draws = draws_of(tree)
    posterior = tree["posterior"].dataset.stack(sample=("chain", "draw"))
    slopes = posterior["gate"].transpose("sample", "gate_feature", "component").to_numpy()
    logits = (
        gate @ slopes + posterior["gate_bias"].transpose("sample", "component").to_numpy()[:, None]
    )
    prior = np.exp(logits - logsumexp(logits, axis=2, keepdims=True))
    mean = np.exp(data.X @ draws["coefficient"] + draws["bias"][:, None, :] + offset[:, None])
    np.testing.assert_allclose(fitted.predict(data.X, **block), (mean * prior).sum(2).mean(0))
    np.testing.assert_allclose(
        fitted.predict_membership(data.X, gating=gate), prior.mean(axis=0), rtol=1e-10
    )
    values = poisson.logpmf(data.y[:, None], mean) + np.log(prior)
    density = logsumexp(values, axis=(0, 2)) - np.log(12)
    np.testing.assert_allclose(fitted.log_density(data.X, data.y, **block), density)
    with pytest.raises(ValueError, match="`gating` must be given for a fit with a gate"):
        fitted.predict_membership(data.X)


def test_classifier_of_draws() -> None:
    data = binary_rows()
    fitted = with_fake_sampler(MixtureGLMClassifier(**DRAWS), data.X, data.y)
    draws = draws_of(fitted.posterior_)
    eta = data.X @ draws["coefficient"] + draws["bias"][:, None, :]
    share = (expit(eta) * draws["weight"][:, None, :]).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(fitted.predict_proba(data.X)[:, 1], share)


def test_more_classes_have_a_posterior_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of the Laplace approximation stand for those of the sampler."""
    X, y = three_classes()

    def approximated(*rows: Any, init: EMFit, draws: int, random_seed: int, **rest: Any) -> Any:
        return init.to_datatree(draws=draws, random_seed=random_seed)

    monkeypatch.setattr("moment_init.estimators.fitting.sample", approximated)
    fitted = MixtureGLMClassifier(**DRAWS).fit(X, y)
    assert len(fitted.posteriors_) == 3
    assert not hasattr(fitted, "posterior_")
    assert fitted.directions_.shape == (3, 2, 2)
    draws = draws_of(fitted.posteriors_[2])
    np.testing.assert_allclose(fitted.biases_[2], draws["bias"].mean(axis=0))
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1.0)


def test_mean_of_binomial_counts_by_hand() -> None:
    """Predictors 0 and log 3 in two draws: probabilities .5 and .75, of eight trials 4 and 6."""
    biases = np.array([[0.0], [np.log(3.0)]])
    draws = Draws(np.zeros((2, 1, 1)), biases, np.zeros((2, 1)))
    data = validate_data(np.array([[1.0], [2.0]]), [1, 8], family="binomial", n_trials=8)
    rows, _ = evaluation_rows(data)
    assert means(data.family, rows, draws).tolist() == [[4.0, 4.0], [pytest.approx(6.0)] * 2]
    averages = means(data.family, rows, draws, by_component=True, is_averaged=True)
    assert averages.tolist() == [[pytest.approx(5.0)]] * 2


def test_arguments_reach_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gaussian_rows()
    sampler = FakeSampler()
    monkeypatch.setattr(pm, "sample", sampler)
    model = MixtureGLMRegressor(
        **{**DRAWS, "tune": 3, "sampler_options": {"cores": 1, "log_likelihood": False}}
    )
    with config.change_flags(cxx=""):
        model.fit(data.X, data.y)
    call = sampler.calls[0]
    assert (call["draws"], call["chains"], call["tune"], call["cores"]) == (6, 2, 3, 1)
    assert call["progressbar"] is False
    assert "log_likelihood" not in model.posterior_.children
    assert model.fit_.n_obs == len(data.y)


def test_draws_are_gone_after_a_fit_without_them() -> None:
    data = gaussian_rows()
    fitted = copy.deepcopy(drawn_regressor()).set_params(inference="em").fit(data.X, data.y)
    assert not hasattr(fitted, "posterior_")
    np.testing.assert_array_equal(fitted.biases_, fitted.fit_.biases)


def test_draws_take_columns_as_they_are() -> None:
    data = gaussian_rows()
    X = np.column_stack([data.X, np.ones(len(data.X))])
    with pytest.raises(ValueError, match=r"`X` must not have constant columns; got 'x3'"):
        MixtureGLMRegressor(**DRAWS).fit(X, data.y)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_draws_predict_the_same(copied: Any) -> None:
    data, fitted = gaussian_rows(), drawn_regressor()
    np.testing.assert_array_equal(copied(fitted).predict(data.X), fitted.predict(data.X))


@pytest.mark.slow
def test_sampled_posterior_is_about_the_fit() -> None:
    """Of linear models of 400 and 200 rows the posterior is near the likelihood's normal shape.

    Means of 800 draws are within .2 posterior standard deviations of the maximum but for the prior,
    which moves them by less than another .3; 0.5 standard errors leave room for both.
    """
    data = gaussian_rows()
    fitted = MixtureGLMRegressor(
        inference="nuts",
        draws=400,
        tune=400,
        chains=2,
        random_state=1,
        sampler_options={"cores": 1},
    ).fit(data.X, data.y)
    errors = fitted.fit_.standard_errors
    away = np.abs(fitted.biases_ - fitted.fit_.biases) / errors.biases
    assert away.max() < 0.5
    assert np.abs(fitted.predict(data.X) - fitted.fit_.predict(data.X)).max() < 0.1
    plain = MixtureGLMRegressor(random_state=1).fit(data.X, data.y)
    assert fitted.score(data.X, data.y) == pytest.approx(plain.score(data.X, data.y), abs=0.01)
