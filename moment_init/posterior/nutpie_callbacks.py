"""Models compiled for nutpie so that later processes read the compiled code from disk.

nutpie's own callbacks contain addresses and names of one process, so numba compiles them, and links
everything that they call, again in every process. `GraphCompiler` turns PyTensor graphs into C
callbacks that read the addresses and shapes of their data from a table at run time. They are the
same in every process, and numba's cache on disk can serve them. They are also flat: each node of
the graph is compiled once, into one function, while PyTensor wraps every node and every graph in
functions of their own, which LLVM optimises again at each level.

`compile_model` builds nutpie's compiled model from these callbacks, and `compiling_once` makes
`pymc.sample` use it.
"""

import dataclasses
import hashlib
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any
from uuid import uuid4

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray
from nutpie import compile_pymc
from pymc.pytensorf import compile as compile_graph
from pytensor.compile.sharedvalue import shared
from pytensor.configdefaults import config
from pytensor.gradient import grad
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import graph_inputs
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import (
    numba_funcify,
    numba_funcify_and_cache_key,
    numba_njit,
    numba_typify,
)
from pytensor.link.utils import fgraph_to_python
from pytensor.tensor.variable import TensorConstant

from moment_init.checks import changed_filters
from moment_init.families.compiling import loop, register_scalars
from moment_init.models.ops import JIT_OPTIONS
from moment_init.posterior.mode import PosteriorMode
from moment_init.posterior.model_variables import changed_flags

_DOUBLES = types.CPointer(types.double)
_TABLE = types.CPointer(types.uint64)

_SIGNATURES: Mapping[str, Any] = {
    "logp": types.int64(types.uint64, _DOUBLES, _DOUBLES, _DOUBLES, _TABLE),
    "expand": types.int64(types.uint64, types.uint64, _DOUBLES, _DOUBLES, _TABLE),
}
"""Signatures that nutpie calls: expected sizes, then addresses of point, results and table."""

# A return code other than zero is an error, which nutpie treats as a divergence; nutpie's codes.
_LOGP = """
def logp(dim, point_, into_, value_, table_):
    if dim != {n_dim}:
        return -1
    table = carray(table_, ({n_words},))
    into, slopes = carray(into_, ({n_dim},)), np.empty({n_dim})
    move({centre}, {transposed}, carray(point_, ({n_dim},)), into)
    start = into.ctypes.data
{reads}
    try:
        {call}
    except Exception:
        return 1
    value_[0] = value.item()
{stores}
    turn({root}, slopes, into)
    for k in range({n_dim}):
        if not np.isfinite(into[k]):
            return 3
    if not np.isfinite(value_[0]):
        return 4
    return 0
"""

_EXPAND = """
def expand(dim, expanded, point_, into_, table_):
    if dim != {n_dim} or expanded != {n_expanded}:
        return -1
    into = carray(into_, ({n_expanded},))
    table = carray(table_, ({n_words},))
    move({centre}, {transposed}, carray(point_, ({n_dim},)), into)
    start = into.ctypes.data
{reads}
    try:
        {call}
    except Exception:
        return -2
{stores}
    return 0
"""

_SOURCES: Mapping[str, str] = {"logp": _LOGP, "expand": _EXPAND}

_INDENT = 4 * " "


def _move(centre: Any, transposed: Any, whitened: Any, point: Any) -> None:
    """Compute the unconstrained values from nutpie's whitened ones."""
    for i in range(centre.shape[0]):
        point[i] = centre[i]
    _add_rows(transposed, whitened, point)


def _turn(root: Any, slopes: Any, into: Any) -> None:
    """Compute the gradient in the whitened values from that in the unconstrained ones."""
    for i in range(root.shape[0]):
        into[i] = 0.0
    _add_rows(root, slopes, into)


@loop
def _add_rows(matrix: Any, factors: Any, total: Any) -> None:
    """Add the rows of a matrix, each times its factor."""
    for k in range(matrix.shape[0]):
        for i in range(matrix.shape[1]):
            total[i] += matrix[k, i] * factors[k]


@intrinsic
def _at(typing_context: Any, address: Any) -> Any:
    """Convert an integer to a pointer."""

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.get_value_type(types.voidptr)
        return builder.inttoptr(arguments[0], pointer)

    return types.voidptr(address), lower


