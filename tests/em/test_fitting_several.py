"""`fit_em` with several responses, and with classes."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import ConvergenceWarning, EMFit, Status, fit_em
from moment_init.em.information import LaplaceApproximation
from moment_init.likelihood.parameters import MixtureParameters
from tests.joint_mixtures import JointData, matched, simulate_joint, simulate_labelled

LIMIT = 5.0
"""Standard errors within which estimates lie: about 20 of them in a test, each beyond 4.5 in one
case of 10^5; more for skewness."""


def fit_joint(data: JointData, family: Any, number: int = 2, **more: Any) -> EMFit:
    """Fit simulated responses."""
    return fit_em(data.X, data.y, number, family=family, random_seed=1, **more)


def assert_recovered(fit: EMFit, truth: MixtureParameters) -> list[int]:
    """Compare all parameters with the truth, after matching; return the order of components."""
    order, errors = matched(fit, truth), fit.standard_errors
    pairs = [
        (fit.coefficients, truth.coefficients, errors.coefficients),
        (fit.biases, truth.biases, errors.biases),
    ]
    if fit.gate is None:  # with a gate weights depend on its covariates
        pairs.append((fit.weights, truth.weights, errors.weights))
    if truth.dispersion is not None:
        assert fit.dispersion is not None
        assert errors.dispersion is not None
        pairs.append((fit.dispersion, truth.dispersion, errors.dispersion))
    for found, true, error in pairs:
        assert np.abs((found[..., order] - true) / error[..., order]).max() < LIMIT
    # not because errors are large: an estimate of zero is far from the truth in the same units
    assert np.abs(truth.coefficients / errors.coefficients[..., order]).max() > 8.0
    return order


@pytest.mark.filterwarnings("ignore:A parameter|Component:UserWarning")
@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_groups_are_the_same_model(family: str, rng: np.random.Generator) -> None:
    """Rows x (x) e_k whose group is the row: another way to write the same likelihood."""
    scale = 2.5 if family == "bernoulli" else 1.0
    data = simulate_joint(family, 4_000, 2, [0.6, 0.4], 2, rng, scale=scale)
    fit = fit_joint(data, family)
    n_obs = len(data.X)
    inputs = np.zeros((2 * n_obs, 5))
    inputs[0::2, :2] = inputs[1::2, 2:4] = data.X
    inputs[1::2, 4] = 1.0
    first, second = fit.coefficients
    coefficients = np.concatenate([first, second, (fit.biases[1] - fit.biases[0])[None]])
    same = fit_em(
        inputs,
        data.y.ravel(),
        2,
        family=family,
        groups=np.repeat(np.arange(n_obs), 2),
        init=(coefficients, fit.biases[0], fit.weights),
        tolerance=1e-10,
    )
    assert abs(same.log_likelihood - fit.log_likelihood) < 1e-6
    assert_allclose(same.coefficients, coefficients, atol=2e-3)
    errors = same.standard_errors.coefficients[:2]
    assert_allclose(fit.standard_errors.coefficients[0], errors, rtol=1e-2)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_one_column_is_one_response(family: str, rng: np.random.Generator) -> None:
    dispersion = 0.4 if family == "gaussian" else None
    data = simulate_joint(family, 600, 2, [0.7, 0.3], 1, rng, dispersion=dispersion)
    fit = fit_joint(data, family)
    single = fit_em(data.X, data.y[:, 0], 2, family=family, random_seed=1)
    assert fit.log_likelihood == single.log_likelihood
    assert_array_equal(fit.coefficients, single.coefficients)
    assert_array_equal(fit.covariance, single.covariance)
    assert_array_equal(fit.responsibilities, single.responsibilities)
    assert_array_equal(fit.predict(data.X), single.predict(data.X))
    assert fit.score(data.X, data.y) == single.score(data.X, data.y[:, 0])
    assert fit.response_names == fit.outcome_names == ()


@pytest.mark.filterwarnings("ignore:A parameter|Component:UserWarning")
def test_two_classes_are_bernoulli(rng: np.random.Generator) -> None:
    data = simulate_joint("bernoulli", 4_000, 3, [0.65, 0.35], 1, rng, scale=2.5)
    labels = np.where(data.y[:, 0] > 0, "yes", "no")
    single = fit_em(data.X, data.y[:, 0], 2, family="bernoulli", random_seed=1)
    fit = fit_joint(data._replace(y=labels), "categorical")
    assert fit.outcome_names == ("no", "yes")
    assert fit.response_names == ("yes",)
    assert abs(fit.log_likelihood - single.log_likelihood) < 1e-5
    assert_allclose(fit.coefficients, single.coefficients, atol=0.05)
    probabilities = fit.predict(data.X)
    assert_allclose(probabilities[:, 1], single.predict(data.X), atol=1e-3)
    assert_allclose(probabilities.sum(axis=1), 1.0)
    again = fit_joint(data._replace(y=labels), "categorical", init=single)
    assert again.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-5)


CASES = [
    ("gaussian", {"dispersion": 0.5}, 1_500),
    ("bernoulli", {"scale": 4.0}, 6_000),
    ("poisson", {}, 2_000),
    ("gamma", {"dispersion": 3.0}, 2_000),
    ("negative_binomial", {"dispersion": 4.0}, 4_000),
    ("categorical", {"scale": 4.0}, 6_000),
]


@pytest.mark.parametrize(("family", "options", "n_obs"), CASES)
def test_recovery_in_standard_errors(
    family: str, options: dict[str, Any], n_obs: int, rng: np.random.Generator
) -> None:
    data = simulate_joint(family, n_obs, 3, [0.65, 0.35], 2, rng, **options)
    fit = fit_joint(data, family)
    assert fit.converged
    assert_recovered(fit, data.truth)


@pytest.mark.parametrize(("family", "scale"), [("poisson", 0.8), ("bernoulli", 2.0)])
def test_recovery_with_groups(family: str, scale: float, rng: np.random.Generator) -> None:
    """Four rows per group: components that rows alone would not tell apart are recovered."""
    n_groups, size = 600, 4
    label = np.repeat(rng.choice(2, size=n_groups, p=[0.65, 0.35]), size)
    groups = np.repeat(np.arange(n_groups), size)
    data = simulate_labelled(family, label, rng, scale=scale)
    fit = fit_joint(data, family, groups=groups)
    assert fit.status is Status.OK
    assert fit.n_units == n_groups
    order = assert_recovered(fit, data.truth)
    # all rows of a group have the component of the group
    shares = fit.responsibilities.reshape(n_groups, size, 2)
    assert_array_equal(shares, np.repeat(shares[:, :1], size, axis=1))
    # rows alone say less about their component
    alone = fit.predict_membership(data.X, data.y)
    of_groups, of_rows = (
        np.mean(values[:, order].argmax(axis=1) == label)
        for values in (fit.responsibilities, alone)
    )
    assert of_groups > of_rows + 0.02
    score = fit.score(data.X, data.y, groups=groups)
    assert score * n_groups == pytest.approx(fit.log_likelihood, rel=1e-10)


def gated_labels(n_obs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Components whose log odds, of the first to the second, are .4 + 1.5 g."""
    g = 3.0 + 0.5 * rng.standard_normal(n_obs)
    odds = 0.4 + 1.5 * (g - 3.0) / 0.5
    return g, (rng.random(n_obs) > 1 / (1 + np.exp(-odds))).astype(np.intp)


