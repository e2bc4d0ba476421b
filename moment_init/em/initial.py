"""Starts that a user gives: an estimate, a fit, arrays, or responsibilities."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.em.first_steps import fit_responsibilities, fit_single
from moment_init.em.problem import EMProblem, Restrictions
from moment_init.em.result import EMFit
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.real_arrays import as_float_array
from moment_init.results import MomentEstimate

__all__ = ["given_starts"]

FloatArray = NDArray[np.float64]
Start = tuple[str, MixtureParameters]

_EXPECTED = (
    "`init` must be 'tensor', 'random', a MomentEstimate, an EMFit, a tuple (coefficients, biases, "
    "weights[, dispersion]) or responsibilities of shape (n_obs, n_components)"
)


def given_starts(
    problem: EMProblem,
    init: Any,
    counted: NDArray[np.bool_] | None = None,
    feature_names: tuple[str, ...] | None = None,
) -> list[Start]:
    """Turn what was given into starts.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    init : MomentEstimate, EMFit, tuple of arrays, or array
        What was given.
    counted : numpy.ndarray of bool, shape (n_obs,), optional
        Which of the user's rows the problem has, for responsibilities; all of them by default.
    feature_names : tuple of str, optional
        Names of the columns: a fit to the same ones in another order is matched by name.

    Returns
    -------
    list of tuple
        Origins and standardised parameters, the given one first.

    Raises
    ------
    TypeError
        If it is nothing from which to start.
    ValueError
        If it is of another number of features or components, or not finite.
    """
    if isinstance(init, MomentEstimate):
        return _from_estimate(problem, init)
    if isinstance(init, EMFit):
        own = _from_fit(problem, init, feature_names)
        return [("given", _standardised(problem, own, has_labels=False))]
    if isinstance(init, tuple | list) and len(init) in (3, 4):
        return [("given", _standardised(problem, _from_arrays(init)))]
    if hasattr(init, "__array__"):
        shares = np.asarray(init)
        return [("given", _from_responsibilities(problem, shares, counted))]
    raise TypeError(f"{_EXPECTED}; got {type(init).__name__}.")


def _from_estimate(problem: EMProblem, estimate: MomentEstimate) -> list[Start]:
    """The estimate and its candidates."""
    starts = []
    coefficients, biases, weights = estimate.coefficients, estimate.biases, estimate.weights
    if coefficients is not None and biases is not None and weights is not None:
        own = MixtureParameters(coefficients, biases, weights, estimate.dispersion)
        starts.append(("estimate", _standardised(problem, own)))
    starts += [
        (f"tensor {rank}", _standardised(problem, candidate))
        for rank, candidate in enumerate(estimate.candidates, start=1)
    ]
    if not starts:
        raise ValueError(
            "`init` must be an estimate with scales, biases and weights; got one with directions "
            "only. Use method='stacked', or give its directions as `fixed_directions`."
        )
    return starts


def _from_fit(
    problem: EMProblem, fit: EMFit, feature_names: tuple[str, ...] | None
) -> MixtureParameters:
    """Parameters of a fit for these columns; without its gate where the problem has none."""
    parameters = fit.parameters
    if problem.rows.gate is None:
        parameters = replace(fit.centred_parameters, gate=None)
    own = fit.feature_names
    if feature_names is not None and sorted(own) == sorted(feature_names):
        order = [own.index(name) for name in feature_names]
        parameters = replace(parameters, coefficients=parameters.coefficients[order])
    return parameters


def _from_arrays(arrays: tuple[Any, ...] | list[Any]) -> MixtureParameters:
    try:
        parts = [None if part is None else as_float_array(part, "init") for part in arrays]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{_EXPECTED}; got a tuple of what are no arrays ({error}).") from error
    coefficients, biases, weights = parts[:3]
    if coefficients is None or biases is None or weights is None:
        raise TypeError(f"{_EXPECTED}; got None for one of the first three.")
    if weights.size and np.all(weights > 0):
        weights = weights / weights.sum()
    return MixtureParameters(coefficients, biases, weights, parts[3] if len(parts) == 4 else None)


def _from_responsibilities(
    problem: EMProblem, shares: NDArray[np.generic], counted: NDArray[np.bool_] | None
) -> MixtureParameters:
    shares = _checked_shares(problem, shares, counted)
    ordered = shares[slice(None) if problem.order is None else problem.order]
    starts = problem.rows.group_starts
    if starts is not None:  # a group has one component: the mean over its rows
        sizes = np.diff(np.append(starts, len(ordered)))
        ordered = np.add.reduceat(ordered, starts, axis=0) / sizes[:, None]
    # components have the labels that were given: restrictions come after
    free = fit_responsibilities(replace(problem, restrictions=Restrictions()), ordered)
    if problem.restrictions.directions is not None:
        free = replace(free, coefficients=np.diag(np.diag(free.coefficients)))
    return problem.admit(_with_held_weights(problem, free))


def _checked_shares(
    problem: EMProblem, shares: NDArray[np.generic], counted: NDArray[np.bool_] | None
) -> FloatArray:
    """Responsibilities of the rows that count, each row's sum one."""
    n_obs, r = problem.rows.n_obs if counted is None else len(counted), problem.n_components
    is_numeric = shares.dtype.kind in "biuf"
    if shares.shape != (n_obs, r) or not is_numeric or not np.all(np.isfinite(shares)):
        raise ValueError(
            f"{_EXPECTED}; got an array of shape {shares.shape} and type {shares.dtype} where "
            f"({n_obs}, {r}) with finite entries is needed."
        )
    values = shares.astype(np.float64)[slice(None) if counted is None else counted]
    totals = values.sum(axis=1, keepdims=True)
    if values.min() < 0.0 or totals.min() <= 0.0 or values.sum(axis=0).min() <= 0.0:
        raise ValueError(
            "`init` as responsibilities must not be negative, and must give every row a component "
            "and every component a row; got negative entries, or a row or column of zeros."
        )
    return np.asarray(values / totals)


