"""Run the R packages flexmix and mixtools, with each start timed inside R."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["MISSING", "PeerRun", "has_peers", "run_peers"]

FloatArray = NDArray[np.float64]

PACKAGES = ("flexmix", "mixtools")

SCRIPT = Path(__file__).resolve().parent / "r" / "flexmix_speed.R"

MISSING = "Rscript, flexmix or mixtools is missing: install R and these packages to compare"

# Time limit of a set of starts: ten times the slowest one observed.
LONGEST_SECONDS = 3_600

# Columns of the script's table that precede the parameters.
N_LEADING = 6


@dataclass(frozen=True, slots=True, eq=False)
class PeerRun:
    """One start of a peer."""

    seconds: float  # time of the call inside R
    n_iter: int  # iterations
    log_likelihood: float  # final log-likelihood, as the peer reports it
    # the same with the Gaussian standard deviations that maximise the likelihood: flexmix divides
    # sums of squares by n - p, and so never reaches the maximum itself
    comparable_likelihood: float
    # coefficients, biases, weights and, where the family has one, dispersion
    start: tuple[FloatArray, ...]


def has_peers() -> bool:
    """Whether R and both packages are installed."""
    if shutil.which("Rscript") is None:
        return False
    # Look the packages up without loading them, which takes seconds.
    found = " && ".join(f"nzchar(system.file(package='{name}'))" for name in PACKAGES)
    command = ["Rscript", "-e", f"stopifnot({found})"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_peers(
    path: Path,
    n_components: int,
    *,
    family: str,
    method: str,
    tolerance: float,
    n_starts: int,
    seed: int,
) -> list[PeerRun]:
    """Run single random starts of a peer; failed starts are left out."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "runs.csv"
        arguments = (path, family, n_components, tolerance, n_starts, seed, method, output)
        _run_script([str(argument) for argument in arguments])
        table = pd.read_csv(output)
    return [_as_run(row, n_components) for row in table.itertuples(index=False)]


def _run_script(arguments: Sequence[str]) -> None:
    subprocess.run(
        ["Rscript", str(SCRIPT), *arguments],
        capture_output=True,
        check=True,
        timeout=LONGEST_SECONDS,
    )


def _as_run(row: tuple[object, ...], n_components: int) -> PeerRun:
    seconds, n_iter, log_likelihood, comparable = (float(str(cell)) for cell in row[2:N_LEADING])
    values = np.array(row[N_LEADING:], dtype=np.float64).reshape(n_components, -1)
    weights, biases, coefficients, dispersion = (
        values[:, 0],
        values[:, 1],
        values[:, 2:-1].T,
        values[:, -1],
    )
    start = (coefficients, biases, weights / weights.sum())
    has_dispersion = bool(np.isfinite(dispersion).all())
    full = (*start, dispersion) if has_dispersion else start
    return PeerRun(seconds, int(n_iter), log_likelihood, comparable, full)
