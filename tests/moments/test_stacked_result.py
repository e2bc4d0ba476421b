"""The default estimate end to end: every parameter in standard errors, units, status, warnings."""

import re
import warnings
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import moment_init.moments.stacked
from moment_init import (
    MomentEstimate,
    Status,
    WeakSignalWarning,
    angles_in_degrees,
    estimate,
    match_components,
    simulate_mixture,
)
from moment_init.data.simulation import MixtureData
from moment_init.families.links import moment_coefficient
from moment_init.families.registry import FAMILIES
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.moments.stacked import low_order_moments
from moment_init.moments.subspace import LowOrders
from tests.population import FAMILY_LINKS, FloatArray, unit_columns
from tests.sampled import (
    fit_sampled,
    moment_coefficients,
    parameter_distance,
    stacked_diagnostics,
)

DIRECTIONS = np.linalg.qr(np.random.default_rng(5).standard_normal((4, 2)))[0]

# Scales and dispersions at which 10,000 rows show both components of every family.
SETTINGS: dict[str, dict[str, Any]] = {
    "bernoulli": {"scales": [3.0, 2.0]},
    "binomial": {"scales": [1.5, 1.0], "n_trials": 6},
    "poisson": {"scales": [0.7, 0.8]},
    "negative_binomial": {"scales": [0.7, 0.8], "dispersion": [20.0, 12.0]},
    "gaussian": {"scales": [1.0, 1.4], "dispersion": [0.3, 0.5]},
    "gamma": {"scales": [0.7, 0.8], "dispersion": [10.0, 6.0]},
}

# Columns of the user: correlated, off the origin.
MIXING = np.eye(4) + 0.4 * np.eye(4, k=1) + 0.2 * np.eye(4, k=-2)
LOCATION = np.array([2.0, -1.0, 3.0, -2.0])


def draw(family: str, seed: int, n_obs: int = 12_000, **options: Any) -> MixtureData:
    """Two oblique components, everything about them unequal."""
    settings = {
        "directions": DIRECTIONS,
        "weights": [0.65, 0.35],
        "biases": [0.5, -0.4],
        **SETTINGS[family],
        **options,
    }
    n_features, n_components = np.shape(settings["directions"])
    return simulate_mixture(
        n_obs, n_features, n_components, family=family, random_seed=seed, **settings
    )


def truth_of(data: MixtureData) -> MixtureParameters:
    return MixtureParameters(data.coefficients, data.biases, data.weights, data.dispersion)


def in_user_columns(data: MixtureData) -> tuple[FloatArray, MixtureParameters]:
    """The same predictor of mixed and moved columns."""
    slopes = np.linalg.solve(MIXING, data.coefficients)
    truth = replace(truth_of(data), coefficients=slopes, biases=data.biases - LOCATION @ slopes)
    return data.X @ MIXING + LOCATION, truth


def assert_recovered(
    fit: MomentEstimate, truth: MixtureParameters, X: FloatArray, y: FloatArray, **rows: Any
) -> None:
    """All parameters within chi-square of the truth, and the angles within four errors.

    Twice the error covers 95 %; four times it is passed in fewer than one case of 10,000.
    """
    distance, limit = parameter_distance(fit, truth, X, y, **rows)
    assert distance < limit
    angles = angles_in_degrees(fit.directions, truth.coefficients, signed=True)
    index = match_components(fit.directions, truth.coefficients, signed=True)
    assert fit.standard_errors is not None
    assert np.all(angles < 4.0 * fit.standard_errors[index])
    assert np.all(fit.standard_errors < 10.0)


# --- recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_recovery_of_all_parameters(family: str, link: str, seed: int) -> None:
    """Signs included, in the user's units: correlated columns off the origin."""
    data = draw(family, seed, link=link)
    X, truth = in_user_columns(data)
    fit = estimate(X, data.y, 2, family=family, link=link, n_trials=data.n_trials, random_seed=1)
    assert fit.status is Status.OK
    assert fit.warnings == ()
    assert_recovered(fit, truth, X, data.y, n_trials=data.n_trials)
    assert fit.weights is not None
    assert fit.weights[0] > fit.weights[1]
    assert (fit.dispersion is not None) == FAMILIES[family].has_dispersion
    assert (fit.method, fit.family, fit.link) == ("stacked", family, link)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "poisson"])
