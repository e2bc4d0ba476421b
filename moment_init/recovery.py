"""What is recovered once the directions are known: signs, and weights from known scales and biases.

All arguments are in standardised coordinates.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.families import Family
from moment_init.families.quadrature import moment_coefficient

__all__ = [
    "coefficient_errors",
    "coefficients_from_values",
    "match_known_parameters",
    "power_coefficients",
    "settle_signs",
    "weights_from_known",
]

FloatArray = NDArray[np.float64]


def power_coefficients(moment: FloatArray, directions: FloatArray) -> FloatArray:
    """Least-squares coefficients of the powers of given directions in a moment of any order.

    Parameters
    ----------
    moment : numpy.ndarray, shape (n_features, ..., n_features)
        M_m, with m modes.
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        The c_j of M_m = sum_j c_j u_j^m.
    """
    order = moment.ndim
    along = np.empty(directions.shape[1])
    for index, direction in enumerate(directions.T):
        contracted = moment
        for _ in range(order):
            contracted = contracted @ direction
        along[index] = contracted
    return coefficients_from_values(along, directions, order)


def coefficients_from_values(along: FloatArray, directions: FloatArray, order: int) -> FloatArray:
    """Least-squares coefficients from the values of a moment along the directions.

    Parameters
    ----------
    along : numpy.ndarray, shape (n_components,)
        The values M_m(u_j, ..., u_j).
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions.
    order : int
        Order m of the moment.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        The c_j of M_m = sum_j c_j u_j^m.
    """
    # <u_i^m, u_j^m> = <u_i, u_j>^m: the Gram matrix of the least-squares problem.
    return np.linalg.pinv((directions.T @ directions) ** order, hermitian=True) @ along


def settle_signs(family: Family, first_order: FloatArray, third_order: FloatArray) -> FloatArray:
    """Signs that turn the directions towards growing responses.

    Every link is increasing, so that a_j = w_j s_j E[g'] is positive. Where g''' has one sign
    (log link), or the moment of y^3 is used (identity), lambda_j is positive as well, and it is the
    more direct evidence: it belongs to one component, whereas M_1 is split among all.

    Parameters
    ----------
    family : Family
        Family of the response.
    first_order : numpy.ndarray, shape (n_components,)
        Coefficients a_j of the directions in M_1.
    third_order : numpy.ndarray, shape (n_components,)
        Coefficients lambda_j of their cubes in M_3.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        Plus or minus one.
    """
    has_positive_third = family.response_power or family.link.third_derivative_sign == 1
    evidence = third_order if has_positive_third else first_order
    return np.where(evidence < 0.0, -1.0, 1.0)


def coefficient_errors(directions: FloatArray, covariance: FloatArray, order: int) -> FloatArray:
    """Standard errors of the least-squares coefficients of given directions in a moment.

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions.
    covariance : numpy.ndarray, shape (n_components, n_components)
        Sampling covariance of the moment along the directions (`CrossMoments.covariance_along`).
    order : {1, 2, 3}
        Order m of the moment.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        The standard errors.
    """
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

    For the right pair one weight explains the coefficients in M_1, M_2 and M_3 alike; the cost of a
    pair is the chi-square of what its best weight leaves.

    Parameters
    ----------
    family : Family
        Family of the response.
    coefficients, errors : numpy.ndarray, shape (3, n_components)
        Coefficients of the components in M_1, M_2, M_3, and their standard errors.
    scales, biases : numpy.ndarray, shape (n_components, n_components)
        Standardised scale and bias of component i if it had the known pair k, at [i, k].

    Returns
    -------
    numpy.ndarray of int, shape (n_components,)
        The estimated component of each known pair.
    """
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
    r"""Mixture weights when scales and biases are known.

    Implements the remark after Theorem 5 of the paper, :math:`w_j = \lambda_j / \rho_j`, with
    :math:`\lambda_j = w_j s_j^3 \rho_j^{(3)}`. The moments of order 1 and 2 are used beside it,
    each with the weight of its precision, as :math:`\rho_j^{(3)}` may be near zero.

    Parameters
    ----------
    family : Family
        Family of the response.
    coefficients, errors : numpy.ndarray, shape (3, n_components)
        Coefficients of the components in M_1, M_2, M_3, and their standard errors.
    scales, biases : numpy.ndarray, shape (n_components,)
        Known scales and biases in standardised coordinates.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        The weights as the moments give them; their sum need not be one.
    """
    observed = coefficients / errors
    expected = _coefficients_of_unit_weight(family, scales, biases) / errors
    return np.asarray(np.sum(observed * expected, axis=0) / np.sum(expected**2, axis=0))


def _coefficients_of_unit_weight(
    family: Family, scales: FloatArray, biases: FloatArray
) -> FloatArray:
    """The products s^m rho^(m) of orders 1 to 3, stacked along a first axis."""
    return np.stack(
        [scales**order * moment_coefficient(family, order, scales, biases) for order in (1, 2, 3)]
    )
