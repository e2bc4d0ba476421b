"""Bounds that keep a mixture likelihood from running away, and which of them hold a maximum.

Five things can run away. A weight goes to zero and its component no longer sees any row. The
standard deviation of one component goes to zero around a few rows, and the likelihood to infinity:
Hathaway's (1985) constraint keeps every deviation above a share of the largest. A dispersion goes
to the end of its range, as alpha does for counts without overdispersion. And coefficients grow
without end where a component's rows are separated: the length of (beta_j, b_j) stays below the
link's `largest_predictor`, beyond which the response no longer tells lengths apart. A gate's slopes
grow likewise where its covariates separate the components.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family
from moment_init.likelihood.parameters import MixtureParameters, component_size, parameter_count

__all__ = [
    "MIN_DISPERSION_RATIO",
    "MIN_WEIGHT",
    "ActiveBound",
    "ParameterBounds",
    "active_bounds",
    "bounds_of",
    "enforce",
]

FloatArray = NDArray[np.float64]

MIN_WEIGHT = 1e-4
"""One row in ten thousand: no component that small can be estimated from fewer than millions of
rows, and from a smaller weight EM needs ever more steps to come back."""

MIN_DISPERSION_RATIO = 0.05
"""Default of Hathaway's constraint: deviations within a factor of twenty of each other."""

MIN_GATED_WEIGHT = 1e-12
"""With a gate the weight is only the probability at the mean of the gating covariates; a component
may be rare there and common elsewhere."""

LARGEST_GATE = 40.0
"""Largest length of a component's gate slopes on standardised covariates: one standard deviation
then changes odds by e^40, which no number of rows tells from a jump."""

_CLOSE = 1e-9
"""A bound holds when it is this close, relative; `enforce` puts parameters on it to rounding."""


@dataclass(frozen=True, slots=True)
class ParameterBounds:
    """Bounds of the parameters of one family.

    Parameters
    ----------
    min_weight : float
        Smallest weight of a component.
    deviation_power : float or None
        See `FamilyDensity`; None where the likelihood is bounded.
    min_dispersion_ratio : float
        Smallest ratio of two components' deviations, where `deviation_power` is given.
    dispersion : tuple of float
        Smallest and largest dispersion.
    largest_predictor : float
        Largest length of (beta_j, b_j).
    """

    min_weight: float
    deviation_power: float | None
    min_dispersion_ratio: float
    dispersion: tuple[float, float]
    largest_predictor: float


@dataclass(frozen=True, slots=True, eq=False)
class ActiveBound:
    """A bound on which parameters lie.

    Parameters
    ----------
    label : str
        Which bound of which component.
    inward : numpy.ndarray, shape (n_parameters,)
        Gradient of the bounded quantity: steps with a negative product leave the bounds.
    """

    label: str
    inward: FloatArray


def bounds_of(
    family: Family,
    *,
    min_weight: float = MIN_WEIGHT,
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
) -> ParameterBounds:
    """Collect the bounds of a family.

    Parameters
    ----------
    family : Family
        The response family.
    min_weight : float, default 1e-4
        Smallest weight of a component.
    min_dispersion_ratio : float, default 0.05
        Hathaway's constraint, for families whose likelihood is unbounded.

    Returns
    -------
    ParameterBounds
        The bounds.
    """
    return ParameterBounds(
        min_weight,
        family.deviation_power,
        min_dispersion_ratio,
        family.dispersion_bounds,
        family.link.largest_predictor,
    )


def enforce(parameters: MixtureParameters, bounds: ParameterBounds) -> MixtureParameters:
    """Move parameters to the nearest point inside the bounds, one kind of bound at a time.

    Parameters
    ----------
    parameters : MixtureParameters
        Any parameters.
    bounds : ParameterBounds
        The bounds.

    Returns
    -------
    MixtureParameters
        Parameters inside.
    """
    lengths = np.hypot(parameters.scales, parameters.biases)
    shrink = np.minimum(1.0, bounds.largest_predictor / np.maximum(lengths, 1e-300))
    dispersion = parameters.dispersion
    if dispersion is not None:
        dispersion = _bounded_dispersion(dispersion, bounds)
    gate, min_weight = parameters.gate, bounds.min_weight
    if gate is not None:
        steepness = np.maximum(np.linalg.norm(gate, axis=0), LARGEST_GATE)
        gate, min_weight = gate * (LARGEST_GATE / steepness), MIN_GATED_WEIGHT
    return MixtureParameters(
        parameters.coefficients * shrink,
        parameters.biases * shrink,
        _bounded_weights(parameters.weights, min_weight),
        dispersion,
        gate,
    )


