"""The paper line by line: scores, M_3, whitening, power iteration, recovery, error against n."""

import argparse
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from moment_init import angles_in_degrees, match_components, paper
from moment_init.scores import Gaussian, StudentT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ErrorCurve",
    "ScoreComparison",
    "Walk",
    "check_lemmas",
    "compare_scores",
    "describe_curve",
    "describe_environment",
    "describe_lemmas",
    "describe_scores",
    "describe_walk",
    "draw_curve",
    "draw_directions",
    "draw_scores",
    "draw_tensor",
    "main",
    "measure_curve",
    "population_tensor",
    "simulate",
    "walk",
]

FloatArray = NDArray[np.float64]

SEED = 3
N_OBS, QUICK_OBS = 400_000, 40_000
SCORE_OBS, QUICK_SCORE_OBS = 100_000, 10_000
CURVE_OBS = (8_000, 32_000, 128_000, 512_000, 2_048_000)
QUICK_CURVE_OBS = (8_000, 32_000)
N_DATA_SETS, QUICK_DATA_SETS = 20, 2

# Three logistic regressions of five inputs. The directions are oblique: cosines .44, .02 and -.09.
N_FEATURES, N_COMPONENTS = 5, 3
DIRECTIONS = np.array(
    [[1.0, 0.4, 0.2], [0.3, 1.0, -0.3], [0.0, 0.2, 1.0], [-0.4, 0.0, 0.3], [0.2, -0.5, 0.2]]
)
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=0)
SCALES = np.array([3.0, 4.0, 5.0])
BIASES = np.array([0.5, -0.5, 0.0])
WEIGHTS = np.array([0.4, 0.35, 0.25])

N_SLICES = 1000  # random slices that are tried in Procedure 2
DEGREES_OF_FREEDOM = 8.0

OUTPUT = Path(__file__).resolve().parent / "output"
TRUE_COLOUR, ESTIMATE_COLOUR, OTHER_COLOUR = "#9aa5b1", "#d1495b", "#00798c"


# --- data ----------------------------------------------------------------------------------------


def simulate(n_obs: int, rng: np.random.Generator, *, has_heavy_tails: bool = False) -> FloatArray:
    """Draw rows of the mixture: the inputs x, then the response y in the last column."""
    # -> (n_obs, n_features + 1)
    X = rng.standard_normal((n_obs, N_FEATURES))
    if has_heavy_tails:
        degrees = DEGREES_OF_FREEDOM
        X /= np.sqrt(rng.chisquare(degrees, (n_obs, 1)) / degrees)
    labels = rng.choice(N_COMPONENTS, n_obs, p=WEIGHTS)
    predictors = np.einsum("ij,ji->i", X, (DIRECTIONS * SCALES)[:, labels]) + BIASES[labels]
    y = rng.random(n_obs) < expit(predictors)
    return np.column_stack([X, y])


def population_tensor() -> FloatArray:
    """M_3 of Lemma 3, sum_j w_j s_j^3 rho_j u_j^3."""
    coefficients = WEIGHTS * paper.expected_coefficients(SCALES, BIASES)[2]
    u = DIRECTIONS
    return np.asarray(np.einsum("l,il,jl,kl->ijk", coefficients, u, u, u))


def largest_error(directions: FloatArray) -> float:
    """Length of the largest difference between a direction and its estimate, up to sign."""
    matched = directions[:, match_components(directions, DIRECTIONS)]
    signs = np.sign(np.sum(matched * DIRECTIONS, axis=0))
    return float(np.linalg.norm(matched * signs - DIRECTIONS, axis=0).max())


