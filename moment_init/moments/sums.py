r"""Rows with functions of their response, and sums over them of the score functions of the input.

All moments are in whitened coordinates :math:`z = L^{-1}(x - \mu)`, but rows are never whitened.
Sums are kept for each of 16 parts of the rows: their spread is the noise of the moments. Every pass
over the rows is a function of parameters and a block.

A mixture density, :math:`p = \sum_k \pi_k p_k`, has one set of moments for each of its pieces,

.. math:: E[\gamma_k T S_m^{(k)}] = \pi_k E_k[\nabla^m E[T \mid x]], \quad \gamma_k = \pi_k p_k / p,

each with the directions as its components. The clusters are thus not averaged, and each has its
own control variates: polynomials q of the input, for which :math:`E[q S_m] = 0` if their degree is
below m.

The noise of the moments is larger where the score varies more, :math:`J = E[S_1 S_1'] \ge I`.
Moments are contracted with :math:`J^{-1/2}`, the frame, in which it is the same in all directions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import (
    N_PARTS,
    Rows,
    read_block,
    spread_order,
    sums_of_parts,
)
from moment_init.data.checking import RegressionData
from moment_init.families.response_functions import ROWS_FOR_CHOICE, AnyFunctions
from moment_init.scores.base import SMALLEST_PIECE, Contraction, InputModel
from moment_init.scores.choosing import EstimationProblem

BlockSums = tuple[FloatArray, ...]
Block = slice | EllipsisType  # a block of rows, or of parts with all their rows

# Combinations of the T_k whose eigenvalue in the correlation matrix is below this share of the
# largest are nearly constant. Whitening would multiply them by more than ten, and a single row in
# the tails would then stand out from noise as a direction does.
SMALLEST_FUNCTION_SHARE = 1e-2

# A variance below this share of the mean square is rounding, as it is a difference of two sums.
CONSTANT_SHARE = 1e-12

# Up to this many rows are copied, spread evenly over the parts and with one axis for the parts, so
# that one call sums all parts. With more rows, the time of a call no longer matters.
FEW_ROWS = 2**15

# Inputs of up to this many doubles (16 MiB) are copied if they are strided rows of a larger array.
# Up to as many values of the functions are kept between passes.
FEW_DOUBLES = 2**21

# Largest score tensor of a row that is formed, so that one evaluation serves all functions of the
# response. Above this size each function is summed separately, without tensors.
MOST_ENTRIES = 512

# Rows per block when the probabilities of the pieces are computed.
SHARED_ROWS = 2**14

# Rows from which the frame is estimated; it need not be exact.
FRAME_ROWS = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class PartSums:
    """A moment as sums over each part of the rows."""

    sums: FloatArray  # sums over the rows of each part; (n_parts, ...)
    part_weights: FloatArray  # sum of the weights in each part; (n_parts,)

    @property
    def mean(self) -> FloatArray:
        """The moment."""
        return np.asarray(self.sums.sum(axis=0) / self.part_weights.sum())

    @property
    def spread(self) -> FloatArray:
        """Differences of the parts' moments from that of all rows, (n_parts, ...)."""
        shape = (len(self.sums), *([1] * (self.sums.ndim - 1)))
        return np.asarray(self.sums / self.part_weights.reshape(shape) - self.mean)

    @property
    def variances(self) -> FloatArray:
        """Sampling variance of every entry of the moment."""
        return np.asarray(np.square(self.spread).mean(axis=0) / (len(self.sums) - 1))

    @property
    def deviation(self) -> float:
        """Standard error of an entry of the moment, the root mean square over its entries."""
        return float(np.sqrt(max(self.variances.mean(), np.finfo(float).tiny)))


