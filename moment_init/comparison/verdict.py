"""The verdict in words: whether random starts are enough for these data, and what limits it.

`judge` compares the share of random starts that reached the best optimum found with the number of
starts that users run. `collect_caveats` lists the limits of a comparison, one text for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv

from moment_init.comparison.result import DEFAULT_NUTS, RANDOM_EM, SEARCH_EM, SEARCH_NUTS, Verdict
from moment_init.comparison.runs import FAILED, ComparedRows, EMRun, converged_runs, typical_run
from moment_init.comparison.scoring import (
    LARGEST_RHAT,
    SAME_MEMBERSHIP,
    MethodFigures,
    ScoreDifference,
    best_log_likelihood,
    is_at_best,
    membership_distance,
    share_at_best,
)
from moment_init.results import SAME_OPTIMUM, counted

if TYPE_CHECKING:
    import xarray

USUAL_STARTS = 5
"""Random starts that a careful user runs: flexmix's `stepFlexmix` runs 3 by default, and this
allows for two more. To reach the optimum in 99 of 100 analyses, each of 5 starts must reach it
with probability 1 - .01^(1/5) = .60."""

_SURE = 0.99
"""Probability with which at least one random start should reach the optimum."""

_COVERAGE = 0.95
"""Coverage of the interval for a share."""

_ROUNDING = 1e-9
"""Tolerance that keeps rounding errors from adding a start, as for a share of .9."""


def starts_needed(share: float) -> float:
    r"""Compute how many random starts reach the optimum at least once with probability 99 %.

    .. math:: \lceil \log 0.01 / \log (1 - s) \rceil
    """
    if share <= 0.0:
        return inf
    if share >= _SURE:
        return 1
    return ceil(log(1.0 - _SURE) / log(1.0 - share) - _ROUNDING)


def share_interval(reached: int, total: int) -> tuple[float, float]:
    """Compute the 95 % Jeffreys interval of a share."""
    tail = (1.0 - _COVERAGE) / 2.0
    shape = (reached + 0.5, total - reached + 0.5)
    lower = 0.0 if reached == 0 else float(betaincinv(*shape, tail))
    upper = 1.0 if reached == total else float(betaincinv(*shape, 1.0 - tail))
    return lower, upper


@dataclass(frozen=True, slots=True, eq=False)
class StartEvidence:
    """The evidence for a verdict."""

    # runs by method; ``"search EM"`` and ``"random EM"`` are among them
    runs: Mapping[str, Sequence[EMRun]]
    moment_status: str = ""  # status of the estimate from moments alone; empty if there is none
    # leave-one-out score of the typical random start minus that of the search; None if either
    # is not reliable
    loo_difference: ScoreDifference | None = None
    # the same difference for the held-out rows; None if there are none, or if it is not finite
    held_out_difference: ScoreDifference | None = None
    has_unreliable_loo: bool = False  # whether either leave-one-out score is not reliable

    @property
    def search(self) -> EMRun:
        """The run from the search."""
        return self.runs[SEARCH_EM][0]

    @property
    def random(self) -> Sequence[EMRun]:
        """The runs from random starts."""
        return self.runs[RANDOM_EM]

    @property
    def best(self) -> float:
        """Highest log-likelihood found."""
        return best_log_likelihood(self.runs)

    @property
    def reached(self) -> int:
        """Number of random starts that reached the best optimum found."""
        return round(share_at_best(self.random, self.best) * len(self.random))

    @property
    def rivals(self) -> int:
        """Number of random starts at a different optimum with the best log-likelihood."""
        reached = [run for runs in self.runs.values() for run in runs if is_at_best(run, self.best)]
        first = self.search if is_at_best(self.search, self.best) else reached[0]
        if first.fit is None:
            return 0
        return sum(
            run.fit is not None
            and is_at_best(run, self.best)
            and membership_distance(first.fit, run.fit) > SAME_MEMBERSHIP
            for run in self.random
        )

    @property
    def finders(self) -> list[str]:
        """Methods that found the best optimum."""
        return [name for name, runs in self.runs.items() if share_at_best(runs, self.best) > 0]


def judge(evidence: StartEvidence) -> Verdict:
    """Decide whether random starts are enough, and give the reasons."""
    needed = starts_needed(evidence.reached / len(evidence.random))
    suffice = needed <= USUAL_STARTS
    reasons = [
        _on_share(evidence),
        _on_gap(evidence),
        _on_prediction(evidence),
        _on_cost(evidence),
        _on_bounds(evidence),
        _on_search_status(evidence),
        _on_moments(evidence),
    ]
    stated_reasons = tuple(reason for reason in reasons if reason)
    return Verdict(_headline(evidence, needed) + _on_rivals(evidence), stated_reasons, suffice)


# --- headline ------------------------------------------------------------------------------------


def _headline(evidence: StartEvidence, needed: float) -> str:
    if SEARCH_EM not in evidence.finders:
        return _on_better(evidence, needed)
    reached, total = evidence.reached, len(evidence.random)
    if needed <= USUAL_STARTS:
        lower, _ = share_interval(reached, total)
        sure = "" if starts_needed(lower) <= USUAL_STARTS else "probably "
        return (
            f"Random starts are {sure}enough for these data: {_of(reached, total)} reached the "
            f"best optimum found, so {counted(needed, 'random start')} "
            f"{'reaches' if needed == 1 else 'reach'} it with 99 % probability. The search "
            "reached it too."
        )
    if reached == 0:
        return (
            f"Random starts are not enough for these data: none of {total} reached the best "
            "optimum found. The search reached it in one call."
        )
    return (
        f"Random starts are not enough for these data: {_of(reached, total)} reached the best "
        f"optimum found, so {needed:.0f} would be needed to reach it with 99 % probability. "
        "The search reached it in one call."
    )


def _on_better(evidence: StartEvidence, needed: float) -> str:
    """Write the headline for a search that missed the best optimum found."""
    reached = evidence.search.log_likelihood
    gap = (
        f"by {evidence.best - reached:,.2f} in log-likelihood "
        f"({evidence.best:,.2f} against {reached:,.2f})"
    )
    if RANDOM_EM not in evidence.finders:
        names = " and ".join(evidence.finders)
        return (
            f"The search MISSED the best optimum found: chains of {names} led to an "
            f"optimum that is better {gap}. No random start reached it either."
        )
    enough = (
        f"{counted(needed, 'random start')} would reach it with 99 % probability, which is "
        f"{'few enough to run' if needed <= USUAL_STARTS else 'more than most users run'}"
    )
    return (
        f"Random starts found a BETTER optimum than the search, {gap}: "
        f"{_of(evidence.reached, len(evidence.random))} reached it. {enough}. Do not rely on the "
        "search alone here."
    )


def _on_rivals(evidence: StartEvidence) -> str:
    """Tell the user if several optima share the best log-likelihood."""
    if not evidence.rivals:
        return ""
    others = "the search" if SEARCH_EM in evidence.finders else "the others"
    return (
        f" But {evidence.rivals} of these ended at a different optimum than {others}: its "
        f"components differ, but its log-likelihood is within {SAME_OPTIMUM}. The data do not "
        "tell these optima apart."
    )


# --- reasons -------------------------------------------------------------------------------------


def _on_share(evidence: StartEvidence) -> str:
    reached, total = evidence.reached, len(evidence.random)
    lower, upper = share_interval(reached, total)
    fewest, most = starts_needed(upper), starts_needed(lower)
    span = f"at least {fewest:.0f}" if most == inf else f"{fewest:.0f} to {most:.0f}"
    if fewest == most:
        span = f"{fewest:.0f}"
    needed = "start is needed" if span == "1" else "starts are needed"
    return (
        f"{_of(reached, total)} ({reached / total:.0%}) came within {SAME_OPTIMUM} of the best "
        f"log-likelihood found, {evidence.best:,.2f}. The 95 % interval of this share is "
        f"{lower:.0%} to {upper:.0%}, so {span} random {needed} to reach that optimum "
        "with 99 % probability."
    )


def _on_gap(evidence: StartEvidence) -> str:
    ended = converged_runs(evidence.random)
    if not ended:
        return "No random start converged."
    values = [run.log_likelihood for run in ended]
    gap = evidence.best - typical_run(ended).log_likelihood
    if evidence.best - min(values) < SAME_OPTIMUM:
        return ""
    where = "at" if gap < SAME_OPTIMUM else f"{gap:,.2f} below"
    return (
        f"The typical random start (median log-likelihood) ended {where} the best log-likelihood "
        f"found, the worst {evidence.best - min(values):,.2f} below it. The random starts reached "
        f"{_count_optima(values)} different optima."
    )


def _count_optima(values: Sequence[float]) -> int:
    """Count the log-likelihoods that differ by more than the tolerance."""
    return 1 + int(np.sum(np.diff(np.sort(values)) > SAME_OPTIMUM))


def _on_prediction(evidence: StartEvidence) -> str:
    """Say which start predicts better, by leave-one-out if that is reliable."""
    if evidence.loo_difference is not None:
        return _on_score("leave-one-out prediction", evidence.loo_difference)
    doubt = "Leave-one-out is not reliable here: too many Pareto k values are too large."
    if evidence.held_out_difference is None:
        return doubt if evidence.has_unreliable_loo else ""
    said = _on_score("the prediction of held-out rows", evidence.held_out_difference)
    return f"{said} {doubt}" if evidence.has_unreliable_loo else said


def _on_score(source: str, difference: ScoreDifference) -> str:
    if not difference.is_clear:
        return (
            f"In {source}, the typical random start and the search cannot be told apart "
            f"(elpd difference {difference.value:+.1f}, standard error {difference.error:.1f})."
        )
    kind = "worse" if difference.value < 0 else "better"
    return (
        f"In {source}, the typical random start is {kind} than the search by "
        f"{abs(difference.value):,.1f} in elpd (standard error {difference.error:.1f})."
    )


def _on_cost(evidence: StartEvidence) -> str:
    """State the cost of the search, which runs many starts itself."""
    fit = evidence.search.fit
    n_inside = 1 if fit is None else len(fit.starts)
    seconds = float(np.mean([run.seconds for run in evidence.random]))
    return (
        f"The search is one call that runs {counted(n_inside, 'start')}; it took "
        f"{evidence.search.seconds:.2g} s. A random start took {seconds:.2g} s on average."
    )


def _on_bounds(evidence: StartEvidence) -> str:
    """Warn of a boundary solution: a component may have collapsed onto a few rows."""
    fitted = [run for runs in evidence.runs.values() for run in runs if run.fit is not None]
    best = max(fitted, key=lambda run: run.log_likelihood).fit
    if best is None or not best.bounds:
        return ""
    return (
        f"The best optimum found lies on a bound ({', '.join(best.bounds)}). A component may have "
        "collapsed onto a few rows, so a higher log-likelihood need not mean a better fit."
    )


def _on_search_status(evidence: StartEvidence) -> str:
    fit = evidence.search.fit
    if fit is None or str(fit.status) == "ok":
        return ""
    first = f" {fit.warnings[0]}" if fit.warnings else ""
    return f"The status of the search's fit is {fit.status}.{first}"


def _on_moments(evidence: StartEvidence) -> str:
    if evidence.moment_status in ("", "ok"):
        return ""
    return (
        f"The estimate from moments alone has status {evidence.moment_status} on these data. The "
        "search relies on its other starts."
    )


def _of(reached: int, total: int) -> str:
    return f"{reached} of {counted(total, 'random start')}"


FEW_STARTS = 10
"""Fewer random starts say little: if none of 9 reaches an optimum, the share may still be a quarter
(the Jeffreys interval ends at .24), and 17 starts would then be enough."""

_NOTABLE_SHARE = 0.01
"""Share of a chain's draws with switched labels above which a caveat is given."""


