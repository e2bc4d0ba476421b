"""Reading a formula together with its data, for the first time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moment_init.formulas.design import FormulaDesign
from moment_init.formulas.encoding import FormulaPart, fit_part, parse_expression, parse_formula
from moment_init.formulas.variables import Scope, require_frame, select_columns

if TYPE_CHECKING:
    import pandas

__all__ = ["read_formula"]


def read_formula(
    formula: str,
    data: "pandas.DataFrame",
    *,
    offset: str | None = None,
    n_trials: str | None = None,
    sample_weight: str | None = None,
    groups: str | None = None,
    gating: str | None = None,
    has_classes: bool = False,
    scope: Mapping[str, Any] | None = None,
) -> FormulaDesign:
    """Read a formula together with the data that it is about.

    Parameters
    ----------
    formula : str
        ``"response ~ features"`` or ``"response ~ features | gating covariates"``, in the language
        of formulaic; several responses are terms of a sum.
    data : pandas.DataFrame
        The data.
    offset, n_trials, sample_weight : str, optional
        A column, or an expression of columns such as ``"np.log(exposure)"``.
    groups : str, optional
        The column of the groups.
    gating : str, optional
        Terms of the gating covariates, where the formula has no bar.
    has_classes : bool, default False
        Whether the response is a label of one of several classes.
    scope : mapping of str to object, optional
        Functions and constants that the formula may name.

    Returns
    -------
    FormulaDesign
        What encodes these rows and new ones.

    Raises
    ------
    ImportError
        If formulaic is not installed.
    TypeError
        If `data` is no DataFrame, and for terms that are not real numbers.
    ValueError
        For text that is no formula, names that are not there, missing values, and a response of
        other than two levels that are no classes.

    Examples
    --------
    >>> import pandas
    >>> from moment_init.formulas import read_formula
    >>> frame = pandas.DataFrame({"y": [1, 0, 1], "age": [1.0, 3.0, 5.0], "sex": ["f", "m", "f"]})
    >>> design = read_formula("y ~ center(age) + sex", frame)
    >>> design.feature_names
    ('center(age)', 'sex[T.m]')
    >>> design.encode_features(frame.iloc[1:]).to_numpy().tolist()
    [[0.0, 1.0], [2.0, 0.0]]
    """
    require_frame(data, "y")
    columns = [name for name in data.columns if isinstance(name, str)]
    text = formula if gating is None else _with_gating(formula, gating, columns)
    expressions = {"offset": offset, "n_trials": n_trials, "sample_weight": sample_weight}
    given = {name: it for name, it in expressions.items() if it is not None}
    named = {*given.values(), groups}
    response, features, gate = parse_formula(text, [name for name in columns if name not in named])
    names = {} if scope is None else scope
    fitted, used = {}, Scope()
    parts = {"response": response, "features": features, "gate": gate}
    parts |= {name: parse_expression(it, name, columns) for name, it in given.items()}
    for name, part in parts.items():
        if part is not None:
            fitted[name], encoded, own = fit_part(part, data, names)
            used.update(own)
            if name == "response":
                _require_response(fitted[name], has_classes=has_classes)
            elif name not in ("features", "gate"):
                _require_single(fitted[name], encoded.shape[1], name)
    if groups is not None:
        _require_groups(groups, data)
    return FormulaDesign(
        text,
        fitted.pop("response"),
        fitted.pop("features"),
        fitted.pop("gate", None),
        fitted,
        groups,
        used,
        has_classes,
    )


def _require_groups(groups: str, data: "pandas.DataFrame") -> None:
    if groups not in data.columns:
        raise ValueError(
            f"`groups` must be a column of the DataFrame, or hold a label for each row; got "
            f"{groups!r}, which is no column. Pass the name of one."
        )
    select_columns(data, [groups], "y")


def _with_gating(formula: str, gating: str, columns: list[str]) -> str:
    if parse_formula(formula, columns)[2] is not None:
        raise ValueError(
            f"`gating` must be None with a formula that has a bar; got {gating!r} and {formula!r}. "
            "Give the gating covariates in one place."
        )
    return f"{formula} | {gating}"


def _require_response(part: FormulaPart, *, has_classes: bool) -> None:
    """A response has numbers, in one column or several, or two levels; or it is one of labels."""
    levels = next(iter(part.levels.values()), None)
    if has_classes:
        # Labels are read from their column as they are: those of an expression are in none.
        is_column = all(part.column_of(factor) is not None for factor in part.levels)
        if is_column and len(part.variables) == 1 and len(part.columns_by_term) == 1:
            return
        raise ValueError(
            "`X` must be a formula with one column of labels left of '~' for family='categorical'; "
            f"got {str(part.spec.formula)!r}. Put the labels into a column."
        )
    is_alone = len(part.columns_by_term) == 1
    if levels is None or (is_alone and len(levels) == 2):
        return
    what = f"{len(levels)} levels" if is_alone else "labels among several responses"
    raise ValueError(
        "`X` must be a formula with a response of numbers, of two levels, or of several columns of "
        f"numbers; got {str(part.spec.formula)!r} with {what}. Use family='categorical' for one of "
        "several levels, or compare with one, as in '{choice == \"bus\"} ~ a + b'."
    )


def _require_single(part: FormulaPart, n_columns: int, name: str) -> None:
    """Other arguments have one column of numbers."""
    levels = next(iter(part.levels.values()), None)
    if n_columns == 1 and levels is None:
        return
    what = f"{n_columns} columns" if levels is None else f"{len(levels)} levels"
    raise ValueError(
        f"`{name}` must give one number a row; got {str(part.spec.formula)!r} with {what}. Use a "
        "column."
    )
