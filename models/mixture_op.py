r"""The log density of a mixture of generalised linear models as one PyTensor operation.

.. math::

    \ell_i = w_i \log \sum_j \exp\{\log\pi_j + \log p(y_i \mid \eta_{ij})\}

with :math:`\log p(y_i \mid \eta_{ij}) = \sum_a \log p_a(y_{ia} \mid \eta_{aij})` for several
responses, and, if the rows of a group share their component,

.. math::

    \ell_g = \log \sum_j \exp\{\log\pi_j + \sum_{i \in g} w_i \log p(y_i \mid \eta_{ij})\}.

The operation, `MixtureLogDensity`, returns the derivatives together with the value, so that both
take one pass over the rows and each exponential is computed once.

`symbolic_mixture` writes the same density in PyTensor's own operations. It is slower to compile and
to run, but every backend supports it and it can be differentiated again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType, disconnected_grad, disconnected_type, grad
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.sort import argsort
from pytensor.tensor.special import log_softmax, logsumexp
from scipy import special

from moment_init.checks import FloatArray
from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.families.several import (
    CATEGORICAL,
    AnyFamily,
    Categorical,
    categorical,
    join_families,
)
from moment_init.likelihood.rows import column
from moment_init.models.likelihoods import component_distribution
from moment_init.models.mixture_loops import MixtureLayout, mixture_loop
from moment_init.models.ops import column_sums, compile_loop


def symbolic_mixture(family: AnyFamily, inputs: Any) -> list[Any]:
    """Compute the outputs of `MixtureLogDensity` with PyTensor's own operations."""
    density, slopes = _component_densities(family, inputs)
    log_weight = pt.zeros_like(density) + inputs.log_weight
    weight = 1.0 if inputs.sample_weight is None else inputs.sample_weight[:, None]
    if inputs.group is None:
        value, share = _normalise_symbolic(log_weight + density)
        value, share = (value[:, None] * weight)[:, 0], share * weight
        on_rows, extra = share, []
    else:
        first = first_rows(inputs.group)
        is_first = pt.eq(first, pt.arange(first.shape[0]))
        joint = pt.inc_subtensor(log_weight[first], weight * density)
        value, share = _normalise_symbolic(joint)
        on_rows, extra = weight * share[first], [first]
        value, share = value * is_first, share * is_first[:, None]
    return [value, share, *(on_rows * slope for slope in slopes), *extra]


def _component_densities(family: AnyFamily, inputs: Any) -> tuple[Any, list[Any]]:
    """Return the log density of every row under every component, and its derivatives."""
    variables = [inputs.eta]
    if inputs.dispersion is not None:
        # One entry per row and component, so that the gradient has one derivative per row.
        nothing = pt.zeros(inputs.eta.shape[-2:])
        variables.append(nothing + inputs.dispersion[..., None, :])
    density = _symbolic_density(family, inputs, *variables)
    slopes: Any = grad(density.sum(), variables)
    return density, list(slopes)


def _symbolic_density(family: AnyFamily, inputs: Any, eta: Any, dispersion: Any = None) -> Any:
    """Log density of every row under every component, of all responses together."""
    # eta: (n_obs, n_components), or (n_predictors, n_obs, n_components); dispersion likewise
    if isinstance(family, Categorical):
        logits = pt.concatenate([pt.zeros_like(eta[:1]), eta])
        is_class = pt.eq(inputs.y, pt.arange(family.n_classes)[:, None])
        return pt.where(is_class[:, :, None], log_softmax(logits, axis=0), 0.0).sum(axis=0)
    if family.n_predictors == 1:
        return _member_density(family.members[0], inputs.y, eta, dispersion, inputs.n_trials)
    spreads = iter(range(len(family.members)))
    return sum(
        _member_density(
            member,
            inputs.y[:, a].astype(response_dtype(member)),
            eta[a],
            dispersion[next(spreads)] if member.has_dispersion else None,
            inputs.n_trials[:, a] if member.has_trials else None,
        )
        for a, member in enumerate(family.members)
    )


