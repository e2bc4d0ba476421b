"""The results of `compare`: the verdict and the comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import xarray
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

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
        `moment_init.comparison.landscape.COLUMNS`.
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
        from moment_init.comparison.table import comparison_to_text

        return comparison_to_text(self)

    def _repr_html_(self) -> str:
        """Return the verdict and the table as HTML, for a notebook."""
        from moment_init.comparison.table import comparison_to_html

        return comparison_to_html(self)
