"""Where a call with several responses leaves the way of a single one.

Functions of X and y are decorated; nothing behind them sees more than one response.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from moment_init.responses.data import has_several_responses, refuse_arguments

__all__ = ["takes_responses"]

DATA_BLOCK = ("family", "link", "offset", "n_trials", "sample_weight", "groups")


def takes_responses[**P, R](
    load: Callable[[], Callable[..., Any]], refused: tuple[str, ...]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of X and y take several responses, or labels of classes.

    Parameters
    ----------
    load : callable
        Imports and returns the function that takes their place: with X, y, n_components and the
        keywords `data_block` and those of the decorated function that are neither in it nor
        refused.
    refused : tuple of str
        Arguments that must be left at their defaults.

    Returns
    -------
    callable
        The decorator.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            given = dict(zip(parameters.parameters, args, strict=False)) | kwargs
            family = given.get("family", "bernoulli")
            if "y" not in given or not has_several_responses(given["y"], family):
                return function(*args, **kwargs)
            bound = parameters.bind(*args, **kwargs)
            changed = {
                name: bound.arguments[name]
                for name in refused
                if name in bound.arguments and not _is_default(bound.arguments[name], name)
            }
            refuse_arguments(function.__name__, **changed)
            bound.apply_defaults()
            rest = {
                name: value
                for name, value in bound.arguments.items()
                if name not in (*DATA_BLOCK, *refused, "X", "y", "n_components")
            }
            X, y, number = (bound.arguments[name] for name in ("X", "y", "n_components"))
            block = {name: bound.arguments[name] for name in DATA_BLOCK}
            result: R = load()(X, y, number, data_block=block, **rest)
            return result

        def _is_default(value: Any, name: str) -> bool:
            default = parameters.parameters[name].default
            return value is default or (isinstance(value, str) and value == default)

        return wrapper

    return decorate
