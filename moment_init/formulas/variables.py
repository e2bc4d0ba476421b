"""The names in a formula: columns of a DataFrame, and what the caller's scope has for the rest."""

import ast
import builtins
import re
from collections.abc import Iterable, Mapping, Sized
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.row_sources.detection import is_elsewhere

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Scope",
    "is_frame",
    "names_in",
    "require_frame",
    "resolve_names",
    "select_columns",
]

_QUOTED = re.compile(r"`([^`]+)`")
"""A column whose name is not an identifier, as formulas write it."""

_NUMPY_TYPES = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}
"""What a column of an extension type becomes, by the kind of its dtype: formulaic's transforms are
written for NumPy's own."""

_LISTED = 12
"""Names that a message lists before it says how many more there are."""


class Scope(dict[str, Any]):
    """Functions and constants of the caller that a formula names.

    It is a dict that can be pickled with modules among its values, which are imported again.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Modules by name, the rest as it is."""
        modules = {name: it.__name__ for name, it in self.items() if isinstance(it, ModuleType)}
        return _restore_scope, ({n: it for n, it in self.items() if n not in modules}, modules)


def _restore_scope(values: dict[str, Any], modules: dict[str, str]) -> Scope:
    return Scope(values | {name: import_module(module) for name, module in modules.items()})


def is_frame(data: Any) -> bool:
    """Tell a DataFrame of pandas from anything else, without an import of pandas.

    Parameters
    ----------
    data : object
        Anything.

    Returns
    -------
    bool
        Whether it is one.
    """
    return any(
        cls.__name__ == "DataFrame" and cls.__module__.split(".")[0] == "pandas"
        for cls in type(data).__mro__
    )


def require_frame(data: Any, argument: str) -> None:
    """Raise for anything but a DataFrame of pandas.

    Parameters
    ----------
    data : object
        What was given.
    argument : str
        What the caller calls it.

    Raises
    ------
    TypeError
        If it is none.
    """
    if is_elsewhere(data):
        raise TypeError(
            f"`{argument}` must be a pandas.DataFrame for a formula, whose transforms and levels "
            "need all rows; got a Dask collection. Select or encode its columns and pass them as X "
            "and y, or pass `.compute()` of it."
        )
    if not is_frame(data):
        raise TypeError(
            f"`{argument}` must be a pandas.DataFrame with the columns that the formula names; got "
            f"{type(data).__name__}. Pass the formula and the DataFrame in the places of X and y."
        )


def names_in(formula: Iterable[Any]) -> tuple[set[str], set[str]]:
    """Names in the terms of a formula.

    Parameters
    ----------
    formula : iterable of formulaic.parser.types.Term
        The terms.

    Returns
    -------
    variables : set of str
        Names that stand alone, and quoted ones: they can only be columns.
    inner : set of str
        Names inside expressions: columns, functions or constants.
    """
    variables: set[str] = set()
    inner: set[str] = set()
    for factor in {factor for term in formula for factor in term.factors}:
        kind = factor.eval_method.value
        if kind == "lookup":
            variables.add(factor.expr)
        elif kind == "python":
            variables |= set(_QUOTED.findall(factor.expr))
            inner |= _python_names(_QUOTED.sub("None", factor.expr))
    return variables, inner


def _python_names(expression: str) -> set[str]:
    """Names that an expression reads and does not bind itself."""
    nodes = list(ast.walk(ast.parse(expression, mode="eval")))
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - bound


