"""Rows that were read once and are held, so that what asks for them later needs no pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.row_sources.recipes import Recipe, evaluate, stored_places

__all__ = ["HeldRows", "rows_from"]

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """Some rows of stored columns.

    Parameters
    ----------
    index : numpy.ndarray of int, shape (n,)
        Numbers of the rows, ascending.
    stored : dict of int to numpy.ndarray
        Their values, by the place of the column.
    """

    index: IndexArray
    stored: dict[int, NDArray[Any]]


def rows_from(
    pools: Sequence[HeldRows], recipes: Sequence[Recipe], index: IndexArray
) -> list[NDArray[Any]] | None:
    """Take rows of columns from what is held.

    Parameters
    ----------
    pools : sequence of HeldRows
        What is held.
    recipes : sequence of Recipe
        How the columns come about.
    index : numpy.ndarray of int, shape (n,)
        Numbers of the rows, in any order.

    Returns
    -------
    list of numpy.ndarray, or None
        The rows, not to be written to; None if no pool has them all.
    """
    places = stored_places(tuple(recipes))
    for pool in pools:
        if not all(place in pool.stored for place in places):
            continue
        at = _positions(pool.index, index)
        if at is not None:
            stored = {place: pool.stored[place][at] for place in places}
            known: dict[int, NDArray[np.generic]] = {}
            return [evaluate(recipe, stored, len(index), known) for recipe in recipes]
    return None


def _positions(held: IndexArray, index: IndexArray) -> IndexArray | slice | None:
    """Where rows stand among those held; a slice, which copies nothing, where it can be one."""
    if len(index) == 0 or index.max() > held[-1]:
        return None
    at = np.searchsorted(held, index)
    if not np.array_equal(held[at], index):
        return None
    steps = np.diff(at)
    if len(steps) and steps[0] > 0 and np.all(steps == steps[0]):
        return slice(int(at[0]), int(at[-1]) + 1, int(steps[0]))
    return np.asarray(at, dtype=np.intp)
