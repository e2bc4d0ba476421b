r"""Moments of all orders: the span of the components, and the stacked tensor inside it.

The range of :math:`G = \sum M M'`, over the whitened functions of the response and the first three
orders, lies in the span of the directions. Of the third order only slices are used, without a
d x d x d array. Each order is divided by the standard error of its entries, so that the eigenvalues
of G can be compared with those of unit noise, by the law of Marchenko and Pastur: the spectrum is
in units of the upper edge.

For a standard Gaussian z the entry of S_m(z) for a multiset t of m variables, variable a taken
k_a times, is the product of :math:`He_{k_a}(z_a)`. Divided by :math:`\sqrt{\prod_a k_a!}` these
Hermite polynomials are orthonormal over all entries and orders. With an orthonormal basis V of the
subspace, the functions of the response are regressed on all polynomials of p = V'z. The expected
coefficients are the moments :math:`E[T_k S_m](V, ..., V)`, and only the residual of the regression
is noise: each order serves as control variates for the others. Under any other density, polynomials
of a degree below m are the control variates of order m.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement, groupby, permutations
from math import factorial, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.moments.sums import (
    Block,
    BlockSums,
    PartSums,
    StackedRows,
    fit_control_variates,
    form_moments,
    form_slices,
    split_pieces,
    transposed,
)
from moment_init.scores.base import Contraction, InputModel

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class HermiteBasis:
    """All normalised Hermite polynomials of k variables up to an order."""

    n_variables: int  # number of variables, k
    max_order: int
    # for each order m from 0, the variables of each entry in ascending order; (q_m, m)
    indices: tuple[IndexArray, ...]
    # for each order, how often an entry occurs in the full tensor; (q_m,)
    multiplicities: tuple[FloatArray, ...]

    @property
    def size(self) -> int:
        """Number of polynomials, q."""
        return sum(len(index) for index in self.indices)

    def columns(self, order: int) -> slice:
        """Return the positions of the polynomials of one order."""
        start = sum(len(index) for index in self.indices[:order])
        return slice(start, start + len(self.indices[order]))

    def evaluate(self, rows: FloatArray) -> FloatArray:
        """Evaluate every polynomial on every row."""
        # rows: (..., n_variables) -> (..., q)
        variables = np.ascontiguousarray(np.moveaxis(rows, -1, 0))
        powers = hermite_polynomials(variables, self.max_order)  # (order + 1, k, ...)
        values = np.empty((self.size, *rows.shape[:-1]))
        values[0] = 1.0
        position: dict[tuple[int, ...], int] = {(): 0}
        entries = (tuple(entry.tolist()) for index in self.indices[1:] for entry in index)
        for column, entry in enumerate(entries, start=1):
            position[entry] = column
            last = entry[-1]
            count = entry.count(last)
            rest = position[entry[:-count]]
            np.multiply(values[rest], powers[count, last], out=values[column])
        return np.moveaxis(values, 0, -1)

    def monomials(self, directions: FloatArray, order: int) -> FloatArray:
        r"""Compute the entries of the normalised power :math:`u^{\otimes m}` of each direction."""
        # directions: (n_variables, r) -> (q_m, r)
        roots = np.sqrt(self.multiplicities[order])
        return np.asarray(roots[:, None] * directions[self.indices[order]].prod(axis=1))

    def monomial_derivatives(self, directions: FloatArray, order: int) -> FloatArray:
        """Differentiate `monomials` in the entries of the directions."""
        # directions: (n_variables, r) -> (q_m, n_variables, r)
        index = self.indices[order]
        roots = np.sqrt(self.multiplicities[order])
        result = np.zeros((len(index), *directions.shape))
        rows = np.arange(len(index))
        for place in range(order):
            others = np.delete(index, place, axis=1)
            terms = roots[:, None] * directions[others].prod(axis=1)
            result[rows, index[:, place]] += terms  # one place at a time: no row is repeated
        return result

    def expand(self, entries: FloatArray, order: int) -> FloatArray:
        r"""Build full symmetric tensors :math:`E[T S_m] / \sqrt{m!}` from distinct entries."""
        # entries: (n_tensors, q_m) -> (n_tensors, n_variables, ..., n_variables)
        result = np.zeros((entries.shape[0], *([self.n_variables] * order)))
        scaled = entries / np.sqrt(self.multiplicities[order])
        for column, entry in enumerate(self.indices[order]):
            for place in set(permutations(entry.tolist())):
                result[(slice(None), *place)] = scaled[:, column]
        return result


@lru_cache(maxsize=32)
def hermite_basis(n_variables: int, max_order: int) -> HermiteBasis:
    """List the polynomials of `n_variables` variables up to an order."""
    indices, multiplicities = [], []
    for order in range(max_order + 1):
        entries = list(combinations_with_replacement(range(n_variables), order))
        indices.append(np.array(entries, dtype=np.intp).reshape(len(entries), order))
        places = [factorial(order) / prod(map(factorial, _counts(entry))) for entry in entries]
        multiplicities.append(np.array(places))
    return HermiteBasis(n_variables, max_order, tuple(indices), tuple(multiplicities))


def hermite_polynomials(points: FloatArray, max_order: int) -> FloatArray:
    r"""Evaluate normalised Hermite polynomials of one variable, :math:`He_m(z) / \sqrt{m!}`."""
    # -> (max_order + 1, *points.shape)
    values = np.empty((max_order + 1, *points.shape))
    values[0] = 1.0
    if max_order > 0:
        values[1] = points
    for order in range(2, max_order + 1):
        previous = sqrt(order - 1) * values[order - 2]
        values[order] = (points * values[order - 1] - previous) / sqrt(order)
    return values


def _counts(entry: tuple[int, ...]) -> Iterator[int]:
    """Count how often each variable occurs in an ascending entry."""
    return (len(list(group)) for _, group in groupby(entry))


# Number of response functions whose slices are formed: those with most signal come first, and each
# costs r Gram matrices of the rows for every piece of a density.
SLICED_FUNCTIONS = 3

# Steps of higher-order orthogonal iteration: each reduces the error by the ratio of noise to
# signal, which is below one half wherever the span can be found at all.
ORTHOGONAL_ITERATIONS = 5

# At the edge of the noise an eigenvector of G is orthogonal to the signal (the transition of Baik,
# Ben Arous and Peche). At one and a half times the edge it is near enough for the refinement, which
# leaves the span: on four data sets (bernoulli, d = 20, 400,000 rows) more rows ended at the same
# maximum.
CLEAR_EIGENVALUE = 1.5

# Eigenvalues above this multiple of the edge count as directions: the largest eigenvalue of pure
# noise fluctuates by a few per cent around the edge (Tracy-Widom), and heavy tails add to that.
COUNTED_EIGENVALUE = 1.2


@dataclass(frozen=True, slots=True, eq=False)
class LowOrders:
    """Moments of the first two orders in all dimensions, for any number of components."""

    pieces: tuple[StackedRows, ...]  # rows whose functions are ordered by their signal
    # matrices with unit noise in coordinates of the frame, for each piece and order;
    # (n_functions, n_features, 1) and (n_functions, n_features, n_features)
    matrices: tuple[FloatArray, ...]

    @property
    def spectrum(self) -> FloatArray:
        """Eigenvalues of G over the edge of their noise, largest first; (n_features,)."""
        return _spectrum(self.matrices)

    @property
    def n_visible(self) -> int:
        """Number of directions that stand out: a lower bound on the number of components."""
        return int(np.sum(self.spectrum > COUNTED_EIGENVALUE))


def form_low_orders(rows: StackedRows, density: InputModel) -> LowOrders:
    """Form the first two orders, three passes per piece; linear parts are subtracted before M_2."""
    pieces, moments = split_pieces(rows, density), []
    for piece in pieces:
        linear = fit_control_variates(piece, np.empty((piece.n_features, 0)))
        moments += [form_moments(piece, 1, None), form_moments(piece, 2, linear)]
    matrices = [_with_unit_noise(each) for each in moments]
    signal = sum(np.einsum("kab,lab->kl", each, each) for each in matrices)
    rotation = np.linalg.eigh(signal)[1][:, ::-1]
    return LowOrders(
        tuple(each.map(replace, function_map=each.function_map @ rotation) for each in pieces),
        tuple(np.einsum("kab,kl->lab", each, rotation) for each in matrices),
    )


@dataclass(frozen=True, slots=True, eq=False)
class InnerMoments:
    """Moments inside the subspace under one piece of the density."""

    basis: HermiteBasis  # the entries of the score tensors of k variables
    # normalised distinct entries of all functions, the constant first; (n_functions, q)
    entries: FloatArray
    deviations: FloatArray  # standard error of an entry of each order; (max_order + 1,)

    def stack(self) -> FloatArray:
        """Stack second moments and all slices of the higher ones, with unit noise."""
        # -> (k, k, n_slices)
        size = self.basis.n_variables
        tensors = [
            self.basis.expand(self.entries[:, self.basis.columns(order)], order) / deviation
            for order, deviation in enumerate(self.deviations)
            if order > 1
        ]
        return np.concatenate(
            [np.moveaxis(each, 0, 2).reshape(size, size, -1) for each in tensors], axis=2
        )


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments under all pieces of the density of the input."""

    pieces: tuple[StackedRows, ...]
    subspace: FloatArray  # orthonormal basis of the span, in the frame; (n_features, k)
    # moments in the frame with unit noise, of which G is the Gram matrix
    matrices: tuple[FloatArray, ...]
    inner: tuple[InnerMoments, ...]  # of each piece

    @property
    def spectrum(self) -> FloatArray:
        """Eigenvalues of G over the edge of their noise, largest first; (n_features,)."""
        return _spectrum(self.matrices)

    @property
    def stack(self) -> FloatArray:
        """Stacked tensor inside the subspace, (k, k, n_slices)."""
        return np.concatenate([each.stack() for each in self.inner], axis=2)

    def outside(self, directions: FloatArray) -> float:
        """Compute the largest eigenvalue of G outside a span, over the edge of its noise there."""
        # directions: whitened, (n_features, n)
        inside = self.pieces[0].frame.T @ directions
        rest = np.linalg.qr(inside, mode="complete")[0][:, inside.shape[1] :]
        if rest.shape[1] == 0:
            return 0.0
        left = [rest.T @ (each if _is_vectors(each) else each @ rest) for each in self.matrices]
        return float(_spectrum(left)[0])

    def lift(self, directions: FloatArray) -> FloatArray:
        """Map directions inside the subspace to unit directions in whitened coordinates."""
        # directions: (k, n_components) -> (n_features, n_components)
        whitened = self.pieces[0].to_whitened(self.subspace @ directions)
        return np.asarray(whitened / np.linalg.norm(whitened, axis=0))


