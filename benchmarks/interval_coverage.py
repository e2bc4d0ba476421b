"""Do the intervals of `sample` contain the truth as often as they should?

The anchors come from the same data as the posterior. With fixed directions the error of the anchors
is ignored, so the intervals must be too short.
"""

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.posterior_runs import quiet_sampler, sample_from
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData, fit_em, match_components, simulate_mixture

if TYPE_CHECKING:
    import xarray

__all__ = ["BENCHMARK", "run"]

DATA_SETS, QUICK_DATA_SETS = 40, 1
N_OBS, N_FEATURES, N_COMPONENTS = 2_000, 4, 2
QUICK_OBS = 500
PROBABILITY = 0.9
COVERAGE_RANGE = (0.85, 0.95)
PARAMETERS = ("scale", "bias", "weight", "coefficient")
DIRECTIONS = ("anchored", "fixed")


def run(options: Options) -> Outcome:
    """Measure the coverage by treatment of the directions and by parameter."""
    n_data_sets = options.data_sets(DATA_SETS, QUICK_DATA_SETS)
    with quiet_sampler():
        rows = _cover_data_sets(n_data_sets, options)
    settings = {
        "data sets": n_data_sets,
        "n": QUICK_OBS if options.is_quick else N_OBS,
        "coverage": f"equal-tailed {PROBABILITY:.0%} intervals, components matched to the truth",
    }
    figures = _coverage_figures(rows, is_judged=not options.is_quick)
    return Outcome(tuple(rows), tuple(figures), settings)


def _cover_data_sets(n_data_sets: int, options: Options) -> list[Row]:
    """Coverage of each parameter by treatment of the directions, one data set after another."""
    keys = [("data set", index) for index in range(n_data_sets)]
    measured = list(
        options.checkpoint.measure(keys, lambda key: _cover_data_set(options, int(key[1])))
    )
    return [
        _coverage_row(directions, name, [each[directions][name] for each in measured])
        for directions in (DIRECTIONS if measured else ())
        for name in PARAMETERS
    ]


def _cover_data_set(options: Options, index: int) -> dict[str, dict[str, float]]:
    """Shares of parameters inside their intervals, by treatment of the directions."""
    data = simulate_mixture(
        QUICK_OBS if options.is_quick else N_OBS,
        N_FEATURES,
        N_COMPONENTS,
        random_seed=[options.seed, index],
    )
    fit = fit_em(data.X, data.y, N_COMPONENTS, progressbar=False, random_seed=[options.seed, index])
    shares = {}
    for directions in DIRECTIONS:
        tree = sample_from(fit, data, directions=directions, random_seed=options.seed + index)
        shares[directions] = _coverage(tree["posterior"].to_dataset(), data)
    means = {name: np.mean(list(each.values())) for name, each in shares.items()}
    print(
        f"data set {index}: " + ", ".join(f"{name} {each:.3f}" for name, each in means.items()),
        flush=True,
    )
    return shares


def _coverage(posterior: "xarray.Dataset", data: MixtureData) -> dict[str, float]:
    """Share of each parameter's entries that lie inside their intervals."""
    mean = posterior["coefficient"].mean(("chain", "draw")).transpose("feature", "component")
    index = match_components(mean.to_numpy(), data.coefficients, signed=True)
    truth = {
        "scale": data.scales,
        "bias": data.biases,
        "weight": data.weights,
        "coefficient": data.coefficients,
    }
    tail = (1.0 - PROBABILITY) / 2.0
    result = {}
    for name, value in truth.items():
        draws = posterior[name].transpose("chain", "draw", ..., "component").to_numpy()[..., index]
        low, high = np.quantile(draws, [tail, 1.0 - tail], axis=(0, 1))
        result[name] = float(np.mean((low <= value) & (value <= high)))
    return result


def _coverage_row(directions: str, name: str, shares: list[float]) -> Row:
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else None
    return {
        "directions": directions,
        "parameter": name,
        "data sets": len(shares),
        "coverage": float(np.mean(shares)),
        # Computed between data sets, as entries of one data set are correlated.
        "standard error": error,
    }


def _coverage_figures(rows: list[Row], *, is_judged: bool) -> list[Figure]:
    """Coverage over all scalars, so that coefficients count once per feature."""
    lowest, highest = COVERAGE_RANGE
    figures = []
    for directions in DIRECTIONS if rows else ():
        chosen = [row for row in rows if row["directions"] == directions]
        counts = [N_FEATURES if row["parameter"] == "coefficient" else 1 for row in chosen]
        share = float(np.average([float(str(row["coverage"])) for row in chosen], weights=counts))
        has_bar = directions == "anchored"
        figures.append(
            Figure(
                f"coverage of {PROBABILITY:.0%} intervals, directions {directions}",
                share,
                f"between {lowest:g} and {highest:g}" if has_bar else None,
                lowest <= share <= highest if has_bar and is_judged else None,
            )
        )
    return figures


BENCHMARK = Benchmark("interval_coverage", "coverage of intervals of `sample`", run)
