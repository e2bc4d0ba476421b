"""Free variables of a PyMC model, and how parameters of a mixture fit into them.

PyMC is not imported here: it is there already if somebody has a model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.start_values import DIMS

if TYPE_CHECKING:
    import pymc

__all__ = [
    "ModelVariable",
    "Placement",
    "StartCheck",
    "free_variables",
    "pick_at_random",
    "place_variable",
]

FloatArray = NDArray[np.float64]

_KNOWN_DIMS = frozenset(dim for dims in DIMS.values() for dim in dims)


@dataclass(frozen=True, slots=True, eq=False)
class ModelVariable:
    """A free variable of a model.

    Parameters
    ----------
    name : str
        Its name.
    shape : tuple of int
        Its shape.
    dims : tuple of str or None
        The name of each axis, where it has one.
    coords : tuple
        The labels of each axis, empty where it has none.
    dtype : numpy.dtype
        Its type.
    transform : str or None
        Name of the transform to the unconstrained scale.
    value_name : str
        Its name on that scale.
    order : int
        1 if the last axis must ascend, -1 if it must descend, 0 otherwise.
    is_labelled : bool
        Whether it comes from `pymc.dims`, whose variables take no arrays as initial values.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str | None, ...]
    coords: tuple[tuple[str, ...], ...]
    dtype: np.dtype[Any]
    transform: str | None
    value_name: str
    order: int
    is_labelled: bool


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """How a variable of the data model becomes one of a user's model.

    Parameters
    ----------
    axes : tuple of int
        Order of the axes.
    labels : tuple of (int, numpy.ndarray)
        For axes, after that, the order in which the model has their entries.
    shape : tuple of int
        Final shape, which differs by axes of length one.
    """

    axes: tuple[int, ...]
    labels: tuple[tuple[int, NDArray[np.intp]], ...]
    shape: tuple[int, ...]

    def __call__(self, value: FloatArray) -> FloatArray:
        """Place a value.

        Parameters
        ----------
        value : numpy.ndarray
            A value with the data model's dims.

        Returns
        -------
        numpy.ndarray
            The value with the shape of the model's variable.
        """
        placed = np.transpose(np.squeeze(value), self.axes)
        for axis, index in self.labels:
            placed = np.take(placed, index, axis=axis)
        return np.reshape(placed, self.shape)


def free_variables(model: "pymc.Model") -> dict[str, ModelVariable]:
    """Read the free variables of a model.

    Parameters
    ----------
    model : pymc.Model
        The model.

    Returns
    -------
    dict of str to ModelVariable
        The variables by name, in the model's order.
    """
    from moment_init.compiler_flags import changed_flags  # imports PyTensor, as a model has

    with changed_flags(cxx=""):
        shapes = model.eval_rv_shapes()
    result = {}
    for variable in model.free_RVs:
        shape = tuple(int(size) for size in shapes[variable.name])
        dims = tuple(model.named_vars_to_dims.get(variable.name) or (None,) * len(shape))
        coords = tuple(tuple(map(str, model.coords.get(dim) or ())) for dim in dims)
        transform = model.rvs_to_transforms[variable]
        result[variable.name] = ModelVariable(
            variable.name, shape, dims, coords, np.dtype(variable.dtype),
            None if transform is None else transform.name, model.rvs_to_values[variable].name,
            _order_of(transform), hasattr(variable.type, "dims"),
        )  # fmt: skip
    return result


def _order_of(transform: Any) -> int:
    """Sense in which a transform, or one in a chain, wants its last axis ordered; 0 if none."""
    for part in getattr(transform, "transform_list", (transform,)):
        if getattr(part, "name", None) == "ordered":
            return 1 if getattr(part, "ascending", True) else -1
    return 0


def place_variable(
    name: str, value: FloatArray, target: ModelVariable, labels: Mapping[str, tuple[str, ...]]
) -> Placement:
    """Find out how the axes of a parameter become those of a model's variable.

    Axes are told apart by their dims' names, by labels that are names of the columns, and by their
    lengths; axes of length one may be missing or added.

    Parameters
    ----------
    name : str
        Name of the parameter in the data model.
    value : numpy.ndarray
        Its value, with the dims of `DIMS`.
    target : ModelVariable
        The variable.
    labels : mapping of str to tuple of str
        Labels of the dims, where they have some.

    Returns
    -------
    Placement
        How values are placed.

    Raises
    ------
    ValueError
        If no order of the axes fits, or more than one.
    """
    dims = [dim for dim, size in zip(DIMS[name], value.shape, strict=True) if size != 1]
    axes = [axis for axis, size in enumerate(target.shape) if size != 1]
    squeezed = np.squeeze(value)
    asked = [_dim_of(target, axis, labels) for axis in axes]
    fitting = [
        order
        for order in permutations(range(len(dims)))
        if tuple(squeezed.shape[i] for i in order) == tuple(target.shape[axis] for axis in axes)
        and all(dim in (None, dims[i]) for dim, i in zip(asked, order, strict=True))
    ]
    if not fitting:
        raise ValueError(
            f"`mapping`: {name!r} has shape {_described(DIMS[name], value.shape)} and does not fit "
            f"into the model's variable {target.name!r} of shape "
            f"{_described(target.dims, target.shape)}. Map it with a callable, "
            f"{{{target.name!r}: lambda start: ...}}, or leave it to the model with "
            f"{{{target.name!r}: None}}."
        )
    first = np.transpose(squeezed, fitting[0])
    if any(not np.array_equal(first, np.transpose(squeezed, order)) for order in fitting[1:]):
        raise ValueError(
            f"`mapping`: {name!r} of shape {_described(DIMS[name], value.shape)} fits into the "
            f"model's variable {target.name!r} of shape {_described(target.dims, target.shape)} in "
            f"more than one way. Give the variable dims of these names, e.g. dims={DIMS[name]}, or "
            f"map it with a callable, {{{target.name!r}: lambda start: ...}}."
        )
    ordered = [dims[i] for i in fitting[0]]
    return Placement(fitting[0], _label_orders(ordered, axes, target, labels), target.shape)


