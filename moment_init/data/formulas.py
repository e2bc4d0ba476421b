"""Formulas: a formula and a DataFrame instead of X and y.

`read_formula` reads a formula together with its data. The `FormulaDesign` that it returns encodes
new rows in the same way. Two decorators apply them: `takes_formula` lets an entry point take a
formula, and `reads_design` lets a method of its result take a DataFrame. The functions behind the
decorators see arrays only.
"""

import json
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import wraps
from importlib import import_module
from inspect import BoundArguments, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.checks import as_known_table
from moment_init.data.formula_encoding import (
    FormulaPart,
    Scope,
    fit_part,
    is_frame,
    parse_expression,
    parse_formula,
    require_frame,
    select_columns,
)
from moment_init.families.registry import (
    family_of_response,
    get_family,
    has_classes,
    response_families,
)

if TYPE_CHECKING:
    import pandas

ROW_ARGUMENTS = ("offset", "n_trials", "sample_weight")
"""Arguments with one number per row; each may name a column or be an expression of columns."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FormulaDesign:
    """A formula that was read together with a DataFrame; it encodes new rows in the same way.

    Levels of categories, knots of splines, centres and scales are those of the first data. A design
    can be pickled and copied.

    Parameters
    ----------
    formula : str
        The formula.
    response : FormulaPart
        The part left of the tilde.
    features : FormulaPart
        The part right of the tilde.
    gate : FormulaPart or None
        The part right of the bar; None without a gate.
    row_parts : dict of str to FormulaPart
        `offset`, `n_trials` and `sample_weight`, if they were given as columns or expressions.
    groups : str or None
        Column of the groups, if they were given by name.
    scope : Scope
        Functions and constants of the caller that the formula uses.
    has_classes : bool, default False
        Whether the response has labels of several classes.
    """

    formula: str
    response: FormulaPart
    features: FormulaPart
    gate: FormulaPart | None = None
    row_parts: dict[str, FormulaPart] = field(default_factory=dict)
    groups: str | None = None
    scope: Scope = field(default_factory=Scope)
    has_classes: bool = False

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return self.features.names

    @property
    def gate_names(self) -> tuple[str, ...]:
        """Names of the gating covariates; empty without a gate."""
        return () if self.gate is None else self.gate.names

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the data that inputs and gate use."""
        gate = () if self.gate is None else self.gate.variables
        return tuple(dict.fromkeys((*self.features.variables, *gate)))

    @property
    def label_columns(self) -> set[str | None]:
        """Columns whose values are the levels of a category, also those of numbers in `C(...)`."""
        parts = [self.features] if self.gate is None else [self.features, self.gate]
        return {part.column_of(factor) for part in parts for factor in part.levels}

    @property
    def response_levels(self) -> tuple[Any, Any] | None:
        """The two labels of the response that are coded 0 and 1; None for numbers and classes."""
        levels = next(iter(self.response.levels.values()), None)
        return None if levels is None or self.has_classes else (levels[0], levels[1])

    @property
    def has_several_responses(self) -> bool:
        """Whether there is more than one column of numbers left of the tilde."""
        return not self.response.levels and len(self.response.names) > 1

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes that a DataTree stores for the formula, as text."""
        named = {name: str(part.spec.formula) for name, part in self.row_parts.items()}
        named |= {} if self.groups is None else {"groups": self.groups}
        result = {"formula": self.formula}
        result |= {f"formula_{name}": text for name, text in named.items()}
        if self.response_levels is not None:
            result["response_levels"] = ", ".join(
                f"{label} = {number}" for number, label in enumerate(self.response_levels)
            )
        return result

    @property
    def stored_attributes(self) -> dict[str, str]:
        """The attributes, with the encoding if it can be stored."""
        encoding = self.encoding
        return self.attributes | ({} if encoding is None else {"formula_encoding": encoding})

    @property
    def encoding(self) -> str | None:
        """The encoding as text for a DataTree; None if it uses functions of the caller."""
        modules = {k: v.__name__ for k, v in self.scope.items() if isinstance(v, ModuleType)}
        record = {
            "formula": self.formula,
            "parts": {name: part.record for name, part in self._parts.items()},
            "groups": self.groups,
            "has_classes": self.has_classes,
            "constants": {k: v for k, v in self.scope.items() if k not in modules},
            "modules": modules,
        }
        try:
            return json.dumps(_to_plain(record))
        except TypeError:
            return None

    @property
    def _parts(self) -> dict[str, FormulaPart]:
        parts = {"response": self.response, "features": self.features}
        return parts | ({} if self.gate is None else {"gate": self.gate}) | self.row_parts

    @classmethod
    def of_encoding(cls, text: str) -> "FormulaDesign":
        """Rebuild a design from the attribute of a DataTree."""
        record = _from_plain(json.loads(text))
        parts = {name: FormulaPart.of_record(each) for name, each in record["parts"].items()}
        modules = {name: import_module(module) for name, module in record["modules"].items()}
        return cls(
            record["formula"],
            parts.pop("response"),
            parts.pop("features"),
            parts.pop("gate", None),
            parts,
            record["groups"],
            Scope(record["constants"] | modules),
            record["has_classes"],
        )

    def columns_of(self, term: str) -> tuple[str, ...]:
        """Return the names of the columns of X that a term stands for.

        Parameters
        ----------
        term : str
            A term as written in the formula, such as ``"gender"`` or ``"poly(age, 2)"``.

        Returns
        -------
        tuple of str
            The columns; only the given name if it is not a term.
        """
        return self.features.columns_by_term.get(term, (term,))

    def encode_features(self, data: "pandas.DataFrame", argument: str = "X") -> "pandas.DataFrame":
        """Encode the inputs of rows.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows with the columns that the formula names.
        argument : str, default "X"
            Name of the argument in error messages.

        Returns
        -------
        pandas.DataFrame
            One column for each of `feature_names`.
        """
        return self.features.encode(data, self.scope, argument).set_index(data.index)

    def encode_response(self, data: "pandas.DataFrame", argument: str = "X") -> Any:
        """Encode the response of rows.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows with the columns left of the tilde.
        argument : str, default "X"
            Name of the argument in error messages.

        Returns
        -------
        numpy.ndarray, shape (n_obs,), or pandas.DataFrame, shape (n_obs, n_responses)
            Numbers, with 0 for the first of two levels and 1 for the second; labels, if there are
            classes; or one column for each of several responses.
        """
        missing = [name for name in self.response.variables if name not in data.columns]
        if missing:
            raise ValueError(
                f"`{argument}` must have the response if `y` is not given; missing are "
                f"{', '.join(map(repr, missing))}. Add them, or pass `y`."
            )
        is_column = self.response.levels or self.response.names == self.response.variables
        if self.has_classes and is_column:
            name = self.response.variables[0]  # labels are kept, not coded as numbers
            return select_columns(data, [name], argument)[name].to_numpy()
        encoded = self.response.encode(data, self.scope, argument)
        return encoded if self.has_several_responses else np.asarray(encoded.to_numpy()[:, -1])

    def rows(self, data: "pandas.DataFrame", *, has_response: bool = True) -> dict[str, Any]:
        """Encode rows into the arguments of functions that take X and y.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows with the columns that the formula, `offset`, `groups` and others name.
        has_response : bool, default True
            Whether the rows have a response.

        Returns
        -------
        dict of str to object
            `X`, `y` and, if the formula or the call had them, `gating`, `offset`, `n_trials`,
            `sample_weight` and `groups`.

        Raises
        ------
        TypeError
            If `data` is not a DataFrame, or a term is not a real number.
        ValueError
            If columns or values are missing, or the first data did not have a level.

        Examples
        --------
        .. code-block:: python

            design = read_formula("visits ~ age + gender", frame)
            predict_membership(tree, **design.rows(new_frame))
        """
        require_frame(data, "data")
        result: dict[str, Any] = {"X": self.encode_features(data, "data")}
        if has_response:
            result["y"] = self.encode_response(data, "data")
        for name in ("gating", *ROW_ARGUMENTS, "groups"):
            values = self.encode_argument(name, data, "data")
            if values is not None:
                result[name] = values
        return result

    def encode_argument(self, name: str, data: "pandas.DataFrame", argument: str = "X") -> Any:
        """Encode another argument of rows, as given when the formula was read.

        Parameters
        ----------
        name : str
            `gating`, `groups`, or one of `ROW_ARGUMENTS`.
        data : pandas.DataFrame
            Rows with the columns that the argument needs.
        argument : str, default "X"
            Name of the argument in error messages.

        Returns
        -------
        pandas.DataFrame, numpy.ndarray or None
            Gating covariates, or one value per row; None if there was no such argument.
        """
        if name == "gating":
            return None if self.gate is None else self.gate.encode(data, self.scope, argument)
        part = self.row_parts.get(name)
        column = self.groups if name == "groups" else None
        needed = (column,) if column else () if part is None else part.variables
        missing = [need for need in needed if need not in data.columns]
        if missing:
            neutral = "np.arange" if column else "np.zeros" if name == "offset" else "np.ones"
            raise ValueError(
                f"`{argument}` must have the columns that the formula's `{name}` came from; "
                f"missing are {', '.join(map(repr, missing))}. Add them, or pass `{name}`; "
                f"{neutral}(len({argument})) means none."
            )
        if column:
            return select_columns(data, [column], argument)[column].to_numpy()
        if part is None:
            return None
        return part.encode(data, self.scope, argument).to_numpy()[:, 0]

    def has_features_of(self, data: "pandas.DataFrame") -> bool:
        """Tell whether rows are already encoded: they have the columns of X, not the variables.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows.

        Returns
        -------
        bool
            Whether the rows have the columns of X.
        """
        is_raw = set(self.features.variables) <= set(data.columns)
        return not is_raw and set(data.columns) == set(self.feature_names)

    def __repr__(self) -> str:
        """Show the formula and the columns that it stands for."""
        lines = [f"FormulaDesign: {self.formula}", f"features: {', '.join(self.feature_names)}"]
        lines += [f"gating: {', '.join(self.gate_names)}"] if self.gate is not None else []
        more = {name: text for name, text in self.attributes.items() if name != "formula"}
        lines += [f"{name.removeprefix('formula_')}: {text}" for name, text in more.items()]
        return "\n".join(lines)


def _to_plain(value: Any) -> Any:
    """Write dicts with any keys and arrays as JSON has them; raise TypeError for other objects."""
    if isinstance(value, Mapping):
        return {"dict": [[_to_plain(key), _to_plain(each)] for key, each in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": _to_plain(value.tolist())}
    if isinstance(value, tuple | list):
        return [_to_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _from_plain(value: Any) -> Any:
    """Read what `_to_plain` wrote."""
    if isinstance(value, list):
        return [_from_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.asarray(_from_plain(value["array"]))
    return {_from_plain(key): _from_plain(each) for key, each in value["dict"]}


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
    """Read a formula together with its data.

    Examples
    --------
    >>> import pandas
    >>> from moment_init.data.formulas import read_formula
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
    row_arguments = {name: value for name, value in expressions.items() if value is not None}
    named = {*row_arguments.values(), groups}
    response, features, gate = parse_formula(text, [name for name in columns if name not in named])
    caller_names = {} if scope is None else scope
    fitted, used = {}, Scope()
    parts = {"response": response, "features": features, "gate": gate}
    parts |= {name: parse_expression(value, name, columns) for name, value in row_arguments.items()}
    for name, part in parts.items():
        if part is not None:
            fitted[name], encoded, part_scope = fit_part(part, data, caller_names)
            used.update(part_scope)
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
            "`groups` must be a column of the DataFrame or hold one label per row; got "
            f"{groups!r}, which is not a column. Pass the name of a column."
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
    """Raise unless the response has numbers or two levels, or labels if there are classes."""
    levels = next(iter(part.levels.values()), None)
    if has_classes:
        # Labels are read from their column; the labels of an expression are in no column.
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
        "`X` must be a formula whose response has numbers, two levels, or several columns of "
        f"numbers; got {str(part.spec.formula)!r} with {what}. Use family='categorical' for more "
        "levels, or compare with one of them, as in '{choice == \"bus\"} ~ a + b'."
    )


