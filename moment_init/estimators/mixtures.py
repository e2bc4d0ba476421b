"""A fitted mixture as an estimator asks it: means, memberships and densities of rows.

`PointMixture` answers with the parameters of a maximum-likelihood fit, `DrawnMixture` with averages
over the draws of a posterior.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.em.prediction import (
    PredictionKind,
    logit_parameters,
    rows_for,
    unit_scores,
)
from moment_init.em.result import EMFit
from moment_init.estimators.draws import mean_density, mean_response, posterior_point
from moment_init.estimators.joint_mixtures import JointMixture
from moment_init.families import get_family
from moment_init.groups import group_codes, validate_groups
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import prior_probabilities
from moment_init.membership import predict_membership
from moment_init.membership_draws import RowLayout

if TYPE_CHECKING:
    import xarray

__all__ = ["DrawnMixture", "FittedMixture", "PointMixture"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PointMixture:
    """A maximum-likelihood fit.

    Parameters
    ----------
    fit : EMFit
        The fit.
    """

    fit: EMFit

    @property
    def point(self) -> MixtureParameters:
        """Parameters of the fit."""
        return self.fit.centred_parameters

    @property
    def n_means(self) -> int:
        """Number of means of a row: one a component."""
        return self.fit.n_components

    def mean(self, X: Any, kind: PredictionKind, **data: Any) -> FloatArray:
        """Mean response of rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            Inputs.
        kind : {"mean", "components"}
            Mean of the mixture, or of every component.
        **data : array-like
            `offset`, `n_trials` and `gating`.

        Returns
        -------
        numpy.ndarray, shape (n_obs,) or (n_obs, n_components)
            Mean responses.
        """
        return self.fit.predict(X, kind=kind, **data)

    def membership(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Probabilities of components.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            Inputs.
        y : numpy.ndarray, shape (n_obs,), or None
            Response.
        **data : array-like
            `offset`, `n_trials`, `gating`, `groups` and `sample_weight`.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components)
            Probabilities; every row sums to one.
        """
        if y is not None:
            return self.fit.predict_membership(X, y, **data)
        fit, ones = self.fit, np.ones((len(X), 1))
        # Any response is possible under a gaussian family; it is not read.
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
        """Log densities of responses.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            Inputs.
        y : numpy.ndarray, shape (n_obs,)
            Response.
        **data : array-like
            `offset`, `n_trials` and `gating`.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            Log densities of the rows.
        """
        rows, _ = rows_for(self.fit, X, y, **data)
        return unit_scores(self.fit, rows)[0]


@dataclass(frozen=True, slots=True, eq=False)
class DrawnMixture:
    """Draws of a posterior.

    Parameters
    ----------
    tree : xarray.DataTree
        As `moment_init.sample` gives it.
    """

    tree: "xarray.DataTree"

    @property
    def point(self) -> MixtureParameters:
        """Posterior means; of directions the unit vectors along them."""
        return posterior_point(self.tree)

    @property
    def n_means(self) -> int:
        """Number of means of a row: one a component."""
        return self.point.n_components

    def mean(self, X: Any, kind: PredictionKind, **data: Any) -> FloatArray:
        """Posterior mean of the mean response of rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            Inputs.
        kind : {"mean", "components"}
            Mean of the mixture, or of every component.
        **data : array-like
            `offset`, `n_trials` and `gating`.

        Returns
        -------
        numpy.ndarray, shape (n_obs,) or (n_obs, n_components)
            Mean responses.
        """
        return mean_response(self.tree, X, kind, **data)

    def membership(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Posterior means of the probabilities of components.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            Inputs.
        y : numpy.ndarray, shape (n_obs,), or None
            Response.
        **data : array-like
            `offset`, `n_trials`, `gating`, `groups` and `sample_weight`.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components)
            Probabilities; every row sums to one.
        """
        if y is None and "gate" not in self.tree["posterior"]:
            return np.tile(self.point.weights, (len(X), 1))
        if y is None:
            data = {"gating": data.get("gating")}
        found = predict_membership(self.tree, X, y, average=True, **data)
        codes = group_codes(validate_groups(data.get("groups"), len(X)))
        values = np.asarray(found.values, dtype=np.float64)
        return values if codes is None else values[codes]

    def log_density(self, X: Any, y: Any, **data: Any) -> FloatArray:
        """Log posterior means of the densities of responses.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            Inputs.
        y : numpy.ndarray, shape (n_obs,)
            Response.
        **data : array-like
            `offset`, `n_trials` and `gating`.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            Log densities of the rows.
        """
        return mean_density(self.tree, X, y, **data)


FittedMixture = PointMixture | DrawnMixture | JointMixture
"""What an estimator has fitted; all answer the same questions."""
