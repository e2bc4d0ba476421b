"""Operations whose value and gradient are compiled loops.

Numba compiles a PyTensor graph one small function at a time, which takes tens of seconds for the
algebra of a few small arrays. An operation here is two loops in its place, and one definition in
PyTensor's own operations, from which second derivatives and code for other backends come.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType, disconnected_type, grad, pullback
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from moment_init.models.kernels import jit_options

__all__ = ["FusedGradient", "FusedOperation"]


class FusedOperation(Op):
    """An operation with a compiled loop for its value and one for its gradient.

    Attributes
    ----------
    n_data : int
        So many inputs, the first, are data and have no gradient.
    n_outputs : int
        Number of outputs.
    version : int
        Changes with the loops, whose compiled code is cached on disk under it.
    """

    __props__: ClassVar[tuple[str, ...]] = ()
    n_data: ClassVar[int] = 0
    n_outputs: ClassVar[int] = 1
    version: ClassVar[int] = 2

    @abstractmethod
    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs in PyTensor's own operations, none computed from another.

        Parameters
        ----------
        inputs : sequence of TensorVariable
            The inputs.

        Returns
        -------
        list of TensorVariable
            The outputs.
        """

    @abstractmethod
    def value_loop(self) -> Callable[..., Any]:
        """A function of the inputs that Numba compiles.

        Returns
        -------
        callable
            It returns the outputs, as a tuple if there are several.
        """

    @abstractmethod
    def gradient_loop(self) -> Callable[..., Any]:
        """A function of the inputs and the outputs' cotangents that Numba compiles.

        Returns
        -------
        callable
            It returns the derivatives in the inputs that are not data.
        """

    def make_node(self, *inputs: Any) -> Apply[Any]:
        """Type the outputs as the definition does.

        Parameters
        ----------
        *inputs : tensor_like
            The inputs.

        Returns
        -------
        Apply
            The node.
        """
        variables = [pt.as_tensor_variable(value) for value in inputs]
        return Apply(self, variables, [output.type() for output in self.written_out(variables)])

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        """Say which inputs are differentiable.

        Parameters
        ----------
        node : Apply
            The node.

        Returns
        -------
        list of list of bool
            For each input and each output.
        """
        n_outputs = len(node.outputs)
        return [[k >= self.n_data] * n_outputs for k in range(len(node.inputs))]

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """Derivatives by the gradient's loop.

        Parameters
        ----------
        inputs, outputs, cotangents : sequence of Variable
            As PyTensor gives them.

        Returns
        -------
        list of Variable
            The derivative for each input.
        """
        if all(isinstance(value.type, DisconnectedType) for value in cotangents):
            return [disconnected_type() for _ in inputs]
        filled: list[Any] = [
            pt.zeros_like(output) if isinstance(value.type, DisconnectedType) else value
            for output, value in zip(outputs, cotangents, strict=True)
        ]
        parts: Any = FusedGradient(self)(*inputs, *filled, return_list=True)
        return [disconnected_type() for _ in range(self.n_data)] + parts

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate by the value's loop, run by Python.

        Parameters
        ----------
        node : Apply
            The node.
        inputs : sequence of ndarray
            The inputs.
        output_storage : list of list
            Where the outputs go.
        """
        _store(self.value_loop()(*inputs), output_storage)


class FusedGradient(Op):
    """The gradient of a `FusedOperation`: a function of its inputs and its outputs' cotangents.

    Parameters
    ----------
    operation : FusedOperation
        The operation.
    """

    __props__ = ("operation",)

    def __init__(self, operation: FusedOperation) -> None:
        self.operation = operation

    def make_node(self, *inputs: Any) -> Apply[Any]:
        """Type the outputs as the inputs whose derivatives they are.

        Parameters
        ----------
        *inputs : tensor_like
            Inputs of the operation, then cotangents of its outputs.

        Returns
        -------
        Apply
            The node.
        """
        variables = [pt.as_tensor_variable(value) for value in inputs]
        return Apply(self, variables, [variable.type() for variable in self._free(variables)])

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        """Give the shapes of the inputs whose derivatives they are.

        Parameters
        ----------
        node : Apply
            The node.
        shapes : sequence
            Shapes of the inputs.

        Returns
        -------
        list
            A shape for each output.
        """
        return list(self._free(shapes, len(node.outputs)))

    def _free(self, inputs: Sequence[Any], number: int | None = None) -> Sequence[Any]:
        """What belongs to the operation's inputs that are not data."""
        first = self.operation.n_data
        if number is None:
            number = len(inputs) - first - self.operation.n_outputs
        return inputs[first : first + number]

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        """Say which inputs are differentiable.

        Parameters
        ----------
        node : Apply
            The node.

        Returns
        -------
        list of list of bool
            For each input and each output.
        """
        n_outputs = len(node.outputs)
        return [[k >= self.operation.n_data] * n_outputs for k in range(len(node.inputs))]

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """Second derivatives, which a Hessian asks for, from the definition.

        Parameters
        ----------
        inputs, outputs, cotangents : sequence of Variable
            As PyTensor gives them.

        Returns
        -------
        list of Variable
            The derivative for each input.
        """
        wanted = [k for k, c in enumerate(cotangents) if not isinstance(c.type, DisconnectedType)]
        if not wanted:
            return [disconnected_type() for _ in inputs]
        # On stand-ins: the given cotangents may themselves be functions of the other inputs, and
        # these are partial derivatives.
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
        """The same derivatives in PyTensor's own operations.

        Parameters
        ----------
        inputs : sequence of TensorVariable
            Inputs of the operation, then cotangents of its outputs.

        Returns
        -------
        list of TensorVariable
            The derivatives.
        """
        n_outputs = self.operation.n_outputs
        own, cotangents = inputs[:-n_outputs], inputs[-n_outputs:]
        outputs = self.operation.written_out(own)
        found: Any = pullback(outputs, list(self._free(inputs)), list(cotangents))
        return list(found)

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate by the gradient's loop, run by Python.

        Parameters
        ----------
        node : Apply
            The node.
        inputs : sequence of ndarray
            Inputs of the operation, then cotangents of its outputs.
        output_storage : list of list
            Where the derivatives go.
        """
        _store(self.operation.gradient_loop()(*inputs), output_storage)


def _store(results: Any, output_storage: Any) -> None:
    several = results if isinstance(results, tuple) else (results,)
    for storage, result in zip(output_storage, several, strict=True):
        storage[0] = result


@register_funcify_default_op_cache_key(FusedOperation)
def _compile_value(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    return numba_njit(op.value_loop(), **jit_options()), op.version


@register_funcify_default_op_cache_key(FusedGradient)
def _compile_gradient(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    return numba_njit(op.operation.gradient_loop(), **jit_options()), op.operation.version


@node_rewriter([FusedOperation, FusedGradient])
def write_out(fgraph: Any, node: Apply[Any]) -> list[Any]:
    """Replace an operation by its definition, for backends that compile graphs.

    Parameters
    ----------
    fgraph : FunctionGraph
        The graph.
    node : Apply
        Where the operation is applied.

    Returns
    -------
    list of TensorVariable
        What stands for its outputs.
    """
    operation: Any = node.op
    return [
        new if new.type.is_super(old.type) else old.type.filter_variable(new)
        for old, new in zip(node.outputs, operation.written_out(node.inputs), strict=True)
    ]


# Before the rewrites that JAX needs of what it puts in; nothing here imports JAX.
optdb.register("write_out_fused_operations", dfs_rewriter(write_out), "jax", position=0.5)
