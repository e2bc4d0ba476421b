"""Formulas in the place of X and y: the same fits, predictions from frames, what is refused."""

import copy
import inspect
import pickle
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

from moment_init import (
    ConvergenceWarning,
    EMFit,
    WeakSignalWarning,
    estimate,
    fit_em,
    predict_membership,
    sample,
    select_components,
)
from moment_init.data.formulas import read_formula, takes_formula
from moment_init.models import mixture_glm, mixture_of_experts
from tests.bayesian_models import COMPILE, FakeSampler
from tests.comparison.laplace_sampler import compare_quickly

N_OBS = 600
FORMULA = "visits ~ center(age) + gender | income"
BLOCK: dict[str, Any] = {"family": "poisson", "random_seed": 1}


@cache
def frame() -> pd.DataFrame:
    """Visits of two kinds of people: one goes more often with age, the other less."""
    rng = np.random.default_rng(20240229)
    table = pd.DataFrame(
        {
            "age": rng.normal(50.0, 10.0, N_OBS),
            "income": rng.normal(0.0, 1.0, N_OBS),
            "gender": rng.choice(["female", "male"], N_OBS),
            "days": rng.uniform(1.0, 3.0, N_OBS),
            "person": np.arange(N_OBS) // 2,
        }
    )
    is_first = rng.random(N_OBS) < 1 / (1 + np.exp(-2 * table["income"]))
    slope = np.where(is_first, 0.06, -0.06)
    eta = 1.0 + slope * (table["age"] - 50) + 0.5 * (table["gender"] == "male")
    table["visits"] = rng.poisson(table["days"] * np.exp(eta))
    table["often"] = np.where(table["visits"] > 5, "yes", "no")
    return table


@cache
def inputs() -> pd.DataFrame:
    """What the formula should make of the frame."""
    table = frame()
    return pd.DataFrame(
        {
            "center(age)": table["age"] - table["age"].mean(),
            "gender[T.male]": (table["gender"] == "male").astype(float),
        }
    )


@cache
def by_formula() -> EMFit:
    return fit_em(FORMULA, frame(), 2, offset="np.log(days)", **BLOCK)


@cache
def by_arrays() -> EMFit:
    table = frame()
    offset = np.log(table["days"])
    return fit_em(inputs(), table["visits"], 2, offset=offset, gating=table[["income"]], **BLOCK)


# --- the same fits -------------------------------------------------------------------------------


def test_fit_is_that_of_the_encoded_columns() -> None:
    fit, other = by_formula(), by_arrays()
    assert fit.feature_names == ("center(age)", "gender[T.male]")
    assert fit.gate_names == ("income",)
    assert fit.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-10)
    assert_allclose(fit.coefficients, other.coefficients, rtol=1e-8)
    assert other.design is None
    assert fit.design is not None
    assert fit.design.formula == FORMULA


def linear_frame() -> pd.DataFrame:
    """One gaussian regression, of which `estimate` finds nothing to warn."""
    rng = np.random.default_rng(7)
    table = frame()[["age", "income", "gender"]]
    noise = rng.normal(0.0, 0.5, N_OBS)
    return table.assign(cost=0.1 * table["age"] - table["income"] + noise)


def test_estimate_is_that_of_the_encoded_columns() -> None:
    table = linear_frame()
    X = pd.DataFrame({"center(age)": table["age"] - table["age"].mean(), "income": table["income"]})
    shifted: dict[str, Any] = {"X_unlabelled": X.assign(**{"center(age)": X["center(age)"] + 1.0})}
    unlabelled: dict[str, Any] = {"X_unlabelled": table.assign(age=table["age"] + 1.0)}
    arguments: dict[str, Any] = {
        "family": "gaussian",
        "input_model": "gaussian",
        "polish": False,
        "random_seed": 1,
    }
    found = estimate("cost ~ center(age) + income", table, 1, **unlabelled, **arguments)
    other = estimate(X, table["cost"], 1, **shifted, **arguments)
    assert found.feature_names == ("center(age)", "income")
    assert_allclose(found.directions, other.directions, rtol=1e-8)
    assert found.design is not None


def test_estimate_sets_coded_columns_apart() -> None:
    table = linear_frame()
    with pytest.warns(WeakSignalWarning, match=r"no score function: gender\[T\.male\]") as caught:
        found = estimate("cost ~ age + income + gender", table, 1, family="gaussian", random_seed=1)
    assert found.feature_names == ("age", "income", "gender[T.male]")
    assert caught[0].filename == __file__


