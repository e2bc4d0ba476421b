"""Time and memory of the paper's method, compared with ``X.T @ X`` on the same array."""

import warnings
from statistics import median

from benchmarks.fitting import fitted_exponent
from benchmarks.measuring import BYTES_PER_DOUBLE, extra_peak_bytes, number, seconds_of
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData, WeakSignalWarning, estimate, simulate_mixture

__all__ = ["BENCHMARK", "run"]

FAMILY, N_FEATURES, N_COMPONENTS = "bernoulli", 20, 3
ROWS = (62_500, 250_000, 1_000_000)
QUICK_ROWS = (10_000, 40_000)
N_REPEATS, QUICK_REPEATS = 7, 2

# Features and rows of wide inputs, where an array of d^3 would be the largest object.
WIDE = ((200, 50_000), (500, 20_000))
QUICK_WIDE = ((100, 3_000),)

MAX_TIME_RATIO = 40.0
MAX_MEMORY_RATIO = 0.5


def run(options: Options) -> Outcome:
    """Measure time, memory and growth with n, also on wide inputs."""
    sizes = QUICK_ROWS if options.is_quick else ROWS
    n_repeats = QUICK_REPEATS if options.is_quick else N_REPEATS
    rows = [_measure(n_obs, N_FEATURES, n_repeats, options.seed) for n_obs in sizes]
    wide = [
        _measure(n_obs, n_features, min(n_repeats, 3), options.seed)
        for n_features, n_obs in (QUICK_WIDE if options.is_quick else WIDE)
    ]
    exponent, _ = fitted_exponent(sizes, [number(row, "estimate s") for row in rows])
    time_ratio = number(rows[-1], "time ratio")
    memory_ratio = number(rows[-1], "extra over X")
    tensor_ratio = number(wide[-1], "extra over d^3")
    # Fixed costs dominate a quick run: these two bars are for the full size.
    is_judged = not options.is_quick
    figures = (
        Figure(
            f"time of estimate over X.T @ X at n = {sizes[-1]:,}",
            time_ratio,
            f"<= {MAX_TIME_RATIO:g}",
            time_ratio <= MAX_TIME_RATIO if is_judged else None,
        ),
        Figure(
            f"extra peak memory over X at n = {sizes[-1]:,}",
            memory_ratio,
            f"<= {MAX_MEMORY_RATIO:g}",
            memory_ratio <= MAX_MEMORY_RATIO if is_judged else None,
        ),
        Figure("exponent of the time in n", exponent),
        Figure(
            f"extra peak memory over an array of d^3 at d = {wide[-1]['d']}",
            tensor_ratio,
            "< 1",
            tensor_ratio < 1.0,
        ),
    )
    settings = {"family": FAMILY, "n_components": N_COMPONENTS, "n_repeats": n_repeats}
    return Outcome((*rows, *wide), figures, settings)


def _measure(n_obs: int, n_features: int, n_repeats: int, seed: int) -> Row:
    """Time both calls in turn, so that load affects both; then memory, as tracing is slow."""
    data = simulate_mixture(
        n_obs, n_features, N_COMPONENTS, family=FAMILY, scales=3.0, random_seed=seed
    )
    X = data.X
    _estimate(data, seed)  # warm-up: starts threads, loads modules
    estimate_times, product_times = [], []
    for _ in range(n_repeats):
        product_times.append(seconds_of(lambda: X.T @ X))
        estimate_times.append(seconds_of(lambda: _estimate(data, seed)))
    extra = extra_peak_bytes(lambda: _estimate(data, seed))
    return {
        "n": n_obs,
        "d": n_features,
        "r": N_COMPONENTS,
        "estimate s": median(estimate_times),
        "X.T @ X s": median(product_times),
        "time ratio": median(estimate_times) / median(product_times),
        "least ratio": min(estimate_times) / min(product_times),
        # Far above 1, the machine was busy and the ratio is not reliable.
        "X.T @ X max/min": max(product_times) / min(product_times),
        "X MB": X.nbytes / 1e6,
        "extra MB": extra / 1e6,
        "extra over X": extra / X.nbytes,
        "extra over d^3": extra / (BYTES_PER_DOUBLE * n_features**3),
    }


def _estimate(data: MixtureData, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)  # only the cost matters here
        estimate(data.X, data.y, N_COMPONENTS, family=FAMILY, method="power", random_seed=seed)


BENCHMARK = Benchmark(
    "estimate_cost",
    "time and memory of the paper's method next to one X.T @ X (bernoulli, r = 3)",
    run,
)
