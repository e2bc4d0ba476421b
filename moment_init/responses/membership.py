"""`predict_membership` for draws of several responses, or of classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.em.prediction import match_columns
from moment_init.families import Family, get_family
from moment_init.membership_draws import draw_values, labels_of
from moment_init.responses.columns import CATEGORICAL, response_families
from moment_init.responses.data import CLASSES, refuse_arguments
from moment_init.responses.draws import parameters_of, row_memberships
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses
from moment_init.responses.labels import clean_labels, label_column
from moment_init.responses.prediction import rows_of
from moment_init.stored_rows import stored_rows

if TYPE_CHECKING:
    import xarray

__all__ = ["has_responses", "joint_membership"]


@dataclass(frozen=True, slots=True, eq=False)
class TreeLayout:
    """What rows of a tree must look like.

    Parameters
    ----------
    kind : ResponseKind
        Families and names of the responses.
    feature_names : tuple of str
        Names of the columns.
    coefficients : numpy.ndarray, shape (n_features, ...)
        Coefficients of all draws.
    """

    kind: ResponseKind
    feature_names: tuple[str, ...]
    coefficients: NDArray[np.float64]


def has_responses(posterior: "xarray.Dataset") -> bool:
    """Tell draws of several responses from those of one.

    Parameters
    ----------
    posterior : xarray.Dataset
        The draws.

    Returns
    -------
    bool
        Whether the intercepts have the dim `response`.
    """
    return "bias" in posterior and "response" in posterior["bias"].dims


def joint_membership(
    tree: "xarray.DataTree",
    posterior: "xarray.Dataset",
    X: Any,
    y: Any,
    *,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    gating: Any = None,
    family: Any = None,
    link: Any = None,
    average: bool = False,
) -> "xarray.DataArray":
    """Probability of every component for rows under each draw, given all their responses.

    Parameters
    ----------
    tree : xarray.DataTree
        The tree.
    posterior : xarray.Dataset
        Its draws, or some of them.
    X : array-like or DataFrame, shape (n_obs, n_features), or None
        Inputs; the rows of the tree if neither they nor responses are given.
    y : array-like or DataFrame, shape (n_obs, n_responses), or labels, or None
        Responses.
    offset, n_trials : array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Known part of the linear predictors; trials.
    sample_weight : array-like, optional
        Not read: there are no groups.
    groups, gating : None
        Not available.
    family, link : object
        As for `predict_membership`; a family may be one for each response.
    average : bool, default False
        Whether to return the mean over the draws.

    Returns
    -------
    xarray.DataArray
        Probabilities with dims (chain, draw, obs, component), or (obs, component).

    Raises
    ------
    TypeError
        For data that are not real numbers.
    ValueError
        For draws that lack a variable, wrong shapes or columns, and impossible responses.
    """
    import xarray

    refuse_arguments("predict_membership", groups=groups, gating=gating)
    kind = _kind_of(tree, posterior, family, link)
    _require_draws(posterior, kind)
    coefficients = np.moveaxis(draw_values(posterior, "coefficient", "feature", "response"), 2, 0)
    layout = TreeLayout(kind, labels_of(posterior, "feature"), coefficients)
    labels = None
    if X is None and y is None:
        X, y, data, labels = stored_rows(tree)
        offset, n_trials = data["offset"], data["n_trials"]
        if isinstance(kind, Categorical):
            y = kind.classes[np.asarray(y, dtype=np.intp)]  # the tree holds codes
    elif X is None or y is None:
        raise ValueError(
            "`X` and `y` must be given together, or neither for the rows of the tree; got one of "
            "them. Without responses the probabilities are tree['posterior']['weight']."
        )
    elif isinstance(kind, Categorical):
        # The tree has names of classes, not labels.
        n_obs = len(match_columns(X, layout.feature_names, "X"))
        y = np.array([str(label) for label in clean_labels(label_column(y, n_obs))])
    rows = rows_of(layout, X, y, offset=offset, n_trials=n_trials)
    values = row_memberships(kind, rows, parameters_of(posterior, kind), is_averaged=average)
    dims: tuple[str, ...] = ("obs", "component")
    if not average:
        dims = ("chain", "draw", *dims)
        values = values.reshape(*(posterior.sizes[name] for name in dims[:2]), *values.shape[1:])
    coords = {name: posterior.coords[name] for name in dims if name in posterior.coords}
    obs = np.arange(rows.n_obs) if labels is None else labels
    return xarray.DataArray(values, {**coords, "obs": obs}, dims, name="membership")


def _kind_of(
    tree: "xarray.DataTree", posterior: "xarray.Dataset", family: Any, link: Any
) -> ResponseKind:
    """Families of the responses: those that are given, or what the tree says of itself."""
    names = labels_of(posterior, "response", "y")
    own = tree.children.get("moment_init")
    attrs = {} if own is None else own.attrs
    if family is None and "family" not in attrs:
        raise ValueError(
            "`family` must be given for a tree whose group 'moment_init' has no attribute of that "
            "name; got None. Name the family of the responses, or one for each."
        )
    if (attrs["family"] if family is None else family) == CATEGORICAL:
        if "reference_class" not in attrs:
            raise ValueError(
                "`tree` must name the class without a predictor in the attribute "
                "'reference_class' of its group 'moment_init'; got none. Set it, or pass what "
                "`sample` or `fit_em(...).to_datatree()` returned."
            )
        refuse_arguments("predict_membership", CLASSES, link=link)
        return Categorical(names, np.array([attrs["reference_class"], *names]))
    return SeparateResponses(names, _members(attrs, family, link, len(names)))


def _members(attrs: Mapping[Any, Any], family: Any, link: Any, number: int) -> tuple[Family, ...]:
    """Families that are given, or those of the tree; theirs have the tree's links by default."""
    own = _one_each(attrs["family"], number) if "family" in attrs else []
    if family is None:
        family = own[0] if len(set(own)) == 1 else own
    given = list(family) if isinstance(family, list | tuple) else [family] * number
    if link is None and given == own and "link" in attrs:
        links = _one_each(attrs["link"], number)
        return tuple(get_family(*each) for each in zip(own, links, strict=True))
    return response_families(family, link, number)


def _one_each(text: str, number: int) -> list[str]:
    """Names joined by commas, one for each response; a single one stands for all."""
    found = text.split(", ")
    return found * number if len(found) == 1 else found


def _require_draws(posterior: "xarray.Dataset", kind: ResponseKind) -> None:
    """Raise for variables that are missing, have other dims or are not finite."""
    draw_values(posterior, "bias", "response")
    draw_values(posterior, "weight")
    has_one = np.flatnonzero(kind.has_dispersion)
    if len(has_one):
        is_some = "dispersed_response" in posterior.sizes
        # Where a fit holds all responses, those without a dispersion have NaN.
        own = posterior if is_some else posterior.isel(response=has_one)
        draw_values(own, "dispersion", "dispersed_response" if is_some else "response")
