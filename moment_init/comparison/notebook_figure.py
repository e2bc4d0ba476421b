"""A matplotlib figure that a notebook displays whether or not pyplot is in use.

This module is imported only when figures are drawn: the package itself does not import matplotlib.
"""

from io import BytesIO

from matplotlib.figure import Figure


def make_figure(size: tuple[float, float]) -> Figure:
    """Make an empty figure that has no window and is not managed by pyplot."""
    return _NotebookFigure(figsize=size, layout="constrained")


class _NotebookFigure(Figure):
    def _repr_png_(self) -> bytes:
        """Return the figure as a PNG image."""
        buffer = BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
