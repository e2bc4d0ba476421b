"""Parameters of components with one direction each, and their place among free ones."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.responses.parameters import JointParameters, Layout

__all__ = ["TiedParameters", "TiedPlaces"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TiedParameters:
    """Parameters of a mixture in which all predictors of a component have one direction.

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions u_j.
    scales : numpy.ndarray, shape (n_components, n_predictors)
        Scales s_ja, of either sign: the coefficients are s_ja u_j.
    biases : numpy.ndarray, shape (n_components, n_predictors)
        Intercepts.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities of the components.
    dispersion : numpy.ndarray, shape (n_components, n_predictors), or None
        Dispersion.
    """

    directions: FloatArray
    scales: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None = None

    @property
    def free(self) -> JointParameters:
        """The same mixture by its coefficients."""
        coefficients = self.directions[:, :, None] * self.scales[None]
        return JointParameters(coefficients, self.biases, self.weights, self.dispersion)

    def take(self, order: NDArray[np.intp]) -> "TiedParameters":
        """Take components in another order.

        Parameters
        ----------
        order : numpy.ndarray of int
            The order.

        Returns
        -------
        TiedParameters
            The same mixture.
        """
        return TiedParameters(
            self.directions[:, order],
            self.scales[order],
            self.biases[order],
            self.weights[order],
            None if self.dispersion is None else self.dispersion[order],
        )


@dataclass(frozen=True, slots=True)
class TiedPlaces:
    """Places of tied parameters in their vector, against those of free ones.

    Parameters
    ----------
    layout : Layout
        Places of the free ones.
    """

    layout: Layout

    @property
    def component_size(self) -> int:
        """Entries of one component."""
        has_dispersion = self.layout.has_dispersion
        return self.layout.n_features + 2 * len(has_dispersion) + sum(has_dispersion)

    @property
    def size(self) -> int:
        """Entries of the vector."""
        return self.layout.n_components * self.component_size + self.layout.n_components - 1

    def direction(self, component: int) -> slice:
        """Where a direction is.

        Parameters
        ----------
        component : int
            The component.

        Returns
        -------
        slice
            Of length p.
        """
        start = component * self.component_size
        return slice(start, start + self.layout.n_features)

    def scale(self, component: int, predictor: int) -> int:
        """Where a scale is; bias and log dispersion follow.

        Parameters
        ----------
        component, predictor : int
            Which scale.

        Returns
        -------
        int
            The index.
        """
        before = sum(self.layout.has_dispersion[:predictor])
        first = (component * self.component_size) + self.layout.n_features
        return first + 2 * predictor + before

    def _pairs(self) -> list[tuple[int, int, int, slice]]:
        """Component, predictor, place of its scale, and place of its (beta, b) when free."""
        layout = self.layout
        result = []
        for j in range(layout.n_components):
            for a in range(len(layout.has_dispersion)):
                start, own = layout.component(j).start, layout.predictor(a)
                place = slice(start + own.start, start + own.stop)
                result.append((j, a, self.scale(j, a), place))
        return result

    def pack(self, parameters: TiedParameters) -> FloatArray:
        """Write parameters as a vector.

        Parameters
        ----------
        parameters : TiedParameters
            The parameters.

        Returns
        -------
        numpy.ndarray, shape (size,)
            The vector.
        """
        vector = np.empty(self.size)
        for j, a, place, _ in self._pairs():
            vector[self.direction(j)] = parameters.directions[:, j]
            vector[place], vector[place + 1] = parameters.scales[j, a], parameters.biases[j, a]
            if self.layout.has_dispersion[a] and parameters.dispersion is not None:
                vector[place + 2] = np.log(parameters.dispersion[j, a])
        logits = np.log(parameters.weights)
        vector[self.layout.n_components * self.component_size :] = logits[:-1] - logits[-1]
        return vector

    def unpack(self, vector: FloatArray) -> TiedParameters:
        """Read parameters from a vector; directions are brought to length one.

        Parameters
        ----------
        vector : numpy.ndarray, shape (size,)
            The vector.

        Returns
        -------
        TiedParameters
            The parameters.
        """
        layout = self.layout
        r, n_predictors = layout.n_components, len(layout.has_dispersion)
        scales, biases = np.empty((r, n_predictors)), np.empty((r, n_predictors))
        dispersion = np.full((r, n_predictors), np.nan) if any(layout.has_dispersion) else None
        for j, a, place, _ in self._pairs():
            scales[j, a], biases[j, a] = vector[place], vector[place + 1]
            if layout.has_dispersion[a] and dispersion is not None:
                dispersion[j, a] = np.exp(vector[place + 2])
        directions = np.column_stack([vector[self.direction(j)] for j in range(r)])
        lengths = np.maximum(np.linalg.norm(directions, axis=0), 1e-12)
        logits = np.append(vector[r * self.component_size :], 0.0)
        odds = np.exp(logits - logits.max())
        return TiedParameters(
            directions / lengths, scales * lengths[:, None], biases, odds / odds.sum(), dispersion
        )

    def jacobian(self, parameters: TiedParameters) -> FloatArray:
        """Derivative of the free vector in the tied one, (N, M).

        Parameters
        ----------
        parameters : TiedParameters
            Where.

        Returns
        -------
        numpy.ndarray
            The matrix.
        """
        layout, p = self.layout, self.layout.n_features
        result = np.zeros((layout.size, self.size))
        for j, a, place, own in self._pairs():
            slopes = slice(own.start, own.start + p)
            result[slopes, self.direction(j)] = parameters.scales[j, a] * np.eye(p)
            result[slopes, place] = parameters.directions[:, j]
            result[own.stop - 1, place + 1] = 1.0
            if layout.has_dispersion[a]:
                result[own.stop, place + 2] = 1.0
        n_logits = layout.n_components - 1
        result[layout.size - n_logits :, self.size - n_logits :] = np.eye(n_logits)
        return result

    def curvature(self, gradient: FloatArray) -> FloatArray:
        """Second derivatives of the free vector times the score in it, (M, M).

        Parameters
        ----------
        gradient : numpy.ndarray, shape (N,)
            The score.

        Returns
        -------
        numpy.ndarray
            The matrix; beta = s u has mixed derivatives only.
        """
        result = np.zeros((self.size, self.size))
        for j, _, place, own in self._pairs():
            slopes = gradient[own.start : own.stop - 1]
            result[self.direction(j), place] = result[place, self.direction(j)] = slopes
        return result

    def gauge(self, parameters: TiedParameters) -> FloatArray:
        """Unit directions along which nothing changes: longer u_j, smaller s_ja, (M, r).

        Parameters
        ----------
        parameters : TiedParameters
            Where.

        Returns
        -------
        numpy.ndarray
            A column a component.
        """
        result = np.zeros((self.size, self.layout.n_components))
        for j, a, place, _ in self._pairs():
            result[self.direction(j), j] = parameters.directions[:, j]
            result[place, j] = -parameters.scales[j, a]
        return np.asarray(result / np.linalg.norm(result, axis=0))

    def held(self, full: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Entries that are held, from those of the free vector: scales, not directions.

        Parameters
        ----------
        full : numpy.ndarray of bool, shape (N,)
            Entries of the free vector that are held.

        Returns
        -------
        numpy.ndarray of bool, shape (M,)
            Entries of the tied one.
        """
        result = np.zeros(self.size, dtype=bool)
        for _, a, place, own in self._pairs():
            result[place : place + 2] = full[own.start]
            if self.layout.has_dispersion[a]:
                result[place + 2] = full[own.stop]
        n_logits = self.layout.n_components - 1
        result[self.size - n_logits :] = full[self.layout.logits]
        return result

    def min_limit(self, full: FloatArray) -> NDArray[np.bool_]:
        """Entries whose change in one step is limited.

        Parameters
        ----------
        full : numpy.ndarray, shape (N,)
            Limits of the free vector.

        Returns
        -------
        numpy.ndarray of bool, shape (M,)
            Log dispersions and logits.
        """
        return self.held(np.isfinite(full))
