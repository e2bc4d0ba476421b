"""Starts for models that users write: names, shapes, order, support, spread."""

import subprocess
import sys
from typing import Any

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from pymc.distributions import transforms
from pymc.initial_point import make_initial_point_fn, make_initial_point_fns_per_chain
from scipy.stats import chi2

from moment_init import EMFit, MomentEstimate, Status, angles_in_degrees
from moment_init.likelihood.parameters import pack
from moment_init.moments.result import MomentDiagnostics
from moment_init.posterior.initial_values import initial_values
from tests.em_fits import NAMES, make_fit
from tests.likelihood_problems import GATED

FloatArray = NDArray[np.float64]

N_ERRORS = 5.0
"""Standard errors that a moment of draws may be off: once in two million."""

DIRECTIONS = np.array([[0.6, 0.0, -0.28], [0.8, 1.0, 0.96]])
# Neither sorted nor symmetric: a wrong order shows.
BIASES = np.array([0.5, -1.0, 2.0])
WEIGHTS = np.array([0.5, 0.3, 0.2])
SCALES = np.array([2.0, 1.0, 3.0])


def moment_estimate(
    directions: FloatArray = DIRECTIONS,
    *,
    scales: FloatArray | None = SCALES,
    standard_errors: FloatArray | None = None,
) -> MomentEstimate:
    """An estimate with given directions, written down rather than estimated."""
    n_features, r = directions.shape
    diagnostics = MomentDiagnostics(
        1000, np.ones(r), 3.0, 0.1, np.ones(n_features), 2.0, True, 0.0, None
    )
    is_known = scales is not None
    return MomentEstimate(
        directions, np.ones(r), None if scales is None else scales[:r],
        BIASES[:r] if is_known else None, WEIGHTS[:r] / WEIGHTS[:r].sum() if is_known else None,
        tuple(f"x{index}" for index in range(n_features)), "poisson", "log", "stacked", Status.OK,
        (), diagnostics, standard_errors=standard_errors,
    )  # fmt: skip


@pytest.fixture
def fit(rng: np.random.Generator) -> EMFit:
    """Three features, whose means are far from zero, and two components with dispersions."""
    return make_fit("gaussian", "identity", rng, with_extras=False).fit


def unconstrained(model: pm.Model, start: Any, seed: int = 0) -> dict[str, Any]:
    """Where a chain with this seed starts, as PyMC and nutpie compute it."""
    return dict(make_initial_point_fn(model=model, overrides=start)(seed))


def constrained(model: pm.Model, start: Any, seed: int = 0) -> dict[str, Any]:
    function = make_initial_point_fn(model=model, overrides=start, return_transformed=False)
    return dict(function(seed))


# --- names and values ----------------------------------------------------------------------------


def test_values_arrive_on_the_unconstrained_scale(fit: EMFit) -> None:
    """Logs of positive values; logits about their mean, without the last, for a simplex."""
    with pm.Model() as model:
        pm.Normal("coefficient", shape=(3, 2))
        pm.Normal("bias", sigma=100.0, shape=2)
        pm.Dirichlet("weight", np.ones(2))
        pm.HalfNormal("dispersion", shape=2)
        pm.HalfNormal("unrelated")
    start = initial_values(fit, model)
    assert list(start) == ["coefficient", "bias", "weight", "dispersion"]
    point = unconstrained(model, start)
    logs = np.log(fit.weights)
    assert fit.dispersion is not None
    assert_array_equal(point["coefficient"], fit.coefficients)
    assert_array_equal(point["bias"], fit.biases)
    assert_allclose(point["weight_simplex__"], (logs - logs.mean())[:-1], rtol=1e-12)
    assert_allclose(point["dispersion_log__"], np.log(fit.dispersion), rtol=1e-12)
    assert_array_equal(
        point["unrelated_log__"], model.initial_point(random_seed=0)["unrelated_log__"]
    )


