"""The data arguments of every entry point: checked once, here, and trusted afterwards.

In this order: linear predictors that would overflow; groups of rows that share their component;
`RegressionData` and the checks of its parts; columns of new rows and gating covariates. Dask
collections are passed on to `row_sources.checking`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_real_array, is_dask
from moment_init.data.blocks import read_block, row_blocks, source_of
from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.row_sources.columns import take_rows

_LARGEST_PREDICTOR = 1e280
"""Leaves room below the largest double, 2e308, to multiply a predictor by the response, the trials
or the dispersion."""


def require_finite_predictors(values: FloatArray, slopes: FloatArray, argument: str) -> None:
    r"""Raise for rows whose linear predictors would overflow.

    The bound :math:`\sum_k \max_i |x_{ik}| \max_j |\beta_{kj}|` is tested, since infinite terms of
    both signs would add up to NaN.
    """
    # values: (n_obs, n_columns), slopes: (n_columns, ...)
    sizes = np.maximum(values.max(axis=0, initial=0.0), -values.min(axis=0, initial=0.0))
    steepest = np.abs(slopes).reshape(len(slopes), -1).max(axis=1, initial=0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # tested in the next lines
        terms = sizes * steepest
        if terms.sum() <= _LARGEST_PREDICTOR:
            return
    column = int(np.argmax(terms))
    row = int(np.argmax(np.abs(values[:, column])))
    raise ValueError(
        f"`{argument}` must have rows whose linear predictors are below {_LARGEST_PREDICTOR:g}; "
        f"got about {terms[column]:g} in row {row}. Check the units of that row, or drop it."
    )


def require_finite_offset(offset: FloatArray | None) -> None:
    """Raise for offsets that would make linear predictors overflow."""
    if offset is None:
        return
    sizes = np.abs(offset)
    if not np.any(sizes > _LARGEST_PREDICTOR):
        return
    row = int(np.unravel_index(np.nanargmax(sizes), sizes.shape)[-1])
    raise ValueError(
        f"`offset` must be between {-_LARGEST_PREDICTOR:g} and {_LARGEST_PREDICTOR:g}; got an "
        f"absolute value of {np.nanmax(sizes):g} in row {row}. Check its units: the offset is on "
        "the scale of the linear predictor."
    )


IndexArray = NDArray[np.intp]


def validate_groups(groups: Any, n_obs: int) -> NDArray[np.generic] | None:
    """Check the labels of groups."""
    # groups: (n_obs,) -> (n_obs,)
    if groups is None:
        return None
    labels = np.asarray(groups)
    if labels.shape != (n_obs,):
        raise ValueError(
            f"`groups` must have shape ({n_obs},), one label per row of `X`; got {labels.shape}."
        )
    from pandas import isna  # knows every kind of missing label; imported only for groups

    missing = np.asarray(isna(labels))
    if np.any(missing):
        raise ValueError(
            f"`groups` must not be missing; got {labels[int(np.argmax(missing))]} in row "
            f"{int(np.argmax(missing))}. Give every row a group."
        )
    return labels


def group_codes(groups: NDArray[np.generic] | None) -> IndexArray | None:
    """Number the groups by the order of their first rows."""
    # groups: (n_obs,) -> (n_obs,)
    if groups is None:
        return None
    from pandas import factorize  # takes labels of any kind; imported only for groups

    return np.asarray(factorize(groups)[0], dtype=np.intp)


def group_order(
    groups: NDArray[np.generic] | None,
) -> tuple[IndexArray | None, IndexArray | None]:
    """Find the order that puts the rows of each group together, and where each group starts."""
    # groups: (n_obs,) -> (n_obs,), (n_groups,)
    codes = group_codes(groups)
    if codes is None:
        return None, None
    order = np.argsort(codes, kind="stable")
    return order, np.flatnonzero(np.diff(codes[order], prepend=-1))


def require_constant_in_groups(
    values: FloatArray, names: tuple[str, ...], groups: NDArray[np.generic] | None
) -> None:
    """Raise for gating covariates that vary within a group."""
    # values: (n_obs, n_gate), groups: (n_obs,)
    order, starts = group_order(groups)
    if order is None or starts is None:
        return
    ordered = values[order]
    sizes = np.diff(np.append(starts, len(ordered)))
    varies = np.any(ordered != np.repeat(ordered[starts], sizes, axis=0), axis=0)
    if varies.any():
        name = names[int(np.argmax(varies))]
        raise ValueError(
            "`gating` must not vary within a group, since all rows of a group share a component; "
            f"got column {name!r}, which varies. Use its mean by group."
        )


RESPONSE_RANGES = (1e-75, 1e75)
"""Variances, and products of two variances, then neither overflow nor underflow."""


@dataclass(frozen=True, slots=True, eq=False)
class RegressionData:
    """Checked rows of a regression."""

    # inputs as the caller stores them, read by blocks as doubles; (n_obs, n_features)
    X: NDArray[np.generic]
    y: FloatArray  # response; (n_obs,)
    family: Family  # with its link
    feature_names: tuple[str, ...]
    offset: FloatArray | None  # known part of the linear predictor; (n_obs,)
    n_trials: FloatArray | None  # number of trials of each binomial response; (n_obs,)
    sample_weight: FloatArray  # ones if none were given; (n_obs,)
    groups: NDArray[np.generic] | None  # rows with the same label share a component; (n_obs,)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])

    def take(self, index: NDArray[np.intp] | slice) -> "RegressionData":
        """Select rows."""
        names = ("X", "y", "offset", "n_trials", "sample_weight", "groups")
        taken = take_rows([getattr(self, name) for name in names], index)
        return replace(self, **dict(zip(names, taken, strict=True)))

    def drop_zero_weights(self) -> "RegressionData":
        """Drop the rows with weight zero; return the same object if there are none."""
        if source_of(self.X) is not None:
            from moment_init.row_sources.checking import keep_weighted_rows

            return keep_weighted_rows(self)
        rows = np.flatnonzero(self.sample_weight)
        return self if len(rows) == self.n_obs else self.take(rows)


def validate_data(
    X: Any,
    y: Any,
    *,
    family: str | Family,
    link: str | None = None,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
) -> RegressionData:
    """Check the data arguments and convert them to arrays."""
    # X: (n_obs, n_features), y: (n_obs,)
    resolved = get_family(family, link)
    if is_dask(X, y, offset, n_trials, sample_weight, groups):
        from moment_init.row_sources.checking import validate_blocks

        return validate_blocks(X, y, resolved, offset, n_trials, sample_weight, groups)
    features, names = validate_features(X)
    n_obs = features.shape[0]
    response = validate_row_vector(y, "y", n_obs)
    trials = validate_n_trials(n_trials, resolved, n_obs)
    resolved.validate_response(response, trials)
    weights = validate_sample_weight(sample_weight, n_obs)
    _require_variation(response, trials, weights > 0.0)
    return RegressionData(
        X=features,
        y=response,
        family=resolved,
        feature_names=names,
        offset=None if offset is None else validate_row_vector(offset, "offset", n_obs),
        n_trials=trials,
        sample_weight=weights,
        groups=validate_groups(groups, n_obs),
    )


def validate_features(
    X: Any, *, name: str = "X", min_obs: int = 2
) -> tuple[NDArray[np.generic], tuple[str, ...]]:
    """Check a matrix of inputs."""
    # X: (n_obs, n_features) -> (n_obs, n_features), n_features names
    if hasattr(X, "toarray") or hasattr(X, "sparse"):
        raise TypeError(f"`{name}` must be dense; got {type(X).__name__}. Pass `{name}.toarray()`.")
    names = _column_names(X, name)
    features = as_real_array(X, name)
    if features.ndim != 2:
        raise ValueError(
            f"`{name}` must be two-dimensional, (n_obs, n_features); got shape {features.shape}. "
            f"Use `{name}.reshape(-1, 1)` for a single column."
        )
    n_obs, n_features = features.shape
    if n_features == 0 or n_obs < min_obs:
        raise ValueError(
            f"`{name}` must have at least {min_obs} rows and 1 column; got shape {features.shape}."
        )
    resolved = names or tuple(f"x{index}" for index in range(n_features))
    _require_finite_rows(features, name, resolved)
    return features, resolved


def validate_row_vector(values: Any, name: str, n_obs: int) -> FloatArray:
    """Check an argument that has one finite real number per row."""
    # values: (n_obs,) -> (n_obs,)
    array = as_real_array(values, name)
    if array.shape != (n_obs,):
        raise ValueError(
            f"`{name}` must have shape ({n_obs},), one value per row of `X`; got {array.shape}. "
            + (
                f"Pass a one-dimensional array such as `{name}.ravel()` of the same length as `X`."
                if array.size == n_obs
                else "Pass a one-dimensional array of the same length as `X`."
            )
        )
    result = array.astype(np.float64, copy=False)
    finite = np.isfinite(result)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(
            f"`{name}` must be finite; got {result[row]} in row {row} "
            f"({int((~finite).sum())} such rows). Drop or impute them."
        )
    return result


def _column_names(X: Any, name: str) -> tuple[str, ...]:
    """Return the column names of a DataFrame; empty for anything else."""
    names = tuple(str(column) for column in getattr(X, "columns", ()))
    repeated = sorted({column for column in names if names.count(column) > 1})
    if repeated:
        raise ValueError(
            f"`{name}` must have distinct column names; got {repeated} more than once. "
            "Rename or drop the duplicates."
        )
    return names


def _require_finite_rows(
    features: NDArray[np.generic], name: str, feature_names: Sequence[str]
) -> None:
    """Raise for the first value that is missing or infinite."""
    if features.dtype.kind != "f":
        return
    for rows in row_blocks(*features.shape):
        finite = np.isfinite(read_block(features, rows))
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise ValueError(
                f"`{name}` must be finite; got {features[rows][row, column]} in row "
                f"{rows.start + row}, column {feature_names[column]!r}. Drop or impute such rows."
            )


def _require_variation(
    response: FloatArray, trials: FloatArray | None, has_weight: NDArray[np.bool_]
) -> None:
    """Raise for a response that is the same in all rows with positive weight."""
    values = response[has_weight] if trials is None else response[has_weight] / trials[has_weight]
    if np.all(values == values[0]):
        raise ValueError(
            f"`y` must vary; got {values[0]:g} in all {len(values)} rows with a positive weight. "
            "Such a response says nothing about the components. Check the column that was passed."
        )
    require_response_range(float(values.min()), float(values.max()))


def require_response_range(smallest: float, largest: float) -> None:
    """Raise for a response whose squares would overflow or underflow."""
    low, high = RESPONSE_RANGES
    if not low < largest / 2.0 - smallest / 2.0 < high:  # halves, so that the difference is finite
        raise ValueError(
            f"`y` must vary by more than {low:g} and less than {high:g}; got values from "
            f"{smallest:g} to {largest:g}. Squares of such values would overflow or vanish. Change "
            "the units of `y`."
        )


def validate_n_trials(n_trials: Any, family: Family, n_obs: int) -> FloatArray | None:
    """Check the numbers of trials of binomial responses."""
    # n_trials: (n_obs,) -> (n_obs,)
    if n_trials is None:
        return None
    if not family.has_trials:
        raise ValueError(
            f"`n_trials` must be None for family {family.name!r}; only 'binomial' has trials. "
            "Leave it out, or choose that family."
        )
    trials = np.full(n_obs, n_trials) if np.ndim(n_trials) == 0 else n_trials
    checked = validate_row_vector(trials, "n_trials", n_obs)
    wrong = (checked < 1) | (checked != np.round(checked))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"`n_trials` must be whole numbers of at least 1; got {checked[row]:g} in row {row}. "
            "Drop rows without trials."
        )
    return checked


def validate_sample_weight(sample_weight: Any, n_obs: int) -> FloatArray:
    """Check the weights of the rows."""
    # sample_weight: (n_obs,) -> (n_obs,)
    if sample_weight is None:
        return np.ones(n_obs)
    weights = validate_row_vector(sample_weight, "sample_weight", n_obs)
    if weights.min() < 0.0 or weights.sum() <= 0.0:
        row = int(np.argmin(weights))
        raise ValueError(
            "`sample_weight` must be non-negative and not all zero; "
            f"got {weights[row]:g} in row {row}. Drop rows instead of weighting them negatively."
        )
    return weights


def match_columns(values: Any, names: tuple[str, ...], argument: str) -> FloatArray:
    """Put columns into the order of the fit; they are matched by name if they have names."""
    # values: (n_obs, n_columns) -> (n_obs, n_columns)
    features, columns = validate_features(values, name=argument, min_obs=1)
    if not hasattr(values, "columns"):
        if features.shape[1] != len(names):
            raise ValueError(
                f"`{argument}` must have the {len(names)} columns of the fit "
                f"({', '.join(names)}); got {features.shape[1]}. Pass the same columns."
            )
        return features.astype(np.float64, copy=False)
    missing = [name for name in names if name not in columns]
    unknown = [name for name in columns if name not in names]
    if missing or unknown:
        raise ValueError(
            f"`{argument}` must have the columns of the fit; missing are {missing}, unknown are "
            f"{unknown}. Select `{argument}[{list(names)}]`, or pass an array to match by position."
        )
    return features[:, [columns.index(name) for name in names]].astype(np.float64, copy=False)


def validate_gating(
    gating: Any, n_obs: int, groups: NDArray[np.generic] | None, *, source: Any = None
) -> tuple[FloatArray, tuple[str, ...]] | None:
    """Check gating covariates."""
    # gating: (n_obs,) or (n_obs, n_gate), groups: (n_obs,)
    if gating is None:
        return None
    if source is not None:
        from moment_init.row_sources.checking import dask_gating

        return dask_gating(gating, source)
    if is_dask(gating):
        gating = gating.compute()  # the rows of X are in memory too
    if np.ndim(gating) == 1:
        gating = gating.to_frame() if hasattr(gating, "to_frame") else np.asarray(gating)[:, None]
    features, names = validate_features(gating, name="gating")
    if features.shape[0] != n_obs:
        raise ValueError(
            f"`gating` must have one row per row of `X` ({n_obs}); got {features.shape[0]}. "
            "Select the same rows."
        )
    if not hasattr(gating, "columns"):
        names = tuple(f"g{index}" for index in range(features.shape[1]))
    values = features.astype(np.float64)
    require_constant_in_groups(values, names, groups)
    return values, names
