"""Mixtures of Gaussians by EM: the number of parts by BIC, the last steps on all rows."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from moment_init.blocks import read_block, sum_over_blocks
from moment_init.covariance import CorrelationFit
from moment_init.notices import changed_filters
from moment_init.row_samples import resample_rows

__all__ = ["MixtureParameters", "choose_mixture"]

FloatArray = NDArray[np.float64]

# Rows on which the number and the start are found: clusters that matter hold hundreds of them.
START_ROWS = 5_000

# EM steps on those rows from k-means; parts that are apart need ten.
START_STEPS = 50

# EM steps on all rows: clusters that are apart need one or two, and where parts overlap the density
# that they make, which is all that is used, is right long before the parts are.
FULL_STEPS = 5

# A variance below this share of the column's is a part that has run into few equal rows.
SMALLEST_VARIANCE = 1e-4

# After so many further parts without a better BIC the search ends.
PATIENCE = 2


@dataclass(frozen=True, slots=True, eq=False)
class MixtureParameters:
    """Parameters of a mixture of Gaussians.

    Parameters
    ----------
    weights : numpy.ndarray, shape (n_parts,)
        Probabilities of the parts.
    means : numpy.ndarray, shape (n_parts, n_features)
        Their means.
    covariances : numpy.ndarray, shape (n_parts, n_features, n_features)
        Their covariances.
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray


def choose_mixture(
    features: NDArray[np.generic],
    weights: FloatArray,
    units: CorrelationFit,
    numbers: Sequence[int],
    rng: np.random.Generator,
) -> tuple[MixtureParameters, tuple[float, ...]]:
    """Fit mixtures with each number of parts, keep the one with the least BIC.

    Parameters
    ----------
    features : numpy.ndarray, shape (n_obs, n_features)
        Checked inputs.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    units : CorrelationFit
        Location and scale of the columns.
    numbers : sequence of int
        Numbers of parts, in ascending order.
    rng : numpy.random.Generator
        Source of starts, and of rows where their weights differ.

    Returns
    -------
    parameters : MixtureParameters
        The fitted mixture, in the units of the inputs.
    bic : tuple of float
        BIC of each number that was tried, per row of the sample.
    """
    if features.shape[0] <= numbers[0]:
        raise ValueError(
            f"`X` must have more rows than the mixture has parts ({numbers[0]}); got "
            f"{features.shape[0]}. Ask for fewer parts."
        )
    index = resample_rows(weights, START_ROWS, rng)
    sample = (read_block(features, index) - units.mean) / units.scales
    best: Any = None
    criteria: list[float] = []
    for number in numbers:
        if number >= len(sample):
            break
        fitted = _fit_sample(sample, number, rng)
        criteria.append(float(fitted.bic(sample) / len(sample)))
        if criteria[-1] == min(criteria):
            best = fitted
        elif len(criteria) - 1 - int(np.argmin(criteria)) >= PATIENCE:
            break
    parameters = MixtureParameters(best.weights_, best.means_, best.covariances_)
    for _ in range(FULL_STEPS):
        parameters = _em_step(features, weights, units, parameters)
    return _in_input_units(parameters, units), tuple(criteria)


def _fit_sample(sample: FloatArray, number: int, rng: np.random.Generator) -> Any:
    """Fit one number of parts by scikit-learn's EM."""
    from sklearn.mixture import GaussianMixture

    estimator = GaussianMixture(
        number,
        reg_covar=SMALLEST_VARIANCE,
        max_iter=START_STEPS,
        random_state=int(rng.integers(2**31)),
    )
    # Threads of k-means wait actively for each other, which takes ten times as long on a busy
    # machine.
    with threadpool_limits(1, user_api="openmp"), changed_filters():
        # An EM that is still climbing has its density right already; steps on all rows follow.
        warnings.filterwarnings("ignore", message="Best performing initialization did not")
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        return estimator.fit(sample)


def _em_step(
    features: NDArray[np.generic],
    weights: FloatArray,
    units: CorrelationFit,
    parameters: MixtureParameters,
) -> MixtureParameters:
    """One EM step on all rows, in standardised columns."""
    factors = [cholesky(covariance, lower=True) for covariance in parameters.covariances]
    n_parts, n_features = parameters.means.shape

    def sums(rows: slice) -> tuple[FloatArray, ...]:
        z = (read_block(features, rows) - units.mean) / units.scales
        joint = np.empty((len(z), n_parts))
        for part, factor in enumerate(factors):
            whitened = solve_triangular(factor, (z - parameters.means[part]).T, lower=True)
            joint[:, part] = -0.5 * np.square(whitened).sum(axis=0)
            joint[:, part] -= np.log(np.diag(factor)).sum()
        joint += np.log(parameters.weights)
        shares = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) * weights[rows, None]
        grams = np.stack([np.dot((z * share[:, None]).T, z) for share in shares.T])
        return shares.sum(axis=0), np.dot(shares.T, z), grams

    doubles = 4 * n_features + 2 * n_parts
    totals, firsts, seconds = sum_over_blocks(sums, features.shape[0], doubles)
    means = firsts / totals[:, None]
    covariances = seconds / totals[:, None, None] - means[:, :, None] * means[:, None, :]
    covariances += SMALLEST_VARIANCE * np.eye(n_features)
    return MixtureParameters(totals / totals.sum(), means, covariances)


def _in_input_units(parameters: MixtureParameters, units: CorrelationFit) -> MixtureParameters:
    """Undo the standardisation of the columns."""
    return MixtureParameters(
        parameters.weights,
        units.mean + units.scales * parameters.means,
        parameters.covariances * np.outer(units.scales, units.scales),
    )
