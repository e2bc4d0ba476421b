"""Groups of rows that share their component: labels of any kind, and the order they give."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["group_codes", "group_order", "require_constant_in_groups", "validate_groups"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]


def validate_groups(groups: Any, n_obs: int) -> NDArray[np.generic] | None:
    """Check the labels of groups.

    Parameters
    ----------
    groups : array-like, shape (n_obs,), optional
        Any hashable values, one per row.
    n_obs : int
        Number of rows.

    Returns
    -------
    numpy.ndarray, shape (n_obs,), or None
        The labels; None where none were given.

    Raises
    ------
    ValueError
        For a wrong shape or missing labels.
    """
    if groups is None:
        return None
    labels = np.asarray(groups)
    if labels.shape != (n_obs,):
        raise ValueError(
            f"`groups` must have shape ({n_obs},), one label per row of `X`; got {labels.shape}."
        )
    from pandas import isna  # knows every kind of missing label; imported where there are groups

    missing = np.asarray(isna(labels))
    if np.any(missing):
        raise ValueError(
            f"`groups` must not be missing; got {labels[int(np.argmax(missing))]} in row "
            f"{int(np.argmax(missing))}. Give every row a group."
        )
    return labels


def group_codes(groups: NDArray[np.generic] | None) -> IndexArray | None:
    """Number the groups in the order of their first rows.

    Parameters
    ----------
    groups : numpy.ndarray, shape (n_obs,), or None
        Checked labels.

    Returns
    -------
    numpy.ndarray of int, shape (n_obs,), or None
        Number of each row's group. None without groups.
    """
    if groups is None:
        return None
    from pandas import factorize  # labels of any kind; imported where there are groups only

    return np.asarray(factorize(groups)[0], dtype=np.intp)


def group_order(
    groups: NDArray[np.generic] | None,
) -> tuple[IndexArray | None, IndexArray | None]:
    """Put the rows of each group together, groups in the order of their first rows.

    Parameters
    ----------
    groups : numpy.ndarray, shape (n_obs,), or None
        Checked labels.

    Returns
    -------
    order : numpy.ndarray of int, shape (n_obs,), or None
        Which row stands where; rows of a group keep their order. None without groups.
    starts : numpy.ndarray of int, shape (n_groups,), or None
        Where each group begins in that order.
    """
    codes = group_codes(groups)
    if codes is None:
        return None, None
    order = np.argsort(codes, kind="stable")
    return order, np.flatnonzero(np.diff(codes[order], prepend=-1))


def require_constant_in_groups(
    values: FloatArray, names: tuple[str, ...], groups: NDArray[np.generic] | None
) -> None:
    """Raise for gating covariates that vary within a group.

    Parameters
    ----------
    values : numpy.ndarray, shape (n_obs, n_gate)
        The covariates.
    names : tuple of str
        Their names.
    groups : numpy.ndarray, shape (n_obs,), or None
        Checked labels; nothing is asked for without them.

    Raises
    ------
    ValueError
        For the first covariate that varies.
    """
    order, starts = group_order(groups)
    if order is None or starts is None:
        return
    ordered = values[order]
    sizes = np.diff(np.append(starts, len(ordered)))
    varies = np.any(ordered != np.repeat(ordered[starts], sizes, axis=0), axis=0)
    if varies.any():
        name = names[int(np.argmax(varies))]
        raise ValueError(
            "`gating` must not vary within a group, as all rows of a group share their component; "
            f"got column {name!r} that does. Use its mean by group."
        )
