"""Families of counts without an upper limit: poisson and negative binomial."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, override

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import FloatArray
from moment_init.families.base import (
    Family,
    ResponseParameters,
    is_count,
    require_rows,
)
from moment_init.families.compiling import scalar
from moment_init.families.densities import Constants, Kernel, Ratios, Term
from moment_init.families.links import LARGEST_LOG_MEAN
from moment_init.families.response_functions import COUNT_BASIS, ResponseBasis
from moment_init.families.special import (
    digamma,
    exponential,
    kept_in_order,
    log_factorial,
    log_rising_factorial,
    logistic,
    trigamma,
    trigamma_difference,
)

DISPERSION_BOUNDS = (1e-4, 1e8)
"""Bounds of the shape and of alpha. Data without overdispersion send the estimate to infinity; at
1e8 the negative binomial is a Poisson, and the gamma a point, to the precision of any data."""


@scalar
def _count_row(y: float, n_trials: float) -> tuple[float, float]:
    return -log_factorial(y), 0.0


@scalar
def _poisson(y: float, unused: float, eta: float, c: Constants, t: Ratios) -> Term:
    near = LARGEST_LOG_MEAN if eta > LARGEST_LOG_MEAN else eta
    mean, _ = exponential(near)
    return y * near - mean, y - mean, -mean, 0.0, 0.0, 0.0


@scalar
def _poisson_is_far(y: float, unused: float, eta: float, c: Constants) -> bool:
    return eta > LARGEST_LOG_MEAN


@scalar
def _poisson_beyond(y: float, unused: float, eta: float, c: Constants) -> float:
    """Let the log density keep falling where the mean is cut."""
    mean = math.exp(LARGEST_LOG_MEAN)
    return mean - kept_in_order(mean, eta)


@scalar
def _negative_binomial_component(dispersion: float) -> Constants:
    return (
        dispersion,
        math.log(dispersion),
        math.lgamma(dispersion),
        digamma(dispersion),
        trigamma(dispersion),
    )


@scalar
def _negative_binomial_ratio(y: float, c: Constants) -> tuple[float, float]:
    a, log_gamma, digamma_of_a = c[0], c[2], c[3]
    return log_rising_factorial(y, a, log_gamma, digamma_of_a)


@scalar
def _negative_binomial_curvature(y: float, c: Constants) -> float:
    a, trigamma_of_a = c[0], c[4]
    return trigamma_difference(y, a, trigamma_of_a)


@scalar
def _negative_binomial(y: float, unused: float, eta: float, c: Constants, t: Ratios) -> Term:
    """Differentiate through z = eta - tau and the log rising factorial.

    The two probabilities of the textbook form are the logistic function at z and -z: nothing
    overflows, and alpha may be arbitrarily large.
    """
    a, log_a = c[0], c[1]
    ratio, ratio1, ratio2 = t
    z = eta - log_a
    upper, lower, log_larger = logistic(z)
    log_upper = log_larger + (z if z < 0.0 else 0.0)
    log_lower = log_larger - (z if z > 0.0 else 0.0)
    score = y * lower - a * upper
    curvature = (y + a) * upper * lower
    slope = a * (ratio1 + log_lower)  # derivative in tau with z fixed
    mixed = upper * score  # curvature - a upper, without a difference
    value = y * log_upper + a * log_lower + ratio
    tau2 = slope + a * (a * ratio2 + upper) - mixed
    return value, score, -curvature, slope - score, tau2, mixed


@dataclass(frozen=True, slots=True)
class Poisson(Family):
    """A count with variance equal to its mean."""

    name: ClassVar[str] = "poisson"
    supported_links: ClassVar[tuple[str, ...]] = ("log",)
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType(
        {"log": Kernel(_count_row, _poisson, is_far=_poisson_is_far, beyond=_poisson_beyond)}
    )
    has_unlimited_counts: ClassVar[bool] = True
    typical_scale: ClassVar[float] = 0.8
    response_basis: ClassVar[ResponseBasis] = COUNT_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        _require_counts(y, self.name)

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(rng.poisson(mean), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class NegativeBinomial(Family):
    """An overdispersed count: Poisson with a gamma-distributed rate of shape alpha."""

    name: ClassVar[str] = "negative_binomial"
    supported_links: ClassVar[tuple[str, ...]] = ("log",)
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType(
        {
            "log": Kernel(
                _count_row,
                _negative_binomial,
                _negative_binomial_component,
                _negative_binomial_ratio,
                _negative_binomial_curvature,
            )
        }
    )
    has_unlimited_counts: ClassVar[bool] = True
    has_dispersion: ClassVar[bool] = True
    dispersion_bounds: ClassVar[tuple[float, float]] = DISPERSION_BOUNDS
    typical_scale: ClassVar[float] = 0.8
    typical_dispersion: ClassVar[float | None] = 5.0
    response_basis: ClassVar[ResponseBasis] = COUNT_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        _require_counts(y, self.name)

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        rates = rng.gamma(parameters.dispersion, mean / parameters.dispersion)
        return np.asarray(rng.poisson(rates), dtype=np.float64)


def _require_counts(y: FloatArray, name: str) -> None:
    rule = f"must hold whole numbers, 0 or more, for family {name!r}"
    remedy = (
        "Correct that row. For rates pass counts with `offset` = log(exposure); "
        "for positive real values use family='gamma'."
    )
    require_rows(is_count(y), y, rule, remedy)
