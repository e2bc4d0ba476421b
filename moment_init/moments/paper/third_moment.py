"""The paper's estimate from one third moment as a result: components, diagnostics, status.

The status compares each component with noise, and checks identifiability and assumptions.
"""

from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData
from moment_init.moments.paper.cross_moments import RowScores, cross_moment
from moment_init.moments.paper.decomposition import DecompositionMethod
from moment_init.moments.paper.recovery import (
    NOISE_PEAK,
    Components,
    find_components,
    noise_edge,
    weigh_components,
)
from moment_init.moments.result import MomentDiagnostics, MomentEstimate
from moment_init.results import Status
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import EstimationProblem

# The largest singular value of noise varies around its edge by about a tenth.
EDGE_SAFETY = 1.2

# Significance level for a first moment and for a correlation with the offset.
SIGNIFICANCE = 1e-3

# Directions with a larger condition number count as parallel: the condition number of their cubes
# is of the order of its cube, and third moments cannot separate them.
PARALLEL_CONDITION = 100.0

# Weights whose sum differs from one by more than this come from wrong scales or biases.
WEIGHT_SUM_TOLERANCE = 0.2


def diagnose(
    data: RegressionData,
    components: Components,
    shrinkage: float,
    weight_sum: float | None,
) -> MomentDiagnostics:
    """Compute the signal-to-noise ratio of each component and the level that noise reaches."""
    decomposition = components.decomposition
    noise_floor = NOISE_PEAK * np.sqrt(data.n_features)
    residual, condition_number, is_definite = 0.0, 1.0, True
    singular_values = components.coefficients
    if decomposition is None:
        noise_floor = np.sqrt(chi2.isf(SIGNIFICANCE, data.n_features))
    else:
        residual, condition_number = decomposition.residual, decomposition.condition_number
        is_definite, singular_values = decomposition.is_definite, decomposition.singular_values
    return MomentDiagnostics(
        n_obs=data.n_obs,
        signal_to_noise=np.abs(components.coefficients) / components.errors,
        noise_floor=float(noise_floor),
        residual=residual,
        singular_values=singular_values,
        whitening_condition=condition_number,
        is_definite=is_definite,
        shrinkage=shrinkage,
        weight_sum=weight_sum,
    )


def judge(
    data: RegressionData,
    input_model: InputModel,
    components: Components,
    diagnostics: MomentDiagnostics,
) -> tuple[Status, tuple[str, ...]]:
    """Derive the status and the warnings of a third-moment estimate."""
    status = Status.OK
    messages = []
    weak = diagnostics.signal_to_noise < diagnostics.noise_floor
    if weak.any():
        status = Status.WEAK_SIGNAL
        ratios = ", ".join(f"{ratio:.1f}" for ratio in diagnostics.signal_to_noise)
        messages.append(
            f"{int(weak.sum())} of {len(weak)} components do not stand out from noise (signal to "
            f"noise {ratios}; noise alone reaches {diagnostics.noise_floor:.1f}). Use more rows or "
            "fewer components, and treat the directions as a guess."
        )
    n_visible = _count_visible_directions(data.n_features, components)
    if n_visible < len(weak):
        status = Status.WEAK_SIGNAL
        messages.append(
            f"Only {n_visible} of {len(weak)} directions stand out from noise in the spectrum of "
            "the third moment. Components may be parallel, too small or too many. Use more rows or "
            "fewer components."
        )
    condition = float(np.linalg.cond(components.directions))
    if not diagnostics.is_definite or condition > PARALLEL_CONDITION:
        status = Status.NOT_IDENTIFIED if status is Status.OK else status
        messages.append(
            "The components cannot be told apart by third moments (no definite slice, or "
            f"directions with condition number {condition:.0f}). Some may be parallel. Use fewer "
            "components."
        )
    messages.extend(weight_sum_warning(diagnostics.weight_sum))
    # M_3 uses only the mean of the response: trials divide out, and some links allow the offset to
    # be removed exactly.
    link = data.single_family.link
    if data.offset is not None and link.remove_offset(np.ones(1), np.ones(1))[0] == 1.0:
        messages.extend(dependence_warning(replace(data, n_trials=None), input_model))
    return status, tuple(messages)


def _count_visible_directions(n_features: int, components: Components) -> int:
    """Count the singular values of M_3 above the edge of its noise."""
    if components.decomposition is None:
        return int(components.directions.shape[1])
    singular_values = components.decomposition.singular_values
    is_restricted = len(singular_values) < n_features
    edge = noise_edge(components.noise_variance, n_features, is_restricted=is_restricted)
    return int(np.sum(singular_values > EDGE_SAFETY * edge))


def weight_sum_warning(weight_sum: float | None) -> tuple[str, ...]:
    """Warn if weights from known scales and biases do not add up to one."""
    if weight_sum is None or abs(weight_sum - 1.0) <= WEIGHT_SUM_TOLERANCE:
        return ()
    return (
        f"The weights added up to {weight_sum:.2f} before they were normalised. "
        "`known_scales` or `known_biases` do not agree with the data.",
    )


def dependence_warning(data: RegressionData, input_model: InputModel) -> tuple[str, ...]:
    """Warn if an offset or the numbers of trials depend on the inputs.

    They affect functions of the response other than its mean, and the moments assume that they are
    independent of the inputs. A correlation contradicts this.
    """
    for name, values in (("offset", data.offset), ("n_trials", data.n_trials)):
        if values is None:
            continue
        weights = data.sample_weight / data.sample_weight.sum()
        centred = values - weights @ values
        variance = float(weights @ np.square(centred))
        basis = input_model.standardising_basis
        scores = RowScores(data.X, input_model, data.sample_weight, basis)
        statistic = data.n_obs * float(np.square(cross_moment(centred, scores, 1)).sum())
        if statistic > variance * chi2.isf(SIGNIFICANCE, data.n_features):
            return (
                f"`{name}` is correlated with `X`. The moments assume that it is independent, so "
                "that the directions may be biased. Check them against a likelihood fit.",
            )
    return ()


def estimate_by_third_moment(
    problem: EstimationProblem,
    n_components: int,
    rng: np.random.Generator,
    *,
    method: DecompositionMethod,
    known: tuple[FloatArray, FloatArray] | None,
) -> MomentEstimate:
    """Run lines 1 and 2 of the paper's Algorithm 1 and judge the result."""
    data, input_model = problem.data, problem.input_model
    response, coordinates = problem.response, problem.coordinates
    components = find_components(data, input_model, response, n_components, rng, method)
    weights, weight_sum = None, None
    scales, biases = (None, None) if known is None else known
    if known is not None:
        index, weights, weight_sum = weigh_components(
            data, input_model, response, coordinates, components, *known
        )
        components = components.reorder(index)
    elif components.decomposition is None:
        weights = np.ones(1)
    directions, lengths = coordinates.directions_to_user(components.directions)
    order = 1 if components.decomposition is None else 3
    coefficients = components.coefficients * lengths**order
    diagnostics = diagnose(data, components, input_model.shrinkage_, weight_sum)
    status, warnings = judge(data, input_model, components, diagnostics)
    return MomentEstimate(
        directions=directions,
        moment_coefficients=coefficients,
        scales=scales,
        biases=biases,
        weights=weights,
        feature_names=data.feature_names,
        family=data.family.name,
        link=data.family.link_name,
        method=method,
        status=status,
        warnings=warnings,
        diagnostics=diagnostics,
    )
