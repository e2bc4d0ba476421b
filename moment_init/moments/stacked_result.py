"""The stacked estimate as a result: moments, polish, the user's units, standard errors, status.

With a free number of components, the spectrum of the moments counts directions, and the BIC of
polished fits decides.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.data.blocks import single_threaded_blas
from moment_init.families.quadrature import moment_coefficient
from moment_init.likelihood.parameters import (
    MixtureParameters,
    angles_in_degrees,
    match_components,
    parameter_count,
)
from moment_init.likelihood.posterior import unit_log_likelihood
from moment_init.moments.judgement import (
    StackedSolution,
    errors_from_information,
    errors_from_replicates,
    judge_stacked,
)
from moment_init.moments.paper.recovery import components_along, weigh_components
from moment_init.moments.paper.third_moment import weight_sum_warning
from moment_init.moments.polish import all_rows, polish_best
from moment_init.moments.result import ComponentSelection, MomentEstimate, StackedDiagnostics
from moment_init.moments.score_sums import score_estimate
from moment_init.moments.stacked import StackedFit, stacked_estimate
from moment_init.moments.subspace import CLEAR_EIGENVALUE, Subspace, count_directions, find_subspace
from moment_init.moments.sums import LowOrders, sum_low_orders
from moment_init.moments.tensor import required_order
from moment_init.results import Status
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import BlockProblem, EstimationProblem

# Moments use this number of rows, or up to twice as many, if a polish on all rows follows: they
# need only be close enough for Newton's method. If directions do not stand out clearly, twice or
# four times as many rows are used, whichever promises to be enough, and then all. A search for the
# number of components begins with the largest sample, since it counts directions that stand out.
MOMENT_ROWS = 60_000
SEARCH_ROWS = 4 * MOMENT_ROWS

# The same for a density other than the Gaussian, whose score functions cost many times as much. The
# estimate under the Gaussian is also available, and the likelihood decides.
SCORE_ROWS = 20_000

# Rows whose likelihood decides between densities without polish.
DECIDING_ROWS = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class LowOrderMoments:
    """Moments of the first two orders, from all rows or a sample of them."""

    problem: EstimationProblem  # restricted to the rows that were used
    low_orders: LowOrders  # moments of these rows, for any number of components
    is_thinned: bool  # whether rows were left out

    def estimate(
        self, n_components: int, rng: np.random.Generator, *, subspace: Subspace | None = None
    ) -> StackedFit:
        """Estimate from the moments of these rows."""
        problem = self.problem
        return stacked_estimate(
            problem.data,
            problem.input_model,
            problem.response,
            n_components,
            rng,
            low_orders=self.low_orders,
            subspace=subspace,
            may_turn=not self.is_thinned,  # otherwise the polish on all rows turns it
        )


@single_threaded_blas()
def low_order_moments(
    problem: EstimationProblem, *, n_rows: int | None = SEARCH_ROWS
) -> LowOrderMoments:
    """Form the moments of the first two orders from about `n_rows` rows, or from all."""
    stride = 1 if n_rows is None else max(1, problem.data.n_obs // n_rows)
    used = problem.thin(stride)
    low_orders = sum_low_orders(used.data, used.input_model, used.response)
    return LowOrderMoments(used, low_orders, is_thinned=stride > 1)


@single_threaded_blas()
def solve_stacked(
    problem: EstimationProblem,
    n_components: int,
    rng: np.random.Generator,
    *,
    is_polished: bool,
    moments: LowOrderMoments | None = None,
) -> StackedSolution:
    """Estimate by stacked moments, then polish.

    BLAS is limited to one thread: large sums over rows have threads of their own, and the result
    does not depend on the machine.
    """
    densities = _usable_densities(problem.source, n_components)
    if not is_polished:
        fits = [_fit_moments(problem, each, n_components, rng, None) for each in densities]
        return StackedSolution(_likeliest(problem, fits, rng), None)
    fits = [_fit_clear_moments(problem, each, n_components, rng, moments) for each in densities]
    # The likelihood assumes nothing about the input: it decides between densities.
    starts = [(fit.candidates, fit.subspace) for fit in fits]
    which, polished = polish_best(problem, starts, rng)
    return StackedSolution(fits[which], polished)


def _likeliest(
    problem: EstimationProblem, fits: list[StackedFit], rng: np.random.Generator
) -> StackedFit:
    """Choose the fit whose first candidate has the largest likelihood on a sample of rows."""
    if len(fits) == 1:
        return fits[0]
    rows = all_rows(problem).sample(DECIDING_ROWS, rng)
    family = problem.data.family
    return max(fits, key=lambda fit: unit_log_likelihood(family, rows, fit.candidates[0]).sum())


def _usable_densities(source: EstimationProblem, n_components: int) -> tuple[InputModel, ...]:
    """List the densities to try: only the Gaussian if there are more components than features."""
    n_features = source.data.n_features
    if n_features == 1 or n_components > n_features:
        return (source.input_model,)
    return source.densities or (source.input_model,)


def _fit_moments(
    problem: EstimationProblem,
    density: InputModel,
    n_components: int,
    rng: np.random.Generator,
    moments: LowOrderMoments | None,
    *,
    subspace: Subspace | None = None,
) -> StackedFit:
    """Estimate from the given moments, or from those of all rows."""
    source = problem.source
    moments = moments or low_order_moments(source, n_rows=None)
    if density is source.input_model:
        fit = moments.estimate(n_components, rng, subspace=subspace)
    else:
        fit = score_estimate(moments.problem, density, moments.low_orders, n_components, rng)
    return fit if problem.block is None else _lift(fit, problem, problem.block)


def _lift(fit: StackedFit, problem: EstimationProblem, inner: BlockProblem) -> StackedFit:
    """Lift an estimate from the continuous columns to all columns."""
    continuous, full, block = inner.problem.coordinates, problem.coordinates, inner.block
    linear = block.linear_map(continuous, full)

    def lift(parameters: MixtureParameters) -> MixtureParameters:
        coefficients, biases = block.lift(
            parameters.coefficients, parameters.biases, continuous, full
        )
        return replace(parameters, coefficients=coefficients, biases=biases)

    return replace(
        fit,
        candidates=tuple(lift(each) for each in fit.candidates),
        subspace=block.span(fit.subspace, continuous, full),
        cp_directions=linear @ fit.cp_directions,
        replicates=linear @ fit.replicates,
    )


def _fit_clear_moments(
    problem: EstimationProblem,
    density: InputModel,
    n_components: int,
    rng: np.random.Generator,
    moments: LowOrderMoments | None,
) -> StackedFit:
    """Estimate from as many rows as the directions need to stand out clearly."""
    source = problem.source
    if density is not source.input_model:
        sampled = low_order_moments(source, n_rows=SCORE_ROWS)
        return _fit_moments(problem, density, n_components, rng, sampled)
    last = min(n_components, source.data.n_features) - 1
    n_rows = MOMENT_ROWS if moments is None else SEARCH_ROWS
    moments = moments or low_order_moments(source, n_rows=n_rows)
    while True:
        subspace = find_subspace(moments.low_orders, n_components)
        is_clear = subspace.spectrum[last] >= CLEAR_EIGENVALUE
        if is_clear or not moments.is_thinned:
            return _fit_moments(problem, density, n_components, rng, moments, subspace=subspace)
        # The excess over noise grows in proportion to the rows: a sample size that promises too
        # little is skipped.
        excess = subspace.spectrum[last] - 1.0
        n_rows *= 2 if 2.0 * excess >= CLEAR_EIGENVALUE - 1.0 else 4
        moments = low_order_moments(source, n_rows=n_rows if n_rows <= SEARCH_ROWS else None)


@single_threaded_blas()
def assemble_stacked(problem: EstimationProblem, solution: StackedSolution) -> MomentEstimate:
    """Turn a solution into a result in the user's units."""
    order = _by_decreasing_weight(solution.parameters)
    parameters = solution.parameters.reorder(order)
    family, coordinates = problem.data.single_family, problem.coordinates
    directions, lengths = coordinates.directions_to_user(parameters.directions)
    in_user_units = _to_user_units(problem, parameters)
    scales = parameters.scales
    power = 1 if parameters.n_components == 1 else 3
    slopes = scales**power * moment_coefficient(family, power, scales, parameters.biases)
    errors = _direction_errors(problem, solution)[order]
    diagnostics = _diagnose(problem, solution, parameters)
    status, warnings = judge_stacked(problem, solution, errors)
    return MomentEstimate(
        directions=directions,
        moment_coefficients=parameters.weights * slopes * lengths**power,
        scales=in_user_units.scales,
        biases=in_user_units.biases,
        weights=parameters.weights,
        dispersion=in_user_units.dispersion,
        standard_errors=errors,
        log_likelihood=None if solution.polished is None else solution.polished.log_likelihood,
        candidates=tuple(
            # The order of the decomposition depends on rounding if components are similar.
            _to_user_units(problem, each.reorder(_by_decreasing_weight(each)))
            for each in solution.fit.candidates
        ),
        feature_names=problem.data.feature_names,
        family=family.name,
        link=family.link_name,
        method="stacked",
        status=status,
        warnings=warnings,
        diagnostics=diagnostics,
    )


