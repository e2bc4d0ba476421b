"""Models compiled for nutpie so that the next process need not compile them.

nutpie's own callbacks hold the addresses and names of one process: numba compiles them, and links
all that they call, anew in every process. Those of `graph_callbacks` are read from disk.
"""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from nutpie import compile_pymc
from pymc.pytensorf import compile as compile_graph
from pytensor.gradient import grad
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph

from moment_init.compiler_flags import changed_flags
from moment_init.models.graph_callbacks import DataTable, FlatPoint, GraphCompiler

__all__ = ["compile_model", "compiling_once"]

_FACTORY = "_compile_pymc_model_numba"
"""nutpie's function that stands aside for `compile_model`."""

_PARTS = (
    _FACTORY,
    "_compute_shapes",
    "_prepare_dims_and_coords",
    "_rv_dict_to_flat_array_wrapper",
    "make_user_data",
)
"""What is used of nutpie beyond what it documents."""

_FIELDS = frozenset(
    {
        "_coords",
        "_n_dim",
        "_shapes",
        "_transform_adapt_args",
        "compiled_expand_func",
        "compiled_logp_func",
        "dims",
        "expand_func",
        "initial_point_func",
        "logp_func",
        "n_expanded",
        "reparameterized_names",
        "shape_info",
        "shared_data",
        "shared_var_keys",
        "user_data",
    }
)
"""Fields of nutpie's compiled model."""

_lock = threading.Lock()
_models: list[pm.Model] = []
_originals: list[Callable[..., Any]] = []


@contextmanager
def compiling_once(model: pm.Model) -> Iterator[None]:
    """Have nutpie compile a model by `compile_model`, for as long as the context lasts.

    Parameters
    ----------
    model : pymc.Model
        The model; all others are compiled by nutpie itself, in any thread.

    Yields
    ------
    None
        Nothing.

    Notes
    -----
    `pymc.sample` takes no compiled model. It is still what samples, with all its arguments. Where
    nutpie is not built as this module expects it, or is given options of numba, the model is
    compiled as ever.
    """
    if not _knows_nutpie():
        yield
        return
    with _lock:
        if not _models:
            _originals.append(getattr(compile_pymc, _FACTORY))
            setattr(compile_pymc, _FACTORY, _choose)
        _models.append(model)
    try:
        yield
    finally:
        with _lock:
            _models[:] = [other for other in _models if other is not model]
            if not _models:
                setattr(compile_pymc, _FACTORY, _originals.pop())


def _choose(model: pm.Model, **options: Any) -> Any:
    """Stand for nutpie's function: ours for our models, its own for others and other options."""
    with _lock:
        is_ours = any(model is own for own in _models)
        original = _originals[-1] if _originals else getattr(compile_pymc, _FACTORY)
    if is_ours and set(options) == {"pymc_initial_point_fn", "var_names"}:
        return compile_model(model, options["pymc_initial_point_fn"], options["var_names"])
    return original(model=model, **options)


