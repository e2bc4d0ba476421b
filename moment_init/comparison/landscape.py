"""The optima that starts and chains lead to.

The table of a comparison: a row a method, a column a figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from moment_init.comparison.runs import EMRun
from moment_init.comparison.scoring import Convergence, HeldOutScore, LooScore
from moment_init.em.result import EMFit
from moment_init.results import SAME_OPTIMUM

if TYPE_CHECKING:
    import pandas

SAME_MEMBERSHIP = 0.01
"""Mean distance of two fits' probabilities of components below which they are one optimum. Runs
stop when a step would gain 1e-6 in log-likelihood, some thousandth of a standard error from their
maximum, which moves probabilities by less than that."""


def best_log_likelihood(runs: Mapping[str, Sequence[EMRun]]) -> float:
    """Highest log-likelihood that any start of any method led to."""
    return float(np.nanmax([run.log_likelihood for own in runs.values() for run in own]))


def share_at_best(runs: Sequence[EMRun], best: float) -> float:
    """Share of starts that led to the best optimum found."""
    return float(np.mean([is_at_best(run, best) for run in runs])) if runs else np.nan


def is_at_best(run: EMRun, best: float) -> bool:
    """Whether a run reached the highest log-likelihood found."""
    return bool(run.log_likelihood > best - SAME_OPTIMUM)


def membership_distance(first: EMFit, second: EMFit) -> float:
    """How differently two fits assign the same rows to components."""
    theirs = second.responsibilities
    costs = np.array(
        [np.abs(own[:, None] - theirs).sum(axis=0) for own in first.responsibilities.T]
    )
    matched = linear_sum_assignment(costs)
    return float(costs[matched].sum()) / (2.0 * len(theirs))


def tabulate_landscape(
    runs: Mapping[str, Sequence[EMRun]], typical: EMRun | None
) -> "pandas.DataFrame":
    """Put all optima into a table."""
    import pandas

    best = best_log_likelihood(runs)
    records = [
        {
            "method": method,
            "start": run.start,
            "log_likelihood": run.log_likelihood,
            "is_best": is_at_best(run, best),
            "seconds": run.seconds,
            "status": run.status,
            "is_typical": run is typical,
            "bounds": "" if run.fit is None else ", ".join(run.fit.bounds),
            "message": run.message,
        }
        for method, own in runs.items()
        for run in own
    ]
    return pandas.DataFrame(records)


COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "log_likelihood": "best maximum of the likelihood that starts, or chains, lead to",
        "share_at_best": "share of them that lead to the best maximum found by any method; none "
        "for the best of several starts, which was chosen for it",
        "n_starts": "number of starts, or chains",
        "elpd_loo": "log predictive density by leaving out one row, or group, at a time",
        "elpd_se": "its standard error",
        "p_loo": "effective number of parameters",
        "pareto_k_max": "largest Pareto k: how far the row is from the draws without it",
        "pareto_k_bad": "share of Pareto k above the threshold for the number of draws",
        "elpd_held_out": "log predictive density of the rows that were held out",
        "elpd_held_out_se": "its standard error",
        "rhat_max": "largest R-hat of a parameter; for random EM across starts, labels matched",
        "ess_bulk_min": "smallest effective sample size of a parameter",
        "ess_per_second": "the same over all seconds",
        "divergences": "divergent transitions of the sampler",
        "error": "root mean square error of the coefficients against the truth, labels matched",
        "error_angle": "largest angle of a component's coefficients to the true ones, in degrees",
        "seconds": "time of all starts or chains, with the compilation and the search for a start",
    }
)
"""Columns of the table and what they mean."""


@dataclass(frozen=True, slots=True, eq=False)
class MethodFigures:
    """Figures of one method."""

    runs: Sequence[EMRun]  # optima that its starts or chains led to
    seconds: float  # how long all of it took
    loo: LooScore = field(default_factory=lambda: LooScore(None))  # leave-one-out score
    held_out: HeldOutScore = field(default_factory=HeldOutScore)  # score of the rows held out
    # error of the coefficients and largest angle; NaN without a truth
    errors: tuple[float, float] = (np.nan, np.nan)
    convergence: Convergence = field(default_factory=Convergence)  # agreement and mixing of chains
    # whether its run is the best of several: that it is at the best is no share of anything
    is_chosen: bool = False

    def row(self, best: float) -> dict[str, float]:
        """Figures by column."""
        values = [run.log_likelihood for run in self.runs]
        mixing = self.convergence
        row = {
            "log_likelihood": max((x for x in values if not np.isnan(x)), default=np.nan),
            "share_at_best": np.nan if self.is_chosen else share_at_best(self.runs, best),
            "n_starts": len(self.runs),
            **self.loo.columns,
            "elpd_held_out": self.held_out.elpd,
            "elpd_held_out_se": self.held_out.se,
            "rhat_max": mixing.rhat_max,
            "ess_bulk_min": mixing.ess_bulk_min,
            "ess_per_second": mixing.ess_bulk_min / self.seconds,
            "divergences": mixing.divergences,
            "error": self.errors[0],
            "error_angle": self.errors[1],
            "seconds": self.seconds,
        }
        return {name: row[name] for name in COLUMNS}


def tabulate(figures: Mapping[str, MethodFigures]) -> "pandas.DataFrame":
    """Put the figures of all methods into a table."""
    import pandas

    best = best_log_likelihood({name: own.runs for name, own in figures.items()})
    rows = {name: own.row(best) for name, own in figures.items()}
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS))
    return table.rename_axis("method").astype({"n_starts": "int64"})
