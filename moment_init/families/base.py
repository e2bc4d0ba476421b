"""What a response family is: the interface that every estimator and model uses.

A family has its log density as scalar functions (`moment_init.families.densities`), which loops
over rows inline; the methods here evaluate the same functions for arrays.

Conventions: `eta` is the linear predictor, ``mean = g(eta)`` (for the binomial family the
probability of success in one trial) and `tau` the logarithm of the dispersion. `dispersion` is the
standard deviation (gaussian), alpha with variance ``mean + mean**2 / alpha`` (negative binomial) or
the shape (gamma). Families without a dispersion ignore it, and families without trials ignore
`n_trials`. Arguments broadcast: with `y` and `n_trials` of shape (n_obs, 1), `eta` or `mean` of
shape (n_obs, n_components) and `dispersion` of shape (n_components,), results have the shape
(n_obs, n_components).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.checks import FloatArray, as_float_array
from moment_init.families.densities import (
    Kernel,
    LogDensityDerivatives,
    evaluate_elements,
    numbers_loop,
)
from moment_init.families.links import Link
from moment_init.families.response_functions import (
    AnyFunctions,
    ResponseBasis,
    fit_response_functions,
)

LARGEST_DRAWN_MEAN = 1e12
"""Largest mean with which counts are drawn. NumPy refuses Poisson rates above 9.2e18, and the rate
of a negative binomial exceeds its mean by a factor of up to 40 / alpha, 4e5 at alpha = 1e-4."""


_LARGEST = 1e300
"""Linear predictor that stands for an infinite one."""


class ResponseParameters(NamedTuple):
    """What a density needs besides the mean; NaN where the family has no such parameter."""

    dispersion: FloatArray  # broadcasts with the mean
    n_trials: FloatArray  # broadcasts with the mean


def normalise_joint(joint: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Turn joint log densities into log densities of the units and responsibilities, in place."""
    # joint: (n_components, n_units) -> (n_units,), (n_components, n_units)
    largest = joint.max(axis=0)
    joint -= largest
    np.exp(joint, out=joint)
    total = joint.sum(axis=0)
    joint /= total
    return np.log(total) + largest, joint


type BoolArray = NDArray[np.bool_]


def is_count(values: FloatArray) -> BoolArray:
    """Tell which values are whole numbers that are 0 or more."""
    is_whole: BoolArray = np.isfinite(values) & (values >= 0) & (values == np.floor(values))
    return is_whole


def require_rows(
    is_valid: BoolArray, values: FloatArray, rule: str, remedy: str, *, argument: str = "y"
) -> None:
    """Raise for the first row that breaks a rule, and name the row."""
    # is_valid: (n_obs,), values: (n_obs,)
    if np.all(is_valid):
        return
    row = int(np.argmin(is_valid))
    raise ValueError(f"`{argument}` {rule}; got {values[row]:g} in row {row}. {remedy}")


