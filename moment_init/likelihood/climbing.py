r"""Steps between EM and Newton, on a constraint and inside bounds.

The climb of any likelihood: iterations of EM while they are fast, then damped Newton steps.

Maxima that are known, and whether a climb leads to one of them.

Most climbs of a search end where an earlier one has ended. Near a maximum the log-likelihood is a
parabola whose curvature the earlier climb has left behind: a Newton step with it, from a point on
that parabola, ends at the maximum. Where it does, there is no need to follow the climb to its end.

Maximum of a mixture likelihood: EM steps while they are fast, then Newton steps damped to EM.

An iteration of EM is cheap and climbs from anywhere, but near the maximum it gains only the share
of what is left that is not missing. A Newton step solves
:math:`(I_{complete} - (1 - \kappa) I_{missing})\, \delta = score`. With :math:`\kappa = 1` it is an
EM step, with :math:`\kappa = 0` a Newton step on the observed likelihood; :math:`\kappa` falls
after every success and rises after a failure. A step that lowers the log-likelihood is never taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space, solve_triangular
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray
from moment_init.families.base import Family
from moment_init.likelihood.em_step import em_step, solve_information
from moment_init.likelihood.parameters import (
    MIN_DISPERSION_RATIO,
    MIN_WEIGHT,
    ActiveBound,
    LinearConstraint,
    MixtureParameters,
    ParameterBounds,
    active_bounds,
    bounds_of,
    component_size,
    enforce,
    move,
    pack,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    parameter_free_log_likelihood,
)

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
    """Solve for a step that leaves no bound: parameters that would leave theirs are held."""
    # -> (n_parameters,), ...
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
    """Solve with the smallest damping from the given one upwards that is positive definite."""
    # tangent: (n_parameters, n_free) -> (n_parameters,), ...
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
    """Gain of log-likelihood that cannot be told from rounding."""
    return _ROUNDING * max(abs(sums.log_likelihood), sums.magnitude)


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
    """Climb any likelihood from a start inside its bounds."""
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


IndexArray = NDArray[np.intp]

LARGEST_GAP = 20.0
"""Points that are further below a maximum are not on its parabola; it saves trying."""

SMALLEST_GAP = 0.01
"""Runs end within this of their maximum: points no further above it can be on their way to it."""

CONTRACTION = 0.3
"""Share of the distance to the maximum that a Newton step with the maximum's own curvature may
leave, in its metric. From another stationary point the step is zero, and leaves all of it; where it
leaves less than a third, so do the next, ever less, and no other maximum lies between."""

CLOSE = 1e-2
"""A step that ends so near, squared, ends within .005 of the maximum's log-likelihood."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownMaximum:
    """A maximum that a climb has reached."""

    parameters: MixtureParameters  # where it is
    log_likelihood: float  # its height
    # lower Cholesky factor of the observed information there; (n_parameters, n_parameters)
    factor: FloatArray

    @classmethod
    def of(cls, parameters: MixtureParameters, sums: LikelihoodSums) -> "KnownMaximum | None":
        """Keep where a climb ended, if it is a maximum inside all bounds."""
        if sums.missing_information is None:
            return None
        try:
            factor = np.linalg.cholesky(sums.information())
        except np.linalg.LinAlgError:
            return None
        return cls(parameters, sums.log_likelihood, factor)

    def lies_ahead(self, parameters: MixtureParameters, sums: LikelihoodSums) -> bool:
        """Whether a climb from some point leads here."""
        if len(sums.score) != len(self.factor):
            return False
        # A climb never falls: above the maximum it leads to another one.
        if not -SMALLEST_GAP < self.log_likelihood - sums.log_likelihood < LARGEST_GAP:
            return False
        order = _matching(self.parameters, parameters)
        distance = self.factor.T @ (pack(parameters.reorder(order)) - pack(self.parameters))
        score = _reordered_score(sums.score, parameters, order)
        left = distance + solve_triangular(self.factor, score, lower=True)
        return bool(left @ left <= max(CONTRACTION**2 * (distance @ distance), CLOSE))


def _matching(known: MixtureParameters, other: MixtureParameters) -> IndexArray:
    """Which component of another mixture stands for each of the known one."""
    gaps = _vectors(known)[:, :, None] - _vectors(other)[:, None, :]
    return np.asarray(linear_sum_assignment(np.einsum("ajk,ajk->jk", gaps, gaps))[1])


def _vectors(parameters: MixtureParameters) -> FloatArray:
    """Coefficients and bias of each component, (p + 1, r)."""
    return np.concatenate([parameters.coefficients, parameters.biases[None]])


def _reordered_score(
    score: FloatArray, parameters: MixtureParameters, order: IndexArray
) -> FloatArray:
    """The score in the coordinates of the reordered mixture; that of all logits sums to zero."""
    r, q = parameters.n_components, component_size(parameters)
    own = score[: r * q].reshape(r, q)[order]
    logits = score[r * q :].reshape(r - 1, 1 + parameters.n_gate)
    logits = np.concatenate([logits, -logits.sum(axis=0, keepdims=True)])[order][:-1]
    return np.concatenate([own.ravel(), logits.ravel()])


@dataclass(frozen=True, slots=True, eq=False)
class MaximiseResult:
    """Where a search for the maximum of a mixture likelihood ended."""

    parameters: MixtureParameters  # the best parameters found
    sums: LikelihoodSums  # log-likelihood and its derivatives there
    n_iter: int  # number of steps tried
    ending: Ending  # why the search ended
    # log-likelihood at the start and after every step taken; it never falls
    history: tuple[float, ...]
    bounds: tuple[str, ...]  # the bounds on which the parameters lie; empty at an interior point
    # the maximum that lies ahead, if the search ended because that was seen
    recognised: KnownMaximum | None = None

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
    known: Sequence[KnownMaximum] = (),
) -> MaximiseResult:
    """Climb from a start to the maximum of the likelihood near it."""
    rows = rows.with_products()
    bounds = bounds_of(family, min_weight=min_weight, min_dispersion_ratio=min_dispersion_ratio)
    if constant is None:
        constant = parameter_free_log_likelihood(family, rows)
    likelihood = _Likelihood(family, rows, bounds, constraint, constant)
    ahead: list[KnownMaximum] = []

    def is_recognised(at: MixtureParameters, sums: LikelihoodSums) -> bool:
        ahead.extend(each for each in known if each.lies_ahead(at, sums))
        return bool(ahead)

    search = climb(
        likelihood,
        enforce(start, bounds),
        max_steps=max_steps,
        em_steps=em_steps,
        max_em_steps=max_em_steps,
        tolerance=tolerance,
        damping=damping,
        target=target,
        is_known=is_recognised if known else None,
    )
    labels = tuple(bound.label for bound in active_bounds(search.parameters, bounds))
    return MaximiseResult(
        search.parameters,
        search.sums,
        search.n_iter,
        search.ending or Ending.OUT_OF_STEPS,
        tuple(search.history),
        labels,
        ahead[0] if ahead else None,
    )
