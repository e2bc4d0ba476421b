"""Dask is looked for, never imported."""

import subprocess
import sys

import dask.array as da
import numpy as np

from moment_init.row_sources.detection import is_elsewhere


def test_collections_are_told_from_arrays() -> None:
    assert is_elsewhere(None, np.ones(3), da.ones(3))
    assert not is_elsewhere(None, np.ones(3), [1, 2])


def test_an_estimate_of_arrays_does_not_import_dask() -> None:
    code = (
        "import sys, numpy as np\n"
        "from moment_init import estimate, simulate_mixture\n"
        "data = simulate_mixture(500, 2, 1, family='poisson', random_seed=1)\n"
        "estimate(data.X, data.y, 1, family='poisson')\n"
        "assert 'dask' not in sys.modules and 'cloudpickle' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
