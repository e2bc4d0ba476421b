r"""From moments of all responses to directions, and from these to tied mixtures.

.. math:: E[T_k(y) S_m(x)] = \sum_j c_{jk}\, u_j^{\otimes m}

for every function of all responses, if every predictor of component j is :math:`s_{ja} \langle u_j,
x\rangle + b_{ja}`. Scales and their signs, biases, weights and dispersions are settled by the
likelihood.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import N_PARTS
from moment_init.exceptions import IdentifiabilityError
from moment_init.families.response_functions import ResponseFunctions
from moment_init.input_resolution import resolve_input
from moment_init.problem import EstimationProblem
from moment_init.responses.climbing import Climb, climb, short_climb
from moment_init.responses.data import ResponsesData
from moment_init.responses.functions import fit_joint_functions, moment_responses
from moment_init.responses.points import TiedPoint
from moment_init.responses.rows import JointProblem
from moment_init.responses.starts import fit_pooled
from moment_init.responses.ties import TiedParameters
from moment_init.stacked.projection import project
from moment_init.stacked.score_subspace import score_moments
from moment_init.stacked.score_sums import score_pieces
from moment_init.stacked.subspace import find_subspace
from moment_init.stacked.sums import sum_low_orders
from moment_init.stacked.tensor import cp_candidates, stack_slices

__all__ = ["JointDirections", "find_directions", "settle_directions"]

FloatArray = NDArray[np.float64]

SETTLING_ROWS = 5_000
"""Rows by which starts along the directions are compared."""

SETTLING_STEPS = 15
"""Steps of EM of every start along the directions."""

KEPT_STARTS = 2
"""Starts that are climbed from to the end."""


@dataclass(frozen=True, slots=True, eq=False)
class JointDirections:
    """Directions as the moments have them.

    Parameters
    ----------
    candidates : tuple of numpy.ndarray, shape (n_features, n_components)
        Unit directions in the standardised coordinates of a `JointProblem`, without signs.
    spectrum : numpy.ndarray, shape (n_features,)
        Eigenvalues of the Gram matrix of all moments over the edge of their noise, largest first.
    residual : float
        What the best decomposition leaves of the tensor, relative to it.
    n_functions : int
        Number of functions of the responses.
    input_problem : EstimationProblem
        Density of the input, and how it was chosen.
    """

    candidates: tuple[FloatArray, ...]
    spectrum: FloatArray
    residual: float
    n_functions: int
    input_problem: EstimationProblem


def find_directions(
    data: ResponsesData,
    problem: JointProblem,
    rng: np.random.Generator,
    *,
    input_model: Any = "auto",
    unlabelled: Any = None,
) -> JointDirections:
    """Decompose the stacked tensor of the moments of all responses.

    Parameters
    ----------
    data : ResponsesData
        Checked rows of positive weight.
    problem : JointProblem
        The same rows, standardised.
    rng : numpy.random.Generator
        Source of starts and of samples of rows.
    input_model : {"auto", "gaussian"} or InputModel
        Density of the input.
    unlabelled : array-like or DataFrame, optional
        Rows without a response.

    Returns
    -------
    JointDirections
        The directions.

    Raises
    ------
    IdentifiabilityError
        If there are more components than features, too few rows, or a column is discrete.
    """
    r, d = problem.n_components, data.n_features
    if r > d:
        raise IdentifiabilityError(
            f"`n_components` must be at most the number of features ({d}) for the moments of "
            f"several responses; got {r}. Reduce it, add features, or use `fit_em`."
        )
    if data.n_obs < N_PARTS:  # a part without rows has no moments
        raise IdentifiabilityError(
            f"`X` must have at least {N_PARTS} rows for the moments of several responses; got "
            f"{data.n_obs}. Add rows, or use `fit_em`."
        )
    single = data.single(0)
    posed = resolve_input(single, input_model, unlabelled, rng.spawn(1)[0], is_stacked=True)
    if posed.block is not None:
        names = ", ".join(posed.block.discrete_names(data.feature_names))
        raise IdentifiabilityError(
            f"`X` must have continuous columns only for the moments of several responses; got the "
            f"discrete {names}. Use `fit_em`, whose other starts need no density, or "
            "input_model='gaussian' to treat them as continuous."
        )
    response = moment_responses(data)
    functions = fit_joint_functions(data.kind, response)
    # Sums over rows only call functions and count them, whosever they are.
    called = cast(ResponseFunctions, functions)
    low_orders = sum_low_orders(single, posed.input_model, response, called)
    basis_map = _to_problem(posed, problem)
    densities = posed.densities or (posed.input_model,)
    if d == 1:
        densities = (posed.input_model,)
    candidates: list[FloatArray] = []
    findings: list[tuple[FloatArray, float]] = []
    for density in densities:
        if density is posed.input_model:
            subspace = find_subspace(low_orders, r)
            projected = project(low_orders, subspace.basis, 3)
            stack = stack_slices(projected.moments(), projected.basis)
            span, spectrum = subspace.basis, subspace.spectrum
        else:
            pieces = score_pieces(low_orders.rows, density, low_orders.part_weights)
            moments = score_moments(pieces, r)
            stack, spectrum = moments.stack(), moments.spectrum
            span = pieces[0].to_whitened(moments.subspace)
        found = cp_candidates(stack, r, rng)
        candidates += [_unit(basis_map @ (span @ each.directions)) for each in found]
        findings.append((spectrum, found[0].residual))
    spectrum, residual = findings[0]
    return JointDirections(tuple(candidates), spectrum, residual, len(functions.columns), posed)


def _to_problem(posed: EstimationProblem, problem: JointProblem) -> FloatArray:
    """Matrix that takes directions in the frame of the input model to those of the problem."""
    where = problem.coordinates[0]
    return np.asarray(np.linalg.solve(posed.input_model.standardising_basis, where.factor).T)


def _unit(columns: FloatArray) -> FloatArray:
    return np.asarray(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300))


def settle_directions(
    problem: JointProblem,
    candidates: tuple[FloatArray, ...],
    rng: np.random.Generator,
    *,
    max_steps: int = 500,
    holds_directions: bool = False,
) -> list[Climb[TiedPoint]]:
    """Complete mixtures along candidates for the directions, by likelihood.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    candidates : tuple of numpy.ndarray, shape (n_features, n_components)
        Unit directions in standardised coordinates.
    rng : numpy.random.Generator
        Source of the rows by which starts are compared.
    max_steps : int
        Most steps of the runs of all rows.
    holds_directions : bool
        Whether directions stay as the moments have them.

    Returns
    -------
    list of Climb
        The best runs, best first.
    """
    few = problem.sample(SETTLING_ROWS, rng)
    pooled = fit_pooled(few)
    runs = []
    for directions in candidates:
        for start in _tied_starts(few, directions, pooled.coefficients[:, 0], pooled.biases[0]):
            point = TiedPoint.inside(few, start, holds_directions=holds_directions)
            runs.append(short_climb(point, SETTLING_STEPS))
    runs.sort(key=lambda run: -run.value)
    ends = []
    for run in runs[:KEPT_STARTS]:
        point = TiedPoint.inside(problem, run.point.parameters, holds_directions=holds_directions)
        ends.append(climb(point, max_steps=max_steps, em_steps=4))
    return sorted(ends, key=lambda end: -end.value)


def _tied_starts(
    problem: JointProblem, directions: FloatArray, slopes: FloatArray, levels: FloatArray
) -> list[TiedParameters]:
    """Starts along given directions: signs from the slopes of a single model, two lengths.

    The slopes of a single model are about the mean of those of the components: in
    sum_j w_j s_ja u_j the sign of s_ja is that of its coefficient.
    """
    r = directions.shape[1]
    loads = r * np.linalg.lstsq(directions, slopes, rcond=None)[0]  # (r, P)
    dispersion = None
    if any(problem.kind.has_dispersion):
        dispersion = np.where(problem.kind.has_dispersion, np.ones((r, 1)), np.nan)
        units = np.array(problem.kind.has_units)
        dispersion = np.where(units, 0.6 * dispersion, 2.0 * dispersion)
    typical = np.array(
        [2.0 if each is None else each.typical_scale for each in problem.kind.families]
    )
    typical = np.where(problem.kind.has_units, 0.8, typical)
    signs = np.where(loads < 0.0, -1.0, 1.0)
    biases = np.tile(levels, (r, 1))
    weights = np.full(r, 1.0 / r)
    lengths = [
        np.clip(np.abs(loads), 0.1 * typical, typical),
        np.broadcast_to(typical, loads.shape),
    ]
    return [
        TiedParameters(directions, signs * length, biases, weights, dispersion)
        for length in lengths
    ]
