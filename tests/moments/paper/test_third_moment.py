"""The paper's own method: exact moments, samples, units, weights, and what it warns of."""

import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2

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
from moment_init.families.registry import FAMILIES, get_family
from moment_init.scores import Gaussian
from tests.population import (
    FAMILY_LINKS,
    FloatArray,
    PopulationMixture,
    WeightedRows,
    exact_rows,
    gaussian_grid,
    unit_columns,
)
from tests.sampled import (
    SAMPLED,
    fit_sampled,
    moment_coefficients,
    sampled,
    third_moment_diagnostics,
)

MEAN = np.array([3.0, -1.0, 10.0])
FACTOR = np.array([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 0.4, 0.5]])


def power_estimate(X: Any, y: Any, n_components: int, **options: Any) -> MomentEstimate:
    """Estimate by the paper's power method unless another one is asked for."""
    return estimate(X, y, n_components, **{"method": "power", **options})


def fit_by_power(data: MixtureData, **options: Any) -> MomentEstimate:
    """Estimate sampled data by the paper's power method unless another one is asked for."""
    return fit_sampled(data, **{"method": "power", **options})


# --- exact moments, in the user's units ----------------------------------------------------------


def population(family: str, link: str) -> PopulationMixture:
    """Three oblique components; under logit and probit the second has a positive lambda_j."""
    resolved = get_family(family, link)
    has_both_signs = resolved.link.third_derivative_sign is None and not resolved.response_power
    return PopulationMixture(
        family=resolved,
        directions=unit_columns(np.array([[1.0, 0.3, -0.2], [0.2, 1.0, 0.5], [-0.4, 0.3, 1.0]])),
        scales=np.array([0.8, 0.6, 0.7]),
        biases=np.array([0.3, -2.5 if has_both_signs else -0.4, 0.1]),
        weights=np.array([0.5, 0.3, 0.2]),
    )


def population_rows(mixture: PopulationMixture) -> WeightedRows:
    """Weighted rows in units of the user: correlated columns with means."""
    rows = exact_rows(mixture, *gaussian_grid(3, 20))
    return replace(rows, X=rows.X @ FACTOR.T + MEAN)


def user_parameters(mixture: PopulationMixture) -> tuple[FloatArray, FloatArray]:
    """Coefficients and biases of the user's columns: the predictor is the same."""
    coefficients = np.linalg.solve(FACTOR.T, mixture.directions * mixture.scales)
    return coefficients, mixture.biases - MEAN @ coefficients


