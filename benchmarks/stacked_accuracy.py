"""Accuracy of the directions: stacked moments, polished or not, and methods of the literature.

The default call is compared with moments alone, the paper's third moment and, for Gaussian
responses, Chaganty and Liang's moment regression. The span of the directions is compared with that
of principal Hessian directions.
"""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.mixtures import MIXTURES, Mixture, describe, draw, pose, timed, worst_cosine
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from benchmarks.rivals import (
    LARGEST_REGRESSION,
    hessian_directions,
    moment_regression,
    regression_size,
    subspace_cosine,
)
from moment_init import MixtureData, angles_in_degrees
from moment_init.moments.stacked import low_order_moments
from moment_init.moments.subspace import complete_moments

__all__ = ["BENCHMARK", "run"]

N_DATA_SETS, QUICK_DATA_SETS = 20, 1

# The quick size takes the first mixtures only, and at most this many rows.
QUICK_MIXTURES, QUICK_OBS = 3, 3_000

Measurement = dict[str, float]


def run(options: Options) -> Outcome:
    """Compute the mean worst |cos| of every method on every mixture."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    figures: list[Figure] = []
    for mixture in MIXTURES[: QUICK_MIXTURES if options.is_quick else None]:
        sized = mixture.resized(min(mixture.n_obs, QUICK_OBS)) if options.is_quick else mixture
        measured = [
            _measure(draw(sized, options.seed, i), options.seed) for i in range(n_data_sets)
        ]
        rows.append(_row(sized, measured))
        figures += _figures(sized, measured, is_judged=not options.is_quick)
    settings = {
        "data_sets": n_data_sets,
        "cosine": "mean over data sets of the worst |cos| of a direction, after matching",
        "subspace": "cosine of the worst direction to the span, by moments alone",
        "moment regression": f"skipped beyond {LARGEST_REGRESSION} monomials of degree 3",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _measure(data: MixtureData, seed: int) -> Measurement:
    """Worst cosines and seconds of every method on one data set."""
    default, default_seconds = timed(data, seed)
    moments, moment_seconds = timed(data, seed, polish=False)
    power, power_seconds = timed(data, seed, method="power")
    measured = {
        "default": worst_cosine(default, data),
        "moments": worst_cosine(moments, data),
        "power": worst_cosine(power, data),
        "default s": default_seconds,
        "moments s": moment_seconds,
        "power s": power_seconds,
    }
    return {**measured, **_measure_rivals(data, seed)}


def _measure_rivals(data: MixtureData, seed: int) -> Measurement:
    problem, number = pose(data), data.weights.size
    ours = complete_moments(low_order_moments(problem, n_rows=None), number, 3).subspace
    hessian = hessian_directions(problem.input_model.whiten(data.X), data.y, number)
    measured = {
        "span": subspace_cosine(problem, ours, data),
        "hessian span": subspace_cosine(problem, hessian, data),
    }
    is_linear = data.family == "gaussian" and data.link == "identity"
    if is_linear and regression_size(data.X.shape[1]) <= LARGEST_REGRESSION:
        directions = moment_regression(problem, number, np.random.default_rng(seed))
        worst = angles_in_degrees(directions, data.directions).max()
        measured["regression"] = float(np.cos(np.radians(worst)))
    return measured


def _row(mixture: Mixture, measured: Sequence[Measurement]) -> Row:
    default = [each["default"] for each in measured]
    has_regression = "regression" in measured[0]
    return {
        **describe(mixture),
        "default": fmean(default),
        "bar": mixture.bar,
        "default min": min(default),
        **{name: _mean(measured, name) for name in ("moments", "power")},
        "regression": _mean(measured, "regression") if has_regression else None,
        **{name: _mean(measured, name) for name in ("span", "hessian span")},
        **{name: _mean(measured, name) for name in ("default s", "moments s", "power s")},
    }


def _figures(
    mixture: Mixture, measured: Sequence[Measurement], *, is_judged: bool
) -> tuple[Figure, Figure]:
    name = f"{mixture.family}, n = {mixture.n_obs:,}, r = {mixture.n_components}"
    default = _mean(measured, "default")
    left = max(1.0 - default, np.finfo(np.float64).eps)
    return (
        Figure(
            f"{name}: mean worst |cos| of the default call",
            default,
            f">= {mixture.bar:g}",
            default >= mixture.bar if is_judged else None,
        ),
        Figure(
            f"{name}: 1 - |cos| of the paper's method over ours",
            (1.0 - _mean(measured, "power")) / left,
        ),
    )


def _mean(measured: Sequence[Measurement], name: str) -> float:
    return fmean(each[name] for each in measured)


BENCHMARK = Benchmark(
    "stacked_accuracy", "worst |cos| of stacked moments, of the paper's and of other methods", run
)
