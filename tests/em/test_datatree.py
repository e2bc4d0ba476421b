"""A fit as a tree that ArviZ reads: variables, moments of the draws, files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.stats import chi2, multivariate_normal

from moment_init.em.information import LaplaceApproximation
from moment_init.likelihood.parameters import pack
from moment_init.results import StartRecord, StartStatus
from tests.em_fits import GATE_NAMES, NAMES, Fitted, make_fit
from tests.likelihood_problems import BOTH, GATED, VARIANTS, WEIGHTS

FloatArray = NDArray[np.float64]

BY_COMPONENT = ("chain", "draw", "component")
BY_FEATURE = ("chain", "draw", "feature", "component")
VARIABLES = {
    "coefficient": BY_FEATURE,
    "direction": BY_FEATURE,
    "scale": BY_COMPONENT,
    "bias": BY_COMPONENT,
    "weight": BY_COMPONENT,
    "dispersion": BY_COMPONENT,
    "gate": ("chain", "draw", "component", "gate_feature"),
    "gate_bias": BY_COMPONENT,
}

N_ERRORS = 5.0
"""Standard errors that a moment of the draws may be off: once in two million."""


def tree_of(fitted: Fitted, **options: Any) -> xr.DataTree:
    return fitted.fit.to_datatree(
        fitted.X, fitted.y, draws=40, random_seed=1, **fitted.block, **options
    )


@pytest.fixture
def gated(rng: np.random.Generator) -> Fitted:
    return make_fit("gaussian", "identity", rng, variant=GATED)


# --- variables -----------------------------------------------------------------------------------


def test_tree_has_the_variables_of_the_data_model(gated: Fitted) -> None:
    tree = tree_of(gated)
    groups = {"posterior", "sample_stats", "log_likelihood", "moment_init"}
    assert set(tree.children) == groups | {"observed_data", "constant_data"}
    posterior = tree["posterior"].to_dataset()
    assert {str(name): posterior[name].dims for name in posterior.data_vars} == VARIABLES
    assert list(posterior["feature"].values) == NAMES
    assert list(posterior["gate_feature"].values) == GATE_NAMES
    assert dict(posterior.sizes)["draw"] == 40
    assert posterior.attrs["inference_library"] == "moment_init"
    assert posterior.attrs["warning"] == ""
    assert_allclose(posterior["weight"].sum("component"), 1.0, rtol=1e-12)
    product = posterior["direction"] * posterior["scale"]
    assert_allclose(product, posterior["coefficient"].transpose(*product.dims), rtol=1e-10)
    assert gated.fit.gate_centre is not None
    logits = posterior["gate_bias"].values + posterior["gate"].values @ gated.fit.gate_centre
    weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    assert_allclose(weights, posterior["weight"].values, rtol=1e-9)
    for name in ("gate", "gate_bias"):
        assert_allclose(posterior[name].sum("component"), 0.0, atol=1e-12)


def test_tree_without_data_has_no_likelihood(rng: np.random.Generator) -> None:
    tree = make_fit("poisson", "log", rng).fit.to_datatree(draws=10)
    assert set(tree.children) == {"posterior", "sample_stats", "moment_init"}
    assert list(tree["sample_stats"].data_vars) == ["log_q"]
    left_out = {"dispersion", "gate", "gate_bias"}
    assert set(VARIABLES) - set(tree["posterior"].data_vars) == left_out


def test_tree_holds_the_diagnosis(gated: Fitted) -> None:
    starts = (
        StartRecord("tensor 1", -5.0, 12, StartStatus.CONVERGED),
        StartRecord("random 1", np.nan, 0, StartStatus.FAILED),
    )
    fit = replace(gated.fit, starts=starts, warnings=("a", "b"))
    group = fit.to_datatree(draws=3)["moment_init"].to_dataset()
    assert list(group["start_origin"].values) == ["tensor 1", "random 1"]
    assert list(group["start_status"].values) == ["converged", "failed"]
    assert_array_equal(group["start_log_likelihood"].values, [-5.0, np.nan])
    assert_array_equal(group["history"].values, fit.history)
    for name in ("log_likelihood", "aic", "bic", "icl", "n_parameters", "n_units", "n_iter"):
        assert float(group[name]) == getattr(fit, name)
    assert group.attrs["warnings"].splitlines() == ["a", "b"]
    assert (group.attrs["family"], group.attrs["status"]) == ("gaussian", "ok")
    assert group.attrs["inference_library_version"]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_log_likelihood_of_every_unit(variant: str, rng: np.random.Generator) -> None:
    """`lp` is its weighted sum; that of a draw without noise is the fit's log-likelihood."""
    fitted = make_fit("negative_binomial", "log", rng, variant=VARIANTS[variant])
    still = LaplaceApproximation(np.zeros((0, 0)), fitted.fit.laplace.undetermined)
    still = replace(still, root=np.zeros((len(still.undetermined), 0)))
    tree = replace(fitted, fit=replace(fitted.fit, laplace=still))
    values = tree_of(tree)
    assert_allclose(values["sample_stats"]["lp"], fitted.fit.log_likelihood, rtol=1e-10)
    rows = values["log_likelihood"]["y"]
    if VARIANTS[variant].grouped:
        assert rows.dims == ("chain", "draw", "group")
        assert set(rows["group"].values) == set(fitted.block["groups"])
        label = fitted.block["groups"][7]
        own = fitted.block["groups"] == label
        block = {name: column[own] for name, column in fitted.block.items()}
        expected = fitted.fit.score(fitted.X[own], fitted.y[own], **block)
        assert_allclose(rows.sel(group=label).values[0, 0], expected, rtol=1e-10)
    else:
        assert rows.dims == ("chain", "draw", "obs")
        total = rows.values[0, 0] @ fitted.data.sample_weight
        assert_allclose(total, fitted.fit.log_likelihood, rtol=1e-10)
    assert_array_equal(values["observed_data"]["y"].values, fitted.y)


