r"""Rows of an estimator, the mixture fitted to them, and its predictions.

The mixture is fitted by EM, or is an average over the draws of a posterior.

Rows are checked once, and equal rows are merged, with their weights added.

Constant columns, collinear columns, and columns that are too many for the rows are first reduced to
principal axes. `moment_init.fit_em` refuses such columns because their coefficients are not
identified. Their predictions are: an estimator fits the principal axes :math:`z = V'(x - m)` of the
standardised columns and reports :math:`\beta = V \gamma`, the shortest coefficients (of
standardised columns) among all with the same predictions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, eigh
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning

from moment_init.checks import (
    ConvergenceWarning,
    FloatArray,
    WeakSignalWarning,
    notify,
    quiet_notices,
    validate_n_components,
)
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.data.checking import (
    RegressionData,
    group_codes,
    validate_data,
    validate_groups,
)
from moment_init.data.standardising import (
    COLLINEAR_TOLERANCE,
    InputRows,
    require_safe_spreads,
    rough_units,
)
from moment_init.em.fitting import fit_em
from moment_init.em.information import LaplaceApproximation
from moment_init.em.prediction import PredictionKind, rows_for, single_draw, unit_scores
from moment_init.em.result import EMFit, FittedOptimum
from moment_init.families.registry import get_family
from moment_init.families.several import CATEGORICAL
from moment_init.likelihood.draws import (
    Draws,
    log_likelihoods,
    means,
    memberships,
    require_finite,
)
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.posterior.draws import TreeModel, read_model
from moment_init.posterior.prediction import predict_membership
from moment_init.posterior.sampling import sample

if TYPE_CHECKING:
    import xarray

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class EstimatorRows:
    """The rows that an estimator is fitted to."""

    # The codes of classes are -1 for a label that no row with positive weight has.
    data: RegressionData
    gating: FloatArray | None = None  # gating covariates; (n_obs, n_gate)
    gate_names: tuple[str, ...] = ()  # names of the gating covariates

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return self.data.n_obs

    @property
    def inputs(self) -> Any:
        """Inputs, with their column names if they have any."""
        return _named(self.data.X, self.data.feature_names, "x")

    @property
    def response(self) -> Any:
        """Response in the form of `moment_init.fit_em`: an array, named columns or labels."""
        y, classes = self.data.y, self.data.classes
        if classes is None:
            return y if y.ndim == 1 else _named(y, self.data.response_names, "y")
        # Rows with an unknown label have weight zero, so any other label can be used.
        return classes[np.maximum(y, 0.0).astype(np.intp)]

    @property
    def family(self) -> Any:
        """Family in the form of `moment_init.fit_em`."""
        return self.data.family if self.data.classes is None else CATEGORICAL

    @property
    def data_block(self) -> dict[str, Any]:
        """Arguments of `moment_init.fit_em` that belong to rows, except inputs and response."""
        names = ("offset", "n_trials", "sample_weight", "groups")
        block = {name: getattr(self.data, name) for name in names}
        gating = self.gating
        block["gating"] = None if gating is None else _named(gating, self.gate_names, "g")
        return block

    def with_response(self, y: FloatArray, **fields: Any) -> "EstimatorRows":
        """Replace the response, and other fields of `data`."""
        # y: (n_obs,)
        return replace(self, data=replace(self.data, y=y, **fields))

    def take(self, index: IndexArray) -> "EstimatorRows":
        """Select rows."""
        gating = None if self.gating is None else self.gating[index]
        return replace(self, data=self.data.take(index), gating=gating)


def validate_rows(
    X: NDArray[np.generic],
    y: Any,
    *,
    feature_names: tuple[str, ...] | None = None,
    gating: Any = None,
    **data: Any,
) -> EstimatorRows:
    """Check all other data of rows whose inputs and response scikit-learn has checked."""
    # X: (n_obs, n_features), y: (n_obs,) or (n_obs, n_responses)
    rows = validate_data(X, y, gating=gating, **data)
    if feature_names is not None:
        rows = replace(rows, feature_names=feature_names)
    covariates, names = rows.gating, rows.gate_names
    return EstimatorRows(replace(rows, gating=None), covariates, names)


def refuses_negative(family: Any) -> bool:
    """Tell whether a family's response is never negative."""
    if isinstance(family, list | tuple):
        return any(map(refuses_negative, family))
    try:
        get_family(family).validate_response(np.array([-1.0]))
    except (TypeError, ValueError):
        return True
    return False


