"""A logistic mixture, simulated and estimated: are its directions recovered, and how fast?"""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init import (
    MixtureData,
    MomentEstimate,
    angles_in_degrees,
    estimate,
    match_components,
    simulate_mixture,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Study", "describe", "describe_environment", "draw_directions", "main", "run_study"]

FloatArray = NDArray[np.float64]

SEED = 7
N_OBS, QUICK_OBS = 200_000, 20_000
N_FEATURES = 6
WEIGHTS = (0.5, 0.3, 0.2)
SCALES = (3.0, 4.0, 5.0)
BIASES = (0.5, -0.5, 0.0)

WIDTH = 20  # column of names in the table

OUTPUT = Path(__file__).resolve().parent / "output"
TRUE_COLOUR, ESTIMATE_COLOUR = "#9aa5b1", "#d1495b"


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Data, estimate and their comparison."""

    data: MixtureData  # simulated data with the truth
    result: MomentEstimate  # the estimate
    # estimated directions in the order of the truth, signs unchanged; (n_features, n_components)
    directions: FloatArray
    # angles between true and estimated directions in degrees, up to 180; (n_components,)
    angles: FloatArray
    paper_angles: FloatArray  # the same angles for the paper's single third moment; (n_components,)
    seconds: float  # time of the estimate


def run_study(n_obs: int = N_OBS, *, seed: int = SEED) -> Study:
    """Simulate the mixture and estimate its directions from X and y alone."""
    data = simulate_mixture(
        n_obs,
        N_FEATURES,
        len(WEIGHTS),
        family="bernoulli",
        weights=WEIGHTS,
        scales=SCALES,
        biases=BIASES,
        random_seed=seed,
    )
    start = time.perf_counter()
    result = estimate(data.X, data.y, len(WEIGHTS), family="bernoulli", random_seed=seed)
    seconds = time.perf_counter() - start
    paper = estimate(
        data.X, data.y, len(WEIGHTS), family="bernoulli", method="power", random_seed=seed
    )
    index = match_components(result.directions, data.directions)
    return Study(
        data=data,
        result=result,
        directions=result.directions[:, index],
        angles=angles_in_degrees(result.directions, data.directions, signed=True),
        paper_angles=angles_in_degrees(paper.directions, data.directions, signed=True),
        seconds=seconds,
    )


def describe(study: Study) -> str:
    """Format true and estimated directions: features in rows, two columns per component."""
    data, result = study.data, study.result
    n_obs, n_features = data.X.shape
    n_components = data.weights.size
    pairs = [f"{'true':>9}{'estimate':>10}"] * n_components
    lines = [
        f"Logistic mixture: {n_obs:,} rows, {n_features} features, {n_components} components",
        "",
        " " * WIDTH + "".join(f"{f'component {j + 1}':>19}" for j in range(n_components)),
        " " * WIDTH + "".join(pairs),
    ]
    index = match_components(result.directions, data.directions)
    rows = dict(
        zip(
            result.feature_names,
            zip(data.directions, study.directions, strict=True),
            strict=True,
        )
    )
    estimated = {
        "scale": np.asarray(result.scales),
        "bias": np.asarray(result.biases),
        "weight": np.asarray(result.weights),
    }
    for name, truth in (("scale", data.scales), ("bias", data.biases), ("weight", data.weights)):
        rows[name] = (truth, estimated[name][index])
    for name, (truths, estimates) in rows.items():
        cells = (f"{a:>9.3f}{b:>10.3f}" for a, b in zip(truths, estimates, strict=True))
        lines.append(f"{name:<{WIDTH}}" + "".join(cells))
    for name, angles in (
        ("angle to the truth", study.angles),
        ("its standard error", np.asarray(result.standard_errors)[index]),
        ("paper's M_3 alone", study.paper_angles),
    ):
        lines.append(f"{name:<{WIDTH}}" + "".join(f"{f'{angle:.2f}°':>19}" for angle in angles))
    lines += [
        "",
        f"estimated in {study.seconds:.2f} seconds; status {study.result.status}",
        *study.result.warnings,
    ]
    return "\n".join(lines)


def draw_directions(study: Study) -> "Figure":
    """Draw true and estimated coefficients side by side, one panel per component."""
    from matplotlib.figure import Figure

    data = study.data
    n_components = data.weights.size
    figure = Figure(figsize=(3.7 * n_components, 4.0), layout="constrained")
    panels = figure.subplots(1, n_components, sharey=True)
    positions = np.arange(data.X.shape[1])
    for j, panel in enumerate(panels):
        panel.bar(positions - 0.2, data.directions[:, j], 0.4, color=TRUE_COLOUR, label="true")
        panel.bar(
            positions + 0.2, study.directions[:, j], 0.4, color=ESTIMATE_COLOUR, label="estimated"
        )
        panel.axhline(0.0, color="black", linewidth=0.8)
        panel.set_title(
            f"Component {j + 1} (weight {data.weights[j]:.0%})\noff by {study.angles[j]:.1f}°"
        )
        panel.set_xticks(positions, study.result.feature_names)
        panel.set_xlabel("feature")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("coefficient of the unit direction")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(
        f"Directions of a logistic mixture from moments, {data.X.shape[0]:,} rows, "
        f"{study.seconds:.1f} s"
    )
    return figure


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "numpy", "scipy", "tensorly", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_OBS:,} rows")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figure")
    parsed = parser.parse_args(arguments)
    study = run_study(QUICK_OBS if parsed.quick else N_OBS)
    print(describe(study))
    parsed.output.mkdir(parents=True, exist_ok=True)
    path = parsed.output / "directions.png"
    draw_directions(study).savefig(path, dpi=150)
    print(f"figure: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
