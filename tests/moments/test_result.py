"""What `estimate` returns: shapes, labels, printed tables, and a tree that ArviZ reads."""

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import MomentEstimate, Status, WeakSignalWarning, estimate, simulate_mixture
from moment_init.moments.result import ComponentSelection
from tests.sampled import moment_coefficients, stacked_diagnostics, third_moment_diagnostics

NAMES = ["age", "income", "<b>", "d"]


def fitted(family: str = "bernoulli", n_obs: int = 20_000, **options: Any) -> MomentEstimate:
    data = simulate_mixture(
        n_obs, 4, 2, family=family, scales=3.0 if family == "bernoulli" else 1.0, biases=0.0,
        directions=np.eye(4)[:, :2], weights=[0.6, 0.4], random_seed=3,
    )  # fmt: skip
    frame = pd.DataFrame(data.X, columns=NAMES)
    return estimate(frame, data.y, 2, family=family, random_seed=1, **options)


def fitted_by_power(**options: Any) -> MomentEstimate:
    return fitted(n_obs=50_000, method="power", **options)


def noisy(method: Any) -> MomentEstimate:
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((3000, 4)), rng.integers(0, 2, 3000)
    with pytest.warns(WeakSignalWarning, match="stand out|standard error"):
        return estimate(X, y, 1, method=method, random_seed=1)


SELECTION = ComponentSelection(
    n_components=(1, 2, 3),
    log_likelihood=(-5000.0, -4321.25, -4320.0),
    bic=(10030.0, 8700.5, 8750.0),
    n_visible=2,
)


# --- fields --------------------------------------------------------------------------------------


def test_shapes_and_units() -> None:
    fit = fitted()
    diagnostics = stacked_diagnostics(fit)
    assert fit.n_components == 2
    assert fit.directions.shape == (4, 2)
    assert_allclose(np.linalg.norm(fit.directions, axis=0), 1.0, rtol=1e-12)
    for value in (moment_coefficients(fit), fit.scales, fit.biases, fit.weights):
        assert value is not None
        assert value.shape == (2,)
    assert fit.standard_errors is not None
    assert fit.standard_errors.shape == (2,)
    assert diagnostics.spectrum.shape == (4,)
    assert np.all(np.diff(diagnostics.spectrum) <= 0.0)
    assert_allclose(diagnostics.gap, diagnostics.spectrum[1] / diagnostics.spectrum[2])
    assert diagnostics.n_obs == 20_000
    assert 0.0 <= diagnostics.residual <= 1.0
    assert diagnostics.moment_misfit > 0.0
    assert diagnostics.misfit is not None
    assert fit.dispersion is None
    assert fit.selection is None


def test_shapes_and_units_of_a_single_moment() -> None:
    fit = fitted_by_power()
    diagnostics = third_moment_diagnostics(fit)
    assert fit.n_components == 2
    assert fit.directions.shape == (4, 2)
    assert moment_coefficients(fit).shape == diagnostics.signal_to_noise.shape == (2,)
    assert_allclose(np.linalg.norm(fit.directions, axis=0), 1.0, rtol=1e-12)
    assert diagnostics.n_obs == 50_000
    assert diagnostics.singular_values.shape == (4,)
    assert diagnostics.is_definite
    assert diagnostics.whitening_condition >= 1.0
    assert 0.0 <= diagnostics.residual <= 1.0


def test_what_is_not_known_is_none() -> None:
    fit = fitted_by_power()
    for name in ("scales", "biases", "weights", "coefficients", "dispersion", "standard_errors"):
        assert getattr(fit, name) is None
    assert fit.log_likelihood is None
    assert fit.candidates == ()
    assert third_moment_diagnostics(fit).weight_sum is None


def test_candidates_are_distinct_mixtures() -> None:
    fit = fitted("gaussian")
    assert len(fit.candidates) >= 1
    for candidate in fit.candidates:
        assert candidate.coefficients.shape == (4, 2)
        assert_allclose(candidate.weights.sum(), 1.0, rtol=1e-12)
        assert candidate.dispersion is not None
        assert np.all(candidate.dispersion > 0.0)


