"""Where formulas end: a formula and a DataFrame become X, y and what else a function takes."""

import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from inspect import BoundArguments, signature
from typing import Any

from moment_init.families import family_of_response, get_family
from moment_init.formulas.design import ROW_ARGUMENTS, FormulaDesign
from moment_init.formulas.reading import read_formula
from moment_init.formulas.variables import is_frame
from moment_init.responses.columns import CATEGORICAL

__all__ = ["reads_design", "takes_formula"]


def takes_formula[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of X and y take a formula and a DataFrame in their places.

    Parameters
    ----------
    function : callable
        With the arguments `X`, `y`, `family`, `link` and, if it takes a gate, `gating`; further
        ones of the data block may be strings, which stand for columns. Without a `family` the
        response of a formula chooses one.

    Returns
    -------
    callable
        The same function; results keep what new rows are encoded by.
    """
    parameters = signature(function)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        given = dict(zip(parameters.parameters, args, strict=False)) | kwargs
        if isinstance(given.get("X"), str):
            frame = sys._getframe(1)
            scope = ChainMap(frame.f_locals, frame.f_globals)
            bound = parameters.bind(*args, **kwargs)
            design = _replace_formula(bound, scope, function.__name__)
            if "family" not in given:
                _choose_family(bound.arguments)
            _require_labels_for(bound.arguments, design)
            return _with_design(function(*bound.args, **bound.kwargs), design)
        if isinstance(given.get("y"), str):
            raise TypeError(
                f"`y` must hold numbers; got {given['y']!r}. A formula stands in the place of X "
                f"and a DataFrame in that of y: {function.__name__}('y ~ a + b', frame, ...)."
            )
        return function(*args, **kwargs)

    return wrapper


def reads_design[**P, R](method: Callable[P, R]) -> Callable[P, R]:
    """Let a method of a fit by formula take a DataFrame of the formula's variables.

    Parameters
    ----------
    method : callable
        With the arguments `self`, which has a `design`, `X` and perhaps others of the data block.

    Returns
    -------
    callable
        The same method. What it is not given is read from the DataFrame, as in the fit.
    """
    parameters = signature(method)

    @wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        design, X = bound.arguments["self"].design, bound.arguments["X"]
        if design is not None and is_frame(X) and not design.has_features_of(X):
            _encode_missing(bound, design)
        elif method.__name__ != "to_datatree" and bound.arguments.get("y", X) is None:
            raise ValueError(
                "`y` must be given, unless the fit is one by formula and `X` a DataFrame with the "
                "response; got None. Pass the response."
            )
        result = method(*bound.args, **bound.kwargs)
        return result if design is None else _with_design(result, design)

    return wrapper


def _replace_formula(
    bound: BoundArguments, scope: Mapping[str, Any], function: str
) -> FormulaDesign:
    """Read the formula of a call, and put arrays where it and the names of columns were."""
    bound.apply_defaults()
    arguments = bound.arguments
    formula, data = arguments["X"], arguments["y"]
    named = {
        name: arguments[name]
        for name in (*ROW_ARGUMENTS, "groups", "gating")
        if isinstance(arguments.get(name), str)
    }
    is_classes = isinstance(arguments["family"], str) and arguments["family"] == CATEGORICAL
    design = read_formula(formula, data, scope=scope, has_classes=is_classes, **named)
    if design.gate is not None:
        _require_gate(arguments, design, function, is_named="gating" in named)
    arguments["X"] = design.encode_features(data, "y")
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
            f"`X` must be a formula without a bar for `{function}`, as moments do not identify a "
            f"gate; got {design.formula!r}. Leave out what is right of the bar, or use `fit_em` or "
            "`sample`, which fit the gate too."
        )
    if arguments["gating"] is not None and not is_named:
        raise ValueError(
            f"`gating` must be None with a formula that has a bar; got values and "
            f"{design.formula!r}. Give the gating covariates in one place."
        )


def _choose_family(arguments: dict[str, Any]) -> None:
    """Let the response say its family: a formula is often all that a user writes."""
    y, link = arguments["y"], arguments["link"]
    has_trials = arguments.get("n_trials") is not None
    columns = list(y.to_numpy().T) if is_frame(y) else [y]
    names = [family_of_response(column, link, has_trials=has_trials) for column in columns]
    if len(set(names)) == 1:
        arguments["family"] = names[0]
        return
    # Families of several responses have their links with them.
    arguments["family"] = [get_family(name, link) for name in names]
    arguments["link"] = None


def _require_labels_for(arguments: Mapping[str, Any], design: FormulaDesign) -> None:
    """Labels make sense for families whose responses are 0 and 1, and for no others."""
    levels = design.response_levels
    if levels is None:
        return
    family = get_family(arguments["family"], arguments["link"])
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
    """Shared terms as the columns that they stand for."""
    entries = [shared] if isinstance(shared, str) else shared
    if not isinstance(entries, list | tuple):
        return shared
    return [
        column
        for entry in entries
        for column in (design.columns_of(entry) if isinstance(entry, str) else (entry,))
    ]


def _encode_missing(bound: BoundArguments, design: FormulaDesign) -> None:
    """Read from a DataFrame what a method takes and was not given."""
    arguments = bound.arguments
    data = arguments["X"]
    for name in (*ROW_ARGUMENTS, "groups", "gating"):
        if name in arguments and arguments[name] is None:
            arguments[name] = design.encode_argument(name, data)
    if "y" in arguments and arguments["y"] is None:
        arguments["y"] = design.encode_response(data)
    arguments["X"] = design.encode_features(data)


def _with_design[R](result: R, design: FormulaDesign) -> R:
    """The result with the design on it, or its text where a result must stay storable."""
    if is_dataclass(result) and not isinstance(result, type):
        held: dict[str, Any] = {field.name: getattr(result, field.name) for field in fields(result)}
        if "design" in held:
            return replace(result, design=design)
        if "fit" in held:
            return replace(result, fit=_with_design(held["fit"], design))
        for tree in held.get("trees", {}).values():
            _with_design(tree, design)
    elif "moment_init" in (groups := getattr(result, "children", {})):
        groups["moment_init"].attrs.update(design.attributes)
    return result
