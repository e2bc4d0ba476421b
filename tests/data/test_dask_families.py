"""Dask inputs of every family give what arrays give, with all that a row can have."""

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init import MixtureData, estimate, fit_em, simulate_mixture

pytestmark = [
    pytest.mark.usefixtures("nothing_whole"),
    pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning"),
    pytest.mark.filterwarnings("ignore::moment_init.checks.ConvergenceWarning"),
]

N_OBS = 6_000
FAMILIES: dict[str, dict[str, Any]] = {
    "bernoulli": {"link": "probit", "scales": 2.0},
    "binomial": {"n_trials": 5, "scales": 1.5},
    "poisson": {"scales": 0.6},
    "negative_binomial": {"scales": 0.6, "dispersion": 3.0},
    "gaussian": {"scales": 1.0},
    "gamma": {"scales": 0.6, "dispersion": 4.0},
}
NAMES = ("coefficients", "biases", "weights", "dispersion")


def _simulated(family: str) -> MixtureData:
    return simulate_mixture(
        N_OBS, 3, 2, family=family, weights=[0.65, 0.35], random_seed=8, **FAMILIES[family]
    )


def _row_arguments(data: MixtureData, family: str) -> dict[str, Any]:
    """Weights, some of them zero, trials that differ, an offset: what the family takes."""
    rng = np.random.default_rng(9)
    given: dict[str, Any] = {"sample_weight": rng.integers(3, size=N_OBS).astype(float)}
    if family == "binomial":
        given["n_trials"] = 5 + rng.integers(3, size=N_OBS)
    else:
        given["offset"] = 0.1 * rng.normal(size=N_OBS)
    return given


def _lazy(values: Any) -> Any:
    sizes = (1_000, 0, 1, 2_999, 2_000)
    return da.from_array(values, chunks=(sizes, *((n,) for n in values.shape[1:])))


def _assert_same(found: Any, expected: Any) -> None:
    for name in NAMES:
        first, second = getattr(found, name), getattr(expected, name)
        assert (first is None) == (second is None)
        if second is not None:
            # Sums are added in another order, and the climb ends where its next step promises
            # little: parameters with little curvature then differ by more than rounding.
            assert_allclose(first, second, rtol=1e-10, atol=1e-10)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_of_every_family(family: str) -> None:
    data = _simulated(family)
    rows = _row_arguments(data, family)
    both: dict[str, Any] = {
        "family": family,
        "link": FAMILIES[family].get("link"),
        "random_seed": 1,
        "input_model": "gaussian",
    }
    expected = estimate(data.X, data.y, 2, **rows, **both)
    lazy = {name: _lazy(values) for name, values in rows.items()}
    _assert_same(estimate(_lazy(data.X), _lazy(data.y), 2, **lazy, **both), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_fits_of_every_family(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search on a sample, then all rows, which are more than twice as many."""
    monkeypatch.setattr("moment_init.em.search.SEARCH_UNITS", 1_500)
    for kind in ("SEARCH", "BINARY"):
        monkeypatch.setattr(f"moment_init.em.search.{kind}_UNITS_PER_PARAMETER", 20)
    data = _simulated(family)
    rows = _row_arguments(data, family)
    both: dict[str, Any] = {
        "family": family,
        "link": FAMILIES[family].get("link"),
        "random_seed": 1,
        "init": (data.coefficients, data.biases, data.weights),
    }
    expected: Any = fit_em(data.X, data.y, 2, **rows, **both)
    lazy = {name: _lazy(values) for name, values in rows.items()}
    found: Any = fit_em(_lazy(data.X), _lazy(data.y), 2, **lazy, **both)
    _assert_same(found, expected)
    assert_allclose(found.covariance, expected.covariance, rtol=1e-6, atol=1e-12)
    assert isinstance(found.responsibilities, da.Array)
    counted = rows["sample_weight"] > 0.0
    shares = found.responsibilities.compute()[counted]
    assert_allclose(shares, expected.responsibilities[counted], atol=1e-10)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_estimates_on_local_schedulers(scheduler: str) -> None:
    data = _simulated("gaussian")
    both: dict[str, Any] = {"family": "gaussian", "random_seed": 1, "polish": False}
    both["input_model"] = "gaussian"
    expected: Any = estimate(data.X, data.y, 2, **both)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        found: Any = estimate(_lazy(data.X), data.y, 2, **both)
    assert_allclose(found.coefficients, expected.coefficients, rtol=1e-10, atol=1e-11)
