"""Membership probabilities from the draws of a tree."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import special, stats

from moment_init import fit_em
from moment_init.data import blocks
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.posterior.alignment import align_components
from moment_init.posterior.prediction import predict_membership
from tests.em_fits import GATE_NAMES, NAMES, Fitted, make_fit
from tests.likelihood_problems import (
    BOTH,
    FAMILY_LINKS,
    GATED,
    VARIANTS,
    Problem,
    joint_by_hand,
    make_problem,
    nearby,
)

FloatArray = NDArray[np.float64]

CHAINS, DRAWS = 2, 3


def tree_of(problem: Problem, draws: list[MixtureParameters]) -> xr.DataTree:
    """Draws in two chains; the coding of the gate's logits does not matter."""

    def variable(values: list[Any], *dims: str) -> tuple[tuple[str, ...], FloatArray]:
        array = np.stack(values).reshape((CHAINS, -1, *np.shape(values[0])))
        return ("chain", "draw", *dims), array

    posterior = xr.Dataset(
        {
            "coefficient": variable([p.coefficients for p in draws], "feature", "component"),
            "bias": variable([p.biases for p in draws], "component"),
            "weight": variable([p.weights for p in draws], "component"),
        },
        {"feature": ["a", "b", "c"], "component": ["one", "two"], "chain": [0, 1]},
    )
    if draws[0].dispersion is not None:
        posterior["dispersion"] = variable([p.dispersion for p in draws], "component")
    gates = [p.gate for p in draws if p.gate is not None]
    if gates:
        slopes = variable([gate.T for gate in gates], "component", "gate_feature")
        posterior["gate"] = slopes
        posterior["gate_bias"] = variable([np.log(p.weights) + 3.0 for p in draws], "component")
        posterior["weight"] = posterior["weight"] * np.nan  # not to be read
    own = xr.Dataset(attrs={"family": problem.family.name, "link": problem.family.link.name})
    return xr.DataTree.from_dict({"posterior": posterior, "moment_init": own})


def block_of(problem: Problem) -> dict[str, Any]:
    rows = problem.rows
    block: dict[str, Any] = {"offset": rows.offset, "n_trials": rows.n_trials, "gating": rows.gate}
    if rows.group_starts is not None:
        starts = np.zeros(rows.n_obs, dtype=np.intp)
        starts[rows.group_starts] = 1
        block |= {"groups": 10 + np.cumsum(starts), "sample_weight": rows.sample_weight}
    return block


def make_case(
    family: str, link: str, variant: str, rng: np.random.Generator, n_obs: int = 40
) -> tuple[Problem, xr.DataTree, FloatArray]:
    """A problem, draws near its truth, and Bayes' rule by plain loops."""
    problem = make_problem(family, link, rng, n_obs=n_obs, variant=VARIANTS[variant])
    draws = [nearby(problem, rng) for _ in range(CHAINS * DRAWS)]
    joints = [joint_by_hand(problem.family, problem.rows, at) for at in draws]
    shares = special.softmax(np.stack(joints), axis=-1)
    expected = shares.reshape(CHAINS, DRAWS, *shares.shape[1:])
    return problem, tree_of(problem, draws), expected


@pytest.fixture
def case(rng: np.random.Generator) -> tuple[Problem, xr.DataTree, FloatArray]:
    return make_case("poisson", "log", "plain", rng)


@pytest.fixture
def gated(rng: np.random.Generator) -> tuple[Problem, xr.DataTree, FloatArray]:
    return make_case("gaussian", "identity", "gate", rng)


