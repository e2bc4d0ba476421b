"""Rows with weights whose moments are those of a Gaussian input, without sampling noise."""

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Product of Gauss-Hermite rules in standard coordinates, seen through an affine map."""

    z: FloatArray
    weights: FloatArray
    shear: FloatArray
    mean: FloatArray

    @property
    def X(self) -> FloatArray:
        return self.z @ self.shear.T + self.mean

    def span(self, columns: FloatArray) -> FloatArray:
        """Orthonormal basis of the user's slopes of predictors <u, z>, u the columns."""
        return np.asarray(np.linalg.qr(np.linalg.solve(self.shear.T, columns))[0])


def gaussian_grid(n_features: int, n_nodes: int = 8) -> Grid:
    """Polynomials up to degree 2 n_nodes - 1 have the moments of N(0, I); columns are sheared."""
    nodes, weights = hermegauss(n_nodes)
    z = np.stack(np.meshgrid(*[nodes] * n_features, indexing="ij"), axis=-1)
    products = np.stack(np.meshgrid(*[weights] * n_features, indexing="ij"), axis=-1).prod(axis=-1)
    rng = np.random.default_rng(5)
    shear = np.eye(n_features) + 0.4 * rng.standard_normal((n_features, n_features))
    shear[0] *= 100.0  # units of one column
    mean = 10.0 * rng.standard_normal(n_features)
    return Grid(z.reshape(-1, n_features), products.ravel(), shear, mean)


def largest_sine(basis: FloatArray, columns: FloatArray) -> float:
    """Sine of the largest angle between unit columns and the span of an orthonormal basis."""
    return float(np.linalg.norm(columns - basis @ (basis.T @ columns), axis=0).max())