@dataclass(frozen=True, slots=True, eq=False)
class StackedRows(Rows):
    """Rows with one piece of the density of their input and the functions of their response.

    Few rows have an axis of parts, (n_parts, n_rows) where it says (n_obs,): they are spread over
    the parts, and rows of weight zero fill them up.
    """

    X: NDArray[np.generic]  # inputs as they are stored; (n_obs, n_features)
    # response without offset and trials, standardised for the identity link; (n_obs,) or
    # (n_obs, n_responses)
    response: FloatArray
    weights: FloatArray  # weight of each row, times the probability of the piece; (n_obs,)
    mean: FloatArray  # mean of the input; (n_features,)
    # lower triangular L with L L' the covariance of the input; (n_features, n_features)
    factor: FloatArray
    functions: AnyFunctions  # the functions T_k before whitening
    function_mean: FloatArray  # means of the functions; (n_raw_functions,)
    # maps centred functions to whitened ones; (n_raw_functions, n_functions)
    function_map: FloatArray
    part_weights: FloatArray  # sum of the weights, over all pieces, in each part; (n_parts,)
    density: InputModel  # density of the piece
    # whether it is the Gaussian that whitens the rows: its scores are then Hermite polynomials
    is_hermite: bool
    # whitened vectors with which the moments are contracted; (n_features, n_features)
    frame: FloatArray
    # values of the functions before whitening, (n_obs, n_raw_functions); None if they are too many
    raw_values: FloatArray | None = None

    common = (
        "mean", "factor", "functions", "function_mean", "function_map", "part_weights", "density",
        "is_hermite", "frame", "n_features", "n_functions", "contract", "to_input_units",
        "to_whitened",
    )  # fmt: skip

    @property
    def n_obs(self) -> int:
        """Number of rows, or of parts."""
        return len(self.X)

    @property
    def sample_weight(self) -> FloatArray:  # type: ignore[override]
        """Weight of each row in the sums."""
        return self.weights

    @property
    def has_parts(self) -> bool:
        """Whether the rows have an axis of parts."""
        return self.X.ndim == 3

    @property
    def n_features(self) -> int:
        """Number of columns, d."""
        return int(self.X.shape[-1])

    @property
    def n_functions(self) -> int:
        """Number of whitened functions of the response, m."""
        return int(self.function_map.shape[1])

    def inputs(self, block: Block) -> FloatArray:
        """Return the centred inputs of some rows."""
        # -> (n_rows, n_features)
        return read_block(self.X, block) - self.mean

    def function_values(self, block: Block) -> FloatArray:
        """Evaluate the whitened functions of the response on some rows."""
        # -> (n_rows, n_functions)
        values = self.raw_function_values(block) - self.function_mean
        return np.asarray(values @ self.function_map)

    def raw_function_values(self, block: Block) -> FloatArray:
        """Evaluate the functions of the response on some rows, before whitening."""
        # -> (n_rows, n_raw_functions)
        if self.raw_values is not None:
            return self.raw_values[block]
        response, shape = self.response[block], self.weights[block].shape
        flat = response.reshape(-1, *response.shape[len(shape) :])
        return self.functions(flat).reshape(*shape, -1)

    def to_input_units(self, columns: FloatArray) -> FloatArray:
        """Map vectors v in whitened coordinates to w with <w, x - mean> = <v, z>."""
        # columns: (n_features, k) -> (n_features, k)
        return np.asarray(solve_triangular(self.factor, columns, lower=True, trans="T"))

    def to_whitened(self, columns: FloatArray) -> FloatArray:
        """Map components of the moments from the frame to whitened vectors."""
        # columns: (n_features, k) -> (n_features, k)
        return np.asarray(np.linalg.solve(self.frame.T, columns))

    def contract(self, basis: FloatArray) -> Contraction:
        """Contract the score functions with a basis in the frame."""
        # basis: (n_features, k)
        return self.density.contract(self.factor @ self.frame @ basis)

    def scores(self, contraction: Contraction, order: int, block: Block) -> FloatArray:
        """Evaluate contracted score tensors of some rows."""
        # -> (n_rows, k, ..., k)
        inputs = read_block(self.X, block)
        tensors = contraction.score(inputs.reshape(-1, self.n_features), order)
        return tensors.reshape(*inputs.shape[:-1], *tensors.shape[1:])

    def take(self, index: NDArray[np.intp] | slice) -> "StackedRows":
        """Select rows."""
        return replace(
            self,
            X=self.X[index],
            response=self.response[index],
            weights=self.weights[index],
            raw_values=None if self.raw_values is None else self.raw_values[index],
        )

    def sum_by_part(
        self, function: Callable[..., BlockSums], *parameters: Any, doubles: int
    ) -> BlockSums:
        """Sum a function of a block over each part of the rows."""
        if self.has_parts:
            of_parts = partial(function, self, *parameters)
            return sums_of_parts(of_parts, self.weights.shape[1], doubles)
        return super(StackedRows, self).sum_by_part(function, *parameters, doubles=doubles)


