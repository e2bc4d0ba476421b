"""Relabelling of the draws of a DataTree."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray
from numpy.typing import NDArray

from moment_init import estimate, fit_em, simulate_mixture
from moment_init.posterior.alignment import align_components, best_draw, reference_variables

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

CHAINS, DRAWS, FEATURES, ROWS = 2, 40, 4, 6
SPREAD = 0.05
"""Spread of the draws. Components are made at least 1 apart in every vector of coefficients, twenty
spreads, so that no draw is nearer to another label in more than 1e-20 of cases."""


def make_truth(n_components: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Parameters with coefficients that lie at least one apart."""
    separation = np.arange(n_components)
    return {
        "coefficient": rng.normal(size=(FEATURES, n_components)) * 0.1 + separation,
        "bias": rng.normal(size=n_components),
        "weight": rng.dirichlet(np.full(n_components, 5.0)),
        "dispersion": rng.uniform(0.5, 2.0, n_components),
    }


def make_tree(
    truth: dict[str, FloatArray], rng: np.random.Generator, *, n_draws: int = DRAWS
) -> xarray.DataTree:
    """Draws about the truth, with the groups that a sampler makes and things in odd orders."""
    n_components = truth["bias"].size
    shape = (CHAINS, n_draws)
    coords = {"chain": np.arange(CHAINS), "draw": np.arange(n_draws)}
    labels = [f"x{i}" for i in range(FEATURES)]

    def noisy(values: FloatArray) -> FloatArray:
        return np.asarray(values + SPREAD * rng.normal(size=shape + values.shape))

    weight = np.abs(noisy(truth["weight"])) + 0.01
    coefficient = noisy(truth["coefficient"])
    scale = np.linalg.norm(coefficient, axis=2)
    names = ("chain", "draw", "component")
    posterior = xarray.Dataset(
        {
            "coefficient": (("chain", "draw", "feature", "component"), coefficient),
            "direction": (
                ("component", "draw", "chain", "feature"),
                (coefficient / scale[:, :, None]).transpose(3, 1, 0, 2),
            ),
            "scale": (names, scale, {"unit": "none"}),
            "bias": (names, noisy(truth["bias"])),
            "weight": (names, weight / weight.sum(axis=-1, keepdims=True)),
            "dispersion": (
                names,
                truth["dispersion"] * np.exp(SPREAD * rng.normal(size=(*shape, n_components))),
            ),
            "common": (("chain", "draw"), rng.normal(size=shape)),
        },
        {**coords, "feature": labels, "component": np.arange(n_components)},
        attrs={"inference_library": "some"},
    )
    posterior["scale"].encoding = {"_FillValue": -1.0}
    membership = rng.dirichlet(np.ones(n_components), (*shape, ROWS))
    transition = rng.dirichlet(np.ones(n_components), (*shape, n_components))
    predictions = xarray.Dataset(
        {
            "membership": (("draw", "obs", "component", "chain"), membership.transpose(1, 2, 3, 0)),
            "label": (names, np.tile(np.arange(n_components, dtype=np.int8), (*shape, 1))),
            "is_large": (names, rng.random((*shape, n_components)) > 0.5),
            "transition": (("chain", "draw", "component", "component_2"), transition),
        },
        coords,
    )
    constant = xarray.Dataset({"anchor": (("feature", "component"), truth["coefficient"])})
    stats = xarray.Dataset({"lp": (("chain", "draw"), rng.normal(size=shape))}, coords)
    return xarray.DataTree.from_dict(
        {
            "posterior": posterior,
            "predictions": predictions,
            "constant_data": constant,
            "sample_stats": stats,
        },
        name="run",
    )


