"""Rare components: a Poisson mixture by EM and NUTS from the search and random starts."""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from moment_init import Comparison, MixtureData, compare, simulate_mixture

__all__ = ["describe", "describe_environment", "main", "run_study", "simulate"]

SEED = 7
N_OBS, QUICK_OBS = 3_000, 800
N_FEATURES = 10
WEIGHTS = (0.80, 0.10, 0.06, 0.04)
SCALE, BIAS = 1.0, 1.5
N_STARTS, QUICK_STARTS = 20, 6
DRAWS, QUICK_DRAWS = 500, 100

HEADLINE_PANELS = ("landscape", "rhat")

OUTPUT = Path(__file__).resolve().parent / "output"


def simulate(n_obs: int = N_OBS, *, seed: int = SEED) -> MixtureData:
    """Draw counts of four groups; the smallest has one row in twenty-five."""
    return simulate_mixture(
        n_obs,
        N_FEATURES,
        len(WEIGHTS),
        family="poisson",
        weights=WEIGHTS,
        scales=SCALE,
        biases=BIAS,
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
        family="poisson",
        truth=data,
        n_starts=n_starts,
        draws=draws,
        random_seed=seed,
        progressbar=progressbar,
    )


def describe(data: MixtureData, comparison: Comparison) -> str:
    """Describe the data, the verdict and the table."""
    n_obs, n_features = data.X.shape
    weights = ", ".join(f"{weight:.0%}" for weight in data.weights)
    head = f"Poisson mixture: {n_obs:,} rows, {n_features} features, components of {weights}"
    return f"{head}\n\n{comparison}"


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
    began = time.perf_counter()
    data = simulate(QUICK_OBS if parsed.quick else N_OBS)
    comparison = run_study(
        data,
        n_starts=QUICK_STARTS if parsed.quick else N_STARTS,
        draws=QUICK_DRAWS if parsed.quick else DRAWS,
    )
    print(describe(data, comparison))
    parsed.output.mkdir(parents=True, exist_ok=True)
    figure = parsed.output / "landscape.png"
    comparison.figure(HEADLINE_PANELS).savefig(figure, dpi=150)
    comparison.figure().savefig(parsed.output / "comparison.png", dpi=150)
    page = comparison.to_html(parsed.output / "comparison.html")
    print(f"\n{time.perf_counter() - began:.0f} seconds; figure: {figure}")
    print(f"open the page in a browser: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
