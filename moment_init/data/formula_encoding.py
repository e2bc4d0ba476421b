"""All that is asked of formulaic: names in a formula, its parts, and the columns of each part.

A name in a formula is a column of the DataFrame, one of formulaic's transforms, or a function or
constant in the caller's scope. Columns are checked for missing values and converted to NumPy's
types before formulaic sees them. A `FormulaPart` encodes new rows as it encoded the first ones.
"""

import ast
import builtins
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.checks import changed_filters, is_dask

if TYPE_CHECKING:
    import pandas

_QUOTED = re.compile(r"`([^`]+)`")
"""A column whose name is not a Python identifier, quoted as in formulas."""

_NUMPY_TYPES = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}
"""Types to which columns of extension types are converted, by the kind of their dtype: formulaic's
transforms are written for NumPy's types."""

_SETTINGS: dict[str, Any] = {"materializer": "pandas", "na_action": "ignore", "output": "pandas"}

_LISTED = 12
"""Number of names that a message lists before it only counts the others."""


class Scope(dict[str, Any]):
    """Functions and constants of the caller that a formula uses.

    This dict can be pickled with modules among its values; they are imported again by name.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle modules by name, and all other values as they are."""
        modules = {name: v.__name__ for name, v in self.items() if isinstance(v, ModuleType)}
        return _restore_scope, ({n: v for n, v in self.items() if n not in modules}, modules)


def _restore_scope(values: dict[str, Any], modules: dict[str, str]) -> Scope:
    return Scope(values | {name: import_module(module) for name, module in modules.items()})


def is_frame(data: Any) -> bool:
    """Tell whether data are a pandas.DataFrame, without importing pandas."""
    return any(
        cls.__name__ == "DataFrame" and cls.__module__.split(".")[0] == "pandas"
        for cls in type(data).__mro__
    )


def require_frame(data: Any, argument: str) -> None:
    """Raise for anything but a pandas.DataFrame."""
    if is_dask(data):
        raise TypeError(
            f"`{argument}` must be a pandas.DataFrame for a formula; got a Dask collection. The "
            "transforms and levels of a formula need all rows. Encode the columns and pass them as "
            f"X and y, or pass `{argument}.compute()`."
        )
    if not is_frame(data):
        raise TypeError(
            f"`{argument}` must be a pandas.DataFrame with the columns that the formula names; got "
            f"{type(data).__name__}. Pass the formula as X and the DataFrame as y."
        )


def names_in(formula: Iterable[Any]) -> tuple[set[str], set[str]]:
    """Find the names in the terms of a formula: columns, and names inside Python expressions."""
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
    """Find the names that an expression reads and does not bind itself."""
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
    """Look up every name of a formula in the columns, the transforms, then the caller's scope."""
    variables, inner = names_in(formula)
    available = set(data.columns)
    rest = inner - available
    # Transforms come before the caller's names: a `scale` of the caller would not store its scale.
    used = Scope({name: scope[name] for name in sorted(rest - set(transforms)) if name in scope})
    known = set(used) | set(transforms) | set(vars(builtins))
    missing = sorted((variables - available) | (rest - known))
    if missing:
        raise ValueError(_missing_message(missing, list(map(str, data.columns))))
    for name, value in used.items():
        if isinstance(value, Sized) and not isinstance(value, str) and len(value) == len(data):
            raise ValueError(
                "`y`, the DataFrame of a formula, must have the columns that the formula names; "
                f"got {name!r} from outside the DataFrame, with one value per row. New rows would "
                "not have it. Add it as a column."
            )
    return tuple(name for name in data.columns if name in variables | inner), used


def _missing_message(missing: list[str], columns: list[str]) -> str:
    near = [match for name in missing for match in get_close_matches(name, columns, n=1)]
    remedy = f"Did you mean {', '.join(map(repr, near))}?" if near else "Rename or add them."
    more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
    return (
        "`y`, the DataFrame of a formula, must have the columns that the formula names; missing "
        f"are {', '.join(map(repr, missing))}. Its columns are "
        f"{', '.join(columns[:_LISTED])}{more}. {remedy}"
    )


def select_columns(
    data: "pandas.DataFrame", columns: Iterable[str], argument: str
) -> "pandas.DataFrame":
    """Select the columns of a formula, as NumPy types and without missing values."""
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
    """Raise for missing values and count them by column; rows are never dropped silently."""
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
    """Convert an extension type to a NumPy type; keep the categories that occur."""
    import pandas

    dtype = column.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        return column.cat.remove_unused_categories()  # they would be columns of zeros
    if isinstance(dtype, np.dtype):
        return column
    kind = getattr(dtype, "kind", "O")
    return column.astype(_NUMPY_TYPES.get(kind, object))


_EXAMPLE = "'y ~ a + b | g'"

_STYLING = re.compile(r"\x1b\[[0-9;]*m")
"""Colour codes in the messages of formulaic."""


