r"""Coefficients of anchored directions as one operation with its gradient.

.. math:: \beta_j = \frac{s_j}{\ell_j} (a_j + K_j \zeta_j), \qquad
    \ell_j = \sqrt{1 + \kappa^2 |\zeta_j|^2}

with :math:`a_j` the anchor and :math:`K_j = \kappa Q_j` the basis of its complement, both mapped to
the user's units; and the predictor at the mean input, :math:`\langle \mu, \beta_j \rangle`. As a
graph of PyTensor's operations on small arrays it takes Numba many seconds to compile.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType, disconnected_type, grad, pullback
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

__all__ = ["AnchoredCoefficient", "anchored_coefficient"]

_VERSION = 1
"""Changes with the compiled code, which is cached on disk under it."""

_N_DATA = 3
"""The first inputs are data: anchors, bases, mean."""


def anchored_coefficient(
    anchor: Any, basis: Any, mean: Any, tilt: Any, scale: Any, *, kappa: float
) -> tuple[Any, Any]:
    """Coefficients from tilts and scales, and the predictors at the mean input.

    Parameters
    ----------
    anchor : tensor_like, shape (n_features, n_components)
        Anchors in the user's units; data.
    basis : tensor_like, shape (n_features, n_components, n_features - 1)
        Bases in the user's units, times kappa; data.
    mean : tensor_like, shape (n_features,)
        Mean of the input; data.
    tilt : tensor_like, shape (n_components, n_features - 1)
        Tilts.
    scale : tensor_like, shape (n_components,)
        Standardised scales.
    kappa : float
        Tangent of the angle per unit of tilt.

    Returns
    -------
    coefficient : TensorVariable, shape (n_features, n_components)
        Coefficients of the user's columns.
    at_mean : TensorVariable, shape (n_components,)
        Their products with the mean.
    """
    outputs: Any = AnchoredCoefficient(float(kappa))(anchor, basis, mean, tilt, scale)
    return outputs[0], outputs[1]


def _written_out(kappa: float, inputs: Sequence[Any]) -> list[Any]:
    """The equation at the head of the module, in PyTensor's own operations.

    Neither output is computed from the other: `pullback` takes the cotangent of a variable for its
    total, contributions through other outputs included.
    """
    anchor, basis, mean, tilt, scale = inputs

    def coefficient() -> Any:
        length = pt.sqrt(1.0 + kappa**2 * pt.sqr(tilt).sum(axis=-1))
        return (anchor + (basis * tilt).sum(axis=-1)) * (scale / length)

    return [coefficient(), (mean[:, None] * coefficient()).sum(axis=0)]


class AnchoredCoefficient(Op):
    """Coefficients of anchored directions, and predictors at the mean input.

    Parameters
    ----------
    kappa : float
        Tangent of the angle per unit of tilt.
    """

    __props__ = ("kappa",)

    def __init__(self, kappa: float) -> None:
        self.kappa = kappa

    def make_node(self, *inputs: Any) -> Apply[Any]:
        """Type the outputs.

        Parameters
        ----------
        *inputs : tensor_like
            As in `anchored_coefficient`.

        Returns
        -------
        Apply
            The node.
        """
        variables = [pt.as_tensor_variable(value) for value in inputs]
        shape = (variables[0].type.shape[0], variables[4].type.shape[0])
        outputs = [pt.TensorType("float64", shape=shape)()]
        return Apply(self, variables, [*outputs, pt.TensorType("float64", shape=shape[1:])()])

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
            Features by components, and components.
        """
        return [(shapes[0][0], shapes[4][0]), (shapes[4][0],)]

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        """Say which inputs are differentiable: tilts and scales.

        Parameters
        ----------
        node : Apply
            The node.

        Returns
        -------
        list of list of bool
            For each input and each output.
        """
        return [[False, False]] * _N_DATA + [[True, True]] * 2

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """Derivatives in tilts and scales.

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
        parts: Any = _AnchoredPullback(self.kappa)(*inputs, *filled)
        return [disconnected_type() for _ in range(_N_DATA)] + list(parts)

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate with NumPy.

        Parameters
        ----------
        node : Apply
            The node.
        inputs : sequence of ndarray
            As in `anchored_coefficient`.
        output_storage : list of list
            Where the outputs go.
        """
        anchor, basis, mean, tilt, scale = inputs
        length = np.sqrt(1.0 + self.kappa**2 * np.square(tilt).sum(axis=-1))
        coefficient = (anchor + (basis * tilt).sum(axis=-1)) * (scale / length)
        output_storage[0][0] = coefficient
        output_storage[1][0] = mean @ coefficient


