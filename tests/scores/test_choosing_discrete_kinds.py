"""What columns are said to be: with a density, or without one and why."""

import re

import numpy as np
import pytest
from numpy.typing import ArrayLike

from moment_init.scores.choosing import describe_discrete_columns, name_discrete

N_OBS = 3_000


def one(values: ArrayLike) -> str:
    return describe_discrete_columns(np.asarray(values, dtype=float)[:, None])[0]


def test_kinds_in_words(rng: np.random.Generator) -> None:
    assert one(rng.integers(2, size=N_OBS)) == "binary"
    assert one(rng.integers(1, 7, size=N_OBS)) == "whole numbers, 6 values"
    assert one(rng.integers(1, 7, size=N_OBS) / 2.0) == "6 values"
    assert one(rng.standard_normal(N_OBS)) == ""


def test_counts_have_a_density_if_no_value_recurs_often(rng: np.random.Generator) -> None:
    """The mode of Poisson counts holds .4 / sqrt(mean): a tenth at sixteen."""
    assert one(rng.poisson(5.0, N_OBS)).startswith("whole numbers, ")
    assert one(rng.poisson(60.0, N_OBS)) == ""
    assert one(np.round(rng.uniform(18.0, 90.0, N_OBS))) == ""


def test_a_value_that_recurs_is_named(rng: np.random.Generator) -> None:
    """Four in ten rows, within four standard errors of a sample of a thousand: 34 % to 46 %."""
    spend = np.where(rng.random(N_OBS) < 0.4, 0.0, rng.lognormal(size=N_OBS))
    found = re.fullmatch(r"values that recur, (\d+)% of them 0", one(spend))
    assert found is not None
    assert 34 <= int(found[1]) <= 46


@pytest.mark.parametrize("n_levels", [3, 4])
def test_indicators_of_one_factor(n_levels: int, rng: np.random.Generator) -> None:
    """All levels but one; an indicator of its own beside them is binary."""
    levels = rng.integers(n_levels, size=N_OBS)
    columns = [levels == level for level in range(1, n_levels)]
    X = np.column_stack([*columns, rng.random(N_OBS) < 0.5, rng.standard_normal(N_OBS)])
    kinds = describe_discrete_columns(X.astype(float))
    assert kinds == (*["one-hot"] * (n_levels - 1), "binary", "")
    names = [f"x{j}" for j in range(X.shape[1])]
    listed = name_discrete(names, kinds)
    assert listed.startswith("x0 (one-hot), x1 (one-hot)")
    assert listed.endswith(f"x{n_levels - 1} (binary)")


def test_rare_indicators_may_miss_each_other(rng: np.random.Generator) -> None:
    """Two in a hundred each: that no row has both says nothing."""
    X = np.zeros((1_000, 2))
    X[:20, 0], X[20:40, 1] = 1.0, 1.0
    assert describe_discrete_columns(rng.permutation(X)) == ("binary", "binary")


def test_few_rows(rng: np.random.Generator) -> None:
    assert describe_discrete_columns(rng.standard_normal((8, 2))) == ("", "")
