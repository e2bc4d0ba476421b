"""Small mixtures of every family, for the tests of the likelihood; and the likelihood by hand."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters, move, pack, unpack
from moment_init.likelihood.rows import LikelihoodRows
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

COEFFICIENTS = np.array([[1.5, -0.7], [-0.4, 1.2], [0.3, 0.9]])
BIASES = np.array([0.6, -0.3])
WEIGHTS = np.array([0.65, 0.35])
GATE = np.array([[0.8, 0.0], [-0.5, 0.0]])
SCALES = {"gaussian": 1.0, "bernoulli": 2.0, "binomial": 1.0}
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

    family: Family
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
    """Two asymmetric components; offsets, weights and trials differ between rows if asked for."""
    family = get_family(name, link)
    truth = MixtureParameters(
        SCALES.get(name, 0.5) * coefficients,
        BIASES,
        WEIGHTS,
        np.array(DISPERSIONS[name]) if family.has_dispersion else None,
        GATE if variant.gated else None,
    )
    features = rng.standard_normal((n_obs, 3))
    starts, gate, labels = _draw_units(n_obs, variant, rng)
    offset = 0.3 * rng.standard_normal(n_obs) if with_extras else None
    eta = np.einsum("ip,pi->i", features, truth.coefficients[:, labels]) + BIASES[labels]
    trials = rng.integers(1, 9, n_obs).astype(np.float64) if family.has_trials else None
    y = family.sample(
        family.link.mean(eta + (0.0 if offset is None else offset)),
        dispersion=None if truth.dispersion is None else truth.dispersion[labels],
        n_trials=trials,
        rng=rng,
    )
    weight = rng.uniform(0.2, 2.0, n_obs) if with_extras else np.ones(n_obs)
    rows = LikelihoodRows(features, y, weight, offset, trials, gate, starts)
    return Problem(family, rows, truth, labels)


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


def joint_by_hand(family: Family, rows: LikelihoodRows, at: MixtureParameters) -> FloatArray:
    """Log of probability times density for every unit and component, by plain loops.

    The weight of a row multiplies its log density inside a group; without groups it counts units
    and is not applied here.
    """
    power = rows.sample_weight if rows.group_starts is not None else np.ones(rows.n_obs)
    result = np.empty((rows.n_units, at.n_components))
    for j in range(at.n_components):
        eta = np.asarray(rows.Z, dtype=np.float64) @ at.coefficients[:, j] + at.biases[j]
        eta += 0.0 if rows.offset is None else rows.offset
        dispersion = None if at.dispersion is None else float(at.dispersion[j])
        trials = np.ones(rows.n_obs) if rows.n_trials is None else rows.n_trials
        densities = log_densities(family, rows.y, eta, dispersion, trials)
        for unit, own in enumerate(units_of(rows)):
            logits = np.log(at.weights)
            if rows.gate is not None and at.gate is not None:
                logits = logits + rows.gate[own[0]] @ at.gate
            prior = logits[j] - np.log(np.exp(logits).sum())
            result[unit, j] = prior + sum(power[row] * densities[row] for row in own)
    return result


def unit_counts_by_hand(rows: LikelihoodRows) -> FloatArray:
    """How many draws of a component each unit stands for."""
    return rows.sample_weight if rows.group_starts is None else np.ones(rows.n_units)


def log_likelihood_by_hand(family: Family, rows: LikelihoodRows, at: MixtureParameters) -> float:
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
