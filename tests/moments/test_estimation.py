"""The entry point: dispatch, data structures, randomness and messages, for every method."""

import warnings
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import (
    IdentifiabilityError,
    MomentEstimate,
    WeakSignalWarning,
    estimate,
    simulate_mixture,
)
from moment_init.families.registry import get_family
from moment_init.moments.estimation import Method
from moment_init.moments.result import MomentDiagnostics, StackedDiagnostics
from moment_init.scores import Gaussian
from tests.sampled import fit_sampled, moment_coefficients, sampled

METHODS: tuple[Method, ...] = get_args(Method)


def quiet_estimate(*arguments: Any, **options: Any) -> MomentEstimate:
    """Estimate where the strength of the signal is beside the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        return estimate(*arguments, **options)


# --- dispatch ------------------------------------------------------------------------------------


def test_the_default_is_stacked_and_polished(seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=10_000)
    fit = fit_sampled(data)
    explicit = fit_sampled(data, method="stacked", polish=True)
    assert fit.method == "stacked"
    assert fit.log_likelihood is not None
    assert_array_equal(fit.directions, explicit.directions)


@pytest.mark.parametrize("method", METHODS)
def test_the_method_decides_what_is_estimated(method: Method, seed: int) -> None:
    fit = fit_sampled(sampled("bernoulli", seed, n_obs=20_000), method=method)
    is_stacked = method == "stacked"
    assert fit.method == method
    assert isinstance(fit.diagnostics, StackedDiagnostics if is_stacked else MomentDiagnostics)
    for value in (fit.scales, fit.biases, fit.weights, fit.standard_errors, fit.log_likelihood):
        assert (value is not None) == is_stacked
    assert (len(fit.candidates) > 0) == is_stacked
    assert fit.selection is None


@pytest.mark.parametrize("method", ["power", "tensorly"])
def test_polish_is_for_stacked_moments_only(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    with_polish, without = (fit_sampled(data, method=method, polish=p) for p in (True, False))
    assert_array_equal(with_polish.directions, without.directions)


# --- data structures -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_frame_keeps_its_names(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    frame = pd.DataFrame(data.X, columns=["age", "income", "b c", "d", "e"])
    fit = estimate(frame, pd.Series(data.y, name="bought"), 2, method=method, random_seed=1)
    assert fit.feature_names == ("age", "income", "b c", "d", "e")
    assert_allclose(fit.directions, fit_sampled(data, method=method).directions, atol=1e-8)


@pytest.mark.parametrize("method", ["stacked", "power"])
def test_layouts_and_types_of_the_inputs(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=10_000)
    rounded = np.round(100.0 * data.X)
    expected = quiet_estimate(rounded, data.y, 2, method=method, random_seed=1).directions
    locked = rounded.copy()
    locked.flags.writeable = False
    for rows in (
        np.asfortranarray(rounded),
        rounded.astype(np.float32),
        rounded.astype(np.int32),
        np.repeat(rounded, 2, axis=1)[:, ::2],
        np.repeat(rounded, 2, axis=0)[::2],
        locked,
        rounded.astype(">f8"),
    ):
        fit = quiet_estimate(rows, data.y.astype(np.int8), 2, method=method, random_seed=1)
        assert_allclose(fit.directions, expected, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_arguments_are_not_changed(method: Method, seed: int) -> None:
    data = sampled("gaussian", seed, n_obs=20_000)
    rng = np.random.default_rng(seed)
    arguments: dict[str, Any] = {
        "offset": rng.standard_normal(20_000),
        "sample_weight": rng.uniform(0.5, 1.0, 20_000),
        "known_scales": np.array([1.0, 1.4]),
        "known_biases": np.array([0.3, -0.5]),
    }
    X, y = data.X.copy(), data.y.copy()
    copies = {name: values.copy() for name, values in arguments.items()}
    fit = quiet_estimate(X, y, 2, family="gaussian", method=method, random_seed=1, **arguments)
    assert_array_equal(X, data.X)
    assert_array_equal(y, data.y)
    for name, copy in copies.items():
        assert_array_equal(arguments[name], copy)
    assert fit.scales is not None
    assert not np.shares_memory(fit.scales, arguments["known_scales"])


@pytest.mark.parametrize("method", METHODS)
def test_a_given_input_model_is_not_changed(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    model = Gaussian()
    fit_sampled(data, input_model=model, method=method)
    assert not hasattr(model, "mean_")


@pytest.mark.parametrize("method", METHODS)
def test_the_input_model_by_name_and_as_an_object(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    by_name, by_object = (
        fit_sampled(data, input_model=model, method=method) for model in ("gaussian", Gaussian())
    )
    assert_array_equal(by_name.directions, by_object.directions)


@pytest.mark.parametrize("method", METHODS)
def test_a_family_as_an_object(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    family = get_family("bernoulli", "probit")
    fit = estimate(data.X, data.y, 2, family=family, method=method, random_seed=1)
    named = fit_sampled(data, link="probit", method=method)
    assert (fit.family, fit.link) == ("bernoulli", "probit")
    assert_array_equal(fit.directions, named.directions)


@pytest.mark.parametrize("method", METHODS)
def test_groups_do_not_change_the_estimate(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        grouped = fit_sampled(data, groups=np.arange(20_000) // 4, method=method)
    assert_array_equal(grouped.directions, fit_sampled(data, method=method).directions)
    # The polish is the one step whose errors are wrong for dependent rows, and says so.
    says_so = any("`groups` is not used" in str(each.message) for each in caught)
    assert says_so == (method == "stacked")


@pytest.mark.parametrize("method", METHODS)
def test_a_fitted_input_model_is_used_as_it_is(method: Method, seed: int) -> None:
    """Rows without a response may fit it; one of another width is refused."""
    data = sampled("bernoulli", seed, n_obs=20_000)
    unlabelled = np.random.default_rng(seed).standard_normal((50_000, 5))
    model = Gaussian().fit(unlabelled)
    fit = fit_sampled(data, input_model=model, method=method, polish=False)
    given = Gaussian(model.mean_, model.covariance_)
    expected = fit_sampled(data, input_model=given, method=method, polish=False)
    assert_allclose(fit.directions, expected.directions, atol=1e-7)
    own = fit_sampled(data, method=method, polish=False)
    assert np.abs(fit.directions - own.directions).max() > 1e-6
    with pytest.raises(ValueError, match=r"`input_model` must have as many features as `X` \(4\)"):
        estimate(data.X[:, :4], data.y, 2, input_model=model, method=method)


# --- randomness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_features", [5, 24])
def test_same_seed_same_bits(n_features: int, method: Method, seed: int) -> None:
    data = simulate_mixture(20_000, n_features, 2, family="gaussian", random_seed=seed)
    first, again = (
        quiet_estimate(data.X, data.y, 2, family="gaussian", method=method, random_seed=seed)
        for _ in range(2)
    )
    assert first.directions.tobytes() == again.directions.tobytes()
    assert moment_coefficients(first).tobytes() == moment_coefficients(again).tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_numpys_global_generator_is_left_alone(method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    before = np.random.get_state()  # noqa: NPY002
    fit_sampled(data, method=method, random_seed=None)
    after = np.random.get_state()  # noqa: NPY002
    assert_array_equal(before[1], after[1])
    assert before[2:] == after[2:]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("random_seed", [3, [1, 2], np.random.default_rng(5), None])
def test_kinds_of_seeds(random_seed: Any, method: Method, seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    fit = fit_sampled(data, random_seed=random_seed, method=method)
    expected = fit_sampled(data, method=method).directions
    assert_allclose(fit.directions, expected, atol=1e-3)


# --- bad input -----------------------------------------------------------------------------------

ROWS = np.random.default_rng(0).standard_normal((200, 3))
RESPONSE = (ROWS[:, 0] > 0.0).astype(np.float64)

BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"X": np.where(ROWS > 2.0, np.nan, ROWS)}, ValueError, "`X` must be finite; got nan"),
    ({"X": ROWS[:, 0]}, ValueError, "`X` must be two-dimensional"),
    ({"X": ROWS.astype(complex)}, TypeError, "`X` must hold real numbers; got dtype complex128"),
    ({"X": np.c_[ROWS, np.ones(200)]}, ValueError, "constant columns; got 'x3'"),
    (
        {"X": pd.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1], "c": ROWS[:, 0] - ROWS[:, 1]})},
        ValueError,
        "linear relation among 'a', 'b', 'c'",
    ),
    ({"y": RESPONSE[:100]}, ValueError, r"`y` must have shape \(200,\)"),
    ({"y": np.zeros(200)}, ValueError, "`y` must vary; got 0 in all 200 rows"),
    ({"y": ROWS[:, 0]}, ValueError, "only 0 and 1 for family 'bernoulli'"),
    (
        {"n_components": 4, "method": "power"},
        IdentifiabilityError,
        r"at most the number of features \(3\).* got 4.*use method='stacked'",
    ),
    ({"n_components": 40}, IdentifiabilityError, "must be small enough for .*; got 40 for 3 f"),
    ({"n_components": 0}, ValueError, "`n_components` must be between 1 and .*; got 0"),
    ({"n_components": -2}, ValueError, "`n_components` must be between 1 and .*; got -2"),
    ({"n_components": 2.0}, TypeError, "`n_components` must be an integer; got 2.0 of type float"),
    ({"n_components": True}, TypeError, "`n_components` must be an integer; got True of type bool"),
    (
        {"n_components": "auto", "method": "power"},
        ValueError,
        "must be an integer or, with method='stacked', 'auto'; got 'auto' with method='power'",
    ),
    (
        {"n_components": "many"},
        ValueError,
        "must be an integer or, with method='stacked', 'auto'; got 'many' with method='stacked'",
    ),
    (
        {"n_components": "auto", "known_scales": 1.0, "known_biases": 0.0},
        ValueError,
        "`known_scales` and `known_biases` need an integer `n_components`; got 'auto'",
    ),
    (
        {"n_components": "auto", "X": ROWS[:6], "y": RESPONSE[:6]},
        ValueError,
        r"more than .* = 6 rows.*; got 6\. Add rows",
    ),
    (
        {"n_components": 1, "X": ROWS[:7], "y": RESPONSE[:7]},
        ValueError,
        r"`X` must have at least \d+ rows for the stacked estimate; got 7",
    ),
    ({"X": ROWS[:9], "y": RESPONSE[:9]}, ValueError, r"more than .* = 9 rows.*; got 9\. Add rows"),
    ({"family": "cauchy"}, ValueError, "`family` must be one of"),
    ({"link": "log"}, ValueError, "`link` must be one of 'logit', 'probit'"),
    ({"n_trials": 2}, ValueError, "`n_trials` must be None for family 'bernoulli'"),
    ({"family": "binomial"}, ValueError, "`n_trials`"),
    ({"sample_weight": -np.ones(200)}, ValueError, "`sample_weight` must be non-negative"),
    ({"sample_weight": np.zeros(200)}, ValueError, "`sample_weight` must be non-negative and not"),
    ({"offset": np.ones(3)}, ValueError, "`offset` must have shape"),
    ({"groups": np.r_[np.nan, np.ones(199)]}, ValueError, "`groups` must not be missing"),
    (
        {"method": "stack"},
        ValueError,
        "`method` must be one of .*'stacked', 'power', 'tensorly'.*; got 'stack'",
    ),
    (
        {"input_model": "uniform"},
        ValueError,
        "`input_model` must be 'auto', 'gaussian' or .*; got 'uniform'",
    ),
    ({"input_model": None}, ValueError, "`input_model` must be 'auto', 'gaussian' or .*; got None"),
    ({"input_model": Gaussian(np.zeros(2))}, ValueError, r"`mean` must have shape \(3,\)"),
    ({"random_seed": "x"}, ValueError, "`random_seed` must be a non-negative integer"),
    ({"random_seed": -1}, ValueError, "`random_seed` must be a non-negative integer.*; got -1"),
    ({"known_scales": 1.0}, ValueError, "`known_scales` and `known_biases` must be given together"),
    ({"known_biases": 1.0}, ValueError, "`known_scales` and `known_biases` must be given together"),
    ({"known_scales": [1.0, 0.0], "known_biases": 0.0}, ValueError, "must be positive; got 0"),
    (
        {"known_scales": [1.0, 2.0, 3.0], "known_biases": 0.0},
        ValueError,
        r"`known_scales` must be a finite number or one per component, shape \(2,\)",
    ),
    (
        {"known_scales": 1.0, "known_biases": [0.0, np.nan]},
        ValueError,
        "`known_biases` must be a finite number",
    ),
]


@pytest.mark.parametrize(("changes", "error", "match"), BAD_ARGUMENTS)
def test_bad_arguments(changes: dict[str, Any], error: type[Exception], match: str) -> None:
    arguments: dict[str, Any] = {"X": ROWS, "y": RESPONSE, "n_components": 2, "random_seed": 1}
    arguments |= changes
    with pytest.raises(error, match=match):
        estimate(**arguments)


def test_identifiability_errors_are_value_errors() -> None:
    assert issubclass(IdentifiabilityError, ValueError)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_response_that_varies_only_where_the_weight_is_zero(family: str) -> None:
    y = np.r_[np.ones(100), np.arange(100.0)]
    weights = np.r_[np.ones(100), np.zeros(100)]
    with pytest.raises(ValueError, match="`y` must vary"):
        estimate(ROWS, y, 2, family=family, sample_weight=weights, random_seed=1)
