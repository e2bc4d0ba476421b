"""The figures of a method: optima, convergence, prediction, and distance from the truth.

The landscape has one row per start or chain, with the optimum that it led to. The table has one row
per method and one column per figure.

Convergence is R-hat, effective sample size and divergences. Prediction is the leave-one-out score
of the fitted rows and the log predictive density of the held-out rows. The truth holds the
parameters of simulated data, if they are known.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from moment_init.checks import FloatArray, as_float_array, changed_filters
from moment_init.comparison.runs import ComparedRows, EMRun
from moment_init.data.simulation import MixtureData
from moment_init.em.result import EMFit
from moment_init.likelihood.parameters import angles_in_degrees
from moment_init.posterior.draws import log_likelihood_group
from moment_init.results import SAME_OPTIMUM

if TYPE_CHECKING:
    import pandas
    import xarray

LARGEST_RHAT = 1.01
"""R-hat above which chains have not converged (Vehtari et al., 2021, Bayesian Analysis 16)."""

_PARAMETERS = ("coefficient", "bias", "weight", "dispersion", "gate", "gate_bias")
"""Variables whose convergence is assessed: scales and directions follow from coefficients."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """Agreement and mixing of chains."""

    rhat_max: float = np.nan  # largest R-hat of a parameter
    ess_bulk_min: float = np.nan  # smallest bulk effective sample size of a parameter
    divergences: float = np.nan  # number of divergent transitions; NaN if unknown


def assess_convergence(tree: "xarray.DataTree") -> Convergence:
    """Compute the diagnostics of a sampler's chains."""
    import arviz as az

    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    divergences = float(stats["diverging"].sum()) if "diverging" in stats else np.nan
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # from parameters that do not vary
        sizes = _varying(az.ess(_parameters(tree), method="bulk"), tree)
    smallest = float(sizes.min()) if sizes.size else np.nan
    return Convergence(largest_rhat(tree), smallest, divergences)


def largest_rhat(tree: "xarray.DataTree") -> float:
    """Return the largest rank-normalised R-hat of a parameter."""
    values = find_rhat(tree)
    return float(values.max()) if values.size else np.nan


def find_rhat(tree: "xarray.DataTree") -> FloatArray:
    """Compute the rank-normalised R-hat of every parameter that varies."""
    # -> (n_parameters,)
    import arviz as az

    if tree["posterior"].sizes["chain"] < 2:
        return np.empty(0)
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # from parameters that do not vary
        rhat = az.rhat(_parameters(tree))
    values = np.hstack([np.ravel(rhat[name].values) for name in rhat.data_vars])
    return np.asarray(values[~np.isnan(values)])


def _parameters(tree: "xarray.DataTree") -> "xarray.Dataset":
    posterior = tree["posterior"].to_dataset()
    return posterior[[name for name in _PARAMETERS if name in posterior]]


def _varying(values: "xarray.Dataset", tree: "xarray.DataTree") -> FloatArray:
    """Select the sizes of parameters that vary: ArviZ returns the number of draws for constants."""
    posterior = _parameters(tree)
    kept = []
    for name in values.data_vars:
        spread = posterior[name].max(("chain", "draw")) > posterior[name].min(("chain", "draw"))
        sizes = values[name].transpose(*spread.dims).values
        kept.append(sizes[spread.values & np.isfinite(sizes)])
    return np.hstack(kept)


_TRUSTED_SHARE = 0.01
"""Share of Pareto k values that may be too large. Errors of single rows change a sum of hundreds
little; if draws are far from the posterior, as for a poor normal approximation, nearly all values
are too large."""

_CLEAR, _SMALL = 2.0, 4.0
"""Standard errors that a clear difference of scores exceeds, and the difference below which the
standard error itself is not reliable, as in ``arviz.compare``."""


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """The difference between the predictive scores of two methods."""

    value: float  # difference of the log predictive densities
    error: float  # standard error of the difference

    @property
    def is_clear(self) -> bool:
        """Whether the difference is above 4 and above two standard errors."""
        return abs(self.value) > max(_SMALL, _CLEAR * self.error)


