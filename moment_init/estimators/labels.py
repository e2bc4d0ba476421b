"""Labels of a classifier, and their numbers."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

from moment_init.responses.columns import CATEGORICAL

__all__ = [
    "MultiClass",
    "class_shares",
    "counted_classes",
    "encode_labels",
    "require_known",
    "require_two_classes_for",
    "shares_components",
]

FloatArray = NDArray[np.float64]
MultiClass = Literal["one_vs_rest", "categorical"]


def counted_classes(labels: NDArray[Any], weights: FloatArray) -> NDArray[Any]:
    """Labels of the rows that count.

    Parameters
    ----------
    labels : numpy.ndarray, shape (n_obs,)
        Labels.
    weights : numpy.ndarray, shape (n_obs,)
        Weights of the rows.

    Returns
    -------
    numpy.ndarray, shape (n_classes,)
        The classes, sorted.

    Raises
    ------
    ValueError
        For fewer than two classes.
    """
    classes = np.unique(labels[weights > 0.0])
    if len(classes) < 2:
        raise ValueError(
            "`y` must have at least two classes in the rows of positive weight; got one class, "
            f"{classes.tolist()[0]!r}. Check the labels that were passed."
        )
    return classes


def class_shares(columns: list[FloatArray]) -> FloatArray:
    """Probabilities of classes from those of single classes against all others.

    Parameters
    ----------
    columns : list of numpy.ndarray, shape (n_obs,)
        Of each class; of the second alone, if there are two.

    Returns
    -------
    numpy.ndarray, shape (n_obs, n_classes)
        Probabilities that sum to one.
    """
    if len(columns) == 1:
        return np.column_stack([1.0 - columns[0], columns[0]])
    shares = np.column_stack(columns)
    total = shares.sum(axis=1, keepdims=True)
    # A row that every mixture rules out says nothing about its class.
    return np.where(total > 0.0, shares / np.where(total > 0.0, total, 1.0), 1 / len(columns))


def encode_labels(y: Any, classes: NDArray[Any]) -> FloatArray:
    """Numbers of the classes of rows.

    Parameters
    ----------
    y : array-like, shape (n_obs,)
        Labels.
    classes : numpy.ndarray, shape (n_classes,)
        The classes, sorted.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        The numbers; -1 for labels of no class.
    """
    labels = column_or_1d(y)
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[codes] == labels, codes, -1).astype(np.float64)


def require_known(y: Any, classes: NDArray[Any]) -> FloatArray:
    """Numbers of the classes of new rows, all of which must be known.

    Parameters
    ----------
    y : array-like, shape (n_obs,)
        Labels.
    classes : numpy.ndarray, shape (n_classes,)
        The classes, sorted.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        The numbers.

    Raises
    ------
    ValueError
        For a label of no class.
    """
    codes = encode_labels(y, classes)
    if codes.min() < 0.0:
        row = int(np.argmin(codes))
        known = ", ".join(map(repr, classes.tolist()))
        raise ValueError(
            f"`y` must have the labels of the fit ({known}); got "
            f"{np.asarray(y).tolist()[row]!r} in row {row}. Leave such rows out."
        )
    return codes


def require_two_classes_for(offset: Any, classes: NDArray[Any]) -> None:
    """Raise for an offset where it has no single predictor to belong to.

    Parameters
    ----------
    offset : array-like or None
        The offset.
    classes : numpy.ndarray, shape (n_classes,)
        The classes.

    Raises
    ------
    ValueError
        If there is one, and more than two classes.
    """
    if offset is not None and len(classes) > 2:
        raise ValueError(
            "`offset` must be None for more than two classes, each of which has a predictor of its "
            f"own; got one for {len(classes)} classes. Leave it out."
        )


def shares_components(multi_class: Any, classes: NDArray[Any]) -> bool:
    """Tell whether all classes share one mixture of softmax regressions.

    Parameters
    ----------
    multi_class : str
        What was asked for.
    classes : numpy.ndarray, shape (n_classes,)
        The classes.

    Returns
    -------
    bool
        Whether they do; two classes are a binary response in any case.

    Raises
    ------
    ValueError
        For another word.
    """
    names = get_args(MultiClass)
    if multi_class not in names:
        listed = " or ".join(map(repr, names))
        raise ValueError(f"`multi_class` must be {listed}; got {multi_class!r}.")
    return multi_class == CATEGORICAL and len(classes) > 2
