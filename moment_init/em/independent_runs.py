"""Starts that are climbed from as they are: those that a user gives, and random ones."""

from collections.abc import Iterable, Sequence

import numpy as np

from moment_init.blocks import single_threaded_blas
from moment_init.em.options import FitOptions
from moment_init.em.portfolio import Portfolio
from moment_init.em.problem import EMProblem
from moment_init.em.progress import track
from moment_init.em.random_starts import random_parameters
from moment_init.em.start_records import BREAKDOWNS, SAME_OPTIMUM
from moment_init.likelihood.maximise import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["DEFAULT_RANDOM_STARTS", "run_given", "run_random"]

DEFAULT_RANDOM_STARTS = 10
"""Enough to see whether random starts agree."""


def run_given(
    problem: EMProblem, starts: Sequence[tuple[str, MixtureParameters]], options: FitOptions
) -> Portfolio:
    """Climb from each of several starts, until it cannot reach the best one's end.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    starts : sequence of tuple
        Origins and standardised parameters.
    options : FitOptions
        How long runs may be.

    Returns
    -------
    Portfolio
        The best run and the record of all; starts that break down are among them.
    """
    portfolio = Portfolio(problem)
    for origin, start in starts:
        best = portfolio.best
        target = None if best is None else best.log_likelihood - SAME_OPTIMUM
        try:
            run = problem.climb(start, target=target, **options.run)
        except BREAKDOWNS as error:
            portfolio.fail(origin, str(error))
        else:
            portfolio.add(origin, run)
    return portfolio


def run_random(problem: EMProblem, options: FitOptions, rng: np.random.Generator) -> Portfolio:
    """Climb from random starts, each to its own maximum.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    options : FitOptions
        How many starts, of which kind, how long runs may be, and how many at once.
    rng : numpy.random.Generator
        Source of randomness; every start has its own stream of it.

    Returns
    -------
    Portfolio
        The best run and the record of all, in the order of the starts; those that break down are
        among them.
    """
    from joblib import Parallel, delayed  # imported where starts are run in parallel

    n_starts = DEFAULT_RANDOM_STARTS if options.n_starts is None else options.n_starts
    tasks = (delayed(_random_run)(problem, options, own) for own in rng.spawn(n_starts))
    workers = Parallel(n_jobs=options.n_jobs, return_as="generator")
    runs: Iterable[MaximiseResult | str] = workers(tasks)
    portfolio = Portfolio(problem)
    shown = track(runs, n_starts, "random starts", is_shown=options.progressbar)
    for rank, run in enumerate(shown, start=1):
        if isinstance(run, str):
            portfolio.fail(f"random {rank}", run)
        else:
            portfolio.add(f"random {rank}", run)
    return portfolio


def _random_run(
    problem: EMProblem, options: FitOptions, rng: np.random.Generator
) -> MaximiseResult | str:
    """One random start to its maximum; a start that breaks down returns what it said."""
    with single_threaded_blas():
        try:
            start = random_parameters(problem, options.random_start, rng)
            return problem.climb(start, **options.run)
        except BREAKDOWNS as error:
            return str(error)
