"""Families of whole numbers: bernoulli, binomial, poisson and negative binomial.

Both links of a bernoulli or binomial response are symmetric, ``1 - g(eta) = g(-eta)``. With
``l(eta) = log g(eta)`` the log density of y successes in n trials is ``y l(eta) + (n - y) l(-eta)``
plus a constant, stable at every eta.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, override

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import FloatArray, as_float_array
from moment_init.families.base import (
    Family,
    ResponseParameters,
    is_count,
    require_rows,
)
from moment_init.families.compiling import scalar
from moment_init.families.densities import Constants, Kernel, Ratios, Term
from moment_init.families.links import LARGEST_LOG_MEAN
from moment_init.families.response_functions import COUNT_BASIS, PROPORTION_BASIS, ResponseBasis
from moment_init.families.special import (
    digamma,
    exponential,
    kept_in_order,
    log_binomial_coefficient,
    log_factorial,
    log_normal_cdf,
    log_rising_factorial,
    logistic,
    trigamma,
    trigamma_difference,
)

_LARGEST_LOG_ODDS = 700.0
"""exp(700), about 1e304, and its reciprocal can both be represented as doubles."""

_SQRT_HALF = math.sqrt(0.5)
_DENSITY_AT_ZERO = 1.0 / math.sqrt(2.0 * math.pi)


@scalar
def _logit_mean_and_slope(z: float) -> tuple[float, float]:
    odds, _ = exponential(_LARGEST_LOG_ODDS if -z > _LARGEST_LOG_ODDS else -z)
    mean = 1.0 / (1.0 + odds)
    return mean, odds * mean * mean


@scalar
def _probit_mean_and_slope(z: float) -> tuple[float, float]:
    return 0.5 * math.erfc(-z * _SQRT_HALF), _DENSITY_AT_ZERO * math.exp(-0.5 * z * z)


@scalar
def _bernoulli_row(y: float, n_trials: float) -> tuple[float, float]:
    return 0.0, 2.0 * y - 1.0


@scalar
def _bernoulli_logit(y: float, sign: float, eta: float, c: Constants, t: Ratios) -> Term:
    z = sign * eta
    upper, lower, log_larger = logistic(z)
    value = log_larger + (z if z < 0.0 else 0.0)
    return value, sign * lower, -upper * lower, 0.0, 0.0, 0.0


@scalar
def _bernoulli_probit(y: float, sign: float, eta: float, c: Constants, t: Ratios) -> Term:
    value, slope, curvature = log_normal_cdf(sign * eta)
    return value, sign * slope, curvature, 0.0, 0.0, 0.0


@scalar
def _binomial_row(y: float, n_trials: float) -> tuple[float, float]:
    return log_binomial_coefficient(n_trials, y), n_trials - y


@scalar
def _binomial_logit(y: float, failures: float, eta: float, c: Constants, t: Ratios) -> Term:
    upper, lower, log_larger = logistic(eta)
    value = (y + failures) * log_larger + (-failures * eta if eta > 0.0 else y * eta)
    return value, y * lower - failures * upper, -(y + failures) * upper * lower, 0.0, 0.0, 0.0


@scalar
def _binomial_probit(y: float, failures: float, eta: float, c: Constants, t: Ratios) -> Term:
    upper, upper1, upper2 = log_normal_cdf(eta)
    lower, lower1, lower2 = log_normal_cdf(-eta)
    value = y * upper + failures * lower
    return value, y * upper1 - failures * lower1, y * upper2 + failures * lower2, 0.0, 0.0, 0.0


@dataclass(frozen=True, slots=True)
class Binomial(Family):
    """Successes among `n_trials`; the mean is the probability of one success."""

    name: ClassVar[str] = "binomial"
    supported_links: ClassVar[tuple[str, ...]] = ("logit", "probit")
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType(
        {
            "logit": Kernel(_binomial_row, _binomial_logit),
            "probit": Kernel(_binomial_row, _binomial_probit),
        }
    )
    has_trials: ClassVar[bool] = True
    typical_scale: ClassVar[float] = 2.0
    response_basis: ClassVar[ResponseBasis] = PROPORTION_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        trials = _validated_trials(y, n_trials)
        rule = "must hold whole numbers of successes, 0 or more, for family 'binomial'"
        require_rows(is_count(y), y, rule, "Give counts, and the trials as `n_trials`.")
        rule = "must not exceed `n_trials` for family 'binomial'"
        require_rows(y <= trials, y, rule, "Correct that row's `y` or `n_trials`.")

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(
            rng.binomial(parameters.n_trials.astype(np.int64), mean), dtype=np.float64
        )


@dataclass(frozen=True, slots=True)
class Bernoulli(Family):
    """A binary response: ``log p = log g((2y - 1) eta)``, since both links are symmetric."""

    name: ClassVar[str] = "bernoulli"
    has_binary_rows: ClassVar[bool] = True
    supported_links: ClassVar[tuple[str, ...]] = ("logit", "probit")
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType(
        {
            "logit": Kernel(_bernoulli_row, _bernoulli_logit, mean_and_slope=_logit_mean_and_slope),
            "probit": Kernel(
                _bernoulli_row, _bernoulli_probit, mean_and_slope=_probit_mean_and_slope
            ),
        }
    )
    typical_scale: ClassVar[float] = 3.0
    response_basis: ClassVar[ResponseBasis] = PROPORTION_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        rule = "must hold only 0 and 1 for family 'bernoulli'"
        remedy = "Recode it, or use family='binomial' with `n_trials` for counts of successes."
        require_rows((y == 0) | (y == 1), y, rule, remedy)

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(rng.random(np.shape(mean)) < mean, dtype=np.float64)


def _validated_trials(y: FloatArray, n_trials: ArrayLike | None) -> FloatArray:
    if n_trials is None:
        raise ValueError(
            "`n_trials` is needed for family 'binomial'; got None. "
            "Give the number of trials of each row, or use family='bernoulli' for 0/1 responses."
        )
    trials = as_float_array(n_trials, "n_trials")
    if trials.shape not in ((), y.shape):
        raise ValueError(
            f"`n_trials` must be one number or have the shape of `y`, {y.shape}; "
            f"got shape {trials.shape}. Give one number of trials for each row."
        )
    trials = np.array(np.broadcast_to(trials, y.shape))
    rule = "must hold whole numbers, 1 or more"
    is_positive = is_count(trials) & (trials >= 1)
    require_rows(is_positive, trials, rule, "Drop rows without trials.", argument="n_trials")
    return trials


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
class _Count(Family):
    """A count without an upper limit."""

    supported_links: ClassVar[tuple[str, ...]] = ("log",)
    has_unlimited_counts: ClassVar[bool] = True
    typical_scale: ClassVar[float] = 0.8
    response_basis: ClassVar[ResponseBasis] = COUNT_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        rule = f"must hold whole numbers, 0 or more, for family {self.name!r}"
        remedy = (
            "Correct that row. For rates pass counts with `offset` = log(exposure); "
            "for positive real values use family='gamma'."
        )
        require_rows(is_count(y), y, rule, remedy)


@dataclass(frozen=True, slots=True)
class Poisson(_Count):
    """A count with variance equal to its mean."""

    name: ClassVar[str] = "poisson"
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType(
        {"log": Kernel(_count_row, _poisson, is_far=_poisson_is_far, beyond=_poisson_beyond)}
    )

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(rng.poisson(mean), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class NegativeBinomial(_Count):
    """An overdispersed count: Poisson with a gamma-distributed rate of shape alpha."""

    name: ClassVar[str] = "negative_binomial"
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
    has_dispersion: ClassVar[bool] = True
    dispersion_bounds: ClassVar[tuple[float, float]] = DISPERSION_BOUNDS
    typical_dispersion: ClassVar[float | None] = 5.0

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        rates = rng.gamma(parameters.dispersion, mean / parameters.dispersion)
        return np.asarray(rng.poisson(rates), dtype=np.float64)
