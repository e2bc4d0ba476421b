r"""PyTensor operations whose value and gradient are loops compiled by Numba.

Numba compiles a PyTensor graph one small function at a time, which takes tens of seconds even for
small arrays. A `FusedOperation` replaces such a graph by two loops, one for the value and one for
the gradient. It also has a definition in PyTensor's own operations, which provides the second
derivatives and the code for other backends. There are four:

`LinearPredictor` and `ColumnSums`, the predictors of rows and weighted sums over rows, for one
response or several:

.. math:: \eta_{ij} = \sum_k x_{ik} \beta_{kj} + b_j, \qquad t_j = \sum_i g_i m_{ij}

With Numba, PyTensor's matrix product takes longer to compile than the rest of a model, about twenty
seconds for each layout of its arguments. For a few components these loops run as fast.

`AnchoredCoefficient`, the coefficients of anchored directions:

.. math:: \beta_j = \frac{s_j}{\ell_j} (a_j + K_j \zeta_j), \qquad
    \ell_j = \sqrt{1 + \kappa^2 |\zeta_j|^2}

with :math:`a_j` the anchor and :math:`K_j = \kappa Q_j` the basis of its complement, both mapped to
the user's units; and the predictor at the mean input, :math:`\langle \mu, \beta_j \rangle`.

`SimplexWeights`, PyMC's simplex transform, with the same name and parametrisation:

.. math:: w = \operatorname{softmax}(v_1, \dots, v_{r-1}, -\textstyle\sum_j v_j), \qquad
    \log |\partial w / \partial v| = \log r + \sum_{j=1}^{r} \log w_j
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import SimplexTransform
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType, disconnected_type, grad, pullback
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.basic import Alloc
from pytensor.tensor.rewriting.basic import register_specialize

from moment_init.families.compiling import NUMBA_OPTIONS, digest_of, loop, register_scalars

JIT_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "error_model": NUMBA_OPTIONS["error_model"],
        "fastmath": False,  # PyTensor's default is True
        # Only compiled code calls these functions, so they need no wrappers for Python or C.
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
)
"""Numba options of the loops in graphs. If everything in a graph has the same options, numba
compiles its own functions, such as `np.empty`, only once."""


def compile_loop(function: Callable[..., Any]) -> tuple[Any, int]:
    """Compile a loop with numba, and compute the number by which PyTensor's disk cache knows it.

    The number follows the code of all functions that the loop calls: a cache that knew only the
    name of an operation would return machine code of functions that have changed since.
    """
    register_scalars()
    key = f"{digest_of(function)} {sorted(JIT_OPTIONS.items())}"
    version = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
    return numba_njit(function, **JIT_OPTIONS), version


class FusedOperation(Op):
    """An operation with a compiled loop for its value and one for its gradient."""

    __props__: ClassVar[tuple[str, ...]] = ()
    n_data: ClassVar[int] = 0  # the first `n_data` inputs are data and have no gradient
    n_outputs: ClassVar[int] = 1

    @abstractmethod
    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs in PyTensor's own operations, none computed from another."""

    @abstractmethod
    def value_loop(self) -> Callable[..., Any]:
        """Return the function of the inputs that Numba compiles."""

    @abstractmethod
    def gradient_loop(self) -> Callable[..., Any]:
        """Return the function of the inputs and the cotangents that Numba compiles."""

    def make_node(self, *inputs: Any) -> Apply[Any]:
        """Take the types of the outputs from the definition."""
        variables = [pt.as_tensor_variable(value) for value in inputs]
        return Apply(self, variables, [output.type() for output in self.written_out(variables)])

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        """Mark all inputs but the data as differentiable."""
        n_outputs = len(node.outputs)
        return [[k >= self.n_data] * n_outputs for k in range(len(node.inputs))]

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """Compute the derivatives with the gradient loop."""
        if all(isinstance(value.type, DisconnectedType) for value in cotangents):
            return [disconnected_type() for _ in inputs]
        filled: list[Any] = [
            pt.zeros_like(output) if isinstance(value.type, DisconnectedType) else value
            for output, value in zip(outputs, cotangents, strict=True)
        ]
        parts: Any = FusedGradient(self)(*inputs, *filled, return_list=True)
        return [disconnected_type() for _ in range(self.n_data)] + parts

    def evaluate(self, *inputs: Any) -> Any:
        """Return the outputs without numba: by the value loop in Python, which is slow for rows."""
        return self.value_loop()(*inputs)

    def differentiate(self, *inputs: Any) -> Any:
        """Return the derivatives without numba: by the gradient loop in Python."""
        return self.gradient_loop()(*inputs)

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate without numba."""
        _store(self.evaluate(*inputs), output_storage)


class FusedGradient(Op):
    """The gradient of a `FusedOperation`: a function of its inputs and its outputs' cotangents."""

    __props__ = ("operation",)

    def __init__(self, operation: FusedOperation) -> None:
        self.operation = operation

    def make_node(self, *inputs: Any) -> Apply[Any]:
        """Give each derivative the type of its input."""
        variables = [pt.as_tensor_variable(value) for value in inputs]
        return Apply(self, variables, [variable.type() for variable in self._free(variables)])

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        """Give each derivative the shape of its input."""
        return list(self._free(shapes, len(node.outputs)))

    def _free(self, inputs: Sequence[Any], number: int | None = None) -> Sequence[Any]:
        """Select the entries of the operation's inputs that are not data."""
        first = self.operation.n_data
        if number is None:
            number = len(inputs) - first - self.operation.n_outputs
        return inputs[first : first + number]

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        """Mark all inputs but the data as differentiable."""
        n_outputs = len(node.outputs)
        return [[k >= self.operation.n_data] * n_outputs for k in range(len(node.inputs))]

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """Compute second derivatives, which a Hessian needs, from the definition."""
        wanted = [k for k, c in enumerate(cotangents) if not isinstance(c.type, DisconnectedType)]
        if not wanted:
            return [disconnected_type() for _ in inputs]
        # Partial derivatives are needed, but the cotangents may themselves be functions of the
        # other inputs. Fresh variables take their place while differentiating.
        given = [*inputs, *(cotangents[k] for k in wanted)]
        stand_ins: list[Any] = [variable.type() for variable in given]
        first = self.written_out(stand_ins[: len(inputs)])
        chosen = stand_ins[len(inputs) :]
        cost: Any = sum((first[k] * value).sum() for k, value in zip(wanted, chosen, strict=True))
        n_data = self.operation.n_data
        parts: Any = grad(cost, stand_ins[n_data : len(inputs)], disconnected_inputs="ignore")
        replaced: Any = graph_replace(parts, list(zip(stand_ins, given, strict=True)), strict=False)
        return [disconnected_type() for _ in range(n_data)] + replaced

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the same derivatives in PyTensor's own operations."""
        n_outputs = self.operation.n_outputs
        arguments, cotangents = inputs[:-n_outputs], inputs[-n_outputs:]
        outputs = self.operation.written_out(arguments)
        derivatives: Any = pullback(outputs, list(self._free(inputs)), list(cotangents))
        return list(derivatives)

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate without numba."""
        _store(self.operation.differentiate(*inputs), output_storage)


def _store(results: Any, output_storage: Any) -> None:
    several = results if isinstance(results, tuple) else (results,)
    for storage, result in zip(output_storage, several, strict=True):
        storage[0] = result


@register_funcify_default_op_cache_key(FusedOperation)
def _compile_value(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    return compile_loop(op.value_loop())


@register_funcify_default_op_cache_key(FusedGradient)
def _compile_gradient(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    return compile_loop(op.operation.gradient_loop())


@node_rewriter([FusedOperation, FusedGradient])
def write_out(fgraph: Any, node: Apply[Any]) -> list[Any]:
    """Replace an operation by its definition, for backends that compile whole graphs."""
    operation: Any = node.op
    return [
        new if new.type.is_super(old.type) else old.type.filter_variable(new)
        for old, new in zip(node.outputs, operation.written_out(node.inputs), strict=True)
    ]


# Runs before the JAX rewrites, which must also see the new nodes. Nothing here imports JAX.
optdb.register("write_out_fused_operations", dfs_rewriter(write_out), "jax", position=0.5)


def linear_predictor(inputs: Any, coefficient: Any, bias: Any) -> Any:
    """Compute the linear predictors of rows."""
    # inputs: (n_obs, n_features), coefficient: (n_features, n_components), bias: (n_components,)
    # -> (n_obs, n_components); all but the inputs may have a leading axis of responses
    slopes = pt.as_tensor_variable(coefficient)
    return LinearPredictor(slopes.type.ndim == 3)(inputs, slopes, bias)


def column_sums(weight: Any, matrix: Any) -> Any:
    """Sum the rows of a matrix, each times its weight."""
    # weight: (n_obs,) or (1,), matrix: (n_obs, n_components) -> (n_components,); the matrix and the
    # sums may have a leading axis of responses
    terms = pt.as_tensor_variable(matrix)
    return ColumnSums(terms.type.ndim == 3)(weight, terms)


class RowOperation(FusedOperation):
    """An operation on rows, with or without a leading axis of responses."""

    __props__: ClassVar[tuple[str, ...]] = ("has_responses",)
    n_outputs: ClassVar[int] = 1

    def __init__(self, has_responses: bool = False) -> None:
        self.has_responses = has_responses


class LinearPredictor(RowOperation):
    """Linear predictors of rows from coefficients and biases."""

    n_data: ClassVar[int] = 1

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the definition."""
        rows, coefficient, bias = inputs
        return [pt.matmul(rows, coefficient) + bias[..., None, :]]

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the shape of the predictors."""
        return [(*shapes[1][:-2], shapes[0][0], shapes[1][-1])]

    def evaluate(self, *inputs: Any) -> Any:
        """Return the predictors."""
        rows, coefficient, bias = inputs
        return rows @ coefficient + bias[..., None, :]

    def differentiate(self, *inputs: Any) -> Any:
        """Return the sums of x_i g_i' and g_i."""
        rows, cotangent = inputs[0], inputs[-1]
        return rows.T @ cotangent, cotangent.sum(axis=-2)

    def value_loop(self) -> Callable[..., Any]:
        """Loop over the rows."""

        def predictor(inputs: Any, coefficient: Any, bias: Any) -> Any:
            eta = np.empty((inputs.shape[0], coefficient.shape[1]))
            _write_predictors(inputs, coefficient, bias, eta)
            return eta

        def predictors(inputs: Any, coefficient: Any, bias: Any) -> Any:
            n_predictors, _, n_components = coefficient.shape
            eta = np.empty((n_predictors, inputs.shape[0], n_components))
            for a in range(n_predictors):
                _write_predictors(inputs, coefficient[a], bias[a], eta[a])
            return eta

        return predictors if self.has_responses else predictor

    def gradient_loop(self) -> Callable[..., Any]:
        """Sum x_i g_i' and g_i over the rows."""

        def sums(inputs: Any, coefficient: Any, bias: Any, cotangent: Any) -> Any:
            products, level = np.empty(coefficient.shape), np.empty(bias.shape)
            _write_products(inputs, cotangent, products, level)
            return products, level

        def all_sums(inputs: Any, coefficient: Any, bias: Any, cotangent: Any) -> Any:
            products, level = np.empty(coefficient.shape), np.empty(bias.shape)
            for a in range(bias.shape[0]):
                _write_products(inputs, cotangent[a], products[a], level[a])
            return products, level

        return all_sums if self.has_responses else sums


