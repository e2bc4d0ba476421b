"""Turn the end of a climb into an `EMFit` in the user's units.

A climb ends in standardised coordinates. Here its components are sorted by decreasing weight
(unless weights or directions are fixed), its parameters are mapped to the user's units, and
standard errors, active bounds, status and warnings are added.
"""

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
    coinciding_components,
    curved_sums,
    free_basis,
    gated_laplace_of,
    laplace_of,
    standardised_errors,
)
from moment_init.em.prediction import in_users_order, membership
from moment_init.em.problem import EMProblem, parameters_per_response
from moment_init.em.result import EMFit, FittedOptimum
from moment_init.em.runs import (
    Optimum,
    Runs,
    is_interior,
    is_limiting_family,
    is_same_optimum,
)
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.gate import pack_gate
from moment_init.likelihood.parameters import (
    ActiveBound,
    MixtureParameters,
    bound_parts,
    component_size,
    component_vectors,
    parameter_count,
)
from moment_init.likelihood.posterior import (
    doubles_per_unit,
    posterior_of_block,
    responsibilities,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.results import Status

IndexArray = NDArray[np.intp]

_MEANINGS = {
    "weight": "is empty: its weight is at the lower bound, a tenth of a row or less. Its other "
    "parameters are meaningless. Use fewer components.",
    "dispersion ratio": "has collapsed onto a few rows: the ratio of its standard deviation to "
    "the largest one is at the lower bound, `min_dispersion_ratio`. Below it the likelihood is "
    "unbounded. Use fewer components, shared='dispersion', or check for duplicated rows.",
    "dispersion": "has a dispersion at the end of its range: it fits its rows without error, or "
    "they vary without limit. Check for duplicated rows, or use fewer components.",
    "gate covariance": "has gating covariates that hardly vary: in some direction the ratio of "
    "their standard deviation to that of all rows is at the lower bound, `min_dispersion_ratio`. "
    "Below it the likelihood may be unbounded. Use fewer components, gate='softmax', or a smaller "
    "ratio if such a cluster is real.",
    "gate slope": "is separated from the others by the gating covariates: its gate slope is at the "
    "upper bound and would grow without limit. Use fewer gating covariates or components.",
    "length": "has separated rows: its linear predictor is at the upper bound, beyond which the "
    "fit hardly changes. Its coefficients would grow without limit. Use fewer components or "
    "columns.",
}
"""What it means for a component that the maximum lies on a bound, by kind of bound."""


class _Findings(NamedTuple):
    """What is known about a maximum, with its components in their final order."""

    at: MixtureParameters  # the maximum, in standardised coordinates
    laplace: LaplaceApproximation
    flat: tuple[str, ...]  # warnings about singular information
    shares: FloatArray  # responsibilities; (n_obs, n_components)
    bounds: tuple[str, ...]  # labels of the active bounds
    log_jacobian: float  # subtracted from log-likelihoods for the user's units
    entropy: float  # of the responsibilities
    # standard errors of the standardised parameters, in the order of the end of the climb, and its
    # parameters
    errors: FloatArray
    # pairs of components between which the slopes of the gate are not determined
    steep: tuple[tuple[int, int], ...] = ()


def assemble_fit(
    problem: EMProblem,
    data: RegressionData,
    end: MaximiseResult,
    runs: Runs,
) -> EMFit:
    """Assemble the result of a fit with a softmax gate or without a gate."""
    order = _component_order(problem, end.parameters)
    at = end.parameters.reorder(order)
    laplace, flat = laplace_of(problem, end, order)
    shares = problem.rows.column(_user_shares, problem.family, at, width=at.n_components)
    # not those of `at`: slopes of the gate are relative to the last component, and bounded as such
    bounds = _reordered_bounds(active_bounds_of(problem, end.parameters), order)
    errors = fit_errors(problem, end)
    steep = _undetermined_gates(end.parameters, errors, order)
    errors = errors[_vector_order(at, order)]
    entropy, jacobian = _entropy(problem, at), problem.log_jacobian
    findings = _Findings(at, laplace, flat, shares, bounds, jacobian, entropy, errors, steep)
    return _assembled(problem, data, end, runs, findings)


def assemble_gated_fit(
    gated: GatedProblem, data: RegressionData, run: GatedRun, runs: Runs
) -> EMFit:
    """Assemble the result of a fit with a Gaussian gate."""
    order = _component_order(gated, run.parameters)
    at = run.at.reorder(order)
    laplace, flat = gated_laplace_of(gated, run, order)
    logit = at.as_logit
    shares = gated.rows.column(_user_shares, gated.family, logit, width=logit.n_components)
    active = gated.likelihood(at.mixture).active(at)
    bounds = tuple(dict.fromkeys(bound.label for bound in active))
    likelihood = gated.likelihood(run.at.mixture)
    sums = run.sums
    if sums.missing_information is None:
        sums = likelihood.sums(run.at, missing=True)
    errors = standardised_errors(sums, likelihood.constraint, likelihood.active(run.at))
    errors = errors[_vector_order(at.mixture, order)]
    entropy, jacobian = _entropy(gated, logit), gated.log_jacobian
    findings = _Findings(at.mixture, laplace, flat, shares, bounds, jacobian, entropy, errors)
    fit = _assembled(gated, data, run, runs, findings)
    coordinates = gated.gating
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
    runs: Runs,
    findings: "_Findings",
) -> EMFit:
    at, laplace, shares = findings.at, findings.laplace, findings.shares
    bounds, log_jacobian = findings.bounds, findings.log_jacobian
    user = _user_parameters(problem, at)
    gate, prior = problem.gate_coordinates, problem.prior
    status, messages = _judge(problem, data, end, findings, runs, user)
    names, classes = data.response_names, data.classes
    starts = tuple(
        replace(start, bounds=_named_bounds(start.bounds, names)) for start in runs.records
    )
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
        responsibilities=shares,
        laplace=laplace,
        n_parameters=_free_count(problem, at),
        n_obs=data.n_obs,
        n_units=problem.rows.total_units,
        entropy=findings.entropy,
        family=problem.family.name,
        link=problem.family.link_name,
        feature_names=data.feature_names,
        gate_names=() if gate is None else gate.names,
        status=status,
        warnings=messages,
        bounds=_named_bounds(bounds, names),
        response_names=names,
        classes=classes,
        origin=runs.origin,
        unseen_mass=runs.unseen_mass,
        log_posterior=None if prior is None else end.log_posterior - log_jacobian,
        priors=None if prior is None else prior.description,
        optima=_optima(problem, data, end, runs),
    )


