"""The log density of a mixture and its derivatives, written out in PyTensor's own operations.

Slower to compile and to run than `MixtureLogDensity`, but every backend knows it and it can be
differentiated again.
"""

from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.tensor.sort import argsort
from pytensor.tensor.special import logsumexp

from moment_init.families import Family
from moment_init.models.likelihoods import component_distribution

__all__ = ["symbolic_mixture"]


def symbolic_mixture(family: Family, inputs: Any) -> list[Any]:
    """Write out the outputs of `MixtureLogDensity`.

    Parameters
    ----------
    family : Family
        The response family with its link.
    inputs : MixtureInputs
        Tensors.

    Returns
    -------
    list of TensorVariable
        In the order of the operation's outputs.
    """
    density, slopes = _component_densities(family, inputs)
    log_weight = pt.zeros_like(inputs.eta) + inputs.log_weight
    weight = 1.0 if inputs.sample_weight is None else inputs.sample_weight[:, None]
    if inputs.group is None:
        value, share = _normalise(log_weight + density)
        value, share = (value[:, None] * weight)[:, 0], share * weight
        on_rows, extra = share, []
    else:
        first = first_rows(inputs.group)
        is_first = pt.eq(first, pt.arange(first.shape[0]))
        joint = pt.inc_subtensor(log_weight[first], weight * density)
        value, share = _normalise(joint)
        on_rows, extra = weight * share[first], [first]
        value, share = value * is_first, share * is_first[:, None]
    return [value, share, *(on_rows * slope for slope in slopes), *extra]


def _component_densities(family: Family, inputs: Any) -> tuple[Any, list[Any]]:
    """Log density of every row under every component, and its derivatives."""
    arguments = {}
    variables = [inputs.eta]
    if inputs.dispersion is not None:
        # One entry for each row and component, so that a gradient gives each row's derivative.
        variables.append(pt.zeros_like(inputs.eta) + inputs.dispersion)
        arguments["dispersion"] = variables[1]
    if inputs.n_trials is not None:
        arguments["n_trials"] = inputs.n_trials[:, None]
    distribution = component_distribution(family, inputs.eta, **arguments)
    density = pm.logp(distribution, inputs.y[:, None])
    slopes: Any = grad(density.sum(), variables)
    return density, list(slopes)


def _normalise(joint: Any) -> tuple[Any, Any]:
    value: Any = logsumexp(joint, axis=1, keepdims=True)
    return value[:, 0], pt.exp(joint - value)


def first_rows(group: Any) -> Any:
    """For each row the first row of its group, by sorting.

    Parameters
    ----------
    group : TensorVariable, shape (n_obs,)
        Index of the group of each row.

    Returns
    -------
    TensorVariable, shape (n_obs,)
        Positions of rows.
    """
    order = argsort(group, kind="stable")
    ordered = group[order]
    begins = pt.concatenate([pt.ones(1, dtype="bool"), pt.neq(ordered[1:], ordered[:-1])])
    run = pt.cumsum(begins.astype("int64")) - 1
    nothing = pt.zeros_like(group, dtype="int64")
    # Sums into empty places, one summand each: nothing depends on an order of assignments.
    heads = pt.inc_subtensor(nothing[run], pt.where(begins, order, 0))
    return pt.inc_subtensor(nothing[order], heads[run])
