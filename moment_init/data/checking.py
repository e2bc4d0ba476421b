"""The data arguments of every entry point: checked once, here, and trusted afterwards.

In this order: linear predictors that would overflow; groups of rows that share their component;
`RegressionData` and the checks of its parts; columns, responses, offsets and trials of new rows;
gating covariates. Dask collections are passed on to `moment_init.data.dask_rows`, which checks
their blocks by the same functions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_known_table, as_real_array, is_dask
from moment_init.data.blocks import Rows, read_block, row_blocks
from moment_init.families.base import Family
from moment_init.families.registry import (
    class_codes,
    columns_of_fit,
    find_classes,
    get_family,
    has_classes,
    one_column,
    read_labels,
    response_columns,
    response_families,
)
from moment_init.families.several import AnyFamily, Categorical, categorical, join_families

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
    row = int(np.unravel_index(np.nanargmax(sizes), sizes.shape)[0])
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


ROW_COLUMNS = (
    "X", "y", "offset", "n_trials", "sample_weight", "groups", "gating", "response", "index",
)  # fmt: skip
"""Attributes of `RegressionData` that have an entry for each row."""

RESPONSE_RANGES = (1e-75, 1e75)
"""Variances, and products of two variances, then neither overflow nor underflow."""


@dataclass(frozen=True, slots=True, eq=False)
class RegressionData(Rows):
    """Checked rows of a regression, with one response, several responses or classes."""

    # inputs as the caller stores them, read by blocks as doubles; (n_obs, n_features)
    X: NDArray[np.generic]
    # response, as codes if it has classes, or several responses column by column; (n_obs,) or
    # (n_obs, n_responses)
    y: FloatArray
    family: AnyFamily  # of all responses, with links
    feature_names: tuple[str, ...]
    # known part of the linear predictors; (n_obs,) or (n_obs, n_predictors)
    offset: FloatArray | None
    # number of trials of each binomial response, 1 for other responses; in the shape of `y`
    n_trials: FloatArray | None
    sample_weight: FloatArray  # ones if none were given; (n_obs,)
    groups: NDArray[np.generic] | None  # rows with the same label share a component; (n_obs,)
    # names of several responses, or of all classes but the first
    response_names: tuple[str, ...] = ()
    # labels of the classes; the first is the reference; (n_classes,)
    classes: NDArray[Any] | None = None
    gating: FloatArray | None = None  # gating covariates; (n_obs, n_gate)
    gate_names: tuple[str, ...] = ()
    # response without offset and trials, standardised for the identity link, once the problem of
    # the moments is posed; in the shape of `y`
    response: FloatArray | None = None
    # labels of the rows, if X or y is a table whose index is not just their numbers; (n_obs,)
    index: NDArray[Any] | None = None
    # attributes by which a DataTree keeps the formula that X came from
    formula: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])

    @property
    def scatter(self) -> None:
        """Sums of X and its products that are known: none of rows in memory."""
        return None

    @property
    def response_scatter(self) -> None:
        """Sums of the response that are known: none of rows in memory."""
        return None

    @property
    def single_family(self) -> Family:
        """Family of the only response."""
        (family,) = self.family.members
        return family

    def take(self, index: NDArray[np.intp] | slice) -> "RegressionData":
        """Select rows."""
        taken: dict[str, Any] = {
            name: None if values is None else values[index]
            for name, values in self.columns().items()
        }
        for name in ("y", "offset", "n_trials"):
            if taken[name] is not None and taken[name].ndim == 2:
                taken[name] = np.asfortranarray(taken[name])
        return replace(self, **taken)

    def columns(self) -> dict[str, Any]:
        """Return what has an entry for each row."""
        return {name: getattr(self, name) for name in ROW_COLUMNS}

    def drop_zero_weights(self) -> "RegressionData":
        """Drop the rows with weight zero; return the same object if there are none."""
        rows = np.flatnonzero(self.sample_weight)
        return self if len(rows) == self.n_obs else self.take(rows)

    def single(self, index: int) -> "RegressionData":
        """Select one response, or one class (but the first) against all others."""
        if isinstance(self.family, Categorical):
            return replace(
                self,
                y=(self.y == index + 1).astype(np.float64),
                family=get_family("bernoulli"),
                # The odds against all others depend on the offsets of the other classes too.
                offset=self.offset if self.family.n_classes == 2 else None,
                response_names=(),
                classes=None,
            )
        if isinstance(self.family, Family):
            return self
        member = self.family.members[index]
        return replace(
            self,
            y=self.y[:, index],
            family=member,
            offset=None if self.offset is None else self.offset[:, index],
            n_trials=None
            if self.n_trials is None or not member.has_trials
            else self.n_trials[:, index],
            response_names=(),
        )


def validate_data(
    X: Any,
    y: Any,
    *,
    family: str | AnyFamily | Sequence[str | Family],
    link: str | None = None,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    gating: Any = None,
) -> RegressionData:
    """Check the data arguments and convert them to arrays.

    Labels of `family="categorical"` are turned into codes; with a `Categorical` family, which knows
    the number of classes, `y` has codes already.
    """
    # X: (n_obs, n_features), y: (n_obs,) or (n_obs, n_responses), gating: (n_obs, n_gate)
    if isinstance(X, RegressionData):  # rows that have been checked
        return X
    given = {
        "X": X,
        "y": y,
        "offset": offset,
        "n_trials": n_trials,
        "sample_weight": sample_weight,
        "groups": groups,
        "gating": gating,
    }
    given = {name: as_known_table(values) for name, values in given.items()}
    if is_dask(*given.values()):
        from moment_init.data.dask_rows import validate_dask

        rows: RegressionData = validate_dask(given, family=family, link=link)
        return rows
    data = check_rows(**given, family=family, link=link)
    values = data.y if data.n_trials is None else data.y / data.n_trials
    counted = values[data.sample_weight > 0.0].reshape(-1, len(data.family.members))
    for index, response in enumerate(counted.T):
        with named_response(data.response_names, index):
            require_variation(response.min(), response.max(), len(response))
    return data


def check_rows(
    X: Any,
    y: Any,
    *,
    family: Any,
    link: str | None = None,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    gating: Any = None,
    is_part: bool = False,
) -> RegressionData:
    """Check the values of rows; part of the rows may be few, and all of weight zero."""
    features, feature_names = validate_features(X, min_obs=1 if is_part else 2)
    n_obs = features.shape[0]
    weights = validate_sample_weight(sample_weight, n_obs, is_part=is_part)
    classes = None
    if has_classes(family):
        classes, columns = _validate_classes(y, family, weights)
        names = tuple(str(label) for label in classes[1:])
        families = response_families(categorical(len(classes)), link, 1)
    else:
        names, columns = response_columns(y)
        families = response_families(family, link, len(columns))
    joined = join_families(families)
    trials = match_trials(n_trials, joined, n_obs)
    response = _validate_columns(columns, names, families, trials, n_obs)
    labels = validate_groups(groups, n_obs)
    covariates, gate_names = validate_gating(gating, n_obs, labels, is_part=is_part) or (None, ())
    return RegressionData(
        X=features,
        y=response,
        family=joined,
        feature_names=feature_names,
        offset=match_offset(offset, n_obs, joined.n_predictors),
        n_trials=trials,
        sample_weight=weights,
        groups=labels,
        response_names=names,
        classes=classes,
        gating=covariates,
        gate_names=gate_names,
        index=None if is_part else index_of(X, y),
        formula=getattr(X, "attrs", {}).get("moment_init_formula", {}),
    )


def index_of(*tables: Any) -> NDArray[Any] | None:
    """Return the labels of rows of the first table that has distinct ones; None without a table."""
    for table in tables:
        index = getattr(table, "index", None)
        if index is None or not hasattr(index, "is_unique"):  # `index` is a method of lists
            continue
        labels = index.to_numpy()
        if index.nlevels == 1 and index.is_unique and not index.hasnans:
            is_numbered = np.array_equal(labels, np.arange(len(labels)))
            is_plain = labels.dtype.kind in "iufM"
            return None if is_numbered else labels if is_plain else labels.astype(str)
    return None


def require_one_response(data: RegressionData, function: str) -> None:
    """Raise where several responses and classes are not supported."""
    if data.family.n_predictors == 1 and data.classes is None:
        return
    number = len(data.response_names)
    got = f"{number} responses" if data.classes is None else f"{number + 1} classes"
    raise ValueError(
        "`y` must be one response of numbers: several responses and classes are not supported by "
        f"`{function}`; got {got}. Pass one column, or fit all with `fit_em` and compare the `bic`."
    )


def _validate_classes(y: Any, family: Any, weights: FloatArray) -> tuple[NDArray[Any], list[Any]]:
    """Find the classes of a response, and its codes."""
    if isinstance(family, Categorical):
        return np.arange(family.n_classes), [one_column(y, "y")]
    labels = read_labels(y, len(weights))
    classes = find_classes(labels, weights)
    return classes, [class_codes(labels, classes)]


def _validate_columns(
    columns: list[Any],
    names: tuple[str, ...],
    families: tuple[Family, ...],
    trials: FloatArray | None,
    n_obs: int,
) -> FloatArray:
    """Check the values of every response."""
    # columns: n_responses times (n_obs,), trials: (n_obs,) or (n_obs, n_responses)
    # -> (n_obs,) or (n_obs, n_responses)
    responses = []
    for index, (values, family) in enumerate(zip(columns, families, strict=True)):
        own_trials = trials if family.has_trials else None
        if own_trials is not None and own_trials.ndim == 2:
            own_trials = own_trials[:, index]
        with named_response(names, index):
            response = validate_row_vector(values, "y", n_obs)
            family.validate_response(response, own_trials)
        responses.append(response)
    return responses[0] if len(responses) == 1 else np.array(responses).T


@contextmanager
def named_response(names: tuple[str, ...], index: int) -> Iterator[None]:
    """Name the response in errors about one of several."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if len(names) <= 1:
            raise
        raise type(error)(f"`y`, response {names[index]!r}: {error}") from error


