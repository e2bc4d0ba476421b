"""A fitted mixture with several predictors, of responses or classes, as an estimator asks it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, override

import numpy as np
from scipy.special import logsumexp

from moment_init.checks import FloatArray
from moment_init.em.prediction import PredictionKind
from moment_init.responses.data import refuse_arguments
from moment_init.responses.draws import (
    mean_outcomes,
    mean_parameters,
    parameters_of,
    row_log_densities,
    row_memberships,
)
from moment_init.responses.parameters import JointParameters
from moment_init.responses.result import JointFit, matched_inputs, rows_of

if TYPE_CHECKING:
    import xarray


def side_by_side(values: FloatArray) -> FloatArray:
    """Write components of several predictors, or outcomes, as columns."""
    # values: (n, n_components) or (n, n_components, n_predictors) -> (n, n_predictors n_components)
    return np.ascontiguousarray(np.swapaxes(values, 1, -1)).reshape(len(values), -1)


@dataclass(frozen=True, slots=True, eq=False)
class JointMixture:
    """A maximum-likelihood fit."""

    fit: JointFit  # the fit

    @property
    def point(self) -> JointParameters:
        """Parameters of the fit; of draws posterior means, of directions units along them."""
        return self._point()

    @property
    def n_means(self) -> int:
        """Number of means of a row: components times responses, or classes."""
        return self.fit.n_components * len(self.fit.outcome_names)

    def linked(self, projections: FloatArray) -> FloatArray:
        """Means of which projections are the predictors."""
        # projections: (n_obs, n_predictors n_components) -> (n_obs, n_outcomes n_components)
        shape = (self.fit.kind.n_predictors, self.fit.n_components, -1)
        means = self.fit.kind.mean(np.ascontiguousarray(projections.T).reshape(shape))
        return np.ascontiguousarray(means.reshape(self.n_means, -1).T)

    def mean(self, X: Any, kind: PredictionKind, *, gating: Any = None, **data: Any) -> FloatArray:
        """Mean responses of rows, or probabilities of classes."""
        # X: (n_obs, n_features) -> (n_obs, n_outcomes) or (n_obs, n_components, n_outcomes)
        refuse_arguments("predict", gating=gating)
        return self._means(X, kind, data)

    def membership(
        self,
        X: Any,
        y: Any,
        *,
        groups: Any = None,
        gating: Any = None,
        sample_weight: Any = None,
        **data: Any,
    ) -> FloatArray:
        """Probabilities of components."""
        # X: (n_obs, n_features), y: (n_obs, n_responses) -> (n_obs, n_components)
        refuse_arguments("predict_membership", groups=groups, gating=gating)
        if y is None:
            return np.tile(self.point.weights, (len(X), 1))
        return self._memberships(X, y, data)

    def log_density(self, X: Any, y: Any, *, gating: Any = None, **data: Any) -> FloatArray:
        """Log densities of all responses of rows."""
        # X: (n_obs, n_features), y: (n_obs, n_responses) -> (n_obs,)
        refuse_arguments("log_density", gating=gating)
        return self._log_densities(X, y, data)

    # --- what draws answer in another way --------------------------------------------------------

    def _point(self) -> JointParameters:
        return self.fit.parameters

    def _means(self, X: Any, kind: PredictionKind, data: dict[str, Any]) -> FloatArray:
        return self.fit.predict(X, kind=kind, **data)

    def _memberships(self, X: Any, y: Any, data: dict[str, Any]) -> FloatArray:
        return self.fit.predict_membership(X, y, **data)

    def _log_densities(self, X: Any, y: Any, data: dict[str, Any]) -> FloatArray:
        return self.fit.log_densities(X, y, **data)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnJointMixture(JointMixture):
    """Draws of a posterior; answers are averages over them."""

    tree: "xarray.DataTree"  # as `moment_init.sample` gives it

    @override
    def _point(self) -> JointParameters:
        return mean_parameters(self._draws())

    @override
    def _means(self, X: Any, kind: PredictionKind, data: dict[str, Any]) -> FloatArray:
        rows = matched_inputs(self.fit, X, **data)
        return mean_outcomes(self.fit.kind, rows, self._draws(), by_component=kind == "components")

    @override
    def _memberships(self, X: Any, y: Any, data: dict[str, Any]) -> FloatArray:
        rows = rows_of(self.fit, X, y, **data)
        return row_memberships(self.fit.kind, rows, self._draws(), is_averaged=True)

    @override
    def _log_densities(self, X: Any, y: Any, data: dict[str, Any]) -> FloatArray:
        values = row_log_densities(self.fit.kind, rows_of(self.fit, X, y, **data), self._draws())
        return np.asarray(logsumexp(values, axis=0) - np.log(len(values)))

    def _draws(self) -> list[JointParameters]:
        return parameters_of(self.tree["posterior"].to_dataset(), self.fit.kind)
