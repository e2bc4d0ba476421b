r"""Maximum of a mixture likelihood: EM steps while they are fast, then Newton steps damped to EM.

An iteration of EM is cheap and climbs from anywhere, but near the maximum it gains only the share
of what is left that is not missing. A Newton step solves
:math:`(I_{complete} - (1 - \kappa) I_{missing})\, \delta = score`. With :math:`\kappa = 1` it is an
EM step, with :math:`\kappa = 0` a Newton step on the observed likelihood; :math:`\kappa` falls
after every success and rises after a failure. A step that lowers the log-likelihood is never taken.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
from moment_init.likelihood.constraints import LinearConstraint
from moment_init.likelihood.em_step import em_step
from moment_init.likelihood.parameters import MixtureParameters, move
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.stepping import bounded_step, free_step, rounding_of
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    parameter_free_log_likelihood,
)

__all__ = ["Ending", "MaximiseResult", "climb", "maximise"]

FloatArray = NDArray[np.float64]

_SMALLEST_SHARE = 1e-3
"""A step cut to less than this without a gain ends the search: the gradient is rounding there."""

_NEWTON_DAMPING = 0.5
"""Only a step with less damping tells how much is left to gain: an EM step understates it by the
reciprocal of the share of information that is not missing."""

_PURE_NEWTON = 1e-3
"""Damping below this is dropped altogether, so that the last steps converge quadratically."""

_SETTLED = 1e-2
"""A Newton step that promises less than this share of the tolerance is not tried: what is left
moves no estimate by more than sqrt(2 * .01 * tolerance) standard errors."""

_IDLE_STEPS = 5
"""So many steps in a row that gain no more than rounding end a search, whatever they promise."""

_SLOW_RATE = 0.8
"""EM is slow once an iteration gains more than this share of what the last one gained: five more
iterations of it would then gain less than twice the next, and a Newton step costs about five. Gains
that grow, or that exceed the number of parameters, are those of a run on its way, where Newton's
step is no better."""

_NEWTON_GAIN = 1.0
"""Gain of an iteration of EM below which the maximum is so near that Newton's steps end sooner."""

_SURE_RATE = 0.5
"""Rate of EM below which, once an iteration gains less than `_NEWTON_GAIN`, less than that is left:
Newton's first step is not damped then."""

_HOPEFUL = 30.0
"""A run is given up if even so many times the predicted gain would not take it to its target."""

_SMALLEST_GAIN = 1e-300
"""Keeps the ratio of two increments finite."""

_LARGEST_RATE = 0.8
"""Rate of convergence of EM beyond which increments do not tell how much is left: Newton's steps
may then gain a hundred times as much."""


class Ending(StrEnum):
    """Why a search ended."""

    CONVERGED = "converged"
    OUT_OF_STEPS = "out_of_steps"
    STALLED = "stalled"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, eq=False)
