"""Columns of y, and the family of each.

Labels of classes, and their codes.

Arguments with a value for every row, or for every row and response.

The data block with several responses, or with one of several classes: checked once, here.

Where a call with several responses leaves the way of a single one.

Functions of X and y are decorated; nothing behind them sees more than one response.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_array, as_float_array, as_real_array, is_dask
from moment_init.data.checking import (
    RegressionData,
    validate_data,
    validate_features,
    validate_n_trials,
    validate_row_vector,
    validate_sample_weight,
)
from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses

CATEGORICAL = "categorical"
"""The family of one response of several classes."""


def is_joint_family(family: Any) -> bool:
    """Say whether a family is not that of one response of numbers."""
    if isinstance(family, str):
        return family == CATEGORICAL
    return not isinstance(family, Family) and isinstance(family, Sequence)


def response_families(family: Any, link: Any, n_responses: int) -> tuple[Family, ...]:
    """Look up the family of every response."""
    if not is_joint_family(family):
        return (get_family(family, link),) * n_responses
    if len(family) != n_responses:
        raise ValueError(
            f"`family` must be one family, or one for each of the {n_responses} responses; got "
            f"{len(family)}."
        )
    if link is not None:
        raise ValueError(
            f"`link` must be None where each response has its own family; got {link!r}. Pass "
            "families with their links, from moment_init.families.get_family."
        )
    if CATEGORICAL in [each for each in family if isinstance(each, str)]:
        raise ValueError(
            "`family` must not hold 'categorical' beside other families; got it. A response of "
            "classes is fitted on its own, or as a column of zeros and ones for each class."
        )
    return tuple(get_family(each) for each in family)


def response_columns(y: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Take y apart."""
    # y: (n_obs, n_responses) -> ..., (n_obs,)
    if hasattr(y, "toarray") or hasattr(y, "sparse"):
        raise TypeError(f"`y` must be dense; got {type(y).__name__}. Pass `y.toarray()`.")
    if hasattr(y, "columns"):
        names = tuple(str(name) for name in y.columns)
        if len(set(names)) < len(names):
            raise ValueError(f"`y` must have distinct column names; got {list(names)}.")
        columns = [y.iloc[:, index].to_numpy() for index in range(len(names))]
    else:
        array = as_real_array(y, "y")
        if array.ndim != 2:
            raise ValueError(
                "`y` must have a column for each response, (n_obs, n_responses), where `family` "
                f"names several families; got shape {array.shape}."
            )
        names = tuple(f"y{index}" for index in range(array.shape[1]))
        columns = list(array.T)
    if not names:
        raise ValueError("`y` must have at least one column; got none.")
    return names, columns


def columns_of_fit(y: Any, names: tuple[str, ...]) -> list[Any]:
    """Columns of y in the order of a fit."""
    # y: (n_obs, n_responses) -> (n_obs,)
    if hasattr(y, "columns"):
        given = {str(name): y.iloc[:, index] for index, name in enumerate(y.columns)}
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(f"`y` must have the responses of the fit; missing are {missing}.")
        return [given[name].to_numpy() for name in names]
    array = as_real_array(y, "y")
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(
            f"`y` must have the {len(names)} responses of the fit, (n_obs, {len(names)}); got "
            f"shape {array.shape}."
        )
    return list(array.T)