@dataclass(frozen=True, slots=True)
class FlatPoint:
    """Arrays that lie one after another in a vector."""

    shapes: tuple[tuple[int, ...], ...]  # shapes of the arrays, in order
    start: int = 0  # position of the first array

    @property
    def offsets(self) -> list[int]:
        """Start of each array, and the end of the last."""
        return list(itertools.accumulate(map(prod, self.shapes), initial=self.start))

    @property
    def end(self) -> int:
        """End of the last array."""
        return self.offsets[-1]

    def reads(self) -> list[str]:
        """Return the source of the arrays, as views of the vector at the address `start`."""
        return [
            f"carray(at(start + {8 * offset}), {shape}, double)"
            for shape, offset in zip(self.shapes, self.offsets, strict=False)
        ]

    def stores(self, vector: str) -> str:
        """Return the source that copies the arrays `out_0`, `out_1`, ... into a vector."""
        lines = []
        for number, (shape, offset) in enumerate(zip(self.shapes, self.offsets, strict=False)):
            names = [f"i{axis}" for axis in range(len(shape))]
            position = str(offset)
            for axis, (name, length) in enumerate(zip(names, shape, strict=True)):
                lines.append(f"{_INDENT}{4 * axis * ' '}for {name} in range({length}):")
                position += f" + {name} * {prod(shape[axis + 1 :])}"
            element = f"[{', '.join(names)}]" if names else ".item()"
            lines.append(
                f"{_INDENT}{4 * len(shape) * ' '}{vector}[{position}] = out_{number}{element}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DataTable:
    """The table of data that nutpie passes to the callbacks.

    It contains the address of each array, then the number of elements of each, then all shapes, in
    words of eight bytes.
    """

    variables: tuple[Any, ...]  # the arrays, in the order of the table

    @property
    def n_words(self) -> int:
        """Length of the table."""
        return 2 * len(self.variables) + sum(variable.type.ndim for variable in self.variables)

    def reads(self, used: Sequence[Any]) -> list[str]:
        """Return the source of arrays as views of the data; the k-th has type `dtype_k`."""
        places, word = {}, 2 * len(self.variables)
        for position, variable in enumerate(self.variables):
            places[variable] = position, range(word, word + variable.type.ndim)
            word += variable.type.ndim
        expressions = []
        for k, variable in enumerate(used):
            position, words = places[variable]
            shape = "".join(f"table[{at}], " for at in words)
            expressions.append(f"carray(at(table[{position}]), ({shape}), dtype_{k})")
        return expressions


@dataclass(slots=True)
class GraphCompiler:
    """Compiler of the graphs of one model to callbacks."""

    point: FlatPoint  # inputs of the graphs, within the unconstrained values
    table: DataTable  # data of the graphs
    whitening: tuple[Any, ...]  # the centre, L and L', in the table
    _converted: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False)

    def callback(self, kind: str, function: Any, results: FlatPoint) -> Any:
        """Return the callback of a PyTensor function, from the cache on disk if possible."""
        fgraph, used = function.maker.fgraph, [*self.whitening, *function.get_shared()]
        centre, root, transposed, *data = self.table.reads(used)
        reads = [*self.point.reads(), *data]
        inputs = [f"in_{k}" for k in range(len(reads))]
        outputs = [f"out_{k}" for k in range(len(results.shapes))]
        if kind == "logp":
            outputs.insert(0, "value")
        source = _SOURCES[kind].format(
            n_dim=self.point.end,
            n_expanded=results.end,
            n_words=self.table.n_words,
            reads="\n".join(
                f"{_INDENT}{name} = {read}" for name, read in zip(inputs, reads, strict=True)
            ),
            call=f"{', '.join(outputs)}, = graph({', '.join(inputs)})" if outputs else "pass",
            stores=results.stores("slopes" if kind == "logp" else "into"),
            centre=centre,
            root=root,
            transposed=transposed,
        )
        dtypes = {f"dtype_{k}": np.dtype(item.type.dtype) for k, item in enumerate(used)}
        environment = dtypes | {
            "__name__": __name__,  # numba imports this module when it reads its cache
            "np": np,
            "double": np.dtype(np.float64),
            "carray": carray,
            "at": _at,
            "move": numba_njit(_move, **JIT_OPTIONS),
            "turn": numba_njit(_turn, **JIT_OPTIONS),
            "graph": self._flat(fgraph),
        }
        key = _cache_key(fgraph, source, dtypes)
        python = compile_numba_function_src(source, kind, environment, {}, cache_key=key)
        with changed_filters():
            # Large constants of a prior cannot be cached and are compiled in every process.
            warnings.filterwarnings(
                "ignore", ".*Cannot cache compiled function", category=numba.NumbaWarning
            )
            return numba.cfunc(_SIGNATURES[kind], cache=key is not None)(python)

    def _flat(self, fgraph: Any) -> Any:
        """Compile a graph as one function.

        Nodes with the same key in PyTensor's cache share one function, in all graphs of a model, if
        the number and types of their inputs agree. PyTensor leaves the inputs to Numba's
        signatures, but some functions, such as `MakeVector`'s, are written for one number of them.
        """

        def convert(op: Any, node: Any = None, **options: Any) -> Any:
            _, word = numba_funcify_and_cache_key(op, node=node, **options)
            key = None if word is None else (word, *_input_types(node))
            if key is not None and key in self._converted:
                return self._converted[key]
            # With its cache off, PyTensor does not wrap the function of a node.
            with changed_flags(numba__cache=False):
                function = numba_funcify(op, node=node, **options)
            if key is not None:
                self._converted[key] = function
            return function

        python = fgraph_to_python(
            fgraph, op_conversion_fn=convert, type_conversion_fn=numba_typify, fgraph_name="graph"
        )
        # Not inlined, although that compiles faster: an error in inlined code within the callback's
        # `try` can end the process (numba 0.68). With the same options as our loops, so that numba
        # compiles its own functions once for both.
        return numba_njit(python, **JIT_OPTIONS)


