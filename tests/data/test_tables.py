"""Tables of polars and pyarrow, and files mapped into memory, are accepted as arrays are."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import (
    MixtureGLMRegressor,
    estimate,
    fit_em,
    select_components,
    simulate_mixture,
)
from moment_init.data.checking import validate_data
from moment_init.em.problem import pose_em
from moment_init.models import mixture_glm

DATA = simulate_mixture(600, 2, 2, family="poisson", scales=0.7, weights=[0.6, 0.4], random_seed=2)
FRAME = pd.DataFrame(DATA.X, columns=["a", "b"])
FRAME["y"], FRAME["w"] = DATA.y.astype(int), 1.0 + np.arange(600) % 2
FRAME["g"] = np.random.default_rng(3).normal(size=600)
FRAME["label"] = np.where(FRAME["a"] + FRAME["g"] > 0.0, "yes", "no")
START = (DATA.coefficients, DATA.biases, DATA.weights)


def _polars(frame: pd.DataFrame) -> Any:
    return pl.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def _arrow(frame: pd.DataFrame) -> Any:
    return pa.Table.from_pandas(frame)


def _select(table: Any, names: list[str]) -> Any:
    return table.select(names)


def _column(table: Any, name: str) -> Any:
    return table[name]


TABLES = pytest.mark.parametrize("convert", [_polars, _arrow])


@TABLES
def test_checked_rows_are_the_same(convert: Any) -> None:
    table = convert(FRAME)
    expected = validate_data(
        FRAME[["a", "b"]],
        FRAME["y"],
        family="poisson",
        sample_weight=FRAME["w"],
        gating=FRAME[["g"]],
        offset=FRAME["w"],
    )
    found = validate_data(
        _select(table, ["a", "b"]),
        _column(table, "y"),
        family="poisson",
        sample_weight=_column(table, "w"),
        gating=_select(table, ["g"]),
        offset=_column(table, "w"),
    )
    assert found.feature_names == ("a", "b")
    assert found.gate_names == ("g",)
    for name, values in expected.columns().items():
        assert_array_equal(getattr(found, name), values)


@TABLES
def test_entry_points(convert: Any) -> None:
    table = convert(FRAME)
    X, y, gating = _select(table, ["a", "b"]), _column(table, "y"), _select(table, ["g"])
    given: dict[str, Any] = {"family": "poisson", "init": START}
    expected = fit_em(FRAME[["a", "b"]], FRAME["y"], 2, gating=FRAME[["g"]], **given)
    fit = fit_em(X, y, 2, gating=gating, **given)
    assert_array_equal(fit.coefficients, expected.coefficients)
    assert_array_equal(fit.predict(X, gating=gating), fit.predict(DATA.X, gating=FRAME[["g"]]))
    shares = fit.predict_membership(X, y, gating=gating)
    assert_allclose(shares, fit.responsibilities, atol=1e-10)
    fit.score(X, y, gating=gating)
    by_formula = fit_em("y ~ a + b", table, 2, **given)
    assert by_formula.feature_names == ("a", "b")
    assert len(by_formula.predict(table)) == 600
    moments: Any = estimate(X, y, 2, family="poisson", random_seed=1)
    again: Any = estimate(FRAME[["a", "b"]], FRAME["y"], 2, family="poisson", random_seed=1)
    assert_array_equal(moments.coefficients, again.coefficients)
    assert select_components(X, y, [1], family="poisson", random_seed=1).chosen == 1
    model = mixture_glm(X, y, 2, family="poisson", init=START)
    assert list(model.coords["feature"]) == ["a", "b"]
    regressor = MixtureGLMRegressor(n_components=1, family="poisson").fit(X, y)
    assert list(regressor.feature_names_in_) == ["a", "b"]
    labels = fit_em(X, _column(table, "label"), 1, family="categorical", random_seed=1)
    assert labels.classes is not None
    assert labels.classes.tolist() == ["no", "yes"]


def test_predictions_have_the_index_of_a_frame() -> None:
    frame = FRAME.set_index(FRAME.index[::-1] + 100)
    fit = fit_em(frame[["a", "b"]], frame["y"], 2, family="poisson", init=START)
    means = fit.predict(frame[["b", "a"]])
    assert isinstance(means, pd.Series)
    assert_array_equal(means.index, frame.index)
    assert_array_equal(means, fit.predict(DATA.X))
    assert fit.predict(frame[["a", "b"]].iloc[:0]).shape == (0,)
    parts = fit.predict(frame[["a", "b"]], kind="components")
    assert isinstance(parts, pd.DataFrame)
    assert parts.shape == (600, 2)
    several = fit_em(frame[["a", "b"]], frame[["y", "w"]], 1, family="poisson", random_seed=1)
    assert list(several.predict(frame[["a", "b"]]).columns) == ["y", "w"]
    by_formula = fit_em("y ~ a + b", frame, 1, family="poisson", random_seed=1)
    assert_array_equal(by_formula.predict(frame).index, frame.index)


def test_predictions_by_partition() -> None:
    dd = pytest.importorskip("dask.dataframe")
    frame = FRAME.set_index(FRAME.index + 100)
    fit = fit_em(frame[["a", "b"]], frame["y"], 2, family="poisson", init=START)
    lazy = dd.from_pandas(frame, npartitions=3)
    X = lazy[["a", "b"]]
    means = X.map_partitions(fit.predict)
    assert_array_equal(means.compute(), fit.predict(DATA.X))
    assert_array_equal(means.head(), fit.predict(DATA.X[:5]))
    both = lazy.assign(mean=X.map_partitions(fit.predict)).compute()
    assert_array_equal(both["mean"], fit.predict(DATA.X))
    few = lazy[lazy["a"] > lazy["a"].max() - 1e-9][["a", "b"]].map_partitions(fit.predict)
    assert len(few.compute()) == 1


def test_a_mapped_file_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "X.npy"
    np.save(path, DATA.X)
    X = np.load(path, mmap_mode="r")
    data = validate_data(X, DATA.y, family="poisson")
    assert np.shares_memory(data.X, X)
    monkeypatch.setattr("moment_init.em.problem.MAX_STORED_DOUBLES", 0)
    monkeypatch.setattr("moment_init.likelihood.rows.MAX_STORED_DOUBLES", 0)
    groups = np.arange(600) % 250
    settings: tuple[dict[str, Any], ...] = ({}, {"groups": groups})
    for given in settings:
        problem = pose_em(validate_data(X, DATA.y, family="poisson", **given), 2)
        assert np.shares_memory(problem.rows.Z, X)
        copied = pose_em(validate_data(DATA.X, DATA.y, family="poisson", **given), 2)
        lazy, held = (each.rows.take(np.array([3, 8])).Z for each in (problem, copied))
        assert_allclose(np.asarray(lazy, float), np.asarray(held, float), rtol=1e-12)
        fits = [
            fit_em(each, DATA.y, 2, family="poisson", init=START, **given) for each in (X, DATA.X)
        ]
        assert_allclose(fits[0].coefficients, fits[1].coefficients, rtol=1e-10)
        assert_allclose(fits[0].responsibilities, fits[1].responsibilities, atol=1e-10)