def stored(problem: Problem, tree: xr.DataTree) -> xr.DataTree:
    """The tree with its rows, columns in another order and dims turned."""
    constant = xr.Dataset(
        {"X": (("obs", "feature"), problem.rows.Z)}, {"feature": ["a", "b", "c"]}
    ).sel(feature=["c", "a", "b"])
    for name, values in block_of(problem).items():
        if values is not None:
            constant[name] = (("obs", "gate_feature")[: values.ndim], values)
    observed = xr.Dataset(
        {"y": ("obs", problem.rows.y)}, {"obs": 100 + np.arange(problem.rows.n_obs)}
    )
    groups = {"constant_data": constant.transpose(), "observed_data": observed}
    return xr.DataTree.from_dict({**tree.to_dict(), **groups})


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_membership_is_bayes_rule(
    family: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    problem, tree, expected = make_case(family, link, variant, rng)
    found = predict_membership(tree, problem.rows.Z, problem.rows.y, **block_of(problem))
    unit = "group" if VARIANTS[variant].grouped else "obs"
    assert found.dims == ("chain", "draw", unit, "component")
    assert found.name == "membership"
    assert list(found["component"].values) == ["one", "two"]
    assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert_allclose(found.sum("component"), 1.0, rtol=1e-14)
    if unit == "group":
        assert_array_equal(found["group"], 11 + np.arange(problem.rows.n_units))


def test_membership_by_hand() -> None:
    """y = 0 has probabilities e^-1 and e^-2: posterior odds 3 e for weights .75 and .25."""
    dims = ("chain", "draw", "component")
    variables = {
        "coefficient": (("chain", "draw", "feature", "component"), np.zeros((1, 1, 3, 2))),
        "bias": (dims, np.log([[[1.0, 2.0]]])),
        "weight": (dims, [[[0.75, 0.25]]]),
    }
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(variables)})
    found = predict_membership(tree, np.zeros((1, 3)), [0], family="poisson").values[0, 0]
    assert_allclose(found[0, 0] / found[0, 1], 3 * np.e, rtol=1e-12)
    groups: dict[str, Any] = {"groups": ["a", "a", "b"], "sample_weight": [1.0, 0.5, 1.0]}
    grouped = predict_membership(tree, np.zeros((3, 3)), [0] * 3, family="poisson", **groups)
    odds = grouped.values[0, 0, :, 0] / grouped.values[0, 0, :, 1]
    assert_allclose(odds, [3 * np.e**1.5, 3 * np.e], rtol=1e-12)
    assert list(grouped["group"].values) == ["a", "b"]


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize(("family", "link"), [("gaussian", "identity"), ("binomial", "probit")])
def test_a_draw_without_noise_says_what_the_fit_says(
    family: str, link: str, variant: str, rng: np.random.Generator
) -> None:
    fitted = make_fit(family, link, rng, variant=VARIANTS[variant], n_obs=300, max_steps=30)
    found = predict_membership(still_tree(fitted), fitted.X, fitted.y, **fitted.block)
    expected = fitted.fit.predict_membership(fitted.X, fitted.y, **fitted.block)
    if VARIANTS[variant].grouped:
        first = pd.unique(fitted.block["groups"])
        expected = expected[[np.argmax(fitted.block["groups"] == label) for label in first]]
        assert_array_equal(found["group"], first)
    assert_allclose(found.values[0, 0], expected, atol=1e-10)


def still_tree(fitted: Fitted) -> xr.DataTree:
    """Draws of the fit that all are its maximum."""
    laplace = replace(fitted.fit.laplace, root=0.0 * fitted.fit.laplace.root[:, :0])
    return replace(fitted.fit, laplace=laplace).to_datatree(draws=2)


def test_gaussian_gate(rng: np.random.Generator) -> None:
    """Weights times densities of gating covariates and response, from SciPy."""
    label = rng.choice(2, 300, p=[0.6, 0.4])
    gating = np.array([[10.0, 2.0], [14.5, 1.9]])[label] + rng.normal(size=(300, 2)) * [3.0, 0.1]
    X = rng.normal(size=(300, 1))
    y = rng.normal(np.where(label == 0, 1.0, -1.0) * X[:, 0], 0.5)
    start = ([[1.0, -1.0]], [0.0, 0.0], [0.6, 0.4], [0.5, 0.5])
    options: dict[str, Any] = {"gate": "gaussian", "gating": gating, "init": start}
    fit = fit_em(X, y, 2, family="gaussian", progressbar=False, **options)
    tree = fit.to_datatree(draws=4, random_seed=1)
    found = predict_membership(tree, X, y, gating=gating)
    before = predict_membership(tree, gating=gating)
    for draw in range(4):
        at = tree["posterior"].to_dataset().isel(chain=0, draw=draw)
        pairs = zip(at["gate_mean"].values, at["gate_covariance"].values, strict=True)
        of_gate = [stats.multivariate_normal(m, s).logpdf(gating) for m, s in pairs]
        prior = np.log(at["weight"].values) + np.stack(of_gate, axis=1)
        eta = X @ at["coefficient"].values + at["bias"].values
        joint = prior + stats.norm(eta, at["dispersion"].values).logpdf(y[:, None])
        assert_allclose(found[0, draw], special.softmax(joint, axis=1), atol=1e-9)
        assert_allclose(before[0, draw], special.softmax(prior, axis=1), atol=1e-9)


