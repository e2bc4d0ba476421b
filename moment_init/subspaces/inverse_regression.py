"""Sliced inverse regression."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.subspaces.result import SubspaceEstimate, assemble_estimate
from moment_init.subspaces.rows import SubspaceRows, pose_rows, validate_count

__all__ = ["slice_rows", "sliced_inverse_regression"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]


def sliced_inverse_regression(
    X: Any, y: Any, n_directions: int, *, n_slices: int = 10, sample_weight: Any = None
) -> SubspaceEstimate:
    r"""Span of the directions by the means of the input in slices of the response.

    With :math:`z = L^{-1}(x - \mu)`, slices :math:`I_h` of the range of y, their shares
    :math:`p_h` and means :math:`m_h = E[z \mid y \in I_h]`, the leading eigenvectors of

    .. math:: V = \sum_h p_h\, m_h m_h'

    lie in the span of the directions, if E[z | projection of z on the span] is linear: for Gaussian
    and other elliptical inputs [1]_.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs; elliptical.
    y : array-like, shape (n_obs,)
        Response: any real numbers.
    n_directions : int
        Dimension of the span: at most n_features, and less than the number of slices.
    n_slices : int, default 10
        Slices of about equal weight. Equal values of y share a slice; if y has no more values than
        this, every value is a slice.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row.

    Returns
    -------
    SubspaceEstimate
        Eigenvectors, the largest eigenvalue first; eigenvalues over the edge of noise.

    Raises
    ------
    TypeError
        For data that are not real numbers or not in memory, and numbers that are not whole.
    ValueError
        For numbers out of range, wrong shapes, missing or infinite values, constant or collinear
        columns, and a response that does not vary.

    Warns
    -----
    WeakSignalWarning
        If fewer directions than asked for stand out from noise.

    Notes
    -----
    One pass over the rows, of the size of ``X * v``, and a sort of y.

    The weighted means sum to zero, so that H slices show H - 1 directions at most: one if y has two
    values. Components that are symmetric about the mean of the input, as two opposite slopes are,
    leave every slice's mean where it was and are not found.

    References
    ----------
    .. [1] K.-C. Li, "Sliced inverse regression for dimension reduction", JASA 86 (1991),
       doi:10.1080/01621459.1991.10475035.

    Examples
    --------
    >>> from moment_init import simulate_mixture
    >>> from moment_init.subspaces import sliced_inverse_regression
    >>> data = simulate_mixture(
    ...     20_000, 5, 2, family="gaussian", biases=[-1.0, 1.0], random_seed=1
    ... )
    >>> span = sliced_inverse_regression(data.X, data.y, 2)
    >>> span.basis.shape, span.transform(data.X).shape
    ((5, 2), (20000, 2))
    """
    rows = pose_rows(X, y, sample_weight)
    n_obs, n_features = rows.data.n_obs, rows.data.n_features
    validate_count(
        n_slices, "n_slices", smallest=2, largest=n_obs, limit="the number of rows that count"
    )
    slices = slice_rows(rows.data.y, rows.weights, n_slices)
    number = int(slices.max()) + 1
    size = validate_count(
        n_directions, "n_directions", smallest=1, largest=n_features, limit="the number of features"
    )
    _require_slices(size, number)
    values, vectors = np.linalg.eigh(_between_slices(rows, slices, number))
    edge = (np.sqrt(number - 1.0) + np.sqrt(n_features)) ** 2 / rows.effective_n
    return assemble_estimate(
        vectors[:, ::-1][:, :size],
        np.maximum(values[::-1], 0.0) / edge,
        rows.coordinates,
        feature_names=rows.data.feature_names,
        method="sliced_inverse_regression",
        n_obs=n_obs,
    )


def slice_rows(response: FloatArray, weights: FloatArray, n_slices: int) -> IndexArray:
    """Cut the range of the response into slices of about equal weight.

    Parameters
    ----------
    response : numpy.ndarray, shape (n_obs,)
        The response.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row, positive.
    n_slices : int
        Number of slices asked for.

    Returns
    -------
    numpy.ndarray of int, shape (n_obs,)
        Slice of each row, numbered from zero in the order of the response; none is empty. Fewer
        than asked for if values are few or much repeated.
    """
    distinct, inverse = np.unique(response, return_inverse=True)
    if len(distinct) <= n_slices:
        return np.asarray(inverse, dtype=np.intp)
    shares = np.bincount(inverse, weights=weights) / weights.sum()
    middles = np.cumsum(shares) - shares / 2.0
    _, slices = np.unique(np.floor(middles * n_slices), return_inverse=True)
    return np.asarray(slices[inverse], dtype=np.intp)


def _require_slices(n_directions: int, number: int) -> None:
    if n_directions >= number:
        raise ValueError(
            f"`n_directions` must be less than the number of slices of `y` ({number}), whose means "
            f"span no more; got {n_directions}. Ask for {number - 1}, use more slices if `y` has "
            "more values, or another method: `spectral_mirroring`, `principal_hessian_directions`."
        )


def _between_slices(rows: SubspaceRows, slices: IndexArray, number: int) -> FloatArray:
    """Covariance of the means of slices in standardised coordinates."""
    weights, total = rows.weights, rows.weights.sum()
    X, mean = rows.data.X, rows.coordinates.mean

    def sums(block: slice) -> tuple[FloatArray, ...]:
        indicator = (slices[block] == np.arange(number)[:, None]) * weights[block]
        return np.dot(indicator, read_block(X, block) - mean), indicator.sum(axis=1)

    n_features = rows.data.n_features
    cross, masses = sum_over_blocks(sums, rows.data.n_obs, 2 * n_features + number)
    means = np.linalg.solve(rows.coordinates.factor, (cross / masses[:, None]).T)
    return np.asarray((means * (masses / total)) @ means.T)
