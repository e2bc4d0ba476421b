"""`fit_em` on rows that are elsewhere: what differs from arrays in memory.

The search sees a sample of the rows in memory, the climb that follows sums over all of them where
they are. What belongs to single rows stays lazy.

A subsample of a Dask input, for samplers that need all their rows in memory at every step.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError, is_dask, notify
from moment_init.data.blocks import sample_rows, source_of
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.discrete_columns import find_discrete_columns
from moment_init.em import assembly
from moment_init.em.information import active_bounds_of, laplace_of
from moment_init.em.problem import EMProblem
from moment_init.em.result import EMFit
from moment_init.em.runs import Runs
from moment_init.em.search import search_units
from moment_init.em.starts import has_moments, tensor_starts
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.moments.result import MomentEstimate
from moment_init.moments.stacked import fit_stacked, single_mixture
from moment_init.row_sources.checking import dask_gating
from moment_init.row_sources.columns import MOST_HELD, RowColumn, map_columns
from moment_init.row_sources.posing import pose_dask
from moment_init.scores.gaussian import Gaussian

IndexArray = NDArray[np.intp]


def require_supported_fit(data: RegressionData, *, init: Any, gate: str) -> None:
    """Raise for what `fit_em` can do with arrays in memory only."""
    if source_of(data.X) is None:
        return
    about = f"for a Dask input of {data.n_obs} rows, which are not read whole"
    is_given = isinstance(init, MomentEstimate | EMFit | tuple | list)
    if not is_given and not (isinstance(init, str) and init in ("search", "tensor")):
        raise ValueError(
            f"`init` must be 'search', 'tensor', an estimate, a fit or parameters {about}; got "
            f"{init if isinstance(init, str) else type(init).__name__!r}. Fit a sample from it, "
            "and pass that fit."
        )
    if gate != "softmax":
        raise ValueError(f"`gate` must be 'softmax' {about}; got {gate!r}. Use it.")


def searched_rows(given: RegressionData, n_components: int) -> RegressionData:
    """Read rows into memory that a search would read whole."""
    if source_of(given.X) is None:
        return given
    most = 2 * search_units(given.family, given.n_features, n_components)
    if given.n_obs > most or given.X.size > MOST_HELD:
        return given
    return given.take(np.arange(given.n_obs))


def rows_with_weight(given: RegressionData) -> NDArray[np.bool_]:
    """Which of the rows count."""
    # -> (n_obs,)
    if source_of(given.X) is not None:
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(given.sample_weight != 0.0)


def drop_zero_weight_covariates(
    covariates: Any, data: RegressionData, has_weight: NDArray[np.bool_]
) -> Any:
    """Gating covariates of the rows that count."""
    # has_weight: (n_obs,)
    if covariates is None:
        return None
    values, names = covariates
    source = source_of(data.X)
    return (values[has_weight] if source is None else values.moved(source)), names


def moment_starts(
    problem: EMProblem, data: RegressionData, rng: np.random.Generator, *, is_forced: bool = False
) -> list[tuple[str, MixtureParameters]]:
    """Candidates of the moments, best first, of rows wherever they are."""
    if source_of(data.X) is None:
        return tensor_starts(problem, data, rng, is_forced=is_forced)
    if find_discrete_columns(data.X).any():
        return []
    if problem.restrictions.directions is not None or not has_moments(data, problem.n_components):
        return []
    model = Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names)
    try:
        fit = fit_stacked(pose_dask(data, model), problem.n_components, rng, is_polished=True)
    except IdentifiabilityError:
        return []
    starts = enumerate(map(single_mixture, fit.candidates), start=1)
    return [(f"tensor {rank}", start) for rank, start in starts]


def assemble_memory_or_dask(
    problem: EMProblem,
    given: RegressionData,
    data: RegressionData,
    end: MaximiseResult,
    runs: Runs,
) -> EMFit:
    """Put a result together: by `assemble_fit` in memory, elsewhere with a pass for the entropy."""
    if source_of(data.X) is None:
        return assembly.assemble_fit(problem, data, end, runs)
    order = assembly._component_order(problem, end.parameters)
    at = end.parameters.reorder(order)
    laplace, flat = laplace_of(problem, end, order)
    shares = _shares(problem, at)
    bounds = tuple(bound.label for bound in active_bounds_of(problem, at))
    errors = assembly.fit_errors(problem, end)[assembly._vector_order(at, order)]
    jacobian = problem.log_jacobian
    found = assembly._Findings(at, laplace, flat, shares, bounds, jacobian, errors)
    fit = assembly._assembled(problem, data, end, runs, found)
    everywhere: Any = given.X
    all_shares = shares.moved(everywhere.source)
    return replace(
        fit, responsibilities=all_shares.source.as_collection(all_shares), n_obs=given.n_obs
    )


def _shares(problem: EMProblem, at: MixtureParameters) -> Any:
    """Responsibilities of all rows, as a column."""
    rows = problem.rows
    columns = (rows.Z, rows.y, rows.sample_weight, rows.offset, rows.n_trials, rows.gate)
    shares: RowColumn = map_columns(
        partial(_block_shares, problem.family, at), *columns, n_columns=at.n_components
    )
    return shares


def _block_shares(family: AnyFamily, at: MixtureParameters, *columns: Any) -> FloatArray:
    return responsibilities(family, LikelihoodRows(*columns), at)


SUBSAMPLED_ROWS = 50_000
"""Rows whose posterior is sampled: five hundred for each of a hundred parameters, and not so many
that the thousands of gradients of a run, whose time is in proportion, take hours."""


class Subsample(NamedTuple):
    """Rows in memory."""

    X: Any  # inputs, with names of columns where they had them; (n_rows, n_features)
    y: Any  # response; (n_rows,)
    data_block: dict[str, Any]  # family, link, offset, trials, weights and groups
    gating: Any  # gating covariates; (n_rows, n_gate)


def draw_subsample(
    X: Any, y: Any, data_block: dict[str, Any], gating: Any, rng: np.random.Generator
) -> Subsample:
    """Draw rows of a Dask input at random, every row of positive weight with the same probability.

    The posterior is that of the rows drawn. Weights are not scaled up to stand for the rows left
    out: the posterior would be as narrow as that of all rows, about a centre that is as far off as
    that of the sample.
    """
    given = validate_data(X, y, **data_block)
    source: Any = source_of(given.X)
    covariates: Any = None
    gate_names: tuple[str, ...] = ()
    if gating is not None and source is not None:
        covariates, gate_names = dask_gating(gating, source)
    elif gating is not None:
        covariates = gating.compute() if is_dask(gating) else gating
    data = given
    if source is not None:
        data, covariates = _drawn(given.drop_zero_weights(), covariates, rng)
        if covariates is not None and hasattr(gating, "columns"):
            covariates = _labelled(covariates, gate_names)
    is_weighted = data_block.get("sample_weight") is not None
    block = {
        "family": data.family,
        "link": None,  # the family has it
        "offset": data.offset,
        "n_trials": data.n_trials,
        "sample_weight": data.sample_weight if is_weighted else None,
        "groups": data.groups,
    }
    table = _labelled(data.X, data.feature_names) if hasattr(X, "columns") else data.X
    return Subsample(table, data.y, block, covariates)


def _drawn(
    data: RegressionData, covariates: Any, rng: np.random.Generator
) -> tuple[RegressionData, Any]:
    """Some of the rows that count, in memory."""
    rows = sample_rows(data.n_obs, SUBSAMPLED_ROWS, rng)
    _warn_if_fewer(len(rows), data.n_obs)
    if covariates is not None:
        place: Any = data.X
        covariates = covariates.moved(place.source)[rows]
    return data.take(rows), covariates


def _labelled(values: Any, names: tuple[str, ...]) -> Any:
    from pandas import DataFrame

    return DataFrame(values, columns=list(names))


def _warn_if_fewer(n_rows: int, n_obs: int) -> None:
    if n_rows < n_obs:
        notify(
            f"The posterior is that of {n_rows} rows drawn at random from {n_obs}: its standard "
            f"deviations are about {np.sqrt(n_obs / n_rows):.2g} times those given all rows. Pass "
            "arrays to choose the rows, or use `fit_em`, which uses all of them.",
            UserWarning,
        )