def clean_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Check that labels can be sorted and that none is missing."""
    # labels: (n_obs,) -> (n_obs,)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("`y` must be finite; got missing or infinite labels. Drop such rows.")
    if labels.dtype == object:
        from pandas import isna  # its own missing values have no truth value

        if isna(labels).any():
            raise ValueError("`y` must not have missing labels. Drop such rows.")
        if len({type(label) for label in labels}) > 1:
            raise TypeError("`y` must have labels of one type; got several. Convert them.")
        return np.asarray(labels.tolist())
    return labels


def label_classes(labels: NDArray[Any], weights: FloatArray) -> NDArray[Any]:
    """Find the classes among labels."""
    # labels: (n_obs,), weights: (n_obs,) -> (n_classes,)
    clean = clean_labels(labels)
    classes = np.unique(clean[weights > 0.0])
    if len(classes) < 2:
        raise ValueError(
            "`y` must have at least two classes in rows of positive weight for "
            f"family='categorical'; got {classes.tolist()}."
        )
    is_known = np.isin(clean, classes)
    if not is_known.all():
        row = int(np.argmin(is_known))
        raise ValueError(
            "`y` must have every class in rows of positive weight; got "
            f"{clean[row].item()!r}, of row {row}, in rows of weight zero only. Drop those rows."
        )
    return classes


def validate_labels(y: Any, kind: Categorical, n_obs: int) -> FloatArray:
    """Turn labels into the codes of their classes."""
    # y: (n_obs,) or (n_obs, 1) -> (n_obs,)
    labels = clean_labels(label_column(y, n_obs))
    order = np.argsort(kind.classes)  # names of numbers are not sorted as the numbers are
    places = np.searchsorted(kind.classes, labels, sorter=order)
    codes = order[np.minimum(places, len(order) - 1)]
    is_known = kind.classes[codes] == labels
    if not is_known.all():
        row = int(np.argmin(is_known))
        raise ValueError(
            f"`y` must have labels among {kind.classes.tolist()}; got {labels[row]!r} in row {row}."
        )
    return codes.astype(np.float64)


def label_column(y: Any, n_obs: int) -> NDArray[Any]:
    """Check the shape of labels."""
    # y: (n_obs,) or (n_obs, 1) -> (n_obs,)
    labels = as_array(y, "y")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n_obs,):
        raise ValueError(
            f"`y` must have one label per row of `X` ({n_obs}) for family='categorical'; got shape "
            f"{labels.shape}."
        )
    return labels


def by_response(values: Any, name: str, n_obs: int, n_responses: int) -> FloatArray | None:
    """Give an argument of the rows to every response."""
    # values: () -> (n_responses, n_obs)
    if values is None:
        return None
    array = as_float_array(values, name)
    if array.shape not in {(), (n_obs,), (n_obs, n_responses)} or not np.isfinite(array).all():
        raise ValueError(
            f"`{name}` must be finite, of shape ({n_obs},) or ({n_obs}, {n_responses}); got shape "
            f"{array.shape}."
        )
    by_row = array[:, None] if array.ndim == 1 else array
    return np.ascontiguousarray(np.broadcast_to(by_row, (n_obs, n_responses)).T)


def validate_trials(n_trials: Any, kind: ResponseKind, n_obs: int) -> FloatArray | None:
    """Check the trials behind binomial responses."""
    # n_trials: (n_obs,) or (n_obs, n_responses) -> (n_responses, n_obs)
    if n_trials is None:
        return None
    if not any(family is not None and family.has_trials for family in kind.families):
        raise ValueError(
            f"`n_trials` must be None for family {kind.name!r}; it is for 'binomial'. Leave it out."
        )
    trials = np.array(by_response(n_trials, "n_trials", n_obs, len(kind.families)))
    for index, family in enumerate(kind.families):
        if family is not None and family.has_trials:
            validate_n_trials(trials[index], family, n_obs)
        else:
            trials[index] = 1.0
    return trials


CLASSES = "family='categorical'"
"""How messages call a response of classes."""


@dataclass(frozen=True, slots=True, eq=False)
class ResponsesData:
    """Checked rows with several responses."""

    X: FloatArray  # inputs in double precision; (n_obs, n_features)
    # responses, a response a row of memory; codes of classes for a categorical response;
    # (n_responses, n_obs)
    y: FloatArray
    kind: ResponseKind  # how they depend on linear predictors
    feature_names: tuple[str, ...]  # names of the columns of X
    offset: FloatArray | None  # known part of the linear predictors; (n_predictors, n_obs)
    # trials behind binomial responses; one where a response has none; (n_responses, n_obs)
    n_trials: FloatArray | None
    sample_weight: FloatArray  # weight of each row; (n_obs,)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns of X."""
        return int(self.X.shape[1])

    def drop_zero_weights(self) -> "ResponsesData":
        """Leave out the rows of weight zero."""
        kept = self.sample_weight > 0.0
        if kept.all():
            return self
        return replace(
            self,
            X=self.X[kept],
            y=self.y[:, kept],
            offset=None if self.offset is None else self.offset[:, kept],
            n_trials=None if self.n_trials is None else self.n_trials[:, kept],
            sample_weight=self.sample_weight[kept],
        )

    def single(self, index: int) -> RegressionData:
        """The rows with one of the responses; a class against the others for a categorical one."""
        family = self.kind.families[index]
        is_class = family is None
        has_trials = family is not None and family.has_trials and self.n_trials is not None
        return RegressionData(
            X=self.X,
            y=(self.y[0] == index + 1).astype(np.float64) if is_class else self.y[index],
            family=get_family("bernoulli") if family is None else family,
            feature_names=self.feature_names,
            offset=None if self.offset is None or is_class else self.offset[index],
            n_trials=self.n_trials[index] if has_trials and self.n_trials is not None else None,
            sample_weight=self.sample_weight,
            groups=None,
        )


def has_several_responses(y: Any, family: Any) -> bool:
    """Say whether y is more than one column of numbers."""
    if is_joint_family(family):
        return True
    n_dims = getattr(y, "ndim", None)
    try:
        return (np.asarray(y).ndim if n_dims is None else n_dims) == 2
    except ValueError:  # lists of unequal length, which the checks of one response refuse by name
        return False


def require_one_response(function: str, y: Any, family: Any) -> None:
    """Raise where several responses are not supported."""
    shape: tuple[int, ...] = np.shape(y) if has_several_responses(y, family) else ()
    if is_joint_family(family):
        got = f"family={family!r}"
    elif len(shape) == 2 and shape[1] != 1:
        got = f"`y` of shape {shape}"
    else:
        return
    raise ValueError(
        f"`y` must be one response of numbers: several responses and classes are not supported by "
        f"`{function}`; got {got}. Pass one column, or fit all with `fit_em` and compare the `bic`."
    )


