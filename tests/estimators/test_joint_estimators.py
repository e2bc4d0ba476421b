"""Estimators whose classes or responses share one mixture."""

import copy
import pickle
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import logsumexp, softmax
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score

from moment_init import MixtureGLMClassifier, MixtureGLMRegressor, fit_em, predict_membership
from moment_init.checks import WeakSignalWarning
from tests.estimators.estimator_data import QUICK, binary_rows, classifier, gaussian_rows
from tests.estimators.test_fitting_draws import DRAWS, with_fake_sampler
from tests.joint_mixtures import JointData, matched, simulate_joint, simulate_labelled

FloatArray = NDArray[np.float64]
JOINT: dict[str, Any] = {"multi_class": "categorical", **QUICK}
N_OBS = 900

fit_any: Any = fit_em


def class_rows(seed: int = 1, n_obs: int = N_OBS) -> JointData:
    """Three classes of two softmax regressions."""
    return simulate_joint(
        "categorical", n_obs, 3, [0.65, 0.35], 2, np.random.default_rng(seed), scale=4.0
    )


def pair_rows(seed: int = 1, n_obs: int = N_OBS) -> JointData:
    """Two linear responses of two components."""
    return simulate_joint(
        "gaussian", n_obs, 3, [0.7, 0.3], 2, np.random.default_rng(seed), dispersion=0.4
    )


@cache
def joint_classifier() -> MixtureGLMClassifier:
    data = class_rows()
    return MixtureGLMClassifier(**JOINT).fit(data.X, data.y)


@cache
def joint_regressor() -> MixtureGLMRegressor:
    data = pair_rows()
    return MixtureGLMRegressor(**QUICK).fit(data.X, data.y)


def errors_in_units(model: Any, data: JointData) -> FloatArray:
    """Errors of coefficients and weights over standard errors, components matched."""
    order = matched(model.fit_, data.truth)
    spread = model.fit_.standard_errors
    slopes = model.coefficients_[..., order] - data.truth.coefficients
    slopes /= spread.coefficients[..., order]
    weights = (model.weights_[order] - data.truth.weights) / spread.weights[order]
    return np.concatenate([slopes.ravel(), weights])


# --- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_seed", [1, 2, 3])
def test_classes_share_recovered_components(data_seed: int) -> None:
    """Errors of 14 estimates, each beyond 4.5 standard errors in one case of 10^5."""
    data = class_rows(data_seed, 3_000)
    model = MixtureGLMClassifier(multi_class="categorical", random_state=1).fit(data.X, data.y)
    assert np.abs(errors_in_units(model, data)).max() < 5.0
    spread = model.fit_.standard_errors.coefficients[..., matched(model.fit_, data.truth)]
    assert np.abs(data.truth.coefficients / spread).max() > 8.0  # a zero estimate is seen


def test_it_is_the_fit_of_classes() -> None:
    data, model = class_rows(), joint_classifier()
    plain = fit_any(data.X, data.y, 2, family="categorical", init=model.fit_, priors="default")
    assert model.fit_.log_posterior == pytest.approx(plain.log_posterior, abs=1e-6)
    assert model.fit_.outcome_names == tuple(model.classes_)
    assert model.coefficients_.shape == model.directions_.shape == (2, 3, 2)
    assert model.biases_.shape == model.scales_.shape == (2, 2)
    assert model.weights_.shape == (2,)
    assert model.dispersion_ is None
    assert isinstance(model.n_iter_, int)
    shares = model.predict_proba(data.X)
    assert_array_equal(shares, model.fit_.predict(data.X))
    assert_allclose(shares.sum(axis=1), 1.0)
    assert_array_equal(model.predict(data.X), model.classes_[shares.argmax(axis=1)])
    assert model.score(data.X, data.y) == np.mean(model.predict(data.X) == data.y)
    assert not hasattr(model, "fits_")


def test_rows_have_one_membership() -> None:
    data, model = class_rows(), joint_classifier()
    found = model.predict_membership(data.X, data.y)
    assert_allclose(found, model.fit_.responsibilities, atol=1e-12)
    assert found.shape == (N_OBS, 2)
    prior = np.tile(model.weights_, (N_OBS, 1))
    assert_allclose(model.predict_membership(data.X), prior, rtol=1e-12)
    density = model.log_density(data.X, data.y)
    assert density.sum() == pytest.approx(model.fit_.log_likelihood)


