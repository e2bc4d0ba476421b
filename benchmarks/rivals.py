"""Methods of the literature for comparison, and the distance of a span from the truth.

Moment regression gives directions. The other three take standardised inputs z and the response, and
give only the span of the directions, as columns in the coordinates z. Hessian directions and
mirroring need a Gaussian input, sliced inverse regression an elliptical one.
"""

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
    "hessian_directions",
    "inverse_regression",
    "mirrored_directions",
    "moment_regression",
    "regression_size",
    "span_cosine",
    "subspace_cosine",
    "without_linear_part",
]

FloatArray = NDArray[np.float64]

# With more monomials up to degree 3 the regression takes too long; reached at about d = 20.
LARGEST_REGRESSION = 2_000

# Ridge of the regression per row, in coordinates where every regressor has variance one. It shrinks
# all entries of a moment alike, so the directions do not change.
RIDGE = 1e-2

# Slices of sliced inverse regression; their number matters little (Li 1991).
N_SLICES = 10


def subspace_cosine(problem: EstimationProblem, basis: FloatArray, data: MixtureData) -> float:
    """Smallest cosine between a true direction and a subspace."""
    # basis: (n_features, k)
    columns, _ = problem.coordinates.directions_to_user(basis)
    return span_cosine(columns, data)


def span_cosine(columns: FloatArray, data: MixtureData) -> float:
    """Smallest cosine between a true direction and the span of some columns."""
    # columns: (n_features, k)
    orthonormal, _ = np.linalg.qr(columns)
    return float(np.linalg.norm(orthonormal.T @ data.directions, axis=0).min())


def regression_size(n_features: int) -> int:
    """Number of monomials up to degree 3, the regressors of `moment_regression`."""
    return comb(n_features + 3, 3)


def moment_regression(
    problem: EstimationProblem, n_components: int, rng: np.random.Generator
) -> FloatArray:
    r"""Directions of a mixture of linear regressions by moment regression.

    With a constant among the inputs, :math:`E[y^p \mid x] = \langle \sum_j w_j \beta_j^{\otimes p},
    x^{\otimes p} \rangle` up to noise terms of degree below p. The leading degrees of the
    regressions of y^2 and y^3 on all monomials up to degree 2 and 3 therefore are the moments of
    the slopes; whitened by the second moment, the third is orthogonal.

    Departs from [1]_ by a ridge instead of a nuclear norm; the projection of M_2 on its r leading
    eigenvectors has the effect of the latter.

    References
    ----------
    .. [1] A. Chaganty, P. Liang, "Spectral experts for estimating mixtures of linear regressions",
       ICML 2013, arXiv:1306.3729.
    """
    # -> (n_features, n_components)
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
    z = problem.input_model.whiten(problem.data.X)
    basis = hermite_basis(z.shape[1], degree)
    features = basis.evaluate(z)
    gram = features.T @ features
    gram[np.diag_indices_from(gram)] += RIDGE * len(z)
    solution = cho_solve(cho_factor(gram), features.T @ problem.response**degree)
    entries = solution[None, basis.columns(degree)]
    return np.asarray(basis.expand(entries, degree)[0])


def without_linear_part(z: FloatArray, y: FloatArray) -> FloatArray:
    """Residual of y after a linear regression on z; its moments are less noisy than those of y."""
    centred = y - y.mean()
    return np.asarray(centred - z @ (z.T @ centred / len(y)))


def hessian_directions(z: FloatArray, y: FloatArray, n_directions: int) -> FloatArray:
    r"""Principal Hessian directions: leading eigenvectors of the mean Hessian of E[y | z].

    .. math:: E[(y - \bar y)\, z z'] = E[\nabla^2 E[y \mid z]]

    by Stein's lemma [1]_; the residual of y has the same moment. It vanishes for linear and for odd
    means.

    References
    ----------
    .. [1] K.-C. Li, "On principal Hessian directions for data visualization and dimension
       reduction", JASA 87 (1992), doi:10.1080/01621459.1992.10476258.
    """
    values, vectors = np.linalg.eigh((z.T * without_linear_part(z, y)) @ z)
    return np.asarray(vectors[:, np.argsort(-np.abs(values))[:n_directions]])


def inverse_regression(z: FloatArray, y: FloatArray, n_directions: int) -> FloatArray:
    r"""Sliced inverse regression: the span of the means of z in slices of y.

    These are the leading eigenvectors of :math:`\sum_h p_h m_h m_h'`, for slices with shares
    :math:`p_h` and means :math:`m_h` [1]_. There are fewer directions than slices: one if y has two
    values.

    References
    ----------
    .. [1] K.-C. Li, "Sliced inverse regression for dimension reduction", JASA 86 (1991),
       doi:10.1080/01621459.1991.10475035.
    """
    distinct, slices, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(distinct) > N_SLICES:  # slices of about equal size; equal values share one
        shares = counts / len(y)
        slices = np.floor(N_SLICES * (np.cumsum(shares) - shares / 2.0))[slices]
    members = slices == np.unique(slices)[:, None]  # (n_slices, n_obs)
    means = members @ z / np.sqrt(members.sum(axis=1))[:, None]  # times the root of n p_h
    return np.asarray(np.linalg.svd(means)[2][:n_directions].T)


def mirrored_directions(
    z: FloatArray, y: FloatArray, values: FloatArray, n_directions: int
) -> FloatArray:
    r"""Spectral mirroring: a second moment that odd means do not cancel.

    .. math:: r = E[y z] / |E[y z]|, \qquad v = y\, \mathrm{sgn} \langle r, z \rangle, \qquad
              Q = E[(v - \bar v)\, z z']

    The span is that of r and the leading left singular vectors of :math:`(I - r r') Q` [1]_. The
    mirrored `values` are y minus its mean, as in the equation, or its residual, which is less
    noisy. Departs from [1]_ by using all rows for both r and Q.

    References
    ----------
    .. [1] Y. Sun, S. Ioannidis, A. Montanari, "Learning mixtures of linear classifiers",
       ICML 2014, arXiv:1311.2547.
    """
    first = (y - y.mean()) @ z
    mirror = first / np.linalg.norm(first)
    mirrored = values * np.sign(z @ mirror)
    second = (z.T * (mirrored - mirrored.mean())) @ z
    vectors, _, _ = np.linalg.svd(second - np.outer(mirror, mirror @ second))
    return np.column_stack([mirror, vectors[:, : n_directions - 1]])
