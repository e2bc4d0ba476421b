"""Bounds of the parameters of several predictors: as in `moment_init.likelihood.bounds`."""

import numpy as np
from numpy.typing import NDArray

from moment_init.likelihood.bounds import MIN_WEIGHT
from moment_init.responses.parameters import JointParameters
from moment_init.responses.rows import JointProblem

__all__ = ["active_bounds", "enforce", "held_entries"]

FloatArray = NDArray[np.float64]

_CLOSE = 1e-9
"""A bound holds when it is this close, relative."""


def enforce(problem: JointProblem, parameters: JointParameters) -> JointParameters:
    """Move parameters inside the bounds.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    parameters : JointParameters
        Any parameters.

    Returns
    -------
    JointParameters
        Parameters inside.
    """
    lengths = _lengths(parameters)
    shrink = np.minimum(1.0, problem.kind.largest_predictor / np.maximum(lengths, 1e-300))
    dispersion = parameters.dispersion
    if dispersion is not None:
        low, high = _dispersion_range(problem, dispersion)
        dispersion = np.clip(dispersion, low, high)
    weights = np.maximum(parameters.weights, min(MIN_WEIGHT, 0.5 / parameters.n_components))
    return JointParameters(
        parameters.coefficients * shrink,
        parameters.biases * shrink,
        weights / weights.sum(),
        dispersion,
    )


def active_bounds(problem: JointProblem, parameters: JointParameters) -> tuple[str, ...]:
    """Say on which bounds parameters lie.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    parameters : JointParameters
        Parameters inside the bounds.

    Returns
    -------
    tuple of str
        One for each bound.
    """
    names = problem.kind.names
    found = [f"weight of component {j}" for j in np.flatnonzero(_low_weights(parameters))]
    is_long = _lengths(parameters) >= problem.kind.largest_predictor * (1 - _CLOSE)
    found += [f"length of component {j}, {names[a]}" for j, a in np.argwhere(is_long)]
    if parameters.dispersion is not None:
        low, high = _dispersion_range(problem, parameters.dispersion)
        value = parameters.dispersion
        is_there = (value <= low * (1 + _CLOSE)) | (value >= high * (1 - _CLOSE))
        found += [f"dispersion of component {j}, {names[a]}" for j, a in np.argwhere(is_there)]
    return tuple(found)


def held_entries(
    problem: JointProblem, parameters: JointParameters, gradient: FloatArray
) -> NDArray[np.bool_]:
    """Entries of the vector that a bound holds: the gradient points outwards there.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    parameters : JointParameters
        Parameters inside the bounds.
    gradient : numpy.ndarray, shape (N,)
        The score.

    Returns
    -------
    numpy.ndarray of bool, shape (N,)
        Which entries do not move.
    """
    layout = problem.layout
    held = np.zeros(layout.size, dtype=bool)
    is_long = _lengths(parameters) >= problem.kind.largest_predictor * (1 - _CLOSE)
    for j, a in np.argwhere(is_long):
        start = layout.component(j).start
        place = slice(start + layout.predictor(a).start, start + layout.predictor(a).stop)
        outwards = np.append(parameters.coefficients[:, j, a], parameters.biases[j, a])
        held[place] = outwards @ gradient[place] > 0.0
    if parameters.dispersion is not None:
        low, high = _dispersion_range(problem, parameters.dispersion)
        for j, a in np.argwhere(np.isfinite(parameters.dispersion)):
            place = layout.component(j).start + layout.predictor(a).stop
            value, slope = parameters.dispersion[j, a], gradient[place]
            is_low = value <= low[j, a] * (1 + _CLOSE) and slope < 0.0
            held[place] = is_low or (value >= high[j, a] * (1 - _CLOSE) and slope > 0.0)
    low_weights = _low_weights(parameters)[:-1]
    held[layout.logits] = low_weights & (gradient[layout.logits] < 0.0)
    return held


def _lengths(parameters: JointParameters) -> FloatArray:
    """Lengths of (beta, b), (n_components, n_predictors)."""
    squares = np.square(parameters.coefficients).sum(axis=0) + np.square(parameters.biases)
    return np.asarray(np.sqrt(squares))


def _low_weights(parameters: JointParameters) -> NDArray[np.bool_]:
    return np.asarray(parameters.weights <= MIN_WEIGHT * (1 + 1e-3))


def _dispersion_range(
    problem: JointProblem, dispersion: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest dispersion of every component and predictor."""
    low, high = np.zeros_like(dispersion), np.full_like(dispersion, np.inf)
    for a, family in enumerate(problem.kind.families):
        if family is None or not family.has_dispersion:
            continue
        low[:, a], high[:, a] = family.dispersion_bounds
        power = family.deviation_power
        if power is None:
            continue
        # Hathaway: the ratio of two deviations is bounded, from the side of the smaller one.
        deviation = np.clip(dispersion[:, a], *family.dispersion_bounds) ** power
        end = (problem.min_dispersion_ratio * deviation.max()) ** (1 / power)
        if power > 0:
            low[:, a] = np.maximum(low[:, a], end)
        else:
            high[:, a] = np.minimum(high[:, a], end)
    return low, high