# --- the walk through the paper ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """What each step of the paper gives for one data set."""

    n_obs: int
    moment: FloatArray  # M_3, line 1 of Algorithm 1; (n_features, n_features, n_features)
    spectrum: FloatArray  # singular values of the unfolded M_3; (n_features,)
    edge: float  # singular value that noise alone reaches
    n_definite: int  # random slices of Procedure 2, out of `N_SLICES`, that are definite
    whitened: paper.WhiteningResult  # by the slice that was searched for
    cluster_sizes: tuple[int, ...]  # starts of Algorithm 4 that reached each eigenvector
    raw: FloatArray  # directions from whitening and power iteration, up to sign
    directions: (
        FloatArray  # after TensorLy's sweeps and with their signs, in the order of the truth
    )
    coefficients: FloatArray  # lambda_j of Lemma 3
    errors: FloatArray  # their standard errors
    weights: FloatArray  # w_j from lambda_j, if scales and biases are known
    angles: FloatArray  # degrees between true and estimated directions


def walk(n_obs: int = N_OBS, *, seed: int = SEED) -> Walk:
    """Follow Algorithm 1, Procedures 2 and 3 and Algorithm 4 on one data set."""
    rng = np.random.default_rng(seed)
    rows = simulate(n_obs, rng)
    X, y = rows[:, :-1], rows[:, -1]
    # Eq. (9): the score functions of the input, here of N(0, I).
    scores = paper.row_scores(X, Gaussian(np.zeros(N_FEATURES), np.eye(N_FEATURES)))
    # Line 1 of Algorithm 1: M_3 = E[y S_3(x)], with less noise if y loses its quadratic part.
    residual, first_moment = paper.subtract_quadratic(y, scores)
    moment = paper.cross_moment(residual, scores)
    # The spectrum: how many components stand out?
    span, spectrum = paper.leading_subspace(moment, N_COMPONENTS)
    core = paper.multilinear(moment, span)
    # Procedure 2.
    thetas = rng.standard_normal((N_SLICES, N_COMPONENTS))
    signs = [np.sign(np.linalg.eigvalsh(paper.tensor_slice(core, theta))) for theta in thetas]
    theta, _ = paper.definite_slice(core, rng)
    whitened = paper.whiten(core, theta, N_COMPONENTS)
    # Procedure 3 and Algorithm 4.
    starts = np.column_stack([paper.svd_start(whitened.tensor, rng) for _ in range(30)])
    fibres = paper.tensor_fibres(whitened.tensor)
    reached = paper.power_rounds(fibres, starts, 30)
    vectors = paper.cluster_vectors(fibres, reached)
    nearest = np.abs(vectors.T @ reached).argmax(axis=0)
    # Back to directions; TensorLy's alternating least squares on M_3 has the last word.
    raw = span @ whitened.unwhitening_matrix @ vectors
    raw /= np.linalg.norm(raw, axis=0)
    refined = span @ paper.refine_components(core, span.T @ raw)
    # lambda_j, signs and weights.
    third, _ = paper.symmetric_coefficients(moment, refined)
    first, _ = paper.symmetric_coefficients(first_moment, refined)
    turns = paper.choose_signs(first, third, is_third_positive=False)
    index = match_components(refined * turns, DIRECTIONS, signed=True)
    directions, coefficients = (refined * turns)[:, index], (third * turns)[index]
    covariance = paper.moment_covariance(residual, scores, directions)
    rho = paper.expected_coefficients(SCALES, BIASES)
    return Walk(
        n_obs=n_obs,
        moment=moment,
        spectrum=spectrum,
        edge=paper.noise_edge(float(np.diag(covariance).mean()) / 6.0, N_FEATURES),
        n_definite=sum(abs(sign.sum()) == N_COMPONENTS for sign in signs),
        whitened=whitened,
        cluster_sizes=tuple(np.bincount(nearest, minlength=vectors.shape[1]).tolist()),
        raw=raw,
        directions=directions,
        coefficients=coefficients,
        errors=paper.coefficient_errors(directions, covariance, 3),
        weights=paper.recover_weights(coefficients[None], rho[2:]),
        angles=angles_in_degrees(directions, DIRECTIONS, signed=True),
    )


# --- Lemmas 2 and 6 ------------------------------------------------------------------------------


