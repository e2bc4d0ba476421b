r"""Moments with the scores of any input density, as sums over rows.

For a density p with score functions S_m the moments :math:`E[T_k S_m]` have the directions as
their components whatever p is (Theorem 9 of the paper). Two things differ from a Gaussian input,
for which `moment_init.moments.sums` and `projection` know shorter ways: the score tensors are
contracted by the input model itself, and polynomials are not orthogonal. What control variates
take out of the functions, :math:`E[q S_2] = 0` for linear and :math:`E[q S_3] = 0` for quadratic q,
is found by regression.

A density that is a mixture, :math:`p = \sum_k \pi_k p_k`, has as many moments as it has pieces,

.. math:: E[\gamma_k T S_m^{(k)}] = \pi_k E_k[\nabla^m E[T \mid x]], \quad \gamma_k = \pi_k p_k / p,

each with the directions as its components: what a cluster says of them is not averaged with what
another one says, and the control variates of a cluster are its own.

In whitened coordinates :math:`z = L^{-1}(x - \mu)` the noise of moments is as large in a direction
as the score is there, :math:`J = E[S_1 S_1'] \ge I`. Moments are contracted with
:math:`J^{-1/2}`, the frame, in which it is the same in all of them.

The span of the components under any input density, and the moments inside it.

As for a Gaussian input, :math:`G = \sum M M'` over the moments of all orders has its range in the
span of the directions. The scores of other densities have other variances: every order is divided
by the standard error of its entries, as seen between parts of the rows, so that noise is of one
size in all of them and eigenvalues of G can be told from it.
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
"""Entries of a row's score tensor up to which it is formed, so that one evaluation serves all
functions of the response; beyond, each function sums its own, which forms no tensors."""

SHARED_ROWS = 2**14
"""Rows of a block in which probabilities of pieces are computed."""

FRAME_ROWS = 5_000
"""Rows from which the frame is found; it need not be exact."""


@dataclass(frozen=True, slots=True, eq=False)
class PartSums:
    """A moment, from each part of the rows."""

    sums: FloatArray  # sums over the rows of each part; (n_parts, ...)
    part_weights: FloatArray  # sum of the weights in each part; (n_parts,)

    def mean(self, *, left_out: int | None = None) -> FloatArray:
        """The moment itself."""
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
    """Polynomials of the input that are taken out of the functions of the response."""

    rows: StackedRows  # the rows
    # whitened directions whose squares and products are among the polynomials; none if k = 0;
    # (n_features, k)
    basis: FloatArray
    # least-squares coefficients of constant, linear and quadratic terms; (1 + n_features + k (k +
    # 1) / 2, n_functions)
    coefficients: FloatArray

    def residuals(self, block: slice) -> FloatArray:
        """What is left of the functions."""
        # -> (n_rows, n_functions)
        features = _polynomials(self.rows, self.rows.to_input_units(self.basis), block)
        return np.asarray(self.rows.function_values(block) - features @ self.coefficients)


def fit_control_variates(rows: StackedRows, basis: FloatArray) -> ControlVariates:
    """Regress the functions of the response on polynomials of the input; one pass."""
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
    """Constant, centred inputs, and products of projections, (n_rows, size)."""
    x = rows.inputs(block)
    projected = x @ in_units
    pairs = combinations_with_replacement(range(projected.shape[1]), 2)
    products = [projected[:, first] * projected[:, second] for first, second in pairs]
    return np.column_stack([np.ones(len(x)), x, *products])


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRows:
    """Rows with functions of their response and a piece of the density of their input."""

    # rows in the frame of their mean and covariance; their weights are divided among the pieces
    rows: StackedRows
    density: InputModel  # the piece
    part_weights: FloatArray  # sum of all weights in each part of the rows; (n_parts,)
    # whitened vectors with which moments are contracted; (n_features, n_features)
    frame: FloatArray

    def moments(
        self, basis: FloatArray, order: int, functions: Callable[[slice], FloatArray]
    ) -> PartSums:
        """Moments E[T_k S_m](B, ..., B)."""
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
        r"""Slices :math:`E[T_k S_3](I, I, \theta_l)` of the third order, in all dimensions."""
        # thetas: (n_features, n_slices)
        contraction = self.density.contract(self.rows.factor @ self.frame)

        def sums(block: slice) -> BlockSums:
            inputs = read_block(self.rows.X, block)
            weighted = (functions(block) * self.rows.weights[block, None]).T
            found = [
                contraction.sum_slices(inputs, np.ascontiguousarray(each), thetas)
                for each in weighted
            ]
            return (np.concatenate(found),)

        return self._by_part(sums, (3 + thetas.shape[1]) * self.rows.n_features)

    def to_whitened(self, columns: FloatArray) -> FloatArray:
        """Turn components of moments, which are seen in the frame, into whitened vectors."""
        # columns: (n_features, k) -> (n_features, k)
        return np.asarray(np.linalg.solve(self.frame.T, columns))

    def _sum_tensors(
        self, contraction: Contraction, order: int, functions: FloatArray, block: slice
    ) -> FloatArray:
        """Sums of functions times score tensors, (n_functions, k, ..., k): tensors formed."""
        weighted = (functions * self.rows.weights[block, None]).T
        tensors = contraction.score(read_block(self.rows.X, block), order)
        return np.asarray(np.tensordot(weighted, tensors, axes=1))

    def _sum_functions(
        self, contraction: Contraction, order: int, functions: FloatArray, block: slice
    ) -> FloatArray:
        """The same sums, one function after another and without tensors of rows."""
        inputs = read_block(self.rows.X, block)
        weighted = np.ascontiguousarray((functions * self.rows.weights[block, None]).T)
        return np.stack([contraction.sum_score(inputs, each, order) for each in weighted])

    def _by_part(self, sums: Callable[[slice], BlockSums], doubles: int) -> PartSums:
        rows = self.rows
        (found,) = sums_by_part(sums, rows.n_obs, doubles, is_shuffled=rows.is_shuffled)
        return PartSums(found, self.part_weights)


def score_pieces(
    rows: StackedRows, density: InputModel, part_weights: FloatArray
) -> tuple[ScoreRows, ...]:
    """Divide the rows among the pieces of a density, and find the frame that they share."""
    # part_weights: (n_parts,)
    shares = _piece_shares(rows, density)
    kept = [
        (piece, np.ascontiguousarray(share * rows.weights))
        for piece, share in zip(density.pieces, shares.T, strict=True)
    ]
    total = float(rows.weights.sum())
    kept = [(piece, own) for piece, own in kept if own.sum() > SMALLEST_PIECE * total]
    frame = _even_frame(rows, kept)
    return tuple(
        ScoreRows(replace(rows, weights=own), piece, part_weights, frame) for piece, own in kept
    )


def _piece_shares(rows: StackedRows, density: InputModel) -> FloatArray:
    """Posterior probabilities of the pieces, (n_obs, n_pieces), by blocks of rows."""
    if len(density.pieces) == 1:
        return np.ones((rows.n_obs, 1))
    return np.concatenate(
        [
            density.piece_shares(read_block(rows.X, slice(start, start + SHARED_ROWS)))
            for start in range(0, rows.n_obs, SHARED_ROWS)
        ]
    )


def _even_frame(rows: StackedRows, pieces: list[tuple[InputModel, FloatArray]]) -> FloatArray:
    """J^(-1/2), J the variance of the first score in whitened coordinates, from some rows."""
    index = np.arange(0, rows.n_obs, max(1, rows.n_obs // FRAME_ROWS))
    inputs = read_block(rows.X, index)
    variance = np.zeros((rows.n_features, rows.n_features))
    for piece, weights in pieces:
        scores = piece.contract(rows.factor).score(inputs, 1)
        variance += (scores.T * weights[index]) @ scores
    values, vectors = np.linalg.eigh(variance / sum(own[index].sum() for _, own in pieces))
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


FEW_FEATURES = 8
"""Up to so many features the whole third-order tensor is formed: 512 entries, and a quadratic
regression on 45 terms. Beyond, its slices along the rough subspace are."""

SLICED_FUNCTIONS = 3
"""Of the functions of the response, how many give slices: they come with most signal first, and
each costs r Gram matrices of the rows for every part of a density."""

ORTHOGONAL_ITERATIONS = 5
"""Steps of higher-order orthogonal iteration; each shrinks what is left by the ratio of noise to
signal, which is below a half where the span can be found at all."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceMoments:
    """Moments of three orders under a piece of the density, as far as they were formed."""

    slope: FloatArray  # order one of the rank of the response; (d,)
    first: PartSums  # orders one, (n_functions, d), and two, (n_functions, d, d), in all dimensions
    # orders one, (n_functions, d), and two, (n_functions, d, d), in all dimensions
    second: PartSums
    third: PartSums | None = None  # slices of the third order, (n_slices, d, d)
    # the third order inside the subspace, (n_functions, k, k, k); None where `third` holds all of
    # it, function by function
    inner: PartSums | None = None

    def with_unit_noise(self, left_out: int | None = None) -> list[FloatArray]:
        """Moments over their standard errors, as stacks of matrices."""
        scaled = [
            each.mean(left_out=left_out) / np.sqrt(each.variance)
            for each in (self.first, self.second, self.third)
            if each is not None
        ]
        return [scaled[0][:, :, None], *scaled[1:]]

    def inside(self, basis: FloatArray, left_out: int | None = None) -> list[FloatArray]:
        """Second and third order inside a subspace, over their standard errors."""
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
    """Moments under all pieces of the density, in coordinates of their frame."""

    pieces: tuple[PieceMoments, ...]  # the moments
    subspace: FloatArray  # orthonormal basis of the span; (d, k)
    spectrum: FloatArray  # eigenvalues of G over the edge of their noise, largest first; (d,)

    @property
    def slope(self) -> FloatArray:
        """Order one of the rank of the response, (d,): the response rises along it."""
        return np.asarray(sum(piece.slope for piece in self.pieces))

    def span(self, *, left_out: int | None = None) -> FloatArray:
        """Span of the components."""
        # -> (d, k)
        return _leading_subspace(_gather(self.pieces, left_out), self.subspace.shape[1])

    def stack(self, *, left_out: int | None = None) -> FloatArray:
        """Second moments and slices of the third inside the subspace, with noise of one size."""
        # -> (k, k, n_slices)
        slices = [each.inside(self.subspace, left_out) for each in self.pieces]
        return np.concatenate([each for piece in slices for each in piece], axis=2)