@pytest.mark.parametrize(
    ("family", "options", "n_obs"), [CASES[0], CASES[2], CASES[5]], ids=lambda value: str(value)
)
def test_recovery_with_a_softmax_gate(
    family: str, options: dict[str, Any], n_obs: int, rng: np.random.Generator
) -> None:
    g, label = gated_labels(n_obs, rng)
    data = simulate_labelled(family, label, rng, **options)
    fit = fit_joint(data, family, gating=pd.DataFrame({"g": g}))
    assert fit.status is Status.OK
    order = assert_recovered(fit, data.truth)
    errors = fit.standard_errors
    assert fit.gate is not None
    assert fit.gate_biases is not None
    assert errors.gate is not None
    assert errors.gate_biases is not None
    sign = 1.0 if order == [0, 1] else -1.0  # the last component of the fit is the reference
    assert abs(fit.gate[0, 0] - sign * 3.0) < LIMIT * errors.gate[0, 0]
    assert abs(fit.gate_biases[0] - sign * (0.4 - 9.0)) < LIMIT * errors.gate_biases[0]
    assert errors.gate[0, 0] < 0.5
    mean = fit.predict(data.X, gating=g[:, None])
    prior = 1 / (1 + np.exp(-(fit.gate_biases[0] + fit.gate[0, 0] * g)))
    parts = fit.predict(data.X, gating=g[:, None], kind="components")
    by_hand = prior[:, None] * parts[:, 0] + (1 - prior)[:, None] * parts[:, 1]
    assert_allclose(mean, by_hand, rtol=1e-8)