def _by_decreasing_weight(parameters: MixtureParameters) -> NDArray[np.intp]:
    return np.argsort(-parameters.weights, kind="stable")


def apply_known_parameters(
    problem: EstimationProblem, result: MomentEstimate, scales: FloatArray, biases: FloatArray
) -> MomentEstimate:
    """Replace estimated scales and biases by known ones, and recompute the weights."""
    # scales, biases: (n_components,)
    directions, _ = problem.coordinates.coefficients_to_standardised(
        result.directions, np.zeros(result.n_components)
    )
    components = components_along(problem, directions / np.linalg.norm(directions, axis=0))
    order, weights, weight_sum = weigh_components(
        problem.data, problem.input_model, problem.response, problem.coordinates, components,
        scales, biases,
    )  # fmt: skip
    slopes, levels = problem.coordinates.coefficients_to_standardised(
        result.directions[:, order] * scales, biases
    )
    power = 1 if len(scales) == 1 else 3
    standard_scales = np.linalg.norm(slopes, axis=0)
    factors = moment_coefficient(problem.data.single_family, power, standard_scales, levels)
    warnings = weight_sum_warning(weight_sum)
    diagnostics = result.diagnostics
    if isinstance(diagnostics, StackedDiagnostics):
        errors = diagnostics.moment_errors[order]
        diagnostics = replace(diagnostics, weight_sum=weight_sum, moment_errors=errors)
    return replace(
        result,
        directions=result.directions[:, order],
        moment_coefficients=weights * scales**power * factors,
        scales=scales,
        biases=biases,
        weights=weights,
        dispersion=None if result.dispersion is None else result.dispersion[order],
        standard_errors=None if result.standard_errors is None else result.standard_errors[order],
        log_likelihood=None,  # it belongs to the parameters that were replaced
        status=Status.MISFIT if warnings and result.status is Status.OK else result.status,
        warnings=(*result.warnings, *warnings),
        diagnostics=diagnostics,
    )


