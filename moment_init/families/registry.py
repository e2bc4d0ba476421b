"""The registry of response families; all that differs between families is in its entries."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from moment_init.families.base import Family
from moment_init.families.continuous import Gamma, Gaussian
from moment_init.families.discrete import Bernoulli, Binomial, NegativeBinomial, Poisson
from moment_init.families.links import LINKS
from moment_init.families.several import CATEGORICAL, AnyFamily, categorical, join_families

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