def complete_moments(low: LowOrders, n_components: int, max_order: int) -> Moments:
    """Find the span and form all orders inside it, in at most three further passes per piece."""
    n_features = low.pieces[0].n_features
    size = min(n_components, n_features)
    matrices, evened = list(low.matrices), list(low.matrices)
    if size == n_features:
        span = np.eye(n_features)
    else:
        rough = _leading_subspace(matrices, size)
        for piece in low.pieces:
            quadratic = fit_control_variates(piece, rough)
            n_sliced = min(SLICED_FUNCTIONS, piece.n_functions)
            slices = form_slices(piece, rough, n_sliced, quadratic)
            matrices.append(_with_unit_noise(slices))
            evened.append(_evened(slices, rough))
        span = _leading_subspace(matrices, size)
    inner = tuple(_inner_moments(piece, span, max_order) for piece in low.pieces)
    return Moments(low.pieces, span, tuple(evened), inner)


def _evened(slices: PartSums, thetas: FloatArray) -> FloatArray:
    r"""Divide slices by their noise, which has twice the variance in the row and column of theta.

    For a Gaussian, :math:`He_2(z_1) z_2` has the variance 2 and :math:`z_1 z_2 z_3` has 1.
    """
    shrunk = np.eye(len(thetas)) - (1.0 - np.sqrt(0.5)) * np.einsum("al,bl->lab", thetas, thetas)
    parts = slices.sums.reshape(len(slices.sums), -1, *shrunk.shape)
    even = replace(slices, sums=(shrunk @ parts @ shrunk).reshape(slices.sums.shape))
    return _with_unit_noise(even)


