"""Tone perception: two lines in one covariate, without moments."""

import argparse
import hashlib
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init import (
    EMFit,
    MomentEstimate,
    WeakSignalWarning,
    estimate,
    fit_em,
    predict_membership,
    sample,
)

if TYPE_CHECKING:
    import pandas
    import xarray

__all__ = [
    "LINES",
    "Study",
    "describe",
    "describe_environment",
    "describe_optima",
    "describe_posterior",
    "describe_starts",
    "line_draws",
    "main",
    "read_data",
    "run_study",
]

FloatArray = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "tonedata.csv"
OUTPUT = Path(__file__).resolve().parent / "output"

SEED = 20
DRAWS, CHAINS = 1000, 4
LAPLACE_DRAWS = 2000
N_RANDOM_STARTS = 20
INTERVAL = (0.03, 0.97)
"""Quantiles of the 94 % intervals, ArviZ's long-time default."""

FREE_RATIO = 0.001
"""Smallest ratio of standard deviations; so low that no optimum reaches it."""
NEAR = 0.01
"""Tunings this close to the stretch ratio count as equal to it: a fifth of 0.046, the smaller
standard deviation of the two lines."""

SMALL_STRETCH = 0.15
"""Ratios within this distance of 2 form a separate cluster of the design, 1.90 to 2.10."""