def refuse_arguments(
    function: str, kind: str = "several responses or family='categorical'", **given: Any
) -> None:
    """Raise for arguments that are not for several responses."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out of `{function}` with {kind}, for which it is not "
                f"available; got {type(value).__name__}. Leave it out, or fit one "
                "response at a time."
            )


def validate_responses(
    X: Any,
    y: Any,
    *,
    family: Any,
    link: Any = None,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    function: str = "fit_em",
) -> ResponsesData:
    """Check the data block."""
    # X: (n_obs, n_features), y: (n_obs, n_responses), offset, n_trials: (n_obs,) or (n_obs,
    # n_responses), sample_weight: (n_obs,)
    refuse_arguments(function, groups=groups)
    if is_dask(X, y, offset, n_trials, sample_weight):
        raise TypeError(
            "`X` and `y` must be in memory for several responses; got a Dask collection. Compute "
            "it, or fit one response at a time."
        )
    if isinstance(family, str) and family == CATEGORICAL:
        refuse_arguments(function, CLASSES, link=link, offset=offset, n_trials=n_trials)
        return _validate_classes(X, y, sample_weight)
    names, columns = response_columns(y)
    families = response_families(family, link, len(columns))
    kind = SeparateResponses(names, families)
    data = validate_rows(
        X, columns, kind, offset=offset, n_trials=n_trials, sample_weight=sample_weight
    )
    for index, name in enumerate(names):
        _require_variation(data, index, name)
    return data


def validate_rows(
    X: Any,
    columns: list[Any],
    kind: SeparateResponses,
    *,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
) -> ResponsesData:
    """Check rows of responses whose families are known."""
    # X: (n_obs, n_features)
    features, feature_names = validate_features(X, min_obs=1)
    n_obs = len(features)
    offsets = by_response(offset, "offset", n_obs, len(columns))
    trials = validate_trials(n_trials, kind, n_obs)
    checked = []
    for index, (name, family) in enumerate(zip(kind.names, kind.members, strict=True)):
        try:
            response = validate_row_vector(columns[index], "y", n_obs)
            own = trials[index] if family.has_trials and trials is not None else None
            family.validate_response(response, own)
        except ValueError as error:
            raise ValueError(f"`y`, response {name!r}: {error}") from error
        checked.append(response)
    return ResponsesData(
        X=np.asarray(features, dtype=np.float64),
        y=np.stack(checked),
        kind=kind,
        feature_names=feature_names,
        offset=offsets,
        n_trials=trials,
        sample_weight=validate_sample_weight(sample_weight, n_obs),
    )


def _require_variation(data: ResponsesData, index: int, name: str) -> None:
    single = data.single(index)
    try:
        validate_data(
            single.X,
            single.y,
            family=single.family,
            n_trials=single.n_trials,
            sample_weight=single.sample_weight,
        )
    except ValueError as error:
        raise ValueError(f"`y`, response {name!r}: {error}") from error


def _validate_classes(X: Any, y: Any, sample_weight: Any) -> ResponsesData:
    features, feature_names = validate_features(X)
    labels = label_column(y, len(features))
    weights = validate_sample_weight(sample_weight, len(features))
    classes = label_classes(labels, weights)
    kind = Categorical(tuple(str(label) for label in classes[1:]), classes)
    if len(set(kind.outcome_names)) < len(classes):
        raise ValueError(f"`y` must have labels with distinct names; got {classes.tolist()}.")
    return ResponsesData(
        X=np.asarray(features, dtype=np.float64),
        y=validate_labels(labels, kind, len(labels))[None],
        kind=kind,
        feature_names=feature_names,
        offset=None,
        n_trials=None,
        sample_weight=weights,
    )


DATA_BLOCK = ("family", "link", "offset", "n_trials", "sample_weight", "groups")


def takes_responses[**P, R](
    load: Callable[[], Callable[..., Any]], refused: tuple[str, ...]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of X and y take several responses, or labels of classes."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            given = dict(zip(parameters.parameters, args, strict=False)) | kwargs
            family = given.get("family", "bernoulli")
            if "y" not in given or not has_several_responses(given["y"], family):
                return function(*args, **kwargs)
            bound = parameters.bind(*args, **kwargs)
            changed = {
                name: bound.arguments[name]
                for name in refused
                if name in bound.arguments and not _is_default(bound.arguments[name], name)
            }
            refuse_arguments(function.__name__, **changed)
            bound.apply_defaults()
            rest = {
                name: value
                for name, value in bound.arguments.items()
                if name not in (*DATA_BLOCK, *refused, "X", "y", "n_components")
            }
            X, y, number = (bound.arguments[name] for name in ("X", "y", "n_components"))
            block = {name: bound.arguments[name] for name in DATA_BLOCK}
            result: R = load()(X, y, number, data_block=block, **rest)
            return result

        def _is_default(value: Any, name: str) -> bool:
            default = parameters.parameters[name].default
            return value is default or (isinstance(value, str) and value == default)

        return wrapper

    return decorate
