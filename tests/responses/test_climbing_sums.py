"""Log-likelihood, score and information of several responses."""

import numpy as np
import pytest

from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO
from moment_init.responses.climbing import TiedPoint, log_likelihood, row_posterior, sum_rows
from moment_init.responses.data import validate_responses
from moment_init.responses.kinds import Categorical, SeparateResponses
from moment_init.responses.parameters import (
    JointParameters,
    JointProblem,
    JointRows,
    Layout,
    TiedParameters,
    pose_joint,
)

STEP = 1e-5
FAMILIES = ("gaussian", "bernoulli", "poisson", "negative_binomial", "gamma")


def problem_of(family: str | list[str], rng: np.random.Generator) -> JointProblem:
    """Rows of responses that depend on nothing: derivatives are wanted, not estimates."""
    n_obs = 60
    X = rng.standard_normal((n_obs, 2))
    if family == "categorical":
        data = validate_responses(X, rng.integers(3, size=n_obs), family=family)
        return pose_joint(data, 2, MIN_DISPERSION_RATIO)
    columns = {
        "gaussian": rng.standard_normal(n_obs),
        "bernoulli": (rng.random(n_obs) < 0.4).astype(float),
        "poisson": rng.poisson(2.0, n_obs),
        "negative_binomial": rng.poisson(2.0, n_obs),
        "gamma": rng.gamma(2.0, size=n_obs),
    }
    names = [family] * 2 if isinstance(family, str) else family
    y = np.column_stack([columns[name] for name in names])
    weight = rng.uniform(0.5, 2.0, n_obs)
    data = validate_responses(X, y, family=family, sample_weight=weight)
    return pose_joint(data, 2, MIN_DISPERSION_RATIO)


def test_log_density_by_hand() -> None:
    """Two components of weight 1/4 and 3/4, a gaussian and a poisson response of one row.

    x = 2. Component 0: eta = (1 * 2 + 0, 0 * 2 + log 2) = (2, log 2), sd 1; component 1:
    eta = (0, log 3), sd 2. y = (1, 2):
    N(1; 2, 1) = exp(-1/2)/sqrt(2 pi), Poisson(2; 2) = 2 exp(-2);
    N(1; 0, 2) = exp(-1/8)/(2 sqrt(2 pi)), Poisson(2; 3) = 9/2 exp(-3).
    """
    kind = SeparateResponses(("a", "b"), (get_family("gaussian"), get_family("poisson")))
    rows = JointRows(np.array([[2.0]]), np.array([[1.0], [2.0]]), np.ones(1))
    parameters = JointParameters(
        np.array([[[1.0, 0.0], [0.0, 0.0]]]),
        np.array([[0.0, np.log(2.0)], [0.0, np.log(3.0)]]),
        np.array([0.25, 0.75]),
        np.array([[1.0, np.nan], [2.0, np.nan]]),
    )
    density, shares, _ = row_posterior(kind, rows, parameters)
    root = np.sqrt(2 * np.pi)
    first = 0.25 * np.exp(-0.5) / root * 2 * np.exp(-2)
    second = 0.75 * np.exp(-0.125) / (2 * root) * 4.5 * np.exp(-3)
    value = density + kind.log_base_measure(rows.y, None)
    np.testing.assert_allclose(value, np.log(first + second), rtol=1e-13)
    np.testing.assert_allclose(shares[:, 0], [first, second] / (first + second), rtol=1e-13)


def test_class_probability_by_hand() -> None:
    """Predictors (log 2, log 3) and the reference's zero give 1/6, 2/6, 3/6."""
    kind = Categorical(("b", "c"), np.array(["a", "b", "c"]))
    eta = np.log(np.array([2.0, 3.0]))[:, None, None] * np.ones((2, 1, 3))
    found = kind.derivatives(np.array([[0.0, 1.0, 2.0]]), eta, None, None)
    np.testing.assert_allclose(np.exp(found.value[0]), np.array([1, 2, 3]) / 6, rtol=1e-14)
    np.testing.assert_allclose(kind.mean(eta)[:, 0, 0], np.array([1, 2, 3]) / 6, rtol=1e-14)


