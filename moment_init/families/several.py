r"""Families with several linear predictors: several responses of one row, and classes.

Several responses are independent given the component, each with its own family and predictor:

.. math:: \log p(y \mid h = j) = \sum_a \log p_a(y_a \mid \eta_{ja}).

A response of several classes has one predictor for each class but the first, the reference, whose
predictor is zero:

.. math:: P(y = c \mid h = j) = e^{\eta_{jc}} / (1 + \sum_{c' > 0} e^{\eta_{jc'}}).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import ClassVar, override

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import FloatArray
from moment_init.families.base import (
    Family,
    ResponseParameters,
    is_count,
    require_rows,
)
from moment_init.families.compiling import Compiled
from moment_init.families.densities import Kernel
from moment_init.families.links import LARGEST_LOGIT, Link, bounded_exp
from moment_init.families.response_functions import (
    PROPORTION_BASIS,
    ClassIndicators,
    ResponseBasis,
    SeveralFunctions,
)

CATEGORICAL = "categorical"
"""The family of one response of several classes, as users write it."""

MOST_PRODUCTS = 15
"""Products of pairs of responses that are used: those of six responses. More functions add their
noise to every direction."""


@dataclass(frozen=True, slots=True)
class SeveralResponses:
    """Responses that are independent given the component."""

    members: tuple[Family, ...]  # the family of each response

    @property
    def name(self) -> str:
        """Names of the families; one name if all are the same."""
        return _joined([family.name for family in self.members])

    @property
    def link_name(self) -> str:
        """Names of the links; one name if all are the same."""
        return _joined([family.link_name for family in self.members])

    @property
    def n_predictors(self) -> int:
        """Number of linear predictors of a component: one for each response."""
        return len(self.members)

    @property
    def has_joint_predictors(self) -> bool:
        """Whether the second derivatives of the log density mix predictors."""
        return False

    @property
    def predictor_families(self) -> tuple[Family, ...]:
        """The family of each linear predictor."""
        return self.members

    @property
    def has_dispersion(self) -> bool:
        """Whether any response has a dispersion."""
        return any(family.has_dispersion for family in self.members)

    @property
    def has_trials(self) -> bool:
        """Whether any response has a number of trials."""
        return any(family.has_trials for family in self.members)

    @property
    def has_binary_rows(self) -> bool:
        """Whether all responses are zero or one."""
        return all(family.has_binary_rows for family in self.members)

    @property
    def has_unlimited_counts(self) -> bool:
        """Whether all responses are counts without an upper limit."""
        return all(family.has_unlimited_counts for family in self.members)

    @property
    def has_closed_deviation(self) -> bool:
        """Whether every dispersion is a standard deviation with a closed form."""
        return all(family.has_closed_deviation for family in self.members)

    @property
    def response_power(self) -> bool:
        """Whether all responses have units."""
        return all(family.response_power for family in self.members)

    @property
    def is_unbounded(self) -> bool:
        """Whether the likelihood grows without limit as a dispersion collapses."""
        return any(family.is_unbounded for family in self.members)

    def means(self, eta: FloatArray) -> FloatArray:
        """Mean of every response."""
        # eta: (n_predictors, ...) -> (n_predictors, ...)
        return np.stack([family.link.mean(eta[a]) for a, family in enumerate(self.members)])

    @property
    def response_bases(self) -> tuple[ResponseBasis, ...]:
        """Candidates for functions of each response."""
        return tuple(member.response_basis for member in self.members)

    def fit_response_functions(
        self, y: FloatArray, units: Sequence[tuple[float, float]] = ()
    ) -> SeveralFunctions:
        """Choose functions of every response, and products of pairs."""
        # y: (n_obs, n_responses)
        parts = tuple(
            member.fit_response_functions(y[:, index], units[index : index + 1])
            for index, member in enumerate(self.members)
        )
        return SeveralFunctions(parts, tuple(combinations(range(len(parts)), 2))[:MOST_PRODUCTS])


@dataclass(frozen=True, slots=True)
class Categorical(Family):
    """A response of several classes, as codes 0, 1, ...; class 0 is the reference."""

    n_classes: int = 2
    name: ClassVar[str] = CATEGORICAL
    has_binary_rows: ClassVar[bool] = True
    supported_links: ClassVar[tuple[str, ...]] = ("softmax",)
    kernels: ClassVar[Mapping[str, Kernel]] = MappingProxyType({})
    typical_scale: ClassVar[float] = 2.0
    response_basis: ClassVar[ResponseBasis] = PROPORTION_BASIS

    @property
    @override
    def n_predictors(self) -> int:
        return self.n_classes - 1

    @override
    def means(self, eta: FloatArray) -> FloatArray:
        """Probabilities of all classes."""
        # eta: (n_classes - 1, ...) -> (n_classes, ...)
        full = np.concatenate([np.zeros((1, *eta.shape[1:])), eta])
        odds = np.exp(full - full.max(axis=0))
        return np.asarray(odds / odds.sum(axis=0))

    @override
    def fit_response_functions(
        self, y: FloatArray, units: Sequence[tuple[float, float]] = ()
    ) -> ClassIndicators:
        # y: (n_obs,)
        return ClassIndicators(self.n_classes)

    @override
    def prepare_rows(
        self, y: ArrayLike, n_trials: ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray]:
        codes = np.ascontiguousarray(y, dtype=np.float64)
        return np.zeros(codes.shape), codes

    @override
    def _validate_response(self, y: FloatArray, n_trials: ArrayLike | None) -> None:
        is_code = is_count(y) & (y < self.n_classes)
        rule = f"must hold codes from 0 to {self.n_classes - 1} for family 'categorical'"
        require_rows(is_code, y, rule, "Give labels instead; they are coded in sorted order.")

    @override
    def _sample(
        self, mean: FloatArray, parameters: ResponseParameters, rng: np.random.Generator
    ) -> FloatArray:
        # mean: (n_classes, ...)
        reached = np.cumsum(mean, axis=0)
        return np.sum(reached[:-1] < rng.random(mean.shape[1:]), axis=0, dtype=np.float64)

    @override
    def _evaluate(
        self, y: ArrayLike, eta: ArrayLike, dispersion: ArrayLike | None, n_trials: ArrayLike | None
    ) -> tuple[FloatArray, FloatArray]:
        raise TypeError("family 'categorical' has no density of one linear predictor")


type AnyFamily = Family | SeveralResponses
"""The family of all responses of a row."""


def _odds(eta: FloatArray, order: int) -> FloatArray:
    """Odds of a class against the reference, which equal all their derivatives."""
    return bounded_exp(eta)


def _keep_offset(y: FloatArray, offset: FloatArray) -> FloatArray:
    """Leave the offset in a code."""
    return y


SOFTMAX = Link(
    name="softmax",
    link=np.log,
    derivative_function=_odds,
    remove_offset=_keep_offset,
    largest_predictor=LARGEST_LOGIT,
    third_derivative_sign=None,
)
"""Link of the classes; it has no function of one predictor (see `Categorical.means`)."""


def categorical(n_classes: int) -> Categorical:
    """Return the family of a response of several classes."""
    return Categorical(SOFTMAX, n_classes)


def join_families(families: tuple[Family, ...]) -> AnyFamily:
    """Return the family of one response, or of several responses together."""
    return families[0] if len(families) == 1 else SeveralResponses(families)


def _softmax_rows(y, eta, value, first, second):  # type: ignore[no-untyped-def]
    """Add the log probability of every row's class, and write its derivatives.

    The second derivatives in predictors a <= b are -p_a (delta_ab - p_b), pair by pair.
    """
    # y: (n,), eta, first: (p, r, n), value: (r, n), second: (p (p + 1) / 2, r, n)
    n_predictors, n_components, n_obs = eta.shape
    for j in range(n_components):
        for i in range(n_obs):
            largest, place = 0.0, 0
            for a in range(n_predictors):
                if not eta[a, j, i] <= largest:
                    largest, place = eta[a, j, i], a + 1
            reference = math.exp(-largest)
            others = 0.0 if place == 0 else reference  # odds of all classes but the likeliest
            for a in range(n_predictors):
                first[a, j, i] = math.exp(eta[a, j, i] - largest)
                if a + 1 != place:
                    others += first[a, j, i]
            code = int(y[i])
            chosen = 0.0 if code == 0 else eta[code - 1, j, i]
            value[j, i] += chosen - largest - math.log1p(others)
            reference /= 1.0 + others
            for a in range(n_predictors):
                first[a, j, i] /= 1.0 + others
            pair, chosen_rest = 0, 0.0
            for a in range(n_predictors):
                rest = reference  # 1 - p_a, without a difference
                for b in range(n_predictors):
                    if b != a:
                        rest += first[b, j, i]
                if a == code - 1:
                    chosen_rest = rest
                second[pair, j, i] = -first[a, j, i] * rest
                pair += 1
                for b in range(a + 1, n_predictors):
                    second[pair, j, i] = first[a, j, i] * first[b, j, i]
                    pair += 1
            for a in range(n_predictors):
                first[a, j, i] = -first[a, j, i]
            if code > 0:
                first[code - 1, j, i] = chosen_rest


softmax_rows = Compiled(_softmax_rows, "rows_softmax")


def _joined(names: list[str]) -> str:
    return names[0] if len(set(names)) == 1 else ", ".join(names)
