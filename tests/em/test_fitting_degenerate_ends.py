"""Ends that are no ordinary maximum: copies of components, separated gates, large counts."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.real_tables import load_real_problems
from moment_init import Status, fit_em, simulate_mixture
from moment_init.data.checking import validate_data
from moment_init.em.problem import validate_restrictions

pytestmark = pytest.mark.filterwarnings("ignore:Component:UserWarning")


@pytest.mark.parametrize("random_seed", range(3))
def test_search_goes_on_where_starts_agree_on_copies(random_seed: int) -> None:
    """Few counts, on which growth ends at two components given as three."""
    data = simulate_mixture(100, 2, 3, family="poisson", random_seed=3)
    fit = fit_em(data.X, data.y, 3, family="poisson", random_seed=random_seed)
    assert fit.log_likelihood > -149.65
    # three are too many for these rows
    assert any("coincide" in text for text in fit.warnings)


def test_separated_gate_is_reported(seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    X, gating = rng.standard_normal((200, 2)), rng.standard_normal(200)
    y = np.where(gating > 0, 3.0, -3.0) + X[:, 0] + 0.5 * rng.standard_normal(200)
    fit = fit_em(X, y, 2, family="gaussian", gating=gating, random_seed=1)
    assert fit.converged
    assert fit.bounds == ("gate slope of component 0",)
    assert fit.status is Status.NOT_IDENTIFIED
    assert any(
        "separated from the others by the gating covariates" in text for text in fit.warnings
    )


def test_a_nearly_jumping_gate_is_reported_beside_a_higher_fit_on_a_bound() -> None:
    """Accelerations that are exactly constant at first: the variance of their component collapses.

    At that solution the first component is certain at the mean of the times, by a factor of e^40.
    """
    (problem,) = (each for each in load_real_problems() if each.name == "mcycle_gate_k2")
    with pytest.warns(UserWarning, match="gate between components 0 and 1 is nearly a jump") as all:
        fit = fit_em(problem.X, problem.y, 2, random_seed=1, **problem.options)
    assert len(all) == 1
    assert fit.status is Status.NOT_IDENTIFIED
    assert fit.bounds == ()
    assert "! The gate between components 0 and 1" in repr(fit)
    table = fit.starts_table
    highest = table.sort_values("log_likelihood").iloc[-1]
    assert highest["log_likelihood"] > -616.3
    assert highest["bounds"].startswith("dispersion ratio of component")
    assert "a boundary solution has the higher log-likelihood -616.2" in repr(fit)
    assert "dispersion ratio of component" in repr(fit)


def test_bounds_name_components_in_their_final_order(seed: int) -> None:
    """The gate is bounded relative to the last component of the climb, here the most common one."""
    rng = np.random.default_rng([seed, 4])
    X, gating = rng.standard_normal((200, 1)), rng.standard_normal(200)
    y = np.where(gating > 0.5, 3.0, -3.0) + X[:, 0] + 0.5 * rng.standard_normal(200)
    shares = np.column_stack([gating > 0.5, gating <= 0.5]).astype(float)
    fit = fit_em(X, y, 2, family="gaussian", gating=gating, init=shares)
    assert fit.biases[0] < fit.biases[1]
    assert fit.bounds == ("gate slope of component 1",)


def test_large_counts_converge(seed: int) -> None:
    """The log-likelihood is a small difference of sums of 1e9, whose rounding ends a run."""
    rng = np.random.default_rng([seed, 2])
    X, sign = rng.standard_normal((300, 2)), rng.choice([-1.0, 1.0], 300)
    y = rng.poisson(1e6 * np.exp(0.5 * X[:, 0] * sign))
    assert fit_em(X, y, 2, family="poisson", random_seed=1).converged


def test_messages_name_the_gating_covariates(rng: np.random.Generator) -> None:
    X, y, gating = rng.standard_normal((50, 2)), rng.poisson(1.0, 50), rng.standard_normal(50)
    with pytest.raises(ValueError, match="`gating` must not have constant columns; got 'g0'"):
        fit_em(X, y, 2, family="poisson", gating=np.ones(50))
    with pytest.raises(ValueError, match="`gating` must not have collinear columns"):
        fit_em(X, y, 2, family="poisson", gating=np.column_stack([gating, 2 * gating]))


def test_shared_means_labels_before_positions(rng: np.random.Generator) -> None:
    frame = pd.DataFrame(rng.standard_normal((50, 2)), columns=[1, 0])
    data = validate_data(frame, rng.standard_normal(50), family="gaussian")
    assert validate_restrictions(data, 2, shared=1).shared_features == (0,)
    named = frame.set_axis(["a", "dispersion"], axis=1)
    data = validate_data(named, rng.standard_normal(50), family="gaussian")
    held = validate_restrictions(data, 2, shared="dispersion")
    assert held.shared_features == (1,)
    assert not held.has_shared_dispersion
    for wrong in (True, 1.5, [True, False]):
        with pytest.raises(ValueError, match="`shared` must hold names or indices of columns"):
            validate_restrictions(data, 2, shared=wrong)


def test_legacy_generators_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`random_seed` must be .* RandomState"):
        fit_em(
            np.arange(12.0).reshape(6, 2) ** 2,
            np.arange(6),
            1,
            family="poisson",
            random_seed=np.random.RandomState(1),  # type: ignore[arg-type]
        )
