"""One fit by EM: checked rows in standardised coordinates, what is held, and the way back.

Everything is fitted in standardised coordinates (inputs whitened, a real response scaled, gating
covariates scaled), so that nothing depends on units; `EMProblem` maps parameters and their vector
to the user's units and back.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.optimize import linear_sum_assignment

from moment_init.coordinates import Coordinates
from moment_init.families import Family
from moment_init.likelihood.bounds import MIN_DISPERSION_RATIO, MIN_WEIGHT
from moment_init.likelihood.constraints import LinearConstraint
from moment_init.likelihood.maximise import MaximiseResult, maximise
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import parameter_free_log_likelihood

__all__ = ["EMProblem", "GateCoordinates", "Restrictions"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

_SMALLEST_LENGTH = 1e-300
"""Keeps the direction of a component without slopes finite."""


@dataclass(frozen=True, slots=True, eq=False)
class GateCoordinates:
    """Location and scale of the gating covariates.

    Parameters
    ----------
    mean, scales : numpy.ndarray, shape (n_gate,)
        Their means and standard deviations.
    names : tuple of str
        Their names.
    """

    mean: FloatArray
    scales: FloatArray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Restrictions:
    """What components share, and what is held.

    Parameters
    ----------
    shared_features : tuple of int
        Columns whose coefficients are common to all components.
    has_shared_bias, has_shared_dispersion : bool
        Whether the intercept and the dispersion are common too.
    weights : numpy.ndarray, shape (n_components,), or None
        Weights that are held.
    directions : numpy.ndarray, shape (n_features, n_components), or None
        Directions that are held, in the user's units; the rows then hold the projected inputs.
    """

    shared_features: tuple[int, ...] = ()
    has_shared_bias: bool = False
    has_shared_dispersion: bool = False
    weights: FloatArray | None = None
    directions: FloatArray | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is shared or held."""
        shared = self.shared_features or self.has_shared_bias or self.has_shared_dispersion
        return not shared and self.weights is None and self.directions is None

    @property
    def is_labelled(self) -> bool:
        """Whether components are told apart by what is held, so that their order matters."""
        return self.weights is not None or self.directions is not None


