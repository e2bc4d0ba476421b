"""From a specification of several responses to a PyMC model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from moment_init.models.anchored_coefficient import anchored_coefficient
from moment_init.models.frames import anchor_bases
from moment_init.models.joint_response import joint_response
from moment_init.models.joint_specification import JointSpecification, specify_joint
from moment_init.models.linear_predictor import linear_predictor
from moment_init.models.priors import PriorBook
from moment_init.responses.kinds import Categorical

__all__ = ["build_joint_model", "joint_mixture_glm"]

OF_SLOPES = ("feature", "component", "response")
OF_LEVELS = ("component", "response")


def joint_mixture_glm(
    X: Any,
    y: Any,
    n_components: Any,
    *,
    data_block: dict[str, Any],
    priors: Mapping[str, Any] | None = None,
    **rest: Any,
) -> pm.Model:
    """Build the PyMC model of several responses; `mixture_glm` for them.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like or DataFrame, shape (n_obs, n_responses), or labels
        Responses.
    n_components : int
        Number of components.
    data_block : dict of str to object
        `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`.
    priors : mapping of str to prior, optional
        The user's priors.
    **rest
        `init`, `directions`, `anchor_angle`, `random_seed`.

    Returns
    -------
    pymc.Model
        The model.
    """
    return build_joint_model(
        specify_joint(X, y, n_components, data_block=data_block, **rest), priors
    )


def build_joint_model(
    specification: JointSpecification, priors: Mapping[str, Any] | None = None
) -> pm.Model:
    """Build the model of a specification.

    Parameters
    ----------
    specification : JointSpecification
        What it is built from.
    priors : mapping of str to prior, optional
        The user's priors.

    Returns
    -------
    pymc.Model
        The model, its initial values at the start.
    """
    data, kind = specification.data, specification.data.kind
    r, n_predictors = specification.anchors.shape[1:]
    book = PriorBook(priors, link=specification.links, n_features=data.n_features)
    with pm.Model(coords=_coords(specification)) as model:
        # First: the length of `obs` is theirs, and PyMC warns if other data are resized before.
        inputs = pm.Data("X", data.X, dims=("obs", "feature"))
        log_weight = pt.log(book.weight("weight", ("component",), r))
        flat, at_mean = _coefficient(specification, book)
        coefficient = pm.Deterministic(
            "coefficient", flat.reshape((data.n_features, r, n_predictors)), dims=OF_SLOPES
        )
        units = np.array(
            [
                [each.response_shift, each.response_scale]
                for each in specification.problem.coordinates
            ]
        ).T
        unit = pm.Data("response_units", units)
        level = unit[0] + unit[1] * book.bias("standardised_bias", OF_LEVELS)
        bias = pm.Deterministic("bias", level - at_mean.reshape((r, n_predictors)), dims=OF_LEVELS)
        dispersion = _dispersion(specification, book, unit)
        length = pt.sqrt(pt.sqr(coefficient).sum(axis=0))
        pm.Deterministic("scale", length, dims=OF_LEVELS)
        pm.Deterministic("direction", coefficient / length, dims=OF_SLOPES)
        # All predictors in one product: what is compiled does not grow with their number.
        eta = linear_predictor(inputs, flat, bias.reshape((r * n_predictors,)))
        eta = eta.reshape((inputs.shape[0], r, n_predictors))
        rows: dict[str, Any] = {}
        if data.offset is not None:
            eta = eta + pm.Data("offset", data.offset.T, dims=("obs", "response"))[:, None, :]
        if data.n_trials is not None:
            rows["n_trials"] = pm.Data("n_trials", data.n_trials.T, dims=("obs", "response"))
        if np.any(data.sample_weight != 1.0):
            rows["sample_weight"] = pm.Data("sample_weight", data.sample_weight, dims="obs")
        is_classes = isinstance(kind, Categorical)
        dims = ("obs",) if is_classes else ("obs", "response")
        observed = data.y[0].astype(np.int64) if is_classes else data.y.T
        joint_response(
            "y",
            kind,
            eta,
            log_weight,
            dispersion=dispersion,
            observed=pm.Data("y_data", observed, dims=dims),
            dims=dims,
            **rows,
        )
    book.require_all_used()
    start = specification.standardised_values(specification.fit.parameters)
    for variable in model.free_RVs:
        if variable.name in start:
            model.set_initval(variable, start[variable.name])
    return model


def _coords(specification: JointSpecification) -> dict[str, Any]:
    data = specification.data
    coords: dict[str, Any] = {
        "feature": list(data.feature_names),
        "component": np.arange(specification.anchors.shape[1]),
        "response": list(data.kind.names),
    }
    if specification.directions == "anchored":
        coords["tangent"] = np.arange(data.n_features - 1)
    has_one = data.kind.has_dispersion
    if any(has_one) and not all(has_one):
        names = zip(data.kind.names, has_one, strict=True)
        coords["dispersed_response"] = [name for name, is_one in names if is_one]
    return coords


def _coefficient(specification: JointSpecification, book: PriorBook) -> tuple[Any, Any]:
    """Coefficients of the user's columns, component by component, and predictors at the mean."""
    p, r, n_predictors = specification.anchors.shape
    n_columns = r * n_predictors
    mean = pm.Data("input_mean", specification.problem.coordinates[0].mean, dims="feature")
    if specification.directions == "free":
        free = book.coefficient("standardised_coefficient", OF_SLOPES)
        factor = specification.problem.coordinates[0].factor
        back = np.linalg.solve(factor.T, np.eye(p))
        units = [where.response_scale for where in specification.problem.coordinates]
        flat = free.reshape((p, n_columns)) * pm.Data("column_units", np.tile(units, r))
        value = linear_predictor(pm.Data("unwhitening", back), flat, np.zeros(n_columns))
        return value, (mean[:, None] * value).sum(axis=0)
    scale = book.scale("standardised_scale", OF_LEVELS).reshape((n_columns,))
    anchors = pm.Data("anchor", specification.to_user_columns(specification.flat_anchors))
    if specification.directions == "fixed":
        value = anchors * scale
        return value, (mean[:, None] * value).sum(axis=0)
    bases = anchor_bases(specification.flat_anchors)  # (n_columns, p, p - 1)
    user = np.stack([specification.to_user_columns(bases[:, :, t].T) for t in range(p - 1)], axis=2)
    tilt = book.tilt("tilt", (*OF_LEVELS, "tangent")).reshape((n_columns, p - 1))
    basis = pm.Data("basis", specification.kappa * user)
    return anchored_coefficient(anchors, basis, mean, tilt, scale, kappa=specification.kappa)


def _dispersion(specification: JointSpecification, book: PriorBook, unit: Any) -> Any:
    """Dispersions of all predictors, ones where there is none; None if no response has one."""
    kind = specification.data.kind
    has_one = np.array(kind.has_dispersion)
    if not has_one.any():
        return None
    dims = OF_LEVELS if has_one.all() else ("component", "dispersed_response")
    is_deviation = np.array(kind.has_units)[has_one]
    value = book.dispersion("standardised_dispersion", dims, is_deviation=is_deviation)
    # A shape or alpha has no units: only deviations are scaled.
    value = value * pt.switch(is_deviation, unit[1][np.flatnonzero(has_one)], 1.0)
    value = pm.Deterministic("dispersion", value, dims=dims)
    if has_one.all():
        return value
    full = pt.ones((specification.anchors.shape[1], len(has_one)))
    return pt.set_subtensor(full[:, np.flatnonzero(has_one)], value)
