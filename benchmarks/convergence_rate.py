"""How fast the error of the directions falls with the number of rows; moments allow n^(-1/2)."""

from statistics import median

import numpy as np

from benchmarks.fitting import direction_error, fitted_exponent
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import simulate_mixture

__all__ = ["BENCHMARK", "run"]

FAMILY, N_FEATURES, N_COMPONENTS = "bernoulli", 5, 2
ROWS = (10_000, 31_623, 100_000, 316_228, 1_000_000)
QUICK_ROWS = (10_000, 31_623, 100_000)
N_DATA_SETS = 40
QUICK_DATA_SETS = 5
SLOPE_RANGE = (-0.6, -0.4)


def run(options: Options) -> Outcome:
    """Estimate the same random models from more and more rows and fit the slope of the error."""
    n_data_sets = QUICK_DATA_SETS if options.is_quick else N_DATA_SETS
    sizes = QUICK_ROWS if options.is_quick else ROWS
    rows: list[Row] = []
    for n_obs in sizes:
        # One seed draws the same model at every n, so only the size differs.
        errors = [_error(n_obs, options.seed, index) for index in range(n_data_sets)]
        lower, upper = np.quantile(errors, [0.25, 0.75])
        rows.append(
            {
                "n": n_obs,
                "median error": median(errors),
                "lower quartile": float(lower),
                "upper quartile": float(upper),
                "error * sqrt(n)": median(errors) * n_obs**0.5,
            }
        )
    slope, slope_error = fitted_exponent(sizes, [float(str(row["median error"])) for row in rows])
    # A quick run has too few data sets and rows to fix a slope: the bar is for the full size.
    is_met = None if options.is_quick else SLOPE_RANGE[0] <= slope <= SLOPE_RANGE[1]
    figures = (
        Figure("fitted slope", slope, f"between {SLOPE_RANGE[0]} and {SLOPE_RANGE[1]}", is_met),
        Figure("its standard error", slope_error),
    )
    settings = {
        "family": FAMILY,
        "n_features": N_FEATURES,
        "n_components": N_COMPONENTS,
        "data_sets": n_data_sets,
        "error": "largest |u_j - u^_j| of a data set",
    }
    return Outcome(tuple(rows), figures, settings)


def _error(n_obs: int, seed: int, index: int) -> float:
    data = simulate_mixture(
        n_obs, N_FEATURES, N_COMPONENTS, family=FAMILY, random_seed=[seed, index]
    )
    return direction_error(data, seed)


BENCHMARK = Benchmark(
    "convergence_rate", "error of the directions by number of rows (bernoulli, r = 2, d = 5)", run
)