class MaximiseResult:
    """Where a search for the maximum of a mixture likelihood ended.

    Parameters
    ----------
    parameters : MixtureParameters
        The best parameters found.
    sums : LikelihoodSums
        Log-likelihood and its derivatives there.
    n_iter : int
        Number of steps tried.
    ending : Ending
        Why the search ended.
    history : tuple of float
        Log-likelihood at the start and after every step taken; it never falls.
    bounds : tuple of str
        The bounds on which the parameters lie; empty at an interior point.
    """

    parameters: MixtureParameters
    sums: LikelihoodSums
    n_iter: int
    ending: Ending
    history: tuple[float, ...]
    bounds: tuple[str, ...]

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood of the best parameters, with all constants."""
        return self.sums.log_likelihood

    @property
    def information(self) -> FloatArray:
        """Observed information; positive definite at an interior maximum only."""
        return self.sums.information()

    @property
    def converged(self) -> bool:
        """Whether the predicted gain of the last step was below the tolerance."""
        return self.ending is Ending.CONVERGED


class _Climbable[P](Protocol):
    """A likelihood of parameters of any kind P that can be climbed."""

    @property
    def constraint(self) -> LinearConstraint | None:
        """What holds the vector of parameters."""

    def sums(self, parameters: P, *, missing: bool) -> LikelihoodSums:
        """Log-likelihood and derivatives, the missing information if it is asked for."""

    def moved(self, parameters: P, step: FloatArray) -> P:
        """Where a step in the vector of parameters ends, inside all bounds."""

    def em_moved(self, parameters: P, sums: LikelihoodSums, share: float) -> P:
        """Where a share of an iteration of EM ends."""

    def active(self, parameters: P) -> list[ActiveBound]:
        """Bounds on which parameters lie."""


@dataclass(slots=True)
class _Search[P]:
    """State of a search; `sums` belong to `parameters`."""

    parameters: P
    sums: LikelihoodSums
    history: list[float]
    damping: float
    share: float = 1.0
    n_iter: int = 0
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class _Likelihood:
    """The function that is climbed."""

    family: Family
    rows: LikelihoodRows
    bounds: ParameterBounds
    constraint: LinearConstraint | None
    constant: float

    def sums(self, parameters: MixtureParameters, *, missing: bool) -> LikelihoodSums:
        return likelihood_sums(
            self.family, self.rows, parameters, missing=missing, constant=self.constant
        )

    def moved(self, parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
        """A step that ends inside the bounds, and on the constraint."""
        inside = enforce(move(parameters, step), self.bounds)
        return inside if self.constraint is None else self.constraint.project(inside, parameters)

    def em_moved(
        self, parameters: MixtureParameters, sums: LikelihoodSums, share: float
    ) -> MixtureParameters:
        """A share of the step of EM; on a constraint, of the complete information's solution."""
        held = self.constraint
        step = em_step(self.family, sums, parameters) if held is None else None
        if step is None:
            step = free_step(sums, None if held is None else held.basis, 1.0)[0]
        return self.moved(parameters, share * step)

    def active(self, parameters: MixtureParameters) -> list[ActiveBound]:
        return active_bounds(parameters, self.bounds)


