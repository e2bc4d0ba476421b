"""Scales, biases, weights and dispersion along given directions: by likelihood, directions held.

Section 5 of the paper proposes EM for what moments leave open once directions are known. Only the
projections of the rows on the directions enter, and the climb is over 2 r + (r - 1) parameters (and
r of dispersion). No density of the input is assumed.
"""

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family
from moment_init.likelihood.constraints import LinearConstraint
from moment_init.likelihood.maximise import MaximiseResult, maximise
from moment_init.likelihood.parameters import MixtureParameters, component_size
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.stacked.start_grid import start_grid

__all__ = ["settle"]

FloatArray = NDArray[np.float64]

START_QUANTILES = (0.35, 0.7)
"""Places in the family's grid of scales from which scales start: a weak and a strong signal."""

SETTLING_STEPS = 25
SETTLING_EM_STEPS = 3


def settle(
    family: Family,
    rows: LikelihoodRows,
    directions: FloatArray,
    mean_response: float,
) -> MaximiseResult:
    """Maximise the likelihood of rows with the directions held.

    Parameters
    ----------
    family : Family
        Family of the response.
    rows : LikelihoodRows
        Rows in the coordinates of the directions.
    directions : numpy.ndarray, shape (k, n_components)
        Unit directions, oriented so that scales are positive; one that was oriented wrongly is
        turned on the way, or comes out with the opposite sign.
    mean_response : float
        Mean of the response, as `start_grid` takes it.

    Returns
    -------
    MaximiseResult
        The best end from starts with weak and strong signals.
    """
    grid, prior = start_grid(family, mean_response)
    n_components = directions.shape[1]
    dispersion = None
    if family.has_dispersion:
        dispersion = np.full(n_components, np.exp(prior.log_dispersion_mean))
    ends = []
    for quantile in START_QUANTILES:
        scale = float(np.quantile(np.unique(grid.scales), quantile))
        start = MixtureParameters(
            coefficients=scale * directions,
            biases=np.full(n_components, prior.bias_mean),
            weights=np.full(n_components, 1.0 / n_components),
            dispersion=dispersion,
        )
        ends.append(
            maximise(
                family,
                rows,
                start,
                max_steps=SETTLING_STEPS,
                em_steps=SETTLING_EM_STEPS,
                constraint=_held_directions(start),
            )
        )
    return max(ends, key=lambda end: end.log_likelihood)


def _held_directions(parameters: MixtureParameters) -> LinearConstraint:
    """Coefficients move along their own direction; everything else is free."""
    n_features, n_components = parameters.coefficients.shape
    size = component_size(parameters)
    n_parameters = size * n_components + n_components - 1
    columns = []
    for component in range(n_components):
        along = np.zeros(n_parameters)
        place = component * size
        along[place : place + n_features] = parameters.coefficients[:, component]
        columns.append(along)
        columns += list(np.eye(n_parameters)[place + n_features : place + size])
    columns += list(np.eye(n_parameters)[size * n_components :])
    return LinearConstraint.spanned_by(np.column_stack(columns))
