"""`fit_em` on rows that are elsewhere: what differs from arrays in memory.

The search sees a sample of the rows in memory, the climb that follows sums over all of them where
they are. What belongs to single rows stays lazy.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import source_of
from moment_init.data import RegressionData
from moment_init.em import assembly
from moment_init.em.information import active_bounds_of, laplace_of
from moment_init.em.problem import EMProblem
from moment_init.em.refining import search_units
from moment_init.em.result import EMFit
from moment_init.em.start_records import StartRecord
from moment_init.em.tensor_starts import has_moments, tensor_starts
from moment_init.exceptions import IdentifiabilityError
from moment_init.families import Family
from moment_init.likelihood.maximise import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.results import MomentEstimate
from moment_init.row_sources.columns import MOST_HELD, RowColumn, map_columns
from moment_init.row_sources.posing import pose_elsewhere
from moment_init.scores import Gaussian
from moment_init.stacked_result import low_order_moments

__all__ = [
    "assemble_anywhere",
    "counted_covariates",
    "counted_rows",
    "moment_starts",
    "require_supported_fit",
    "searched_rows",
]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]


def require_supported_fit(data: RegressionData, *, init: Any, gate: str) -> None:
    """Raise for what `fit_em` can do with arrays in memory only.

    Parameters
    ----------
    data : RegressionData
        Rows, wherever they are.
    init : object
        Where to start.
    gate : str
        The kind of the gate.

    Raises
    ------
    ValueError
        Naming the argument and what to do.
    """
    if source_of(data.X) is None:
        return
    about = f"for a Dask input of {data.n_obs} rows, which are not read whole"
    is_given = isinstance(init, MomentEstimate | EMFit | tuple | list)
    if not is_given and not (isinstance(init, str) and init == "tensor"):
        raise ValueError(
            f"`init` must be 'tensor', an estimate, a fit or parameters {about}; got "
            f"{init if isinstance(init, str) else type(init).__name__!r}. Fit a sample from it, "
            "and pass that fit."
        )
    if gate != "softmax":
        raise ValueError(f"`gate` must be 'softmax' {about}; got {gate!r}. Use it.")


def searched_rows(given: RegressionData, n_components: int) -> RegressionData:
    """Read rows into memory that a search would read whole.

    Parameters
    ----------
    given : RegressionData
        Rows, wherever they are.
    n_components : int
        Number of components.

    Returns
    -------
    RegressionData
        The rows: in memory if they are no more than twice what a search needs, else as they are.
    """
    if source_of(given.X) is None:
        return given
    most = 2 * search_units(given.family, given.n_features, n_components)
    if given.n_obs > most or given.X.size > MOST_HELD:
        return given
    return given.take(np.arange(given.n_obs))


def counted_rows(given: RegressionData) -> NDArray[np.bool_]:
    """Which of the rows count.

    Parameters
    ----------
    given : RegressionData
        All rows.

    Returns
    -------
    numpy.ndarray of bool, shape (n_obs,)
        Whether each has a weight; empty for rows that are elsewhere, where no start needs them.
    """
    if source_of(given.X) is not None:
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(given.sample_weight != 0.0)


def counted_covariates(covariates: Any, data: RegressionData, counted: NDArray[np.bool_]) -> Any:
    """Gating covariates of the rows that count.

    Parameters
    ----------
    covariates : tuple of table and names, or None
        Those of all rows.
    data : RegressionData
        The rows that count.
    counted : numpy.ndarray of bool, shape (n_obs,)
        Which rows these are.

    Returns
    -------
    tuple of table and names, or None
        Those of these rows.
    """
    if covariates is None:
        return None
    values, names = covariates
    source = source_of(data.X)
    return (values[counted] if source is None else values.moved(source)), names


def moment_starts(
    problem: EMProblem, data: RegressionData, rng: np.random.Generator
) -> list[tuple[str, MixtureParameters]]:
    """Candidates of the moments, best first, of rows wherever they are.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    data : RegressionData
        The rows that it was posed from.
    rng : numpy.random.Generator
        Source of the decomposition's starts.

    Returns
    -------
    list of tuple
        Origins and standardised parameters; empty where moments do not apply.
    """
    if source_of(data.X) is None:
        return tensor_starts(problem, data, rng)
    if problem.restrictions.directions is not None or not has_moments(data, problem.n_components):
        return []
    model = Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names)
    try:
        fit = low_order_moments(pose_elsewhere(data, model)).estimate(problem.n_components, rng)
    except IdentifiabilityError:
        return []
    return [(f"tensor {rank}", start) for rank, start in enumerate(fit.candidates, start=1)]


def assemble_anywhere(
    problem: EMProblem,
    given: RegressionData,
    data: RegressionData,
    end: MaximiseResult,
    starts: tuple[StartRecord, ...],
) -> EMFit:
    """Put a result together: by `assemble_fit` in memory, elsewhere with a pass for the entropy.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    given : RegressionData
        All rows, those of weight zero included.
    data : RegressionData
        The rows it was posed from.
    end : MaximiseResult
        Where the winning run ended.
    starts : tuple of StartRecord
        Every start.

    Returns
    -------
    EMFit
        The fit. Responsibilities of rows that are elsewhere are those of all rows, as a Dask array
        whose blocks are computed when they are asked for.
    """
    if source_of(data.X) is None:
        return assembly.assemble_fit(problem, data, end, starts)
    order = assembly._component_order(problem, end.parameters)
    at = end.parameters.reorder(order)
    laplace, flat = laplace_of(problem, end, order)
    shares = _shares(problem, at)
    bounds = tuple(bound.label for bound in active_bounds_of(problem, at))
    found = assembly._Findings(at, laplace, flat, shares, bounds, problem.log_jacobian)
    fit = assembly._assembled(problem, data, end, starts, found, ())
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


def _block_shares(family: Family, at: MixtureParameters, *columns: Any) -> FloatArray:
    return responsibilities(family, LikelihoodRows(*columns), at)
