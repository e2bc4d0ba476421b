"""Predictions and effects of draws: against the fit, by hand, and by the numbers of the rows."""

from functools import cache
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.configdefaults import config

from moment_init import EMFit, fit_em, marginal_effects, predict, predict_membership, sample
from moment_init.data.formulas import FormulaDesign
from tests.bayesian_models import FakeSampler
from tests.em_fits import make_fit
from tests.likelihood_problems import FAMILY_LINKS, VARIANTS

DRAWS = ("chain", "draw")


def still(fit: EMFit, *rows: Any, **data: Any) -> xr.DataTree:
    """The tree of a fit with two draws that are both the fit."""
    tree = fit.to_datatree(*rows, draws=2, random_seed=1, **data)
    posterior = tree["posterior"].to_dataset()
    gates: dict[str, Any] = (
        {} if fit.gate is None else {"gate": fit.gate.T, "gate_bias": fit.gate_biases}
    )
    values: dict[str, Any] = {
        "coefficient": fit.coefficients,
        "bias": fit.biases,
        "weight": fit.weights,
        **gates,
    }
    values |= {} if fit.dispersion is None else {"dispersion": fit.dispersion}
    for name, value in values.items():
        posterior[name] = posterior[name].dims, np.broadcast_to(value, posterior[name].shape)
    tree["posterior"] = posterior
    return tree


@cache
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    n = 400
    data = pd.DataFrame(
        {
            "age": rng.uniform(20.0, 60.0, n),
            "sex": rng.choice(["f", "m"], n),
            "city": rng.choice(["a", "b", "c"], n),
            "size": rng.standard_normal(n),
            "exposure": rng.uniform(0.5, 2.0, n),
        },
        index=[f"row {i}" for i in range(n)],
    )
    is_second = rng.random(n) < 1.0 / (1.0 + np.exp(-1.5 * data["size"]))
    eta = np.where(is_second, 0.2 + 0.03 * data["age"], 2.0 - 0.02 * data["age"])
    eta += np.where(data["sex"] == "m", 0.4, 0.0) + np.log(data["exposure"])
    return data.assign(y=rng.poisson(np.exp(eta)))


@cache
def by_formula() -> EMFit:
    return fit_em(
        "y ~ poly(age, 2) + sex + city | size",
        frame(),
        2,
        family="poisson",
        offset="np.log(exposure)",
        random_seed=1,
    )


