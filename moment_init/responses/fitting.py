"""`fit_em` for several responses: wires data, starts, climbs and the result."""

from dataclasses import replace
from typing import Any

import numpy as np

from moment_init.checks import (
    ConvergenceWarning,
    RandomSeed,
    as_float_array,
    make_generator,
    notify,
    validate_n_components,
)
from moment_init.data.blocks import single_threaded_blas
from moment_init.em.problem import validate_dispersion_ratio
from moment_init.em.runs import FitOptions, validate_options
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO
from moment_init.responses.assembly import JointEstimate, assemble_joint
from moment_init.responses.climbing import Climb, FreePoint, climb
from moment_init.responses.data import ResponsesData, validate_responses
from moment_init.responses.moments import find_directions, fit_along_directions
from moment_init.responses.parameters import JointParameters, JointProblem, pose_joint
from moment_init.responses.result import JointFit
from moment_init.responses.search import (
    JointSearch,
    Start,
    fit_pooled,
    fit_shares,
    run_given,
    run_random,
    search,
)

SEARCH_ROWS = 20_000
"""Rows that the search sees; its best end is climbed from on all rows."""


def fit_responses(
    X: Any,
    y: Any,
    n_components: Any,
    *,
    data_block: dict[str, Any],
    init: Any = "tensor",
    min_dispersion_ratio: Any = MIN_DISPERSION_RATIO,
    random_seed: RandomSeed = None,
    **options: Any,
) -> JointFit:
    """Fit a mixture to several responses, or to a response of several classes."""
    # X: (n_obs, n_features), y: (n_obs, n_responses)
    given = validate_responses(X, y, **data_block)
    data = given.drop_zero_weights()
    number = validate_n_components(n_components, data.n_obs)
    if isinstance(init, str) and init not in ("tensor", "random"):
        raise ValueError(f"`init` must be 'tensor' or 'random' if it is a word; got {init!r}.")
    limits = validate_options(**options)
    if limits.random_start != "assignment":
        raise ValueError(
            "`random_start` must be 'assignment' with several responses; got "
            f"{limits.random_start!r}. Leave it out."
        )
    ratio = validate_dispersion_ratio(min_dispersion_ratio)
    rng = make_generator(random_seed)
    with single_threaded_blas():
        problem = pose_joint(data, number, ratio)
        _require_rows(problem)
        found, end = _run(problem, data, given, init, limits, rng)
        fit = assemble_joint(problem, given, end, tuple(found.records))
    if not fit.converged:
        notify(fit.warnings[0], ConvergenceWarning)
    return fit


def _require_rows(problem: JointProblem) -> None:
    # Every predictor has rows of its own to be estimated from.
    n_free = problem.layout.size / problem.kind.n_predictors
    if problem.rows.n_obs < n_free:
        raise ValueError(
            "`X` must have at least as many rows of positive weight as each response has free "
            f"parameters ({int(np.ceil(n_free))}) in {problem.n_components} components; got "
            f"{problem.rows.n_obs}. Use fewer components or columns."
        )


def _run(
    problem: JointProblem,
    data: ResponsesData,
    given: ResponsesData,
    init: Any,
    options: FitOptions,
    rng: np.random.Generator,
) -> tuple[JointSearch, Climb[FreePoint]]:
    """Run what `init` asks for: every start, and the end of the best."""
    if not isinstance(init, str):
        found = run_given(problem, [_given_start(problem, given, init)], options)
        return found, _best(found)
    if init == "random":
        found = run_random(problem, options, rng)
        return found, _best(found)
    seeds = rng.spawn(2)
    sample = problem.sample(SEARCH_ROWS, rng)

    def from_moments() -> list[Start]:
        return moment_starts(problem, data, seeds[0])

    if options.max_iter == 0:
        found = run_given(problem, from_moments()[:1], options)
        return found, _best(found)
    found = search(sample, from_moments, options, seeds[1])
    best = _best(found)
    if sample is not problem:
        found.records = [replace(record, is_sampled=True) for record in found.records]
    start = FreePoint(problem, best.point.parameters)
    end = climb(start, max_steps=options.max_iter, tolerance=options.tolerance, em_steps=0)
    if sample is problem:
        # The last point of the search is the first of this climb, evaluated again.
        end = Climb(end.point, (*best.history[:-1], *end.history), end.status)
    return found, end


