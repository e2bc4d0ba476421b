"""Fitted mixtures with the methods that an estimator needs: means, memberships and densities.

`PointMixture` uses the parameters of a maximum-likelihood fit, `DrawnMixture` averages over the
draws of a posterior.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

from moment_init.checks import FloatArray
from moment_init.data.checking import (
    RegressionData,
    group_codes,
    require_finite_offset,
    require_finite_predictors,
    validate_groups,
    validate_n_trials,
)
from moment_init.em.prediction import PredictionKind, logit_parameters, rows_for, unit_scores
from moment_init.em.result import EMFit
from moment_init.estimators.joint_mixtures import JointMixture
from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import prior_probabilities
from moment_init.posterior.draws import (
    PosteriorDraws,
    RowLayout,
    draw_log_likelihoods,
    family_of,
    posterior_of,
    read_draws,
)
from moment_init.posterior.membership import predict_membership

if TYPE_CHECKING:
    import xarray

_DENSITIES = 10_000_000
"""Largest number of log densities in memory, rows times draws: 80 MB."""


def posterior_point(tree: "xarray.DataTree") -> MixtureParameters:
    r"""Compute the posterior means of the parameters.

    The coefficients are :math:`\bar s_j \bar u_j`, the mean length times the unit vector along the
    mean direction: the mean of the coefficients would be too short.
    """
    draws = PosteriorDraws.of(posterior_of(tree, None))
    lengths = np.linalg.norm(draws.coefficients, axis=1)
    units = draws.coefficients / np.where(lengths > 0.0, lengths, 1.0)[:, None, :]
    middle = units.mean(axis=0)
    norms = np.linalg.norm(middle, axis=0)
    directions = middle / np.where(norms > 0.0, norms, 1.0)
    return MixtureParameters(
        directions * lengths.mean(axis=0),
        draws.biases.mean(axis=0),
        draws.weights.mean(axis=0),
        None if draws.dispersion is None else draws.dispersion.mean(axis=0),
    )


def mean_response(
    tree: "xarray.DataTree",
    X: Any,
    kind: PredictionKind = "mean",
    *,
    offset: Any = None,
    n_trials: Any = None,
    gating: Any = None,
) -> FloatArray:
    r"""Compute the posterior mean of the mean response.

    .. math:: E\Big[\sum_j \pi_j\, g(\langle\beta_j, x\rangle + b_j)\Big]
    """
    # X: (n_obs, n_features) -> (n_obs,) or (n_obs, n_components)
    draws = PosteriorDraws.of(posterior_of(tree, None))
    data, covariates = _rows(tree, draws, X, None, offset, n_trials, gating)
    total = np.zeros((data.n_obs, draws.biases.shape[1]))
    for block in draws.blocks(data.n_obs):
        means = data.family.link.mean(draws.predictors(data, block))
        if kind == "mean":
            means = means * np.exp(draws.log_weights(covariates, block))
        total += means.sum(axis=0)
    result = total / draws.n_draws
    if data.n_trials is not None:
        result *= data.n_trials[:, None]
    return result.sum(axis=1) if kind == "mean" else result


def mean_density(
    tree: "xarray.DataTree",
    X: Any,
    y: Any,
    *,
    offset: Any = None,
    n_trials: Any = None,
    gating: Any = None,
) -> FloatArray:
    r"""Compute the log predictive density of each response: the log of its mean density."""
    # X: (n_obs, n_features), y: (n_obs,) -> (n_obs,)
    draws = PosteriorDraws.of(posterior_of(tree, None))
    data, covariates = _rows(tree, draws, X, y, offset, n_trials, gating)
    result = np.empty(data.n_obs)
    step = max(1, _DENSITIES // draws.n_draws)
    for first in range(0, data.n_obs, step):
        part = slice(first, first + step)
        gate = None if covariates is None else covariates[part]
        values = draw_log_likelihoods(draws, data.take(part), gate)
        result[part] = logsumexp(values, axis=0) - np.log(draws.n_draws)
    return result


def _rows(
    tree: "xarray.DataTree",
    draws: PosteriorDraws,
    X: Any,
    y: Any,
    offset: Any,
    n_trials: Any,
    gating: Any,
) -> tuple[RegressionData, FloatArray | None]:
    """Check rows and gating covariates; without a response, zeros are passed and not used."""
    family = family_of(tree, None, None)
    # The layout without a family accepts any response.
    _, layout = read_draws(posterior_of(tree, 1), None)
    response = np.zeros(len(X)) if y is None else y
    rows, _ = rows_for(layout.as_fit(), X, response, offset=offset, gating=gating)
    trials = validate_n_trials(n_trials, family, rows.n_obs)
    if y is not None:
        family.validate_response(rows.y, trials)
    inputs = np.asarray(rows.Z)
    require_finite_offset(rows.offset)
    require_finite_predictors(inputs, np.moveaxis(draws.coefficients, 1, 0), "X")
    if draws.gate is not None and rows.gate is not None:
        require_finite_predictors(rows.gate, np.moveaxis(draws.gate, 1, 0), "gating")
    data = RegressionData(
        X=inputs,
        y=rows.y,
        family=family,
        feature_names=layout.feature_names,
        offset=rows.offset,
        n_trials=trials,
        sample_weight=np.ones(rows.n_obs),
        groups=None,
    )
    return data, rows.gate


@dataclass(frozen=True, slots=True, eq=False)
class PointMixture:
    """A maximum-likelihood fit."""

    fit: EMFit

    @property
    def point(self) -> MixtureParameters:
        """Parameters of the fit."""
        return self.fit.centred_parameters

    @property
    def n_means(self) -> int:
        """Number of means per row: one per component."""
        return self.fit.n_components

    def mean(self, X: Any, kind: PredictionKind, **data: Any) -> FloatArray:
        """Compute the mean response of rows."""
        # X: (n_obs, n_features) -> (n_obs,) or (n_obs, n_components)
        return self.fit.predict(X, kind=kind, **data)

    def membership(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Compute the probabilities of the components."""
        # X: (n_obs, n_features), y: (n_obs,) -> (n_obs, n_components)
        if y is not None:
            return self.fit.predict_membership(X, y, **data)
        fit, ones = self.fit, np.ones((len(X), 1))
        # A gaussian family accepts any response, which is not used.
        layout = RowLayout(
            get_family("gaussian"),
            fit.feature_names,
            fit.gate_names,
            fit.gate_centre,
            fit.gate_means,
        )
        rows, _ = rows_for(layout.as_fit(), X, ones[:, 0], gating=data.get("gating"))
        covariates = ones if rows.gate is None else np.hstack([ones, rows.gate])
        prior = prior_probabilities(logit_parameters(fit), covariates).T
        return np.broadcast_to(prior, (len(X), fit.n_components)).copy()

    def log_density(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Compute the log densities of responses."""
        # X: (n_obs, n_features), y: (n_obs,) -> (n_obs,)
        rows, _ = rows_for(self.fit, X, y, **data)
        return unit_scores(self.fit, rows)[0]


@dataclass(frozen=True, slots=True, eq=False)
class DrawnMixture:
    """The draws of a posterior."""

    tree: "xarray.DataTree"  # as returned by `moment_init.sample`

    @property
    def point(self) -> MixtureParameters:
        """Posterior means; directions are the unit vectors along their means."""
        return posterior_point(self.tree)

    @property
    def n_means(self) -> int:
        """Number of means per row: one per component."""
        return self.point.n_components

    def mean(self, X: Any, kind: PredictionKind, **data: Any) -> FloatArray:
        """Compute the posterior mean of the mean response of rows."""
        # X: (n_obs, n_features) -> (n_obs,) or (n_obs, n_components)
        return mean_response(self.tree, X, kind, **data)

    def membership(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Compute the posterior means of the probabilities of the components."""
        # X: (n_obs, n_features), y: (n_obs,) -> (n_obs, n_components)
        if y is None and "gate" not in self.tree["posterior"]:
            return np.tile(self.point.weights, (len(X), 1))
        if y is None:
            data = {"gating": data.get("gating")}
        probabilities = predict_membership(self.tree, X, y, average=True, **data)
        codes = group_codes(validate_groups(data.get("groups"), len(X)))
        values = np.asarray(probabilities.values, dtype=np.float64)
        return values if codes is None else values[codes]

    def log_density(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Compute the logs of the posterior mean densities of responses."""
        # X: (n_obs, n_features), y: (n_obs,) -> (n_obs,)
        return mean_density(self.tree, X, y, **data)


FittedMixture = PointMixture | DrawnMixture | JointMixture
"""The fitted mixtures of an estimator; all have the same methods."""