@loop
def _write_predictors(inputs: Any, coefficient: Any, bias: Any, eta: Any) -> None:
    """Compute the predictors of one response.

    Four rows at a time have four sums that do not wait for each other. Each sum has its terms in
    the order of the features, as the sum of a row alone.
    """
    n_obs, n_features = inputs.shape
    n_components = coefficient.shape[1]
    # The coefficients of a component lie side by side, so that the inner loop is fast.
    columns = np.empty((n_components, n_features))
    for j in range(n_components):
        for k in range(n_features):
            columns[j, k] = coefficient[k, j]
    n_paired = n_obs - n_obs % 4
    for i in range(0, n_paired, 4):
        for j in range(n_components):
            first = second = third = fourth = bias[j]
            for k in range(n_features):
                slope = columns[j, k]
                first += inputs[i, k] * slope
                second += inputs[i + 1, k] * slope
                third += inputs[i + 2, k] * slope
                fourth += inputs[i + 3, k] * slope
            eta[i, j] = first
            eta[i + 1, j] = second
            eta[i + 2, j] = third
            eta[i + 3, j] = fourth
    for i in range(n_paired, n_obs):
        for j in range(n_components):
            total = bias[j]
            for k in range(n_features):
                total += inputs[i, k] * columns[j, k]
            eta[i, j] = total


