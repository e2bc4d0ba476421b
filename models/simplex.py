r"""The simplex transform of the weights as one operation with its gradient.

.. math:: w = \operatorname{softmax}(v_1, \dots, v_{r-1}, -\textstyle\sum_j v_j), \qquad
    \log |\partial w / \partial v| = \log r + \sum_{j=1}^{r} \log w_j

This is PyMC's own transform, with its name and parametrisation; only the code that is compiled
differs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import SimplexTransform
from pytensor.graph.basic import Apply

from moment_init.models.fused_operation import FusedOperation

__all__ = ["CompiledSimplex", "SimplexWeights"]


class SimplexWeights(FusedOperation):
    """Weights from unconstrained values, and the sum of their logarithms."""

    n_outputs: ClassVar[int] = 2

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """The equation at the head of the module.

        Parameters
        ----------
        inputs : sequence of TensorVariable
            The unconstrained values.

        Returns
        -------
        list of TensorVariable
            The weights, and the sum of their logarithms.
        """

        def logits() -> Any:
            return pt.concatenate([inputs[0], -inputs[0].sum(keepdims=True)])

        return [pt.special.softmax(logits()), pt.special.log_softmax(logits()).sum()]

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Give the shapes of the outputs.

        Parameters
        ----------
        node : Apply
            The node.
        shapes : sequence
            Shapes of the inputs.

        Returns
        -------
        list of tuple
            One weight more than values, and a scalar.
        """
        return [(shapes[0][0] + 1,), ()]

    def value_loop(self) -> Callable[..., Any]:
        """A softmax with the largest logit taken out.

        Returns
        -------
        callable
            Of the unconstrained values.
        """

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
        """Derivatives in the values: those in the logits less that in the last one.

        Returns
        -------
        callable
            Of the values, and the cotangents of the weights and of the sum.
        """

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
    """PyMC's simplex transform of a vector, by `SimplexWeights`."""

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Map unconstrained values to weights.

        Parameters
        ----------
        value : TensorVariable, shape (n_components - 1,)
            The values.
        *inputs : TensorVariable
            Parameters of the distribution; not used.

        Returns
        -------
        TensorVariable, shape (n_components,)
            The weights.
        """
        outputs: Any = SimplexWeights()(value)
        return outputs[0]

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Logarithm of the Jacobian's determinant.

        Parameters
        ----------
        value : TensorVariable, shape (n_components - 1,)
            The values.
        *inputs : TensorVariable
            Parameters of the distribution; not used.

        Returns
        -------
        TensorVariable
            A scalar.
        """
        outputs: Any = SimplexWeights()(value)
        n_components = pt.as_tensor_variable(value).shape[0] + 1
        return outputs[1] + pt.log(n_components.astype("float64"))
