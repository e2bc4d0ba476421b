"""What kind of values a column has: a density, or values that recur and so no score."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moment_init.continuous_block import SAMPLED_ROWS, find_discrete_columns

__all__ = ["describe_discrete_columns", "name_discrete"]

FloatArray = NDArray[np.float64]

LARGEST_ATOM = 0.1
"""Share of the rows that one value may hold in a column with a density. Whole numbers of standard
deviation s hold .4 / s at their mode: from s = 4 on, rounding adds .5 % to a variance and nothing
else that moments can see."""

FEWEST_EQUAL = 5
"""Equal values among few rows that are no accident of rounding."""

FEWEST_EXPECTED = 5.0
"""Rows in which two indicators would both be one by chance, if they never are: one in a hundred."""


def describe_discrete_columns(X: NDArray[np.generic]) -> tuple[str, ...]:
    """Say of each column why it has no density.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        The inputs.

    Returns
    -------
    tuple of str
        Of each column what it is in words: binary, one-hot, whole numbers, few values, a value that
        holds many rows. Empty for a column with a density.

    Notes
    -----
    Some thousand rows are looked at. Whole numbers of many values, none of which holds a tenth of
    the rows, have a density for all that moments can see.
    """
    sample = np.asarray(X[:: max(1, len(X) // SAMPLED_ROWS)], dtype=np.float64)
    is_few = find_discrete_columns(sample)
    kinds = [_describe(*pair) for pair in zip(sample.T, is_few, strict=True)]
    for column in _one_hot_columns(sample, [each == "binary" for each in kinds]):
        kinds[column] = "one-hot"
    return tuple(kinds)


def name_discrete(names: Sequence[str], kinds: Sequence[str]) -> str:
    """List discrete columns with what they are.

    Parameters
    ----------
    names : sequence of str
        Names of all columns.
    kinds : sequence of str
        What `describe_discrete_columns` says of each.

    Returns
    -------
    str
        As in "female (binary), children (whole numbers, 5 values)"; empty if there are none.
    """
    return ", ".join(f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True) if kind)


def _describe(column: FloatArray, is_few: bool) -> str:
    values, counts = np.unique(column, return_counts=True)
    is_whole = bool(np.all(values == np.round(values)))
    if is_few and len(values) <= 2:
        return "binary"
    if is_few:
        return f"whole numbers, {len(values)} values" if is_whole else f"{len(values)} values"
    most = int(counts.max())
    if most <= max(LARGEST_ATOM * len(column), FEWEST_EQUAL):
        return ""
    where = f"{most / len(column):.0%} of them {values[counts.argmax()]:g}"
    return f"whole numbers, {where}" if is_whole else f"values that recur, {where}"


def _one_hot_columns(sample: FloatArray, is_binary: Sequence[bool]) -> list[int]:
    """Indicators of one factor: never one in the same row, though by chance some would be."""
    columns = [j for j, kept in enumerate(is_binary) if kept and sample[:, j].min() == 0.0]
    ones = sample[:, columns] / sample[:, columns].max(axis=0, initial=1.0)
    together, totals = ones.T @ ones, ones.sum(axis=0)
    expected = np.outer(totals, totals) / len(sample)
    is_exclusive = (together == 0.0) & (expected > FEWEST_EXPECTED)
    return [
        column for column, found in zip(columns, is_exclusive.any(axis=1), strict=True) if found
    ]
