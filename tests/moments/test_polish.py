"""The polish ends at a maximum: on all rows and on samples, from good and from bad starts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import expit, logsumexp

import moment_init.likelihood.many_rows
import moment_init.moments.polish
from moment_init import estimate
from moment_init.data.checking import validate_data
from moment_init.data.simulation import simulate_mixture
from moment_init.families.registry import FAMILIES
from moment_init.likelihood.many_rows import Optimum
from moment_init.likelihood.parameters import MixtureParameters, move, pack, parameter_count
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums
from moment_init.moments.polish import PolishedFit, polish
from moment_init.moments.stacked_result import LARGEST_MISFIT
from moment_init.scores import Gaussian
from moment_init.scores.choosing import EstimationProblem, pose_problem
from tests.likelihood_problems import FAMILY_LINKS, Problem, make_problem
from tests.population import FloatArray

# Columns of the user: correlated, off the origin, of different units.
MIXING = np.array([[2.0, 0.5, 0.0], [0.0, 0.1, 0.3], [0.4, 0.0, 5.0]])
LOCATION = np.array([3.0, -1.0, 20.0])


def user_features(problem: Problem) -> FloatArray:
    return np.asarray(np.asarray(problem.rows.Z) @ MIXING + LOCATION)


def user_truth(problem: Problem) -> MixtureParameters:
    """The same predictor, of the user's columns."""
    slopes = np.linalg.solve(MIXING, problem.truth.coefficients)
    biases = problem.truth.biases - LOCATION @ slopes
    return replace(problem.truth, coefficients=slopes, biases=biases)


def pose(X: FloatArray, y: FloatArray, family: str, **options: Any) -> EstimationProblem:
    data = validate_data(X, y, family=family, **options)
    return pose_problem(data, Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names))


def pose_drawn(problem: Problem) -> EstimationProblem:
    rows = problem.rows
    return pose(
        user_features(problem), rows.y, problem.family.name, link=problem.family.link.name,
        offset=rows.offset, n_trials=rows.n_trials, sample_weight=rows.sample_weight,
    )  # fmt: skip


def standardise(problem: EstimationProblem, parameters: MixtureParameters) -> MixtureParameters:
    slopes, biases = problem.coordinates.coefficients_to_standardised(
        parameters.coefficients, parameters.biases
    )
    dispersion = parameters.dispersion
    if dispersion is not None and problem.data.family.response_power:
        dispersion = dispersion / problem.coordinates.response_scale
    return replace(parameters, coefficients=slopes, biases=biases, dispersion=dispersion)


def standardised_rows(problem: EstimationProblem) -> LikelihoodRows:
    data, coordinates = problem.data, problem.coordinates
    Z = np.linalg.solve(coordinates.factor, (np.asarray(data.X) - coordinates.mean).T).T
    is_identity = data.family.response_power
    return LikelihoodRows(
        Z,
        problem.response if is_identity else data.y,
        data.sample_weight,
        None if is_identity else data.offset,
        data.n_trials,
    )


def polish_from(problem: EstimationProblem, start: MixtureParameters, seed: int = 0) -> PolishedFit:
    return polish(problem, [start], np.random.default_rng(seed))


def distance(first: PolishedFit, second: PolishedFit) -> float:
    """Squared distance in standard errors of the first."""
    step = pack(first.parameters) - pack(second.parameters)
    return float(step @ first.information @ step)


# --- all rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_the_gradient_vanishes(family: str, link: str, rng: np.random.Generator) -> None:
    """From the truth to the maximum: a Newton step from there would gain nearly nothing.

    The truth is about half the number of parameters below it, and the information is positive.
    """
    drawn = make_problem(family, link, rng, n_obs=3000)
    problem = pose_drawn(drawn)
    start = standardise(problem, user_truth(drawn))
    fit = polish_from(problem, start)
    rows = standardised_rows(problem)
    there = likelihood_sums(drawn.family, rows, fit.parameters)
    step = np.linalg.solve(there.information(), there.score)
    assert 0.5 * there.score @ step < 1e-3
    assert np.linalg.eigvalsh(fit.information).min() > 0.0
    assert_allclose(fit.information, there.information(), rtol=1e-6, atol=1e-6)
    before = likelihood_sums(drawn.family, rows, start, curvature=False).log_likelihood
    gain = there.log_likelihood - before
    assert 0.0 < gain < stats.chi2.isf(1e-6, parameter_count(start))
    assert fit.bounds == ()
    assert fit.misfit < LARGEST_MISFIT


def log_densities(
    family: str, link: str, y: FloatArray, eta: FloatArray, dispersion: Any, n_trials: Any
) -> FloatArray:
    """Log density of every row under one component, by SciPy's distributions."""
    if link == "identity":
        return np.asarray(stats.norm.logpdf(y, eta, dispersion))
    if link in {"logit", "probit"}:
        share = expit(eta) if link == "logit" else stats.norm.cdf(eta)
        return np.asarray(stats.binom.logpmf(y, 1 if n_trials is None else n_trials, share))
    mean = np.exp(eta)
    if family == "poisson":
        return np.asarray(stats.poisson.logpmf(y, mean))
    if family == "gamma":
        return np.asarray(stats.gamma.logpdf(y, dispersion, scale=mean / dispersion))
    return np.asarray(stats.nbinom.logpmf(y, dispersion, dispersion / (dispersion + mean)))


