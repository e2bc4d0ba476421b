"""The fused likelihood: its three implementations against each other, and inside a PyMC model."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size
from pytensor.compile.maker import function
from pytensor.compile.mode import Mode, optdb
from pytensor.configdefaults import config
from pytensor.gradient import grad
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

import moment_init
from moment_init.families import discrete
from moment_init.families.base import LARGEST_DRAWN_MEAN
from moment_init.families.registry import FAMILIES, get_family
from moment_init.families.several import (
    AnyFamily,
    SeveralResponses,
    categorical,
    join_families,
)
from moment_init.models import mixture_loops, ops
from moment_init.models.density import mixture_log_density, mixture_response
from moment_init.models.likelihoods import component_distribution
from moment_init.models.mixture_loops import MixtureLayout, mixture_loop
from moment_init.models.mixture_op import MixtureLogDensity, symbolic_mixture
from moment_init.models.ops import linear_predictor

# As in test_likelihoods.py: rewrites without the compiler.
PYTHON_MODE = Mode(linker="py", optimizer=RewriteDatabaseQuery(["fast_run"], exclude=["fusion"]))
SINGLE = [
    get_family(family, link) for family in FAMILIES.values() for link in family.supported_links
]
SEVERAL: list[AnyFamily] = [
    join_families(tuple(map(get_family, ("gaussian", "poisson", "binomial")))),
    # Two responses of one family that are not neighbours, and families with a dispersion between.
    join_families(
        tuple(map(get_family, ("bernoulli", "gamma", "bernoulli", "negative_binomial", "gaussian")))
    ),
    join_families((get_family("bernoulli", "probit"), get_family("binomial", "probit"))),
    categorical(4),
]
CASES = [*SINGLE, *SEVERAL]


def name_of(family: AnyFamily) -> str:
    return f"{family.name}-{family.link_name}".replace(", ", "+")


each_case = pytest.mark.parametrize("family", CASES, ids=name_of)
N_OBS, N_COMPONENTS = 12, 3
N_TRIALS = 7
DISPERSION = np.array([0.5, 3.0, 250.0])
WEIGHTS = np.array([0.2, 0.3, 0.5])
GROUPS = np.array([3, 0, 3, 1, 0, 2, 2, 3, 1, 1, 0, 4])
FIRST_ROWS = np.array([0, 1, 0, 3, 1, 5, 5, 0, 3, 3, 1, 11])
# Which optional inputs: weights of each row, sample weights, groups.
LAYOUTS = [(False, False, False), (True, True, False), (False, False, True), (True, True, True)]
# Sums of a few terms, each exact to a few units in the last place.
ROUNDING = 1e-12


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    """Keep inner graphs, which Python mode would otherwise send to the C compiler, in Python."""
    with config.change_flags(cxx=""):
        yield


def responses(family: AnyFamily, rng: np.random.Generator) -> NDArray[Any]:
    """Responses of every size that a family has."""
    columns = [single_response(member.name, rng) for member in family.members]
    if isinstance(family, SeveralResponses):
        is_whole = all(np.issubdtype(values.dtype, np.integer) for values in columns)
        return np.column_stack(columns).astype(np.int64 if is_whole else np.float64)
    return columns[0]


def single_response(name: str, rng: np.random.Generator) -> NDArray[Any]:
    draws: dict[str, NDArray[Any]] = {
        "bernoulli": rng.integers(0, 2, N_OBS),
        "binomial": rng.integers(0, N_TRIALS + 1, N_OBS),
        "poisson": rng.poisson(np.resize([1.0, 9.0, 40.0], N_OBS)),
        "negative_binomial": rng.poisson(np.resize([1.0, 9.0, 400.0], N_OBS)),
        "gaussian": rng.normal(size=N_OBS),
        "gamma": rng.gamma(1.0, size=N_OBS),
        "categorical": rng.permutation(np.resize(np.arange(4), N_OBS)),
    }
    return draws[name]


class Problem:
    """Inputs of one mixture, in the order of the operation and of its loops."""

    def __init__(
        self,
        family: AnyFamily,
        rng: np.random.Generator,
        options: tuple[bool, bool, bool],
        *,
        is_far_out: bool = False,
    ) -> None:
        has_row_weights, has_sample_weight, has_groups = options
        self.family = family
        self.layout = MixtureLayout(
            has_row_weights, family.has_dispersion, family.has_trials, has_sample_weight, has_groups
        )
        self.operation = MixtureLogDensity(family, self.layout)
        is_single, is_several = family.n_predictors == 1, isinstance(family, SeveralResponses)
        eta = rng.normal(size=(family.n_predictors, N_OBS, N_COMPONENTS))
        if is_far_out:
            eta[0, :3] = [[-35.0, 35.0, 1.0], [800.0, -800.0, 2.0], [-800.0, -800.0, -801.0]]
        n_dispersions = sum(member.has_dispersion for member in family.members)
        dispersion = DISPERSION * np.linspace(1.0, 1.2, max(n_dispersions, 1))[:, None]
        trials = np.full((N_OBS, len(family.members)), N_TRIALS)
        log_weight = np.log(WEIGHTS)
        if has_row_weights:
            gate = np.exp(rng.normal(size=(N_OBS, N_COMPONENTS)))
            log_weight = np.log(gate / gate.sum(axis=1, keepdims=True))
        possible = [
            dispersion if is_several else dispersion[0],
            trials if is_several else trials[:, 0],
            rng.uniform(0.2, 2.0, N_OBS) if has_sample_weight else None,
            GROUPS,
        ]
        optional = zip(possible, self.layout[1:], strict=True)
        self.inputs: list[Any] = [
            responses(family, rng),
            eta[0] if is_single else eta,
            log_weight,
            *(value for value, is_there in optional if is_there),
        ]
        self.variables: list[Any] = [
            pt.TensorType(value.dtype, shape=(None,) * value.ndim)() for value in self.inputs
        ]

    @property
    def n_outputs(self) -> int:
        return 3 + self.layout.has_dispersion + self.layout.has_groups

    def perform(self, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """Outputs by NumPy."""
        storage: list[list[Any]] = [[None] for _ in range(self.n_outputs)]
        node: Any = self.operation(*self.variables)
        self.operation.perform(node[0].owner, inputs or self.inputs, storage)
        return [cell[0] for cell in storage]

    def run_loop(self) -> list[NDArray[Any]]:
        """Outputs by the loop, in Python."""
        loop = mixture_loop(self.family, self.layout)
        return list(loop(*self.inputs))

    def value_and_gradients(self) -> list[Any]:
        """All outputs, and the derivatives of the rows' sum with unequal coefficients."""
        outputs: Any = self.operation(*self.variables)
        total = (outputs[0] * pt.as_tensor(np.arange(1.0, N_OBS + 1.0))).sum()
        gradients: Any = grad(total, self.differentiable)
        return [*outputs, *gradients]

    @property
    def differentiable(self) -> list[Any]:
        return self.variables[1:4] if self.layout.has_dispersion else self.variables[1:3]


