"""Free variables of a user's model, and how the parameters of a mixture fit into them.

The variables of a PyMC model are read from the model, those of a NumPyro model from the sites of
one run, and those of a Stan program from its text. PyMC and NumPyro are imported only when a model
of theirs is read. In a Stan program the lengths of the axes are names, as in ``matrix[D, K] beta``.
Parameters with one axis (``simplex[K] weight``) show which name is the number of components, and so
which axis of the other parameters is the component.

Each backend has a check of whether values lie inside the support of its variables.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.em.start_values import StartValues
from moment_init.results import ATTRIBUTES, KNOWN_DIMS, dims_of

if TYPE_CHECKING:
    import pymc

_flags_lock = threading.RLock()


@dataclass(frozen=True, slots=True, eq=False)
class ModelVariable:
    """A free variable of a model."""

    name: str
    shape: tuple[int, ...]
    dims: tuple[str | None, ...]  # name of each axis, or None
    coords: tuple[tuple[str, ...], ...]  # labels of each axis, empty if it has none
    dtype: np.dtype[Any]
    transform: str | None  # name of the transform to the unconstrained scale
    value_name: str  # name on the unconstrained scale
    order: int  # 1 if the last axis must ascend, -1 if it must descend, 0 otherwise
    is_labelled: bool  # whether it is of `pymc.dims`, whose variables take no initial arrays


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """How a parameter of the mixture becomes a variable of the user's model."""

    axes: tuple[int, ...]  # order of the axes
    # (axis after reordering, order of its entries in the model)
    labels: tuple[tuple[int, NDArray[np.intp]], ...]
    shape: tuple[int, ...]  # final shape, which can have other axes of length one

    def __call__(self, value: FloatArray) -> FloatArray:
        """Bring a value into the form of the model's variable."""
        placed = np.transpose(np.squeeze(value), self.axes)
        for axis, index in self.labels:
            placed = np.take(placed, index, axis=axis)
        return np.reshape(placed, self.shape)


@contextmanager
def changed_flags(**flags: Any) -> Iterator[None]:
    """Change PyTensor flags within the context, one thread at a time.

    PyTensor keeps its flags for the whole process and restores them without a lock: of two threads
    that change the same flag, the last could restore the value that the first had set.
    """
    from pytensor.configdefaults import config

    with _flags_lock, config.change_flags(**flags):
        yield


def free_variables(model: "pymc.Model") -> dict[str, ModelVariable]:
    """Read the free variables of a PyMC model."""
    with changed_flags(cxx=""):  # starting the C compiler alone would take seconds
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
    """Return 1 or -1 if a transform, or one in a chain, orders its last axis; otherwise 0."""
    for part in getattr(transform, "transform_list", (transform,)):
        if getattr(part, "name", None) == "ordered":
            return 1 if getattr(part, "ascending", True) else -1
    return 0


def place_variable(
    name: str, value: FloatArray, target: ModelVariable, labels: Mapping[str, tuple[str, ...]]
) -> Placement:
    """Find how the axes of a parameter become those of a model's variable.

    Axes are matched by the names of their dims, by labels that are column names, and by their
    lengths; axes of length one may be missing or added.
    """
    all_dims = dims_of(name, value.ndim)
    dims = [dim for dim, size in zip(all_dims, value.shape, strict=True) if size != 1]
    axes = [axis for axis, size in enumerate(target.shape) if size != 1]
    squeezed = np.squeeze(value)
    required = [_dim_of(target, axis, labels) for axis in axes]
    fitting = [
        order
        for order in permutations(range(len(dims)))
        if tuple(squeezed.shape[i] for i in order) == tuple(target.shape[axis] for axis in axes)
        and all(dim in (None, dims[i]) for dim, i in zip(required, order, strict=True))
    ]
    if not fitting:
        raise ValueError(
            f"`mapping`: {name!r} has shape {_described(all_dims, value.shape)} and does not fit "
            f"into the model's variable {target.name!r} of shape "
            f"{_described(target.dims, target.shape)}. Map it with a callable, "
            f"{{{target.name!r}: lambda start: ...}}, or leave it to the model with "
            f"{{{target.name!r}: None}}."
        )
    first = np.transpose(squeezed, fitting[0])
    if any(not np.array_equal(first, np.transpose(squeezed, order)) for order in fitting[1:]):
        raise ValueError(
            f"`mapping`: {name!r} of shape {_described(all_dims, value.shape)} fits into the "
            f"model's variable {target.name!r} of shape {_described(target.dims, target.shape)} in "
            f"more than one way. Give the variable dims of these names, e.g. dims={all_dims}, or "
            f"map it with a callable, {{{target.name!r}: lambda start: ...}}."
        )
    ordered = [dims[i] for i in fitting[0]]
    return Placement(fitting[0], _label_orders(ordered, axes, target, labels), target.shape)