@dataclass(frozen=True, slots=True, eq=False)
class EMProblem:
    """Rows to be fitted by a mixture of a given number of components.

    Parameters
    ----------
    family : Family
        The response family.
    n_components : int
        Number of components.
    rows : LikelihoodRows
        Standardised rows; those of a group follow one another.
    coordinates : Coordinates
        The way to the user's units.
    gate_coordinates : GateCoordinates or None
        The same for gating covariates.
    order : numpy.ndarray of int, shape (n_obs,), or None
        Which of the user's rows stands where; None if they stand in the user's order.
    restrictions : Restrictions
        What is shared and held.
    min_dispersion_ratio : float
        Hathaway's constraint.
    constant : float or None
        Part of the rows' log-likelihood that no parameter enters, once `prepared`.
    """

    family: Family
    n_components: int
    rows: LikelihoodRows
    coordinates: Coordinates
    gate_coordinates: GateCoordinates | None = None
    order: IndexArray | None = None
    restrictions: Restrictions = Restrictions()
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO
    constant: float | None = None

    @property
    def log_jacobian(self) -> float:
        """Subtracted from a log-likelihood for the response in the user's units."""
        return self.rows.total_weight * float(np.log(self.coordinates.response_scale))

    def with_rows(self, rows: LikelihoodRows) -> "EMProblem":
        """The same problem for other rows, a sample of these for instance.

        Parameters
        ----------
        rows : LikelihoodRows
            Standardised rows.

        Returns
        -------
        EMProblem
            The problem; its `order` is no longer that of the user's rows.
        """
        return replace(self, rows=rows, constant=None)

    def prepared(self) -> "EMProblem":
        """The same problem with what many climbs would compute again and again.

        Returns
        -------
        EMProblem
            With products of columns stored, and the constant of the log-likelihood.
        """
        if self.constant is not None:
            return self
        constant = parameter_free_log_likelihood(self.family, self.rows)
        return replace(self, rows=self.rows.with_products(), constant=constant)

    def climb(self, start: MixtureParameters, **options: Any) -> MaximiseResult:
        """Climb from a start with any number of components, under the restrictions.

        Parameters
        ----------
        start : MixtureParameters
            Standardised parameters.
        **options
            Passed to `maximise`.

        Returns
        -------
        MaximiseResult
            Where the climb ended.
        """
        admissible = self.admit(start)
        return maximise(
            self.family,
            self.rows,
            admissible,
            min_weight=0.0 if self._holds_weights(start) else self.min_weight,
            min_dispersion_ratio=self.min_dispersion_ratio,
            constraint=self.constraint(admissible),
            constant=self.constant,
            **options,
        )

    @property
    def min_weight(self) -> float:
        """Smallest weight of a component: a tenth of a unit, and never more than 1e-4."""
        return min(MIN_WEIGHT, 0.1 / self.rows.total_units)

    def to_user(self, parameters: MixtureParameters) -> MixtureParameters:
        """Map parameters to the user's units.

        Parameters
        ----------
        parameters : MixtureParameters
            Standardised parameters.

        Returns
        -------
        MixtureParameters
            Parameters of the user's columns; the gate's weights are those at covariates zero.
        """
        slopes, biases = self.coordinates.coefficients_to_user(
            parameters.coefficients, parameters.biases
        )
        gate, weights = parameters.gate, parameters.weights
        if gate is not None and self.gate_coordinates is not None:
            gate = gate / self.gate_coordinates.scales[:, None]
            weights = _shift_logits(weights, -self.gate_coordinates.mean @ gate)
        scale = self.coordinates.response_scale
        return MixtureParameters(
            slopes,
            biases,
            weights,
            None if parameters.dispersion is None else parameters.dispersion * scale,
            gate,
        )

    def to_standardised(self, parameters: MixtureParameters) -> MixtureParameters:
        """Map parameters from the user's units; the inverse of `to_user`.

        Parameters
        ----------
        parameters : MixtureParameters
            Parameters of the user's columns.

        Returns
        -------
        MixtureParameters
            Standardised parameters; those of a problem with a gate get one with slopes zero if they
            have none.
        """
        slopes, biases = self.coordinates.coefficients_to_standardised(
            parameters.coefficients, parameters.biases
        )
        gate, weights = parameters.gate, parameters.weights
        if self.gate_coordinates is not None:
            if gate is None:
                gate = np.zeros((self.rows.n_gate, parameters.n_components))
            weights = _shift_logits(weights, self.gate_coordinates.mean @ gate)
            gate = gate * self.gate_coordinates.scales[:, None]
        scale = self.coordinates.response_scale
        return MixtureParameters(
            slopes,
            biases,
            weights,
            None if parameters.dispersion is None else parameters.dispersion / scale,
            gate,
        )

    def admit(self, parameters: MixtureParameters) -> MixtureParameters:
        """Make parameters satisfy the restrictions: shared ones are averaged, held ones are set.

        Parameters
        ----------
        parameters : MixtureParameters
            Standardised parameters, of any number of components.

        Returns
        -------
        MixtureParameters
            Parameters that satisfy them, with a gate if the problem has one.
        """
        if self.rows.gate is not None and parameters.gate is None:
            slopes = np.zeros((self.rows.n_gate, parameters.n_components))
            parameters = replace(parameters, gate=slopes)
        held = self.restrictions
        if held.is_empty:
            return parameters
        parameters = self._labelled(parameters)
        user = self.to_user(parameters)
        shares = parameters.weights
        shared = list(held.shared_features)
        coefficients, biases, dispersion = user.coefficients.copy(), user.biases, user.dispersion
        coefficients[shared] = (coefficients[shared] @ shares)[:, None]
        if self._holds_directions(parameters):  # component j reads the j-th projection only
            coefficients = np.diag(np.diag(coefficients))
        if held.has_shared_bias:
            biases = np.full_like(biases, biases @ shares)
        if dispersion is not None and held.has_shared_dispersion:
            dispersion = np.full_like(dispersion, np.exp(np.log(dispersion) @ shares))
        weights = held.weights if self._holds_weights(parameters) else user.weights
        return self.to_standardised(
            replace(
                user,
                coefficients=coefficients,
                biases=biases,
                dispersion=dispersion,
                weights=np.asarray(weights),
            )
        )

    def constraint(self, parameters: MixtureParameters) -> LinearConstraint | None:
        """The restrictions as a constraint on the vector of standardised parameters.

        Parameters
        ----------
        parameters : MixtureParameters
            Parameters with the number of components in question.

        Returns
        -------
        LinearConstraint or None
            None where nothing is shared or held.
        """
        if self.restrictions.is_empty:
            return None
        allowed = self._allowed_moves(parameters)
        return LinearConstraint.spanned_by(self.standardising_matrix(parameters) @ allowed)

    def standardising_matrix(self, parameters: MixtureParameters) -> FloatArray:
        """Linear part of the map from the user's vector of parameters to the standardised one.

        Parameters
        ----------
        parameters : MixtureParameters
            Parameters with the number of components in question.

        Returns
        -------
        numpy.ndarray, shape (n_parameters, n_parameters)
            The matrix, in the order of `moment_init.likelihood.parameters`.
        """
        p, scale = parameters.n_features, self.coordinates.response_scale
        component = np.zeros((p + 1, p + 1))
        component[:p, :p] = self.coordinates.factor.T / scale
        component[p, :p] = self.coordinates.mean / scale
        component[p, p] = 1 / scale
        if parameters.dispersion is not None:
            component = block_diag(component, np.ones((1, 1)))
        logit = np.ones((1, 1))
        if self.gate_coordinates is not None:
            logit = block_diag(1.0, np.diag(self.gate_coordinates.scales))
            logit[0, 1:] = self.gate_coordinates.mean
        r = parameters.n_components
        return np.asarray(block_diag(*[component] * r, *[logit] * (r - 1)))

    def _holds_weights(self, parameters: MixtureParameters) -> bool:
        """Weights are held once all components are there."""
        return (
            self.restrictions.weights is not None and parameters.n_components == self.n_components
        )

    def _holds_directions(self, parameters: MixtureParameters) -> bool:
        """Directions are held once all components are there; a component then has its own."""
        return (
            self.restrictions.directions is not None
            and parameters.n_components == self.n_components
        )

    def _labelled(self, parameters: MixtureParameters) -> MixtureParameters:
        """Give components that were found the held directions they point along, or held weights."""
        if self._holds_directions(parameters):
            coefficients = parameters.coefficients
            lengths = np.maximum(np.linalg.norm(coefficients, axis=0), _SMALLEST_LENGTH)
            shares = np.square(coefficients / lengths)  # (direction, component)
            if np.all(shares == np.diag(np.diag(shares))):
                return parameters
            return parameters.reorder(linear_sum_assignment(shares, maximize=True)[1])
        held = self.restrictions.weights
        is_partial = parameters.n_components != self.n_components
        if held is None or is_partial or np.allclose(parameters.weights, held):
            return parameters
        order = np.empty(self.n_components, dtype=np.intp)
        order[np.argsort(held, kind="stable")] = np.argsort(parameters.weights, kind="stable")
        return parameters.reorder(order)

    def _allowed_moves(self, parameters: MixtureParameters) -> FloatArray:
        """Directions, in the user's vector of parameters, that the restrictions leave."""
        held, p, r = self.restrictions, parameters.n_features, parameters.n_components
        shared = set(held.shared_features)
        if held.has_shared_bias:
            shared.add(p)
        size = p + 1
        if parameters.dispersion is not None:
            size = p + 2
            if held.has_shared_dispersion:
                shared.add(p + 1)
        moves = []
        for entry in range(size):
            owners = range(r)
            if self._holds_directions(parameters) and entry < p:
                owners = range(entry, entry + 1)
            entries = [component * size + entry for component in owners]
            groups = [entries] if entry in shared else [[index] for index in entries]
            moves += groups
        n_logits = (r - 1) * (1 + parameters.n_gate)
        if not self._holds_weights(parameters):
            moves += [[r * size + index] for index in range(n_logits)]
        result = np.zeros((r * size + n_logits, len(moves)))
        for column, indices in enumerate(moves):
            result[indices, column] = 1.0
        return result


def _shift_logits(weights: FloatArray, shift: FloatArray) -> FloatArray:
    """Weights whose logits are moved."""
    logits = np.log(weights) + shift
    odds = np.exp(logits - logits.max())
    return np.asarray(odds / odds.sum())
