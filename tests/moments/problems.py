"""Data sets for the tests of the stacked estimator."""

from dataclasses import replace
from typing import Any

import numpy as np

from moment_init.data.checking import validate_data
from moment_init.moments.sums import StackedRows
from moment_init.scores import Gaussian
from moment_init.scores.choosing import EstimationProblem, pose_problem
from tests.population import FloatArray

__all__ = ["joined", "pose", "sample_problem"]


def pose(X: FloatArray, y: FloatArray, family: str, **options: Any) -> EstimationProblem:
    """Pose the problem of rows under a Gaussian that is fitted to them."""
    data = validate_data(X, y, family=family, **options)
    return pose_problem(data, Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names))


def sample_problem(rng: np.random.Generator, n_obs: int = 400) -> EstimationProblem:
    """Correlated inputs off the origin, a skewed count, unequal weights."""
    X = rng.standard_normal((n_obs, 4)) @ rng.standard_normal((4, 4)) + 1.0
    scale = X.std(axis=0)
    y = rng.poisson(np.exp(0.5 * X[:, 0] / scale[0] + 0.3 * np.cos(X[:, 1] / scale[1])))
    weights = rng.uniform(0.5, 2.0, n_obs)
    return pose(X, y.astype(float), "poisson", sample_weight=weights)


def joined(rows: StackedRows) -> StackedRows:
    """The same rows without an axis of parts."""

    def flat(column: FloatArray) -> FloatArray:
        return column.reshape(-1, *column.shape[2:])

    assert rows.has_parts
    assert rows.raw_values is not None
    return replace(
        rows,
        X=flat(np.asarray(rows.X)),
        response=flat(rows.response),
        weights=flat(rows.weights),
        raw_values=flat(rows.raw_values),
    )