def validate_features(
    X: Any, *, name: str = "X", min_obs: int = 2
) -> tuple[NDArray[np.generic], tuple[str, ...]]:
    """Check a matrix of inputs."""
    # X: (n_obs, n_features) -> (n_obs, n_features), n_features names
    X = as_known_table(X)
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


def require_variation(smallest: float, largest: float, n_rows: int) -> None:
    """Raise for a response that is the same in all rows with positive weight, or hardly varies."""
    if smallest == largest:
        raise ValueError(
            f"`y` must vary; got {smallest:g} in all {n_rows} rows with a positive weight. Such a "
            "response says nothing about the components. Check the column that was passed."
        )
    require_response_range(float(smallest), float(largest))


def require_response_range(smallest: float, largest: float) -> None:
    """Raise for a response whose squares would overflow or underflow."""
    low, high = RESPONSE_RANGES
    if not low < largest / 2.0 - smallest / 2.0 < high:  # halves, so that the difference is finite
        raise ValueError(
            f"`y` must vary by more than {low:g} and less than {high:g}; got values from "
            f"{smallest:g} to {largest:g}. Squares of such values would overflow or vanish. Change "
            "the units of `y`."
        )


def validate_n_trials(n_trials: Any, family: AnyFamily, n_obs: int) -> FloatArray | None:
    """Check the numbers of trials of one binomial response."""
    # n_trials: () or (n_obs,) -> (n_obs,)
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