class _AnchoredPullback(Op):
    r"""Derivatives of a function of the coefficients in tilts and scales.

    With c the cotangent of a coefficient, that of its product with the mean included, and v the
    vector before it is scaled: ds = <c, v> / l and dz = (s / l) (K'c - k^2 z <c, v> / l^2).
    """

    __props__ = ("kappa",)

    def __init__(self, kappa: float) -> None:
        self.kappa = kappa

    def make_node(self, *inputs: Any) -> Apply[Any]:
        variables = [pt.as_tensor_variable(value) for value in inputs]
        return Apply(self, variables, [variables[3].type(), variables[4].type()])

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [shapes[3], shapes[4]]

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        return [[False, False]] * _N_DATA + [[True, True]] * 4

    def pullback(
        self,
        inputs: Sequence[Variable[Any, Any]],
        outputs: Sequence[Variable[Any, Any]],
        cotangents: Sequence[Variable[Any, Any]],
    ) -> list[Variable[Any, Any]]:
        """Second derivatives, which a Hessian asks for, from the equation written out."""
        wanted = [k for k, c in enumerate(cotangents) if not isinstance(c.type, DisconnectedType)]
        if not wanted:
            return [disconnected_type() for _ in inputs]
        # On stand-ins: the given cotangents may themselves be functions of tilts and scales, and
        # these are partial derivatives.
        given = [*inputs, *(cotangents[k] for k in wanted)]
        stand_ins: list[Any] = [variable.type() for variable in given]
        first = self.written_out(stand_ins[: len(inputs)])
        chosen = stand_ins[len(inputs) :]
        cost: Any = sum((first[k] * value).sum() for k, value in zip(wanted, chosen, strict=True))
        parts: Any = grad(cost, stand_ins[_N_DATA : len(inputs)])
        replacements = list(zip(stand_ins, given, strict=True))
        replaced: Any = graph_replace(parts, replacements, strict=False)
        return [disconnected_type() for _ in range(_N_DATA)] + replaced

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """The same derivatives, by PyTensor."""
        outputs = _written_out(self.kappa, inputs[:5])
        found: Any = pullback(outputs, list(inputs[3:5]), list(inputs[5:]))
        return list(found)

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        anchor, basis, mean, tilt, scale, of_coefficient, of_mean = inputs
        cotangent = of_coefficient + np.outer(mean, of_mean)
        squared = 1.0 + self.kappa**2 * np.square(tilt).sum(axis=-1)
        length = np.sqrt(squared)
        along = np.sum(cotangent * (anchor + (basis * tilt).sum(axis=-1)), axis=0)
        across = np.einsum("kj,kjt->jt", cotangent, basis)
        pull = (self.kappa**2 * along / squared)[:, None] * tilt
        output_storage[0][0] = (scale / length)[:, None] * (across - pull)
        output_storage[1][0] = along / length


@register_funcify_default_op_cache_key(AnchoredCoefficient)
def _compile_forward(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    squared_kappa = float(op.kappa**2)

    @numba_njit
    def forward(anchor: Any, basis: Any, mean: Any, tilt: Any, scale: Any) -> Any:
        n_features, n_components, n_tilts = basis.shape
        coefficient = np.empty((n_features, n_components))
        at_mean = np.zeros(n_components)
        for j in range(n_components):
            squared = 1.0
            for t in range(n_tilts):
                squared += squared_kappa * tilt[j, t] * tilt[j, t]
            factor = scale[j] / np.sqrt(squared)
            for k in range(n_features):
                total = anchor[k, j]
                for t in range(n_tilts):
                    total += basis[k, j, t] * tilt[j, t]
                coefficient[k, j] = total * factor
                at_mean[j] += mean[k] * coefficient[k, j]
        return coefficient, at_mean

    return forward, _VERSION


@register_funcify_default_op_cache_key(_AnchoredPullback)
def _compile_backward(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    squared_kappa = float(op.kappa**2)

    @numba_njit
    def backward(
        anchor: Any, basis: Any, mean: Any, tilt: Any, scale: Any, of_coefficient: Any, of_mean: Any
    ) -> Any:
        n_features, n_components, n_tilts = basis.shape
        of_tilt = np.zeros((n_components, n_tilts))
        of_scale = np.empty(n_components)
        for j in range(n_components):
            squared = 1.0
            for t in range(n_tilts):
                squared += squared_kappa * tilt[j, t] * tilt[j, t]
            length = np.sqrt(squared)
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

    return backward, _VERSION


@node_rewriter([AnchoredCoefficient, _AnchoredPullback])
def _write_out(fgraph: Any, node: Apply[Any]) -> list[Any]:
    """Replace the operations by PyTensor's own, for backends that compile graphs."""
    op: Any = node.op
    if isinstance(op, AnchoredCoefficient):
        written_out = _written_out(op.kappa, node.inputs)
    else:
        written_out = op.written_out(node.inputs)
    return [
        new if new.type.is_super(old.type) else old.type.filter_variable(new)
        for old, new in zip(node.outputs, written_out, strict=True)
    ]


# Before the rewrites that JAX needs of what it puts in; nothing here imports JAX.
optdb.register("write_out_anchored_coefficient", dfs_rewriter(_write_out), "jax", position=0.5)
