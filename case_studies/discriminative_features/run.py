"""Directions of a mixture as features of a linear classifier, compared with other features."""

import argparse
import platform
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, solve_triangular
from scipy.special import expit

from moment_init import MixtureGLMClassifier, WeakSignalWarning, simulate_mixture
from moment_init.scores import Gaussian

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = [
    "Rows",
    "describe",
    "describe_environment",
    "draw_losses",
    "generalised_eigenvectors",
    "load_rows",
    "main",
    "run_study",
]

FloatArray = NDArray[np.float64]

SEED = 1405
N_REPEATS, QUICK_REPEATS = 4, 2
N_DIRECTIONS = 2  # per class against the others; two classes have one target
N_SIMULATED, N_FEATURES = 3_000, 10
TEST_SHARE = 1 / 3
N_PIXEL_AXES = 20
RIDGE = 1e-3
"""Multiple of the identity added to second moments before they are compared."""

SMALLEST_SHARE = 1e-6
"""Lower bound of predicted probabilities, for all methods, so that log-loss is finite."""

CANCELLING = np.zeros((N_FEATURES, 2))
CANCELLING[:3] = [[0.8, -0.8], [0.6, 0.0], [0.0, 0.6]]
"""Directions 130 degrees apart, which mostly cancel in the slope of the mean."""

