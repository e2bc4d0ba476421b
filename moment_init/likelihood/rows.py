"""The rows over which a likelihood is summed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LikelihoodRows"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodRows:
    """Inputs, responses and what belongs to each row.

    Parameters
    ----------
    Z : numpy.ndarray, shape (n_obs, n_features)
        Inputs without a column of ones; rows of any real type, read by blocks as double precision.
    y : numpy.ndarray, shape (n_obs,)
        Response.
    sample_weight : numpy.ndarray, shape (n_obs,)
        Weight of each row; a row of weight 2 counts as two rows.
    offset : numpy.ndarray, shape (n_obs,), or None
        Known part of the linear predictor.
    n_trials : numpy.ndarray, shape (n_obs,), or None
        Trials behind each binomial response.
    """

    Z: NDArray[np.generic]
    y: FloatArray
    sample_weight: FloatArray
    offset: FloatArray | None = None
    n_trials: FloatArray | None = None

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.y.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns of the inputs."""
        return int(self.Z.shape[1])

    @property
    def total_weight(self) -> float:
        """Sum of the weights: the number of rows that these rows stand for."""
        return float(self.sample_weight.sum())

    def take(self, index: NDArray[np.intp] | slice) -> "LikelihoodRows":
        """Select rows.

        Parameters
        ----------
        index : numpy.ndarray of int, or slice
            The rows to take.

        Returns
        -------
        LikelihoodRows
            Those rows; views where `index` is a slice.
        """
        return LikelihoodRows(
            self.Z[index],
            self.y[index],
            self.sample_weight[index],
            None if self.offset is None else self.offset[index],
            None if self.n_trials is None else self.n_trials[index],
        )