def test_recovery_from_moments_alone(family: str, seed: int) -> None:
    """Without polish the angles are within four standard errors, which are those of the maximum."""
    data = draw(family, seed, n_obs=30_000)
    X, truth = in_user_columns(data)
    options: dict[str, Any] = {"family": family, "random_seed": 1}
    fit = estimate(X, data.y, 2, polish=False, **options)
    polished = estimate(X, data.y, 2, **options)
    angles = angles_in_degrees(fit.directions, truth.coefficients, signed=True)
    index = match_components(fit.directions, truth.coefficients, signed=True)
    assert fit.standard_errors is not None
    assert polished.standard_errors is not None
    assert np.all(angles < 4.0 * fit.standard_errors[index])
    assert np.all(fit.standard_errors < 15.0)
    assert_allclose(fit.standard_errors, polished.standard_errors, rtol=0.25)
    assert fit.log_likelihood is None
    assert stacked_diagnostics(fit).misfit is None
    best = fit.candidates[0]
    order = match_components(best.directions, fit.directions, signed=True)
    assert fit.weights is not None
    assert_allclose(best.weights[order], fit.weights, rtol=1e-12)
    assert_allclose(best.directions[:, order], fit.directions, atol=1e-8)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "gamma"])
def test_a_single_component(family: str, seed: int) -> None:
    """An ordinary regression, its maximum of the likelihood."""
    options = {key: value[:1] for key, value in SETTINGS[family].items()}
    data = draw(
        family, seed, n_obs=5000, directions=-DIRECTIONS[:, :1], weights=[1.0], biases=[0.5],
        **options,
    )  # fmt: skip
    X, truth = in_user_columns(data)
    fit = estimate(X, data.y, 1, family=family, random_seed=1)
    assert fit.status is Status.OK
    assert_recovered(fit, truth, X, data.y)
    if family == "gaussian":
        design = np.c_[X, np.ones(len(X))]
        expected, residual, _, _ = np.linalg.lstsq(design, data.y)
        assert fit.coefficients is not None
        assert fit.biases is not None
        assert fit.dispersion is not None
        assert_allclose(fit.coefficients[:, 0], expected[:-1], rtol=1e-3)
        assert_allclose(fit.biases, expected[-1:], rtol=1e-2)
        assert_allclose(fit.dispersion, np.sqrt(residual / len(X)), rtol=1e-3)


def test_as_many_components_as_features(seed: int) -> None:
    directions = unit_columns(np.array([[1.0, 0.3, -0.2], [0.2, 1.0, 0.5], [-0.4, 0.3, 1.0]]))
    data = draw(
        "gaussian", seed, n_obs=20_000, directions=directions, scales=[1.0, 1.3, 0.8],
        biases=[0.5, -0.5, 0.0], weights=[0.5, 0.3, 0.2], dispersion=0.3,
    )  # fmt: skip
    fit = fit_sampled(data)
    assert fit.status is Status.OK
    assert_recovered(fit, truth_of(data), data.X, data.y)
    assert stacked_diagnostics(fit).gap == np.inf


def test_more_components_than_features(seed: int) -> None:
    angles = np.array([0.1, 2.6, 5.1])
    data = draw(
        "gaussian", seed, n_obs=20_000, directions=np.stack([np.cos(angles), np.sin(angles)]),
        scales=[2.0, 2.6, 1.8], biases=[0.5, -0.5, 0.0], weights=[0.4, 0.35, 0.25], dispersion=0.3,
    )  # fmt: skip
    fit = fit_sampled(data)
    assert_recovered(fit, truth_of(data), data.X, data.y)


def test_one_feature_has_no_angle_but_signs(seed: int) -> None:
    data = draw("gaussian", seed, n_obs=5000, directions=np.array([[1.0, -1.0]]))
    fit = fit_sampled(data)
    distance, limit = parameter_distance(fit, truth_of(data), data.X, data.y)
    assert distance < limit
    assert_array_equal(np.sort(fit.directions[0]), [-1.0, 1.0])
    assert_array_equal(fit.standard_errors, [0.0, 0.0])


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_moment_coefficients(family: str, seed: int) -> None:
    """lambda_j = w_j s_j^3 rho_j of the estimate itself; columns are nearly standard here.

    Dividing by the covariance of 12,000 rows moves a coefficient by about 3 sqrt(2 / n) = 4 %.
    """
    fit = fit_sampled(draw(family, seed))
    assert fit.weights is not None
    assert fit.scales is not None
    assert fit.biases is not None
    rho = moment_coefficient(FAMILIES[family], 3, fit.scales, fit.biases)
    assert_allclose(moment_coefficients(fit), fit.weights * fit.scales**3 * rho, rtol=0.15)


