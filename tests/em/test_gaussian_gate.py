"""Mixtures of experts with a gate of Gaussian densities (Xu, Jordan and Hinton)."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import special, stats

from moment_init import fit_em
from moment_init.checks import ConvergenceWarning
from moment_init.data.checking import validate_data
from moment_init.em.gaussian_gate import GatedProblem
from moment_init.em.problem import pose_em
from moment_init.em.result import EMFit
from moment_init.likelihood.gate import GatedMixture, GaussianGate, pack_gate, unpack_gate
from moment_init.likelihood.parameters import MixtureParameters, pack, parameter_count, unpack
from moment_init.results import StartStatus, Status

FloatArray = NDArray[np.float64]

COEFFICIENTS = np.array([[1.0, -1.0], [0.5, 1.5]])
BIASES = np.array([0.0, 0.5])
WEIGHTS = np.array([0.6, 0.4])
DISPERSION = np.array([0.8, 0.5])
MEANS = np.array([[10.0, 14.5], [2.0, 1.95]])
ROOTS = np.array([[[3.0, 0.0], [0.03, 0.06]], [[2.3, 0.0], [-0.03, 0.1]]])
"""Two components that overlap, in the user's units; the gating covariates have different ones."""

TRUE_START = (COEFFICIENTS, BIASES, WEIGHTS, DISPERSION)

FAMILIES = ("gaussian", "poisson", "bernoulli")

pytestmark = pytest.mark.filterwarnings("ignore:Component:UserWarning")


@dataclass(frozen=True)
class Drawn:
    """Rows of a mixture of experts."""

    X: FloatArray
    y: FloatArray
    gating: FloatArray
    component: NDArray[np.intp]


def draw(rng: np.random.Generator, n_obs: int = 1500, family: str = "gaussian") -> Drawn:
    """Draw the component, then the gating covariates and the response given it."""
    component = rng.choice(2, n_obs, p=WEIGHTS)
    noise = rng.standard_normal((n_obs, 2))
    gating = MEANS.T[component] + np.einsum("nab,nb->na", ROOTS[component], noise)
    X = rng.standard_normal((n_obs, 2))
    eta = (X @ COEFFICIENTS + BIASES)[np.arange(n_obs), component]
    if family == "gaussian":
        y = eta + DISPERSION[component] * rng.standard_normal(n_obs)
    elif family == "poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
    else:
        y = (rng.random(n_obs) < special.expit(eta)).astype(float)
    return Drawn(X, y, gating, component)


def fit_drawn(drawn: Drawn, family: str = "gaussian", **options: Any) -> EMFit:
    """Fit from the true experts, unless a start is given."""
    start = TRUE_START if family == "gaussian" else TRUE_START[:3]
    settings: dict[str, Any] = {"init": start, "gate": "gaussian", "progressbar": False}
    settings |= {"family": family, "gating": drawn.gating} | options
    return fit_em(drawn.X, drawn.y, 2, **settings)


def log_joint(
    family: str, experts: MixtureParameters, gate: GaussianGate, drawn: Drawn
) -> FloatArray:
    """Log of alpha_j N(g; m_j, S_j) f(y | x, j) by SciPy, (n_obs, n_components)."""
    eta = drawn.X @ experts.coefficients + experts.biases
    y = drawn.y[:, None]
    if family == "gaussian":
        log_f = stats.norm(eta, experts.dispersion).logpdf(y)
    elif family == "poisson":
        log_f = stats.poisson(np.exp(eta)).logpmf(y)
    else:
        log_f = stats.bernoulli(special.expit(eta)).logpmf(y.astype(int))
    parts = zip(gate.means.T, gate.covariances, strict=True)
    of_gate = [stats.multivariate_normal(m, s).logpdf(drawn.gating) for m, s in parts]
    return np.asarray(np.log(experts.weights) + np.stack(of_gate, axis=1) + log_f)


def gate_of(fit: EMFit) -> GaussianGate:
    """The gate that a fit must have."""
    assert fit.gaussian_gate is not None
    return fit.gaussian_gate


