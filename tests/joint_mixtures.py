"""Mixtures with several responses or classes, simulated together with their parameters."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters

FloatArray = NDArray[np.float64]

LABELS = np.array(["bus", "car", "train", "walk"])


class JointData(NamedTuple):
    """Rows, their responses, and the parameters behind them."""

    X: FloatArray
    y: NDArray[Any]
    truth: MixtureParameters


def simulate_joint(
    family: str,
    n_obs: int,
    n_features: int,
    weights: list[float],
    n_predictors: int,
    rng: np.random.Generator,
    *,
    scale: float = 1.0,
    dispersion: float | None = None,
    is_tied: bool = False,
) -> JointData:
    """Draw a mixture and rows of it; `is_tied` gives every component a single direction."""
    r = len(weights)
    shape = (r, n_predictors)
    slopes = rng.standard_normal((n_features, *shape))
    slopes /= np.linalg.norm(slopes, axis=0)
    if is_tied:
        slopes = slopes[:, :, :1] * rng.choice([-1.0, 1.0], shape)
    slopes = scale * rng.uniform(0.7, 1.3, shape) * slopes
    biases = 0.5 * rng.standard_normal(shape)
    X = rng.standard_normal((n_obs, n_features))
    label = rng.choice(r, size=n_obs, p=weights)
    eta = np.einsum("nd,dnk->nk", X, slopes[:, label]) + biases[label]
    y = _draw_responses(family, eta, dispersion, rng)
    coefficients, levels = slopes.transpose(2, 0, 1), biases.T
    if n_predictors == 1:
        coefficients, levels = coefficients[0], levels[0]
    spread = None if dispersion is None else np.full(levels.shape, dispersion)
    return JointData(X, y, MixtureParameters(coefficients, levels, np.array(weights), spread))


CONTRARY = np.array([[[1.0, -0.6], [0.4, 0.9]], [[-0.7, 0.8], [0.8, 0.3]]])
"""Coefficients of two responses, features and components that are far apart in all directions."""


def simulate_labelled(
    family: str,
    label: NDArray[np.intp],
    rng: np.random.Generator,
    *,
    scale: float = 1.0,
    dispersion: float | None = None,
) -> JointData:
    """Draw two responses, or three classes, of rows with given components; slopes are fixed."""
    slopes, biases = scale * CONTRARY, np.array([[0.3, -0.2], [-0.4, 0.5]])
    X = rng.standard_normal((len(label), 2))
    eta = np.einsum("nd,kdn->nk", X, slopes[:, :, label]) + biases[:, label].T
    spread = None if dispersion is None else np.full((2, 2), dispersion)
    weights = np.bincount(label, minlength=2) / len(label)
    truth = MixtureParameters(slopes, biases, weights, spread)
    return JointData(X, _draw_responses(family, eta, dispersion, rng), truth)


def _draw_responses(
    family: str, eta: FloatArray, dispersion: float | None, rng: np.random.Generator
) -> NDArray[Any]:
    """Draw responses with given predictors, (n_obs, n_predictors), or labels of classes."""
    if family == "categorical":
        odds = np.column_stack([np.zeros(len(eta)), eta])
        return np.asarray(LABELS[(odds + rng.gumbel(size=odds.shape)).argmax(axis=1)])
    known = get_family(family)
    return known.sample(known.link.mean(eta), dispersion=dispersion, rng=rng)


def matched(found: Any, truth: MixtureParameters) -> list[int]:
    """Order of the components of a fit that is nearest to the truth."""
    gaps = np.square(found.coefficients[..., :, None] - truth.coefficients[..., None, :])
    distance = gaps.reshape(-1, *gaps.shape[-2:]).sum(axis=0)
    levels = np.square(found.biases[..., :, None] - truth.biases[..., None, :])
    distance += levels.reshape(-1, *levels.shape[-2:]).sum(axis=0)
    rows, columns = linear_sum_assignment(distance)
    return [int(rows[np.argmax(columns == j)]) for j in range(len(columns))]
