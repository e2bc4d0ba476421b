"""Starts that the user gives a model: whether they fit the data, and their values."""

from typing import Any

import numpy as np

from moment_init.data import RegressionData
from moment_init.em import EMFit
from moment_init.em.problem import GateCoordinates
from moment_init.families import get_family
from moment_init.real_arrays import as_float_array
from moment_init.results import MomentEstimate
from moment_init.start_values import StartValues

__all__ = ["require_fitting_gate", "require_fitting_init", "values_from_arrays"]

_SMALLEST_LENGTH = 1e-8
"""Length of a coefficient below which a component has no direction."""


def require_fitting_init(init: Any, data: RegressionData, n_components: int) -> None:
    """Refuse an estimate or a fit of other data's shape, columns or family.

    Parameters
    ----------
    init : object
        What was given; anything but an estimate or a fit is passed over.
    data : RegressionData
        The rows.
    n_components : int
        Number of components.

    Raises
    ------
    ValueError
        If it does not fit.
    """
    if not isinstance(init, MomentEstimate | EMFit):
        return
    if init.n_components != n_components:
        raise ValueError(
            f"`init` must have `n_components` ({n_components}) components; got one with "
            f"{init.n_components}. Change `n_components` or estimate again."
        )
    if len(init.feature_names) != data.X.shape[1]:
        raise ValueError(
            f"`init` must have the {data.X.shape[1]} features of `X`; got one with "
            f"{len(init.feature_names)}. Estimate from the same columns."
        )
    _require_same_names("init", "X", init.feature_names, data.feature_names)
    if (init.family, init.link) != (data.family.name, data.family.link.name):
        raise ValueError(
            f"`init` must be of the family {data.family.name} ({data.family.link.name}); got one "
            f"of {init.family} ({init.link}). Pass the `family` and `link` it was made with."
        )


def _require_same_names(
    first: str, second: str, own: tuple[str, ...], other: tuple[str, ...]
) -> None:
    """Refuse columns that have other names, or another order, on both sides."""
    unnamed = tuple(f"x{index}" for index in range(len(own)))
    if own != other and unnamed not in (own, other):
        raise ValueError(
            f"`{first}` must come from the columns of `{second}`, in their order: {list(other)}; "
            f"got {list(own)}. Reorder the columns, or fit again."
        )


def require_fitting_gate(init: Any, gate: GateCoordinates | None) -> None:
    """Refuse a fit with a gate that the model cannot start from.

    Parameters
    ----------
    init : object
        What was given; anything but a fit is passed over.
    gate : GateCoordinates or None
        The model's gating covariates.

    Raises
    ------
    ValueError
        If one has a gate and the other has none, or another one.
    """
    if not isinstance(init, EMFit):
        return
    has_gate = init.gate is not None or init.gate_means is not None
    if init.gate_means is not None:
        raise ValueError(
            "`init` must have a softmax gate or none; got a fit with a gaussian gate. Fit again "
            "with gate='softmax', or pass (coefficients, biases, weights)."
        )
    if gate is None and has_gate:
        raise ValueError(
            "`gating` must be given with an `init` that has a gate; got None. Pass the covariates "
            "it was fitted with, or a fit without a gate."
        )
    if gate is None or init.gate is None:
        return
    if len(init.gate_names) != len(gate.names):
        raise ValueError(
            f"`init` must have the {len(gate.names)} gating covariates of `gating`; got a fit with "
            f"{len(init.gate_names)}. Pass the `gating` it was made with."
        )
    _require_same_names("init", "gating", init.gate_names, gate.names)


def values_from_arrays(
    init: Any, X: Any, n_components: int, data_block: dict[str, Any]
) -> StartValues:
    """Read start values from (coefficients, biases, weights[, dispersion]).

    Parameters
    ----------
    init : sequence of array-like
        The arrays.
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    n_components : int
        Number of components.
    data_block : dict of str to object
        With `family` and `link`.

    Returns
    -------
    StartValues
        The values.

    Raises
    ------
    ValueError
        For wrong shapes, values that are not finite, weights or dispersions that are not positive,
        and a dispersion that the family does not have.
    """
    if len(init) not in (3, 4):
        raise ValueError(
            "`init` must be (coefficients, biases, weights) or these and dispersion; got a "
            f"sequence of {len(init)}."
        )
    arrays = [as_float_array(values, "init") for values in init]
    shapes = [(np.shape(X)[1], n_components)] + [(n_components,)] * (len(arrays) - 1)
    names = ("coefficients", "biases", "weights", "dispersion")
    for name, values, shape in zip(names, arrays, shapes, strict=False):
        if values.shape != shape or not np.all(np.isfinite(values)):
            raise ValueError(
                f"`init`: {name} must be finite, of shape {shape}; got shape {values.shape}."
            )
    coefficients, biases, weights = arrays[:3]
    if np.any(weights <= 0):
        raise ValueError(f"`init`: weights must be positive; got {weights}.")
    scales = np.linalg.norm(coefficients, axis=0)
    start = StartValues(
        directions=coefficients / np.maximum(scales, _SMALLEST_LENGTH),
        coefficients=coefficients,
        scales=scales,
        biases=biases,
        weights=weights / weights.sum(),
        dispersion=arrays[3] if len(arrays) == 4 else None,
    )
    _require_fitting_dispersion(start, data_block)
    return start


def _require_fitting_dispersion(values: StartValues, data_block: dict[str, Any]) -> None:
    """Refuse a dispersion that is not positive, or that the family does not have."""
    if values.dispersion is None:
        return
    family = get_family(data_block["family"], data_block.get("link"))
    if not family.has_dispersion:
        raise ValueError(
            f"`init`: dispersion must be left out for family {family.name!r}, which has none; got "
            f"{values.dispersion}."
        )
    if np.any(values.dispersion <= 0):
        raise ValueError(f"`init`: dispersion must be positive; got {values.dispersion}.")
