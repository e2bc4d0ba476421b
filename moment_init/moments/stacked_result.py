"""The stacked estimate as a result: moments, polish, the user's units, standard errors, status.

Standard errors of directions, in degrees, come from the information matrix at the estimate. The
status follows from these errors, the spectrum of the moments, the polished fit and the assumptions
about the input; warnings say what to do. With a free number of components, the spectrum counts
directions, and the BIC of polished fits decides.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.data.blocks import single_threaded_blas
from moment_init.data.standardising import Coordinates
from moment_init.families.links import moment_coefficient
from moment_init.likelihood.parameters import MixtureParameters, component_size, parameter_count
from moment_init.moments.paper.recovery import components_along, weigh_components
from moment_init.moments.paper.third_moment import dependence_warning, weight_sum_warning
from moment_init.moments.polish import PolishedFit, estimate_information, polish
from moment_init.moments.result import ComponentSelection, MomentEstimate, StackedDiagnostics
from moment_init.moments.stacked import StackedFit, fit_stacked, low_order_moments, single_mixture
from moment_init.moments.subspace import COUNTED_EIGENVALUE, LowOrders, Moments
from moment_init.moments.tensor import required_order
from moment_init.results import Status
from moment_init.scores.choosing import (
    BlockProblem,
    EstimationProblem,
    describe_discrete_columns,
    name_discrete,
    sampled_inputs,
)
from moment_init.scores.stein import SteinStatus

# Share of angles that twice the error covers, as for twice a normal standard error.
COVERAGE = 0.95


def angle_error(covariance: FloatArray, coefficients: FloatArray) -> float:
    """Compute the standard error of a direction in degrees.

    The angle to the truth is a length in n_features - 1 dimensions, not a signed number: twice its
    root mean square would cover far more than 95 %. The error is therefore half the 95 % quantile
    of the angle, by Satterthwaite's chi-square with the mean and variance of its square.
    """
    # covariance: (n_features, n_features), coefficients: (n_features,)
    scale = float(np.linalg.norm(coefficients))
    direction = coefficients / scale
    if len(direction) == 1:
        return 0.0
    projector = np.eye(len(direction)) - np.outer(direction, direction)
    tangent = projector @ covariance @ projector / scale**2
    trace = float(np.trace(tangent))
    if trace <= 0.0:
        return 0.0
    # Relative to the squared trace, which itself could overflow in extreme units.
    squares = float(np.square(tangent / trace).sum())
    quantile = squares * trace * float(chi2.ppf(COVERAGE, 1.0 / squares))
    return float(np.degrees(np.arctan(np.sqrt(quantile))) / 2.0)


def errors_from_information(
    information: FloatArray, parameters: MixtureParameters, coordinates: Coordinates
) -> tuple[FloatArray, FloatArray]:
    """Compute errors of directions, and the covariance, from the information of a fit."""
    # information: (n_parameters, n_parameters) -> (n_components,), (n_parameters, n_parameters)
    covariance = np.linalg.pinv(information, hermitian=True)
    p, size = parameters.n_features, component_size(parameters)
    zero = np.zeros(p)
    basis, _ = coordinates.coefficients_to_user(np.eye(p), zero)
    slopes = basis @ parameters.coefficients
    errors = [
        angle_error(basis @ covariance[first : first + p, first : first + p] @ basis.T, column)
        for first, column in zip(range(0, size * len(slopes.T), size), slopes.T, strict=True)
    ]
    return np.array(errors), covariance


# Information-matrix statistic, in units of the edge of its noise: correct fits stay below some 1.3.
LARGEST_MISFIT = 1.5

# Eigenvalue of the moments outside the fitted span, over the edge of its noise: noise alone exceeds
# 1.2 hardly ever, also with heavy tails.
LARGEST_OUTSIDE = 1.5

# A direction with a larger standard error, in degrees, is only a guess.
LARGEST_ERROR = 20.0

# Two components count as one that was split in two if their difference lies below this quantile of
# the differences due to noise, and coefficients count as zero if they do.
SAME_COMPONENT = 0.99

GROUPS_WARNING = (
    "`groups` is not used by the polish: the estimate is consistent, but its standard errors and "
    "its log-likelihood are those of independent rows."
)

# What reaching a bound may mean and what to do, by the kind of bound.
REMEDIES = {
    "weight": "A component is empty. Use fewer components",
    "dispersion": "The response may have no noise, or no overdispersion. Use another family",
    "dispersion ratio": "A component may fit a few rows exactly. Use fewer components",
    "length": "The classes are separated. Use more rows, or a prior that bounds the coefficients",
}


@dataclass(frozen=True, slots=True, eq=False)
class StackedSolution:
    """Moment fit and polished fit of one problem, in standardised coordinates."""

    fit: StackedFit  # the estimate from moments alone
    # complete mixtures of that estimate, best first; of all columns if some are discrete
    candidates: tuple[MixtureParameters, ...]
    polished: PolishedFit | None  # None without polish

    @property
    def parameters(self) -> MixtureParameters:
        """The final parameters."""
        return self.candidates[0] if self.polished is None else self.polished.parameters


def judge_stacked(
    problem: EstimationProblem, solution: StackedSolution, errors: FloatArray
) -> tuple[Status, tuple[str, ...]]:
    """Derive the status and the warnings of a stacked estimate."""
    # errors: (n_components,)
    findings = error_findings(errors)
    if solution.polished is None:
        dependence = dependence_warning(problem.data, problem.input_model)
        findings = spectrum_findings(solution.fit.spectrum, len(errors)) + findings
        findings += [(Status.WEAK_SIGNAL, message) for message in dependence]
    else:
        findings += _likelihood_findings(solution.polished)
        if problem.block is None:
            directions = solution.parameters.directions
            findings += agreement_findings(solution.fit.moments, directions, errors)
    status = findings[0][0] if findings else Status.OK
    messages = [message for _, message in findings]
    if solution.polished is not None and problem.data.groups is not None:
        messages.append(GROUPS_WARNING)
    return status, tuple(messages)


def spectrum_findings(spectrum: FloatArray, n_components: int) -> list[tuple[Status, str]]:
    """Check that as many directions stand out from noise as there are components."""
    # spectrum: (n_features,)
    n_visible = int(np.sum(spectrum > COUNTED_EIGENVALUE))
    if n_visible >= min(n_components, len(spectrum)):
        return []
    message = (
        f"Only {n_visible} of {n_components} directions stand out from noise in the spectrum "
        "of the moments. Components may be parallel, too small or too many. Use more rows or "
        "fewer components, and compare starts."
    )
    return [(Status.WEAK_SIGNAL, message)]


def error_findings(errors: FloatArray) -> list[tuple[Status, str]]:
    """Check that the directions are known well enough."""
    # errors: (n_components,)
    if errors.max() <= LARGEST_ERROR:
        return []
    message = (  # also if an error is NaN
        f"A direction has a standard error of {errors.max():.0f} degrees. Treat it as a guess, "
        "or use more rows or fewer components."
    )
    return [(Status.WEAK_SIGNAL, message)]


def agreement_findings(
    moments: Moments, directions: FloatArray, errors: FloatArray
) -> list[tuple[Status, str]]:
    """Check that the moments show directions, and none outside the span of those fitted."""
    # directions: whitened, (n_features, n_components), errors: (n_components,)
    if moments.spectrum[0] <= COUNTED_EIGENVALUE:  # components may fit noise closely
        return spectrum_findings(moments.spectrum, len(errors))
    outside = moments.outside(directions)
    # Directions that are slightly off leave a share of the largest eigenvalue outside.
    angle = np.radians(min(2.0 * float(errors.max()), 90.0))
    if not outside > LARGEST_OUTSIDE + np.sin(angle) ** 2 * moments.spectrum[0]:
        return []
    message = (
        f"The moments show a direction that the fit lacks (eigenvalue {outside:.1f} outside the "
        f"span of its directions, above {LARGEST_OUTSIDE}). There may be more components, the "
        "density of the input may not fit, or this may be a local optimum. Compare starts."
    )
    return [(Status.MISFIT, message)]


def _likelihood_findings(polished: PolishedFit) -> list[tuple[Status, str]]:
    """Check that the polished fit is an interior maximum, fits, and has distinct components."""
    findings = []
    n_components = polished.parameters.n_components
    covariance = np.linalg.pinv(polished.information, hermitian=True)
    order = np.argsort(-polished.parameters.weights, kind="stable")
    pair = _same_components(polished.parameters, covariance, order)
    if pair is not None:
        message = (
            f"Components {pair[0]} and {pair[1]} (by decreasing weight) are the same to within "
            "their standard errors. One component may be split in two. Use fewer components."
        )
        findings.append((Status.NOT_IDENTIFIED, message))
    for place in _components_without_slopes(polished.parameters, covariance, order):
        message = (
            f"The coefficients of component {place} (by decreasing weight) are zero to within "
            "their standard errors: it has no direction. Use more rows or fewer components."
        )
        findings.append((Status.WEAK_SIGNAL, message))
    if polished.misfit > LARGEST_MISFIT:
        noun = "component" if n_components == 1 else "components"
        message = (
            f"The information-matrix test rejects the fit (statistic {polished.misfit:.1f}, above "
            f"{LARGEST_MISFIT}). The data may have more than {n_components} {noun} or need "
            "another family, or this may be a local optimum. Try more components or another family."
        )
        findings.append((Status.MISFIT, message))
    for bound in polished.bounds:
        message = (
            f"The likelihood rises towards the boundary of the parameter space ({bound}). "
            f"{REMEDIES[bound.split(' of ')[0]]}."
        )
        findings.append((Status.WEAK_SIGNAL, message))
    if not polished.has_converged:
        message = "The polish stopped before it converged. Use the estimate as a start only."
        findings.append((Status.NOT_CONVERGED, message))
    return findings


def _components_without_slopes(
    parameters: MixtureParameters, covariance: FloatArray, order: NDArray[np.intp]
) -> list[int]:
    """Find components whose coefficients are noise, numbered by decreasing weight."""
    size, p = component_size(parameters), parameters.n_features
    limit, found = float(chi2.ppf(SAME_COMPONENT, p)), []
    for place, k in enumerate(order):
        slopes, at = parameters.coefficients[:, k], slice(k * size, k * size + p)
        if slopes @ np.linalg.pinv(covariance[at, at], hermitian=True) @ slopes < limit:
            found.append(place)
    return found


def _same_components(
    parameters: MixtureParameters, covariance: FloatArray, order: NDArray[np.intp]
) -> tuple[int, int] | None:
    """Find two components that differ by no more than noise, numbered by decreasing weight."""
    size, p = component_size(parameters), parameters.n_features
    columns = np.vstack([parameters.coefficients, parameters.biases])
    limit = float(chi2.ppf(SAME_COMPONENT, p + 1))
    for first, second in combinations(range(len(order)), 2):
        a, b = int(order[first]), int(order[second])
        rows_a, rows_b = (np.arange(k * size, k * size + p + 1) for k in (a, b))
        spread = covariance[np.ix_(rows_a, rows_a)] + covariance[np.ix_(rows_b, rows_b)]
        cross = covariance[np.ix_(rows_a, rows_b)]
        difference = columns[:, a] - columns[:, b]
        inverse = np.linalg.pinv(spread - cross - cross.T, hermitian=True)
        if difference @ inverse @ difference < limit:
            return first, second
    return None


def with_input_findings(problem: EstimationProblem, result: MomentEstimate) -> MomentEstimate:
    """Add warnings about the input to an estimate, and update its status."""
    warnings = list(result.warnings)
    status = result.status
    if problem.block is not None:
        discrete = name_discrete(problem.data.feature_names, problem.block.kinds)
        kept = problem.block.problem.data.feature_names
        warnings.append(
            f"Discrete columns have no score function: {discrete}. The moments use the continuous "
            f"columns ({', '.join(kept)}), conditional on the discrete ones; the likelihood then "
            "uses all columns."
        )
    choice = problem.choice
    if choice is not None and result.method != "stacked":
        kinds = describe_discrete_columns(sampled_inputs(problem.data))
        discrete = name_discrete(problem.data.feature_names, kinds)
        if discrete:
            warnings.append(
                "Discrete columns have no score function, but the third moment treats them as "
                f"continuous: {discrete}. Use method='stacked', which handles them separately."
            )
            status = Status.INPUT_ASSUMPTION if status is Status.OK else status
    if choice is not None:
        check = choice.chosen.check
        # A boundary does no harm if all identities hold: clusters can look like one.
        has_failed = not all(identity.passed for identity in check.identities)
        is_alone = result.log_likelihood is None
        if has_failed and (is_alone or check.status is SteinStatus.BOUNDARY):
            warnings.append(f"The input violates an assumption of the moments: {check.message}")
            status = Status.INPUT_ASSUMPTION if status is Status.OK else status
    return replace(result, warnings=tuple(warnings), status=status, input_choice=choice)


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
        n_functions=len(fit.moments.pieces[0].function_mean),
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
        return _bic(solutions[number], problem.data.total_weight)

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