def resolve_names(
    formula: Iterable[Any],
    data: "pandas.DataFrame",
    scope: Mapping[str, Any],
    transforms: Mapping[str, Any],
) -> tuple[tuple[str, ...], Scope]:
    """Find every name of a formula: among the columns, the transforms, then the caller's names.

    Parameters
    ----------
    formula : iterable of formulaic.parser.types.Term
        The terms.
    data : pandas.DataFrame
        The data.
    scope : mapping of str to object
        What the caller has.
    transforms : mapping of str to object
        What formulas have without a caller.

    Returns
    -------
    columns : tuple of str
        Columns that the formula uses, in the order of the data.
    used : Scope
        What it uses of the caller's scope.

    Raises
    ------
    ValueError
        For names that are nowhere, and rows that are not in the data.
    """
    variables, inner = names_in(formula)
    available = set(data.columns)
    rest = inner - available
    # Formulas' own names come first: a `scale` of the caller's would not remember its scale.
    used = Scope({name: scope[name] for name in sorted(rest - set(transforms)) if name in scope})
    known = set(used) | set(transforms) | set(vars(builtins))
    missing = sorted((variables - available) | (rest - known))
    if missing:
        raise ValueError(_missing_message(missing, list(map(str, data.columns))))
    for name, value in used.items():
        if isinstance(value, Sized) and not isinstance(value, str) and len(value) == len(data):
            raise ValueError(
                f"`y`, the DataFrame of a formula, must have the columns that it names; got "
                f"{name!r} from outside, with a value a row, which new rows would not have. Add it "
                "as a column."
            )
    return tuple(name for name in data.columns if name in variables | inner), used


def _missing_message(missing: list[str], columns: list[str]) -> str:
    near = [match for name in missing for match in get_close_matches(name, columns, n=1)]
    remedy = f"Did you mean {', '.join(map(repr, near))}?" if near else "Rename or add them."
    more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
    return (
        "`y`, the DataFrame of a formula, must have the columns that it names; missing are "
        f"{', '.join(map(repr, missing))}, there are {', '.join(columns[:_LISTED])}{more}. {remedy}"
    )


def select_columns(
    data: "pandas.DataFrame", columns: Iterable[str], argument: str
) -> "pandas.DataFrame":
    """Take the columns of a formula, of plain types and without missing values.

    Parameters
    ----------
    data : pandas.DataFrame
        The data.
    columns : iterable of str
        Names of the columns.
    argument : str
        What the caller calls the data, for the messages.

    Returns
    -------
    pandas.DataFrame
        The columns, rows numbered from zero.

    Raises
    ------
    ValueError
        For columns that are not there or there twice, and missing values, which are counted.
    """
    names = list(dict.fromkeys(columns))
    missing = [name for name in names if name not in data.columns]
    if missing:
        raise ValueError(
            f"`{argument}` must have the columns that the formula names; missing are "
            f"{', '.join(map(repr, missing))}. Add them, or pass encoded rows as an array."
        )
    chosen = data[names].reset_index(drop=True)
    if chosen.shape[1] != len(names):
        raise ValueError(
            f"`{argument}` must have distinct column names; got some of {names} more than once. "
            "Rename or drop the duplicates."
        )
    _require_complete(chosen, argument)
    return chosen.assign(**{name: _plain(chosen[name]) for name in names})


def _require_complete(frame: "pandas.DataFrame", argument: str) -> None:
    """Rows are never dropped silently: count what is missing, by column."""
    missing = frame.isna()
    counts = {name: int(count) for name, count in missing.sum().items() if count}
    if counts:
        n_rows = int(missing.any(axis=1).sum())
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        raise ValueError(
            f"`{argument}` must have no missing values in the columns of the formula; got them in "
            f"{n_rows} of {len(frame)} rows: {listed}. Impute them, or pass "
            f"`{argument}.dropna(subset={list(counts)})`."
        )


def _plain(column: "pandas.Series[Any]") -> "pandas.Series[Any]":
    """A column of an extension type as one of NumPy's; categories stay, if rows have them."""
    import pandas

    dtype = column.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        return column.cat.remove_unused_categories()  # they would be columns of zeros
    if isinstance(dtype, np.dtype):
        return column
    kind = getattr(dtype, "kind", "O")
    return column.astype(_NUMPY_TYPES.get(kind, object))
