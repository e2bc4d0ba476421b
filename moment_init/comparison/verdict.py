"""The answer in words: whether random starts are enough for these data.

What limits a comparison, a sentence each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv

from moment_init.comparison.landscape import (
    SAME_MEMBERSHIP,
    MethodFigures,
    best_log_likelihood,
    is_at_best,
    membership_distance,
    share_at_best,
)
from moment_init.comparison.result import DEFAULT_NUTS, RANDOM_EM, TENSOR_EM, TENSOR_NUTS, Verdict
from moment_init.comparison.runs import FAILED, ComparedRows, EMRun, converged_runs, typical_run
from moment_init.comparison.scoring import LARGEST_RHAT, ScoreDifference
from moment_init.results import SAME_OPTIMUM

if TYPE_CHECKING:
    import xarray

USUAL_STARTS = 5
"""Random starts that a careful user runs: flexmix's `stepFlexmix` runs 3 by default, and this
allows for two more. With 5, each must reach the optimum with probability 1 - .01^(1/5) = .60 to
reach it in 99 of 100 analyses."""

_SURE = 0.99
"""Probability with which random starts should reach the optimum."""

_COVERAGE = 0.95
"""Of the interval of a share."""

_ROUNDING = 1e-9
"""A number of starts that is whole but for rounding, as for a share of .9, is not rounded up."""


def starts_needed(share: float) -> float:
    r"""Number of random starts of which one reaches the optimum with probability 99 %.

    .. math:: \lceil \log 0.01 / \log (1 - s) \rceil
    """
    if share <= 0.0:
        return inf
    if share >= _SURE:
        return 1
    return ceil(log(1.0 - _SURE) / log(1.0 - share) - _ROUNDING)


def share_interval(reached: int, total: int) -> tuple[float, float]:
    """Jeffreys' interval of a share, 95 %."""
    tail = (1.0 - _COVERAGE) / 2.0
    shape = (reached + 0.5, total - reached + 0.5)
    lower = 0.0 if reached == 0 else float(betaincinv(*shape, tail))
    upper = 1.0 if reached == total else float(betaincinv(*shape, 1.0 - tail))
    return lower, upper


@dataclass(frozen=True, slots=True, eq=False)
class StartEvidence:
    """What a verdict rests on."""

    # runs by method; ``"tensor EM"`` and ``"random EM"`` are among them
    runs: Mapping[str, Sequence[EMRun]]
    moment_status: str = ""  # status of the estimate from moments alone; empty if there is none
    # score of the typical random start less that of the tensor start, by leave-one-out if that is
    # reliable, and on rows held out if there are any
    loo_difference: ScoreDifference | None = None
    # score of the typical random start less that of the tensor start, by leave-one-out if that is
    # reliable, and on rows held out if there are any
    held_out_difference: ScoreDifference | None = None
    has_unreliable_loo: bool = False  # whether leave-one-out is not reliable for one of the two

    @property
    def tensor(self) -> EMRun:
        """The run from the tensor start."""
        return self.runs[TENSOR_EM][0]

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
        """Random starts that reached it."""
        return round(share_at_best(self.random, self.best) * len(self.random))

    @property
    def rivals(self) -> int:
        """Random starts at another optimum than the best one, of the same log-likelihood."""
        reached = [run for own in self.runs.values() for run in own if is_at_best(run, self.best)]
        first = self.tensor if is_at_best(self.tensor, self.best) else reached[0]
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
        return [name for name, own in self.runs.items() if share_at_best(own, self.best) > 0]


def judge(evidence: StartEvidence) -> Verdict:
    """Say whether random starts are enough."""
    needed = starts_needed(evidence.reached / len(evidence.random))
    suffice = needed <= USUAL_STARTS
    reasons = [
        _on_share(evidence),
        _on_gap(evidence),
        _on_prediction(evidence),
        _on_cost(evidence),
        _on_bounds(evidence),
        _on_tensor_status(evidence),
        _on_moments(evidence),
    ]
    said = tuple(reason for reason in reasons if reason)
    return Verdict(_headline(evidence, needed) + _on_rivals(evidence), said, suffice)


