r"""From a start to a maximum of a likelihood: steps of EM, then Newton's, damped.

A step of EM is the complete-data information's inverse times the score (Lange 1995: one Newton step
of the M-step, which for the identity link is the M-step). Newton's step has the observed
information, damped by a multiple of the complete one where it is not positive definite or does not
lead upwards. A step is taken only if the log-likelihood does not fall.

References
----------
K. Lange (1995), A gradient algorithm locally equivalent to the EM algorithm, JRSS B 57, 425-437.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from moment_init.em.start_records import StartStatus

__all__ = ["LARGEST_STEP", "Climb", "System", "climb", "short_climb"]

FloatArray = NDArray[np.float64]

EM_STEPS = 12
"""Steps of EM before Newton's: from a rough start they are the safer ones."""

LARGEST_STEP = 2.0
"""Largest change of a logit or of the logarithm of a dispersion in one step."""

FIRST_DAMPING, LARGEST_DAMPING, NO_DAMPING = 1e-2, 1e6, 1e-6
"""Damping after a first failure; beyond which a run has stalled; and below which it is dropped."""

HALVINGS = 12
"""How often a step of EM is halved before a run has stalled."""

FLAT_SHARE = 0.1
"""Where no step of Newton's leads upwards a run has converged if EM is predicted to gain less than
this share of the tolerance."""

ROUNDING = 1e-11
"""Relative fall of the log-likelihood that is rounding."""


class System(NamedTuple):
    """What a step is computed from.

    Parameters
    ----------
    gradient : numpy.ndarray, shape (N,)
        The score.
    metric : numpy.ndarray, shape (N, N)
        A positive definite matrix, that of EM.
    information : numpy.ndarray, shape (N, N), or None
        Observed information.
    held : numpy.ndarray of bool, shape (N,)
        Entries that do not move.
    """

    gradient: FloatArray
    metric: FloatArray
    information: FloatArray | None
    held: NDArray[np.bool_]


