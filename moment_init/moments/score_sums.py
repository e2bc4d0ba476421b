r"""Moments with the score functions of any input density, and the span of the components.

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
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
from scipy.stats import rankdata

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks, sums_by_part
from moment_init.moments.sums import StackedRows
from moment_init.scores.base import SMALLEST_PIECE, Contraction, InputModel

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
