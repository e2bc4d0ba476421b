"""Value and gradient of a logistic mixture with fixed directions, compared with a loop by hand.

The loop computes the value and its derivatives in scales, biases and log weights from the projected
data in one pass. All contestants are timed inside compiled code: PyTensor's functions through the
function that numba compiled for their graph, without the copies and checks of
``Function.__call__``, and the loop through its own dispatcher. The remaining overhead is the
unboxing of a few arrays, some microseconds on both sides. The loop uses the compiler flags that
PyTensor uses for its own functions.

PyMC and numba are imported inside functions, as the other benchmarks do not need them.
"""

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import seconds_of
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData, simulate_mixture

__all__ = ["BENCHMARK", "run"]

FloatArray = NDArray[np.float64]

N_FEATURES, N_COMPONENTS, SCALE = 5, 3, 4.0
ROWS, QUICK_ROWS = (5_000, 50_000), (500,)
N_REPEATS, QUICK_REPEATS = 200, 3
MAX_RATIO = 2.0

LOOP, OURS, FROM_FEATURES = "loop by hand", "our operation", "our operation, X @ U in the graph"
LOG_SUM_EXP, MIXTURE = "log-sum-exp by hand", "pm.Mixture"

# All contestants must agree at the same point, up to the order of summation.
TOLERANCE = 1e-9


def run(options: Options) -> Outcome:
    """Time every contestant in turn, many times, at each number of rows."""
    rows: list[Row] = []
    figures: list[Figure] = []
    for n_obs in QUICK_ROWS if options.is_quick else ROWS:
        measured = _measure(n_obs, options)
        rows += measured
        ratio = float(str(measured[1]["over loop"]))
        figures.append(
            Figure(
                f"gradient by our operation over the loop by hand at n = {n_obs:,}",
                ratio,
                f"<= {MAX_RATIO:g}",
                None if options.is_quick else ratio <= MAX_RATIO,
            )
        )
    settings = {
        "n_features": N_FEATURES,
        "n_components": N_COMPONENTS,
        "n_repeats": QUICK_REPEATS if options.is_quick else N_REPEATS,
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _measure(n_obs: int, options: Options) -> list[Row]:
    data = simulate_mixture(
        n_obs, N_FEATURES, N_COMPONENTS, family="bernoulli", scales=SCALE, random_seed=options.seed
    )
    calls = _contestants(data)
    _check_agreement({name: call() for name, call in calls.items()})
    n_repeats = QUICK_REPEATS if options.is_quick else N_REPEATS
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n_repeats):
        for name, call in calls.items():  # in turn, so that load on the machine affects all alike
            call()  # warm-up: a sampler calls the same function repeatedly
            seconds[name].append(seconds_of(call))
    return [
        {
            "n": n_obs,
            "value and gradient": name,
            "median ms": 1e3 * median(times),
            # Ratio within each round, so that both sides saw the same load.
            "over loop": median(
                time / loop for time, loop in zip(times, seconds[LOOP], strict=True)
            ),
        }
        for name, times in seconds.items()
    ]


def _contestants(data: MixtureData) -> dict[str, Callable[[], Any]]:
    """Functions to time, by name; each returns the value and the three derivatives."""
    projection = np.ascontiguousarray(data.X @ data.directions)
    point = (np.array(data.scales), np.array(data.biases), np.log(data.weights))
    y = data.y.astype(np.int64)
    loop = _compiled_loop()
    graphs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        OURS: (_fused, (projection, y)),
        FROM_FEATURES: (_fused_from_features, (data.X, data.directions, y)),
        LOG_SUM_EXP: (_log_sum_exp, (projection, y)),
        MIXTURE: (_mixture_class, (projection, y)),
    }
    return {
        LOOP: lambda: loop(projection, y, *point),
        **{name: _compiled(build, arrays, point) for name, (build, arrays) in graphs.items()},
    }


