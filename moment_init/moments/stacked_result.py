"""The stacked estimate as a result: moments, polish, the user's units, standard errors, status.

With a free number of components, the spectrum of the moments counts directions, and the BIC of
polished fits decides.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.data.blocks import single_threaded_blas
from moment_init.families.quadrature import moment_coefficient
from moment_init.likelihood.parameters import MixtureParameters, parameter_count
from moment_init.moments.judgement import (
    StackedSolution,
    errors_from_information,
    judge_stacked,
)
from moment_init.moments.paper.recovery import components_along, weigh_components
from moment_init.moments.paper.third_moment import weight_sum_warning
from moment_init.moments.polish import PolishedFit, estimate_information, polish
from moment_init.moments.result import ComponentSelection, MomentEstimate, StackedDiagnostics
from moment_init.moments.stacked import StackedFit, fit_stacked, low_order_moments, single_mixture
from moment_init.moments.subspace import LowOrders
from moment_init.moments.tensor import required_order
from moment_init.results import Status
from moment_init.scores.choosing import BlockProblem, EstimationProblem


@single_threaded_blas()
def solve_stacked(
    problem: EstimationProblem,
    n_components: int,
    rng: np.random.Generator,
    *,
    is_polished: bool,
    low_orders: LowOrders | None = None,
) -> StackedSolution:
    """Estimate by stacked moments, then polish."""
    fit = fit_stacked(
        problem.source, n_components, rng, is_polished=is_polished, low_orders=low_orders
    )
    mixtures = tuple(single_mixture(each) for each in fit.candidates)
    if problem.block is not None:
        mixtures = tuple(_lift(each, problem, problem.block) for each in mixtures)
    polished = polish(problem, mixtures, rng) if is_polished else None
    return StackedSolution(fit, mixtures, polished)


def _lift(
    mixture: MixtureParameters, problem: EstimationProblem, inner: BlockProblem
) -> MixtureParameters:
    """Lift a mixture from the continuous columns to all columns."""
    coefficients, biases = inner.block.lift(
        mixture.coefficients, mixture.biases, inner.problem.coordinates, problem.coordinates
    )
    return replace(mixture, coefficients=coefficients, biases=biases)


@single_threaded_blas()
def assemble_stacked(
    problem: EstimationProblem, solution: StackedSolution, rng: np.random.Generator
) -> MomentEstimate:
    """Turn a solution into a result in the user's units."""
    order = _by_decreasing_weight(solution.parameters)
    parameters = solution.parameters.reorder(order)
    family, coordinates = problem.data.single_family, problem.coordinates
    directions, lengths = coordinates.directions_to_user(parameters.directions)
    in_user_units = _to_user_units(problem, parameters)
    scales = parameters.scales
    power = 1 if parameters.n_components == 1 else 3
    slopes = scales**power * moment_coefficient(family, power, scales, parameters.biases)
    errors = _direction_errors(problem, solution, rng)[order]
    diagnostics = diagnose(problem, solution.fit, solution.polished)
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
            for each in solution.candidates
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
        diagnostics = replace(diagnostics, weight_sum=weight_sum)
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


def _direction_errors(
    problem: EstimationProblem, solution: StackedSolution, rng: np.random.Generator
) -> FloatArray:
    """Compute the standard errors of the final directions, in degrees."""
    if solution.polished is None:
        information = estimate_information(problem, solution.parameters, rng)
    else:
        information = solution.polished.information
    return errors_from_information(information, solution.parameters, problem.coordinates)[0]


def diagnose(
    problem: EstimationProblem, fit: StackedFit, polished: PolishedFit | None
) -> StackedDiagnostics:
    """Collect the diagnostics."""
    return StackedDiagnostics(
        n_obs=problem.data.n_obs,
        spectrum=fit.spectrum,
        gap=fit.gap,
        residual=fit.residual,
        moment_misfit=fit.misfit,
        n_functions=fit.n_functions,
        candidate_spread=fit.spread,
        misfit=None if polished is None else polished.misfit,
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
    n_visible = moments.n_visible
    solutions: dict[int, StackedSolution] = {}

    def bic(number: int) -> float:
        if number not in solutions:
            solutions[number] = solve_stacked(
                problem, number, rng, is_polished=True, low_orders=moments
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


def _is_identified(problem: EstimationProblem, moments: LowOrders, n_components: int) -> bool:
    """Check that moments can identify the components and that rows exceed the unknowns."""
    data = problem.source.data
    try:
        required_order(
            data.n_features,
            n_components,
            moments.pieces[0].n_functions,
            has_dispersion=data.family.has_dispersion,
        )
    except IdentifiabilityError:
        return False
    return data.n_obs > data.n_features * (n_components + 1)


def _bic(solution: StackedSolution, n_obs: float) -> float:
    """Compute the Bayesian information criterion, -2 log L + k log n."""
    n_parameters = parameter_count(solution.parameters)
    return -2.0 * _log_likelihood(solution) + n_parameters * float(np.log(n_obs))