def distinct_rows(rows: EstimatorRows) -> EstimatorRows:
    """Merge equal rows, add their weights, and leave out rows with weight zero.

    Nothing is lost, because a row with weight 2 has the likelihood of two equal rows. The result,
    and so the fit, is the same bit for bit whether rows are repeated or weighted, in any order.
    """
    weighted = rows.take(np.flatnonzero(rows.data.sample_weight))
    keys = _keys(weighted)
    order = _sorting(keys)
    is_new = np.zeros(weighted.n_obs, dtype=bool)
    is_new[0] = True
    for key in keys:
        ordered = key[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_new)
    weights = np.add.reduceat(weighted.data.sample_weight[order], starts)
    merged = weighted.take(order[starts])
    return replace(merged, data=replace(merged.data, sample_weight=weights))


def _keys(rows: EstimatorRows) -> list[NDArray[Any]]:
    """List the columns that must agree for two rows to be equal."""
    data = rows.data
    values = (data.X, data.y, data.offset, data.n_trials, rows.gating, group_codes(data.groups))
    return [key for array in values if array is not None for key in np.atleast_2d(array.T)]


def _sorting(keys: list[NDArray[Any]]) -> IndexArray:
    """Sort the rows by the first key, then by the others.

    If all values of the first key differ, as in a continuous column, the other keys are not needed.
    """
    order = np.argsort(keys[0], kind="stable")
    first = keys[0][order]
    return order if np.all(first[1:] != first[:-1]) else np.lexsort(keys[::-1])


def _named(values: NDArray[np.generic], names: tuple[str, ...], letter: str) -> Any:
    """Give columns their names, unless these only number the columns."""
    # values: (n_obs, n_columns)
    if names == tuple(f"{letter}{index}" for index in range(values.shape[1])):
        return values
    from pandas import DataFrame  # imported only if there are names

    return DataFrame(values, columns=list(names), copy=False)


class EstimatorConvergenceWarning(ConvergenceWarning, SklearnConvergenceWarning):  # type: ignore[misc]  # scikit-learn has no types
    """A search ended before it converged; filters for this library or scikit-learn catch it."""


_SMALLEST_EIGENVALUE = 10 * COLLINEAR_TOLERANCE
"""Axes of the correlation matrix with a smaller eigenvalue are dropped. `fit_em` refuses columns
whose smallest eigenvalue is below its tolerance; ten times that leaves room for rounding."""

