r"""The stacked tensor and its candidates for the directions.

Inside the subspace every second moment is a matrix :math:`\sum_j b_j u_j u_j'`, and every slice of
a higher moment too. Stacked they are one k x k x n array :math:`[[U, U, C]]`, which TensorLy's
alternating least squares decomposes from Jennrich's starts: eigenvectors of one random combination
of slices times the pseudo-inverse of another, exact without noise.

More components than dimensions: joint symmetric decomposition, with the fourth order if needed.

No subspace and no whitening exist for r > d. Still a symmetric tensor of order 3 in d = 6
dimensions has 56 entries, and eight directions with their coefficients 48 unknowns; and several
functions of the response share the directions. What the third order cannot identify the fourth may:
for a standard Gaussian z

.. math:: S_4 = z^{\otimes 4} - \mathrm{sym}_6(z \otimes z \otimes I) + \mathrm{sym}_3(I \otimes I),

Eq. (10) of the paper at m = 4. Its noise is larger: :math:`\sqrt{4!/n}` along a direction, twice
that of the third order, on moments that are smaller.
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from scipy.optimize import least_squares
from tensorly.decomposition import parafac

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.likelihood.matching import match_components
from moment_init.moments.subspace import HermiteBasis

# Pairs of random combinations for Jennrich's starts, and random starts beside them: evaluating a
# start is a small least-squares problem, so many are looked at and few are followed.
JENNRICH_PAIRS = 40
RANDOM_STARTS = 10

# Starts that are followed by alternating least squares, and different results that are kept.
FOLLOWED_STARTS = 6
KEPT_CANDIDATES = 5

# Sweeps that all followed starts make together. Most are at an optimum then, and many at the same
# one, from which a single run goes on.
SHARED_SWEEPS = 30

# Relative size of what keeps the normal equations of a sweep regular where two components meet.
SWEEP_RIDGE = 1e-12

# Two candidates are the same if every direction has a partner with at least this cosine (14
# degrees); starts, further from their optimum, within 18 degrees.
SAME_CANDIDATE = 0.97
SAME_START = 0.95

# Sweeps of alternating least squares: what is left after them is far below sampling noise, and
# the fit of all parameters moves the directions once more.
MAX_SWEEPS = 60
SWEEP_TOLERANCE = 1e-6

# A vector shorter than this has no direction.
SMALLEST_LENGTH = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One decomposition of the stacked tensor."""

    directions: FloatArray  # unit directions; their signs mean nothing yet; (k, n_components)
    residual: float  # norm of what they leave of the stack, relative to the stack's


def stack_slices(moments: FloatArray, basis: HermiteBasis) -> FloatArray:
    r"""Stack the second moments and all slices of the higher ones.

    Order m is divided by :math:`\sqrt{m!}`, so that all slices carry noise of one size.
    """
    # moments: (n_functions, q) -> (k, k, n_slices)
    size = basis.n_variables
    slices = [
        np.moveaxis(basis.expand(moments[:, basis.columns(order)], order), 0, 2)
        for order in range(2, basis.max_order + 1)
    ]
    return np.concatenate([part.reshape(size, size, -1) for part in slices], axis=2)


def cp_candidates(
    stack: FloatArray, n_components: int, rng: np.random.Generator
) -> tuple[Candidate, ...]:
    """Decompose the stack from many starts and keep the distinct best."""
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
    # A start whose components met on the way goes on from where it was.
    is_finite = np.all(np.isfinite(swept), axis=(1, 2))
    kept = [start for start, is_swept in zip(starts, is_finite, strict=True) if not is_swept]
    followed = _distinct_best(
        kept + _rated(compressed, swept[is_finite]), FOLLOWED_STARTS, SAME_CANDIDATE
    )
    results = [alternating_least_squares(compressed, start.directions) for start in followed]
    finished = [result for result in results if result is not None]
    # Only if every run met a singular system: the starts themselves are then what is known.
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
    except np.linalg.LinAlgError:  # two components have become one
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


