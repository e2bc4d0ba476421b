r"""Linear predictors, and weighted sums of columns, as operations with their gradients.

.. math:: \eta_{ij} = \sum_k x_{ik} \beta_{kj} + b_j, \qquad t_j = \sum_i g_i m_{ij}

PyTensor's matrix product, compiled by Numba, takes longer to compile than all the rest of a model:
about twenty seconds for each layout of its arguments. For a few components these loops are as fast.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.basic import Alloc
from pytensor.tensor.rewriting.basic import register_specialize

from moment_init.models.fused_operation import FusedOperation

__all__ = [
    "ColumnSums",
    "LinearPredictor",
    "column_sums",
    "linear_predictor",
    "sum_columns_equally",
]


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


def column_sums(weight: Any, matrix: Any) -> Any:
    """Sums over rows of a matrix times a weight of each row.

    Parameters
    ----------
    weight : tensor_like, shape (n_obs,) or (1,)
        Weights; one stands for equal weights.
    matrix : tensor_like, shape (n_obs, n_components)
        The matrix.

    Returns
    -------
    TensorVariable, shape (n_components,)
        The sums.
    """
    return ColumnSums()(weight, matrix)


class LinearPredictor(FusedOperation):
    """Predictors of rows from coefficients and intercepts."""

    n_data: ClassVar[int] = 1
    n_outputs: ClassVar[int] = 1

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """The definition.

        Parameters
        ----------
        inputs : sequence of TensorVariable
            Rows, coefficients, intercepts.

        Returns
        -------
        list of TensorVariable
            The predictors.
        """
        rows, coefficient, bias = inputs
        return [pt.dot(rows, coefficient) + bias]

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

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate with NumPy: the loop over rows is slow if run by Python.

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

    def value_loop(self) -> Callable[..., Any]:
        """Row by row.

        Returns
        -------
        callable
            Of rows, coefficients and intercepts.
        """

        def predictor(inputs: Any, coefficient: Any, bias: Any) -> Any:
            n_obs, n_features = inputs.shape
            n_components = coefficient.shape[1]
            # A component's coefficients side by side: the inner loop runs over memory in order.
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

        return predictor

    def gradient_loop(self) -> Callable[..., Any]:
        """Sums over rows of x_i g_i' and of g_i.

        Returns
        -------
        callable
            Of rows, coefficients, intercepts and the predictors' cotangent.
        """

        def sums(inputs: Any, coefficient: Any, bias: Any, cotangent: Any) -> Any:
            n_obs, n_features = inputs.shape
            n_components = cotangent.shape[1]
            columns = np.empty((n_components, n_features))
            level = np.empty(n_components)
            for j in range(n_components):
                level[j] = 0.0
                for k in range(n_features):
                    columns[j, k] = 0.0
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

        return sums


class ColumnSums(FusedOperation):
    """Weighted sums of the columns of a matrix."""

    n_outputs: ClassVar[int] = 1

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """The definition.

        Parameters
        ----------
        inputs : sequence of TensorVariable
            Weights and matrix.

        Returns
        -------
        list of TensorVariable
            The sums.
        """
        weight, matrix = inputs
        return [(weight[:, None] * matrix).sum(axis=0)]

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Give the number of columns.

        Parameters
        ----------
        node : Apply
            The node.
        shapes : sequence
            Shapes of the inputs.

        Returns
        -------
        list of tuple
            Columns.
        """
        return [(shapes[1][1],)]

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate with NumPy: the loop over rows is slow if run by Python.

        Parameters
        ----------
        node : Apply
            The node.
        inputs : sequence of ndarray
            Weights and matrix.
        output_storage : list of list
            Where the sums go.
        """
        weight, matrix = inputs
        output_storage[0][0] = np.broadcast_to(weight, matrix.shape[:1]) @ matrix

    def value_loop(self) -> Callable[..., Any]:
        """Row by row.

        Returns
        -------
        callable
            Of weights and matrix.
        """

        def sums(weight: Any, matrix: Any) -> Any:
            n_obs, n_columns = matrix.shape
            stride = 0 if weight.shape[0] == 1 else 1
            total = np.empty(n_columns)
            for j in range(n_columns):
                total[j] = 0.0
            for i in range(n_obs):
                for j in range(n_columns):
                    total[j] += weight[stride * i] * matrix[i, j]
            return total

        return sums

    def gradient_loop(self) -> Callable[..., Any]:
        """Products with the cotangent.

        Returns
        -------
        callable
            Of weights, matrix and the sums' cotangent.
        """

        def products(weight: Any, matrix: Any, cotangent: Any) -> Any:
            n_obs, n_columns = matrix.shape
            stride = 0 if weight.shape[0] == 1 else 1
            of_weight = np.zeros(weight.shape[0])
            of_matrix = np.empty((n_obs, n_columns))
            for i in range(n_obs):
                for j in range(n_columns):
                    of_weight[stride * i] += matrix[i, j] * cotangent[j]
                    of_matrix[i, j] = weight[stride * i] * cotangent[j]
            return of_weight, of_matrix

        return products


@register_specialize
@node_rewriter([ColumnSums])
def sum_columns_equally(fgraph: Any, node: Apply[Any]) -> list[Any] | None:
    """Take one weight for many equal ones, which the derivative of a sum over rows has.

    Parameters
    ----------
    fgraph : FunctionGraph
        The graph.
    node : Apply
        Where columns are summed.

    Returns
    -------
    list of TensorVariable or None
        The sums; None where weights may differ.
    """
    weight, matrix = node.inputs
    if weight.owner is None or not isinstance(weight.owner.op, Alloc):
        return None
    if weight.type.shape == (1,):
        return None
    value = weight.owner.inputs[0]
    if value.type.ndim == 1 and value.type.shape != (1,):
        return None
    return [column_sums(value.reshape((1,)) if value.type.ndim == 0 else value, matrix)]
