"""Rare components: a mixture by EM and NUTS from the tensor start, and by EM from random starts."""

import argparse
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from moment_init import Comparison, MixtureData, compare, simulate_mixture

__all__ = ["describe", "describe_environment", "main", "run_study", "simulate"]

SEED = 1  # the first of the seeds 1, 2, 3, ... that the benchmark `tensor_start` runs
N_OBS, QUICK_OBS = 10_000, 1_000  # a fifth is held out
N_FEATURES = 10
WEIGHTS = (0.75, 0.12, 0.08, 0.05)
NOISE = 0.1
N_STARTS, QUICK_STARTS = 20, 6
DRAWS, QUICK_DRAWS = 500, 100

OUTPUT = Path(__file__).resolve().parent / "output"


def simulate(n_obs: int = N_OBS, *, seed: int = SEED) -> MixtureData:
    """Draw responses of four groups; the smallest has one row in twenty."""
    return simulate_mixture(
        n_obs,
        N_FEATURES,
        len(WEIGHTS),
        family="gaussian",
        weights=WEIGHTS,
        biases=0.0,
        dispersion=NOISE,
        random_seed=seed,
    )


def run_study(
    data: MixtureData,
    *,
    n_starts: int = N_STARTS,
    draws: int = DRAWS,
    seed: int = SEED,
    progressbar: bool = True,
) -> Comparison:
    """Compare the methods of fitting the mixture."""
    return compare(
        data.X,
        data.y,
        len(WEIGHTS),
        family="gaussian",
        truth=data,
        n_starts=n_starts,
        draws=draws,
        random_seed=seed,
        progressbar=progressbar,
    )


def describe(data: MixtureData) -> str:
    """Describe the data."""
    n_obs, n_features = data.X.shape
    weights = ", ".join(f"{100 * weight:.0f}" for weight in data.weights)
    return (
        f"Gaussian mixture: {n_obs:,} rows, {n_features} features, components of {weights} % of "
        "the rows"
    )


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "pymc", "arviz", "nutpie", "numpy", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.system()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, starts and draws")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of page and figure")
    parsed = parser.parse_args(arguments)
    data = simulate(QUICK_OBS if parsed.quick else N_OBS)
    print(f"{describe(data)}\n", file=sys.stderr)
    comparison = run_study(
        data,
        n_starts=QUICK_STARTS if parsed.quick else N_STARTS,
        draws=QUICK_DRAWS if parsed.quick else DRAWS,
        progressbar=sys.stderr.isatty(),
    )
    print(comparison)
    page = comparison.to_html(parsed.output / "comparison.html")
    comparison.plot("landscape").savefig(parsed.output / "landscape.png", dpi=150)
    print(f"\nPage with all panels, to open in a browser: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
