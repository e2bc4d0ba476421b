"""From a specification to a PyMC model: priors, coefficients, mixing and response."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from moment_init.groups import group_codes
from moment_init.models.anchored_coefficient import anchored_coefficient
from moment_init.models.linear_predictor import linear_predictor
from moment_init.models.mixture_density import mixture_response
from moment_init.models.priors import PriorBook
from moment_init.models.specification import Specification

__all__ = ["build_model"]


def build_model(
    specification: Specification,
    priors: Mapping[str, Any] | None = None,
    *,
    projects_once: bool = False,
) -> pm.Model:
    """Build the model of a specification.

    Parameters
    ----------
    specification : Specification
        What it is built from.
    priors : mapping of str to prior, optional
        The user's priors.
    projects_once : bool
        For fixed directions: take the projected inputs as data, `projection`, in place of `X`, so
        that a gradient costs the same for any number of features.

    Returns
    -------
    pymc.Model
        The model, its initial values at the start.
    """
    book = PriorBook(
        priors,
        link=specification.data.family.link.name,
        n_features=specification.n_features,
    )
    projects_once = projects_once and specification.directions == "fixed"
    with pm.Model(coords=_coords(specification)) as model:
        # First: the length of `obs` is theirs, and PyMC warns if other data are resized before.
        inputs = _inputs(specification, projects_once)
        log_weight = _mixing(specification, book)
        scale = _scale(specification, book)
        coefficient, at_mean = _coefficient(specification, book, scale)
        units = _response_units(specification)
        bias = _bias(book, at_mean, units)
        dispersion = _dispersion(specification, book, units)
        length = pt.sqrt(pt.sqr(coefficient).sum(axis=0))
        pm.Deterministic("scale", length, dims="component")
        pm.Deterministic("direction", coefficient / length, dims=("feature", "component"))
        if projects_once:
            eta = inputs * scale + bias
        else:
            eta = linear_predictor(inputs, coefficient, bias)
        _response(specification, eta, log_weight, dispersion)
    book.require_all_used()
    start = specification.standardised_values(specification.start)
    for variable in model.free_RVs:
        if variable.name in start:
            model.set_initval(variable, start[variable.name])
    return model


def _coords(specification: Specification) -> dict[str, Any]:
    coords: dict[str, Any] = {
        "feature": list(specification.data.feature_names),
        "component": np.arange(specification.n_components),
    }
    if specification.has_tilt:
        coords["tangent"] = np.arange(specification.n_features - 1)
    if specification.gate_coordinates is not None:
        coords["gate_feature"] = list(specification.gate_coordinates.names)
    return coords


def _inputs(specification: Specification, projects_once: bool) -> Any:
    """The rows' inputs, or their projections on the anchors."""
    inputs = np.asarray(specification.data.X, dtype=np.float64)
    if not projects_once:
        return pm.Data("X", inputs, dims=("obs", "feature"))
    unit = specification.to_user_columns(specification.anchors)
    return pm.Data("projection", inputs @ unit, dims=("obs", "component"))


def _mixing(specification: Specification, book: PriorBook) -> Any:
    """Logarithms of the weights: (n_components,), or (n_obs, n_components) with a gate."""
    where = specification.gate_coordinates
    if where is None:
        return pt.log(book.weight("weight", ("component",), specification.n_components))
    level = book.gate("gate_bias", "standardised_gate_bias", ("component",))
    slopes = book.gate("gate", "standardised_gate", ("gate_feature", "component"))
    # A prior of the user's need not sum to zero; probabilities depend on differences only.
    level, slopes = level - level.mean(), slopes - slopes.mean(axis=1, keepdims=True)
    mean = pm.Data("gating_mean", where.mean, dims="gate_feature")
    gate = slopes / pm.Data("gating_scale", where.scales, dims="gate_feature")[:, None]
    gate_bias = level - (mean[:, None] * gate).sum(axis=0)
    pm.Deterministic("weight", pt.special.softmax(level), dims="component")
    pm.Deterministic("gate", gate.T, dims=("component", "gate_feature"))
    gate_bias = pm.Deterministic("gate_bias", gate_bias, dims="component")
    covariates = pm.Data("gating", specification.gating, dims=("obs", "gate_feature"))
    return pt.special.log_softmax(linear_predictor(covariates, gate, gate_bias), axis=-1)


