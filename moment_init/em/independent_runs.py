"""Starts that are climbed from as they are: those that a user gives, and random ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from moment_init.blocks import single_threaded_blas
from moment_init.em.options import FitOptions
from moment_init.em.problem import EMProblem
from moment_init.em.progress import track
from moment_init.em.random_starts import random_parameters
from moment_init.em.run_book import Portfolio
from moment_init.em.start_records import BREAKDOWNS, SAME_OPTIMUM
from moment_init.likelihood.maximise import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters

__all__ = ["DEFAULT_RANDOM_STARTS", "each_random_start", "run_given", "run_random"]

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
    portfolio = Portfolio(problem)
    climb = partial(_climb_at_random, problem, options)
    for origin, run in each_random_start(climb, options, rng):
        if isinstance(run, str):
            portfolio.fail(origin, run)
        else:
            portfolio.add(origin, run)
    return portfolio


def each_random_start[Run](
    climb: Callable[[np.random.Generator], Run], options: FitOptions, rng: np.random.Generator
) -> Iterator[tuple[str, Run | str]]:
    """Run random starts, several at once through joblib, and show how many are done.

    Parameters
    ----------
    climb : callable
        Draws a start and climbs from it; it must pickle.
    options : FitOptions
        How many starts, and how many at once.
    rng : numpy.random.Generator
        Source of randomness; every start has its own stream of it.

    Yields
    ------
    origin : str
        Name of the start, in order.
    run : object or str
        What the climb returned, or what it said when it broke down.
    """
    from joblib import Parallel, delayed  # imported where starts are run in parallel

    n_starts = DEFAULT_RANDOM_STARTS if options.n_starts is None else options.n_starts
    tasks = (delayed(_guarded)(climb, own) for own in rng.spawn(n_starts))
    runs: Iterable[Run | str] = Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks)
    shown = track(runs, n_starts, "random starts", is_shown=options.progressbar)
    for rank, run in enumerate(shown, start=1):
        yield f"random {rank}", run


def _guarded[Run](
    climb: Callable[[np.random.Generator], Run], rng: np.random.Generator
) -> Run | str:
    """One start; one that breaks down returns what it said."""
    with single_threaded_blas():
        try:
            return climb(rng)
        except BREAKDOWNS as error:
            return str(error)


def _climb_at_random(
    problem: EMProblem, options: FitOptions, rng: np.random.Generator
) -> MaximiseResult:
    return problem.climb(random_parameters(problem, options.random_start, rng), **options.run)