def fit_stacked_rows(problem: EstimationProblem) -> StackedRows:
    """Choose the functions of the response, and whiten them in a first pass over the rows."""
    raw = _raw_rows(problem)
    n_raw = len(raw.function_mean)
    totals, sums, products = raw.sum_by_part(_function_sums, doubles=2 * n_raw + 2)
    mean = sums.sum(axis=0) / totals.sum()
    covariance = products.sum(axis=0) / totals.sum() - np.outer(mean, mean)
    function_map = _whitening_map(covariance, mean)
    return raw.map(replace, function_mean=mean, function_map=function_map, part_weights=totals)


def _function_sums(rows: StackedRows, block: Block) -> BlockSums:
    """Sum weights, functions and their products."""
    values, weights = rows.raw_function_values(block), rows.weights[block]
    weighted = values * weights[..., None]
    return weights.sum(axis=-1), weighted.sum(axis=-2), transposed(weighted) @ values


def transposed(rows: FloatArray) -> FloatArray:
    """Exchange the axes of rows and columns."""
    return rows.swapaxes(-1, -2)


def _raw_rows(problem: EstimationProblem) -> StackedRows:
    """Prepare rows whose functions are not whitened yet; few rows get an axis of parts."""
    data, n_obs = problem.data, problem.data.n_obs
    functions = choose_functions(data)
    rows = data.map(_plain_rows, problem.input_model, functions)
    if n_obs * data.n_features > FEW_DOUBLES:
        return rows
    few = _in_parts if n_obs <= FEW_ROWS else _contiguous
    X, weights, response = few(rows.X, rows.weights, rows.response)
    rows = replace(rows, X=X, weights=weights, response=response)
    is_kept = len(functions.columns) * n_obs <= FEW_DOUBLES
    return replace(rows, raw_values=rows.raw_function_values(...)) if is_kept else rows


