"""What formulaic does for a formula: its parts, and the columns that they stand for."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.formulas.variables import Scope, names_in, resolve_names, select_columns
from moment_init.notices import changed_filters

if TYPE_CHECKING:
    import pandas

__all__ = ["FormulaPart", "fit_part", "parse_expression", "parse_formula"]

FloatArray = NDArray[np.float64]

_EXAMPLE = "'y ~ a + b | g'"

_STYLING = re.compile(r"\x1b\[[0-9;]*m")
"""Colours that formulaic puts into messages."""


@dataclass(frozen=True, slots=True, eq=False)
class FormulaPart:
    """One part of a formula, fitted: levels, knots, centres and scales are those of its data.

    Parameters
    ----------
    spec : formulaic.ModelSpec
        The terms, their columns and the state of their transforms.
    variables : tuple of str
        Columns of the data that they use.
    """

    spec: Any
    variables: tuple[str, ...]

    @property
    def columns_by_term(self) -> dict[str, tuple[str, ...]]:
        """Names of the columns of each term but the intercept."""
        return {
            str(row.term): tuple(map(str, row.columns))
            for row in self.spec.structure
            if not _is_intercept(row.term)
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns but the intercept."""
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

    def encode(
        self, data: "pandas.DataFrame", scope: Mapping[str, Any], argument: str
    ) -> "pandas.DataFrame":
        """Encode rows as those were from which the part was fitted.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows with the columns that the part uses.
        scope : mapping of str to object
            Functions and constants that it uses.
        argument : str
            What the caller calls the data, for the messages.

        Returns
        -------
        pandas.DataFrame
            A column of numbers for each of `names`.

        Raises
        ------
        TypeError
            For terms that are not real numbers.
        ValueError
            For missing columns and values, unseen levels, and whatever an expression raises.
        """
        frame = select_columns(data, self.variables, argument)
        self._require_seen_levels(frame, argument)
        return _materialise(self.spec, frame, scope, argument)[0]

    def _require_seen_levels(self, frame: "pandas.DataFrame", argument: str) -> None:
        """Raise for levels that the fit has not seen: they would count as the reference."""
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
        """Name the column whose values are the levels of a factor, where there is one.

        Parameters
        ----------
        factor : str
            A factor as the formula has it, such as ``"sex"`` or ``"C(sex)"``.

        Returns
        -------
        str or None
            The column; None for the levels of an expression, such as ``"sex.str.upper()"``.
        """
        if factor in self.variables:
            return factor
        named = [
            name for name in self.variables if re.match(rf"C\(`?{re.escape(name)}`?\s*[,)]", factor)
        ]
        return named[0] if named else None


