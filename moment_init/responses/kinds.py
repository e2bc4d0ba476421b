r"""What stands in the columns of y: several responses, or one response of several classes.

Both are functions of linear predictors :math:`\eta_{ja}`, a = 1, ..., P, of each component. Several
responses have one predictor each and are independent given the component,

.. math:: \log p(y \mid h = j) = \sum_a \log p_a(y_a \mid \eta_{ja}).

Classes have a predictor each but for the first, the reference, whose predictor is zero:

.. math:: P(y = c \mid h = j) = e^{\eta_{jc}} / (1 + \sum_{c' > 1} e^{\eta_{jc'}}).

Arrays have predictors first and rows last, so that every row of memory is one predictor's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, override

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.families.base import Family
from moment_init.families.links import LINKS

LARGEST_DRAWN_MEAN = 1e15
"""Means of counts beyond which no draw is possible: NumPy's generators refuse them."""


class PredictorDerivatives(NamedTuple):
    """Log density of rows under components, and its derivatives."""

    # log density without the terms that are free of all parameters; (n_components, n_obs)
    value: FloatArray
    first: FloatArray  # first derivatives in the predictors; (n_predictors, n_components, n_obs)
    # second derivatives in pairs a <= b of predictors; pairs that are missing are zero;
    # (n_components, n_obs)
    second: dict[tuple[int, int], FloatArray]
    # for predictors with a dispersion: first and second derivative in its logarithm, and the mixed
    # one; (n_components, n_obs)
    tau: dict[int, tuple[FloatArray, FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True, eq=False)
class ResponseKind(ABC):
    """How the columns of y depend on linear predictors."""

    # names of the predictors: of the responses, or of the classes but the first
    names: tuple[str, ...]

    @property
    def n_predictors(self) -> int:
        """Number of linear predictors of a component, P."""
        return len(self.names)

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the family, or names of the families."""

    @property
    @abstractmethod
    def link_name(self) -> str:
        """Name of the link, or names of the links."""

    @property
    @abstractmethod
    def outcome_names(self) -> tuple[str, ...]:
        """Names of what has a mean: the responses, or all classes."""

    @property
    @abstractmethod
    def families(self) -> tuple[Family | None, ...]:
        """Family of each predictor; None for classes."""

    @property
    def has_dispersion(self) -> tuple[bool, ...]:
        """Whether each predictor comes with a dispersion."""
        return tuple(family is not None and family.has_dispersion for family in self.families)

    @property
    def has_units(self) -> tuple[bool, ...]:
        """Whether each predictor has the response's units, as with the identity link."""
        return tuple(family is not None and family.response_power for family in self.families)

    @property
    def largest_predictor(self) -> FloatArray:
        """Length of coefficients and bias beyond which the response says no more, (P,)."""
        links = [LINKS["logit"] if each is None else each.link for each in self.families]
        return np.array([link.largest_predictor for link in links])

    @abstractmethod
    def derivatives(
        self,
        y: FloatArray,
        eta: FloatArray,
        dispersion: FloatArray | None,
        n_trials: FloatArray | None,
    ) -> PredictorDerivatives:
        """Log density of rows under every component."""
        # y: (n_responses, n_obs), eta: (n_predictors, n_components, n_obs), dispersion:
        # (n_predictors, n_components), n_trials: (n_responses, n_obs)

    @abstractmethod
    def log_base_measure(self, y: FloatArray, n_trials: FloatArray | None) -> FloatArray:
        """Terms of each row's log density that are free of all parameters."""
        # y: (n_responses, n_obs), n_trials: (n_responses, n_obs) -> (n_obs,)

    @abstractmethod
    def mean(self, eta: FloatArray) -> FloatArray:
        """Mean of every outcome."""
        # eta: (n_predictors, ...) -> (n_outcomes, ...)

    @abstractmethod
    def draw(
        self,
        eta: FloatArray,
        dispersion: FloatArray | None,
        n_trials: FloatArray | None,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Draw responses."""
        # eta: (n_predictors, n_obs), dispersion: (n_predictors, n_obs), n_trials: (n_responses,
        # n_obs) -> (n_responses, n_obs)


@dataclass(frozen=True, slots=True, eq=False)
class SeparateResponses(ResponseKind):
    """Several responses, independent given the component."""

    members: tuple[Family, ...]  # family of each

    @property
    @override
    def name(self) -> str:
        return _joined([family.name for family in self.members])

    @property
    @override
    def link_name(self) -> str:
        return _joined([family.link.name for family in self.members])

    @property
    @override
    def outcome_names(self) -> tuple[str, ...]:
        return self.names

    @property
    @override
    def families(self) -> tuple[Family | None, ...]:
        return self.members

    @override
    def derivatives(
        self,
        y: FloatArray,
        eta: FloatArray,
        dispersion: FloatArray | None,
        n_trials: FloatArray | None,
    ) -> PredictorDerivatives:
        value = np.zeros(eta.shape[1:])
        first, second, tau = np.empty_like(eta), {}, {}
        for index, family in enumerate(self.members):
            kernel = family.kernel_derivatives(
                y[index],
                eta[index],
                dispersion=_row(dispersion, index, needed=family.has_dispersion),
                n_trials=_row(n_trials, index, needed=family.has_trials),
            )
            value += kernel.value
            first[index] = kernel.eta1
            second[index, index] = kernel.eta2
            if kernel.tau1 is not None and kernel.tau2 is not None and kernel.eta_tau is not None:
                tau[index] = (kernel.tau1, kernel.tau2, kernel.eta_tau)
        return PredictorDerivatives(value, first, second, tau)

    @override
    def log_base_measure(self, y: FloatArray, n_trials: FloatArray | None) -> FloatArray:
        terms = [
            family.log_base_measure(
                y[index], n_trials=_row(n_trials, index, needed=family.has_trials)
            )
            for index, family in enumerate(self.members)
        ]
        return np.asarray(np.sum(terms, axis=0))

    @override
    def mean(self, eta: FloatArray) -> FloatArray:
        return np.stack([family.link.mean(eta[index]) for index, family in enumerate(self.members)])

    @override
    def draw(
        self,
        eta: FloatArray,
        dispersion: FloatArray | None,
        n_trials: FloatArray | None,
        rng: np.random.Generator,
    ) -> FloatArray:
        means = self.mean(eta)
        result = np.empty_like(eta)
        for index, family in enumerate(self.members):
            mean = means[index]
            if family.has_unlimited_counts:
                mean = np.minimum(mean, LARGEST_DRAWN_MEAN)
            result[index] = family.sample(
                mean,
                dispersion=_row(dispersion, index, needed=family.has_dispersion),
                n_trials=_row(n_trials, index, needed=family.has_trials),
                rng=rng,
            )
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Categorical(ResponseKind):
    """One response of two or more classes; the first is the reference."""

    # the labels, sorted; a response is held as the index of its label; (n_classes,)
    classes: NDArray[Any]

    @property
    @override
    def name(self) -> str:
        return "categorical"

    @property
    @override
    def link_name(self) -> str:
        return "softmax"

    @property
    @override
    def outcome_names(self) -> tuple[str, ...]:
        return tuple(str(label) for label in self.classes)

    @property
    @override
    def families(self) -> tuple[Family | None, ...]:
        return (None,) * self.n_predictors

    @override
    def derivatives(
        self,
        y: FloatArray,
        eta: FloatArray,
        dispersion: FloatArray | None,
        n_trials: FloatArray | None,
    ) -> PredictorDerivatives:
        log_mean = _log_softmax(eta)
        mean = np.exp(log_mean)[1:]
        codes = y[0].astype(np.intp)
        value = np.take_along_axis(log_mean, codes[None, None, :], axis=0)[0]
        first = -mean
        for index in range(self.n_predictors):
            first[index] += codes == index + 1
        second = {
            (a, b): mean[a] * (mean[b] - (a == b))
            for a in range(self.n_predictors)
            for b in range(a, self.n_predictors)
        }
        return PredictorDerivatives(value, first, second, {})

    @override
    def log_base_measure(self, y: FloatArray, n_trials: FloatArray | None) -> FloatArray:
        return np.zeros(y.shape[1])

    @override
    def mean(self, eta: FloatArray) -> FloatArray:
        return np.asarray(np.exp(_log_softmax(eta)))

    @override
    def draw(
        self,
        eta: FloatArray,
        dispersion: FloatArray | None,
        n_trials: FloatArray | None,
        rng: np.random.Generator,
    ) -> FloatArray:
        reached = np.cumsum(self.mean(eta), axis=0)
        uniform = rng.random(eta.shape[1:])
        return np.sum(reached[:-1] < uniform, axis=0, dtype=np.float64)[None]


def _log_softmax(eta: FloatArray) -> FloatArray:
    """Log probabilities of all classes along the first axis, the reference first."""
    full = np.concatenate([np.zeros((1, *eta.shape[1:])), eta])
    full -= full.max(axis=0)
    return np.asarray(full - np.log(np.exp(full).sum(axis=0)))


def _row(values: FloatArray | None, index: int, *, needed: bool) -> FloatArray | None:
    return values[index] if needed and values is not None else None


def _joined(names: list[str]) -> str:
    """One name where all are the same, else all of them."""
    return names[0] if len(set(names)) == 1 else ", ".join(names)
