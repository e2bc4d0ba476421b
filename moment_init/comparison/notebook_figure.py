"""A figure that a notebook shows whether or not pyplot is in use.

Imported where figures are drawn: the package does not import matplotlib.
"""

from io import BytesIO

from matplotlib.figure import Figure


def make_figure(size: tuple[float, float]) -> Figure:
    """Make an empty figure that belongs to no window and no list of pyplot's."""
    return _NotebookFigure(figsize=size, layout="constrained")


class _NotebookFigure(Figure):
    def _repr_png_(self) -> bytes:
        """The figure as a picture."""
        buffer = BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
