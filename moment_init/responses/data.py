"""The data block with several responses, or with one of several classes: checked once, here."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.data import (
    RegressionData,
    validate_data,
    validate_features,
    validate_row_vector,
    validate_sample_weight,
)
from moment_init.families import get_family
from moment_init.responses.columns import (
    CATEGORICAL,
    is_joint_family,
    response_columns,
    response_families,
)
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses
from moment_init.responses.labels import label_classes, label_column, validate_labels
from moment_init.responses.row_values import by_response, validate_trials
from moment_init.row_sources.detection import is_elsewhere

__all__ = [
    "CLASSES",
    "ResponsesData",
    "has_several_responses",
    "refuse_arguments",
    "require_one_response",
    "validate_responses",
    "validate_rows",
]

FloatArray = NDArray[np.float64]

CLASSES = "family='categorical'"
"""How messages call a response of classes."""


@dataclass(frozen=True, slots=True, eq=False)
class ResponsesData:
    """Checked rows with several responses.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        Inputs in double precision.
    y : numpy.ndarray, shape (n_responses, n_obs)
        Responses, a response a row of memory; codes of classes for a categorical response.
    kind : ResponseKind
        How they depend on linear predictors.
    feature_names : tuple of str
        Names of the columns of X.
    offset : numpy.ndarray, shape (n_predictors, n_obs), or None
        Known part of the linear predictors.
    n_trials : numpy.ndarray, shape (n_responses, n_obs), or None
        Trials behind binomial responses; one where a response has none.
    sample_weight : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    """

    X: FloatArray
    y: FloatArray
    kind: ResponseKind
    feature_names: tuple[str, ...]
    offset: FloatArray | None
    n_trials: FloatArray | None
    sample_weight: FloatArray

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns of X."""
        return int(self.X.shape[1])

    def counted(self) -> "ResponsesData":
        """Leave out the rows of weight zero.

        Returns
        -------
        ResponsesData
            The rows that count; the same object if all do.
        """
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
        """The rows with one of the responses; a class against the others for a categorical one.

        Parameters
        ----------
        index : int
            Which predictor.

        Returns
        -------
        RegressionData
            Rows of an ordinary regression.
        """
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
    """Say whether y is more than one column of numbers.

    Parameters
    ----------
    y : array-like
        The response as the user gave it.
    family : str, Family or sequence of them
        The family as the user gave it.

    Returns
    -------
    bool
        Whether y has two dimensions, the family is categorical, or there are several families.
    """
    if is_joint_family(family):
        return True
    n_dims = getattr(y, "ndim", None)
    try:
        return (np.asarray(y).ndim if n_dims is None else n_dims) == 2
    except ValueError:  # lists of unequal length, which the checks of one response refuse by name
        return False


def require_one_response(function: str, y: Any, family: Any) -> None:
    """Raise where several responses are not supported.

    Parameters
    ----------
    function : str
        What was called.
    y : array-like
        The response as the user gave it.
    family : str, Family or sequence of them
        The family as the user gave it.

    Raises
    ------
    ValueError
        For several columns, several families, and classes. A single column is left to the checks
        of one response.
    """
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
    """Raise for arguments that are not for several responses.

    Parameters
    ----------
    function : str
        What was called.
    kind : str
        The responses for which they are not available.
    **given : object
        Arguments by name; None if they were not given.

    Raises
    ------
    ValueError
        Naming the first one that was given.
    """
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
    """Check the data block.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like or DataFrame, shape (n_obs, n_responses); labels of classes, shape (n_obs,)
        Responses.
    family : str, Family or sequence of them
        Family of all responses, one for each, or "categorical".
    link : str, optional
        Link of all responses.
    offset, n_trials : array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Known part of the linear predictors; trials.
    sample_weight : array-like, shape (n_obs,), optional
        Weights of the rows.
    groups : None
        Not available.
    function : str
        What was called, for the messages.

    Returns
    -------
    ResponsesData
        The checked rows.

    Raises
    ------
    TypeError
        For data that are not of the right type.
    ValueError
        For wrong shapes, missing or infinite values, and responses outside the family's range.
    """
    refuse_arguments(function, groups=groups)
    if is_elsewhere(X, y, offset, n_trials, sample_weight):
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
    """Check rows of responses whose families are known.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    columns : list of array-like
        A response each.
    kind : SeparateResponses
        Their families.
    offset, n_trials, sample_weight : array-like, optional
        As in `validate_responses`.

    Returns
    -------
    ResponsesData
        The checked rows.
    """
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
