"""The maximum of a mixture likelihood, and the bounds that keep it finite."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.families.registry import get_family
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.em_step import solve_information
from moment_init.likelihood.parameters import (
    MixtureParameters,
    active_bounds,
    bounds_of,
    enforce,
    move,
    pack,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums
from tests.likelihood_problems import FAMILY_LINKS, make_problem

each_family = pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)


def test_one_gaussian_component_is_least_squares(rng: np.random.Generator) -> None:
    """Weighted least squares and the root mean square residual, in closed form."""
    z, noise = rng.standard_normal((80, 2)), rng.standard_normal(80)
    y = z @ [1.0, -2.0] + 0.5 + 0.3 * noise
    weight = rng.uniform(0.5, 2.0, 80)
    start = MixtureParameters(np.zeros((2, 1)), np.zeros(1), np.ones(1), np.ones(1))
    result = maximise(
        get_family("gaussian"), LikelihoodRows(z, y, weight), start, max_steps=60, tolerance=1e-12
    )
    x = np.column_stack([z, np.ones(80)]) * np.sqrt(weight)[:, None]
    solution, residual, *_ = np.linalg.lstsq(x, y * np.sqrt(weight))
    assert result.converged
    assert_allclose(result.parameters.coefficients[:, 0], solution[:2], rtol=1e-7)
    assert_allclose(result.parameters.biases, solution[2:], rtol=1e-7)
    assert result.parameters.dispersion is not None
    assert_allclose(result.parameters.dispersion, np.sqrt(residual / weight.sum()), rtol=1e-7)


@each_family
def test_reaches_a_stationary_point_above_the_truth(
    name: str, link: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, n_obs=2000)
    at_truth = likelihood_sums(problem.family, problem.rows, problem.truth)
    step = 0.2 * rng.standard_normal(pack(problem.truth).size)
    result = maximise(
        problem.family,
        problem.rows,
        move(problem.truth, step),
        max_steps=150,
        em_steps=5,
        tolerance=1e-9,
    )
    assert result.converged
    assert result.bounds == ()
    assert result.log_likelihood > at_truth.log_likelihood
    sums = likelihood_sums(problem.family, problem.rows, result.parameters)
    assert_allclose(result.log_likelihood, sums.log_likelihood, rtol=1e-14)
    assert_allclose(result.information, sums.information())
    newton = solve_information(sums.information(), sums.score)
    assert newton is not None
    # half score' step is what is left to gain
    assert 0 <= sums.score @ newton / 2 < 1e-8


@each_family
def test_estimates_lie_within_their_standard_errors(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """2 (l(estimate) - l(truth)) is about chi-square with N degrees of freedom.

    Its mean is N and its deviation sqrt(2 N); six deviations are beyond 1e-6 for N of 9 to 11.
    """
    problem = make_problem(name, link, rng, n_obs=4000, with_extras=False)
    result = maximise(problem.family, problem.rows, problem.truth, max_steps=100)
    at_truth = likelihood_sums(problem.family, problem.rows, problem.truth, curvature=False)
    size = pack(problem.truth).size
    gain = 2 * (result.log_likelihood - at_truth.log_likelihood)
    assert 0 < gain < size + 6 * np.sqrt(2 * size)


@each_family
@pytest.mark.parametrize("em_steps", [0, 15])
def test_log_likelihood_never_falls(
    name: str, link: str, em_steps: int, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng)
    step = rng.standard_normal(pack(problem.truth).size)
    start = move(problem.truth, step)
    result = maximise(
        problem.family, problem.rows, start, max_steps=25, em_steps=em_steps, damping=0.3
    )
    assert np.all(np.diff(result.history) >= 0)
    assert len(result.history) <= result.n_iter + 1
    assert result.log_likelihood == result.history[-1]
    assert result.history[-1] > result.history[0] + 1


@each_family
def test_newton_steps_gain_at_least_as_much_as_em_steps(
    name: str, link: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, n_obs=1000)
    newton = maximise(problem.family, problem.rows, problem.truth, max_steps=40)
    em = maximise(
        problem.family,
        problem.rows,
        problem.truth,
        max_steps=newton.n_iter,
        em_steps=newton.n_iter,
    )
    assert newton.converged
    assert newton.log_likelihood > em.log_likelihood - 1e-3


def test_no_step_evaluates_the_start(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng)
    result = maximise(problem.family, problem.rows, problem.truth, max_steps=0)
    assert result.n_iter == 0
    assert not result.converged
    assert_allclose(result.parameters.coefficients, problem.truth.coefficients)
    sums = likelihood_sums(problem.family, problem.rows, problem.truth)
    assert result.history == (sums.log_likelihood,)


def test_order_of_components_does_not_matter(rng: np.random.Generator) -> None:
    problem = make_problem("gaussian", "identity", rng)
    start = move(problem.truth, 0.1 * rng.standard_normal(11))
    order = np.array([1, 0])
    one = maximise(problem.family, problem.rows, start, max_steps=60, tolerance=1e-10)
    other = maximise(
        problem.family, problem.rows, start.reorder(order), max_steps=60, tolerance=1e-10
    )
    back = other.parameters.reorder(order)
    assert_allclose(back.coefficients, one.parameters.coefficients, atol=1e-5)
    assert_allclose(back.weights, one.parameters.weights, atol=1e-5)


# --- bounds --------------------------------------------------------------------------------------


def test_gaussian_likelihood_stays_bounded(rng: np.random.Generator) -> None:
    """A component on three rows in two features would fit them exactly, with variance zero."""
    problem = make_problem("gaussian", "identity", rng, n_obs=60, with_extras=False)
    z, y = np.asarray(problem.rows.Z)[:4], problem.rows.y[:4]
    exact = np.linalg.solve(np.column_stack([z, np.ones(4)]), y)
    start = MixtureParameters(
        np.column_stack([np.zeros(3), exact[:3]]),
        np.array([0.0, exact[3]]),
        np.array([0.9, 0.1]),
        np.array([1.0, 0.01]),
    )
    result = maximise(problem.family, problem.rows, start, max_steps=200, em_steps=5)
    assert result.parameters.dispersion is not None
    ratio = result.parameters.dispersion.min() / result.parameters.dispersion.max()
    assert ratio >= 0.05 * (1 - 1e-9)
    if "dispersion ratio of component 1" in result.bounds:
        assert_allclose(ratio, 0.05, rtol=1e-8)
    loose = maximise(
        problem.family,
        problem.rows,
        start,
        max_steps=200,
        em_steps=5,
        min_dispersion_ratio=0.5,
    )
    assert loose.parameters.dispersion is not None
    assert loose.parameters.dispersion.min() >= 0.5 * loose.parameters.dispersion.max() * (1 - 1e-9)


def test_constrained_maximum_is_stationary_along_its_bound(rng: np.random.Generator) -> None:
    """True deviations .4 and .7 with a ratio of .9 asked for: the bound holds the maximum."""
    problem = make_problem("gaussian", "identity", rng, n_obs=2000)
    result = maximise(
        problem.family,
        problem.rows,
        problem.truth,
        max_steps=100,
        tolerance=1e-10,
        min_dispersion_ratio=0.9,
    )
    assert result.converged
    assert result.bounds == ("dispersion ratio of component 0",)
    bounds = bounds_of(problem.family, min_dispersion_ratio=0.9)
    (bound,) = active_bounds(result.parameters, bounds)
    score = likelihood_sums(problem.family, problem.rows, result.parameters).score
    outward = score @ bound.inward / (bound.inward @ bound.inward)
    assert outward < -1
    assert_allclose(score - outward * bound.inward, 0, atol=1e-3)


def test_separated_rows_leave_coefficients_finite(rng: np.random.Generator) -> None:
    z = rng.standard_normal((200, 2))
    rows = LikelihoodRows(z, (z[:, 0] > 0).astype(np.float64), np.ones(200))
    start = MixtureParameters(np.array([[1.0], [0.0]]), np.zeros(1), np.ones(1))
    family = get_family("bernoulli")
    result = maximise(family, rows, start, max_steps=300, tolerance=1e-12)
    assert np.all(np.diff(result.history) >= 0)
    length = np.hypot(result.parameters.scales, result.parameters.biases)[0]
    assert 10 < length <= family.link.largest_predictor * (1 + 1e-12)
    assert result.log_likelihood > -10  # zero coefficients have -139


def test_component_without_rows_keeps_the_smallest_weight(rng: np.random.Generator) -> None:
    """Rows of one component, and a second that predicts none of them."""
    z = rng.standard_normal((500, 1))
    y = z[:, 0] + 0.1 * rng.standard_normal(500)
    start = MixtureParameters(
        np.array([[1.0, -1.0]]), np.array([0.0, 30.0]), np.array([0.5, 0.5]), np.array([0.1, 0.1])
    )
    family = get_family("gaussian")
    result = maximise(family, LikelihoodRows(z, y, np.ones(500)), start, max_steps=60)
    assert_allclose(result.parameters.weights, [1 - 1e-4, 1e-4], rtol=1e-6)
    assert "weight of component 1" in result.bounds
    assert result.converged
    assert np.all(np.isfinite(pack(result.parameters)))


def test_counts_without_overdispersion_end_the_search(rng: np.random.Generator) -> None:
    z = rng.standard_normal((300, 1))
    y = rng.binomial(20, 0.3, 300).astype(np.float64)  # less dispersed than a Poisson
    start = MixtureParameters(np.zeros((1, 1)), np.array([1.5]), np.ones(1), np.array([5.0]))
    family = get_family("negative_binomial")
    result = maximise(family, LikelihoodRows(z, y, np.ones(300)), start, max_steps=100)
    assert result.converged
    assert result.parameters.dispersion is not None
    assert 1e3 < result.parameters.dispersion[0] <= family.dispersion_bounds[1]


def test_enforce_by_hand() -> None:
    """Length 500 to 100; weights below the floor to it; a deviation of .01 beside 1 to .05."""
    logit = enforce(
        MixtureParameters(
            np.array([[300.0, 1.0]]), np.array([400.0, 0.0]), np.array([1 - 1e-9, 1e-9])
        ),
        bounds_of(get_family("bernoulli")),
    )
    assert_allclose(logit.coefficients, [[60, 1]])
    assert_allclose(logit.biases, [80, 0])
    assert_allclose(logit.weights, [1 - 1e-4, 1e-4], rtol=1e-12)
    weights = np.array([0.5, 0.5])
    gaussian = enforce(
        MixtureParameters(np.ones((1, 2)), np.zeros(2), weights, np.array([1.0, 0.01])),
        bounds_of(get_family("gaussian")),
    )
    assert gaussian.dispersion is not None
    assert_allclose(gaussian.dispersion, [1, 0.05])
    # the deviation of a gamma response falls as the shape rises: 1 / sqrt(shape)
    gamma = enforce(
        MixtureParameters(np.ones((1, 2)), np.zeros(2), weights, np.array([4.0, 1e6])),
        bounds_of(get_family("gamma")),
    )
    assert gamma.dispersion is not None
    assert_allclose(gamma.dispersion, [4, 4 * 400])


def test_inside_the_bounds_nothing_is_active(rng: np.random.Generator) -> None:
    for name, link in FAMILY_LINKS:
        problem = make_problem(name, link, rng, n_obs=5)
        bounds = bounds_of(problem.family)
        assert active_bounds(problem.truth, bounds) == []
        inside = enforce(problem.truth, bounds)
        assert_array_equal(inside.coefficients, problem.truth.coefficients)
        assert_allclose(inside.weights, problem.truth.weights, rtol=1e-15)


def test_active_bounds_point_inwards() -> None:
    """A step along `inward` raises the bounded quantity: checked by taking it."""
    family = get_family("gamma")
    bounds = bounds_of(family)
    start = enforce(
        MixtureParameters(
            np.array([[400.0, 1.0]]), np.zeros(2), np.array([1.0, 1e-9]), np.array([1e-9, 1e9])
        ),
        bounds,
    )
    labels = [bound.label for bound in active_bounds(start, bounds)]
    assert labels == [
        "weight of component 1",
        "dispersion ratio of component 1",
        "dispersion of component 0",
        "length of component 0",
    ]
    for bound in active_bounds(start, bounds):
        inside = move(start, 1e-3 * bound.inward)
        assert bound.label not in [other.label for other in active_bounds(inside, bounds)]


def test_indefinite_information_has_no_solution() -> None:
    assert solve_information(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(2)) is None
    step = solve_information(np.array([[4.0, 0.0], [0.0, 1e-4]]), np.array([4.0, 1e-4]))
    assert step is not None
    assert_allclose(step, [1, 1], rtol=1e-9)