_SMALLEST_SPREAD = 1e-12
"""A standard deviation below this multiple of a column's mean is due to rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnAxes:
    """The axes that replace the columns in a fit."""

    mean: FloatArray  # weighted means of the columns; (n_features,)
    basis: FloatArray  # axes, zero for a constant column; (n_features, n_axes)

    def project(self, X: NDArray[np.generic]) -> FloatArray:
        """Compute the coordinates of rows along the axes."""
        # X: (n_obs, n_features) -> (n_obs, n_axes)
        return np.asarray((np.asarray(X, dtype=np.float64) - self.mean) @ self.basis)

    def lift(self, fit: EMFit, feature_names: tuple[str, ...]) -> EMFit:
        """Convert a fit of the axes into a fit of the columns."""
        coefficients = self.basis @ fit.coefficients

        def lifted(optimum: FittedOptimum) -> FittedOptimum:
            slopes = self.basis @ optimum.coefficients
            biases = optimum.biases - self.mean @ slopes
            changes: dict[str, Any] = {
                "coefficients": slopes,
                "biases": biases,
                "feature_names": feature_names,
            }
            return replace(optimum, **changes)

        root, undetermined = fit.laplace.root, fit.laplace.undetermined
        matrix = self._parameter_matrix(fit.centred_parameters, len(root))
        return replace(
            fit,
            coefficients=coefficients,
            biases=fit.biases - self.mean @ coefficients,
            feature_names=feature_names,
            optima=tuple(map(lifted, fit.optima)),
            laplace=LaplaceApproximation(
                matrix @ root, np.asarray(np.abs(matrix) @ undetermined > 0.0)
            ),
        )

    def _parameter_matrix(self, parameters: MixtureParameters, size: int) -> FloatArray:
        """Compute the derivative of the parameters of the columns by those of the axes."""
        predictor = np.block(
            [
                [self.basis, np.zeros((len(self.basis), 1))],
                [-(self.mean @ self.basis)[None, :], np.ones((1, 1))],
            ]
        )
        dispersed = parameters.layout.dispersed
        blocks = [
            block_diag(predictor, np.eye(int(a in dispersed)))
            for a in range(parameters.n_predictors)
        ]
        component = block_diag(*blocks)
        n_rest = size - parameters.n_components * component.shape[1]
        return np.asarray(block_diag(*[component] * parameters.n_components, np.eye(n_rest)))


def affordable_size(
    n_obs: int,
    n_components: int,
    n_features: int,
    *,
    has_dispersion: bool,
    n_gate: int,
    n_predictors: int = 1,  # of each response
) -> tuple[int, int]:
    """Reduce the components and columns until there are no more free parameters than rows.

    Columns are dropped before components: a fit along one axis can still separate components.
    """
    for number in range(n_components, 0, -1):
        n_weights = (number - 1) * (1 + n_gate)
        n_axes = (n_obs - n_weights) // (number * n_predictors) - 1 - has_dispersion
        if n_axes >= 1:
            return number, min(n_axes, n_features)
    return 1, 1


def column_axes(X: NDArray[np.generic], weights: FloatArray, n_axes: int) -> ColumnAxes | None:
    """Find the axes along which rows differ; None if they are as many as the columns."""
    # X: (n_obs, n_features), weights: (n_obs,)
    n_features = X.shape[1]
    mean, scales, correlation = _correlation(X, weights)
    varies = scales > _SMALLEST_SPREAD * np.abs(mean)
    if not varies.any():
        raise ValueError(
            f"`X` must have a column that varies; got {n_features} that are constant in the rows "
            "with positive weight. Check the columns that were passed."
        )
    require_safe_spreads(scales[varies], tuple(f"x{k}" for k in np.flatnonzero(varies)))
    values, vectors = eigh(correlation[np.ix_(varies, varies)])
    rank = int(np.sum(values > _SMALLEST_EIGENVALUE))
    if min(rank, n_axes) == n_features:
        return None
    kept = slice(None, -min(rank, n_axes) - 1, -1)  # eigenvalues come in increasing order
    basis = np.zeros((n_features, min(rank, n_axes)))
    basis[varies] = vectors[:, kept] / np.sqrt(values[kept]) / scales[varies, None]
    return ColumnAxes(mean, basis)


def _correlation(
    X: NDArray[np.generic], weights: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute means, standard deviations and correlations; constant columns are allowed."""
    n_obs, n_features = X.shape
    shares = weights / weights.sum()
    # In rough units, so that a large common mean does not cancel digits of the variance.
    origin, unit = rough_units(InputRows(X, weights))

    def first_moments(rows: slice) -> tuple[FloatArray, ...]:
        return (shares[rows] @ ((read_block(X, rows) - origin) / unit),)

    mean = origin + unit * sum_over_blocks(first_moments, n_obs, 2 * n_features)[0]

    def second_moments(rows: slice) -> tuple[FloatArray, ...]:
        centred = (read_block(X, rows) - mean) / unit
        return ((centred * shares[rows, None]).T @ centred,)

    covariance = sum_over_blocks(second_moments, n_obs, 3 * n_features)[0]
    scales = np.sqrt(np.diag(covariance))
    safe = np.where(scales > 0.0, scales, 1.0)
    return mean, unit * scales, covariance / np.outer(safe, safe)


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOptions:
    """The options of an estimator."""

    n_components: int  # number of components
    fitting: Mapping[str, Any]  # further arguments of `moment_init.fit_em`
    sampling: Mapping[str, Any]  # further arguments of `moment_init.sample`

    @property
    def is_plain(self) -> bool:
        """Whether no option names columns or components, so that both may be reduced."""
        restrictions = ("shared", "fixed_weights", "fixed_directions")
        is_free = all(self.fitting[name] is None for name in restrictions)
        return is_free and self.fitting["gate"] == "softmax" and self.has_own_start

    @property
    def has_own_start(self) -> bool:
        """Whether the search finds its own start instead of using a given one."""
        return isinstance(self.fitting["init"], str)


