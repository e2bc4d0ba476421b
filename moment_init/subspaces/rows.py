r"""Checked rows in standardised coordinates, and the moments that the methods are made of.

All moments are in coordinates :math:`z = L^{-1}(x - \mu)`. Rows are never standardised: sums of
products of x are, once, at the end.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.checks import is_elsewhere
from moment_init.data.blocks import read_block, row_blocks, sum_over_blocks
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.standardising import Coordinates
from moment_init.scores.gaussian import Gaussian

__all__ = [
    "SubspaceRows",
    "first_moment",
    "moment_edge",
    "pose_rows",
    "predictor",
    "second_moment",
    "validate_count",
    "without_linear_part",
]

FloatArray = NDArray[np.float64]

# What a regression leaves of a response of variance one is rounding below this deviation: doubles
# have sixteen digits, and collinear columns may cost six of them.
NO_VARIATION = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class SubspaceRows:
    """Checked rows with the coordinates of their input.

    Parameters
    ----------
    data : RegressionData
        Checked rows, all of positive weight.
    coordinates : Coordinates
        Mean and factor of the input.
    response : numpy.ndarray, shape (n_obs,)
        Response with mean zero and variance one.
    """

    data: RegressionData
    coordinates: Coordinates
    response: FloatArray

    @property
    def weights(self) -> FloatArray:
        """Weight of each row, (n_obs,)."""
        return self.data.sample_weight

    @property
    def effective_n(self) -> float:
        """Number of equally weighted rows whose mean has the same variance (Kish)."""
        return float(self.weights.sum() ** 2 / np.square(self.weights).sum())

    def standardise(self, values: FloatArray) -> FloatArray:
        """Give a function of the rows mean zero and variance one.

        Parameters
        ----------
        values : numpy.ndarray, shape (n_obs,)
            A value for each row, of the order of one.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The same up to location and scale; zeros if it is constant but for rounding.
        """
        shares = self.weights / self.weights.sum()
        centred = values - shares @ values
        deviation = float(np.sqrt(shares @ np.square(centred)))
        return centred / deviation if deviation > NO_VARIATION else np.zeros_like(centred)


def pose_rows(X: Any, y: Any, sample_weight: Any) -> SubspaceRows:
    """Check the rows and settle their coordinates.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like, shape (n_obs,)
        Response of any kind: real numbers.
    sample_weight : array-like, shape (n_obs,), or None
        Weight of each row.

    Returns
    -------
    SubspaceRows
        The rows.

    Raises
    ------
    TypeError
        For data that are not real numbers, or not in memory.
    ValueError
        For wrong shapes, missing or infinite values, constant or collinear columns, and a response
        that does not vary.
    """
    if is_elsewhere(X, y, sample_weight):
        raise TypeError(
            "`X`, `y` and `sample_weight` must be in memory; got a Dask collection. "
            "Call `.compute()`, or use `moment_init.estimate`, which takes them."
        )
    # The range of a Gaussian response, all real numbers, is that of every other one, too.
    checked = validate_data(X, y, family="gaussian", sample_weight=sample_weight).counted()
    model = Gaussian().fit_rows(checked.X, checked.sample_weight, checked.feature_names)
    coordinates = Coordinates(model.mean_, model.standardising_basis)
    return SubspaceRows(checked, coordinates, _standardised_response(checked))


def validate_count(value: Any, name: str, *, smallest: int, largest: int, limit: str) -> int:
    """Check an argument that is a whole number in a range.

    Parameters
    ----------
    value : int
        The argument.
    name : str
        Its name, for the messages.
    smallest, largest : int
        The range, both ends included.
    limit : str
        What sets the upper end, for the messages.

    Returns
    -------
    int
        The number.

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is out of range.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(
            f"`{name}` must be an integer; got {value!r} of type {type(value).__name__}. "
            "Pass a whole number."
        )
    if not smallest <= value <= largest:
        raise ValueError(
            f"`{name}` must be between {smallest} and {limit} ({largest}); got {value}. "
            "Use a number in that range."
        )
    return int(value)


