r"""Moments with the score functions of any input density, and the stacked estimate from them.

For a density p with score functions S_m the moments :math:`E[T_k S_m]` have the directions as
their components, whatever p is (Theorem 9 of the paper). Two things differ from a Gaussian input,
for which `moment_init.moments.sums` and `subspace` are faster: the input model itself contracts
the score tensors, and polynomials are not orthogonal. The control variates, for which
:math:`E[q S_2] = 0` if q is linear and :math:`E[q S_3] = 0` if it is quadratic, are therefore
found by regression.

A mixture density, :math:`p = \sum_k \pi_k p_k`, has one set of moments for each of its pieces,

.. math:: E[\gamma_k T S_m^{(k)}] = \pi_k E_k[\nabla^m E[T \mid x]], \quad \gamma_k = \pi_k p_k / p,

each with the directions as its components. The clusters are thus not averaged, and each has its
own control variates.

In whitened coordinates :math:`z = L^{-1}(x - \mu)` the noise of the moments is larger where the
score varies more, :math:`J = E[S_1 S_1'] \ge I`. Moments are contracted with :math:`J^{-1/2}`, the
frame, in which the noise is the same in all directions. Each order is divided by the standard error
of its entries, estimated between parts of the rows. The range of :math:`G = \sum M M'` over all
orders lies in the span of the directions, and its eigenvalues can be compared with unit noise.

Under any density the moments give the directions. Their coefficients, however, are expectations
under that density and not known functions of scales and biases. Section 5 of the paper proposes EM
for what moments leave open: `score_estimate` maximises the likelihood of the projected rows with
the directions held fixed, over 2 r + (r - 1) parameters (and r dispersions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
from scipy.stats import rankdata

from moment_init.checks import FloatArray
from moment_init.data.blocks import N_PARTS, read_block, sum_over_blocks, sums_by_part
from moment_init.families.base import Family
from moment_init.likelihood.climbing import MaximiseResult, maximise
from moment_init.likelihood.parameters import (
    LinearConstraint,
    MixtureParameters,
    component_size,
    match_components,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.moments.expectations import start_grid
from moment_init.moments.polish import all_rows
from moment_init.moments.stacked import StackedFit
from moment_init.moments.sums import LowOrders, StackedRows
from moment_init.moments.tensor import Candidate, alternating_least_squares, cp_candidates
from moment_init.scores.base import SMALLEST_PIECE, Contraction, InputModel
from moment_init.scores.choosing import EstimationProblem

BlockSums = tuple[FloatArray, ...]

MOST_ENTRIES = 512
"""Largest score tensor of a row that is formed, so that one evaluation serves all functions of the
response. Above this size each function is summed separately, without tensors."""

SHARED_ROWS = 2**14
"""Rows per block when the probabilities of the pieces are computed."""

FRAME_ROWS = 5_000
"""Rows from which the frame is estimated; it need not be exact."""


@dataclass(frozen=True, slots=True, eq=False)
class PartSums:
    """A moment as sums over each part of the rows."""

    sums: FloatArray  # sums over the rows of each part; (n_parts, ...)
    part_weights: FloatArray  # sum of the weights in each part; (n_parts,)

    def mean(self, *, left_out: int | None = None) -> FloatArray:
        """Return the moment, optionally with one part of the rows left out."""
        kept = np.arange(len(self.sums)) != left_out
        return np.asarray(self.sums[kept].sum(axis=0) / self.part_weights[kept].sum())

    @property
    def variance(self) -> float:
        """Sampling variance of an entry of the moment, averaged over its entries."""
        n_parts = len(self.sums)
        shape = (n_parts, *([1] * (self.sums.ndim - 1)))
        spread = np.square(self.sums / self.part_weights.reshape(shape) - self.mean())
        variance = float(spread.mean()) / (n_parts - 1)
        return max(variance, np.finfo(float).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class ControlVariates:
    """Polynomials of the input that are subtracted from the functions of the response."""

    rows: StackedRows
    # whitened directions whose squares and products are among the polynomials, (n_features, k);
    # without columns there are no quadratic terms
    basis: FloatArray
    # least-squares coefficients of constant, linear and quadratic terms,
    # (1 + n_features + k (k + 1) / 2, n_functions)
    coefficients: FloatArray

    def residuals(self, block: slice) -> FloatArray:
        """Subtract the polynomials from the functions."""
        # -> (n_rows, n_functions)
        features = _polynomials(self.rows, self.rows.to_input_units(self.basis), block)
        return np.asarray(self.rows.function_values(block) - features @ self.coefficients)


def fit_control_variates(rows: StackedRows, basis: FloatArray) -> ControlVariates:
    """Regress the functions of the response on polynomials of the input, in one pass."""
    # basis: (n_features, k)
    in_units = rows.to_input_units(basis)
    size = 1 + rows.n_features + basis.shape[1] * (basis.shape[1] + 1) // 2

    def sums(block: slice) -> BlockSums:
        features = _polynomials(rows, in_units, block)
        weighted = (features * rows.weights[block, None]).T
        return np.dot(weighted, features), np.dot(weighted, rows.function_values(block))

    gram, cross = sum_over_blocks(sums, rows.n_obs, 2 * size + rows.n_functions)
    units = np.sqrt(np.diag(gram))  # columns may have any units
    scaled = np.linalg.lstsq(gram / np.outer(units, units), cross / units[:, None], rcond=None)[0]
    return ControlVariates(rows, basis, scaled / units[:, None])


def _polynomials(rows: StackedRows, in_units: FloatArray, block: slice) -> FloatArray:
    """Return constant, centred inputs and products of projections; (n_rows, size)."""
    x = rows.inputs(block)
    projected = x @ in_units
    pairs = combinations_with_replacement(range(projected.shape[1]), 2)
    products = [projected[:, first] * projected[:, second] for first, second in pairs]
    return np.column_stack([np.ones(len(x)), x, *products])


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRows:
    """Rows with functions of their response and one piece of the density of their input."""

    # rows with their mean and covariance, weighted by the probability of the piece
    rows: StackedRows
    density: InputModel  # density of the piece
    part_weights: FloatArray  # sum of the weights of all pieces in each part; (n_parts,)
    # whitened vectors with which the moments are contracted; (n_features, n_features)
    frame: FloatArray

    def moments(
        self, basis: FloatArray, order: int, functions: Callable[[slice], FloatArray]
    ) -> PartSums:
        """Compute the moments E[T_k S_m](B, ..., B)."""
        # basis: (n_features, k)
        contraction = self.density.contract(self.rows.factor @ self.frame @ basis)
        entries = basis.shape[1] ** order

        def sums(block: slice) -> BlockSums:
            values = functions(block)
            forms_tensors = values.shape[1] > 1 and entries <= MOST_ENTRIES
            sums_up = self._sum_tensors if forms_tensors else self._sum_functions
            return (sums_up(contraction, order, values, block),)

        doubles = 4 * basis.shape[1] + min(entries, MOST_ENTRIES) + 2 * self.rows.n_functions
        return self._by_part(sums, doubles)

    def slices(self, thetas: FloatArray, functions: Callable[[slice], FloatArray]) -> PartSums:
        r"""Compute slices :math:`E[T_k S_3](I, I, \theta_l)` in all dimensions."""
        # thetas: (n_features, n_slices)
        contraction = self.density.contract(self.rows.factor @ self.frame)

        def sums(block: slice) -> BlockSums:
            inputs = read_block(self.rows.X, block)
            weighted = (functions(block) * self.rows.weights[block, None]).T
            slices = [
                contraction.sum_slices(inputs, np.ascontiguousarray(each), thetas)
                for each in weighted
            ]
            return (np.concatenate(slices),)

        return self._by_part(sums, (3 + thetas.shape[1]) * self.rows.n_features)

    def to_whitened(self, columns: FloatArray) -> FloatArray:
        """Map components of the moments from the frame to whitened vectors."""
        # columns: (n_features, k) -> (n_features, k)
        return np.asarray(np.linalg.solve(self.frame.T, columns))

    def _sum_tensors(
        self, contraction: Contraction, order: int, functions: FloatArray, block: slice
    ) -> FloatArray:
        """Sum functions times score tensors, which are formed; (n_functions, k, ..., k)."""
        weighted = (functions * self.rows.weights[block, None]).T
        tensors = contraction.score(read_block(self.rows.X, block), order)
        return np.asarray(np.tensordot(weighted, tensors, axes=1))

    def _sum_functions(
        self, contraction: Contraction, order: int, functions: FloatArray, block: slice
    ) -> FloatArray:
        """Compute the same sums one function at a time, without forming tensors of rows."""
        inputs = read_block(self.rows.X, block)
        weighted = np.ascontiguousarray((functions * self.rows.weights[block, None]).T)
        return np.stack([contraction.sum_score(inputs, each, order) for each in weighted])

    def _by_part(self, sums: Callable[[slice], BlockSums], doubles: int) -> PartSums:
        rows = self.rows
        (totals,) = sums_by_part(sums, rows.n_obs, doubles, is_shuffled=rows.is_shuffled)
        return PartSums(totals, self.part_weights)


def score_pieces(
    rows: StackedRows, density: InputModel, part_weights: FloatArray
) -> tuple[ScoreRows, ...]:
    """Weight the rows for each piece of a density, and find the frame of all pieces."""
    # part_weights: (n_parts,)
    shares = _piece_shares(rows, density)
    kept = [
        (piece, np.ascontiguousarray(share * rows.weights))
        for piece, share in zip(density.pieces, shares.T, strict=True)
    ]
    total = float(rows.weights.sum())
    kept = [(piece, weights) for piece, weights in kept if weights.sum() > SMALLEST_PIECE * total]
    frame = _even_frame(rows, kept)
    return tuple(
        ScoreRows(replace(rows, weights=weights), piece, part_weights, frame)
        for piece, weights in kept
    )


def _piece_shares(rows: StackedRows, density: InputModel) -> FloatArray:
    """Compute the posterior probabilities of the pieces by blocks; (n_obs, n_pieces)."""
    if len(density.pieces) == 1:
        return np.ones((rows.n_obs, 1))
    return np.concatenate(
        [
            density.piece_shares(read_block(rows.X, slice(start, start + SHARED_ROWS)))
            for start in range(0, rows.n_obs, SHARED_ROWS)
        ]
    )


def _even_frame(rows: StackedRows, pieces: list[tuple[InputModel, FloatArray]]) -> FloatArray:
    """Estimate J^(-1/2) from some rows, where J is the variance of the whitened first score."""
    index = np.arange(0, rows.n_obs, max(1, rows.n_obs // FRAME_ROWS))
    inputs = read_block(rows.X, index)
    variance = np.zeros((rows.n_features, rows.n_features))
    for piece, weights in pieces:
        scores = piece.contract(rows.factor).score(inputs, 1)
        variance += (scores.T * weights[index]) @ scores
    values, vectors = np.linalg.eigh(variance / sum(weights[index].sum() for _, weights in pieces))
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


FEW_FEATURES = 8
"""Up to this many features the whole third-order tensor is formed: 512 entries and a quadratic
regression on 45 terms. Above, only its slices along a rough subspace are formed."""

SLICED_FUNCTIONS = 3
"""Number of response functions whose slices are formed: those with most signal come first, and each
costs r Gram matrices of the rows for every piece of a density."""

ORTHOGONAL_ITERATIONS = 5
"""Steps of higher-order orthogonal iteration: each reduces the error by the ratio of noise to
signal, which is below one half wherever the span can be found at all."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceMoments:
    """Moments of the first three orders under one piece of the density."""

    slope: FloatArray  # first moment of the rank of the response; (d,)
    first: PartSums  # first moments of all functions; (n_functions, d)
    second: PartSums  # second moments of all functions; (n_functions, d, d)
    third: PartSums | None = None  # slices of third moments; (n_slices, d, d)
    # third moments inside the subspace, (n_functions, k, k, k); None if `third` holds all slices of
    # all functions
    inner: PartSums | None = None

    def with_unit_noise(self, left_out: int | None = None) -> list[FloatArray]:
        """Divide the moments by their standard errors; return stacks of matrices."""
        scaled = [
            each.mean(left_out=left_out) / np.sqrt(each.variance)
            for each in (self.first, self.second, self.third)
            if each is not None
        ]
        return [scaled[0][:, :, None], *scaled[1:]]

    def inside(self, basis: FloatArray, left_out: int | None = None) -> list[FloatArray]:
        """Divide second and third moments inside a subspace by their standard errors."""
        # basis: (d, k)
        size = basis.shape[1]
        second = basis.T @ self.second.mean(left_out=left_out) @ basis
        slices = [np.moveaxis(second, 0, 2) / np.sqrt(self.second.variance)]
        if self.inner is not None:
            third = self.inner.mean(left_out=left_out)
            deviation = np.sqrt(self.inner.variance)
        elif self.third is not None:
            cubes = self.third.mean(left_out=left_out).reshape(-1, *([len(basis)] * 3))
            third = np.einsum("fabc,ai,bj,ck->fijk", cubes, basis, basis, basis, optimize=True)
            deviation = np.sqrt(self.third.variance)
        else:
            return slices
        return [*slices, np.moveaxis(third, 0, 3).reshape(size, size, -1) / deviation]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMoments:
    """Moments under all pieces of the density, in coordinates of the frame."""

    pieces: tuple[PieceMoments, ...]
    subspace: FloatArray  # orthonormal basis of the span; (d, k)
    spectrum: FloatArray  # eigenvalues of G over the edge of their noise, largest first; (d,)

    @property
    def slope(self) -> FloatArray:
        """First moment of the rank of the response, (d,): the response increases along it."""
        return np.asarray(sum(piece.slope for piece in self.pieces))

    def span(self, *, left_out: int | None = None) -> FloatArray:
        """Find the span of the components, optionally with one part of the rows left out."""
        # -> (d, k)
        return _leading_subspace(_gather(self.pieces, left_out), self.subspace.shape[1])

    def stack(self, *, left_out: int | None = None) -> FloatArray:
        """Stack second moments and slices of the third inside the subspace, with unit noise."""
        # -> (k, k, n_slices)
        slices = [each.inside(self.subspace, left_out) for each in self.pieces]
        return np.concatenate([each for piece in slices for each in piece], axis=2)