def score_moments(pieces: Sequence[ScoreRows], n_components: int) -> ScoreMoments:
    """Form the moments and find the span of the components; four or five passes a piece."""
    n_features = pieces[0].rows.n_features
    size = min(n_components, n_features)
    low = [_low_orders(piece) for piece in pieces]
    if n_features <= FEW_FEATURES:
        found = [_whole_third_order(*each) for each in zip(pieces, low, strict=True)]
        span = _leading_subspace(_gather(found), size)
    else:
        rough = _leading_subspace(_gather(low), size)
        found = [_sliced_third_order(*each, rough) for each in zip(pieces, low, strict=True)]
        span = _leading_subspace(_gather(found), size)
        found = [_inner_third_order(*each, span) for each in zip(pieces, found, strict=True)]
    if size == n_features:
        span = np.eye(n_features)
    return ScoreMoments(tuple(found), span, _spectrum(_gather(found)))


def _low_orders(piece: ScoreRows) -> PieceMoments:
    """The first two orders; linear terms are taken out of the second."""
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


def _inner_third_order(piece: ScoreRows, found: PieceMoments, span: FloatArray) -> PieceMoments:
    """Add the third order inside the span."""
    quadratic = fit_control_variates(piece.rows, piece.to_whitened(span))
    return replace(found, inner=piece.moments(span, 3, quadratic.residuals))


