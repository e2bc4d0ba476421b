r"""The stacked tensor of moments, and the candidate directions from its decomposition.

Inside the subspace every second moment, and every slice of a higher moment, is a matrix
:math:`\sum_j b_j u_j u_j'`. Stacked they are one k x k x n array :math:`[[U, U, C]]`. TensorLy's
alternating least squares decomposes it from Jennrich's starts: eigenvectors of one random
combination of slices times the pseudo-inverse of another, exact without noise.

With more components than dimensions, r > d, there is no subspace and no whitening. Still a
symmetric tensor of order 3 in d = 6 dimensions has 56 entries, and eight directions with their
coefficients have 48 unknowns; moreover several functions of the response share the directions. The
tensors are then decomposed jointly. If the third order does not identify the directions, the fourth
may: for a standard Gaussian z

.. math:: S_4 = z^{\otimes 4} - \mathrm{sym}_6(z \otimes z \otimes I) + \mathrm{sym}_3(I \otimes I),

Eq. (10) of the paper at m = 4. Its noise along a direction is :math:`\sqrt{4!/n}`, twice that of
the third order, while its moments are smaller.
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from scipy.optimize import least_squares
from tensorly.decomposition import parafac

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.moments.subspace import HermiteBasis

# Jennrich's starts, each from a pair of random combinations, and random starts. Rating a start is a
# small least-squares problem, so that many are rated and few are followed.
JENNRICH_PAIRS = 20
RANDOM_STARTS = 5

# Starts followed by alternating least squares, and distinct results that are kept.
FOLLOWED_STARTS = 4
KEPT_CANDIDATES = 5

# Sweeps that all followed starts make together, until none changes any more: a sweep of all of them
# takes a tenth of the time of one by TensorLy. Most are then at an optimum, and many at the same
# one; TensorLy finishes one run from each.
SHARED_SWEEPS = 12
SHARED_TOLERANCE = 1e-4
FINISHING_SWEEPS = 4

# Relative ridge that keeps the normal equations of a sweep regular if two components meet.
SWEEP_RIDGE = 1e-12
SMALLEST_RIDGE = float(np.finfo(float).tiny)

# Two candidates are the same if every direction has a partner with at least this cosine (14
# degrees). Starts are farther from their optimum and are the same within 18 degrees.
SAME_CANDIDATE = 0.97
SAME_START = 0.95

# Sweeps of alternating least squares: the error after them is far below sampling noise, and the fit
# of all parameters improves the directions once more.
MAX_SWEEPS = 60
SWEEP_TOLERANCE = 1e-6

# A vector shorter than this has no direction.
SMALLEST_LENGTH = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One decomposition of the stacked tensor."""

    directions: FloatArray  # unit directions with arbitrary signs; (k, n_components)
    residual: float  # norm of the residual, relative to the stack


def cp_candidates(
    stack: FloatArray, n_components: int, rng: np.random.Generator
) -> tuple[Candidate, ...]:
    """Decompose the stack from many starts and keep the best distinct results."""
    # stack: (k, k, n_slices)
    size = stack.shape[0]
    if size == 1:
        return (Candidate(np.ones((1, n_components)), 0.0),)
    compressed = _compress(stack)
    if n_components <= size:
        random = _random_directions(size, n_components, RANDOM_STARTS, rng)
        directions = np.concatenate([_jennrich_directions(compressed, rng), random])
    else:
        directions = _random_directions(size, n_components, 4 * FOLLOWED_STARTS, rng)
    starts = _distinct_best(_rated(compressed, directions), FOLLOWED_STARTS, SAME_START)
    swept = shared_sweeps(compressed, np.stack([start.directions for start in starts]))
    # A start whose components met during the sweeps is kept as it was.
    is_finite = np.all(np.isfinite(swept), axis=(1, 2))
    kept = [start for start, is_swept in zip(starts, is_finite, strict=True) if not is_swept]
    followed = _distinct_best(
        kept + _rated(compressed, swept[is_finite]), FOLLOWED_STARTS, SAME_CANDIDATE
    )
    results = [
        alternating_least_squares(compressed, start.directions, max_sweeps=FINISHING_SWEEPS)
        for start in followed
    ]
    finished = [result for result in results if result is not None]
    # If every run met a singular system, the starts themselves are returned.
    return tuple(_distinct_best(finished or followed, KEPT_CANDIDATES, SAME_CANDIDATE))


