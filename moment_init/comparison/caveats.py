"""What limits a comparison, a sentence each."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from moment_init.comparison.convergence import LARGEST_RHAT
from moment_init.comparison.em_runs import FAILED
from moment_init.comparison.result import DEFAULT_NUTS, RANDOM_EM, TENSOR_EM, TENSOR_NUTS
from moment_init.comparison.rows import ComparedRows
from moment_init.comparison.tabulation import MethodFigures
from moment_init.em.start_records import SAME_OPTIMUM

if TYPE_CHECKING:
    import xarray

__all__ = ["FEW_STARTS", "collect_caveats"]

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
    """Say what limits a comparison.

    Parameters
    ----------
    trees : mapping of str to xarray.DataTree
        Draws by method.
    figures : mapping of str to MethodFigures
        Figures by method.
    rows : ComparedRows
        The rows that were fitted.
    dropped_priors : sequence of str
        Priors of the user's that default NUTS does not have.

    Returns
    -------
    tuple of str
        The sentences; empty if nothing does.
    """
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