def test_average_is_the_mean_over_draws(case: tuple[Problem, xr.DataTree, FloatArray]) -> None:
    problem, tree, expected = case
    rows, block = problem.rows, block_of(problem)
    found = predict_membership(tree, rows.Z, rows.y, average=True, **block)
    assert found.dims == ("obs", "component")
    assert_allclose(found, expected.mean(axis=(0, 1)), rtol=1e-9)


@pytest.mark.parametrize("average", [True, False])
def test_blocks_and_threads_change_nothing(
    average: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few groups in every thread."""
    problem, tree, _ = make_case("negative_binomial", "log", "both", rng)
    rows, block = problem.rows, block_of(problem)
    whole = predict_membership(tree, rows.Z, rows.y, average=average, **block)
    monkeypatch.setattr(blocks, "SERIAL_DOUBLES", 0)
    parts = predict_membership(tree, rows.Z, rows.y, average=average, **block)
    xr.testing.assert_allclose(parts, whole, rtol=1e-13)


def test_draws_are_thinned_evenly(case: tuple[Problem, xr.DataTree, FloatArray]) -> None:
    problem, tree, expected = case
    rows, block = problem.rows, block_of(problem)
    found = predict_membership(tree, rows.Z, rows.y, draws=2, **block)
    assert_allclose(found, expected[:, [0, 1]], rtol=1e-9)
    assert_array_equal(found["chain"], [0, 1])
    labelled = tree.copy()
    labelled["posterior"].dataset = tree["posterior"].to_dataset().assign_coords(draw=[5, 6, 7])
    found = predict_membership(labelled, rows.Z, rows.y, draws=1, **block)
    assert_array_equal(found["draw"], [5])
    everything = predict_membership(tree, rows.Z, rows.y, draws=99, **block)
    assert_allclose(everything, expected, rtol=1e-9)


def test_components_are_permuted_with_the_draws(rng: np.random.Generator) -> None:
    """Relabelling draws relabels probabilities, with a gate as without."""
    fitted = make_fit("gaussian", "identity", rng, variant=GATED)
    tree = fitted.fit.to_datatree(draws=20, random_seed=1)
    turned = tree.copy(deep=True)
    order = turned["posterior"].to_dataset().isel(component=[1, 0])
    turned["posterior"].dataset = order.assign_coords(component=[0, 1])
    first = predict_membership(tree, fitted.X, fitted.y, **fitted.block)
    second = predict_membership(turned, fitted.X, fitted.y, **fitted.block)
    assert_allclose(second.values[..., ::-1], first, atol=1e-12)
    back = predict_membership(
        align_components(turned, fitted.fit), fitted.X, fitted.y, **fitted.block
    )
    assert_allclose(back, first, atol=1e-12)


def test_far_rows_and_empty_components_stay_probabilities() -> None:
    """Densities that underflow or overflow, and a weight of zero."""
    dims = ("chain", "draw", "component")
    posterior = xr.Dataset(
        {
            "coefficient": (("chain", "draw", "feature", "component"), [[[[1.0, 2.0, 1.0]]]]),
            "bias": (dims, np.zeros((1, 1, 3))),
            "weight": (dims, [[[0.5, 0.5, 0.0]]]),
            "dispersion": (dims, np.full((1, 1, 3), 1e-130)),
        }
    )
    tree = xr.DataTree.from_dict({"posterior": posterior})
    inputs = np.array([[0.0], [1.0], [1e3], [1e100]])
    found = predict_membership(tree, inputs, np.zeros(4), family="gaussian").values[0, 0]
    assert_allclose(found[0], [0.5, 0.5, 0.0], rtol=1e-12)
    # The nearer component, be it 1e230 standard deviations away.
    assert_array_equal(found[1:], [[1.0, 0.0, 0.0]] * 3)


# --- rows ----------------------------------------------------------------------------------------


def test_columns_are_matched_by_name(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, variant=GATED)
    tree = fitted.fit.to_datatree(draws=5, random_seed=1)
    expected = predict_membership(tree, fitted.X, fitted.y, **fitted.block)
    turned = {**fitted.block, "gating": fitted.block["gating"][GATE_NAMES[::-1]]}
    found = predict_membership(tree, fitted.X[NAMES[::-1]], fitted.y, **turned)
    xr.testing.assert_identical(found, expected)
    plain = {**fitted.block, "gating": fitted.block["gating"].to_numpy()}
    found = predict_membership(tree, fitted.X.to_numpy(), fitted.y, **plain)
    xr.testing.assert_identical(found, expected)
    with pytest.raises(ValueError, match=r"`X` must have the columns.*missing are \['age'\]"):
        predict_membership(tree, fitted.X.drop(columns="age"), fitted.y, **fitted.block)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_rows_of_the_tree(variant: str, rng: np.random.Generator) -> None:
    problem, tree, expected = make_case("binomial", "logit", variant, rng)
    found = predict_membership(stored(problem, tree))
    assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    if not VARIANTS[variant].grouped:
        assert_array_equal(found["obs"], 100 + np.arange(problem.rows.n_obs))
    else:
        assert_array_equal(found["group"], 11 + np.arange(problem.rows.n_units))


def test_rows_without_names_go_by_place(case: tuple[Problem, xr.DataTree, FloatArray]) -> None:
    problem, tree, expected = case
    whole = stored(problem, tree)
    bare = whole["constant_data"].to_dataset().sel(feature=["a", "b", "c"])
    whole["constant_data"] = xr.DataTree(bare.drop_vars("feature"))
    whole["observed_data"] = xr.DataTree(whole["observed_data"].to_dataset().drop_vars("obs"))
    found = predict_membership(whole)
    assert_allclose(found, expected, rtol=1e-9)
    assert_array_equal(found["obs"], np.arange(problem.rows.n_obs))


def test_tree_from_zarr(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("zarr")
    fitted = make_fit("gamma", "log", rng, variant=BOTH)
    tree = fitted.fit.to_datatree(draws=10, random_seed=1)
    tree.to_zarr(tmp_path / "fit.zarr", zarr_format=2, consolidated=False)
    loaded = xr.open_datatree(tmp_path / "fit.zarr", engine="zarr", consolidated=False)
    expected = predict_membership(tree, fitted.X, fitted.y, **fitted.block)
    found = predict_membership(loaded, fitted.X, fitted.y, **fitted.block)
    xr.testing.assert_identical(found, expected)


def test_groups_from_netcdf(tmp_path: Path, rng: np.random.Generator) -> None:
    """SciPy writes NetCDF of one group a file."""
    fitted = make_fit("gamma", "log", rng, variant=GATED)
    tree = fitted.fit.to_datatree(draws=10, random_seed=1)
    loaded = {}
    for name in ("posterior", "moment_init"):
        tree[name].to_dataset().to_netcdf(tmp_path / f"{name}.nc", engine="scipy")
        with xr.open_dataset(tmp_path / f"{name}.nc", engine="scipy") as dataset:
            loaded[name] = dataset.load()
    found = predict_membership(xr.DataTree.from_dict(loaded), fitted.X, fitted.y, **fitted.block)
    expected = predict_membership(tree, fitted.X, fitted.y, **fitted.block)
    assert_allclose(found, expected, rtol=1e-14)


def test_gate_before_the_response_is_seen(
    gated: tuple[Problem, xr.DataTree, FloatArray],
) -> None:
    problem, tree, _ = gated
    gating = problem.rows.gate
    assert gating is not None
    found = predict_membership(tree, gating=gating)
    posterior = tree["posterior"].to_dataset()
    logits = posterior["gate_bias"].values[:, :, None] + np.einsum(
        "ng,cdjg->cdnj", gating, posterior["gate"].values
    )
    assert_allclose(found, special.softmax(logits, axis=-1), rtol=1e-12)
    with_inputs = predict_membership(tree, problem.rows.Z, gating=gating)
    xr.testing.assert_identical(with_inputs, found)
    labels = np.repeat(["u", "v"], 20)
    grouped = predict_membership(tree, gating=gating[:1].repeat(40, axis=0), groups=labels)
    assert_allclose(grouped.sel(group="v"), found[:, :, 0], rtol=1e-12)
    one = predict_membership(tree, gating=gating[:1], average=True)
    assert_allclose(one[0], found[:, :, 0].mean(("chain", "draw")), rtol=1e-12)


# --- family --------------------------------------------------------------------------------------


def test_family_and_link(rng: np.random.Generator) -> None:
    problem, tree, expected = make_case("bernoulli", "probit", "plain", rng)
    rows, block = problem.rows, block_of(problem)
    choices: list[dict[str, Any]] = [
        {"family": "bernoulli"},
        {"link": "probit"},
        {"family": problem.family},
        {"family": "bernoulli", "link": "probit"},
    ]
    for options in choices:
        found = predict_membership(tree, rows.Z, rows.y, **options, **block)
        assert_allclose(found, expected, rtol=1e-9)
    other = predict_membership(tree, rows.Z, rows.y, link="logit", **block)
    assert np.abs(other.values - expected).max() > 0.01
    del tree["moment_init"]
    found = predict_membership(tree, rows.Z, rows.y, family="bernoulli", **block)
    xr.testing.assert_allclose(found, other, rtol=1e-14)  # the family's own link


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`X` and `y` must be given if the tree has no 'X' in constant_data"),
        ({"X": np.zeros((2, 3))}, r"`y` must be given with `X`.*tree\['posterior'\]\['weight'\]"),
        ({"y": np.zeros(2)}, "`X` must be given with `y`"),
        ({"groups": [1, 1]}, "`X` and `y` must be given with other data.*got only groups"),
        ({"gating": np.zeros((2, 1))}, "`gating` must be None for a fit without a gate"),
        ({"X": np.zeros((2, 3)), "y": [0, -1]}, "`y` must hold whole numbers"),
        ({"X": np.zeros((2, 2)), "y": [0, 1]}, "`X` must have the 3 columns"),
        ({"X": np.zeros((2, 3)), "y": [0]}, r"`y` must have shape \(2,\)"),
        ({"draws": 0}, "`draws` must be a positive integer; got 0"),
        ({"draws": 2.5}, "`draws` must be a positive integer; got 2.5"),
        ({"draws": True}, "`draws` must be a positive integer; got True"),
        ({"family": "nothing"}, "`family` must be one of"),
        ({"link": "probit"}, "`link` must be one of 'log'"),
        ({"family": "gaussian"}, "`tree` must have 'dispersion'.*got no such variable"),
    ],
)
def test_wrong_arguments_are_named(
    options: dict[str, Any], message: str, case: tuple[Problem, xr.DataTree, FloatArray]
) -> None:
    with pytest.raises(ValueError, match=message):
        predict_membership(case[1], **options)


def test_gates_ask_for_their_covariates(gated: tuple[Problem, xr.DataTree, FloatArray]) -> None:
    problem, tree, _ = gated
    X, y = np.zeros((2, 3)), np.zeros(2)
    with pytest.raises(ValueError, match="`gating` must be given for a fit with a gate"):
        predict_membership(tree, X, y)
    with pytest.raises(ValueError, match=r"`y` must be given with `X`.*Pass `gating`"):
        predict_membership(tree, X)
    with pytest.raises(ValueError, match="`offset` must be None without `y`"):
        predict_membership(tree, X, gating=np.zeros((2, 2)), offset=y)
    with pytest.raises(ValueError, match="`gating` must have one row per row of `X`"):
        predict_membership(tree, X, gating=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"`gating` must be two-dimensional.*got shape"):
        predict_membership(tree, gating=0.0)
    with pytest.raises(ValueError, match="`gating` must not vary within a group"):
        predict_membership(tree, gating=problem.rows.gate, groups=np.zeros(40))


def test_trees_that_lack_something(case: tuple[Problem, xr.DataTree, FloatArray]) -> None:
    problem, tree, _ = case
    rows = (problem.rows.Z, problem.rows.y)
    posterior = tree["posterior"].to_dataset()

    def with_posterior(dataset: xr.Dataset) -> xr.DataTree:
        return xr.DataTree.from_dict({"posterior": dataset})

    options: dict[str, Any] = {"family": "poisson"}
    with pytest.raises(TypeError, match=r"`tree` must be an xarray.DataTree.*type Dataset"):
        predict_membership(posterior, *rows)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"group 'posterior'.*got \('moment_init',\)"):
        predict_membership(tree.filter(lambda node: node.name != "posterior"), *rows)
    with pytest.raises(ValueError, match="dims chain, draw and component; got the dims"):
        predict_membership(with_posterior(posterior[["bias"]].isel(chain=0)), *rows, **options)
    with pytest.raises(ValueError, match="`family` must be given if the tree"):
        predict_membership(with_posterior(posterior), *rows)
    renamed = posterior.rename(feature="column")
    with pytest.raises(ValueError, match=r"`tree` must have 'coefficient' with the dims.*got \("):
        predict_membership(with_posterior(renamed), *rows, **options)
    broken = posterior.copy(deep=True)
    broken["bias"][1, 2, 0] = np.nan
    with pytest.raises(ValueError, match=r"finite draws; got 1 of 6 with NaN.*'bias'"):
        predict_membership(with_posterior(broken), *rows, **options)
    with pytest.raises(ValueError, match="finite draws; got 0 of 0"):
        predict_membership(with_posterior(posterior.isel(draw=[])), *rows, **options)
