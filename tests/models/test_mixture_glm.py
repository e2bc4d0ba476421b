"""The Bayesian models: likelihood and start against the fit, units, dims, new data."""

import re
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pymc.blocking import DictToArrayBijection
from pytensor.configdefaults import config
from scipy.special import softmax

from moment_init import fit_em, simulate_mixture
from moment_init.em.result import EMFit
from moment_init.models import mixture_glm, mixture_of_experts
from moment_init.models.mixture_glm import build_model
from tests.bayesian_models import COMPILE, Built, built, draw, evaluate, fitted, model_of
from tests.em_fits import GATE_NAMES, NAMES, Fitted
from tests.likelihood_problems import FAMILY_LINKS, VARIANTS
from tests.specified import specify_rows

DIRECTIONS = ("anchored", "fixed", "free")

# Every family and link plain, with groups, with a gate and with both; the kinds of directions in
# turn, so that each family has each. All rows have offsets and weights, binomial ones trials.
CASES = [
    (*pair, variant, DIRECTIONS[(place + shift) % 3])
    for place, pair in enumerate(FAMILY_LINKS)
    for shift, variant in enumerate(VARIANTS)
]


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Built:
    return built(*request.param)


# --- likelihood and start ------------------------------------------------------------------------


def test_likelihood_at_the_start_is_that_of_the_fit(case: Built) -> None:
    """All constants count. The columns are neither centred nor scaled, nor is the response."""
    assert case.log_likelihood == pytest.approx(case.fitted.fit.log_likelihood, rel=1e-11)


def test_start_is_the_fit(case: Built) -> None:
    """Rounding grows by the ratio of locations to spreads, which is below ten."""
    expected = user_values(case.fitted.fit)
    assert set(expected) - set(case.values) <= {"weight"}
    free = case.model.initial_point()
    for name, value in expected.items():
        actual = case.values.get(name)
        if actual is None:  # weights are free without a gate; logits of sum zero, the last left out
            logits = free["weight_simplex__"]
            actual = softmax(np.append(logits, -logits.sum()))
        assert_allclose(actual, value, rtol=1e-9, atol=1e-9 * np.abs(value).max(), err_msg=name)


def user_values(fit: EMFit) -> dict[str, Any]:
    """Parameters of a fit with the names of the model; logits of a gate sum to zero."""
    values = {
        "coefficient": fit.coefficients,
        "direction": fit.directions,
        "scale": fit.scales,
        "bias": fit.biases,
        "weight": fit.weights,
    }
    if fit.dispersion is not None:
        values["dispersion"] = fit.dispersion
    if fit.gate is not None and fit.gate_biases is not None:
        values["gate"] = fit.gate.T - fit.gate.mean(axis=1)
        values["gate_bias"] = fit.gate_biases - fit.gate_biases.mean()
    return values


def test_logp_and_gradient_are_finite(case: Built) -> None:
    assert np.isfinite(case.logp)
    assert np.all(np.isfinite(case.gradient))
    assert np.all(case.gradient != 0.0)


@pytest.mark.parametrize("directions", DIRECTIONS)
def test_gradient_against_differences(directions: str, rng: np.random.Generator) -> None:
    """By central differences of the fourth order, whose error is that of rounding: 1e-16 of the log
    density, some hundreds, over steps of 1e-3 of a slope of order one."""
    case = built("gaussian", "identity", "both", directions)
    model, point = case.model, case.model.initial_point()
    step = {name: rng.standard_normal(np.shape(value)) for name, value in point.items()}
    at = [
        {name: value + size * 1e-3 * step[name] for name, value in point.items()}
        for size in (-2, -1, 1, 2)
    ]
    low, near_low, near_high, high = (evaluate(model, [model.logp()], there)[0] for there in at)
    expected = (8 * (near_high - near_low) - (high - low)) / 12e-3
    order = [variable.name for variable in model.value_vars]
    along = np.concatenate([np.ravel(step[name]) for name in order])
    assert case.gradient @ along == pytest.approx(expected, rel=1e-5)