def test_groups_and_gate_together(rng: np.random.Generator) -> None:
    n_groups, size = 400, 3
    g, of_group = gated_labels(n_groups, rng)
    label, groups = np.repeat(of_group, size), np.repeat(np.arange(n_groups), size)
    data = simulate_labelled("poisson", label, rng)
    gating = np.repeat(g, size)[:, None]
    fit = fit_joint(data, "poisson", groups=groups, gating=gating)
    order = assert_recovered(fit, data.truth)
    assert fit.gate is not None
    assert fit.standard_errors.gate is not None
    sign = 1.0 if order == [0, 1] else -1.0
    error = fit.standard_errors.gate[0, 0]
    assert abs(fit.gate[0, 0] - sign * 3.0) < LIMIT * error < LIMIT


def test_a_gaussian_gate(rng: np.random.Generator) -> None:
    n_obs = 1_500
    label = rng.choice(2, size=n_obs, p=[0.6, 0.4])
    g = np.where(label == 0, -1.0, 1.5) + rng.standard_normal(n_obs)
    data = simulate_labelled("poisson", label, rng)
    fit = fit_joint(data, "poisson", gating=g, gate="gaussian")
    order = assert_recovered(fit, data.truth)
    assert fit.gate_means is not None
    assert fit.standard_errors.gate_means is not None
    gaps = fit.gate_means[0, order] - [-1.0, 1.5]
    assert np.abs(gaps / fit.standard_errors.gate_means[0, order]).max() < LIMIT