@loop
def _write_products(inputs: Any, cotangent: Any, products: Any, level: Any) -> None:
    """Sum x_i g_i' and g_i of one response."""
    n_obs, n_features = inputs.shape
    n_components = cotangent.shape[1]
    columns, sums = np.zeros((n_components, n_features)), np.zeros(n_components)
    for i in range(n_obs):
        for j in range(n_components):
            share = cotangent[i, j]
            sums[j] += share
            for k in range(n_features):
                columns[j, k] += share * inputs[i, k]
    for j in range(n_components):
        level[j] = sums[j]
        for k in range(n_features):
            products[k, j] = columns[j, k]


class ColumnSums(RowOperation):
    """Weighted sums of the columns of a matrix."""

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the definition."""
        weight, matrix = inputs
        return [(weight[:, None] * matrix).sum(axis=-2)]

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the shape of the sums: one per column."""
        return [(*shapes[1][:-2], shapes[1][-1])]

    def evaluate(self, *inputs: Any) -> Any:
        """Return the sums."""
        weight, matrix = inputs
        return np.broadcast_to(weight, matrix.shape[-2:-1]) @ matrix

    def differentiate(self, *inputs: Any) -> Any:
        """Return the products with the cotangent."""
        weight, matrix, cotangent = inputs
        products = (matrix @ cotangent[..., None])[..., 0].reshape(-1, matrix.shape[-2]).sum(axis=0)
        of_weight = products if weight.shape == products.shape else products.sum(keepdims=True)
        of_matrix = np.empty(matrix.shape)
        of_matrix[...] = weight[:, None] * cotangent[..., None, :]
        return of_weight, of_matrix

    def value_loop(self) -> Callable[..., Any]:
        """Loop over the rows."""

        def sums(weight: Any, matrix: Any) -> Any:
            total = np.zeros(matrix.shape[1])
            _add_columns(weight, matrix, total)
            return total

        def all_sums(weight: Any, matrix: Any) -> Any:
            n_responses, _, n_columns = matrix.shape
            total = np.zeros((n_responses, n_columns))
            for a in range(n_responses):
                _add_columns(weight, matrix[a], total[a])
            return total

        return all_sums if self.has_responses else sums

    def gradient_loop(self) -> Callable[..., Any]:
        """Multiply by the cotangent."""

        def products(weight: Any, matrix: Any, cotangent: Any) -> Any:
            of_weight, of_matrix = np.zeros(weight.shape), np.empty(matrix.shape)
            _write_terms(weight, matrix, cotangent, of_weight, of_matrix)
            return of_weight, of_matrix

        def all_products(weight: Any, matrix: Any, cotangent: Any) -> Any:
            of_weight, of_matrix = np.zeros(weight.shape), np.empty(matrix.shape)
            for a in range(matrix.shape[0]):
                _write_terms(weight, matrix[a], cotangent[a], of_weight, of_matrix[a])
            return of_weight, of_matrix

        return all_products if self.has_responses else products


