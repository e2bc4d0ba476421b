"""Kinds of non-Gaussian inputs, each with the density that it is drawn from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from moment_init import MixtureData, simulate_mixture
from moment_init.scores import (
    RBM,
    ColumnDensity,
    GaussianMixture,
    Independent,
    InputModel,
    StudentT,
)

__all__ = ["INPUT_KINDS", "DrawnMixture", "Inputs", "draw_mixture", "standardised_inputs"]

FloatArray = NDArray[np.float64]

CLUSTER_WEIGHTS = np.array([0.5, 0.3, 0.2])
CLUSTER_DISTANCE = 5.0
"""Smallest distance between centres, in standard deviations of a cluster: one row in a hundred lies
nearer to another centre than to its own."""

DEGREES = 5.0
LOG_DEVIATION = 0.5
LARGE_SHAPE, SMALL_SHAPE = 8.0, 2.0

N_HIDDEN = 4
HIDDEN_LENGTH = 2.0
"""Norm of a hidden unit's weights: along each, two modes just touch."""

GIBBS_STEPS = 100

# Standard deviation of a linear predictor, and the largest distance of its centre from zero.
PREDICTOR_SD, LARGEST_CENTRE = 3.0, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Rows with their density."""

    X: FloatArray  # the rows; (n_obs, n_features)
    density: InputModel | None  # their density; None if it has no third-order score


def _gaussian(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    return Inputs(rng.standard_normal((n_obs, n_features)), None)


def _clusters(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    """Three clusters around random centres, with identity covariance."""
    centres = rng.standard_normal((len(CLUSTER_WEIGHTS), n_features))
    sides = np.linalg.norm(centres - np.roll(centres, 1, axis=0), axis=1)
    centres *= CLUSTER_DISTANCE / sides.min()
    labels = rng.choice(len(CLUSTER_WEIGHTS), n_obs, p=CLUSTER_WEIGHTS)
    X = centres[labels] + rng.standard_normal((n_obs, n_features))
    covariances = np.broadcast_to(np.eye(n_features), (3, n_features, n_features))
    return Inputs(
        X, GaussianMixture(weights=CLUSTER_WEIGHTS, means=centres, covariances=covariances)
    )


def _student_t(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    radii = np.sqrt(DEGREES / rng.chisquare(DEGREES, (n_obs, 1)))
    density = StudentT(np.zeros(n_features), np.eye(n_features), DEGREES)
    return Inputs(radii * rng.standard_normal((n_obs, n_features)), density)


def _gamma(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    X = rng.standard_gamma(LARGE_SHAPE, (n_obs, n_features))
    return Inputs(X, Independent([ColumnDensity("gamma", shapes=(LARGE_SHAPE,))] * n_features))


def _lognormal(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    X = rng.lognormal(0.0, LOG_DEVIATION, (n_obs, n_features))
    return Inputs(
        X, Independent([ColumnDensity("lognormal", shapes=(LOG_DEVIATION,))] * n_features)
    )


def _rbm(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    """Restricted Boltzmann machine with unit variances, by Gibbs sampling in many chains."""
    weights = rng.standard_normal((n_features, N_HIDDEN))
    weights *= HIDDEN_LENGTH / np.linalg.norm(weights, axis=0)
    # At the centre of x, each unit is on with probability one half.
    bias = rng.standard_normal(N_HIDDEN) * 0.3 - 0.5 * np.square(weights).sum(axis=0)
    hidden = (rng.random((n_obs, N_HIDDEN)) < 0.5).astype(np.float64)
    for _ in range(GIBBS_STEPS):
        X = hidden @ weights.T + rng.standard_normal((n_obs, n_features))
        hidden = (rng.random((n_obs, N_HIDDEN)) < expit(X @ weights + bias)).astype(np.float64)
    density = RBM(
        weights=weights,
        visible_bias=np.zeros(n_features),
        hidden_bias=bias,
        precision=np.ones(n_features),
    )
    return Inputs(X, density)


def _short_gamma(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    return Inputs(rng.standard_gamma(SMALL_SHAPE, (n_obs, n_features)), None)


def _uniform(rng: np.random.Generator, n_obs: int, n_features: int) -> Inputs:
    return Inputs(rng.uniform(-1.0, 1.0, (n_obs, n_features)), None)


INPUT_KINDS: Mapping[str, Callable[[np.random.Generator, int, int], Inputs]] = MappingProxyType(
    {
        "gaussian": _gaussian,
        "clusters": _clusters,
        "t5": _student_t,
        "gamma(8)": _gamma,
        "lognormal": _lognormal,
        "rbm": _rbm,
        "gamma(2)": _short_gamma,
        "uniform": _uniform,
    }
)
"""Functions of (rng, n_obs, n_features) that draw inputs, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnMixture:
    """Data of a mixture with one kind of inputs."""

    data: MixtureData  # rows and the truth
    density: InputModel | None  # density of the inputs; None if it has no third-order score


def draw_mixture(kind: str, sizes: tuple[int, int, int], seed: Sequence[int]) -> DrawnMixture:
    """Draw inputs and a bernoulli mixture whose linear predictors share one standard deviation."""
    n_obs, n_features, n_components = sizes
    rng = np.random.default_rng(seed)
    inputs = INPUT_KINDS[kind](rng, n_obs, n_features)
    mean, covariance = inputs.X.mean(axis=0), np.cov(inputs.X.T)
    coefficients = rng.standard_normal((n_features, n_components))
    variances = np.einsum("ij,ik,kj->j", coefficients, covariance, coefficients)
    coefficients *= PREDICTOR_SD / np.sqrt(variances)
    scales = np.linalg.norm(coefficients, axis=0)
    centres = rng.uniform(-LARGEST_CENTRE, LARGEST_CENTRE, n_components)
    data = simulate_mixture(
        *sizes,
        family="bernoulli",
        directions=coefficients / scales,
        scales=scales,
        biases=centres - mean @ coefficients,
        inputs=inputs.X,
        random_seed=rng,
    )
    return DrawnMixture(data, inputs.density)


def standardised_inputs(
    name: str,
) -> Callable[[np.random.Generator, int, int], FloatArray]:
    """Return a function that draws inputs with columns of mean zero and variance one."""

    def draw(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
        X = INPUT_KINDS[name](rng, n_obs, n_features).X
        return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))

    return draw
