"""The regressor: what it fits, predicts and scores."""

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.exceptions
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.metrics import d2_log_loss_score, d2_tweedie_score, r2_score

from moment_init import ConvergenceWarning, MixtureGLMRegressor, fit_em, sample, simulate_mixture
from moment_init.estimators.regressor import deviance_explained
from moment_init.families.registry import get_family
from tests.estimators.estimator_data import QUICK, frame, gaussian_rows, poisson_rows, regressor

ROW_ARGUMENTS = {"offset", "n_trials", "sample_weight", "groups", "gating"}


def test_parameters_are_those_of_the_functions() -> None:
    """Every argument of `fit_em` and `sample` is a parameter, belongs to rows, or has a place."""
    own = set(inspect.signature(MixtureGLMRegressor).parameters)
    rows = set(inspect.signature(MixtureGLMRegressor.fit).parameters) - {"self", "X", "y"}
    assert rows == ROW_ARGUMENTS
    elsewhere = {"X", "y", "random_seed", *ROW_ARGUMENTS}  # the seed is `random_state`
    fitting = inspect.signature(fit_em).parameters
    assert set(fitting) - elsewhere <= own
    in_options = {"method", "store", "log_likelihood", "posterior_predictive", "pm_sample_kwargs"}
    sampling = inspect.signature(sample).parameters
    assert set(sampling) - elsewhere - in_options <= own
    defaults = inspect.signature(MixtureGLMRegressor).parameters
    changed = {"family", "priors", "progressbar", "n_components", *elsewhere, *in_options}
    for name, parameter in {**fitting, **sampling}.items():
        if name not in changed:
            assert defaults[name].default == parameter.default, name


def test_fit_is_that_of_fit_em() -> None:
    data, fitted = gaussian_rows(), regressor()
    other = fit_em(data.X, data.y, 2, family="gaussian", priors="default", random_seed=1)
    assert fitted.fit_.log_posterior == pytest.approx(other.log_posterior, abs=1e-4)
    errors = other.standard_errors
    assert np.all(np.abs(fitted.coefficients_ - other.coefficients) < 0.01 * errors.coefficients)
    np.testing.assert_array_equal(fitted.directions_, fitted.fit_.directions)
    np.testing.assert_array_equal(fitted.scales_, fitted.fit_.scales)
    np.testing.assert_array_equal(fitted.biases_, fitted.fit_.biases)
    np.testing.assert_array_equal(fitted.weights_, fitted.fit_.weights)
    np.testing.assert_array_equal(fitted.dispersion_, fitted.fit_.dispersion)
    assert fitted.n_iter_ == fitted.fit_.n_iter
    assert fitted.fit_.n_obs == len(data.y)


def test_predictions_are_those_of_the_fit() -> None:
    data, fitted = gaussian_rows(), regressor()
    fit = fitted.fit_
    np.testing.assert_array_equal(fitted.predict(data.X), fit.predict(data.X))
    components = fitted.predict_components(data.X)
    np.testing.assert_array_equal(components, fit.predict(data.X, kind="components"))
    shares = fitted.predict_membership(data.X, data.y)
    np.testing.assert_allclose(shares, fit.responsibilities, atol=1e-12)
    before = fitted.predict_membership(data.X)
    np.testing.assert_allclose(before, np.tile(fitted.weights_, (len(data.y), 1)), rtol=1e-12)
    density = fitted.log_density(data.X, data.y)
    assert density.mean() == pytest.approx(fit.score(data.X, data.y))