def score_moments(pieces: Sequence[ScoreRows], n_components: int) -> ScoreMoments:
    """Form the moments and find their span, in four or five passes per piece."""
    n_features = pieces[0].rows.n_features
    size = min(n_components, n_features)
    low = [_low_orders(piece) for piece in pieces]
    if n_features <= FEW_FEATURES:
        moments = [_whole_third_order(*each) for each in zip(pieces, low, strict=True)]
        span = _leading_subspace(_gather(moments), size)
    else:
        rough = _leading_subspace(_gather(low), size)
        moments = [_sliced_third_order(*each, rough) for each in zip(pieces, low, strict=True)]
        span = _leading_subspace(_gather(moments), size)
        moments = [_inner_third_order(*each, span) for each in zip(pieces, moments, strict=True)]
    if size == n_features:
        span = np.eye(n_features)
    return ScoreMoments(tuple(moments), span, _spectrum(_gather(moments)))


def _low_orders(piece: ScoreRows) -> PieceMoments:
    """Form the first two orders; linear terms are subtracted before the second."""
    rows = piece.rows
    everything = np.eye(rows.n_features)
    ranks = rankdata(rows.response) / rows.n_obs - 0.5

    def with_ranks(block: slice) -> FloatArray:
        return np.column_stack([rows.function_values(block), ranks[block]])

    first = piece.moments(everything, 1, with_ranks)
    linear = fit_control_variates(rows, everything[:, :0])
    return PieceMoments(
        first.mean()[-1],
        PartSums(first.sums[:, :-1], first.part_weights),
        piece.moments(everything, 2, linear.residuals),
    )


