"""A fitted mixture with the methods that an estimator needs: means, memberships and densities.

They use the parameters of a fit by EM, or average over the draws of a posterior.
"""

from dataclasses import dataclass, replace
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
)
from moment_init.em.prediction import PredictionKind, logit_parameters, rows_for, unit_scores
from moment_init.em.result import EMFit
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import prior_probabilities
from moment_init.posterior.draws import PosteriorDraws, draw_log_likelihoods, posterior_of
from moment_init.posterior.membership import predict_membership

if TYPE_CHECKING:
    import xarray

_DENSITIES = 10_000_000
"""Largest number of log densities in memory, rows times draws: 80 MB."""


def mean_parameters(draws: PosteriorDraws) -> MixtureParameters:
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


def mean_response(
    draws: PosteriorDraws, data: RegressionData, gating: FloatArray | None, kind: PredictionKind
) -> FloatArray:
    r"""Compute the posterior means of the mean responses, or of the probabilities of classes.

    .. math:: E\Big[\sum_j \pi_j\, g(\langle\beta_j, x\rangle + b_j)\Big]
    """
    # gating: (n_obs, n_gate) -> (n_obs[, n_components]), with an axis of outcomes at the end if
    # there are several
    total: Any = 0.0  # (n_obs, n_components), or (n_outcomes, n_obs, n_components)
    for block in draws.blocks(data.n_obs):
        eta = draws.predictors(data, block)
        means = data.family.means(eta if eta.ndim == 3 else np.moveaxis(eta, 1, 0))
        if kind == "mean":
            means = means * np.exp(draws.log_weights(gating, block))
        total = total + means.sum(axis=-3)
    result = total.sum(axis=-1) if kind == "mean" else total
    result = (result if total.ndim == 2 else np.moveaxis(result, 0, -1)) / draws.n_draws
    if data.n_trials is None:
        return np.ascontiguousarray(result)
    is_by_component = kind == "components"
    return np.asarray(result * (data.n_trials[:, None] if is_by_component else data.n_trials))


def mean_density(
    draws: PosteriorDraws, data: RegressionData, gating: FloatArray | None
) -> FloatArray:
    """Compute the log predictive density of each row: the log of its mean density."""
    # gating: (n_obs, n_gate) -> (n_obs,)
    result = np.empty(data.n_obs)
    step = max(1, _DENSITIES // draws.n_draws)
    for first in range(0, data.n_obs, step):
        part = slice(first, first + step)
        gate = None if gating is None else gating[part]
        values = draw_log_likelihoods(draws, data.take(part), gate)
        result[part] = logsumexp(values, axis=0) - np.log(draws.n_draws)
    return result


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
        return mean_parameters(PosteriorDraws.of(posterior_of(self.tree, None)))

    @property
    def n_means(self) -> int:
        """Number of means per row: one for each component and outcome."""
        return self.fit.n_components * max(1, len(self.fit.outcome_names))

    def mean(self, X: Any, kind: PredictionKind, **data: Any) -> FloatArray:
        """Compute the mean responses of rows, or the probabilities of all classes."""
        # X: (n_obs, n_features) -> (n_obs[, n_components][, n_outcomes])
        if self.tree is None:
            return self.fit.predict(X, kind=kind, **data)
        rows, gating = self._rows(X, None, **data)
        return mean_response(self._draws(rows, gating), rows, gating, kind)

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
        rows, gating = self._rows(X, y, **data)
        return mean_density(self._draws(rows, gating), rows, gating)

    def _prior(self, X: Any, gating: Any) -> FloatArray:
        """Compute the probabilities of the components before a response is observed."""
        # X: (n_obs, n_features) -> (n_obs, n_components)
        data, covariates = self._rows(X, None, gating=gating)
        if covariates is None:
            return np.tile(self.point.weights, (data.n_obs, 1))
        if self.tree is None:
            design = np.hstack([np.ones((data.n_obs, 1)), covariates])
            return prior_probabilities(logit_parameters(self.fit), design).T
        draws = self._draws(data, covariates)
        shares = (np.exp(draws.log_weights(covariates, part)) for part in draws.blocks(data.n_obs))
        return np.asarray(sum(share.sum(axis=0) for share in shares) / draws.n_draws)

    def _rows(self, X: Any, y: Any, **data: Any) -> tuple[RegressionData, FloatArray | None]:
        """Check rows against the fit; return them and their centred gating covariates."""
        fit = self.fit
        if y is None:  # a response that all families accept, and that is not used
            shape = (len(X), max(1, len(fit.response_names)))
            y = np.ones(shape) if fit.classes is None else np.repeat(fit.classes[:1], len(X))
        rows, _ = rows_for(fit, X, y, **data)
        checked = RegressionData(
            X=rows.Z,
            y=rows.y,
            family=fit.response_family,
            feature_names=fit.feature_names,
            offset=rows.offset,
            n_trials=rows.n_trials,
            sample_weight=rows.sample_weight,
            groups=None,
        )
        return checked, rows.gate

    def _draws(self, data: RegressionData, gating: FloatArray | None) -> PosteriorDraws:
        """Read the draws, for centred gating covariates; raise if predictors would overflow."""
        draws = PosteriorDraws.of(posterior_of(self.tree, None))
        require_finite_offset(data.offset)
        require_finite_predictors(np.asarray(data.X), np.moveaxis(draws.coefficients, -2, 0), "X")
        centre = self.fit.gate_centre
        if gating is None or draws.gate is None or draws.gate_biases is None or centre is None:
            return draws
        require_finite_predictors(gating, np.moveaxis(draws.gate, 1, 0), "gating")
        return replace(draws, gate_biases=draws.gate_biases + centre @ draws.gate)