def assert_all_close(actual: list[Any], expected: list[Any], rtol: float = 1e-10) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=ROUNDING)


def test_bernoulli_worked_by_hand() -> None:
    """y = 1, eta = (log 3, 0), weights 1/4 and 3/4: P = 3/16 + 6/16, shares 1/3 and 2/3.

    The derivatives in eta are 1/3 * 1/4 and 2/3 * 1/2.
    """
    layout = MixtureLayout(False, False, False, False, False)
    eta = np.array([[np.log(3.0), 0.0]])
    value, share, slope = mixture_loop(get_family("bernoulli"), layout)(
        np.array([1]), eta, np.log([0.25, 0.75])
    )
    np.testing.assert_allclose(value, [np.log(9 / 16)])
    np.testing.assert_allclose(share, [[1 / 3, 2 / 3]])
    np.testing.assert_allclose(slope, [[1 / 12, 1 / 3]])


@pytest.mark.parametrize("options", LAYOUTS)
@each_case
def test_loop_is_the_numpy_evaluation_near_and_far_out(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(family, rng, options, is_far_out=True)
    expected = problem.perform()
    assert all(np.all(np.isfinite(part)) for part in expected)
    assert_all_close(problem.run_loop(), expected)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[3]])
@each_case
def test_numpy_evaluation_is_the_mixture_of_pymc_densities(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(family, rng, options)
    named = problem.operation.named(problem.variables)
    written_out = symbolic_mixture(problem.family, named)
    actual = function(problem.variables, written_out, mode=PYTHON_MODE)(*problem.inputs)
    assert_all_close(actual, problem.perform(), rtol=1e-9)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[2]])