def test_arrays_and_names_of_columns_go_together() -> None:
    offset = np.log(frame()["days"].to_numpy())
    fit = fit_em(FORMULA, frame(), 2, offset=offset, **BLOCK)
    assert fit.log_likelihood == pytest.approx(by_formula().log_likelihood, rel=1e-10)
    assert fit.design is not None
    assert fit.design.row_parts == {}


def test_gate_may_be_an_argument() -> None:
    formula = "visits ~ center(age) + gender"
    for gating in ("income", frame()[["income"]]):
        fit = fit_em(formula, frame(), 2, offset="np.log(days)", gating=gating, **BLOCK)
        assert fit.log_likelihood == pytest.approx(by_formula().log_likelihood, rel=1e-10)


def test_groups_weights_and_trials_are_columns() -> None:
    table = frame().assign(successes=lambda t: np.minimum(t["visits"], 9), trials=9, weight=1.0)
    arguments: dict[str, Any] = {"family": "binomial", "random_seed": 1}
    fit = fit_em(
        "successes ~ age", table, 1, groups="person", n_trials="trials", sample_weight="weight",
        **arguments,
    )  # fmt: skip
    y = table["successes"]
    other = fit_em(table[["age"]], y, 1, groups=table["person"], n_trials=9, **arguments)
    assert fit.n_units == N_OBS / 2
    assert fit.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-10)
    assert fit.score(table) == pytest.approx(fit.log_likelihood / fit.n_units, rel=1e-10)


def test_shared_terms_are_their_columns() -> None:
    table = frame().assign(region=np.array(["north", "south", "west"])[np.arange(N_OBS) % 3])
    formula = "visits ~ age + region"
    fit = fit_em(formula, table, 2, shared=["region", "bias"], **BLOCK)
    assert_allclose(fit.coefficients[1:, 0], fit.coefficients[1:, 1], rtol=1e-12)
    assert abs(fit.coefficients[0, 0] - fit.coefficients[0, 1]) > 0.01
    assert fit.biases[0] == pytest.approx(fit.biases[1], rel=1e-12)
    by_word = fit_em(formula, table, 2, shared="region", init=fit, **BLOCK)
    assert_allclose(by_word.coefficients[1:, 0], by_word.coefficients[1:, 1], rtol=1e-12)
    by_index = fit_em(formula, table, 2, shared=0, init=fit, **BLOCK)
    assert by_index.coefficients[0, 0] == pytest.approx(by_index.coefficients[0, 1], rel=1e-12)


def test_labels_are_zero_and_one() -> None:
    table = frame()
    fit = fit_em("often ~ age", table, 1, random_seed=1)
    other = fit_em(table[["age"]], table["visits"] > 5, 1, random_seed=1)
    assert_allclose(fit.coefficients, other.coefficients, rtol=1e-8)
    assert fit.design is not None
    assert fit.design.response_levels == ("no", "yes")
    assert fit.to_datatree(draws=5)["moment_init"].attrs["response_levels"] == "no = 0, yes = 1"


def test_names_of_the_caller_are_found_and_kept() -> None:
    def halved(values: Any) -> Any:
        return values / factor

    factor = 2.0
    fit = fit_em("visits ~ halved(age)", frame(), 1, **BLOCK)
    whole = fit_em("visits ~ age", frame(), 1, **BLOCK)
    assert_allclose(fit.coefficients, 2.0 * whole.coefficients, rtol=1e-6)
    assert_allclose(fit.predict(frame().head()), whole.predict(frame().head()), rtol=1e-6)


# --- predictions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["as it is", "pickled", "copied"])
def test_predictions_read_new_frames(way: str) -> None:
    ways: dict[str, Any] = {
        "as it is": lambda fit: fit,
        "pickled": lambda fit: pickle.loads(pickle.dumps(fit)),
        "copied": copy.deepcopy,
    }
    fit = ways[way](by_formula())
    new = frame().iloc[3:8]
    rows = {"offset": np.log(new["days"]), "gating": new[["income"]]}
    X = inputs().iloc[3:8]
    without_response = new.drop(columns="visits")
    assert_allclose(fit.predict(without_response), by_arrays().predict(X, **rows), rtol=1e-6)
    assert_allclose(
        fit.predict(without_response, kind="components"),
        by_arrays().predict(X, kind="components", **rows),
        rtol=1e-6,
    )
    expected = by_arrays().predict_membership(X, new["visits"], **rows)
    assert_allclose(fit.predict_membership(new), expected, rtol=1e-5)
    assert_allclose(fit.predict_membership(without_response, new["visits"]), expected, rtol=1e-5)
    assert fit.score(new) == pytest.approx(by_arrays().score(X, new["visits"], **rows))


