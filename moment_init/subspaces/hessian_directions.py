"""Principal Hessian directions."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from moment_init.subspaces.result import SubspaceEstimate, assemble_estimate
from moment_init.subspaces.rows import (
    SubspaceRows,
    moment_edge,
    pose_rows,
    second_moment,
    validate_count,
    without_linear_part,
)

__all__ = ["ResponsePart", "principal_hessian_directions", "response_part"]

FloatArray = NDArray[np.float64]
ResponsePart = Literal["residual", "response"]


def principal_hessian_directions(
    X: Any,
    y: Any,
    n_directions: int,
    *,
    response: ResponsePart = "residual",
    sample_weight: Any = None,
) -> SubspaceEstimate:
    r"""Span of the directions by the mean Hessian of E[y | x].

    For :math:`z = L^{-1}(x - \mu)` Gaussian, Stein's lemma gives

    .. math:: M_2 = E[y (z z' - I)] = E[\nabla^2 E[y \mid z]]
              = \sum_j w_j s_j^2\, E[g''(s_j \langle u_j, z \rangle + b_j)]\, u_j u_j',

    whose eigenvectors with eigenvalues other than zero lie in the span of the :math:`u_j` [1]_.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs; Gaussian.
    y : array-like, shape (n_obs,)
        Response: any real numbers.
    n_directions : int
        Dimension of the span, at most n_features.
    response : {"residual", "response"}, default "residual"
        What stands for y: its residual after a linear regression on X, or itself. The moment is
        the same, as linear functions have no Hessian; without the linear part it has less noise.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row.

    Returns
    -------
    SubspaceEstimate
        Eigenvectors by the size of their eigenvalue; sizes over the edge of noise.

    Raises
    ------
    TypeError
        For data that are not real numbers or not in memory, and numbers that are not whole.
    ValueError
        For an unknown `response`, a number of directions out of range, wrong shapes, missing or
        infinite values, constant or collinear columns, and a response that does not vary.

    Warns
    -----
    WeakSignalWarning
        If fewer directions than asked for stand out from noise.

    Notes
    -----
    One product of the size of ``X.T @ X`` and two passes of the size of ``X @ v``.

    It finds nothing where g'' vanishes on average: under the identity link (linear regressions),
    and under an odd link, such as the logit about 1/2, if the biases are zero in centred
    coordinates. See `spectral_mirroring` for the latter, `sliced_inverse_regression` for the
    former. A linear predictor's square, y ** 2, may be passed as `y`.

    References
    ----------
    .. [1] K.-C. Li, "On principal Hessian directions for data visualization and dimension
       reduction", JASA 87 (1992), doi:10.1080/01621459.1992.10476258.

    Examples
    --------
    >>> from moment_init import simulate_mixture
    >>> from moment_init.subspaces import principal_hessian_directions
    >>> data = simulate_mixture(20_000, 5, 2, family="poisson", biases=0.5, random_seed=1)
    >>> span = principal_hessian_directions(data.X, data.y, 2)
    >>> span.basis.shape, span.transform(data.X).shape
    ((5, 2), (20000, 2))
    """
    rows = pose_rows(X, y, sample_weight)
    size = validate_count(
        n_directions,
        "n_directions",
        smallest=1,
        largest=rows.data.n_features,
        limit="the number of features",
    )
    values, vectors = np.linalg.eigh(second_moment(rows, response_part(rows, response)))
    order = np.argsort(-np.abs(values))
    return assemble_estimate(
        vectors[:, order[:size]],
        np.abs(values[order]) / moment_edge(rows),
        rows.coordinates,
        feature_names=rows.data.feature_names,
        method="principal_hessian_directions",
        n_obs=rows.data.n_obs,
    )


def response_part(rows: SubspaceRows, response: ResponsePart) -> FloatArray:
    """What stands for the response.

    Parameters
    ----------
    rows : SubspaceRows
        The rows.
    response : {"residual", "response"}
        What is asked for.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        Values of mean zero and variance one.

    Raises
    ------
    ValueError
        For any other word.
    """
    if response not in get_args(ResponsePart):
        raise ValueError(
            f"`response` must be 'residual' or 'response'; got {response!r}. "
            "The residual has less noise."
        )
    return without_linear_part(rows) if response == "residual" else rows.response