def choose_functions(data: RegressionData) -> AnyFunctions:
    """Choose the functions of the response, by their means over all rows and some rows."""
    bases, doubles = data.family.response_bases, 2 * len(data.family.members)
    zeros = np.zeros(len(bases))
    (means,) = data.sum(_transformed_sums, zeros, 1, doubles=doubles)
    means = means / data.n_obs
    (squares,) = data.sum(_transformed_sums, means, 2, doubles=doubles)
    units = list(zip(means.tolist(), np.sqrt(squares / data.n_obs).tolist(), strict=True))
    some = data.thin(data.n_obs // ROWS_FOR_CHOICE)
    return data.family.fit_response_functions(np.asarray(some.response), units)


def _transformed_sums(
    data: RegressionData, means: FloatArray, power: int, block: slice
) -> BlockSums:
    """Sum transformed responses, or the squares of their deviations from given means."""
    bases = data.family.response_bases
    response = np.asarray(data.response)[block].reshape(-1, max(1, len(bases)))
    values = [basis.transform(response[:, index]) for index, basis in enumerate(bases)]
    if power == 1:
        return (np.array([value.sum() for value in values]),)
    pairs = zip(values, means, strict=True)
    return (np.array([np.square(value - mean).sum() for value, mean in pairs]),)


def _plain_rows(
    data: RegressionData, input_model: InputModel, functions: AnyFunctions
) -> StackedRows:
    """Rows whose functions are not whitened."""
    n_raw = len(functions.columns)
    return StackedRows(
        X=data.X,
        response=np.asarray(data.response),
        weights=data.sample_weight,
        mean=input_model.mean_,
        factor=input_model.standardising_basis,
        functions=functions,
        function_mean=np.zeros(n_raw),
        function_map=np.eye(n_raw),
        part_weights=np.empty(0),
        density=input_model,
        is_hermite=True,
        frame=np.eye(data.n_features),
    )


def _contiguous(*columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return tuple(np.ascontiguousarray(column) for column in columns)


def _in_parts(
    X: NDArray[np.generic], weights: FloatArray, response: FloatArray
) -> tuple[NDArray[Any], ...]:
    """Spread rows evenly over the parts; parts with a row less get one of weight zero."""
    bounds = len(X) * np.arange(N_PARTS + 1) // N_PARTS
    places = bounds[:-1, None] + np.arange(np.diff(bounds).max())
    is_real = places < bounds[1:, None]
    index = spread_order(len(X))[np.where(is_real, places, 0)]
    return read_block(X, index), np.where(is_real, weights[index], 0.0), response[index]


def _whitening_map(covariance: FloatArray, mean: FloatArray) -> FloatArray:
    """Find W with W' C W = I, without nearly constant combinations of the functions."""
    variances = np.diag(covariance)
    # The variance of a constant function is rounding, of either sign: such functions are left out.
    varies = variances > CONSTANT_SHARE * (np.maximum(variances, 0.0) + mean**2)
    deviations = np.sqrt(np.where(varies, variances, 1.0))
    shared = np.where(np.outer(varies, varies), covariance, 0.0)
    correlation = shared / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(correlation)
    is_kept = values > SMALLEST_FUNCTION_SHARE * values[-1]
    return np.asarray(vectors[:, is_kept] / np.sqrt(values[is_kept]) / deviations[:, None])


def split_pieces(rows: StackedRows, density: InputModel) -> tuple[StackedRows, ...]:
    """Weight the rows for each piece of a density, and find the frame of all pieces."""
    if density is rows.density:  # the Gaussian, whose J is the identity
        return (rows,)
    rows = rows.whole("`input_model` must be 'gaussian' without `polish`, or with many columns,")
    shares = _piece_shares(rows, density)
    pieces = [
        replace(rows, density=piece, is_hermite=False, weights=share * rows.weights)
        for piece, share in zip(density.pieces, shares, strict=True)
    ]
    total = float(rows.weights.sum())
    pieces = [piece for piece in pieces if piece.weights.sum() > SMALLEST_PIECE * total]
    frame = _even_frame(pieces)
    return tuple(replace(piece, frame=frame) for piece in pieces)


def _piece_shares(rows: StackedRows, density: InputModel) -> FloatArray:
    """Compute the posterior probabilities of the pieces by blocks; (n_pieces, n_obs)."""
    shape = rows.weights.shape
    if len(density.pieces) == 1:
        return np.ones((1, *shape))
    X = rows.X.reshape(-1, rows.n_features) if rows.has_parts else rows.X
    shares = [
        density.piece_shares(read_block(X, slice(start, start + SHARED_ROWS)))
        for start in range(0, len(X), SHARED_ROWS)
    ]
    return np.concatenate(shares).T.reshape(-1, *shape)


def _even_frame(pieces: list[StackedRows]) -> FloatArray:
    """Estimate J^(-1/2) from some rows, where J is the variance of the whitened first score."""
    n_obs = pieces[0].weights.size
    some = (..., slice(None, None, max(1, n_obs // FRAME_ROWS)))
    variance, total = np.zeros_like(pieces[0].frame), 0.0
    for piece in pieces:
        weights = piece.weights[some].ravel()
        inputs = read_block(piece.X[(*some, slice(None))], ...).reshape(len(weights), -1)
        scores = piece.density.contract(piece.factor).score(inputs, 1)
        variance += (scores.T * weights) @ scores
        total += weights.sum()
    values, vectors = np.linalg.eigh(variance / total)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


@dataclass(frozen=True, slots=True, eq=False)
class ControlVariates:
    """Polynomials of the input that are subtracted from the functions of the response."""

    # vectors w whose projections <w, x - mean> have their squares and products among the
    # polynomials; without columns there are no quadratic terms; (n_features, k)
    projection: FloatArray
    # least-squares coefficients of constant, linear and quadratic terms,
    # (1 + n_features + k (k + 1) / 2, n_functions)
    coefficients: FloatArray

    def residuals(self, rows: StackedRows, block: Block) -> FloatArray:
        """Subtract the polynomials from the functions."""
        # -> (n_rows, n_functions)
        features = _polynomials(rows, self.projection, block)
        return np.asarray(rows.function_values(block) - features @ self.coefficients)


def fit_control_variates(rows: StackedRows, basis: FloatArray) -> ControlVariates:
    """Regress the functions of the response on polynomials of the input, in one pass."""
    # basis: (n_features, k), in the frame
    projection = rows.to_input_units(rows.to_whitened(basis))
    size = 1 + rows.n_features + basis.shape[1] * (basis.shape[1] + 1) // 2
    doubles = 2 * size + rows.n_functions
    sums = rows.sum_by_part(_regression_sums, projection, doubles=doubles)
    gram, cross = (part.sum(axis=0) for part in sums)
    units = np.sqrt(np.diag(gram))  # columns may have any units
    scaled = np.linalg.lstsq(gram / np.outer(units, units), cross / units[:, None], rcond=None)[0]
    return ControlVariates(projection, scaled / units[:, None])


def _regression_sums(rows: StackedRows, projection: FloatArray, block: Block) -> BlockSums:
    """Sum products of polynomials with each other and with the functions."""
    features = _polynomials(rows, projection, block)
    weighted = transposed(features * rows.weights[block][..., None])
    return weighted @ features, weighted @ rows.function_values(block)


def _polynomials(rows: StackedRows, projection: FloatArray, block: Block) -> FloatArray:
    """Return constant, centred inputs and products of projections; (n_rows, size)."""
    x = rows.inputs(block)
    projected = x @ projection
    first, second = np.triu_indices(projection.shape[1])
    products = projected[..., first] * projected[..., second]
    return np.concatenate([np.ones_like(x[..., :1]), x, products], axis=-1)


def form_moments(rows: StackedRows, order: int, variates: ControlVariates | None) -> PartSums:
    """Compute the moments E[(T_k - q_k) S_m] of the first or second order in all dimensions."""
    entries = rows.n_features**order
    contraction = rows.contract(np.eye(rows.n_features))
    doubles = 4 * rows.n_features + min(entries, MOST_ENTRIES) + 2 * rows.n_functions
    sums = rows.sum_by_part(_score_sums, contraction, order, variates, doubles=doubles)
    return PartSums(sums[0], rows.part_weights)


def _score_sums(
    rows: StackedRows,
    contraction: Contraction,
    order: int,
    variates: ControlVariates | None,
    block: Block,
) -> BlockSums:
    """Sum functions times score tensors."""
    values = rows.function_values(block) if variates is None else variates.residuals(rows, block)
    weighted = transposed(values * rows.weights[block][..., None])
    shape = (*weighted.shape[:-1], *[rows.n_features] * order)
    if rows.n_features**order > MOST_ENTRIES:
        sums = _sum_each(lambda x, w: contraction.sum_score(x, w, order), rows, weighted, block)
        return (sums.reshape(shape),)
    scores = rows.scores(contraction, order, block)
    return ((weighted @ scores.reshape(*scores.shape[: rows.weights.ndim], -1)).reshape(shape),)


def _sum_each(
    sum_one: Callable[[FloatArray, FloatArray], FloatArray],
    rows: StackedRows,
    weighted: FloatArray,
    block: Block,
) -> FloatArray:
    """Sum scores with each function's weights, without tensors of rows."""
    # weighted: (..., n_functions, n_rows)
    inputs = read_block(rows.X, block)
    parts = zip(inputs, weighted, strict=True) if rows.has_parts else [(inputs, weighted)]
    return np.stack([[sum_one(x, np.ascontiguousarray(w)) for w in part] for x, part in parts])


def form_slices(
    rows: StackedRows, thetas: FloatArray, n_functions: int, variates: ControlVariates
) -> PartSums:
    r"""Compute slices :math:`E[(T_k - q_k) S_3](I, I, \theta_l)` of the first functions."""
    # thetas: (n_features, n_slices)
    contraction = rows.contract(np.eye(rows.n_features))
    doubles = (3 + thetas.shape[1]) * rows.n_features
    parameters = contraction, thetas, n_functions, variates
    sums = rows.sum_by_part(_slice_sums, *parameters, doubles=doubles)
    return PartSums(sums[0], rows.part_weights)


def _slice_sums(
    rows: StackedRows,
    contraction: Contraction,
    thetas: FloatArray,
    n_functions: int,
    variates: ControlVariates,
    block: Block,
) -> BlockSums:
    """Sum functions times slices of the third score."""
    values = variates.residuals(rows, block)[..., :n_functions]
    weighted = transposed(values * rows.weights[block][..., None])
    shape = (*weighted.shape[:-2], -1, rows.n_features, rows.n_features)
    if not rows.is_hermite or rows.n_features**2 > MOST_ENTRIES:
        sums = _sum_each(lambda x, w: contraction.sum_slices(x, w, thetas), rows, weighted, block)
        return (sums.reshape(shape),)
    # S_3(I, I, theta) = <z, theta> S_2 - z theta' - theta z'
    first, second = (rows.scores(contraction, order, block) for order in (1, 2))
    along = weighted[..., None, :] * transposed(first @ thetas)[..., None, :, :]
    along = along.reshape(*weighted.shape[:-2], -1, weighted.shape[-1])
    slices = (along @ second.reshape(*first.shape[:-1], -1)).reshape(shape)
    mixed = np.einsum("...ka,bl->...klab", weighted @ first, thetas).reshape(shape)
    return (slices - mixed - transposed(mixed),)