def _require_single(part: FormulaPart, n_columns: int, name: str) -> None:
    """Raise unless an argument has one column of numbers."""
    levels = next(iter(part.levels.values()), None)
    if n_columns == 1 and levels is None:
        return
    what = f"{n_columns} columns" if levels is None else f"{len(levels)} levels"
    raise ValueError(
        f"`{name}` must give one number per row; got {str(part.spec.formula)!r} with {what}. Use "
        "one column of numbers."
    )


def takes_formula[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of X and y take a formula and a DataFrame instead."""
    parameters = signature(function)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = dict(zip(parameters.parameters, args, strict=False)) | kwargs
        if isinstance(arguments.get("X"), str):
            frame = sys._getframe(1)
            scope = ChainMap(frame.f_locals, frame.f_globals)
            bound = parameters.bind(*args, **kwargs)
            design = _replace_formula(bound, scope, function.__name__)
            if "family" not in arguments:
                _choose_family(bound.arguments)
            _require_labels_for(bound.arguments, design)
            return _with_design(function(*bound.args, **bound.kwargs), design)
        if isinstance(arguments.get("y"), str):
            raise TypeError(
                f"`y` must hold numbers; got {arguments['y']!r}. Pass a formula as X and the "
                f"DataFrame as y: {function.__name__}('y ~ a + b', frame, ...)."
            )
        return function(*args, **kwargs)

    return wrapper


def reads_design[**P, R](method: Callable[P, R]) -> Callable[P, R]:
    """Let a method of a fit by formula take a DataFrame with the formula's variables."""
    parameters = signature(method)

    @wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments["X"] = as_known_table(bound.arguments["X"])
        design, X = bound.arguments["self"].design, bound.arguments["X"]
        if design is not None and is_frame(X) and not design.has_features_of(X):
            encode_missing(bound.arguments, design)
        elif method.__name__ != "to_datatree" and bound.arguments.get("y", X) is None:
            raise ValueError(
                "`y` must be given, unless the fit used a formula and `X` is a DataFrame with the "
                "response; got None. Pass the response."
            )
        result = method(*bound.args, **bound.kwargs)
        return result if design is None else _with_design(result, design)

    return wrapper


def _replace_formula(
    bound: BoundArguments, scope: Mapping[str, Any], function: str
) -> FormulaDesign:
    """Read the formula of a call, and replace it and the names of columns by arrays."""
    bound.apply_defaults()
    arguments = bound.arguments
    formula, data = arguments["X"], as_known_table(arguments["y"])
    named = {
        name: arguments[name]
        for name in (*ROW_ARGUMENTS, "groups", "gating")
        if isinstance(arguments.get(name), str)
    }
    design = read_formula(
        formula, data, scope=scope, has_classes=has_classes(arguments["family"]), **named
    )
    if design.gate is not None:
        _require_gate(arguments, design, function, is_named="gating" in named)
    arguments["X"] = design.encode_features(data, "y")
    # for the header of a store, which is written before the run
    arguments["X"].attrs["moment_init_formula"] = design.stored_attributes
    arguments["y"] = design.encode_response(data, "y")
    for name in named if design.gate is None else {**named, "gating": None}:
        arguments[name] = design.encode_argument(name, data, "y")
    if is_frame(arguments.get("X_unlabelled")):
        arguments["X_unlabelled"] = design.encode_features(
            arguments["X_unlabelled"], "X_unlabelled"
        )
    if arguments.get("shared") is not None:
        arguments["shared"] = _expanded(arguments["shared"], design)
    return design


def _require_gate(
    arguments: Mapping[str, Any], design: FormulaDesign, function: str, *, is_named: bool
) -> None:
    if "gating" not in arguments:
        raise ValueError(
            f"`X` must be a formula without a bar for `{function}`; got {design.formula!r}. "
            "Moments do not identify a gate. Leave out the part right of the bar, or use `fit_em` "
            "or `sample`, which fit the gate too."
        )
    if arguments["gating"] is not None and not is_named:
        raise ValueError(
            f"`gating` must be None with a formula that has a bar; got values and "
            f"{design.formula!r}. Give the gating covariates in one place."
        )


def _choose_family(arguments: dict[str, Any]) -> None:
    """Choose the family by the response: users of formulas often leave it out."""
    y, link = arguments["y"], arguments["link"]
    has_trials = arguments.get("n_trials") is not None
    columns = list(y.to_numpy().T) if is_frame(y) else [y]
    names = [family_of_response(column, link, has_trials=has_trials) for column in columns]
    if len(set(names)) == 1:
        arguments["family"] = names[0]
        return
    # Each family in a list has its link already.
    arguments["family"] = [get_family(name, link) for name in names]
    arguments["link"] = None


def _require_labels_for(arguments: Mapping[str, Any], design: FormulaDesign) -> None:
    """Raise for labels unless the responses of the family are 0 and 1."""
    levels = design.response_levels
    if levels is None:
        return
    (family,) = response_families(arguments["family"], arguments["link"], 1)
    for values, is_wanted in (([0.0, 1.0], True), ([0.0, 2.0], False)):
        try:
            family.validate_response(values)
            is_possible = True
        except ValueError:
            is_possible = False
        if is_possible != is_wanted:
            raise ValueError(
                f"`X` must be a formula with a response of numbers for family {family.name!r}; got "
                f"labels, {levels[0]!r} and {levels[1]!r}. Encode them, or use "
                "family='bernoulli'."
            )


def _expanded(shared: Any, design: FormulaDesign) -> Any:
    """Replace shared terms by the columns that they stand for."""
    entries = [shared] if isinstance(shared, str) else shared
    if not isinstance(entries, list | tuple):
        return shared
    return [
        column
        for entry in entries
        for column in (design.columns_of(entry) if isinstance(entry, str) else (entry,))
    ]


def encode_missing(arguments: dict[str, Any], design: FormulaDesign) -> None:
    """Read the arguments that a call was not given from its DataFrame `X`."""
    data = arguments["X"]
    for name in (*ROW_ARGUMENTS, "groups", "gating"):
        if name in arguments and arguments[name] is None:
            arguments[name] = design.encode_argument(name, data)
    if "y" in arguments and arguments["y"] is None:
        arguments["y"] = design.encode_response(data)
    arguments["X"] = design.encode_features(data)


def _with_design[R](result: R, design: FormulaDesign) -> R:
    """Add the design to a result, or its text to a DataTree, which must stay storable."""
    if is_dataclass(result) and not isinstance(result, type):
        values: dict[str, Any] = {each.name: getattr(result, each.name) for each in fields(result)}
        if "design" in values:
            return replace(result, design=design)
        if "fit" in values:
            return replace(result, fit=_with_design(values["fit"], design))
        for tree in values.get("trees", {}).values():
            _with_design(tree, design)
    elif "moment_init" in (groups := getattr(result, "children", {})):
        groups["moment_init"].attrs.update(design.stored_attributes)
    return result