def _whole_third_order(piece: ScoreRows, low: PieceMoments) -> PieceMoments:
    """Add the third order in all dimensions."""
    n_features = piece.rows.n_features
    everything = np.eye(n_features)
    quadratic = fit_control_variates(piece.rows, everything)
    cubes = piece.moments(everything, 3, quadratic.residuals)
    slices = cubes.sums.reshape(len(cubes.sums), -1, n_features, n_features)
    return replace(low, third=PartSums(slices, cubes.part_weights))


def _sliced_third_order(piece: ScoreRows, low: PieceMoments, rough: FloatArray) -> PieceMoments:
    """Add slices of the third order along a rough subspace."""
    quadratic = fit_control_variates(piece.rows, piece.to_whitened(rough))
    n_sliced = min(SLICED_FUNCTIONS, piece.rows.n_functions)
    slices = piece.slices(rough, lambda block: quadratic.residuals(block)[:, :n_sliced])
    return replace(low, third=slices)


def _inner_third_order(piece: ScoreRows, sliced: PieceMoments, span: FloatArray) -> PieceMoments:
    """Add the third order inside the span."""
    quadratic = fit_control_variates(piece.rows, piece.to_whitened(span))
    return replace(sliced, inner=piece.moments(span, 3, quadratic.residuals))


