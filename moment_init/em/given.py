"""Starting values that the user gives: an estimate, a fit, arrays or responsibilities."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_float_array
from moment_init.data.checking import RegressionData
from moment_init.em.gaussian_gate import GatedProblem
from moment_init.em.problem import EMProblem
from moment_init.em.result import EMFit
from moment_init.em.starts import Start, fit_responsibilities, fit_single, joined
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.moments.result import MomentEstimate

_EXPECTED = (
    "`init` must be 'search', 'tensor', 'random', a MomentEstimate, an EMFit, a tuple "
    "(coefficients, biases, weights[, dispersion]) or responsibilities of shape "
    "(n_obs, n_components)"
)


def given_starts(
    problem: EMProblem,
    init: Any,
    all_rows: RegressionData | None = None,
    feature_names: tuple[str, ...] | None = None,
    response_names: tuple[str, ...] = (),
) -> list[Start]:
    """Convert the user's `init` to starts in standardised coordinates."""
    refuse_draws(init)
    if isinstance(init, MomentEstimate):
        return _from_estimate(problem, init)
    if isinstance(init, EMFit):
        parameters = _from_fit(problem, init, feature_names, response_names)
        centre = None if parameters.gate is None else init.gate_centre
        start = _standardised(problem, parameters, has_labels=False, gate_centre=centre)
        if isinstance(problem, GatedProblem):
            start = replace(start, **_gate_of_fit(problem, init, start))
        return [("given", start)]
    if isinstance(init, tuple | list) and len(init) in (3, 4):
        return [("given", _standardised(problem, _from_arrays(init)))]
    if hasattr(init, "__array__"):
        shares = np.asarray(init)
        return [("given", _from_responsibilities(problem, shares, all_rows))]
    raise TypeError(f"{_EXPECTED}; got {type(init).__name__}.")


def refuse_draws(init: Any) -> None:
    """Raise for a DataTree: draws lack the state of their sampler, and are not one start."""
    if type(init).__name__ in ("DataTree", "Dataset"):
        raise TypeError(
            f"`init` must not be draws; got a {type(init).__name__}. A run cannot be continued, "
            "because a tree does not hold the state of its sampler. Sample again from a fit, "
            "`init=fit`, with more `draws`; `open_store` reads what a killed run has stored."
        )


def _from_estimate(problem: EMProblem, estimate: MomentEstimate) -> list[Start]:
    """Return starts from an estimate and its candidates."""
    starts = []
    coefficients, biases, weights = estimate.coefficients, estimate.biases, estimate.weights
    if coefficients is not None and biases is not None and weights is not None:
        parameters = MixtureParameters(coefficients, biases, weights, estimate.dispersion)
        starts.append(("estimate", _standardised(problem, parameters)))
    starts += [
        (f"tensor {rank}", _standardised(problem, candidate))
        for rank, candidate in enumerate(estimate.candidates, start=1)
    ]
    if not starts:
        raise ValueError(
            "`init` must be an estimate with scales, biases and weights; got one with directions "
            "only. Use method='stacked', or pass its directions as `fixed_directions`."
        )
    return starts


def _from_fit(
    problem: EMProblem,
    fit: EMFit,
    feature_names: tuple[str, ...] | None,
    response_names: tuple[str, ...],
) -> MixtureParameters:
    """Return the parameters of a fit for these columns; drop its gate if the problem has none.

    The weights are those at the centre of its gate; at covariates zero they may vanish.
    """
    parameters = fit.centred_parameters
    if problem.gate_coordinates is None:
        parameters = replace(parameters, gate=None)
    names = fit.feature_names
    if feature_names is not None and sorted(names) == sorted(feature_names):
        order = [names.index(name) for name in feature_names]
        parameters = replace(parameters, coefficients=parameters.coefficients[..., order, :])
    if parameters.n_predictors == 1:
        return parameters
    names = fit.response_names
    if sorted(names) != sorted(response_names):
        raise ValueError(
            "`init` must be a fit of the same responses or classes, "
            f"{', '.join(response_names) or 'one response'}; got one of {', '.join(names)}."
        )
    order, dispersion = [names.index(name) for name in response_names], parameters.dispersion
    return replace(
        parameters,
        coefficients=parameters.coefficients[order],
        biases=parameters.biases[order],
        dispersion=None if dispersion is None else dispersion[order],
    )


def _gate_of_fit(
    problem: GatedProblem, fit: EMFit, start: MixtureParameters
) -> dict[str, FloatArray]:
    """Gate and weights of a fit for a Gaussian gate; none if it has other gating covariates."""
    mean, scales = problem.gating.mean, problem.gating.scales
    gaussian = fit.gaussian_gate
    if gaussian is not None and gaussian.n_gate == problem.n_gate:
        return {"gate": gaussian.rescale(-mean / scales, 1 / scales).slopes}
    if fit.gate is None or fit.gate_centre is None or len(fit.gate) != problem.n_gate:
        return {}
    slopes = np.zeros((problem.rows.n_gate, problem.n_components))
    slopes[1 : 1 + problem.n_gate] = fit.gate * scales[:, None]
    odds = fit.weights * np.exp((mean - fit.gate_centre) @ fit.gate)
    return {"gate": slopes, "weights": odds / odds.sum()}


