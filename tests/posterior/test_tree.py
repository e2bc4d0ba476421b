"""The DataTree of `sample`: groups, names, dims, attrs, labels; files keep all of it."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.configdefaults import config

from moment_init import WeakSignalWarning, align_components, predict_membership, sample
from moment_init.data.checking import validate_data
from moment_init.em.prediction import rows_for, unit_scores
from moment_init.posterior.draws import stored_log_likelihood
from moment_init.posterior.tree import ORDER, _as_responses
from tests.bayesian_models import FakeSampler, fitted
from tests.em_fits import GATE_NAMES, NAMES, Fitted

DRAWS, CHAINS, N_OBS = 6, 2, 300
MATRIX = ("chain", "draw", "feature", "component")
VECTOR = ("chain", "draw", "component")

# The table in the docstring of `sample`.
DIMS = {
    "coefficient": MATRIX,
    "direction": MATRIX,
    "scale": VECTOR,
    "bias": VECTOR,
    "weight": VECTOR,
    "dispersion": VECTOR,
    "gate": ("chain", "draw", "component", "gate_feature"),
    "gate_bias": VECTOR,
}
GROUPS = {
    "posterior",
    "sample_stats",
    "log_likelihood",
    "log_prior",
    "posterior_predictive",
    "observed_data",
    "constant_data",
    "moment_init",
}


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


def sampled(start: Fitted, sampler: FakeSampler | None = None, **arguments: Any) -> xr.DataTree:
    """What `sample` makes of draws near the start, at its coefficients for a size of zero."""
    fit = start.fit
    given: dict[str, Any] = {"draws": DRAWS, "chains": CHAINS, "random_seed": 5, "init": fit}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pm, "sample", sampler or FakeSampler())
        return sample(
            start.X,
            start.y,
            fit.n_components,
            family=fit.family,
            link=fit.link,
            **(given | start.block | arguments),
        )


@pytest.fixture(scope="module")
def tree() -> xr.DataTree:
    """Everything at once: gaussian experts of weighted rows in groups, with offsets."""
    return sampled(fitted("gaussian", "identity", "both"))


# --- groups, names, dims -------------------------------------------------------------------------


def test_groups_are_those_of_the_docstring(tree: xr.DataTree) -> None:
    assert set(tree.children) == GROUPS
    for name in GROUPS:
        assert f"``{name}``" in str(sample.__doc__)


def test_posterior_has_the_names_order_and_dims_of_the_docstring(tree: xr.DataTree) -> None:
    posterior = tree["posterior"].to_dataset()
    assert list(posterior.data_vars)[: len(DIMS)] == list(DIMS) == list(ORDER)
    assert {name: posterior[name].dims for name in DIMS} == DIMS
    assert all(posterior[name].dtype == np.float64 for name in DIMS)
    assert list(posterior["feature"].to_numpy()) == NAMES
    assert list(posterior["gate_feature"].to_numpy()) == GATE_NAMES
    assert_array_equal(posterior["component"], [0, 1])
    assert dict(posterior.sizes) == {
        "chain": CHAINS,
        "draw": DRAWS,
        "feature": 3,
        "component": 2,
        "gate_feature": 2,
        "tangent": 2,
    }


def test_plain_mixture_has_no_more_than_it_needs() -> None:
    tree = sampled(fitted("poisson", "log", "plain", with_extras=False), directions="fixed")
    assert list(tree["posterior"].data_vars) == [
        "coefficient",
        "direction",
        "scale",
        "bias",
        "weight",
        "standardised_scale",
        "standardised_bias",
    ]
    assert "gate_feature" not in tree["posterior"].coords
    assert set(tree["constant_data"].data_vars) == {"X", "sample_weight"}


def test_free_variables_come_last(tree: xr.DataTree) -> None:
    posterior = tree["posterior"].to_dataset()
    assert list(posterior.data_vars)[len(DIMS) :] == [
        "standardised_gate_bias",
        "standardised_gate",
        "standardised_scale",
        "tilt",
        "standardised_bias",
        "standardised_dispersion",
    ]
    assert posterior["tilt"].dims == ("chain", "draw", "component", "tangent")


def test_scale_and_direction_follow_from_the_coefficients(tree: xr.DataTree) -> None:
    posterior = tree["posterior"].to_dataset()
    assert_allclose((posterior["direction"] ** 2).sum("feature"), 1.0)
    assert_allclose(posterior["direction"] * posterior["scale"], posterior["coefficient"])


@pytest.mark.parametrize(
    ("family", "largest", "kind"),
    [
        ("poisson", 3.0, "i"),
        ("poisson", 1e19, "f"),
        ("bernoulli", 1.0, "i"),
        ("gaussian", 3.0, "f"),
    ],
)
def test_observed_responses_have_the_type_of_replicated_ones(
    family: str, largest: float, kind: str
) -> None:
    """ArviZ plots counts only if both are whole numbers; those beyond 64 bits stay as they are."""
    y = np.array([0.0, 1.0, 0.0, largest])
    data = validate_data(np.arange(4.0)[:, None], y, family=family)
    observed = _as_responses(data)
    assert observed.dtype.kind == kind
    assert_array_equal(observed, y)


def test_data_are_those_given(tree: xr.DataTree) -> None:
    start = fitted("gaussian", "identity", "both")
    constant = tree["constant_data"].to_dataset()
    assert_array_equal(tree["observed_data"]["y"], start.y)
    assert_array_equal(constant["X"], start.X)
    assert constant["X"].dims == ("obs", "feature")
    for name in ("offset", "sample_weight", "groups"):
        assert_array_equal(constant[name], start.block[name])
    assert_array_equal(constant["gating"], start.block["gating"])
    assert list(constant["gate_feature"].to_numpy()) == GATE_NAMES


def test_start_and_versions_are_recorded(tree: xr.DataTree) -> None:
    fit = fitted("gaussian", "identity", "both").fit
    own = tree["moment_init"].to_dataset()
    assert_array_equal(own["initial_coefficient"], fit.coefficients)
    assert_array_equal(own["initial_bias"], fit.biases)
    assert own["anchor"].dims == ("feature", "component")
    assert float(own["log_likelihood"]) == fit.log_likelihood
    expected = {
        "family": "gaussian",
        "link": "identity",
        "directions": "anchored",
        "anchor_angle": 45.0,
        "init": "EMFit",
        "status": "ok",
        "pymc_version": version("pymc"),
        "arviz_version": version("arviz"),
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
    }
    assert {name: own.attrs[name] for name in expected} == expected


def test_start_from_arrays_is_recorded() -> None:
    start = fitted("poisson", "log", "plain")
    fit = start.fit
    tree = sampled(start, init=(fit.coefficients, fit.biases, fit.weights))
    assert tree["moment_init"].attrs["init"] == "arrays"
    assert_array_equal(tree["moment_init"]["initial_coefficient"], fit.coefficients)


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["plain", "groups", "both"])
def test_log_likelihood_of_draws_at_the_fit_is_the_fit_s(variant: str) -> None:
    start = fitted("gaussian", "identity", variant)
    tree = sampled(start, FakeSampler(size=0.0))
    rows, _ = rows_for(start.fit, start.X, start.y, **start.block)
    values, weights = unit_scores(start.fit, rows)
    actual = tree["log_likelihood"].to_dataset()["y"]
    unit = "obs" if variant == "plain" else "group"
    assert actual.dims == ("chain", "draw", unit)
    assert values.shape == weights.shape
    assert_allclose(actual[1, 2], values, rtol=1e-7, atol=1e-7)
    # The same from what the tree holds, as for a run that was killed.
    xr.testing.assert_identical(stored_log_likelihood(tree), tree["log_likelihood"].to_dataset())
    if unit == "group":
        labels = start.block["groups"]
        first = [labels[0], next(label for label in labels if label != labels[0])]
        assert list(actual[unit].to_numpy()[:2]) == first
        assert len(actual[unit]) == len(set(labels))


def test_labels_of_groups_may_be_objects() -> None:
    start = fitted("gaussian", "identity", "groups")
    numbers = np.unique(start.block["groups"], return_inverse=True)[1]
    for labels, kind in ((numbers, "i"), (start.block["groups"].astype(object), "U")):
        tree = sampled(start, groups=labels)
        assert tree["constant_data"]["groups"].dtype.kind == kind
        assert tree["log_likelihood"]["group"].dtype.kind == kind


def test_replicated_responses_have_rows(tree: xr.DataTree) -> None:
    replicated = tree["posterior_predictive"]["y"]
    assert replicated.dims == ("chain", "draw", "obs")
    assert replicated.shape == (CHAINS, DRAWS, N_OBS)
    assert np.all(np.isfinite(replicated))


def test_groups_of_rows_can_be_left_out() -> None:
    tree = sampled(
        fitted("poisson", "log", "plain"), log_likelihood=False, posterior_predictive=False
    )
    assert set(tree.children) == GROUPS - {"log_likelihood", "posterior_predictive"}


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")  # draws are few
def test_sensitivity_to_the_prior_is_read_by_arviz() -> None:
    """Its summary has a dim `component` of its own, so ours needs another name there."""
    tree = sampled(fitted("poisson", "log", "plain"), draws=60)
    dataset = az.psense(tree, var_names=["coefficient"], group="prior")
    assert np.all(np.isfinite(dataset["coefficient"]))

    def renamed(group: xr.Dataset) -> xr.Dataset:
        return group.rename(component="part") if "component" in group.dims else group

    table = az.psense_summary(tree.map_over_datasets(renamed), var_names=["bias", "weight"])
    assert list(table.columns)[:2] == ["prior", "likelihood"]
    assert len(table) == 4


def test_variables_that_are_left_out_leave_no_log_prior() -> None:
    tree = sampled(fitted("poisson", "log", "plain"), var_names=["coefficient", "bias"])
    assert "log_prior" not in tree.children


def test_large_groups_of_rows_are_made_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    start = fitted("poisson", "log", "plain")
    monkeypatch.setattr("moment_init.posterior.tree.LARGEST_GROUP", CHAINS * DRAWS * N_OBS - 1)
    with pytest.warns(UserWarning, match=r"group 'posterior_predictive' was left out: .* 3.6e\+03"):
        tree = sampled(start, log_likelihood=True)
    assert "log_likelihood" in tree.children
    assert "posterior_predictive" not in tree.children
    monkeypatch.setattr("moment_init.posterior.tree.LARGEST_GROUP", CHAINS * DRAWS * N_OBS)
    assert "posterior_predictive" in sampled(start).children


def test_asking_for_rows_without_their_parameters_is_refused() -> None:
    start = fitted("gaussian", "identity", "plain")
    with pytest.raises(ValueError, match="`var_names` must contain all parameters"):
        sampled(start, var_names=["bias"], log_likelihood=True)


@pytest.mark.parametrize("names", [["coefficient"], ["bias"], ["coefficient", "bias", "weight"]])
def test_variables_that_the_user_leaves_out_cost_no_run(names: list[str]) -> None:
    tree = sampled(fitted("gaussian", "identity", "plain"), var_names=names)
    assert set(names) <= set(tree["posterior"].data_vars)
    assert "log_likelihood" not in tree.children
    assert "observed_data" in tree.children


# --- labels --------------------------------------------------------------------------------------


def test_switched_draws_of_free_directions_get_their_labels_back() -> None:
    start = fitted("gaussian", "identity", "gate")
    plain = sampled(start, directions="free")
    tree = sampled(start, FakeSampler(switched=[1, 4]), directions="free")
    for name in [*DIMS, "standardised_coefficient", "standardised_bias"]:
        assert_allclose(tree["posterior"][name], plain["posterior"][name], rtol=1e-12)
    own = tree["moment_init"].to_dataset()
    assert float(own["moved_share"]) == pytest.approx(2 / DRAWS)
    assert_allclose(own["switched_share"], 2 / DRAWS)
    assert_array_equal(own["permutation"][0, 1], [1, 0])
    assert_allclose(tree["log_likelihood"]["y"], plain["log_likelihood"]["y"], rtol=1e-9)


def test_labels_of_anchored_components_are_the_model_s() -> None:
    """Anchors name components: draws stay as they are, and what switched is said and recorded."""
    start = fitted("gaussian", "identity", "plain")
    plain = sampled(start)["posterior"].to_dataset()
    with pytest.warns(WeakSignalWarning, match="Labels of components switch in .* draws: anchors"):
        tree = sampled(start, FakeSampler(switched=[1]))
    posterior = tree["posterior"].to_dataset()
    assert_array_equal(posterior["tilt"][0, 1], plain["tilt"][0, 1, ::-1])
    assert_array_equal(posterior["weight"][0, 1], plain["weight"][0, 1, ::-1])
    assert_allclose(tree["moment_init"]["switched_share"], 1 / DRAWS)
    aligned = align_components(tree, start.fit)["posterior"].to_dataset()
    assert_allclose(aligned["coefficient"], plain["coefficient"], rtol=1e-12)


def test_fixed_directions_are_not_relabelled() -> None:
    tree = sampled(fitted("gaussian", "identity", "plain"), directions="fixed")
    assert "permutation" not in tree["moment_init"]


# --- what users do with it -----------------------------------------------------------------------


def test_arviz_and_membership_read_it(tree: xr.DataTree) -> None:
    table = az.summary(tree, var_names=["coefficient", "weight"], round_to="none")
    assert list(table.index[:2]) == ["coefficient[age, 0]", "coefficient[age, 1]"]
    shares = predict_membership(tree)
    assert_allclose(shares.sum("component"), 1.0)
    assert shares.dims[:2] == ("chain", "draw")


def test_warm_up_is_completed_as_the_draws_are() -> None:
    class WithWarmUp(FakeSampler):
        def __call__(self, **arguments: Any) -> xr.DataTree:
            tree = super().__call__(**arguments)
            tree["warmup_posterior"] = tree["posterior"].copy()
            return tree

    tree = sampled(fitted("poisson", "log", "plain"), WithWarmUp(), discard_tuned_samples=False)
    assert "warmup_posterior" in tree.children
    assert list(tree["warmup_posterior"].data_vars) == list(tree["posterior"].data_vars)


@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_files_keep_everything(tree: xr.DataTree, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tree"
    if kind == "netcdf":
        tree.to_netcdf(path, engine="h5netcdf")
        back = xr.open_datatree(path, engine="h5netcdf")
    else:
        tree.to_zarr(path, zarr_format=2)
        back = xr.open_datatree(path, engine="zarr")
    assert set(back.children) == GROUPS
    for name in GROUPS:
        xr.testing.assert_identical(back[name].to_dataset().load(), tree[name].to_dataset())
    back.close()