class Point(Protocol):
    """Parameters at which a likelihood is evaluated."""

    @property
    def value(self) -> float:
        """Log-likelihood."""

    @property
    def limits(self) -> FloatArray:
        """Largest change of each entry in one step, (N,)."""

    def system(self, *, has_information: bool) -> System:
        """Derivatives."""

    def moved(self, step: FloatArray) -> Self:
        """Parameters after a step, inside their bounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Climb[P: Point]:
    """A finished run.

    Parameters
    ----------
    point : Point
        Where it ended.
    history : tuple of float
        Log-likelihood at the start and after every step.
    status : StartStatus
        How it ended.
    """

    point: P
    history: tuple[float, ...]
    status: StartStatus

    @property
    def value(self) -> float:
        """Log-likelihood at the end."""
        return self.history[-1]

    @property
    def n_iter(self) -> int:
        """Number of steps."""
        return len(self.history) - 1


def climb[P: Point](
    start: P, *, max_steps: int, tolerance: float = 1e-6, em_steps: int = EM_STEPS
) -> Climb[P]:
    """Climb from a start.

    Parameters
    ----------
    start : Point
        Where to start.
    max_steps : int
        Most steps.
    tolerance : float
        A run has converged when a Newton step is predicted to gain less than this.
    em_steps : int
        Steps of EM at the beginning.

    Returns
    -------
    Climb
        The run; its log-likelihood never falls.
    """
    point, history = start, [start.value]
    for _ in range(min(em_steps, max_steps)):
        found = _em_step(point)
        if found is None:
            break
        gain = found.value - point.value
        point = found
        history.append(point.value)
        if gain < tolerance:
            break
    damping = 0.0
    while True:
        step, damping, is_converged = _newton_step(point, damping, tolerance)
        if is_converged and step is None:
            return Climb(point, tuple(history), StartStatus.CONVERGED)
        if len(history) > max_steps:
            return Climb(point, tuple(history), StartStatus.OUT_OF_STEPS)
        if step is None:
            return Climb(point, tuple(history), StartStatus.STALLED)
        point = step
        history.append(point.value)
        if is_converged:
            return Climb(point, tuple(history), StartStatus.CONVERGED)


def short_climb[P: Point](start: P, n_steps: int) -> Climb[P]:
    """Take some steps of EM.

    Parameters
    ----------
    start : Point
        Where to start.
    n_steps : int
        How many.

    Returns
    -------
    Climb
        The run.
    """
    point, history = start, [start.value]
    for _ in range(n_steps):
        found = _em_step(point)
        if found is None:
            break
        point = found
        history.append(point.value)
    return Climb(point, tuple(history), StartStatus.RACED)


def _em_step[P: Point](point: P) -> P | None:
    """A step of EM, halved until the log-likelihood does not fall; None if it cannot rise."""
    system = point.system(has_information=False)
    step = _solve(system.metric, system)
    if step is None:
        return None
    return _line_search(point, step)


def _line_search[P: Point](point: P, step: FloatArray) -> P | None:
    step = np.clip(step, -point.limits, point.limits)
    for _ in range(HALVINGS):
        found = point.moved(step)
        if _is_higher(found.value, point.value):
            return found
        step = step / 2.0
    return None


def _is_higher(new: float, old: float) -> bool:
    return bool(np.isfinite(new)) and new >= old - ROUNDING * (1.0 + abs(old))


def _newton_step[P: Point](
    point: P, damping: float, tolerance: float
) -> tuple[P | None, float, bool]:
    """A step, the damping of the next one, and whether the run has converged with it.

    None with True: nothing to gain; None with False: no step leads upwards.
    """
    system = point.system(has_information=True)
    if system.information is None:
        raise ValueError("the observed information is needed for Newton's step")
    while damping <= LARGEST_DAMPING:
        step = _solve(system.information + damping * system.metric, system)
        if step is not None:
            predicted = 0.5 * float(step @ system.gradient)
            limited = np.clip(step, -point.limits, point.limits)
            found = point.moved(limited)
            if _is_higher(found.value, point.value):
                is_small = predicted < tolerance and damping <= FIRST_DAMPING
                if found.value <= point.value:
                    # Rounding: there is nothing above within reach.
                    return None, damping, is_small
                gain = found.value - point.value
                damping = _relaxed(damping) if gain > 0.25 * predicted else damping
                return found, damping, is_small
            if predicted < tolerance and damping <= FIRST_DAMPING:
                return None, damping, True
        damping = max(4.0 * damping, FIRST_DAMPING)
    gained = _em_step(point)
    if gained is None or gained.value - point.value < tolerance:
        # A flat place: the information is singular, and EM does not move either.
        flat = _solve(system.metric, system)
        decrement = np.inf if flat is None else 0.5 * float(flat @ system.gradient)
        return None, 0.0, decrement < FLAT_SHARE * tolerance
    return gained, 0.0, False


def _relaxed(damping: float) -> float:
    return 0.0 if damping < NO_DAMPING else damping / 8.0


def _solve(matrix: FloatArray, system: System) -> FloatArray | None:
    """Step for the entries that move; None if the matrix is not positive definite."""
    free = ~system.held
    step = np.zeros(len(free))
    if not free.any():
        return step
    if not np.isfinite(system.gradient).all() or not np.isfinite(matrix).all():
        return None
    inner = matrix[np.ix_(free, free)]
    # Scaled to a unit diagonal: parameters differ in units and in how many rows speak of them.
    diagonal = np.diag(inner)
    if diagonal.min() <= 0.0:
        return None
    roots = np.sqrt(diagonal)
    try:
        factor = cho_factor(inner / np.outer(roots, roots))
    except np.linalg.LinAlgError:
        return None
    step[free] = cho_solve(factor, system.gradient[free] / roots) / roots
    return step
