"""Small mixtures in standardised coordinates, for the tests of the search."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init import MixtureData, simulate_mixture
from moment_init.data.checking import validate_data
from moment_init.em.problem import EMProblem, pose_em, validate_restrictions
from moment_init.likelihood.parameters import MixtureParameters
from tests.likelihood_problems import Problem

FloatArray = NDArray[np.float64]

RARE = (0.70, 0.15, 0.10, 0.05)
"""Weights of which the smallest is one in twenty: random starts miss it."""


@dataclass(frozen=True)
class Posed:
    """A problem with the truth that its rows were drawn from, standardised as they are."""

    problem: EMProblem
    truth: MixtureParameters
    data: MixtureData


def draw_mixture(
    seed: int | list[int],
    n_obs: int,
    n_features: int,
    weights: tuple[float, ...],
    *,
    family: str = "gaussian",
    coefficient_sd: float | None = None,
    bias_sd: float = 0.0,
    noise: float | None = 0.1,
) -> Posed:
    """Standard normal inputs, normal coefficients; means of variance one by default."""
    rng = np.random.default_rng(seed)
    deviation = n_features**-0.5 if coefficient_sd is None else coefficient_sd
    coefficients = deviation * rng.standard_normal((n_features, len(weights)))
    lengths = np.linalg.norm(coefficients, axis=0)
    data = simulate_mixture(
        n_obs,
        n_features,
        len(weights),
        family=family,
        directions=coefficients / lengths,
        scales=lengths,
        biases=bias_sd * rng.standard_normal(len(weights)),
        weights=np.array(weights),
        dispersion=noise if family == "gaussian" else None,
        random_seed=rng,
    )
    problem = pose_em(validate_data(data.X, data.y, family=family), len(weights)).prepared()
    truth = MixtureParameters(data.coefficients, data.biases, data.weights, data.dispersion)
    return Posed(problem, problem.to_standardised(truth), data)


def pose(drawn: Problem, n_components: int = 2, **restrictions: Any) -> EMProblem:
    """Pose rows of `make_problem`, with their groups and gate, under restrictions."""
    rows = drawn.rows
    groups = None
    if rows.group_starts is not None:
        sizes = np.diff(np.append(rows.group_starts, rows.n_obs))
        groups = np.repeat(np.arange(len(sizes)), sizes)
    data = validate_data(
        rows.Z,
        rows.y,
        family=drawn.family.name,
        link=drawn.family.link.name,
        n_trials=rows.n_trials,
        offset=rows.offset,
        sample_weight=rows.sample_weight,
        groups=groups,
        gating=rows.gate,
    )
    held = validate_restrictions(
        data, n_components, has_gate=data.gating is not None, **restrictions
    )
    return pose_em(data, n_components, restrictions=held).prepared()