def direct_log_likelihood(
    problem: EstimationProblem, parameters: MixtureParameters, y: FloatArray
) -> float:
    """Log-likelihood of all rows at parameters in the user's units."""
    data = problem.data
    offset = np.zeros(data.n_obs) if data.offset is None else data.offset
    eta = (np.asarray(data.X) @ parameters.coefficients + parameters.biases).T + offset
    spread = parameters.dispersion
    terms = [
        np.log(weight)
        + log_densities(
            data.family.name,
            data.family.link_name,
            y,
            eta[component],
            None if spread is None else spread[component],
            data.n_trials,
        )
        for component, weight in enumerate(parameters.weights)
    ]
    return float(data.sample_weight @ logsumexp(terms, axis=0))


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_log_likelihood_in_the_users_units(
    family: str, link: str, rng: np.random.Generator
) -> None:
    """Offsets, trials and weights included; the unit of a Gaussian response is not one."""
    drawn = make_problem(family, link, rng, n_obs=3000)
    problem = pose_drawn(drawn)
    fit = polish_from(problem, standardise(problem, user_truth(drawn)))
    slopes, biases = problem.coordinates.coefficients_to_user(
        fit.parameters.coefficients, fit.parameters.biases
    )
    dispersion = fit.parameters.dispersion
    if dispersion is not None:
        dispersion = dispersion * problem.coordinates.response_scale
    found = replace(fit.parameters, coefficients=slopes, biases=biases, dispersion=dispersion)
    expected = direct_log_likelihood(problem, found, drawn.rows.y)
    assert_allclose(fit.log_likelihood, expected, rtol=1e-9)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_log_likelihood_of_the_estimate(family: str, seed: int) -> None:
    """What `estimate` reports belongs to the parameters that it reports, in any unit."""
    drawn = make_problem(
        family, FAMILIES[family].link.name, np.random.default_rng(seed), n_obs=8000
    )
    rows, X, unit = drawn.rows, user_features(drawn), 250.0 if family == "gaussian" else 1.0
    y = unit * rows.y + (40.0 if family == "gaussian" else 0.0)
    offset = unit * np.asarray(rows.offset)
    options: dict[str, Any] = {"offset": offset, "sample_weight": rows.sample_weight}
    fit = estimate(X, y, 2, family=family, random_seed=1, **options)
    if fit.coefficients is None or fit.biases is None or fit.weights is None:
        pytest.fail("The estimate has no scales, biases or weights.")
    found = MixtureParameters(fit.coefficients, fit.biases, fit.weights, fit.dispersion)
    problem = pose(X, y, family, **options)
    assert fit.log_likelihood is not None
    assert_allclose(fit.log_likelihood, direct_log_likelihood(problem, found, y), rtol=1e-9)


def test_weights_count_as_rows(rng: np.random.Generator) -> None:
    """All weights doubled: the same optimum, twice the log-likelihood, twice the information."""
    drawn = make_problem("gaussian", "identity", rng, n_obs=2000)
    doubled = replace(drawn, rows=replace(drawn.rows, sample_weight=2 * drawn.rows.sample_weight))
    problem, twice = pose_drawn(drawn), pose_drawn(doubled)
    start = standardise(problem, user_truth(drawn))
    single, double = polish_from(problem, start), polish_from(twice, start)
    assert distance(single, double) < 1e-3
    assert_allclose(double.log_likelihood, 2 * single.log_likelihood, rtol=1e-6)
    assert_allclose(double.information, 2 * single.information, rtol=0.02, atol=1.0)


def test_the_start_does_not_matter_within_reach(rng: np.random.Generator) -> None:
    drawn = make_problem("poisson", "log", rng, n_obs=3000)
    problem = pose_drawn(drawn)
    start = standardise(problem, user_truth(drawn))
    moved = move(start, 0.1 * rng.standard_normal(parameter_count(start)))
    assert distance(polish_from(problem, start), polish_from(problem, moved)) < 1e-2


# --- bad starts ----------------------------------------------------------------------------------


def three_planes(n_obs: int, seed: int) -> tuple[EstimationProblem, MixtureParameters]:
    data = simulate_mixture(
        n_obs, 5, 3, family="gaussian", directions=np.eye(5)[:, :3], scales=[1.0, 1.3, 0.8],
        biases=[0.5, -0.5, 0.0], weights=[0.45, 0.35, 0.2], dispersion=0.3, random_seed=seed,
    )  # fmt: skip
    problem = pose(data.X, data.y, "gaussian")
    truth = MixtureParameters(data.coefficients, data.biases, data.weights, data.dispersion)
    return problem, standardise(problem, truth)