@dataclass(frozen=True, slots=True, eq=False)
class LooScore:
    """The leave-one-out score of a method."""

    elpd: Any  # pointwise result of ArviZ; None if it could not be computed
    message: str = ""  # why it could not be computed
    n_dropped: int = 0  # draws that give the data density zero and were left out

    @property
    def columns(self) -> dict[str, float]:
        """Figures for the table; NaN without a score."""
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
        """Whether there is a score and at most 1 % of Pareto k values are too large."""
        return self.elpd is not None and self.columns["pareto_k_bad"] <= _TRUSTED_SHARE

    def less(self, other: "LooScore") -> ScoreDifference | None:
        """Subtract another score of the same rows; None if either is not reliable."""
        if not (self.is_reliable and other.is_reliable):
            return None
        pointwise = np.ravel(self.elpd.elpd_i) - np.ravel(other.elpd.elpd_i)
        return ScoreDifference(*_weighted_sum(pointwise, np.ones(len(pointwise))))


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutScore:
    """The log predictive density of the held-out rows."""

    # log predictive density of each row, or group; None without held-out rows; (n_units,)
    values: FloatArray | None = None
    weights: FloatArray | None = None  # weights of the rows, or groups; (n_units,)

    @property
    def elpd(self) -> float:
        """Sum over rows, or groups; NaN without held-out rows."""
        return self._sum[0]

    @property
    def se(self) -> float:
        """Standard error of the sum."""
        return self._sum[1]

    @property
    def _sum(self) -> tuple[float, float]:
        if self.values is None or self.weights is None:
            return np.nan, np.nan
        return _weighted_sum(self.values, self.weights)

    def less(self, other: "HeldOutScore") -> ScoreDifference | None:
        """Subtract another score of the same rows; None if either is missing or not finite."""
        if self.values is None or other.values is None or not np.isfinite(self.elpd + other.elpd):
            return None
        return ScoreDifference(*HeldOutScore(self.values - other.values, self.weights)._sum)


def score_loo(tree: "xarray.DataTree") -> LooScore:
    """Score a method by leaving out one row, or group, at a time."""
    import arviz as az

    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    is_approximate = "log_q" in stats
    n_dropped = 0
    if is_approximate:
        tree, n_dropped = _of_positive_density(tree)
        stats = tree["sample_stats"].to_dataset()
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a caveat reports large Pareto k values
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
    """Remove draws under which the data are impossible from one chain, and count them."""
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
    """Compute the mean relative efficiency as in `arviz.loo`, without constant parameters."""
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
    r"""Compute the log predictive density of held-out rows.

    .. math:: \sum_i c_i \log \frac{1}{S} \sum_s p(y_i \mid \theta_s)

    The sum is over rows with sample weights c, or over groups, whose rows are weighted inside.
    """
    if rows is None:
        return HeldOutScore()
    values = log_likelihood_group(tree["posterior"].to_dataset(), rows.checked)["y"].to_numpy()
    with np.errstate(all="ignore"):  # a row may be impossible under all draws
        totals = np.asarray(logsumexp(values, axis=(0, 1)))
        densities = totals - np.log(values.shape[0] * values.shape[1])
    return HeldOutScore(densities, rows.unit_weights)


