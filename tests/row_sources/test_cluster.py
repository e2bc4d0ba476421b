"""Estimates on a cluster of processes: the same as in memory, whatever becomes of a worker."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from moment_init import estimate, simulate_mixture

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

N_BLOCKS = 8
N_OBS = 400_000

FATAL_CALL = 40
"""The reading of a block at which a worker dies: five passes into the estimate."""


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def _deadly_block(folder: str, block: NDArray[np.int64]) -> NDArray[np.float64]:
    """A block; the worker that reads the fatal one dies, once."""
    calls = Path(folder) / "calls"
    (calls / f"{os.getpid()}-{os.urandom(8).hex()}").touch()
    died = Path(folder) / "died"
    if len(list(calls.iterdir())) >= FATAL_CALL and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    rows: NDArray[np.float64] = np.load(Path(folder) / f"{block[0]}.npy")
    return rows


def _deadly_table(folder: Path, rows: NDArray[np.float64]) -> Any:
    (folder / "calls").mkdir()
    for number, block in enumerate(np.split(rows, N_BLOCKS)):
        np.save(folder / f"{number}.npy", block)
    return da.map_blocks(
        partial(_deadly_block, str(folder)),
        da.arange(N_BLOCKS, chunks=1),
        new_axis=1,
        chunks=((len(rows) // N_BLOCKS,) * N_BLOCKS, (rows.shape[1],)),
        dtype=np.float64,
        meta=np.empty((0, 0)),
    )


@pytest.mark.slow
def test_a_worker_that_dies_changes_nothing(client: Any, tmp_path: Path) -> None:
    data = simulate_mixture(N_OBS, 6, 2, family="gaussian", scales=1.0, random_seed=7)
    expected = estimate(data.X, data.y, 2, family="gaussian", random_seed=1)
    table = _deadly_table(tmp_path, np.column_stack([data.X, data.y]))
    found = estimate(table[:, :6], table[:, 6], 2, family="gaussian", random_seed=1)
    assert (tmp_path / "died").exists()
    for first, second in zip(found.candidates, expected.candidates, strict=True):
        np.testing.assert_allclose(first.coefficients, second.coefficients, rtol=1e-8)
    np.testing.assert_allclose(found.directions, expected.directions, rtol=1e-8)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)
