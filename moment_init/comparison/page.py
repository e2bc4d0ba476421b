"""The page of a comparison: one self-contained HTML file.

The page has the verdict, the table, the figures with captions and alternative texts, the warnings,
the parameters and the settings. It loads no font, image or script from outside the file.
"""

import base64
import warnings
from collections.abc import Iterator, Mapping
from html import escape
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.checks import changed_filters
from moment_init.comparison.drawing import reference_method
from moment_init.comparison.figures import PANELS, comparison_figure, optima_by_method
from moment_init.comparison.parameter_panels import INTERVAL, MOST_EFFECTS
from moment_init.comparison.predictive_panel import check_kind
from moment_init.comparison.result import (
    BEST_RANDOM_EM,
    DEFAULT_NUTS,
    RANDOM_EM,
    SEARCH_EM,
    SEARCH_NUTS,
    table_to_html,
    with_minus,
)

if TYPE_CHECKING:
    from moment_init.comparison.result import Comparison

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1d2330; --soft: #5b6472;
  --line: #d8dce3; --panel: #f4f6f9; --accent: #0b63a5; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171c; --ink: #e8eaee; --soft: #a5adba; --line: #373d47;
    --panel: #1d2128; --accent: #7cc0f5; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: clamp(1.45rem, 1.15rem + 1vw, 1.75rem); line-height: 1.25; margin: .2rem 0 .8rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
p, li, dd { max-width: 72ch; }
.about { color: var(--soft); margin: 0; }
.verdict { background: var(--panel); border-left: .35rem solid var(--accent);
  padding: 1rem 1.1rem; border-radius: .3rem; overflow-wrap: anywhere; }
