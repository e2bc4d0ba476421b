"""The figures of a method: optima, convergence, prediction, and distance from the truth.

The landscape has one row per start or chain, with the optimum that it led to. The table has one row
per method and one column per figure.

Convergence is R-hat, effective sample size and divergences. Prediction is the leave-one-out score
of fitted rows and the log predictive density of the held-out rows. The truth holds the parameters
of simulated data, if they are known.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from moment_init.checks import FloatArray, as_float_array, changed_filters
from moment_init.comparison.runs import ComparedRows, EMRun, IndexArray
from moment_init.data.simulation import MixtureData
from moment_init.posterior.draws import data_model, log_likelihood_group
from moment_init.results import SAME_OPTIMUM

if TYPE_CHECKING:
    import pandas
    import xarray

PARAMETERS = ("coefficient", "bias", "weight", "dispersion", "gate", "gate_bias")
"""Variables whose convergence is assessed: scales and directions follow from coefficients."""


def parameters_of(tree: "xarray.DataTree") -> "xarray.Dataset":
    """Select the parameters of a posterior that vary: R-hat of a constant is not defined."""
    posterior = tree["posterior"].to_dataset()
    return posterior[[name for name in PARAMETERS if name in posterior]]


@dataclass(frozen=True, slots=True)
class Convergence:
    """Agreement and mixing of chains."""

    rhat_max: float = np.nan  # largest R-hat of a parameter
    ess_bulk_min: float = np.nan  # smallest bulk effective sample size of a parameter
    divergences: float = np.nan  # number of divergent transitions; NaN if unknown


def assess_convergence(tree: "xarray.DataTree") -> Convergence:
    """Compute the largest R-hat, the smallest effective sample size, and the divergences."""
    import arviz as az

    if tree["posterior"].sizes["chain"] < 2:
        return Convergence()
    parameters = parameters_of(tree)
    varies = parameters.max(("chain", "draw")) > parameters.min(("chain", "draw"))
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # from parameters that do not vary
        rhat = _flat(az.rhat(parameters).where(varies))
        sizes = _flat(az.ess(parameters, method="bulk").where(varies))
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    divergences = float(stats["diverging"].sum()) if "diverging" in stats else np.nan
    if not rhat.size:
        return Convergence(divergences=divergences)
    return Convergence(float(rhat.max()), float(sizes.min()), divergences)


def _flat(values: "xarray.Dataset") -> FloatArray:
    """Join the finite values of all variables."""
    joined = np.hstack([np.ravel(values[name].values) for name in values.data_vars])
    return np.asarray(joined[np.isfinite(joined)])


# --- prediction ----------------------------------------------------------------------------------

_TRUSTED_SHARE = 0.01
"""Share of Pareto k values that may be too large. Errors of single rows change a sum of hundreds
little; if draws are far from the posterior, as for a poor normal approximation, nearly all values
are too large."""

_MOST_UNITS = 1000
"""Most rows, or groups, that leave-one-out scores: it takes a millisecond for each."""

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


def score_loo(tree: "xarray.DataTree", units: IndexArray) -> Any:
    """Score a method by leaving out one of some rows, or groups, at a time; None if it cannot be.

    Returns the pointwise result of ArviZ.
    """
    import arviz as az
    import xarray

    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    names = ("posterior", "sample_stats", "log_likelihood")
    groups = {name: tree[name].to_dataset() for name in names if name in tree.children}
    unit = str(groups["log_likelihood"]["y"].dims[-1])
    groups["log_likelihood"] = groups["log_likelihood"].isel({unit: units})
    is_approximate = "log_q" in stats and "lp" in stats
    if is_approximate:  # draws under which the data are impossible have no weight
        kept = np.flatnonzero(np.isfinite(stats["lp"].values[0]))
        groups = {name: dataset.isel(draw=kept) for name, dataset in groups.items()}
        stats = groups["sample_stats"]
    part = xarray.DataTree.from_dict(groups)
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the table shows large Pareto k values
        try:
            if is_approximate:
                elpd = az.loo_approximate_posterior(
                    part, log_p=stats["lp"], log_q=stats["log_q"], pointwise=True, var_name="y"
                )
            else:
                elpd = az.loo(part, pointwise=True, var_name="y", reff=_efficiency(tree))
        except (ValueError, IndexError):  # too few draws, or draws that do not vary
            return None
    return elpd if np.isfinite(elpd.elpd) else None


def loo_units(n_units: int, rng: np.random.Generator) -> IndexArray:
    """Choose the rows, or groups, that leave-one-out scores."""
    return np.sort(rng.permutation(n_units)[:_MOST_UNITS])


def _efficiency(tree: "xarray.DataTree") -> float:
    """Compute the mean relative efficiency as in `arviz.loo`, without constant parameters."""
    import arviz as az

    posterior = tree["posterior"].to_dataset()
    n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    values = _flat(az.ess(parameters_of(tree), method="mean"))
    return float(values.mean()) / n_draws if values.size else 1.0


def bad_share(elpd: Any) -> float:
    """Compute the share of Pareto k values that are too large; NaN without a score."""
    return np.nan if elpd is None else float(np.mean(np.asarray(elpd.pareto_k) > elpd.good_k))


def is_reliable(elpd: Any) -> bool:
    """Tell whether there is a score and at most 1 % of its Pareto k values are too large."""
    return bad_share(elpd) <= _TRUSTED_SHARE


def compare_loo(scores: Mapping[str, Any]) -> "pandas.DataFrame":
    """Compare the methods with reliable scores by ``arviz.compare``; empty with fewer than two."""
    import arviz as az
    import pandas

    reliable = {name: elpd for name, elpd in scores.items() if is_reliable(elpd)}
    if len(reliable) < 2:
        return pandas.DataFrame(columns=["rank", "elpd", "p", "elpd_diff", "weight", "se", "dse"])
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # from weights of rows whose density underflows
        table: pandas.DataFrame = az.compare(reliable, round_to="none")
    return table.rename_axis("method")


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutScore:
    """The log predictive density of the held-out rows."""

    # log predictive density of each row, or group; None without held-out rows; (n_units,)
    values: FloatArray | None = None
    weights: FloatArray | None = None  # weights of the rows, or groups; (n_units,)

    @property
    def total(self) -> tuple[float, float]:
        """Sum over rows, or groups, and its standard error; NaN without held-out rows."""
        if self.values is None or self.weights is None:
            return np.nan, np.nan
        return _weighted_sum(self.values, self.weights)

    def less(self, other: "HeldOutScore") -> ScoreDifference | None:
        """Subtract another score of the same rows; None if either is missing or not finite."""
        if self.values is None or other.values is None:
            return None
        if not np.isfinite(self.total[0] + other.total[0]):
            return None
        return ScoreDifference(*HeldOutScore(self.values - other.values, self.weights).total)


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


# --- truth ---------------------------------------------------------------------------------------

_REQUIRED = ("coefficients", "biases", "weights")
_OPTIONAL = ("dispersion",)

_WEIGHT_TOLERANCE = 1e-6
"""Tolerance of the sum of the true weights, which may be rounded to six places."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The true parameters; those of several responses or classes have a leading axis."""

    coefficients: FloatArray  # coefficients of the user's columns; ([P,] n_features, n_components)
    biases: FloatArray  # biases of the components; ([P,] n_components)
    weights: FloatArray  # probabilities of the components; (n_components,)
    dispersion: FloatArray | None  # dispersions, if the family has them; ([P,] n_components)

    def to_dataset(self, order: IndexArray, rows: ComparedRows) -> "xarray.Dataset":
        """Write the parameters under the variable names of the posterior."""
        import xarray

        coefficient = self.coefficients[..., order]
        scale = np.linalg.norm(coefficient, axis=-2)
        direction = coefficient / np.where(scale > 0.0, scale, 1.0)[..., None, :]
        first = ("response",) if coefficient.ndim == 3 else ()
        variables: dict[str, Any] = {
            "coefficient": ((*first, "feature", "component"), coefficient),
            "direction": ((*first, "feature", "component"), direction),
            "scale": ((*first, "component"), scale),
            "bias": ((*first, "component"), self.biases[..., order]),
            "weight": ("component", self.weights[order]),
        }
        if self.dispersion is not None:
            variables["dispersion"] = ((*first, "component"), self.dispersion[..., order])
        coords: dict[str, Any] = {"feature": list(rows.checked.feature_names)}
        coords["component"] = np.arange(len(order))
        if first:
            coords["response"] = list(rows.checked.response_names)
        return xarray.Dataset(variables, coords)