@pytest.mark.parametrize("link", [None, "family", "components"])
def test_projections_of_classes(link: str | None) -> None:
    """Two predictors of two components; with a softmax three classes of two components."""
    data = class_rows()
    model = copy.copy(joint_classifier()).set_params(transform_link=link)
    found = model.transform(data.X)
    assert len(model.get_feature_names_out()) == found.shape[1] == (4 if link is None else 6)
    eta = data.X @ model.directions_  # (n_classes - 1, n_obs, n_components)
    if link is None:
        assert_allclose(found, np.hstack([*eta]))
        return
    if link == "components":
        eta = eta * model.scales_[:, None] + model.biases_[:, None]
    shares = softmax(np.concatenate([np.zeros((1, N_OBS, 2)), eta]), axis=0)
    assert_allclose(found, np.hstack([*shares]), rtol=1e-9)


def test_two_classes_are_one_model() -> None:
    data = binary_rows()
    model = MixtureGLMClassifier(**JOINT).fit(data.X, np.where(data.y > 0, "yes", "no"))
    assert_array_equal(model.coefficients_, classifier().coefficients_)
    probit = MixtureGLMClassifier(1, multi_class="categorical", link="probit")
    assert probit.fit(data.X, data.y).fit_.link == "probit"


def test_weights_are_repeated_rows() -> None:
    data = class_rows()
    counts = np.random.default_rng(2).integers(0, 3, N_OBS)
    weighted = MixtureGLMClassifier(**JOINT).fit(data.X, data.y, counts)
    index = np.random.default_rng(3).permutation(np.repeat(np.arange(N_OBS), counts))
    repeated = MixtureGLMClassifier(**JOINT).fit(data.X[index], data.y[index])
    assert_array_equal(weighted.coefficients_, repeated.coefficients_)
    assert_allclose(weighted.fit_.log_likelihood, repeated.fit_.log_likelihood)


@pytest.mark.filterwarnings("ignore:Component|Only one start|A parameter:UserWarning")
@pytest.mark.parametrize("inference", ["em", "nuts"])
def test_a_class_without_weight(inference: str) -> None:
    """A label that does not count is no class, and tells nothing of a row's component."""
    data = simulate_joint(
        "categorical", 400, 2, [0.65, 0.35], 3, np.random.default_rng(4), scale=3.0
    )
    is_last = data.y == "walk"
    options = {**JOINT, **(DRAWS if inference == "nuts" else {})}
    model = with_fake_sampler(MixtureGLMClassifier(**options), data.X, data.y, ~is_last)
    X, y = data.X[~is_last], data.y[~is_last]
    kept = fit_any(X, y, 2, family="categorical", init=model.fit_, priors="default")
    assert model.classes_.tolist() == ["bus", "car", "train"]
    assert model.fit_.log_posterior == pytest.approx(kept.log_posterior, abs=1e-5)
    shares = model.fit_.responsibilities
    assert_allclose(shares[is_last], np.tile(model.fit_.weights, (is_last.sum(), 1)), rtol=1e-12)
    assert_allclose(shares[~is_last], kept.responsibilities, atol=1e-2)


def test_columns_that_rows_cannot_tell_apart() -> None:
    """A copy of a column halves its coefficient, a constant has none; predictors do not change."""
    data = class_rows()
    X = np.column_stack([data.X, data.X[:, 0], np.full(N_OBS, 7.0)])
    plain, model = (
        MixtureGLMClassifier(**JOINT, priors=None).fit(each, data.y) for each in (data.X, X)
    )
    assert model.fit_.log_likelihood == pytest.approx(plain.fit_.log_likelihood, abs=1e-4)
    found = model.coefficients_  # components are sorted by decreasing weight
    assert_allclose(found[:, 0], found[:, 3], rtol=1e-9)
    assert_allclose(found[:, 4], 0.0, atol=1e-12)
    assert_allclose(found[:, 0] + found[:, 3], plain.coefficients_[:, 0], atol=1e-3)
    assert_allclose(model.predict_proba(X), plain.predict_proba(data.X), atol=1e-4)
    errors, own = (each.fit_.standard_errors.coefficients for each in (model, plain))
    assert_allclose(2.0 * errors[:, 0], own[:, 0], rtol=1e-2)
    assert_allclose(errors[:, 1:3], own[:, 1:3], rtol=1e-2)


def test_fewer_rows_than_parameters() -> None:
    data = class_rows(n_obs=14)
    with pytest.warns(WeakSignalWarning, match="fewer than the parameters of 4 components"):
        model = MixtureGLMClassifier(4, **JOINT).fit(np.hstack([data.X, data.X**2]), data.y)
    assert np.isfinite(model.predict_proba(np.zeros((2, 6)))).all()
    assert model.n_components_ == 3