def check_lemmas(n_obs: int = SCORE_OBS, *, seed: int = SEED) -> tuple[FloatArray, FloatArray]:
    """Recover one logistic regression from M_1, and linear regressions from M_3 of y^3."""
    # -> angle of Lemma 2 (1,), angles of Lemma 6 (n_components,), in degrees
    rng = np.random.default_rng([seed, 2])
    X = rng.standard_normal((n_obs, N_FEATURES))
    scores = paper.row_scores(X, Gaussian(np.zeros(N_FEATURES), np.eye(N_FEATURES)))
    # Lemma 2: M_1 = E[y S_1(x)] = E[g'] u for a single component.
    single = rng.random(n_obs) < expit(SCALES[0] * X @ DIRECTIONS[:, 0] + BIASES[0])
    first = paper.cross_moment(single - single.mean(), scores, 1)
    # Lemma 6: E[y^3 S_3(x)] = sum_j 6 w_j s_j^3 u_j^3 for the linear model.
    labels = rng.choice(N_COMPONENTS, n_obs, p=WEIGHTS)
    means = np.einsum("ij,ji->i", X, DIRECTIONS[:, labels]) + BIASES[labels]
    linear = means + 0.3 * rng.standard_normal(n_obs)
    fit = paper.fit_third_moment((linear - linear.mean()) ** 3, scores, N_COMPONENTS, rng)
    return (
        angles_in_degrees(first[:, None] / np.linalg.norm(first), DIRECTIONS[:, :1], signed=True),
        angles_in_degrees(fit.decomposition.directions, DIRECTIONS),
    )


# --- scores of one's own -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ScoreComparison:
    """Directions from rows of Student's t under several score functions."""

    n_obs: int
    angles: dict[str, FloatArray]  # degrees to the truth by score function; (n_components,)
    difference: float  # largest entry of M_3 by the own score minus M_3 by the package's


def student_gradient(X: FloatArray) -> FloatArray:
    """Gradient of the log-density of Student's t: a score function of one's own."""
    squares = np.sum(X**2, axis=1, keepdims=True)
    return np.asarray(-(DEGREES_OF_FREEDOM + N_FEATURES) * X / (DEGREES_OF_FREEDOM + squares))


def compare_scores(n_obs: int = SCORE_OBS, *, seed: int = SEED) -> ScoreComparison:
    """Form M_3 of heavy-tailed inputs under a Gaussian, one's own score and the package's."""
    rng = np.random.default_rng([seed, 1])
    rows = simulate(n_obs, rng, has_heavy_tails=True)
    X, y = rows[:, :-1], rows[:, -1]
    centred = y - y.mean()
    density = StudentT(np.zeros(N_FEATURES), np.eye(N_FEATURES), DEGREES_OF_FREEDOM)
    own = paper.cross_moment(centred, paper.score_function(X, 3, student_gradient))
    moments = {
        "a Gaussian's": paper.cross_moment(centred, paper.score_function(X, 3, Gaussian().fit(X))),
        "one's own (Eq. 10)": own,
    }
    standard = paper.row_scores(X, density, basis=np.eye(N_FEATURES))
    angles = {
        name: _angles(paper.decompose_tensor(moment, N_COMPONENTS, rng).directions)
        for name, moment in moments.items()
    }
    # In standardised coordinates z = L^-1 x, where the quadratic part is subtracted.
    scores = paper.row_scores(X, density)
    fit = paper.fit_third_moment(y, scores, N_COMPONENTS, rng)
    directions = np.linalg.solve(scores.basis.T, fit.decomposition.directions)
    angles["Student's t, without y's quadratic part"] = _angles(directions)
    difference = np.abs(own - paper.cross_moment(centred, standard)).max()
    return ScoreComparison(n_obs, angles, float(difference))


def _angles(directions: FloatArray) -> FloatArray:
    unit = directions / np.linalg.norm(directions, axis=0)
    return angles_in_degrees(unit, DIRECTIONS)