@loop
def _add_columns(weight: Any, matrix: Any, total: Any) -> None:
    """Add the rows of a matrix, each times its weight or the one weight of all."""
    stride = 0 if weight.shape[0] == 1 else 1
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            total[j] += weight[stride * i] * matrix[i, j]


@loop
def _write_terms(weight: Any, matrix: Any, cotangent: Any, of_weight: Any, of_matrix: Any) -> None:
    """Add the derivatives in the weights, and write those in the matrix."""
    stride = 0 if weight.shape[0] == 1 else 1
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            of_weight[stride * i] += matrix[i, j] * cotangent[j]
            of_matrix[i, j] = weight[stride * i] * cotangent[j]


@register_specialize
@node_rewriter([ColumnSums])
def sum_columns_equally(fgraph: Any, node: Apply[Any]) -> list[Any] | None:
    """Use a single weight if all are equal, as they are in the derivative of a sum over rows."""
    weight, matrix = node.inputs
    if weight.owner is None or not isinstance(weight.owner.op, Alloc):
        return None
    if weight.type.shape == (1,):
        return None
    value = weight.owner.inputs[0]
    if value.type.ndim == 1 and value.type.shape != (1,):
        return None
    return [column_sums(value.reshape((1,)) if value.type.ndim == 0 else value, matrix)]


