"""The result of `compare`, and the small table that it prints."""

from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from moment_init.comparison.verdict import Verdict

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.figure import Figure

LINE_WIDTH = 100
"""Characters per line of text."""

_SHOWN = {
    "log_likelihood": ("log-likelihood", "{:,.2f}"),
    "share_at_best": ("share at the best optimum", "{:.0%}"),
    "elpd_held_out": ("held-out score", "{:,.1f}"),
    "elpd_loo": ("leave-one-out score", "{:,.1f}"),
    "rhat_max": ("largest R-hat", "{:.3f}"),
    "ess_bulk_min": ("smallest ESS", "{:,.0f}"),
    "error_angle": ("largest angle to the truth (°)", "{:.1f}"),
    "seconds": ("seconds", "{:,.1f}"),
}
"""Columns of the table that are printed, their labels and formats."""


def printed_table(comparison: "Comparison") -> "pandas.DataFrame":
    """Format the table for reading, one column per method; figures that none has are left out."""
    import pandas

    rows = {
        label: [form.format(x) if x == x else "-" for x in comparison.table[column]]
        for column, (label, form) in _SHOWN.items()
        if comparison.table[column].notna().any()
    }
    return pandas.DataFrame.from_dict(rows, orient="index", columns=list(comparison.table.index))


def table_to_html(table: "pandas.DataFrame") -> str:
    """Write a table of texts as HTML."""
    return str(table.to_html(border=0, classes="figures"))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Comparison of several ways to fit one mixture.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per method; the columns are described in `moment_init.comparison.scoring.COLUMNS`.
    trees : dict of str to xarray.DataTree
        Draws by method, with aligned components: ``"tensor EM"`` (absent without moments),
        ``"search EM"``, ``"random EM"`` (one chain per start that converged; absent if none did),
        ``"tensor NUTS"`` or ``"search NUTS"``, and ``"default NUTS"`` (if requested). Groups:
        ``posterior``, ``sample_stats``, ``log_likelihood``, ``posterior_predictive``,
        ``observed_data``, ``constant_data`` and ``moment_init``.
    landscape : pandas.DataFrame
        One row per start or chain, with the optimum it led to: ``method``, ``start``,
        ``log_likelihood``, ``is_best``, ``seconds``, ``status``, ``is_typical``, ``bounds`` and
        ``message``.
    loo : pandas.DataFrame
        Leave-one-out comparison of the methods whose scores are reliable, by ``arviz.compare``;
        empty with fewer than two of them.
    verdict : Verdict
        The verdict in words.
    truth : xarray.Dataset or None
        True parameters, if they were given.
    warnings : tuple of str
        What to change, or to know, before relying on the comparison.
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

    @property
    def panels(self) -> tuple[str, ...]:
        """Names of the panels that `plot` can draw."""
        from moment_init.comparison.panels import available_panels

        return available_panels(self)

    def plot(self, panel: str = "landscape") -> "Figure":
        """Draw one panel.

        Parameters
        ----------
        panel : str, default "landscape"
            One of `panels`: ``"landscape"`` (where the starts ended) and ``"weights"``, or a plot
            by ArviZ of ``"forest"``, ``"rhat"``, ``"ess"``, ``"predictive"`` (posterior predictive
            check) and ``"loo"``.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which a notebook displays; save it with ``figure.savefig("panel.png")``.

        Raises
        ------
        ValueError
            If the panel is unknown, or if the comparison has no data for it.
        ImportError
            If matplotlib is not installed.

        Notes
        -----
        The figure is not managed by pyplot, so ``pyplot.show`` does not show it.
        """
        from moment_init.comparison.panels import draw_panel

        return draw_panel(self, panel)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write one self-contained HTML page: verdict, table, panels and settings.

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
        from moment_init.comparison.panels import write_page

        return write_page(self, path)

    def __repr__(self) -> str:
        """Return the headline, the table and the warnings as text."""
        notes = [fill(f"Warning: {text}", LINE_WIDTH) for text in self.warnings]
        table = printed_table(self).to_string(line_width=LINE_WIDTH)
        return "\n\n".join([self.verdict.headline, table, *notes])

    def _repr_html_(self) -> str:
        """Return the headline, the table and the warnings as HTML, for a notebook."""
        lines = "<br>".join(map(escape, self.verdict.headline.split("\n")))
        notes = "".join(f"<p>Warning: {escape(text)}</p>" for text in self.warnings)
        return f"<div><p>{lines}</p>{table_to_html(printed_table(self))}{notes}</div>"