MOST_OPTIMA = 10
"""Largest number of optima that a fit keeps."""


def _optima(
    problem: EMProblem, data: RegressionData, end: MaximiseResult, runs: Runs
) -> tuple[FittedOptimum, ...]:
    """The fit, and the other optima that starts reached, the one to return first."""
    best = Optimum(end, runs.origin, is_interior(problem, end), None)
    distinct = [best]
    for optimum in runs.ranked if runs.refined is None else runs.refined:
        same = [each for each in distinct if is_same_optimum(problem, each.run, optimum.run)]
        if same:
            same[0].n_reached += optimum.n_reached
        elif len(distinct) < MOST_OPTIMA:
            distinct.append(replace(optimum))
    return tuple(_fitted_optimum(problem, data, optimum) for optimum in distinct)


def _fitted_optimum(problem: EMProblem, data: RegressionData, optimum: Optimum) -> FittedOptimum:
    """Map an optimum to the user's units."""
    run, where, gaussian = optimum.run, problem.gate_coordinates, None
    order = _component_order(problem, run.parameters)
    at = run.parameters.reorder(order)
    if isinstance(problem, GatedProblem) and isinstance(run, GatedRun):
        gated, where = run.at.reorder(order), problem.gating
        at, gaussian = gated.mixture, gated.gate.rescale(where.mean, where.scales)
        active = problem.likelihood(run.at.mixture).active(run.at)
    else:
        active = active_bounds_of(problem, run.parameters)
    user = _user_parameters(problem, at)
    has_prior, jacobian = problem.prior is not None, problem.log_jacobian
    return FittedOptimum(
        user.coefficients,
        user.biases,
        at.weights,
        user.dispersion,
        user.gate,
        gate_centre=None if where is None else where.mean,
        gate_means=None if gaussian is None else gaussian.means,
        gate_covariances=None if gaussian is None else gaussian.covariances,
        feature_names=data.feature_names,
        response_names=data.response_names,
        log_likelihood=run.log_likelihood - jacobian,
        log_posterior=run.log_posterior - jacobian if has_prior else None,
        log_mass=np.nan if active or gaussian is not None else _log_mass(problem, run),
        n_reached=optimum.n_reached,
        origin=optimum.origin,
        bounds=_named_bounds(_reordered_bounds(active, order), data.response_names),
    )


