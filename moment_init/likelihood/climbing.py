"""The climb of any likelihood: iterations of EM while they are fast, then damped Newton steps."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moment_init.likelihood.bounds import ActiveBound
from moment_init.likelihood.constraints import LinearConstraint
from moment_init.likelihood.stepping import bounded_step, rounding_of
from moment_init.likelihood.sums import LikelihoodSums

__all__ = ["Ending", "climb"]

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

_LONGEST_SHARE = 1.8
_STRETCH = 1.2
"""While a run is on its way its iterations of EM are stretched, each more than the last: EM's step
is short by the share of information that is missing. Below a factor of two an iteration still
contracts in every direction; one that lowers the log-likelihood is tried again at its own length.
"""

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
    RECOGNISED = "recognised"


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
    is_known: Callable[[P, LikelihoodSums], bool] | None = None

    def advance(self, parameters: P, sums: LikelihoodSums) -> bool:
        """Take a step that was tried; whether what lies ahead is known."""
        self.parameters, self.sums = parameters, sums
        self.history.append(sums.log_likelihood)
        return self.recognise()

    def recognise(self) -> bool:
        """End where what lies ahead is known."""
        is_known = self.is_known is not None and self.is_known(self.parameters, self.sums)
        if is_known:
            self.ending = Ending.RECOGNISED
        return is_known


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
    is_known: Callable[[P, LikelihoodSums], bool] | None = None,
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
    is_known : callable, optional
        Says of a point and its sums whether a maximum lies ahead that is known already; the climb
        ends there.

    Returns
    -------
    _Search
        Where it ended, never lower than the start.
    """
    most_em = min(max_steps, max(em_steps, max_em_steps or 0))
    sums = likelihood.sums(start, missing=most_em == 0 < max_steps)
    search = _Search(start, sums, [sums.log_likelihood], damping, is_known=is_known)
    search.recognise()
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
    while search.n_iter < most and search.ending is None:
        before = search.sums.log_likelihood
        while True:
            candidate = likelihood.em_moved(search.parameters, search.sums, search.share)
            there = likelihood.sums(candidate, missing=False)
            search.n_iter += 1
            if there.log_likelihood >= before or search.n_iter >= most:
                break
            search.share = 1.0 if search.share > 1.0 else search.share / 3
            if search.share < _SMALLEST_SHARE:
                return
        if there.log_likelihood < before:
            return
        gain = there.log_likelihood - before
        if search.advance(candidate, there):
            return
        is_slow = _SLOW_RATE * last_gain < gain <= last_gain and gain < len(there.score)
        rate = gain / max(last_gain, _SMALLEST_GAIN)
        if search.n_iter >= em_steps and target is not None and rate < _LARGEST_RATE:
            # Aitken: what is left is geometric
            if there.log_likelihood + _HOPEFUL * gain * rate / (1 - rate) < target:
                search.ending = Ending.ABANDONED
                return
        is_near = gain < _NEWTON_GAIN and gain <= last_gain
        if search.n_iter >= em_steps and (is_slow or is_near) and search.share >= 1.0:
            search.damping = 0.0 if is_near and rate < _SURE_RATE else search.damping
            return
        search.share = _next_share(search.share, is_far=gain > len(there.score))
        last_gain = gain


def _next_share(share: float, *, is_far: bool) -> float:
    """Share of the next iteration of EM after one that was taken."""
    if share < 1.0:
        return min(1.0, 2 * share)
    return min(_LONGEST_SHARE, _STRETCH * share) if is_far else 1.0


def _add_missing[P](likelihood: _Climbable[P], search: _Search[P], max_steps: int) -> None:
    """One more iteration of EM, if there may be one, evaluated as Newton's steps need it."""
    if search.n_iter < max_steps:
        candidate = likelihood.em_moved(search.parameters, search.sums, min(1.0, search.share))
        there = likelihood.sums(candidate, missing=True)
        search.n_iter += 1
        if there.log_likelihood >= search.sums.log_likelihood:
            search.advance(candidate, there)
            return
    search.sums = likelihood.sums(search.parameters, missing=True)


def _climb_by_newton[P](
    likelihood: _Climbable[P],
    search: _Search[P],
    max_steps: int,
    tolerance: float,
) -> None:
    """Damped Newton steps until one promises little."""
    if search.sums.missing_information is None:
        _add_missing(likelihood, search, max_steps)
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
            if search.advance(candidate, there):
                break
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
