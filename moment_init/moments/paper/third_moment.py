"""The paper's estimate from one third moment as a result: components, diagnostics, status.

The status compares each component with noise, and checks identifiability and assumptions.
"""

from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData
from moment_init.moments.paper.cross_moments import CrossMoments
from moment_init.moments.paper.decomposition import DecompositionMethod
from moment_init.moments.paper.recovery import Components, find_components, weigh_components
from moment_init.moments.result import MomentDiagnostics, MomentEstimate
from moment_init.results import Status
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import EstimationProblem

# A symmetric Gaussian noise tensor with unit variance along every direction reaches about
# 1.66 sqrt(d) along its best one (the ground state of the spherical three-spin model).
NOISE_PEAK = 1.657

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
    if decomposition is None:
        floor = float(np.sqrt(chi2.isf(SIGNIFICANCE, data.n_features)))
        return MomentDiagnostics(
            n_obs=data.n_obs,
            signal_to_noise=components.coefficients / components.errors,
            noise_floor=floor,
            residual=0.0,
            singular_values=components.coefficients,
            whitening_condition=1.0,
            is_definite=True,
            shrinkage=shrinkage,
            weight_sum=weight_sum,
        )
    return MomentDiagnostics(
        n_obs=data.n_obs,
        signal_to_noise=np.abs(components.coefficients) / components.errors,
        noise_floor=NOISE_PEAK * float(np.sqrt(data.n_features)),
        residual=decomposition.residual,
        singular_values=decomposition.singular_values,
        whitening_condition=decomposition.condition_number,
        is_definite=decomposition.is_definite,
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
    """Count the singular values of M_3 above the edge of its noise.

    The rows of an unfolded noise tensor with entries of variance v have squared length
    (d + 1)(d + 2) v; its largest singular value is near the edge of Marchenko and Pastur,
    sqrt(v) (sqrt((d + 1)(d + 2)) + sqrt(d)). A tensor that was formed in a subspace contains only
    the noise along its best directions, `NOISE_PEAK` sqrt(6 d v).
    """
    if components.decomposition is None:
        return int(components.directions.shape[1])
    singular_values = components.decomposition.singular_values
    edge = NOISE_PEAK * float(np.sqrt(6.0 * n_features))
    if len(singular_values) == n_features:
        edge = float(np.sqrt((n_features + 1.0) * (n_features + 2.0)) + np.sqrt(n_features))
    threshold = EDGE_SAFETY * edge * np.sqrt(components.noise_variance)
    return int(np.sum(singular_values > threshold))


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
    weights = data.sample_weight / data.sample_weight.sum()
    for name, values in (("offset", data.offset), ("n_trials", data.n_trials)):
        if values is None:
            continue
        centred = values - weights @ values
        variance = float(weights @ np.square(centred))
        moments = CrossMoments(
            data.X, centred, data.sample_weight, input_model, input_model.standardising_basis
        )
        statistic = data.n_obs * float(np.square(moments.moment(1)).sum())
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