def collect_caveats(
    trees: Mapping[str, "xarray.DataTree"],
    figures: Mapping[str, MethodFigures],
    rows: ComparedRows,
    dropped_priors: Sequence[str],
) -> tuple[str, ...]:
    """List what limits a comparison."""
    caveats: list[str] = []
    for method in (SEARCH_NUTS, DEFAULT_NUTS):
        if method in trees:
            caveats += _on_chains(method, trees[method], figures[method])
    caveats += _on_starts(figures)
    for method, scored in figures.items():
        caveats += _on_loo(method, scored, "rows" if rows.checked.groups is None else "groups")
    if rows.has_unequal_weights:
        caveats.append(_on_weights(has_groups=rows.checked.groups is not None))
    if dropped_priors:
        caveats.append(
            "default NUTS has free coefficients, so it does not use the priors of "
            f"{', '.join(dropped_priors)}."
        )
    return tuple(caveats)


def _on_chains(method: str, tree: "xarray.DataTree", figures: MethodFigures) -> list[str]:
    """Check R-hat, divergences, label switching and modes of a sampler's chains."""
    caveats = []
    rhat, divergences = figures.convergence.rhat_max, figures.convergence.divergences
    if rhat > LARGEST_RHAT:
        caveats.append(
            f"{method}: the largest R-hat is {rhat:.3f}, above {LARGEST_RHAT}. The chains have not "
            "converged. Sample longer, or inspect each chain."
        )
    if divergences > 0:
        caveats.append(
            f"{method}: {divergences:.0f} divergent transitions. The draws may misrepresent the "
            "posterior near them. Increase `target_accept`."
        )
    switched = float(tree["moment_init"]["switched_share"].max())
    if switched > _NOTABLE_SHARE:
        caveats.append(
            f"{method}: components switched labels in {switched:.0%} of a chain's draws. They were "
            "matched to the search draw by draw."
        )
    values = np.array([run.log_likelihood for run in figures.runs])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) > SAME_OPTIMUM:
        caveats.append(
            f"{method}: chains lead to different optima, with log-likelihoods from "
            f"{values.min():,.2f} to {values.max():,.2f}. Pooled draws represent none of them."
        )
    return caveats


