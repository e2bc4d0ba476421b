"""The estimators among scikit-learn's own tools."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.special import expit
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import (
    check_get_feature_names_out_error,
    check_global_output_transform_pandas,
    check_set_output_transform,
    check_set_output_transform_pandas,
    check_transformer_get_feature_names_out,
    check_transformer_get_feature_names_out_pandas,
    parametrize_with_checks,
)

from moment_init import MixtureGLMClassifier, MixtureGLMRegressor
from tests.estimators.estimator_data import (
    N_OBS,
    QUICK,
    binary_rows,
    frame,
    gaussian_rows,
    regressor,
    three_classes,
    three_classifier,
)

ONE_START: dict[str, Any] = {**QUICK, "n_starts": 1}
ESTIMATORS = [
    MixtureGLMRegressor(**ONE_START),
    MixtureGLMClassifier(**ONE_START),
    MixtureGLMClassifier(multi_class="categorical", **ONE_START),
]


# --- scikit-learn's checks -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`X` has .* distinct rows with positive weight")
@pytest.mark.filterwarnings("ignore:The search did not converge")
@parametrize_with_checks(ESTIMATORS)  # type: ignore[untyped-decorator]  # scikit-learn has no types
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore:X (does not have valid|has) feature names")  # wanted
@pytest.mark.parametrize(
    "check",
    [
        check_get_feature_names_out_error,
        check_global_output_transform_pandas,
        check_set_output_transform,
        check_set_output_transform_pandas,
        check_transformer_get_feature_names_out,
        check_transformer_get_feature_names_out_pandas,
    ],
)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=["regressor", "classifier", "categorical"])
def test_checks_that_scikit_learn_runs_on_its_own_transformers(estimator: Any, check: Any) -> None:
    check(type(estimator).__name__, estimator)


# --- projections ---------------------------------------------------------------------------------


def test_transform_projects_on_the_directions() -> None:
    data, fitted = gaussian_rows(), regressor()
    np.testing.assert_array_equal(fitted.transform(data.X), data.X @ fitted.directions_)
    names = fitted.get_feature_names_out().tolist()
    assert names == ["mixtureglmregressor0", "mixtureglmregressor1"]


@pytest.mark.parametrize(
    ("link", "expected"), [("logit", lambda z: 1 / (1 + np.exp(-z))), ("log", np.exp)]
)
def test_transform_takes_g_of_projections(link: str, expected: Any) -> None:
    data, fitted = gaussian_rows(), regressor()
    projections = fitted.transform(data.X)
    other = clone(fitted).set_params(transform_link=link)
    with pytest.raises(sklearn.exceptions.NotFittedError, match="is not fitted yet"):
        other.transform(data.X)
    other.__dict__.update({**vars(fitted), "transform_link": link})
    np.testing.assert_allclose(other.transform(data.X), expected(projections))


def test_transform_takes_the_familys_own_g() -> None:
    data = binary_rows()
    fitted = MixtureGLMClassifier(transform_link="family", **QUICK).fit(data.X, data.y)
    expected = 1 / (1 + np.exp(-data.X @ fitted.directions_))
    np.testing.assert_allclose(fitted.transform(data.X), expected)
    fitted.set_params(transform_link="cubic")
    with pytest.raises(ValueError, match="`transform_link` must be None, 'family', 'components'"):
        fitted.transform(data.X)


def test_transform_gives_the_means_of_components() -> None:
    data, fitted = gaussian_rows(), clone(regressor()).set_params(transform_link="components")
    found = fitted.fit_transform(data.X, data.y)
    np.testing.assert_array_equal(found, fitted.predict_components(data.X))
    X, y = three_classes()
    several = MixtureGLMClassifier(**QUICK, transform_link="components").fit(X, y)
    expected = [expit(X @ fit.coefficients + fit.biases) for fit in several.fits_]
    np.testing.assert_allclose(several.transform(X), np.hstack(expected))
    assert len(several.get_feature_names_out()) == 6


def test_projections_of_several_mixtures_stand_side_by_side() -> None:
    fitted = three_classifier()
    X = np.eye(2)
    expected = np.hstack([fit.directions for fit in fitted.fits_])
    np.testing.assert_allclose(fitted.transform(X), expected)
    assert len(fitted.get_feature_names_out()) == 6


def test_output_is_a_frame_if_asked_for() -> None:
    data = gaussian_rows()
    X = frame(data)
    fitted = MixtureGLMRegressor(**QUICK).set_output(transform="pandas").fit(X, data.y)
    found = fitted.transform(X)
    assert isinstance(found, pd.DataFrame)
    assert found.columns.tolist() == ["mixtureglmregressor0", "mixtureglmregressor1"]


# --- composition ---------------------------------------------------------------------------------


def test_kinds_are_known() -> None:
    assert is_regressor(MixtureGLMRegressor())
    assert is_classifier(MixtureGLMClassifier())


def test_clone_keeps_parameters_of_every_kind() -> None:
    fit = regressor().fit_
    model = MixtureGLMRegressor(3, family="gamma", init=fit, sampler_options={"cores": 1})
    other = clone(model)
    assert other.get_params().keys() == model.get_params().keys()
    assert other.n_components == 3
    assert other.init.log_likelihood == fit.log_likelihood
    assert "init=EMFit" in repr(model)


def test_pipeline_with_all_levels_of_a_factor() -> None:
    """All levels of a factor are collinear with the intercept, which an estimator takes."""
    data = gaussian_rows()
    level = np.arange(N_OBS) % 3
    table = np.array(["u", "v", "w"], dtype=object)[level][:, None]
    factor = OneHotEncoder(sparse_output=False).fit_transform(table)
    X = np.column_stack([data.X, factor])
    model = make_pipeline(StandardScaler(), MixtureGLMRegressor(**QUICK))
    fitted = model.fit(X, data.y + level)
    assert fitted.score(X, data.y + level) > fitted.score(X, data.y)


def test_pipeline_takes_projections_onwards() -> None:
    data = gaussian_rows()
    model = make_pipeline(MixtureGLMRegressor(**QUICK), StandardScaler())
    assert model.fit_transform(data.X, data.y).shape == (N_OBS, 2)


def test_grid_search_over_components_by_density() -> None:
    """The score of means does not see components; the density does."""
    data = gaussian_rows()

    def mean_log_density(model: MixtureGLMRegressor, X: Any, y: Any) -> float:
        return float(model.log_density(X, y).mean())

    grid = {"n_components": [1, 2], "min_dispersion_ratio": [0.05, 0.5]}
    search = GridSearchCV(MixtureGLMRegressor(**QUICK), grid, scoring=mean_log_density, cv=2)
    search.fit(data.X, data.y)
    assert search.best_params_["n_components"] == 2


def test_grid_search_over_families() -> None:
    data = binary_rows()
    counts = 1.0 + np.arange(N_OBS) % 3
    search = GridSearchCV(
        MixtureGLMRegressor(1), {"family": ["gaussian", "poisson", "gamma"]}, cv=2
    )
    assert np.isfinite(search.fit(data.X, counts).cv_results_["mean_test_score"]).all()


def test_cross_validation_of_a_classifier() -> None:
    data = binary_rows()
    scores = cross_val_score(MixtureGLMClassifier(1), data.X, data.y, cv=3)
    assert scores.shape == (3,)
    losses = cross_val_score(MixtureGLMClassifier(1), data.X, data.y, cv=3, scoring="neg_log_loss")
    # a single logistic regression is no worse than the share of ones, but for the noise of the fit
    share = data.y.mean()
    entropy = -(share * np.log(share) + (1 - share) * np.log1p(-share))
    assert np.all(losses > -entropy - 5 / np.sqrt(N_OBS))


# --- metadata ------------------------------------------------------------------------------------


@pytest.fixture
def routing() -> Iterator[None]:
    """Metadata routing, for one test."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_weights_groups_and_offsets_are_routed() -> None:
    data = gaussian_rows()
    rng = np.random.default_rng(1)
    groups = np.arange(N_OBS) // 3
    weights = rng.integers(1, 3, N_OBS) * 1.0
    seen: dict[str, list[Any]] = {"fit": [], "score": []}

    class Watched(MixtureGLMRegressor):
        def fit(
            self,
            X: Any,
            y: Any,
            sample_weight: Any = None,
            *,
            groups: Any = None,
            offset: Any = None,
            n_trials: Any = None,
            gating: Any = None,
        ) -> Any:
            seen["fit"].append((sample_weight, groups, offset))
            return super().fit(X, y, sample_weight, groups=groups, offset=offset)

        def score(
            self,
            X: Any,
            y: Any,
            sample_weight: Any = None,
            *,
            offset: Any = None,
            n_trials: Any = None,
            gating: Any = None,
        ) -> float:
            seen["score"].append((sample_weight, offset))
            return super().score(X, y, sample_weight, offset=offset)

    model = (
        Watched(1)
        .set_fit_request(sample_weight=True, groups=True, offset=True)
        .set_score_request(sample_weight=True, offset=True)
    )
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    pipeline = make_pipeline(scaler, model)
    offset = rng.standard_normal(N_OBS)
    found = cross_validate(
        pipeline,
        data.X,
        data.y,
        cv=GroupKFold(2),
        params={"sample_weight": weights, "groups": groups, "offset": offset},
    )
    assert np.isfinite(found["test_score"]).all()
    for fold, (own_weights, own_groups, own_offset) in enumerate(seen["fit"]):
        kept = np.isin(groups, own_groups)
        np.testing.assert_array_equal(own_weights, weights[kept])
        np.testing.assert_array_equal(own_offset, offset[kept])
        np.testing.assert_array_equal(seen["score"][fold][0], weights[~kept])
        np.testing.assert_array_equal(seen["score"][fold][1], offset[~kept])


