r"""Sums over rows that the stacked estimator is made of, for a Gaussian input.

All moments are in whitened coordinates :math:`z = L^{-1}(x - \mu)`, but rows are never whitened:
sums of products of x are, once, at the end. Sums are kept for each of 16 parts of the rows where
a jackknife needs them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import N_PARTS, sums_by_part
from moment_init.data import RegressionData
from moment_init.families.response_functions import ResponseFunctions
from moment_init.scores import InputModel
from moment_init.stacked.rows import StackedRows, fit_stacked_rows

__all__ = ["BlockSums", "LowOrders", "ScoreSums", "score_sums", "sum_low_orders"]

FloatArray = NDArray[np.float64]
BlockSums = tuple[FloatArray, ...]

# Sums of d x d matrices, one for each part of the rows and each function, held at a time: 2**22
# doubles are 32 MiB. Beyond that functions go over the rows in groups.
GRAM_DOUBLES = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class LowOrders:
    r"""Moments of the first two orders in all dimensions; they serve any number of components.

    Parameters
    ----------
    rows : StackedRows
        The rows, with functions ordered by their signal.
    part_weights : numpy.ndarray, shape (n_parts,)
        Sum of the weights in each part of the rows.
    first_sums : numpy.ndarray, shape (n_parts, n_functions, n_features)
        Sums of :math:`T_k z`.
    second : numpy.ndarray, shape (n_functions, n_features, n_features)
        :math:`E[T_k S_2]`, the linear part of :math:`T_k` taken out first.
    noise : numpy.ndarray, shape (n_features, n_features)
        Sampling noise of :math:`\sum_k M_1 M_1' + M_2 M_2'/2`, from the spread between parts.
    """

    rows: StackedRows
    part_weights: FloatArray
    first_sums: FloatArray
    second: FloatArray
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
    r"""Moments of the first and second order of every function; two passes over the rows.

    The linear part of a function is taken out before its second moment is formed: E[q S_2] = 0 for
    every linear q, so that the expectation stays and much of the noise goes. The functions are
    then rotated so that those with most signal come first.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : InputModel
        Fitted density of the input.
    response : numpy.ndarray, shape (n_obs,) or (n_obs, n_responses)
        Response without offset and trials, standardised for the identity link.
    functions : ResponseFunctions, optional
        Functions of the response; the family's by default.

    Returns
    -------
    LowOrders
        The moments.
    """
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
    """Sums of some columns times S_2(z).

    Parameters
    ----------
    columns : slice
        Which of the columns.
    sums : numpy.ndarray, shape (n_parts, n_columns, n_features, n_features)
        The sums over each part of the rows.
    others : tuple of numpy.ndarray
        Other sums over all rows that were formed on the way.
    """

    columns: slice
    sums: FloatArray
    others: BlockSums


def score_sums(
    rows: StackedRows,
    columns: Callable[[slice, FloatArray], tuple[FloatArray, BlockSums]],
    n_columns: int,
    doubles_per_row: int,
) -> Iterator[ScoreSums]:
    """Sum columns times S_2(z), as many columns in a pass as memory allows.

    Parameters
    ----------
    rows : StackedRows
        The rows.
    columns : callable
        Maps a slice of rows and their centred inputs to the columns, (n_rows, n_columns), and to
        other sums over these rows.
    n_columns : int
        Number of columns.
    doubles_per_row : int
        How many doubles the callable derives from one row.

    Yields
    ------
    ScoreSums
        The sums of a group of columns.
    """
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
