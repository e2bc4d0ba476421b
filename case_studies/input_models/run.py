"""Non-Gaussian inputs: estimates under a wrong, the right and an automatically chosen model."""

import argparse
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from moment_init import MomentEstimate, angles_in_degrees, estimate
from moment_init.scores import Gaussian, GaussianMixture, InputModel, StudentT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Fit", "Input", "describe", "describe_environment", "draw_study", "main", "run_study"]

FloatArray = NDArray[np.float64]

SEED = 11
N_OBS, QUICK_OBS = 50_000, 10_000
N_DATA_SETS, QUICK_DATA_SETS = 6, 1
N_FEATURES, N_COMPONENTS = 4, 2
SCALE = 3.0  # standard deviation of a linear predictor

OUTPUT = Path(__file__).resolve().parent / "output"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = {"gaussian": "#D55E00", "right": "#0072B2", "auto": "#009E73"}
LABELS = {"gaussian": "Gaussian assumed", "right": "the right density", "auto": "chosen (auto)"}


@dataclass(frozen=True, slots=True)
class Input:
    """A kind of input."""

    name: str  # name in tables and figures
    # draws rows and returns them with their density
    draw: Callable[[int, np.random.Generator], tuple[FloatArray, InputModel]]


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of one input model on one data set."""

    kind: str  # name of the input
    data_set: int
    input_model: str  # "gaussian", "right" or "auto"
    chosen: str  # the density used: for "auto" the chosen one
    moments_angle: float  # largest angle to a true direction in degrees, by moments alone
    angle: float  # the same after the polish
    status: str  # status of the polished estimate


def draw_clusters(n_obs: int, rng: np.random.Generator) -> tuple[FloatArray, InputModel]:
    """Draw three Gaussian clusters, centred four deviations from the origin, with their density."""
    # -> (n_obs, n_features), ...
    centres = rng.standard_normal((3, N_FEATURES))
    centres *= 4.0 / np.linalg.norm(centres, axis=1, keepdims=True)
    weights = np.array([0.5, 0.3, 0.2])
    covariances = np.broadcast_to(np.eye(N_FEATURES), (3, N_FEATURES, N_FEATURES))
    rows = centres[rng.choice(3, n_obs, p=weights)] + rng.standard_normal((n_obs, N_FEATURES))
    return rows, GaussianMixture(weights=weights, means=centres, covariances=covariances)


def draw_heavy_tails(n_obs: int, rng: np.random.Generator) -> tuple[FloatArray, InputModel]:
    """Draw from Student's t with five degrees of freedom, with its density fitted."""
    # -> (n_obs, n_features), ...
    rows = rng.standard_normal((n_obs, N_FEATURES))
    rows /= np.sqrt(rng.chisquare(5.0, (n_obs, 1)) / 5.0)
    return rows, StudentT()


def draw_gaussian(n_obs: int, rng: np.random.Generator) -> tuple[FloatArray, InputModel]:
    """Draw from a Gaussian, for comparison, with its density."""
    # -> (n_obs, n_features), ...
    rows = rng.standard_normal((n_obs, N_FEATURES))
    return rows, Gaussian(np.zeros(N_FEATURES), np.eye(N_FEATURES))


INPUTS = (
    Input("Gaussian", draw_gaussian),
    Input("three clusters", draw_clusters),
    Input("Student's t, 5 d.f.", draw_heavy_tails),
)


def run_study(n_obs: int = N_OBS, n_data_sets: int = N_DATA_SETS, *, seed: int = SEED) -> list[Fit]:
    """Estimate logistic mixtures on every kind of input under every input model."""
    fits = []
    for kind in INPUTS:
        for index in range(n_data_sets):
            rng = np.random.default_rng([seed, index])
            rows, density = kind.draw(n_obs, rng)
            directions, response = _respond(rows, rng)
            models: dict[str, str | InputModel] = {
                "gaussian": "gaussian",
                "right": density,
                "auto": "auto",
            }
            for name, model in models.items():
                fits.append(_fit(kind.name, index, name, model, rows, response, directions))
    return fits


