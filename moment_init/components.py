"""The components in standardised coordinates: directions, and their coefficients in the moments."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.coordinates import Coordinates
from moment_init.data import RegressionData
from moment_init.decomposition import Decomposition, DecompositionMethod
from moment_init.moments import CrossMoments
from moment_init.problem import EstimationProblem
from moment_init.recovery import (
    coefficient_errors,
    coefficients_from_values,
    match_known_parameters,
    power_coefficients,
    settle_signs,
    weights_from_known,
)
from moment_init.scores.base import InputModel
from moment_init.third_moment import fit_third_moment

__all__ = ["Components", "components_along", "find_components", "weigh_components"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """Components in standardised coordinates, with signs settled.

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions.
    coefficients : numpy.ndarray, shape (n_components,)
        Coefficients in M_3; in M_1 for a single component.
    errors : numpy.ndarray, shape (n_components,)
        Their standard errors.
    noise_variance : float
        Sampling variance of an entry of M_3 whose three indices differ; zero without M_3.
    decomposition : Decomposition or None
        How M_3 was decomposed; None for a single component, which M_1 gives.
    """

    directions: FloatArray
    coefficients: FloatArray
    errors: FloatArray
    noise_variance: float
    decomposition: Decomposition | None

    def reorder(self, order: NDArray[np.intp]) -> "Components":
        """Put the components in another order.

        Parameters
        ----------
        order : numpy.ndarray of int, shape (n_components,)
            Present index of each component in the new order.

        Returns
        -------
        Components
            The same components.
        """
        return replace(
            self,
            directions=self.directions[:, order],
            coefficients=self.coefficients[order],
            errors=self.errors[order],
        )


def find_components(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    n_components: int,
    rng: np.random.Generator,
    method: DecompositionMethod,
) -> Components:
    """Find the directions by the paper's moments, with their coefficients.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : InputModel
        Fitted density of the input.
    response : numpy.ndarray, shape (n_obs,)
        Standardised response.
    n_components : int
        Number of components.
    rng : numpy.random.Generator
        Source of slices and starts.
    method : {"power", "tensorly"}
        Which power method decomposes M_3.

    Returns
    -------
    Components
        From M_1 alone for one component (Lemma 2 of the paper), else from M_3 (Lemmas 3 and 6).
    """
    if n_components == 1:
        moments = _moments(data, input_model, response, 1)
        first_moment = moments.moment(1)
        length = np.linalg.norm(first_moment, keepdims=True)
        directions = first_moment[:, None] / np.maximum(length, np.finfo(float).tiny)
        covariance = moments.covariance_along(directions, 1)
        errors = coefficient_errors(directions, covariance, 1)
        return Components(directions, length, errors, 0.0, decomposition=None)
    fit = fit_third_moment(
        _moments(data, input_model, response, 3), n_components, rng, method=method
    )
    directions, third_order = fit.decomposition.directions, fit.decomposition.coefficients
    first_order = power_coefficients(fit.first_moment, directions)
    signs = settle_signs(data.family, first_order, third_order)
    return Components(
        directions=directions * signs,
        coefficients=third_order * signs,
        errors=fit.errors,
        noise_variance=fit.noise_variance,
        decomposition=fit.decomposition,
    )


def components_along(problem: EstimationProblem, directions: FloatArray) -> Components:
    """Coefficients of given directions in the third moment.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, input model and coordinates.
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions in standardised coordinates, signs settled.

    Returns
    -------
    Components
        The components; a single one has its coefficient in M_1.
    """
    order = 1 if directions.shape[1] == 1 else 3
    coefficients, errors = _coefficients(
        problem.data, problem.input_model, problem.response, directions, order
    )
    return Components(directions, coefficients, errors, 0.0, decomposition=None)


def _moments(
    data: RegressionData, input_model: InputModel, response: FloatArray, order: int
) -> CrossMoments:
    """Moments of the response that an order uses (Lemma 6: its power for the identity link)."""
    values = response**order if data.family.response_power else response
    weights = data.sample_weight
    # E[S_m] = 0: a constant may be taken out of the response, and its noise with it.
    centred = values - weights @ values / weights.sum()
    return CrossMoments(data.X, centred, weights, input_model, input_model.standardising_basis)


def _coefficients(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    directions: FloatArray,
    order: int,
) -> tuple[FloatArray, FloatArray]:
    """Coefficients of the powers of the directions in M_m, and their standard errors."""
    moments = _moments(data, input_model, response, order)
    covariance = moments.covariance_along(directions, order)
    errors = coefficient_errors(directions, covariance, order)
    # Restricted to the directions first: no array of d^m is made.
    values = np.einsum("j" * order + "->j", moments.restrict(directions).moment(order))
    return coefficients_from_values(values, directions, order), errors


def weigh_components(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    coordinates: Coordinates,
    components: Components,
    scales: FloatArray,
    biases: FloatArray,
) -> tuple[NDArray[np.intp], FloatArray, float]:
    """Compute the weights of components whose scales and biases are known.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : InputModel
        Fitted density of the input.
    response : numpy.ndarray, shape (n_obs,)
        Standardised response.
    coordinates : Coordinates
        The way to the user's units.
    components : Components
        The components, in any order.
    scales, biases : numpy.ndarray, shape (n_components,)
        Known scales and biases in the user's units.

    Returns
    -------
    order : numpy.ndarray of int, shape (n_components,)
        The component that belongs to each known pair.
    weights : numpy.ndarray, shape (n_components,)
        Their weights, normalised.
    weight_sum : float
        Sum of the weights before that.
    """
    if len(scales) == 1:
        return np.zeros(1, dtype=np.intp), np.ones(1), 1.0
    user_directions, _ = coordinates.directions_to_user(components.directions)
    n_components = len(scales)
    standard_scales = np.empty((n_components, n_components))
    standard_biases = np.empty((n_components, n_components))
    for pair in range(n_components):
        slopes, levels = coordinates.coefficients_to_standardised(
            user_directions * scales[pair], np.full(n_components, biases[pair])
        )
        standard_scales[:, pair] = np.linalg.norm(slopes, axis=0)
        standard_biases[:, pair] = levels
    low_orders = [
        _coefficients(data, input_model, response, components.directions, order) for order in (1, 2)
    ]
    coefficients = np.stack([*(values for values, _ in low_orders), components.coefficients])
    errors = np.stack([*(values for _, values in low_orders), components.errors])
    order = match_known_parameters(
        data.family, coefficients, errors, standard_scales, standard_biases
    )
    known = np.arange(n_components)
    raw = weights_from_known(
        data.family,
        coefficients[:, order],
        errors[:, order],
        standard_scales[order, known],
        standard_biases[order, known],
    )
    positive = np.maximum(raw, 0.0)
    total = positive.sum()
    if total <= 0.0:  # the known parameters contradict the data: nothing to prefer
        return order, np.full(n_components, 1.0 / n_components), float(raw.sum())
    return order, positive / total, float(raw.sum())
