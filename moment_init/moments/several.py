r"""Estimates for several responses, or classes, from moments of functions of all of them.

If all linear predictors of a component have one direction u_j, the mean of any function of all
responses depends on x through <u_j, x> only, so that

.. math:: E[T_k(y) S_m(x)] = \sum_j c_{jk}\, u_j^{\otimes m}

for functions of single responses and for products of functions of two. All these moments are slices
of one stacked tensor, whose decomposition gives the directions. The likelihood of the mixture with
tied directions (`moment_init.likelihood.tied`) then gives scales with their signs, biases, weights
and dispersions. The polish frees the directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
from scipy.linalg import null_space

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.data.blocks import N_PARTS, single_threaded_blas
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates, whiten_rows
from moment_init.families.response_functions import ResponseFunctions
from moment_init.families.several import AnyFamily, Categorical
from moment_init.likelihood.climbing import climb, maximise
from moment_init.likelihood.em_step import flat_start
from moment_init.likelihood.parameters import MixtureParameters, active_bounds, angles_in_degrees
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import LikelihoodSums
from moment_init.likelihood.tied import TiedLikelihood, TiedParameters, places_of
from moment_init.moments.judgement import GROUPS_WARNING, angle_error
from moment_init.moments.result import MomentEstimate, SeveralDiagnostics
from moment_init.moments.score_sums import score_moments, score_pieces
from moment_init.moments.subspace import COUNTED_EIGENVALUE, find_subspace, project
from moment_init.moments.sums import sum_low_orders
from moment_init.moments.tensor import cp_candidates, stack_slices
from moment_init.results import Status
from moment_init.scores.choosing import EstimationProblem, resolve_input

MOST_PRODUCTS = 15
"""Products of pairs of responses that are used: those of six responses. More functions add their
noise to every direction."""


@dataclass(frozen=True, slots=True, eq=False)
class SeveralFunctions:
    """Functions of all responses."""

    parts: tuple[ResponseFunctions, ...]  # functions of each response; empty for classes
    # number of classes, else zero: their functions are the indicators of all classes but the first
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
            [value.T for value in values] + [np.array(products).reshape(-1, len(y))]
        ).T


def fit_several_functions(family: AnyFamily, response: FloatArray) -> SeveralFunctions:
    """Choose the functions of all responses."""
    # response: (n_obs, n_responses)
    if isinstance(family, Categorical):
        return SeveralFunctions((), family.n_classes, ())
    members = enumerate(family.members)
    parts = tuple(member.fit_response_functions(response[:, index]) for index, member in members)
    pairs = [(a, b) for a in range(len(parts)) for b in range(a + 1, len(parts))]
    return SeveralFunctions(parts, 0, tuple(pairs[:MOST_PRODUCTS]))


def moment_responses(data: RegressionData) -> tuple[FloatArray, list[tuple[float, float]]]:
    """Responses without offsets and trials, standardised if they have units; shifts and scales."""
    # -> (n_obs, n_responses), one pair for each linear predictor
    family = data.family
    if isinstance(family, Categorical):
        return data.y[:, None], [(0.0, 1.0)] * family.n_predictors
    columns, units = [], []
    shares = data.sample_weight / data.sample_weight.sum()
    for index, member in enumerate(family.members):
        single = data.single(index)
        response = member.moment_response(
            single.y, order=1, offset=single.offset, n_trials=single.n_trials
        )
        shift, scale = 0.0, 1.0
        if member.response_power:
            shift = float(shares @ response)
            scale = float(np.sqrt(shares @ np.square(response - shift)))
            response = (response - shift) / scale
        columns.append(response)
        units.append((shift, scale))
    return np.array(columns).T, units


ALONG_DIRECTIONS_ROWS = 5_000
"""Rows, or groups, by which starts along the directions are compared."""

ALONG_DIRECTIONS_STEPS = 15
"""Number of EM steps of each start along the directions."""

KEPT_STARTS = 2
"""Starts that are climbed from to the end."""

FINISH_STEPS = 500
FINISH_TOLERANCE = 1e-6

SINGLE_STEPS = 60
"""Maximum number of steps of a single model: it converges in ten, or is separated."""


@dataclass(frozen=True, slots=True, eq=False)
class MomentDirections:
    """Directions as the moments have them."""

    # unit directions in the whitened coordinates of the input, without signs; (n_features,
    # n_components)
    candidates: tuple[FloatArray, ...]
    # eigenvalues of the Gram matrix of all moments over the edge of their noise, largest first;
    # (n_features,)
    spectrum: FloatArray
    residual: float  # what the best decomposition leaves of the tensor, relative to it
    n_functions: int  # number of functions of the responses


def find_directions(
    data: RegressionData, posed: EstimationProblem, n_components: int, rng: np.random.Generator
) -> MomentDirections:
    """Decompose the stacked tensor of the moments of all responses.

    `posed` is the problem of the first response, with the density of the input.
    """
    _require_identified(data, posed, n_components)
    response, _ = moment_responses(data)
    functions = fit_several_functions(data.family, response)
    # sums over rows only call the functions and count them
    low_orders = sum_low_orders(
        posed.data, posed.input_model, response, cast(ResponseFunctions, functions)
    )
    densities = posed.densities or (posed.input_model,)
    if data.n_features == 1:
        densities = (posed.input_model,)
    candidates: list[FloatArray] = []
    findings: list[tuple[FloatArray, float]] = []
    for density in densities:
        if density is posed.input_model:
            subspace = find_subspace(low_orders, n_components)
            projected = project(low_orders, subspace.basis, 3)
            stack = stack_slices(projected.moments(), projected.basis)
            span, spectrum = subspace.basis, subspace.spectrum
        else:
            pieces = score_pieces(low_orders.rows, density, low_orders.part_weights)
            moments = score_moments(pieces, n_components)
            stack, spectrum = moments.stack(), moments.spectrum
            span = pieces[0].to_whitened(moments.subspace)
        found = cp_candidates(stack, n_components, rng)
        candidates += [_unit(span @ candidate.directions) for candidate in found]
        findings.append((spectrum, found[0].residual))
    return MomentDirections(tuple(candidates), *findings[0], len(functions.columns))


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


def _unit(columns: FloatArray) -> FloatArray:
    return np.asarray(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300))


@dataclass(frozen=True, slots=True, eq=False)
class TiedEnd:
    """End of a climb along directions."""

    likelihood: TiedLikelihood
    parameters: TiedParameters
    sums: LikelihoodSums  # at these parameters

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood, with all constants."""
        return self.sums.log_likelihood


