"""Fits with priors: the maximum of a posterior density that is written by hand, and its output."""

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.optimize import approx_fprime, minimize
from scipy.special import gammaln, log_softmax, logsumexp

from moment_init import EMFit, fit_em, select_components
from moment_init.checks import FloatArray

N, D, R = 300, 2, 2
COEFFICIENT, BIAS, DISPERSION = 0.8, (0.3, 1.1), (-0.5, 0.4)
PRIORS = {"coefficient": COEFFICIENT, "bias": BIAS}


def _columns(rng: np.random.Generator) -> FloatArray:
    """Two columns in units of their own, with correlation .8."""
    root = np.linalg.cholesky([[1.0, 0.8], [0.8, 1.0]])
    return np.asarray((rng.normal(size=(N, D)) @ root.T) * [3.0, 0.2] + [5.0, -1.0])


Density = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]

# log density given y, predictor and log dispersion, and the level to which biases are relative
FAMILIES: dict[str, tuple[Density, Callable[[FloatArray], float]]] = {
    "gaussian": (lambda y, eta, s: stats.norm.logpdf(y, eta, np.exp(s)), lambda y: 0.0),
    "poisson": (
        lambda y, eta, s: y * eta - np.exp(eta) - gammaln(y + 1),
        lambda y: float(np.log(y.mean())),
    ),
    "bernoulli": (lambda y, eta, s: -np.logaddexp(0.0, (1 - 2 * y) * eta), lambda y: 0.0),
}


