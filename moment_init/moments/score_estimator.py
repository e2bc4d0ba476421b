"""The stacked estimate under any density of the input: directions by moments, the rest by EM.

Under any density the moments give the directions. Their coefficients, however, are expectations
under that density and not known functions of scales and biases. Section 5 of the paper proposes EM
for what moments leave open: the likelihood of the projected rows is maximised with the directions
held fixed, over 2 r + (r - 1) parameters (and r dispersions). It assumes no density of the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moment_init.checks import FloatArray
from moment_init.data.blocks import N_PARTS
from moment_init.families.base import Family
from moment_init.likelihood.climbing import MaximiseResult, maximise
from moment_init.likelihood.matching import match_components
from moment_init.likelihood.parameters import LinearConstraint, MixtureParameters, component_size
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.moments.expectations import start_grid
from moment_init.moments.polish import all_rows
from moment_init.moments.score_sums import ScoreMoments, ScoreRows, score_moments, score_pieces
from moment_init.moments.stacked import StackedFit
from moment_init.moments.sums import LowOrders
from moment_init.moments.tensor import Candidate, alternating_least_squares, cp_candidates
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import EstimationProblem

START_QUANTILES = (0.35, 0.7)
"""Quantiles of the family's grid of scales that serve as starts: a weak and a strong signal."""

ALONG_DIRECTIONS_STEPS = 25
ALONG_DIRECTIONS_EM_STEPS = 3


def fit_along_directions(
    family: Family,
    rows: LikelihoodRows,
    directions: FloatArray,
    mean_response: float,
) -> MaximiseResult:
    """Maximise the likelihood of rows with the directions held fixed."""
    # directions: (k, n_components)
    grid, prior = start_grid(family, mean_response)
    n_components = directions.shape[1]
    dispersion = None
    if family.has_dispersion:
        dispersion = np.full(n_components, np.exp(prior.log_dispersion_mean))
    ends = []
    for quantile in START_QUANTILES:
        scale = float(np.quantile(np.unique(grid.scales), quantile))
        start = MixtureParameters(
            coefficients=scale * directions,
            biases=np.full(n_components, prior.bias_mean),
            weights=np.full(n_components, 1.0 / n_components),
            dispersion=dispersion,
        )
        ends.append(
            maximise(
                family,
                rows,
                start,
                max_steps=ALONG_DIRECTIONS_STEPS,
                em_steps=ALONG_DIRECTIONS_EM_STEPS,
                constraint=_fixed_directions(start),
            )
        )
    return max(ends, key=lambda end: end.log_likelihood)


def _fixed_directions(parameters: MixtureParameters) -> LinearConstraint:
    """Constrain coefficients to their directions; all other parameters are free."""
    n_features, n_components = parameters.coefficients.shape
    size = component_size(parameters)
    n_parameters = size * n_components + n_components - 1
    columns = []
    for component in range(n_components):
        along = np.zeros(n_parameters)
        place = component * size
        along[place : place + n_features] = parameters.coefficients[:, component]
        columns.append(along)
        columns += list(np.eye(n_parameters)[place + n_features : place + size])
    columns += list(np.eye(n_parameters)[size * n_components :])
    return LinearConstraint.spanned_by(np.column_stack(columns))


ALONG_DIRECTIONS_ROWS = 5_000
"""Rows whose likelihood determines scales, biases and weights: some hundreds per parameter, so that
the errors of the directions remain larger."""


