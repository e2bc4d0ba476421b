"""Predictors and anchored coefficients: NumPy, Numba, PyTensor's own operations, gradients."""

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from pymc.logprob.transforms import SimplexTransform
from pytensor.compile.maker import function
from pytensor.compile.mode import Mode
from pytensor.configdefaults import config
from pytensor.gradient import grad
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.tensor.basic import Alloc
from pytensor.tensor.shape import Shape_i

from moment_init.families.compiling import register_scalars
from moment_init.models.ops import (
    AnchoredCoefficient,
    ColumnSums,
    CompiledSimplex,
    FusedGradient,
    FusedOperation,
    LinearPredictor,
    SimplexWeights,
    anchored_coefficient,
    column_sums,
    linear_predictor,
    write_out,
)
from moment_init.models.specification import anchor_bases, tilt_per_unit

FloatArray = NDArray[np.float64]

PYTHON_MODE = Mode(linker="py", optimizer=RewriteDatabaseQuery(["fast_run"], exclude=["fusion"]))
N_OBS, N_FEATURES, N_COMPONENTS, N_RESPONSES = 7, 4, 3, 2
KAPPA = tilt_per_unit(30.0, N_FEATURES)


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


def predictor_values(rng: np.random.Generator) -> list[FloatArray]:
    shapes = [(N_OBS, N_FEATURES), (N_FEATURES, N_COMPONENTS), (N_COMPONENTS,)]
    return [rng.standard_normal(shape) for shape in shapes]


def anchored_values(rng: np.random.Generator) -> list[FloatArray]:
    anchors = rng.standard_normal((N_FEATURES, N_COMPONENTS))
    anchors /= np.linalg.norm(anchors, axis=0)
    return [
        anchors,
        KAPPA * anchor_bases(anchors).transpose(1, 0, 2),
        rng.standard_normal(N_FEATURES),
        rng.standard_normal((N_COMPONENTS, N_FEATURES - 1)),
        rng.uniform(0.5, 3.0, N_COMPONENTS),
    ]


NAMES = (
    "predictor",
    "several predictors",
    "anchored",
    "column sums",
    "several column sums",
    "simplex",
)


def operation_and_values(
    name: str, rng: np.random.Generator
) -> tuple[FusedOperation, list[FloatArray]]:
    """An operation and values of its inputs."""
    if name == "predictor":
        return LinearPredictor(), predictor_values(rng)
    if name == "several predictors":
        rows, *parameters = predictor_values(rng)
        shapes = [(N_RESPONSES, *values.shape) for values in parameters]
        return LinearPredictor(has_responses=True), [rows, *map(rng.standard_normal, shapes)]
    if name == "several column sums":
        return ColumnSums(has_responses=True), [
            rng.standard_normal(N_OBS),
            rng.standard_normal((N_RESPONSES, N_OBS, N_COMPONENTS)),
        ]
    if name == "anchored":
        return AnchoredCoefficient(KAPPA), anchored_values(rng)
    if name == "column sums":
        return ColumnSums(), [
            rng.standard_normal(N_OBS),
            rng.standard_normal((N_OBS, N_COMPONENTS)),
        ]
    return SimplexWeights(), [rng.standard_normal(N_COMPONENTS - 1)]


def free_inputs(operation: FusedOperation, values: list[FloatArray]) -> list[int]:
    return list(range(operation.n_data, len(values)))


def symbols(values: list[FloatArray]) -> list[Any]:
    return [pt.TensorType("float64", shape=(None,) * value.ndim)() for value in values]


def scalar(outputs: Any) -> Any:
    """A function of the outputs in which every entry counts differently."""
    parts = [pt.sin(output * (1.0 + k)).sum() for k, output in enumerate(outputs)]
    return sum(parts[1:], parts[0])


def test_predictor_by_hand() -> None:
    """x = (1, 2), beta = (3, -1), b = 0.5: 3 - 2 + 0.5."""
    value = linear_predictor(np.array([[1.0, 2.0]]), np.array([[3.0], [-1.0]]), [0.5])
    assert_allclose(value.eval(mode=PYTHON_MODE), [[1.5]])


def test_each_response_has_its_own_predictors(rng: np.random.Generator) -> None:
    operation, (rows, coefficient, bias) = operation_and_values("several predictors", rng)
    together = linear_predictor(rows, coefficient, bias).eval(mode=PYTHON_MODE)
    assert together.shape == (N_RESPONSES, N_OBS, N_COMPONENTS)
    for a in range(N_RESPONSES):
        alone = linear_predictor(rows, coefficient[a], bias[a]).eval(mode=PYTHON_MODE)
        assert_allclose(together[a], alone, rtol=1e-14, atol=1e-14)
        # The loop adds up each row in the same order, whatever is beside it.
        loop = LinearPredictor().value_loop()
        assert_array_equal(
            operation.value_loop()(rows, coefficient, bias)[a], loop(rows, coefficient[a], bias[a])
        )


