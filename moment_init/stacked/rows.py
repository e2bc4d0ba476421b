"""Rows as the stacked sums read them: centred inputs and whitened functions of the response."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.blocks import RowSource, read_block, source_of, sums_by_part
from moment_init.data import RegressionData
from moment_init.families.response_functions import ResponseFunctions
from moment_init.row_samples import spread_order
from moment_init.scores import InputModel

__all__ = ["StackedRows", "fit_stacked_rows"]

FloatArray = NDArray[np.float64]
RowIndex = slice | NDArray[np.intp]

# Eigenvalues of the correlation matrix of the T_k below this share of the largest are directions in
# which the functions are nearly constant: whitened they would be blown up by more than ten, and a
# single row of the tails would then stand out of the noise of all others as a direction does.
SMALLEST_FUNCTION_SHARE = 1e-2

# Share of its mean square below which the variance of a function, a difference of sums over rows,
# is their rounding.
CONSTANT_SHARE = 1e-12

# So many rows are copied in an order that spreads them evenly over the parts of a jackknife, which
# are then single runs of rows; with more rows the several runs of each part are long enough.
FEW_ROWS = 2**15

# Inputs of so many doubles (16 MiB), if every so manieth row of a larger array, are copied too; as
# many values of the functions are kept between passes.
FEW_DOUBLES = 2**21


@dataclass(frozen=True, slots=True, eq=False)
class StackedRows:
    """Rows with their input model and the functions of their response.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        Inputs as they are stored.
    response : numpy.ndarray, shape (n_obs,)
        Response without offset and trials, standardised for the identity link.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    mean : numpy.ndarray, shape (n_features,)
        Mean of the input.
    factor : numpy.ndarray, shape (n_features, n_features)
        Lower triangular L with L L' the covariance of the input.
    functions : ResponseFunctions
        The functions T_k before whitening.
    function_mean : numpy.ndarray, shape (n_raw_functions,)
        Their means.
    function_map : numpy.ndarray, shape (n_raw_functions, n_functions)
        Turns centred functions into whitened ones, those with most signal first.
    raw_values : numpy.ndarray, shape (n_raw_functions, n_obs), or None
        Values of the functions before whitening, where they are few enough to keep.
    is_shuffled : bool
        Whether the rows are in an order in which every run is a fair sample of all.
    """

    X: NDArray[np.generic]
    response: FloatArray
    weights: FloatArray
    mean: FloatArray
    factor: FloatArray
    functions: ResponseFunctions
    function_mean: FloatArray
    function_map: FloatArray
    raw_values: FloatArray | None = None
    is_shuffled: bool = False

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def source(self) -> RowSource | None:
        """Where the rows are, if not in memory."""
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
        """Centred inputs of some rows.

        Parameters
        ----------
        rows : slice or numpy.ndarray of int
            The rows.

        Returns
        -------
        numpy.ndarray, shape (n_rows, n_features)
            x - mean, in the units of X.
        """
        return read_block(self.X, rows) - self.mean

    def function_values(self, rows: RowIndex) -> FloatArray:
        """Whitened functions of the response of some rows.

        Parameters
        ----------
        rows : slice or numpy.ndarray of int
            The rows.

        Returns
        -------
        numpy.ndarray, shape (n_rows, n_functions)
            Values with mean zero and identity covariance over all rows.
        """
        values = self.raw_function_values(rows) - self.function_mean
        return np.asarray(values @ self.function_map)

    def raw_function_values(self, rows: RowIndex) -> FloatArray:
        """Functions of the response of some rows before whitening.

        Parameters
        ----------
        rows : slice or numpy.ndarray of int
            The rows.

        Returns
        -------
        numpy.ndarray, shape (n_rows, n_raw_functions)
            The values; not to be written to.
        """
        if self.raw_values is None:
            return self.functions(self.response[rows])
        return self.raw_values[:, rows].T

    def to_input_units(self, columns: FloatArray) -> FloatArray:
        """Turn vectors v of whitened coordinates into w with <w, x - mean> = <v, z>.

        Parameters
        ----------
        columns : numpy.ndarray, shape (n_features, k)
            The vectors v.

        Returns
        -------
        numpy.ndarray, shape (n_features, k)
            The vectors w.
        """
        return np.asarray(solve_triangular(self.factor, columns, lower=True, trans="T"))

    def whiten(self, columns: FloatArray) -> FloatArray:
        """Turn sums of centred inputs into sums of whitened ones.

        Parameters
        ----------
        columns : numpy.ndarray, shape (n_features, k)
            Sums of x - mean, weighted in any way.

        Returns
        -------
        numpy.ndarray, shape (n_features, k)
            The same sums of z.
        """
        return np.asarray(solve_triangular(self.factor, columns, lower=True))


def fit_stacked_rows(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    functions: ResponseFunctions | None = None,
) -> tuple[StackedRows, FloatArray, FloatArray]:
    """Choose and whiten the functions of the response; the first pass over the rows.

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
    rows : StackedRows
        The rows.
    part_weights : numpy.ndarray, shape (n_parts,)
        Sum of the weights in each part.
    first_sums : numpy.ndarray, shape (n_parts, n_functions, n_features)
        Sums of the whitened functions times z.
    """
    functions = functions or data.family.fit_response_functions(response)
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
    """Rows with functions that are not whitened yet; few rows are spread evenly."""
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
    """Matrix W with W' C W = I on all but the nearly constant directions of the functions."""
    variances = np.diag(covariance)
    # of a constant function the variance is rounding of its square, of either sign: left out
    varies = variances > CONSTANT_SHARE * (np.maximum(variances, 0.0) + mean**2)
    deviations = np.sqrt(np.where(varies, variances, 1.0))
    shared = np.where(np.outer(varies, varies), covariance, 0.0)
    correlation = shared / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(correlation)
    is_kept = values > SMALLEST_FUNCTION_SHARE * values[-1]
    return np.asarray(vectors[:, is_kept] / np.sqrt(values[is_kept]) / deviations[:, None])
