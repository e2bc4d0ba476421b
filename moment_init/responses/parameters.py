"""Parameters of a mixture with several linear predictors a component, and their one order.

The vector holds component by component, and within it predictor by predictor, (beta_ja, b_ja[, log
dispersion_ja]); then for each component but the last the logit log(w_j / w_r).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["JointParameters", "Layout"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class JointParameters:
    """Parameters of a mixture whose rows have several predictors.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components, n_predictors)
        The coefficients beta_ja.
    biases : numpy.ndarray, shape (n_components, n_predictors)
        The intercepts b_ja.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities of the components.
    dispersion : numpy.ndarray, shape (n_components, n_predictors), or None
        Dispersion; NaN where a response has none, None if no response has one.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None = None

    @property
    def n_features(self) -> int:
        """Number of features, p."""
        return int(self.coefficients.shape[0])

    @property
    def n_components(self) -> int:
        """Number of components, r."""
        return int(self.coefficients.shape[1])

    @property
    def n_predictors(self) -> int:
        """Number of predictors of a component, P."""
        return int(self.coefficients.shape[2])

    @property
    def scales(self) -> FloatArray:
        """Lengths of the coefficients, shape (n_components, n_predictors)."""
        return np.asarray(np.linalg.norm(self.coefficients, axis=0))

    @property
    def directions(self) -> FloatArray:
        """Unit directions, shape (n_features, n_components, n_predictors)."""
        scales = self.scales
        return np.asarray(self.coefficients / np.where(scales > 0.0, scales, 1.0))

    def take(self, order: NDArray[np.intp] | list[int]) -> "JointParameters":
        """Take components in a given order; the weights are made to sum to one.

        Parameters
        ----------
        order : sequence of int
            Which components, and in which order; some may be left out or repeated.

        Returns
        -------
        JointParameters
            These components.
        """
        weights = self.weights[order]
        return JointParameters(
            self.coefficients[:, order],
            self.biases[order],
            weights / weights.sum(),
            None if self.dispersion is None else self.dispersion[order],
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the parameters in their vector.

    Parameters
    ----------
    n_features, n_components : int
        Sizes p and r.
    has_dispersion : tuple of bool
        Whether each predictor comes with a dispersion.
    """

    n_features: int
    n_components: int
    has_dispersion: tuple[bool, ...]

    @property
    def component_size(self) -> int:
        """Number of entries that a component owns, q."""
        return len(self.has_dispersion) * (self.n_features + 1) + sum(self.has_dispersion)

    @property
    def size(self) -> int:
        """Number of parameters, r q + r - 1."""
        return self.n_components * self.component_size + self.n_components - 1

    @property
    def logits(self) -> slice:
        """Where the logits are."""
        return slice(self.n_components * self.component_size, self.size)

    def predictor(self, index: int) -> slice:
        """Where (beta, b) of a predictor are within a component.

        Parameters
        ----------
        index : int
            The predictor.

        Returns
        -------
        slice
            Of length p + 1; a log dispersion follows.
        """
        start = index * (self.n_features + 1) + sum(self.has_dispersion[:index])
        return slice(start, start + self.n_features + 1)

    def component(self, index: int) -> slice:
        """Where the parameters of a component are.

        Parameters
        ----------
        index : int
            The component.

        Returns
        -------
        slice
            Of length q.
        """
        return slice(index * self.component_size, (index + 1) * self.component_size)

    def pack(self, parameters: JointParameters) -> FloatArray:
        """Write parameters as a vector.

        Parameters
        ----------
        parameters : JointParameters
            The parameters.

        Returns
        -------
        numpy.ndarray, shape (size,)
            The vector.
        """
        vector = np.empty(self.size)
        for j in range(self.n_components):
            own = vector[self.component(j)]
            for a, has_dispersion in enumerate(self.has_dispersion):
                place = self.predictor(a)
                own[place] = [*parameters.coefficients[:, j, a], parameters.biases[j, a]]
                if has_dispersion and parameters.dispersion is not None:
                    own[place.stop] = np.log(parameters.dispersion[j, a])
        logits = np.log(parameters.weights)
        vector[self.logits] = logits[:-1] - logits[-1]
        return vector

    def unpack(self, vector: FloatArray) -> JointParameters:
        """Read parameters from a vector; the inverse of `pack`.

        Parameters
        ----------
        vector : numpy.ndarray, shape (size,)
            The vector.

        Returns
        -------
        JointParameters
            The parameters.
        """
        coefficients, biases, log_dispersion = self.entries(vector)
        dispersion = np.exp(log_dispersion) if any(self.has_dispersion) else None
        logits = np.append(vector[self.logits], 0.0)
        odds = np.exp(logits - logits.max())
        return JointParameters(coefficients, biases, odds / odds.sum(), dispersion)

    def entries(self, vector: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Entries of a vector that belong to components, as they are.

        Parameters
        ----------
        vector : numpy.ndarray, shape (size,)
            The vector, or one of its standard errors.

        Returns
        -------
        coefficients : numpy.ndarray, shape (n_features, n_components, n_predictors)
            Those of the coefficients.
        biases : numpy.ndarray, shape (n_components, n_predictors)
            Those of the biases.
        log_dispersion : numpy.ndarray, shape (n_components, n_predictors)
            Those of the logarithms of the dispersion; NaN where there is none.
        """
        p, r, n_predictors = self.n_features, self.n_components, len(self.has_dispersion)
        coefficients, biases = np.empty((p, r, n_predictors)), np.empty((r, n_predictors))
        log_dispersion = np.full((r, n_predictors), np.nan)
        for j in range(r):
            own = vector[self.component(j)]
            for a, has_dispersion in enumerate(self.has_dispersion):
                place = self.predictor(a)
                coefficients[:, j, a], biases[j, a] = own[place][:p], own[place][p]
                if has_dispersion:
                    log_dispersion[j, a] = own[place.stop]
        return coefficients, biases, log_dispersion
