"""The rows of an estimator: checked once, and equal rows merged with their weights added."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData, group_codes, validate_data, validate_gating
from moment_init.families.registry import get_family
from moment_init.families.several import CATEGORICAL

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class EstimatorRows:
    """The rows that an estimator is fitted to."""

    # The codes of classes are -1 for a label that no row with positive weight has.
    data: RegressionData
    gating: FloatArray | None = None  # gating covariates; (n_obs, n_gate)
    gate_names: tuple[str, ...] = ()  # names of the gating covariates

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return self.data.n_obs

    @property
    def inputs(self) -> Any:
        """Inputs, with their column names if they have any."""
        return _named(self.data.X, self.data.feature_names, "x")

    @property
    def response(self) -> Any:
        """Response in the form of `moment_init.fit_em`: an array, named columns or labels."""
        y, classes = self.data.y, self.data.classes
        if classes is None:
            return y if y.ndim == 1 else _named(y, self.data.response_names, "y")
        # Rows with an unknown label have weight zero, so any other label can be used.
        return classes[np.maximum(y, 0.0).astype(np.intp)]

    @property
    def family(self) -> Any:
        """Family in the form of `moment_init.fit_em`."""
        return self.data.family if self.data.classes is None else CATEGORICAL

    @property
    def data_block(self) -> dict[str, Any]:
        """Arguments of `moment_init.fit_em` that belong to rows, except inputs and response."""
        names = ("offset", "n_trials", "sample_weight", "groups")
        block = {name: getattr(self.data, name) for name in names}
        gating = self.gating
        block["gating"] = None if gating is None else _named(gating, self.gate_names, "g")
        return block

    def with_response(self, y: FloatArray, **fields: Any) -> "EstimatorRows":
        """Replace the response, and other fields of `data`."""
        # y: (n_obs,)
        return replace(self, data=replace(self.data, y=y, **fields))

    def take(self, index: IndexArray) -> "EstimatorRows":
        """Select rows."""
        gating = None if self.gating is None else self.gating[index]
        return replace(self, data=self.data.take(index), gating=gating)


def validate_rows(
    X: NDArray[np.generic],
    y: Any,
    *,
    feature_names: tuple[str, ...] | None = None,
    gating: Any = None,
    **data: Any,
) -> EstimatorRows:
    """Check all other data of rows whose inputs and response scikit-learn has checked."""
    # X: (n_obs, n_features), y: (n_obs,) or (n_obs, n_responses)
    rows = validate_data(X, y, **data)
    if feature_names is not None:
        rows = replace(rows, feature_names=feature_names)
    return EstimatorRows(rows, *(validate_gating(gating, rows.n_obs, rows.groups) or ()))


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
    weighted = rows.take(np.flatnonzero(rows.data.sample_weight))
    keys = _keys(weighted)
    order = _sorting(keys)
    is_new = np.zeros(weighted.n_obs, dtype=bool)
    is_new[0] = True
    for key in keys:
        ordered = key[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_new)
    weights = np.add.reduceat(weighted.data.sample_weight[order], starts)
    merged = weighted.take(order[starts])
    return replace(merged, data=replace(merged.data, sample_weight=weights))


def _keys(rows: EstimatorRows) -> list[NDArray[Any]]:
    """List the columns that must agree for two rows to be equal."""
    data = rows.data
    values = (data.X, data.y, data.offset, data.n_trials, rows.gating, group_codes(data.groups))
    return [key for array in values if array is not None for key in np.atleast_2d(array.T)]


def _sorting(keys: list[NDArray[Any]]) -> IndexArray:
    """Sort the rows by the first key, then by the others.

    If all values of the first key differ, as in a continuous column, the other keys are not needed.
    """
    order = np.argsort(keys[0], kind="stable")
    first = keys[0][order]
    return order if np.all(first[1:] != first[:-1]) else np.lexsort(keys[::-1])


def _named(values: NDArray[np.generic], names: tuple[str, ...], letter: str) -> Any:
    """Give columns their names, unless these only number the columns."""
    # values: (n_obs, n_columns)
    if names == tuple(f"{letter}{index}" for index in range(values.shape[1])):
        return values
    from pandas import DataFrame  # imported only if there are names

    return DataFrame(values, columns=list(names), copy=False)