# --- error against n -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ErrorCurve:
    """Largest error of a direction by number of rows."""

    sizes: tuple[int, ...]
    with_quadratic: FloatArray  # M_3 of y, as in the paper; (n_sizes, n_data_sets)
    without_quadratic: FloatArray  # after the quadratic part was subtracted

    def exponent(self, errors: FloatArray) -> float:
        """Slope of the median error against n, both in logarithms."""
        return float(np.polyfit(np.log(self.sizes), np.log(np.median(errors, axis=1)), 1)[0])


def measure_curve(
    sizes: Sequence[int] = CURVE_OBS, n_data_sets: int = N_DATA_SETS, *, seed: int = SEED
) -> ErrorCurve:
    """Estimate the directions of data sets of every size."""
    errors = np.empty((2, len(sizes), n_data_sets))
    density = Gaussian(np.zeros(N_FEATURES), np.eye(N_FEATURES))
    for place, n_obs in enumerate(sizes):
        for index in range(n_data_sets):
            rng = np.random.default_rng([seed, n_obs, index])
            rows = simulate(n_obs, rng)
            scores = paper.row_scores(rows[:, :-1], density)
            y = rows[:, -1]
            responses = (y - y.mean(), paper.subtract_quadratic(y, scores)[0])
            for kind, response in enumerate(responses):
                moment = paper.cross_moment(response, scores)
                fit = paper.decompose_tensor(moment, N_COMPONENTS, rng)
                errors[kind, place, index] = largest_error(fit.directions)
    return ErrorCurve(tuple(sizes), errors[0], errors[1])


# --- tables --------------------------------------------------------------------------------------


def describe_walk(result: Walk) -> str:
    """Format what each step gives, beside the truth."""
    truth = WEIGHTS * paper.expected_coefficients(SCALES, BIASES)[2]
    population = np.linalg.svd(population_tensor().reshape(N_FEATURES, -1), compute_uv=False)
    whitened = result.whitened.whitening_matrix.T @ _span_coordinates(result)
    cosines = whitened / np.linalg.norm(whitened, axis=0)
    overlap = np.abs(cosines.T @ cosines - np.eye(N_COMPONENTS)).max()
    raw = angles_in_degrees(result.raw, DIRECTIONS)
    cells = {
        "angle after Algorithm 4": [f"{value:.2f}°" for value in raw],
        "angle after TensorLy": [f"{value:.2f}°" for value in result.angles],
        "lambda_j, true": [f"{value:.3f}" for value in truth],
        "lambda_j, estimate": [f"{value:.3f}" for value in result.coefficients],
        "its standard error": [f"{value:.3f}" for value in result.errors],
        "w_j, true": [f"{value:.3f}" for value in WEIGHTS],
        "w_j, estimate": [f"{value:.3f}" for value in result.weights],
    }
    lines = [
        f"Three logistic regressions, {result.n_obs:,} rows, {N_FEATURES} inputs from N(0, I)",
        "",
        f"singular values of M_3, population: {_listed(population)}",
        f"singular values of M_3, sample:     {_listed(result.spectrum)}",
        f"edge of the noise: {result.edge:.3f}",
        f"random slices that are definite (Procedure 2): {result.n_definite} of {N_SLICES}",
        f"condition number of the slice that was searched for: "
        f"{result.whitened.condition_number:.1f}",
        f"largest |cosine| between whitened true directions: {overlap:.2f}",
        f"starts that reached each eigenvector (Algorithm 4): "
        f"{', '.join(str(size) for size in result.cluster_sizes)}",
        "",
        f"{'':<26}" + "".join(f"{f'u_{j + 1}':>10}" for j in range(N_COMPONENTS)),
    ]
    lines += [f"{name:<26}" + "".join(f"{c:>10}" for c in row) for name, row in cells.items()]
    return "\n".join(lines)


def _span_coordinates(result: Walk) -> FloatArray:
    """True directions in the coordinates of the span in which the tensor was whitened."""
    span, _ = paper.leading_subspace(result.moment, N_COMPONENTS)
    return np.asarray(span.T @ DIRECTIONS)


