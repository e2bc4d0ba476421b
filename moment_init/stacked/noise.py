"""Sampling covariance of the moments: what weighs them against each other."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from moment_init.blocks import sum_over_blocks
from moment_init.row_samples import sample_rows
from moment_init.stacked.projection import ProjectedMoments

__all__ = ["MomentNoise", "estimate_noise"]

FloatArray = NDArray[np.float64]

# Rows whose products estimate the covariance: its entries then have a relative error below 1 %.
NOISE_ROWS = 20_000

# Up to this many moments their covariance is estimated entry by entry; above it only as the
# product of one covariance over functions and one over polynomials, as inverting it costs the cube.
MAX_DENSE_MOMENTS = 1200

# Eigenvalues are not taken below this share of the largest: a moment without noise does not exist.
SMALLEST_EIGENVALUE_SHARE = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class MomentNoise:
    """Covariance, times n, of the moments of m functions and q polynomials.

    Parameters
    ----------
    function_covariance : numpy.ndarray, shape (m, m)
        Covariance of the residuals of the functions.
    polynomial_covariance : numpy.ndarray, shape (q, q)
        Second moments of the polynomials.
    inverse_roots : tuple of numpy.ndarray
        Inverse Cholesky factors: one, (m q, m q), of `covariance`; or two, of the factors.
    covariance : numpy.ndarray, shape (m q, m q), or None
        The covariance itself, functions slower; None stands for the Kronecker product of the two.
    """

    function_covariance: FloatArray
    polynomial_covariance: FloatArray
    inverse_roots: tuple[FloatArray, ...]
    covariance: FloatArray | None

    def whiten(self, moments: FloatArray) -> FloatArray:
        """Multiply by the inverse Cholesky factor of the covariance.

        Parameters
        ----------
        moments : numpy.ndarray, shape (m, q) or (m, q, k)
            Differences of moments, or derivatives of moments.

        Returns
        -------
        numpy.ndarray, shape (m q,) or (m q, k)
            The same with identity covariance.
        """
        n_functions, size = moments.shape[:2]
        if self.covariance is not None:
            flat = moments.reshape(n_functions * size, *moments.shape[2:])
            return np.asarray(self.inverse_roots[0] @ flat)
        left, right = self.inverse_roots
        whitened = np.einsum("fg,pq,gq...->fp...", left, right, moments, optimize=True)
        return np.asarray(whitened.reshape(n_functions * size, *moments.shape[2:]))

    def solve_lower(self, arrays: FloatArray) -> FloatArray:
        """Multiply by the inverse covariance of the moments of the first polynomials.

        Parameters
        ----------
        arrays : numpy.ndarray, shape (m, q2, k)
            Arrays over the functions and the first q2 polynomials.

        Returns
        -------
        numpy.ndarray, shape (m, q2, k)
            The product.
        """
        n_functions, n_lower = arrays.shape[:2]
        lower = self.polynomial_covariance[:n_lower, :n_lower]
        if self.covariance is None:
            by_function = np.linalg.solve(
                self.function_covariance, arrays.reshape(n_functions, -1)
            ).reshape(arrays.shape)
            return np.asarray(np.linalg.solve(lower, by_function))
        size = len(self.polynomial_covariance)
        picked = (np.arange(n_functions)[:, None] * size + np.arange(n_lower)).ravel()
        factor = cho_factor(self.covariance[np.ix_(picked, picked)])
        solved = cho_solve(factor, arrays.reshape(n_functions * n_lower, -1))
        return np.asarray(solved.reshape(arrays.shape))


def estimate_noise(projected: ProjectedMoments, rng: np.random.Generator) -> MomentNoise:
    r"""Estimate the covariance of the moments from a sample of rows.

    The moments are :math:`\hat C = \hat G^{-1} \hat E[h T]` with the Gram matrix G of the
    polynomials h. To first order their covariance is that of :math:`\hat E[h e]`, e the residual.
    Its eigenvalues span many powers of ten, and the error of G mixes the large into the small:
    :math:`\delta G\, \hat E[h e]` adds :math:`D \otimes E[h h' |h|^2 / q] / n`, D being the first
    covariance summed over polynomials. Without that term the least noisy moments are trusted
    too much.

    Parameters
    ----------
    projected : ProjectedMoments
        The moments.
    rng : numpy.random.Generator
        Source of the sample.

    Returns
    -------
    MomentNoise
        The covariance.

    Notes
    -----
    The estimate is pulled towards its Kronecker form, which holds where residuals are independent
    of the input, by the share N / (N + rows) for N moments.
    """
    rows = projected.low_orders.rows
    picked = np.arange(min(NOISE_ROWS, rows.n_obs))
    if not rows.is_shuffled:
        picked = sample_rows(rows.n_obs, NOISE_ROWS, rng)
    n_functions, size = rows.n_functions, projected.basis.size
    n_moments = n_functions * size
    functions, polynomials, fourth, products = _residual_products(
        projected, picked, is_dense=n_moments <= MAX_DENSE_MOMENTS
    )
    functions = _regular(functions)
    # Fewer rows than polynomials leave their Gram matrix singular; its expectation is the identity.
    share = min(1.0, (size / len(picked)) ** 2)
    polynomials = (1.0 - share) * polynomials + share * np.eye(size)
    second_order = fourth / rows.effective_n
    if products is None:
        polynomials = polynomials + np.trace(polynomials) * second_order
        roots = _inverse_root(functions), _inverse_root(polynomials)
        return MomentNoise(functions, polynomials, roots, None)
    share = n_moments / (n_moments + len(picked))
    covariance = (1.0 - share) * products + share * np.kron(functions, polynomials)
    by_function = np.einsum("fqgq->fg", covariance.reshape(n_functions, size, n_functions, size))
    covariance = _regular(covariance + np.kron(by_function, second_order))
    return MomentNoise(functions, polynomials, (_inverse_root(covariance),), covariance)


def _residual_products(
    projected: ProjectedMoments, picked: NDArray[np.intp], *, is_dense: bool
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | None]:
    """Means over some rows of e e', h h', h h' |h|^2 / q and, where asked for, (e h)(e h)'.

    Weighted rows enter with the square of their weight, as they do in the variance of a weighted
    mean.
    """
    rows, basis = projected.low_orders.rows, projected.basis
    coefficients = projected.moments()
    projection = rows.to_input_units(projected.subspace)
    n_moments = rows.n_functions * basis.size

    def sums(block: slice) -> tuple[FloatArray, ...]:
        index = picked[block]
        values = basis.evaluate(rows.inputs(index) @ projection)
        residuals = rows.function_values(index) - values @ coefficients.T
        residuals *= rows.weights[index, None]
        weighted = values * rows.weights[index, None]
        by_size = weighted * np.sqrt(np.square(values).mean(axis=1))[:, None]
        second = tuple(np.dot(each.T, each) for each in (residuals, weighted, by_size))
        if not is_dense:
            return second
        # Functions go slower, rows fastest: long runs to write, and a product of a matrix with its
        # own transpose, half of which BLAS need not compute.
        terms = (residuals.T[:, None, :] * values.T[None]).reshape(n_moments, -1)
        return *second, np.dot(terms, terms.T)

    doubles = 2 * (n_moments if is_dense else basis.size)
    functions, polynomials, fourth, *products = sum_over_blocks(sums, len(picked), doubles)
    total = np.square(rows.weights[picked]).sum()
    mean_products = products[0] / total if is_dense else None
    return functions / total, polynomials / total, fourth / total, mean_products


def _regular(matrix: FloatArray) -> FloatArray:
    """Lift the diagonal a little: a response without noise leaves residuals that are all zero."""
    scale = max(float(np.trace(matrix)), np.finfo(float).tiny)
    return np.asarray(
        matrix + SMALLEST_EIGENVALUE_SHARE * scale / len(matrix) * np.eye(len(matrix))
    )


def _inverse_root(matrix: FloatArray) -> FloatArray:
    """Inverse of the Cholesky factor, eigenvalues held off zero.

    The Frobenius norm is at least the largest eigenvalue.
    """
    floor = SMALLEST_EIGENVALUE_SHARE * float(np.linalg.norm(matrix))
    factor = np.linalg.cholesky(matrix + floor * np.eye(len(matrix)))
    return np.asarray(solve_triangular(factor, np.eye(len(matrix)), lower=True))
