r"""The stacked estimate under a Gaussian input: from sums over rows to all parameters.

The steps are: sums of the first two orders, subspace, projected moments, decomposition of the
stacked tensor, fit of all parameters in the subspace, and the part of each direction outside it.
To first order that part enters, linearly, only the moments with one index outside the subspace:
:math:`E[T_k z_\perp H_t(V'z)] = \sum_j \sqrt{m}\, w_j h_{m,k}(s_j, b_j)\, u_j^{t}\, u_{j\perp}`
with m = |t| + 1. Weighted least squares estimates it from all functions and orders at once.
"""

from dataclasses import dataclass

import numpy as np

from moment_init.checks import FloatArray
from moment_init.data.blocks import N_PARTS
from moment_init.data.checking import RegressionData
from moment_init.likelihood.parameters import MixtureParameters, match_components, pack, unpack
from moment_init.moments.expectations import expected_functions, start_grid
from moment_init.moments.moment_model import (
    SMALLEST_SCALE,
    MomentFit,
    MomentModel,
    MomentNoise,
    estimate_noise,
)
from moment_init.moments.subspace import ProjectedMoments, Subspace, find_subspace, project
from moment_init.moments.sums import LowOrders, sum_low_orders
from moment_init.moments.tensor import (
    KEPT_CANDIDATES,
    Candidate,
    cp_candidates,
    decompose_symmetric,
    required_order,
    stack_slices,
)
from moment_init.scores.base import InputModel


def lift_parameters(
    projected: ProjectedMoments,
    model: MomentModel,
    parameters: MixtureParameters,
    noise: MomentNoise,
    *,
    left_out: int | None = None,
) -> MixtureParameters:
    """Lift a mixture from the subspace to all dimensions, with the part outside the subspace.

    The part outside has a prior with variance one; directions have length one. The prior counts as
    much as one row and matters only where the moments carry no information.
    """
    if projected.contraction_sums is None:
        return parameters.lift(projected.subspace)
    observed = projected.contraction(left_out=left_out)
    _, moments = model.component_moments(parameters)
    return _lift(projected, model, parameters, noise, moments, observed)


def _lift(
    projected: ProjectedMoments,
    model: MomentModel,
    parameters: MixtureParameters,
    noise: MomentNoise,
    moments: FloatArray,
    observed: FloatArray,
) -> MixtureParameters:
    """Lift parameters, given component moments and moments with one index outside."""
    directions = parameters.directions
    weighted = moments * parameters.weights[:, None, None]
    design = np.concatenate(
        [
            np.sqrt(order + 1.0)
            * np.einsum(
                "qj,jf->fqj", model.basis.monomials(directions, order), weighted[:, order + 1]
            )
            for order in range(model.basis.max_order)
        ],
        axis=1,
    )  # (m, q2, r)
    n_components = design.shape[2]
    flat = design.reshape(-1, n_components)
    solved = noise.solve_lower(design).reshape(-1, n_components)
    by_moment = observed.reshape(len(flat), -1)  # (m q2, d)
    information = model.effective_n * (flat.T @ solved) + np.eye(n_components)
    outside = np.linalg.solve(information, model.effective_n * (solved.T @ by_moment)).T
    coefficients = (projected.subspace @ directions + outside) * parameters.scales
    return MixtureParameters(
        coefficients, parameters.biases, parameters.weights, parameters.dispersion
    )


def jackknife_coefficients(
    projected: ProjectedMoments, model: MomentModel, fit: MomentFit, noise: MomentNoise
) -> FloatArray:
    """Recompute the coefficients with each part of the rows left out in turn.

    Inside the subspace the parameters follow the linearised fit; the part outside is solved again.
    No further pass over the rows is needed.
    """
    # -> (n_parts, n_features, n_components)
    moments = projected.moments()
    inverse = np.linalg.pinv(fit.jacobian)
    vector = pack(fit.parameters)
    n_prior = fit.jacobian.shape[0] - moments.size
    parts = range(len(projected.gram_sums))
    moved = []
    for part in parts:
        difference = projected.moments(left_out=part) - moments
        change = np.sqrt(model.effective_n) * noise.whiten(difference)
        step = inverse @ np.append(change, np.zeros(n_prior))
        moved.append(unpack(vector + step, fit.parameters))
    if projected.contraction_sums is None:
        return np.stack([each.lift(projected.subspace).coefficients for each in moved])
    moments_of_parts = np.split(model.moments_of_all(moved), len(moved))
    return np.stack(
        [
            _lift(
                projected, model, moved[part], noise, moments_of_parts[part],
                projected.contraction(left_out=part),
            ).coefficients
            for part in parts
        ]
    )  # fmt: skip


