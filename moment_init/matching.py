"""Matching of components: they have no order of their own, so compare only after this."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

__all__ = ["angles_in_degrees", "match_components"]

FloatArray = NDArray[np.float64]


def match_components(
    estimated: ArrayLike, reference: ArrayLike, *, signed: bool = False
) -> NDArray[np.intp]:
    """Match columns to reference columns by the largest total cosine.

    Parameters
    ----------
    estimated : array-like, shape (n_features, n_components)
        Columns to be put in order.
    reference : array-like, shape (n_features, n_components)
        Columns that set the order.
    signed : bool
        Whether opposite directions are different; by default they are the same.

    Returns
    -------
    numpy.ndarray of int, shape (n_components,)
        Index such that ``estimated[:, index]`` is in the order of `reference`.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> import numpy as np
    >>> match_components(np.array([[0.0, -1.0], [1.0, 0.1]]), np.eye(2))
    array([1, 0])
    """
    cosines = _cosines(estimated, reference)
    gains = cosines if signed else np.abs(cosines)
    _, index = linear_sum_assignment(-gains.T)
    return np.asarray(index)


def angles_in_degrees(
    estimated: ArrayLike, reference: ArrayLike, *, signed: bool = False
) -> FloatArray:
    """Angle of each reference column to its matched estimate.

    Parameters
    ----------
    estimated : array-like, shape (n_features, n_components)
        Estimated columns in any order.
    reference : array-like, shape (n_features, n_components)
        Reference columns.
    signed : bool
        Whether opposite directions are 180 degrees apart; by default they are the same.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        Angles in degrees, in the order of `reference`.

    Examples
    --------
    >>> import numpy as np
    >>> angles_in_degrees(np.array([[0.0, -1.0], [1.0, 0.0]]), np.eye(2))
    array([0., 0.])
    """
    index = match_components(estimated, reference, signed=signed)
    first = _unit_columns(estimated)[:, index]
    second = _unit_columns(reference)
    if not signed:
        first = first * np.where(np.sum(first * second, axis=0) < 0.0, -1.0, 1.0)
    # Not by the arc cosine, which loses half the digits of a small angle.
    half = np.arctan2(
        np.linalg.norm(first - second, axis=0), np.linalg.norm(first + second, axis=0)
    )
    return np.asarray(np.degrees(2.0 * half))


def _unit_columns(columns: ArrayLike) -> FloatArray:
    matrix = np.asarray(columns, dtype=np.float64)
    return np.asarray(matrix / np.linalg.norm(matrix, axis=0))


def _cosines(estimated: ArrayLike, reference: ArrayLike) -> FloatArray:
    first, second = _unit_columns(estimated), _unit_columns(reference)
    if first.shape != second.shape:
        raise ValueError(
            f"`estimated` must have the shape of `reference`, {second.shape}; got {first.shape}."
        )
    return np.asarray(first.T @ second)
