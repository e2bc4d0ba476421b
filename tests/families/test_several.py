"""Families of several responses and of classes."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from moment_init.families.registry import get_family
from moment_init.families.several import SeveralResponses, categorical, join_families

POISSON, GAUSSIAN, BINOMIAL = (get_family(name) for name in ("poisson", "gaussian", "binomial"))
MIXED = SeveralResponses((POISSON, GAUSSIAN, BINOMIAL))


def test_one_family_is_joined_to_itself() -> None:
    assert join_families((POISSON,)) is POISSON
    assert join_families((POISSON, GAUSSIAN)) == SeveralResponses((POISSON, GAUSSIAN))


def test_names_are_joined_unless_they_are_the_same() -> None:
    assert (MIXED.name, MIXED.link_name) == (
        "poisson, gaussian, binomial",
        "log, identity, logit",
    )
    twice = SeveralResponses((POISSON, POISSON))
    assert (twice.name, twice.link_name) == ("poisson", "log")


def test_several_responses_have_what_any_or_all_of_them_have() -> None:
    assert MIXED.n_predictors == 3
    assert MIXED.predictor_families == MIXED.members == (POISSON, GAUSSIAN, BINOMIAL)
    assert MIXED.has_dispersion
    assert MIXED.has_trials
    assert MIXED.is_unbounded
    assert not MIXED.has_joint_predictors
    counts = SeveralResponses((POISSON, get_family("negative_binomial")))
    assert counts.has_unlimited_counts
    assert not MIXED.has_unlimited_counts
    assert not counts.is_unbounded
    real = SeveralResponses((GAUSSIAN, GAUSSIAN))
    assert real.response_power
    assert real.has_closed_deviation
    assert not MIXED.response_power
    assert not MIXED.has_closed_deviation
    binary = SeveralResponses((get_family("bernoulli"),) * 2)
    assert binary.has_binary_rows
    assert not MIXED.has_binary_rows
    assert not binary.has_dispersion
    assert not binary.has_trials


def test_means_of_several_responses(rng: np.random.Generator) -> None:
    eta = rng.standard_normal((3, 4, 2))
    expected = [np.exp(eta[0]), eta[1], special.expit(eta[2])]
    assert_allclose(MIXED.means(eta), expected, rtol=1e-14)


def test_classes_have_a_predictor_each_but_the_first() -> None:
    family = categorical(4)
    assert (family.name, family.link_name, family.n_predictors) == ("categorical", "softmax", 3)
    assert family.members == (family,)
    assert family.predictor_families == (family,) * 3
    assert family.has_joint_predictors
    assert not family.has_dispersion
    assert not family.kernel_has_ratio
    assert pickle.loads(pickle.dumps(family)).n_classes == 4


def test_link_of_classes_is_that_of_the_odds() -> None:
    """There is no mean of one predictor alone; codes are left as they are."""
    link = categorical(3).link
    assert_allclose(link.link(link.mean(np.array([-1.0, 0.0, 2.0]))), [-1.0, 0.0, 2.0], atol=1e-15)
    assert_array_equal(link.remove_offset(np.array([0.0, 2.0]), np.ones(2)), [0.0, 2.0])


def test_probabilities_of_classes(rng: np.random.Generator) -> None:
    eta = rng.standard_normal((3, 5))
    eta[:, 0] = 1000.0, 999.0, -1000.0
    means = categorical(4).means(eta)
    assert_allclose(means, special.softmax(np.vstack([np.zeros(5), eta]), axis=0), rtol=1e-14)
    assert_allclose(means.sum(axis=0), 1.0, rtol=1e-15)


def test_classes_are_drawn_with_their_probabilities(rng: np.random.Generator) -> None:
    """Within 5 standard errors of 50,000 draws: false failures below 6e-7 a class."""
    n, family = 50_000, categorical(4)
    p = np.array([0.1, 0.2, 0.3, 0.4])
    draws = family.sample(np.repeat(p[:, None], n, axis=1), rng=rng)
    family.validate_response(draws)
    shares = np.bincount(draws.astype(np.intp), minlength=4) / n
    assert np.all(np.abs(shares - p) < 5 * np.sqrt(p * (1 - p) / n))


def test_codes_are_their_own_numbers() -> None:
    base, numbers = categorical(3).prepare_rows([0, 2, 1])
    assert_array_equal(base, np.zeros(3))
    assert_array_equal(numbers, [0, 2, 1])


@pytest.mark.parametrize("y", [[0, 3], [0, 0.5], [-1, 0]])
def test_impossible_codes(y: list[float]) -> None:
    with pytest.raises(ValueError, match=r"`y` must hold codes from 0 to 2 .* Give labels"):
        categorical(3).validate_response(y)