def fit_along_directions(
    family: AnyFamily,
    rows: LikelihoodRows,
    candidates: Sequence[FloatArray],
    rng: np.random.Generator,
    *,
    max_steps: int = FINISH_STEPS,
    holds_directions: bool = False,
) -> list[TiedEnd]:
    """Fit complete mixtures along candidates for the directions, largest likelihood first."""
    # candidates: (n_features, n_components)
    few = sample_units(rows, ALONG_DIRECTIONS_ROWS, rng).prepared(family)
    flat = flat_start(family, few)
    single = maximise(family, few, flat, max_steps=SINGLE_STEPS, em_steps=3).parameters
    starts = [start for each in candidates for start in _tied_starts(family, each, single)]
    runs = [
        _climb(family, few, start, ALONG_DIRECTIONS_STEPS, ALONG_DIRECTIONS_STEPS, holds_directions)
        for start in starts
    ]
    runs.sort(key=lambda run: -run.log_likelihood)
    prepared = rows.prepared(family)
    ends = [
        _climb(family, prepared, run.parameters, max_steps, 4, holds_directions)
        for run in runs[:KEPT_STARTS]
    ]
    return sorted(ends, key=lambda end: -end.log_likelihood)


def _climb(
    family: AnyFamily,
    rows: LikelihoodRows,
    start: TiedParameters,
    max_steps: int,
    em_steps: int,
    holds_directions: bool,
) -> TiedEnd:
    likelihood = TiedLikelihood.of(family, rows, start, holds_directions=holds_directions)
    end = climb(
        likelihood,
        likelihood.admit(start),
        max_steps=max_steps,
        em_steps=em_steps,
        max_em_steps=None,
        tolerance=FINISH_TOLERANCE,
        damping=1.0,
        target=None,
    )
    return TiedEnd(likelihood, end.parameters, end.sums)


