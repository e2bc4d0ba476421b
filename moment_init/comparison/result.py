"""What `compare` returns."""

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

TENSOR_NUTS, DEFAULT_NUTS = "tensor NUTS", "default NUTS"
TENSOR_EM, RANDOM_EM, BEST_RANDOM_EM = "tensor EM", "random EM", "best random EM"
"""Names of the methods. Chains of ``"random EM"`` are starts of their own, and not draws of one
distribution; ``"best random EM"`` is a row of tables only."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison says about the starts.

    Parameters
    ----------
    headline : str
        The answer in a sentence: whether random starts are enough for these data.
    reasons : tuple of str
        The figures it rests on, a sentence each.
    random_starts_suffice : bool
        Whether random starts reach the best optimum found so often that a few of them are enough.
    """

    headline: str
    reasons: tuple[str, ...]
    random_starts_suffice: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Methods of fitting one mixture, side by side.

    Parameters
    ----------
    table : pandas.DataFrame
        A row a method, in the order of `trees`; the columns are those of
        `moment_init.comparison.landscape.COLUMNS`.
    trees : dict of str to xarray.DataTree
        Draws by method, components aligned: ``"tensor NUTS"``, ``"default NUTS"`` if it was asked
        for, ``"tensor EM"``, ``"random EM"`` (a chain a start that converged; absent if none did).
        Groups ``posterior``, ``sample_stats``, ``log_likelihood``, ``posterior_predictive``,
        ``observed_data``, ``constant_data``, ``membership`` and ``moment_init``.
    landscape : pandas.DataFrame
        A row an optimum that a start or a chain led to: ``method``, ``start``, ``log_likelihood``,
        ``is_best``, ``seconds``, ``status``, ``is_typical``, ``bounds``, ``message``.
    loo : pandas.DataFrame
        Leave-one-out comparison of the methods, in the form of ``arviz.compare``, and
        ``is_reliable``: methods of which it is False are ranked below the others.
    verdict : Verdict
        The answer in words.
    truth : xarray.Dataset or None
        True parameters, if they were given.
    warnings : tuple of str
        What limits the comparison.
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
        """Draw the figure set, and return its axes to draw on.

        Parameters
        ----------
        panels : sequence of str, optional
            Which to draw, see `moment_init.comparison.figures.PANELS`; all by default.
        figsize : tuple of float, optional
            Width and height of the figure in inches; what the panels need by default.

        Returns
        -------
        numpy.ndarray of matplotlib.axes.Axes
            An axes a panel, on one figure: ``axes[0].figure``.

        Raises
        ------
        ValueError
            For an unknown panel, or none.
        ImportError
            If matplotlib is not installed.

        See Also
        --------
        figure : The same as a figure, which a notebook shows.

        Notes
        -----
        The figure is not one of pyplot's, so that ``pyplot.show`` does not know it. A notebook
        shows it at the end of a cell: ``axes[0].figure``.
        """
        from moment_init.comparison.figures import plot_comparison

        return plot_comparison(self, panels, figsize=figsize)

    def figure(
        self, panels: Sequence[str] | None = None, *, figsize: tuple[float, float] | None = None
    ) -> "Figure":
        """Draw the figure set, and return the figure: a notebook shows it.

        Parameters
        ----------
        panels, figsize : object
            As for `plot`.

        Returns
        -------
        matplotlib.figure.Figure
            The figure; ``figure.savefig("comparison.png")`` writes it.

        Raises
        ------
        ValueError
            For an unknown panel, or none.
        ImportError
            If matplotlib is not installed.
        """
        from moment_init.comparison.figures import comparison_figure

        return comparison_figure(self, panels, figsize=figsize)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write one self-contained page: the answer, the table, the figures, the settings.

        Parameters
        ----------
        path : str or path-like
            File to write; its folder is created.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        from moment_init.comparison.page import write_page

        return write_page(self, path)

    def __repr__(self) -> str:
        """Verdict and table as text."""
        from moment_init.comparison.table import comparison_to_text

        return comparison_to_text(self)

    def _repr_html_(self) -> str:
        """Verdict and table for a notebook."""
        from moment_init.comparison.table import comparison_to_html

        return comparison_to_html(self)
