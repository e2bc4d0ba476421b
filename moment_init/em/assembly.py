"""From the end of a climb in standardised coordinates to a result in the user's units."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData
from moment_init.em.gaussian_gate import GatedProblem, GatedRun
from moment_init.em.information import (
    LaplaceApproximation,
    active_bounds_of,
    gated_laplace_of,
    laplace_of,
)
from moment_init.em.prediction import in_users_order, membership
from moment_init.em.problem import EMProblem
from moment_init.em.result import EMFit
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.gate import pack_gate
from moment_init.likelihood.parameters import MixtureParameters, parameter_count
from moment_init.likelihood.posterior import responsibilities
from moment_init.results import StartRecord, Status

IndexArray = NDArray[np.intp]

_CLOSE = 1e-6
"""Relative distance within which a dispersion is at the end of its range."""

_MEANINGS = {
    "weight": "is empty: its weight is at its floor, a tenth of a row or less, and its other "
    "parameters mean nothing. Use fewer components.",
    "dispersion ratio": "closes in on few rows: its standard deviation is at the smallest ratio "
    "to the largest one that `min_dispersion_ratio` allows, and the likelihood would rise without "
    "bound beyond it. Use fewer components, shared='dispersion', or check for duplicated rows.",
    "dispersion": "has a dispersion at the end of its range: it reproduces its rows without error, "
    "or they vary without limit. Check for duplicated rows, or use fewer components.",
    "gate covariance": "has gating covariates that hardly vary: their standard deviation is, along "
    "some direction, at the smallest ratio to that of all rows that `min_dispersion_ratio` allows; "
    "the likelihood may rise without bound beyond it. Use fewer components, gate='softmax', or a "
    "smaller ratio if such a cluster is real.",
    "gate slope": "is separated from others by the gating covariates: its gate is at the largest "
    "slope, and its slopes would grow without end. Use fewer gating covariates or components.",
    "length": "has separated rows: its predictors are at the largest length, beyond which the "
    "response tells lengths no longer apart, and its coefficients would grow without end. Use "
    "fewer components or columns.",
}
"""What a bound that holds the maximum says about a component, by the kind of its label."""


class _Findings(NamedTuple):
    """What is known about a maximum, its components in their final order."""

    at: MixtureParameters
    laplace: LaplaceApproximation
    flat: tuple[str, ...]
    shares: FloatArray
    bounds: tuple[str, ...]
    log_jacobian: float


def assemble_fit(
    problem: EMProblem,
    data: RegressionData,
    end: MaximiseResult,
    starts: tuple[StartRecord, ...],
    *,
    warnings: tuple[str, ...] = (),
) -> EMFit:
    """Put a result together."""
    order = _component_order(problem, end.parameters)
    at = end.parameters.reorder(order)
    laplace, flat = laplace_of(problem, end, order)
    shares = responsibilities(problem.family, problem.rows, at)
    bounds = tuple(bound.label for bound in active_bounds_of(problem, at))
    found = _Findings(at, laplace, flat, shares, bounds, problem.log_jacobian)
    return _assembled(problem, data, end, starts, found, warnings)


def assemble_gated_fit(
    gated: GatedProblem, data: RegressionData, run: GatedRun, starts: tuple[StartRecord, ...]
) -> EMFit:
    """Put a result with a Gaussian gate together."""
    order = _component_order(gated.base, run.end.parameters)
    at = run.at.reorder(order)
    laplace, flat = gated_laplace_of(gated, run, order)
    shares = responsibilities(gated.base.family, gated.rows, at.as_logit)
    active = gated.likelihood(at.mixture).active(at)
    bounds = tuple(dict.fromkeys(bound.label for bound in active))
    found = _Findings(at.mixture, laplace, flat, shares, bounds, gated.log_jacobian)
    fit = _assembled(gated.base, data, run.end, starts, found, ())
    coordinates = gated.coordinates
    gate = at.gate.rescale(coordinates.mean, coordinates.scales)
    return replace(
        fit,
        gate_centre=coordinates.mean,
        gate_names=coordinates.names,
        gate_means=gate.means,
        gate_covariances=gate.covariances,
        n_parameters=fit.n_parameters + len(pack_gate(gate)),
    )


def _assembled(
    problem: EMProblem,
    data: RegressionData,
    end: MaximiseResult,
    starts: tuple[StartRecord, ...],
    findings: "_Findings",
    warnings: tuple[str, ...],
) -> EMFit:
    at, laplace, flat, shares, bounds, log_jacobian = findings
    user = _user_parameters(problem, at)
    gate = problem.gate_coordinates
    status, found = _judge(problem, end, at, bounds, flat)
    return EMFit(
        coefficients=user.coefficients,
        biases=user.biases,
        weights=at.weights,
        dispersion=user.dispersion,
        gate=user.gate,
        gate_biases=None if gate is None else _gate_biases(at.weights, user.gate, gate.mean),
        gate_centre=None if gate is None else gate.mean,
        log_likelihood=end.log_likelihood - log_jacobian,
        history=tuple(value - log_jacobian for value in end.history),
        n_iter=end.n_iter,
        converged=end.converged,
        starts=starts,
        responsibilities=in_users_order(shares, problem.order),
        laplace=laplace,
        n_parameters=_free_count(problem, at),
        n_obs=data.n_obs,
        n_units=problem.rows.total_units,
        entropy=_entropy(problem, shares),
        family=problem.family.name,
        link=problem.family.link.name,
        feature_names=data.feature_names,
        gate_names=() if gate is None else gate.names,
        status=status,
        warnings=(*warnings, *found),
        bounds=bounds,
    )


def _component_order(problem: EMProblem, parameters: MixtureParameters) -> IndexArray:
    if problem.restrictions.is_labelled:
        return np.arange(parameters.n_components)
    return np.argsort(-parameters.weights, kind="stable")


def _user_parameters(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """The user's parameters; coefficients of projections become those of all columns."""
    user = problem.to_user(parameters)
    directions = problem.restrictions.directions
    if directions is None:
        return user
    return replace(user, coefficients=directions * np.diag(user.coefficients))


