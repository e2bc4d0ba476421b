"""From the maximum of a sample of the units towards that of all of them."""

import numpy as np

from moment_init.em.problem import EMProblem
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["refine"]

REFINING_STRIDES = (16, 4)
REFINING_STEPS = 30
REFINING_DAMPING = 0.1
"""Between a sample and all units the climb goes over every sixteenth and every fourth of them: the
optimum of n/4 units is some two standard errors from that of n, nearer than that of a sample. Most
steps of such a climb, and Newton's damping at its start."""


def refine(problem: EMProblem, parameters: MixtureParameters, n_searched: int) -> MixtureParameters:
    """Climb on ever more units while they are far fewer than all.

    Parameters
    ----------
    problem : EMProblem
        The problem, with all units.
    parameters : MixtureParameters
        The maximum of a sample of them.
    n_searched : int
        Units of that sample.

    Returns
    -------
    MixtureParameters
        A start for the climb on all units; the same where the sample is no small part of them.
    """
    n_units = problem.rows.n_units
    for stride in REFINING_STRIDES:
        if n_units // stride > 2 * n_searched:
            chosen = np.arange(0, n_units, stride)
            thinned = problem.with_rows(problem.rows.take(chosen))
            end = thinned.climb(parameters, max_steps=REFINING_STEPS, damping=REFINING_DAMPING)
            parameters = end.parameters
    return parameters