def shared_sweeps(
    stack: FloatArray, directions: FloatArray, *, n_sweeps: int = SHARED_SWEEPS
) -> FloatArray:
    """Sweeps of alternating least squares from several starts at once."""
    # stack: (k, k, n_slices), directions: (n_starts, k, n_components) -> (n_starts, k,
    # n_components)
    size = stack.shape[0]
    slices = np.ascontiguousarray(stack.reshape(size**2, -1))
    first = second = directions
    with np.errstate(invalid="ignore", divide="ignore"):
        for _ in range(n_sweeps):
            products = _column_products(first, second)
            grams = _gram(first) * _gram(second)
            loadings = _solve_right(slices.T @ products, grams)  # (n_starts, n_slices, r)
            along = (slices @ loadings).reshape(len(directions), size, size, -1)
            # The modes are symmetric: one contraction serves both.
            of_loadings = _gram(loadings)
            targets = (along * second[:, None]).sum(axis=2)
            first = _unit(_solve_right(targets, _gram(second) * of_loadings))
            targets = (along * first[:, None]).sum(axis=2)
            second = _unit(_solve_right(targets, _gram(first) * of_loadings))
        signs = np.where((first * second).sum(axis=1, keepdims=True) < 0.0, -1.0, 1.0)
        return _unit(first + signs * second)


def _gram(columns: FloatArray) -> FloatArray:
    return np.asarray(columns.transpose(0, 2, 1) @ columns)


def _column_products(first: FloatArray, second: FloatArray) -> FloatArray:
    """Products of the entries of two columns, (n_starts, k^2, r)."""
    n_starts, _, n_components = first.shape
    return (first[:, :, None, :] * second[:, None]).reshape(n_starts, -1, n_components)


def _solve_right(targets: FloatArray, grams: FloatArray) -> FloatArray:
    """Targets times the inverse of the Gram matrix of each start."""
    size = grams.shape[-1]
    ridge = SWEEP_RIDGE * np.trace(grams, axis1=1, axis2=2)[:, None, None] * np.eye(size)
    ridge += np.finfo(float).tiny * np.eye(size)
    return np.asarray(np.linalg.solve(grams + ridge, targets.transpose(0, 2, 1))).transpose(0, 2, 1)


def _unit(columns: FloatArray) -> FloatArray:
    return np.asarray(columns / np.linalg.norm(columns, axis=1, keepdims=True))