# --- what belongs to rows ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_a_weight_of_two_is_a_repeated_row(family: str, seed: int) -> None:
    """The same likelihood: one optimum to a thousandth of a unit, one error, one value."""
    data = draw(family, seed, n_obs=8000)
    counts = np.random.default_rng(seed).integers(1, 3, 8000)
    weighted = fit_sampled(data, sample_weight=counts.astype(float))
    rows = np.repeat(np.arange(8000), counts)
    repeated = estimate(data.X[rows], data.y[rows], 2, family=family, random_seed=1)
    assert weighted.standard_errors is not None
    assert repeated.standard_errors is not None
    angles = angles_in_degrees(weighted.directions, repeated.directions, signed=True)
    assert np.all(angles < 0.05 * repeated.standard_errors)
    assert_allclose(weighted.standard_errors, repeated.standard_errors, rtol=0.01)
    assert weighted.log_likelihood is not None
    assert repeated.log_likelihood is not None
    assert_allclose(weighted.log_likelihood, repeated.log_likelihood, atol=2e-3)
    assert weighted.weights is not None
    assert repeated.weights is not None
    assert_allclose(weighted.weights, repeated.weights, atol=1e-3)


@pytest.mark.parametrize(
    "response",
    [
        3.0,
        -1e4,
    ],
)
def test_rows_without_weight_do_not_count(response: float, seed: int) -> None:
    data = draw("gaussian", seed, n_obs=8000)
    X, y = np.r_[data.X, 100.0 + data.X[:500]], np.r_[data.y, np.full(500, response)]
    weight = np.r_[np.ones(8000), np.zeros(500)]
    fit = estimate(X, y, 2, family="gaussian", sample_weight=weight, random_seed=1)
    plain = fit_sampled(data)
    assert plain.standard_errors is not None
    angles = angles_in_degrees(fit.directions, plain.directions, signed=True)
    assert np.all(angles < 0.1 * plain.standard_errors)


@pytest.mark.parametrize("family", ["bernoulli", "binomial", "poisson", "gaussian"])
def test_an_offset_is_known_part_of_the_predictor(family: str, seed: int) -> None:
    """Drawn with it and fitted with it: the truth; fitted without it the bias would be off by 1."""
    rng = np.random.default_rng([seed, 1])
    data = draw(family, seed)
    offset = 1.0 + 0.5 * rng.standard_normal(len(data.y))
    labels = data.labels
    eta = np.sum(data.X * data.coefficients.T[labels], axis=1) + data.biases[labels] + offset
    resolved = FAMILIES[family]
    trials = None if data.n_trials is None else rng.integers(1, 12, len(eta)).astype(float)
    y = resolved.sample(
        resolved.link.mean(eta),
        dispersion=None if data.dispersion is None else data.dispersion[labels],
        n_trials=trials,
        rng=rng,
    )
    fit = estimate(data.X, y, 2, family=family, offset=offset, n_trials=trials, random_seed=1)
    assert_recovered(fit, truth_of(data), data.X, y, offset=offset, n_trials=trials)


def test_one_trial_is_bernoulli(seed: int) -> None:
    data = draw("bernoulli", seed, n_obs=8000)
    binomial = estimate(data.X, data.y, 2, family="binomial", n_trials=1, random_seed=1)
    plain = fit_sampled(data)
    assert plain.standard_errors is not None
    # both climbs end within a hundredth of a standard error of the maximum
    tolerance = 0.01 * np.radians(plain.standard_errors.min())
    assert_allclose(binomial.directions, plain.directions, atol=tolerance)
    assert binomial.log_likelihood is not None
    assert plain.log_likelihood is not None
    assert_allclose(binomial.log_likelihood, plain.log_likelihood, rtol=1e-9)


# --- units and symmetries ------------------------------------------------------------------------


def test_units_of_columns_do_not_matter(seed: int) -> None:
    data = draw("bernoulli", seed)
    factors = np.array([1e6, 1e-6, 1.0, 1e3])
    plain = fit_sampled(data)
    moved = estimate(data.X * factors + 1e3 * factors, data.y, 2, random_seed=1)
    assert plain.coefficients is not None
    assert moved.coefficients is not None
    assert_allclose(moved.coefficients * factors[:, None], plain.coefficients, atol=1e-4)
    assert moved.biases is not None
    assert plain.biases is not None
    levels = moved.biases + 1e3 * factors @ moved.coefficients
    assert_allclose(levels, plain.biases, atol=1e-4)
    assert_allclose(moved.log_likelihood, plain.log_likelihood, rtol=1e-8)  # type: ignore[arg-type]