@pytest.mark.parametrize("shared", ["x1", ["x1", "bias", "dispersion"]])
def test_recovery_with_shared_parameters(shared: Any, rng: np.random.Generator) -> None:
    """Each response has its own common slope, bias and deviation."""
    n_obs, free = 1_200, np.array([[1.0, -0.8], [-0.5, 0.9]])  # (response, component)
    common, biases = np.array([0.7, -1.2]), np.array([0.3, -0.6])
    X = rng.standard_normal((n_obs, 2))
    label = rng.choice(2, size=n_obs, p=[0.6, 0.4])
    mean = X[:, :1] * free[:, label].T + X[:, 1:] * common + biases
    y = mean + np.array([0.4, 0.7]) * rng.standard_normal((n_obs, 2))
    fit = fit_em(X, y, 2, family="gaussian", shared=shared, random_seed=1)
    own = fit_em(X, y, 2, family="gaussian", random_seed=1)
    n_shared = 2 * (1 if shared == "x1" else 3)
    assert fit.n_parameters == own.n_parameters - n_shared
    assert 0.0 <= own.log_likelihood - fit.log_likelihood < 2.0 * n_shared + 10.0
    assert_allclose(fit.coefficients[:, 1, 0], fit.coefficients[:, 1, 1], rtol=1e-10)
    assert fit.dispersion is not None
    if shared != "x1":
        assert_allclose(fit.biases[:, 0], fit.biases[:, 1], rtol=1e-9)
        assert_allclose(fit.dispersion[:, 0], fit.dispersion[:, 1], rtol=1e-10)
    spread = np.repeat([[0.4], [0.7]], 2, axis=1)
    truth = MixtureParameters(
        np.stack([free, np.repeat(common[:, None], 2, axis=1)], axis=1),
        np.repeat(biases[:, None], 2, axis=1),
        np.array([0.6, 0.4]),
        spread,
    )
    assert_recovered(fit, truth)
    # rows of both components tell about the common slope
    errors = fit.standard_errors.coefficients[:, 1]
    assert_allclose(errors[:, 0], errors[:, 1], rtol=1e-8)
    assert (errors < own.standard_errors.coefficients[:, 1].min(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("family", ["poisson", "categorical"])
def test_fixed_weights(family: str, rng: np.random.Generator) -> None:
    label = rng.choice(2, size=1_500, p=[0.7, 0.3])
    data = simulate_labelled(family, label, rng, scale=4.0 if family == "categorical" else 1.0)
    fit = fit_joint(data, family, fixed_weights=[0.3, 0.7])
    assert_array_equal(fit.weights, [0.3, 0.7])
    assert_array_equal(fit.standard_errors.weights, 0.0)
    free = fit_joint(data, family)
    assert fit.n_parameters == free.n_parameters - 1
    # half a chi-squared variable with one degree of freedom exceeds 12 once in 10^6
    assert 0.0 <= free.log_likelihood - fit.log_likelihood < 12.0
    order = matched(fit, data.truth)
    assert order == [1, 0]  # as in the fixed weights


def test_offsets_of_classes(rng: np.random.Generator) -> None:
    """An offset of all classes but the first is a known part of their predictors."""
    data = simulate_joint("categorical", 3_000, 2, [0.6, 0.4], 2, rng, scale=3.0)
    known = np.array([[0.4, -0.3], [-0.2, 0.5]])  # of two further columns, for each class
    extra = rng.standard_normal((3_000, 2))
    offset = extra @ known
    fit = fit_joint(data, "categorical", offset=offset)
    shift = fit_joint(data, "categorical", offset=offset + np.array([1.0, -2.0]), init=fit)
    assert shift.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-6)
    assert_allclose(shift.biases - fit.biases, [[-1.0, -1.0], [2.0, 2.0]], atol=1e-3)
    eta = np.einsum("nd,kdj->knj", data.X, fit.coefficients) + fit.biases[:, None]
    odds = np.exp(np.concatenate([np.zeros((1, 3_000, 2)), eta + offset.T[:, :, None]]))
    by_hand = (odds / odds.sum(axis=0)).transpose(1, 2, 0)
    assert_allclose(fit.predict(data.X, offset=offset, kind="components"), by_hand, rtol=1e-9)
    common = fit_joint(data, "categorical", offset=np.full(3_000, 1.0))
    plain = fit_joint(data, "categorical")
    assert common.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-5)
    assert_allclose(common.biases, plain.biases - 1.0, atol=1e-3)


@pytest.mark.parametrize("error", [1e-20, 0.1, 1e4])
def test_errors_of_dispersions_are_relative(error: float, rng: np.random.Generator) -> None:
    """The vector has logarithms: an error of one that is hardly known may be in the thousands."""
    data = simulate_joint("gaussian", 60, 2, [0.65, 0.35], 2, rng, dispersion=0.4)
    fit = fit_joint(data, "gaussian")
    size = len(fit.laplace.root)
    laplace = LaplaceApproximation(error * np.eye(size), np.zeros(size, dtype=bool))
    errors = replace(fit, laplace=laplace).standard_errors
    assert fit.dispersion is not None
    assert errors.dispersion is not None
    assert_allclose(errors.dispersion, error * fit.dispersion)
    assert_allclose(errors.biases, error)


