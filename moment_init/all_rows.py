"""All rows of a likelihood in the user's units, seen from standardised coordinates.

Many rows are not whitened: parameters and scores are mapped to the user's units and back.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.blocks import read_block
from moment_init.families import Family
from moment_init.likelihood.parameters import (
    MixtureParameters,
    component_size,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums
from moment_init.row_samples import sample_rows
from moment_init.row_sources.columns import hold_rows

__all__ = ["AllRows"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class AllRows:
    """All rows of a likelihood, with the way to standardised coordinates.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows, inputs in the user's units.
    mean : numpy.ndarray, shape (n_features,)
        Mean of the inputs.
    factor : numpy.ndarray, shape (n_features, n_features)
        Lower triangular L with L L' the covariance of the inputs.
    constant : float
        Log-likelihood terms that no parameter enters.
    """

    family: Family
    rows: LikelihoodRows
    mean: FloatArray
    factor: FloatArray
    constant: float = 0.0

    def sample(self, size: int, rng: np.random.Generator) -> LikelihoodRows:
        """Take a random sample of rows, whitened; all rows if there are not more.

        Parameters
        ----------
        size : int
            How many.
        rng : numpy.random.Generator
            Source of the sample.

        Returns
        -------
        LikelihoodRows
            The rows in standardised coordinates.
        """
        taken = self.rows.take(sample_rows(self.rows.n_obs, size, rng))
        centred = read_block(taken.Z, slice(None)) - self.mean
        whitened = solve_triangular(self.factor, centred.T, lower=True).T
        return replace(taken, Z=np.ascontiguousarray(whitened))

    def hold_samples(self, sizes: Sequence[int], rng: np.random.Generator) -> None:
        """Read rows that will be sampled, in one pass if they are not in memory.

        Parameters
        ----------
        sizes : sequence of int
            Sizes of the next samples.
        rng : numpy.random.Generator
            Will draw them; as it is now, afterwards.
        """
        rows = self.rows
        if rows.source is not None:
            copied = deepcopy(rng)
            wanted = [sample_rows(rows.n_obs, size, copied) for size in sizes]
            hold_rows((rows.Z, rows.y, rows.sample_weight, rows.offset, rows.n_trials), wanted)

    def thin(self, stride: int) -> "AllRows":
        """Take every so manieth row, without a copy and without constant.

        Parameters
        ----------
        stride : int
            Distance of the rows that are kept.

        Returns
        -------
        AllRows
            Those rows.
        """
        return replace(self, rows=self.rows.take(slice(None, None, stride)), constant=0.0)

    def evaluate(self, parameters: MixtureParameters) -> tuple[float, FloatArray]:
        """Sum log-likelihood and score over the rows, none of them whitened.

        Parameters
        ----------
        parameters : MixtureParameters
            In standardised coordinates.

        Returns
        -------
        log_likelihood : float
            The log-likelihood.
        score : numpy.ndarray, shape (n_parameters,)
            Its gradient in the parameters given.
        """
        slopes = solve_triangular(self.factor, parameters.coefficients, lower=True, trans="T")
        in_user_units = replace(
            parameters,
            coefficients=np.asarray(slopes),
            biases=np.asarray(parameters.biases - self.mean @ slopes),
        )
        sums = likelihood_sums(
            self.family, self.rows, in_user_units, curvature=False, constant=self.constant
        )
        score = sums.score.copy()
        p, r = parameters.coefficients.shape
        by_component = score[: r * component_size(parameters)].reshape(r, -1)
        about_mean = by_component[:, :p] - by_component[:, [p]] * self.mean
        by_component[:, :p] = solve_triangular(self.factor, about_mean.T, lower=True).T
        return sums.log_likelihood, score