def test_mapping_by_name_by_callable_and_to_none(fit: EMFit) -> None:
    with pm.Model() as model:
        pm.Normal("bias", shape=5)  # not ours: another meaning, another shape
        pm.Normal("both", sigma=100.0, shape=(4, 2))
        pm.Beta("share", 1, 1)
        pm.HalfNormal("sigma", shape=2)
    start = initial_values(
        fit,
        model,
        mapping={
            "bias": None,
            "sigma": "dispersion",
            "both": lambda e: np.vstack([e.biases, e.coefficients]),
            "share": lambda e: e.weights[0],
        },
    )
    assert list(start) == ["both", "share", "sigma"]  # the model's order
    assert_array_equal(start["both"], np.vstack([fit.biases, fit.coefficients]))
    assert start["share"].shape == ()
    assert_array_equal(start["share"], fit.weights[0])
    assert_allclose(constrained(model, start)["share"], fit.weights[0], rtol=1e-12)
    assert fit.dispersion is not None
    assert_array_equal(start["sigma"], fit.dispersion)


def test_without_model_the_data_model_names(rng: np.random.Generator) -> None:
    gated = make_fit("gaussian", "identity", rng, variant=GATED).fit
    start = initial_values(gated)
    assert gated.gate is not None
    assert set(start) == {
        "coefficient", "direction", "scale", "bias", "weight", "dispersion", "gate", "gate_bias",
    }  # fmt: skip
    assert_array_equal(start["coefficient"], gated.coefficients)
    assert_allclose(start["direction"] * start["scale"], gated.coefficients, rtol=1e-12)
    assert_allclose(start["gate"], (gated.gate - gated.gate.mean(axis=1, keepdims=True)).T)
    start["bias"][:] = 0.0  # a copy
    assert np.all(gated.biases != 0.0)


def test_without_model_the_mapping_names(fit: EMFit) -> None:
    start = initial_values(fit, mapping={"b": "bias", "total": lambda e: e.weights.sum()})
    assert set(start) == {"b", "total"}
    assert_array_equal(start["b"], fit.biases)


def test_without_model_pymc_is_not_imported() -> None:
    code = (
        "import sys, numpy as np; from moment_init import fit_em\n"
        "from moment_init.posterior.initial_values import initial_values\n"
        "rng = np.random.default_rng(0); X = rng.standard_normal((200, 2))\n"
        "y = X @ [1.0, 2.0] + rng.standard_normal(200)\n"
        "fit = fit_em(X, y, 1, family='gaussian')\n"
        "initial_values(fit); initial_values(fit, spread=1.0, chains=2, random_seed=1)\n"
        "print(*sorted({'pymc', 'pytensor'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_unknown_parameters_are_left_out() -> None:
    start = initial_values(moment_estimate(scales=None))
    assert set(start) == {"direction"}


# --- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 3), DIRECTIONS), ((3, 2), DIRECTIONS.T), ((1, 2, 3), DIRECTIONS[None])],
)
def test_axes_by_their_lengths(shape: tuple[int, ...], expected: FloatArray) -> None:
    with pm.Model() as model:
        pm.Normal("u", shape=shape)
    start = initial_values(moment_estimate(), model, mapping={"u": "direction"})
    assert_array_equal(start["u"], expected)


def test_a_single_feature_needs_no_axis() -> None:
    with pm.Model() as model:
        pm.Normal("slope", shape=3)
    estimate = moment_estimate(np.ones((1, 3)))
    start = initial_values(estimate, model, mapping={"slope": "coefficient"})
    assert_array_equal(start["slope"], SCALES)


SQUARE = DIRECTIONS[:, :2]


@pytest.mark.parametrize(
    ("dims", "coords", "expected"),
    [
        (("feature", "component"), {"feature": [0, 1], "component": [0, 1]}, SQUARE),
        (("component", "feature"), {"feature": [0, 1], "component": [0, 1]}, SQUARE.T),
        (("component", "predictor"), {"predictor": [0, 1], "component": [0, 1]}, SQUARE.T),
        (("cluster", "feature"), {"feature": [0, 1], "cluster": [0, 1]}, SQUARE.T),
        (("cluster", "predictor"), {"predictor": ["x0", "x1"], "cluster": [0, 1]}, SQUARE.T),
        (("cluster", "predictor"), {"predictor": ["x1", "x0"], "cluster": [0, 1]}, SQUARE[::-1].T),
    ],
)
def test_axes_by_their_names_and_labels(
    dims: tuple[str, str], coords: dict[str, Any], expected: FloatArray
) -> None:
    with pm.Model(coords=coords) as model:
        pm.Normal("u", dims=dims)
    start = initial_values(moment_estimate(SQUARE), model, mapping={"u": "direction"})
    assert_array_equal(start["u"], expected)


