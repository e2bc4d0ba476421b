"""Standard errors of directions: cases by hand, units, replicates, and coverage."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import chi2

from moment_init.data.standardising import Coordinates
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.moments.stacked_result import (
    angle_error,
    errors_from_information,
)
from tests.population import FloatArray

COEFFICIENTS = np.array([2.0, -1.0, 0.5, 1.5])


def random_covariance(rng: np.random.Generator, size: int) -> FloatArray:
    root = rng.standard_normal((size, size))
    return np.asarray(root @ root.T)


def test_isotropic_covariance() -> None:
    """Across u the error is N(0, sigma^2 I) in d - 1 dimensions: its length is sigma chi_{d-1}.

    The tangent of the angle is that length over |beta|; the error is half of its 95 % quantile.
    """
    sigma = 0.03
    length = np.linalg.norm(COEFFICIENTS)
    expected = np.degrees(np.arctan(sigma * np.sqrt(chi2.ppf(0.95, 3)) / length)) / 2.0
    assert_allclose(angle_error(sigma**2 * np.eye(4), COEFFICIENTS), expected, rtol=1e-12)


def test_two_dimensions_are_a_normal_error() -> None:
    """One tangent direction: half the 95 % quantile of |N(0, v)| is .98 sqrt(v)."""
    covariance = np.diag([5.0, 1e-6])
    found = angle_error(covariance, np.array([2.0, 0.0]))
    assert_allclose(found, np.degrees(1.959964 / 2.0 * 1e-3 / 2.0), rtol=1e-5)


def test_the_length_of_the_coefficients_has_no_say() -> None:
    """Error along the coefficients turns nothing; a single column has no direction to miss."""
    along = np.outer(COEFFICIENTS, COEFFICIENTS)
    assert angle_error(along, COEFFICIENTS) == pytest.approx(0.0, abs=1e-6)
    across = 0.01 * np.eye(4)
    assert_allclose(
        angle_error(across + along, COEFFICIENTS), angle_error(across, COEFFICIENTS), rtol=1e-8
    )
    assert angle_error(np.eye(1), np.array([3.0])) == 0.0
    assert angle_error(np.zeros((4, 4)), COEFFICIENTS) == 0.0


def test_relative_errors_matter(rng: np.random.Generator) -> None:
    covariance = random_covariance(rng, 4)
    expected = angle_error(covariance, COEFFICIENTS)
    assert_allclose(angle_error(9.0 * covariance, 3.0 * COEFFICIENTS), expected, rtol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_twice_the_error_covers_95_per_cent(spread: float, rng: np.random.Generator) -> None:
    """20,000 draws: the share has a standard error of .0015; Satterthwaite's costs up to .01."""
    scales = 0.01 * np.exp(spread * np.linspace(-1.0, 1.0, 4))
    draws = COEFFICIENTS + scales * rng.standard_normal((20_000, 4))
    cosines = draws @ COEFFICIENTS / np.linalg.norm(draws, axis=1) / np.linalg.norm(COEFFICIENTS)
    angles = np.degrees(np.arccos(np.minimum(cosines, 1.0)))
    covered = np.mean(angles < 2.0 * angle_error(np.diag(scales**2), COEFFICIENTS))
    assert abs(covered - 0.95) < 0.0075 + 0.01 * (spread > 0.0)


# --- from an information --------------------------------------------------------------------------

PARAMETERS = MixtureParameters(
    coefficients=np.array([[1.0, -0.5], [0.3, 0.8], [-0.6, 0.4]]),
    biases=np.array([0.2, -0.4]),
    weights=np.array([0.7, 0.3]),
    dispersion=np.array([0.5, 0.9]),
)
N_PARAMETERS = 11  # two components of three slopes, a bias and a dispersion, and one logit
PLAIN = Coordinates(np.zeros(3), np.eye(3))


def test_information_of_separate_components() -> None:
    """A diagonal information: each component's slopes have the covariance of their own block."""
    precision = np.ones(N_PARAMETERS)
    precision[:3], precision[5:8] = 400.0, 2500.0
    errors, covariance = errors_from_information(np.diag(precision), PARAMETERS, PLAIN)
    assert_allclose(covariance, np.diag(1.0 / precision), rtol=1e-10)
    expected = [
        angle_error(np.eye(3) / number, PARAMETERS.coefficients[:, component])
        for component, number in enumerate((400.0, 2500.0))
    ]
    assert_allclose(errors, expected, rtol=1e-8)
    assert errors[0] > 1.5 * errors[1]


def test_uncertainty_of_other_parameters_counts(rng: np.random.Generator) -> None:
    """The covariance is a block of the inverse, not the inverse of a block."""
    information = 100.0 * (random_covariance(rng, N_PARAMETERS) + 0.1 * np.eye(N_PARAMETERS))
    errors, covariance = errors_from_information(information, PARAMETERS, PLAIN)
    assert_allclose(covariance @ information, np.eye(N_PARAMETERS), atol=1e-8)
    for component, first in enumerate((0, 5)):
        block = np.linalg.inv(information)[first : first + 3, first : first + 3]
        assert_allclose(
            errors[component], angle_error(block, PARAMETERS.coefficients[:, component])
        )


def test_angles_are_those_of_the_users_columns(rng: np.random.Generator) -> None:
    """beta = L^-T beta~, and so is its covariance; the response's unit cancels."""
    factor = np.array([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 0.4, 0.5]])
    information = 100.0 * (random_covariance(rng, N_PARAMETERS) + 0.1 * np.eye(N_PARAMETERS))
    coordinates = Coordinates(np.array([1.0, -2.0, 3.0]), factor)
    errors, covariance = errors_from_information(information, PARAMETERS, coordinates)
    inverse = np.linalg.inv(factor.T)
    for component, first in enumerate((0, 5)):
        block = inverse @ covariance[first : first + 3, first : first + 3] @ inverse.T
        slopes = inverse @ PARAMETERS.coefficients[:, component]
        assert_allclose(errors[component], angle_error(block, slopes), rtol=1e-8)
    scaled = Coordinates(coordinates.mean, factor, response_shift=7.0, response_scale=1e3)
    again, _ = errors_from_information(information, PARAMETERS, scaled)
    assert_allclose(again, errors, rtol=1e-8)