def fit_mixture(
    rows: EstimatorRows,
    merged: EstimatorRows,
    options: MixtureOptions,
    seed: int,
    *,
    reduces: bool = True,
) -> EMFit:
    """Fit a mixture by EM."""
    n_components = validate_n_components(options.n_components, rows.n_obs)
    axes, used = None, merged
    if reduces and options.is_plain:
        n_components, axes = _reduction(merged, n_components)
    if axes is not None:
        projected = axes.project(merged.data.X)
        names = tuple(f"x{index}" for index in range(projected.shape[1]))
        used = replace(merged, data=replace(merged.data, X=projected, feature_names=names))
    fit = _run(used, n_components, options, seed)
    if axes is not None:
        fit = axes.lift(fit, rows.data.feature_names)
    return replace(fit, responsibilities=_memberships(rows, fit), n_obs=rows.n_obs)


def sample_mixture(
    rows: EstimatorRows, options: MixtureOptions, fit: EMFit, seed: int
) -> "xarray.DataTree":
    """Draw from the posterior, starting at a fit."""
    return sample(
        rows.inputs,
        rows.response,
        options.n_components,
        family=rows.family,
        init=fit,
        random_seed=seed,
        **rows.data_block,
        **options.sampling,
    )


def _reduction(rows: EstimatorRows, n_components: int) -> tuple[int, ColumnAxes | None]:
    """Choose the number of components and the axes that the rows can support."""
    data = rows.data
    number, n_axes = affordable_size(
        rows.n_obs,
        n_components,
        data.n_features,
        has_dispersion=data.family.has_dispersion,
        n_gate=len(rows.gate_names),
        n_predictors=data.family.n_predictors // len(data.family.members),
    )
    axes = column_axes(data.X, data.sample_weight, n_axes)
    n_kept = data.n_features if axes is None else axes.basis.shape[1]
    if number < n_components or n_kept == n_axes < data.n_features:
        notify(
            f"`X` has {rows.n_obs} distinct rows with positive weight, fewer than the parameters "
            f"of {n_components} components with {data.n_features} columns. Fitted: {number} "
            f"component(s) along {n_kept} principal axes of the columns. Use fewer components or "
            "columns.",
            WeakSignalWarning,
        )
    return number, axes


def _run(rows: EstimatorRows, n_components: int, options: MixtureOptions, seed: int) -> EMFit:
    with quiet_notices():  # the warning below is for both libraries
        fit = fit_em(
            rows.inputs,
            rows.response,
            n_components,
            family=rows.family,
            random_seed=seed,
            **rows.data_block,
            **options.fitting,
        )
    if not fit.converged:
        notify(fit.warnings[0], EstimatorConvergenceWarning)
    return fit


def _memberships(rows: EstimatorRows, fit: EMFit) -> FloatArray:
    """Compute the responsibilities of the user's rows."""
    block, is_unknown = rows.data_block, rows.data.y < 0.0
    if rows.data.classes is not None and rows.data.groups is None and is_unknown.any():
        # An unknown label has no information: its row is a group of weight zero.
        block |= {"groups": np.arange(rows.n_obs), "sample_weight": np.where(is_unknown, 0.0, 1.0)}
    return fit.predict_membership(rows.inputs, rows.response, **block)


_DENSITIES = 10_000_000
"""Largest number of log densities in memory, rows times draws: 80 MB."""


