"""The honest map: where does the default start beat random starts, and where is it not worth it?

This draws the stored record of `python -m benchmarks honest_map`; `--quick` measures a few small
cells instead.
"""

import argparse
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

# For a script, only its own folder is on the path; the benchmarks are under the root.
ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.honest_map import LEVEL, MARGINS, chance_wins, discordance_p, pool, run  # noqa: E402
from benchmarks.report import Options, Row, format_table  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Study",
    "describe",
    "describe_environment",
    "draw_map",
    "findings",
    "load_record",
    "main",
    "measure_few",
    "run_study",
]

SEED = 1412
RECORD = ROOT / "benchmarks" / "results" / "honest_map.json"
OUTPUT = Path(__file__).resolve().parent / "output"

# Colour-blind readers can tell blue from orange; the darker orange differs in print, too.
COLOURS = {
    "win": "#5b9bd5",
    "tie": "#ececec",
    "lose, slower": "#fbc98a",
    "lose, worse": "#d9711c",
}
LEGEND = {
    "win": "win: at the optimum more often",
    "tie": "tie: no difference shown",
    "lose, slower": "lose: random starts as good in half the time",
    "lose, worse": "lose: at the optimum less often",
}
INK = "#222222"

UNSHOWN = ("default s", "start s", "all s")

NOTE = (
    "Columns: shares (last table: numbers) of data sets at the optimum by the default call,\n"
    "by random starts in the same and in half the time, by the best of 1, 3 and 10 random starts,\n"
    "by EM from the truth and from moments alone (if there are at least as many features as\n"
    "components); numbers of data sets where only the default call (for) or only random starts\n"
    "(against) are at the optimum, in total and where EM from the truth is there too; p of the\n"
    "sign test; time of the default call in random starts, median over cells."
)


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """The cells of a map."""

    cells: tuple[Row, ...]  # one row per cell, as the benchmark stores it
    origin: str  # where the cells come from


def load_record(path: Path = RECORD) -> Study:
    """Read the stored map."""
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be a record of the benchmark; there is no {path.name} in "
            f"{path.parent.name}. Write one with `python -m benchmarks honest_map`."
        )
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Study(_cells(record["rows"]), f"stored on {record['date'][:10]}")


def measure_few(*, seed: int = SEED) -> Study:
    """Measure a few small cells, with too few data sets for a firm verdict."""
    return Study(_cells(run(Options(is_quick=True, seed=seed)).rows), "measured now, small")


def run_study(*, quick: bool = False, seed: int = SEED) -> Study:
    """Read the stored map, or measure a small one."""
    return measure_few(seed=seed) if quick else load_record()


def findings(study: Study) -> list[str]:
    """Summarise verdicts, shares at the optimum by family and weights, and times."""
    cells = study.cells
    kinds = Counter(_kind(cell) for cell in cells)
    (all_cells,) = pool(cells, ())
    times = sorted(_number(cell["time in starts"]) for cell in cells)
    return [
        ", ".join(f"{kind}: {kinds[kind]}" for kind in COLOURS)
        + f"; wins expected by chance if there were no difference: {chance_wins(cells):.1f}",
        *(_shares_in_words(row) for row in pool(cells, ("family", "weights"))),
        "only the default call at the optimum: "
        f"{all_cells['for']} data sets, {all_cells['for, truth']} where EM from the truth is too",
        "only random starts in the same time: "
        f"{all_cells['against']} data sets, {all_cells['against, truth']} where EM from the truth "
        "is too",
        f"time of the default call in random starts: median {median(times):.0f}, "
        f"from {times[0]:.0f} to {times[-1]:.0f}",
    ]


def describe(study: Study) -> str:
    """Format the findings, pooled tables and all cells."""
    cells = study.cells
    n_data_sets = sum(_number(cell["data sets"]) for cell in cells)
    minutes = sum(_number(cell["all s"]) for cell in cells) / 60.0
    parts = [
        f"Honest map: {len(cells)} cells, {n_data_sets:,.0f} data sets, {minutes:.0f} minutes of "
        f"CPU time, {study.origin}",
        "\n".join(findings(study)),
        _table("All cells", pool(cells, ())),
        *(_table("By " + ", ".join(names), pool(cells, names)) for names in MARGINS),
        _table("Every cell", [_short(cell) for cell in cells]),
        NOTE,
    ]
    return "\n\n".join(parts)