def anchored_coefficient(
    anchor: Any, basis: Any, mean: Any, tilt: Any, scale: Any, *, kappa: float
) -> tuple[Any, Any]:
    """Compute coefficients from tilts and scales, and the predictors at the mean input."""
    # anchor: (n_features, n_components), basis: (n_features, n_components, n_features - 1),
    # mean: (n_features,), tilt: (n_components, n_features - 1), scale: (n_components,)
    # -> (n_features, n_components), (n_components,)
    outputs: Any = AnchoredCoefficient(float(kappa))(anchor, basis, mean, tilt, scale)
    return outputs[0], outputs[1]


class AnchoredCoefficient(FusedOperation):
    """Coefficients of anchored directions, and predictors at the mean input."""

    __props__: ClassVar[tuple[str, ...]] = ("kappa",)
    n_data: ClassVar[int] = 3
    n_outputs: ClassVar[int] = 2

    def __init__(self, kappa: float) -> None:
        self.kappa = kappa

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the equation of the module docstring."""
        anchor, basis, mean, tilt, scale = inputs

        def coefficient() -> Any:
            length = pt.sqrt(1.0 + self.kappa**2 * pt.sqr(tilt).sum(axis=-1))
            return (anchor + (basis * tilt).sum(axis=-1)) * (scale / length)

        return [coefficient(), (mean[:, None] * coefficient()).sum(axis=0)]

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the shapes of the outputs."""
        return [(shapes[0][0], shapes[4][0]), (shapes[4][0],)]

    def evaluate(self, *inputs: Any) -> Any:
        """Return the coefficients and the predictors at the mean input."""
        anchor, basis, mean, tilt, scale = inputs
        length = np.sqrt(1.0 + self.kappa**2 * np.square(tilt).sum(axis=-1))
        coefficient = (anchor + (basis * tilt).sum(axis=-1)) * (scale / length)
        return coefficient, mean @ coefficient

    def differentiate(self, *inputs: Any) -> Any:
        """Return the derivatives in tilts and scales, by the equations of `gradient_loop`."""
        anchor, basis, mean, tilt, scale, of_coefficient, of_mean = inputs
        cotangent = of_coefficient + np.outer(mean, of_mean)
        squared = 1.0 + self.kappa**2 * np.square(tilt).sum(axis=-1)
        along = (cotangent * (anchor + (basis * tilt).sum(axis=-1))).sum(axis=0)
        pull = np.einsum("kj,kjt->jt", cotangent, basis)
        pull -= (self.kappa**2 * along / squared)[:, None] * tilt
        return (scale / np.sqrt(squared))[:, None] * pull, along / np.sqrt(squared)

    def value_loop(self) -> Callable[..., Any]:
        """Loop over the components."""
        squared_kappa = float(self.kappa**2)

        def forward(anchor: Any, basis: Any, mean: Any, tilt: Any, scale: Any) -> Any:
            n_features, n_components, n_tilts = basis.shape
            coefficient = np.empty((n_features, n_components))
            at_mean = np.empty(n_components)
            for j in range(n_components):
                at_mean[j] = 0.0
                squared = 1.0
                for t in range(n_tilts):
                    squared += squared_kappa * tilt[j, t] * tilt[j, t]
                factor = scale[j] / math.sqrt(squared)
                for k in range(n_features):
                    total = anchor[k, j]
                    for t in range(n_tilts):
                        total += basis[k, j, t] * tilt[j, t]
                    coefficient[k, j] = total * factor
                    at_mean[j] += mean[k] * coefficient[k, j]
            return coefficient, at_mean

        return forward

    def gradient_loop(self) -> Callable[..., Any]:
        r"""Compute the derivatives in tilts and scales.

        Let v be the vector before it is scaled and c the cotangent of the coefficient, including
        that of its product with the mean. Then ds = <c, v> / l and
        dz = (s / l) (K'c - k^2 z <c, v> / l^2).
        """
        squared_kappa = float(self.kappa**2)

        def backward(
            anchor: Any,
            basis: Any,
            mean: Any,
            tilt: Any,
            scale: Any,
            of_coefficient: Any,
            of_mean: Any,
        ) -> Any:
            n_features, n_components, n_tilts = basis.shape
            of_tilt = np.empty((n_components, n_tilts))
            of_scale = np.empty(n_components)
            for j in range(n_components):
                squared = 1.0
                for t in range(n_tilts):
                    squared += squared_kappa * tilt[j, t] * tilt[j, t]
                    of_tilt[j, t] = 0.0
                length = math.sqrt(squared)
                along = 0.0
                for k in range(n_features):
                    cotangent = of_coefficient[k, j] + mean[k] * of_mean[j]
                    vector = anchor[k, j]
                    for t in range(n_tilts):
                        vector += basis[k, j, t] * tilt[j, t]
                        of_tilt[j, t] += cotangent * basis[k, j, t]
                    along += cotangent * vector
                of_scale[j] = along / length
                for t in range(n_tilts):
                    pull = squared_kappa * along / squared * tilt[j, t]
                    of_tilt[j, t] = scale[j] / length * (of_tilt[j, t] - pull)
            return of_tilt, of_scale

        return backward