def _listed(values: FloatArray) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def describe_lemmas(angles: tuple[FloatArray, FloatArray], n_obs: int) -> str:
    """Format the angles of Lemmas 2 and 6."""
    first, third = angles
    return (
        f"Lemma 2, one logistic regression, {n_obs:,} rows: off by {first[0]:.2f}°\n"
        f"Lemma 6, three linear regressions, {n_obs:,} rows: off by "
        + ", ".join(f"{angle:.1f}°" for angle in third)
    )


def describe_scores(comparison: ScoreComparison) -> str:
    """Format the angles under every score function."""
    lines = [
        f"Inputs from Student's t with {DEGREES_OF_FREEDOM:g} degrees of freedom, "
        f"{comparison.n_obs:,} rows",
        "",
        f"{'score function':<44}" + "".join(f"{f'u_{j + 1}':>9}" for j in range(N_COMPONENTS)),
    ]
    for name, angles in comparison.angles.items():
        lines.append(f"{name:<44}" + "".join(f"{f'{angle:.1f}°':>9}" for angle in angles))
    lines += [
        "",
        f"M_3 by the own score and by the package's differ by at most {comparison.difference:.0e}",
    ]
    return "\n".join(lines)


def describe_curve(curve: ErrorCurve) -> str:
    """Format median errors by number of rows, and the slopes."""
    lines = [
        f"Largest |u_j - estimate|, median of {curve.with_quadratic.shape[1]} data sets",
        "",
        f"{'rows':>12}{'M_3 of y':>12}{'without quadratic part':>25}",
    ]
    medians = (np.median(curve.with_quadratic, axis=1), np.median(curve.without_quadratic, axis=1))
    for size, plain, reduced in zip(curve.sizes, *medians, strict=True):
        lines.append(f"{size:>12,}{plain:>12.3f}{reduced:>25.3f}")
    slopes = (curve.exponent(curve.with_quadratic), curve.exponent(curve.without_quadratic))
    lines.append(f"{'slope':>12}{slopes[0]:>12.2f}{slopes[1]:>25.2f}")
    return "\n".join(lines)


# --- figures -------------------------------------------------------------------------------------