# --- headline ------------------------------------------------------------------------------------


def _headline(evidence: StartEvidence, needed: float) -> str:
    if TENSOR_EM not in evidence.finders:
        return _on_better(evidence, needed)
    reached, total = evidence.reached, len(evidence.random)
    if needed <= USUAL_STARTS:
        lower, _ = share_interval(reached, total)
        sure = "" if starts_needed(lower) <= USUAL_STARTS else "probably "
        return (
            f"Random starts are {sure}enough for these data: {_of(reached, total)} reached the "
            f"best optimum found, so that {_count(needed, 'random start')} "
            f"{'reaches' if needed == 1 else 'reach'} it with 99 % probability. The tensor start "
            "reached it too."
        )
    if reached == 0:
        return (
            f"Random starts are not enough for these data: none of {total} reached the best "
            "optimum found, to which the tensor start led at once."
        )
    return (
        f"Random starts are not enough for these data: {_of(reached, total)} reached the best "
        f"optimum found, so that {needed:.0f} would be needed to reach it with 99 % probability. "
        "The tensor start led to it at once."
    )


def _on_better(evidence: StartEvidence, needed: float) -> str:
    """The tensor start has been beaten: that comes first, whoever did it."""
    own = evidence.tensor.log_likelihood
    gap = (
        f"by {evidence.best - own:,.2f} in log-likelihood ({evidence.best:,.2f} against {own:,.2f})"
    )
    if RANDOM_EM not in evidence.finders:
        names = " and ".join(evidence.finders)
        return (
            f"The tensor start MISSED the best optimum found: chains of {names} led to one that is "
            f"better {gap}. No random start reached it either."
        )
    enough = (
        f"{_count(needed, 'random start')} would reach it with 99 % probability, which is "
        f"{'few enough' if needed <= USUAL_STARTS else 'more than people run'}"
    )
    return (
        f"Random starts found a BETTER optimum than the tensor start, {gap}: "
        f"{_of(evidence.reached, len(evidence.random))} reached it. {enough}. Do not rely on the "
        "tensor start alone here."
    )


def _on_rivals(evidence: StartEvidence) -> str:
    """One log-likelihood need not be one optimum: a user must know that there are several."""
    if not evidence.rivals:
        return ""
    own = "the tensor start" if TENSOR_EM in evidence.finders else "the others"
    return (
        f" But {evidence.rivals} of these ended at another optimum than {own}, with other "
        f"components and a log-likelihood within {SAME_OPTIMUM}: the data do not tell these "
        "optima apart."
    )


# --- reasons -------------------------------------------------------------------------------------


def _on_share(evidence: StartEvidence) -> str:
    reached, total = evidence.reached, len(evidence.random)
    lower, upper = share_interval(reached, total)
    fewest, most = starts_needed(upper), starts_needed(lower)
    span = f"at least {fewest:.0f}" if most == inf else f"{fewest:.0f} to {most:.0f}"
    if fewest == most:
        span = f"{fewest:.0f}"
    return (
        f"{_of(reached, total)} ({reached / total:.0%}) came within {SAME_OPTIMUM} of the best "
        f"log-likelihood found, {evidence.best:,.2f}. With so many starts the share may be "
        f"{lower:.0%} to {upper:.0%} (95 % interval), which means {span} random starts for a "
        "99 % chance."
    )


def _on_gap(evidence: StartEvidence) -> str:
    ended = converged_runs(evidence.random)
    if not ended:
        return "No random start converged."
    values = [run.log_likelihood for run in ended]
    gap = evidence.best - typical_run(ended).log_likelihood
    if evidence.best - min(values) < SAME_OPTIMUM:
        return ""
    where = "at it" if gap < SAME_OPTIMUM else f"{gap:,.2f} below it"
    return (
        f"The typical random start (the median) ended {where}, the worst "
        f"{evidence.best - min(values):,.2f} below, at {_count_optima(values)} different optima."
    )