def _on_starts(figures: Mapping[str, MethodFigures]) -> list[str]:
    """Check for few, failed or unconverged starts, and for singular information."""
    runs = figures[RANDOM_EM].runs
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
    search = figures[SEARCH_EM].runs[0].fit
    if search is not None:
        caveats += [f"search EM: {warning}" for warning in search.warnings]
    singular = sum(run.fit is not None and bool(run.fit.laplace.undetermined.any()) for run in runs)
    if singular:
        caveats.append(
            f"random EM: the information matrix is singular where {singular} of {len(runs)} starts "
            "ended. Their draws use its positive part only and are too narrow."
        )
    return caveats


def _on_loo(method: str, figures: MethodFigures, units: str) -> list[str]:
    score = figures.loo
    caveats = []
    if score.message:
        caveats.append(f"{method}: leave-one-out could not be computed: {score.message}.")
    if score.n_dropped:
        caveats.append(
            f"{method}: {score.n_dropped} Laplace draws were left out of leave-one-out: the data "
            "are impossible under them."
        )
    if score.elpd is not None and score.columns["pareto_k_bad"] > 0:
        n_bad = int(np.sum(np.asarray(score.elpd.pareto_k) > score.elpd.good_k))
        meaning = (
            f"The LOO contributions of these {units} are not reliable, but there are few of them"
            if score.is_reliable
            else "Its LOO score is not reliable. The held-out score does not have this problem"
        )
        caveats.append(
            f"{method}: Pareto k exceeds {score.elpd.good_k:.2f} for {n_bad} of "
            f"{score.elpd.n_data_points} {units} (largest {score.columns['pareto_k_max']:.2f}). "
            f"{meaning}."
        )
    return caveats


def _on_weights(*, has_groups: bool) -> str:
    if has_groups:
        return (
            "Not all sample weights are one. Leave-one-out leaves out a group with all its rows, "
            "each counted by its weight."
        )
    return (
        "Not all sample weights are one. Leave-one-out leaves out one copy of a row while its "
        "other copies stay, and counts every row once. The held-out score counts each row by its "
        "weight."
    )
