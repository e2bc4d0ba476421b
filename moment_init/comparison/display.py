"""How a comparison is printed, and shown in a notebook."""

from html import escape
from textwrap import fill
from typing import TYPE_CHECKING

from moment_init.comparison.measures import MeasureRow, measure_rows, with_minus

if TYPE_CHECKING:
    from moment_init.comparison.result import Comparison

__all__ = ["LINE_WIDTH", "comparison_to_html", "comparison_to_text", "table_to_html"]

LINE_WIDTH = 100
"""Characters of a line of text."""

_MARK = "*"
_STAR = '<span role="img" aria-label="best" title="best">★</span>'


def comparison_to_text(comparison: "Comparison") -> str:
    """Print a comparison.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    str
        The verdict, the table with a column a method, and warnings, in lines of 100 characters.
    """
    verdict = comparison.verdict
    parts = [fill(verdict.headline, LINE_WIDTH)]
    parts += [_item(reason) for reason in verdict.reasons]
    rows = measure_rows(comparison)
    for methods in _blocks([str(name) for name in comparison.table.index], rows):
        parts += ["", *_text_table(methods, rows)]
    parts += ["", f"{_MARK} best, or not worse than the best by more than noise"]
    parts += [_item(f"Warning: {warning}") for warning in comparison.warnings]
    return "\n".join(parts)


def _item(text: str) -> str:
    return fill(text, LINE_WIDTH, initial_indent="- ", subsequent_indent="  ")


def _text_table(methods: list[str], rows: list[MeasureRow]) -> list[str]:
    """Lines of a table with a column a method."""
    margin = max((len(row.measure.label) for row in rows), default=0)
    widths = {method: _width(method, rows) for method in methods}
    heads = "".join(f"  {method:>{widths[method]}} " for method in methods)
    lines = [f"{'':{margin}}{heads}".rstrip()]
    for row in rows:
        cells = "".join(
            f"  {row.cells[method] or '-':>{widths[method]}}{_MARK if method in row.best else ' '}"
            for method in methods
        )
        lines.append(f"{row.measure.label:{margin}}{cells}".rstrip())
    return lines


def _width(method: str, rows: list[MeasureRow]) -> int:
    return max([len(method), *(len(row.cells[method]) for row in rows)])


def _blocks(methods: list[str], rows: list[MeasureRow]) -> list[list[str]]:
    """Divide the methods into tables that fit a line."""
    margin = max((len(row.measure.label) for row in rows), default=0)
    blocks: list[list[str]] = [[]]
    used = margin
    for method in methods:
        width = _width(method, rows) + 3
        if blocks[-1] and used + width > LINE_WIDTH:
            blocks.append([])
            used = margin
        blocks[-1].append(method)
        used += width
    return blocks


def comparison_to_html(comparison: "Comparison") -> str:
    """Show a comparison in a notebook.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    str
        The verdict, the table and the warnings.
    """
    verdict = comparison.verdict
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    notes = "".join(f"<li>{escape(warning)}</li>" for warning in comparison.warnings)
    return (
        f"<div><p><strong>{escape(verdict.headline)}</strong></p><ul>{reasons}</ul>"
        f"{table_to_html(comparison)}"
        f"<p>{_STAR} best, or not worse than the best by more than noise</p>"
        f"{f'<p>Warnings</p><ul>{notes}</ul>' if notes else ''}</div>"
    )


def table_to_html(comparison: "Comparison", *, with_meanings: bool = False) -> str:
    """Write the table, a column a method.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    with_meanings : bool
        Whether a last column says what each figure is.

    Returns
    -------
    str
        A table element.
    """
    methods = [str(name) for name in comparison.table.index]
    heads = "".join(f'<th scope="col">{escape(method)}</th>' for method in methods)
    if with_meanings:
        heads += '<th scope="col" class="meaning">What it says</th>'
    body = "".join(_html_row(row, methods, with_meanings) for row in measure_rows(comparison))
    return (
        f'<table class="figures"><thead><tr><td></td>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _html_row(row: MeasureRow, methods: list[str], with_meanings: bool) -> str:
    label = row.measure.label
    part = ' class="part"' if label.startswith(" ") else ""
    cells = "".join(_html_cell(row.cells[name], name in row.best) for name in methods)
    if with_meanings:
        cells += f'<td class="meaning">{escape(_meaning(row))}</td>'
    return f'<tr{part}><th scope="row">{escape(label.strip())}</th>{cells}</tr>'


def _html_cell(text: str, is_best: bool) -> str:
    shown = escape(with_minus(text)) or "–"  # noqa: RUF001
    return f"<td><strong>{shown}</strong> {_STAR}</td>" if is_best else f"<td>{shown}</td>"


def _meaning(row: MeasureRow) -> str:
    meaning = row.measure.meaning
    better = {1: "higher is better", -1: "lower is better", 0: ""}[row.measure.better]
    parts = [part for part in (meaning, better) if part]
    return "; ".join(parts)