def parse_formula(text: str, columns: Sequence[str]) -> tuple[Any, Any, Any]:
    """Take a formula apart.

    Parameters
    ----------
    text : str
        ``"response ~ features"`` or ``"response ~ features | gating covariates"``.
    columns : sequence of str
        Columns that ``.`` stands for, less the response.

    Returns
    -------
    response : formulaic.SimpleFormula
        What is left of the tilde.
    features : formulaic.SimpleFormula
        What is right of it.
    gate : formulaic.SimpleFormula or None
        What is right of a bar; None without one, or if it has an intercept only.

    Raises
    ------
    ImportError
        If formulaic is not installed.
    ValueError
        For text that is no formula of this form, and for parts without an intercept.
    """
    parsed = _parse(text, columns)
    response, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
    if response is None or isinstance(response, tuple) or right is None:
        raise ValueError(
            f"`X` must be a formula with a response left of '~', such as {_EXAMPLE}; got "
            f"{text!r}. Put the name of the response first, several as in 'y + z ~ a'."
        )
    parts = right if isinstance(right, tuple) else (right,)
    if len(parts) > 2:
        raise ValueError(
            f"`X` must be a formula with one bar at most, such as {_EXAMPLE}; got {text!r}. Put "
            "all gating covariates right of one bar; groups are an argument, `groups`."
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
    """Read an argument that is the name of a column, or an expression of columns.

    Parameters
    ----------
    text : str
        Such as ``"exposure"`` or ``"np.log(exposure)"``.
    argument : str
        Name of the argument, for the message.
    columns : sequence of str
        Columns of the data.

    Returns
    -------
    formulaic.SimpleFormula
        A formula of one term.

    Raises
    ------
    ValueError
        For text that is no expression.
    """
    quoted = f"0 + `{text}`" if text in columns else f"0 + {{{text}}}"
    return _parse(quoted, (), argument=argument, given=text)


def fit_part(
    formula: Any, data: "pandas.DataFrame", scope: Mapping[str, Any], argument: str = "y"
) -> tuple[FormulaPart, "pandas.DataFrame", Scope]:
    """Encode data for the first time.

    Parameters
    ----------
    formula : formulaic.SimpleFormula
        The terms.
    data : pandas.DataFrame
        The data.
    scope : mapping of str to object
        What the caller has for names that are no columns.
    argument : str, default "y"
        What the caller calls the data, for the messages.

    Returns
    -------
    part : FormulaPart
        By which new rows are encoded.
    encoded : pandas.DataFrame
        The columns, without an intercept.
    used : Scope
        What the terms use of the caller's scope.

    Raises
    ------
    TypeError
        For terms that are not real numbers.
    ValueError
        For unknown names, missing values, and whatever an expression raises.
    """
    from formulaic import ModelSpec
    from formulaic.transforms import TRANSFORMS

    variables, used = resolve_names(formula, data, scope, TRANSFORMS)
    frame = select_columns(data, variables, argument)
    _require_plain_types(formula, frame, argument)
    spec = ModelSpec(formula=formula, materializer="pandas", na_action="ignore", output="pandas")
    encoded, fitted = _materialise(spec, frame, used, argument)
    return FormulaPart(fitted, variables), encoded, used


def _parse(
    text: str, columns: Sequence[str], *, argument: str = "X", given: str | None = None
) -> Any:
    try:
        from formulaic import Formula
        from formulaic.errors import FormulaicError
    except ImportError as error:
        raise ImportError(
            "`X` must be an array where the package formulaic is not installed; got a formula. "
            "Run `pip install 'moment-init[formula]'`, or pass arrays."
        ) from error
    # formulaic knows by this name what `.` stands for
    context = {"__formulaic_variables_available__": list(columns)}
    try:
        formula = Formula.from_spec(text, context=context)
        _ = [names_in(part) for part in _parts(formula)]  # expressions are parsed here
    except (FormulaicError, SyntaxError) as error:
        expected = "a formula" if given is None else "a column or an expression of columns"
        raise ValueError(
            f"`{argument}` must be {expected}; got {given or text!r}: {_first_line(error)} See "
            "https://matthewwardrop.github.io/formulaic for what formulas are made of."
        ) from error
    return formula


def _parts(formula: Any) -> Iterable[Any]:
    """All parts of a parsed formula."""
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
            "`X` must be a formula with intercepts, which every component and gate has (`biases`, "
            f"`gate_biases`); got {text!r}. Leave '0 +' or '- 1' out; centre the columns for "
            "intercepts near zero, or hold them common to all components with shared='intercept'."
        )


def _materialise(
    spec: Any, frame: "pandas.DataFrame", scope: Mapping[str, Any], argument: str
) -> tuple["pandas.DataFrame", Any]:
    """Columns of a part without its intercept, as plain numbers, and the spec with its state."""
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
    part = FormulaPart(fitted, ())
    keep = [matrix.columns.get_loc(name) for name in part.names]
    values = matrix.iloc[:, keep].to_numpy(dtype=np.float64, na_value=np.nan)
    return pandas.DataFrame(values, columns=list(part.names)), fitted


def _require_plain_types(formula: Any, frame: "pandas.DataFrame", argument: str) -> None:
    """Raise for dates, durations and complex numbers that stand alone: no slope fits them."""
    factors = [factor for term in formula for factor in term.factors]
    alone = sorted({factor.expr for factor in factors if factor.eval_method.value == "lookup"})
    wrong = [f"{name} ({frame[name].dtype})" for name in alone if frame[name].dtype.kind in "mMc"]
    if wrong:
        raise TypeError(
            f"`{argument}` must have real numbers or labels in the columns of the formula; got "
            f"{', '.join(wrong)}. Convert them, as in '{{day.dt.dayofyear}}'."
        )


def _require_columns(matrix: Any, spec: Any, argument: str) -> None:
    """Columns must be as many as names, and real numbers."""
    if matrix.shape[1] != len(spec.column_names):
        raise ValueError(
            f"`{argument}` must have columns by which terms have distinct names; got "
            f"{', '.join(spec.column_names)}. Rename the columns that stand twice."
        )
    wrong = [
        f"{name} ({dtype})" for name, dtype in matrix.dtypes.items() if dtype.kind not in "biuf"
    ]
    if wrong:
        raise TypeError(
            f"`{argument}` must give terms that are real numbers or categories; got "
            f"{', '.join(wrong)}. Convert them in the formula or before."
        )
