"""Dask is looked for, never imported."""

import subprocess
import sys

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from moment_init import estimate, fit_em, sample, simulate_mixture
from moment_init.checks import is_dask


def test_collections_are_told_from_arrays() -> None:
    assert is_dask(None, np.ones(3), da.ones(3))
    assert not is_dask(None, np.ones(3), [1, 2])


def test_rows_are_never_read_whole_in_silence() -> None:
    """NumPy would read a Dask array, and a method of pandas is not there."""
    data = simulate_mixture(2_000, 2, 2, family="gaussian", random_seed=1)
    fit = fit_em(data.X, data.y, 2, family="gaussian", random_seed=1)
    X, y = da.from_array(data.X, chunks=(500, 2)), da.from_array(data.y, chunks=500)
    frame = dd.from_pandas(pd.DataFrame(data.X, columns=["x0", "x1"]), npartitions=2)
    for table in (X, frame):
        with pytest.raises(TypeError, match="`X` must be in memory here; got a Dask collection"):
            fit.predict(table)
        with pytest.raises(TypeError, match="`X` must be in memory here"):
            fit.score(table, y)
    with pytest.raises(TypeError, match="`y` must be in memory here"):
        fit.predict_membership(data.X, y)
    means = frame.map_partitions(fit.predict, meta=("mean", float)).compute()
    assert_array_equal(means, fit.predict(data.X))
    means = X.map_blocks(fit.predict, drop_axis=1, dtype=float).compute()
    assert_array_equal(means, fit.predict(data.X))


def test_a_formula_needs_a_frame_in_memory() -> None:
    frame = dd.from_pandas(pd.DataFrame({"y": [0, 1], "a": [1.0, 2.0]}), npartitions=1)
    for function in (estimate, fit_em, sample):
        with pytest.raises(TypeError, match=r"`y` must be a pandas.DataFrame for a formula"):
            function("y ~ a", frame, 2)


IMPORT_SPY = """
import sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        is_ours = frame.f_globals.get("__name__", "").startswith("moment_init")
        assert not (is_ours and name in ("dask", "cloudpickle")), name
sys.meta_path.insert(0, Spy())
from moment_init import estimate, simulate_mixture
data = simulate_mixture(500, 2, 1, family="poisson", random_seed=1)
estimate(data.X, data.y, 1, family="poisson")
"""


def test_an_estimate_of_arrays_does_not_import_dask() -> None:
    # A process of its own: Dask is long since imported here. What other libraries import is theirs.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_SPY],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