class SimplexWeights(FusedOperation):
    """Weights from unconstrained values, and the sum of their logarithms."""

    n_outputs: ClassVar[int] = 2

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the equation of the module docstring."""

        def logits() -> Any:
            return pt.concatenate([inputs[0], -inputs[0].sum(keepdims=True)])

        return [pt.special.softmax(logits()), pt.special.log_softmax(logits()).sum()]

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the shapes of the outputs."""
        return [(shapes[0][0] + 1,), ()]

    def value_loop(self) -> Callable[..., Any]:
        """Compute a softmax, with the largest logit subtracted first."""

        def forward(values: Any) -> Any:
            n_free = values.shape[0]
            weights = np.empty(n_free + 1)
            last = 0.0
            for j in range(n_free):
                weights[j] = values[j]
                last -= values[j]
            weights[n_free] = last
            largest = weights[0]
            for j in range(1, n_free + 1):
                if weights[j] > largest:
                    largest = weights[j]
            total = 0.0
            logits = 0.0
            for j in range(n_free + 1):
                logits += weights[j] - largest
                weights[j] = math.exp(weights[j] - largest)
                total += weights[j]
            for j in range(n_free + 1):
                weights[j] /= total
            return weights, np.asarray(logits - (n_free + 1) * math.log(total))

        return forward

    def gradient_loop(self) -> Callable[..., Any]:
        """Compute the derivatives in the logits, minus the derivative in the last logit."""

        def backward(values: Any, of_weights: Any, of_sum: Any) -> Any:
            n_free = values.shape[0]
            last = 0.0
            largest = -np.inf
            for j in range(n_free):
                last -= values[j]
                if values[j] > largest:
                    largest = values[j]
            if last > largest:
                largest = last
            weights = np.empty(n_free + 1)
            total = 0.0
            for j in range(n_free + 1):
                logit = values[j] if j < n_free else last
                weights[j] = math.exp(logit - largest)
                total += weights[j]
            mean = 0.0
            for j in range(n_free + 1):
                weights[j] /= total
                mean += weights[j] * of_weights[j]
            level = of_sum.item()
            n_all = n_free + 1
            of_last = weights[n_free] * (of_weights[n_free] - mean - n_all * level)
            of_values = np.empty(n_free)
            for j in range(n_free):
                of_values[j] = weights[j] * (of_weights[j] - mean - n_all * level) - of_last
            return of_values

        return backward


class CompiledSimplex(SimplexTransform):  # type: ignore[misc]
    """PyMC's simplex transform of a vector, computed by `SimplexWeights`."""

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Map unconstrained values to weights."""
        # value: (n_components - 1,) -> (n_components,)
        outputs: Any = SimplexWeights()(value)
        return outputs[0]

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the determinant of the Jacobian."""
        # value: (n_components - 1,)
        outputs: Any = SimplexWeights()(value)
        n_components = pt.as_tensor_variable(value).shape[0] + 1
        return outputs[1] + pt.log(n_components.astype("float64"))
