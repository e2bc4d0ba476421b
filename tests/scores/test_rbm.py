"""Scores of Gaussian-Bernoulli restricted Boltzmann machines, and score matching."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime

from moment_init.scores import RBM, GaussianMixture, stein_check
from moment_init.scores.rbm import score_matching_loss
from tests.population import FloatArray
from tests.scores.oracles import assert_contractions, assert_moments, assert_recursion

WEIGHTS = np.array([[2.0, -0.5], [0.5, 2.5], [-1.0, 0.5]])
VISIBLE = np.array([-0.5, 0.3, 0.2])
HIDDEN = np.array([-0.5, -1.0])
PRECISION = np.array([1.0, 1.5, 0.8])


def known() -> RBM:
    return RBM(weights=WEIGHTS, visible_bias=VISIBLE, hidden_bias=HIDDEN, precision=PRECISION)


def as_mixture() -> GaussianMixture:
    """Given the hidden units the inputs are Gaussian: the machine is a mixture of four."""
    states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
    fields = VISIBLE + states @ WEIGHTS.T
    logs = states @ HIDDEN + 0.5 * np.square(fields) @ (1.0 / PRECISION)
    shares = np.exp(logs - logs.max())
    covariances = np.broadcast_to(np.diag(1.0 / PRECISION), (4, 3, 3))
    return GaussianMixture(
        weights=shares / shares.sum(), means=fields / PRECISION, covariances=covariances
    )


def draw(rng: np.random.Generator, n_obs: int) -> FloatArray:
    mixture = as_mixture()
    mixture.require_n_features(3)
    labels = rng.choice(4, n_obs, p=mixture.weights_)
    return mixture.means_[labels] + rng.standard_normal((n_obs, 3)) / np.sqrt(PRECISION)


def test_scores_are_those_of_the_papers_recursion(rng: np.random.Generator) -> None:
    assert_recursion(known(), draw(rng, 3), rng)


def test_contractions(rng: np.random.Generator) -> None:
    assert_contractions(known(), draw(rng, 40), rng)


def test_a_machine_is_a_mixture_of_its_hidden_states(rng: np.random.Generator) -> None:
    X = draw(rng, 20)
    assert_allclose(known().log_density(X), as_mixture().log_density(X), rtol=1e-10)
    for order in (1, 2, 3):
        expected = as_mixture().score(X, order)
        actual = known().score(X, order)
        assert_allclose(actual, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_moments_are_those_of_draws(rng: np.random.Generator) -> None:
    assert_moments(known(), draw(rng, 50_000))


def test_gradient_of_the_loss(rng: np.random.Generator) -> None:
    rows, weights = rng.standard_normal((30, 3)), rng.uniform(0.5, 2.0, 30)
    vector = rng.standard_normal(3 * 2 + 3 + 2 + 3)
    _, gradient = score_matching_loss(vector, rows, weights, 2)
    expected = approx_fprime(vector, lambda v: score_matching_loss(v, rows, weights, 2)[0], 1e-6)
    assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


def test_loss_is_score_matching(rng: np.random.Generator) -> None:
    """J = E[|s|^2 / 2 + tr H], and H = S_2 - s s'."""
    X = draw(rng, 30)
    vector = np.concatenate([WEIGHTS.ravel(), VISIBLE, HIDDEN, np.log(PRECISION)])
    first, second = known().score(X, 1), known().score(X, 2)
    squares = np.square(first).sum(axis=1)
    expected = np.mean(0.5 * squares + np.einsum("nii->n", second) - squares)
    assert_allclose(score_matching_loss(vector, X, np.ones(30), 2)[0], expected, rtol=1e-12)


def test_fit_recovers_the_scores(rng: np.random.Generator) -> None:
    """Score matching is consistent: E |s - fitted s|^2 below 5 % of E |s|^2.

    Fourteen parameters of 10,000 rows; their squared error is a share of about 14 / 10,000 times
    the inverse efficiency of score matching, a few.
    """
    X = draw(rng, 10_000)
    model = RBM(2, random_seed=0).fit(X)
    held = draw(rng, 2_000)
    true, fitted = known().score(held, 1), model.score(held, 1)
    assert np.mean(np.square(true - fitted)) < 0.05 * np.mean(np.square(true))
    assert np.mean(known().log_density(held) - model.log_density(held)) < 0.02
    assert stein_check(model, held, random_seed=0).status == "passed"
    assert repr(model) == "RBM(n_hidden=2)"


def test_number_of_units_is_chosen_on_held_out_rows(rng: np.random.Generator) -> None:
    model = RBM(random_seed=0).fit(draw(rng, 1_500))
    assert set(model.losses_) == {1, 2, 4, 8}
    assert len(model.hidden_bias_) == min(model.losses_, key=lambda number: model.losses_[number])
    assert model.losses_[2] < model.losses_[1]


def test_many_units_have_no_constant(rng: np.random.Generator) -> None:
    model = RBM(17, random_seed=0).fit(draw(rng, 200))
    assert not model.is_normalised
    assert known().fit(draw(rng, 20)).is_normalised
    assert np.all(np.isfinite(model.log_density(draw(rng, 10))))


def test_same_seed_same_bits(rng: np.random.Generator) -> None:
    X = draw(rng, 300)
    first, second = (RBM(1, random_seed=3).fit(X).weights_ for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"weights": VISIBLE}, r"`weights` must have shape \(n_features, n_hidden\)"),
        ({"visible_bias": HIDDEN}, r"`visible_bias` must have shape \(3,\)"),
        ({"hidden_bias": VISIBLE}, r"`hidden_bias` must have shape \(2,\)"),
        ({"precision": -PRECISION}, "`precision` must be positive"),
        ({"hidden_bias": None}, r"RBM\(\) must be fitted before its scores are used"),
        (
            {"weights": np.ones((3, 17)), "hidden_bias": np.ones(17)},
            "`weights` must have at most 16 columns",
        ),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], match: str) -> None:
    given: dict[str, Any] = {
        "weights": WEIGHTS,
        "visible_bias": VISIBLE,
        "hidden_bias": HIDDEN,
        "precision": PRECISION,
    }
    with pytest.raises(ValueError, match=match):
        RBM(**(given | parameters)).score(WEIGHTS.T, 1)


def test_bad_number(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="`n_hidden` must be a whole number from 1 upwards; got 0"):
        RBM(0).fit(draw(rng, 20))
    assert repr(RBM()) == "RBM()"