def active_bounds(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    """Find the bounds on which parameters lie.

    Parameters
    ----------
    parameters : MixtureParameters
        Parameters inside the bounds.
    bounds : ParameterBounds
        The bounds.

    Returns
    -------
    list of ActiveBound
        Empty at an interior point.
    """
    return [
        *_active_weights(parameters, bounds),
        *_active_dispersion(parameters, bounds),
        *_active_lengths(parameters, bounds),
        *_active_gate(parameters),
    ]


def _bounded_weights(weights: FloatArray, smallest: float) -> FloatArray:
    """Raise small weights to the floor; the others give up what that takes, in proportion."""
    smallest = min(smallest, 0.5 / len(weights))
    result = weights / weights.sum()
    low = np.zeros(len(weights), dtype=bool)
    while np.any(result < smallest):
        low |= result <= smallest
        result = np.where(low, smallest, weights)
        result[~low] *= (1 - smallest * low.sum()) / weights[~low].sum()
    return result


def _bounded_dispersion(dispersion: FloatArray, bounds: ParameterBounds) -> FloatArray:
    result = np.clip(dispersion, *bounds.dispersion)
    power = bounds.deviation_power
    if power is None:
        return result
    deviation = result**power
    floor = bounds.min_dispersion_ratio * deviation.max()
    return np.where(deviation < floor, floor ** (1 / power), result)


def _active_weights(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    """The gradient of log w_j in the logits is e_j - w, without the last entry."""
    if parameters.gate is not None:
        return []
    r = parameters.n_components
    first = r * component_size(parameters)
    active = []
    for j in np.flatnonzero(parameters.weights <= bounds.min_weight * (1 + _CLOSE)):
        inward = np.zeros(parameter_count(parameters))
        inward[first:] = (np.arange(r) == j)[:-1] - parameters.weights[:-1]
        active.append(ActiveBound(f"weight of component {j}", inward))
    return active


def _active_dispersion(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    dispersion, q = parameters.dispersion, component_size(parameters)
    if dispersion is None:
        return []
    active = []

    def add(label: str, entries: dict[int, float]) -> None:
        inward = np.zeros(parameter_count(parameters))
        for j, value in entries.items():
            inward[(j + 1) * q - 1] += value
        active.append(ActiveBound(label, inward))

    power = bounds.deviation_power
    if power is not None:
        deviation = dispersion**power
        largest = int(np.argmax(deviation))
        floor = bounds.min_dispersion_ratio * deviation[largest]
        for j in np.flatnonzero(deviation <= floor * (1 + _CLOSE)):
            add(f"dispersion ratio of component {j}", {int(j): power, largest: -power})
    for end, sign in zip(bounds.dispersion, (1.0, -1.0), strict=True):
        for j in np.flatnonzero(sign * (dispersion - end) <= _CLOSE * end):
            add(f"dispersion of component {j}", {int(j): sign})
    return active


def _active_lengths(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    p, q = parameters.n_features, component_size(parameters)
    lengths = np.hypot(parameters.scales, parameters.biases)
    active = []
    for j in np.flatnonzero(lengths >= bounds.largest_predictor * (1 - _CLOSE)):
        inward = np.zeros(parameter_count(parameters))
        inward[j * q : j * q + p] = -parameters.coefficients[:, j] / lengths[j]
        inward[j * q + p] = -parameters.biases[j] / lengths[j]
        active.append(ActiveBound(f"length of component {j}", inward))
    return active


def _active_gate(parameters: MixtureParameters) -> list[ActiveBound]:
    if parameters.gate is None:
        return []
    first, width = parameters.n_components * component_size(parameters), 1 + parameters.n_gate
    steepness = np.linalg.norm(parameters.gate, axis=0)
    active = []
    for j in np.flatnonzero(steepness >= LARGEST_GATE * (1 - _CLOSE)):
        inward = np.zeros(parameter_count(parameters))
        slopes = slice(first + j * width + 1, first + (j + 1) * width)
        inward[slopes] = -parameters.gate[:, j] / steepness[j]
        active.append(ActiveBound(f"gate slope of component {j}", inward))
    return active
