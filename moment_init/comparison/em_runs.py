"""Fits by EM, each from a start of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from moment_init.blocks import single_threaded_blas
from moment_init.comparison.rows import ComparedRows
from moment_init.em import EMFit, fit_em
from moment_init.em.progress import track
from moment_init.em.start_records import BREAKDOWNS
from moment_init.notices import quiet_notices

__all__ = [
    "FAILED",
    "EMRun",
    "best_run",
    "converged_runs",
    "run_random",
    "run_tensor",
    "timed_fit",
    "typical_run",
]

FAILED = "failed"
"""Status of a start that broke down."""


@dataclass(frozen=True, slots=True, eq=False)
class EMRun:
    """What became of one start.

    Parameters
    ----------
    start : int
        Number of the start, or of the chain from which it came.
    fit : EMFit or None
        Where it ended; None if it broke down.
    seconds : float
        How long it took.
    seed : int
        Seed of its Laplace draws.
    message : str
        Why it broke down, if it did.
    """

    start: int
    fit: EMFit | None
    seconds: float
    seed: int
    message: str = ""

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood where it ended; NaN if it broke down."""
        return np.nan if self.fit is None else self.fit.log_likelihood

    @property
    def status(self) -> str:
        """How it ended, in the words of `moment_init.em.start_records.StartStatus`."""
        if self.fit is None:
            return FAILED
        if self.fit.converged:
            return "converged"
        ended = [str(record.status) for record in self.fit.starts]
        return ended[0] if len(ended) == 1 and ended[0] != "converged" else "not_converged"


def run_tensor(
    rows: ComparedRows, n_components: int, rng: np.random.Generator, n_jobs: int | None
) -> EMRun:
    """Fit from the tensor start.

    Parameters
    ----------
    rows : ComparedRows
        Rows to fit.
    n_components : int
        Number of components.
    rng : numpy.random.Generator
        Source of randomness.
    n_jobs : int or None
        As for `fit_em`.

    Returns
    -------
    EMRun
        The fit; what stops it is raised.
    """
    seed = int(rng.integers(2**31))
    begin = perf_counter()
    fit = _fit(rows, n_components, init="tensor", random_seed=rng.spawn(1)[0], n_jobs=n_jobs)
    return EMRun(0, fit, perf_counter() - begin, seed)


def run_random(
    rows: ComparedRows,
    n_components: int,
    n_starts: int,
    rng: np.random.Generator,
    *,
    n_jobs: int | None,
    is_shown: bool,
) -> tuple[EMRun, ...]:
    """Fit from random starts, each by itself.

    Parameters
    ----------
    rows : ComparedRows
        Rows to fit.
    n_components : int
        Number of components.
    n_starts : int
        Number of starts.
    rng : numpy.random.Generator
        Source of randomness; every start has a stream of its own.
    n_jobs : int or None
        Starts that run at once, through joblib.
    is_shown : bool
        Whether to show how many are done.

    Returns
    -------
    tuple of EMRun
        A run a start, in order; those that broke down are among them.
    """
    from joblib import Parallel, delayed  # imported where starts are run in parallel

    seeds = rng.integers(2**31, size=n_starts).tolist()
    own = rng.spawn(n_starts)
    tasks = (
        delayed(timed_fit)(
            rows, n_components, start, seeds[start], init="random", n_starts=1, random_seed=stream
        )
        for start, stream in enumerate(own)
    )
    runs = Parallel(n_jobs=n_jobs, return_as="generator")(tasks)
    return tuple(track(runs, n_starts, "random starts", is_shown=is_shown))


def timed_fit(
    rows: ComparedRows, n_components: int, start: int, seed: int, **arguments: Any
) -> EMRun:
    """Fit once; a fit that breaks down is recorded.

    Parameters
    ----------
    rows : ComparedRows
        Rows to fit.
    n_components : int
        Number of components.
    start : int
        Number of the start.
    seed : int
        Seed of its Laplace draws.
    **arguments
        Passed to `fit_em`.

    Returns
    -------
    EMRun
        What became of it.
    """
    begin = perf_counter()
    with single_threaded_blas():
        try:
            fit, message = _fit(rows, n_components, **arguments), ""
        except BREAKDOWNS as error:
            fit, message = None, str(error)
    return EMRun(start, fit, perf_counter() - begin, seed, message)


def _fit(rows: ComparedRows, n_components: int, **arguments: Any) -> EMFit:
    with quiet_notices():  # it is in the fit's status
        return fit_em(rows.X, rows.y, n_components, progressbar=False, **rows.block, **arguments)


# --- which start ---------------------------------------------------------------------------------


def converged_runs(runs: Sequence[EMRun]) -> list[EMRun]:
    """Runs that converged, in order.

    Parameters
    ----------
    runs : sequence of EMRun
        All runs.

    Returns
    -------
    list of EMRun
        Those that have a maximum.
    """
    return [run for run in runs if run.fit is not None and run.fit.converged]


def typical_run(runs: Sequence[EMRun]) -> EMRun:
    """The run with the median log-likelihood; the lower one of two.

    Parameters
    ----------
    runs : sequence of EMRun
        Runs that converged, at least one.

    Returns
    -------
    EMRun
        The run; the first of equals.
    """
    ordered = sorted(runs, key=lambda run: (run.log_likelihood, run.start))
    return ordered[(len(ordered) - 1) // 2]


def best_run(runs: Sequence[EMRun]) -> EMRun:
    """The run with the highest log-likelihood.

    Parameters
    ----------
    runs : sequence of EMRun
        Runs that converged, at least one.

    Returns
    -------
    EMRun
        The run; the first of equals.
    """
    return max(runs, key=lambda run: (run.log_likelihood, -run.start))
