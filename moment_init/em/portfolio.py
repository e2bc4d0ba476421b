"""The portfolio: starts of several origins, ranked by short runs, and moves between them.

Cheap and likely routes come first. A search ends when starts of two kinds have reached the best
maximum and no move leaves it, or when its routes are used up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.em.first_steps import fit_single
from moment_init.em.growth import GrowthOptions, grow
from moment_init.em.moves import FEW_FEATURES, propose_moves, tempered
from moment_init.em.peeling import peel
from moment_init.em.problem import EMProblem
from moment_init.em.random_starts import random_assignment
from moment_init.em.start_records import BREAKDOWNS, SAME_OPTIMUM, StartRecord, StartStatus
from moment_init.em.subset_starts import race_subsets
from moment_init.likelihood.maximise import Ending, MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.splits import improve

__all__ = ["Portfolio", "PortfolioOptions", "search"]

FloatArray = NDArray[np.float64]
Start = tuple[str, MixtureParameters]
Route = tuple[str, Callable[["Portfolio"], None]]

RACE = {"max_steps": 10, "em_steps": 3, "max_em_steps": 10}
"""A short run after which starts of one origin are compared."""

FINISH_TOLERANCE = 1e-4
MIN_GAIN = 2 * SAME_OPTIMUM
"""Predicted gain at which a run ends, far below what tells maxima apart; and what a move must gain
to be taken."""

FINISH: dict[str, Any] = {
    "max_steps": 300,
    "em_steps": 8,
    "max_em_steps": 60,
    "tolerance": FINISH_TOLERANCE,
    "damping": 0.1,
}
"""A run to its maximum: EM while it is fast, then Newton."""

MAX_TEMPERINGS = 5
"""Most times that a maximum is left by tempering in one round; two are rare."""

EARLY_MOMENT_UNITS = 10_000
"""With so many units moments cost less than a run of EM, and come early; with fewer they come when
cheaper starts disagree."""

LARGE_WEIGHT = 0.5
"""Robust regression finds a component that has at least half of the rows."""

TEMPERATURES = (2.0, 3.5)
"""Inverse powers of the likelihood from which a maximum is cooled again; the first is tried even
where starts agree."""

SAME_COMPONENT = 1e-2
"""Components whose parameters differ by less, relative to their size, are one: far below what any
number of rows tells apart where a mixture is worth fitting."""

WITNESSES = 2
"""A maximum is believed to be the highest once starts of so many kinds have reached it."""

LEAN_GROWTH = GrowthOptions(beam=1, n_splits=4, n_directions=2, race_steps=8, settle_steps=8)
WIDE_GROWTH = GrowthOptions(beam=3, n_splits=4, n_directions=2, race_steps=8, settle_steps=12)
"""Growth that comes first, and growth for data on which starts do not agree."""


@dataclass(frozen=True, slots=True)
class PortfolioOptions:
    """Which parts of the portfolio run; all of them unless a part is to be measured.

    Parameters
    ----------
    use_tensor, use_splits, use_subsets, use_peeling, use_moves, use_tempering : bool
        Starts from moments, from growth by splits, from small subsets of rows, by peeling; moves
        that drop, split and replant; tempered runs.
    n_random : int
        Random starts before the wide growth, and again after it, while kinds disagree.
    """

    use_tensor: bool = True
    use_splits: bool = True
    use_subsets: bool = True
    use_peeling: bool = True
    use_moves: bool = True
    use_tempering: bool = True
    n_random: int = 2


@dataclass(slots=True)
class Portfolio:
    """Runs so far and the best of them.

    Parameters
    ----------
    problem : EMProblem
        What is fitted.
    records : list of StartRecord
        Every start, in the order in which they ran.
    best : MaximiseResult or None
        The best run.
    witnesses : set of str
        Kinds of starts that reached the best maximum on their own.
    """

    problem: EMProblem
    records: list[StartRecord] = field(default_factory=list)
    best: MaximiseResult | None = None
    witnesses: set[str] = field(default_factory=set)

    def finish(self, origin: str, start: MixtureParameters) -> None:
        """Run a start to its maximum, or until it cannot reach the best.

        Parameters
        ----------
        origin : str
            Where the start comes from.
        start : MixtureParameters
            The start.
        """
        target = None if self.best is None else self.best.log_likelihood - SAME_OPTIMUM
        self.add(origin, self.problem.climb(start, target=target, **FINISH))

    def race(self, starts: list[Start], n_finishers: int = 1) -> None:
        """Short runs of several starts, the best of them to their ends.

        Parameters
        ----------
        starts : list of tuple
            Origins and starts.
        n_finishers : int, default 1
            How many are run to the end.
        """
        runs = [(origin, self.problem.climb(start, **RACE)) for origin, start in starts]
        runs.sort(key=lambda run: run[1].log_likelihood, reverse=True)
        for origin, run in runs[:n_finishers]:
            self.finish(origin, run.parameters)
        for origin, run in runs[n_finishers:]:
            self._record(origin, run, StartStatus.RACED)

    def add(self, origin: str, run: MaximiseResult) -> None:
        """Keep the record of a finished run, and the run if it is the best.

        Parameters
        ----------
        origin : str
            Where its start comes from.
        run : MaximiseResult
            The run.
        """
        self._record(origin, run, _STATUS[run.ending])
        witness = set() if _is_degenerate(run) else {origin.split()[0]}
        if self.best is None or run.log_likelihood > self.best.log_likelihood + SAME_OPTIMUM:
            self.best, self.witnesses = run, witness
        elif run.log_likelihood > self.best.log_likelihood - SAME_OPTIMUM:
            self.witnesses |= witness
            if run.log_likelihood > self.best.log_likelihood:
                self.best = run

    def fail(self, origin: str, message: str) -> None:
        """Keep the record of a start that broke down.

        Parameters
        ----------
        origin : str
            Where the start comes from.
        message : str
            What went wrong.
        """
        self.records.append(
            StartRecord(origin, float("nan"), 0, StartStatus.FAILED, message=message)
        )

    def attempt(self, origin: str, route: Callable[["Portfolio"], object]) -> None:
        """Take a route; one that breaks down is put on record, and others go on.

        Parameters
        ----------
        origin : str
            Where its starts come from.
        route : callable
            Runs starts of this portfolio.
        """
        try:
            route(self)
        except BREAKDOWNS as error:
            self.fail(origin, str(error))

    def temper(self, temperatures: Sequence[float]) -> None:
        """Cool the best maximum from softened likelihoods for as long as that finds a better one.

        Parameters
        ----------
        temperatures : sequence of float
            Inverse powers of the likelihood.
        """
        for _ in range(MAX_TEMPERINGS):
            before = self.best
            if before is None:
                return
            for temperature in temperatures:
                start = tempered(self.problem, before.parameters, temperature)
                end = self.problem.climb(start, target=before.log_likelihood, **FINISH)
                if end.log_likelihood > before.log_likelihood + SAME_OPTIMUM:
                    self.add("tempering", end)
                    break
            if self.best is before:
                return

    def move(
        self, origin: str, propose: Callable[[MixtureParameters], list[MixtureParameters]]
    ) -> bool:
        """Try to leave the best maximum for a better one.

        Parameters
        ----------
        origin : str
            Name of the moves.
        propose : callable
            Maps the best mixture to starts near it.

        Returns
        -------
        bool
            Whether a better maximum was found.
        """
        if self.best is None:
            return False
        end, n_moves = improve(
            self.problem.climb, propose, self.best, tolerance=FINISH_TOLERANCE, min_gain=MIN_GAIN
        )
        if n_moves:
            self.add(origin, end)
        return n_moves > 0

    def _record(self, origin: str, run: MaximiseResult, status: StartStatus) -> None:
        value = run.log_likelihood - self.problem.log_jacobian
        self.records.append(StartRecord(origin, value, run.n_iter, status, run.bounds))


_STATUS = {
    Ending.CONVERGED: StartStatus.CONVERGED,
    Ending.OUT_OF_STEPS: StartStatus.OUT_OF_STEPS,
    Ending.STALLED: StartStatus.STALLED,
    Ending.ABANDONED: StartStatus.ABANDONED,
}


def _is_degenerate(run: MaximiseResult) -> bool:
    """Whether a component is empty or a copy of another: such a maximum vouches for nothing."""
    if any(bound.startswith("weight") for bound in run.bounds):
        return True
    at = run.parameters
    vectors = np.concatenate([at.coefficients, at.biases[None]])
    if at.dispersion is not None:
        vectors = np.concatenate([vectors, np.log(at.dispersion)[None]])
    gaps = np.linalg.norm(vectors[:, :, None] - vectors[:, None, :], axis=0)
    first, second = np.triu_indices(at.n_components, k=1)
    sizes = 1.0 + np.linalg.norm(vectors, axis=0)
    return bool(np.any(gaps[first, second] < SAME_COMPONENT * sizes[first]))


def search(
    problem: EMProblem,
    tensor_starts: Callable[[], list[Start]],
    rng: np.random.Generator,
    options: PortfolioOptions | None = None,
) -> Portfolio:
    """Search for the highest maximum of the likelihood.

    Parameters
    ----------
    problem : EMProblem
        The problem, of as many rows as the search shall see.
    tensor_starts : callable
        Computes starts from moments, when they are asked for.
    rng : numpy.random.Generator
        Source of subsets and random starts.
    options : PortfolioOptions, optional
        Which parts run.

    Returns
    -------
    Portfolio
        The best run and the record of all.
    """
    options = options or PortfolioOptions()
    problem = problem.prepared()
    portfolio = Portfolio(problem)
    is_simple = problem.n_components == 1
    for routes in _rounds(problem, tensor_starts, rng, options):
        before = portfolio.best
        for origin, route in routes:
            portfolio.attempt(origin, route)
            if is_simple or _is_agreed(portfolio, options):
                return portfolio
        found = portfolio.best
        _move(portfolio, options)
        if found is not None and portfolio.best is found and found is before:
            break  # neither new starts nor moves found anything better
    return portfolio


def _is_agreed(portfolio: Portfolio, options: PortfolioOptions) -> bool:
    """Whether two kinds of starts reached the best maximum and tempering does not leave it."""
    if len(portfolio.witnesses) < WITNESSES:
        return False
    agreed = portfolio.best
    if options.use_tempering:
        _temper(portfolio, TEMPERATURES[:1])
    if portfolio.problem.rows.n_features <= FEW_FEATURES and portfolio.best is agreed:
        _move(portfolio, options)  # curves in few dimensions cross, and starts err alike
    return portfolio.best is agreed


def _move(portfolio: Portfolio, options: PortfolioOptions) -> None:
    if options.use_tempering:
        _temper(portfolio, TEMPERATURES)
    if options.use_moves:
        propose = partial(propose_moves, portfolio.problem)
        portfolio.attempt("moves", partial(Portfolio.move, origin="moves", propose=propose))


def _temper(portfolio: Portfolio, temperatures: Sequence[float]) -> None:
    portfolio.attempt("tempering", partial(Portfolio.temper, temperatures=temperatures))


def _rounds(
    problem: EMProblem,
    tensor_starts: Callable[[], list[Start]],
    rng: np.random.Generator,
    options: PortfolioOptions,
) -> Iterator[list[Route]]:
    """Rounds of routes, the cheap and likely ones first; moves follow each round."""
    tensor: list[Route] = []
    if options.use_tensor:
        tensor = [("tensor", partial(_by_tensor, starts=tensor_starts))]
    is_large = problem.rows.n_units >= EARLY_MOMENT_UNITS
    lean: list[Route] = []
    wide: list[Route] = []
    if options.use_splits:
        lean = [("splits", partial(_by_splits, growth=LEAN_GROWTH))]
        wide = [("splits", partial(_by_splits, growth=WIDE_GROWTH))]
    peeling: list[Route] = []
    if options.use_peeling and not problem.family.has_binary_rows:
        peeling = [("peeling", _by_peeling)]
    subsets: list[Route] = []
    if options.use_subsets and problem.rows.n_features <= FEW_FEATURES:
        subsets = [("subsets", partial(_by_subsets, rng=rng))]

    def random(first: int) -> list[Route]:
        ranks = range(first, first + options.n_random)
        return [
            (f"random {rank}", partial(_at_random, origin=f"random {rank}", rng=rng))
            for rank in ranks
        ]

    early, late = (tensor, []) if is_large else ([], tensor)
    yield [*lean, *early, *peeling, *random(1)]
    yield [*late, *subsets, *random(1 + options.n_random)]
    yield [*wide, *random(1 + 2 * options.n_random)]


def _by_splits(portfolio: Portfolio, growth: GrowthOptions) -> None:
    grown = grow(portfolio.problem, growth)
    portfolio.race([("splits", run.parameters) for run in grown])


def _by_tensor(portfolio: Portfolio, starts: Callable[[], list[Start]]) -> None:
    candidates = starts()
    if candidates:
        portfolio.race(candidates)


def _by_subsets(portfolio: Portfolio, rng: np.random.Generator) -> None:
    single = fit_single(portfolio.problem).parameters
    runs = race_subsets(portfolio.problem, single, rng)
    portfolio.race([("subsets", run.parameters) for run in runs], n_finishers=2)


def _by_peeling(portfolio: Portfolio) -> None:
    """Peel where the best fit so far has a component that stands out by its size."""
    best = portfolio.best
    if best is not None and best.parameters.weights.max() < LARGE_WEIGHT:
        return
    single = fit_single(portfolio.problem).parameters
    portfolio.finish("peeling", peel(portfolio.problem, single))


def _at_random(portfolio: Portfolio, origin: str, rng: np.random.Generator) -> None:
    portfolio.finish(origin, random_assignment(portfolio.problem, rng))
