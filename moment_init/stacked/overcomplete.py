r"""More components than dimensions: joint symmetric decomposition, with the fourth order if needed.

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
from numpy.typing import NDArray
from scipy.optimize import least_squares

from moment_init.exceptions import IdentifiabilityError
from moment_init.stacked.hermite_basis import HermiteBasis
from moment_init.stacked.tensor import Candidate, alternating_least_squares

__all__ = [
    "contract_fourth_order",
    "decompose_symmetric",
    "fourth_order_score",
    "required_order",
    "sum_fourth_order",
]

FloatArray = NDArray[np.float64]

# Random starts: an exact tensor of d = 6, r = 8 is found from one of the first two or three.
MAX_STARTS = 10

# Sweeps of alternating least squares before Gauss-Newton takes over; slow swamps are common here.
MAX_SWEEPS = 100
SWEEP_TOLERANCE = 1e-8

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

    Parameters
    ----------
    n_features : int
        Dimension d.
    n_components : int
        Number of components r.
    n_functions : int
        Number of independent functions of the response m.
    has_dispersion : bool
        Whether every component has a dispersion.

    Returns
    -------
    int
        3 or 4.

    Raises
    ------
    IdentifiabilityError
        If neither is enough.

    Notes
    -----
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


def fourth_order_score(z: FloatArray) -> FloatArray:
    """Score S_4 of a standard Gaussian for each row.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_obs, k)
        Whitened rows, k small: the result has n k^4 entries.

    Returns
    -------
    numpy.ndarray, shape (n_obs, k, k, k, k)
        The tensors.
    """
    identity = np.eye(z.shape[1])
    pairs = z[:, :, None] * z[:, None, :]
    result = np.einsum("nij,nkl->nijkl", pairs, pairs)
    for first, second in _PAIRINGS:
        result -= np.einsum(f"n{first},{second}->nijkl", pairs, identity)
        result -= np.einsum(f"n{second},{first}->nijkl", pairs, identity)
        result += np.einsum(f"{first},{second}->ijkl", identity, identity)
    return np.asarray(result)


def sum_fourth_order(z: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted sum of S_4 over a block of rows, without an array of n k^4.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_obs, k)
        Whitened rows.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.

    Returns
    -------
    numpy.ndarray, shape (k, k, k, k)
        The sum.
    """
    n_obs, size = z.shape
    identity = np.eye(size)
    pairs = (z[:, :, None] * z[:, None, :]).reshape(n_obs, size**2)
    result = (pairs.T @ (pairs * weights[:, None])).reshape((size,) * 4)
    second = (weights @ pairs).reshape(size, size)
    total = weights.sum()
    for left, right in _PAIRINGS:
        result -= np.einsum(f"{left},{right}->ijkl", second, identity)
        result -= np.einsum(f"{right},{left}->ijkl", second, identity)
        result += total * np.einsum(f"{left},{right}->ijkl", identity, identity)
    return np.asarray(result)


def contract_fourth_order(
    z: FloatArray, weights: FloatArray, first: FloatArray, second: FloatArray
) -> FloatArray:
    """Weighted sum of the slices S_4(I, I, a, b) over a block of rows.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_obs, k)
        Whitened rows; k may be large.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    first, second : numpy.ndarray, shape (k,)
        The vectors a and b.

    Returns
    -------
    numpy.ndarray, shape (k, k)
        The slice.
    """
    identity = np.eye(z.shape[1])
    along_first, along_second = z @ first, z @ second
    inner, total = float(first @ second), weights.sum()
    products = weights * along_first * along_second
    mixed = np.outer(z.T @ (weights * along_first), second)
    mixed += np.outer(z.T @ (weights * along_second), first)
    result = z.T @ ((products - weights * inner)[:, None] * z) - mixed - mixed.T
    result += (total * inner - products.sum()) * identity
    result += total * (np.outer(first, second) + np.outer(second, first))
    return np.asarray(result)


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

    Parameters
    ----------
    moments : numpy.ndarray, shape (n_functions, q)
        Distinct entries of the tensors.
    basis : HermiteBasis
        Says which entry is which; k variables.
    orders : tuple of int
        The orders to use, 2 to 4.
    n_components : int
        Number of components, also above k.
    rng : numpy.random.Generator
        Source of the starts.
    max_starts : int
        Starts to try; the first exact decomposition ends the search.

    Returns
    -------
    tuple of Candidate
        One for each start that led anywhere, best first.
    """
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
            max_sweeps=MAX_SWEEPS,
            tolerance=SWEEP_TOLERANCE,
        )
        if rough is None:
            continue
        found.append(_gauss_newton(moments, basis, orders, rough.directions))
        if found[-1].residual < EXACT_RESIDUAL:
            break
    return tuple(sorted(found, key=lambda candidate: candidate.residual))


# The three ways to put four places into two pairs.
_PAIRINGS = (("ij", "kl"), ("ik", "jl"), ("il", "jk"))


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
