"""What a response family is: the contract that every estimator and model codes against.

Conventions of all methods: `eta` is the linear predictor and ``mean = g(eta)`` (for the binomial
family the probability of one trial). Arguments broadcast: with `y` and `n_trials` of shape
(n_obs, 1), `eta` or `mean` of shape (n_obs, n_components) and `dispersion` of shape
(n_components,), results have the shape (n_obs, n_components). `dispersion` is the standard
deviation (gaussian), alpha with variance ``mean + mean**2 / alpha`` (negative binomial) or the
shape (gamma); families without one ignore it, and families without trials ignore `n_trials`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from moment_init.families.density import FamilyDensity, ResponseParameters
from moment_init.families.links import FloatArray
from moment_init.families.response_functions import (
    ResponseBasis,
    ResponseFunctions,
    fit_response_functions,
)
from moment_init.real_arrays import as_float_array

__all__ = ["Family", "ResponseParameters"]


@dataclass(frozen=True, slots=True)
class Family(FamilyDensity):
    """A response distribution with its link.

    Parameters
    ----------
    link : Link
        The link function; its name is one of `supported_links`.

    Attributes
    ----------
    name : str
        The name users give.
    supported_links : tuple of str
        The links that may be asked for; the first is the default.
    has_dispersion : bool
        Whether the distribution has a dispersion parameter.
    has_trials : bool
        Whether each row has a number of trials.
    response_power : bool
        Whether the moment of order m uses ``y**m`` (Lemma 6 of the paper) instead of ``y``.
    typical_scale : float
        A length of the coefficients that gives informative data for standardised features.
    typical_dispersion : float or None
        A dispersion that gives informative data at that scale.
    response_basis : ResponseBasis
        The functions of the response that the stacked estimator uses.
    """

    supported_links: ClassVar[tuple[str, ...]]
    response_power: ClassVar[bool] = False
    typical_scale: ClassVar[float]
    typical_dispersion: ClassVar[float | None] = None
    response_basis: ClassVar[ResponseBasis]

    def validate_response(self, y: ArrayLike, n_trials: ArrayLike | None = None) -> None:
        """Raise if a response is not possible under this family.

        Parameters
        ----------
        y : array_like of shape (n_obs,)
            The response, numeric and without missing values.
        n_trials : int or array_like of shape (n_obs,), optional
            Trials of each row; needed by the binomial family and refused by the others.

        Raises
        ------
        ValueError
            Naming the rule, the first offending value and its row, and the remedy.
        """
        if n_trials is not None and not self.has_trials:
            raise ValueError(
                f"`n_trials` has no meaning for family {self.name!r}; got a value for it. "
                "Leave it out, or use family='binomial'."
            )
        response = as_float_array(y, "y")
        self._validate_response(response, n_trials)

    def log_density(
        self,
        y: FloatArray,
        mean: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> FloatArray:
        """Log density (or log probability) of each response, with all constants.

        Parameters
        ----------
        y : ndarray
            The response.
        mean : ndarray
            ``g(eta)``.
        dispersion, n_trials : array_like, optional
            As described at the head of the module.

        Returns
        -------
        ndarray
            ``log p(y | mean)``, of the broadcast shape.
        """
        return self._log_density(y, mean, self._parameters(dispersion, n_trials))

    def log_density_eta(
        self,
        y: FloatArray,
        eta: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> FloatArray:
        """Log density of each response from the linear predictor, stable where the mean is not.

        Parameters
        ----------
        y : ndarray
            The response.
        eta : ndarray
            The linear predictor.
        dispersion, n_trials : array_like, optional
            As described at the head of the module.

        Returns
        -------
        ndarray
            ``log p(y | g(eta))``, of the broadcast shape.
        """
        return self._log_density_eta(y, eta, self._parameters(dispersion, n_trials))

    def score_and_weight(
        self,
        y: FloatArray,
        eta: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """First derivative of the log density in eta, and its Fisher information.

        Parameters
        ----------
        y : ndarray
            The response.
        eta : ndarray
            The linear predictor.
        dispersion, n_trials : array_like, optional
            As described at the head of the module.

        Returns
        -------
        score : ndarray
            ``d log p / d eta``, of the broadcast shape.
        weight : ndarray
            ``g'(eta)**2 / Var(y)``, of the same shape: the expected square of the score.
        """
        parameters = self._parameters(dispersion, n_trials)
        score, weight = self._score_and_weight(y, eta, parameters)
        return score, np.array(np.broadcast_to(weight, score.shape))

    def variance(
        self,
        mean: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> FloatArray:
        """Variance of the response given its mean.

        Parameters
        ----------
        mean : ndarray
            ``g(eta)``.
        dispersion, n_trials : array_like, optional
            As described at the head of the module.

        Returns
        -------
        ndarray
            ``Var(y)``, of the broadcast shape (binomial: of the count, not of the proportion).
        """
        return self._variance(mean, self._parameters(dispersion, n_trials))

    def sample(
        self,
        mean: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Draw one response for each mean.

        Parameters
        ----------
        mean : ndarray
            ``g(eta)``.
        dispersion, n_trials : array_like, optional
            As described at the head of the module.
        rng : numpy.random.Generator
            The source of randomness.

        Returns
        -------
        ndarray of float
            The draws, of the broadcast shape; counts are whole numbers held as floats.
        """
        return self._sample(mean, self._parameters(dispersion, n_trials), rng)

    def estimate_dispersion(
        self, y: FloatArray, mean: FloatArray, weights: FloatArray, *, initial: float
    ) -> float:
        """Maximise the weighted log likelihood over the dispersion, the means held.

        Parameters
        ----------
        y : ndarray of shape (n_obs,)
            The response.
        mean : ndarray of shape (n_obs,)
            ``g(eta)``.
        weights : ndarray of shape (n_obs,)
            Non-negative weights of the rows, such as responsibilities.
        initial : float
            Where an iterative search begins; also the result when all weights are zero.

        Returns
        -------
        float
            The dispersion.

        Raises
        ------
        ValueError
            If the family has no dispersion.
        """
        if not self.has_dispersion:
            raise ValueError(
                f"family {self.name!r} has no dispersion to estimate. "
                "Check `has_dispersion` before the call."
            )
        if not np.any(weights > 0):
            return float(initial)
        return self._estimate_dispersion(y, mean, weights, initial)

    def moment_response(
        self,
        y: FloatArray,
        *,
        order: int,
        offset: FloatArray | None = None,
        n_trials: ArrayLike | None = None,
    ) -> FloatArray:
        """Response whose cross-moment with the score of an order has the paper's form.

        That is the proportion for the binomial family, ``y**order`` for the identity link
        (Lemma 6 of the paper), and `y` otherwise; a log link's offset is divided out, an
        identity link's subtracted. Under other links the offset stays in the response and must be
        independent of the features.

        Parameters
        ----------
        y : ndarray of shape (n_obs,)
            The response.
        order : int
            The order of the score function.
        offset : ndarray of shape (n_obs,), optional
            Known part of the linear predictor.
        n_trials : array_like, optional
            Trials of each row.

        Returns
        -------
        ndarray of shape (n_obs,)
            The response for the moment of that order.
        """
        response = y / np.asarray(n_trials, dtype=np.float64) if self.has_trials else y
        if offset is not None:
            response = self.link.remove_offset(response, offset)
        return response**order if self.response_power else np.array(response)

    def fit_response_functions(self, y: FloatArray) -> ResponseFunctions:
        """Settle location, scale and choice of the functions T_k of the response.

        Parameters
        ----------
        y : ndarray of shape (n_obs,)
            The response as ``moment_response(y, order=1, ...)`` gives it.

        Returns
        -------
        ResponseFunctions
            To be called on these or on other rows.
        """
        return fit_response_functions(self.response_basis, y)

    def response_functions(self, y: FloatArray) -> FloatArray:
        """Evaluate the functions T_k of the response that the stacked estimator uses.

        Parameters
        ----------
        y : ndarray of shape (n_obs,)
            The response as ``moment_response(y, order=1, ...)`` gives it.

        Returns
        -------
        ndarray of shape (n_obs, n_functions)
            Linearly independent columns, none of them constant.
        """
        return self.fit_response_functions(y)(y)

    @abstractmethod
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None: ...

    @abstractmethod
    def _log_density(
        self, y: FloatArray, mean: FloatArray, parameters: ResponseParameters
    ) -> FloatArray: ...

    @abstractmethod
    def _log_density_eta(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> FloatArray: ...

    @abstractmethod
    def _score_and_weight(
        self, y: FloatArray, eta: FloatArray, parameters: ResponseParameters
    ) -> tuple[FloatArray, FloatArray]: ...

    @abstractmethod
    def _variance(self, mean: FloatArray, parameters: ResponseParameters) -> FloatArray: ...

    @abstractmethod
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray: ...

    def _estimate_dispersion(
        self, y: FloatArray, mean: FloatArray, weights: FloatArray, initial: float
    ) -> float:
        raise NotImplementedError  # overridden wherever has_dispersion is true
