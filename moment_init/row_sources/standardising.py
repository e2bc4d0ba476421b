"""Standardised columns of rows that are elsewhere, for a likelihood in standardised coordinates."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.data import RegressionData
from moment_init.row_sources.checking import add_table
from moment_init.row_sources.columns import RowColumn, map_columns
from moment_init.row_sources.sources import BlockedRows

__all__ = ["gating_elsewhere", "projected_elsewhere", "whiten_rows", "whitened_elsewhere"]

FloatArray = NDArray[np.float64]


def gating_elsewhere(gating: Any, source: BlockedRows) -> tuple[Any, tuple[str, ...]]:
    """Check gating covariates of rows that are elsewhere.

    Parameters
    ----------
    gating : array, DataFrame, Series or Dask collection, shape (n_obs,) or (n_obs, n_gate)
        The covariates.
    source : BlockedRows
        The rows.

    Returns
    -------
    values : RowColumn, shape (n_obs, n_gate)
        The covariates.
    names : tuple of str
        Their names.

    Raises
    ------
    TypeError
        For values that are not real numbers.
    ValueError
        For a wrong shape, missing or infinite values.
    """
    table = gating if hasattr(gating, "ndim") else np.asarray(gating)
    if table.ndim == 1:
        table = table.to_frame() if hasattr(table, "to_frame") else table[:, None]
    values, names = add_table(source, table, "gating")
    if not hasattr(table, "columns"):
        names = tuple(f"g{index}" for index in range(len(names)))
    return values, names


def whitened_elsewhere(data: RegressionData, mean: FloatArray, factor: FloatArray) -> Any:
    """Inputs with mean zero and covariance one.

    Parameters
    ----------
    data : RegressionData
        Rows that are elsewhere.
    mean : numpy.ndarray, shape (n_features,)
        Mean of the inputs.
    factor : numpy.ndarray, shape (n_features, n_features)
        Lower triangular L with L L' their covariance.

    Returns
    -------
    RowColumn, shape (n_obs, n_features)
        The inputs; whitened anew in every pass.
    """
    return map_columns(partial(whiten_rows, mean, factor), data.X, n_columns=data.n_features)


def whiten_rows(mean: FloatArray, factor: FloatArray, rows: NDArray[np.generic]) -> FloatArray:
    """Whiten some rows.

    Parameters
    ----------
    mean : numpy.ndarray, shape (n_features,)
        Their mean.
    factor : numpy.ndarray, shape (n_features, n_features)
        Lower triangular L with L L' their covariance.
    rows : numpy.ndarray, shape (n_rows, n_features)
        The rows.

    Returns
    -------
    numpy.ndarray, shape (n_rows, n_features)
        L^-1 (x - mean).
    """
    centred = np.asarray(rows, dtype=np.float64) - mean
    return np.asarray(solve_triangular(factor, centred.T, lower=True).T)


def projected_elsewhere(
    data: RegressionData, directions: FloatArray
) -> tuple[Any, FloatArray, FloatArray]:
    """Centred projections of the inputs; two passes.

    Parameters
    ----------
    data : RegressionData
        Rows that are elsewhere.
    directions : numpy.ndarray, shape (n_features, n_components)
        What they are projected on.

    Returns
    -------
    centred : RowColumn, shape (n_obs, n_components)
        The projections, less their means.
    mean, spread : numpy.ndarray, shape (n_components,)
        Means and standard deviations.
    """
    width = directions.shape[1]
    projected: Any = map_columns(partial(_project_rows, directions), data.X, n_columns=width)
    total = data.sample_weight.sum()
    mean = _weighted_sum(projected, data.sample_weight) / total
    centred = projected - mean
    squares = _weighted_sum(np.square(centred), data.sample_weight)
    return centred, mean, np.sqrt(squares / total)


def _weighted_sum(table: RowColumn, weights: Any) -> FloatArray:
    weighted = map_columns(_weigh_rows, table, weights, n_columns=table.n_columns)
    return np.asarray(weighted.sum(axis=0))


def _project_rows(directions: FloatArray, rows: NDArray[np.generic]) -> FloatArray:
    return np.asarray(np.asarray(rows, dtype=np.float64) @ directions)


def _weigh_rows(rows: FloatArray, weights: FloatArray) -> FloatArray:
    return rows * weights[:, None]