def validate_sample_weight(sample_weight: Any, n_obs: int, *, is_part: bool = False) -> FloatArray:
    """Check the weights of the rows; those of a part of the rows may all be zero."""
    # sample_weight: (n_obs,) -> (n_obs,)
    if sample_weight is None:
        return np.ones(n_obs)
    weights = validate_row_vector(sample_weight, "sample_weight", n_obs)
    if weights.min() < 0.0 or (not is_part and weights.sum() <= 0.0):
        row = int(np.argmin(weights))
        raise ValueError(
            "`sample_weight` must be non-negative and not all zero; "
            f"got {weights[row]:g} in row {row}. Drop rows instead of weighting them negatively."
        )
    return weights


def match_columns(
    values: Any, names: tuple[str, ...], argument: str, *, min_obs: int = 1
) -> FloatArray:
    """Put columns into the order of the fit; they are matched by name if they have names."""
    # values: (n_obs, n_columns) -> (n_obs, n_columns)
    features, columns = validate_features(values, name=argument, min_obs=min_obs)
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


def match_response(
    y: Any,
    family: AnyFamily,
    response_names: tuple[str, ...],
    classes: NDArray[Any] | None,
    n_obs: int,
    *,
    n_trials: FloatArray | None = None,
) -> FloatArray:
    """Check the response of new rows against a fit; `n_trials` is what `match_trials` returns.

    Several responses of a DataFrame are matched by name; labels become codes.
    """
    # y: (n_obs,) or (n_obs, n_responses), n_trials: as y -> (n_obs,) or (n_obs, n_responses)
    if classes is not None:
        return class_codes(read_labels(y, n_obs), classes)
    members = family.members
    several = len(members) > 1
    columns = columns_of_fit(y, response_names) if several else [one_column(y, "y")]
    return _validate_columns(columns, response_names, members, n_trials, n_obs)


