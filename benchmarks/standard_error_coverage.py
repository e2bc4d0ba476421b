"""Does twice the reported standard error of a direction cover its angle to the truth?"""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from benchmarks.mixtures import MIXTURES, Mixture, describe, draw, timed
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData, MomentEstimate, Status, angles_in_degrees, match_components

__all__ = ["BENCHMARK", "run"]

FloatArray = NDArray[np.float64]
Comparison = tuple[FloatArray, FloatArray, NDArray[np.bool_]]

N_DATA_SETS, QUICK_DATA_SETS = 40, 1
N_MIXTURES, QUICK_MIXTURES = 4, 2
QUICK_OBS = 3_000
COVERAGE_RANGE = (0.85, 0.99)
METHODS = {"polished": True, "moments alone": False}


def run(options: Options) -> Outcome:
    """Compute the share of angles within twice their standard error, by mixture and method."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    figures = []
    for mixture in MIXTURES[: QUICK_MIXTURES if options.is_quick else N_MIXTURES]:
        sized = mixture.resized(min(mixture.n_obs, QUICK_OBS)) if options.is_quick else mixture
        data_sets = [draw(sized, options.seed, index) for index in range(n_data_sets)]
        for method, is_polished in METHODS.items():
            results = [timed(data, options.seed, polish=is_polished)[0] for data in data_sets]
            row = _row(sized, method, list(map(_angles_and_errors, results, data_sets)))
            rows.append(row)
            figures.append(_figure(row, is_judged=not options.is_quick))
    settings = {"data_sets": n_data_sets, "coverage": list(COVERAGE_RANGE)}
    return Outcome(tuple(rows), tuple(figures), settings)


def _angles_and_errors(result: MomentEstimate, data: MixtureData) -> Comparison:
    """Angle of each true direction and its standard error in degrees, and whether status is ok."""
    if result.standard_errors is None:
        raise ValueError(f"`result` must have standard errors; got method {result.method!r}.")
    index = match_components(result.directions, data.directions)
    angles = angles_in_degrees(result.directions, data.directions)
    is_trusted = np.full(len(index), result.status is Status.OK)
    return angles, result.standard_errors[index], is_trusted


def _row(mixture: Mixture, method: str, pairs: Sequence[Comparison]) -> Row:
    angles, errors, is_trusted = (np.concatenate(each) for each in zip(*pairs, strict=True))
    is_covered = angles <= 2.0 * errors
    return {
        **describe(mixture),
        "method": method,
        "angles": len(angles),
        "within 1 error": fmean((angles <= errors).tolist()),
        "within 2 errors": fmean(is_covered.tolist()),
        "status ok": fmean(is_trusted.tolist()),
        "within 2 if ok": float(is_covered[is_trusted].mean()) if is_trusted.any() else None,
        "median angle": median(angles.tolist()),
        "median error": median(errors.tolist()),
        "largest angle / error": float((angles / errors).max()),
    }


def _figure(row: Row, *, is_judged: bool) -> Figure:
    lowest, highest = COVERAGE_RANGE
    share = float(str(row["within 2 errors"]))
    return Figure(
        f"{row['family']}, n = {row['n']:,}, r = {row['r']}, {row['method']}: share within twice "
        "the error",
        share,
        f"between {lowest:g} and {highest:g}",
        lowest <= share <= highest if is_judged else None,
    )


BENCHMARK = Benchmark(
    "standard_error_coverage", "share of true angles within twice their standard error", run
)