def test_a_family_for_each_response(rng: np.random.Generator) -> None:
    first = simulate_joint("gaussian", 2_000, 2, [0.6, 0.4], 1, rng, dispersion=0.4)
    label = fit_em(first.X, first.y[:, 0], 2, family="gaussian", random_seed=1).responsibilities
    component = label.argmax(axis=1)
    counts = rng.poisson(np.exp(np.where(component == 0, 1.0, -0.5) * first.X[:, 0]))
    y = pd.DataFrame({"money": first.y[:, 0], "visits": counts})
    fit = fit_em(first.X, y, 2, family=["gaussian", "poisson"], random_seed=1)
    assert fit.family == "gaussian, poisson"
    assert fit.link == "identity, log"
    assert fit.response_names == fit.outcome_names == ("money", "visits")
    slope = fit.coefficients[1, 0]
    error = fit.standard_errors.coefficients[1, 0]
    assert np.abs((slope - [1.0, -0.5]) / error).max() < LIMIT
    assert fit.dispersion is not None
    assert fit.standard_errors.dispersion is not None
    assert np.isnan(fit.dispersion[1]).all()
    assert np.isfinite(fit.standard_errors.dispersion[0]).all()
    assert repr(fit).count("dispersion") == 1
    swapped = fit_em(first.X, y[["visits", "money"]], 2, family=["poisson", "gaussian"], init=fit)
    assert swapped.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-6)
    assert_allclose(swapped.coefficients, fit.coefficients[::-1], atol=1e-4)
    assert_allclose(
        swapped.predict_membership(first.X, y), fit.predict_membership(first.X, y), atol=1e-4
    )


def test_log_likelihood_never_falls_and_is_that_of_the_result(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 500, 3, [0.5, 0.3, 0.2], 2, rng)
    for init in ("tensor", "random"):
        fit = fit_joint(data, "poisson", 3, init=init)
        assert np.diff(fit.history).min() > -1e-8 * abs(fit.log_likelihood)
        assert fit.history[-1] == pytest.approx(fit.log_likelihood, abs=1e-8)
        assert fit.score(data.X, data.y) * 500 == pytest.approx(fit.log_likelihood, rel=1e-10)
        shares = fit.predict_membership(data.X, data.y)
        assert_allclose(shares, fit.responsibilities, atol=1e-12)


def test_a_rare_component_is_found(rng: np.random.Generator) -> None:
    """The search ends no lower than a climb from the truth."""
    data = simulate_joint("gaussian", 1_000, 5, [0.8, 0.15, 0.05], 3, rng, dispersion=0.3)
    fit = fit_joint(data, "gaussian", 3)
    truth = data.truth
    start = (truth.coefficients, truth.biases, truth.weights, truth.dispersion)
    reference = fit_joint(data, "gaussian", 3, init=start)
    assert fit.log_likelihood > reference.log_likelihood - 0.1


def test_moments_are_one_of_the_starts(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 12_000, 3, [0.6, 0.4], 2, rng, is_tied=True)
    fit = fit_joint(data, "poisson")
    assert any(start.origin.startswith("tensor") for start in fit.starts)
    assert_recovered(fit, data.truth)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        bare = fit_joint(data, "poisson", max_iter=0)
    # The start is fitted to 2,000 of the rows: its loss is six times that of the maximum of all
    # rows, half a chi-square of 17 degrees of freedom, which is below 45 with probability .9998.
    assert bare.log_likelihood > fit.log_likelihood - 6.0 * 45.0 / 2.0


def test_weights_offsets_and_trials(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 400, 2, [0.6, 0.4], 2, rng)
    weight = rng.integers(0, 3, 400).astype(float)
    fit = fit_joint(data, "poisson", sample_weight=weight)
    repeated = np.repeat(np.arange(400), weight.astype(int))
    double = fit_joint(data._replace(X=data.X[repeated], y=data.y[repeated]), "poisson")
    assert fit.log_likelihood == pytest.approx(double.log_likelihood, rel=1e-7)
    assert fit.responsibilities.shape == (400, 2)
    offset = rng.standard_normal((400, 2))
    moved = fit_joint(data, "poisson", offset=offset)
    by_hand = moved.predict(data.X, offset=offset, kind="components")
    eta = np.einsum("nd,kdj->njk", data.X, moved.coefficients) + moved.biases.T + offset[:, None]
    assert_allclose(by_hand, np.exp(eta))
    counts = rng.binomial(5, 0.4, (400, 2))
    fit = fit_joint(data._replace(y=counts), "binomial", 1, n_trials=5)
    assert_allclose(fit.predict(data.X, n_trials=5).mean(axis=0), counts.mean(axis=0), rtol=1e-6)


