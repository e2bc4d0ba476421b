"""Columns that are constant, collinear or too many."""

from typing import Any

import numpy as np
import pytest

from moment_init import MixtureGLMClassifier, MixtureGLMRegressor, WeakSignalWarning
from moment_init.estimators.fitting import affordable_size, column_axes
from tests.estimators.estimator_data import gaussian_rows, regressor

WEIGHTS = np.ones(50)


def test_independent_columns_are_left_alone(seed: int) -> None:
    X = np.random.default_rng(seed).standard_normal((50, 3))
    assert column_axes(X, WEIGHTS, 3) is None


def test_axes_are_uncorrelated_and_of_unit_variance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((50, 3)) * [1.0, 1e6, 1e-6] + [0.0, 1e8, 5.0]
    X = np.column_stack([X, X[:, 0] + X[:, 1], np.full(50, 7.0)])
    weights = rng.uniform(0.5, 2.0, 50)
    axes = column_axes(X, weights, 5)
    assert axes is not None
    Z = axes.project(X)
    assert Z.shape == (50, 3)
    assert np.all(axes.basis[4] == 0.0)
    shares = weights / weights.sum()
    # a column of mean 1e8 and spread 1e6 keeps 14 digits, the smallest axis 1e-3 of the variance
    np.testing.assert_allclose(shares @ Z, 0.0, atol=1e-8)
    np.testing.assert_allclose((Z * shares[:, None]).T @ Z, np.eye(3), atol=1e-8)


def test_axes_of_largest_variance_are_kept() -> None:
    """Two columns with correlation .9: the first axis is their sum."""
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((50, 2))
    X = np.column_stack([Z[:, 0], 0.9 * Z[:, 0] + np.sqrt(0.19) * Z[:, 1]])
    axes = column_axes(X, WEIGHTS, 1)
    assert axes is not None
    scaled = axes.basis[:, 0] * X.std(axis=0)
    assert scaled[0] == pytest.approx(scaled[1])


def test_columns_that_are_all_constant_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`X` must have a column that varies; got 2 that are"):
        MixtureGLMRegressor().fit(np.ones((20, 2)), np.arange(20.0))


@pytest.mark.parametrize(
    ("n_obs", "n_components", "expected"),
    [
        (100, 2, (2, 4)),  # 2 (4 + 2) + 1 = 13 parameters
        (13, 2, (2, 4)),
        (12, 2, (2, 3)),
        (7, 2, (2, 1)),
        (6, 2, (1, 4)),  # 4 + 2 parameters
        (2, 2, (1, 1)),
    ],
)
def test_size_that_rows_can_carry(n_obs: int, n_components: int, expected: tuple[int, int]) -> None:
    found = affordable_size(n_obs, n_components, 4, has_dispersion=True, n_gate=0)
    assert found == expected


def test_constant_and_collinear_columns_change_no_prediction() -> None:
    """Standard errors of predictors, which are identified, are those of the plain fit."""
    data, plain = gaussian_rows(), regressor()
    X = np.column_stack([data.X, data.X[:, 0] + data.X[:, 1], np.full(len(data.X), 3.0)])
    fitted = MixtureGLMRegressor(random_state=0).fit(X, data.y)
    # both climbs end within 1e-6 of the log-likelihood's maximum, 1e-3 standard errors
    errors = plain.fit_.standard_errors
    assert np.all(np.abs(fitted.biases_ - plain.biases_) < 1e-3 * errors.biases)
    np.testing.assert_allclose(fitted.predict(X), plain.predict(data.X), atol=1e-4)
    assert np.all(fitted.coefficients_[4] == 0.0)
    # the coefficient of the sum is added to those of its parts
    parts = fitted.coefficients_[:2] + fitted.coefficients_[3]
    np.testing.assert_allclose(parts, plain.coefficients_[:2], atol=1e-4)
    own = fitted.fit_.standard_errors
    np.testing.assert_allclose(own.biases, errors.biases, rtol=1e-3)
    np.testing.assert_allclose(own.coefficients[2], errors.coefficients[2], rtol=1e-3)
    assert fitted.fit_.feature_names == ("x0", "x1", "x2", "x3", "x4")
    assert fitted.fit_.to_datatree(X, data.y, draws=2)["posterior"].sizes["feature"] == 5


def test_covariance_of_lifted_parameters_is_that_of_the_predictors() -> None:
    data, plain = gaussian_rows(), regressor()
    X = np.column_stack([data.X, data.X[:, 2] - data.X[:, 0]])
    fitted = MixtureGLMRegressor(random_state=0).fit(X, data.y)

    def variances(model: MixtureGLMRegressor, rows: Any) -> Any:
        covariance = model.fit_.covariance
        assert covariance is not None
        own = covariance[: rows.shape[1] + 1, : rows.shape[1] + 1]
        design = np.column_stack([rows, np.ones(len(rows))])
        return np.einsum("ij,jk,ik->i", design, own, design)

    np.testing.assert_allclose(variances(fitted, X[:20]), variances(plain, data.X[:20]), rtol=1e-3)


def test_too_few_rows_for_the_columns_warn_and_fit_axes() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((12, 30)), rng.standard_normal(12)
    with pytest.warns(WeakSignalWarning, match=r"Fitted: 2 component\(s\) along 3 principal axes"):
        fitted = MixtureGLMRegressor(random_state=0).fit(X, y)
    assert fitted.coefficients_.shape == (30, 2)
    assert fitted.n_components_ == 2


def test_too_few_rows_for_the_components_warn_and_fit_fewer() -> None:
    X, y = np.array([[1.0, 3.0], [2.0, 1.0], [3.0, 3.0], [4.0, 1.0]]), [0, 0, 1, 1]
    with pytest.warns(WeakSignalWarning, match=r"Fitted: 1 component\(s\) along 2 principal axes"):
        fitted = MixtureGLMClassifier(2, random_state=0).fit(X, y)
    assert fitted.n_components_ == 1
    assert fitted.transform(X).shape == (4, 1)


@pytest.mark.parametrize(
    "restriction",
    [{"shared": "bias"}, {"fixed_weights": [0.5, 0.5]}, {"init": (np.ones((2, 2)), [0, 0])}],
)
def test_what_names_columns_or_components_is_not_reduced(restriction: dict[str, Any]) -> None:
    data = gaussian_rows()
    X = np.column_stack([data.X[:, 0], np.ones(len(data.X))])
    with pytest.raises(ValueError, match=r"`X` must not have constant columns; got 'x1'"):
        MixtureGLMRegressor(**restriction).fit(X, data.y)
