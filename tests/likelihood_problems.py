"""Small mixtures of every family, for the tests of the likelihood."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family, get_family
from moment_init.likelihood import LikelihoodRows, MixtureParameters

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
SCALES = {"gaussian": 1.0, "bernoulli": 2.0, "binomial": 1.0}
DISPERSIONS = {"gaussian": (0.4, 0.7), "gamma": (6.0, 3.0), "negative_binomial": (5.0, 2.5)}


@dataclass(frozen=True)
class Problem:
    """Rows drawn from a mixture, with its parameters."""

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
) -> Problem:
    """Two asymmetric components; offsets, weights and trials differ between rows if asked for."""
    family = get_family(name, link)
    truth = MixtureParameters(
        SCALES.get(name, 0.5) * COEFFICIENTS,
        BIASES,
        WEIGHTS,
        np.array(DISPERSIONS[name]) if family.has_dispersion else None,
    )
    features = rng.standard_normal((n_obs, 3))
    labels = rng.choice(2, n_obs, p=WEIGHTS)
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
    rows = LikelihoodRows(features, y, weight, offset, trials)
    return Problem(family, rows, truth, labels)
