r"""Linear predictors as one operation with its gradient.

.. math:: \eta_{ij} = \sum_k x_{ik} \beta_{kj} + b_j

PyTensor's matrix product, compiled by Numba, takes longer to compile than all the rest of a model:
about twenty seconds for each layout of its arguments. For a few components these loops are as fast.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

__all__ = ["LinearPredictor", "linear_predictor"]

_VERSION = 1
"""Changes with the compiled code, which is cached on disk under it."""


def linear_predictor(inputs: Any, coefficient: Any, bias: Any) -> Any:
    """Linear predictors of rows.

    Parameters
    ----------
    inputs : tensor_like, shape (n_obs, n_features)
        Rows; they are data, with no gradient.
    coefficient : tensor_like, shape (n_features, n_components)
        Coefficients.
    bias : tensor_like, shape (n_components,)
        Intercepts.

    Returns
    -------
    TensorVariable, shape (n_obs, n_components)
        The predictors.
    """
    return LinearPredictor()(inputs, coefficient, bias)


class LinearPredictor(Op):
    """Predictors of rows from coefficients and intercepts."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply[Any]:
        """Type the output.

        Parameters
        ----------
        *inputs : tensor_like
            As in `linear_predictor`.

        Returns
        -------
        Apply
            The node.
        """
        variables = [pt.as_tensor_variable(value) for value in inputs]
        shape = (variables[0].type.shape[0], variables[1].type.shape[1])
        return Apply(self, variables, [pt.TensorType("float64", shape=shape)()])

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Give the shape of the predictors.

        Parameters
        ----------
        node : Apply
            The node.
        shapes : sequence
            Shapes of the inputs.

        Returns
        -------
        list of tuple
            Rows by components.
        """
        return [(shapes[0][0], shapes[1][1])]

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        """Say which inputs are differentiable: all but the rows.

        Parameters
        ----------
        node : Apply
            The node.

        Returns
        -------
        list of list of bool
            For each input.
        """
        return [[False], [True], [True]]

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """Sum the cotangent over rows, times the rows and plainly.

        Parameters
        ----------
        inputs, outputs, cotangents : sequence of Variable
            As PyTensor gives them.

        Returns
        -------
        list of Variable
            The derivative for each input.
        """
        if isinstance(cotangents[0].type, DisconnectedType):
            return [disconnected_type() for _ in inputs]
        sums: Any = _PredictorSums()(inputs[0], cotangents[0])
        return [disconnected_type(), *sums]

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate with NumPy.

        Parameters
        ----------
        node : Apply
            The node.
        inputs : sequence of ndarray
            Rows, coefficients, intercepts.
        output_storage : list of list
            Where the predictors go.
        """
        rows, coefficient, bias = inputs
        output_storage[0][0] = rows @ coefficient + bias


class _PredictorSums(Op):
    """Sums over rows of x_i g_i' and of g_i: the transpose of `LinearPredictor`."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply[Any]:
        variables = [pt.as_tensor_variable(value) for value in inputs]
        n_features, n_components = variables[0].type.shape[1], variables[1].type.shape[1]
        matrix = pt.TensorType("float64", shape=(n_features, n_components))
        return Apply(self, variables, [matrix(), pt.TensorType("float64", shape=(n_components,))()])

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [(shapes[0][1], shapes[1][1]), (shapes[1][1],)]

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        return [[False, False], [True, True]]

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """The sums are linear in the cotangent: their transpose is the predictor itself."""
        if all(isinstance(value.type, DisconnectedType) for value in cotangents):
            return [disconnected_type() for _ in inputs]
        filled: list[Any] = [
            pt.zeros_like(output) if isinstance(value.type, DisconnectedType) else value
            for output, value in zip(outputs, cotangents, strict=True)
        ]
        return [disconnected_type(), linear_predictor(inputs[0], *filled)]

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        rows, cotangent = inputs
        output_storage[0][0] = rows.T @ cotangent
        output_storage[1][0] = cotangent.sum(axis=0)


@register_funcify_default_op_cache_key(LinearPredictor)
def _compile_predictor(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    @numba_njit
    def predictor(inputs: Any, coefficient: Any, bias: Any) -> Any:
        n_obs, n_features = inputs.shape
        n_components = coefficient.shape[1]
        # A component's coefficients side by side: the inner loop then runs over memory in order.
        columns = np.empty((n_components, n_features))
        for j in range(n_components):
            for k in range(n_features):
                columns[j, k] = coefficient[k, j]
        eta = np.empty((n_obs, n_components))
        for i in range(n_obs):
            for j in range(n_components):
                total = bias[j]
                for k in range(n_features):
                    total += inputs[i, k] * columns[j, k]
                eta[i, j] = total
        return eta

    return predictor, _VERSION


@register_funcify_default_op_cache_key(_PredictorSums)
def _compile_sums(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    @numba_njit
    def sums(inputs: Any, cotangent: Any) -> Any:
        n_obs, n_features = inputs.shape
        n_components = cotangent.shape[1]
        columns = np.zeros((n_components, n_features))
        level = np.zeros(n_components)
        for i in range(n_obs):
            for j in range(n_components):
                share = cotangent[i, j]
                level[j] += share
                for k in range(n_features):
                    columns[j, k] += share * inputs[i, k]
        products = np.empty((n_features, n_components))
        for j in range(n_components):
            for k in range(n_features):
                products[k, j] = columns[j, k]
        return products, level

    return sums, _VERSION


@node_rewriter([LinearPredictor, _PredictorSums])
def _write_out(fgraph: Any, node: Apply[Any]) -> list[Any]:
    """Replace the operations by matrix products, for backends that compile graphs."""
    if isinstance(node.op, LinearPredictor):
        rows, coefficient, bias = node.inputs
        written_out = [pt.dot(rows, coefficient) + bias]
    else:
        rows, cotangent = map(pt.as_tensor_variable, node.inputs)
        written_out = [pt.dot(rows.T, cotangent), cotangent.sum(axis=0)]
    return [
        new if new.type.is_super(old.type) else old.type.filter_variable(new)
        for old, new in zip(node.outputs, written_out, strict=True)
    ]


# Before the rewrites that JAX needs of what it puts in; nothing here imports JAX.
optdb.register("write_out_linear_predictor", dfs_rewriter(_write_out), "jax", position=0.5)