def _gather(pieces: Sequence[PieceMoments], left_out: int | None = None) -> list[FloatArray]:
    """Moments of all pieces over their standard errors."""
    return [each for piece in pieces for each in piece.with_unit_noise(left_out)]


def _leading_subspace(matrices: list[FloatArray], size: int) -> FloatArray:
    """Leading eigenvectors of G, then steps of higher-order orthogonal iteration.

    A step keeps of every matrix only what lies in the subspace on one side, and so only the noise
    that falls on it.
    """
    basis = np.linalg.eigh(_gram(matrices))[1][:, ::-1][:, :size]
    for _ in range(ORTHOGONAL_ITERATIONS):
        inside = [each if _is_vectors(each) else each @ basis for each in matrices]
        basis = np.linalg.eigh(_gram(inside))[1][:, ::-1][:, :size]
    return np.asarray(basis)


def _is_vectors(matrices: FloatArray) -> bool:
    return bool(matrices.shape[2] == 1 < matrices.shape[1])


def _gram(matrices: list[FloatArray]) -> FloatArray:
    """Sum of A A' over stacks of matrices, (n, d, k)."""
    unfolded = [np.moveaxis(each, 1, 0).reshape(each.shape[1], -1) for each in matrices]
    return np.asarray(sum(each @ each.T for each in unfolded))


def _spectrum(matrices: list[FloatArray]) -> FloatArray:
    r"""Eigenvalues of G over the edge of noise, :math:`(\sqrt N + \sqrt d)^2` for N columns."""
    n_features = matrices[0].shape[1]
    # A symmetric matrix of d columns holds (d + 1)/2 columns of independent entries.
    columns = [1.0 if _is_vectors(each) else (n_features + 1) / 2.0 for each in matrices]
    n_columns = sum(len(each) * number for each, number in zip(matrices, columns, strict=True))
    edge = (np.sqrt(n_columns) + np.sqrt(n_features)) ** 2
    return np.asarray(np.linalg.eigvalsh(_gram(matrices))[::-1] / edge)