def _member_density(family: Family, y: Any, eta: Any, dispersion: Any, n_trials: Any) -> Any:
    distribution = component_distribution(
        family,
        eta,
        dispersion=dispersion,
        n_trials=None if n_trials is None else n_trials[:, None],
    )
    return pm.logp(distribution, y[:, None])


def response_dtype(family: AnyFamily) -> str:
    """Return the family's dtype, so that compiled code does not depend on the data's dtype."""
    is_whole = [
        member.has_unlimited_counts
        or member.has_trials
        or member.has_binary_rows
        or isinstance(member, Categorical)
        for member in family.members
    ]
    return "int64" if all(is_whole) else "float64"


def _normalise_symbolic(joint: Any) -> tuple[Any, Any]:
    value: Any = logsumexp(joint, axis=1, keepdims=True)
    return value[:, 0], pt.exp(joint - value)


def first_rows(group: Any) -> Any:
    """Find the first row of each row's group, by sorting."""
    # group: (n_obs,) -> (n_obs,)
    order = argsort(group, kind="stable")
    ordered = group[order]
    begins = pt.concatenate([pt.ones(1, dtype="bool"), pt.neq(ordered[1:], ordered[:-1])])
    run = pt.cumsum(begins.astype("int64")) - 1
    nothing = pt.zeros_like(group, dtype="int64")
    # Each sum has one term, so the result does not depend on the order of the assignments.
    heads = pt.inc_subtensor(nothing[run], pt.where(begins, order, 0))
    return pt.inc_subtensor(nothing[order], heads[run])


_N_FIXED_INPUTS = 3  # y, eta, log_weight


class MixtureInputs(NamedTuple):
    """The inputs of a mixture by name; None for those that it does not have."""

    y: Any  # (n_obs,), or (n_obs, n_responses) for several responses
    # linear predictors; (n_obs, n_components), or (n_predictors, n_obs, n_components)
    eta: Any
    log_weight: Any  # (n_components,) or (n_obs, n_components)
    # (n_components,), or (n_dispersions, n_components): one row per response that has a dispersion
    dispersion: Any = None
    n_trials: Any = None  # (n_obs,), or (n_obs, n_responses)
    sample_weight: Any = None  # (n_obs,)
    group: Any = None  # index of each row's group, (n_obs,)

    @property
    def present(self) -> list[Any]:
        """The inputs that are not None, in order."""
        return [value for value in self if value is not None]


