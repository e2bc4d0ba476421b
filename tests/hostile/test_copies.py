"""Results can be pickled and copied: equal, and of the same use."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_array_equal

from moment_init import (
    MixtureGLMClassifier,
    MixtureGLMRegressor,
    compare,
    estimate,
    fit_em,
    select_components,
    simulate_mixture,
)
from moment_init.data.formulas import read_formula
from moment_init.scores import Gaussian, GaussianMixture, Independent, ScoreMatching, StudentT
from tests.hostile.posteriors import compare_without_compiler

COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "oldest pickle": lambda value: pickle.loads(pickle.dumps(value, protocol=2)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}

DATA = simulate_mixture(400, 3, 2, family="poisson", scales=0.6, random_seed=3)
FRAME = pd.DataFrame(DATA.X, columns=["größe", "b", "c"]).assign(visits=DATA.y)
NEW = simulate_mixture(20, 3, 2, family="poisson", random_seed=2)
BLOCK: dict[str, Any] = {"family": "poisson", "random_seed": 1}


def assert_same(first: Any, second: Any, where: str = "result") -> None:
    """All fields of two results are equal, to the last bit."""
    assert type(first) is type(second), where
    if isinstance(first, np.ndarray):
        assert_array_equal(first, second, err_msg=where)
    elif isinstance(first, xr.DataTree):
        assert first.identical(second), where
    elif isinstance(first, pd.DataFrame | pd.Series):
        assert first.equals(second), where
    elif isinstance(first, dict):
        assert list(first) == list(second), where
        for key in first:
            assert_same(first[key], second[key], f"{where}[{key!r}]")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), where
        for index, pair in enumerate(zip(first, second, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    elif is_dataclass(first):
        for field in fields(first):
            own, other = getattr(first, field.name), getattr(second, field.name)
            assert_same(own, other, f"{where}.{field.name}")
    elif isinstance(first, Enum | int | float | str | bytes | None):
        assert first == second or first != first, where
    elif hasattr(first, "__dict__") and type(first).__module__.startswith("moment_init"):
        assert_same(vars(first), vars(second), where)


@cache
def results() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Results by name, each with a use of it."""
    design = read_formula("visits ~ größe + b", FRAME)
    by_formula = fit_em("visits ~ größe + b", FRAME, 2, **BLOCK)
    gated = fit_em(DATA.X, DATA.y, 2, gating=DATA.X[:, 0], init="random", n_starts=1,
                   progressbar=False, **BLOCK)  # fmt: skip
    regressor = MixtureGLMRegressor(2, family="poisson", random_state=1).fit(DATA.X, DATA.y)
    classifier = MixtureGLMClassifier(2, random_state=1).fit(DATA.X, np.minimum(DATA.y, 2))
    predict = lambda fit: fit.predict(NEW.X)  # noqa: E731
    return {
        "MixtureData": (DATA, lambda data: data.to_frame()),
        "MomentEstimate": (
            estimate(DATA.X, DATA.y, 2, **BLOCK),
            lambda found: found.coefficients,
        ),
        "EMFit": (fit_em(DATA.X, DATA.y, 2, **BLOCK), predict),
        "EMFit with a gate": (gated, lambda fit: fit.predict(NEW.X, gating=NEW.X[:, 0])),
        "EMFit by a formula": (by_formula, lambda fit: fit.predict(FRAME)),
        "FormulaDesign": (design, lambda it: it.encode_features(FRAME)),
        "ComponentChoice": (
            select_components(DATA.X, DATA.y, [1, 2], init="random", n_starts=1,
                              progressbar=False, **BLOCK),
            lambda choice: choice.fit.predict(NEW.X),
        ),
        "MixtureGLMRegressor": (regressor, predict),
        "MixtureGLMClassifier": (classifier, lambda fit: fit.predict_proba(NEW.X)),
        **{
            type(model).__name__: (model.fit(DATA.X), lambda it: it.score(NEW.X, 2))
            for model in (
                Gaussian(),
                GaussianMixture(2, random_seed=1),
                StudentT(),
                Independent(),
                ScoreMatching(5, random_seed=1),
            )
        },
    }  # fmt: skip


NAMES = ("MixtureData", "MomentEstimate", "EMFit", "EMFit with a gate", "EMFit by a formula",
         "FormulaDesign", "ComponentChoice", "MixtureGLMRegressor", "MixtureGLMClassifier",
         "Gaussian", "GaussianMixture", "StudentT", "Independent", "ScoreMatching")  # fmt: skip


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")
def test_copy_is_equal_and_of_use(name: str, kind: str) -> None:
    result, use = results()[name]
    copied = COPIES[kind](result)
    assert copied is not result
    assert_same(copied, result)
    assert_same(np.asarray(use(copied)), np.asarray(use(result)))
    if kind != "copy":  # nothing is shared
        before = np.array(use(result))
        for value in _arrays(copied):
            if value.flags.writeable and value.dtype.kind == "f":
                value[...] = 0.0
        assert_same(np.asarray(use(result)), before)


def _arrays(value: Any) -> list[Any]:
    """Arrays that a result holds itself."""
    names = [field.name for field in fields(value)] if is_dataclass(value) else list(vars(value))
    return [it for it in (getattr(value, name) for name in names) if isinstance(it, np.ndarray)]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_copy_of_a_comparison() -> None:
    found = compare_without_compiler(
        DATA.X[:120], DATA.y[:120], 2, n_starts=1, draws=4, chains=2, progressbar=False, **BLOCK
    )
    assert callable(compare)
    for kind in ("pickle", "deepcopy"):
        copied = COPIES[kind](found)
        assert_same(copied.table, found.table)
        assert list(copied.trees) == list(found.trees)
        for name, tree in found.trees.items():
            assert copied.trees[name].identical(tree)
        assert repr(copied) == repr(found)
        assert_same(copied.verdict, found.verdict)
