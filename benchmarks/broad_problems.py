"""Mixtures drawn from a broad law: families, sizes, inputs, gates and groups vary."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.data.simulation import INPUT_DESIGNS
from moment_init.families.registry import get_family

__all__ = ["BroadProblem", "draw_problem"]

FloatArray = NDArray[np.float64]

FAMILIES = ("gaussian", "gamma", "poisson", "negative_binomial", "bernoulli", "binomial")
INPUTS = ("gaussian", "lognormal", "clusters", "binary")

COMPONENTS, FEATURES = (2, 5), (1, 12)
ROWS_PER_PARAMETER = (5.0, 100.0)

# Counts and positive responses have means far apart if coefficients on a log scale are longer.
SCALES = {"gaussian": 1.5, "bernoulli": 2.0, "binomial": 1.2}
DEFAULT_SCALE = 0.6

# Every fourth problem has a gate, every fourth groups.
FORMS = ("plain", "gate", "plain", "groups")
GATE_SCALE = 1.5
LARGEST_GROUP = 6
LARGEST_TRIALS = 20


@dataclass(frozen=True, slots=True, eq=False)
class BroadProblem:
    """Data of a random mixture, with its true parameters."""

    form: str  # plain, gate or groups
    X: FloatArray  # (n_obs, n_features)
    y: FloatArray  # (n_obs,)
    n_components: int
    options: Mapping[str, Any]  # further arguments of `fit_em`
    # true coefficients, biases, weights and any dispersion, as `fit_em(init=...)` takes them
    truth: tuple[FloatArray, ...]


def draw_problem(seed: int, index: int) -> BroadProblem:
    """Draw a problem; families, inputs and forms take turns."""
    rng = np.random.default_rng([seed, index])
    family = get_family(FAMILIES[index % len(FAMILIES)], None)
    design = INPUTS[(index // len(FAMILIES)) % len(INPUTS)]
    form = FORMS[(index // (len(FAMILIES) * len(INPUTS))) % len(FORMS)]
    r = int(rng.integers(COMPONENTS[0], COMPONENTS[1] + 1))
    d = int(np.exp(rng.uniform(np.log(FEATURES[0]), np.log(FEATURES[1] + 1))))
    per_parameter = float(np.exp(rng.uniform(*np.log(ROWS_PER_PARAMETER))))
    n_obs = int(per_parameter * r * (d + 2 + family.has_dispersion))
    X = _inputs(design, rng, n_obs, d)
    scale = SCALES.get(family.name, DEFAULT_SCALE)
    coefficients = scale / np.sqrt(d) * rng.standard_normal((d, r))
    biases = scale * rng.standard_normal(r)
    weights = rng.dirichlet(np.full(r, 4.0))
    labels, options = _labels(form, rng, X, weights)
    eta = np.clip((X @ coefficients + biases)[np.arange(n_obs), labels], -8.0, 8.0)
    dispersion, trials = None, None
    if family.has_dispersion:
        dispersion = np.exp(rng.uniform(np.log(0.3), np.log(1.0), r))
        if family.name != "gaussian":  # shape of gamma, size of negative binomial responses
            dispersion = dispersion * 5.0
    if family.has_trials:
        trials = rng.integers(2, LARGEST_TRIALS, n_obs).astype(np.float64)
        options["n_trials"] = trials
    noise = None if dispersion is None else dispersion[labels]
    mean = family.link.mean(eta)
    y = family.sample(mean, dispersion=noise, n_trials=trials, rng=rng)
    truth = (coefficients, biases, weights)
    return BroadProblem(
        form,
        X,
        y,
        r,
        {"family": family.name, **options},
        truth if dispersion is None else (*truth, dispersion),
    )


def _inputs(design: str, rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    if design != "binary":
        return INPUT_DESIGNS[design](rng, n_obs, n_features)
    # dummy variables, and one continuous column, as in most surveys
    X = (rng.random((n_obs, n_features)) < rng.uniform(0.2, 0.8, n_features)).astype(np.float64)
    X[:, 0] = rng.standard_normal(n_obs)
    return X


def _labels(
    form: str, rng: np.random.Generator, X: FloatArray, weights: FloatArray
) -> tuple[NDArray[np.intp], dict[str, Any]]:
    """Draw components of the rows: alike, by a gate on the first column, or by group."""
    n_obs, r = len(X), len(weights)
    if form == "groups":
        sizes = rng.integers(1, LARGEST_GROUP + 1, n_obs)
        groups = np.repeat(np.arange(n_obs), sizes)[:n_obs]
        return rng.choice(r, groups[-1] + 1, p=weights)[groups], {"groups": groups}
    if form == "gate":
        logits = np.log(weights) + GATE_SCALE * X[:, :1] * rng.standard_normal(r)
        noise = rng.gumbel(size=(n_obs, r))
        return np.argmax(logits + noise, axis=1), {"gating": X[:, :1]}
    return rng.choice(r, n_obs, p=weights), {}