def test_columns_in_the_order_of_the_labels(fit: EMFit) -> None:
    turned = [NAMES[2], NAMES[0], NAMES[1]]
    with pm.Model(coords={"feature": turned, "component": [0, 1]}) as model:
        pm.Normal("coefficient", dims=("component", "feature"))
    start = initial_values(fit, model)
    assert_array_equal(start["coefficient"], fit.coefficients[[2, 0, 1]].T)


@pytest.mark.parametrize("dims", [None, ("cluster", "predictor")])
def test_ambiguous_axes_are_refused(dims: tuple[str, str] | None) -> None:
    with pm.Model(coords={"cluster": [0, 1], "predictor": ["a", "b"]}) as model:
        pm.Normal("u", shape=None if dims else (2, 2), dims=dims)
    with pytest.raises(ValueError, match=r"'direction' .* fits .* 'u' .* more than one way"):
        initial_values(moment_estimate(SQUARE), model, mapping={"u": "direction"})


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (3, 3)])
def test_shapes_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pm.Model() as model:
        pm.Normal("u", shape=shape)
    with pytest.raises(ValueError, match=r"\(feature: 2, component: 3\) and does not fit .* 'u'"):
        initial_values(moment_estimate(), model, mapping={"u": "direction"})


def test_dims_that_contradict_the_shape_are_refused() -> None:
    coords = {"feature": range(3), "component": range(2)}
    with pm.Model(coords=coords) as model:
        pm.Normal("u", dims=("feature", "component"))
    with pytest.raises(ValueError, match=r"does not fit .* \(feature: 3, component: 2\)"):
        initial_values(moment_estimate(), model, mapping={"u": "direction"})


def test_callable_of_the_wrong_shape_is_refused(fit: EMFit) -> None:
    with pm.Model() as model:
        pm.Normal("b", shape=2)
    with pytest.raises(ValueError, match=r"callable of 'b' must return .* \(2,\); got \(3, 2\)"):
        initial_values(fit, model, mapping={"b": lambda e: e.coefficients})


# --- order of the components ---------------------------------------------------------------------


@pytest.mark.parametrize("ascending", [True, False])
def test_ordered_variable_orders_all_components(ascending: bool) -> None:
    order = np.array([1, 0, 2]) if ascending else np.array([2, 0, 1])
    start_of_prior = np.array([-1.0, 0.0, 1.0]) * (1 if ascending else -1)
    transform = transforms.Ordered(ascending=ascending)
    with pm.Model() as model:
        pm.Dirichlet("weight", np.ones(3))
        pm.Normal("bias", shape=3, transform=transform, initval=start_of_prior)
        pm.Normal("slopes", sigma=2.0, shape=(3, 2))
    start = initial_values(moment_estimate(), model, mapping={"slopes": "coefficient"})
    assert_array_equal(start["bias"], BIASES[order])
    assert_array_equal(start["weight"], WEIGHTS[order])
    assert_array_equal(start["slopes"], (DIRECTIONS * SCALES)[:, order].T)
    assert_allclose(constrained(model, start)["bias"], BIASES[order], rtol=1e-12)


def test_ordered_callable_in_a_chain_of_transforms() -> None:
    chain = transforms.Chain([transforms.log, transforms.ordered])
    with pm.Model() as model:
        pm.HalfNormal("rate", 10.0, shape=3, transform=chain, default_transform=None,
                      initval=[1.0, 2.0, 3.0])  # fmt: skip
        pm.Dirichlet("weight", np.ones(3))
    start = initial_values(moment_estimate(), model, mapping={"rate": lambda e: np.exp(e.biases)})
    assert_array_equal(start["rate"], np.exp(BIASES[[1, 0, 2]]))
    assert_array_equal(start["weight"], WEIGHTS[[1, 0, 2]])