def test_hessian_against_differences_of_the_gradient() -> None:
    """Central differences with steps of 1e-5 err by some 1e-10 of the largest entry."""
    model = built("gaussian", "identity", "both", "anchored").model
    raveled = DictToArrayBijection.map(model.initial_point())
    gradient = model.compile_fn(model.dlogp(), mode=COMPILE["mode"])

    def at(data: Any) -> Any:
        return gradient(DictToArrayBijection.rmap(raveled._replace(data=data)))

    steps = 1e-5 * np.eye(raveled.data.size)
    expected = [(at(raveled.data + step) - at(raveled.data - step)) / 2e-5 for step in steps]
    (hessian,) = evaluate(model, [model.d2logp(negate_output=False)])
    assert_allclose(hessian, expected, atol=1e-8 * np.abs(expected).max())


def test_fixed_directions_with_projected_inputs_are_the_same_model() -> None:
    start = fitted("gaussian", "identity", "both")
    specification = specification_of(start, directions="fixed")
    once = build_model(specification, projects_once=True)
    plain = built("gaussian", "identity", "both", "fixed")
    assert "projection" in once.named_vars
    assert "X" not in once.named_vars
    point = {name: value + 0.1 for name, value in once.initial_point().items()}
    logp, gradient = evaluate(once, [once.logp(), once.dlogp()], point)
    expected = evaluate(plain.model, [plain.model.logp(), plain.model.dlogp()], point)
    assert_allclose(logp, expected[0], rtol=1e-12)
    assert_allclose(gradient, expected[1], rtol=1e-8)


@pytest.mark.parametrize("directions", ["anchored", "free"])
def test_inputs_are_projected_once_for_fixed_directions_only(directions: str) -> None:
    specification = specification_of(fitted("poisson", "log", "plain"), directions=directions)
    assert "X" in build_model(specification, projects_once=True).named_vars


def specification_of(start: Fitted, **arguments: Any) -> Any:
    fit = start.fit
    block = {name: values for name, values in start.block.items() if name != "gating"}
    given: dict[str, Any] = {"init": fit, "directions": "anchored", "anchor_angle": 45.0}
    return specify_rows(
        start.X,
        start.y,
        fit.n_components,
        data_block={"family": fit.family, "link": fit.link, **block},
        gating=start.block.get("gating"),
        random_seed=1,
        **(given | arguments),
    )


def test_fixed_directions_hold() -> None:
    """Twice the scales, twice the coefficients."""
    case = built("gaussian", "identity", "plain", "fixed")
    point = case.model.initial_point()
    point["standardised_scale_log__"] = point["standardised_scale_log__"] + np.log(2.0)
    (doubled,) = evaluate(case.model, [case.model["coefficient"]], point)
    assert_allclose(doubled, 2.0 * case.values["coefficient"], rtol=1e-12)


def test_tilt_turns_by_the_angle_and_keeps_the_scale() -> None:
    """Two features, 30 degrees: a tilt of one turns by 30 degrees where the inputs are white."""
    data = simulate_mixture(500, 2, 2, family="gaussian", random_seed=1)
    X = (data.X - data.X.mean(axis=0)) @ np.linalg.inv(
        np.linalg.cholesky(np.cov(data.X.T, ddof=0)).T
    )
    slopes = np.array([[0.6, -0.3], [0.8, 0.5]])
    model = mixture_glm(
        X,
        data.y,
        2,
        family="gaussian",
        init=(slopes, [0.0, 1.0], [0.5, 0.5]),
        anchor_angle=30.0,
    )
    point = model.initial_point()
    point["tilt"] = np.array([[1.0], [0.0]])
    (turned,) = evaluate(model, [model["coefficient"]], point)
    assert_allclose(np.linalg.norm(turned, axis=0), np.linalg.norm(slopes, axis=0), rtol=1e-9)
    cosine = turned[:, 0] @ slopes[:, 0] / (slopes[:, 0] @ slopes[:, 0])
    assert np.degrees(np.arccos(cosine)) == pytest.approx(30.0, rel=1e-9)
    assert_allclose(turned[:, 1], slopes[:, 1], rtol=1e-9)


