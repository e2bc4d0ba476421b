"""The span of the directions: stacked moments against cheap methods, and the use of mirroring.

The second moment of a bernoulli mixture without biases vanishes. The stacked estimator falls back
on the first and third moments; mirroring forms another second moment. The table also shows the
directions of the default call of `estimate`. If it misses a direction, EM from the truth shows
whether the data identify it, and EM from the estimate inside the mirrored span shows whether
mirroring would have found it. EM from one random start is the control: any second start may help.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.mixtures import (
    MIXTURES,
    SCALE_RANGE,
    Mixture,
    describe,
    pose,
    timed,
    worst_cosine,
)
from benchmarks.random_mixtures import fit_timed, truth_of
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from benchmarks.rivals import (
    hessian_directions,
    inverse_regression,
    mirrored_directions,
    span_cosine,
    subspace_cosine,
    without_linear_part,
)
from moment_init import MixtureData, WeakSignalWarning, estimate, simulate_mixture
from moment_init.moments.stacked import low_order_moments
from moment_init.moments.subspace import complete_moments
from moment_init.scores.choosing import EstimationProblem

__all__ = ["BENCHMARK", "run"]

FloatArray = NDArray[np.float64]

N_DATA_SETS, QUICK_DATA_SETS = 20, 1
QUICK_OBS = 2_000
QUICK_STRIDE = 2  # every other case; the others differ only in size

# A direction counts as missed below this cosine (26 degrees): a span or an estimate that far off is
# hardly useful as a start.
FOUND = 0.9

# Log-likelihoods within this distance are the same optimum, as in `gauntlet`.
TOLERANCE = 1.0

METHODS = ("stacked", "hessian", "hessian of y^2", "inverse", "mirrored", "mirrored y")


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of mixture."""

    name: str  # what is special about the case
    mixture: Mixture  # family, sizes and scale
    biases: float | None = None  # common bias; random if None


