"""What a benchmark reports: rows of a table, figures beside their bars, and the record in JSON."""

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
    """Size and seed of a run.

    Parameters
    ----------
    is_quick : bool
        Whether to run the small size.
    seed : int
        Seed of the random models.
    n_data_sets : int or None
        Data sets for each row of a table; the benchmark's own number if None.
    checkpoint : Checkpoint
        Keeps what long benchmarks have measured; in memory only by default.
    """

    is_quick: bool
    seed: int
    n_data_sets: int | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    def data_sets(self, full: int, quick: int) -> int:
        """Number of data sets to run.

        Parameters
        ----------
        full, quick : int
            The benchmark's own numbers at full and small size.

        Returns
        -------
        int
            The number asked for, or else the one of the size.
        """
        return self.n_data_sets or (quick if self.is_quick else full)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure beside its bar.

    Parameters
    ----------
    name : str
        What was measured.
    value : float
        The figure.
    bar : str or None
        The bar in words, or None where there is none.
    is_met : bool or None
        Whether the figure meets its bar.
    """

    name: str
    value: float
    bar: str | None = None
    is_met: bool | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a benchmark measured.

    Parameters
    ----------
    rows : tuple of dict
        The table, a dict a row.
    figures : tuple of Figure
        The figures drawn from it.
    settings : dict
        Sizes and tolerances of the run.
    """

    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An entry of the registry.

    Parameters
    ----------
    name : str
        Name on the command line and of the JSON file.
    description : str
        One line.
    run : callable
        Runs it.
    """

    name: str
    description: str
    run: Callable[[Options], Outcome]


def format_outcome(outcome: Outcome) -> str:
    """Lay out the tables and the figures with their bars.

    Parameters
    ----------
    outcome : Outcome
        What was measured.

    Returns
    -------
    str
        Text of several lines.
    """
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
    """Lay out rows that have the same columns.

    Parameters
    ----------
    rows : list of dict
        At least one row.

    Returns
    -------
    str
        A line a row under a line of column names.
    """
    cells = [list(rows[0]), *([_format_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in cells
    )


def store_outcome(
    folder: Path, benchmark: Benchmark, options: Options, outcome: Outcome, seconds: float
) -> Path:
    """Write the record of a run to ``NAME.json``.

    Parameters
    ----------
    folder : pathlib.Path
        Where to; made if it does not exist.
    benchmark : Benchmark
        What was run.
    options : Options
        At which size.
    outcome : Outcome
        What was measured.
    seconds : float
        How long it took.

    Returns
    -------
    pathlib.Path
        The file.
    """
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
    """Describe date, commit, versions and machine.

    Returns
    -------
    dict
        With the keys ``date``, ``commit``, ``versions`` and ``machine``.
    """
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
            # Timings taken beside other work are not to be trusted: the record shows it.
            "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "blas": blas,
        },
    }


def _storable(cell: Cell) -> Cell:
    """JSON has no word for infinity, the error of a solver that found nothing."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _commit() -> str | None:
    """Commit of the tree, with a plus sign if files differ from it."""
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
    """Model of the processor; Python itself knows it on some systems only."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.processor()


def _by_columns(rows: tuple[Row, ...]) -> list[list[Row]]:
    """Runs of rows with the same columns: a table each."""
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
