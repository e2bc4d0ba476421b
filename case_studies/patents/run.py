"""Patents and research: a published mixture of experts, reproduced, and its posterior."""

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init import EMFit, fit_em, predict_membership, sample, select_components
from moment_init.em.selection import ComponentChoice

if TYPE_CHECKING:
    import pandas
    import xarray

__all__ = [
    "CLASSES",
    "Reference",
    "Study",
    "describe_environment",
    "gate_draws",
    "main",
    "patent_draws",
    "prior_deviations",
    "read_firms",
    "read_reference",
    "run_study",
    "summarise",
]

FloatArray = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "patent.csv"
REFERENCE = ROOT / "tests" / "em" / "flexmix_reference.json"
"""Fits of flexmix, written by benchmarks/r/flexmix_reference.R."""
OUTPUT = Path(__file__).resolve().parent / "output"

SEED = 19
DRAWS, CHAINS = 2000, 4
TARGET_ACCEPT = 0.95
"""Above the default: if the gate is nearly a step, the posterior is strongly curved."""
LAPLACE_DRAWS = 2000
N_RANDOM_STARTS = 20
CANDIDATES = range(1, 5)
INTERVAL = (0.03, 0.97)
"""Quantiles of the 94 % intervals, ArviZ's long-time default."""

ELASTICITY_DEVIATION = 1.5
"""Prior of an elasticity: three per cent more patents for one per cent more research would be a
surprise."""
LEVEL_DEVIATION = 3.0
"""Prior of the logarithm of patents at an average budget, relative to the overall mean: a factor of
twenty between classes would not be a surprise."""
DEFAULT_GATE = 2.0
"""The package's prior of a gate's slopes, per standard deviation of the covariate."""
NORMAL_RANGE = 1.349
"""Interquartile range of a normal distribution over its standard deviation."""

CLASSES = ("prolific", "ordinary", "steep")
"""Names of the three classes, by increasing elasticity of patents to research."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Flexmix's fit of the same model."""

    log_likelihood: float
    elasticities: FloatArray  # in the order of `CLASSES`; (3,)
    biases: FloatArray  # in the order of `CLASSES`; (3,)
    version: str  # version of flexmix


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Results of the study."""

    firms: "pandas.DataFrame"  # columns Company, Patents, RDS, lgRD
    checksum: str  # SHA-256 of the file
    reference: Reference
    choice: ComponentChoice  # fits with one to four classes, with a gate
    fit: EMFit  # three classes with a gate
    ungated: EMFit  # three classes whose weights are the same for all firms
    random: EMFit  # three classes with a gate, from random starts alone
    tree: "xarray.DataTree"  # draws of the three classes and the gate
    # draws under the package's default priors, for comparison; None if nothing was sampled
    default_tree: "xarray.DataTree | None"
    # posterior probabilities of the classes for each firm, in the order of `CLASSES`; (n_obs, 3)
    membership: FloatArray
    is_sampled: bool  # whether the draws are from NUTS, not from the fit's normal approximation

    @property
    def order(self) -> list[int]:
        """Components in the order of `CLASSES`."""
        return [int(j) for j in np.argsort(self.fit.coefficients[0])]


def read_firms() -> tuple["pandas.DataFrame", str]:
    """Read the firms, and the SHA-256 of the file.

    RDS is research over sales, lgRD the logarithm of research spending.
    """
    import pandas

    return pandas.read_csv(DATA), hashlib.sha256(DATA.read_bytes()).hexdigest()


def read_reference() -> Reference:
    """Read flexmix's fit of the same model."""
    stored = json.loads(REFERENCE.read_text(encoding="utf-8"))
    (problem,) = (entry for entry in stored["problems"] if entry["name"] == "patent gate")
    biases, slopes = np.asarray(problem["parameters"], dtype=np.float64)
    order = np.argsort(slopes)
    return Reference(
        float(problem["log_likelihood"]),
        slopes[order],
        biases[order],
        stored["versions"]["flexmix"],
    )


def prior_deviations(firms: "pandas.DataFrame") -> dict[str, float]:
    """Standard deviations of the normal priors, in the model's standardised units.

    The package's defaults are for features and counts of ordinary spread. Here budgets differ by a
    factor of 2,622, so one standard deviation changes the linear predictor by two if the elasticity
    is one. One firm spends three times its sales on research, which makes the standard deviation of
    the gating covariate twelve times that of ordinary firms: the default would flatten the gate.
    """
    low, high = np.quantile(firms["RDS"], [0.25, 0.75])
    ordinary = (high - low) / NORMAL_RANGE
    return {
        "coefficient": float(ELASTICITY_DEVIATION * np.std(firms["lgRD"])),
        "bias": LEVEL_DEVIATION,
        "gate": float(DEFAULT_GATE * np.std(firms["RDS"]) / ordinary),
    }


