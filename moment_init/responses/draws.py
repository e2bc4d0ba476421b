"""Draws of a mixture with several responses, read from a DataTree and evaluated on rows."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.responses.kinds import ResponseKind
from moment_init.responses.parameters import JointParameters
from moment_init.responses.rows import JointRows
from moment_init.responses.sums import predictors, row_posterior

if TYPE_CHECKING:
    import xarray

__all__ = [
    "mean_outcomes",
    "mean_parameters",
    "parameters_of",
    "row_log_densities",
    "row_memberships",
]

FloatArray = NDArray[np.float64]


def parameters_of(posterior: "xarray.Dataset", kind: ResponseKind) -> list[JointParameters]:
    """Parameters of every draw, chain by chain.

    Parameters
    ----------
    posterior : xarray.Dataset
        The draws.
    kind : ResponseKind
        Families of the responses.

    Returns
    -------
    list of JointParameters
        The draws.
    """

    def flat(name: str, *dims: str) -> FloatArray:
        array = posterior[name].transpose("chain", "draw", *dims).to_numpy()
        return np.asarray(array.reshape(-1, *array.shape[2:]))

    coefficients = flat("coefficient", "feature", "component", "response")
    biases, weights = flat("bias", "component", "response"), flat("weight", "component")
    dispersion = None
    has_one = np.array(kind.has_dispersion)
    if has_one.any():
        # The dim `dispersed_response` holds only the responses that have one.
        is_full = "response" in posterior["dispersion"].dims
        last = "response" if is_full else "dispersed_response"
        values = flat("dispersion", "component", last)
        dispersion = np.full(biases.shape, np.nan)
        dispersion[:, :, has_one] = values[:, :, has_one] if is_full else values
    return [
        JointParameters(
            coefficients[index],
            biases[index],
            weights[index],
            None if dispersion is None else dispersion[index],
        )
        for index in range(len(weights))
    ]


def row_log_densities(
    kind: ResponseKind, rows: JointRows, draws: list[JointParameters]
) -> FloatArray:
    """Log density of all responses of each row under each draw, whatever the row's weight.

    Parameters
    ----------
    kind : ResponseKind
        How responses depend on predictors.
    rows : JointRows
        The rows, in the units of the draws.
    draws : list of JointParameters
        The draws.

    Returns
    -------
    numpy.ndarray, shape (n_draws, n_obs)
        Log densities, with all constants.
    """
    values = np.empty((len(draws), rows.n_obs))
    # A wild draw has a density of zero, and a weight may have underflowed to zero.
    with np.errstate(over="ignore", divide="ignore"):
        for index, draw in enumerate(draws):
            values[index] = row_posterior(kind, rows, draw)[0]
    return np.asarray(values + kind.log_base_measure(rows.y, rows.n_trials))


def row_memberships(
    kind: ResponseKind, rows: JointRows, draws: list[JointParameters], *, is_averaged: bool
) -> FloatArray:
    """Probabilities of the components of rows.

    Parameters
    ----------
    kind : ResponseKind
        How responses depend on predictors.
    rows : JointRows
        The rows, in the units of the draws.
    draws : list of JointParameters
        The draws.
    is_averaged : bool
        Whether to return the mean over the draws.

    Returns
    -------
    numpy.ndarray, shape (n_draws, n_obs, n_components) or (n_obs, n_components)
        The probabilities, which sum to one over components.
    """
    shape = (rows.n_obs, draws[0].n_components)
    result = np.zeros(shape if is_averaged else (len(draws), *shape))
    with np.errstate(over="ignore", divide="ignore"):  # as above
        for index, draw in enumerate(draws):
            shares = row_posterior(kind, rows, draw)[1].T
            if is_averaged:
                result += shares / len(draws)
            else:
                result[index] = shares
    return result


def mean_outcomes(
    kind: ResponseKind, rows: JointRows, draws: list[JointParameters], *, by_component: bool
) -> FloatArray:
    """Means of the responses of rows, or probabilities of all classes, averaged over draws.

    Parameters
    ----------
    kind : ResponseKind
        How responses depend on predictors.
    rows : JointRows
        The rows, in the units of the draws; their responses are not read.
    draws : list of JointParameters
        The draws.
    by_component : bool
        Whether to return those of every component, not of the mixture.

    Returns
    -------
    numpy.ndarray, shape (n_obs, n_outcomes) or (n_obs, n_components, n_outcomes)
        The means.
    """
    total: FloatArray | None = None
    for draw in draws:
        means = kind.mean(predictors(rows, draw))  # (n_outcomes, r, n)
        if not by_component:
            means = np.einsum("mjn,j->mn", means, draw.weights)
        total = means if total is None else total + means
    result = np.asarray(total) / len(draws)
    if rows.n_trials is not None:  # one where a response has none
        result = result * (rows.n_trials[:, None, :] if by_component else rows.n_trials)
    return np.ascontiguousarray(result.T)


def mean_parameters(draws: list[JointParameters]) -> JointParameters:
    r"""One value of every parameter: means over the draws.

    The coefficients are :math:`\bar s_{ja} \bar u_{ja}`, with the mean of the lengths and the unit
    vector along the mean of the directions: a mean of coefficients would be too short.

    Parameters
    ----------
    draws : list of JointParameters
        The draws.

    Returns
    -------
    JointParameters
        The parameters.
    """
    middle = np.mean([draw.directions for draw in draws], axis=0)
    norms = np.linalg.norm(middle, axis=0)
    lengths = np.mean([draw.scales for draw in draws], axis=0)
    dispersions = [draw.dispersion for draw in draws if draw.dispersion is not None]
    return JointParameters(
        middle / np.where(norms > 0.0, norms, 1.0) * lengths,
        np.mean([draw.biases for draw in draws], axis=0),
        np.mean([draw.weights for draw in draws], axis=0),
        np.mean(dispersions, axis=0) if dispersions else None,
    )
