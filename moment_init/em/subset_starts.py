"""Starts from small subsets of rows, for few columns.

With p columns, p + 1 rows determine a line; all of them come from one component with probability
w^(p+1), which is worth trying for small p.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moment_init.em.first_steps import joined
from moment_init.em.problem import EMProblem
from moment_init.likelihood.maximise import MaximiseResult, maximise
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["SUBSET_ROWS", "race_subsets"]

FloatArray = NDArray[np.float64]

N_SUBSETS = 20
SUBSET_ROWS = 600
HEAT_STEPS = 6
SUBSET_STEPS = 20
N_KEPT = 6
"""Starts, rows that they are raced on, EM steps of the race and after how many of them the worse
half is dropped, and how many go on."""

FIT_STEPS = 3
"""Newton steps of a component towards its few rows: the fit is exact in one for a real response,
and would run away for a binary one."""


def race_subsets(
    problem: EMProblem, single: MixtureParameters, rng: np.random.Generator
) -> list[MaximiseResult]:
    """Fit every component to a few rows, and race such starts on a sample of the rows.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    single : MixtureParameters
        The single model, for its dispersion.
    rng : numpy.random.Generator
        Draws rows.

    Returns
    -------
    list of MaximiseResult
        The best of the race, best first.
    """
    units = np.arange(problem.rows.n_units)
    if len(units) > SUBSET_ROWS:
        units = np.sort(rng.choice(len(units), SUBSET_ROWS, replace=False))
    sample = problem.with_rows(problem.rows.take(units)).prepared()
    starts = [_subset_start(sample, single, rng) for _ in range(N_SUBSETS)]
    heats = _ranked(sample, starts, HEAT_STEPS)[: N_SUBSETS // 2]
    left = SUBSET_STEPS - HEAT_STEPS
    return _ranked(sample, [run.parameters for run in heats], left)[:N_KEPT]


def _ranked(
    problem: EMProblem, starts: list[MixtureParameters], n_steps: int
) -> list[MaximiseResult]:
    """Some steps of EM from each of several starts, the best end first."""
    runs = [problem.climb(start, max_steps=n_steps, em_steps=n_steps) for start in starts]
    return sorted(runs, key=lambda run: run.log_likelihood, reverse=True)


def _subset_start(
    problem: EMProblem, single: MixtureParameters, rng: np.random.Generator
) -> MixtureParameters:
    """Every component a few steps from the single model towards its own few units."""
    rows, r = problem.rows, problem.n_components
    per_unit = rows.n_obs / rows.n_units
    n_units = min(rows.n_units, max(1, int(np.ceil((rows.n_features + 1) / per_unit))))
    parts = []
    for _ in range(r):
        own = rows.take(np.sort(rng.choice(rows.n_units, n_units, replace=False)))
        own = replace(own, group_starts=None, gate=None)
        end = maximise(
            problem.family, own, replace(single, gate=None), max_steps=FIT_STEPS, em_steps=FIT_STEPS
        )
        # an exact fit says nothing about the dispersion
        parts.append(replace(end.parameters, dispersion=single.dispersion))
    return joined(parts, np.full(r, 1 / r))