def _knows_nutpie() -> bool:
    """Whether nutpie has the parts that are used here."""
    fields = {field.name for field in dataclasses.fields(compile_pymc.CompiledPyMCModel)}
    return fields == _FIELDS and all(hasattr(compile_pymc, name) for name in _PARTS)


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Log density with its gradient, and the variables to store, as functions for numba."""

    names: tuple[str, ...]
    point: FlatPoint
    logp: Any
    stored_names: tuple[str, ...]
    stored: FlatPoint
    expand: Any


def compile_model(
    model: pm.Model,
    initial_point: Callable[[int], Mapping[str, NDArray[np.float64]]],
    var_names: Sequence[str] | None = None,
) -> Any:
    """Compile a model for nutpie.

    Parameters
    ----------
    model : pymc.Model
        The model.
    initial_point : callable
        From a seed to unconstrained values by name, where a chain starts.
    var_names : sequence of str, optional
        Variables to store beside the unconstrained ones; all by default.

    Returns
    -------
    nutpie.compile_pymc.CompiledPyMCModel
        The same as `nutpie.compile_pymc_model` returns, but for its callbacks.
    """
    graphs = _graphs(model, var_names)
    point, stored = graphs.point, graphs.stored
    shared = tuple(dict.fromkeys([*graphs.logp.get_shared(), *graphs.expand.get_shared()]))
    keys = {variable: uuid4().hex for variable in shared}
    data = {keys[variable]: _frozen(variable.get_value()) for variable in shared}
    names = [*graphs.names, *graphs.stored_names]
    shapes = [*point.shapes, *stored.shapes]
    bounds = [*point.offsets[:-1], *stored.offsets]
    slices = [slice(*pair) for pair in itertools.pairwise(bounds)]
    transformed = [
        model.rvs_to_values[variable].name
        for variable in model.free_RVs
        if model.rvs_to_transforms.get(variable) is not None
    ]
    # The length of a dim is a graph as well; there is nothing to gain from compiled code for it.
    with changed_flags(mode="FAST_COMPILE", cxx=""):
        dims, coords = compile_pymc._prepare_dims_and_coords(
            model, (names, slices, shapes), transformed
        )
    compiler = GraphCompiler(point, DataTable(shared))
    return compile_pymc.CompiledPyMCModel(
        _n_dim=point.end,
        dims=dims,
        _coords=coords,
        _shapes=dict(zip(names, shapes, strict=True)),
        compiled_logp_func=compiler.callback("logp", graphs.logp, point),
        compiled_expand_func=compiler.callback("expand", graphs.expand, stored),
        initial_point_func=compile_pymc._rv_dict_to_flat_array_wrapper(
            initial_point, names=list(graphs.names), shapes=list(point.shapes)
        ),
        shared_data=data,
        shared_var_keys=keys,
        user_data=compile_pymc.make_user_data(keys, data),
        n_expanded=stored.end,
        shape_info=(names, slices, shapes),
        logp_func=graphs.logp,
        expand_func=graphs.expand,
        reparameterized_names=transformed,
    )


def _graphs(model: pm.Model, var_names: Sequence[str] | None) -> _Graphs:
    """Functions of the unconstrained values, whose shapes are known and so part of the graphs."""
    with changed_flags(cxx=""):
        computed = compile_pymc._compute_shapes(model)
    shapes = {name: tuple(int(length) for length in shape) for name, shape in computed.items()}
    values = [model.rvs_to_values[variable] for variable in model.free_RVs]
    names = tuple(value.name for value in values)
    inputs = [
        pt.TensorType("float64", shape=shapes[value.name])(name=value.name) for value in values
    ]
    replacements = {
        value: given.astype(value.dtype) for value, given in zip(values, inputs, strict=True)
    }
    rewrites = ["canonicalize", "stabilize"]
    if not model.check_bounds:
        rewrites.append("local_remove_check_parameter")
    logp: Any = rewrite_graph(model.logp(), include=rewrites)
    stored = [
        variable
        for variable in model.unobserved_value_vars
        if variable.name not in names and (var_names is None or variable.name in var_names)
    ]
    slopes: Any = grad(logp, values)
    point = FlatPoint(tuple(shapes[name] for name in names))

    def compiled(outputs: list[Any]) -> Any:
        tensors = [pt.as_tensor(output, allow_xtensor_conversion=True) for output in outputs]
        with model:
            return compile_graph(
                inputs, clone_replace(tensors, replacements), mode="NUMBA", on_unused_input="ignore"
            )

    return _Graphs(
        names=names,
        point=point,
        logp=compiled([logp, *slopes]),
        stored_names=tuple(variable.name for variable in stored),
        stored=FlatPoint(tuple(shapes[variable.name] for variable in stored), point.end),
        expand=compiled(stored),
    )


def _frozen(value: Any) -> NDArray[Any]:
    """A copy in C order that nobody changes: its address goes into the table."""
    copy = np.array(value, order="C", copy=True)
    copy.flags.writeable = False
    return copy