def test_gate_follows_an_order_and_sums_to_zero(rng: np.random.Generator) -> None:
    """Probabilities at any gating covariates are those of the fit, in the other order."""
    fit = make_fit("gaussian", "identity", rng, variant=GATED).fit
    assert fit.gate is not None
    assert fit.gate_biases is not None
    descending = bool(fit.biases[0] < fit.biases[1])  # so that the order must change
    transform = transforms.Ordered(ascending=not descending)
    with pm.Model(coords={"component": [0, 1], "gate_feature": [0, 1]}) as model:
        pm.Normal("bias", sigma=100.0, shape=2, transform=transform,
                  initval=[1.0, -1.0] if descending else [-1.0, 1.0])  # fmt: skip
        pm.Normal("gate", sigma=100.0, dims=("component", "gate_feature"))
        pm.Normal("gate_bias", sigma=100.0, shape=2)
    start = initial_values(fit, model)
    assert_allclose(start["gate"].sum(axis=0), 0.0, atol=1e-12)
    assert_allclose(start["gate_bias"].sum(), 0.0, atol=1e-12)
    where = np.array([13.0, -0.5])
    old = fit.gate_biases + where @ fit.gate
    new = start["gate_bias"] + start["gate"] @ where
    assert_allclose(new[0] - new[1], old[1] - old[0], rtol=1e-10)


def test_two_orders_that_contradict_each_other_are_refused() -> None:
    initval = np.array([0.2, 0.3, 0.5])
    with pm.Model() as model:
        pm.Normal("bias", shape=3, transform=transforms.ordered, initval=initval)
        pm.Normal("size", shape=3, transform=transforms.ordered, initval=initval)
    with pytest.raises(ValueError, match=r"'size' must start in the range of its .* 'ordered'"):
        initial_values(moment_estimate(), model, mapping={"size": "weight"})


# --- what is refused -----------------------------------------------------------------------------


def test_nothing_in_common_lists_both_sides(fit: EMFit) -> None:
    with pm.Model() as model:
        pm.Normal("beta", shape=(3, 2))
        pm.HalfNormal("sigma")
    with pytest.raises(ValueError, match=r"'beta', 'sigma'; the estimate has 'coefficient', .*"):
        initial_values(fit, model)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("y", "is observed"),
        ("twice", "is deterministic"),
        ("X", "is data"),
        ("betta", "is not in the model"),
    ],
)
def test_targets_that_are_not_free_are_refused(fit: EMFit, name: str, reason: str) -> None:
    with pm.Model() as model:
        X = pm.Data("X", np.ones((4, 3)))
        beta = pm.Normal("beta", shape=(3, 2))
        twice = pm.Deterministic("twice", 2 * beta)
        pm.Normal("y", (X @ twice).sum(axis=1), observed=np.zeros(4))
    with pytest.raises(ValueError, match=f"'{name}' {reason}.*free variables are 'beta'"):
        initial_values(fit, model, mapping={name: "coefficient"})


def test_parameters_that_the_estimate_lacks_are_refused() -> None:
    with pm.Model() as model:
        pm.HalfNormal("sigma", shape=3)
    with pytest.raises(ValueError, match=r"got 'dispersion'. The estimate has 'coefficient'"):
        initial_values(moment_estimate(), model, mapping={"sigma": "dispersion"})


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: pm.HalfNormal("b", shape=3), "range of its transform, 'log'"),
        (lambda: pm.Uniform("b", -1.5, 1.5, shape=3), "range of its transform, 'interval'"),
        (lambda: pm.Dirichlet("b", np.ones(3)), "range of its transform, 'simplex'"),
        (lambda: pm.ZeroSumNormal("b", shape=3), "range of its transform, 'zerosum'"),
        (
            lambda: pm.Uniform("b", -1.5, 1.5, shape=3, default_transform=None),
            "where its prior density is not zero",
        ),
    ],
)
def test_values_outside_of_the_support_are_refused(make: Any, rule: str) -> None:
    with pm.Model() as model:
        make()
    with pytest.raises(ValueError, match=rf"'b' must start .*{rule}; got \[ 0\.5, -1\. ,  2\. \]"):
        initial_values(moment_estimate(), model, mapping={"b": "bias"})


@pytest.mark.parametrize(
    ("value", "rule"),
    [([0.0, 0.4, 0.6], "simplex"), ([0.4, 0.4, 0.4], "simplex"), ([np.nan, 0.5, 0.5], "simplex")],
)
def test_weights_must_be_positive_and_sum_to_one(value: list[float], rule: str) -> None:
    with pm.Model() as model:
        pm.Dirichlet("w", np.ones(3))
    with pytest.raises(ValueError, match=f"'w' must start in the range of its transform, '{rule}'"):
        initial_values(moment_estimate(), model, mapping={"w": lambda e: value})


def test_discrete_variables_are_refused() -> None:
    with pm.Model() as model:
        pm.Poisson("bias", 3.0, shape=3)
    with pytest.raises(ValueError, match="continuous variables; 'bias' is of type int64"):
        initial_values(moment_estimate(), model)