def test_coefficients_are_scales_times_directions() -> None:
    fit = fitted_by_power(known_scales=3.0, known_biases=0.0)
    assert fit.coefficients is not None
    assert_array_equal(fit.coefficients, 3.0 * fit.directions)
    assert fit.weights is not None
    assert_allclose(fit.weights.sum(), 1.0, rtol=1e-12)
    stacked = fitted()
    assert stacked.coefficients is not None
    assert stacked.scales is not None
    assert_array_equal(stacked.coefficients, stacked.directions * stacked.scales)


def test_results_are_frozen() -> None:
    fit = fitted()
    with pytest.raises(FrozenInstanceError, match="cannot assign to field"):
        fit.directions = np.eye(4)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot assign to field"):
        SELECTION.n_visible = 3  # type: ignore[misc]


def test_status_is_a_string() -> None:
    expected = [
        "ok",
        "weak_signal",
        "not_identified",
        "misfit",
        "not_converged",
        "not_explored",
        "input_assumption",
    ]
    assert [str(status) for status in Status] == expected
    assert fitted().status == "ok"


# --- labelled output -----------------------------------------------------------------------------

BY_COMPONENT = ("chain", "draw", "component")
BY_FEATURE = ("chain", "draw", "feature", "component")
VARIABLES = {
    "direction": BY_FEATURE,
    "moment_coefficient": BY_COMPONENT,
    "scale": BY_COMPONENT,
    "bias": BY_COMPONENT,
    "weight": BY_COMPONENT,
    "dispersion": BY_COMPONENT,
    "direction_error": BY_COMPONENT,
    "coefficient": BY_FEATURE,
}


def test_tree_has_the_variables_of_the_data_model() -> None:
    fit = fitted("gaussian")
    tree = fit.to_datatree()
    assert isinstance(tree, xr.DataTree)
    assert set(tree.children) == {"posterior", "moment_init"}
    posterior = tree["posterior"].to_dataset()
    assert {str(name): posterior[name].dims for name in posterior.data_vars} == VARIABLES
    assert list(posterior["feature"].values) == NAMES
    assert_array_equal(posterior["component"].values, [0, 1])
    values = {
        "direction": fit.directions,
        "moment_coefficient": moment_coefficients(fit),
        "scale": fit.scales,
        "bias": fit.biases,
        "weight": fit.weights,
        "dispersion": fit.dispersion,
        "direction_error": fit.standard_errors,
        "coefficient": fit.coefficients,
    }
    for name, value in values.items():
        assert_array_equal(posterior[name].values[0, 0], value)
    assert posterior.attrs["inference_library"] == "moment_init"
    assert posterior.attrs["inference_library_version"]


def test_tree_leaves_out_what_is_not_known() -> None:
    posterior = fitted_by_power().to_datatree()["posterior"].to_dataset()
    assert set(posterior.data_vars) == {"direction", "moment_coefficient"}
    bernoulli = fitted().to_datatree()["posterior"].to_dataset()
    assert set(VARIABLES) - set(bernoulli.data_vars) == {"dispersion"}


SPECTRA = {"spectrum", "singular_values"}


@pytest.mark.parametrize("method", ["stacked", "power"])
def test_tree_holds_the_diagnosis(method: Any) -> None:
    fit = fitted(n_obs=50_000, method=method)
    group = fit.to_datatree()["moment_init"].to_dataset()
    known = {
        field.name: getattr(fit.diagnostics, field.name)
        for field in fields(fit.diagnostics)
        if getattr(fit.diagnostics, field.name) is not None
    }
    assert set(group.data_vars) == set(known)
    for name, value in known.items():
        assert_array_equal(group[name].values, value)
        if isinstance(value, np.ndarray):
            assert group[name].dims == (("order",) if name in SPECTRA else ("component",))
    assert "weight_sum" not in group
    assert group.attrs["status"] == "ok"
    assert group.attrs["warnings"] == ""
    assert (group.attrs["method"], group.attrs["family"]) == (method, "bernoulli")
    assert group.attrs["link"] == "logit"


