"""The registry of response families, and the families of the responses of a call.

All that differs between families is in the entries of the registry. After it, in this order:
columns of several responses; their families, one for all or one for each; labels of classes, and
their codes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_array
from moment_init.families.base import Family
from moment_init.families.continuous import Gamma, Gaussian
from moment_init.families.discrete import Bernoulli, Binomial, NegativeBinomial, Poisson
from moment_init.families.links import LINKS
from moment_init.families.several import (
    CATEGORICAL,
    AnyFamily,
    Categorical,
    SeveralResponses,
    categorical,
    join_families,
)

_FAMILY_TYPES: tuple[type[Family], ...] = (
    Bernoulli,
    Binomial,
    Poisson,
    NegativeBinomial,
    Gaussian,
    Gamma,
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family_type.name: family_type(LINKS[family_type.supported_links[0]])
        for family_type in _FAMILY_TYPES
    }
)
"""Every family by its name, with its default link."""

_BY_RANGE: tuple[type[Family], ...] = (Bernoulli, Poisson, Gaussian, Gamma)
"""Families that may be chosen by the values of a response, the narrowest range first."""


def get_family(name: str | Family, link: str | None = None) -> Family:
    """Look up a family by name, with its default link or another one.

    Examples
    --------
    >>> get_family("bernoulli", "probit").link.name
    'probit'
    """
    family = name if isinstance(name, Family) else _family_by_name(name)
    if link is None:
        return family
    if not isinstance(link, str):
        raise TypeError(f"`link` must be a string or None; got {type(link).__name__}.")
    if link not in family.supported_links:
        raise ValueError(
            f"`link` must be one of {_quoted(family.supported_links)} for family "
            f"{family.name!r}; got {link!r}. Leave it out for the default."
        )
    return family if link == family.link_name else replace(family, link=LINKS[link])


def parse_family(
    family: str, link: str | None, n_classes: int | None = None, n_responses: int = 1
) -> AnyFamily:
    """Rebuild a family from its `name` and `link_name`, as results and DataTrees store them.

    Names of several responses are joined by ", "; one name stands for all of them.

    Examples
    --------
    >>> parse_family("gaussian, poisson", "identity, log").n_predictors
    2
    >>> parse_family("categorical", "softmax", n_classes=4).n_predictors
    3
    """
    if family == CATEGORICAL:
        if n_classes is None:
            raise ValueError(
                "`n_classes` is needed for family 'categorical'; got None. Give the number of "
                "classes."
            )
        return get_family(categorical(n_classes), link)
    families = family.split(", ")
    number = max(len(families), n_responses)
    links: list[str | None] = [None] if link is None else [*link.split(", ")]
    return join_families(
        tuple(
            get_family(name, each)
            for name, each in zip(
                _one_each(families, number), _one_each(links, number), strict=True
            )
        )
    )


def family_of_response(y: Any, link: str | None = None, *, has_trials: bool = False) -> str:
    """Choose a family by the values of a response, for calls that name none.

    Examples
    --------
    >>> family_of_response([0.0, 3.0]), family_of_response([0.5, 3.0])
    ('poisson', 'gaussian')
    """
    # y: (n_obs,)
    for family_type in (Binomial,) if has_trials else _BY_RANGE:
        family = FAMILIES[family_type.name]
        if (link is None or link in family.supported_links) and (has_trials or _takes(family, y)):
            return family.name
    return Bernoulli.name


def _one_each[T](names: list[T], number: int) -> list[T]:
    return names * number if len(names) == 1 else names


def _takes(family: Family, y: Any) -> bool:
    try:
        family.validate_response(y)
    except ValueError:
        return False
    return True


def _family_by_name(name: str) -> Family:
    if not isinstance(name, str):
        raise TypeError(f"`family` must be a string or a Family; got {type(name).__name__}.")
    if name not in FAMILIES:
        raise ValueError(
            f"`family` must be one of {_quoted(FAMILIES)}; got {name!r}. Choose one of these."
        )
    return FAMILIES[name]


def _quoted(names: Mapping[str, Family] | tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)


def one_column(values: Any, name: str) -> Any:
    """Return the column of a two-dimensional argument that has only one; others as they are."""
    # values: (n_obs, 1) -> (n_obs,)
    array = values if hasattr(values, "ndim") else as_array(values, name)
    if array.ndim != 2 or array.shape[1] != 1:
        return values
    return array.iloc[:, 0] if hasattr(array, "iloc") else array[:, 0]


def response_columns(y: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Take y apart; the columns of several responses have names, that of one response has none."""
    # y: (n_obs,) or (n_obs, n_responses) -> n_responses names, n_responses columns (n_obs,)
    array = y if hasattr(y, "ndim") else as_array(y, "y")
    if array.ndim != 2:
        return (), [y]
    if hasattr(y, "toarray") or hasattr(y, "sparse"):
        raise TypeError(f"`y` must be dense; got {type(y).__name__}. Pass `y.toarray()`.")
    n_responses = array.shape[1]
    if n_responses == 0:
        raise ValueError("`y` must have at least one column; got none.")
    if n_responses == 1:
        return (), [one_column(array, "y")]
    if not hasattr(y, "columns"):
        columns = list(as_array(y, "y").T)  # also raises for masked values
        return tuple(f"y{index}" for index in range(n_responses)), columns
    names = tuple(str(name) for name in y.columns)
    if len(set(names)) < len(names):
        raise ValueError(
            f"`y` must have distinct column names; got {list(names)}. Rename or drop the "
            "duplicates."
        )
    return names, [y.iloc[:, index].to_numpy() for index in range(n_responses)]


