"""Solving for steps with an information matrix."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve

__all__ = ["solve_blocks", "solve_information"]

FloatArray = NDArray[np.float64]

_RIDGE = 1e-10
"""Added to the unit diagonal of a scaled information: far below its statistical error, and enough
to keep a direction that no row informs from making the factorisation fail by rounding."""

_SMALLEST_DIAGONAL = 1e-12
"""Diagonal entries of the information are scaled as if at least this large."""


def solve_information(information: FloatArray, score: FloatArray) -> FloatArray | None:
    """Solve for a step by a Cholesky factorisation of the information scaled to unit diagonal.

    Parameters
    ----------
    information : numpy.ndarray, shape (n_parameters, n_parameters)
        A symmetric matrix.
    score : numpy.ndarray, shape (n_parameters,)
        The gradient.

    Returns
    -------
    numpy.ndarray, shape (n_parameters,), or None
        The step; None if the information is not positive definite.
    """
    scale = np.sqrt(np.maximum(np.diag(information), _SMALLEST_DIAGONAL))
    scaled = information / np.outer(scale, scale)
    scaled[np.diag_indices_from(scaled)] += _RIDGE
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(cho_solve((factor, True), score / scale) / scale)


def solve_blocks(informations: FloatArray, scores: FloatArray) -> FloatArray | None:
    """Solve for the steps of several components at once.

    Parameters
    ----------
    informations : numpy.ndarray, shape (n_components, size, size)
        Symmetric matrices, positive semi-definite.
    scores : numpy.ndarray, shape (n_components, size)
        The gradients.

    Returns
    -------
    numpy.ndarray, shape (n_components, size), or None
        The steps; None if a matrix is singular.
    """
    size = scores.shape[1]
    diagonals = np.einsum("jaa->ja", informations)
    scales = np.sqrt(np.maximum(diagonals, _SMALLEST_DIAGONAL))
    scaled = informations / (scales[:, :, None] * scales[:, None, :])
    scaled[:, range(size), range(size)] += _RIDGE
    try:
        steps = np.linalg.solve(scaled, (scores / scales)[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:
        return None
    return np.asarray(steps / scales)
