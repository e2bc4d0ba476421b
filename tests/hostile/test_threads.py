"""Fits in several threads are those that each would give alone."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from moment_init import MixtureGLMRegressor, estimate, fit_em, simulate_mixture

N_THREADS = 4


def _fit(family: str, seed: int) -> bytes:
    data = simulate_mixture(300, 3, 2, family=family, random_seed=seed)
    fit = fit_em(data.X, data.y, 2, family=family, random_seed=seed)
    return fit.coefficients.tobytes() + fit.responsibilities.tobytes() + repr(fit.history).encode()


def _estimate(family: str, seed: int) -> bytes:
    data = simulate_mixture(1500, 3, 2, family=family, random_seed=seed)
    found = estimate(data.X, data.y, 2, family=family, random_seed=seed)
    return found.directions.tobytes() + np.asarray(found.coefficients).tobytes()


def _tensorly(family: str, seed: int) -> bytes:
    """The one method that goes through NumPy's global generator."""
    data = simulate_mixture(1500, 3, 2, family=family, random_seed=seed)
    found = estimate(data.X, data.y, 2, family=family, method="tensorly", random_seed=seed)
    return found.directions.tobytes()


def _regressor(family: str, seed: int) -> bytes:
    data = simulate_mixture(300, 3, 2, family=family, random_seed=seed)
    model = MixtureGLMRegressor(2, family=family, random_state=seed)
    return bytes(model.fit(data.X, data.y).predict(data.X).tobytes())


@pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")
@pytest.mark.filterwarnings("ignore::moment_init.ConvergenceWarning")
@pytest.mark.parametrize("run", [_fit, _estimate, _tensorly, _regressor])
def test_concurrent_fits_have_the_same_bits(run: Callable[[str, int], bytes], seed: int) -> None:
    tasks = [(("gaussian", "poisson")[k % 2], seed + k // 2) for k in range(N_THREADS)]
    alone = [run(*task) for task in tasks]
    state, filters = _generator_state(), list(warnings.filters)
    barrier = Barrier(N_THREADS)

    def together(task: tuple[str, int]) -> bytes:
        barrier.wait()
        return run(*task)

    with ThreadPoolExecutor(N_THREADS) as pool:
        found = list(pool.map(together, tasks))
    assert found == alone
    assert _generator_state() == state
    assert warnings.filters == filters


def _generator_state() -> Any:
    return np.random.get_state()[1].tobytes()  # noqa: NPY002
