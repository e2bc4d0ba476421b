r"""The responses of a mixture of generalised linear models, with the component summed out.

`mixture_log_density` returns the log density of each row as a tensor. `mixture_response` adds the
same mixture to a PyMC model as a distribution, with draws and pointwise log-likelihoods.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from moment_init.families.base import LARGEST_DRAWN_MEAN, Family
from moment_init.families.registry import get_family, is_family_sequence, response_families
from moment_init.families.several import (
    AnyFamily,
    Categorical,
    SeveralResponses,
    join_families,
)
from moment_init.likelihood.rows import column
from moment_init.models.likelihoods import Tensor, TensorLike, _check_argument
from moment_init.models.mixture_loops import MixtureLayout
from moment_init.models.mixture_op import MixtureInputs, MixtureLogDensity, response_dtype

type FamilyLike = str | Family | SeveralResponses | Sequence[str | Family]
"""One family, or one for each of several responses."""


def mixture_log_density(
    y: TensorLike,
    eta: TensorLike,
    log_weight: TensorLike,
    *,
    family: FamilyLike,
    link: str | None = None,
    dispersion: TensorLike | None = None,
    n_trials: TensorLike | None = None,
    sample_weight: TensorLike | None = None,
    group: TensorLike | None = None,
) -> Tensor:
    r"""Log density of each row under a mixture.

    .. math:: \ell_i = w_i \log \sum_j \pi_j \prod_a p_a(y_{ia} \mid \eta_{aij})

    Parameters
    ----------
    y : tensor_like, shape (n_obs,) or (n_obs, n_responses)
        The response or responses; codes 0, 1, ... of classes. Their values are not checked.
    eta : tensor_like, shape (n_obs, n_components) or (n_predictors, n_obs, n_components)
        Linear predictors, offsets included: one matrix for each of several responses, or for each
        class but the first.
    log_weight : tensor_like, shape (n_components,) or (n_obs, n_components)
        Normalised log weights; one row of them per observation if a gate sets them. A log weight
        of minus infinity removes its component.
    family : str, Family, SeveralResponses or sequence of str or Family
        Response family, as in :func:`moment_init.families.get_family`; or the families of several
        responses, which share their component; or ``categorical(n_classes)`` of
        `moment_init.families.several`.
    link : str, optional
        Name of the link; the family's default link if left out.
    dispersion : tensor_like, optional
        Dispersion of each component, for families that have one: a scalar, or of shape
        (n_components,). Several responses have one row for each response with a dispersion.
    n_trials : tensor_like, scalar or shape (n_obs,) or (n_obs, n_responses), optional
        Number of trials of each row, for the binomial family.
    sample_weight : tensor_like, shape (n_obs,), optional
        Weight of each row's log density.
    group : tensor_like of int, shape (n_obs,), optional
        Index of each row's group, 0 to n_groups - 1 in any order. Rows of a group share their
        component: :math:`\ell_g = \log \sum_j \pi_j \prod_{i \in g} p(y_i \mid \eta_{ij})^{w_i}`.

    Returns
    -------
    TensorVariable, shape (n_obs,)
        Log density of each row. With groups, the first row of a group holds the log density of the
        whole group and the other rows hold zero; the log weights of the first row are used.

    Raises
    ------
    ValueError
        If `dispersion` or `n_trials` is missing for a family that needs it or given for one that
        does not, if an argument has the wrong number of dimensions, or if the family or link is
        unknown.

    Notes
    -----
    The density is one operation, `MixtureLogDensity`, which computes the value and the gradient in
    `eta`, `log_weight` and `dispersion` in one pass over the rows. The other arguments are not
    differentiable.

    Examples
    --------
    Two components of equal weight, with success probabilities 1/2 and 3/4:

    >>> eta = np.log([[1.0, 3.0]])
    >>> density = mixture_log_density([1], eta, np.log([0.5, 0.5]), family="bernoulli")
    >>> float(np.exp(density.eval(mode="FAST_COMPILE"))[0])
    0.625
    """
    resolved = _resolve(family, link)
    inputs = _as_inputs(
        resolved, MixtureInputs(y, eta, log_weight, dispersion, n_trials, sample_weight, group)
    )
    return _log_density(_operation(resolved, inputs), inputs.present)


def mixture_response(
    name: str,
    eta: TensorLike,
    log_weight: TensorLike,
    *,
    family: FamilyLike,
    link: str | None = None,
    dispersion: TensorLike | None = None,
    n_trials: TensorLike | None = None,
    sample_weight: TensorLike | None = None,
    group: TensorLike | None = None,
    observed: Any = None,
    dims: str | Sequence[str] | None = None,
) -> Tensor:
    r"""Add the response or responses of a mixture to the PyMC model on the context stack.

    .. math:: y_i \sim \sum_j \pi_j \prod_a p_a(\cdot \mid \eta_{aij})

    Parameters
    ----------
    name : str
        Name of the variable.
    eta : tensor_like, shape (n_obs, n_components) or (n_predictors, n_obs, n_components)
        Linear predictors, offsets included.
    log_weight : tensor_like, shape (n_components,) or (n_obs, n_components)
        Normalised log weights.
    family : str, Family, SeveralResponses or sequence of str or Family
        As in `mixture_log_density`.
    link : str, optional
        Name of the link; the family's default link if left out.
    dispersion, n_trials, sample_weight, group : tensor_like, optional
        As in `mixture_log_density`.
    observed : array_like or pm.Data, shape (n_obs,) or (n_obs, n_responses), optional
        The response or responses.
    dims : str or sequence of str, optional
        Name of the rows' dimension, and of that of several responses.

    Returns
    -------
    TensorVariable, shape (n_obs,) or (n_obs, n_responses)
        The registered random variable. Binary responses, counts and codes of classes are 64-bit
        integers, whatever the dtype of `observed`; other responses are floats, and so are several
        responses together if one of them is.

    Raises
    ------
    ValueError
        As in `mixture_log_density`.

    Notes
    -----
    A draw first picks a component for each row, or for each group, and then draws the response. It
    ignores `sample_weight`. Counts are drawn with means up to `LARGEST_DRAWN_MEAN`, because a wide
    prior can produce means that random generators reject.

    Log-likelihoods have one value per row, also for several responses.

    Pass `observed` and everything with a row dimension as ``pm.Data``: compiled code is then
    cached on disk, and ``pm.set_data`` can change the number of rows.

    Examples
    --------
    >>> X = np.array([[0.5], [-1.0], [2.0]])
    >>> with pm.Model(coords={"obs": range(3)}) as model:
    ...     weight = pm.Dirichlet("weight", np.ones(2))
    ...     eta = X @ pm.Normal("coefficient", shape=(1, 2))
    ...     _ = mixture_response(
    ...         "y", eta, pt.log(weight), family="poisson", observed=[2, 0, 7], dims="obs"
    ...     )
    >>> [variable.name for variable in model.observed_RVs]
    ['y']
    """
    resolved = _resolve(family, link)
    unknown = pt.tensor("y", dtype=response_dtype(resolved), shape=(None,) * _n_dims(resolved))
    inputs = _as_inputs(
        resolved,
        MixtureInputs(unknown, eta, log_weight, dispersion, n_trials, sample_weight, group),
    )
    operation = _operation(resolved, inputs)
    response: Tensor = pm.CustomDist(
        name,
        *inputs.present[1:],
        logp=lambda value, *parameters: _log_density(operation, (value, *parameters)),
        random=lambda *parameters, rng=None, size=None: _draw(operation, rng, parameters, size),
        support_point=_support_point(resolved),
        signature=_signature(resolved, inputs),
        dtype=response_dtype(resolved),
        class_name=f"{type(resolved).__name__}Mixture",
        observed=observed,
        dims=dims,
    )
    # PyMC makes a class for each distribution; unless it is registered, numba warns about it.
    numba_core_rv_funcify.register(
        type(response.owner.op), lambda op, node: _draw_from_numba(operation)
    )
    return response


def _resolve(family: FamilyLike, link: str | None) -> AnyFamily:
    """Look up the family of all responses; two classes are a binary response."""
    if isinstance(family, Categorical) and family.n_predictors == 1:
        return get_family("bernoulli", link)
    if isinstance(family, str | Family):
        return get_family(family, link)
    if not is_family_sequence(family):
        raise TypeError(
            "`family` must be a family, its name, or a sequence of them; got "
            f"{type(family).__name__}."
        )
    number = len(family.members if isinstance(family, SeveralResponses) else family)
    return join_families(response_families(family, link, number))


def _n_dims(family: AnyFamily) -> int:
    """Number of dimensions of the response."""
    return 2 if len(family.members) > 1 else 1


def _as_inputs(family: AnyFamily, arguments: MixtureInputs) -> MixtureInputs:
    """Check the arguments and convert them to tensors of fixed types."""
    _check_argument(family, "dispersion", arguments.dispersion, needed=family.has_dispersion)
    _check_argument(family, "n_trials", arguments.n_trials, needed=family.has_trials)
    n_dims, n_responses = _n_dims(family), len(family.members)
    n_dispersions = sum(member.has_dispersion for member in family.members)
    eta = _as_tensor("eta", arguments.eta, "float64", (2 + (family.n_predictors > 1),))
    n_obs, n_components = eta.shape[-2], eta.shape[-1]
    return MixtureInputs(
        _as_tensor("y", arguments.y, response_dtype(family), (n_dims,)),
        eta,
        _as_tensor("log_weight", arguments.log_weight, "float64", (1, 2)),
        _as_full(
            "dispersion", arguments.dispersion, "float64", (n_dispersions, n_components)[-n_dims:]
        ),
        _as_full("n_trials", arguments.n_trials, "int64", (n_obs, n_responses)[:n_dims]),
        _as_tensor("sample_weight", arguments.sample_weight, "float64", (1,)),
        _as_tensor("group", arguments.group, "int64", (1,)),
    )


def _as_tensor(name: str, value: Any, dtype: str, n_dims: tuple[int, ...]) -> Any:
    if value is None:
        return None
    tensor = pt.as_tensor_variable(value)
    if tensor.type.ndim not in n_dims:
        raise ValueError(
            f"`{name}` must have {' or '.join(map(str, n_dims))} dimensions; "
            f"got {tensor.type.ndim}. See the shapes in the docstring."
        )
    return tensor.astype(dtype)


def _as_full(name: str, value: Any, dtype: str, shape: tuple[Any, ...]) -> Any:
    """Convert as `_as_tensor` does, and repeat a scalar."""
    tensor = _as_tensor(name, value, dtype, (0, len(shape)))
    if tensor is None or tensor.type.ndim:
        return tensor
    return pt.full(shape, tensor)


def _operation(family: AnyFamily, inputs: MixtureInputs) -> MixtureLogDensity:
    layout = MixtureLayout(
        inputs.log_weight.type.ndim == 2, *(value is not None for value in inputs[3:])
    )
    return MixtureLogDensity(family, layout)


def _log_density(operation: MixtureLogDensity, inputs: Sequence[Any]) -> Tensor:
    """Return the first output of the operation; the other outputs are its derivatives."""
    outputs: Any = operation(*inputs)
    density: Tensor = outputs[0]
    return density


def _signature(family: AnyFamily, inputs: MixtureInputs) -> str:
    """Return the core dimensions of the parameters, written as for NumPy's generalised ufuncs."""
    y = "(n,p)" if len(family.members) > 1 else "(n)"
    shapes = {
        "eta": "(p,n,r)" if family.n_predictors > 1 else "(n,r)",
        "log_weight": "(n,r)" if inputs.log_weight.type.ndim == 2 else "(r)",
        "dispersion": "(t,r)" if len(family.members) > 1 else "(r)",
        "n_trials": y,
        "sample_weight": "(n)",
        "group": "(n)",
    }
    given = [
        shapes[field]
        for field, value in inputs._asdict().items()
        if field in shapes and value is not None
    ]
    return f"{','.join(given)}->{y}"


