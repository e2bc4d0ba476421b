"""The rows of an estimator: checked once, and equal ones merged into one of their total weight."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.checking import (
    group_codes,
    validate_groups,
    validate_n_trials,
    validate_row_vector,
    validate_sample_weight,
)
from moment_init.em.problem import validate_gating
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
    """Rows that an estimator is fitted to.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        Inputs.
    y : numpy.ndarray, shape (n_obs,) or (n_obs, n_responses)
        Response, or several; codes of classes where `classes` has their labels, -1 for a label that
        no row of positive weight has.
    sample_weight : numpy.ndarray, shape (n_obs,)
        How often each row counts.
    feature_names : tuple of str or None
        Names of the columns of X, where they have any.
    offset, n_trials : numpy.ndarray, shape (n_obs,) or (n_obs, n_responses), or None
        Known part of the linear predictor, and binomial trials.
    groups : numpy.ndarray, shape (n_obs,), or None
        Rows with one value share their component.
    gating : numpy.ndarray, shape (n_obs, n_gate), or None
        Gating covariates.
    gate_names : tuple of str
        Their names.
    response_names : tuple of str or None
        Names of several responses.
    classes : numpy.ndarray, shape (n_classes,), or None
        Labels of the classes of one mixture.
    """

    X: NDArray[np.generic]
    y: FloatArray
    sample_weight: FloatArray
    feature_names: tuple[str, ...] | None = None
    offset: FloatArray | None = None
    n_trials: FloatArray | None = None
    groups: NDArray[np.generic] | None = None
    gating: FloatArray | None = None
    gate_names: tuple[str, ...] = ()
    response_names: tuple[str, ...] | None = None
    classes: NDArray[Any] | None = None

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
        """Inputs with the names of their columns, where they have any."""
        return _named(self.X, self.feature_names)

    @property
    def response(self) -> Any:
        """Response as `moment_init.fit_em` takes it: numbers, named columns or labels."""
        if self.classes is None:
            return _named(self.y, self.response_names)
        # Rows of an unknown label do not count: any other will do.
        return self.classes[np.maximum(self.y, 0.0).astype(np.intp)]

    @property
    def data_block(self) -> dict[str, Any]:
        """What `moment_init.fit_em` takes of the rows besides inputs and response."""
        return {
            "offset": self.offset,
            "n_trials": self.n_trials,
            "sample_weight": self.sample_weight,
            "groups": self.groups,
            "gating": None if self.gating is None else _named(self.gating, self.gate_names),
        }

    def take(self, index: IndexArray) -> "EstimatorRows":
        """Select rows.

        Parameters
        ----------
        index : numpy.ndarray of int
            The rows to take.

        Returns
        -------
        EstimatorRows
            Those rows.
        """
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
    """Check what belongs to rows whose inputs and response scikit-learn has checked.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        Inputs.
    y : numpy.ndarray, shape (n_obs,)
        Response.
    family : Family
        Family of the response.
    feature_names : tuple of str, optional
        Names of the columns.
    sample_weight, groups, offset, n_trials, gating : array-like, optional
        As for `moment_init.fit_em`.

    Returns
    -------
    EstimatorRows
        The rows.

    Raises
    ------
    TypeError
        For data that are not real numbers.
    ValueError
        For wrong shapes, missing or infinite values, and responses outside the family's range.
    """
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
    """Tell whether a response is more than one column, or has a family for each.

    Parameters
    ----------
    y : array-like
        The response as the user gave it.
    family : str, Family or sequence of them
        The family as the user gave it.

    Returns
    -------
    bool
        Whether several responses are fitted together; a column alone is one response.

    Raises
    ------
    ValueError
        For a name that is no family's.
    """
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
    """Check what belongs to rows with several responses, whose inputs scikit-learn has checked.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        Inputs.
    y : array-like or DataFrame, shape (n_obs, n_responses)
        Responses.
    family : str, Family or sequence of them
        Family of all responses, or one for each.
    link : str or None
        Link of all responses.
    feature_names : tuple of str, optional
        Names of the columns.
    sample_weight, offset, n_trials : array-like, optional
        As for `moment_init.fit_em`.

    Returns
    -------
    rows : EstimatorRows
        The rows.
    families : tuple of Family
        Family of each response.

    Raises
    ------
    TypeError
        For data that are not real numbers.
    ValueError
        For wrong shapes, missing or infinite values, and responses outside a family's range.
    """
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
    """Tell whether a family's response is never negative.

    Parameters
    ----------
    family : str, Family or sequence of them
        The family, or one for each response.

    Returns
    -------
    bool
        Whether it, or one of several, refuses a negative response; so does what is no family.
    """
    if isinstance(family, list | tuple):
        return any(map(refuses_negative, family))
    try:
        get_family(family).validate_response(np.array([-1.0]))
    except (TypeError, ValueError):
        return True
    return False


def distinct_rows(rows: EstimatorRows) -> EstimatorRows:
    """Merge rows that are equal, add their weights up, and leave out rows that do not count.

    The likelihood of a row of weight 2 is that of two such rows, so that nothing is lost. The
    result is the same, bit for bit, whether rows are repeated or weighted, in any order: so is what
    is fitted to it.

    Parameters
    ----------
    rows : EstimatorRows
        The rows.

    Returns
    -------
    EstimatorRows
        Distinct rows of positive weight, sorted.
    """
    counted = rows.take(np.flatnonzero(rows.sample_weight))
    keys = _keys(counted)
    order = _sorting(keys)
    is_new = np.zeros(counted.n_obs, dtype=bool)
    is_new[0] = True
    for key in keys:
        own = key[order]
        is_new[1:] |= own[1:] != own[:-1]
    starts = np.flatnonzero(is_new)
    weights = np.add.reduceat(counted.sample_weight[order], starts)
    return replace(counted.take(order[starts]), sample_weight=weights)


def _keys(rows: EstimatorRows) -> list[NDArray[Any]]:
    """All that makes two rows equal, a column each."""
    keys: list[NDArray[Any]] = [*rows.X.T]
    for values in (rows.y, rows.offset, rows.n_trials):
        keys += [] if values is None else [*np.atleast_2d(values.T)]
    keys += [] if rows.gating is None else [*rows.gating.T]
    codes = group_codes(rows.groups)
    return keys if codes is None else [*keys, codes]


def _sorting(keys: list[NDArray[Any]]) -> IndexArray:
    """Order of the rows by the first key, then by the others.

    The values of a continuous column differ, which spares the sorting by all other columns.
    """
    order = np.argsort(keys[0], kind="stable")
    first = keys[0][order]
    return order if np.all(first[1:] != first[:-1]) else np.lexsort(keys[::-1])


def _named(values: NDArray[np.generic], names: tuple[str, ...] | None) -> Any:
    if names is None:
        return values
    from pandas import DataFrame  # imported where there are names only

    return DataFrame(values, columns=list(names), copy=False)
