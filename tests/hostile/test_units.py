"""Units and levels of columns change no prediction.

Columns are stored in double precision: a shift of 1e6 leaves about ten digits of a column of
standard deviation one, so that fits of both agree to less than the 1e-6 that is asked for.
"""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from moment_init import MixtureGLMClassifier, MixtureGLMRegressor, estimate, fit_em
from tests.sampled import SAMPLED, sampled

FloatArray = NDArray[np.float64]

LARGEST_CHANGE = 1e-6

CHANGES = {
    "scaled by 1e8": (1e8, 0.0),
    "scaled by 1e-8": (1e-8, 0.0),
    "shifted by 1e6": (1.0, 1e6),
    "shifted by -1e6": (1.0, -1e6),
}


def changed(X: FloatArray, change: str) -> FloatArray:
    """The second column in other units."""
    scale, shift = CHANGES[change]
    result = X.copy()
    result[:, 1] = scale * X[:, 1] + shift
    return result


def data_of(
    family: str, seed: int, n_obs: int = 600
) -> tuple[FloatArray, FloatArray, dict[str, Any]]:
    data = sampled(family, seed, n_obs)
    block: dict[str, Any] = {"family": family}
    if data.n_trials is not None:
        block["n_trials"] = data.n_trials
    return data.X, data.y, block


@pytest.mark.parametrize("change", ["scaled by 1e8", "shifted by 1e6"])
@pytest.mark.parametrize("family", sorted(SAMPLED))
def test_fit(family: str, change: str, seed: int) -> None:
    # of 600 binary rows a component may be separated, of which the fit warns
    X, y, block = data_of(family, seed, 4000 if family == "bernoulli" else 600)
    trials = {name: it for name, it in block.items() if name == "n_trials"}
    means, memberships = [], []
    for inputs in (X, changed(X, change)):
        fit = fit_em(inputs, y, 2, **block, random_seed=1)
        means.append(fit.predict(inputs, **trials))
        memberships.append(fit.predict_membership(inputs, y, **trials))
    assert_allclose(means[1], means[0], rtol=LARGEST_CHANGE, atol=LARGEST_CHANGE * np.std(y))
    assert_allclose(memberships[1], memberships[0], rtol=LARGEST_CHANGE, atol=LARGEST_CHANGE)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
def test_estimate(family: str, change: str, seed: int) -> None:
    """Coefficients in the changed units, and predictors of the rows."""
    X, y, block = data_of(family, seed, 4000)
    scale, _ = CHANGES[change]
    first = estimate(X, y, 2, **block, random_seed=1)
    second = estimate(changed(X, change), y, 2, **block, random_seed=1)
    assert first.coefficients is not None
    assert second.coefficients is not None
    assert first.biases is not None
    assert second.biases is not None
    mapped = second.coefficients * np.where(np.arange(5) == 1, scale, 1.0)[:, None]
    size = np.abs(first.coefficients).max()
    assert_allclose(mapped, first.coefficients, rtol=LARGEST_CHANGE, atol=LARGEST_CHANGE * size)
    predictors = X @ first.coefficients + first.biases
    found = changed(X, change) @ second.coefficients + second.biases
    assert_allclose(found, predictors, rtol=0.0, atol=LARGEST_CHANGE * np.abs(predictors).max())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", ["gaussian", "gamma"])
def test_regressor(family: str, change: str, seed: int) -> None:
    X, y, _ = data_of(family, seed)
    means = [
        MixtureGLMRegressor(2, family=family, random_state=1).fit(inputs, y).predict(inputs)
        for inputs in (X, changed(X, change))
    ]
    assert_allclose(means[1], means[0], rtol=LARGEST_CHANGE, atol=LARGEST_CHANGE * np.std(y))


@pytest.mark.parametrize("change", CHANGES)
def test_classifier(change: str, seed: int) -> None:
    X, y, _ = data_of("bernoulli", seed)
    shares = [
        MixtureGLMClassifier(2, random_state=1).fit(inputs, y).predict_proba(inputs)
        for inputs in (X, changed(X, change))
    ]
    assert_allclose(shares[1], shares[0], rtol=LARGEST_CHANGE)


def test_gating_covariates(seed: int) -> None:
    X, y, block = data_of("poisson", seed)
    fits = []
    for scale, shift in ((1.0, 0.0), (1e8, 1e6), (1.0, 1e6)):
        gating = scale * X[:, :1] + shift
        fit = fit_em(X, y, 2, **block, gating=gating, random_seed=1)
        fits.append(fit.predict(X, gating=gating))
    for means in fits[1:]:
        assert_allclose(means, fits[0], rtol=LARGEST_CHANGE)


@pytest.mark.parametrize(("scale", "shift"), [(1e8, 0.0), (1e-8, 0.0), (1.0, 1e6)])
def test_response_of_a_gaussian_fit(scale: float, shift: float, seed: int) -> None:
    X, y, block = data_of("gaussian", seed)
    first = fit_em(X, y, 2, **block, random_seed=1).predict(X)
    second = fit_em(X, scale * y + shift, 2, **block, random_seed=1).predict(X)
    assert_allclose((second - shift) / scale, first, rtol=0.0, atol=LARGEST_CHANGE * np.std(y))
