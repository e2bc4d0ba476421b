"""Expectations of derivatives of g under a Gaussian linear predictor."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from moment_init.checks import FloatArray
from moment_init.families.links import LINKS, expected_derivative, moment_coefficient
from moment_init.families.registry import FAMILIES, get_family

SCALES = np.array([0.0, 1e-4, 0.3, 0.999, 1.0, 1.001, 2.5, 8.0, 30.0])
BIASES = np.array([-12.0, -1.3, 0.0, 0.4, 3.0, 40.0])


def brute_force(link: str, order: int, scale: float, bias: float) -> float:
    """A sum over 20,001 points: at scale 30 the spacing in eta is 0.036, far below pi."""
    z = np.linspace(-12.0, 12.0, 20_001)
    density = np.exp(-(z**2) / 2)
    return float(LINKS[link].derivative(scale * z + bias, order) @ density / density.sum())


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("link", ["logit", "probit"])
def test_bounded_links_against_brute_force(link: str, order: int) -> None:
    found = expected_derivative(LINKS[link], order, SCALES[:, None], BIASES)
    expected = [[brute_force(link, order, s, b) for b in BIASES] for s in SCALES]
    assert found.shape == (SCALES.size, BIASES.size)
    assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_against_monte_carlo(name: str, order: int, seed: int) -> None:
    """Five standard errors, at a point where no derivative is symmetric or zero."""
    family, scale, bias = get_family(name), 0.8, -0.6
    draws = np.random.default_rng(seed).standard_normal(200_000)
    values = family.link.derivative(scale * draws + bias, order)
    error = max(values.std() / np.sqrt(values.size), 1e-15)
    found = expected_derivative(family, order, scale, bias)
    assert abs(values.mean() - found) < 5 * error


def test_probit_closed_form() -> None:
    """E[Phi(sz + b)] = Phi(b/c) with c^2 = 1 + s^2, and its first two derivatives in b."""
    s, b = SCALES[:, None], BIASES
    c = np.sqrt(1 + s**2)
    closed: list[FloatArray] = [
        stats.norm.cdf(b / c),
        stats.norm.pdf(b / c) / c,
        -(b / c) * stats.norm.pdf(b / c) / c**2,
        ((b / c) ** 2 - 1) * stats.norm.pdf(b / c) / c**3,
    ]
    for order, expected in enumerate(closed):
        found = expected_derivative(LINKS["probit"], order, s, b)
        assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("order", range(5))
def test_log_link_is_the_mean_of_a_lognormal(order: int) -> None:
    s, b = np.array([0.0, 0.5, 2.0, 30.0]), np.array([0.3, -1.0, 0.7, 2.0])
    expected = stats.lognorm.mean(s[1:3], scale=np.exp(b[1:3]))
    found = expected_derivative(LINKS["log"], order, s, b)
    assert_allclose(found[1:3], expected, rtol=1e-10)
    assert_allclose(found[[0, 3]], [np.exp(0.3), np.exp(452.0)], rtol=1e-10)
    # Even times the power of the scale, as in a moment.
    assert np.isfinite(1e3**order * expected_derivative(LINKS["log"], order, 1e3, 0.0))


def test_identity_link() -> None:
    for order, expected in enumerate([-1.5, 1.0, 0.0, 0.0, 0.0]):
        assert expected_derivative(LINKS["identity"], order, 3.0, -1.5) == expected


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("link", list(LINKS))
def test_scale_zero_is_the_derivative_itself(link: str, order: int) -> None:
    biases = np.array([-3.0, 0.2, 1.7])
    found = expected_derivative(LINKS[link], order, 0.0, biases)
    assert_allclose(found, LINKS[link].derivative(biases, order), rtol=1e-10, atol=1e-14)


def test_logit_at_a_small_scale_by_taylor_expansion() -> None:
    """E[g'(sz + b)] = g'(b) + s^2 g'''(b) / 2 + O(s^4); the remainder at s = 0.01 is 1e-9."""
    link, s, b = LINKS["logit"], 0.01, 0.7
    expected = link.derivative(b, 1) + s**2 * link.derivative(b, 3) / 2
    assert_allclose(expected_derivative(link, 1, s, b), expected, rtol=0, atol=3e-9)


def test_logit_at_a_huge_scale() -> None:
    """At scale s the logistic function is a step: the mean is Phi(b/s), the slope phi(b/s)/s."""
    s, b = 1e5, 4e4
    mean = expected_derivative(LINKS["logit"], 0, s, b)
    slope = expected_derivative(LINKS["logit"], 1, s, b)
    assert_allclose(mean, stats.norm.cdf(b / s), rtol=1e-9)
    assert_allclose(slope, stats.norm.pdf(b / s) / s, rtol=1e-9)


@pytest.mark.parametrize("order", range(5))
def test_symmetry_in_the_bias(order: int) -> None:
    """g(-eta) = 1 - g(eta) makes odd derivatives even in the bias and even ones odd."""
    found = expected_derivative(LINKS["logit"], order, SCALES, 1.1)
    mirrored = expected_derivative(LINKS["logit"], order, SCALES, -1.1)
    expected = 1 - mirrored if order == 0 else (-1.0) ** (order - 1) * mirrored
    assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_the_two_rules_of_the_logit_agree_where_they_meet() -> None:
    at = expected_derivative(LINKS["logit"], 3, 1.0, BIASES)
    above = expected_derivative(LINKS["logit"], 3, np.nextafter(1.0, 2.0), BIASES)
    assert_allclose(at, above, rtol=0, atol=1e-14)


def test_shapes_broadcast() -> None:
    assert expected_derivative(LINKS["logit"], 1, 2.0, 0.3).shape == ()
    assert expected_derivative(LINKS["logit"], 1, [0.5, 2.0], 0.3).shape == (2,)
    assert expected_derivative(LINKS["log"], 1, [[0.5], [2.0]], [0.3, 0.1, 0.0]).shape == (2, 3)


@pytest.mark.parametrize("order", [-1, 5])
def test_order_out_of_range(order: int) -> None:
    with pytest.raises(ValueError, match=r"`order` must be an integer from 0 to 4; got"):
        expected_derivative(LINKS["logit"], order, 1.0, 0.0)


@pytest.mark.parametrize(("order", "expected"), [(1, 1.0), (2, 2.0), (3, 6.0), (4, 24.0)])
def test_moment_coefficient_of_the_identity_link(order: int, expected: float) -> None:
    found = moment_coefficient(get_family("gaussian"), order, [0.5, 2.0], [1.0, -3.0])
    assert_allclose(found, [expected, expected], rtol=0)


@pytest.mark.parametrize("name", ["bernoulli", "binomial", "poisson", "negative_binomial", "gamma"])
def test_moment_coefficient_of_the_other_links(name: str) -> None:
    family, s, b = get_family(name), [0.5, 2.0], [1.0, -3.0]
    for order in (1, 2, 3):
        expected = expected_derivative(family, order, s, b)
        assert_allclose(moment_coefficient(family, order, s, b), expected, rtol=0)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_moment_has_this_coefficient(name: str, order: int, seed: int) -> None:
    """E[T(y) He_m(x)] = s^m rho in one dimension, from simulated responses: five errors.

    The Hermite polynomial is the score of order m of the standard normal.
    """
    rng, family, s, b = np.random.default_rng(seed), get_family(name), 0.7, -0.4
    x = rng.standard_normal(400_000)
    mean = family.link.mean(s * x + b)
    y = family.sample(mean, dispersion=family.typical_dispersion, n_trials=5, rng=rng)
    hermite = (x, x**2 - 1, x**3 - 3 * x)[order - 1]
    products = family.moment_response(y, order=order, n_trials=5) * hermite
    error = products.std() / np.sqrt(x.size)
    expected = s**order * moment_coefficient(family, order, s, b)
    assert abs(products.mean() - expected) < 5 * error
