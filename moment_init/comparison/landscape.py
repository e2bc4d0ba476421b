"""The optima that starts and chains lead to, and the table of a comparison.

The landscape has one row per start or chain; the table has one row per method and one column per
figure.
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
"""Mean distance between the responsibilities of two fits below which they are the same optimum.
Runs stop when a step would gain less than 1e-6 in log-likelihood, about a thousandth of a standard
error from the maximum, which moves responsibilities by less than this."""


def best_log_likelihood(runs: Mapping[str, Sequence[EMRun]]) -> float:
    """Return the highest log-likelihood that any start of any method led to."""
    return float(
        np.nanmax([run.log_likelihood for method_runs in runs.values() for run in method_runs])
    )


def share_at_best(runs: Sequence[EMRun], best: float) -> float:
    """Compute the share of starts that led to the best optimum found."""
    return float(np.mean([is_at_best(run, best) for run in runs])) if runs else np.nan


def is_at_best(run: EMRun, best: float) -> bool:
    """Tell whether a run reached the highest log-likelihood found."""
    return bool(run.log_likelihood > best - SAME_OPTIMUM)


def membership_distance(first: EMFit, second: EMFit) -> float:
    """Compute the mean distance between the responsibilities of two fits, labels matched."""
    others = second.responsibilities
    costs = np.array(
        [np.abs(column[:, None] - others).sum(axis=0) for column in first.responsibilities.T]
    )
    matched = linear_sum_assignment(costs)
    return float(costs[matched].sum()) / (2.0 * len(others))


def tabulate_landscape(
    runs: Mapping[str, Sequence[EMRun]], typical: EMRun | None
) -> "pandas.DataFrame":
    """Tabulate the optima, one row per start or chain."""
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
        for method, method_runs in runs.items()
        for run in method_runs
    ]
    return pandas.DataFrame(records)


COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "log_likelihood": "highest log-likelihood that the starts or chains led to",
        "share_at_best": "share of starts or chains that led to the best optimum found by any "
        "method; empty for the best of several starts, which was chosen for it",
        "n_starts": "number of starts or chains",
        "elpd_loo": "log predictive density, leaving out one row (or group) at a time",
        "elpd_se": "standard error of the LOO score",
        "p_loo": "effective number of parameters",
        "pareto_k_max": "largest Pareto k: how unreliable the score of a single row is",
        "pareto_k_bad": "share of Pareto k values above the threshold for this number of draws",
        "elpd_held_out": "log predictive density of the held-out rows",
        "elpd_held_out_se": "standard error of the held-out score",
        "rhat_max": "largest R-hat of a parameter (for random EM across starts, labels matched)",
        "ess_bulk_min": "smallest bulk effective sample size of a parameter",
        "ess_per_second": "smallest effective sample size per second of the total time",
        "divergences": "number of divergent transitions of the sampler",
        "error": "root mean square error of the coefficients, with labels matched to the truth",
        "error_angle": "largest angle between estimated and true coefficients, in degrees",
        "seconds": "time of all starts or chains, including compilation and the search for a start",
    }
)
"""Columns of the table and their meanings."""


@dataclass(frozen=True, slots=True, eq=False)
class MethodFigures:
    """Figures of one method."""

    runs: Sequence[EMRun]  # optima that its starts or chains led to
    seconds: float  # total time of the method
    loo: LooScore = field(default_factory=lambda: LooScore(None))  # leave-one-out score
    held_out: HeldOutScore = field(default_factory=HeldOutScore)  # score of the held-out rows
    # RMSE of the coefficients and largest angle to the true ones; NaN without a truth
    errors: tuple[float, float] = (np.nan, np.nan)
    convergence: Convergence = field(default_factory=Convergence)  # agreement and mixing of chains
    # whether the run was selected as the best of several; its share at the best optimum is then
    # undefined
    is_chosen: bool = False

    def row(self, best: float) -> dict[str, float]:
        """Return the figures by column."""
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
    """Tabulate the figures, one row per method."""
    import pandas

    best = best_log_likelihood({name: scored.runs for name, scored in figures.items()})
    rows = {name: scored.row(best) for name, scored in figures.items()}
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS))
    return table.rename_axis("method").astype({"n_starts": "int64"})
