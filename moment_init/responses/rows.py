"""Rows with several responses in standardised coordinates, and the way back to the user's units."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky

from moment_init.coordinates import Coordinates
from moment_init.covariance import fit_correlation
from moment_init.responses.data import ResponsesData
from moment_init.responses.kinds import ResponseKind
from moment_init.responses.parameters import JointParameters, Layout
from moment_init.row_sources.standardising import whiten_rows

__all__ = ["JointProblem", "JointRows", "pose_joint"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class JointRows:
    """Rows over which a likelihood is summed.

    Parameters
    ----------
    Z : numpy.ndarray, shape (n_obs, n_features)
        Inputs without a column of ones.
    y : numpy.ndarray, shape (n_responses, n_obs)
        Responses.
    sample_weight : numpy.ndarray, shape (n_obs,)
        Weights.
    offset : numpy.ndarray, shape (n_predictors, n_obs), or None
        Known part of the predictors.
    n_trials : numpy.ndarray, shape (n_responses, n_obs), or None
        Trials.
    """

    Z: FloatArray
    y: FloatArray
    sample_weight: FloatArray
    offset: FloatArray | None = None
    n_trials: FloatArray | None = None

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.Z.shape[0])

    @property
    def total_weight(self) -> float:
        """Number of rows that these rows stand for."""
        return float(self.sample_weight.sum())

    def take(self, index: NDArray[np.intp] | slice) -> "JointRows":
        """Select rows.

        Parameters
        ----------
        index : numpy.ndarray of int, or slice
            The rows.

        Returns
        -------
        JointRows
            These rows.
        """
        return JointRows(
            self.Z[index],
            self.y[:, index],
            self.sample_weight[index],
            None if self.offset is None else self.offset[:, index],
            None if self.n_trials is None else self.n_trials[:, index],
        )


@dataclass(frozen=True, slots=True, eq=False)
class JointProblem:
    """Rows in standardised coordinates, and what is needed to fit them.

    Parameters
    ----------
    kind : ResponseKind
        How responses depend on predictors.
    rows : JointRows
        Whitened inputs; responses with the identity link have mean zero and variance one.
    coordinates : tuple of Coordinates
        The way to the user's units, one for each predictor.
    n_components : int
        Number of components.
    min_dispersion_ratio : float
        Hathaway's constraint.
    """

    kind: ResponseKind
    rows: JointRows
    coordinates: tuple[Coordinates, ...]
    n_components: int
    min_dispersion_ratio: float

    @property
    def layout(self) -> Layout:
        """Places of the parameters in their vector."""
        return Layout(self.rows.Z.shape[1], self.n_components, self.kind.has_dispersion)

    @property
    def log_likelihood_shift(self) -> float:
        """What takes a log-likelihood to the user's units, with all constants."""
        rows = self.rows
        base = self.kind.log_base_measure(rows.y, rows.n_trials)
        logs = sum(np.log(each.response_scale) for each in self.coordinates)
        return float(rows.sample_weight @ base) - rows.total_weight * float(logs)

    def with_components(self, n_components: int) -> "JointProblem":
        """The same rows for another number of components.

        Parameters
        ----------
        n_components : int
            The number.

        Returns
        -------
        JointProblem
            The problem.
        """
        return replace(self, n_components=n_components)

    def sample(self, n_rows: int, rng: np.random.Generator) -> "JointProblem":
        """Some of the rows, at random.

        Parameters
        ----------
        n_rows : int
            How many; all of them if there are no more.
        rng : numpy.random.Generator
            Source of randomness.

        Returns
        -------
        JointProblem
            Their problem, in the same coordinates.
        """
        if self.rows.n_obs <= n_rows:
            return self
        index = np.sort(rng.choice(self.rows.n_obs, n_rows, replace=False))
        return replace(self, rows=self.rows.take(index))

    def to_user(self, parameters: JointParameters) -> JointParameters:
        """Map parameters to the user's units.

        Parameters
        ----------
        parameters : JointParameters
            Standardised parameters.

        Returns
        -------
        JointParameters
            Those of the user's columns.
        """
        mapped = [
            where.coefficients_to_user(parameters.coefficients[:, :, a], parameters.biases[:, a])
            for a, where in enumerate(self.coordinates)
        ]
        scales = np.array([where.response_scale for where in self.coordinates])
        return JointParameters(
            np.stack([slopes for slopes, _ in mapped], axis=2),
            np.stack([levels for _, levels in mapped], axis=1),
            parameters.weights,
            None if parameters.dispersion is None else parameters.dispersion * scales,
        )

    def to_standardised(self, parameters: JointParameters) -> JointParameters:
        """Map parameters from the user's units.

        Parameters
        ----------
        parameters : JointParameters
            Parameters of the user's columns.

        Returns
        -------
        JointParameters
            Standardised parameters.
        """
        mapped = [
            where.coefficients_to_standardised(
                parameters.coefficients[:, :, a], parameters.biases[:, a]
            )
            for a, where in enumerate(self.coordinates)
        ]
        scales = np.array([where.response_scale for where in self.coordinates])
        return JointParameters(
            np.stack([slopes for slopes, _ in mapped], axis=2),
            np.stack([levels for _, levels in mapped], axis=1),
            parameters.weights,
            None if parameters.dispersion is None else parameters.dispersion / scales,
        )

    def user_jacobian(self) -> FloatArray:
        """Derivative of the user's vector of parameters in the standardised one, (N, N).

        Returns
        -------
        numpy.ndarray
            The matrix of the linear map; logarithms of dispersions and logits only shift.
        """
        layout = self.layout
        p = layout.n_features
        result = np.eye(layout.size)
        for a, where in enumerate(self.coordinates):
            unit = Coordinates(where.mean, where.factor, 0.0, where.response_scale)
            slopes, levels = unit.coefficients_to_user(
                np.eye(p, p + 1), np.append(np.zeros(p), 1.0)
            )
            block = np.vstack([slopes, levels])
            for j in range(layout.n_components):
                start = layout.component(j).start + layout.predictor(a).start
                result[start : start + p + 1, start : start + p + 1] = block
        return result


def pose_joint(data: ResponsesData, n_components: int, min_dispersion_ratio: float) -> JointProblem:
    """Standardise rows.

    Parameters
    ----------
    data : ResponsesData
        Checked rows of positive weight.
    n_components : int
        Number of components.
    min_dispersion_ratio : float
        Hathaway's constraint.

    Returns
    -------
    JointProblem
        The problem.

    Raises
    ------
    ValueError
        For constant or collinear columns, which are named.
    """
    fitted = fit_correlation(data.X, data.sample_weight, data.feature_names)
    factor = fitted.scales[:, None] * cholesky(fitted.correlation, lower=True)
    shares = data.sample_weight / data.sample_weight.sum()
    y, offset, coordinates = data.y.copy(), data.offset, []
    for index, has_units in enumerate(data.kind.has_units):
        shift, scale = 0.0, 1.0
        if has_units:
            if offset is not None:
                y[index] -= offset[index]
            shift = float(shares @ y[index])
            scale = float(np.sqrt(shares @ np.square(y[index] - shift)))
            y[index] = (y[index] - shift) / scale
        coordinates.append(Coordinates(fitted.mean, factor, shift, scale))
    if offset is not None:
        # The identity link's offsets are subtracted from the response.
        offset = np.where(np.array(data.kind.has_units)[:, None], 0.0, offset)
    rows = JointRows(
        whiten_rows(fitted.mean, factor, data.X), y, data.sample_weight, offset, data.n_trials
    )
    return JointProblem(data.kind, rows, tuple(coordinates), n_components, min_dispersion_ratio)
