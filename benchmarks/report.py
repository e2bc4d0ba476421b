"""What a benchmark reports: the rows of a table, figures with their bars, and a JSON record."""

import json
import math
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from benchmarks.checkpoints import Checkpoint

__all__ = [
    "Benchmark",
    "Cell",
    "Figure",
    "Options",
    "Outcome",
    "Row",
    "environment",
    "format_outcome",
    "format_table",
    "store_outcome",
]

Cell = str | int | float | bool | None
Row = dict[str, Cell]

PACKAGES = ("moment-init", "numpy", "scipy", "tensorly", "threadpoolctl")


@dataclass(frozen=True, slots=True)
class Options:
    """Size and seed of a run."""

    is_quick: bool  # whether to run the quick size
    seed: int  # seed of the random models
    # data sets per row of a table; the benchmark's own number if None
    n_data_sets: int | None = None
    # stores the measurements of long benchmarks; by default in memory only
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    def data_sets(self, full: int, quick: int) -> int:
        """Number of data sets to run: the one requested, or else that of the size."""
        return self.n_data_sets or (quick if self.is_quick else full)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure with its bar."""

    name: str  # what was measured
    value: float  # the figure
    bar: str | None = None  # the bar in words; None if there is none
    is_met: bool | None = None  # whether the figure meets its bar


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a benchmark measured."""

    rows: tuple[Row, ...]  # the table, one dict per row
    figures: tuple[Figure, ...]  # figures computed from the table
    settings: dict[str, Any]  # sizes and tolerances of the run


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An entry of the registry."""

    name: str  # name on the command line and of the JSON file
    description: str  # one line
    run: Callable[[Options], Outcome]


def format_outcome(outcome: Outcome) -> str:
    """Format the tables and the figures with their bars."""
    tables = [format_table(rows) for rows in _by_columns(outcome.rows)]
    lines = []
    for figure in outcome.figures:
        line = f"{figure.name}: {_format_cell(figure.value)}"
        if figure.bar is not None:
            line += f"   (bar: {figure.bar})"
        if figure.is_met is not None:
            line += "   met" if figure.is_met else "   MISSED"
        lines.append(line)
    return "\n\n".join([*tables, "\n".join(lines)])


def format_table(rows: list[Row]) -> str:
    """Format rows with the same columns, one line each under the column names."""
    cells = [list(rows[0]), *([_format_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in cells
    )


def store_outcome(
    folder: Path, benchmark: Benchmark, options: Options, outcome: Outcome, seconds: float
) -> Path:
    """Write the record of a run to ``NAME.json``."""
    record = {
        "benchmark": benchmark.name,
        "description": benchmark.description,
        "is_quick": options.is_quick,
        "seed": options.seed,
        "seconds": round(seconds, 3),
        **environment(),
        "settings": outcome.settings,
        "figures": [asdict(figure) for figure in outcome.figures],
        "rows": [{name: _storable(cell) for name, cell in row.items()} for row in outcome.rows],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark.name}.json"
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def environment() -> dict[str, Any]:
    """Describe date, commit, versions and machine."""
    blas = [
        {key: pool.get(key) for key in ("internal_api", "version", "num_threads", "architecture")}
        for pool in threadpool_info()
        if pool.get("user_api") == "blas"
    ]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
        "machine": {
            "system": platform.system(),
            "release": platform.release(),
            "architecture": platform.machine(),
            "processor": _processor(),
            "n_cores": os.cpu_count(),
            # Timings on a loaded machine are not reliable, so the record shows the load.
            "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "blas": blas,
        },
    }


def _storable(cell: Cell) -> Cell:
    """Replace infinity, the error of a solver that found nothing: JSON has no word for it."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _commit() -> str | None:
    """Commit of the tree, with a plus sign if files have changed since."""
    folder = Path(__file__).resolve().parent
    try:
        lines = [
            subprocess.run(
                ["git", *command], cwd=folder, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return lines[0] + ("+" if lines[1] else "")


def _processor() -> str:
    """Model of the processor, which Python itself knows only on some systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.processor()


def _by_columns(rows: tuple[Row, ...]) -> list[list[Row]]:
    """Split the rows into runs with the same columns, one table each."""
    tables: list[list[Row]] = []
    for row in rows:
        if tables and list(tables[-1][0]) == list(row):
            tables[-1].append(row)
        else:
            tables.append([row])
    return tables


def _format_cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