def _from_arrays(arrays: tuple[Any, ...] | list[Any]) -> MixtureParameters:
    try:
        parts = [None if part is None else as_float_array(part, "init") for part in arrays]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{_EXPECTED}; got a tuple with entries that are not arrays ({error})."
        ) from error
    coefficients, biases, weights = parts[:3]
    if coefficients is None or biases is None or weights is None:
        raise TypeError(f"{_EXPECTED}; got None for one of the first three entries.")
    if weights.size and np.all(weights > 0):
        weights = weights / weights.sum()
    return MixtureParameters(coefficients, biases, weights, parts[3] if len(parts) == 4 else None)


def _from_responsibilities(
    problem: EMProblem, shares: NDArray[np.generic], all_rows: RegressionData | None
) -> MixtureParameters:
    has_weight = None
    if all_rows is not None:
        all_rows = all_rows.whole("`init` must not be responsibilities")
        has_weight = np.asarray(all_rows.sample_weight != 0.0)
    shares = _checked_shares(problem, shares, has_weight)
    order = problem.rows.order
    ordered = shares[slice(None) if order is None else order]
    starts = problem.rows.group_starts
    if starts is not None:  # a group has one component: use the mean over its rows
        sizes = np.diff(np.append(starts, len(ordered)))
        ordered = np.add.reduceat(ordered, starts, axis=0) / sizes[:, None]
    fitted = fit_responsibilities(problem, ordered, is_exact=True)
    if isinstance(problem, GatedProblem):
        return problem.with_shares(fitted, ordered).as_logit
    return fitted


def _checked_shares(
    problem: EMProblem, shares: NDArray[np.generic], has_weight: NDArray[np.bool_] | None
) -> FloatArray:
    """Check responsibilities; return those of rows with positive weight, with sum one."""
    n_obs, r = problem.rows.n_obs if has_weight is None else len(has_weight), problem.n_components
    is_numeric = shares.dtype.kind in "biuf"
    if shares.shape != (n_obs, r) or not is_numeric or not np.all(np.isfinite(shares)):
        raise ValueError(
            f"{_EXPECTED}; got an array of shape {shares.shape} and type {shares.dtype}, but "
            f"shape ({n_obs}, {r}) with finite entries is needed."
        )
    values = shares.astype(np.float64)[slice(None) if has_weight is None else has_weight]
    totals = values.sum(axis=1, keepdims=True)
    if values.min() < 0.0 or totals.min() <= 0.0 or values.sum(axis=0).min() <= 0.0:
        raise ValueError(
            "`init` as responsibilities must not have negative entries, nor rows or columns of "
            "zeros; got at least one. Give every row a component, and every component a row."
        )
    return np.asarray(values / totals)


def _with_fixed_weights(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """Set the fixed weights, if any, without reordering the components."""
    fixed_weights = problem.restrictions.weights
    return parameters if fixed_weights is None else replace(parameters, weights=fixed_weights)


def _standardised(
    problem: EMProblem,
    parameters: MixtureParameters,
    *,
    has_labels: bool = True,
    gate_centre: FloatArray | None = None,
) -> MixtureParameters:
    """Check the shapes, standardise the parameters, and fill in a missing dispersion.

    Components without labels, such as those of a fit, which are sorted by weight, are matched to
    fixed weights or directions.
    """
    parameters = _checked(problem, parameters)
    standardised = problem.to_standardised(_projected(problem, parameters), gate_centre)
    if problem.family.has_dispersion and parameters.dispersion is None:
        r = problem.n_components
        single = joined([fit_single(problem).parameters] * r, np.full(r, 1 / r))
        standardised = replace(standardised, dispersion=single.dispersion)
    return problem.admit(_with_fixed_weights(problem, standardised) if has_labels else standardised)


def _projected(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """With fixed directions, replace coefficients by their lengths along these directions."""
    directions = problem.restrictions.directions
    if directions is None:
        return parameters
    lengths = np.einsum("dj,dj->j", directions, parameters.coefficients)
    return replace(parameters, coefficients=np.diag(lengths))


def _checked(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    directions, family = problem.restrictions.directions, problem.family
    p = problem.rows.n_features if directions is None else directions.shape[0]
    r = problem.n_components
    axis = () if family.n_predictors == 1 else (family.n_predictors,)
    wanted = {"coefficients": (*axis, p, r), "biases": (*axis, r), "weights": (r,)}
    if parameters.dispersion is not None:
        wanted["dispersion"] = (*axis, r)
    if parameters.gate is not None:
        wanted["gate"] = (problem.rows.n_gate, r)
    has_dispersion = np.array([member.has_dispersion for member in family.predictor_families])
    for name, shape in wanted.items():
        values = getattr(parameters, name)
        is_right = values.shape == shape
        if is_right and name == "dispersion" and family.has_dispersion:
            values = np.where(has_dispersion[:, None], values, 1.0)  # others need none
        if not is_right or not np.all(np.isfinite(values)):
            raise ValueError(
                f"`init` must have finite {name} of shape {shape}; got shape {values.shape}. "
                "Give a start for the same columns and number of components."
            )
    is_positive = bool(np.all(parameters.weights > 0.0))
    if parameters.spreads is not None:
        is_positive = is_positive and not np.any(parameters.spreads[has_dispersion] <= 0.0)
    if not is_positive:
        raise ValueError("`init` must have positive weights and dispersion; got zero or less.")
    if parameters.spreads is None:
        return parameters
    if not family.has_dispersion:
        raise ValueError(
            f"`init` must not have a dispersion for family {family.name!r}, which has none."
        )
    spreads = np.where(has_dispersion[:, None], parameters.spreads, np.nan)
    return replace(parameters, dispersion=spreads.reshape(parameters.biases.shape))
