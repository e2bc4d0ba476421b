"""Draw figures of the records in `benchmarks/results` for the site, without running anything."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "ResultFigure", "draw_figures"]

Record = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]

OURS, SECOND, THIRD, FOURTH = "#0072B2", "#E69F00", "#D55E00", "#009E73"
"""From the palette of Okabe and Ito, which colour-blind readers can tell apart."""

ROW_HEIGHT, WIDTH, DOTS_PER_INCH = 0.42, 8.0, 130


@dataclass(frozen=True, slots=True)
class ResultFigure:
    """A figure of one record."""

    benchmark: str  # name of the record
    title: str  # heading on the page
    caption: str  # one or two sentences
    # number of lines in the tallest panel, which sets the height
    n_lines: Callable[[Record], float]
    n_panels: int  # panels, side by side
    draw: Callable[[Record, Sequence["Axes"]], None]  # draws the record on that many axes


def draw_figures(results: Path, folder: Path, place: str) -> str:
    """Draw a figure for each existing record and return the section in Markdown."""
    lines = ["", "## In pictures", ""]
    for figure in FIGURES:
        path = results / f"{figure.benchmark}.json"
        lines += [f"### {figure.title}", ""]
        if not path.exists():
            lines += [
                f"`{figure.benchmark}` has no record yet; `python -m benchmarks "
                f"{figure.benchmark}` writes one.",
                "",
            ]
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        _draw(figure, record, folder / f"{figure.benchmark}.png")
        image = f"![{figure.title}]({place}/{figure.benchmark}.png)"
        lines += [image, "", f"{figure.caption} {_origin(record)}", ""]
    return "\n".join(lines)


def _draw(figure: ResultFigure, record: Record, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    height = max(2.4, 1.3 + ROW_HEIGHT * figure.n_lines(record))
    canvas = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(canvas)  # no pyplot, so the backend setting does not matter
    axes = canvas.subplots(1, figure.n_panels, squeeze=False)[0]
    figure.draw(record, list(axes))
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=9)
    canvas.savefig(path, dpi=DOTS_PER_INCH)


def _origin(record: Record) -> str:
    """Say when and where a record was made."""
    machine = record["machine"]
    return (
        f"(`{record['benchmark']}`, {record['date'][:10]}, {machine['n_cores']} cores, load "
        f"{machine['load_average']}.)"
    )


def _bars(
    axes: "Axes", labels: Sequence[str], groups: Mapping[str, tuple[Sequence[Any], str]]
) -> None:
    """Draw horizontal bars, one line per label, with the value at the end of each bar."""
    height = 0.8 / len(groups)
    for at, (name, (values, colour)) in enumerate(groups.items()):
        present = [(line, value) for line, value in enumerate(values) if value is not None]
        lines = np.array([line for line, _ in present]) + (at - (len(groups) - 1) / 2) * height
        drawn = axes.barh(lines, [value for _, value in present], height, label=name, color=colour)
        axes.bar_label(drawn, fmt=_short, padding=2, fontsize=7.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.14)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _legend_above(axes: "Axes", n_columns: int = 3) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=n_columns, frameon=False, fontsize=8.5
    )


def _make_logarithmic(axis: Any) -> None:
    """Use a log scale with ticks at 1, 2 and 5 times powers of ten, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def _values(rows: Rows, column: str) -> list[Any]:
    return [row.get(column) for row in rows]


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['family']}\nn = {row['n']:,}, d = {row['d']}, r = {row['r']}"


# --- accuracy and optima -------------------------------------------------------------------------


def _draw_accuracy(record: Record, axes: Sequence["Axes"]) -> None:
    rows: Rows = record["rows"]
    groups = {
        "estimate": ("default", OURS),
        "moments alone": ("moments", FOURTH),
        "the paper's third moment": ("power", THIRD),
    }
    angles = {
        name: ([float(np.degrees(np.arccos(row[column]))) for row in rows], colour)
        for name, (column, colour) in groups.items()
    }
    _bars(axes[0], [_kind(row) for row in rows], angles)
    _make_logarithmic(axes[0].xaxis)
    axes[0].set_xlabel("angle of the worst direction to the truth, degrees (of the mean cosine)")
    _legend_above(axes[0])


def _draw_gauntlet(record: Record, axes: Sequence["Axes"]) -> None:
    rows: Rows = record["rows"]
    labels = [_kind({**row, "family": row["mixture"].split(": ")[-1]}) for row in rows]
    groups = {
        "fit_em": (_values(rows, "portfolio"), OURS),
        "best of 3 random starts": (_values(rows, "best of 3"), SECOND),
        "1 random start": (_values(rows, "1 random"), THIRD),
    }
    _bars(axes[0], labels, groups)
    axes[0].set_xlabel("share of data sets at the optimum that a start at the truth leads to")
    axes[0].set_xlim(0.0, 1.12)
    axes[0].set_xticks(np.linspace(0.0, 1.0, 6))
    _legend_above(axes[0])


# --- time ----------------------------------------------------------------------------------------


def _draw_cost(record: Record, axes: Sequence["Axes"]) -> None:
    rows: Rows = [row for row in record["rows"] if "least EM s" in row]
    groups = {
        "X.T @ X": (_values(rows, "over X.T @ X"), OURS),
        "an EM iteration, by CPU": (_values(rows, "over EM, CPU"), FOURTH),
        "an EM iteration": (_values(rows, "over EM"), SECOND),
    }
    _bars(axes[0], [str(row["family"]) for row in rows], groups)
    size = f"n = {rows[0]['n']:,},\nd = {rows[0]['d']}"
    axes[0].set_xlabel(f"time of estimate at {size}, over that of")
    _legend_above(axes[0], 2)
    _draw_growth([row for row in record["rows"] if row.get("varied") == "n"], axes[1])


