"""How a block gets the rows of a column: stored values, a constant, or a function of other columns.

Recipes are small and know no rows: they travel to where a block of rows is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Constant", "Mapped", "Recipe", "Stored", "evaluate", "stored_places"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Values as they are stored.

    Parameters
    ----------
    place : int
        Which of the stored columns.
    """

    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The same value in every row.

    Parameters
    ----------
    value : float
        The value.
    """

    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """A function of other columns, row by row.

    Parameters
    ----------
    function : callable
        Maps arrays of some rows to an array of the same rows.
    arguments : tuple
        Its arguments: recipes, and anything else as it is.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


Recipe = Stored | Constant | Mapped


def stored_places(recipes: tuple[Recipe, ...]) -> tuple[int, ...]:
    """Which stored columns some recipes need.

    Parameters
    ----------
    recipes : tuple of Recipe
        The recipes.

    Returns
    -------
    tuple of int
        Their places, ascending.
    """
    found: set[int] = set()
    waiting: list[Any] = list(recipes)
    while waiting:
        recipe = waiting.pop()
        if isinstance(recipe, Stored):
            found.add(recipe.place)
        elif isinstance(recipe, Mapped):
            waiting.extend(recipe.arguments)
    return tuple(sorted(found))


def evaluate(
    recipe: Recipe, stored: Mapping[int, Array], n_rows: int, known: dict[int, Array]
) -> Array:
    """Make the rows of a column in one block.

    Parameters
    ----------
    recipe : Recipe
        How.
    stored : mapping of int to numpy.ndarray
        The block's rows of stored columns.
    n_rows : int
        How many rows the block has.
    known : dict of int to numpy.ndarray
        What was made before, by the identity of the recipe; added to.

    Returns
    -------
    numpy.ndarray, shape (n_rows,) or (n_rows, n_columns)
        The rows.
    """
    if id(recipe) in known:
        return known[id(recipe)]
    if isinstance(recipe, Stored):
        result = stored[recipe.place]
    elif isinstance(recipe, Constant):
        result = np.full(n_rows, recipe.value)
    else:
        arguments = [
            evaluate(each, stored, n_rows, known) if isinstance(each, Recipe) else each
            for each in recipe.arguments
        ]
        result = np.asarray(recipe.function(*arguments))
    known[id(recipe)] = result
    return result
