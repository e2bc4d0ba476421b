"""The result of `compare`: the verdict, and its figures as a table in text and in HTML.

`measure_rows` formats the figures and marks the best of them; other functions write these rows,
with the verdict and the warnings, for a terminal, a notebook and the page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.comparison.scoring import COLUMNS, ScoreDifference

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_SCORES = ("elpd_loo", "elpd_held_out")


def with_minus(text: str) -> str:
    """Replace hyphens by minus signs in a number."""
    return text.replace("-", "−")  # noqa: RUF001


def _decimals(count: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{count}f}"


def _percent(value: float) -> str:
    percent = 100 * value
    digits = 0 if percent == round(percent) or percent >= 10 else 1
    return f"{percent:.{digits}f} %"


def _three_digits(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1e}"


@dataclass(frozen=True, slots=True)
class Measure:
    """The format of one figure of the table."""

    label: str  # short name, shown in the first column
    write: Callable[[float], str]  # formats a finite value
    better: int = 0  # 1 if higher values are better, -1 if lower, 0 if neither
    meaning: str = ""  # explanation for the page


_SHOWN: tuple[tuple[str, str, Callable[[float], str], int], ...] = (
    ("log_likelihood", "log-likelihood", _decimals(2), 1),
    ("share_at_best", "share at best optimum", _percent, 1),
    ("n_starts", "starts or chains", _decimals(0), 0),
    ("elpd_loo", "LOO score", _decimals(1), 1),
    ("elpd_se", "  standard error", _decimals(1), 0),
    ("p_loo", "  effective parameters", _decimals(1), 0),
    ("pareto_k_max", "  largest Pareto k", _decimals(2), 0),
    ("pareto_k_bad", "  Pareto k too large", _percent, -1),
    ("elpd_held_out", "held-out score", _decimals(1), 1),
    ("elpd_held_out_se", "  standard error", _decimals(1), 0),
    ("rhat_max", "largest R-hat", _decimals(3), -1),
    ("ess_bulk_min", "smallest ESS", _decimals(0), 1),
    ("ess_per_second", "  per second", _three_digits, 1),
    ("divergences", "divergences", _decimals(0), -1),
    ("error", "error of coefficients", _three_digits, -1),
    ("error_angle", "largest angle (°)", _decimals(1), -1),
    ("seconds", "seconds", _three_digits, -1),
)

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        column: Measure(label, write, better, COLUMNS.get(column, ""))
        for column, label, write, better in _SHOWN
    }
)
"""Figures of the table, in the order in which they are shown. An indented label belongs to the
figure above it."""


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """One figure of all methods, formatted."""

    column: str  # column of `Comparison.table`
    measure: Measure  # format of the figure
    cells: dict[str, str]  # text by method; empty where the figure is not defined
    best: frozenset[str]  # marked methods; empty if all are equally good


def measure_rows(comparison: "Comparison") -> list[MeasureRow]:
    """Format the table, one row per figure.

    The best value and values that print the same are marked. Scores within 4 of the best are also
    marked, and leave-one-out scores within two standard errors of the difference. Leave-one-out
    scores that are not reliable are never marked.
    """
    table = comparison.table
    known = [column for column in MEASURES if column in table.columns]
    others = [str(column) for column in table.columns if column not in MEASURES]
    result = []
    for column in [*known, *others]:
        measure = MEASURES.get(column, Measure(column, _three_digits))
        values = {str(name): float(value) for name, value in table[column].items()}
        cells = {name: _cell(measure, value) for name, value in values.items()}
        if any(cells.values()):
            best = _best(comparison, column, measure, values, cells)
            result.append(MeasureRow(column, measure, cells, best))
    return result


def _cell(measure: Measure, value: float) -> str:
    if np.isnan(value):
        return ""
    return measure.write(value) if np.isfinite(value) else ("∞" if value > 0 else "-∞")


def _best(
    comparison: "Comparison",
    column: str,
    measure: Measure,
    values: dict[str, float],
    cells: dict[str, str],
) -> frozenset[str]:
    written = [name for name in values if cells[name]]
    errors: dict[str, float] = {}
    if column == "elpd_loo":
        errors = _reliable_errors(comparison)
        written = [name for name in written if name in errors]
    if measure.better == 0 or len(written) < 2:
        return frozenset()
    first = max(written, key=lambda name: measure.better * values[name])
    best = {name for name in written if cells[name] == cells[first]}
    if column in _SCORES:
        best |= {
            name
            for name in written
            if not ScoreDifference(values[name] - values[first], errors.get(name, 0.0)).is_clear
        }
    return frozenset() if len(best) == len(written) else frozenset(best)


def _reliable_errors(comparison: "Comparison") -> dict[str, float]:
    """Return the standard errors of the differences, for methods with a reliable score."""
    loo = comparison.loo[comparison.loo["is_reliable"].astype(bool)]
    return {str(name): float(error) for name, error in loo["dse"].items()}


LINE_WIDTH = 100
"""Characters per line of text."""

_MARK = "*"
_STAR = '<span role="img" aria-label="best" title="best">★</span>'


def comparison_to_text(comparison: "Comparison") -> str:
    """Write a comparison as text: verdict, table and warnings."""
    verdict = comparison.verdict
    parts = [fill(verdict.headline, LINE_WIDTH)]
    parts += [_item(reason) for reason in verdict.reasons]
    rows = measure_rows(comparison)
    for methods in _blocks([str(name) for name in comparison.table.index], rows):
        parts += ["", *_text_table(methods, rows)]
    parts += ["", f"{_MARK} best, or not clearly worse than the best"]
    parts += [_item(f"Warning: {warning}") for warning in comparison.warnings]
    return "\n".join(parts)


def _item(text: str) -> str:
    return fill(text, LINE_WIDTH, initial_indent="- ", subsequent_indent="  ")


def _text_table(methods: list[str], rows: list[MeasureRow]) -> list[str]:
    """Write the lines of a table with one column per method."""
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
    """Divide the methods into tables that fit the line width."""
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
    """Write a comparison as HTML for a notebook."""
    verdict = comparison.verdict
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    notes = "".join(f"<li>{escape(warning)}</li>" for warning in comparison.warnings)
    return (
        f"<div><p><strong>{escape(verdict.headline)}</strong></p><ul>{reasons}</ul>"
        f"{table_to_html(comparison)}"
        f"<p>{_STAR} best, or not clearly worse than the best</p>"
        f"{f'<p>Warnings</p><ul>{notes}</ul>' if notes else ''}</div>"
    )


def table_to_html(comparison: "Comparison", *, with_meanings: bool = False) -> str:
    """Write the table as HTML, one column per method."""
    methods = [str(name) for name in comparison.table.index]
    heads = "".join(f'<th scope="col">{escape(method)}</th>' for method in methods)
    if with_meanings:
        heads += '<th scope="col" class="meaning">Meaning</th>'
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


SEARCH_NUTS, DEFAULT_NUTS = "search NUTS", "default NUTS"
SEARCH_EM, RANDOM_EM, BEST_RANDOM_EM = "search EM", "random EM", "best random EM"
"""Names of the methods. The chains of ``"random EM"`` are different starts, not draws from one
distribution; ``"best random EM"`` appears in tables only."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a comparison on random starts.

    Parameters
    ----------
    headline : str
        The verdict in one or two sentences: whether random starts are enough for these data.
    reasons : tuple of str
        The reasons for it, with the figures.
    random_starts_suffice : bool
        Whether random starts reach the best optimum found often enough that five of them suffice.
    """

    headline: str
    reasons: tuple[str, ...]
    random_starts_suffice: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Comparison of several ways to fit one mixture.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per method, in the order of `trees`; the columns are described in
        `moment_init.comparison.scoring.COLUMNS`.
    trees : dict of str to xarray.DataTree
        Draws by method, with aligned components: ``"search NUTS"``, ``"default NUTS"`` (if
        requested), ``"search EM"`` and ``"random EM"`` (one chain per start that converged; absent
        if none did). Groups: ``posterior``, ``sample_stats``, ``log_likelihood``,
        ``posterior_predictive``, ``observed_data``, ``constant_data``, ``membership`` and
        ``moment_init``.
    landscape : pandas.DataFrame
        One row per start or chain, with the optimum it led to: ``method``, ``start``,
        ``log_likelihood``, ``is_best``, ``seconds``, ``status``, ``is_typical``, ``bounds`` and
        ``message``.
    loo : pandas.DataFrame
        Leave-one-out comparison of the methods, in the form of ``arviz.compare``, with a column
        ``is_reliable``: methods for which it is False are ranked below the others.
    verdict : Verdict
        The verdict in words.
    truth : xarray.Dataset or None
        True parameters, if they were given.
    warnings : tuple of str
        Limitations of the comparison.
    settings : dict of str to object
        Sizes, family, seeds and versions.
    """

    table: "pandas.DataFrame"
    trees: dict[str, "xarray.DataTree"]
    landscape: "pandas.DataFrame"
    loo: "pandas.DataFrame"
    verdict: Verdict
    truth: "xarray.Dataset | None"
    warnings: tuple[str, ...]
    settings: dict[str, Any]

    def plot(
        self, panels: Sequence[str] | None = None, *, figsize: tuple[float, float] | None = None
    ) -> "NDArray[np.object_]":
        """Draw the panels on one figure and return their axes.

        Parameters
        ----------
        panels : sequence of str, optional
            Panels to draw, see `moment_init.comparison.figures.PANELS`; all by default.
        figsize : tuple of float, optional
            Width and height of the figure in inches; by default as large as the panels need.

        Returns
        -------
        numpy.ndarray of matplotlib.axes.Axes
            One axes per panel, all on the figure ``axes[0].figure``.

        Raises
        ------
        ValueError
            If a panel is unknown, or if `panels` is empty.
        ImportError
            If matplotlib is not installed.

        See Also
        --------
        figure : Draw the same panels and return the figure.

        Notes
        -----
        The figure is not managed by pyplot, so ``pyplot.show`` does not show it. A notebook shows
        it if ``axes[0].figure`` is the last line of a cell.
        """
        from moment_init.comparison.figures import plot_comparison

        return plot_comparison(self, panels, figsize=figsize)

    def figure(
        self, panels: Sequence[str] | None = None, *, figsize: tuple[float, float] | None = None
    ) -> "Figure":
        """Draw the panels and return the figure, which a notebook displays.

        Parameters
        ----------
        panels, figsize : object
            As for `plot`.

        Returns
        -------
        matplotlib.figure.Figure
            The figure; save it with ``figure.savefig("comparison.png")``.

        Raises
        ------
        ValueError
            If a panel is unknown, or if `panels` is empty.
        ImportError
            If matplotlib is not installed.
        """
        from moment_init.comparison.figures import comparison_figure

        return comparison_figure(self, panels, figsize=figsize)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write one self-contained HTML page: verdict, table, figures and settings.

        Parameters
        ----------
        path : str or path-like
            File to write; its folder is created if needed.

        Returns
        -------
        pathlib.Path
            Path of the file.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        from moment_init.comparison.page import write_page

        return write_page(self, path)

    def __repr__(self) -> str:
        """Return the verdict and the table as text."""
        from moment_init.comparison.result import comparison_to_text

        return comparison_to_text(self)

    def _repr_html_(self) -> str:
        """Return the verdict and the table as HTML, for a notebook."""
        from moment_init.comparison.result import comparison_to_html

        return comparison_to_html(self)
