"""Small mixtures of every family, for the tests of the likelihood; and the likelihood by hand.

Several responses and classes are kinds of problems like the families.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from moment_init.families.base import Family
from moment_init.families.compiling import Compiled
from moment_init.families.registry import get_family
from moment_init.families.several import (
    CATEGORICAL,
    AnyFamily,
    Categorical,
    categorical,
    join_families,
)
from moment_init.likelihood.parameters import MixtureParameters, move, pack, unpack
from moment_init.likelihood.rows import LikelihoodRows, column
from moment_init.likelihood.sums import likelihood_sums

FloatArray = NDArray[np.float64]

FAMILY_LINKS = [
    ("bernoulli", "logit"),
    ("bernoulli", "probit"),
    ("binomial", "logit"),
    ("binomial", "probit"),
    ("poisson", "log"),
    ("negative_binomial", "log"),
    ("gaussian", "identity"),
    ("gamma", "log"),
]

SEVERAL_LINKS = [
    ("poisson+gaussian+bernoulli", "log+identity+logit"),
    ("negative_binomial+gamma", "log+log"),
    ("binomial+gaussian", "probit+identity"),
    (CATEGORICAL, "softmax"),
]

ALL_LINKS = [*FAMILY_LINKS, *SEVERAL_LINKS]

N_CLASSES = 4

COEFFICIENTS = np.array([[1.5, -0.7], [-0.4, 1.2], [0.3, 0.9]])
BIASES = np.array([0.6, -0.3])
WEIGHTS = np.array([0.65, 0.35])
GATE = np.array([[0.8, 0.0], [-0.5, 0.0]])
SCALES = {"gaussian": 1.0, "bernoulli": 2.0, "binomial": 1.0, CATEGORICAL: 2.0}
DISPERSIONS = {"gaussian": (0.4, 0.7), "gamma": (6.0, 3.0), "negative_binomial": (5.0, 2.5)}

GROUP_RATE = 0.4
"""Share of rows that start a group: groups have 2.5 rows on average, and one to about ten."""


@dataclass(frozen=True)
class Variant:
    """Whether rows come in groups, and whether a gate sets the weights."""

    grouped: bool = False
    gated: bool = False


PLAIN, GROUPS, GATED, BOTH = (
    Variant(),
    Variant(grouped=True),
    Variant(gated=True),
    Variant(grouped=True, gated=True),
)
VARIANTS = {"plain": PLAIN, "groups": GROUPS, "gate": GATED, "both": BOTH}


@dataclass(frozen=True)
class Problem:
    """Rows drawn from a mixture, with its parameters; labels are those of the rows."""

    family: Any  # a `Family` for one response, an `AnyFamily` for the kinds with several
    rows: LikelihoodRows
    truth: MixtureParameters
    labels: NDArray[np.intp]


def make_problem(
    name: str,
    link: str,
    rng: np.random.Generator,
    *,
    n_obs: int = 400,
    with_extras: bool = True,
    variant: Variant = PLAIN,
    coefficients: FloatArray = COEFFICIENTS,
) -> Problem:
    """Two asymmetric components; offsets, weights and trials differ between rows if asked for.

    The slopes of further predictors are those of the first one with the features in turn.
    """
    family = family_named(name, link)
    members = family.predictor_families
    axis = () if len(members) == 1 else (len(members),)
    slopes = [
        SCALES.get(member.name, 0.5) * np.roll(coefficients, a, axis=0)
        for a, member in enumerate(members)
    ]
    levels = np.stack([BIASES + 0.2 * a for a in range(len(members))])
    spreads = np.array([DISPERSIONS.get(member.name, (np.nan, np.nan)) for member in members])
    truth = MixtureParameters(
        np.reshape(slopes, (*axis, *coefficients.shape)),
        levels.reshape(*axis, 2),
        WEIGHTS,
        spreads.reshape(*axis, 2) if family.has_dispersion else None,
        GATE if variant.gated else None,
    )
    features = rng.standard_normal((n_obs, 3))
    starts, gate, labels = _draw_units(n_obs, variant, rng)
    offset = np.asfortranarray(0.3 * rng.standard_normal((n_obs, *axis))) if with_extras else None
    eta = np.einsum("ip,api->ai", features, truth.slopes[:, :, labels]) + levels[:, labels]
    eta += 0.0 if offset is None else offset.T
    trials = None
    if family.has_trials:
        has_trials = np.reshape([member.has_trials for member in members], axis)
        trials = np.where(has_trials, rng.integers(1, 9, (n_obs, *axis)), 1).astype(np.float64)
    y = _draw_responses(family, eta, spreads[:, labels], trials, rng)
    weight = rng.uniform(0.2, 2.0, n_obs) if with_extras else np.ones(n_obs)
    rows = LikelihoodRows(features, y, weight, offset, trials, gate, starts)
    return Problem(family, rows, truth, labels)


def family_named(name: str, link: str) -> AnyFamily:
    """Family of one response, of several whose names are joined by "+", or of four classes."""
    if name == CATEGORICAL:
        return categorical(N_CLASSES)
    pairs = zip(name.split("+"), link.split("+"), strict=True)
    return join_families(tuple(get_family(*pair) for pair in pairs))


def _draw_responses(
    family: AnyFamily,
    eta: FloatArray,
    spreads: FloatArray,
    trials: FloatArray | None,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw responses from predictors and dispersions of shape (n_predictors, n_obs)."""
    if isinstance(family, Categorical):
        return family.sample(family.means(eta), rng=rng)
    columns = [
        member.sample(
            member.link.mean(eta[a]),
            dispersion=spreads[a] if member.has_dispersion else None,
            n_trials=column(trials, a) if trials is not None and member.has_trials else None,
            rng=rng,
        )
        for a, member in enumerate(family.members)
    ]
    return columns[0] if len(columns) == 1 else np.asfortranarray(np.column_stack(columns))