def draw_tensor(result: Walk) -> "Figure":
    """Draw the slices of M_3, population and sample, and its spectrum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 3.4), layout="constrained")
    grid = figure.add_gridspec(2, N_FEATURES + 1, width_ratios=(*[1.0] * N_FEATURES, 3.5))
    panels = [
        [figure.add_subplot(grid[row, index]) for index in range(N_FEATURES)] for row in range(2)
    ]
    truth = population_tensor()
    limit = float(np.abs(truth).max())
    for row, (name, tensor) in enumerate((("population", truth), ("sample", result.moment))):
        for index, panel in enumerate(panels[row]):
            image = panel.imshow(tensor[:, :, index], cmap="RdBu_r", vmin=-limit, vmax=limit)
            panel.set_xticks([])
            panel.set_yticks([])
            if row == 0:
                panel.set_title(f"$M_3(\\cdot, \\cdot, e_{index + 1})$")
        panels[row][0].set_ylabel(name)
    figure.colorbar(image, ax=[panel for row in panels for panel in row], shrink=0.9)
    panel = figure.add_subplot(grid[:, N_FEATURES])
    places = np.arange(1, N_FEATURES + 1)
    population = np.linalg.svd(truth.reshape(N_FEATURES, -1), compute_uv=False)
    panel.plot(
        places,
        population,
        "o",
        ms=10,
        mfc="none",
        color=TRUE_COLOUR,
        label="population",
        clip_on=False,
    )
    panel.plot(places, result.spectrum, "o", color=ESTIMATE_COLOUR, label="sample")
    panel.axhline(result.edge, color="black", linestyle="--", linewidth=1, label="edge of noise")
    panel.set_xticks(places)
    panel.set_ylim(bottom=0.0)
    panel.set_xlabel("index")
    panel.set_title("Singular values of the unfolded $M_3$")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    return figure


def draw_directions(result: Walk) -> "Figure":
    """Draw the entries of every u_j and of its estimate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    panels = figure.subplots(1, N_COMPONENTS, sharey=True)
    places = np.arange(N_FEATURES)
    for j, panel in enumerate(panels):
        panel.bar(places - 0.2, DIRECTIONS[:, j], 0.4, color=TRUE_COLOUR, label="true")
        panel.bar(
            places + 0.2, result.directions[:, j], 0.4, color=ESTIMATE_COLOUR, label="estimate"
        )
        panel.axhline(0.0, color="black", linewidth=0.8)
        panel.set_title(f"$u_{j + 1}$, weight {WEIGHTS[j]:g}: off by {result.angles[j]:.1f}°")
        panel.set_xticks(places, [f"$x_{index + 1}$" for index in places])
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("entry of the unit direction")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_scores(comparison: ScoreComparison) -> "Figure":
    """Draw the angles under every score function."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.0), layout="constrained")
    panel = figure.subplots()
    names = list(comparison.angles)
    for place, name in enumerate(names):
        angles = comparison.angles[name]
        panel.plot(angles, np.full(len(angles), place), "o", color=ESTIMATE_COLOUR, alpha=0.8)
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_xscale("log")
    panel.set_xticks([1, 2, 5, 10, 20, 50, 90], ["1", "2", "5", "10", "20", "50", "90"])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("angle between $u_j$ and its estimate (degrees), one point per direction")
    panel.set_title("Score functions of heavy-tailed inputs")
    panel.grid(axis="x", color="#dddddd")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def draw_curve(curve: ErrorCurve) -> "Figure":
    """Draw the error against n, both in logarithms, with the slope -1/2."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    _draw_errors(panel, curve, curve.with_quadratic, OTHER_COLOUR, "$M_3$ of y")
    _draw_errors(
        panel, curve, curve.without_quadratic, ESTIMATE_COLOUR, "without y's quadratic part"
    )
    sizes = np.array(curve.sizes, dtype=np.float64)
    first = 0.7 * np.median(curve.without_quadratic, axis=1)[0]  # below both lines
    line = first * np.sqrt(sizes[0] / sizes)
    panel.plot(sizes, line, color="black", linestyle=":", label="slope $-1/2$")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("number of rows n")
    panel.set_ylabel(r"largest $\|u_j - \hat u_j\|$")
    panel.set_title("Error of the directions (Theorem 5)")
    panel.grid(color="#dddddd")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    return figure


def _draw_errors(
    panel: "Axes", curve: ErrorCurve, errors: FloatArray, colour: str, label: str
) -> None:
    """Draw every data set as a point and the medians as a line."""
    sizes = np.array(curve.sizes, dtype=np.float64)
    panel.plot(sizes, errors, ".", color=colour, alpha=0.35)
    panel.plot(sizes, np.median(errors, axis=1), "o-", color=colour, label=label)


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "numpy", "scipy", "tensorly", "matplotlib")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.system()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print the tables and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and small data sets")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figures")
    parsed = parser.parse_args(arguments)
    result = walk(QUICK_OBS if parsed.quick else N_OBS)
    comparison = compare_scores(QUICK_SCORE_OBS if parsed.quick else SCORE_OBS)
    sizes, number = (QUICK_CURVE_OBS, QUICK_DATA_SETS) if parsed.quick else (CURVE_OBS, N_DATA_SETS)
    curve = measure_curve(sizes, number)
    lemmas = describe_lemmas(check_lemmas(comparison.n_obs), comparison.n_obs)
    tables = (describe_walk(result), lemmas, describe_scores(comparison), describe_curve(curve))
    print(*tables, sep="\n\n\n")
    figures = {
        "tensor": draw_tensor(result),
        "directions": draw_directions(result),
        "scores": draw_scores(comparison),
        "error": draw_curve(curve),
    }
    parsed.output.mkdir(parents=True, exist_ok=True)
    print()
    for name, figure in figures.items():
        path = parsed.output / f"{name}.png"
        figure.savefig(path, dpi=150)
        print(f"figure: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
