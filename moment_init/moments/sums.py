r"""Sums over rows that the stacked estimate needs, for a Gaussian input.

The first pass whitens the functions of the response and forms their first moments; the second one
forms the second moments. All moments are in whitened coordinates :math:`z = L^{-1}(x - \mu)`, but
rows are never whitened: sums of products of x are, once, at the end. Sums are kept for each of 16
parts of the rows where a jackknife needs them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import (
    N_PARTS,
    RowSource,
    read_block,
    source_of,
    spread_order,
    sums_by_part,
)
from moment_init.data.checking import RegressionData
from moment_init.families.response_functions import ResponseFunctions
from moment_init.scores.base import InputModel

RowIndex = slice | NDArray[np.intp]

# Combinations of the T_k whose eigenvalue in the correlation matrix is below this share of the
# largest are nearly constant. Whitening would multiply them by more than ten, and a single row in
# the tails would then stand out from noise as a direction does.
SMALLEST_FUNCTION_SHARE = 1e-2

# A variance below this share of the mean square is rounding, as it is a difference of two sums.
CONSTANT_SHARE = 1e-12

# Up to this many rows are copied in an order that spreads them evenly over the parts of the
# jackknife, so that each part is one run of rows. With more rows the runs are long enough anyway.
FEW_ROWS = 2**15

# Inputs of up to this many doubles (16 MiB) are copied if they are strided rows of a larger array.
# Up to as many values of the functions are kept between passes.
FEW_DOUBLES = 2**21


@dataclass(frozen=True, slots=True, eq=False)
class StackedRows:
    """Rows with their input model and the functions of their response."""

    X: NDArray[np.generic]  # inputs as they are stored; (n_obs, n_features)
    # response without offset and trials, standardised for the identity link; (n_obs,)
    response: FloatArray
    weights: FloatArray  # weight of each row; (n_obs,)
    mean: FloatArray  # mean of the input; (n_features,)
    # lower triangular L with L L' the covariance of the input; (n_features, n_features)
    factor: FloatArray
    functions: ResponseFunctions  # the functions T_k before whitening
    function_mean: FloatArray  # means of the functions; (n_raw_functions,)
    # maps centred functions to whitened ones, most signal first; (n_raw_functions, n_functions)
    function_map: FloatArray
    # values of the functions before whitening, (n_raw_functions, n_obs); None if they are too many
    raw_values: FloatArray | None = None
    # whether rows are in an order in which every run is a fair sample of all rows
    is_shuffled: bool = False

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def source(self) -> RowSource | None:
        """Source of the rows of a Dask collection; None for arrays."""
        return source_of(self.X)

    @property
    def n_features(self) -> int:
        """Number of columns, d."""
        return int(self.X.shape[1])

    @property
    def n_functions(self) -> int:
        """Number of whitened functions of the response, m."""
        return int(self.function_map.shape[1])

    @property
    def effective_n(self) -> float:
        """Number of equally weighted rows whose mean has the same variance (Kish)."""
        return float(self.weights.sum() ** 2 / np.square(self.weights).sum())

    def inputs(self, rows: RowIndex) -> FloatArray:
        """Return the centred inputs of some rows."""
        # -> (n_rows, n_features)
        return read_block(self.X, rows) - self.mean

    def function_values(self, rows: RowIndex) -> FloatArray:
        """Evaluate the whitened functions of the response on some rows."""
        # -> (n_rows, n_functions)
        values = self.raw_function_values(rows) - self.function_mean
        return np.asarray(values @ self.function_map)

    def raw_function_values(self, rows: RowIndex) -> FloatArray:
        """Evaluate the functions of the response on some rows, before whitening."""
        # -> (n_rows, n_raw_functions)
        if self.raw_values is None:
            return self.functions(self.response[rows])
        return self.raw_values[:, rows].T

    def to_input_units(self, columns: FloatArray) -> FloatArray:
        """Map vectors v in whitened coordinates to w with <w, x - mean> = <v, z>."""
        # columns: (n_features, k) -> (n_features, k)
        return np.asarray(solve_triangular(self.factor, columns, lower=True, trans="T"))

    def whiten(self, columns: FloatArray) -> FloatArray:
        """Map sums of centred inputs to sums of whitened inputs."""
        # columns: (n_features, k) -> (n_features, k)
        return np.asarray(solve_triangular(self.factor, columns, lower=True))


def fit_stacked_rows(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    functions: ResponseFunctions | None = None,
) -> tuple[StackedRows, FloatArray, FloatArray]:
    """Choose and whiten the functions of the response in a first pass over the rows."""
    # response: (n_obs,) or (n_obs, n_responses)
    # -> rows, weights (n_parts,), first-order sums (n_parts, n_functions, n_features)
    functions = functions or data.single_family.fit_response_functions(response)
    raw = _raw_rows(data, input_model, response, functions)
    n_raw, n_features = len(raw.functions.columns), data.n_features

    def sums(rows: slice) -> tuple[FloatArray, ...]:
        x, values, weights = raw.inputs(rows), raw.raw_function_values(rows), raw.weights[rows]
        weighted = values * weights[:, None]
        total, x_sums = np.asarray(weights.sum()), np.dot(weights, x)
        products = np.dot(weighted.T, values), np.dot(weighted.T, x)
        return total, x_sums, weighted.sum(axis=0), *products

    totals, x_sums, value_sums, products, cross = sums_by_part(
        sums,
        raw.n_obs,
        2 * n_features + 2 * n_raw,
        is_shuffled=raw.is_shuffled,
        source=raw.source,
    )
    mean = value_sums.sum(axis=0) / totals.sum()
    covariance = products.sum(axis=0) / totals.sum() - np.outer(mean, mean)
    function_map = _whitening_map(covariance, mean)
    centred = cross - mean[:, None] * x_sums[:, None, :]
    whitened = np.einsum("kfd,fm->kmd", centred, function_map)
    first = raw.whiten(whitened.reshape(-1, n_features).T).T.reshape(whitened.shape)
    rows = replace(raw, function_mean=mean, function_map=function_map)
    return rows, totals, first


def _raw_rows(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    functions: ResponseFunctions,
) -> StackedRows:
    """Prepare rows whose functions are not whitened yet; few rows are spread evenly."""
    n_raw = len(functions.columns)
    X, weights = data.X, data.sample_weight
    is_shuffled = data.n_obs <= FEW_ROWS and X.size <= FEW_DOUBLES
    if is_shuffled:
        order = spread_order(data.n_obs)
        X, weights, response = read_block(X, order), weights[order], response[order]
    elif X.size <= FEW_DOUBLES and source_of(X) is None:
        X = np.ascontiguousarray(X)
        weights, response = np.ascontiguousarray(weights), np.ascontiguousarray(response)
    is_kept = n_raw * data.n_obs <= FEW_DOUBLES and source_of(X) is None
    return StackedRows(
        X=X,
        response=response,
        weights=weights,
        mean=input_model.mean_,
        factor=input_model.standardising_basis,
        functions=functions,
        function_mean=np.zeros(n_raw),
        function_map=np.eye(n_raw),
        raw_values=np.ascontiguousarray(functions(response).T) if is_kept else None,
        is_shuffled=is_shuffled,
    )


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


BlockSums = tuple[FloatArray, ...]

# Size of the sums, one d x d matrix per part of the rows and function, that are held at a time:
# 2**22 doubles are 32 MiB. Above it, each pass over the rows handles a group of functions.
GRAM_DOUBLES = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class LowOrders:
    r"""Moments of the first two orders in all dimensions, for any number of components."""

    rows: StackedRows  # rows whose functions are ordered by their signal
    part_weights: FloatArray  # sum of the weights in each part of the rows; (n_parts,)
    first_sums: FloatArray  # sums of T_k z; (n_parts, n_functions, n_features)
    # E[T_k S_2] without the linear part of T_k; (n_functions, n_features, n_features)
    second: FloatArray
    # sampling noise of sum_k M_1 M_1' + M_2 M_2'/2, estimated between parts;
    # (n_features, n_features)
    noise: FloatArray

    @property
    def first(self) -> FloatArray:
        """The moments E[T_k z], shape (n_functions, n_features)."""
        return np.asarray(self.first_sums.sum(axis=0) / self.part_weights.sum())

    @property
    def linear_map(self) -> FloatArray:
        """Linear part of each function as a function of x - mean, (n_features, n_functions)."""
        return self.rows.to_input_units(self.first.T)


def sum_low_orders(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    functions: ResponseFunctions | None = None,
) -> LowOrders:
    r"""Form the first and second moments of every function in two passes over the rows.

    The linear part of a function is subtracted before its second moment is formed. Since
    E[q S_2] = 0 for every linear q, this keeps the expectation and removes much of the noise. The
    functions are then rotated so that those with most signal come first.
    """
    # response: (n_obs,) or (n_obs, n_responses)
    rows, part_weights, first_sums = fit_stacked_rows(data, input_model, response, functions)
    total = part_weights.sum()
    first = first_sums.sum(axis=0) / total
    linear_map = rows.to_input_units(first.T)

    def residuals(block: slice, x: FloatArray) -> tuple[FloatArray, BlockSums]:
        return rows.function_values(block) - x @ linear_map, ()

    n_functions, n_features = rows.n_functions, rows.n_features
    second = np.empty((n_functions, n_features, n_features))
    spread = first_sums / part_weights[:, None, None] - first
    noise = np.einsum("kma,kmb->ab", spread, spread)
    for part in score_sums(rows, residuals, n_functions, n_functions):
        second[part.columns] = part.sums.sum(axis=0) / total
        spread = part.sums / part_weights[:, None, None, None] - second[part.columns]
        unfolded = spread.reshape(-1, n_features)  # M M' = M' M: every part is symmetric
        noise += unfolded.T @ unfolded / 2.0
    noise /= N_PARTS * (N_PARTS - 1)
    signal = first @ first.T + np.einsum("kab,lab->kl", second, second) / 2.0
    rotation = np.linalg.eigh(signal)[1][:, ::-1]
    return LowOrders(
        rows=replace(rows, function_map=rows.function_map @ rotation),
        part_weights=part_weights,
        first_sums=np.einsum("kmd,mf->kfd", first_sums, rotation),
        second=np.einsum("mab,mf->fab", second, rotation),
        noise=noise,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ScoreSums:
    """Sums of some columns times S_2(z)."""

    columns: slice  # the columns that were summed
    # sums over each part of the rows; (n_parts, n_columns, n_features, n_features)
    sums: FloatArray
    others: BlockSums  # other sums over all rows, formed in the same pass


def score_sums(
    rows: StackedRows,
    columns: Callable[[slice, FloatArray], tuple[FloatArray, BlockSums]],
    n_columns: int,
    doubles_per_row: int,
) -> Iterator[ScoreSums]:
    """Sum columns times S_2(z), with as many columns per pass as memory allows."""
    n_features = rows.n_features
    inverse_factor = rows.whiten(np.eye(n_features))
    group_size = max(1, GRAM_DOUBLES // (N_PARTS * n_features**2))
    for start in range(0, n_columns, group_size):
        group = slice(start, min(start + group_size, n_columns))

        def sums(block: slice, group: slice = group) -> BlockSums:
            x = rows.inputs(block)
            values, others = columns(block, x)
            weighted = np.ascontiguousarray(values[:, group].T) * rows.weights[block]
            # One product for all columns: BLAS is slow on matrices of few rows.
            products = weighted[:, None, :] * np.ascontiguousarray(x.T)
            grams = np.dot(products.reshape(-1, len(x)), x)
            return grams.reshape(-1, n_features, n_features), weighted.sum(axis=1), *others

        width = group.stop - group.start
        doubles = (3 + width) * n_features + n_columns + doubles_per_row
        grams, totals, *others = sums_by_part(
            sums, rows.n_obs, doubles, is_shuffled=rows.is_shuffled, source=rows.source
        )
        whitened = inverse_factor @ grams @ inverse_factor.T
        yield ScoreSums(
            columns=group,
            sums=whitened - totals[:, :, None, None] * np.eye(n_features),
            others=tuple(other.sum(axis=0) for other in others),
        )