# --- draws ---------------------------------------------------------------------------------------


def packed_draws(tree: xr.DataTree) -> FloatArray:
    """Draws in the order of `pack`, by hand."""
    posterior = tree["posterior"].to_dataset().isel(chain=0)
    parts = [posterior["coefficient"].values, posterior["bias"].values[:, None]]
    parts.append(np.log(posterior["dispersion"].values)[:, None])
    by_component = np.concatenate(parts, axis=1)  # (draw, 5, component)
    biases, slopes = posterior["gate_bias"].values, posterior["gate"].values
    logits = [biases[:, :1] - biases[:, 1:], slopes[:, 0] - slopes[:, 1]]
    return np.concatenate([by_component.transpose(0, 2, 1).reshape(len(logits[0]), -1), *logits], 1)


def test_moments_of_the_draws(gated: Fitted) -> None:
    """Mean, and every entry of the covariance with variance (C_ii C_jj + C_ij^2) / n."""
    fit, n = gated.fit, 4000
    draws = packed_draws(fit.to_datatree(draws=n, random_seed=2))
    covariance = fit.covariance
    assert covariance is not None
    variances = np.diag(covariance)
    errors = np.sqrt(variances / n)
    assert np.max(np.abs(draws.mean(axis=0) - pack(fit.parameters)) / errors) < N_ERRORS
    found = np.cov(draws.T)
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / n)
    assert np.max(np.abs(found - covariance) / errors) < N_ERRORS


def test_log_density_of_the_draws(gated: Fitted) -> None:
    """On the scale of `pack`: a multivariate normal."""
    tree = gated.fit.to_datatree(draws=20, random_seed=2)
    covariance = gated.fit.covariance
    assert covariance is not None
    normal = multivariate_normal(pack(gated.fit.parameters), covariance)
    expected = normal.logpdf(packed_draws(tree))
    found = tree["sample_stats"].to_dataset()["log_q"].values[0]
    assert_allclose(found, expected, atol=1e-5)


def test_likelihood_falls_as_the_laplace_approximation_says(rng: np.random.Generator) -> None:
    """2 (max - lp) is about chi-square: its mean over 400 draws of many rows, in errors plus 5 %.

    The 5 % are for what the likelihood of 4,000 rows is not quadratic.
    """
    fitted = make_fit("gaussian", "identity", rng, n_obs=4000)
    tree = fitted.fit.to_datatree(fitted.X, fitted.y, draws=400, random_seed=3, **fitted.block)
    falls = 2 * (fitted.fit.log_likelihood - tree["sample_stats"].to_dataset()["lp"].values[0])
    n_parameters = fitted.fit.n_parameters
    error = np.sqrt(chi2.var(n_parameters) / 400)
    assert abs(falls.mean() - n_parameters) < N_ERRORS * error + 0.05 * n_parameters


