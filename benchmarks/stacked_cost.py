"""Time and memory of the default call, next to ``X.T @ X`` and iterations of full EM.

An iteration of full EM is an E-step and a scoring M-step on all rows in all dimensions:
`likelihood_sums` with its curvature, and a solve. That pass also forms the missing information,
which EM does not need; so a lean iteration stands beside it, without a bar: the E-step with the
score, and one weighted ``X.T @ X`` for each component.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.fitting import fitted_exponent
from benchmarks.measuring import BYTES_PER_DOUBLE, extra_peak_bytes, number, seconds_of
from benchmarks.mixtures import Mixture, describe, draw, timed
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData
from moment_init.blocks import sum_over_blocks
from moment_init.families import get_family
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.solving import solve_information
from moment_init.likelihood.sums import likelihood_sums

__all__ = ["BENCHMARK", "em_iteration", "run"]

FloatArray = NDArray[np.float64]

FAMILIES = (
    Mixture("bernoulli", 1_000_000, 20, 3, 2.0, bar=40.0),
    Mixture("gaussian", 1_000_000, 20, 3, 2.0, bar=100.0, dispersion=0.5),
    Mixture("poisson", 1_000_000, 20, 3, 0.7, bar=100.0),
)
"""What is timed; the bar is the largest time over that of X.T @ X."""

MAX_EM_ITERATIONS = 3.0
MAX_MEMORY_RATIO = 0.5

# Linear in n, up to the error of an exponent from few timings.
MAX_EXPONENT_IN_ROWS = 1.1
MAX_EXPONENT_IN_FEATURES = 2.0

QUICK_FAMILIES, QUICK_MAIN = 1, 4_000
N_REPEATS, QUICK_REPEATS = 5, 1

# Growth: the number of rows at d = 20, and of features at a fixed number of rows.
ROWS, QUICK_ROWS = (250_000, 500_000, 1_000_000, 2_000_000), (2_000, 4_000)
FEATURES, QUICK_FEATURES = (10, 20, 50, 100, 200), (5, 10)
FEATURE_ROWS, QUICK_FEATURE_ROWS = 20_000, 2_000
GROWTH_REPEATS, QUICK_GROWTH_REPEATS = 2, 1

# Wide inputs, where an array of d^3 would be the largest of all.
WIDE, QUICK_WIDE = (500, 20_000), (20, 2_000)


def run(options: Options) -> Outcome:
    """Time, memory and growth for each family, and wide inputs.

    Parameters
    ----------
    options : Options
        Size and seed; the number of data sets is not used.

    Returns
    -------
    Outcome
        Ratios and exponents.
    """
    main = [_measure(mixture, options) for mixture in _mixtures(options)]
    rows, features = _growth(options)
    wide = _wide_rows(options)
    figures = (
        *_main_figures(main, options),
        *_exponent_figures(rows, "n", MAX_EXPONENT_IN_ROWS, options),
        *_exponent_figures(features, "d", MAX_EXPONENT_IN_FEATURES, options),
        *_wide_figures(wide, options),
    )
    settings = {
        "repeats": QUICK_REPEATS if options.is_quick else N_REPEATS,
        "growth repeats": QUICK_GROWTH_REPEATS if options.is_quick else GROWTH_REPEATS,
        "EM iteration": "likelihood_sums with curvature on all rows in all dimensions, and a solve",
        "lean EM iteration": "likelihood_sums without curvature and a weighted X.T @ X a component",
    }
    return Outcome((*main, *rows, *features, *wide), figures, settings)


def _mixtures(options: Options) -> tuple[Mixture, ...]:
    if options.is_quick:
        return tuple(mixture.resized(QUICK_MAIN) for mixture in FAMILIES[:QUICK_FAMILIES])
    return FAMILIES


def _measure(mixture: Mixture, options: Options) -> Row:
    """Times, interleaved so that all meet the same machine; then memory, as tracing slows."""
    data, seed = draw(mixture, options.seed, 0), options.seed
    X = data.X
    timed(data, seed)  # threads started, modules loaded
    times: tuple[list[float], ...] = ([], [], [], [], [])
    default, moments, product, full, lean = times
    for _ in range(QUICK_REPEATS if options.is_quick else N_REPEATS):
        product.append(seconds_of(lambda: X.T @ X))
        default.append(timed(data, seed)[1])
        moments.append(timed(data, seed, polish=False)[1])
        full.append(seconds_of(lambda: em_iteration(data)))
        lean.append(seconds_of(lambda: _lean_em_iteration(data)))
    seconds = [median(each) for each in times]
    extra = extra_peak_bytes(lambda: timed(data, seed))
    return {
        **describe(mixture),
        "default s": seconds[0],
        "moments s": seconds[1],
        "X.T @ X s": seconds[2],
        "EM s": seconds[3],
        "lean EM s": seconds[4],
        "over X.T @ X": seconds[0] / seconds[2],
        "bar": mixture.bar,
        "over EM": seconds[0] / seconds[3],
        "over lean EM": seconds[0] / seconds[4],
        # Far above 1 the machine was busy, and the ratios say nothing.
        "X.T @ X max/min": max(product) / min(product),
        "extra over X": extra / X.nbytes,
    }


def em_iteration(data: MixtureData) -> FloatArray | None:
    """One E-step and one scoring M-step from the truth, in all dimensions.

    Parameters
    ----------
    data : MixtureData
        The rows and the truth.

    Returns
    -------
    numpy.ndarray or None
        The step.
    """
    rows, parameters = _likelihood(data)
    sums = likelihood_sums(get_family(data.family, data.link), rows, parameters)
    return solve_information(sums.information(damping=1.0), sums.score)


def _lean_em_iteration(data: MixtureData) -> None:
    """The least that an iteration does: E-step with score, and a weighted Gram matrix each.

    The weights are the rows' own; their values do not change the cost.
    """
    rows, parameters = _likelihood(data)
    likelihood_sums(get_family(data.family, data.link), rows, parameters, curvature=False)
    n_features, n_components = parameters.coefficients.shape

    def grams(block: slice) -> tuple[FloatArray, ...]:
        x, weights = data.X[block], rows.sample_weight[block, None]
        return tuple((x * weights).T @ x for _ in range(n_components))

    sum_over_blocks(grams, rows.n_obs, 2 * n_features)


def _likelihood(data: MixtureData) -> tuple[LikelihoodRows, MixtureParameters]:
    rows = LikelihoodRows(data.X, data.y, np.ones(len(data.y)))
    truth = MixtureParameters(data.coefficients, data.biases, data.weights, data.dispersion)
    return rows, truth


def _growth(options: Options) -> tuple[list[Row], list[Row]]:
    """Times by number of rows, then by number of features, of each family."""
    by_rows, by_features = [], []
    features = QUICK_FEATURES if options.is_quick else FEATURES
    n_obs = QUICK_FEATURE_ROWS if options.is_quick else FEATURE_ROWS
    for mixture in _mixtures(options):
        for size in QUICK_ROWS if options.is_quick else ROWS:
            by_rows.append({"varied": "n", **_time(mixture.resized(size), options)})
        for n_features in features:
            by_features.append(
                {"varied": "d", **_time(mixture.resized(n_obs, n_features), options)}
            )
    return by_rows, by_features


def _time(mixture: Mixture, options: Options) -> Row:
    """Seconds of the default call, of moments alone and of what they are held against.

    Each is the least of few repeats.
    """
    data = draw(mixture, options.seed, 0)
    n_repeats = QUICK_GROWTH_REPEATS if options.is_quick else GROWTH_REPEATS
    default = min(timed(data, options.seed)[1] for _ in range(n_repeats))
    moments = min(timed(data, options.seed, polish=False)[1] for _ in range(n_repeats))
    product = min(seconds_of(lambda: data.X.T @ data.X) for _ in range(n_repeats))
    iteration = min(seconds_of(lambda: em_iteration(data)) for _ in range(n_repeats))
    return {
        **describe(mixture),
        "default s": default,
        "moments s": moments,
        "X.T @ X s": product,
        "EM s": iteration,
        "over X.T @ X": default / product,
        "over EM": default / iteration,
    }


def _wide_rows(options: Options) -> list[Row]:
    """Time and peak memory of one family, polished and by moments alone, on wide inputs."""
    n_features, n_obs = QUICK_WIDE if options.is_quick else WIDE
    mixture = replace(FAMILIES[0], n_obs=n_obs, n_features=n_features)
    data = draw(mixture, options.seed, 0)
    methods = {"polished": True, "moments alone": False}
    return [
        {**describe(mixture), "method": method, **_memory(data, options.seed, polish=is_polished)}
        for method, is_polished in methods.items()
    ]


def _memory(data: MixtureData, seed: int, *, polish: bool) -> Row:
    seconds: list[float] = []
    extra = extra_peak_bytes(lambda: seconds.append(timed(data, seed, polish=polish)[1]))
    return {
        "s while traced": seconds[0],
        "extra MB": extra / 1e6,
        "extra over X": extra / data.X.nbytes,
        "extra over d^3": extra / (BYTES_PER_DOUBLE * data.X.shape[1] ** 3),
    }


def _main_figures(rows: Sequence[Row], options: Options) -> list[Figure]:
    figures = []
    for row in rows:
        limits = {
            "over X.T @ X": number(row, "bar"),
            "over EM": MAX_EM_ITERATIONS,
            "extra over X": MAX_MEMORY_RATIO,
        }
        figures += [
            _at_most(f"{row['family']}, n = {row['n']:,}: {column}", number(row, column), limit,
                     is_judged=not options.is_quick)
            for column, limit in limits.items()
        ]  # fmt: skip
        figures.append(
            Figure(f"{row['family']}, n = {row['n']:,}: over lean EM", number(row, "over lean EM"))
        )
    return figures


def _exponent_figures(
    rows: Sequence[Row], varied: str, limit: float, options: Options
) -> list[Figure]:
    """Fitted exponents of the default call, with a bar, and of moments alone."""
    figures = []
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        sizes = [number(row, varied) for row in own]
        for column in ("default s", "moments s"):
            exponent, _ = fitted_exponent(sizes, [number(row, column) for row in own])
            # Fixed costs outweigh the rows of a small run.
            figures.append(
                _at_most(f"{family}: exponent of {column[:-2]} in {varied}", exponent, limit,
                         is_judged=not options.is_quick)
            )  # fmt: skip
    return figures


def _wide_figures(rows: Sequence[Row], options: Options) -> list[Figure]:
    return [
        _at_most(f"{row['method']}, d = {row['d']}: extra peak memory over d^3 doubles",
                 number(row, "extra over d^3"), 1.0,
                 is_judged=not options.is_quick)
        for row in rows
    ]  # fmt: skip


def _at_most(name: str, value: float, limit: float, *, is_judged: bool) -> Figure:
    return Figure(name, value, f"<= {limit:g}", value <= limit if is_judged else None)


BENCHMARK = Benchmark(
    "stacked_cost", "time and memory of the default call next to X.T @ X and full EM", run
)