def test_what_is_given_comes_before_what_is_read() -> None:
    fit, new = by_formula(), frame().iloc[:4]
    without = fit.predict(new.drop(columns="days"), offset=np.zeros(4))
    assert_allclose(fit.predict(new), without * new["days"], rtol=1e-12)


def test_encoded_rows_are_taken_as_they_are() -> None:
    fit = by_formula()
    rows = {"offset": np.log(frame()["days"]), "gating": frame()[["income"]]}
    expected = fit.predict(frame())
    assert_allclose(fit.predict(inputs(), **rows), expected, rtol=1e-12)
    assert_allclose(fit.predict(inputs().to_numpy(), **rows), expected, rtol=1e-12)


def test_datatree_has_log_likelihoods_and_the_formula() -> None:
    tree = by_formula().to_datatree(frame(), draws=5, random_seed=1)
    assert tree["log_likelihood"]["y"].shape == (1, 5, N_OBS)
    attrs = tree["moment_init"].attrs
    assert attrs["formula"] == FORMULA
    assert attrs["formula_offset"] == "np.log(days)"
    assert list(tree["posterior"]["feature"].to_numpy()) == ["center(age)", "gender[T.male]"]


def test_fit_of_arrays_still_needs_a_response() -> None:
    rows = {"gating": frame()[["income"]]}
    for method in (by_arrays().predict_membership, by_arrays().score):
        with pytest.raises(ValueError, match="`y` must be given, unless the fit used a formula"):
            method(inputs(), **rows)


def test_new_rows_that_do_not_fit_are_refused() -> None:
    fit, new = by_formula(), frame().head()
    with pytest.raises(ValueError, match="got 'child' in column 'gender'"):
        fit.predict(new.assign(gender="child"))
    with pytest.raises(ValueError, match=r"`offset` came from; missing are 'days'"):
        fit.predict(new.drop(columns="days"))
    with pytest.raises(ValueError, match=r"5 of 5 rows: income \(5\)"):
        fit.predict(new.assign(income=np.nan))
    with pytest.raises(ValueError, match="must have the response if `y` is not given"):
        fit.score(new.drop(columns="visits"))


# --- other entry points --------------------------------------------------------------------------


def test_selection_keeps_the_design_with_its_fit() -> None:
    choice = select_components(
        FORMULA, frame(), [1, 2], criterion="cv", n_folds=2, offset="np.log(days)", **BLOCK
    )
    assert choice.fit.design is not None
    assert choice.fit.predict(frame().head(2)).shape == (2,)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSampler:
    sampler = FakeSampler()
    monkeypatch.setattr(pm, "sample", sampler)
    return sampler


def sampled(**arguments: Any) -> xr.DataTree:
    given = {"draws": 4, "chains": 2, "compile_kwargs": COMPILE, **BLOCK, **arguments}
    return sample(FORMULA, frame(), 2, offset="np.log(days)", init=by_formula(), **given)


def test_posterior_has_the_names_of_the_formula(fake: FakeSampler, tmp_path: Path) -> None:
    tree = sampled()
    posterior = tree["posterior"]
    assert list(posterior["feature"].to_numpy()) == ["center(age)", "gender[T.male]"]
    assert list(posterior["gate_feature"].to_numpy()) == ["income"]
    assert_allclose(tree["constant_data"]["offset"], np.log(frame()["days"]), rtol=1e-12)
    assert tree["moment_init"].attrs["formula"] == FORMULA
    tree.to_netcdf(tmp_path / "tree.nc")
    assert len(fake.calls) == 1


@pytest.mark.usefixtures("fake")
def test_draws_tell_the_membership_of_new_rows() -> None:
    tree, new = sampled(), frame().iloc[:6]
    design = read_formula(FORMULA, frame(), offset="np.log(days)")
    found = predict_membership(tree, **design.rows(new), average=True)
    whole = predict_membership(tree, average=True)
    assert_allclose(found, whole[:6], rtol=1e-10)


def test_models_take_formulas() -> None:
    plain = mixture_glm("visits ~ center(age) + gender", frame(), 2, init="tensor", **BLOCK)
    assert list(plain.coords["feature"]) == ["center(age)", "gender[T.male]"]
    assert "gate_feature" not in plain.coords
    gated = mixture_of_experts(FORMULA, frame(), 2, init=by_formula(), family="poisson")
    assert list(gated.coords["gate_feature"]) == ["income"]
    alone = mixture_of_experts("visits ~ age", frame(), 2, **BLOCK)
    assert list(alone.coords["gate_feature"]) == ["age"]


def test_comparison_takes_formulas() -> None:
    found = compare_quickly("visits ~ center(age) + gender", frame(), 2, family="poisson")
    assert {tree["moment_init"].attrs["formula"] for tree in found.trees.values()} == {
        "visits ~ center(age) + gender"
    }
    tree = next(iter(found.trees.values()))
    assert list(tree["posterior"]["feature"].to_numpy()) == ["center(age)", "gender[T.male]"]


