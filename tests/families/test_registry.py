"""The families: densities, information, samplers, checks of the response, moment responses."""

import itertools
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats

from moment_init.checks import FloatArray
from moment_init.families.base import Family
from moment_init.families.registry import FAMILIES, family_of_response, get_family, parse_family
from moment_init.families.several import SeveralResponses, categorical


@dataclass(frozen=True)
class Case:
    """A family with parameters, and scipy's distribution at given means."""

    family: str
    link: str
    y: tuple[float, ...]
    dispersion: float | None = None
    n_trials: float | None = None

    @property
    def resolved(self) -> Family:
        return get_family(self.family, self.link)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"dispersion": self.dispersion, "n_trials": self.n_trials}

    def reference(self, mean: FloatArray) -> Any:
        if self.family == "bernoulli":
            return stats.bernoulli(mean)
        if self.family == "binomial":
            return stats.binom(self.n_trials, mean)
        if self.family == "poisson":
            return stats.poisson(mean)
        assert self.dispersion is not None
        if self.family == "negative_binomial":
            return stats.nbinom(self.dispersion, self.dispersion / (self.dispersion + mean))
        if self.family == "gaussian":
            return stats.norm(mean, self.dispersion)
        return stats.gamma(self.dispersion, scale=mean / self.dispersion)

    @property
    def is_discrete(self) -> bool:
        return self.family not in ("gaussian", "gamma")


CASES = [
    Case("bernoulli", "logit", (0, 1)),
    Case("bernoulli", "probit", (0, 1)),
    Case("binomial", "logit", (0, 3, 7), n_trials=7),
    Case("binomial", "probit", (0, 3, 7), n_trials=7),
    Case("poisson", "log", (0, 1, 4, 60)),
    Case("negative_binomial", "log", (0, 1, 4, 60), dispersion=1.7),
    Case("negative_binomial", "log", (0, 1, 4, 60), dispersion=320.0),
    Case("gaussian", "identity", (-1.3, 0.0, 2.5), dispersion=0.6),
    Case("gamma", "log", (0.02, 1.0, 6.5), dispersion=2.3),
    Case("gamma", "log", (0.5, 1.0, 2.5), dispersion=150.0),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.link}")
ETA = np.array([-2.2, -0.4, 0.0, 0.9, 2.1])


def grid(case: Case) -> tuple[FloatArray, FloatArray]:
    """Every response of the case against every eta, shapes (n_y, 1) and (n_y, n_eta)."""
    y = np.array(case.y, dtype=np.float64)[:, None]
    return y, np.broadcast_to(ETA, (y.size, ETA.size))


# --- densities -----------------------------------------------------------------------------------


@each_case
def test_log_density_equals_scipy(case: Case) -> None:
    y, eta = grid(case)
    mean = case.resolved.link.mean(eta)
    reference = case.reference(mean)
    expected = reference.logpmf(y) if case.is_discrete else reference.logpdf(y)
    from_mean = case.resolved.log_density(y, mean, **case.parameters)
    from_eta = case.resolved.log_density_eta(y, eta, **case.parameters)
    assert_allclose(from_mean, expected, rtol=1e-11, atol=1e-11)
    assert_allclose(from_eta, expected, rtol=1e-11, atol=1e-11)


@each_case
def test_density_has_total_mass_one(case: Case) -> None:
    for eta in ETA[:4]:
        total = _mass(case, float(eta))
        assert_allclose(total, 1.0, rtol=1e-9)


def _mass(case: Case, eta: float) -> float:
    def density(y: Any) -> Any:
        value = np.asarray(y, dtype=np.float64)
        return np.exp(case.resolved.log_density_eta(value, np.array(eta), **case.parameters))

    if case.is_discrete:
        limit = {"bernoulli": 1.0, "binomial": case.n_trials or 0.0}.get(case.family, 2000.0)
        return float(density(np.arange(limit + 1)).sum())
    reference = case.reference(case.resolved.link.mean(np.array(eta)))
    ends = reference.ppf([1e-13, 0.5, 1 - 1e-13])
    halves = [
        integrate.quad(density, low, high, epsabs=1e-12, epsrel=1e-11, limit=200)[0]
        for low, high in itertools.pairwise(ends)
    ]
    return float(sum(halves))


