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
N_OBS = 64_000

FATAL_CALL = 40
"""The reading of a block at which a worker dies: in the middle of the estimate's passes."""


@pytest.fixture
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def _deadly_block(folder: str, block: NDArray[np.int64]) -> NDArray[np.float64]:
    """A block; the worker that reads the fatal one dies, with the sums that it has."""
    calls = Path(folder) / "calls"
    (calls / f"{os.getpid()}-{os.urandom(8).hex()}").touch()
    if len(list(calls.iterdir())) >= FATAL_CALL:
        try:
            (Path(folder) / "died").mkdir()  # by one worker only
        except FileExistsError:
            pass
        else:
            (Path(folder) / "died" / str(os.getpid())).touch()
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


@pytest.mark.usefixtures("nothing_whole")
def test_a_worker_that_dies_changes_nothing(client: Any, tmp_path: Path) -> None:
    data = simulate_mixture(N_OBS, 3, 2, family="gaussian", scales=1.0, random_seed=7)
    options: dict[str, Any] = {
        "family": "gaussian",
        "input_model": "gaussian",
        "random_seed": 1,
    }
    expected: Any = estimate(data.X, data.y, 2, **options)
    table = _deadly_table(tmp_path, np.column_stack([data.X, data.y]))
    before = set(client.run(os.getpid).values())
    found: Any = estimate(table[:, :3], table[:, 3], 2, **options)
    (died,) = (int(path.name) for path in (tmp_path / "died").iterdir())
    assert died in before
    assert died not in client.run(os.getpid).values()
    # The pass in which it died was made up for, and others followed.
    assert len(list((tmp_path / "calls").iterdir())) > FATAL_CALL + N_BLOCKS
    for first, second in zip(found.candidates, expected.candidates, strict=True):
        np.testing.assert_allclose(first.coefficients, second.coefficients, rtol=1e-10)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-10)
    np.testing.assert_allclose(found.biases, expected.biases, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-10)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)
