"""The map between standardised coordinates, where everything is estimated, and the user's units.

With x = mean + L z and, for the identity link, y = shift + scale * response, a linear predictor
<beta, x> + b is <beta~, z> + b~ in standardised coordinates, where beta = L^-T beta~ and
b = b~ - <beta, mean>.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

__all__ = ["Coordinates"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Location and scale of inputs and response.

    Parameters
    ----------
    mean : numpy.ndarray, shape (n_features,)
        Mean of the input.
    factor : numpy.ndarray, shape (n_features, n_features)
        Lower triangular L with L L' the covariance of the input.
    response_shift : float
        Subtracted from the response, or for other links from the linear predictor.
    response_scale : float
        The response is divided by it; one unless the link is the identity.
    """

    mean: FloatArray
    factor: FloatArray
    response_shift: float = 0.0
    response_scale: float = 1.0

    def coefficients_to_user(
        self, coefficients: FloatArray, biases: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Map coefficients and biases to the user's units.

        Parameters
        ----------
        coefficients : numpy.ndarray, shape (n_features, n_components)
            Coefficients of standardised inputs.
        biases : numpy.ndarray, shape (n_components,)
            Biases in standardised coordinates.

        Returns
        -------
        coefficients : numpy.ndarray, shape (n_features, n_components)
            Coefficients of the user's columns.
        biases : numpy.ndarray, shape (n_components,)
            Biases in the user's units.
        """
        slopes = self.response_scale * self._unwhiten(coefficients)
        intercepts = self.response_scale * biases + self.response_shift - self.mean @ slopes
        return slopes, np.asarray(intercepts)

    def coefficients_to_standardised(
        self, coefficients: FloatArray, biases: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Map coefficients and biases from the user's units.

        Parameters
        ----------
        coefficients : numpy.ndarray, shape (n_features, n_components)
            Coefficients of the user's columns.
        biases : numpy.ndarray, shape (n_components,)
            Biases in the user's units.

        Returns
        -------
        coefficients : numpy.ndarray, shape (n_features, n_components)
            Coefficients of standardised inputs.
        biases : numpy.ndarray, shape (n_components,)
            Biases in standardised coordinates.
        """
        slopes = self.factor.T @ coefficients / self.response_scale
        levels = biases + self.mean @ coefficients - self.response_shift
        return np.asarray(slopes), np.asarray(levels / self.response_scale)

    def directions_to_user(self, directions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Map unit directions to unit directions in the user's units.

        Parameters
        ----------
        directions : numpy.ndarray, shape (n_features, n_components)
            Unit directions in standardised coordinates.

        Returns
        -------
        directions : numpy.ndarray, shape (n_features, n_components)
            Unit directions of the user's columns.
        lengths : numpy.ndarray, shape (n_components,)
            User's scale of a predictor that has scale one in standardised coordinates.
        """
        mapped = self._unwhiten(directions)
        lengths = np.linalg.norm(mapped, axis=0)
        return mapped / lengths, self.response_scale * lengths

    def _unwhiten(self, columns: FloatArray) -> FloatArray:
        """The product of the inverse transpose of L and the columns."""
        return np.asarray(solve_triangular(self.factor, columns, lower=True, trans="T"))
