"""The M-step: maximise the expected complete-data likelihood, component by component.

`solve_information` and `solve_blocks` solve for steps with information matrices, `em_step` solves
for one EM step, and `fit_assigned` fits components to given responsibilities.
"""

import numpy as np
from scipy.linalg import cho_solve

from moment_init.checks import FloatArray
from moment_init.families.base import Family
from moment_init.likelihood.parameters import MixtureParameters, component_size, move
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums

_RIDGE = 1e-10
"""Added to the unit diagonal of a scaled information: far below its statistical error, and enough
that a direction without information does not make the factorisation fail by rounding."""

_SMALLEST_DIAGONAL = 1e-12
"""Smaller diagonal entries of the information are scaled as if they were this large."""


def solve_information(information: FloatArray, score: FloatArray) -> FloatArray | None:
    """Solve for a step by Cholesky factorisation of the information scaled to unit diagonal."""
    # information: (n_parameters, n_parameters), score: (n_parameters,) -> (n_parameters,)
    scale = np.sqrt(np.maximum(np.diag(information), _SMALLEST_DIAGONAL))
    scaled = information / np.outer(scale, scale)
    scaled[np.diag_indices_from(scaled)] += _RIDGE
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(cho_solve((factor, True), score / scale) / scale)


def solve_blocks(informations: FloatArray, scores: FloatArray) -> FloatArray | None:
    """Solve for the steps of several components at once."""
    # informations: (n_components, size, size), scores: (n_components, size) -> (n_components, size)
    size = scores.shape[1]
    diagonals = np.einsum("jaa->ja", informations)
    scales = np.sqrt(np.maximum(diagonals, _SMALLEST_DIAGONAL))
    scaled = informations / (scales[:, :, None] * scales[:, None, :])
    scaled[:, range(size), range(size)] += _RIDGE
    try:
        steps = np.linalg.solve(scaled, (scores / scales)[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:
        return None
    return np.asarray(steps / scales)


_SMALLEST_COUNT = 1e-8
"""Least expected number of units of a component: the logit of an empty one then stays finite."""

_SMALLEST_VARIANCE_RATIO = 1e-6
"""One M-step shrinks a variance by at most this factor; less is the rounding of an exact fit."""

_BLIND_STEP = 0.5
"""Step of a log dispersion along the sign of its score, where its curvature has the wrong sign."""


def em_step(
    family: Family, sums: LikelihoodSums, parameters: MixtureParameters
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
    p, r, q = parameters.n_features, parameters.n_components, component_size(parameters)
    scores = sums.score[: r * q].reshape(r, q)
    informations = sums.component_information[:, : p + 1, : p + 1]
    slopes = solve_blocks(informations, scores[:, : p + 1])
    gate = _gate_step(sums, parameters)
    if slopes is None or gate is None:
        return None
    step = np.empty_like(sums.score)
    by_component = step[: r * q].reshape(r, q)
    by_component[:, : p + 1] = slopes
    step[r * q :] = gate
    if parameters.dispersion is not None:
        curved = np.einsum("ja,jab,jb->j", slopes, informations, slopes)
        gains = 2 * (scores[:, : p + 1] * slopes).sum(axis=1) - curved
        by_component[:, p + 1] = _dispersion_steps(family, sums, scores[:, -1], gains)
    return step


def _dispersion_steps(
    family: Family, sums: LikelihoodSums, scores: FloatArray, gains: FloatArray
) -> FloatArray:
    """Steps of the log dispersions: closed form for a standard deviation, else Newton steps.

    The residual sum of squares after the step is sigma^2 (score + count - gain), where the gain is
    twice what the step of the coefficients adds to the expected log-likelihood.
    """
    if family.has_closed_deviation:
        ratios = 1 + (scores - gains) / np.maximum(sums.row_counts, _SMALLEST_COUNT)
        return 0.5 * np.log(np.maximum(ratios, _SMALLEST_VARIANCE_RATIO))
    blocks = sums.component_information
    curvature = np.ones_like(scores) if blocks is None else blocks[:, -1, -1]
    is_curved = curvature > 0.0
    steps = scores / np.where(is_curved, curvature, 1.0)
    return np.where(is_curved, steps, np.sign(scores) * _BLIND_STEP)


def _gate_step(sums: LikelihoodSums, parameters: MixtureParameters) -> FloatArray | None:
    """Step of the weights: closed form without a gate, else a multinomial logit's Newton step."""
    r, q = parameters.n_components, component_size(parameters)
    if parameters.gate is None:
        counts = np.log(np.maximum(sums.unit_counts, _SMALLEST_COUNT)) - np.log(parameters.weights)
        return np.asarray(counts[:-1] - counts[-1])
    information = sums.gate_information
    return None if information is None else solve_information(information, sums.score[r * q :])


def fit_assigned(
    family: Family,
    rows: LikelihoodRows,
    start: MixtureParameters,
    assigned: FloatArray,
    *,
    max_steps: int = 8,
    tolerance: float = 1e-2,
) -> MixtureParameters:
    """Run the M-step to convergence: fit every component to its given share of the units."""
    # assigned: (n_components, n_units)
    parameters = start
    sums = likelihood_sums(family, rows, start, missing=False, constant=0.0, assigned=assigned)
    share = 1.0
    for _ in range(max_steps):
        step = em_step(family, sums, parameters)
        if step is None:
            break
        candidate = move(parameters, share * step)
        if family.has_closed_deviation:  # one solve is the whole M-step
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