def _count_optima(values: Sequence[float]) -> int:
    """Number of log-likelihoods that are apart by more than the tolerance."""
    return 1 + int(np.sum(np.diff(np.sort(values)) > SAME_OPTIMUM))


def _on_prediction(evidence: StartEvidence) -> str:
    """Which start predicts better, by leave-one-out if that can be relied on."""
    if evidence.loo_difference is not None:
        return _on_score("leave-one-out prediction", evidence.loo_difference)
    doubt = "Leave-one-out is not reliable here: too many Pareto k are too large."
    if evidence.held_out_difference is None:
        return doubt if evidence.has_unreliable_loo else ""
    said = _on_score("the prediction of rows held out", evidence.held_out_difference)
    return f"{said} {doubt}" if evidence.has_unreliable_loo else said


def _on_score(source: str, difference: ScoreDifference) -> str:
    if not difference.is_clear:
        return (
            f"In {source} the typical random start and the tensor start cannot be told apart "
            f"(elpd difference {difference.value:+.1f}, standard error {difference.error:.1f})."
        )
    kind = "worse" if difference.value < 0 else "better"
    return (
        f"In {source} the typical random start is {kind} than the tensor start by "
        f"{abs(difference.value):,.1f} in elpd (standard error {difference.error:.1f})."
    )


def _on_cost(evidence: StartEvidence) -> str:
    """The tensor start is a search with many starts: its cost must be said beside its success."""
    fit = evidence.tensor.fit
    n_inside = 1 if fit is None else len(fit.starts)
    each = float(np.mean([run.seconds for run in evidence.random]))
    return (
        f"The tensor start is one call, a search with {_count(n_inside, 'start')} inside, that "
        f"took {evidence.tensor.seconds:.2g} s; a random start took {each:.2g} s."
    )


def _on_bounds(evidence: StartEvidence) -> str:
    """A likelihood that is highest on a bound may be so because a component collapsed."""
    runs = [run for own in evidence.runs.values() for run in own if run.fit is not None]
    best = max(runs, key=lambda run: run.log_likelihood).fit
    if best is None or not best.bounds:
        return ""
    return (
        f"The best optimum found lies on a bound ({', '.join(best.bounds)}): a component may have "
        "collapsed on few rows, and a higher log-likelihood need not be a better fit there."
    )


def _on_tensor_status(evidence: StartEvidence) -> str:
    fit = evidence.tensor.fit
    if fit is None or str(fit.status) == "ok":
        return ""
    first = f" {fit.warnings[0]}" if fit.warnings else ""
    return f"The status of the fit from the tensor start is {fit.status}.{first}"


def _on_moments(evidence: StartEvidence) -> str:
    if evidence.moment_status in ("", "ok"):
        return ""
    return (
        f"The moments alone are of status {evidence.moment_status} on these data: what the tensor "
        "start found rests on the other starts of its search as much as on them."
    )


def _of(reached: int, total: int) -> str:
    return f"{reached} of {_count(total, 'random start')}"


def _count(number: float, noun: str) -> str:
    return f"{number:.0f} {noun}{'' if number == 1 else 's'}"


FEW_STARTS = 10
"""Fewer random starts say little: if none of 9 reaches an optimum the share may still be a quarter
(Jeffreys' interval ends at .24), so that 17 starts would do."""

_NOTABLE_SHARE = 0.01
"""Share of a chain's draws with other labels than most that is worth a word."""


def collect_caveats(
    trees: Mapping[str, "xarray.DataTree"],
    figures: Mapping[str, MethodFigures],
    rows: ComparedRows,
    dropped_priors: Sequence[str],
) -> tuple[str, ...]:
    """Say what limits a comparison."""
    found: list[str] = []
    for method in (TENSOR_NUTS, DEFAULT_NUTS):
        if method in trees:
            found += _on_chains(method, trees[method], figures[method])
    found += _on_starts(figures)
    for method, own in figures.items():
        found += _on_loo(method, own)
    if rows.has_unequal_weights:
        found.append(_on_weights(has_groups=rows.checked.groups is not None))
    if dropped_priors:
        found.append(
            f"default NUTS has free coefficients: the priors of {', '.join(dropped_priors)} have "
            "no part in it."
        )
    return tuple(found)