def _input_types(node: Any) -> list[Any]:
    """Return the dtype and number of dimensions of a node's inputs, None where undefined."""
    if node is None:
        return []
    inputs = [item.type for item in node.inputs]
    return [(getattr(kind, "dtype", None), getattr(kind, "ndim", None)) for kind in inputs]


def _cache_key(fgraph: Any, source: str, dtypes: Mapping[str, Any]) -> str | None:
    """Return a hash of everything that the code depends on; None if it is not to be cached."""
    if not config.numba__cache:
        return None
    _, graph_key = numba_funcify_and_cache_key(fgraph)
    if graph_key is None:
        return None
    # This file is part of the key, because it determines how graphs become code.
    file = Path(__file__).read_bytes()
    parts = (file, graph_key, source, sorted(map(str, dtypes.items())), config.numba__fastmath)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


_FACTORY = "_compile_pymc_model_numba"
"""The nutpie function that `compile_model` replaces."""

_PARTS = (
    _FACTORY,
    "_compute_shapes",
    "_prepare_dims_and_coords",
    "make_user_data",
)
"""Undocumented functions of nutpie that this module uses."""

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
"""Fields of nutpie's compiled model that this module expects."""

_patch_lock = threading.Lock()
_modes: list[PosteriorMode] = []
_originals: list[Callable[..., Any]] = []


@contextmanager
def compiling_once(mode: PosteriorMode) -> Iterator[None]:
    """Make nutpie compile the model of a mode with `compile_model` within the context.

    `pymc.sample` accepts no compiled model, so nutpie's function is replaced instead. If nutpie's
    internals are not as expected, or other compile options are given, nutpie compiles the model.
    """
    if not knows_nutpie():
        yield
        return
    with _patch_lock:
        if not _modes:
            _originals.append(getattr(compile_pymc, _FACTORY))
            setattr(compile_pymc, _FACTORY, _choose)
        _modes.append(mode)
    try:
        yield
    finally:
        with _patch_lock:
            _modes[:] = [other for other in _modes if other is not mode]
            if not _modes:
                setattr(compile_pymc, _FACTORY, _originals.pop())


def _choose(model: pm.Model, **options: Any) -> Any:
    """Compile our models with `compile_model`, other models and options with nutpie."""
    with _patch_lock:
        mode = next((mode for mode in _modes if mode.log_posterior.model is model), None)
        original = _originals[-1] if _originals else getattr(compile_pymc, _FACTORY)
    if mode is not None and set(options) == {"pymc_initial_point_fn", "var_names"}:
        return compile_model(mode, options["pymc_initial_point_fn"], options["var_names"])
    return original(model=model, **options)


