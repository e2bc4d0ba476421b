"""Steps between EM and Newton, on a constraint and inside bounds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

from moment_init.likelihood.bounds import ActiveBound
from moment_init.likelihood.constraints import LinearConstraint
from moment_init.likelihood.solving import solve_information
from moment_init.likelihood.sums import LikelihoodSums

__all__ = ["bounded_step", "free_step", "rounding_of"]

FloatArray = NDArray[np.float64]

_SMALLEST_RIDGE = 1e-6
"""What a zero on the diagonal counts as where a ridge is needed."""

_ROUNDING = 1e-13
"""Relative rounding error of a sum of log densities: a gain below it cannot be seen."""


def bounded_step(
    sums: LikelihoodSums,
    active: Sequence[ActiveBound],
    constraint: LinearConstraint | None,
    damping: float,
) -> tuple[FloatArray, float]:
    """Solve for a step that leaves no bound: those it would leave are held, the rest solved again.

    Parameters
    ----------
    sums : LikelihoodSums
        Score and information.
    active : sequence of ActiveBound
        Bounds on which the parameters lie.
    constraint : LinearConstraint or None
        What holds the vector of parameters.
    damping : float
        Smallest damping: 1 is EM, 0 is Newton.

    Returns
    -------
    step : numpy.ndarray, shape (n_parameters,)
        The step.
    damping : float
        The damping that made the information positive definite.
    """
    basis = None if constraint is None else constraint.basis
    step, damping = free_step(sums, basis, damping)
    held: list[int] = []
    while True:
        leaving = [
            index
            for index, bound in enumerate(active)
            if index not in held and bound.inward @ step < 0
        ]
        if not leaving:
            return step, damping
        held += leaving
        normals = np.array([active[index].inward for index in held])
        free = null_space(normals) if basis is None else basis @ null_space(normals @ basis)
        step, damping = free_step(sums, free, damping)


def free_step(
    sums: LikelihoodSums, tangent: FloatArray | None, damping: float
) -> tuple[FloatArray, float]:
    """Solve with the smallest damping from the given one upwards that is positive definite.

    Parameters
    ----------
    sums : LikelihoodSums
        Score and information.
    tangent : numpy.ndarray, shape (n_parameters, n_free), or None
        Directions in which the step may go; None for all.
    damping : float
        Smallest damping.

    Returns
    -------
    step : numpy.ndarray, shape (n_parameters,)
        The step.
    damping : float
        The damping used.
    """
    ridge = 0.0
    while True:
        information, score = sums.information(damping), sums.score
        if tangent is not None:
            information, score = tangent.T @ information @ tangent, tangent.T @ score
        if ridge > 0.0:
            diagonal = np.abs(np.diag(information)) + _SMALLEST_RIDGE
            information = information + ridge * np.diag(diagonal)
        step = solve_information(information, score)
        if step is not None:
            return (step if tangent is None else tangent @ step), damping
        # the complete-data information of a dispersion may be negative far from the maximum
        ridge = 2 * ridge + 0.5 if damping >= 1.0 else 0.0
        damping = min(1.0, 4 * damping + 1e-3)


def rounding_of(sums: LikelihoodSums) -> float:
    """Gain of log-likelihood that cannot be told from rounding.

    Parameters
    ----------
    sums : LikelihoodSums
        The sums.

    Returns
    -------
    float
        The gain.
    """
    return _ROUNDING * max(abs(sums.log_likelihood), sums.magnitude)
