r"""Maximum of a mixture likelihood: EM steps while they are fast, then Newton steps damped to EM.

An iteration of EM is cheap and climbs from anywhere, but near the maximum it gains only the share
of what is left that is not missing. A Newton step solves
:math:`(I_{complete} - (1 - \kappa) I_{missing})\, \delta = score`. With :math:`\kappa = 1` it is an
EM step, with :math:`\kappa = 0` a Newton step on the observed likelihood; :math:`\kappa` falls
after every success and rises after a failure. A step that lowers the log-likelihood is never taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
from moment_init.likelihood.climbing import Ending, climb
from moment_init.likelihood.constraints import LinearConstraint
from moment_init.likelihood.em_step import em_step
from moment_init.likelihood.parameters import MixtureParameters, move
from moment_init.likelihood.recognition import KnownMaximum
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.stepping import free_step
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    parameter_free_log_likelihood,
)

__all__ = ["Ending", "MaximiseResult", "maximise"]

FloatArray = NDArray[np.float64]


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
    recognised : KnownMaximum or None
        The maximum that lies ahead, if the search ended because that was seen.
    """

    parameters: MixtureParameters
    sums: LikelihoodSums
    n_iter: int
    ending: Ending
    history: tuple[float, ...]
    bounds: tuple[str, ...]
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
    known : sequence of KnownMaximum, default ()
        Maxima of the same rows; the search ends where it is seen to lead to one of them.

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
