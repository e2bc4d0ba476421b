"""The book of a search: runs so far, the best of them, and the maxima that they have reached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from moment_init.em.moves import levelled, tempered
from moment_init.em.problem import EMProblem
from moment_init.em.start_records import BREAKDOWNS, SAME_OPTIMUM, StartRecord, StartStatus
from moment_init.likelihood.maximise import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.recognition import KnownMaximum
from moment_init.likelihood.splits import improve

__all__ = ["FINISH", "RACE", "Portfolio", "Start"]

Start = tuple[str, MixtureParameters]

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

SAME_COMPONENT = 1e-2
"""Components whose parameters differ by less, relative to their size, are one: far below what any
number of rows tells apart where a mixture is worth fitting."""


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
    maxima : list of KnownMaximum
        Maxima inside all bounds that runs have reached; runs that lead to one of them end early.
    tried : set of str
        Ways out of the best maximum that were tried: they would end as they did.
    """

    problem: EMProblem
    records: list[StartRecord] = field(default_factory=list)
    best: MaximiseResult | None = None
    witnesses: set[str] = field(default_factory=set)
    maxima: list[KnownMaximum] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)

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
        self.add(origin, self.climb(start, target=target, **FINISH))

    def climb(self, start: MixtureParameters, **options: Any) -> MaximiseResult:
        """Climb from a start, as far as a maximum that is known.

        Parameters
        ----------
        start : MixtureParameters
            The start.
        **options
            Of `EMProblem.climb`.

        Returns
        -------
        MaximiseResult
            Where the climb ended.
        """
        return self.problem.climb(start, known=self.maxima, **options)

    def race(self, starts: list[Start], n_finishers: int = 1) -> None:
        """Short runs of several starts, the best of them to their ends.

        Parameters
        ----------
        starts : list of tuple
            Origins and starts.
        n_finishers : int, default 1
            How many are run to the end.
        """
        if len(starts) <= n_finishers:  # nothing to choose from
            for origin, start in starts:
                self.finish(origin, start)
            return
        runs = [(origin, self.climb(start, **RACE)) for origin, start in starts]
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
        self._record(origin, run, StartStatus(str(run.ending)))
        if run.recognised is not None:
            if self._is_best(run.recognised.log_likelihood):
                self.witnesses.add(origin.split()[0])
            return
        is_degenerate = _is_degenerate(run)
        if run.converged and not is_degenerate:
            self._keep_maximum(run)
        # a run that has stalled may have done so short of the maximum
        witness = {origin.split()[0]} if run.converged and not is_degenerate else set()
        if self.best is None or run.log_likelihood > self.best.log_likelihood + SAME_OPTIMUM:
            self.best, self.witnesses, self.tried = run, witness, set()
        elif self._is_best(run.log_likelihood):
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

    def temper(self, temperatures: Sequence[float], *, is_levelled: bool = False) -> None:
        """Cool the best maximum from softened likelihoods for as long as that finds a better one.

        Parameters
        ----------
        temperatures : sequence of float
            Inverse powers of the likelihood.
        is_levelled : bool, default False
            Whether to release it from equal deviations too, where a family has them.
        """
        ways: dict[str, Callable[[MixtureParameters], MixtureParameters]] = {
            f"temperature {temperature:g}": partial(tempered, self.problem, temperature=temperature)
            for temperature in temperatures
        }
        if is_levelled and self.problem.family.deviation_power is not None:
            ways["equal deviations"] = partial(levelled, self.problem, **FINISH)
        for _ in range(MAX_TEMPERINGS):
            before = self.best
            if before is None:
                return
            for way, soften in ways.items():
                if way in self.tried:
                    continue
                self.tried.add(way)
                start = soften(before.parameters)
                end = self.climb(start, target=before.log_likelihood, **FINISH)
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
        if self.best is None or origin in self.tried:
            return False
        self.tried.add(origin)  # should it break down
        end, n_moves = improve(
            self.climb, propose, self.best, tolerance=FINISH_TOLERANCE, min_gain=MIN_GAIN
        )
        if n_moves:
            self.add(origin, end)
        self.tried.add(origin)
        return n_moves > 0

    def _is_best(self, log_likelihood: float) -> bool:
        best = self.best
        return best is not None and log_likelihood > best.log_likelihood - SAME_OPTIMUM

    def _keep_maximum(self, run: MaximiseResult) -> None:
        """Keep a maximum that nothing holds, for its curvature to be recognised by."""
        if run.bounds or not self.problem.restrictions.is_empty:
            return
        maximum = KnownMaximum.of(run.parameters, run.sums)
        if maximum is not None:
            self.maxima.append(maximum)

    def _record(self, origin: str, run: MaximiseResult, status: StartStatus) -> None:
        ahead = run.recognised
        value = run.log_likelihood if ahead is None else ahead.log_likelihood
        value -= self.problem.log_jacobian
        self.records.append(StartRecord(origin, value, run.n_iter, status, run.bounds))


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