def test_what_is_held_does_not_vary(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, fixed_weights=WEIGHTS, shared="age")
    posterior = fitted.fit.to_datatree(draws=30, random_seed=1)["posterior"].to_dataset()
    assert_allclose(posterior["weight"] - WEIGHTS, 0.0, atol=1e-12)
    ages = posterior["coefficient"].sel(feature="age").values
    assert_allclose(ages[..., 0], ages[..., 1], rtol=1e-10)
    assert np.std(ages) > 0.0
    assert np.all(np.isfinite(fitted.fit.to_datatree(draws=3)["sample_stats"]["log_q"]))


def test_singular_information_is_said(gated: Fitted) -> None:
    laplace = gated.fit.laplace
    undetermined = laplace.undetermined.copy()
    undetermined[-1] = True
    flat = LaplaceApproximation(laplace.root[:, 1:], undetermined)
    tree = replace(gated.fit, laplace=flat).to_datatree(draws=5)
    assert "singular" in tree["posterior"].attrs["warning"]


def test_wild_draws_of_a_dispersion_stay_finite(gated: Fitted) -> None:
    laplace = gated.fit.laplace
    root = laplace.root.copy()
    root[4] *= 1e5
    fit = replace(gated.fit, laplace=replace(laplace, root=root))
    posterior = fit.to_datatree(draws=50, random_seed=0)["posterior"]
    assert np.all(np.isfinite(posterior["dispersion"]))


def test_same_seed_same_draws(gated: Fitted) -> None:
    first, second = tree_of(gated), tree_of(gated)
    xr.testing.assert_identical(first, second)


# --- ArviZ and files -----------------------------------------------------------------------------


def test_arviz_summarises_the_tree(rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng)
    tree = fitted.fit.to_datatree(fitted.X, fitted.y, draws=200, random_seed=1, **fitted.block)
    table = az.summary(tree, var_names=["coefficient", "bias", "weight", "scale"])
    assert len(table) == 6 + 2 + 2 + 2
    mean = az.extract(tree, group="posterior")["weight"].mean("sample")
    assert_allclose(mean, fitted.fit.weights, atol=5 * fitted.fit.standard_errors.weights.max())


def test_arviz_labels_every_variable_right(gated: Fitted) -> None:
    """ArviZ takes the dims of all variables in one order; theirs must not contradict it."""
    posterior = tree_of(gated)["posterior"].to_dataset()
    tree = xr.DataTree.from_dict({"posterior": posterior})
    az.summary(tree)  # divides by spreads: a constant logit would warn
    table = az.summary(tree, kind="stats", round_to="none")
    for name in VARIABLES:
        means = posterior[name].mean(("chain", "draw"))
        stacked = means.stack(entry=means.dims)
        for index, expected in zip(stacked["entry"].values, stacked.values, strict=True):
            label = ", ".join(map(str, np.atleast_1d(np.array(index, dtype=object))))
            found = float(table.loc[f"{name}[{label}]", "mean"])
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("variant", ["plain", "both"])
def test_groups_come_back_from_netcdf(
    variant: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """SciPy writes NetCDF of one group a file; it must not meet a type that NetCDF lacks."""
    tree = tree_of(make_fit("gamma", "log", rng, variant=VARIANTS[variant]))
    for name in tree.children:
        dataset = tree[name].to_dataset()
        path = tmp_path / f"{name}.nc"
        dataset.to_netcdf(path, engine="scipy")
        with xr.open_dataset(path, engine="scipy") as loaded:
            xr.testing.assert_equal(loaded, dataset)
            assert loaded.attrs.get("status") == dataset.attrs.get("status")


def test_tree_comes_back_from_zarr(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("zarr")
    tree = tree_of(make_fit("gamma", "log", rng, variant=BOTH))
    tree.to_zarr(tmp_path / "fit.zarr", zarr_format=2, consolidated=False)
    loaded = xr.open_datatree(tmp_path / "fit.zarr", engine="zarr", consolidated=False)
    for name in tree.children:
        xr.testing.assert_equal(loaded[name].to_dataset().load(), tree[name].to_dataset())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"X": np.zeros((3, 3))}, "`X` and `y` must be given together.*X given, y missing"),
        ({"offset": np.zeros(3)}, "`X` and `y` must be given together"),
        ({"draws": 0}, "`draws` must be a positive integer; got 0"),
        ({"draws": 2.5}, "`draws` must be a positive integer; got 2.5"),
        ({"random_seed": -1}, "`random_seed` must be"),
    ],
)
def test_wrong_arguments_are_named(
    options: dict[str, Any], message: str, rng: np.random.Generator
) -> None:
    fit = make_fit("poisson", "log", rng).fit
    with pytest.raises(ValueError, match=message):
        fit.to_datatree(**options)
