"""Parameters of a Stan program: read from its text, as a program says what it declares.

The lengths of their axes are names there, ``matrix[D, K] beta``. Parameters with one axis tell
which name stands for the components (``simplex[K] weight``), and so which axis is which elsewhere.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.model_variables import ModelVariable
from moment_init.start_values import DIMS, StartValues

__all__ = ["Declaration", "ParameterCheck", "read_parameters"]

FloatArray = NDArray[np.float64]

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
"""Types with one size and two axes."""

_TOLERANCE = 1e-8
"""Stan's own tolerance for sums and lengths that must be one."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A variable as a program declares it.

    Parameters
    ----------
    name : str
        Its name.
    kind : str
        Its type, such as ``"vector"`` or ``"simplex"``.
    sizes : tuple of str
        Lengths of its axes as they are written, those of an array first.
    lower, upper : float
        Bounds, where they are numbers.
    """

    name: str
    kind: str
    sizes: tuple[str, ...]
    lower: float = -np.inf
    upper: float = np.inf

    def allows(self, value: FloatArray) -> bool:
        """Tell whether a value lies inside of what is declared.

        Parameters
        ----------
        value : numpy.ndarray
            The value.

        Returns
        -------
        bool
            Whether it does, off the bounds.
        """
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
    """Read the parameters of a program.

    Parameters
    ----------
    program : str, path or CmdStanModel
        The program.
    start : StartValues or None
        The estimate, by which the lengths of axes are found; None if only names are wanted.
    mapping : mapping of str to str, callable or None
        What the parameters are.

    Returns
    -------
    variables : dict of str to ModelVariable
        Parameters by name, in the program's order: all that are mapped or have our names.
    others : dict of str to str
        Other declared names, and why they have no initial value.

    Raises
    ------
    ValueError
        For a program without parameters, and if axes cannot be told apart.
    """
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
    sources = {item.name: item.name for item in declared if item.name in DIMS} | dict(mapping)
    pins = _pins(declared, sources, start)
    return {item.name: _variable(item, sources, start, pins) for item in declared}, others


class ParameterCheck:
    """Whether values lie inside of what a program declares.

    Parameters
    ----------
    program : str, path or CmdStanModel
        The program.
    """

    def __init__(self, program: Any) -> None:
        self._declared = {item.name: item for item in _declarations(program)["parameters"]}

    def complaint(self, values: Mapping[str, FloatArray]) -> str | None:
        """Say what is wrong with values.

        Parameters
        ----------
        values : mapping of str to numpy.ndarray
            Values of the parameters, on their constrained scales.

        Returns
        -------
        str or None
            The first complaint; None if there is none. Bounds that are no numbers are not checked.
        """
        for name, value in values.items():
            item = self._declared[name]
            if not item.allows(value):
                shown = np.array2string(value, precision=4, threshold=12, separator=", ")
                rule = f"a {item.kind} of {len(item.sizes)} axes between {item.lower:g} and "
                return (
                    f"the program's parameter {name!r} must start inside of its declaration, "
                    f"{rule}{item.upper:g}; got {shown}"
                ).replace("\n", "")
        return None


def _is_one(values: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(np.abs(values - 1.0) < _TOLERANCE)


def _declarations(program: Any) -> dict[str, tuple[Declaration, ...]]:
    """What each block of a program declares."""
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
    """Text up to the brace that closes the block that starts here."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return text[start:]


def _read(statement: str) -> list[Declaration]:
    """Variables that a statement declares; none if it is no declaration."""
    match = _DECLARATION.fullmatch(statement)
    if match is None:
        return []
    bounds = match["bounds"] or ""
    lower, upper = (re.search(side + _NUMBER, bounds) for side in ("lower", "upper"))
    sizes = _split(match["sizes"])
    own = sizes * 2 if match["kind"] in _SQUARE else sizes
    return [
        Declaration(
            name, match["kind"], (*_split(match["array"]), *_split(array), *own),
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
    """The data model's dim that each size stands for, where parameters tell."""
    known = start.variables()
    pins: dict[str, str] = {}
    for n_axes in (1, 2, 3):  # those with one axis first, as they leave no choice
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
    """Orders of a parameter's dims that its declaration allows."""
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
    # A size that stands twice is one length.
    return [order for order, own in pairs.items() if len(own) == len(set(item.sizes))]


def _lengths(item: Declaration, source: str, value: FloatArray) -> dict[str, int]:
    """Lengths of a parameter's dims; without those of length one where fewer axes are declared."""
    lengths = dict(zip(DIMS[source], value.shape, strict=True))
    if len(lengths) == len(item.sizes):
        return lengths
    return {dim: length for dim, length in lengths.items() if length != 1}


def _variable(
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
    dims = ", ".join(f"{n} {dim}s" for dim, n in zip(DIMS[source], value.shape, strict=True))
    return (
        f"`mapping`: {source!r} ({dims}) fits into the program's {declared} {how}. Map a parameter "
        f"with one axis too, such as the weights, or use a callable, {{{item.name!r}: lambda "
        "start: ...}."
    )
