r"""Moments of a mixture as functions of its parameters, and the parameters that fit given moments.

The moment of order m of function k is

.. math:: E[T_k S_m] / \sqrt{m!} = \sum_j w_j\, h_{m,k}(s_j, b_j, \phi_j)\, u_j^{\otimes m}

with h of `moment_init.moments.expectations`. Non-linear least squares, weighted by the inverse
sampling covariance, fits directions, scales, biases, weights and dispersions to all moments at
once. The sign of a direction follows too, since links are increasing. By Stein's identity the
derivatives of h are moments of higher order,

.. math:: \partial_b h_m = \sqrt{m+1}\, h_{m+1} / s, \qquad
          \partial_s h_m = (\sqrt{(m+1)(m+2)}\, h_{m+2} + m h_m) / s,

so that the Jacobian needs finite differences only in the dispersion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import least_squares

from moment_init.checks import FloatArray
from moment_init.data.blocks import sample_rows, sum_over_blocks
from moment_init.likelihood.parameters import MixtureParameters, component_size, pack, unpack
from moment_init.moments.expectations import ExpectedFunctions, GridPoints, ParameterPrior
from moment_init.moments.subspace import HermiteBasis, ProjectedMoments

# Rows that estimate the covariance: its entries then have a relative error below 1 %.
NOISE_ROWS = 20_000

# Up to this many moments the covariance is estimated entry by entry. Above, it is the Kronecker
# product of one over functions and one over polynomials, since the cost of inversion is cubic.
MAX_DENSE_MOMENTS = 1200

# Smallest eigenvalue as a share of the largest: there is no moment without noise.
SMALLEST_EIGENVALUE_SHARE = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class MomentNoise:
    """Covariance, times n, of the moments of m functions and q polynomials."""

    function_covariance: FloatArray  # covariance of the residuals of the functions; (m, m)
    polynomial_covariance: FloatArray  # second moments of the polynomials; (q, q)
    # inverse Cholesky factor of `covariance`, (m q, m q), or those of the two Kronecker factors
    inverse_roots: tuple[FloatArray, ...]
    # covariance of all moments, polynomials varying fastest, (m q, m q); None if it is taken as the
    # Kronecker product of the two covariances above
    covariance: FloatArray | None

    def whiten(self, moments: FloatArray) -> FloatArray:
        """Multiply by the inverse Cholesky factor of the covariance."""
        # moments: (m, q) or (m, q, k) -> (m q,) or (m q, k)
        n_functions, size = moments.shape[:2]
        if self.covariance is not None:
            flat = moments.reshape(n_functions * size, *moments.shape[2:])
            return np.asarray(self.inverse_roots[0] @ flat)
        left, right = self.inverse_roots
        whitened = np.einsum("fg,pq,gq...->fp...", left, right, moments, optimize=True)
        return np.asarray(whitened.reshape(n_functions * size, *moments.shape[2:]))

    def solve_lower(self, arrays: FloatArray) -> FloatArray:
        """Multiply by the inverse covariance of the moments of the first q2 polynomials."""
        # arrays: (m, q2, k) -> (m, q2, k)
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
    polynomials h. To first order their covariance is that of :math:`\hat E[h e]` for residuals e.
    Its eigenvalues span many powers of ten, and the error of G mixes the large into the small:
    :math:`\delta G\, \hat E[h e]` adds :math:`D \otimes E[h h' |h|^2 / q] / n`, where D is the
    first covariance summed over polynomials. Without that term the least noisy moments would get
    too much weight.

    The estimate is shrunk towards its Kronecker form, which holds if residuals are independent of
    the input, by the share N / (N + rows) for N moments.
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
    """Average e e', h h', h h' |h|^2 / q and, if `is_dense`, (e h)(e h)' over some rows.

    Rows enter with the square of their weight, as in the variance of a weighted mean.
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
        # Rows vary fastest, so that writes are contiguous, and BLAS computes only half of a product
        # of a matrix with its own transpose.
        terms = (residuals.T[:, None, :] * values.T[None]).reshape(n_moments, -1)
        return *second, np.dot(terms, terms.T)

    doubles = 2 * (n_moments if is_dense else basis.size)
    functions, polynomials, fourth, *products = sum_over_blocks(sums, len(picked), doubles)
    total = np.square(rows.weights[picked]).sum()
    mean_products = products[0] / total if is_dense else None
    return functions / total, polynomials / total, fourth / total, mean_products