def _support_point(family: AnyFamily) -> Callable[..., Any]:
    """Return a function that gives 1, which every family supports, for each response."""
    n_responses, dtype = len(family.members), response_dtype(family)

    def support_point(variable: Any, size: Any, eta: Any, *parameters: Any) -> Any:
        shape = (eta.shape[-2], n_responses)
        return pt.ones(shape[: _n_dims(family)], dtype=dtype)

    return support_point


def _draw(
    operation: MixtureLogDensity, rng: Any, parameters: Sequence[Any], size: Any = None
) -> NDArray[Any]:
    """Draw responses of shape (*size, n_obs) or (*size, n_obs, n_responses)."""
    family, layout = operation.family, operation.layout
    n_dims = [2 + (family.n_predictors > 1), 1 + layout.has_row_weights]
    n_dims += [_n_dims(family)] * (layout.has_dispersion + layout.has_trials)
    n_dims += [1] * (layout.has_sample_weight + layout.has_groups)
    arrays = [(np.asarray(value), n) for value, n in zip(parameters, n_dims, strict=True)]
    leading = [array.shape[: array.ndim - n] for array, n in arrays]
    shape = np.broadcast_shapes(*leading) if size is None else tuple(size)
    full = [np.broadcast_to(array, shape + array.shape[array.ndim - n :]) for array, n in arrays]
    draws = [
        _draw_rows(family, operation.named([None, *(array[index] for array in full)]), rng)
        for index in np.ndindex(shape)
    ]
    of_rows = (full[0].shape[-2], len(family.members))[: _n_dims(family)]
    return np.reshape(draws, (*shape, *of_rows)).astype(response_dtype(family))


