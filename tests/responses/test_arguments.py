"""What calls with several responses refuse, and say when they do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from moment_init import compare, estimate, fit_em, initial_values
from moment_init.checks import ConvergenceWarning
from moment_init.models import mixture_glm
from moment_init.responses.data import validate_responses
from moment_init.responses.parameters import pose_joint
from moment_init.responses.result import JointFit
from moment_init.responses.search import mean_predictors
from tests.joint_mixtures import simulate_joint

QUICK: dict[str, Any] = {"init": "random", "n_starts": 1, "random_seed": 1}

fit_any: Any = fit_em
estimate_any: Any = estimate
model_any: Any = mixture_glm


@pytest.fixture
def counts(rng: np.random.Generator) -> tuple[Any, Any]:
    """Inputs and two responses of counts."""
    return rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2)).astype(float)


def masked(values: Any) -> Any:
    mask = np.zeros(np.shape(values), dtype=bool)
    mask.flat[-1] = True
    return np.ma.array(values, mask=mask)


def mixed_fit(rng: np.random.Generator) -> tuple[JointFit, Any, Any]:
    """Successes of ten trials beside counts."""
    X = rng.standard_normal((200, 2))
    y = np.column_stack([rng.binomial(10, 0.3, 200), rng.poisson(2.0, 200)])
    return fit_any(X, y, 1, family=["binomial", "poisson"], n_trials=10, **QUICK), X, y


def test_only_responses_with_trials_are_multiplied(rng: np.random.Generator) -> None:
    fit, X, y = mixed_fit(rng)
    single, trials = fit.predict(X), rng.integers(1, 9, 200)
    many = fit.predict(X, n_trials=trials)
    np.testing.assert_allclose(many[:, 0], trials * single[:, 0], rtol=1e-12)
    np.testing.assert_array_equal(many[:, 1], single[:, 1])
    # A column of the counts' own says nothing, and is left as it is.
    given = np.asfortranarray(np.column_stack([trials, np.full(200, 5.0)]))
    np.testing.assert_array_equal(fit.predict(X, n_trials=given), many)
    assert np.all(given[:, 1] == 5.0)
    means = fit.predict(X, n_trials=10).mean(axis=0)
    assert np.all(np.abs(means - y.mean(axis=0)) < 5 * y.std(axis=0) / np.sqrt(200))


@pytest.mark.parametrize("trials", [0, 2.5, -1, np.nan, np.ones(7), "ten", masked(np.ones(200))])
def test_trials_are_checked_as_in_the_fit(trials: Any, rng: np.random.Generator) -> None:
    fit, X, y = mixed_fit(rng)
    for call in (
        lambda: fit.predict(X, n_trials=trials),
        lambda: fit.score(X, y, n_trials=trials),
        lambda: fit_any(X, y, 1, family=["binomial", "poisson"], n_trials=trials, **QUICK),
    ):
        with pytest.raises((TypeError, ValueError), match="`n_trials`"):
            call()


def test_trials_without_a_binomial_response(counts: tuple[Any, Any]) -> None:
    X, y = counts
    fit = fit_any(X, y, 1, family="poisson", **QUICK)
    with pytest.raises(ValueError, match="`n_trials` must be None"):
        fit.predict(X, n_trials=3)
    classes = fit_any(X, y[:, 0] > 0, 1, family="categorical", **QUICK)
    for name in ("offset", "n_trials"):
        with pytest.raises(
            ValueError, match=f"`{name}` must be left out of `predict` with family="
        ):
            classes.predict(X, **{name: np.ones(60)})
        with pytest.raises(ValueError, match=f"`{name}` must be left out"):
            classes.score(X, y[:, 0] > 0, **{name: np.ones(60)})


def test_masks_are_seen(counts: tuple[Any, Any]) -> None:
    X, y = counts
    labels = np.where(y[:, 0] > 0, "yes", "no")
    fit = fit_any(X, y, 1, family="poisson", **QUICK)
    classes = fit_any(X, labels, 1, family="categorical", **QUICK)
    calls: list[tuple[Any, str]] = [
        (lambda: fit_any(X, masked(y), 2, family="poisson"), "y"),
        (lambda: fit_any(X, masked(labels), 2, family="categorical"), "y"),
        (lambda: fit_any(X, y, 2, family="poisson", offset=masked(y)), "offset"),
        (lambda: fit.score(X, masked(y)), "y"),
        (lambda: fit.predict(X, offset=masked(y)), "offset"),
        (lambda: classes.score(X, masked(labels)), "y"),
    ]
    for call, name in calls:
        with pytest.raises(ValueError, match=f"`{name}` must not have masked"):
            call()
    unmasked = fit_any(X, np.ma.array(y), 1, family="poisson", **QUICK)
    assert unmasked.log_likelihood == fit.log_likelihood


def test_classes_are_those_of_rows_that_count(rng: np.random.Generator) -> None:
    X = rng.standard_normal((90, 2))
    labels = np.array(["a", "b", "c"])[rng.integers(3, size=90)]
    weight = (labels != "c").astype(float)
    with pytest.raises(ValueError, match=r"`y`.*'c'.*weight zero only"):
        fit_any(X, labels, 1, family="categorical", sample_weight=weight, **QUICK)
    only = (labels == "a").astype(float)
    with pytest.raises(ValueError, match="at least two classes in rows of positive weight"):
        fit_any(X, labels, 1, family="categorical", sample_weight=only, **QUICK)
    # Of a label that counts elsewhere, rows without weight change nothing.
    weight = np.ones(90)
    weight[:20] = 0.0
    fit = fit_any(X, labels, 1, family="categorical", sample_weight=weight, **QUICK)
    rest = fit_any(X[20:], labels[20:], 1, family="categorical", **QUICK)
    assert abs(fit.log_likelihood - rest.log_likelihood) < 1e-8


@pytest.mark.parametrize("family", ["categorical", "bernoulli", "poisson"])
def test_a_sample_without_a_rare_response(family: str, rng: np.random.Generator) -> None:
    """Rows by which starts are compared can lack what all rows have."""
    X, y = rng.standard_normal((60, 2)), np.zeros((60, 2))
    y[:, 1] = rng.integers(2, size=60)
    y[0, 0] = 1.0
    given: Any = np.where(y[:, 0] > 0, 2, y[:, 1]) if family == "categorical" else y
    problem = pose_joint(validate_responses(X, given, family=family), 2, 0.01)
    few = problem.rows.take(np.arange(1, 60))
    levels = mean_predictors(replace(problem, rows=few))
    assert np.all(np.isfinite(levels))
    assert levels.min() < -3.5  # one of 60 rows: log(1/60) = -4.1


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"offset": "long"}, "`offset`"),
    ({"offset": np.full((60, 2), "x")}, "`offset`"),
    ({"n_trials": "ten"}, "`n_trials`"),
    ({"init": []}, "`init`"),
    ({"init": ()}, "`init`"),
    ({"init": None}, "`init`"),
    ({"init": ["a", "b", "c"]}, "`init`"),
    ({"init": [["a"], ["b"], ["c"]]}, "`init`"),
    ({"init": [[1.0], [1.0, 2.0]]}, "`init`"),
    ({"init": (np.full((2, 2, 2), np.nan), np.ones((2, 2)), [0.5, 0.5])}, "`init`"),
    ({"init": (np.ones((2, 2, 2)), np.ones((2, 2)), [np.nan, 0.5])}, "`init`"),
    ({"family": np.array(["poisson", "poisson"])}, "`family`"),
    ({"family": 3}, "`family`"),
    ({"family": [None, "poisson"]}, "`family`"),
    ({"y": [[1.0, 2.0], [3.0]]}, "`y`"),
    ({"y": [[1.0, 2.0], [3.0]], "family": ["poisson", "poisson"]}, "`y`"),
    ({"y": [["a", "b"], ["c"]], "family": "categorical"}, "`y`"),
    ({"y": np.full((60, 2), "x")}, "`y`"),
    ({"y": sparse.csr_array(np.ones((60, 2)))}, "`y`"),
    ({"y": pd.DataFrame({"a": [1, pd.NA] * 30, "b": 1}, dtype="Int64")}, "`y`"),
    ({"y": pd.Series(["a", pd.NA] * 30, dtype="string"), "family": "categorical"}, "`y`"),
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
    data = simulate_joint("gaussian", 60, 2, [0.6, 0.4], 2, rng, dispersion=0.4)
    for value in (0.0, -1.0, np.nan):
        start = (np.ones((2, 2, 2)), np.ones((2, 2)), [0.5, 0.5], np.full((2, 2), value))
        with pytest.raises(ValueError, match="`init`: dispersion must be finite and positive"):
            fit_any(data.X, data.y, 2, family="gaussian", init=start)


def test_weights_of_a_score(counts: tuple[Any, Any], rng: np.random.Generator) -> None:
    X, y = counts
    fit = fit_any(X, y, 1, family="poisson", **QUICK)
    for wrong in (-1, -np.ones(60), np.ones(7), np.zeros(60), "heavy"):
        with pytest.raises((TypeError, ValueError), match="`sample_weight`"):
            fit.score(X, y, sample_weight=wrong)
    weight = rng.uniform(size=60)
    expected = weight @ fit.log_densities(X, y) / weight.sum()
    assert abs(fit.score(X, y, sample_weight=weight) - expected) < 1e-12


def test_where_several_responses_are_not_supported(counts: tuple[Any, Any]) -> None:
    X, y = counts
    wrong: list[tuple[Any, Any]] = [
        (y, "poisson"),
        (pd.DataFrame(y), "poisson"),
        (y[:, 0], "categorical"),
        (y, ["poisson", "poisson"]),
    ]
    for values, family in wrong:
        with pytest.raises(ValueError, match="not supported by `compare`"):
            compare(X, values, 2, family=family)
    with pytest.raises(ValueError, match=r"y\.ravel\(\)"):  # one column is one response
        compare(X, y[:, :1], 2, family="poisson")
    fit = fit_any(X, y, 1, family="poisson", **QUICK)
    with pytest.raises(TypeError, match=r"`initial_values` does not support several responses"):
        initial_values(fit)


@pytest.mark.parametrize("function", [fit_any, estimate_any, model_any])
def test_groups_name_the_function(function: Any, counts: tuple[Any, Any]) -> None:
    X, y = counts
    with pytest.raises(ValueError, match=f"`groups` must be left out of `{function.__name__}`"):
        function(X, y, 2, family="poisson", groups=np.arange(60))


def test_arrays_start_a_model_without_a_warning(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 60, 2, [0.6, 0.4], 2, rng)
    start = (data.truth.coefficients, data.truth.biases, data.truth.weights)
    model_any(data.X, data.y, 2, family="poisson", init=start)  # warnings are errors here
    with pytest.warns(ConvergenceWarning) as told:
        fit_any(data.X, data.y, 2, family="poisson", init=start, max_iter=0)
    assert told[0].filename == __file__
