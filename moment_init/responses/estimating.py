"""`estimate` for several responses: wires data, moments, likelihood and the result."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.arguments import RandomSeed, make_generator, validate_n_components
from moment_init.blocks import N_PARTS, single_threaded_blas
from moment_init.exceptions import WeakSignalWarning
from moment_init.likelihood.bounds import MIN_DISPERSION_RATIO
from moment_init.notices import notify
from moment_init.responses.assembly import inverse_information
from moment_init.responses.bounds import active_bounds
from moment_init.responses.climbing import Climb
from moment_init.responses.data import ResponsesData, validate_responses
from moment_init.responses.estimate_result import JointEstimate
from moment_init.responses.moments import JointDirections, find_directions, settle_directions
from moment_init.responses.points import TiedPoint
from moment_init.responses.rows import JointProblem, pose_joint
from moment_init.results import Status
from moment_init.scores.stein import SteinStatus
from moment_init.stacked.subspace import COUNTED_EIGENVALUE

__all__ = ["estimate_responses"]

FloatArray = NDArray[np.float64]

LARGE_ANGLE = 15.0
"""Standard error of a direction in degrees from which the signal is weak."""


def estimate_responses(
    X: Any,
    y: Any,
    n_components: Any,
    *,
    data_block: dict[str, Any],
    input_model: Any = "auto",
    method: Any = "stacked",
    polish: bool = True,
    X_unlabelled: Any = None,
    random_seed: RandomSeed = None,
) -> JointEstimate:
    """Estimate a mixture whose responses share component and direction.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like or DataFrame, shape (n_obs, n_responses), or labels
        Responses.
    n_components : int
        Number of components.
    data_block : dict of str to object
        `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`.
    input_model : {"auto", "gaussian"} or InputModel
        Density of the input.
    method : {"stacked"}
        The only method for several responses.
    polish : bool
        Whether the likelihood moves the directions of the moments too.
    X_unlabelled : array-like or DataFrame, or None
        Rows without a response.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed.

    Returns
    -------
    JointEstimate
        The estimate.

    Raises
    ------
    IdentifiabilityError
        If there are more components than features, or a column is discrete.
    ValueError
        For wrong values.

    Warns
    -----
    WeakSignalWarning
        If a direction does not stand out from noise.
    """
    if method != "stacked":
        raise ValueError(
            f"`method` must be 'stacked' with several responses; got {method!r}. Leave it out."
        )
    data = validate_responses(X, y, **data_block, function="estimate").counted()
    if isinstance(n_components, str):
        raise ValueError(
            f"`n_components` must be an integer with several responses; got {n_components!r}. "
            "Compare the `bic` of `fit_em` for several numbers."
        )
    number = validate_n_components(n_components, data.n_obs)
    smallest = max(data.n_features * (number + 1), N_PARTS - 1)
    if data.n_obs <= smallest:
        raise ValueError(
            f"`X` must have more than {smallest} rows for {number} components of "
            f"{data.n_features} features; got {data.n_obs}. Add rows or use fewer components."
        )
    rng = make_generator(random_seed)
    with single_threaded_blas():
        problem = pose_joint(data, number, MIN_DISPERSION_RATIO)
        found = find_directions(
            data, problem, rng, input_model=input_model, unlabelled=X_unlabelled
        )
        ends = settle_directions(problem, found.candidates, rng, holds_directions=not polish)
        result = _assemble(problem, data, found, ends[0])
    for warning in result.warnings:
        notify(warning, WeakSignalWarning)
    return result


def _assemble(
    problem: JointProblem, data: ResponsesData, found: JointDirections, end: Climb[TiedPoint]
) -> JointEstimate:
    """The estimate in the user's units, components by falling weight."""
    order = np.argsort(-end.point.parameters.weights, kind="stable")
    tied = end.point.parameters.take(order)
    errors = _direction_errors(end.point)[order]
    directions, lengths = problem.coordinates[0].directions_to_user(tied.directions)
    # The scale of the first response is in `lengths`; every response has its own.
    lengths = lengths / problem.coordinates[0].response_scale
    user = problem.to_user(tied.free)
    units = np.array([where.response_scale for where in problem.coordinates])
    scales = tied.scales * lengths[:, None] * units
    # Relative to each response's own units the largest scale is positive.
    largest = np.argmax(np.abs(tied.scales), axis=1)
    signs = np.where(tied.scales[np.arange(len(largest)), largest] < 0.0, -1.0, 1.0)
    status, warnings = _judge(problem, found, end, errors)
    return JointEstimate(
        directions=directions * signs,
        scales=scales * signs[:, None],
        biases=user.biases,
        weights=tied.weights,
        dispersion=user.dispersion,
        standard_errors=errors,
        log_likelihood=end.value + problem.log_likelihood_shift,
        spectrum=found.spectrum,
        residual=found.residual,
        n_functions=found.n_functions,
        n_obs=data.n_obs,
        kind=data.kind,
        feature_names=data.feature_names,
        status=status,
        warnings=warnings,
    )


def _direction_errors(point: TiedPoint) -> FloatArray:
    """Root mean square angle of each direction, in degrees, from the information."""
    r = point.problem.n_components
    if point.holds_directions:
        return np.full(r, np.nan)
    system = point.system(has_information=True)
    if system.information is None:
        return np.full(r, np.nan)
    covariance = inverse_information(system.information, system.held)
    if covariance is None:
        return np.full(r, np.nan)
    errors = []
    for j in range(r):
        place = point.places.direction(j)
        direction = point.parameters.directions[:, j]
        own = covariance[place, place]
        across = np.trace(own) - direction @ own @ direction
        errors.append(np.degrees(np.sqrt(max(across, 0.0))))
    return np.array(errors)


def _judge(
    problem: JointProblem, found: JointDirections, end: Climb[TiedPoint], errors: FloatArray
) -> tuple[Status, tuple[str, ...]]:
    warnings: list[str] = []
    status = Status.OK
    choice = found.input_problem.choice
    if choice is not None and choice.chosen.check.status is SteinStatus.BOUNDARY:
        status = Status.INPUT_ASSUMPTION
        warnings.append(
            f"Moments assume more of the input than holds: {choice.chosen.check.message}"
        )
    visible = int(np.sum(found.spectrum[: problem.n_components] > COUNTED_EIGENVALUE))
    is_weak = bool(np.any(errors > LARGE_ANGLE))
    if is_weak or (visible < problem.n_components and not np.isfinite(errors).all()):
        status = Status.WEAK_SIGNAL
        warnings.append(
            f"Directions are known to {np.array2string(errors, precision=1)} degrees only, and the "
            f"moments show {visible} of {problem.n_components}. Use more rows or fewer components."
        )
    elif np.isnan(errors).any() and not end.point.holds_directions:
        status = Status.NOT_IDENTIFIED
        warnings.append(
            "The information is singular: components cannot all be told apart. Use fewer."
        )
    bounds = active_bounds(problem, end.point.parameters.free)
    if bounds:
        status = Status.NOT_IDENTIFIED
        warnings.append(f"Parameters lie on a bound: {'; '.join(bounds)}. Use fewer components.")
    return status, tuple(warnings)