def _on_chains(method: str, tree: "xarray.DataTree", figures: MethodFigures) -> list[str]:
    """R-hat, divergences, labels and modes of a sampler's chains."""
    found = []
    rhat, divergences = figures.convergence.rhat_max, figures.convergence.divergences
    if rhat > LARGEST_RHAT:
        found.append(
            f"{method}: the largest R-hat is {rhat:.3f}, above {LARGEST_RHAT}: chains have not "
            "met. Sample longer, or look at them one by one."
        )
    if divergences > 0:
        found.append(
            f"{method}: {divergences:.0f} divergent transitions: the posterior may be wrong near "
            "them. Raise `target_accept`."
        )
    switched = float(tree["moment_init"]["switched_share"].max())
    if switched > _NOTABLE_SHARE:
        found.append(
            f"{method}: components traded labels in {switched:.0%} of a chain's draws; they were "
            "matched to the tensor start draw by draw."
        )
    values = np.array([run.log_likelihood for run in figures.runs])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) > SAME_OPTIMUM:
        found.append(
            f"{method}: chains lead to different optima, of log-likelihood {values.min():,.2f} to "
            f"{values.max():,.2f}: their pooled draws stand for none of them."
        )
    return found


def _on_starts(figures: Mapping[str, MethodFigures]) -> list[str]:
    """Starts that are few, broke down, did not converge, or have singular information."""
    runs = figures[RANDOM_EM].runs
    found = []
    if len(runs) < FEW_STARTS:
        found.append(
            f"random EM: {len(runs)} starts say little about the share that reaches an optimum. "
            f"Run `n_starts` of {FEW_STARTS} or more."
        )
    failed = [run for run in runs if run.status == FAILED]
    if failed:
        found.append(
            f"random EM: {len(failed)} of {len(runs)} starts broke down, the first with: "
            f"{failed[0].message}"
        )
    unfinished = sum(run.fit is not None and not run.fit.converged for run in runs)
    if unfinished:
        found.append(
            f"random EM: {unfinished} of {len(runs)} starts did not converge; they have no draws."
        )
    tensor = figures[TENSOR_EM].runs[0].fit
    if tensor is not None:
        found += [f"tensor EM: {warning}" for warning in tensor.warnings]
    singular = sum(run.fit is not None and bool(run.fit.laplace.undetermined.any()) for run in runs)
    if singular:
        found.append(
            f"random EM: the information is singular at the ends of {singular} of {len(runs)} "
            "starts; their draws come from its positive part and are too narrow."
        )
    return found


def _on_loo(method: str, figures: MethodFigures) -> list[str]:
    score = figures.loo
    found = []
    if score.message:
        found.append(f"{method}: leave-one-out could not be computed: {score.message}.")
    if score.n_dropped:
        found.append(
            f"{method}: {score.n_dropped} Laplace draws, under which the data are impossible, have "
            "no weight in leave-one-out."
        )
    if score.elpd is not None and score.columns["pareto_k_bad"] > 0:
        n_bad = int(np.sum(np.asarray(score.elpd.pareto_k) > score.elpd.good_k))
        meaning = (
            "their parts of its elpd by LOO are not reliable, but they are few"
            if score.is_reliable
            else "its elpd by LOO is not reliable. Rows held out do not have this problem"
        )
        found.append(
            f"{method}: Pareto k is above {score.elpd.good_k:.2f} for {n_bad} of "
            f"{score.elpd.n_data_points} left out, at most {score.columns['pareto_k_max']:.2f}: "
            f"{meaning}."
        )
    return found


def _on_weights(*, has_groups: bool) -> str:
    if has_groups:
        return (
            "Sample weights differ: leave-one-out leaves out a group with all its rows, each "
            "counted as often as its weight says."
        )
    return (
        "Sample weights differ: leave-one-out leaves out one copy of a row while its other copies "
        "stay, and counts every row once; the score of held-out rows counts each by its weight."
    )