def test_zero_weights_of_classes(rng: np.random.Generator) -> None:
    """Rows of weight zero have responsibilities, and change nothing else."""
    data = simulate_joint("categorical", 900, 2, [0.6, 0.4], 2, rng, scale=4.0)
    weight = np.ones(900)
    weight[::3] = 0.0
    fit = fit_joint(data, "categorical", sample_weight=weight)
    kept = weight > 0.0
    alone = fit_joint(data._replace(X=data.X[kept], y=data.y[kept]), "categorical")
    assert fit.log_likelihood == pytest.approx(alone.log_likelihood, abs=1e-6)
    assert_allclose(fit.responsibilities[kept], alone.responsibilities, atol=1e-4)
    assert_allclose(fit.responsibilities.sum(axis=1), 1.0)


def test_an_offset_of_one_of_two_families(rng: np.random.Generator) -> None:
    """That of a Gaussian response is subtracted from it; that of counts stays in the predictor."""
    X = rng.standard_normal((800, 2))
    label = rng.random(800) < 0.6
    offset = rng.standard_normal((800, 2))
    eta = np.where(label, 1.0, -0.7) * X[:, 0]
    real = 50.0 + 3.0 * eta + offset[:, 0] + rng.standard_normal(800)
    counts = rng.poisson(np.exp(eta + offset[:, 1]))
    y, families = np.column_stack([real, counts]), ["gaussian", "poisson"]
    fit = fit_em(X, y, 2, family=families, offset=offset, random_seed=1)
    y[:, 0] -= offset[:, 0]
    known = np.column_stack([np.zeros(800), offset[:, 1]])
    same = fit_em(X, y, 2, family=families, offset=known, random_seed=1)
    assert fit.log_likelihood == pytest.approx(same.log_likelihood, abs=1e-6)
    assert_allclose(fit.coefficients, same.coefficients, atol=1e-6)
    slopes = np.sort(fit.coefficients[:, 0], axis=1)
    assert_allclose(slopes, [[-2.1, 3.0], [-0.7, 1.0]], atol=0.5)
    score = fit.score(X, np.column_stack([real, counts]), offset=offset)
    assert score * 800 == pytest.approx(fit.log_likelihood, rel=1e-9)


def test_units_do_not_matter(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 400, 2, [0.6, 0.4], 2, rng, dispersion=0.4)
    fit = fit_joint(data, "gaussian")
    units = np.array([1e-6, 1e4])  # of the responses
    X = data.X * [1e8, 1.0] + [0, 1e3]
    scaled = fit_joint(data._replace(X=X, y=data.y * units), "gaussian")
    assert_allclose(scaled.predict(X) / units, fit.predict(data.X), atol=1e-5)
    jacobian = 400 * np.log(units).sum()
    assert scaled.log_likelihood == pytest.approx(fit.log_likelihood - jacobian, abs=1e-5)
    errors, own = scaled.standard_errors.coefficients, fit.standard_errors.coefficients
    assert_allclose(errors * [[1e8], [1.0]] / units[:, None, None], own, rtol=1e-3)


def test_same_seed_same_bits(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 400, 2, [0.6, 0.4], 2, rng)
    first, second = fit_joint(data, "poisson"), fit_joint(data, "poisson")
    assert first.log_likelihood == second.log_likelihood
    assert_array_equal(first.coefficients, second.coefficients)
    for copied in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert_array_equal(copied.predict(data.X), first.predict(data.X))


def test_starts_of_the_users(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 400, 2, [0.6, 0.4], 2, rng, dispersion=0.4)
    fit = fit_joint(data, "gaussian")
    arrays = (fit.coefficients, fit.biases, fit.weights)
    for init in (fit, fit.responsibilities, arrays, (*arrays, fit.dispersion)):
        again = fit_joint(data, "gaussian", init=init)
        assert again.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-4)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        held = fit_joint(data, "gaussian", init=fit, max_iter=0)
    assert held.n_iter == 0
    assert held.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-8)
    renamed = pd.DataFrame(data.y, columns=["a", "b"])
    with pytest.raises(ValueError, match="same responses or classes, a, b; got one of y0, y1"):
        fit_em(data.X, renamed, 2, family="gaussian", init=fit)