def _gate_biases(
    weights: FloatArray, gate: FloatArray | None, centre: FloatArray
) -> FloatArray | None:
    """Logits at gating covariates zero, from the weights at their mean: no odds are formed."""
    if gate is None:
        return None
    logits = np.log(weights) - centre @ gate
    return np.asarray(logits - logits[-1])


def _free_count(problem: EMProblem, parameters: MixtureParameters) -> int:
    constraint = problem.constraint(parameters)
    return parameter_count(parameters) if constraint is None else constraint.n_free


def _entropy(problem: EMProblem, shares: FloatArray) -> float:
    """Entropy of the units' responsibilities, each unit as often as it counts."""
    rows = problem.rows
    if rows.group_starts is None:
        return float(-rows.sample_weight @ xlogy(shares, shares).sum(axis=1))
    by_group = shares[rows.group_starts]
    return float(-xlogy(by_group, by_group).sum())


def convergence_message(end: MaximiseResult) -> str:
    """Say that a run did not converge, and what to do."""
    return (
        f"The search did not converge ({end.ending} after {end.n_iter} iterations): the "
        "log-likelihood may still rise. Allow more iterations (`max_iter`) or use fewer components."
    )


def _judge(
    problem: EMProblem,
    end: MaximiseResult,
    at: MixtureParameters,
    bounds: tuple[str, ...],
    flat: tuple[str, ...],
) -> tuple[Status, tuple[str, ...]]:
    """Status of the fit, and what it means."""
    at_limit = [bound for bound in bounds if _is_limiting_family(problem, at, bound)]
    found = [_at_bound(bound, is_limit=bound in at_limit) for bound in bounds]
    status = Status.OK
    if flat or len(at_limit) < len(bounds):
        status = Status.NOT_IDENTIFIED
    if not end.converged:
        status = Status.NOT_CONVERGED
        found.insert(0, convergence_message(end))
    return status, (*found, *flat)


def _is_limiting_family(problem: EMProblem, at: MixtureParameters, bound: str) -> bool:
    """Whether a bound is the end of a dispersion's range at which the family is a simpler one.

    Where the likelihood is bounded, a large dispersion means no dispersion: negative binomial
    counts are Poisson counts there, and nothing else is in doubt.
    """
    kind, component = _parts(bound)
    if kind != "dispersion" or at.dispersion is None or problem.family.deviation_power is not None:
        return False
    largest = problem.family.dispersion_bounds[1]
    return bool(at.dispersion[component] > largest * (1 - _CLOSE))


def _at_bound(bound: str, *, is_limit: bool) -> str:
    """What it means that a maximum lies on a bound, and what to do."""
    kind, component = _parts(bound)
    if is_limit:
        return (
            f"The dispersion of component {component} is at the upper end of its range: its "
            "responses vary no more than those of the family without that parameter, which fits "
            "as well. Its standard error is that of a parameter that is held."
        )
    return f"Component {component} {_MEANINGS[kind]}"


def _parts(bound: str) -> tuple[str, int]:
    """Kind and component of a bound's label."""
    kind, _, component = bound.partition(" of component ")
    return kind, int(component)


def with_zero_weight_rows(
    fit: EMFit, given: RegressionData, covariates: tuple[FloatArray, tuple[str, ...]] | None
) -> EMFit:
    """Give a fit the responsibilities of all rows, those of weight zero included."""
    shares = membership(
        fit,
        given.X,
        given.y,
        offset=given.offset,
        n_trials=given.n_trials,
        gating=None if covariates is None else covariates[0],
        groups=given.groups,
        sample_weight=given.sample_weight,
    )
    return replace(fit, responsibilities=shares, n_obs=given.n_obs)
