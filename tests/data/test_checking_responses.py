"""Calls with several responses or classes: what they take, refuse, and say when they do."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import fit_em
from moment_init.checks import ConvergenceWarning
from moment_init.em.result import EMFit
from moment_init.models import mixture_glm

QUICK: dict[str, Any] = {"init": "random", "n_starts": 1, "random_seed": 1}

fit_any: Any = fit_em
model_any: Any = mixture_glm


@pytest.fixture
def counts(rng: np.random.Generator) -> tuple[Any, Any]:
    """Inputs and two responses of counts."""
    return rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2)).astype(float)


def masked(values: Any) -> Any:
    mask = np.zeros(np.shape(values), dtype=bool)
    mask.flat[-1] = True
    return np.ma.array(values, mask=mask)


def mixed_fit(rng: np.random.Generator) -> tuple[EMFit, Any, Any]:
    """Successes of ten trials beside counts."""
    X = rng.standard_normal((200, 2))
    y = np.column_stack([rng.binomial(10, 0.3, 200), rng.poisson(2.0, 200)])
    return fit_any(X, y, 1, family=["binomial", "poisson"], n_trials=10, **QUICK), X, y


def test_only_responses_with_trials_are_multiplied(rng: np.random.Generator) -> None:
    fit, X, y = mixed_fit(rng)
    single, trials = fit.predict(X), rng.integers(1, 9, 200)
    many = fit.predict(X, n_trials=trials)
    assert_allclose(many[:, 0], trials * single[:, 0], rtol=1e-12)
    assert_array_equal(many[:, 1], single[:, 1])
    # Trials of the counts have no meaning, and the caller's array is left as it is.
    given = np.asfortranarray(np.column_stack([trials, np.full(200, 5.0)]))
    assert_array_equal(fit.predict(X, n_trials=given), many)
    assert np.all(given[:, 1] == 5.0)
    means = fit.predict(X, n_trials=10).mean(axis=0)
    assert np.all(np.abs(means - y.mean(axis=0)) < 5 * y.std(axis=0) / np.sqrt(200))


@pytest.mark.parametrize("trials", [0, 2.5, -1, np.nan, np.ones(7), "ten", masked(np.ones(200))])
def test_trials_of_new_rows_are_checked(trials: Any, rng: np.random.Generator) -> None:
    fit, X, y = mixed_fit(rng)
    for call in (
        lambda: fit.predict(X, n_trials=trials),
        lambda: fit.score(X, y, n_trials=trials),
    ):
        with pytest.raises((TypeError, ValueError), match="`n_trials`"):
            call()


def test_trials_without_a_binomial_response(counts: tuple[Any, Any]) -> None:
    X, y = counts
    fit = fit_any(X, y, 1, family="poisson", **QUICK)
    with pytest.raises(ValueError, match="`n_trials` must be None"):
        fit.predict(X, n_trials=3)
    classes = fit_any(X, y[:, 0] > 0, 1, family="categorical", **QUICK)
    with pytest.raises(ValueError, match="`n_trials` must be None for family 'categorical'"):
        classes.predict(X, n_trials=np.ones(60))
    with pytest.raises(ValueError, match="`n_trials` must be None for family 'categorical'"):
        classes.score(X, y[:, 0] > 0, n_trials=np.ones(60))


def test_masks_are_seen(counts: tuple[Any, Any]) -> None:
    X, y = counts
    labels = np.where(y[:, 0] > 0, "yes", "no")
    fit = fit_any(X, y, 1, family="poisson", **QUICK)
    classes = fit_any(X, labels, 1, family="categorical", **QUICK)
    calls: list[tuple[Any, str]] = [
        (lambda: fit.score(X, masked(y)), "y"),
        (lambda: fit.predict(X, offset=masked(y)), "offset"),
        (lambda: classes.score(X, masked(labels)), "y"),
    ]
    for call, name in calls:
        with pytest.raises(ValueError, match=f"`{name}` must not have masked"):
            call()
    unmasked = fit_any(X, np.ma.array(y), 1, family="poisson", **QUICK)
    assert unmasked.log_likelihood == fit.log_likelihood


def test_rows_without_weight_change_nothing(rng: np.random.Generator) -> None:
    X = rng.standard_normal((90, 2))
    labels = np.array(["a", "b", "c"])[rng.integers(3, size=90)]
    weight = np.ones(90)
    weight[:20] = 0.0
    fit = fit_any(X, labels, 1, family="categorical", sample_weight=weight, **QUICK)
    rest = fit_any(X[20:], labels[20:], 1, family="categorical", **QUICK)
    assert abs(fit.log_likelihood - rest.log_likelihood) < 1e-8


def test_one_column_gives_the_fit_of_a_vector(counts: tuple[Any, Any]) -> None:
    X, y = counts
    with pytest.warns(UserWarning, match="coincide"):  # the counts do not depend on the inputs
        vector = fit_any(X, y[:, 0], 2, family="poisson", **QUICK)
    with pytest.warns(UserWarning, match="coincide"):
        column = fit_any(X, y[:, :1], 2, family="poisson", **QUICK)
    assert column.log_likelihood == vector.log_likelihood
    assert_array_equal(column.coefficients, vector.coefficients)
    assert column.predict(X).shape == (60,)
    assert_array_equal(
        column.predict_membership(X, y[:, :1]), vector.predict_membership(X, y[:, 0])
    )


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"offset": "long"}, "`offset`"),
    ({"n_trials": "ten"}, "`n_trials`"),
    ({"init": []}, "`init`"),
    ({"init": ()}, "`init`"),
    ({"init": None}, "`init`"),
    ({"init": ["a", "b", "c"]}, "`init`"),
    ({"init": [["a"], ["b"], ["c"]]}, "`init`"),
    ({"init": [[1.0], [1.0, 2.0]]}, "`init`"),
    ({"init": (np.full((2, 2, 2), np.nan), np.ones((2, 2)), [0.5, 0.5])}, "`init`"),
    ({"init": (np.ones((2, 2, 2)), np.ones((2, 2)), [np.nan, 0.5])}, "`init`"),
    ({"family": [None, "poisson"]}, "`family`"),
    ({"y": [[1.0, 2.0], [3.0]]}, "`y`"),
    ({"y": pd.DataFrame({"a": [1, pd.NA] * 30, "b": 1}, dtype="Int64")}, "`y`"),
    ({"sample_weight": -np.ones(60)}, "`sample_weight`"),
]


@pytest.mark.parametrize(("options", "message"), HOSTILE)
@pytest.mark.parametrize("function", [fit_any, model_any], ids=["fit_em", "mixture_glm"])
def test_errors_name_the_argument(
    options: dict[str, Any], message: str, function: Any, counts: tuple[Any, Any]
) -> None:
    X, y = counts
    changed = {"y": y, "family": "poisson", **options}
    with pytest.raises((TypeError, ValueError), match=message):
        function(X, n_components=2, **changed)


def test_dispersion_of_a_start_is_checked(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((60, 2)), rng.standard_normal((60, 2))
    for value in (0.0, -1.0, np.nan):
        start = (np.ones((2, 2, 2)), np.ones((2, 2)), [0.5, 0.5], np.full((2, 2), value))
        with pytest.raises(ValueError, match="`init`"):
            fit_any(X, y, 2, family="gaussian", init=start)


def test_weights_of_a_score(counts: tuple[Any, Any], rng: np.random.Generator) -> None:
    X, y = counts
    fit = fit_any(X, y, 1, family="poisson", **QUICK)
    for wrong in (-1, -np.ones(60), np.ones(7), np.zeros(60), "heavy"):
        with pytest.raises((TypeError, ValueError), match="`sample_weight`"):
            fit.score(X, y, sample_weight=wrong)
    weight = rng.uniform(size=60)
    densities = [fit.score(X[[row]], y[[row]]) for row in range(60)]
    assert abs(fit.score(X, y, sample_weight=weight) - weight @ densities / weight.sum()) < 1e-12


def test_arrays_start_a_model_without_a_warning(rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 2))
    slopes = rng.standard_normal((2, 2, 2))  # (n_responses, n_features, n_components)
    y = rng.poisson(np.exp(0.5 * X @ slopes[:, :, 0].T)).astype(float)
    start = (0.5 * slopes, np.zeros((2, 2)), [0.6, 0.4])
    model_any(X, y, 2, family="poisson", init=start)  # warnings are errors here
    with pytest.warns(ConvergenceWarning) as told:
        fit_any(X, y, 2, family="poisson", init=start, max_iter=0)
    assert told[0].filename == __file__
