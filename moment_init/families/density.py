"""What the likelihood of a mixture needs of a family: derivatives, posteriors, quadratures.

`eta` is the linear predictor and `tau` the logarithm of the dispersion. Arguments broadcast; the
mixture methods put components down and rows across, shape (n_components, n_obs), so that each
component's rows are contiguous.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from moment_init.families.links import FloatArray, Link

__all__ = [
    "FamilyDensity",
    "LogDensityDerivatives",
    "MixturePosterior",
    "ResponseNodes",
    "ResponseParameters",
    "normalise_joint",
]


class ResponseParameters(NamedTuple):
    """What a density needs besides the mean; NaN stands for what the family never reads.

    Parameters
    ----------
    dispersion, n_trials : ndarray
        Of shapes that broadcast with the mean.
    """

    dispersion: FloatArray
    n_trials: FloatArray


class LogDensityDerivatives(NamedTuple):
    """Log density and its derivatives in eta and tau = log(dispersion), all of one shape.

    The derivatives in tau are None for families without a dispersion.

    Parameters
    ----------
    value : ndarray
        The log density.
    eta1, eta2 : ndarray
        First and second derivative in eta.
    tau1, tau2 : ndarray or None
        First and second derivative in tau.
    eta_tau : ndarray or None
        Mixed derivative.
    """

    value: FloatArray
    eta1: FloatArray
    eta2: FloatArray
    tau1: FloatArray | None = None
    tau2: FloatArray | None = None
    eta_tau: FloatArray | None = None


class MixturePosterior(NamedTuple):
    """Rows under a mixture; `log_density` (n_obs,), everything else (n_components, n_obs).

    The derivatives are those of each component's own log density; `log_density` leaves out
    `FamilyDensity.log_base_measure`.

    Parameters
    ----------
    log_density : ndarray of shape (n_obs,)
        Log density of each row under the mixture.
    responsibilities : ndarray of shape (n_components, n_obs)
        Posterior probability of each component.
    eta1, eta2 : ndarray
        First and second derivative in eta.
    tau1, tau2 : ndarray or None
        First and second derivative in tau.
    eta_tau : ndarray or None
        Mixed derivative.
    """

    log_density: FloatArray
    responsibilities: FloatArray
    eta1: FloatArray
    eta2: FloatArray
    tau1: FloatArray | None = None
    tau2: FloatArray | None = None
    eta_tau: FloatArray | None = None


class ResponseNodes(NamedTuple):
    """A quadrature of the response given eta; the last axis runs over the nodes.

    Parameters
    ----------
    nodes : ndarray
        Values of the response.
    weights : ndarray
        Their probabilities, which sum to one over the last axis.
    """

    nodes: FloatArray
    weights: FloatArray


def normalise_joint(joint: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sum joint densities over the components, in the log domain.

    Parameters
    ----------
    joint : ndarray of shape (n_components, n_units)
        Log of prior probability times density; overwritten.

    Returns
    -------
    log_density : ndarray of shape (n_units,)
        Log of the sum over the components.
    responsibilities : ndarray of shape (n_components, n_units)
        The shares of the components in that sum.
    """
    largest = joint.max(axis=0)
    joint -= largest
    np.exp(joint, out=joint)
    total = joint.sum(axis=0)
    joint /= total
    return np.log(total) + largest, joint


