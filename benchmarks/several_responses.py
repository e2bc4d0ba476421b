"""Several responses that share component and direction: how many rows they save.

Data sets have three responses. The estimate from one response uses the first of them, so that both
see the same rows. The number of rows that one response needs for the angle reached by three is read
off its own curve.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import WeakSignalWarning, angles_in_degrees, estimate
from moment_init.families.registry import get_family

__all__ = ["BENCHMARK", "run"]

FloatArray = NDArray[np.float64]

N_DATA_SETS, QUICK_DATA_SETS = 20, 1
N_RESPONSES = 3
METHODS = {"moments": False, "estimate": True}


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of mixture."""

    family: str  # family of all responses
    weights: tuple[float, ...]  # weights of the components
    n_features: int  # number of features
    scale: float  # scales are 0.7 to 1.3 times this, with random signs
    dispersion: float | None  # dispersion of all responses
    n_obs: tuple[int, ...]  # numbers of rows


CASES = (
    Case("gaussian", (0.5, 0.3, 0.2), 6, 1.0, 0.5, (500, 1_000, 2_000, 4_000, 8_000, 16_000)),
    Case("bernoulli", (0.6, 0.4), 5, 3.0, None, (2_000, 4_000, 8_000, 16_000, 32_000)),
)


def run(options: Options) -> Outcome:
    """Estimate from one and from three responses of the same rows, and compare the rows needed."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    figures: list[Figure] = []
    for index, case in enumerate(CASES):
        sizes = case.n_obs[:2] if options.is_quick else case.n_obs
        angles = {
            n_obs: [
                _angles(case, n_obs, np.random.default_rng([options.seed, index, n_obs, each]))
                for each in range(n_data_sets)
            ]
            for n_obs in sizes
        }
        for method in METHODS:
            curves = {
                k: [fmean(each[method, k] for each in angles[n_obs]) for n_obs in sizes]
                for k in (1, N_RESPONSES)
            }
            needed = [_rows_for(angle, sizes, curves[1]) for angle in curves[N_RESPONSES]]
            ratios = [
                None if rows_needed is None else rows_needed / n_obs
                for n_obs, rows_needed in zip(sizes, needed, strict=True)
            ]
            rows += [
                {
                    "family": case.family,
                    "method": method,
                    "n": n_obs,
                    "degrees, 1 response": curves[1][place],
                    f"degrees, {N_RESPONSES} responses": curves[N_RESPONSES][place],
                    "ratio of rows needed": ratios[place],
                }
                for place, n_obs in enumerate(sizes)
            ]
            known = [ratio for ratio in ratios if ratio is not None]
            if known:
                value = float(np.exp(fmean(np.log(ratio) for ratio in known)))
                name = f"{case.family}, {method}: rows one response needs over those of three"
                figures.append(Figure(name, value, "above 1", value > 1.0))
    return Outcome(tuple(rows), tuple(figures), {"n_data_sets": n_data_sets})


def _angles(case: Case, n_obs: int, rng: np.random.Generator) -> dict[tuple[str, int], float]:
    """Worst angle between a direction and the truth, by method and number of responses."""
    X, y, directions = _simulate(case, n_obs, rng)
    result = {}
    for method, polish in METHODS.items():
        for k in (1, N_RESPONSES):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WeakSignalWarning)
                found = estimate(
                    X,
                    y[:, :k],
                    len(case.weights),
                    family=case.family,
                    polish=polish,
                    random_seed=int(rng.integers(2**31)),
                )
            result[method, k] = float(angles_in_degrees(found.directions, directions).max())
    return result


def _simulate(
    case: Case, n_obs: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Inputs, responses and directions."""
    r = len(case.weights)
    directions = rng.standard_normal((case.n_features, r))
    directions /= np.linalg.norm(directions, axis=0)
    shape = (r, N_RESPONSES)
    scales = case.scale * rng.uniform(0.7, 1.3, shape) * rng.choice([-1.0, 1.0], shape)
    biases = 0.5 * rng.standard_normal(shape)
    X = rng.standard_normal((n_obs, case.n_features))
    label = rng.choice(r, size=n_obs, p=case.weights)
    along = (X @ directions)[np.arange(n_obs), label]
    family = get_family(case.family)
    mean = family.link.mean(along[:, None] * scales[label] + biases[label])
    return X, family.sample(mean, dispersion=case.dispersion, rng=rng), directions


def _rows_for(angle: float, sizes: Sequence[int], curve: Sequence[float]) -> float | None:
    """Rows at which a falling curve reaches an angle, on log axes; None outside the curve."""
    # Means over few data sets need not fall, so the best angle so far is used.
    falling = np.minimum.accumulate(curve)
    if not falling[-1] <= angle <= falling[0] or len(sizes) < 2:
        return None
    logs = np.interp(np.log(angle), np.log(falling[::-1]), np.log(np.array(sizes[::-1])))
    return float(np.exp(logs))


BENCHMARK = Benchmark(
    "several_responses", "rows that several responses save: one response against three", run
)