def test_every_class_but_the_first_has_parameters() -> None:
    """Two components of two classes and three columns: 2 x 2 x 4 + 1 parameters."""
    data = class_rows(n_obs=17)
    MixtureGLMClassifier(2, **JOINT).fit(data.X, data.y)
    with pytest.warns(WeakSignalWarning, match="along 2 principal axes"):
        MixtureGLMClassifier(2, **JOINT).fit(data.X[:16], data.y[:16])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_predict_the_same(copied: Any) -> None:
    for model, X in ((joint_classifier(), class_rows().X), (joint_regressor(), pair_rows().X)):
        assert_array_equal(copied(model).predict(X), model.predict(X))


def test_it_is_a_parameter_like_others() -> None:
    data = class_rows(n_obs=300)
    search = GridSearchCV(
        MixtureGLMClassifier(1, **QUICK),
        {"multi_class": ["one_vs_rest", "categorical"]},
        cv=2,
        scoring="neg_log_loss",
    ).fit(data.X, data.y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert clone(joint_classifier()).get_params()["multi_class"] == "categorical"


@pytest.mark.parametrize("inference", ["em", "nuts"])
def test_groups_gate_and_offset_of_classes(inference: str) -> None:
    """An offset that is the same for all rows moves the biases; a group has one membership."""
    rng = np.random.default_rng(5)
    label = rng.choice(2, size=150, p=[0.65, 0.35]).repeat(2)
    data = simulate_labelled("categorical", label, rng, scale=3.0)
    gating = (label + rng.standard_normal(150).repeat(2))[:, None]
    groups, offset = np.arange(150).repeat(2), np.tile([0.5, -0.25], (300, 1))
    rows: dict[str, Any] = {"groups": groups, "gating": gating}
    options = {**JOINT, "priors": None, **(DRAWS if inference == "nuts" else {})}
    plain = with_fake_sampler(MixtureGLMClassifier(**options), data.X, data.y, **rows)
    model = with_fake_sampler(
        MixtureGLMClassifier(**options), data.X, data.y, **rows, offset=offset
    )
    order = matched(model.fit_, plain.fit_.centred_parameters)
    expected = plain.fit_.biases - np.array([[0.5], [-0.25]])
    assert_allclose(model.fit_.biases[:, order], expected, atol=1e-3)
    shares = model.predict_proba(data.X, gating=gating, offset=offset)
    assert_allclose(shares, plain.predict_proba(data.X, gating=gating), atol=0.1)
    membership = model.predict_membership(data.X, data.y, **rows, offset=offset)
    assert_array_equal(membership[::2], membership[1::2])
    before = model.predict_membership(data.X, gating=gating)
    assert_allclose(before.sum(axis=1), 1.0)
    assert np.abs(np.corrcoef(before[:, 0], label)[0, 1]) > 0.4
    with pytest.raises(ValueError, match="`gating` must be given for a fit with a gate"):
        model.predict_proba(data.X)


def test_what_shared_classes_do_not_take() -> None:
    data = class_rows(n_obs=60)
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"offset": np.zeros((60, 3))}, r"`offset` must be finite, of shape \(60,\) or"),
        ({"link": "probit"}, {}, "`link` must be one of 'softmax' for family 'categorical'"),
        ({"inference": "laplace"}, {}, "not supported by `inference='laplace'`; got 3 classes"),
        ({"multi_class": "ovr"}, {}, "`multi_class` must be 'one_vs_rest' or 'categorical'; got"),
    ]
    for parameters, rows, message in wrong:
        with pytest.raises(ValueError, match=message):
            MixtureGLMClassifier(**{**JOINT, **parameters}).fit(data.X, data.y, **rows)
    model = joint_classifier()
    with pytest.raises(ValueError, match="`gating` must be None for a fit without a gate"):
        model.predict_proba(data.X, gating=data.X)
    with pytest.raises(ValueError, match="`y` must have the labels of the fit"):
        model.predict_membership(data.X, ["tram"] * 60)


# --- several responses ---------------------------------------------------------------------------


@pytest.mark.parametrize("data_seed", [1, 2, 3])
def test_responses_share_recovered_components(data_seed: int) -> None:
    data = pair_rows(data_seed, 1_500)
    model = MixtureGLMRegressor(**{**QUICK, "n_starts": 4}).fit(data.X, data.y)
    assert np.abs(errors_in_units(model, data)).max() < 5.0
    order = matched(model.fit_, data.truth)
    assert_allclose(model.dispersion_[:, order], 0.4, atol=5 * 0.4 / np.sqrt(2 * 0.3 * 1_500))
    assert model.predict(data.X).shape == (1_500, 2)
    assert model.predict_components(data.X).shape == (1_500, 2, 2)