@pytest.mark.parametrize("random_start", ["assignment", "coefficients"])
@pytest.mark.parametrize("family", ["poisson", "categorical"])
def test_random_starts(family: str, random_start: Any, rng: np.random.Generator) -> None:
    label = rng.choice(2, size=1_500, p=[0.6, 0.4])
    data = simulate_labelled(family, label, rng, scale=4.0 if family == "categorical" else 1.0)
    options: dict[str, Any] = {"init": "random", "n_starts": 6, "random_start": random_start}
    fit = fit_joint(data, family, **options)
    assert len(fit.starts) == 6
    assert fit.log_likelihood < fit_joint(data, family).log_likelihood + 0.01
    assert fit.log_likelihood > fit_joint(data, family, 1).log_likelihood + 20.0


def test_names_and_tables(rng: np.random.Generator) -> None:
    data = simulate_joint("categorical", 500, 2, [0.6, 0.4], 2, rng, scale=3.0)
    frame = pd.DataFrame(data.X, columns=["age", "income"])
    fit = fit_em(frame, pd.Series(data.y), 2, family="categorical", random_seed=1)
    assert fit.outcome_names == ("bus", "car", "train")
    assert fit.response_names == ("car", "train")
    text = repr(fit)
    assert "3 classes" in text
    assert "car:" in text
    assert "bus:" not in text
    html = fit._repr_html_()
    n_below = 3 + len(fit.warnings)  # criteria, starts and what is unseen
    assert html.count("<tr>") == len(text.splitlines()) - 1 - n_below
    assert '<th style="text-align: left">  income</th>' in html
    assert_allclose(fit.predict(frame).sum(axis=1), 1.0)
    assert fit.starts_table.shape[0] == len(fit.starts)
    tree = fit.to_datatree(frame, data.y, draws=10, random_seed=1)
    dims = ("chain", "draw", "response", "feature", "component")
    assert tree["posterior"]["coefficient"].dims == dims
    assert tree["posterior"]["bias"].dims == ("chain", "draw", "response", "component")
    assert tree["posterior"]["weight"].dims == ("chain", "draw", "component")
    assert tree["posterior"].coords["response"].to_numpy().tolist() == ["car", "train"]
    assert tree["moment_init"].attrs["reference_class"] == "bus"
    assert tree["log_likelihood"]["y"].shape == (1, 10, 500)
    assert tree["observed_data"]["y"].dims == ("obs",)
    assert_array_equal(fit.outcome_names, np.unique(data.y))
    codes = tree["observed_data"]["y"].to_numpy()
    assert_array_equal(np.array(fit.outcome_names)[codes], data.y)
    with pytest.raises(ValueError, match="labels among"):
        fit.predict_membership(frame, np.full(500, "boat "))
    with pytest.raises(ValueError, match="`kind`"):
        fit.predict(frame, kind="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="together"):
        fit.to_datatree(frame)
    with pytest.raises(ValueError, match="`draws`"):
        fit.to_datatree(draws=0)


def test_draws_have_the_standard_errors(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 500, 2, [0.6, 0.4], 2, rng, dispersion=0.5)
    fit = fit_joint(data, "gaussian")
    draws = 4_000
    tree = fit.to_datatree(data.X, data.y, draws=draws, random_seed=2)
    posterior = tree["posterior"]
    # the standard deviation of n draws has a relative error of 1 / sqrt(2 n)
    tolerance = LIMIT / np.sqrt(2 * draws)
    errors = fit.standard_errors
    for name, expected in (("coefficient", errors.coefficients), ("bias", errors.biases)):
        spread = posterior[name].std(("chain", "draw")).to_numpy()
        assert_allclose(spread, expected, rtol=tolerance)
    assert tree["observed_data"]["y"].dims == ("obs", "response")
    assert_array_equal(tree["observed_data"]["y"], data.y)
    total = tree["log_likelihood"]["y"].sum("obs")
    assert_allclose(total, tree["sample_stats"]["lp"], rtol=1e-10)
    assert float(total.max()) <= fit.log_likelihood


@pytest.mark.filterwarnings("ignore:A parameter|Component:UserWarning")
def test_a_bound_names_its_response(rng: np.random.Generator) -> None:
    """One response is separated by a feature; the other tells the components apart."""
    data = simulate_joint("gaussian", 300, 2, [0.6, 0.4], 1, rng, dispersion=0.1)
    other = (data.X[:, 0] > 0).astype(float)
    y = pd.DataFrame({"real": data.y[:, 0], "split": other})
    fit = fit_em(data.X, y, 2, family=["gaussian", "bernoulli"], random_seed=1)
    assert fit.status is Status.NOT_IDENTIFIED
    assert "length of component 0, split" in fit.bounds
    assert any(
        warning.startswith("Component 0, response 'split', has separated rows")
        for warning in fit.warnings
    )
    assert not any("real" in bound for bound in fit.bounds)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"gate": "gaussian"}, ValueError, "`gate`"),
    ({"gating": np.ones((60, 2))}, ValueError, "`gating`"),
    ({"shared": "dispersion"}, ValueError, "`shared`"),
    ({"fixed_weights": [0.5, 0.4]}, ValueError, "`fixed_weights`"),
    ({"fixed_directions": np.eye(2)}, ValueError, "`fixed_directions`"),
    ({"init": "best"}, ValueError, "`init`"),
    ({"init": np.ones((3, 2))}, ValueError, "`init`"),
    ({"init": (np.ones((2, 2)), np.ones(2), np.ones(2))}, ValueError, "coefficients of shape"),
    ({"family": ["poisson"]}, ValueError, "one for each of the 2"),
    ({"family": ["poisson", "poisson"], "link": "log"}, ValueError, "`link`"),
    ({"family": ["poisson", "categorical"]}, ValueError, "beside other families"),
    ({"family": "gamma"}, ValueError, "response 'y0'"),
    ({"family": "categorical"}, ValueError, "one label per row"),
    ({"n_trials": 3}, ValueError, "n_trials"),
    ({"offset": np.ones(7)}, ValueError, "`offset`"),
    ({"min_dispersion_ratio": 0.0}, ValueError, "`min_dispersion_ratio`"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_refusals_name_the_argument(
    options: dict[str, Any], error: type[Exception], message: str, rng: np.random.Generator
) -> None:
    X, y = rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2))
    with pytest.raises(error, match=message):
        fit_em(X, y, 2, **({"family": "poisson"} | options))


