"""R-hat, effective sample sizes and divergences, also of what does not vary."""

from typing import Any

import arviz as az
import numpy as np
import pytest
import xarray as xr

from moment_init.comparison.scoring import assess_convergence, largest_rhat

SHAPE = (3, 200)


def tree_of(diverging: Any = None, **variables: Any) -> xr.DataTree:
    dims = ("chain", "draw", "component")
    groups = {"posterior": xr.Dataset({name: (dims, x) for name, x in variables.items()})}
    if diverging is not None:
        groups["sample_stats"] = xr.Dataset({"diverging": (dims[:2], diverging)})
    return xr.DataTree.from_dict(groups)


def test_figures_are_those_of_arviz(rng: np.random.Generator) -> None:
    bias, weight = rng.standard_normal((*SHAPE, 2)), rng.standard_normal((*SHAPE, 2))
    weight[..., 1] += 0.5 * np.arange(3)[:, None]
    diverging = np.zeros(SHAPE, bool)
    diverging[0, :7] = True
    tree = tree_of(diverging, bias=bias, weight=weight, tilt=1e6 * np.cumsum(bias, axis=1))
    found = assess_convergence(tree)
    own = tree["posterior"].to_dataset()[["bias", "weight"]]
    rhat, ess = az.rhat(own), az.ess(own, method="bulk")
    assert found.rhat_max == pytest.approx(float(rhat["weight"].max()))
    assert found.ess_bulk_min == pytest.approx(min(float(x.min()) for x in ess.values()))
    assert found.divergences == 7
    assert found.rhat_max > 1.01


def test_parameters_that_do_not_vary_are_passed_over(rng: np.random.Generator) -> None:
    bias = rng.standard_normal((*SHAPE, 2))
    with_held = np.concatenate([bias, np.ones((*SHAPE, 1))], axis=-1)
    found, expected = (assess_convergence(tree_of(bias=x)) for x in (with_held, bias))
    assert found.rhat_max == expected.rhat_max
    assert found.ess_bulk_min == expected.ess_bulk_min
    assert np.isnan(found.divergences)
    nothing = assess_convergence(tree_of(bias=np.ones((*SHAPE, 1))))
    assert np.isnan([nothing.rhat_max, nothing.ess_bulk_min]).all()


def test_chains_that_stand_still_in_different_places_never_meet() -> None:
    still = np.broadcast_to(np.arange(3.0)[:, None, None], (*SHAPE, 1))
    assert largest_rhat(tree_of(bias=still)) > 1e6  # infinite up to rounding


def test_single_chain_has_no_rhat(rng: np.random.Generator) -> None:
    assert np.isnan(largest_rhat(tree_of(bias=rng.standard_normal((1, 200, 2)))))
