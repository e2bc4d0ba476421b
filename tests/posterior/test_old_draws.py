"""Draws of one model, read by another that was built from another start or for other rows."""

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray

from moment_init import fit_em, predict, sample
from moment_init.checks import FloatArray
from moment_init.models import mixture_glm
from moment_init.models.specification import Directions

N = 300
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.3]]) + 1.0
GATING = RNG.normal(3.0, 2.0, (N, 1))
IS_FIRST = RNG.random(N) < 1.0 / (1.0 + np.exp(1.5 - 0.5 * GATING[:, 0]))
SLOPES = np.array([[0.5, -0.3], [0.2, 0.1], [0.0, 0.6]])
Y = (X @ SLOPES + np.array([1.0, -1.0]))[np.arange(N), np.where(IS_FIRST, 0, 1)]
Y = Y + RNG.normal(0.0, 0.2, N)


def replicated(tree: xarray.DataTree, model: pm.Model) -> tuple[FloatArray, FloatArray]:
    """Means of replicated responses, and their standard errors."""
    quiet: dict[str, Any] = {"progressbar": False, "random_seed": 1}
    quiet["compile_kwargs"] = {"mode": "FAST_COMPILE"}
    found = pm.sample_posterior_predictive(tree, model=model, **quiet)
    drawn = found["posterior_predictive"]["y"].stack(sample=("chain", "draw"))
    return drawn.mean("sample").values, drawn.std("sample").values / np.sqrt(drawn.sample.size)


@pytest.mark.parametrize("directions", ["anchored", "fixed", "free"])
@pytest.mark.parametrize("has_gate", [False, True])
@pytest.mark.parametrize("has_data", [False, True])
def test_predictions_of_a_model_from_another_start(
    directions: Directions, has_gate: bool, has_data: bool
) -> None:
    """Anchors, inputs, units and gating covariates differ; `predict` has the right means."""
    options: dict[str, Any] = {"family": "gaussian", "random_seed": 1}
    gating = GATING if has_gate else None
    fit = fit_em(X, Y, 2, gating=gating, **options)
    run: dict[str, Any] = {"method": "laplace", "draws": 1000, "chains": 1}
    tree = sample(X, Y, 2, init=fit, directions=directions, gating=gating, **run, **options)
    if not has_data:
        tree = xarray.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})
        tree["moment_init"] = xarray.DataTree(xarray.Dataset(attrs={"family": "gaussian"}))
    other = (-fit.coefficients[::-1], fit.biases, fit.weights)
    rows, later = 2.0 * X[:40] + 1.0, None if gating is None else GATING[:40] - 5.0
    model = mixture_glm(
        rows, 7.0 * Y[:40], 2, init=other, directions=directions, gating=later, **options
    )
    expected = predict(tree, rows, gating=later).mean(("chain", "draw"))
    mean, error = replicated(tree, model)
    # 480 comparisons: the largest of as many normal errors exceeds 5 with probability 3e-4
    assert np.all(np.abs(mean - expected.values) < 5.0 * error)
    assert np.std(expected.values) > 12.0 * error.mean()  # so that other coefficients would fail