DATA = (
    "simulated, directions at random",
    "simulated, directions that cancel",
    "digits",
    "breast cancer",
)
MAPS = ("projections", "g of them", "component means", "squares and products")
PROJECTIONS, OF_THEM, MEANS, PRODUCTS = MAPS
OUTPUT = Path(__file__).resolve().parent / "output"
COLOURS = {
    "raw columns": "#6b7280",
    "mixture": "#0072b2",
    "generalised eigenvectors": "#d55e00",
    "PHd": "#009e73",
    "SIR": "#cc79a7",
}
MARKERS = dict(zip(COLOURS, "osD^v", strict=True))
ITSELF = "the mixture itself"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Training and test rows of one split, standardised by the training rows."""

    X: FloatArray  # training inputs; (n_obs, n_features)
    y: FloatArray  # class labels as integers; (n_obs,)
    X_test: FloatArray  # test inputs; (n_test, n_features)
    y_test: FloatArray  # (n_test,)


def load_rows(name: str, seed: int) -> Rows:
    """Split a data set at random into training and test rows; simulated data are drawn anew."""
    from sklearn.decomposition import PCA
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    X, y = _data_set(name, seed)
    first, second, y_first, y_second = train_test_split(
        X, y, test_size=TEST_SHARE, stratify=y, random_state=seed
    )
    scaler = StandardScaler().fit(first)
    first, second = scaler.transform(first), scaler.transform(second)
    if first.shape[1] > 2 * N_PIXEL_AXES:  # pixels: unsupervised axes for all methods
        axes = PCA(N_PIXEL_AXES, whiten=True, random_state=seed).fit(first)
        first, second = axes.transform(first), axes.transform(second)
    return Rows(first, y_first, second, y_second)


def _data_set(name: str, seed: int) -> tuple[FloatArray, FloatArray]:
    from sklearn.datasets import load_breast_cancer, load_digits

    if name.startswith("simulated"):
        data = simulate_mixture(
            N_SIMULATED,
            N_FEATURES,
            N_DIRECTIONS,
            family="bernoulli",
            scales=6.0,
            biases=-4.0,
            directions=CANCELLING if "cancel" in name else None,
            random_seed=seed,
        )
        return data.X, data.y
    X, y = (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
    return X[:, X.std(axis=0) > 0.0], y.astype(np.float64)


def generalised_eigenvectors(X: FloatArray, y: FloatArray, n_directions: int) -> FloatArray:
    r"""Directions along which the classes differ most in their second moments.

    .. math:: E[x x' \mid y = 1]\, v = \lambda\, E[x x' \mid y = 0]\, v

    Unit vectors, sorted by the larger of lambda and 1 / lambda.
    """
    # X: (n_obs, n_features), y: (n_obs,) -> (n_features, n_directions)
    moments = [X[y == label].T @ X[y == label] / np.sum(y == label) for label in (1.0, 0.0)]
    # Columns are standardised; without a ridge, noise dominates lambda if there are few rows.
    one, other = (moment + RIDGE * np.eye(len(moment)) for moment in moments)
    values, vectors = eigh(one, other)
    order = np.argsort(-np.abs(np.log(values)))[:n_directions]
    chosen = vectors[:, order]
    return np.asarray(chosen / np.linalg.norm(chosen, axis=0))


def _hessian_directions(z: FloatArray, y: FloatArray) -> FloatArray:
    """Principal Hessian directions (Li 1992): eigenvectors of E[residual of y times z z']."""
    centred = y - y.mean()
    residual = centred - z @ (z.T @ centred / len(y))
    values, vectors = np.linalg.eigh((z.T * residual) @ z)
    return np.asarray(vectors[:, np.argsort(-np.abs(values))[:N_DIRECTIONS]])


def _inverse_regression(z: FloatArray, y: FloatArray) -> FloatArray:
    """Sliced inverse regression (Li 1991), one slice per class: the span of the means of z.

    The weighted means of k classes sum to zero and span k - 1 directions.
    """
    members = y == np.unique(y)[:, None]  # (n_classes, n_obs)
    means = members @ z / np.sqrt(members.sum(axis=1))[:, None]
    return np.asarray(np.linalg.svd(means)[2][: len(members) - 1].T)


def _directions(X: FloatArray, y: FloatArray) -> dict[str, FloatArray]:
    """Directions by every method except the mixture."""
    classes = np.unique(y)
    targets = [(y == label).astype(np.float64) for label in classes[len(classes) == 2 :]]
    eigenvectors = [generalised_eigenvectors(X, target, N_DIRECTIONS) for target in targets]
    density = Gaussian().fit(X)
    z, factor = density.whiten(X), density.standardising_basis

    def to_columns(basis: FloatArray) -> FloatArray:
        """Orthonormal basis in X of a span that is given in z = L^-1 (x - mean)."""
        return np.linalg.qr(solve_triangular(factor, basis, lower=True, trans="T"))[0]

    return {
        "raw columns": np.eye(X.shape[1]),
        "generalised eigenvectors": np.hstack(eigenvectors),
        "PHd": np.hstack([to_columns(_hessian_directions(z, target)) for target in targets]),
        "SIR": to_columns(_inverse_regression(z, y)),
    }


def _features(
    rows: Rows, mixture: MixtureGLMClassifier
) -> dict[tuple[str, str], tuple[FloatArray, FloatArray]]:
    """Training and test features for every method and map."""
    from sklearn.preprocessing import PolynomialFeatures

    inputs = rows.X, rows.X_test
    projected = {
        name: tuple(X @ basis for X in inputs)
        for name, basis in _directions(rows.X, rows.y).items()
    }
    projected["mixture"] = tuple(map(mixture.transform, inputs))
    result: dict[tuple[str, str], Any] = {}
    for name, (first, second) in projected.items():
        products = PolynomialFeatures(2, include_bias=False)
        result[name, PROJECTIONS] = first, second
        result[name, OF_THEM] = expit(first), expit(second)
        result[name, PRODUCTS] = products.fit_transform(first), products.transform(second)
    mixture.set_params(transform_link="components")
    result["mixture", MEANS] = tuple(map(mixture.transform, inputs))
    return result


def run_study(n_repeats: int = N_REPEATS, *, seed: int = SEED) -> "pandas.DataFrame":
    """Compute accuracy and log-loss on test rows, for each data set, split, directions and map."""
    import pandas as pd
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    records = []
    for name in DATA:
        for repeat in range(n_repeats):
            rows = load_rows(name, seed + repeat)
            labels = {"data": name, "repeat": repeat}
            with warnings.catch_warnings():
                # Weak signals are part of the question.
                warnings.simplefilter("ignore", WeakSignalWarning)
                mixture = MixtureGLMClassifier(N_DIRECTIONS, random_state=seed + repeat)
                mixture.fit(rows.X, rows.y)
                features = _features(rows, mixture)
            scores = _scores(rows, mixture.predict_proba(rows.X_test))
            records.append({**labels, "directions": ITSELF, "map": "", **scores})
            for (method, kind), (first, second) in features.items():
                model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5_000))
                shares = model.fit(first, rows.y).predict_proba(second)
                features_of = {"directions": method, "map": kind}
                records.append({**labels, **features_of, **_scores(rows, shares)})
    return pd.DataFrame(records)


