"""The paper's estimator of the components: directions, signs, and weights from known scales.

Lines 1 and 2 of Algorithm 1 give directions and their coefficients from one third-order moment (M_1
for a single component). Signs follow from the link, and weights from known scales and biases.
Everything is in standardised coordinates.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates
from moment_init.families.base import Family
from moment_init.families.quadrature import moment_coefficient
from moment_init.moments.paper.cross_moments import CrossMoments
from moment_init.moments.paper.decomposition import (
    Decomposition,
    DecompositionMethod,
    decompose_tensor,
)
from moment_init.moments.paper.whitening import leading_subspace
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import EstimationProblem


def power_coefficients(moment: FloatArray, directions: FloatArray) -> FloatArray:
    """Compute least-squares coefficients of powers of given directions in a moment."""
    # moment: (n_features, ..., n_features), directions: (n_features, n_components)
    # -> (n_components,)
    order = moment.ndim
    along = np.empty(directions.shape[1])
    for index, direction in enumerate(directions.T):
        contracted = moment
        for _ in range(order):
            contracted = contracted @ direction
        along[index] = contracted
    return coefficients_from_values(along, directions, order)


def coefficients_from_values(along: FloatArray, directions: FloatArray, order: int) -> FloatArray:
    """Compute least-squares coefficients from values of a moment along the directions."""
    # along: (n_components,), directions: (n_features, n_components) -> (n_components,)
    # <u_i^m, u_j^m> = <u_i, u_j>^m: the Gram matrix of the least-squares problem.
    return np.linalg.pinv((directions.T @ directions) ** order, hermitian=True) @ along


def choose_signs(family: Family, first_order: FloatArray, third_order: FloatArray) -> FloatArray:
    """Choose signs so that the response increases along the directions.

    Every link is increasing, so that a_j = w_j s_j E[g'] is positive. If g''' has one sign (log
    link), or the moment of y^3 is used (identity), lambda_j is positive as well. It is the more
    direct evidence, since it belongs to one component, whereas M_1 is split among all.
    """
    # first_order: (n_components,), third_order: (n_components,) -> (n_components,)
    has_positive_third = family.response_power or family.link.third_derivative_sign == 1
    evidence = third_order if has_positive_third else first_order
    return np.where(evidence < 0.0, -1.0, 1.0)


def coefficient_errors(directions: FloatArray, covariance: FloatArray, order: int) -> FloatArray:
    """Compute standard errors of the least-squares coefficients of given directions."""
    # directions: (n_features, n_components), covariance: (n_components, n_components)
    # -> (n_components,)
    inverse = np.linalg.pinv((directions.T @ directions) ** order, hermitian=True)
    return np.sqrt(np.maximum(np.diag(inverse @ covariance @ inverse), np.finfo(float).tiny))


def match_known_parameters(
    family: Family,
    coefficients: FloatArray,
    errors: FloatArray,
    scales: FloatArray,
    biases: FloatArray,
) -> NDArray[np.intp]:
    """Assign known pairs of scale and bias to estimated components.

    For the correct pair, one weight explains the coefficients in M_1, M_2 and M_3 alike; the cost
    of a pair is the chi-square of the residuals at its best weight.
    """
    # coefficients, errors: (3, n_components), scales, biases: (n_components, n_components)
    # -> (n_components,)
    observed = coefficients[:, :, None] / errors[:, :, None]
    expected = _coefficients_of_unit_weight(family, scales, biases) / errors[:, :, None]
    projection = np.maximum(np.sum(observed * expected, axis=0), 0.0)
    cost = np.sum(observed**2, axis=0) - projection**2 / np.sum(expected**2, axis=0)
    _, components = linear_sum_assignment(cost.T)
    return np.asarray(components)


def weights_from_known(
    family: Family,
    coefficients: FloatArray,
    errors: FloatArray,
    scales: FloatArray,
    biases: FloatArray,
) -> FloatArray:
    r"""Compute mixture weights from known scales and biases.

    Implements the remark after Theorem 5 of the paper, :math:`w_j = \lambda_j / \rho_j`, with
    :math:`\lambda_j = w_j s_j^3 \rho_j^{(3)}`. The moments of orders 1 and 2 are used as well, each
    weighted by its precision, since :math:`\rho_j^{(3)}` may be near zero.
    """
    # coefficients, errors: (3, n_components), scales, biases: (n_components,) -> (n_components,)
    observed = coefficients / errors
    expected = _coefficients_of_unit_weight(family, scales, biases) / errors
    return np.asarray(np.sum(observed * expected, axis=0) / np.sum(expected**2, axis=0))


def _coefficients_of_unit_weight(
    family: Family, scales: FloatArray, biases: FloatArray
) -> FloatArray:
    """Stack the products s^m rho^(m) of orders 1 to 3 along a first axis."""
    return np.stack(
        [scales**order * moment_coefficient(family, order, scales, biases) for order in (1, 2, 3)]
    )


# Random slices per component that find the subspace if the tensor is too large to be formed. With
# exact moments one would be enough; the others average out noise.
SLICES_PER_COMPONENT = 3
MIN_SLICES = 10


@dataclass(frozen=True, slots=True, eq=False)
class ThirdMomentFit:
    """Components of M_3 in standardised coordinates."""

    decomposition: Decomposition  # directions, coefficients and diagnostics
    errors: FloatArray  # standard errors of the coefficients; (n_components,)
    noise_variance: float  # sampling variance of an entry of M_3 whose three indices differ
    first_moment: FloatArray  # M_1 of the same response; (n_features,)


def fit_third_moment(
    moments: CrossMoments,
    n_components: int,
    rng: np.random.Generator,
    *,
    method: DecompositionMethod = "power",
) -> ThirdMomentFit:
    """Estimate directions from the third-order moment of one response.

    Implements lines 1 and 2 of Algorithm 1 of the paper for r >= 2. Departures: the quadratic part
    of the response is subtracted first (control variates, `CrossMoments.without_quadratic`), and
    the span of the components comes from many slices, not from one.

    The tensor is formed explicitly, O(n d^3 / 2), if that is cheaper than the slices that find its
    subspace, O(n d^2) each. Otherwise no array of d^3 entries is formed.
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
    """Find the span of the components from random slices, then from fibres inside that span.

    In two of the three modes the second step contains only the noise inside the subspace.
    """
    thetas = rng.standard_normal((moments.basis.shape[1], n_slices))
    rough, _ = leading_subspace(moments.slices(thetas), n_components)
    first, second = np.triu_indices(n_components)
    fibres = moments.fibres((rough[:, first] + rough[:, second]) / 2.0)
    subspace, _ = leading_subspace(fibres[None], n_components)
    return subspace


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """Components in standardised coordinates, signs included."""

    directions: FloatArray  # unit directions; (n_features, n_components)
    coefficients: FloatArray  # coefficients in M_3; in M_1 for a single component; (n_components,)
    errors: FloatArray  # standard errors of the coefficients; (n_components,)
    # sampling variance of an entry of M_3 whose three indices differ; zero if M_3 was not used
    noise_variance: float
    # decomposition of M_3; None for a single component, which uses M_1, or given directions
    decomposition: Decomposition | None

    def reorder(self, order: NDArray[np.intp]) -> "Components":
        """Put the components in another order."""
        # order: (n_components,)
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
    """Find the directions and their coefficients from the paper's moments."""
    # response: (n_obs,)
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
    signs = choose_signs(data.single_family, first_order, third_order)
    return Components(
        directions=directions * signs,
        coefficients=third_order * signs,
        errors=fit.errors,
        noise_variance=fit.noise_variance,
        decomposition=fit.decomposition,
    )


def components_along(problem: EstimationProblem, directions: FloatArray) -> Components:
    """Compute coefficients of given directions in M_3, or in M_1 for a single component."""
    # directions: (n_features, n_components)
    order = 1 if directions.shape[1] == 1 else 3
    coefficients, errors = _coefficients(
        problem.data, problem.input_model, problem.response, directions, order
    )
    return Components(directions, coefficients, errors, 0.0, decomposition=None)


def _moments(
    data: RegressionData, input_model: InputModel, response: FloatArray, order: int
) -> CrossMoments:
    """Prepare the moments of one order (Lemma 6: a power of y for the identity link)."""
    values = response**order if data.family.response_power else response
    weights = data.sample_weight
    # E[S_m] = 0: subtracting a constant from the response only removes noise.
    centred = values - weights @ values / weights.sum()
    return CrossMoments(data.X, centred, weights, input_model, input_model.standardising_basis)


def _coefficients(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    directions: FloatArray,
    order: int,
) -> tuple[FloatArray, FloatArray]:
    """Compute coefficients of powers of the directions in M_m, and their standard errors."""
    moments = _moments(data, input_model, response, order)
    covariance = moments.covariance_along(directions, order)
    errors = coefficient_errors(directions, covariance, order)
    # The restriction comes first, so that no array of d^m entries is formed.
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
    """Compute the weights of components whose scales and biases are known."""
    # response: (n_obs,), scales, biases: (n_components,)
    # -> order (n_components,), weights (n_components,), sum of the weights before normalisation
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
        data.single_family, coefficients, errors, standard_scales, standard_biases
    )
    known = np.arange(n_components)
    raw = weights_from_known(
        data.single_family,
        coefficients[:, order],
        errors[:, order],
        standard_scales[order, known],
        standard_biases[order, known],
    )
    positive = np.maximum(raw, 0.0)
    total = positive.sum()
    if total <= 0.0:  # the known parameters contradict the data: equal weights
        return order, np.full(n_components, 1.0 / n_components), float(raw.sum())
    return order, positive / total, float(raw.sum())