def _responses(X: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    label = rng.random(N) < 0.35
    eta = np.where(label, 1.2 * z[:, 0] - 0.5, -0.9 * z[:, 1] + 0.8)
    return {
        "gaussian": 40.0 * (eta + 0.4 * rng.normal(size=N)) + 7.0,
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "bernoulli": (rng.random(N) < 1 / (1 + np.exp(-3 * eta))).astype(float),
    }


def _log_posterior(
    X: FloatArray, responses: dict[str, FloatArray], gating: FloatArray | None
) -> Callable[[FloatArray], float]:
    """Log posterior of a vector of coefficients of scaled columns, biases, log deviations, logits.

    The gaussian response is scaled, and its density is mapped to the user's units at the end.
    """
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    scaled = {
        name: (y - y.mean()) / y.std() if name == "gaussian" else y for name, y in responses.items()
    }
    jacobian = N * np.log(responses["gaussian"].std()) if "gaussian" in responses else 0.0

    def value(vector: FloatArray) -> float:
        parts = list(np.split(vector[: -2 if gating is not None else -1], len(scaled)))
        mixing, total = vector[len(parts) * parts[0].size :], 0.0
        joint = np.zeros((N, R))
        for (name, y), part in zip(scaled.items(), parts, strict=True):
            beta, bias, log_deviation = np.split(part.reshape(D + 2, R), [D, D + 1])
            density, level = FAMILIES[name]
            joint = joint + density(y[:, None], z @ beta + bias, log_deviation)
            total += stats.norm.logpdf(beta, 0.0, COEFFICIENT).sum()
            total += stats.norm.logpdf(bias, level(y) + BIAS[0], BIAS[1]).sum()
            if name == "gaussian":
                total += stats.norm.logpdf(log_deviation, *DISPERSION).sum()
            else:  # not a parameter: held at zero
                total -= 0.5 * float(np.sum(log_deviation**2))
        if gating is None:
            log_weight = log_softmax(np.append(mixing, 0.0))
            # Dirichlet(3, 3), times the Jacobian of the logit
            total += gammaln(6) - 2 * gammaln(3) + 3 * log_weight.sum()
        else:
            g = (gating - gating.mean()) / gating.std()
            logits = np.column_stack([mixing[0] + mixing[1] * g, np.zeros(N)])
            log_weight = log_softmax(logits, axis=1)
            # with sum zero, logits l and 0 are l / 2 and -l / 2, and their difference Normal(0, 2)
            total += stats.norm.logpdf(mixing, 0.0, 1.5 * np.sqrt(2)).sum()
        return float(logsumexp(joint + log_weight, axis=1).sum() + total - jacobian)

    return value


def _vector(fit: EMFit, X: FloatArray, responses: dict[str, FloatArray]) -> FloatArray:
    """Parameters of a fit in the order of `_log_posterior`."""
    parts = []
    parameters = fit.centred_parameters
    for a, (name, y) in enumerate(responses.items()):
        slopes, levels = parameters.slopes[a], parameters.levels[a]
        unit, shift = (y.std(), y.mean()) if name == "gaussian" else (1.0, 0.0)
        at_mean = (levels + X.mean(axis=0) @ slopes - shift) / unit
        spread = np.zeros(R)
        if name == "gaussian" and parameters.spreads is not None:
            spread = np.log(parameters.spreads[a] / unit)
        parts += [(slopes * X.std(axis=0)[:, None] / unit).ravel(), at_mean, spread]
    return np.concatenate([*parts, [np.log(fit.weights[0] / fit.weights[1])]])


CASES: dict[str, tuple[str, ...]] = {
    "gaussian": ("gaussian",),
    "poisson": ("poisson",),
    "bernoulli": ("bernoulli",),
    "gate": ("gaussian",),
    "several": ("poisson", "gaussian"),
}


@pytest.mark.filterwarnings("ignore:Components 0 and 1 coincide")
@pytest.mark.parametrize("case", CASES)
def test_fit_is_the_maximum_of_a_posterior_written_by_hand(
    case: str, rng: np.random.Generator
) -> None:
    """Value, gradient, and an independent optimiser that starts there, for correlated columns."""
    X = _columns(rng)
    responses = {name: _responses(X, rng)[name] for name in CASES[case]}
    gating = rng.normal(2.0, 3.0, size=N) if case == "gate" else None
    names = list(responses)
    priors: dict[str, Any] = dict(PRIORS)
    priors |= {"gate": 1.5} if case == "gate" else {"weight": 3.0}
    priors |= {"dispersion": DISPERSION} if "gaussian" in names else {}
    y = np.column_stack(list(responses.values())) if len(names) > 1 else responses[names[0]]
    fit = fit_em(
        X,
        y,
        R,
        family=names if len(names) > 1 else names[0],
        gating=gating,
        priors=priors,
        random_seed=1,
        tolerance=1e-9,
    )
    value = _log_posterior(X, responses, gating)
    at = _vector(fit, X, responses)
    if gating is not None and fit.gate is not None:
        at = np.append(at, fit.gate[0, 0] * gating.std())
    assert fit.log_posterior == pytest.approx(value(at), abs=1e-6)
    assert np.abs(approx_fprime(at, value, 1e-6)).max() < 0.02
    end = minimize(lambda vector: -value(vector), at, method="BFGS", options={"gtol": 1e-5})
    assert -end.fun <= value(at) + 1e-4
    assert_allclose(end.x, at, atol=0.01)
    assert fit.history[-1] == pytest.approx(fit.log_posterior, rel=1e-14)
    assert np.all(np.diff(fit.history) >= -1e-8)
    score = fit.score(X, y, gating=gating)
    assert fit.log_likelihood == pytest.approx(N * score, rel=1e-10)
    assert fit.aic == -2 * fit.log_likelihood + 2 * fit.n_parameters


def _separated(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    X = rng.normal(size=(400, 3))
    slopes = rng.normal(size=(3, 3))
    label = rng.choice(3, p=[0.6, 0.25, 0.15], size=400)
    return X, (np.sum(X * slopes.T[label], axis=1) > 0).astype(float)


@pytest.mark.filterwarnings("ignore:Component")
def test_separated_rows_have_an_interior_maximum(rng: np.random.Generator) -> None:
    """Without priors the fit is on a bound and recommends them; with priors seeds agree."""
    X, y = _separated(rng)
    with pytest.warns(UserWarning, match="try priors='default'"):
        plain = fit_em(X, y, 3, random_seed=1)
    assert plain.bounds
    assert plain.log_posterior is None
    assert plain.priors is None
    first, second = (fit_em(X, y, 3, priors="default", random_seed=seed) for seed in (1, 2))
    for fit in (first, second):
        assert not fit.bounds
        assert np.all(np.isfinite(fit.standard_errors.coefficients))
        assert fit.standard_errors.coefficients.max() < 10.0
    assert first.log_posterior == pytest.approx(second.log_posterior, abs=1e-3)


def test_errors_are_those_of_the_posterior(rng: np.random.Generator) -> None:
    """A prior that is narrow beside the data's information sets the standard errors."""
    X = _columns(rng)
    y = _responses(X, rng)["poisson"]
    fit = fit_em(X, y, 1, family="poisson", priors={"coefficient": 1e-3}, random_seed=1)
    scaled = fit.standard_errors.coefficients[:, 0] * X.std(axis=0)
    assert_allclose(scaled, 1e-3, rtol=1e-2)


@pytest.mark.filterwarnings("ignore:The search did not converge")
def test_columns_have_priors_by_name(rng: np.random.Generator) -> None:
    """At given parameters the log posterior changes by the log density of these coefficients."""
    X = _columns(rng)
    y = _responses(X, rng)
    both = np.column_stack([y["poisson"], y["gaussian"]])
    slopes = 0.3 * rng.standard_normal((2, D, R))
    start = (slopes, np.zeros((2, R)), np.full(R, 1 / R), np.ones((2, R)))
    given: dict[str, Any] = {"family": ["poisson", "gaussian"], "init": start, "max_iter": 0}
    wide = fit_em(X, both, R, priors={"coefficient": 0.7}, **given)
    by_name = {"y1": {"x1": 0.1}, "x1": 0.2, "x0": 0.7}
    narrow = fit_em(X, both, R, priors={"coefficient": by_name}, **given)
    unit = np.array([1.0, both[:, 1].std()])[:, None]
    values = slopes[:, 1] * X[:, 1].std() / unit  # of the second column, (response, component)
    assert narrow.log_posterior is not None
    assert wide.log_posterior is not None
    change = stats.norm.logpdf(values, 0.0, [[0.2], [0.1]]) - stats.norm.logpdf(values, 0.0, 0.7)
    gain = narrow.log_posterior - wide.log_posterior
    assert gain == pytest.approx(change.sum(), abs=1e-8)
    assert "coefficient Normal(0, 0.7/0.2/0.1)" in str(narrow.priors)


def test_a_narrow_prior_of_one_column_leaves_the_others(rng: np.random.Generator) -> None:
    X = _columns(rng)
    y = _responses(X, rng)["poisson"]
    priors = {"coefficient": {"x0": 1e-3}}
    fit = fit_em(X, y, 1, family="poisson", priors=priors, random_seed=1)
    scaled = fit.standard_errors.coefficients[:, 0] * X.std(axis=0)
    assert scaled[0] == pytest.approx(1e-3, rel=1e-2)
    assert scaled[1] > 1e-2


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_units_do_not_matter(family: str, rng: np.random.Generator) -> None:
    X = _columns(rng)
    y = _responses(X, rng)[family]
    units = np.array([100.0, 0.01])
    first, second = (
        fit_em(columns, y, R, family=family, priors="default", random_seed=1, tolerance=1e-9)
        for columns in (X, X * units + 3.0)
    )
    assert_allclose(second.coefficients * units[:, None], first.coefficients, rtol=1e-4)
    assert second.log_likelihood == pytest.approx(first.log_likelihood, abs=1e-6)
    assert second.log_posterior == pytest.approx(first.log_posterior, abs=1e-6)


def test_shared_parameters_have_their_prior_once(rng: np.random.Generator) -> None:
    """With all but the weights shared, the density is that of one component."""
    X = _columns(rng)
    y = _responses(X, rng)["poisson"]
    given: dict[str, Any] = {"family": "poisson", "priors": {"coefficient": 0.05}}
    single = fit_em(X, y, 1, random_seed=1, **given)
    shared = fit_em(
        X,
        y,
        2,
        shared=[0, 1, "bias"],
        fixed_weights=[0.5, 0.5],
        init=(np.zeros((2, 2)), [0.0, 0.1], [0.5, 0.5]),
        random_seed=1,
        **given,
    )
    assert shared.log_posterior == pytest.approx(single.log_posterior, abs=1e-5)
    assert shared.priors == "coefficient Normal(0, 0.05), bias Normal(0, 1.5)"
    assert_allclose(shared.coefficients[:, 0], single.coefficients[:, 0], rtol=1e-3)


def test_fixed_directions_have_a_prior_of_the_projection(rng: np.random.Generator) -> None:
    X = _columns(rng)
    y = _responses(X, rng)["poisson"]
    direction = np.array([[1.0], [2.0]])
    given: dict[str, Any] = {"family": "poisson", "priors": {"coefficient": 0.1}, "random_seed": 1}
    held = fit_em(X, y, 1, fixed_directions=direction, **given)
    single = fit_em(X @ direction, y, 1, **given)
    assert held.log_posterior == pytest.approx(single.log_posterior, abs=1e-6)


def test_projections_have_no_priors_by_name(rng: np.random.Generator) -> None:
    X = _columns(rng)
    given: dict[str, Any] = {"priors": {"coefficient": {"x0": 1.0}}, "family": "gaussian"}
    with pytest.raises(ValueError, match="one number with `fixed_directions`"):
        fit_em(X, X[:, 0], 1, fixed_directions=np.ones((2, 1)), **given)


def test_gaussian_gate_has_priors_of_experts_and_weights(rng: np.random.Generator) -> None:
    """The gradient of the log posterior is zero: a long further climb gains nothing."""
    X = _columns(rng)
    y = _responses(X, rng)["gaussian"]
    given: dict[str, Any] = {"family": "gaussian", "gating": X[:, 0], "gate": "gaussian"}
    given |= {"priors": {"coefficient": 0.2}, "random_seed": 1}
    fit = fit_em(X, y, 2, n_starts=5, **given)
    again = fit_em(X, y, 2, init=fit, tolerance=1e-10, **given)
    assert again.log_posterior == pytest.approx(fit.log_posterior, abs=1e-4)
    plain = fit_em(X, y, 2, **{**given, "priors": None, "n_starts": 5})
    assert np.linalg.norm(fit.coefficients * X.std(axis=0)[:, None]) < np.linalg.norm(
        plain.coefficients * X.std(axis=0)[:, None]
    )


def test_refinement_on_all_rows_climbs_the_posterior(rng: np.random.Generator) -> None:
    """With more rows than the search reads; a narrow prior moves the estimate visibly."""
    X = rng.normal(size=(45_000, 1))
    label = rng.random(45_000) < 0.4
    y = np.where(label, 2 * X[:, 0] + 3, -X[:, 0]) + 0.5 * rng.normal(size=45_000)
    given: dict[str, Any] = {"family": "gaussian", "priors": {"bias": 0.005}, "n_starts": 3}
    fit = fit_em(X, y, 2, random_seed=1, **given)
    again = fit_em(X, y, 2, init=fit, tolerance=1e-10, **given)
    assert fit.starts_table["is_sampled"].any()
    assert again.log_posterior == pytest.approx(fit.log_posterior, abs=1e-3)
    assert_allclose(again.biases, fit.biases, atol=1e-4)


def test_dask_rows_have_the_same_maximum(rng: np.random.Generator) -> None:
    """Also the level to which biases are relative, with an offset."""
    X = rng.normal(size=(45_000, 1))
    offset = rng.uniform(0.0, 1.0, size=45_000)
    rate = np.exp(np.where(rng.random(45_000) < 0.4, 1 + X[:, 0], -X[:, 0]) + offset)
    y = rng.poisson(rate).astype(float)
    start = (np.array([[0.8, -0.8]]), [1.0, 0.0], [0.5, 0.5])
    given: dict[str, Any] = {"family": "poisson", "priors": {"bias": 0.01}, "init": start}
    expected = fit_em(X, y, 2, offset=offset, **given)
    lazy = (da.from_array(each, chunks=9_000) for each in (X, y, offset))
    fit = fit_em(next(lazy), next(lazy), 2, offset=next(lazy), **given)
    assert fit.log_posterior == pytest.approx(expected.log_posterior, abs=1e-4)
    assert_allclose(fit.biases, expected.biases, atol=1e-4)


def test_a_constant_offset_moves_the_bias_and_its_prior(rng: np.random.Generator) -> None:
    """The bias moves by the offset, and so does the centre of its prior."""
    X = _columns(rng)
    y = _responses(X, rng)["poisson"]
    given: dict[str, Any] = {"family": "poisson", "priors": {"bias": 0.1}, "random_seed": 1}
    plain = fit_em(X, y, 1, **given)
    moved = fit_em(X, y, 1, offset=np.full(N, 50.0), **given)
    assert moved.biases[0] == pytest.approx(plain.biases[0] - 50.0, abs=1e-4)
    assert moved.log_posterior == pytest.approx(plain.log_posterior, abs=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_huge_offsets_do_not_overflow(rng: np.random.Generator) -> None:
    """No warning of NumPy, which would be an error, and a centre that is finite."""
    X = _columns(rng)
    y = _responses(X, rng)["poisson"]
    offset = np.linspace(-1e4, 1e4, N)
    fit = fit_em(X, y, 1, family="poisson", offset=offset, priors="default", random_seed=1)
    assert fit.log_posterior is not None
    assert np.isfinite(fit.log_posterior)


# --- what is shown, and what may be passed --------------------------------------------------------


def test_priors_are_shown(rng: np.random.Generator) -> None:
    X = _columns(rng)
    y = _responses(X, rng)["gaussian"]
    fit = fit_em(X, y, R, family="gaussian", priors="default", random_seed=1)
    text = repr(fit)
    assert f"log-posterior {fit.log_posterior:.2f}; priors: {fit.priors}" in text
    assert "best log-posterior reached by" in text
    assert fit.priors == (
        "coefficient Normal(0, 1.06), bias Normal(0, 1.5), dispersion LogNormal(-0.693, 1), "
        "weight Dirichlet(1)"
    )
    table = fit.starts_table
    assert fit.log_posterior is not None
    assert np.all(table["log_posterior"] <= fit.log_posterior + 0.01)
    assert np.nanmax(table["log_posterior"]) == pytest.approx(fit.log_posterior, abs=1e-3)
    group = fit.to_datatree(X, y, draws=5)
    assert group["moment_init"].attrs["priors"] == fit.priors
    assert float(group["moment_init"]["log_posterior"]) == fit.log_posterior
    assert "lp" not in group["sample_stats"]


def test_number_of_components_with_priors(rng: np.random.Generator) -> None:
    X = _columns(rng)
    y = _responses(X, rng)["gaussian"]
    choice = select_components(X, y, [1, 2], family="gaussian", priors="default", random_seed=1)
    assert choice.chosen == 2
    assert choice.fit.log_posterior is not None
    assert choice.table["bic"].min() == choice.fit.bic


WRONG: dict[str, tuple[Any, str]] = {
    "word": ("weak", "'default' or a dict of numbers; got 'weak'"),
    "name": ({"scale": 1.0}, "keys among .*; got 'scale'"),
    "column": ({"coefficient": {"age": 1.0}}, r"names of columns \('x0', 'x1'\).*; got 'age'"),
    "value": ({"coefficient": {"x0": -1.0}}, "'coefficient' must be a standard deviation, or a"),
    "zero": ({"coefficient": 0.0}, "'coefficient' must be a standard deviation.*; got 0.0"),
    "pair": ({"coefficient": (0.0, 1.0)}, "'coefficient' must be a standard deviation"),
    "bias": ({"bias": (0.0, 1.0, 2.0)}, "'bias' must be a standard deviation or a pair"),
    "infinite": ({"bias": np.inf}, "'bias' must be"),
    "text": ({"weight": "2"}, "'weight' must be the concentration"),
    "bool": ({"weight": True}, "'weight' must be the concentration"),
    "dispersion": ({"dispersion": (0.0, 1.0)}, "must not have 'dispersion' .*no dispersion"),
    "gate": ({"gate": 2.0}, "must not have 'gate' with no gate"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_priors_are_refused(case: str, rng: np.random.Generator) -> None:
    X = rng.normal(size=(50, 2))
    priors, message = WRONG[case]
    with pytest.raises(TypeError if isinstance(priors, str) else ValueError, match=message):
        fit_em(X, (X[:, 0] > 0).astype(float), 2, priors=priors)


def test_weight_is_refused_where_it_is_no_parameter(rng: np.random.Generator) -> None:
    X = rng.normal(size=(50, 2))
    given: dict[str, Any] = {"family": "gaussian", "priors": {"weight": 2.0}}
    with pytest.raises(ValueError, match="must not have 'weight' with gating"):
        fit_em(X, X[:, 0], 2, gating=X, **given)
    with pytest.raises(ValueError, match="must not have 'weight' with `fixed_weights`"):
        fit_em(X, X[:, 0], 2, fixed_weights=[0.5, 0.5], **given)