def _to_user_units(problem: EstimationProblem, parameters: MixtureParameters) -> MixtureParameters:
    """Convert to the user's units; only the dispersion of the identity link has a unit."""
    coordinates = problem.coordinates
    slopes, biases = coordinates.coefficients_to_user(parameters.coefficients, parameters.biases)
    dispersion = parameters.dispersion
    if dispersion is not None and problem.data.family.response_power:
        dispersion = dispersion * coordinates.response_scale
    return replace(parameters, coefficients=slopes, biases=biases, dispersion=dispersion)


def _direction_errors(problem: EstimationProblem, solution: StackedSolution) -> FloatArray:
    """Compute the standard errors of the final directions, in degrees."""
    polished = solution.polished
    if polished is None:
        return errors_from_replicates(solution.fit.replicates, problem.coordinates)
    return errors_from_information(polished.information, polished.parameters, problem.coordinates)[
        0
    ]


def _diagnose(
    problem: EstimationProblem, solution: StackedSolution, parameters: MixtureParameters
) -> StackedDiagnostics:
    """Collect the diagnostics, with components in the order of the final parameters."""
    fit, polished = solution.fit, solution.polished
    order = match_components(fit.candidates[0].coefficients, parameters.coefficients, signed=True)
    used = min(fit.candidates[0].n_components, len(fit.spectrum))
    gap = float(fit.spectrum[used - 1] / fit.spectrum[used]) if used < len(fit.spectrum) else np.inf
    freedom = max(1, fit.n_moments - parameter_count(fit.candidates[0]))
    spread = 0.0
    if len(fit.candidates) > 1:
        first, second = (each.directions for each in fit.candidates[:2])
        spread = float(angles_in_degrees(second, first).max())
    return StackedDiagnostics(
        n_obs=problem.data.n_obs,
        spectrum=fit.spectrum,
        gap=gap,
        residual=fit.cp_residual,
        moment_misfit=float(fit.misfits[0]) / freedom,
        candidate_spread=spread,
        moment_errors=errors_from_replicates(fit.replicates, problem.coordinates)[order],
        misfit=None if polished is None else polished.misfit,
        n_moves=0 if polished is None else polished.n_moves,
        shrinkage=problem.input_model.shrinkage_,
        weight_sum=None,
    )


