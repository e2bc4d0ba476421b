"""How well draws predict: leave-one-out on the rows that were fitted, and rows held out."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from moment_init.comparison.rows import ComparedRows
from moment_init.notices import changed_filters
from moment_init.predictive import PosteriorDraws, draw_log_likelihoods

if TYPE_CHECKING:
    import pandas
    import xarray

__all__ = [
    "HeldOutScore",
    "LooScore",
    "ScoreDifference",
    "compare_loo",
    "score_held_out",
    "score_loo",
]

FloatArray = NDArray[np.float64]

_TRUSTED_SHARE = 0.01
"""Share of Pareto k that may be too large. Errors of single rows do little to a sum of hundreds;
where draws are far from the posterior, as those of a poor normal approximation, nearly all are."""

_CLEAR, _SMALL = 2.0, 4.0
"""Standard errors that a difference of scores must exceed to be called one, and a difference below
which the standard error itself is not to be trusted: that of ``arviz.compare``."""


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """How much better one method predicts than another.

    Parameters
    ----------
    value, error : float
        Difference of the log predictive densities and its standard error.
    """

    value: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether it is more than noise: above 4, and above two standard errors."""
        return abs(self.value) > max(_SMALL, _CLEAR * self.error)


@dataclass(frozen=True, slots=True, eq=False)
class LooScore:
    """Leave-one-out score of a method.

    Parameters
    ----------
    elpd : arviz_stats.ELPDData or None
        What ArviZ returns, pointwise; None if it could not be computed.
    message : str
        Why it could not.
    n_dropped : int
        Draws of density zero, which have no weight and were left out.
    """

    elpd: Any
    message: str = ""
    n_dropped: int = 0

    @property
    def columns(self) -> dict[str, float]:
        """Figures for the table; NaN if there are none."""
        names = ("elpd_loo", "elpd_se", "p_loo", "pareto_k_max", "pareto_k_bad")
        if self.elpd is None:
            return dict.fromkeys(names, np.nan)
        shapes = np.asarray(self.elpd.pareto_k)
        largest = float(np.nanmax(shapes)) if np.isfinite(shapes).any() else np.nan
        bad = float(np.mean(shapes > self.elpd.good_k))
        values = (float(self.elpd.elpd), float(self.elpd.se), float(self.elpd.p), largest, bad)
        return dict(zip(names, values, strict=True))

    @property
    def is_reliable(self) -> bool:
        """Whether there is a score with no more than one in a hundred Pareto k too large."""
        return self.elpd is not None and self.columns["pareto_k_bad"] <= _TRUSTED_SHARE

    def less(self, other: "LooScore") -> ScoreDifference | None:
        """Difference from another score of the same rows.

        Parameters
        ----------
        other : LooScore
            Score of the other method.

        Returns
        -------
        ScoreDifference or None
            How much higher this one is; None if one of the two is missing or not reliable.
        """
        if not (self.is_reliable and other.is_reliable):
            return None
        each = np.ravel(self.elpd.elpd_i) - np.ravel(other.elpd.elpd_i)
        return ScoreDifference(*_weighted_sum(each, np.ones(len(each))))


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutScore:
    """Log predictive density of rows that were held out.

    Parameters
    ----------
    values : numpy.ndarray, shape (n_units,), or None
        That of each row, or group; None without such rows.
    weights : numpy.ndarray, shape (n_units,), or None
        How often each counts.
    """

    values: FloatArray | None = None
    weights: FloatArray | None = None

    @property
    def elpd(self) -> float:
        """Sum over the rows, or groups; NaN without such rows."""
        return self._sum[0]

    @property
    def se(self) -> float:
        """Its standard error."""
        return self._sum[1]

    @property
    def _sum(self) -> tuple[float, float]:
        if self.values is None or self.weights is None:
            return np.nan, np.nan
        return _weighted_sum(self.values, self.weights)

    def less(self, other: "HeldOutScore") -> ScoreDifference | None:
        """Difference from another score of the same rows.

        Parameters
        ----------
        other : HeldOutScore
            Score of the other method.

        Returns
        -------
        ScoreDifference or None
            How much higher this one is; None without such rows, and if a row is impossible under
            one of the methods.
        """
        if self.values is None or other.values is None or not np.isfinite(self.elpd + other.elpd):
            return None
        return ScoreDifference(*HeldOutScore(self.values - other.values, self.weights)._sum)


def score_loo(tree: "xarray.DataTree") -> LooScore:
    """Score a method by leaving out one row, or group, at a time.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws with ``log_likelihood``. If ``sample_stats`` has the density ``log_q`` from which they
        were drawn, they are draws of an approximation and are weighted by ``exp(lp - log_q)``.

    Returns
    -------
    LooScore
        The score.
    """
    import arviz as az

    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    is_approximate = "log_q" in stats
    n_dropped = 0
    if is_approximate:
        tree, n_dropped = _of_positive_density(tree)
        stats = tree["sample_stats"].to_dataset()
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # large Pareto k are counted and said in words
        try:
            if is_approximate:
                elpd = az.loo_approximate_posterior(
                    tree, log_p=stats["lp"], log_q=stats["log_q"], pointwise=True, var_name="y"
                )
            else:
                reff = _relative_efficiency(tree)
                elpd = az.loo(tree, pointwise=True, var_name="y", reff=reff)
        except (ValueError, IndexError) as error:  # too few draws, or draws that do not vary
            return LooScore(None, str(error), n_dropped)
    if not np.isfinite(elpd.elpd):
        return LooScore(None, f"the elpd is {elpd.elpd}", n_dropped)
    return LooScore(elpd, "", n_dropped)