def test_the_unit_of_a_gaussian_response_does_not_matter(seed: int) -> None:
    """Density in other units: the log-likelihood falls by n log(unit)."""
    data = draw("gaussian", seed)
    plain = fit_sampled(data)
    moved = estimate(data.X, 1e3 * data.y + 1e4, 2, family="gaussian", random_seed=1)
    assert_allclose(moved.directions, plain.directions, atol=1e-6)
    for name, power in (("scales", 1), ("dispersion", 1), ("moment_coefficients", 3)):
        assert_allclose(getattr(moved, name), 10.0 ** (3 * power) * getattr(plain, name), rtol=1e-5)
    assert moved.biases is not None
    assert plain.biases is not None
    assert_allclose(moved.biases, 1e3 * plain.biases + 1e4, rtol=1e-5)
    assert moved.log_likelihood is not None
    assert plain.log_likelihood is not None
    expected = plain.log_likelihood - 12_000 * np.log(1e3)
    assert_allclose(moved.log_likelihood, expected, rtol=1e-8)
    assert_allclose(moved.standard_errors, plain.standard_errors, rtol=1e-4)  # type: ignore[arg-type]


def test_exchanging_successes_and_failures_turns_everything(seed: int) -> None:
    data = draw("bernoulli", seed)
    plain, turned = fit_sampled(data), estimate(data.X, 1.0 - data.y, 2, random_seed=1)
    assert plain.biases is not None
    assert turned.biases is not None
    assert_allclose(turned.directions, -plain.directions, atol=1e-3)
    assert_allclose(turned.biases, -plain.biases, atol=2e-2)
    assert_allclose(turned.log_likelihood, plain.log_likelihood, atol=1e-2)  # type: ignore[arg-type]


# --- known scales and biases ---------------------------------------------------------------------


@pytest.mark.parametrize("polish", [True, False])
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_known_scales_and_biases(family: str, polish: bool, seed: int) -> None:
    """Components come in the order given, and weights fit the known parameters.

    Weights from moments of 30,000 rows have errors of about .02; a swap is off by .4.
    """
    data = draw(family, seed, n_obs=30_000, weights=[0.3, 0.7])
    fit = fit_sampled(data, known_scales=data.scales, known_biases=data.biases, polish=polish)
    assert fit.weights is not None
    assert fit.scales is not None
    assert fit.biases is not None
    assert_allclose(fit.weights, [0.3, 0.7], atol=0.1)
    assert_array_equal(fit.scales, data.scales)
    assert_array_equal(fit.biases, data.biases)
    assert np.all(np.sum(fit.directions * data.directions, axis=0) > 0.95)
    weight_sum = stacked_diagnostics(fit).weight_sum
    assert weight_sum is not None
    assert_allclose(weight_sum, 1.0, atol=0.15)
    reverse = fit_sampled(
        data, known_scales=data.scales[::-1], known_biases=data.biases[::-1], polish=polish
    )
    assert reverse.weights is not None
    assert_allclose(reverse.weights, fit.weights[::-1], rtol=1e-10)
    assert_array_equal(reverse.directions, fit.directions[:, ::-1])
    assert_array_equal(reverse.standard_errors, fit.standard_errors[::-1])  # type: ignore[index]


def test_a_known_scale_and_bias_of_a_single_component(seed: int) -> None:
    data = simulate_mixture(5000, 3, 1, scales=2.0, biases=0.5, random_seed=seed)
    fit = fit_sampled(data, known_scales=2.0, known_biases=[0.5])
    assert fit.coefficients is not None
    assert_array_equal(fit.coefficients, 2.0 * fit.directions)
    assert_array_equal(fit.weights, [1.0])
    assert angles_in_degrees(fit.directions, data.directions, signed=True).max() < 10.0


# --- status and warnings -------------------------------------------------------------------------

WEAK = (
    "stand out from noise|zero to within|standard error of|same to within|boundary of the parameter"
)