def _scores(rows: Rows, shares: FloatArray) -> dict[str, float]:
    """Accuracy and log-loss on the test rows."""
    of_truth = shares[np.arange(len(shares)), rows.y_test.astype(np.intp)]
    return {
        "accuracy": float(np.mean(shares.argmax(axis=1) == rows.y_test)),
        "loss": float(-np.log(np.maximum(of_truth, SMALLEST_SHARE)).mean()),
    }


def _summary(results: "pandas.DataFrame") -> Any:
    """Means over splits and their standard errors; `change` is relative to raw columns.

    Differences are taken within a split, because some splits are harder than others.
    """
    plain = results.query("directions == 'raw columns' and map == @PROJECTIONS")
    base = plain.set_index(["data", "repeat"])["loss"]
    paired = results.join(base.rename("base"), on=["data", "repeat"])
    paired = paired.assign(change=paired["loss"] - paired["base"])
    groups = paired.groupby(["data", "directions", "map"], sort=False)
    return groups[["accuracy", "loss", "change"]].agg(["mean", "sem"])


def describe(results: "pandas.DataFrame") -> str:
    """Format accuracy and change in log-loss with their standard errors, one table per data set."""
    summary = _summary(results)
    n_repeats = results["repeat"].nunique()
    lines = [
        f"Means over {n_repeats} random splits, standard errors in parentheses;",
        "change: log-loss minus that of a linear classifier on raw columns in the same split",
    ]
    for name in DATA:
        row = summary.loc[(name, "raw columns", PROJECTIONS)]["loss"]
        lines += ["", f"{name}: log-loss of raw columns {row['mean']:.3f} ({row['sem']:.3f})"]
        lines.append(" " * 26 + "".join(f"{kind:^30}" for kind in MAPS))
        lines.append(f"{'directions':<26}" + f"{'accuracy %':>14}{'change':>16}" * len(MAPS))
        for method in COLOURS:
            cells = (
                _cell(summary.loc[key]) if (key := (name, method, kind)) in summary.index
                else f"{'-':>14}{'-':>16}"
                for kind in MAPS
            )  # fmt: skip
            lines.append(f"{method:<26}{''.join(cells)}")
        lines.append(f"{ITSELF:<26}{_cell(summary.loc[(name, ITSELF, '')])}")
    return "\n".join(lines)


def _cell(row: "pandas.Series[Any]") -> str:
    accuracy = f"{100 * row['accuracy', 'mean']:.1f} ({100 * row['accuracy', 'sem']:.1f})"
    change = f"{row['change', 'mean']:+.3f} ({row['change', 'sem']:.3f})"
    return f"{accuracy:>14}{change:>16}"


def draw_losses(results: "pandas.DataFrame") -> "Figure":
    """Draw the change in log-loss of all features against raw columns, one panel per data set."""
    from matplotlib.figure import Figure

    summary = _summary(results)["change"]
    figure = Figure(figsize=(10.0, 6.4), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True)
    heights = np.arange(len(MAPS))[::-1]
    for panel, name in zip(panels.flat, DATA, strict=True):
        for place, (method, colour) in enumerate(COLOURS.items()):
            known = [k for k, kind in enumerate(MAPS) if (name, method, kind) in summary.index]
            rows = summary.loc[[(name, method, MAPS[k]) for k in known]]
            panel.errorbar(
                rows["mean"],
                heights[known] + 0.13 * (2 - place),
                xerr=2.0 * rows["sem"],
                fmt=MARKERS[method],
                color=colour,
                label=method,
            )
        change = summary.loc[(name, ITSELF, ""), "mean"]
        panel.axvline(change, color=COLOURS["mixture"], linestyle=":", label=ITSELF)
        panel.axvline(0.0, color=COLOURS["raw columns"], linewidth=0.8)
        panel.set_title(name)
        panel.set_yticks(heights, MAPS)
        panel.grid(axis="x", color="#e5e7eb", zorder=0)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[-1]:
        panel.set_xlabel("log-loss less that of raw columns, linear: mean ± 2 s.e.")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "scikit-learn", "numpy", "scipy")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print the tables and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REPEATS} splits per data set")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figure")
    parsed = parser.parse_args(arguments)
    results = run_study(QUICK_REPEATS if parsed.quick else N_REPEATS)
    print(describe(results))
    parsed.output.mkdir(parents=True, exist_ok=True)
    path = parsed.output / "losses.png"
    draw_losses(results).savefig(path, dpi=150)
    print(f"figure: {path}")
    print(describe_environment())
    return 0


if __name__ == "__main__":
    sys.exit(main())
