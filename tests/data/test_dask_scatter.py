"""Sums of blocks about their own means are those of all rows about theirs."""

from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.data.checking import validate_data
from moment_init.data.dask_rows import block_scatter, merged
from moment_init.data.standardising import InputRows, Scatter, fit_correlation

RNG = np.random.default_rng(1)
X = 1e6 + RNG.normal(size=(3_000, 3)) * [1.0, 2.0, 0.1] + np.linspace(0.0, 5.0, 3_000)[:, None]
WEIGHTS = RNG.integers(3, size=3_000).astype(float)


def test_two_rows_worked_by_hand() -> None:
    """Rows 1 and 4 of weights 1 and 2: mean 3, products 1 * 4 + 2 * 1 = 6."""
    found = block_scatter(np.array([[1.0], [4.0]]), np.array([1.0, 2.0]))
    assert found == Scatter(3.0, np.array([3.0]), np.array([[6.0]]))
    assert block_scatter(np.ones((2, 1)), np.zeros(2)) is None


def test_blocks_are_merged() -> None:
    edges = (0, 1, 700, 3_000)
    blocks = [block_scatter(X[first:end], WEIGHTS[first:end]) for first, end in pairwise(edges)]
    total, mean, products = merged([*blocks, None])
    assert total == WEIGHTS.sum()
    assert_allclose(mean, np.average(X, axis=0, weights=WEIGHTS), rtol=1e-14)
    # A level of a million spreads costs either way six digits.
    assert_allclose(products / total, np.cov(X.T, aweights=WEIGHTS, ddof=0), rtol=1e-8)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.parametrize("size", [1.0, 1e-70, 1e70])
def test_correlations_need_no_pass_of_their_own(size: float) -> None:
    """Units in which products of variances are still numbers, as in memory."""
    lazy = da.from_array(size * X, chunks=(700, 3))
    data: Any = validate_data(
        lazy, np.arange(3_000.0), family="gaussian", sample_weight=da.from_array(WEIGHTS)
    )
    counted = data.drop_zero_weights()
    assert counted.scatter is not None
    assert counted.thin(50).scatter is None
    assert counted.map(InputRows.take, slice(None)).scatter is None
    found = fit_correlation(counted, data.feature_names)
    kept = WEIGHTS > 0.0
    expected = fit_correlation(InputRows(size * X[kept], WEIGHTS[kept]), data.feature_names)
    assert_allclose(found.mean, expected.mean, rtol=1e-12)
    assert_allclose(found.scales, expected.scales, rtol=1e-8)
    assert_allclose(found.correlation, expected.correlation, rtol=1e-8)