@dataclass(frozen=True, slots=True)
class FamilyDensity(ABC):
    """The density of a response as a function of eta and tau.

    Parameters
    ----------
    link : Link
        The link function.

    Attributes
    ----------
    name : str
        The name users give.
    has_dispersion : bool
        Whether the distribution has a dispersion parameter.
    has_trials : bool
        Whether each row has a number of trials.
    has_unlimited_counts : bool
        Whether the response is a count without an upper limit.
    has_binary_rows : bool
        Whether each response is zero or one, so that single rows have no residuals to speak of.
    deviation_power : float or None
        Set for families whose mixture likelihood is unbounded, as one component may fit a few rows
        without error: ``dispersion**deviation_power`` is then proportional to the standard
        deviation of the response, and its ratio between components must be held (Hathaway 1985).
    has_closed_deviation : bool
        Whether the dispersion is the standard deviation of a residual that is free of it, so that
        its maximum-likelihood estimate has a closed form.
    dispersion_bounds : tuple of float
        Between which the dispersion is searched.
    """

    link: Link
    name: ClassVar[str]
    has_dispersion: ClassVar[bool] = False
    has_trials: ClassVar[bool] = False
    has_unlimited_counts: ClassVar[bool] = False
    has_binary_rows: ClassVar[bool] = False
    deviation_power: ClassVar[float | None] = None
    has_closed_deviation: ClassVar[bool] = False
    dispersion_bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)

    def log_base_measure(self, y: FloatArray, *, n_trials: ArrayLike | None = None) -> FloatArray:
        """Terms of the log density that are free of eta and of the dispersion.

        Parameters
        ----------
        y : ndarray
            The response.
        n_trials : array_like, optional
            Trials of each row.

        Returns
        -------
        ndarray
            Of the shape of `y`.
        """
        return self._log_base_measure(y, self._parameter("n_trials", n_trials, self.has_trials))

    def log_density_derivatives(
        self,
        y: FloatArray,
        eta: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> LogDensityDerivatives:
        """Log density with all constants, and its derivatives to the second order.

        Parameters
        ----------
        y : ndarray
            The response.
        eta : ndarray
            The linear predictor.
        dispersion, n_trials : array_like, optional
            Dispersion on its natural scale, and trials; both broadcast with `eta`.

        Returns
        -------
        LogDensityDerivatives
            Derivatives in eta and, for families with a dispersion, in tau = log(dispersion).
        """
        parameters = self._parameters(dispersion, n_trials)
        kernel = self._kernel_derivatives(y, eta, parameters)
        return kernel._replace(value=kernel.value + self._log_base_measure(y, parameters.n_trials))

    def mixture_posterior(
        self,
        y: FloatArray,
        eta: FloatArray,
        weights: FloatArray,
        *,
        dispersion: FloatArray | None = None,
        n_trials: FloatArray | None = None,
    ) -> MixturePosterior:
        r"""Density of each row under a mixture, and the posterior of its component.

        .. math:: p(y_i) = \sum_j w_j p_j(y_i), \qquad R_{ji} = w_j p_j(y_i) / p(y_i).

        Parameters
        ----------
        y : ndarray of shape (n_obs,)
            The response.
        eta : ndarray of shape (n_components, n_obs)
            The linear predictors.
        weights : ndarray of shape (n_components,) or (n_components, n_obs)
            Probabilities of the components, all positive; of each row's own where a gate sets them.
        dispersion : ndarray of shape (n_components,), optional
            Dispersion of each component.
        n_trials : ndarray of shape (n_obs,), optional
            Trials of each row.

        Returns
        -------
        MixturePosterior
            With `log_base_measure` left out of the log density: it is the same for all parameters.
        """
        by_component = None if dispersion is None else np.asarray(dispersion)[:, None]
        parameters = self._parameters(by_component, n_trials)
        prior = weights[:, None] if weights.ndim == 1 else weights
        return self._mixture_posterior(y, eta, prior, parameters)

    def kernel_derivatives(
        self,
        y: FloatArray,
        eta: FloatArray,
        *,
        dispersion: FloatArray | None = None,
        n_trials: FloatArray | None = None,
    ) -> LogDensityDerivatives:
        """Log density of each row under each component, and its derivatives.

        Parameters
        ----------
        y : ndarray of shape (n_obs,)
            The response.
        eta : ndarray of shape (n_components, n_obs)
            The linear predictors.
        dispersion : ndarray of shape (n_components,), optional
            Dispersion of each component.
        n_trials : ndarray of shape (n_obs,), optional
            Trials of each row.

        Returns
        -------
        LogDensityDerivatives
            With `log_base_measure` left out of the log density.
        """
        by_component = None if dispersion is None else np.asarray(dispersion)[:, None]
        return self._kernel_derivatives(y, eta, self._parameters(by_component, n_trials))

    def response_nodes(
        self,
        eta: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: int | None = None,
        most: int | None = None,
    ) -> ResponseNodes:
        r"""Quadrature of the response: :math:`E[T(y) | \eta] = \sum_k w_k T(y_k)` for any T.

        Parameters
        ----------
        eta : ndarray
            The linear predictor, any shape.
        dispersion : array_like, optional
            Dispersion; broadcasts with `eta`.
        n_trials : int, optional
            Trials of every row, for the binomial family.
        most : int, optional
            The largest count with a node of its own, for counts without an upper limit. Larger
            counts are moved to it, so that the expectation is that of ``T(min(y, most))``.

        Returns
        -------
        ResponseNodes
            `nodes` and `weights`, of the shape of `eta` with the nodes as one more axis at the
            end; `nodes` has that axis only where the nodes are the same for every eta.

        Notes
        -----
        Exact to rounding for counts. For gaussian and gamma responses a Gauss-Hermite rule in the
        normal score of the response: exact to about 1e-6 where T, on the scale of the residual,
        oscillates no faster than ``cos(4 z)``; steps in T are smoothed.
        """
        parameters = self._parameters(dispersion, n_trials)
        if most is None and self.has_unlimited_counts:
            raise ValueError(
                f"`most` is needed for family {self.name!r}; got None. "
                "Give the largest count that occurs."
            )
        return self._response_nodes(np.asarray(eta, dtype=np.float64), parameters, most or 0)

    def _mixture_posterior(
        self, y: FloatArray, eta: FloatArray, weights: FloatArray, parameters: ResponseParameters
    ) -> MixturePosterior:
        """Posterior by a log-sum-exp over the components."""
        kernel = self._kernel_derivatives(y, eta, parameters)
        log_density, responsibilities = normalise_joint(kernel.value + np.log(weights))
        return MixturePosterior(log_density, responsibilities, *kernel[1:])

    def _parameters(
        self, dispersion: ArrayLike | None, n_trials: ArrayLike | None
    ) -> ResponseParameters:
        return ResponseParameters(
            self._parameter("dispersion", dispersion, self.has_dispersion),
            self._parameter("n_trials", n_trials, self.has_trials),
        )

    def _parameter(self, argument: str, value: ArrayLike | None, is_needed: bool) -> FloatArray:
        if value is None and is_needed:
            raise ValueError(f"`{argument}` is needed for family {self.name!r}; got None. Give it.")
        return np.asarray(np.nan if value is None else value, dtype=np.float64)

    @abstractmethod
    def _log_base_measure(self, y: FloatArray, n_trials: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _kernel_derivatives(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> LogDensityDerivatives: ...

    @abstractmethod
    def _response_nodes(
        self, eta: FloatArray, parameters: ResponseParameters, most: int
    ) -> ResponseNodes: ...
