"""Errors of estimates, and exponents fitted to them."""

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.stats import linregress

from moment_init import MixtureData, WeakSignalWarning, angles_in_degrees, estimate

__all__ = ["direction_error", "fitted_exponent"]


def direction_error(data: MixtureData, seed: int) -> float:
    """Error |u_j - u^_j| of the worst direction by the paper's method, matched up to sign."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)  # noise is expected at small n
        result = estimate(
            data.X,
            data.y,
            data.weights.size,
            family=data.family,
            link=data.link,
            n_trials=data.n_trials,
            method="power",  # the method of the theorems
            random_seed=seed,
        )
    angles = np.radians(angles_in_degrees(result.directions, data.directions))
    return float(2.0 * np.sin(angles / 2.0).max())


def fitted_exponent(x: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Slope of log(values) on log(x), with its standard error."""
    fit = linregress(np.log(x), np.log(values))
    return float(fit.slope), float(fit.stderr)