def _scale(specification: Specification, book: PriorBook) -> Any:
    """Standardised scales; None where coefficients are free."""
    if specification.directions == "free":
        return None
    return book.scale("standardised_scale", ("component",))


def _coefficient(specification: Specification, book: PriorBook, scale: Any) -> tuple[Any, Any]:
    """Coefficients of the user's columns, (n_features, n_components), and predictors at the mean.

    Anchors and bases are mapped to the user's units once; lengths are those of the standardised
    vectors, which an orthonormal frame gives without forming them.
    """
    dims = ("feature", "component")
    mean = pm.Data("input_mean", specification.coordinates.mean, dims="feature")
    if specification.has_tilt:
        return _anchored(specification, book, scale, mean)
    if specification.directions == "free":
        free = book.coefficient("standardised_coefficient", dims)
        back = specification.to_user_columns(np.eye(specification.n_features))
        level = np.zeros(specification.n_components)
        value = linear_predictor(pm.Data("unwhitening", back), free, level)
    else:
        anchors = specification.to_user_columns(specification.anchors)
        value = pm.Data("anchor", anchors, dims=dims) * scale
    coefficient = pm.Deterministic("coefficient", value, dims=dims)
    # Not a matrix product: see `linear_predictor` on what that takes to compile.
    return coefficient, (mean[:, None] * coefficient).sum(axis=0)


def _anchored(
    specification: Specification, book: PriorBook, scale: Any, mean: Any
) -> tuple[Any, Any]:
    bases = np.stack([specification.to_user_columns(basis) for basis in specification.bases])
    coefficient, at_mean = anchored_coefficient(
        pm.Data(
            "anchor",
            specification.to_user_columns(specification.anchors),
            dims=("feature", "component"),
        ),
        pm.Data(
            "basis",
            specification.kappa * bases.transpose(1, 0, 2),
            dims=("feature", "component", "tangent"),
        ),
        mean,
        book.tilt("tilt", ("component", "tangent")),
        scale,
        kappa=specification.kappa,
    )
    return pm.Deterministic("coefficient", coefficient, dims=("feature", "component")), at_mean


def _response_units(specification: Specification) -> Any:
    """Shift and scale of the linear predictor, as data: constants would be compiled into the code.

    None for links whose predictors have no units.
    """
    where = specification.coordinates
    if (where.response_shift, where.response_scale) == (0.0, 1.0):
        return None
    return pm.Data(
        "response_units",
        np.array([where.response_shift, where.response_scale]),
        dims="response_unit",
        coords={"response_unit": ["shift", "scale"]},
    )


def _bias(book: PriorBook, at_mean: Any, units: Any) -> Any:
    level = book.bias("standardised_bias", ("component",))
    if units is not None:
        level = units[0] + units[1] * level
    return pm.Deterministic("bias", level - at_mean, dims="component")


def _dispersion(specification: Specification, book: PriorBook, units: Any) -> Any:
    family = specification.data.family
    if not family.has_dispersion:
        return None
    value = book.dispersion(
        "standardised_dispersion", ("component",), is_deviation=family.response_power
    )
    if family.response_power and units is not None:
        value = value * units[1]
    return pm.Deterministic("dispersion", value, dims="component")


def _response(specification: Specification, eta: Any, log_weight: Any, dispersion: Any) -> None:
    """Register the data of the rows and the response."""
    data = specification.data
    rows: dict[str, Any] = {}
    if data.offset is not None:
        eta = eta + pm.Data("offset", data.offset, dims="obs")[:, None]
    if data.n_trials is not None:
        rows["n_trials"] = pm.Data("n_trials", data.n_trials, dims="obs")
    if np.any(data.sample_weight != 1.0):
        rows["sample_weight"] = pm.Data("sample_weight", data.sample_weight, dims="obs")
    codes = group_codes(data.groups)
    if codes is not None:
        rows["group"] = pm.Data("group", codes, dims="obs")
    mixture_response(
        "y",
        eta,
        log_weight,
        family=data.family.name,
        link=data.family.link.name,
        dispersion=dispersion,
        observed=pm.Data("y_data", data.y, dims="obs"),
        dims="obs",
        **rows,
    )