def test_variables_of_pymc_dims_are_refused() -> None:
    with pm.Model(coords={"component": range(3)}) as model:
        pmd.Normal("bias", 0.0, 1.0, dims=("component",))
    with pytest.raises(ValueError, match=r"'bias' comes from pymc\.dims"):
        initial_values(moment_estimate(), model)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimate": np.ones(3)}, TypeError, "`estimate` must be .*; got ndarray"),
        ({"model": "model"}, TypeError, "`model` must be a pymc.Model or None; got str"),
        ({"backend": "jags"}, ValueError, "`backend` must be one of 'pymc', .*; got 'jags'"),
        ({"mapping": ["beta"]}, TypeError, "`mapping` must be a dict .*; got list"),
        ({"spread": -1.0}, ValueError, r"`spread` must be .*; got -1\.0"),
        ({"spread": np.nan}, ValueError, "`spread` must be .*; got nan"),
        ({"spread": True}, ValueError, "`spread` must be .*; got True"),
        ({"chains": 2.0}, TypeError, r"`chains` must be an integer or None; got 2\.0"),
        ({"chains": 0}, ValueError, "`chains` must be at least 1; got 0"),
        ({"spread": 1.0}, ValueError, "`chains` must be given .* no PyMC model"),
        ({"mapping": {"b": None}}, ValueError, "`mapping` must be given if no variable"),
        (
            {"spread": 1.0, "chains": 2},
            ValueError,
            "`spread` must be 0 for an estimate without standard errors",
        ),
    ],
)
def test_arguments_are_checked(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {"estimate": moment_estimate()} | options
    with pytest.raises(error, match=message):
        initial_values(**arguments)


# --- spread --------------------------------------------------------------------------------------


def flat_model() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("coefficient", sigma=100.0, shape=(3, 2))
        pm.Normal("bias", sigma=1000.0, shape=2)
        pm.Dirichlet("weight", np.ones(2))
        pm.HalfNormal("dispersion", 10.0, shape=2)
    return model


def test_chains_draw_their_own_joint_starts(fit: EMFit) -> None:
    """Each start is one of the draws of the normal approximation, in all variables at once."""
    model = flat_model()
    start = initial_values(fit, model, spread=1.0, random_seed=3)
    functions = make_initial_point_fns_per_chain(model=model, overrides=start, chains=4)
    # Seeds that happen to pick four different draws.
    points = [function(seed) for function, seed in zip(functions, [1, 2, 3, 5], strict=True)]
    assert len({float(point["bias"][0]) for point in points}) == 4
    again = unconstrained(model, start, seed=2)
    for name, value in points[1].items():
        assert_array_equal(again[name], value)
    draws = fit.to_datatree(draws=400, random_seed=3)["posterior"].to_dataset().squeeze("chain")
    for point in points:
        (row,) = np.flatnonzero(draws["bias"].to_numpy()[:, 0] == point["bias"][0])
        assert_array_equal(draws["coefficient"].to_numpy()[row], point["coefficient"])
        logs = np.log(draws["dispersion"].to_numpy()[row])
        assert_allclose(point["dispersion_log__"], logs, rtol=1e-12)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_list_of_starts_has_the_covariance_of_the_fit(fit: EMFit, spread: float) -> None:
    """Whitened by it, the mean square of n starts is the factor squared, to sqrt(2/n)."""
    starts = initial_values(fit, spread=spread, chains=200, random_seed=1)
    assert len(starts) == 200
    parameters = fit.parameters
    mean, covariance = pack(parameters), fit.covariance
    assert covariance is not None
    vectors = np.array(
        [
            np.concatenate(
                [
                    np.vstack([s["coefficient"], s["bias"], np.log(s["dispersion"])]).T.ravel(),
                    np.log(s["weight"][:-1] / s["weight"][-1]),
                ]
            )
            for s in starts
        ]
    )
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (vectors - mean).T)
    mean_square = np.square(whitened).mean()
    assert abs(mean_square / spread**2 - 1.0) < N_ERRORS * np.sqrt(2.0 / whitened.size)


