"""What `estimate` returns: shapes, labels, printed tables, and a tree that ArviZ reads."""

from dataclasses import FrozenInstanceError
from typing import Any

import arviz as az  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import MomentEstimate, Status, WeakSignalWarning, estimate, simulate_mixture

NAMES = ["age", "income", "<b>", "d"]


def fitted(n_components: int = 2, **options: Any) -> MomentEstimate:
    data = simulate_mixture(
        50_000, 4, n_components, family="bernoulli", scales=3.0, biases=0.0,
        directions=np.eye(4)[:, :n_components], random_seed=3,
    )  # fmt: skip
    frame = pd.DataFrame(data.X, columns=NAMES)
    return estimate(frame, data.y, n_components, random_seed=1, **options)


def noisy() -> MomentEstimate:
    rng = np.random.default_rng(2)
    with pytest.warns(WeakSignalWarning, match="stand out"):
        return estimate(rng.standard_normal((3000, 4)), rng.integers(0, 2, 3000), 1, random_seed=1)


def test_shapes_and_units() -> None:
    fit = fitted()
    assert fit.n_components == 2
    assert fit.directions.shape == (4, 2)
    assert fit.moment_coefficients.shape == fit.diagnostics.signal_to_noise.shape == (2,)
    assert_allclose(np.linalg.norm(fit.directions, axis=0), 1.0, rtol=1e-12)
    assert fit.diagnostics.n_obs == 50_000
    assert fit.diagnostics.singular_values.shape == (4,)
    assert fit.diagnostics.is_definite
    assert fit.diagnostics.whitening_condition >= 1.0
    assert 0.0 <= fit.diagnostics.residual <= 1.0


def test_what_is_not_known_is_none() -> None:
    fit = fitted()
    assert fit.scales is None
    assert fit.biases is None
    assert fit.weights is None
    assert fit.coefficients is None
    assert fit.diagnostics.weight_sum is None


def test_coefficients_are_scales_times_directions() -> None:
    fit = fitted(known_scales=3.0, known_biases=0.0)
    assert fit.coefficients is not None
    assert_array_equal(fit.coefficients, 3.0 * fit.directions)
    assert fit.weights is not None
    assert_allclose(fit.weights.sum(), 1.0, rtol=1e-12)


def test_results_are_frozen() -> None:
    fit = fitted()
    with pytest.raises(FrozenInstanceError, match="cannot assign to field"):
        fit.directions = np.eye(4)  # type: ignore[misc]


def test_status_is_a_string() -> None:
    assert [str(status) for status in Status] == ["ok", "weak_signal", "not_identified"]
    assert fitted().status == "ok"


# --- labelled output -----------------------------------------------------------------------------

VARIABLES = {
    "direction": ("chain", "draw", "feature", "component"),
    "moment_coefficient": ("chain", "draw", "component"),
    "scale": ("chain", "draw", "component"),
    "bias": ("chain", "draw", "component"),
    "weight": ("chain", "draw", "component"),
    "coefficient": ("chain", "draw", "feature", "component"),
}


def test_tree_has_the_variables_of_the_data_model() -> None:
    fit = fitted(known_scales=3.0, known_biases=0.0)
    tree = fit.to_datatree()
    assert isinstance(tree, xr.DataTree)
    assert set(tree.children) == {"posterior", "moment_init"}
    posterior = tree["posterior"].to_dataset()
    assert {str(name): posterior[name].dims for name in posterior.data_vars} == VARIABLES
    assert list(posterior["feature"].values) == NAMES
    assert_array_equal(posterior["component"].values, [0, 1])
    assert_array_equal(posterior["direction"].values[0, 0], fit.directions)
    assert_array_equal(posterior["weight"].values[0, 0], fit.weights)
    assert_array_equal(posterior["coefficient"].values[0, 0], fit.coefficients)
    assert posterior.attrs["inference_library"] == "moment_init"
    assert posterior.attrs["inference_library_version"]


def test_tree_leaves_out_what_is_not_known() -> None:
    posterior = fitted().to_datatree()["posterior"].to_dataset()
    assert set(posterior.data_vars) == {"direction", "moment_coefficient"}


def test_tree_holds_the_diagnosis() -> None:
    fit = fitted()
    group = fit.to_datatree()["moment_init"].to_dataset()
    assert_array_equal(group["signal_to_noise"].values, fit.diagnostics.signal_to_noise)
    assert_array_equal(group["singular_value"].values, fit.diagnostics.singular_values)
    for name in ("noise_floor", "residual", "whitening_condition", "shrinkage"):
        assert float(group[name]) == getattr(fit.diagnostics, name)
    assert group.attrs["status"] == "ok"
    assert group.attrs["warnings"] == []
    assert group.attrs["n_obs"] == 50_000
    assert (group.attrs["method"], group.attrs["family"]) == ("power", "bernoulli")
    assert group.attrs["link"] == "logit"


def test_arviz_summarises_the_tree() -> None:
    tree = fitted(n_components=2).to_datatree()
    means = az.extract(tree, group="posterior")["direction"].mean("sample")
    assert means.sizes == {"feature": 4, "component": 2}


def test_tree_of_a_warning_says_so() -> None:
    fit = noisy()
    group = fit.to_datatree()["moment_init"].to_dataset()
    assert group.attrs["status"] == "weak_signal"
    assert group.attrs["warnings"] == list(fit.warnings)


# --- printed tables ------------------------------------------------------------------------------


def test_printed_table() -> None:
    fit = fitted(known_scales=3.0, known_biases=0.0)
    lines = repr(fit).splitlines()
    expected = "MomentEstimate: 2 components, 4 features, bernoulli (logit), 50000 rows, status ok"
    assert lines[0] == expected
    assert lines[1].split() == ["u_0", "u_1"]
    assert [line.split()[0] for line in lines[2:6]] == NAMES
    assert float(lines[2].split()[1]) == pytest.approx(fit.directions[0, 0], abs=5e-4)
    labels = ("scale", "bias", "weight", "moment coefficient", "signal to noise")
    assert all(line.startswith(label) for line, label in zip(lines[6:], labels, strict=True))


def test_printed_table_without_scales() -> None:
    text = repr(fitted())
    assert "scale" not in text
    assert "moment coefficient" in text


def test_warnings_are_printed() -> None:
    fit = noisy()
    assert repr(fit).splitlines()[-1] == f"! {fit.warnings[-1]}"
    assert f"<li>{fit.warnings[0]}</li>" in fit._repr_html_()


def test_notebook_table_escapes_names() -> None:
    html = fitted()._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count("<tr>") == 1 + 4 + 2
    assert "u<sub>1</sub>" in html
