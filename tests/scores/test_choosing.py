"""The density of the input: chosen, given, with rows that have no response, and what is said."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from scipy.stats import chi2

from moment_init import Status, angles_in_degrees, estimate, fit_em, simulate_mixture
from moment_init.checks import IdentifiabilityError, WeakSignalWarning
from moment_init.data.standardising import InputRows
from moment_init.likelihood.parameters import match_components
from moment_init.scores import Gaussian, GaussianMixture, StudentT
from moment_init.scores.choosing import InputChoice, choose_input_model
from moment_init.scores.stein import SteinStatus
from tests.population import FloatArray

NAMES = ("a", "b", "c")
COEFFICIENTS = np.array([[3.0, 0.0], [0.0, 3.0], [1.0, -1.0]])


def choose(X: FloatArray, seed: int) -> InputChoice:
    frame = Gaussian().fit(X)
    return choose_input_model(
        InputRows(X, np.ones(len(X))), NAMES, frame, np.random.default_rng(seed)
    )


def clusters(n_obs: int, rng: np.random.Generator) -> FloatArray:
    centres = np.array([[5.0, 0.0, 0.0], [-3.0, 4.0, 0.0], [-2.0, -3.0, 4.0]])
    noise: FloatArray = rng.standard_normal((n_obs, 3))
    return np.asarray(centres[rng.choice(3, n_obs, p=[0.5, 0.3, 0.2])] + noise)


def respond(X: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Binary responses of a mixture whose predictors have deviation three on any input."""
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    labels = rng.integers(2, size=len(X))
    eta = np.asarray(Z @ COEFFICIENTS + np.array([0.5, -0.5]))[np.arange(len(X)), labels]
    return np.where(rng.random(len(X)) < expit(eta), 1.0, 0.0)


def test_a_gaussian_input_is_left_alone(rng: np.random.Generator) -> None:
    """Nothing else is tried, and the estimate has the same bits as with a Gaussian asked for.

    Stein's identities are at a level of one in a hundred.
    """
    X = rng.standard_normal((20_000, 3)) @ np.array([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 2.0]])
    choice = choose(X, 1)
    assert [each.name for each in choice.judgements] == ["gaussian"]
    assert choice.chosen.check.status is SteinStatus.PASSED
    y = respond(X, rng)
    automatic = estimate(X, y, 2, random_seed=3)
    asked = estimate(X, y, 2, input_model="gaussian", random_seed=3)
    assert_array_equal(automatic.directions, asked.directions)
    assert automatic.input_choice is not None
    assert asked.input_choice is None


@pytest.mark.parametrize("kind", ["clusters", "heavy tails"])
def test_a_better_density_is_chosen(kind: str, rng: np.random.Generator) -> None:
    X = clusters(20_000, rng)
    if kind == "heavy tails":
        X = rng.standard_normal((20_000, 3)) / np.sqrt(rng.chisquare(5.0, (20_000, 1)) / 5.0)
    choice = choose(X, 1)
    assert [each.name for each in choice.judgements] == ["gaussian_mixture", "gaussian"]
    assert all(identity.passed for identity in choice.chosen.check.identities)
    reason = "differ in" if kind == "clusters" else "tails are heavy"
    assert choice.explanation.startswith("gaussian_mixture: moments within ")
    assert reason in choice.explanation


def test_a_mixture_of_one_is_a_gaussian(rng: np.random.Generator) -> None:
    """Slightly skewed columns, for which BIC asks for no second Gaussian."""
    X = rng.gamma(60.0, size=(20_000, 3))
    choice = choose(X, 1)
    assert choice.chosen.name == "gaussian"
    assert choice.explanation.startswith("gaussian: ")


def test_weights_say_how_often_rows_count(rng: np.random.Generator) -> None:
    """Gaussian rows of weight one among clusters of weight nearly zero are a Gaussian input."""
    X = np.concatenate([rng.standard_normal((10_000, 3)), clusters(10_000, rng)])
    weights = np.repeat([1.0, 1e-9], 10_000)
    frame = Gaussian().fit(X, sample_weight=weights)
    rng_of_choice = np.random.default_rng(1)
    choice = choose_input_model(InputRows(X, weights), NAMES, frame, rng_of_choice)
    assert choice.chosen.name == "gaussian"
    assert "hold on held-out rows" in choice.explanation


