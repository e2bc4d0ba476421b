"""A subsample of a Dask input, for samplers that need all their rows in memory at every step."""

import warnings
from typing import Any, NamedTuple

import numpy as np

from moment_init.blocks import source_of
from moment_init.data import RegressionData, validate_data
from moment_init.row_samples import sample_rows
from moment_init.row_sources.detection import is_elsewhere
from moment_init.row_sources.standardising import gating_elsewhere

__all__ = ["SUBSAMPLED_ROWS", "Subsample", "draw_subsample"]

SUBSAMPLED_ROWS = 50_000
"""Rows whose posterior is sampled: five hundred for each of a hundred parameters, and not so many
that the thousands of gradients of a run, whose time is in proportion, take hours."""


class Subsample(NamedTuple):
    """Rows in memory.

    Parameters
    ----------
    X : numpy.ndarray or DataFrame, shape (n_rows, n_features)
        Inputs, with names of columns where they had them.
    y : numpy.ndarray, shape (n_rows,)
        Response.
    data_block : dict of str to object
        Family, link, offset, trials, weights and groups.
    gating : numpy.ndarray or DataFrame, shape (n_rows, n_gate), or None
        Gating covariates.
    """

    X: Any
    y: Any
    data_block: dict[str, Any]
    gating: Any


def draw_subsample(
    X: Any, y: Any, data_block: dict[str, Any], gating: Any, rng: np.random.Generator
) -> Subsample:
    """Draw rows of a Dask input at random, every row of positive weight with the same probability.

    Parameters
    ----------
    X, y : array, DataFrame or Dask collection
        Inputs and response.
    data_block : dict of str to object
        Family, link, offset, trials, weights and groups, as for `validate_data`.
    gating : array, DataFrame or Dask collection, or None
        Gating covariates.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    Subsample
        At most `SUBSAMPLED_ROWS` rows, in their order, each with the weight that it had; all rows
        if there are no more.

    Warns
    -----
    UserWarning
        If rows were left out.

    Notes
    -----
    The posterior is that of the rows drawn. Weights are not scaled up to stand for the rows left
    out: the posterior would be as narrow as that of all rows, about a centre that is as far off as
    that of the sample.
    """
    given = validate_data(X, y, **data_block)
    source: Any = source_of(given.X)
    covariates: Any = None
    gate_names: tuple[str, ...] = ()
    if gating is not None and source is not None:
        covariates, gate_names = gating_elsewhere(gating, source)
    elif gating is not None:
        covariates = gating.compute() if is_elsewhere(gating) else gating
    data = given
    if source is not None:
        data, covariates = _drawn(given.counted(), covariates, rng)
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
        warnings.warn(
            f"The posterior is that of {n_rows} rows drawn at random from {n_obs}: its standard "
            f"deviations are about {np.sqrt(n_obs / n_rows):.2g} times those given all rows. Pass "
            "arrays to choose the rows, or use `fit_em`, which uses all of them.",
            UserWarning,
            stacklevel=7,
        )
