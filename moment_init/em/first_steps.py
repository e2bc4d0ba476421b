"""Parameters from nothing: a single model, and models fitted to given responsibilities."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moment_init.em.problem import EMProblem
from moment_init.likelihood.em_step import fit_assigned
from moment_init.likelihood.maximise import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["fit_responsibilities", "fit_single", "joined"]

FloatArray = NDArray[np.float64]

SINGLE_STEPS = 50
"""Newton steps of a single generalised linear model: it converges in ten, or is separated."""

_EDGE = 0.05
"""A mean response is moved this share of a row away from zero and one, where links are infinite."""


def fit_single(problem: EMProblem) -> MaximiseResult:
    """Fit a single generalised linear model to all rows.

    Parameters
    ----------
    problem : EMProblem
        The problem.

    Returns
    -------
    MaximiseResult
        Its maximum, in standardised coordinates.
    """
    return problem.climb(_flat_start(problem), max_steps=SINGLE_STEPS, em_steps=3, tolerance=1e-6)


def fit_responsibilities(problem: EMProblem, responsibilities: FloatArray) -> MixtureParameters:
    """The M-step from given responsibilities, each component run to its maximum.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    responsibilities : numpy.ndarray, shape (n_units, n_components)
        Non-negative shares of the components in each unit.

    Returns
    -------
    MixtureParameters
        Parameters that satisfy the restrictions; a gate has slopes zero.
    """
    r = problem.n_components
    flat = replace(_flat_start(problem), gate=None)
    start = joined([flat] * r, np.full(r, 1 / r))
    rows = replace(problem.rows, gate=None)
    shares = np.ascontiguousarray(responsibilities.T)
    return problem.admit(fit_assigned(problem.family, rows, start, shares))


def joined(parts: list[MixtureParameters], weights: FloatArray) -> MixtureParameters:
    """Put single models together as a mixture without a gate.

    Parameters
    ----------
    parts : list of MixtureParameters
        Models of one component each.
    weights : numpy.ndarray, shape (n_components,)
        Their weights.

    Returns
    -------
    MixtureParameters
        The mixture.
    """
    dispersions = [part.dispersion for part in parts if part.dispersion is not None]
    return MixtureParameters(
        np.concatenate([part.coefficients for part in parts], axis=1),
        np.concatenate([part.biases for part in parts]),
        np.asarray(weights, dtype=np.float64),
        np.concatenate(dispersions) if dispersions else None,
    )


def _flat_start(problem: EMProblem) -> MixtureParameters:
    """One component without slopes, at the mean response."""
    rows, family = problem.rows, problem.family
    total = rows.total_weight
    exposure = rows.sample_weight if rows.n_trials is None else rows.sample_weight * rows.n_trials
    mean = (float(rows.sample_weight @ rows.y) + _EDGE) / (float(exposure.sum()) + 2 * _EDGE)
    bias = float(family.link.link(np.array(mean)))
    if rows.offset is not None:
        bias -= float(rows.sample_weight @ rows.offset) / total
    return MixtureParameters(
        np.zeros((rows.n_features, 1)),
        np.array([bias]),
        np.ones(1),
        np.ones(1) if family.has_dispersion else None,
    )