# --- units ---------------------------------------------------------------------------------------

STRETCH, SHIFT = np.array([1.0, 1e3, 0.02]), np.array([0.0, -4.0, 100.0])
RESPONSE_STRETCH, RESPONSE_SHIFT = 50.0, 7.0


@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize(("family", "link"), [("gaussian", "identity"), ("gamma", "log")])
def test_units_do_not_matter(family: str, link: str, directions: Any) -> None:
    """Other units change the density of the response by their Jacobian, and nothing else."""
    start = fitted(family, link, "gate")
    fit, block = start.fit, dict(start.block)
    gating = 1e3 * block.pop("gating") - 20.0
    X = start.X * STRETCH + SHIFT
    y = RESPONSE_STRETCH * start.y + (RESPONSE_SHIFT if family == "gaussian" else 0.0)
    if family == "gaussian":
        block["offset"] = RESPONSE_STRETCH * block["offset"]
    other = mixture_glm(
        X,
        y,
        2,
        family=family,
        init=changed_arrays(fit),
        directions=directions,
        gating=gating,
        **block,
    )
    case = built(family, link, "gate", directions)
    point = case.model.initial_point()
    assert set(other.initial_point()) == set(point)
    for name, value in other.initial_point().items():
        if "gate" not in name:  # arrays have no gate
            assert_allclose(value, point[name], rtol=1e-7, atol=1e-7, err_msg=name)
    jacobian = block["sample_weight"].sum() * np.log(RESPONSE_STRETCH)
    logp, gradient = evaluate(other, [other.logp(), other.dlogp()], point)
    assert logp + jacobian == pytest.approx(case.logp, rel=1e-9)
    assert_allclose(gradient, case.gradient, rtol=1e-6, atol=1e-6)


def changed_arrays(fit: EMFit) -> tuple[Any, ...]:
    """Parameters of a fit in the other units."""
    is_real = fit.family == "gaussian"
    slopes = (RESPONSE_STRETCH if is_real else 1.0) * fit.coefficients / STRETCH[:, None]
    biases = RESPONSE_STRETCH * fit.biases + RESPONSE_SHIFT if is_real else fit.biases.copy()
    if not is_real:
        biases += np.log(RESPONSE_STRETCH)
    dispersion = (RESPONSE_STRETCH if is_real else 1.0) * np.asarray(fit.dispersion)
    return slopes, biases - SHIFT @ slopes, fit.weights, dispersion


