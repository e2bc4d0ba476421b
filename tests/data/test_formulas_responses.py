"""Formulas with several responses, or classes, left of the tilde."""

import pickle
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.configdefaults import config

from moment_init import estimate, fit_em, predict_membership, sample
from moment_init.data.formulas import read_formula
from moment_init.models import mixture_glm
from tests.bayesian_models import FakeSampler

LABELS = np.array(["bus", "car", "train"])

QUICK: dict[str, Any] = {"init": "random", "n_starts": 2, "random_seed": 1}

fit_any: Any = fit_em
estimate_any: Any = estimate


@cache
def frame() -> pd.DataFrame:
    """Two linear responses, counts, classes, labels and a group of people."""
    rng = np.random.default_rng(6)
    X, component = rng.standard_normal((400, 2)), rng.choice(2, size=400, p=[0.7, 0.3])
    slopes = rng.standard_normal((2, 2, 2))  # (n_components, n_features, n_responses)
    linear = np.einsum("ik,ika->ia", X, slopes[component]) + 0.3 * rng.standard_normal((400, 2))
    codes = rng.integers(3, size=400)
    return pd.DataFrame(
        {
            "age": 40.0 + 10.0 * X[:, 0],
            "income": X[:, 1],
            "sex": np.array(["f", "m"])[rng.integers(2, size=400)],
            "years": rng.uniform(1.0, 3.0, 400),
            "spent": linear[:, 0],
            "saved": linear[:, 1],
            "visits": rng.poisson(2.0, 400),
            "mode": LABELS[codes],
            "code": np.array([2, 10, 100])[codes],
            "often": np.array(["no", "yes"])[rng.integers(2, size=400)],
        }
    )


def test_responses_are_terms_of_a_sum() -> None:
    """The same fit as that of the columns, and of names the same, too."""
    data = frame()
    fit = fit_any("spent + saved ~ center(age) + income + sex", data, 2, **QUICK)
    X = pd.DataFrame(
        {
            "center(age)": data["age"] - data["age"].mean(),
            "income": data["income"],
            "sex[T.m]": (data["sex"] == "m").astype(float),
        }
    )
    plain = fit_any(X, data[["spent", "saved"]], 2, family="gaussian", **QUICK)
    assert fit.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-8)
    assert fit.response_names == ("spent", "saved")
    assert fit.feature_names == tuple(X.columns)
    assert (fit.family, fit.link) == ("gaussian", "identity")
    assert_allclose(fit.coefficients, plain.coefficients, rtol=1e-6)
    named = fit_any(
        "spent + saved ~ center(age) + income + sex", data, 2, family="gaussian", **QUICK
    )
    assert named.log_likelihood == fit.log_likelihood


def test_new_rows_are_read_as_the_first() -> None:
    data = frame()
    fit = fit_any("spent + saved ~ center(age) + sex", data, 2, offset="np.log(years)", **QUICK)
    new = data.iloc[:7]
    encoded = fit.design.rows(new)
    assert list(encoded["y"].columns) == ["spent", "saved"]
    restored = pickle.loads(pickle.dumps(fit))
    # centres and levels are those of all rows, the response and the offset are found
    assert_array_equal(restored.predict(new), fit.predict(data)[:7])
    assert_allclose(fit.predict_membership(new), fit.responsibilities[:7])
    assert_array_equal(fit.predict_membership(new), fit.predict_membership(**encoded))
    assert fit.score(data) == pytest.approx(fit.log_likelihood / 400)
    shifted = fit.predict(new, offset=np.zeros(7))
    assert_allclose(fit.predict(new) - shifted, np.log(new["years"]).to_numpy()[:, None] @ [[1, 1]])
    tree = fit.to_datatree(data, draws=3, random_seed=1)
    assert tree["moment_init"].attrs["formula"] == "spent + saved ~ center(age) + sex"
    assert tree["log_likelihood"]["y"].shape == (1, 3, 400)
    found = predict_membership(tree, **encoded)
    assert found.shape == (1, 3, 7, 2)


def test_each_response_chooses_its_family() -> None:
    data = frame()
    fit = fit_any("spent + visits ~ age", data, 1, **QUICK)
    assert (fit.family, fit.link) == ("gaussian, poisson", "identity, log")
    named = fit_any("spent + visits ~ age", data, 1, family=["gaussian", "poisson"], **QUICK)
    assert named.log_likelihood == fit.log_likelihood
    both = fit_any("visits + np.exp(spent) ~ age", data, 1, link="log", **QUICK)
    assert (both.family, both.link) == ("poisson, gamma", "log")


def test_braces_add_numbers() -> None:
    fit = fit_any("{spent + saved} ~ age", frame(), 1, **QUICK)
    assert fit.coefficients.shape == (1, 1)


