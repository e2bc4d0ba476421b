"""Mixtures in which all linear predictors of a component have one direction."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.likelihood.climbing import Ending, climb
from moment_init.likelihood.sums import likelihood_sums
from moment_init.likelihood.tied import (
    TiedLikelihood,
    TiedParameters,
    pack_tied,
    places_of,
    unpack_tied,
)
from tests.likelihood_problems import (
    GROUPS,
    PLAIN,
    SEVERAL_LINKS,
    FloatArray,
    Problem,
    Variant,
    differences,
    make_problem,
)

each_kind = pytest.mark.parametrize(("name", "link"), SEVERAL_LINKS)


def tied_near(problem: Problem, rng: np.random.Generator) -> TiedParameters:
    """Parameters with random unit directions and biases near the truth's."""
    truth = problem.truth
    directions = rng.standard_normal((truth.n_features, truth.n_components))
    return TiedParameters(
        directions / np.linalg.norm(directions, axis=0),
        0.5 * rng.standard_normal(truth.biases.shape),
        truth.biases + 0.2 * rng.standard_normal(truth.biases.shape),
        np.array([0.3, 0.7]),
        truth.dispersion,
    )


def value_at(likelihood: TiedLikelihood, like: TiedParameters, vector: FloatArray) -> FloatArray:
    sums = likelihood.sums(unpack_tied(vector, like), missing=False)
    return np.array(sums.log_likelihood)


def lengths(at: TiedParameters) -> FloatArray:
    """Directions in the vector along which a mixture does not change, (n_parameters, r)."""
    result = np.zeros((len(pack_tied(at)), len(at.weights)))
    places = places_of(at)
    for j in range(len(at.weights)):
        own = result[j * places.size : (j + 1) * places.size, j]
        own[places.direction], own[places.scales] = at.directions[:, j], -at.scales[:, j]
    return result


def test_coefficients_by_hand() -> None:
    """Component 0: u = (1, 0) with scales 2 and -1; component 1: u = (.6, .8) with 5 and 10."""
    tied = TiedParameters(
        np.array([[1.0, 0.6], [0.0, 0.8]]),
        np.array([[2.0, 5.0], [-1.0, 10.0]]),
        np.zeros((2, 2)),
        np.array([0.5, 0.5]),
    )
    expected = [[[2.0, 3.0], [0.0, 4.0]], [[-1.0, 6.0], [0.0, 8.0]]]
    assert_allclose(tied.free.coefficients, expected, rtol=1e-15)
    assert_allclose(tied.reorder(np.array([1, 0])).free.coefficients[0, :, 0], [3.0, 4.0])


@each_kind
def test_parameters_and_vector_are_inverse(name: str, link: str, rng: np.random.Generator) -> None:
    at = tied_near(make_problem(name, link, rng), rng)
    vector = pack_tied(at)
    assert_allclose(pack_tied(unpack_tied(vector, at)), vector, atol=1e-13)
    # twice as long a direction with half the scales
    longer = vector.copy()
    places = places_of(at)
    longer[places.direction] *= 2.0
    longer[places.scales] /= 2.0
    assert_allclose(pack_tied(unpack_tied(longer, at)), vector, atol=1e-13)