# Largest number of components in a search; more can be requested by number.
MOST_COMPONENTS = 10


def choose_n_components(
    problem: EstimationProblem, rng: np.random.Generator
) -> tuple[StackedSolution, ComponentSelection]:
    """Choose the number of components and return it with its fit.

    The spectrum of the moments counts the directions that stand out from noise. The count is a
    lower bound, since parallel components share a direction, but noise can add one: the search
    starts there, goes up while the BIC falls, and down if the first step up did not help.
    """
    moments = low_order_moments(problem.source)
    n_visible, _ = count_directions(moments.low_orders)
    solutions: dict[int, StackedSolution] = {}

    def bic(number: int) -> float:
        if number not in solutions:
            solutions[number] = solve_stacked(
                problem, number, rng, is_polished=True, moments=moments
            )
        return _bic(solutions[number], problem.data.sample_weight.sum())

    chosen = start = max(1, min(n_visible, MOST_COMPONENTS))
    while chosen < MOST_COMPONENTS and _is_identified(problem, moments, chosen + 1):
        if bic(chosen + 1) >= bic(chosen):
            break
        chosen += 1
    if chosen == start:
        while chosen > 1 and bic(chosen - 1) < bic(chosen):
            chosen -= 1
    bic(chosen)  # fitted even if nothing was compared
    numbers = tuple(sorted(solutions))
    selection = ComponentSelection(
        n_components=numbers,
        log_likelihood=tuple(_log_likelihood(solutions[number]) for number in numbers),
        bic=tuple(bic(number) for number in numbers),
        n_visible=n_visible,
    )
    return solutions[chosen], selection


def _log_likelihood(solution: StackedSolution) -> float:
    return np.nan if solution.polished is None else solution.polished.log_likelihood


def _is_identified(problem: EstimationProblem, moments: LowOrderMoments, n_components: int) -> bool:
    """Check that moments can identify the components and that rows exceed the unknowns."""
    data = problem.source.data
    try:
        required_order(
            data.n_features,
            n_components,
            moments.low_orders.rows.n_functions,
            has_dispersion=data.family.has_dispersion,
        )
    except IdentifiabilityError:
        return False
    return data.n_obs > data.n_features * (n_components + 1)


def _bic(solution: StackedSolution, n_obs: float) -> float:
    """Compute the Bayesian information criterion, -2 log L + k log n."""
    n_parameters = parameter_count(solution.parameters)
    return -2.0 * _log_likelihood(solution) + n_parameters * float(np.log(n_obs))
