"""The paper's estimator of the directions: one third-order moment (Algorithm 1, lines 1 and 2)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.decomposition import Decomposition, DecompositionMethod, decompose_tensor
from moment_init.moments import CrossMoments
from moment_init.recovery import coefficient_errors
from moment_init.whitening import leading_subspace

__all__ = ["ThirdMomentFit", "fit_third_moment"]

FloatArray = NDArray[np.float64]

# Random slices per component that find the subspace where the tensor is too large to be formed. One
# per component would do for exact moments; the others average noise.
SLICES_PER_COMPONENT = 3
MIN_SLICES = 10


@dataclass(frozen=True, slots=True, eq=False)
class ThirdMomentFit:
    """Components of M_3 in standardised coordinates.

    Parameters
    ----------
    decomposition : Decomposition
        Directions, coefficients and the account of how they were found.
    errors : numpy.ndarray, shape (n_components,)
        Standard errors of the coefficients.
    noise_variance : float
        Sampling variance of an entry of M_3 whose three indices differ.
    first_moment : numpy.ndarray, shape (n_features,)
        The moment M_1 of the same response.
    """

    decomposition: Decomposition
    errors: FloatArray
    noise_variance: float
    first_moment: FloatArray


def fit_third_moment(
    moments: CrossMoments,
    n_components: int,
    rng: np.random.Generator,
    *,
    method: DecompositionMethod = "power",
) -> ThirdMomentFit:
    """Estimate directions from the third-order moment of one response.

    Implements lines 1 and 2 of Algorithm 1 of the paper for r >= 2. Departures: the quadratic part
    of the response is taken out first (control variates, `CrossMoments.without_quadratic`), and the
    span of the components comes from many slices and not from one.

    Parameters
    ----------
    moments : CrossMoments
        Moments of the response in the standardising basis.
    n_components : int
        Number of components r, at least 2 and at most the number of features.
    rng : numpy.random.Generator
        Source of slices and starts.
    method : {"power", "tensorly"}
        Which power method decomposes the whitened tensor.

    Returns
    -------
    ThirdMomentFit
        The components.

    Notes
    -----
    The tensor is formed explicitly, O(n d^3 / 2), while that is cheaper than the slices that find
    its subspace, O(n d^2) each. Beyond that no array of d^3 is made.
    """
    residual_moments, first_moment = moments.without_quadratic()
    n_features = moments.basis.shape[1]
    n_slices = max(MIN_SLICES, SLICES_PER_COMPONENT * n_components)
    if n_features <= 2 * n_slices:
        tensor = residual_moments.moment(3)
        decomposition = decompose_tensor(tensor, n_components, rng, method=method)
    else:
        subspace = _sliced_subspace(residual_moments, n_components, n_slices, rng)
        core = residual_moments.restrict(subspace).moment(3)
        core_fit = decompose_tensor(core, n_components, rng, method=method)
        decomposition = core_fit.lift(subspace)
    directions = decomposition.directions
    covariance = residual_moments.covariance_along(directions, 3)
    errors = coefficient_errors(directions, covariance, 3)
    # The Hermite polynomial of order 3 has variance 6, the product of three different ones 1.
    noise_variance = float(np.diag(covariance).mean()) / 6.0
    return ThirdMomentFit(decomposition, errors, noise_variance, first_moment)


def _sliced_subspace(
    moments: CrossMoments, n_components: int, n_slices: int, rng: np.random.Generator
) -> FloatArray:
    """Span of the components from random slices, then from the fibres inside that span.

    The second step sees only the noise that falls on the subspace in two of the three modes.
    """
    thetas = rng.standard_normal((moments.basis.shape[1], n_slices))
    rough, _ = leading_subspace(moments.slices(thetas), n_components)
    first, second = np.triu_indices(n_components)
    fibres = moments.fibres((rough[:, first] + rough[:, second]) / 2.0)
    subspace, _ = leading_subspace(fibres[None], n_components)
    return subspace
