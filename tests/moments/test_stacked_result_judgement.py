"""Warnings of an estimate on a bound say what that bound means."""

import numpy as np
import pytest

from moment_init import WeakSignalWarning, estimate
from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import (
    MIN_WEIGHT,
    MixtureParameters,
    active_bounds,
    bounds_of,
)
from moment_init.moments.stacked_result import REMEDIES


def test_a_collapsed_component_is_not_called_a_response_without_noise() -> None:
    """Half of the rows lie on a line, the others scatter: one deviation falls to its bound."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((600, 2))
    noise = np.where(np.arange(600) < 300, 0.0, 3.0)
    y = X @ [1.0, -2.0] + noise * rng.standard_normal(600)
    with pytest.warns(WeakSignalWarning):
        result = estimate(X, y, 2, family="gaussian", random_seed=1)
    (message,) = [text for text in result.warnings if "towards the boundary" in text]
    assert "dispersion ratio of component" in message
    assert "A component may fit a few rows exactly. Use fewer components." in message


@pytest.mark.parametrize(
    ("family", "dispersion", "kinds"),
    [
        ("gaussian", [1.0, 0.05], {"dispersion ratio"}),
        ("gamma", [1e8, 1e8], {"dispersion"}),
        ("bernoulli", None, {"length", "weight"}),
    ],
)
def test_every_kind_of_bound_has_a_remedy(
    family: str, dispersion: list[float] | None, kinds: set[str]
) -> None:
    on_bounds = family == "bernoulli"
    bounds = bounds_of(get_family(family))
    length = float(bounds.largest_predictors[0, 0]) if on_bounds else 1.0
    weight = MIN_WEIGHT if on_bounds else 0.5
    parameters = MixtureParameters(
        np.array([[length, 1.0]]),
        np.zeros(2),
        np.array([1.0 - weight, weight]),
        None if dispersion is None else np.array(dispersion),
    )
    found = {bound.label.split(" of ")[0] for bound in active_bounds(parameters, bounds)}
    assert found == kinds
    assert found <= set(REMEDIES)
