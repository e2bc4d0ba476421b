"""What became of every start of a fit."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

__all__ = [
    "BREAKDOWNS",
    "SAME_OPTIMUM",
    "StartRecord",
    "StartStatus",
    "count_best",
    "tabulate_starts",
]

SAME_OPTIMUM = 0.01
"""Log-likelihoods that differ by less belong to one optimum: converged runs stop within a
thousandth of their maximum."""

BREAKDOWNS: tuple[type[Exception], ...] = (np.linalg.LinAlgError, ArithmeticError, ValueError)
"""What a start may end in that cannot be run: factorisations that fail, and SciPy's refusal of
values that are not finite. Such a start is counted, and the others go on."""


class StartStatus(StrEnum):
    """How a start ended."""

    CONVERGED = "converged"
    RECOGNISED = "recognised"
    RACED = "raced"
    ABANDONED = "abandoned"
    OUT_OF_STEPS = "out_of_steps"
    STALLED = "stalled"
    FAILED = "failed"


_AT_MAXIMA = (StartStatus.CONVERGED, StartStatus.RECOGNISED)


@dataclass(frozen=True, slots=True, eq=False)
class StartRecord:
    """What became of one start.

    Parameters
    ----------
    origin : str
        Where it came from: "tensor 1", "splits", "random 3".
    log_likelihood : float
        Log-likelihood in the user's units where it ended, or of the maximum that was recognised
        ahead of it; NaN if it failed.
    n_iter : int
        Number of iterations.
    status : StartStatus
        How it ended; a start that lost a race of short runs is "raced", one that was seen to lead
        to a maximum that an earlier start had reached is "recognised".
    bounds : tuple of str
        Bounds on which it ended.
    message : str
        Why it failed, if it did.
    is_sampled : bool
        Whether it saw a sample of the rows: its log-likelihood is that of the sample then, and
        compares with those of other starts only.
    """

    origin: str
    log_likelihood: float
    n_iter: int
    status: StartStatus
    bounds: tuple[str, ...] = ()
    message: str = ""
    is_sampled: bool = False


def count_best(starts: Sequence[StartRecord], log_likelihood: float) -> tuple[int, int]:
    """Count the converged starts that found the best log-likelihood.

    Parameters
    ----------
    starts : sequence of StartRecord
        Every start.
    log_likelihood : float
        That of the result.

    Returns
    -------
    reached : int
        How many converged to within .01 of the best.
    converged : int
        How many converged at all.
    """
    ends = [start.log_likelihood for start in starts if start.status in _AT_MAXIMA]
    if any(start.is_sampled for start in starts):
        best = max(ends, default=log_likelihood)
    else:
        best = max([log_likelihood, *ends])
    return sum(value > best - SAME_OPTIMUM for value in ends), len(ends)


def tabulate_starts(starts: Sequence[StartRecord]) -> "pandas.DataFrame":
    """Put starts into a table.

    Parameters
    ----------
    starts : sequence of StartRecord
        Every start.

    Returns
    -------
    pandas.DataFrame
        A row a start, a column a field; several bounds are joined by commas.
    """
    import pandas

    names = [field.name for field in fields(StartRecord)]
    records = [[getattr(start, name) for name in names] for start in starts]
    table = pandas.DataFrame(records, columns=names)
    table["status"] = [str(start.status) for start in starts]
    table["bounds"] = [", ".join(start.bounds) for start in starts]
    return table