def quiet_estimate(rows: WeightedRows, n_components: int, **options: Any) -> MomentEstimate:
    """Estimate; nodes far out count as noisy rows, so that the signal seems weak and it warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        return power_estimate(
            rows.X,
            rows.y,
            n_components,
            sample_weight=rows.sample_weight,
            n_trials=rows.n_trials,
            input_model="gaussian",  # the nodes of a quadrature are no sample to judge it by
            random_seed=1,
            **options,
        )


@pytest.mark.parametrize("method", ["power", "tensorly"])
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_exact_moments_give_the_truth(family: str, link: str, method: str) -> None:
    """Signed directions and lambda_j = w_j s_j^3 rho_j of the user's units.

    The quadrature itself is exact to 1e-9 for the logistic function and to rounding for others.
    """
    mixture = population(family, link)
    fit = quiet_estimate(population_rows(mixture), 3, family=family, link=link, method=method)
    coefficients, _ = user_parameters(mixture)
    index = match_components(fit.directions, coefficients, signed=True)
    assert_allclose(fit.directions[:, index], unit_columns(coefficients), atol=1e-7)
    stretch = np.linalg.norm(coefficients, axis=0) / mixture.scales
    expected = mixture.moment_coefficients(3) * stretch**3
    assert_allclose(moment_coefficients(fit)[index], expected, rtol=1e-6)
    if FAMILIES[family].response_power is False and link in {"logit", "probit"}:
        assert set(np.sign(moment_coefficients(fit))) == {-1.0, 1.0}


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_exact_moments_give_the_weights_of_known_scales_and_biases(family: str, link: str) -> None:
    mixture = population(family, link)
    coefficients, biases = user_parameters(mixture)
    order = np.array([1, 2, 0])
    fit = quiet_estimate(
        population_rows(mixture),
        3,
        family=family,
        link=link,
        known_scales=np.linalg.norm(coefficients, axis=0)[order],
        known_biases=biases[order],
    )
    assert fit.weights is not None
    assert fit.coefficients is not None
    assert_allclose(fit.weights, mixture.weights[order], rtol=1e-6)
    assert_allclose(fit.coefficients, coefficients[:, order], atol=1e-6)
    assert fit.biases is not None
    assert_allclose(fit.biases, biases[order], rtol=1e-12)
    weight_sum = third_moment_diagnostics(fit).weight_sum
    assert weight_sum is not None
    assert_allclose(weight_sum, 1.0, rtol=1e-6)


@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_a_single_component_comes_from_the_first_moment(family: str, link: str) -> None:
    """Lemma 2: M_1 = s E[g'] u, in the user's units beta~ E[g'] with L^-T in front."""
    mixture = population(family, link)
    single = replace(
        mixture,
        directions=mixture.directions[:, :1],
        scales=mixture.scales[:1],
        biases=mixture.biases[:1],
        weights=np.ones(1),
    )
    fit = quiet_estimate(population_rows(single), 1, family=family, link=link)
    coefficients, _ = user_parameters(single)
    assert_allclose(fit.directions, unit_columns(coefficients), atol=1e-8)
    stretch = np.linalg.norm(coefficients, axis=0) / single.scales
    expected = single.moment_coefficients(1) * stretch
    assert_allclose(moment_coefficients(fit), expected, rtol=1e-8)
    assert fit.weights is not None
    assert_array_equal(fit.weights, [1.0])


# --- samples -------------------------------------------------------------------------------------


def angle_tolerance(fit: MomentEstimate, n_features: int) -> FloatArray:
    """Angle that noise exceeds with probability 1e-6, in degrees.

    For orthogonal directions the error of u_j is E(u_j, u_j, .) / lambda_j across u_j. A row's S_3
    has variance 2 along (u, u, e) and 6 along (u, u, u), so that each of the d - 1 coordinates has
    1 / sqrt(3) of the standard error of lambda_j. Doubled, as the response varies with x.
    """
    noise = (
        np.sqrt(chi2.isf(1e-6, n_features - 1) / 3.0)
        / third_moment_diagnostics(fit).signal_to_noise
    )
    return np.asarray(2.0 * np.degrees(noise))


@pytest.mark.parametrize("method", ["power", "tensorly"])
@pytest.mark.parametrize("family", list(SAMPLED))
def test_recovery_from_samples(
    family: str, method: Literal["power", "tensorly"], seed: int
) -> None:
    data = sampled(family, seed)
    fit = fit_by_power(data, method=method)
    assert fit.status is Status.OK
    assert fit.warnings == ()
    angles = angles_in_degrees(fit.directions, data.directions, signed=True)
    index = match_components(fit.directions, data.directions, signed=True)
    tolerance = angle_tolerance(fit, 5)[index]
    assert np.all(angles < np.minimum(tolerance, 35.0))
    assert (fit.method, fit.family, fit.link) == (method, data.family, data.link)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_weights_from_samples_in_the_order_given(family: str, seed: int) -> None:
    """Fractions of about 2 % of the weights are noise at this n; 0.15 is far from a swap."""
    data = sampled(family, seed, weights=[0.75, 0.25])
    fit = fit_by_power(data, known_scales=data.scales, known_biases=data.biases)
    assert fit.weights is not None
    assert_allclose(fit.weights, [0.75, 0.25], atol=0.15)
    cosines = np.sum(fit.directions * data.directions, axis=0)
    assert np.all(cosines > 0.9)
    reverse = fit_by_power(data, known_scales=data.scales[::-1], known_biases=data.biases[::-1])
    assert reverse.weights is not None
    assert_allclose(reverse.weights, fit.weights[::-1], rtol=1e-10)


def test_a_single_component_from_samples(seed: int) -> None:
    """Error of M_1 across u: sqrt(var(y) (d - 1) / n) against |M_1|, quantile at 1e-6."""
    data = simulate_mixture(20_000, 4, 1, family="poisson", inputs="correlated", random_seed=seed)
    fit = power_estimate(data.X, data.y, 1, family="poisson", random_seed=1)
    assert fit.status is Status.OK
    L = np.linalg.cholesky(np.cov(data.X.T))
    standardised = angles_in_degrees(L.T @ fit.directions, L.T @ data.directions, signed=True)
    noise = np.sqrt(chi2.isf(1e-6, 3)) / third_moment_diagnostics(fit).signal_to_noise
    assert np.all(standardised < 2.0 * np.degrees(noise))
    assert standardised < 30.0


def test_a_single_component_with_known_scale_and_bias(seed: int) -> None:
    data = simulate_mixture(20_000, 3, 1, scales=2.0, biases=0.5, random_seed=seed)
    fit = power_estimate(data.X, data.y, 1, known_scales=2.0, known_biases=[0.5], random_seed=1)
    assert fit.coefficients is not None
    assert_array_equal(fit.coefficients, 2.0 * fit.directions)
    assert fit.weights is not None
    assert_array_equal(fit.weights, [1.0])
    assert fit.status is Status.OK


def test_many_columns_take_the_path_without_a_tensor(seed: int) -> None:
    """d = 24 > 20: slices, fibres and a small core; the explicit tensor has the same directions."""
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((24, 2)))[0]
    data = simulate_mixture(
        200_000, 24, 2, family="gaussian", directions=directions, scales=[1.2, 1.4],
        weights=[0.5, 0.5], dispersion=0.3, random_seed=seed,
    )  # fmt: skip
    fit = fit_by_power(data)
    angles = angles_in_degrees(fit.directions, data.directions, signed=True)
    assert np.all(angles < np.minimum(angle_tolerance(fit, 24).max(), 40.0))


def test_a_fitted_input_model_is_used_as_it_is(seed: int) -> None:
    """Rows without a response may fit it; one of another width is refused."""
    data = sampled("bernoulli", seed)
    unlabelled = np.random.default_rng(seed).standard_normal((50_000, 5))
    model = Gaussian().fit(unlabelled)
    fit = power_estimate(data.X, data.y, 2, input_model=model, random_seed=1)
    given = Gaussian(model.mean_, model.covariance_)
    expected = power_estimate(data.X, data.y, 2, input_model=given, random_seed=1)
    assert_allclose(fit.directions, expected.directions, atol=1e-8)
    own = power_estimate(data.X, data.y, 2, random_seed=1)
    assert np.abs(fit.directions - own.directions).max() > 1e-6
    with pytest.raises(ValueError, match=r"`input_model` must have as many features as `X` \(4\)"):
        power_estimate(data.X[:, :4], data.y, 2, input_model=model)


def test_correlated_inputs(seed: int) -> None:
    """Orthogonal after whitening, where the tolerance holds; estimated in the user's columns."""
    A = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(5), np.arange(5))))
    standard = sampled("bernoulli", seed)
    X = standard.X @ A.T + 2.0
    fit = power_estimate(X, standard.y, 2, random_seed=1)
    angles = angles_in_degrees(A.T @ fit.directions, standard.directions, signed=True)
    assert np.all(angles < np.minimum(angle_tolerance(fit, 5).max(), 35.0))
    known = power_estimate(
        X, standard.y, 2, input_model=Gaussian(np.full(5, 2.0), A @ A.T), random_seed=1
    )
    # The fitted covariance is off by sqrt(2 / n) = 0.4 %: a few times that in angle, 3 degrees.
    assert angles_in_degrees(known.directions, fit.directions, signed=True).max() < 3.0