def _compress(stack: FloatArray) -> FloatArray:
    """Rotate the third mode so that only its rank is left, at most k (k + 1) / 2; exact."""
    size = stack.shape[0]
    left, values, _ = np.linalg.svd(stack.reshape(size**2, -1), full_matrices=False)
    rank = min(len(values), size * (size + 1) // 2)
    return np.asarray((left[:, :rank] * values[:rank]).reshape(size, size, rank))


def _loadings(stack: FloatArray, directions: FloatArray) -> tuple[FloatArray, float]:
    """Least-squares third factor (n_slices, r) for given directions, and the squared residual."""
    size, n_components = directions.shape
    products = (directions[:, None, :] * directions[None]).reshape(size**2, n_components)
    unfolded = stack.reshape(size**2, -1)
    loadings = np.linalg.lstsq(products, unfolded, rcond=None)[0]
    return loadings.T, float(np.sum(np.square(unfolded - products @ loadings)))


def _relative_residual(stack: FloatArray, directions: FloatArray) -> float:
    size = max(float(np.linalg.norm(stack)), np.finfo(float).tiny)
    return float(np.sqrt(_loadings(stack, directions)[1]) / size)


def _rated(stack: FloatArray, directions: FloatArray) -> list[Candidate]:
    """Candidates with what each leaves of the stack, by normal equations: to eight digits."""
    slices = stack.reshape(stack.shape[0] ** 2, -1)
    products = _column_products(directions, directions)
    targets = slices.T @ products
    explained = (targets * _solve_right(targets, _gram(directions) ** 2)).sum(axis=(1, 2))
    total = max(float(np.sum(np.square(slices))), np.finfo(float).tiny)
    left = np.sqrt(np.maximum(1.0 - explained / total, 0.0))
    return [Candidate(each, float(rest)) for each, rest in zip(directions, left, strict=True)]


def _random_directions(
    size: int, n_components: int, count: int, rng: np.random.Generator
) -> FloatArray:
    return _unit(rng.standard_normal((count, size, n_components)))


def _jennrich_directions(stack: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Eigenvectors of one random combination of slices times the pseudo-inverse of another."""
    mixing = rng.standard_normal((2, JENNRICH_PAIRS, stack.shape[2]))
    first, second = np.einsum("abn,tpn->tpab", stack, mixing)
    _, vectors = np.linalg.eig(first @ np.linalg.pinv(second))
    # Noise can turn two close real eigenvalues into a conjugate pair; the real and imaginary
    # parts span the plane of the two, and their sum and difference are starts in it.
    real = vectors.real + vectors.imag
    has_length = np.all(np.linalg.norm(real, axis=1) > SMALLEST_LENGTH, axis=1)
    return _unit(real[has_length])


def _distinct_best(candidates: list[Candidate], count: int, same_cosine: float) -> list[Candidate]:
    """The best few of which no two have all their directions in common."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda item: item.residual):
        if not any(_is_same(candidate, other, same_cosine) for other in kept):
            kept.append(candidate)
        if len(kept) == count:
            break
    return kept


def _is_same(first: Candidate, second: Candidate, same_cosine: float) -> bool:
    order = match_components(first.directions, second.directions)
    cosines = np.abs(np.sum(first.directions[:, order] * second.directions, axis=0))
    return bool(cosines.min() > same_cosine)


# Random starts: an exact tensor of d = 6, r = 8 is found from one of the first two or three.
MAX_STARTS = 10

# Sweeps of alternating least squares before Gauss-Newton takes over; slow swamps are common here.
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
    """Lowest order, 3 or 4, whose moments are enough for all directions and parameters.

    Directions: every function and order m gives C(d + m - 1, m) equations for r coefficients;
    what is left must be at least the r (d - 1) angles. All parameters: as many as moments at most.

    Counting is necessary, and sufficient for almost all parameters but for a few known exceptions
    (five or more components in three dimensions at order 4 among them).
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

    Each :math:`T = \sum_j c_j u_j^{\otimes m}` with coefficients of its own: TensorLy's
    alternating least squares on the stacked slices from random starts, then Gauss-Newton on
    the symmetric form.
    """
    # moments: (n_functions, q)
    size = basis.n_variables
    slices = [
        np.moveaxis(basis.expand(moments[:, basis.columns(order)], order), 0, 2)
        for order in orders
        if order > 1
    ]
    stack = np.concatenate([part.reshape(size, size, -1) for part in slices], axis=2)
    found: list[Candidate] = []
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
        found.append(_gauss_newton(moments, basis, orders, rough.directions))
        if found[-1].residual < EXACT_RESIDUAL:
            break
    return tuple(sorted(found, key=lambda candidate: candidate.residual))


@dataclass(frozen=True, slots=True, eq=False)
class _JointFit:
    """Residuals of tensors with common directions (k, r) and coefficients (n_orders, r, m)."""

    moments: FloatArray
    basis: HermiteBasis
    orders: tuple[int, ...]
    n_components: int

    def target(self, order: int) -> FloatArray:
        """Distinct entries of one order, (q_m, m)."""
        return self.moments[:, self.basis.columns(order)].T

    def split(self, vector: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Directions and coefficients from the vector of all unknowns."""
        n_angles = self.basis.n_variables * self.n_components
        shape = (len(self.orders), self.n_components, self.moments.shape[0])
        directions = vector[:n_angles].reshape(self.basis.n_variables, self.n_components)
        return directions, vector[n_angles:].reshape(shape)

    def residuals(self, vector: FloatArray) -> FloatArray:
        """What the components leave of every entry."""
        directions, coefficients = self.split(vector)
        parts = [
            self.basis.monomials(directions, order) @ coefficient - self.target(order)
            for order, coefficient in zip(self.orders, coefficients, strict=True)
        ]
        return np.concatenate([part.ravel() for part in parts])

    def jacobian(self, vector: FloatArray) -> FloatArray:
        """Derivatives of the residuals."""
        directions, coefficients = self.split(vector)
        n_functions = self.moments.shape[0]
        blocks = []
        for index, order in enumerate(self.orders):
            monomials = self.basis.monomials(directions, order)
            turns = self.basis.monomial_derivatives(directions, order)
            slopes = np.einsum("qaj,jf->qfaj", turns, coefficients[index])
            own = np.zeros((len(monomials), n_functions, *coefficients.shape))
            for function in range(n_functions):
                own[:, function, index, :, function] = monomials
            n_rows = len(monomials) * n_functions
            blocks.append(np.hstack([slopes.reshape(n_rows, -1), own.reshape(n_rows, -1)]))
        return np.concatenate(blocks)


def _gauss_newton(
    moments: FloatArray, basis: HermiteBasis, orders: tuple[int, ...], directions: FloatArray
) -> Candidate:
    """Joint least squares over directions and coefficients from given directions."""
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
