r"""Climb to a maximum of a mixture likelihood: EM steps while they are fast, then Newton steps.

An EM step is cheap and climbs from anywhere, but near the maximum it gains only a share of what is
left: the share of information that is not missing. A damped Newton step solves
:math:`(I_{complete} - (1 - \kappa) I_{missing})\, \delta = score`. With :math:`\kappa = 1` it is an
EM step, with :math:`\kappa = 0` a Newton step on the observed likelihood; :math:`\kappa` falls
after every success and rises after a failure; where even an EM step is too long, a ridge shortens
it. Steps stay inside the bounds and on the constraint, and a step that lowers the log-likelihood
is never taken, unless both its predicted gain and its loss are rounding.

Most climbs of a search end at a maximum that an earlier climb has reached. Near a maximum the
log-likelihood is quadratic, with a curvature that the earlier climb has computed. If a Newton step
with this curvature leads to the known maximum, the climb is not followed to its end.

`climb` climbs any likelihood, `KnownMaximum` recognises a maximum, and `maximise` climbs the
likelihood of a mixture of GLMs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space
from scipy.linalg.lapack import dtrtrs
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray
from moment_init.families.several import AnyFamily
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
    component_vectors,
    enforce,
    move_into,
    pack,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import (
    LikelihoodSums,
    LogPrior,
    likelihood_sums,
    parameter_free_log_likelihood,
)

_SMALLEST_RIDGE = 1e-6
"""Added to the diagonal that scales a ridge, so that the ridge acts on zero entries too."""

_ROUNDING = 1e-13
"""Relative rounding error of a sum of log densities; a smaller gain cannot be measured."""


def bounded_step(
    sums: LikelihoodSums,
    active: Sequence[ActiveBound],
    constraint: LinearConstraint | None,
    damping: float,
    ridge: float = 0.0,
) -> tuple[FloatArray, float]:
    """Solve for a step inside the bounds; parameters that would leave a bound stay on it."""
    # -> (n_parameters,), ...
    basis = None if constraint is None else constraint.basis
    step, damping = free_step(sums, basis, damping, ridge)
    binding: list[int] = []  # indices of the bounds that would be left
    while True:
        leaving = [
            index
            for index, bound in enumerate(active)
            if index not in binding and bound.inward @ step < 0
        ]
        if not leaving:
            return step, damping
        binding += leaving
        normals = np.array([active[index].inward for index in binding])
        free = null_space(normals) if basis is None else basis @ null_space(normals @ basis)
        step, damping = free_step(sums, free, damping, ridge)


def free_step(
    sums: LikelihoodSums, tangent: FloatArray | None, damping: float, ridge: float = 0.0
) -> tuple[FloatArray, float]:
    """Solve for a step with the least damping, from `damping` up, that is positive definite.

    A ridge adds its multiple of the diagonal to the information, as in the method of Levenberg and
    Marquardt.
    """
    # tangent: (n_parameters, n_free) -> (n_parameters,), ...
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
        ridge = 2 * ridge + 0.5 if damping >= 1.0 else ridge
        damping = min(1.0, 4 * damping + 1e-3)


def rounding_of(sums: LikelihoodSums) -> float:
    """Gain in log-likelihood that cannot be distinguished from rounding."""
    return _ROUNDING * max(abs(sums.objective), sums.magnitude)


_SMALLEST_SHARE = 1e-3
"""A search ends when its step is cut below this share without a gain: the gradient is rounding."""

_SMALL_RIDGE, _LARGEST_RIDGE = 1e-3, 1e6
"""Ridge after a first EM step that lowers the log-likelihood, in multiples of the diagonal, and the
ridge beyond which no step gains: the gradient is rounding."""

_NEWTON_DAMPING = 0.5
"""Only steps with less damping predict the remaining gain. An EM step underestimates it by the
fraction of missing information."""

_PURE_NEWTON = 1e-3
"""Damping below this is set to zero, so that the last steps converge quadratically."""

_NEGLIGIBLE_GAIN = 1e-2
"""A Newton step with a predicted gain below this share of the tolerance is not tried: it would move
no estimate by more than sqrt(2 * .01 * tolerance) standard errors."""

_IDLE_STEPS = 5
"""A search ends after this many steps in a row that gain no more than rounding."""

_SLOW_RATE = 0.8
"""EM is slow once a step gains more than this share of the previous gain: five more steps then gain
less than two thirds of what is left, and a Newton step costs about five. Gains that grow, or that
exceed the number of parameters, occur far from the maximum, where Newton steps are no better."""

_NEWTON_GAIN = 1.0
"""Gain of an EM step below which the maximum is so close that Newton steps reach it sooner."""

_SURE_RATE = 0.5
"""If a step gains less than `_NEWTON_GAIN` and less than this share of the previous gain, less than
`_NEWTON_GAIN` is left, and the first Newton step is not damped."""

_LONGEST_SHARE = 1.8
_STRETCH = 1.2
"""Far from the maximum EM steps are stretched, each more than the last, because EM steps are too
short by the share of information that is missing. Below a factor of two a step still contracts in
every direction; one that lowers the log-likelihood is tried again at its original length."""

_HOPEFUL = 30.0
"""A run is abandoned if even this many times its predicted gain would not reach the target."""

_SMALLEST_GAIN = 1e-300
"""Keeps the ratio of two gains finite."""

_LARGEST_RATE = 0.8
"""Ratio of successive EM gains above which they do not tell how much is left: Newton steps may then
gain a hundred times as much."""


class Ending(StrEnum):
    """Why a search ended."""

    CONVERGED = "converged"
    OUT_OF_STEPS = "out_of_steps"
    STALLED = "stalled"
    ABANDONED = "abandoned"
    RECOGNISED = "recognised"


class _Climbable[P](Protocol):
    """A likelihood, with parameters of any type P, that can be climbed."""

    @property
    def constraint(self) -> LinearConstraint | None:
        """Linear constraint on the vector of parameters."""

    def sums(self, parameters: P, *, missing: bool) -> LikelihoodSums:
        """Log-likelihood and derivatives, with the missing information if `missing`."""

    def moved(self, parameters: P, step: FloatArray) -> P:
        """Parameters after a step, inside all bounds."""

    def em_moved(self, parameters: P, sums: LikelihoodSums, share: float) -> P:
        """Parameters after a share of an EM step."""

    def active(self, parameters: P) -> list[ActiveBound]:
        """Bounds on which the parameters lie."""


@dataclass(slots=True)
class _Search[P]:
    """State of a search; `sums` are evaluated at `parameters`."""

    parameters: P
    sums: LikelihoodSums
    history: list[float]
    damping: float
    share: float = 1.0
    n_iter: int = 0
    ending: Ending | None = None
    is_known: Callable[[P, LikelihoodSums], bool] | None = None

    def advance(self, parameters: P, sums: LikelihoodSums) -> bool:
        """Accept a step; return whether the climb now leads to a known maximum."""
        self.parameters, self.sums = parameters, sums
        self.history.append(max(sums.objective, self.history[-1]))  # a loss would be rounding
        return self.recognise()

    def recognise(self) -> bool:
        """End the search if it leads to a known maximum, and return whether it does."""
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
    least_steps: int = 0,
    is_known: Callable[[P, LikelihoodSums], bool] | None = None,
) -> _Search[P]:
    """Climb any likelihood from a start inside its bounds, by `least_steps` even from its maximum.

    Ends of different climbs to one maximum then differ by rounding only.
    """
    most_em = min(max_steps, max(em_steps, max_em_steps or 0))
    sums = likelihood.sums(start, missing=most_em == 0 < max_steps)
    search = _Search(start, sums, [sums.objective], damping, is_known=is_known)
    search.recognise()
    _climb_by_em(likelihood, search, em_steps, most_em, target)
    if search.ending is None and (search.n_iter < max_steps or max_steps == 0):
        _climb_by_newton(likelihood, search, max_steps, tolerance, least_steps)
    return search


def _climb_by_em[P](
    likelihood: _Climbable[P],
    search: _Search[P],
    em_steps: int,
    most: int,
    target: float | None,
) -> None:
    """Take EM steps: at least `em_steps`, then more while they are fast."""
    last_gain = np.inf
    while search.n_iter < most and search.ending is None:
        before = search.sums.objective
        while True:
            candidate = likelihood.em_moved(search.parameters, search.sums, search.share)
            candidate_sums = likelihood.sums(candidate, missing=False)
            search.n_iter += 1
            if candidate_sums.objective >= before or search.n_iter >= most:
                break
            search.share = 1.0 if search.share > 1.0 else search.share / 3
            if search.share < _SMALLEST_SHARE:
                return
        if not candidate_sums.objective >= before:  # or it is NaN
            return
        gain = candidate_sums.objective - before
        if search.advance(candidate, candidate_sums):
            return
        is_slow = _SLOW_RATE * last_gain < gain <= last_gain and gain < len(candidate_sums.score)
        rate = gain / max(last_gain, _SMALLEST_GAIN)
        if search.n_iter >= em_steps and target is not None and rate < _LARGEST_RATE:
            # Aitken: the remaining gains form a geometric series
            if candidate_sums.objective + _HOPEFUL * gain * rate / (1 - rate) < target:
                search.ending = Ending.ABANDONED
                return
        is_near = gain < _NEWTON_GAIN and gain <= last_gain
        if search.n_iter >= em_steps and (is_slow or is_near) and search.share >= 1.0:
            search.damping = 0.0 if is_near and rate < _SURE_RATE else search.damping
            return
        search.share = _next_share(search.share, is_far=gain > len(candidate_sums.score))
        last_gain = gain


def _next_share(share: float, *, is_far: bool) -> float:
    """Share of the next EM step, after an accepted one."""
    if share < 1.0:
        return min(1.0, 2 * share)
    return min(_LONGEST_SHARE, _STRETCH * share) if is_far else 1.0


def _add_missing[P](likelihood: _Climbable[P], search: _Search[P], max_steps: int) -> None:
    """Compute the missing information for Newton steps, after one more EM step if allowed."""
    if search.n_iter < max_steps:
        candidate = likelihood.em_moved(search.parameters, search.sums, min(1.0, search.share))
        candidate_sums = likelihood.sums(candidate, missing=True)
        search.n_iter += 1
        if candidate_sums.objective >= search.sums.objective:
            search.advance(candidate, candidate_sums)
            return
    search.sums = likelihood.sums(search.parameters, missing=True)


def _climb_by_newton[P](
    likelihood: _Climbable[P],
    search: _Search[P],
    max_steps: int,
    tolerance: float,
    least_steps: int,
) -> None:
    """Take damped Newton steps until one predicts little gain."""
    if search.sums.missing_information is None:
        _add_missing(likelihood, search, max_steps)
    ridge, n_idle = 0.0, 0
    while search.n_iter < max_steps and search.ending is None:
        active = likelihood.active(search.parameters)
        sums = search.sums
        step, damping = bounded_step(sums, active, likelihood.constraint, search.damping, ridge)
        gain = 0.5 * float(sums.score @ step)
        is_newton = damping < _NEWTON_DAMPING and ridge == 0.0
        is_idle = is_newton and gain < _NEGLIGIBLE_GAIN * tolerance
        if is_idle and search.n_iter >= least_steps:
            search.ending = Ending.CONVERGED
            break
        candidate = likelihood.moved(search.parameters, step)
        candidate_sums = likelihood.sums(candidate, missing=True)
        search.n_iter += 1
        search.damping = damping
        gained, rounding = candidate_sums.objective - sums.objective, rounding_of(sums)
        # a gain that cannot be measured is believed
        if gained >= 0.0 or (is_newton and max(gain, -gained) <= rounding):
            n_idle = n_idle + 1 if gained <= rounding else 0
            if search.advance(candidate, candidate_sums):
                break
            if gain < tolerance and (is_newton or n_idle >= _IDLE_STEPS):
                search.ending = Ending.CONVERGED
            elif n_idle >= _IDLE_STEPS:  # the bounds undo what a step would gain
                search.ending = Ending.STALLED
            search.damping = damping / 4 if damping > _PURE_NEWTON else 0.0
            ridge = ridge / 8 if ridge > _SMALL_RIDGE else 0.0
        elif gain <= rounding:
            search.ending = Ending.CONVERGED
        elif damping < 1.0:
            search.damping = min(1.0, 8 * damping + 1e-2)
        else:
            # even an EM step is too long where rows are nearly separated: shorten it most in the
            # directions with the least information
            ridge = 8 * ridge + _SMALL_RIDGE
            if ridge > _LARGEST_RIDGE:
                search.ending = Ending.STALLED


IndexArray = NDArray[np.intp]

LARGEST_GAP = 20.0
"""Points further below a maximum lie outside its quadratic region and are not tested."""

SMALLEST_GAP = 0.01
"""Runs end within this of their maximum, so a point this much above it may still lead to it."""

CONTRACTION = 0.3
"""A point belongs to a known maximum if one Newton step with its curvature removes at least 70 % of
the distance, in the metric of this curvature. At another stationary point the step is zero."""

CLOSE = 1e-2
"""A step that ends within this squared distance ends within .005 of the maximum's height."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownMaximum:
    """A maximum that a climb has reached."""

    parameters: MixtureParameters
    height: float  # log-likelihood, plus the log prior if there is one
    log_likelihood: float
    # lower Cholesky factor of the observed information; (n_parameters, n_parameters)
    factor: FloatArray
    vector: FloatArray  # parameters as a vector; (n_parameters,)
    matched: FloatArray  # coefficients and biases; (n_components, P (n_features + 1))

    @classmethod
    def of(cls, parameters: MixtureParameters, sums: LikelihoodSums) -> "KnownMaximum | None":
        """Store the end of a climb if it is a maximum inside all bounds."""
        if sums.missing_information is None:
            return None
        try:
            factor = np.linalg.cholesky(sums.information())
        except np.linalg.LinAlgError:
            return None
        height, vector, matched = sums.objective, pack(parameters), matched_vectors(parameters)
        return cls(parameters, height, sums.log_likelihood, factor, vector, matched)