def _gather(pieces: Sequence[PieceMoments], left_out: int | None = None) -> list[FloatArray]:
    """Collect the moments of all pieces, divided by their standard errors."""
    return [each for piece in pieces for each in piece.with_unit_noise(left_out)]


def _leading_subspace(matrices: list[FloatArray], size: int) -> FloatArray:
    """Refine leading eigenvectors of G by higher-order orthogonal iteration.

    Each step projects one side of every matrix on the subspace, and so keeps only the noise there.
    """
    basis = np.linalg.eigh(_gram(matrices))[1][:, ::-1][:, :size]
    for _ in range(ORTHOGONAL_ITERATIONS):
        inside = [each if _is_vectors(each) else each @ basis for each in matrices]
        basis = np.linalg.eigh(_gram(inside))[1][:, ::-1][:, :size]
    return np.asarray(basis)


def _is_vectors(matrices: FloatArray) -> bool:
    return bool(matrices.shape[2] == 1 < matrices.shape[1])


def _gram(matrices: list[FloatArray]) -> FloatArray:
    """Sum A A' over stacks of matrices (n, d, k)."""
    unfolded = [np.moveaxis(each, 1, 0).reshape(each.shape[1], -1) for each in matrices]
    return np.asarray(sum(each @ each.T for each in unfolded))


def _spectrum(matrices: list[FloatArray]) -> FloatArray:
    r"""Divide eigenvalues of G by the noise edge, :math:`(\sqrt N + \sqrt d)^2` for N columns."""
    n_features = matrices[0].shape[1]
    # A symmetric matrix of d columns holds (d + 1)/2 columns of independent entries.
    columns = [1.0 if _is_vectors(each) else (n_features + 1) / 2.0 for each in matrices]
    n_columns = sum(len(each) * number for each, number in zip(matrices, columns, strict=True))
    edge = (np.sqrt(n_columns) + np.sqrt(n_features)) ** 2
    return np.asarray(np.linalg.eigvalsh(_gram(matrices))[::-1] / edge)


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
    family, data = problem.data.single_family, problem.data
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