def _draw_units(
    n_obs: int, variant: Variant, rng: np.random.Generator
) -> tuple[NDArray[np.intp] | None, FloatArray | None, NDArray[np.intp]]:
    """First rows of the groups, gating covariates and labels; the last two row by row."""
    if variant == PLAIN:
        return None, None, rng.choice(2, n_obs, p=WEIGHTS)
    is_start = rng.random(n_obs) < (GROUP_RATE if variant.grouped else 1.0)
    is_start[0] = True
    unit = np.cumsum(is_start) - 1
    covariates = rng.standard_normal((unit[-1] + 1, 2))
    logit = np.log(WEIGHTS[1] / WEIGHTS[0]) - (covariates @ GATE[:, 0] if variant.gated else 0.0)
    labels = (rng.random(len(covariates)) < special.expit(logit)).astype(np.intp)
    starts = np.flatnonzero(is_start) if variant.grouped else None
    return starts, covariates[unit] if variant.gated else None, labels[unit]


def nearby(problem: Problem, rng: np.random.Generator, size: float = 0.2) -> MixtureParameters:
    """Parameters near the truth, where the score is not small."""
    return move(problem.truth, size * rng.standard_normal(pack(problem.truth).size))


@contextmanager
def plain_python() -> Iterator[None]:
    """Run loops as the plain Python functions that are compiled otherwise."""

    def call(loop: Compiled, *arguments: Any) -> Any:
        return loop.python(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiled, "__call__", call)
        yield


# --- the likelihood by hand ----------------------------------------------------------------------


def log_densities(
    family: Family,
    y: FloatArray,
    eta: FloatArray,
    dispersion: float | None,
    n_trials: FloatArray,
) -> FloatArray:
    """Log densities of responses, from `scipy.stats`; logarithms of tails are its own too."""
    mean = np.exp(eta) if family.link.name == "log" else eta
    tail = stats.norm if family.link.name == "probit" else stats.logistic
    phi = dispersion or 0.0
    match family.name:
        case "bernoulli":
            result = np.where(y == 1, tail.logcdf(eta), tail.logsf(eta))
        case "binomial":
            ways = np.log(special.comb(n_trials, y))
            result = ways + y * tail.logcdf(eta) + (n_trials - y) * tail.logsf(eta)
        case "poisson":
            result = stats.poisson.logpmf(y, mean)
        case "negative_binomial":
            result = stats.nbinom.logpmf(y, phi, phi / (phi + mean))
        case "gaussian":
            result = stats.norm.logpdf(y, mean, phi)
        case _:
            result = stats.gamma.logpdf(y, phi, scale=mean / phi)
    return np.asarray(result, dtype=np.float64)


