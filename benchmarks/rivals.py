"""Another way to directions, by moment regression; and how far a span is from the truth."""

from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from moment_init import MixtureData
from moment_init.moments.paper.decomposition import decompose_tensor
from moment_init.moments.subspace import hermite_basis
from moment_init.scores.choosing import EstimationProblem

__all__ = [
    "LARGEST_REGRESSION",
    "moment_regression",
    "regression_size",
    "span_cosine",
    "subspace_cosine",
]

FloatArray = NDArray[np.float64]

# Monomials up to degree 3 beyond which the regression takes too long: about d = 20.
LARGEST_REGRESSION = 2_000

# Ridge of the regression in units of the number of rows, in coordinates where every regressor has
# variance one; it shrinks all entries of a moment alike and so moves no direction.
RIDGE = 1e-2


def subspace_cosine(problem: EstimationProblem, basis: FloatArray, data: MixtureData) -> float:
    """Smallest cosine between a true direction and a subspace.

    Parameters
    ----------
    problem : EstimationProblem
        The coordinates.
    basis : numpy.ndarray, shape (n_features, k)
        Basis of the subspace in standardised coordinates.
    data : MixtureData
        The truth.

    Returns
    -------
    float
        Between 0 and 1.
    """
    columns, _ = problem.coordinates.directions_to_user(basis)
    return span_cosine(columns, data)


def span_cosine(columns: FloatArray, data: MixtureData) -> float:
    """Smallest cosine between a true direction and the span of some columns.

    Parameters
    ----------
    columns : numpy.ndarray, shape (n_features, k)
        Independent columns in the user's units.
    data : MixtureData
        The truth.

    Returns
    -------
    float
        Between 0 and 1.
    """
    orthonormal, _ = np.linalg.qr(columns)
    return float(np.linalg.norm(orthonormal.T @ data.directions, axis=0).min())


def regression_size(n_features: int) -> int:
    """Number of monomials up to degree 3.

    Parameters
    ----------
    n_features : int
        Number of variables.

    Returns
    -------
    int
        Regressors of `moment_regression`.
    """
    return comb(n_features + 3, 3)


def moment_regression(
    problem: EstimationProblem, n_components: int, rng: np.random.Generator
) -> FloatArray:
    r"""Directions of a mixture of linear regressions by moment regression.

    With a constant among the inputs, :math:`E[y^p \mid x] = \langle \sum_j w_j \beta_j^{\otimes p},
    x^{\otimes p} \rangle` up to terms of noise that touch degrees below p only. The regressions of
    y^2 and y^3 on all monomials up to degree 2 and 3 therefore give the compound moments of the
    slopes in their leading degree; whitened by the second, the third is orthogonal.

    Parameters
    ----------
    problem : EstimationProblem
        Rows of a Gaussian response.
    n_components : int
        Number of components, at most n_features.
    rng : numpy.random.Generator
        Source of the decomposition's starts.

    Returns
    -------
    numpy.ndarray, shape (n_features, n_components)
        Unit directions in the user's units.

    Notes
    -----
    Departs from [1]_ in a ridge where they have a nuclear norm, whose effect is that of the
    projection of M_2 on its r leading eigenvectors here.

    References
    ----------
    .. [1] A. Chaganty, P. Liang, "Spectral experts for estimating mixtures of linear regressions",
       ICML 2013, arXiv:1306.3729.
    """
    second = _leading_degree(problem, 2)
    third = _leading_degree(problem, 3)
    values, vectors = np.linalg.eigh(second)
    kept = np.maximum(values[::-1][:n_components], np.finfo(np.float64).tiny)
    basis = vectors[:, ::-1][:, :n_components]
    whitening = basis / np.sqrt(kept)
    whitened = np.einsum("ijk,ia,jb,kc->abc", third, whitening, whitening, whitening)
    found = decompose_tensor(whitened, n_components, rng).directions
    directions, _ = problem.coordinates.directions_to_user(basis * np.sqrt(kept) @ found)
    return directions


def _leading_degree(problem: EstimationProblem, degree: int) -> FloatArray:
    """Coefficients of degree p in the regression of y^p, as a symmetric tensor.

    The Hermite polynomials span the monomials, and their leading degree is the monomial's.
    """
    z = _standardised(problem)
    basis = hermite_basis(z.shape[1], degree)
    features = basis.evaluate(z)
    gram = features.T @ features
    gram[np.diag_indices_from(gram)] += RIDGE * len(z)
    solution = cho_solve(cho_factor(gram), features.T @ problem.response**degree)
    entries = solution[None, basis.columns(degree)]
    return np.asarray(basis.expand(entries, degree)[0])


def _standardised(problem: EstimationProblem) -> FloatArray:
    coordinates = problem.coordinates
    X = np.asarray(problem.data.X, dtype=np.float64)
    return np.ascontiguousarray(np.linalg.solve(coordinates.factor, (X - coordinates.mean).T).T)