def knows_nutpie() -> bool:
    """Whether nutpie has the functions and fields that this module uses."""
    fields = {field.name for field in dataclasses.fields(compile_pymc.CompiledPyMCModel)}
    return fields == _FIELDS and all(hasattr(compile_pymc, name) for name in _PARTS)


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Log density with its gradient, and the variables to store, as functions for numba."""

    names: tuple[str, ...]  # names of the unconstrained values
    point: FlatPoint  # layout of the unconstrained values
    logp: Any
    stored_names: tuple[str, ...]
    stored: FlatPoint  # layout of the stored variables, after the unconstrained values
    expand: Any


def compile_model(
    mode: PosteriorMode,
    initial_point: Callable[[int], Mapping[str, NDArray[np.float64]]],
    var_names: Sequence[str] | None = None,
) -> Any:
    """Compile the model of a mode for nutpie, in coordinates in which the mode is the origin.

    Near the mode the posterior has unit covariance in these coordinates.
    """
    model = mode.log_posterior.model
    register_scalars()
    graphs = _graphs(model, var_names)
    point, stored = graphs.point, graphs.stored
    whitening = tuple(map(_shared, (mode.point, mode.root, mode.root.T)))
    used = (*whitening, *graphs.logp.get_shared(), *graphs.expand.get_shared())
    variables = tuple(dict.fromkeys(used))
    keys = {variable: uuid4().hex for variable in variables}
    data = {keys[variable]: _frozen(variable.get_value()) for variable in variables}
    names = [*graphs.names, *graphs.stored_names]
    shapes = [*point.shapes, *stored.shapes]
    bounds = [*point.offsets[:-1], *stored.offsets]
    slices = [slice(*pair) for pair in itertools.pairwise(bounds)]
    transformed = [
        model.rvs_to_values[variable].name
        for variable in model.free_RVs
        if model.rvs_to_transforms.get(variable) is not None
    ]
    # The length of a dim is a graph too, and not worth compiling.
    with changed_flags(mode="FAST_COMPILE", cxx=""):
        dims, coords = compile_pymc._prepare_dims_and_coords(
            model, (names, slices, shapes), transformed
        )
    compiler = GraphCompiler(point, DataTable(variables), whitening)
    return compile_pymc.CompiledPyMCModel(
        _n_dim=point.end,
        dims=dims,
        _coords=coords,
        _shapes=dict(zip(names, shapes, strict=True)),
        compiled_logp_func=compiler.callback("logp", graphs.logp, point),
        compiled_expand_func=compiler.callback("expand", graphs.expand, stored),
        initial_point_func=lambda seed: mode.whiten(
            np.concatenate([np.ravel(initial_point(seed)[name]) for name in graphs.names])
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
    """Build the functions of the unconstrained values, with static shapes."""
    with changed_flags(cxx=""):
        computed = compile_pymc._compute_shapes(model)
    shapes = {name: tuple(int(length) for length in shape) for name, shape in computed.items()}
    values = [model.rvs_to_values[variable] for variable in model.free_RVs]
    names = tuple(value.name for value in values)
    inputs = [
        pt.TensorType("float64", shape=shapes[value.name])(name=value.name) for value in values
    ]
    replacements = {
        value: variable.astype(value.dtype) for value, variable in zip(values, inputs, strict=True)
    }
    rewrites = ["canonicalize", "stabilize"]
    if not model.check_bounds:
        rewrites.append("local_remove_check_parameter")
    kept = [
        variable
        for variable in model.unobserved_value_vars
        if variable.name not in names and (var_names is None or variable.name in var_names)
    ]
    graphs = [model.logp(), *kept]
    # Constants would be a part of the code, which then could not serve other data.
    constants: dict[Any, Any] = {
        item: _shared(item.data)
        for item in graph_inputs(graphs)
        if isinstance(item, TensorConstant) and item.name is not None
    }
    height: Any
    height, *stored = clone_replace(graphs, constants)
    logp: Any = rewrite_graph(height, include=rewrites)
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
        stored_names=tuple(variable.name for variable in kept),
        stored=FlatPoint(tuple(shapes[variable.name] for variable in kept), point.end),
        expand=compiled(stored),
    )


def _shared(value: NDArray[np.float64]) -> Any:
    """Make a variable of the table."""
    return shared(np.ascontiguousarray(value))


def _frozen(value: Any) -> NDArray[Any]:
    """Make a read-only copy in C order, whose address can go into the table."""
    copy = np.array(value, order="C", copy=True)
    copy.flags.writeable = False
    return copy
