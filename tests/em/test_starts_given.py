"""Solutions that come back as `init`: the climb must start at their log-likelihood."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks.real_tables import load_real_problems
from moment_init import fit_em, simulate_mixture

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = (
    "aphids_k2",  # an M-step from a flat start changes the deviations by factors of ten and more
    "kilnB_k2",
    "dietox_groups_k3",
    "patent_shared_gate_k3",  # a shared column and a gate
    "NregFix_gate_shared_k3",  # a shared column, a shared deviation and a gate
    "fabricfault_shared_k2",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_fit", [False, True])
def test_a_climb_starts_at_the_given_solution(name: str, is_fit: bool) -> None:
    (problem,) = (each for each in load_real_problems() if each.name == name)
    block = (problem.X, problem.y, problem.n_components)
    options: dict[str, Any] = {**problem.options, "progressbar": False}
    fit = fit_em(*block, init="random", n_starts=1, random_seed=1, **options)
    assert fit.bounds == ()
    init = fit if is_fit else fit.responsibilities
    again = fit_em(*block, init=init, max_iter=0, **options)
    assert_allclose(again.history[0], fit.log_likelihood, atol=1e-4)


@pytest.mark.parametrize("is_fit", [False, True])
def test_a_gate_far_from_covariates_zero_is_kept(is_fit: bool, seed: int) -> None:
    """A gate that turns in the year 2000: at the year zero its odds are e^1000 and more."""
    rng = np.random.default_rng([seed, 5])
    data = simulate_mixture(400, 2, 1, family="gaussian", dispersion=0.5, random_seed=seed)
    year = rng.integers(1990, 2011, 400).astype(float)
    is_late = rng.random(400) < 1 / (1 + np.exp(-0.8 * (year - 2000)))
    y = data.y + 4.0 * is_late
    options: dict[str, Any] = {"family": "gaussian", "gating": year, "shared": [0, 1]}
    fit = fit_em(data.X, y, 2, random_seed=1, **options)
    again = fit_em(
        data.X, y, 2, init=fit if is_fit else fit.responsibilities, max_iter=0, **options
    )
    assert_allclose(again.history[0], fit.log_likelihood, atol=1e-4)


def test_labels_are_an_assignment(seed: int) -> None:
    """One column per component, with ones: each component is fitted to its own rows."""
    rng = np.random.default_rng([seed, 6])
    x, labels = rng.standard_normal(200), np.arange(200) % 2
    y = np.where(labels == 0, 100 + x, -100 - x) + 0.01 * rng.standard_normal(200)
    fit = fit_em(x[:, None], y, 2, family="gaussian", init=np.eye(2)[labels], max_iter=0)
    assert_allclose(np.sort(fit.biases), [-100, 100], atol=0.01)
    assert fit.dispersion is not None
    assert_allclose(fit.dispersion, 0.01, rtol=0.3)
