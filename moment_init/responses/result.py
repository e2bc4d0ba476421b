r"""Rows that a fit of several responses is asked about, in the user's units.

A fit of several responses as a DataTree that ArviZ reads.

| group | variable | dims | meaning |
| --- | --- | --- | --- |
| posterior | coefficient, direction | chain, draw, feature, component, response | draws |
| | bias, scale, dispersion | chain, draw, component, response | draws |
| | weight | chain, draw, component | draws |
| sample_stats | lp | chain, draw | log-likelihood of the data |
| log_likelihood | y | chain, draw, obs | log density of all responses of a row |
| observed_data | y | obs, response; obs for classes | the responses; codes of classes |
| moment_init | start_..., history, log_likelihood, aic, bic, icl, ... | | the starts, criteria |

Draws are those of the normal approximation about the maximum on the scale of
`moment_init.responses.parameters`, one chain. For classes the dim `response` holds those other than
the reference, which is an attribute of the group moment_init.

How a fit of several responses is printed: a table a response, a column a component.

What `fit_em` returns for several responses, or for a response of several classes.
"""

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from moment_init.checks import FloatArray, RandomSeed, make_generator
from moment_init.data.checking import (
    match_columns,
    require_finite_offset,
    require_finite_predictors,
    validate_sample_weight,
)
from moment_init.data.formulas import FormulaDesign, reads_design
from moment_init.responses.climbing import predictors, row_posterior
from moment_init.responses.data import (
    CLASSES,
    by_response,
    columns_of_fit,
    refuse_arguments,
    validate_labels,
    validate_rows,
    validate_trials,
)
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses
from moment_init.responses.parameters import JointParameters, JointRows, Layout
from moment_init.results import (
    ComponentTable,
    StartRecord,
    Status,
    count_best,
    estimate_cells,
    tabulate_starts,
)

if TYPE_CHECKING:
    import pandas
    import xarray