def alternating_least_squares(
    stack: FloatArray,
    directions: FloatArray,
    *,
    max_sweeps: int = MAX_SWEEPS,
    tolerance: float = SWEEP_TOLERANCE,
) -> Candidate | None:
    """Refine directions by TensorLy's `parafac`, with equal factors for the first two modes."""
    # stack: (k, k, n_slices), directions: (k, n_components)
    n_components = directions.shape[1]
    loadings, _ = _loadings(stack, directions)
    initial = (np.ones(n_components), [directions.copy(), directions.copy(), loadings])
    try:
        result = parafac(stack, n_components, init=initial, n_iter_max=max_sweeps, tol=tolerance)
    except np.linalg.LinAlgError:  # two components have merged
        return None
    first, second = (np.asarray(factor, dtype=np.float64) for factor in result.factors[:2])
    lengths = np.linalg.norm(first, axis=0), np.linalg.norm(second, axis=0)
    if not all(np.all(length > SMALLEST_LENGTH) for length in lengths):
        return None
    first, second = first / lengths[0], second / lengths[1]
    total = first + second * np.where(np.sum(first * second, axis=0) < 0.0, -1.0, 1.0)
    unit = total / np.linalg.norm(total, axis=0)
    if not np.all(np.isfinite(unit)):
        return None
    return Candidate(unit, _relative_residual(stack, unit))


def held_decomposition(
    matrix: FloatArray, held: FloatArray, directions: FloatArray
) -> FloatArray | None:
    """Decompose U D with the second factor held, by TensorLy's `parafac`; None if it is singular.

    `directions` only fill the place of the factor that is found.
    """
    # matrix: (n_features, c), held: (n_components, c), directions: (n_features, n_components)
    initial = (np.ones(len(held)), [held.T.copy(), directions.copy()])
    try:
        result = parafac(matrix.T, len(held), init=initial, n_iter_max=1, fixed_modes=[0])
    except np.linalg.LinAlgError:  # two components have merged
        return None
    found = np.asarray(result.factors[1] * result.weights, dtype=np.float64)
    lengths = np.linalg.norm(found, axis=0)
    return found if np.all(np.isfinite(lengths)) and lengths.min() > SMALLEST_LENGTH else None


def shared_sweeps(
    stack: FloatArray, directions: FloatArray, *, n_sweeps: int = SHARED_SWEEPS
) -> FloatArray:
    """Run sweeps of alternating least squares from several starts at once."""
    # stack: (k, k, n_slices), directions: (n_starts, k, n_components)
    # -> (n_starts, k, n_components)
    size = stack.shape[0]
    slices = np.ascontiguousarray(stack.reshape(size**2, -1))
    first = second = directions
    with np.errstate(invalid="ignore", divide="ignore"):
        for _ in range(n_sweeps):
            products = _column_products(first, second)
            grams = _gram(first) * _gram(second)
            loadings = _solve_right(slices.T @ products, grams)  # (n_starts, n_slices, r)
            along = (slices @ loadings).reshape(len(directions), size, size, -1)
            # The first two modes are symmetric: one contraction serves both.
            loading_gram = _gram(loadings)
            targets = (along * second[:, None]).sum(axis=2)
            previous = second
            first = _unit(_solve_right(targets, _gram(second) * loading_gram))
            targets = (along * first[:, None]).sum(axis=2)
            second = _unit(_solve_right(targets, _gram(first) * loading_gram))
            if np.nanmax(np.abs(second - previous), initial=0.0) < SHARED_TOLERANCE:
                break
        signs = np.where((first * second).sum(axis=1, keepdims=True) < 0.0, -1.0, 1.0)
        return _unit(first + signs * second)


def _gram(columns: FloatArray) -> FloatArray:
    return np.asarray(columns.transpose(0, 2, 1) @ columns)


def _column_products(first: FloatArray, second: FloatArray) -> FloatArray:
    """Multiply all pairs of entries of matching columns; (n_starts, k^2, r)."""
    n_starts, _, n_components = first.shape
    return (first[:, :, None, :] * second[:, None]).reshape(n_starts, -1, n_components)


def _solve_right(targets: FloatArray, grams: FloatArray) -> FloatArray:
    """Multiply targets by the inverse Gram matrix of each start."""
    traces = np.einsum("sjj->s", grams)[:, None, None]
    ridge = (SWEEP_RIDGE * traces + SMALLEST_RIDGE) * np.eye(grams.shape[-1])
    return np.asarray(np.linalg.solve(grams + ridge, targets.transpose(0, 2, 1))).transpose(0, 2, 1)


def _unit(columns: FloatArray) -> FloatArray:
    return np.asarray(columns / np.linalg.norm(columns, axis=1, keepdims=True))


