"""Exact moments of a mixture, from its parameters, and random mixtures to compute them for."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

from moment_init.families.base import Family
from moment_init.families.links import moment_coefficient
from moment_init.families.registry import FAMILIES, get_family

__all__ = [
    "FAMILY_LINKS",
    "FloatArray",
    "PopulationMixture",
    "WeightedRows",
    "cubes_tensor",
    "exact_rows",
    "gaussian_grid",
    "random_mixture",
    "symmetric_noise",
    "unit_columns",
]

FloatArray = NDArray[np.float64]

FAMILY_LINKS = [(name, link) for name in FAMILIES for link in FAMILIES[name].supported_links]

MAX_CONDITION = 20.0
MIN_COEFFICIENT_SHARE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class PopulationMixture:
    """Parameters of a mixture whose inputs are standard Gaussian."""

    family: Family
    directions: FloatArray
    scales: FloatArray
    biases: FloatArray
    weights: FloatArray

    def moment_coefficients(self, order: int) -> FloatArray:
        """Coefficients w_j s_j^m rho_j of the moment of an order (Lemmas 2, 3 and 6)."""
        rho = moment_coefficient(self.family, order, self.scales, self.biases)
        return np.asarray(self.weights * self.scales**order * rho)

    def first_moment(self) -> FloatArray:
        """M_1 of y itself."""
        return np.asarray(self.directions @ self.moment_coefficients(1))

    def third_moment(self) -> FloatArray:
        """M_3, of y^3 for the identity link."""
        return cubes_tensor(self.moment_coefficients(3), self.directions)


def unit_columns(columns: FloatArray) -> FloatArray:
    """Divide each column by its length."""
    return np.asarray(columns / np.linalg.norm(columns, axis=0))


def cubes_tensor(coefficients: FloatArray, directions: FloatArray) -> FloatArray:
    """Sum of cubes, sum_j lambda_j u_j^3, entry by entry."""
    tensor = np.einsum("l,il,jl,kl->ijk", coefficients, directions, directions, directions)
    return np.asarray(tensor)


def symmetric_noise(rng: np.random.Generator, size: int) -> FloatArray:
    """Sum of a tensor of standard Gaussian noise over the six orders of its modes."""
    raw = rng.standard_normal((size, size, size))
    return np.asarray(sum(raw.transpose(order) for order in permutations(range(3))))


def random_mixture(
    family: str, link: str, n_features: int, n_components: int, rng: np.random.Generator
) -> PopulationMixture:
    """Draw a mixture with cond(U) <= 20 and no coefficient below 1e-3 of the largest.

    Biases reach four units from zero: under logit and probit the coefficients then have both signs.
    """
    resolved = get_family(family, link)
    widest_bias = 4.0 if resolved.link.third_derivative_sign is None else 1.0
    while True:
        mixture = PopulationMixture(
            family=resolved,
            directions=unit_columns(rng.standard_normal((n_features, n_components))),
            scales=rng.uniform(0.5, 2.0, n_components),
            biases=rng.uniform(-widest_bias, widest_bias, n_components),
            weights=rng.dirichlet(np.full(n_components, 5.0)),
        )
        sizes = np.abs(mixture.moment_coefficients(3))
        is_conditioned = np.linalg.cond(mixture.directions) <= MAX_CONDITION
        if is_conditioned and sizes.min() >= MIN_COEFFICIENT_SHARE * sizes.max():
            return mixture


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """Rows whose weighted sums are expectations under the mixture."""

    X: FloatArray
    y: FloatArray
    sample_weight: FloatArray
    n_trials: FloatArray | None


def gaussian_grid(n_features: int, n_nodes: int) -> tuple[FloatArray, FloatArray]:
    """Nodes, (n_nodes^d, d), and weights of the Gauss-Hermite product rule for N(0, I)."""
    nodes, weights = hermegauss(n_nodes)
    grid = np.stack(np.meshgrid(*[nodes] * n_features, indexing="ij"), axis=-1)
    products = np.stack(np.meshgrid(*[weights] * n_features, indexing="ij"), axis=-1)
    flat = products.reshape(-1, n_features).prod(axis=1)
    return grid.reshape(-1, n_features), flat / flat.sum()


def exact_rows(mixture: PopulationMixture, z: FloatArray, weights: FloatArray) -> WeightedRows:
    """Responses for weighted standard Gaussian inputs, with the mixture's conditional moments.

    The moments are linear in E[y | x], so that two values a row with the right mean will do: for
    each component 0 and the smallest whole number above all means. The identity link needs
    E[y^3 | x], and the two values are one standard deviation of 1/2 to each side of the mean: right
    up to the third order. A gamma response cannot be zero and is equal to its mean.
    """
    eta = z @ (mixture.directions * mixture.scales) + mixture.biases
    mean = mixture.family.link.mean(eta)
    if mixture.family.response_power:
        low, high, share = mean - 0.5, mean + 0.5, np.full_like(mean, 0.5)
    elif mixture.family.name == "gamma":
        low, high, share = mean, mean, np.full_like(mean, 0.5)
    else:
        top = np.ceil(mean.max())
        low, high, share = np.zeros_like(mean), np.full_like(mean, top), mean / top
    joint = weights[:, None] * mixture.weights
    n_repeats = 2 * len(mixture.weights)
    n_rows = len(z) * n_repeats
    return WeightedRows(
        X=np.tile(z, (n_repeats, 1)),
        y=np.concatenate([low.T.ravel(), high.T.ravel()]),
        sample_weight=np.concatenate(
            [((1.0 - share) * joint).T.ravel(), (share * joint).T.ravel()]
        ),
        n_trials=np.ones(n_rows) if mixture.family.has_trials else None,
    )
