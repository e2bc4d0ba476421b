"""Share of random models whose directions are recovered from exact population moments.

The third moment is built from the truth by quadrature, so that every failure is one of the
decomposition. `decompose_tensor` is compared with TensorLy's symmetric power method and `parafac`
on the same, unwhitened tensor. As the order is odd, the sign of a coefficient can be moved into its
direction; models with coefficients of both signs are still counted.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import tensorly
from numpy.typing import NDArray
from tensorly.decomposition import parafac, symmetric_parafac_power_iteration

from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import angles_in_degrees
from moment_init.families.base import Family
from moment_init.families.links import moment_coefficient
from moment_init.families.registry import FAMILIES, get_family
from moment_init.moments.paper.decomposition import decompose_tensor

__all__ = ["BENCHMARK", "ExactModel", "draw_model", "measure_cell", "run"]

FloatArray = NDArray[np.float64]
Solver = Callable[[FloatArray, int, np.random.Generator], FloatArray]

TOLERANCE = 1e-6

# One degree: separates slow convergence from convergence to something else.
LOOSE_TOLERANCE = float(np.radians(1.0))
MODELS_PER_CELL = 20
QUICK_MODELS_PER_CELL = 1
COMPONENTS = (1, 2, 3, 4, 5, 6)
QUICK_COMPONENTS = (1, 3)
FEATURES = (6, 12)
MAX_CONDITION = 20.0
MIN_COEFFICIENT_RATIO = 1e-3

# Uniform directions are well conditioned if d is well above r; a common part of up to this size
# spreads the condition numbers over the whole allowed range.
MAX_COMMON_PART = 4.0

# Wide enough for the logistic third derivative to take both signs, and for coefficients of very
# different size.
BIAS_DEVIATION = 2.0
LOG_SCALE_RANGE = (-0.7, 0.7)

# The peers take ten times as long and have no bar, so fewer models are enough for their share.
PEER_MODELS = 5

# TensorLy's settings: as many starts as the package's own power method, twice its power steps
# (three per iteration), and enough sweeps for ALS to converge where it can.
POWER_REPEATS = 10
POWER_ITERATIONS = 20
PARAFAC_SWEEPS = 500


@dataclass(frozen=True, slots=True, eq=False)
class ExactModel:
    """A random model and its population moment."""

    directions: FloatArray  # true directions; (n_features, n_components)
    coefficients: FloatArray  # coefficients lambda_j of the moment; (n_components,)

    @property
    def tensor(self) -> FloatArray:
        """The third moment, (n_features, n_features, n_features)."""
        u = self.directions
        return np.asarray(np.einsum("l,il,jl,kl->ijk", self.coefficients, u, u, u))


def draw_model(family: Family, n_components: int, rng: np.random.Generator) -> ExactModel:
    """Draw models until one meets the limits on conditioning and coefficients."""
    n_features = int(rng.integers(FEATURES[0], FEATURES[1], endpoint=True))
    while True:
        directions = rng.standard_normal((n_features, n_components))
        directions += rng.uniform(0.0, MAX_COMMON_PART) * rng.standard_normal((n_features, 1))
        directions /= np.linalg.norm(directions, axis=0)
        scales = family.typical_scale * np.exp(rng.uniform(*LOG_SCALE_RANGE, n_components))
        biases = BIAS_DEVIATION * rng.standard_normal(n_components)
        weights = rng.dirichlet(np.full(n_components, 2.0))
        coefficients = weights * scales**3 * moment_coefficient(family, 3, scales, biases)
        is_balanced = _coefficient_ratio(coefficients) >= MIN_COEFFICIENT_RATIO
        if np.linalg.cond(directions) <= MAX_CONDITION and is_balanced:
            return ExactModel(directions, coefficients)


def run(options: Options) -> Outcome:
    """Decompose the moments of random models of every family, link and number of components."""
    n_models = QUICK_MODELS_PER_CELL if options.is_quick else MODELS_PER_CELL
    components = QUICK_COMPONENTS if options.is_quick else COMPONENTS
    rows = tuple(
        measure_cell(family, n_components, n_models, [options.seed, index, n_components])
        for index, family in enumerate(_families())
        for n_components in components
    )
    shares = {name: _share(rows, name) for name in OURS}
    figures = [
        Figure(f"share of models recovered by {name}", share, "1", share == 1.0)
        for name, share in shares.items()
    ]
    figures += [
        Figure(f"share of models recovered by {name}", _share(rows, name))
        for peer in PEERS
        for name in (peer, f"{peer} (1°)")
    ]
    settings = {
        "tolerance": TOLERANCE,
        "models_per_cell": n_models,
        "models_per_cell_of_peers": min(n_models, PEER_MODELS),
        "n_features": list(FEATURES),
        "max_condition": MAX_CONDITION,
        "min_coefficient_ratio": MIN_COEFFICIENT_RATIO,
    }
    return Outcome(rows, tuple(figures), settings)


def _families() -> Iterator[Family]:
    for name, family in FAMILIES.items():
        for link in family.supported_links:
            yield get_family(name, link)


def measure_cell(family: Family, n_components: int, n_models: int, seed: list[int]) -> Row:
    """Count the successes of every solver on the same random models; angles are in radians."""
    generators = np.random.default_rng(seed).spawn(n_models)
    models = [draw_model(family, n_components, rng) for rng in generators]
    errors: dict[str, list[float]] = {name: [] for name in SOLVERS}
    seconds: dict[str, list[float]] = {name: [] for name in SOLVERS}
    for index, (model, rng) in enumerate(zip(models, generators, strict=True)):
        for name, solve in SOLVERS.items():
            if name in PEERS and index >= PEER_MODELS:
                continue
            start = time.perf_counter()
            directions = solve(model.tensor, n_components, rng)
            seconds[name].append(time.perf_counter() - start)
            errors[name].append(_worst_angle(directions, model.directions))
    mixed = sum(bool(np.ptp(np.sign(model.coefficients))) for model in models)
    return {
        "family": family.name,
        "link": family.link.name,
        "r": n_components,
        **{name: _successes(angles, TOLERANCE) for name, angles in errors.items()},
        **{f"{name} (1°)": _successes(errors[name], LOOSE_TOLERANCE) for name in PEERS},
        **{f"worst ({name})": max(errors[name]) for name in OURS},
        "mixed signs": mixed,
        "largest cond(U)": max(float(np.linalg.cond(model.directions)) for model in models),
        "least ratio": min(_coefficient_ratio(model.coefficients) for model in models),
        **{f"ms ({name})": 1e3 * median(times) for name, times in seconds.items()},
    }


def _successes(errors: list[float], tolerance: float) -> str:
    return f"{sum(error <= tolerance for error in errors)}/{len(errors)}"


def _share(rows: Sequence[Row], column: str) -> float:
    """Share of successes over all rows."""
    cells = [str(row[column]).split("/") for row in rows]
    return sum(int(cell[0]) for cell in cells) / sum(int(cell[1]) for cell in cells)


def _coefficient_ratio(coefficients: FloatArray) -> float:
    """Ratio of the smallest to the largest absolute coefficient."""
    sizes = np.abs(coefficients)
    return float(sizes.min() / sizes.max())


def _worst_angle(directions: FloatArray, truth: FloatArray) -> float:
    """Largest angle to the truth in radians; infinite if the solver returned no directions."""
    if not np.all(np.isfinite(directions)) or not np.linalg.norm(directions, axis=0).all():
        return float("inf")
    return float(np.radians(angles_in_degrees(directions, truth)).max())


def _by_power(tensor: FloatArray, n_components: int, rng: np.random.Generator) -> FloatArray:
    return decompose_tensor(tensor, n_components, rng, method="power").directions


def _by_tensorly(tensor: FloatArray, n_components: int, rng: np.random.Generator) -> FloatArray:
    return decompose_tensor(tensor, n_components, rng, method="tensorly").directions


def _by_raw_power(tensor: FloatArray, n_components: int, rng: np.random.Generator) -> FloatArray:
    """Run TensorLy's symmetric power method on the unwhitened tensor."""
    state = np.random.get_state()  # noqa: NPY002 - it has no seed argument
    np.random.seed(int(rng.integers(2**32)))  # noqa: NPY002
    try:
        _, vectors = symmetric_parafac_power_iteration(
            tensorly.tensor(tensor),
            rank=n_components,
            n_repeat=POWER_REPEATS,
            n_iteration=POWER_ITERATIONS,
        )
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return np.asarray(vectors)


def _by_raw_parafac(tensor: FloatArray, n_components: int, rng: np.random.Generator) -> FloatArray:
    """Run TensorLy's alternating least squares from one random start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a singular sweep shows up in the result
        try:
            _, factors = parafac(
                tensorly.tensor(tensor),
                rank=n_components,
                n_iter_max=PARAFAC_SWEEPS,
                init="random",
                tol=1e-14,
                normalize_factors=True,
                random_state=int(rng.integers(2**31)),
            )
        except np.linalg.LinAlgError:
            return np.full((tensor.shape[0], n_components), np.nan)
    return np.asarray(factors[0])


OURS = ("power", "tensorly")
PEERS = ("raw power", "raw parafac")
SOLVERS: dict[str, Solver] = {
    "power": _by_power,
    "tensorly": _by_tensorly,
    "raw power": _by_raw_power,
    "raw parafac": _by_raw_parafac,
}

BENCHMARK = Benchmark(
    "exact_moments", "models whose directions come back from exact moments to 1e-6", run
)