@pytest.mark.usefixtures("routing")
def test_metadata_reach_projections_in_front_of_a_classifier() -> None:
    data = binary_rows()
    groups, weights = np.arange(N_OBS) // 3, 1.0 + np.arange(N_OBS) % 2
    projections = MixtureGLMClassifier(**ONE_START)
    last = LogisticRegression().set_fit_request(sample_weight=True)
    pipeline = make_pipeline(
        projections.set_fit_request(sample_weight=True, groups=True),
        last.set_score_request(sample_weight=True),
    )
    scores = cross_val_score(
        pipeline,
        data.X,
        data.y,
        cv=GroupKFold(3),
        params={"sample_weight": weights, "groups": groups},
        error_score="raise",
    )
    assert np.isfinite(scores).all()
    fitted = pipeline.fit(data.X, data.y, sample_weight=weights, groups=groups)
    alone = MixtureGLMClassifier(**ONE_START).fit(data.X, data.y, weights, groups=groups)
    np.testing.assert_array_equal(fitted[0].transform(data.X), alone.transform(data.X))


@pytest.mark.usefixtures("routing")
def test_metadata_that_nobody_asked_for_is_an_error() -> None:
    data = gaussian_rows()
    with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError, match="groups"):
        GridSearchCV(MixtureGLMRegressor(1), {"n_components": [1]}, cv=2).fit(
            data.X, data.y, groups=np.arange(N_OBS)
        )
