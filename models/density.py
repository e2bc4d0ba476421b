r"""The response of a mixture of generalised linear models, with the component summed out.

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
from moment_init.families.registry import get_family
from moment_init.models.likelihoods import Tensor, TensorLike, _check_argument
from moment_init.models.mixture_loops import MixtureLayout
from moment_init.models.mixture_op import MixtureInputs, MixtureLogDensity

_INPUT_SIGNATURES = {
    "eta": "(n,r)",
    "dispersion": "(r)",
    "n_trials": "(n)",
    "sample_weight": "(n)",
    "group": "(n)",
}


def mixture_log_density(
    y: TensorLike,
    eta: TensorLike,
    log_weight: TensorLike,
    *,
    family: str | Family,
    link: str | None = None,
    dispersion: TensorLike | None = None,
    n_trials: TensorLike | None = None,
    sample_weight: TensorLike | None = None,
    group: TensorLike | None = None,
) -> Tensor:
    r"""Log density of each row under a mixture.

    .. math:: \ell_i = w_i \log \sum_j \pi_j\, p(y_i \mid \eta_{ij})

    Parameters
    ----------
    y : tensor_like, shape (n_obs,)
        The response. Its values are not checked.
    eta : tensor_like, shape (n_obs, n_components)
        Linear predictors, offsets included.
    log_weight : tensor_like, shape (n_components,) or (n_obs, n_components)
        Normalised log weights; one row of them per observation if a gate sets them. A log weight
        of minus infinity removes its component.
    family : str or Family
        Response family, as in :func:`moment_init.families.get_family`.
    link : str, optional
        Name of the link; the family's default link if left out.
    dispersion : tensor_like, scalar or shape (n_components,), optional
        Dispersion of each component, for families that have one.
    n_trials : tensor_like, scalar or shape (n_obs,), optional
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
    resolved = get_family(family, link)
    inputs = _as_inputs(
        resolved, MixtureInputs(y, eta, log_weight, dispersion, n_trials, sample_weight, group)
    )
    return _log_density(_operation(resolved, inputs), inputs.present)


def mixture_response(
    name: str,
    eta: TensorLike,
    log_weight: TensorLike,
    *,
    family: str | Family,
    link: str | None = None,
    dispersion: TensorLike | None = None,
    n_trials: TensorLike | None = None,
    sample_weight: TensorLike | None = None,
    group: TensorLike | None = None,
    observed: Any = None,
    dims: str | Sequence[str] | None = None,
) -> Tensor:
    r"""Add the response of a mixture to the PyMC model on the context stack.

    .. math:: y_i \sim \sum_j \pi_j\, p(\cdot \mid \eta_{ij})

    Parameters
    ----------
    name : str
        Name of the variable.
    eta : tensor_like, shape (n_obs, n_components)
        Linear predictors, offsets included.
    log_weight : tensor_like, shape (n_components,) or (n_obs, n_components)
        Normalised log weights.
    family : str or Family
        Response family, as in :func:`moment_init.families.get_family`.
    link : str, optional
        Name of the link; the family's default link if left out.
    dispersion, n_trials, sample_weight, group : tensor_like, optional
        As in `mixture_log_density`.
    observed : array_like or pm.Data, shape (n_obs,), optional
        The response.
    dims : str or sequence of str, optional
        Name of the rows' dimension.

    Returns
    -------
    TensorVariable, shape (n_obs,)
        The registered random variable. Binary responses and counts are 64-bit integers, whatever
        the dtype of `observed`; other responses are floats.

    Raises
    ------
    ValueError
        As in `mixture_log_density`.

    Notes
    -----
    A draw first picks a component for each row, or for each group, and then draws the response. It
    ignores `sample_weight`. Counts are drawn with means up to `LARGEST_DRAWN_MEAN`, because a wide
    prior can produce means that random generators reject.

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
    resolved = get_family(family, link)
    unknown = pt.vector("y", dtype=_response_dtype(resolved))
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
        signature=_signature(inputs),
        dtype=_response_dtype(resolved),
        class_name=f"{type(resolved).__name__}Mixture",
        observed=observed,
        dims=dims,
    )
    # PyMC makes a class for each distribution; unless it is registered, numba warns about it.
    numba_core_rv_funcify.register(
        type(response.owner.op), lambda op, node: _draw_from_numba(operation)
    )
    return response


def _response_dtype(family: Family) -> str:
    """Return the family's dtype, so that compiled code does not depend on the data's dtype."""
    is_whole = family.has_unlimited_counts or family.has_trials or family.has_binary_rows
    return "int64" if is_whole else "float64"


def _as_inputs(family: Family, arguments: MixtureInputs) -> MixtureInputs:
    """Check the arguments and convert them to tensors of fixed types."""
    _check_argument(family, "dispersion", arguments.dispersion, needed=family.has_dispersion)
    _check_argument(family, "n_trials", arguments.n_trials, needed=family.has_trials)
    eta = _as_tensor("eta", arguments.eta, "float64", (2,))
    n_obs, n_components = eta.shape
    return MixtureInputs(
        _as_tensor("y", arguments.y, _response_dtype(family), (1,)),
        eta,
        _as_tensor("log_weight", arguments.log_weight, "float64", (1, 2)),
        _as_vector("dispersion", arguments.dispersion, "float64", n_components),
        _as_vector("n_trials", arguments.n_trials, "int64", n_obs),
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


def _as_vector(name: str, value: Any, dtype: str, length: Any) -> Any:
    """Convert as `_as_tensor` does, and repeat a scalar to the given length."""
    tensor = _as_tensor(name, value, dtype, (0, 1))
    if tensor is None or tensor.type.ndim == 1:
        return tensor
    return pt.full((length,), tensor)


def _operation(family: Family, inputs: MixtureInputs) -> MixtureLogDensity:
    layout = MixtureLayout(
        inputs.log_weight.type.ndim == 2, *(value is not None for value in inputs[3:])
    )
    return MixtureLogDensity(family.name, family.link.name, layout)


def _log_density(operation: MixtureLogDensity, inputs: Sequence[Any]) -> Tensor:
    """Return the first output of the operation; the other outputs are its derivatives."""
    outputs: Any = operation(*inputs)
    density: Tensor = outputs[0]
    return density


def _signature(inputs: MixtureInputs) -> str:
    """Return the core dimensions of the parameters, written as for NumPy's generalised ufuncs."""
    shapes = {
        **_INPUT_SIGNATURES,
        "log_weight": "(n,r)" if inputs.log_weight.type.ndim == 2 else "(r)",
    }
    parameters = [
        shapes[field]
        for field, value in inputs._asdict().items()
        if field != "y" and value is not None
    ]
    return f"{','.join(parameters)}->(n)"