def sample_units(rows: LikelihoodRows, size: int, rng: np.random.Generator) -> LikelihoodRows:
    """Take a random sample of units; all of them if there are no more than `size`."""
    if rows.n_units <= size:
        return rows
    return rows.take(np.sort(rng.choice(rows.n_units, size, replace=False)))


def _tied_starts(
    family: AnyFamily, directions: FloatArray, single: MixtureParameters
) -> list[TiedParameters]:
    """Build starts along given directions: signs from the slopes of a single model, two lengths.

    The slopes of a single model are about the mean of those of the components: in
    sum_j w_j s_ja u_j the sign of s_ja is that of its coefficient.
    """
    # directions: (n_features, n_components)
    r, members = directions.shape[1], family.predictor_families
    slopes = single.slopes[:, :, 0].T
    loads = r * np.linalg.lstsq(directions, slopes, rcond=None)[0].T  # (P, r)
    has_units = np.array([member.response_power for member in members])
    dispersion = None
    if family.has_dispersion:
        values = np.where(has_units, 0.6, 2.0)
        values[[not member.has_dispersion for member in members]] = np.nan
        dispersion = np.repeat(values[:, None], r, axis=1)
    sizes = np.array([member.typical_scale for member in members])
    typical = np.where(has_units, 0.8, sizes)[:, None]
    signs = np.where(loads < 0.0, -1.0, 1.0)
    lengths = [
        np.clip(np.abs(loads), 0.1 * typical, typical),
        np.broadcast_to(typical, loads.shape),
    ]
    biases, weights = np.repeat(single.levels, r, axis=1), np.full(r, 1.0 / r)
    return [
        TiedParameters(directions, signs * length, biases, weights, dispersion)
        for length in lengths
    ]


STARTING_ROWS = 20_000
"""Rows, or groups, of the climb to a start of another fit."""

STARTING_STEPS = 20


class _Posed(Protocol):
    """What is used of a problem whose likelihood is maximised afterwards."""

    @property
    def family(self) -> AnyFamily:
        """Family of all responses."""

    @property
    def n_components(self) -> int:
        """Number of components."""

    @property
    def rows(self) -> LikelihoodRows:
        """Rows with whitened inputs."""

    @property
    def coordinates(self) -> tuple[Coordinates, ...]:
        """Coordinates of each linear predictor."""


@single_threaded_blas()
def tensor_starts_several(
    problem: _Posed, data: RegressionData, rng: np.random.Generator
) -> list[tuple[str, MixtureParameters]]:
    """Return starts from moments, best first, in the problem's standardised coordinates.

    They are empty if the moments do not apply.
    """
    try:
        posed = resolve_input(data.single(0), "auto", None, rng.spawn(1)[0], is_stacked=True)
        found = find_directions(data, posed, problem.n_components, rng)
    except IdentifiabilityError:
        return []
    turn = np.linalg.solve(posed.coordinates.factor, problem.coordinates[0].factor).T
    candidates = [_unit(turn @ candidate) for candidate in found.candidates]
    rows = sample_units(replace(problem.rows, gate=None), STARTING_ROWS, rng)
    ends = fit_along_directions(problem.family, rows, candidates, rng, max_steps=STARTING_STEPS)
    return [(f"tensor {rank}", end.parameters.free) for rank, end in enumerate(ends, start=1)]


@single_threaded_blas()
def estimate_several(
    data: RegressionData,
    posed: EstimationProblem,
    n_components: int,
    rng: np.random.Generator,
    *,
    is_polished: bool,
) -> MomentEstimate:
    """Estimate a mixture whose responses share component and direction.

    `posed` is the problem of the first response, with the density of the input.
    """
    found = find_directions(data, posed, n_components, rng)
    rows, coordinates = _standardised(data, posed)
    ends = fit_along_directions(
        data.family, rows, found.candidates, rng, holds_directions=not is_polished
    )
    order = np.argsort(-ends[0].parameters.weights, kind="stable")
    tied = ends[0].parameters.reorder(order)
    errors = _direction_errors(ends[0], coordinates[0])[order]
    user = _to_user(tied.free, coordinates)
    # the direction points to where the response with the largest scale in its own units increases
    largest = np.argmax(np.abs(tied.scales), axis=0)
    signs = np.where(tied.scales[largest, np.arange(n_components)] < 0.0, -1.0, 1.0)
    directions, _ = coordinates[0].directions_to_user(tied.directions)
    status, warnings = _judge(data, found, ends[0], errors)
    jacobian = rows.total_weight * sum(np.log(where.response_scale) for where in coordinates)
    return MomentEstimate(
        directions=directions * signs,
        moment_coefficients=None,
        scales=np.einsum("dj,pdj->pj", directions * signs, user.slopes),
        biases=user.biases,
        weights=user.weights,
        dispersion=user.dispersion,
        standard_errors=errors,
        log_likelihood=ends[0].log_likelihood - float(jacobian),
        candidates=tuple(_to_user(_by_weight(end), coordinates) for end in ends),
        feature_names=data.feature_names,
        family=data.family.name,
        link=data.family.link_name,
        method="stacked",
        status=status,
        warnings=warnings,
        diagnostics=_diagnose(data, posed, found, ends),
        response_names=data.response_names,
        classes=data.classes,
    )