@pytest.mark.parametrize("n_components", [1, 2, 3])
@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "poisson"])
def test_pure_noise_is_never_called_a_signal(family: str, n_components: int, seed: int) -> None:
    """Coefficients of noise pass for a direction once in a hundred data sets."""
    rng = np.random.default_rng([seed, 1])
    X = rng.standard_normal((4000, 5))
    responses = {
        "bernoulli": rng.integers(0, 2, 4000),
        "gaussian": rng.standard_normal(4000),
        "poisson": rng.poisson(2.0, 4000),
    }
    with pytest.warns(WeakSignalWarning, match=WEAK) as caught:
        fit = estimate(X, responses[family], n_components, family=family, random_seed=1)
    assert fit.status in {Status.WEAK_SIGNAL, Status.NOT_IDENTIFIED}
    assert [str(each.message) for each in caught] == [" ".join(fit.warnings)]
    assert np.all(np.isfinite(fit.directions))


def parallel(family: str, scales: list[float], n_components: int, seed: int) -> MixtureData:
    """The first two components share a direction and differ in scale and bias."""
    return simulate_mixture(
        20_000, 5, n_components, family=family, directions=np.eye(5)[:, [0, 0, 1][:n_components]],
        scales=scales[:n_components], biases=[1.0, -1.0, 0.0][:n_components],
        weights=np.full(n_components, 1.0 / n_components), random_seed=seed,
    )  # fmt: skip


def parallel_distance(fit: MomentEstimate, data: MixtureData) -> tuple[float, float]:
    """Smallest distance over the orders of components: directions cannot match them."""
    if fit.biases is None or fit.coefficients is None or fit.weights is None:
        raise TypeError("The estimate has no scales, biases or weights.")
    truth = truth_of(data)
    distances = []
    for order in permutations(range(len(data.weights))):
        index = np.array(order)
        arranged = replace(
            fit,
            directions=fit.directions[:, index],
            scales=np.linalg.norm(fit.coefficients, axis=0)[index],
            biases=fit.biases[index],
            weights=fit.weights[index],
            dispersion=None if fit.dispersion is None else fit.dispersion[index],
        )
        distances.append(parameter_distance(arranged, truth, data.X, data.y, is_matched=True))
    return min(distances)


@pytest.mark.parametrize("n_components", [2, 3])
def test_moments_show_one_direction_of_parallel_components(n_components: int, seed: int) -> None:
    data = parallel("bernoulli", [3.0, 1.0, 2.0], n_components, seed)
    expected = f"Only {n_components - 1} of {n_components} directions stand out from noise"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        fit = fit_sampled(data, polish=False)
    assert fit.status is Status.WEAK_SIGNAL
    assert fit.warnings[0].startswith(expected)