def _draw_rows(family: AnyFamily, inputs: MixtureInputs, rng: np.random.Generator) -> NDArray[Any]:
    """Draw a component for each row or group, and then the responses."""
    eta = inputs.eta.reshape(family.n_predictors, *inputs.eta.shape[-2:])
    component = _draw_components(inputs, eta.shape[1:], rng)
    chosen = eta[:, np.arange(eta.shape[1]), component]  # (n_predictors, n_obs)
    if isinstance(family, Categorical):
        return family.sample(family.means(chosen), rng=rng)
    spreads = iter(() if inputs.dispersion is None else np.atleast_2d(inputs.dispersion))
    draws = []
    for a, member in enumerate(family.members):
        mean = member.link.mean(chosen[a])
        if member.has_unlimited_counts:
            mean = np.minimum(mean, LARGEST_DRAWN_MEAN)
        trials = column(inputs.n_trials, a) if member.has_trials else None
        dispersion = next(spreads)[component] if member.has_dispersion else None
        draws.append(member.sample(mean, dispersion=dispersion, n_trials=trials, rng=rng))
    return draws[0] if len(draws) == 1 else np.stack(draws, axis=1)


def _draw_components(
    inputs: MixtureInputs, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Draw a component for each row; the rows of a group have the same."""
    # shape: (n_obs, n_components) -> (n_obs,)
    uniform = rng.random(shape[0])
    log_weight = np.broadcast_to(inputs.log_weight, shape)
    if inputs.group is not None:
        _, head, index = np.unique(inputs.group, return_index=True, return_inverse=True)
        uniform, log_weight = uniform[head][index], log_weight[head][index]
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    reached = np.cumsum(weight, axis=1)
    return np.sum(reached[:, :-1] < uniform[:, None] * reached[:, -1:], axis=1, dtype=np.intp)


def _draw_from_numba(operation: MixtureLogDensity) -> tuple[Any, None]:
    """Let compiled code call Python for draws; the None says that it cannot be cached."""
    dtype = numba.from_dtype(np.dtype(response_dtype(operation.family)))
    returned = numba.types.Array(dtype, _n_dims(operation.family), "C")
    draw = partial(_draw, operation)  # numba must be able to pickle it

    def draw_mixture(rng, *parameters):  # type: ignore[no-untyped-def]
        with numba.objmode(draws=returned):
            draws = draw(rng, parameters)
        return draws

    return numba_njit(draw_mixture), None
