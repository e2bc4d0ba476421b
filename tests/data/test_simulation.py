"""Simulated mixtures: truth and data agree, inputs are what they claim, mistakes are named."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy import stats

from moment_init.checks import FloatArray
from moment_init.data.simulation import INPUT_DESIGNS, MixtureData, simulate_mixture
from moment_init.families.registry import FAMILIES, get_family

STANDARDISED = [name for name in INPUT_DESIGNS if name != "correlated"]


def features(name: str, seed: int, n_obs: int = 50_000, n_features: int = 3) -> FloatArray:
    return simulate_mixture(n_obs, n_features, 1, inputs=name, random_seed=seed).X


# --- shapes and reproducibility ------------------------------------------------------------------


@pytest.mark.parametrize("name", list(FAMILIES))
def test_shapes_and_defaults(name: str, seed: int) -> None:
    data, family = simulate_mixture(200, 5, 3, family=name, random_seed=seed), get_family(name)
    assert data.X.shape == (200, 5)
    assert data.y.shape == data.labels.shape == (200,)
    assert data.directions.shape == data.coefficients.shape == (5, 3)
    assert data.scales.shape == data.biases.shape == data.weights.shape == (3,)
    assert (data.family, data.link) == (name, family.supported_links[0])
    assert (data.dispersion is not None) == family.has_dispersion
    assert (data.n_trials is not None) == family.has_trials
    assert_allclose(np.linalg.norm(data.directions, axis=0), 1.0, rtol=1e-14)
    assert_allclose(data.coefficients, data.directions * data.scales, rtol=0)
    assert_allclose(data.weights.sum(), 1.0, rtol=1e-14)
    assert np.all(np.abs(data.scales / family.typical_scale - 1) <= 0.3)
    assert set(data.labels) <= {0, 1, 2}
    family.validate_response(data.y, data.n_trials)


def test_more_components_than_features_and_a_single_one(seed: int) -> None:
    assert simulate_mixture(50, 2, 4, random_seed=seed).coefficients.shape == (2, 4)
    single = simulate_mixture(50, 1, 1, random_seed=seed)
    assert_allclose(np.abs(single.directions), 1.0, rtol=1e-15)
    assert_allclose(single.weights, 1.0, rtol=0)


def arrays(data: MixtureData) -> list[NDArray[Any]]:
    return [data.X, data.y, data.directions, data.scales, data.biases, data.weights, data.labels]


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("inputs", list(INPUT_DESIGNS))
def test_same_seed_same_bits(name: str, inputs: str, seed: int) -> None:
    first, again, other = (
        simulate_mixture(300, 4, 2, family=name, inputs=inputs, random_seed=number)
        for number in (seed, seed, seed + 1)
    )
    for one, two, three in zip(arrays(first), arrays(again), arrays(other), strict=True):
        assert np.array_equal(one, two)
        assert not np.array_equal(one, three)


def test_a_generator_and_a_sequence_are_seeds(seed: int) -> None:
    from_int = simulate_mixture(30, 2, 2, random_seed=seed)
    rng = np.random.default_rng(seed)
    first, second = (simulate_mixture(30, 2, 2, random_seed=rng) for _ in range(2))
    assert np.array_equal(from_int.X, first.X)
    assert not np.array_equal(first.X, second.X)
    from_sequence = simulate_mixture(30, 2, 2, random_seed=[seed, 1])
    assert not np.array_equal(from_sequence.X, first.X)
    assert not np.array_equal(
        simulate_mixture(30, 2, 2).X, simulate_mixture(30, 2, 2).X
    )  # fresh entropy


def test_an_argument_does_not_change_the_draws_of_the_others(seed: int) -> None:
    free = simulate_mixture(100, 3, 2, random_seed=seed)
    fixed = simulate_mixture(100, 3, 2, scales=2.0, inputs="uniform", random_seed=seed)
    assert np.array_equal(free.directions, fixed.directions)
    assert np.array_equal(free.biases, fixed.biases)
    assert np.array_equal(free.labels, fixed.labels)


# --- truth and data agree ------------------------------------------------------------------------

TRUTH: dict[str, Any] = {
    "weights": [0.55, 0.3, 0.15],
    "scales": [0.5, 0.9, 0.3],
    "biases": [-0.4, 0.6, 0.1],
}


@pytest.mark.parametrize(
    ("name", "link"),
    [(name, link) for name, family in FAMILIES.items() for link in family.supported_links],
)
def test_conditional_mean_and_variance_follow_the_truth(name: str, link: str, seed: int) -> None:
    """Residuals of each component have mean zero and, standardised, variance one; five errors.

    They are also uncorrelated with the linear predictor, which a wrong coefficient would not
    leave them.
    """
    family = get_family(name, link)
    dispersion = [0.5, 2.0, 6.0] if family.has_dispersion else None
    n_trials = np.resize([3, 5, 9], 60_000) if family.has_trials else None
    data = simulate_mixture(
        60_000,
        4,
        3,
        family=name,
        link=link,
        dispersion=dispersion,
        n_trials=n_trials,
        random_seed=seed,
        **TRUTH,
    )
    assert data.link == link
    for component in range(3):
        rows = data.labels == component
        eta = data.X[rows] @ data.coefficients[:, component] + data.biases[component]
        trials = None if data.n_trials is None else data.n_trials[rows]
        noise = None if data.dispersion is None else data.dispersion[component]
        mean = family.link.mean(eta)
        variance = _variance(family.name, mean, noise, trials)
        residual = (data.y[rows] - mean * (1 if trials is None else trials)) / np.sqrt(variance)
        for statistic in (residual, residual**2 - 1, residual * (eta - eta.mean())):
            assert abs(statistic.mean()) < 5 * statistic.std() / np.sqrt(rows.sum())


def _variance(name: str, mean: FloatArray, noise: Any, trials: Any) -> FloatArray:
    """Variance of a response by the textbook, family by family."""
    variances: dict[str, Any] = {
        "bernoulli": lambda: mean * (1 - mean),
        "binomial": lambda: trials * mean * (1 - mean),
        "poisson": lambda: mean,
        "negative_binomial": lambda: mean + mean**2 / noise,
        "gaussian": lambda: np.full_like(mean, noise**2),
        "gamma": lambda: mean**2 / noise,
    }
    return np.asarray(variances[name]())


def test_given_parameters_are_the_truth(seed: int) -> None:
    directions = np.array([[1.0, 0.6], [0.0, -0.8]])
    data = simulate_mixture(
        40,
        2,
        2,
        family="gamma",
        weights=[0.3, 0.7],
        scales=0.4,
        biases=[-1.0, 1.0],
        dispersion=3.0,
        directions=directions,
        random_seed=seed,
    )
    assert_allclose(data.directions, directions, rtol=1e-15)
    assert_allclose(data.scales, [0.4, 0.4], rtol=0)
    assert_allclose(data.biases, [-1.0, 1.0], rtol=0)
    assert_allclose(data.weights, [0.3, 0.7], rtol=1e-15)
    assert data.dispersion is not None
    assert_allclose(data.dispersion, [3.0, 3.0], rtol=0)


def test_weights_are_the_frequencies_of_the_labels(seed: int) -> None:
    data = simulate_mixture(40_000, 2, 3, random_seed=seed, **TRUTH)
    shares = np.bincount(data.labels, minlength=3) / data.labels.size
    errors = np.sqrt(data.weights * (1 - data.weights) / data.labels.size)
    assert np.all(np.abs(shares - data.weights) < 5 * errors)


def test_labels_are_independent_of_the_features(seed: int) -> None:
    data = simulate_mixture(40_000, 3, 2, weights=[0.4, 0.6], random_seed=seed)
    difference = data.X[data.labels == 0].mean(axis=0) - data.X[data.labels == 1].mean(axis=0)
    assert np.all(np.abs(difference) < 5 / np.sqrt(40_000 * 0.4 * 0.6))


def test_number_of_trials(seed: int) -> None:
    default = simulate_mixture(20, 2, 2, family="binomial", random_seed=seed)
    common = simulate_mixture(20, 2, 2, family="binomial", n_trials=4, random_seed=seed)
    assert default.n_trials is not None
    assert common.n_trials is not None
    assert np.array_equal(default.n_trials, np.full(20, 10.0))
    assert np.array_equal(common.n_trials, np.full(20, 4.0))


# --- inputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STANDARDISED)
def test_inputs_have_mean_zero_and_identity_covariance(name: str, seed: int) -> None:
    X = features(name, seed)
    mean_error = X.std(axis=0) / np.sqrt(len(X))
    assert np.all(np.abs(X.mean(axis=0)) < 5 * mean_error)
    products = X[:, :, None] * X[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(X))
    assert np.all(np.abs(products.mean(axis=0) - np.eye(3)) < 5 * error)


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("gaussian", stats.norm()),
        ("student_t", stats.t(5, scale=np.sqrt(3 / 5))),
        ("gamma", stats.gamma(8, loc=-np.sqrt(8), scale=1 / np.sqrt(8))),
        ("uniform", stats.uniform(-np.sqrt(3), 2 * np.sqrt(3))),
    ],
)
def test_columns_have_the_distribution_they_claim(name: str, distribution: Any, seed: int) -> None:
    """A Kolmogorov test at level 1e-6 for each of three columns."""
    X = features(name, seed, n_obs=20_000)
    for column in X.T:
        assert stats.kstest(column, distribution.cdf).pvalue > 1e-6
        if name != "gaussian":
            assert stats.kstest(column, stats.norm.cdf).pvalue < 1e-6


def test_lognormal_columns_have_a_normal_logarithm(seed: int) -> None:
    """Standardised back: mean exp(1/8), variance exp(1/4) (exp(1/4) - 1)."""
    X = features("lognormal", seed, n_obs=20_000)
    original = X * np.sqrt(np.exp(0.25) * np.expm1(0.25)) + np.exp(0.125)
    for column in original.T:
        assert stats.kstest(np.log(column) / 0.5, stats.norm.cdf).pvalue > 1e-6


def test_student_t_rows_share_their_radius(seed: int) -> None:
    """Columns are uncorrelated but not independent: their absolute values move together."""
    X = np.abs(features("student_t", seed))
    correlation = np.corrcoef(X.T)[0, 1]
    assert correlation > 10 / np.sqrt(len(X))


@pytest.mark.parametrize("name", ["gaussian", "gamma", "lognormal", "uniform"])
def test_columns_are_independent(name: str, seed: int) -> None:
    X = np.abs(features(name, seed))
    assert abs(np.corrcoef(X.T)[0, 1]) < 5 / np.sqrt(len(X))


def test_correlated_inputs_are_gaussian_with_mean_covariance_and_unequal_variances(
    seed: int,
) -> None:
    X = features("correlated", seed, n_features=4)
    correlation = np.corrcoef(X.T) - np.eye(4)
    assert np.abs(correlation).max() > 0.1
    assert np.linalg.cond(np.corrcoef(X.T)) < 1e3
    assert np.abs(X.mean(axis=0)).max() > 0.1
    variances = X.var(axis=0)
    assert variances.max() / variances.min() > 1.05
    assert variances.min() > 0.2
    assert variances.max() < 4.5
    z = np.linalg.solve(np.linalg.cholesky(np.cov(X.T)), (X - X.mean(axis=0)).T)
    for row in z:
        assert stats.kstest(row, stats.norm.cdf).pvalue > 1e-6


def test_clusters_are_not_gaussian(seed: int) -> None:
    """Along one of the columns at least a Kolmogorov test sees the clusters."""
    X = features("clusters", seed)
    assert min(stats.kstest(column, stats.norm.cdf).pvalue for column in X.T) < 1e-9


def test_inputs_from_an_array_and_from_a_function(seed: int) -> None:
    given = np.arange(12, dtype=np.int64).reshape(6, 2)
    data = simulate_mixture(6, 2, 2, inputs=given, scales=0.1, random_seed=seed)
    assert np.array_equal(data.X, given)
    assert data.X.dtype == np.float64

    def exponential(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
        return rng.standard_exponential((n_obs, n_features))

    drawn = simulate_mixture(500, 3, 2, inputs=exponential, random_seed=seed)
    assert drawn.X.shape == (500, 3)
    assert drawn.X.min() > 0
    again = simulate_mixture(500, 3, 2, inputs=exponential, random_seed=seed)
    assert np.array_equal(drawn.X, again.X)


def test_given_array_is_copied(seed: int) -> None:
    given = np.zeros((4, 1))
    data = simulate_mixture(4, 1, 1, inputs=given, random_seed=seed)
    given[:] = 9.0
    assert np.all(data.X == 0.0)


# --- the result ----------------------------------------------------------------------------------


def test_to_frame(seed: int) -> None:
    data = simulate_mixture(5, 2, 2, family="binomial", random_seed=seed)
    frame = data.to_frame()
    assert list(frame.columns) == ["x0", "x1", "y", "n_trials"]
    assert_allclose(frame[["x0", "x1"]].to_numpy(), data.X, rtol=0)
    assert_allclose(frame["y"].to_numpy(), data.y, rtol=0)
    assert "n_trials" not in simulate_mixture(5, 2, 2, random_seed=seed).to_frame()


def test_repr() -> None:
    data = simulate_mixture(7, 3, 2, family="gaussian", weights=[0.25, 0.75], random_seed=0)
    assert repr(data) == (
        "MixtureData(family='gaussian', link='identity', n_obs=7, n_features=3, n_components=2, "
        "weights=[0.25, 0.75])"
    )


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_obs": 0}, r"`n_obs` must be 1 or more; got 0"),
        ({"n_features": -2}, r"`n_features` must be 1 or more; got -2"),
        ({"n_components": 0}, r"`n_components` must be 1 or more; got 0"),
        ({"family": "normal"}, r"`family` must be one of 'bernoulli', .* got 'normal'"),
        ({"link": "log"}, r"`link` must be one of 'logit', 'probit' for family 'bernoulli'"),
        ({"weights": [0.5, 0.6]}, r"`weights` must sum to 1; got a sum of 1\.1\. Divide"),
        ({"weights": [1.5, -0.5]}, r"`weights` must be finite and above 0; got -0\.5 for comp.* 1"),
        ({"weights": [0.2, 0.3, 0.5]}, r"`weights` must have one entry .* got shape \(3,\)"),
        ({"weights": 0.5}, r"`weights` must have one entry for each component.* got shape \(\)"),
        ({"scales": [1.0, 0.0]}, r"`scales` must be finite and above 0; got 0 for component 1"),
        ({"scales": [1.0] * 3}, r"`scales` must be one number or one for each .* shape \(3,\)"),
        ({"biases": [np.nan, 1.0]}, r"`biases` must be finite; got nan for component 0"),
        ({"dispersion": 1.0}, r"`dispersion` has no meaning for family 'bernoulli'.* Leave it out"),
        ({"family": "gamma", "dispersion": -1.0}, r"`dispersion` must be finite and above 0"),
        (
            {"directions": np.eye(3)},
            r"`directions` must have the shape .* = \(3, 2\); got \(3, 3\)",
        ),
        (
            {"directions": np.ones((3, 2))},
            r"`directions` must have columns of length 1; got .*1\.7",
        ),
        ({"n_trials": 3}, r"`n_trials` has no meaning for family 'bernoulli'"),
        ({"family": "binomial", "n_trials": 0}, r"`n_trials` must hold whole numbers, 1 or more"),
        ({"family": "binomial", "n_trials": [1, 2]}, r"`n_trials` must be one number or have"),
        ({"inputs": "cauchy"}, r"`inputs` must be one of 'gaussian', .* got 'cauchy'"),
        (
            {"inputs": np.zeros((5, 3))},
            r"`inputs` must have the shape .* = \(20, 3\); got \(5, 3\)",
        ),
        ({"inputs": np.full((20, 3), np.nan)}, r"`inputs` must be finite; got nan in row 0"),
        ({"inputs": lambda rng, n, d: np.zeros(n)}, r"`inputs` must be two-dimensional"),
        ({"family": "poisson", "scales": 90.0}, r"`scales` and `biases` give a mean of .* smaller"),
        ({"random_seed": -1}, r"`random_seed` must be a non-negative integer"),
    ],
)
def test_wrong_values(arguments: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {"n_obs": 20, "n_features": 3, "n_components": 2, "random_seed": 0}
    with pytest.raises(ValueError, match=message):
        simulate_mixture(**valid | arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_obs": 2.0}, r"`n_obs` must be an integer; got 2\.0"),
        ({"n_components": True}, r"`n_components` must be an integer; got True"),
        ({"n_features": "3"}, r"`n_features` must be an integer; got '3'"),
        ({"scales": "large"}, r"`scales` must hold real numbers; got dtype"),
        ({"weights": [None, {}]}, r"`weights` must hold real numbers"),
        ({"inputs": np.array([["a"] * 3] * 20)}, r"`inputs` must hold real numbers"),
        ({"family": 1}, r"`family` must be a string or a Family"),
    ],
)
def test_wrong_types(arguments: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {"n_obs": 20, "n_features": 3, "n_components": 2, "random_seed": 0}
    with pytest.raises(TypeError, match=message):
        simulate_mixture(**valid | arguments)


def test_callable_inputs_receive_the_sizes() -> None:
    received: list[tuple[int, int]] = []

    def design(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
        received.append((n_obs, n_features))
        return rng.standard_normal((n_obs, n_features))

    simulate_mixture(8, 3, 2, inputs=design, random_seed=1)
    assert received == [(8, 3)]
