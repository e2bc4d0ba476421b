"""Rows as the stacked sums read them: centred inputs and whitened functions of the response."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.blocks import read_block, sums_by_part
from moment_init.data import RegressionData
from moment_init.families.response_functions import ResponseFunctions
from moment_init.scores.gaussian import Gaussian

__all__ = ["StackedRows", "fit_stacked_rows"]

FloatArray = NDArray[np.float64]

# Eigenvalues of the correlation matrix of the T_k below this share of the largest are directions in
# which the functions are nearly constant: whitened they would be blown up by more than ten, and a
# single row of the tails would then stand out of the noise of all others as a direction does.
SMALLEST_FUNCTION_SHARE = 1e-2


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
    """

    X: NDArray[np.generic]
    response: FloatArray
    weights: FloatArray
    mean: FloatArray
    factor: FloatArray
    functions: ResponseFunctions
    function_mean: FloatArray
    function_map: FloatArray

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

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

    def inputs(self, rows: slice) -> FloatArray:
        """Centred inputs of a block of rows.

        Parameters
        ----------
        rows : slice
            The rows.

        Returns
        -------
        numpy.ndarray, shape (n_rows, n_features)
            x - mean, in the units of X.
        """
        return read_block(self.X, rows) - self.mean

    def function_values(self, rows: slice) -> FloatArray:
        """Whitened functions of the response of a block of rows.

        Parameters
        ----------
        rows : slice
            The rows.

        Returns
        -------
        numpy.ndarray, shape (n_rows, n_functions)
            Values with mean zero and identity covariance over all rows.
        """
        values = self.functions(self.response[rows]) - self.function_mean
        return np.asarray(values @ self.function_map)

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
    data: RegressionData, input_model: Gaussian, response: FloatArray
) -> tuple[StackedRows, FloatArray, FloatArray]:
    """Choose and whiten the functions of the response; the first pass over the rows.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : Gaussian
        Fitted density of the input.
    response : numpy.ndarray, shape (n_obs,)
        Response without offset and trials, standardised for the identity link.

    Returns
    -------
    rows : StackedRows
        The rows.
    part_weights : numpy.ndarray, shape (n_parts,)
        Sum of the weights in each part.
    first_sums : numpy.ndarray, shape (n_parts, n_functions, n_features)
        Sums of the whitened functions times z.
    """
    functions = data.family.fit_response_functions(response)
    n_raw, n_features = len(functions.columns), data.n_features
    raw = StackedRows(
        X=data.X,
        response=response,
        weights=data.sample_weight,
        mean=input_model.mean_,
        factor=input_model.standardising_basis,
        functions=functions,
        function_mean=np.zeros(n_raw),
        function_map=np.eye(n_raw),
    )

    def sums(rows: slice) -> tuple[FloatArray, ...]:
        x, values, weights = raw.inputs(rows), raw.function_values(rows), raw.weights[rows]
        weighted = values * weights[:, None]
        total = np.asarray(weights.sum())
        return total, weights @ x, weighted.sum(axis=0), weighted.T @ values, weighted.T @ x

    totals, x_sums, value_sums, products, cross = sums_by_part(
        sums, raw.n_obs, 2 * n_features + 2 * n_raw
    )
    mean = value_sums.sum(axis=0) / totals.sum()
    covariance = products.sum(axis=0) / totals.sum() - np.outer(mean, mean)
    function_map = _whitening_map(covariance)
    centred = cross - mean[:, None] * x_sums[:, None, :]
    whitened = np.einsum("kfd,fm->kmd", centred, function_map)
    first = raw.whiten(whitened.reshape(-1, n_features).T).T.reshape(whitened.shape)
    rows = replace(raw, function_mean=mean, function_map=function_map)
    return rows, totals, first


def _whitening_map(covariance: FloatArray) -> FloatArray:
    """Matrix W with W' C W = I on all but the nearly constant directions of the functions."""
    deviations = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(correlation)
    is_kept = values > SMALLEST_FUNCTION_SHARE * values[-1]
    return np.asarray(vectors[:, is_kept] / np.sqrt(values[is_kept]) / deviations[:, None])