def _dim_of(target: ModelVariable, axis: int, labels: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the dim of the mixture that an axis of a variable must be; None if unknown."""
    dim = target.dims[axis]
    if dim in KNOWN_DIMS:
        return dim
    model_labels = sorted(target.coords[axis])
    matches = [
        known for known, names in labels.items() if model_labels and model_labels == sorted(names)
    ]
    return matches[0] if len(matches) == 1 else None


def _label_orders(
    dims: list[str],
    axes: list[int],
    target: ModelVariable,
    labels: Mapping[str, tuple[str, ...]],
) -> tuple[tuple[int, NDArray[np.intp]], ...]:
    """Return the order of the column names for axes where the model has another order."""
    result = []
    for position, (dim, axis) in enumerate(zip(dims, axes, strict=True)):
        names, model_labels = labels.get(dim, ()), target.coords[axis]
        if (
            names != model_labels
            and sorted(names) == sorted(model_labels)
            and len(set(model_labels)) == len(model_labels)
        ):
            result.append((position, np.array([names.index(label) for label in model_labels])))
    return tuple(result)


def _described(dims: tuple[str | None, ...], shape: tuple[int, ...]) -> str:
    """Format a shape with the names of its axes: "(feature: 3, 2)"."""
    parts = [str(n) if dim is None else f"{dim}: {n}" for dim, n in zip(dims, shape, strict=True)]
    return f"({', '.join(parts)})"


class StartCheck:
    """Check of whether values lie inside the support of a PyMC model's variables.

    A value passes if the transform maps it to finite numbers and back to itself, and if its prior
    density, given the initial values of its parents, is not zero. The likelihood is not evaluated,
    because compiling it takes tens of seconds.
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
        """Return what is wrong with the values, or None."""
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
    """Whether a value came back from the unconstrained scale, to half of the digits."""
    tolerance = float(np.sqrt(np.finfo(dtype).eps))
    size = float(np.max(np.abs(value), initial=0.0))
    return bool(np.allclose(back, value, rtol=tolerance, atol=tolerance * size))


def _shortened(value: FloatArray) -> str:
    return np.array2string(value, precision=4, threshold=12, separator=", ").replace("\n", "")


def pick_at_random(
    draws: list[dict[str, FloatArray]], variables: Mapping[str, ModelVariable]
) -> dict[str, Any]:
    """Make random variables that pick one of the draws, the same one for all variables."""
    import pytensor.tensor as pt
    from pytensor.tensor.random.variable import shared_rng

    _, pick = pt.random.integers(0, len(draws), rng=shared_rng(seed=None), return_next_rng=True)
    return {
        name: _shared(np.stack([draw[name] for draw in draws]).astype(variable.dtype))[pick]
        for name, variable in variables.items()
    }


def _shared(value: NDArray[Any]) -> Any:
    """Make a shared variable, which unlike a constant is not hashed or copied in compilation."""
    from pytensor.compile.sharedvalue import shared

    return shared(value)  # type: ignore[no-untyped-call]


def read_sites(model: Callable[[], Any]) -> tuple[dict[str, ModelVariable], dict[str, str]]:
    """Run a NumPyro model once and read its sites."""
    variables, others = {}, {}
    for name, site in _trace(model, {}).items():
        if site["type"] == "sample" and not site["is_observed"]:
            variables[name] = _site_variable(name, site)
        elif site["type"] == "sample":
            others[name] = "is observed"
        else:
            others[name] = f"is a site of type {site['type']!r}"
    return variables, others


class SiteCheck:
    """Check of whether values lie inside the support of a NumPyro model's sites."""

    def __init__(self, model: Callable[[], Any]) -> None:
        self._model = model

    def complaint(self, values: Mapping[str, FloatArray]) -> str | None:
        """Return what is wrong with the values, or None."""
        sites = _trace(self._model, values)
        for name, value in values.items():
            prior = sites[name]["fn"]
            if not np.all(prior.support(value)):
                rule = f"in the support of its prior, {_base(prior.support)}"
            elif not np.all(np.isfinite(prior.log_prob(value))):
                rule = "where its prior density is not zero"
            else:
                continue
            shown = np.array2string(value, precision=4, threshold=12, separator=", ")
            return f"the model's site {name!r} must start {rule}; got {shown}".replace("\n", "")
        return None


def _trace(model: Callable[[], Any], values: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Run the model once, with given values at some sites, and return all sites."""
    from numpyro import handlers

    seeded = handlers.substitute(handlers.seed(model, rng_seed=0), data=dict(values))
    return dict(handlers.trace(partial(_run, seeded)).get_trace())


def _run(model: Callable[[], Any]) -> None:
    try:
        model()
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise TypeError(
            f"`model` must be a NumPyro model as a function without arguments: {error}. Bind the "
            "data: functools.partial(model, X, y)."
        ) from error


def _site_variable(name: str, site: Mapping[str, Any]) -> ModelVariable:
    value, prior = np.asarray(site["value"]), site["fn"]
    dims: list[str | None] = [None] * value.ndim
    for plate in site["cond_indep_stack"]:
        dims[value.ndim - prior.event_dim + plate.dim] = plate.name
    support = _base(prior.support)
    return ModelVariable(
        name, value.shape, tuple(dims), ((),) * value.ndim,
        np.dtype(np.int64) if prior.is_discrete else np.dtype(np.float64), str(support), name,
        1 if "ordered" in type(support).__name__.lower() else 0, is_labelled=False,
    )  # fmt: skip


def _base(support: Any) -> Any:
    """Return a constraint without the wrapper that makes one event of independent ones."""
    return getattr(support, "base_constraint", support)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLOCK = re.compile(r"(transformed\s+)?\b(data|parameters)\s*\{")
_DECLARATION = re.compile(
    r"(?:array\s*\[(?P<array>[^\]]*)\]\s*)?(?P<kind>[a-z]\w*)\s*(?:<(?P<bounds>[^>]*)>)?\s*"
    r"(?:\[(?P<sizes>[^\]]*)\])?\s+(?P<names>[A-Za-z].*)",
    re.DOTALL,
)
_NAME = re.compile(r"([A-Za-z]\w*)\s*(?:\[([^\]]*)\])?")
_NUMBER = r"\s*=\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(?:,|$)"

_SQUARE = frozenset({"cov_matrix", "corr_matrix", "cholesky_factor_corr"})
"""Stan types that are declared with one size and have two axes."""

_TOLERANCE = 1e-8
"""Stan's own tolerance for sums and lengths that must be one."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A variable as a Stan program declares it."""

    name: str
    kind: str  # type, such as ``"vector"`` or ``"simplex"``
    sizes: tuple[str, ...]  # lengths of the axes as written, those of an array first
    lower: float = -np.inf  # lower bound, if it is a number
    upper: float = np.inf  # upper bound, if it is a number

    def allows(self, value: FloatArray) -> bool:
        """Whether a value satisfies the declaration."""
        if not np.all(np.isfinite(value)) or value.ndim != len(self.sizes):
            return False
        rules: dict[str, Callable[[], Any]] = {
            "simplex": lambda: (value > 0) & _is_one(value.sum(axis=-1, keepdims=True)),
            "ordered": lambda: np.diff(value) > 0,
            "positive_ordered": lambda: np.diff(value, prepend=0.0) > 0,
            "unit_vector": lambda: _is_one(np.linalg.norm(value, axis=-1)),
            "cov_matrix": lambda: np.linalg.eigvalsh(value) > 0,
        }
        is_inside = np.all(value > self.lower) and np.all(value < self.upper)
        return bool(is_inside and np.all(rules.get(self.kind, lambda: True)()))


def read_parameters(
    program: Any,
    start: StartValues | None,
    mapping: Mapping[str, str | Callable[[Any], Any] | None],
) -> tuple[dict[str, ModelVariable], dict[str, str]]:
    """Read the parameters of a Stan program, and why its other variables are not free."""
    blocks = _declarations(program)
    declared = blocks.get("parameters", ())
    if not declared:
        raise ValueError(
            "`model` must be a Stan program that declares parameters; got none. Pass its text, or "
            "a path that ends in '.stan'."
        )
    reasons = {
        "data": "is data",
        "transformed data": "is data",
        "transformed parameters": "is computed from others",
    }
    others = {
        item.name: reason for block, reason in reasons.items() for item in blocks.get(block, ())
    }
    if start is None:
        return {}, others
    sources = {item.name: item.name for item in declared if item.name in ATTRIBUTES} | dict(mapping)
    pins = _pins(declared, sources, start)
    return {item.name: _parameter_variable(item, sources, start, pins) for item in declared}, others


class ParameterCheck:
    """Check of whether values satisfy the declarations of a Stan program."""

    def __init__(self, program: Any) -> None:
        self._declared = {item.name: item for item in _declarations(program)["parameters"]}

    def complaint(self, values: Mapping[str, FloatArray]) -> str | None:
        """Return what is wrong with the values, or None."""
        for name, value in values.items():
            item = self._declared[name]
            if not item.allows(value):
                shown = np.array2string(value, precision=4, threshold=12, separator=", ")
                rule = f"a {item.kind} of {len(item.sizes)} axes between {item.lower:g} and "
                return (
                    f"the program's parameter {name!r} must start inside its declaration, "
                    f"{rule}{item.upper:g}; got {shown}"
                ).replace("\n", "")
        return None


def _is_one(values: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(np.abs(values - 1.0) < _TOLERANCE)


def _declarations(program: Any) -> dict[str, tuple[Declaration, ...]]:
    """Read the declarations of each block of a program."""
    text = _COMMENT.sub(" ", _text(program))
    blocks = {}
    for match in _BLOCK.finditer(text):
        name = f"transformed {match[2]}" if match[1] else match[2]
        statements = _inside(text, match.end()).split(";")
        blocks[name] = tuple(item for statement in statements for item in _read(statement.strip()))
    return blocks


def _text(program: Any) -> str:
    if hasattr(program, "code"):
        return str(program.code())
    if isinstance(program, str) and not program.rstrip().endswith(".stan"):
        return program
    return Path(program).read_text(encoding="utf-8")


def _inside(text: str, start: int) -> str:
    """Return the text of the block that starts here, up to its closing brace."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return text[start:]


def _read(statement: str) -> list[Declaration]:
    """Read the variables that a statement declares; none if it is not a declaration."""
    match = _DECLARATION.fullmatch(statement)
    if match is None:
        return []
    bounds = match["bounds"] or ""
    lower, upper = (re.search(side + _NUMBER, bounds) for side in ("lower", "upper"))
    sizes = _split(match["sizes"])
    axis_sizes = sizes * 2 if match["kind"] in _SQUARE else sizes
    return [
        Declaration(
            name, match["kind"], (*_split(match["array"]), *_split(array), *axis_sizes),
            -np.inf if lower is None else float(lower[1]),
            np.inf if upper is None else float(upper[1]),
        )
        for name, array in _NAME.findall(match["names"].split("=")[0])
    ]  # fmt: skip


def _split(sizes: str | None) -> tuple[str, ...]:
    return tuple(size.strip() for size in sizes.split(",")) if sizes else ()


def _pins(
    declared: tuple[Declaration, ...], sources: Mapping[str, Any], start: StartValues
) -> dict[str, str]:
    """Find the mixture's dim for each named size, where the parameters determine it."""
    known = start.variables()
    pins: dict[str, str] = {}
    for n_axes in (1, 2, 3):  # parameters with one axis first: they are unambiguous
        for item in declared:
            source = sources.get(item.name)
            if isinstance(source, str) and source in known and len(item.sizes) == n_axes:
                orders = _orders(item, source, known[source], pins)
                if len(orders) == 1:
                    pins |= dict(zip(item.sizes, orders[0], strict=True))
    return pins


def _orders(
    item: Declaration, source: str, value: FloatArray, pins: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """List the orders of a parameter's dims that its declaration allows."""
    lengths = _lengths(item, source, value)
    orders = {
        tuple(dim.removesuffix("_2") for dim in order)
        for order in permutations(lengths)
        if len(order) == len(item.sizes)
        and all(
            pins.get(size, dim.removesuffix("_2")) == dim.removesuffix("_2")
            and (not size.isdigit() or int(size) == lengths[dim])
            for size, dim in zip(item.sizes, order, strict=True)
        )
    }
    pairs = {order: set(zip(item.sizes, order, strict=True)) for order in sorted(orders)}
    # The same size must be the same dim everywhere.
    return [order for order, pairing in pairs.items() if len(pairing) == len(set(item.sizes))]


def _lengths(item: Declaration, source: str, value: FloatArray) -> dict[str, int]:
    """Return the lengths of a parameter's dims, without ones if fewer axes are declared."""
    lengths = dict(zip(dims_of(source, value.ndim), value.shape, strict=True))
    if len(lengths) == len(item.sizes):
        return lengths
    return {dim: length for dim, length in lengths.items() if length != 1}


def _parameter_variable(
    item: Declaration, sources: Mapping[str, Any], start: StartValues, pins: Mapping[str, str]
) -> ModelVariable:
    source, known = sources.get(item.name), start.variables()
    dims: tuple[str | None, ...] = (None,) * len(item.sizes)
    shape: tuple[int, ...] = (1,) * len(item.sizes)
    if callable(source):
        shape = np.shape(source(start))
        dims = (None,) * len(shape)
    elif source in known:
        value = known[source]
        orders = _orders(item, source, value, pins)
        if len(orders) != 1 and len(item.sizes) == value.ndim:
            raise ValueError(_why_unplaced(item, source, value, is_ambiguous=len(orders) > 1))
        if orders:
            lengths = _lengths(item, source, value)
            shape = tuple(lengths[dim] for dim in orders[0])
            dims = tuple(
                f"{dim}_2" if dim in orders[0][:axis] else dim for axis, dim in enumerate(orders[0])
            )
    return ModelVariable(
        item.name, shape, dims, ((),) * len(shape),
        np.dtype(np.int64 if item.kind == "int" else np.float64), item.kind, item.name,
        1 if item.kind.endswith("ordered") else 0, is_labelled=False,
    )  # fmt: skip


def _why_unplaced(item: Declaration, source: str, value: FloatArray, *, is_ambiguous: bool) -> str:
    how = "in more than one way" if is_ambiguous else "in no way"
    declared = f"{item.kind} {item.name} of sizes [{', '.join(item.sizes)}]"
    all_dims = dims_of(source, value.ndim)
    dims = ", ".join(f"{n} {dim}s" for dim, n in zip(all_dims, value.shape, strict=True))
    return (
        f"`mapping`: {source!r} ({dims}) fits into the program's {declared} {how}. Map a parameter "
        f"with one axis too, such as the weights, or use a callable, {{{item.name!r}: lambda "
        "start: ...}."
    )
