"""Time and memory of the default call, compared with ``X.T @ X`` and iterations of full EM.

An iteration of full EM is an E-step and one scoring M-step on all rows in all dimensions, as
`fit_em` runs it: `likelihood_sums` without the missing information, by blocks and threads, and
`em_step`. It is also compared, without a bar, with the least that an iteration could do: the E-step
with its score, and one weighted ``X.T @ X`` for each component, without biases. Times are wall
seconds and, since these depend on the load, CPU seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.fitting import fitted_exponent
from benchmarks.measuring import (
    BYTES_PER_DOUBLE,
    extra_peak_bytes,
    number,
    seconds_and_processor_seconds,
    seconds_of,
)
from benchmarks.mixtures import Mixture, describe, draw, timed
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData
from moment_init.data.blocks import sum_over_blocks
from moment_init.families.registry import get_family
from moment_init.likelihood.em_step import em_step
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums

__all__ = ["BENCHMARK", "em_iteration", "run"]

FloatArray = NDArray[np.float64]

FAMILIES = (
    Mixture("bernoulli", 1_000_000, 20, 3, 2.0, bar=40.0),
    Mixture("gaussian", 1_000_000, 20, 3, 2.0, bar=100.0, dispersion=0.5),
    Mixture("poisson", 1_000_000, 20, 3, 0.7, bar=100.0),
)
"""Mixtures to time; `bar` is the largest allowed time over that of X.T @ X."""

MAX_EM_ITERATIONS = 3.0
MAX_MEMORY_RATIO = 0.5

# Linear in n, up to the error of an exponent fitted to few timings.
MAX_EXPONENT_IN_ROWS = 1.1
MAX_EXPONENT_IN_FEATURES = 2.0

QUICK_FAMILIES, QUICK_MAIN = 1, 4_000
N_REPEATS, QUICK_REPEATS = 5, 1

# Growth with the number of rows at d = 20, and with the features at a fixed number of rows.
ROWS, QUICK_ROWS = (250_000, 500_000, 1_000_000, 2_000_000), (2_000, 4_000)
FEATURES, QUICK_FEATURES = (10, 20, 50, 100, 200), (5, 10)
FEATURE_ROWS, QUICK_FEATURE_ROWS = 20_000, 2_000
GROWTH_REPEATS, QUICK_GROWTH_REPEATS = 2, 1

# Wide inputs, where an array of d^3 would be the largest object.
WIDE, QUICK_WIDE = (500, 20_000), (20, 2_000)


def run(options: Options) -> Outcome:
    """Measure time, memory and growth for each family, and wide inputs."""
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
        "EM iteration": "E-step and a scoring M-step as fit_em runs them, on all rows",
        "least EM iteration": "E-step with score, and a weighted X.T @ X per component",
    }
    return Outcome((*main, *rows, *features, *wide), figures, settings)


def _mixtures(options: Options) -> tuple[Mixture, ...]:
    if options.is_quick:
        return tuple(mixture.resized(QUICK_MAIN) for mixture in FAMILIES[:QUICK_FAMILIES])
    return FAMILIES


def _measure(mixture: Mixture, options: Options) -> Row:
    """Time all calls in turn, so that load affects all; then memory, as tracing is slow."""
    data, seed = draw(mixture, options.seed, 0), options.seed
    X = data.X
    timed(data, seed)  # warm-up: starts threads, loads modules
    calls: dict[str, Callable[[], object]] = {
        "default": lambda: timed(data, seed),
        "moments": lambda: timed(data, seed, polish=False),
        "X.T @ X": lambda: X.T @ X,
        "EM": lambda: em_iteration(data),
        "least EM": lambda: _least_iteration(data),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(QUICK_REPEATS if options.is_quick else N_REPEATS):
        for name, call in calls.items():
            times[name].append(seconds_and_processor_seconds(call))
    wall = {name: median(each for each, _ in pairs) for name, pairs in times.items()}
    processor = {name: median(each for _, each in pairs) for name, pairs in times.items()}
    extra = extra_peak_bytes(lambda: timed(data, seed))
    products = [each for each, _ in times["X.T @ X"]]
    return {
        **describe(mixture),
        **{f"{name} s": seconds for name, seconds in wall.items()},
        "default CPU s": processor["default"],
        "EM CPU s": processor["EM"],
        "over X.T @ X": wall["default"] / wall["X.T @ X"],
        "bar": mixture.bar,
        "over EM": wall["default"] / wall["EM"],
        "over EM, CPU": processor["default"] / processor["EM"],
        "over least EM, CPU": processor["default"] / processor["least EM"],
        # Far above 1, the machine was busy and the ratios are not reliable.
        "X.T @ X max/min": max(products) / min(products),
        "extra over X": extra / X.nbytes,
    }


def em_iteration(data: MixtureData) -> FloatArray | None:
    """Run one E-step and one scoring M-step from the truth, in all dimensions."""
    rows, parameters = _likelihood(data)
    family = get_family(data.family, data.link)
    sums = likelihood_sums(family, rows, parameters, missing=False, constant=0.0)
    return em_step(family, sums, parameters)


def _least_iteration(data: MixtureData) -> None:
    """Run the E-step with its score and one weighted Gram matrix per component.

    The Gram matrices use the rows' weights: their values do not change the cost.
    """
    rows, parameters = _likelihood(data)
    family = get_family(data.family, data.link)
    likelihood_sums(family, rows, parameters, curvature=False, constant=0.0)
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
    """Time each family by number of rows, then by number of features."""
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
    """Least seconds of the default call, moments alone, X.T @ X and an EM iteration."""
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
    """Measure time and peak memory on wide inputs of one family, polished and by moments alone."""
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
            "over EM, CPU": MAX_EM_ITERATIONS,
            "extra over X": MAX_MEMORY_RATIO,
        }
        figures += [
            _at_most(f"{row['family']}, n = {row['n']:,}: {column}", number(row, column), limit,
                     is_judged=not options.is_quick)
            for column, limit in limits.items()
        ]  # fmt: skip
        name = "over least EM, CPU"
        figures.append(Figure(f"{row['family']}, n = {row['n']:,}: {name}", number(row, name)))
    return figures


def _exponent_figures(
    rows: Sequence[Row], varied: str, limit: float, options: Options
) -> list[Figure]:
    """Fitted exponents of the default call, with a bar, and of moments alone."""
    figures = []
    for family in dict.fromkeys(row["family"] for row in rows):
        family_rows = [row for row in rows if row["family"] == family]
        sizes = [number(row, varied) for row in family_rows]
        for column in ("default s", "moments s"):
            exponent, _ = fitted_exponent(sizes, [number(row, column) for row in family_rows])
            # Fixed costs dominate a quick run.
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
