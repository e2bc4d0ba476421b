"""Oracles for score functions: the paper's recursion, contractions of explicit tensors, moments."""

import numpy as np
from numpy.polynomial import chebyshev
from numpy.testing import assert_allclose

from moment_init.scores import InputModel
from tests.population import FloatArray

# Points of a line through a row, half of it this many deviations long. The interpolant of an
# analytic function is exact to rounding; its slope loses a factor of the square of the points.
POINTS = chebyshev.chebpts1(20)
HALF_LENGTH = 0.1


def assert_recursion(model: InputModel, X: FloatArray, rng: np.random.Generator) -> None:
    """Scores are those of Eq. (10), S_m = -S_(m-1) x grad l - grad S_(m-1), to 1e-7.

    S_1 = -grad l comes from the log-density, S_2 from S_1 and S_3 from S_2: gradients along a line
    are those of the interpolant in its Chebyshev points. Tensors are in whitened coordinates.
    """
    basis = model.standardising_basis
    for x in X:
        scores = [model.score(x[None], order, basis)[0] for order in (1, 2, 3)]
        for v in rng.standard_normal((4, len(x))):
            v /= np.linalg.norm(v)
            line = x + HALF_LENGTH * POINTS[:, None] * (basis @ v)
            lower = [model.log_density(line), *(model.score(line, m, basis) for m in (1, 2))]
            slopes = [_slope(values) for values in lower]
            along = slopes[0]  # <grad l, v>
            expected = [-along, *(-s * along - d for s, d in zip(scores, slopes[1:], strict=False))]
            for score, value in zip(scores, expected, strict=True):
                scale = max(1.0, float(np.abs(score).max()))
                assert_allclose(score @ v, value, rtol=0, atol=1e-7 * scale)


def _slope(values: FloatArray) -> FloatArray:
    """Derivative along the line, at its middle, of each entry."""
    flat = values.reshape(len(POINTS), -1)
    coefficients = chebyshev.chebfit(POINTS, flat, len(POINTS) - 1)
    slopes = chebyshev.chebval(0.0, chebyshev.chebder(coefficients)) / HALF_LENGTH
    return np.asarray(slopes).reshape(values.shape[1:])


def assert_contractions(model: InputModel, X: FloatArray, rng: np.random.Generator) -> None:
    """Every contraction of a model equals that of the explicit tensors."""
    n_obs, width = len(X), 2
    weights = rng.standard_normal(n_obs)
    basis = model.standardising_basis
    B = basis @ rng.standard_normal((len(basis), width))
    thetas = rng.standard_normal((width, 3))
    first = model.score(X, 1) @ B
    second = np.einsum("nab,ai,bj->nij", model.score(X, 2), B, B)
    third = np.einsum("nabc,ai,bj,ck->nijk", model.score(X, 3), B, B, B)
    contraction = model.contract(B)

    def close(actual: FloatArray, expected: FloatArray) -> None:
        assert actual.shape == expected.shape
        assert_allclose(actual, expected, rtol=0, atol=1e-9 * np.abs(expected).max())

    for order, tensors in enumerate((first, second, third), start=1):
        close(contraction.score(X, order), tensors)
        close(contraction.sum_score(X, weights, order), np.tensordot(weights, tensors, 1))
    low = contraction.sum_low_orders(X, weights)
    close(low[0], weights @ first)
    close(low[1], np.tensordot(weights, second, 1))
    slices = np.einsum("n,nijk,kl->lij", weights, third, thetas)
    close(contraction.sum_slices(X, weights, thetas), slices)
    fibres = np.einsum("n,nijk,jl,kl->il", weights, third, thetas, thetas)
    close(contraction.sum_fibres(X, weights, thetas), fibres)
    close(contraction.powers(X, 1), first)
    close(contraction.powers(X, 2), np.einsum("nii->ni", second))
    close(contraction.powers(X, 3), np.einsum("niii->ni", third))
    close(model.gradient(X), -model.score(X, 1))


def assert_moments(model: InputModel, X: FloatArray, n_errors: float = 5.0) -> None:
    """Mean and covariance of draws are those of the density; six in ten million fail by chance."""
    z = model.whiten(X)
    for terms in (z, np.einsum("ni,nj->nij", z, z) - np.eye(z.shape[1])):
        error = terms.std(axis=0) / np.sqrt(len(z))
        assert np.all(np.abs(terms.mean(axis=0)) <= n_errors * error)
