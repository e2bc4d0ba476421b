"""Arguments beside the data: the number of components and the seed."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from moment_init.checks import make_generator, validate_n_components

N_OBS = 8


@pytest.mark.parametrize("n_components", [1, np.int64(3), N_OBS])
def test_number_of_components(n_components: Any) -> None:
    checked = validate_n_components(n_components, N_OBS)
    assert checked == n_components
    assert type(checked) is int


@pytest.mark.parametrize("n_components", [2.0, "2", None, True, np.True_, [2]])
def test_number_of_components_must_be_an_integer(n_components: Any) -> None:
    with pytest.raises(TypeError, match=r"`n_components` must be an integer; got .* of type"):
        validate_n_components(n_components, N_OBS)


@pytest.mark.parametrize("n_components", [0, -1, N_OBS + 1])
def test_number_of_components_must_be_in_range(n_components: int) -> None:
    match = rf"`n_components` must be between 1 and the number of rows \(8\); got {n_components}\."
    with pytest.raises(ValueError, match=match):
        validate_n_components(n_components, N_OBS)


def test_a_generator_is_used_as_it_is() -> None:
    rng = np.random.default_rng(1)
    assert make_generator(rng) is rng


@pytest.mark.parametrize("random_seed", [0, 5, [1, 2, 3], np.int64(4)])
def test_same_seed_same_draws(random_seed: Any) -> None:
    first, again = (make_generator(random_seed).standard_normal(5) for _ in range(2))
    assert_array_equal(first, again)


def test_no_seed_draws_anew() -> None:
    assert make_generator(None).integers(2**62) != make_generator(None).integers(2**62)


@pytest.mark.parametrize("random_seed", ["seed", -1, 1.5, [1, -2]])
def test_bad_seeds(random_seed: Any) -> None:
    with pytest.raises(ValueError, match=r"`random_seed` must be a non-negative integer, .* got"):
        make_generator(random_seed)