def test_wrong_responses(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((60, 2)), rng.poisson(1.0, (60, 2)).astype(float)
    broken = y.copy()
    broken[3, 1] = np.nan
    constant = y.copy()
    constant[:, 0] = 2.0
    wrong: list[tuple[Any, str]] = [
        (broken, "response 'y1'.*finite"),
        (constant, "response 'y0'.*vary"),
        (y[:50], "must have shape"),
        (y[:, :0], "at least one column"),
        (pd.DataFrame(y, columns=["a", "a"]), "distinct column names"),
    ]
    for values, message in wrong:
        with pytest.raises(ValueError, match=message):
            fit_em(X, values, 2, family="poisson")
    labels: list[tuple[Any, str]] = [
        (np.full(60, "a"), "at least two classes"),
        (np.where(y[:, 0] > 0, 1.0, np.nan), "missing or infinite"),
        (np.array(["a", None] * 30, dtype=object), "missing labels"),
    ]
    for values, message in labels:
        with pytest.raises(ValueError, match=message):
            fit_em(X, values, 2, family="categorical")
    with pytest.raises(TypeError, match="one type"):
        fit_em(X, np.array(["a", 1] * 30, dtype=object), 2, family="categorical")
    with pytest.raises(ValueError, match="as many rows"):
        fit_em(X[:8], y[:8], 3, family="poisson")