@pytest.mark.parametrize("variant", ["plain", "gate"])
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_means_are_those_of_the_fit(
    family: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    """With offsets, trials and gates; by component too."""
    fitted = make_fit(family, link, rng, variant=VARIANTS[variant], n_obs=80, max_steps=3)
    extras = {k: v for k, v in fitted.block.items() if k in ("offset", "n_trials", "gating")}
    tree = still(fitted.fit)
    for kind, dims in (("mean", ("obs",)), ("components", ("obs", "component"))):
        found = predict(tree, fitted.X, kind=kind, **extras)  # type: ignore[arg-type]
        assert found.dims == (*DRAWS, *dims)
        expected = fitted.fit.predict(fitted.X, kind=kind, **extras)  # type: ignore[arg-type]
        assert_allclose(found[0, 1], expected, rtol=1e-9)


def test_replicates_have_the_means_and_groups() -> None:
    """Sums over rows within four standard errors; rows of a group share their component."""
    rng = np.random.default_rng(1)
    X, second = rng.standard_normal((60, 1)), rng.random(60) < 0.3
    fit = fit_em(X, rng.normal(np.where(second, 50.0, 0.0), 1.0), 2, family="gaussian")
    tree = fit.to_datatree(draws=800, random_seed=1)
    labels = np.repeat(np.arange(12), 5)
    drawn = predict(tree, X, kind="response", groups=labels, random_seed=2)
    assert drawn.dims == (*DRAWS, "obs")
    sums = drawn.sum("obs")
    error = sums.std() / np.sqrt(800)
    assert abs(sums.mean() - predict(tree, X).sum("obs").mean()) < 4.0 * error
    is_far = (drawn.values[0] > 25.0).reshape(800, 12, 5)
    assert set(np.unique(is_far.mean(axis=2))) == {0.0, 1.0}
    assert len(np.unique(is_far.mean(axis=(1, 2)))) > 3
    again = predict(tree, X, kind="response", groups=labels, random_seed=2)
    assert_array_equal(drawn, again)
    # groups in another order of rows: the same labels share their component
    order = rng.permutation(60)
    turned = predict(tree, X[order], kind="response", groups=labels[order], random_seed=2)
    by_label = turned.values[0] > 25.0
    for label in range(12):
        assert set(np.unique(by_label[:, labels[order] == label].mean(axis=1))) <= {0.0, 1.0}


def test_formula_reads_offset_gate_and_labels(tmp_path: Path) -> None:
    """From a file too: levels, knots and centres are those of the first data."""
    fit, data = by_formula(), frame()
    tree, new = still(fit), data.iloc[[7, 3, 11]].drop(columns="y")
    found = predict(tree, new)
    assert found["obs"].values.tolist() == ["row 7", "row 3", "row 11"]
    assert_allclose(found[0, 0], fit.predict(new), rtol=1e-9)
    tree.to_netcdf(tmp_path / "tree.nc")
    with xr.open_datatree(tmp_path / "tree.nc") as loaded:
        assert_allclose(predict(loaded, new), found, rtol=1e-12)
    # without an offset of its own: that of the formula
    assert_allclose(
        predict(tree, new, offset=np.zeros(3)), found / new["exposure"].to_numpy(), rtol=1e-9
    )
    encoded = fit.design.encode_features(new)  # type: ignore[union-attr]
    gate, offset = new[["size"]], np.log(new["exposure"])
    assert_allclose(predict(tree, encoded, gating=gate, offset=offset), found, rtol=1e-9)
    shares = predict_membership(tree, data.iloc[:4])
    assert_allclose(shares[0, 0], fit.predict_membership(data.iloc[:4]), rtol=1e-8, atol=1e-12)
    before = predict_membership(tree, new)
    means = predict(tree, new, kind="components")
    assert_allclose((before * means).sum("component"), found, rtol=1e-9)


def test_posterior_by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows keep their labels, and the encoding is there before the run: for a store."""
    fit, data = by_formula(), frame()
    monkeypatch.setattr(pm, "sample", FakeSampler(size=1e-6))
    with config.change_flags(cxx=""):
        tree = sample(
            "y ~ poly(age, 2) + sex + city | size",
            data,
            2,
            family="poisson",
            offset="np.log(exposure)",
            init=fit,
            draws=2,
            chains=1,
            random_seed=1,
        )
    assert tree["log_likelihood"]["obs"].to_numpy()[:2].tolist() == ["row 0", "row 1"]
    found = predict(tree, data)
    assert_allclose(found[0, 0], fit.predict(data), rtol=1e-3)
    assert_allclose(predict(tree), found, rtol=1e-12)  # the rows of the tree
    assert_array_equal(predict(tree)["obs"], data.index)
    assert FormulaDesign.of_encoding(tree["moment_init"].attrs["formula_encoding"])


def doubled(values: Any) -> Any:
    return 2.0 * values


def test_formula_with_a_function_of_the_caller_is_refused() -> None:
    data = frame()
    fit = fit_em("y ~ doubled(size)", data, 2, family="poisson", random_seed=1)
    tree = still(fit)
    with pytest.raises(ValueError, match=r"columns doubled\(size\).*functions of yours"):
        predict(tree, data)
    assert fit.design is not None
    encoded = fit.design.encode_features(data)
    assert_allclose(predict(tree, encoded)[0, 0], fit.predict(data), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Components")  # of fits that only have to be reproduced
def test_classes_and_several_responses() -> None:
    data = frame()
    X = data[["age", "size"]]
    fit = fit_em(X, data["city"], 2, family="categorical", random_seed=1)
    tree = still(fit)
    found = predict(tree, X.iloc[:5])
    assert found.dims == (*DRAWS, "obs", "class")
    assert found["class"].values.tolist() == ["a", "b", "c"]
    assert_allclose(found[0, 0], fit.predict(X.iloc[:5]), rtol=1e-9)
    codes = predict(tree, X, kind="response", random_seed=1)
    assert codes.dims == (*DRAWS, "obs")
    assert set(np.unique(codes)) == {0, 1, 2}
    several = data[["y", "size"]]
    joint = fit_em(data[["age"]], several, 2, family=["poisson", "gaussian"], random_seed=1)
    tree = still(joint)
    found = predict(tree, data[["age"]], kind="components")
    assert found.dims == (*DRAWS, "obs", "component", "response")
    assert found["response"].values.tolist() == ["y", "size"]
    assert_allclose(found[0, 0], joint.predict(data[["age"]], kind="components"), rtol=1e-9)
    drawn = predict(tree, data[["age"]], kind="response", random_seed=1)
    assert drawn.dims == (*DRAWS, "obs", "response")
    assert np.all(drawn.sel(response="y") == np.round(drawn.sel(response="y")))


def test_gaussian_gate(rng: np.random.Generator) -> None:
    data = frame()
    block: dict[str, Any] = {"gating": data[["size"]]}
    fit = fit_em(data[["age"]], data["y"], 2, family="poisson", gate="gaussian", **block)
    tree = fit.to_datatree(draws=400, random_seed=1)
    found, expected = predict(tree, data[["age"]], **block), fit.predict(data[["age"]], **block)
    errors = np.abs(found.mean(DRAWS) - expected) / found.std(DRAWS)
    assert float(errors.max()) < 0.5  # the mean of a curved function is off by a share of its sd


# --- effects -------------------------------------------------------------------------------------


def test_effects_are_differences_of_the_fit() -> None:
    """Slopes of numbers through all terms and the gate, contrasts of labels with the first."""
    fit, data = by_formula(), frame()
    effects = marginal_effects(still(fit), data)
    assert effects.dims == (*DRAWS, "feature")
    assert effects["feature"].values.tolist() == ["age", "sex[m]", "city[b]", "city[c]", "size"]

    def mean(**changed: Any) -> float:
        return float(np.mean(fit.predict(data.assign(**changed))))

    def slope(name: str, step: float) -> float:
        return (mean(**{name: data[name] + step}) - mean(**{name: data[name] - step})) / (2 * step)

    expected = [
        slope("age", 1e-4),
        mean(sex="m") - mean(sex="f"),
        mean(city="b") - mean(city="a"),
        mean(city="c") - mean(city="a"),
        slope("size", 1e-4),
    ]
    assert_allclose(effects[0, 0], expected, rtol=1e-5)
    chosen = marginal_effects(still(fit), data, "size")
    assert_allclose(chosen[0, 0], expected[-1:], rtol=1e-5)


def test_effects_of_numbers_that_are_labels() -> None:
    data = frame().assign(floor=np.arange(400) % 3)
    fit = fit_em("y ~ C(floor) + size", data, 2, family="poisson", random_seed=1)
    effects = marginal_effects(still(fit), data, "floor")
    assert effects["feature"].values.tolist() == ["floor[1]", "floor[2]"]
    means = [fit.predict(data.assign(floor=floor)).mean() for floor in range(3)]
    assert_allclose(effects[0, 0], np.array(means[1:]) - means[0], rtol=1e-7)


def test_effects_of_arrays_and_of_the_gate(rng: np.random.Generator) -> None:
    """An identity link without a gate: the effects are the weighted slopes of every draw."""
    fitted = make_fit("gaussian", "identity", rng, n_obs=200)
    tree = fitted.fit.to_datatree(draws=30, random_seed=1)
    effects = marginal_effects(tree, fitted.X, offset=fitted.block.get("offset"))
    posterior = tree["posterior"]
    slopes = (posterior["coefficient"] * posterior["weight"]).sum("component")
    assert_allclose(effects, slopes.transpose(*effects.dims), rtol=1e-6, atol=1e-8)
    gated = make_fit("gaussian", "identity", rng, variant=VARIANTS["gate"], n_obs=200)
    block = {k: v for k, v in gated.block.items() if k in ("offset", "gating")}
    name = gated.fit.gate_names[0]
    found = marginal_effects(still(gated.fit), gated.X, name, **block)
    moved = [block["gating"].copy() for _ in range(2)]
    column = list(gated.fit.gate_names).index(name)
    for table, step in zip(moved, (1e-4, -1e-4), strict=True):
        table.iloc[:, column] += step
    up, down = (gated.fit.predict(gated.X, **(block | {"gating": table})) for table in moved)
    assert_allclose(found[0, 0], [np.mean(up - down) / 2e-4], rtol=1e-5)
    arrays: dict[str, Any] = {k: np.asarray(v) for k, v in block.items()}
    by_position = marginal_effects(still(gated.fit), gated.X.to_numpy(), name, **arrays)
    assert_allclose(by_position, found, rtol=1e-9)


def test_effects_of_columns_that_are_named_by_numbers(rng: np.random.Generator) -> None:
    """Gating rows in another order of labels are matched by position, as in the fit."""
    gated = make_fit("gaussian", "identity", rng, variant=VARIANTS["gate"], n_obs=100)
    X = pd.DataFrame(gated.X.to_numpy())
    gate = pd.DataFrame(np.asarray(gated.block["gating"]).reshape(100, -1), np.arange(100)[::-1])
    gate.columns = [str(j) if j else 7 for j in range(gate.shape[1])]
    fit = fit_em(X, gated.y, 2, family="gaussian", gating=gate, random_seed=1)
    effects = marginal_effects(still(fit), X, gating=gate)
    assert effects["feature"].values.tolist() == [str(name) for name in X.columns]
    first = marginal_effects(still(fit), X, [0, 7], gating=gate)  # type: ignore[list-item]
    assert_allclose(first[..., 0], effects[..., 0])
    arrays = marginal_effects(still(fit), X.to_numpy(), ["0", "7"], gating=gate.to_numpy())
    assert_allclose(first, arrays, rtol=1e-9)


def test_effects_of_labels_are_relative_to_the_level_of_the_formula() -> None:
    """Also if no row has it, and if it is not the first."""
    data = frame()
    fit, rows = by_formula(), data[data["city"] != "a"]
    effects = marginal_effects(still(fit), rows, "city")
    assert effects["feature"].values.tolist() == ["city[b]", "city[c]"]
    means = {city: fit.predict(rows.assign(city=city)).mean() for city in "abc"}
    expected = [means["b"] - means["a"], means["c"] - means["a"]]
    assert_allclose(effects[0, 0], expected, rtol=1e-7)
    other = fit_em("y ~ C(city, contr.treatment('b'))", data, 1, family="poisson", random_seed=1)
    effects = marginal_effects(still(other), data)
    assert effects["feature"].values.tolist() == ["city[a]", "city[c]"]


def test_arviz_reads_effects() -> None:
    effects = marginal_effects(by_formula().to_datatree(draws=50, random_seed=1), frame())
    table = az.summary(effects, round_to="none")
    assert table.index[0] == "effect[age]"
    assert_allclose(table["mean"], effects.mean(DRAWS), rtol=1e-9)


# --- arguments -----------------------------------------------------------------------------------


def test_rows_of_the_tree_and_thinned_draws(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, n_obs=50)
    tree = fitted.fit.to_datatree(draws=10, random_seed=1)
    with pytest.raises(ValueError, match="`X` must be given if the tree has no 'X'"):
        predict(tree)
    constant: dict[str, Any] = {"X": (("obs", "feature"), fitted.X.to_numpy())}
    offset = fitted.block.get("offset")
    constant |= {} if offset is None else {"offset": ("obs", np.asarray(offset))}
    coords = {"feature": list(fitted.X.columns), "obs": 100 + np.arange(50)}
    tree["constant_data"] = xr.Dataset(constant, coords)
    found = predict(tree, draws=4)
    assert found.shape == (1, 4, 50)
    assert_array_equal(found["obs"], coords["obs"])
    assert_allclose(found, predict(tree, fitted.X, offset=offset, draws=4), rtol=1e-12)


@pytest.mark.parametrize("variant", ["plain", "both"])
def test_rows_of_the_tree_of_a_fit(variant: str, rng: np.random.Generator) -> None:
    """In the user's order, with the other data of the rows."""
    fitted = make_fit("binomial", "logit", rng, variant=VARIANTS[variant], n_obs=120, max_steps=3)
    tree = fitted.fit.to_datatree(fitted.X, fitted.y, draws=5, random_seed=1, **fitted.block)
    block = {k: v for k, v in fitted.block.items() if k in ("offset", "n_trials", "gating")}
    assert_allclose(predict(tree), predict(tree, fitted.X, **block), rtol=1e-12)
    assert_allclose(marginal_effects(tree), marginal_effects(tree, fitted.X, **block), rtol=1e-9)
    shares = predict_membership(tree, fitted.X, fitted.y, **fitted.block)
    assert_allclose(predict_membership(tree), shares, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Components")  # of fits that only have to be reproduced
def test_rows_of_the_tree_of_a_fit_by_formula_and_of_classes() -> None:
    fit, data = by_formula(), frame()
    assert_allclose(predict(still(fit, data))[0, 0], fit.predict(data), rtol=1e-9)
    X = data[["age", "size"]]
    classes = fit_em(X, data["city"], 2, family="categorical", random_seed=1)
    tree = still(classes, X, data["city"])
    assert_allclose(predict(tree)[0, 0], classes.predict(X), rtol=1e-9)
    assert_array_equal(predict(tree)["obs"], data.index)
    shares = classes.predict_membership(X, data["city"])
    assert_allclose(predict_membership(tree)[0, 0], shares, rtol=1e-8, atol=1e-12)


def test_wrong_arguments_are_named(rng: np.random.Generator) -> None:
    fit, data = by_formula(), frame()
    tree = still(fit)
    with pytest.raises(ValueError, match="`kind` must be one of 'mean', 'response', 'components'"):
        predict(tree, data, kind="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"missing are 'sex'"):
        predict(tree, data.drop(columns="sex"))
    with pytest.raises(ValueError, match="levels that the fit has seen; got 'd'"):
        predict(tree, data.assign(city="d"))
    encoded = fit.design.encode_features(data)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="`gating` must be given for a fit with a gate"):
        predict(tree, encoded)
    with pytest.raises(ValueError, match="`offset` must have shape"):
        predict(tree, encoded, gating=data[["size"]], offset=np.zeros(3))
    with pytest.raises(ValueError, match="`draws` must be a positive integer"):
        predict(tree, data, draws=0)
    with pytest.raises(ValueError, match=r"`variables` must name columns .*'income'"):
        marginal_effects(tree, data, ["income"])
    with pytest.raises(ValueError, match="`variables` must name at least one column; got none"):
        marginal_effects(tree, data, [])
    with pytest.raises(ValueError, match="got one value of 'age'"):
        marginal_effects(tree, data.assign(age=30.0), ["age"])
    plain = make_fit("poisson", "log", rng, n_obs=40).fit.to_datatree(draws=2)
    with pytest.raises(ValueError, match=r"missing are \['.*unknown are \['wage'\]"):
        predict(plain, pd.DataFrame({"wage": [1.0]}))
    with pytest.raises(TypeError, match=r"`tree` must be an xarray.DataTree"):
        predict(plain["posterior"].to_dataset(), [[1.0]])  # type: ignore[arg-type]