def _weighted_sum(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Compute a sum with frequency weights, and its standard error; NaN for a single unit."""
    total = float(weights.sum())
    mean = float(weights @ values) / total
    with np.errstate(all="ignore"):  # the mean of scores may be -inf
        squares = float(weights @ np.square(values - mean))
    variance = squares / (total - 1.0) if total > 1.0 else np.nan
    return total * mean, float(np.sqrt(total * variance))


def compare_loo(scores: Mapping[str, LooScore]) -> "pandas.DataFrame":
    """Compare methods by leave-one-out.

    Large Pareto k values make scores too high. Methods with too many of them are not reliable: they
    come last, with weight zero, and differences are taken from the best of the other methods. If no
    method is reliable, all are compared as they are.
    """
    import pandas

    computed = {name: score.elpd for name, score in scores.items() if score.elpd is not None}
    if not computed:
        columns = ["rank", "elpd_diff", "dse", "p_worse", "diag_diff", "diag_elpd"]
        return pandas.DataFrame(columns=[*columns, "p", "elpd", "se", "weight", "is_reliable"])
    reliable = {
        name: elpd for name, elpd in computed.items() if scores[name].is_reliable
    } or computed
    ranked = _arviz_compare(reliable, None)
    table = (
        _arviz_compare(computed, str(ranked.index[0])) if len(reliable) < len(computed) else ranked
    )
    table["weight"] = ranked["weight"].reindex(table.index, fill_value=0.0)
    table["is_reliable"] = [scores[str(name)].is_reliable for name in table.index]
    table = table.sort_values(["is_reliable", "elpd"], ascending=False)
    table["rank"] = np.arange(len(table))
    return table.rename_axis("method")


def _arviz_compare(scores: Mapping[str, Any], reference: str | None) -> "pandas.DataFrame":
    """Call ``arviz.compare``; the columns have the same names with and without a reference."""
    import arviz as az

    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # from weights of rows whose density underflows
        table: pandas.DataFrame = az.compare(dict(scores), reference=reference, round_to="none")
    if reference is not None:
        table = table.rename(columns={"p_better": "p_worse"})
        table["p_worse"] = 1.0 - table["p_worse"]
    return table


IndexArray = NDArray[np.intp]

_REQUIRED = ("coefficients", "biases", "weights")
_OPTIONAL = ("dispersion",)

_WEIGHT_TOLERANCE = 1e-6
"""Tolerance of the sum of the true weights, which may be rounded to six places."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The true parameters."""

    coefficients: FloatArray  # coefficients of the user's columns; (n_features, n_components)
    biases: FloatArray  # biases of the components; (n_components,)
    weights: FloatArray  # probabilities of the components; (n_components,)
    dispersion: FloatArray | None  # dispersions, if the family has them; (n_components,)

    def to_dataset(self, order: IndexArray, feature_names: tuple[str, ...]) -> "xarray.Dataset":
        """Write the parameters under the variable names of the posterior."""
        # order: (n_components,)
        import xarray

        coefficient = self.coefficients[:, order]
        scale = np.linalg.norm(coefficient, axis=0)
        direction = np.divide(coefficient, scale, out=np.zeros_like(coefficient), where=scale > 0)
        variables: dict[str, Any] = {
            "coefficient": (("feature", "component"), coefficient),
            "direction": (("feature", "component"), direction),
            "scale": ("component", scale),
            "bias": ("component", self.biases[order]),
            "weight": ("component", self.weights[order]),
        }
        if self.dispersion is not None:
            variables["dispersion"] = ("component", self.dispersion[order])
        coords = {"feature": list(feature_names), "component": np.arange(len(order))}
        return xarray.Dataset(variables, coords)


def read_truth(truth: Any, n_features: int, n_components: int) -> Truth | None:
    """Check `truth` and read its parameters."""
    if truth is None:
        return None
    values = _named_values(truth)
    shapes: dict[str, tuple[int, ...]] = {
        "coefficients": (n_features, n_components),
        **dict.fromkeys(("biases", "weights", "dispersion"), (n_components,)),
    }
    arrays = {
        name: _checked(name, values[name], shapes[name])
        for name in shapes
        if values.get(name) is not None
    }
    weights = arrays["weights"]
    if weights.min() < 0.0 or abs(float(weights.sum()) - 1.0) > _WEIGHT_TOLERANCE:
        raise ValueError(
            "`truth` must have weights of zero or more that sum to one; got "
            f"{weights.tolist()}. Divide them by their sum."
        )
    return Truth(arrays["coefficients"], arrays["biases"], weights, arrays.get("dispersion"))


def _named_values(truth: Any) -> dict[str, Any]:
    if isinstance(truth, MixtureData):
        return {name: getattr(truth, name) for name in (*_REQUIRED, *_OPTIONAL)}
    expected = "a MixtureData or a mapping with coefficients, biases, weights (and dispersion)"
    if not isinstance(truth, Mapping):
        raise TypeError(
            f"`truth` must be {expected}; got {type(truth).__name__}. Pass one of these, or None."
        )
    missing = [name for name in _REQUIRED if truth.get(name) is None]
    unknown = [str(name) for name in truth if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        raise ValueError(
            f"`truth` must be {expected}; missing are {missing}, unknown are {unknown}. Use these "
            "names."
        )
    return dict(truth)


def _checked(name: str, values: Any, shape: tuple[int, ...]) -> FloatArray:
    try:
        array = np.array(as_float_array(values, "truth"))
    except (TypeError, ValueError) as error:
        raise TypeError(f"`truth` must have {name} of real numbers; got {values!r}.") from error
    if array.shape != shape or not np.all(np.isfinite(array)):
        raise ValueError(
            f"`truth` must have finite {name} of shape {shape}; got shape {array.shape}. "
            "Components are on the last axis, features in the order of the columns of `X`."
        )
    return array


def match_to_truth(
    coefficients: FloatArray, biases: FloatArray, truth: Truth, rows: ComparedRows
) -> IndexArray:
    """Match true components to estimated ones.

    The distance between two components is the mean squared difference of their linear predictors
    over the rows. It does not depend on the units of the features, and it separates components
    that differ in their bias only.
    """
    # coefficients: (n_features, n_components), biases: (n_components,) -> (n_components,)
    inputs = np.asarray(rows.checked.X, dtype=np.float64)
    estimated = inputs @ coefficients + biases
    true = inputs @ truth.coefficients + truth.biases
    distances = [np.square(true - column[:, None]).mean(axis=0) for column in estimated.T]
    _, order = linear_sum_assignment(np.array(distances))
    return np.asarray(order, dtype=np.intp)


def errors_of(
    tree: "xarray.DataTree", truth: Truth | None, rows: ComparedRows
) -> tuple[float, float]:
    """Compute the RMSE of posterior mean coefficients and their largest angle to the truth."""
    if truth is None:
        return np.nan, np.nan
    means = tree["posterior"].to_dataset()[["coefficient", "bias"]].mean(("chain", "draw"))
    coefficients = means["coefficient"].transpose("feature", "component").values
    order = match_to_truth(coefficients, means["bias"].values, truth, rows)
    true = truth.coefficients[:, order]
    error = float(np.sqrt(np.square(coefficients - true).mean()))
    angles = [
        float(angles_in_degrees(estimate[:, None], other[:, None], signed=True)[0])
        for estimate, other in zip(coefficients.T, true.T, strict=True)
        if np.any(estimate) and np.any(other)  # zero coefficients have no direction
    ]
    return error, max(angles, default=np.nan)


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