def test_few_rows_are_taken_as_gaussian(rng: np.random.Generator) -> None:
    choice = choose(np.exp(rng.standard_normal((100, 3))), 1)
    assert choice.chosen.name == "gaussian"
    assert "too few" in choice.explanation


def test_clusters_are_estimated_to_the_likelihood_of_the_truth(rng: np.random.Generator) -> None:
    """The estimate's likelihood is at least that of the truth: it is a maximum over parameters.

    Whether both directions stand out from the noise of moments depends on the draw.
    """
    X = clusters(20_000, rng)
    y = respond(X, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        result = estimate(X, y, 2, random_seed=1)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    p = expit(Z @ COEFFICIENTS + np.array([0.5, -0.5])).mean(axis=1)
    truth = float(np.log(np.where(y == 1.0, p, 1.0 - p)).sum())
    assert result.log_likelihood is not None
    assert result.log_likelihood > truth - 0.5
    assert result.status in (Status.OK, Status.WEAK_SIGNAL)
    assert "input: " in repr(result)
    assert "input_explanation" in result.to_datatree()["moment_init"].attrs


def test_a_density_without_scores_is_named(rng: np.random.Generator) -> None:
    """Uniform columns end abruptly: no score, but the likelihood needs none."""
    X = rng.uniform(-1.0, 1.0, (20_000, 3))
    y = respond(X, rng)
    frame = pd.DataFrame(X, columns=["age", "income", "height"])
    with pytest.warns(WeakSignalWarning, match="density of column (age|income|height) does not"):
        result = estimate(frame, y, 2, random_seed=1)
    assert result.status is Status.INPUT_ASSUMPTION
    truth = COEFFICIENTS / X.std(axis=0)[:, None]
    assert angles_in_degrees(result.directions, truth, signed=True).max() < np.degrees(
        np.arccos(0.9)
    )


@pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning")
def test_a_density_that_is_given_is_used(rng: np.random.Generator) -> None:
    """Fitted objects as they are, others are fitted, and the caller's object is left alone."""
    X = clusters(20_000, rng)
    y = respond(X, rng)
    model = GaussianMixture(3, random_seed=1)
    result = estimate(X, y, 2, input_model=model, random_seed=1)
    assert not model.is_fitted
    assert result.input_choice is None
    fitted = GaussianMixture(3, random_seed=1).fit(X)
    same = estimate(X, y, 2, input_model=fitted, random_seed=1)
    assert_allclose(same.directions, result.directions, atol=1e-6)
    alone = estimate(X, y, 2, input_model=fitted, polish=False, random_seed=1)
    assert alone.log_likelihood is None
    truth = COEFFICIENTS / X.std(axis=0)[:, None]
    assert angles_in_degrees(result.directions, truth, signed=True).max() < 15.0
    with pytest.raises(ValueError, match=r"as many features as `X` \(2\)"):
        estimate(X[:, :2], y, 2, input_model=fitted)


@pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning")
@pytest.mark.parametrize("method", ["power", "tensorly"])
def test_the_papers_method_takes_any_density(method: Any, rng: np.random.Generator) -> None:
    """A mixture of one Gaussian is that Gaussian, by another way; Student's t is another."""
    X = rng.standard_normal((5_000, 3)) @ np.diag([1.0, 2.0, 3.0])
    y = respond(X, rng)
    mean, covariance = X.mean(axis=0), np.cov(X.T)
    single = GaussianMixture(weights=[1.0], means=[mean], covariances=[covariance])
    first, second, third = (
        estimate(X, y, 2, input_model=model, method=method, random_seed=1)
        for model in (Gaussian(mean, covariance), single, StudentT())
    )
    assert_allclose(second.directions, first.directions, atol=1e-6)
    assert third.directions.shape == (3, 2)
    assert np.abs(third.directions - first.directions).max() > 1e-6


def test_rows_without_a_response_serve_the_density(rng: np.random.Generator) -> None:
    """Mean and covariance are those of all rows, so that moments alone change."""
    X = rng.standard_normal((3_000, 3))
    y = respond(X, rng)
    more = rng.standard_normal((50_000, 3)) * 1.1
    plain = estimate(X, y, 2, polish=False, input_model="gaussian", random_seed=1)
    helped = estimate(
        X, y, 2, polish=False, input_model="gaussian", X_unlabelled=more, random_seed=1
    )
    model = Gaussian().fit(np.concatenate([X, more]))
    given = estimate(X, y, 2, polish=False, input_model=model, random_seed=1)
    assert_allclose(helped.directions, given.directions, atol=1e-9)
    assert np.abs(helped.directions - plain.directions).max() > 1e-6
    with pytest.raises(ValueError, match=r"`X_unlabelled` must have the columns of `X` \(3\)"):
        estimate(X, y, 2, X_unlabelled=more[:, :2])
    with pytest.raises(ValueError, match="`X_unlabelled` must be finite"):
        estimate(X, y, 2, X_unlabelled=np.full((4, 3), np.nan))
    chosen = estimate(X, y, 2, X_unlabelled=more, random_seed=1).input_choice
    assert chosen is not None
    assert chosen.explanation.endswith("also fitted to 50000 rows without a response.")
    frame = pd.DataFrame(X, columns=list("abc"))
    with pytest.raises(ValueError, match="a, b, c; got b, a, c"):
        estimate(frame, y, 2, X_unlabelled=frame[["b", "a", "c"]])


def test_known_features(rng: np.random.Generator) -> None:
    X = rng.standard_normal((5_000, 3))
    y = respond(np.sinh(X), rng)
    by_phi = estimate(X, y, 2, phi=np.sinh, input_model="gaussian", random_seed=1)
    by_hand = estimate(np.sinh(X), y, 2, input_model="gaussian", random_seed=1)
    assert_array_equal(by_phi.directions, by_hand.directions)
    with pytest.raises(ValueError, match="`phi` must return a table"):
        estimate(X, y, 2, phi=lambda rows: rows[:, 0])
    with pytest.raises(TypeError, match="`phi` must be a function"):
        estimate(X, y, 2, phi="square")  # type: ignore[arg-type]


def test_three_continuous_and_three_discrete_columns(rng: np.random.Generator) -> None:
    """Coefficients of all columns come within four standard errors of the truth.

    With n rows, predictors of deviation near two and classes that overlap, a coefficient of a
    standardised column has an error of some 2 / sqrt(n).
    """
    n_obs = 20_000
    frame = pd.DataFrame(rng.standard_normal((n_obs, 3)), columns=["age", "income", "height"])
    frame["female"] = rng.integers(2, size=n_obs)
    frame["children"] = rng.integers(5, size=n_obs)
    frame["north"] = (rng.random(n_obs) < 0.3 + 0.2 * frame["female"]).astype(int)
    frame["income"] += 0.5 * frame["female"]
    truth = np.array([[2, 0], [0, 2], [1, -1.0], [1, -1], [0.5, 0.5], [-1, 0.0]])
    labels = (rng.random(n_obs) < 0.4).astype(int)
    eta = (frame.to_numpy() @ truth + np.array([-1.0, 0.0]))[np.arange(n_obs), labels]
    y = eta + 0.7 * rng.standard_normal(n_obs)
    with pytest.warns(
        WeakSignalWarning,
        match=r"female \(binary\), children \(whole numbers, 5 values\), north \(",
    ):
        result = estimate(frame, y, 2, family="gaussian", random_seed=1)
    assert result.coefficients is not None
    order = [int(np.argmax(result.coefficients[0])), int(np.argmin(result.coefficients[0]))]
    found = result.coefficients[:, order]
    deviations = frame.to_numpy().std(axis=0)[:, None]
    assert_allclose((found - truth) * deviations, 0.0, atol=4.0 * 2.0 / np.sqrt(n_obs))
    assert result.status is Status.OK
    with pytest.raises(ValueError, match="`polish` must be True where columns are discrete"):
        estimate(frame, y, 2, family="gaussian", polish=False)


def mixed_frame(n_obs: int, rng: np.random.Generator) -> pd.DataFrame:
    """Three continuous columns, two of which depend on the others: a count and a factor of three.

    The count has more values than `find_discrete_columns` calls few, and many zeros.
    """
    frame = pd.DataFrame(rng.standard_normal((n_obs, 3)), columns=["age", "income", "height"])
    frame["visits"] = np.where(rng.random(n_obs) < 0.3, 0, rng.poisson(4.0, n_obs))
    region = rng.choice(3, n_obs, p=[0.5, 0.3, 0.2])
    frame["south"], frame["west"] = (region == 1).astype(float), (region == 2).astype(float)
    frame["income"] += 0.8 * frame["south"] - 0.1 * frame["visits"]
    frame["height"] += 0.5 * frame["west"]
    return frame


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_discrete_columns_with_effects_of_their_own(family: str, rng: np.random.Generator) -> None:
    """The estimate is the maximum above the truth, and the truth is within its errors.

    Squared errors over their variances sum to a chi-square variable of as many degrees as there are
    slopes; one in ten thousand is above the bound. Effects of the discrete columns differ between
    components in sign and size.
    """
    n_obs = 20_000
    frame = mixed_frame(n_obs, rng)
    truth = np.array([[2, 0], [0, 2], [1, -1.0], [0.3, -0.2], [1.5, -0.5], [-1, 1.0]])
    truth *= 0.25 if family == "poisson" else 1.0
    biases, weights = np.array([-1.0, 0.5]), np.array([0.6, 0.4])
    labels = (rng.random(n_obs) < weights[1]).astype(int)
    eta = (frame.to_numpy() @ truth + biases)[np.arange(n_obs), labels]
    draws = {
        "gaussian": lambda: eta + 0.7 * rng.standard_normal(n_obs),
        "bernoulli": lambda: (rng.random(n_obs) < expit(eta)).astype(float),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
    }
    y = draws[family]()
    words = r"visits \(whole numbers, \d+% of them 0\), south \(one-hot\), west \(one-hot\)\. "
    with pytest.warns(WeakSignalWarning, match=words + r"The moments use the continuous"):
        result = estimate(frame, y, 2, family=family, random_seed=1)
    start = (truth, biases, weights, np.full(2, 0.7))
    fit = fit_em(frame, y, 2, family=family, init=start[: 4 if family == "gaussian" else 3])
    assert result.log_likelihood is not None
    assert result.coefficients is not None
    assert abs(result.log_likelihood - fit.log_likelihood) < 0.5
    order = match_components(result.coefficients, truth, signed=True)
    found = result.coefficients[:, order]
    own = match_components(fit.coefficients, truth, signed=True)
    errors = fit.standard_errors.coefficients[:, own]
    squares = float(np.square((found - truth) / errors).sum())
    assert squares < chi2.ppf(1.0 - 1e-4, truth.size)
    assert float(np.abs((found - fit.coefficients[:, own]) / errors).max()) < 0.5


@pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning")
def test_the_third_moment_does_not_hide_discrete_columns(rng: np.random.Generator) -> None:
    data = simulate_mixture(10_000, 3, 2, family="bernoulli", scales=3.0, random_seed=rng)
    X = np.column_stack([data.X, rng.integers(2, size=10_000)])
    with pytest.warns(WeakSignalWarning, match=r"treats them as continuous: x3 \(binary\)"):
        result = estimate(X, data.y, 2, method="power", random_seed=1)
    assert result.status is not Status.OK


def test_nothing_continuous_remains(rng: np.random.Generator) -> None:
    X = rng.integers(3, size=(2_000, 3)).astype(float)
    y = (rng.random(2_000) < 0.5).astype(float)
    with pytest.raises(IdentifiabilityError, match="must have a continuous column"):
        estimate(X, y, 2)


@pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning")
def test_units_do_not_matter(rng: np.random.Generator) -> None:
    X = clusters(10_000, rng)
    y = respond(X, rng)
    first = estimate(X, y, 2, random_seed=1)
    second = estimate(X * np.array([1e6, 1.0, 1e-6]) + 1.0, y, 2, random_seed=1)
    assert first.coefficients is not None
    assert second.coefficients is not None
    scaled = second.coefficients * np.array([1e6, 1.0, 1e-6])[:, None]
    assert_allclose(scaled, first.coefficients, rtol=1e-3, atol=1e-3)


def test_auto_number_with_discrete_columns(rng: np.random.Generator) -> None:
    data = simulate_mixture(10_000, 3, 2, family="gaussian", random_seed=rng)
    flag = rng.integers(2, size=(10_000, 1))
    with pytest.warns(WeakSignalWarning, match=r"no score function: x3 \(binary\)"):
        result = estimate(
            np.column_stack([data.X, flag]), data.y + 0.5 * flag[:, 0], "auto", family="gaussian",
            random_seed=1,
        )  # fmt: skip
    assert result.n_components == 2
