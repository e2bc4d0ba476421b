"""Mixtures of logistic regressions as users write them in PyMC: free coefficients, default start.

The priors are those of our own model with free directions, so that the posteriors differ only by
the anchors.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from moment_init import MixtureData

__all__ = ["HAND_WRITTEN", "log_sum_exp_model", "mixture_class_model"]

# Scales ~ HalfNormal(5) in any direction, so E |beta|^2 = 25; biases as in our model.
SCALE_DEVIATION, BIAS_DEVIATION = 5.0, 2.5


def mixture_class_model(data: MixtureData) -> Any:
    """Write the model with `pymc.Mixture`."""
    import pymc as pm

    with pm.Model(coords=_coords(data)) as model:
        weight, eta = _mixture(data)
        pm.Mixture(
            "y", w=weight, comp_dists=pm.Bernoulli.dist(logit_p=eta), observed=_responses(data)
        )
    return model


def log_sum_exp_model(data: MixtureData) -> Any:
    """Write the model with a log-sum-exp over the components, in a potential."""
    import pymc as pm

    sign = 2.0 * data.y[:, None] - 1.0
    with pm.Model(coords=_coords(data)) as model:
        weight, eta = _mixture(data)
        density = pm.math.log(weight) - pm.math.log1pexp(-sign * eta)
        pm.Potential("y", pm.math.logsumexp(density, axis=1).sum())
    return model


def _coords(data: MixtureData) -> dict[str, Any]:
    return {
        "feature": np.arange(data.X.shape[1]),
        "component": np.arange(data.weights.size),
    }


def _mixture(data: MixtureData) -> tuple[Any, Any]:
    """Weights, and the linear predictor of every row under every component."""
    import pymc as pm

    deviation = SCALE_DEVIATION / np.sqrt(data.X.shape[1])
    weight = pm.Dirichlet("weight", np.ones(data.weights.size), dims="component")
    coefficient = pm.Normal("coefficient", 0.0, deviation, dims=("feature", "component"))
    bias = pm.Normal("bias", 0.0, BIAS_DEVIATION, dims="component")
    return weight, data.X @ coefficient + bias


def _responses(data: MixtureData) -> Any:
    return data.y.astype(np.int64)


HAND_WRITTEN: Mapping[str, Callable[[MixtureData], Any]] = MappingProxyType(
    {"pm.Mixture": mixture_class_model, "log-sum-exp": log_sum_exp_model}
)
"""Models by name."""
