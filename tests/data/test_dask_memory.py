"""A table that is never whole: its rows are made, summed and forgotten."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from moment_init import estimate, fit_em
from moment_init.data import dask_rows
from moment_init.data.checking import RegressionData, validate_data

pytest.importorskip("distributed")  # Dask imports it at its first graph, which takes 12 MB

BLOCK_ROWS, N_FEATURES = 50_000, 5
COEFFICIENTS = np.array([[1.5, 0.0, -1.0, 0.5, 0.3], [-0.5, 1.0, 0.0, 1.0, -0.7]]).T
WEIGHTS = np.array([0.6, 0.4])

COMPUTE = "compute"
"""Name under which the module runs graphs."""


def _made_block(block_info: Any = None) -> NDArray[np.float64]:
    """Inputs and response of a block, made from its number."""
    rng = np.random.default_rng(block_info[None]["chunk-location"][0])
    X = rng.normal(size=(BLOCK_ROWS, N_FEATURES))
    labels = rng.choice(2, p=WEIGHTS, size=BLOCK_ROWS)
    mean = np.take_along_axis(X @ COEFFICIENTS, labels[:, None], axis=1)[:, 0]
    return np.column_stack([X, mean + 0.5 * rng.normal(size=BLOCK_ROWS)])


def _made_table(n_blocks: int) -> Any:
    chunks = ((BLOCK_ROWS,) * n_blocks, (N_FEATURES + 1,))
    return da.map_blocks(_made_block, chunks=chunks, dtype=np.float64, meta=np.empty((0, 0)))


def _n_bytes(values: Any) -> int:
    """Bytes of arrays, however nested."""
    if isinstance(values, np.ndarray):
        return int(values.nbytes)
    if isinstance(values, RegressionData):
        values = values.columns().values()
    if isinstance(values, dict):
        values = values.values()
    return sum(map(_n_bytes, values)) if hasattr(values, "__iter__") else 0


@pytest.fixture
def some_held(monkeypatch: pytest.MonkeyPatch, nothing_whole: None) -> None:
    """As much smaller than the tables here as half a gigabyte is than those of many rows."""
    monkeypatch.setattr("moment_init.data.dask_rows.MOST_HELD", 2**20)
    monkeypatch.setattr("moment_init.moments.sums.FEW_DOUBLES", 2**20)


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes that every graph brought back; all that Dask computes goes through one function."""
    sizes: list[int] = []
    compute: Any = getattr(dask_rows, COMPUTE)

    def counted(*arguments: Any) -> Any:
        results = compute(*arguments)
        sizes.append(0 if isinstance(results[0], str) else _n_bytes(results))
        return results

    monkeypatch.setattr(dask_rows, COMPUTE, counted)
    tracemalloc.start()
    with dask.config.set(scheduler="synchronous"):  # a block at a time, however many cores
        yield sizes
    tracemalloc.stop()


@pytest.mark.usefixtures("some_held")
def test_an_estimate_holds_samples_only(returned: list[int]) -> None:
    """Samples of 60,000 and 120,000 rows are a tenth of all, and read in one graph."""
    table = _made_table(32)
    result = estimate(
        table[:, :N_FEATURES], table[:, N_FEATURES], 2, family="gaussian", random_seed=1
    )
    assert np.abs(result.coefficients - COEFFICIENTS).max() < 0.01
    assert max(returned) < table.nbytes / 6
    assert tracemalloc.get_traced_memory()[1] < table.nbytes
    assert len(returned) <= 16
    assert sum(size > table.nbytes / 100 for size in returned) <= 4


@pytest.mark.usefixtures("some_held")
def test_a_fit_holds_its_search_only(returned: list[int]) -> None:
    table = _made_table(8)
    start = (COEFFICIENTS, np.zeros(2), WEIGHTS, np.full(2, 0.5))
    fit = fit_em(
        table[:, :N_FEATURES], table[:, N_FEATURES], 2, family="gaussian", init=start, random_seed=1
    )
    assert np.abs(fit.coefficients - COEFFICIENTS).max() < 0.01
    assert fit.responsibilities.shape == (table.shape[0], 2)
    assert max(returned) < table.nbytes / 6
    assert tracemalloc.get_traced_memory()[1] < table.nbytes


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.parametrize("n_blocks", [1, 8, 9, 200])
def test_sums_are_added_in_a_tree(n_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task adds more than a few results, and all of it is one graph."""
    X = da.from_array(np.arange(6.0 * n_blocks).reshape(-1, 2), chunks=(3, 2))
    rows: Any = validate_data(X, np.arange(3.0 * n_blocks), family="gaussian")
    graphs: list[Any] = []
    terms: list[int] = []
    compute: Any = getattr(dask_rows, COMPUTE)
    add: Any = dask_rows._add

    def counted(*arguments: Any) -> Any:
        graphs.append(arguments)
        return compute(*arguments)

    def noted(values: list[Any]) -> Any:
        terms.append(len(values))
        return add(values)

    monkeypatch.setattr(dask_rows, COMPUTE, counted)
    monkeypatch.setattr(dask_rows, "_add", noted)
    with dask.config.set(scheduler="synchronous"):
        (total,) = rows.sum(_column_sums, doubles=2)
    assert_array_equal(total, np.arange(6.0 * n_blocks).reshape(-1, 2).sum(axis=0))
    assert max(terms) <= dask_rows.FAN_IN
    assert len(graphs) == 1


def _column_sums(rows: RegressionData, block: slice) -> tuple[NDArray[Any], ...]:
    return (np.asarray(rows.X[block]).sum(axis=0),)


@pytest.mark.usefixtures("nothing_whole")
def test_passes_are_few(returned: list[int]) -> None:
    """Samples that are taken one after another are announced, and read in one pass."""
    table = _made_table(16)
    X, y = table[:, :N_FEATURES], table[:, N_FEATURES]
    estimate(X, y, 2, family="gaussian", random_seed=1)
    assert len(returned) <= 8
    returned.clear()
    fit_em(X, y, 2, family="gaussian", init="tensor", random_seed=1)
    assert len(returned) <= 14
