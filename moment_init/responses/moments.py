r"""Functions of several responses at once: each gives moments with the same directions.

Where all predictors of a component have one direction u_j, the mean of any function of all
responses depends on x through <u_j, x> alone, so that its moments are slices of one tensor with one
U: the functions of every single response, and products of functions of two.

From moments of all responses to directions, and from these to tied mixtures.

.. math:: E[T_k(y) S_m(x)] = \sum_j c_{jk}\, u_j^{\otimes m}

for every function of all responses, if every predictor of component j is :math:`s_{ja} \langle u_j,
x\rangle + b_{ja}`. Scales and their signs, biases, weights and dispersions are settled by the
likelihood.

`estimate` for several responses: wires data, moments, likelihood and the result.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from moment_init.checks import (
    FloatArray,
    IdentifiabilityError,
    RandomSeed,
    WeakSignalWarning,
    make_generator,
    notify,
    validate_n_components,
)
from moment_init.data.blocks import N_PARTS, single_threaded_blas
from moment_init.families.response_functions import ResponseFunctions
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO
from moment_init.moments.score_sums import score_moments, score_pieces
from moment_init.moments.subspace import COUNTED_EIGENVALUE, find_subspace, project
from moment_init.moments.sums import sum_low_orders
from moment_init.moments.tensor import cp_candidates, stack_slices
from moment_init.responses.assembly import JointEstimate, inverse_information
from moment_init.responses.climbing import Climb, TiedPoint, climb, short_climb
from moment_init.responses.data import ResponsesData, validate_responses
from moment_init.responses.kinds import ResponseKind
from moment_init.responses.parameters import JointProblem, TiedParameters, active_bounds, pose_joint
from moment_init.responses.search import fit_pooled
from moment_init.results import Status
from moment_init.scores.choosing import EstimationProblem, resolve_input
from moment_init.scores.stein import SteinStatus

MOST_PRODUCTS = 15
"""Products of pairs of responses that are used: those of six responses. More functions add their
noise to every direction."""


@dataclass(frozen=True, slots=True, eq=False)
class JointFunctions:
    """Functions of all responses."""

    parts: tuple[ResponseFunctions, ...]  # functions of each response; empty for classes
    # number of classes of a categorical response, else zero: its functions are the indicators of
    # all classes but the first
    n_classes: int
    pairs: tuple[tuple[int, int], ...]  # responses whose first functions are multiplied

    @property
    def columns(self) -> tuple[int, ...]:
        """One entry for each function."""
        n_single = sum(len(part.columns) for part in self.parts)
        return tuple(range(n_single + max(0, self.n_classes - 1) + len(self.pairs)))

    def __call__(self, y: FloatArray, /) -> FloatArray:
        """Evaluate the functions."""
        # y: (n_obs, n_responses) -> (n_obs, n_functions)
        if self.n_classes:
            indicators = [y[:, 0] == index for index in range(1, self.n_classes)]
            return np.array(indicators, dtype=np.float64).T
        values = [part(y[:, index]) for index, part in enumerate(self.parts)]
        products = [values[a][:, 0] * values[b][:, 0] for a, b in self.pairs]
        return np.concatenate(
            [each.T for each in values] + [np.array(products).reshape(-1, len(y))]
        ).T


def fit_joint_functions(kind: ResponseKind, response: FloatArray) -> JointFunctions:
    """Settle the functions of all responses."""
    # response: (n_obs, n_responses)
    families = [family for family in kind.families if family is not None]
    if not families:
        return JointFunctions((), kind.n_predictors + 1, ())
    parts = tuple(
        family.fit_response_functions(response[:, index]) for index, family in enumerate(families)
    )
    number = len(families)
    pairs = [(a, b) for a in range(number) for b in range(a + 1, number)]
    return JointFunctions(parts, 0, tuple(pairs[:MOST_PRODUCTS]))


def moment_responses(data: ResponsesData) -> FloatArray:
    """Responses without offsets and trials, standardised where they have units."""
    # -> (n_obs, n_responses)
    columns = []
    shares = data.sample_weight / data.sample_weight.sum()
    for index in range(len(data.y)):
        family = data.kind.families[index]
        if family is None:
            return data.y.T.copy()
        single = data.single(index)
        response = family.moment_response(
            single.y, order=1, offset=single.offset, n_trials=single.n_trials
        )
        if family.response_power:
            response = response - shares @ response
            response /= np.sqrt(shares @ np.square(response))
        columns.append(response)
    return np.column_stack(columns)


ALONG_DIRECTIONS_ROWS = 5_000
"""Rows by which starts along the directions are compared."""

ALONG_DIRECTIONS_STEPS = 15
"""Number of EM steps of each start along the directions."""

KEPT_STARTS = 2
"""Starts that are climbed from to the end."""


@dataclass(frozen=True, slots=True, eq=False)
class JointDirections:
    """Directions as the moments have them."""

    # unit directions in the standardised coordinates of a `JointProblem`, without signs;
    # (n_features, n_components)
    candidates: tuple[FloatArray, ...]
    # eigenvalues of the Gram matrix of all moments over the edge of their noise, largest first;
    # (n_features,)
    spectrum: FloatArray
    residual: float  # what the best decomposition leaves of the tensor, relative to it
    n_functions: int  # number of functions of the responses
    input_problem: EstimationProblem  # density of the input, and how it was chosen


def find_directions(
    data: ResponsesData,
    problem: JointProblem,
    rng: np.random.Generator,
    *,
    input_model: Any = "auto",
    unlabelled: Any = None,
) -> JointDirections:
    """Decompose the stacked tensor of the moments of all responses."""
    r, d = problem.n_components, data.n_features
    if r > d:
        raise IdentifiabilityError(
            f"`n_components` must be at most the number of features ({d}) for the moments of "
            f"several responses; got {r}. Reduce it, add features, or use `fit_em`."
        )
    if data.n_obs < N_PARTS:  # a part without rows has no moments
        raise IdentifiabilityError(
            f"`X` must have at least {N_PARTS} rows for the moments of several responses; got "
            f"{data.n_obs}. Add rows, or use `fit_em`."
        )
    single = data.single(0)
    posed = resolve_input(single, input_model, unlabelled, rng.spawn(1)[0], is_stacked=True)
    if posed.block is not None:
        names = ", ".join(posed.block.discrete_names(data.feature_names))
        raise IdentifiabilityError(
            f"`X` must have continuous columns only for the moments of several responses; got the "
            f"discrete {names}. Use `fit_em`, whose other starts need no density, or "
            "input_model='gaussian' to treat them as continuous."
        )
    response = moment_responses(data)
    functions = fit_joint_functions(data.kind, response)
    # Sums over rows only call functions and count them, whosever they are.
    called = cast(ResponseFunctions, functions)
    low_orders = sum_low_orders(single, posed.input_model, response, called)
    basis_map = _to_problem(posed, problem)
    densities = posed.densities or (posed.input_model,)
    if d == 1:
        densities = (posed.input_model,)
    candidates: list[FloatArray] = []
    findings: list[tuple[FloatArray, float]] = []
    for density in densities:
        if density is posed.input_model:
            subspace = find_subspace(low_orders, r)
            projected = project(low_orders, subspace.basis, 3)
            stack = stack_slices(projected.moments(), projected.basis)
            span, spectrum = subspace.basis, subspace.spectrum
        else:
            pieces = score_pieces(low_orders.rows, density, low_orders.part_weights)
            moments = score_moments(pieces, r)
            stack, spectrum = moments.stack(), moments.spectrum
            span = pieces[0].to_whitened(moments.subspace)
        found = cp_candidates(stack, r, rng)
        candidates += [_unit(basis_map @ (span @ each.directions)) for each in found]
        findings.append((spectrum, found[0].residual))
    spectrum, residual = findings[0]
    return JointDirections(tuple(candidates), spectrum, residual, len(functions.columns), posed)


def _to_problem(posed: EstimationProblem, problem: JointProblem) -> FloatArray:
    """Matrix that takes directions in the frame of the input model to those of the problem."""
    where = problem.coordinates[0]
    return np.asarray(np.linalg.solve(posed.input_model.standardising_basis, where.factor).T)


def _unit(columns: FloatArray) -> FloatArray:
    return np.asarray(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300))


def fit_along_directions(
    problem: JointProblem,
    candidates: tuple[FloatArray, ...],
    rng: np.random.Generator,
    *,
    max_steps: int = 500,
    holds_directions: bool = False,
) -> list[Climb[TiedPoint]]:
    """Complete mixtures along candidates for the directions, by likelihood."""
    # candidates: (n_features, n_components)
    few = problem.sample(ALONG_DIRECTIONS_ROWS, rng)
    pooled = fit_pooled(few)
    runs = []
    for directions in candidates:
        for start in _tied_starts(few, directions, pooled.coefficients[:, 0], pooled.biases[0]):
            point = TiedPoint.inside(few, start, holds_directions=holds_directions)
            runs.append(short_climb(point, ALONG_DIRECTIONS_STEPS))
    runs.sort(key=lambda run: -run.value)
    ends = []
    for run in runs[:KEPT_STARTS]:
        point = TiedPoint.inside(problem, run.point.parameters, holds_directions=holds_directions)
        ends.append(climb(point, max_steps=max_steps, em_steps=4))
    return sorted(ends, key=lambda end: -end.value)


def _tied_starts(
    problem: JointProblem, directions: FloatArray, slopes: FloatArray, levels: FloatArray
) -> list[TiedParameters]:
    """Starts along given directions: signs from the slopes of a single model, two lengths.

    The slopes of a single model are about the mean of those of the components: in
    sum_j w_j s_ja u_j the sign of s_ja is that of its coefficient.
    """
    r = directions.shape[1]
    loads = r * np.linalg.lstsq(directions, slopes, rcond=None)[0]  # (r, P)
    dispersion = None
    if any(problem.kind.has_dispersion):
        dispersion = np.where(problem.kind.has_dispersion, np.ones((r, 1)), np.nan)
        units = np.array(problem.kind.has_units)
        dispersion = np.where(units, 0.6 * dispersion, 2.0 * dispersion)
    typical = np.array(
        [2.0 if each is None else each.typical_scale for each in problem.kind.families]
    )
    typical = np.where(problem.kind.has_units, 0.8, typical)
    signs = np.where(loads < 0.0, -1.0, 1.0)
    biases = np.tile(levels, (r, 1))
    weights = np.full(r, 1.0 / r)
    lengths = [
        np.clip(np.abs(loads), 0.1 * typical, typical),
        np.broadcast_to(typical, loads.shape),
    ]
    return [
        TiedParameters(directions, signs * length, biases, weights, dispersion)
        for length in lengths
    ]


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
    """Estimate a mixture whose responses share component and direction."""
    # X: (n_obs, n_features), y: (n_obs, n_responses)
    if method != "stacked":
        raise ValueError(
            f"`method` must be 'stacked' with several responses; got {method!r}. Leave it out."
        )
    data = validate_responses(X, y, **data_block, function="estimate").drop_zero_weights()
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
        ends = fit_along_directions(problem, found.candidates, rng, holds_directions=not polish)
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
