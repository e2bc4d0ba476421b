"""From the end of a climb to the result in the user's units: order, errors, status, warnings."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from moment_init.em.start_records import StartRecord, StartStatus
from moment_init.responses.bounds import active_bounds, held_entries
from moment_init.responses.climbing import Climb
from moment_init.responses.data import ResponsesData
from moment_init.responses.points import FreePoint
from moment_init.responses.result import JointFit
from moment_init.responses.rows import JointProblem, JointRows
from moment_init.responses.sums import row_posterior, sum_rows
from moment_init.results import Status

__all__ = ["assemble_joint", "inverse_information"]

FloatArray = NDArray[np.float64]

_SMALLEST_EIGENVALUE = 1e-8
"""Of the information scaled to a unit diagonal: below it, it is singular to rounding."""


def assemble_joint(
    problem: JointProblem,
    given: ResponsesData,
    end: Climb[FreePoint],
    starts: tuple[StartRecord, ...],
) -> JointFit:
    """Turn the end of the winning run into a result.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    given : ResponsesData
        All rows, those of weight zero included.
    end : Climb
        The winning run.
    starts : tuple of StartRecord
        Every start.

    Returns
    -------
    JointFit
        The fit, components by falling weight.
    """
    found = end.point.parameters
    parameters = found.take(np.argsort(-found.weights, kind="stable"))
    sums = sum_rows(problem, parameters)
    bounds = active_bounds(problem, parameters)
    held = held_entries(problem, parameters, sums.gradient)
    covariance = None
    if sums.information is not None:
        inner = inverse_information(sums.information, held)
        if inner is not None:
            jacobian = problem.user_jacobian()
            covariance = jacobian @ inner @ jacobian.T
    user = problem.to_user(parameters)
    rows = JointRows(given.X, given.y, given.sample_weight, given.offset, given.n_trials)
    _, shares, _ = row_posterior(given.kind, rows, user)
    is_positive = shares > 0.0
    logs = np.where(is_positive, np.log(np.where(is_positive, shares, 1.0)), 0.0)
    shift = problem.log_likelihood_shift
    status, warnings = _judge(end, bounds, covariance)
    return JointFit(
        coefficients=user.coefficients,
        biases=user.biases,
        weights=user.weights,
        dispersion=user.dispersion,
        log_likelihood=sums.log_likelihood + shift,
        history=tuple(value + shift for value in end.history),
        n_iter=end.n_iter,
        converged=end.status is StartStatus.CONVERGED,
        starts=starts,
        responsibilities=np.ascontiguousarray(shares.T),
        covariance=covariance,
        n_parameters=problem.layout.size,
        n_obs=given.n_obs,
        n_units=problem.rows.total_weight,
        entropy=float(-(shares * logs).sum(axis=0) @ given.sample_weight),
        kind=given.kind,
        feature_names=given.feature_names,
        status=status,
        warnings=warnings,
        bounds=bounds,
    )


def inverse_information(information: FloatArray, held: NDArray[np.bool_]) -> FloatArray | None:
    """Covariance from the observed information; zero for entries that are held.

    Parameters
    ----------
    information : numpy.ndarray, shape (N, N)
        Observed information.
    held : numpy.ndarray of bool, shape (N,)
        Entries on a bound.

    Returns
    -------
    numpy.ndarray, shape (N, N), or None
        The covariance; None if the information is not positive definite.
    """
    free = np.flatnonzero(~held)
    inner = information[np.ix_(free, free)]
    diagonal = np.diag(inner)
    if diagonal.min(initial=1.0) <= 0.0 or not np.isfinite(inner).all():
        return None
    roots = np.sqrt(diagonal)
    scaled = inner / np.outer(roots, roots)
    if np.linalg.eigvalsh(scaled)[0] < _SMALLEST_EIGENVALUE:
        return None
    inverse = cho_solve(cho_factor(scaled), np.eye(len(free))) / np.outer(roots, roots)
    result = np.zeros_like(information)
    result[np.ix_(free, free)] = inverse
    return result


def _judge(
    end: Climb[FreePoint], bounds: tuple[str, ...], covariance: FloatArray | None
) -> tuple[Status, tuple[str, ...]]:
    """How far a fit can be trusted; that a run did not converge is said first."""
    is_converged = end.status is StartStatus.CONVERGED
    warnings = []
    if not is_converged:
        warnings.append(
            f"The search did not converge ({end.status} after {end.n_iter} iterations): the "
            "log-likelihood may still rise. Allow more iterations (`max_iter`) or use fewer "
            "components."
        )
    if covariance is None:
        warnings.append(
            "The information is singular: the data do not determine all parameters, and there are "
            "no standard errors. Use fewer components."
        )
    if bounds:
        warnings.append(
            f"Parameters lie on a bound: {'; '.join(bounds)}. Their errors are zero, not small. "
            "Use fewer components, or more rows."
        )
    if not is_converged:
        return Status.NOT_CONVERGED, tuple(warnings)
    return Status.NOT_IDENTIFIED if warnings else Status.OK, tuple(warnings)