def known_ahead(
    known: Sequence[KnownMaximum], parameters: MixtureParameters, sums: LikelihoodSums
) -> KnownMaximum | None:
    """Find the known maximum to which a climb from the given parameters leads, if it is one."""
    # A climb never goes down: from above a maximum it leads to another one.
    near = [
        maximum
        for maximum in known
        if -SMALLEST_GAP < maximum.height - sums.objective < LARGEST_GAP
        and len(sums.score) == len(maximum.factor)
    ]
    if not near:
        return None
    vector, matched = pack(parameters), matched_vectors(parameters)
    for maximum in near:
        order = matching_order(maximum.matched, matched)
        gap = _reordered(vector, parameters, order, is_score=False) - maximum.vector
        distance = maximum.factor.T @ gap
        score = _reordered(sums.score, parameters, order, is_score=True)
        left = distance + dtrtrs(maximum.factor, score, lower=True)[0].ravel()
        if left @ left <= max(CONTRACTION**2 * (distance @ distance), CLOSE):
            return maximum
    return None


def matched_vectors(parameters: MixtureParameters) -> FloatArray:
    """Coefficients and biases of each component, by which components are matched."""
    # -> (n_components, P (n_features + 1))
    return component_vectors(parameters)[:, parameters.layout.slopes.ravel()]


