"""The optima that starts and chains lead to."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from moment_init.comparison.em_runs import EMRun
from moment_init.em import EMFit
from moment_init.em.start_records import SAME_OPTIMUM

if TYPE_CHECKING:
    import pandas

__all__ = [
    "SAME_MEMBERSHIP",
    "best_log_likelihood",
    "is_at_best",
    "membership_distance",
    "share_at_best",
    "tabulate_landscape",
]

SAME_MEMBERSHIP = 0.01
"""Mean distance of two fits' probabilities of components below which they are one optimum. Runs
stop when a step would gain 1e-6 in log-likelihood, some thousandth of a standard error from their
maximum, which moves probabilities by less than that."""


def best_log_likelihood(runs: Mapping[str, Sequence[EMRun]]) -> float:
    """Highest log-likelihood that any start of any method led to.

    Parameters
    ----------
    runs : mapping of str to sequence of EMRun
        Runs by method.

    Returns
    -------
    float
        The log-likelihood.
    """
    return float(np.nanmax([run.log_likelihood for own in runs.values() for run in own]))


def share_at_best(runs: Sequence[EMRun], best: float) -> float:
    """Share of starts that led to the best optimum found.

    Parameters
    ----------
    runs : sequence of EMRun
        Runs of a method; those that broke down count as having missed it.
    best : float
        Log-likelihood of that optimum.

    Returns
    -------
    float
        Share within .01 of it, the library's tolerance for one optimum.
    """
    return float(np.mean([is_at_best(run, best) for run in runs])) if runs else np.nan


def is_at_best(run: EMRun, best: float) -> bool:
    """Whether a run reached the highest log-likelihood found.

    Parameters
    ----------
    run : EMRun
        The run.
    best : float
        That log-likelihood.

    Returns
    -------
    bool
        True within .01 of it.
    """
    return bool(run.log_likelihood > best - SAME_OPTIMUM)


def membership_distance(first: EMFit, second: EMFit) -> float:
    """How differently two fits assign the same rows to components.

    Parameters
    ----------
    first, second : EMFit
        Fits of the same rows.

    Returns
    -------
    float
        Mean over the rows of the total variation distance of their probabilities, components
        matched so that it is smallest: from 0 to 1, and blind to labels.
    """
    theirs = second.responsibilities
    costs = np.array(
        [np.abs(own[:, None] - theirs).sum(axis=0) for own in first.responsibilities.T]
    )
    matched = linear_sum_assignment(costs)
    return float(costs[matched].sum()) / (2.0 * len(theirs))


def tabulate_landscape(
    runs: Mapping[str, Sequence[EMRun]], typical: EMRun | None
) -> "pandas.DataFrame":
    """Put all optima into a table.

    Parameters
    ----------
    runs : mapping of str to sequence of EMRun
        Runs by method.
    typical : EMRun or None
        The random start that stands for all.

    Returns
    -------
    pandas.DataFrame
        A row a start or chain: ``method``, ``start``, ``log_likelihood``, ``is_best``, ``seconds``
        (of a chain those of the climb from its best draw), ``status``, ``is_typical``, ``bounds``
        on which it ended, and ``message`` if it broke down.
    """
    import pandas

    best = best_log_likelihood(runs)
    records = [
        {
            "method": method,
            "start": run.start,
            "log_likelihood": run.log_likelihood,
            "is_best": is_at_best(run, best),
            "seconds": run.seconds,
            "status": run.status,
            "is_typical": run is typical,
            "bounds": "" if run.fit is None else ", ".join(run.fit.bounds),
            "message": run.message,
        }
        for method, own in runs.items()
        for run in own
    ]
    return pandas.DataFrame(records)