def _regular(matrix: FloatArray) -> FloatArray:
    """Raise the diagonal a little, as residuals are all zero for a response without noise."""
    scale = max(float(np.trace(matrix)), np.finfo(float).tiny)
    return np.asarray(
        matrix + SMALLEST_EIGENVALUE_SHARE * scale / len(matrix) * np.eye(len(matrix))
    )


def _inverse_root(matrix: FloatArray) -> FloatArray:
    """Invert the Cholesky factor, with eigenvalues kept away from zero.

    The floor uses the Frobenius norm, which is at least the largest eigenvalue.
    """
    floor = SMALLEST_EIGENVALUE_SHARE * float(np.linalg.norm(matrix))
    factor = np.linalg.cholesky(matrix + floor * np.eye(len(matrix)))
    return np.asarray(solve_triangular(factor, np.eye(len(matrix)), lower=True))


# A residual that is not finite (parameters far out of range) counts as this many standard errors,
# so that the optimiser rejects the step.
REFUSED_RESIDUAL = 1e6

# Coefficients with a smaller scale have no direction; the bound also prevents division by zero.
SMALLEST_SCALE = 1e-6

# Finite-difference step in the log dispersion: truncation and rounding are both about 1e-6.
DISPERSION_STEP = 1e-6

# Relative changes below this are far smaller than the standard error of any moment.
FIT_TOLERANCE = 1e-4

# A component starts with at least this weight times 1/r^2: a smaller one would not be visible.
SMALLEST_START_WEIGHT = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class MomentFit:
    """Parameters fitted to moments."""

    parameters: MixtureParameters  # coefficients in the coordinates of the moments
    # sum of squared residuals, prior included: about chi-squared if the moments were weighted
    misfit: float
    # derivatives of the residuals, (n_residuals, n_parameters), with the rows of the prior last and
    # parameters in the order of `moment_init.likelihood.parameters`
    jacobian: FloatArray