def _dim_of(target: ModelVariable, axis: int, labels: Mapping[str, tuple[str, ...]]) -> str | None:
    """The data model's dim that an axis of a variable must be; None if nothing tells."""
    dim = target.dims[axis]
    if dim in _KNOWN_DIMS:
        return dim
    own = sorted(target.coords[axis])
    matches = [known for known, names in labels.items() if own and own == sorted(names)]
    return matches[0] if len(matches) == 1 else None


def _label_orders(
    dims: list[str],
    axes: list[int],
    target: ModelVariable,
    labels: Mapping[str, tuple[str, ...]],
) -> tuple[tuple[int, NDArray[np.intp]], ...]:
    """Where the model has the columns' names in another order, that order."""
    result = []
    for position, (dim, axis) in enumerate(zip(dims, axes, strict=True)):
        names, own = labels.get(dim, ()), target.coords[axis]
        if names != own and sorted(names) == sorted(own) and len(set(own)) == len(own):
            result.append((position, np.array([names.index(label) for label in own])))
    return tuple(result)


def _described(dims: tuple[str | None, ...], shape: tuple[int, ...]) -> str:
    """A shape with the names of its axes: "(feature: 3, 2)"."""
    parts = [str(n) if dim is None else f"{dim}: {n}" for dim, n in zip(dims, shape, strict=True)]
    return f"({', '.join(parts)})"


class StartCheck:
    """Whether values lie inside of the support of a model's variables.

    A value passes if the transform takes it to finite numbers and back to itself, and if its prior
    density there, given the start of the variables above it, is not zero. The likelihood is not
    evaluated: to compile it takes tens of seconds.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variables : mapping of str to ModelVariable
        The variables that get values.
    """

    def __init__(self, model: "pymc.Model", variables: Mapping[str, ModelVariable]) -> None:
        from pymc.initial_point import make_initial_point_fn

        self._variables = variables
        self._shared = {
            name: _shared(np.ones(variable.shape, dtype=variable.dtype))
            for name, variable in variables.items()
        }
        self._unconstrained = make_initial_point_fn(model=model, overrides=self._shared)
        self._constrained = make_initial_point_fn(
            model=model, overrides=self._shared, return_transformed=False
        )
        terms = model.logp(vars=[model[name] for name in variables], sum=False, jacobian=False)
        self._log_priors = model.compile_fn(
            terms, inputs=model.value_vars, mode="FAST_COMPILE", on_unused_input="ignore"
        )

    def complaint(self, values: Mapping[str, FloatArray]) -> str | None:
        """Say what is wrong with values.

        Parameters
        ----------
        values : mapping of str to numpy.ndarray
            Values of the variables, on their constrained scales.

        Returns
        -------
        str or None
            The first complaint; None if there is none.
        """
        for name, shared in self._shared.items():
            shared.set_value(np.asarray(values[name], dtype=self._variables[name].dtype))
        with np.errstate(all="ignore"):
            point, back = self._unconstrained(0), self._constrained(0)
            log_priors = self._log_priors(point)
        for (name, variable), log_prior in zip(self._variables.items(), log_priors, strict=True):
            value, is_finite = values[name], np.all(np.isfinite(point[variable.value_name]))
            if not is_finite or not _is_same(back[name], value, variable.dtype):
                rule = f"in the range of its transform, {variable.transform!r}"
            elif not np.all(np.isfinite(log_prior)):
                rule = "where its prior density is not zero"
            else:
                continue
            return f"the model's variable {name!r} must start {rule}; got {_shortened(value)}"
        return None


def _is_same(back: Any, value: FloatArray, dtype: np.dtype[Any]) -> bool:
    """Whether a value came back from the unconstrained scale, up to half of the digits."""
    tolerance = float(np.sqrt(np.finfo(dtype).eps))
    size = float(np.max(np.abs(value), initial=0.0))
    return bool(np.allclose(back, value, rtol=tolerance, atol=tolerance * size))


def _shortened(value: FloatArray) -> str:
    return np.array2string(value, precision=4, threshold=12, separator=", ").replace("\n", "")


def pick_at_random(
    draws: list[dict[str, FloatArray]], variables: Mapping[str, ModelVariable]
) -> dict[str, Any]:
    """Make random variables of draws: one pick among them, the same for all variables.

    Parameters
    ----------
    draws : list of dict of str to numpy.ndarray
        Values of the variables.
    variables : mapping of str to ModelVariable
        The variables.

    Returns
    -------
    dict of str to TensorVariable
        Initial values; PyMC and nutpie seed their generator anew for every chain.
    """
    import pytensor.tensor as pt
    from pytensor.tensor.random.variable import shared_rng

    _, pick = pt.random.integers(0, len(draws), rng=shared_rng(seed=None), return_next_rng=True)
    return {
        name: _shared(np.stack([draw[name] for draw in draws]).astype(variable.dtype))[pick]
        for name, variable in variables.items()
    }


def _shared(value: NDArray[Any]) -> Any:
    """A shared variable: unlike a constant it is not hashed or copied when a graph is compiled."""
    from pytensor.compile.sharedvalue import shared

    return shared(value)  # type: ignore[no-untyped-call]