def shuffled(tree: xarray.DataTree, order: IndexArray) -> xarray.DataTree:
    """Permute the components of each draw, one draw at a time."""
    result = tree.copy(deep=True)
    for node in result.subtree:
        for array in node.data_vars.values():
            if not {"chain", "draw", "component"} <= set(array.dims):
                continue
            ordered = array.variable.transpose("chain", "draw", ...)
            for chain, draw in np.ndindex(order.shape[:2]):
                block = ordered.values[chain, draw]
                for axis, name in enumerate(ordered.dims[2:]):
                    if name in ("component", "component_2"):
                        block = np.take(block, order[chain, draw], axis=axis)
                ordered.values[chain, draw] = block  # a view of the variable
    return result


def values_of(tree: xarray.DataTree, group: str, name: str) -> NDArray[Any]:
    return np.asarray(tree.children[group].to_dataset()[name].values)


def random_orders(n_components: int, rng: np.random.Generator) -> IndexArray:
    return np.argsort(rng.random((CHAINS, DRAWS, n_components)), axis=-1)


def without_record(tree: xarray.DataTree) -> xarray.DataTree:
    return tree.filter(lambda node: node.name != "moment_init")


@pytest.fixture
def truth(rng: np.random.Generator) -> dict[str, FloatArray]:
    return make_truth(3, rng)


@pytest.fixture
def tree(truth: dict[str, FloatArray], rng: np.random.Generator) -> xarray.DataTree:
    return make_tree(truth, rng)


@pytest.mark.parametrize("n_components", [1, 2, 3, 8])
def test_shuffled_draws_come_back_in_all_groups(
    n_components: int, rng: np.random.Generator
) -> None:
    truth = make_truth(n_components, rng)
    tree, order = make_tree(truth, rng), random_orders(n_components, rng)
    mixed = shuffled(tree, order)
    aligned = align_components(mixed, truth)
    xarray.testing.assert_identical(without_record(aligned), tree)
    record = aligned["moment_init"]
    np.testing.assert_array_equal(record["permutation"], np.argsort(order, axis=-1))
    has_moved = (order != np.arange(n_components)).any(axis=-1)
    assert float(record["moved_share"]) == has_moved.mean()
    assert record.attrs["alignment_variables"] == "coefficient, bias, dispersion, weight"
    assert record.attrs["alignment_left_alone"] == ""


def test_shuffled_draws_come_back_without_a_reference(
    tree: xarray.DataTree, rng: np.random.Generator
) -> None:
    """Up to one order that is common to all draws."""
    order = random_orders(3, rng)
    aligned = align_components(shuffled(tree, order))
    original = np.take_along_axis(
        order, values_of(aligned, "moment_init", "permutation"), axis=-1
    ).reshape(-1, 3)
    assert (original == original[0]).all()
    expected = tree["predictions"]["membership"].isel(component=original[0])
    np.testing.assert_array_equal(aligned["predictions"]["membership"], expected)
    assert aligned["moment_init"].attrs["alignment_reference"] == "none"


def test_the_draw_of_highest_density_comes_first(tree: xarray.DataTree) -> None:
    stats = tree["sample_stats"].to_dataset()
    stats["lp"][1, 7] = 50.0
    stats["lp"][0, 3] = np.nan
    tree["sample_stats"].dataset = stats
    assert best_draw(tree, "posterior") == DRAWS + 7
    tree["sample_stats"].dataset = stats.rename(lp="logp")
    assert best_draw(tree, "posterior") == DRAWS + 7
    del tree["sample_stats"]
    assert best_draw(tree, "posterior") == 0


def test_shares_of_a_switching_chain_are_reported_exactly(
    tree: xarray.DataTree, truth: dict[str, FloatArray]
) -> None:
    """Chain 0 switches in its last quarter; chain 1 has other labels from beginning to end."""
    order = np.tile(np.arange(3), (CHAINS, DRAWS, 1))
    order[0, 30:] = [1, 0, 2]
    order[1] = [1, 2, 0]
    aligned = align_components(shuffled(tree, order), truth)
    record = aligned["moment_init"]
    assert values_of(aligned, "moment_init", "switched_share").tolist() == [0.25, 0.0]
    assert record["switched_share"].dims == ("chain",)
    assert float(record["moved_share"]) == 50 / 80
    alone = align_components(shuffled(tree, order))  # most draws are those of chain 1
    assert values_of(alone, "moment_init", "switched_share").tolist() == [0.25, 0.0]
    assert float(alone["moment_init"]["moved_share"]) == 0.5
    assert (values_of(alone, "moment_init", "permutation")[1] == np.arange(3)).all()


