"""Mixtures on which EM from random starts fails, or is said to fail, and timed fits of them."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init import EMFit, MixtureData, fit_em, simulate_mixture

__all__ = ["GAUNTLET", "RandomMixture", "draw", "fit_timed", "polynomial_features", "truth_of"]

FloatArray = NDArray[np.float64]
InputSampler = Callable[[np.random.Generator, int, int], FloatArray]

POWERS = (1, 4, 7)


@dataclass(frozen=True, slots=True)
class RandomMixture:
    """A kind of random mixture; one row of the table."""

    name: str  # name of the row
    family: str  # family of the response
    n_obs: int
    n_features: int
    n_components: int
    coefficient_sd: float  # each coefficient is N(0, coefficient_sd^2)
    bias_sd: float = 0.0  # each bias is N(0, bias_sd^2)
    weights: tuple[float, ...] | None = None  # weights of the components; equal if None
    # gaussian family: standard deviation of the noise, see `is_noise_relative`
    noise: float | None = None
    is_noise_relative: bool = False  # `noise` in units of the means' deviation
    # draws features from (rng, n_obs, n_features); standard normal if None
    inputs: InputSampler | None = None
    is_raced: bool = False  # whether the portfolio must be faster than three random starts
    priors: str | None = None  # of all fits

    def resized(self, n_obs: int) -> "RandomMixture":
        """Return the mixture with another number of rows."""
        return replace(self, n_obs=n_obs)


def polynomial_features(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Powers x = (t, t^4, t^7) of one uniform variable, whose density has no score."""
    # -> (n_obs, n_features)
    t = rng.uniform(-1.0, 1.0, n_obs)
    return np.column_stack([t**power for power in POWERS[:n_features]])


def _linear(name: str, n_obs: int, d: int, r: int, **options: Any) -> RandomMixture:
    """Gaussian response with coefficients N(0, I/d), so that the means have variance one."""
    return RandomMixture(name, "gaussian", n_obs, d, r, d**-0.5, **{"noise": 0.1, **options})


RARE = (0.70, 0.15, 0.10, 0.05)

GAUNTLET: tuple[RandomMixture, ...] = (
    _linear("R1: gaussian, rare", 2_000, 10, 4, weights=RARE, is_raced=True),
    RandomMixture(
        "R2: poisson, rare",
        "poisson",
        *(4_000, 6, 3),
        coefficient_sd=0.41,
        bias_sd=0.7,
        weights=(0.85, 0.10, 0.05),
        is_raced=True,
    ),
    RandomMixture(
        "R3: bernoulli, rare",
        "bernoulli",
        *(20_000, 5, 3),
        coefficient_sd=1.5,
        bias_sd=0.5,
        weights=(0.7, 0.2, 0.1),
        is_raced=True,
    ),
    _linear("R4: gaussian, few rows", 600, 30, 4, is_noise_relative=True),
    # Crossing curves: coefficients and bias of one size, noise a tenth of the means' deviation.
    RandomMixture(
        "R5: gaussian, polynomial",
        "gaussian",
        *(5_000, 3, 3),
        coefficient_sd=1.0,
        bias_sd=1.0,
        noise=0.1,
        is_noise_relative=True,
        inputs=polynomial_features,
    ),
    _linear("gaussian, rare, more rows", 8_000, 10, 4, weights=RARE),
    _linear("gaussian, balanced", 1_000, 5, 2),
    _linear("gaussian, balanced", 2_500, 15, 5),
    _linear("gaussian, balanced", 4_000, 30, 8),
    _linear("gaussian, balanced", 8_000, 20, 8),
)


def draw(mixture: RandomMixture, seed: int, index: int) -> MixtureData:
    """Draw a model and its data."""
    rng = np.random.default_rng([seed, index])
    shape = mixture.n_features, mixture.n_components
    equal = np.full(mixture.n_components, 1.0 / mixture.n_components)
    weights = equal if mixture.weights is None else np.array(mixture.weights)
    coefficients = mixture.coefficient_sd * rng.standard_normal(shape)
    biases = mixture.bias_sd * rng.standard_normal(mixture.n_components)
    X = _draw_inputs(mixture, rng)
    scales = np.linalg.norm(coefficients, axis=0)
    return simulate_mixture(
        mixture.n_obs,
        *shape,
        family=mixture.family,
        directions=coefficients / scales,
        scales=scales,
        biases=biases,
        weights=weights,
        dispersion=_noise(mixture, X @ coefficients + biases, weights),
        inputs=X,
        random_seed=rng,
    )


def fit_timed(data: MixtureData, seed: int | None = None, **options: Any) -> tuple[EMFit, float]:
    """Fit by EM in one process, and return the fit with the seconds it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the log-likelihood shows failures
        start = time.perf_counter()
        fit = fit_em(
            data.X,
            data.y,
            data.weights.size,
            family=data.family,
            random_seed=seed,
            progressbar=False,
            **options,
        )
        return fit, time.perf_counter() - start


def truth_of(data: MixtureData) -> tuple[FloatArray, ...]:
    """True coefficients, biases, weights and any dispersion, as `fit_em(init=...)` takes them."""
    start = data.coefficients, data.biases, data.weights
    return start if data.dispersion is None else (*start, data.dispersion)


def _draw_inputs(mixture: RandomMixture, rng: np.random.Generator) -> FloatArray:
    if mixture.inputs is not None:
        return mixture.inputs(rng, mixture.n_obs, mixture.n_features)
    return rng.standard_normal((mixture.n_obs, mixture.n_features))


def _noise(mixture: RandomMixture, means: FloatArray, weights: FloatArray) -> float | None:
    """Standard deviation of the noise; `means` has one column per component."""
    if mixture.noise is None or not mixture.is_noise_relative:
        return mixture.noise
    centre = np.average(means.mean(axis=0), weights=weights)
    variance = np.average(((means - centre) ** 2).mean(axis=0), weights=weights)
    return mixture.noise * float(np.sqrt(variance))