@dataclass(frozen=True, eq=False)
class MomentModel:
    """Moments of a mixture in k dimensions."""

    expected: ExpectedFunctions  # conditional expectations of the m functions of the response
    basis: HermiteBasis  # the q polynomials whose coefficients are the moments
    effective_n: float  # effective number of rows behind the moments
    grid: GridPoints  # starting values of scale, bias and dispersion
    prior: ParameterPrior  # keeps the fit of noisy moments away from the boundary

    @cached_property
    def grid_moments(self) -> FloatArray:
        """Moments of one component at every grid point, orders from 1; (n, max_order, m)."""
        moments = self.expected.component_moments(
            self.grid.scales,
            self.grid.biases,
            self.grid.dispersion,
            self.basis.max_order,
            is_rough=True,  # neighbours on the grid differ by far more than the error
        )
        return moments[:, 1:]

    def component_moments(
        self, parameters: MixtureParameters, extra_orders: int = 0
    ) -> tuple[FloatArray, FloatArray]:
        """Compute unit directions, and the unweighted moments h of every component."""
        # -> (k, r), (r, max_order + 1 + extra_orders, m)
        scales = np.maximum(parameters.scales, SMALLEST_SCALE)
        moments = self.expected.component_moments(
            scales, parameters.biases, parameters.dispersion, self.basis.max_order + extra_orders
        )
        return parameters.coefficients / scales, moments

    def moments_of_all(self, mixtures: Sequence[MixtureParameters]) -> FloatArray:
        """Compute the moments h of every component of several mixtures in one call."""
        # -> (n_mixtures * r, max_order + 1, m)
        scales = np.concatenate([each.scales for each in mixtures])
        dispersions = [each.dispersion for each in mixtures if each.dispersion is not None]
        return self.expected.component_moments(
            np.maximum(scales, SMALLEST_SCALE),
            np.concatenate([each.biases for each in mixtures]),
            np.concatenate(dispersions) if dispersions else None,
            self.basis.max_order,
        )

    def predict(self, parameters: MixtureParameters) -> FloatArray:
        """Compute the moments of a mixture."""
        # -> (m, q)
        return self._combine(parameters, *self.component_moments(parameters))

    def jacobian(self, parameters: MixtureParameters) -> FloatArray:
        """Compute the derivatives of the moments in the parameters."""
        # -> (m, q, n_parameters)
        return self._derivatives(parameters, *self.component_moments(parameters, extra_orders=2))

    def _derivatives(
        self, parameters: MixtureParameters, directions: FloatArray, moments: FloatArray
    ) -> FloatArray:
        """Compute the Jacobian from component moments with two extra orders."""
        size, n_components = directions.shape
        n_orders = self.basis.max_order + 1
        over_scale = parameters.weights / np.maximum(parameters.scales, SMALLEST_SCALE)
        n_entries = component_size(parameters)
        shape = (moments.shape[2], self.basis.size, n_components, n_entries)
        result = np.zeros(shape)
        separate = np.zeros(shape[:3])
        for order in range(n_orders):
            columns = self.basis.columns(order)
            monomials = self.basis.monomials(directions, order)
            along = np.sqrt((order + 1) * (order + 2)) * moments[:, order + 2] * over_scale[:, None]
            radial = np.einsum("qj,aj,jf->fqja", monomials, directions, along)
            if order:
                turns = self.basis.monomial_derivatives(directions, order)
                turned = moments[:, order] * over_scale[:, None]
                radial = radial + np.einsum("qaj,jf->fqja", turns, turned)
            result[:, columns, :, :size] = radial
            slopes = np.sqrt(order + 1) * moments[:, order + 1] * over_scale[:, None]
            result[:, columns, :, size] = np.einsum("qj,jf->fqj", monomials, slopes)
            separate[:, columns] = np.einsum("qj,jf->fqj", monomials, moments[:, order])
        if parameters.dispersion is not None:
            result[..., size + 1] = self._dispersion_derivative(parameters, directions, moments)
        logits = (separate - (separate @ parameters.weights)[..., None]) * parameters.weights
        by_component = result.reshape(*shape[:2], -1)
        return np.concatenate([by_component, logits[..., :-1]], axis=2)

    def start(self, directions: FloatArray, moments: FloatArray) -> MixtureParameters:
        """Choose scale, bias, weight, dispersion and sign of each direction from the grid.

        Least squares gives the coefficients of every direction in every moment; each direction then
        takes the grid point, the weight and the sign that fit these best.
        """
        # directions: (k, r), moments: (m, q)
        n_components = directions.shape[1]
        observed = np.stack(
            [
                np.linalg.lstsq(
                    self.basis.monomials(directions, order),
                    moments[:, self.basis.columns(order)].T,
                    rcond=None,
                )[0]
                for order in range(1, self.basis.max_order + 1)
            ],
            axis=1,
        )  # (r, max_order, m)
        parity = (-1.0) ** np.arange(1, self.basis.max_order + 1)[:, None]
        candidates = np.stack([observed, observed * parity])  # (2, r, max_order, m)
        grid = self.grid_moments
        squares = np.einsum("gof,gof->g", grid, grid)
        products = np.einsum("gof,tjof->tjg", grid, candidates)
        smallest = SMALLEST_START_WEIGHT / n_components**2
        weights = np.clip(products / squares, smallest, 1.0)
        losses = weights**2 * squares - 2.0 * weights * products  # (2, r, n_points)
        by_component = np.moveaxis(losses, 1, 0).reshape(n_components, -1)
        turn, point = np.divmod(by_component.argmin(axis=1), grid.shape[0])
        chosen = weights[turn, np.arange(n_components), point]
        signs = 1.0 - 2.0 * turn
        dispersion = self.grid.dispersion
        return MixtureParameters(
            coefficients=directions * signs * self.grid.scales[point],
            biases=self.grid.biases[point],
            weights=chosen / chosen.sum(),
            dispersion=None if dispersion is None else dispersion[point],
        )

    def fit(
        self,
        start: MixtureParameters,
        moments: FloatArray,
        noise: MomentNoise | None,
        *,
        max_steps: int,
        tolerance: float = FIT_TOLERANCE,
    ) -> MomentFit:
        """Fit all parameters, directions included, to all moments at once."""
        # moments: (m, q)
        root_n = np.sqrt(self.effective_n)

        # The Jacobian is evaluated at the same point as the last residuals.
        @lru_cache(maxsize=1)
        def components(vector: bytes) -> tuple[MixtureParameters, FloatArray, FloatArray]:
            parameters = unpack(np.frombuffer(vector), start)
            with np.errstate(all="ignore"):
                return parameters, *self.component_moments(parameters, extra_orders=2)

        def residuals(vector: FloatArray) -> FloatArray:
            parameters, directions, of_components = components(vector.tobytes())
            with np.errstate(all="ignore"):
                predicted = self._combine(parameters, directions, of_components)
                difference = root_n * (predicted - moments)
            difference = np.where(np.isfinite(difference), difference, REFUSED_RESIDUAL)
            weighted = difference.ravel() if noise is None else noise.whiten(difference)
            return np.concatenate([weighted, self._prior_residuals(parameters)])

        def jacobian(vector: FloatArray) -> FloatArray:
            parameters, directions, of_components = components(vector.tobytes())
            slopes = root_n * self._derivatives(parameters, directions, of_components)
            flat = slopes.reshape(-1, len(vector)) if noise is None else noise.whiten(slopes)
            return np.concatenate([flat, self._prior_jacobian(parameters)])

        # A trial step may overflow; the optimiser then takes a shorter one.
        with np.errstate(over="ignore", invalid="ignore"):
            solution = least_squares(
                residuals,
                pack(start),
                jac=jacobian,
                x_scale="jac",
                max_nfev=max_steps,
                ftol=tolerance,
                xtol=tolerance,
            )
        return MomentFit(unpack(solution.x, start), 2.0 * float(solution.cost), solution.jac)

    def _combine(
        self, parameters: MixtureParameters, directions: FloatArray, moments: FloatArray
    ) -> FloatArray:
        """Sum w h times the monomials of the directions over the components; (m, q)."""
        weighted = moments * parameters.weights[:, None, None]
        parts = [
            (self.basis.monomials(directions, order) @ weighted[:, order]).T
            for order in range(self.basis.max_order + 1)
        ]
        return np.concatenate(parts, axis=1)

    def _dispersion_derivative(
        self, parameters: MixtureParameters, directions: FloatArray, moments: FloatArray
    ) -> FloatArray:
        """Differentiate the moments in each log dispersion by differences; (m, q, r)."""
        scales = np.maximum(parameters.scales, SMALLEST_SCALE)
        moved = np.asarray(parameters.dispersion) * np.exp(DISPERSION_STEP)
        n_orders = self.basis.max_order + 1
        shifted = self.expected.component_moments(
            scales, parameters.biases, moved, self.basis.max_order
        )
        slopes = (shifted - moments[:, :n_orders]) / DISPERSION_STEP
        slopes *= parameters.weights[:, None, None]
        parts = [
            np.einsum("qj,jf->fqj", self.basis.monomials(directions, order), slopes[:, order])
            for order in range(n_orders)
        ]
        return np.concatenate(parts, axis=1)

    def _prior_residuals(self, parameters: MixtureParameters) -> FloatArray:
        prior = self.prior
        weights = np.maximum(parameters.weights, np.finfo(float).tiny)
        shares = np.log(weights * parameters.n_components)
        parts = [
            shares / prior.log_weight_deviation,
            (parameters.biases - prior.bias_mean) / prior.bias_deviation,
        ]
        if parameters.dispersion is not None:
            excess = np.log(parameters.dispersion) - prior.log_dispersion_mean
            parts.append(excess / prior.log_dispersion_deviation)
        return np.concatenate(parts)

    def _prior_jacobian(self, parameters: MixtureParameters) -> FloatArray:
        prior, n_components = self.prior, parameters.n_components
        size, n_entries = parameters.n_features, component_size(parameters)
        has_dispersion = parameters.dispersion is not None
        n_parameters = n_components * (n_entries + 1) - 1
        result = np.zeros((n_components * (2 + has_dispersion), n_parameters))
        component = np.arange(n_components)
        logits = np.eye(n_components) - parameters.weights
        result[:n_components, n_components * n_entries :] = (
            logits[:, :-1] / prior.log_weight_deviation
        )
        result[n_components + component, component * n_entries + size] = 1.0 / prior.bias_deviation
        if has_dispersion:
            columns = component * n_entries + size + 1
            result[2 * n_components + component, columns] = 1.0 / prior.log_dispersion_deviation
        return result
