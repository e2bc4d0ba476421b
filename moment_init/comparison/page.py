"""The page of a comparison: one HTML file that needs nothing else."""

import base64
import warnings
from collections.abc import Iterator, Mapping
from html import escape
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.comparison.captions import caption, description, method_meaning
from moment_init.comparison.display import table_to_html
from moment_init.comparison.effects import INTERVAL
from moment_init.comparison.figures import PANELS, comparison_figure
from moment_init.comparison.measures import with_minus
from moment_init.comparison.page_style import STYLE
from moment_init.comparison.representatives import reference_method
from moment_init.notices import changed_filters

if TYPE_CHECKING:
    from moment_init.comparison.result import Comparison

__all__ = ["write_page"]

_SUMMARISED = (
    "coefficient",
    "scale",
    "bias",
    "weight",
    "dispersion",
    "gate",
    "gate_bias",
    "gate_mean",
)
"""Variables of the table of parameters: those in the user's units; directions follow from them."""

_HEADS = {
    "mean": "mean",
    "sd": "sd",
    "ess_bulk": "ESS, bulk",
    "ess_tail": "ESS, tail",
    "r_hat": "R-hat",
    "mcse_mean": "error of mean",
    "mcse_sd": "error of sd",
}

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load: the images and styles inside the file."""


def write_page(comparison: "Comparison", path: str | PathLike[str]) -> Path:
    """Write a comparison as one self-contained HTML page.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
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
    target = Path(path)
    page = _page(comparison)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def _page(comparison: "Comparison") -> str:
    headline = escape(comparison.verdict.headline)
    sections = (
        _verdict(comparison),
        _table(comparison),
        _figures(comparison),
        _warnings(comparison),
        _parameters(comparison),
        _settings(comparison),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{headline}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def _verdict(comparison: "Comparison") -> str:
    verdict = comparison.verdict
    limits = ""
    if comparison.warnings:
        count = len(comparison.warnings)
        noun = "warning" if count == 1 else "warnings"
        limits = f'<p><a href="#warnings">{count} {noun}</a> below: read before you rely on it.</p>'
    return (
        f'<header>\n<p class="about">{escape(_about(comparison))}</p>\n<div class="verdict">'
        f"<h1>{escape(verdict.headline)}</h1>\n<ul>{_items(verdict.reasons)}</ul>{limits}</div>\n"
        "</header>"
    )


def _about(comparison: "Comparison") -> str:
    """What was fitted, in a line."""
    settings = comparison.settings
    sizes = comparison.trees[reference_method(comparison)]["posterior"].sizes
    n_obs = comparison.trees[reference_method(comparison)]["observed_data"].sizes["obs"]
    parts = (
        f"{settings.get('family', '')} mixture of {_counted(sizes['component'], 'component')}",
        _counted(sizes["feature"], "feature"),
        f"{_counted(n_obs, 'row')} fitted",
    )
    return "Comparison of starts: " + ", ".join(part.strip() for part in parts)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _items(texts: tuple[str, ...]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def _table(comparison: "Comparison") -> str:
    meanings = "".join(
        f"<dt>{escape(str(method))}</dt><dd>{escape(meaning)}</dd>"
        for method in comparison.table.index
        if (meaning := method_meaning(comparison, str(method)))
    )
    return (
        f"<section>\n<h2>Methods side by side</h2>\n<dl>{meanings}</dl>\n"
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of the methods">'
        f"{table_to_html(comparison, with_meanings=True)}</div>\n"
        "<p>★ and bold: the best value of its row, and those that read the same. Of scores also "
        "those that are worse by less than 4, and of LOO scores those that are worse by less than "
        "two standard errors of the difference, but none with more than one in a hundred Pareto k "
        "too large. A dash: no meaning for this method.</p>\n</section>"
    )


def _figures(comparison: "Comparison") -> str:
    figures = "\n".join(_figure(comparison, name) for name in PANELS)
    return f'<section>\n<h2>Figures</h2>\n<div class="columns">\n{figures}\n</div>\n</section>'


def _figure(comparison: "Comparison", name: str) -> str:
    buffer = BytesIO()
    figure = comparison_figure(comparison, [name])
    with changed_filters():
        # A name may have letters that matplotlib's font lacks; the tables have them.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    source = base64.b64encode(buffer.getvalue()).decode("ascii")
    return (
        f'<figure id="{name}"><div class="card"><img width="{width}" height="{height}" '
        f'alt="{escape(description(comparison, name))}" src="data:image/svg+xml;base64,{source}">'
        f"</div><figcaption>{escape(caption(comparison, name))}</figcaption></figure>"
    )


def _warnings(comparison: "Comparison") -> str:
    if not comparison.warnings:
        return ""
    return (
        '<section id="warnings">\n<h2>What limits this comparison</h2>\n'
        f'<ul class="warnings">{_items(comparison.warnings)}</ul>\n</section>'
    )


def _parameters(comparison: "Comparison") -> str:
    """Table of ``arviz.summary`` for the first method."""
    import arviz as az

    method = reference_method(comparison)
    posterior = comparison.trees[method]["posterior"].to_dataset()
    names = [name for name in _SUMMARISED if name in posterior]
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of constants, whose diagnostics are NaN
        summary = az.summary(posterior[names], ci_prob=INTERVAL, ci_kind="eti", round_to="none")
    heads = "".join(f'<th scope="col">{escape(_head(str(name)))}</th>' for name in summary.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(str(label))}</th>'
        + "".join(f"<td>{_number(*cell)}</td>" for cell in row.items())
        + "</tr>"
        for label, row in summary.iterrows()
    )
    return (
        f"<section>\n<h2>Parameters: {escape(method)}</h2>\n<p>In the units of the data. "
        "Components are numbered from 0.</p>\n"
        '<div class="scroll tall" tabindex="0" role="region" aria-label="Table of the parameters">'
        f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table></div>\n"
        "</section>"
    )


def _head(name: str) -> str:
    if name.endswith("_lb") or name.endswith("_ub"):
        return ("lower" if name.endswith("_lb") else "upper") + f" {INTERVAL:.0%}"
    return _HEADS.get(name, name)


def _number(column: Any, value: float) -> str:
    if not np.isfinite(value):
        return "–"  # noqa: RUF001
    form = {"ess_bulk": ",.0f", "ess_tail": ",.0f", "r_hat": ".3f"}.get(str(column), ".3g")
    return with_minus(f"{value:{form}}")


def _settings(comparison: "Comparison") -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in _flat(comparison.settings)
    )
    return (
        "<section>\n<h2>Settings and versions</h2>\n"
        f'<div class="scroll"><table class="plain"><tbody>{rows}</tbody></table></div>\n</section>'
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as pairs of name and text, those inside others after their names."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}: ")
        elif value is not None and value != () and value != []:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{prefix}{name}", shown