def merged(truth: MixtureParameters) -> MixtureParameters:
    """A wrong mode: one component stands for two, and two stand for one."""
    joint = truth.coefficients[:, :2].mean(axis=1)
    single = truth.coefficients[:, 2]
    return replace(
        truth,
        coefficients=np.stack([joint, 1.1 * single, 0.9 * single], axis=1),
        weights=np.array([0.8, 0.1, 0.1]),
        biases=np.zeros(3),
    )


def test_a_wrong_mode_is_reported(seed: int) -> None:
    """The polish climbs and adds no other start; the misfit tells that the mode is wrong."""
    problem, truth = three_planes(4000, seed)
    right, stuck = polish_from(problem, truth), polish_from(problem, merged(truth))
    assert right.misfit < LARGEST_MISFIT
    is_same = abs(stuck.log_likelihood - right.log_likelihood) < 1e-2
    assert is_same or stuck.misfit > LARGEST_MISFIT


def test_a_component_too_few_is_a_misfit(seed: int) -> None:
    problem, truth = three_planes(4000, seed)
    two = replace(truth.reorder(np.array([0, 1])), weights=np.array([0.5, 0.5]))
    assert polish_from(problem, two).misfit > LARGEST_MISFIT


# --- samples of rows -----------------------------------------------------------------------------


def use_small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Race on 1500 rows and take the curvature from 4000."""
    monkeypatch.setattr(moment_init.moments.polish, "SAMPLE_ROWS", 1500)
    monkeypatch.setattr(moment_init.moments.polish, "SAMPLE_ROWS_PER_PARAMETER", 1)
    monkeypatch.setattr(moment_init.likelihood.many_rows, "CURVATURE_ROWS", 4000)
    monkeypatch.setattr(moment_init.likelihood.many_rows, "CURVATURE_ROWS_PER_PARAMETER", 1)


def test_a_climb_that_ends_on_the_way_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Le Cam's first climb is cut short; the second starts at the maximum of more rows."""
    use_small_samples(monkeypatch)
    drawn = make_problem("bernoulli", "logit", rng, n_obs=20_000)
    problem = pose_drawn(drawn)
    start = standardise(problem, user_truth(drawn))
    whole = polish_from(problem, start)
    climbs: list[Optimum] = []

    def cut_short(*arguments: Any) -> Optimum:
        end = moment_init.likelihood.many_rows.climb_on_many(*arguments)
        climbs.append(end)
        return end._replace(has_converged=len(climbs) > 1)

    monkeypatch.setattr(moment_init.moments.polish, "climb_on_many", cut_short)
    found = polish_from(problem, start)
    assert len(climbs) == 2
    assert found.log_likelihood >= max(end.log_likelihood for end in climbs) - 1e-9
    assert_allclose(found.log_likelihood, whole.log_likelihood, atol=0.5)


@pytest.mark.parametrize("size", [0.0, 0.3])
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_le_cams_steps_end_at_the_same_optimum(
    family: str,
    link: str,
    size: float,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """From the truth, and from so far that the sample refutes the start.

    The steps promise to leave less than half a unit of log-likelihood, a squared distance of one,
    and to know the log-likelihood to a unit.
    """
    drawn = make_problem(family, link, rng, n_obs=20_000)
    problem = pose_drawn(drawn)
    start = standardise(problem, user_truth(drawn))
    exact = polish_from(problem, start)
    step = np.asarray(size * rng.choice([-1.0, 1.0], parameter_count(start)), dtype=np.float64)
    use_small_samples(monkeypatch)
    found = polish_from(problem, move(start, step))
    assert distance(exact, found) < 1.0
    assert abs(found.log_likelihood - exact.log_likelihood) < 1.0
    errors = np.sqrt(np.diag(np.linalg.inv(exact.information)))
    found_errors = np.sqrt(np.diag(np.linalg.inv(found.information)))
    # Curvature from 4000 rows by outer products: sqrt(2 / 4000) for light tails, some of them not.
    assert_allclose(found_errors, errors, rtol=0.3)


def test_same_seed_same_bits(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    problem, truth = three_planes(5000, seed)
    use_small_samples(monkeypatch)
    first, again = (polish_from(problem, truth, seed=seed) for _ in range(2))
    assert_array_equal(pack(first.parameters), pack(again.parameters))
    assert_array_equal(first.information, again.information)
    assert first.log_likelihood == again.log_likelihood


def test_a_component_too_many_does_no_harm(seed: int) -> None:
    """Two components where there is one: no lower a likelihood, whatever edge it runs to."""
    data = simulate_mixture(2000, 3, 1, family="bernoulli", scales=1.0, random_seed=seed)
    problem = pose(data.X, data.y, "bernoulli")
    one = MixtureParameters(data.coefficients, data.biases, np.ones(1))
    single = polish_from(problem, standardise(problem, one))
    two = MixtureParameters(
        np.c_[data.coefficients, -data.coefficients], np.zeros(2), np.array([0.8, 0.2])
    )
    double = polish_from(problem, standardise(problem, two))
    assert double.log_likelihood > single.log_likelihood - 0.1
    assert np.all(np.isfinite(double.information))
