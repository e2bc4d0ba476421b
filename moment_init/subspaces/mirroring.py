"""Spectral mirroring: a second moment that odd means do not cancel."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.subspaces.hessian_directions import ResponsePart, response_part
from moment_init.subspaces.result import SubspaceEstimate, assemble_estimate
from moment_init.subspaces.rows import (
    SubspaceRows,
    first_moment,
    moment_edge,
    pose_rows,
    predictor,
    second_moment,
    validate_count,
)

__all__ = ["spectral_mirroring"]

FloatArray = NDArray[np.float64]


def spectral_mirroring(
    X: Any,
    y: Any,
    n_directions: int,
    *,
    response: ResponsePart = "residual",
    sample_weight: Any = None,
) -> SubspaceEstimate:
    r"""Span of the directions by the second moment of a mirrored response.

    With :math:`z = L^{-1}(x - \mu)` Gaussian and :math:`\bar y` the mean of y,

    .. math:: \hat r = \frac{E[y z]}{|E[y z]|}, \qquad
              v = (y - \bar y)\, \mathrm{sgn} \langle \hat r, z \rangle, \qquad
              Q = E[v (z z' - I)].

    :math:`\hat r` is a combination of the directions, and :math:`E[v \mid z]` depends on z through
    them alone: so the range of Q lies in their span, as that of
    :math:`M_2 = E[y (z z' - I)]` does. Where :math:`E[y \mid z] - \bar y` is odd, :math:`M_2`
    vanishes. The mirrored mean is even, and Q does not vanish [1]_. The span returned has
    :math:`\hat r` first, then the left singular vectors of :math:`(I - \hat r \hat r') Q`.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs; Gaussian.
    y : array-like, shape (n_obs,)
        Response: two values, as in [1]_, or any real numbers.
    n_directions : int
        Dimension of the span, at most n_features.
    response : {"residual", "response"}, default "residual"
        What is mirrored: the residual of y after a linear regression on X, or y itself. Their
        moments differ by a multiple of :math:`\hat r \hat r'`, which leaves the span as it is;
        the residual has less noise.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row.

    Returns
    -------
    SubspaceEstimate
        First the direction of the mirror, with the length of E[y z]; then the others, with their
        singular values; both over the edge of noise.

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
        If fewer directions than asked for stand out from noise. If the first does not, the mirror
        is noise, and so is all that follows.

    Notes
    -----
    One product of the size of ``X.T @ X`` and three passes of the size of ``X @ v``.

    It serves odd links with biases that are zero in centred coordinates: classifiers through the
    middle of the data. A shift of y moves :math:`Q` by a multiple of
    :math:`E[\mathrm{sgn} \langle \hat r, z \rangle (z z' - I)] = 0`, so that y may be coded
    0 and 1 as well as -1 and 1, and may be a count or continuous. Only the mean of y matters:
    under the identity link it is linear, Q is a multiple of :math:`\hat r \hat r'`, and nothing
    but :math:`\hat r` is found. Where E[y | z] is even, there is no mirror: use
    `principal_hessian_directions`.

    Departs from [1]_ in that all rows serve both the mirror and the moment, which half of the
    rows each make independent there; in that :math:`\hat r` is a member of the span; and in the
    residual.

    References
    ----------
    .. [1] Y. Sun, S. Ioannidis, A. Montanari, "Learning mixtures of linear classifiers",
       ICML 2014, arXiv:1311.2547.

    Examples
    --------
    >>> from moment_init import simulate_mixture
    >>> from moment_init.subspaces import spectral_mirroring
    >>> data = simulate_mixture(50_000, 5, 2, scales=3.0, biases=0.0, random_seed=1)
    >>> span = spectral_mirroring(data.X, data.y, 2)
    >>> span.basis.shape, span.transform(data.X).shape
    ((5, 2), (50000, 2))
    """
    rows = pose_rows(X, y, sample_weight)
    n_features = rows.data.n_features
    size = validate_count(
        n_directions, "n_directions", smallest=1, largest=n_features, limit="the number of features"
    )
    values = response_part(rows, response)
    first = first_moment(rows, rows.response)
    length = float(np.linalg.norm(first))
    mirror = first / length
    vectors, sizes = _directions_beside(rows, values, mirror)
    # Length of E[y z] if y is noise: one column of Marchenko and Pastur's matrix.
    noise = (1.0 + np.sqrt(n_features)) / np.sqrt(rows.effective_n)
    return assemble_estimate(
        np.column_stack([mirror, vectors[:, : size - 1]]),
        np.concatenate([[length / noise], sizes / moment_edge(rows)]),
        rows.coordinates,
        feature_names=rows.data.feature_names,
        method="spectral_mirroring",
        n_obs=rows.data.n_obs,
    )


def _directions_beside(
    rows: SubspaceRows, values: FloatArray, mirror: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Left singular vectors of (I - r r') Q orthogonal to r, and their singular values."""
    mirrored = rows.standardise(values * np.sign(predictor(rows, mirror)))
    complement = np.linalg.qr(mirror[:, None], mode="complete")[0][:, 1:]
    vectors, sizes, _ = np.linalg.svd(complement.T @ second_moment(rows, mirrored))
    return complement @ vectors, sizes
