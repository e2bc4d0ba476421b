"""The links: values, derivatives, behaviour far out."""

import pickle

import numpy as np
import pytest
from numpy.polynomial import hermite_e
from numpy.testing import assert_allclose
from scipy import special, stats

from moment_init.checks import FloatArray
from moment_init.families.links import LARGEST_LOG_MEAN, LINKS, bounded_exp

NAMES = ("logit", "probit", "log", "identity")
ETA = np.array([-6.3, -2.0, -0.7, 0.0, 0.4, 1.9, 5.1])
EXTREME = np.array([-1e6, -800.0, -45.0, 45.0, 800.0, 1e6])


def test_registry_is_complete_and_read_only() -> None:
    assert tuple(LINKS) == NAMES
    with pytest.raises(TypeError, match="does not support item assignment"):
        LINKS["cauchit"] = LINKS["logit"]  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_mean_inverts_link(name: str) -> None:
    link = LINKS[name]
    assert_allclose(link.link(link.mean(ETA)), ETA, rtol=1e-9, atol=1e-14)


def test_means_against_scipy() -> None:
    assert_allclose(LINKS["logit"].mean(ETA), stats.logistic.cdf(ETA), rtol=1e-14)
    assert_allclose(LINKS["probit"].mean(ETA), stats.norm.cdf(ETA), rtol=1e-14)
    assert_allclose(LINKS["log"].mean(ETA), np.exp(ETA), rtol=1e-14)
    assert_allclose(LINKS["identity"].mean(ETA), ETA, rtol=0)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_each_derivative_is_the_slope_of_the_one_before(name: str, order: int) -> None:
    """Five-point differences with h = 1e-3 are exact to h^4 times the fifth derivative: 1e-12."""
    link, h = LINKS[name], 1e-3
    near = link.derivative(ETA + h, order - 1) - link.derivative(ETA - h, order - 1)
    far = link.derivative(ETA + 2 * h, order - 1) - link.derivative(ETA - 2 * h, order - 1)
    slope = (8 * near - far) / (12 * h)
    assert_allclose(link.derivative(ETA, order), slope, rtol=1e-9, atol=3e-11)


def test_logit_derivatives_are_polynomials_in_the_probability() -> None:
    """Repeated use of p' = p - p^2: the coefficients are Stirling numbers with signs."""
    p = special.expit(ETA)
    polynomials = {
        1: p - p**2,
        2: p - 3 * p**2 + 2 * p**3,
        3: p - 7 * p**2 + 12 * p**3 - 6 * p**4,
        4: p - 15 * p**2 + 50 * p**3 - 60 * p**4 + 24 * p**5,
    }
    for order, expected in polynomials.items():
        assert_allclose(LINKS["logit"].derivative(ETA, order), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probit_derivatives_are_hermite_functions(order: int) -> None:
    coefficients = np.zeros(order)
    coefficients[-1] = (-1.0) ** (order - 1)
    expected = hermite_e.hermeval(ETA, coefficients) * stats.norm.pdf(ETA)
    assert_allclose(LINKS["probit"].derivative(ETA, order), expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_finite_far_out(name: str, order: int) -> None:
    assert np.all(np.isfinite(LINKS[name].derivative(EXTREME, order)))


def test_upper_tail_of_the_logit_keeps_its_relative_precision() -> None:
    """p' at +eta equals p' at -eta, exp(-eta) to first order; 1 - p would be zero at 45."""
    assert_allclose(LINKS["logit"].derivative(45.0, 1), np.exp(-45.0), rtol=1e-14)
    assert_allclose(LINKS["logit"].derivative(45.0, 3), np.exp(-45.0), rtol=1e-14)


@pytest.mark.parametrize("name", ["logit", "probit"])
def test_symmetric_links(name: str) -> None:
    link = LINKS[name]
    assert_allclose(link.mean(ETA) + link.mean(-ETA), 1.0, rtol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_sign_of_the_third_derivative(name: str) -> None:
    signs = np.unique(np.sign(LINKS[name].derivative(np.linspace(-5, 5, 101), 3)))
    expected = int(signs[0]) if signs.size == 1 and signs[0] != 0 else None
    assert LINKS[name].third_derivative_sign == expected


@pytest.mark.parametrize("name", ["log", "identity"])
def test_offset_is_removed_exactly(name: str) -> None:
    link, offset = LINKS[name], np.linspace(-1.0, 2.0, ETA.size)
    assert_allclose(link.remove_offset(link.mean(ETA + offset), offset), link.mean(ETA), rtol=1e-13)


@pytest.mark.parametrize("name", ["logit", "probit"])
def test_bounded_responses_keep_their_offset(name: str) -> None:
    y = np.array([0.0, 1.0, 0.25])
    assert_allclose(LINKS[name].remove_offset(y, np.array([1.0, 2.0, 3.0])), y, rtol=0)


def test_log_link_of_zero_is_minus_infinity() -> None:
    assert LINKS["log"].link(np.array([0.0]))[0] == -np.inf


@pytest.mark.parametrize("order", [-1, 5, 1.5])
def test_order_out_of_range(order: float) -> None:
    with pytest.raises(ValueError, match=r"`order` must be an integer from 0 to 4; got"):
        LINKS["logit"].derivative(0.0, order)  # type: ignore[arg-type]


def test_bounded_exp() -> None:
    values: FloatArray = bounded_exp(np.array([-1000.0, 1.5, 1000.0]))
    assert_allclose(values, [0.0, np.exp(1.5), np.exp(LARGEST_LOG_MEAN)], rtol=1e-15)
    assert np.isfinite(values[2] ** 2)


@pytest.mark.parametrize("name", NAMES)
def test_pickle_round_trip(name: str) -> None:
    assert pickle.loads(pickle.dumps(LINKS[name])) == LINKS[name]


def test_repr_is_short() -> None:
    assert repr(LINKS["log"]) == "Link(name='log', third_derivative_sign=1)"