def maximise(
    family: Family,
    rows: LikelihoodRows,
    start: MixtureParameters,
    *,
    max_steps: int = 30,
    em_steps: int = 0,
    max_em_steps: int | None = None,
    tolerance: float = 1e-3,
    damping: float = 1.0,
    min_weight: float = MIN_WEIGHT,
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
    constraint: LinearConstraint | None = None,
    target: float | None = None,
    constant: float | None = None,
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
    max_em_steps : int, optional
        EM goes on beyond `em_steps`, up to so many steps, while it is fast; `em_steps` by default.
    tolerance : float, default 1e-3
        The search ends when a Newton step is predicted to gain less log-likelihood than this. A
        thousandth of a unit moves no estimate by more than .05 standard errors.
    damping : float, default 1.0
        Damping of the first step after the EM steps: 1 is EM, 0 is Newton. Small where the start
        is known to be close.
    min_weight : float, default 1e-4
        Smallest weight of a component.
    min_dispersion_ratio : float, default 0.05
        Hathaway's constraint, for families whose likelihood is unbounded.
    constraint : LinearConstraint, optional
        Parameters are held on it; the start must lie on it.
    target : float, optional
        The search is abandoned once EM, while it is fast, is predicted to end below this
        log-likelihood. Newton's steps are never abandoned: flat stretches precede large gains.
    constant : float, optional
        `parameter_free_log_likelihood` of these rows, for callers that climb often.

    Returns
    -------
    MaximiseResult
        The best parameters, never worse than the start.
    """
    rows = rows.with_products()
    bounds = bounds_of(family, min_weight=min_weight, min_dispersion_ratio=min_dispersion_ratio)
    if constant is None:
        constant = parameter_free_log_likelihood(family, rows)
    likelihood = _Likelihood(family, rows, bounds, constraint, constant)
    search = climb(
        likelihood,
        enforce(start, bounds),
        max_steps=max_steps,
        em_steps=em_steps,
        max_em_steps=max_em_steps,
        tolerance=tolerance,
        damping=damping,
        target=target,
    )
    labels = tuple(bound.label for bound in active_bounds(search.parameters, bounds))
    return MaximiseResult(
        search.parameters,
        search.sums,
        search.n_iter,
        search.ending or Ending.OUT_OF_STEPS,
        tuple(search.history),
        labels,
    )


def climb[P](
    likelihood: _Climbable[P],
    start: P,
    *,
    max_steps: int,
    em_steps: int,
    max_em_steps: int | None,
    tolerance: float,
    damping: float,
    target: float | None,
) -> _Search[P]:
    """Climb any likelihood from a start inside its bounds.

    Parameters
    ----------
    likelihood : object
        What is climbed: its sums, moves and bounds, see `_Climbable`.
    start : P
        Where to begin.
    max_steps, em_steps, max_em_steps, tolerance, damping, target : object
        As for `maximise`.

    Returns
    -------
    _Search
        Where it ended, never lower than the start.
    """
    most_em = min(max_steps, max(em_steps, max_em_steps or 0))
    sums = likelihood.sums(start, missing=most_em == 0 < max_steps)
    search = _Search(start, sums, [sums.log_likelihood], damping)
    _climb_by_em(likelihood, search, em_steps, most_em, target)
    if search.ending is None and (search.n_iter < max_steps or max_steps == 0):
        _climb_by_newton(likelihood, search, max_steps, tolerance)
    return search


def _climb_by_em[P](
    likelihood: _Climbable[P],
    search: _Search[P],
    em_steps: int,
    most: int,
    target: float | None,
) -> None:
    """Iterations of EM: some always, then more while they are fast."""
    last_gain = np.inf
    while search.n_iter < most:
        before = search.sums.log_likelihood
        while True:
            candidate = likelihood.em_moved(search.parameters, search.sums, search.share)
            there = likelihood.sums(candidate, missing=False)
            search.n_iter += 1
            if there.log_likelihood >= before or search.n_iter >= most:
                break
            search.share /= 3
            if search.share < _SMALLEST_SHARE:
                return
        if there.log_likelihood < before:
            return
        gain = there.log_likelihood - before
        search.parameters, search.sums = candidate, there
        search.history.append(there.log_likelihood)
        is_slow = _SLOW_RATE * last_gain < gain <= last_gain and gain < len(there.score)
        rate = gain / max(last_gain, _SMALLEST_GAIN)
        if search.n_iter >= em_steps and target is not None and rate < _LARGEST_RATE:
            # Aitken: what is left is geometric
            if there.log_likelihood + _HOPEFUL * gain * rate / (1 - rate) < target:
                search.ending = Ending.ABANDONED
                return
        is_near = gain < _NEWTON_GAIN and gain <= last_gain
        if search.n_iter >= em_steps and (is_slow or is_near) and search.share == 1.0:
            search.damping = 0.0 if is_near and rate < _SURE_RATE else search.damping
            return
        search.share, last_gain = min(1.0, 2 * search.share), gain


def _climb_by_newton[P](
    likelihood: _Climbable[P],
    search: _Search[P],
    max_steps: int,
    tolerance: float,
) -> None:
    """Damped Newton steps until one promises little."""
    if search.sums.missing_information is None:
        search.sums = likelihood.sums(search.parameters, missing=True)
    search.share, n_idle = 1.0, 0
    while search.n_iter < max_steps and search.ending is None:
        active = likelihood.active(search.parameters)
        sums = search.sums
        step, damping = bounded_step(sums, active, likelihood.constraint, search.damping)
        gain = 0.5 * float(sums.score @ step)
        if damping < _NEWTON_DAMPING and gain < _SETTLED * tolerance:
            search.ending = Ending.CONVERGED
            break
        candidate = likelihood.moved(search.parameters, search.share * step)
        there = likelihood.sums(candidate, missing=True)
        search.n_iter += 1
        search.damping = damping
        if there.log_likelihood >= sums.log_likelihood:
            gained = there.log_likelihood - sums.log_likelihood
            n_idle = n_idle + 1 if gained <= rounding_of(sums) else 0
            search.parameters, search.sums = candidate, there
            search.history.append(there.log_likelihood)
            is_newton = damping < _NEWTON_DAMPING
            if gain < tolerance and (is_newton or n_idle >= _IDLE_STEPS):
                search.ending = Ending.CONVERGED
            elif n_idle >= _IDLE_STEPS:  # the bounds take back what a step would gain
                search.ending = Ending.STALLED
            search.damping = damping / 4 if damping > _PURE_NEWTON else 0.0
            search.share = min(1.0, 2 * search.share)
        elif gain <= rounding_of(sums):
            search.ending = Ending.CONVERGED
        elif damping < 1.0:
            search.damping = min(1.0, 8 * damping + 1e-2)
        else:
            search.share /= 3
            if search.share < _SMALLEST_SHARE:
                search.ending = Ending.STALLED
