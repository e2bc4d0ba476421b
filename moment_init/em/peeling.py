"""Peeling: one component at a time by robust regression, its rows removed, and on.

Mix-IRLS of Zilber and Nadler (2023) finds the largest component of a linear mixture by regression
with Cauchy weights on the residuals, removes the rows that it explains, and goes on with the rest.
Here residuals are those of the deviance, so that counts and positive responses can be peeled too:
excellent under imbalance, lost where components are alike in size.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moment_init.em.first_steps import joined
from moment_init.em.problem import EMProblem
from moment_init.likelihood.maximise import maximise
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows

__all__ = ["peel"]

FloatArray = NDArray[np.float64]

ROBUST_STEPS = 12
"""Rounds of reweighting; the weights settle within a few."""

_EXPLAINED = 13.2
"""A row is explained whose squared deviance residual is below so many times a typical one's: six
variances, 98.6 % of a normal component's own rows, whose typical one is the median, .455 variances.
With fewer, rows of a large component are left that outnumber those of a small one."""

_SMALLEST = 1e-10
"""A mean response is held this far from the edge of its range, and a typical residual from zero."""


def peel(problem: EMProblem, single: MixtureParameters) -> MixtureParameters:
    """Fit components one after the other to the rows that are left.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    single : MixtureParameters
        The single model, from which each robust regression starts.

    Returns
    -------
    MixtureParameters
        A start that satisfies the restrictions.
    """
    rows = replace(problem.rows, group_starts=None, gate=None)
    start = replace(single, gate=None)
    saturated = _saturated(problem, rows)
    left = np.ones(rows.n_obs)
    parts, counts = [], []
    for _ in range(problem.n_components):
        part, is_explained = _robust_fit(problem, rows, start, left, saturated)
        parts.append(part)
        counts.append(float(rows.sample_weight @ (left * is_explained)) + 1.0)
        rest = left * ~is_explained
        # nothing left to explain: the next component starts from what this one had
        left = rest if np.count_nonzero(rest) > 2 * (rows.n_features + 1) else left
    weights = np.array(counts)
    return problem.admit(joined(parts, weights / weights.sum()))


def _robust_fit(
    problem: EMProblem,
    rows: LikelihoodRows,
    start: MixtureParameters,
    left: FloatArray,
    saturated: FloatArray,
) -> tuple[MixtureParameters, NDArray[np.bool_]]:
    """Regression with Cauchy weights on the rows that are left, and which rows it explains."""
    parameters, shares = start, left
    is_left = left > 0.0
    for _ in range(ROBUST_STEPS):
        weighted = replace(rows, sample_weight=rows.sample_weight * shares)
        parameters = maximise(
            problem.family, weighted, parameters, max_steps=1, em_steps=1, constant=0.0
        ).parameters
        deviance = saturated - _log_density(problem, rows, parameters)
        typical = max(float(np.median(deviance[is_left])), _SMALLEST)
        shares = left / (1.0 + deviance / typical)
    own = deviance[is_left & (deviance < 2.0 * typical)]
    typical = max(float(np.median(own)) if len(own) else typical, _SMALLEST)
    return parameters, deviance < _EXPLAINED * typical


def _saturated(problem: EMProblem, rows: LikelihoodRows) -> FloatArray:
    """Log density of each row at its own response, up to the dispersion's part."""
    family = problem.family
    trials = np.ones(rows.n_obs) if rows.n_trials is None else rows.n_trials
    mean = rows.y / trials
    if not family.response_power:
        mean = np.maximum(mean, _SMALLEST)
        if family.has_trials:
            mean = np.minimum(mean, 1.0 - _SMALLEST)
    eta = family.link.link(mean)[None]
    return _kernel(problem, rows, eta, np.ones(1) if family.has_dispersion else None)


def _log_density(
    problem: EMProblem, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    eta = (np.asarray(rows.Z) @ parameters.coefficients + parameters.biases).T
    if rows.offset is not None:
        eta = eta + rows.offset
    return _kernel(problem, rows, eta, None if parameters.dispersion is None else np.ones(1))


def _kernel(
    problem: EMProblem, rows: LikelihoodRows, eta: FloatArray, dispersion: FloatArray | None
) -> FloatArray:
    """Log density of every row with dispersion one: deviances need no dispersion of their own."""
    derivatives = problem.family.kernel_derivatives(
        rows.y, eta, dispersion=dispersion, n_trials=rows.n_trials
    )
    return np.asarray(derivatives.value[0])