def _inner_moments(rows: StackedRows, span: FloatArray, max_order: int) -> InnerMoments:
    """Regress the functions on polynomials inside the span, and sum the residuals' moments."""
    # span: (n_features, k), in the frame
    basis = hermite_basis(span.shape[1], max_order)
    projection = rows.to_input_units(rows.to_whitened(span))
    contraction = None if rows.is_hermite else rows.contract(span)
    doubles = 3 * rows.n_features + 4 * basis.size + rows.n_functions
    parameters = basis, projection, contraction
    gram, cross, *scored = rows.sum_by_part(_inner_sums, *parameters, doubles=doubles)
    (squares,) = rows.sum_by_part(_squared_weights, doubles=1)
    effective_n = gram[:, 0, 0].sum() ** 2 / squares.sum()  # (Kish); the first is a constant
    # The scores of a Gaussian are the polynomials themselves.
    score_gram, score_cross = scored or (gram, cross)
    weight = rows.part_weights.sum()
    entries, deviations = np.zeros((rows.n_functions, basis.size)), np.ones(max_order + 1)
    for order in range(1, max_order + 1):
        at = basis.columns(order)
        used = slice(0, basis.size if contraction is None else at.start)
        total = gram[:, used, used].sum(axis=0) / weight
        # Few rows leave the matrix singular; its expectation for a Gaussian is the identity.
        share = min(1.0, (total.shape[0] / effective_n) ** 2)
        total = (1.0 - share) * total + share * np.eye(len(total))
        fitted = np.linalg.lstsq(total, cross[:, used].sum(axis=0) / weight, rcond=None)[0]
        rest = PartSums(score_cross[:, at] - score_gram[:, at, used] @ fitted, rows.part_weights)
        # E[q S_m] is the coefficient of a Hermite polynomial, and zero for a lower degree.
        entries[:, at] = (fitted[at] if contraction is None else rest.mean).T
        deviations[order] = rest.deviation
    return InnerMoments(basis, entries, deviations)