def match_offset(offset: Any, n_obs: int, n_predictors: int) -> FloatArray | None:
    """Check an offset; one value per row is used for all linear predictors."""
    # offset: (n_obs,) or (n_obs, n_predictors) -> (n_obs,) or (n_obs, n_predictors)
    return None if offset is None else _by_predictor(offset, "offset", n_obs, n_predictors)


def match_trials(n_trials: Any, family: AnyFamily, n_obs: int) -> FloatArray | None:
    """Check the trials of binomial responses; other responses beside them have one trial."""
    # n_trials: (), (n_obs,) or (n_obs, n_responses) -> (n_obs,) or (n_obs, n_responses)
    members = family.members
    if n_trials is None:
        return None
    if len(members) == 1 or not family.has_trials:
        return validate_n_trials(one_column(n_trials, "n_trials"), family, n_obs)
    values = np.full(n_obs, n_trials) if np.ndim(n_trials) == 0 else n_trials
    trials = np.array(_by_predictor(values, "n_trials", n_obs, len(members)), order="F")
    for index, member in enumerate(members):
        if member.has_trials:
            validate_n_trials(trials[:, index], member, n_obs)
        else:
            trials[:, index] = 1.0
    return trials


def _by_predictor(values: Any, name: str, n_obs: int, n_predictors: int) -> FloatArray:
    """Check an argument with one value per row, or one for each linear predictor of a row."""
    # values: (n_obs,) or (n_obs, n_predictors) -> (n_obs,) or (n_obs, n_predictors)
    if n_predictors == 1:
        return validate_row_vector(one_column(values, name), name, n_obs)
    array = as_real_array(values, name).astype(np.float64, copy=False)
    if array.shape not in {(n_obs,), (n_obs, n_predictors)} or not np.isfinite(array).all():
        raise ValueError(
            f"`{name}` must be finite, of shape ({n_obs},) or ({n_obs}, {n_predictors}); got shape "
            f"{array.shape}. Drop or impute rows with missing values."
        )
    by_row = array[:, None] if array.ndim == 1 else array
    return np.asfortranarray(np.broadcast_to(by_row, (n_obs, n_predictors)))


def validate_gating(
    gating: Any, n_obs: int, groups: NDArray[np.generic] | None, *, is_part: bool = False
) -> tuple[FloatArray, tuple[str, ...]] | None:
    """Check gating covariates."""
    # gating: (n_obs,) or (n_obs, n_gate), groups: (n_obs,)
    if gating is None:
        return None
    table = gating_table(as_known_table(gating))
    features, names = validate_features(table, name="gating", min_obs=1 if is_part else 2)
    if features.shape[0] != n_obs:
        raise ValueError(
            f"`gating` must have one row per row of `X` ({n_obs}); got {features.shape[0]}. "
            "Select the same rows."
        )
    if not hasattr(table, "columns"):
        names = tuple(f"g{index}" for index in range(features.shape[1]))
    values = features.astype(np.float64)
    require_constant_in_groups(values, names, groups)
    return values, names


def gating_table(gating: Any) -> Any:
    """Make a table of a single gating covariate."""
    # gating: (n_obs,) or (n_obs, n_gate) -> (n_obs, n_gate)
    if np.ndim(gating) != 1:
        return gating
    if hasattr(gating, "to_frame"):
        return gating.to_frame()
    return (gating if hasattr(gating, "ndim") else np.asarray(gating))[:, None]
