"""One estimation problem: checked rows, density of the input, standardised coordinates."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import single_threaded_blas
from moment_init.coordinates import Coordinates
from moment_init.data import RegressionData
from moment_init.scores.gaussian import Gaussian

__all__ = ["EstimationProblem", "pose_problem"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class EstimationProblem:
    """What every estimator starts from.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : Gaussian
        Fitted density of the input.
    response : numpy.ndarray, shape (n_obs,)
        Response without offset and trials, standardised for the identity link.
    coordinates : Coordinates
        The way between standardised coordinates and the user's units.
    """

    data: RegressionData
    input_model: Gaussian
    response: FloatArray
    coordinates: Coordinates

    def thin(self, stride: int) -> "EstimationProblem":
        """Keep every so manieth row, without a copy; input model and coordinates stay.

        Parameters
        ----------
        stride : int
            Distance of the rows that are kept.

        Returns
        -------
        EstimationProblem
            The problem of those rows.
        """
        kept = slice(None, None, stride)
        return replace(self, data=self.data.take(kept), response=self.response[kept])


@single_threaded_blas()  # a threaded sum over rows has other bits
def pose_problem(data: RegressionData, input_model: Gaussian) -> EstimationProblem:
    """Standardise the response and settle the coordinates.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : Gaussian
        Fitted density of the input.

    Returns
    -------
    EstimationProblem
        The problem.
    """
    response = data.family.moment_response(
        data.y, order=1, offset=data.offset, n_trials=data.n_trials
    )
    shift, scale = 0.0, 1.0
    if data.family.response_power:
        weights = data.sample_weight / data.sample_weight.sum()
        shift = float(weights @ response)
        scale = float(np.sqrt(weights @ np.square(response - shift)))
        response = (response - shift) / scale
    factor = input_model.standardising_basis
    coordinates = Coordinates(input_model.mean_, factor, shift, scale)
    return EstimationProblem(data, input_model, response, coordinates)