def mean_parameters(draws: Draws) -> MixtureParameters:
    r"""Compute the posterior means of the parameters.

    The coefficients are :math:`\bar s_j \bar u_j`, the mean length times the unit vector along the
    mean direction: the mean of the coefficients would be too short.
    """
    lengths = np.linalg.norm(draws.coefficients, axis=-2, keepdims=True)
    middle = (draws.coefficients / np.where(lengths > 0.0, lengths, 1.0)).mean(axis=0)
    norms = np.linalg.norm(middle, axis=-2, keepdims=True)
    return MixtureParameters(
        middle / np.where(norms > 0.0, norms, 1.0) * lengths.mean(axis=0),
        draws.biases.mean(axis=0),
        draws.weights.mean(axis=0),
        None if draws.dispersion is None else draws.dispersion.mean(axis=0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class FittedMixture:
    """A fit by EM, or the draws of a posterior whose chains started there."""

    fit: EMFit
    tree: "xarray.DataTree | None" = None  # as returned by `moment_init.sample`

    @property
    def point(self) -> MixtureParameters:
        """Parameters of the fit, or posterior means."""
        if self.tree is None:
            return self.fit.centred_parameters
        return mean_parameters(read_model(self.tree).draws)

    @property
    def n_means(self) -> int:
        """Number of means per row: one for each component and outcome."""
        return self.fit.n_components * max(1, len(self.fit.outcome_names))

    def mean(self, X: Any, kind: PredictionKind, **data: Any) -> FloatArray:
        """Compute the mean responses of rows, or the probabilities of all classes."""
        # X: (n_obs, n_features) -> (n_obs[, n_components][, n_outcomes])
        if self.tree is None:
            return np.asarray(self.fit.predict(X, kind=kind, **data))
        draws, rows = self._drawn(X, **data)
        by_component = kind == "components"
        family = self.fit.response_family
        return means(family, rows, draws, by_component=by_component, is_averaged=True)

    def membership(self, X: Any, y: Any, *, gating: Any = None, **data: Any) -> FloatArray:
        """Compute the probabilities of the components, without responses those of the gate."""
        # X: (n_obs, n_features), y: (n_obs,) or (n_obs, n_responses) -> (n_obs, n_components)
        if y is None:
            return self._prior(X, gating)
        if self.tree is None:
            return self.fit.predict_membership(X, y, gating=gating, **data)
        shares = predict_membership(self.tree, X, y, gating=gating, average=True, **data)
        codes = group_codes(validate_groups(data.get("groups"), len(X)))
        values = np.asarray(shares.values, dtype=np.float64)
        return values if codes is None else values[codes]

    def log_density(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Compute the log densities of all responses of rows."""
        # X: (n_obs, n_features), y: (n_obs,) or (n_obs, n_responses) -> (n_obs,)
        if self.tree is None:
            return unit_scores(self.fit, rows_for(self.fit, X, y, **data)[0])[0]
        result = np.empty(len(X))
        draws, rows = self._drawn(X, y, **data)
        step = max(1, _DENSITIES // draws.n_draws)
        for first in range(0, len(X), step):
            part = slice(first, first + step)
            values = log_likelihoods(self.fit.response_family, rows.take(part), draws)
            result[part] = logsumexp(values, axis=0) - np.log(draws.n_draws)
        return result

    def _prior(self, X: Any, gating: Any) -> FloatArray:
        """Compute the probabilities of the components before a response is observed."""
        # X: (n_obs, n_features) -> (n_obs, n_components)
        if self.tree is None:
            rows, _ = rows_for(self.fit, X, gating=gating)
            return memberships(None, rows, single_draw(self.fit), is_averaged=True)
        draws, rows = self._drawn(X, gating=gating)
        return memberships(None, rows, draws, is_averaged=True)

    @property
    def _draws(self) -> TreeModel:
        if self.tree is None:
            raise ValueError("`tree` must be given for draws; got None.")
        return read_model(self.tree)

    def _drawn(self, X: Any, y: Any = None, **data: Any) -> tuple[Draws, LikelihoodRows]:
        """Read the draws, and check rows for them."""
        model = self._draws
        layout = replace(model.layout, classes=self.fit.classes)  # the tree has them as text
        rows, _ = rows_for(layout, X, y, **data)
        require_finite(rows, model.draws)
        return model.draws.centred(rows)
