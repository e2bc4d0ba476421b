"""Points of the two likelihoods: coefficients free, or tied to one direction a component."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moment_init.responses.bounds import enforce, held_entries
from moment_init.responses.climbing import LARGEST_STEP, System
from moment_init.responses.parameters import JointParameters, Layout
from moment_init.responses.rows import JointProblem
from moment_init.responses.sums import JointSums, sum_rows
from moment_init.responses.ties import TiedParameters, TiedPlaces

__all__ = ["FreePoint", "TiedPoint"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FreePoint:
    """Every predictor of a component has coefficients of its own.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    parameters : JointParameters
        Standardised parameters inside the bounds.
    """

    problem: JointProblem
    parameters: JointParameters

    @classmethod
    def inside(cls, problem: JointProblem, parameters: JointParameters) -> "FreePoint":
        """A point at given parameters, moved inside the bounds.

        Parameters
        ----------
        problem : JointProblem
            The problem.
        parameters : JointParameters
            Any parameters; the component of largest weight is put last.

        Returns
        -------
        FreePoint
            The point.
        """
        order = np.argsort(parameters.weights, kind="stable")
        return cls(problem, enforce(problem, parameters.take(order)))

    @cached_property
    def _light_sums(self) -> JointSums:
        """Sums without information: a step of EM begins where the one before was evaluated."""
        return sum_rows(self.problem, self.parameters, has_information=False)

    @property
    def value(self) -> float:
        """Log-likelihood in standardised coordinates."""
        return self._light_sums.log_likelihood

    @property
    def limits(self) -> FloatArray:
        """Largest change of each entry in one step."""
        return _limits(self.problem.layout)

    def system(self, *, has_information: bool) -> System:
        """Derivatives of the log-likelihood.

        Parameters
        ----------
        has_information : bool
            Whether the observed information is needed.

        Returns
        -------
        System
            The derivatives.
        """
        sums = sum_rows(self.problem, self.parameters) if has_information else self._light_sums
        held = held_entries(self.problem, self.parameters, sums.gradient)
        return System(sums.gradient, sums.metric, sums.information, held)

    def moved(self, step: FloatArray) -> "FreePoint":
        """Take a step.

        Parameters
        ----------
        step : numpy.ndarray, shape (N,)
            The step.

        Returns
        -------
        FreePoint
            The point after it, inside the bounds.
        """
        layout = self.problem.layout
        there = layout.unpack(layout.pack(self.parameters) + step)
        return FreePoint(self.problem, enforce(self.problem, there))


@dataclass(frozen=True, eq=False)
class TiedPoint:
    """All predictors of a component have one direction: beta_ja = s_ja u_j.

    The vector holds component by component u_j and, predictor by predictor, (s_ja, b_ja[, log
    dispersion_ja]); then the logits. One entry of each component is redundant, the length of u_j.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    parameters : TiedParameters
        Standardised parameters inside the bounds.
    holds_directions : bool
        Whether directions do not move.
    """

    problem: JointProblem
    parameters: TiedParameters
    holds_directions: bool = False

    @classmethod
    def inside(
        cls, problem: JointProblem, parameters: TiedParameters, *, holds_directions: bool = False
    ) -> "TiedPoint":
        """A point at given parameters, moved inside the bounds.

        Parameters
        ----------
        problem : JointProblem
            The problem.
        parameters : TiedParameters
            Any parameters; the component of largest weight is put last.
        holds_directions : bool
            Whether directions do not move.

        Returns
        -------
        TiedPoint
            The point.
        """
        ordered = parameters.take(np.argsort(parameters.weights, kind="stable"))
        return cls(problem, _enforced(problem, ordered), holds_directions)

    @cached_property
    def _light_sums(self) -> JointSums:
        """Sums without information."""
        return sum_rows(self.problem, self.parameters.free, has_information=False)

    @property
    def value(self) -> float:
        """Log-likelihood in standardised coordinates."""
        return self._light_sums.log_likelihood

    @property
    def limits(self) -> FloatArray:
        """Largest change of each entry in one step."""
        full = _limits(self.problem.layout)
        return np.asarray(np.where(self.places.min_limit(full), LARGEST_STEP, np.inf))

    @property
    def places(self) -> TiedPlaces:
        """Places of the parameters in their vector."""
        return TiedPlaces(self.problem.layout)

    def system(self, *, has_information: bool) -> System:
        """Derivatives of the log-likelihood, by the chain rule.

        Parameters
        ----------
        has_information : bool
            Whether the observed information is needed.

        Returns
        -------
        System
            The derivatives; unless directions are held, both matrices are made definite along the
            redundant entries.
        """
        sums = sum_rows(self.problem, self.parameters.free) if has_information else self._light_sums
        jacobian = self.places.jacobian(self.parameters)
        gradient = sums.gradient @ jacobian
        metric = jacobian.T @ sums.metric @ jacobian
        fixing = np.zeros_like(metric)
        if not self.holds_directions:  # directions that are held leave scales determined
            gauge = self.places.gauge(self.parameters)
            fixing = gauge @ gauge.T * max(np.diag(metric).mean(), 1.0)
        information = None
        if sums.information is not None:
            curvature = self.places.curvature(sums.gradient)
            information = jacobian.T @ sums.information @ jacobian - curvature + fixing
        metric = metric + fixing
        metric[np.diag_indices_from(metric)] += 1e-10 * np.diag(metric).max()
        return System(gradient, metric, information, self._held(sums.gradient))

    def _held(self, gradient: FloatArray) -> NDArray[np.bool_]:
        full = held_entries(self.problem, self.parameters.free, gradient)
        held = self.places.held(full)
        if self.holds_directions:
            for j in range(self.problem.n_components):
                held[self.places.direction(j)] = True
        return held

    def moved(self, step: FloatArray) -> "TiedPoint":
        """Take a step.

        Parameters
        ----------
        step : numpy.ndarray, shape (M,)
            The step.

        Returns
        -------
        TiedPoint
            The point after it, inside the bounds.
        """
        there = self.places.unpack(self.places.pack(self.parameters) + step)
        return TiedPoint(self.problem, _enforced(self.problem, there), self.holds_directions)


def _limits(layout: Layout) -> FloatArray:
    """Limits of a step: logits and log dispersions."""
    result = np.full(layout.size, np.inf)
    for j in range(layout.n_components):
        for a, has_dispersion in enumerate(layout.has_dispersion):
            if has_dispersion:
                result[layout.component(j).start + layout.predictor(a).stop] = LARGEST_STEP
    result[layout.logits] = LARGEST_STEP
    return result


def _enforced(problem: JointProblem, parameters: TiedParameters) -> TiedParameters:
    """Tied parameters inside the bounds: a predictor that is too long is shrunk as a whole."""
    inside = enforce(problem, parameters.free)
    scales = np.einsum("pj,pja->ja", parameters.directions, inside.coefficients)
    return TiedParameters(
        parameters.directions, scales, inside.biases, inside.weights, inside.dispersion
    )