@dataclass(frozen=True, slots=True, eq=False)
class FormulaPart:
    """One part of a formula, with the levels, knots, centres and scales of its data."""

    spec: Any  # the terms, their columns and the state of their transforms
    variables: tuple[str, ...]  # columns of the data that the terms use
    columns_by_term: dict[str, tuple[str, ...]]  # names of the columns, except the intercept

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns except the intercept."""
        return tuple(name for columns in self.columns_by_term.values() for name in columns)

    @property
    def levels(self) -> dict[str, tuple[Any, ...]]:
        """Levels of categorical factors."""
        states = {str(factor): state for factor, (_, state) in self.spec.encoder_state.items()}
        return {
            factor: tuple(state["categories"])
            for factor, state in states.items()
            if "categories" in state
        }

    @property
    def record(self) -> dict[str, Any]:
        """What `FormulaPart.of_record` needs to encode new rows, without the spec itself."""
        return {
            "formula": str(self.spec.formula),
            "variables": self.variables,
            "transforms": dict(self.spec.transform_state),
            "levels": {factor: list(levels) for factor, levels in self.levels.items()},
            "columns": self.columns_by_term,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "FormulaPart":
        """Rebuild a part from its record."""
        from formulaic import ModelSpec
        from formulaic.parser.types import Factor

        kind = Factor.Kind.CATEGORICAL
        spec = ModelSpec(
            formula=_parse(record["formula"], ()),
            transform_state=record["transforms"],
            encoder_state={
                factor: (kind, {"categories": levels})
                for factor, levels in record["levels"].items()
            },
            **_SETTINGS,
        )
        columns = {term: tuple(names) for term, names in record["columns"].items()}
        return cls(spec, tuple(record["variables"]), columns)

    def encode(
        self, data: "pandas.DataFrame", scope: Mapping[str, Any], argument: str
    ) -> "pandas.DataFrame":
        """Encode rows in the same way as the data from which the part was fitted."""
        frame = select_columns(data, self.variables, argument)
        self._require_seen_levels(frame, argument)
        return _materialise(self.spec, frame, scope, argument)[0]

    def _require_seen_levels(self, frame: "pandas.DataFrame", argument: str) -> None:
        """Raise for levels that the fit has not seen: they would be coded as the reference."""
        for factor, levels in self.levels.items():
            name = self.column_of(factor)
            if name is None:
                continue
            is_seen = frame[name].isin(levels)
            if not is_seen.all():
                unseen = ", ".join(sorted(map(repr, frame[name][~is_seen].unique())))
                raise ValueError(
                    f"`{argument}` must have levels that the fit has seen; got {unseen} in column "
                    f"{name!r} ({int((~is_seen).sum())} rows), which has "
                    f"{', '.join(map(repr, levels))}. Drop such rows, or fit again with them."
                )

    def column_of(self, factor: str) -> str | None:
        """Return the column whose values are the levels of a factor, if there is one."""
        if factor in self.variables:
            return factor
        named = [
            name for name in self.variables if re.match(rf"C\(`?{re.escape(name)}`?\s*[,)]", factor)
        ]
        return named[0] if named else None


def parse_formula(text: str, columns: Sequence[str]) -> tuple[Any, Any, Any]:
    """Split a formula into its response, its inputs and its gating covariates."""
    parsed = _parse(text, columns)
    response, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
    if response is None or isinstance(response, tuple) or right is None:
        raise ValueError(
            f"`X` must be a formula with a response left of '~', such as {_EXAMPLE}; got "
            f"{text!r}. Put the name of the response first, or several as in 'y + z ~ a'."
        )
    parts = right if isinstance(right, tuple) else (right,)
    if len(parts) > 2:
        raise ValueError(
            f"`X` must be a formula with at most one bar, such as {_EXAMPLE}; got {text!r}. Put "
            "all gating covariates right of one bar, and pass groups as the argument `groups`."
        )
    for part in parts:
        _require_intercept(part, text)
    if _has_intercept_only(parts[0]):
        raise ValueError(
            f"`X` must be a formula with an input right of '~', such as {_EXAMPLE}; got {text!r}. "
            "Name a column."
        )
    gate = None if len(parts) == 1 or _has_intercept_only(parts[1]) else parts[1]
    return response, parts[0], gate


def parse_expression(text: str, argument: str, columns: Sequence[str]) -> Any:
    """Parse an argument that is the name of a column or an expression of columns."""
    quoted = f"0 + `{text}`" if text in columns else f"0 + {{{text}}}"
    return _parse(quoted, (), argument=argument, expression=text)


def fit_part(
    formula: Any, data: "pandas.DataFrame", scope: Mapping[str, Any], argument: str = "y"
) -> tuple[FormulaPart, "pandas.DataFrame", Scope]:
    """Fit a part to its data, encode the data, and return the caller's names that it uses."""
    from formulaic import ModelSpec
    from formulaic.transforms import TRANSFORMS

    variables, used = resolve_names(formula, data, scope, TRANSFORMS)
    frame = select_columns(data, variables, argument)
    _require_plain_types(formula, frame, argument)
    spec = ModelSpec(formula=formula, **_SETTINGS)
    encoded, fitted = _materialise(spec, frame, used, argument)
    return FormulaPart(fitted, variables, _columns_by_term(fitted)), encoded, used


