"""Mixtures with several responses, simulated with their truth beside them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.families.registry import get_family
from moment_init.responses.parameters import JointParameters

FloatArray = NDArray[np.float64]

LABELS = np.array(["bus", "car", "train", "walk"])


class JointData(NamedTuple):
    """Rows, their responses, and the parameters behind them."""

    X: FloatArray
    y: NDArray[Any]
    truth: JointParameters


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
    if family == "categorical":
        utilities = np.column_stack([np.zeros(n_obs), eta]) + rng.gumbel(
            size=(n_obs, n_predictors + 1)
        )
        y: NDArray[Any] = LABELS[utilities.argmax(axis=1)]
    else:
        known = get_family(family)
        y = known.sample(known.link.mean(eta), dispersion=dispersion, rng=rng)
    spread = None if dispersion is None else np.full(shape, dispersion)
    return JointData(X, y, JointParameters(slopes, biases, np.array(weights), spread))


def matched(found: Any, truth: JointParameters) -> list[int]:
    """The order of a fit's components that is nearest to the truth."""
    from scipy.optimize import linear_sum_assignment

    distance = np.square(found.coefficients[:, :, None] - truth.coefficients[:, None]).sum((0, 3))
    distance += np.square(found.biases[:, None] - truth.biases[None]).sum(axis=2)
    rows, columns = linear_sum_assignment(distance)
    return [int(rows[np.argmax(columns == j)]) for j in range(len(columns))]