@pytest.mark.parametrize("has_reference", [True, False])
def test_aligning_twice_changes_nothing(
    has_reference: bool,
    tree: xarray.DataTree,
    truth: dict[str, FloatArray],
    rng: np.random.Generator,
) -> None:
    reference = truth if has_reference else None
    once = align_components(shuffled(tree, random_orders(3, rng)), reference)
    twice = align_components(once, reference)
    xarray.testing.assert_identical(twice, once)


def test_aligning_vague_draws_twice_changes_nothing(rng: np.random.Generator) -> None:
    draws = rng.normal([0.0, 0.5, 1.0], 0.6, (2, 200, 3))
    posterior = xarray.Dataset({"mean": (("chain", "draw", "component"), draws)})
    tree = xarray.DataTree.from_dict({"posterior": posterior})
    for reference in (None, {"mean": [0.0, 0.5, 1.0]}):
        once = align_components(tree, reference)
        assert float(once["moment_init"]["moved_share"]) > 0.3
        xarray.testing.assert_identical(align_components(once, reference), once)


def test_the_record_tells_the_way_from_the_original(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    mixed = shuffled(tree, random_orders(3, rng))
    reverse = {name: values[..., ::-1] for name, values in truth.items()}
    end = align_components(align_components(mixed, truth), reverse)
    order = values_of(end, "moment_init", "permutation")
    xarray.testing.assert_identical(without_record(shuffled(mixed, order)), without_record(end))


def test_the_input_is_not_changed(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    mixed = shuffled(tree, random_orders(3, rng))
    before = mixed.copy(deep=True)
    align_components(mixed, truth)
    xarray.testing.assert_identical(mixed, before)


def test_types_attributes_and_encoding_are_kept(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    mixed = shuffled(tree, random_orders(3, rng))
    posterior = mixed["posterior"].to_dataset().assign_coords(component=["low", "middle", "high"])
    posterior["coefficient"] = posterior["coefficient"].astype(np.float32)
    posterior["scale"].encoding = {"_FillValue": -1.0}
    mixed["posterior"].dataset = posterior
    mixed["posterior"].encoding = {"unlimited_dims": {"draw"}}
    mixed.attrs["title"] = "three"
    aligned = align_components(mixed, truth)
    assert aligned.name == "run"
    assert aligned.attrs == {"title": "three"}
    assert aligned["posterior"].encoding == {"unlimited_dims": {"draw"}}
    assert aligned["posterior"]["scale"].encoding == {"_FillValue": -1.0}
    assert aligned["posterior"]["scale"].attrs == {"unit": "none"}
    assert values_of(aligned, "posterior", "component").tolist() == ["low", "middle", "high"]
    found = aligned["posterior"].to_dataset()
    for name, array in posterior.data_vars.items():
        assert found[name].dtype == array.dtype
        assert found[name].dims == array.dims
    for name, dtype in {"label": np.int8, "is_large": np.bool_}.items():
        assert aligned["predictions"][name].dtype == dtype


def test_units_do_not_matter(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    """Components differ by their coefficients; biases are vague, in large units or small ones."""
    posterior = tree["posterior"].to_dataset()
    posterior["bias"] = posterior["bias"].copy(data=rng.normal(size=(CHAINS, DRAWS, 3)))
    tree["posterior"].dataset = posterior
    mixed = shuffled(tree, random_orders(3, rng))
    expected = align_components(mixed, truth)
    xarray.testing.assert_identical(without_record(expected), tree)
    for factor in (1e6, 1e-6):
        dataset = mixed["posterior"].to_dataset()
        dataset["bias"] = dataset["bias"] * factor
        other = mixed.copy()
        other["posterior"].dataset = dataset
        found = align_components(other, {**truth, "bias": truth["bias"] * factor})
        xarray.testing.assert_equal(found["moment_init"], expected["moment_init"])
        found = align_components(other)
        xarray.testing.assert_equal(found["moment_init"], align_components(mixed)["moment_init"])


def test_weights_alone_are_compared_where_their_spread_is_even(rng: np.random.Generator) -> None:
    """Spreads of shares of 50 rows: .07 at one half, .02 at one fiftieth."""
    draws = rng.multinomial(50, [0.6, 0.38, 0.02], (1, 300)) / 50
    posterior = xarray.Dataset({"weight": (("chain", "draw", "component"), draws)})
    tree = xarray.DataTree.from_dict({"posterior": posterior})
    aligned = align_components(tree, {"weight": [0.6, 0.38, 0.02]})
    # In one dimension the best matching sorts, whatever the monotone scale.
    np.testing.assert_array_equal(aligned["posterior"]["weight"], -np.sort(-draws, axis=-1))


@pytest.mark.parametrize("dim", ["cluster", ["cluster", "to_cluster"]])
def test_other_names(
    dim: Any, tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    """A model that someone else wrote: other dims, other variables, components first."""
    mixed = shuffled(tree, random_orders(3, rng))
    dims = {
        "component": "cluster",
        "component_2": "to_cluster" if dim != "cluster" else "cluster_2",
    }
    names = {"coefficient": "beta", "bias": "alpha", "dispersion": "sigma"}

    def renamed(source: xarray.DataTree) -> xarray.DataTree:
        groups = {}
        for path in ("posterior", "predictions"):
            dataset = source[path].to_dataset()
            dataset = dataset.rename({k: v for k, v in dims.items() if k in dataset.dims})
            dataset = dataset.rename({k: v for k, v in names.items() if k in dataset})
            groups[path] = dataset.transpose("cluster", ...)
        return xarray.DataTree.from_dict(groups)

    mapping = {"beta": "coefficient", "alpha": "bias", "sigma": "dispersion"}
    aligned = align_components(renamed(mixed), truth, dim=dim, var_names=mapping)
    xarray.testing.assert_identical(without_record(aligned), renamed(tree))
    assert aligned["moment_init"]["permutation"].dims == ("chain", "draw", "cluster")
    alone = align_components(renamed(mixed), dim=dim)
    assert set(alone["moment_init"].attrs["alignment_variables"].split(", ")) == {
        "beta", "direction", "scale", "alpha", "weight", "sigma",
    }  # fmt: skip


def references(truth: dict[str, FloatArray], tree: xarray.DataTree) -> dict[str, Any]:
    """The same order in every form but the results of this package."""
    dataset = xarray.Dataset(
        {
            "coefficient": (("component", "feature"), truth["coefficient"].T),
            "bias": ("component", truth["bias"]),
        },
        {"feature": [f"x{i}" for i in range(FEATURES)]},
    )
    features = dataset.isel(feature=[3, 1, 0, 2])
    own = xarray.DataTree.from_dict({"moment_init": dataset})
    labelled = {"coefficient": dataset["coefficient"], "bias": truth["bias"]}
    return {
        "dataset": dataset,
        "features in another order": features,
        "components in another order": dataset.assign_coords(component=range(3)).isel(
            component=[2, 0, 1]
        ),
        "own group": own,
        "node": own["moment_init"],
        "draws": tree,
        "dataset of draws": tree["posterior"].to_dataset(),
        "arrays": truth,
        "labelled arrays": labelled,
        "labelled draws": {"coefficient": tree["posterior"]["coefficient"]},
        "direction only": SimpleNamespace(
            directions=truth["coefficient"] / np.linalg.norm(truth["coefficient"], axis=0)
        ),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "dataset",
        "features in another order",
        "components in another order",
        "own group",
        "node",
        "draws",
        "dataset of draws",
        "arrays",
        "labelled arrays",
        "labelled draws",
        "direction only",
    ],
)
def test_references(kind: str, rng: np.random.Generator) -> None:
    truth = make_truth(3, rng)
    # Vectors at right angles, so that directions alone tell them apart, and features as well.
    truth["coefficient"] = np.vstack([3.0 * np.eye(3), np.full((1, 3), 0.5)])
    tree = make_tree(truth, rng)
    aligned = align_components(shuffled(tree, random_orders(3, rng)), references(truth, tree)[kind])
    xarray.testing.assert_identical(without_record(aligned), tree)


def test_a_switching_reference_is_put_in_order_first(
    tree: xarray.DataTree, rng: np.random.Generator
) -> None:
    """The labels of its majority are the reference; without order its means would be alike."""
    order = random_orders(3, rng)
    order[:, : 3 * DRAWS // 4] = [2, 0, 1]
    aligned = align_components(tree, shuffled(tree, order))
    assert (values_of(aligned, "moment_init", "permutation") == [2, 0, 1]).all()


def test_results_of_this_package_set_the_order(seed: int) -> None:
    """Standard errors of a coefficient are below .02 with 6,000 rows a component and noise of one;
    vectors of length 2 at right angles are 2.8 apart, and the bound is a tenth of that."""
    data = simulate_mixture(
        12_000, 3, 2, family="gaussian", scales=2.0, weights=[0.6, 0.4], random_seed=seed
    )
    fit = fit_em(data.X, data.y, 2, family="gaussian", random_seed=seed)
    moments = estimate(data.X, data.y, 2, family="gaussian", random_seed=seed)
    directions = replace(moments, scales=None, biases=None, weights=None, dispersion=None)
    order = np.argsort(np.random.default_rng(seed).random((1, DRAWS, 2)), axis=-1)
    mixed = shuffled(fit.to_datatree(draws=DRAWS, random_seed=seed), order)
    for reference in (fit, moments, data, directions):
        aligned = align_components(mixed, reference)
        means = values_of(aligned, "posterior", "coefficient").mean(axis=(0, 1))
        np.testing.assert_allclose(means, 2.0 * reference.directions, rtol=0, atol=0.28)
        assert aligned["moment_init"].attrs["alignment_reference"] == type(reference).__name__
        assert aligned["moment_init"].attrs["family"] == "gaussian"  # what was there is kept
    assert aligned["moment_init"].attrs["alignment_variables"] == "direction"


def test_prior_and_warmup_are_matched_by_themselves(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    """Their draws have the labels of the posterior's, and other permutations."""
    orders = {name: random_orders(3, rng) for name in ("", "warmup_", "prior")}
    groups: dict[str, Any] = {}
    for prefix, order in orders.items():
        mixed = shuffled(tree, order)
        if prefix == "prior":
            groups |= {"prior": mixed["posterior"], "prior_predictive": mixed["predictions"]}
        else:
            groups |= {f"{prefix}{name}": mixed[name] for name in ("posterior", "predictions")}
    whole = xarray.DataTree.from_dict(groups)
    for reference in (truth, None):
        aligned = align_components(whole, reference)
        if reference is None:  # its order, that of the majority, is put back
            aligned = align_components(aligned, truth)
        for name in ("posterior", "warmup_posterior", "prior"):
            xarray.testing.assert_identical(
                aligned[name].to_dataset(), tree["posterior"].to_dataset()
            )
        for name in ("predictions", "warmup_predictions", "prior_predictive"):
            xarray.testing.assert_identical(
                aligned[name].to_dataset(), tree["predictions"].to_dataset()
            )


def test_groups_with_fewer_draws_follow_by_their_labels(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    mixed = shuffled(tree, random_orders(3, rng))
    thin = mixed["predictions"].to_dataset().isel(draw=slice(3, None, 5), chain=[1])
    strange = mixed["predictions"].to_dataset().assign_coords(draw=np.arange(DRAWS) + 1000)
    mixed["thin"], mixed["strange"] = xarray.DataTree(thin), xarray.DataTree(strange)
    aligned = align_components(mixed, truth)
    expected = tree["predictions"].to_dataset().isel(draw=slice(3, None, 5), chain=[1])
    xarray.testing.assert_identical(aligned["thin"].to_dataset(), expected)
    xarray.testing.assert_identical(aligned["strange"].to_dataset(), strange)
    assert aligned["moment_init"].attrs["alignment_left_alone"] == "strange"
    assert aligned["moment_init"].attrs["alignment_groups"] == "posterior, predictions, thin"


def test_a_group_of_other_draws_that_are_not_finite_is_left_alone(
    tree: xarray.DataTree, truth: dict[str, FloatArray]
) -> None:
    prior = tree["posterior"].to_dataset().copy(deep=True).isel(component=[2, 0, 1])
    prior["bias"][0, 0] = np.inf
    tree["prior"] = xarray.DataTree(prior)
    aligned = align_components(tree, truth)
    xarray.testing.assert_identical(aligned["prior"].to_dataset(), prior)
    assert aligned["moment_init"].attrs["alignment_left_alone"] == "prior"


def test_unconstrained_draws_follow(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    """PyMC stores log w_j less their mean, without the last; an ordered scale cannot follow."""

    def unconstrained(source: xarray.DataTree) -> xarray.Dataset:
        posterior = source["posterior"].to_dataset()
        logs = np.log(posterior["weight"].values)
        centred = (logs - logs.mean(axis=-1, keepdims=True))[..., :-1]
        return xarray.Dataset(
            {
                "weight_simplex__": (("chain", "draw", "weight_simplex___dim_0"), centred),
                "dispersion_log__": np.log(posterior["dispersion"]),
            }
        )

    mixed = shuffled(tree, random_orders(3, rng))
    ordered = unconstrained(mixed).assign(bias_ordered__=mixed["posterior"]["bias"])
    mixed["unconstrained_posterior"] = xarray.DataTree(ordered)
    aligned = align_components(mixed, truth)
    found = aligned["unconstrained_posterior"].to_dataset()
    expected = unconstrained(tree)
    xarray.testing.assert_allclose(found[list(expected)], expected, rtol=1e-12, atol=1e-14)
    xarray.testing.assert_identical(found["bias_ordered__"], ordered["bias_ordered__"])
    record = aligned["moment_init"].attrs
    assert record["alignment_left_alone"] == "unconstrained_posterior/bias_ordered__"
    only = mixed.copy()
    only["unconstrained_posterior"].dataset = unconstrained(mixed)[["weight_simplex__"]]
    found = align_components(only, truth)["unconstrained_posterior"].to_dataset()
    xarray.testing.assert_allclose(found, expected[["weight_simplex__"]], rtol=1e-12, atol=1e-14)


def test_logits_are_permuted_as_they_are(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    """Those of draws sum to zero; a fit has its own relative to the last component."""
    slopes = np.array([[2.0, -1.5, -0.5], [-1.0, 0.25, 0.75]])
    logits = slopes + SPREAD * rng.normal(size=(CHAINS, DRAWS, 2, 3))
    logits -= logits.mean(axis=-1, keepdims=True)
    names = ("chain", "draw", "gate_feature", "component")
    draws = tree["posterior"].to_dataset().assign(gate=(names, logits))
    tree["posterior"] = xarray.DataTree(draws)
    mixed = shuffled(tree, random_orders(3, rng))
    aligned = align_components(mixed, truth)
    xarray.testing.assert_identical(without_record(aligned), tree)
    fit = SimpleNamespace(coefficients=truth["coefficient"], gate=slopes - slopes[:, -1:])
    reference = reference_variables(fit, "component", "posterior")["gate"]
    np.testing.assert_allclose(reference, slopes, rtol=0, atol=1e-15)
    by_gate = align_components(mixed, fit, var_names="gate")
    xarray.testing.assert_identical(by_gate["posterior"], tree["posterior"])


def test_inherited_coordinates_and_nested_groups(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    def nested(source: xarray.DataTree) -> xarray.DataTree:
        shared = {"chain": np.arange(CHAINS), "draw": np.arange(DRAWS)}
        return xarray.DataTree.from_dict(
            {
                "/": xarray.Dataset(coords=shared),
                "/posterior": source["posterior"].to_dataset().drop_vars(["chain", "draw"]),
                "/posterior/more": source["predictions"].to_dataset().drop_vars(["chain", "draw"]),
            }
        )

    aligned = align_components(nested(shuffled(tree, random_orders(3, rng))), truth)
    xarray.testing.assert_identical(without_record(aligned), nested(tree))
    assert "chain" in aligned["moment_init"].coords


def test_what_the_own_group_holds_is_kept(
    tree: xarray.DataTree, truth: dict[str, FloatArray]
) -> None:
    own = xarray.Dataset(
        {"coefficient": (("feature", "component"), truth["coefficient"])},
        {"component": ["a", "b", "c"]},
        attrs={"status": "ok"},
    )
    tree["moment_init"] = xarray.DataTree(own)
    record = align_components(tree, tree["moment_init"])["moment_init"].to_dataset()
    xarray.testing.assert_identical(record["coefficient"], own["coefficient"])
    assert record.attrs["status"] == "ok"
    assert record["permutation"].dims == ("chain", "draw", "component")


def test_another_group_replaces_the_record(
    tree: xarray.DataTree, truth: dict[str, FloatArray], rng: np.random.Generator
) -> None:
    once = align_components(shuffled(tree, random_orders(3, rng)), truth)
    other = tree["posterior"].to_dataset().isel(draw=slice(5), component=[1, 2, 0])
    once["warmup_posterior"] = xarray.DataTree(other.assign_coords(component=range(3)))
    record = align_components(once, truth, group="warmup_posterior")["moment_init"]
    assert record["permutation"].shape == (CHAINS, 5, 3)
    assert (record.to_dataset()["permutation"].values == [2, 0, 1]).all()


def test_variables_that_stay_are_not_loaded(
    tree: xarray.DataTree, truth: dict[str, FloatArray], tmp_path: Path
) -> None:
    order = np.tile([1, 2, 0], (CHAINS, DRAWS, 1))
    path = tmp_path / "predictions.nc"
    stored = shuffled(tree, order)["predictions"].to_dataset()
    stored = stored.drop_vars("is_large").assign(large=("row", np.arange(10.0)))
    stored.to_netcdf(path, engine="scipy")
    with xarray.open_dataset(path, engine="scipy") as lazy:
        mixed = shuffled(tree, order)
        mixed["predictions"] = xarray.DataTree(lazy)
        aligned = align_components(mixed, truth)["predictions"]
        assert not aligned["large"].variable._in_memory
        np.testing.assert_array_equal(aligned["membership"], tree["predictions"]["membership"])


def test_the_record_can_be_stored(
    tree: xarray.DataTree, truth: dict[str, FloatArray], tmp_path: Path, rng: np.random.Generator
) -> None:
    aligned = align_components(shuffled(tree, random_orders(3, rng)), truth)
    record = aligned["moment_init"].to_dataset()
    assert record["permutation"].dtype == np.int64
    record.to_netcdf(tmp_path / "record.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "record.nc", engine="scipy") as loaded:
        xarray.testing.assert_equal(loaded, record)
        assert loaded.attrs == record.attrs


def test_errors(tree: xarray.DataTree, truth: dict[str, FloatArray]) -> None:
    two = {name: values[..., :2] for name, values in truth.items()}
    with pytest.raises(TypeError, match=r"`tree` must be an xarray.DataTree; got .* Dataset"):
        align_components(tree["posterior"].to_dataset(), truth)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`group` must be .*got 'prior'.*'posterior'"):
        align_components(tree, truth, group="prior")
    with pytest.raises(ValueError, match=r"`dim` must be .*got 'cluster'.*'component'"):
        align_components(tree, truth, dim="cluster")
    with pytest.raises(ValueError, match=r"as many components as the draws, 3; got 2"):
        align_components(tree, two)
    with pytest.raises(ValueError, match=r"`var_names` must .*got none in common.*the reference"):
        align_components(tree, {"slope": truth["bias"]})
    with pytest.raises(ValueError, match=r"`var_names` must .*got 'slope'"):
        align_components(tree, truth, var_names=["bias", "slope"])
    with pytest.raises(ValueError, match=r"`var_names` must .*got 'bias'"):
        align_components(tree, truth, var_names={"bias": "bias", "scale": "bias"})
    with pytest.raises(TypeError, match=r"`reference` must be a MomentEstimate.*type list"):
        align_components(tree, [1.0, 2.0, 3.0])


def test_errors_of_references(tree: xarray.DataTree, truth: dict[str, FloatArray]) -> None:
    with pytest.raises(ValueError, match=r"shape of a draw of 'coefficient'.*got \(3, 3\)"):
        align_components(tree, {"coefficient": np.eye(3)})
    with pytest.raises(ValueError, match=r"`reference` must be finite; got 1 values of 'bias'"):
        align_components(tree, {"bias": [0.0, np.nan, 1.0]})
    with pytest.raises(ValueError, match=r"last axis is the component; got the number 2.0"):
        align_components(tree, {"bias": 2.0})
    with pytest.raises(ValueError, match=r"with the dim 'component' in the group.*'posterior'"):
        align_components(tree, xarray.DataTree.from_dict({"other": xarray.Dataset()}))
    with pytest.raises(ValueError, match=r"with the dim 'component'; got the dims 'row'"):
        align_components(tree, xarray.Dataset({"bias": ("row", truth["bias"])}))
    labels = ["x0", "x1", "x2", "height"]
    strange = xarray.DataArray(
        truth["coefficient"], {"feature": labels}, dims=("feature", "component")
    )
    with pytest.raises(ValueError, match=r"3 agree, but height, x3 are on one side only"):
        align_components(tree, {"coefficient": strange})
    posterior = tree["posterior"].to_dataset().copy(deep=True)
    posterior["bias"][0, 0] = np.nan
    with pytest.raises(ValueError, match=r"`reference` must have finite draws"):
        align_components(tree, posterior)
    with pytest.raises(ValueError, match=r"`reference` must have numeric variables"):
        align_components(tree, posterior[["bias"]] > 0.0)


def test_errors_of_draws(tree: xarray.DataTree, truth: dict[str, FloatArray]) -> None:
    posterior = tree["posterior"].to_dataset().copy(deep=True)
    posterior["bias"][0, :4, 1] = np.nan
    broken = tree.copy()
    broken["posterior"].dataset = posterior
    for reference in (truth, None):
        with pytest.raises(ValueError, match=r"finite draws .*got 4 draws of 'bias' with NaN"):
            align_components(broken, reference)
    xarray.testing.assert_identical(
        align_components(broken, truth, var_names="coefficient")["posterior"],
        broken["posterior"],
    )
    empty = xarray.DataTree.from_dict({"posterior": posterior.isel(draw=slice(0))})
    with pytest.raises(ValueError, match=r"must have draws of components in 'posterior'"):
        align_components(empty, truth)
    other = tree.copy()
    other["predictions"].dataset = (
        tree["predictions"].to_dataset()[["membership"]].isel(component=[0, 1])
    )
    with pytest.raises(ValueError, match=r"same 'component' in all groups; got 2 in 'predictions'"):
        align_components(other, truth)
    other = tree.copy()
    other["moment_init"] = xarray.Dataset({"error": ("component", np.zeros(4))})
    with pytest.raises(ValueError, match=r"same 'component' in all groups; got 4 in 'moment_init'"):
        align_components(other, truth)