def read_truth(truth: Any, rows: ComparedRows, n_components: int) -> Truth | None:
    """Check `truth` and read its parameters."""
    if truth is None:
        return None
    values = _named_values(truth)
    names = rows.checked.response_names
    levels = (len(names), n_components) if names else (n_components,)
    shapes: dict[str, tuple[int, ...]] = {
        "coefficients": (*levels[:-1], rows.checked.n_features, n_components),
        "biases": levels,
        "weights": (n_components,),
        "dispersion": levels,
    }
    arrays = {
        name: _checked(name, values[name], shape)
        for name, shape in shapes.items()
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
    # coefficients: ([P,] n_features, n_components), biases: ([P,] n_components)
    inputs = np.asarray(rows.checked.X, dtype=np.float64)
    estimated = np.moveaxis(inputs @ coefficients + biases[..., None, :], -1, 0)
    true = np.moveaxis(inputs @ truth.coefficients + truth.biases[..., None, :], -1, 0)
    distances = [[np.square(one - other).mean() for other in true] for one in estimated]
    return np.asarray(linear_sum_assignment(np.array(distances))[1], dtype=np.intp)


def errors_of(
    tree: "xarray.DataTree", truth: Truth | None, rows: ComparedRows
) -> tuple[float, float]:
    """Compute the RMSE of posterior mean coefficients and their largest angle to the truth."""
    if truth is None:
        return np.nan, np.nan
    draws = data_model(tree["posterior"].to_dataset(), rows.checked).draws
    coefficients = draws.coefficients.mean(axis=0)
    order = match_to_truth(coefficients, draws.biases.mean(axis=0), truth, rows)
    true = truth.coefficients[..., order]
    lengths = np.linalg.norm(coefficients, axis=-2) * np.linalg.norm(true, axis=-2)
    cosines = (coefficients * true).sum(axis=-2)[lengths > 0.0] / lengths[lengths > 0.0]
    # Zero coefficients have no direction.
    angle = np.degrees(np.arccos(np.clip(cosines.min(), -1.0, 1.0))) if cosines.size else np.nan
    return float(np.sqrt(np.square(coefficients - true).mean())), float(angle)


# --- landscape and table -------------------------------------------------------------------------


def best_log_likelihood(runs: Mapping[str, Sequence[EMRun]]) -> float:
    """Return the log-likelihood of the best optimum: the highest interior one, if there is one.

    As in `fit_em`, ends on a bound count only if no start of any method ended in the interior.
    """
    ended = [run for found in runs.values() for run in found if run.fit is not None]
    inside = [run for run in ended if run.is_interior]
    return float(np.nanmax([run.log_likelihood for run in inside or ended]))


def is_at_best(run: EMRun, best: float) -> bool:
    """Tell whether a run reached the best optimum; an end above it is on a bound."""
    return bool(abs(run.log_likelihood - best) < SAME_OPTIMUM)


def count_at_best(runs: Sequence[EMRun], best: float) -> int:
    """Count the starts that led to the best optimum found."""
    return sum(is_at_best(run, best) for run in runs)


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
        "log_likelihood": "log-likelihood at the optimum; of random EM, that of the typical "
        "start; of chains, the highest",
        "share_at_best": "share of starts or chains that led to the best optimum found by any "
        "method; empty for the best of several starts, which was chosen for it",
        "n_starts": "number of starts or chains",
        "rhat_max": "largest R-hat of a parameter; for random EM across starts, components matched",
        "ess_bulk_min": "smallest bulk effective sample size of a parameter",
        "divergences": "number of divergent transitions of the sampler",
        "elpd_held_out": "log predictive density of the held-out rows; higher is better",
        "elpd_held_out_se": "its standard error",
        "elpd_loo": "log predictive density, leaving out one row (or group) at a time, of at most "
        "1000 of them; empty if it is not reliable",
        "elpd_loo_se": "its standard error",
        "pareto_k_bad": "share of Pareto k values that are too large; above 1 %, the leave-one-out "
        "score is not reliable",
        "error": "root mean square error of the coefficients",
        "error_angle": "largest angle between estimated and true coefficients, in degrees",
        "seconds": "time of all starts or chains, with compilation and the search for a start",
    }
)
"""Columns of the table and their meanings."""