def units_of(rows: LikelihoodRows) -> list[range]:
    """The rows of each unit."""
    if rows.group_starts is None:
        return [range(row, row + 1) for row in range(rows.n_obs)]
    ends = [*rows.group_starts[1:], rows.n_obs]
    return [range(int(a), int(b)) for a, b in zip(rows.group_starts, ends, strict=True)]


def row_densities(family: AnyFamily, rows: LikelihoodRows, at: MixtureParameters) -> FloatArray:
    """Log density of every row under every component, shape (n_obs, n_components)."""
    result = np.zeros((rows.n_obs, at.n_components))
    offset = np.zeros(rows.n_obs) if rows.offset is None else rows.offset
    trials = np.ones(rows.n_obs) if rows.n_trials is None else rows.n_trials
    for j in range(at.n_components):
        eta = [
            np.asarray(rows.Z, dtype=np.float64) @ slopes[:, j] + levels[j] + column(offset, a)
            for a, (slopes, levels) in enumerate(zip(at.slopes, at.levels, strict=True))
        ]
        if isinstance(family, Categorical):
            predictors = np.stack([np.zeros(rows.n_obs), *eta])
            codes = rows.y.astype(np.intp)
            result[:, j] = special.log_softmax(predictors, axis=0)[codes, np.arange(rows.n_obs)]
            continue
        for a, member in enumerate(family.members):
            dispersion = None if at.spreads is None else float(at.spreads[a, j])
            result[:, j] += log_densities(
                member, column(rows.y, a), eta[a], dispersion, column(trials, a)
            )
    return result


def joint_by_hand(family: AnyFamily, rows: LikelihoodRows, at: MixtureParameters) -> FloatArray:
    """Log of probability times density for every unit and component, by plain loops.

    The weight of a row multiplies its log density inside a group; without groups it counts units
    and is not applied here.
    """
    power = rows.sample_weight if rows.group_starts is not None else np.ones(rows.n_obs)
    result = np.empty((rows.n_units, at.n_components))
    densities = row_densities(family, rows, at)
    for unit, own in enumerate(units_of(rows)):
        logits = np.log(at.weights)
        if rows.gate is not None and at.gate is not None:
            logits = logits + rows.gate[own[0]] @ at.gate
        prior = logits - np.log(np.exp(logits).sum())
        result[unit] = prior + power[own] @ densities[own]
    return result


def unit_counts_by_hand(rows: LikelihoodRows) -> FloatArray:
    """How many draws of a component each unit stands for."""
    return rows.sample_weight if rows.group_starts is None else np.ones(rows.n_units)


def log_likelihood_by_hand(family: AnyFamily, rows: LikelihoodRows, at: MixtureParameters) -> float:
    """Sum over units of the log of the mixture's density."""
    densities = special.logsumexp(joint_by_hand(family, rows, at), axis=1)
    return float(unit_counts_by_hand(rows) @ densities)


# --- derivatives by differences ------------------------------------------------------------------


def differences(
    function: Callable[[FloatArray], FloatArray], centre: FloatArray, step: float = 1e-4
) -> FloatArray:
    """Derivative of the fourth order, shape (n_parameters, ...)."""
    columns = []
    for unit in np.eye(centre.size) * step:
        near = function(centre + unit) - function(centre - unit)
        far = function(centre + 2 * unit) - function(centre - 2 * unit)
        columns.append((8 * near - far) / (12 * step))
    return np.array(columns)


def numerical_score(problem: Problem, at: MixtureParameters) -> FloatArray:
    """Gradient of the log-likelihood by differences."""

    def value(vector: FloatArray) -> FloatArray:
        sums = likelihood_sums(problem.family, problem.rows, unpack(vector, at), curvature=False)
        return np.array(sums.log_likelihood)

    return differences(value, pack(at))


def numerical_jacobian(problem: Problem, at: MixtureParameters) -> FloatArray:
    """Derivative of the score by differences."""

    def score(vector: FloatArray) -> FloatArray:
        sums = likelihood_sums(problem.family, problem.rows, unpack(vector, at), curvature=False)
        return sums.score

    return differences(score, pack(at))
