"""How the error grows with d, r and 1 / s_min(U) at a fixed number of rows.

Theorems 5 and 8 of the paper ask for n of the order d^3 r^4 / (epsilon^2 s_min(U)^2), so that at
fixed n the error is bounded by a multiple of d^1.5 r^2 / s_min(U). One quantity varies at a time;
the others keep the values of orthonormal directions with equal weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.fitting import direction_error, fitted_exponent
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import simulate_mixture

__all__ = ["BENCHMARK", "run"]

FloatArray = NDArray[np.float64]
Design = Callable[[float, np.random.Generator], FloatArray]

N_OBS, N_DATA_SETS = 300_000, 20
QUICK_OBS, QUICK_DATA_SETS = 20_000, 1
N_FEATURES = 10

# At these scales third moments are strong, so that the error stays in its linear regime.
SCALES: Mapping[str, float] = {"bernoulli": 3.0, "gaussian": 1.0}
THEOREMS: Mapping[str, str] = {"bernoulli": "Theorem 5", "gaussian": "Theorem 8"}


@dataclass(frozen=True, slots=True)
class Axis:
    """One quantity of the theorems."""

    name: str  # the quantity
    values: tuple[float, ...]  # values that it takes
    theorem_exponent: float  # its exponent in the bound on the error
    directions: Design  # maps a value and a generator to directions, (n_features, n_components)


def run(options: Options) -> Outcome:
    """Measure the error along each axis and fit its exponent, for both theorems."""
    rows: list[Row] = []
    figures = []
    for family, theorem in THEOREMS.items():
        for axis in AXES:
            medians = [_median_error(family, axis, value, options) for value in axis.values]
            exponent, error = fitted_exponent(axis.values, medians)
            rows += [
                {"family": family, "varied": axis.name, "value": value, "median error": middle}
                for value, middle in zip(axis.values, medians, strict=True)
            ]
            relation = "at most" if exponent <= axis.theorem_exponent else "above"
            figures.append(
                Figure(
                    f"{family}: exponent of {axis.name} (standard error {error:.2f})",
                    exponent,
                    bar=f"{theorem} bounds it by {axis.theorem_exponent:g}: {relation} that",
                )
            )
    settings = {
        "n_obs": QUICK_OBS if options.is_quick else N_OBS,
        "data_sets": QUICK_DATA_SETS if options.is_quick else N_DATA_SETS,
        "scales": dict(SCALES),
        "error": "largest |u_j - u^_j| of a data set",
        "theorem_exponents": {axis.name: axis.theorem_exponent for axis in AXES},
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _median_error(family: str, axis: Axis, value: float, options: Options) -> float:
    n_obs, n_data_sets = (QUICK_OBS, QUICK_DATA_SETS) if options.is_quick else (N_OBS, N_DATA_SETS)
    errors = []
    for index in range(n_data_sets):
        rng = np.random.default_rng([options.seed, index])
        directions = axis.directions(value, rng)
        n_features, n_components = directions.shape
        data = simulate_mixture(
            n_obs,
            n_features,
            n_components,
            family=family,
            directions=directions,
            weights=np.full(n_components, 1.0 / n_components),
            scales=SCALES[family],
            biases=0.0,
            random_seed=rng,
        )
        errors.append(direction_error(data, options.seed))
    return median(errors)


def _orthonormal(n_features: int, n_components: int, rng: np.random.Generator) -> FloatArray:
    """Random orthonormal columns."""
    basis, _ = np.linalg.qr(rng.standard_normal((n_features, n_components)))
    return np.asarray(basis)


def _by_features(value: float, rng: np.random.Generator) -> FloatArray:
    return _orthonormal(int(value), 2, rng)


def _by_components(value: float, rng: np.random.Generator) -> FloatArray:
    return _orthonormal(N_FEATURES, int(value), rng)


def _by_inverse_singular_value(value: float, rng: np.random.Generator) -> FloatArray:
    """Two directions with s_min = 1 / value: their cosine is 1 - s_min^2."""
    cosine = 1.0 - 1.0 / value**2
    basis = _orthonormal(N_FEATURES, 2, rng)
    mixing = np.array([[1.0, cosine], [0.0, np.sqrt(1.0 - cosine**2)]])
    return np.asarray(basis @ mixing)


AXES = (
    Axis("d", (4, 8, 16, 32), 1.5, _by_features),
    Axis("r", (2, 3, 4, 6), 2.0, _by_components),
    Axis("1 / s_min(U)", (1.0, 1.5, 2.0, 3.0, 4.0), 1.0, _by_inverse_singular_value),
)

BENCHMARK = Benchmark(
    "error_growth", "error by d, r and 1 / s_min(U) next to Theorems 5 and 8", run
)
