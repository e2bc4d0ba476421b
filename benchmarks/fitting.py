"""Errors of estimates and the exponents with which they grow."""

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.stats import linregress

from moment_init import MixtureData, WeakSignalWarning, angles_in_degrees, estimate

__all__ = ["direction_error", "fitted_exponent"]


def direction_error(data: MixtureData, seed: int) -> float:
    """Error of the worst direction by the paper's method, |u_j - u^_j|.

    Parameters
    ----------
    data : MixtureData
        Simulated data with their truth.
    seed : int
        Seed of the estimate.

    Returns
    -------
    float
        The error after matching, up to sign.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)  # small n is meant to be noisy
        result = estimate(
            data.X,
            data.y,
            data.weights.size,
            family=data.family,
            link=data.link,
            n_trials=data.n_trials,
            method="power",  # the theorems are about this one
            random_seed=seed,
        )
    angles = np.radians(angles_in_degrees(result.directions, data.directions))
    return float(2.0 * np.sin(angles / 2.0).max())


def fitted_exponent(x: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Slope of log(values) on log(x), with its standard error.

    Parameters
    ----------
    x, values : sequence of float
        Positive numbers.

    Returns
    -------
    exponent : float
        The slope.
    error : float
        Its standard error.
    """
    fit = linregress(np.log(x), np.log(values))
    return float(fit.slope), float(fit.stderr)
