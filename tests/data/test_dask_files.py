"""The guide's ways from files, on small ones: Parquet of several files and row groups, Zarr."""

from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from moment_init import fit_em, simulate_mixture

pytestmark = pytest.mark.usefixtures("nothing_whole")

DATA = simulate_mixture(6_000, 3, 2, family="poisson", scales=0.6, random_seed=3)
FRAME = pd.DataFrame(DATA.X, columns=["age", "income", "distance"]).assign(visits=DATA.y)
OPTIONS: dict[str, Any] = {
    "family": "poisson",
    "init": (DATA.coefficients, DATA.biases, DATA.weights),
    "random_seed": 1,
}


@pytest.fixture(autouse=True)
def few_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that all rows are more than twice as many."""
    monkeypatch.setattr("moment_init.em.search.SEARCH_UNITS", 2_000)
    monkeypatch.setattr("moment_init.em.search.SEARCH_UNITS_PER_PARAMETER", 20)


def _write_parquet(folder: Path, frame: pd.DataFrame) -> None:
    for number, rows in enumerate(np.split(np.arange(len(frame)), [1_000, 4_500])):
        part = frame.iloc[rows]
        part.to_parquet(folder / f"{number}.parquet", index=False, row_group_size=700)


@pytest.mark.parametrize("options", [{}, {"split_row_groups": True}, {"blocksize": "20kB"}])
def test_parquet(tmp_path: Path, options: dict[str, Any]) -> None:
    # Counts and an integer column: files keep types, and what is not asked for is not read.
    _write_parquet(tmp_path, FRAME.astype({"visits": "int16"}).assign(name="someone"))
    frame = dd.read_parquet(tmp_path, **options)
    X = frame[["age", "income", "distance"]]
    expected = fit_em(FRAME.drop(columns="visits"), FRAME["visits"], 2, **OPTIONS)
    fit = fit_em(X, frame["visits"], 2, **OPTIONS)
    assert fit.feature_names == ("age", "income", "distance")
    assert isinstance(fit.responsibilities, da.Array)
    assert_allclose(fit.coefficients, expected.coefficients, rtol=1e-10)
    assert fit.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)
    means = X.map_partitions(fit.predict, meta=("mean", float)).compute()
    assert_allclose(means, expected.predict(FRAME.drop(columns="visits")), rtol=1e-7)


def test_zarr(tmp_path: Path) -> None:
    X, y = FRAME.drop(columns="visits").to_numpy(np.float32), FRAME["visits"].to_numpy()
    da.from_array(X, chunks=(1_700, 2)).to_zarr(tmp_path / "inputs.zarr")
    da.from_array(y, chunks=2_500).to_zarr(tmp_path / "visits.zarr")
    expected = fit_em(X, y, 2, **OPTIONS)
    inputs, visits = da.from_zarr(tmp_path / "inputs.zarr"), da.from_zarr(tmp_path / "visits.zarr")
    fit = fit_em(inputs, visits, 2, **OPTIONS)
    assert_allclose(fit.coefficients, expected.coefficients, rtol=1e-10)
    means = inputs.rechunk({1: -1}).map_blocks(fit.predict, drop_axis=1, dtype=float)
    assert_allclose(means.compute(), expected.predict(X), rtol=1e-7)
