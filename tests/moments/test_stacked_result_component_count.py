"""The number of components: what is chosen, what is compared, and what cannot be asked for."""

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import moment_init.moments.stacked_result
from moment_init import MomentEstimate, Status, WeakSignalWarning, estimate, simulate_mixture
from moment_init.data.simulation import MixtureData
from moment_init.moments.subspace import LowOrders


def three_planes(seed: int) -> MixtureData:
    return simulate_mixture(
        6000, 5, 3, family="gaussian", directions=np.eye(5)[:, :3], scales=[1.0, 1.3, 0.8],
        biases=[0.5, -0.5, 0.0], weights=[0.45, 0.35, 0.2], dispersion=0.3, random_seed=seed,
    )  # fmt: skip


def two_logits(seed: int) -> MixtureData:
    return simulate_mixture(
        20_000, 4, 2, family="bernoulli", directions=np.eye(4)[:, :2], scales=[3.0, 2.5],
        biases=[0.5, -0.5], weights=[0.6, 0.4], random_seed=seed,
    )  # fmt: skip


def choose(data: MixtureData, **options: Any) -> MomentEstimate:
    return estimate(
        data.X, data.y, "auto", family=data.family, n_trials=data.n_trials, random_seed=1, **options
    )


def n_parameters(n_components: int, n_features: int, *, has_dispersion: bool) -> int:
    """Slopes, bias and dispersion of each component, and all weights but one."""
    return n_components * (n_features + 1 + has_dispersion) + n_components - 1


@pytest.mark.parametrize(("make", "number"), [(three_planes, 3), (two_logits, 2)])
def test_the_right_number_is_chosen(make: Any, number: int, seed: int) -> None:
    data = make(seed)
    fit = choose(data)
    assert fit.status is Status.OK
    assert fit.n_components == number
    assert fit.selection is not None
    assert 1 <= fit.selection.n_visible <= number
    assert number in fit.selection.n_components
    assert number + 1 in fit.selection.n_components


def test_a_single_component_is_found(seed: int) -> None:
    data = simulate_mixture(5000, 4, 1, family="poisson", random_seed=seed)
    fit = choose(data)
    assert fit.n_components == 1
    assert fit.weights is not None
    assert_allclose(fit.weights, [1.0])


def test_the_table_shows_what_was_compared(seed: int) -> None:
    """BIC is -2 log L + k log n; more components never fit worse; the smallest BIC is chosen."""
    data = three_planes(seed)
    fit = choose(data)
    table = fit.selection
    assert table is not None
    numbers = table.n_components
    assert numbers == tuple(range(numbers[0], numbers[-1] + 1))
    counts = np.array([n_parameters(number, 5, has_dispersion=True) for number in numbers])
    expected = -2.0 * np.array(table.log_likelihood) + counts * np.log(6000)
    assert_allclose(table.bic, expected, rtol=1e-12)
    assert np.all(np.diff(table.log_likelihood) > 0.0)
    assert numbers[int(np.argmin(table.bic))] == fit.n_components
    assert fit.log_likelihood == table.log_likelihood[numbers.index(fit.n_components)]
    assert "chosen" in repr(fit)


def test_the_fit_is_that_of_the_number(seed: int) -> None:
    """The maximum does not depend on how it was found: within a fraction of a standard error."""
    data = three_planes(seed)
    chosen, given = choose(data), estimate(data.X, data.y, 3, family="gaussian", random_seed=1)
    assert_allclose(chosen.directions, given.directions, atol=1e-3)
    assert chosen.log_likelihood is not None
    assert given.log_likelihood is not None
    assert_allclose(chosen.log_likelihood, given.log_likelihood, atol=1e-2)
    assert given.selection is None


@pytest.mark.parametrize("n_visible", [0, 4])
def test_the_spectrum_is_only_where_the_search_starts(
    n_visible: int, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """It walks up from too few and down from too many."""
    monkeypatch.setattr(LowOrders, "n_visible", n_visible)
    fit = choose(three_planes(seed))
    assert fit.n_components == 3
    assert fit.selection is not None
    assert fit.selection.n_visible == n_visible
    assert max(1, n_visible) in fit.selection.n_components


def test_no_more_than_the_most_are_tried(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(moment_init.moments.stacked_result, "MOST_COMPONENTS", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        fit = choose(three_planes(seed))
    assert "more than 2 components" in " ".join(fit.warnings)
    assert fit.n_components == 2
    assert fit.status is Status.MISFIT
    assert fit.selection is not None
    assert max(fit.selection.n_components) == 2


@pytest.mark.parametrize("n_components", [1, 2])
def test_one_column_may_have_more_components_than_columns(n_components: int, seed: int) -> None:
    """Two crossing lines share the only direction there is; BIC sees them all the same."""
    data = simulate_mixture(
        5000, 1, n_components, family="gaussian", directions=[[1.0, -1.0][:n_components]],
        scales=2.0, biases=0.0, dispersion=0.5, random_seed=seed,
    )  # fmt: skip
    fit = choose(data)
    assert fit.n_components == n_components
    assert fit.selection is not None
    assert n_components + 1 in fit.selection.n_components


def test_noise_has_one_component(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((3000, 4)), rng.standard_normal(3000)
    with pytest.warns(WeakSignalWarning, match="stand out from noise|standard error"):
        fit = estimate(X, y, "auto", family="gaussian", random_seed=1)
    assert fit.n_components == 1
    assert fit.selection is not None
    assert fit.selection.n_visible <= 1  # noise alone may pass the edge once


def test_same_seed_same_bits(seed: int) -> None:
    data = two_logits(seed)
    first, again = choose(data), choose(data)
    assert first.directions.tobytes() == again.directions.tobytes()
    assert str(first.selection) == str(again.selection)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_components": "Auto"}, "'auto'; got 'Auto' with method='stacked'"),
        ({"method": "power"}, "with method='stacked', 'auto'; got 'auto' with method='power'"),
        ({"method": "tensorly"}, "'auto'; got 'auto' with method='tensorly'"),
        ({"known_scales": 1.0, "known_biases": 0.0}, "need an integer `n_components`; got 'auto'"),
    ],
)
def test_what_cannot_be_asked_for(options: dict[str, Any], match: str) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((200, 3)), rng.integers(0, 2, 200)
    arguments = {"n_components": "auto", "random_seed": 1, **options}
    with pytest.raises(ValueError, match=match):
        estimate(X, y, **arguments)
