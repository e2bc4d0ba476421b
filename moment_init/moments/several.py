r"""Estimates for several responses, or classes, from moments of functions of all of them.

If all linear predictors of a component have one direction u_j, the mean of any function of all
responses depends on x through <u_j, x> only, so that

.. math:: E[T_k(y) S_m(x)] = \sum_j c_{jk}\, u_j^{\otimes m}

for functions of single responses and for products of functions of two. All these moments are slices
of one stacked tensor, and the estimate is that of one response with more functions. The polish
climbs the likelihood of the mixture with tied directions (`moment_init.likelihood.tied`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import null_space

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.data.blocks import N_PARTS, single_threaded_blas
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates, response_units, with_response
from moment_init.likelihood.climbing import climb
from moment_init.likelihood.parameters import MixtureParameters, active_bounds
from moment_init.likelihood.sums import LikelihoodSums
from moment_init.likelihood.tied import TiedLikelihood, TiedParameters, places_of
from moment_init.moments.polish import RACE, RACED_CANDIDATES, all_rows
from moment_init.moments.result import MomentEstimate
from moment_init.moments.stacked import fit_stacked
from moment_init.moments.stacked_result import (
    GROUPS_WARNING,
    agreement_findings,
    angle_error,
    diagnose,
    error_findings,
    spectrum_findings,
)
from moment_init.moments.subspace import Moments
from moment_init.progress import passes_over
from moment_init.results import Status
from moment_init.scores.choosing import EstimationProblem

FINISH_STEPS = 500
FINISH_TOLERANCE = 1e-6


def pose_several(
    data: RegressionData, posed: EstimationProblem, n_components: int
) -> tuple[EstimationProblem, tuple[Coordinates, ...]]:
    """Pose the problem of all responses, with coordinates of each linear predictor.

    `posed` is the problem of the first response, with the density of the input.
    """
    _require_identified(data, posed, n_components)
    units = response_units(data)
    mean, factor = posed.coordinates.mean, posed.coordinates.factor
    coordinates = tuple(Coordinates(mean, factor, *unit) for unit in units)
    posed_data = data.map(with_response, units)
    problem = replace(posed, data=posed_data, coordinates=coordinates[0], units=units)
    return problem, coordinates


def _require_identified(data: RegressionData, posed: EstimationProblem, n_components: int) -> None:
    """Raise where the moments of several responses do not apply."""
    d = data.n_features
    if n_components > d:
        raise IdentifiabilityError(
            f"`n_components` must be at most the number of features ({d}) for the moments of "
            f"several responses; got {n_components}. Reduce it, add features, or use `fit_em`."
        )
    if data.n_obs < N_PARTS:  # a part without rows has no moments
        raise IdentifiabilityError(
            f"`X` must have at least {N_PARTS} rows for the moments of several responses; got "
            f"{data.n_obs}. Add rows, or use `fit_em`."
        )
    if posed.block is not None:
        names = ", ".join(posed.block.discrete_names(data.feature_names))
        raise IdentifiabilityError(
            f"`X` must have continuous columns only for the moments of several responses; got the "
            f"discrete {names}. Use `fit_em`, whose other starts need no density, or "
            "input_model='gaussian' to treat them as continuous."
        )


@single_threaded_blas()
def estimate_several(
    data: RegressionData,
    posed: EstimationProblem,
    n_components: int,
    rng: np.random.Generator,
    *,
    is_polished: bool,
) -> MomentEstimate:
    """Estimate a mixture whose responses share component and direction."""
    problem, coordinates = pose_several(data, posed, n_components)
    fit = fit_stacked(problem, n_components, rng, is_polished=is_polished)
    jacobian = data.total_weight * sum(np.log(where.response_scale) for where in coordinates)
    with passes_over(data.n_obs, float(jacobian)):
        start = _promising(problem, fit.candidates) if is_polished else fit.candidates[0]
        end = _climb(problem, start, max_steps=FINISH_STEPS if is_polished else 0)
    tied = end.parameters.reorder(np.argsort(-end.parameters.weights, kind="stable"))
    end = replace(end, parameters=tied, sums=end.likelihood.sums(tied, missing=True))
    errors = _direction_errors(end, coordinates[0])
    user = _to_user(tied.free, coordinates)
    # the direction points to where the response with the largest scale in its own units increases
    largest = np.argmax(np.abs(tied.scales), axis=0)
    signs = np.where(tied.scales[largest, np.arange(n_components)] < 0.0, -1.0, 1.0)
    directions, _ = coordinates[0].directions_to_user(tied.directions)
    status, warnings = _judge(data, fit.moments, end, errors, is_polished=is_polished)
    return MomentEstimate(
        directions=directions * signs,
        moment_coefficients=None,
        scales=np.einsum("dj,pdj->pj", directions * signs, user.slopes),
        biases=user.biases,
        weights=user.weights,
        dispersion=user.dispersion,
        standard_errors=errors,
        log_likelihood=end.sums.log_likelihood - float(jacobian),
        candidates=tuple(
            _to_user(each.free.reorder(np.argsort(-each.weights, kind="stable")), coordinates)
            for each in fit.candidates
        ),
        feature_names=data.feature_names,
        family=data.family.name,
        link=data.family.link_name,
        method="stacked",
        status=status,
        warnings=warnings,
        diagnostics=diagnose(problem, fit, None),
        response_names=data.response_names,
        classes=data.classes,
    )


@dataclass(frozen=True, slots=True, eq=False)
class TiedEnd:
    """End of a climb with one direction per component."""

    likelihood: TiedLikelihood
    parameters: TiedParameters
    sums: LikelihoodSums  # at these parameters


def _climb(problem: EstimationProblem, start: TiedParameters, *, max_steps: int) -> TiedEnd:
    """Climb the likelihood of all rows, directions free."""
    rows = all_rows(problem).whitened()
    likelihood = TiedLikelihood.of(problem.data.family, rows, start)
    end = climb(
        likelihood,
        likelihood.admit(start),
        max_steps=max_steps,
        em_steps=min(4, max_steps),
        max_em_steps=None,
        tolerance=FINISH_TOLERANCE,
        damping=1.0,
        target=None,
    )
    return TiedEnd(likelihood, end.parameters, end.sums)


def _promising(problem: EstimationProblem, candidates: Sequence[TiedParameters]) -> TiedParameters:
    """Climb a few steps from the best candidates; return the highest end."""
    if len(candidates) == 1:
        return candidates[0]
    raced = candidates[:RACED_CANDIDATES]
    ends = [_climb(problem, each, max_steps=RACE["max_steps"]) for each in raced]
    return max(ends, key=lambda end: end.sums.log_likelihood).parameters


def _to_user(
    parameters: MixtureParameters, coordinates: tuple[Coordinates, ...]
) -> MixtureParameters:
    """Map parameters of all predictors to the user's units."""
    mapped = [
        where.coefficients_to_user(slopes, levels)
        for where, slopes, levels in zip(
            coordinates, parameters.slopes, parameters.levels, strict=True
        )
    ]
    scales = np.array([[where.response_scale] for where in coordinates])
    return replace(
        parameters,
        coefficients=np.stack([slopes for slopes, _ in mapped]),
        biases=np.stack([levels for _, levels in mapped]),
        dispersion=None if parameters.dispersion is None else parameters.dispersion * scales,
    )