def columns_of_fit(y: Any, names: tuple[str, ...]) -> list[Any]:
    """Put columns of y into the order of the fit; they are matched by name if they have names."""
    # y: (n_obs, n_responses) -> n_responses columns (n_obs,)
    if hasattr(y, "columns"):
        places = {str(name): index for index, name in enumerate(y.columns)}
        missing = [name for name in names if name not in places]
        if missing:
            raise ValueError(
                f"`y` must have the responses of the fit; missing are {missing}. Add them."
            )
        return [y.iloc[:, places[name]].to_numpy() for name in names]
    array = as_array(y, "y")
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(
            f"`y` must have the {len(names)} responses of the fit, (n_obs, {len(names)}); got "
            f"shape {array.shape}. Pass the same columns."
        )
    return list(array.T)


def is_family_sequence(family: Any) -> bool:
    """Tell whether `family` has a family for each of several responses."""
    is_sequence = isinstance(family, Sequence) and not isinstance(family, str)
    return is_sequence or isinstance(family, SeveralResponses)


def has_classes(family: Any) -> bool:
    """Tell whether `family` is that of a response of classes."""
    return isinstance(family, Categorical) or (isinstance(family, str) and family == CATEGORICAL)


def response_families(family: Any, link: Any, n_responses: int) -> tuple[Family, ...]:
    """Look up the family of every response."""
    if not is_family_sequence(family):
        return (get_family(family, link),) * n_responses
    families = family.members if isinstance(family, SeveralResponses) else tuple(family)
    if len(families) != n_responses:
        if n_responses == 1:
            raise ValueError(
                f"`y` must have a column for each response, (n_obs, {len(families)}), where "
                f"`family` names {len(families)} families; got one column. Pass all responses, or "
                "one family."
            )
        raise ValueError(
            f"`family` must be one family, or one for each of the {n_responses} responses; got "
            f"{len(families)}."
        )
    if link is not None:
        raise ValueError(
            f"`link` must be None where each response has its own family; got {link!r}. Pass "
            "families with their links, from moment_init.families.get_family."
        )
    if any(map(has_classes, families)):
        raise ValueError(
            "`family` must not hold 'categorical' beside other families; got it. A response of "
            "classes is fitted on its own, or as a column of zeros and ones for each class."
        )
    return tuple(get_family(member) for member in families)


def read_labels(y: Any, n_obs: int) -> NDArray[Any]:
    """Check labels of classes: one for each row, of one type, and none missing."""
    # y: (n_obs,) or (n_obs, 1) -> (n_obs,)
    labels = as_array(one_column(y, "y"), "y")
    if labels.shape != (n_obs,):
        raise ValueError(
            f"`y` must have one label per row of `X` ({n_obs}) for family='categorical'; got shape "
            f"{labels.shape}. Pass one column of labels."
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("`y` must be finite; got missing or infinite labels. Drop such rows.")
    if labels.dtype != object:
        return labels
    from pandas import isna  # its own missing values have no truth value

    if isna(labels).any():
        raise ValueError("`y` must not have missing labels; got some. Drop such rows.")
    if len({type(label) for label in labels}) > 1:
        raise TypeError("`y` must have labels of one type; got several. Convert them.")
    return np.asarray(labels.tolist())


def find_classes(labels: NDArray[Any], weights: FloatArray) -> NDArray[Any]:
    """Find the sorted classes among labels."""
    # labels, weights: (n_obs,) -> (n_classes,)
    classes = np.unique(labels[weights > 0.0])
    if len(classes) < 2:
        raise ValueError(
            "`y` must have at least two classes in rows of positive weight for "
            f"family='categorical'; got {classes.tolist()}."
        )
    is_known = np.isin(labels, classes)
    if not is_known.all():
        row = int(np.argmin(is_known))
        raise ValueError(
            "`y` must have every class in rows of positive weight; got "
            f"{labels[row].item()!r}, of row {row}, in rows of weight zero only. Drop those rows."
        )
    if len({str(label) for label in classes}) < len(classes):
        raise ValueError(
            f"`y` must have labels with distinct names; got {classes.tolist()}. Rename them."
        )
    return classes


def class_codes(labels: NDArray[Any], classes: NDArray[Any]) -> FloatArray:
    """Turn labels into the numbers of their classes; classes may be known by their names only."""
    # labels: (n_obs,), classes: (n_classes,) -> (n_obs,)
    if classes.dtype.kind == "U" and labels.dtype.kind != "U":
        labels = np.array([str(label) for label in labels])
    is_known = np.zeros(len(labels), dtype=bool)
    codes = np.zeros(len(labels), dtype=np.intp)
    if (classes.dtype.kind == "U") == (labels.dtype.kind == "U"):
        order = np.argsort(classes)  # names of numbers are not sorted as the numbers are
        places = np.searchsorted(classes, labels, sorter=order)
        codes = order[np.minimum(places, len(order) - 1)]
        is_known = classes[codes] == labels
    if not is_known.all():
        row = int(np.argmin(is_known))
        raise ValueError(
            f"`y` must have labels among {classes.tolist()}; got {labels[row].item()!r} in row "
            f"{row}. Drop such rows."
        )
    return codes.astype(np.float64)