# --- what is refused -----------------------------------------------------------------------------


def test_estimate_takes_no_gate() -> None:
    message = (
        r"formula without a bar for `estimate`; got .* Moments do not identify a gate. .* use "
        r"`fit_em` or `sample`"
    )
    with pytest.raises(ValueError, match=message):
        estimate("visits ~ age | income", frame(), 2, family="poisson")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((frame(), "visits ~ age", 2), TypeError, r"`y` must hold numbers; got 'visits ~ age'"),
        (("visits ~ age", frame().to_numpy(), 2), TypeError, r"`y` must be a pandas\.DataFrame"),
        (("visits ~ 0 + age", frame(), 2), ValueError, "formula with an intercept"),
        (("visits ~ aeg", frame(), 2), ValueError, "Did you mean 'age'"),
        (("visits ~ age",), TypeError, "missing a required argument: 'y'"),
    ],
)
def test_wrong_calls_are_refused(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fit_em(*arguments, family="poisson")


@pytest.mark.parametrize("family", ["poisson", "gaussian", "gamma", "binomial"])
def test_labels_are_refused_for_families_of_numbers(family: str) -> None:
    with pytest.raises(ValueError, match=f"of numbers for family '{family}'; got labels, 'no' and"):
        fit_em("often ~ age", frame(), 2, family=family)


def test_two_places_for_a_gate_are_refused() -> None:
    for gating in ("age", frame()[["age"]]):
        with pytest.raises(ValueError, match="`gating` must be None with a formula that has a bar"):
            fit_em(FORMULA, frame(), 2, gating=gating, **BLOCK)


def test_family_is_that_of_the_response_unless_it_is_named() -> None:
    """The call as a user writes it: counts, a gate of a category, nothing else."""
    fit = fit_em("visits ~ age + income | gender", frame(), 2)
    assert (fit.family, fit.link) == ("poisson", "log")
    assert fit.feature_names == ("age", "income")
    assert fit.gate_names == ("gender[T.male]",)
    named = fit_em("visits ~ age + income | gender", frame(), 2, family="poisson")
    assert_allclose(fit.log_likelihood, named.log_likelihood, rtol=1e-8)
    posterior = fit.to_datatree()["posterior"].to_dataset()
    assert posterior["feature"].to_numpy().tolist() == ["age", "income"]
    assert posterior["gate_feature"].to_numpy().tolist() == ["gender[T.male]"]


@pytest.mark.parametrize(
    ("left", "arguments", "family"),
    [
        ("often", {}, "bernoulli"),
        ("{visits > 5}", {"link": "probit"}, "bernoulli"),
        ("visits", {}, "poisson"),
        ("{visits % 4}", {"n_trials": "visits * 0 + 4"}, "binomial"),
        ("days", {}, "gaussian"),
        ("days", {"link": "log"}, "gamma"),
        ("visits", {"family": "negative_binomial"}, "negative_binomial"),
    ],
)
def test_family_follows_the_values(left: str, arguments: dict[str, Any], family: str) -> None:
    @takes_formula
    def echo(
        X: Any, y: Any, *, family: Any = "bernoulli", link: Any = None, n_trials: Any = None
    ) -> Any:
        return family

    assert echo(f"{left} ~ age", frame(), **arguments) == family


# --- the decorator -------------------------------------------------------------------------------


def test_functions_keep_their_signature() -> None:
    for function in (estimate, fit_em, sample, select_components, mixture_glm):
        names = list(inspect.signature(function).parameters)
        assert names[:2] == ["X", "y"]
        assert function.__doc__
        assert "formula" in function.__doc__


def test_arrays_pass_untouched() -> None:
    @takes_formula
    def echo(X: Any, y: Any, *, family: str = "bernoulli", link: Any = None) -> tuple[Any, Any]:
        return X, y

    X, y = np.zeros((2, 1)), np.zeros(2)
    assert echo(X, y)[0] is X
    assert echo(X=X, y=y)[1] is y
    encoded, response = echo(X="often ~ age", y=frame())
    assert list(encoded.columns) == ["age"]
    assert set(response) == {0.0, 1.0}


def test_warnings_point_at_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_em("visits ~ age", frame(), 2, max_iter=1, init="random", n_starts=1, **BLOCK)
    assert [w.filename for w in caught if w.category is ConvergenceWarning] == [__file__]


def test_formulaic_is_imported_only_for_formulas() -> None:
    code = "import sys, moment_init; print('formulaic' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