class AskedModel(Protocol):
    """What rows must agree with: a fit, or what is known of one."""

    @property
    def kind(self) -> ResponseKind:
        """Families and names of the responses."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def coefficients(self) -> FloatArray:
        """Coefficients, a row for each column."""


def matched_inputs(
    fit: AskedModel, X: Any, *, offset: Any = None, n_trials: Any = None
) -> JointRows:
    """Rows without responses."""
    # X: (n_obs, n_features)
    if isinstance(fit.kind, Categorical):
        refuse_arguments("predict", CLASSES, offset=offset, n_trials=n_trials)
    features = match_columns(X, fit.feature_names, "X")
    require_finite_predictors(features, fit.coefficients, "X")
    n_obs, n_responses = len(features), len(fit.kind.families)
    missing = np.full((n_responses, n_obs), np.nan)
    known = by_response(offset, "offset", n_obs, n_responses)
    require_finite_offset(known)
    trials = validate_trials(n_trials, fit.kind, n_obs)
    return JointRows(features, missing, np.ones(n_obs), known, trials)


def rows_of(
    fit: AskedModel, X: Any, y: Any, *, offset: Any = None, n_trials: Any = None
) -> JointRows:
    """Rows with their responses."""
    # X: (n_obs, n_features), y: (n_obs, n_responses)
    features = match_columns(X, fit.feature_names, "X")
    require_finite_predictors(features, fit.coefficients, "X")
    if isinstance(fit.kind, Categorical):
        refuse_arguments("JointFit", CLASSES, offset=offset, n_trials=n_trials)
        codes = validate_labels(y, fit.kind, len(features))
        return JointRows(features, codes[None], np.ones(len(features)))
    if not isinstance(fit.kind, SeparateResponses):
        raise TypeError(f"unknown kind of responses, {type(fit.kind).__name__}")
    columns = columns_of_fit(y, fit.kind.names)
    data = validate_rows(features, columns, fit.kind, offset=offset, n_trials=n_trials)
    require_finite_offset(data.offset)
    return JointRows(data.X, data.y, data.sample_weight, data.offset, data.n_trials)


_LARGEST_LOG_DISPERSION = 300.0
"""Draws of a log dispersion are cut here, so that neither it nor its square overflows."""


def fit_to_datatree(
    fit: "JointFit",
    X: Any,
    y: Any,
    *,
    draws: int,
    random_seed: RandomSeed,
    offset: Any,
    n_trials: Any,
) -> "xarray.DataTree":
    """Convert a fit to a DataTree."""
    import xarray

    if (X is None) != (y is None):
        raise ValueError("`X` and `y` must be given together; got one of them. Pass both.")
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"`draws` must be a positive integer; got {draws!r}. Ask for 1 or more.")
    parameters = draw_parameters(fit, int(draws), make_generator(random_seed))
    sampling = {"chain": np.arange(1), "draw": np.arange(int(draws))}
    groups = {"posterior": posterior_of(fit, parameters, sampling, (1, int(draws)))}
    if X is not None:
        rows = rows_of(fit, X, y, offset=offset, n_trials=n_trials)
        base = fit.kind.log_base_measure(rows.y, rows.n_trials)
        with np.errstate(over="ignore"):  # a wild draw has a density of zero
            values = np.stack([row_posterior(fit.kind, rows, each)[0] for each in parameters])
        values = (values + base)[None]
        obs = {"obs": np.arange(rows.n_obs)}
        groups["log_likelihood"] = xarray.Dataset(
            {"y": (("chain", "draw", "obs"), values)}, {**sampling, **obs}
        )
        groups["sample_stats"] = xarray.Dataset(
            {"lp": (("chain", "draw"), values.sum(axis=2))}, sampling
        )
        groups["observed_data"] = observed_variable(fit, rows)
    groups["moment_init"] = _own_group(fit)
    for dataset in groups.values():
        dataset.attrs = {**library(), **dataset.attrs}
    return xarray.DataTree.from_dict(groups)


def draw_parameters(fit: "JointFit", draws: int, rng: np.random.Generator) -> list[JointParameters]:
    """Draw from the normal approximation about the maximum."""
    layout = fit.layout
    centre = layout.pack(fit.parameters)
    if fit.covariance is None:
        return [fit.parameters] * draws
    scale = np.sqrt(np.diag(fit.covariance))
    free = scale > 0.0
    correlation = fit.covariance[np.ix_(free, free)] / np.outer(scale[free], scale[free])
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    vectors_drawn = np.tile(centre, (draws, 1))
    noise = rng.standard_normal((draws, int(free.sum()))) @ root.T
    vectors_drawn[:, free] += noise * scale[free]
    for a, has_dispersion in enumerate(layout.has_dispersion):
        if has_dispersion:
            for j in range(layout.n_components):
                place = layout.component(j).start + layout.predictor(a).stop
                limit = _LARGEST_LOG_DISPERSION
                vectors_drawn[:, place] = np.clip(vectors_drawn[:, place], -limit, limit)
    return [layout.unpack(vector) for vector in vectors_drawn]


def posterior_of(
    fit: "JointFit",
    parameters: list[JointParameters],
    sampling: dict[str, Any],
    shape: tuple[int, int],
) -> "xarray.Dataset":
    """Put draws into a dataset."""
    import xarray

    def stacked(values: list[FloatArray]) -> FloatArray:
        array = np.stack(values)
        return array.reshape(*shape, *array.shape[1:])

    coefficient = stacked([each.coefficients for each in parameters])
    scale = np.sqrt(np.square(coefficient).sum(axis=2))
    of_slopes = ("chain", "draw", "feature", "component", "response")
    of_levels = ("chain", "draw", "component", "response")
    direction = coefficient / np.where(scale > 0.0, scale, 1.0)[:, :, None]
    variables: dict[str, Any] = {
        "coefficient": (of_slopes, coefficient),
        "direction": (of_slopes, direction),
        "scale": (of_levels, scale),
        "bias": (of_levels, stacked([each.biases for each in parameters])),
        "weight": (of_levels[:3], stacked([each.weights for each in parameters])),
    }
    dispersions = [each.dispersion for each in parameters if each.dispersion is not None]
    if dispersions:
        variables["dispersion"] = (of_levels, stacked(dispersions))
    coords = {
        **sampling,
        "feature": list(fit.feature_names),
        "component": np.arange(fit.n_components),
        "response": list(fit.response_names),
    }
    return xarray.Dataset(variables, coords)


def observed_variable(fit: "JointFit", rows: JointRows) -> "xarray.Dataset":
    """Responses of rows as a dataset."""
    import xarray

    obs = {"obs": np.arange(rows.n_obs)}
    if isinstance(fit.kind, Categorical):
        return xarray.Dataset({"y": (("obs",), rows.y[0].astype(np.int64))}, obs)
    names = {**obs, "response": list(fit.response_names)}
    return xarray.Dataset({"y": (("obs", "response"), rows.y.T)}, names)


def _own_group(fit: "JointFit") -> "xarray.Dataset":
    import xarray

    starts = fit.starts
    variables: dict[str, Any] = {
        "start_origin": ("start", np.array([start.origin for start in starts], dtype=str)),
        "start_status": ("start", np.array([str(start.status) for start in starts], dtype=str)),
        "start_n_iter": ("start", np.array([start.n_iter for start in starts], dtype=np.int64)),
        "start_log_likelihood": ("start", np.array([start.log_likelihood for start in starts])),
        "history": ("iteration", np.array(fit.history)),
    }
    for name in ("log_likelihood", "aic", "bic", "icl", "entropy", "n_units"):
        variables[name] = float(getattr(fit, name))
    for name in ("n_parameters", "n_obs", "n_iter", "converged"):
        variables[name] = int(getattr(fit, name))
    coords = {"start": np.arange(len(starts)), "iteration": np.arange(len(fit.history))}
    attrs = {
        "status": str(fit.status),
        "warnings": "\n".join(fit.warnings),
        "bounds": "\n".join(fit.bounds),
        "family": fit.family,
        "link": fit.link,
    }
    if isinstance(fit.kind, Categorical):
        attrs["reference_class"] = fit.outcome_names[0]
    return xarray.Dataset(variables, coords, attrs=attrs)


def library() -> dict[str, str]:
    """Name and version of what made a group."""
    return {
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
    }


def fit_table(fit: "JointFit") -> ComponentTable:
    """Arrange what is printed of a fit."""
    errors = fit.standard_errors
    rows: list[tuple[str, list[str]]] = []
    for a, response in enumerate(fit.response_names):
        rows.append((f"{response}:", [""] * fit.n_components))
        rows += [
            (f"  {name}", estimate_cells(fit.coefficients[k, :, a], errors.coefficients[k, :, a]))
            for k, name in enumerate(fit.feature_names)
        ]
        rows.append(("  bias", estimate_cells(fit.biases[:, a], errors.biases[:, a])))
        has_dispersion = fit.kind.has_dispersion[a]
        if has_dispersion and fit.dispersion is not None and errors.dispersion is not None:
            cells = estimate_cells(fit.dispersion[:, a], errors.dispersion[:, a])
            rows.append(("  dispersion", cells))
    rows.append(("weight", estimate_cells(fit.weights, errors.weights)))
    reached, converged = fit.reached_best
    notes = [
        f"log-likelihood {fit.log_likelihood:.2f} ({fit.n_parameters} parameters), AIC "
        f"{fit.aic:.1f}, BIC {fit.bic:.1f}, ICL {fit.icl:.1f}",
        f"best log-likelihood reached by {reached} of {converged} converged starts, "
        f"{len(fit.starts)} starts in all",
    ]
    return ComponentTable(_title(fit), rows, notes, fit.warnings)


def _title(fit: "JointFit") -> str:
    is_classes = len(fit.outcome_names) != len(fit.response_names)
    what = f"{len(fit.outcome_names)} {'classes' if is_classes else 'responses'}"
    return (
        f"JointFit: {fit.n_components} components, {len(fit.feature_names)} features, {what}, "
        f"{fit.family} ({fit.link}), {fit.n_obs} rows, status {fit.status}"
    )


class JointErrors(NamedTuple):
    """Standard errors; NaN where the information says nothing, zero on a bound."""

    coefficients: FloatArray  # of the coefficients; (n_features, n_components, n_predictors)
    biases: FloatArray  # of the biases; (n_components, n_predictors)
    weights: FloatArray  # of the weights; (n_components,)
    dispersion: FloatArray | None  # of the dispersion; (n_components, n_predictors)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JointFit:
    """Maximum-likelihood fit of a mixture whose rows have several linear predictors.

    Components come by decreasing weight; all responses of a row share theirs. A predictor belongs
    to a response, or to a class of a categorical response other than the first, the reference.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components, n_predictors)
        Coefficients of the user's columns.
    biases : numpy.ndarray, shape (n_components, n_predictors)
        Intercepts.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities of the components.
    dispersion : numpy.ndarray, shape (n_components, n_predictors), or None
        Dispersion; NaN for responses of a family without one.
    log_likelihood : float
        Log-likelihood of all responses in the user's units, with all constants.
    history : tuple of float
        Log-likelihood after every step of the winning run; it never falls.
    n_iter : int
        Steps of the winning run.
    converged : bool
        Whether it converged.
    starts : tuple of StartRecord
        Every start.
    responsibilities : numpy.ndarray, shape (n_obs, n_components)
        Posterior probabilities of the components.
    covariance : numpy.ndarray, shape (n_parameters, n_parameters), or None
        Covariance of the vector of parameters (`moment_init.responses.parameters`) from the
        observed information; zero for what lies on a bound, None if the information is singular.
    n_parameters : int
        Number of free parameters.
    n_obs : int
        Number of rows.
    n_units : float
        Total weight of the rows.
    entropy : float
        Entropy of the responsibilities.
    kind : ResponseKind
        Families and names of the responses.
    feature_names : tuple of str
        Names of the columns.
    status : Status
        How far the fit can be trusted.
    warnings : tuple of str
        What the status means and what to do.
    bounds : tuple of str
        Bounds on which parameters lie.
    design : FormulaDesign or None
        What encodes new rows, for a fit by formula.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None
    log_likelihood: float
    history: tuple[float, ...]
    n_iter: int
    converged: bool
    starts: tuple[StartRecord, ...]
    responsibilities: FloatArray
    covariance: FloatArray | None
    n_parameters: int
    n_obs: int
    n_units: float
    entropy: float
    kind: ResponseKind
    feature_names: tuple[str, ...]
    status: Status
    warnings: tuple[str, ...]
    bounds: tuple[str, ...]
    design: FormulaDesign | None = None

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.weights.shape[0])

    @property
    def family(self) -> str:
        """Family of the responses; names joined by commas where they differ."""
        return self.kind.name

    @property
    def link(self) -> str:
        """Link of the responses; names joined by commas where they differ."""
        return self.kind.link_name

    @property
    def response_names(self) -> tuple[str, ...]:
        """Names of the predictors: the responses, or the classes other than the reference."""
        return self.kind.names

    @property
    def outcome_names(self) -> tuple[str, ...]:
        """Names of what `predict` returns: the responses, or all classes."""
        return self.kind.outcome_names

    @property
    def parameters(self) -> JointParameters:
        """Parameters of the user's columns."""
        return JointParameters(self.coefficients, self.biases, self.weights, self.dispersion)

    @property
    def layout(self) -> Layout:
        """Places of the parameters in their vector."""
        return Layout(len(self.feature_names), self.n_components, self.kind.has_dispersion)

    @property
    def scales(self) -> FloatArray:
        """Lengths of the coefficients, shape (n_components, n_predictors)."""
        return self.parameters.scales

    @property
    def directions(self) -> FloatArray:
        """Unit directions, shape (n_features, n_components, n_predictors)."""
        return self.parameters.directions

    @property
    def aic(self) -> float:
        """Akaike's criterion; smaller is better."""
        return -2.0 * self.log_likelihood + 2.0 * self.n_parameters

    @property
    def bic(self) -> float:
        """Bayesian criterion with the number of rows; smaller is better."""
        return float(-2.0 * self.log_likelihood + self.n_parameters * np.log(self.n_units))

    @property
    def icl(self) -> float:
        """BIC + 2 entropy; smaller is better."""
        return self.bic + 2.0 * self.entropy

    @property
    def standard_errors(self) -> JointErrors:
        """Standard errors from the observed information, by the delta method where needed."""
        layout = self.layout
        if self.covariance is None:
            errors = np.full(layout.size, np.nan)
            weights = np.full(self.n_components, np.nan)
        else:
            errors = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
            slopes = (np.diag(self.weights) - np.outer(self.weights, self.weights))[:, :-1]
            logits = self.covariance[layout.logits, layout.logits]
            weights = np.sqrt(np.maximum(np.diag(slopes @ logits @ slopes.T), 0.0))
        coefficients, biases, relative = layout.entries(errors)
        dispersion = None if self.dispersion is None else self.dispersion * relative
        return JointErrors(coefficients, biases, weights, dispersion)

    @property
    def share_of_best(self) -> float | None:
        """Share of the converged starts that reached the best log-likelihood within .01."""
        reached, converged = self.reached_best
        return reached / converged if converged > 1 else None

    @property
    def reached_best(self) -> tuple[int, int]:
        """How many starts converged to the best log-likelihood, and how many at all."""
        return count_best(self.starts, self.log_likelihood)

    @property
    def starts_table(self) -> "pandas.DataFrame":
        """A row a start: origin, log_likelihood, n_iter, status, bounds, message."""
        return tabulate_starts(self.starts)

    @reads_design
    def predict(
        self,
        X: Any,
        *,
        offset: Any = None,
        n_trials: Any = None,
        kind: Literal["mean", "components"] = "mean",
    ) -> FloatArray:
        """Mean responses of rows, or probabilities of all classes.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs; the columns of a DataFrame are matched by name.
        offset : array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Known part of the linear predictors.
        n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Trials of binomial responses, one by default; others have none.
        kind : {"mean", "components"}, default "mean"
            Mean of the mixture, or of every component.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_outcomes) or (n_obs, n_components, n_outcomes)
            Means, in the order of `outcome_names`.

        Raises
        ------
        ValueError
            For an unknown kind, wrong shapes or columns, missing values, and trials where no
            response is binomial.
        """
        if kind not in ("mean", "components"):
            raise ValueError(f"`kind` must be 'mean' or 'components'; got {kind!r}.")
        rows = matched_inputs(self, X, offset=offset, n_trials=n_trials)
        means = self.kind.mean(predictors(rows, self.parameters))  # (M, r, n)
        if rows.n_trials is not None:  # one where a response has none
            means = means * rows.n_trials[:, None, :]
        if kind == "components":
            return np.ascontiguousarray(means.transpose(2, 1, 0))
        return np.asarray(np.einsum("mjn,j->nm", means, self.weights))

    @reads_design
    def predict_membership(
        self, X: Any, y: Any = None, *, offset: Any = None, n_trials: Any = None
    ) -> FloatArray:
        """Posterior probabilities of the components given rows and all their responses.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses; the columns of a DataFrame are matched by name. A fit by formula reads them
            from X.
        offset, n_trials : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components)
            Probabilities; every row sums to one.

        Raises
        ------
        ValueError
            For wrong shapes or columns, missing values, and impossible responses.
        """
        rows = rows_of(self, X, y, offset=offset, n_trials=n_trials)
        _, shares, _ = row_posterior(self.kind, rows, self.parameters)
        return np.ascontiguousarray(shares.T)

    @reads_design
    def log_densities(
        self, X: Any, y: Any = None, *, offset: Any = None, n_trials: Any = None
    ) -> FloatArray:
        """Log density of all responses of every row.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses; as in `predict_membership`.
        offset, n_trials : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            Log densities, with all constants.
        """
        rows = rows_of(self, X, y, offset=offset, n_trials=n_trials)
        density, _, _ = row_posterior(self.kind, rows, self.parameters)
        return np.asarray(density + self.kind.log_base_measure(rows.y, rows.n_trials))

    @reads_design
    def score(
        self,
        X: Any,
        y: Any = None,
        *,
        offset: Any = None,
        n_trials: Any = None,
        sample_weight: Any = None,
    ) -> float:
        """Mean log-likelihood of rows; higher is better.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses; as in `predict_membership`.
        offset, n_trials, sample_weight : array-like, optional
            As in the fit.

        Returns
        -------
        float
            Log-likelihood over the total weight of the rows.

        Raises
        ------
        ValueError
            As `log_densities`, and for weights of a wrong shape, negative or all zero.
        """
        values = self.log_densities(X, y, offset=offset, n_trials=n_trials)
        weights = validate_sample_weight(sample_weight, len(values))
        return float(np.average(values, weights=weights))

    @reads_design
    def to_datatree(
        self,
        X: Any = None,
        y: Any = None,
        *,
        draws: int = 1000,
        random_seed: RandomSeed = None,
        offset: Any = None,
        n_trials: Any = None,
    ) -> "xarray.DataTree":
        """Convert to a DataTree that ArviZ reads, with draws of the Laplace approximation.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features), optional
            Inputs, for the log-likelihood of every draw.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses.
        draws : int, default 1000
            Number of draws.
        random_seed : int, sequence of int, numpy.random.Generator or None
            Seed of the draws.
        offset, n_trials : array-like, optional
            As in the fit.

        Returns
        -------
        xarray.DataTree
            See `moment_init.responses.result` for its groups and variables.

        Raises
        ------
        ValueError
            If only one of `X` and `y` is given, or `draws` is not positive.
        """
        return fit_to_datatree(
            self, X, y, draws=draws, random_seed=random_seed, offset=offset, n_trials=n_trials
        )

    def __repr__(self) -> str:
        """Tables of the parameters with standard errors, one for each response."""
        return fit_table(self).to_text()

    def _repr_html_(self) -> str:
        """Same tables for a notebook."""
        return fit_table(self).to_html()