@pytest.mark.parametrize("variant", [PLAIN, GROUPS], ids=["plain", "groups"])
@each_kind
def test_score_and_information_are_derivatives(
    name: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    """The information is checked along directions that leave the lengths of all u_j as they are."""
    problem = make_problem(name, link, rng, n_obs=100, variant=variant)
    at = tied_near(problem, rng)
    likelihood = TiedLikelihood.of(problem.family, problem.rows, at)
    sums, centre = likelihood.sums(at, missing=True), pack_tied(at)
    free = likelihood_sums(problem.family, problem.rows, at.free)
    assert_allclose(sums.log_likelihood, free.log_likelihood, rtol=1e-13)
    score = differences(lambda vector: value_at(likelihood, at, vector), centre)
    assert_allclose(sums.score, score, atol=1e-7 * (1 + np.abs(score).max()))
    fixed = np.linalg.qr(lengths(at))[0]
    information, step = sums.information(), 2e-4
    for _ in range(10):
        along = rng.standard_normal(len(centre))
        along -= fixed @ (fixed.T @ along)
        along /= np.linalg.norm(along)
        values = [value_at(likelihood, at, centre + k * step * along) for k in (-2, -1, 0, 1, 2)]
        curvature = np.dot([1, -16, 30, -16, 1], values) / (12 * step**2)
        predicted = along @ information @ along
        assert_allclose(predicted, curvature, atol=1e-4 * np.abs(information).max())


@each_kind
def test_information_along_held_directions_is_that_of_the_likelihood(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """Nothing is added to it: scales along directions that do not move are determined."""
    problem = make_problem(name, link, rng, n_obs=100)
    at = tied_near(problem, rng)
    likelihood = TiedLikelihood.of(problem.family, problem.rows, at, holds_directions=True)
    assert likelihood.constraint is not None
    basis, centre = likelihood.constraint.basis, pack_tied(at)
    assert basis.shape[0] - basis.shape[1] == at.directions.size

    def score(vector: FloatArray) -> FloatArray:
        sums = likelihood.sums(unpack_tied(centre + basis @ vector, at), missing=False)
        return np.asarray(basis.T @ sums.score)

    information = basis.T @ likelihood.sums(at, missing=True).information() @ basis
    curves = -differences(score, np.zeros(basis.shape[1]))
    assert_allclose(information, curves, atol=1e-7 * np.abs(information).max())
    moved = likelihood.em_moved(at, likelihood.sums(at, missing=False), 1.0)
    assert_allclose(moved.directions, at.directions, atol=1e-15)


@pytest.mark.parametrize("holds_directions", [False, True])
@each_kind
def test_the_climb_ends_at_a_maximum(
    name: str, link: str, holds_directions: bool, rng: np.random.Generator
) -> None:
    """The score vanishes in all directions that may move, and the history never falls."""
    problem = make_problem(name, link, rng, n_obs=2000)
    start = tied_near(problem, rng)
    likelihood = TiedLikelihood.of(
        problem.family, problem.rows, start, holds_directions=holds_directions
    )
    end = climb(
        likelihood,
        likelihood.admit(start),
        max_steps=300,
        em_steps=10,
        max_em_steps=None,
        tolerance=1e-8,
        damping=1.0,
        target=None,
    )
    assert end.ending is Ending.CONVERGED
    assert np.all(np.diff(end.history) >= 0.0)
    assert_allclose(np.linalg.norm(end.parameters.directions, axis=0), 1.0, rtol=1e-12)
    if not likelihood.active(end.parameters):
        score, information = end.sums.score, end.sums.information()
        if likelihood.constraint is not None:
            basis = likelihood.constraint.basis
            score, information = basis.T @ score, basis.T @ information @ basis
        assert 0.5 * score @ np.linalg.solve(information, score) < 1e-6
        assert np.linalg.eigvalsh(information)[0] > 0.0


def test_too_long_a_predictor_is_shrunk_to_its_bound(rng: np.random.Generator) -> None:
    """It keeps its direction, and the bound's gradient is that of the length in the vector."""
    problem = make_problem("categorical", "softmax", rng)
    at = tied_near(problem, rng)
    likelihood = TiedLikelihood.of(problem.family, problem.rows, at)
    assert likelihood.active(likelihood.admit(at)) == []
    scales = at.scales.copy()
    scales[1, 0] = 1e4
    inside = likelihood.admit(replace(at, scales=scales))
    largest = problem.family.link.largest_predictor
    assert_allclose(np.hypot(inside.scales[1, 0], inside.biases[1, 0]), largest, rtol=1e-12)
    assert_allclose(inside.scales[0], at.scales[0], rtol=1e-12)
    (bound,) = likelihood.active(inside)
    assert bound.label == "length of component 0 of predictor 1"
    centre, places = pack_tied(inside), places_of(inside)

    def length(vector: FloatArray) -> FloatArray:
        own = vector[: places.size]
        scale, bias = own[places.scales][1], own[places.biases][1]
        return np.asarray(np.hypot(scale * np.linalg.norm(own[places.direction]), bias))

    slopes = differences(length, centre)
    assert_allclose(bound.inward, -slopes, atol=1e-6 * np.abs(slopes).max())
