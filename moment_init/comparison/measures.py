"""How the figures of the table are written, and which of them are the best."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from moment_init.comparison.scoring import ScoreDifference
from moment_init.comparison.tabulation import COLUMNS

if TYPE_CHECKING:
    from moment_init.comparison.result import Comparison

__all__ = ["MEASURES", "Measure", "MeasureRow", "measure_rows", "with_minus"]

_SCORES = ("elpd_loo", "elpd_held_out")


def with_minus(text: str) -> str:
    """Write a number with a minus sign in the place of a hyphen.

    Parameters
    ----------
    text : str
        The number as Python writes it.

    Returns
    -------
    str
        The same with a minus sign.
    """
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
    """How one figure of the table is shown.

    Parameters
    ----------
    label : str
        Its name, short enough for the margin of a table.
    write : callable
        From a finite value to text.
    better : {1, -1, 0}
        Whether higher or lower values are better, or neither.
    meaning : str
        What it says.
    """

    label: str
    write: Callable[[float], str]
    better: int = 0
    meaning: str = ""


_SHOWN: tuple[tuple[str, str, Callable[[float], str], int], ...] = (
    ("log_likelihood", "log-likelihood", _decimals(2), 1),
    ("share_at_best", "share at the best", _percent, 1),
    ("n_starts", "starts or chains", _decimals(0), 0),
    ("elpd_loo", "LOO score", _decimals(1), 1),
    ("elpd_se", "  standard error", _decimals(1), 0),
    ("p_loo", "  parameters in effect", _decimals(1), 0),
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
"""Figures of the table, in the order in which they are shown; indented what belongs to the one
above."""


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """One figure of all methods as text.

    Parameters
    ----------
    column : str
        Column of the table.
    measure : Measure
        How it is shown.
    cells : dict of str to str
        Text by method; empty where the figure has no meaning.
    best : frozenset of str
        Methods that are marked; none if there is nothing to choose between them.
    """

    column: str
    measure: Measure
    cells: dict[str, str]
    best: frozenset[str]


def measure_rows(comparison: "Comparison") -> list[MeasureRow]:
    """Write the table, a row a figure.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    list of MeasureRow
        Figures that at least one method has.

    Notes
    -----
    Marked are the best value and those that read the same; of scores those within 4 of the best,
    and of leave-one-out scores those within two standard errors of the difference. Leave-one-out
    scores that are not reliable are left out.
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
    """Standard errors of differences from the best score, of methods whose own is reliable."""
    loo = comparison.loo[comparison.loo["is_reliable"].astype(bool)]
    return {str(name): float(error) for name, error in loo["dse"].items()}