@dataclass(frozen=True, slots=True, eq=False)
class MethodFigures:
    """Figures of one method."""

    runs: Sequence[EMRun]  # optima that its starts or chains led to
    seconds: float  # total time of the method
    loo: Any = None  # pointwise leave-one-out score; None without one
    held_out: HeldOutScore = field(default_factory=HeldOutScore)  # score of the held-out rows
    errors: tuple[float, float] = (np.nan, np.nan)  # distances from the truth
    convergence: Convergence = field(default_factory=Convergence)  # agreement and mixing of chains
    # whether the run was selected as the best of several; its share at the best optimum is then
    # undefined
    is_chosen: bool = False
    typical: EMRun | None = None  # the run that was scored, if it stands for others

    def row(self, best: float) -> dict[str, float]:
        """Return the figures by column."""
        reached = [x for x in (run.log_likelihood for run in self.runs) if not np.isnan(x)]
        trusted = self.loo if is_reliable(self.loo) else None
        row = {
            "log_likelihood": max(reached, default=np.nan)
            if self.typical is None
            else self.typical.log_likelihood,
            "share_at_best": np.nan
            if self.is_chosen
            else count_at_best(self.runs, best) / len(self.runs),
            "n_starts": len(self.runs),
            "rhat_max": self.convergence.rhat_max,
            "ess_bulk_min": self.convergence.ess_bulk_min,
            "divergences": self.convergence.divergences,
            "elpd_held_out": self.held_out.total[0],
            "elpd_held_out_se": self.held_out.total[1],
            "elpd_loo": np.nan if trusted is None else float(trusted.elpd),
            "elpd_loo_se": np.nan if trusted is None else float(trusted.se),
            "pareto_k_bad": bad_share(self.loo),
            "error": self.errors[0],
            "error_angle": self.errors[1],
            "seconds": self.seconds,
        }
        return {name: row[name] for name in COLUMNS}


def tabulate(figures: Mapping[str, MethodFigures], best: float) -> "pandas.DataFrame":
    """Tabulate the figures, one row per method."""
    import pandas

    rows = {name: scored.row(best) for name, scored in figures.items()}
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS))
    return table.rename_axis("method").astype({"n_starts": "int64"})
