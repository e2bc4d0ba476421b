"""Samples of rows are distinct and fair; the spread order is a permutation without pattern."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from moment_init.data.blocks import sample_rows, spread_order


@pytest.mark.parametrize(("n_obs", "size"), [(10, 3), (1000, 999), (10_007, 500)])
def test_a_sample_is_distinct_and_ascending(
    n_obs: int, size: int, rng: np.random.Generator
) -> None:
    rows = sample_rows(n_obs, size, rng)
    assert rows.shape == (size,)
    assert np.all(np.diff(rows) > 0)
    assert 0 <= rows[0]
    assert rows[-1] < n_obs


@pytest.mark.parametrize("size", [7, 8, 100])
def test_all_rows_where_there_are_not_more(size: int, rng: np.random.Generator) -> None:
    assert_array_equal(sample_rows(7, size, rng), np.arange(7))


def test_every_row_has_its_turn(rng: np.random.Generator) -> None:
    """12 rows in 4 runs of 3: counts are binomial with p = 1/3; beyond 5 deviations are 6e-7."""
    n_draws = 3000
    counts = np.zeros(12)
    for _ in range(n_draws):
        counts[sample_rows(12, 4, rng)] += 1
    deviation = np.sqrt(n_draws * (1 / 3) * (2 / 3))
    assert np.all(np.abs(counts - n_draws / 3) < 5 * deviation)


def test_spread_order_by_hand() -> None:
    """The golden share of 8 is 4.94: the step is 5, prime to 8."""
    assert_array_equal(spread_order(8), [0, 5, 2, 7, 4, 1, 6, 3])


@pytest.mark.parametrize("n_obs", [1, 2, 6, 16, 1000, 4096, 9973])
def test_spread_order_is_a_permutation(n_obs: int) -> None:
    assert_array_equal(np.sort(spread_order(n_obs)), np.arange(n_obs))


@pytest.mark.parametrize("n_obs", [800, 1600, 4096])
def test_runs_are_fair_samples(n_obs: int) -> None:
    """Sixteenths of rows that came sorted, and of rows that came in cycles of up to 16.

    The discrepancy of N multiples of the golden ratio is below (3 + log N) / N, and the mean of a
    run is off by at most that.
    """
    runs = np.array_split(spread_order(n_obs), 16)
    length = n_obs / 16
    for run in runs:
        assert abs(run.mean() / n_obs - 0.5) < (3 + np.log(length)) / length
    for cycle in (2, 4, 8, 16):
        for run in runs:
            counts = np.bincount(run % cycle, minlength=cycle)
            assert np.ptp(counts) <= 1
