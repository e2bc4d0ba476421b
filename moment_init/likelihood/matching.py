"""Match the components of two mixtures, which have no order of their own."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray, as_float_array


def match_components(
    estimated: ArrayLike, reference: ArrayLike, *, signed: bool = False
) -> NDArray[np.intp]:
    """Match columns to reference columns by the largest total cosine.

    Parameters
    ----------
    estimated : array-like, shape (n_features, n_components)
        Columns to reorder.
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
    TypeError
        For columns that are not real numbers.
    ValueError
        If the shapes differ, and for columns that are zero, missing or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> match_components(np.array([[0.0, -1.0], [1.0, 0.1]]), np.eye(2))
    array([1, 0])
    """
    return _matched(*_unit_pair(estimated, reference), signed=signed)


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

    Raises
    ------
    TypeError
        For columns that are not real numbers.
    ValueError
        If the shapes differ, and for columns that are zero, missing or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> angles_in_degrees(np.array([[0.0, -1.0], [1.0, 0.0]]), np.eye(2))
    array([0., 0.])
    """
    first, second = _unit_pair(estimated, reference)
    first = first[:, _matched(first, second, signed=signed)]
    if not signed:
        first = first * np.where(np.sum(first * second, axis=0) < 0.0, -1.0, 1.0)
    # The arc cosine would lose half the digits of a small angle.
    half = np.arctan2(
        np.linalg.norm(first - second, axis=0), np.linalg.norm(first + second, axis=0)
    )
    return np.asarray(np.degrees(2.0 * half))


def _unit_columns(columns: ArrayLike, name: str) -> FloatArray:
    matrix = as_float_array(columns, name)
    if matrix.ndim != 2 or 0 in matrix.shape or not np.all(np.isfinite(matrix)):
        raise ValueError(
            f"`{name}` must be finite, of shape (n_features, n_components); got shape "
            f"{matrix.shape} with {int(np.sum(~np.isfinite(matrix)))} values that are not finite."
        )
    largest = np.abs(matrix).max(axis=0)
    if not largest.all():
        raise ValueError(
            f"`{name}` must have a direction in every column; got column {int(np.argmin(largest))} "
            "of zeros. Leave it out."
        )
    scaled = matrix / largest  # squares neither overflow nor underflow
    return np.asarray(scaled / np.linalg.norm(scaled, axis=0))


def _unit_pair(estimated: ArrayLike, reference: ArrayLike) -> tuple[FloatArray, FloatArray]:
    first, second = _unit_columns(estimated, "estimated"), _unit_columns(reference, "reference")
    if first.shape != second.shape:
        raise ValueError(
            f"`estimated` must have the shape of `reference`, {second.shape}; got {first.shape}."
        )
    return first, second


def _matched(first: FloatArray, second: FloatArray, *, signed: bool) -> NDArray[np.intp]:
    """Order of the first unit columns with the largest total cosine to the second."""
    cosines = first.T @ second
    gains = cosines if signed else np.abs(cosines)
    _, index = linear_sum_assignment(-gains.T)
    return np.asarray(index)