def _support_point(family: Family) -> Callable[..., Any]:
    """Return a function that gives 1, which every family supports, for each row."""
    dtype = _response_dtype(family)

    def support_point(variable: Any, size: Any, eta: Any, *parameters: Any) -> Any:
        return pt.ones(eta.shape[0], dtype=dtype)

    return support_point


def _draw(
    operation: MixtureLogDensity, rng: Any, parameters: Sequence[Any], size: Any = None
) -> NDArray[Any]:
    """Draw responses of shape (*size, n_obs)."""
    family = get_family(operation.family, operation.link)
    n_dims = [2, 1 + operation.layout.has_row_weights, *(1 for _ in parameters[2:])]
    arrays = [(np.asarray(value), n) for value, n in zip(parameters, n_dims, strict=True)]
    leading = [array.shape[: array.ndim - n] for array, n in arrays]
    shape = np.broadcast_shapes(*leading) if size is None else tuple(size)
    full = [np.broadcast_to(array, shape + array.shape[array.ndim - n :]) for array, n in arrays]
    draws = [
        _draw_rows(family, operation.named([None, *(array[index] for array in full)]), rng)
        for index in np.ndindex(shape)
    ]
    return np.reshape(draws, (*shape, full[0].shape[-2])).astype(_response_dtype(family))


def _draw_rows(family: Family, inputs: MixtureInputs, rng: np.random.Generator) -> NDArray[Any]:
    """Draw a component for each row or group, and then the responses."""
    uniform = rng.random(inputs.eta.shape[0])
    log_weight = np.broadcast_to(inputs.log_weight, inputs.eta.shape)
    if inputs.group is not None:
        _, head, index = np.unique(inputs.group, return_index=True, return_inverse=True)
        uniform, log_weight = uniform[head][index], log_weight[head][index]
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    reached = np.cumsum(weight, axis=1)
    component = np.sum(reached[:, :-1] < uniform[:, None] * reached[:, -1:], axis=1)
    mean = family.link.mean(np.take_along_axis(inputs.eta, component[:, None], axis=1)[:, 0])
    if family.has_unlimited_counts:
        mean = np.minimum(mean, LARGEST_DRAWN_MEAN)
    return family.sample(
        mean,
        dispersion=None if inputs.dispersion is None else inputs.dispersion[component],
        n_trials=inputs.n_trials,
        rng=rng,
    )


def _draw_from_numba(operation: MixtureLogDensity) -> tuple[Any, None]:
    """Let compiled code call Python for draws; the None says that it cannot be cached."""
    dtype = np.dtype(_response_dtype(get_family(operation.family, operation.link)))
    returned = numba.types.Array(numba.from_dtype(dtype), 1, "C")
    draw = partial(_draw, operation)  # numba must be able to pickle it

    def draw_mixture(rng, *parameters):  # type: ignore[no-untyped-def]
        with numba.objmode(draws=returned):
            draws = draw(rng, parameters)
        return draws

    return numba_njit(draw_mixture), None
