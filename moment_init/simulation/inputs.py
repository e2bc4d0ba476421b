"""Designs for simulated features: Gaussian, and the departures from it that data show."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from moment_init.families.links import FloatArray

__all__ = ["INPUT_DESIGNS", "InputSampler"]

type InputSampler = Callable[[np.random.Generator, int, int], FloatArray]

_STUDENT_DEGREES = 5
"""Heavy tails whose fourth moment still exists."""

_GAMMA_SHAPE = 8.0
"""Skewed, with a density smooth enough at zero for a third-order score (that needs more than 3)."""

_LOG_DEVIATION = 0.5
"""Standard deviation of the logarithm: skewness 1.75, about that of measured sizes and incomes."""

_CLUSTER_WEIGHTS = np.array([0.5, 0.3, 0.2])
_CLUSTER_RADIUS = 3.0
"""Distance of the centres from theirs in units of the deviation within a cluster; the sides of the
triangle are then 5.2 long: clusters that a histogram shows, yet overlapping."""

_TRIANGLE = np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]])


def _gaussian(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent standard normal columns."""
    return rng.standard_normal((n_obs, n_features))


def _correlated(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw from a Gaussian with random mean, correlations, and variances in [1/4, 4]."""
    mean = rng.standard_normal(n_features)
    deviations = np.exp(rng.uniform(-np.log(2), np.log(2), n_features))
    # Two vectors per feature keep the correlations strong but the matrix well conditioned.
    factors = rng.standard_normal((n_features, 2 * n_features))
    factors /= np.linalg.norm(factors, axis=1, keepdims=True)
    noise = rng.standard_normal((n_obs, 2 * n_features))
    result: FloatArray = mean + (noise @ factors.T) * deviations
    return result


def _student_t(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw from a multivariate t with mean zero and identity covariance."""
    radii = np.sqrt((_STUDENT_DEGREES - 2) / rng.chisquare(_STUDENT_DEGREES, (n_obs, 1)))
    result: FloatArray = radii * rng.standard_normal((n_obs, n_features))
    return result


def _gamma(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent gamma columns, standardised."""
    draws = rng.standard_gamma(_GAMMA_SHAPE, (n_obs, n_features))
    result: FloatArray = (draws - _GAMMA_SHAPE) / np.sqrt(_GAMMA_SHAPE)
    return result


def _lognormal(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent log-normal columns, standardised."""
    draws = rng.lognormal(0.0, _LOG_DEVIATION, (n_obs, n_features))
    mean = np.exp(_LOG_DEVIATION**2 / 2)
    deviation = mean * np.sqrt(np.expm1(_LOG_DEVIATION**2))
    result: FloatArray = (draws - mean) / deviation
    return result


def _uniform(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent uniform columns with mean zero and variance one."""
    return rng.uniform(-np.sqrt(3), np.sqrt(3), (n_obs, n_features))


def _clusters(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw from a mixture of three Gaussians with mean zero and identity covariance overall.

    The centres are a triangle in a random plane; with one feature two of them coincide.
    """
    plane, _ = np.linalg.qr(rng.standard_normal((n_features, 2)))
    centres = _CLUSTER_RADIUS * _TRIANGLE[:, : plane.shape[1]] @ plane.T
    centres -= _CLUSTER_WEIGHTS @ centres
    covariance = np.eye(n_features) + (centres.T * _CLUSTER_WEIGHTS) @ centres
    labels = rng.choice(_CLUSTER_WEIGHTS.size, size=n_obs, p=_CLUSTER_WEIGHTS)
    raw = centres[labels] + rng.standard_normal((n_obs, n_features))
    result: FloatArray = np.linalg.solve(np.linalg.cholesky(covariance), raw.T).T
    return np.ascontiguousarray(result)


INPUT_DESIGNS: Mapping[str, InputSampler] = MappingProxyType(
    {
        "gaussian": _gaussian,
        "correlated": _correlated,
        "student_t": _student_t,
        "gamma": _gamma,
        "lognormal": _lognormal,
        "uniform": _uniform,
        "clusters": _clusters,
    }
)
"""Samplers of (rng, n_obs, n_features) by name. All but "correlated" have mean zero and identity
covariance, so that scales and biases mean the same under each."""