# --- units and symmetries ------------------------------------------------------------------------


def test_units_do_not_matter(seed: int) -> None:
    """Columns times 1e8 and 1e-8, all moved by 1e6 of their deviations.

    The level costs six digits of the data: 1e-10 relative, amplified by the third moments' noise.
    """
    data = sampled("bernoulli", seed, n_obs=20_000)
    factors = np.array([1e8, 1e-8, 1.0, 1e3, 1e-3])
    plain = fit_by_power(data)
    moved = power_estimate(data.X * factors + 1e6 * factors, data.y, 2, random_seed=1)
    expected = unit_columns(plain.directions / factors[:, None])
    index = match_components(moved.directions * factors[:, None], plain.directions, signed=True)
    back = unit_columns(moved.directions * factors[:, None])[:, index]
    assert_allclose(back, plain.directions, atol=1e-6)
    assert_allclose(moved.directions[:, index], expected, atol=1e-6)
    ratios = third_moment_diagnostics(moved).signal_to_noise[index]
    assert_allclose(ratios, third_moment_diagnostics(plain).signal_to_noise, rtol=1e-6)


def test_the_unit_of_a_gaussian_response_does_not_matter(seed: int) -> None:
    data = sampled("gaussian", seed, n_obs=20_000)
    plain = fit_by_power(data)
    moved = power_estimate(data.X, 1e6 * data.y + 1e9, 2, family="gaussian", random_seed=1)
    assert_allclose(moved.directions, plain.directions, atol=1e-7)
    assert_allclose(moment_coefficients(moved), 1e18 * moment_coefficients(plain), rtol=1e-6)