def draw_map(study: Study) -> "Figure":
    """Draw one panel per family: sizes in rows, weights and rows per parameter in columns."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    families = list(dict.fromkeys(str(cell["family"]) for cell in study.cells))
    grids = [_Grid([cell for cell in study.cells if cell["family"] == name]) for name in families]
    heights = [len(grid.shapes) + 1.6 for grid in grids]
    figure = Figure(figsize=(9.6, 0.54 * sum(heights) + 1.7), layout="constrained")
    panels = figure.subplots(len(grids), 1, height_ratios=heights, squeeze=False)[:, 0]
    for panel, grid, family in zip(panels, grids, families, strict=True):
        _draw_panel(panel, grid, family)
    handles = [
        Patch(facecolor=colour, edgecolor=INK, linewidth=0.5, label=LEGEND[kind])
        for kind, colour in COLOURS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    number = max(int(_number(cell["data sets"])) for cell in study.cells)
    figure.suptitle(
        "Default start against random starts in the same CPU time\n"
        f"Data sets at the optimum, of {number} per cell, default : random starts;\n"
        "below: the same from moments alone, and the time of the default call in random starts",
        fontsize=12,
    )
    return figure


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "numpy", "scipy", "tensorly", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and write the map."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure a few small cells")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figure")
    parsed = parser.parse_args(arguments)
    study = run_study(quick=parsed.quick)
    print(describe(study))
    parsed.output.mkdir(parents=True, exist_ok=True)
    path = parsed.output / "map.png"
    draw_map(study).savefig(path, dpi=150)
    print(f"figure: {path}")
    print(describe_environment())
    return 0


class _Grid:
    """Cells of a family, arranged in rows and columns."""

    def __init__(self, cells: Sequence[Row]) -> None:
        self.shapes = sorted({(int(_number(c["d"])), int(_number(c["r"]))) for c in cells})
        self.weights = list(dict.fromkeys(str(cell["weights"]) for cell in cells))
        self.rows = sorted({int(_number(cell["rows per parameter"])) for cell in cells})
        self.cells = cells

    @property
    def n_columns(self) -> int:
        return len(self.weights) * len(self.rows)

    def place(self, cell: Row) -> tuple[int, int]:
        """Column and row of a cell."""
        block = self.weights.index(str(cell["weights"]))
        rows = self.rows.index(int(_number(cell["rows per parameter"])))
        shape = int(_number(cell["d"])), int(_number(cell["r"]))
        return block * len(self.rows) + rows, self.shapes.index(shape)


def _draw_panel(panel: "Axes", grid: _Grid, family: str) -> None:
    """Draw coloured cells with their counts and labels."""
    from matplotlib.patches import Rectangle

    for cell in grid.cells:
        x, y = grid.place(cell)
        colour = COLOURS[_kind(cell)]
        panel.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=1))
        counts = f"{cell['default']} : {cell['same time']}"
        panel.text(x + 0.5, y + 0.36, counts, ha="center", va="center", fontsize=11, color=INK)
        moments = "no moments" if cell["moments"] is None else f"moments {cell['moments']}"
        below = f"{moments}, \u00d7{_number(cell['time in starts']):.0f}"
        panel.text(x + 0.5, y + 0.77, below, ha="center", va="center", fontsize=8.5, color=INK)
    panel.set_xlim(0, grid.n_columns)
    panel.set_ylim(len(grid.shapes), 0)
    rows = [str(number) for number in grid.rows] * len(grid.weights)
    panel.set_xticks([k + 0.5 for k in range(grid.n_columns)], rows)
    labels = [f"d = {d}, r = {r}" for d, r in grid.shapes]
    panel.set_yticks([k + 0.5 for k in range(len(labels))], labels)
    panel.set_xlabel("rows per parameter")
    panel.set_title(family.capitalize(), loc="left", fontweight="bold", fontsize=12, pad=20)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    for k, name in enumerate(grid.weights):
        centre = (k + 0.5) * len(grid.rows)
        panel.text(centre, -0.12, f"{name} weights", ha="center", va="bottom", fontsize=10)
        if k:
            panel.axvline(k * len(grid.rows), color=INK, linewidth=1.2)


def _kind(cell: Row) -> str:
    """The verdict; a loss also says why."""
    if cell["verdict"] != "lose":
        return str(cell["verdict"])
    p = discordance_p(int(_number(cell["against"])), int(_number(cell["for"])))
    return "lose, worse" if p <= LEVEL else "lose, slower"


def _shares_in_words(row: Row) -> str:
    shares = {
        "default": row["default"],
        "same time": row["same time"],
        "half the time": row["half time"],
        "1 start": row["1 random"],
        "moments": row["moments"],
        "truth": row["truth"],
    }
    words = ", ".join(
        f"{name} {_number(value):.0%}" for name, value in shares.items() if value is not None
    )
    return f"{row['family']}, {row['weights']}: {words}; {row['for']} for, {row['against']} against"


def _short(cell: Row) -> Row:
    shown = {name: value for name, value in cell.items() if name not in UNSHOWN}
    return shown | {"verdict": _kind(cell)}


def _table(title: str, rows: list[Row]) -> str:
    return f"{title}\n{format_table(rows) if rows else 'none'}"


def _cells(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of single cells, without pooled rows."""
    return tuple(row for row in rows if "n" in row)


def _number(value: Any) -> float:
    return float(value)


if __name__ == "__main__":
    sys.exit(main())