def test_list_of_starts_for_a_model(fit: EMFit) -> None:
    model = flat_model()
    starts = initial_values(fit, model, spread=1.0, chains=3, random_seed=1)
    functions = make_initial_point_fns_per_chain(model=model, overrides=starts, chains=3)
    for start, function in zip(starts, functions, strict=True):
        assert_array_equal(function(0)["bias"], start["bias"])
    assert len({float(start["bias"][0]) for start in starts}) == 3
    same = initial_values(fit, model, chains=2)
    assert_array_equal(same[0]["bias"], same[1]["bias"])


def test_same_seed_same_starts(fit: EMFit) -> None:
    first = initial_values(fit, spread=1.0, chains=2, random_seed=5)
    second = initial_values(fit, spread=1.0, chains=2, random_seed=5)
    for one, other in zip(first, second, strict=True):
        for name in one:
            assert_array_equal(one[name], other[name])


def test_directions_turn_by_their_standard_errors(rng: np.random.Generator) -> None:
    """Two errors cover 95 % of the angles, and the tangent of an angle is a chi variable.

    Of n draws 5 % lie outside with a standard error of sqrt(.05 .95 / n); angles of half the size
    under spread=1/2.
    """
    n_draws = 2000
    errors = np.array([1.0, 4.0, 10.0])
    directions = rng.standard_normal((5, 3))
    directions /= np.linalg.norm(directions, axis=0)
    estimate = moment_estimate(directions, standard_errors=errors)
    starts = initial_values(estimate, spread=0.5, chains=n_draws, random_seed=rng)
    angles = np.array(
        [
            [angles_in_degrees(s["direction"][:, [j]], directions[:, [j]])[0] for j in range(3)]
            for s in starts
        ]
    )
    limits = np.degrees(np.arctan(0.5 * np.tan(np.radians(2.0 * errors))))
    share = (angles > limits).mean(axis=0)
    assert np.all(np.abs(share - 0.05) < N_ERRORS * np.sqrt(0.05 * 0.95 / n_draws))
    steps = np.tan(np.radians(angles)) / np.tan(np.radians(limits))
    mean_square = 4.0 / chi2.ppf(0.95, 4)
    error = np.sqrt(2.0 / 4.0 / n_draws) * mean_square
    assert np.all(np.abs(np.square(steps).mean(axis=0) - mean_square) < N_ERRORS * error)
    for start in starts[:3]:
        assert_allclose(np.linalg.norm(start["coefficient"], axis=0), SCALES, rtol=1e-12)
        assert_array_equal(start["bias"], BIASES)


def test_one_column_has_nothing_to_turn() -> None:
    estimate = moment_estimate(np.ones((1, 3)), standard_errors=np.zeros(3))
    (start,) = initial_values(estimate, spread=1.0, chains=1, random_seed=1)
    assert_array_equal(start["direction"], np.ones((1, 3)))


def test_draws_keep_the_order_and_the_support(fit: EMFit) -> None:
    """Bounds one standard error from the estimate cut draws, and each draw is sorted by itself."""
    first = float(fit.standard_errors.coefficients[0, 0])
    centre = float(fit.coefficients[0, 0])
    with pm.Model() as model:
        pm.Uniform("slope", centre - first, centre + first)
        pm.Normal("b", sigma=1000.0, shape=2, transform=transforms.ordered, initval=[-1.0, 1.0])

    def slope(start: Any) -> Any:  # of the same component, whichever comes first in a draw
        return start.coefficients[0, np.argmin(np.abs(start.coefficients[0] - centre))]

    start = initial_values(
        fit, model, mapping={"slope": slope, "b": "bias"}, spread=3.0, random_seed=1
    )
    function = make_initial_point_fn(model=model, overrides=start, return_transformed=False)
    points = [function(seed) for seed in range(50)]
    assert all(abs(float(point["slope"]) - centre) < first for point in points)
    assert all(point["b"][0] < point["b"][1] for point in points)
    assert len({float(point["slope"]) for point in points}) > 20


def test_draws_that_nearly_all_fall_outside_are_refused(fit: EMFit) -> None:
    error = float(fit.standard_errors.biases[0])
    centre = float(fit.biases[0])
    with pm.Model() as model:
        pm.Uniform("b", centre - 1e-3 * error, centre + 1e-3 * error)
    with pytest.raises(ValueError, match=r"`spread` must leave one in 10 draws .* of 400 are"):
        initial_values(fit, model, mapping={"b": lambda e: e.biases[0]}, spread=1.0, random_seed=1)