.verdict ul { margin: 0; padding-left: 1.2rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .3rem; }
.tall { max-height: 34rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
thead > tr > * { background: var(--panel); }
tbody th { text-align: left; font-weight: 600; position: sticky; left: 0;
  background: var(--ground); }
tr.part th { font-weight: 400; color: var(--soft); padding-left: 1.5rem; }
.meaning { text-align: left; white-space: normal; min-width: 21rem; color: var(--soft); }
.plain td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.plain th { white-space: normal; }
dl { margin: .4rem 0 1rem; display: grid; grid-template-columns: max-content 1fr;
  gap: .15rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
a { color: var(--accent); }
.columns { columns: 27rem 2; column-gap: 1.2rem; }
figure { margin: 0 0 1.2rem; break-inside: avoid; border: 1px solid var(--line);
  border-radius: .3rem; overflow: hidden; background: var(--panel); }
figure .card { background: #ffffff; padding: .6rem; }
figure img { display: block; width: 100%; max-width: 34rem; height: auto; margin: 0 auto; }
figcaption { padding: .7rem .9rem; font-size: .92rem; }
.warnings li { margin-bottom: .3rem; overflow-wrap: anywhere; }
@media (max-width: 30rem) {
  th, td { padding: .32rem .45rem; }
  figure .card { padding: .2rem; }
  tbody th { max-width: 9.5rem; white-space: normal; }
  .meaning { min-width: 17rem; }
  dl { display: block; } dd { margin: 0 0 .4rem 1rem; }
}
@media print {
  :root { --ground: #ffffff; --ink: #000000; --soft: #333333; --line: #999999;
    --panel: #f4f4f4; --accent: #000000; }
  main { max-width: none; padding: 0; }
  .scroll, .tall { overflow: visible; max-height: none; }
  .columns { columns: 1; }
  figure img { max-width: 13cm; }
  table { font-size: .7rem; }
  th, td { padding: .15rem .3rem; }
  .meaning { min-width: 0; }
}
""".strip()
"""Style sheet of the page, for any width from a telephone to paper."""


_MEANINGS = {
    SEARCH_NUTS: "the posterior, sampled by NUTS, starting at the fit of search EM.",
    DEFAULT_NUTS: "the same mixture with free coefficients, sampled from PyMC's default start.",
    SEARCH_EM: "maximum likelihood from the search; its draws come from the normal "
    "approximation at the maximum.",
    RANDOM_EM: "maximum likelihood from independent random starts. Scores, errors and intervals "
    "are those of the typical start, the one with the median log-likelihood.",
    BEST_RANDOM_EM: "the random start with the highest log-likelihood: what you get if you run "
    "all of them and keep the best.",
}
"""Descriptions of the methods."""

_NO_START = (
    "maximum likelihood from random starts. None of them converged, so there are no draws, scores "
    "or errors."
)

_STARTS = (
    " For random EM, the interval is that of the typical start, and ticks mark the medians of all "
    "starts."
)

_CAPTIONS = {
    "landscape": "Each mark shows where one start or chain ended. Marks on the line are at the "
    "best optimum that any method found; marks further left are worse. The scale is linear down to "
    "−1 and logarithmic below.",  # noqa: RUF001
    "loo": "Leave-one-out predictive score of each method minus the highest score. Bars extend two "
    "standard errors of the difference to each side: if a bar crosses the line, the difference is "
    "not clear. “k > …” counts the rows whose part of the score is not reliable. A hollow mark "
    "means that these are more than 1 % of the rows. Such scores tend to be too high and are "
    "ranked below the others.",
    "rhat": "Each mark is one parameter. To the right of the dashed line, the chains disagree "
    "about it. For random EM the chains are the starts, with labels matched, so parameters to the "
    "right of the line depend on the start. Methods with one chain have no R-hat.",
    "weights": "Median and 94 % interval of each component's weight.",
    "forest": "Median and 94 % interval of two kinds of effects: the change in the linear "
    "predictor per standard deviation of a feature, and its level at the means of the features. "
    "Where marks of different colours lie apart, the methods found different components.",
    "membership": "Membership probability of the rows whose most probable component is this one. "
    "Thick bars contain half of these rows, thin bars nine tenths. At 1 the component is certain; "
    "the dotted line is a pure guess. The shares of rows are those of {reference}.",
    "rootogram": "Observed minus expected number of rows with each count, on the square-root "
    "scale. At zero they agree. ",
    "calibration": "Rows are grouped by predicted probability into groups of equal size. The curve "
    "is the observed minus the predicted share of successes. At zero they agree. ",
    "pit": "If the predictions are right, the observed responses are spread evenly over their "
    "predictive distributions, and the curve stays at zero. If it is above zero on the left and "
    "below zero on the right, the predictions are too narrow; the other way round, too wide. ",
}

_BAND = "The grey band contains 94 % of the data sets that {reference} itself would generate."
_TYPICAL = " For random EM, the typical start is shown."


def method_meaning(comparison: "Comparison", method: str) -> str:
    """Describe a method."""
    if method == RANDOM_EM and method not in comparison.trees:
        return _NO_START
    return _MEANINGS.get(method, "")


def caption(comparison: "Comparison", panel: str) -> str:
    """Explain how to read a panel."""
    reference, has_starts = reference_method(comparison), RANDOM_EM in comparison.trees
    if panel == "predictive":
        text = (_CAPTIONS[check_kind(comparison)] + _BAND).format(reference=reference)
        return text + _TYPICAL if has_starts else text
    text = _CAPTIONS[panel].format(reference=reference)
    if panel in ("forest", "weights"):
        text += " Black bars mark the truth." if comparison.truth is not None else ""
        text += _STARTS if has_starts else ""
    return text + _selection(comparison) if panel == "forest" else text


def description(comparison: "Comparison", panel: str) -> str:
    """Describe a panel in words, as the alternative text of its image."""
    methods = ", ".join(comparison.trees)
    if panel == "landscape":
        reached = optima_by_method(comparison).items()
        parts = [
            f"{name} {optima.n_best} of {len(optima.gaps) + optima.n_failed}"
            for name, optima in reached
        ]
        return f"Optima by method. At the best optimum found: {', '.join(parts)}."
    if panel == "rhat":
        largest = comparison.table["rhat_max"].dropna().items()
        parts = [f"{name} {value:.4g}" for name, value in largest]
        return f"R-hat of the parameters by method. Largest: {', '.join(parts) or 'none'}."
    if panel == "loo":
        names = map(str, comparison.loo.index)
        ranked = zip(names, comparison.loo["is_reliable"], strict=True)
        order = [name if is_reliable else f"{name} (not reliable)" for name, is_reliable in ranked]
        return f"Differences between leave-one-out scores, from best to worst: {', '.join(order)}."
    titles = {
        "weights": "Weights of the components",
        "forest": "Effects of the features in each component",
        "membership": "Certainty of component membership",
        "predictive": "Deviations of the responses from their predictions",
    }
    return f"{titles[panel]}, by method: {methods}."


def _selection(comparison: "Comparison") -> str:
    sizes = comparison.trees[reference_method(comparison)]["posterior"].sizes
    n_effects = sizes["component"] * (sizes["feature"] + 1)
    if n_effects <= MOST_EFFECTS:
        return ""
    return (
        f" Of {n_effects} effects, the figure shows the {MOST_EFFECTS} on which the methods differ "
        "most, relative to their intervals. The table of parameters has all coefficients."
    )


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
"""Variables of the table of parameters, in the user's units; directions follow from them."""

_HEADS = {
    "mean": "mean",
    "sd": "sd",
    "ess_bulk": "ESS, bulk",
    "ess_tail": "ESS, tail",
    "r_hat": "R-hat",
    "mcse_mean": "MCSE of mean",
    "mcse_sd": "MCSE of sd",
}

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load: the images and styles inside the file."""


def write_page(comparison: "Comparison", path: str | PathLike[str]) -> Path:
    """Write a comparison as one self-contained HTML page."""
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
        limits = (
            f'<p>See the <a href="#warnings">{count} {noun}</a> below before you rely on this '
            "verdict.</p>"
        )
    return (
        f'<header>\n<p class="about">{escape(_about(comparison))}</p>\n<div class="verdict">'
        f"<h1>{escape(verdict.headline)}</h1>\n<ul>{_items(verdict.reasons)}</ul>{limits}</div>\n"
        "</header>"
    )


def _about(comparison: "Comparison") -> str:
    """Describe the fitted mixture in one line."""
    settings = comparison.settings
    sizes = comparison.trees[reference_method(comparison)]["posterior"].sizes
    n_obs = comparison.trees[reference_method(comparison)]["observed_data"].sizes["obs"]
    parts = (
        f"{settings.get('family', '')} mixture of {_number_of(sizes['component'], 'component')}",
        _number_of(sizes["feature"], "feature"),
        f"{_number_of(n_obs, 'row')} fitted",
    )
    return "Comparison of starts: " + ", ".join(part.strip() for part in parts)


def _number_of(count: int, noun: str) -> str:
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
        "<p>★ and bold mark the best value of each row and values that print the same. For scores, "
        "they also mark values that are worse by less than 4, and for LOO scores values that are "
        "worse by less than two standard errors of the difference. LOO scores with more than 1 % "
        "of Pareto k values too large are never marked. A dash means that the value is not "
        "defined for this method.</p>\n</section>"
    )


def _figures(comparison: "Comparison") -> str:
    figures = "\n".join(_figure(comparison, name) for name in PANELS)
    return f'<section>\n<h2>Figures</h2>\n<div class="columns">\n{figures}\n</div>\n</section>'


def _figure(comparison: "Comparison", name: str) -> str:
    buffer = BytesIO()
    figure = comparison_figure(comparison, [name])
    with changed_filters():
        # Names may contain letters that matplotlib's font lacks; the tables show them.
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
    """Write the table of ``arviz.summary`` for the reference method."""
    import arviz as az

    method = reference_method(comparison)
    posterior = comparison.trees[method]["posterior"].to_dataset()
    names = [name for name in _SUMMARISED if name in posterior]
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # diagnostics of constants are NaN
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
    """Yield settings as pairs of name and text; nested settings are prefixed by their parent."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}: ")
        elif value is not None and value != () and value != []:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{prefix}{name}", shown