def score_estimate(
    problem: EstimationProblem,
    density: InputModel,
    low_orders: LowOrders,
    n_components: int,
    rng: np.random.Generator,
) -> StackedFit:
    """Estimate all parameters of a mixture whose input has a given density.

    It makes six or seven passes over the rows, and each evaluates the density's score functions.
    """
    pieces = score_pieces(low_orders.rows, density, low_orders.part_weights)
    moments = score_moments(pieces, n_components)
    stack = moments.stack()
    decompositions = cp_candidates(stack, n_components, rng)
    view = _View(*np.linalg.qr(pieces[0].to_whitened(moments.subspace)))
    candidates = _fitted_candidates(problem, view, _orient(moments, decompositions), rng)
    # A symmetric slice holds every moment off its diagonal twice.
    size = moments.subspace.shape[1]
    n_moments = stack.shape[2] * size * (size + 1) // 2
    misfits = [np.square(each.residual) * np.square(stack).sum() for each in decompositions]
    return StackedFit(
        candidates=candidates,
        misfits=np.array(misfits) * n_moments / stack.size,
        n_moments=n_moments,
        subspace=view.subspace,
        spectrum=moments.spectrum,
        uses_third_order=True,
        max_order=3,
        cp_directions=view.subspace @ view.turn(decompositions[0].directions),
        cp_residual=decompositions[0].residual,
        replicates=_replicates(pieces, moments, view, candidates[0]),
        low_orders=low_orders,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """The subspace of the directions, in whitened coordinates."""

    subspace: FloatArray  # orthonormal basis; (d, k)
    # maps coordinates of the moments, in which noise is isotropic, to those of the basis; (k, k)
    triangle: FloatArray

    def turn(self, directions: FloatArray) -> FloatArray:
        """Map directions to unit directions in coordinates of the basis."""
        turned = self.triangle @ directions
        return np.asarray(turned / np.linalg.norm(turned, axis=0))

    def turn_back(self, directions: FloatArray) -> FloatArray:
        """Map directions to unit directions in coordinates of the moments."""
        turned = np.linalg.solve(self.triangle, directions)
        lengths = np.linalg.norm(turned, axis=0)
        return np.asarray(turned / np.maximum(lengths, np.finfo(float).tiny))


def _orient(moments: ScoreMoments, candidates: tuple[Candidate, ...]) -> list[FloatArray]:
    r"""Turn directions so that the response increases along them.

    The mean of an increasing function T of the response increases with every linear predictor, so
    that in :math:`E[T S_1] = \sum_j a_j u_j` all :math:`a_j` are positive. T is the rank of the
    response, which is bounded.
    """
    slope = moments.subspace.T @ moments.slope
    oriented = []
    for candidate in candidates:
        loadings = np.linalg.lstsq(candidate.directions, slope, rcond=None)[0]
        oriented.append(candidate.directions * np.where(loadings < 0.0, -1.0, 1.0))
    return oriented


def _fitted_candidates(
    problem: EstimationProblem,
    view: _View,
    directions: list[FloatArray],
    rng: np.random.Generator,
) -> tuple[MixtureParameters, ...]:
    """Fit complete mixtures along the directions, largest likelihood first."""
    family, data = problem.data.family, problem.data
    rows = all_rows(problem).sample(ALONG_DIRECTIONS_ROWS, rng)
    projected = replace(rows, Z=np.ascontiguousarray(np.asarray(rows.Z) @ view.subspace))
    mean = float(data.sample_weight @ problem.response / data.sample_weight.sum())
    ends = [fit_along_directions(family, projected, view.turn(each), mean) for each in directions]
    ends.sort(key=lambda end: -end.log_likelihood)
    return tuple(end.parameters.lift(view.subspace) for end in ends)


def _replicates(
    pieces: Sequence[ScoreRows], moments: ScoreMoments, view: _View, best: MixtureParameters
) -> FloatArray:
    """Recompute the coefficients with each part of the rows left out; (n_parts, d, r).

    The span and the directions inside it change; the scales, which do not affect them, are kept.
    """
    scales = np.linalg.norm(best.coefficients, axis=0)
    start = view.turn_back(view.subspace.T @ best.coefficients)
    replicates = []
    for part in range(N_PARTS):
        span = moments.span(left_out=part)
        left, _, right = np.linalg.svd(span.T @ moments.subspace)
        aligned = span @ (left @ right)  # the basis of the span nearest to the original one
        stack = moments.stack(left_out=part)
        refined = alternating_least_squares(stack, start) if len(start) > 1 else None
        turned = start if refined is None else _matched(refined.directions, start)
        whitened = pieces[0].to_whitened(aligned @ turned)
        replicates.append(whitened * scales / np.linalg.norm(whitened, axis=0))
    return np.stack(replicates)


def _matched(directions: FloatArray, reference: FloatArray) -> FloatArray:
    """Reorder directions and flip their signs to match a reference."""
    ordered = directions[:, match_components(directions, reference)]
    return np.asarray(ordered * np.where((ordered * reference).sum(axis=0) < 0.0, -1.0, 1.0))