def matching_order(known: FloatArray, other: FloatArray) -> IndexArray:
    """Component of another mixture that matches each component of the known one."""
    # known, other: `matched_vectors`
    gaps = known[:, None] - other[None]
    return np.asarray(linear_sum_assignment(np.einsum("jka,jka->jk", gaps, gaps))[1])


def _reordered(
    vector: FloatArray, parameters: MixtureParameters, order: IndexArray, *, is_score: bool
) -> FloatArray:
    """Parameters or their score in the coordinates of the reordered mixture.

    Logits are relative to the last component; the scores of all logits sum to zero.
    """
    # vector: (n_parameters,), order: (n_components,) -> (n_parameters,)
    r, size = parameters.n_components, component_size(parameters)
    by_component = vector[: r * size].reshape(r, size)[order]
    logits = np.zeros((r, 1 + parameters.n_gate))
    logits[:-1] = vector[r * size :].reshape(r - 1, -1)
    if is_score:
        logits[-1] = -logits.sum(axis=0)
    logits = logits[order]
    rest = logits[:-1] if is_score else logits[:-1] - logits[-1]
    return np.concatenate([by_component.ravel(), rest.ravel()])


@dataclass(frozen=True, slots=True, eq=False)
class MaximiseResult:
    """End of a climb of a mixture likelihood."""

    parameters: MixtureParameters  # the best parameters found
    sums: LikelihoodSums  # log-likelihood and derivatives at these parameters
    n_iter: int  # number of steps tried
    ending: Ending  # why the climb ended
    # objective at the start and after every accepted step; it never falls
    history: tuple[float, ...]
    bounds: tuple[str, ...]  # the bounds on which the parameters lie; empty at an interior point
    # the known maximum that the climb leads to, if it was ended for that reason
    recognised: KnownMaximum | None = None

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood of the best parameters, with all constants."""
        return self.sums.log_likelihood

    @property
    def log_posterior(self) -> float:
        """Log-likelihood plus the log prior of the best parameters, if there is one."""
        return self.sums.objective

    @property
    def information(self) -> FloatArray:
        """Observed information; positive definite only at an interior maximum."""
        return self.sums.information()

    @property
    def converged(self) -> bool:
        """Whether the predicted gain of the last step was below the tolerance."""
        return self.ending is Ending.CONVERGED


@dataclass(frozen=True, slots=True)
class _Likelihood:
    """Likelihood of a mixture of GLMs, to be climbed."""

    family: AnyFamily
    rows: LikelihoodRows
    bounds: ParameterBounds
    constraint: LinearConstraint | None
    constant: float
    prior: LogPrior | None = None

    def sums(self, parameters: MixtureParameters, *, missing: bool) -> LikelihoodSums:
        sums = likelihood_sums(
            self.family, self.rows, parameters, missing=missing, constant=self.constant
        )
        return sums if self.prior is None else self.prior.add_to(sums, parameters)

    def moved(self, parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
        """Take a step that ends inside the bounds and on the constraint."""
        inside = move_into(parameters, step, self.bounds)
        return inside if self.constraint is None else self.constraint.project(inside, parameters)

    def em_moved(
        self, parameters: MixtureParameters, sums: LikelihoodSums, share: float
    ) -> MixtureParameters:
        """Take a share of an EM step; with a constraint, solve with the complete information."""
        constraint = self.constraint
        step = em_step(self.family, sums, parameters) if constraint is None else None
        if step is None:
            step = free_step(sums, None if constraint is None else constraint.basis, 1.0)[0]
        return self.moved(parameters, share * step)

    def active(self, parameters: MixtureParameters) -> list[ActiveBound]:
        return active_bounds(parameters, self.bounds)


def maximise(
    family: AnyFamily,
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
    least_steps: int = 0,
    constant: float | None = None,
    known: Sequence[KnownMaximum] = (),
    prior: LogPrior | None = None,
) -> MaximiseResult:
    """Climb from a start to a nearby maximum of the likelihood, or of the posterior."""
    rows = rows.prepared(family)
    bounds = bounds_of(family, min_weight=min_weight, min_dispersion_ratio=min_dispersion_ratio)
    if constant is None:
        constant = parameter_free_log_likelihood(family, rows)
    likelihood = _Likelihood(family, rows, bounds, constraint, constant, prior)
    ahead: KnownMaximum | None = None

    def is_recognised(parameters: MixtureParameters, sums: LikelihoodSums) -> bool:
        nonlocal ahead
        ahead = known_ahead(known, parameters, sums)
        return ahead is not None

    search = climb(
        likelihood,
        enforce(start, bounds),
        max_steps=max_steps,
        em_steps=em_steps,
        max_em_steps=max_em_steps,
        tolerance=tolerance,
        damping=damping,
        target=target,
        least_steps=least_steps,
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
        ahead,
    )
