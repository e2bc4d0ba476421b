"""Families of counts without an upper limit: poisson and negative binomial."""

from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from moment_init.checks import FloatArray
from moment_init.families.base import (
    Family,
    LogDensityDerivatives,
    ResponseNodes,
    ResponseParameters,
    count_nodes,
    is_count,
    require_rows,
)
from moment_init.families.dispersion import (
    DISPERSION_BOUNDS,
    log_ratio_derivatives,
    log_rising_factorial,
    negative_binomial_alpha,
)
from moment_init.families.links import LARGEST_LOG_MEAN, bounded_exp, kept_in_order
from moment_init.families.response_functions import COUNT_BASIS, ResponseBasis


@dataclass(frozen=True, slots=True)
class Poisson(Family):
    """A count with variance equal to its mean."""

    name: ClassVar[str] = "poisson"
    supported_links: ClassVar[tuple[str, ...]] = ("log",)
    has_unlimited_counts: ClassVar[bool] = True
    typical_scale: ClassVar[float] = 0.8
    response_basis: ClassVar[ResponseBasis] = COUNT_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        _require_counts(y, self.name)

    @override
    def _log_density(
        self, y: FloatArray, mean: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        result: FloatArray = special.xlogy(y, mean) - mean - special.gammaln(y + 1)
        return result

    @override
    def _log_density_eta(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        kernel = _poisson_kernel(y, eta, bounded_exp(eta))
        result: FloatArray = kernel - special.gammaln(y + 1)
        return result

    @override
    def _score_and_weight(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> tuple[FloatArray, FloatArray]:
        mean = bounded_exp(eta)
        return y - mean, mean

    @override
    def _variance(self, mean: FloatArray, parameters: ResponseParameters) -> FloatArray:
        return np.array(mean)

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(rng.poisson(mean), dtype=np.float64)

    @override
    def _log_base_measure(self, y: FloatArray, n_trials: FloatArray) -> FloatArray:
        return _minus_log_factorial(y)

    @override
    def _kernel_derivatives(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> LogDensityDerivatives:
        mean = bounded_exp(eta)
        return LogDensityDerivatives(_poisson_kernel(y, eta, mean), y - mean, -mean)

    @override
    def _response_nodes(
        self, eta: FloatArray, parameters: ResponseParameters, most: int
    ) -> ResponseNodes:
        return count_nodes(lambda counts: self.log_density_eta(counts, eta[..., None]), most)


@dataclass(frozen=True, slots=True)
class NegativeBinomial(Family):
    """An overdispersed count: Poisson with a gamma-distributed rate of shape alpha.

    With ``t = eta - log(alpha)`` the two probabilities of the textbook form are the logistic
    function at ``t`` and ``-t``. Nothing overflows, and alpha may be arbitrarily large.
    """

    name: ClassVar[str] = "negative_binomial"
    supported_links: ClassVar[tuple[str, ...]] = ("log",)
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
        t = eta - np.log(parameters.dispersion)
        kernel = y * special.log_expit(t) + parameters.dispersion * special.log_expit(-t)
        constant = log_rising_factorial(parameters.dispersion, y) - special.gammaln(y + 1)
        result: FloatArray = kernel + constant
        return result

    @override
    def _score_and_weight(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> tuple[FloatArray, FloatArray]:
        t = eta - np.log(parameters.dispersion)
        weight: FloatArray = parameters.dispersion * special.expit(t)
        score: FloatArray = y * special.expit(-t) - weight
        return score, weight

    @override
    def _variance(self, mean: FloatArray, parameters: ResponseParameters) -> FloatArray:
        return mean + mean**2 / parameters.dispersion

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        rates = rng.gamma(parameters.dispersion, mean / parameters.dispersion)
        return np.asarray(rng.poisson(rates), dtype=np.float64)

    @override
    def _estimate_dispersion(
        self, y: FloatArray, mean: FloatArray, weights: FloatArray, initial: float
    ) -> float:
        return negative_binomial_alpha(y, mean, weights, initial)

    @override
    def _log_base_measure(self, y: FloatArray, n_trials: FloatArray) -> FloatArray:
        return _minus_log_factorial(y)

    @override
    def _kernel_derivatives(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> LogDensityDerivatives:
        """Differentiate through t = eta - tau and the derivatives of the log rising factorial."""
        a = parameters.dispersion
        t = eta - np.log(a)
        log_lower = special.log_expit(-t)
        upper, lower = special.expit(t), special.expit(-t)
        ratio, ratio1, ratio2 = log_ratio_derivatives(a, y)
        score = y * lower - a * upper
        curvature = (y + a) * upper * lower
        slope = a * (ratio1 + log_lower)  # derivative in tau with t fixed
        mixed = curvature - a * upper
        return LogDensityDerivatives(
            value=y * special.log_expit(t) + a * log_lower + ratio,
            eta1=score,
            eta2=-curvature,
            tau1=slope - score,
            tau2=slope + a * (a * ratio2 + upper) - mixed,
            eta_tau=mixed,
        )

    @override
    def _response_nodes(
        self, eta: FloatArray, parameters: ResponseParameters, most: int
    ) -> ResponseNodes:
        shape = parameters.dispersion[..., None]
        return count_nodes(
            lambda counts: self.log_density_eta(counts, eta[..., None], dispersion=shape), most
        )


def _poisson_kernel(y: FloatArray, eta: FloatArray, mean: FloatArray) -> FloatArray:
    """Evaluate ``y eta - exp(eta)`` without overflow; it keeps falling beyond the bound of eta."""
    if not np.max(eta, initial=0.0) > LARGEST_LOG_MEAN:
        return np.asarray(y * eta - mean)
    return y * np.minimum(eta, LARGEST_LOG_MEAN) - kept_in_order(mean, eta)


def _minus_log_factorial(y: FloatArray) -> FloatArray:
    result: FloatArray = -special.gammaln(y + 1)
    return result


def _require_counts(y: FloatArray, name: str) -> None:
    rule = f"must hold whole numbers, 0 or more, for family {name!r}"
    remedy = (
        "Correct that row. For rates pass counts with `offset` = log(exposure); "
        "for positive real values use family='gamma'."
    )
    require_rows(is_count(y), y, rule, remedy)
