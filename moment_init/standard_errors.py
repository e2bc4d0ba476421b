"""Standard errors of directions, in degrees."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from moment_init.coordinates import Coordinates
from moment_init.likelihood.parameters import MixtureParameters, component_size

__all__ = ["angle_error", "errors_from_information", "errors_from_replicates"]

FloatArray = NDArray[np.float64]

# Twice the error covers this share of the angles, as twice a normal standard error does.
COVERAGE = 0.95


def angle_error(
    covariance: FloatArray, coefficients: FloatArray, *, n_degrees: int | None = None
) -> float:
    """Standard error of a direction in degrees.

    The angle to the truth is a length in n_features - 1 dimensions, not a signed number: twice its
    root mean square would cover far more than 95 %. The error is therefore half the 95 % quantile
    of the angle, by Satterthwaite's chi-square with the mean and variance of its square.

    Parameters
    ----------
    covariance : numpy.ndarray, shape (n_features, n_features)
        Covariance of the coefficients.
    coefficients : numpy.ndarray, shape (n_features,)
        The coefficients.
    n_degrees : int, optional
        Degrees of freedom of an estimated covariance, whose square is otherwise too large.

    Returns
    -------
    float
        Degrees; twice this covers the true direction in 95 % of cases.
    """
    scale = float(np.linalg.norm(coefficients))
    direction = coefficients / scale
    if len(direction) == 1:
        return 0.0
    projector = np.eye(len(direction)) - np.outer(direction, direction)
    tangent = projector @ covariance @ projector / scale**2
    trace = float(np.trace(tangent))
    if trace <= 0.0:
        return 0.0
    # As a share of the squared trace, which itself leaves the range of doubles in extreme units.
    squares = float(np.square(tangent / trace).sum())
    if n_degrees is not None:
        # Unbiased for a Wishart matrix; never below that of a sphere in n_features - 1 dimensions.
        unbiased = n_degrees**2 * (squares - 1.0 / n_degrees)
        unbiased /= (n_degrees - 1) * (n_degrees + 2)
        squares = max(unbiased, 1.0 / (len(direction) - 1))
    quantile = squares * trace * float(chi2.ppf(COVERAGE, 1.0 / squares))
    return float(np.degrees(np.arctan(np.sqrt(quantile))) / 2.0)


def errors_from_information(
    information: FloatArray, parameters: MixtureParameters, coordinates: Coordinates
) -> tuple[FloatArray, FloatArray]:
    """Errors of directions, and covariance, from the information of a likelihood fit.

    Parameters
    ----------
    information : numpy.ndarray, shape (n_parameters, n_parameters)
        Information in standardised coordinates, positive definite.
    parameters : MixtureParameters
        The fit in standardised coordinates.
    coordinates : Coordinates
        The way to the user's units, in which the angles are measured.

    Returns
    -------
    errors : numpy.ndarray, shape (n_components,)
        Standard errors of the directions in degrees.
    covariance : numpy.ndarray, shape (n_parameters, n_parameters)
        Covariance of the standardised parameters.
    """
    covariance = np.linalg.pinv(information, hermitian=True)
    p, size = parameters.n_features, component_size(parameters)
    zero = np.zeros(p)
    basis, _ = coordinates.coefficients_to_user(np.eye(p), zero)
    slopes = basis @ parameters.coefficients
    errors = [
        angle_error(basis @ covariance[first : first + p, first : first + p] @ basis.T, column)
        for first, column in zip(range(0, size * len(slopes.T), size), slopes.T, strict=True)
    ]
    return np.array(errors), covariance


def errors_from_replicates(replicates: FloatArray, coordinates: Coordinates) -> FloatArray:
    """Errors of directions from a jackknife over parts of the rows.

    Parameters
    ----------
    replicates : numpy.ndarray, shape (n_parts, n_features, n_components)
        Coefficients in standardised coordinates with one part left out each.
    coordinates : Coordinates
        The way to the user's units.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        Standard errors of the directions in degrees.
    """
    n_parts, n_features, n_components = replicates.shape
    basis, _ = coordinates.coefficients_to_user(np.eye(n_features), np.zeros(n_features))
    slopes = basis @ replicates
    mean = slopes.mean(axis=0)
    deviations = slopes - mean
    errors = []
    for component in range(n_components):
        spread = deviations[:, :, component]
        covariance = (n_parts - 1) / n_parts * spread.T @ spread
        errors.append(angle_error(covariance, mean[:, component], n_degrees=n_parts - 1))
    return np.array(errors)
