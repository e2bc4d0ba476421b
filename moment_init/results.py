"""What all results share: records of the starts, tables of the components, and the status.

A `StartRecord` says how one start of a fit ended. A `ComponentTable` shows a fitted mixture with
one column per component, as text and for a notebook.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

DISTINCT_OPTIMA = 0.05
"""Optima whose log-likelihoods differ by more than this are distinct."""

SAME_OPTIMUM = 0.01
"""Log-likelihoods that differ by less than this belong to one optimum: converged runs stop within
0.001 of their maximum."""

BREAKDOWNS: tuple[type[Exception], ...] = (np.linalg.LinAlgError, ArithmeticError, ValueError)
"""Errors that end one start only: factorisations that fail, and SciPy's refusal of values that are
not finite. The start is recorded as failed, and the others continue."""


class StartKind(StrEnum):
    """Where a start comes from. The guide to `fit_em` explains each kind in a table."""

    SINGLE = "single"
    TENSOR = "tensor"
    GROWTH = "growth"
    BINS = "bins"
    CLUSTERS = "clusters"
    RANDOM = "random"
    MOVE = "move"
    PERTURBATION = "perturbation"
    SAMPLE = "sample"
    GIVEN = "given"
    ESTIMATE = "estimate"


class StartStatus(StrEnum):
    """How a start ended. The guide to `fit_em` explains each ending in a table."""

    CONVERGED = "converged"
    RECOGNISED = "recognised"
    OVERTAKEN = "overtaken"
    OUT_OF_STEPS = "out_of_steps"
    STALLED = "stalled"
    FAILED = "failed"


_AT_MAXIMA = (StartStatus.CONVERGED, StartStatus.RECOGNISED)


@dataclass(frozen=True, slots=True, eq=False)
class StartRecord:
    """The record of one start of a fit.

    Parameters
    ----------
    origin : str
        The kind of the start (`StartKind`) and its number, such as "tensor 1", "growth" or
        "random 3".
    log_likelihood : float
        Log-likelihood in the user's units at the end of the start, or at the known maximum that it
        was recognised to lead to; NaN if it failed.
    n_iter : int
        Number of iterations.
    status : StartStatus
        How it ended. "overtaken": others of its kind were higher after a few steps. "recognised":
        it was stopped because it led to a maximum that an earlier start had reached.
    bounds : tuple of str
        Bounds of the parameters that it ended on.
    message : str
        Why it failed, if it did.
    is_sampled : bool
        Whether it used a sample of the rows. Its log-likelihood is then that of the sample, and can
        be compared only with those of other starts.
    log_posterior : float or None
        Log-likelihood plus log prior, by which starts are ranked; None without priors.
    """

    origin: str
    log_likelihood: float
    n_iter: int
    status: StartStatus
    bounds: tuple[str, ...] = ()
    message: str = ""
    is_sampled: bool = False
    log_posterior: float | None = None

    def __post_init__(self) -> None:
        """Refuse an origin that the guide does not explain."""
        StartKind(self.origin.split()[0])

    @property
    def objective(self) -> float:
        """What the fit maximises: the log-posterior, or without priors the log-likelihood."""
        return self.log_likelihood if self.log_posterior is None else self.log_posterior


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun."""
    return f"{number:.0f} {noun if number == 1 else plural or noun + 's'}"


def count_best(starts: Sequence[StartRecord], objective: float) -> tuple[int, int]:
    """Count the converged starts that reached the best objective, and all converged starts."""
    if not all(start.is_sampled for start in starts):  # others began on a smaller sample
        starts = [start for start in starts if not start.is_sampled]
    ends = [start.objective for start in starts if start.status in _AT_MAXIMA]
    if any(start.is_sampled for start in starts):
        best = max(ends, default=objective)
    else:
        best = max([objective, *ends])
    return sum(value > best - SAME_OPTIMUM for value in ends), len(ends)


def tabulate_starts(starts: Sequence[StartRecord]) -> "pandas.DataFrame":
    """Make a table with one row per start."""
    import pandas

    names = [field.name for field in fields(StartRecord)]
    if all(start.log_posterior is None for start in starts):
        names.remove("log_posterior")
    records = [[getattr(start, name) for name in names] for start in starts]
    table = pandas.DataFrame(records, columns=names)
    table["status"] = [str(start.status) for start in starts]
    table["bounds"] = [", ".join(start.bounds) for start in starts]
    return table


@dataclass(frozen=True, slots=True)
class ComponentTable:
    """The table that is printed for a fitted mixture."""

    title: str  # what was fitted, in one line
    rows: Sequence[tuple[str, list[str]]]  # a name, then one cell per component
    notes: Sequence[str]  # lines below the table
    warnings: Sequence[str]  # warnings of the fit

    def to_text(self) -> str:
        """Format as text with aligned columns."""
        heads = [f"component {j}" for j in range(len(self.rows[0][1]))]
        table = [("", heads), *self.rows]
        names = max(len(name) for name, _ in table)
        widths = [2 + max(len(cells[j]) for _, cells in table) for j in range(len(heads))]
        lines = [
            (
                f"{name:<{names}}"
                + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            ).rstrip()
            for name, cells in table
        ]
        warnings = [f"! {warning}" for warning in self.warnings]
        return "\n".join([self.title, *lines, *self.notes, *warnings])

    def to_html(self) -> str:
        """Format as HTML for a notebook."""
        head = "".join(f"<th>component {j}</th>" for j in range(len(self.rows[0][1])))
        cell = '<td style="text-align: right; font-variant-numeric: tabular-nums">'
        body = "".join(
            f'<tr><th style="text-align: left">{escape(name)}</th>'
            + "".join(f"{cell}{escape(value)}</td>" for value in cells)
            + "</tr>"
            for name, cells in self.rows
        )
        notes = "<br>".join(map(escape, self.notes))
        warnings = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return (
            f"<p>{escape(self.title)}</p><table><tr><th></th>{head}</tr>{body}</table>"
            + (f"<p>{notes}</p>" if notes else "")
            + (f"<ul>{warnings}</ul>" if warnings else "")
        )


def estimate_cells(values: Iterable[float], errors: Iterable[float]) -> list[str]:
    """Format estimates with their standard errors in brackets."""
    return [_cell(value, error) for value, error in zip(values, errors, strict=True)]


def _cell(value: float, error: float) -> str:
    """Format an estimate and its error to two digits of the error; "fixed" if it is 0."""
    if np.isnan(error):
        return f"{value:.4g} (nan)"
    if error == 0.0:
        return "0" if value == 0.0 else f"{value:.4g} (fixed)"
    decimals = int(np.clip(1 - np.floor(np.log10(error)), 0, 12))  # two digits of the error
    return f"{value:.{decimals}f} ({error:.{decimals}f})"


class Status(StrEnum):
    """How far an estimate can be trusted."""

    OK = "ok"
    WEAK_SIGNAL = "weak_signal"
    NOT_IDENTIFIED = "not_identified"
    MISFIT = "misfit"
    NOT_CONVERGED = "not_converged"
    NOT_EXPLORED = "not_explored"
    INPUT_ASSUMPTION = "input_assumption"