def _of_positive_density(tree: "xarray.DataTree") -> tuple["xarray.DataTree", int]:
    """One chain without draws under which the data are impossible, and how many these were."""
    import xarray

    stats = tree["sample_stats"].to_dataset()
    is_possible = np.isfinite(stats["lp"].values[0])
    if is_possible.all():
        return tree, 0
    kept = np.flatnonzero(is_possible)
    names = ("posterior", "sample_stats", "log_likelihood")
    groups = {name: tree[name].to_dataset().isel(draw=kept) for name in names}
    return xarray.DataTree.from_dict(groups), int((~is_possible).sum())


def _relative_efficiency(tree: "xarray.DataTree") -> float:
    """Mean effective share of the draws, as `arviz.loo` takes it, but for what does not vary."""
    import arviz as az

    posterior = tree["posterior"].to_dataset()
    if posterior.sizes["chain"] == 1:
        return 1.0
    sizes = az.ess(tree, method="mean")
    values = np.hstack([np.ravel(sizes[name].values) for name in sizes.data_vars])
    values = values[np.isfinite(values)]
    n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    return float(values.mean()) / n_draws if values.size else 1.0


def score_held_out(tree: "xarray.DataTree", rows: ComparedRows | None) -> HeldOutScore:
    r"""Log predictive density of rows that were not fitted.

    .. math:: \sum_i c_i \log \frac{1}{S} \sum_s p(y_i \mid \theta_s)

    over rows with sample weights c, or over groups, whose rows are weighted inside.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws of one method and one optimum.
    rows : ComparedRows or None
        The rows.

    Returns
    -------
    HeldOutScore
        The sum and its standard error.
    """
    if rows is None:
        return HeldOutScore()
    draws = PosteriorDraws.of(tree["posterior"].to_dataset())
    values = draw_log_likelihoods(draws, rows.checked, rows.gating)
    with np.errstate(all="ignore"):  # a row may be impossible under all draws
        each = np.asarray(logsumexp(values, axis=0)) - np.log(draws.n_draws)
    return HeldOutScore(each, rows.unit_weights)


def _weighted_sum(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Sum and its standard error, for weights that count units; NaN for a single one."""
    total = float(weights.sum())
    mean = float(weights @ values) / total
    with np.errstate(all="ignore"):  # the mean of scores may be -inf
        squares = float(weights @ np.square(values - mean))
    variance = squares / (total - 1.0) if total > 1.0 else np.nan
    return total * mean, float(np.sqrt(total * variance))


def compare_loo(scores: Mapping[str, LooScore]) -> "pandas.DataFrame":
    """Compare methods by leave-one-out.

    Parameters
    ----------
    scores : mapping of str to LooScore
        Scores by method; those that could not be computed are left out.

    Returns
    -------
    pandas.DataFrame
        What ``arviz.compare`` returns, without rounding, and ``is_reliable``; empty if there is
        nothing to compare.

    Notes
    -----
    Large Pareto k make scores too high. Methods of which more than one in a hundred are too large
    come last, differences are from the best of the others, and these alone share the weight; if
    all methods are such, they are compared as they are.
    """
    import pandas

    found = {name: score.elpd for name, score in scores.items() if score.elpd is not None}
    if not found:
        columns = ["rank", "elpd_diff", "dse", "p_worse", "diag_diff", "diag_elpd"]
        return pandas.DataFrame(columns=[*columns, "p", "elpd", "se", "weight", "is_reliable"])
    reliable = {name: elpd for name, elpd in found.items() if scores[name].is_reliable} or found
    own = _arviz_compare(reliable, None)
    table = _arviz_compare(found, str(own.index[0])) if len(reliable) < len(found) else own
    table["weight"] = own["weight"].reindex(table.index, fill_value=0.0)
    table["is_reliable"] = [scores[str(name)].is_reliable for name in table.index]
    table = table.sort_values(["is_reliable", "elpd"], ascending=False)
    table["rank"] = np.arange(len(table))
    return table.rename_axis("method")


def _arviz_compare(scores: Mapping[str, Any], reference: str | None) -> "pandas.DataFrame":
    """What ``arviz.compare`` returns, with one name of columns for any reference."""
    import arviz as az

    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # weights of rows whose density underflows
        table: pandas.DataFrame = az.compare(dict(scores), reference=reference, round_to="none")
    if reference is not None:
        table = table.rename(columns={"p_better": "p_worse"})
        table["p_worse"] = 1.0 - table["p_worse"]
    return table