def _compiled(
    build: Callable[..., Any], arrays: tuple[Any, ...], point: tuple[FloatArray, ...]
) -> Callable[[], Any]:
    """Compile value and gradient as a function of the arrays and parameters."""
    import pytensor.tensor as pt
    from pytensor.compile.maker import function as compile_function
    from pytensor.gradient import grad

    data = [pt.TensorType(array.dtype, shape=(None,) * array.ndim)() for array in arrays]
    parameters: list[Any] = [pt.TensorType("float64", shape=(None,))() for _ in point]
    value = build(*data, *parameters).sum()
    gradient: Any = grad(value, parameters)
    inputs = [*data, *parameters]
    function = compile_function(inputs, [value, *gradient], mode="NUMBA", trust_input=True)
    compiled: Any = function.vm.jit_fn
    arguments = (*arrays, *point)
    return lambda: compiled(*arguments)


def _fused(projection: Any, y: Any, scale: Any, bias: Any, log_weight: Any) -> Any:
    from moment_init.models.density import mixture_log_density

    return mixture_log_density(y, projection * scale + bias, log_weight, family="bernoulli")


def _fused_from_features(
    X: Any, directions: Any, y: Any, scale: Any, bias: Any, log_weight: Any
) -> Any:
    from moment_init.models.density import mixture_log_density

    eta = X @ (directions * scale) + bias
    return mixture_log_density(y, eta, log_weight, family="bernoulli")


def _log_sum_exp(projection: Any, y: Any, scale: Any, bias: Any, log_weight: Any) -> Any:
    import pytensor.tensor as pt
    from pytensor.tensor.special import logsumexp

    sign = 2.0 * y[:, None] - 1.0
    eta = projection * scale + bias
    joint = log_weight - pt.softplus(-sign * eta)
    return logsumexp(joint, axis=1)  # type: ignore[no-untyped-call]


def _mixture_class(projection: Any, y: Any, scale: Any, bias: Any, log_weight: Any) -> Any:
    import pymc as pm
    import pytensor.tensor as pt

    from moment_init.models import component_distribution

    eta = projection * scale + bias
    components = [component_distribution("bernoulli", eta[:, j]) for j in range(N_COMPONENTS)]
    return pm.logp(pm.Mixture.dist(w=pt.exp(log_weight), comp_dists=components), y)


def _compiled_loop() -> Callable[..., Any]:
    import numba

    flags = {"arcp", "contract", "afn", "reassoc", "nsz"}
    compiled: Callable[..., Any] = numba.njit(fastmath=flags, error_model="numpy")(_fused_loop)
    return compiled


def _fused_loop(  # type: ignore[no-untyped-def]
    projection, y, scale, bias, log_weight
):
    n_obs, n_components = projection.shape
    value = 0.0
    d_scale, d_bias = np.zeros(n_components), np.zeros(n_components)
    d_log_weight = np.zeros(n_components)
    weight = np.exp(log_weight)
    joint, slope = np.empty(n_components), np.empty(n_components)
    for i in range(n_obs):
        sign = 2.0 * y[i] - 1.0
        total = 0.0
        for j in range(n_components):
            mean = 1.0 / (1.0 + math.exp(-sign * (projection[i, j] * scale[j] + bias[j])))
            joint[j] = weight[j] * mean
            slope[j] = sign * joint[j] * (1.0 - mean)
            total += joint[j]
        value += math.log(total)
        inverse = 1.0 / total
        for j in range(n_components):
            d_log_weight[j] += joint[j] * inverse
            d_bias[j] += slope[j] * inverse
            d_scale[j] += slope[j] * inverse * projection[i, j]
    return value, d_scale, d_bias, d_log_weight


def _check_agreement(results: dict[str, Any]) -> None:
    """Raise if the contestants compute different values."""
    expected = [np.asarray(part) for part in results[LOOP]]
    for name, result in results.items():
        for part, other in zip(expected, result, strict=True):
            if not np.allclose(part, other, rtol=TOLERANCE, atol=TOLERANCE * expected[3].sum()):
                raise RuntimeError(f"{name!r} and {LOOP!r} disagree: {other} and {part}")


BENCHMARK = Benchmark(
    "gradient_cost", "value and gradient of a logistic mixture against one loop by hand", run
)
