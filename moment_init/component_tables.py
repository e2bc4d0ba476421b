"""Tables of fitted mixtures, a column a component, as text and for a notebook."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

__all__ = ["ComponentTable", "estimate_cells"]


@dataclass(frozen=True, slots=True)
class ComponentTable:
    """What is printed of a fitted mixture.

    Parameters
    ----------
    title : str
        What was fitted, in one line.
    rows : sequence of tuple
        A name, then a cell for each component.
    notes : sequence of str
        Lines below the table.
    warnings : sequence of str
        Warnings of the fit.
    """

    title: str
    rows: Sequence[tuple[str, list[str]]]
    notes: Sequence[str]
    warnings: Sequence[str]

    def to_text(self) -> str:
        """Print with columns aligned.

        Returns
        -------
        str
            Title, table, notes and warnings.
        """
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
        """Print for a notebook.

        Returns
        -------
        str
            The same as HTML.
        """
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
    """Estimates with their standard errors in brackets.

    Parameters
    ----------
    values : iterable of float
        An estimate for each component.
    errors : iterable of float
        Their standard errors; zero for what was held, NaN for what is not known.

    Returns
    -------
    list of str
        To the decimals that the errors leave.
    """
    return [_cell(value, error) for value, error in zip(values, errors, strict=True)]


def _cell(value: float, error: float) -> str:
    """Estimate and standard error to the decimals that the error leaves; `held` if it is zero."""
    if np.isnan(error):
        return f"{value:.4g} (nan)"
    if error == 0.0:
        return "0" if value == 0.0 else f"{value:.4g} (held)"
    decimals = int(np.clip(1 - np.floor(np.log10(error)), 0, 12))  # two digits of the error
    return f"{value:.{decimals}f} ({error:.{decimals}f})"
