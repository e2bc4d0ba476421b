"""Draws of a mixture with several responses, read from a DataTree and evaluated on rows.

`predict_membership` for draws of several responses, or of classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.checking import match_columns
from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.posterior.draws import draw_values, labels_of, stored_rows
from moment_init.responses.climbing import predictors, row_posterior
from moment_init.responses.data import (
    CATEGORICAL,
    CLASSES,
    clean_labels,
    label_column,
    refuse_arguments,
    response_families,
)
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses
from moment_init.responses.parameters import JointParameters, JointRows
from moment_init.responses.result import rows_of

if TYPE_CHECKING:
    import xarray


def parameters_of(posterior: "xarray.Dataset", kind: ResponseKind) -> list[JointParameters]:
    """Parameters of every draw, chain by chain."""

    def flat(name: str, *dims: str) -> FloatArray:
        array = posterior[name].transpose("chain", "draw", *dims).to_numpy()
        return np.asarray(array.reshape(-1, *array.shape[2:]))

    coefficients = flat("coefficient", "feature", "component", "response")
    biases, weights = flat("bias", "component", "response"), flat("weight", "component")
    dispersion = None
    has_one = np.array(kind.has_dispersion)
    if has_one.any():
        # The dim `dispersed_response` holds only the responses that have one.
        is_full = "response" in posterior["dispersion"].dims
        last = "response" if is_full else "dispersed_response"
        values = flat("dispersion", "component", last)
        dispersion = np.full(biases.shape, np.nan)
        dispersion[:, :, has_one] = values[:, :, has_one] if is_full else values
    return [
        JointParameters(
            coefficients[index],
            biases[index],
            weights[index],
            None if dispersion is None else dispersion[index],
        )
        for index in range(len(weights))
    ]


def row_log_densities(
    kind: ResponseKind, rows: JointRows, draws: list[JointParameters]
) -> FloatArray:
    """Log density of all responses of each row under each draw, whatever the row's weight."""
    # -> (n_draws, n_obs)
    values = np.empty((len(draws), rows.n_obs))
    # A wild draw has a density of zero, and a weight may have underflowed to zero.
    with np.errstate(over="ignore", divide="ignore"):
        for index, draw in enumerate(draws):
            values[index] = row_posterior(kind, rows, draw)[0]
    return np.asarray(values + kind.log_base_measure(rows.y, rows.n_trials))


def row_memberships(
    kind: ResponseKind, rows: JointRows, draws: list[JointParameters], *, is_averaged: bool
) -> FloatArray:
    """Probabilities of the components of rows."""
    # -> (n_draws, n_obs, n_components) or (n_obs, n_components)
    shape = (rows.n_obs, draws[0].n_components)
    result = np.zeros(shape if is_averaged else (len(draws), *shape))
    with np.errstate(over="ignore", divide="ignore"):  # as above
        for index, draw in enumerate(draws):
            shares = row_posterior(kind, rows, draw)[1].T
            if is_averaged:
                result += shares / len(draws)
            else:
                result[index] = shares
    return result


def mean_outcomes(
    kind: ResponseKind, rows: JointRows, draws: list[JointParameters], *, by_component: bool
) -> FloatArray:
    """Means of the responses of rows, or probabilities of all classes, averaged over draws."""
    # -> (n_obs, n_outcomes) or (n_obs, n_components, n_outcomes)
    total: FloatArray | None = None
    for draw in draws:
        means = kind.mean(predictors(rows, draw))  # (n_outcomes, r, n)
        if not by_component:
            means = np.einsum("mjn,j->mn", means, draw.weights)
        total = means if total is None else total + means
    result = np.asarray(total) / len(draws)
    if rows.n_trials is not None:  # one where a response has none
        result = result * (rows.n_trials[:, None, :] if by_component else rows.n_trials)
    return np.ascontiguousarray(result.T)


def mean_parameters(draws: list[JointParameters]) -> JointParameters:
    r"""One value of every parameter: means over the draws.

    The coefficients are :math:`\bar s_{ja} \bar u_{ja}`, with the mean of the lengths and the unit
    vector along the mean of the directions: a mean of coefficients would be too short.
    """
    middle = np.mean([draw.directions for draw in draws], axis=0)
    norms = np.linalg.norm(middle, axis=0)
    lengths = np.mean([draw.scales for draw in draws], axis=0)
    dispersions = [draw.dispersion for draw in draws if draw.dispersion is not None]
    return JointParameters(
        middle / np.where(norms > 0.0, norms, 1.0) * lengths,
        np.mean([draw.biases for draw in draws], axis=0),
        np.mean([draw.weights for draw in draws], axis=0),
        np.mean(dispersions, axis=0) if dispersions else None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class TreeLayout:
    """What rows of a tree must look like."""

    kind: ResponseKind  # families and names of the responses
    feature_names: tuple[str, ...]  # names of the columns
    coefficients: NDArray[np.float64]  # coefficients of all draws; (n_features, ...)


def has_responses(posterior: "xarray.Dataset") -> bool:
    """Tell draws of several responses from those of one."""
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
    """Probability of every component for rows under each draw, given all their responses."""
    # X: (n_obs, n_features), y: (n_obs, n_responses), offset, n_trials: (n_obs,) or (n_obs,
    # n_responses)
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