@pytest.mark.parametrize("n_components", [2, 3])
def test_the_likelihood_finds_parallel_components(n_components: int, seed: int) -> None:
    """What the moments of a gaussian response do not tell apart the polish does."""
    data = parallel("gaussian", [1.0, 0.5, 0.8], n_components, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        fit = fit_sampled(data)
    distance, limit = parallel_distance(fit, data)
    assert distance < limit
    assert fit.status in {Status.OK, Status.WEAK_SIGNAL}


@pytest.mark.parametrize("n_components", [1, 2])
def test_too_few_components_are_a_misfit(n_components: int, seed: int) -> None:
    data = simulate_mixture(
        8000, 5, 3, family="gaussian", directions=np.eye(5)[:, :3], scales=[1.0, 1.3, 0.8],
        weights=[0.4, 0.35, 0.25], dispersion=0.3, random_seed=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        fit = estimate(data.X, data.y, n_components, family="gaussian", random_seed=1)
    assert fit.status is Status.MISFIT
    messages = " ".join(fit.warnings)
    assert re.search(f"more than {n_components} components? or need another family", messages)
    assert "show a direction that the fit lacks" in messages
    misfit = stacked_diagnostics(fit).misfit
    assert misfit is not None
    assert misfit > 1.5


def test_a_wrong_family_is_a_misfit(seed: int) -> None:
    """Counts that vary more than Poisson's, within one component."""
    data = simulate_mixture(
        10_000, 3, 1, family="negative_binomial", dispersion=1.5, biases=1.0, random_seed=seed
    )
    with pytest.warns(WeakSignalWarning, match="another family"):
        fit = estimate(data.X, data.y, 1, family="poisson", random_seed=1)
    assert fit.status is Status.MISFIT


def test_contradictory_known_parameters_leave_valid_weights(seed: int) -> None:
    data = draw("bernoulli", seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        fit = fit_sampled(data, known_scales=0.5, known_biases=0.0)
    assert fit.weights is not None
    assert_allclose(fit.weights.sum(), 1.0, rtol=1e-12)
    weight_sum = stacked_diagnostics(fit).weight_sum
    assert weight_sum is not None
    assert abs(weight_sum - 1.0) > 0.5


# --- many rows -----------------------------------------------------------------------------------


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of all moments that are formed."""
    calls: list[int] = []

    def counted(*arguments: Any) -> LowOrders:
        found = low_order_moments(*arguments)
        calls.append(int(np.count_nonzero(found.pieces[0].weights)))
        return found

    monkeypatch.setattr(moment_init.moments.stacked, "low_order_moments", counted)
    return calls


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_moments_use_enough_rows_and_the_likelihood_all(
    family: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A third of the rows for the moments ends at the optimum of all rows."""
    data = draw(
        family, seed, n_obs=18_001, scales=[3.0, 3.5] if family == "bernoulli" else [1, 1.4]
    )
    X, truth = in_user_columns(data)
    offset = np.linspace(-0.2, 0.2, len(X))
    options: dict[str, Any] = {"family": family, "random_seed": 1}
    plain = estimate(X, data.y, 2, **options)
    calls = count_calls(monkeypatch)
    monkeypatch.setattr(moment_init.moments.stacked, "MOMENT_ROWS", 6000)
    thinned = estimate(X, data.y, 2, **options)
    assert calls == [6001]
    assert thinned.diagnostics.n_obs == 18_001
    assert_recovered(thinned, truth, X, data.y)
    angles = angles_in_degrees(thinned.directions, plain.directions, signed=True)
    assert plain.standard_errors is not None
    assert np.all(angles < 0.1 * plain.standard_errors)
    assert_allclose(thinned.log_likelihood, plain.log_likelihood, atol=0.01)  # type: ignore[arg-type]
    # Everything that belongs to rows is thinned with them.
    estimate(X, data.y + offset if family == "gaussian" else data.y, 2, offset=offset,
             sample_weight=np.ones(len(X)), **options)  # fmt: skip
    assert calls == [6001, 6001]


def test_moments_alone_use_all_rows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    calls = count_calls(monkeypatch)
    monkeypatch.setattr(moment_init.moments.stacked, "MOMENT_ROWS", 2000)
    fit_sampled(draw("gaussian", seed), polish=False)
    assert calls == [12_000]


def test_an_unclear_spectrum_takes_all_rows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Four times as many where twice as many promise too little, then all."""
    calls = count_calls(monkeypatch)
    monkeypatch.setattr(moment_init.moments.stacked, "MOMENT_ROWS", 1000)
    monkeypatch.setattr(moment_init.moments.stacked, "SEARCH_ROWS", 4000)
    monkeypatch.setattr(moment_init.moments.stacked, "CLEAR_EIGENVALUE", np.inf)
    fit_sampled(draw("gaussian", seed))
    assert calls == [1000, 4000, 12_000]


# --- order, bits, seeds --------------------------------------------------------------------------


def test_components_come_by_falling_weight(seed: int) -> None:
    data = draw("gaussian", seed, weights=[0.2, 0.8])
    fit = fit_sampled(data)
    assert fit.weights is not None
    assert fit.weights[0] > fit.weights[1]
    assert_array_equal(match_components(fit.directions, data.directions, signed=True), [1, 0])


@pytest.mark.parametrize("family", ["bernoulli", "gamma"])
def test_same_seed_same_bits(family: str, seed: int) -> None:
    data = draw(family, seed, n_obs=5000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        first, again = (fit_sampled(data, random_seed=seed) for _ in range(2))
    for name in ("directions", "scales", "biases", "weights", "standard_errors"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
    assert first.log_likelihood == again.log_likelihood


def test_another_seed_ends_at_the_same_maximum(seed: int) -> None:
    data = draw("poisson", seed)
    first, other = fit_sampled(data, random_seed=1), fit_sampled(data, random_seed=[2, 3])
    assert first.standard_errors is not None
    angles = angles_in_degrees(first.directions, other.directions, signed=True)
    assert np.all(angles < 0.1 * first.standard_errors)


def test_sorted_rows_change_nothing(seed: int) -> None:
    """Rows in the order of the response: no part of the estimate may rely on the first rows."""
    data = draw("poisson", seed, n_obs=15_000)
    order = np.argsort(data.y, kind="stable")
    moved = estimate(data.X[order], data.y[order], 2, family="poisson", random_seed=1)
    plain = fit_sampled(data)
    assert plain.standard_errors is not None
    angles = angles_in_degrees(moved.directions, plain.directions, signed=True)
    assert np.all(angles < 0.1 * plain.standard_errors)