def _with_held_weights(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """The weights that are held, if any: given components keep their labels."""
    held = problem.restrictions.weights
    return parameters if held is None else replace(parameters, weights=held)


def _standardised(
    problem: EMProblem, parameters: MixtureParameters, *, has_labels: bool = True
) -> MixtureParameters:
    """Check the sizes and map from the user's units; a dispersion that is missing is filled in.

    Components that have no labels, as those of a fit, which are in order of weight, are matched to
    what is held.
    """
    parameters = _checked(problem, parameters)
    standardised = problem.to_standardised(_projected(problem, parameters))
    if problem.family.has_dispersion and parameters.dispersion is None:
        single = fit_single(problem).parameters.dispersion
        dispersion = np.repeat(np.asarray(single), problem.n_components)
        standardised = replace(standardised, dispersion=dispersion)
    return problem.admit(_with_held_weights(problem, standardised) if has_labels else standardised)


def _projected(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """With held directions, coefficients of the projected columns: lengths along the directions."""
    directions = problem.restrictions.directions
    if directions is None:
        return parameters
    lengths = np.einsum("dj,dj->j", directions, parameters.coefficients)
    return replace(parameters, coefficients=np.diag(lengths))


def _checked(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    directions = problem.restrictions.directions
    p = problem.rows.n_features if directions is None else directions.shape[0]
    r = problem.n_components
    wanted = {"coefficients": (p, r), "biases": (r,), "weights": (r,)}
    if parameters.dispersion is not None:
        wanted["dispersion"] = (r,)
    if parameters.gate is not None:
        wanted["gate"] = (problem.rows.n_gate, r)
    for name, shape in wanted.items():
        values = getattr(parameters, name)
        if values.shape != shape or not np.all(np.isfinite(values)):
            raise ValueError(
                f"`init` must have finite {name} of shape {shape}; got shape {values.shape}. "
                "Give a start for the same columns and number of components."
            )
    is_positive = bool(np.all(parameters.weights > 0.0))
    if parameters.dispersion is not None:
        is_positive = is_positive and bool(np.all(parameters.dispersion > 0.0))
    if not is_positive:
        raise ValueError("`init` must have positive weights and dispersion; got zero or less.")
    if not problem.family.has_dispersion and parameters.dispersion is not None:
        raise ValueError(
            f"`init` must not have a dispersion for family {problem.family.name!r}, which has none."
        )
    return parameters