def test_permuting_columns_permutes_directions(seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    order = np.array([3, 1, 4, 0, 2])
    plain, permuted = fit_by_power(data), power_estimate(data.X[:, order], data.y, 2, random_seed=1)
    index = match_components(permuted.directions, plain.directions[order], signed=True)
    assert_allclose(permuted.directions[:, index], plain.directions[order], atol=1e-6)


def test_permuting_rows_changes_rounding_only(seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    order = np.random.default_rng(seed).permutation(20_000)
    permuted = power_estimate(data.X[order], data.y[order], 2, random_seed=1)
    assert_allclose(permuted.directions, fit_by_power(data).directions, atol=1e-6)


def test_exchanging_successes_and_failures_turns_the_directions(seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    plain, turned = fit_by_power(data), power_estimate(data.X, 1.0 - data.y, 2, random_seed=1)
    assert_allclose(turned.directions, -plain.directions, atol=1e-6)


# --- weights, offsets, trials, groups ------------------------------------------------------------


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_integer_weights_are_repeated_rows(family: str, seed: int) -> None:
    data = sampled(family, seed, n_obs=20_000)
    counts = np.random.default_rng(seed).integers(0, 3, 20_000)
    weighted = fit_by_power(data, sample_weight=counts)
    rows = np.repeat(np.arange(20_000), counts)
    repeated = power_estimate(data.X[rows], data.y[rows], 2, family=family, random_seed=1)
    assert_allclose(weighted.directions, repeated.directions, atol=1e-6)
    assert_allclose(moment_coefficients(weighted), moment_coefficients(repeated), rtol=1e-6)


def test_a_weight_of_two_everywhere_changes_nothing(seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    plain, doubled = fit_by_power(data), fit_by_power(data, sample_weight=np.full(20_000, 2.0))
    assert_allclose(doubled.directions, plain.directions, atol=1e-8)
    ratios = third_moment_diagnostics(doubled).signal_to_noise
    assert_allclose(ratios, third_moment_diagnostics(plain).signal_to_noise, rtol=1e-8)


def test_an_identity_offset_is_subtracted(seed: int) -> None:
    data = sampled("gaussian", seed, n_obs=20_000)
    offset = 3.0 * data.X[:, 0] - 2.0
    moved = power_estimate(
        data.X, data.y + offset, 2, family="gaussian", offset=offset, random_seed=1
    )
    assert_allclose(moved.directions, fit_by_power(data).directions, atol=1e-7)


def test_a_log_offset_is_divided_out(seed: int) -> None:
    """Gamma responses of scale exp(offset): dividing gives back the plain data."""
    data = sampled("gamma", seed)
    offset = data.X[:, 0] + 1.0
    y = data.y * np.exp(offset)
    moved = power_estimate(data.X, y, 2, family="gamma", offset=offset, random_seed=1)
    assert_allclose(moved.directions, fit_by_power(data).directions, atol=1e-7)


def test_an_exposure_that_depends_on_the_inputs_is_recovered_from(seed: int) -> None:
    """Counts with mean exp(eta + offset); without the offset the directions would be wrong."""
    rng = np.random.default_rng(seed)
    data = sampled("poisson", seed)
    offset = 0.5 * data.X[:, 0] + 1.0
    eta = np.take_along_axis(data.X @ data.coefficients, data.labels[:, None], axis=1)[:, 0]
    y = rng.poisson(np.exp(eta + data.biases[data.labels] + offset))
    fit = power_estimate(data.X, y, 2, family="poisson", offset=offset, random_seed=1)
    angles = angles_in_degrees(fit.directions, data.directions, signed=True)
    assert np.all(angles < np.minimum(angle_tolerance(fit, 5).max(), 35.0))


def test_an_independent_logit_offset_is_accepted(seed: int) -> None:
    data = sampled("bernoulli", seed)
    offset = np.random.default_rng(seed).standard_normal(len(data.y))
    assert fit_by_power(data, offset=offset).status is Status.OK


def test_a_logit_offset_that_depends_on_the_inputs_warns(seed: int) -> None:
    data = sampled("bernoulli", seed)
    offset = 0.2 * data.X[:, 1]
    with pytest.warns(WeakSignalWarning, match="`offset` is correlated with `X`"):
        fit = fit_by_power(data, offset=offset)
    assert any("offset" in message for message in fit.warnings)


def test_trials_as_a_number_and_as_a_vector(seed: int) -> None:
    data = sampled("binomial", seed, n_obs=20_000)
    options: dict[str, Any] = {"family": "binomial", "random_seed": 1}
    number = power_estimate(data.X, data.y, 2, n_trials=5, **options)
    vector = power_estimate(data.X, data.y, 2, n_trials=np.full(20_000, 5), **options)
    assert_array_equal(number.directions, vector.directions)


def test_one_trial_is_bernoulli(seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    binomial = power_estimate(data.X, data.y, 2, family="binomial", n_trials=1, random_seed=1)
    assert_array_equal(binomial.directions, fit_by_power(data).directions)


def test_groups_do_not_change_the_moments(seed: int) -> None:
    data = sampled("bernoulli", seed, n_obs=20_000)
    grouped = fit_by_power(data, groups=np.arange(20_000) // 4)
    assert_array_equal(grouped.directions, fit_by_power(data).directions)


# --- weak signals --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_components", [1, 2, 3])
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_pure_noise_is_never_called_a_signal(family: str, n_components: int, seed: int) -> None:
    statuses = []
    for index in range(3 - n_components // 2):
        rng = np.random.default_rng([seed, index])
        X = rng.standard_normal((5000, 6))
        y = rng.integers(0, 2, 5000) if family == "bernoulli" else rng.standard_normal(5000)
        with pytest.warns(WeakSignalWarning, match="stand out from noise|cannot be told apart"):
            fit = power_estimate(X, y, n_components, family=family, random_seed=1)
        statuses.append(fit.status)
        assert len(fit.warnings) >= 1
        assert np.all(np.isfinite(fit.directions))
    assert Status.OK not in statuses
    assert n_components > 1 or set(statuses) == {Status.WEAK_SIGNAL}


def test_noise_of_many_seeds_gives_no_error() -> None:
    """Third moments of noise often have no definite slice: a status, never an exception."""
    for index in range(30):
        rng = np.random.default_rng(index)
        X, y = rng.standard_normal((2000, 3)), rng.integers(0, 2, 2000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakSignalWarning)
            fit = power_estimate(X, y, 2, random_seed=1)
        assert_allclose(np.linalg.norm(fit.directions, axis=0), 1.0, rtol=1e-8)


PARALLEL_SCALES = {"bernoulli": [3.0, 1.0, 2.0], "gaussian": [1.0, 0.5, 0.8]}


@pytest.mark.parametrize("n_components", [2, 3])
@pytest.mark.parametrize("family", list(PARALLEL_SCALES))
def test_parallel_components_are_not_ok(family: str, n_components: int, seed: int) -> None:
    """Two of the components share one direction, so that third moments hold one fewer."""
    for index in range(2):
        data = simulate_mixture(
            50_000,
            5,
            n_components,
            family=family,
            directions=np.eye(5)[:, [0, 0, 1][:n_components]],
            scales=PARALLEL_SCALES[family][:n_components],
            biases=[1.0, -1.0, 0.0][:n_components],
            weights=np.full(n_components, 1.0 / n_components),
            random_seed=[seed, index],
        )
        with pytest.warns(WeakSignalWarning, match="stand out from noise|cannot be told apart"):
            fit = power_estimate(data.X, data.y, n_components, family=family, random_seed=1)
        assert fit.status is not Status.OK


def test_parameters_that_contradict_the_data_warn(seed: int) -> None:
    data = sampled("bernoulli", seed)
    with pytest.warns(
        WeakSignalWarning, match="weights added up to .* before they were normalised"
    ):
        fit = fit_by_power(data, known_scales=0.5, known_biases=0.0)
    assert fit.weights is not None
    assert_allclose(fit.weights.sum(), 1.0, rtol=1e-12)