def _columns_by_term(spec: Any) -> dict[str, tuple[str, ...]]:
    return {
        str(row.term): tuple(map(str, row.columns))
        for row in spec.structure
        if not _is_intercept(row.term)
    }


def _parse(
    text: str, columns: Sequence[str], *, argument: str = "X", expression: str | None = None
) -> Any:
    try:
        from formulaic import Formula
        from formulaic.errors import FormulaicError
    except ImportError as error:
        raise ImportError(
            "`X` must be an array if the package formulaic is not installed; got a formula. "
            "Run `pip install 'moment-init[formula]'`, or pass arrays."
        ) from error
    # formulaic expands `.` to the columns under this name
    context = {"__formulaic_variables_available__": list(columns)}
    try:
        formula = Formula.from_spec(text, context=context)
        _ = [names_in(part) for part in _parts(formula)]  # expressions are parsed here
    except (FormulaicError, SyntaxError) as error:
        expected = "a formula" if expression is None else "a column or an expression of columns"
        raise ValueError(
            f"`{argument}` must be {expected}; got {expression or text!r}: {_first_line(error)} "
            "See https://matthewwardrop.github.io/formulaic for the grammar of formulas."
        ) from error
    return formula


def _parts(formula: Any) -> Iterable[Any]:
    """List all parts of a parsed formula."""
    if not hasattr(formula, "rhs"):
        return [formula]
    sides = (getattr(formula, "lhs", ()), formula.rhs)
    return [part for side in sides for part in (side if isinstance(side, tuple) else (side,))]


def _first_line(error: BaseException) -> str:
    line = _STYLING.sub("", str(error)).strip().split("\n")[0]
    return line if line.endswith(".") else f"{line}."


def _is_intercept(term: Any) -> bool:
    return str(term) == "1"


def _has_intercept_only(part: Any) -> bool:
    return all(map(_is_intercept, part))


def _require_intercept(part: Any, text: str) -> None:
    if not any(map(_is_intercept, part)):
        raise ValueError(
            f"`X` must be a formula with an intercept; got {text!r}. Every component and gate has "
            "a bias (`biases`, `gate_biases`). Leave out '0 +' or '- 1'. Centre the columns for "
            "biases near zero, or use shared='bias' for one bias of all components."
        )


def _materialise(
    spec: Any, frame: "pandas.DataFrame", scope: Mapping[str, Any], argument: str
) -> tuple["pandas.DataFrame", Any]:
    """Encode the columns of a part except the intercept; also return the spec with its state."""
    import pandas
    from formulaic.errors import DataMismatchWarning, FormulaicError

    try:
        with changed_filters():
            warnings.simplefilter("error", DataMismatchWarning)
            matrix = spec.get_model_matrix(frame, context=dict(scope))
    except (FormulaicError, DataMismatchWarning, ValueError, TypeError) as error:
        raise ValueError(
            f"`{argument}` must have values for which the formula is defined; {_first_line(error)} "
            "Change the formula or these values."
        ) from error
    fitted = matrix.model_spec
    _require_columns(matrix, fitted, argument)
    names = [name for columns in _columns_by_term(fitted).values() for name in columns]
    keep = [matrix.columns.get_loc(name) for name in names]
    values = matrix.iloc[:, keep].to_numpy(dtype=np.float64, na_value=np.nan)
    return pandas.DataFrame(values, columns=names), fitted


def _require_plain_types(formula: Any, frame: "pandas.DataFrame", argument: str) -> None:
    """Raise for columns of dates, durations or complex numbers that are terms on their own."""
    factors = [factor for term in formula for factor in term.factors]
    names = sorted({factor.expr for factor in factors if factor.eval_method.value == "lookup"})
    wrong = [f"{name} ({frame[name].dtype})" for name in names if frame[name].dtype.kind in "mMc"]
    if wrong:
        raise TypeError(
            f"`{argument}` must have real numbers or labels in the columns of the formula; got "
            f"{', '.join(wrong)}. Convert them, as in '{{day.dt.dayofyear}}'."
        )


def _require_columns(matrix: Any, spec: Any, argument: str) -> None:
    """Raise for columns that share a name or are not real numbers."""
    if matrix.shape[1] != len(spec.column_names):
        raise ValueError(
            f"`{argument}` must have columns for which the terms have distinct names; got "
            f"{', '.join(spec.column_names)}. Rename the columns that occur twice."
        )
    wrong = [
        f"{name} ({dtype})" for name, dtype in matrix.dtypes.items() if dtype.kind not in "biuf"
    ]
    if wrong:
        raise TypeError(
            f"`{argument}` must give terms that are real numbers or categories; got "
            f"{', '.join(wrong)}. Convert them in the formula or beforehand."
        )