class MixtureLogDensity(Op):
    """Log density of each row under a mixture, with its derivatives.

    The inputs are those of `MixtureInputs` that are not None, in that order. The outputs are:

    - the log density, (n_obs,); with groups, the first row of a group holds that of the group and
      the other rows hold zero;
    - its derivative in the log weights, (n_obs, n_components): the responsibilities times the
      sample weight; with groups, the first row holds those of the group, whose log weights are the
      ones used, and the other rows hold zero;
    - the derivative in eta, in its shape, of the row's or group's log density;
    - the derivative in the dispersion, (n_obs, n_components) or (n_dispersions, n_obs,
      n_components), if the family has one;
    - with groups, the first row of each row's group, (n_obs,).

    The response is not checked. A log weight of minus infinity removes its component.
    """

    __props__ = ("names", "links", "n_predictors", "layout")

    def __init__(self, family: AnyFamily, layout: MixtureLayout) -> None:
        # Names, which PyTensor's cache on disk can use as a key.
        self.names = tuple(member.name for member in family.members)
        self.links = tuple(member.link_name for member in family.members)
        self.n_predictors = family.n_predictors
        self.layout = layout

    @property
    def family(self) -> AnyFamily:
        """The family of all responses."""
        if self.names == (CATEGORICAL,):
            return categorical(self.n_predictors + 1)
        return join_families(tuple(map(get_family, self.names, self.links)))

    def make_node(self, *inputs: Any) -> Apply[Any]:
        """Set the types of the outputs."""
        variables = [pt.as_tensor_variable(value) for value in inputs]
        named = self.named(variables)
        shape = named.eta.type.shape
        shapes = [shape[-2:-1], shape[-2:], shape]
        if self.layout.has_dispersion:
            shapes.append((*named.dispersion.type.shape[:-1], *shape[-2:]))
        outputs = [pt.TensorType("float64", shape=each)() for each in shapes]
        if self.layout.has_groups:
            outputs.append(pt.TensorType("int64", shape=shape[-2:-1])())
        return Apply(self, variables, outputs)

    def named(self, inputs: Sequence[Any]) -> MixtureInputs:
        """Return the inputs by name."""
        optional = iter(inputs[_N_FIXED_INPUTS:])
        return MixtureInputs(
            *inputs[:_N_FIXED_INPUTS],
            *(next(optional) if is_there else None for is_there in self.layout[1:]),
        )

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Derive the shapes of the outputs from those of eta and the dispersion."""
        shape = shapes[1]
        inferred = [shape[-2:-1], shape[-2:], shape]
        if self.layout.has_dispersion:
            inferred.append((*shapes[_N_FIXED_INPUTS][:-1], *shape[-2:]))
        return inferred + [shape[-2:-1]] * self.layout.has_groups

    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        """Mark eta, log weight and dispersion as differentiable."""
        is_real = [output.type.dtype == "float64" for output in node.outputs]
        return [
            is_real if position in self._differentiable else [False] * len(is_real)
            for position in range(len(node.inputs))
        ]

    @property
    def _differentiable(self) -> dict[int, int]:
        """Position of each differentiable input -> position of its derivative in the outputs."""
        positions = {2: 1, 1: 2}
        return {**positions, 3: 3} if self.layout.has_dispersion else positions

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Any]:
        """Multiply the derivatives by the cotangent of the log density.

        Second derivatives, which a Hessian needs, come from `symbolic_mixture`.
        """
        gradients: list[Any] = [disconnected_type() for _ in inputs]
        if not isinstance(cotangents[0].type, DisconnectedType):
            self._pull_back_value(inputs, outputs, cotangents[0], gradients)
        if any(not isinstance(c.type, DisconnectedType) for c in cotangents[1:]):
            self._pull_back_derivatives(inputs, cotangents, gradients)
        return gradients

    def _pull_back_value(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangent: Any, gradients: list[Any]
    ) -> None:
        on_rows = cotangent[outputs[-1]] if self.layout.has_groups else cotangent
        gradients[1] = on_rows[:, None] * outputs[2]
        if self.layout.has_row_weights:
            gradients[2] = cotangent[:, None] * outputs[1]
        else:
            gradients[2] = column_sums(cotangent, outputs[1])
        if self.layout.has_dispersion:
            gradients[3] = column_sums(on_rows, outputs[3])

    def _pull_back_derivatives(
        self, inputs: Sequence[Any], cotangents: Sequence[Any], gradients: list[Any]
    ) -> None:
        written_out = symbolic_mixture(self.family, self.named(inputs))
        # Some of these outputs are computed from others. PyTensor's `pullback` would take the
        # cotangents as total derivatives, so the sum is differentiated instead.
        total = sum(
            (output * disconnected_grad(cotangent)).sum()
            for output, cotangent in zip(written_out[1:], cotangents[1:], strict=True)
            if not isinstance(cotangent.type, DisconnectedType)
        )
        positions = list(self._differentiable)
        wanted = [inputs[position] for position in positions]
        parts: Any = grad(total, wanted, disconnected_inputs="ignore")
        for position, part in zip(positions, parts, strict=True):
            has_none = isinstance(gradients[position].type, DisconnectedType)
            gradients[position] = part if has_none else gradients[position] + part

    def perform(self, node: Apply[Any], inputs: Sequence[Any], output_storage: Any) -> None:
        """Evaluate with NumPy, using `moment_init.families`."""
        with np.errstate(all="ignore"):
            results = _evaluate(self.family, self.named(inputs))
        for storage, result in zip(output_storage, results, strict=True):
            storage[0] = result


def _evaluate(family: AnyFamily, inputs: MixtureInputs) -> list[NDArray[Any]]:
    density, slopes = _component_evaluations(family, inputs)
    n_obs = len(density)
    weight = np.ones((n_obs, 1)) if inputs.sample_weight is None else inputs.sample_weight[:, None]
    log_weight = np.broadcast_to(inputs.log_weight, density.shape)
    if inputs.group is None:
        value, share = _normalise(log_weight + density)
        value, share = value * weight[:, 0], share * weight
        on_rows, extra = share, []
    else:
        _, head, index = np.unique(inputs.group, return_index=True, return_inverse=True)
        joint = log_weight[head]
        np.add.at(joint, index, weight * density)
        group_value, group_share = _normalise(joint)
        value, share = np.zeros(n_obs), np.zeros(density.shape)
        value[head], share[head] = group_value, group_share
        on_rows, extra = weight * group_share[index], [head[index]]
    # A component with responsibility zero has derivative zero, also if its slope is infinite.
    return [value, share, *(np.where(on_rows != 0, on_rows * s, 0.0) for s in slopes), *extra]


def _component_evaluations(
    family: AnyFamily, inputs: MixtureInputs
) -> tuple[FloatArray, list[FloatArray]]:
    """Log density of every row under every component, and its derivatives, with NumPy."""
    if isinstance(family, Categorical):
        codes = np.asarray(inputs.y, dtype=np.intp)
        logits = np.concatenate([np.zeros_like(inputs.eta[:1]), inputs.eta])
        log_probabilities = special.log_softmax(logits, axis=0)
        is_class = codes == np.arange(1, family.n_classes)[:, None]
        slope = is_class[:, :, None] - np.exp(log_probabilities[1:])
        return log_probabilities[codes, np.arange(len(codes))], [slope]
    spreads = iter(() if inputs.dispersion is None else np.atleast_2d(inputs.dispersion))
    density: Any = 0.0
    slopes, spread_slopes = [], []
    for a, member in enumerate(family.members):
        dispersion: Any = next(spreads) if member.has_dispersion else None
        part = member.log_density_derivatives(
            column(inputs.y, a)[:, None],
            inputs.eta if family.n_predictors == 1 else inputs.eta[a],
            dispersion=dispersion,
            n_trials=column(inputs.n_trials, a)[:, None] if member.has_trials else None,
        )
        density = density + part.value
        slopes.append(part.eta1)
        if part.tau1 is not None:  # tau is the logarithm of the dispersion
            spread_slopes.append(part.tau1 / dispersion)
    if family.n_predictors == 1:
        return density, [*slopes, *spread_slopes]
    return density, [np.stack(each) for each in (slopes, spread_slopes) if each]


def _normalise(joint: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log-sum-exp over the components and their shares; shares are zero if the sum is."""
    largest = joint.max(axis=1, keepdims=True)
    shares = np.exp(joint - np.where(np.isneginf(largest), 0.0, largest))
    total = shares.sum(axis=1, keepdims=True)
    shares /= np.where(total == 0.0, 1.0, total)
    return (np.log(total) + np.where(np.isneginf(largest), 0.0, largest))[:, 0], shares


@register_funcify_default_op_cache_key(MixtureLogDensity)
def _compile_for_numba(op: Any, node: Any = None, **unused: Any) -> tuple[Any, int]:
    return compile_loop(mixture_loop(op.family, op.layout))


@node_rewriter([MixtureLogDensity])
def _write_out(fgraph: Any, node: Apply[Any]) -> list[Any]:
    """Replace the operation by `symbolic_mixture`, for backends that compile graphs."""
    op: Any = node.op
    written_out = symbolic_mixture(op.family, op.named(node.inputs))
    return [
        new if new.type.is_super(old.type) else old.type.filter_variable(new)
        for old, new in zip(node.outputs, written_out, strict=True)
    ]


# Runs before the JAX rewrites, which must also see the new nodes. Nothing here imports JAX.
optdb.register("write_out_mixture_log_density", dfs_rewriter(_write_out), "jax", position=0.5)