@pytest.mark.parametrize("family", [*FAMILIES, "categorical", ["gaussian", "poisson", "bernoulli"]])
def test_score_and_information_are_derivatives(
    family: str | list[str], rng: np.random.Generator
) -> None:
    problem = problem_of(family, rng)
    layout = problem.layout
    there = 0.4 * rng.standard_normal(layout.size)
    sums = sum_rows(problem, layout.unpack(there))
    moves = STEP * np.eye(layout.size)

    def value(vector: np.ndarray) -> float:
        return log_likelihood(problem, layout.unpack(vector))

    def gradient(vector: np.ndarray) -> np.ndarray:
        return sum_rows(problem, layout.unpack(vector), has_information=False).gradient

    slopes = [(value(there + move) - value(there - move)) / (2 * STEP) for move in moves]
    np.testing.assert_allclose(sums.gradient, slopes, atol=1e-5 * (1 + np.abs(slopes).max()))
    curves = [(gradient(there + move) - gradient(there - move)) / (2 * STEP) for move in moves]
    assert sums.information is not None
    largest = np.abs(sums.information).max()
    np.testing.assert_allclose(sums.information, -np.array(curves), atol=1e-6 * largest)
    assert np.linalg.eigvalsh(sums.metric).min() > 0.0


def tied_start(family: str, rng: np.random.Generator) -> TiedParameters:
    """Parameters whose directions have length one."""
    directions = rng.standard_normal((2, 2))
    return TiedParameters(
        directions / np.linalg.norm(directions, axis=0),
        rng.standard_normal((2, 2)),
        rng.standard_normal((2, 2)),
        np.array([0.3, 0.7]),
        np.array([[0.5, 0.9], [1.2, 0.7]]) if family == "gaussian" else None,
    )


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_tied_score_is_a_derivative(family: str, rng: np.random.Generator) -> None:
    problem = problem_of(family, rng)
    start = TiedPoint(problem, tied_start(family, rng))
    places, system = start.places, start.system(has_information=True)
    there = places.pack(start.parameters)

    def value(vector: np.ndarray) -> float:
        return TiedPoint(problem, places.unpack(vector)).value

    moves = STEP * np.eye(places.size)
    slopes = [(value(there + m) - value(there - m)) / (2 * STEP) for m in moves]
    np.testing.assert_allclose(
        system.gradient, slopes, atol=1e-5 * (1 + np.abs(system.gradient).max())
    )


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_information_along_held_directions_is_that_of_the_likelihood(
    family: str, rng: np.random.Generator
) -> None:
    """Nothing is added to it: scales along directions that do not move are determined."""
    problem = problem_of(family, rng)
    start = TiedPoint(problem, tied_start(family, rng), holds_directions=True)
    places, system = start.places, start.system(has_information=True)
    there, free = places.pack(start.parameters), ~system.held
    assert np.count_nonzero(system.held) == start.parameters.directions.size

    def gradient(vector: np.ndarray) -> np.ndarray:
        point = TiedPoint(problem, places.unpack(vector), holds_directions=True)
        return point.system(has_information=False).gradient[free]

    moves = STEP * np.eye(places.size)[free]
    curves = [(gradient(there + m) - gradient(there - m)) / (2 * STEP) for m in moves]
    assert system.information is not None
    inner = system.information[np.ix_(free, free)]
    np.testing.assert_allclose(inner, -np.array(curves), atol=1e-6 * np.abs(inner).max())


def test_parameters_and_vector_are_inverse(rng: np.random.Generator) -> None:
    layout = Layout(3, 2, (True, False))
    vector = rng.standard_normal(layout.size)
    np.testing.assert_allclose(layout.pack(layout.unpack(vector)), vector, atol=1e-13)