def test_response_that_is_standardised_already() -> None:
    """Mean exactly zero and variance exactly one: the units are those of the model."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((40, 2))
    y = np.tile([-1.0, 1.0], 20)
    init = (np.array([[1.0, -1.0], [0.5, 0.2]]), [0.1, -0.1], [0.6, 0.4], [0.8, 0.5])
    model = mixture_glm(X, y, 2, family="gaussian", init=init)
    (dispersion,) = evaluate(model, [model["dispersion"]])
    assert_allclose(dispersion, init[3], rtol=1e-12)


# --- names, dims and coords ----------------------------------------------------------------------


def test_dims_and_coords_of_a_mixture() -> None:
    model = built("gaussian", "identity", "plain", "anchored").model
    assert {name: model.named_vars_to_dims[name] for name in ORDER} == ORDER
    assert model.named_vars_to_dims["tilt"] == ("component", "tangent")
    assert model.named_vars_to_dims["X"] == ("obs", "feature")
    assert model.named_vars_to_dims["y"] == ("obs",)
    assert list(model.coords["feature"]) == NAMES
    assert list(model.coords["component"]) == [0, 1]
    assert [variable.name for variable in model.free_RVs] == [
        "weight",
        "standardised_scale",
        "tilt",
        "standardised_bias",
        "standardised_dispersion",
    ]
    assert {"offset", "sample_weight", "y_data"} < set(model.named_vars)


ORDER = {
    "coefficient": ("feature", "component"),
    "direction": ("feature", "component"),
    "scale": ("component",),
    "bias": ("component",),
    "weight": ("component",),
    "dispersion": ("component",),
}


def test_dims_and_coords_of_experts_in_groups() -> None:
    model = built("binomial", "logit", "both", "free").model
    assert model.named_vars_to_dims["gate"] == ("component", "gate_feature")
    assert model.named_vars_to_dims["gate_bias"] == ("component",)
    assert list(model.coords["gate_feature"]) == GATE_NAMES
    assert {"gating", "group", "n_trials"} < set(model.named_vars)
    gate, gate_bias = evaluate(model, [model["gate"], model["gate_bias"]])
    assert_allclose(gate.sum(axis=0), 0.0, atol=1e-12)
    assert gate_bias.sum() == pytest.approx(0.0, abs=1e-10)


def test_free_variables_by_kind_of_directions() -> None:
    names = {
        kind: [variable.name for variable in built("poisson", "log", "plain", kind).model.free_RVs]
        for kind in DIRECTIONS
    }
    assert names["fixed"] == ["weight", "standardised_scale", "standardised_bias"]
    assert names["free"] == ["weight", "standardised_coefficient", "standardised_bias"]


def test_rows_without_extras_have_no_data_for_them() -> None:
    model = model_of(fitted("bernoulli", "logit", "groups", with_extras=False))
    assert {"offset", "sample_weight", "n_trials", "gating"}.isdisjoint(model.named_vars)


def test_single_feature_is_free() -> None:
    """An anchor would be a sign, and cut the slope off at zero."""
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((50, 1)), rng.poisson(2.0, 50)
    init = (np.array([[0.5, -0.3]]), [0.1, 1.0], [0.5, 0.5])
    model = mixture_glm(X, y, 2, family="poisson", init=init)
    assert "standardised_coefficient" in model.named_vars
    coefficient, direction = evaluate(model, [model["coefficient"], model["direction"]])
    assert_allclose(coefficient, init[0], rtol=1e-12)
    assert_array_equal(direction, [[1.0, -1.0]])


def test_single_component() -> None:
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((50, 2)), rng.poisson(2.0, 50)
    model = mixture_glm(X, y, 1, family="poisson", init=([[0.5], [0.1]], [0.4], [1.0]))
    logp, gradient = evaluate(model, [model.logp(), model.dlogp()])
    assert np.isfinite(logp)
    assert np.all(np.isfinite(gradient))


def test_experts_are_gated_by_their_inputs_unless_told() -> None:
    start = fitted("gaussian", "identity", "plain")
    arrays = (start.fit.coefficients, start.fit.biases, start.fit.weights, start.fit.dispersion)
    model = mixture_of_experts(start.X, start.y, 2, family="gaussian", init=arrays)
    assert list(model.coords["gate_feature"]) == NAMES
    assert_array_equal(model["gating"].get_value(), start.X)
    given = start.X[["income"]]
    other = mixture_of_experts(start.X, start.y, 2, family="gaussian", init=arrays, gating=given)
    assert list(other.coords["gate_feature"]) == ["income"]
    (weight,) = evaluate(model, [model["weight"]])
    assert_allclose(weight, start.fit.weights, rtol=1e-10)


def test_search_for_a_start_is_the_fit_of_the_seed() -> None:
    data = simulate_mixture(400, 2, 2, family="gaussian", random_seed=3)
    model = mixture_glm(data.X, data.y, 2, family="gaussian", random_seed=9)
    fit = fit_em(data.X, data.y, 2, family="gaussian", priors="default", random_seed=9)
    coefficient, bias = evaluate(model, [model["coefficient"], model["bias"]])
    assert_allclose(coefficient, fit.coefficients, rtol=1e-10)
    assert_allclose(bias, fit.biases, rtol=1e-10)


# --- other rows ----------------------------------------------------------------------------------


def test_new_rows_take_another_number() -> None:
    model = model_of(fitted("gaussian", "identity", "both"))
    n_new = 11
    rows = {
        "X": np.zeros((n_new, 3)),
        "y_data": np.zeros(n_new),
        "offset": np.full(n_new, 1000.0),
        "sample_weight": np.ones(n_new),
        "gating": np.zeros((n_new, 2)),
        "group": np.repeat([0, 1], [5, 6]),
    }
    pm.set_data(rows, model=model)
    draws = draw(model["y"], 3, 1)
    assert draws.shape == (3, n_new)
    assert np.all(np.isfinite(draws))


def test_predictive_draws_of_new_rows() -> None:
    """Predictors of five: probabilities above .99 whatever the component. 400 draws of 11 rows have
    some 30 failures (4400 times .0067); four standard errors are 22."""
    model = model_of(fitted("bernoulli", "logit", "groups", with_extras=False))
    values = equal_draws(model, 400)
    rows = {"X": np.zeros((11, 3)), "y_data": np.zeros(11), "group": np.arange(11)}
    pm.set_data(rows, model=model)
    predicted = pm.sample_posterior_predictive(
        values,
        model=model,
        var_names=["y"],
        predictions=True,
        progressbar=False,
        random_seed=1,
        compile_kwargs=COMPILE,
    )
    draws = predicted["predictions"]["y"]
    assert draws.dims == ("chain", "draw", "obs")
    assert draws.shape == (1, 400, 11)
    assert abs(int((1 - draws).sum()) - 4400 / (1 + np.exp(5.0))) < 22


def equal_draws(model: pm.Model, n_draws: int) -> xr.DataTree:
    """Draws that are all the same: every predictor is five."""
    values = {
        "weight": np.array([0.4, 0.6]),
        "standardised_scale": np.full(2, 1e-9),
        "tilt": np.zeros((2, 2)),
        "standardised_bias": np.full(2, 5.0),
    }
    assert {variable.name for variable in model.free_RVs} == set(values)
    variables = {
        name: (
            ("chain", "draw", *model.named_vars_to_dims[name]),
            np.broadcast_to(value, (1, n_draws, *value.shape)),
        )
        for name, value in values.items()
    }
    coords = {"component": [0, 1], "tangent": [0, 1], "feature": NAMES}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(variables, coords)})


def test_model_can_be_drawn() -> None:
    """As a text for Mermaid, which needs no package, in place of an image by Graphviz."""
    text = pm.model_to_mermaid(built("gaussian", "identity", "both", "anchored").model)
    for name in ("standardised_scale", "tilt", "coefficient", "gate_bias"):
        assert name in text


def test_graph_has_a_named_plate_for_every_axis(tmp_path: Path) -> None:
    """Variables stand on plates of their dims; rows, responses and coefficients lead to y."""
    graph = pm.model_to_graphviz(built("gaussian", "identity", "both", "anchored").model)
    plates = re.findall(r'\tlabel="?([^"\n]*?)"? labeljust', graph.source)
    assert {"component (2)", "component (2) x tangent (2)"} <= set(plates)
    assert not any(plate.isdigit() for plate in plates)
    for parent in ("X", "coefficient", "bias", "dispersion"):
        assert f"\t{parent} -> y\n" in graph.source
    if which("dot") is None:
        pytest.skip("the programs of Graphviz are not installed")
    path = Path(graph.render(tmp_path / "model", format="svg"))
    assert "standardised_scale" in path.read_text(encoding="utf-8")
