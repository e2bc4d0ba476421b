"""Parameters of a simulated mixture: those given, checked, and random ones for the rest."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from moment_init.families import Family
from moment_init.families.links import FloatArray
from moment_init.real_arrays import as_float_array

__all__ = ["MixtureParameters", "as_floats", "complete_parameters"]

_WEIGHT_CONCENTRATION = 10.0
"""Weights ~ Dirichlet(10, ..., 10): unequal, and seldom below a third of an equal share."""

_SCALE_RANGE = (0.7, 1.3)
_BIAS_DEVIATION = 0.5

_UNIT_TOLERANCE = 1e-8
"""How far a sum of weights or a length may be from 1: more than rounding, less than a mistake."""


@dataclass(frozen=True, slots=True, eq=False)
class MixtureParameters:
    """Parameters of a mixture of generalised linear models.

    Parameters
    ----------
    directions : ndarray of shape (n_features, n_components)
        Unit vectors in columns.
    scales, biases, weights : ndarray of shape (n_components,)
        Lengths of the coefficients, intercepts, probabilities.
    dispersion : ndarray of shape (n_components,) or None
        Where the family has one.
    """

    directions: FloatArray
    scales: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None


def complete_parameters(
    family: Family,
    shape: tuple[int, int],
    rng: np.random.Generator,
    *,
    directions: ArrayLike | None,
    scales: ArrayLike | None,
    biases: ArrayLike | None,
    weights: ArrayLike | None,
    dispersion: ArrayLike | None,
) -> MixtureParameters:
    """Check the parameters that are given and draw the others.

    Every parameter is drawn, needed or not, so that no draw depends on which were given.

    Parameters
    ----------
    family : Family
        The response family.
    shape : tuple of int
        (n_features, n_components).
    rng : numpy.random.Generator
        The source of randomness.
    directions, scales, biases, weights, dispersion : array_like or None
        As in `simulate_mixture`.

    Returns
    -------
    MixtureParameters
        All of them.

    Raises
    ------
    TypeError
        If a parameter does not hold numbers.
    ValueError
        If a parameter has the wrong shape or a value outside its range.
    """
    n_components = shape[1]
    drawn_directions = rng.standard_normal(shape)
    drawn_directions /= np.linalg.norm(drawn_directions, axis=0)
    drawn_weights = rng.dirichlet(np.full(n_components, _WEIGHT_CONCENTRATION))
    drawn_weights /= drawn_weights.sum()  # one component: exactly 1
    drawn_scales = family.typical_scale * rng.uniform(*_SCALE_RANGE, n_components)
    drawn_biases = _BIAS_DEVIATION * rng.standard_normal(n_components)
    return MixtureParameters(
        directions=_given_directions(directions, drawn_directions),
        scales=_given_vector("scales", scales, drawn_scales, is_positive=True),
        biases=_given_vector("biases", biases, drawn_biases),
        weights=_given_weights(weights, drawn_weights),
        dispersion=_given_dispersion(family, dispersion, n_components),
    )


def as_floats(name: str, values: ArrayLike) -> FloatArray:
    """Turn an argument into an array of doubles.

    Parameters
    ----------
    name : str
        The argument to name in a message.
    values : array_like
        What was given.

    Returns
    -------
    ndarray
        A copy.

    Raises
    ------
    TypeError
        If the values are not real numbers.
    ValueError
        For masked values, and for lists of unequal length.
    """
    return np.array(as_float_array(values, name))


def _given_vector(
    name: str, given: ArrayLike | None, drawn: FloatArray, *, is_positive: bool = False
) -> FloatArray:
    """One number for each component: those given, a scalar repeated, or those drawn."""
    if given is None:
        return drawn
    values = as_floats(name, given)
    if values.shape not in ((), drawn.shape):
        raise ValueError(
            f"`{name}` must be one number or one for each component, shape {drawn.shape}; "
            f"got shape {values.shape}. Match it to `n_components`."
        )
    values = np.array(np.broadcast_to(values, drawn.shape))
    is_valid = np.isfinite(values) & ((values > 0) | (not is_positive))
    if not np.all(is_valid):
        rule = "finite and above 0" if is_positive else "finite"
        component = int(np.argmin(is_valid))
        raise ValueError(
            f"`{name}` must be {rule}; got {values[component]:g} for component {component}. "
            "Correct that entry."
        )
    return values


def _given_weights(given: ArrayLike | None, drawn: FloatArray) -> FloatArray:
    if given is None:
        return drawn
    values = as_floats("weights", given)
    if values.shape != drawn.shape:
        raise ValueError(
            f"`weights` must have one entry for each component, shape {drawn.shape}; "
            f"got shape {values.shape}. Match it to `n_components`."
        )
    values = _given_vector("weights", values, drawn, is_positive=True)
    total = float(values.sum())
    if not np.isclose(total, 1.0, rtol=0.0, atol=_UNIT_TOLERANCE):
        raise ValueError(f"`weights` must sum to 1; got a sum of {total:g}. Divide them by it.")
    return values / total  # numpy's sampler is stricter about rounding than a caller need be


def _given_directions(given: ArrayLike | None, drawn: FloatArray) -> FloatArray:
    if given is None:
        return drawn
    values = as_floats("directions", given)
    if values.shape != drawn.shape:
        raise ValueError(
            f"`directions` must have the shape (n_features, n_components) = {drawn.shape}; "
            f"got {values.shape}. Components are columns."
        )
    lengths = np.linalg.norm(values, axis=0)
    is_unit = np.isclose(lengths, 1.0, rtol=0.0, atol=_UNIT_TOLERANCE)
    if not np.all(is_unit):
        component = int(np.argmin(is_unit))
        raise ValueError(
            f"`directions` must have columns of length 1; got length {lengths[component]:g} for "
            f"component {component}. Divide by the lengths and give these as `scales`."
        )
    return values / lengths


def _given_dispersion(
    family: Family, given: ArrayLike | None, n_components: int
) -> FloatArray | None:
    if not family.has_dispersion:
        if given is not None:
            raise ValueError(
                f"`dispersion` has no meaning for family {family.name!r}; got a value for it. "
                "Leave it out."
            )
        return None
    typical = np.full(n_components, family.typical_dispersion, dtype=np.float64)
    return _given_vector("dispersion", given, typical, is_positive=True)