def _respond(rows: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Draw directions of two logistic regressions and responses from their mixture."""
    centred = rows - rows.mean(axis=0)
    directions = rng.standard_normal((N_FEATURES, N_COMPONENTS))
    directions /= np.std(centred @ directions, axis=0)
    predictors = SCALE * centred @ directions + rng.uniform(-0.5, 0.5, N_COMPONENTS)
    labels = rng.integers(N_COMPONENTS, size=len(rows))
    chances = expit(predictors[np.arange(len(rows)), labels])
    return directions, (rng.random(len(rows)) < chances).astype(np.float64)


def _fit(
    kind: str,
    index: int,
    name: str,
    model: str | InputModel,
    rows: FloatArray,
    response: FloatArray,
    directions: FloatArray,
) -> Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status is in the table
        alone, polished = (
            estimate(
                rows,
                response,
                N_COMPONENTS,
                input_model=model,  # type: ignore[arg-type]
                polish=is_polished,
                random_seed=index,
            )
            for is_polished in (False, True)
        )
    return Fit(
        kind=kind,
        data_set=index,
        input_model=name,
        chosen=_chosen(polished, model),
        moments_angle=_largest_angle(alone, directions),
        angle=_largest_angle(polished, directions),
        status=str(polished.status),
    )


def _chosen(result: MomentEstimate, model: str | InputModel) -> str:
    if result.input_choice is not None:
        return result.input_choice.chosen.name
    return model if isinstance(model, str) else type(model).__name__


def _largest_angle(result: MomentEstimate, directions: FloatArray) -> float:
    return float(angles_in_degrees(result.directions, directions).max())


def describe(fits: Sequence[Fit]) -> str:
    """Format medians and maxima of the angles by input and input model, and chosen densities."""
    n_data_sets = len({fit.data_set for fit in fits})
    lines = [
        f"Largest angle between a direction and its estimate, degrees; {n_data_sets} data sets",
        "",
        f"{'input':<22}{'input model':<20}{'moments alone':>20}{'after the polish':>20}",
        f"{'':<42}{'median':>10}{'worst':>10}{'median':>10}{'worst':>10}",
    ]
    for kind in dict.fromkeys(fit.kind for fit in fits):
        for name, label in LABELS.items():
            chosen_fits = [fit for fit in fits if (fit.kind, fit.input_model) == (kind, name)]
            alone = np.array([fit.moments_angle for fit in chosen_fits])
            polished = np.array([fit.angle for fit in chosen_fits])
            cells = (np.median(alone), alone.max(), np.median(polished), polished.max())
            lines.append(f"{kind:<22}{label:<20}" + "".join(f"{cell:>10.1f}" for cell in cells))
        chosen = [fit.chosen for fit in fits if (fit.kind, fit.input_model) == (kind, "auto")]
        counts = ", ".join(f"{name} {chosen.count(name)}" for name in sorted(set(chosen)))
        lines.append(f"{'':<22}chosen: {counts}")
    return "\n".join(lines)


def draw_study(fits: Sequence[Fit]) -> "Figure":
    """Draw the angles of every data set: moments alone on the left, polished on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_angles(left, fits, "moments_angle", "Moments alone")
    _draw_angles(right, fits, "angle", "After the polish by likelihood")
    left.set_ylabel("largest angle to the truth (degrees)")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _draw_angles(panel: "Axes", fits: Sequence[Fit], attribute: str, title: str) -> None:
    kinds = list(dict.fromkeys(fit.kind for fit in fits))
    for place, (name, label) in enumerate(LABELS.items()):
        model_fits = [fit for fit in fits if fit.input_model == name]
        positions = np.array([kinds.index(fit.kind) for fit in model_fits]) + 0.22 * (place - 1)
        jitter = np.linspace(-0.06, 0.06, max(2, len({fit.data_set for fit in model_fits})))
        positions = positions + jitter[[fit.data_set for fit in model_fits]]
        angles = [getattr(fit, attribute) for fit in model_fits]
        panel.plot(positions, angles, "o", color=COLOURS[name], alpha=0.75, label=label)
    panel.set_yscale("log")
    panel.set_yticks([0.5, 1, 2, 5, 10, 20, 45, 90], ["0.5", "1", "2", "5", "10", "20", "45", "90"])
    panel.set_xticks(range(len(kinds)), kinds)
    panel.set_xlabel("distribution of the input")
    panel.set_title(title)
    panel.grid(axis="y", color="#dddddd")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "numpy", "scipy", "scikit-learn", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.system()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small data set of each kind")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figure")
    parsed = parser.parse_args(arguments)
    sizes = (QUICK_OBS, QUICK_DATA_SETS) if parsed.quick else (N_OBS, N_DATA_SETS)
    fits = run_study(*sizes)
    print(describe(fits))
    parsed.output.mkdir(parents=True, exist_ok=True)
    path = parsed.output / "angles.png"
    draw_study(fits).savefig(path, dpi=150)
    print(f"figure: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
