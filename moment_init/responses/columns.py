"""Columns of y, and the family of each."""

from collections.abc import Sequence
from typing import Any

from moment_init.families import Family, get_family
from moment_init.real_arrays import as_real_array

__all__ = [
    "CATEGORICAL",
    "columns_of_fit",
    "is_joint_family",
    "response_columns",
    "response_families",
]

CATEGORICAL = "categorical"
"""The family of one response of several classes."""


def is_joint_family(family: Any) -> bool:
    """Say whether a family is not that of one response of numbers.

    Parameters
    ----------
    family : str, Family or sequence of them
        The family as the user gave it.

    Returns
    -------
    bool
        Whether it is categorical, or there are several.
    """
    if isinstance(family, str):
        return family == CATEGORICAL
    return not isinstance(family, Family) and isinstance(family, Sequence)


def response_families(family: Any, link: Any, n_responses: int) -> tuple[Family, ...]:
    """Look up the family of every response.

    Parameters
    ----------
    family : str, Family or sequence of them
        Family of all responses, or one for each.
    link : str or None
        Link of all responses.
    n_responses : int
        Number of responses.

    Returns
    -------
    tuple of Family
        The families.

    Raises
    ------
    TypeError
        For what is neither a family nor a sequence.
    ValueError
        For unknown families, a wrong number of them, or a link beside several.
    """
    if not is_joint_family(family):
        return (get_family(family, link),) * n_responses
    if len(family) != n_responses:
        raise ValueError(
            f"`family` must be one family, or one for each of the {n_responses} responses; got "
            f"{len(family)}."
        )
    if link is not None:
        raise ValueError(
            f"`link` must be None where each response has its own family; got {link!r}. Pass "
            "families with their links, from moment_init.families.get_family."
        )
    if CATEGORICAL in [each for each in family if isinstance(each, str)]:
        raise ValueError(
            "`family` must not hold 'categorical' beside other families; got it. A response of "
            "classes is fitted on its own, or as a column of zeros and ones for each class."
        )
    return tuple(get_family(each) for each in family)


def response_columns(y: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Take y apart.

    Parameters
    ----------
    y : array-like or DataFrame, shape (n_obs, n_responses)
        Responses.

    Returns
    -------
    names : tuple of str
        A DataFrame's own names, else y0, y1, ...
    columns : list of numpy.ndarray, shape (n_obs,)
        The responses.

    Raises
    ------
    TypeError
        For sparse arrays and values that are not real numbers.
    ValueError
        For a wrong shape, masked values, or repeated names.
    """
    if hasattr(y, "toarray") or hasattr(y, "sparse"):
        raise TypeError(f"`y` must be dense; got {type(y).__name__}. Pass `y.toarray()`.")
    if hasattr(y, "columns"):
        names = tuple(str(name) for name in y.columns)
        if len(set(names)) < len(names):
            raise ValueError(f"`y` must have distinct column names; got {list(names)}.")
        columns = [y.iloc[:, index].to_numpy() for index in range(len(names))]
    else:
        array = as_real_array(y, "y")
        if array.ndim != 2:
            raise ValueError(
                "`y` must have a column for each response, (n_obs, n_responses), where `family` "
                f"names several families; got shape {array.shape}."
            )
        names = tuple(f"y{index}" for index in range(array.shape[1]))
        columns = list(array.T)
    if not names:
        raise ValueError("`y` must have at least one column; got none.")
    return names, columns


def columns_of_fit(y: Any, names: tuple[str, ...]) -> list[Any]:
    """Columns of y in the order of a fit.

    Parameters
    ----------
    y : array-like or DataFrame, shape (n_obs, n_responses)
        Responses; the columns of a DataFrame are matched by name.
    names : tuple of str
        Names of the fit's responses.

    Returns
    -------
    list of numpy.ndarray, shape (n_obs,)
        The responses.

    Raises
    ------
    TypeError
        For values that are not real numbers.
    ValueError
        For a wrong shape, masked values, or missing responses.
    """
    if hasattr(y, "columns"):
        given = {str(name): y.iloc[:, index] for index, name in enumerate(y.columns)}
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(f"`y` must have the responses of the fit; missing are {missing}.")
        return [given[name].to_numpy() for name in names]
    array = as_real_array(y, "y")
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(
            f"`y` must have the {len(names)} responses of the fit, (n_obs, {len(names)}); got "
            f"shape {array.shape}."
        )
    return list(array.T)