def first_moment(rows: SubspaceRows, values: FloatArray) -> FloatArray:
    """Mean of values times z.

    Parameters
    ----------
    rows : SubspaceRows
        The rows.
    values : numpy.ndarray, shape (n_obs,)
        A value for each row.

    Returns
    -------
    numpy.ndarray, shape (n_features,)
        The moment.
    """
    weighted = rows.weights * values
    X, mean = rows.data.X, rows.coordinates.mean

    def sums(block: slice) -> tuple[FloatArray, ...]:
        return (np.dot(weighted[block], read_block(X, block) - mean),)

    (total,) = sum_over_blocks(sums, *_size(rows))
    return _whiten(rows, total / rows.weights.sum())


def second_moment(rows: SubspaceRows, values: FloatArray) -> FloatArray:
    """Mean of values times z z' - I.

    Parameters
    ----------
    rows : SubspaceRows
        The rows.
    values : numpy.ndarray, shape (n_obs,)
        A value for each row; centred ones have a moment with less noise.

    Returns
    -------
    numpy.ndarray, shape (n_features, n_features)
        The moment.
    """
    weighted = rows.weights * values
    X, mean = rows.data.X, rows.coordinates.mean

    def sums(block: slice) -> tuple[FloatArray, ...]:
        x = read_block(X, block) - mean
        return (np.dot((x * weighted[block, None]).T, x),)

    (gram,) = sum_over_blocks(sums, *_size(rows))
    moment = _whiten(rows, _whiten(rows, gram).T) - weighted.sum() * np.eye(len(gram))
    return np.asarray((moment + moment.T) / (2.0 * rows.weights.sum()))


def predictor(rows: SubspaceRows, direction: FloatArray) -> FloatArray:
    """Inner product of every row's z with a direction.

    Parameters
    ----------
    rows : SubspaceRows
        The rows.
    direction : numpy.ndarray, shape (n_features,)
        A vector in standardised coordinates.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        The products.
    """
    slopes = solve_triangular(rows.coordinates.factor, direction, lower=True, trans="T")
    X, mean = rows.data.X, rows.coordinates.mean
    blocks = row_blocks(*_size(rows))
    return np.concatenate([(read_block(X, block) - mean) @ slopes for block in blocks])


def without_linear_part(rows: SubspaceRows) -> FloatArray:
    """Response less its regression on the input, of mean zero and variance one.

    Parameters
    ----------
    rows : SubspaceRows
        The rows.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        The residuals; zeros if the response is linear in the input.
    """
    linear = predictor(rows, first_moment(rows, rows.response))
    return rows.standardise(rows.response - linear)


def moment_edge(rows: SubspaceRows) -> float:
    r"""Largest eigenvalue of a second moment of pure noise.

    For values of variance one that do not depend on the input, the moment is a symmetric matrix of
    noise with variance 1/n off its diagonal; the eigenvalues of such a matrix end at
    :math:`2 \sqrt{d / n}` (Wigner).

    Parameters
    ----------
    rows : SubspaceRows
        The rows.

    Returns
    -------
    float
        The edge.
    """
    return float(2.0 * np.sqrt(rows.data.n_features / rows.effective_n))


def _standardised_response(data: RegressionData) -> FloatArray:
    """Response of mean zero and variance one; its own units may be of any order."""
    shares = data.sample_weight / data.sample_weight.sum()
    unit = np.abs(data.y).max()  # squares of large or small numbers leave the range of doubles
    scaled = data.y / unit
    centred = scaled - shares @ scaled
    return np.asarray(centred / np.sqrt(shares @ np.square(centred)))


def _size(rows: SubspaceRows) -> tuple[int, int]:
    """Number of rows, and of doubles that are derived from one."""
    return rows.data.n_obs, 2 * rows.data.n_features


def _whiten(rows: SubspaceRows, columns: FloatArray) -> FloatArray:
    """Turn sums of centred inputs into sums of z."""
    return np.asarray(solve_triangular(rows.coordinates.factor, columns, lower=True))
