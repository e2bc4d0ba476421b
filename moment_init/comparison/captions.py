"""What is written below each figure of the page, and read out in its place."""

from typing import TYPE_CHECKING

from moment_init.comparison.effects import MOST_EFFECTS
from moment_init.comparison.landscape_panel import optima_by_method
from moment_init.comparison.predictive_checks import check_kind
from moment_init.comparison.representatives import reference_method
from moment_init.comparison.result import (
    BEST_RANDOM_EM,
    DEFAULT_NUTS,
    RANDOM_EM,
    TENSOR_EM,
    TENSOR_NUTS,
)

if TYPE_CHECKING:
    from moment_init.comparison.result import Comparison

__all__ = ["caption", "description", "method_meaning"]

_MEANINGS = {
    TENSOR_NUTS: "the posterior, sampled by NUTS from the start that the moments of the data give.",
    DEFAULT_NUTS: "the same mixture with free coefficients, sampled from PyMC's default start.",
    TENSOR_EM: "maximum likelihood from the tensor start; its draws are those of the normal "
    "approximation about the maximum.",
    RANDOM_EM: "maximum likelihood from random starts, each by itself. Scores, errors and "
    "intervals are those of the typical start, the one in the middle by log-likelihood.",
    BEST_RANDOM_EM: "the random start with the highest log-likelihood: what is left if one runs "
    "all of them and keeps the best.",
}
"""What each method is."""

_NO_START = (
    "maximum likelihood from random starts. None of them converged: there are no draws, no scores "
    "and no errors."
)

_STARTS = (
    " Of random starts the typical one is shown, with a tick at the median of every other start."
)

_CAPTIONS = {
    "landscape": "A mark is where one start, or one chain, ends. Marks on the line are at the best "
    "optimum that any method found; the further left, the worse. The scale is linear down to "
    "−1 and logarithmic below.",  # noqa: RUF001
    "loo": "How much lower than the highest the predictive score of each method is, for a row that "
    "it has not seen, by leave-one-out. Bars are two standard errors of the difference: one that "
    "crosses the line is no clear difference. “k > …” counts rows whose part of the score is not "
    "reliable; a hollow mark is a score for which these are more than one in a hundred. Such "
    "scores tend to be too high, and are ranked below the others.",
    "rhat": "A mark is one parameter. Right of the dashed line chains disagree about it; for "
    "random EM the chains are starts, labels matched, so that what is right of it depends on the "
    "start. Methods with one chain have no R-hat.",
    "weights": "Median and 94 % interval of each component's weight.",
    "forest": "Median and 94 % interval of what one standard deviation of a feature adds to the "
    "linear predictor, and of the predictor's level at the features' means. Where marks of "
    "different colours part, the methods have found different components.",
    "membership": "For the rows whose most probable component is this one: how probable it is. "
    "Thick bars hold half of the rows, thin ones nine tenths. At 1 a row is certain; the dotted "
    "line is a pure guess. Shares of rows are those of {reference}.",
    "rootogram": "Numbers of rows by count, observed less expected, on the scale of square roots. "
    "At zero they agree. ",
    "calibration": "Rows in groups of one size by predicted probability: the observed share "
    "of successes less the predicted one. At zero they agree. ",
    "pit": "If predictions are right, the observed responses fall evenly over their predictive "
    "distributions, and the curve stays at zero. Above zero on the left and below it on "
    "the right predictions are too narrow, the other way round too wide. ",
}

_BAND = "The grey band holds 94 of 100 data sets that {reference} itself would make."
_TYPICAL = " Random EM is shown by its typical start."


def method_meaning(comparison: "Comparison", method: str) -> str:
    """Say what a method is.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    method : str
        A row of its table.

    Returns
    -------
    str
        A sentence or two; empty for a method that is not known here.
    """
    if method == RANDOM_EM and method not in comparison.trees:
        return _NO_START
    return _MEANINGS.get(method, "")


def caption(comparison: "Comparison", panel: str) -> str:
    """Say how to read a panel.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    panel : str
        Name of the panel.

    Returns
    -------
    str
        A few sentences.
    """
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
    """Say in words what a panel shows, for those who cannot see it.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    panel : str
        Name of the panel.

    Returns
    -------
    str
        What is drawn, with its main figures.
    """
    methods = ", ".join(comparison.trees)
    if panel == "landscape":
        found = optima_by_method(comparison).items()
        parts = [f"{name} {own.n_best} of {len(own.gaps) + own.n_failed}" for name, own in found]
        return f"Optima by method. At the best optimum found: {', '.join(parts)}."
    if panel == "rhat":
        largest = comparison.table["rhat_max"].dropna().items()
        parts = [f"{name} {value:.4g}" for name, value in largest]
        return f"R-hat of the parameters by method. Largest: {', '.join(parts) or 'none'}."
    if panel == "loo":
        names = map(str, comparison.loo.index)
        ranked = zip(names, comparison.loo["is_reliable"], strict=True)
        order = [name if is_reliable else f"{name} (not reliable)" for name, is_reliable in ranked]
        return f"Differences of leave-one-out scores; from best to worst: {', '.join(order)}."
    titles = {
        "weights": "Weights of the components",
        "forest": "Effects of the features in each component",
        "membership": "How sure rows are of their component",
        "predictive": "Deviations of the responses from their predictions",
    }
    return f"{titles[panel]}, by method: {methods}."


def _selection(comparison: "Comparison") -> str:
    sizes = comparison.trees[reference_method(comparison)]["posterior"].sizes
    n_effects = sizes["component"] * (sizes["feature"] + 1)
    if n_effects <= MOST_EFFECTS:
        return ""
    return (
        f" Of {n_effects} effects the {MOST_EFFECTS} are shown on which the methods differ most, "
        "relative to their intervals; all coefficients are in the table of parameters."
    )