GAUSSIAN, POISSON, TWO_CLASSIFIERS, THREE_CLASSIFIERS = MIXTURES[:4]
CASES = (
    Case("symmetric", TWO_CLASSIFIERS.resized(5_000), 0.0),
    Case("symmetric", TWO_CLASSIFIERS.resized(20_000), 0.0),
    Case("symmetric", THREE_CLASSIFIERS.resized(20_000), 0.0),
    Case("symmetric", THREE_CLASSIFIERS.resized(100_000), 0.0),
    Case("biases", TWO_CLASSIFIERS),
    Case("biases", THREE_CLASSIFIERS),
    Case("biases", GAUSSIAN),
    Case("biases", POISSON),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Results on one data set."""

    spans: dict[str, float]  # cosine of the worst direction to the span, by method
    chance: float  # the same for a random span
    estimate: float  # worst |cos| of a direction of the default estimate
    # whether the default estimate misses a direction and EM from it ends below EM from the truth
    is_short: bool
    # if so, further starts from which EM does not end below EM from the truth
    mended_by: frozenset[str]


def run(options: Options) -> Outcome:
    """Compute cosines by method, and how often one method finds what another misses."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    means: list[Row] = []
    misses: list[Row] = []
    figures: list[Figure] = []
    for case in CASES[:: QUICK_STRIDE if options.is_quick else 1]:
        sized = _sized(case, options)
        measured = [
            _measure(_draw(sized, options.seed, index), options.seed)
            for index in range(n_data_sets)
        ]
        means.append(_mean_row(sized, measured))
        misses.append(_miss_row(sized, measured))
        figures += _figures(sized, measured)
    settings = {
        "data_sets": n_data_sets,
        "span": "mean over data sets of the cosine of the worst direction to the span",
        "inverse": "as many directions as the slices allow: one for a bernoulli response",
        "mirrored y": "mirrored without removing the linear part",
        "missed": f"worst cosine below {FOUND:g}",
        "short": f"EM from the truth more than {TOLERANCE:g} above EM from the estimate",
    }
    return Outcome((*means, *misses), tuple(figures), settings)


def _sized(case: Case, options: Options) -> Case:
    if not options.is_quick:
        return case
    return Case(case.name, case.mixture.resized(QUICK_OBS), case.biases)


def _draw(case: Case, seed: int, index: int) -> MixtureData:
    """Draw data as in the other benchmarks of moments, except for the biases."""
    mixture = case.mixture
    rng = np.random.default_rng([seed, index])
    return simulate_mixture(
        mixture.n_obs,
        mixture.n_features,
        mixture.n_components,
        family=mixture.family,
        scales=mixture.scale * rng.uniform(*SCALE_RANGE, mixture.n_components),
        biases=case.biases,
        weights=mixture.weights,
        dispersion=mixture.dispersion,
        random_seed=rng,
    )


def _measure(data: MixtureData, seed: int) -> Measurement:
    problem = pose(data)
    bases = _bases(problem, data)
    spans = {name: subspace_cosine(problem, basis, data) for name, basis in bases.items()}
    result, _ = timed(data, seed)
    cosine = worst_cosine(result, data)
    is_short, mended_by = False, frozenset[str]()
    if cosine < FOUND:
        goal = _log_likelihood(data, init=truth_of(data)) - TOLERANCE
        is_short = _log_likelihood(data, init=result) < goal
        columns, _ = problem.coordinates.directions_to_user(bases["mirrored"])
        mended_by = _menders(data, columns, goal, seed) if is_short else mended_by
    shape = data.directions.shape
    random_span = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return Measurement(spans, span_cosine(random_span, data), cosine, is_short, mended_by)


def _bases(problem: EstimationProblem, data: MixtureData) -> dict[str, FloatArray]:
    """Basis of the span by each method, in standardised coordinates."""
    z, y, number = problem.input_model.whiten(data.X), data.y, data.weights.size
    low_orders = low_order_moments(problem, n_rows=None)
    n_inverse = min(number, len(np.unique(y)) - 1)  # two slices of a binary y give one direction
    centred = y - y.mean()
    bases = {
        "stacked": complete_moments(low_orders, number, 3).subspace,
        "hessian": hessian_directions(z, y, number),
        "inverse": inverse_regression(z, y, n_inverse),
        "mirrored": mirrored_directions(z, y, without_linear_part(z, y), number),
        "mirrored y": mirrored_directions(z, y, centred, number),
    }
    if data.family != "bernoulli":  # the square of a binary y is linear in y
        bases["hessian of y^2"] = hessian_directions(z, np.square(centred), number)
    return bases


def _menders(data: MixtureData, columns: FloatArray, goal: float, seed: int) -> frozenset[str]:
    reached = {
        "mirrored": _log_likelihood(data, init=_start_inside(columns, data, seed)),
        "random": _log_likelihood(data, seed, init="random", n_starts=1),
    }
    return frozenset(name for name, value in reached.items() if value >= goal)


def _log_likelihood(data: MixtureData, seed: int | None = None, **options: Any) -> float:
    fit, _ = fit_timed(data, seed, **options)
    return float(fit.log_likelihood)


def _start_inside(columns: FloatArray, data: MixtureData, seed: int) -> tuple[FloatArray, ...]:
    """Estimate from rows projected on the span of some columns; return a start in all features."""
    basis, _ = np.linalg.qr(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        inside = estimate(
            data.X @ basis, data.y, data.weights.size, family=data.family, random_seed=seed
        )
    if inside.biases is None or inside.weights is None or inside.coefficients is None:
        raise ValueError("`estimate` must give scales, biases and weights; got directions only.")
    start = basis @ inside.coefficients, inside.biases, inside.weights
    return start if inside.dispersion is None else (*start, inside.dispersion)


def _mean_row(case: Case, measured: Sequence[Measurement]) -> Row:
    cosines = {name: _mean_cosine(measured, name) for name in METHODS}
    best = max(METHODS, key=lambda name: cosines[name] or 0.0)
    return {
        "case": case.name,
        **describe(case.mixture),
        **cosines,
        "chance": fmean(each.chance for each in measured),
        "best": best,
        "mirrored above stacked": sum(
            each.spans["mirrored"] > each.spans["stacked"] for each in measured
        ),
        "of": len(measured),
    }


def _miss_row(case: Case, measured: Sequence[Measurement]) -> Row:
    stacked = [each for each in measured if each.spans["stacked"] < FOUND]
    missed = [each for each in measured if each.estimate < FOUND]
    return {
        "case": case.name,
        **describe(case.mixture),
        "stacked min": min(each.spans["stacked"] for each in measured),
        "mirrored min": min(each.spans["mirrored"] for each in measured),
        "stacked misses": len(stacked),
        "mirrored holds them": _held(stacked),
        "mirrored misses": sum(each.spans["mirrored"] < FOUND for each in measured),
        "estimate": fmean(each.estimate for each in measured),
        "estimate min": min(each.estimate for each in measured),
        "estimate misses": len(missed),
        "of these mirrored holds": _held(missed),
        "short of the truth": sum(each.is_short for each in missed),
        "mended by mirrored": _mended(missed, "mirrored"),
        "mended by random": _mended(missed, "random"),
    }


def _held(measured: Sequence[Measurement]) -> int:
    return sum(each.spans["mirrored"] >= FOUND for each in measured)


def _mended(measured: Sequence[Measurement], start: str) -> int:
    return sum(start in each.mended_by for each in measured)


def _mean_cosine(measured: Sequence[Measurement], name: str) -> float | None:
    if name not in measured[0].spans:
        return None
    return fmean(each.spans[name] for each in measured)


def _figures(case: Case, measured: Sequence[Measurement]) -> list[Figure]:
    mixture = case.mixture
    name = f"{case.name}, {mixture.family}, n = {mixture.n_obs:,}, r = {mixture.n_components}"
    difference = fmean(each.spans["mirrored"] - each.spans["stacked"] for each in measured)
    figures = [Figure(f"{name}: mean cosine of the mirrored span less the stacked", difference)]
    if case.biases == 0.0:
        held = _held([each for each in measured if each.spans["stacked"] < FOUND])
        counts = {
            "mirroring holds what the stacked span misses": held,
            "it mends `estimate`": _mended(measured, "mirrored"),
            "a random start mends `estimate`": _mended(measured, "random"),
        }
        figures += [
            Figure(f"{name}: share of data sets where {what}", count / len(measured))
            for what, count in counts.items()
        ]
    return figures


BENCHMARK = Benchmark(
    "subspace_methods", "span of the directions: stacked, Hessian, sliced inverse, mirrored", run
)