@each_case
def test_arguments_broadcast_over_components(case: Case) -> None:
    y, eta = grid(case)
    parameters = dict(case.parameters)
    if case.dispersion is not None:
        parameters["dispersion"] = np.linspace(0.5, 2.0, ETA.size) * case.dispersion
    if case.n_trials is not None:
        parameters["n_trials"] = np.full_like(y, case.n_trials)
    table = case.resolved.log_density_eta(y, eta, **parameters)
    assert table.shape == eta.shape
    alone = dict(case.parameters)
    if case.dispersion is not None:
        alone["dispersion"] = parameters["dispersion"][2]
    column = case.resolved.log_density_eta(y[:, 0], eta[:, 2], **alone)
    assert_allclose(table[:, 2], column, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("eta", [-800.0, 800.0])
def test_bernoulli_logit_far_out(eta: float) -> None:
    family = get_family("bernoulli")
    y = np.array([0.0, 1.0])
    expected = [-max(eta, 0.0), min(eta, 0.0)]
    assert_allclose(family.log_density_eta(y, np.full(2, eta)), expected, rtol=1e-15)
    derivatives = family.log_density_derivatives(y, np.full(2, eta))
    assert_allclose(derivatives.eta1, [-float(eta > 0), float(eta < 0)], rtol=1e-15)
    assert_allclose(derivatives.eta2, 0.0, atol=1e-300)


@each_case
@pytest.mark.parametrize("eta", [-800.0, -100.0, 100.0, 800.0])
def test_nothing_overflows_far_out(case: Case, eta: float) -> None:
    y = np.array(case.y, dtype=np.float64)
    etas = np.full(y.size, eta)
    derivatives = case.resolved.log_density_derivatives(y, etas, **case.parameters)
    assert all(np.isfinite(part).all() for part in derivatives if part is not None)
    assert np.all(derivatives.eta2 <= 0)


def test_poisson_far_down() -> None:
    """log p = y eta - exp(eta) - log y!, by hand: eta = -800 leaves -800 y - log y!."""
    value = get_family("poisson").log_density_eta(np.array([0.0, 2.0]), np.full(2, -800.0))
    assert_allclose(value, [0.0, -1600.0 - np.log(2.0)], rtol=1e-15)


def test_negative_binomial_far_out_by_hand() -> None:
    """As eta grows, p(0) = (alpha / (alpha + mu))^alpha, so log p = alpha (log alpha - eta)."""
    family = get_family("negative_binomial")
    value = family.log_density_eta(np.array([0.0]), np.array([800.0]), dispersion=1.7)
    assert_allclose(value, 1.7 * (np.log(1.7) - 800.0), rtol=1e-14)


def test_negative_binomial_with_huge_alpha_is_poisson() -> None:
    """The difference is ((y - mu)^2 - y) / (2 alpha) to first order."""
    y, eta, alpha = np.array([0.0, 3.0, 20.0]), np.array([0.2, 1.4, 2.8]), 1e8
    mean = np.exp(eta)
    first_order = ((y - mean) ** 2 - y) / (2 * alpha)
    value = get_family("negative_binomial").log_density_eta(y, eta, dispersion=alpha)
    poisson = get_family("poisson").log_density_eta(y, eta)
    assert_allclose(value - poisson, first_order, rtol=1e-4, atol=1e-13)


@pytest.mark.parametrize("name", ["negative_binomial", "gamma"])
def test_mean_that_underflowed_gives_a_finite_density(name: str) -> None:
    value = get_family(name).log_density(np.array([1.0]), np.array([0.0]), dispersion=2.0)
    assert np.all(np.isfinite(value))
    assert value[0] < -700


# --- information and sampling --------------------------------------------------------------------


def nodes_of(case: Case, means: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Quadrature of the response by scipy's distribution: all counts, or a Gauss-Hermite rule.

    A real response is a smooth function of its normal score.
    """
    # means: (n,) -> (n, n_nodes), (n, n_nodes)
    law = case.reference(means[:, None])
    if case.is_discrete:
        counts = np.broadcast_to(np.arange(2001.0), (len(means), 2001))
        return counts, law.pmf(counts)
    scores, weights = np.polynomial.hermite_e.hermegauss(48)
    lower = law.ppf(stats.norm.cdf(np.minimum(scores, 0.0)))
    upper = law.isf(stats.norm.cdf(-np.maximum(scores, 0.0)))
    nodes = np.where(scores < 0.0, lower, upper)
    return nodes, np.broadcast_to(weights / weights.sum(), nodes.shape)


@each_case
def test_information_is_squared_slope_over_variance(case: Case) -> None:
    """The mean score is zero; the mean of -eta2 and that of eta1**2 are the information."""
    family, eta = case.resolved, ETA[:, None]
    nodes, weights = nodes_of(case, family.link.mean(ETA))
    parts = family.log_density_derivatives(nodes, eta, **case.parameters)
    slope = family.link.derivative(ETA, 1) * (case.n_trials or 1.0)
    information = slope**2 / case.reference(family.link.mean(ETA)).var()
    mean_score = (weights * parts.eta1).sum(axis=1)
    assert_allclose(mean_score / np.sqrt(information), 0.0, atol=1e-6)
    assert_allclose((weights * -parts.eta2).sum(axis=1), information, rtol=1e-6)
    assert_allclose((weights * parts.eta1**2).sum(axis=1), information, rtol=1e-5)


@each_case
def test_samples_have_mean_and_variance(case: Case, seed: int) -> None:
    """Five standard errors: a false failure in one of 1.7 million comparisons."""
    n_draws, family = 100_000, case.resolved
    mean = family.link.mean(np.full(n_draws, 0.4))
    draws = family.sample(mean, **case.parameters, rng=np.random.default_rng(seed))
    assert draws.shape == (n_draws,)
    assert draws.dtype == np.float64
    family.validate_response(draws, case.n_trials)
    center, variance, _, kurtosis = case.reference(mean[:1]).stats("mvsk")
    assert abs(draws.mean() - center) < 5 * np.sqrt(variance / n_draws)
    error_of_variance = variance * np.sqrt((kurtosis + 2) / n_draws)
    assert abs(draws.var() - variance) < 5 * error_of_variance


@each_case
def test_same_seed_same_sample(case: Case, seed: int) -> None:
    mean = case.resolved.link.mean(np.linspace(-1, 1, 50))
    first, again, other = (
        case.resolved.sample(mean, **case.parameters, rng=np.random.default_rng(number))
        for number in (seed, seed, seed + 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_gamma_samples_stay_positive(seed: int) -> None:
    """At shape 1e-3 a draw underflows to zero about every other time."""
    family = get_family("gamma")
    draws = family.sample(np.ones(1000), dispersion=1e-3, rng=np.random.default_rng(seed))
    family.validate_response(draws)


@pytest.mark.parametrize(
    ("name", "argument"),
    [("gaussian", "dispersion"), ("gamma", "dispersion"), ("binomial", "n_trials")],
)
def test_missing_parameter(name: str, argument: str) -> None:
    with pytest.raises(ValueError, match=f"`{argument}` is needed for family '{name}'; got None"):
        get_family(name).log_density_eta(np.array([1.0]), np.array([0.5]))


# --- validation of the response ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "y", "n_trials", "message"),
    [
        ("bernoulli", [0, 1, 2], None, r"`y` must hold only 0 and 1 .* got 2 in row 2\. Recode it"),
        ("bernoulli", [0.5, 1], None, r"`y` must hold only 0 and 1 .* got 0\.5 in row 0"),
        ("poisson", [3, -1], None, r"`y` must hold whole numbers, 0 or more, .* got -1 in row 1"),
        ("poisson", [3, 1.5], None, r"`y` must hold whole numbers.*'poisson'; got 1\.5 in row 1"),
        ("negative_binomial", [-2], None, r"'negative_binomial'; got -2 in row 0\. Correct"),
        ("negative_binomial", [0.1], None, r"'negative_binomial'; got 0\.1 in row 0.*offset"),
        ("poisson", [np.inf], None, r"`y` must hold whole numbers.*got inf in row 0"),
        ("gamma", [1.0, 0.0], None, r"`y` must hold finite numbers above 0.*got 0 in row 1\. Rem"),
        ("gamma", [-0.5], None, r"`y` must hold finite numbers above 0.*got -0\.5 in row 0"),
        ("gaussian", [0.0, np.inf], None, r"`y` must hold finite numbers .* got inf in row 1"),
        ("binomial", [1, 2], None, r"`n_trials` is needed for family 'binomial'; got None"),
        ("binomial", [1, 5], [3, 4], r"`y` must not exceed `n_trials` .* got 5 in row 1\. Correct"),
        ("binomial", [1, 5], 4, r"`y` must not exceed `n_trials` .* got 5 in row 1"),
        ("binomial", [-1, 2], [3, 4], r"`y` must hold whole numbers of successes.*got -1 in row 0"),
        ("binomial", [0.5, 2], [3, 4], r"`y` must hold whole numbers .* got 0\.5 in row 0\. Give"),
        ("binomial", [0, 2], [0, 4], r"`n_trials` must hold whole numbers, 1 or more; got 0 in ro"),
        ("binomial", [0, 2], [2.5, 4], r"`n_trials` must hold whole numbers.* got 2\.5 in row 0"),
        ("binomial", [0, 2], [2, 4, 5], r"`n_trials` must be one number or have the shape of `y`"),
        ("poisson", [0, 2], [2, 4], r"`n_trials` has no meaning for family 'poisson'.*Leave it"),
    ],
)
def test_impossible_responses(name: str, y: list[float], n_trials: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_family(name).validate_response(y, n_trials)


@each_case
def test_possible_responses_pass(case: Case) -> None:
    case.resolved.validate_response(np.array(case.y), case.n_trials)


def test_boolean_and_integer_responses_pass() -> None:
    get_family("bernoulli").validate_response(np.array([True, False]))
    get_family("binomial").validate_response(np.array([0, 3]), np.array([1, 3]))
    get_family("poisson").validate_response(np.array([0, 3], dtype=np.uint8))


# --- responses for the moments -------------------------------------------------------------------


def test_moment_response_of_each_kind() -> None:
    y, offset = np.array([1.0, 2.0, 6.0]), np.array([0.0, np.log(2.0), -1.0])
    poisson, gaussian = get_family("poisson"), get_family("gaussian")
    expected = np.array([1.0, 1.0, 6.0 * np.e])
    assert_allclose(poisson.moment_response(y, order=3, offset=offset), expected, rtol=1e-14)
    assert_allclose(poisson.moment_response(y, order=3), y, rtol=0)
    assert_allclose(
        gaussian.moment_response(y, order=3, offset=offset), (y - offset) ** 3, rtol=1e-14
    )
    assert_allclose(gaussian.moment_response(y, order=1), y, rtol=0)
    proportion = get_family("binomial").moment_response(
        y, order=2, offset=offset, n_trials=np.array([2.0, 4.0, 8.0])
    )
    assert_allclose(proportion, [0.5, 0.5, 0.75], rtol=0)


def test_moment_response_is_a_copy() -> None:
    y = np.array([0.0, 1.0])
    get_family("bernoulli").moment_response(y, order=1)[0] = 5.0
    assert y[0] == 0.0


# --- the registry --------------------------------------------------------------------------------


def test_registry() -> None:
    expected = {
        "bernoulli": ("logit", "probit"),
        "binomial": ("logit", "probit"),
        "poisson": ("log",),
        "negative_binomial": ("log",),
        "gaussian": ("identity",),
        "gamma": ("log",),
    }
    assert {name: family.supported_links for name, family in FAMILIES.items()} == expected
    with_dispersion = {name for name, family in FAMILIES.items() if family.has_dispersion}
    assert with_dispersion == {"negative_binomial", "gaussian", "gamma"}
    assert [name for name, family in FAMILIES.items() if family.has_trials] == ["binomial"]
    assert [name for name, family in FAMILIES.items() if family.response_power] == ["gaussian"]


def test_get_family() -> None:
    probit = get_family("bernoulli", "probit")
    assert (probit.name, probit.link.name) == ("bernoulli", "probit")
    assert get_family("bernoulli").link.name == "logit"
    assert get_family(probit) is probit
    assert get_family(probit, "logit") == get_family("bernoulli")


def test_get_family_errors() -> None:
    with pytest.raises(ValueError, match=r"`family` must be one of 'bernoulli', .*; got 'normal'"):
        get_family("normal")
    with pytest.raises(ValueError, match=r"`link` must be one of 'log' for family 'poisson'; got"):
        get_family("poisson", "identity")
    with pytest.raises(TypeError, match=r"`family` must be a string or a Family; got int"):
        get_family(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`link` must be a string or None; got int"):
        get_family("poisson", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_pickle_round_trip(name: str) -> None:
    assert pickle.loads(pickle.dumps(FAMILIES[name])) == FAMILIES[name]


@pytest.mark.parametrize(
    ("y", "arguments", "expected"),
    [
        ([0.0, 1.0, 1.0], {}, "bernoulli"),
        ([0.0, 1.0, 2.0], {}, "poisson"),
        ([0.0, 1.0, 2.0], {"has_trials": True}, "binomial"),
        ([0.0, 1.0, 1.0], {"link": "log"}, "poisson"),
        ([0.5, 1.0], {}, "gaussian"),
        ([-1.0, 1.0], {}, "gaussian"),
        ([0.5, 1.0], {"link": "log"}, "gamma"),
        ([-0.5, 1.0], {"link": "log"}, "bernoulli"),  # none is possible: the default complains
    ],
)
def test_values_choose_a_family(y: list[float], arguments: dict[str, Any], expected: str) -> None:
    assert family_of_response(np.array(y), **arguments) == expected


def test_families_are_rebuilt_from_their_names() -> None:
    several = SeveralResponses((get_family("gaussian"), get_family("bernoulli", "probit")))
    assert parse_family(several.name, several.link_name) == several
    same = SeveralResponses((get_family("poisson"),) * 3)
    assert parse_family(same.name, same.link_name, n_responses=3) == same
    links = SeveralResponses((get_family("bernoulli"), get_family("bernoulli", "probit")))
    assert parse_family(links.name, links.link_name, n_responses=2) == links
    assert parse_family("gamma", None) == get_family("gamma")
    assert parse_family("categorical", "softmax", n_classes=4) == categorical(4)
    with pytest.raises(ValueError, match="`n_classes` is needed for family 'categorical'"):
        parse_family("categorical", "softmax")