LINES = ("octave", "partials")
"""Names of the two lines, by increasing slope."""


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Results of the study."""

    table: "pandas.DataFrame"  # columns stretchratio, tuned
    checksum: str  # SHA-256 of the file
    moments: MomentEstimate  # estimate by moments, for comparison
    fit: EMFit  # two lines by the default call
    random: EMFit  # two lines from random starts alone
    unguarded: EMFit  # two lines without a bound on the ratio of standard deviations
    three: EMFit  # three lines without that bound
    tree: "xarray.DataTree"  # draws of the two lines
    # posterior probability that a tuning belongs to the steeper line; (n_obs,)
    membership: FloatArray
    is_sampled: bool  # whether the draws are from NUTS, not from the fit's normal approximation

    @property
    def order(self) -> list[int]:
        """Components in the order of `LINES`."""
        return [int(j) for j in np.argsort(self.fit.coefficients[0])]

    @property
    def equal_counts(self) -> dict[str, tuple[int, int]]:
        """Number of tunings within `NEAR` of the stretch ratio, and of all, by kind of ratio."""
        ratios = self.table["stretchratio"]
        is_equal = (self.table["tuned"] - ratios).abs() < NEAR
        is_small = (ratios - 2.0).abs() < SMALL_STRETCH
        kinds = {"near 2": is_small, "elsewhere": ~is_small}
        return {name: (int(is_equal[rows].sum()), int(rows.sum())) for name, rows in kinds.items()}


def read_data() -> tuple["pandas.DataFrame", str]:
    """Read the 150 tunings, and the SHA-256 of the file."""
    import pandas

    return pandas.read_csv(DATA), hashlib.sha256(DATA.read_bytes()).hexdigest()


def run_study(*, quick: bool = False, seed: int = SEED, progressbar: bool = False) -> Study:
    """Fit the lines with and without the guard, and draw from the posterior of two lines."""
    table, checksum = read_data()
    X, y = table[["stretchratio"]], table["tuned"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)  # `describe` prints it
        moments = estimate(X, y, 2, family="gaussian", random_seed=seed)

    def fit_lines(number: int = 2, **options: Any) -> EMFit:
        settings: dict[str, Any] = {"random_seed": seed, "progressbar": False, **options}
        return fit_em(X, y, number, family="gaussian", **settings)

    fit = fit_lines()
    if quick:
        tree = fit.to_datatree(X, y, draws=LAPLACE_DRAWS, random_seed=seed)
    else:
        # With one feature there is no angle to anchor, so directions are free.
        options: dict[str, Any] = {"directions": "free", "draws": DRAWS, "chains": CHAINS}
        options |= {"random_seed": seed, "progressbar": progressbar}
        tree = sample(X, y, 2, family="gaussian", init=fit, **options)
    shares = predict_membership(tree, X, y, family="gaussian", average=True)
    steeper = int(np.argmax(fit.coefficients[0]))
    return Study(
        table=table,
        checksum=checksum,
        moments=moments,
        fit=fit,
        random=fit_lines(init="random", n_starts=N_RANDOM_STARTS),
        unguarded=fit_lines(min_dispersion_ratio=FREE_RATIO),
        three=fit_lines(3, min_dispersion_ratio=FREE_RATIO),
        tree=tree,
        membership=shares.isel(component=steeper).to_numpy(),
        is_sampled=not quick,
    )


def line_draws(study: Study, ratios: FloatArray) -> FloatArray:
    """Height of each line at some stretch ratios, for every draw."""
    # ratios: (n_ratios,) -> (n_draws, n_ratios, 2)
    posterior = study.tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    slopes = posterior["coefficient"].isel(feature=0, component=study.order)
    biases = posterior["bias"].isel(component=study.order)
    slope_values = slopes.transpose("sample", "component").to_numpy()
    bias_values = biases.transpose("sample", "component").to_numpy()
    return np.asarray(bias_values[:, None, :] + ratios[:, None] * slope_values[:, None, :])


def describe_starts(study: Study) -> str:
    """Describe what moments show and where the starts end."""
    fit, moments = study.fit, study.moments
    spectrum = np.asarray(getattr(moments.diagnostics, "spectrum", []))
    reached, converged = fit.reached_best
    hits, runs = study.random.reached_best
    kinds = Counter(one.origin.rstrip(" 0123456789") for one in fit.starts)
    starts = ", ".join(f"{kind} ({number})" for kind, number in kinds.items())
    return "\n".join(
        [
            f"moments: status {moments.status}; {int((spectrum > 1).sum())} direction above noise "
            f"for 2 lines (spectrum {', '.join(f'{value:.2f}' for value in spectrum)})",
            *(f"  {line}" for line in moments.warnings),
            f"fit_em: log-likelihood {fit.log_likelihood:.3f}, status {fit.status}; reached by "
            f"{reached} of {converged} converged starts ({len(fit.starts)} in all)",
            f"  starts: {starts}",
            f"random starts alone: {study.random.log_likelihood:.3f}, reached by {hits} of {runs}",
        ]
    )


def describe_optima(study: Study) -> str:
    """Format the fits with and without the guard against vanishing standard deviations."""
    named = {
        "two lines, guarded": study.fit,
        "two lines, no guard": study.unguarded,
        "three lines, no guard": study.three,
    }
    head = f"{'':<23}{'log-likelihood':>15}{'BIC':>9}   {'slopes':<22}"
    lines = [f"{head}{'standard deviations':<24}weights"]
    for name, fit in named.items():
        slopes = ", ".join(f"{value:.3f}" for value in fit.coefficients[0])
        deviations = ", ".join(f"{value:.4f}" for value in np.asarray(fit.dispersion))
        weights = ", ".join(f"{value:.2f}" for value in fit.weights)
        lines.append(
            f"{name:<23}{fit.log_likelihood:>15.3f}{fit.bic:>9.1f}   {slopes:<22}{deviations:<24}"
            f"{weights}"
        )
    counts = "; ".join(
        f"{equal} of {total} {name}" for name, (equal, total) in study.equal_counts.items()
    )
    total = sum(equal for equal, _ in study.equal_counts.values())
    lines.append(
        f"{total} of {len(study.table)} tunings equal the stretch ratio to within {NEAR}: {counts}"
    )
    return "\n".join(lines)


def describe_posterior(study: Study) -> str:
    """Format means and 94 % intervals, one column per line."""
    posterior = study.tree["posterior"].to_dataset().isel(component=study.order)
    kind = "NUTS" if study.is_sampled else "normal approximation of the fit"
    lines = [f"posterior ({kind}), 94 % intervals", f"{'':<22}{LINES[0]:<26}{LINES[1]}"]
    rows = {
        "slope": posterior["coefficient"].isel(feature=0),
        "bias": posterior["bias"],
        "standard deviation": posterior["dispersion"],
        "weight": posterior["weight"],
    }
    for name, draws in rows.items():
        low, high = draws.quantile(INTERVAL, dim=("chain", "draw")).to_numpy()
        means = draws.mean(dim=("chain", "draw")).to_numpy()
        cells = [
            f"{f'{mean:.3f}  [{a:.3f}, {b:.3f}]':<26}"
            for mean, a, b in zip(means, low, high, strict=True)
        ]
        lines.append(f"{name:<22}" + "".join(cells).rstrip())
    sure = np.maximum(study.membership, 1.0 - study.membership) > 0.9
    count = f"{int(sure.sum())} of {sure.size}"
    lines.append(f"{count} tunings belong to one line with probability above 0.9")
    return "\n".join([*lines, *_convergence(study)])


def _convergence(study: Study) -> list[str]:
    """R-hat and effective draws, if chains were run."""
    if not study.is_sampled:
        return []
    import arviz as az

    names = ["coefficient", "bias", "dispersion", "weight"]
    summary = az.summary(study.tree, var_names=names, round_to="none")
    divergent = int(study.tree["sample_stats"]["diverging"].sum())
    return [
        f"max R-hat {summary['r_hat'].max():.3f}, min bulk ESS {summary['ess_bulk'].min():.0f}, "
        f"{divergent} divergences"
    ]


def describe(study: Study) -> str:
    """Format all results: data, starts, optima, posterior."""
    head = (
        f"Tone perception: {len(study.table)} tunings, 1 feature, 2 lines\n"
        f"data: {DATA.relative_to(ROOT).as_posix()}, sha256 {study.checksum}"
    )
    parts = (describe_starts, describe_optima, describe_posterior)
    return "\n\n".join([head, *(part(study) for part in parts)])


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "pymc", "arviz", "nutpie", "numpy", "scipy", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print its numbers and write its figures."""
    sys.path.insert(0, str(ROOT))
    from case_studies.tone_perception.figures import write_figures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no sampling: draws about the fit")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figures")
    parsed = parser.parse_args(arguments)
    study = run_study(quick=parsed.quick, progressbar=True)
    print(describe(study))
    for path in write_figures(study, parsed.output):
        print(f"figure: {path}")
    print(describe_environment())
    return 0


if __name__ == "__main__":
    sys.exit(main())
