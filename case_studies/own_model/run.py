"""A hand-written mixture of logistic regressions: PyMC's default start against ours."""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init import (
    EMFit,
    MixtureData,
    align_components,
    fit_em,
    initial_values,
    simulate_mixture,
)

if TYPE_CHECKING:
    import pymc
    import xarray
    from matplotlib.figure import Figure

__all__ = [
    "Study",
    "describe",
    "describe_environment",
    "draw_labels",
    "hand_written_model",
    "main",
    "run_study",
]

SEED = 11
N_OBS, QUICK_OBS = 5_000, 2_000
DRAWS, QUICK_DRAWS = 500, 100
CHAINS = 4  # PyMC's default depends on the machine
N_FEATURES = 5
WEIGHTS = (0.4, 0.35, 0.25)
SCALES = (4.0, 3.5, 4.5)
BIASES = (0.3, -0.5, 0.8)

MAPPING = {"slopes": "coefficient", "alpha": "bias", "w": "weight"}
"""Parameters of the fit, by variable of the hand-written model."""

OUTPUT = Path(__file__).resolve().parent / "output"
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # safe for colour-blind readers
MARKERS = ("o", "s", "^")


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Draws from both starts."""

    data: MixtureData  # simulated data with the truth
    fit: EMFit  # the fit that gives the start values
    trees: "dict[str, xarray.DataTree]"  # draws by start
    seconds: dict[str, float]  # time by start, with compilation


def hand_written_model(data: MixtureData) -> "pymc.Model":
    """The model as a user would write it: weights `w`, biases `alpha`, coefficients `slopes`."""
    import pymc as pm

    n_components = len(WEIGHTS)
    coords = {"component": range(n_components), "feature": range(N_FEATURES)}
    with pm.Model(coords=coords) as model:
        inputs = pm.Data("X", data.X)
        weight = pm.Dirichlet("w", np.ones(n_components), dims="component")
        alpha = pm.Normal("alpha", 0.0, 2.0, dims="component")
        slopes = pm.Normal("slopes", 0.0, 3.0, dims=("component", "feature"))
        eta = alpha + pm.math.dot(inputs, slopes.T)
        components = [pm.Bernoulli.dist(logit_p=eta[:, j]) for j in range(n_components)]
        pm.Mixture("y", w=weight, comp_dists=components, observed=data.y.astype(int))
    return model


def run_study(
    n_obs: int = N_OBS, *, draws: int = DRAWS, seed: int = SEED, progressbar: bool = False
) -> Study:
    """Sample the model from PyMC's default start and from the fit, without relabelling."""
    import pymc as pm

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
    fit = fit_em(data.X, data.y, len(WEIGHTS), family="bernoulli", random_seed=seed)
    model = hand_written_model(data)
    start = initial_values(fit, model, mapping=MAPPING, spread=1.0, random_seed=seed)
    # PyMC's jitter, U(-1, 1) on the unconstrained scale, would undo the start.
    ours: dict[str, Any] = {"initvals": start, "compile_kwargs": {"jitter_rvs": set()}}
    trees, seconds = {}, {}
    for name, options in {"PyMC's default": {}, "initial_values": ours}.items():
        began = time.perf_counter()
        trees[name] = pm.sample(
            draws,
            chains=CHAINS,
            model=model,
            random_seed=seed,
            progressbar=progressbar,
            quiet=True,
            **options,
        )
        seconds[name] = time.perf_counter() - began
    return Study(data, fit, trees, seconds)


def describe(study: Study) -> str:
    """Format R-hat, effective sample sizes and times."""
    import arviz as az

    lines = [
        f"Logistic mixture by hand: {study.data.X.shape[0]:,} rows, {len(WEIGHTS)} components",
        "",
        f"{'':<18}{'as sampled':>24}{'components matched':>24}",
        f"{'':<18}" + f"{'max R-hat':>12}{'min ESS':>12}" * 2 + f"{'seconds':>10}",
    ]
    fit = study.fit
    reference = {"slopes": fit.coefficients, "alpha": fit.biases, "w": fit.weights}
    for name, tree in study.trees.items():
        cells = ""
        for version_of_it in (tree, align_components(tree, reference)):
            summary = az.summary(version_of_it, var_names=list(MAPPING), round_to="none")
            cells += f"{summary['r_hat'].max():>12.3f}{summary['ess_bulk'].min():>12.0f}"
        lines.append(f"{name:<18}{cells}{study.seconds[name]:>10.0f}")
    return "\n".join([*lines, "", "seconds include compilation"])


def draw_labels(study: Study) -> "Figure":
    """Draw the slopes of components 1, 2 and 3 in each chain, one panel per start."""
    from matplotlib.figure import Figure

    coefficients = study.data.directions * study.data.scales
    # The column whose slopes separate the components best.
    feature = int(np.diff(np.sort(coefficients, axis=1), axis=1).min(axis=1).argmax())
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    panels = figure.subplots(1, len(study.trees), sharey=True)
    for panel, (name, tree) in zip(panels, study.trees.items(), strict=True):
        slopes = tree["posterior"]["slopes"].isel(feature=feature)
        means, errors = slopes.mean("draw").to_numpy(), slopes.std("draw").to_numpy()
        chains = np.arange(len(means))
        for j, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
            panel.errorbar(
                chains + 0.15 * (j - 1),
                means[:, j],
                2.0 * errors[:, j],
                color=colour,
                fmt=marker,
                label=f"component {j + 1}",
            )
        for truth in coefficients[feature]:
            panel.axhline(truth, color="#9aa5b1", linewidth=0.8, zorder=0)
        panel.set_title(f"Start: {name}")
        panel.set_xticks(chains, [f"chain {chain + 1}" for chain in chains])
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"slope of column {feature}: mean ± 2 sd\n(lines: true slopes)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "pymc", "arviz", "nutpie", "numpy")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_OBS:,} rows, fewer draws")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figure")
    parsed = parser.parse_args(arguments)
    quick = parsed.quick
    study = run_study(
        QUICK_OBS if quick else N_OBS, draws=QUICK_DRAWS if quick else DRAWS, progressbar=True
    )
    print(describe(study))
    parsed.output.mkdir(parents=True, exist_ok=True)
    path = parsed.output / "labels.png"
    draw_labels(study).savefig(path, dpi=150)
    print(f"figure: {path}")
    print(describe_environment())
    return 0


if __name__ == "__main__":
    sys.exit(main())