def moment_starts(
    problem: JointProblem, data: ResponsesData, rng: np.random.Generator
) -> list[Start]:
    """Mixtures of the moments: one direction for all responses of a component."""
    found = find_directions(data, problem, rng)
    few = problem.sample(SEARCH_ROWS, rng)
    ends = fit_along_directions(few, found.candidates, rng, max_steps=20)
    return [(f"tensor {index + 1}", end.point.parameters.free) for index, end in enumerate(ends)]


def _best(found: JointSearch) -> Climb[FreePoint]:
    if found.best is not None:
        return found.best
    first = found.records[0]
    raise ValueError(
        f"`init` must lead to a fit; got {len(found.records)} starts that all broke down, the "
        f"first ({first.origin}) with: {first.message} Check `X` and `y` for extreme values, or "
        "try another `init`."
    )


def _given_start(problem: JointProblem, given: ResponsesData, init: Any) -> Start:
    """A start of the user's, in standardised coordinates."""
    if isinstance(init, JointFit | JointEstimate):
        names = (init.kind.names, init.feature_names)
        if names != (problem.kind.names, given.feature_names):
            raise ValueError(
                "`init` must be of the same features and responses as the data; got one of "
                f"{names[1]} and {names[0]}."
            )
        return type(init).__name__, _checked(problem, init.parameters)
    if isinstance(init, tuple | list) and len(init) in (3, 4) and not np.isscalar(init[0]):
        arrays = [as_float_array(each, "init") for each in init]
        return "arrays", _checked(problem, JointParameters(*arrays))
    shares = as_float_array(init, "init")
    shape = (given.n_obs, problem.n_components)
    if shares.shape != shape or not np.isfinite(shares).all() or shares.min() < 0.0:
        raise ValueError(
            "`init` must be 'tensor', 'random', a JointFit, a JointEstimate, a tuple "
            "(coefficients, biases, weights[, dispersion]) or non-negative responsibilities of "
            f"shape {shape} for several responses; got {type(init).__name__} of shape "
            f"{shares.shape}."
        )
    kept = shares[given.sample_weight > 0.0]
    kept = kept / np.maximum(kept.sum(axis=1, keepdims=True), 1e-300)
    pooled = fit_pooled(problem)
    return "responsibilities", fit_shares(problem, np.ascontiguousarray(kept.T), pooled)


def _checked(problem: JointProblem, parameters: JointParameters) -> JointParameters:
    """Parameters in the user's units with the right shapes, standardised."""
    d, r, n_predictors = problem.rows.Z.shape[1], problem.n_components, problem.kind.n_predictors
    expected = {"coefficients": (d, r, n_predictors), "biases": (r, n_predictors), "weights": (r,)}
    needs_dispersion = any(problem.kind.has_dispersion)
    if needs_dispersion:
        expected["dispersion"] = (r, n_predictors)
    for name, shape in expected.items():
        value = getattr(parameters, name)
        if value is None or value.shape != shape:
            got = None if value is None else value.shape
            raise ValueError(f"`init`: {name} must have shape {shape}; got {got}.")
        read = value[:, np.array(problem.kind.has_dispersion)] if name == "dispersion" else value
        if not np.isfinite(read).all() or (name == "dispersion" and read.min() <= 0.0):
            rule = "finite and positive" if name == "dispersion" else "finite"
            raise ValueError(f"`init`: {name} must be {rule}; got {value.tolist()}.")
    if parameters.weights.min() <= 0.0 or abs(parameters.weights.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"`init`: weights must be positive and sum to one; got {parameters.weights.tolist()}."
        )
    if not needs_dispersion:
        parameters = replace(parameters, dispersion=None)
    return problem.to_standardised(parameters)