def _compress(stack: FloatArray) -> FloatArray:
    """Rotate the third mode to reduce it, exactly, to its rank, at most k (k + 1) / 2."""
    size = stack.shape[0]
    left, values, _ = np.linalg.svd(stack.reshape(size**2, -1), full_matrices=False)
    rank = min(len(values), size * (size + 1) // 2)
    return np.asarray((left[:, :rank] * values[:rank]).reshape(size, size, rank))


def _loadings(stack: FloatArray, directions: FloatArray) -> tuple[FloatArray, float]:
    """Fit the third factor, (n_slices, r), to given directions; return the squared residual too."""
    size, n_components = directions.shape
    products = (directions[:, None, :] * directions[None]).reshape(size**2, n_components)
    unfolded = stack.reshape(size**2, -1)
    loadings = np.linalg.lstsq(products, unfolded, rcond=None)[0]
    return loadings.T, float(np.sum(np.square(unfolded - products @ loadings)))


def _relative_residual(stack: FloatArray, directions: FloatArray) -> float:
    size = max(float(np.linalg.norm(stack)), np.finfo(float).tiny)
    return float(np.sqrt(_loadings(stack, directions)[1]) / size)


def _rated(stack: FloatArray, directions: FloatArray) -> list[Candidate]:
    """Rate directions by their residual, from normal equations: accurate to eight digits."""
    slices = stack.reshape(stack.shape[0] ** 2, -1)
    products = _column_products(directions, directions)
    targets = slices.T @ products
    explained = (targets * _solve_right(targets, _gram(directions) ** 2)).sum(axis=(1, 2))
    total = max(float(np.sum(np.square(slices))), np.finfo(float).tiny)
    residuals = np.sqrt(np.maximum(1.0 - explained / total, 0.0))
    return [
        Candidate(each, float(residual))
        for each, residual in zip(directions, residuals, strict=True)
    ]


def _random_directions(
    size: int, n_components: int, count: int, rng: np.random.Generator
) -> FloatArray:
    return _unit(rng.standard_normal((count, size, n_components)))


def _jennrich_directions(stack: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Find eigenvectors of a random combination of slices times another's pseudo-inverse."""
    mixing = rng.standard_normal((2, JENNRICH_PAIRS, stack.shape[2]))
    first, second = np.einsum("abn,tpn->tpab", stack, mixing)
    _, vectors = np.linalg.eig(first @ np.linalg.pinv(second))
    # Noise can turn two close real eigenvalues into a conjugate pair. Its real and imaginary parts
    # span the plane of the two eigenvectors; their sum and difference are starts in that plane.
    real = vectors.real + vectors.imag
    has_length = np.all(np.linalg.norm(real, axis=1) > SMALLEST_LENGTH, axis=1)
    return _unit(real[has_length])


def _distinct_best(candidates: list[Candidate], count: int, same_cosine: float) -> list[Candidate]:
    """Keep the best candidates of which no two have all directions in common."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda item: item.residual):
        if not any(_is_same(candidate, other, same_cosine) for other in kept):
            kept.append(candidate)
        if len(kept) == count:
            break
    return kept


def _is_same(first: Candidate, second: Candidate, same_cosine: float) -> bool:
    """Check whether each direction has a partner of its own."""
    cosines = np.abs(first.directions.T @ second.directions)
    partners = cosines.argmax(axis=0)
    return bool(cosines.max(axis=0).min() > same_cosine) and len(set(partners)) == len(partners)


# Random starts: an exact tensor of d = 6, r = 8 is found from one of the first two or three.
MAX_STARTS = 10

# Sweeps of alternating least squares before Gauss-Newton; very slow convergence is common here.
SYMMETRIC_SWEEPS = 100
SYMMETRIC_TOLERANCE = 1e-8

# Steps of Gauss-Newton; it converges quadratically on exact tensors, linearly on noisy ones.
MAX_STEPS = 300
STEP_TOLERANCE = 1e-12

# A relative residual below this is rounding: the decomposition is exact.
EXACT_RESIDUAL = 1e-7


def required_order(
    n_features: int, n_components: int, n_functions: int, *, has_dispersion: bool
) -> int:
    """Find the lowest order, 3 or 4, whose moments can identify all directions and parameters.

    Every function and order m gives C(d + m - 1, m) equations for r coefficients; the remaining
    equations must be at least as many as the r (d - 1) angles. There must also be at least as many
    moments as parameters. Counting is necessary, and sufficient for almost all parameters apart
    from a few known exceptions, such as five or more components in three dimensions at order 4.
    """
    n_parameters = n_components * (n_features + 2 + has_dispersion) - 1
    for order in (3, 4):
        sizes = [comb(n_features + m - 1, m) for m in range(order + 1)]
        equations = sum(max(0, size - n_components) for size in sizes[1:])
        has_directions = n_functions * equations >= n_components * (n_features - 1)
        if has_directions and n_functions * sum(sizes) >= n_parameters:
            return order
    raise IdentifiabilityError(
        f"`n_components` must be small enough for moments up to order 4 to identify the mixture; "
        f"got {n_components} for {n_features} features and {n_functions} independent functions of "
        "the response. Reduce it or add features."
    )


def decompose_symmetric(
    moments: FloatArray,
    basis: HermiteBasis,
    orders: tuple[int, ...],
    n_components: int,
    rng: np.random.Generator,
    *,
    max_starts: int = MAX_STARTS,
) -> tuple[Candidate, ...]:
    r"""Decompose symmetric tensors of several orders and functions with common directions.

    Each tensor :math:`T = \sum_j c_j u_j^{\otimes m}` has its own coefficients. TensorLy's
    alternating least squares runs on the stacked slices from random starts, and Gauss-Newton then
    on the symmetric form.
    """
    # moments: (n_functions, q)
    size = basis.n_variables
    slices = [
        np.moveaxis(basis.expand(moments[:, basis.columns(order)], order), 0, 2)
        for order in orders
        if order > 1
    ]
    stack = np.concatenate([part.reshape(size, size, -1) for part in slices], axis=2)
    candidates: list[Candidate] = []
    for _ in range(max_starts):
        start = rng.standard_normal((size, n_components))
        rough = alternating_least_squares(
            stack,
            start / np.linalg.norm(start, axis=0),
            max_sweeps=SYMMETRIC_SWEEPS,
            tolerance=SYMMETRIC_TOLERANCE,
        )
        if rough is None:
            continue
        candidates.append(_gauss_newton(moments, basis, orders, rough.directions))
        if candidates[-1].residual < EXACT_RESIDUAL:
            break
    return tuple(sorted(candidates, key=lambda candidate: candidate.residual))


@dataclass(frozen=True, slots=True, eq=False)
class _JointFit:
    """Least-squares problem with common directions (k, r) and coefficients (n_orders, r, m)."""

    moments: FloatArray
    basis: HermiteBasis
    orders: tuple[int, ...]
    n_components: int

    def target(self, order: int) -> FloatArray:
        """Return the distinct entries of one order; (q_m, m)."""
        return self.moments[:, self.basis.columns(order)].T

    def split(self, vector: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Split the vector of all unknowns into directions and coefficients."""
        n_angles = self.basis.n_variables * self.n_components
        shape = (len(self.orders), self.n_components, self.moments.shape[0])
        directions = vector[:n_angles].reshape(self.basis.n_variables, self.n_components)
        return directions, vector[n_angles:].reshape(shape)

    def residuals(self, vector: FloatArray) -> FloatArray:
        """Compute the residual of every entry."""
        directions, coefficients = self.split(vector)
        parts = [
            self.basis.monomials(directions, order) @ coefficient - self.target(order)
            for order, coefficient in zip(self.orders, coefficients, strict=True)
        ]
        return np.concatenate([part.ravel() for part in parts])

    def jacobian(self, vector: FloatArray) -> FloatArray:
        """Differentiate the residuals in all unknowns."""
        directions, coefficients = self.split(vector)
        n_functions = self.moments.shape[0]
        blocks = []
        for index, order in enumerate(self.orders):
            monomials = self.basis.monomials(directions, order)
            turns = self.basis.monomial_derivatives(directions, order)
            slopes = np.einsum("qaj,jf->qfaj", turns, coefficients[index])
            in_coefficients = np.zeros((len(monomials), n_functions, *coefficients.shape))
            for function in range(n_functions):
                in_coefficients[:, function, index, :, function] = monomials
            n_rows = len(monomials) * n_functions
            blocks.append(
                np.hstack([slopes.reshape(n_rows, -1), in_coefficients.reshape(n_rows, -1)])
            )
        return np.concatenate(blocks)


def _gauss_newton(
    moments: FloatArray, basis: HermiteBasis, orders: tuple[int, ...], directions: FloatArray
) -> Candidate:
    """Fit directions and coefficients jointly by least squares, from given directions."""
    problem = _JointFit(moments, basis, orders, directions.shape[1])
    initial = [
        np.linalg.lstsq(basis.monomials(directions, order), problem.target(order), rcond=None)[0]
        for order in orders
    ]
    solution = least_squares(
        problem.residuals,
        np.concatenate([directions.ravel(), *(part.ravel() for part in initial)]),
        jac=problem.jacobian,
        max_nfev=MAX_STEPS,
        ftol=STEP_TOLERANCE,
        xtol=STEP_TOLERANCE,
        gtol=STEP_TOLERANCE,
    )
    columns, _ = problem.split(solution.x)
    total = np.sqrt(sum(np.sum(np.square(problem.target(order))) for order in orders))
    return Candidate(
        columns / np.linalg.norm(columns, axis=0), float(np.sqrt(2.0 * solution.cost) / total)
    )
