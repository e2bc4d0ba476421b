"""Families of real responses: gaussian and gamma."""

from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import FloatArray
from moment_init.families.base import (
    Family,
    LogDensityDerivatives,
    ResponseNodes,
    ResponseParameters,
    gamma_nodes,
    gaussian_nodes,
    require_rows,
)
from moment_init.families.dispersion import (
    DISPERSION_BOUNDS,
    gamma_constant,
    gamma_constant_derivatives,
    gamma_shape,
    gaussian_deviation,
)
from moment_init.families.links import LARGEST_LOG_MEAN, bounded_square, kept_in_order
from moment_init.families.response_functions import POSITIVE_BASIS, REAL_BASIS, ResponseBasis

_DEVIATION_BOUNDS = (1e-8, 1e8)
"""Standard deviations between which the dispersion is searched. A residual below 1e-8 of the
response's scale is rounding: the fit is exact."""


@dataclass(frozen=True, slots=True)
class Gaussian(Family):
    """A real response with standard deviation `dispersion`."""

    name: ClassVar[str] = "gaussian"
    supported_links: ClassVar[tuple[str, ...]] = ("identity",)
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
    def _log_density(
        self, y: FloatArray, mean: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        with np.errstate(over="ignore"):  # the square is bounded
            z = (y - mean) / parameters.dispersion
        half_square = bounded_square(z) / 2
        result: FloatArray = -half_square - np.log(parameters.dispersion) - np.log(2 * np.pi) / 2
        return result

    @override
    def _log_density_eta(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        return self._log_density(y, eta, parameters)

    @override
    def _score_and_weight(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> tuple[FloatArray, FloatArray]:
        precision = parameters.dispersion**-2.0
        return (y - eta) * precision, precision

    @override
    def _variance(self, mean: FloatArray, parameters: ResponseParameters) -> FloatArray:
        return np.zeros_like(mean) + parameters.dispersion**2

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(rng.normal(mean, parameters.dispersion), dtype=np.float64)

    @override
    def _estimate_dispersion(
        self, y: FloatArray, mean: FloatArray, weights: FloatArray, initial: float
    ) -> float:
        return gaussian_deviation(y, mean, weights)

    @override
    def _log_base_measure(self, y: FloatArray, n_trials: FloatArray) -> FloatArray:
        return np.full_like(y, -np.log(2 * np.pi) / 2)

    @override
    def _kernel_derivatives(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> LogDensityDerivatives:
        precision = 1 / parameters.dispersion
        with np.errstate(over="ignore"):  # the square is bounded
            z = (y - eta) * precision
            slope = z * precision
        square = bounded_square(z)
        value = -0.5 * square
        value -= np.log(parameters.dispersion)
        return LogDensityDerivatives(
            value=value,
            eta1=slope,
            eta2=np.broadcast_to(-(precision**2), z.shape),
            tau1=square - 1,
            tau2=-2 * square,
            eta_tau=-2 * slope,
        )

    @override
    def _response_nodes(
        self, eta: FloatArray, parameters: ResponseParameters, most: int
    ) -> ResponseNodes:
        return gaussian_nodes(eta, parameters.dispersion)


@dataclass(frozen=True, slots=True)
class Gamma(Family):
    """A positive response with shape `dispersion`, variance ``mean**2 / shape``.

    With ``q = log(y) - eta`` the log density is ``a (q - expm1(q)) + c(a) - log(y)``,
    ``c(a) = a log(a) - a - log Gamma(a)``, which is accurate for large shapes too.
    """

    name: ClassVar[str] = "gamma"
    supported_links: ClassVar[tuple[str, ...]] = ("log",)
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
    def _log_density(
        self, y: FloatArray, mean: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        # A mean that has underflowed to zero becomes the smallest positive one.
        eta = np.log(np.maximum(mean, np.finfo(np.float64).tiny))
        return self._log_density_eta(y, eta, parameters)

    @override
    def _log_density_eta(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        log_y = np.log(y)
        q = log_y - eta
        near = np.minimum(q, LARGEST_LOG_MEAN)
        kernel = parameters.dispersion * (near - kept_in_order(np.expm1(near), q))
        result: FloatArray = kernel + gamma_constant(parameters.dispersion) - log_y
        return result

    @override
    def _score_and_weight(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> tuple[FloatArray, FloatArray]:
        q = np.minimum(np.log(y) - eta, LARGEST_LOG_MEAN)
        return parameters.dispersion * np.expm1(q), parameters.dispersion

    @override
    def _variance(self, mean: FloatArray, parameters: ResponseParameters) -> FloatArray:
        return mean**2 / parameters.dispersion

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        draws = rng.gamma(parameters.dispersion, mean / parameters.dispersion)
        # Small shapes make draws underflow; zero is outside the support.
        return np.maximum(draws, np.finfo(np.float64).tiny)

    @override
    def _estimate_dispersion(
        self, y: FloatArray, mean: FloatArray, weights: FloatArray, initial: float
    ) -> float:
        return gamma_shape(y, mean, weights)

    @override
    def _log_base_measure(self, y: FloatArray, n_trials: FloatArray) -> FloatArray:
        result: FloatArray = -np.log(y)
        return result

    @override
    def _kernel_derivatives(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> LogDensityDerivatives:
        a = parameters.dispersion
        q = np.log(y) - eta
        near = np.minimum(q, LARGEST_LOG_MEAN)
        excess = np.expm1(near)
        kernel = a * (near - kept_in_order(excess, q))
        constant1, constant2 = gamma_constant_derivatives(a)
        tau1 = kernel + a * constant1
        score = a * excess
        return LogDensityDerivatives(
            value=kernel + gamma_constant(a),
            eta1=score,
            eta2=-a - score,
            tau1=tau1,
            tau2=tau1 + a**2 * constant2,
            eta_tau=score,
        )

    @override
    def _response_nodes(
        self, eta: FloatArray, parameters: ResponseParameters, most: int
    ) -> ResponseNodes:
        return gamma_nodes(eta, parameters.dispersion)
