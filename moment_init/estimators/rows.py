"""The rows of an estimator: checked once, and equal rows merged with their weights added."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.checking import (
    group_codes,
    validate_gating,
    validate_groups,
    validate_n_trials,
    validate_row_vector,
    validate_sample_weight,
)
from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.responses.data import (
    has_several_responses,
    is_joint_family,
    response_columns,
    response_families,
)
from moment_init.responses.data import validate_rows as validate_columns
from moment_init.responses.kinds import SeparateResponses

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class EstimatorRows:
    """The rows that an estimator is fitted to."""

    X: NDArray[np.generic]  # inputs; (n_obs, n_features)
    # one or several responses; with `classes` their codes, -1 for a label that no row with positive
    # weight has; (n_obs,) or (n_obs, n_responses)
    y: FloatArray
    sample_weight: FloatArray  # sample weights; (n_obs,)
    feature_names: tuple[str, ...] | None = None  # column names of X, if any
    # known part of the linear predictor; (n_obs,) or (n_obs, n_responses)
    offset: FloatArray | None = None
    # numbers of binomial trials; (n_obs,) or (n_obs, n_responses)
    n_trials: FloatArray | None = None
    groups: NDArray[np.generic] | None = None  # group labels; (n_obs,)
    gating: FloatArray | None = None  # gating covariates; (n_obs, n_gate)
    gate_names: tuple[str, ...] = ()  # names of the gating covariates
    response_names: tuple[str, ...] | None = None  # names of several responses
    classes: NDArray[Any] | None = None  # labels of classes that share one mixture; (n_classes,)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_gate(self) -> int:
        """Number of gating covariates."""
        return len(self.gate_names)

    @property
    def inputs(self) -> Any:
        """Inputs, with their column names if they have any."""
        return _named(self.X, self.feature_names)

    @property
    def response(self) -> Any:
        """Response in the form of `moment_init.fit_em`: an array, named columns or labels."""
        if self.classes is None:
            return _named(self.y, self.response_names)
        # Rows with an unknown label have weight zero, so any other label can be used.
        return self.classes[np.maximum(self.y, 0.0).astype(np.intp)]

    @property
    def data_block(self) -> dict[str, Any]:
        """Arguments of `moment_init.fit_em` that belong to rows, except inputs and response."""
        return {
            "offset": self.offset,
            "n_trials": self.n_trials,
            "sample_weight": self.sample_weight,
            "groups": self.groups,
            "gating": None if self.gating is None else _named(self.gating, self.gate_names),
        }

    def take(self, index: IndexArray) -> "EstimatorRows":
        """Select rows."""
        return replace(
            self,
            X=self.X[index],
            y=self.y[index],
            sample_weight=self.sample_weight[index],
            offset=None if self.offset is None else self.offset[index],
            n_trials=None if self.n_trials is None else self.n_trials[index],
            groups=None if self.groups is None else self.groups[index],
            gating=None if self.gating is None else self.gating[index],
        )


def validate_rows(
    X: NDArray[np.generic],
    y: FloatArray,
    family: Family,
    *,
    feature_names: tuple[str, ...] | None = None,
    sample_weight: Any = None,
    groups: Any = None,
    offset: Any = None,
    n_trials: Any = None,
    gating: Any = None,
) -> EstimatorRows:
    """Check all other data of rows whose inputs and response scikit-learn has checked."""
    # X: (n_obs, n_features), y: (n_obs,)
    n_obs = len(X)
    trials = validate_n_trials(n_trials, family, n_obs)
    family.validate_response(y, trials)
    labels = validate_groups(groups, n_obs)
    covariates = validate_gating(gating, n_obs, labels)
    return EstimatorRows(
        X=X,
        y=y,
        sample_weight=validate_sample_weight(sample_weight, n_obs),
        feature_names=feature_names,
        offset=None if offset is None else validate_row_vector(offset, "offset", n_obs),
        n_trials=trials,
        groups=labels,
        gating=None if covariates is None else covariates[0],
        gate_names=() if covariates is None else covariates[1],
    )


def has_several_columns(y: Any, family: Any) -> bool:
    """Tell whether a response has several columns, or one family per column."""
    if isinstance(family, str):
        get_family(family)
    if not has_several_responses(y, family):
        return False
    return is_joint_family(family) or np.shape(y)[1] != 1


def validate_joint_rows(
    X: NDArray[np.generic],
    y: Any,
    *,
    family: Any,
    link: str | None,
    feature_names: tuple[str, ...] | None = None,
    sample_weight: Any = None,
    offset: Any = None,
    n_trials: Any = None,
) -> tuple[EstimatorRows, tuple[Family, ...]]:
    """Check rows with several responses, whose inputs scikit-learn has checked."""
    # X: (n_obs, n_features), y: (n_obs, n_responses)
    names, columns = response_columns(y)
    families = response_families(family, link, len(names))
    kind = SeparateResponses(names, families)
    data = validate_columns(
        X, columns, kind, offset=offset, n_trials=n_trials, sample_weight=sample_weight
    )
    rows = EstimatorRows(
        X=X,
        y=np.ascontiguousarray(data.y.T),
        sample_weight=data.sample_weight,
        feature_names=feature_names,
        offset=None if data.offset is None else data.offset.T,
        n_trials=None if data.n_trials is None else data.n_trials.T,
        response_names=names,
    )
    return rows, families


def refuses_negative(family: Any) -> bool:
    """Tell whether a family's response is never negative."""
    if isinstance(family, list | tuple):
        return any(map(refuses_negative, family))
    try:
        get_family(family).validate_response(np.array([-1.0]))
    except (TypeError, ValueError):
        return True
    return False


def distinct_rows(rows: EstimatorRows) -> EstimatorRows:
    """Merge equal rows, add their weights, and leave out rows with weight zero.

    Nothing is lost, because a row with weight 2 has the likelihood of two equal rows. The result,
    and so the fit, is the same bit for bit whether rows are repeated or weighted, in any order.
    """
    weighted = rows.take(np.flatnonzero(rows.sample_weight))
    keys = _keys(weighted)
    order = _sorting(keys)
    is_new = np.zeros(weighted.n_obs, dtype=bool)
    is_new[0] = True
    for key in keys:
        ordered = key[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_new)
    weights = np.add.reduceat(weighted.sample_weight[order], starts)
    return replace(weighted.take(order[starts]), sample_weight=weights)


def _keys(rows: EstimatorRows) -> list[NDArray[Any]]:
    """List the columns that must agree for two rows to be equal."""
    keys: list[NDArray[Any]] = [*rows.X.T]
    for values in (rows.y, rows.offset, rows.n_trials):
        keys += [] if values is None else [*np.atleast_2d(values.T)]
    keys += [] if rows.gating is None else [*rows.gating.T]
    codes = group_codes(rows.groups)
    return keys if codes is None else [*keys, codes]


def _sorting(keys: list[NDArray[Any]]) -> IndexArray:
    """Sort the rows by the first key, then by the others.

    If all values of the first key differ, as in a continuous column, the other keys are not needed.
    """
    order = np.argsort(keys[0], kind="stable")
    first = keys[0][order]
    return order if np.all(first[1:] != first[:-1]) else np.lexsort(keys[::-1])


def _named(values: NDArray[np.generic], names: tuple[str, ...] | None) -> Any:
    if names is None:
        return values
    from pandas import DataFrame  # imported only if there are names

    return DataFrame(values, columns=list(names), copy=False)
