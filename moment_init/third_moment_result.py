"""The paper's own estimate as a result: one third moment, the user's units, status."""

import numpy as np
from numpy.typing import NDArray

from moment_init.components import find_components, weigh_components
from moment_init.decomposition import DecompositionMethod
from moment_init.diagnostics import diagnose, judge
from moment_init.problem import EstimationProblem
from moment_init.results import MomentEstimate

__all__ = ["estimate_by_third_moment"]

FloatArray = NDArray[np.float64]


def estimate_by_third_moment(
    problem: EstimationProblem,
    n_components: int,
    rng: np.random.Generator,
    *,
    method: DecompositionMethod,
    known: tuple[FloatArray, FloatArray] | None,
) -> MomentEstimate:
    """Run the paper's Algorithm 1, lines 1 and 2, and say how far it can be trusted.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, input model and coordinates.
    n_components : int
        Number of components.
    rng : numpy.random.Generator
        Source of slices and starts.
    method : {"power", "tensorly"}
        Which power method decomposes M_3.
    known : tuple of two numpy.ndarray, shapes (n_components,), or None
        Known scales and biases in the user's units.

    Returns
    -------
    MomentEstimate
        Directions, and weights where scales and biases are known.
    """
    data, input_model = problem.data, problem.input_model
    response, coordinates = problem.response, problem.coordinates
    components = find_components(data, input_model, response, n_components, rng, method)
    weights, weight_sum = None, None
    scales, biases = (None, None) if known is None else known
    if known is not None:
        index, weights, weight_sum = weigh_components(
            data, input_model, response, coordinates, components, *known
        )
        components = components.reorder(index)
    elif components.decomposition is None:
        weights = np.ones(1)
    directions, lengths = coordinates.directions_to_user(components.directions)
    order = 1 if components.decomposition is None else 3
    coefficients = components.coefficients * lengths**order
    diagnostics = diagnose(data, components, input_model.shrinkage_, weight_sum)
    status, warnings = judge(data, input_model, components, diagnostics)
    return MomentEstimate(
        directions=directions,
        moment_coefficients=coefficients,
        scales=scales,
        biases=biases,
        weights=weights,
        feature_names=data.feature_names,
        family=data.family.name,
        link=data.family.link.name,
        method=method,
        status=status,
        warnings=warnings,
        diagnostics=diagnostics,
    )