def _draw_growth(rows: Rows, axes: "Axes") -> None:
    styles = zip((OURS, SECOND, THIRD, FOURTH), ("o", "s", "^", "D"), strict=True)
    families = dict.fromkeys(str(row["family"]) for row in rows)
    for family, (colour, marker) in zip(families, styles, strict=False):
        family_rows = [row for row in rows if row["family"] == family]
        sizes, seconds = _values(family_rows, "n"), _values(family_rows, "default s")
        axes.plot(sizes, seconds, color=colour, marker=marker, label=family)
    _make_logarithmic(axes.xaxis)
    _make_logarithmic(axes.yaxis)
    axes.set_xlabel("rows")
    axes.tick_params(axis="x", rotation=30)
    axes.set_ylabel("seconds of estimate")
    axes.legend(frameon=False, fontsize=8.5)


def _draw_flexmix(record: Record, axes: Sequence["Axes"]) -> None:
    rows: Rows = record["rows"]
    groups = {
        "fit_em, whole search": (_values(rows, "default s"), OURS),
        "fit_em, one random start": (_values(rows, "1 random s"), FOURTH),
        "one start of flexmix": (_values(rows, "flexmix s"), THIRD),
        "one start of mixtools": (_values(rows, "mixtools s"), SECOND),
    }
    _bars(axes[0], [_kind(row) for row in rows], groups)
    _make_logarithmic(axes[0].xaxis)
    axes[0].set_xlabel("seconds")
    _legend_above(axes[0], 2)


def _draw_peers(record: Record, axes: Sequence["Axes"]) -> None:
    rows: Rows = [row for row in record["rows"] if "statsmodels s" in row]
    groups = {
        "fit_em, one component": (_values(rows, "fit_em s"), OURS),
        "statsmodels": (_values(rows, "statsmodels s"), SECOND),
    }
    _bars(axes[0], [str(row["family"]).replace("_", "\n") for row in rows], groups)
    axes[0].set_xlabel(f"seconds of the processor,\nn = {rows[0]['n']:,}, d = {rows[0]['d']}")
    _legend_above(axes[0], 2)
    yardsticks: Rows = [row for row in record["rows"] if "statsmodels s" not in row]
    counts = {
        "an EM iteration": (_values(yardsticks, "EM iteration over GaussianMixture's"), FOURTH),
        "estimate": (_values(yardsticks, "estimate, in its iterations"), OURS),
        "fit_em": (_values(yardsticks, "fit_em, in its iterations"), SECOND),
    }
    _bars(axes[1], [_kind(row).replace(", d", ",\nd") for row in yardsticks], counts)
    _make_logarithmic(axes[1].xaxis)
    axes[1].set_xlabel("iterations of GaussianMixture in the same time")
    _legend_above(axes[1])


# --- memory and workers --------------------------------------------------------------------------


def _draw_out_of_core(record: Record, axes: Sequence["Axes"]) -> None:
    rows: Rows = record["rows"]
    labels = [f"{row['n']:,} rows\nin {row['rows in']}" for row in rows]
    _bars(axes[0], labels, {"": (_values(rows, "peak GB"), OURS)})
    axes[0].axvline(2.0, color="black", linestyle=":", linewidth=1.0)
    axes[0].set_xlabel("peak memory of the process, GB\n(dotted: what is allowed)")
    _bars(axes[1], labels, {"": (_values(rows, "estimate s"), SECOND)})
    axes[1].set_yticks(range(len(labels)), [""] * len(labels))
    _make_logarithmic(axes[1].xaxis)
    axes[1].set_xlabel("seconds of estimate")


def _draw_scaling(record: Record, axes: Sequence["Axes"]) -> None:
    rows: Rows = record["rows"]
    labels = [f"{row['workers']} worker{'s' * (row['workers'] > 1)}" for row in rows]
    _bars(axes[0], labels, {"": (_values(rows, "moments s"), OURS)})
    axes[0].set_xlabel(f"seconds for the moments of {rows[0]['n']:,} rows, one thread per worker")


FIGURES = (
    ResultFigure(
        "stacked_accuracy",
        "Directions",
        "Shorter is better; the scale is logarithmic.",
        lambda record: 1.6 * len(record["rows"]),
        1,
        _draw_accuracy,
    ),
    ResultFigure(
        "gauntlet",
        "Optima found",
        "Where components are balanced, random starts do as well.",
        lambda record: 1.6 * len(record["rows"]),
        1,
        _draw_gauntlet,
    ),
    ResultFigure(
        "stacked_cost",
        "Cost of an estimate",
        "Left: ratios of times. Right: growth with the rows.",
        lambda _: 6.0,
        2,
        _draw_cost,
    ),
    ResultFigure(
        "flexmix_speed",
        "Beside flexmix and mixtools",
        "Medians of single starts, to the same tolerance; the scale is logarithmic.",
        lambda record: 2.0 * len(record["rows"]),
        1,
        _draw_flexmix,
    ),
    ResultFigure(
        "peers",
        "Beside statsmodels and scikit-learn",
        "Left: a single model, fitted by both. Right: what calls cost in iterations of a Gaussian "
        "mixture on the same rows.",
        lambda _: 6.0,
        2,
        _draw_peers,
    ),
    ResultFigure(
        "out_of_core",
        "Rows that do not fit in memory",
        "An estimate from Parquet files and from arrays in memory; 10^8 rows, where shown, "
        "are extrapolated.",
        lambda record: 1.3 * len(record["rows"]),
        2,
        _draw_out_of_core,
    ),
    ResultFigure(
        "dask_scaling",
        "Workers",
        "Moments of all rows on a local cluster.",
        lambda record: 1.2 * len(record["rows"]),
        1,
        _draw_scaling,
    ),
)