def run_study(*, quick: bool = False, seed: int = SEED, progressbar: bool = False) -> Study:
    """Fit the published model and draw from its posterior."""
    firms, checksum = read_firms()
    data: dict[str, Any] = {"X": firms[["lgRD"]], "y": firms["Patents"]}
    gated = {**data, "gating": firms[["RDS"]]}
    settings: dict[str, Any] = {"family": "poisson", "random_seed": seed, "progressbar": False}
    choice = select_components(candidates=CANDIDATES, **gated, **settings)
    fit = fit_em(n_components=3, **gated, **settings)
    order = np.argsort(fit.coefficients[0])
    default_tree = None
    if quick:
        tree = fit.to_datatree(**gated, draws=LAPLACE_DRAWS, random_seed=seed)
    else:
        options = {"random_seed": seed, "progressbar": progressbar}
        tree = _sample(fit, firms, priors=_priors(prior_deviations(firms)), **options)
        default_tree = _sample(fit, firms, priors=None, **options)
    shares = predict_membership(tree, **gated, family="poisson", average=True)
    return Study(
        firms=firms,
        checksum=checksum,
        reference=read_reference(),
        choice=choice,
        fit=fit,
        ungated=fit_em(n_components=3, **data, **settings),
        random=fit_em(n_components=3, **gated, **settings, init="random", n_starts=N_RANDOM_STARTS),
        tree=tree,
        default_tree=default_tree,
        membership=shares.isel(component=order).to_numpy(),
        is_sampled=not quick,
    )


def _sample(fit: EMFit, firms: "pandas.DataFrame", **options: Any) -> "xarray.DataTree":
    return sample(
        firms[["lgRD"]],
        firms["Patents"],
        fit.n_components,
        gating=firms[["RDS"]],
        family="poisson",
        init=fit,
        draws=DRAWS,
        chains=CHAINS,
        target_accept=TARGET_ACCEPT,
        **options,
    )


def _priors(deviations: dict[str, float]) -> dict[str, Any]:
    import pymc as pm

    def gate(name: str, dims: tuple[str, ...]) -> Any:
        return pm.ZeroSumNormal(name, deviations["gate"], dims=dims)

    normal = {name: pm.Normal.dist(0.0, deviations[name]) for name in ("coefficient", "bias")}
    return {**normal, "gate": gate}


def patent_draws(study: Study, budgets: FloatArray) -> FloatArray:
    """Expected patents of each class at some research budgets, for every draw."""
    # budgets: (n_budgets,) -> (n_draws, n_budgets, 3)
    posterior = study.tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    posterior = posterior.isel(component=study.order)
    slopes = posterior["coefficient"].isel(feature=0).transpose("sample", ...).to_numpy()
    biases = posterior["bias"].transpose("sample", ...).to_numpy()
    return np.asarray(np.exp(biases[:, None, :] + np.log(budgets)[:, None] * slopes[:, None, :]))


def gate_draws(study: Study, shares: FloatArray) -> FloatArray:
    """Probability of each class given the share of sales spent on research, for every draw."""
    # shares: (n_shares,) -> (n_draws, n_shares, 3)
    values = predict_membership(study.tree, gating=shares[:, None], family="poisson")
    stacked = values.stack(sample=("chain", "draw")).transpose("sample", "obs", "component")
    return np.asarray(stacked.isel(component=study.order).to_numpy())


def summarise(draws: FloatArray) -> FloatArray:
    """Median, lower and upper end of the interval over the draws."""
    # draws: (n_draws, ...) -> (3, ...)
    return np.quantile(draws, (0.5, *INTERVAL), axis=0)


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "pymc", "arviz", "nutpie", "numpy", "scipy", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print its numbers and write its figure."""
    sys.path.insert(0, str(ROOT))
    from case_studies.patents.figures import write_figures
    from case_studies.patents.report import describe

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no sampling: draws about the fit")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figure")
    parsed = parser.parse_args(arguments)
    study = run_study(quick=parsed.quick, progressbar=True)
    print(describe(study))
    for path in write_figures(study, parsed.output):
        print(f"figure: {path}")
    print(describe_environment())
    return 0


if __name__ == "__main__":
    sys.exit(main())