@pytest.mark.parametrize(
    "make",
    [
        fitted,
        fitted_by_power,
        lambda: noisy("stacked"),
    ],
)
def test_groups_come_back_from_a_file(make: Any, tmp_path: Path) -> None:
    """SciPy writes NetCDF of one group a file; it must not meet a type that NetCDF lacks."""
    tree = make().to_datatree()
    for name in ("posterior", "moment_init"):
        dataset = tree[name].to_dataset()
        path = tmp_path / f"{name}.nc"
        dataset.to_netcdf(path, engine="scipy")
        with xr.open_dataset(path, engine="scipy") as loaded:
            xr.testing.assert_equal(loaded, dataset)
            assert loaded.attrs["inference_library"] == "moment_init"
            assert loaded.attrs.get("status") == dataset.attrs.get("status")


def test_arviz_summarises_the_tree() -> None:
    tree = fitted().to_datatree()
    means = az.extract(tree, group="posterior")["direction"].mean("sample")
    assert means.sizes == {"feature": 4, "component": 2}


@pytest.mark.parametrize("method", ["stacked", "power"])
def test_tree_of_a_warning_says_so(method: Any) -> None:
    fit = noisy(method)
    group = fit.to_datatree()["moment_init"].to_dataset()
    assert group.attrs["status"] == "weak_signal"
    assert group.attrs["warnings"].splitlines() == list(fit.warnings)


# --- printed tables ------------------------------------------------------------------------------


def test_printed_table() -> None:
    fit = fitted("gaussian")
    lines = repr(fit).splitlines()
    expected = (
        "MomentEstimate: 2 components, 4 features, gaussian (identity), 20000 rows, status ok"
    )
    assert lines[0] == expected
    assert lines[1].split() == ["u_0", "u_1"]
    assert [line.split()[0] for line in lines[2:6]] == NAMES
    assert float(lines[2].split()[1]) == pytest.approx(fit.directions[0, 0], abs=5e-4)
    labels = ("scale", "bias", "weight", "dispersion", "direction s.e.", "moment coefficient")
    assert all(line.startswith(label) for line, label in zip(lines[6:], labels, strict=True))


def test_printed_table_of_a_single_moment() -> None:
    lines = repr(fitted_by_power(known_scales=3.0, known_biases=0.0)).splitlines()
    labels = ("scale", "bias", "weight", "moment coefficient", "signal to noise")
    assert all(line.startswith(label) for line, label in zip(lines[6:], labels, strict=True))


def test_printed_table_without_scales() -> None:
    text = repr(fitted_by_power())
    assert "scale" not in text
    assert "moment coefficient" in text


def test_the_choice_of_the_number_is_printed() -> None:
    """The smallest BIC is marked, and only that one."""
    lines = str(SELECTION).splitlines()
    assert lines[0].split() == ["components", "log-likelihood", "BIC"]
    assert lines[1].split() == ["1", "-5000.0", "10030.0"]
    assert lines[2].split() == ["2", "-4321.2", "8700.5", "chosen"]
    assert lines[3].split() == ["3", "-4320.0", "8750.0"]
    assert lines[4] == "directions that stand out in the spectrum: 2"
    assert str(SELECTION) in repr(replace(fitted(), selection=SELECTION))


@pytest.mark.parametrize("method", ["stacked", "power"])
def test_warnings_are_printed(method: Any) -> None:
    fit = noisy(method)
    assert repr(fit).splitlines()[-1] == f"! {fit.warnings[-1]}"
    assert f"<li>{fit.warnings[0]}</li>" in fit._repr_html_()


def test_notebook_table_escapes_names() -> None:
    html = fitted_by_power()._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count("<tr>") == 1 + 4 + 2
    assert "u<sub>1</sub>" in html
