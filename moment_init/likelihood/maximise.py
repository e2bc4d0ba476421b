r"""Maximum of a mixture likelihood: EM steps, then Newton steps damped towards EM.

Every step solves :math:`(I_{complete} - (1 - \kappa) I_{missing})\, \delta = score`. With
:math:`\kappa = 1` it is an EM step (its M-step one Newton step of the complete-data likelihood),
with :math:`\kappa = 0` a Newton step on the observed likelihood; :math:`\kappa` falls after every
success and rises after a failure. A step that lowers the log-likelihood is never taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, null_space

from moment_init.families import Family
from moment_init.likelihood.bounds import (
    MIN_DISPERSION_RATIO,
    MIN_WEIGHT,
    ActiveBound,
    ParameterBounds,
    active_bounds,
    bounds_of,
    enforce,
)
from moment_init.likelihood.parameters import MixtureParameters, move
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    parameter_free_log_likelihood,
)

__all__ = ["MaximiseResult", "maximise", "solve_information"]

FloatArray = NDArray[np.float64]

_RIDGE = 1e-10
"""Added to the unit diagonal of a scaled information: far below its statistical error, and enough
to keep a direction that no row informs from making the factorisation fail by rounding."""

_SMALLEST_DIAGONAL = 1e-12
"""Diagonal entries of the information are scaled as if at least this large."""

_SMALLEST_RIDGE = 1e-6
"""What a zero on the diagonal counts as where a ridge is needed."""

_SMALLEST_SHARE = 1e-3
"""A step cut to less than this without a gain ends the search: the gradient is rounding there."""

_NEWTON_DAMPING = 0.5
"""Only a step with less damping tells how much is left to gain: an EM step understates it by the
reciprocal of the share of information that is not missing."""

_PURE_NEWTON = 1e-3
"""Damping below this is dropped altogether, so that the last steps converge quadratically."""

_ROUNDING = 1e-13
"""Relative rounding error of a sum of log densities: a gain below it cannot be seen."""


@dataclass(frozen=True, slots=True, eq=False)
class MaximiseResult:
    """Where a search for the maximum of a mixture likelihood ended.

    Parameters
    ----------
    parameters : MixtureParameters
        The best parameters found.
    log_likelihood : float
        Their log-likelihood, with all constants.
    information : numpy.ndarray, shape (n_parameters, n_parameters)
        Observed information there; positive definite at an interior maximum only.
    n_iter : int
        Number of steps tried; the rows were read once more than that.
    converged : bool
        Whether the predicted gain of the last step was below the tolerance.
    history : tuple of float
        Log-likelihood at the start and after every step taken; it never falls.
    bounds : tuple of str
        The bounds on which the parameters lie; empty at an interior point.
    """

    parameters: MixtureParameters
    log_likelihood: float
    information: FloatArray
    n_iter: int
    converged: bool
    history: tuple[float, ...]
    bounds: tuple[str, ...]


def maximise(
    family: Family,
    rows: LikelihoodRows,
    start: MixtureParameters,
    *,
    max_steps: int = 30,
    em_steps: int = 0,
    tolerance: float = 1e-3,
    damping: float = 1.0,
    min_weight: float = MIN_WEIGHT,
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
) -> MaximiseResult:
    """Climb from a start to the maximum of the likelihood near it.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    start : MixtureParameters
        Where to begin; moved inside the bounds first.
    max_steps : int, default 30
        Most steps that are tried, EM steps included; 0 evaluates the start.
    em_steps : int, default 0
        How many of the first steps are EM steps.
    tolerance : float, default 1e-3
        The search ends when a step is predicted to gain less log-likelihood than this. A
        thousandth of a unit moves no estimate by more than .05 standard errors.
    damping : float, default 1.0
        Damping of the first step after the EM steps: 1 is EM, 0 is Newton. Small where the start
        is known to be close.
    min_weight : float, default 1e-4
        Smallest weight of a component.
    min_dispersion_ratio : float, default 0.05
        Hathaway's constraint, for families whose likelihood is unbounded.

    Returns
    -------
    MaximiseResult
        The best parameters, never worse than the start.
    """
    bounds = bounds_of(family, min_weight=min_weight, min_dispersion_ratio=min_dispersion_ratio)
    constant = parameter_free_log_likelihood(family, rows)
    parameters = enforce(start, bounds)
    sums = likelihood_sums(family, rows, parameters, constant=constant)
    history, share, converged, n_iter = [sums.log_likelihood], 1.0, False, 0
    while n_iter < max_steps and not converged:
        if n_iter < em_steps:
            damping = 1.0
        active = active_bounds(parameters, bounds)
        step, damping = _bounded_step(sums, active, damping)
        gain = 0.5 * float(sums.score @ step)
        candidate = enforce(move(parameters, share * step), bounds)
        there = likelihood_sums(family, rows, candidate, constant=constant)
        n_iter += 1
        if there.log_likelihood >= sums.log_likelihood:
            parameters, sums = candidate, there
            history.append(sums.log_likelihood)
            converged = gain < tolerance and damping < _NEWTON_DAMPING
            damping = _relaxed(damping) if n_iter > em_steps else damping
            share = min(1.0, 2 * share)
        elif gain <= _ROUNDING * abs(sums.log_likelihood):
            converged = True
        elif damping < 1.0:
            damping = min(1.0, 8 * damping + 1e-2)
        else:
            share /= 3
            if share < _SMALLEST_SHARE:
                break
    return _result(parameters, sums, bounds, n_iter, converged, history)


def solve_information(information: FloatArray, score: FloatArray) -> FloatArray | None:
    """Solve for a step by a Cholesky factorisation of the information scaled to unit diagonal.

    Parameters
    ----------
    information : numpy.ndarray, shape (n_parameters, n_parameters)
        A symmetric matrix.
    score : numpy.ndarray, shape (n_parameters,)
        The gradient.

    Returns
    -------
    numpy.ndarray, shape (n_parameters,), or None
        The step; None if the information is not positive definite.
    """
    scale = np.sqrt(np.maximum(np.diag(information), _SMALLEST_DIAGONAL))
    scaled = information / np.outer(scale, scale)
    scaled[np.diag_indices_from(scaled)] += _RIDGE
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(cho_solve((factor, True), score / scale) / scale)


def _relaxed(damping: float) -> float:
    return damping / 4 if damping > _PURE_NEWTON else 0.0


def _bounded_step(
    sums: LikelihoodSums, active: Sequence[ActiveBound], damping: float
) -> tuple[FloatArray, float]:
    """A step that leaves no bound: bounds it would leave are held, and the rest solved again."""
    step, damping = _free_step(sums, None, damping)
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
        tangent = null_space(np.array([active[index].inward for index in held]))
        step, damping = _free_step(sums, tangent, damping)


def _free_step(
    sums: LikelihoodSums, tangent: FloatArray | None, damping: float
) -> tuple[FloatArray, float]:
    """Solve with the smallest damping from the given one upwards that is positive definite."""
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


def _result(
    parameters: MixtureParameters,
    sums: LikelihoodSums,
    bounds: ParameterBounds,
    n_iter: int,
    converged: bool,
    history: Sequence[float],
) -> MaximiseResult:
    labels = tuple(bound.label for bound in active_bounds(parameters, bounds))
    return MaximiseResult(
        parameters,
        sums.log_likelihood,
        sums.information(),
        n_iter,
        converged,
        tuple(history),
        labels,
    )