def _squared_weights(rows: StackedRows, block: Block) -> BlockSums:
    return (np.square(rows.weights[block]).sum(axis=-1),)


def _inner_sums(
    rows: StackedRows,
    basis: HermiteBasis,
    projection: FloatArray,
    contraction: Contraction | None,
    block: Block,
) -> BlockSums:
    """Sum products of polynomials, and of score functions, with polynomials and functions."""
    polynomials = basis.evaluate(rows.inputs(block) @ projection)
    values, weights = rows.function_values(block), rows.weights[block][..., None]
    weighted = transposed(polynomials * weights)
    sums = weighted @ polynomials, weighted @ values
    if contraction is None:
        return sums
    scores = transposed(_score_entries(rows, contraction, basis, block) * weights)
    return *sums, scores @ polynomials, scores @ values


def _score_entries(
    rows: StackedRows, contraction: Contraction, basis: HermiteBasis, block: Block
) -> FloatArray:
    """Normalised distinct entries of the score tensors of each row, (n_rows, q)."""
    parts = [np.ones_like(rows.weights[block][..., None])]
    for order in range(1, basis.max_order + 1):
        scores = rows.scores(contraction, order, block)
        entries = scores[(..., *basis.indices[order].T)]
        parts.append(entries * np.sqrt(basis.multiplicities[order] / factorial(order)))
    return np.concatenate(parts, axis=-1)


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


def _independent_columns(matrices: FloatArray) -> float:
    """Columns of independent entries: a symmetric matrix holds (d + 1) / 2 of them."""
    return 1.0 if _is_vectors(matrices) else (matrices.shape[1] + 1) / 2.0


def _with_unit_noise(moments: PartSums) -> FloatArray:
    """Scale vectors or matrices so that a row has one unit of noise per independent column.

    The spread between parts is larger along signals. The median of the eigenvalues of its Gram
    matrix is not; vectors are too few for it.
    """
    # -> (n_functions, n_features, 1) or (n_functions, n_features, n_features)
    parts = moments.spread.reshape(*moments.spread.shape[:3], -1)
    n_parts, n_functions, n_features, _ = parts.shape
    rows = np.moveaxis(parts, 2, 0).reshape(n_features, -1)
    values = np.linalg.eigvalsh(rows @ rows.T) / (n_parts * (n_parts - 1))
    matrices = moments.mean.reshape(parts.shape[1:])
    level = float(values.mean() if _is_vectors(matrices) else np.median(values))
    level /= n_functions * _independent_columns(matrices)
    return np.asarray(matrices / np.sqrt(max(level, np.finfo(float).tiny)))


def _gram(matrices: Sequence[FloatArray]) -> FloatArray:
    """Sum A A' over stacks of matrices (n, d, k)."""
    unfolded = [np.moveaxis(each, 1, 0).reshape(each.shape[1], -1) for each in matrices]
    return np.asarray(sum(each @ each.T for each in unfolded))


def _spectrum(matrices: Sequence[FloatArray]) -> FloatArray:
    r"""Divide eigenvalues of G by the noise edge, :math:`(\sqrt N + \sqrt d)^2` for N columns."""
    n_features = matrices[0].shape[1]
    n_columns = sum(len(each) * _independent_columns(each) for each in matrices)
    edge = (np.sqrt(n_columns) + np.sqrt(n_features)) ** 2
    return np.asarray(np.linalg.eigvalsh(_gram(matrices))[::-1] / edge)
