"""Sampled mixtures of every family, and the distance of an estimate from their truth."""

from typing import Any

import numpy as np
from scipy.stats import chi2

from moment_init import MomentEstimate, estimate, match_components, simulate_mixture
from moment_init.data.simulation import MixtureData
from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters, pack
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import outer_product_information
from moment_init.moments.result import MomentDiagnostics, StackedDiagnostics
from tests.population import FloatArray

__all__ = [
    "SAMPLED",
    "fit_sampled",
    "parameter_distance",
    "sampled",
    "stacked_diagnostics",
    "third_moment_diagnostics",
]

SAMPLED: dict[str, dict[str, Any]] = {
    "bernoulli": {"scales": [3.0, 2.0], "biases": [0.3, -0.3]},
    "binomial": {"scales": [3.0, 2.0], "biases": [0.3, -0.3], "n_trials": 5},
    "poisson": {"scales": [0.7, 0.8], "biases": [1.0, 0.8]},
    "negative_binomial": {"scales": [0.7, 0.8], "biases": [1.0, 0.8], "dispersion": 20.0},
    "gaussian": {"scales": [1.0, 1.4], "biases": [0.3, -0.5], "dispersion": 0.3},
    "gamma": {"scales": [0.7, 0.8], "biases": [1.0, 0.8], "dispersion": 10.0},
}


def sampled(family: str, seed: int, n_obs: int = 100_000, **options: Any) -> MixtureData:
    """Two orthogonal directions that are no axes, in five columns."""
    directions = np.linalg.qr(np.arange(25.0).reshape(5, 5) ** 2 % 7 + np.eye(5))[0][:, :2]
    settings = {"weights": [0.55, 0.45], "directions": directions, **SAMPLED[family], **options}
    return simulate_mixture(n_obs, 5, 2, family=family, random_seed=seed, **settings)


def fit_sampled(data: MixtureData, **options: Any) -> MomentEstimate:
    """Estimate as many components as there are."""
    settings: dict[str, Any] = {
        "family": data.family,
        "link": data.link,
        "n_trials": data.n_trials,
        "random_seed": 1,
        **options,
    }
    return estimate(data.X, data.y, len(data.weights), **settings)


def parameter_distance(
    fit: MomentEstimate,
    truth: MixtureParameters,
    X: FloatArray,
    y: FloatArray,
    *,
    offset: FloatArray | None = None,
    n_trials: FloatArray | None = None,
    sample_weight: FloatArray | None = None,
    is_matched: bool = False,
) -> tuple[float, float]:
    """Distance of all parameters from the truth, and what noise exceeds in one case of a million.

    At the maximum of the likelihood (fit - truth)' I (fit - truth) is chi-square in the number of
    parameters. I is the information of the rows at the truth, all in the user's units, so that the
    distance knows nothing of standardised coordinates.
    """
    if fit.scales is None or fit.biases is None or fit.weights is None:
        raise TypeError("The estimate has no scales, biases or weights.")
    index = np.arange(fit.n_components)
    if not is_matched:
        index = match_components(fit.directions * fit.scales, truth.coefficients, signed=True)
    found = MixtureParameters(
        (fit.directions * fit.scales)[:, index],
        fit.biases[index],
        fit.weights[index],
        None if fit.dispersion is None else fit.dispersion[index],
    )
    weight = np.ones(len(y)) if sample_weight is None else sample_weight
    rows = LikelihoodRows(X, y, weight, offset, n_trials)
    information = outer_product_information(get_family(fit.family, fit.link), rows, truth)
    error = pack(found) - pack(truth)
    return float(error @ information @ error), float(chi2.isf(1e-6, len(error)))


def stacked_diagnostics(fit: MomentEstimate) -> StackedDiagnostics:
    """Diagnostics of an estimate by stacked moments."""
    if not isinstance(fit.diagnostics, StackedDiagnostics):
        raise TypeError("Not an estimate by stacked moments.")
    return fit.diagnostics


def third_moment_diagnostics(fit: MomentEstimate) -> MomentDiagnostics:
    """Diagnostics of an estimate by the paper's single moment."""
    if not isinstance(fit.diagnostics, MomentDiagnostics):
        raise TypeError("Not an estimate by a single moment.")
    return fit.diagnostics


def moment_coefficients(fit: MomentEstimate) -> FloatArray:
    """Coefficients of the third moment; those of one response are known."""
    if fit.moment_coefficients is None:
        raise TypeError("Not an estimate of one response.")
    return fit.moment_coefficients