# Steps of the unweighted fit, which starts from the grid, and of the weighted fit after it.
ROUGH_STEPS = 8
WEIGHTED_STEPS = 30

# The moments are formed again in the refined subspace if it has turned by more than 5 degrees. The
# error at smaller angles is of second order, below one per cent.
SMALL_TURN = float(np.cos(np.radians(5.0)))

# Fits whose parameters (coefficients in units of the input, logarithms of weights and dispersions)
# differ by less than this are at the same optimum. It is far above the tolerance of a fit and below
# the standard errors of the moments.
SAME_PARAMETERS = 0.02

# Number of random starts from the grid if all directions are the same.
GRID_DRAWS = 20


@dataclass(frozen=True, slots=True, eq=False)
class StackedFit:
    """The stacked estimate in standardised coordinates."""

    # complete mixtures, signs included, best first; coefficients are (n_features, n_components)
    candidates: tuple[MixtureParameters, ...]
    # weighted sum of squared residuals of each candidate, (n_candidates,); under the model it is
    # chi-squared with `n_moments` minus the number of parameters degrees of freedom
    misfits: FloatArray
    n_moments: int  # number of fitted moments
    # orthonormal basis in which the moments were formed; (n_features, k), k at most n_components
    subspace: FloatArray
    # eigenvalues of the Gram matrix of all moments over the edge of their noise, largest first;
    # (n_features,)
    spectrum: FloatArray
    uses_third_order: bool  # whether the first two orders did not show the subspace clearly
    max_order: int  # highest order of the moments, 3 or 4
    # directions of the best decomposition of the stacked tensor, without signs and before any fit;
    # (n_features, n_components)
    cp_directions: FloatArray
    cp_residual: float  # norm of the residual of that decomposition, relative to the tensor
    # coefficients of the best candidate with each part of the rows left out;
    # (n_parts, n_features, n_components)
    replicates: FloatArray
    # moments of the first two orders, which serve any number of components
    low_orders: LowOrders


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Moments in one subspace, with the model and the noise that a fit needs."""

    projected: ProjectedMoments
    moments: FloatArray
    model: MomentModel
    noise: MomentNoise

    def fit(self, start: MixtureParameters) -> MomentFit:
        return self.model.fit(start, self.moments, self.noise, max_steps=WEIGHTED_STEPS)

    def lift(self, parameters: MixtureParameters) -> MixtureParameters:
        return lift_parameters(self.projected, self.model, parameters, self.noise)


def stacked_estimate(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    n_components: int,
    rng: np.random.Generator,
    *,
    low_orders: LowOrders | None = None,
    subspace: Subspace | None = None,
    may_turn: bool = True,
) -> StackedFit:
    """Estimate all parameters of a mixture from stacked moments.

    It makes four passes over the rows, two of them independent of r; one more if the first two
    orders do not show the subspace, and one if it turns: O(n d^2 m + n r^3 m) for m functions.
    """
    # response: (n_obs,)
    if data.n_obs < N_PARTS:
        raise ValueError(
            f"`X` must have at least {N_PARTS} rows for the stacked estimate; got {data.n_obs}. "
            "Add rows."
        )
    low_orders = low_orders or sum_low_orders(data, input_model, response)
    max_order = required_order(
        data.n_features,
        n_components,
        low_orders.rows.n_functions,
        has_dispersion=data.family.has_dispersion,
    )
    subspace = subspace or find_subspace(low_orders, n_components)
    problem = _pose(data, project(low_orders, subspace.basis, max_order), rng)
    candidates = _decompose(problem, n_components, rng)
    starts = [problem.model.start(each.directions, problem.moments) for each in candidates]
    if data.n_features == 1 < n_components:
        starts += _grid_starts(problem.model, n_components, rng)
    fits = _fit_all(problem, starts)
    if may_turn:
        problem, fits = _turn_subspace(data, problem, fits, rng)
    return _assemble(problem, fits, subspace, candidates[0])


def _pose(data: RegressionData, projected: ProjectedMoments, rng: np.random.Generator) -> _Problem:
    """Prepare the model and the noise of projected moments."""
    rows = projected.low_orders.rows
    mean_response = float(rows.weights @ rows.response / rows.weights.sum())
    grid, prior = start_grid(data.single_family, mean_response)
    model = MomentModel(
        expected_functions(data, rows), projected.basis, rows.effective_n, grid, prior
    )
    return _Problem(projected, projected.moments(), model, estimate_noise(projected, rng))


def _decompose(
    problem: _Problem, n_components: int, rng: np.random.Generator
) -> tuple[Candidate, ...]:
    """Find candidate directions inside the subspace."""
    basis = problem.projected.basis
    if n_components > basis.n_variables > 1:
        orders = tuple(range(2, basis.max_order + 1))
        candidates = decompose_symmetric(problem.moments, basis, orders, n_components, rng)
        if candidates:
            return candidates[:KEPT_CANDIDATES]
    return cp_candidates(stack_slices(problem.moments, basis), n_components, rng)


def _grid_starts(
    model: MomentModel, n_components: int, rng: np.random.Generator
) -> list[MixtureParameters]:
    """Draw random grid points: with one feature all directions agree, so starts must differ."""
    starts = []
    for _ in range(GRID_DRAWS):
        point = rng.integers(len(model.grid.scales), size=n_components)
        signs = rng.choice([-1.0, 1.0], size=n_components)
        dispersion = model.grid.dispersion
        starts.append(
            MixtureParameters(
                coefficients=(signs * model.grid.scales[point])[None],
                biases=model.grid.biases[point],
                weights=np.full(n_components, 1.0 / n_components),
                dispersion=None if dispersion is None else dispersion[point],
            )
        )
    return starts


def _fit_all(problem: _Problem, starts: list[MixtureParameters]) -> list[MomentFit]:
    """Fit all parameters from every start, first roughly, and keep the best."""
    rough = [
        problem.model.fit(start, problem.moments, None, max_steps=ROUGH_STEPS) for start in starts
    ]
    fits = [problem.fit(fit.parameters) for fit in _distinct(rough)[:KEPT_CANDIDATES]]
    return _distinct(fits)


def _distinct(fits: list[MomentFit]) -> list[MomentFit]:
    """Sort fits by misfit and drop those that ended at the same optimum as a better one."""
    kept: list[MomentFit] = []
    for fit in sorted(fits, key=lambda fit: fit.misfit):
        if not any(_is_same(fit.parameters, other.parameters) for other in kept):
            kept.append(fit)
    return kept


def _is_same(first: MixtureParameters, second: MixtureParameters) -> bool:
    """Check whether two mixtures are the same up to the order of their components."""
    if min(first.scales.min(), second.scales.min()) < SMALLEST_SCALE:
        return False  # without directions there is nothing to match
    order = match_components(first.coefficients, second.coefficients, signed=True)
    difference = pack(first.reorder(order)) - pack(second)
    return bool(np.abs(difference).max() < SAME_PARAMETERS)


def _turn_subspace(
    data: RegressionData, problem: _Problem, fits: list[MomentFit], rng: np.random.Generator
) -> tuple[_Problem, list[MomentFit]]:
    """Form the moments again around the refined directions if these have left the subspace."""
    old = problem.projected.subspace
    if old.shape[0] == old.shape[1]:
        return problem, fits
    refined = problem.lift(fits[0].parameters)
    new, _ = np.linalg.qr(refined.coefficients)
    if np.linalg.svd(new.T @ old, compute_uv=False).min() > SMALL_TURN:
        return problem, fits
    max_order = problem.projected.basis.max_order
    turned = _pose(data, project(problem.projected.low_orders, new, max_order), rng)
    best = turned.fit(refined.lift(new.T))
    others = [
        MomentFit(fit.parameters.lift(new.T @ old), fit.misfit, fit.jacobian) for fit in fits[1:]
    ]
    return turned, [best, *others]


def _assemble(
    problem: _Problem, fits: list[MomentFit], subspace: Subspace, best: Candidate
) -> StackedFit:
    """Lift all fits to all dimensions and collect the result."""
    projected = problem.projected
    return StackedFit(
        candidates=tuple(problem.lift(fit.parameters) for fit in fits),
        misfits=np.array([fit.misfit for fit in fits]),
        n_moments=problem.moments.size,
        subspace=projected.subspace,
        spectrum=subspace.spectrum,
        uses_third_order=subspace.uses_third_order,
        max_order=projected.basis.max_order,
        cp_directions=subspace.basis @ best.directions,
        cp_residual=best.residual,
        replicates=jackknife_coefficients(projected, problem.model, fits[0], problem.noise),
        low_orders=projected.low_orders,
    )