_SMALLEST_EIGENVALUE = 1e-8
"""Of the information scaled to a unit diagonal: below it, it is singular to rounding."""


def _direction_errors(end: TiedEnd, coordinates: Coordinates) -> FloatArray:
    """Standard errors of the directions in degrees; NaN if they are held or not determined."""
    likelihood, parameters = end.likelihood, end.parameters
    p, r = parameters.directions.shape
    if likelihood.constraint is not None:
        return np.full(r, np.nan)
    sums = likelihood.sums(parameters, missing=True)
    covariance = _covariance(sums.information(), [b.inward for b in likelihood.active(parameters)])
    if covariance is None:
        return np.full(r, np.nan)
    basis, _ = coordinates.coefficients_to_user(np.eye(p), np.zeros(p))
    size = places_of(parameters).size
    errors = []
    for j in range(r):
        own = covariance[j * size : j * size + p, j * size : j * size + p]
        errors.append(angle_error(basis @ own @ basis.T, basis @ parameters.directions[:, j]))
    return np.array(errors)


def _covariance(information: FloatArray, normals: list[FloatArray]) -> FloatArray | None:
    """Invert an information in the directions that active bounds leave; None if it is singular."""
    # information: (n_parameters, n_parameters), normals: (n_parameters,)
    free = null_space(np.array(normals)) if normals else np.eye(len(information))
    inner = free.T @ information @ free
    diagonal = np.diag(inner)
    if not np.isfinite(inner).all() or diagonal.min(initial=1.0) <= 0.0:
        return None
    roots = np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(inner / np.outer(roots, roots))
    if values[0] < _SMALLEST_EIGENVALUE:
        return None
    half = free @ (vectors / np.sqrt(values) / roots[:, None])
    return np.asarray(half @ half.T)


def _judge(
    data: RegressionData,
    moments: Moments,
    end: TiedEnd,
    errors: FloatArray,
    *,
    is_polished: bool,
) -> tuple[Status, tuple[str, ...]]:
    """Derive the status and the warnings of an estimate."""
    findings = []
    if not np.isfinite(errors).all():
        message = "The information is singular: components cannot all be told apart. Use fewer."
        findings.append((Status.NOT_IDENTIFIED, message))
    else:
        findings += error_findings(errors)
        if is_polished:
            findings += agreement_findings(moments, end.parameters.directions, errors)
    if not is_polished:
        findings += spectrum_findings(moments.spectrum, len(errors))
    bounds = active_bounds(end.parameters.free, end.likelihood.bounds)
    if bounds:
        labels = "; ".join(bound.label for bound in bounds)
        message = f"Parameters lie on a bound: {labels}. Use fewer components."
        findings.insert(0, (Status.NOT_IDENTIFIED, message))
    status = findings[0][0] if findings else Status.OK
    messages = [message for _, message in findings]
    if data.groups is not None:
        messages.append(GROUPS_WARNING)
    return status, tuple(messages)
