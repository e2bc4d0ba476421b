"""How long a fit may run, how often it starts, and how that is checked."""

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from moment_init.em.problem import EMProblem
from moment_init.em.random_starts import RandomStart
from moment_init.em.run_book import FINISH
from moment_init.likelihood.parameters import MixtureParameters, parameter_count

__all__ = ["FitOptions", "require_rows", "validate_options"]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How long runs may be, how many there are, and how they are run.

    Parameters
    ----------
    max_iter : int
        Most iterations of a run.
    tolerance : float
        Predicted gain below which a run has converged.
    n_starts : int or None
        Number of random starts; None for the default.
    random_start : {"assignment", "coefficients"}
        Kind of random starts.
    n_jobs : int or None
        Runs at once.
    progressbar : bool
        Whether to show progress.
    """

    max_iter: int = 1000
    tolerance: float = 1e-6
    n_starts: int | None = None
    random_start: RandomStart = "assignment"
    n_jobs: int | None = None
    progressbar: bool = False

    @property
    def run(self) -> dict[str, Any]:
        """Arguments of a climb from a start to its maximum."""
        return {**FINISH, "max_steps": self.max_iter, "tolerance": self.tolerance}


def validate_options(
    *,
    max_iter: Any,
    tolerance: Any,
    n_starts: Any,
    random_start: Any,
    n_jobs: Any,
    progressbar: bool,
) -> FitOptions:
    """Check the options of a fit.

    Parameters
    ----------
    max_iter, tolerance, n_starts, random_start, n_jobs, progressbar : object
        As for `fit_em`.

    Returns
    -------
    FitOptions
        The options.

    Raises
    ------
    ValueError
        For numbers out of range and unknown words.
    """
    if not _is_whole(max_iter) or max_iter < 0:
        raise ValueError(f"`max_iter` must be a whole number, 0 or more; got {max_iter!r}.")
    if not _is_real(tolerance) or not 0.0 < tolerance < np.inf:
        raise ValueError(f"`tolerance` must be a positive number; got {tolerance!r}.")
    if n_starts is not None and (not _is_whole(n_starts) or n_starts < 1):
        raise ValueError(f"`n_starts` must be a whole number, 1 or more; got {n_starts!r}.")
    if n_jobs is not None and (not _is_whole(n_jobs) or n_jobs == 0):
        raise ValueError(
            f"`n_jobs` must be a whole number other than 0, or None; got {n_jobs!r}. Use -1 for "
            "all cores."
        )
    if random_start not in get_args(RandomStart):
        raise ValueError(
            f"`random_start` must be 'assignment' or 'coefficients'; got {random_start!r}."
        )
    return FitOptions(
        int(max_iter),
        float(tolerance),
        None if n_starts is None else int(n_starts),
        random_start,
        None if n_jobs is None else int(n_jobs),
        bool(progressbar),
    )


def require_rows(problem: EMProblem, n_more: int = 0) -> None:
    """Raise where there are more parameters than rows.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    n_more : int, default 0
        Free parameters that the problem does not know of.

    Raises
    ------
    ValueError
        If the rows are fewer than the free parameters.
    """
    p, r = problem.rows.n_features, problem.n_components
    any_parameters = MixtureParameters(
        np.zeros((p, r)),
        np.zeros(r),
        np.full(r, 1 / r),
        np.ones(r) if problem.family.has_dispersion else None,
        None if problem.rows.gate is None else np.zeros((problem.rows.n_gate, r)),
    )
    constraint = problem.constraint(any_parameters)
    n_free = parameter_count(any_parameters) if constraint is None else constraint.n_free
    n_free += n_more
    if problem.rows.n_obs < n_free:
        raise ValueError(
            f"`X` must have at least as many rows of positive weight as {r} components have free "
            f"parameters ({n_free}); got {problem.rows.n_obs}. Use fewer components or columns, or "
            "`shared` coefficients."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
