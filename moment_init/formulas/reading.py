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
    scope: Mapping[str, Any] | None = None,
) -> FormulaDesign:
    """Read a formula together with the data that it is about.

    Parameters
    ----------
    formula : str
        ``"response ~ features"`` or ``"response ~ features | gating covariates"``, in the language
        of formulaic.
    data : pandas.DataFrame
        The data.
    offset, n_trials, sample_weight : str, optional
        A column, or an expression of columns such as ``"np.log(exposure)"``.
    groups : str, optional
        The column of the groups.
    gating : str, optional
        Terms of the gating covariates, where the formula has no bar.
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
        several columns or other than two levels.

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
            if name not in ("features", "gate"):
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


def _require_single(part: FormulaPart, n_columns: int, name: str) -> None:
    """A response has one column of numbers or two levels; the others one column of numbers."""
    levels = next(iter(part.levels.values()), None)
    if name == "response" and levels is not None and len(levels) == 2:
        return
    if n_columns == 1 and levels is None:
        return
    text = str(part.spec.formula)
    what = f"{n_columns} columns" if levels is None else f"{len(levels)} levels"
    if name == "response":
        raise ValueError(
            f"`X` must be a formula with a response of one column of numbers, or of two levels; "
            f"got {text!r} with {what}. Compare with one of several levels, as in "
            "'{choice == \"bus\"} ~ a + b'."
        )
    raise ValueError(
        f"`{name}` must give one number a row; got {text!r} with {what}. Use a column."
    )
