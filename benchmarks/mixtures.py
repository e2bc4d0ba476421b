"""The mixtures on which the stacked estimator is judged, and the errors of an estimate."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Row
from moment_init import (
    MixtureData,
    WeakSignalWarning,
    angles_in_degrees,
    estimate,
    match_components,
    simulate_mixture,
)
from moment_init.data.checking import validate_data
from moment_init.moments.result import MomentEstimate
from moment_init.scores.choosing import EstimationProblem, pose_problem
from moment_init.scores.gaussian import Gaussian

__all__ = [
    "MIXTURES",
    "Mixture",
    "ParameterErrors",
    "describe",
    "draw",
    "parameter_errors",
    "pose",
    "timed",
    "worst_cosine",
]

FloatArray = NDArray[np.float64]

# Scales of random models are `scale` times a factor in this range; `simulate_mixture` draws biases,
# directions and, unless they are fixed, weights ~ Dirichlet(10).
SCALE_RANGE = (0.7, 1.3)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A kind of random mixture and the required accuracy."""

    family: str  # family of the response
    n_obs: int
    n_features: int
    n_components: int
    scale: float  # norm of the coefficients, up to a factor in `SCALE_RANGE`
    bar: float  # smallest allowed mean over data sets of the worst |cos|
    dispersion: float | None = None  # None if the family has none
    weights: tuple[float, ...] | None = None  # weights of the components; random if None

    def resized(self, n_obs: int, n_features: int | None = None) -> "Mixture":
        """Return the mixture with other numbers of rows and features."""
        return replace(self, n_obs=n_obs, n_features=n_features or self.n_features)


MIXTURES = (
    Mixture("gaussian", 5_000, 10, 3, 2.0, 0.96, dispersion=0.5),
    Mixture("poisson", 20_000, 5, 3, 0.7, 0.92),
    Mixture("bernoulli", 20_000, 5, 2, 2.0, 0.99),
    Mixture("bernoulli", 100_000, 10, 3, 2.0, 0.97),
    Mixture("gaussian", 8_000, 10, 4, 1.0, 0.85, dispersion=0.1, weights=(0.7, 0.15, 0.1, 0.05)),
)


@dataclass(frozen=True, slots=True)
class ParameterErrors:
    """Errors of the worst component."""

    angle: float  # largest angle to the truth in degrees, signs included
    scale: float  # largest relative error of a scale
    bias: float  # largest error of a bias
    weight: float  # largest error of a weight


def draw(mixture: Mixture, seed: int, index: int) -> MixtureData:
    """Draw a model and its data."""
    rng = np.random.default_rng([seed, index])
    return simulate_mixture(
        mixture.n_obs,
        mixture.n_features,
        mixture.n_components,
        family=mixture.family,
        scales=mixture.scale * rng.uniform(*SCALE_RANGE, mixture.n_components),
        weights=mixture.weights,
        dispersion=mixture.dispersion,
        random_seed=rng,
    )


def timed(
    data: MixtureData, seed: int, *, n_components: Any = None, **options: Any
) -> tuple[MomentEstimate, float]:
    """Estimate, and return the result with the seconds it took."""
    number = data.weights.size if n_components is None else n_components
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)  # the error shows failures
        return _seconds_of(
            lambda: estimate(
                data.X, data.y, number, family=data.family, random_seed=seed, **options
            )
        )


def worst_cosine(result: MomentEstimate, data: MixtureData) -> float:
    """Smallest |cos| between a true direction and its matched estimate."""
    angles = angles_in_degrees(result.directions, data.directions)
    return float(np.cos(np.radians(angles.max())))


def parameter_errors(result: MomentEstimate, data: MixtureData) -> ParameterErrors:
    """Largest error of each parameter over components, matched by directions with their signs."""
    if result.scales is None or result.biases is None or result.weights is None:
        raise ValueError(f"`result` must have scales; method {result.method!r} gives none.")
    index = match_components(result.directions, data.directions, signed=True)
    angles = angles_in_degrees(result.directions, data.directions, signed=True)
    return ParameterErrors(
        angle=float(angles.max()),
        scale=float(np.abs(result.scales[index] / data.scales - 1.0).max()),
        bias=float(np.abs(result.biases[index] - data.biases).max()),
        weight=float(np.abs(result.weights[index] - data.weights).max()),
    )


def pose(data: MixtureData) -> EstimationProblem:
    """Rows, fitted input density and coordinates, as `estimate` uses them."""
    checked = validate_data(data.X, data.y, family=data.family)
    model = Gaussian().fit_rows(checked.X, checked.sample_weight, checked.feature_names)
    return pose_problem(checked, model)


def describe(mixture: Mixture) -> Row:
    """Columns of a table that describe the mixture."""
    return {
        "family": mixture.family,
        "n": mixture.n_obs,
        "d": mixture.n_features,
        "r": mixture.n_components,
    }


def _seconds_of[Result](function: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start
