"""More components than dimensions: recovery from exact moments and from samples."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from benchmarks.mixtures import Mixture, describe, draw, timed, worst_cosine
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import angles_in_degrees
from moment_init.moments.subspace import hermite_basis
from moment_init.moments.tensor import decompose_symmetric

__all__ = ["BENCHMARK", "exact_moments", "run"]

FloatArray = NDArray[np.float64]

N_MODELS, QUICK_MODELS = 20, 1

# Exact tensors give their components up to rounding, which ill-conditioning magnifies.
LARGEST_ANGLE = 1e-2

# Range of absolute coefficients, of either sign, bounded away from zero so that all are visible.
COEFFICIENT_RANGE = (0.5, 1.5)

# Estimates from samples have no bar; the table shows what to expect.
SAMPLED = Mixture("gaussian", 100_000, 3, 4, 2.0, bar=0.0, dispersion=0.5)
SAMPLE_ROWS, QUICK_SAMPLE_ROWS = (100_000, 1_000_000), (3_000,)
N_SAMPLES, QUICK_SAMPLES = 5, 1
FAR = 0.95


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes and orders of exact moments."""

    n_features: int
    n_components: int
    orders: tuple[int, ...]  # orders of the moments


# Largest last: quick runs leave it out.
CASES = (Case(4, 6, (4,)), Case(4, 6, (3, 4)), Case(6, 8, (3,)))
QUICK_CASES = 2


def run(options: Options) -> Outcome:
    """Decompose exact moments, then estimate from samples."""
    n_models = options.data_sets(N_MODELS, QUICK_MODELS)
    n_samples = options.data_sets(N_SAMPLES, QUICK_SAMPLES)
    rows: list[Row] = []
    figures = []
    for case in CASES[: QUICK_CASES if options.is_quick else None]:
        runs = [_recover(case, [options.seed, index]) for index in range(n_models)]
        rows.append(_exact_row(case, runs))
        share = fmean(angle < LARGEST_ANGLE for angle, _ in runs)
        figures.append(
            Figure(
                f"d = {case.n_features}, r = {case.n_components}, orders {_words(case)}: share "
                "recovered",
                share,
                "1",
                share == 1.0,
            )
        )
    for n_obs in QUICK_SAMPLE_ROWS if options.is_quick else SAMPLE_ROWS:
        row = _sample_row(SAMPLED.resized(n_obs), n_samples, options.seed)
        rows.append(row)
        figures.append(
            Figure(
                f"from {n_obs:,} rows, d = 3, r = 4: mean worst |cos|", float(str(row["default"]))
            )
        )
    settings = {
        "models": n_models,
        "samples": n_samples,
        "recovered": f"all directions within {LARGEST_ANGLE:g} degrees",
        "samples of": "gaussian, noise .5, scale 2, weights Dirichlet(10)",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def exact_moments(directions: FloatArray, coefficients: dict[int, FloatArray]) -> FloatArray:
    r"""Distinct entries of :math:`\sum_j c_j u_j^{\otimes m}` for one function, orders up to 4.

    Entries follow the order and normalisation of the Hermite basis; other orders are zero.
    """
    # directions: (n_features, n_components) -> (1, q)
    basis = hermite_basis(directions.shape[0], 4)
    moments = np.zeros((1, basis.size))
    for order, values in coefficients.items():
        entries = combinations_with_replacement(range(directions.shape[0]), order)
        powers = np.array([directions[list(entry)].prod(axis=0) @ values for entry in entries])
        moments[0, basis.columns(order)] = powers * np.sqrt(basis.multiplicities[order])
    return moments


def _recover(case: Case, seed: Sequence[int]) -> tuple[float, float]:
    """Worst angle in degrees and time in seconds for one random model."""
    rng = np.random.default_rng([*seed, case.n_features, *case.orders])
    directions = rng.standard_normal((case.n_features, case.n_components))
    directions /= np.linalg.norm(directions, axis=0)
    coefficients = {
        order: rng.uniform(*COEFFICIENT_RANGE, case.n_components)
        * rng.choice([-1.0, 1.0], case.n_components)
        for order in case.orders
    }
    moments = exact_moments(directions, coefficients)
    basis = hermite_basis(case.n_features, 4)
    start = time.perf_counter()
    solutions = decompose_symmetric(moments, basis, case.orders, case.n_components, rng)
    seconds = time.perf_counter() - start
    worst = angles_in_degrees(solutions[0].directions, directions).max() if solutions else 90.0
    return float(worst), seconds


def _exact_row(case: Case, runs: Sequence[tuple[float, float]]) -> Row:
    angles, seconds = [angle for angle, _ in runs], [each for _, each in runs]
    return {
        "d": case.n_features,
        "r": case.n_components,
        "orders": _words(case),
        "models": len(runs),
        "recovered": sum(angle < LARGEST_ANGLE for angle in angles),
        "median angle": median(angles),
        "largest angle": max(angles),
        "median s": median(seconds),
        "max s": max(seconds),
    }


def _sample_row(mixture: Mixture, n_samples: int, seed: int) -> Row:
    data_sets = [draw(mixture, seed, index) for index in range(n_samples)]
    polished = [timed(data, seed) for data in data_sets]
    moments = [timed(data, seed, polish=False)[0] for data in data_sets]
    pairs = list(zip(polished, data_sets, strict=True))
    by_default = [worst_cosine(result, data) for (result, _), data in pairs]
    by_moments = [
        worst_cosine(result, data) for result, data in zip(moments, data_sets, strict=True)
    ]
    return {
        **describe(mixture),
        "data sets": n_samples,
        "default": fmean(by_default),
        f"default > {FAR:g}": sum(cosine > FAR for cosine in by_default),
        "moments": fmean(by_moments),
        f"moments > {FAR:g}": sum(cosine > FAR for cosine in by_moments),
        "status ok": sum(result.status == "ok" for result, _ in polished),
        "mean s": fmean(seconds for _, seconds in polished),
    }


def _words(case: Case) -> str:
    return " and ".join(map(str, case.orders))


BENCHMARK = Benchmark(
    "overcomplete", "more components than dimensions, from exact moments and from samples", run
)