def _log_mass(problem: EMProblem, run: MaximiseResult) -> float:
    """Log of the integral of likelihood times prior near an optimum; NaN without a prior.

    The coordinates of the climb are the same for all optima, and so is the number of labellings.
    """
    if problem.prior is None:
        return float("nan")
    basis = free_basis(problem.constraint(run.parameters), [], parameter_count(run.parameters))
    information = basis.T @ curved_sums(problem, run).information() @ basis
    eigenvalues = np.linalg.eigvalsh(information / (2.0 * np.pi))
    if eigenvalues[0] <= 0.0:
        return float("nan")
    log_volume = -0.5 * float(np.log(eigenvalues).sum())
    return run.log_posterior - problem.log_jacobian + log_volume


def _component_order(problem: EMProblem, parameters: MixtureParameters) -> IndexArray:
    if problem.restrictions.is_labelled:
        return np.arange(parameters.n_components)
    return np.argsort(-parameters.weights, kind="stable")


def _user_parameters(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """Map parameters to the user's units; with fixed directions, expand them to all columns."""
    user = problem.to_user(parameters)
    directions = problem.restrictions.directions
    if directions is None:
        return user
    return replace(user, coefficients=directions * np.diag(user.coefficients))


def _gate_biases(
    weights: FloatArray, gate: FloatArray | None, centre: FloatArray
) -> FloatArray | None:
    """Shift logits from the mean of the gating covariates to zero, without forming odds."""
    if gate is None:
        return None
    logits = np.log(weights) - centre @ gate
    return np.asarray(logits - logits[-1])


def _free_count(problem: EMProblem, parameters: MixtureParameters) -> int:
    constraint = problem.constraint(parameters)
    return parameter_count(parameters) if constraint is None else constraint.n_free


def _user_shares(
    rows: LikelihoodRows, family: AnyFamily, parameters: MixtureParameters
) -> FloatArray:
    """Responsibilities of rows in the user's order, (n_obs, n_components)."""
    return in_users_order(responsibilities(family, rows, parameters), rows.order)


def _entropy(problem: EMProblem, at: MixtureParameters) -> float:
    """Entropy of the responsibilities of all groups, or of rows by their weight."""
    doubles = doubles_per_unit(problem.rows, at)
    return float(problem.rows.sum(_entropy_sum, problem.family, at, doubles=doubles)[0])


def _entropy_sum(
    rows: LikelihoodRows, family: AnyFamily, parameters: MixtureParameters, units: slice
) -> tuple[FloatArray, ...]:
    """Sum the entropy of the responsibilities of a block."""
    block = posterior_of_block(family, rows, parameters, units)
    entropies = -xlogy(block.responsibilities, block.responsibilities).sum(axis=0)
    return (np.asarray(entropies @ block.unit_weight),)


def convergence_message(end: MaximiseResult) -> str:
    """Return the warning for a run that did not converge."""
    return (
        f"The search did not converge ({end.ending} after {end.n_iter} iterations): the "
        "log-likelihood may still rise. Allow more iterations (`max_iter`) or use fewer components."
    )


def fit_errors(problem: EMProblem, end: MaximiseResult) -> FloatArray:
    """Standard errors of the standardised parameters at the end of a climb."""
    active = active_bounds_of(problem, end.parameters)
    return standardised_errors(
        curved_sums(problem, end), problem.constraint(end.parameters), active
    )


def _vector_order(parameters: MixtureParameters, order: IndexArray) -> IndexArray:
    """Places in the vector of the components in another order; without the logits."""
    # order: (n_components,) -> (n_components * q,)
    size = component_size(parameters)
    return np.asarray((order[:, None] * size + np.arange(size)).ravel())


def _reordered_bounds(active: list[ActiveBound], order: IndexArray) -> tuple[str, ...]:
    """Labels of active bounds, with the numbers of the components in another order."""
    # order: (n_components,)
    place = np.argsort(order)
    labels = []
    for bound in active:
        _, component, _ = bound_parts(bound.label)
        number = f" of component {component}"
        labels.append(bound.label.replace(number, f" of component {place[component]}", 1))
    return tuple(sorted(labels))


def _undetermined_gates(
    parameters: MixtureParameters, errors: FloatArray, order: IndexArray
) -> tuple[tuple[int, int], ...]:
    """Pairs of components, by their final numbers, whose gate has run away."""
    # errors: (n_parameters,), order: (n_components,)
    if parameters.gate is None or parameters.n_components == 1:
        return ()
    place, last = np.argsort(order), parameters.n_components - 1
    logits = errors[parameters.n_components * component_size(parameters) :]
    slope_errors = logits.reshape(last, -1)[:, 1:].T  # (n_gate, n_components - 1)
    is_vague = np.abs(parameters.gate[:, :-1]) < DETERMINED * slope_errors
    has_run_away = ((slope_errors > ENORMOUS_ERROR) & is_vague).any(axis=0)
    pairs = [sorted((int(place[j]), int(place[last]))) for j in np.flatnonzero(has_run_away)]
    return tuple((first, second) for first, second in sorted(pairs))


ENORMOUS_ERROR = 10.0
"""Standard error of a standardised parameter beyond which it has run away: ten standard deviations
of a real response, or a factor of e^10 in a mean or in odds, for each one of a column."""

DETERMINED = 3.0
"""A parameter further than so many standard errors from zero is large, but determined."""


def _judge(
    problem: EMProblem,
    data: RegressionData,
    end: MaximiseResult,
    findings: _Findings,
    runs: Runs,
    user: MixtureParameters,
) -> tuple[Status, tuple[str, ...]]:
    """Return the status of the fit and the warnings that explain it."""
    bounds, flat = findings.bounds, findings.flat
    at_limit = [bound for bound in bounds if is_limiting_family(problem, findings.at, bound)]
    limits = _simpler_families(findings.at, findings.errors, problem, bounds)
    messages = [_at_bound(bound, data, is_limit=bound in at_limit) for bound in bounds]
    messages += [_at_bound(limit, data, is_limit=True) for limit in limits]
    if problem.prior is None and len(at_limit) < len(bounds):
        messages.append("Priors keep parameters off their bounds: try priors='default'.")
    doubts = [*flat]
    if len(at_limit) == len(bounds):
        counts = end.sums.row_counts[_component_order(problem, end.parameters)]
        doubts += _doubts(problem, findings, user, counts)
    status = Status.OK
    if doubts or len(at_limit) < len(bounds):
        status = Status.NOT_IDENTIFIED
    unexplored = _unexplored(runs)
    if unexplored and status is Status.OK:
        status = Status.NOT_EXPLORED
    if not runs.has_signal:
        doubts.append(
            "No direction stands out from noise in the moments: this start is no better than a "
            "random one. Use init='search', or more rows."
        )
        status = Status.WEAK_SIGNAL if status is Status.OK else status
    if not end.converged:
        status = Status.NOT_CONVERGED
        messages.insert(0, convergence_message(end))
    return status, (*messages, *doubts, *unexplored)


def _simpler_families(
    at: MixtureParameters, errors: FloatArray, problem: EMProblem, bounds: tuple[str, ...]
) -> list[str]:
    """Labels of dispersions that the data do not tell from the upper end of their range.

    A climb may end before the bound, because the likelihood hardly rises any more.
    """
    # errors: (n_components * size,)
    layout, r = at.layout, at.n_components
    by_component = errors.reshape(r, layout.size)
    labels = []
    for predictor, place in zip(layout.dispersed, layout.dispersions, strict=True):
        is_bounded = problem.family.predictor_families[predictor].deviation_power is None
        of_response = f" of response {predictor}" if at.n_predictors > 1 else ""
        for j in np.flatnonzero(is_bounded & (by_component[:, place] > ENORMOUS_ERROR)):
            labels.append(f"dispersion of component {j}{of_response}")
    return [label for label in labels if label not in bounds]


def _doubts(
    problem: EMProblem, findings: _Findings, user: MixtureParameters, counts: FloatArray
) -> list[str]:
    """Say which components of an interior maximum are not what they seem."""
    # counts: expected number of rows of each component; (n_components,)
    messages = []
    at, layout, r = findings.at, findings.at.layout, findings.at.n_components
    errors = findings.errors.reshape(r, layout.size)
    is_vague = np.abs(component_vectors(at)) < DETERMINED * errors
    has_run_away = (errors > ENORMOUS_ERROR) & is_vague
    for predictor, place in zip(layout.dispersed, layout.dispersions, strict=True):
        # counts that are not overdispersed: the dispersion is large, and how large matters not
        if problem.family.predictor_families[predictor].deviation_power is None:
            has_run_away[:, place] = False
    for j in np.flatnonzero(has_run_away.any(axis=1)):
        messages.append(
            f"A parameter of component {j} has an enormous standard error: the data do not "
            "determine it, and it may have run away. Use fewer components or columns."
        )
    messages += [
        f"The gate between components {j} and {k} is nearly a jump: a slope has an enormous "
        "standard error and may have run away. Use fewer gating covariates or components, or "
        "priors='default'."
        for j, k in findings.steep
    ]
    size = parameters_per_response(problem.family, at.n_features)
    for j in np.flatnonzero(counts <= size):
        messages.append(
            f"Component {j} has {counts[j]:.1f} rows for {size} parameters: it fits them, not a "
            "relation. Use fewer components."
        )
    for j in np.flatnonzero(_has_nearly_collapsed(problem, at, counts, size) & (counts > size)):
        messages.append(
            f"The variance of component {j} has nearly collapsed, onto {counts[j]:.1f} rows for "
            f"{size} parameters: so few rows lie close to some line by chance. Use fewer "
            "components, shared='dispersion' or priors='default'."
        )
    if problem.restrictions.directions is None:
        runaways = set(np.flatnonzero(has_run_away.any(axis=1)).tolist())
        messages += [
            f"Components {j} and {k} coincide within their standard errors: they may be one "
            "component cut in two. Use fewer components."
            for j, k in coinciding_components(user, findings.laplace)
            if not runaways & {j, k}
        ]
    return messages


SMALL_DEVIATION, FEW_ROWS = 0.25, 2.0
"""A variance has nearly collapsed if the standard deviation is below this share of the largest one,
and there are at most so many rows per parameter. Of 40 rows a subset of 6 that deviates from some
line by a quarter of the others' deviation is sure to exist: one of 130 subsets does by chance."""


def _has_nearly_collapsed(
    problem: EMProblem, at: MixtureParameters, counts: FloatArray, size: int
) -> NDArray[np.bool_]:
    """Whether a few rows close to each other by chance may be all of a component."""
    # counts: (n_components,) -> (n_components,)
    is_small = np.zeros(len(counts), dtype=bool)
    if at.spreads is None or problem.prior is not None:
        return is_small
    for family, spreads in zip(problem.family.predictor_families, at.spreads, strict=True):
        if family.deviation_power is not None:
            deviations = spreads**family.deviation_power
            is_small |= deviations < SMALL_DEVIATION * deviations.max()
    return is_small & (counts <= FEW_ROWS * size)


def _unexplored(runs: Runs) -> list[str]:
    """Say that a better optimum is likely; empty if it is not, or if there was no search."""
    unseen = runs.unseen_mass
    if unseen is None or not runs.is_search or not runs.optima:
        return []
    remedy = "Ask for a longer search by `max_seconds` or `n_starts`."
    messages = []
    if unseen.mass >= 1.0:
        messages.append(f"{unseen.outcome}: too few to tell what is unseen. {remedy}")
    elif not unseen.is_explored:
        messages.append(
            f"{unseen.outcome}: as many again would find a better one with probability "
            f"{unseen.better_in_repetition:.2g}. {remedy}"
        )
    elif unseen.n_best < 2:
        messages.append(f"Only one start reached the best optimum by itself. {remedy}")
    return messages


def _at_bound(bound: str, data: RegressionData, *, is_limit: bool) -> str:
    """Return the warning for a maximum on a bound."""
    kind, component, predictor = bound_parts(bound)
    response = ""
    if predictor is not None:
        noun = "response" if data.classes is None else "class"
        response = f", {noun} {data.response_names[predictor]!r},"
    if is_limit:
        return (
            f"Component {component}{response} is Poisson: its counts are not overdispersed, and "
            "how large its dispersion is means nothing. At the upper end of its range it is "
            "treated as fixed, with a standard error of zero."
        )
    return f"Component {component}{response} {_MEANINGS[kind]}"


def _named_bounds(bounds: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Replace the numbers of responses or classes in the labels of bounds by their names."""
    result = []
    for bound in bounds:
        kind, component, predictor = bound_parts(bound)
        end = "" if predictor is None else f", {names[predictor]}"
        result.append(f"{kind} of component {component}{end}")
    return tuple(result)


def with_all_rows(fit: EMFit, data: RegressionData) -> EMFit:
    """Compute the responsibilities of all rows, including rows of weight zero."""
    shares = data.column(_membership_of_rows, fit, width=len(fit.weights))
    return replace(fit, responsibilities=shares, n_obs=data.n_obs)


def _membership_of_rows(data: RegressionData, fit: EMFit) -> FloatArray:
    """Responsibilities of rows in the user's units, (n_obs, n_components)."""
    response = data.y
    if data.classes is not None:
        response = data.classes[response.astype(np.intp)]
    has_weight = data.groups is not None and data.sample_weight.any()
    return membership(
        fit,
        data.X,
        response,
        offset=data.offset,
        n_trials=data.n_trials,
        gating=data.gating,
        groups=data.groups,
        sample_weight=data.sample_weight if has_weight else None,
    )
