"""The classifier: two classes and more."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import accuracy_score

from moment_init import MixtureGLMClassifier, fit_em
from tests.estimators.estimator_data import (
    N_OBS,
    QUICK,
    binary_rows,
    classifier,
    three_classes,
    three_classifier,
)


def labels_of_two() -> Any:
    return np.where(binary_rows().y > 0, "yes", "no")


@pytest.mark.filterwarnings("ignore:Component|Only one start|A parameter:UserWarning")
def test_two_classes_have_one_mixture_of_the_second() -> None:
    data, fitted = binary_rows(), classifier()
    assert fitted.classes_.tolist() == ["no", "yes"]
    plain = fit_em(data.X, data.y, 2, init=fitted.fit_, priors="default")
    assert fitted.fit_.log_posterior == pytest.approx(plain.log_posterior, abs=1e-4)
    shares = fitted.predict_proba(data.X)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(shares[:, 1], fitted.fit_.predict(data.X))
    expected = np.where(shares[:, 1] > 0.5, "yes", "no")
    assert fitted.predict(data.X).tolist() == expected.tolist()
    assert not hasattr(fitted, "fits_")


@pytest.mark.parametrize("labels", [[False, True], [2, 7], [-1.0, 1.0], ["b", "a"]])
def test_labels_may_be_anything(labels: list[Any]) -> None:
    data = binary_rows()
    y = np.array(labels)[data.y.astype(int)]
    fitted = MixtureGLMClassifier(1, random_state=0).fit(data.X, y)
    assert fitted.classes_.tolist() == sorted(labels)
    assert set(fitted.predict(data.X).tolist()) <= set(labels)
    assert fitted.score(data.X, y) == accuracy_score(y, fitted.predict(data.X))


def test_membership_and_density_of_two_classes() -> None:
    data, fitted = binary_rows(), classifier()
    found = fitted.predict_membership(data.X, labels_of_two())
    np.testing.assert_allclose(found, fitted.fit_.responsibilities, atol=1e-12)
    before = fitted.predict_membership(data.X)
    np.testing.assert_allclose(before[0], fitted.weights_, rtol=1e-12)
    density = fitted.log_density(data.X, labels_of_two())
    assert density.sum() == pytest.approx(fitted.fit_.log_likelihood)


def test_density_needs_a_label_for_each_row() -> None:
    """One label must not stand for all rows."""
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier().log_density(binary_rows().X, labels_of_two()[:1])


def test_more_classes_have_a_mixture_each() -> None:
    X, y = three_classes()
    fitted = three_classifier()
    assert len(fitted.fits_) == 3
    assert not hasattr(fitted, "fit_")
    assert fitted.directions_.shape == (3, 2, 2)
    assert fitted.weights_.shape == (3, 2)
    assert np.shape(fitted.n_iter_) == (3,)
    single = np.column_stack([fit.predict(X) for fit in fitted.fits_])
    shares = fitted.predict_proba(X)
    np.testing.assert_allclose(shares, single / single.sum(axis=1, keepdims=True))
    # centres two standard deviations apart: a row is nearest to its own with probability
    # Phi(1)^2 for two boundaries at right angles, Phi(1) Phi(sqrt 2) at least for the others
    assert fitted.score(X, y) > 0.6
    assert fitted.predict_membership(X, y).shape == (N_OBS, 3, 2)
    np.testing.assert_allclose(fitted.predict_membership(X).sum(axis=2), 1.0)
    assert fitted.transform(X).shape == (N_OBS, 6)
    assert np.isfinite(fitted.log_density(X, y)).all()


def test_rows_without_weight_bring_no_class() -> None:
    X, y = three_classes()
    fitted = MixtureGLMClassifier(**QUICK).fit(X, y, sample_weight=y != "c")
    assert fitted.classes_.tolist() == ["a", "b"]
    kept = MixtureGLMClassifier(**QUICK).fit(X[y != "c"], y[y != "c"])
    np.testing.assert_array_equal(fitted.coefficients_, kept.coefficients_)
    with pytest.raises(ValueError, match=r"`y` must have the labels of the fit \('a', 'b'\); got"):
        fitted.predict_membership(X, y)


def test_attributes_of_an_earlier_fit_are_gone() -> None:
    X, y = three_classes()
    fitted = MixtureGLMClassifier(1).fit(X, y)
    assert fitted.fit(X, y == "a").fit_.n_components == 1
    assert not hasattr(fitted, "fits_")


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`y` must have at least two classes .* got one class"):
        MixtureGLMClassifier().fit(np.ones((4, 1)), ["a"] * 4)


def test_offset_is_for_two_classes() -> None:
    X, y = three_classes()
    with pytest.raises(ValueError, match="`offset` must be None for more than two classes"):
        MixtureGLMClassifier().fit(X, y, offset=np.zeros(N_OBS))
    data = binary_rows()
    model = MixtureGLMClassifier(1, priors=None)
    fitted = clone(model).fit(data.X, data.y, offset=np.full(N_OBS, 0.5))
    plain = model.fit(data.X, data.y)
    # an offset that is the same for all rows moves the intercept, but not that of the prior
    assert fitted.biases_[0] == pytest.approx(plain.biases_[0] - 0.5, abs=1e-4)
    moved = fitted.predict_proba(data.X, offset=np.full(N_OBS, 0.5))
    np.testing.assert_allclose(moved, plain.predict_proba(data.X), atol=1e-4)


def test_probit_link() -> None:
    data = binary_rows()
    fitted = MixtureGLMClassifier(1, link="probit").fit(data.X, data.y)
    assert fitted.fit_.link == "probit"


def test_rows_that_all_mixtures_rule_out_are_of_any_class() -> None:
    """Far along (1, 1) all three predictors may be at their lowest."""
    fitted = three_classifier()
    far = np.array([[1e8, 1e8], [-1e8, 1e8], [1e8, -1e8], [-1e8, -1e8]])
    shares = fitted.predict_proba(far)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
