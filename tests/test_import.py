"""Importing the core leaves the heavy libraries alone."""

import subprocess
import sys

import pytest

# TensorLy 0.10 with its NumPy backend imports none of these either, so the list is exact.
LAZY = ("arviz", "joblib", "matplotlib", "numba", "pandas", "pymc", "pytensor", "rich", "xarray")


@pytest.mark.parametrize("module", ["moment_init", "moment_init.paper", "moment_init.scores"])
def test_import_of_the_core_leaves_heavy_libraries_out(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({LAZY!r}) & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []
