"""Labels of classes, and their codes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.real_arrays import as_array
from moment_init.responses.kinds import Categorical

__all__ = ["clean_labels", "label_classes", "label_column", "validate_labels"]

FloatArray = NDArray[np.float64]


def clean_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Check that labels can be sorted and that none is missing.

    Parameters
    ----------
    labels : numpy.ndarray, shape (n_obs,)
        Labels.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        The labels, as an array of one type.

    Raises
    ------
    TypeError
        For labels of several types.
    ValueError
        For missing labels.
    """
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
    """Find the classes among labels.

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
    TypeError
        For labels of several types.
    ValueError
        For missing labels, fewer than two classes, and one that has no row of positive weight.
    """
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
    """Turn labels into the codes of their classes.

    Parameters
    ----------
    y : array-like, shape (n_obs,) or (n_obs, 1)
        Labels.
    kind : Categorical
        The classes.
    n_obs : int
        Number of rows.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        Indices of the classes.

    Raises
    ------
    ValueError
        For a wrong shape, missing and unknown labels.
    """
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
    """Check the shape of labels.

    Parameters
    ----------
    y : array-like, shape (n_obs,) or (n_obs, 1)
        Labels.
    n_obs : int
        Number of rows.

    Returns
    -------
    numpy.ndarray, shape (n_obs,)
        The labels.

    Raises
    ------
    ValueError
        For a wrong shape and masked values.
    """
    labels = as_array(y, "y")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n_obs,):
        raise ValueError(
            f"`y` must have one label per row of `X` ({n_obs}) for family='categorical'; got shape "
            f"{labels.shape}."
        )
    return labels
