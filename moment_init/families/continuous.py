"""Families of real responses: gaussian and gamma."""

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
    require_rows,
)
from moment_init.families.compiling import scalar
from moment_init.families.densities import Constants, Kernel, Ratios, Term
from moment_init.families.discrete import DISPERSION_BOUNDS
from moment_init.families.links import LARGEST_DEVIATION, LARGEST_LOG_MEAN
from moment_init.families.response_functions import POSITIVE_BASIS, REAL_BASIS, ResponseBasis
from moment_init.families.special import (
    HALF_LOG_TWO_PI,
    STIRLING_FROM,
    bounded_square,
    digamma,
    exponential,
    kept_in_order,
    log_minus_digamma,
    stirling_tail,
    trigamma,
    trigamma_minus_inverse,
)

_DEVIATION_BOUNDS = (1e-8, 1e8)
"""Standard deviations between which the dispersion is searched. A residual below 1e-8 of the
response's scale is rounding: the fit is exact."""


@scalar
def _gaussian_row(y: float, n_trials: float) -> tuple[float, float]:
    return -HALF_LOG_TWO_PI, 0.0


@scalar
def _gaussian_component(dispersion: float) -> Constants:
    return 1.0 / dispersion, math.log(dispersion), 0.0, 0.0, 0.0


@scalar
def _gaussian(y: float, unused: float, eta: float, c: Constants, t: Ratios) -> Term:
    root_precision, log_sd = c[0], c[1]
    z = (y - eta) * root_precision
    size = abs(z)
    near = LARGEST_DEVIATION if size > LARGEST_DEVIATION else size
    square = near * near
    slope = z * root_precision
    curvature = -root_precision * root_precision
    return -0.5 * square - log_sd, slope, curvature, square - 1.0, -2.0 * square, -2.0 * slope


@scalar
def _gaussian_is_far(y: float, unused: float, eta: float, c: Constants) -> bool:
    root_precision = c[0]
    return abs((y - eta) * root_precision) > LARGEST_DEVIATION


@scalar
def _gaussian_beyond(y: float, unused: float, eta: float, c: Constants) -> float:
    """Let the log density keep falling where the square is cut."""
    root_precision = c[0]
    square = bounded_square((y - eta) * root_precision)
    return 0.5 * (LARGEST_DEVIATION * LARGEST_DEVIATION - square)


@scalar
def _gamma_row(y: float, n_trials: float) -> tuple[float, float]:
    log_y = math.log(y)
    return -log_y, log_y


@scalar
def _gamma_component(dispersion: float) -> Constants:
    """Return a, ``c(a) = a log(a) - a - log Gamma(a)`` and its first two derivatives."""
    a = dispersion
    log_a = math.log(a)
    if a < STIRLING_FROM:
        value = a * log_a - a - math.lgamma(a)
        return a, value, log_a - digamma(a), 1.0 / a - trigamma(a), 0.0
    value = 0.5 * log_a - HALF_LOG_TWO_PI - stirling_tail(a)
    return a, value, log_minus_digamma(a), -trigamma_minus_inverse(a), 0.0


@scalar
def _gamma(y: float, log_y: float, eta: float, c: Constants, t: Ratios) -> Term:
    """With q = log(y) - eta the log density is ``a (q - expm1(q)) + c(a) - log(y)``.

    This is accurate for large shapes too.
    """
    a, constant, constant1, constant2 = c[0], c[1], c[2], c[3]
    q = log_y - eta
    near = LARGEST_LOG_MEAN if q > LARGEST_LOG_MEAN else q
    ratio, excess = exponential(near)
    kernel = a * (near - excess)
    score = a * excess
    tau1 = kernel + a * constant1
    return kernel + constant, score, -a * ratio, tau1, tau1 + a * a * constant2, score


@scalar
def _gamma_is_far(y: float, log_y: float, eta: float, c: Constants) -> bool:
    return log_y - eta > LARGEST_LOG_MEAN


@scalar
def _gamma_beyond(y: float, log_y: float, eta: float, c: Constants) -> float:
    """Let the log density keep falling where the exponential is cut."""
    a = c[0]
    excess = math.expm1(LARGEST_LOG_MEAN)
    return a * (excess - kept_in_order(excess, log_y - eta))


@dataclass(frozen=True, slots=True)
class Gaussian(Family):
    """A real response with standard deviation `dispersion`."""

    name: ClassVar[str] = "gaussian"
    supported_links: ClassVar[tuple[str, ...]] = ("identity",)
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType(
        {
            "identity": Kernel(
                _gaussian_row,
                _gaussian,
                _gaussian_component,
                is_far=_gaussian_is_far,
                beyond=_gaussian_beyond,
            )
        }
    )
    has_dispersion: ClassVar[bool] = True
    deviation_power: ClassVar[float | None] = 1.0
    has_closed_deviation: ClassVar[bool] = True
    dispersion_bounds: ClassVar[tuple[float, float]] = _DEVIATION_BOUNDS
    response_power: ClassVar[bool] = True
    typical_scale: ClassVar[float] = 1.0
    typical_dispersion: ClassVar[float | None] = 0.2
    response_basis: ClassVar[ResponseBasis] = REAL_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        rule = "must hold finite numbers for family 'gaussian'"
        require_rows(np.isfinite(y), y, rule, "Remove or correct that row.")

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(rng.normal(mean, parameters.dispersion), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Gamma(Family):
    """A positive response with shape `dispersion`, variance ``mean**2 / shape``."""

    name: ClassVar[str] = "gamma"
    supported_links: ClassVar[tuple[str, ...]] = ("log",)
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType(
        {
            "log": Kernel(
                _gamma_row, _gamma, _gamma_component, is_far=_gamma_is_far, beyond=_gamma_beyond
            )
        }
    )
    has_dispersion: ClassVar[bool] = True
    deviation_power: ClassVar[float | None] = -0.5
    dispersion_bounds: ClassVar[tuple[float, float]] = DISPERSION_BOUNDS
    typical_scale: ClassVar[float] = 0.8
    typical_dispersion: ClassVar[float | None] = 5.0
    response_basis: ClassVar[ResponseBasis] = POSITIVE_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        rule = "must hold finite numbers above 0 for family 'gamma'"
        remedy = "Remove or correct that row; a response with zeros is not gamma."
        require_rows((y > 0) & np.isfinite(y), y, rule, remedy)

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        draws = rng.gamma(parameters.dispersion, mean / parameters.dispersion)
        # Small shapes make draws underflow; zero is outside the support.
        return np.maximum(draws, np.finfo(np.float64).tiny)