def problem_of(drawn: Drawn, family: str = "gaussian", **block: Any) -> GatedProblem:
    """Pose rows."""
    names = ("link", "offset", "n_trials", "sample_weight", "groups")
    block = dict.fromkeys(names) | block
    data = validate_data(drawn.X, drawn.y, family=family, gating=drawn.gating, **block)
    return GatedProblem.of(pose_em(data, 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_log_likelihood_is_the_joint_one(family: str, rng: np.random.Generator) -> None:
    drawn = draw(rng, 400, family)
    fit = fit_drawn(drawn, family)
    joint = log_joint(family, fit.parameters, gate_of(fit), drawn)
    by_row = special.logsumexp(joint, axis=1)
    assert_allclose(fit.log_likelihood, by_row.sum(), rtol=1e-11)
    assert_allclose(fit.score(drawn.X, drawn.y, gating=drawn.gating), by_row.mean(), rtol=1e-11)
    shares = np.exp(joint - by_row[:, None])
    assert_allclose(fit.responsibilities, shares, atol=1e-10)
    again = fit.predict_membership(drawn.X, drawn.y, gating=drawn.gating)
    assert_allclose(again, shares, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_climb_is_monotone_and_ends_at_a_maximum(family: str, rng: np.random.Generator) -> None:
    """What a Newton step would still gain, score' I^-1 score / 2, is below the tolerance."""
    gated = problem_of(draw(rng, 800, family), family)
    mixture = gated.ungated().to_standardised(MixtureParameters(*TRUE_START[:3]))
    if family == "gaussian":
        mixture = replace(mixture, dispersion=np.array([0.5, 0.5]))
    start = gated.start_from(mixture)
    run = gated.climb(start.as_logit, max_steps=200, em_steps=5, max_em_steps=20, tolerance=1e-6)
    assert run.converged
    assert np.all(np.diff(run.history) >= 0.0)
    sums = gated.likelihood(run.at.mixture).sums(run.at, missing=True)
    assert sums.score @ np.linalg.solve(sums.information(), sums.score) < 2e-6


def test_em_alone_is_monotone(rng: np.random.Generator) -> None:
    """Plain iterations of EM of a gaussian response, whose M-step is exact; rounding is 1e-13."""
    gated = problem_of(draw(rng, 300))
    start = gated.ungated().to_standardised(MixtureParameters(*TRUE_START))
    at = gated.start_from(start)
    likelihood = gated.likelihood(at.mixture)
    values = []
    for _ in range(30):
        sums = likelihood.sums(at, missing=False)
        values.append(sums.log_likelihood)
        at = likelihood.em_moved(at, sums, 1.0)
    assert np.diff(values).min() > -1e-13 * abs(values[0])
    assert values[-1] > values[0]


def test_gate_of_given_shares_by_hand() -> None:
    """Units at 0, 2 and at 4, 10: means 1 and 7, variances 1 and 9, after standardising."""
    gating = np.array([[0.0], [2.0], [4.0], [10.0]])
    drawn = Drawn(np.array([[0.0], [1.0], [-1.0], [2.0]]), np.arange(4.0), gating, np.zeros(4, int))
    gated = problem_of(drawn)
    shares = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    experts = MixtureParameters(np.zeros((1, 2)), np.zeros(2), np.array([0.9, 0.1]), np.ones(2))
    made = gated.with_shares(experts, shares)
    user = made.gate.rescale(gated.gating.mean, gated.gating.scales)
    assert_allclose(made.mixture.weights, [0.5, 0.5], rtol=1e-14)
    assert_allclose(user.means, [[1.0, 7.0]], rtol=1e-13)
    assert_allclose(user.covariances[:, 0, 0], [1.0, 9.0], rtol=1e-12)


def test_m_step_is_the_closed_form(rng: np.random.Generator) -> None:
    """Moments of the units, weighted with their responsibilities and sample weights."""
    drawn = draw(rng, 500)
    weight = rng.integers(1, 4, 500).astype(float)
    gated = problem_of(drawn, sample_weight=weight)
    at = gated.start_from(gated.ungated().to_standardised(MixtureParameters(*TRUE_START)))
    likelihood = gated.likelihood(at.mixture)
    moved = likelihood.em_moved(at, likelihood.sums(at, missing=False), 1.0)
    user = at.gate.rescale(gated.gating.mean, gated.gating.scales)
    joint = log_joint("gaussian", gated.ungated().to_user(at.mixture), user, drawn)
    shares = special.softmax(joint, axis=1) * weight[:, None]
    assert_allclose(moved.mixture.weights, shares.sum(axis=0) / weight.sum(), rtol=1e-10)
    after = moved.gate.rescale(gated.gating.mean, gated.gating.scales)
    for j, own in enumerate(shares.T):
        mean = np.average(drawn.gating, axis=0, weights=own)
        covariance = np.cov(drawn.gating, rowvar=False, aweights=own, ddof=0)
        assert_allclose(after.means[:, j], mean, rtol=1e-9)
        assert_allclose(after.covariances[j], covariance, rtol=1e-8)


def test_score_is_the_numerical_gradient(rng: np.random.Generator) -> None:
    """Away from the maximum; central differences with step 1e-5."""
    gated = problem_of(draw(rng, 300, "poisson"), "poisson")
    at = gated.start_from(gated.ungated().to_standardised(MixtureParameters(*TRUE_START[:3])))
    likelihood, size = gated.likelihood(at.mixture), parameter_count(at.mixture)
    vector = np.append(pack(at.mixture), pack_gate(at.gate)) + 0.1 * rng.standard_normal(17)

    def made(vector: FloatArray) -> GatedMixture:
        return GatedMixture(unpack(vector[:size], at.mixture), unpack_gate(vector[size:], at.gate))

    def value(vector: FloatArray) -> float:
        return likelihood.sums(made(vector), missing=False).log_likelihood

    steps = 1e-5 * np.eye(len(vector))
    numerical = [(value(vector + step) - value(vector - step)) / 2e-5 for step in steps]
    score = likelihood.sums(made(vector), missing=False).score
    assert_allclose(score, numerical, atol=1e-7 * np.abs(score).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_covariance_is_the_inverse_of_the_numerical_hessian(
    family: str, rng: np.random.Generator
) -> None:
    """In the user's vector of parameters, by SciPy's densities.

    With steps h = .03 standard errors the second differences err by h^2 times fourth derivatives,
    which in these units are below one (1e-3), and by rounding, 1e-12 / h^2.
    """
    drawn = draw(rng, 1500, family)
    fit = fit_drawn(drawn, family, tolerance=1e-9)
    gate, experts = gate_of(fit), fit.parameters
    covariance, size = fit.covariance, parameter_count(fit.parameters)
    assert covariance is not None
    centre = np.append(pack(experts), pack_gate(gate))
    steps = np.linalg.cholesky(covariance).T * 0.03  # independent directions of unit information

    def value(vector: FloatArray) -> float:
        there = unpack(vector[:size], experts), unpack_gate(vector[size:], gate)
        return float(special.logsumexp(log_joint(family, *there, drawn), axis=1).sum())

    n = len(centre)
    hessian = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            signs = [(1, 1, 1), (-1, -1, 1), (1, -1, -1), (-1, 1, -1)]
            terms = [s * value(centre + a * steps[i] + b * steps[j]) for a, b, s in signs]
            hessian[i, j] = hessian[j, i] = -sum(terms) / (4 * 0.03**2)
    assert_allclose(hessian, np.eye(n), atol=1e-3)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_truth_is_recovered(family: str, seed: int) -> None:
    """Within 4 standard errors, for three data sets; 60 estimates fail with probability .004."""
    for own in np.random.default_rng(seed).spawn(3):
        fit = fit_drawn(draw(own, 4000, family), family)
        errors = fit.standard_errors
        assert fit.converged
        assert fit.gate_means is not None
        assert fit.gate_covariances is not None
        assert errors.gate_means is not None
        assert errors.gate_covariances is not None
        assert np.all(np.abs(fit.coefficients - COEFFICIENTS) < 4 * errors.coefficients)
        assert np.all(np.abs(fit.biases - BIASES) < 4 * errors.biases)
        assert np.all(np.abs(fit.weights - WEIGHTS) < 4 * errors.weights)
        assert np.all(np.abs(fit.gate_means - MEANS) < 4 * errors.gate_means)
        truth = ROOTS @ ROOTS.transpose(0, 2, 1)
        assert np.all(np.abs(fit.gate_covariances - truth) < 4 * errors.gate_covariances)
        if fit.dispersion is not None and errors.dispersion is not None:
            assert np.all(np.abs(fit.dispersion - DISPERSION) < 4 * errors.dispersion)


@pytest.mark.parametrize("family", FAMILIES)
def test_default_search_finds_what_the_truth_leads_to(
    family: str, rng: np.random.Generator
) -> None:
    drawn = draw(rng, 1500, family)
    fit = fit_drawn(drawn, family, init="search", random_seed=1)
    assert fit.log_likelihood > fit_drawn(drawn, family).log_likelihood - 1e-3
    assert fit.converged
    assert np.all(np.diff(fit.history) >= 0.0)
    origins = {start.origin.split()[0] for start in fit.starts}
    assert {"growth", "bins", "clusters", "random"} <= origins


def test_clusters_of_the_gate_are_found(rng: np.random.Generator) -> None:
    """Experts that are alike: only the gating covariates tell the components apart."""
    drawn = draw(rng, 600)
    apart = drawn.gating + np.array([100.0, 0.0]) * drawn.component[:, None]
    y = drawn.X[:, 0] + rng.standard_normal(600)
    fit = fit_drawn(replace(drawn, gating=apart, y=y), init="tensor", random_seed=2)
    assert np.array_equal(fit.responsibilities.argmax(axis=1), drawn.component)


def test_single_component_has_sample_moments(rng: np.random.Generator) -> None:
    drawn = draw(rng, 200)
    fit = fit_em(
        drawn.X, drawn.y, 1, family="gaussian", gating=drawn.gating, gate="gaussian", random_seed=0
    )
    gate, n_obs = gate_of(fit), 200
    assert_allclose(gate.means[:, 0], drawn.gating.mean(axis=0), rtol=1e-10)
    covariance = np.cov(drawn.gating, rowvar=False, ddof=0)
    assert_allclose(gate.covariances[0], covariance, rtol=1e-8)
    errors = fit.standard_errors
    assert errors.gate_means is not None
    assert errors.gate_covariances is not None
    assert_allclose(errors.gate_means[:, 0], np.sqrt(np.diag(covariance) / n_obs), rtol=1e-6)
    variances = np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2
    assert_allclose(errors.gate_covariances[0], np.sqrt(variances / n_obs), rtol=1e-6)
    assert fit.n_parameters == 2 + 1 + 1 + 5


def test_predicted_means_are_weighted_with_the_gate(rng: np.random.Generator) -> None:
    drawn = draw(rng, 300)
    fit = fit_drawn(drawn)
    gate = gate_of(fit)
    parts = zip(gate.means.T, gate.covariances, strict=True)
    joint = np.stack([stats.multivariate_normal(m, s).pdf(drawn.gating) for m, s in parts], axis=1)
    prior = joint * fit.weights / (joint @ fit.weights)[:, None]
    by_component = drawn.X @ fit.coefficients + fit.biases
    means = fit.predict(drawn.X, gating=drawn.gating)
    assert_allclose(means, (prior * by_component).sum(axis=1), rtol=1e-9)
    with pytest.raises(ValueError, match="`gating` must be given for a fit with a gate"):
        fit.predict(drawn.X)


def test_repeated_rows_are_weighted_rows(rng: np.random.Generator) -> None:
    """Rows of weight zero get responsibilities too."""
    drawn = draw(rng, 400)
    weight = rng.integers(0, 3, 400)
    index = np.repeat(np.arange(400), weight)
    repeated = Drawn(drawn.X[index], drawn.y[index], drawn.gating[index], drawn.component[index])
    one = fit_drawn(drawn, sample_weight=weight.astype(float), tolerance=1e-9)
    other = fit_drawn(repeated, tolerance=1e-9)
    assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-11)
    assert_allclose(gate_of(one).means, gate_of(other).means, rtol=1e-6)
    assert_allclose(one.standard_errors.weights, other.standard_errors.weights, rtol=1e-4)
    assert one.responsibilities.shape == (400, 2)
    assert_allclose(one.responsibilities.sum(axis=1), 1.0, rtol=1e-12)


def test_groups_share_component_and_covariates(rng: np.random.Generator) -> None:
    """A group's covariates count once; its rows' densities are multiplied."""
    groups = np.repeat(np.arange(200), 3)
    drawn = draw(rng, 600)
    owner = drawn.component[::3][groups]
    eta = (drawn.X @ COEFFICIENTS + BIASES)[np.arange(600), owner]
    y = eta + DISPERSION[owner] * rng.standard_normal(600)
    grouped = Drawn(drawn.X, y, drawn.gating[::3][groups], owner)
    shuffle = rng.permutation(600)
    mixed = Drawn(grouped.X[shuffle], y[shuffle], grouped.gating[shuffle], owner[shuffle])
    fit = fit_drawn(mixed, groups=groups[shuffle])
    gate = gate_of(fit)
    experts = fit.parameters
    of_rows = log_joint("gaussian", experts, gate, grouped)
    parts = zip(gate.means.T, gate.covariances, strict=True)
    of_gate = np.stack([stats.multivariate_normal(m, s).logpdf(grouped.gating) for m, s in parts])
    of_gate = of_gate.T + np.log(experts.weights)
    joint = of_gate[::3] + np.add.reduceat(of_rows - of_gate, np.arange(0, 600, 3), axis=0)
    assert_allclose(fit.log_likelihood, special.logsumexp(joint, axis=1).sum(), rtol=1e-11)
    assert fit.n_units == 200
    expected = special.softmax(joint, axis=1)[groups][shuffle]
    assert_allclose(fit.responsibilities, expected, atol=1e-9)


def test_shared_parameters_stay_shared(rng: np.random.Generator) -> None:
    fit = fit_drawn(draw(rng, 500), shared=[0, "dispersion"])
    assert fit.dispersion is not None
    assert_allclose(fit.coefficients[0, 0], fit.coefficients[0, 1], rtol=1e-9)
    assert_allclose(fit.dispersion[0], fit.dispersion[1], rtol=1e-9)
    assert fit.n_parameters == 19 - 2
    assert fit.converged


def test_directions_may_be_held(rng: np.random.Generator) -> None:
    directions = COEFFICIENTS / np.linalg.norm(COEFFICIENTS, axis=0)
    fit = fit_drawn(draw(rng, 500), fixed_directions=directions)
    assert_allclose(fit.directions, directions, atol=1e-9)
    assert fit.n_parameters == 19 - 2


def test_covariate_that_does_not_vary_is_a_bound(rng: np.random.Generator) -> None:
    """The components part by a binary covariate: each has its variance at the floor."""
    drawn = draw(rng, 500)
    binary = np.column_stack([drawn.component.astype(float), drawn.gating[:, 1]])
    fit = fit_drawn(replace(drawn, gating=binary), min_dispersion_ratio=0.1)
    assert fit.status is Status.NOT_IDENTIFIED
    assert set(fit.bounds) == {f"gate covariance of component {j}" for j in range(2)}
    assert any("gating covariates that hardly vary" in warning for warning in fit.warnings)
    covariance = np.linalg.inv(np.cov(binary, rowvar=False, ddof=0))
    for own in gate_of(fit).covariances:
        ratios = np.linalg.eigvals(covariance @ own).real
        assert_allclose(ratios.min(), 0.1**2, rtol=1e-6)
    assert np.all(np.diff(fit.history) >= 0.0)
    assert np.all(np.isfinite(fit.standard_errors.coefficients))


def test_a_fit_is_a_start(rng: np.random.Generator) -> None:
    """Evaluated as it is, it has its own log-likelihood."""
    drawn = draw(rng, 300)
    fit = fit_drawn(drawn)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        again = fit_drawn(drawn, init=fit, max_iter=0)
    assert_allclose(again.log_likelihood, fit.log_likelihood, rtol=1e-12)
    assert_allclose(gate_of(again).means, gate_of(fit).means, rtol=1e-10)
    fewer = fit_drawn(replace(drawn, gating=drawn.gating[:, :1]), init=fit)
    assert fewer.converged
    softmax = fit_drawn(drawn, init=fit, gate="softmax")
    assert softmax.gate is not None
    assert softmax.gate_means is None


def test_responsibilities_are_a_start(rng: np.random.Generator) -> None:
    drawn = draw(rng, 300)
    fit = fit_drawn(drawn)
    again = fit_drawn(drawn, init=fit.responsibilities)
    assert_allclose(again.log_likelihood, fit.log_likelihood, rtol=1e-9)


def test_bare_search_is_evaluated_only(rng: np.random.Generator) -> None:
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        fit = fit_drawn(draw(rng, 300), init="search", max_iter=0, random_seed=0)
    assert fit.n_iter == 0
    assert {start.origin.split()[0] for start in fit.starts} == {"tensor"}


def test_random_starts_do_not_depend_on_workers(rng: np.random.Generator) -> None:
    drawn = draw(rng, 300)
    options: dict[str, Any] = {"init": "random", "n_starts": 3, "random_seed": 7}
    one, other = fit_drawn(drawn, **options), fit_drawn(drawn, n_jobs=2, **options)
    assert one.log_likelihood == other.log_likelihood
    assert_array_equal(gate_of(one).means, gate_of(other).means)
    assert [start.origin for start in one.starts] == ["random 1", "random 2", "random 3"]
    assert all(start.status is not StartStatus.OVERTAKEN for start in one.starts)


def test_same_seed_same_fit(rng: np.random.Generator) -> None:
    drawn = draw(rng, 300)
    one, other = (fit_drawn(drawn, init="tensor", random_seed=3) for _ in range(2))
    assert one.log_likelihood == other.log_likelihood
    assert_array_equal(one.coefficients, other.coefficients)


def test_columns_are_matched_by_name(rng: np.random.Generator) -> None:
    drawn = draw(rng, 300)
    frame = pd.DataFrame(drawn.gating, columns=["year", "size"])
    fit = fit_drawn(drawn, gating=frame)
    assert fit.gate_names == ("year", "size")
    turned = fit.score(drawn.X, drawn.y, gating=frame[["size", "year"]])
    assert turned == fit.score(drawn.X, drawn.y, gating=frame)
    assert "gate: mean of year" in repr(fit)
    assert "joint log-likelihood of gate and response" in repr(fit)


def test_datatree_has_draws_of_the_gate(rng: np.random.Generator) -> None:
    """The log-likelihood of a draw is the joint one at all of its parameters."""
    drawn = draw(rng, 400)
    fit = fit_drawn(drawn, gating=pd.DataFrame(drawn.gating, columns=["year", "size"]))
    tree = fit.to_datatree(drawn.X, drawn.y, gating=drawn.gating, draws=300, random_seed=1)
    posterior = tree["posterior"].dataset
    dims = ("chain", "draw", "component", "gate_feature")
    assert posterior["gate_mean"].dims == dims
    assert posterior["gate_covariance"].dims == (*dims, "gate_feature_2")
    assert "gate" not in posterior
    at = posterior.isel(chain=0, draw=0)
    experts = MixtureParameters(
        at["coefficient"].to_numpy(),
        at["bias"].to_numpy(),
        at["weight"].to_numpy(),
        at["dispersion"].to_numpy(),
    )
    roots = np.linalg.cholesky(at["gate_covariance"].to_numpy())
    gate = GaussianGate(at["gate_mean"].to_numpy().T, roots)
    expected = special.logsumexp(log_joint("gaussian", experts, gate, drawn), axis=1)
    assert_allclose(tree["log_likelihood"]["y"].to_numpy()[0, 0], expected, rtol=1e-8)
    assert_allclose(tree["sample_stats"]["lp"].to_numpy()[0, 0], expected.sum(), rtol=1e-10)
    errors = fit.standard_errors.gate_means
    assert errors is not None
    spread = posterior["gate_mean"].to_numpy()[0].std(axis=0).T
    # a standard deviation of 300 draws has a relative standard error of 1 / sqrt(600)
    assert_allclose(spread, errors, rtol=5 / np.sqrt(600))


def test_words_and_combinations_are_checked(rng: np.random.Generator) -> None:
    drawn = draw(rng, 100)
    with pytest.raises(ValueError, match="`gate` must be 'softmax' or 'gaussian'; got 'probit'"):
        fit_drawn(drawn, gate="probit")
    with pytest.raises(ValueError, match="`gate` must be 'softmax', the default, without `gating`"):
        fit_drawn(drawn, gating=None)
    with pytest.raises(ValueError, match="`fixed_weights` must be None with `gating`"):
        fit_drawn(drawn, fixed_weights=[0.5, 0.5])
    few = Drawn(drawn.X[:18], drawn.y[:18], drawn.gating[:18], drawn.component[:18])
    with pytest.raises(ValueError, match=r"free parameters \(19\); got 18"):
        fit_drawn(few)


def test_problem_needs_gating_covariates(rng: np.random.Generator) -> None:
    gated = problem_of(draw(rng, 100))
    with pytest.raises(ValueError, match="`logit` must have gating covariates; got none"):
        GatedProblem.of(gated.ungated())
