"""Random starts: the honest baseline."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.em.first_steps import fit_responsibilities, fit_single
from moment_init.em.problem import EMProblem
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["RandomStart", "random_assignment", "random_coefficients", "random_parameters"]

FloatArray = NDArray[np.float64]
RandomStart = Literal["assignment", "coefficients"]

ASSIGNED_SHARE = 0.9
OTHER_SHARE = 0.1
"""Shares before they are normalised of the component that a unit is assigned to, and of each other:
flexmix's soft assignment."""


def random_parameters(
    problem: EMProblem, kind: RandomStart, rng: np.random.Generator
) -> MixtureParameters:
    """Draw a start.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    kind : {"assignment", "coefficients"}
        How to draw it.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    MixtureParameters
        Standardised parameters that satisfy the restrictions.
    """
    if kind == "assignment":
        return random_assignment(problem, rng)
    return random_coefficients(problem, rng)


def random_assignment(problem: EMProblem, rng: np.random.Generator) -> MixtureParameters:
    """Fit components to units assigned at random, softly.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    MixtureParameters
        Parameters after the M-step.
    """
    n_units, r = problem.rows.n_units, problem.n_components
    shares = np.full((n_units, r), OTHER_SHARE)
    shares[np.arange(n_units), rng.integers(r, size=n_units)] = ASSIGNED_SHARE
    return fit_responsibilities(problem, shares / shares.sum(axis=1, keepdims=True))


def random_coefficients(problem: EMProblem, rng: np.random.Generator) -> MixtureParameters:
    """Draw coefficients of the size that is typical of the family about a single model's bias.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    MixtureParameters
        Parameters with equal weights.
    """
    single = fit_single(problem).parameters
    r, p = problem.n_components, single.n_features
    spread = problem.family.typical_scale / np.sqrt(p)
    return problem.admit(
        MixtureParameters(
            spread * rng.standard_normal((p, r)),
            single.biases + spread * rng.standard_normal(r),
            np.full(r, 1 / r),
            None if single.dispersion is None else np.repeat(single.dispersion, r),
        )
    )
