"""Data sets for the tests of the stacked estimator."""

import numpy as np

from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.standardising import Coordinates
from moment_init.scores import Gaussian
from tests.population import FloatArray

__all__ = ["prepare", "sample_rows"]


def prepare(data: RegressionData) -> tuple[Gaussian, FloatArray, Coordinates]:
    """Fitted input model, standardised response, and the way back to the user's units."""
    model = Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names)
    response = data.single_family.moment_response(
        data.y, order=1, offset=data.offset, n_trials=data.n_trials
    )
    shift, scale = 0.0, 1.0
    if data.family.response_power:
        weights = data.sample_weight / data.sample_weight.sum()
        shift = float(weights @ response)
        scale = float(np.sqrt(weights @ np.square(response - shift)))
        response = (response - shift) / scale
    return model, response, Coordinates(model.mean_, model.standardising_basis, shift, scale)


def sample_rows(rng: np.random.Generator, n_obs: int = 400) -> RegressionData:
    """Correlated inputs off the origin, a skewed count, unequal weights."""
    X = rng.standard_normal((n_obs, 4)) @ rng.standard_normal((4, 4)) + 1.0
    scale = X.std(axis=0)
    y = rng.poisson(np.exp(0.5 * X[:, 0] / scale[0] + 0.3 * np.cos(X[:, 1] / scale[1])))
    return validate_data(X, y, family="poisson", sample_weight=rng.uniform(0.5, 2.0, n_obs))