def test_it_is_the_fit_of_responses() -> None:
    data, model = pair_rows(), joint_regressor()
    plain = fit_any(data.X, data.y, 2, family="gaussian", init=model.fit_, priors="default")
    assert model.fit_.log_posterior == pytest.approx(plain.log_posterior, abs=1e-6)
    assert_array_equal(model.predict(data.X), model.fit_.predict(data.X))
    means = model.predict_components(data.X)
    assert_allclose(model.predict(data.X), np.einsum("njm,j->nm", means, model.weights_))
    assert_allclose(model.predict_membership(data.X, data.y), model.fit_.responsibilities)
    density = model.log_density(data.X, data.y)
    assert density.sum() == pytest.approx(model.fit_.log_likelihood)
    weights = np.arange(N_OBS) % 3
    expected = r2_score(data.y, model.predict(data.X), sample_weight=weights)
    assert model.score(data.X, data.y, weights) == pytest.approx(expected)
    assert_allclose(model.transform(data.X), np.hstack([*(data.X @ model.directions_)]))
    linked = copy.copy(model).set_params(transform_link="components").transform(data.X)
    assert_allclose(linked, np.column_stack([means[:, :, 0], means[:, :, 1]]))


def test_frames_families_trials_and_offsets(rng: np.random.Generator) -> None:
    """Named responses of two families; the mean of counts of trials is all that was drawn."""
    X = pd.DataFrame(rng.standard_normal((400, 2)), columns=["age", "income"])
    trials, offset = rng.integers(1, 9, 400), np.zeros((400, 2))
    offset[:, 1] = rng.uniform(0.0, 2.0, 400)
    y = pd.DataFrame(
        {"won": rng.binomial(trials, 0.3), "visits": rng.poisson(np.exp(offset[:, 1]))}
    )
    data: dict[str, Any] = {"n_trials": trials, "offset": offset}
    model = MixtureGLMRegressor(1, family=["binomial", "poisson"], **QUICK).fit(X, y, **data)
    assert model.fit_.response_names == ("won", "visits")
    assert model.fit_.family == "binomial, poisson"
    # With an intercept and the canonical link totals are met.
    assert_allclose(model.predict(X, **data).sum(axis=0), y.sum(), rtol=1e-4)
    own = MixtureGLMRegressor(1, family="poisson").fit(X, y["visits"], offset=offset[:, 1])
    assert_allclose(model.coefficients_[1], own.coefficients_, atol=1e-4)
    single = MixtureGLMRegressor(1, family="binomial").fit(X, y["won"], n_trials=trials)
    expected = single.score(X, y["won"], n_trials=trials)
    expected += own.score(X, y["visits"], offset=offset[:, 1])
    assert model.score(X, y[["visits", "won"]], **data) == pytest.approx(expected / 2, abs=1e-5)
    with pytest.raises(ValueError, match="`family` must be one family, or one for each of the 2"):
        clone(model).set_params(family=["poisson"]).fit(X, y)
    with pytest.raises(ValueError, match="`y`, response 'won'"):
        clone(model).fit(X, -y, **data)


def test_repeated_rows_of_responses_are_weights() -> None:
    data = pair_rows(n_obs=300)
    offset = np.random.default_rng(1).standard_normal((300, 2))
    counts = np.arange(300) % 3
    weighted = MixtureGLMRegressor(**QUICK).fit(data.X, data.y, counts, offset=offset)
    index = np.repeat(np.arange(300), counts)[::-1]
    X, y = data.X[index], data.y[index]
    repeated = MixtureGLMRegressor(**QUICK).fit(X, y, offset=offset[index])
    assert_array_equal(weighted.coefficients_, repeated.coefficients_)


def test_a_column_is_one_response() -> None:
    data = gaussian_rows()
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        model = MixtureGLMRegressor(1).fit(data.X, data.y[:, None])
    assert model.predict(data.X).shape == (len(data.y),)


def test_responses_in_searches_and_what_they_do_not_take() -> None:
    data = pair_rows(n_obs=200)
    scores = cross_val_score(MixtureGLMRegressor(1), data.X, data.y, cv=2)
    assert np.isfinite(scores).all()
    with pytest.raises(ValueError, match="not supported by `inference='advi'`; got 2 responses"):
        MixtureGLMRegressor(inference="advi").fit(data.X, data.y)
    with pytest.raises(ValueError, match="`family` must be one of"):
        MixtureGLMRegressor(family="categorical").fit(data.X, data.y)
    with pytest.raises(ValueError, match="`y` must have a column for each response"):
        MixtureGLMRegressor(family=["gaussian", "gaussian"]).fit(data.X, data.y[:, 0])
    with pytest.raises(TypeError, match="`y` must be dense"):
        MixtureGLMRegressor().fit(data.X, sparse.csr_array(data.y))