def test_rows_with_all_that_belongs_to_them() -> None:
    """Offsets, groups, weights and a gate reach the fit and its predictions."""
    data = poisson_rows()
    rng = np.random.default_rng(1)
    n_obs = len(data.y)
    block: dict[str, Any] = {
        "offset": rng.uniform(-0.2, 0.2, n_obs),
        "groups": np.arange(n_obs) // 2,
        "gating": pd.DataFrame({"g": np.repeat(rng.standard_normal(n_obs // 2), 2)}),
        "sample_weight": rng.integers(0, 3, n_obs),
    }
    fitted = MixtureGLMRegressor(family="poisson", **QUICK).fit(data.X, data.y, **block)
    given = {**block, "priors": "default"}
    plain = fit_em(data.X, data.y, 2, family="poisson", init=fitted.fit_, **given)
    assert fitted.fit_.log_posterior == pytest.approx(plain.log_posterior, abs=1e-4)
    assert fitted.fit_.responsibilities.shape == (n_obs, 2)
    shares = fitted.predict_membership(data.X, data.y, **block)
    np.testing.assert_allclose(shares, fitted.fit_.responsibilities, atol=1e-12)
    gate = {"gating": block["gating"]}
    before = fitted.predict_membership(data.X, **gate)
    np.testing.assert_allclose(before.sum(axis=1), 1.0)
    own = {"offset": block["offset"], **gate}
    means = fitted.predict_components(data.X, **own)
    np.testing.assert_allclose(fitted.predict(data.X, **own), (means * before).sum(axis=1))
    assert np.isfinite(fitted.score(data.X, data.y, **own))
    with pytest.raises(ValueError, match="`gating` must be given for a fit with a gate"):
        fitted.predict_membership(data.X)


def test_gaussian_gate() -> None:
    """Without the response, what the gate says: its densities, weighted."""
    data = gaussian_rows()
    gate = np.random.default_rng(1).standard_normal((len(data.y), 1)) + 2.0 * data.labels[:, None]
    model = MixtureGLMRegressor(gate="gaussian", **QUICK).fit(data.X, data.y, gating=gate)
    fit = model.fit_
    assert fit.gate_means is not None
    assert fit.gate_covariances is not None
    spread = np.sqrt(fit.gate_covariances[:, 0, 0])
    joint = fit.weights * norm.pdf(gate, fit.gate_means[0], spread)
    expected = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_membership(data.X, gating=gate), expected)


def test_weighted_rows_give_the_fit_of_repeated_rows() -> None:
    data = gaussian_rows()
    times = np.random.default_rng(1).integers(0, 3, len(data.y))
    weighted = MixtureGLMRegressor(**QUICK).fit(data.X, data.y, times)
    repeated = MixtureGLMRegressor(**QUICK).fit(data.X.repeat(times, 0), data.y.repeat(times))
    np.testing.assert_array_equal(weighted.coefficients_, repeated.coefficients_)
    assert weighted.fit_.bic == repeated.fit_.bic


def test_given_starts_are_climbed_from_as_they_are() -> None:
    """Responsibilities belong to rows as they stand, which must not be merged or sorted."""
    data, fitted = gaussian_rows(), regressor()
    again = MixtureGLMRegressor(init=fitted.fit_.responsibilities).fit(data.X, data.y)
    assert again.fit_.log_likelihood == pytest.approx(fitted.fit_.log_likelihood, abs=1e-4)
    assert [start.origin for start in again.fit_.starts] != []


# --- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_score_of_a_gaussian_family_is_r2_in_any_unit(unit: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, weight = rng.standard_normal(50) * unit, rng.uniform(0.0, 2.0, 50)
    mean = y + 0.5 * unit * rng.standard_normal(50)
    found = deviance_explained(get_family("gaussian"), y, mean, sample_weight=weight)
    assert found == pytest.approx(r2_score(y, mean, sample_weight=weight), rel=1e-10)


@pytest.mark.parametrize(("family", "power"), [("poisson", 1), ("gamma", 2)])
def test_score_of_positive_families_is_d2(family: str, power: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean = rng.uniform(0.5, 3.0, 50)
    y = rng.poisson(mean) * 1.0 if power == 1 else rng.gamma(2.0, mean / 2.0)
    weight = rng.uniform(0.5, 2.0, 50)
    found = deviance_explained(get_family(family), y, mean, sample_weight=weight)
    assert found == pytest.approx(d2_tweedie_score(y, mean, power=power, sample_weight=weight))


def test_score_of_trials_is_that_of_the_single_trials(seed: int) -> None:
    """Two of three trials with probability p are rows 1, 1, 0, up to the binomial coefficient.

    The coefficient cancels, and so does the saturated density of grouped rows where it is the same
    in both deviances: differences of deviances agree.
    """
    rng = np.random.default_rng(seed)
    probability, trials = rng.uniform(0.1, 0.9, 30), rng.integers(1, 5, 30)
    y = rng.binomial(trials, probability) * 1.0
    family = get_family("binomial")
    found = deviance_explained(family, y, probability * trials, n_trials=trials)
    single = np.concatenate(
        [[1.0] * int(k) + [0.0] * int(n - k) for k, n in zip(y, trials, strict=True)]
    )
    rows = np.repeat(np.arange(30), trials)
    bernoulli = d2_log_loss_score(single, np.column_stack([1 - probability, probability])[rows])
    null = y.sum() / trials.sum()
    rates = y / trials
    total_single = -2 * (y.sum() * np.log(null) + (trials - y).sum() * np.log1p(-null))
    with np.errstate(divide="ignore", invalid="ignore"):
        saturated = 2 * np.nansum(y * np.log(rates) + (trials - y) * np.log1p(-rates))
    assert found == pytest.approx(bernoulli * total_single / (total_single + saturated))


def test_score_without_variation() -> None:
    family = get_family("gaussian")
    assert deviance_explained(family, np.ones(3), np.ones(3)) == 1.0
    assert deviance_explained(family, np.ones(3), np.array([1.0, 1.0, 2.0])) == 0.0
    with pytest.warns(UndefinedMetricWarning, match="less than two samples"):
        assert np.isnan(deviance_explained(family, [1.0], np.ones(1)))


def test_scores_of_a_fit() -> None:
    data, fitted = gaussian_rows(), regressor()
    assert fitted.score(data.X, data.y) == pytest.approx(r2_score(data.y, fitted.predict(data.X)))


def test_responses_outside_the_family_are_refused() -> None:
    data = gaussian_rows()
    with pytest.raises(ValueError, match=r"`y` must hold (counts|whole numbers)"):
        MixtureGLMRegressor(family="poisson").fit(data.X, data.y)


def test_infinities_of_both_signs_are_refused_without_a_warning() -> None:
    """Their sum, by which scikit-learn looks for them, is NaN."""
    data = gaussian_rows()
    spoiled = data.X.copy()
    spoiled[:2, 0] = [np.inf, -np.inf]
    for use in (
        lambda: MixtureGLMRegressor().fit(spoiled, data.y),
        lambda: regressor().predict(spoiled),
    ):
        with pytest.raises(ValueError, match="Input X contains infinity"):
            use()


def test_binomial_counts_need_their_trials() -> None:
    data = simulate_mixture(400, 2, 2, family="binomial", n_trials=10, random_seed=1)
    fitted = MixtureGLMRegressor(family="binomial", **QUICK).fit(data.X, data.y, n_trials=10)
    ratio = fitted.predict(data.X, n_trials=10) / fitted.predict(data.X, n_trials=1)
    np.testing.assert_allclose(ratio, 10.0)
    assert 0.0 < fitted.score(data.X, data.y, n_trials=10) < 1.0


# --- life of an object ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use", ["predict", "predict_components", "predict_membership", "transform"]
)
def test_use_before_fit_is_refused(use: str) -> None:
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        getattr(MixtureGLMRegressor(), use)(np.ones((2, 2)))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda fitted: pickle.loads(pickle.dumps(fitted))]
)
def test_copies_predict_the_same(copied: Any) -> None:
    data, fitted = gaussian_rows(), regressor()
    other = copied(fitted)
    np.testing.assert_array_equal(other.predict(data.X), fitted.predict(data.X))
    assert other.fit_.status == fitted.fit_.status


def test_family_may_be_an_object() -> None:
    data = poisson_rows()
    model = clone(MixtureGLMRegressor(1, family=get_family("poisson")))
    assert model.fit(data.X, data.y).fit_.family == "poisson"


def test_notebook_shows_scikit_learns_diagram() -> None:
    assert "MixtureGLMRegressor" in MixtureGLMRegressor()._repr_html_()
    assert "MixtureGLMRegressor" in regressor()._repr_html_()


def test_names_of_columns_reach_the_fit() -> None:
    data = gaussian_rows()
    X = frame(data)
    fitted = MixtureGLMRegressor(**QUICK).fit(X, pd.Series(data.y))
    assert fitted.fit_.feature_names == ("col0", "col1", "col2")
    assert fitted.feature_names_in_.tolist() == ["col0", "col1", "col2"]
    assert fitted.n_features_in_ == 3
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(X[["col1", "col0", "col2"]])


@pytest.mark.filterwarnings("ignore:The search did not converge")
def test_random_state_follows_scikit_learn() -> None:
    data = gaussian_rows()
    X, y = data.X[:100], data.y[:100]

    def coefficients(random_state: Any) -> Any:
        model = MixtureGLMRegressor(init="random", n_starts=1, max_iter=0)
        return model.set_params(random_state=random_state).fit(X, y).coefficients_

    np.testing.assert_array_equal(coefficients(3), coefficients(3))
    state = np.random.RandomState(3)
    first, second = coefficients(state), coefficients(state)
    np.testing.assert_array_equal(first, coefficients(3))
    assert not np.array_equal(first, second)
    generator = np.random.default_rng(3)
    first, second = coefficients(generator), coefficients(generator)
    np.testing.assert_array_equal(first, coefficients(np.random.default_rng(3)))
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match="cannot be used to seed"):
        coefficients("seed")


