r"""Priors of the Bayesian mixture, in standardised coordinates.

There the inputs have mean zero and covariance I, so that a component's scale is the standard
deviation of its linear predictor, and a response with the identity link has standard deviation one.
The defaults are therefore the same for any data and any units:

| prior | logit | probit | log | identity |
| --- | --- | --- | --- | --- |
| scale ~ HalfNormal | 5 | 3 | 1 | 1.5 |
| bias ~ Normal(0, .) | 2.5 | 1.5 | 1.5 | 1.5 |

A standardised bias is relative to the mean response for the identity link, and to the logarithm of
the mean response per unit of exposure for the log link. Weights are uniform on the simplex.
Dispersion: a standard deviation is LogNormal(log 0.5, 1), which vanishes at zero faster than any
power, as it must: a component through tied rows has a likelihood without bound there. The negative
binomial's alpha and the gamma's shape, for which 1 is a broad and 10 a narrow distribution, are
LogNormal(log 3, 1). Free
coefficients are normal with the second moment that scale and direction would give them. Logits of a
gate and their slopes, per standard deviation of a covariate, sum to zero over the components and
have standard deviation 2 before that is imposed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size

from moment_init.checks import FloatArray
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
"""What `priors` may hold."""

GATE_DEVIATION = 2.0
"""Standard deviation of a gate's logits: odds of one to seven per standard deviation of a covariate
are ordinary, one to fifty are not."""

_MEDIAN_DEVIATION = 0.5
"""Median of the prior of a standard deviation, in those of the response: 0.07 to 3.5 holds 95 %."""

_MEDIAN_SHAPE, _SHAPE_DEVIATION = 3.0, 1.0
"""Median and deviation on the log scale of the prior of alpha and shape: 0.4 to 21 holds 95 %."""


@dataclass(frozen=True, slots=True)
class LinkPriors:
    """Scales of the default priors for a link."""

    # standard deviation parameter of the scales' HalfNormal; (n_responses,)
    scale: float | FloatArray
    bias: float | FloatArray  # standard deviation of the biases; (n_responses,)


_BY_LINK: Mapping[str, LinkPriors] = MappingProxyType(
    {
        # Predictors of 10 occur: probabilities from 0 to 1 within the data. The probit's scale is
        # the logit's over 1.7.
        "logit": LinkPriors(5.0, 2.5),
        "probit": LinkPriors(3.0, 1.5),
        # A scale of 2 already takes the mean from e^-4 to e^4 times its median within the data.
        "log": LinkPriors(1.0, 1.5),
        # The response has standard deviation one over all components together; a component with
        # slopes that others cancel can exceed it.
        "identity": LinkPriors(1.5, 1.5),
    }
)

Prior = Any
"""An unregistered distribution, a callable of (name, dims), or an object with `create_variable`."""


class ModelPriors:
    """The user's priors, and defaults for the rest."""

    def __init__(
        self,
        priors: Mapping[str, Prior] | None,
        *,
        link: str | Sequence[str],
        n_features: int,
    ) -> None:
        self._given = _validated(priors)
        self._link = _BY_LINK[link] if isinstance(link, str) else _stacked(link)
        self._n_features = n_features
        self._used: set[str] = set()

    def scale(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the scales."""
        return self._create(
            "scale", name, dims, lambda: pm.HalfNormal(name, self._link.scale, dims=dims)
        )

    def bias(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the biases."""
        return self._create(
            "bias", name, dims, lambda: pm.Normal(name, 0.0, self._link.bias, dims=dims)
        )

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
        # is_deviation: (n_responses,)

        def default() -> Any:
            median = np.where(is_deviation, _MEDIAN_DEVIATION, _MEDIAN_SHAPE)
            return pm.LogNormal(name, np.log(median), _SHAPE_DEVIATION, dims=dims)

        return self._create("dispersion", name, dims, default)

    def tilt(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the tilts of anchored directions."""
        return self._create("tilt", name, dims, lambda: pm.Normal(name, 0.0, 1.0, dims=dims))

    def coefficient(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create free coefficients, E |beta|^2 = E s^2 of the scales' default."""
        deviation = self._link.scale / np.sqrt(self._n_features)
        return self._create(
            "coefficient", name, dims, lambda: pm.Normal(name, 0.0, deviation, dims=dims)
        )

    def gate(self, prior: str, name: str, dims: tuple[str, ...]) -> Any:
        """Create logits of a gate or their slopes, the last dim that of the components."""
        return self._create(
            prior, name, dims, lambda: pm.ZeroSumNormal(name, GATE_DEVIATION, dims=dims)
        )

    def require_all_used(self) -> None:
        """Refuse priors of parameters that the model does not have."""
        unused = sorted(set(self._given) - self._used)
        if unused:
            raise ValueError(
                f"`priors` must be of parameters of the model; got {unused}, which it does not "
                f"have. Its parameters are {sorted(self._used)}: leave the others out, or change "
                "`directions`, `family` or `gating`."
            )

    def _create(
        self, prior: str, name: str, dims: tuple[str, ...], default: Callable[[], Any]
    ) -> Any:
        self._used.add(prior)
        given = self._given.get(prior)
        if given is None:
            return default()
        variable = _register(given, prior, name, dims)
        if not hasattr(variable, "type"):
            raise TypeError(
                f"`priors`: {prior!r} must return the variable that it makes; got "
                f"{type(variable).__name__}. Return it from the callable."
            )
        sizes = tuple(int(pm.modelcontext(None).dim_lengths[dim].eval()) for dim in dims)
        shape = variable.type.shape
        fits = len(shape) == len(sizes) and all(
            size in (None, wanted) for size, wanted in zip(shape, sizes, strict=True)
        )
        if not fits:
            raise ValueError(
                f"`priors`: {prior!r} must make a variable with the dims {dims}, of shape {sizes}; "
                f"got one of shape {shape}. Pass `dims` on to the distribution."
            )
        return variable


def _stacked(links: Sequence[str]) -> LinkPriors:
    """Scales of the priors of several responses, one entry each."""
    each = [_BY_LINK[link] for link in links]
    return LinkPriors(np.array([one.scale for one in each]), np.array([one.bias for one in each]))


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
            f"`priors` must have names among {', '.join(PRIOR_NAMES)}; got {unknown}. Priors are "
            "those of standardised parameters."
        )
    return dict(priors)


def _register(given: Prior, prior: str, name: str, dims: tuple[str, ...]) -> Any:
    """Make a variable of the model from the user's prior."""
    if hasattr(given, "create_variable"):
        return given.create_variable(name)
    if hasattr(given, "owner"):
        model = pm.modelcontext(None)
        shape = tuple(int(model.dim_lengths[dim].eval()) for dim in dims)
        support = given.owner.op.ndim_supp
        batch = shape[: len(shape) - support]
        return model.register_rv(change_dist_size(given, batch), name=name, dims=dims)
    if callable(given):
        return given(name, dims)
    raise TypeError(
        f"`priors`: {prior!r} must be an unregistered distribution such as "
        f"pm.HalfNormal.dist(3), a callable of (name, dims) or an object with `create_variable`; "
        f"got {type(given).__name__}."
    )