@pytest.mark.parametrize(("column", "labels"), [("mode", LABELS), ("code", [2, 10, 100])])
def test_classes_by_name(column: str, labels: Any) -> None:
    data = frame()
    fit = fit_any(f"{column} ~ age + sex", data, 1, family="categorical", **QUICK)
    assert fit.outcome_names == tuple(map(str, labels))
    plain = fit_any(
        fit.design.encode_features(data), data[column], 1, family="categorical", **QUICK
    )
    assert fit.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-8)
    assert fit.score(data) == pytest.approx(fit.log_likelihood / 400)
    with pytest.raises(ValueError, match="`y` must have labels among"):
        fit.score(data.assign(**{column: data[column].replace(labels[0], labels[0] * 7)}))


def test_gates_and_groups_by_name() -> None:
    """The same fits as those of the arrays."""
    data = frame().assign(person=np.arange(400) // 4)
    fit = fit_any("spent + saved ~ age | income", data, 2, **QUICK)
    X, y = data[["age"]], data[["spent", "saved"]]
    plain = fit_any(X, y, 2, family="gaussian", gating=data[["income"]], **QUICK)
    assert fit.gate_names == ("income",)
    assert fit.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-8)
    assert_allclose(fit.predict(data.iloc[:5]), plain.predict(X, gating=data[["income"]])[:5])
    with pytest.warns(UserWarning, match="coincide"):  # the modes do not depend on age
        fit = fit_any("mode ~ age", data, 2, family="categorical", groups="person", **QUICK)
    with pytest.warns(UserWarning, match="coincide"):
        plain = fit_any(X, data["mode"], 2, family="categorical", groups=data["person"], **QUICK)
    assert fit.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-8)


def test_estimate_by_formula() -> None:
    data = frame()
    found = estimate_any("spent + saved ~ age + income", data, 2, random_seed=1)
    plain = estimate_any(
        data[["age", "income"]], data[["spent", "saved"]], 2, family="gaussian", random_seed=1
    )
    assert_allclose(found.scales, plain.scales, rtol=1e-6)
    assert found.design.formula == "spent + saved ~ age + income"


def test_posterior_and_model_by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    data = frame()
    fit = fit_any("spent + saved ~ age + income", data, 2, **QUICK)
    monkeypatch.setattr(pm, "sample", FakeSampler())
    with config.change_flags(cxx=""):
        tree = sample("spent + saved ~ age + income", data, 2, init=fit, draws=3, chains=1)
        model: Any = mixture_glm("spent + saved ~ age + income", data, 2, init=fit)
    assert tree["moment_init"].attrs["formula"] == "spent + saved ~ age + income"
    assert tree["posterior"]["response"].to_numpy().tolist() == ["spent", "saved"]
    assert_array_equal(tree["observed_data"]["y"], data[["spent", "saved"]])
    assert tuple(model.coords["response"]) == ("spent", "saved")
    own = predict_membership(tree, average=True)
    new = predict_membership(tree, average=True, **fit.design.rows(data.iloc[:5]))
    assert_allclose(own[:5], new)


def test_what_is_refused() -> None:
    data = frame()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("spent + often ~ age", {}, "labels among several responses"),
        ("mode ~ age", {}, "3 levels. Use family='categorical'"),
        ("spent + mode ~ age", {"family": "categorical"}, "one column of labels left of '~'"),
        ("{mode.str[:1]} ~ age", {"family": "categorical"}, "one column of labels left of '~'"),
        ("C(mode.str[:1]) ~ age", {"family": "categorical"}, "one column of labels left of '~'"),
        ("spent + saved ~ age", {"family": ["gaussian"]}, "one for each of the 2 responses"),
        ("spent ~ age", {"family": ["gaussian"] * 2}, "`y` must have a column for each response"),
    ]
    for formula, options, message in wrong:
        with pytest.raises(ValueError, match=message):
            fit_any(formula, data, 2, **{**QUICK, **options})
    fit = fit_any("spent + saved ~ age", data, 1, **QUICK)
    with pytest.raises(ValueError, match="must have the response if `y` is not given"):
        fit.score(data.drop(columns="saved"))
    arrays = fit_any(data[["age"]], data[["spent", "saved"]], 1, family="gaussian", **QUICK)
    with pytest.raises(ValueError, match="`y` must be given, unless the fit used a formula"):
        arrays.score(data[["age"]])


def test_a_design_reads_classes() -> None:
    design = read_formula("mode ~ age", frame(), has_classes=True)
    assert design.response_levels is None
    assert set(design.rows(frame())["y"]) == set(LABELS)
