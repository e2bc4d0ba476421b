"""Families of successes and failures: bernoulli and binomial."""

from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from moment_init.checks import FloatArray, as_float_array
from moment_init.families.base import (
    Family,
    LogDensityDerivatives,
    MixturePosterior,
    ResponseNodes,
    ResponseParameters,
    count_nodes,
    is_count,
    require_rows,
)
from moment_init.families.response_functions import PROPORTION_BASIS, ResponseBasis

_SMALLEST_PROBABILITY = 1e-300
"""A response less likely than this under the mixture has lost digits to underflow; its block of
rows is then evaluated with logarithms."""


@dataclass(frozen=True, slots=True)
class Binomial(Family):
    """Successes among `n_trials`; the mean is the probability of one success.

    Both links are symmetric, ``1 - g(eta) = g(-eta)``. With ``l(eta) = log g(eta)`` the log density
    is therefore ``y l(eta) + (n - y) l(-eta)`` plus a constant, stable at every eta.
    """

    name: ClassVar[str] = "binomial"
    supported_links: ClassVar[tuple[str, ...]] = ("logit", "probit")
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
    def _log_density(
        self, y: FloatArray, mean: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        successes: FloatArray = special.xlogy(y, mean)
        failures: FloatArray = special.xlog1py(parameters.n_trials - y, -mean)
        return successes + failures + _log_binomial_coefficient(parameters.n_trials, y)

    @override
    def _log_density_eta(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        kernel = y * self.link.log_mean(eta) + (parameters.n_trials - y) * self.link.log_mean(-eta)
        return kernel + _log_binomial_coefficient(parameters.n_trials, y)

    @override
    def _score_and_weight(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> tuple[FloatArray, FloatArray]:
        upper = self.link.log_mean_derivative(eta)  # g'/g
        lower = self.link.log_mean_derivative(-eta)  # g'/(1 - g)
        return y * upper - (parameters.n_trials - y) * lower, parameters.n_trials * upper * lower

    @override
    def _variance(self, mean: FloatArray, parameters: ResponseParameters) -> FloatArray:
        return parameters.n_trials * mean * (1 - mean)

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(
            rng.binomial(parameters.n_trials.astype(np.int64), mean), dtype=np.float64
        )

    @override
    def _log_base_measure(self, y: FloatArray, n_trials: FloatArray) -> FloatArray:
        return _log_binomial_coefficient(n_trials, y)

    @override
    def _kernel_derivatives(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> LogDensityDerivatives:
        failures = parameters.n_trials - y
        _, upper1, upper2 = self.link.mean_and_log_derivatives(eta)
        _, lower1, lower2 = self.link.mean_and_log_derivatives(-eta)
        return LogDensityDerivatives(
            y * self.link.log_mean(eta) + failures * self.link.log_mean(-eta),
            y * upper1 - failures * lower1,
            y * upper2 + failures * lower2,
        )

    @override
    def _response_nodes(
        self, eta: FloatArray, parameters: ResponseParameters, most: int
    ) -> ResponseNodes:
        n_trials = parameters.n_trials
        return count_nodes(
            lambda counts: self.log_density_eta(counts, eta[..., None], n_trials=n_trials),
            int(n_trials),
        )


@dataclass(frozen=True, slots=True)
class Bernoulli(Family):
    """A binary response: ``log p = log g((2y - 1) eta)``, since both links are symmetric."""

    name: ClassVar[str] = "bernoulli"
    has_binary_rows: ClassVar[bool] = True
    supported_links: ClassVar[tuple[str, ...]] = ("logit", "probit")
    typical_scale: ClassVar[float] = 3.0
    response_basis: ClassVar[ResponseBasis] = PROPORTION_BASIS

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        rule = "must hold only 0 and 1 for family 'bernoulli'"
        remedy = "Recode it, or use family='binomial' with `n_trials` for counts of successes."
        require_rows((y == 0) | (y == 1), y, rule, remedy)

    @override
    def _log_density(
        self, y: FloatArray, mean: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        result: FloatArray = special.xlogy(y, mean) + special.xlog1py(1 - y, -mean)
        return result

    @override
    def _log_density_eta(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> FloatArray:
        return self.link.log_mean((2 * y - 1) * eta)

    @override
    def _score_and_weight(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> tuple[FloatArray, FloatArray]:
        upper = self.link.log_mean_derivative(eta)
        lower = self.link.log_mean_derivative(-eta)
        return np.where(y > 0, upper, -lower), upper * lower

    @override
    def _variance(self, mean: FloatArray, parameters: ResponseParameters) -> FloatArray:
        return mean * (1 - mean)

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        return np.asarray(rng.random(np.shape(mean)) < mean, dtype=np.float64)

    @override
    def _log_base_measure(self, y: FloatArray, n_trials: FloatArray) -> FloatArray:
        return np.zeros_like(y)

    @override
    def _kernel_derivatives(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> LogDensityDerivatives:
        sign = 2 * y - 1
        signed = sign * eta
        _, first, second = self.link.mean_and_log_derivatives(signed)
        return LogDensityDerivatives(self.link.log_mean(signed), sign * first, second)

    @override
    def _mixture_posterior(
        self, y: FloatArray, eta: FloatArray, weights: FloatArray, parameters: ResponseParameters
    ) -> MixturePosterior:
        """Evaluate ``P(y) = sum_j w_j g((2y - 1) eta_j)`` with one logarithm per row, not r + 1."""
        sign = 2 * y - 1
        mean, first, second = self.link.mean_and_log_derivatives(sign * eta)
        mean *= weights
        total = mean.sum(axis=0)
        if total.min(initial=1.0) < _SMALLEST_PROBABILITY:
            return Family._mixture_posterior(self, y, eta, weights, parameters)
        mean /= total
        first *= sign
        return MixturePosterior(np.log(total), mean, first, second)

    @override
    def _response_nodes(
        self, eta: FloatArray, parameters: ResponseParameters, most: int
    ) -> ResponseNodes:
        return count_nodes(lambda counts: self.log_density_eta(counts, eta[..., None]), 1)


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


def _log_binomial_coefficient(n_trials: FloatArray, y: FloatArray) -> FloatArray:
    result: FloatArray = -special.betaln(n_trials - y + 1, y + 1) - np.log1p(n_trials)
    return result
