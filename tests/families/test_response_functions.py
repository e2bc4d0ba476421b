"""The functions T_k of the response: which they are, and that they are independent."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.checks import FloatArray
from moment_init.families.registry import FAMILIES, get_family


def response(name: str, seed: int, n_obs: int = 3000) -> FloatArray:
    rng, family = np.random.default_rng(seed), get_family(name)
    mean = family.link.mean(rng.normal(0.3, 0.6, n_obs))
    y = family.sample(mean, dispersion=family.typical_dispersion, n_trials=6, rng=rng)
    return family.moment_response(y, order=1, n_trials=6)


@pytest.mark.parametrize(
    ("name", "fewest", "most"),
    [
        ("bernoulli", 1, 1),
        ("binomial", 3, 5),
        ("poisson", 5, 8),
        ("negative_binomial", 5, 8),
        ("gaussian", 7, 8),
        ("gamma", 5, 7),
    ],
)
def test_response_functions_are_independent_columns(
    name: str, fewest: int, most: int, seed: int
) -> None:
    """Each column keeps a hundredth of itself beside the others before it, so whitening is safe."""
    y = response(name, seed)
    table = get_family(name).response_functions(y)
    assert table.shape[0] == y.size
    assert fewest <= table.shape[1] <= most
    centred = table - table.mean(axis=0)
    triangle = np.linalg.qr(centred / centred.std(axis=0), mode="r")
    assert np.abs(np.diag(triangle)).min() > 1e-2 * np.sqrt(y.size)


def test_gaussian_response_functions_by_name() -> None:
    y = np.array([-1.0, 0.5, 2.0, 4.5, 4.0, -3.0, 0.1, 0.9, 7.0, 2.2, -0.4])
    z = (y - y.mean()) / y.std()
    waves = [wave(frequency * z) for frequency in (1, 2, 4) for wave in (np.cos, np.sin)]
    expected = np.stack([z, z**2, *waves], axis=1)
    assert_allclose(get_family("gaussian").response_functions(y), expected, rtol=1e-12, atol=1e-14)


def test_poisson_response_functions_by_name(seed: int) -> None:
    y = response("poisson", seed)
    z = (np.log1p(y) - np.log1p(y).mean()) / np.log1p(y).std()
    table = get_family("poisson").response_functions(y)
    expected = np.stack([z, y == 0, z**2, np.tanh(z)], axis=1)
    assert_allclose(table[:, :4], expected, rtol=1e-12, atol=1e-14)


def test_gamma_response_functions_use_the_logarithm(seed: int) -> None:
    y = response("gamma", seed)
    z = (np.log(y) - np.log(y).mean()) / np.log(y).std()
    assert_allclose(get_family("gamma").response_functions(y)[:, 0], z, rtol=1e-12, atol=1e-14)


def test_binary_valued_responses_have_one_function() -> None:
    """All functions of a response with two values are linear in it, whatever the family."""
    y = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    for name in ("bernoulli", "binomial", "poisson", "gaussian"):
        assert get_family(name).response_functions(y).shape == (5, 1)
    assert get_family("poisson").response_functions(np.array([0.0, 1.0, 2.0] * 4)).shape == (12, 2)


def test_constant_response_has_no_function() -> None:
    assert get_family("gaussian").response_functions(np.full(7, 0.1)).shape == (7, 0)
    assert get_family("poisson").response_functions(np.full(7, 3.0)).shape == (7, 0)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_response_functions_on_blocks_equal_those_on_all_rows(name: str, seed: int) -> None:
    y, family = response(name, seed, n_obs=500), get_family(name)
    functions = family.fit_response_functions(y)
    blocks = np.concatenate([functions(y[:123]), functions(y[123:])])
    assert_allclose(blocks, family.response_functions(y), rtol=1e-14, atol=1e-14)
