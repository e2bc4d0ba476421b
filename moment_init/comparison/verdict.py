"""The verdict in words: on random starts, on the tensor start, and on what limits both.

`judge` rests on shares: how many random starts reached the best optimum found, and how many would
be needed to reach it with 90 % certainty. `collect_caveats` lists what a reader can act on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv

from moment_init.comparison.runs import (
    CLEARLY_WORSE,
    DEFAULT_NUTS,
    FAILED,
    RANDOM_EM,
    SEARCH_EM,
    SEARCH_NUTS,
    TENSOR_EM,
    TENSOR_NUTS,
    EMRun,
    converged_runs,
    match_fits,
    typical_run,
)
from moment_init.comparison.scoring import (
    MethodFigures,
    ScoreDifference,
    best_log_likelihood,
    count_at_best,
    is_at_best,
)
from moment_init.results import SAME_OPTIMUM, counted

if TYPE_CHECKING:
    import xarray

CERTAINTY = 0.90
"""Probability with which at least one random start should reach the optimum."""

_CERTAIN = f"{100 * CERTAINTY:.0f} % certainty"

USUAL_STARTS = 5
"""Random starts that a careful user runs: flexmix's `stepFlexmix` runs 3 by default, and this
allows for two more. They suffice if each reaches the optimum with probability .37:
1 - (1 - .37)^5 = .9."""

_COVERAGE = 0.95
"""Coverage of the interval for a share."""

_ROUNDING = 1e-9
"""Tolerance that keeps rounding errors from adding a start, as for a share of .9."""

SAME_MEMBERSHIP = 0.01
"""Mean distance between the responsibilities of two fits below which they are the same optimum.
Runs stop when a step would gain less than 1e-6 in log-likelihood, about a thousandth of a standard
error from the maximum, which moves responsibilities by less than this."""

LARGEST_RHAT = 1.01
"""R-hat above which chains have not converged (Vehtari et al., 2021, Bayesian Analysis 16). It is
compared with two decimals: the largest of dozens of parameters is a little above by chance."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a comparison.

    Parameters
    ----------
    headline : str
        The verdict in up to three lines: on random starts, on the tensor start, on prediction.
    reasons : tuple of str
        Further figures behind it.
    random_starts_suffice : bool
        Whether random starts reach the best optimum found so often that five of them reach it with
        90 % certainty.
    tensor_start_suffices : bool
        Whether EM from the moment estimate alone reached the best optimum found.
    """

    headline: str
    reasons: tuple[str, ...]
    random_starts_suffice: bool
    tensor_start_suffices: bool


def starts_needed(share: float, certainty: float = CERTAINTY) -> float:
    r"""Compute how many random starts reach the optimum at least once with some certainty c.

    .. math:: \lceil \log (1 - c) / \log (1 - s) \rceil
    """
    if share <= 0.0:
        return inf
    if share >= certainty:
        return 1
    return ceil(log(1.0 - certainty) / log(1.0 - share) - _ROUNDING)


def share_interval(reached: int, total: int) -> tuple[float, float]:
    """Compute the 95 % Jeffreys interval of a share."""
    tail = (1.0 - _COVERAGE) / 2.0
    shape = (reached + 0.5, total - reached + 0.5)
    lower = 0.0 if reached == 0 else float(betaincinv(*shape, tail))
    upper = 1.0 if reached == total else float(betaincinv(*shape, 1.0 - tail))
    return lower, upper


def judge(
    runs: Mapping[str, Sequence[EMRun]], prediction: ScoreDifference | None = None
) -> Verdict:
    """Judge the starts by the optima they reached.

    The prediction is the held-out score of the typical random start minus that of the best of our
    starts, if it is known.
    """
    best, random = best_log_likelihood(runs), runs[RANDOM_EM]
    reached = count_at_best(random, best)
    lines = [_on_random(reached, len(random)), _on_tensor(runs, best)]
    if prediction is not None:
        lines.append(_on_prediction(prediction))
    reasons = [
        _on_interval(reached, len(random)),
        _on_gap(random, best),
        _on_rivals(runs, best),
        _on_cost(runs),
        _on_bounds(runs, best),
        _on_search_status(runs[SEARCH_EM][0]),
    ]
    return Verdict(
        "\n".join(lines),
        tuple(reason for reason in reasons if reason),
        starts_needed(reached / len(random)) <= USUAL_STARTS,
        is_at_best(runs[TENSOR_EM][0], best),
    )


def _on_random(reached: int, total: int) -> str:
    """Say whether random starts would have done as well."""
    needed = starts_needed(reached / total)
    word = "enough" if needed <= USUAL_STARTS else "not enough"
    fewest = starts_needed(share_interval(reached, total)[1])
    number = f"about {needed:.0f}" if reached else f"at least {fewest:.0f}"
    return (
        f"Random starts: {word}. {reached} of {total} at the best optimum found; {number} needed "
        f"for {_CERTAIN}."
    )


def _on_tensor(runs: Mapping[str, Sequence[EMRun]], best: float) -> str:
    """Say whether the tensor start alone did it, or else what did."""
    tensor, search = runs[TENSOR_EM][0], runs[SEARCH_EM][0]
    if is_at_best(tensor, best):
        return f"Tensor start alone: at the best optimum, in {tensor.seconds:.1f} s."
    if tensor.fit is None:
        said = f"Tensor start: there is none ({tensor.message.split('. ')[0]})."
    else:
        said = f"Tensor start alone: {_distance(tensor, best)} the best optimum."
    if is_at_best(search, best):
        return f"{said} The search is at it, in {search.seconds:.1f} s."
    finders = [name for name, found in runs.items() if count_at_best(found, best)]
    gap = best - search.log_likelihood
    how = "ending on a bound" if gap < 0.0 else f"by {gap:,.2f}"
    return (
        f"{said} The search MISSED it, too, {how}: only {' and '.join(finders)} found it. Run "
        "`fit_em` with a larger `max_seconds`."
    )


def _distance(run: EMRun, best: float) -> str:
    """Say how far a run ended from the best optimum; above it are only ends on a bound."""
    gap = best - run.log_likelihood
    return f"on a bound, {-gap:,.2f} above" if gap < 0.0 else f"{gap:,.2f} below"


def _on_prediction(difference: ScoreDifference) -> str:
    if not difference.is_clear:
        return (
            "Held-out rows: the typical random start predicts as well (difference "
            f"{difference.value:+.1f}, standard error {difference.error:.1f})."
        )
    kind = "worse" if difference.value < 0 else "better"
    return (
        f"Held-out rows: the typical random start predicts {kind}, by "
        f"{abs(difference.value):,.1f} in log score (standard error {difference.error:.1f})."
    )


# --- reasons -------------------------------------------------------------------------------------


def _on_interval(reached: int, total: int) -> str:
    lower, upper = share_interval(reached, total)
    fewest, most = starts_needed(upper), starts_needed(lower)
    span = f"{fewest:.0f} or more" if most == inf else f"{fewest:.0f} to {most:.0f}"
    span = f"{fewest:.0f}" if fewest == most else span
    return (
        f"The 95 % interval of the share of random starts at the best optimum is {lower:.0%} to "
        f"{upper:.0%}: for {_CERTAIN}, {span} would be needed."
    )


def _on_gap(random: Sequence[EMRun], best: float) -> str:
    ended = converged_runs(random)
    if not ended:
        return "No random start converged."
    values = np.sort([run.log_likelihood for run in ended])
    if best - values[0] < SAME_OPTIMUM:
        return ""
    typical = typical_run(ended)
    where = "at" if is_at_best(typical, best) else _distance(typical, best)
    n_optima = 1 + int(np.sum(np.diff(values) > SAME_OPTIMUM))
    return (
        f"The typical random start (median log-likelihood) ended {where} the best optimum, the "
        f"worst {best - values[0]:,.2f} below it. The random starts reached {n_optima} different "
        "optima."
    )


def _on_rivals(runs: Mapping[str, Sequence[EMRun]], best: float) -> str:
    """Tell the user if several optima share the best log-likelihood."""
    fits = [
        run.fit
        for name in (TENSOR_EM, SEARCH_EM, RANDOM_EM)
        for run in runs[name]
        if run.fit is not None and is_at_best(run, best)
    ]
    n_others = sum(match_fits(fit, fits[0])[1] > SAME_MEMBERSHIP for fit in fits[1:])
    if not n_others:
        return ""
    return (
        f"{n_others} of the {len(fits)} starts at the best log-likelihood ended at another optimum "
        f"than the first: the components differ, but the log-likelihood is within {SAME_OPTIMUM}. "
        "The data do not tell these optima apart."
    )


def _on_cost(runs: Mapping[str, Sequence[EMRun]]) -> str:
    search = runs[SEARCH_EM][0]
    n_inside = 1 if search.fit is None else len(search.fit.starts)
    seconds = float(np.mean([run.seconds for run in runs[RANDOM_EM]]))
    return (
        f"The tensor start took {runs[TENSOR_EM][0].seconds:.1f} s, with its climb; a random start "
        f"{seconds:.1f} s on average; the search, which runs {counted(n_inside, 'start')}, "
        f"{search.seconds:.1f} s."
    )


def _on_bounds(runs: Mapping[str, Sequence[EMRun]], best: float) -> str:
    """Warn of boundary solutions: a component may have collapsed onto a few rows."""
    fits = [run.fit for found in runs.values() for run in found if run.fit is not None]
    highest = max(fits, key=lambda fit: fit.log_likelihood)
    if not highest.bounds:
        return ""
    bounds = ", ".join(highest.bounds)
    if all(fit.bounds for fit in fits):
        return (
            f"The best optimum found lies on a bound ({bounds}). A component may have collapsed "
            "onto a few rows, so a higher log-likelihood need not mean a better fit."
        )
    n_higher = sum(fit.log_likelihood > best + SAME_OPTIMUM for fit in fits)
    if not n_higher:
        return ""
    return (
        f"{counted(n_higher, 'start or chain', 'starts or chains')} ended above the best optimum, "
        f"by up to {highest.log_likelihood - best:,.2f}, but on a bound ({bounds}), where a "
        "component may have collapsed onto a few rows; such ends do not count as being at it."
    )


def _on_search_status(search: EMRun) -> str:
    fit = search.fit
    if fit is None or str(fit.status) == "ok":
        return ""
    first = f" {fit.warnings[0]}" if fit.warnings else ""
    return f"The status of the search's fit is {fit.status}.{first}"


# --- caveats -------------------------------------------------------------------------------------

FEW_STARTS = 10
"""Fewer random starts say little: if none of 9 reaches an optimum, the share may still be a quarter
(the Jeffreys interval ends at .24)."""


def collect_caveats(
    trees: Mapping[str, "xarray.DataTree"],
    figures: Mapping[str, MethodFigures],
    dropped_priors: Sequence[str],
) -> tuple[str, ...]:
    """List what a reader should know or change before relying on the comparison."""
    caveats: list[str] = []
    for method in (TENSOR_NUTS, SEARCH_NUTS, DEFAULT_NUTS):
        if method in trees:
            caveats += _on_chains(method, figures[method])
    caveats += _on_starts(figures[RANDOM_EM].runs)
    if dropped_priors:
        caveats.append(
            "default NUTS has free coefficients, so it does not use the priors of "
            f"{', '.join(dropped_priors)}."
        )
    return tuple(caveats)


def _on_chains(method: str, figures: MethodFigures) -> list[str]:
    """Check R-hat, divergences and modes of a sampler's chains."""
    caveats = []
    rhat, divergences = figures.convergence.rhat_max, figures.convergence.divergences
    if round(rhat, 2) > LARGEST_RHAT:
        caveats.append(
            f"{method}: the largest R-hat is {rhat:.2f}, above {LARGEST_RHAT}. The chains have not "
            "converged. Sample longer, or inspect each chain."
        )
    if divergences > 0:
        caveats.append(
            f"{method}: {divergences:.0f} divergent transitions. The draws may misrepresent the "
            "posterior near them. Increase `target_accept`."
        )
    values = np.array([run.log_likelihood for run in figures.runs])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) > CLEARLY_WORSE:
        caveats.append(
            f"{method}: chains lead to different optima, with log-likelihoods from "
            f"{values.min():,.2f} to {values.max():,.2f}. Pooled draws represent none of them. "
            "Sample longer, or look at each chain."
        )
    return caveats


def _on_starts(runs: Sequence[EMRun]) -> list[str]:
    """Check for few, failed or unconverged starts."""
    caveats = []
    if len(runs) < FEW_STARTS:
        caveats.append(
            f"random EM: {len(runs)} starts say little about the share that reaches an optimum. "
            f"Set `n_starts` to {FEW_STARTS} or more."
        )
    failed = [run for run in runs if run.status == FAILED]
    if failed:
        caveats.append(
            f"random EM: {len(failed)} of {len(runs)} starts broke down, the first with: "
            f"{failed[0].message}"
        )
    unfinished = sum(run.fit is not None and not run.fit.converged for run in runs)
    if unfinished:
        caveats.append(
            f"random EM: {unfinished} of {len(runs)} starts did not converge and have no draws."
        )
    return caveats
