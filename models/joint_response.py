r"""Several responses of a mixture as one PyMC distribution: a density for each row.

.. math:: \log p(y_i) = w_i \log \sum_j \pi_j \prod_a p_a(y_{ia} \mid \eta_{ija})

Written out in PyTensor's own operations: every backend knows them.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.dist_math import binomln
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.special import log_softmax, logsumexp

from moment_init.families import Family
from moment_init.models.likelihoods import component_distribution, log_normal_cdf
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses

__all__ = ["joint_response"]

FloatArray = NDArray[np.float64]


def joint_response(
    name: str,
    kind: ResponseKind,
    eta: Any,
    log_weight: Any,
    *,
    dispersion: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    observed: Any = None,
    dims: str | Sequence[str] | None = None,
) -> Any:
    """Add several responses of a mixture to the PyMC model on the context stack.

    Parameters
    ----------
    name : str
        Name of the variable.
    kind : ResponseKind
        How responses depend on predictors.
    eta : tensor_like, shape (n_obs, n_components, n_predictors)
        Linear predictors, offsets included.
    log_weight : tensor_like, shape (n_components,)
        Log weights, normalised.
    dispersion : tensor_like, shape (n_components, n_predictors), optional
        Dispersion; not read where a response has none.
    n_trials : tensor_like, shape (n_obs, n_responses), optional
        Trials; not read where a response has none.
    sample_weight : tensor_like, shape (n_obs,), optional
        How often each row counts.
    observed : array_like or pm.Data, shape (n_obs, n_responses), or (n_obs,) for classes, optional
        The responses.
    dims : str or sequence of str, optional
        Names of its dimensions.

    Returns
    -------
    TensorVariable
        The registered random variable; its log density has an entry for each row.
    """
    optional = {"dispersion": dispersion, "n_trials": n_trials, "sample_weight": sample_weight}
    shapes = {"dispersion": "(r,p)", "n_trials": "(p)", "sample_weight": "()"}
    present = {field: value for field, value in optional.items() if value is not None}
    fields = tuple(present)
    is_classes = isinstance(kind, Categorical)
    inputs = ",".join(["(r,p)", "(r)", *(shapes[field] for field in fields)])
    response: Any = pm.CustomDist(
        name,
        eta,
        log_weight,
        *present.values(),
        logp=partial(_log_density, kind, fields),
        random=partial(_draw, kind, fields),
        support_point=_class_point if is_classes else _response_point,
        signature=f"{inputs}->()" if is_classes else f"{inputs}->(p)",
        dtype="int64" if is_classes else "float64",
        class_name="JointMixture",
        observed=observed,
        dims=dims,
    )
    # PyMC makes a class for each distribution. Known to numba, it is not warned about.
    numba_core_rv_funcify.register(
        type(response.owner.op), lambda op, node: _draw_from_numba(kind, fields)
    )
    return response


def _log_density(kind: ResponseKind, fields: tuple[str, ...], value: Any, *parameters: Any) -> Any:
    """Log density of each row."""
    eta, log_weight, *rest = parameters
    more = dict(zip(fields, rest, strict=True))
    if isinstance(kind, SeparateResponses):
        density = _separate_density(kind, value, eta, more)
    else:
        # Written with the predictors last, the reference's before them.
        zeros = pt.zeros_like(eta[..., :1])
        logs = log_softmax(pt.concatenate([zeros, eta], axis=-1), axis=-1)
        classes = pt.arange(kind.n_predictors + 1)
        chosen = pt.eq(value[..., None, None], classes)
        density = pt.where(chosen, logs, 0.0).sum(axis=-1)
    joint = density + log_weight
    result: Any = logsumexp(joint, axis=-1)
    weight = more.get("sample_weight")
    return result if weight is None else weight * result


def _separate_density(kind: SeparateResponses, value: Any, eta: Any, more: dict[str, Any]) -> Any:
    """Sum of the log densities of all responses, by row and component.

    Neighbours of one family are one array: what is compiled grows with the number of families.
    """
    density: Any = 0.0
    stop = 0
    for family, members in itertools.groupby(kind.members):
        start, stop = stop, stop + len(list(members))
        run = slice(start, stop)
        dispersion = more["dispersion"][..., run] if family.has_dispersion else None
        trials = more["n_trials"][..., None, run] if family.has_trials else None
        each = _family_density(family, value[..., None, run], eta[..., run], dispersion, trials)
        density = density + each.sum(axis=-1)
    return density


def _family_density(family: Family, value: Any, eta: Any, dispersion: Any, trials: Any) -> Any:
    """Log density of responses of one family.

    PyMC's distributions of binary responses and counts have means for parameters. Those round to 0
    and 1, or underflow, where components are apart, and gradients are then no numbers: from
    predictors they are finite.
    """
    if family.has_binary_rows or family.has_trials:
        is_logit = family.link.name == "logit"
        success = -pt.softplus(-eta) if is_logit else log_normal_cdf(eta)
        failure = -pt.softplus(eta) if is_logit else log_normal_cdf(-eta)
        if trials is None:
            return value * success + (1.0 - value) * failure
        return value * success + (trials - value) * failure + binomln(trials, value)
    if family.name == "poisson":
        return value * eta - pt.exp(eta) - pt.gammaln(value + 1.0)
    distribution = component_distribution(family, eta, dispersion=dispersion)
    return pm.logp(distribution, value.astype("int64") if family.has_unlimited_counts else value)


def _response_point(variable: Any, size: Any, eta: Any, *parameters: Any) -> Any:
    """One, which every family supports, for each response."""
    return pt.ones((eta.shape[0], eta.shape[2]))


def _class_point(variable: Any, size: Any, eta: Any, *parameters: Any) -> Any:
    return pt.ones((eta.shape[0],), dtype="int64")


def _draw(
    kind: ResponseKind, fields: tuple[str, ...], *parameters: Any, rng: Any = None, size: Any = None
) -> NDArray[Any]:
    """Draw responses: (*size, n_responses), or (*size,) for classes; rows are the last of size."""
    eta, log_weight, *rest = (np.asarray(value) for value in parameters)
    more = dict(zip(fields, rest, strict=True))
    n_components = eta.shape[-2]
    shape = np.broadcast_shapes(eta.shape[:-2], log_weight.shape[:-1])
    shape = shape if size is None else tuple(int(each) for each in size)
    eta = np.broadcast_to(eta, (*shape, *eta.shape[-2:])).reshape(-1, *eta.shape[-2:])
    weight = np.exp(np.broadcast_to(log_weight, (*shape, n_components)).reshape(-1, n_components))
    reached = np.cumsum(weight, axis=1)
    uniform = rng.random(len(eta))
    component = np.sum(reached[:, :-1] < uniform[:, None] * reached[:, -1:], axis=1)
    row = np.arange(len(eta))
    dispersion = trials = None
    if "dispersion" in more:
        full = more["dispersion"]
        full = np.broadcast_to(full, (*shape, *full.shape[-2:])).reshape(-1, *full.shape[-2:])
        dispersion = full[row, component].T
    if "n_trials" in more:
        full = more["n_trials"]
        trials = np.broadcast_to(full, (*shape, full.shape[-1])).reshape(-1, full.shape[-1]).T
    drawn = kind.draw(np.ascontiguousarray(eta[row, component].T), dispersion, trials, rng)
    if isinstance(kind, Categorical):
        return drawn[0].reshape(shape).astype(np.int64)
    return drawn.T.reshape(*shape, -1)


def _draw_from_numba(kind: ResponseKind, fields: tuple[str, ...]) -> tuple[Any, None]:
    """Call Python for the draws from compiled code; None: such code cannot be cached."""
    is_classes = isinstance(kind, Categorical)
    returned = numba.int64 if is_classes else numba.types.Array(numba.float64, 1, "C")
    draw = partial(_draw_row, kind, fields)  # numba must be able to pickle it

    def draw_responses(rng, *parameters):  # type: ignore[no-untyped-def]
        with numba.objmode(draws=returned):
            draws = draw(rng, parameters)
        return draws

    return numba_njit(draw_responses), None


def _draw_row(
    kind: ResponseKind, fields: tuple[str, ...], rng: Any, parameters: Sequence[Any]
) -> Any:
    """Draw the responses of one row, as compiled code asks for them."""
    drawn = _draw(kind, fields, *parameters, rng=rng)
    return int(drawn) if isinstance(kind, Categorical) else np.ascontiguousarray(drawn)
