"""Rows for the tests of the estimators."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from moment_init import MixtureGLMClassifier, MixtureGLMRegressor, simulate_mixture
from moment_init.data.simulation import MixtureData

N_OBS = 600
QUICK: dict[str, Any] = {"init": "random", "n_starts": 2, "random_state": 0}
"""Two random starts: for tests in which the search does not matter."""


@cache
def gaussian_rows() -> MixtureData:
    """Two well-separated linear models."""
    return simulate_mixture(
        N_OBS, 3, 2, family="gaussian", weights=[0.7, 0.3], dispersion=0.3, random_seed=2
    )


@cache
def poisson_rows() -> MixtureData:
    """Two poisson regressions."""
    return simulate_mixture(N_OBS, 2, 2, family="poisson", weights=[0.6, 0.4], random_seed=3)


@cache
def binary_rows() -> MixtureData:
    """Two logistic regressions."""
    return simulate_mixture(N_OBS, 2, 2, family="bernoulli", random_seed=4)


def three_classes() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Three overlapping clusters."""
    rng = np.random.default_rng(5)
    labels = np.arange(N_OBS) % 3
    centres = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return centres[labels] + rng.standard_normal((N_OBS, 2)), np.array(["a", "b", "c"])[labels]


def frame(data: MixtureData) -> pd.DataFrame:
    """Inputs with names."""
    return pd.DataFrame(data.X, columns=[f"col{k}" for k in range(data.X.shape[1])])


@cache
def regressor() -> MixtureGLMRegressor:
    """A regressor that is fitted once."""
    data = gaussian_rows()
    return MixtureGLMRegressor(random_state=0).fit(data.X, data.y)


@cache
def classifier() -> MixtureGLMClassifier:
    """A classifier of two classes that is fitted once."""
    data = binary_rows()
    return MixtureGLMClassifier(**QUICK).fit(data.X, np.where(data.y > 0, "yes", "no"))


@cache
def three_classifier() -> MixtureGLMClassifier:
    """A classifier of three classes that is fitted once."""
    return MixtureGLMClassifier(**QUICK).fit(*three_classes())