def _standardised(
    data: RegressionData, posed: EstimationProblem
) -> tuple[LikelihoodRows, tuple[Coordinates, ...]]:
    """Rows with whitened inputs and standardised responses, and their coordinates."""
    mean, factor = posed.coordinates.mean, posed.coordinates.factor
    response, units = moment_responses(data)
    has_units = np.array([member.response_power for member in data.family.predictor_families])
    y, offset = data.y, data.offset
    if has_units.any():  # offsets of the identity link are subtracted from the response
        y = np.asfortranarray(np.where(has_units, response, y))
        offset = None if offset is None else np.asfortranarray(np.where(has_units, 0.0, offset))
    inputs = np.ascontiguousarray(whiten_rows(mean, factor, data.X))
    rows = LikelihoodRows(inputs, y, data.sample_weight, offset, data.n_trials)
    return rows, tuple(Coordinates(mean, factor, *unit) for unit in units)


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


def _by_weight(end: TiedEnd) -> MixtureParameters:
    """Parameters with components by decreasing weight."""
    return end.parameters.free.reorder(np.argsort(-end.parameters.weights, kind="stable"))


LARGE_ERROR = 15.0
"""Standard error of a direction, in degrees, from which the signal is weak."""

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
    data: RegressionData, found: MomentDirections, end: TiedEnd, errors: FloatArray
) -> tuple[Status, tuple[str, ...]]:
    """Derive the status and the warnings of an estimate."""
    warnings: list[str] = []
    status, r = Status.OK, len(errors)
    n_visible = int(np.sum(found.spectrum[:r] > COUNTED_EIGENVALUE))
    is_known = bool(np.isfinite(errors).all())
    if np.any(errors > LARGE_ERROR) or (n_visible < r and not is_known):
        status = Status.WEAK_SIGNAL
        warnings.append(
            f"Directions are known to {np.array2string(errors, precision=1)} degrees only, and "
            f"{n_visible} of {r} stand out from noise in the moments. Use more rows or fewer "
            "components."
        )
    elif not is_known and end.likelihood.constraint is None:
        status = Status.NOT_IDENTIFIED
        warnings.append(
            "The information is singular: components cannot all be told apart. Use fewer."
        )
    bounds = active_bounds(_by_weight(end), end.likelihood.bounds)
    if bounds:
        status = Status.NOT_IDENTIFIED
        labels = "; ".join(bound.label for bound in bounds)
        warnings.append(f"Parameters lie on a bound: {labels}. Use fewer components.")
    if data.groups is not None:
        warnings.append(GROUPS_WARNING)
    return status, tuple(warnings)


def _diagnose(
    data: RegressionData, posed: EstimationProblem, found: MomentDirections, ends: list[TiedEnd]
) -> SeveralDiagnostics:
    spread, r = 0.0, len(ends[0].parameters.weights)
    if len(ends) > 1:
        best, second = (end.parameters.directions for end in ends[:2])
        spread = float(angles_in_degrees(second, best).max())
    spectrum = found.spectrum
    return SeveralDiagnostics(
        n_obs=data.n_obs,
        spectrum=spectrum,
        gap=float(spectrum[r - 1] / spectrum[r]) if len(spectrum) > r else np.inf,
        residual=found.residual,
        n_functions=found.n_functions,
        candidate_spread=spread,
        shrinkage=posed.input_model.shrinkage_,
    )
