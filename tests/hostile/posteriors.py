"""Posteriors without a compiler: a stand-in for the sampler, and a small tree of draws."""

from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import xarray as xr
from pytensor.configdefaults import config

import moment_init
from tests.bayesian_models import FakeSampler

__all__ = ["compare_without_compiler", "sample_without_compiler", "small_tree"]


def sample_without_compiler(*arguments: Any, **options: Any) -> xr.DataTree:
    """`sample`, with draws near its start in the place of those of `pymc.sample`."""
    with patch("pymc.sample", FakeSampler()), config.change_flags(cxx=""):
        return moment_init.sample(*arguments, **options)


def compare_without_compiler(*arguments: Any, **options: Any) -> moment_init.Comparison:
    """`compare`, with such draws; it needs more of them than a row of arguments should have."""
    with patch("pymc.sample", FakeSampler()), config.change_flags(cxx=""):
        return moment_init.compare(*arguments, **options)


@cache
def small_tree(n_features: int = 2) -> xr.DataTree:
    """Draws of a Poisson mixture of two components."""
    rng = np.random.default_rng(1)
    dims = ("chain", "draw", "component")
    weight = rng.dirichlet([2.0, 3.0], size=(2, 4))
    posterior = xr.Dataset(
        {
            "coefficient": (
                ("chain", "draw", "feature", "component"),
                0.3 * rng.standard_normal((2, 4, n_features, 2)),
            ),
            "bias": (dims, rng.standard_normal((2, 4, 2))),
            "weight": (dims, weight),
        },
        {"feature": [f"x{k}" for k in range(n_features)], "chain": [0, 1], "draw": range(4)},
    )
    attrs = {"family": "poisson", "link": "log"}
    return xr.DataTree.from_dict({"posterior": posterior, "moment_init": xr.Dataset(attrs=attrs)})