def test_rows_are_added_up_in_the_same_order(rng: np.random.Generator) -> None:
    """Four rows at a time give the bits of one at a time."""
    rows, coefficient, bias = predictor_values(rng)
    loop = LinearPredictor().value_loop()
    one_by_one = [loop(rows[i : i + 1], coefficient, bias)[0] for i in range(N_OBS)]
    assert_array_equal(loop(rows, coefficient, bias), one_by_one)


def test_anchored_coefficient_by_hand() -> None:
    """Anchor (1, 0), tilt 2, kappa 1/2: (1, 1) / sqrt(2) times scale 3; at the mean (2, 5): 7 x."""
    coefficient, at_mean = anchored_coefficient(
        np.array([[1.0], [0.0]]),
        np.array([[[0.0]], [[0.5]]]),
        np.array([2.0, 5.0]),
        np.array([[2.0]]),
        np.array([3.0]),
        kappa=0.5,
    )
    found = function([], [coefficient, at_mean], mode=PYTHON_MODE)()
    assert_allclose(found[0], np.full((2, 1), 3 / np.sqrt(2)))
    assert_allclose(found[1], [21 / np.sqrt(2)])


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_that_of_differences(name: str, rng: np.random.Generator) -> None:
    operation, values = operation_and_values(name, rng)
    free = free_inputs(operation, values)
    inputs = symbols(values)
    cost = scalar(operation(*inputs, return_list=True))
    gradients: Any = grad(cost, [inputs[k] for k in free])
    evaluate = function(inputs, [cost, *gradients], mode=PYTHON_MODE)
    found = evaluate(*values)[1:]
    for position, gradient in zip(free, found, strict=True):
        step = 1e-6 * rng.standard_normal(values[position].shape)
        ahead, behind = list(values), list(values)
        ahead[position], behind[position] = values[position] + step, values[position] - step
        difference = (evaluate(*ahead)[0] - evaluate(*behind)[0]) / 2
        # Third derivatives of order one: 1e-12 relative to the step, and rounding over 1e-6.
        assert_allclose(difference, np.sum(step * gradient), rtol=1e-5, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_hessian_product_is_that_of_differences(name: str, rng: np.random.Generator) -> None:
    operation, values = operation_and_values(name, rng)
    free = free_inputs(operation, values)
    inputs = symbols(values)
    wanted = [inputs[k] for k in free]
    gradients: Any = grad(scalar(operation(*inputs, return_list=True)), wanted)
    directions = [rng.standard_normal(values[k].shape) for k in free]
    along: Any = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    product: Any = grad(along, wanted)
    evaluate = function(inputs, [*gradients, *product], mode=PYTHON_MODE)
    step = 1e-6
    ahead, behind = list(values), list(values)
    for position, direction in zip(free, directions, strict=True):
        ahead[position] = values[position] + step * direction
        behind[position] = values[position] - step * direction
    n_free = len(free)
    before, after = evaluate(*behind)[:n_free], evaluate(*ahead)[:n_free]
    for k, exact in enumerate(evaluate(*values)[n_free:]):
        assert_allclose((after[k] - before[k]) / (2 * step), exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_written_out_for_other_backends_is_the_same(name: str, rng: np.random.Generator) -> None:
    operation, values = operation_and_values(name, rng)
    free = free_inputs(operation, values)
    inputs = symbols(values)
    outputs: Any = operation(*inputs, return_list=True)
    gradients: Any = grad(scalar(outputs), [inputs[k] for k in free])
    graph = FunctionGraph(inputs, [*outputs, *gradients], clone=True)
    for node in graph.toposort():
        replaced = write_out.transform(graph, node)
        if replaced:
            graph.replace_all(list(zip(node.outputs, replaced, strict=True)))
    fused_types = (FusedOperation, FusedGradient)
    assert not any(isinstance(node.op, fused_types) for node in graph.apply_nodes)
    fused = function(inputs, [*outputs, *gradients], mode=PYTHON_MODE)(*values)
    plain = function(graph.inputs, graph.outputs, mode=PYTHON_MODE)(*values)
    for one, other in zip(fused, plain, strict=True):
        assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_loops_agree_with_the_definition(name: str, rng: np.random.Generator) -> None:
    """The loops themselves, run by Python: what Numba compiles is their source."""
    operation, values = operation_and_values(name, rng)
    expected = [
        output.eval(mode=PYTHON_MODE) for output in operation.written_out(as_tensors(values))
    ]
    found = operation.value_loop()(*values)
    for one, other in zip(found if len(expected) > 1 else [found], expected, strict=True):
        assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    cotangents = [rng.standard_normal(output.shape) for output in expected]
    inputs = as_tensors([*values, *cotangents])
    exact = [part.eval(mode=PYTHON_MODE) for part in FusedGradient(operation).written_out(inputs)]
    parts = operation.gradient_loop()(*values, *map(np.asarray, cotangents))
    for one, other in zip(parts if len(exact) > 1 else [parts], exact, strict=True):
        assert_allclose(one, other, rtol=1e-11, atol=1e-13)


def as_tensors(values: list[Any]) -> list[Any]:
    return [pt.as_tensor_variable(np.asarray(value)) for value in values]


@pytest.mark.parametrize("name", NAMES)
def test_numba_compiles_the_loops(name: str, rng: np.random.Generator) -> None:
    operation, values = operation_and_values(name, rng)
    register_scalars()
    expected = operation.value_loop()(*values)
    found = numba.njit(operation.value_loop())(*values)
    several = isinstance(expected, tuple)
    for one, other in zip(
        found if several else [found], expected if several else [expected], strict=True
    ):
        assert_allclose(one, other, rtol=1e-12)
    cotangents = [
        np.asarray(rng.standard_normal(np.shape(output)))
        for output in (expected if several else [expected])
    ]
    exact = operation.gradient_loop()(*values, *cotangents)
    parts = numba.njit(operation.gradient_loop())(*values, *cotangents)
    several = isinstance(exact, tuple)
    for one, other in zip(
        parts if several else [parts], exact if several else [exact], strict=True
    ):
        assert_allclose(one, other, rtol=1e-12)


def test_simplex_is_pymcs_own(rng: np.random.Generator) -> None:
    value = pt.as_tensor_variable(rng.standard_normal(4) * 3)
    ours, pymcs = CompiledSimplex(), SimplexTransform()
    assert ours.name == pymcs.name
    for method in ("backward", "log_jac_det"):
        one, other = getattr(ours, method)(value), getattr(pymcs, method)(value)
        assert_allclose(one.eval(mode=PYTHON_MODE), other.eval(mode=PYTHON_MODE), rtol=1e-12)


@pytest.mark.parametrize("is_scalar", [True, False])
def test_equal_weights_are_one_weight(is_scalar: bool, rng: np.random.Generator) -> None:
    """The gradient of a plain sum has one weight a row, all equal: they are never written down."""
    matrix = pt.matrix("matrix")
    value = pt.as_tensor_variable(2.5 if is_scalar else np.array([2.5]))
    sums = column_sums(pt.alloc(value, matrix.shape[0]), matrix)
    evaluate = function([matrix], sums, mode=PYTHON_MODE)
    nodes = evaluate.maker.fgraph.toposort()
    assert any(isinstance(node.op, ColumnSums) for node in nodes)
    assert not any(isinstance(node.op, Alloc | Shape_i) for node in nodes)
    values = rng.standard_normal((N_OBS, N_COMPONENTS))
    assert_allclose(evaluate(values), 2.5 * values.sum(axis=0), rtol=1e-12)


def test_weights_that_may_differ_are_left(rng: np.random.Generator) -> None:
    """An allocation of a vector of unknown length is no equal weight."""
    matrix, weight = pt.matrix("matrix"), pt.vector("weight")
    sums = column_sums(pt.alloc(weight, matrix.shape[0]), matrix)
    values = rng.standard_normal((N_OBS, N_COMPONENTS))
    weights = rng.standard_normal(N_OBS)
    found = function([matrix, weight], sums, mode=PYTHON_MODE)(values, weights)
    assert_allclose(found, weights @ values, rtol=1e-12)


def test_one_weight_has_a_gradient(rng: np.random.Generator) -> None:
    """The derivative in the one weight of all rows is the sum of those in each."""
    matrix = rng.standard_normal((N_OBS, N_COMPONENTS))
    cotangent = rng.standard_normal(N_COMPONENTS)
    backward = ColumnSums().gradient_loop()
    one, on_matrix = backward(np.array([1.5]), matrix, cotangent)
    each, on_same_matrix = backward(np.full(N_OBS, 1.5), matrix, cotangent)
    assert_allclose(one, [each.sum()], rtol=1e-12)
    assert_allclose(on_matrix, on_same_matrix)
