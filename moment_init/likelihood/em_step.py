"""The M-step: maximise the expected complete-data likelihood, component by component.

`solve_information` and `solve_blocks` solve for steps with information matrices, `em_step` solves
for one EM step, `fit_assigned` fits components to given responsibilities, and `flat_start` is one
component at the mean responses.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from moment_init.checks import FloatArray
from moment_init.families.several import AnyFamily, Categorical
from moment_init.likelihood.parameters import (
    LARGEST_LOG_DISPERSION_STEP,
    LinearConstraint,
    MixtureParameters,
    component_size,
    move,
)
from moment_init.likelihood.passes import em_steps, solve_component
from moment_init.likelihood.rows import LikelihoodRows, column
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums

_RIDGE = 1e-10
"""Added to the unit diagonal of a scaled information: far below its statistical error, and enough
that a direction without information does not make the factorisation fail by rounding."""

_SMALLEST_DIAGONAL = 1e-12
"""Smaller diagonal entries of the information are scaled as if they were this large."""


def solve_information(information: FloatArray, score: FloatArray) -> FloatArray | None:
    """Solve for a step by Cholesky factorisation of the information scaled to unit diagonal."""
    # information: (n_parameters, n_parameters), score: (n_parameters,) -> (n_parameters,)
    if not len(score):  # everything is held
        return np.empty(0)
    scale = np.sqrt(np.maximum(information.diagonal(), _SMALLEST_DIAGONAL))
    scaled = information / (scale[:, None] * scale)
    scaled.flat[:: len(scale) + 1] += _RIDGE
    # LAPACK itself: with SciPy's checks, small systems take five times as long
    _, step, failure = dposv(scaled.T, score / scale, overwrite_a=True)
    return None if failure else np.asarray(step.ravel() / scale)


def solve_blocks(informations: FloatArray, scores: FloatArray) -> FloatArray | None:
    """Solve for the steps of several components; None if an information is not positive."""
    # informations: (n_components, size, size), scores: (n_components, size) -> (n_components, size)
    steps, places = np.empty(scores.shape), np.arange(scores.shape[1])
    for information, score, step in zip(informations, scores, steps, strict=True):
        if not solve_component(information, score, places, _RIDGE, _SMALLEST_DIAGONAL, step):
            return None
    return steps


_SMALLEST_COUNT = 1e-8
"""Least expected number of units of a component: the logit of an empty one then stays finite."""

_SMALLEST_VARIANCE_RATIO = 1e-6
"""One M-step shrinks a variance by at most this factor; less is the rounding of an exact fit."""

_BLIND_STEP = 0.5
"""Step of a log dispersion along the sign of its score, where its curvature has the wrong sign."""

_LIMITS = np.array(
    [_RIDGE, _SMALLEST_DIAGONAL, _SMALLEST_COUNT, _SMALLEST_VARIANCE_RATIO, _BLIND_STEP]
)


def em_step(
    family: AnyFamily, sums: LikelihoodSums, parameters: MixtureParameters
) -> FloatArray | None:
    r"""Solve for an EM step, by one weighted least-squares solve per component.

    For each component, with responsibilities R and the working weights V of iteratively reweighted
    least squares,

    .. math:: (\textstyle\sum R V x x')\, \delta = \sum R u x.

    For a Gaussian response this is the whole M-step, and the standard deviation has a closed form
    too; for other responses it is a Newton step. Without a gate the weights have a closed form.
    """
    # -> (n_parameters,)
    if sums.component_information is None:
        raise ValueError("`curvature` must be True in `likelihood_sums` for an EM step.")
    r, layout = parameters.n_components, parameters.layout
    gate = gate_step(sums, parameters)
    if gate is None:
        return None
    step = np.empty_like(sums.score)
    is_solved = em_steps(
        sums.component_information,
        sums.score[: r * layout.size].reshape(r, layout.size),
        # classes have information in common and are solved together
        layout.slopes.reshape(1, -1) if family.has_joint_predictors else layout.slopes,
        layout.slopes,
        layout.dispersions,
        layout.dispersed,
        # a prior leaves no closed form
        closed_deviations(family) & (sums.log_prior is None),
        sums.row_counts,
        _LIMITS,
        step[: r * layout.size].reshape(r, layout.size),
    )
    step[r * layout.size :] = gate
    return step if is_solved else None


@lru_cache(maxsize=64)
def closed_deviations(family: AnyFamily) -> NDArray[np.bool_]:
    """Whether each predictor has a standard deviation with a closed form."""
    return np.array([member.has_closed_deviation for member in family.predictor_families])


def dispersion_steps(curvature: FloatArray, scores: FloatArray) -> FloatArray:
    """Newton steps of log dispersions, or blind ones where the curvature has the wrong sign."""
    is_curved = curvature > 0.0
    steps = scores / np.where(is_curved, curvature, 1.0)
    return np.where(is_curved, steps, np.sign(scores) * _BLIND_STEP)


def gate_step(sums: LikelihoodSums, parameters: MixtureParameters) -> FloatArray | None:
    """Step of the weights: closed form without a gate, else a multinomial logit's Newton step."""
    r, q = parameters.n_components, component_size(parameters)
    if parameters.gate is None:
        expected = np.maximum(sums.unit_counts + sums.prior_count, _SMALLEST_COUNT)
        counts = np.log(expected) - np.log(parameters.weights)
        return np.asarray(counts[:-1] - counts[-1])
    information = sums.gate_information
    return None if information is None else solve_information(information, sums.score[r * q :])


def fit_assigned(
    family: AnyFamily,
    rows: LikelihoodRows,
    start: MixtureParameters,
    assigned: FloatArray,
    *,
    constraint: LinearConstraint | None = None,
    max_steps: int = 8,
    tolerance: float = 1e-2,
) -> MixtureParameters:
    """Run the M-step to convergence: fit every component to its given share of the units."""
    # assigned: (n_components, n_units)
    parameters = start
    sums = likelihood_sums(family, rows, start, missing=False, constant=0.0, assigned=assigned)
    # one solve is then the whole M-step, unless it is shortened
    is_closed = family.has_closed_deviation and start.gate is None and constraint is None
    share = 1.0
    for _ in range(max_steps):
        step = _assigned_step(family, sums, parameters, constraint)
        if step is None:
            break
        candidate = move(parameters, share * step)
        if is_closed and not _is_cut(step, start):
            return candidate
        candidate_sums = likelihood_sums(
            family, rows, candidate, missing=False, constant=0.0, assigned=assigned
        )
        gain = candidate_sums.log_likelihood - sums.log_likelihood
        if not gain >= 0.0:
            share /= 3
            continue
        parameters, sums, share = candidate, candidate_sums, min(1.0, 2 * share)
        if gain < tolerance:
            break
    return parameters


def _is_cut(step: FloatArray, parameters: MixtureParameters) -> bool:
    """Whether a step is too long for a log dispersion, so that `move` shortens it."""
    r, layout = parameters.n_components, parameters.layout
    dispersions = step[: r * layout.size].reshape(r, layout.size)[:, layout.dispersions]
    return bool(np.any(np.abs(dispersions) > LARGEST_LOG_DISPERSION_STEP))


def _assigned_step(
    family: AnyFamily,
    sums: LikelihoodSums,
    parameters: MixtureParameters,
    constraint: LinearConstraint | None,
) -> FloatArray | None:
    """Solve for a step of the M-step, with parameters that components share solved together."""
    if constraint is None:
        return em_step(family, sums, parameters)
    basis = constraint.basis
    step = solve_information(basis.T @ sums.complete_information @ basis, basis.T @ sums.score)
    return None if step is None else basis @ step


_EDGE = 0.05
"""Share of a row that moves a mean response away from zero and one, where links are infinite."""


def flat_start(family: AnyFamily, rows: LikelihoodRows) -> MixtureParameters:
    """Return one component without slopes, at the mean responses."""
    totals, exposures, offsets = rows.sum(_level_sums, family, doubles=4)
    if isinstance(family, Categorical):  # a class without rows counts as half a row
        logs = np.log(np.maximum(totals, 0.5 * rows.total_weight / rows.n_obs))
        levels = logs[1:] - logs[0]
    else:
        means = (totals + _EDGE) / (exposures + 2 * _EDGE)
        pairs = zip(family.members, means, strict=True)
        levels = np.array([float(member.link.link(np.array(mean))) for member, mean in pairs])
    if rows.offset is not None:
        levels = levels - offsets / rows.total_weight
    shape = (1,) if family.n_predictors == 1 else (family.n_predictors, 1)
    spreads = [1.0 if member.has_dispersion else np.nan for member in family.predictor_families]
    return MixtureParameters(
        np.zeros((*shape[:-1], rows.n_features, 1)),
        levels.reshape(shape),
        np.ones(1),
        np.array(spreads).reshape(shape) if family.has_dispersion else None,
    )


def _level_sums(rows: LikelihoodRows, family: AnyFamily, units: slice) -> tuple[FloatArray, ...]:
    """Sum responses, or counts of classes, what their sums are relative to, and offsets."""
    block = rows.rows_of(units)
    weight = rows.sample_weight[block]
    offsets = np.zeros(()) if rows.offset is None else np.asarray(weight @ rows.offset[block])
    if isinstance(family, Categorical):
        codes = rows.y[block].astype(np.intp)
        return np.bincount(codes, weight, minlength=family.n_classes), np.zeros(()), offsets
    totals, exposures = [], []
    for a, member in enumerate(family.members):
        exposure = weight
        if member.has_trials and rows.n_trials is not None:
            exposure = weight * column(rows.n_trials, a)[block]
        totals.append(float(weight @ column(rows.y, a)[block]))
        exposures.append(float(exposure.sum()))
    return np.array(totals), np.array(exposures), offsets
