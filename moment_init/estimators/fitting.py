"""Fit one mixture to the rows of an estimator: by maximum likelihood, or by draws."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from moment_init.arguments import validate_n_components
from moment_init.em import EMFit, fit_em
from moment_init.estimators.columns import ColumnAxes, affordable_size, column_axes
from moment_init.estimators.rows import EstimatorRows
from moment_init.estimators.warning_types import EstimatorConvergenceWarning
from moment_init.exceptions import WeakSignalWarning
from moment_init.families import Family
from moment_init.notices import notify, quiet_notices
from moment_init.responses.result import JointFit
from moment_init.sampling import sample

if TYPE_CHECKING:
    import xarray

__all__ = ["MixtureOptions", "fit_mixture", "sample_mixture"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOptions:
    """What an estimator was asked for.

    Parameters
    ----------
    n_components : int
        Number of components.
    family : Family, tuple of Family, or "categorical"
        Family of the response, with its link; one for each of several.
    fitting : mapping of str to object
        Further arguments of `moment_init.fit_em`.
    sampling : mapping of str to object
        Further arguments of `moment_init.sample`.
    """

    n_components: int
    family: Family | tuple[Family, ...] | str
    fitting: Mapping[str, Any]
    sampling: Mapping[str, Any]

    @property
    def has_dispersion(self) -> bool:
        """Whether a component has a dispersion."""
        families = self.family if isinstance(self.family, tuple) else (self.family,)
        return any(isinstance(each, Family) and each.has_dispersion for each in families)

    @property
    def is_plain(self) -> bool:
        """Whether nothing names single columns, rows or components: all may be reduced then."""
        restrictions = ("shared", "fixed_weights", "fixed_directions")
        is_free = all(self.fitting[name] is None for name in restrictions)
        return is_free and self.fitting["gate"] == "softmax" and self.has_own_start

    @property
    def has_own_start(self) -> bool:
        """Whether the search finds its own start, and none is given."""
        return isinstance(self.fitting["init"], str)


def fit_mixture(
    rows: EstimatorRows,
    merged: EstimatorRows,
    options: MixtureOptions,
    seed: int,
    *,
    reduces: bool = True,
) -> EMFit | JointFit:
    """Fit by maximum likelihood.

    Parameters
    ----------
    rows : EstimatorRows
        The user's rows.
    merged : EstimatorRows
        The same rows, equal ones merged; or the very same object.
    options : MixtureOptions
        What was asked for.
    seed : int
        Seed of the search.
    reduces : bool, default True
        Whether constant, collinear or too many columns are reduced to axes; otherwise they are
        errors.

    Returns
    -------
    EMFit or JointFit
        The fit, with the user's columns and rows.

    Raises
    ------
    TypeError, ValueError
        As `moment_init.fit_em`.

    Warns
    -----
    EstimatorConvergenceWarning
        If the search did not converge.
    WeakSignalWarning
        If there are too few rows for the columns or the components.
    """
    n_components = validate_n_components(options.n_components, rows.n_obs)
    axes, used = None, merged
    if reduces and options.is_plain:
        n_components, axes = _reduction(merged, n_components, options.has_dispersion)
    if axes is not None:
        used = replace(merged, X=axes.project(merged.X), feature_names=None)
    fit = _run(used, n_components, options, seed)
    if axes is not None:
        names = rows.feature_names or _default_names(rows)
        fit = axes.lift(fit, names) if isinstance(fit, EMFit) else axes.lift_joint(fit, names)
    return replace(fit, responsibilities=_memberships(rows, fit), n_obs=rows.n_obs)


def sample_mixture(
    rows: EstimatorRows, options: MixtureOptions, fit: EMFit | JointFit, seed: int
) -> "xarray.DataTree":
    """Draw from the posterior, from a fit onwards.

    Parameters
    ----------
    rows : EstimatorRows
        The rows.
    options : MixtureOptions
        What was asked for.
    fit : EMFit or JointFit
        Where the chains start.
    seed : int
        Seed of the draws.

    Returns
    -------
    xarray.DataTree
        As `moment_init.sample` gives it.

    Raises
    ------
    TypeError, ValueError
        As `moment_init.sample`.
    """
    return sample(
        rows.inputs,
        rows.response,
        options.n_components,
        family=cast("Any", options.family),
        init=fit,
        random_seed=seed,
        **rows.data_block,
        **options.sampling,
    )


def _reduction(
    rows: EstimatorRows, n_components: int, has_dispersion: bool
) -> tuple[int, ColumnAxes | None]:
    """Components that rows can carry, and the axes along which they differ."""
    n_features = rows.X.shape[1]
    number, n_axes = affordable_size(
        rows.n_obs,
        n_components,
        n_features,
        has_dispersion=has_dispersion,
        n_gate=rows.n_gate,
        n_predictors=1 if rows.classes is None else len(rows.classes) - 1,
    )
    axes = column_axes(rows.X, rows.sample_weight, n_axes)
    n_kept = n_features if axes is None else axes.basis.shape[1]
    if number < n_components or n_kept == n_axes < n_features:
        notify(
            f"`X` should have more distinct rows of positive weight than {n_components} components "
            f"of {n_features} columns have parameters; got {rows.n_obs}. Fitted: {number} "
            f"component(s) along {n_kept} principal axes of the columns. Use fewer components or "
            "columns.",
            WeakSignalWarning,
        )
    return number, axes


def _run(
    rows: EstimatorRows, n_components: int, options: MixtureOptions, seed: int
) -> EMFit | JointFit:
    with quiet_notices():  # said below, for both libraries
        fit: EMFit | JointFit = fit_em(
            rows.inputs,
            rows.response,
            n_components,
            family=cast("Any", options.family),
            random_seed=seed,
            **rows.data_block,
            **options.fitting,
        )
    if not fit.converged:
        notify(fit.warnings[0], EstimatorConvergenceWarning)
    return fit


def _memberships(rows: EstimatorRows, fit: EMFit | JointFit) -> FloatArray:
    """Responsibilities of the user's rows."""
    if isinstance(fit, EMFit):
        return fit.predict_membership(rows.inputs, rows.y, **rows.data_block)
    shares = fit.predict_membership(
        rows.inputs, rows.response, offset=rows.offset, n_trials=rows.n_trials
    )
    if rows.classes is not None:
        shares[rows.y < 0.0] = fit.weights  # a label that is not known says nothing
    return shares


def _default_names(rows: EstimatorRows) -> tuple[str, ...]:
    return tuple(f"x{index}" for index in range(np.shape(rows.X)[1]))