def test_not_converged_fits_warn_in_both_languages() -> None:
    data = gaussian_rows()
    for category in (ConvergenceWarning, sklearn.exceptions.ConvergenceWarning):
        with pytest.warns(category, match="The search did not converge"):
            fitted = MixtureGLMRegressor(init="random", n_starts=1, max_iter=1, random_state=0).fit(
                data.X, data.y
            )
        assert not fitted.fit_.converged


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"inference": "gibbs"}, "`inference` must be one of 'em', 'nuts'"),
        (
            {"inference": "nuts", "shared": "bias"},
            "`shared` must be None with inference='nuts'",
        ),
        ({"inference": "nuts", "gate": "gaussian"}, "`gate` must be 'softmax' with inference="),
        (
            {"inference": "advi", "fixed_weights": np.array([0.5, 0.5])},
            "`fixed_weights` must be None with inference='advi'",
        ),
        ({"n_components": 0}, "`n_components` must be between 1 and"),
        ({"family": "cauchy"}, "cauchy"),
        ({"max_iter": -1}, "`max_iter` must be a whole number"),
    ],
)
def test_wrong_parameters_are_refused_by_fit(parameters: dict[str, Any], message: str) -> None:
    data = gaussian_rows()
    with pytest.raises(ValueError, match=message):
        MixtureGLMRegressor(**parameters).fit(data.X, data.y)


@pytest.mark.parametrize("state", [None, 0])
def test_global_generator_is_left_alone(state: Any) -> None:
    data = gaussian_rows()
    before = np.random.get_state()  # noqa: NPY002  # the state is what is tested
    MixtureGLMRegressor(**{**QUICK, "random_state": state}).fit(data.X, data.y)
    after = np.random.get_state()  # noqa: NPY002
    np.testing.assert_array_equal(before[1], after[1])
    assert before[2:] == after[2:]