@dataclass(frozen=True, slots=True)
class Family(ABC):
    """A response distribution with a link."""

    link: Link
    name: ClassVar[str]  # as users write it
    # the first is the default
    supported_links: ClassVar[tuple[str, ...]]
    # the log density under each of these links
    kernels: ClassVar[Mapping[str, Kernel]]
    has_dispersion: ClassVar[bool] = False  # whether the distribution has a dispersion parameter
    has_trials: ClassVar[bool] = False  # whether each row has a number of trials
    # whether the response is a count without an upper limit
    has_unlimited_counts: ClassVar[bool] = False
    # whether each response is zero or one, or a class, so that the residual of one row says little
    has_binary_rows: ClassVar[bool] = False
    # Set for families whose mixture likelihood is unbounded, because one component may fit a few
    # rows without error. ``dispersion**deviation_power`` is then proportional to the standard
    # deviation of the response, and its ratio between components must be bounded (Hathaway 1985).
    deviation_power: ClassVar[float | None] = None
    # whether the dispersion is the standard deviation of the residual, so that its
    # maximum-likelihood estimate has a closed form
    has_closed_deviation: ClassVar[bool] = False
    # smallest and largest value of the dispersion in a search
    dispersion_bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    # whether the moment of order m uses ``y**m`` (Lemma 6 of the paper) instead of ``y``; such a
    # response has units, and is standardised
    response_power: ClassVar[bool] = False
    # length of the coefficients that gives informative data for standardised features
    typical_scale: ClassVar[float]
    # dispersion that gives informative data at that scale
    typical_dispersion: ClassVar[float | None] = None
    # the functions of the response that the stacked estimator uses
    response_basis: ClassVar[ResponseBasis]

    @property
    def kernel(self) -> Kernel:
        """The log density as scalar functions."""
        return self.kernels[self.link.name]

    @property
    def kernel_has_ratio(self) -> bool:
        """Whether a part of the density depends on count and dispersion alone, for a table."""
        return bool(self.kernels) and self.kernel.ratio is not None

    @property
    def kernel_name(self) -> str:
        """Name of the kernel, for the files of compiled code."""
        return f"{self.name}_{self.link.name}"

    @property
    def members(self) -> tuple["Family", ...]:
        """The families of the responses: this one alone."""
        return (self,)

    @property
    def link_name(self) -> str:
        """Name of the link."""
        return self.link.name

    @property
    def n_predictors(self) -> int:
        """Number of linear predictors of a component."""
        return 1

    @property
    def has_joint_predictors(self) -> bool:
        """Whether the second derivatives of the log density mix predictors."""
        return self.n_predictors > 1

    @property
    def predictor_families(self) -> tuple["Family", ...]:
        """The family of each linear predictor."""
        return (self,) * self.n_predictors

    @property
    def is_unbounded(self) -> bool:
        """Whether the likelihood grows without limit as a dispersion collapses."""
        return self.deviation_power is not None

    def means(self, eta: FloatArray) -> FloatArray:
        """Mean of the response, or of every class or response if there are several."""
        # eta: (n_predictors, ...) -> (n_outcomes, ...)
        return self.link.mean(eta)

    def validate_response(self, y: ArrayLike, n_trials: ArrayLike | None = None) -> None:
        """Raise if a response is not possible under this family."""
        # y: (n_obs,), n_trials: (n_obs,)
        if n_trials is not None and not self.has_trials:
            raise ValueError(
                f"`n_trials` has no meaning for family {self.name!r}; got a value. "
                "Leave it out, or use family='binomial'."
            )
        response = as_float_array(y, "y")
        self._validate_response(response, n_trials)

    def log_density_derivatives(
        self,
        y: ArrayLike,
        eta: ArrayLike,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> LogDensityDerivatives:
        """Log density with all constants, and its first and second derivatives."""
        base, parts = self._evaluate(y, eta, dispersion, n_trials)
        return LogDensityDerivatives(base + parts[0], *parts[1 : 6 if self.has_dispersion else 3])

    def log_density_eta(
        self,
        y: ArrayLike,
        eta: ArrayLike,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> FloatArray:
        """Log density (or log probability) of each response, with all constants."""
        base, parts = self._evaluate(y, eta, dispersion, n_trials)
        return np.asarray(base + parts[0])

    def log_density(
        self,
        y: ArrayLike,
        mean: ArrayLike,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
    ) -> FloatArray:
        """Log density of each response from its mean instead of the linear predictor."""
        # finite at the ends of the range of the mean: zero times a predictor is then zero
        eta = np.clip(self.link.link(np.asarray(mean, dtype=np.float64)), -_LARGEST, _LARGEST)
        return self.log_density_eta(y, eta, dispersion=dispersion, n_trials=n_trials)

    def log_base_measure(self, y: ArrayLike, *, n_trials: ArrayLike | None = None) -> FloatArray:
        """Terms of the log density that do not depend on eta or the dispersion."""
        return self.prepare_rows(y, n_trials)[0]

    def prepare_rows(
        self, y: ArrayLike, n_trials: ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Parameter-free terms of the log density, and the number that its kernel needs."""
        # n_trials broadcasts to the shape of y
        response = np.asarray(y, dtype=np.float64)
        trials = self._parameter("n_trials", n_trials, self.has_trials)
        trials = np.array(np.broadcast_to(trials, response.shape))
        base, number = np.empty(response.shape), np.empty(response.shape)
        arrays = np.array(response), trials, base, number  # contiguous
        numbers_loop(self.kernel, self.kernel_name)(*(array.reshape(-1) for array in arrays))
        return base, number

    def sample(
        self,
        mean: FloatArray,
        *,
        dispersion: ArrayLike | None = None,
        n_trials: ArrayLike | None = None,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Draw one response for each mean."""
        return self._sample(mean, self._parameters(dispersion, n_trials), rng)

    def moment_response(
        self,
        y: FloatArray,
        *,
        order: int,
        offset: FloatArray | None = None,
        n_trials: ArrayLike | None = None,
    ) -> FloatArray:
        """Transform the response so that its moment with the score has the paper's form.

        The result is the proportion for the binomial family, ``y**order`` for the identity link
        (Lemma 6 of the paper), and `y` otherwise. An offset is divided out for the log link and
        subtracted for the identity link. Under other links it stays in the response and must be
        independent of the features.
        """
        # y: (n_obs,), offset: (n_obs,) -> (n_obs,)
        response = y / np.asarray(n_trials, dtype=np.float64) if self.has_trials else y
        if offset is not None:
            response = self.link.remove_offset(response, offset)
        return response**order if self.response_power else np.array(response)

    @property
    def response_bases(self) -> tuple[ResponseBasis, ...]:
        """Candidates for functions of each response."""
        return (self.response_basis,)

    def fit_response_functions(
        self, y: FloatArray, units: Sequence[tuple[float, float]] = ()
    ) -> AnyFunctions:
        """Choose the functions T_k of the response, with their location and scale.

        `units` are the mean and standard deviation of each transformed response, if `y` is only a
        sample.
        """
        # y: (n_obs,)
        return fit_response_functions(self.response_basis, y, *units)

    def response_functions(self, y: FloatArray) -> FloatArray:
        """Evaluate the functions T_k of the response that the stacked estimator uses."""
        # y: (n_obs,) -> (n_obs, n_functions)
        return self.fit_response_functions(y)(y)

    @abstractmethod
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None: ...

    @abstractmethod
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray: ...

    def _evaluate(
        self, y: ArrayLike, eta: ArrayLike, dispersion: ArrayLike | None, n_trials: ArrayLike | None
    ) -> tuple[FloatArray, FloatArray]:
        parameters = self._parameters(dispersion, n_trials)
        return evaluate_elements(
            self.kernel, self.kernel_name, y, eta, parameters.dispersion, parameters.n_trials
        )

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