@pytest.mark.parametrize("family", [get_family("gaussian"), SEVERAL[0], SEVERAL[3]], ids=name_of)
def test_operation_is_written_out_for_jax(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    """By the rewrites of JAX's mode alone, which need no JAX."""
    problem = Problem(family, rng, options)
    graph = FunctionGraph(problem.variables, problem.value_and_gradients(), clone=True)
    optdb.query(RewriteDatabaseQuery(include=["jax"])).rewrite(graph)
    assert not any(isinstance(node.op, MixtureLogDensity) for node in graph.apply_nodes)
    actual = function(graph.inputs, graph.outputs, mode=PYTHON_MODE)(*problem.inputs)
    expected = function(problem.variables, problem.value_and_gradients(), mode=PYTHON_MODE)
    assert_all_close(actual, expected(*problem.inputs))


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize(
    "family",
    [*map(get_family, ("bernoulli", "binomial", "negative_binomial")), SEVERAL[0], SEVERAL[3]],
    ids=name_of,
)
def test_gradient_is_a_central_difference(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    """Along a random direction; the error h^2 / 6 times third derivatives, at most about 100."""
    problem = Problem(family, rng, options)
    n_parameters = len(problem.differentiable)
    results = function(problem.variables, problem.value_and_gradients(), mode=PYTHON_MODE)(
        *problem.inputs
    )
    step, coefficients = 1e-5, np.arange(1.0, N_OBS + 1.0)
    for position, gradient in enumerate(results[-n_parameters:], start=1):
        direction = rng.normal(size=gradient.shape)
        values = []
        for sign in (1.0, -1.0):
            moved = list(problem.inputs)
            moved[position] = moved[position] + sign * step * direction
            values.append(coefficients @ problem.perform(*moved)[0])
        difference = (values[0] - values[1]) / (2 * step)
        assert np.sum(gradient * direction) == pytest.approx(difference, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[2]])
@pytest.mark.parametrize(
    "family", [*map(get_family, ("bernoulli", "gamma")), SEVERAL[0], SEVERAL[3]], ids=name_of
)
def test_gradient_can_be_differentiated_again(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    """A Hessian times a vector against the difference of two gradients."""
    problem = Problem(family, rng, options)
    wanted = problem.differentiable
    gradients = problem.value_and_gradients()[-len(wanted) :]
    values = problem.inputs[1 : 1 + len(wanted)]
    directions = [rng.normal(size=value.shape) for value in values]
    along = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    second: Any = grad(along, wanted)
    evaluate = function(problem.variables, gradients, mode=PYTHON_MODE)
    step, sides = 1e-5, []
    for sign in (1.0, -1.0):
        moved = list(problem.inputs)
        for position, direction in enumerate(directions, start=1):
            moved[position] = moved[position] + sign * step * direction
        sides.append(evaluate(*moved))
    products = function(problem.variables, list(second), mode=PYTHON_MODE)(*problem.inputs)
    for product, upper, lower in zip(products, *sides, strict=True):
        scale = max(1.0, np.abs(product).max())
        np.testing.assert_allclose(product, (upper - lower) / (2 * step), atol=1e-5 * scale)


def test_value_of_a_group_stands_on_its_first_row(rng: np.random.Generator) -> None:
    problem = Problem(get_family("poisson"), rng, (False, False, True))
    value, share, slope, first = problem.perform()
    np.testing.assert_array_equal(first, FIRST_ROWS)
    is_first = first == np.arange(N_OBS)
    assert np.all(value[~is_first] == 0.0)
    assert np.all(share[~is_first] == 0.0)
    np.testing.assert_allclose(share[is_first].sum(axis=1), 1.0)
    y, eta, log_weight = (np.asarray(value, dtype=np.float64) for value in problem.inputs[:3])
    density = get_family("poisson").log_density_eta(y[:, None], eta)
    rows = GROUPS == 3
    joint = log_weight + density[rows].sum(axis=0)
    assert value[0] == pytest.approx(np.log(np.exp(joint).sum()))
    np.testing.assert_allclose(slope[rows], share[0] * (y[rows, None] - np.exp(eta[rows])))


def test_groups_of_one_row_are_rows(rng: np.random.Generator) -> None:
    grouped = Problem(get_family("gaussian"), rng, (False, False, True))
    order = rng.permutation(N_OBS)
    single = Problem(get_family("gaussian"), rng, (False, False, False))
    expected = single.perform(*grouped.inputs[:4])
    assert_all_close(grouped.perform(*grouped.inputs[:4], order)[:-1], expected)


@pytest.mark.parametrize("options", LAYOUTS)
@each_case
def test_blocks_of_rows_do_not_matter(
    family: AnyFamily,
    options: tuple[bool, bool, bool],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups extend over blocks, and the last block is not full."""
    problem = Problem(family, rng, options, is_far_out=True)
    in_one = problem.run_loop()
    monkeypatch.setattr(mixture_loops, "_BLOCK", 5)
    for one, other in zip(problem.run_loop(), in_one, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_several_responses_worked_by_hand() -> None:
    """Two rows of a bernoulli and a poisson response, under two components.

    In row 0, y = (1, 0), success has probability 3/4 and 1/2, and the rates are 1 and 2: the joint
    probabilities are (1/4) (3/4) exp(-1) and (3/4) (1/2) exp(-2).
    """
    eta = np.array([[[np.log(3.0), 0.0]], [[0.0, np.log(2.0)]]])
    layout = MixtureLayout(False, False, False, False, False)
    family = join_families((get_family("bernoulli"), get_family("poisson")))
    value, share, slope = mixture_loop(family, layout)(
        np.array([[1, 0]]), eta, np.log([0.25, 0.75])
    )
    joint = np.array([0.25 * 0.75 * np.exp(-1.0), 0.75 * 0.5 * np.exp(-2.0)])
    np.testing.assert_allclose(value, [np.log(joint.sum())])
    np.testing.assert_allclose(share, [joint / joint.sum()])
    np.testing.assert_allclose(slope[0], share * [1 / 4, 1 / 2])
    np.testing.assert_allclose(slope[1], share * [-1.0, -2.0])


def test_classes_worked_by_hand() -> None:
    """Three classes with odds 1 : 2 : 5, and 1 : 1 : 1 under the second component; class 2."""
    eta = np.log([[[2.0, 1.0]], [[5.0, 1.0]]])
    layout = MixtureLayout(False, False, False, False, False)
    value, share, slope = mixture_loop(categorical(3), layout)(
        np.array([2]), eta, np.log([0.4, 0.6])
    )
    np.testing.assert_allclose(value, [np.log(0.4 * 5 / 8 + 0.6 / 3)])
    np.testing.assert_allclose(share, [[0.25 / 0.45, 0.2 / 0.45]])
    np.testing.assert_allclose(slope[0], share * [-2 / 8, -1 / 3])
    np.testing.assert_allclose(slope[1], share * [3 / 8, 2 / 3])


def test_responses_add_up(rng: np.random.Generator) -> None:
    """With one component, the log density is the sum of those of the responses alone."""
    family = SEVERAL[1]
    problem = Problem(family, rng, LAYOUTS[0])
    y, eta, _, dispersion = problem.inputs
    value = problem.perform(y, eta[..., :1], np.zeros(1), dispersion[..., :1])[0]
    places, expected = iter(dispersion), np.zeros(N_OBS)
    for a, member in enumerate(family.members):
        spread = next(places)[0] if member.has_dispersion else None
        expected += member.log_density_eta(y[:, a], eta[a, :, 0], dispersion=spread)
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_negative_group_is_refused(rng: np.random.Generator) -> None:
    problem = Problem(get_family("gaussian"), rng, (False, False, True))
    problem.inputs[-1] = GROUPS - 1
    with pytest.raises(ValueError, match="`group` must be >= 0; got a negative index"):
        problem.run_loop()


@pytest.mark.parametrize("options", LAYOUTS)
@each_case
def test_zero_weight_takes_a_component_out(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(family, rng, options, is_far_out=True)
    problem.inputs[2] = problem.inputs[2].copy()
    problem.inputs[2][..., 1] = -np.inf
    outputs = problem.perform()
    assert_all_close(problem.run_loop(), outputs)
    for derivative in outputs[1 : 3 + problem.layout.has_dispersion]:
        assert np.all(np.isfinite(derivative))
        assert np.all(derivative[..., 1] == 0.0)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[2]])
@pytest.mark.parametrize(
    "family", [*map(get_family, ("bernoulli", "gaussian")), *SEVERAL], ids=name_of
)
def test_nothing_alive_is_impossible_and_has_no_slope(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(family, rng, options)
    problem.inputs[2] = np.full(N_COMPONENTS, -np.inf)
    for outputs in (problem.perform(), problem.run_loop()):
        assert np.all(np.isneginf(outputs[0][FIRST_ROWS if options[2] else slice(None)]))
        assert all(np.all(part == 0.0) for part in outputs[1:3])


def test_not_a_number_is_not_hidden(rng: np.random.Generator) -> None:
    for family in (*map(get_family, ("bernoulli", "gaussian")), SEVERAL[0], SEVERAL[3]):
        problem = Problem(family, rng, LAYOUTS[0])
        problem.inputs[1][..., 2, 0] = np.nan
        value = problem.run_loop()[0]
        assert np.isnan(value[2])
        assert np.isfinite(np.delete(value, 2)).all()


def check_numba(family: AnyFamily, options: Any, rng: np.random.Generator) -> None:
    problem = Problem(family, rng, options, is_far_out=True)
    graph = problem.value_and_gradients()
    expected = function(problem.variables, graph, mode=PYTHON_MODE)(*problem.inputs)
    compiled = function(problem.variables, graph, mode="NUMBA")
    assert_all_close(compiled(*problem.inputs), expected)
    # The columns of another array: not contiguous.
    problem.inputs[1] = np.asfortranarray(problem.inputs[1])
    assert_all_close(compiled(*problem.inputs), expected)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (get_family("bernoulli"), LAYOUTS[0]),
        (get_family("poisson"), LAYOUTS[2]),
        (SEVERAL[0], LAYOUTS[3]),
    ],
    ids=["bernoulli", "poisson", "several"],
)
def test_numba_is_the_numpy_evaluation(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    check_numba(family, options, rng)


@pytest.mark.slow
@pytest.mark.parametrize("options", LAYOUTS)
@each_case
def test_numba_is_the_numpy_evaluation_everywhere(
    family: AnyFamily, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    check_numba(family, options, rng)


def test_scalars_stand_for_equal_entries() -> None:
    eta, log_weight = np.array([[0.1, 2.0], [-1.0, 0.4]]), np.log([0.3, 0.7])
    for arguments, full in (
        ({"dispersion": 0.7}, {"dispersion": np.full(2, 0.7)}),
        ({"n_trials": 5}, {"n_trials": np.full(2, 5)}),
    ):
        family = "gaussian" if "dispersion" in arguments else "binomial"
        one, other = (
            mixture_log_density(np.array([1, 2]), eta, log_weight, family=family, **given).eval(
                mode=PYTHON_MODE
            )
            for given in (arguments, full)
        )
        np.testing.assert_array_equal(one, other)


def test_arguments_are_checked() -> None:
    eta, log_weight = np.zeros((2, 2)), np.log([0.5, 0.5])
    with pytest.raises(ValueError, match="`dispersion` must be given for family 'gaussian'"):
        mixture_log_density(np.array([1, 2]), eta, log_weight, family="gaussian")
    with pytest.raises(ValueError, match="`n_trials` must be None for family 'poisson'"):
        mixture_log_density(np.array([1, 2]), eta, log_weight, family="poisson", n_trials=3)
    with pytest.raises(ValueError, match="`eta` must have 2 dimensions; got 1"):
        mixture_log_density(np.array([1, 2]), eta[0], log_weight, family="poisson")
    with pytest.raises(ValueError, match="`log_weight` must have 1 or 2 dimensions; got 0"):
        mixture_log_density(np.array([1, 2]), eta, 0.0, family="poisson")
    with pytest.raises(ValueError, match="`eta` must have 3 dimensions; got 2"):
        mixture_log_density(np.ones((2, 2)), eta, log_weight, family=["poisson", "bernoulli"])
    with pytest.raises(ValueError, match="`y` must have 1 dimensions; got 2"):
        mixture_log_density(np.ones((2, 2)), np.zeros((2, 2, 2)), log_weight, family=categorical(3))
    with pytest.raises(TypeError, match="`family` must be a family, its name, or a sequence"):
        mixture_log_density(np.array([1, 2]), eta, log_weight, family=3)  # type: ignore[arg-type]


def test_two_classes_and_a_list_of_one_family_are_one_response() -> None:
    y, eta, log_weight = np.array([1, 0]), np.array([[0.1, 2.0], [-1.0, 0.4]]), np.log([0.3, 0.7])
    expected, *others = (
        mixture_log_density(y, eta, log_weight, family=family).eval(mode=PYTHON_MODE)
        for family in ("bernoulli", ["bernoulli"], categorical(2))
    )
    for other in others:
        np.testing.assert_array_equal(other, expected)


def build_model(
    family: Any, y: NDArray[Any], X: NDArray[Any], n_predictors: int = 1, **arguments: Any
) -> pm.Model:
    """A mixture of two components with everything that has rows in `pm.Data`."""
    dims = ("obs", "response")[: y.ndim]
    shape = (n_predictors, X.shape[1], 2) if n_predictors > 1 else (X.shape[1], 2)
    with pm.Model() as model:
        features = pm.Data("X", X, dims=("obs", "feature"))
        observed = pm.Data("y_data", y, dims=dims)
        share = pm.Uniform("share")
        coefficient = pm.Normal("coefficient", 0.0, 5.0, shape=shape)
        mixture_response(
            "y",
            linear_predictor(features, coefficient, np.zeros((*shape[:-2], 2))),
            pt.log(pt.stack([share, 1.0 - share])),
            family=family,
            observed=observed,
            dims=dims,
            **arguments,
        )
    return model


POINT = {"share_interval__": np.array(0.3), "coefficient": np.array([[0.9, -0.3], [0.2, 1.4]])}


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_model_has_the_logp_and_gradient_of_a_mixture_by_hand(
    dtype: type, rng: np.random.Generator
) -> None:
    X = rng.normal(size=(N_OBS, 2))
    y: NDArray[Any] = single_response("bernoulli", rng).astype(dtype)
    ours = build_model("bernoulli", y, X)
    with pm.Model() as by_hand:
        share = pm.Uniform("share")
        eta = X @ pm.Normal("coefficient", 0.0, 5.0, shape=(2, 2))
        components = [component_distribution("bernoulli", eta[:, j]) for j in range(2)]
        pm.Mixture("y", w=pt.stack([share, 1.0 - share]), comp_dists=components, observed=y)
    results = [
        model.compile_fn([model.logp(), model.dlogp()], mode=PYTHON_MODE)(POINT)
        for model in (ours, by_hand)
    ]
    assert_all_close(results[0], results[1])


@each_case
def test_every_family_makes_a_distribution(family: AnyFamily, rng: np.random.Generator) -> None:
    """Observed or not, with a finite log density at a start where PyMC needs one."""
    arguments: dict[str, Any] = {}
    if family.has_dispersion:
        n_dispersions = sum(member.has_dispersion for member in family.members)
        is_several = isinstance(family, SeveralResponses)
        spread = np.tile(DISPERSION[:2], (n_dispersions, 1))
        arguments["dispersion"] = spread if is_several else spread[0]
    if family.has_trials:
        arguments["n_trials"] = N_TRIALS
    X, y_observed = rng.normal(size=(N_OBS, 2)), responses(family, rng)
    model = build_model(family, y_observed, X, family.n_predictors, **arguments)
    is_real = any(member.name in {"gaussian", "gamma"} for member in family.members)
    assert model["y"].dtype == np.dtype(np.float64 if is_real else np.int64)
    assert f"y ~ {type(family).__name__}Mixture" in model.str_repr()
    logp = model.compile_fn(model.logp(), mode=PYTHON_MODE)(model.initial_point())
    assert np.isfinite(logp)
    eta = np.stack([X] * family.n_predictors) if family.n_predictors > 1 else X
    with pm.Model():
        y = mixture_response("y", eta, np.log([0.5, 0.5]), family=family, **arguments)
    draws = pm.draw(y, draws=2, random_seed=1, mode=PYTHON_MODE)
    assert draws.shape == (2, *y_observed.shape)
    for member, column in zip(family.members, np.atleast_2d(draws[0].T), strict=True):
        member.validate_response(column, N_TRIALS if member.has_trials else None)


def draws_of(family: Any, eta: NDArray[Any], log_weight: Any, seed: int, **given: Any) -> Any:
    with pm.Model():
        y = mixture_response("y", eta, log_weight, family=family, **given)
    return pm.draw(y, random_seed=seed, mode=PYTHON_MODE)


def test_draws_have_the_moments_of_the_mixture(seed: int) -> None:
    """Mean 0.2 * 1 + 0.8 * 5; four standard errors, six in 100,000 fail."""
    n_obs, weights, means = 40_000, np.array([0.2, 0.8]), np.array([1.0, 5.0])
    eta = np.tile(np.log(means), (n_obs, 1))
    y = draws_of("poisson", eta, np.log(weights), seed)
    mean = weights @ means
    second = weights @ (means + means**2)
    fourth = weights @ (means + 7 * means**2 + 6 * means**3 + means**4)
    assert abs(y.mean() - mean) < 4 * np.sqrt((second - mean**2) / n_obs)
    assert abs(np.mean(y**2.0) - second) < 4 * np.sqrt((fourth - second**2) / n_obs)


def test_draws_of_a_gate_follow_each_row(seed: int) -> None:
    """Component 1 has y near 100; four standard errors of a proportion in each half."""
    n_obs = 20_000
    eta = np.tile([0.0, 100.0], (n_obs, 1))
    share = np.where(np.arange(n_obs) < n_obs // 2, 0.1, 0.7)
    log_weight = np.log(np.column_stack([1.0 - share, share]))
    y = draws_of("gaussian", eta, log_weight, seed, dispersion=np.array([1.0, 2.0]))
    for half, expected in ((y[: n_obs // 2], 0.1), (y[n_obs // 2 :], 0.7)):
        error = np.sqrt(expected * (1 - expected) / half.size)
        assert abs(np.mean(half > 50.0) - expected) < 4 * error
    # The spread of each component is its own: sd / sqrt(2 m) is its standard error.
    for part, deviation in ((y[y < 50.0], 1.0), (y[y > 50.0], 2.0)):
        assert abs(part.std() - deviation) < 4 * deviation / np.sqrt(2 * part.size)


def test_rows_of_a_group_are_drawn_from_one_component(seed: int) -> None:
    n_groups = 4_000
    group = np.random.default_rng(seed).permutation(np.repeat(np.arange(n_groups), 3))
    eta = np.tile([0.0, 100.0], (group.size, 1))
    y = draws_of("gaussian", eta, np.log([0.7, 0.3]), seed, dispersion=1.0, group=group)
    n_high = np.bincount(group, weights=y > 50.0)
    assert set(n_high) == {0.0, 3.0}
    assert abs(np.mean(n_high == 3.0) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / n_groups)


def test_responses_of_a_row_are_drawn_from_one_component(seed: int) -> None:
    """Both are large under component 1, of weight 0.3; each has its own spread."""
    n_obs = 20_000
    eta = np.tile([[[0.0, 100.0]], [[0.0, 50.0]]], (1, n_obs, 1))
    spread = np.array([[1.0, 2.0], [3.0, 0.5]])
    y = draws_of(["gaussian", "gaussian"], eta, np.log([0.7, 0.3]), seed, dispersion=spread)
    assert y.shape == (n_obs, 2)
    is_high = y[:, 0] > 50.0
    np.testing.assert_array_equal(is_high, y[:, 1] > 25.0)
    assert abs(is_high.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / n_obs)
    for component, rows in enumerate((y[~is_high], y[is_high])):
        # The standard error of a deviation is sd / sqrt(2 m).
        error = np.abs(rows.std(axis=0) - spread[:, component])
        assert np.all(error < 4 * spread[:, component] / np.sqrt(2 * len(rows)))


def test_classes_are_drawn_with_their_probabilities(seed: int) -> None:
    """Odds 1 : 2 : 5; four standard errors of a proportion."""
    n_obs = 20_000
    eta = np.tile(np.log([[[2.0]], [[5.0]]]), (1, n_obs, 1))
    y = draws_of(categorical(3), eta, np.zeros(1), seed)
    assert y.dtype == np.int64
    probabilities = np.array([1.0, 2.0, 5.0]) / 8.0
    error = np.sqrt(probabilities * (1 - probabilities) / n_obs)
    assert np.all(np.abs(np.bincount(y) / n_obs - probabilities) < 4 * error)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_counts_of_absurd_means_can_be_drawn(name: str, seed: int) -> None:
    given = {"dispersion": 1e-3} if name == "negative_binomial" else {}
    y = draws_of(name, np.full((500, 1), 250.0), np.zeros(1), seed, **given)
    assert np.all(y >= 0)
    assert y.max() > LARGEST_DRAWN_MEAN / 10


def test_draws_take_a_size(seed: int) -> None:
    with pm.Model():
        y = mixture_response("y", np.zeros((4, 2)), np.log([0.5, 0.5]), family="bernoulli")
    batch = change_dist_size(y, (3, 2))
    assert pm.draw(batch, random_seed=seed, mode=PYTHON_MODE).shape == (3, 2, 4)
    with pm.Model():
        y = mixture_response("y", np.zeros((3, 4, 2)), np.log([0.5, 0.5]), family=["poisson"] * 3)
    batch = change_dist_size(y, (5,))
    assert pm.draw(batch, random_seed=seed, mode=PYTHON_MODE).shape == (5, 4, 3)


def test_predictions_and_log_likelihood_of_a_model(rng: np.random.Generator) -> None:
    """Prior, posterior predictive and pointwise log likelihood; then another number of rows."""
    X, y = rng.normal(size=(N_OBS, 2)), single_response("poisson", rng)
    model = build_model("poisson", y, X)
    keywords: dict[str, Any] = {"random_seed": 1, "compile_kwargs": {"mode": PYTHON_MODE}}
    with model:
        prior = pm.sample_prior_predictive(4, **keywords)
    assert prior["prior_predictive"]["y"].dtype == np.int64
    np.testing.assert_array_equal(prior["observed_data"]["y"], y)
    tree = xr.DataTree.from_dict({"posterior": prior["prior"].to_dataset()})
    quiet: dict[str, Any] = {"model": model, "progressbar": False}
    pointwise = pm.compute_log_likelihood(
        tree, extend_inferencedata=False, compile_kwargs={"mode": PYTHON_MODE}, **quiet
    )
    draw = prior["prior"].isel(chain=0, draw=2)
    share, eta = float(draw["share"]), X @ draw["coefficient"].to_numpy()
    density = model_density(y, eta, share)
    np.testing.assert_allclose(pointwise["y"].isel(chain=0, draw=2), density, rtol=1e-10)
    with model:
        pm.set_data({"X": X[:5], "y_data": y[:5]}, coords={"obs": range(5)})
    predicted = pm.sample_posterior_predictive(tree, predictions=True, **keywords, **quiet)
    assert predicted["predictions"]["y"].shape == (1, 4, 5)


def model_density(y: NDArray[Any], eta: NDArray[Any], share: float) -> NDArray[Any]:
    """Log density of a Poisson mixture of two, by the family and NumPy."""
    density = get_family("poisson").log_density_eta(y[:, None].astype(float), eta)
    result: NDArray[Any] = np.logaddexp.reduce(density + np.log([share, 1 - share]), axis=1)
    return result


def test_numba_draws_without_a_warning(seed: int) -> None:
    """Warnings are errors here, and PyTensor warns of what it has to call Python for."""
    with pm.Model():
        y = mixture_response("y", np.zeros((4, 2)), np.log([0.5, 0.5]), family="bernoulli")
    draws = pm.draw(y, draws=20, random_seed=seed, mode="NUMBA")
    assert draws.shape == (20, 4)
    assert 0 < draws.mean() < 1
    assert len({tuple(draw) for draw in draws}) > 1


# --- the cache of compiled code ------------------------------------------------------------------


def cache_key(family: AnyFamily, options: tuple[bool, bool, bool] = LAYOUTS[0]) -> str | None:
    """The key under which PyTensor keeps the compiled operation on disk."""
    layout = MixtureLayout(
        options[0], family.has_dispersion, family.has_trials, options[1], options[2]
    )
    _, key = numba_funcify_and_cache_key(MixtureLogDensity(family, layout))
    return key


def test_key_follows_every_function_that_is_inlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """`log_factorial` is called by a function of the Poisson family, in another file."""
    families = [get_family("poisson"), SEVERAL[0], get_family("gaussian")]
    before = [cache_key(family) for family in families]
    assert [cache_key(family) for family in families] == before
    monkeypatch.setattr(discrete, "log_factorial", lambda number: 6.0)
    after = [cache_key(family) for family in families]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]


def test_key_follows_the_options_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(get_family("poisson"))
    monkeypatch.setattr(ops, "JIT_OPTIONS", {**ops.JIT_OPTIONS, "fastmath": True})
    assert cache_key(get_family("poisson")) != before


def test_every_family_and_layout_has_a_key_of_its_own() -> None:
    keys = [cache_key(family, options) for family in CASES for options in LAYOUTS]
    assert len(set(keys)) == len(keys)


def test_nothing_is_compiled_with_fast_math() -> None:
    """Sums in another order, as fast math allows, would change the bits with the compiler."""
    operation = MixtureLogDensity(get_family("poisson"), MixtureLayout(*[False] * 5))
    compiled: Any = numba_funcify_and_cache_key(operation)[0]
    assert compiled.targetoptions["fastmath"] is False


EVALUATE = """
import numpy as np
from moment_init.models import mixture_log_density

density = mixture_log_density(np.zeros(1), np.zeros((1, 1)), np.zeros(1), family="poisson")
print(density.eval(mode="NUMBA")[0])
"""


@pytest.mark.slow
def test_edit_of_a_family_is_seen_by_a_new_process(tmp_path: Path) -> None:
    """A count of zero at rate one has log density -1, and -7 once log(0!) is edited to be 6."""
    copy = tmp_path / "packages" / "moment_init"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(moment_init.__file__).parent, copy, ignore=ignored)
    edited = copy / "families" / "special.py"
    original = edited.read_text(encoding="utf-8")

    def evaluate() -> float:
        flags = f"base_compiledir={tmp_path / 'compiled'},cxx="
        variables = {"PYTHONPATH": str(copy.parent), "PYTHONSAFEPATH": "1", "PYTENSOR_FLAGS": flags}
        found = subprocess.run(
            [sys.executable, "-c", EVALUATE],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(found.stdout)

    assert evaluate() == -1.0
    n_files = len(list((tmp_path / "compiled").rglob("*.nbc")))
    assert n_files > 0
    assert evaluate() == -1.0
    assert len(list((tmp_path / "compiled").rglob("*.nbc"))) == n_files
    edit = "\n\n@scalar\ndef log_factorial(count):\n    return 6.0\n"
    edited.write_text(original + edit, encoding="utf-8")
    assert evaluate() == -7.0