def test_few_rows_of_responses() -> None:
    """Fewer rows than parts of a jackknife, so that there are no moments; other starts do."""
    data = pair_rows(n_obs=12)
    model = MixtureGLMRegressor(2, random_state=1).fit(data.X, data.y)
    assert model.fit_.converged


# --- draws ---------------------------------------------------------------------------------------


def draws_of(tree: Any) -> dict[str, FloatArray]:
    """Draws of the parameters, chains in a row."""
    posterior = tree["posterior"].dataset.stack(sample=("chain", "draw"))
    levels = ("response", "component")
    dims = {"coefficient": ("response", "feature", "component"), "weight": ("component",)}
    return {
        name: posterior[name].transpose("sample", *dims.get(name, levels)).to_numpy()
        for name in ("coefficient", "bias", "weight", "dispersion")
        if name in posterior
    }


def predictors(draws: dict[str, FloatArray], X: FloatArray) -> FloatArray:
    """Linear predictors, (n_draws, n_predictors, n_obs, n_components)."""
    return np.asarray(X @ draws["coefficient"] + draws["bias"][:, :, None])


def test_classes_of_draws() -> None:
    data = class_rows(n_obs=300)
    options = {**JOINT, **DRAWS}
    model = with_fake_sampler(MixtureGLMClassifier(**options), data.X, data.y)
    draws = draws_of(model.posterior_)
    eta = predictors(draws, data.X)
    full = softmax(np.concatenate([np.zeros_like(eta[:, :1]), eta], axis=1), axis=1)
    shares = np.einsum("scnj,sj->nc", full, draws["weight"]) / len(eta)
    assert_allclose(model.predict_proba(data.X), shares)
    codes = np.searchsorted(model.classes_, data.y)
    own = full[:, codes, np.arange(300)] * draws["weight"][:, None]
    membership = (own / own.sum(axis=2, keepdims=True)).mean(axis=0)
    assert_allclose(model.predict_membership(data.X, data.y), membership)
    tree = predict_membership(model.posterior_, data.X, data.y, average=True)
    assert_allclose(tree.values, membership)
    assert_allclose(model.weights_, draws["weight"].mean(axis=0))
    assert_allclose(model.biases_, draws["bias"].mean(axis=0))
    lengths = np.linalg.norm(draws["coefficient"], axis=2)
    assert_allclose(model.scales_, lengths.mean(axis=0))
    restored = pickle.loads(pickle.dumps(model))
    assert_array_equal(restored.predict_proba(data.X), model.predict_proba(data.X))
    # The draws are near the start.
    assert np.abs(shares - model.fit_.predict(data.X)).mean() < 0.05


def test_responses_of_draws() -> None:
    data = pair_rows(n_obs=300)
    model = with_fake_sampler(MixtureGLMRegressor(**DRAWS), data.X, data.y)
    draws = draws_of(model.posterior_)
    offset = np.random.default_rng(1).standard_normal((300, 2))
    eta = predictors(draws, data.X) + offset.T[:, :, None]
    components = model.predict_components(data.X, offset=offset)
    assert_allclose(components, eta.mean(axis=0).transpose(1, 2, 0))
    mean = np.einsum("sanj,sj->na", eta, draws["weight"]) / len(eta)
    assert_allclose(model.predict(data.X, offset=offset), mean)
    values = norm.logpdf(data.y.T[:, :, None], eta, draws["dispersion"][:, :, None]).sum(axis=1)
    values += np.log(draws["weight"])[:, None]
    density = logsumexp(values, axis=(0, 2)) - np.log(len(eta))
    assert_allclose(model.log_density(data.X, data.y, offset=offset), density)
    assert_allclose(model.dispersion_, draws["dispersion"].mean(axis=0))


@pytest.mark.slow
def test_sampled_classes_are_about_the_fit() -> None:
    """Weak priors move posterior means of 900 rows by a fraction of a standard error."""
    data = class_rows(n_obs=3_000)
    model = MixtureGLMClassifier(
        multi_class="categorical",
        inference="nuts",
        draws=300,
        tune=300,
        chains=2,
        random_state=1,
        sampler_options={"cores": 1},
    ).fit(data.X, data.y)
    assert np.abs(model.predict_proba(data.X) - model.fit_.predict(data.X)).mean() < 0.02
    errors = model.fit_.standard_errors
    assert np.median(np.abs(model.biases_ - model.fit_.biases) / errors.biases) < 1.0
