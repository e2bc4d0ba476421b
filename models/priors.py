r"""Priors of the Bayesian mixture, in standardised coordinates.

In these coordinates the inputs have mean zero and covariance I, so a component's scale is the
standard deviation of its linear predictor, and a response with the identity link has standard
deviation one. The same defaults therefore suit all data, in any units:

| prior | logit, softmax | probit | log | identity |
| --- | --- | --- | --- | --- |
| scale ~ HalfNormal | 5 | 3 | 1 | 1.5 |
| bias ~ Normal(0, .) | 2.5 | 1.5 | 1.5 | 1.5 |

- *Bias*: relative to the mean response for the identity link, and to the logarithm of the mean
  response per unit of exposure for the log link.
- *Weights*: uniform on the simplex.
- *Dispersion*: a standard deviation has the prior LogNormal(log 0.5, 1). Its density vanishes at
  zero faster than any power, as it must: the likelihood of a component that passes through tied
  rows is unbounded there. The negative binomial's alpha and the gamma's shape have the prior
  LogNormal(log 3, 1); 1 is a broad distribution, 10 a narrow one.
- *Free coefficients*: normal, with the second moment that the scale's prior implies.
- *Gate*: logits and their slopes, per standard deviation of a covariate, sum to zero over the
  components and have standard deviation 2 before this constraint.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size

from moment_init.checks import FloatArray
from moment_init.em.priors import (
    GATE_DEVIATION,
    LINK_PRIORS,
    MEDIAN_DEVIATION,
    MEDIAN_SHAPE,
    SHAPE_DEVIATION,
)
from moment_init.models.ops import CompiledSimplex

PRIOR_NAMES = (
    "scale",
    "bias",
    "weight",
    "dispersion",
    "tilt",
    "coefficient",
    "gate",
    "gate_bias",
)
"""Names that `priors` may contain."""

Prior = Any
"""An unregistered distribution, a callable of (name, dims), or an object with `create_variable`."""


class ModelPriors:
    """The user's priors, and defaults for the rest."""

    def __init__(
        self,
        priors: Mapping[str, Prior] | None,
        *,
        link: str | Sequence[str],  # of the response, or of each linear predictor
        n_features: int,
    ) -> None:
        self._given = _validated(priors)
        # scalars, or (n_predictors, 1): the dims are then (response, component)
        self._scale: float | FloatArray
        self._bias: float | FloatArray
        if isinstance(link, str):
            self._scale, self._bias = LINK_PRIORS[link].scale, LINK_PRIORS[link].bias
        else:
            self._scale = np.array([[LINK_PRIORS[name].scale] for name in link])
            self._bias = np.array([[LINK_PRIORS[name].bias] for name in link])
        self._n_features = n_features
        self._used: set[str] = set()

    def scale(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the scales."""
        return self._create(
            "scale", name, dims, lambda: pm.HalfNormal(name, self._scale, dims=dims)
        )

    def bias(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the biases."""
        return self._create("bias", name, dims, lambda: pm.Normal(name, 0.0, self._bias, dims=dims))

    def weight(self, name: str, dims: tuple[str, ...], n_components: int) -> Any:
        """Create the weights."""
        ones = np.ones(n_components)
        return self._create(
            "weight",
            name,
            dims,
            lambda: pm.Dirichlet(name, ones, dims=dims, default_transform=CompiledSimplex()),
        )

    def dispersion(
        self, name: str, dims: tuple[str, ...], *, is_deviation: bool | NDArray[np.bool_]
    ) -> Any:
        """Create the dispersions."""
        # is_deviation: scalar or (n_dispersed, 1)

        def default() -> Any:
            median = np.where(is_deviation, MEDIAN_DEVIATION, MEDIAN_SHAPE)
            return pm.LogNormal(name, np.log(median), SHAPE_DEVIATION, dims=dims)

        return self._create("dispersion", name, dims, default)

    def tilt(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the tilts of anchored directions."""
        return self._create("tilt", name, dims, lambda: pm.Normal(name, 0.0, 1.0, dims=dims))

    def coefficient(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create free coefficients, with E |beta|^2 = E s^2 of the default scales."""
        deviation = self._scale / np.sqrt(self._n_features)
        if np.ndim(deviation):
            deviation = np.expand_dims(deviation, -1)  # the dims are (response, feature, component)
        return self._create(
            "coefficient", name, dims, lambda: pm.Normal(name, 0.0, deviation, dims=dims)
        )

    def gate(self, prior: str, name: str, dims: tuple[str, ...]) -> Any:
        """Create the logits of a gate or their slopes; the last dim must be the component."""
        return self._create(
            prior, name, dims, lambda: pm.ZeroSumNormal(name, GATE_DEVIATION, dims=dims)
        )

    def require_all_used(self) -> None:
        """Raise if there are priors of parameters that the model does not have."""
        unused = sorted(set(self._given) - self._used)
        if unused:
            raise ValueError(
                f"`priors` must name parameters of the model; got {unused}, which it does not "
                f"have. Its parameters are {sorted(self._used)}. Leave the others out, or change "
                "`directions`, `family` or `gating`."
            )

    def _create(
        self, prior: str, name: str, dims: tuple[str, ...], default: Callable[[], Any]
    ) -> Any:
        self._used.add(prior)
        user_prior = self._given.get(prior)
        if user_prior is None:
            return default()
        variable = _register(user_prior, prior, name, dims)
        if not hasattr(variable, "type"):
            raise TypeError(
                f"`priors`: {prior!r} must return the variable that it creates; got "
                f"{type(variable).__name__}. Return the variable from the callable."
            )
        sizes = tuple(int(pm.modelcontext(None).dim_lengths[dim].eval()) for dim in dims)
        shape = variable.type.shape
        fits = len(shape) == len(sizes) and all(
            size in (None, wanted) for size, wanted in zip(shape, sizes, strict=True)
        )
        if not fits:
            raise ValueError(
                f"`priors`: {prior!r} must create a variable with the dims {dims}, of shape "
                f"{sizes}; got one of shape {shape}. Pass `dims` on to the distribution."
            )
        return variable


def _validated(priors: Mapping[str, Prior] | None) -> dict[str, Prior]:
    if priors is None:
        return {}
    if not isinstance(priors, Mapping):
        raise TypeError(
            f"`priors` must be a mapping from names to priors; got {type(priors).__name__}. "
            "Pass e.g. {'scale': pm.HalfNormal.dist(3)}."
        )
    unknown = sorted(set(priors) - set(PRIOR_NAMES))
    if unknown:
        raise ValueError(
            f"`priors` must have names among {', '.join(PRIOR_NAMES)}; got {unknown}. Use these "
            "names; the priors are those of the standardised parameters."
        )
    return dict(priors)


def _register(user_prior: Prior, prior: str, name: str, dims: tuple[str, ...]) -> Any:
    """Create a variable of the model from the user's prior."""
    if hasattr(user_prior, "create_variable"):
        return user_prior.create_variable(name)
    if hasattr(user_prior, "owner"):
        model = pm.modelcontext(None)
        shape = tuple(int(model.dim_lengths[dim].eval()) for dim in dims)
        support = user_prior.owner.op.ndim_supp
        batch = shape[: len(shape) - support]
        return model.register_rv(change_dist_size(user_prior, batch), name=name, dims=dims)
    if callable(user_prior):
        return user_prior(name, dims)
    raise TypeError(
        f"`priors`: {prior!r} must be an unregistered distribution such as "
        f"pm.HalfNormal.dist(3), a callable of (name, dims) or an object with `create_variable`; "
        f"got {type(user_prior).__name__}."
    )
