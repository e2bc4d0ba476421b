"""One estimation problem: checked rows, density of the input, standardised coordinates."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import single_threaded_blas
from moment_init.continuous_block import ContinuousBlock
from moment_init.coordinates import Coordinates
from moment_init.data import RegressionData
from moment_init.input_choice import InputChoice
from moment_init.scores import InputModel

__all__ = ["BlockProblem", "EstimationProblem", "pose_problem"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class EstimationProblem:
    """What every estimator starts from.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : InputModel
        Fitted density of the input whose mean and covariance are those of the coordinates.
    response : numpy.ndarray, shape (n_obs,)
        Response without offset and trials, standardised for the identity link.
    coordinates : Coordinates
        The way between standardised coordinates and the user's units.
    densities : tuple of InputModel
        Densities with whose scores moments are formed, the preferred one first; `input_model`
        alone if there are none.
    choice : InputChoice or None
        How they were chosen, where they were.
    block : BlockProblem or None
        The problem of the continuous columns, where others are discrete: moments are its own.
    """

    data: RegressionData
    input_model: InputModel
    response: FloatArray
    coordinates: Coordinates
    densities: tuple[InputModel, ...] = ()
    choice: InputChoice | None = None
    block: "BlockProblem | None" = None

    @property
    def source(self) -> "EstimationProblem":
        """The problem that moments are formed of."""
        return self if self.block is None else self.block.problem

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


@dataclass(frozen=True, slots=True, eq=False)
class BlockProblem:
    """The problem of the continuous columns.

    Parameters
    ----------
    problem : EstimationProblem
        Their problem.
    block : ContinuousBlock
        The way back to all columns.
    kinds : tuple of str
        Why each column of all has no density, in words; empty for those that have one.
    """

    problem: EstimationProblem
    block: ContinuousBlock
    kinds: tuple[str, ...]

    def discrete_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the discrete columns.

        Parameters
        ----------
        names : tuple of str
            Names of all columns.

        Returns
        -------
        tuple of str
            Those of the discrete ones.
        """
        pairs = zip(names, self.block.is_discrete, strict=True)
        return tuple(name for name, is_discrete in pairs if is_discrete)


@single_threaded_blas()  # a threaded sum over rows has other bits
def pose_problem(
    data: RegressionData,
    input_model: InputModel,
    *,
    choice: InputChoice | None = None,
    densities: tuple[InputModel, ...] = (),
    block: BlockProblem | None = None,
) -> EstimationProblem:
    """Standardise the response and settle the coordinates.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : InputModel
        Fitted density of the input that gives the coordinates.
    choice : InputChoice, optional
        How densities were chosen.
    densities : tuple of InputModel, optional
        Densities with whose scores moments are formed; the same as `input_model` by default.
    block : BlockProblem, optional
        The problem of the continuous columns.

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
    coordinates = Coordinates(input_model.mean_, input_model.standardising_basis, shift, scale)
    return EstimationProblem(data, input_model, response, coordinates, densities, choice, block)
