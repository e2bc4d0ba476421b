"""PyTensor graphs as C callbacks that numba compiles once and then reads from disk.

A callback reads the addresses and shapes of its data from a table at run time, so that it is the
same in every process. It is also flat: each node of the graph is compiled once, into one function,
where PyTensor wraps every node and every graph in functions of their own, which LLVM optimises
again at each level.
"""

import hashlib
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from pytensor.configdefaults import config
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import (
    numba_funcify,
    numba_funcify_and_cache_key,
    numba_njit,
    numba_typify,
)
from pytensor.link.utils import fgraph_to_python

from moment_init.compiler_flags import changed_flags
from moment_init.models.kernels import jit_options
from moment_init.notices import changed_filters

__all__ = ["DataTable", "FlatPoint", "GraphCompiler"]

_DOUBLES = types.CPointer(types.double)
_TABLE = types.CPointer(types.uint64)

_SIGNATURES: Mapping[str, Any] = {
    "logp": types.int64(types.uint64, _DOUBLES, _DOUBLES, _DOUBLES, _TABLE),
    "expand": types.int64(types.uint64, types.uint64, _DOUBLES, _DOUBLES, _TABLE),
}
"""What nutpie calls: sizes that it expects, addresses of point, results and table."""

# What is not zero is an error, and nutpie takes the point for a divergence. Codes are nutpie's.
_LOGP = """
def logp(dim, point_, into_, value_, table_):
    if dim != {n_dim}:
        return -1
    point = carray(point_, ({n_dim},))
    into = carray(into_, ({n_dim},))
    table = carray(table_, ({n_words},))
    start = point.ctypes.data
{reads}
    try:
        {call}
    except Exception:
        return 1
    value_[0] = value.item()
{stores}
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
    point = carray(point_, ({n_dim},))
    into = carray(into_, ({n_expanded},))
    table = carray(table_, ({n_words},))
    start = point.ctypes.data
    for k in range({n_dim}):
        into[k] = point[k]
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


@intrinsic
def _at(typing_context: Any, address: Any) -> Any:
    """An integer as a pointer."""

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.get_value_type(types.voidptr)
        return builder.inttoptr(arguments[0], pointer)

    return types.voidptr(address), lower


@dataclass(frozen=True, slots=True)
class FlatPoint:
    """Arrays that lie one after another in a vector.

    Parameters
    ----------
    shapes : tuple of tuple of int
        Their shapes, in order.
    start : int
        Where the first begins.
    """

    shapes: tuple[tuple[int, ...], ...]
    start: int = 0

    @property
    def offsets(self) -> list[int]:
        """Where each array begins.

        Returns
        -------
        list of int
            An offset for each, and the end of the last.
        """
        return list(itertools.accumulate(map(prod, self.shapes), initial=self.start))

    @property
    def end(self) -> int:
        """Where the last array ends.

        Returns
        -------
        int
            The end.
        """
        return self.offsets[-1]

    def reads(self) -> list[str]:
        """Source of the arrays, as views of the vector at the address `start`.

        Returns
        -------
        list of str
            An expression for each.
        """
        return [
            f"carray(at(start + {8 * offset}), {shape}, double)"
            for shape, offset in zip(self.shapes, self.offsets, strict=False)
        ]

    def stores(self) -> str:
        """Source that copies arrays `out_0`, `out_1`, ... into the vector `into`.

        Returns
        -------
        str
            Loops over their elements.
        """
        lines = []
        for number, (shape, offset) in enumerate(zip(self.shapes, self.offsets, strict=False)):
            names = [f"i{axis}" for axis in range(len(shape))]
            position = str(offset)
            for axis, (name, length) in enumerate(zip(names, shape, strict=True)):
                lines.append(f"{_INDENT}{4 * axis * ' '}for {name} in range({length}):")
                position += f" + {name} * {prod(shape[axis + 1 :])}"
            element = f"[{', '.join(names)}]" if names else ".item()"
            lines.append(f"{_INDENT}{4 * len(shape) * ' '}into[{position}] = out_{number}{element}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DataTable:
    """The table of the data that nutpie passes on.

    It has an address for each array, then the number of its elements for each, then the shapes one
    after another, all in words of eight bytes.

    Parameters
    ----------
    variables : tuple of SharedVariable
        The arrays in the order of the table.
    """

    variables: tuple[Any, ...]

    @property
    def n_words(self) -> int:
        """Length of the table.

        Returns
        -------
        int
            Number of words.
        """
        return 2 * len(self.variables) + sum(variable.type.ndim for variable in self.variables)

    def reads(self, used: Sequence[Any]) -> list[str]:
        """Source of arrays as views of the data; `dtype_k` is the type of the k-th.

        Parameters
        ----------
        used : sequence of SharedVariable
            Which.

        Returns
        -------
        list of str
            An expression for each.
        """
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
    """What makes callbacks of the graphs of one model.

    Parameters
    ----------
    point : FlatPoint
        Inputs of the graphs within the point that nutpie gives.
    table : DataTable
        Where the data are.
    """

    point: FlatPoint
    table: DataTable
    _converted: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False)

    def callback(self, kind: str, function: Any, results: FlatPoint) -> Any:
        """The callback of a PyTensor function, from the cache on disk if it is there.

        Parameters
        ----------
        kind : {"logp", "expand"}
            Which of nutpie's callbacks.
        function : pytensor.compile.Function
            A function of the arrays of the point, compiled for numba.
        results : FlatPoint
            Where its results go; for "logp" those after the first, which is a scalar.

        Returns
        -------
        numba.core.ccallback.CFunc
            The callback.
        """
        fgraph, used = function.maker.fgraph, function.get_shared()
        reads = [*self.point.reads(), *self.table.reads(used)]
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
            stores=results.stores(),
        )
        dtypes = {f"dtype_{k}": np.dtype(data.type.dtype) for k, data in enumerate(used)}
        environment = dtypes | {
            "__name__": __name__,  # numba imports the module of what it reads from its cache
            "np": np,
            "double": np.dtype(np.float64),
            "carray": carray,
            "at": _at,
            "graph": self._flat(fgraph),
        }
        key = _cache_key(fgraph, source, dtypes)
        python = compile_numba_function_src(source, kind, environment, {}, cache_key=key)
        with changed_filters():
            # Large constants of a prior: compiled as ever, in every process.
            warnings.filterwarnings(
                "ignore", ".*Cannot cache compiled function", category=numba.NumbaWarning
            )
            return numba.cfunc(_SIGNATURES[kind], cache=key is not None)(python)

    def _flat(self, fgraph: Any) -> Any:
        """A graph as one function for numba.

        Nodes that PyTensor's cache takes for the same are one function, in all graphs of a model,
        if they have as many inputs of the same types: PyTensor leaves these to Numba's signatures,
        but a function such as that of `MakeVector` is written for one number of inputs.
        """

        def convert(op: Any, node: Any = None, **options: Any) -> Any:
            _, word = numba_funcify_and_cache_key(op, node=node, **options)
            key = None if word is None else (word, *_input_types(node))
            if key is not None and key in self._converted:
                return self._converted[key]
            # Without its cache PyTensor wraps nothing around a node.
            with changed_flags(numba__cache=False):
                function = numba_funcify(op, node=node, **options)
            if key is not None:
                self._converted[key] = function
            return function

        python = fgraph_to_python(
            fgraph, op_conversion_fn=convert, type_conversion_fn=numba_typify, fgraph_name="graph"
        )
        # Not inlined, though that compiles faster: an error that inlined code raises within the
        # callback's `try` can end the process (numba 0.68). With the options of our own loops: what
        # numba brings itself is then compiled for both at once.
        return numba_njit(python, **jit_options())


def _input_types(node: Any) -> list[Any]:
    """Data type and number of dimensions of the inputs of a node, as far as they have them."""
    if node is None:
        return []
    inputs = [item.type for item in node.inputs]
    return [(getattr(each, "dtype", None), getattr(each, "ndim", None)) for each in inputs]


def _cache_key(fgraph: Any, source: str, dtypes: Mapping[str, Any]) -> str | None:
    """What the code depends on, in one word; None if nothing is to be cached."""
    if not config.numba__cache:
        return None
    _, graph_key = numba_funcify_and_cache_key(fgraph)
    if graph_key is None:
        return None
    # This file too: it says how graphs become code.
    own = Path(__file__).read_bytes()
    parts = (own, graph_key, source, sorted(map(str, dtypes.items())), config.numba__fastmath)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
