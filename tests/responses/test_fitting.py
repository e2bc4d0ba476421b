"""`fit_em` with several responses, and with classes."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moment_init import ConvergenceWarning, fit_em
from moment_init.responses.result import JointFit
from tests.joint_mixtures import JointData, matched, simulate_joint


def fit_joint(data: JointData, family: Any, number: int = 2, **more: Any) -> JointFit:
    """A fit, for the type checker known to be one of several responses."""
    fit: Any = fit_em(data.X, data.y, number, family=family, random_seed=1, **more)
    assert isinstance(fit, JointFit)
    return fit


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
    coefficients = np.concatenate(
        [
            fit.coefficients[:, :, 0],
            fit.coefficients[:, :, 1],
            (fit.biases[:, 1] - fit.biases[:, 0])[None],
        ]
    )
    same = fit_em(
        inputs,
        data.y.ravel(),
        2,
        family=family,
        groups=np.repeat(np.arange(n_obs), 2),
        init=(coefficients, fit.biases[:, 0], fit.weights),
        tolerance=1e-10,
    )
    assert abs(same.log_likelihood - fit.log_likelihood) < 1e-6
    np.testing.assert_allclose(same.coefficients, coefficients, atol=2e-3)
    errors = same.standard_errors.coefficients[:2]
    np.testing.assert_allclose(fit.standard_errors.coefficients[:, :, 0], errors, rtol=1e-2)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_one_column_is_one_response(family: str, rng: np.random.Generator) -> None:
    dispersion = 0.4 if family == "gaussian" else None
    data = simulate_joint(family, 600, 2, [0.7, 0.3], 1, rng, dispersion=dispersion)
    fit = fit_joint(data, family)
    single = fit_em(data.X, data.y[:, 0], 2, family=family, random_seed=1)
    assert abs(fit.log_likelihood - single.log_likelihood) < 1e-6
    np.testing.assert_allclose(fit.coefficients[:, :, 0], single.coefficients, atol=1e-4)
    np.testing.assert_allclose(
        fit.standard_errors.coefficients[:, :, 0], single.standard_errors.coefficients, rtol=1e-3
    )
    np.testing.assert_allclose(fit.predict(data.X)[:, 0], single.predict(data.X), atol=1e-3)
    assert fit.n_parameters == single.n_parameters


def test_two_classes_are_bernoulli(rng: np.random.Generator) -> None:
    data = simulate_joint("bernoulli", 4_000, 3, [0.65, 0.35], 1, rng, scale=4.0)
    labels = np.where(data.y[:, 0] > 0, "yes", "no")
    single = fit_em(data.X, data.y[:, 0], 2, family="bernoulli", random_seed=1)
    start = (single.coefficients[:, :, None], single.biases[:, None], single.weights)
    fit = fit_joint(data._replace(y=labels), "categorical", init=start)
    assert fit.outcome_names == ("no", "yes")
    assert fit.response_names == ("yes",)
    assert abs(fit.log_likelihood - single.log_likelihood) < 1e-5
    np.testing.assert_allclose(fit.coefficients[:, :, 0], single.coefficients, atol=0.05)
    np.testing.assert_allclose(fit.predict(data.X)[:, 1], single.predict(data.X), atol=1e-3)


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
    """About 20 errors, each beyond 4.5 standard errors in one case of 10^5; more for skewness."""
    data = simulate_joint(family, n_obs, 3, [0.65, 0.35], 2, rng, **options)
    fit = fit_joint(data, family)
    assert fit.converged
    order = matched(fit, data.truth)
    errors = fit.standard_errors
    pairs = [
        (fit.coefficients[:, order], data.truth.coefficients, errors.coefficients[:, order]),
        (fit.biases[order], data.truth.biases, errors.biases[order]),
        (fit.weights[order], data.truth.weights, errors.weights[order]),
    ]
    if data.truth.dispersion is not None:
        assert fit.dispersion is not None
        assert errors.dispersion is not None
        pairs.append((fit.dispersion[order], data.truth.dispersion, errors.dispersion[order]))
    for found, true, error in pairs:
        assert np.abs((found - true) / error).max() < 5.0
    # Not by errors that are large: a zero estimate is far from the truth in the same units.
    assert np.abs(data.truth.coefficients / errors.coefficients[:, order]).max() > 8.0


@pytest.mark.parametrize("error", [1e-20, 0.1, 1e4])
def test_errors_of_dispersions_are_relative(error: float, rng: np.random.Generator) -> None:
    """The vector has logarithms, of which one that is hardly known has an error of thousands."""
    data = simulate_joint("gaussian", 60, 2, [0.65, 0.35], 2, rng, dispersion=0.4)
    fit = fit_joint(data, "gaussian")
    given = replace(fit, covariance=error**2 * np.eye(fit.layout.size))
    errors = given.standard_errors
    assert fit.dispersion is not None
    assert errors.dispersion is not None
    np.testing.assert_allclose(errors.dispersion, error * fit.dispersion)
    np.testing.assert_allclose(errors.biases, error)


def test_a_family_for_each_response(rng: np.random.Generator) -> None:
    first = simulate_joint("gaussian", 2_000, 2, [0.6, 0.4], 1, rng, dispersion=0.4)
    label = fit_em(first.X, first.y[:, 0], 2, family="gaussian", random_seed=1).responsibilities
    component = label.argmax(axis=1)
    counts = rng.poisson(np.exp(np.where(component == 0, 1.0, -0.5) * first.X[:, 0]))
    y = pd.DataFrame({"money": first.y[:, 0], "visits": counts})
    families: Any = ["gaussian", "poisson"]
    fit: Any = fit_em(first.X, y, 2, family=families, random_seed=1)
    assert fit.family == "gaussian, poisson"
    assert fit.response_names == ("money", "visits")
    slope = fit.coefficients[0, :, 1]
    error = fit.standard_errors.coefficients[0, :, 1]
    assert np.abs((slope - [1.0, -0.5]) / error).max() < 5.0
    assert np.isnan(fit.dispersion[:, 1]).all()
    assert np.isfinite(fit.standard_errors.dispersion[:, 0]).all()


def test_log_likelihood_never_falls_and_is_that_of_the_result(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 500, 3, [0.5, 0.3, 0.2], 2, rng)
    for init in ("tensor", "random"):
        fit = fit_joint(data, "poisson", 3, init=init)
        assert np.diff(fit.history).min() > -1e-8 * abs(fit.log_likelihood)
        assert fit.history[-1] == pytest.approx(fit.log_likelihood, abs=1e-8)
        assert fit.score(data.X, data.y) * 500 == pytest.approx(fit.log_likelihood, rel=1e-10)
        shares = fit.predict_membership(data.X, data.y)
        np.testing.assert_allclose(shares, fit.responsibilities, atol=1e-12)


def test_a_rare_component_is_found(rng: np.random.Generator) -> None:
    """The search ends no lower than a climb from the truth."""
    data = simulate_joint("gaussian", 1_000, 5, [0.8, 0.15, 0.05], 3, rng, dispersion=0.3)
    fit = fit_joint(data, "gaussian", 3)
    truth = data.truth
    start = (truth.coefficients, truth.biases, truth.weights, truth.dispersion)
    reference = fit_joint(data, "gaussian", 3, init=start)
    assert fit.log_likelihood > reference.log_likelihood - 0.1


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
    eta = np.einsum("nd,djk->njk", data.X, moved.coefficients) + moved.biases + offset[:, None]
    np.testing.assert_allclose(by_hand, np.exp(eta))
    counts = rng.binomial(5, 0.4, (400, 2))
    fit = fit_joint(data._replace(y=counts), "binomial", 1, n_trials=5)
    np.testing.assert_allclose(
        fit.predict(data.X, n_trials=5).mean(axis=0), counts.mean(axis=0), rtol=1e-6
    )


def test_units_do_not_matter(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 400, 2, [0.6, 0.4], 2, rng, dispersion=0.4)
    fit = fit_joint(data, "gaussian")
    scaled = fit_joint(data._replace(X=data.X * [1e8, 1.0] + [0, 1e3], y=data.y * 1e-6), "gaussian")
    np.testing.assert_allclose(
        scaled.predict(data.X * [1e8, 1.0] + [0, 1e3]) * 1e6, fit.predict(data.X), atol=1e-5
    )


def test_same_seed_same_bits(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 400, 2, [0.6, 0.4], 2, rng)
    first, second = fit_joint(data, "poisson"), fit_joint(data, "poisson")
    assert first.log_likelihood == second.log_likelihood
    np.testing.assert_array_equal(first.coefficients, second.coefficients)
    for copied in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        np.testing.assert_array_equal(copied.predict(data.X), first.predict(data.X))


def test_starts_of_the_users(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 400, 2, [0.6, 0.4], 2, rng)
    fit = fit_joint(data, "poisson")
    for init in (fit, fit.responsibilities, (fit.coefficients, fit.biases, fit.weights)):
        again = fit_joint(data, "poisson", init=init)
        assert again.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-4)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        held = fit_joint(data, "poisson", init=fit, max_iter=0)
    assert held.n_iter == 0


def test_names_and_tables(rng: np.random.Generator) -> None:
    data = simulate_joint("categorical", 500, 2, [0.6, 0.4], 2, rng, scale=3.0)
    frame = pd.DataFrame(data.X, columns=["age", "income"])
    fit: Any = fit_em(frame, pd.Series(data.y), 2, family="categorical", random_seed=1)
    assert fit.outcome_names == ("bus", "car", "train")
    text = repr(fit)
    assert "3 classes" in text
    assert "car:" in text
    assert "bus:" not in text
    html = fit._repr_html_()
    assert html.count("<tr>") == len(text.splitlines()) - 3  # title, criteria, starts
    assert '<th style="text-align: left">  income</th>' in html
    np.testing.assert_allclose(fit.predict(frame).sum(axis=1), 1.0)
    assert fit.starts_table.shape[0] == len(fit.starts)
    assert fit.share_of_best is None or 0.0 <= fit.share_of_best <= 1.0
    tree = fit.to_datatree(frame, data.y, draws=10, random_seed=1)
    assert tree["posterior"]["coefficient"].dims == (
        "chain",
        "draw",
        "feature",
        "component",
        "response",
    )
    assert tree["posterior"].coords["response"].to_numpy().tolist() == ["car", "train"]
    assert tree["moment_init"].attrs["reference_class"] == "bus"
    assert tree["log_likelihood"]["y"].shape == (1, 10, 500)
    with pytest.raises(ValueError, match="labels among"):
        fit.predict_membership(frame, np.full(500, "boat "))
    with pytest.raises(ValueError, match="`kind`"):
        fit.predict(frame, kind="median")
    with pytest.raises(ValueError, match="together"):
        fit.to_datatree(frame)
    with pytest.raises(ValueError, match="`draws`"):
        fit.to_datatree(draws=0)


def test_draws_have_the_standard_errors(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 500, 2, [0.6, 0.4], 2, rng, dispersion=0.5)
    fit = fit_joint(data, "gaussian")
    draws = 4_000
    posterior = fit.to_datatree(draws=draws, random_seed=2)["posterior"]
    spread = posterior["coefficient"].std(("chain", "draw")).to_numpy()
    # A standard deviation of n draws has relative error 1 / sqrt(2 n).
    np.testing.assert_allclose(
        spread, fit.standard_errors.coefficients, rtol=5.0 / np.sqrt(2 * draws)
    )


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"groups": np.arange(60)}, ValueError, "`groups`"),
    ({"gating": np.ones(60)}, ValueError, "`gating`"),
    ({"gate": "gaussian"}, ValueError, "`gate`"),
    ({"shared": "bias"}, ValueError, "`shared`"),
    ({"fixed_weights": [0.5, 0.5]}, ValueError, "`fixed_weights`"),
    ({"fixed_directions": np.eye(2)}, ValueError, "`fixed_directions`"),
    ({"random_start": "coefficients"}, ValueError, "`random_start`"),
    ({"init": "best"}, ValueError, "`init`"),
    ({"init": np.ones((3, 2))}, ValueError, "`init`"),
    ({"init": (np.ones((2, 2)), np.ones(2), np.ones(2))}, ValueError, "coefficients must have"),
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
